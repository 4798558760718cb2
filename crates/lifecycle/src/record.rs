//! The words of the ordered record of changes (`events`): what a change is about, and what happened.

use std::fmt;
use std::sync::Arc;

use det_ids::{
    AllocationId, CheckpointId, ClusterId, ExperimentId, JobId, PlaceId, ProjectId, TaskId,
    TrialId, WorkspaceId,
};
use strum::{Display, EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

use crate::state_name::{AllocationStateName, CheckpointState, StateName, TaskStateName};

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EnumDiscriminants)]
#[strum_discriminants(
    name(SubjectKind),
    doc = "What kind of [`Subject`] it is, with its name in the record.",
    derive(EnumString, IntoStaticStr, VariantNames, PartialOrd, Ord),
    strum(serialize_all = "snake_case")
)]
pub enum Subject {
    /// An experiment, by its number.
    Experiment(ExperimentId),
    /// A trial, by its number.
    Trial(TrialId),
    /// A task, by its id.
    Task(TaskId),
    /// An allocation, by its id.
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
    ConfigPolicies(WorkspaceId, PolicyWorkload),
    /// The master, by the id of its cluster.
    Master(ClusterId),
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
                Some(Self::ConfigPolicies(workspace, workload.parse().ok()?))
            }),
            SubjectKind::Task => Some(Self::Task(id.into())),
            SubjectKind::Allocation => Some(Self::Allocation(id.into())),
            SubjectKind::Job => Some(Self::Job(id.into())),
            SubjectKind::Place => Some(Self::Place(id.into())),
            SubjectKind::Checkpoint => Some(Self::Checkpoint(id.into())),
            SubjectKind::User => Some(Self::User(id.to_owned())),
            SubjectKind::Template => Some(Self::Template(id.to_owned())),
            SubjectKind::Master => Some(Self::Master(id.into())),
            SubjectKind::Database => Some(Self::Database(id.to_owned())),
        };
        read.ok_or_else(wrong)
    }
}

/// The kind of work that configuration policies are for, as it is stored and recorded.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum PolicyWorkload {
    /// Experiments and their trials.
    Experiment,
    /// Notebooks, `TensorBoard`s, shells and commands.
    Ntsc,
}

fn number(id: &str) -> Option<i64> {
    id.parse().ok()
}

/// Prints the subject's id or name, without its kind.
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
            Self::Master(id) => id.fmt(f),
            Self::User(name) | Self::Template(name) | Self::Database(name) => name.fmt(f),
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
    Signal(Signal),
    /// The master by itself, on no one's request.
    Master,
}

impl ActorName {
    /// A user of this login name.
    pub fn user(name: impl AsRef<str>) -> Self {
        Self::User(name.as_ref().into())
    }

    /// The actor of this text, as [`fmt::Display`] writes it.
    ///
    /// # Errors
    /// The text names none; the message contains it.
    pub fn read(text: &str) -> Result<Self, String> {
        let read = match text.split_once(':') {
            Some(("user", name)) => Some(Self::user(name)),
            Some(("task", id)) => Some(Self::Task(id.into())),
            Some(("agent", id)) => Some(Self::Place(id.into())),
            Some(("signal", name)) => name.parse().ok().map(Self::Signal),
            None if text == "master" => Some(Self::Master),
            Some(_) | None => None,
        };
        read.ok_or_else(|| format!("\"{text}\" does not identify who made a change"))
    }
}

/// A signal to the master's process that changes something that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString)]
pub enum Signal {
    /// It reads its configuration anew.
    #[strum(serialize = "SIGHUP")]
    Hup,
}

/// What a subject was or is, as an event records it. The words are those of the subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedState {
    /// State of an experiment or a trial.
    Work(StateName),
    /// State of a task.
    Task(TaskStateName),
    /// State of an allocation.
    Allocation(AllocationStateName),
    /// State of a checkpoint.
    Checkpoint(CheckpointState),
    /// The resource pool that an allocation waits in ([`EventKind::ResourcePool`]).
    ResourcePool(String),
}

impl RecordedState {
    /// Its text in the record.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Work(state) => state.name(),
            Self::Task(state) => state.name(),
            Self::Allocation(state) => state.name(),
            Self::Checkpoint(state) => state.name(),
            Self::ResourcePool(name) => name,
        }
    }
}

impl fmt::Display for RecordedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Makes states of what has states.
macro_rules! recorded_as {
    ($($word:ty => $variant:ident),+) => {$(
        impl From<$word> for RecordedState {
            fn from(state: $word) -> Self {
                Self::$variant(state)
            }
        }
    )+};
}
recorded_as!(StateName => Work, TaskStateName => Task, AllocationStateName => Allocation, CheckpointState => Checkpoint);

impl fmt::Display for ActorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Task(id) => write!(f, "task:{id}"),
            Self::Place(id) => write!(f, "agent:{id}"),
            Self::Signal(signal) => write!(f, "signal:{signal}"),
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
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            EnumString,
            IntoStaticStr,
            VariantNames,
        )]
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
        /// It was created.
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
        /// An allocation ended and gave its slots back.
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
        /// An agent's host cannot start containers; it takes no new tasks.
        HostFault = "host_fault",
        /// An agent's host can start containers again.
        HostFaultEnded = "host_fault_ended",
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
            Subject::ConfigPolicies(WorkspaceId(0), PolicyWorkload::Experiment),
            Subject::Master("m".into()),
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
        assert!(Subject::read(SubjectKind::ConfigPolicies, "0/GENERIC").is_err());
        assert!("trail".parse::<SubjectKind>().is_err());
        assert_eq!("disk_was_full".parse(), Ok(EventKind::DiskWasFull));
    }

    #[test]
    fn every_actor_is_read_as_it_is_written() {
        let actors = [
            ActorName::user("ada"),
            ActorName::user("a:b"),
            ActorName::Task("t.1".into()),
            ActorName::Place("p".into()),
            ActorName::Signal(Signal::Hup),
            ActorName::Master,
        ];
        for actor in actors {
            assert_eq!(ActorName::read(&actor.to_string()), Ok(actor));
        }
        for unknown in ["", "ada", "master:", "signal:SIGUSR1", "robot:r"] {
            let wrong = ActorName::read(unknown).unwrap_err();
            assert!(wrong.starts_with(&format!("\"{unknown}\" ")), "{wrong}");
        }
    }
}
