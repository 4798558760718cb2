//! What is refused, and with which words.

use super::*;
use crate::container::compile_patterns;

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn errors_name_their_path_line_and_remedy() {
    for (name, text, expected) in [
        (
            "grid without count",
            searching(
                "  name: grid\nhyperparameters:\n  a:\n    lr: {type: double, minval: 0, maxval: 1}",
            ),
            "<config>.hyperparameters.a.lr: grid search needs a \"count\" here (line 7); hint: add the number of points, \"count\"",
        ),
        (
            "two warm starts",
            searching("  name: single\n  source_trial_id: 1\n  source_checkpoint_uuid: x"),
            "<config>.searcher.source_checkpoint_uuid: cannot be combined with \"source_trial_id\"; choose one (line 6)",
        ),
        (
            "more slots than allowed",
            with("resources: {slots_per_trial: 4, max_slots: 2}"),
            "<config>.resources.slots_per_trial: is 4, more than the 2 of \"max_slots\": no trial could ever start (line 3)",
        ),
        (
            "slots of a task",
            with("resources: {slots: 4}"),
            "<config>.resources.slots: is a key of notebooks, shells and commands, not of experiments (line 3); hint: use \"resources.slots_per_trial\"",
        ),
        (
            "a typing error",
            with("resoruces: {}"),
            "<config>.resoruces: is not a known key (line 3); hint: did you mean \"resources\"?",
        ),
        (
            "slots at top level",
            with("slots: 1"),
            "<config>.slots: is not a known key (line 3); hint: did you mean \"resources.slots_per_trial\"?",
        ),
        (
            "image at top level",
            with("image: x"),
            "<config>.image: is not a known key (line 3); hint: did you mean \"environment.image\"?",
        ),
        (
            "registry_auth at top level",
            with("registry_auth: {}"),
            "hint: did you mean \"environment.registry_auth\"?",
        ),
        (
            "pod_spec at top level",
            with("pod_spec: {}"),
            "hint: did you mean \"environment.pod_spec\"?",
        ),
        (
            "variables at top level",
            with("environment_variables: []"),
            "hint: did you mean \"environment.environment_variables\"?",
        ),
        (
            "priority at top level",
            with("priority: 1"),
            "hint: did you mean \"resources.priority\"?",
        ),
        (
            "pool at top level",
            with("resource_pool: x"),
            "hint: did you mean \"resources.resource_pool\"?",
        ),
        (
            "a leaf of another section",
            with("max_trials: 3"),
            "hint: did you mean \"searcher.max_trials\"?",
        ),
        (
            "a key of another searcher",
            searching("  name: single\n  max_trials: 2"),
            "<config>.searcher.max_trials: is not a known key for name \"single\" (line 5); hint: it belongs to name \"random\" or \"async_halving\" or \"adaptive_asha\"",
        ),
        (
            "no entrypoint",
            "searcher: {name: single, metric: x}".into(),
            "<config>.entrypoint: is required: the command that trains; hint: for example \"python3 train.py\"",
        ),
        (
            "no searcher",
            "entrypoint: x".into(),
            "<config>.searcher: is required (line 1)",
        ),
        (
            "no metric",
            "entrypoint: x\nsearcher: {name: single}".into(),
            "<config>.searcher.metric: is required (line 2)",
        ),
        (
            "no searcher name",
            "entrypoint: x\nsearcher: {metric: x}".into(),
            "<config>.searcher.name: is required: one of \"single\", \"random\", \"grid\", \"async_halving\", \"adaptive_asha\" (line 2)",
        ),
        (
            "unknown searcher",
            searching("  name: bayes"),
            "<config>.searcher.name: must be one of \"single\", \"random\", \"grid\", \"async_halving\", \"adaptive_asha\", not \"bayes\" (line 4)",
        ),
        (
            "removed searcher",
            searching("  name: adaptive_simple\n  max_trials: 3"),
            "<config>.searcher.name: \"adaptive_simple\" was removed (line 4); hint: use \"adaptive_asha\" or \"random\"",
        ),
        (
            "random without trials",
            searching("  name: random"),
            "<config>.searcher.max_trials: is required for name \"random\"",
        ),
        (
            "no trials",
            searching("  name: random\n  max_trials: 0"),
            "<config>.searcher.max_trials: must be at least 1, not 0 (line 5)",
        ),
        (
            "ASHA without time",
            searching("  name: adaptive_asha\n  max_trials: 4"),
            "<config>.searcher.time_metric: is required for name \"adaptive_asha\"",
        ),
        (
            "ASHA with a bare length",
            searching("  name: adaptive_asha\n  max_trials: 4\n  max_length: 10"),
            "<config>.searcher.max_length: has no unit; ASHA needs \"time_metric\" and \"max_time\" (line 6)",
        ),
        (
            "divisor of one",
            searching("  name: async_halving\n  divisor: 1"),
            "<config>.searcher.divisor: must be above 1, not 1 (line 5)",
        ),
        (
            "a length of two units",
            with("min_validation_period: {batches: 1, epochs: 1}"),
            "<config>.min_validation_period: must have exactly one of \"batches\", \"records\", \"epochs\" (line 3)",
        ),
        (
            "a length of no unit",
            with("min_checkpoint_period: {}"),
            "must have exactly one of",
        ),
        (
            "a negative length",
            with("min_checkpoint_period: {batches: -1}"),
            "<config>.min_checkpoint_period.batches: must be at least 0, not -1",
        ),
        (
            "a training length of nothing",
            searching("  name: single\n  max_length: {batches: 0}"),
            "<config>.searcher.max_length.batches: must be at least 1",
        ),
        (
            "a boolean as text",
            with("debug: \"true\""),
            "<config>.debug: must be true or false, not the string \"true\" (line 3); hint: write true without quotes",
        ),
        ("an old boolean", with("debug: yes"), "hint: write true"),
        (
            "a fraction",
            with("max_restarts: 1.5"),
            "<config>.max_restarts: must be an integer, not 1.5 (line 3)",
        ),
        (
            "an integer of more than 64 bits",
            with("max_restarts: 1e23"),
            "<config>.max_restarts: must be at most 4294967295, not 1e+23 (line 3)",
        ),
        (
            "a negative integer of more than 64 bits",
            with("max_restarts: -1e23"),
            "<config>.max_restarts: must be at least 0, not -1e+23 (line 3)",
        ),
        (
            "a misspelt word",
            with("checkpoint_policy: bets"),
            "<config>.checkpoint_policy: must be one of \"best\", \"all\", \"none\", not \"bets\" (line 3); hint: did you mean \"best\"?",
        ),
        (
            "version 1",
            with("version: 1"),
            "<config>.version: is not a supported version; only 0 exists (line 3)",
        ),
        (
            "internal",
            with("internal: {native: 1}"),
            "<config>.internal: was removed (line 3); hint: remove it",
        ),
        (
            "hdfs",
            with("checkpoint_storage: {type: hdfs, hdfs_url: x}"),
            "\"hdfs\" was removed (line 3); hint: mount it and use \"shared_fs\"",
        ),
        (
            "old packages",
            with("environment: {runtime_packages: [x]}"),
            "<config>.environment.runtime_packages: was removed",
        ),
        (
            "steps without their size",
            searching("  name: single\n  max_steps: 5"),
            "<config>.searcher.max_steps: was removed",
        ),
        (
            "step budget",
            searching("  name: single\n  step_budget: 5"),
            "<config>.searcher.step_budget: was removed",
        ),
        (
            "batches_per_step alone",
            "entrypoint: x\nbatches_per_step: 5".into(),
            "<config>.batches_per_step: was removed",
        ),
        (
            "batches_per_step beside a searcher without steps",
            format!("batches_per_step: 5\n{}", searching("  name: single")),
            "<config>.batches_per_step: was removed (line 1); hint: remove it; training code decides how long it trains, and the searcher, where it halves, with \"max_time\"",
        ),
        (
            "relative host path",
            with("bind_mounts: [{host_path: x, container_path: y}]"),
            "<config>.bind_mounts[0].host_path: must be an absolute path, not \"x\" (line 3)",
        ),
        (
            "mount over the work directory",
            with("bind_mounts: [{host_path: /x, container_path: .}]"),
            "<config>.bind_mounts[0].container_path: must be a path below",
        ),
        (
            "mount without a target",
            with("bind_mounts: [{host_path: /x}]"),
            "<config>.bind_mounts[0].container_path: is required (line 3)",
        ),
        (
            "unknown propagation",
            with("bind_mounts: [{host_path: /x, container_path: y, propagation: up}]"),
            "propagation: must be one of",
        ),
        (
            "bad device",
            with("resources: {devices: [\"/dev/a\"]}"),
            "<config>.resources.devices[0]: must be \"/host:/container[:mode]\", not \"/dev/a\" (line 3)",
        ),
        (
            "bad device mode",
            with("resources: {devices: [\"/dev/a:/dev/b:x\"]}"),
            "<config>.resources.devices[0].mode: must be made of",
        ),
        (
            "bad size",
            with("resources: {shm_size: giga}"),
            "<config>.resources.shm_size: \"giga\" is not a size",
        ),
        (
            "priority out of range",
            with("resources: {priority: 100}"),
            "<config>.resources.priority: must be at most 99, not 100",
        ),
        (
            "weight of nothing",
            with("resources: {weight: 0}"),
            "<config>.resources.weight: must be above 0, not 0",
        ),
        (
            "too short a silence",
            with("silence_timeout: 999ms"),
            "<config>.silence_timeout: must be at least 1s, or 0s for \"for ever\" (line 3)",
        ),
        (
            "a silence without a unit",
            with("silence_timeout: 5"),
            "hint: write \"5s\" for seconds",
        ),
        (
            "both pools",
            with("resources: {resource_pool: a, resource_pools: [b]}"),
            "<config>.resources.resource_pools: cannot be combined",
        ),
        (
            "a pool twice",
            with("resources: {resource_pools: [a, b, a]}"),
            "<config>.resources.resource_pools: names \"a\" twice",
        ),
        (
            "project alone",
            with("project: p"),
            "<config>.workspace: is required beside \"project\" (line 3)",
        ),
        (
            "workspace alone",
            with("workspace: p"),
            "<config>.project: is required beside \"workspace\" (line 3)",
        ),
        (
            "reversed profiling",
            with("profiling: {begin_on_batch: 5, end_after_batch: 2}"),
            "<config>.profiling.end_after_batch: must not be below \"begin_on_batch\", which is 5 (line 3)",
        ),
        (
            "storage outside",
            with("checkpoint_storage: {type: shared_fs, host_path: /tmp, storage_path: /tmpfoo}"),
            "<config>.checkpoint_storage.storage_path: must be relative to, or under, \"/tmp\"; \"/tmpfoo\" is outside (line 3)",
        ),
        (
            "climbing prefix",
            with("checkpoint_storage: {type: s3, bucket: b, prefix: x/../y}"),
            "must not climb out of the bucket",
        ),
        (
            "azure with both",
            with(
                "checkpoint_storage: {type: azure, container: c, connection_string: a, credential: b}",
            ),
            "<config>.checkpoint_storage.credential: cannot be combined with \"connection_string\" (line 3)",
        ),
        (
            "azure with two places",
            with(
                "checkpoint_storage: {type: azure, container: c, connection_string: a, account_url: b}",
            ),
            "choose exactly one of",
        ),
        (
            "azure with none",
            with("checkpoint_storage: {type: azure, container: c}"),
            "choose exactly one of",
        ),
        (
            "s3 without bucket",
            with("checkpoint_storage: {type: s3}"),
            "<config>.checkpoint_storage.bucket: is required for type \"s3\" (line 3)",
        ),
        (
            "key of another storage",
            with("checkpoint_storage: {type: s3, bucket: b, host_path: /x}"),
            "<config>.checkpoint_storage.host_path: is not a known key for type \"s3\"",
        ),
        (
            "unknown storage",
            with("checkpoint_storage: {type: ftp}"),
            "<config>.checkpoint_storage.type: must be one of \"shared_fs\", \"directory\", \"s3\", \"gcs\", \"azure\", not \"ftp\"",
        ),
        (
            "bad pattern",
            with("log_policies: [{name: x, pattern: \"(\"}]"),
            "<config>.log_policies[0].pattern: is not a regular expression",
        ),
        (
            "empty policy",
            with("log_policies: [{}]"),
            "<config>.log_policies[0]: needs a \"name\", or both \"pattern\" and \"action\" (line 3)",
        ),
        (
            "policy named twice",
            with("log_policies: [{name: x}, {name: x}]"),
            "<config>.log_policies[1].name: \"x\" names two log policies (line 3)",
        ),
        (
            "unknown action",
            with("log_policies: [{name: x, pattern: y, action: reboot}]"),
            "<config>.log_policies[0].action: must be one of",
        ),
        (
            "retention out of range",
            with("retention_policy: {log_retention_days: 40000}"),
            "must be at most 32767",
        ),
        (
            "empty retention",
            with("retention_policy: {}"),
            "<config>.retention_policy.log_retention_days: is required",
        ),
        (
            "blank name",
            with("name: \"  \""),
            "<config>.name: must not be blank (line 3)",
        ),
        (
            "empty entrypoint",
            "entrypoint: []\nsearcher: {name: single, metric: x}".into(),
            "<config>.entrypoint: must not be empty (line 1)",
        ),
        (
            "entrypoint of numbers",
            "entrypoint: [1]\nsearcher: {name: single, metric: x}".into(),
            "<config>.entrypoint[0]: must be a string, not the number 1 (line 1); hint: put it in quotes",
        ),
        (
            "bad variable",
            with("environment: {environment_variables: [{A: 1}]}"),
            "<config>.environment.environment_variables[0]: must be \"NAME=VALUE\" or \"NAME\", not a map (line 3)",
        ),
        (
            "variables of a new device",
            with("environment: {environment_variables: {tpu: []}}"),
            "known are \"cpu\", \"cuda\", \"rocm\"",
        ),
        (
            "bad port",
            with("environment: {proxy_ports: [{proxy_port: 0}]}"),
            "proxy_port: must be at least 1, not 0",
        ),
        (
            "data is no map",
            with("data: [1]"),
            "<config>.data: must be a map, not a list",
        ),
        (
            "host network in a pod",
            with("environment: {pod_spec: {spec: {hostNetwork: true}}}"),
            "<config>.environment.pod_spec.spec.hostNetwork: cannot be set in a pod spec (line 3); hint: set \"task_container_defaults.network_mode\"",
        ),
        (
            "image in the task's container",
            with(
                "environment: {pod_spec: {spec: {containers: [{name: determined-container, image: x}]}}}",
            ),
            "containers[0].image: cannot be set in a pod spec",
        ),
        (
            "a security context of a pod that is no map",
            with("environment: {pod_spec: {spec: {securityContext: 5}}}"),
            "<config>.environment.pod_spec.spec.securityContext: must be a map, not the number 5 (line 3)",
        ),
        (
            "a security context of a container that is no map",
            with(
                "environment: {pod_spec: {spec: {containers: [{name: determined-container, securityContext: [privileged]}]}}}",
            ),
            "containers[0].securityContext: must be a map, not a list",
        ),
        (
            "a list of a container of another name that is none",
            with(
                "environment: {pod_spec: {spec: {initContainers: [{name: x, volumeMounts: {a: b}}]}}}",
            ),
            "initContainers[0].volumeMounts: must be a list, not a map",
        ),
        (
            "tolerations that are no list",
            with("environment: {pod_spec: {spec: {tolerations: {key: x}}}}"),
            "pod_spec.spec.tolerations: must be a list, not a map",
        ),
        (
            "limits of a container that are no map",
            with(
                "environment: {pod_spec: {spec: {containers: [{name: x, resources: {limits: 4Gi}}]}}}",
            ),
            "containers[0].resources.limits: must be a map, not",
        ),
        (
            "labels of a pod that are no map",
            with("environment: {pod_spec: {metadata: {labels: [a]}}}"),
            "pod_spec.metadata.labels: must be a map, not a list",
        ),
        (
            "a key of the spec in a container",
            with(
                "environment: {pod_spec: {spec: {containers: [{name: x, nodeSelector: {a: b}}]}}}",
            ),
            "containers[0].nodeSelector: is a key of a pod's spec, not of a container (line 3); hint: put it beside \"containers\"",
        ),
        (
            "tensorboard storage with counts",
            with("tensorboard_storage: {type: s3, save_trial_best: 1}"),
            "is not a key of TensorBoard storage",
        ),
        (
            "a list",
            "- 1".into(),
            "<config>: must be a map, not a list (line 1)",
        ),
        (
            "nothing",
            String::new(),
            "<config>: must be a map, not null",
        ),
    ] {
        let message = failure(&text);
        assert!(
            message.contains(expected),
            "{name}:\n  {message}\nlacks\n  {expected}"
        );
    }
}

#[test]
fn hyperparameters_are_checked_to_the_leaf() {
    for (space, expected) in [
        (
            "{type: int, minval: 2, maxval: 2}",
            "<config>.hyperparameters.x: \"minval\" must be below \"maxval\", and 2 is not below 2 (line 3)",
        ),
        (
            "{type: int, minval: 1.5, maxval: 2}",
            "<config>.hyperparameters.x.minval: must be an integer, not 1.5",
        ),
        (
            "{type: int, minval: 1, maxval: 1e23}",
            "<config>.hyperparameters.x.maxval: must be an integer of at most 64 bits, not 1e+23",
        ),
        (
            "{type: int, minval: 1}",
            "<config>.hyperparameters.x.maxval: is required for a hyperparameter of type \"int\"",
        ),
        (
            "{type: double, minval: 2, maxval: 1}",
            "\"minval\" must be below \"maxval\"",
        ),
        (
            "{type: double, minval: a, maxval: 1}",
            "minval: must be a number, not a string",
        ),
        (
            "{type: log, minval: 1, maxval: 2}",
            "<config>.hyperparameters.x.base: is required",
        ),
        (
            "{type: log, minval: 1, maxval: 2, base: 0}",
            "base: must be above 0",
        ),
        (
            "{type: int, minval: 1, maxval: 2, count: 0}",
            "count: must be an integer of at least 1, not 0",
        ),
        (
            "{type: categorical, vals: []}",
            "vals: must hold at least one value",
        ),
        (
            "{type: categorical, vals: 5}",
            "vals: must be a list, not a number",
        ),
        ("{type: const}", "val: is required"),
        (
            "{type: normal, mean: 1}",
            "<config>.hyperparameters.x.type: must be one of \"const\", \"int\", \"double\", \"log\", \"categorical\", not \"normal\"",
        ),
        (
            "{type: const, val: 1, note: 2}",
            "note: is not a key of a hyperparameter of type \"const\"",
        ),
        (
            "{y: {z: {type: int}}}",
            "<config>.hyperparameters.x.y.z.minval: is required",
        ),
    ] {
        let text = format!(
            "{}\nhyperparameters: {{x: {space}}}",
            "entrypoint: x\nsearcher: {name: random, max_trials: 1, metric: m}"
        );
        let message = failure(&text);
        assert!(
            message.contains(expected),
            "{space}:\n  {message}\nlacks\n  {expected}"
        );
    }
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_text() {
    let errors = SubmittedDocument::parse(
        Experiment,
        "max_restarts: -1\nnonsense: 1\nsearcher:\n  name: random\n  max_trials: x\n",
    )
    .unwrap_err();
    let lines: Vec<Option<u32>> = errors.0.iter().map(|error| error.line).collect();
    assert_eq!(lines, [Some(1), Some(2), Some(5)]);
}

#[test]
fn what_is_there_and_cannot_be_read_is_not_missing() {
    let text = searching(
        "  name: random\n  max_trials: 3\nhyperparameters:\n  lr: {type: double, minval: -1e400, maxval: 1}\n  n: {type: int, minval: 1}\n  b: {type: log, minval: 1, maxval: 2, base: .inf}",
    );
    let reported = failure(&text);
    assert_eq!(reported.lines().count(), 3, "{reported}");
    for expected in [
        "hyperparameters.lr.minval: \"-1e400\" is too large for a number",
        "hyperparameters.n.maxval: is required for a hyperparameter of type \"int\"",
        "hyperparameters.b.base: \".inf\" is not a finite number",
    ] {
        assert!(reported.contains(expected), "{reported}");
    }
}

#[test]
fn what_no_search_can_do_is_reported_with_its_place() {
    let grid = searching(
        "  name: grid\nhyperparameters:\n  b: {c: {type: int, minval: 1, maxval: 5000000, count: 2000000}}\n  a: {type: categorical, vals: [1, 2]}",
    );
    assert_eq!(
        failure(&grid),
        "<config>.hyperparameters: make a grid of 4000000 points, at most 1000000 are allowed: \"b.c\" 2000000, \
         \"a\" 2 (line 5); hint: lower a \"count\", or use searcher \"random\" with \"max_trials\""
    );
    let halving = |more: &str| {
        failure(&searching(&format!(
            "  name: adaptive_asha\n  time_metric: batches\n{more}"
        )))
    };
    for (settings, expected) in [
        (
            "  max_trials: 1000001\n  max_time: 10",
            "searcher.max_trials: must be at most 1000000, not 1000001",
        ),
        (
            "  max_trials: 10\n  max_time: 10\n  bracket_rungs: [1, 1001]",
            "searcher.bracket_rungs[1]: must be at most 1000, not 1001",
        ),
        (
            "  max_trials: 1000000\n  max_time: 1000000\n  divisor: 1.001\n  max_rungs: 2000",
            "searcher.max_rungs: is 2000; with divisor 1.001 that gives more than 1000 rungs",
        ),
    ] {
        let reported = halving(settings);
        assert!(reported.contains(expected), "{reported}");
    }
    let many = vec!["1"; 1001].join(", ");
    let reported = halving(&format!(
        "  max_trials: 10\n  max_time: 10\n  bracket_rungs: [{many}]"
    ));
    assert!(
        reported.contains("is a list of 1001, at most 1000 are allowed"),
        "{reported}"
    );
    let log = failure(&searching(
        "  name: random\n  max_trials: 3\nhyperparameters:\n  lr: {type: log, minval: 1, maxval: 400, base: 10}",
    ));
    assert!(
        log.contains("hyperparameters.lr: cannot be drawn from: base 10 to the power of"),
        "{log}"
    );
}

#[test]
fn patterns_of_log_policies_are_bounded() {
    let policies = |patterns: &[&str]| {
        let policies: Vec<Value> = patterns
            .iter()
            .enumerate()
            .map(|(number, pattern)| json!({"name": number.to_string(), "pattern": pattern}))
            .collect();
        with(&format!("log_policies: {}", json!(policies)))
    };
    let usual = [
        r"^\w+Error: (out of memory|illegal access) at \d{1,5}:\d{1,5}$",
        r"(?i).*nccl .* \w{10} failed.*",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    ];
    let config = complete(&policies(&usual));
    assert!(
        compile_patterns(
            config
                .log_policies
                .iter()
                .filter_map(|p| p.pattern.as_deref())
        )
        .is_ok()
    );
    let long = "x".repeat(4097);
    for (text, expected) in [
        (
            policies(&["x"; 65]),
            "<config>.log_policies: is a list of 65, at most 64 are allowed (line 3)",
        ),
        (
            policies(&["x", &long]),
            "<config>.log_policies[1].pattern: has 4097 bytes, at most 4096 are allowed (line 3)",
        ),
        (
            policies(&["x", r"\w{250}y"]),
            "<config>.log_policies[1].pattern: has more than 512 KiB once it is compiled, at most that are allowed",
        ),
        (
            policies(&[r"\w{9}"; 5]),
            "<config>.log_policies: has patterns of more than 2048 KiB once they are compiled, at most that are allowed",
        ),
    ] {
        assert!(failure(&text).contains(expected), "{}", failure(&text));
    }
}

#[test]
fn keys_of_a_pod_that_are_misspelled_are_refused_with_the_one_that_is_meant() {
    for (pod_spec, path, meant) in [
        (
            "{spec: {containers: [{n_ame: a, image: i}]}}",
            "spec.containers[0].n_ame",
            "name",
        ),
        (
            "{spec: {nodeselector: {a: b}}}",
            "spec.nodeselector",
            "nodeSelector",
        ),
        (
            "{spec: {node_selectr: {a: b}}}",
            "spec.node_selectr",
            "nodeSelector",
        ),
        ("{metadata: {lables: {a: b}}}", "metadata.lables", "labels"),
        (
            "{spec: {volumes: [{name: a, hostPath: {paht: /}}]}}",
            "spec.volumes[0].hostPath.paht",
            "path",
        ),
    ] {
        let failed = failure(&with(&format!("environment: {{pod_spec: {pod_spec}}}")));
        assert!(
            failed.contains(&format!("environment.pod_spec.{path}: is not a key of"))
                && failed.contains(&format!("did you mean \"{meant}\"?")),
            "{failed}"
        );
    }
}

#[test]
fn keys_that_a_container_does_not_have_are_reported_with_their_place() {
    let text = with(
        "environment: {pod_spec: {spec: {containers: [{name: a, tty: true}, {name: b, enviroment: [], volume_mounts: [], $patch: delete, securityContext: null}]}}}",
    );
    let checked = SubmittedDocument::parse(Experiment, &text)
        .unwrap()
        .warnings;
    let warnings: Vec<String> = checked.iter().map(ToString::to_string).collect();
    let unknown = "containers[1].enviroment: is not a key of a container that is known here";
    let snake = "containers[1].volume_mounts: is written \"volumeMounts\"";
    for expected in [unknown, snake] {
        assert!(
            warnings.iter().any(|w| w.contains(expected)),
            "{warnings:?}"
        );
    }
    let of_keys = warnings.iter().filter(|w| w.contains("containers"));
    assert_eq!(of_keys.count(), 2, "{warnings:?}");
}
