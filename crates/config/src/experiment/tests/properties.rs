//! What holds for every document.

use proptest::prelude::*;

use super::*;

fn hyperparameter() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        (-1e6..1e6).prop_map(|f: f64| json!(f)),
        "[a-z]{0,5}".prop_map(Value::from),
        Just(Value::Null),
        (0..100_i64, 1..100_i64, proptest::option::of(1..9_u64)).prop_map(|(min, more, count)| {
            json!({"type": "int", "minval": min, "maxval": min + more, "count": count})
        }),
        (-9.0..9.0, 0.1..9.0).prop_map(|(min, more): (f64, f64)| {
            json!({"type": "log", "minval": min, "maxval": min + more, "base": 10})
        }),
        prop::collection::vec(any::<i32>(), 1..4)
            .prop_map(|vals| json!({"type": "categorical", "vals": vals})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop::collection::btree_map("[a-s]{1,4}", inner, 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect()))
    })
}

prop_compose! {
    fn document()(
        space in prop::collection::btree_map("[a-s]{1,4}", hyperparameter(), 0..5),
        searcher in prop_oneof![
            (1..50_u64).prop_map(|n| json!({"name": "random", "max_trials": n})),
            (1..50_u64, 1.1..9.0_f64, 1..999_u64).prop_map(|(n, divisor, time)| json!({
                "name": "adaptive_asha", "max_trials": n, "divisor": divisor, "time_metric": "t", "max_time": time,
            })),
            (1..9_u64, 1..999_u64).prop_map(|(rungs, time)| json!({
                "name": "async_halving", "num_rungs": rungs, "max_trials": 3, "max_length": {"batches": time},
            })),
        ],
        slots in 0..9_u32,
        weight in 0.1..9.0_f64,
        priority in proptest::option::of(1..=99_u8),
        seed in any::<u32>(),
        labels in prop::collection::vec("[a-z ]{1,5}", 0..4),
        data in "[ -~]{0,9}",
        restarts in 0..9_u32,
    ) -> Value {
        let mut searcher = searcher;
        searcher["metric"] = json!("loss");
        json!({
            "entrypoint": ["run", data], "hyperparameters": space, "searcher": searcher,
            "resources": {"slots_per_trial": slots, "weight": weight, "priority": priority},
            "reproducibility": {"experiment_seed": seed}, "labels": labels,
            "data": {"text": data}, "max_restarts": restarts,
        })
    }
}

proptest! {
    #[test]
    fn an_effective_configuration_survives_storage(document in document()) {
        let config = complete(&crate::yaml::to_yaml(&document));
        let stored = config.to_json().to_string();
        let read = ExperimentConfig::from_json(&serde_json::from_str(&stored).unwrap()).unwrap();
        prop_assert_eq!(&read, &config);
        prop_assert_eq!(read.to_json(), config.to_json());
        // The effective configuration is itself a valid document that means the same.
        let again = Submitted::from_value(&config.to_json()).unwrap();
        let again = again.complete(&CompletionDefaults {
            name: "other".into(),
            experiment_seed: 0,
            checkpoint_storage: None,
            task_container_defaults: &TaskContainerDefaults::default(),
            default_priority: None,
            managed: true,
        }).unwrap();
        prop_assert_eq!(again, config);
    }

    #[test]
    fn no_document_makes_the_checks_panic(
        key in prop_oneof![
            Just("searcher"), Just("resources"), Just("environment"), Just("hyperparameters"), Just("labels"),
            Just("checkpoint_storage"), Just("bind_mounts"), Just("log_policies"), Just("data"), Just("entrypoint"),
        ],
        inner in "[a-z_]{1,12}",
        value in "[-~?:#&*!|>'\"%{}\\[\\], a-z0-9\n]{0,20}",
    ) {
        for text in [format!("{key}: {value}"), format!("{key}: {{{inner}: {value}}}"), format!("{key}: [{{{inner}: {value}}}]")] {
            if let Ok(submitted) = Submitted::parse(&text) {
                let _ = submitted.placement(&[]);
                let _ = submitted.complete(&CompletionDefaults {
                    name: "n".into(),
                    experiment_seed: 0,
                    checkpoint_storage: None,
                    task_container_defaults: &TaskContainerDefaults::default(),
                    default_priority: None,
                    managed: false,
                });
            }
            let _ = ExperimentConfig::from_json(&json!({key: value}));
        }
    }
}
