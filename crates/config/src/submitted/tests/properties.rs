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
        let again = SubmittedDocument::from_value(Experiment, &config.to_json()).unwrap();
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
            if let Ok(submitted) = SubmittedDocument::parse(Experiment, &text) {
                let _ = submitted.under(&[]).placement();
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

    #[test]
    fn a_correction_reports_exactly_what_it_leaves(
        parts in prop::collection::btree_set(
            prop_oneof![
                Just("image: x"), Just("slots: 2"), Just("slots: many"), Just("max_slots: 1"), Just("priority: 300"),
                Just("registry_auth: {username: u}"), Just("hparams: {a: 1}"), Just("seed: 3"), Just("seed: x"),
                Just("nmae: y"), Just("max_restarts: -1"), Just("workspace: w"), Just("log_retention_days: 3"),
                Just("resources.weight: 3"), Just("env: [A=1]"), Just("pod_spec: 3"), Just("max_length: {batchs: 3}"),
            ],
            1..6,
        ),
        searcher in prop_oneof![
            Just("searcher: {name: single, metric: l}"), Just("searcher: {name: random, metric: l}"), Just("searcher:"),
            Just("searcher: {name: single, metric: l, hyperparameters: {b: 1}}"), Just("searcher:\nmetric: l\nmax_trials: 3"),
        ],
    ) {
        use crate::document::{CheckOptions, DocumentKind, check};
        let lines: Vec<&str> = parts.into_iter().collect();
        let mut keys: Vec<&str> = lines.iter().map(|line| line.split(':').next().unwrap_or("")).collect();
        keys.dedup();
        prop_assume!(keys.len() == lines.len());
        let text = format!("entrypoint: x\n{searcher}\n{}\n", lines.join("\n"));
        let options = CheckOptions::default();
        let Err(errors) = check(DocumentKind::Experiment, "a.yaml", &text, options) else {
            return Ok(());
        };
        let Some(repaired) = errors.repaired() else {
            return Ok(());
        };
        let mut named: Vec<&str> = repaired
            .lines()
            .filter_map(|line| line.strip_prefix("# leaves the error "))
            .collect();
        // Applied by its reader: what it shows replaces what it was, and what it moved elsewhere goes.
        let written = crate::yaml::parse(&text).unwrap();
        let corrected = crate::repair::corrected(&crate::experiment::schema::DOCUMENT, &written).unwrap();
        let shown = crate::yaml::parse(repaired).unwrap();
        let mut applied = written.to_value();
        let applied = applied.as_object_mut().unwrap();
        applied.retain(|key, _| corrected.members().unwrap().contains_key(key));
        for (key, value) in shown.to_value().as_object().unwrap() {
            applied.insert(key.clone(), value.clone());
        }
        let again = crate::yaml::to_yaml(&Value::Object(applied.clone()));
        let left: Vec<String> = match check(DocumentKind::Experiment, "a.yaml", &again, options) {
            Ok(_) => Vec::new(),
            Err(left) => left.0.iter().map(|e| format!("{}: {}", e.path, e.message)).collect(),
        };
        let mut left: Vec<&str> = left.iter().map(String::as_str).collect();
        named.sort_unstable();
        left.sort_unstable();
        prop_assert_eq!(named, left, "{}\n{}", text, again);
    }

    #[test]
    fn a_damaged_document_is_refused_or_read_and_never_more(
        cut in 0..600_usize,
        at in 0..600_usize,
        piece in prop_oneof![
            Just("\""), Just("'"), Just("["), Just("{"), Just("}"), Just(":"), Just("\n"), Just(" "), Just("#"), Just("|"),
            Just("*a"), Just("&a "), Just("\t"), Just("é"), Just("\u{0}"), Just(","), Just("- "),
        ],
    ) {
        use crate::document::{CheckOptions, DocumentKind, check, guess};
        let whole = "name: \"a b\"\nentrypoint: [python3, 'train.py']\nsearcher:\n  name: random\n  metric: l\n  max_trials: 3\n\
            hyperparameters:\n  lr: {type: log, minval: -3, maxval: -1, base: 10}\n  on: yes\n\
            environment: &e\n  image: {cpu: x, cuda: \"y\"}\n  environment_variables: [A=1, \"B=2 # c\"]\n\
            resources: {slots_per_trial: 2, shm_size: 4 GiB}\nstartup: |\n  echo \"\n  x: [\nbind_mounts:\n  - host_path: /a\n    container_path: b\n";
        let mut text: String = whole.chars().take(whole.chars().count() - cut.min(whole.len() / 2)).collect();
        let place = text.char_indices().map(|(index, _)| index).nth(at % text.chars().count()).unwrap_or(0);
        text.insert_str(place, piece);
        let _ = guess("a.yaml", &text);
        for name in ["experiment", "notebook", "template", "master", "policy"] {
            let kind = DocumentKind::from_name(name).unwrap();
            if let Err(errors) = check(kind, "a.yaml", &text, CheckOptions::default()) {
                prop_assert!(!errors.0.is_empty());
                let lines = u32::try_from(text.lines().count()).unwrap();
                prop_assert!(errors.0.iter().all(|e| e.line.is_none_or(|line| line <= lines + 1)), "{}", errors);
            }
        }
    }
}
