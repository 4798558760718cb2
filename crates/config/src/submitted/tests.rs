use serde_json::json;

use super::*;
use crate::container::TaskContainerDefaults;
use crate::experiment::*;
use crate::hyperparameters::{AdaptiveMode, Hyperparameter, SearchMethod};
use crate::overrides::apply_overrides;

mod errors;
mod layers;
mod properties;
mod task;

const MINIMAL: &str = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n";

fn storage() -> Value {
    json!({"type": "shared_fs", "host_path": "/tmp", "storage_path": "checkpoints"})
}

fn complete_with(
    text: &str,
    tcd: &TaskContainerDefaults,
) -> Result<ExperimentConfig, ConfigErrors> {
    SubmittedDocument::parse(Experiment, text)?.complete(&CompletionDefaults {
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

/// The errors of a document, whichever step finds them. Columns have tests of their own.
fn failure(text: &str) -> String {
    match complete_with(text, &TaskContainerDefaults::default()) {
        Ok(_) => panic!("accepted: {text}"),
        Err(mut errors) => {
            errors.0.iter_mut().for_each(|error| error.column = None);
            errors.to_string()
        }
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
fn a_single_search_draws_from_ranges_and_warns_of_it() {
    let text = with(
        "hyperparameters:\n  lr: {type: double, minval: 0.1, maxval: 0.2}\n  net:\n    kind: {type: categorical, vals: [a, b]}\n    \
         layers: 3",
    );
    complete(&text);
    let submitted = SubmittedDocument::parse(Experiment, &text).unwrap();
    let warned: Vec<String> = submitted
        .under(&[])
        .drawn()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(
        warned[0].contains("hyperparameters.lr: is no constant"),
        "{warned:?}"
    );
    assert!(
        warned[1].contains("hyperparameters.net.kind: is no constant"),
        "{warned:?}"
    );
    // The searcher may come from a template.
    let over = SubmittedDocument::parse(
        Experiment,
        "hyperparameters: {lr: {type: int, minval: 1, maxval: 9}}",
    )
    .unwrap();
    assert_eq!(over.under(&[]).drawn(), []);
    let whole = over.over(SubmittedDocument::parse(Experiment, MINIMAL).unwrap());
    assert_eq!(whole.under(&[]).drawn().len(), 1);
    let random = searching(
        "  name: random\n  max_trials: 2\nhyperparameters: {lr: {type: int, minval: 1, maxval: 9}}",
    );
    assert_eq!(
        SubmittedDocument::parse(Experiment, &random)
            .unwrap()
            .under(&[])
            .drawn(),
        []
    );
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
            "silence_timeout": null,
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
    assert_eq!(
        SubmittedDocument::parse(Experiment, MINIMAL)
            .unwrap()
            .warnings,
        Vec::new()
    );
}

#[test]
fn every_default_of_the_schema_is_json() {
    crate::schema::assert_defaults_are_json(&schema::EXPERIMENT);
}

/// A configuration that has every key.
const FULL: &str = r#"
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

#[test]
fn every_key_is_kept() {
    let config = complete(FULL);
    assert_eq!(config.labels, ["a", "b"]);
    assert_eq!(
        config.entrypoint,
        Some(Entrypoint::Argv(vec!["python3".into(), "train.py".into()]))
    );
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
    assert_eq!(
        config.environment.image.cpu,
        "determinedai/pytorch-ngc-dev:0736b6d"
    );
    assert_eq!(config.environment.environment_variables.cuda, ["B=2"]);
    assert_eq!(
        config
            .environment
            .registry_auth
            .as_ref()
            .unwrap()
            .serveraddress
            .as_deref(),
        Some("r.example")
    );
    assert_eq!(
        config.environment.pod_spec,
        Some(json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}))
    );
    assert_eq!(
        config.checkpoint_storage.location,
        crate::storage::StorageLocation::Directory {
            container_path: "/ckpt".into()
        }
    );
    assert_eq!(
        config.hyperparameters["k"],
        Hyperparameter::Const(Value::Null)
    );
    assert_eq!(config.data["nested"], json!({"keep": null}));
    // The switched-off policy stays as an entry without pattern; the other built-in one is added.
    let names: Vec<_> = config
        .log_policies
        .iter()
        .map(|policy| policy.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["disk", "CUDA OOM", "ECC Error"]);
    assert_eq!(config.log_policies[1].pattern, None);
    assert_eq!(
        config.to_json()["hyperparameters"]["opt"]["none"],
        json!({"type": "const", "val": null})
    );
    assert_eq!(config.to_json()["hyperparameters"]["lr"]["base"], json!(10));
    assert_eq!(
        ExperimentConfig::from_json(&config.to_json()).unwrap(),
        config
    );
}

/// The complete configuration, whose text gives this warning.
fn warned(text: &str, expected: &str) -> ExperimentConfig {
    let submitted = SubmittedDocument::parse(Experiment, text).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        submitted
            .warnings
            .iter()
            .any(|warning| warning.to_string().contains(expected)),
        "{text}: {:?} lacks {expected}",
        submitted.warnings
    );
    complete(text)
}

#[test]
fn a_range_without_a_type_is_a_group_of_constants_with_a_warning() {
    for range in [
        "{typ: int, minval: 0, maxval: 1}",
        "{minval: 0, maxval: 1, count: 3}",
        "{vals: [1, 2]}",
    ] {
        let text = with(&format!("hyperparameters:\n  lr: {range}"));
        warned(
            &text,
            "hyperparameters.lr: is a group of constants although it has",
        );
    }
    let group = with("hyperparameters:\n  net: {layers: 3, width: 8}");
    let submitted = SubmittedDocument::parse(Experiment, &group).unwrap();
    assert_eq!(submitted.warnings, []);
}

#[test]
fn older_forms_of_a_search_are_translated_with_a_warning() {
    let config = warned(
        &searching("  name: adaptive_asha\n  max_trials: 4\n  max_length: {epochs: 9}"),
        "searcher.max_length: is read as \"time_metric: epochs\" and \"max_time\"",
    );
    let SearchMethod::AdaptiveAsha {
        time_metric,
        max_time,
        ..
    } = &config.searcher.method
    else {
        panic!("adaptive")
    };
    assert_eq!((time_metric.as_str(), *max_time), ("epochs", 9));
    assert_eq!(config.to_json()["searcher"].get("max_length"), None);

    let config = warned(
        &searching(
            "  name: async_halving\n  num_rungs: 2\n  max_trials: 4\n  time_metric: t\n  max_length: 7",
        ),
        "is read as \"max_time\"",
    );
    assert!(matches!(
        config.searcher.method,
        SearchMethod::AsyncHalving { max_time: 7, .. }
    ));

    let config = warned(
        &searching(
            "  name: async_halving\n  num_rungs: 2\n  max_trials: 4\n  time_metric: t\n  max_time: 3\n  max_length: {batches: 7}",
        ),
        "is ignored beside \"max_time\"",
    );
    assert!(matches!(
        config.searcher.method,
        SearchMethod::AsyncHalving { max_time: 3, .. }
    ));

    let config = warned(
        &searching("  name: single\n  max_length: {batches: 500}"),
        "is deprecated",
    );
    assert_eq!(
        config.searcher.max_length,
        Some(MaxLength::Length(Length::Batches(500)))
    );
    assert_eq!(
        config.to_json()["searcher"]["max_length"],
        json!({"batches": 500})
    );

    let config = warned(
        &searching("  name: random\n  max_trials: 2\n  max_length: 12"),
        "is deprecated",
    );
    assert_eq!(config.searcher.max_length, Some(MaxLength::Unitless(12)));

    let config = warned(
        &format!(
            "batches_per_step: 10\n{}",
            searching("  name: single\n  max_steps: 3")
        ),
        "is read as \"max_length: {batches: 30}\"",
    );
    assert_eq!(
        config.searcher.max_length,
        Some(MaxLength::Length(Length::Batches(30)))
    );

    warned(
        &format!(
            "batches_per_step: 10\n{}",
            searching("  name: single\n  max_steps: 3\n  max_length: {batches: 7}")
        ),
        "searcher.max_steps: is ignored beside \"max_length\"",
    );
    complete(&format!(
        "batches_per_step: null\n{}",
        searching("  name: single")
    ));
}

#[test]
fn older_forms_of_other_keys_are_translated_with_a_warning() {
    let config = warned(
        &with("environment: {image: {gpu: g, cpu: c}}"),
        "environment.image.gpu: is the old name of \"cuda\"",
    );
    assert_eq!(config.environment.image.cuda, "g");
    warned(
        &with("resources: {agent_label: x}"),
        "resources.agent_label: is ignored; use resource pools",
    );
    warned(
        &with("security: {kerberos: {config_file: x}}"),
        "security: is ignored",
    );
    warned(
        "entrypoint: model:Trial\nsearcher: {name: single, metric: x}",
        "names a trial class",
    );
    warned(
        &with("scheduling_unit: 10"),
        "scheduling_unit: is deprecated",
    );
    warned(
        "entrypoint: model:Trial\nsearcher: {name: single, metric: x}\nresources: {slots_per_trial: 2}",
        "resources.slots_per_trial: is above 1 without \"hyperparameters.global_batch_size\"",
    );
    warned(
        &with("reproducibility: {experiment_seed: 3000000000}"),
        "is 2147483648 or more",
    );

    assert_eq!(
        complete(&with("labels: {x: true, y: true}")).labels,
        ["x", "y"]
    );
    let config = complete(&with(
        "log_policies: [{pattern: x, action: {type: exclude_node}}]",
    ));
    assert_eq!(
        config.log_policies[0].action,
        Some(crate::container::LogAction::ExcludeNode)
    );
    assert_eq!(
        complete(&with("version: 0\ninternal: null\nlabels: null")).labels,
        Vec::<String>::new()
    );
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
    let submitted = SubmittedDocument::parse(Experiment, text).unwrap();
    assert_eq!(submitted.warnings.len(), 1, "{:?}", submitted.warnings);
    let config = complete(text);
    assert_eq!(config.hyperparameters.len(), 5);
    assert_eq!(config.data["url"], "https://storage.example/mnist.tar.gz");
    assert_eq!(
        config.environment.environment_variables.cpu,
        ["A=A", "B=B", "C=C"]
    );
}

#[test]
fn what_nothing_acts_on_yet_is_reported() {
    for (text, path) in [
        (
            "checkpoint_storage: {type: s3, bucket: b}",
            "checkpoint_storage.type: \"s3\"",
        ),
        (
            "checkpoint_storage: {type: gcs, bucket: b}",
            "checkpoint_storage.type: \"gcs\"",
        ),
        (
            "checkpoint_storage: {type: azure, container: b, account_url: u}",
            "checkpoint_storage.type: \"azure\"",
        ),
        ("integrations: {webhooks: {exclude: true}}", "integrations:"),
        ("slurm: {slots_per_node: 1}", "slurm:"),
        ("pbs: {slots_per_node: 1}", "pbs:"),
    ] {
        let warnings = SubmittedDocument::parse(Experiment, &with(text))
            .unwrap()
            .warnings;
        assert!(
            warnings
                .iter()
                .map(ToString::to_string)
                .any(|w| w.starts_with(path)
                    && w.ends_with("is accepted and kept but not acted on yet")),
            "{text}: {warnings:?}"
        );
        complete(&with(text));
    }
}

#[test]
fn trial_classes_are_distinguished_from_command_lines() {
    for (text, expected) in [
        ("model_def:MNistTrial", true),
        ("a.b.c:Outer.Inner", true),
        (":Trial", true),
        ("./run.sh", false),
        (
            "python3 -m determined.launch.torch_distributed --trial m:T",
            false,
        ),
        ("m:", false),
        ("a:b:c", false),
        ("/x:y", false),
    ] {
        assert_eq!(crate::experiment::is_trial_class(text), expected, "{text}");
    }
}

#[test]
fn secrets_are_hidden_in_what_is_shown() {
    let text = with(
        "data: {secrets: {a: x, deep: {b: 5}}, open: y}
environment: {registry_auth: {username: u, password: p, serveraddress: s}}
checkpoint_storage: {type: s3, bucket: b, access_key: k, secret_key: s, endpoint_url: 'https://u:p@h/x'}
hyperparameters: {at: 'http://u:p@h'}",
    );
    let shown = complete(&text).masked_json();
    assert_eq!(
        shown["checkpoint_storage"]["endpoint_url"],
        "https://********@h/x"
    );
    assert_eq!(shown["hyperparameters"]["at"]["val"], "http://u:p@h");
    assert_eq!(
        shown["data"],
        json!({"secrets": {"a": "********", "deep": {"b": "********"}}, "open": "y"})
    );
    assert_eq!(
        shown["environment"]["registry_auth"]["password"],
        "********"
    );
    assert_eq!(shown["environment"]["registry_auth"]["username"], "u");
    assert_eq!(shown["checkpoint_storage"]["secret_key"], "********");
    assert_eq!(shown["checkpoint_storage"]["bucket"], "b");
    let whole = complete(&text).to_json();
    for (name, member) in whole.as_object().unwrap() {
        let expected = &shown[name];
        assert_eq!(
            &mask_member(name, member, mask_document),
            expected,
            "{name}"
        );
        assert!(
            may_hold_secrets(name, &member.to_string()) || member == expected,
            "{name}"
        );
    }
    for name in ["data", "environment", "checkpoint_storage"] {
        assert!(may_hold_secrets(name, ""), "{name}");
    }
    assert!(!may_hold_secrets("hyperparameters", "{\"at\": \"a://b\"}"));
    let debug = format!("{:?}", complete(&text));
    assert_eq!(debug, format!("ExperimentConfig {shown}"));
    let debug = format!("{:?}", complete(&text).checkpoint_storage);
    assert!(!debug.contains("secret_key"), "{debug}");
}

#[test]
fn overrides_change_the_document() {
    for (name, text, overrides, expected) in [
        ("a number", "a: 1", vec!["b=4"], json!({"a": 1, "b": 4})),
        (
            "a path",
            "searcher: {name: x}",
            vec!["searcher.max_trials=3"],
            json!({"searcher": {"name": "x", "max_trials": 3}}),
        ),
        (
            "the first equals sign splits",
            "",
            vec!["entrypoint=run --x=1"],
            json!({"entrypoint": "run --x=1"}),
        ),
        (
            "scalars",
            "",
            vec!["t=true", "n=null", "s=word", "f=1e-3", "q='5'"],
            json!({"t": true, "n": null, "s": "word", "f": 0.001, "q": "5"}),
        ),
        (
            "a list with commas",
            "",
            vec!["l=1,b, c"],
            json!({"l": [1, "b", "c"]}),
        ),
        (
            "flow values",
            "",
            vec!["l=[1, {a: 2}]", "m={a: {b: 1}}"],
            json!({"l": [1, {"a": 2}], "m": {"a": {"b": 1}}}),
        ),
        (
            "maps merge, lists replace",
            "m: {x: 1, l: [1]}",
            vec!["m={y: 2, l: [2]}"],
            json!({"m": {"x": 1, "y": 2, "l": [2]}}),
        ),
        (
            "a null on the way becomes a map",
            "a: null",
            vec!["a.b=1"],
            json!({"a": {"b": 1}}),
        ),
        (
            "a mount becomes a list",
            "",
            vec!["bind_mounts={host_path: /a, container_path: b}"],
            json!({"bind_mounts": [{"host_path": "/a", "container_path": "b"}]}),
        ),
        ("later wins", "", vec!["a=1", "a=2"], json!({"a": 2})),
        (
            "text with a colon stays text",
            "",
            vec!["description=a: b # c"],
            json!({"description": "a: b # c"}),
        ),
    ] {
        let out = apply_overrides(text, &overrides).unwrap();
        assert_eq!(
            crate::yaml::parse(&out).unwrap().to_value(),
            expected,
            "{name}"
        );
    }
    assert_eq!(
        apply_overrides::<&str>("a: 1 # kept\n", &[]).unwrap(),
        "a: 1 # kept\n"
    );
    for wrong in ["novalue", "=1", "a..b=1", "a=[1", "a=.inf"] {
        assert!(apply_overrides("", &[wrong]).is_err(), "{wrong}");
    }
    assert!(apply_overrides("[1]", &["a=1"]).is_err());
}
