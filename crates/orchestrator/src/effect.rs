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
        /// The attempt that the line concerns; `None` = the task as a whole.
        allocation_id: Option<AllocationId>,
        /// Severity of the line, as the log's filter by level compares it.
        level: LogLevel,
        /// One line of text that users read.
        text: String,
    },
    /// After the commit: wake those who wait for this to change.
    Wake(Topic),
    /// Add a trial; its number is the database's to choose. [`crate::Event::TrialCreated`] follows.
    InsertTrial(NewTrial),
    /// Append an event to the stored history of a search, from which it is restored.
    AppendSearchEvent {
        /// The experiment that the search is of.
        experiment_id: ExperimentId,
        /// Number of the event in its search, from 1 without gaps.
        number: i64,
        /// The event as the JSON text of `det_searcher::Event`.
        text: String,
    },
    /// Store a snapshot of a search; events up to `through` are in it and can go.
    SaveSearch {
        /// The experiment that the search is of.
        experiment_id: ExperimentId,
        /// Number of the last event in it.
        through: i64,
        /// The snapshot as JSON text, from which `det_searcher::Search` is restored.
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
    /// A trial has ended: those who follow its state are to be notified.
    TrialEnded(TrialId),
    /// A container has a place: give it a token.
    ContainerPlaced {
        /// The container, by its id.
        id: ContainerId,
        /// The allocation that the container is a part of.
        allocation_id: AllocationId,
    },
    /// A container has ended: drop what is kept for its start.
    ContainerEnded(ContainerId),
    /// A place has been given up: remove its row.
    RemovePlace(PlaceId),
    /// A request has been placed, for statistics of the queue.
    Placed {
        /// Name of the resource pool in which it was placed.
        resource_pool: String,
        /// When the request entered the queue.
        requested_at: Micros,
        /// When the scheduler gave it its slots.
        placed_at: Micros,
    },
    /// An allocation is asked to save and exit.
    Preempted(AllocationId),
    /// An allocation has ended: its tokens expire soon, and exchanges between its containers end.
    AllocationEnded(AllocationId),
}

/// A subject of notifications: a task of the master waits for one and reads the rows when it is woken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Requests, capacity, priorities or limits: a pass of the scheduler may decide otherwise.
    Schedule,
    /// A deadline was set or moved: the next moment at which one is due may be another.
    Deadlines,
    /// Files or rows of ended work wait for their removal.
    CleanUp,
    /// Trials of an experiment that are left over by one change: [`crate::Event::CatchUp`] is to come in another one.
    Backlog(ExperimentId),
    /// The desired states of the containers of a place.
    Place(PlaceId),
    /// The state of an allocation: a request to preempt it, its readiness, containers that have met.
    Allocation(AllocationId),
    /// The log of a task, or its end.
    TaskLog(TaskId),
    /// The list of a trial's tasks.
    Trial(TrialId),
}

/// A line in the ordered record of changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Who or what made the change, with the reason that users read.
    pub cause: Cause,
    /// The object that changed, by its kind and its id or name.
    pub subject: Subject,
    /// The kind of change, as `events` names it.
    pub kind: EventKind,
    /// The state, or what else has changed, before.
    pub from: Option<RecordedState>,
    /// The same after the change; `None` = there is none.
    pub to: Option<RecordedState>,
    /// Further particulars for readers of the record, as JSON text; `None` = none.
    pub detail: Option<String>,
}

/// A trial to be added.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTrial {
    /// The experiment that the trial is to belong to.
    pub experiment_id: ExperimentId,
    /// Name by which the search of the experiment knows the trial; no other trial of it has the name.
    pub request_id: RequestId,
    /// Id of the first task of the trial.
    pub task_id: TaskId,
    /// Initial state: active, or paused when its experiment is, or until unmanaged code has begun.
    pub state: TrialState,
    /// What is known of its code; `None` = the master runs it.
    pub unmanaged: Option<UnmanagedState>,
    /// Hyperparameters as the JSON text of an object.
    pub hparams: String,
    /// Seed of its code, 0 to 2^31 - 1.
    pub seed: u32,
}
