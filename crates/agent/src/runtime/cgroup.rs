//! A control group per process task, so that ending it ends everything in it. Without permission to create one, the
//! process table is used instead; that is normal on a laptop and logged once, at debug level.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Directory in which the groups of tasks are created. It is not below the agent's own group, because a service manager
/// that stops the agent must not stop the tasks.
#[derive(Debug, Clone)]
pub(crate) struct CgroupRoot {
    path: Option<PathBuf>,
}

impl CgroupRoot {
    /// Determines whether groups can be created on this host.
    pub(crate) fn detect() -> Self {
        Self::detect_below(Path::new("/sys/fs/cgroup"))
    }

    fn detect_below(mount: &Path) -> Self {
        // Version 1 has a tree per controller; any of them can group processes.
        let candidates = if mount.join("cgroup.controllers").exists() {
            vec![mount.to_owned()]
        } else {
            vec![mount.join("pids"), mount.join("freezer")]
        };
        let path = candidates
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists())
            .map(|root| root.join("determined"))
            .find(|path| match std::fs::create_dir_all(path) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "no control groups for tasks here");
                    false
                }
            });
        Self { path }
    }

    /// The group of a container, whether it exists or not; `None` if this host has no groups.
    pub(crate) fn group(&self, container_id: &str) -> Option<Cgroup> {
        Some(Cgroup {
            path: self.path.as_ref()?.join(container_id),
        })
    }
}

/// The group of one container.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates the group and opens the file through which a process enters it by writing `0`.
    pub(crate) fn create(&self) -> io::Result<File> {
        match std::fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))
    }

    /// Kills every process in the group and below; returns how many there were.
    pub(crate) fn kill_all(&self) -> usize {
        // Version 2 has a file for it, which also kills processes that are being created.
        let switched = std::fs::write(self.path.join("cgroup.kill"), "1").is_ok();
        let mut killed = 0;
        for group in self.groups() {
            let Ok(text) = std::fs::read_to_string(group.join("cgroup.procs")) else {
                continue;
            };
            for pid in text.lines().filter_map(|line| line.parse::<i32>().ok()) {
                // 0 is a process outside this namespace; a signal to 0 would go to this process group.
                if pid <= 0 {
                    continue;
                }
                killed += 1;
                if !switched && let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    tracing::debug!(pid, %error, "a process of a control group was gone");
                }
            }
        }
        killed
    }

    /// The group and those below, deepest first.
    fn groups(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
            if let Ok(entries) = std::fs::read_dir(dir) {
                for entry in entries.filter_map(Result::ok) {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        walk(&entry.path(), found);
                    }
                }
            }
            found.push(dir.to_owned());
        }
        let mut found = Vec::new();
        walk(&self.path, &mut found);
        found
    }

    /// Removes the group, killing what is left in it. Blocking for a short time, because the kernel removes processes
    /// from groups asynchronously.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut last = Ok(());
        for _ in 0..100 {
            if !self.path.exists() {
                return Ok(());
            }
            last = self.groups().iter().try_for_each(std::fs::remove_dir);
            if last.is_ok() {
                return Ok(());
            }
            self.kill_all();
            std::thread::sleep(Duration::from_millis(10));
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_groups_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(CgroupRoot::detect_below(root.path()).group("c1").is_none());
    }

    #[test]
    fn groups_of_version_2_are_at_the_top() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        std::fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let group = CgroupRoot::detect_below(root.path()).group("c1").unwrap();
        assert_eq!(group.path, root.path().join("determined/c1"));
    }

    #[test]
    fn groups_of_version_1_are_in_the_tree_of_a_controller() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("freezer")).unwrap();
        std::fs::write(root.path().join("freezer/cgroup.procs"), "").unwrap();
        let group = CgroupRoot::detect_below(root.path()).group("c1").unwrap();
        assert_eq!(group.path, root.path().join("freezer/determined/c1"));
    }

    #[test]
    fn removing_what_is_not_there_is_fine() {
        let root = tempfile::tempdir().unwrap();
        let group = Cgroup {
            path: root.path().join("c1"),
        };
        group.remove().unwrap();
    }
}
