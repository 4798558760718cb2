//! Why a task did not reach its entrypoint.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use det_ids::one_line;
use det_taskspec::{ContainerExit, SERVICE_FAILURE_FILE};

/// Bytes that a service may leave about why it gave up.
const MOST_OF_SERVICE_FAILURE: u64 = 8 << 10;
/// Characters of it that are reported.
const MOST_REPORTED: usize = 1000;

/// Why a task did not reach its entrypoint, and whether task or host caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// Caused by the task: it would fail again.
    Task {
        /// Exit code of the task.
        code: i32,
        /// What was tried and what went wrong.
        message: String,
    },
    /// Caused by the host or the master: it may work elsewhere or later.
    Host {
        /// What was tried and what went wrong.
        message: String,
    },
}

impl SetupError {
    /// An error caused by the task, with the exit code of a failed preparation.
    pub(crate) fn task(message: impl Into<String>) -> Self {
        Self::Task {
            code: 1,
            message: message.into(),
        }
    }

    /// An error caused by the host.
    pub(crate) fn host(message: impl Into<String>) -> Self {
        Self::Host {
            message: message.into(),
        }
    }

    /// The exit reason of the container.
    pub(crate) fn into_exit(self) -> ContainerExit {
        match self {
            Self::Task { code, message } => ContainerExit::SetupFailed { code, message },
            Self::Host { message } => ContainerExit::StartFailed { message },
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task { message, .. } | Self::Host { message } => f.write_str(message),
        }
    }
}

/// Why what starts a service gave up, in one line, as it has left it in the run directory; `None` = it has left nothing that
/// can be reported. The task may write there, too: no link is followed, and no more is read than is reasonable.
pub(crate) fn service_failure(run_dir: &Path) -> Option<String> {
    let path = run_dir.join(SERVICE_FAILURE_FILE);
    let bytes = det_spool::read_plain(&path, MOST_OF_SERVICE_FAILURE).ok()?;
    let text = one_line(&String::from_utf8_lossy(&bytes));
    let words: Vec<&str> = text.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(MOST_REPORTED).collect();
    (!line.is_empty()).then_some(line)
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that `map_err` wants"
)]
/// The error of a thread or a pipe for the task that the host did not give.
pub(crate) fn thread_failed(error: io::Error) -> SetupError {
    SetupError::host(format!(
        "could not start a thread or open a pipe for the task: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_service_has_left_is_reported_in_one_line_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SERVICE_FAILURE_FILE);
        assert_eq!(service_failure(dir.path()), None);
        std::fs::write(&path, b"no\x1b[1m  \xff\nPython\n").unwrap();
        let line = service_failure(dir.path()).unwrap();
        assert_eq!(line, "no [1m \u{fffd} Python");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(service_failure(dir.path()), None);
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        assert_eq!(service_failure(dir.path()).unwrap().len(), MOST_REPORTED);
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        assert_eq!(service_failure(dir.path()), None);
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert_eq!(service_failure(dir.path()), None);
    }
}
