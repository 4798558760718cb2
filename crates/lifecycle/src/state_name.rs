//! The names of the states of experiments and trials.

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
    /// It wants to run.
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
    /// Those of what has not come to its end.
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
