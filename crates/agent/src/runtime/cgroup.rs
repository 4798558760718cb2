//! Control groups of process tasks: ending a group ends everything in it, and its limits are those of the task. Without
//! permission to create one, the process table is used to end tasks; that is normal on a laptop and logged at debug level.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::options::Limits;

const MOUNT: &str = "/sys/fs/cgroup";
/// Parent of the groups of all tasks.
const OURS: &str = "determined";
/// Controllers of version 1 that can hold groups only to end them, the preferred one first.
const ENDING: [&str; 2] = ["pids", "freezer"];
/// Controllers that have limits.
const LIMITING: [&str; 3] = ["memory", "cpu", "pids"];
/// Microseconds over which processor time is counted.
const PERIOD_MICROS: u64 = 100_000;

/// Where the groups of tasks are created. It is not below the agent's own group where that can be, because a service manager
/// that stops the agent must not stop the tasks.
#[derive(Debug, Clone)]
pub(crate) struct CgroupRoot {
    version: Version,
    /// Parent of the groups by which tasks are ended; `None` if this host has no groups for this agent.
    ending: Option<PathBuf>,
}

/// The version of control groups of a host.
#[derive(Debug, Clone)]
enum Version {
    /// A tree for each controller, below this directory.
    One(PathBuf),
    /// One tree for all controllers.
    Two,
}

/// A limit as the kernel takes it.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    controller: &'static str,
    file: &'static str,
    value: String,
    /// Whether every kernel has it: swap may not be accounted for.
    always: bool,
}

impl CgroupRoot {
    /// Determines whether groups can be created on this host.
    pub(crate) fn detect() -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::detect_below(Path::new(MOUNT), &own)
    }

    /// `own` is the text of `/proc/self/cgroup`.
    fn detect_below(mount: &Path, own: &str) -> Self {
        let (version, candidates) = if mount.join("cgroup.controllers").exists() {
            // An agent that is not root may have been given a group: the highest that it can use.
            let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
            let own = mount.join(own.unwrap_or_default());
            let mut above: Vec<PathBuf> = own.ancestors().map(Path::to_owned).collect();
            above.retain(|dir| dir.starts_with(mount));
            above.reverse();
            (Version::Two, above)
        } else {
            let trees = ENDING.map(|controller| mount.join(controller));
            (Version::One(mount.to_owned()), trees.to_vec())
        };
        let ending = candidates
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists())
            .map(|root| root.join(OURS))
            .find(|path| match std::fs::create_dir_all(path) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "no control groups for tasks here");
                    false
                }
            });
        Self { version, ending }
    }

    /// The group of this name, which is the id of its container, whether it exists or not; `None` if this host has no groups.
    pub(crate) fn group(&self, name: &str) -> Option<Cgroup> {
        let ending = self.ending.as_ref()?.join(name);
        let mut group = Cgroup {
            limited: Vec::new(),
            ending,
            unified: matches!(self.version, Version::Two),
        };
        if let Version::One(mount) = &self.version {
            let of = |kind: &'static str| (kind, mount.join(kind).join(OURS).join(name));
            group.limited = LIMITING.map(of).to_vec();
        }
        Some(group)
    }

    /// Why tasks cannot have these limits on this host; `None` = they can. Blocking.
    pub(crate) fn refusal(&self, limits: &Limits) -> Option<String> {
        let Some(group) = self.group(&format!("probe-{}", uuid::Uuid::new_v4())) else {
            return Some(NO_GROUPS.to_owned());
        };
        let created = group.create(limits);
        if let Err(error) = group.remove() {
            tracing::debug!(%error, "a control group stays");
        }
        created.err().map(|error| error.to_string())
    }
}

/// The reason where this host has no groups.
pub(crate) const NO_GROUPS: &str = "this agent may not create control groups below /sys/fs/cgroup: run it as root, or let systemd \
                                    delegate a group to it";

/// The group of one container; with version 1 one for each controller that limits it.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    /// The group by which it is ended.
    ending: PathBuf,
    /// With version 1, the group of each controller that has limits; it exists only where there is a limit.
    limited: Vec<(&'static str, PathBuf)>,
    unified: bool,
}

impl Cgroup {
    /// Creates the group with these limits and opens the files through which a process enters it by writing `0` to each.
    pub(crate) fn create(&self, limits: &Limits) -> io::Result<Vec<File>> {
        let settings = settings(limits, self.unified);
        let mut dirs = vec![self.ending.as_path()];
        make(&self.ending)?;
        if self.unified {
            self.enable(&settings)?;
        }
        for setting in &settings {
            let dir = self.dir_of(setting.controller);
            if !dirs.contains(&dir) {
                make(dir)?;
                dirs.push(dir);
            }
            let file = dir.join(setting.file);
            if setting.always || file.exists() {
                std::fs::write(&file, &setting.value).map_err(at("write", &file))?;
            }
        }
        let entries = dirs.into_iter().map(|dir| {
            let file = dir.join("cgroup.procs");
            let opened = OpenOptions::new().write(true).open(&file);
            opened.map_err(at("open", &file))
        });
        entries.collect()
    }

    fn dir_of(&self, controller: &str) -> &Path {
        let own = self.limited.iter().find(|(name, _)| *name == controller);
        own.map_or(self.ending.as_path(), |(_, dir)| dir.as_path())
    }

    /// Lets the group have limits of these controllers (version 2).
    fn enable(&self, settings: &[Setting]) -> io::Result<()> {
        let above: Vec<&Path> = self.ending.ancestors().skip(1).take(2).collect();
        for dir in above.into_iter().rev() {
            let file = dir.join("cgroup.subtree_control");
            let enabled = std::fs::read_to_string(&file).unwrap_or_default();
            for setting in settings {
                if enabled
                    .split_whitespace()
                    .any(|one| one == setting.controller)
                {
                    continue;
                }
                std::fs::write(&file, format!("+{}", setting.controller))
                    .map_err(at("enable a controller in", &file))?;
            }
        }
        Ok(())
    }

    /// How many processes of the group the kernel has killed for lack of memory; 0 where it does not count them.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = if self.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = std::fs::read_to_string(self.dir_of("memory").join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    fn dirs(&self) -> impl Iterator<Item = &Path> {
        let limited = self.limited.iter().map(|(_, dir)| dir.as_path());
        std::iter::once(self.ending.as_path()).chain(limited.filter(|dir| *dir != self.ending))
    }

    /// Kills every process in the group and below; returns how many there were.
    pub(crate) fn kill_all(&self) -> usize {
        // Version 2 has a file for it, which also kills processes that are being created.
        let switched = std::fs::write(self.ending.join("cgroup.kill"), "1").is_ok();
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

    /// The existing groups and those below, deepest first.
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
        for dir in self.dirs().filter(|dir| dir.exists()) {
            walk(dir, &mut found);
        }
        found
    }

    /// Removes the group, killing what is left in it. Blocking for a short time, because the kernel removes processes
    /// from groups asynchronously.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut last = Ok(());
        for _ in 0..100 {
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

/// The limits as files of a group and what is written to them, in this order.
fn settings(limits: &Limits, unified: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |controller, file, value: String, always| {
        settings.push(Setting {
            controller,
            file,
            value,
            always,
        });
    };
    let quota = limits
        .cpu_millis
        .map(|millis| millis.saturating_mul(PERIOD_MICROS / 1000));
    if unified {
        if let Some(bytes) = limits.memory_bytes {
            add("memory", "memory.max", bytes.to_string(), true);
            add("memory", "memory.swap.max", "0".to_owned(), false);
        }
        if let Some(quota) = quota {
            add("cpu", "cpu.max", format!("{quota} {PERIOD_MICROS}"), true);
        }
    } else {
        if let Some(bytes) = limits.memory_bytes {
            add("memory", "memory.limit_in_bytes", bytes.to_string(), true);
            // Memory and swap together.
            let file = "memory.memsw.limit_in_bytes";
            add("memory", file, bytes.to_string(), false);
        }
        if let Some(quota) = quota {
            add("cpu", "cpu.cfs_period_us", PERIOD_MICROS.to_string(), true);
            add("cpu", "cpu.cfs_quota_us", quota.to_string(), true);
        }
    }
    if let Some(processes) = limits.processes {
        add("pids", "pids.max", processes.to_string(), true);
    }
    settings
}

fn make(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir).map_err(at("create", dir))
}

/// Adds to an error what was tried on which file.
fn at<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> io::Error + 'a {
    move |error| {
        io::Error::new(
            error.kind(),
            format!("cannot {what} \"{}\": {error}", path.display()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Limits = Limits {
        memory_bytes: Some(1 << 30),
        cpu_millis: Some(1500),
        processes: Some(100),
    };

    #[test]
    fn a_host_without_groups_has_none() {
        let root = tempfile::tempdir().unwrap();
        let groups = CgroupRoot::detect_below(root.path(), "");
        assert!(groups.group("c1").is_none());
        assert!(groups.refusal(&ALL).unwrap().contains("delegate"));
    }

    /// Plain files receive what the kernel's would: the group, the limits, the processes.
    fn version_2() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        std::fs::write(root.path().join("cgroup.procs"), "").unwrap();
        root
    }

    #[test]
    fn groups_of_version_2_are_at_the_top() {
        let root = version_2();
        let group = CgroupRoot::detect_below(root.path(), "0::/system.slice/agent.service\n")
            .group("c1")
            .unwrap();
        assert_eq!(group.ending, root.path().join("determined/c1"));
    }

    #[test]
    fn an_agent_that_is_not_root_uses_the_highest_group_that_it_was_given() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let given = root.path().join("user.slice/user@7.service");
        std::fs::create_dir_all(given.join("app.slice/agent")).unwrap();
        std::fs::write(given.join("cgroup.procs"), "").unwrap();
        let own = "0::/user.slice/user@7.service/app.slice/agent\n";
        let group = CgroupRoot::detect_below(root.path(), own).group("c1");
        assert_eq!(group.unwrap().ending, given.join("determined/c1"));
    }

    #[test]
    fn limits_of_version_2_are_in_the_one_group() {
        let root = version_2();
        let parent = root.path().join("determined");
        let group = CgroupRoot::detect_below(root.path(), "")
            .group("c1")
            .unwrap();
        std::fs::create_dir_all(&group.ending).unwrap();
        std::fs::write(group.ending.join("cgroup.procs"), "").unwrap();
        std::fs::write(group.ending.join("memory.swap.max"), "max").unwrap();
        std::fs::write(parent.join("cgroup.subtree_control"), "memory pids").unwrap();
        assert_eq!(group.create(&ALL).unwrap().len(), 1);
        let read = |file: &str| std::fs::read_to_string(group.ending.join(file)).unwrap();
        assert_eq!(read("memory.max"), (1_u64 << 30).to_string());
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "100");
        // Only what is not enabled is enabled.
        let control = parent.join("cgroup.subtree_control");
        assert_eq!(std::fs::read_to_string(control).unwrap(), "+cpu");
        std::fs::write(group.ending.join("memory.events"), "oom 2\noom_kill 1\n").unwrap();
        assert_eq!(group.oom_kills(), 1);
    }

    #[test]
    fn groups_of_version_1_are_in_the_trees_of_the_controllers_that_are_needed() {
        let root = tempfile::tempdir().unwrap();
        for tree in ["freezer", "memory", "cpu", "pids"] {
            std::fs::create_dir(root.path().join(tree)).unwrap();
        }
        std::fs::write(root.path().join("freezer/cgroup.procs"), "").unwrap();
        let group = CgroupRoot::detect_below(root.path(), "")
            .group("c1")
            .unwrap();
        assert_eq!(group.ending, root.path().join("freezer/determined/c1"));
        let of = |tree: &str| root.path().join(tree).join("determined/c1");
        let entry = |tree: &str| {
            std::fs::create_dir_all(of(tree)).unwrap();
            std::fs::write(of(tree).join("cgroup.procs"), "").unwrap();
        };
        entry("freezer");
        assert_eq!(group.create(&Limits::default()).unwrap().len(), 1);
        assert!(!of("memory").exists());
        entry("memory");
        let memory = Limits {
            memory_bytes: Some(5000),
            ..Limits::default()
        };
        assert_eq!(group.create(&memory).unwrap().len(), 2);
        let limit = of("memory").join("memory.limit_in_bytes");
        assert_eq!(std::fs::read_to_string(limit).unwrap(), "5000");
        assert!(!of("cpu").exists());
    }

    #[test]
    fn a_limit_that_cannot_be_set_names_its_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("pids")).unwrap();
        std::fs::write(root.path().join("pids/cgroup.procs"), "").unwrap();
        // In place of the tree is a file.
        std::fs::write(root.path().join("memory"), "").unwrap();
        let groups = CgroupRoot::detect_below(root.path(), "");
        let refusal = groups.refusal(&ALL).unwrap();
        assert!(refusal.contains("memory/determined/probe-"), "{refusal}");
    }

    #[test]
    fn removing_what_is_not_there_is_fine() {
        let root = version_2();
        let group = CgroupRoot::detect_below(root.path(), "").group("c1");
        group.unwrap().remove().unwrap();
    }

    /// The kernel's own groups, where this test may make some.
    #[test]
    fn a_group_of_this_host_limits_what_is_in_it_and_goes() {
        let groups = CgroupRoot::detect();
        if let Some(reason) = groups.refusal(&ALL) {
            eprintln!("SKIPPED: no control groups with limits here: {reason}");
            return;
        }
        let group = groups.group(&uuid::Uuid::new_v4().to_string()).unwrap();
        let limits = Limits {
            processes: Some(3),
            ..ALL
        };
        let files = group.create(&limits).unwrap();
        let mut command = std::process::Command::new("sh");
        command.args([
            "-c",
            "cat /proc/self/cgroup; exec > /dev/null 2>&1; sleep 9 & sleep 9 & sleep 9 & sleep 9",
        ]);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        crate::runtime::process::detach(&mut command, files, true);
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("/determined/"), "{text}");
        assert!(
            !output.status.success(),
            "it may have three processes: {output:?}"
        );
        group.remove().unwrap();
        assert!(group.dirs().all(|dir| !dir.exists()));
    }
}
