//! Typed identifiers and units.
//!
//! Every crate refers to users, workspaces, projects, experiments, trials, tasks, allocations and containers through
//! these types, so that one cannot be handed in where another belongs. The crate knows nothing of what the identifiers
//! mean. Read [`TaskId`], [`AllocationId`] and [`ContainerId`] first: they nest.
//!
//! - A **task** is what runs containers: a trial, a notebook, a command.
//! - An **allocation** is one attempt's claim on slots: `<task>.<n>`, n from 1.
//! - A **container** is one member of an allocation on one place (the wire calls it *resource*).
//! - A **place** is what containers run on: the machine of an agent, or a node of a Kubernetes cluster. It offers slots.
//!
//! The default of an identifier is none: 0, or the empty text. Messages have it where nothing is named, and `given` is for
//! them.

mod container_report;
mod logs;
mod priority;
mod quantity;
mod text;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use container_report::{ContainerReportId, NotAContainerReport};
pub use logs::{LogLevel, LogSource, LogStream, LogWord, Word};
pub use priority::PriorityOrder;
pub use quantity::quantity;
use serde::{Deserialize, Serialize};
pub use text::one_line;

/// Text that is no number of an experiment, a trial or another thing that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANumber;

impl fmt::Display for NotANumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be its number, a whole number such as 12, as the lists show it")
    }
}

impl std::error::Error for NotANumber {}

/// Defines an identifier that is a positive row number.
macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = NotANumber;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self).map_err(|_| NotANumber)
            }
        }
    };
}

/// Defines an identifier that is text.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The identifier; `None` = it is the empty text, which is none.
            pub fn given(self) -> Option<Self> {
                (!self.0.is_empty()).then_some(self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

/// For identifiers that are counted from 1, so that 0 is none.
macro_rules! zero_is_none {
    ($($name:ident),+) => {$(
        impl $name {
            /// The identifier; `None` = it is 0, which is none.
            pub fn given(self) -> Option<Self> {
                (self.0 != 0).then_some(self)
            }
        }
    )+};
}

zero_is_none!(ExperimentId, TrialId, UserId, WorkspaceId, ProjectId);

number_id!(
    /// An experiment, counted from 1.
    #[derive(Default)]
    ExperimentId
);
number_id!(
    /// A trial, counted from 1 over the whole cluster.
    #[derive(Default)]
    TrialId
);
number_id!(
    /// A user, counted from 1; the default, 0, is no user.
    #[derive(Default)]
    UserId
);
number_id!(
    /// A workspace, counted from 1; the default, 0, is no workspace.
    #[derive(Default)]
    WorkspaceId
);
number_id!(
    /// A project, counted from 1 over the whole cluster; the default, 0, is no project.
    #[derive(Default)]
    ProjectId
);
number_id!(
    /// A run of a trial, counted from 1 within its trial; the default, 0, is no run. Clients call it `trialRunId`.
    #[derive(Default)]
    RunId
);
number_id!(
    /// A storage of checkpoints, counted from 1. The store numbers each location when a trial first names it.
    StorageId
);
number_id!(
    /// An event's position in the ordered record, greater than that of every earlier one. The store gives it as it writes
    /// the event. The default, 0, comes before the first.
    #[derive(Default)]
    EventId
);
number_id!(
    /// A row of the journal of metric reports: a commit's reports, in order of arrival. The master's journal gives it. The
    /// default, 0, comes before the first.
    #[derive(Default)]
    JournalId
);
number_id!(
    /// A stored chunk of metric reports, in order of arrival. The store gives it. The default, 0, comes before the first.
    #[derive(Default)]
    MetricChunkId
);
number_id!(
    /// A stored metric report, as streams of reports number it: made of the number of its chunk and its place in that.
    StoredReportId
);
number_id!(
    /// A line of a task's log, counted from 1 within its task. The store gives it. The default, 0, comes before the first.
    #[derive(Default)]
    LogLineId
);
number_id!(
    /// A line of the master's own log, counted from 0 without gaps since the master started. The master's log gives it.
    #[derive(Default)]
    MasterLogLineId
);
text_id!(
    /// A task: `<experiment>.<request uuid>` for trials, a UUID for everything else.
    #[derive(Default)]
    TaskId
);
text_id!(
    /// One attempt of a task: `<task>.<n>`, n from 1.
    #[derive(Default)]
    AllocationId
);
text_id!(
    /// One container of an allocation: a UUID. The wire calls it a resource.
    #[derive(Default)]
    ContainerId
);
text_id!(
    /// An agent, unique in the cluster; its host name unless configured otherwise.
    #[derive(Default)]
    AgentId
);
text_id!(
    /// A place: what an attempt's containers run on, an agent's machine for example. Unique in the cluster.
    #[derive(Default)]
    PlaceId
);
text_id!(
    /// An entry of the job queue: an experiment or one interactive task. A UUID.
    #[derive(Default)]
    JobId
);
text_id!(
    /// A checkpoint: a UUID that its task chose. The wire calls it `uuid` or `checkpointUuid`.
    #[derive(Default)]
    CheckpointId
);
text_id!(
    /// A metric report: what its sender calls it, unique in the run or container that sends, so that one that is sent again
    /// is recognised. What containers send has a [`ContainerReportId`].
    #[derive(Default)]
    ReportId
);
text_id!(
    /// A spool of log lines, of which the master stores how far it has it: `<task>/<what the sender calls it>`, so that no
    /// task touches the spool of another. The master makes it from the first batch.
    SpoolId
);
text_id!(
    /// A cluster: a UUID that its first master made and stored, or what the configuration names. Pods and directories carry
    /// it, so that masters of other clusters leave them alone. The default, empty, is no cluster.
    #[derive(Default)]
    ClusterId
);
text_id!(
    /// One start of a master: a UUID, made at the start. The default, empty, is none.
    #[derive(Default)]
    MasterId
);
text_id!(
    /// What a place keeps between its connections. With another one than before, what ran there is gone for good. An agent
    /// makes a UUID with its data directory; a node of Kubernetes has its UID.
    InstanceId
);
text_id!(
    /// A tunnel from the master to a port of a container: a secret between master and agent. The master makes it, and the
    /// agent names it as it connects.
    TunnelId
);
text_id!(
    /// The name by which code outside the cluster finds again the experiment that it reports, unique in the cluster. That
    /// code chooses it.
    ExternalExperimentId
);
text_id!(
    /// A searcher's name for a trial it asked for, before the trial has a number: a UUID. Of a trial that runs outside the
    /// cluster it is what its code calls it, if that chose a name.
    RequestId
);

/// An agent's machine is a place, and the agent's id is the place's.
impl From<AgentId> for PlaceId {
    fn from(agent: AgentId) -> Self {
        Self(agent.0)
    }
}

impl TaskId {
    /// The id of this task's `n`-th allocation (n counts from 1).
    pub fn allocation(&self, n: u32) -> AllocationId {
        AllocationId(format!("{}.{n}", self.0))
    }
}

impl RunId {
    /// The first run of a trial.
    pub const FIRST: Self = Self(1);

    /// The run after this one; the first after none.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl JournalId {
    /// The row after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl MetricChunkId {
    /// After every chunk.
    pub const END: Self = Self(i64::MAX);
}

impl LogLineId {
    /// After every line.
    pub const END: Self = Self(i64::MAX);

    /// The line so many lines after this one; before it where `lines` is negative.
    #[must_use]
    pub const fn plus(self, lines: i64) -> Self {
        Self(self.0.saturating_add(lines))
    }
}

impl MasterLogLineId {
    /// The line after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl CheckpointId {
    /// Whether it is a UUID with hyphens, as those of all checkpoints are.
    pub fn is_well_formed(&self) -> bool {
        is_uuid(&self.0)
    }
}

/// Whether a text is a UUID with hyphens, in either case.
pub fn is_uuid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

impl AllocationId {
    /// Whether the text is `<task>.<n>`, as those of all allocations are: a caller who names something else gets a clear
    /// refusal. It answers nothing more. Which task and which number it is are in the allocation's row.
    pub fn is_well_formed(&self) -> bool {
        let parts = self.0.rsplit_once('.');
        parts.is_some_and(|(task, n)| !task.is_empty() && n.parse::<u32>().is_ok())
    }
}

/// The number of a slot, counted from 0 on its place; the default is the first one. Where the slots of a place have names,
/// it is the number of a device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SlotId(pub u32);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point in time: microseconds since 1970-01-01T00:00:00Z. Pure crates take it as an argument.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// How long it is after an earlier moment; zero = it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_id_names_its_task_and_attempt() {
        let task = TaskId::from("7.0b6c");
        let allocation = task.allocation(3);
        assert_eq!(allocation.as_str(), "7.0b6c.3");
        assert!(allocation.is_well_formed());
        assert!(!AllocationId::from("no-number").is_well_formed());
        assert!(!AllocationId::from(".1").is_well_formed());
    }

    #[test]
    fn time_passes_from_an_earlier_moment_on() {
        assert_eq!(Micros(7).since(Micros(5)), Duration::from_micros(2));
        assert_eq!(Micros(5).since(Micros(7)), Duration::ZERO);
        assert_eq!(
            Micros(i64::MAX).since(Micros(-1)),
            Duration::from_micros(i64::MAX.unsigned_abs())
        );
    }

    #[test]
    fn zero_and_the_empty_text_name_nothing() {
        assert_eq!(ProjectId(7).given(), Some(ProjectId(7)));
        assert_eq!(ProjectId::default().given(), None);
        assert_eq!(TaskId::from("7.0b6c").given(), Some("7.0b6c".into()));
        assert_eq!(TaskId::default().given(), None);
    }

    #[test]
    fn checkpoints_are_named_by_uuids_with_hyphens() {
        let uuid = "7d1f1a52-8d0c-4f6a-9A45-3c7d2a0c8f11";
        assert!(CheckpointId::from(uuid).is_well_formed());
        for other in [
            "",
            "7d1f1a528d0c4f6a9a453c7d2a0c8f11",
            "7d1f1a52-8d0c-4f6a-9a45-3c7d2a0c8f1g",
            "7d1f1a52-8d0c-4f6a-9a45-3c7d2a0c8f1",
            "7d1f1a528-d0c-4f6a-9a45-3c7d2a0c8f11",
            "{d1f1a52-8d0c-4f6a-9a45-3c7d2a0c8f1}",
            "7d1f1a52-8d0c-4f6a-9a45-3c7d2a0c8fé",
            "../../../../../../../../../etc/passwd",
        ] {
            assert!(!CheckpointId::from(other).is_well_formed(), "{other}");
        }
    }
}
