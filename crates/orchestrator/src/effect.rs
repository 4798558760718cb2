//! What is to be done in the transaction that holds the decided rows.

use det_ids::{
    AllocationId, ContainerId, ExperimentId, LogLevel, Micros, PlaceId, RequestId, TaskId, TrialId,
};
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::UnmanagedState;

use crate::Cause;

/// Something to do. Each may be carried out twice when a transaction is repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Add a line to the ordered record of changes.
    Record(Record),
    /// Add a line of the master's own to a task's log.
    Log {
        /// The task that the log is of.
        task_id: TaskId,
        /// The attempt that it concerns.
        allocation_id: Option<AllocationId>,
        /// How much it matters.
        level: LogLevel,
        /// One line of text that users read.
        text: String,
    },
    /// After the commit: wake those who wait for this to change.
    Wake(Topic),
    /// Add a trial; its number is the database's to choose. [`crate::Event::TrialCreated`] follows.
    InsertTrial(NewTrial),
    /// Store an event of a search.
    AppendSearchEvent {
        /// The experiment that the search is of.
        experiment_id: ExperimentId,
        /// Counts from 1.
        number: i64,
        /// The event as JSON text.
        text: String,
    },
    /// Store a snapshot of a search; events up to `through` are in it and can go.
    SaveSearch {
        /// The experiment that the search is of.
        experiment_id: ExperimentId,
        /// Number of the last event in it.
        through: i64,
        /// The snapshot as JSON text.
        snapshot: String,
    },
    /// The search of an experiment is over: remove it.
    EndSearch(ExperimentId),
    /// An experiment has ended: store how far its code came, and drop what is cached of it.
    ExperimentEnded {
        /// The experiment, by its number.
        id: ExperimentId,
        /// Whether it completed: then its progress is 1, else the mean of what its trials reported.
        completed: bool,
    },
    /// An experiment goes on: its checkpoints are to be looked at again at its next end.
    ExperimentContinued(ExperimentId),
    /// A run of a trial begins: reports that are kept of the run before are invalid.
    RunStarted(TrialId),
    /// A trial has ended.
    TrialEnded(TrialId),
    /// A container has a place: give it a token.
    ContainerPlaced {
        /// The container, by its id.
        id: ContainerId,
        /// Its allocation.
        allocation_id: AllocationId,
    },
    /// A container has ended: drop what is kept for its start.
    ContainerEnded(ContainerId),
    /// A place has been given up: remove its row.
    RemovePlace(PlaceId),
    /// A request has been placed, for statistics of the queue.
    Placed {
        /// The resource pool.
        resource_pool: String,
        /// Since when it waited.
        requested_at: Micros,
        /// When it was placed.
        placed_at: Micros,
    },
    /// An allocation is asked to save and exit.
    Preempted(AllocationId),
    /// An allocation has ended: its tokens expire soon, and exchanges between its containers end.
    AllocationEnded(AllocationId),
}

/// What others can wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Anything that scheduling depends on.
    Schedule,
    /// Moments at which something is due.
    Deadlines,
    /// Work left behind by ended experiments.
    CleanUp,
    /// Trials of an experiment that are left over by one change: [`crate::Event::CatchUp`] is to come in another one.
    Backlog(ExperimentId),
    /// What a place should run.
    Place(PlaceId),
    /// An allocation: preemption, readiness, members.
    Allocation(AllocationId),
    /// The log of a task, or its end.
    TaskLog(TaskId),
    /// The tasks of a trial.
    Trial(TrialId),
}

/// A line in the ordered record of changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Who or what, and why.
    pub cause: Cause,
    /// What it is about.
    pub subject: Subject,
    /// What kind of change it was.
    pub kind: EventKind,
    /// The state, or what else has changed, before.
    pub from: Option<RecordedState>,
    /// What it is now.
    pub to: Option<RecordedState>,
    /// More, as JSON.
    pub detail: Option<String>,
}

/// A trial to be added.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTrial {
    /// Its experiment.
    pub experiment_id: ExperimentId,
    /// The search's name for it.
    pub request_id: RequestId,
    /// Its first task.
    pub task_id: TaskId,
    /// Active, or paused with its experiment.
    pub state: TrialState,
    /// What is known of its code; `None` = the master runs it.
    pub unmanaged: Option<UnmanagedState>,
    /// Hyperparameters, a JSON object.
    pub hparams: String,
    /// Seed of its code, 0 to 2^31.
    pub seed: u32,
}
