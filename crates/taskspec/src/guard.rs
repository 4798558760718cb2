//! Which parts of a host a task's configuration may name. Pure: paths are compared, nothing is looked up.
//!
//! | path | as the source of a mount |
//! | --- | --- |
//! | [`HostGuard::protected`], and what contains it | never |
//! | at or below [`HostGuard::allowed`] | yes |
//! | `/usr` and the like | read-only |
//! | `/etc`, `/dev` except `/dev/shm`, `/proc`, `/run`, the home directory of the agent's account, files of databases and engines and the like, and what contains them | no |
//! | anything else | yes, with the rights of the task's user |

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Directories whose content controls the whole host: devices, configuration, the state of services.
const SENSITIVE: [&str; 15] = [
    "/boot",
    "/dev",
    "/etc",
    "/proc",
    "/run",
    "/sys",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/determined",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/pgsql",
    "/var/lib/postgresql",
    "/var/run",
    // Jobs that cron runs as root, among others.
    "/var/spool",
];
/// Protected also where the agent runs as another account, which may still use the Docker engine.
const HOME_OF_ROOT: &str = "/root";
/// Shared memory: it is below `/dev`, contains no devices, and every user may write to it, as to `/tmp`.
const SHARED_MEMORY: &str = "/dev/shm";
/// Directories below `/dev` that are file systems of their own, which tasks may be given to write to: a device file in
/// them may be a task's.
const OPEN_BELOW_DEV: [&str; 4] = ["/dev/hugepages", "/dev/mqueue", "/dev/pts", "/dev/shm"];
/// Devices that every container may be given.
///
/// - `full`, `null`, `random`, `tty`, `urandom`, `zero`: every container has them anyway; `tty` is the terminal of the process
///   that opens it.
/// - `fuse`, `net/tun`: they do nothing without capabilities or namespaces that a container must have been given.
/// - `infiniband/rdma_cm`, and [`RDMA_VERBS`]: RDMA between the containers of distributed tasks.
const HARMLESS_DEVICES: [&str; 9] = [
    "/dev/full",
    "/dev/fuse",
    RDMA_CONNECTIONS,
    "/dev/net/tun",
    "/dev/null",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];
/// The directory of RDMA. It is given in parts: `umad*` send management packets and `issm*` announce a subnet manager, which
/// is control over the whole fabric, not over the task's own traffic.
pub const RDMA: &str = "/dev/infiniband";
/// How RDMA connections are made.
const RDMA_CONNECTIONS: &str = "/dev/infiniband/rdma_cm";
/// How the names of devices begin by which programs use RDMA: each process reaches its own queues and memory.
const RDMA_VERBS: &str = "/dev/infiniband/uverbs";
/// How the names of render nodes begin: processors for graphics and video without the right to control a display. They
/// are given to all containers unless they belong to a slot.
const RENDER_NODE: &str = "/dev/dri/renderD";
/// Directories with the programs of the host.
pub const PROGRAMS: [&str; 7] = [
    "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr",
];

/// Capabilities that every task may add: those that engines give by default, and those that affect only the memory, time
/// and limits of the container's own processes.
const HARMLESS_CAPABILITIES: [&str; 20] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "SYS_NICE",
    "SYS_PTRACE",
    "SYS_RESOURCE",
];

/// Those of them that concern the network, and are harmless in one of the container's own only. In its host's a task reads
/// and forges packets with the first, and with the second takes ports that belong to services of the host.
const NETWORK_CAPABILITIES: [&str; 2] = ["NET_RAW", "NET_BIND_SERVICE"];

/// Which parts of an agent's host its tasks may use. All paths are absolute and without links.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostGuard {
    /// Files and directories of master and agent: data directories, configurations, tokens. No task reaches them,
    /// whatever is allowed.
    pub protected: Vec<PathBuf>,
    /// Home directories of the account that the agent runs as.
    pub homes: Vec<PathBuf>,
    /// `allowed_host_paths` of the agent's configuration.
    pub allowed: Vec<PathBuf>,
    /// `allowed_capabilities` of the agent's configuration.
    pub allowed_capabilities: Vec<String>,
    /// `user_directories` of the agent's configuration, which is [protected](Self::protected) as well.
    pub user_directories: Option<PathBuf>,
}

impl HostGuard {
    /// Why a mount may not have this source, a path without links; `None` = it may.
    pub fn refusal(&self, source: &Path, read_only: bool) -> Option<String> {
        if let Some(own) = self.protected.iter().find(|own| overlap(source, own)) {
            return Some(if source.starts_with(own) {
                "it belongs to the cluster itself, and no task may reach it".to_owned()
            } else {
                format!(
                    "it contains \"{}\", which belongs to the cluster itself; mount a directory beside that",
                    own.display()
                )
            });
        }
        if self.is_allowed(source) {
            return None;
        }
        let sensitive = SENSITIVE
            .iter()
            .map(Path::new)
            .filter(|_| !source.starts_with(SHARED_MEMORY))
            .chain([Path::new(HOME_OF_ROOT)])
            .chain(self.homes.iter().map(PathBuf::as_path));
        if let Some(kept) = sensitive.into_iter().find(|kept| overlap(source, kept)) {
            let relation = if source.starts_with(kept) {
                "is part of"
            } else {
                "contains"
            };
            return Some(format!(
                "it {relation} \"{}\", which tasks may use only where an administrator has named the path in \
                 \"allowed_host_paths\" of the agent's configuration",
                kept.display()
            ));
        }
        let programs = PROGRAMS
            .iter()
            .find(|programs| source.starts_with(programs));
        programs.filter(|_| !read_only).map(|programs| {
            format!(
                "it is part of \"{programs}\", which tasks may mount read-only: set \"read_only: true\", or let an \
                 administrator name the path in \"allowed_host_paths\" of the agent's configuration"
            )
        })
    }

    /// Why a directory that an administrator chose for all tasks cannot be mounted; `None` = it can. It is named as `named`,
    /// which leads by these links of root's to `source`; links and source are paths without links.
    ///
    /// Root's are also the links of a task that is root of its image, in a directory that it mounts. Where one was made where
    /// tasks may mount, it leads no further than they may mount: else it would give them the host.
    pub fn cluster_refusal(
        &self,
        named: &Path,
        source: &Path,
        links: &[PathBuf],
        read_only: bool,
    ) -> Option<String> {
        let of_users = self.user_directories.as_ref();
        if let Some(users) = of_users.filter(|users| overlap(source, users)) {
            return Some(format!(
                "it overlaps with \"{}\", which has the directories of users that only their own tasks may see; move one of \
                 the two",
                users.display()
            ));
        }
        // A task that may mount a directory above one may mount that one as well.
        let open = |directory: &Path| self.refusal(directory, false).is_none();
        let link = links.iter().find(|link| link.parent().is_some_and(open))?;
        let reason = self.refusal(source, read_only)?;
        Some(format!(
            "\"{}\" leads to \"{}\" by the link \"{}\", which a task could have made, and what it leads to is not for tasks: \
             {reason}. If that directory is meant, configure it in place of \"{0}\", by its own path without links",
            named.display(),
            source.display(),
            link.display(),
        ))
    }

    /// Whether a directory, a path without links, is one that no task reaches: links in it are not made by tasks.
    pub fn hides(&self, directory: &Path) -> bool {
        let below = |above: &PathBuf| directory.starts_with(above);
        self.protected.iter().any(below)
            || (self.homes.iter().any(below) && !self.is_allowed(directory))
    }

    /// Why a directory may not be created for a task; `None` = it may.
    pub fn creation_refusal(&self, path: &Path) -> Option<String> {
        if self.protected.iter().any(|own| path.starts_with(own)) {
            return Some("it belongs to the cluster itself, and no task may reach it".to_owned());
        }
        (!self.is_allowed(path)).then(|| {
            "it does not exist, and directories are created only below \"allowed_host_paths\" of the agent's \
             configuration; create it there by hand, or let an administrator name it or a directory above it"
                .to_owned()
        })
    }

    /// Whether an account's home directory is its own: those of services are often a directory of the system.
    pub fn is_home(path: &Path) -> bool {
        let of_system = SENSITIVE.iter().chain(&PROGRAMS);
        path.is_absolute() && !of_system.map(Path::new).any(|other| overlap(path, other))
    }

    /// Why a process may not be given a device that its task's configuration names, a path without links; `None` = it may.
    ///
    /// Whatever is allowed, it has to be below `/dev`: root of a container makes device files of any kind in the directories
    /// that it mounts.
    pub fn device_refusal(&self, path: &Path) -> Option<String> {
        let below = |above: &str| path.starts_with(above) && path != Path::new(above);
        if !below("/dev") || OPEN_BELOW_DEV.iter().any(|open| path.starts_with(open)) {
            return Some(format!(
                "\"{}\" is not one of the host's own device files, which are below \"/dev\", but not below {}; tasks could \
                 have made it, so that no setting allows it",
                path.display(),
                OPEN_BELOW_DEV.map(|open| format!("\"{open}\"")).join(", "),
            ));
        }
        (!self.is_allowed(path)).then(|| {
            format!(
                "tasks get the devices of their slots, and \"{0}\" only where an administrator has named it: add \"{0}\" to \
                 \"allowed_host_paths\" of the agent's configuration",
                path.display()
            )
        })
    }

    /// As [`Self::device_refusal`], for a container of an engine, which also gets what is harmless. `own` are the device
    /// files of the container's slots, `others` those of the agent's other slots.
    pub fn container_device_refusal(
        &self,
        path: &Path,
        own: &[PathBuf],
        others: &[PathBuf],
    ) -> Option<String> {
        let holds = |list: &[PathBuf]| list.iter().any(|node| node == path);
        self.device_refusal(path)
            .filter(|_| !holds(own) && (holds(others) || !is_harmless_device(path)))
    }

    /// Why a container may not have a capability that its task's configuration asks for; `None` = it may. `defaults` are
    /// those that an administrator gives to every task; `shares_network`: the container has its host's network.
    pub fn capability_refusal(
        &self,
        name: &str,
        defaults: &[String],
        shares_network: bool,
    ) -> Option<String> {
        let wanted = plain_capability(name);
        let reaches_network = shares_network && NETWORK_CAPABILITIES.contains(&wanted.as_str());
        let is_harmless = HARMLESS_CAPABILITIES.contains(&wanted.as_str()) && !reaches_network;
        if is_harmless || self.is_chosen(&wanted, defaults) {
            return None;
        }
        let reach = if reaches_network {
            "it reaches beyond the container, which shares the network of its host"
        } else {
            "it reaches beyond the container"
        };
        Some(format!(
            "{reach}; tasks may only where an administrator has named it in \"allowed_capabilities\" of the agent's \
             configuration"
        ))
    }

    /// Capabilities that engines give by default and that a container in its host's network does not have. `defaults` are
    /// those that an administrator gives to every task.
    pub fn dropped_in_host_network(&self, defaults: &[String]) -> Vec<&'static str> {
        let mut dropped = NETWORK_CAPABILITIES.to_vec();
        dropped.retain(|name| !self.is_chosen(name, defaults));
        dropped
    }

    /// Whether an administrator has chosen a capability, a plain one, for tasks.
    fn is_chosen(&self, wanted: &str, defaults: &[String]) -> bool {
        let chosen = self.allowed_capabilities.iter().chain(defaults);
        let mut chosen = chosen.map(|allowed| plain_capability(allowed));
        chosen.any(|allowed| allowed == wanted || allowed == "ALL")
    }

    /// The longest allowed path at or above this one.
    pub fn root_of(&self, path: &Path) -> Option<&Path> {
        let above = self.allowed.iter().filter(|root| path.starts_with(root));
        above
            .max_by_key(|root| root.components().count())
            .map(PathBuf::as_path)
    }

    fn is_allowed(&self, path: &Path) -> bool {
        self.root_of(path).is_some()
    }
}

/// Whether every container may have a device, a path without links. What is not known is not harmless: a list of devices
/// that are dangerous would never be complete.
fn is_harmless_device(path: &Path) -> bool {
    let is_numbered = |prefix: &str| {
        let number = path.to_str().and_then(|name| name.strip_prefix(prefix));
        number.is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    is_numbered(RENDER_NODE)
        || is_numbered(RDMA_VERBS)
        || HARMLESS_DEVICES.iter().any(|name| path.starts_with(name))
}

/// A capability without `CAP_`, in capitals: engines take either form.
pub(crate) fn plain_capability(name: &str) -> String {
    let name = name.trim().to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> HostGuard {
        HostGuard {
            protected: vec!["/var/lib/cluster/data".into(), "/srv/own".into()],
            homes: vec!["/home/agent".into()],
            allowed: vec!["/etc/shared".into(), "/srv".into()],
            allowed_capabilities: vec!["CAP_NET_ADMIN".into()],
            user_directories: None,
        }
    }

    #[test]
    fn sources_of_mounts() {
        for (source, read_only, allowed) in [
            ("/data", false, true),
            ("/home/ada/data", false, true),
            ("/", true, false),
            ("/var", true, false),
            ("/var/lib/cluster/data", true, false),
            ("/var/lib/cluster/data/containers/x/run", true, false),
            ("/var/lib/cluster/database", false, true),
            ("/etc", true, false),
            ("/etc/systemd/system/x", false, false),
            ("/etc/shared/a", false, true),
            ("/dev", true, false),
            ("/dev/sda", true, false),
            ("/dev/shm", false, true),
            ("/dev/shm/dataset", false, true),
            ("/dev/shmoo", true, false),
            ("/run/docker.sock", true, false),
            ("/root", true, false),
            ("/var/spool/cron", false, false),
            ("/var/lib/postgresql/15/main", false, false),
            ("/proc/1/root", true, false),
            ("/home/agent", true, false),
            ("/home/agent/.ssh", true, false),
            ("/usr/share/data", true, true),
            ("/usr/share/data", false, false),
            ("/srv/team", false, true),
            ("/srv", false, false),
            ("/srv/own/x", false, false),
        ] {
            let refusal = guard().refusal(Path::new(source), read_only);
            assert_eq!(refusal.is_none(), allowed, "{source}: {refusal:?}");
        }
    }

    #[test]
    fn the_storage_of_the_cluster_shows_no_directories_of_users() {
        let mut guard = guard();
        let refusal = |guard: &HostGuard, source: &str| {
            let source = Path::new(source);
            guard.cluster_refusal(source, source, &[], false)
        };
        assert_eq!(refusal(&guard, "/srv/own"), None);
        guard.user_directories = Some("/srv/users".into());
        for (source, allowed) in [
            ("/srv", false),
            ("/srv/users", false),
            ("/srv/users/7", false),
            ("/srv/usersx", true),
            ("/var/lib/cluster/data/checkpoints", true),
        ] {
            let refusal = refusal(&guard, source);
            assert_eq!(refusal.is_none(), allowed, "{source}: {refusal:?}");
        }
    }

    #[test]
    fn links_that_tasks_can_have_made_lead_the_cluster_no_further_than_tasks_may_mount() {
        for (link, source, allowed) in [
            ("/data/u/storage", "/data/other", true),
            ("/data/u/storage", "/srv/team", true),
            ("/data/u/storage", "/etc", false),
            ("/data/u/storage", "/", false),
            ("/data/u/storage", "/var/lib/cluster/data", false),
            ("/srv/team/storage", "/home/agent", false),
            // Where no task mounts anything, links are root's own.
            ("/home", "/var/lib/cluster/data/checkpoints", true),
            ("/var/lib", "/etc", true),
            ("/var/lib/cluster/data/x", "/var/lib/cluster/data/y", true),
        ] {
            let named = Path::new("/configured");
            let links = [PathBuf::from("/var/run"), PathBuf::from(link)];
            let refusal = guard().cluster_refusal(named, Path::new(source), &links, false);
            assert_eq!(refusal.is_none(), allowed, "{link} {source}: {refusal:?}");
            if let Some(refusal) = refusal {
                assert!(refusal.contains("\"/configured\""), "{refusal}");
                assert!(refusal.contains(&format!("\"{source}\"")), "{refusal}");
            }
        }
    }

    #[test]
    fn directories_that_no_task_reaches() {
        for (directory, hidden) in [
            ("/var/lib/cluster/data/checkpoints", true),
            ("/var/lib/cluster", false),
            ("/home/agent/links", true),
            ("/home/ada", false),
            ("/srv/own", true),
            ("/srv", false),
        ] {
            assert_eq!(guard().hides(Path::new(directory)), hidden, "{directory}");
        }
        let mut guard = guard();
        guard.allowed.push("/home/agent/shared".into());
        assert!(!guard.hides(Path::new("/home/agent/shared/links")));
    }

    #[test]
    fn capabilities_that_reach_beyond_the_container_are_an_administrators_choice() {
        let defaults = ["SYS_TIME".to_owned()];
        for (name, allowed) in [
            ("SYS_PTRACE", true),
            ("cap_ipc_lock", true),
            ("SYS_ADMIN", false),
            (" cap_sys_admin", false),
            ("DAC_READ_SEARCH", false),
            ("SYS_MODULE", false),
            ("ALL", false),
            ("CAP_ALL", false),
            ("", false),
            ("NET_ADMIN", true),
            ("CAP_SYS_TIME", true),
        ] {
            let refusal = guard().capability_refusal(name, &defaults, false);
            assert_eq!(refusal.is_none(), allowed, "{name}: {refusal:?}");
        }
        let everything = ["ALL".to_owned()];
        let refusal = guard().capability_refusal("SYS_ADMIN", &everything, true);
        assert_eq!(refusal, None);
    }

    #[test]
    fn capabilities_of_the_network_are_an_administrators_choice_where_it_is_the_hosts() {
        let guard = guard();
        for name in ["NET_RAW", "cap_net_bind_service"] {
            assert_eq!(guard.capability_refusal(name, &[], false), None);
            let refusal = guard.capability_refusal(name, &[], true).unwrap();
            assert!(refusal.contains("shares the network"), "{refusal}");
            let defaults = [name.to_owned()];
            assert_eq!(guard.capability_refusal(name, &defaults, true), None);
        }
        assert_eq!(guard.capability_refusal("SYS_PTRACE", &[], true), None);
        assert_eq!(
            guard.dropped_in_host_network(&[]),
            ["NET_RAW", "NET_BIND_SERVICE"]
        );
        let defaults = ["CAP_NET_RAW".to_owned()];
        assert_eq!(
            guard.dropped_in_host_network(&defaults),
            ["NET_BIND_SERVICE"]
        );
        let mut open = guard;
        open.allowed_capabilities = vec!["ALL".into()];
        assert!(open.dropped_in_host_network(&[]).is_empty());
    }

    #[test]
    fn containers_get_devices_that_are_known_to_be_harmless_their_slots_and_what_is_allowed() {
        let mut guard = guard();
        guard.allowed = vec!["/dev/kvm".into(), "/dev/shm".into(), "/data".into()];
        let own = ["/dev/nvidia1".into(), "/dev/nvidiactl".into()];
        let others = ["/dev/nvidia0".into(), "/dev/dri/renderD129".into()];
        for (path, container, process) in [
            ("/dev/null", true, false),
            ("/dev/fuse", true, false),
            ("/dev/net/tun", true, false),
            // Asked for as a whole it is given in parts.
            ("/dev/infiniband", false, false),
            ("/dev/infiniband/uverbs0", true, false),
            ("/dev/infiniband/uverbs17", true, false),
            ("/dev/infiniband/rdma_cm", true, false),
            ("/dev/infiniband/umad0", false, false),
            ("/dev/infiniband/issm0", false, false),
            ("/dev/infiniband/uverbs", false, false),
            ("/dev/infiniband/uverbsx", false, false),
            ("/dev/infiniband/by-path", false, false),
            ("/dev/dri/renderD128", true, false),
            ("/dev/dri/renderD129", false, false),
            ("/dev/dri/renderDx", false, false),
            ("/dev/dri/card0", false, false),
            ("/dev/dri", false, false),
            ("/dev/nvidia1", true, false),
            ("/dev/nvidiactl", true, false),
            ("/dev/nvidia0", false, false),
            ("/dev/nvidia2", false, false),
            ("/dev/kvm", true, true),
            ("/dev/sda", false, false),
            ("/dev/sg0", false, false),
            ("/dev/ng0n1", false, false),
            ("/dev/ipmi0", false, false),
            ("/dev/hidraw0", false, false),
            ("/dev/watchdog", false, false),
            ("/dev/mem", false, false),
            // Allowed for mounts; tasks make files there.
            ("/dev/shm/g", false, false),
            ("/dev/pts/0", false, false),
            ("/data/u/g", false, false),
            ("/dev", false, false),
            ("/device", false, false),
        ] {
            let path = Path::new(path);
            let refusal = guard.container_device_refusal(path, &own, &others);
            assert_eq!(refusal.is_none(), container, "{path:?}: {refusal:?}");
            let refusal = guard.device_refusal(path);
            assert_eq!(refusal.is_none(), process, "{path:?}: {refusal:?}");
        }
        guard.allowed = vec!["/dev".into()];
        assert_eq!(guard.device_refusal(Path::new("/dev/sda")), None);
        assert!(guard.device_refusal(Path::new("/dev")).is_some());
    }

    #[test]
    fn directories_are_created_below_allowed_paths_only() {
        for (path, allowed) in [
            ("/srv/team/new", true),
            ("/srv/own/new", false),
            ("/srvx", false),
            ("/data/new", false),
            ("/etc/nologin", false),
        ] {
            let refusal = guard().creation_refusal(Path::new(path));
            assert_eq!(refusal.is_none(), allowed, "{path}: {refusal:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_below_a_protected_directory_is_ever_a_source(
            below in "(/[a-z.]{1,3}){0,4}", allowed in "(/[a-z.]{1,3}){0,4}"
        ) {
            let mut guard = guard();
            guard.allowed.push(PathBuf::from(format!("/{allowed}")));
            let source = PathBuf::from(format!("/srv/own{below}"));
            proptest::prop_assert!(guard.refusal(&source, true).is_some());
        }
    }
}
