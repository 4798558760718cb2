//! What only tasks of one kind have beside their configuration: decided when a task is launched, and stored with it.

use std::ops::RangeInclusive;
use std::time::Duration;

use det_ids::TaskId;
use serde::{Deserialize, Serialize};

use crate::checkpoint_gc::CheckpointGcDetails;
use crate::notebook::{self, IdleCheck, NotebookDetails};
use crate::shell::{self, ShellDetails};
use crate::tensorboard::{self, TensorBoardDetails};
use crate::{Entrypoint, Mount, TaskFile, TaskKind};

/// What only tasks of one kind have; trials have their rows instead. Not printable, because some of it is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskDetails {
    /// A command has nothing that other kinds do not have.
    Command,
    /// Where a generic task comes from, and whether it can be paused: see [`GenericDetails`].
    Generic(GenericDetails),
    /// Port and keys of a shell: see [`ShellDetails`].
    Shell(ShellDetails),
    /// Port, token and certificate of a notebook: see [`NotebookDetails`].
    Notebook(NotebookDetails),
    /// What a TensorBoard shows: see [`TensorBoardDetails`].
    Tensorboard(TensorBoardDetails),
    /// What is deleted, and by what: see [`CheckpointGcDetails`].
    CheckpointGc(CheckpointGcDetails),
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
            Self::Notebook(_) => TaskKind::Notebook,
            Self::Tensorboard(_) => TaskKind::Tensorboard,
            Self::CheckpointGc(_) => TaskKind::CheckpointGc,
        }
    }

    /// Whether its working directory's `startup-hook.sh` is sourced: `docs/contract/task-environment.md`, "Hooks".
    pub(crate) fn has_startup_hook(&self) -> bool {
        match self {
            Self::Command | Self::Generic(_) | Self::CheckpointGc(_) => false,
            Self::Shell(_) | Self::Notebook(_) | Self::Tensorboard(_) => true,
        }
    }

    /// Whether its pool's startup hook is sourced.
    pub(crate) fn has_pool_hook(&self) -> bool {
        match self {
            // There may be no shell in its image.
            Self::CheckpointGc(_) => false,
            Self::Command
            | Self::Generic(_)
            | Self::Shell(_)
            | Self::Notebook(_)
            | Self::Tensorboard(_) => true,
        }
    }

    /// Whether it fetches the files that its owner gave it.
    pub(crate) fn has_context(&self) -> bool {
        match self {
            Self::CheckpointGc(_) => false,
            Self::Command
            | Self::Generic(_)
            | Self::Shell(_)
            | Self::Notebook(_)
            | Self::Tensorboard(_) => true,
        }
    }

    /// Port of the service that its kind brings, which the task's id alone names; `None` = it brings none.
    pub fn service_port(&self) -> Option<u16> {
        match self {
            Self::Command | Self::Generic(_) | Self::CheckpointGc(_) => None,
            Self::Shell(shell) => Some(shell.port),
            Self::Notebook(notebook) => Some(notebook.port),
            Self::Tensorboard(tensorboard) => Some(tensorboard.port),
        }
    }

    /// The ports that a task of its kind may be given for its service; `None` = it brings none.
    pub fn service_ports(&self) -> Option<RangeInclusive<u16>> {
        self.kind().service_ports()
    }

    /// Gives its service a port, one of [`TaskDetails::service_ports`], or 0 where none is free; nothing changes where its kind
    /// brings none.
    pub fn give_port(&mut self, port: u16) {
        match self {
            Self::Command | Self::Generic(_) | Self::CheckpointGc(_) => {}
            Self::Shell(shell) => shell.port = port,
            Self::Notebook(notebook) => notebook.port = port,
            Self::Tensorboard(tensorboard) => tensorboard.port = port,
        }
    }

    /// How long it may be idle before it is ended; `None` = for ever.
    pub fn idle_timeout(&self) -> Option<Duration> {
        let seconds = match self {
            Self::Command | Self::Generic(_) | Self::Shell(_) | Self::CheckpointGc(_) => None,
            Self::Notebook(notebook) => notebook.idle_timeout,
            Self::Tensorboard(tensorboard) => tensorboard.idle_timeout,
        };
        seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// What its kind runs; `None` = what its configuration names.
    pub(crate) fn entrypoint(&self) -> Option<Entrypoint> {
        match self {
            Self::Command | Self::Generic(_) => None,
            Self::Shell(shell) => Some(Entrypoint::SshServer { port: shell.port }),
            Self::Notebook(_) => Some(NotebookDetails::entrypoint()),
            Self::Tensorboard(tensorboard) => Some(tensorboard.entrypoint()),
            Self::CheckpointGc(removal) => Some(removal.entrypoint()),
        }
    }

    /// The files that its kind needs.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        match self {
            Self::Command | Self::Generic(_) => Vec::new(),
            Self::Shell(shell) => shell.files(),
            Self::Notebook(notebook) => notebook.files(),
            Self::Tensorboard(tensorboard) => tensorboard.files(),
            Self::CheckpointGc(removal) => removal.files(),
        }
    }

    /// The variables that its kind needs.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Command | Self::Generic(_) | Self::Shell(_) | Self::CheckpointGc(_) => Vec::new(),
            Self::Notebook(notebook) => notebook.variables(),
            Self::Tensorboard(tensorboard) => tensorboard.variables(),
        }
    }

    /// The host directories that its kind needs.
    pub(crate) fn mounts(&self) -> &[Mount] {
        match self {
            Self::Command | Self::Generic(_) | Self::Shell(_) | Self::Notebook(_) => &[],
            Self::Tensorboard(tensorboard) => &tensorboard.mounts,
            Self::CheckpointGc(removal) => &removal.mounts,
        }
    }

    /// What its service writes when it can be used; see [`Script::readiness`](crate::Script::readiness).
    pub(crate) fn readiness(&self) -> Vec<String> {
        let text = match self {
            Self::Command | Self::Generic(_) | Self::CheckpointGc(_) => return Vec::new(),
            Self::Shell(_) => shell::LISTENING,
            Self::Notebook(_) => notebook::RUNNING,
            Self::Tensorboard(_) => tensorboard::RUNNING,
        };
        vec![text.to_owned()]
    }

    /// The port that it listens on only after it has written that; see [`Script::readiness_port`](crate::Script::readiness_port).
    pub(crate) fn readiness_port(&self) -> Option<u16> {
        match self {
            Self::Command
            | Self::Generic(_)
            | Self::Shell(_)
            | Self::Tensorboard(_)
            | Self::CheckpointGc(_) => None,
            Self::Notebook(notebook) => Some(notebook.port),
        }
    }

    /// How its supervisor finds out whether it is in use; `None` = it does not.
    pub(crate) fn idle_check(&self) -> Option<IdleCheck> {
        match self {
            Self::Command
            | Self::Generic(_)
            | Self::Shell(_)
            | Self::Tensorboard(_)
            | Self::CheckpointGc(_) => None,
            Self::Notebook(notebook) => notebook.idle_check(),
        }
    }
}
