//! What only tasks of one kind have beside their configuration: decided when a task is launched, and stored with it.

use det_ids::TaskId;
use serde::{Deserialize, Serialize};

use crate::TaskKind;

/// What only tasks of one kind have; trials have their rows instead. Not printable, because some of it is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskDetails {
    /// Nothing of its own.
    Command,
    /// See [`GenericDetails`].
    Generic(GenericDetails),
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
        }
    }

    /// Whether its working directory's `startup-hook.sh` is sourced: `docs/contract/task-environment.md`, "Hooks".
    pub(crate) fn has_startup_hook(&self) -> bool {
        match self {
            Self::Command | Self::Generic(_) => false,
        }
    }
}
