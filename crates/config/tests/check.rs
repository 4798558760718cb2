//! What `det config check` reports: every line names the file.

use det_config::document::{CheckOptions, DocumentKind, check, guess};
use det_config::submitted::Experiment;

/// All lines about a document, errors or warnings.
fn reported(kind: &str, text: &str) -> Vec<String> {
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
fn every_error_and_every_warning_names_the_file() {
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
        let lines = reported(kind, text);
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
fn errors_beside_an_unknown_name_are_reported_with_it() {
    let lines = reported(
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
    let far = reported(
        "experiment",
        "name: x\nentrypoint: a\nsearcher: {name: bayes, metric: l, max_trials: 3, smaller_is_better: maybe}\n",
    );
    assert_eq!(far.len(), 2, "{far:?}");
    assert!(far[1].contains("smaller_is_better"), "{far:?}");
}

#[test]
fn a_key_that_belongs_further_out_is_reported_so() {
    let text = "name: x\nentrypoint: a\nsearcher:\n  name: single\n  metric: l\n  hyperparameters: {lr: 1}\n";
    let lines = reported("experiment", text);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].ends_with(
            "searcher.hyperparameters: is not a known key for name \"single\"; hint: it belongs one level up, beside \"searcher\" and not inside it"
        ),
        "{lines:?}"
    );
}

#[test]
fn quotes_are_mentioned_only_where_there_are_some() {
    for (written, hint) in [
        ("yes", "hint: write true"),
        ("off", "hint: write false"),
        ("\"true\"", "hint: write true without quotes"),
    ] {
        let text = format!("resource_manager: {{scheduler: {{preemption: {written}}}}}\n");
        let lines = reported("master", &text);
        assert!(lines[0].ends_with(hint), "{lines:?}");
    }
}

#[test]
fn a_default_pool_that_was_not_written_is_reported_as_the_default() {
    let lines = reported(
        "master",
        "resource_pools: [{pool_name: a}, {pool_name: b}]\n",
    );
    assert!(
        lines[0].contains(
            "default_aux_resource_pool: is not given, and its default \"default\" names no resource pool; there are \"a\", \"b\""
        ),
        "{lines:?}"
    );
    let twice = reported(
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
fn lost_indentation_is_reported_with_the_whole_of_what_was_lost() {
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
fn the_content_decides_what_a_document_is_and_the_name_where_it_is_open() {
    for (file, text, kind) in [
        ("/etc/x/agent.yaml", "resource_pools: default\n", "agent"),
        ("master.yaml", "master_host: x\n", "agent"),
        (
            "master.yaml",
            "entrypoint: a\nsearcher: {name: single, metric: l}\n",
            "experiment",
        ),
        ("agent.yaml", "resource_pools: [{pool_name: a}]\n", "master"),
        ("train.yaml", "provider: {type: aws, region: r}\n", "master"),
        ("x.yaml", "seracher: {name: single}\n", "experiment"),
        ("x.yaml", "resources: {slots: 2}\n", "task"),
        ("shell.yaml", "resources: {slots: 2}\n", "shell"),
        ("shell.yaml", "idle_timeout: 3s\n", "notebook"),
        ("template.yaml", "searcher: {name: single}\n", "template"),
        (
            "x.yaml",
            "name: \"x\nsearcher:\n  name: single\n",
            "experiment",
        ),
        ("master.yaml", "", "master"),
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
        let guess = guess(file, text).unwrap_or_else(|error| panic!("{file}: {text}: {error:?}"));
        assert_eq!(guess.kind.name(), kind, "{file}: {text}");
    }
}

#[test]
fn what_is_no_document_of_ours_is_not_guessed() {
    for (file, text, message, hint) in [
        (
            "values.yaml",
            "maxSlotsPerPod: 4\ncheckpointStorage: {type: shared_fs}\ndb: {name: x}\n",
            "looks like the values of a Helm chart, because it has \"checkpointStorage\"",
            "helm lint",
        ),
        (
            "x.yaml",
            "postgresql: {postgresqlPassword: x}\nresources: {limits: {cpu: 1}}\n",
            "looks like the values of a Helm chart",
            "--kind",
        ),
        (
            "docker-compose.yaml",
            "services: {a: {image: x}}\n",
            "has no key that any kind of document has",
            "--kind experiment, task, notebook",
        ),
        (
            "x.yaml",
            "foo: 1\nbar: 2\n",
            "has no key that any kind of document has",
            "--kind",
        ),
        ("x.yaml", "{}", "is empty", "--kind"),
        ("x.yaml", "- a\n", "is a list, not a map", "--kind"),
        (
            "x.yaml",
            "environment: {image: x}\n",
            "may be an experiment, a task or a template",
            "--kind experiment, template, policy, task-policy, task, notebook",
        ),
    ] {
        let undecided = guess(file, text).unwrap_err();
        assert!(undecided.message.contains(message), "{text}: {undecided:?}");
        assert!(undecided.hint.contains(hint), "{text}: {undecided:?}");
    }
}

#[test]
fn no_name_is_needed_for_what_the_content_shows() {
    use det_config::document::DocumentKind;
    // Every document of a kind is read as that kind, whatever its file is called.
    for (text, kind) in [
        (
            "entrypoint: a\nsearcher: {name: single, metric: l}\n",
            DocumentKind::Experiment,
        ),
        ("db: {host: h, user: u}\nport: 1\n", DocumentKind::Master),
        ("master_host: h\nslot_type: cuda\n", DocumentKind::Agent),
    ] {
        for file in [
            "master.yaml",
            "agent.yaml",
            "notebook.yaml",
            "a.yaml",
            "policies.yaml",
        ] {
            assert_eq!(guess(file, text).unwrap().kind, kind, "{file}: {text}");
        }
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
        let lines = reported(kind, text);
        assert!(
            lines.iter().any(|line| line.starts_with(expected)),
            "{lines:?}"
        );
    }
    let good =
        "invariant_config: {resources: {resource_pool: a}}\nconstraints: {priority_limit: 3}\n";
    assert_eq!(reported("policy", good), Vec::<String>::new());
    assert_eq!(reported("task-policy", good), Vec::<String>::new());
}

#[test]
fn what_a_master_found_is_reported_where_it_is_in_the_file() {
    use det_config::document::placed_in_file;
    let text = "# a comment\n\nname: x\nresources:\n  slots_per_trial: 8\n  priority: 5\nbind_mounts:\n- {host_path: /a, container_path: /b}\n";
    let overrides = ["resources.slots_per_trial=4"];
    let found = |path: &str, line: Option<u32>, source: Option<&str>| det_config::ConfigError {
        path: path.to_owned(),
        line,
        column: line,
        source: source.map(Into::into),
        code: det_config::ErrorCode::OutOfRange,
        message: "is refused".to_owned(),
        hint: None,
        repaired: None,
    };
    let reported = placed_in_file(
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
        reported.lines().collect::<Vec<_>>(),
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

/// What is reported of an experiment.
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
        let reported = variables(wrong);
        assert!(
            reported.ends_with("hint: write API_TOKEN=VALUE"),
            "{wrong}: {reported}"
        );
    }
    assert!(variables("[\"é x\"]").ends_with("without blanks in the name"));
    for wrong in ["{API_TOKEN: x}", "{API_TOKEN=x}", "{API_TOKEN: null}"] {
        let reported = variables(wrong);
        assert!(
            reported.ends_with("hint: write a list, with \"- API_TOKEN=VALUE\"")
                && !reported.contains("=x"),
            "{wrong}: {reported}"
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
        let reported = of_experiment(text, &[]);
        assert!(
            reported.contains("training code decides how long"),
            "{reported}"
        );
    }
    let reported = of_experiment(
        "searcher: {name: adaptive_asha, metric: m, step_budget: 3, max_trials: 1}",
        &[],
    );
    assert!(
        reported.contains("give \"time_metric\" and \"max_time\""),
        "{reported}"
    );
}

#[test]
fn a_required_key_is_not_explained_by_its_name() {
    let text = "name: n\nentrypoint: x\nsearcher: {name: single, metric: m}\ncheckpoint_storage: {type: s3}";
    let reported = check(
        DocumentKind::Experiment,
        "a.yaml",
        text,
        CheckOptions::default(),
    )
    .unwrap_err()
    .to_string();
    assert!(
        reported.ends_with("checkpoint_storage.bucket: is required for type \"s3\""),
        "{reported}"
    );
}

#[test]
fn policies_are_guessed_with_the_reason() {
    let of = |text: &str| {
        let guess = det_config::document::guess("a.yaml", text).unwrap();
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

/// All errors of an experiment, with their places.
fn errors_of(text: &str) -> Vec<String> {
    reported("experiment", text)
}

#[test]
fn the_rest_of_a_misspelt_section_is_checked() {
    let lines = errors_of(
        "entrypoint: a\nseracher: {name: random, metrc: l, max_trials: lots}\nresourcse:\n  slots_per_trial: many\n",
    );
    for expected in [
        "some.yaml:2:1: seracher: is not a known key; hint: did you mean \"searcher\"?",
        "some.yaml:2:26: seracher.metrc: is not a known key for name \"random\"; hint: did you mean \"metric\"?",
        "some.yaml:2:36: seracher.max_trials: must be an integer, not the string \"lots\"",
        "some.yaml:4:3: resourcse.slots_per_trial: must be an integer, not the string \"many\"",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{lines:#?} lack {expected}"
        );
    }
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("searcher: is required")),
        "{lines:#?}"
    );
    // What is in the wrong place is checked too.
    let lines =
        errors_of("entrypoint: a\nsearcher: {name: single, metric: l}\nslots: many\nimage: 5\n");
    for expected in [
        "slots: must be an integer, not the string \"many\"",
        "image: must be",
    ] {
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{lines:#?} lack {expected}"
        );
    }
    // A secret in a misspelt place is not quoted.
    let lines = errors_of(
        "checkpoint_storge: {type: s3, bucket: b, secret_key: [hunter2], access_key: {a: hunter3}}\n",
    );
    assert!(!lines.concat().contains("hunter"), "{lines:#?}");
}

#[test]
fn what_is_missing_in_an_empty_section_is_reported_there() {
    let lines = errors_of("name: x\nentrypoint:\nsearcher:\nenvironment:\n  image: x\n");
    assert_eq!(
        lines,
        [
            "some.yaml:2:1: entrypoint: is required and has no value here: the command that trains; hint: for example \"python3 train.py\"",
            "some.yaml:3:1: searcher: is required and has no value here; hint: how the space is searched",
        ]
    );
    let lines = errors_of("entrypoint: a\nsearcher:\n  name:\n  metric: l\n");
    assert!(
        lines[0]
            .starts_with("some.yaml:3:3: searcher.name: is required and has no value here: one of"),
        "{lines:#?}"
    );
    let lines = reported("agent", "slot_type: cuda\nmaster_host:\n");
    assert!(
        lines[0].starts_with("some.yaml:2:1: master_host: is required and has no value here"),
        "{lines:#?}"
    );
}

#[test]
fn names_that_are_nearly_right_are_suggested() {
    let head = "entrypoint: a\nsearcher: {name: random, metric: l, max_trials: 3}\n";
    for (text, meant) in [
        ("min_validation_period: {batchs: 3}", "batches"),
        ("min_validation_period: {epoch: 3}", "epochs"),
        (
            "searcher: {name: single, metric: l, max_length: {record: 3}}",
            "records",
        ),
        ("resources: {slot_per_trail: 1}", "slots_per_trial"),
        ("resources: {pool: a}", "resource_pool"),
        (
            "hyperparameters: {a: {type: duble, minval: 0, maxval: 1}}",
            "double",
        ),
        (
            "hyperparameters: {a: {type: int, min_val: 0, maxval: 1}}",
            "minval",
        ),
        (
            "hyperparameters: {a: {type: categorical, values: [1]}}",
            "vals",
        ),
        ("checkpoint_polciy: all", "checkpoint_policy"),
    ] {
        let head = if text.starts_with("searcher") {
            "entrypoint: a\n"
        } else {
            head
        };
        let lines = errors_of(&format!("{head}{text}\n"));
        let expected = format!("did you mean \"{meant}\"?");
        assert!(
            lines.iter().any(|line| line.contains(&expected)),
            "{text}: {lines:#?}"
        );
    }
    let lines = reported("master", "provider: {type: aws, region: r}\n");
    assert!(
        lines[0].contains("did you mean \"resource_pools[].provider\" or"),
        "{lines:#?}"
    );
}

#[test]
fn keys_of_older_forms_are_suggested_last_and_with_what_replaced_them() {
    for (searcher, suggested) in [
        (
            "random, max_lenght: 3",
            "\"max_length\"? It is deprecated; leave it out",
        ),
        (
            "adaptive_asha, max_lenght: 3",
            "\"max_length\"? It is deprecated; write \"time_metric\"",
        ),
        ("adaptive_asha, max_rungth: 3", "\"max_rungs\"?"),
    ] {
        let text =
            format!("entrypoint: a\nsearcher: {{metric: l, max_trials: 3, name: {searcher}}}\n");
        let expected = format!("hint: did you mean {suggested}");
        let lines = errors_of(&text);
        assert!(
            lines.iter().any(|line| line.contains(&expected)),
            "{lines:#?}"
        );
    }
}

#[test]
fn words_that_were_booleans_in_yaml_1_1_get_a_warning() {
    let of = |space: &str| {
        errors_of(&format!(
            "entrypoint: a\nsearcher: {{name: random, metric: l, max_trials: 3}}\n{space}\n"
        ))
    };
    assert_eq!(
        of("hyperparameters: {a: yes, b: {type: categorical, vals: [on, \"off\"]}}\nname: no"),
        [
            "some.yaml:3:22: hyperparameters.a: warning: yes without quotes is text here, where YAML 1.1 read true; write true, or \"yes\" in quotes",
            "some.yaml:3:57: hyperparameters.b.vals[0]: warning: on without quotes is text here, where YAML 1.1 read true; write true, or \"on\" in quotes",
        ]
    );
    assert_eq!(
        of(
            "hyperparameters: {a: 010, b: 1_000, c: 0.5, d: 10, e: '010', f: x, g: 1:30, h: 0, i: -0b1}"
        ),
        [
            "some.yaml:3:22: hyperparameters.a: warning: 010 without quotes is the number 10 here, where YAML 1.1 read 8; write 8, or \"010\" in quotes",
            "some.yaml:3:30: hyperparameters.b: warning: 1_000 without quotes is text here, where YAML 1.1 read 1000; write 1000, or \"1_000\" in quotes",
            "some.yaml:3:71: hyperparameters.g: warning: 1:30 without quotes is text here, where YAML 1.1 read 90; write 90, or \"1:30\" in quotes",
        ]
    );
    assert_eq!(reported("template", "hyperparameters: {a: off}\n").len(), 1);
    assert_eq!(
        reported("policy", "invariant_config: {hyperparameters: {a: No}}\n").len(),
        1
    );
}

#[test]
fn what_is_not_closed_is_reported_where_it_was_opened() {
    for (text, expected) in [
        (
            "name: \"x\nentrypoint: a\n",
            "some.yaml:1:7: is not YAML: the quote that is opened here is not closed",
        ),
        (
            "name: x\nsearcher: {name: single, metric: \"l}\nhyperparameters:\n  a: \"x\"\n  b: 2\n",
            "some.yaml:2:34: is not YAML: the quote that is opened here is not closed on this line; the next one is on line 4",
        ),
        (
            "name: 'x\nentrypoint: a\ndescription: it's me\n",
            "some.yaml:1:7: is not YAML: the quote that is opened here is not closed",
        ),
        (
            "# it's a comment with \"\nname: it's x\nscript: |\n  echo \"\n  echo '\ndata: {a: \"it's\", b: 'x\nc: 1\n",
            "some.yaml:6:22: is not YAML: the quote that is opened here is not closed",
        ),
        (
            "a: \"b\\\"\nc: 1\n",
            "some.yaml:1:4: is not YAML: the quote",
        ),
        ("a: 'it''s\nb: 1\n", "some.yaml:1:4: is not YAML: the quote"),
        (
            "{\"a\": \"b,\n\"c\": 1}\n",
            "some.yaml:1:7: is not YAML: the quote",
        ),
        (
            "name: x\nlabels: [a, b\nentrypoint: a\n",
            "some.yaml:2:9: is not YAML: the \"[\" that is opened here is not closed",
        ),
        (
            "name: x\nsearcher: {name: single\nentrypoint: a\n",
            "some.yaml:2:11: is not YAML: the \"{\" that is opened here is not closed",
        ),
        // Nothing is left open: the place is where the parser noticed.
        ("a: b: c\n", "some.yaml:1:5: is not YAML"),
        ("a: \"b\" c\nd: 1\n", "some.yaml:1:8: is not YAML"),
    ] {
        let lines = errors_of(text);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].starts_with(expected), "{text}\n{lines:#?}");
    }
}

#[test]
fn a_correction_passes_the_check_or_reports_what_it_leaves() {
    let head = "entrypoint: a\nsearcher: {name: random, metric: l, max_trials: 3}\n";
    for (text, left) in [
        ("image: x\nslots: 2\n", &[][..]),
        (
            "image: x\nslots: 2\nnmae: y\n",
            &["# leaves the error nmae: is not a known key"][..],
        ),
        (
            "slots: many\n",
            &["# leaves the error resources.slots_per_trial: must be an integer"][..],
        ),
        (
            "slots: 2\nworkspace: w\n",
            &["# leaves the error project: is required beside \"workspace\""][..],
        ),
        (
            "slots: 2\nname: a\nname: b\n",
            &["# leaves the error name: is given twice"][..],
        ),
    ] {
        let text = format!("{head}{text}");
        let errors = check(
            DocumentKind::Experiment,
            "a.yaml",
            &text,
            CheckOptions::default(),
        )
        .unwrap_err();
        let repaired = errors
            .repaired()
            .unwrap_or_else(|| panic!("{text}: {errors}"));
        let said: Vec<&str> = repaired
            .lines()
            .filter(|line| line.starts_with('#'))
            .collect();
        assert_eq!(said.len(), left.len(), "{repaired}");
        for (said, expected) in said.iter().zip(left) {
            assert!(said.starts_with(expected), "{said} is not {expected}");
        }
        // It is YAML with its comments, to be copied as it is.
        assert!(det_config::yaml::parse(repaired).is_ok(), "{repaired}");
    }
}

#[test]
fn errors_carry_codes_that_name_their_kind() {
    use det_config::ErrorCode;
    let codes = |text: &str| -> Vec<(String, ErrorCode)> {
        let errors = det_config::SubmittedDocument::parse(Experiment, text)
            .unwrap_err()
            .0;
        errors.into_iter().map(|e| (e.path, e.code)).collect()
    };
    for (text, path, code) in [
        ("a: [", "", ErrorCode::Syntax),
        ("name: a\nname: b", "name", ErrorCode::DuplicateKey),
        ("maxrestarts: 1", "maxrestarts", ErrorCode::UnknownKey),
        (
            "resources: {slots: 1}",
            "resources.slots",
            ErrorCode::UnknownKey,
        ),
        ("max_restarts: many", "max_restarts", ErrorCode::WrongType),
        ("max_restarts: -1", "max_restarts", ErrorCode::OutOfRange),
        (
            "checkpoint_policy: often",
            "checkpoint_policy",
            ErrorCode::NotOneOf,
        ),
        ("internal: {}", "internal", ErrorCode::Removed),
        ("name: ' '", "name", ErrorCode::Invalid),
        (
            "bind_mounts: [{host_path: /a}]",
            "bind_mounts[0].container_path",
            ErrorCode::Missing,
        ),
        (
            "resources: {resource_pool: a, resource_pools: [b]}",
            "resources.resource_pools",
            ErrorCode::Conflict,
        ),
    ] {
        assert_eq!(codes(text), [(path.to_owned(), code)], "{text}");
    }
    let deep = format!("data: {}", "[".repeat(200) + &"]".repeat(200));
    assert_eq!(codes(&deep), [(String::new(), ErrorCode::TooLarge)]);
}
