//! Deliberate defects, to show that the checks can fail.

use det_orchestrator::Mutant as CoreMutant;
use serde::{Deserialize, Serialize};

/// A defect of the code that connects the pure crates. Most of them were defects of the real one at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutant {
    /// Metrics of an older run are taken.
    UnfencedMetrics,
    /// Checkpoints of an older run are taken.
    UnfencedCheckpoints,
    /// An older run can end the trial early.
    UnfencedEarlyExit,
    /// The planner does not receive which slots are held.
    DoublePlacement,
    /// A repeated metric report is a second point.
    DoubledMetrics,
    /// An answer is given before the commit.
    AnswersEarly,
    /// The search in memory stays ahead of its rows when a commit fails.
    KeepsSearchAfterFailure,
    /// The search receives events that are not stored.
    ForgetsSearchEvents,
    /// After a start what waits is not looked at.
    SleepsAfterStart,
    /// A commit whose answer is lost wakes nothing.
    LosesWakes,
    /// When the end of a connection cannot be stored, it is not tried again.
    ForgetsAbsence,
    /// A late report of an earlier connection moves a container back.
    MovesBack,
    /// Agents that stay away are waited for without end.
    EndlessPatience,
    /// What no row wants is left running.
    LeavesStrays,
    /// Changes of trials leave no event.
    NoEvents,
    /// A refused request has written something before.
    DirtyRefusal,
    /// A restarted agent starts again what it had started.
    AgentStartsTwice,
    /// The search of a continued experiment creates the trials of before once more.
    CreatesTwice,
    /// The planner does not receive that code is about to end.
    UntoldEnd,
}

impl Mutant {
    /// The defect in the orchestration core that this one is; `None` = it is one of what surrounds the core here.
    pub(crate) fn of_core(self) -> Option<CoreMutant> {
        match self {
            Self::UnfencedMetrics => Some(CoreMutant::UnfencedMetrics),
            Self::UnfencedCheckpoints => Some(CoreMutant::UnfencedCheckpoints),
            Self::UnfencedEarlyExit => Some(CoreMutant::UnfencedEarlyExit),
            Self::ForgetsSearchEvents => Some(CoreMutant::ForgetsSearchEvents),
            Self::MovesBack => Some(CoreMutant::MovesBack),
            Self::NoEvents => Some(CoreMutant::NoEvents),
            Self::CreatesTwice => Some(CoreMutant::CreatesTwice),
            Self::UntoldEnd => Some(CoreMutant::UntoldEnd),
            Self::DoublePlacement
            | Self::DoubledMetrics
            | Self::AnswersEarly
            | Self::KeepsSearchAfterFailure
            | Self::SleepsAfterStart
            | Self::LosesWakes
            | Self::ForgetsAbsence
            | Self::EndlessPatience
            | Self::LeavesStrays
            | Self::DirtyRefusal
            | Self::AgentStartsTwice => None,
        }
    }

    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::UnfencedMetrics,
        Self::UnfencedCheckpoints,
        Self::UnfencedEarlyExit,
        Self::DoublePlacement,
        Self::DoubledMetrics,
        Self::AnswersEarly,
        Self::KeepsSearchAfterFailure,
        Self::ForgetsSearchEvents,
        Self::SleepsAfterStart,
        Self::LosesWakes,
        Self::ForgetsAbsence,
        Self::MovesBack,
        Self::EndlessPatience,
        Self::LeavesStrays,
        Self::NoEvents,
        Self::DirtyRefusal,
        Self::AgentStartsTwice,
        Self::CreatesTwice,
        Self::UntoldEnd,
    ];
}
