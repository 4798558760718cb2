//! The control group of a task, which its agent or engine makes: its limits, and whether the kernel killed a process for
//! lack of memory.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
/// Parent of the groups of all process tasks.
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

    /// The limit of the group's memory in bytes; `None` = it has none.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        /// Version 1 has a number also where there is no limit: all of the address space.
        const NONE: u64 = 1 << 60;
        let unified = self.read("memory", "memory.max");
        let text = unified.or_else(|| self.read("memory", "memory.limit_in_bytes"))?;
        // "max" is no number.
        text.trim().parse().ok().filter(|limit| *limit < NONE)
    }

    /// How often a process or thread could not be created because of the group's limit, with that limit.
    pub(crate) fn refused_processes(&self) -> Option<(u64, u64)> {
        let limit = self.read("pids", "pids.max")?.trim().parse().ok()?;
        let events = self.read("pids", "pids.events")?;
        let count = events.lines().find_map(|line| line.strip_prefix("max "))?;
        Some((count.trim().parse().ok()?, limit))
    }

    /// The text of a file of the group.
    pub(crate) fn read(&self, controller: &str, file: &str) -> Option<String> {
        let dirs = self.dirs.iter();
        dirs.filter(|(name, _)| name.is_empty() || name == controller)
            .find_map(|(_, dir)| fs::read_to_string(dir.join(file)).ok())
    }
}

/// Whether a group is one of those that agents create for process tasks.
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
    fn limits_are_read_and_absent_ones_are_none() {
        let root = tempfile::tempdir().unwrap();
        let group = OwnGroup::at(root.path());
        assert_eq!(group.memory_limit(), None);
        for (text, limit) in [
            ("max\n", None),
            ("9223372036854771712\n", None),
            ("4096\n", Some(4096)),
        ] {
            fs::write(root.path().join("memory.limit_in_bytes"), text).unwrap();
            assert_eq!(group.memory_limit(), limit, "{text}");
        }
        fs::write(root.path().join("pids.max"), "64\n").unwrap();
        fs::write(root.path().join("pids.events"), "max 3\n").unwrap();
        assert_eq!(group.refused_processes(), Some((3, 64)));
        fs::write(root.path().join("pids.max"), "max\n").unwrap();
        assert_eq!(group.refused_processes(), None);
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
}
