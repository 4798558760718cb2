//! The names of the states of what lives, as they are stored and recorded.

use strum::{EnumString, IntoStaticStr, VariantNames};

/// The name under which a state of an experiment or a trial is stored, filtered and recorded: several states share one
/// where only the life cycle needs to distinguish them. The wire adds `STATE_`, and shows `STOPPING_DELETING` as
/// `DELETING`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum StateName {
    /// It runs or waits for slots.
    Active,
    /// It rests until it is activated, or is about to.
    Paused,
    /// It ends because a user canceled it.
    StoppingCanceled,
    /// It ends because a user killed it.
    StoppingKilled,
    /// It ends because its search is over, or its code asked for it.
    StoppingCompleted,
    /// It ends because it failed.
    StoppingError,
    /// It ends, and is deleted then.
    StoppingDeleting,
    /// It ended as it should.
    Completed,
    /// It ended because a user asked for it.
    Canceled,
    /// It ended because it failed.
    Error,
    /// It is being deleted.
    Deleting,
    /// Its deletion failed, and can be asked for again.
    DeleteFailed,
}

impl StateName {
    /// The names of the states that are not ends: what has one of them lives.
    pub const LIVE: [Self; 7] = [
        Self::Active,
        Self::Paused,
        Self::StoppingCanceled,
        Self::StoppingKilled,
        Self::StoppingCompleted,
        Self::StoppingError,
        Self::StoppingDeleting,
    ];

    /// The name as it is stored.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The name of a state of an allocation in the ordered record of changes: another one for each state, whatever the data in
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum AllocationStateName {
    /// It waits for slots.
    Pending,
    /// It has slots, and its place has accepted it at most.
    Assigned,
    /// Its image is being pulled.
    Pulling,
    /// Its containers are being created.
    Starting,
    /// Its supervisors run.
    Running,
    /// Its members have met, or its service is up.
    Ready,
    /// It was asked to save and exit.
    Preempting,
    /// It saves, and exits then.
    Saving,
    /// Its members are being ended.
    Terminating,
    /// It has ended and holds no slots.
    Terminated,
}

impl AllocationStateName {
    /// The name as it is recorded.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The name of a state of a task in the ordered record of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskStateName {
    /// It asks for no slots: it has not begun, rests, or waits for its trial's answer.
    Suspended,
    /// It waits for slots.
    Queued,
    /// Its attempt has slots: containers start or run.
    Running,
    /// Its attempt is on its way out.
    Stopping,
    /// Its code came to its end.
    Completed,
    /// It was killed, or gave its slots back and is not started again.
    Canceled,
    /// Its code failed, or the platform did.
    Error,
}

impl TaskStateName {
    /// The name as it is recorded.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Which of a checkpoint's files exist. The order is that of the words, which lists are sorted by.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantNames,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum CheckpointState {
    /// They are being written. A state of the wire: no checkpoint is stored before it is complete.
    Active,
    /// All of its files exist.
    Completed,
    /// None of its files exist any more.
    Deleted,
    /// Writing them failed. A state of the wire: no such checkpoint is stored.
    Error,
    /// Some of its files were deleted, others exist.
    PartiallyDeleted,
}

impl CheckpointState {
    /// Its word in the database and, after `STATE_`, on the wire: `PARTIALLY_DELETED`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
