//! The words of the ordered record of changes (`events`): what a change is about, and what happened.

use std::fmt;

use det_ids::{
    AllocationId, ExperimentId, JobId, PlaceId, ProjectId, TaskId, TrialId, WorkspaceId,
};

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// An experiment.
    Experiment(ExperimentId),
    /// A trial.
    Trial(TrialId),
    /// A task.
    Task(TaskId),
    /// An allocation.
    Allocation(AllocationId),
    /// An entry of the queue.
    Job(JobId),
    /// A checkpoint, by its UUID.
    Checkpoint(String),
    /// A place; the record calls it an agent, as its readers do.
    Place(PlaceId),
    /// A user, by name.
    User(String),
    /// A template, by name.
    Template(String),
    /// A workspace, by its number.
    Workspace(WorkspaceId),
    /// A project, by its number.
    Project(ProjectId),
    /// The configuration policies of a workspace (0 = of the cluster) for one kind of workload.
    ConfigPolicies(WorkspaceId, String),
    /// The master, by the id of its cluster.
    Master(String),
    /// The database, by its kind: `sqlite` or `postgres`.
    Database(String),
}

impl Subject {
    /// The kind's name in the record.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Experiment(_) => "experiment",
            Self::Trial(_) => "trial",
            Self::Task(_) => "task",
            Self::Allocation(_) => "allocation",
            Self::Job(_) => "job",
            Self::Checkpoint(_) => "checkpoint",
            Self::Place(_) => "agent",
            Self::User(_) => "user",
            Self::Template(_) => "template",
            Self::Workspace(_) => "workspace",
            Self::Project(_) => "project",
            Self::ConfigPolicies(..) => "config_policies",
            Self::Master(_) => "master",
            Self::Database(_) => "database",
        }
    }
}

/// The subject's identifier.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment(id) => id.fmt(f),
            Self::Trial(id) => id.fmt(f),
            Self::Task(id) => id.fmt(f),
            Self::Allocation(id) => id.fmt(f),
            Self::Job(id) => id.fmt(f),
            Self::Place(id) => id.fmt(f),
            Self::Checkpoint(name)
            | Self::User(name)
            | Self::Template(name)
            | Self::Master(name)
            | Self::Database(name) => name.fmt(f),
            Self::Workspace(id) => id.fmt(f),
            Self::Project(id) => id.fmt(f),
            Self::ConfigPolicies(workspace, workload) => write!(f, "{workspace}/{workload}"),
        }
    }
}

/// Declares an enum of words with their names in the record.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $word,)+
        }

        impl $name {
            /// Its name in the record.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)+
                }
            }
        }
    };
}

words! {
    /// What happened to a subject.
    EventKind {
        /// It was added.
        Created = "created",
        /// Its state changed; the record contains from what to what.
        State = "state",
        /// Users changed what they may change of it.
        Changed = "changed",
        /// It was deleted.
        Deleted = "deleted",
        /// It is being deleted.
        Deleting = "deleting",
        /// It could not be deleted.
        DeleteFailed = "delete_failed",
        /// It has another name.
        Renamed = "renamed",
        /// It belongs to another project or workspace.
        Moved = "moved",
        /// It was archived.
        Archived = "archived",
        /// It is not archived any more.
        Unarchived = "unarchived",
        /// A user pinned a workspace.
        Pinned = "pinned",
        /// A user does not pin a workspace any more.
        Unpinned = "unpinned",
        /// An allocation was given slots.
        Placed = "placed",
        /// An allocation ended.
        Ended = "ended",
        /// An allocation waits in another resource pool.
        ResourcePool = "resource_pool",
        /// The checkpoints that its policy does not keep were deleted.
        Collected = "collected",
        /// A line of its log matched a log policy.
        LogPolicyMatched = "log_policy_matched",
        /// Its logs are kept for another time.
        LogRetention = "log_retention",
        /// Its log was deleted.
        LogsDeleted = "logs_deleted",
        /// Its log could not be written for a while.
        LogHeld = "log_held",
        /// Its code reported and wrote nothing for too long; the record contains what its processes did.
        Silent = "silent",
        /// An agent connected.
        Connected = "connected",
        /// The connection to an agent ended.
        Disconnected = "disconnected",
        /// An agent that had been away for too long does not count any more.
        Removed = "removed",
        /// An agent or one of its slots takes tasks.
        Enabled = "enabled",
        /// An agent or one of its slots takes no new tasks.
        Draining = "draining",
        /// An agent or one of its slots takes no tasks.
        Disabled = "disabled",
        /// An agent joined with a token of its own, for the first time.
        Joined = "joined",
        /// An agent's token was revoked.
        TokenRevoked = "revoked",
        /// Another configuration is in force.
        Configuration = "configuration",
        /// A new configuration was not taken.
        ConfigurationRefused = "configuration_refused",
        /// The database's disk had been full.
        DiskWasFull = "disk_was_full",
    }
}
