//! The words of the ordered record of changes (`events`): what a change is about, and what happened.

use std::fmt;
use std::sync::Arc;

use det_ids::{
    AllocationId, CheckpointId, ExperimentId, JobId, PlaceId, ProjectId, TaskId, TrialId,
    WorkspaceId,
};
use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, EnumDiscriminants)]
#[strum_discriminants(
    name(SubjectKind),
    doc = "What kind of [`Subject`] it is, with its name in the record.",
    derive(EnumString, IntoStaticStr, VariantNames, PartialOrd, Ord),
    strum(serialize_all = "snake_case")
)]
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
    Checkpoint(CheckpointId),
    /// A place; the record calls it an agent, as its readers do.
    #[strum_discriminants(strum(serialize = "agent"))]
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
        SubjectKind::from(self).into()
    }

    /// The subject of this kind with this identifier, as [`fmt::Display`] writes it.
    ///
    /// # Errors
    /// The identifier is none of this kind; the message names both.
    pub fn read(kind: SubjectKind, id: &str) -> Result<Self, String> {
        let wrong = || {
            let kind: &'static str = kind.into();
            format!("\"{id}\" does not identify a subject of kind \"{kind}\"")
        };
        let read = match kind {
            SubjectKind::Experiment => number(id).map(ExperimentId).map(Self::Experiment),
            SubjectKind::Trial => number(id).map(TrialId).map(Self::Trial),
            SubjectKind::Workspace => number(id).map(WorkspaceId).map(Self::Workspace),
            SubjectKind::Project => number(id).map(ProjectId).map(Self::Project),
            SubjectKind::ConfigPolicies => id.split_once('/').and_then(|(workspace, workload)| {
                let workspace = number(workspace).map(WorkspaceId)?;
                Some(Self::ConfigPolicies(workspace, workload.to_owned()))
            }),
            SubjectKind::Task => Some(Self::Task(id.into())),
            SubjectKind::Allocation => Some(Self::Allocation(id.into())),
            SubjectKind::Job => Some(Self::Job(id.into())),
            SubjectKind::Place => Some(Self::Place(id.into())),
            SubjectKind::Checkpoint => Some(Self::Checkpoint(id.into())),
            SubjectKind::User => Some(Self::User(id.to_owned())),
            SubjectKind::Template => Some(Self::Template(id.to_owned())),
            SubjectKind::Master => Some(Self::Master(id.to_owned())),
            SubjectKind::Database => Some(Self::Database(id.to_owned())),
        };
        read.ok_or_else(wrong)
    }
}

fn number(id: &str) -> Option<i64> {
    id.parse().ok()
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
            Self::Checkpoint(id) => id.fmt(f),
            Self::User(name) | Self::Template(name) | Self::Master(name) | Self::Database(name) => {
                name.fmt(f)
            }
            Self::Workspace(id) => id.fmt(f),
            Self::Project(id) => id.fmt(f),
            Self::ConfigPolicies(workspace, workload) => write!(f, "{workspace}/{workload}"),
        }
    }
}

/// Who or what made a change, as the record names it: `user:NAME`, `task:ID`, `agent:ID`, `signal:NAME` or
/// `master`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorName {
    /// A user, by login name.
    User(Arc<str>),
    /// The code of a task, with the token of its container.
    Task(TaskId),
    /// A place; the record calls it an agent, as its readers do.
    Place(PlaceId),
    /// A signal to the master's process, by its name.
    Signal(&'static str),
    /// The master by itself.
    Master,
}

impl ActorName {
    /// A user of this login name.
    pub fn user(name: impl AsRef<str>) -> Self {
        Self::User(name.as_ref().into())
    }
}

impl fmt::Display for ActorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Task(id) => write!(f, "task:{id}"),
            Self::Place(id) => write!(f, "agent:{id}"),
            Self::Signal(name) => write!(f, "signal:{name}"),
            Self::Master => f.write_str("master"),
        }
    }
}

impl From<&ActorName> for ActorName {
    fn from(name: &ActorName) -> Self {
        name.clone()
    }
}

/// Declares an enum of words with their names in the record.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
        pub enum $name {
            $($(#[$of])* #[strum(serialize = $text)] $word,)+
        }

        impl $name {
            /// Its name in the record.
            pub fn name(self) -> &'static str {
                self.into()
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
        /// It does not report the metric by which its search decides.
        MetricMissing = "metric_missing",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_read_as_it_is_written() {
        let subjects = [
            Subject::Experiment(ExperimentId(1)),
            Subject::Trial(TrialId(2)),
            Subject::Task("t/1".into()),
            Subject::Allocation("t.1".into()),
            Subject::Job("j".into()),
            Subject::Checkpoint("c".into()),
            Subject::Place("p".into()),
            Subject::User("ada".to_owned()),
            Subject::Template("x".to_owned()),
            Subject::Workspace(WorkspaceId(3)),
            Subject::Project(ProjectId(4)),
            Subject::ConfigPolicies(WorkspaceId(0), "EXPERIMENT".to_owned()),
            Subject::Master("m".to_owned()),
            Subject::Database("sqlite".to_owned()),
        ];
        assert_eq!(subjects.len(), SubjectKind::VARIANTS.len());
        for subject in subjects {
            let kind: SubjectKind = subject.kind().parse().unwrap();
            assert_eq!(Subject::read(kind, &subject.to_string()), Ok(subject));
        }
        assert_eq!(SubjectKind::Place, "agent".parse().unwrap());
        let wrong = Subject::read(SubjectKind::Trial, "x").unwrap_err();
        assert_eq!(wrong, "\"x\" does not identify a subject of kind \"trial\"");
        assert!("trail".parse::<SubjectKind>().is_err());
        assert_eq!("disk_was_full".parse(), Ok(EventKind::DiskWasFull));
    }
}
