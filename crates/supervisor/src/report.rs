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
use nix::fcntl::OFlag;
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

/// Writes the exit report atomically, also with respect to a power failure.
pub(crate) fn write_exit(run_dir: &Path, report: &ExitReport) -> io::Result<()> {
    let file = replace(run_dir, EXIT_FILE, report)?;
    file.sync_all()?;
    File::open(run_dir)?.sync_all()
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
