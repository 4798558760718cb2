use det_taskspec::Script;

use super::*;
use crate::testing::container_spec;

#[test]
fn neither_user_nor_group_of_a_process_task_is_roots() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let account = |uid, gid| {
        let user = TaskUser {
            user: "ada".to_owned(),
            uid,
            group: "lab".to_owned(),
            gid,
        };
        let account = process_user(&user, UserId(7), false);
        (account.user, account.uid, account.group, account.gid)
    };
    let id = unprivileged_id(UserId(7));
    let (own, ada, lab) = ("det-user-7".to_owned(), "ada".to_owned(), "lab".to_owned());
    assert_eq!(account(5, 6), (ada.clone(), 5, lab.clone(), 6));
    if is_mapped(id) {
        assert_eq!(account(0, 0), (own.clone(), id, own.clone(), id));
        assert_eq!(account(5, 0), (ada, 5, own.clone(), id));
        assert_eq!(account(0, 6), (own, id, lab, 6));
    }
}

struct Setup {
    root: tempfile::TempDir,
    spec: ContainerSpec,
    python: TaskPython,
    guard: HostGuard,
    runtime: RuntimeKind,
    shares_network: bool,
}

impl Setup {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("supervisor"), "#!").unwrap();
        std::fs::create_dir_all(root.path().join("c1")).unwrap();
        Self {
            root,
            spec: container_spec("c1", "true"),
            python: TaskPython::default(),
            guard: HostGuard::default(),
            runtime: RuntimeKind::Process,
            shares_network: false,
        }
    }

    fn dir(&self) -> ContainerDir {
        ContainerDir::new(self.root.path(), &"c1".into()).unwrap()
    }

    fn prepare(&self, master: &str) -> Result<Vec<(String, String)>, PrepareError> {
        self.prepare_all(master).map(|prepared| prepared.env)
    }

    fn prepare_all(&self, master: &str) -> Result<PreparedContainer, PrepareError> {
        let cert = self.root.path().join("ca.pem");
        std::fs::write(&cert, "PEM").unwrap();
        prepare(
            &self.dir(),
            &self.spec,
            &ContainerInputs {
                master: &MasterAddress::parse(master).unwrap(),
                agent_id: &"a".into(),
                devices: &[],
                proxies: &ProxyOptions::default(),
                debug: false,
                tls: &TlsOptions {
                    master_cert: Some(cert),
                    ..TlsOptions::default()
                },
                supervisor: &self.root.path().join("supervisor"),
                bin: self.root.path().join("bin"),
                python: &self.python,
                runtime: self.runtime,
                own_devices: &[],
                other_nodes: &[],
                guard: &self.guard,
                shares_network: self.shares_network,
                root_tasks: false,
                user_directories: None,
                notice: None,
                warm: None,
            },
        )
    }

    fn mount(mut self, host: &Path, create: bool) -> Self {
        self.spec.mounts.push(Mount {
            host_path: host.to_string_lossy().into_owned(),
            container_path: "/data".into(),
            read_only: false,
            propagation: "rprivate".into(),
            create,
            trusted: false,
            shared: None,
        });
        self
    }
}

#[test]
fn the_supervisor_finds_its_script_complete_and_private() {
    let scene = Setup::new();
    let env = scene.prepare("http://10.0.0.1:8080").unwrap();
    scene.prepare("http://10.0.0.1:8080").unwrap();
    let path = scene.dir().run().join(SCRIPT_FILE);
    let script: Script = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(script.env, env);
    assert!(
        env.iter()
            .any(|(name, value)| name == "DET_MASTER" && value == "http://10.0.0.1:8080")
    );
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&scene.dir().run()), 0o700);
    assert!(
        !scene.dir().run().join(CERT_FILE).exists(),
        "no TLS, no certificate"
    );
    let sandbox: SandboxSpec =
        serde_json::from_slice(&std::fs::read(scene.dir().sandbox()).unwrap()).unwrap();
    let expected = if nix::unistd::geteuid().is_root() {
        [unprivileged_id(UserId(7)), UNPRIVILEGED_ID]
    } else {
        [0, 0]
    };
    assert!(
        expected.contains(&sandbox.user.uid),
        "no task is root by default, and this one runs as {}",
        sandbox.user.uid
    );
    assert!(sandbox.env.iter().any(|(name, _)| name == "PATH"));
}

#[test]
fn slots_that_are_only_counted_are_refused() {
    let mut scene = Setup::new();
    scene.spec.slots = SlotGrant::Count(2);
    let error = scene.prepare("http://10.0.0.1:8080").unwrap_err();
    assert!(
        error.to_string().starts_with("2 slots were granted"),
        "{error}"
    );
    scene.spec.slots = SlotGrant::Count(0);
    scene.prepare("http://10.0.0.1:8080").unwrap();
}

#[test]
fn the_working_directory_names_the_user_that_the_task_runs_as() {
    let mut scene = Setup::new();
    scene.runtime = RuntimeKind::Docker;
    scene.spec.user.user = "svc".into();
    scene.spec.user.uid = nix::unistd::geteuid().as_raw();
    scene.spec.script.work_dir = "home/$AGENT_USER".into();
    scene.prepare("http://10.0.0.1:8080").unwrap();
    let text = std::fs::read(scene.dir().run().join(SCRIPT_FILE)).unwrap();
    let script: Script = serde_json::from_slice(&text).unwrap();
    assert_eq!(script.work_dir, "/home/svc");
    let uid = scene.spec.user.uid;
    let account = format!("svc:x:{uid}:0::/home/svc:/bin/bash\n");
    let mut files = script.files.iter();
    let passwd = files.find(|file| file.path == "/run/determined/etc/passwd");
    assert!(passwd.unwrap().content.starts_with(&account));
}

#[test]
fn with_tls_the_certificate_is_where_the_environment_names_it() {
    let scene = Setup::new();
    let env = scene.prepare("https://10.0.0.1:8443").unwrap();
    let cert = scene.dir().run().join(CERT_FILE);
    assert_eq!(std::fs::read(cert).unwrap(), b"PEM");
    assert!(env.iter().any(|(name, _)| name == "DET_MASTER_CERT_FILE"));
}

#[test]
fn checkpoint_directories_are_made_where_an_administrator_chose_them() {
    let scene = Setup::new();
    let storage = scene.root.path().join("storage/deep");
    let mut scene = scene.mount(&storage, true);
    let message = scene.prepare("http://m").unwrap_err().to_string();
    assert!(message.contains("allowed_host_paths"), "{message}");
    assert!(!storage.exists());
    scene.spec.mounts[0].trusted = true;
    scene.prepare("http://m").unwrap();
    assert!(storage.is_dir());
    let message = scene
        .mount(Path::new("/nonexistent/data"), false)
        .prepare("http://m")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("\"/nonexistent/data\" at \"/data\"")
            && message.contains("does not exist on this agent"),
        "{message}"
    );
}

#[test]
fn no_link_leads_a_mount_to_the_data_of_the_cluster() {
    let mut scene = Setup::new();
    let root = scene.root.path().canonicalize().unwrap();
    scene.guard.protected = vec![root.join("c1")];
    scene.guard.allowed = vec![root.clone()];
    std::os::unix::fs::symlink(root.join("c1"), root.join("link")).unwrap();
    for source in ["link", "c1/run", "."] {
        let mut other = Setup::new();
        other.guard = scene.guard.clone();
        std::fs::create_dir_all(root.join("c1/run")).unwrap();
        let error = other
            .mount(&root.join(source), true)
            .prepare("http://m")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("belongs to the cluster"),
            "{source}: {error}"
        );
    }
}

impl Setup {
    /// What the task is given for one device of its configuration.
    fn device(&mut self, path: &Path) -> Result<DeviceMapping, String> {
        let device = DeviceMapping {
            host_path: path.to_string_lossy().into_owned(),
            container_path: "/dev/x".into(),
            mode: "rwm".into(),
        };
        self.spec.devices = vec![device];
        let prepared = self.prepare_all("http://m");
        prepared
            .map(|mut prepared| prepared.devices.remove(0))
            .map_err(|error| error.to_string())
    }
}

#[test]
fn processes_are_given_devices_only_where_an_administrator_allowed_them() {
    let mut scene = Setup::new();
    let null = Path::new("/dev/null");
    let message = scene.device(null).unwrap_err();
    assert!(message.contains("\"/dev/null\""), "{message}");
    scene.guard.allowed = vec!["/dev/null".into()];
    scene.device(null).unwrap();
    let sandbox: SandboxSpec =
        serde_json::from_slice(&std::fs::read(scene.dir().sandbox()).unwrap()).unwrap();
    assert_eq!(sandbox.devices[0].host_path, "/dev/null");
}

#[test]
fn containers_get_harmless_devices_by_their_real_name() {
    let mut scene = Setup::new();
    scene.runtime = RuntimeKind::Docker;
    let link = scene.root.path().join("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let given = scene.device(&link).unwrap();
    assert_eq!(
        (given.host_path.as_str(), given.container_path.as_str()),
        ("/dev/zero", "/dev/x"),
        "the link may lead elsewhere when the engine opens the device"
    );
    let message = scene.device(Path::new("/dev/no-such-device")).unwrap_err();
    assert!(message.contains("not on this agent"), "{message}");
}

#[test]
fn no_file_that_a_task_can_have_made_is_a_device_for_it() {
    let mut scene = Setup::new();
    let made = scene.root.path().canonicalize().unwrap().join("g");
    std::fs::write(&made, "").unwrap();
    scene.guard.allowed = vec!["/".into()];
    for runtime in [RuntimeKind::Docker, RuntimeKind::Process] {
        scene.runtime = runtime;
        for path in [made.as_path(), Path::new("/dev/shm"), Path::new("/usr")] {
            let message = scene.device(path).unwrap_err();
            assert!(message.contains("tasks could have made it"), "{message}");
        }
    }
}

#[test]
fn containers_get_capabilities_that_reach_out_of_them_only_where_an_administrator_allowed_them() {
    let mut scene = Setup::new();
    scene.spec.add_capabilities = vec!["SYS_PTRACE".into(), "SYS_ADMIN".into()];
    scene.prepare("http://m").unwrap();
    scene.runtime = RuntimeKind::Docker;
    let message = scene.prepare("http://m").unwrap_err().to_string();
    assert!(
        message.contains("\"SYS_ADMIN\"") && message.contains("allowed_capabilities"),
        "{message}"
    );
    scene.guard.allowed_capabilities = vec!["SYS_ADMIN".into()];
    scene.prepare("http://m").unwrap();
}

#[test]
fn each_unmapped_user_has_an_id_of_its_own_where_there_are_ids() {
    assert_ne!(unprivileged_id(UserId(1)), unprivileged_id(UserId(2)));
    assert_eq!(unprivileged_id(UserId(0)), UNPRIVILEGED_ID);
    assert_eq!(unprivileged_id(UserId(i64::MAX)), UNPRIVILEGED_ID);
    let everything = "         0          0 4294967295\n";
    assert!(maps(everything, unprivileged_id(UserId(1))));
    let container = "0 1000 1\n1 100000 65536\n";
    assert!(maps(container, UNPRIVILEGED_ID) && !maps(container, unprivileged_id(UserId(1))));
    assert!(!maps("", 0) && !maps("x y z", 1));
}

#[test]
fn nothing_of_the_agents_environment_reaches_a_task_but_where_things_are() {
    let env = base_env(&TaskUser::default(), |name| match name {
        "PATH" => Some("/x/bin".into()),
        "LANG" => Some("C.UTF-8".into()),
        "HOME" => Some("/home/me".into()),
        _ => None,
    });
    let names: Vec<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["PATH", "HOME", "LANG"]);
    assert_eq!(env[0].1, "/x/bin");
}

#[test]
fn a_container_in_its_hosts_network_reads_no_packets_there() {
    let mut scene = Setup::new();
    scene.runtime = RuntimeKind::Docker;
    scene.spec.drop_capabilities = vec!["NET_RAW".into(), "CHOWN".into()];
    let dropped = |scene: &Setup| scene.prepare_all("http://m").unwrap().dropped_capabilities;
    assert_eq!(dropped(&scene), ["CHOWN", "NET_RAW"]);
    scene.spec.drop_capabilities.clear();
    scene.shares_network = true;
    assert_eq!(dropped(&scene), ["NET_BIND_SERVICE", "NET_RAW"]);
    scene.spec.add_capabilities = vec!["NET_RAW".into()];
    let message = scene.prepare("http://m").unwrap_err().to_string();
    assert!(
        message.contains("\"NET_RAW\"") && message.contains("shares the network"),
        "{message}"
    );
    scene.spec.default_capabilities = vec!["NET_RAW".into()];
    assert_eq!(dropped(&scene), ["NET_BIND_SERVICE"]);
    scene.guard.allowed_capabilities = vec!["NET_BIND_SERVICE".into()];
    assert!(dropped(&scene).is_empty());
}

#[test]
fn a_container_is_prepared_again_with_the_supervisor_where_it_was() {
    let mut scene = Setup::new();
    scene.runtime = RuntimeKind::Docker;
    let prepared = scene.prepare_all("http://m").unwrap();
    let again = scene.prepare_all("http://m").unwrap();
    assert_eq!(prepared.supervisor, again.supervisor);
    assert_eq!(prepared.checked, again.checked);
    let run = std::fs::metadata(scene.dir().run()).unwrap();
    let first = &prepared.checked[0];
    assert_eq!(
        (first.path.as_str(), first.device, first.inode),
        ("/run/determined", run.dev(), run.ino())
    );
    let other = Setup::new();
    let place = other.dir().supervisor_in_container().unwrap();
    assert_ne!(place, prepared.supervisor, "it cannot be guessed");
}
