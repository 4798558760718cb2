//! Orchestration: what follows when something happens to an experiment, a trial, a task, an allocation or a container.
//!
//! The life cycles ([`det_lifecycle`]) answer for one thing at a time. This crate connects them: an allocation that ends
//! is an event of its task, which may notify its trial; that one may restart or notify the search, whose answer creates and
//! stops other trials. The master and the simulator run the same code.
//!
//! [`Core::decide`] takes one [`Event`] and the rows that it concerns ([`Rows`], in memory, synchronous), changes rows, and
//! returns an [`Outcome`]: effects to carry out in the same transaction, and the events that follow from this one, each
//! to be decided on in turn before anything else ([`Agenda`]). What an event needs is loaded before the call:
//! [`Event::needs`]. Nothing here knows a database, the time or chance: moments and new identifiers are arguments.
//!
//! Read [`Event`] first, then [`Rows`] and [`Effect`].

mod allocations;
mod containers;
mod effect;
mod event;
mod experiments;
mod fallback;
pub mod hang;
mod idle;
mod log_policies;
mod mutant;
mod places;
mod planning;
mod restarts;
mod rows;
mod searches;
mod silence;
mod tasks;
mod trials;
mod unmanaged;

use std::sync::Arc;

pub use det_ids::LogLevel;
use det_ids::{AllocationId, Micros, RunId, TaskId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, Subject};
pub use effect::{Effect, NewTrial, Record, Topic};
pub use event::{Continuation, Event, Need, PlacedAllocation};
pub use fallback::{Prospects, Seeker, SentOn};
pub use idle::{IdleClock, IdleClocks, IdleService, counts_idle};
pub use log_policies::LogMatch;
pub use mutant::Mutant;
pub use places::{Absence, Place};
pub use planning::{Course, Due, PassDecision};
pub use restarts::{MayRestart, nowhere_left};
pub use rows::{
    Allocation, Container, Experiment, ExperimentRows, PlaceRows, Rows, SearchState,
    SearchedMetrics, Task, TaskRows, Terms, Trial, TrialRows, Unreadable,
};
pub use searches::validation;
pub use silence::{RunningTrial, Silence, SilenceClock, SilenceClocks};

/// Two readings of the clock at the moment of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// When something happened, as users see it: may step back and forth.
    pub wall: Micros,
    /// What durations are counted by: never steps.
    pub steady: Micros,
}

/// Who or what caused an event, and why; for the record of changes and for logs. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The user, task or place that caused it, or the master.
    pub actor: ActorName,
    /// A sentence that users read; `None` where the event needs none.
    pub reason: Option<Arc<str>>,
}

impl Cause {
    /// A cause whose actor is the master itself. `reason` = a sentence that users read.
    pub fn master(reason: impl AsRef<str>) -> Self {
        Self {
            actor: ActorName::Master,
            reason: Some(reason.as_ref().into()),
        }
    }

    /// Why, as users read it: the reason, or who asked for it.
    pub fn why(&self) -> String {
        if let Some(reason) = &self.reason {
            return reason.to_string();
        }
        match &self.actor {
            ActorName::User(name) => format!("user {name} asked for it"),
            ActorName::Task(id) => format!("task {id} asked for it"),
            ActorName::Place(id) => format!("place {id} asked for it"),
            ActorName::Signal(name) => format!("signal {name} asked for it"),
            ActorName::Master => "the master asked for it".to_owned(),
        }
    }

    /// The same with what was done for a reason, where a user or a task did it and gave none: `it was paused by ada`.
    pub(crate) fn of_deed(&self, done: &str) -> Self {
        let by = match &self.actor {
            ActorName::User(name) => name.to_string(),
            ActorName::Task(id) => format!("task {id}"),
            ActorName::Place(id) => format!("place {id}"),
            ActorName::Signal(name) => format!("signal {name}"),
            ActorName::Master => return self.clone(),
        };
        let reason = self.reason.clone();
        Self {
            actor: self.actor.clone(),
            reason: reason.or_else(|| Some(format!("it was {done} by {by}").into())),
        }
    }

    /// A user, a task, a place or the master acts, and gives no reason.
    pub fn actor(actor: impl Into<ActorName>) -> Self {
        Self {
            actor: actor.into(),
            reason: None,
        }
    }
}

/// The consequences of an event that was accepted.
#[derive(Debug, Default)]
pub struct Outcome {
    /// To be carried out in this order, in the transaction that holds the rows.
    pub effects: Vec<Effect>,
    /// Events that follow, to be decided on in this order, before any other that is pending and after the effects.
    pub then: Vec<Event>,
}

/// Why an event was not accepted. The whole change is to be undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What the event concerns does not exist.
    #[error("{what} \"{id}\" not found")]
    NotFound {
        /// Kind of the object that was not found.
        what: ObjectKind,
        /// Id of the object that was not found, as text.
        id: String,
    },
    /// It does not fit the state. The message contains what was asked, of what, and what is allowed.
    #[error("{0}")]
    Precondition(String),
    /// Rows hold something that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl Refusal {
    fn not_found(what: ObjectKind, id: impl std::fmt::Display) -> Self {
        Self::NotFound {
            what,
            id: id.to_string(),
        }
    }
}

impl From<det_lifecycle::Refusal> for Refusal {
    fn from(refused: det_lifecycle::Refusal) -> Self {
        Self::Precondition(refused.message)
    }
}

/// Events to be decided on, the next one last: what follows from an event comes before what was pending.
#[derive(Debug)]
pub struct Agenda(Vec<Event>);

impl Agenda {
    /// Begins with these events, in this order.
    pub fn new(events: impl IntoIterator<Item = Event>) -> Self {
        let mut agenda = Self(Vec::new());
        agenda.follow(events.into_iter().collect());
        agenda
    }

    /// The next event; `None` when everything that followed has been decided.
    pub fn next_event(&mut self) -> Option<Event> {
        self.0.pop()
    }

    /// Adds what follows from the event that was taken last.
    pub fn follow(&mut self, then: Vec<Event>) {
        self.0.extend(then.into_iter().rev());
    }
}

/// Decides what follows from events.
#[derive(Debug, Clone, Copy)]
pub struct Core {
    /// Events of a search after which a new snapshot replaces them; a restart replays at most this many.
    pub snapshot_every: i64,
    /// Trials of an experiment that one change creates, or has follow the experiment, at most: each takes some time, in which
    /// no other change can be made. The others come with [`Event::CatchUp`].
    pub trials_at_once: u32,
    /// A deliberate defect. Ignored unless the feature `mutants` is enabled.
    pub mutant: Option<Mutant>,
}

impl Core {
    /// Decides what follows from one event: changes rows, and returns what is to be done and decided next.
    ///
    /// # Errors
    /// The event concerns something that does not exist, or does not fit its state. Rows may have been changed by then:
    /// the caller undoes the whole change.
    pub fn decide<R: Rows>(
        &self,
        rows: &mut R,
        clock: Clock,
        event: Event,
    ) -> Result<Outcome, Refusal> {
        let mut scene = Scene {
            rows,
            clock,
            core: *self,
            outcome: Outcome::default(),
        };
        scene.decide(event)?;
        Ok(scene.outcome)
    }

    fn is(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    /// [`require_current_run`], unless `open` is the deliberate defect.
    ///
    /// # Errors
    /// The run is over.
    pub fn require_current_run(
        &self,
        trial: &Trial,
        run: Option<RunId>,
        open: Mutant,
    ) -> Result<(), Refusal> {
        if self.is(open) {
            return Ok(());
        }
        require_current_run(trial.id, trial.run_id, run)
    }
}

/// Refuses what an older run reports: only the newest run of a trial counts. `run` is the run of the task that reports;
/// `None` = a user does, for a trial that runs outside the cluster.
///
/// # Errors
/// The run is over, or has not begun.
pub fn require_current_run(
    trial: TrialId,
    newest: RunId,
    run: Option<RunId>,
) -> Result<(), Refusal> {
    match run {
        Some(run) if run > newest => Err(Refusal::Precondition(format!(
            "run {run} of trial {trial} has not begun: its newest is run {newest}, and only that may report"
        ))),
        Some(run) if run < newest => Err(Refusal::Precondition(format!(
            "run {run} of trial {trial} is over: run {newest} has taken its place, and nothing is taken of an older run \
             any more"
        ))),
        _ => Ok(()),
    }
}

/// One event being decided on.
struct Scene<'a, R> {
    rows: &'a mut R,
    clock: Clock,
    core: Core,
    outcome: Outcome,
}

impl<R: Rows> Scene<'_, R> {
    #[expect(clippy::too_many_lines, reason = "one match over the events")]
    fn decide(&mut self, event: Event) -> Result<(), Refusal> {
        match event {
            Event::Experiment { id, event, cause } => experiments::on(self, id, event, &cause),
            Event::LiveTrials { id, event, cause } => {
                experiments::each_live_trial(self, id, &event, &cause);
                Ok(())
            }
            Event::CatchUp { id } => {
                experiments::catch_up(self, id);
                Ok(())
            }
            Event::TrialMayBeLast { id, cause } => experiments::trial_ended(self, id, &cause),
            Event::ExperimentEnds { id } => experiments::end(self, id),
            Event::Continue {
                id,
                search,
                single,
                cause,
            } => experiments::continue_it(self, id, search, single, cause),
            Event::ContinueTrials(continuation) => experiments::continue_trials(self, continuation),

            Event::SearchBegins {
                id,
                search,
                actions,
            } => searches::begin(self, id, *search, actions),
            Event::Search { id, event } => searches::on(self, id, event),
            Event::SearchAction { id, state, action } => {
                searches::carry_out(self, id, state, action)
            }

            Event::TrialCreated {
                experiment_id,
                request_id,
            } => trials::created(self, experiment_id, &request_id),
            Event::Trial { id, event, cause } => trials::on(self, id, event, &cause),
            Event::TrialContinues { id, hparams, cause } => {
                trials::continue_in_new_task(self, id, &hparams, cause)
            }
            Event::EarlyExit {
                id,
                run,
                reason,
                cause,
            } => trials::early_exit(self, id, run, reason, cause),
            Event::TrialEnds { id, cause } => trials::end(self, id, cause),

            Event::AddTrial {
                id,
                request_id,
                hparams,
            } => unmanaged::add(self, id, request_id, hparams),
            Event::UnmanagedStarts {
                id,
                until,
                resumes,
                cause,
            } => unmanaged::start(self, id, until, resumes, cause),
            Event::Unmanaged { id, event, cause } => unmanaged::on(self, id, event, &cause),
            Event::FollowTrials { id, cause } => unmanaged::follow_trials(self, id, &cause),

            Event::Task { id, event, cause } => tasks::asked(self, &id, event, &cause),
            Event::AttemptRequested { id } => tasks::request(self, &id),
            Event::Unused { id, timeout } => idle::unused(self, &id, timeout),
            Event::Silent {
                id,
                silent,
                timeout,
                finding,
            } => {
                silence::found(self, &id, (silent, timeout), &finding);
                Ok(())
            }
            Event::LogMatched { task, matches } => {
                log_policies::matched(self, &task, matches);
                Ok(())
            }

            Event::Allocation { id, event, cause } => allocations::on(self, &id, event, &cause),
            Event::Listens { id, cause } => allocations::listens(self, &id, &cause),
            Event::PreemptFor {
                id,
                for_allocation,
                reason,
            } => allocations::preempt_for(self, &id, for_allocation, &reason),
            Event::HandOver { id, for_allocation } => {
                allocations::hand_over(self, &id, for_allocation);
                Ok(())
            }
            Event::Waits { id, waiting } => {
                allocations::note_waiting(self, &id, &waiting);
                Ok(())
            }
            Event::ChangesPool { id, resource_pool } => {
                allocations::change_pool(self, &id, resource_pool);
                Ok(())
            }
            Event::EndsSoon { id } => allocations::end_soon(self, &id),
            Event::Overdue { id } => allocations::overdue(self, &id),
            Event::PlatformFailed { id, reason } => {
                allocations::platform_failed(self, &id, &reason)
            }

            Event::Place(placed) => containers::place(self, placed),
            Event::Observed {
                place,
                container_id,
                observed,
            } => containers::observed(self, &place, &container_id, observed),
            Event::ContainerEnded { id, exit } => containers::ended(self, &id, exit, None),
            Event::NeverStarted { id } => containers::never_started(self, &id),
            Event::Joined {
                id,
                container_id,
                cause,
            } => containers::joined(self, id, &container_id, cause),
            Event::Daemon {
                id,
                container_id,
                cause,
            } => containers::daemon(self, id, &container_id, cause),
            Event::PlaceJoined {
                place,
                known_instance,
                observed,
            } => places::joined(self, place, known_instance.as_ref(), observed),
            Event::PlaceLeft { place, cause } => {
                places::left(self, &place, cause);
                Ok(())
            }
            Event::PlaceGivenUp {
                place,
                since,
                slots,
                reason,
            } => {
                places::given_up(self, place, since, slots, reason);
                Ok(())
            }
            Event::PlaceRemoved {
                place,
                resource_pool,
                slots,
                reason,
            } => {
                places::removed(self, &place, (&resource_pool, slots), &reason);
                Ok(())
            }
            Event::ServiceChanged {
                place,
                slot,
                service,
                cause,
            } => places::serve(self, &place, slot, service, cause),
            Event::FaultsReported { place, faults } => {
                places::faults_reported(self, &place, &faults);
                Ok(())
            }
            Event::HostReported { place, fault } => {
                places::host_reported(self, &place, fault);
                Ok(())
            }
            Event::Missing { place, held } => {
                containers::missing(self, &place, &held);
                Ok(())
            }
            Event::PlaceLost { place, reason } => {
                containers::place_lost(self, &place, &reason);
                Ok(())
            }
        }
    }
}

impl<R> Scene<'_, R> {
    fn is(&self, mutant: Mutant) -> bool {
        self.core.is(mutant)
    }

    fn effect(&mut self, effect: Effect) {
        self.outcome.effects.push(effect);
    }

    fn then(&mut self, event: Event) {
        self.outcome.then.push(event);
    }

    fn wake(&mut self, topic: Topic) {
        self.effect(Effect::Wake(topic));
    }

    fn record(&mut self, record: Record) {
        if self.is(Mutant::NoEvents) && matches!(record.subject, Subject::Trial(_)) {
            return;
        }
        self.effect(Effect::Record(record));
    }

    /// Adds a line about the usual course of things to a task's log.
    fn log(&mut self, task_id: &TaskId, allocation_id: Option<&AllocationId>, text: String) {
        self.log_at(LogLevel::Info, task_id, allocation_id, text);
    }

    fn log_at(
        &mut self,
        level: LogLevel,
        task_id: &TaskId,
        allocation_id: Option<&AllocationId>,
        text: String,
    ) {
        self.effect(Effect::Log {
            task_id: task_id.clone(),
            allocation_id: allocation_id.cloned(),
            level,
            text,
        });
    }
}
