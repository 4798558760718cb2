//! Checks of what may change from one moment to the next.

use std::collections::BTreeMap;

use det_ids::{AllocationId, ExperimentId, RunId, TaskId, TrialId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::trial::TrialState;

use crate::{Snapshot, Violation};

/// Compares each snapshot with the ones before (invariant 4).
#[derive(Debug, Clone, Default)]
pub struct Watch {
    experiments: BTreeMap<ExperimentId, ExperimentState>,
    trials: BTreeMap<TrialId, (TrialState, TaskId, RunId, i64)>,
    /// Only ended allocations: a live one may change to any state.
    allocations: BTreeMap<AllocationId, AllocationState>,
}

impl Watch {
    /// Compares a moment with the ones before.
    pub fn observe(&mut self, snapshot: &Snapshot) -> Vec<Violation> {
        let mut found = Vec::new();
        for experiment in &snapshot.experiments {
            let before = self.experiments.insert(experiment.id, experiment.state);
            if let Some(before) = before
                && !may_become(before, experiment.state)
            {
                found.push(Violation::new(
                    4,
                    format!(
                        "experiment {} went from {} to {}",
                        experiment.id,
                        before.stored_name(),
                        experiment.state.stored_name()
                    ),
                ));
            }
        }
        for trial in &snapshot.trials {
            let now = (
                trial.state,
                trial.task_id.clone(),
                trial.run_id,
                trial.restarts,
            );
            let Some(before) = self.trials.insert(trial.id, now) else {
                continue;
            };
            let continued = before.1 != trial.task_id;
            if before.0.is_terminal() && before.0 != trial.state && !continued {
                found.push(Violation::new(
                    4,
                    format!(
                        "trial {} went from {:?} to {:?} and was not continued",
                        trial.id, before.0, trial.state
                    ),
                ));
            }
            // A continued trial counts restarts from 0.
            if trial.run_id < before.2 || (trial.restarts < before.3 && !continued) {
                found.push(Violation::new(
                    4,
                    format!(
                        "trial {}: run {} and {} restarts became run {} and {} restarts",
                        trial.id, before.2, before.3, trial.run_id, trial.restarts
                    ),
                ));
            }
        }
        for allocation in &snapshot.allocations {
            if let Some(before) = self.allocations.get(&allocation.id) {
                if *before != allocation.state {
                    found.push(Violation::new(
                        4,
                        format!(
                            "allocation {} had ended as {before:?} and became {:?}",
                            allocation.id, allocation.state
                        ),
                    ));
                }
            } else if allocation.state.is_terminal() {
                self.allocations
                    .insert(allocation.id.clone(), allocation.state.clone());
            }
        }
        found
    }
}

/// Whether an experiment seen in one state may be seen in the other later on. Steps in between may have been missed.
fn may_become(before: ExperimentState, after: ExperimentState) -> bool {
    use ExperimentState as State;
    if before == after {
        return true;
    }
    match before {
        // Continued (it then runs, or has ended again), or deleted.
        State::Completed | State::Canceled | State::Errored => true,
        State::Deleting | State::DeleteFailed => {
            matches!(after, State::Deleting | State::DeleteFailed)
        }
        // A stopping experiment only ends.
        State::Stopping(_) => !matches!(after, State::Active | State::Paused),
        State::StoppingToDelete(_) => matches!(
            after,
            State::StoppingToDelete(_) | State::Deleting | State::DeleteFailed
        ),
        State::Active | State::Paused => true,
    }
}

#[cfg(test)]
mod tests {
    use det_lifecycle::allocation::AllocationExit;

    use super::*;
    use crate::{Allocation, Experiment, Trial};

    fn trial(state: TrialState, task: &str, run_id: RunId) -> Snapshot {
        Snapshot {
            trials: vec![Trial {
                id: TrialId(1),
                experiment_id: ExperimentId(1),
                request_id: "r".into(),
                task_id: task.into(),
                run_id,
                restarts: 0,
                state,
                ended: state.is_terminal(),
                latest_checkpoint: None,
                unmanaged: None,
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn an_ended_trial_lives_again_only_as_another_task() {
        let mut watch = Watch::default();
        assert_eq!(
            watch.observe(&trial(TrialState::Completed, "t", RunId(2))),
            []
        );
        assert_eq!(
            watch.observe(&trial(TrialState::Active, "t-1", RunId(3))),
            []
        );
        assert_eq!(
            watch.observe(&trial(TrialState::Completed, "t-1", RunId(3))),
            []
        );
        assert_eq!(
            watch
                .observe(&trial(TrialState::Active, "t-1", RunId(4)))
                .len(),
            1
        );
        assert_eq!(
            watch
                .observe(&trial(TrialState::Active, "t-1", RunId(3)))
                .len(),
            1
        );
    }

    #[test]
    fn an_end_is_an_end() {
        let mut watch = Watch::default();
        let ended = |exit| Snapshot {
            allocations: vec![Allocation {
                id: "t.1".into(),
                task_id: "t".into(),
                trial_id: Some(TrialId(1)),
                run_id: RunId::FIRST,
                slots: 1,
                state: AllocationState::Terminated { exit },
                preemptible: false,
                asked: false,
                port_step: None,
                service_port: None,
                placed: true,
                ended: true,
                wait_reason: None,
                true_reason: None,
            }],
            ..Snapshot::default()
        };
        assert_eq!(watch.observe(&ended(AllocationExit::Completed)), []);
        assert_eq!(watch.observe(&ended(AllocationExit::Released)).len(), 1);
        let experiment = |state| Snapshot {
            experiments: vec![Experiment {
                id: ExperimentId(1),
                state,
                ended: false,
                trial_count: 0,
                unmanaged: false,
            }],
            ..Snapshot::default()
        };
        let deleting = experiment(ExperimentState::Deleting);
        assert_eq!(watch.observe(&deleting), []);
        assert_eq!(
            watch.observe(&experiment(ExperimentState::Completed)).len(),
            1
        );
    }
}
