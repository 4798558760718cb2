//! The rows that decisions read and change, as far as they concern them.

use std::collections::BTreeSet;
use std::fmt;

use det_config::hyperparameters::{SearcherConfig, Space};
use det_ids::{
    AllocationId, ContainerId, ExperimentId, JobId, Micros, PlaceId, RequestId, RunId, SlotId,
    TaskId, TrialId, UserId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::task::{Demand, RestartPolicy, TaskState};
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::{TrialCounts, UnmanagedState};
use det_scheduler::WaitExplanation;
use det_searcher::Search;
use det_taskspec::TaskKind;

use crate::Place;

/// The row of an experiment, as far as decisions read or change it.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Number of the experiment, unique in the cluster.
    pub id: ExperimentId,
    /// State of the experiment's life cycle.
    pub state: ExperimentState,
    /// The entry in the job queue that it is part of.
    pub job_id: JobId,
    /// The user who owns the experiment and the tasks of its trials.
    pub owner_id: UserId,
    /// Name of the resource pool in which its trials request slots.
    pub resource_pool: String,
    /// Share of the search that is done, 0 to 1; never decreases.
    pub progress: f64,
    /// Number of trials that were ever created, ended ones included.
    pub trial_count: i64,
    /// Whether it runs outside the cluster, so that its state follows from those of its trials.
    pub unmanaged: bool,
    /// When it ended; `None` = it has not.
    pub ended_at: Option<Micros>,
}

/// What the configuration of an experiment sets for each of its trials' runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Number of failures after which a trial is started again; one more ends it.
    pub max_restarts: u32,
    /// Slots and constraints that each run requests.
    pub demand: Demand,
    /// Days that the logs of its tasks are kept after their end: -1 = for ever, `None` = the cluster's default.
    pub log_retention_days: Option<i64>,
}

/// By what a search decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedMetrics {
    /// Name of the validation metric that the search optimises.
    pub metric: String,
    /// The metric by which the search measures how long a trial has trained; `None` = it measures none.
    pub time_metric: Option<String>,
    /// What the first trial with unusable reports lacked, and what it reported, a sentence; `None` = none did so.
    pub misses: Option<String>,
}

impl fmt::Display for SearchedMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "searcher metric \"{}\"", self.metric)?;
        match &self.time_metric {
            Some(time) => write!(f, " together with time metric \"{time}\""),
            None => Ok(()),
        }
    }
}

/// Row of a trial, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Number of the trial, unique in the cluster.
    pub id: TrialId,
    /// The experiment that the trial belongs to.
    pub experiment_id: ExperimentId,
    /// Name by which the search of its experiment knows it; no other trial of that has the name.
    pub request_id: RequestId,
    /// The newest of its tasks: the one that runs it, or ran it last.
    pub task_id: TaskId,
    /// State of the trial's life cycle.
    pub state: TrialState,
    /// What is known of its code, of which `state` follows; `None` = the master runs it.
    pub unmanaged: Option<UnmanagedState>,
    /// Its newest run; 0 before the first.
    pub run_id: RunId,
    /// Number of failures that count against `max_restarts`.
    pub restarts: u32,
    /// When it ended; `None` = it has not.
    pub ended_at: Option<Micros>,
}

/// The row of a task, as far as decisions read or change it. A task is what runs containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Id of the task, unique in the cluster.
    pub id: TaskId,
    /// Kind of the task, which decides whether it is started again and how it is asked to leave.
    pub kind: TaskKind,
    /// The entry in the job queue that it is part of.
    pub job_id: JobId,
    /// The user in whose name the task runs.
    pub owner_id: UserId,
    /// The experiment that it works for, if any.
    pub experiment_id: Option<ExperimentId>,
    /// The trial that it works for, if any.
    pub trial_id: Option<TrialId>,
    /// State of the task's life cycle.
    pub state: TaskState,
    /// What each attempt asks for; `None` = what its experiment asks for.
    pub demand: Option<Demand>,
    /// What log policies found in its log; `None` = nothing yet.
    pub log_findings: Option<LogFindings>,
    /// Days that its log is kept after its end: -1 = for ever, `None` = the cluster's default.
    pub log_retention_days: Option<i64>,
    /// Number of allocations that were requested so far; the newest has this number.
    pub attempts: u32,
    /// Attempts in a row that the platform lost, as [`TaskState::losses`] counts them; of a trial's task those that its places
    /// kept from going on, as [`EndedAttempt::in_a_row`](det_lifecycle::pause::EndedAttempt::in_a_row) does.
    pub losses: u32,
    /// When it ended for good; `None` = it may run again.
    pub ended_at: Option<Micros>,
}

impl Task {
    /// Whether it is started again after an attempt, and whether it can be preempted.
    pub fn policy(&self) -> RestartPolicy {
        let preemptible = self.demand.and_then(|demand| demand.preemptible);
        RestartPolicy::of(self.kind, preemptible)
    }
}

/// The row of an allocation: one attempt of a task, with its claim on slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Id of the form `<task>.<n>`, where n counts the attempts of the task from 1.
    pub id: AllocationId,
    /// The task of which it is an attempt.
    pub task_id: TaskId,
    /// Kind of the task that it is an attempt of.
    pub kind: TaskKind,
    /// The entry in the job queue that it is part of.
    pub job_id: JobId,
    /// The experiment of its task, if any.
    pub experiment_id: Option<ExperimentId>,
    /// The trial of its task, if any.
    pub trial_id: Option<TrialId>,
    /// The trial's run that it is; 0 without a trial.
    pub run_id: RunId,
    /// State of the allocation's life cycle.
    pub state: AllocationState,
    /// Pool that it waits or runs in.
    pub resource_pool: String,
    /// Number of requested slots, over all containers; 0 = it runs without one.
    pub slots: u32,
    /// Whether all slots must be on one place.
    pub single_place: bool,
    /// Whether it can be asked to give its slots back, and its task goes on later.
    pub preemptible: bool,
    /// When it was requested and entered the queue.
    pub requested_at: Micros,
    /// It is not placed before this time; `None` = it may be at once.
    pub not_before: Option<Micros>,
    /// When it was given slots.
    pub placed_at: Option<Micros>,
    /// When its first container was observed running; `None` = none has run.
    pub started_at: Option<Micros>,
    /// When its last container ended; `None` = it is live.
    pub ended_at: Option<Micros>,
    /// When it is killed if it has not exited by then, by the steady clock.
    pub preempt_deadline: Option<Micros>,
    /// The waiting allocation that its slots go to once it has stopped.
    pub preempted_for: Option<AllocationId>,
    /// Which set of training ports its containers use; `None` = none, before it is placed or because its task is no trial's.
    pub port_step: Option<u16>,
    /// Port of the service that its kind of task brings; 0 = none was free on its host, `None` = it brings none, or is not
    /// placed.
    pub service_port: Option<u16>,
    /// The namespace that its workspace was bound to when it was placed, in the cluster of its pool's manager; `None` = it was not bound.
    pub namespace: Option<String>,
    /// How it ended, as users read it.
    pub exit_reason: Option<String>,
    /// Exit code of the container of rank 0; `None` = there is none.
    pub status_code: Option<i64>,
    /// Why it waits, as the scheduler last decided; `None` before that, and once it is placed.
    pub wait_reason: Option<WaitExplanation>,
    /// Since when it waits for a reason of that kind.
    pub wait_since: Option<Micros>,
}

/// The row of one container of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Id of the container, a UUID.
    pub id: ContainerId,
    /// The allocation that it is a part of.
    pub allocation_id: AllocationId,
    /// The place that it runs on, whose slots it holds if it has any.
    pub place: PlaceId,
    /// Its rank in the allocation; 0 is the chief.
    pub member: u32,
    /// The desired state, which the manager of its place carries out: run, stop or kill.
    pub desired: DesiredState,
    /// What was last observed of it; `None` = nothing yet.
    pub observed: Option<ObservedState>,
    /// Whether it is a helper that does not keep the allocation alive.
    pub daemon: bool,
    /// Whether it has come to the meeting of its allocation's containers.
    pub joined: bool,
    /// When it ended and its slots became free; `None` = they are held.
    pub ended_at: Option<Micros>,
}

/// A search in memory, with how much of it is stored.
#[derive(Debug, Clone)]
pub struct SearchState {
    /// The search, with the events up to `through` applied.
    pub search: Search,
    /// Number of the last event applied to it.
    pub through: i64,
    /// Number of the last event in the stored snapshot.
    pub snapshot: i64,
}

impl SearchState {
    /// The state of a search that has just been stored whole.
    pub fn new(search: Search) -> Self {
        Self {
            search,
            through: 0,
            snapshot: 0,
        }
    }

    /// The search that rows lead to: its snapshot (JSON), the number of the last event in it, and the events since, each
    /// with its number and JSON.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub fn replay(
        config: &SearcherConfig,
        space: &Space,
        (snapshot, through): (&str, i64),
        events: &[(i64, String)],
    ) -> Result<Self, String> {
        let stored = serde_json::from_str(snapshot).map_err(|e| e.to_string())?;
        let search = Search::restore(config, space, &stored).map_err(|e| e.to_string())?;
        let mut state = Self {
            search,
            through,
            snapshot: through,
        };
        for (number, event) in events {
            // What it asked for then was carried out in the transaction that stored the event.
            let event = serde_json::from_str(event).map_err(|e| e.to_string())?;
            state.search.on(event);
            state.through = *number;
        }
        Ok(state)
    }
}

/// A stored document that cannot be read, which refuses the whole change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be read: {message}")]
pub struct Unreadable {
    /// What it is: `configuration of experiment 7`.
    pub what: String,
    /// The error in reading it, as a clause.
    pub message: String,
}

/// The rows of one change. Everything that [`crate::Event::needs`] names has been loaded; what is absent does not exist.
///
/// Changes are seen by later calls, and are undone by the caller as a whole when an event is refused. Decisions that
/// concern some of them only, such as those on places, name these parts in place of all.
pub trait Rows: ExperimentRows + TrialRows + TaskRows + PlaceRows {}

impl<R: ExperimentRows + TrialRows + TaskRows + PlaceRows> Rows for R {}

/// Rows of experiments, and their searches.
pub trait ExperimentRows {
    /// The row of an experiment; `None` = it does not exist.
    fn experiment(&self, id: ExperimentId) -> Option<Experiment>;
    /// Stores state, progress, number of trials and end of an experiment.
    fn update_experiment(&mut self, row: &Experiment);
    /// What its configuration sets for its runs.
    ///
    /// # Errors
    /// The stored configuration cannot be read.
    fn terms(&self, id: ExperimentId) -> Result<Terms, Unreadable>;
    /// Its live trials with their states, in the order of their numbers; as [`crate::Need::LiveTrials`] has them, or more.
    fn live_trials(&self, id: ExperimentId) -> Vec<(TrialId, TrialState)>;
    /// Number of trials of an experiment that have not ended.
    fn live_trial_count(&self, id: ExperimentId) -> usize;
    /// Its search, to be notified of events; `None` = it cannot be restored from its rows.
    fn search(&mut self, id: ExperimentId) -> Option<&mut SearchState>;
    /// By which metrics its search decides, and what its trials reported in place of them; `None` = that is not known.
    fn searched_metrics(&self, id: ExperimentId) -> Option<SearchedMetrics>;
    /// Keeps the search of an experiment that begins.
    fn insert_search(&mut self, id: ExperimentId, search: SearchState);
}

/// Rows of trials.
pub trait TrialRows {
    /// The row of a trial; `None` = it does not exist.
    fn trial(&self, id: TrialId) -> Option<Trial>;
    /// The trial that the search of an experiment calls by this name.
    fn trial_of_request(&self, id: ExperimentId, request_id: &RequestId) -> Option<Trial>;
    /// How many of its trials are in each state.
    fn trial_counts(&self, id: ExperimentId) -> TrialCounts;
    /// Stores task, state, restarts and end of a trial.
    fn update_trial(&mut self, row: &Trial);
    /// Stores other hyperparameters (a JSON object) for the runs to come.
    fn set_hparams(&mut self, id: TrialId, hparams: &str);
    /// Stores that a run begins: what the code of the run before reported of itself is reset. `resumes` = it goes on from
    /// the newest checkpoint.
    fn start_run(&mut self, id: TrialId, run_id: RunId, resumes: bool);
    /// Why a run that fails now is not followed by another although restarts are left; `None` if it may be.
    fn restart_forbidden(&self, id: TrialId) -> Option<String>;
    /// How many tasks a trial has had.
    fn task_count(&self, id: TrialId) -> usize;
}

/// Rows of tasks, and of their attempts.
pub trait TaskRows {
    /// The row of a task; `None` = it does not exist.
    fn task(&self, id: &TaskId) -> Option<Task>;
    /// Adds the row of a new task.
    fn insert_task(&mut self, row: Task);
    /// Stores state, attempts, log findings and end of a task.
    fn update_task(&mut self, row: &Task);
    /// Name of the resource pool in which the job of a task requests slots; `None` = the job does not exist.
    fn resource_pool(&self, task: &Task) -> Option<String>;

    /// The row of an allocation; `None` = it does not exist.
    fn allocation(&self, id: &AllocationId) -> Option<Allocation>;
    /// The allocation of a task that has not ended; `None` = there is none. A task never has two.
    fn live_allocation(&self, task_id: &TaskId) -> Option<AllocationId>;
    /// Adds an allocation; `excluded` are places that it must not run on, `None` = it may run on any.
    fn insert_allocation(&mut self, row: Allocation, excluded: Option<BTreeSet<PlaceId>>);
    /// Stores that an allocation that waits must not run on these places.
    fn exclude(&mut self, id: &AllocationId, places: &BTreeSet<PlaceId>);
    /// Stores all that changes in an allocation's life, its resource pool included.
    fn update_allocation(&mut self, row: &Allocation);
}

/// Rows of places, and of the containers on them.
pub trait PlaceRows {
    /// The row of a container; `None` = it does not exist.
    fn container(&self, id: &ContainerId) -> Option<Container>;
    /// The containers of an allocation in order of their ranks.
    fn containers(&self, id: &AllocationId) -> Vec<Container>;
    /// Adds a container that holds these slots of its place.
    fn insert_container(&mut self, row: Container, slots: &[SlotId]);
    /// Stores all that changes in a container's life.
    fn update_container(&mut self, row: &Container);

    /// The row of a place; `None` = it does not exist.
    fn place(&self, id: &PlaceId) -> Option<Place>;
    /// Stores what users let a place do, and since when it is away.
    fn update_place(&mut self, id: &PlaceId, row: &Place);
    /// The allocations that hold something on a place, each with its slots there; an allocation may be named more than
    /// once.
    fn holders(&self, id: &PlaceId) -> Vec<(AllocationId, BTreeSet<SlotId>)>;
    /// The containers on a place that hold slots, by allocation and rank.
    fn live_containers_on(&self, place: &PlaceId) -> Vec<Container>;
}
