//! What `det config check` tells: every line names the file.

use det_config::document::{CheckOptions, DocumentKind, check, guess};

/// All lines about a document, mistakes or warnings.
fn told(kind: &str, text: &str) -> Vec<String> {
    let kind = DocumentKind::from_name(kind).expect("a kind of document");
    match check(kind, "some.yaml", text, CheckOptions::default()) {
        Ok(checked) => checked
            .warnings
            .iter()
            .map(det_config::ConfigWarning::located)
            .collect(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn every_mistake_and_every_warning_names_the_file() {
    for (kind, text, expected) in [
        (
            "master",
            "resource_manager: {scheduler: {type: priority}}\nresource_pools:\n  - pool_name: default\n    scheduler: {fitting_policy: worst}\n",
            "some.yaml:4:5: resource_pools[0].scheduler: warning: resource pool \"default\" has a scheduler of its own",
        ),
        (
            "master",
            "scheduler: {fit: best}\n",
            "some.yaml:1:1: scheduler: warning:",
        ),
        (
            "master",
            "resource_manager: {default_aux_resource_pool: nowhere}\n",
            "some.yaml:1:20: resource_manager.default_aux_resource_pool: ",
        ),
        (
            "experiment",
            "name: x\nentrypoint: a\nsearcher: {name: single, metric: m, max_length: {batches: 1}}\n",
            "some.yaml:3:",
        ),
        ("experiment", "name: x\n", "some.yaml"),
        ("experiment", "[", "some.yaml"),
        ("experiment", "", "some.yaml"),
        (
            "template",
            "resources: {slot: 1}\n",
            "some.yaml:1:13: resources.slot",
        ),
        (
            "notebook",
            "resources: {slots: -1}\n",
            "some.yaml:1:13: resources.slots",
        ),
        ("agent", "slot_type: cpu\n", "some.yaml"),
        (
            "agent",
            "fluent: {image: x}\nmaster_host: h\n",
            "some.yaml:1:1: fluent",
        ),
    ] {
        let lines = told(kind, text);
        assert!(!lines.is_empty(), "{kind}: {text}");
        assert!(
            lines.iter().any(|line| line.starts_with(expected)),
            "{kind}: {text}: {lines:#?} lacks {expected}"
        );
        for line in lines {
            assert!(line.starts_with("some.yaml"), "{kind}: {text}: {line}");
        }
    }
}

#[test]
fn mistakes_beside_an_unknown_name_are_told_with_it() {
    let lines = told(
        "experiment",
        "name: x\nentrypoint: a\nsearcher: {name: adaptive_asah, metrc: l, max_trials: lots, other: 1}\n",
    );
    let all = lines.join("\n");
    for expected in [
        "some.yaml:3:12: searcher.name: must be one of",
        "did you mean \"adaptive_asha\"?",
        "searcher.metrc: is not a known key; hint: did you mean \"metric\"?",
        "searcher.max_trials: must be an integer, not the string \"lots\"",
        "searcher.other: is not a known key; known are",
    ] {
        assert!(all.contains(expected), "{all}\nlacks {expected}");
    }
    assert_eq!(lines.len(), 6, "{all}");
    let far = told(
        "experiment",
        "name: x\nentrypoint: a\nsearcher: {name: bayes, metric: l, max_trials: 3, smaller_is_better: maybe}\n",
    );
    assert_eq!(far.len(), 2, "{far:?}");
    assert!(far[1].contains("smaller_is_better"), "{far:?}");
}

#[test]
fn a_key_that_belongs_further_out_is_told_so() {
    let text = "name: x\nentrypoint: a\nsearcher:\n  name: single\n  metric: l\n  hyperparameters: {lr: 1}\n";
    let lines = told("experiment", text);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].ends_with(
            "searcher.hyperparameters: is not a known key for name \"single\"; hint: it belongs one level up, beside \"searcher\" and not inside it"
        ),
        "{lines:?}"
    );
}

#[test]
fn quotes_are_told_of_only_where_there_are_some() {
    for (written, hint) in [
        ("yes", "hint: write true"),
        ("off", "hint: write false"),
        ("\"true\"", "hint: write true without quotes"),
    ] {
        let text = format!("resource_manager: {{scheduler: {{preemption: {written}}}}}\n");
        let lines = told("master", &text);
        assert!(lines[0].ends_with(hint), "{lines:?}");
    }
}

#[test]
fn a_default_pool_that_was_not_written_is_told_as_the_default() {
    let lines = told(
        "master",
        "resource_pools: [{pool_name: a}, {pool_name: b}]\n",
    );
    assert!(
        lines[0].contains(
            "default_aux_resource_pool: is not given, and its default \"default\" names no resource pool; there are \"a\", \"b\""
        ),
        "{lines:?}"
    );
    let twice = told(
        "master",
        "resource_pools: [{pool_name: a}, {pool_name: a}]\n",
    );
    assert!(
        twice
            .iter()
            .any(|line| line.contains("there is only \"a\"")),
        "{twice:?}"
    );
}

#[test]
fn lost_indentation_is_told_with_the_whole_of_what_was_lost() {
    for (kind, text, hint, repaired) in [
        (
            "master",
            "resource_pools:\n  - pool_name: default\n  - pool_name: fast\n    scheduler:\n    type: priority\n    preemption: true\n",
            "resource_pools[1].type: is not a known key; hint: indent it below \"scheduler\", which has no value",
            "resource_pools:\n  - pool_name: default\n  - pool_name: fast\n    scheduler:\n      preemption: true\n      type: priority\n",
        ),
        (
            "experiment",
            "entrypoint: a\nsearcher:\nname: random\nmetric: l\nmax_trials: 3\n",
            "metric: is not a known key; hint: indent it below \"searcher\"",
            "searcher:\n  max_trials: 3\n  metric: l\n  name: random\n",
        ),
        (
            "experiment",
            "name: x\nentrypoint: a\nsearcher:\nname: random\nmetric: l\nmax_trials: 3\n",
            "name: is given twice",
            "searcher:\n  max_trials: 3\n  metric: l\n  name: random\n",
        ),
    ] {
        let kind = DocumentKind::from_name(kind).expect("a kind of document");
        let errors = check(kind, "some.yaml", text, CheckOptions::default()).unwrap_err();
        assert!(errors.to_string().contains(hint), "{errors}");
        assert_eq!(errors.repaired(), Some(repaired), "{errors}");
        let rest = if kind == DocumentKind::Experiment {
            "name: x\nentrypoint: a\n"
        } else {
            ""
        };
        check(
            kind,
            "some.yaml",
            &format!("{rest}{repaired}"),
            CheckOptions::default(),
        )
        .unwrap_or_else(|errors| panic!("{errors}"));
    }
}

#[test]
fn the_usual_name_of_a_file_counts_before_its_keys() {
    for (file, text, kind) in [
        ("/etc/x/agent.yaml", "resource_pools: default\n", "agent"),
        ("master.yaml", "master_host: x\n", "master"),
        (
            "site-policies.yaml",
            "resources: {max_slots: 3}\n",
            "policy",
        ),
        ("task-policies.yaml", "{}", "task-policy"),
        ("x.yaml", "constraints: {priority_limit: 3}\n", "policy"),
        (
            "x.yaml",
            "invariant_config: {resources: {slots: 1}}\n",
            "task-policy",
        ),
        ("my-agent.yaml", "searcher: {name: single}\n", "experiment"),
        ("template.yaml", "environment: {image: x}\n", "template"),
    ] {
        assert_eq!(guess(file, text).kind.name(), kind, "{file}: {text}");
    }
}

#[test]
fn policies_are_checked_like_the_master_checks_them() {
    for (kind, text, expected) in [
        (
            "policy",
            "invariant_config:\n  resources: {slots: 1}\n",
            "some.yaml:2:15: invariant_config.resources.slots: ",
        ),
        (
            "task-policy",
            "invariant_config:\n  resources: {slots_per_trial: 1}\n",
            "some.yaml:2:15: invariant_config.resources.slots_per_trial: ",
        ),
        (
            "policy",
            "constraint: {}\n",
            "some.yaml:1:1: constraint: is not a known key; hint: did you mean \"constraints\"?",
        ),
    ] {
        let lines = told(kind, text);
        assert!(
            lines.iter().any(|line| line.starts_with(expected)),
            "{lines:?}"
        );
    }
    let good =
        "invariant_config: {resources: {resource_pool: a}}\nconstraints: {priority_limit: 3}\n";
    assert_eq!(told("policy", good), Vec::<String>::new());
    assert_eq!(told("task-policy", good), Vec::<String>::new());
}

#[test]
fn what_a_master_found_is_told_where_it_stands_in_the_file() {
    use det_config::document::told_in_file;
    let text = "# a comment\n\nname: x\nresources:\n  slots_per_trial: 8\n  priority: 5\nbind_mounts:\n- {host_path: /a, container_path: /b}\n";
    let overrides = ["resources.slots_per_trial=4"];
    let found = |path: &str, line: Option<u32>, source: Option<&str>| det_config::ConfigError {
        path: path.to_owned(),
        line,
        column: line,
        source: source.map(Into::into),
        message: "is refused".to_owned(),
        hint: None,
        repaired: None,
    };
    let told = told_in_file(
        "train.yaml",
        text,
        &overrides,
        vec![
            found("resources.slots_per_trial", Some(2), None),
            found("resources.priority", Some(3), None),
            found("bind_mounts[0].host_path", Some(5), None),
            found("resources.max_slots", Some(2), None),
            found("name", Some(7), Some("template \"t\"")),
            found("environment.image", None, None),
        ],
    )
    .to_string();
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            "--config resources.slots_per_trial: is refused",
            "train.yaml:6:3: resources.priority: is refused",
            "train.yaml:8:4: bind_mounts[0].host_path: is refused",
            "train.yaml:4:1: resources.max_slots: is refused",
            "template \"t\":7:7: name: is refused",
            "<config>.environment.image: is refused",
        ]
    );
    let json = found("a", Some(3), Some("s")).to_json();
    assert_eq!(det_config::ConfigError::from_json(&json).to_json(), json);
}

/// What is told of an experiment.
fn of_experiment(text: &str, overrides: &[&str]) -> String {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let options = CheckOptions {
        overrides: &overrides,
        partial: true,
        ..CheckOptions::default()
    };
    check(DocumentKind::Experiment, "a.yaml", text, options)
        .map_or_else(|errors| errors.to_string(), |_| String::new())
}

#[test]
fn variables_have_names_without_blanks() {
    let variables = |given: &str| {
        of_experiment(
            &format!("environment: {{environment_variables: {given}}}"),
            &[],
        )
    };
    for right in [
        "[A=b c]",
        "[A]",
        "[\"A=b: c\"]",
        "{cpu: [A=1], cuda: null}",
        "[a.b-c=1]",
        "[\"npm_config_//host/:_authToken=x\"]",
    ] {
        assert_eq!(variables(right), "", "{right}");
    }
    for wrong in [
        "[\"API_TOKEN: x\"]",
        "[\"API_TOKEN =x\"]",
        "[\"API_TOKEN x\"]",
        "[\"API_TOKEN: x=y\"]",
        "[\"API_TOKEN:x\"]",
    ] {
        let told = variables(wrong);
        assert!(
            told.ends_with("hint: write API_TOKEN=VALUE"),
            "{wrong}: {told}"
        );
    }
    assert!(variables("[\"é x\"]").ends_with("without blanks in the name"));
    for wrong in ["{API_TOKEN: x}", "{API_TOKEN=x}", "{API_TOKEN: null}"] {
        let told = variables(wrong);
        assert!(
            told.ends_with("hint: write a list, with \"- API_TOKEN=VALUE\"")
                && !told.contains("=x"),
            "{wrong}: {told}"
        );
    }
}

#[test]
fn overrides_give_lists_whole() {
    assert_eq!(
        of_experiment("{}", &["labels[0]=z"]),
        "--config labels[0]: \"labels[0]\" reaches into a list, which --config gives whole; \
         hint: write --config 'labels=[VALUE, …]'"
    );
    assert_eq!(of_experiment("{}", &["labels=[z]"]), "");
}

#[test]
fn what_is_gone_is_answered_with_what_is_there_now() {
    for text in [
        "batches_per_step: 10",
        "searcher: {name: single, metric: m, max_steps: 3}",
    ] {
        let told = of_experiment(text, &[]);
        assert!(told.contains("training code says how long"), "{told}");
    }
    let told = of_experiment(
        "searcher: {name: adaptive_asha, metric: m, step_budget: 3, max_trials: 1}",
        &[],
    );
    assert!(
        told.contains("give \"time_metric\" and \"max_time\""),
        "{told}"
    );
}

#[test]
fn a_required_key_is_not_explained_by_its_name() {
    let text = "name: n\nentrypoint: x\nsearcher: {name: single, metric: m}\ncheckpoint_storage: {type: s3}";
    let told = check(
        DocumentKind::Experiment,
        "a.yaml",
        text,
        CheckOptions::default(),
    )
    .unwrap_err()
    .to_string();
    assert!(
        told.ends_with("checkpoint_storage.bucket: is required for type \"s3\""),
        "{told}"
    );
}

#[test]
fn policies_are_guessed_with_the_reason() {
    let of = |text: &str| {
        let guess = det_config::document::guess("a.yaml", text);
        (guess.kind.name(), guess.because)
    };
    assert_eq!(
        of("invariant_config: {resources: {slots: 2}, max_restart: 2}"),
        (
            "task-policy",
            "its \"invariant_config\" has \"resources.slots\"".to_owned()
        )
    );
    assert_eq!(
        of("invariant_config: {description: x}").0,
        "policy",
        "where both can be meant"
    );
}
