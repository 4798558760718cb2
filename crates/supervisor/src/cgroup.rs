//! Control groups: limits for a sandbox, and whether the kernel killed a process for lack of memory.
//!
//! A sandbox's group is created below the group of the agent, so that limits of the agent apply to its tasks too. With
//! version 2 the kernel allows that only if the agent's group is the root or contains no process itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
/// Parent of all groups of sandboxes, in the group of the agent.
const OURS: &str = "determined";

/// Reads how many processes of the caller's control group the kernel has killed for lack of memory; `None` if the
/// kernel does not count them.
pub(crate) fn oom_kills() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let counters = oom_counter_files(&own, Path::new(ROOT));
    counters
        .iter()
        .find_map(|file| parse_oom_kills(&fs::read_to_string(file).ok()?))
}

/// Where the counter may be, most likely first. In a container the group is often mounted at the root itself.
fn oom_counter_files(own: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.extend([path, ""].map(|path| root.join(path).join("memory.events")));
        } else if controllers.split(',').any(|name| name == "memory") {
            let root = root.join("memory");
            files.extend([path, ""].map(|path| root.join(path).join("memory.oom_control")));
        }
    }
    files
}

/// The control group of a task, in which no other task runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnGroup {
    /// Directory of the group for each controller; without a name, that of all.
    dirs: Vec<(String, PathBuf)>,
}

impl OwnGroup {
    /// The group of this process, if only this task is in it: a sandbox has one where it has limits, and a container of an
    /// engine always.
    pub(crate) fn find(in_sandbox: bool) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::among(&own, Path::new(ROOT), in_sandbox)
    }

    fn among(own: &str, root: &Path, in_sandbox: bool) -> Option<Self> {
        let mut dirs = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            if in_sandbox && !is_of_a_sandbox(Path::new(path)) {
                continue;
            }
            let path = path.trim_start_matches('/');
            for controller in controllers.split(',') {
                // In a container the group is often mounted at the root itself.
                let mount = root.join(controller);
                let below = mount.join(path);
                let dir = if below.is_dir() { below } else { mount };
                dirs.push((controller.to_owned(), dir));
            }
        }
        (!dirs.is_empty()).then_some(Self { dirs })
    }

    /// The group with this directory, for every controller.
    #[cfg(test)]
    pub(crate) fn at(dir: &Path) -> Self {
        Self {
            dirs: vec![(String::new(), dir.to_owned())],
        }
    }

    /// The text of a file of the group.
    pub(crate) fn read(&self, controller: &str, file: &str) -> Option<String> {
        let dirs = self.dirs.iter();
        dirs.filter(|(name, _)| name.is_empty() || name == controller)
            .find_map(|(_, dir)| fs::read_to_string(dir.join(file)).ok())
    }
}

/// Whether a group is one of those that [`Limits`] creates.
fn is_of_a_sandbox(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name);
    parent.is_some_and(|name| name == OURS)
}

fn parse_oom_kills(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// The limits of a sandbox. The process that creates the group is in it, and so are its children.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The created groups, each with the group in which the process was before.
    joined: Vec<(PathBuf, PathBuf)>,
}

impl Limits {
    /// Moves this process into a new group with these limits.
    ///
    /// The error is what was not possible: unprivileged agents often may not, and the task then runs without limits.
    pub(crate) fn apply(
        name: &str,
        memory_bytes: Option<u64>,
        cpu_millis: Option<u64>,
    ) -> Result<Self, String> {
        let mut limits = Self { joined: Vec::new() };
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(|error| format!("could not read /proc/self/cgroup: {error}"))?;
        let unified = Path::new(ROOT).join("cgroup.controllers").is_file();
        let period = 100_000;
        let quota = cpu_millis.map(|millis| millis.saturating_mul(period / 1000));
        let result = if unified {
            let mut settings = Vec::new();
            settings.extend(memory_bytes.map(|bytes| ("memory.max", bytes.to_string())));
            settings.extend(quota.map(|quota| ("cpu.max", format!("{quota} {period}"))));
            limits.join(Path::new(ROOT), origin(&own, ""), name, &settings, true)
        } else {
            let memory = memory_bytes.map(|bytes| ("memory", "memory.limit_in_bytes", bytes));
            let cpu = quota.map(|quota| ("cpu", "cpu.cfs_quota_us", quota));
            memory
                .into_iter()
                .chain(cpu)
                .try_for_each(|(controller, file, value)| {
                    let root = Path::new(ROOT).join(controller);
                    let settings = [(file, value.to_string())];
                    limits.join(&root, origin(&own, controller), name, &settings, false)
                })
        };
        match result {
            Ok(()) => Ok(limits),
            Err(error) => {
                limits.leave();
                Err(error)
            }
        }
    }

    fn join(
        &mut self,
        root: &Path,
        origin: Option<PathBuf>,
        name: &str,
        settings: &[(&str, String)],
        unified: bool,
    ) -> Result<(), String> {
        if settings.is_empty() {
            return Ok(());
        }
        let origin =
            origin.ok_or_else(|| format!("this process is in no control group of {root:?}"))?;
        let origin = root.join(origin);
        let parent = origin.join(OURS);
        let group = parent.join(name);
        let entered = enter(&origin, &parent, &group, settings, unified);
        match entered {
            Ok(()) => self.joined.push((group, origin)),
            // Remove groups that cannot be used; the parent only if no other task is in it.
            Err(_) => drop(fs::remove_dir(&group).and_then(|()| fs::remove_dir(&parent))),
        }
        entered.map_err(|(path, error)| format!("could not use control group {path:?}: {error}"))
    }

    /// Moves the process back to its former groups and removes the created ones. They must be empty; one that is not
    /// stays, and costs the host a little memory.
    pub(crate) fn leave(self) {
        for (group, origin) in self.joined.into_iter().rev() {
            let left = fs::write(origin.join("cgroup.procs"), "0");
            drop(left.and_then(|()| fs::remove_dir(group)));
        }
    }
}

fn enter(
    origin: &Path,
    parent: &Path,
    group: &Path,
    settings: &[(&str, String)],
    unified: bool,
) -> Result<(), (PathBuf, io::Error)> {
    let set = |file: PathBuf, value: &str| fs::write(&file, value).map_err(|error| (file, error));
    fs::create_dir_all(group).map_err(|error| (group.to_owned(), error))?;
    if unified {
        for dir in [origin, parent] {
            set(dir.join("cgroup.subtree_control"), "+memory +cpu")?;
        }
    }
    for (file, value) in settings {
        set(group.join(file), value)?;
    }
    // 0 means the writing process.
    set(group.join("cgroup.procs"), "0")
}

/// Path of the process's group below the controller's root, from `/proc/self/cgroup`; the unified one has no controller.
fn origin(own: &str, controller: &str) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next()?;
        let path = fields.next()?;
        let matches = names.split(',').any(|name| name == controller);
        matches.then(|| PathBuf::from(path.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_looked_for_where_either_version_keeps_it() {
        let found = oom_counter_files("0::/user.slice/x\n", Path::new("/cg"));
        assert_eq!(found[0], Path::new("/cg/user.slice/x/memory.events"));
        assert_eq!(found[1], Path::new("/cg/memory.events"));
        let found = oom_counter_files(
            "5:cpu,memory:/docker/1\n1:name=systemd:/\n",
            Path::new("/cg"),
        );
        assert_eq!(
            found[0],
            Path::new("/cg/memory/docker/1/memory.oom_control")
        );
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_task_knows_whether_a_group_is_its_own() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/agent/determined/c1");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("limit"), "5").unwrap();
        fs::write(root.path().join("usage"), "7").unwrap();
        let find = |own: &str, in_sandbox| OwnGroup::among(own, root.path(), in_sandbox);
        let limited = "2:memory:/agent/determined/c1\n1:cpu,cpuacct:/agent\n0::/agent\n";
        let found = find(limited, true).unwrap();
        assert_eq!(found.read("memory", "limit").as_deref(), Some("5"));
        assert_eq!(found.read("cpuacct", "limit"), None, "the agent's group");
        assert_eq!(find("0::/agent\n", true), None);
        // A container's own group is mounted at the root.
        let found = find("0::/\n", false).unwrap();
        assert_eq!(found.read("memory", "usage").as_deref(), Some("7"));
    }

    #[test]
    fn both_versions_count_alike() {
        assert_eq!(parse_oom_kills("low 0\noom 3\noom_kill 2\n"), Some(2));
        assert_eq!(
            parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
            Some(7)
        );
        assert_eq!(parse_oom_kills("oom_kill_disable 0\n"), None);
    }

    #[test]
    fn a_process_finds_the_group_it_came_from() {
        let own = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/d\n";
        let found = |controller| origin(own, controller).map(|path| path.display().to_string());
        assert_eq!(found("memory").as_deref(), Some("a/b"));
        assert_eq!(found("cpu").as_deref(), Some("c"));
        assert_eq!(found("").as_deref(), Some("d"));
        assert_eq!(found("pids"), None);
    }

    /// Plain files receive what the kernel's would: the group, the limits, the processes.
    #[test]
    fn a_group_is_made_below_the_agents_own() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("agent")).unwrap();
        let mut limits = Limits { joined: Vec::new() };
        let settings = [("memory.limit_in_bytes", "1000".to_owned())];
        limits
            .join(root.path(), Some("agent".into()), "c1", &settings, false)
            .unwrap();
        let group = root.path().join("agent/determined/c1");
        let read = |file: &str| fs::read_to_string(group.join(file)).unwrap();
        assert_eq!(read("memory.limit_in_bytes"), "1000");
        assert_eq!(read("cgroup.procs"), "0");
        limits.leave();
        let origin = root.path().join("agent/cgroup.procs");
        assert_eq!(fs::read_to_string(origin).unwrap(), "0");
    }

    #[test]
    fn a_group_that_cannot_be_used_is_not_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let mut limits = Limits { joined: Vec::new() };
        // The file of the setting would be in a directory that does not exist.
        let settings = [("no/such", "1".to_owned())];
        let error = limits
            .join(root.path(), Some("agent".into()), "c1", &settings, false)
            .unwrap_err();
        assert!(error.contains("no/such"), "{error}");
        assert!(!root.path().join("agent/determined").exists());
        let error = limits
            .join(root.path(), None, "c1", &settings, false)
            .unwrap_err();
        assert!(error.contains("no control group"), "{error}");
    }
}
