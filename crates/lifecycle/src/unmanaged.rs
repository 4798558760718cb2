//! The life of what runs outside the cluster and only reports: `docs/contract/http-api.md`, "Unmanaged experiments".
//!
//! Nothing starts or stops an unmanaged trial but its code, which starts a run, sends a heartbeat at least as often as the
//! master waits for one, and reports how it ends. So the state of such a trial is what is known of its code
//! ([`UnmanagedState`]); [`UnmanagedState::trial_state`] is how users meet it. The state of its experiment follows from
//! those of all its trials ([`experiment_state`]), and of what users do to experiments, it can only be deleted
//! ([`on_experiment`]).
//!
//! In the table every deadline is the same moment, and `late` marks a look at the deadline after it.
//!
//! ```text
//! awaited
//!   beat -> running
//!   completed -> completed: End
//!   failed -> failed: End
//!   stays: start, deadline, late deadline
//! running
//!   completed -> completed: End
//!   failed -> failed: End
//!   late deadline -> lost: End
//!   stays: start, beat, deadline
//! lost
//!   start -> running: Reopen
//!   beat -> running: Reopen
//!   completed -> completed: End
//!   failed -> failed: End
//!   stays: deadline, late deadline
//! completed
//!   start -> running: Reopen
//!   failed -> failed: End
//!   stays: beat, completed, deadline, late deadline
//! failed
//!   start -> running: Reopen
//!   completed -> completed: End
//!   stays: beat, failed, deadline, late deadline
//! ```

use det_ids::Micros;
use serde::{Deserialize, Serialize};

use crate::experiment::{ExperimentEffect, ExperimentEvent, ExperimentState};
use crate::trial::TrialState;
use crate::{Refusal, Step};

/// What is known of the code of an unmanaged trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmanagedState {
    /// It has not sent a heartbeat yet.
    Awaited,
    /// It sends heartbeats, and the last one came in time.
    Running {
        /// It counts as lost when no heartbeat has come by this moment of the steady clock.
        until: Micros,
    },
    /// No heartbeat came in time. One that comes later shows that it runs after all.
    Lost,
    /// It reported that it came to its end.
    Completed,
    /// It reported that it failed.
    Failed,
}

/// What happens to an unmanaged trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmanagedEvent {
    /// Its code begins a run.
    Start {
        /// When the next heartbeat is due, by the steady clock.
        until: Micros,
    },
    /// Its code reports that it runs.
    Beat {
        /// When the next heartbeat is due, by the steady clock.
        until: Micros,
    },
    /// Its code reports its end.
    Completed,
    /// Its code reports its failure.
    Failed,
    /// Its deadline may have passed.
    Deadline {
        /// This moment, by the steady clock.
        now: Micros,
    },
}

/// What the caller is to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmanagedEffect {
    /// Note the end of the trial and of its task.
    End,
    /// Take the end back: the trial and its task live again.
    Reopen,
}

use UnmanagedEffect as Do;
use UnmanagedEvent as Event;
use UnmanagedState as State;

impl UnmanagedState {
    /// Decides what follows `event`; performs nothing. Nothing is refused: what code reports of itself is taken, and what
    /// comes twice or too late changes nothing.
    #[must_use]
    pub fn on(self, event: Event) -> Step<State, Do> {
        match (self, event) {
            // Registered, and not running yet: users see it run from its first heartbeat on.
            (state @ State::Awaited, Event::Start { .. }) => Step::stay(state),
            (State::Awaited, Event::Beat { until })
            | (State::Running { .. }, Event::Start { until } | Event::Beat { until }) => {
                Step::to(State::Running { until }, [])
            }
            (State::Lost | State::Completed | State::Failed, Event::Start { until })
            | (State::Lost, Event::Beat { until }) => {
                Step::to(State::Running { until }, [Do::Reopen])
            }
            // The thread that sends heartbeats may send one more after the end was reported.
            (state @ (State::Completed | State::Failed), Event::Beat { .. }) => Step::stay(state),

            (
                State::Awaited | State::Running { .. } | State::Lost | State::Failed,
                Event::Completed,
            ) => Step::to(State::Completed, [Do::End]),
            (
                State::Awaited | State::Running { .. } | State::Lost | State::Completed,
                Event::Failed,
            ) => Step::to(State::Failed, [Do::End]),
            (state @ State::Completed, Event::Completed)
            | (state @ State::Failed, Event::Failed) => Step::stay(state),

            (State::Running { until }, Event::Deadline { now }) if until <= now => {
                Step::to(State::Lost, [Do::End])
            }
            (state, Event::Deadline { .. }) => Step::stay(state),
        }
    }

    /// The state that users see, and that lists are filtered by.
    pub fn trial_state(self) -> TrialState {
        match self {
            Self::Awaited => TrialState::Paused,
            Self::Running { .. } => TrialState::Active,
            Self::Lost | Self::Failed => TrialState::Errored,
            Self::Completed => TrialState::Completed,
        }
    }

    /// When it counts as lost; `None` while nothing is due of it.
    pub fn deadline(self) -> Option<Micros> {
        match self {
            Self::Running { until } => Some(until),
            Self::Awaited | Self::Lost | Self::Completed | Self::Failed => None,
        }
    }
}

/// How many trials of an unmanaged experiment are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrialCounts {
    /// Trials whose code runs.
    pub running: u64,
    /// Trials whose code came to its end.
    pub completed: u64,
    /// Trials whose code failed or is lost.
    pub failed: u64,
}

impl TrialCounts {
    /// Counts `count` more trials that are stored in this state.
    pub fn add(&mut self, state: TrialState, count: u64) {
        match state {
            TrialState::Active => self.running += count,
            TrialState::Completed => self.completed += count,
            TrialState::Errored => self.failed += count,
            // Those have not begun; no unmanaged trial is ever in the others.
            TrialState::Paused
            | TrialState::Pausing
            | TrialState::Stopping(_)
            | TrialState::Canceled => {}
        }
    }
}

/// The state of an unmanaged experiment with these trials: one that runs counts more than one that has completed, and that
/// more than one that failed.
pub fn experiment_state(trials: TrialCounts) -> ExperimentState {
    if trials.running > 0 {
        ExperimentState::Active
    } else if trials.completed > 0 {
        ExperimentState::Completed
    } else if trials.failed > 0 {
        ExperimentState::Errored
    } else {
        ExperimentState::Paused
    }
}

/// Decides what follows when something happens to an unmanaged experiment in state `state`; performs nothing.
///
/// # Errors
/// The master does not run it, so that it can neither start nor stop it; the message contains what to do instead.
pub fn on_experiment(
    state: ExperimentState,
    event: ExperimentEvent,
) -> Result<Step<ExperimentState, ExperimentEffect>, Refusal> {
    use ExperimentState as State;
    let verb = match (state, event) {
        (
            State::Paused
            | State::Completed
            | State::Canceled
            | State::Errored
            | State::DeleteFailed,
            ExperimentEvent::Delete,
        ) => return Ok(Step::to(State::Deleting, [ExperimentEffect::Remove])),
        (State::Deleting, ExperimentEvent::Delete) => return Ok(Step::stay(state)),
        (State::Deleting, ExperimentEvent::DeleteFailed) => {
            return Ok(Step::to(State::DeleteFailed, []));
        }
        (_, ExperimentEvent::Delete) => {
            return Err(Refusal::new(
                "an unmanaged experiment whose code runs cannot be deleted: end the process that runs it, and wait until \
                 its trials have ended, which without a word from them takes until their heartbeats are overdue",
            ));
        }
        (_, ExperimentEvent::Continue) => {
            return Err(Refusal::new(
                "an unmanaged experiment cannot be continued by the master, which does not run it: start its code again \
                 with the same external ids",
            ));
        }
        (_, ExperimentEvent::Pause) => "paused",
        (_, ExperimentEvent::Activate) => "activated",
        (_, ExperimentEvent::Cancel) => "canceled",
        (_, ExperimentEvent::Kill) => "killed",
        (_, ExperimentEvent::SearchOver { .. } | ExperimentEvent::TrialsEnded) => "ended",
        (_, ExperimentEvent::DeleteFailed) => "marked as not deleted",
    };
    Err(refusal("experiment", verb))
}

/// The refusal to do to an unmanaged trial what the master does to those that it runs.
pub fn refuse_trial(verb: &str) -> Refusal {
    refusal("trial", verb)
}

fn refusal(what: &str, verb: &str) -> Refusal {
    Refusal::new(format!(
        "an unmanaged {what} cannot be {verb} by the master, which does not run it: start and end its code where it runs; \
         its state follows what the code reports"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table;

    const UNTIL: Micros = Micros(5);

    const STATES: [(&str, State); 5] = [
        ("awaited", State::Awaited),
        ("running", State::Running { until: UNTIL }),
        ("lost", State::Lost),
        ("completed", State::Completed),
        ("failed", State::Failed),
    ];

    const EVENTS: [(&str, Event); 6] = [
        ("start", Event::Start { until: UNTIL }),
        ("beat", Event::Beat { until: UNTIL }),
        ("completed", Event::Completed),
        ("failed", Event::Failed),
        ("deadline", Event::Deadline { now: Micros(4) }),
        ("late deadline", Event::Deadline { now: UNTIL }),
    ];

    fn name(state: &State) -> String {
        let (name, _) = STATES.iter().find(|(_, s)| s == state).unwrap();
        (*name).to_owned()
    }

    #[test]
    fn the_table_is_the_code() {
        let printed = table::print(&STATES, &EVENTS, name, |state, event| state.on(*event));
        table::assert_in_comment(include_str!("unmanaged.rs"), &printed);
    }

    #[test]
    fn a_heartbeat_moves_the_deadline() {
        let later = Micros(UNTIL.0 + 60);
        let running = State::Running { until: UNTIL };
        let step = running.on(Event::Beat { until: later });
        assert_eq!(step.state.deadline(), Some(later));
        assert_eq!(step.effects, []);
        // The deadline that was looked at is not its deadline any more.
        assert_eq!(
            step.state.on(Event::Deadline { now: UNTIL }).state,
            step.state
        );
    }

    #[test]
    fn the_master_refuses_to_steer_what_it_does_not_run() {
        let states = [
            ExperimentState::Active,
            ExperimentState::Paused,
            ExperimentState::Completed,
            ExperimentState::Errored,
        ];
        for state in states {
            for event in [
                ExperimentEvent::Pause,
                ExperimentEvent::Activate,
                ExperimentEvent::Cancel,
                ExperimentEvent::Kill,
                ExperimentEvent::Continue,
                ExperimentEvent::TrialsEnded,
            ] {
                let refused = on_experiment(state, event).unwrap_err();
                assert!(refused.message.contains("start"), "{refused}");
            }
            let deletes = on_experiment(state, ExperimentEvent::Delete).is_ok();
            assert_eq!(deletes, state != ExperimentState::Active, "{state:?}");
        }
    }

    #[test]
    fn a_deletion_that_failed_can_be_tried_again() {
        let failed = on_experiment(ExperimentState::Deleting, ExperimentEvent::DeleteFailed);
        let failed = failed.unwrap().state;
        assert_eq!(failed, ExperimentState::DeleteFailed);
        let again = on_experiment(failed, ExperimentEvent::Delete).unwrap();
        assert_eq!(again.state, ExperimentState::Deleting);
        assert_eq!(again.effects, [ExperimentEffect::Remove]);
    }

    fn event() -> impl Strategy<Value = Event> {
        let at = 0..10_i64;
        prop_oneof![
            at.clone().prop_map(|at| Event::Start { until: Micros(at) }),
            at.clone().prop_map(|at| Event::Beat { until: Micros(at) }),
            Just(Event::Completed),
            Just(Event::Failed),
            at.prop_map(|at| Event::Deadline { now: Micros(at) }),
        ]
    }

    proptest! {
        /// Whatever code reports, in whatever order and however often: an end is noted exactly when users see one, a
        /// trial that starts runs unless its first heartbeat is still to come, and the same report twice in a row is as
        /// good as once.
        #[test]
        fn a_trial_is_what_its_code_reported_last(events in prop::collection::vec(event(), 0..40)) {
            let mut state = State::Awaited;
            let mut ended = false;
            for event in events {
                let step = state.on(event);
                for effect in &step.effects {
                    match effect {
                        Do::End => ended = true,
                        Do::Reopen => {
                            prop_assert!(ended, "reopened although it had not ended");
                            ended = false;
                        }
                    }
                }
                let again = step.state.on(event);
                prop_assert_eq!(again.state, step.state);
                prop_assert!(again.effects.is_empty());
                match event {
                    Event::Start { .. } => prop_assert!(!ended),
                    Event::Completed => prop_assert_eq!(step.state, State::Completed),
                    Event::Failed => prop_assert_eq!(step.state, State::Failed),
                    Event::Beat { .. } | Event::Deadline { .. } => {}
                }
                state = step.state;
                prop_assert_eq!(ended, state.trial_state().is_terminal());
                prop_assert_eq!(state.deadline().is_some(), state.trial_state() == TrialState::Active);
            }
        }

        /// The state of an experiment is that of the trial that counts most, whatever the others are.
        #[test]
        fn an_experiment_is_what_counts_most_of_its_trials(states in prop::collection::vec(0..5_usize, 0..12)) {
            let states: Vec<TrialState> =
                states.into_iter().map(|index| STATES[index].1.trial_state()).collect();
            let mut counts = TrialCounts::default();
            for state in &states {
                counts.add(*state, 1);
            }
            let order = [
                (TrialState::Active, ExperimentState::Active),
                (TrialState::Completed, ExperimentState::Completed),
                (TrialState::Errored, ExperimentState::Errored),
            ];
            let expected = order
                .into_iter()
                .find(|(state, _)| states.contains(state))
                .map_or(ExperimentState::Paused, |(_, of_experiment)| of_experiment);
            prop_assert_eq!(experiment_state(counts), expected);
        }
    }
}
