//! How far active experiments and trials are, and filters by it.

use det_api_types::experiments::ExperimentState;
use det_lifecycle::allocation::{AllocationState, Phase as Progress};
use det_lifecycle::state_name::StateName;

/// How far something active is: its most advanced live allocation (`docs/contract/http-api.md`, "States of experiments
/// and trials").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Nothing of it has a container yet.
    #[default]
    Queued,
    /// An image is being pulled.
    Pulling,
    /// Containers are being started.
    Starting,
    /// Containers run, or are being ended.
    Running,
}

impl Phase {
    /// All phases, from the least to the most advanced.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Pulling, Self::Starting, Self::Running];

    /// Of an allocation. One that is being ended has run.
    pub fn of_allocation(state: &AllocationState) -> Self {
        match state {
            AllocationState::Pending | AllocationState::Starting(Progress::Assigned) => {
                Self::Queued
            }
            AllocationState::Starting(Progress::Pulling) => Self::Pulling,
            AllocationState::Starting(Progress::Starting) => Self::Starting,
            AllocationState::Starting(Progress::Running)
            | AllocationState::Ready
            | AllocationState::Preempting
            | AllocationState::Saving
            | AllocationState::Killing { .. }
            | AllocationState::Terminated { .. } => Self::Running,
        }
    }

    /// The phase that a reported state names; `None` for states that are stored as they are.
    pub fn of_reported(state: ExperimentState) -> Option<Self> {
        match state {
            ExperimentState::Queued => Some(Self::Queued),
            ExperimentState::Pulling => Some(Self::Pulling),
            ExperimentState::Starting => Some(Self::Starting),
            ExperimentState::Running => Some(Self::Running),
            _ => None,
        }
    }
}

/// States asked for in a filter, as stored states and phases of active things.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StateFilter {
    /// Stored states other than the active one.
    pub(crate) stored: Vec<StateName>,
    /// Phases of what is active.
    pub(crate) phases: Vec<Phase>,
}

impl StateFilter {
    /// Reads a filter; `None` = it leaves nothing out.
    pub(crate) fn new(states: &[ExperimentState]) -> Option<Self> {
        if states.is_empty() {
            return None;
        }
        let mut filter = Self::default();
        for state in states {
            if *state == ExperimentState::Active {
                filter.phases.extend(Phase::ALL);
            } else if let Some(phase) = Phase::of_reported(*state) {
                filter.phases.push(phase);
            } else {
                if *state == ExperimentState::Deleting {
                    filter.stored.push(StateName::StoppingDeleting);
                }
                // Clients know states that nothing is ever in: they find nothing.
                let name = state.as_str().trim_start_matches("STATE_");
                filter.stored.extend(name.parse::<StateName>());
            }
        }
        filter.phases.sort_unstable();
        filter.phases.dedup();
        Some(filter)
    }

    /// Whether all phases are wanted, so that the stored state is enough to know.
    pub(crate) fn wants_all_phases(&self) -> bool {
        self.phases.len() == Phase::ALL.len()
    }

    /// All stored states in question.
    pub(crate) fn in_question(&self) -> Vec<StateName> {
        let mut stored = self.stored.clone();
        if !self.phases.is_empty() {
            stored.push(StateName::Active);
        }
        stored
    }

    /// Whether something in this stored state and phase is wanted.
    pub(crate) fn wants(&self, stored: StateName, phase: Phase) -> bool {
        if stored == StateName::Active {
            self.phases.contains(&phase)
        } else {
            self.stored.contains(&stored)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_pulls_is_farther_than_one_that_waits() {
        let pulling = AllocationState::Starting(Progress::Pulling);
        assert!(Phase::of_allocation(&AllocationState::Pending) < Phase::of_allocation(&pulling));
    }

    #[test]
    fn reported_states_are_asked_for_as_phases_of_active() {
        assert_eq!(StateFilter::new(&[]), None);
        let filter =
            StateFilter::new(&[ExperimentState::Running, ExperimentState::Completed]).unwrap();
        assert_eq!(
            filter.in_question(),
            [StateName::Completed, StateName::Active]
        );
        assert!(
            filter.wants(StateName::Active, Phase::Running)
                && !filter.wants(StateName::Active, Phase::Queued)
        );
        assert!(
            filter.wants(StateName::Completed, Phase::Queued)
                && !filter.wants(StateName::Paused, Phase::Queued)
        );
        assert!(
            StateFilter::new(&[ExperimentState::Active])
                .unwrap()
                .wants_all_phases()
        );
    }
}
