//! Deliberate defects, to show that the checks can fail.

use det_agent_proto::adoption::Mutant as AgentMutant;
use det_orchestrator::Mutant as CoreMutant;
use det_rm::Mutant as ManagerMutant;
use serde::{Deserialize, Serialize};

/// A defect. Most of them were defects of the product at some time.
///
/// Each is a switch in the code that ships, or a fault of the world around it: then that world, which is simulated, does
/// not keep what the code that ships relies on.
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
    /// A fault of the store: it does not find again what it holds, so that a repeated metric report is a second point.
    DoubledMetrics,
    /// A fault of the store: it reports a change as durable before its commit.
    AnswersEarly,
    /// A fault of the store: it does not report that a change was undone, so that the search in memory stays ahead of its
    /// rows.
    KeepsSearchAfterFailure,
    /// The search receives events that are not stored.
    LosesSearchEvents,
    /// A fault of the master's process: after a start its background work sleeps until something wakes it.
    SleepsAfterStart,
    /// A fault of the store: it reports nothing of a commit whose answer is lost, so that nothing is woken.
    LosesWakes,
    /// When the end of a connection cannot be stored, it is not tried again.
    IgnoresAbsence,
    /// A late report of an earlier connection moves a container back.
    MovesBack,
    /// Agents that stay away are waited for without end.
    EndlessPatience,
    /// What no row wants is left running.
    LeavesStrays,
    /// Changes of trials leave no event.
    NoEvents,
    /// A fault of the store: it does not undo what a refused request has written.
    DirtyRefusal,
    /// A restarted agent starts again what it had started.
    AgentStartsTwice,
    /// The search of a continued experiment creates the trials of before once more.
    CreatesTwice,
    /// The planner does not receive that code is about to end.
    UnreportedEnd,
}

/// The part of the simulated system that has the defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Core(CoreMutant),
    Manager(ManagerMutant),
    Agent(AgentMutant),
    World,
}

impl Mutant {
    fn place(self) -> Where {
        match self {
            Self::UnfencedMetrics => Where::Core(CoreMutant::UnfencedMetrics),
            Self::UnfencedCheckpoints => Where::Core(CoreMutant::UnfencedCheckpoints),
            Self::UnfencedEarlyExit => Where::Core(CoreMutant::UnfencedEarlyExit),
            Self::DoublePlacement => Where::Core(CoreMutant::DoublePlacement),
            Self::LosesSearchEvents => Where::Core(CoreMutant::LosesSearchEvents),
            Self::IgnoresAbsence => Where::Core(CoreMutant::IgnoresAbsence),
            Self::MovesBack => Where::Core(CoreMutant::MovesBack),
            Self::EndlessPatience => Where::Core(CoreMutant::EndlessPatience),
            Self::NoEvents => Where::Core(CoreMutant::NoEvents),
            Self::CreatesTwice => Where::Core(CoreMutant::CreatesTwice),
            Self::UnreportedEnd => Where::Core(CoreMutant::UnreportedEnd),
            Self::LeavesStrays => Where::Manager(ManagerMutant::LeavesStrays),
            Self::AgentStartsTwice => Where::Agent(AgentMutant::StartsTwice),
            Self::DoubledMetrics
            | Self::AnswersEarly
            | Self::KeepsSearchAfterFailure
            | Self::SleepsAfterStart
            | Self::LosesWakes
            | Self::DirtyRefusal => Where::World,
        }
    }

    /// The defect of the orchestration core that this one is.
    pub(crate) fn of_core(self) -> Option<CoreMutant> {
        match self.place() {
            Where::Core(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The defect of the comparison with a place that this one is.
    pub(crate) fn of_manager(self) -> Option<ManagerMutant> {
        match self.place() {
            Where::Manager(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// The defect of the agent that this one is.
    pub(crate) fn of_agent(self) -> Option<AgentMutant> {
        match self.place() {
            Where::Agent(mutant) => Some(mutant),
            _ => None,
        }
    }

    /// Every mutant, once.
    pub const ALL: [Self; 19] = [
        Self::UnfencedMetrics,
        Self::UnfencedCheckpoints,
        Self::UnfencedEarlyExit,
        Self::DoublePlacement,
        Self::DoubledMetrics,
        Self::AnswersEarly,
        Self::KeepsSearchAfterFailure,
        Self::LosesSearchEvents,
        Self::SleepsAfterStart,
        Self::LosesWakes,
        Self::IgnoresAbsence,
        Self::MovesBack,
        Self::EndlessPatience,
        Self::LeavesStrays,
        Self::NoEvents,
        Self::DirtyRefusal,
        Self::AgentStartsTwice,
        Self::CreatesTwice,
        Self::UnreportedEnd,
    ];
}
