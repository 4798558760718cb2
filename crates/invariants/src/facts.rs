//! The facts of a cluster at one moment, as plain values.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{
    AllocationId, CheckpointId, ContainerId, ExperimentId, PlaceId, RequestId, RunId, SlotId,
    SpoolId, TaskId, TrialId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_lifecycle::task::{RestartPolicy, TaskState};
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::UnmanagedState;

/// A cluster at one moment: the rows, and everything else that the observer can see.
///
/// A list may omit what has ended long ago; the checks ignore what is not in the snapshot. Facts that only some
/// observers have are `Option`s: `None` = not known.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Rows of experiments: all live ones, and any number of ended ones.
    pub experiments: Vec<Experiment>,
    /// Trials. Those of every shown experiment, or only the live ones.
    pub trials: Vec<Trial>,
    /// Tasks of any kind, trials' among them: any number of them.
    pub tasks: Vec<Task>,
    /// Allocations: all live ones, and any number of ended ones.
    pub allocations: Vec<Allocation>,
    /// Containers: all that hold slots, and all others of the shown allocations.
    pub containers: Vec<Container>,
    /// Places: their rows, and what is known of them besides.
    pub places: Vec<Place>,
    /// Rows of checkpoints, with their files.
    pub checkpoints: Vec<Checkpoint>,
    /// Searches of live experiments, as remembered and as computed from their rows.
    pub searches: Vec<Search>,
    /// Changes of state as recorded, oldest first. Of each shown subject at least the newest one.
    pub events: Option<Vec<Event>>,
    /// Reports that the master has acknowledged as stored, in the order of the responses.
    pub acknowledged: Vec<Report>,
    /// Reports that are stored, in order.
    pub stored: Vec<Report>,
    /// Processes on the places' hosts.
    pub processes: Vec<Process>,
    /// Requests that were refused or failed.
    pub refusals: Vec<Refusal>,
    /// Whether no wake is pending and no message is in transit. Then database, memory and places agree.
    pub quiescent: bool,
}

/// An experiment's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Number of the experiment.
    pub id: ExperimentId,
    /// State of the experiment's life cycle, as stored.
    pub state: ExperimentState,
    /// Whether the row has an end time.
    pub ended: bool,
    /// Number of trials in the row.
    pub trial_count: i64,
    /// Whether it runs outside the cluster.
    pub unmanaged: bool,
}

/// A trial's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Number of the trial.
    pub id: TrialId,
    /// Number of the experiment that it belongs to.
    pub experiment_id: ExperimentId,
    /// Its id in the search.
    pub request_id: RequestId,
    /// Its current task; a new one after each continuation.
    pub task_id: TaskId,
    /// Number of its newest run, from 1; 0 = none has begun.
    pub run_id: RunId,
    /// Number of failures that count towards the limit of restarts.
    pub restarts: i64,
    /// State of the trial's life cycle, as stored.
    pub state: TrialState,
    /// Whether the row has an end time.
    pub ended: bool,
    /// The newest complete checkpoint that the row names.
    pub latest_checkpoint: Option<CheckpointId>,
    /// What is known of its code, where it runs outside the cluster; `None` = the master runs it.
    pub unmanaged: Option<UnmanagedState>,
}

/// A task's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// State of the task's life cycle, as stored.
    pub state: TaskState,
    /// The task that it belongs to.
    pub parent: Option<TaskId>,
    /// When it is started again.
    pub policy: RestartPolicy,
    /// Attempts in a row that the platform lost.
    pub losses: u32,
    /// Whether the row has an end time.
    pub ended: bool,
    /// Attempts whose code has begun to run; `None` = not known.
    pub started_attempts: Option<usize>,
}

/// An allocation's row.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of a row, each of which is checked by itself"
)]
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// Its id: `TASK.N`, the task and the number of the attempt.
    pub id: AllocationId,
    /// Id of the task that it runs.
    pub task_id: TaskId,
    /// Number of the trial that its task runs; `None` = a task that belongs to no trial.
    pub trial_id: Option<TrialId>,
    /// Number of the run of its trial that it is.
    pub run_id: RunId,
    /// Slots that it asks for; 0 = none.
    pub slots: i64,
    /// State of the allocation's life cycle, as stored.
    pub state: AllocationState,
    /// Whether it can be asked to give its slots back, and its task goes on later.
    pub preemptible: bool,
    /// Whether it is asked to save and exit, by a deadline or for another allocation.
    pub asked: bool,
    /// Whether it was given slots.
    pub placed: bool,
    /// Which set of training ports it has; `None` = none.
    pub port_step: Option<u16>,
    /// Port of its service; `None` = none, 0 = none was free.
    pub service_port: Option<u16>,
    /// Whether the row has an end time.
    pub ended: bool,
    /// Why it waits, as stored.
    pub wait_reason: Option<String>,
    /// Why it waits according to a new run of the scheduler; `None` = not computed.
    pub true_reason: Option<String>,
}

/// A container's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Id of the container.
    pub id: ContainerId,
    /// Id of the allocation that it belongs to.
    pub allocation_id: AllocationId,
    /// Place on which it runs.
    pub place_id: PlaceId,
    /// Its slots on that place.
    pub slots: BTreeSet<SlotId>,
    /// Whether it has ended; its slots are free then.
    pub ended: bool,
}

/// A place's row, its state in the master's memory, and its own state.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// Id of the place.
    pub id: PlaceId,
    /// Numbers of the slots that it has.
    pub slots: BTreeSet<SlotId>,
    /// Whether it is connected according to its row.
    pub connected: bool,
    /// Whether the master has a connection to it; `None` = not known.
    pub connection: Option<bool>,
    /// The containers that it still has; `None` = not known.
    pub holds: Option<BTreeSet<ContainerId>>,
}

/// A checkpoint's row, and its files.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// UUID of the checkpoint.
    pub uuid: CheckpointId,
    /// Number of the trial that wrote it; `None` = a task without a trial did.
    pub trial_id: Option<TrialId>,
    /// Whether its state is `COMPLETED`: all of its files should exist.
    pub complete: bool,
    /// Size in bytes by path, as reported.
    pub manifest: BTreeMap<String, i64>,
    /// Size in bytes by path, as stored; `None` = not known.
    pub files: Option<BTreeMap<String, i64>>,
}

/// A search of a live experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    /// Number of the experiment that it is the search of.
    pub experiment_id: ExperimentId,
    /// The state in the master's memory, as its snapshot; `None` = not loaded.
    pub remembered: Option<String>,
    /// The state computed from the stored snapshot and events, as a snapshot.
    pub replayed: String,
    /// Ids of the trials that it has created, and whether it has received their end, in the replayed state.
    pub asked_for: BTreeMap<RequestId, bool>,
}

/// A recorded change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The subject of the change.
    pub subject: Subject,
    /// What happened to the subject.
    pub kind: EventKind,
    /// The state after the change; `None` = the event has none.
    pub to: Option<RecordedState>,
}

/// A report of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Number of the trial that the task runs.
    pub trial_id: TrialId,
    /// The run that sent it.
    pub run_id: RunId,
    /// The trial's newest run when the report was accepted.
    pub newest_run: RunId,
    /// Content of the report: a metric, a checkpoint, a log line or a call that controls the trial.
    pub what: ReportContent,
}

/// What a task reports.
#[derive(Debug, Clone, PartialEq)]
pub enum ReportContent {
    /// A metric at a step.
    Metric {
        /// Training step, in batches.
        step: i64,
        /// Value of the metric.
        value: f64,
    },
    /// A checkpoint that the trial has stored.
    Checkpoint {
        /// UUID of the checkpoint.
        uuid: CheckpointId,
    },
    /// A report that controls the trial and has no row of its own: refused from older runs like the others, but not
    /// expected in `stored`.
    Control {
        /// What was reported, in words for messages of violations.
        what: String,
    },
    /// A line of its log.
    Line {
        /// The spool that contains it.
        spool: SpoolId,
        /// Sequence number of the line in that spool.
        sequence: i64,
    },
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Place on whose host it runs.
    pub place_id: PlaceId,
    /// The container it belongs to.
    pub container_id: ContainerId,
    /// How long it has run although no row wants it and its place was connected, in microseconds.
    pub unwanted_micros: i64,
}

/// A request that was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was requested, in words for messages of violations.
    pub what: String,
    /// Whether the rows have changed nevertheless.
    pub left_something: bool,
}
