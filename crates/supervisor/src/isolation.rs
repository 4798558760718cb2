//! `det-supervisor check`: checks from within a sandbox what a task in it can reach.
//!
//! The sandbox is built like a task's. The facts to check, files of the cluster and namespaces of the host, are
//! collected outside before; the checks are done by a program that is started like an entrypoint.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use det_taskspec::sandbox::{Isolation, IsolationRow, SandboxSpec};
use det_taskspec::{FIRST_UNPRIVILEGED_ID, RUN_DIR, UNPRIVILEGED_ID};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

use crate::failure::SetupError;

/// File with the host's facts, relative to the run directory.
const OUTSIDE_FILE: &str = "outside.json";
/// The most files that are checked below each directory that tasks must not see.
const MOST_FILES: usize = 64;
const NAMESPACES: [&str; 3] = ["ipc", "mnt", "pid"];
const OWN_DIRECTORIES: [&str; 4] = ["/dev", "/dev/shm", "/tmp", "/var/tmp"];

/// Facts of the host, collected outside the sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HostFacts {
    /// Existing files that no task may reach.
    files: Vec<HostFile>,
    /// Targets of the links of the namespaces.
    namespaces: Vec<Option<PathBuf>>,
    /// Device and inode numbers of the directories of which a task has its own.
    directories: Vec<Option<(u64, u64)>>,
    /// Whether the task is root of the host.
    is_root: bool,
    /// Device files that the task was given.
    devices: Vec<String>,
}

/// A file that no task may reach.
#[derive(Debug, Serialize, Deserialize)]
struct HostFile {
    path: PathBuf,
    /// Its device and inode number.
    number: (u64, u64),
}

impl HostFile {
    /// Whether its path leads to it, or to something that has content. A file that is covered can be opened at its path,
    /// and is an empty one.
    fn is_reached(&self) -> bool {
        let is_it = |file: &File| {
            file.metadata()
                .is_ok_and(|found| numbers(&found) == self.number)
        };
        let has_content = |file: &mut File| file.read(&mut [0]).is_ok_and(|count| count > 0);
        File::open(&self.path).is_ok_and(|mut file| is_it(&file) || has_content(&mut file))
            || (File::options().append(true))
                .open(&self.path)
                .is_ok_and(|file| is_it(&file))
    }
}

/// Collects the host's facts. Called outside, before namespaces are created.
pub(crate) fn prepare(run_dir: &Path, spec: &SandboxSpec) -> Result<(), SetupError> {
    let mut files = Vec::new();
    for path in spec.guard.protected.iter().chain(&spec.guard.homes) {
        let mut of_this = Vec::new();
        collect(path, 2, &mut of_this);
        files.extend(of_this);
    }
    // Files that are visible on purpose: the interpreter's.
    let shown = [&spec.python_dir, &spec.python_path];
    let shown: Vec<&Path> = shown.into_iter().flatten().map(Path::new).collect();
    let shown = shown
        .into_iter()
        .chain(spec.exposed.iter().map(PathBuf::as_path));
    let shown: Vec<PathBuf> = shown.filter_map(|path| path.canonicalize().ok()).collect();
    files.retain(|file| !shown.iter().any(|path| file.path.starts_with(path)));
    let host = HostFacts {
        files,
        namespaces: NAMESPACES.map(namespace).to_vec(),
        directories: OWN_DIRECTORIES.map(number_of).to_vec(),
        is_root: nix::unistd::geteuid().is_root() && spec.user.uid == 0,
        devices: spec
            .devices
            .iter()
            .map(|device| device.container_path.clone())
            .collect(),
    };
    let path = run_dir.join(OUTSIDE_FILE);
    serde_json::to_vec(&host)
        .map_err(io::Error::from)
        .and_then(|text| fs::write(&path, text))
        .map_err(|error| SetupError::host(format!("could not write {path:?}: {error}")))
}

/// Plain files at or below `path`.
fn collect(path: &Path, depth: u32, files: &mut Vec<HostFile>) {
    let Ok(found) = fs::symlink_metadata(path) else {
        return;
    };
    if found.is_file() {
        files.push(HostFile {
            path: path.to_owned(),
            number: numbers(&found),
        });
    }
    if !found.is_dir() || depth == 0 {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if files.len() >= MOST_FILES {
            return;
        }
        collect(&entry.path(), depth - 1, files);
    }
}

fn namespace(name: &str) -> Option<PathBuf> {
    fs::read_link(Path::new("/proc/self/ns").join(name)).ok()
}

fn number_of(path: &str) -> Option<(u64, u64)> {
    Some(numbers(&fs::metadata(path).ok()?))
}

/// The device and inode number.
fn numbers(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Starts the checks as a task's entrypoint is started; they print the result to standard output.
pub(crate) fn start_questions() -> ExitCode {
    let status = Command::new("/proc/self/exe")
        .arg("probes")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Does the checks and prints the result.
pub(crate) fn answer_questions() -> ExitCode {
    let text = fs::read(Path::new(RUN_DIR).join(OUTSIDE_FILE)).unwrap_or_default();
    let Ok(host) = serde_json::from_slice::<HostFacts>(&text) else {
        return ExitCode::FAILURE;
    };
    let answers = serde_json::to_vec(&rows(&host)).unwrap_or_default();
    match io::stdout().write_all(&answers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn rows(host: &HostFacts) -> Vec<IsolationRow> {
    let mut rows = vec![
        row("identity", !host.is_root, identity(host)),
        files(host),
        directories(host),
        devices(host),
        processes(host),
    ];
    rows.extend(from_status());
    rows.push(refused("mounting file systems", || {
        mount(
            None::<&str>,
            "/tmp",
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
    }));
    rows.push(refused("making namespaces", || {
        unshare(CloneFlags::CLONE_NEWUSER)
    }));
    rows.push(unwritable(
        "writing to /etc and to programs",
        &["/etc/det-probe", "/usr/det-probe", "/usr/bin/det-probe"],
        true,
    ));
    rows.push(unwritable(
        "settings of the kernel",
        &[
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/vm/overcommit_memory",
            "/proc/sysrq-trigger",
            "/sys/power/state",
        ],
        false,
    ));
    rows.push(empty(
        "what the kernel reports about itself",
        &[
            "/proc/kcore",
            "/proc/keys",
            "/proc/timer_list",
            "/sys/firmware",
            "/sys/kernel/debug",
            "/sys/kernel/tracing",
        ],
    ));
    rows.push(IsolationRow {
        what: "network".into(),
        outcome: Isolation::Shared,
        detail: "tasks use the host's network, with its local services".into(),
    });
    rows
}

fn row(what: &str, is_isolated: bool, detail: impl Into<String>) -> IsolationRow {
    IsolationRow {
        what: what.to_owned(),
        outcome: if is_isolated {
            Isolation::Isolated
        } else {
            Isolation::Open
        },
        detail: detail.into(),
    }
}

fn identity(host: &HostFacts) -> String {
    let uid = nix::unistd::geteuid();
    if host.is_root {
        "tasks of users without a mapping run as root of this host (root_tasks: root)".into()
    } else if uid.is_root() {
        "tasks run as the agent's own account, in a user namespace".into()
    } else if uid.as_raw() == UNPRIVILEGED_ID {
        // The account of this check; tasks have the ids of their users.
        format!(
            "tasks of users without a mapping run under an id for each user, from {FIRST_UNPRIVILEGED_ID} on"
        )
    } else {
        format!("tasks run as uid {uid}")
    }
}

fn listed(paths: &[String]) -> String {
    const MOST: usize = 5;
    let shown = paths.iter().take(MOST).cloned().collect::<Vec<_>>();
    let more = paths.len().saturating_sub(MOST);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn files(host: &HostFacts) -> IsolationRow {
    let reached = host.files.iter().filter(|file| file.is_reached());
    let reached: Vec<String> = reached
        .map(|file| file.path.display().to_string())
        .collect();
    let detail = if reached.is_empty() {
        format!(
            "none of {} files of master, agent and the agent's account can be read or written",
            host.files.len()
        )
    } else {
        format!("can be read or written: {}", listed(&reached))
    };
    row("files of the cluster", reached.is_empty(), detail)
}

fn directories(host: &HostFacts) -> IsolationRow {
    let pairs = OWN_DIRECTORIES.iter().zip(&host.directories);
    let shared: Vec<String> = pairs
        .filter(|(path, number)| number.is_some() && number_of(path) == **number)
        .map(|(path, _)| (*path).to_owned())
        .collect();
    let detail = if shared.is_empty() {
        format!("the task's own: {}", OWN_DIRECTORIES.join(", "))
    } else {
        format!("the host's: {}", listed(&shared))
    };
    row("directories for scratch files", shared.is_empty(), detail)
}

fn devices(host: &HostFacts) -> IsolationRow {
    const USUAL: [&str; 14] = [
        "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
        "stdout", "tty", "urandom", "zero",
    ];
    let given = |name: &str| {
        let path = format!("/dev/{name}");
        host.devices
            .iter()
            .any(|device| *device == path || device.starts_with(&format!("{path}/")))
    };
    let extra: Vec<String> = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !USUAL.contains(&name.as_str()) && !given(name))
        .collect();
    let detail = if extra.is_empty() {
        "only those that every program expects, and those of the task's slots".into()
    } else {
        format!("/dev has more than it should: {}", listed(&extra))
    };
    row("devices", extra.is_empty(), detail)
}

fn processes(host: &HostFacts) -> IsolationRow {
    let pairs = NAMESPACES.iter().zip(&host.namespaces);
    let shared: Vec<String> = pairs
        .filter(|(name, before)| namespace(name) == **before)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let others = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The supervisor and this program.
    let others = others.filter(|pid| *pid != 1 && *pid != std::process::id());
    let others = others.count();
    let is_isolated = shared.is_empty() && others == 0;
    let detail = if is_isolated {
        "only its own processes, message queues and mounts are visible".into()
    } else {
        format!(
            "{others} other processes are visible; namespaces of the host: {}",
            shared.join(", ")
        )
    };
    row("other processes", is_isolated, detail)
}

/// Rows from the kernel's status of this process.
fn from_status() -> Vec<IsolationRow> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
            .unwrap_or_default()
    };
    let held: Vec<String> = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
        .into_iter()
        .filter(|name| value(name).is_empty() || value(name).bytes().any(|digit| digit != b'0'))
        .map(|name| format!("{name} {}", value(name)))
        .collect();
    let capabilities = if held.is_empty() {
        "none, and none can be had".to_owned()
    } else {
        held.join(", ")
    };
    vec![
        row("capabilities", held.is_empty(), capabilities),
        row(
            "gaining privileges",
            value("NoNewPrivs:") == "1",
            format!("no_new_privs is {}", value("NoNewPrivs:")),
        ),
        row(
            "system calls",
            value("Seccomp:") == "2",
            format!("seccomp mode {}", value("Seccomp:")),
        ),
    ]
}

fn refused(what: &str, act: impl FnOnce() -> nix::Result<()>) -> IsolationRow {
    match act() {
        Err(error @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) => {
            row(what, true, format!("refused: {error}"))
        }
        Err(error) => row(what, false, format!("failed by chance: {error}")),
        Ok(()) => row(what, false, "possible"),
    }
}

/// Whether files cannot be opened for writing; with `create`: nor be created.
fn unwritable(what: &str, paths: &[&str], create: bool) -> IsolationRow {
    let writable: Vec<String> = paths
        .iter()
        .filter(|path| {
            let opened = File::options().append(true).create(create).open(path);
            if create && opened.is_ok() {
                // Whether it can be removed again is not the question: it is empty, and the row reports that it could be made.
                drop(fs::remove_file(path));
            }
            opened.is_ok()
        })
        .map(|path| (*path).to_owned())
        .collect();
    let detail = if writable.is_empty() {
        "refused".into()
    } else {
        format!("possible: {}", listed(&writable))
    };
    row(what, writable.is_empty(), detail)
}

fn empty(what: &str, paths: &[&str]) -> IsolationRow {
    let has_content = |path: &str| {
        let mut byte = [0];
        let is_readable = |mut file: File| file.read(&mut byte).is_ok_and(|count| count > 0);
        match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => File::open(path).is_ok_and(is_readable),
        }
    };
    let readable: Vec<String> = paths
        .iter()
        .filter(|path| has_content(path))
        .map(|path| (*path).to_owned())
        .collect();
    let detail = if readable.is_empty() {
        "covered".into()
    } else {
        format!("readable: {}", listed(&readable))
    };
    row(what, readable.is_empty(), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_reached_as_itself_or_by_its_content_and_not_by_an_empty_one_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.yaml");
        let reached = |number| {
            HostFile {
                path: path.clone(),
                number,
            }
            .is_reached()
        };
        assert!(!reached((0, 0)), "it does not exist");
        fs::write(&path, "").unwrap();
        assert!(!reached((0, 0)), "an empty file is in its place");
        assert!(reached(number_of(path.to_str().unwrap()).unwrap()));
        fs::write(&path, "secret").unwrap();
        assert!(reached((0, 0)), "a copy");
    }
}
