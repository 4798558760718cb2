//! Prepares a container's directory for its supervisor.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};

use det_ids::{AgentId, UserId};
use det_taskspec::accounts::{Account, of_container};
use det_taskspec::guard::HostGuard;
use det_taskspec::sandbox::{SandboxSpec, WarmPython};
use det_taskspec::{
    CheckedMount, ContainerSpec, Device, DeviceKind, DeviceMapping, Entrypoint, Mount, RUN_DIR,
    SCRIPT_FILE, SlotGrant, TaskUser, UNPRIVILEGED_ID, unprivileged_id,
};
use thiserror::Error;

use super::accounts;
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
    pub(crate) agent_id: &'a AgentId,
    pub(crate) devices: &'a [Device],
    pub(crate) proxies: &'a ProxyOptions,
    /// Whether scripts of tasks log in detail, also of those whose configuration does not ask for it.
    pub(crate) debug: bool,
    pub(crate) tls: &'a TlsOptions,
    pub(crate) supervisor: &'a Path,
    pub(crate) bin: PathBuf,
    pub(crate) python: &'a TaskPython,
    pub(crate) runtime: RuntimeKind,
    /// The devices of this container's slots.
    pub(crate) own_devices: &'a [LocalDevice],
    /// Device files of the agent's other slots.
    pub(crate) other_nodes: &'a [PathBuf],
    pub(crate) guard: &'a HostGuard,
    /// Whether the container has its host's network.
    pub(crate) shares_network: bool,
    /// Whether process tasks of users without a mapping run as root.
    pub(crate) root_tasks: bool,
    /// The directories of users that outlive tasks; `None` = there are none.
    pub(crate) user_directories: Option<UserDirectories<'a>>,
    /// A warning about this host's sandboxes for the task's log; `None` = there is none.
    pub(crate) notice: Option<&'a str>,
    /// What there is for warm starts of Python; `None` = nothing.
    pub(crate) warm: Option<&'a WarmPython>,
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
#[derive(Debug, Default)]
pub(crate) struct PreparedContainer {
    /// The task's environment.
    pub(crate) env: Vec<(String, String)>,
    /// Its mounts, for an engine: with the paths that were checked.
    pub(crate) mounts: Vec<Mount>,
    /// The devices that its configuration names, likewise; those of its slots are not among them.
    pub(crate) devices: Vec<DeviceMapping>,
    /// Capabilities that its container is not to have, although its engine gives them.
    pub(crate) dropped_capabilities: Vec<String>,
    /// What must be mounted in its container: the run directory and the mounts that the task asks for.
    pub(crate) checked: Vec<CheckedMount>,
    /// Where its container has the supervisor, which no other one knows.
    pub(crate) supervisor: String,
    /// Where the task has the directory of its user that outlives it; `None` = it has none.
    pub(crate) kept: Option<String>,
}

/// Writes the files of the directory. May be repeated. Blocking.
pub(crate) fn prepare(
    dir: &ContainerDir,
    spec: &ContainerSpec,
    inputs: &ContainerInputs<'_>,
) -> Result<PreparedContainer, PrepareError> {
    if let SlotGrant::Count(slots @ 1..) = spec.slots {
        return Err(PrepareError::UnnamedSlots(slots));
    }
    let user = &identity(&spec.user, spec.owner_id, inputs);
    let work_dir = user.work_dir(&spec.script.work_dir);
    let of_user = user_directory::mount(spec, inputs.user_directories, &work_dir);
    let sources = find_sources(spec, of_user.as_ref(), user, inputs)?;
    let devices = spec.devices.iter();
    let devices = devices.map(|device| grants::find_device(device, inputs));
    let devices = devices.collect::<Result<Vec<_>, _>>()?.concat();
    let dropped_capabilities = grants::check_capabilities(spec, inputs)?;
    let run = dir.run();
    owned_directory(&run, 0o700, user)?;
    let cert = place_certificate(&run, user, inputs)?;
    let env = env::complete(
        spec,
        &AgentFacts {
            master: inputs.master,
            agent_id: inputs.agent_id,
            devices: inputs.devices,
            cert,
            cert_name: inputs.tls.master_cert_name.as_deref(),
            proxies: inputs.proxies,
            debug: inputs.debug,
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
        script.files.extend(accounts::of_process(&account));
    } else {
        let account = of_container(user, &script.work_dir);
        script.files.extend(account);
    }
    let (checked, supervisor) = match inputs.runtime {
        RuntimeKind::Process => (Vec::new(), String::new()),
        RuntimeKind::Docker | RuntimeKind::Podman => (
            checked_mounts(&run, &sources, &work_dir)?,
            dir.supervisor_in_container()
                .map_err(access("choose a place for the supervisor of", dir.path()))?,
        ),
    };
    make_mount_points(&run, &checked, user)?;
    let to = run.join(SCRIPT_FILE);
    write_json(&to, &script)?;
    give(&to, user)?;

    let to = dir.supervisor();
    place_supervisor(inputs.supervisor, &inputs.bin, &to)
        .map_err(access("place the supervisor at", &to))?;
    if inputs.runtime == RuntimeKind::Process {
        let sandbox = sandbox(spec, user, of_user.clone(), &devices, inputs);
        write_json(&dir.sandbox(), &sandbox)?;
    }
    let mounts = sources.iter().map(|(mount, source)| source.resolved(mount));
    Ok(PreparedContainer {
        env,
        mounts: mounts.collect(),
        devices,
        dropped_capabilities,
        checked,
        supervisor,
        kept: of_user.as_ref().map(|mount| mount.target(&work_dir)),
    })
}

/// Copies the certificates that the agent trusts a master by into the run directory.
fn place_certificate(
    run: &Path,
    user: &TaskUser,
    inputs: &ContainerInputs<'_>,
) -> Result<CertCheck, PrepareError> {
    let tls = inputs.tls;
    let Some(file) = tls.master_cert.as_deref().filter(|_| inputs.master.tls) else {
        return Ok(if tls.skip_verify {
            CertCheck::Off
        } else {
            CertCheck::Usual
        });
    };
    let to = run.join(CERT_FILE);
    for parent in [run.join("etc"), run.join("etc/ssl")] {
        owned_directory(&parent, 0o755, user)?;
    }
    let text = std::fs::read(file).map_err(access("read", file))?;
    write_atomically(&to, &text, 0o644).map_err(access("write", &to))?;
    Ok(CertCheck::File)
}

/// What must be mounted in the container, the run directory first: a mount of the task could cover it, and with it all
/// that the supervisor reads.
fn checked_mounts(
    run: &Path,
    sources: &[(&Mount, Source)],
    work_dir: &str,
) -> Result<Vec<CheckedMount>, PrepareError> {
    let own = std::fs::metadata(run).map_err(access("look at", run))?;
    let mut checked = vec![CheckedMount {
        path: RUN_DIR.to_owned(),
        device: own.dev(),
        inode: own.ino(),
    }];
    let sources = sources.iter();
    checked.extend(sources.map(|(mount, source)| source.checked(mount, work_dir)));
    Ok(checked)
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
    devices: &[DeviceMapping],
    inputs: &ContainerInputs<'_>,
) -> SandboxSpec {
    let python = inputs.python;
    let own = device_mappings(inputs.own_devices);
    SandboxSpec {
        user: user.clone(),
        shown_ids: shown_ids(spec, user),
        mounts: spec.mounts.clone(),
        user_directory,
        shm_size_bytes: spec.shm_size_bytes,
        python_dir: python.dir.clone(),
        python_path: python.package_path.clone(),
        env: base_env(user, |name| std::env::var(name).ok()),
        devices: own.chain(devices.iter().cloned()).collect(),
        guard: inputs.guard.clone(),
        exposed: exposed(python),
        notice: notice(user, inputs),
        warm: (inputs.warm.cloned()).filter(|_| spec.script.task_type.starts_warm()),
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
    let home = home_on_host(user, &own).unwrap_or_else(|| "/".to_owned());
    let mut env = passed_on(own);
    env.insert(1, ("HOME".to_owned(), home));
    env
}

/// What of the agent's own environment process tasks have, the search path of programs first.
pub(crate) fn passed_on(own: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // Where libraries and languages of the host are found; nothing that could hold a secret.
    const PASSED_ON: [&str; 5] = ["LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH"];
    let mut env = vec![(
        "PATH".to_owned(),
        own("PATH").unwrap_or_else(|| USUAL_PATH.to_owned()),
    )];
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
mod tests;
