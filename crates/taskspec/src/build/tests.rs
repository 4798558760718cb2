//! The environment, mounts and ports that tasks are promised, as tables.

mod services;

use std::collections::BTreeMap;

use det_ids::{ExperimentId, RunId, SlotId, TrialId, UserId};
use serde_json::json;

use super::*;
use crate::variables::{Presence, SetBy, Tasks, VARIABLES};
use crate::{
    ClusterFacts, ContainerRequest, DeviceKind, DeviceMapping, Entrypoint, GenericDetails,
    NotebookDetails, NotebookIdleType, PerDevice, PoolDefaults, RunsIn, SharedFs, ShellDetails,
    SlotGrant, SshKeyPair, StorageFacts, TaskDetails, TaskUser, TensorBoardDetails,
    TensorBoardSource,
};

const EXPERIMENT_CONFIG: &str = r#"{"name": "digits"}"#;

/// A command with nothing but what every task has.
fn command() -> TaskFacts {
    TaskFacts {
        task_id: "7c0f".into(),
        allocation_id: "7c0f.2".into(),
        kind: KindFacts::Launched(TaskDetails::Command),
        description: "command 7c0f".into(),
        owner_id: UserId(7),
        owner_name: "ada".into(),
        user: TaskUser::default(),
        request: ContainerRequest {
            entrypoint: Some(Entrypoint::Shell("train".into())),
            image: PerDevice {
                cpu: "cpu-image".into(),
                cuda: "cuda-image".into(),
                rocm: "rocm-image".into(),
            },
            ..ContainerRequest::default()
        },
        defaults: PoolDefaults {
            network_mode: "bridge".into(),
            ..PoolDefaults::default()
        },
        storage: None,
        cluster: ClusterFacts {
            cluster_id: "cluster-1".into(),
            master_id: "master-1".into(),
            ..ClusterFacts::default()
        },
    }
}

/// A task of the kind of these details, without a configured entrypoint.
fn launched(details: TaskDetails) -> TaskFacts {
    let mut task = command();
    task.kind = KindFacts::Launched(details);
    task.request.entrypoint = None;
    task
}

fn notebook() -> TaskFacts {
    launched(TaskDetails::Notebook(NotebookDetails {
        port: 2901,
        token: "jupyter-secret".into(),
        certificate: "CERTIFICATE".into(),
        private_key: "KEY".into(),
        idle_timeout: Some(60),
        idle_type: NotebookIdleType::KernelConnections,
        kernel_idle_timeout: None,
    }))
}

fn tensorboard() -> TaskFacts {
    let source = |name: &str, path: &str| TensorBoardSource {
        name: name.into(),
        path: path.into(),
    };
    launched(TaskDetails::Tensorboard(TensorBoardDetails {
        port: 2601,
        sources: vec![
            source("experiment_1", "/s/1"),
            source("trial_7", "/s/with space/7"),
        ],
        mounts: vec![Mount {
            host_path: "/host/s".into(),
            container_path: "/s".into(),
            read_only: true,
            propagation: "rprivate".into(),
            create: true,
            trusted: true,
            shared: None,
        }],
        args: vec!["--samples_per_plugin=images=9".into()],
        idle_timeout: Some(300),
        ..TensorBoardDetails::default()
    }))
}

/// A trial that has never stored a checkpoint, with cloud storage.
fn trial() -> TaskFacts {
    TaskFacts {
        kind: KindFacts::Trial(TrialFacts {
            trial_id: TrialId(3),
            experiment_id: ExperimentId(1),
            run_id: RunId(5),
            port_step: Some(1),
            launch_keys: SshKeyPair {
                private: "PRIVATE".into(),
                public: "ssh-ed25519 PUBLIC determined".into(),
            },
            seed: 4_294_967_295,
            hparams: r#"{"layers": 2, "lr": 1.0}"#.into(),
            experiment_config: EXPERIMENT_CONFIG.into(),
            latest_checkpoint: None,
            latest_checkpoint_steps: None,
            warm_start_checkpoint: None,
            system_metrics: false,
        }),
        description: "trial 3 of experiment 1".into(),
        storage: Some(StorageFacts {
            document: json!({"type": "s3", "bucket": "b"}),
            shared_fs: None,
        }),
        ..command()
    }
}

/// The same with everything that a configuration can ask for.
fn full_trial() -> TaskFacts {
    let mut task = trial();
    if let KindFacts::Trial(trial) = &mut task.kind {
        trial.latest_checkpoint = Some("c-2".into());
        trial.latest_checkpoint_steps = Some(40);
    }
    task.request.debug = true;
    task.defaults.network_interface = Some("eth1".into());
    task.defaults.gloo_port_range = Some("31000:31999".into());
    task.defaults.nccl_port_range = Some("30000:30999".into());
    task.cluster.pachyderm_address = Some("pachd:30650".into());
    task
}

fn place(slots: &[u32], device_kind: DeviceKind) -> PlaceFacts {
    PlaceFacts {
        runs_in: RunsIn::Machine,
        container_id: "c1".into(),
        slots: SlotGrant::new(slots.iter().copied().map(SlotId).collect(), true),
        device_kind,
        members: 1,
    }
}

#[test]
fn a_login_of_the_pool_is_for_its_registry_and_no_text_of_the_task() {
    let login = |name: &str, registry: &str| RegistryAuth {
        username: Some(name.into()),
        password: Some("of-the-pool".into()),
        serveraddress: Some(registry.into()),
        ..RegistryAuth::default()
    };
    let user = |task: &TaskFacts| {
        let spec = spec(task);
        let script = serde_json::to_string(&spec.script).unwrap();
        assert!(!script.contains("of-the-pool"), "{script}");
        spec.registry_auth.and_then(|auth| auth.username)
    };
    let mut task = trial();
    task.defaults.logins = vec![login("pool", "reg.example")];
    task.request.image.cuda = "reg.example/x".into();
    assert_eq!(user(&task).as_deref(), Some("pool"));
    task.request.registry_auth = Some(login("other", "other.example"));
    assert_eq!(
        user(&task).as_deref(),
        Some("pool"),
        "its own is for another"
    );
    task.request.registry_auth = Some(login("own", "reg.example"));
    assert_eq!(user(&task).as_deref(), Some("own"));
    task.request.registry_auth = None;
    task.request.image.cuda = "evil.example/reg.example/x".into();
    assert_eq!(user(&task), None);
}

#[test]
fn a_place_grants_devices_by_their_numbers_or_a_count_of_slots() {
    for (numbers, named, written, variable) in [
        (&[1, 3][..], true, json!([1, 3]), "[1,3]"),
        (&[], true, json!([]), "[]"),
        (&[1, 3], false, json!(2), "[0,1]"),
        (&[], false, json!(0), "[]"),
    ] {
        let slots = numbers.iter().copied().map(SlotId).collect();
        let place = PlaceFacts {
            slots: SlotGrant::new(slots, named),
            ..place(numbers, DeviceKind::Cuda)
        };
        let spec = container_spec(&trial(), &place, "secret").unwrap();
        assert_eq!(serde_json::to_value(&spec.slots).unwrap(), written);
        assert_eq!(
            serde_json::from_value::<SlotGrant>(written).unwrap(),
            spec.slots
        );
        let ids = spec.slots.devices().iter().map(|slot| slot.0);
        let devices: &[u32] = if named { numbers } else { &[] };
        assert_eq!(ids.collect::<Vec<_>>(), devices);
        let env: BTreeMap<String, String> = spec.script.env.into_iter().collect();
        assert_eq!(env["DET_SLOT_IDS"], variable);
    }
}

fn spec(task: &TaskFacts) -> ContainerSpec {
    container_spec(task, &place(&[1, 3], DeviceKind::Cuda), "secret").unwrap()
}

fn env(task: &TaskFacts) -> BTreeMap<String, String> {
    let list = spec(task).script.env;
    let env: BTreeMap<String, String> = list.iter().cloned().collect();
    assert_eq!(env.len(), list.len(), "a name appears twice: {list:?}");
    env
}

/// What is expected of a variable.
enum Expectation {
    /// The master sets it to this.
    Value(&'static str),
    /// It is left to another.
    LeftTo(SetBy),
}

#[test]
fn every_variable_that_a_trial_is_promised() {
    use Expectation::{LeftTo, Value};
    let table = [
        ("DET_MASTER", LeftTo(SetBy::Agent)),
        ("DET_MASTER_HOST", LeftTo(SetBy::Agent)),
        ("DET_MASTER_ADDR", LeftTo(SetBy::Agent)),
        ("DET_MASTER_PORT", LeftTo(SetBy::Agent)),
        ("DET_MASTER_CERT_FILE", LeftTo(SetBy::Agent)),
        ("DET_MASTER_CERT_NAME", LeftTo(SetBy::Agent)),
        ("DET_USE_TLS", LeftTo(SetBy::Agent)),
        ("DET_CLUSTER_ID", Value("cluster-1")),
        ("DET_MASTER_ID", Value("master-1")),
        ("DET_AGENT_ID", LeftTo(SetBy::Agent)),
        ("DET_SLOT_IDS", Value("[1,3]")),
        ("DET_TASK_ID", Value("7c0f")),
        ("DET_ALLOCATION_ID", Value("7c0f.2")),
        ("DET_RESOURCES_ID", Value("c1")),
        ("DET_CONTAINER_ID", Value("c1")),
        ("DET_RESOURCES_TYPE", Value("docker-container")),
        ("DET_SESSION_TOKEN", Value("secret")),
        ("DET_USER_TOKEN", Value("secret")),
        ("DET_USER", Value("ada")),
        ("DET_TASK_TYPE", Value("TRIAL")),
        ("DET_WORKDIR", LeftTo(SetBy::Supervisor)),
        ("HOME", LeftTo(SetBy::Supervisor)),
        ("PATH", LeftTo(SetBy::Supervisor)),
        ("PYTHONPATH", LeftTo(SetBy::Supervisor)),
        ("DET_RUN_DIR", Value("/run/determined")),
        (
            "DET_TASK_LOGGING_METADATA",
            Value(r#"{"allocation_id":"7c0f.2","task_id":"7c0f"}"#),
        ),
        ("PYTHONUSERBASE", Value("/run/determined/pythonuserbase")),
        ("PYTHONUNBUFFERED", Value("1")),
        ("DET_SEGMENT_ENABLED", Value("false")),
        ("DET_DEBUG", Value("true")),
        ("DET_INTER_NODE_NETWORK_INTERFACE", Value("eth1")),
        ("GLOO_PORT_RANGE", Value("31000:31999")),
        ("NCCL_PORT_RANGE", Value("30000:30999")),
        ("PACHD_ADDRESS", Value("pachd:30650")),
        ("HTTP_PROXY", LeftTo(SetBy::Agent)),
        ("HTTPS_PROXY", LeftTo(SetBy::Agent)),
        ("FTP_PROXY", LeftTo(SetBy::Agent)),
        ("NO_PROXY", LeftTo(SetBy::Agent)),
        ("DET_EXPERIMENT_ID", Value("1")),
        ("DET_TRIAL_ID", Value("3")),
        ("DET_TRIAL_RUN_ID", Value("5")),
        ("DET_TRIAL_SEED", Value("4294967295")),
        ("DET_EXPERIMENT_CONFIG", Value(EXPERIMENT_CONFIG)),
        ("DET_HPARAMS", Value(r#"{"layers": 2, "lr": 1.0}"#)),
        ("DET_STEPS_COMPLETED", Value("40")),
        ("DET_LATEST_CHECKPOINT", Value("c-2")),
        ("DTRAIN_SSH_PORT", Value("12370")),
        ("INTER_TRAIN_PROCESS_COMM_PORT_1", Value("12380")),
        ("INTER_TRAIN_PROCESS_COMM_PORT_2", Value("12385")),
        ("C10D_PORT", Value("29401")),
    ];
    let mut env = env(&full_trial());
    for (name, expected) in &table {
        let value = env.remove(*name);
        let declared = VARIABLES.iter().find(|variable| variable.name == *name);
        let set_by = declared.map(|variable| variable.set_by);
        match expected {
            Expectation::Value(expected) => {
                assert_eq!(value.as_deref(), Some(*expected), "{name}");
                assert_eq!(set_by, Some(SetBy::Master), "{name}");
            }
            Expectation::LeftTo(other) => {
                assert_eq!(value, None, "{name}");
                assert_eq!(set_by, Some(*other), "{name}");
            }
        }
    }
    assert!(env.is_empty(), "not in the table: {env:?}");
    // Those of services and of pods have tests of their own.
    let elsewhere = |v: &&crate::variables::Variable| {
        v.set_by == SetBy::Pod || matches!(v.tasks, Tasks::Notebooks | Tasks::TensorBoards)
    };
    let others = VARIABLES.iter().filter(elsewhere).count();
    assert_eq!(VARIABLES.len() - others, table.len());
}

#[test]
fn a_variable_without_a_value_is_absent_and_not_empty() {
    for (task, tasks) in [
        (trial(), &[Tasks::All, Tasks::Trials][..]),
        (command(), &[Tasks::All]),
        (notebook(), &[Tasks::All, Tasks::Notebooks]),
        (tensorboard(), &[Tasks::All, Tasks::TensorBoards]),
    ] {
        let mut promised: Vec<&str> = VARIABLES
            .iter()
            .filter(|v| v.set_by == SetBy::Master && v.presence == Presence::Always)
            .filter(|v| tasks.contains(&v.tasks))
            .map(|v| v.name)
            .collect();
        promised.sort_unstable();
        let env = env(&task);
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        assert_eq!(names, promised, "{}", task.description);
    }
}

#[test]
fn a_trial_resumes_from_its_own_checkpoint_before_another_trials() {
    for (latest, steps, warm_start, checkpoint, completed) in [
        (None, None, None, None, "0"),
        (None, None, Some("other"), Some("other"), "0"),
        (Some("own"), Some(40), Some("other"), Some("own"), "40"),
    ] {
        let mut task = trial();
        if let KindFacts::Trial(trial) = &mut task.kind {
            trial.latest_checkpoint = latest.map(Into::into);
            trial.latest_checkpoint_steps = steps;
            trial.warm_start_checkpoint = warm_start.map(Into::into);
        }
        let env = env(&task);
        let start = env.get("DET_LATEST_CHECKPOINT").map(String::as_str);
        assert_eq!(start, checkpoint);
        assert_eq!(env["DET_STEPS_COMPLETED"], completed);
    }
}

#[test]
fn the_users_variables_win_except_over_the_platforms_own() {
    let mut task = command();
    task.request.variables = PerDevice {
        cpu: vec!["ON=cpu".into()],
        cuda: [
            "ON=gpu",
            "A=1",
            "A=$A-2",
            "B=${A}",
            "EMPTY",
            "DET_USER=root",
            "DET_OWN=x",
            "PACHD_ADDRESS=mine",
            "PYTHONUSERBASE=/own",
            "PYTHONUNBUFFERED=",
        ]
        .map(str::to_owned)
        .to_vec(),
        rocm: Vec::new(),
    };
    task.cluster.pachyderm_address = Some("pachd:30650".into());
    let env = env(&task);
    for (name, expected) in [
        ("ON", Some("gpu")),
        ("A", Some("1-2")),
        ("B", Some("1-2")),
        ("EMPTY", Some("")),
        ("DET_USER", Some("ada")),
        ("DET_OWN", None),
        ("PACHD_ADDRESS", Some("mine")),
        ("PYTHONUSERBASE", Some("/own")),
        ("PYTHONUNBUFFERED", Some("")),
    ] {
        assert_eq!(env.get(name).map(String::as_str), expected, "{name}");
    }
}

#[test]
fn what_differs_between_kinds_of_task() {
    let generic = TaskDetails::Generic(GenericDetails::default());
    let kinds = [
        (TaskDetails::Command, false, &[][..]),
        (generic, false, &[]),
        (shell(), true, &[3217]),
    ];
    for (details, hook, ports) in kinds {
        let task = TaskFacts {
            kind: KindFacts::Launched(details),
            storage: trial().storage,
            ..command()
        };
        let spec = spec(&task);
        let kind = task.kind.kind();
        assert_eq!(spec.script.task_type, kind);
        assert_eq!(env(&task)["DET_TASK_TYPE"], kind.name());
        assert!(spec.script.context, "{}", kind.name());
        assert_eq!(spec.script.startup_hook, hook, "{}", kind.name());
        assert!(!spec.script.rendezvous, "{}", kind.name());
        assert_eq!(spec.script.storage_probe, None, "{}", kind.name());
        assert_eq!(spec.ports, ports, "{}", kind.name());
        let has_service = !ports.is_empty();
        assert_eq!(!spec.script.readiness.is_empty(), has_service);
        assert_eq!(!spec.script.files.is_empty(), has_service);
    }
    let spec = spec(&trial());
    assert!(spec.script.context && spec.script.rendezvous && spec.script.startup_hook);
    let storage = json!({"type": "s3", "bucket": "b"});
    assert_eq!(spec.script.storage_probe, Some(storage));
}

fn shell() -> TaskDetails {
    TaskDetails::Shell(ShellDetails {
        port: 3217,
        private_key: "private".into(),
        public_key: "ssh-ed25519 AAAA".into(),
    })
}

#[test]
fn a_script_without_readiness_is_read_as_one_that_reports_nothing() {
    let mut written = serde_json::to_value(spec(&command()).script).unwrap();
    let fields = written.as_object_mut().unwrap();
    fields.remove("readiness");
    fields.remove("readiness_port");
    let read: Script = serde_json::from_value(written).unwrap();
    assert_eq!(read.readiness, Vec::<String>::new());
}

#[test]
fn a_trial_publishes_its_marker_and_training_ports_and_then_its_own() {
    let mut task = trial();
    task.request.ports = vec![8265, 6006];
    assert_eq!(
        spec(&task).ports,
        [1734, 12_370, 12_380, 12_385, 29_401, 8265, 6006]
    );
    task.kind = KindFacts::Launched(TaskDetails::Command);
    assert_eq!(spec(&task).ports, [8265, 6006]);
}

#[test]
fn users_reach_the_service_of_the_kind_and_proxied_ports_alone() {
    let mut task = trial();
    task.request.ports = vec![8265, 6006];
    task.request.proxied_ports = vec![8265];
    assert_eq!(crate::service_ports(&task), [8265]);
    task.kind = KindFacts::Launched(shell());
    assert_eq!(crate::service_ports(&task), [3217, 8265]);
}

#[test]
fn the_configurations_mounts_come_before_the_checkpoint_storage() {
    let mut task = trial();
    task.request.bind_mounts = vec![BindMount {
        host_path: "/data".into(),
        container_path: "data".into(),
        read_only: true,
        propagation: "rslave".into(),
    }];
    let users = Mount {
        host_path: "/data".into(),
        container_path: "data".into(),
        read_only: true,
        propagation: "rslave".into(),
        create: false,
        trusted: false,
        shared: None,
    };
    assert_eq!(spec(&task).mounts, std::slice::from_ref(&users));
    let shared = |checkpoints: &str, tensorboard: &str| {
        Some(SharedDirectories {
            checkpoints: checkpoints.to_owned(),
            tensorboard: tensorboard.to_owned(),
        })
    };
    task.cluster.cluster_id = "cluster".into();
    for (is_clusters_own, clusters_directory, shared) in [
        (false, None, None),
        (true, None, None),
        (true, Some(""), shared("", "cluster/tensorboard/experiment")),
        (
            true,
            Some("a/b"),
            shared("a/b", "a/b/cluster/tensorboard/experiment"),
        ),
    ] {
        task.storage = Some(StorageFacts {
            document: json!({"type": "shared_fs"}),
            shared_fs: Some(SharedFs {
                host_path: "/checkpoints".into(),
                propagation: "rprivate".into(),
                is_clusters_own,
                clusters_directory: clusters_directory.map(str::to_owned),
            }),
        });
        let storage = Mount {
            host_path: "/checkpoints".into(),
            container_path: "/determined_shared_fs".into(),
            read_only: false,
            propagation: "rprivate".into(),
            create: true,
            trusted: is_clusters_own,
            shared,
        };
        assert_eq!(spec(&task).mounts, [users.clone(), storage]);
    }
}

#[test]
fn the_pool_decides_what_the_configuration_leaves_open() {
    // The configuration of a command has the pool's working directory, or has dropped it for its files.
    for (mut task, of_pool) in [(command(), WORK_DIR), (trial(), "/pool")] {
        assert_eq!(spec(&task).script.work_dir, "/run/determined/workdir");
        task.defaults.work_dir = Some("/pool".into());
        assert_eq!(spec(&task).script.work_dir, of_pool);
        task.request.work_dir = Some("/own/$AGENT_USER/$DET_USER".into());
        assert_eq!(spec(&task).script.work_dir, "/own/$AGENT_USER/ada");
    }

    let mut task = command();
    task.defaults.startup_hook = Some(" \n".into());
    assert_eq!(spec(&task).script.pool_startup_hook, None);
    task.defaults.startup_hook = Some("echo hello".into());
    let hook = spec(&task).script.pool_startup_hook;
    assert_eq!(hook.as_deref(), Some("echo hello"));

    task.request.add_capabilities = vec!["SYS_PTRACE".into(), "CHOWN".into()];
    task.request.drop_capabilities = vec!["NET_RAW".into(), "CHOWN".into()];
    task.defaults.add_capabilities = vec!["IPC_LOCK".into(), "NET_RAW".into()];
    let spec = spec(&task);
    assert_eq!(spec.add_capabilities, ["SYS_PTRACE"]);
    assert_eq!(spec.drop_capabilities, ["NET_RAW", "CHOWN"]);
    assert_eq!(spec.default_capabilities, ["IPC_LOCK"]);
}

#[test]
fn the_place_decides_image_and_network() {
    let task = trial();
    for (kind, image) in [
        (DeviceKind::Cpu, "cpu-image"),
        (DeviceKind::Cuda, "cuda-image"),
        (DeviceKind::Rocm, "rocm-image"),
    ] {
        let spec = container_spec(&task, &place(&[0], kind), "secret").unwrap();
        assert_eq!(spec.image, image);
    }
    let mut place = place(&[], DeviceKind::Cpu);
    let network = |place: &PlaceFacts| container_spec(&task, place, "x").unwrap().network_mode;
    assert_eq!(network(&place), "bridge");
    place.members = 2;
    assert_eq!(network(&place), "host");
    // A pod has an address of its own.
    place.runs_in = RunsIn::Pod;
    assert_eq!(network(&place), "bridge");
}

#[test]
fn all_members_of_a_gang_use_the_ports_of_their_allocation() {
    let task = trial();
    for slot in [0, 6] {
        let mut member = place(&[slot], DeviceKind::Cuda);
        member.members = 2;
        let spec = container_spec(&task, &member, "secret").unwrap();
        let port = spec.script.env.iter().find(|(name, _)| name == "C10D_PORT");
        assert_eq!(port.unwrap().1, "29401");
    }
}

#[test]
fn what_cannot_be_made_names_the_reason() {
    let mut task = trial();
    task.request.entrypoint = None;
    let place = place(&[0], DeviceKind::Cuda);
    let error = container_spec(&task, &place, "secret").unwrap_err();
    assert_eq!(
        error.to_string(),
        "trial 3 of experiment 1 has no entrypoint; name a command in \"entrypoint\" of its configuration"
    );
    let mut task = trial();
    if let KindFacts::Trial(trial) = &mut task.kind {
        trial.port_step = None;
    }
    let error = container_spec(&task, &place, "secret").unwrap_err();
    assert!(error.to_string().contains("\"reserved_ports\""), "{error}");
    // No other task uses these ports.
    task.kind = KindFacts::Launched(TaskDetails::Command);
    assert!(container_spec(&task, &place, "secret").is_ok());
}

#[test]
fn a_pools_device_is_given_once_and_only_in_a_free_place() {
    let device = |host: &str, container: &str| DeviceMapping {
        host_path: host.into(),
        container_path: container.into(),
        mode: "mrw".into(),
    };
    let mut task = command();
    task.request.devices = vec![device("/dev/a", "/dev/x"), device("/dev/b", "/dev/y")];
    // The first is in the configuration already, the second would take the place of the configuration's.
    task.defaults.devices = vec![
        device("/dev/b", "/dev/y"),
        device("/dev/c", "/dev/x"),
        device("/dev/d", "/dev/z"),
    ];
    assert_eq!(
        spec(&task).devices,
        [
            device("/dev/a", "/dev/x"),
            device("/dev/b", "/dev/y"),
            device("/dev/d", "/dev/z")
        ]
    );
}

#[test]
fn a_trial_is_measured_if_its_configuration_asks_for_it() {
    assert_eq!(spec(&trial()).script.system_metrics, None);
    let mut measured = trial();
    if let KindFacts::Trial(trial) = &mut measured.kind {
        trial.system_metrics = true;
    }
    assert_eq!(
        spec(&measured).script.system_metrics,
        Some(SystemMetrics {
            trial_id: TrialId(3),
            run_id: RunId(5),
            sample_seconds: 1,
            samples_per_report: 10,
        })
    );
    assert_eq!(spec(&command()).script.system_metrics, None);
    assert_eq!(spec(&measured).script.task_metrics, None);
}

#[test]
fn a_launched_task_is_measured_if_its_configuration_asks_for_it() {
    assert_eq!(spec(&command()).script.task_metrics, None);
    let mut measured = command();
    measured.request.system_metrics = true;
    let script = spec(&measured).script;
    let every_second = Sampling {
        sample_seconds: 1,
        samples_per_report: 10,
    };
    assert_eq!(script.task_metrics, Some(every_second));
    assert_eq!(script.system_metrics, None);
}

#[test]
fn containers_of_a_gang_have_one_key_and_a_client_for_the_gangs_port() {
    let files = |members| {
        let gang = PlaceFacts {
            members,
            ..place(&[0], DeviceKind::Cpu)
        };
        let spec = container_spec(&trial(), &gang, "token").unwrap();
        spec.script.files
    };
    assert!(files(1).is_empty(), "nothing to reach");
    let found = files(2);
    let content = |path: &str| {
        let file = found.iter().find(|file| file.path == path);
        file.map_or("", |file| file.content.as_str())
    };
    assert_eq!(content("/run/determined/ssh/id_rsa"), "PRIVATE");
    assert!(content(crate::LAUNCH_CLIENT_FILE).contains("-p12370"));
    assert!(content(crate::SSHD_CONFIG_FILE).contains("MaxStartups"));
}
