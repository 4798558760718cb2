//! The objects that messages name.

use std::fmt;

use det_taskspec::TaskKind;

/// Kind of an object that a request or an event concerns, or of a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A machine on which an agent runs, as users know a place.
    Agent,
    /// An attempt of a task.
    Allocation,
    /// A checkpoint.
    Checkpoint,
    /// The files of a checkpoint.
    CheckpointFiles,
    /// The experiment that a checkpoint is of.
    CheckpointExperiment,
    /// A container of an allocation.
    Container,
    /// The files that a task starts with.
    ContextDirectory,
    /// An experiment, by its number.
    Experiment,
    /// An experiment, by the id that code outside the cluster gave it.
    ExternalExperiment,
    /// A trial, by the id that code outside the cluster gave it.
    ExternalTrial,
    /// A file of an archive.
    File,
    /// An entry of the job queue.
    Job,
    /// The files that an experiment was submitted with.
    ModelDefinition,
    /// What containers run on: an agent or a node of Kubernetes.
    Place,
    /// A project.
    Project,
    /// A resource pool.
    ResourcePool,
    /// A slot of a place.
    Slot,
    /// A task of whatever kind.
    Task,
    /// What a task was configured with.
    TaskConfiguration,
    /// A task of a kind that was asked for.
    TaskOf(TaskKind),
    /// A configuration template.
    Template,
    /// A trial.
    Trial,
    /// A user.
    User,
    /// A workspace.
    Workspace,
}

impl ObjectKind {
    /// What one is called before its id in a message: `trial`, as in `trial "7" not found`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Allocation => "allocation",
            Self::Checkpoint => "checkpoint",
            Self::CheckpointFiles => "files of checkpoint",
            Self::CheckpointExperiment => "experiment of checkpoint",
            Self::Container => "container",
            Self::ContextDirectory => "context directory of task",
            Self::Experiment => "experiment",
            Self::ExternalExperiment => "experiment of external id",
            Self::ExternalTrial => "trial of external id",
            Self::File => "file",
            Self::Job => "job",
            Self::ModelDefinition => "model definition of experiment",
            Self::Place => "place",
            Self::Project => "project",
            Self::ResourcePool => "resource pool",
            Self::Slot => "slot",
            Self::Task => "task",
            Self::TaskConfiguration => "configuration of task",
            Self::TaskOf(kind) => kind.task_noun(),
            Self::Template => "template",
            Self::Trial => "trial",
            Self::User => "user",
            Self::Workspace => "workspace",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
