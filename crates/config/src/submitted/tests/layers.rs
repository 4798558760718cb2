//! How layers come together.

use super::*;
use crate::origin::Layer;
use crate::policies::{Policies, Workload};

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn stronger_layers_merge_over_weaker_ones() {
    let merged = |strong: &str, weak: &str| {
        SubmittedDocument::parse(Experiment, strong)
            .unwrap()
            .over(SubmittedDocument::parse(Experiment, weak).unwrap())
            .to_value()
    };
    for (name, strong, weak, expected) in [
        (
            "storage type from the stronger",
            "checkpoint_storage: {type: gcs, bucket: b, save_experiment_best: 3}",
            "checkpoint_storage: {save_experiment_best: 10, save_trial_best: 10, save_trial_latest: 10}",
            json!({"checkpoint_storage": {"type": "gcs", "bucket": "b", "save_experiment_best": 3, "save_trial_best": 10, "save_trial_latest": 10}}),
        ),
        (
            "another type is dropped",
            "checkpoint_storage: {type: shared_fs, host_path: /tmp, save_trial_best: 1}",
            "checkpoint_storage: {type: s3, bucket: x, save_trial_latest: 10}",
            json!({"checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp", "save_trial_best": 1, "save_trial_latest": 10}}),
        ),
        (
            "type adopted from the weaker",
            "checkpoint_storage: {save_trial_best: 2}",
            "checkpoint_storage: {type: s3, bucket: x}",
            json!({"checkpoint_storage": {"type": "s3", "bucket": "x", "save_trial_best": 2}}),
        ),
        (
            "searchers",
            "searcher: {name: single, metric: loss, smaller_is_better: true}",
            "searcher: {name: random, max_trials: 9, smaller_is_better: false, source_checkpoint_uuid: u}",
            json!({"searcher": {"name": "single", "metric": "loss", "smaller_is_better": true, "source_checkpoint_uuid": "u"}}),
        ),
        (
            "azure credentials travel together",
            "checkpoint_storage: {type: azure, account_url: u}",
            "checkpoint_storage: {type: azure, container: c, connection_string: s}",
            json!({"checkpoint_storage": {"type": "azure", "container": "c", "account_url": "u"}}),
        ),
        (
            "mounts by container path",
            "bind_mounts: [{host_path: /a, container_path: x}]",
            "bind_mounts: [{host_path: /b, container_path: x}, {host_path: /c, container_path: y}]",
            json!({"bind_mounts": [{"host_path": "/a", "container_path": "x"}, {"host_path": "/c", "container_path": "y"}]}),
        ),
        (
            "labels are a set",
            "labels: [b, a]",
            "labels: [c, a]",
            json!({"labels": ["a", "b", "c"]}),
        ),
        (
            "a null does not erase",
            "description: null",
            "description: d",
            json!({"description": "d"}),
        ),
        (
            "spaces replace whole leaves",
            "hyperparameters: {x: {type: int, minval: 1, maxval: 2}, g: {a: 1}, n: null}",
            "hyperparameters: {x: {type: int, minval: 0, maxval: 9, count: 3}, g: {b: 2}, n: 5}",
            json!({"hyperparameters": {"x": {"type": "int", "minval": 1, "maxval": 2}, "g": {"a": 1, "b": 2}, "n": null}}),
        ),
        (
            "entrypoint replaces",
            "entrypoint: [a]",
            "entrypoint: b c",
            json!({"entrypoint": ["a"]}),
        ),
        (
            "data maps merge, lists append",
            "data: {a: {x: 1}, l: [2], t: s}",
            "data: {a: {y: 2}, l: [1], t: {z: 1}}",
            json!({"data": {"a": {"x": 1, "y": 2}, "l": [1, 2], "t": "s"}}),
        ),
        (
            "capabilities unite",
            "environment: {add_capabilities: [B]}",
            "environment: {add_capabilities: [A, B]}",
            json!({"environment": {"add_capabilities": ["A", "B"]}}),
        ),
        (
            "registry credentials do not mix",
            "environment: {registry_auth: {username: a}}",
            "environment: {registry_auth: {password: p}}",
            json!({"environment": {"registry_auth": {"username": "a"}}}),
        ),
        (
            "log policies by name",
            "log_policies: [{name: a}]",
            "log_policies: [{name: a, pattern: x}, {name: b, pattern: y}]",
            json!({"log_policies": [{"name": "a"}, {"name": "b", "pattern": "y"}]}),
        ),
        (
            "arguments: the stronger come last",
            "slurm: {sbatch_args: [s]}",
            "slurm: {sbatch_args: [w]}",
            json!({"slurm": {"sbatch_args": ["w", "s"]}}),
        ),
        (
            "proxy ports by number",
            "environment: {proxy_ports: [{proxy_port: 1}]}",
            "environment: {proxy_ports: [{proxy_port: 1, proxy_tcp: true}, {proxy_port: 2}]}",
            json!({"environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}]}}),
        ),
        (
            "mismatched types: the stronger",
            "data: {a: 1}",
            "data: {a: [1]}",
            json!({"data": {"a": 1}}),
        ),
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
    let template = SubmittedDocument::read_from(
        Experiment,
        Source::layer(Layer::Template("t".into())),
        "environment: {environment_variables: [X=2, Y=2]}",
    )
    .unwrap();
    let document = SubmittedDocument::parse(
        Experiment,
        &with("environment: {environment_variables: [X=3]}"),
    )
    .unwrap();
    let config = document.over(template).complete(&defaults).unwrap();
    assert_eq!(
        config.environment.environment_variables.cpu,
        ["X=1", "X=2", "Y=2", "X=3"]
    );
    assert_eq!(
        config.environment.environment_variables.rocm,
        ["X=2", "Y=2", "X=3"]
    );
    assert_eq!(config.environment.image.cpu, "cluster/cpu");
    assert_eq!(
        config.environment.image.cuda,
        "determinedai/pytorch-ngc-dev:0736b6d"
    );
    assert!(config.environment.force_pull_image);
    assert_eq!(
        (config.resources.shm_size, config.preemption_timeout),
        (5, 9)
    );
    assert_eq!(config.bind_mounts[0].host_path, "/c");
    assert_eq!(config.log_policies[0].pattern.as_deref(), Some("mine"));
    assert_eq!(config.log_policies.len(), 2);
    assert_eq!(
        config.environment.pod_spec,
        Some(json!({"spec": {"volumes": [{"name": "g", "emptyDir": {}}]}}))
    );
    let error = SubmittedDocument::read_from(
        Experiment,
        Source::layer(Layer::Template("t".into())),
        "a: 1",
    )
    .and_then(SubmittedDocument::checked)
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("template \"t\":1:1: a: is not a known key"),
        "{error}"
    );
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
    let submitted =
        SubmittedDocument::parse(Experiment, "searcher: {name: single, metric: x}").unwrap();
    let config = submitted.clone().complete(&defaults).unwrap();
    assert_eq!(config.entrypoint, None);
    assert_eq!(config.resources.priority, None);
    assert_eq!(
        ExperimentConfig::from_json(&config.to_json()).unwrap(),
        config
    );
    defaults.checkpoint_storage = None;
    let error = submitted.complete(&defaults).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("<config>.checkpoint_storage: is required"),
        "{error}"
    );
}

#[test]
fn placement_is_known_before_completion() {
    let submitted = SubmittedDocument::parse(Experiment,
        "workspace: w\nproject: p\nresources: {slots_per_trial: 0, resource_pool: cpu, is_single_node: true}",
    )
    .unwrap();
    assert_eq!(
        submitted.under(&[]).placement(),
        Placement {
            workspace: Some("w".into()),
            project: Some("p".into()),
            resource_pool: Some("cpu".into()),
            resource_pools: vec![],
            names_image: false,
            priority_class: None,
        }
    );
    let size = |slots, is_single_node| {
        Some(WorkSize {
            slots,
            is_single_node,
            key: SLOTS_OF_TRIAL,
            may_spread: true,
        })
    };
    assert_eq!(submitted.under(&[]).size(), size(0, true));
    assert_eq!(submitted.home(), (Some("w".into()), Some("p".into())));
    for (text, class) in [
        (
            "{environment: {pod_spec: {spec: {priorityClassName: a}}}}",
            Some("a"),
        ),
        (
            "{environment: {pod_spec: {spec: {priority_class_name: a}}}}",
            Some("a"),
        ),
        (
            "{environment: {pod_spec: {spec: {priorityClassName: ''}}}}",
            None,
        ),
        (
            "{environment: {pod_spec: {spec: {priorityClassName: a}}}, resources: {priority: 7}}",
            None,
        ),
        ("{}", None),
    ] {
        let submitted = SubmittedDocument::parse(Experiment, text).unwrap();
        let placement = submitted.under(&[]).placement();
        assert_eq!(placement.priority_class.as_deref(), class, "{text}");
    }
    let silent = SubmittedDocument::parse(Experiment, "{}").unwrap();
    assert_eq!(silent.home(), (None, None));
    assert_eq!(silent.under(&[]).size(), size(1, false));
    let policies = Policies::parse(
        Workload::Experiment,
        "cluster",
        None,
        "invariant_config: {resources: {slots_per_trial: 3}}",
    )
    .unwrap();
    assert_eq!(submitted.under(&[policies]).size(), size(3, true));
    for (fixed, one, several) in [
        ("resource_pool: gpu", Some("gpu"), vec![]),
        ("resource_pools: [gpu, spare]", None, vec!["gpu", "spare"]),
        ("resource_pools: []", Some("cpu"), vec![]),
    ] {
        let text = format!("invariant_config: {{resources: {{{fixed}}}}}");
        let policies = [Policies::parse(Workload::Experiment, "cluster", None, &text).unwrap()];
        let placement = submitted.under(&policies).placement();
        assert_eq!(placement.resource_pool.as_deref(), one, "{fixed}");
        assert_eq!(placement.resource_pools, several, "{fixed}");
    }
    for unreadable in ["-3", "many", "99999999999"] {
        let text = format!("resources: {{slots_per_trial: {unreadable}}}");
        assert_eq!(
            SubmittedDocument::read(Experiment, &text)
                .unwrap()
                .under(&[])
                .size(),
            None
        );
    }
}
