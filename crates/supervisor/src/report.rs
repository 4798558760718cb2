//! Files that report the task's state to the agent.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use det_taskspec::sandbox::{EntrypointStart, ExitReport, STARTED_FILE};
use det_taskspec::{ContainerExit, EXIT_FILE, ExitCause, pods};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use serde::Serialize;

use crate::clock::now_micros;

/// The exit report of a task that has ended now.
pub(crate) fn exit_report(exit: &ContainerExit, cause: Option<&ExitCause>) -> ExitReport {
    ExitReport {
        exit: exit.clone(),
        ended_at: now_micros(),
        cause: cause.cloned(),
    }
}

/// Space that is kept for the exit report, in bytes: more than its longest, which has the last lines of a task.
const RESERVED_BYTES: i64 = 64 << 10;
/// Keeps that space until the report is written.
const RESERVE_FILE: &str = ".exit.reserve";

/// Takes the space of the exit report while there is some: a task that fills the disk ends as well as any other.
///
/// # Errors
/// There is no space now. The report is then written as far as there is some at the end.
pub(crate) fn reserve(run_dir: &Path) -> io::Result<()> {
    let path = run_dir.join(RESERVE_FILE);
    // Of a supervisor in a container that its engine has started again.
    free_reserve(run_dir)?;
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, RESERVED_BYTES) {
        // Not all file systems can; on one that compresses this takes less than it should.
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            let zeros = vec![0; usize::try_from(RESERVED_BYTES).unwrap_or_default()];
            (&file).write_all(&zeros)
        }
        taken => Ok(taken?),
    }
}

fn free_reserve(run_dir: &Path) -> io::Result<()> {
    match fs::remove_file(run_dir.join(RESERVE_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether an operation failed because there is no space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Writes the exit report atomically, also with respect to a power failure; on a full disk in the space that was kept for
/// it ([`reserve`]).
pub(crate) fn write_exit(run_dir: &Path, report: &ExitReport) -> io::Result<()> {
    let file = match replace(run_dir, EXIT_FILE, report) {
        Err(error) if is_full(&error) => {
            free_reserve(run_dir)?;
            replace(run_dir, EXIT_FILE, report)?
        }
        written => written?,
    };
    file.sync_all()?;
    File::open(run_dir)?.sync_all()?;
    // What is left of the log may need it.
    free_reserve(run_dir)
}

/// Where the exit report goes in a pod, beside the file: the container's termination message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TerminationMessage {
    file: PathBuf,
    /// Bytes that the kubelet keeps.
    most: usize,
}

impl TerminationMessage {
    /// As the container's environment names it; `None` = the container is not a pod's.
    pub(crate) fn of(env: &BTreeMap<OsString, OsString>) -> Option<Self> {
        let get = |name: &str| {
            let value = env.get(OsStr::new(name));
            value.filter(|value| !value.is_empty())
        };
        let most = get(pods::TERMINATION_MESSAGE_BYTES);
        let most = most.and_then(|most| most.to_str()?.parse().ok());
        let limit = pods::MOST_OF_TERMINATION_MESSAGE;
        Some(Self {
            file: get(pods::TERMINATION_MESSAGE)?.into(),
            most: most.map_or(limit, |most: usize| most.min(limit)),
        })
    }

    /// Writes a report there. The kubelet has mounted the file: it is written to in its place. Does not follow a link that
    /// the task may have created.
    pub(crate) fn write(&self, report: &ExitReport) -> io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&self.file)?;
        file.write_all(pods::termination_message(report, self.most).as_bytes())
    }
}

/// Writes the report that the entrypoint runs.
pub(crate) fn write_started(run_dir: &Path, started: &EntrypointStart) -> io::Result<()> {
    replace(run_dir, STARTED_FILE, started).map(drop)
}

/// Writes a temporary file and renames it. Does not follow a link that the task may have created.
fn replace(run_dir: &Path, name: &str, content: &impl Serialize) -> io::Result<File> {
    let temporary = run_dir.join(format!(".{name}.tmp"));
    if let Err(error) = fs::remove_file(&temporary)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    if name == EXIT_FILE {
        file.sync_all()?;
    }
    fs::rename(&temporary, run_dir.join(name))?;
    Ok(file)
}

/// The exit status of this process for the way the container ended.
pub(crate) fn exit_status(exit: &ContainerExit) -> u8 {
    let status = match exit {
        ContainerExit::Exited { code } | ContainerExit::SetupFailed { code, .. } => *code,
        ContainerExit::Signaled { signal, .. } => 128 + signal,
        ContainerExit::StartFailed { .. } | ContainerExit::Lost { .. } => 1,
        ContainerExit::Killed => 137,
    };
    u8::try_from(status).unwrap_or(1)
}

/// The supervisor's own messages, for operators; users read the task's log.
#[derive(Debug, Clone)]
pub(crate) struct Diagnostics(Arc<Mutex<Sink>>);

#[derive(Debug)]
struct Sink {
    file: Option<File>,
    /// Bytes that may still be written; limited because a task may run for months with a broken network.
    left: usize,
}

const MAX_DIAGNOSTICS_BYTES: usize = 1 << 20;

impl Diagnostics {
    /// Appends to the file, or writes to standard error if it cannot be opened.
    pub(crate) fn to_file(path: &Path) -> Self {
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path);
        Self(Arc::new(Mutex::new(Sink {
            file: file.ok(),
            left: MAX_DIAGNOSTICS_BYTES,
        })))
    }

    /// Writes one line. A failure is ignored: it must not end a task.
    pub(crate) fn note(&self, message: impl std::fmt::Display) {
        let now = now_micros();
        let line = format!("{}.{:06} {message}\n", now / 1_000_000, now % 1_000_000);
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = sink.left.checked_sub(line.len()) else {
            return;
        };
        sink.left = left;
        let written = match &mut sink.file {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
        drop(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_whatever_is_in_its_place_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        fs::write(&precious, "keep").unwrap();
        for name in ["exit.json", ".exit.json.tmp"] {
            std::os::unix::fs::symlink(&precious, dir.path().join(name)).unwrap();
        }
        write_exit(
            dir.path(),
            &exit_report(&ContainerExit::Exited { code: 3 }, None),
        )
        .unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keep");
        let report: ExitReport =
            serde_json::from_slice(&fs::read(dir.path().join("exit.json")).unwrap()).unwrap();
        assert_eq!(report.exit, ContainerExit::Exited { code: 3 });
        assert!(report.ended_at > 0);
    }

    #[test]
    fn a_termination_message_is_written_where_the_pod_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("termination-log");
        fs::write(&file, "x".repeat(5000)).unwrap();
        let env = |pairs: &[(&str, &OsStr)]| -> BTreeMap<OsString, OsString> {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect()
        };
        assert_eq!(TerminationMessage::of(&env(&[])), None);
        let name = (pods::TERMINATION_MESSAGE, file.as_os_str());
        let message = TerminationMessage::of(&env(&[name])).unwrap();
        assert_eq!(message.most, 4096);
        let small = (pods::TERMINATION_MESSAGE_BYTES, OsStr::new("700"));
        let message = TerminationMessage::of(&env(&[name, small])).unwrap();
        let exit = ContainerExit::SetupFailed {
            code: 1,
            message: "m".repeat(9000),
        };
        message.write(&exit_report(&exit, None)).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.len() <= 700, "{}", text.len());
        let (exit, _) = pods::read_termination_message(&text).unwrap();
        assert!(
            matches!(exit, ContainerExit::SetupFailed { code: 1, message } if message.ends_with('…'))
        );
        // A task may have put a link there.
        let precious = dir.path().join("precious");
        fs::write(&precious, "keep").unwrap();
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&precious, &file).unwrap();
        assert!(
            message
                .write(&exit_report(&ContainerExit::Killed, None))
                .is_err()
        );
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keep");
    }

    /// Where the scenario of a full disk has one, in a process of its own.
    const SMALL_DISK: &str = "DET_TEST_SMALL_DISK";

    #[test]
    fn a_task_that_fills_the_disk_has_an_exit_report() {
        if let Some(disk) = std::env::var_os(SMALL_DISK) {
            return on_small_disk(Path::new(&disk));
        }
        let dir = tempfile::tempdir().unwrap();
        let name = "report::tests::a_task_that_fills_the_disk_has_an_exit_report";
        let mounted = std::process::Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c"])
            .arg("mount -t tmpfs -o size=1m small \"$1\" || exit 77; exec \"$2\" --exact \"$3\"")
            .arg("sh")
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(SMALL_DISK, dir.path())
            .output();
        match mounted {
            Ok(inner) if inner.status.success() => {
                let text = String::from_utf8_lossy(&inner.stdout);
                assert!(text.contains("1 passed"), "{text}");
            }
            Ok(inner) if inner.status.code() == Some(101) => {
                panic!("{}", String::from_utf8_lossy(&inner.stdout));
            }
            other => eprintln!("SKIPPED: no disk can be mounted here: {other:?}"),
        }
    }

    fn on_small_disk(disk: &Path) {
        reserve(disk).unwrap();
        let mut filler = File::create(disk.join("filler")).unwrap();
        let mut fill = || {
            loop {
                if let Err(error) = filler.write_all(&[0; 512]) {
                    assert!(is_full(&error), "{error}");
                    break;
                }
            }
        };
        fill();
        let cause = ExitCause {
            at: 5,
            rank: None,
            exit_code: Some(3),
            last_lines: vec!["x".repeat(20_000), "no space left".into()],
        };
        let report = exit_report(&ContainerExit::Exited { code: 3 }, Some(&cause));
        write_exit(disk, &report).unwrap();
        let text = fs::read_to_string(disk.join(EXIT_FILE)).unwrap();
        let read: ExitReport = serde_json::from_str(&text).unwrap();
        assert_eq!((&read.exit, &read.cause), (&report.exit, &report.cause));
        // Without the space that was kept there is no report, and no half of one.
        fs::remove_file(disk.join(EXIT_FILE)).unwrap();
        fill();
        assert!(is_full(&write_exit(disk, &report).unwrap_err()));
        assert!(!disk.join(EXIT_FILE).exists());
    }

    #[test]
    fn the_exit_status_is_the_shells() {
        for (exit, status) in [
            (ContainerExit::Exited { code: 7 }, 7),
            (
                ContainerExit::Signaled {
                    signal: 15,
                    out_of_memory: false,
                },
                143,
            ),
            (
                ContainerExit::SetupFailed {
                    code: 127,
                    message: String::new(),
                },
                127,
            ),
            (
                ContainerExit::StartFailed {
                    message: String::new(),
                },
                1,
            ),
        ] {
            assert_eq!(exit_status(&exit), status);
        }
    }
}
