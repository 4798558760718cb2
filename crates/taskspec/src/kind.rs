//! The kinds of task, and what each is called.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantNames};

use crate::notebook::NOTEBOOK_PORTS;
use crate::shell::SHELL_PORTS;
use crate::tensorboard::TENSORBOARD_PORTS;

/// Kind of a task. The names are those of the wire and of `DET_TASK_TYPE`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskKind {
    /// A trial of an experiment.
    Trial,
    /// A Jupyter notebook.
    Notebook,
    /// A shell that users enter with SSH.
    Shell,
    /// A command: a program that runs until it ends.
    Command,
    /// A TensorBoard server over metrics of trials.
    Tensorboard,
    /// Deletes files of checkpoints.
    CheckpointGc,
    /// Anything else that runs in a container.
    Generic,
}

/// What a kind is called where users read it.
struct Words {
    /// In documents and on the command line.
    word: &'static str,
    /// One without its article, in a sentence.
    noun: &'static str,
    /// One with its article, in a sentence.
    one: &'static str,
    /// Several, in a sentence.
    plural: &'static str,
    /// The part of the API's paths that lists them; `None` = none does.
    collection: Option<&'static str>,
}

impl TaskKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Trial,
        Self::Notebook,
        Self::Shell,
        Self::Command,
        Self::Tensorboard,
        Self::CheckpointGc,
        Self::Generic,
    ];

    /// Its name on the wire: `TRIAL`, `CHECKPOINT_GC`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its name in documents and on the command line: `tensorboard`, `checkpoint_gc`.
    pub const fn word(self) -> &'static str {
        self.words().word
    }

    /// What one is called in a sentence: `TensorBoard`, `generic task`.
    pub const fn noun(self) -> &'static str {
        self.words().noun
    }

    /// What the task itself is called where its kind is not the subject, as in labels before its id: `task of a trial`,
    /// `TensorBoard`, `task`.
    pub const fn task_noun(self) -> &'static str {
        match self {
            Self::Trial => "task of a trial",
            Self::Generic => "task",
            Self::Notebook
            | Self::Shell
            | Self::Command
            | Self::Tensorboard
            | Self::CheckpointGc => self.noun(),
        }
    }

    /// One with its article: `a TensorBoard`.
    pub const fn one(self) -> &'static str {
        self.words().one
    }

    /// What several are called in a sentence: `TensorBoards`, `generic tasks`.
    pub const fn plural(self) -> &'static str {
        self.words().plural
    }

    /// The part of the API's paths that lists them, `tensorboards`; `None` for a kind that has no list of its own.
    pub const fn collection(self) -> Option<&'static str> {
        self.words().collection
    }

    const fn words(self) -> Words {
        match self {
            Self::Trial => Words {
                word: "trial",
                noun: "trial",
                one: "a trial",
                plural: "trials",
                collection: None,
            },
            Self::Notebook => Words {
                word: "notebook",
                noun: "notebook",
                one: "a notebook",
                plural: "notebooks",
                collection: Some("notebooks"),
            },
            Self::Shell => Words {
                word: "shell",
                noun: "shell",
                one: "a shell",
                plural: "shells",
                collection: Some("shells"),
            },
            Self::Command => Words {
                word: "command",
                noun: "command",
                one: "a command",
                plural: "commands",
                collection: Some("commands"),
            },
            Self::Tensorboard => Words {
                word: "tensorboard",
                noun: "TensorBoard",
                one: "a TensorBoard",
                plural: "TensorBoards",
                collection: Some("tensorboards"),
            },
            Self::CheckpointGc => Words {
                word: "checkpoint_gc",
                noun: "deletion of checkpoints",
                one: "a deletion of checkpoints",
                plural: "deletions of checkpoints",
                collection: None,
            },
            Self::Generic => Words {
                word: "generic",
                noun: "generic task",
                one: "a generic task",
                plural: "generic tasks",
                collection: None,
            },
        }
    }

    /// The ports that the service of such a task may have; `None` = the kind brings none.
    pub fn service_ports(self) -> Option<RangeInclusive<u16>> {
        match self {
            Self::Trial | Self::Command | Self::CheckpointGc | Self::Generic => None,
            Self::Shell => Some(SHELL_PORTS),
            Self::Notebook => Some(NOTEBOOK_PORTS),
            Self::Tensorboard => Some(TENSORBOARD_PORTS),
        }
    }

    /// Whether such a task works for a trial. Its containers meet each other, it has the checkpoint storage and what else only
    /// trials have, and it is the trial to which its losses are not charged. Every other kind is launched by itself.
    pub const fn works_for_trial(self) -> bool {
        match self {
            Self::Trial => true,
            Self::Notebook
            | Self::Shell
            | Self::Command
            | Self::Tensorboard
            | Self::CheckpointGc
            | Self::Generic => false,
        }
    }

    /// Whether the slots of such a task may be divided over containers on several places.
    pub const fn may_spread(self) -> bool {
        match self {
            Self::Trial | Self::Generic => true,
            Self::Notebook
            | Self::Shell
            | Self::Command
            | Self::Tensorboard
            | Self::CheckpointGc => false,
        }
    }

    /// Whether Python programs of such a task may start warm: it runs a program of a user's that is known to be one. Services
    /// and shells are for users at work, who would find the relay on their search path; what a generic task runs is not known;
    /// a deletion of checkpoints runs no program of a user's.
    pub const fn starts_warm(self) -> bool {
        match self {
            Self::Trial | Self::Command => true,
            Self::Notebook
            | Self::Shell
            | Self::Tensorboard
            | Self::CheckpointGc
            | Self::Generic => false,
        }
    }

    /// Whether the service of such a task is not up before there is something to show: its running container waits until
    /// then. Services of the other kinds come up by themselves.
    pub const fn waits_for_content(self) -> bool {
        match self {
            Self::Tensorboard => true,
            Self::Trial
            | Self::Notebook
            | Self::Shell
            | Self::Command
            | Self::CheckpointGc
            | Self::Generic => false,
        }
    }

    /// Whether the accelerators that are found in containers of such a task are reported to the master.
    pub const fn reports_accelerators(self) -> bool {
        match self {
            Self::Trial | Self::Notebook | Self::Shell => true,
            Self::Command | Self::Tensorboard | Self::CheckpointGc | Self::Generic => false,
        }
    }

    /// Whether such a task is the system's own work, which no user has asked for.
    pub const fn is_systems(self) -> bool {
        match self {
            Self::CheckpointGc => true,
            Self::Trial
            | Self::Notebook
            | Self::Shell
            | Self::Command
            | Self::Tensorboard
            | Self::Generic => false,
        }
    }
}

/// The kinds of task that users launch with a document of their own: all but trials and the deletion of checkpoints, which
/// the master makes. Its words are those of the [`TaskKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    /// A Jupyter notebook: [`TaskKind::Notebook`].
    Notebook,
    /// A shell that users enter with SSH: [`TaskKind::Shell`].
    Shell,
    /// A program that runs until it ends: [`TaskKind::Command`].
    Command,
    /// A TensorBoard server: [`TaskKind::Tensorboard`].
    Tensorboard,
    /// Anything else that runs in a container: [`TaskKind::Generic`].
    Generic,
}

impl LaunchKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 5] = [
        Self::Notebook,
        Self::Shell,
        Self::Command,
        Self::Tensorboard,
        Self::Generic,
    ];

    /// The kind of task that is launched.
    pub const fn task(self) -> TaskKind {
        match self {
            Self::Notebook => TaskKind::Notebook,
            Self::Shell => TaskKind::Shell,
            Self::Command => TaskKind::Command,
            Self::Tensorboard => TaskKind::Tensorboard,
            Self::Generic => TaskKind::Generic,
        }
    }

    /// The kind of launch that makes such a task; `None` for a kind that users do not launch.
    pub fn of(task: TaskKind) -> Option<Self> {
        match task {
            TaskKind::Notebook => Some(Self::Notebook),
            TaskKind::Shell => Some(Self::Shell),
            TaskKind::Command => Some(Self::Command),
            TaskKind::Tensorboard => Some(Self::Tensorboard),
            TaskKind::Generic => Some(Self::Generic),
            TaskKind::Trial | TaskKind::CheckpointGc => None,
        }
    }

    /// Its name in documents and on the command line, see [`TaskKind::word`].
    pub fn name(self) -> &'static str {
        self.task().word()
    }

    /// Its name in generated descriptions.
    pub fn title(self) -> &'static str {
        match self {
            Self::Notebook => "JupyterLab",
            Self::Shell => "Shell",
            Self::Command => "Command",
            Self::Tensorboard => "TensorBoard",
            Self::Generic => "Task",
        }
    }
}

impl From<LaunchKind> for TaskKind {
    fn from(kind: LaunchKind) -> Self {
        kind.task()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_called_after_its_name_on_the_wire() {
        assert_eq!(TaskKind::ALL.len(), TaskKind::VARIANTS.len());
        for kind in TaskKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.word().to_uppercase(), kind.name());
            assert_eq!(kind.one(), format!("a {}", kind.noun()));
            let listed = kind.collection().map(|list| list.trim_end_matches('s'));
            assert!(listed.is_none_or(|word| word == kind.word()), "{kind:?}");
        }
    }

    #[test]
    fn users_launch_every_kind_but_those_that_the_master_makes() {
        for kind in LaunchKind::ALL {
            assert_eq!(LaunchKind::of(kind.task()), Some(kind));
        }
        let launched = TaskKind::ALL.into_iter().filter_map(LaunchKind::of);
        assert!(launched.eq(LaunchKind::ALL));
        assert_eq!(LaunchKind::of(TaskKind::Trial), None);
        assert_eq!(LaunchKind::of(TaskKind::CheckpointGc), None);
    }
}
