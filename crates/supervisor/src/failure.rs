//! Why a task did not reach its entrypoint.

use std::error::Error;
use std::fmt;
use std::io;

use det_taskspec::ContainerExit;

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
