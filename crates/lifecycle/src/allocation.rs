//! The life of an allocation, one attempt's claim on slots: `docs/contract/http-api.md`, "Tasks and allocations".
//!
//! It has members, one container each. What each member does is in a row of its own and is an argument; the state is that
//! of the allocation as a whole.
//!
//! The table is for two members, both running; `one done` and `one failed` mean that the other still runs.
//!
//! ```text
//! pending
//!   place -> starting: assigned
//!   preempt -> terminated, released: End
//!   preempt timed out -> terminated, released: End
//!   kill -> terminated, released: End
//!   stop -> terminated, released: End
//!   infrastructure -> terminated, infrastructure: End
//!   stays: meet, acknowledge, one done, one failed, one lost, all done, all gone, one failed, all killed
//! starting: running
//!   meet -> ready
//!   preempt -> killing, released: KillMembers
//!   kill -> killing, released: KillMembers
//!   stop -> killing, released: StopMembers
//!   infrastructure -> killing, infrastructure: KillMembers
//!   one failed -> killing, failed: KillMembers
//!   one lost -> killing, infrastructure: KillMembers
//!   all done -> terminated, completed: End
//!   all gone, one failed -> terminated, failed: End
//!   all killed -> terminated, infrastructure: End
//!   stays: place, acknowledge, preempt timed out, one done
//! ready
//!   preempt -> preempting: RaisePreemption
//!   acknowledge -> saving
//!   kill -> killing, released: KillMembers
//!   stop -> killing, released: StopMembers
//!   infrastructure -> killing, infrastructure: KillMembers
//!   one failed -> killing, failed: KillMembers
//!   one lost -> killing, infrastructure: KillMembers
//!   all done -> terminated, completed: End
//!   all gone, one failed -> terminated, failed: End
//!   all killed -> terminated, infrastructure: End
//!   stays: place, meet, preempt timed out, one done
//! preempting
//!   acknowledge -> saving
//!   preempt timed out -> killing, released: KillMembers
//!   kill -> killing, released: KillMembers
//!   stop -> killing, released: StopMembers
//!   infrastructure -> killing, infrastructure: KillMembers
//!   one failed -> killing, failed: KillMembers
//!   one lost -> killing, infrastructure: KillMembers
//!   all done -> terminated, completed: End
//!   all gone, one failed -> terminated, failed: End
//!   all killed -> terminated, infrastructure: End
//!   stays: place, meet, preempt, one done
//! saving
//!   preempt timed out -> killing, released: KillMembers
//!   kill -> killing, released: KillMembers
//!   stop -> killing, released: StopMembers
//!   infrastructure -> killing, infrastructure: KillMembers
//!   one failed -> killing, failed: KillMembers
//!   one lost -> killing, infrastructure: KillMembers
//!   all done -> terminated, released: End
//!   all gone, one failed -> terminated, failed: End
//!   all killed -> terminated, infrastructure: End
//!   stays: place, meet, preempt, acknowledge, one done
//! killing
//!   all done -> terminated, released: End
//!   all gone, one failed -> terminated, released: End
//!   all killed -> terminated, released: End
//!   stays: place, meet, preempt, acknowledge, preempt timed out, kill, stop, infrastructure, one done, one failed, one lost
//! terminated
//!   stays: place, meet, preempt, acknowledge, preempt timed out, kill, stop, infrastructure, one done, one failed, one lost, all done, all gone, one failed, all killed
//! ```

use det_ids::ContainerId;
use serde::{Deserialize, Serialize};

use crate::Step;
use crate::state_name::AllocationStateName;

/// The state of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationState {
    /// Has no slots yet: it waits in the queue.
    Pending,
    /// Has slots; its members are on their way to meeting.
    Starting(Phase),
    /// Its members have met, or its service is up: it can be asked to save and exit.
    Ready,
    /// Asked to save and exit.
    Preempting,
    /// Asked to save and exit, and has acknowledged it.
    Saving,
    /// Its members are being ended; `exit` is what its end will mean.
    Killing {
        /// Fixed when the killing began; how members then exit does not change it.
        exit: AllocationExit,
    },
    /// It has ended and holds no slots.
    Terminated {
        /// What its end means for what it ran.
        exit: AllocationExit,
    },
}

/// How far the least advanced member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has slots, and its place has accepted it at most.
    Assigned,
    /// Its image is being pulled.
    Pulling,
    /// Its container is being created.
    Starting,
    /// Its supervisor runs.
    Running,
}

/// What the end of an allocation means for what it ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationExit {
    /// The code came to its end.
    Completed,
    /// It gave its slots back because it was asked to, and may go on later.
    Released,
    /// The code failed: a restart is charged.
    Failed {
        /// What failed, for users: `the code ended with exit code 3`.
        reason: String,
    },
    /// The platform failed; no restart is charged.
    Infrastructure {
        /// What failed, for users.
        reason: String,
        /// Whether the work may have caused it.
        #[serde(default, skip_serializing_if = "Blame::is_possible")]
        blame: Blame,
    },
}

/// Whether work may itself have caused that its place runs it no longer. Rows of masters that made no difference are read as
/// if it may, as those masters read all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// A host or a container that ran it is lost: the work may be what takes it down.
    #[default]
    Possible,
    /// An agent was stopped with its tasks, a place or a slot was disabled, or the place was lost before anything of the work
    /// had started.
    Excluded,
}

impl Blame {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde hands out references"
    )]
    fn is_possible(&self) -> bool {
        *self == Self::Possible
    }
}

/// One member, as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id of the member's container.
    pub container: ContainerId,
    /// Whether it is a helper that does not keep the allocation alive.
    pub daemon: bool,
    /// How far it is, or how it ended.
    pub progress: MemberProgress,
    /// What failed first in it, of a gang's member: when, in microseconds by the clock of its host, and a sentence for users.
    pub failure: Option<(i64, String)>,
}

/// How far a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberProgress {
    /// It is being started, or runs.
    Alive(Phase),
    /// It has ended, in this way.
    Ended(MemberExit),
}

/// How a member ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberExit {
    /// Its code exited with code 0.
    Success,
    /// Its code failed, with the reason for users.
    Failed(String),
    /// The platform failed, with the reason for users.
    Infrastructure(String),
    /// It was killed on the master's order.
    Killed,
}

/// What happens to an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocationEvent {
    /// The scheduler gives it slots.
    Place,
    /// A member's row has changed.
    MembersChanged,
    /// All members have met, or the service is up.
    Meet,
    /// It is to save and exit.
    Preempt,
    /// It reports that it saves and exits.
    Acknowledge,
    /// It has not exited in time after [`AllocationEvent::Preempt`].
    PreemptTimedOut,
    /// It is to end at once, without fault of its own.
    Kill,
    /// It is to end, without fault of its own; its code is not asked to save, but has a moment to end by itself.
    Stop,
    /// The platform cannot go on with it, with the reason for users.
    Infrastructure(String),
}

/// What the caller is to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationEffect {
    /// Raise the preemption flag and start its timeout.
    RaisePreemption,
    /// End every member that lives.
    KillMembers,
    /// Ask every member that lives to end; it is killed after a short grace.
    StopMembers,
    /// Record the end and notify the task.
    End,
}

use AllocationEffect as Do;
use AllocationEvent as Event;
use AllocationState as State;

impl AllocationState {
    /// Decides what follows `event`, given all members as they are now; performs nothing. Events that come too late
    /// change nothing.
    #[expect(
        clippy::too_many_lines,
        reason = "one match over all pairs of a state and an event"
    )]
    pub fn on(self, event: Event, members: &[Member]) -> Step<State, Do> {
        match (self, event) {
            (State::Pending, Event::Place) => Step::to(State::Starting(Phase::Assigned), []),
            (
                State::Pending,
                Event::Preempt | Event::Kill | Event::Stop | Event::PreemptTimedOut,
            ) => Step::to(
                State::Terminated {
                    exit: AllocationExit::Released,
                },
                [Do::End],
            ),
            (State::Pending, Event::Infrastructure(reason)) => Step::to(
                State::Terminated {
                    exit: ordered(reason),
                },
                [Do::End],
            ),
            (state @ State::Pending, Event::MembersChanged | Event::Meet | Event::Acknowledge) => {
                Step::stay(state)
            }

            (
                state @ (State::Starting(_)
                | State::Ready
                | State::Preempting
                | State::Saving
                | State::Killing { .. }),
                Event::MembersChanged,
            ) => after_change(state, members),
            (State::Starting(_), Event::Meet) => Step::to(State::Ready, []),
            // Code that has not met its peers cannot save: it is ended.
            (State::Starting(_), Event::Preempt) => kill(AllocationExit::Released),
            (State::Ready, Event::Preempt) => Step::to(State::Preempting, [Do::RaisePreemption]),
            (State::Preempting, Event::Acknowledge) => Step::to(State::Saving, []),
            // Code may decide by itself to save and go on later.
            (State::Ready, Event::Acknowledge) => Step::to(State::Saving, []),
            (State::Preempting | State::Saving, Event::PreemptTimedOut) => {
                kill(AllocationExit::Released)
            }
            (
                State::Starting(_) | State::Ready | State::Preempting | State::Saving,
                Event::Kill,
            ) => kill(AllocationExit::Released),
            (
                State::Starting(_) | State::Ready | State::Preempting | State::Saving,
                Event::Stop,
            ) => {
                let exit = AllocationExit::Released;
                Step::to(State::Killing { exit }, [Do::StopMembers])
            }
            (
                State::Starting(_) | State::Ready | State::Preempting | State::Saving,
                Event::Infrastructure(reason),
            ) => kill(ordered(reason)),

            (
                state @ (State::Starting(_) | State::Ready),
                Event::Place | Event::PreemptTimedOut,
            )
            | (state @ State::Starting(_), Event::Acknowledge)
            | (state @ State::Ready, Event::Meet)
            | (
                state @ (State::Preempting | State::Saving),
                Event::Place | Event::Meet | Event::Preempt,
            )
            | (state @ State::Saving, Event::Acknowledge)
            | (
                state @ State::Killing { .. },
                Event::Place
                | Event::Meet
                | Event::Preempt
                | Event::Acknowledge
                | Event::PreemptTimedOut
                | Event::Kill
                | Event::Stop
                | Event::Infrastructure(_),
            )
            | (
                state @ State::Terminated { .. },
                Event::Place
                | Event::MembersChanged
                | Event::Meet
                | Event::Preempt
                | Event::Acknowledge
                | Event::PreemptTimedOut
                | Event::Kill
                | Event::Stop
                | Event::Infrastructure(_),
            ) => Step::stay(state),
        }
    }

    /// Whether nothing follows this state: it has ended.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminated { .. })
    }

    /// Whether it has ended, or its members are being ended.
    pub fn is_ending(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Terminated { .. })
    }

    /// Whether its code is to save and exit.
    pub fn is_to_save(&self) -> bool {
        matches!(self, Self::Preempting | Self::Saving)
    }

    /// Whether its code runs, and it was not ordered to end at once.
    pub fn runs(&self) -> bool {
        match self {
            Self::Starting(Phase::Running) | Self::Ready | Self::Preempting | Self::Saving => true,
            Self::Pending
            | Self::Starting(Phase::Assigned | Phase::Pulling | Phase::Starting)
            | Self::Killing { .. }
            | Self::Terminated { .. } => false,
        }
    }

    /// The name it is stored, filtered and shown under (the wire adds `STATE_`): that of [`AllocationState::name`],
    /// except that clients know one name for everything that runs.
    pub fn stored_name(&self) -> &'static str {
        match self {
            Self::Ready | Self::Preempting | Self::Saving => "RUNNING",
            Self::Pending | Self::Starting(_) | Self::Killing { .. } | Self::Terminated { .. } => {
                self.name()
            }
        }
    }

    /// The name in the ordered record of changes.
    pub fn state_name(&self) -> AllocationStateName {
        match self {
            Self::Pending => AllocationStateName::Pending,
            Self::Starting(Phase::Assigned) => AllocationStateName::Assigned,
            Self::Starting(Phase::Pulling) => AllocationStateName::Pulling,
            Self::Starting(Phase::Starting) => AllocationStateName::Starting,
            Self::Starting(Phase::Running) => AllocationStateName::Running,
            Self::Ready => AllocationStateName::Ready,
            Self::Preempting => AllocationStateName::Preempting,
            Self::Saving => AllocationStateName::Saving,
            Self::Killing { .. } => AllocationStateName::Terminating,
            Self::Terminated { .. } => AllocationStateName::Terminated,
        }
    }

    /// The text of its [`AllocationStateName`].
    pub fn name(&self) -> &'static str {
        self.state_name().name()
    }
}

fn kill(exit: AllocationExit) -> Step<State, Do> {
    Step::to(State::Killing { exit }, [Do::KillMembers])
}

/// What the members make of the allocation.
fn after_change(state: State, members: &[Member]) -> Step<State, Do> {
    let alive = members
        .iter()
        .any(|m| matches!(m.progress, MemberProgress::Alive(_)));
    let working = members
        .iter()
        .any(|m| !m.daemon && matches!(m.progress, MemberProgress::Alive(_)));
    if let State::Killing { exit } = &state {
        // Every member gone: it ends the way that was decided when the killing began.
        if alive {
            return Step::stay(state);
        }
        let exit = match exit {
            // What was reported first need not have failed first: now all is known.
            AllocationExit::Failed { .. } => {
                first_failure(members.iter()).unwrap_or_else(|| exit.clone())
            }
            AllocationExit::Completed
            | AllocationExit::Released
            | AllocationExit::Infrastructure { .. } => exit.clone(),
        };
        return Step::to(State::Terminated { exit }, [Do::End]);
    }
    let verdict = verdict(&state, members);
    match (verdict, alive, working) {
        (Some(exit), false, _) => Step::to(State::Terminated { exit }, [Do::End]),
        // One failed: the others are ended, and it counts once. Or all but the helpers are done.
        (Some(exit), true, _)
            if exit != AllocationExit::Completed && exit != AllocationExit::Released =>
        {
            kill(exit)
        }
        (Some(exit), true, false) => kill(exit),
        (Some(_), true, true) => Step::stay(state),
        (None, _, _) => match (&state, least_phase(members)) {
            (State::Starting(_), Some(phase)) => Step::to(State::Starting(phase), []),
            (State::Starting(_) | State::Ready | State::Preempting | State::Saving, _) => {
                Step::stay(state)
            }
            (State::Pending | State::Killing { .. } | State::Terminated { .. }, _) => {
                Step::stay(state)
            }
        },
    }
}

/// What it means that its place was ordered to run it no longer.
fn ordered(reason: String) -> AllocationExit {
    AllocationExit::Infrastructure {
        reason,
        blame: Blame::Excluded,
    }
}

/// What the ends of members mean for the allocation; `None` while no member has ended that counts.
fn verdict(state: &State, members: &[Member]) -> Option<AllocationExit> {
    let exits = || {
        members.iter().filter_map(|m| match &m.progress {
            MemberProgress::Ended(exit) => Some((m.daemon, exit)),
            MemberProgress::Alive(_) => None,
        })
    };
    // A failure of the code outweighs one of the platform: it would come again elsewhere.
    let failed = members.iter().filter(|member| {
        let failed = matches!(
            member.progress,
            MemberProgress::Ended(MemberExit::Failed(_))
        );
        failed && !member.daemon
    });
    if let Some(failure) = first_failure(failed) {
        return Some(failure);
    }
    for (_, exit) in exits() {
        match exit {
            MemberExit::Infrastructure(reason) => {
                return Some(AllocationExit::Infrastructure {
                    reason: reason.clone(),
                    blame: if *state == State::Starting(Phase::Assigned) {
                        Blame::Excluded
                    } else {
                        Blame::Possible
                    },
                });
            }
            MemberExit::Killed => {
                return Some(ordered(
                    "its agent or node was stopped, or gave the task up, and ended its container"
                        .into(),
                ));
            }
            MemberExit::Success | MemberExit::Failed(_) => {}
        }
    }
    let done = exits().any(|(daemon, exit)| !daemon && *exit == MemberExit::Success);
    done.then_some(match state {
        // Exit 0 after "I am saving" means: start me again later. Without it: I am done.
        State::Saving => AllocationExit::Released,
        State::Pending
        | State::Starting(_)
        | State::Ready
        | State::Preempting
        | State::Killing { .. }
        | State::Terminated { .. } => AllocationExit::Completed,
    })
}

/// The failure of the member that failed first: the others fail because it is gone.
fn first_failure<'a>(members: impl Iterator<Item = &'a Member>) -> Option<AllocationExit> {
    let failures = members.filter_map(|member| match (&member.failure, &member.progress) {
        (Some((at, reason)), _) => Some((*at, reason)),
        (None, MemberProgress::Ended(MemberExit::Failed(reason))) => Some((i64::MAX, reason)),
        (None, MemberProgress::Ended(_) | MemberProgress::Alive(_)) => None,
    });
    let (_, reason) = failures.min_by_key(|(at, _)| *at)?;
    Some(AllocationExit::Failed {
        reason: reason.clone(),
    })
}

fn least_phase(members: &[Member]) -> Option<Phase> {
    members
        .iter()
        .filter_map(|m| match m.progress {
            MemberProgress::Alive(phase) => Some(phase),
            MemberProgress::Ended(_) => None,
        })
        .min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table;

    fn states() -> Vec<(&'static str, State)> {
        vec![
            ("pending", State::Pending),
            ("starting: running", State::Starting(Phase::Running)),
            ("ready", State::Ready),
            ("preempting", State::Preempting),
            ("saving", State::Saving),
            (
                "killing",
                State::Killing {
                    exit: AllocationExit::Released,
                },
            ),
            (
                "terminated",
                State::Terminated {
                    exit: AllocationExit::Completed,
                },
            ),
        ]
    }

    fn name(state: &State) -> String {
        match state {
            State::Killing { exit } => format!("killing, {}", exit_name(exit)),
            State::Terminated { exit } => format!("terminated, {}", exit_name(exit)),
            State::Starting(phase) => format!("starting: {phase:?}").to_lowercase(),
            other => states()
                .iter()
                .find(|(_, s)| s == other)
                .map(|(n, _)| (*n).to_owned())
                .unwrap(),
        }
    }

    fn exit_name(exit: &AllocationExit) -> &'static str {
        match exit {
            AllocationExit::Completed => "completed",
            AllocationExit::Released => "released",
            AllocationExit::Failed { .. } => "failed",
            AllocationExit::Infrastructure { .. } => "infrastructure",
        }
    }

    fn member(daemon: bool, progress: MemberProgress) -> Member {
        Member {
            container: ContainerId::from("c"),
            daemon,
            progress,
            failure: None,
        }
    }

    fn alive() -> Member {
        member(false, MemberProgress::Alive(Phase::Running))
    }

    fn ended(exit: MemberExit) -> Member {
        member(false, MemberProgress::Ended(exit))
    }

    fn failed() -> Member {
        ended(MemberExit::Failed("exit code 1".into()))
    }

    fn events() -> Vec<(&'static str, (Event, Vec<Member>))> {
        let both = || vec![alive(), alive()];
        let lost = || ended(MemberExit::Infrastructure("agent lost".into()));
        let changed = |members| (Event::MembersChanged, members);
        vec![
            ("place", (Event::Place, both())),
            ("meet", (Event::Meet, both())),
            ("preempt", (Event::Preempt, both())),
            ("acknowledge", (Event::Acknowledge, both())),
            ("preempt timed out", (Event::PreemptTimedOut, both())),
            ("kill", (Event::Kill, both())),
            ("stop", (Event::Stop, both())),
            (
                "infrastructure",
                (Event::Infrastructure("agent disabled".into()), both()),
            ),
            (
                "one done",
                changed(vec![ended(MemberExit::Success), alive()]),
            ),
            ("one failed", changed(vec![failed(), alive()])),
            ("one lost", changed(vec![alive(), lost()])),
            (
                "all done",
                changed(vec![ended(MemberExit::Success), ended(MemberExit::Success)]),
            ),
            (
                "all gone, one failed",
                changed(vec![failed(), ended(MemberExit::Killed)]),
            ),
            (
                "all killed",
                changed(vec![ended(MemberExit::Killed), ended(MemberExit::Killed)]),
            ),
        ]
    }

    #[test]
    fn work_that_has_not_started_is_not_to_blame_for_the_loss_of_its_place() {
        let lost = [ended(MemberExit::Infrastructure("agent lost".into()))];
        for (state, expected) in [
            (State::Starting(Phase::Assigned), Blame::Excluded),
            (State::Starting(Phase::Running), Blame::Possible),
            (State::Ready, Blame::Possible),
        ] {
            let step = state.on(Event::MembersChanged, &lost);
            let State::Terminated {
                exit: AllocationExit::Infrastructure { blame, .. },
            } = step.state
            else {
                panic!("{:?}", step.state);
            };
            assert_eq!(blame, expected);
        }
    }

    #[test]
    fn the_table_is_the_code() {
        let printed = table::print(&states(), &events(), name, |s, (event, members)| {
            s.clone().on(event.clone(), members)
        });
        table::assert_in_comment(include_str!("allocation.rs"), &printed);
    }

    #[test]
    fn helpers_are_ended_with_the_last_worker_and_do_not_count() {
        let helper = member(true, MemberProgress::Alive(Phase::Running));
        let step = State::Ready.on(Event::MembersChanged, &[ended(MemberExit::Success), helper]);
        assert_eq!(
            step.state,
            State::Killing {
                exit: AllocationExit::Completed
            }
        );
        assert_eq!(step.effects, [Do::KillMembers]);
        let gone = member(true, MemberProgress::Ended(MemberExit::Killed));
        let step = step
            .state
            .on(Event::MembersChanged, &[ended(MemberExit::Success), gone]);
        assert_eq!(
            step.state,
            State::Terminated {
                exit: AllocationExit::Completed
            }
        );
    }

    #[test]
    fn the_member_that_failed_first_is_the_cause_whatever_is_reported_first() {
        let failed = |reason: &str, at| Member {
            failure: Some((at, reason.to_owned())),
            ..ended(MemberExit::Failed("exit code 1".into()))
        };
        let late = failed("a peer is gone", 9);
        let step = State::Ready.on(Event::MembersChanged, &[late.clone(), alive()]);
        assert_eq!(step.effects, [Do::KillMembers]);
        let exit =
            |state: State, members: &[Member]| match state.on(Event::MembersChanged, members).state
            {
                State::Terminated {
                    exit: AllocationExit::Failed { reason },
                } => reason,
                other => panic!("{other:?}"),
            };
        let both = [late.clone(), failed("boom", 4)];
        assert_eq!(exit(step.state.clone(), &both), "boom");
        assert_eq!(exit(State::Ready, &both), "boom");
        // One that had failed before it was killed, although it only helps.
        let killed = Member {
            daemon: true,
            progress: MemberProgress::Ended(MemberExit::Killed),
            ..failed("a helper", 1)
        };
        assert_eq!(
            exit(step.state.clone(), &[late.clone(), killed]),
            "a helper"
        );
        let unknown = ended(MemberExit::Failed("unknown".into()));
        assert_eq!(exit(step.state, &[unknown, late]), "a peer is gone");
    }

    #[test]
    fn the_least_advanced_member_decides_the_phase() {
        let members = [
            alive(),
            member(false, MemberProgress::Alive(Phase::Pulling)),
        ];
        let step = State::Starting(Phase::Assigned).on(Event::MembersChanged, &members);
        assert_eq!(step.state.stored_name(), "PULLING");
    }

    #[test]
    fn exit_0_after_saving_means_go_on_later_and_without_it_done() {
        let done = [ended(MemberExit::Success)];
        let exit = |state: State| match state.on(Event::MembersChanged, &done).state {
            State::Terminated { exit } => exit,
            other => panic!("{other:?}"),
        };
        assert_eq!(exit(State::Saving), AllocationExit::Released);
        assert_eq!(exit(State::Preempting), AllocationExit::Completed);
    }

    proptest! {
        #[test]
        fn it_ends_once_and_only_when_no_member_lives(history in prop::collection::vec(0..14_usize, 0..40)) {
            let mut state = State::Pending;
            let mut ends = 0;
            for index in history {
                let (event, members) = events()[index].1.clone();
                let waiting = state == State::Pending;
                let step = state.on(event, &members);
                if step.effects.contains(&Do::End) {
                    ends += 1;
                    let lives = members.iter().any(|m| matches!(m.progress, MemberProgress::Alive(_)));
                    prop_assert!(waiting || !lives);
                    prop_assert!(step.state.is_terminal());
                }
                state = step.state;
            }
            prop_assert!(ends <= 1);
            prop_assert_eq!(ends == 1, state.is_terminal());
        }
    }
}
