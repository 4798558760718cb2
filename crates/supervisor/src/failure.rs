//! Why a task did not reach its entrypoint.

use std::error::Error;
use std::fmt;

use det_taskspec::ContainerExit;

/// Why a task did not reach its entrypoint, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// The task's: it would go wrong again.
    Task {
        /// Exit code for people and scripts.
        code: i32,
        /// What was tried and what went wrong.
        message: String,
    },
    /// The host's or the master's: it may go well elsewhere or later.
    Host {
        /// What was tried and what went wrong.
        message: String,
    },
}

impl SetupError {
    /// The task's fault, with the exit code of a failed preparation.
    pub(crate) fn task(message: impl Into<String>) -> Self {
        Self::Task {
            code: 1,
            message: message.into(),
        }
    }

    /// The host's fault.
    pub(crate) fn host(message: impl Into<String>) -> Self {
        Self::Host {
            message: message.into(),
        }
    }

    /// How the container ended.
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
