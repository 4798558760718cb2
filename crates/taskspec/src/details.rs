//! What only tasks of one kind have beside their configuration: decided when a task is launched, and stored with it.

use det_ids::TaskId;
use serde::{Deserialize, Serialize};

use crate::shell::{LISTENING, ShellDetails};
use crate::{Entrypoint, TaskFile, TaskKind};

/// What only tasks of one kind have; trials have their rows instead. Not printable, because some of it is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskDetails {
    /// Nothing of its own.
    Command,
    /// See [`GenericDetails`].
    Generic(GenericDetails),
    /// See [`ShellDetails`].
    Shell(ShellDetails),
}

/// What only a generic task has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GenericDetails {
    /// The task whose configuration and files it began with.
    pub forked_from: Option<TaskId>,
    /// Whether it refuses to be paused.
    pub no_pause: bool,
}

impl TaskDetails {
    /// The kind of the task.
    pub fn kind(&self) -> TaskKind {
        match self {
            Self::Command => TaskKind::Command,
            Self::Generic(_) => TaskKind::Generic,
            Self::Shell(_) => TaskKind::Shell,
        }
    }

    /// Whether its working directory's `startup-hook.sh` is sourced: `docs/contract/task-environment.md`, "Hooks".
    pub(crate) fn has_startup_hook(&self) -> bool {
        match self {
            Self::Command | Self::Generic(_) => false,
            Self::Shell(_) => true,
        }
    }

    /// Port of the service that its kind brings, which the task's id alone names; `None` = it brings none.
    pub fn service_port(&self) -> Option<u16> {
        match self {
            Self::Command | Self::Generic(_) => None,
            Self::Shell(shell) => Some(shell.port),
        }
    }

    /// What its kind runs; `None` = what its configuration names.
    pub(crate) fn entrypoint(&self) -> Option<Entrypoint> {
        match self {
            Self::Command | Self::Generic(_) => None,
            Self::Shell(shell) => Some(Entrypoint::SshServer { port: shell.port }),
        }
    }

    /// The files that its kind needs.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        match self {
            Self::Command | Self::Generic(_) => Vec::new(),
            Self::Shell(shell) => shell.files(),
        }
    }

    /// What its service writes when it can be used; see [`Script::readiness`](crate::Script::readiness).
    pub(crate) fn readiness(&self) -> Vec<String> {
        match self {
            Self::Command | Self::Generic(_) => Vec::new(),
            Self::Shell(_) => vec![LISTENING.to_owned()],
        }
    }
}
