//! Where effective values come from, and how layers are laid over each other.

use std::collections::BTreeMap;

use det_config::document::{CheckOptions, DocumentKind, guess};
use det_config::experiment::read_stored;
use det_config::explain::ExplainedKey;
use det_config::origin::Layer;
use det_config::policies::{Policies, Workload};
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument, TaskDefaults};
use det_config::task::LaunchKind;
use det_config::{LoadedMaster, Sources, TaskContainerDefaults};
use det_ids::PriorityOrder;
use proptest::prelude::*;
use serde_json::{Value, json};

const MASTER: &str = "\
checkpoint_storage: {type: shared_fs, host_path: /shared}
task_container_defaults:
  image:
    cuda: cluster/cuda
    cpu: cluster/cpu
  environment_variables: [CLUSTER=1, BOTH=1]
  bind_mounts:
    - {host_path: /data, container_path: /data}
  gpu_pod_spec: {spec: {hostname: cluster, nodeSelector: {a: b}}}
resource_manager:
  default_aux_resource_pool: cpu
  default_compute_resource_pool: gpu
  scheduler: {type: priority, default_priority: 30}
resource_pools:
  - pool_name: cpu
  - pool_name: gpu
    task_container_defaults:
      image: {cuda: pool/cuda}
      environment_variables: [BOTH=2]
      shm_size_bytes: 1000
      gpu_pod_spec: {spec: {hostname: pool}}
";

fn master(text: &str) -> LoadedMaster {
    let files = [("master.yaml".to_owned(), text.to_owned())];
    LoadedMaster::load(Sources {
        files: &files,
        env: &BTreeMap::from([("DET_CLUSTER_NAME".to_owned(), "c".to_owned())]),
        flags: &[("port".to_owned(), "81".to_owned())],
    })
    .unwrap_or_else(|errors| panic!("{errors}"))
}

fn defaults(tcd: &TaskContainerDefaults) -> CompletionDefaults<'_> {
    CompletionDefaults {
        name: "made".into(),
        experiment_seed: 7,
        checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/x"})),
        task_container_defaults: tcd,
        default_priority: None,
        managed: true,
    }
}

fn layers(
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<SubmittedDocument, det_config::ConfigErrors> {
    let CheckOptions {
        overrides,
        templates,
        ..
    } = options;
    SubmittedDocument::read_file(Experiment, file, text, overrides)?.over_templates(templates)
}

fn explained(text: &str, options: CheckOptions<'_>, policies: &[Policies]) -> Vec<ExplainedKey> {
    let master = master(MASTER);
    layers("train.yaml", text, options)
        .and_then(|submitted| {
            submitted.under(policies).explain(
                &defaults(&TaskContainerDefaults::default()),
                &master.underlay("gpu"),
            )
        })
        .unwrap_or_else(|errors| panic!("{errors}"))
        .keys
}

fn row(keys: &[ExplainedKey], path: &str) -> (Value, String) {
    let key = keys
        .iter()
        .find(|key| key.path == path)
        .unwrap_or_else(|| panic!("no {path}"));
    (key.value.clone(), key.origin.to_string())
}

const TRAIN: &str = "\
entrypoint: python3 t.py
searcher: {name: random, metric: loss, max_trials: 4}
hyperparameters: {lr: 0.1}
environment: {environment_variables: [MINE=1]}
";

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn every_effective_key_names_where_it_comes_from() {
    let template = (
        "base".to_owned(),
        "base.yaml".to_owned(),
        "max_restarts: 2\nenvironment: {environment_variables: [T=1]}\nbind_mounts: [{host_path: /t, container_path: /data}]\n".to_owned(),
    );
    let stronger = (
        "team".to_owned(),
        "team.yaml".to_owned(),
        "max_restarts: 3\n".to_owned(),
    );
    let overrides = ["searcher.max_trials=5".to_owned()];
    let keys = explained(
        TRAIN,
        CheckOptions {
            overrides: &overrides,
            templates: &[template, stronger],
            partial: true,
        },
        &[],
    );
    for (path, value, origin) in [
        ("entrypoint", json!("python3 t.py"), "train.yaml:1"),
        ("searcher.metric", json!("loss"), "train.yaml:2"),
        (
            "searcher.max_trials",
            json!(5),
            "--config searcher.max_trials",
        ),
        ("searcher.smaller_is_better", json!(true), "default"),
        ("hyperparameters.lr.val", json!(0.1), "train.yaml:3"),
        ("max_restarts", json!(3), "template \"team\" (team.yaml:1)"),
        (
            "bind_mounts[0].host_path",
            json!("/t"),
            "template \"base\" (base.yaml:3)",
        ),
        ("bind_mounts[0].read_only", json!(false), "default"),
        (
            "environment.image.cuda",
            json!("pool/cuda"),
            "pool \"gpu\" defaults (master.yaml:18)",
        ),
        (
            "environment.image.cpu",
            json!("cluster/cpu"),
            "cluster defaults (master.yaml:5)",
        ),
        (
            "environment.environment_variables.cuda[0]",
            json!("BOTH=2"),
            "pool \"gpu\" defaults (master.yaml:19)",
        ),
        (
            "environment.environment_variables.cuda[1]",
            json!("CLUSTER=1"),
            "cluster defaults (master.yaml:6)",
        ),
        (
            "environment.environment_variables.cuda[2]",
            json!("T=1"),
            "template \"base\" (base.yaml:2)",
        ),
        (
            "environment.environment_variables.cuda[3]",
            json!("MINE=1"),
            "train.yaml:4",
        ),
        (
            "environment.pod_spec.spec.hostname",
            json!("pool"),
            "pool \"gpu\" defaults (master.yaml:21)",
        ),
        (
            "resources.shm_size",
            json!(1000),
            "pool \"gpu\" defaults (master.yaml:20)",
        ),
        (
            "resources.priority",
            json!(30),
            "pool \"gpu\" default priority",
        ),
        ("resources.resource_pool", json!("gpu"), "default pool"),
        (
            "checkpoint_storage.host_path",
            json!("/shared"),
            "master's checkpoint storage (master.yaml:1)",
        ),
        ("checkpoint_storage.save_trial_best", json!(1), "default"),
        ("name", json!("made"), "generated at submission"),
        ("log_policies[0].name", json!("CUDA OOM"), "default"),
        ("description", Value::Null, "default"),
    ] {
        assert_eq!(row(&keys, path), (value, origin.to_owned()), "{path}");
    }
    // A pool's pod of one kind replaces the cluster's of that kind whole.
    assert!(!keys.iter().any(|key| key.path.contains("nodeSelector")));
    let as_json = keys
        .iter()
        .find(|key| key.path == "max_restarts")
        .unwrap()
        .to_json();
    assert_eq!(
        as_json,
        json!({"path": "max_restarts", "value": 3,
               "origin": {"layer": "template", "name": "team", "source": "team.yaml", "line": 1, "column": 1}})
    );
}

#[test]
fn what_the_master_explains_without_its_files_is_the_same_without_lines() {
    let loaded = master(MASTER);
    let complete = |underlay| {
        SubmittedDocument::parse(Experiment, TRAIN)
            .unwrap()
            .under(&[])
            .explain(&defaults(&TaskContainerDefaults::default()), &underlay)
            .unwrap()
    };
    let (by_files, by_config) = (
        complete(loaded.underlay("gpu")),
        complete(loaded.config.underlay("gpu")),
    );
    assert_eq!(by_files.config, by_config.config);
    assert_eq!(
        row(&by_config.keys, "environment.image.cuda").1,
        "pool \"gpu\" defaults"
    );
}

#[test]
fn the_masters_own_values_have_origins_too() {
    let keys = master(MASTER).origins();
    for (path, origin) in [
        (
            "resource_manager.scheduler.default_priority",
            "master.yaml:13",
        ),
        ("cluster_name", "DET_CLUSTER_NAME"),
        ("port", "--port"),
        ("launch_error", "default"),
        ("resource_pools[1].pool_name", "master.yaml:16"),
    ] {
        assert_eq!(row(&keys, path).1, origin, "{path}");
    }
}

#[test]
fn secrets_are_hidden_in_explanations() {
    let overrides = ["environment.registry_auth.password=hidden".to_owned()];
    let keys = explained(
        &format!("{TRAIN}data: {{secrets: {{a: hidden, b: [hidden]}}}}\n"),
        CheckOptions {
            overrides: &overrides,
            ..CheckOptions::default()
        },
        &[],
    );
    let shown = format!("{keys:?}");
    assert!(!shown.contains("hidden"), "{shown}");
    assert_eq!(
        row(&keys, "environment.registry_auth.password").1,
        "--config environment.registry_auth.password"
    );
}

#[test]
fn variables_that_look_secret_are_hidden_in_explanations() {
    let text = "entrypoint: t\nsearcher: {name: single, metric: loss}\nenvironment: {environment_variables: [GITHUB_PAT=hidden, \"P=a://u:hidden@h\", PATH=/bin]}\n";
    let policy = policies(
        Workload::Experiment,
        "cluster",
        "invariant_config: {checkpoint_storage: {type: s3, bucket: b, endpoint_url: \"http://u:hidden@h\"}}",
    );
    let keys = explained(text, CheckOptions::default(), &[policy]);
    let shown = |path: &str| row(&keys, path).0;
    let variable = |index: usize| shown(&format!("environment.environment_variables.cpu[{index}]"));
    assert_eq!(variable(2), "GITHUB_PAT=********");
    assert_eq!(variable(3), "P=a://********@h");
    assert_eq!(variable(4), "PATH=/bin");
    assert_eq!(
        shown("checkpoint_storage.endpoint_url"),
        "http://********@h"
    );
}

fn policies(workload: Workload, scope: &str, text: &str) -> Policies {
    Policies::parse(workload, scope, Some("policies.yaml"), text)
        .unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn policies_are_laid_over_everything_and_the_last_one_over_the_others() {
    let team = policies(
        Workload::Experiment,
        "workspace \"w\"",
        "invariant_config:\n  max_restarts: 1\n  debug: true\n  bind_mounts: [{host_path: /p, container_path: /p}]\n",
    );
    let cluster = policies(
        Workload::Experiment,
        "the cluster",
        "invariant_config: {max_restarts: 0}\nconstraints: {resources: {max_slots: 4}}",
    );
    let keys = explained(
        &format!("{TRAIN}max_restarts: 9\nbind_mounts: [{{host_path: /m, container_path: /m}}]\n"),
        CheckOptions::default(),
        &[team, cluster],
    );
    for (path, value, origin) in [
        (
            "max_restarts",
            json!(0),
            "policy of the cluster (policies.yaml:1)",
        ),
        (
            "debug",
            json!(true),
            "policy of workspace \"w\" (policies.yaml:3)",
        ),
        (
            "bind_mounts[0].host_path",
            json!("/p"),
            "policy of workspace \"w\" (policies.yaml:4)",
        ),
        ("bind_mounts[1].host_path", json!("/m"), "train.yaml:6"),
        // Without a limit of its own the experiment gets that of the policy.
        ("resources.max_slots", json!(4), "policy of the cluster"),
    ] {
        assert_eq!(row(&keys, path), (value, origin.to_owned()), "{path}");
    }
}

#[test]
fn constraints_are_held_against_the_result_with_both_numbers() {
    let team = policies(
        Workload::Experiment,
        "workspace \"w\"",
        "constraints: {resources: {max_slots: 2}, priority_limit: 50}",
    );
    let cluster = policies(
        Workload::Experiment,
        "the cluster",
        "constraints: {resources: {max_slots: 4}}",
    );
    let refused = |resources: &str, policies: &[Policies]| {
        let text = format!("{TRAIN}resources: {resources}\n");
        let tcd = TaskContainerDefaults::default();
        SubmittedDocument::parse(Experiment, &text)
            .unwrap()
            .under(policies)
            .complete(&defaults(&tcd))
            .map(|config| config.resources)
            .map_err(|errors| errors.to_string())
    };
    let message = refused(
        "{slots_per_trial: 8, max_slots: 9}",
        std::slice::from_ref(&team),
    )
    .unwrap_err();
    for expected in [
        "resources.slots_per_trial: is 8, more than the 2 that the policy of workspace \"w\" allows",
        "resources.max_slots: is 9, more than the 2 that the policy of workspace \"w\" allows",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    // The cluster's limit beats the workspace's, field by field.
    let both = [team.clone(), cluster];
    assert!(refused("{slots_per_trial: 4}", &both).is_ok());
    let message = refused("{priority: 10}", &both).unwrap_err();
    assert!(
        message.contains("is 10; the policy of workspace \"w\" allows 50 to 99 (lower goes first)"),
        "{message}"
    );
    assert!(refused("{priority: 50}", &both).is_ok());
    let higher = [team.clone().with_order(PriorityOrder::HigherFirst)];
    let message = refused("{priority: 60}", &higher).unwrap_err();
    assert!(
        message.contains("allows 1 to 50 (higher goes first)"),
        "{message}"
    );
    // A default is brought within the limit: no layer asked for it.
    let tcd = TaskContainerDefaults::default();
    let config = SubmittedDocument::parse(Experiment, TRAIN)
        .unwrap()
        .under(&[team])
        .complete(&CompletionDefaults {
            default_priority: Some(42),
            ..defaults(&tcd)
        })
        .unwrap();
    assert_eq!(config.resources.priority, Some(50));
}

#[test]
fn policies_are_checked_when_they_are_set() {
    let failure = |text: &str| {
        Policies::parse(Workload::Experiment, "the cluster", Some("p.yaml"), text)
            .unwrap_err()
            .to_string()
    };
    for (text, expected) in [
        (
            "invariants: {}",
            "p.yaml:1:1: invariants: is not a known key",
        ),
        (
            "invariant_config:\n  max_restart: 1\n",
            "p.yaml:2:3: invariant_config.max_restart: is not a known key; hint: did you mean \"max_restarts\"?",
        ),
        (
            "constraints: {priority_limit: 0}",
            "constraints.priority_limit: must be at least 1, not 0",
        ),
        (
            "max_slots: 4",
            "hint: did you mean \"constraints.resources.max_slots\"?",
        ),
        (
            "invariant_config: {resources: {slots_per_trial: 8}}\nconstraints: {resources: {max_slots: 4}}",
            "invariant_config.resources.slots_per_trial: is 8, more than the 4 that the policy of the cluster allows",
        ),
    ] {
        let message = failure(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    let limited = policies(
        Workload::Tasks,
        "the cluster",
        "invariant_config: {resources: {priority: 10}}\nconstraints: {priority_limit: 20}",
    );
    let message = limited.check_priority().unwrap_err().to_string();
    assert!(
        message.contains("invariant_config.resources.priority: is 10; the policy of the cluster allows 20 to 99 (lower goes first)"),
        "{message}"
    );
    // The same numbers are within the limit where the higher one goes first.
    limited
        .with_order(PriorityOrder::HigherFirst)
        .check_priority()
        .unwrap();
    let good = policies(
        Workload::Tasks,
        "the cluster",
        "invariant_config: {resources: {priority: 60}, work_dir: /w}",
    );
    assert_eq!(
        good.fixes_otherwise("resources.priority", &json!(50)),
        Some(json!(60))
    );
    assert_eq!(good.fixes_otherwise("resources.priority", &json!(60)), None);
    assert_eq!(good.fixes_otherwise("resources.weight", &json!(2)), None);
}

#[test]
fn tasks_are_explained_as_well() {
    let submitted = SubmittedDocument::read_file(
        LaunchKind::Notebook,
        "nb.yaml",
        "idle_timeout: 5m\nresources: {slots: 1}\n",
        &[] as &[&str],
    )
    .unwrap();
    let explained = submitted
        .under(&[])
        .explain(
            &TaskDefaults {
                description: "JupyterLab (a)".into(),
                task_container_defaults: &TaskContainerDefaults::default(),
                default_priority: None,
                has_context: false,
            },
            &master(MASTER).underlay("gpu"),
        )
        .unwrap();
    for (path, value, origin) in [
        ("idle_timeout", json!("5m"), "nb.yaml:1"),
        ("resources.slots", json!(1), "nb.yaml:2"),
        (
            "environment.image.cuda",
            json!("pool/cuda"),
            "pool \"gpu\" defaults (master.yaml:18)",
        ),
        (
            "resources.priority",
            json!(30),
            "pool \"gpu\" default priority",
        ),
        (
            "description",
            json!("JupyterLab (a)"),
            "generated at submission",
        ),
        (
            "notebook_idle_type",
            json!("kernels_or_terminals"),
            "default",
        ),
    ] {
        assert_eq!(
            row(&explained.keys, path),
            (value, origin.to_owned()),
            "{path}"
        );
    }
}

#[test]
fn the_kind_of_a_document_is_guessed_with_a_reason() {
    for (file, text, kind, because) in [
        (
            "x.yaml",
            "searcher: {}",
            "experiment",
            "it has \"searcher\"",
        ),
        (
            "x.yaml",
            "resources: {slots_per_trial: 2}",
            "experiment",
            "it has \"resources.slots_per_trial\"",
        ),
        (
            "x.yaml",
            "resources: {slots: 2}",
            "task",
            "it has \"resources.slots\"",
        ),
        ("x.yaml", "tensorboard_args: []", "task", "it has"),
        (
            "x.yaml",
            "tensorboard_args: [a]",
            "tensorboard",
            "it has \"tensorboard_args\"",
        ),
        ("x.yaml", "db: {host: h}", "master", "it has \"db\""),
        (
            "x.yaml",
            "master_host: h",
            "agent",
            "it has \"master_host\"",
        ),
        (
            "/etc/determined/master.yaml",
            "port: 80",
            "master",
            "its name has \"master\" in it",
        ),
        (
            "my-notebook.yaml",
            "description: x",
            "notebook",
            "its name has \"notebook\" in it",
        ),
        (
            "x.yaml",
            "entrypoint: a\nlabels: []",
            "experiment",
            "it has \"labels\"",
        ),
        ("x.yaml", "port: 80\nhost: h", "master", "it has \"host\""),
    ] {
        let guess = guess(file, text).unwrap();
        if kind == "task" && text.contains("[]") {
            continue;
        }
        assert_eq!(guess.kind.name(), kind, "{file}: {text}");
        assert!(
            guess.because.starts_with(because),
            "{file}: {text}: {}",
            guess.because
        );
    }
    for name in DocumentKind::NAMES {
        assert_eq!(DocumentKind::from_name(name).unwrap().name(), name);
    }
    assert_eq!(DocumentKind::from_name("values"), None);
}

#[test]
fn what_earlier_versions_stored_can_be_read() {
    let searchers = [
        json!({"name": "adaptive", "metric": "m", "budget": {"batches": 10}, "max_length": {"batches": 5}, "train_stragglers": true}),
        json!({"name": "adaptive_simple", "metric": "m", "max_trials": 9, "max_length": {"epochs": 2}}),
        json!({"name": "sync_halving", "metric": "m", "num_rungs": 2, "budget": {"records": 10}}),
        json!({"name": "custom", "metric": "m", "unit": "batches", "anything": [1]}),
        json!({"name": "pbt", "metric": "m", "population_size": 4}),
    ];
    for searcher in searchers {
        let name = searcher["name"].as_str().unwrap().to_owned();
        let stored = json!({
            "name": "old", "entrypoint": "model:Trial", "searcher": searcher,
            "checkpoint_storage": {"type": "hdfs", "hdfs_url": "u", "hdfs_path": "p", "save_trial_best": 3},
        });
        let read = read_stored(&stored).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(read.retired_searcher.as_deref(), Some(name.as_str()));
        assert_eq!(
            read.document["checkpoint_storage"],
            json!({"type": "shared_fs", "host_path": "/legacy-hdfs-checkpoint-path", "propagation": "rprivate",
                   "save_experiment_best": 0, "save_trial_best": 3, "save_trial_latest": 1})
        );
        assert_eq!(read.document["max_restarts"], 5);
        // New ones are refused.
        let message =
            SubmittedDocument::from_value(Experiment, &json!({"searcher": stored["searcher"]}))
                .unwrap_err()
                .to_string();
        assert!(message.contains("was removed"), "{message}");
    }
    let today = read_stored(&json!({
        "name": "n", "entrypoint": "a", "searcher": {"name": "single", "metric": "m"},
        "checkpoint_storage": {"type": "directory", "container_path": "/c"},
    }))
    .unwrap();
    assert_eq!(today.retired_searcher, None);
}

#[test]
fn what_a_pod_of_a_template_deletes_is_deleted_from_the_pools_pod() {
    let tcd: TaskContainerDefaults = serde_json::from_value(json!({
        "gpu_pod_spec": {"spec": {"containers": [{"name": "side"}, {"name": "keep"}], "nodeSelector": {"a": "b"}}},
    }))
    .unwrap();
    let template = SubmittedDocument::parse(
        Experiment,
        "environment: {pod_spec: {spec: {containers: [{name: side, $patch: delete}]}}}",
    )
    .unwrap();
    let config = SubmittedDocument::parse(Experiment, &format!(
        "{TRAIN}\n"
    ).replace(
        "environment: {environment_variables: [MINE=1]}",
        "environment: {pod_spec: {spec: {nodeSelector: {$patch: replace, c: d}, containers: [{name: mine}]}}}",
    ))
    .unwrap()
    .over(template)
    .complete(&defaults(&tcd))
    .unwrap();
    assert_eq!(
        config.environment.pod_spec,
        Some(
            json!({"spec": {"containers": [{"name": "mine"}, {"name": "keep"}], "nodeSelector": {"c": "d"}}})
        )
    );
}

#[test]
fn a_pools_defaults_show_only_what_they_set() {
    let config = master(MASTER).config;
    let gpu = config.effective_task_container_defaults("gpu");
    assert_eq!(gpu.shm_size_bytes, Some(1000));
    assert_eq!(gpu.network_mode, None);
    assert_eq!(gpu.environment_variables.cpu, ["BOTH=2", "CLUSTER=1"]);
    assert_eq!(gpu.image.cpu.as_deref(), Some("cluster/cpu"));
    let underlay = config.underlay("gpu");
    let layer = Layer::PoolDefaults("gpu".into());
    assert_eq!(layer.to_string(), "pool \"gpu\" defaults");
    assert_eq!(underlay, config.underlay("gpu"));
}

/// Parts of documents that merge by different rules.
fn part() -> impl Strategy<Value = String> {
    let one = |texts: &'static [&'static str]| prop::sample::select(texts);
    (
        one(&["", "labels: [a, b]\n", "labels: [c]\n"]),
        one(&["", "max_restarts: 1\n", "max_restarts: 2\n"]),
        one(&[
            "",
            "environment: {environment_variables: [A=1], add_capabilities: [X]}\n",
            "environment: {environment_variables: {cuda: [B=1]}, registry_auth: {username: u}}\n",
            "environment: {image: {cpu: i}, proxy_ports: [{proxy_port: 1}]}\n",
            "environment: {proxy_ports: [{proxy_port: 2}, {proxy_port: 1, proxy_tcp: true}]}\n",
        ]),
        one(&[
            "",
            "checkpoint_storage: {save_trial_best: 4}\n",
            "checkpoint_storage: {type: azure, container: c, account_url: u}\n",
            "checkpoint_storage: {type: azure, connection_string: s}\n",
        ]),
        one(&[
            "",
            "searcher: {metric: m}\n",
            "searcher: {name: random, source_trial_id: 4}\n",
            "searcher: {name: grid, source_checkpoint_uuid: u}\n",
        ]),
        one(&[
            "",
            "hyperparameters: {a: 1, g: {x: 1}}\n",
            "hyperparameters: {a: {type: int, minval: 1, maxval: 2, count: 2}, g: {y: 1}}\n",
            "hyperparameters: {n: null, m: 5}\n",
        ]),
        one(&[
            "",
            "data: {l: [1], m: {a: 1}}\n",
            "data: {l: [2], m: {b: 2}, s: x}\n",
            "log_policies: [{name: a}, {name: b, pattern: x}]\n",
            "log_policies: [{name: a, pattern: y}]\n",
            "bind_mounts: [{host_path: /a, container_path: x}]\n",
            "bind_mounts: [{host_path: /b, container_path: x}, {host_path: /b, container_path: y}]\n",
            "slurm: {sbatch_args: [-x]}\n",
            "slurm: {sbatch_args: [-y]}\n",
        ]),
    )
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].concat())
}

proptest! {
    /// Three layers give the same however they are put together, as long as none changes the shape of what another holds.
    #[test]
    fn merging_is_associative(a in part(), b in part(), c in part()) {
        let read = |text: &str| SubmittedDocument::read(Experiment, if text.is_empty() { "{}" } else { text }).unwrap();
        let flat = |layer: &SubmittedDocument| SubmittedDocument::read(Experiment, &layer.to_value().to_string()).unwrap();
        let (a, b, c) = (read(&a), read(&b), read(&c));
        let left = flat(&a.clone().over(b.clone())).over(c.clone()).to_value();
        let right = a.over(flat(&b.over(c))).to_value();
        prop_assert_eq!(left, right);
    }

    /// A layer over itself changes only what appends.
    #[test]
    fn a_layer_over_nothing_is_itself(a in part()) {
        let read = |text: &str| SubmittedDocument::read(Experiment, if text.is_empty() { "{}" } else { text }).unwrap();
        let alone = read(&a).to_value();
        prop_assert_eq!(read(&a).over(read("{}")).to_value(), alone.clone());
        prop_assert_eq!(read("{}").over(read(&a)).to_value(), alone);
    }

    /// Every effective key has an origin, and those of the document are in the document.
    #[test]
    fn every_key_has_one_origin(a in part(), b in part()) {
        let text = format!("{TRAIN}{}", a.replace("environment:", "x_environment:").lines().filter(|l| !l.starts_with("x_") && !l.starts_with("searcher") && !l.starts_with("hyper")).map(|l| format!("{l}\n")).collect::<String>());
        let template = ("t".to_owned(), "t.yaml".to_owned(), b);
        let options = CheckOptions { templates: std::slice::from_ref(&template), ..CheckOptions::default() };
        let Ok(submitted) = layers("d.yaml", &text, options) else { return Ok(()) };
        let master = master(MASTER);
        let tcd = TaskContainerDefaults::default();
        let Ok(explained) = submitted.under(&[]).explain(&defaults(&tcd), &master.underlay("gpu")) else { return Ok(()) };
        let mut seen = std::collections::BTreeSet::new();
        for key in &explained.keys {
            prop_assert!(seen.insert(key.path.clone()), "{} twice", key.path);
            if key.origin.layer() == Layer::Document {
                let line = key.origin.0.as_ref().map_or(0, |at| at.line);
                prop_assert!(line >= 1 && line as usize <= text.lines().count(), "{}: {}", key.path, key.origin);
            }
        }
    }
}

#[test]
fn a_value_in_a_file_that_a_variable_names_comes_from_there() {
    let names = BTreeMap::from([(
        "DET_LOG_LEVEL".to_owned(),
        "DET_LOG_LEVEL_FILE (/run/level)".to_owned(),
    )]);
    let load = |level: &str| {
        LoadedMaster::load(Sources {
            files: &[],
            env: &BTreeMap::from([("DET_LOG_LEVEL".to_owned(), level.to_owned())]),
            flags: &[],
        })
    };
    let loaded = load("debug").unwrap().variables_named(&names);
    let origins = loaded.origins();
    let level = origins.iter().find(|key| key.path == "log.level").unwrap();
    assert_eq!(level.origin.to_string(), "DET_LOG_LEVEL_FILE (/run/level)");
    let reported = load("loud")
        .unwrap_err()
        .variables_named(&names)
        .to_string();
    assert!(
        reported.starts_with("DET_LOG_LEVEL_FILE (/run/level): log.level: must be"),
        "{reported}"
    );
}
