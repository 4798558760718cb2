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

/// Directories of every host that hold what decides about it.
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
/// Also where the agent is another account, as one that may use the Docker engine.
const HOME_OF_ROOT: &str = "/root";
/// Shared memory: it lies below `/dev`, holds no devices, and is open to everybody like `/tmp`.
const SHARED_MEMORY: &str = "/dev/shm";
/// Directories of every host that hold its programs.
pub const PROGRAMS: [&str; 7] = [
    "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr",
];

/// What of an agent's host its tasks are kept from. All paths are absolute and without links.
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

    /// Why a task may not be given a device that its configuration names, a path without links; `None` = it may.
    pub fn device_refusal(&self, path: &Path) -> Option<String> {
        (!self.is_allowed(path)).then(|| {
            "tasks get the devices of their slots, and others only where an administrator has named the path in \
             \"allowed_host_paths\" of the agent's configuration"
                .to_owned()
        })
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
