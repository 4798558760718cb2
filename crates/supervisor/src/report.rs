//! Files that report the task's state to the agent.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use det_taskspec::sandbox::{EntrypointStart, ExitReport, STARTED_FILE};
use det_taskspec::{ContainerExit, EXIT_FILE, ExitCause};
use serde::Serialize;

use crate::clock::now_micros;

/// Writes the exit report atomically, also with respect to a power failure.
pub(crate) fn write_exit(
    run_dir: &Path,
    exit: &ContainerExit,
    cause: Option<&ExitCause>,
) -> io::Result<()> {
    let report = ExitReport {
        exit: exit.clone(),
        ended_at: now_micros(),
        cause: cause.cloned(),
    };
    let file = replace(run_dir, EXIT_FILE, &report)?;
    file.sync_all()?;
    File::open(run_dir)?.sync_all()
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
        write_exit(dir.path(), &ContainerExit::Exited { code: 3 }, None).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keep");
        let report: ExitReport =
            serde_json::from_slice(&fs::read(dir.path().join("exit.json")).unwrap()).unwrap();
        assert_eq!(report.exit, ContainerExit::Exited { code: 3 });
        assert!(report.ended_at > 0);
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
