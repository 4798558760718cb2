//! What a scenario says. The format that people write is in `docs/scheduler-simulation.md`; `read` makes these values of
//! it, `write` makes it of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_scheduler::PoolSettings;
use serde_json::Value;

/// A cluster, its workload, and what is expected of the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// For people; may be empty.
    pub name: String,
    /// What it shows, for people; may be empty.
    pub about: String,
    /// The resource pool.
    pub pool: Pool,
    /// Workspaces by name.
    pub workspaces: BTreeMap<String, WorkspaceSettings>,
    /// Settings of jobs by name, for their first submission.
    pub jobs: BTreeMap<String, JobSettings>,
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// How many of the first steps are what it begins with, and not told of: they have no number.
    pub given: usize,
    /// How long it goes on after the last step.
    pub until: Until,
}

/// A resource pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// How it decides.
    pub settings: PoolSettings,
    /// How long a lost agent is waited for.
    pub reconnect_wait: Duration,
    /// Its agents at the start.
    pub agents: Vec<AgentDescription>,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDescription {
    /// Its name.
    pub id: String,
    /// Its slots, numbered from 0.
    pub slots: u32,
    /// Most zero-slot tasks on it at a time.
    pub aux: u32,
    /// Whether it takes work.
    pub service: Service,
}

/// Whether an agent or a slot takes work.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Takes new work.
    Enabled,
    /// Finishes what it has.
    Draining,
    /// Takes none; what was on it is killed.
    Disabled,
}

/// A workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WorkspaceSettings {
    /// Most slots that its jobs use together; `None` = any number.
    pub max_slots: Option<u32>,
    /// Slots that its jobs use in other pools.
    pub in_other_pools: u32,
}

/// Settings of a job; `None` = not said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobSettings {
    /// 1 to 99, lower goes first.
    pub priority: Option<u8>,
    /// Above 0.
    pub weight: Option<f64>,
    /// Most slots in use at a time; `Some(None)` = no cap.
    pub max_slots: Option<Option<u32>>,
    /// Most tasks that want or have slots at a time, as a search bounds its trials.
    pub concurrent: Option<u32>,
    /// The workspace that it counts for.
    pub workspace: Option<String>,
}

/// How long a scenario goes on after its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Not at all.
    LastStep,
    /// Until this time from the start.
    Time(Duration),
    /// Until nothing more happens by itself.
    Rest,
}

/// Things that happen at one moment, and what must hold then.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When.
    pub when: When,
    /// For people; may be empty.
    pub note: String,
    /// What happens, in order; the planner is asked when all of it has happened.
    pub operations: Vec<Operation>,
    /// What must hold when the planner has nothing more to decide.
    pub expect: Expectation,
    /// Line of the text where it stands; `None` when it comes from none.
    pub line: Option<u32>,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            when: When::Now,
            note: String::new(),
            operations: Vec::new(),
            expect: Expectation::default(),
            line: None,
        }
    }
}

/// When a step happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At the same time as the step before, after it.
    Now,
    /// So long after the step before.
    After(Duration),
    /// At this time from the start.
    At(Duration),
}

/// Something that happens.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Tasks are submitted.
    Submit(Box<Submission>),
    /// Running tasks come to their end.
    Finish(Vec<String>),
    /// Running tasks fail; those with restarts left ask again.
    Fail(Vec<String>),
    /// A person kills tasks.
    Kill(Vec<String>),
    /// Tasks that were asked to stop have saved and leave.
    Leave(Vec<String>),
    /// A person pauses jobs.
    Pause(Vec<String>),
    /// A person activates paused jobs.
    Activate(Vec<String>),
    /// A person changes settings of a job.
    Set {
        /// The job.
        job: String,
        /// What changes.
        settings: JobSettings,
    },
    /// A person changes the limit of a workspace.
    Limit {
        /// The workspace.
        workspace: String,
        /// From now on.
        settings: WorkspaceSettings,
    },
    /// A person moves a job in the queue.
    Move {
        /// The job.
        job: String,
        /// The job that it is moved next to.
        anchor: String,
        /// Whether it goes ahead of that one; else behind it.
        ahead: bool,
    },
    /// Tasks are not to run on an agent any more, from their next start on.
    Exclude {
        /// Tasks or jobs.
        tasks: Vec<String>,
        /// The agent.
        agent: String,
    },
    /// A person takes agents or slots into service, or out of it.
    Serve {
        /// Which.
        places: Vec<Place>,
        /// From now on.
        service: Service,
    },
    /// Connections of agents are lost.
    Lose(Vec<String>),
    /// Agents come back.
    Return(Vec<String>),
    /// New agents join the pool.
    Join(Vec<AgentDescription>),
    /// Agents leave the pool for good, and what runs on them is lost.
    Remove(Vec<String>),
    /// The master ends and is started again from what is stored.
    RestartMaster,
}

/// An agent, or one of its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The agent.
    pub agent: String,
    /// The slot; `None` = the whole agent.
    pub slot: Option<u32>,
}

/// Tasks that are submitted together.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The job they belong to; made if it is new.
    pub job: String,
    /// Its settings; only a new job takes them.
    pub settings: JobSettings,
    /// Name of the task; `None` = the job's name and a number.
    pub name: Option<String>,
    /// How many.
    pub tasks: u32,
    /// What they are.
    pub kind: Kind,
    /// Slots of each.
    pub slots: u32,
    /// Whether they can be asked to stop and start again later.
    pub preemptible: bool,
    /// Whether all slots of a task must be on one agent.
    pub single_node: bool,
    /// Agents they must not run on.
    pub exclude: BTreeSet<String>,
    /// How long each has to run in all; `None` = until something ends it.
    pub duration: Option<Duration>,
    /// How long they take to save and leave when they are asked to stop; `None` = until [`Operation::Leave`].
    pub stops_in: Option<Duration>,
    /// Failures after which each asks again.
    pub restarts: u32,
    /// How long they have waited already.
    pub waited: Duration,
    /// How long ago their job was submitted, if it is new; `None` = as long ago as they have waited.
    pub job_age: Option<Duration>,
    /// Where they run already; `None` = they wait for the planner.
    pub on: Option<Vec<Start>>,
    /// Whether they have been asked to stop already; only where they run.
    pub stopping: bool,
}

/// Slots of one agent that a task has from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The agent.
    pub agent: String,
    /// How many of its slots; `None` = all that the task asks for.
    pub slots: Option<u32>,
}

/// What a task is. It decides what a submission leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A trial of an experiment.
    Trial,
    /// A notebook.
    Notebook,
    /// A shell.
    Shell,
    /// A command.
    Command,
    /// A TensorBoard.
    Tensorboard,
    /// A generic task.
    Generic,
    /// Deletion of checkpoints.
    CheckpointGc,
}

impl Kind {
    pub(crate) const ALL: [(&'static str, Self); 7] = [
        ("trial", Self::Trial),
        ("notebook", Self::Notebook),
        ("shell", Self::Shell),
        ("command", Self::Command),
        ("tensorboard", Self::Tensorboard),
        ("generic", Self::Generic),
        ("checkpoint_gc", Self::CheckpointGc),
    ];

    /// Its name in descriptions.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, kind)| *kind == self);
        found.map_or("trial", |(name, _)| name)
    }

    /// Slots of a task that asks for none in particular.
    pub fn slots(self) -> u32 {
        match self {
            Self::Tensorboard | Self::CheckpointGc => 0,
            Self::Trial | Self::Notebook | Self::Shell | Self::Command | Self::Generic => 1,
        }
    }

    /// Whether it can be asked to stop and start again later.
    pub fn is_preemptible(self) -> bool {
        matches!(self, Self::Trial | Self::Generic)
    }

    /// Whether its slots must be on one agent.
    pub fn is_single_node(self) -> bool {
        !matches!(self, Self::Trial | Self::Generic)
    }

    /// Failures after which it asks again.
    pub fn restarts(self) -> u32 {
        if self == Self::Trial { 5 } else { 0 }
    }
}

/// What must hold. What is not mentioned may be as it likes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expectation {
    /// Of tasks and jobs: what has slots.
    pub running: BTreeMap<String, Presence>,
    /// Of tasks and jobs: what waits.
    pub waiting: BTreeMap<String, Waits>,
    /// The tasks that have been asked to stop, all of them.
    pub stopping: Option<BTreeSet<String>>,
    /// Of jobs: slots in use by work that is not stopping.
    pub slots: BTreeMap<String, u64>,
    /// Of tasks: slots on each agent, largest part first.
    pub parts: BTreeMap<String, Vec<u32>>,
    /// Of jobs: jobs ahead in the queue; `None` = the policy knows no order.
    pub ahead: BTreeMap<String, Option<u64>>,
    /// Of jobs: tasks that have come to their end.
    pub completed: BTreeMap<String, u64>,
    /// Slots that are free on agents in service.
    pub free: Option<u64>,
}

impl Expectation {
    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is expected to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// So many tasks.
    Tasks(u64),
    /// All that runs of it, and something does, is on exactly these agents.
    On(BTreeSet<String>),
    /// Slots by agent.
    Slots(BTreeMap<String, u64>),
}

/// What is expected to wait.
#[derive(Debug, Clone, PartialEq)]
pub enum Waits {
    /// So many tasks.
    Tasks(u64),
    /// Something waits, and all of it for a reason of this kind.
    Because(String),
    /// So many tasks for each kind of reason, and no others.
    Kinds(BTreeMap<String, u64>),
    /// Something waits, and all of it for a reason that has these fields.
    Reason(BTreeMap<String, Value>),
}
