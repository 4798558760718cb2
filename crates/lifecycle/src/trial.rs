//! The life of a trial: `docs/contract/http-api.md`, "States of experiments and trials"; what is reported to the search at
//! its end: `docs/contract/searchers.md`, "Ends of trials".
//!
//! The table is for a trial with one of two restarts used; `last failure` is one with both used.
//!
//! ```text
//! active
//!   pause -> pausing: Preempt
//!   cancel -> stopping: canceled: Preempt
//!   kill -> stopping: killed: Kill
//!   stop by search -> stopping: by search: Preempt
//!   invalid hyperparameters -> stopping: invalid: KillSoon
//!   user requested stop -> stopping: requested: KillSoon
//!   done -> completed: End
//!   released -> active: Request
//!   lost -> active: Request
//!   failure -> active: ChargeRestart, Request
//!   last failure -> errored: ChargeRestart, NotifyErrored, End
//!   failure without restart -> errored: NotifyErrored, End
//!   stays: activate
//!   refuses: continue
//! paused
//!   activate -> active: Request
//!   cancel -> canceled: NotifyCanceled, End
//!   kill -> canceled: NotifyCanceled, End
//!   stop by search -> completed: End
//!   stays: pause
//!   refuses: invalid hyperparameters, user requested stop, done, released, lost, failure, last failure, failure without restart, continue
//! pausing
//!   activate -> active
//!   cancel -> stopping: canceled
//!   kill -> stopping: killed: Kill
//!   stop by search -> stopping: by search
//!   invalid hyperparameters -> stopping: invalid: KillSoon
//!   user requested stop -> stopping: requested: KillSoon
//!   done -> completed: End
//!   released -> paused
//!   lost -> paused
//!   failure -> paused: ChargeRestart
//!   last failure -> errored: ChargeRestart, NotifyErrored, End
//!   failure without restart -> errored: NotifyErrored, End
//!   stays: pause
//!   refuses: continue
//! stopping: canceled
//!   kill -> stopping: killed: Kill
//!   done -> canceled: NotifyCanceled, End
//!   released -> canceled: NotifyCanceled, End
//!   lost -> canceled: NotifyCanceled, End
//!   failure -> canceled: NotifyCanceled, End
//!   last failure -> canceled: NotifyCanceled, End
//!   failure without restart -> canceled: NotifyCanceled, End
//!   stays: pause, activate, cancel, stop by search, invalid hyperparameters, user requested stop
//!   refuses: continue
//! stopping: killed
//!   done -> canceled: NotifyCanceled, End
//!   released -> canceled: NotifyCanceled, End
//!   lost -> canceled: NotifyCanceled, End
//!   failure -> canceled: NotifyCanceled, End
//!   last failure -> canceled: NotifyCanceled, End
//!   failure without restart -> canceled: NotifyCanceled, End
//!   stays: pause, activate, cancel, kill, stop by search, invalid hyperparameters, user requested stop
//!   refuses: continue
//! stopping: by search
//!   cancel -> stopping: canceled
//!   kill -> stopping: killed: Kill
//!   invalid hyperparameters -> stopping: invalid: KillSoon
//!   user requested stop -> stopping: requested: KillSoon
//!   done -> completed: End
//!   released -> completed: End
//!   lost -> completed: End
//!   failure -> errored: NotifyErrored, End
//!   last failure -> errored: NotifyErrored, End
//!   failure without restart -> errored: NotifyErrored, End
//!   stays: pause, activate, stop by search
//!   refuses: continue
//! stopping: invalid
//!   kill -> stopping: killed: Kill
//!   done -> completed: NotifyInvalid, End
//!   released -> completed: NotifyInvalid, End
//!   lost -> completed: NotifyInvalid, End
//!   failure -> completed: NotifyInvalid, End
//!   last failure -> completed: NotifyInvalid, End
//!   failure without restart -> completed: NotifyInvalid, End
//!   stays: pause, activate, cancel, stop by search, invalid hyperparameters, user requested stop
//!   refuses: continue
//! stopping: requested
//!   kill -> stopping: killed: Kill
//!   done -> completed: End
//!   released -> completed: End
//!   lost -> completed: End
//!   failure -> completed: End
//!   last failure -> completed: End
//!   failure without restart -> completed: End
//!   stays: pause, activate, cancel, stop by search, invalid hyperparameters, user requested stop
//!   refuses: continue
//! completed
//!   continue -> active: ResetRestarts, Request
//!   stays: pause, activate, cancel, kill, stop by search
//!   refuses: invalid hyperparameters, user requested stop, done, released, lost, failure, last failure, failure without restart
//! canceled
//!   continue -> active: ResetRestarts, Request
//!   stays: pause, activate, cancel, kill, stop by search
//!   refuses: invalid hyperparameters, user requested stop, done, released, lost, failure, last failure, failure without restart
//! errored
//!   continue -> active: ResetRestarts, Request
//!   stays: pause, activate, cancel, kill, stop by search
//!   refuses: invalid hyperparameters, user requested stop, done, released, lost, failure, last failure, failure without restart
//! ```

use serde::{Deserialize, Serialize};

use crate::allocation::AllocationExit;
use crate::state_name::StateName;
use crate::{Refusal, Step};

/// The state of a trial. In every state but the ended ones and [`TrialState::Paused`] it has exactly one live
/// allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// Wants to run: its request waits, or its allocation runs.
    Active,
    /// Holds no slots and requests none.
    Paused,
    /// To be paused; its allocation is on its way out.
    Pausing,
    /// To end; its allocation is on its way out.
    Stopping(Stop),
    /// Its code came to its end, or the search stopped it.
    Completed,
    /// Ended because a user canceled or killed it.
    Canceled,
    /// Failed more often than `max_restarts` allows.
    Errored,
}

/// Why a trial is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// By a user; it saves first.
    Canceled,
    /// By a user, at once.
    Killed,
    /// By the search; it saves first and counts as completed.
    BySearch,
    /// Its code reported that it ends early ([`EarlyExit`]).
    Early(EarlyExit),
}

/// Why a trial's code ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyExit {
    /// Its hyperparameters cannot be trained.
    InvalidHyperparameters,
    /// Its user ends it from within the code.
    UserRequested,
}

/// What a trial's next state depends on besides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Number of failures charged so far.
    pub restarts: u32,
    /// Failures after which the trial is still restarted; one more ends it.
    pub max_restarts: u32,
    /// Whether the experiment is stopping: then nothing is started again.
    pub experiment_stops: bool,
    /// Whether a failure ends the trial however many restarts are left, as log policies may decide. Such a failure is
    /// not charged.
    pub restarts_forbidden: bool,
}

/// What happens to a trial.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialEvent {
    /// Its experiment is paused.
    Pause,
    /// Its experiment is activated.
    Activate,
    /// Its experiment is canceled.
    Cancel,
    /// It or its experiment is killed.
    Kill,
    /// The search stops it.
    StopBySearch,
    /// Its code reports that it ends early. Several processes may report; the first counts.
    EarlyExit(EarlyExit),
    /// Its allocation has ended.
    AllocationEnded(AllocationExit),
    /// Its experiment is continued after its end.
    Continue,
}

/// What the caller is to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialEffect {
    /// Request a new allocation (the next run).
    Request,
    /// Ask the live allocation to save and exit; one that has not started ends at once.
    Preempt,
    /// End the live allocation at once.
    Kill,
    /// End the live allocation at once unless it has ended by itself within ten seconds.
    KillSoon,
    /// Count one more failure against the limit of restarts.
    ChargeRestart,
    /// Count restarts from 0 again.
    ResetRestarts,
    /// Notify the search that the trial failed for good.
    NotifyErrored,
    /// Notify the search that a user ended the trial.
    NotifyCanceled,
    /// Notify the search that the hyperparameters were invalid.
    NotifyInvalid,
    /// Record the end and notify the search of it.
    End,
}

use TrialEffect as Do;
use TrialEvent as Event;
use TrialState as State;

impl TrialState {
    /// Decides what follows `event`; performs nothing.
    #[expect(
        clippy::too_many_lines,
        reason = "one match over all pairs of a state and an event"
    )]
    pub fn on(self, event: Event, history: History) -> Result<Step<State, Do>, Refusal> {
        match (self, event) {
            (State::Active, Event::Pause) => Ok(Step::to(State::Pausing, [Do::Preempt])),
            (State::Paused, Event::Activate) => Ok(Step::to(State::Active, [Do::Request])),
            // Its allocation is on its way out; when it has ended the trial is active and requests the next one.
            (State::Pausing, Event::Activate) => Ok(Step::to(State::Active, [])),
            (state @ (State::Paused | State::Pausing), Event::Pause)
            | (state @ State::Active, Event::Activate) => Ok(Step::stay(state)),
            // It ends either way; whether the others pause meanwhile makes no difference to it.
            (state @ State::Stopping(_), Event::Pause | Event::Activate) => Ok(Step::stay(state)),

            (State::Active, Event::Cancel) => {
                Ok(Step::to(State::Stopping(Stop::Canceled), [Do::Preempt]))
            }
            (State::Pausing, Event::Cancel) => Ok(Step::to(State::Stopping(Stop::Canceled), [])),
            (State::Paused, Event::Cancel | Event::Kill) => {
                Ok(Step::to(State::Canceled, [Do::NotifyCanceled, Do::End]))
            }
            (State::Stopping(Stop::BySearch), Event::Cancel) => {
                Ok(Step::to(State::Stopping(Stop::Canceled), []))
            }
            (
                state @ State::Stopping(Stop::Canceled | Stop::Killed | Stop::Early(_)),
                Event::Cancel,
            ) => Ok(Step::stay(state)),
            (State::Active | State::Pausing, Event::Kill)
            | (State::Stopping(Stop::Canceled | Stop::BySearch | Stop::Early(_)), Event::Kill) => {
                Ok(Step::to(State::Stopping(Stop::Killed), [Do::Kill]))
            }
            (state @ State::Stopping(Stop::Killed), Event::Kill) => Ok(Step::stay(state)),

            (State::Active, Event::StopBySearch) => {
                Ok(Step::to(State::Stopping(Stop::BySearch), [Do::Preempt]))
            }
            (State::Pausing, Event::StopBySearch) => {
                Ok(Step::to(State::Stopping(Stop::BySearch), []))
            }
            (State::Paused, Event::StopBySearch) => Ok(Step::to(State::Completed, [Do::End])),
            (state @ State::Stopping(_), Event::StopBySearch) => Ok(Step::stay(state)),

            (
                State::Active | State::Pausing | State::Stopping(Stop::BySearch),
                Event::EarlyExit(reason),
            ) => Ok(Step::to(
                State::Stopping(Stop::Early(reason)),
                [Do::KillSoon],
            )),
            (
                state @ State::Stopping(Stop::Canceled | Stop::Killed | Stop::Early(_)),
                Event::EarlyExit(_),
            ) => Ok(Step::stay(state)),

            (State::Active, Event::AllocationEnded(exit)) => {
                Ok(after_run(State::Active, &exit, history))
            }
            (State::Pausing, Event::AllocationEnded(exit)) => {
                Ok(after_run(State::Paused, &exit, history))
            }
            (State::Stopping(Stop::Canceled | Stop::Killed), Event::AllocationEnded(_)) => {
                Ok(Step::to(State::Canceled, [Do::NotifyCanceled, Do::End]))
            }
            (
                State::Stopping(Stop::BySearch),
                Event::AllocationEnded(AllocationExit::Failed { .. }),
            ) => Ok(Step::to(State::Errored, [Do::NotifyErrored, Do::End])),
            (
                State::Stopping(Stop::BySearch),
                Event::AllocationEnded(
                    AllocationExit::Completed
                    | AllocationExit::Released
                    | AllocationExit::Infrastructure { .. },
                ),
            ) => Ok(Step::to(State::Completed, [Do::End])),
            (
                State::Stopping(Stop::Early(EarlyExit::InvalidHyperparameters)),
                Event::AllocationEnded(_),
            ) => Ok(Step::to(State::Completed, [Do::NotifyInvalid, Do::End])),
            (State::Stopping(Stop::Early(EarlyExit::UserRequested)), Event::AllocationEnded(_)) => {
                Ok(Step::to(State::Completed, [Do::End]))
            }

            (State::Completed | State::Canceled | State::Errored, Event::Continue) => {
                Ok(Step::to(State::Active, [Do::ResetRestarts, Do::Request]))
            }
            // What comes too late changes nothing: the end was stored first.
            (
                state @ (State::Completed | State::Canceled | State::Errored),
                Event::Pause | Event::Activate | Event::Cancel | Event::Kill | Event::StopBySearch,
            ) => Ok(Step::stay(state)),
            (
                state @ (State::Paused | State::Completed | State::Canceled | State::Errored),
                Event::EarlyExit(_) | Event::AllocationEnded(_),
            ) => Err(Refusal::new(format!(
                "a trial in state {} has no running allocation",
                state.stored_name()
            ))),
            (
                state @ (State::Active | State::Paused | State::Pausing | State::Stopping(_)),
                Event::Continue,
            ) => Err(Refusal::new(format!(
                "a trial in state {} cannot be continued: only one that has ended can",
                state.stored_name()
            ))),
        }
    }

    /// Whether it has ended; only a continuation follows.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Canceled | Self::Errored => true,
            Self::Active | Self::Paused | Self::Pausing | Self::Stopping(_) => false,
        }
    }

    /// The name it is stored, filtered and shown under.
    pub fn state_name(self) -> StateName {
        match self {
            Self::Active => StateName::Active,
            Self::Paused | Self::Pausing => StateName::Paused,
            Self::Stopping(Stop::Canceled) => StateName::StoppingCanceled,
            Self::Stopping(Stop::Killed) => StateName::StoppingKilled,
            Self::Stopping(Stop::BySearch | Stop::Early(_)) => StateName::StoppingCompleted,
            Self::Completed => StateName::Completed,
            Self::Canceled => StateName::Canceled,
            Self::Errored => StateName::Error,
        }
    }

    /// The text of its [`StateName`].
    pub fn stored_name(self) -> &'static str {
        self.state_name().name()
    }
}

/// A run has ended that was not stopped: what it means for a trial that wants to run (`wanted` = active) or to rest
/// (`wanted` = paused).
fn after_run(wanted: State, exit: &AllocationExit, history: History) -> Step<State, Do> {
    let go_on = |charge: bool| {
        let mut effects = Vec::new();
        if charge {
            effects.push(Do::ChargeRestart);
        }
        if wanted == State::Active {
            effects.push(Do::Request);
        }
        Step::to(wanted, effects)
    };
    match exit {
        AllocationExit::Completed => Step::to(State::Completed, [Do::End]),
        _ if history.experiment_stops => Step::to(State::Canceled, [Do::NotifyCanceled, Do::End]),
        AllocationExit::Released | AllocationExit::Infrastructure { .. } => go_on(false),
        AllocationExit::Failed { .. } if history.restarts_forbidden => {
            Step::to(State::Errored, [Do::NotifyErrored, Do::End])
        }
        AllocationExit::Failed { .. } if history.restarts < history.max_restarts => go_on(true),
        AllocationExit::Failed { .. } => Step::to(
            State::Errored,
            [Do::ChargeRestart, Do::NotifyErrored, Do::End],
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::allocation::Blame;
    use crate::table;

    const STATES: [(&str, State); 11] = [
        ("active", State::Active),
        ("paused", State::Paused),
        ("pausing", State::Pausing),
        ("stopping: canceled", State::Stopping(Stop::Canceled)),
        ("stopping: killed", State::Stopping(Stop::Killed)),
        ("stopping: by search", State::Stopping(Stop::BySearch)),
        (
            "stopping: invalid",
            State::Stopping(Stop::Early(EarlyExit::InvalidHyperparameters)),
        ),
        (
            "stopping: requested",
            State::Stopping(Stop::Early(EarlyExit::UserRequested)),
        ),
        ("completed", State::Completed),
        ("canceled", State::Canceled),
        ("errored", State::Errored),
    ];

    /// Restarts of a trial that a log policy keeps from restarting.
    const FORBIDDEN: u32 = 0;

    fn failed() -> AllocationExit {
        AllocationExit::Failed {
            reason: "exit code 1".into(),
        }
    }

    fn lost() -> AllocationExit {
        AllocationExit::Infrastructure {
            reason: "agent lost".into(),
            blame: Blame::Possible,
        }
    }

    fn events() -> Vec<(&'static str, (Event, u32))> {
        let ended = Event::AllocationEnded;
        vec![
            ("pause", (Event::Pause, 1)),
            ("activate", (Event::Activate, 1)),
            ("cancel", (Event::Cancel, 1)),
            ("kill", (Event::Kill, 1)),
            ("stop by search", (Event::StopBySearch, 1)),
            (
                "invalid hyperparameters",
                (Event::EarlyExit(EarlyExit::InvalidHyperparameters), 1),
            ),
            (
                "user requested stop",
                (Event::EarlyExit(EarlyExit::UserRequested), 1),
            ),
            ("done", (ended(AllocationExit::Completed), 1)),
            ("released", (ended(AllocationExit::Released), 1)),
            ("lost", (ended(lost()), 1)),
            ("failure", (ended(failed()), 1)),
            ("last failure", (ended(failed()), 2)),
            ("failure without restart", (ended(failed()), FORBIDDEN)),
            ("continue", (Event::Continue, 1)),
        ]
    }

    fn history(restarts: u32) -> History {
        History {
            restarts,
            max_restarts: 2,
            experiment_stops: false,
            restarts_forbidden: restarts == FORBIDDEN,
        }
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the table's printer hands out references"
    )]
    fn name(state: &State) -> String {
        STATES
            .iter()
            .find(|(_, s)| s == state)
            .map(|(n, _)| (*n).to_owned())
            .unwrap()
    }

    #[test]
    fn the_table_is_the_code() {
        let printed = table::print(&STATES, &events(), name, |s, (event, restarts)| {
            s.on(event.clone(), history(*restarts))
        });
        table::assert_in_comment(include_str!("trial.rs"), &printed);
    }

    #[test]
    fn nothing_starts_again_while_the_experiment_stops() {
        let stopping = History {
            experiment_stops: true,
            ..history(0)
        };
        for exit in [AllocationExit::Released, lost(), failed()] {
            let step = State::Active
                .on(Event::AllocationEnded(exit), stopping)
                .unwrap();
            assert_eq!(step.state, State::Canceled);
            assert!(!step.effects.contains(&Do::Request));
        }
    }

    #[test]
    fn a_trial_without_restarts_errs_at_its_first_failure() {
        let none = History {
            restarts: 0,
            max_restarts: 0,
            experiment_stops: false,
            restarts_forbidden: false,
        };
        let step = State::Active
            .on(Event::AllocationEnded(failed()), none)
            .unwrap();
        assert_eq!(step.state, State::Errored);
        assert_eq!(
            step.effects,
            [Do::ChargeRestart, Do::NotifyErrored, Do::End]
        );
    }

    proptest! {
        /// Plays a trial with its one allocation: whatever users, the search and the platform do, it has an allocation
        /// exactly when its state requires one, its restarts stay in bounds, and a kill ends it.
        #[test]
        fn a_trial_always_comes_to_an_end(history in prop::collection::vec(0..13_usize, 0..60), max_restarts in 0..3_u32) {
            let mut state = State::Active;
            let (mut live, mut restarts) = (true, 0);
            let mut play = |state: &mut State, event: Event| {
                let ends = matches!(event, Event::AllocationEnded(_));
                if ends && !live {
                    return Ok(());
                }
                let h = History { restarts, max_restarts, experiment_stops: false, restarts_forbidden: false };
                let Ok(step) = state.on(event, h) else { return Ok(()) };
                if ends {
                    live = false;
                }
                for effect in &step.effects {
                    match effect {
                        Do::Request => {
                            prop_assert!(!live, "a second allocation");
                            live = true;
                        }
                        Do::ChargeRestart => restarts += 1,
                        Do::ResetRestarts => restarts = 0,
                        Do::End => prop_assert!(!live && step.state.is_terminal()),
                        Do::Preempt | Do::Kill | Do::KillSoon => prop_assert!(live),
                        Do::NotifyErrored | Do::NotifyCanceled | Do::NotifyInvalid => {}
                    }
                }
                *state = step.state;
                prop_assert_eq!(live, !state.is_terminal() && *state != State::Paused);
                prop_assert!(restarts <= max_restarts + 1 || *state == State::Errored || max_restarts == 0 || restarts > 0);
                Ok(())
            };
            for index in history {
                play(&mut state, events()[index].1.0.clone())?;
            }
            play(&mut state, Event::Kill)?;
            play(&mut state, Event::AllocationEnded(AllocationExit::Released))?;
            prop_assert!(state.is_terminal());
        }
    }
}
