use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::hyperparameters::{AdaptiveMode, Hyperparameter, SearchMethod};

const MINIMAL: &str = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n";

fn storage() -> Value {
    json!({"type": "shared_fs", "host_path": "/tmp", "storage_path": "checkpoints"})
}

fn complete_with(
    text: &str,
    tcd: &TaskContainerDefaults,
) -> Result<ExperimentConfig, ConfigErrors> {
    Submitted::parse(text)?.complete(&CompletionDefaults {
        name: "Experiment (calm-red-fox)".into(),
        experiment_seed: 1_700_000_000,
        checkpoint_storage: Some(storage()),
        task_container_defaults: tcd,
        default_priority: Some(42),
        managed: true,
    })
}

fn complete(text: &str) -> ExperimentConfig {
    complete_with(text, &TaskContainerDefaults::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The mistakes of a document, whichever step finds them.
fn failure(text: &str) -> String {
    match complete_with(text, &TaskContainerDefaults::default()) {
        Ok(_) => panic!("accepted: {text}"),
        Err(errors) => errors.to_string(),
    }
}

/// A good document with more keys.
fn with(more: &str) -> String {
    format!("{MINIMAL}{more}\n")
}

fn searching(searcher: &str) -> String {
    format!("entrypoint: ./run\nsearcher:\n  metric: loss\n{searcher}\n")
}

#[test]
fn a_minimal_document_gets_every_default() {
    let config = complete(MINIMAL);
    assert_eq!(
        config.to_json(),
        json!({
            "name": "Experiment (calm-red-fox)",
            "description": null,
            "labels": [],
            "workspace": "",
            "project": "",
            "data": {},
            "entrypoint": "python3 train.py",
            "debug": false,
            "max_restarts": 5,
            "log_policies": [
                {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": null},
                {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": null},
            ],
            "retention_policy": null,
            "perform_initial_validation": false,
            "checkpoint_policy": "best",
            "checkpoint_storage": {
                "type": "shared_fs", "host_path": "/tmp", "storage_path": "checkpoints", "propagation": "rprivate",
                "save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1,
            },
            "hyperparameters": {},
            "searcher": {
                "name": "single", "metric": "loss", "smaller_is_better": true,
                "source_trial_id": null, "source_checkpoint_uuid": null,
            },
            "resources": {
                "slots_per_trial": 1, "max_slots": null, "weight": 1, "priority": 42, "resource_pool": "",
                "is_single_node": null, "shm_size": 4_294_967_296_u64, "devices": [], "native_parallel": false,
            },
            "bind_mounts": [],
            "environment": {
                "image": {
                    "cpu": "determinedai/pytorch-ngc-dev:0736b6d",
                    "cuda": "determinedai/pytorch-ngc-dev:0736b6d",
                    "rocm": "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d",
                },
                "environment_variables": {"cpu": [], "cuda": [], "rocm": []},
                "proxy_ports": [],
                "ports": {},
                "force_pull_image": false,
                "registry_auth": null,
                "add_capabilities": [],
                "drop_capabilities": [],
                "pod_spec": null,
            },
            "preemption_timeout": 3600,
            "reproducibility": {"experiment_seed": 1_700_000_000},
            "profiling": {"enabled": false, "begin_on_batch": 0, "end_after_batch": null, "sync_timings": true},
            "integrations": null,
            "optimizations": {
                "aggregation_frequency": 1, "average_aggregated_gradients": true, "average_training_metrics": true,
                "gradient_compression": false, "grad_updates_size_file": null, "mixed_precision": "O0",
                "tensor_fusion_threshold": 64, "tensor_fusion_cycle_time": 1, "auto_tune_tensor_fusion": false,
            },
            "slurm": {},
            "pbs": {},
            "min_validation_period": {"batches": 0},
            "min_checkpoint_period": {"batches": 0},
            "scheduling_unit": 100,
            "records_per_epoch": 0,
        })
    );
    assert_eq!(Submitted::parse(MINIMAL).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn every_default_of_the_schema_is_json() {
    crate::schema::assert_defaults_are_json(&schema::EXPERIMENT);
}

#[test]
fn every_key_is_kept() {
    let text = r#"
name: full
description: words
labels: [b, a, b]
workspace: w
project: p
data: {url: x, nested: {keep: null}}
entrypoint: [python3, train.py]
debug: true
max_restarts: 0
log_policies:
  - {name: disk, pattern: "disk.*full", action: cancel_retries}
  - {name: CUDA OOM}
retention_policy: {log_retention_days: -1}
perform_initial_validation: true
checkpoint_policy: all
checkpoint_storage: {type: directory, container_path: /ckpt, save_trial_latest: 3}
hyperparameters:
  lr: {type: log, minval: -5, maxval: -1, base: 10}
  n: {type: int, minval: 1, maxval: 4}
  d: {type: double, minval: 0.5, maxval: 1}
  c: {type: categorical, vals: [1, a, null, [2], {x: 1}]}
  opt: {momentum: 0.9, kind: sgd, none: null}
  k: {type: const, val: null}
  l: [1, 2]
searcher:
  name: adaptive_asha
  metric: acc
  smaller_is_better: false
  source_trial_id: 7
  max_trials: 20
  time_metric: batches
  max_time: 1000
  mode: conservative
  divisor: 3.5
  max_rungs: 4
  bracket_rungs: [3, 2]
  max_concurrent_trials: 0
resources:
  slots_per_trial: 2
  max_slots: 8
  weight: 2.5
  priority: 10
  resource_pool: gpu
  is_single_node: true
  shm_size: 2g
  devices: ["/dev/a:/dev/b", {host_path: /dev/c, container_path: /dev/c, mode: r}]
bind_mounts:
  - {host_path: /data, container_path: data, read_only: true, propagation: shared}
environment:
  image: {cuda: my/gpu}
  environment_variables: {cpu: [A=1], cuda: [B=2]}
  proxy_ports: [{proxy_port: 8265, proxy_tcp: true}]
  ports: {http: 80}
  force_pull_image: true
  registry_auth: {username: u, password: p, server: r.example}
  add_capabilities: [SYS_PTRACE]
  drop_capabilities: [NET_RAW]
  pod_spec: {spec: {volumes: [{name: v, emptyDir: {}}]}}
preemption_timeout: 60
reproducibility: {experiment_seed: 5}
profiling: {enabled: true, begin_on_batch: 1, end_after_batch: 2, sync_timings: false}
integrations:
  webhooks: {webhook_id: [1], exclude: false}
optimizations: {aggregation_frequency: 2, mixed_precision: O1}
slurm: {slots_per_node: 4, gpu_type: a, sbatch_args: [--x]}
pbs: {slots_per_node: 2, pbsbatch_args: [-y]}
min_validation_period: {epochs: 1}
min_checkpoint_period: {records: 5}
scheduling_unit: 10
records_per_epoch: 50
"#;
    let config = complete(text);
    assert_eq!(config.labels, ["a", "b"]);
    assert_eq!(config.entrypoint, Some(Entrypoint::Argv(vec!["python3".into(), "train.py".into()])));
    assert_eq!(
        config.searcher.method,
        SearchMethod::AdaptiveAsha {
            mode: AdaptiveMode::Conservative,
            max_rungs: 4,
            bracket_rungs: vec![3, 2],
            divisor: 3.5,
            max_trials: 20,
            max_concurrent_trials: 0,
            time_metric: "batches".into(),
            max_time: 1000,
        }
    );
    assert_eq!(config.resources.shm_size, 2 << 30);
    assert_eq!(config.resources.devices[0].mode, "mrw");
    assert_eq!(config.resources.devices[0].container_path, "/dev/b");
    assert_eq!(config.environment.image.cuda, "my/gpu");
    assert_eq!(config.environment.image.cpu, "determinedai/pytorch-ngc-dev:0736b6d");
    assert_eq!(config.environment.environment_variables.cuda, ["B=2"]);
    assert_eq!(
        config.environment.registry_auth.as_ref().unwrap().serveraddress.as_deref(),
        Some("r.example")
    );
    assert_eq!(config.environment.pod_spec, Some(json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}})));
    assert_eq!(
        config.checkpoint_storage.location,
        crate::storage::StorageLocation::Directory { container_path: "/ckpt".into() }
    );
    assert_eq!(config.hyperparameters["k"], Hyperparameter::Const(Value::Null));
    assert_eq!(config.data["nested"], json!({"keep": null}));
    // The switched-off policy stays as an entry without pattern; the other built-in one is added.
    let names: Vec<_> = config.log_policies.iter().map(|policy| policy.name.clone().unwrap()).collect();
    assert_eq!(names, ["disk", "CUDA OOM", "ECC Error"]);
    assert_eq!(config.log_policies[1].pattern, None);
    assert_eq!(
        config.to_json()["hyperparameters"]["opt"]["none"],
        json!({"type": "const", "val": null})
    );
    assert_eq!(config.to_json()["hyperparameters"]["lr"]["base"], json!(10));
    assert_eq!(ExperimentConfig::from_json(&config.to_json()).unwrap(), config);
}

#[test]
fn mistakes_name_their_path_line_and_remedy() {
    for (name, text, expected) in [
        ("grid without count", searching("  name: grid\nhyperparameters:\n  a:\n    lr: {type: double, minval: 0, maxval: 1}"),
         "<config>.hyperparameters.a.lr: grid search needs a \"count\" here (line 7); hint: add the number of points, \"count\""),
        ("single with a choice", with("hyperparameters: {lr: {type: categorical, vals: [1, 2]}}"),
         "<config>.hyperparameters.lr: searcher \"single\" takes constants only (line 3); hint: give one value, or choose searcher \"random\""),
        ("two warm starts", searching("  name: single\n  source_trial_id: 1\n  source_checkpoint_uuid: x"),
         "<config>.searcher.source_checkpoint_uuid: cannot be combined with \"source_trial_id\"; choose one (line 6)"),
        ("more slots than allowed", with("resources: {slots_per_trial: 4, max_slots: 2}"),
         "<config>.resources.slots_per_trial: is 4, more than the 2 of \"max_slots\": no trial could ever start (line 3)"),
        ("slots of a task", with("resources: {slots: 4}"),
         "<config>.resources.slots: is a key of notebooks, shells and commands, not of experiments (line 3); hint: use \"resources.slots_per_trial\""),
        ("a typing error", with("resoruces: {}"),
         "<config>.resoruces: is not a known key (line 3); hint: did you mean \"resources\"?"),
        ("slots at top level", with("slots: 1"),
         "<config>.slots: is not a known key (line 3); hint: did you mean \"resources.slots_per_trial\"?"),
        ("image at top level", with("image: x"),
         "<config>.image: is not a known key (line 3); hint: did you mean \"environment.image\"?"),
        ("registry_auth at top level", with("registry_auth: {}"), "hint: did you mean \"environment.registry_auth\"?"),
        ("pod_spec at top level", with("pod_spec: {}"), "hint: did you mean \"environment.pod_spec\"?"),
        ("variables at top level", with("environment_variables: []"), "hint: did you mean \"environment.environment_variables\"?"),
        ("priority at top level", with("priority: 1"), "hint: did you mean \"resources.priority\"?"),
        ("pool at top level", with("resource_pool: x"), "hint: did you mean \"resources.resource_pool\"?"),
        ("a leaf of another section", with("max_trials: 3"), "hint: did you mean \"searcher.max_trials\"?"),
        ("a key of another searcher", searching("  name: single\n  max_trials: 2"),
         "<config>.searcher.max_trials: is not a known key for name \"single\"; known are \"name\", \"metric\""),
        ("no entrypoint", "searcher: {name: single, metric: x}".into(),
         "<config>.entrypoint: is required: the command that trains; hint: for example \"python3 train.py\""),
        ("no searcher", "entrypoint: x".into(), "<config>.searcher: is required (line 1)"),
        ("no metric", "entrypoint: x\nsearcher: {name: single}".into(), "<config>.searcher.metric: is required (line 2)"),
        ("no searcher name", "entrypoint: x\nsearcher: {metric: x}".into(),
         "<config>.searcher.name: is required: one of \"single\", \"random\", \"grid\", \"async_halving\", \"adaptive_asha\" (line 2)"),
        ("unknown searcher", searching("  name: bayes"),
         "<config>.searcher.name: must be one of \"single\", \"random\", \"grid\", \"async_halving\", \"adaptive_asha\", not \"bayes\" (line 4)"),
        ("removed searcher", searching("  name: adaptive_simple\n  max_trials: 3"),
         "<config>.searcher.name: searcher \"adaptive_simple\" was removed (line 4); hint: use \"adaptive_asha\" or \"random\""),
        ("random without trials", searching("  name: random"), "<config>.searcher.max_trials: is required for name \"random\""),
        ("no trials", searching("  name: random\n  max_trials: 0"), "<config>.searcher.max_trials: must be at least 1, not 0 (line 5)"),
        ("ASHA without time", searching("  name: adaptive_asha\n  max_trials: 4"), "<config>.searcher.time_metric: is required for name \"adaptive_asha\""),
        ("ASHA with a bare length", searching("  name: adaptive_asha\n  max_trials: 4\n  max_length: 10"),
         "<config>.searcher.max_length: has no unit; ASHA needs \"time_metric\" and \"max_time\" (line 6)"),
        ("divisor of one", searching("  name: async_halving\n  divisor: 1"), "<config>.searcher.divisor: must be above 1, not 1 (line 5)"),
        ("a length of two units", with("min_validation_period: {batches: 1, epochs: 1}"),
         "<config>.min_validation_period: must have exactly one of \"batches\", \"records\", \"epochs\" (line 3)"),
        ("a length of no unit", with("min_checkpoint_period: {}"), "must have exactly one of"),
        ("a negative length", with("min_checkpoint_period: {batches: -1}"), "<config>.min_checkpoint_period.batches: must be at least 0, not -1"),
        ("a training length of nothing", searching("  name: single\n  max_length: {batches: 0}"), "<config>.searcher.max_length.batches: must be at least 1"),
        ("a boolean as text", with("debug: \"true\""), "<config>.debug: must be true or false, not a string (line 3); hint: write true without quotes"),
        ("an old boolean", with("debug: yes"), "hint: write true without quotes"),
        ("a fraction", with("max_restarts: 1.5"), "<config>.max_restarts: must be an integer (line 3)"),
        ("a misspelt word", with("checkpoint_policy: bets"),
         "<config>.checkpoint_policy: must be one of \"best\", \"all\", \"none\", not \"bets\" (line 3); hint: did you mean \"best\"?"),
        ("version 1", with("version: 1"), "<config>.version: is not a supported version; only 0 exists (line 3)"),
        ("internal", with("internal: {native: 1}"), "<config>.internal: was removed (line 3); hint: remove it"),
        ("hdfs", with("checkpoint_storage: {type: hdfs, hdfs_url: x}"), "\"hdfs\" was removed (line 3); hint: mount it and use \"shared_fs\""),
        ("old packages", with("environment: {runtime_packages: [x]}"), "<config>.environment.runtime_packages: was removed"),
        ("steps without their size", searching("  name: single\n  max_steps: 5"), "<config>.searcher.max_steps: was removed"),
        ("step budget", searching("  name: single\n  step_budget: 5"), "<config>.searcher.step_budget: was removed"),
        ("batches_per_step alone", "entrypoint: x\nbatches_per_step: 5".into(), "<config>.batches_per_step: was removed"),
        ("relative host path", with("bind_mounts: [{host_path: x, container_path: y}]"),
         "<config>.bind_mounts[0].host_path: must be an absolute path, not \"x\" (line 3)"),
        ("mount over the work directory", with("bind_mounts: [{host_path: /x, container_path: .}]"), "<config>.bind_mounts[0].container_path: must be a path below"),
        ("mount without a target", with("bind_mounts: [{host_path: /x}]"), "<config>.bind_mounts[0].container_path: is required (line 3)"),
        ("unknown propagation", with("bind_mounts: [{host_path: /x, container_path: y, propagation: up}]"), "propagation: must be one of"),
        ("bad device", with("resources: {devices: [\"/dev/a\"]}"),
         "<config>.resources.devices[0]: must be \"/host:/container[:mode]\", not \"/dev/a\" (line 3)"),
        ("bad device mode", with("resources: {devices: [\"/dev/a:/dev/b:x\"]}"), "<config>.resources.devices[0].mode: must be made of"),
        ("bad size", with("resources: {shm_size: giga}"), "<config>.resources.shm_size: \"giga\" is not a size"),
        ("priority out of range", with("resources: {priority: 100}"), "<config>.resources.priority: must be at most 99, not 100"),
        ("weight of nothing", with("resources: {weight: 0}"), "<config>.resources.weight: must be above 0, not 0"),
        ("both pools", with("resources: {resource_pool: a, resource_pools: [b]}"), "<config>.resources.resource_pools: cannot be combined"),
        ("project alone", with("project: p"), "<config>.workspace: is required beside \"project\" (line 3)"),
        ("workspace alone", with("workspace: p"), "<config>.project: is required beside \"workspace\" (line 3)"),
        ("reversed profiling", with("profiling: {begin_on_batch: 5, end_after_batch: 2}"),
         "<config>.profiling.end_after_batch: must not be below \"begin_on_batch\", which is 5 (line 3)"),
        ("storage outside", with("checkpoint_storage: {type: shared_fs, host_path: /tmp, storage_path: /tmpfoo}"),
         "<config>.checkpoint_storage.storage_path: must be relative to, or under, \"/tmp\"; \"/tmpfoo\" is outside (line 3)"),
        ("climbing prefix", with("checkpoint_storage: {type: s3, bucket: b, prefix: x/../y}"), "must not climb out of the bucket"),
        ("azure with both", with("checkpoint_storage: {type: azure, container: c, connection_string: a, credential: b}"),
         "<config>.checkpoint_storage.credential: cannot be combined with \"connection_string\" (line 3)"),
        ("azure with two places", with("checkpoint_storage: {type: azure, container: c, connection_string: a, account_url: b}"), "choose exactly one of"),
        ("azure with none", with("checkpoint_storage: {type: azure, container: c}"), "choose exactly one of"),
        ("s3 without bucket", with("checkpoint_storage: {type: s3}"), "<config>.checkpoint_storage.bucket: is required for type \"s3\" (line 3)"),
        ("key of another storage", with("checkpoint_storage: {type: s3, bucket: b, host_path: /x}"), "<config>.checkpoint_storage.host_path: is not a known key for type \"s3\""),
        ("unknown storage", with("checkpoint_storage: {type: ftp}"), "<config>.checkpoint_storage.type: must be one of \"shared_fs\", \"directory\", \"s3\", \"gcs\", \"azure\", not \"ftp\""),
        ("bad pattern", with("log_policies: [{name: x, pattern: \"(\"}]"), "<config>.log_policies[0].pattern: is not a regular expression"),
        ("empty policy", with("log_policies: [{}]"), "<config>.log_policies[0]: needs a \"name\", or both \"pattern\" and \"action\" (line 3)"),
        ("policy named twice", with("log_policies: [{name: x}, {name: x}]"), "<config>.log_policies[1].name: \"x\" names two log policies (line 3)"),
        ("unknown action", with("log_policies: [{name: x, pattern: y, action: reboot}]"), "<config>.log_policies[0].action: must be one of"),
        ("retention out of range", with("retention_policy: {log_retention_days: 40000}"), "must be at most 32767"),
        ("empty retention", with("retention_policy: {}"), "<config>.retention_policy.log_retention_days: is required"),
        ("blank name", with("name: \"  \""), "<config>.name: must not be blank (line 3)"),
        ("empty entrypoint", "entrypoint: []\nsearcher: {name: single, metric: x}".into(), "<config>.entrypoint: must not be empty (line 1)"),
        ("entrypoint of numbers", "entrypoint: [1]\nsearcher: {name: single, metric: x}".into(), "<config>.entrypoint[0]: must be a string, not a number (line 1)"),
        ("bad variable", with("environment: {environment_variables: [{A: 1}]}"),
         "<config>.environment.environment_variables[0]: must be \"NAME=VALUE\" or \"NAME\", not a map (line 3)"),
        ("variables of a new device", with("environment: {environment_variables: {tpu: []}}"), "known are \"cpu\", \"cuda\", \"rocm\""),
        ("bad port", with("environment: {proxy_ports: [{proxy_port: 0}]}"), "proxy_port: must be at least 1, not 0"),
        ("data is no map", with("data: [1]"), "<config>.data: must be a map, not a list"),
        ("host network in a pod", with("environment: {pod_spec: {spec: {hostNetwork: true}}}"), "<config>.environment.pod_spec.spec.hostNetwork: cannot be set in a pod spec (line 3); hint: set \"task_container_defaults.network_mode\""),
        ("image in the task's container", with("environment: {pod_spec: {spec: {containers: [{name: determined-container, image: x}]}}}"), "containers[0].image: cannot be set in a pod spec"),
        ("tensorboard storage with counts", with("tensorboard_storage: {type: s3, save_trial_best: 1}"), "is not a key of TensorBoard storage"),
        ("a list", "- 1".into(), "<config>: must be a map, not a list (line 1)"),
        ("nothing", String::new(), "<config>: must be a map, not null"),
    ] {
        let message = failure(&text);
        assert!(message.contains(expected), "{name}:\n  {message}\nlacks\n  {expected}");
    }
}

#[test]
fn hyperparameters_are_checked_to_the_leaf() {
    for (space, expected) in [
        ("{type: int, minval: 2, maxval: 2}", "<config>.hyperparameters.x: \"minval\" must be below \"maxval\" (line 3)"),
        ("{type: int, minval: 1.5, maxval: 2}", "<config>.hyperparameters.x.minval: must be an integer, not 1.5"),
        ("{type: int, minval: 1}", "<config>.hyperparameters.x.maxval: is required for a hyperparameter of type \"int\""),
        ("{type: double, minval: 2, maxval: 1}", "\"minval\" must be below \"maxval\""),
        ("{type: double, minval: a, maxval: 1}", "minval: must be a number, not a string"),
        ("{type: log, minval: 1, maxval: 2}", "<config>.hyperparameters.x.base: is required"),
        ("{type: log, minval: 1, maxval: 2, base: 0}", "base: must be above 0"),
        ("{type: int, minval: 1, maxval: 2, count: 0}", "count: must be an integer of at least 1, not 0"),
        ("{type: categorical, vals: []}", "vals: must hold at least one value"),
        ("{type: categorical, vals: 5}", "vals: must be a list, not a number"),
        ("{type: const}", "val: is required"),
        ("{type: normal, mean: 1}", "<config>.hyperparameters.x.type: must be one of \"const\", \"int\", \"double\", \"log\", \"categorical\", not \"normal\""),
        ("{type: const, val: 1, note: 2}", "note: is not a key of a hyperparameter of type \"const\""),
        ("{y: {z: {type: int}}}", "<config>.hyperparameters.x.y.z.minval: is required"),
    ] {
        let text = format!("{}\nhyperparameters: {{x: {space}}}", "entrypoint: x\nsearcher: {name: random, max_trials: 1, metric: m}");
        let message = failure(&text);
        assert!(message.contains(expected), "{space}:\n  {message}\nlacks\n  {expected}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_text() {
    let errors = Submitted::parse("max_restarts: -1\nnonsense: 1\nsearcher:\n  name: random\n  max_trials: x\n").unwrap_err();
    let lines: Vec<Option<u32>> = errors.0.iter().map(|error| error.line).collect();
    assert_eq!(lines, [Some(1), Some(2), Some(5)]);
}

#[test]
fn older_forms_are_translated_with_a_warning() {
    let warned = |text: &str, expected: &str| {
        let submitted = Submitted::parse(text).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            submitted.warnings.iter().any(|warning| warning.contains(expected)),
            "{text}: {:?} lacks {expected}",
            submitted.warnings
        );
        complete(text)
    };
    let config = warned(
        &searching("  name: adaptive_asha\n  max_trials: 4\n  max_length: {epochs: 9}"),
        "searcher.max_length: is read as \"time_metric: epochs\" and \"max_time\"",
    );
    let SearchMethod::AdaptiveAsha { time_metric, max_time, .. } = &config.searcher.method else {
        panic!("adaptive")
    };
    assert_eq!((time_metric.as_str(), *max_time), ("epochs", 9));
    assert_eq!(config.to_json()["searcher"].get("max_length"), None);

    let config = warned(
        &searching("  name: async_halving\n  num_rungs: 2\n  max_trials: 4\n  time_metric: t\n  max_length: 7"),
        "is read as \"max_time\"",
    );
    assert!(matches!(config.searcher.method, SearchMethod::AsyncHalving { max_time: 7, .. }));

    let config = warned(
        &searching("  name: async_halving\n  num_rungs: 2\n  max_trials: 4\n  time_metric: t\n  max_time: 3\n  max_length: {batches: 7}"),
        "is ignored beside \"max_time\"",
    );
    assert!(matches!(config.searcher.method, SearchMethod::AsyncHalving { max_time: 3, .. }));

    let config = warned(&searching("  name: single\n  max_length: {batches: 500}"), "is deprecated");
    assert_eq!(config.searcher.max_length, Some(MaxLength::Length(Length::Batches(500))));
    assert_eq!(config.to_json()["searcher"]["max_length"], json!({"batches": 500}));

    let config = warned(&searching("  name: random\n  max_trials: 2\n  max_length: 12"), "is deprecated");
    assert_eq!(config.searcher.max_length, Some(MaxLength::Unitless(12)));

    let config = warned(
        &format!("batches_per_step: 10\n{}", searching("  name: single\n  max_steps: 3")),
        "is read as \"max_length: {batches: 30}\"",
    );
    assert_eq!(config.searcher.max_length, Some(MaxLength::Length(Length::Batches(30))));

    let config = warned(&with("environment: {image: {gpu: g, cpu: c}}"), "environment.image.gpu: is the old name of \"cuda\"");
    assert_eq!(config.environment.image.cuda, "g");
    warned(&with("resources: {agent_label: x}"), "resources.agent_label: is ignored; use resource pools");
    warned(&with("security: {kerberos: {config_file: x}}"), "security: is ignored");
    warned("entrypoint: model:Trial\nsearcher: {name: single, metric: x}", "names a trial class");
    warned(&with("scheduling_unit: 10"), "scheduling_unit: is deprecated");
    warned(&with("resources: {slots_per_trial: 2}"), "has no \"global_batch_size\"");
    warned(&with("reproducibility: {experiment_seed: 3000000000}"), "is 2147483648 or more");

    assert_eq!(complete(&with("labels: {x: true, y: true}")).labels, ["x", "y"]);
    let config = complete(&with("log_policies: [{pattern: x, action: {type: exclude_node}}]"));
    assert_eq!(config.log_policies[0].action, Some(crate::container::LogAction::ExcludeNode));
    assert_eq!(complete(&with("version: 0\ninternal: null\nlabels: null")).labels, Vec::<String>::new());
}

#[test]
fn the_documented_old_example_keeps_its_parts_with_one_warning() {
    let text = "
description: mnist_tf_const
data:
  url: https://storage.example/mnist.tar.gz
hyperparameters:
  base_learning_rate: 0.001
  weight_cost: 0.0001
  global_batch_size: 64
  n_filters1: 40
  n_filters2: 40
searcher:
  name: single
  metric: error
  max_length:
    batches: 500
  smaller_is_better: true
environment:
  environment_variables:
    - A=A
    - B=B
    - C=C
entrypoint: python3 model_def.py
";
    let submitted = Submitted::parse(text).unwrap();
    assert_eq!(submitted.warnings.len(), 1, "{:?}", submitted.warnings);
    let config = complete(text);
    assert_eq!(config.hyperparameters.len(), 5);
    assert_eq!(config.data["url"], "https://storage.example/mnist.tar.gz");
    assert_eq!(config.environment.environment_variables.cpu, ["A=A", "B=B", "C=C"]);
}

#[test]
fn what_nothing_acts_on_yet_is_said() {
    for (text, path) in [
        ("checkpoint_storage: {type: s3, bucket: b}", "checkpoint_storage.type: \"s3\""),
        ("checkpoint_storage: {type: gcs, bucket: b}", "checkpoint_storage.type: \"gcs\""),
        ("checkpoint_storage: {type: azure, container: b, account_url: u}", "checkpoint_storage.type: \"azure\""),
        ("log_policies: [{name: x, pattern: y, action: exclude_node}]", "log_policies[0].action: \"exclude_node\""),
        ("retention_policy: {log_retention_days: 3}", "retention_policy:"),
        ("integrations: {webhooks: {exclude: true}}", "integrations:"),
        ("slurm: {slots_per_node: 1}", "slurm:"),
        ("pbs: {slots_per_node: 1}", "pbs:"),
        ("environment: {pod_spec: {spec: {}}}", "environment.pod_spec:"),
        ("environment: {proxy_ports: [{proxy_port: 80}]}", "environment.proxy_ports:"),
        ("profiling: {enabled: true}", "profiling:"),
    ] {
        let warnings = Submitted::parse(&with(text)).unwrap().warnings;
        assert!(
            warnings.iter().any(|w| w.starts_with(path) && w.ends_with("is accepted and kept but not acted on yet")),
            "{text}: {warnings:?}"
        );
        complete(&with(text));
    }
}

#[test]
fn stronger_layers_merge_over_weaker_ones() {
    let merged = |strong: &str, weak: &str| {
        Submitted::parse(strong).unwrap().over(Submitted::parse(weak).unwrap()).to_value()
    };
    for (name, strong, weak, expected) in [
        ("storage type from the stronger", "checkpoint_storage: {type: gcs, bucket: b, save_experiment_best: 3}",
         "checkpoint_storage: {save_experiment_best: 10, save_trial_best: 10, save_trial_latest: 10}",
         json!({"checkpoint_storage": {"type": "gcs", "bucket": "b", "save_experiment_best": 3, "save_trial_best": 10, "save_trial_latest": 10}})),
        ("another type is dropped", "checkpoint_storage: {type: shared_fs, host_path: /tmp, save_trial_best: 1}",
         "checkpoint_storage: {type: s3, bucket: x, save_trial_latest: 10}",
         json!({"checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp", "save_trial_best": 1, "save_trial_latest": 10}})),
        ("type adopted from the weaker", "checkpoint_storage: {save_trial_best: 2}", "checkpoint_storage: {type: s3, bucket: x}",
         json!({"checkpoint_storage": {"type": "s3", "bucket": "x", "save_trial_best": 2}})),
        ("searchers", "searcher: {name: single, metric: loss, smaller_is_better: true}",
         "searcher: {name: random, max_trials: 9, smaller_is_better: false, source_checkpoint_uuid: u}",
         json!({"searcher": {"name": "single", "metric": "loss", "smaller_is_better": true, "source_checkpoint_uuid": "u"}})),
        ("azure credentials travel together", "checkpoint_storage: {type: azure, account_url: u}",
         "checkpoint_storage: {type: azure, container: c, connection_string: s}",
         json!({"checkpoint_storage": {"type": "azure", "container": "c", "account_url": "u"}})),
        ("mounts by container path", "bind_mounts: [{host_path: /a, container_path: x}]",
         "bind_mounts: [{host_path: /b, container_path: x}, {host_path: /c, container_path: y}]",
         json!({"bind_mounts": [{"host_path": "/a", "container_path": "x"}, {"host_path": "/c", "container_path": "y"}]})),
        ("labels are a set", "labels: [b, a]", "labels: [c, a]", json!({"labels": ["a", "b", "c"]})),
        ("a null does not erase", "description: null", "description: d", json!({"description": "d"})),
        ("spaces replace whole leaves", "hyperparameters: {x: {type: int, minval: 1, maxval: 2}, g: {a: 1}, n: null}",
         "hyperparameters: {x: {type: int, minval: 0, maxval: 9, count: 3}, g: {b: 2}, n: 5}",
         json!({"hyperparameters": {"x": {"type": "int", "minval": 1, "maxval": 2}, "g": {"a": 1, "b": 2}, "n": null}})),
        ("entrypoint replaces", "entrypoint: [a]", "entrypoint: b c", json!({"entrypoint": ["a"]})),
        ("data maps merge, lists append", "data: {a: {x: 1}, l: [2], t: s}", "data: {a: {y: 2}, l: [1], t: {z: 1}}",
         json!({"data": {"a": {"x": 1, "y": 2}, "l": [1, 2], "t": "s"}})),
        ("capabilities unite", "environment: {add_capabilities: [B]}", "environment: {add_capabilities: [A, B]}",
         json!({"environment": {"add_capabilities": ["A", "B"]}})),
        ("registry credentials do not mix", "environment: {registry_auth: {username: a}}", "environment: {registry_auth: {password: p}}",
         json!({"environment": {"registry_auth": {"username": "a"}}})),
        ("log policies by name", "log_policies: [{name: a}]", "log_policies: [{name: a, pattern: x}, {name: b, pattern: y}]",
         json!({"log_policies": [{"name": "a"}, {"name": "b", "pattern": "y"}]})),
        ("arguments: the stronger come last", "slurm: {sbatch_args: [s]}", "slurm: {sbatch_args: [w]}", json!({"slurm": {"sbatch_args": ["w", "s"]}})),
        ("proxy ports by number", "environment: {proxy_ports: [{proxy_port: 1}]}",
         "environment: {proxy_ports: [{proxy_port: 1, proxy_tcp: true}, {proxy_port: 2}]}",
         json!({"environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}]}})),
        ("mismatched types: the stronger", "data: {a: 1}", "data: {a: [1]}", json!({"data": {"a": 1}})),
    ] {
        assert_eq!(merged(strong, weak), expected, "{name}");
    }
}

#[test]
fn the_cluster_comes_under_the_template_under_the_document() {
    let tcd: TaskContainerDefaults = serde_json::from_value(json!({
        "environment_variables": {"cpu": ["X=1"], "cuda": ["X=1"], "rocm": []},
        "image": {"cpu": "cluster/cpu"},
        "shm_size_bytes": 5,
        "force_pull_image": true,
        "preemption_timeout": 9,
        "bind_mounts": [{"host_path": "/c", "container_path": "/c", "read_only": false, "propagation": "rprivate"}],
        "gpu_pod_spec": {"spec": {"volumes": [{"name": "g", "emptyDir": {}}]}},
        "cpu_pod_spec": {"spec": {"volumes": [{"name": "c", "emptyDir": {}}]}},
        "log_policies": [{"name": "CUDA OOM", "pattern": "mine", "action": null}],
    }))
    .unwrap();
    let defaults = CompletionDefaults {
        name: "n".into(),
        experiment_seed: 1,
        checkpoint_storage: Some(storage()),
        task_container_defaults: &tcd,
        default_priority: None,
        managed: true,
    };
    let template = Submitted::parse_from("template \"t\"", "environment: {environment_variables: [X=2, Y=2]}").unwrap();
    let document = Submitted::parse(&with("environment: {environment_variables: [X=3]}")).unwrap();
    let config = document.over(template).complete(&defaults).unwrap();
    assert_eq!(config.environment.environment_variables.cpu, ["X=1", "X=2", "Y=2", "X=3"]);
    assert_eq!(config.environment.environment_variables.rocm, ["X=2", "Y=2", "X=3"]);
    assert_eq!(config.environment.image.cpu, "cluster/cpu");
    assert_eq!(config.environment.image.cuda, "determinedai/pytorch-ngc-dev:0736b6d");
    assert!(config.environment.force_pull_image);
    assert_eq!((config.resources.shm_size, config.preemption_timeout), (5, 9));
    assert_eq!(config.bind_mounts[0].host_path, "/c");
    assert_eq!(config.log_policies[0].pattern.as_deref(), Some("mine"));
    assert_eq!(config.log_policies.len(), 2);
    assert_eq!(
        config.environment.pod_spec,
        Some(json!({"spec": {"volumes": [{"name": "g", "emptyDir": {}}]}}))
    );
    let error = Submitted::parse_from("template \"t\"", "a: 1").unwrap_err();
    assert!(error.to_string().contains("(line 1 of template \"t\")"), "{error}");
}

#[test]
fn an_unmanaged_experiment_needs_no_entrypoint_and_a_cluster_must_have_storage() {
    let tcd = TaskContainerDefaults::default();
    let mut defaults = CompletionDefaults {
        name: "n".into(),
        experiment_seed: 1,
        checkpoint_storage: Some(storage()),
        task_container_defaults: &tcd,
        default_priority: None,
        managed: false,
    };
    let submitted = Submitted::parse("searcher: {name: single, metric: x}").unwrap();
    let config = submitted.clone().complete(&defaults).unwrap();
    assert_eq!(config.entrypoint, None);
    assert_eq!(config.resources.priority, None);
    assert_eq!(ExperimentConfig::from_json(&config.to_json()).unwrap(), config);
    defaults.checkpoint_storage = None;
    let error = submitted.complete(&defaults).unwrap_err();
    assert!(error.to_string().contains("<config>.checkpoint_storage: is required"), "{error}");
}

#[test]
fn placement_is_known_before_completion() {
    let submitted = Submitted::parse(
        "workspace: w\nproject: p\nresources: {slots_per_trial: 0, resource_pool: cpu, is_single_node: true}",
    )
    .unwrap();
    assert_eq!(
        submitted.placement(),
        Placement {
            workspace: Some("w".into()),
            project: Some("p".into()),
            resource_pool: Some("cpu".into()),
            resource_pools: vec![],
            slots_per_trial: 0,
            is_single_node: true,
        }
    );
    assert_eq!(Submitted::parse("{}").unwrap().placement().slots_per_trial, 1);
}

#[test]
fn trial_classes_are_told_from_command_lines() {
    for (text, expected) in [
        ("model_def:MNistTrial", true),
        ("a.b.c:Outer.Inner", true),
        (":Trial", true),
        ("./run.sh", false),
        ("python3 -m determined.launch.torch_distributed --trial m:T", false),
        ("m:", false),
        ("a:b:c", false),
        ("/x:y", false),
    ] {
        assert_eq!(is_trial_class(text), expected, "{text}");
    }
}

#[test]
fn secrets_are_hidden_in_what_is_shown() {
    let text = with(
        "data: {secrets: {a: x, deep: {b: 5}}, open: y}
environment: {registry_auth: {username: u, password: p, serveraddress: s}}
checkpoint_storage: {type: s3, bucket: b, access_key: k, secret_key: s}",
    );
    let shown = complete(&text).masked_json();
    assert_eq!(shown["data"], json!({"secrets": {"a": "********", "deep": {"b": "********"}}, "open": "y"}));
    assert_eq!(shown["environment"]["registry_auth"]["password"], "********");
    assert_eq!(shown["environment"]["registry_auth"]["username"], "u");
    assert_eq!(shown["checkpoint_storage"]["secret_key"], "********");
    assert_eq!(shown["checkpoint_storage"]["bucket"], "b");
    let debug = format!("{:?}", complete(&text));
    assert!(!debug.contains("secret_key"), "{debug}");
}

#[test]
fn overrides_change_the_document() {
    for (name, text, overrides, expected) in [
        ("a number", "a: 1", vec!["b=4"], json!({"a": 1, "b": 4})),
        ("a path", "searcher: {name: x}", vec!["searcher.max_trials=3"], json!({"searcher": {"name": "x", "max_trials": 3}})),
        ("the first equals sign splits", "", vec!["entrypoint=run --x=1"], json!({"entrypoint": "run --x=1"})),
        ("scalars", "", vec!["t=true", "n=null", "s=word", "f=1e-3", "q='5'"],
         json!({"t": true, "n": null, "s": "word", "f": 0.001, "q": "5"})),
        ("a list with commas", "", vec!["l=1,b, c"], json!({"l": [1, "b", "c"]})),
        ("flow values", "", vec!["l=[1, {a: 2}]", "m={a: {b: 1}}"], json!({"l": [1, {"a": 2}], "m": {"a": {"b": 1}}})),
        ("maps merge, lists replace", "m: {x: 1, l: [1]}", vec!["m={y: 2, l: [2]}"], json!({"m": {"x": 1, "y": 2, "l": [2]}})),
        ("a null on the way becomes a map", "a: null", vec!["a.b=1"], json!({"a": {"b": 1}})),
        ("a mount becomes a list", "", vec!["bind_mounts={host_path: /a, container_path: b}"],
         json!({"bind_mounts": [{"host_path": "/a", "container_path": "b"}]})),
        ("later wins", "", vec!["a=1", "a=2"], json!({"a": 2})),
        ("text with a colon stays text", "", vec!["description=a: b # c"], json!({"description": "a: b # c"})),
    ] {
        let out = apply_overrides(text, &overrides).unwrap();
        assert_eq!(yaml::parse(&out).unwrap().to_value(), expected, "{name}");
    }
    assert_eq!(apply_overrides::<&str>("a: 1 # kept\n", &[]).unwrap(), "a: 1 # kept\n");
    for wrong in ["novalue", "=1", "a..b=1", "a=[1", "a=.inf"] {
        assert!(apply_overrides("", &[wrong]).is_err(), "{wrong}");
    }
    assert!(apply_overrides("[1]", &["a=1"]).is_err());
}

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
                let _ = submitted.placement();
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
