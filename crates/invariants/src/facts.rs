//! What is known of a cluster at one moment, as plain values.

use std::collections::{BTreeMap, BTreeSet};

use det_lifecycle::allocation::AllocationState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::trial::TrialState;

/// A cluster at one moment: the rows, and what else could be seen.
///
/// A list may leave out what has ended long ago; what a checker is not shown it does not judge. Facts that only some
/// observers have are `Option`s: `None` = not looked at.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Experiments.
    pub experiments: Vec<Experiment>,
    /// Trials. Those of every shown experiment, or only the live ones.
    pub trials: Vec<Trial>,
    /// Allocations: all live ones, and any number of ended ones.
    pub allocations: Vec<Allocation>,
    /// Containers: all that hold slots, and all others of the shown allocations.
    pub containers: Vec<Container>,
    /// Agents as rows.
    pub agents: Vec<Agent>,
    /// Checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Searches of live experiments.
    pub searches: Vec<Search>,
    /// Changes of state as recorded, oldest first. Of each shown subject at least the newest one.
    pub events: Option<Vec<Event>>,
    /// What somebody was told to be stored, in the order of the answers.
    pub acknowledged: Vec<Report>,
    /// What is stored, in order.
    pub stored: Vec<Report>,
    /// What runs on the agents' hosts.
    pub processes: Vec<Process>,
    /// Requests that were refused or failed.
    pub refusals: Vec<Refusal>,
    /// Whether nothing is under way: no wake is pending, no message on its way. Then database, memory and agents agree.
    pub settled: bool,
}

/// An experiment's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Number.
    pub id: i64,
    /// Its life cycle's state.
    pub state: ExperimentState,
    /// Whether its end is noted.
    pub ended: bool,
    /// Trials it counts.
    pub trial_count: i64,
}

/// A trial's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Number.
    pub id: i64,
    /// Its experiment.
    pub experiment_id: i64,
    /// The search's name for it.
    pub request_id: String,
    /// Its present task; another one after each continuation.
    pub task_id: String,
    /// Its newest run.
    pub run_id: i64,
    /// Failures charged.
    pub restarts: i64,
    /// Its life cycle's state.
    pub state: TrialState,
    /// Whether its end is noted.
    pub ended: bool,
    /// The newest complete checkpoint that the row names.
    pub latest_checkpoint: Option<String>,
}

/// An allocation's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// `<task>.<n>`.
    pub id: String,
    /// Its task.
    pub task_id: String,
    /// Its trial.
    pub trial_id: Option<i64>,
    /// The run that it is.
    pub run_id: i64,
    /// Slots asked for.
    pub slots: i64,
    /// Its life cycle's state.
    pub state: AllocationState,
    /// Whether it was given slots.
    pub placed: bool,
    /// Whether its end is noted.
    pub ended: bool,
    /// Why it waits, as stored.
    pub wait_reason: Option<String>,
    /// Why it waits according to the scheduler asked just now; `None` = not asked.
    pub true_reason: Option<String>,
}

/// A container's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its allocation.
    pub allocation_id: String,
    /// Where.
    pub agent_id: String,
    /// Its slots there.
    pub slots: BTreeSet<u32>,
    /// Whether it has ended; its slots are free then.
    pub ended: bool,
}

/// An agent's row, what the master remembers of it, and what it says itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// Its id.
    pub id: String,
    /// Its slots.
    pub slots: BTreeSet<u32>,
    /// Whether its row says that it is connected.
    pub connected: bool,
    /// Whether the master holds a connection; `None` = not looked at.
    pub connection: Option<bool>,
    /// The containers it has and has not forgotten; `None` = not looked at.
    pub holds: Option<BTreeSet<String>>,
}

/// A checkpoint's row, and its files.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Its UUID.
    pub uuid: String,
    /// Its trial.
    pub trial_id: Option<i64>,
    /// Whether it is `COMPLETED`.
    pub complete: bool,
    /// Path to bytes, as reported.
    pub manifest: BTreeMap<String, i64>,
    /// Path to bytes, as they lie in the storage; `None` = not looked at.
    pub files: Option<BTreeMap<String, i64>>,
}

/// A search of a live experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    /// Its experiment.
    pub experiment_id: i64,
    /// The state in the master's memory, as its snapshot; `None` = not loaded.
    pub remembered: Option<String>,
    /// The state that the stored snapshot and events lead to, as a snapshot.
    pub replayed: String,
    /// Names of the trials that it has asked for, and whether it knows that they ended; by the replayed state.
    pub asked_for: BTreeMap<String, bool>,
}

/// A recorded change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `experiment`, `trial`, `allocation`.
    pub subject_kind: String,
    /// Which.
    pub subject_id: String,
    /// `created`, `state`, `placed`, `ended`, …
    pub kind: String,
    /// State after, where there is one.
    pub to: Option<String>,
}

/// Something that a task reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Its trial.
    pub trial_id: i64,
    /// The run that reports.
    pub run_id: i64,
    /// The trial's newest run when it was taken.
    pub newest_run: i64,
    /// What.
    pub what: Reported,
}

/// What a task reports.
#[derive(Debug, Clone, PartialEq)]
pub enum Reported {
    /// A metric at a step.
    Metric {
        /// Step.
        step: i64,
        /// Value.
        value: f64,
    },
    /// A checkpoint.
    Checkpoint {
        /// Its UUID.
        uuid: String,
    },
    /// Something that steers the trial and is no row of its own: fenced like the others, and not looked for.
    Said {
        /// For people.
        what: String,
    },
    /// A line of its log.
    Line {
        /// The spool that numbered it.
        spool: String,
        /// Its number.
        sequence: i64,
    },
}

/// Something that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Where.
    pub agent_id: String,
    /// The container it belongs to.
    pub container_id: String,
    /// How long nobody has wanted it, while its agent was there and connected, in microseconds.
    pub unwanted_micros: i64,
}

/// A request that was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked.
    pub what: String,
    /// Whether the rows were others afterwards.
    pub left_something: bool,
}
