//! Why an engine did not do what was asked of it, and whose fault that may be.

use std::path::PathBuf;

use thiserror::Error;

use crate::containers::store::RuntimeKind;

/// Why a request to an engine failed.
#[derive(Debug, Error)]
pub(crate) enum EngineError {
    #[error(
        "{} does not answer at \"{}\": {reason}; start it, or choose another runtime",
        kind.name(), socket.display()
    )]
    Unreachable {
        kind: RuntimeKind,
        socket: PathBuf,
        reason: String,
    },
    #[error("cannot pull image \"{image}\" {login}: {reason}")]
    Pull {
        image: String,
        /// Where its login came from.
        login: String,
        reason: String,
    },
    #[error(
        "cannot pull image \"{image}\": its registry \"{registry}\" was not reached: {reason}; the names and the network of the \
         engine's host decide that, not a login"
    )]
    Registry {
        image: String,
        registry: String,
        reason: String,
    },
    /// Its name is none that the engine takes, or the engine cannot read what it has.
    #[error("cannot look for image \"{image}\": {reason}")]
    Image { image: String, reason: String },
    #[error("cannot {action}: {reason}")]
    Refused {
        action: &'static str,
        reason: String,
    },
    /// It answered earlier, and does not any more.
    #[error("cannot {action}: the container engine does not answer: {reason}")]
    Silent {
        action: &'static str,
        reason: String,
    },
    /// It took the request, and had not answered it in time.
    #[error("cannot {action}: the container engine did not answer in time: {reason}")]
    TimedOut {
        action: &'static str,
        reason: String,
    },
    #[error(
        "GPUs in Podman containers need Podman 5.4 or newer, which takes CDI names; this one is {version}"
    )]
    PodmanTooOld { version: String },
}

/// What engines print when the disk of their host is full, in lower case.
const FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];

/// What keeps a container from starting, as an error of its engine shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The engine: it would start no other container either.
    Engine,
    /// The engine or its host, or what the task asks for: a registry or an image of the task's choice can have the same
    /// words in an error, and can take as long.
    EngineOrTask,
    /// What the task asks for, or something of this host that concerns this task.
    Task,
}

impl EngineError {
    /// What it is that keeps the container from starting.
    pub(crate) fn obstacle(&self) -> Obstacle {
        match self {
            Self::Unreachable { .. } | Self::Silent { .. } => Obstacle::Engine,
            Self::TimedOut { .. } => Obstacle::EngineOrTask,
            Self::Pull { reason, .. }
            | Self::Image { reason, .. }
            | Self::Refused { reason, .. } => {
                let reason = reason.to_ascii_lowercase();
                if FULL.iter().any(|words| reason.contains(words)) {
                    Obstacle::EngineOrTask
                } else {
                    Obstacle::Task
                }
            }
            Self::Registry { .. } | Self::PodmanTooOld { .. } => Obstacle::Task,
        }
    }
}
