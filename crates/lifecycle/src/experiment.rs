//! The life of an experiment: `docs/contract/http-api.md`, "States of experiments and trials".
//!
//! ```text
//! ACTIVE
//!   pause -> PAUSED: PauseTrials
//!   cancel -> STOPPING_CANCELED: CloseSearch, CancelTrials
//!   kill -> STOPPING_KILLED: CloseSearch, KillTrials
//!   search completed -> COMPLETED: End
//!   search canceled -> CANCELED: End
//!   search failed -> ERROR: End
//!   search failed, trials live -> STOPPING_ERROR: CancelTrials
//!   stays: activate, trials ended
//!   refuses: continue, delete, delete failed
//! PAUSED
//!   activate -> ACTIVE: ActivateTrials
//!   cancel -> STOPPING_CANCELED: CloseSearch, CancelTrials
//!   kill -> STOPPING_KILLED: CloseSearch, KillTrials
//!   search completed -> COMPLETED: End
//!   search canceled -> CANCELED: End
//!   search failed -> ERROR: End
//!   search failed, trials live -> STOPPING_ERROR: CancelTrials
//!   stays: pause, trials ended
//!   refuses: continue, delete, delete failed
//! STOPPING_CANCELED
//!   kill -> STOPPING_KILLED: KillTrials
//!   trials ended -> CANCELED: End
//!   delete -> STOPPING_DELETING from STOPPING_CANCELED
//!   stays: cancel, search completed, search canceled, search failed, search failed, trials live
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_KILLED
//!   trials ended -> CANCELED: End
//!   delete -> STOPPING_DELETING from STOPPING_KILLED
//!   stays: cancel, kill, search completed, search canceled, search failed, search failed, trials live
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_COMPLETED
//!   cancel -> STOPPING_CANCELED: CancelTrials
//!   kill -> STOPPING_KILLED: KillTrials
//!   trials ended -> COMPLETED: End
//!   delete -> STOPPING_DELETING from STOPPING_COMPLETED
//!   stays: search completed, search canceled, search failed, search failed, trials live
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_ERROR
//!   cancel -> STOPPING_CANCELED: CancelTrials
//!   kill -> STOPPING_KILLED: KillTrials
//!   trials ended -> ERROR: End
//!   delete -> STOPPING_DELETING from STOPPING_ERROR
//!   stays: search completed, search canceled, search failed, search failed, trials live
//!   refuses: pause, activate, continue, delete failed
//! COMPLETED
//!   continue -> ACTIVE
//!   delete -> DELETING: Remove
//!   stays: cancel, kill
//!   refuses: pause, activate, search completed, search canceled, search failed, search failed, trials live, trials ended, delete failed
//! CANCELED
//!   continue -> ACTIVE
//!   delete -> DELETING: Remove
//!   stays: cancel, kill
//!   refuses: pause, activate, search completed, search canceled, search failed, search failed, trials live, trials ended, delete failed
//! ERROR
//!   continue -> ACTIVE
//!   delete -> DELETING: Remove
//!   stays: cancel, kill
//!   refuses: pause, activate, search completed, search canceled, search failed, search failed, trials live, trials ended, delete failed
//! STOPPING_DELETING from STOPPING_CANCELED
//!   kill -> STOPPING_DELETING from STOPPING_KILLED: KillTrials
//!   trials ended -> DELETING: End, Remove
//!   stays: cancel, search completed, search canceled, search failed, search failed, trials live, delete
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_DELETING from STOPPING_KILLED
//!   trials ended -> DELETING: End, Remove
//!   stays: cancel, kill, search completed, search canceled, search failed, search failed, trials live, delete
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_DELETING from STOPPING_COMPLETED
//!   cancel -> STOPPING_DELETING from STOPPING_CANCELED: CancelTrials
//!   kill -> STOPPING_DELETING from STOPPING_KILLED: KillTrials
//!   trials ended -> DELETING: End, Remove
//!   stays: search completed, search canceled, search failed, search failed, trials live, delete
//!   refuses: pause, activate, continue, delete failed
//! STOPPING_DELETING from STOPPING_ERROR
//!   cancel -> STOPPING_DELETING from STOPPING_CANCELED: CancelTrials
//!   kill -> STOPPING_DELETING from STOPPING_KILLED: KillTrials
//!   trials ended -> DELETING: End, Remove
//!   stays: search completed, search canceled, search failed, search failed, trials live, delete
//!   refuses: pause, activate, continue, delete failed
//! DELETING
//!   delete failed -> DELETE_FAILED
//!   stays: delete
//!   refuses: pause, activate, cancel, kill, search completed, search canceled, search failed, search failed, trials live, trials ended, continue
//! DELETE_FAILED
//!   delete -> DELETING: Remove
//!   refuses: pause, activate, cancel, kill, search completed, search canceled, search failed, search failed, trials live, trials ended, continue, delete failed
//! ```

use serde::{Deserialize, Serialize};

use crate::state_name::StateName;
use crate::{Refusal, Step};

/// The state of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExperimentState {
    /// Its trials ask for slots and run.
    Active,
    /// Its trials give their slots back and wait.
    Paused,
    /// Its trials are ending; then it ends.
    Stopping(Stop),
    /// At least one trial counts.
    Completed,
    /// Ended because a user canceled or killed it.
    Canceled,
    /// No trial succeeded, or the search failed.
    Errored,
    /// Its trials are ending; then everything of it is removed. How it was being stopped is kept for the record.
    StoppingToDelete(Stop),
    /// Everything of it is being removed.
    Deleting,
    /// Removal failed and can be tried again.
    DeleteFailed,
}

/// How an experiment is being stopped, and so how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// By a user; trials save first. Ends [`ExperimentState::Canceled`].
    Canceled,
    /// By a user; trials end at once. Ends [`ExperimentState::Canceled`].
    Killed,
    /// By the end of the search. Ends [`ExperimentState::Completed`].
    Completed,
    /// By the failure of the search. Ends [`ExperimentState::Errored`].
    Errored,
}

/// What happens to an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentEvent {
    /// A user pauses it.
    Pause,
    /// A user activates it.
    Activate,
    /// A user cancels it.
    Cancel,
    /// A user kills it.
    Kill,
    /// The search creates no more trials.
    SearchOver {
        /// How the search ended.
        outcome: SearchOutcome,
        /// Whether trials still live and are to be stopped.
        trials_live: bool,
    },
    /// No trial lives any more.
    TrialsEnded,
    /// A user continues it after its end.
    Continue,
    /// A user deletes it.
    Delete,
    /// Its checkpoints or rows could not be removed.
    DeleteFailed,
}

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOutcome {
    /// At least one trial counts.
    Completed,
    /// All trials were canceled.
    Canceled,
    /// All trials failed.
    Failed,
}

/// What the caller is to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentEffect {
    /// Pause every live trial.
    PauseTrials,
    /// Activate every live trial.
    ActivateTrials,
    /// Cancel every live trial, which saves first.
    CancelTrials,
    /// Kill every live trial at once.
    KillTrials,
    /// Notify the search that it creates and stops nothing any more.
    CloseSearch,
    /// Record the end; apply the checkpoint policy.
    End,
    /// Remove its checkpoints, files and rows.
    Remove,
}

use ExperimentEffect as Do;
use ExperimentEvent as Event;
use ExperimentState as State;

impl ExperimentState {
    /// Decides what follows `event`; performs nothing.
    #[expect(
        clippy::too_many_lines,
        reason = "one match over all pairs of a state and an event"
    )]
    pub fn on(self, event: Event) -> Result<Step<State, Do>, Refusal> {
        match (self, event) {
            (State::Active, Event::Pause) => Ok(Step::to(State::Paused, [Do::PauseTrials])),
            (State::Paused, Event::Activate) => Ok(Step::to(State::Active, [Do::ActivateTrials])),
            // Asking twice is harmless.
            (state @ State::Paused, Event::Pause) | (state @ State::Active, Event::Activate) => {
                Ok(Step::stay(state))
            }
            (State::Active | State::Paused, Event::Cancel) => Ok(Step::to(
                State::Stopping(Stop::Canceled),
                [Do::CloseSearch, Do::CancelTrials],
            )),
            (State::Active | State::Paused, Event::Kill) => Ok(Step::to(
                State::Stopping(Stop::Killed),
                [Do::CloseSearch, Do::KillTrials],
            )),
            (
                State::Active | State::Paused,
                Event::SearchOver {
                    outcome,
                    trials_live: false,
                },
            ) => Ok(Step::to(outcome.end(), [Do::End])),
            (
                State::Active | State::Paused,
                Event::SearchOver {
                    outcome,
                    trials_live: true,
                },
            ) => Ok(Step::to(
                State::Stopping(outcome.stop()),
                [Do::CancelTrials],
            )),
            // Trials end one after another while the search goes on; only a search that is over ends the experiment.
            (state @ (State::Active | State::Paused), Event::TrialsEnded) => Ok(Step::stay(state)),
            (State::Stopping(Stop::Canceled | Stop::Completed | Stop::Errored), Event::Kill) => {
                Ok(Step::to(State::Stopping(Stop::Killed), [Do::KillTrials]))
            }
            (state @ State::Stopping(Stop::Killed), Event::Kill) => Ok(Step::stay(state)),
            (State::Stopping(Stop::Completed | Stop::Errored), Event::Cancel) => Ok(Step::to(
                State::Stopping(Stop::Canceled),
                [Do::CancelTrials],
            )),
            (state @ State::Stopping(Stop::Canceled | Stop::Killed), Event::Cancel) => {
                Ok(Step::stay(state))
            }
            (State::Stopping(stop), Event::TrialsEnded) => Ok(Step::to(stop.end(), [Do::End])),
            // How it ends was decided when it began to stop.
            (state @ State::Stopping(_), Event::SearchOver { .. }) => Ok(Step::stay(state)),
            (state @ State::Stopping(_), Event::Pause | Event::Activate) => {
                Err(state.refuse(event))
            }
            // It ends anyway, and nothing is removed before it has.
            (State::Stopping(stop), Event::Delete) => {
                Ok(Step::to(State::StoppingToDelete(stop), []))
            }
            (State::StoppingToDelete(stop), Event::Kill) if stop != Stop::Killed => Ok(Step::to(
                State::StoppingToDelete(Stop::Killed),
                [Do::KillTrials],
            )),
            (State::StoppingToDelete(Stop::Completed | Stop::Errored), Event::Cancel) => Ok(
                Step::to(State::StoppingToDelete(Stop::Canceled), [Do::CancelTrials]),
            ),
            (State::StoppingToDelete(_), Event::TrialsEnded) => {
                Ok(Step::to(State::Deleting, [Do::End, Do::Remove]))
            }
            (
                state @ State::StoppingToDelete(_),
                Event::Cancel | Event::Kill | Event::Delete | Event::SearchOver { .. },
            ) => Ok(Step::stay(state)),
            // A user who cancels or kills what has ended has what is wanted.
            (
                state @ (State::Completed | State::Canceled | State::Errored),
                Event::Cancel | Event::Kill,
            ) => Ok(Step::stay(state)),
            (State::Completed | State::Canceled | State::Errored, Event::Continue) => {
                Ok(Step::to(State::Active, []))
            }
            (
                State::Completed | State::Canceled | State::Errored | State::DeleteFailed,
                Event::Delete,
            ) => Ok(Step::to(State::Deleting, [Do::Remove])),
            (state @ State::Deleting, Event::Delete) => Ok(Step::stay(state)),
            (State::Deleting, Event::DeleteFailed) => Ok(Step::to(State::DeleteFailed, [])),
            (
                state @ (State::Completed | State::Canceled | State::Errored),
                Event::Pause
                | Event::Activate
                | Event::SearchOver { .. }
                | Event::TrialsEnded
                | Event::DeleteFailed,
            )
            | (
                state @ (State::Active | State::Paused),
                Event::Continue | Event::Delete | Event::DeleteFailed,
            )
            | (state @ State::Stopping(_), Event::Continue | Event::DeleteFailed)
            | (
                state @ State::StoppingToDelete(_),
                Event::Pause | Event::Activate | Event::Continue | Event::DeleteFailed,
            )
            | (
                state @ (State::Deleting | State::DeleteFailed),
                Event::Pause
                | Event::Activate
                | Event::Cancel
                | Event::Kill
                | Event::SearchOver { .. }
                | Event::TrialsEnded
                | Event::Continue,
            )
            | (state @ State::DeleteFailed, Event::DeleteFailed) => Err(state.refuse(event)),
        }
    }

    fn refuse(self, event: Event) -> Refusal {
        let (verb, allowed) = match event {
            Event::Pause => ("paused", "an active"),
            Event::Activate => ("activated", "a paused"),
            Event::Cancel => ("canceled", "an active or paused"),
            Event::Kill => ("killed", "an active, paused or stopping"),
            Event::Continue => ("continued", "a completed, canceled or failed"),
            Event::Delete => ("deleted", "a stopping, completed, canceled or failed"),
            Event::SearchOver { .. } | Event::TrialsEnded => {
                ("ended", "an active, paused or stopping")
            }
            Event::DeleteFailed => ("marked as not deleted", "a deleting"),
        };
        Refusal::new(format!(
            "an experiment in state {} cannot be {verb}: only {allowed} experiment can",
            self.stored_name()
        ))
    }

    /// Whether it is at an end (deletion comes after an end).
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Canceled | Self::Errored => true,
            Self::Active
            | Self::Paused
            | Self::Stopping(_)
            | Self::StoppingToDelete(_)
            | Self::Deleting
            | Self::DeleteFailed => false,
        }
    }

    /// Whether its trials are ending, and nothing is started again.
    pub fn is_stopping(self) -> bool {
        match self {
            Self::Stopping(_) | Self::StoppingToDelete(_) => true,
            Self::Active
            | Self::Paused
            | Self::Completed
            | Self::Canceled
            | Self::Errored
            | Self::Deleting
            | Self::DeleteFailed => false,
        }
    }

    /// Whether its trials may still live.
    pub fn is_live(self) -> bool {
        match self {
            Self::Active | Self::Paused | Self::Stopping(_) | Self::StoppingToDelete(_) => true,
            Self::Completed
            | Self::Canceled
            | Self::Errored
            | Self::Deleting
            | Self::DeleteFailed => false,
        }
    }

    /// The name it is stored, filtered and shown under.
    pub fn state_name(self) -> StateName {
        match self {
            Self::Active => StateName::Active,
            Self::Paused => StateName::Paused,
            Self::Stopping(Stop::Canceled) => StateName::StoppingCanceled,
            Self::Stopping(Stop::Killed) => StateName::StoppingKilled,
            Self::Stopping(Stop::Completed) => StateName::StoppingCompleted,
            Self::Stopping(Stop::Errored) => StateName::StoppingError,
            Self::Completed => StateName::Completed,
            Self::Canceled => StateName::Canceled,
            Self::Errored => StateName::Error,
            Self::StoppingToDelete(_) => StateName::StoppingDeleting,
            Self::Deleting => StateName::Deleting,
            Self::DeleteFailed => StateName::DeleteFailed,
        }
    }

    /// The text of its [`StateName`].
    pub fn stored_name(self) -> &'static str {
        self.state_name().name()
    }

    /// Whether it may be archived; a refusal carries the reason.
    pub fn may_archive(self) -> Result<(), Refusal> {
        if self.is_terminal() {
            return Ok(());
        }
        Err(Refusal::new(format!(
            "an experiment in state {} cannot be archived: only a completed, canceled or failed experiment can",
            self.stored_name()
        )))
    }
}

impl SearchOutcome {
    fn end(self) -> State {
        match self {
            Self::Completed => State::Completed,
            Self::Canceled => State::Canceled,
            Self::Failed => State::Errored,
        }
    }

    fn stop(self) -> Stop {
        match self {
            Self::Completed => Stop::Completed,
            Self::Canceled => Stop::Canceled,
            Self::Failed => Stop::Errored,
        }
    }
}

impl Stop {
    fn end(self) -> State {
        match self {
            Self::Canceled | Self::Killed => State::Canceled,
            Self::Completed => State::Completed,
            Self::Errored => State::Errored,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table;

    const STATES: [State; 15] = [
        State::Active,
        State::Paused,
        State::Stopping(Stop::Canceled),
        State::Stopping(Stop::Killed),
        State::Stopping(Stop::Completed),
        State::Stopping(Stop::Errored),
        State::Completed,
        State::Canceled,
        State::Errored,
        State::StoppingToDelete(Stop::Canceled),
        State::StoppingToDelete(Stop::Killed),
        State::StoppingToDelete(Stop::Completed),
        State::StoppingToDelete(Stop::Errored),
        State::Deleting,
        State::DeleteFailed,
    ];

    /// The name in the table: how what is to be deleted stops makes a difference there.
    fn name(state: State) -> String {
        match state {
            State::StoppingToDelete(stop) => {
                format!(
                    "STOPPING_DELETING from {}",
                    State::Stopping(stop).stored_name()
                )
            }
            other => other.stored_name().to_owned(),
        }
    }

    fn events() -> Vec<(&'static str, Event)> {
        let over = |outcome, trials_live| Event::SearchOver {
            outcome,
            trials_live,
        };
        vec![
            ("pause", Event::Pause),
            ("activate", Event::Activate),
            ("cancel", Event::Cancel),
            ("kill", Event::Kill),
            ("search completed", over(SearchOutcome::Completed, false)),
            ("search canceled", over(SearchOutcome::Canceled, false)),
            ("search failed", over(SearchOutcome::Failed, false)),
            (
                "search failed, trials live",
                over(SearchOutcome::Failed, true),
            ),
            ("trials ended", Event::TrialsEnded),
            ("continue", Event::Continue),
            ("delete", Event::Delete),
            ("delete failed", Event::DeleteFailed),
        ]
    }

    #[test]
    fn the_table_is_the_code() {
        let names: Vec<String> = STATES.iter().map(|s| name(*s)).collect();
        let states: Vec<(&str, State)> = names.iter().map(String::as_str).zip(STATES).collect();
        let printed = table::print(&states, &events(), |s| name(*s), |s, e| s.on(*e));
        table::assert_in_comment(include_str!("experiment.rs"), &printed);
    }

    #[test]
    fn every_live_experiment_can_end() {
        for state in STATES.into_iter().filter(|s| s.is_live()) {
            let killed = state.on(Event::Kill).unwrap().state;
            let ended = killed.on(Event::TrialsEnded).unwrap();
            assert!(
                ended.state.is_terminal() || ended.state == State::Deleting,
                "{state:?}"
            );
            assert!(ended.effects.contains(&Do::End));
        }
    }

    proptest! {
        #[test]
        fn an_end_is_left_only_by_continue_and_delete(start in 0..STATES.len(), history in prop::collection::vec(0..12_usize, 0..40)) {
            let mut state = STATES[start];
            for index in history {
                let (name, event) = events()[index];
                if let Ok(step) = state.on(event) {
                    if state.is_terminal() && step.state != state {
                        prop_assert!(name == "continue" || name == "delete");
                    }
                    prop_assert_eq!(step.effects.contains(&Do::End), state.is_live() && !step.state.is_live());
                    state = step.state;
                }
            }
        }
    }
}
