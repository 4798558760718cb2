//! Prepares a container's directory for its supervisor.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};

use det_ids::UserId;
use det_taskspec::guard::HostGuard;
use det_taskspec::sandbox::SandboxSpec;
use det_taskspec::{
    CheckedMount, ContainerSpec, Device, DeviceKind, DeviceMapping, Entrypoint, Granted, Mount,
    RUN_DIR, SCRIPT_FILE, TaskUser, UNPRIVILEGED_ID, unprivileged_id,
};
use thiserror::Error;

use super::accounts::Account;
use super::sources::Source;
use super::store::{ContainerDir, RuntimeKind};
use super::user_directory::UserDirectories;
use super::{grants, sources, user_directory};
use crate::data_dir::write_atomically;
use crate::devices::LocalDevice;
use crate::env::{self, AgentFacts, CERT_FILE, CertCheck, TaskPlace};
use crate::master::MasterAddress;
use crate::options::{ProxyOptions, TlsOptions};
use crate::python::TaskPython;
use crate::runtime::process::place_supervisor;

/// What the agent contributes to a container's directory.
pub(crate) struct ContainerInputs<'a> {
    pub(crate) master: &'a MasterAddress,
    pub(crate) agent_id: &'a str,
    pub(crate) devices: &'a [Device],
    pub(crate) proxies: &'a ProxyOptions,
    pub(crate) tls: &'a TlsOptions,
    pub(crate) supervisor: &'a Path,
    pub(crate) bin: PathBuf,
    pub(crate) python: &'a TaskPython,
    pub(crate) runtime: RuntimeKind,
    /// The devices of this container's slots.
    pub(crate) own_devices: &'a [LocalDevice],
    pub(crate) guard: &'a HostGuard,
    /// Whether process tasks of users without a mapping run as root.
    pub(crate) root_tasks: bool,
    /// The directories of users that outlive tasks; `None` = there are none.
    pub(crate) user_directories: Option<UserDirectories<'a>>,
    /// A warning about this host's sandboxes for the task's log; `None` = there is none.
    pub(crate) notice: Option<&'a str>,
}

/// Why a container cannot be prepared.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    /// The task asks for what this host does not have.
    #[error("cannot mount \"{host_path}\" at \"{container_path}\": {reason}")]
    Mount {
        host_path: String,
        container_path: String,
        reason: String,
    },
    /// The task asks for a device that it may not have.
    #[error("cannot give the task the device \"{path}\": {reason}")]
    Device { path: String, reason: String },
    /// The task was granted a number of slots without their names: an agent's slots are devices with numbers.
    #[error(
        "{0} slots were granted as a number without names, and this agent gives devices by their numbers: install the same \
         version on agents and master"
    )]
    UnnamedSlots(u32),
    /// The task asks for a capability that it may not have.
    #[error("cannot give the task the capability \"{name}\": {reason}")]
    Capability { name: String, reason: String },
    /// The directory of the task's user that outlives it cannot be given to the task.
    #[error("cannot give the task the directory of its user, \"{path}\": {reason}")]
    UserDirectory { path: String, reason: String },
    #[error("cannot {action} \"{}\": {source}", path.display())]
    Access {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// A container whose directory is complete.
pub(crate) struct Prepared {
    /// The task's environment.
    pub(crate) env: Vec<(String, String)>,
    /// Its mounts, for an engine: with the paths that were checked.
    pub(crate) mounts: Vec<Mount>,
    /// Where the task has the directory of its user that outlives it; `None` = it has none.
    pub(crate) kept: Option<String>,
}

/// Writes the files of the directory. May be repeated. Blocking.
pub(crate) fn prepare(
    dir: &ContainerDir,
    spec: &ContainerSpec,
    inputs: &ContainerInputs<'_>,
) -> Result<Prepared, PrepareError> {
    if let Granted::Count(slots @ 1..) = spec.slots {
        return Err(PrepareError::UnnamedSlots(slots));
    }
    let user = &identity(&spec.user, spec.owner_id, inputs);
    let work_dir = user.work_dir(&spec.script.work_dir);
    let of_user = user_directory::mount(spec, inputs.user_directories, &work_dir);
    let sources = find_sources(spec, of_user.as_ref(), user, inputs)?;
    for device in &spec.devices {
        grants::check_device(device, inputs)?;
    }
    grants::check_capabilities(spec, inputs)?;
    let run = dir.run();
    owned_directory(&run, 0o700, user)?;
    let tls = inputs.tls;
    let cert = match tls.master_cert.as_deref().filter(|_| inputs.master.tls) {
        None if tls.skip_verify => CertCheck::Off,
        None => CertCheck::Usual,
        Some(file) => {
            let to = run.join(CERT_FILE);
            for parent in [run.join("etc"), run.join("etc/ssl")] {
                owned_directory(&parent, 0o755, user)?;
            }
            let text = std::fs::read(file).map_err(access("read", file))?;
            write_atomically(&to, &text, 0o644).map_err(access("write", &to))?;
            CertCheck::File
        }
    };
    let env = env::complete(
        spec,
        &AgentFacts {
            master: inputs.master,
            agent_id: inputs.agent_id,
            devices: inputs.devices,
            cert,
            cert_name: tls.master_cert_name.as_deref(),
            proxies: inputs.proxies,
            place: match inputs.runtime {
                RuntimeKind::Process => TaskPlace::HostProcess,
                RuntimeKind::Docker | RuntimeKind::Podman => TaskPlace::Container,
            },
        },
    );
    let mut script = spec.script.clone();
    script.env.clone_from(&env);
    script.work_dir.clone_from(&work_dir);
    if inputs.runtime == RuntimeKind::Process {
        let account = Account {
            asked: &spec.user,
            given: user,
            ids: shown_ids(spec, user).unwrap_or_else(|| ids_seen(user)),
            sees_groups: nix::unistd::geteuid().is_root() && shown_ids(spec, user).is_none(),
            home: &home(spec, user, &script.work_dir),
        };
        script.files.extend(account.files());
    } else {
        let checked = sources
            .iter()
            .map(|(mount, source)| source.checked(mount, &script.work_dir));
        script.checked_mounts = checked.collect();
        make_mount_points(&run, &script.checked_mounts, user)?;
    }
    let to = run.join(SCRIPT_FILE);
    write_json(&to, &script)?;
    give(&to, user)?;

    let to = dir.supervisor();
    place_supervisor(inputs.supervisor, &inputs.bin, &to)
        .map_err(access("place the supervisor at", &to))?;
    if inputs.runtime == RuntimeKind::Process {
        let sandbox = sandbox(spec, user, of_user.clone(), inputs);
        write_json(&dir.sandbox(), &sandbox)?;
    }
    let mounts = sources.iter().map(|(mount, source)| source.resolved(mount));
    Ok(Prepared {
        env,
        mounts: mounts.collect(),
        kept: of_user.as_ref().map(|mount| mount.target(&work_dir)),
    })
}

/// What the task's mounts show, the directory of its user last.
fn find_sources<'a>(
    spec: &'a ContainerSpec,
    of_user: Option<&'a Mount>,
    user: &TaskUser,
    inputs: &ContainerInputs<'_>,
) -> Result<Vec<(&'a Mount, Source)>, PrepareError> {
    let mut sources = Vec::new();
    for mount in &spec.mounts {
        sources.push((mount, sources::find(mount, user, inputs.guard)?));
    }
    if let (Some(mount), Some(users)) = (of_user, inputs.user_directories) {
        let failed = |reason: String| PrepareError::UserDirectory {
            path: mount.host_path.clone(),
            reason,
        };
        let found = user_directory::find(users, spec.owner_id, user, inputs.runtime);
        let source = Source::at(mount, &found.map_err(failed)?);
        sources.push((mount, source.map_err(|error| failed(error.to_string()))?));
    }
    Ok(sources)
}

/// Makes the mount points that are in the run directory, with all directories above them: an engine would make them as
/// root's, and the task could not write beside them.
fn make_mount_points(
    run: &Path,
    mounts: &[CheckedMount],
    user: &TaskUser,
) -> Result<(), PrepareError> {
    for mount in mounts {
        let Ok(below) = Path::new(&mount.path).strip_prefix(RUN_DIR) else {
            continue;
        };
        let mut point = run.to_owned();
        for part in below.parent().into_iter().flat_map(Path::components) {
            match part {
                Component::Normal(name) => point.push(name),
                Component::CurDir => continue,
                // The engine refuses what is no path of a mount.
                _ => break,
            }
            owned_directory(&point, 0o700, user)?;
        }
    }
    Ok(())
}

/// The account of the task on this host. A process task runs as root only if the agent's configuration allows it; in a
/// container it is root of the image.
fn identity(user: &TaskUser, owner_id: UserId, inputs: &ContainerInputs<'_>) -> TaskUser {
    match inputs.runtime {
        RuntimeKind::Process => process_user(user, owner_id, inputs.root_tasks),
        RuntimeKind::Docker | RuntimeKind::Podman => user.clone(),
    }
}

/// The account of a process task of `user`, which belongs to the cluster's user with this id. User and group may be root's
/// each by itself, where an administrator has set the other one only.
pub(crate) fn process_user(user: &TaskUser, owner_id: UserId, root_tasks: bool) -> TaskUser {
    let is_ordinary = user.uid != 0 && user.gid != 0;
    if is_ordinary || root_tasks || !nix::unistd::geteuid().is_root() {
        return user.clone();
    }
    let id = unprivileged_id(owner_id);
    let in_place_of_root = if id == UNPRIVILEGED_ID || !is_mapped(id) {
        TaskUser {
            user: "nobody".to_owned(),
            uid: UNPRIVILEGED_ID,
            group: "nogroup".to_owned(),
            gid: UNPRIVILEGED_ID,
        }
    } else {
        let name = format!("det-user-{owner_id}");
        TaskUser {
            user: name.clone(),
            uid: id,
            group: name,
            gid: id,
        }
    };
    let mut account = user.clone();
    if user.uid == 0 {
        account.user = in_place_of_root.user;
        account.uid = in_place_of_root.uid;
    }
    if user.gid == 0 {
        account.group = in_place_of_root.group;
        account.gid = in_place_of_root.gid;
    }
    account
}

/// User and group id of a process task as it sees them: an agent that is not root starts tasks in a user namespace, in which
/// they are root.
fn ids_seen(user: &TaskUser) -> (u32, u32) {
    if nix::unistd::geteuid().is_root() {
        (user.uid, user.gid)
    } else {
        (0, 0)
    }
}

fn is_shell(spec: &ContainerSpec) -> bool {
    matches!(spec.script.entrypoint, Entrypoint::SshServer { .. })
}

/// The ids under which a shell that would be root sees itself: an SSH server that runs as root needs capabilities, which no
/// process task has.
fn shown_ids(spec: &ContainerSpec, user: &TaskUser) -> Option<(u32, u32)> {
    let id = unprivileged_id(spec.owner_id);
    (is_shell(spec) && ids_seen(user).0 == 0).then_some((id, id))
}

/// The home directory of a process task: that of its account on this host, else its working directory, in which the sessions
/// of a shell begin in any case.
fn home(spec: &ContainerSpec, user: &TaskUser, work_dir: &str) -> String {
    let own = home_on_host(user, |name| std::env::var(name).ok()).filter(|_| !is_shell(spec));
    own.unwrap_or_else(|| work_dir.to_owned())
}

fn home_on_host(user: &TaskUser, own: impl Fn(&str) -> Option<String>) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return own("HOME");
    }
    nix::unistd::User::from_uid(user.uid.into())
        .ok()
        .flatten()
        // The directories of accounts such as `nobody` do not exist.
        .filter(|entry| entry.dir.is_dir())
        .map(|entry| entry.dir.to_string_lossy().into_owned())
}

/// Whether this process may use an id: a user namespace, as in a container without privileges, has only few.
fn is_mapped(id: u32) -> bool {
    ["/proc/self/uid_map", "/proc/self/gid_map"]
        .iter()
        .all(|path| std::fs::read_to_string(path).is_ok_and(|map| maps(&map, id)))
}

/// Whether an id is mapped by the text of `/proc/PID/uid_map`.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line
            .split_whitespace()
            .map(|number| number.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        let first = first.unwrap_or(u64::MAX);
        (first..first.saturating_add(count.unwrap_or(0))).contains(&u64::from(id))
    })
}

/// The sandbox of a process task.
fn sandbox(
    spec: &ContainerSpec,
    user: &TaskUser,
    user_directory: Option<Mount>,
    inputs: &ContainerInputs<'_>,
) -> SandboxSpec {
    let python = inputs.python;
    let devices = device_mappings(inputs.own_devices);
    SandboxSpec {
        user: user.clone(),
        shown_ids: shown_ids(spec, user),
        mounts: spec.mounts.clone(),
        user_directory,
        shm_size_bytes: spec.shm_size_bytes,
        python_dir: python.dir.clone(),
        python_path: python.package_path.clone(),
        env: base_env(user, |name| std::env::var(name).ok()),
        devices: devices.chain(spec.devices.iter().cloned()).collect(),
        guard: inputs.guard.clone(),
        exposed: exposed(python),
        notice: notice(user, inputs),
    }
}

/// What interpreters and libraries of the host need to be seen.
pub(crate) fn exposed(python: &TaskPython) -> Vec<PathBuf> {
    let mut exposed = python.exposed.clone();
    if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH") {
        exposed.extend(std::env::split_paths(&libraries).filter(|path| path.is_absolute()));
    }
    exposed
}

/// The first line of the task's log about its sandbox.
fn notice(user: &TaskUser, inputs: &ContainerInputs<'_>) -> Option<String> {
    const ROOT: &str = "this task runs as root of the agent's host, because the agent's configuration has \
                        \"root_tasks: root\": it can read whatever root owns there";
    let is_root = user.uid == 0 && nix::unistd::geteuid().is_root();
    let parts: Vec<&str> = inputs
        .notice
        .into_iter()
        .chain(is_root.then_some(ROOT))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The device files that a container's GPUs need.
pub(crate) fn device_mappings(devices: &[LocalDevice]) -> impl Iterator<Item = DeviceMapping> {
    const NVIDIA: [&str; 4] = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ];
    const AMD: [&str; 1] = ["/dev/kfd"];
    let has = |kind| devices.iter().any(|device| device.device.kind == kind);
    let mut nodes: BTreeSet<PathBuf> = BTreeSet::new();
    for (kind, common) in [
        (DeviceKind::Cuda, &NVIDIA[..]),
        (DeviceKind::Rocm, &AMD[..]),
    ] {
        if has(kind) {
            nodes.extend(common.iter().map(PathBuf::from));
        }
    }
    nodes.extend(
        devices
            .iter()
            .flat_map(|device| device.nodes.iter().cloned()),
    );
    // Not every driver has all of them.
    nodes.into_iter().filter(|node| node.exists()).map(|node| {
        let node = node.to_string_lossy().into_owned();
        DeviceMapping {
            host_path: node.clone(),
            container_path: node,
            mode: "rw".to_owned(),
        }
    })
}

/// The environment that a process task has instead of an image's.
fn base_env(user: &TaskUser, own: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // Where libraries and languages of the host are found; nothing that could hold a secret.
    const PASSED_ON: [&str; 5] = ["LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH"];
    let mut env = vec![(
        "PATH".to_owned(),
        own("PATH").unwrap_or_else(|| USUAL_PATH.to_owned()),
    )];
    let home = home_on_host(user, &own);
    env.push(("HOME".to_owned(), home.unwrap_or_else(|| "/".to_owned())));
    env.extend(
        PASSED_ON
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), own(name)?))),
    );
    env
}

fn owned_directory(path: &Path, mode: u32, user: &TaskUser) -> Result<(), PrepareError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(access("create", path)(error));
        }
        _ => {}
    }
    // A link that a task left there must not be followed.
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        let other = io::Error::other("it is no directory");
        return Err(access("create", path)(other));
    }
    // The umask may have removed bits.
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(access("open", path))?;
    give(path, user)
}

/// Makes the task's user the owner of a file; does nothing if the agent is not root.
fn give(path: &Path, user: &TaskUser) -> Result<(), PrepareError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    lchown(path, Some(user.uid), Some(user.gid)).map_err(access("hand over", path))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), PrepareError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| access("write", path)(io::Error::other(error)))?;
    write_atomically(path, &text, 0o600).map_err(access("write", path))
}

fn access(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
    let path = path.to_owned();
    move |source| PrepareError::Access {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
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
            }
        }

        fn dir(&self) -> ContainerDir {
            ContainerDir::new(self.root.path(), &"c1".into()).unwrap()
        }

        fn prepare(&self, master: &str) -> Result<Vec<(String, String)>, PrepareError> {
            let cert = self.root.path().join("ca.pem");
            std::fs::write(&cert, "PEM").unwrap();
            prepare(
                &self.dir(),
                &self.spec,
                &ContainerInputs {
                    master: &MasterAddress::parse(master).unwrap(),
                    agent_id: "a",
                    devices: &[],
                    proxies: &ProxyOptions::default(),
                    tls: &TlsOptions {
                        master_cert: Some(cert),
                        ..TlsOptions::default()
                    },
                    supervisor: &self.root.path().join("supervisor"),
                    bin: self.root.path().join("bin"),
                    python: &self.python,
                    runtime: self.runtime,
                    own_devices: &[],
                    guard: &self.guard,
                    root_tasks: false,
                    user_directories: None,
                    notice: None,
                },
            )
            .map(|prepared| prepared.env)
        }

        fn mount(mut self, host: &Path, create: bool) -> Self {
            self.spec.mounts.push(Mount {
                host_path: host.to_string_lossy().into_owned(),
                container_path: "/data".into(),
                read_only: false,
                propagation: "rprivate".into(),
                create,
                trusted: false,
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
        scene.spec.slots = Granted::Count(2);
        let error = scene.prepare("http://10.0.0.1:8080").unwrap_err();
        assert!(
            error.to_string().starts_with("2 slots were granted"),
            "{error}"
        );
        scene.spec.slots = Granted::Count(0);
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
    }

    #[test]
    fn with_tls_the_certificate_is_where_the_environment_says() {
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

    #[test]
    fn devices_are_given_only_where_an_administrator_allowed_them() {
        let mut scene = Setup::new();
        scene.spec.devices.push(DeviceMapping {
            host_path: "/dev/null".into(),
            container_path: "/dev/extra".into(),
            mode: "rw".into(),
        });
        let message = scene.prepare("http://m").unwrap_err().to_string();
        assert!(message.contains("\"/dev/null\""), "{message}");
        scene.guard.allowed = vec!["/dev/null".into()];
        scene.prepare("http://m").unwrap();
    }

    #[test]
    fn containers_get_harmless_devices_and_no_directory_that_is_none_of_devices() {
        let mut scene = Setup::new();
        scene.runtime = RuntimeKind::Docker;
        let mut device = |path: &str| {
            scene.spec.devices = vec![DeviceMapping {
                host_path: path.into(),
                container_path: "/dev/x".into(),
                mode: "rwm".into(),
            }];
            scene.prepare("http://m").map_err(|error| error.to_string())
        };
        device("/dev/zero").unwrap();
        let message = device("/usr").unwrap_err();
        assert!(message.contains("allowed_host_paths"), "{message}");
        let message = device("/dev/no-such-device").unwrap_err();
        assert!(message.contains("not on this agent"), "{message}");
    }

    #[test]
    fn containers_get_capabilities_that_reach_out_of_them_only_where_an_administrator_allowed_them()
    {
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
}
