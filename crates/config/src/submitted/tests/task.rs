use det_taskspec::NotebookIdleType;
use serde_json::json;

use super::*;
use crate::container::TaskContainerDefaults;
use crate::task::*;

fn submitted(kind: LaunchKind, text: &str) -> SubmittedTask {
    SubmittedTask::parse(kind, text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn defaults(tcd: &TaskContainerDefaults) -> TaskDefaults<'_> {
    TaskDefaults {
        description: "Shell (calm-red-fox)".into(),
        task_container_defaults: tcd,
        default_priority: Some(42),
        has_context: false,
    }
}

fn complete(kind: LaunchKind, text: &str) -> TaskConfig {
    submitted(kind, text)
        .complete(&defaults(&TaskContainerDefaults::default()))
        .unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// The errors of a document, whichever step finds them.
fn failure(kind: LaunchKind, text: &str) -> String {
    let outcome = SubmittedTask::read_file(kind, "t.yaml", text, &[] as &[&str])
        .and_then(|task| task.complete(&defaults(&TaskContainerDefaults::default())));
    match outcome {
        Ok(_) => panic!("accepted: {text}"),
        Err(errors) => errors.to_string(),
    }
}

fn warnings(kind: LaunchKind, text: &str) -> Vec<String> {
    submitted(kind, text)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn an_empty_document_gets_every_default() {
    let config = complete(LaunchKind::Shell, "");
    assert_eq!(
        config.to_json(),
        json!({
            "description": "Shell (calm-red-fox)",
            "entrypoint": [],
            "environment": {
                "image": {
                    "cpu": "determinedai/pytorch-ngc-dev:0736b6d",
                    "cuda": "determinedai/pytorch-ngc-dev:0736b6d",
                    "rocm": "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d",
                },
                "environment_variables": {"cpu": [], "cuda": [], "rocm": []},
                "proxy_ports": [], "ports": {}, "force_pull_image": false, "registry_auth": null,
                "add_capabilities": [], "drop_capabilities": [], "pod_spec": null,
            },
            "resources": {
                "slots": 1, "max_slots": null, "weight": 1, "priority": 42, "resource_pool": "",
                "is_single_node": null, "shm_size": 4_294_967_296_u64, "devices": [], "native_parallel": false,
            },
            "bind_mounts": [],
            "work_dir": null,
            "tensorboard_args": [],
            "inherit_mounts": false,
            "idle_timeout": null,
            "notebook_idle_type": "kernels_or_terminals",
            "kernel_idle_timeout": null,
            "debug": false,
            "profiling": {"enabled": false},
            "slurm": {},
            "pbs": {},
            "preemptible": null,
            "preemption_timeout": 3600,
        })
    );
    assert_eq!(complete(LaunchKind::Tensorboard, "{}").resources.slots, 0);
    assert_eq!(TaskConfig::from_json(&config.to_json()).unwrap(), config);
    crate::schema::assert_defaults_are_json(TASK_DOCUMENT.root);
}

#[test]
fn the_walkthroughs_of_the_old_documentation_are_accepted() {
    let config = complete(
        LaunchKind::Command,
        "entrypoint: [ls, -l, /second]\nbind_mounts:\n  - host_path: /mnt/disks/second\n    container_path: /second\n",
    );
    assert_eq!(config.bind_mounts[0].container_path, "/second");
    // A shell with a pod of its own, after its indentation was put right.
    let config = complete(
        LaunchKind::Shell,
        "
environment:
  image: registry.example/app:1
  pod_spec:
    apiVersion: v1
    kind: Pod
    spec:
      restartPolicy: Never
      volumes:
        - name: shared
          emptyDir: {medium: Memory}
      containers:
        - name: nvcertjob
          image: registry.example/cert:1
          resources: {limits: {nvidia.com/gpu: 0}}
          volumeMounts: [{name: shared, mountPath: /dev/shm}]
resources:
  slots: 1
  resource_pool: A100
",
    );
    assert_eq!(config.resources.resource_pool, "A100");
    let pod = config.environment.pod_spec.unwrap();
    assert_eq!(pod["spec"]["containers"][0]["name"], "nvcertjob");
}

#[test]
fn every_key_is_kept() {
    let text = "
description: d
environment: {image: {cuda: g}, environment_variables: [A=1], force_pull_image: true}
resources: {slots: 4, max_slots: 8, weight: 2, priority: 10, resource_pool: p, is_single_node: false, shm_size: 1g, devices: [\"/dev/a:/dev/b\"]}
bind_mounts: [{host_path: /a, container_path: b}]
work_dir: /home/$AGENT_USER
entrypoint: [python3, x.py]
debug: true
slurm: {sbatch_args: [--exclusive]}
pbs: {slots_per_node: 2}
preemption_timeout: 5
";
    let config = complete(LaunchKind::Generic, text);
    assert_eq!(config.resources.slots, 4);
    assert_eq!(config.resources.is_single_node, Some(false));
    assert_eq!(config.resources.shm_size, 1 << 30);
    assert_eq!(config.environment.image.cuda, "g");
    assert_eq!(config.entrypoint, ["python3", "x.py"]);
    assert_eq!(config.preemption_timeout, 5);
    assert_eq!(config.work_dir.as_deref(), Some("/home/$AGENT_USER"));
    let config = complete(
        LaunchKind::Tensorboard,
        "tensorboard_args: [--samples_per_plugin=images=100]\ninherit_mounts: true\nidle_timeout: 1m30s",
    );
    assert!(config.inherit_mounts);
    assert_eq!(config.idle_timeout.as_deref(), Some("1m30s"));
    let config = complete(LaunchKind::Notebook, "notebook_idle_type: activity");
    assert_eq!(config.notebook_idle_type, NotebookIdleType::Activity);
}

#[test]
fn idle_tasks_end_by_their_own_timeout_or_the_masters() {
    let seconds = |config: &TaskConfig, kind| {
        config
            .effective_idle_timeout(kind, Some(60), 300)
            .map(|d| d.as_secs())
    };
    let plain = complete(LaunchKind::Notebook, "");
    assert_eq!(seconds(&plain, LaunchKind::Notebook), Some(60));
    assert_eq!(seconds(&plain, LaunchKind::Tensorboard), Some(300));
    assert_eq!(seconds(&plain, LaunchKind::Shell), None);
    assert_eq!(
        plain.effective_idle_timeout(LaunchKind::Notebook, None, 0),
        None
    );
    let own = complete(LaunchKind::Notebook, "idle_timeout: 2h");
    assert_eq!(seconds(&own, LaunchKind::Notebook), Some(7200));
    let never = complete(LaunchKind::Notebook, "idle_timeout: 0s");
    assert_eq!(seconds(&never, LaunchKind::Notebook), None);
}

#[test]
fn errors_are_named_for_the_kind() {
    use LaunchKind::{Command, Generic, Notebook, Shell, Tensorboard};
    for (kind, text, expected) in [
        (
            Notebook,
            "resources: {slots_per_trial: 2}",
            "t.yaml:1:13: resources.slots_per_trial: is a key of experiments, not of tasks; hint: use \"resources.slots\"",
        ),
        (
            Command,
            "description: x",
            "entrypoint: is required: the program to run and its arguments",
        ),
        (Generic, "entrypoint: []", "entrypoint: is required"),
        (
            Shell,
            "resources: {is_single_node: true}",
            "resources.is_single_node: cannot be set for a shell",
        ),
        (
            Shell,
            "environment: {ports: {a: 1}}",
            "environment.ports: cannot be set for a task",
        ),
        (
            Notebook,
            "idle_timeout: 300",
            "must be a duration with a unit, not the number 300; hint: write \"300s\" for seconds",
        ),
        (
            Notebook,
            "notebook_idle_type: kernel",
            "must be one of \"kernels_or_terminals\", \"kernel_connections\", \"activity\", not \"kernel\"",
        ),
        (
            Shell,
            "bind_mounts: [{host_path: /a, container_path: .}]",
            "must be a path below the working directory",
        ),
        (
            Shell,
            "entrypoint: [1]",
            "must be a string, not the number 1",
        ),
        (
            Shell,
            "searcher: {}",
            "searcher: is not a known key; known are",
        ),
        (
            Tensorboard,
            "tensorboard_arg: [x]",
            "hint: did you mean \"tensorboard_args\"?",
        ),
        (Shell, "slots: 2", "hint: did you mean \"resources.slots\"?"),
        (
            Shell,
            "resources: {priority: 0}",
            "must be at least 1, not 0",
        ),
        (
            Shell,
            "environment: {pod_spec: {spec: {containers: [{name: determined-container, resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
            "hint: use \"resources.slots\"",
        ),
    ] {
        let message = failure(kind, text);
        assert!(
            message.contains(expected),
            "{text}:\n{message}\nlacks\n{expected}"
        );
    }
}

#[test]
fn what_means_nothing_for_a_kind_is_reported() {
    for (kind, text, expected) in [
        (
            LaunchKind::Tensorboard,
            "resources: {slots: 2}",
            "resources.slots: is read as 0",
        ),
        (
            LaunchKind::Shell,
            "entrypoint: [x]",
            "entrypoint: is ignored: a shell brings its own",
        ),
        (
            LaunchKind::Shell,
            "idle_timeout: 5m",
            "idle_timeout: means nothing for a shell",
        ),
        (
            LaunchKind::Command,
            "tensorboard_args: [x]",
            "tensorboard_args: means nothing for a command",
        ),
        (
            LaunchKind::Command,
            "entrypoint: ls -l",
            "entrypoint: is a list; the one string is read as a command line",
        ),
        (
            LaunchKind::Shell,
            "environment: {image: {gpu: x}}",
            "environment.image.gpu: is the old name of \"cuda\"",
        ),
    ] {
        let reported = warnings(kind, text);
        assert!(
            reported.iter().any(|warning| warning.starts_with(expected)),
            "{text}: {reported:?}"
        );
    }
    // The effective configuration of one task can be given to another without a warning.
    let effective = complete(LaunchKind::Shell, "").to_json();
    let again = SubmittedTask::from_value(LaunchKind::Shell, &effective).unwrap();
    assert_eq!(again.warnings, []);
    assert_eq!(
        complete(LaunchKind::Command, "entrypoint: ls -l").entrypoint,
        ["/bin/sh", "-c", "ls -l"]
    );
}

#[test]
fn the_dashes_that_end_options_are_no_program() {
    use det_taskspec::Entrypoint::{Argv, Shell};
    for (words, expected) in [
        ("[--, ls, -l]", Argv(vec!["ls".into(), "-l".into()])),
        ("[--, ls -l]", Shell("ls -l".into())),
        (
            "[ls, --, -l]",
            Argv(["ls", "--", "-l"].map(str::to_owned).to_vec()),
        ),
    ] {
        let config = complete(LaunchKind::Command, &format!("entrypoint: {words}"));
        assert_eq!(
            config.container_request().entrypoint,
            Some(expected),
            "{words}"
        );
    }
}

#[test]
fn layers_merge_as_those_of_experiments_do() {
    let tcd: TaskContainerDefaults = serde_json::from_value(json!({
        "environment_variables": {"cpu": ["A=1"], "cuda": [], "rocm": []},
        "add_capabilities": ["X"],
        "work_dir": "/cluster",
        "shm_size_bytes": 5,
        "bind_mounts": [{"host_path": "/c", "container_path": "/c", "read_only": false, "propagation": "rprivate"}],
        "cpu_pod_spec": {"spec": {"hostname": "cpu"}},
        "gpu_pod_spec": {"spec": {"hostname": "gpu"}},
    }))
    .unwrap();
    let whole = |document: &str, template: &str| {
        submitted(LaunchKind::Notebook, document)
            .over(submitted(LaunchKind::Notebook, template))
            .complete(&defaults(&tcd))
            .unwrap()
    };
    let config = whole(
        "environment: {environment_variables: [A=3], add_capabilities: [Z], registry_auth: {username: u}, proxy_ports: [{proxy_port: 1}]}",
        "environment: {environment_variables: [A=2], add_capabilities: [Y], registry_auth: {password: p}, proxy_ports: [{proxy_port: 1, proxy_tcp: true}, {proxy_port: 2}]}\nidle_timeout: 5m\nbind_mounts: [{host_path: /t, container_path: /c}]",
    );
    assert_eq!(
        config.environment.environment_variables.cpu,
        ["A=1", "A=2", "A=3"]
    );
    assert_eq!(config.environment.add_capabilities, ["X", "Y", "Z"]);
    let auth = config.environment.registry_auth.unwrap();
    assert_eq!((auth.username.as_deref(), auth.password), (Some("u"), None));
    let ports: Vec<(u16, bool)> = config
        .environment
        .proxy_ports
        .iter()
        .map(|port| (port.proxy_port, port.proxy_tcp))
        .collect();
    assert_eq!(ports, [(1, false), (2, false)]);
    assert_eq!(config.work_dir.as_deref(), Some("/cluster"));
    assert_eq!(config.idle_timeout.as_deref(), Some("5m"));
    assert_eq!(config.resources.shm_size, 5);
    assert_eq!(config.bind_mounts.len(), 1);
    assert_eq!(config.bind_mounts[0].host_path, "/t");
    assert_eq!(
        config.environment.pod_spec,
        Some(json!({"spec": {"hostname": "gpu"}}))
    );
    let config = whole("resources: {slots: 0}\ndebug: false", "debug: true");
    assert_eq!(
        config.environment.pod_spec,
        Some(json!({"spec": {"hostname": "cpu"}}))
    );
    assert!(!config.debug);
}

#[test]
fn a_null_takes_away_a_working_directory_and_a_timeout_and_nothing_else() {
    let tcd = TaskContainerDefaults {
        work_dir: Some("/cluster".into()),
        ..TaskContainerDefaults::default()
    };
    let config = submitted(
        LaunchKind::Notebook,
        "work_dir: null\nidle_timeout: null\ndescription: null",
    )
    .over(submitted(
        LaunchKind::Notebook,
        "idle_timeout: 5m\ndescription: t",
    ))
    .complete(&defaults(&tcd))
    .unwrap();
    assert_eq!((config.work_dir, config.idle_timeout), (None, None));
    assert_eq!(config.description, "t");
}

#[test]
fn files_that_come_along_have_a_directory_of_their_own() {
    let tcd = TaskContainerDefaults {
        work_dir: Some("/cluster".into()),
        ..TaskContainerDefaults::default()
    };
    let with_context = |text: &str| {
        submitted(LaunchKind::Notebook, text).complete(&TaskDefaults {
            has_context: true,
            ..defaults(&tcd)
        })
    };
    assert_eq!(with_context("").unwrap().work_dir, None);
    assert_eq!(with_context("work_dir: /cluster").unwrap().work_dir, None);
    let message = with_context("work_dir: /mine").unwrap_err().to_string();
    assert!(
        message.contains("work_dir: cannot be combined with files that come along"),
        "{message}"
    );
    assert_eq!(
        submitted(LaunchKind::Notebook, "work_dir: /mine")
            .complete(&defaults(&tcd))
            .unwrap()
            .work_dir
            .as_deref(),
        Some("/mine")
    );
}

#[test]
fn placement_and_policies() {
    let task = submitted(
        LaunchKind::Shell,
        "resources: {slots: 4, resource_pool: p, priority: 10}",
    );
    assert_eq!(
        task.under(&[]).placement().resource_pool.as_deref(),
        Some("p")
    );
    assert_eq!(
        task.under(&[]).size(),
        Some(WorkSize {
            slots: 4,
            is_single_node: true,
            key: SLOTS_OF_TASK,
            may_spread: false,
        })
    );
    let policies = Policies::parse(
        crate::policies::Workload::Tasks,
        "workspace \"w\"",
        None,
        "constraints: {resources: {max_slots: 2}, priority_limit: 20}\ninvariant_config: {environment: {image: fixed}}",
    )
    .unwrap();
    let message = task
        .under(std::slice::from_ref(&policies))
        .complete(&defaults(&TaskContainerDefaults::default()))
        .unwrap_err()
        .to_string();
    for expected in [
        "resources.slots: is 4, more than the 2 that the policy of workspace \"w\" allows",
        "resources.priority: is 10; the policy of workspace \"w\" allows 20 to 99 (lower goes first)",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let policies = [policies];
    assert!(
        !task.under(&policies).placement().names_image,
        "a policy does"
    );
    let with_image = submitted(LaunchKind::Shell, "environment: {image: mine}");
    assert!(with_image.under(&policies).placement().names_image);
    let config = with_image
        .under(&policies)
        .complete(&defaults(&TaskContainerDefaults::default()))
        .unwrap();
    assert_eq!(config.environment.image.cpu, "fixed");
}

#[test]
fn overrides_beat_the_file_and_secrets_are_hidden() {
    let task = SubmittedTask::read_file(
        LaunchKind::Command,
        "c.yaml",
        "entrypoint: [a]\nresources: {slots: 1}",
        &[
            "resources.slots=3",
            "environment.registry_auth.password=hidden",
        ],
    )
    .unwrap();
    assert_eq!(task.under(&[]).size().map(|size| size.slots), Some(3));
    let config = task
        .complete(&defaults(&TaskContainerDefaults::default()))
        .unwrap();
    assert!(!format!("{config:?}").contains("hidden"));
    let message = SubmittedTask::read_file(
        LaunchKind::Command,
        "c.yaml",
        "entrypoint: [a]",
        &["resources.slots=many"],
    )
    .and_then(SubmittedTask::checked)
    .unwrap_err()
    .to_string();
    assert_eq!(
        message,
        "--config resources.slots: must be an integer, not the string \"many\""
    );
}
