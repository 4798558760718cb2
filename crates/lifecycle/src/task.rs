//! The life of a task, which is what runs containers: `docs/contract/http-api.md`, "Tasks and allocations".
//!
//! A task makes one attempt after another, each an [`crate::allocation`]; at most one of them lives, and one does exactly
//! while the task is queued, running or stopping. What the end of an attempt means depends on the task's kind
//! ([`RestartPolicy`]).
//!
//! A trial's task follows its trial ([`crate::trial`]), which decides: the trial resumes, suspends and kills its task, and
//! is notified of the end of each attempt. Until it has answered, the task is suspended: a trial that goes on resumes it,
//! one that has ended ends it, and one that pauses leaves it as it is. The task of a trial that runs outside the cluster
//! ([`crate::unmanaged`]) makes no attempts: it has a log, and ends and lives again with its trial.
//!
//! A preemptible task is started again when it gave its slots back, and when the platform lost its attempt; the latter
//! no more than [`MAX_LOSSES`] times in a row, so that work which takes its place down with it comes to an end.
//!
//! In the table `preemptible` marks events of a task whose policy is [`RestartPolicy::WhenReleased`], and `trial's` those
//! of a trial's task; all others are those of a task that is never started again. `lost again` is a loss over that limit.
//!
//! ```text
//! suspended
//!   resume -> queued: Request
//!   kill -> canceled: End
//!   end (trial's) -> completed: End
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), kill (trial's), place, done, failed, lost, released, lost (preemptible), lost again (preemptible), lost (trial's), released (preemptible), released (trial's), reopen (trial's)
//! queued
//!   suspend (preemptible) -> stopping: suspend: Preempt
//!   requeue -> stopping: requeue: Preempt
//!   requeue (preemptible) -> stopping: requeue: Preempt
//!   kill -> stopping: kill: Kill
//!   kill (trial's) -> stopping: kill: Kill
//!   place -> running
//!   done -> completed: End
//!   failed -> failed: End
//!   lost -> failed: End
//!   released -> canceled: End
//!   lost (preemptible) -> queued: Request
//!   lost again (preemptible) -> failed: End
//!   lost (trial's) -> suspended: NotifyTrial
//!   released (preemptible) -> queued: Request
//!   released (trial's) -> suspended: NotifyTrial
//!   stays: resume
//!   refuses: suspend, end (trial's), reopen (trial's)
//! running
//!   suspend (preemptible) -> stopping: suspend: Preempt
//!   requeue (preemptible) -> stopping: requeue: Preempt
//!   kill -> stopping: kill: Kill
//!   kill (trial's) -> stopping: kill: Kill
//!   done -> completed: End
//!   failed -> failed: End
//!   lost -> failed: End
//!   released -> canceled: End
//!   lost (preemptible) -> queued: Request
//!   lost again (preemptible) -> failed: End
//!   lost (trial's) -> suspended: NotifyTrial
//!   released (preemptible) -> queued: Request
//!   released (trial's) -> suspended: NotifyTrial
//!   stays: resume, place
//!   refuses: suspend, requeue, end (trial's), reopen (trial's)
//! stopping: suspend
//!   resume -> stopping: requeue
//!   kill -> stopping: kill: Kill
//!   kill (trial's) -> stopping: kill: Kill
//!   done -> completed: End
//!   failed -> failed: End
//!   lost -> suspended
//!   released -> suspended
//!   lost (preemptible) -> suspended
//!   lost again (preemptible) -> suspended
//!   lost (trial's) -> suspended: NotifyTrial
//!   released (preemptible) -> suspended
//!   released (trial's) -> suspended: NotifyTrial
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), place
//!   refuses: end (trial's), reopen (trial's)
//! stopping: requeue
//!   suspend (preemptible) -> stopping: suspend
//!   kill -> stopping: kill: Kill
//!   kill (trial's) -> stopping: kill: Kill
//!   done -> completed: End
//!   failed -> failed: End
//!   lost -> queued: Request
//!   released -> queued: Request
//!   lost (preemptible) -> queued: Request
//!   lost again (preemptible) -> queued: Request
//!   lost (trial's) -> suspended: NotifyTrial
//!   released (preemptible) -> queued: Request
//!   released (trial's) -> suspended: NotifyTrial
//!   stays: resume, requeue, requeue (preemptible), place
//!   refuses: suspend, end (trial's), reopen (trial's)
//! stopping: kill
//!   done -> canceled: End
//!   failed -> canceled: End
//!   lost -> canceled: End
//!   released -> canceled: End
//!   lost (preemptible) -> canceled: End
//!   lost again (preemptible) -> canceled: End
//!   lost (trial's) -> suspended: NotifyTrial
//!   released (preemptible) -> canceled: End
//!   released (trial's) -> suspended: NotifyTrial
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), kill, kill (trial's), place
//!   refuses: resume, end (trial's), reopen (trial's)
//! completed
//!   reopen (trial's) -> suspended
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), kill, kill (trial's), place, done, failed, lost, released, lost (preemptible), lost again (preemptible), lost (trial's), released (preemptible), released (trial's), end (trial's)
//!   refuses: resume
//! canceled
//!   reopen (trial's) -> suspended
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), kill, kill (trial's), place, done, failed, lost, released, lost (preemptible), lost again (preemptible), lost (trial's), released (preemptible), released (trial's), end (trial's)
//!   refuses: resume
//! failed
//!   reopen (trial's) -> suspended
//!   stays: suspend, suspend (preemptible), requeue, requeue (preemptible), kill, kill (trial's), place, done, failed, lost, released, lost (preemptible), lost again (preemptible), lost (trial's), released (preemptible), released (trial's), end (trial's)
//!   refuses: resume
//! ```

use det_taskspec::TaskKind;
use serde::{Deserialize, Serialize};

use crate::allocation::{AllocationExit, Blame};
use crate::state_name::TaskStateName;
use crate::{Refusal, Step};

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Asks for nothing: it has not begun, rests, or waits for its trial's answer.
    Suspended,
    /// Waits for slots.
    Queued,
    /// Its attempt has slots: containers start or run.
    Running,
    /// Its attempt is on its way out.
    Stopping(Stop),
    /// Its code has ended for good.
    Ended(TaskEnd),
}

/// What follows once a stopping task's attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The task becomes [`TaskState::Suspended`]: it asks for nothing until it is resumed.
    Suspend,
    /// It asks for slots again.
    Requeue,
    /// The task ends for good.
    Kill,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEnd {
    /// Its code came to its end.
    Completed,
    /// It was killed, or gave its slots back and is not started again.
    Canceled,
    /// Its code failed, or the platform did.
    Failed,
}

/// How many attempts of a preemptible task may be lost in a row for which the task is started again: as many as a trial
/// may fail unless its configuration sets `max_restarts`. An attempt that gives its slots back starts the count anew.
pub const MAX_LOSSES: u32 = 5;

/// When a task is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// When its trial decides so, by its own life cycle.
    ByTrial,
    /// Never: what it has done would be lost. It is not preempted, and cannot be suspended.
    Never,
    /// When it gave its slots back because it was asked to, and when the platform lost it.
    WhenReleased,
}

impl RestartPolicy {
    /// The policy of a task: `docs/contract/scheduling.md`, "Kinds of tasks". `preemptible` is what its configuration contains,
    /// [`Demand::preemptible`]; `None` = what is usual for its kind.
    pub fn of(kind: TaskKind, preemptible: Option<bool>) -> Self {
        let goes_on = match kind {
            TaskKind::Trial => return Self::ByTrial,
            TaskKind::CheckpointGc => false,
            TaskKind::Generic => preemptible.unwrap_or(true),
            TaskKind::Notebook | TaskKind::Shell | TaskKind::Command | TaskKind::Tensorboard => {
                preemptible.unwrap_or(false)
            }
        };
        if goes_on {
            Self::WhenReleased
        } else {
            Self::Never
        }
    }

    /// Whether a running task may be asked to save and exit, because it goes on later.
    pub fn is_preemptible(self) -> bool {
        match self {
            Self::ByTrial | Self::WhenReleased => true,
            Self::Never => false,
        }
    }
}

/// How an attempt that is to give its slots back is asked to, by the kind of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Its code saves and exits by itself once it has met its peers ([`Meeting::Rendezvous`]) or has asked whether it is to
    /// ([`Meeting::Poll`]); before that it is ended at once.
    BySaving(Meeting),
    /// Its service knows no such question: its programs get SIGTERM, and are killed after a short grace.
    ByEnding,
}

/// What shows that code can be asked to save and exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// Its containers have met.
    Rendezvous,
    /// It has asked whether it is to save and exit.
    Poll,
}

impl Release {
    /// How attempts of tasks of a kind are asked.
    pub fn of(kind: TaskKind) -> Self {
        match kind {
            TaskKind::Trial => Self::BySaving(Meeting::Rendezvous),
            TaskKind::Generic | TaskKind::Command => Self::BySaving(Meeting::Poll),
            TaskKind::Notebook
            | TaskKind::Shell
            | TaskKind::Tensorboard
            | TaskKind::CheckpointGc => Self::ByEnding,
        }
    }
}

/// What each attempt of a task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Slots; 0 = an attempt without devices.
    pub slots: u32,
    /// Whether all slots must be on one place.
    pub single_place: bool,
    /// Seconds that an attempt has to save and exit.
    pub preemption_timeout: u32,
    /// Whether it may be asked to give its slots back, and goes on later; `None` = as is usual for its kind. See
    /// [`RestartPolicy::of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
}

/// What happens to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// It is to run, for the first time or again.
    Resume,
    /// It is to give its slots back and rest.
    Suspend,
    /// It is to give its slots back and ask again, because its job asks in another resource pool now.
    Requeue,
    /// It is to end at once.
    Kill,
    /// Its attempt has been given slots.
    Place,
    /// Its attempt has ended.
    AttemptEnded(AllocationExit),
    /// Its trial has ended.
    End(TaskEnd),
    /// Its trial, which runs outside the cluster, lives again after its end.
    Reopen,
}

/// What the caller is to carry out for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEffect {
    /// Create the next attempt, which asks for slots.
    Request,
    /// Ask the live attempt to save and exit; one that has not started ends at once.
    Preempt,
    /// End the live attempt at once.
    Kill,
    /// Notify its trial of the attempt's end.
    NotifyTrial,
    /// Record when and how the task ended.
    End,
}

use TaskEffect as Do;
use TaskEvent as Event;
use TaskState as State;

impl TaskState {
    /// Whether another task may come to belong to a task in this state: what is done to it later reaches that one too.
    pub fn takes_members(self) -> bool {
        match self {
            Self::Suspended | Self::Queued | Self::Running => true,
            Self::Stopping(stop) => stop != Stop::Kill,
            Self::Ended(_) => false,
        }
    }

    /// Whether what a user asks of the task that this one belongs to is asked of this one too: what cannot follow is left
    /// alone.
    pub fn follows(self, event: &TaskEvent, policy: RestartPolicy) -> bool {
        match event {
            TaskEvent::Kill => true,
            TaskEvent::Suspend => !self.is_terminal() && policy.is_preemptible(),
            TaskEvent::Resume => !matches!(self, Self::Ended(_) | Self::Stopping(Stop::Kill)),
            TaskEvent::Requeue
            | TaskEvent::Place
            | TaskEvent::AttemptEnded(_)
            | TaskEvent::End(_)
            | TaskEvent::Reopen => !self.is_terminal(),
        }
    }

    /// How many attempts in a row the platform has lost of a task with this policy, now that one has ended like this in
    /// this state; `before` is the count until then. One that was on its way out anyway, or whose place was ordered to stop, does not count. It stays 0 for
    /// policies that bound nothing by it; tasks of trials count otherwise ([`crate::pause::EndedAttempt::in_a_row`]).
    pub fn losses(self, before: u32, exit: &AllocationExit, policy: RestartPolicy) -> u32 {
        match (policy, self, exit) {
            (RestartPolicy::ByTrial | RestartPolicy::Never, _, _)
            | (RestartPolicy::WhenReleased, _, AllocationExit::Released) => 0,
            (
                RestartPolicy::WhenReleased,
                State::Queued | State::Running,
                AllocationExit::Infrastructure {
                    blame: Blame::Possible,
                    ..
                },
            ) => before.saturating_add(1),
            (
                RestartPolicy::WhenReleased,
                State::Queued | State::Running,
                AllocationExit::Infrastructure {
                    blame: Blame::Excluded,
                    ..
                },
            )
            | (
                RestartPolicy::WhenReleased,
                State::Suspended | State::Stopping(_) | State::Ended(_),
                AllocationExit::Infrastructure { .. },
            )
            | (
                RestartPolicy::WhenReleased,
                _,
                AllocationExit::Completed | AllocationExit::Failed { .. },
            ) => before,
        }
    }

    /// Decides what follows `event` for a task with this policy; performs nothing. Events that come too late change
    /// nothing. `losses` is how many attempts in a row were lost, the one included that `event` ends
    /// ([`TaskState::losses`]).
    ///
    /// # Errors
    /// The task cannot do what is asked.
    #[expect(
        clippy::too_many_lines,
        reason = "one match over all pairs of a state and an event"
    )]
    pub fn on(
        self,
        event: Event,
        policy: RestartPolicy,
        losses: u32,
    ) -> Result<Step<State, Do>, Refusal> {
        match (self, event) {
            (State::Suspended, Event::Resume) => Ok(Step::to(State::Queued, [Do::Request])),
            // Its attempt is on its way out; when it has ended the task asks again.
            (State::Stopping(Stop::Suspend), Event::Resume) => {
                Ok(Step::to(State::Stopping(Stop::Requeue), []))
            }
            (
                state @ (State::Queued | State::Running | State::Stopping(Stop::Requeue)),
                Event::Resume,
            ) => Ok(Step::stay(state)),
            (state @ (State::Stopping(Stop::Kill) | State::Ended(_)), Event::Resume) => {
                Err(Refusal::new(format!(
                    "a task in state {} cannot be resumed: only one that is suspended can",
                    state.name()
                )))
            }

            (State::Queued | State::Running | State::Stopping(Stop::Requeue), Event::Suspend)
                if !policy.is_preemptible() =>
            {
                Err(Refusal::new(
                    "this task cannot be suspended, because it cannot go on where it was: kill it, or let it run; one that is \
                     launched with \"preemptible: true\" can be",
                ))
            }
            (State::Queued | State::Running, Event::Suspend) => {
                Ok(Step::to(State::Stopping(Stop::Suspend), [Do::Preempt]))
            }
            (State::Stopping(Stop::Requeue), Event::Suspend) => {
                Ok(Step::to(State::Stopping(Stop::Suspend), []))
            }
            (
                state @ (State::Suspended
                | State::Stopping(Stop::Suspend | Stop::Kill)
                | State::Ended(_)),
                Event::Suspend,
            ) => Ok(Step::stay(state)),

            (State::Running, Event::Requeue) if !policy.is_preemptible() => Err(Refusal::new(
                "this task cannot be moved once it runs, because it cannot go on where it was: kill it, or let it run; one \
                 that is launched with \"preemptible: true\" can be",
            )),
            (State::Queued | State::Running, Event::Requeue) => {
                Ok(Step::to(State::Stopping(Stop::Requeue), [Do::Preempt]))
            }
            (state @ (State::Suspended | State::Stopping(_) | State::Ended(_)), Event::Requeue) => {
                Ok(Step::stay(state))
            }

            (State::Suspended, Event::Kill) if policy != RestartPolicy::ByTrial => {
                Ok(end(TaskEnd::Canceled))
            }
            (
                State::Queued | State::Running | State::Stopping(Stop::Suspend | Stop::Requeue),
                Event::Kill,
            ) => Ok(Step::to(State::Stopping(Stop::Kill), [Do::Kill])),
            (
                state @ (State::Suspended | State::Stopping(Stop::Kill) | State::Ended(_)),
                Event::Kill,
            ) => Ok(Step::stay(state)),

            (State::Queued, Event::Place) => Ok(Step::to(State::Running, [])),
            (
                state @ (State::Suspended | State::Running | State::Stopping(_) | State::Ended(_)),
                Event::Place,
            ) => Ok(Step::stay(state)),

            (State::Queued | State::Running | State::Stopping(_), Event::AttemptEnded(_))
                if policy == RestartPolicy::ByTrial =>
            {
                Ok(Step::to(State::Suspended, [Do::NotifyTrial]))
            }
            (State::Queued | State::Running, Event::AttemptEnded(exit)) => {
                Ok(after_attempt(&exit, policy, losses))
            }
            (State::Stopping(stop), Event::AttemptEnded(exit)) => Ok(after_stop(stop, &exit)),
            (state @ (State::Suspended | State::Ended(_)), Event::AttemptEnded(_)) => {
                Ok(Step::stay(state))
            }

            // Only a trial is reopened, or ends its task: another task that has ended is never queued again, and the losses
            // that ended it need no reset.
            (_, Event::Reopen | Event::End(_)) if policy != RestartPolicy::ByTrial => {
                Err(Refusal::new(
                    "this task follows no trial: it can neither be reopened nor end with one",
                ))
            }

            // It asks for nothing: its code runs elsewhere.
            (State::Suspended | State::Ended(_), Event::Reopen) => {
                Ok(Step::to(State::Suspended, []))
            }
            (state @ (State::Queued | State::Running | State::Stopping(_)), Event::Reopen) => {
                Err(Refusal::new(format!(
                    "a task in state {} cannot be reopened: the master runs it",
                    state.name()
                )))
            }

            (State::Suspended, Event::End(how)) => Ok(end(how)),
            (state @ State::Ended(_), Event::End(_)) => Ok(Step::stay(state)),
            (state @ (State::Queued | State::Running | State::Stopping(_)), Event::End(_)) => {
                Err(Refusal::new(format!(
                    "a task in state {} cannot end with its trial: its attempt has to end before",
                    state.name()
                )))
            }
        }
    }

    /// Whether nothing follows this state: the task has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// The name in the ordered record of changes.
    pub fn state_name(self) -> TaskStateName {
        match self {
            Self::Suspended => TaskStateName::Suspended,
            Self::Queued => TaskStateName::Queued,
            Self::Running => TaskStateName::Running,
            Self::Stopping(_) => TaskStateName::Stopping,
            Self::Ended(TaskEnd::Completed) => TaskStateName::Completed,
            Self::Ended(TaskEnd::Canceled) => TaskStateName::Canceled,
            Self::Ended(TaskEnd::Failed) => TaskStateName::Error,
        }
    }

    /// The text of its [`TaskStateName`].
    pub fn name(self) -> &'static str {
        self.state_name().name()
    }
}

fn end(how: TaskEnd) -> Step<State, Do> {
    Step::to(State::Ended(how), [Do::End])
}

fn request() -> Step<State, Do> {
    Step::to(State::Queued, [Do::Request])
}

/// An attempt has ended that the task did not stop.
fn after_attempt(exit: &AllocationExit, policy: RestartPolicy, losses: u32) -> Step<State, Do> {
    match exit {
        AllocationExit::Completed => end(TaskEnd::Completed),
        AllocationExit::Released if policy == RestartPolicy::WhenReleased => request(),
        AllocationExit::Released => end(TaskEnd::Canceled),
        AllocationExit::Infrastructure { .. }
            if policy == RestartPolicy::WhenReleased && losses <= MAX_LOSSES =>
        {
            request()
        }
        AllocationExit::Failed { .. } | AllocationExit::Infrastructure { .. } => {
            end(TaskEnd::Failed)
        }
    }
}

/// An attempt has ended that the task was stopping.
fn after_stop(stop: Stop, exit: &AllocationExit) -> Step<State, Do> {
    match (stop, exit) {
        (Stop::Kill, _) => end(TaskEnd::Canceled),
        (Stop::Suspend | Stop::Requeue, AllocationExit::Completed) => end(TaskEnd::Completed),
        (Stop::Suspend | Stop::Requeue, AllocationExit::Failed { .. }) => end(TaskEnd::Failed),
        (Stop::Suspend, AllocationExit::Released | AllocationExit::Infrastructure { .. }) => {
            Step::to(State::Suspended, [])
        }
        (Stop::Requeue, AllocationExit::Released | AllocationExit::Infrastructure { .. }) => {
            request()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table;

    const STATES: [(&str, State); 9] = [
        ("suspended", State::Suspended),
        ("queued", State::Queued),
        ("running", State::Running),
        ("stopping: suspend", State::Stopping(Stop::Suspend)),
        ("stopping: requeue", State::Stopping(Stop::Requeue)),
        ("stopping: kill", State::Stopping(Stop::Kill)),
        ("completed", State::Ended(TaskEnd::Completed)),
        ("canceled", State::Ended(TaskEnd::Canceled)),
        ("failed", State::Ended(TaskEnd::Failed)),
    ];

    const POLICIES: [RestartPolicy; 3] = [
        RestartPolicy::ByTrial,
        RestartPolicy::Never,
        RestartPolicy::WhenReleased,
    ];

    fn exits() -> [(&'static str, AllocationExit); 4] {
        let reason = || "for a reason".to_owned();
        [
            ("done", AllocationExit::Completed),
            ("failed", AllocationExit::Failed { reason: reason() }),
            (
                "lost",
                AllocationExit::Infrastructure {
                    reason: reason(),
                    blame: Blame::Possible,
                },
            ),
            ("released", AllocationExit::Released),
        ]
    }

    fn events() -> Vec<(&'static str, (Event, RestartPolicy, u32))> {
        use RestartPolicy::{ByTrial, Never, WhenReleased};
        let mut events = vec![
            ("resume", (Event::Resume, Never, 0)),
            ("suspend", (Event::Suspend, Never, 0)),
            ("suspend (preemptible)", (Event::Suspend, WhenReleased, 0)),
            ("requeue", (Event::Requeue, Never, 0)),
            ("requeue (preemptible)", (Event::Requeue, WhenReleased, 0)),
            ("kill", (Event::Kill, Never, 0)),
            ("kill (trial's)", (Event::Kill, ByTrial, 0)),
            ("place", (Event::Place, Never, 0)),
        ];
        let ended = |(name, exit)| (name, (Event::AttemptEnded(exit), Never, 0));
        events.extend(exits().map(ended));
        let released = || Event::AttemptEnded(AllocationExit::Released);
        let [_, _, (_, lost), _] = exits();
        let lost = || Event::AttemptEnded(lost.clone());
        events.extend([
            ("lost (preemptible)", (lost(), WhenReleased, MAX_LOSSES)),
            (
                "lost again (preemptible)",
                (lost(), WhenReleased, MAX_LOSSES + 1),
            ),
            ("lost (trial's)", (lost(), ByTrial, 0)),
            ("released (preemptible)", (released(), WhenReleased, 0)),
            ("released (trial's)", (released(), ByTrial, 0)),
            (
                "end (trial's)",
                (Event::End(TaskEnd::Completed), ByTrial, 0),
            ),
            ("reopen (trial's)", (Event::Reopen, ByTrial, 0)),
        ]);
        events
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the table's printer hands out references"
    )]
    fn name(state: &State) -> String {
        let found = STATES.iter().find(|(_, s)| s == state);
        found.map(|(n, _)| (*n).to_owned()).unwrap()
    }

    #[test]
    fn the_table_is_the_code() {
        let printed = table::print(
            &STATES,
            &events(),
            name,
            |state, (event, policy, losses)| state.on(event.clone(), *policy, *losses),
        );
        table::assert_in_comment(include_str!("task.rs"), &printed);
    }

    #[test]
    fn services_go_on_later_only_where_they_are_configured_so() {
        use RestartPolicy::{ByTrial, Never, WhenReleased};
        for (kind, usual, opted_in, opted_out) in [
            (TaskKind::Trial, ByTrial, ByTrial, ByTrial),
            (TaskKind::Generic, WhenReleased, WhenReleased, Never),
            (TaskKind::Notebook, Never, WhenReleased, Never),
            (TaskKind::Shell, Never, WhenReleased, Never),
            (TaskKind::Command, Never, WhenReleased, Never),
            (TaskKind::Tensorboard, Never, WhenReleased, Never),
            (TaskKind::CheckpointGc, Never, Never, Never),
        ] {
            let policies = [None, Some(true), Some(false)].map(|p| RestartPolicy::of(kind, p));
            assert_eq!(policies, [usual, opted_in, opted_out], "{}", kind.name());
        }
    }

    #[test]
    fn a_trials_task_leaves_every_end_of_an_attempt_to_its_trial() {
        for (_, state) in STATES {
            let has_attempt = !matches!(state, State::Suspended | State::Ended(_));
            for (_, exit) in exits() {
                let step = state.on(Event::AttemptEnded(exit), RestartPolicy::ByTrial, 0);
                let expected = if has_attempt {
                    Step::to(State::Suspended, [Do::NotifyTrial])
                } else {
                    Step::stay(state)
                };
                assert_eq!(step, Ok(expected));
            }
        }
    }

    #[test]
    fn only_the_release_or_loss_of_a_preemptible_task_starts_it_again() {
        for policy in [RestartPolicy::Never, RestartPolicy::WhenReleased] {
            for (name, exit) in exits() {
                let step = State::Running.on(Event::AttemptEnded(exit), policy, 1);
                let expected = policy.is_preemptible() && ["released", "lost"].contains(&name);
                assert_eq!(step.unwrap().state == State::Queued, expected, "{name}");
            }
        }
    }

    #[test]
    fn losses_count_in_a_row_until_the_task_ends_with_them() {
        let policy = RestartPolicy::WhenReleased;
        let [(_, completed), (_, failed), (_, lost), (_, released)] = exits();
        let mut losses = 0;
        for expected in 1..=MAX_LOSSES + 1 {
            losses = State::Running.losses(losses, &lost, policy);
            assert_eq!(losses, expected);
            let step = State::Running.on(Event::AttemptEnded(lost.clone()), policy, losses);
            let goes_on = step.unwrap().state == State::Queued;
            assert_eq!(goes_on, losses <= MAX_LOSSES, "loss {losses}");
        }
        for (exit, expected) in [(&completed, 4), (&failed, 4), (&lost, 5), (&released, 0)] {
            assert_eq!(State::Running.losses(4, exit, policy), expected);
        }
        // Its agent was stopped: an order shows nothing about the task.
        let reason = "its agent was stopped".to_owned();
        let ordered = AllocationExit::Infrastructure {
            reason,
            blame: Blame::Excluded,
        };
        for before in [0, 4, MAX_LOSSES] {
            assert_eq!(State::Running.losses(before, &ordered, policy), before);
            let ended = Event::AttemptEnded(ordered.clone());
            let step = State::Running.on(ended, policy, before).unwrap();
            assert_eq!(step.state, State::Queued, "after {before} losses");
        }
        // It was asked to end: what ended it in the meantime takes nothing from it.
        let stopping = State::Stopping(Stop::Requeue);
        assert_eq!(stopping.losses(4, &lost, policy), 4);
        for policy in [RestartPolicy::ByTrial, RestartPolicy::Never] {
            assert_eq!(State::Running.losses(0, &lost, policy), 0);
        }
    }

    #[test]
    fn what_follows_a_task_is_never_refused() {
        for (name, state) in STATES {
            for policy in POLICIES {
                for event in [TaskEvent::Kill, TaskEvent::Suspend, TaskEvent::Resume] {
                    let refused = state.on(event.clone(), policy, 0).is_err();
                    assert!(
                        !state.follows(&event, policy) || !refused,
                        "{name}, {policy:?}: {event:?}"
                    );
                }
            }
            let ends = state.is_terminal() || state == State::Stopping(Stop::Kill);
            assert_eq!(state.takes_members(), !ends, "{name}");
        }
    }

    proptest! {
        /// Plays a task with its attempts: whatever users and the platform do, one lives exactly when the task's state
        /// refuses it, and a kill ends the task.
        #[test]
        fn a_task_has_an_attempt_exactly_while_it_is_queued_running_or_stopping(
            policy in prop::sample::select(&POLICIES[1..]),
            history in prop::collection::vec(0..events().len(), 0..60),
        ) {
            let (mut state, mut live, mut losses) = (State::Suspended, false, 0);
            let mut play = |state: &mut State, event: Event| {
                let ends = matches!(event, Event::AttemptEnded(_));
                if (ends || event == Event::Place) && !live {
                    return Ok(());
                }
                if let Event::AttemptEnded(exit) = &event {
                    losses = state.losses(losses, exit, policy);
                }
                let Ok(step) = state.on(event, policy, losses) else { return Ok(()) };
                live &= !ends;
                for effect in &step.effects {
                    match effect {
                        Do::Request => {
                            prop_assert!(!live, "a second attempt");
                            live = true;
                        }
                        Do::Preempt | Do::Kill => prop_assert!(live),
                        Do::End => prop_assert!(!live && step.state.is_terminal()),
                        Do::NotifyTrial => prop_assert!(false, "it has no trial"),
                    }
                }
                *state = step.state;
                let expected = matches!(state, State::Queued | State::Running | State::Stopping(_));
                prop_assert_eq!(live, expected);
                prop_assert!(losses <= MAX_LOSSES || state.is_terminal());
                Ok(())
            };
            for index in history {
                play(&mut state, events()[index].1.0.clone())?;
            }
            play(&mut state, Event::Kill)?;
            play(&mut state, Event::AttemptEnded(AllocationExit::Released))?;
            prop_assert!(state.is_terminal());
        }
    }
}
