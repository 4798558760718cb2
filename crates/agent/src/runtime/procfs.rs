//! The process table: identifies processes across restarts of the agent, and finds the processes of a container.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use det_ids::ContainerId;

use crate::containers::store::ProcessIdentity;

/// The fields that the agent reads from a line of `/proc/<pid>/stat` (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    pub(crate) start_ticks: u64,
}

impl Stat {
    /// Whether the process has ended and only waits for its parent to notice.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Reads a `stat` line. The second field is the program's name in brackets and may itself contain blanks and brackets.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// The `stat` of a process; `None` when there is none.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Identity of this start of the host. Empty if the kernel does not report it; then only start times are compared.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The identity of a process that exists.
pub(crate) fn identify(pid: i32) -> io::Result<ProcessIdentity> {
    let stat = stat(pid).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("process {pid} is not in the process table"),
        )
    })?;
    Ok(ProcessIdentity {
        pid,
        start_ticks: stat.start_ticks,
        boot_id: boot_id(),
    })
}

/// Whether exactly this process is still running, not another one with its process id.
pub(crate) fn is_running(identity: &ProcessIdentity) -> bool {
    identity.boot_id == boot_id()
        && stat(identity.pid)
            .is_some_and(|stat| stat.start_ticks == identity.start_ticks && !stat.has_ended())
}

/// The parent of every process.
pub(crate) fn parents() -> BTreeMap<i32, i32> {
    let known = pids().into_iter();
    known
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect()
}

/// The sockets that a process has open, by inode; none where this agent may not look.
pub(crate) fn sockets(pid: i32) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let inode = |link: std::path::PathBuf| {
        let text = link.to_str()?.strip_prefix("socket:[")?;
        text.strip_suffix(']')?.parse().ok()
    };
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter_map(inode).collect()
}

/// All process ids.
pub(crate) fn pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The supervisor of the sandbox in `container_dir`: the process with the command line `… sandbox <container_dir>` that
/// leads its session. (The supervisor's own children may have the same command line, but not that.)
pub(crate) fn find_supervisor(container_dir: &Path) -> Option<ProcessIdentity> {
    let mut wanted = b"\0sandbox\0".to_vec();
    wanted.extend_from_slice(container_dir.as_os_str().as_bytes());
    wanted.push(0);
    pids().into_iter().find_map(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        if !command.ends_with(&wanted) {
            return None;
        }
        let stat = stat(pid).filter(|stat| stat.session == pid && !stat.has_ended())?;
        Some(ProcessIdentity {
            pid,
            start_ticks: stat.start_ticks,
            boot_id: boot_id(),
        })
    })
}

/// Running processes that belong to a container: those of the supervisor's session, and those that carry the container's
/// id in their environment, which survives a process making itself a daemon.
pub(crate) fn members(session: Option<i32>, container_id: &ContainerId) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let variable = format!("DET_CONTAINER_ID={container_id}");
    pids()
        .into_iter()
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let Some(stat) = stat(*pid).filter(|stat| !stat.has_ended()) else {
                return false;
            };
            Some(stat.session) == session
                || std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                    environment
                        .split(|byte| *byte == 0)
                        .any(|entry| entry == variable.as_bytes())
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_any_program_name() {
        let line =
            "4242 (a) b (c) S 1 4242 4200 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1 1\n";
        assert_eq!(
            parse_stat(line),
            Some(Stat {
                state: 'S',
                parent: 1,
                session: 4200,
                start_ticks: 987_654
            })
        );
        assert_eq!(parse_stat("1 (x"), None);
        assert_eq!(parse_stat("1 (x) S 1 2"), None);
    }

    #[test]
    fn this_process_runs_and_another_with_its_number_does_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        let identity = identify(own).unwrap();
        assert!(is_running(&identity));
        assert!(!is_running(&ProcessIdentity {
            start_ticks: identity.start_ticks + 1,
            ..identity.clone()
        }));
        assert!(!is_running(&ProcessIdentity {
            boot_id: "another start".into(),
            ..identity
        }));
    }

    #[test]
    fn a_process_is_found_by_its_environment_and_never_this_one() {
        let id = ContainerId(uuid::Uuid::new_v4().to_string());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("DET_CONTAINER_ID", id.as_str())
            .spawn()
            .unwrap();
        let seen = members(None, &id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, [i32::try_from(child.id()).unwrap()]);
        assert!(members(None, &id).is_empty());
    }
}
