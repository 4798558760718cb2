//! The content of a scenario. The format that users write is in `docs/scheduler-simulation.md`; `read` converts it to
//! these values, `write` converts them back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_scheduler::PoolSettings;
pub use det_scheduler::Service;
use det_taskspec::TaskKind;
use serde_json::Value;

/// A cluster, its workload, and what is expected of the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Title for users; may be empty.
    pub name: String,
    /// Description for users; may be empty.
    pub about: String,
    /// The resource pool that is simulated.
    pub pool: Pool,
    /// Limits of workspaces, by name of the workspace.
    pub workspaces: BTreeMap<String, WorkspaceSettings>,
    /// Settings of jobs by name, for their first submission.
    pub jobs: BTreeMap<String, JobSettings>,
    /// What happens and what is expected then, in order.
    pub steps: Vec<Step>,
    /// How many of the first steps set up the initial state; they have no number and are not in the report.
    pub initial_steps: usize,
    /// How long it goes on after the last step.
    pub until: EndCondition,
}

/// A resource pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// How the planner decides for it.
    pub settings: PoolSettings,
    /// How long an agent may be disconnected before its work counts as lost.
    pub reconnect_wait: Duration,
    /// Its agents at the start, in any order; ids are unique.
    pub agents: Vec<AgentDescription>,
}

/// An agent at the start, or one that joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDescription {
    /// Its name, unique in the pool.
    pub id: String,
    /// Its slots, numbered from 0.
    pub slots: u32,
    /// Most zero-slot tasks on it at a time.
    pub aux: u32,
    /// Whether it takes new work, is draining or is disabled.
    pub service: Service,
}

/// How many slots the jobs of a workspace may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WorkspaceSettings {
    /// Most slots that its jobs use together; `None` = any number.
    pub max_slots: Option<u32>,
    /// Slots that its jobs use in other pools.
    pub in_other_pools: u32,
}

/// Settings of a job; `None` = not specified.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobSettings {
    /// 1 to 99, lower goes first.
    pub priority: Option<u8>,
    /// Share weight under fair share, above 0.
    pub weight: Option<f64>,
    /// Most slots in use at a time; `Some(None)` = no cap.
    pub max_slots: Option<Option<u32>>,
    /// Most tasks that wait or run at a time, as a search limits its trials.
    pub concurrent: Option<u32>,
    /// The workspace that it belongs to.
    pub workspace: Option<String>,
}

/// How long a scenario goes on after its last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCondition {
    /// It ends with the last step.
    LastStep,
    /// Until this time from the start.
    Time(Duration),
    /// Until nothing more happens by itself.
    Rest,
}

/// Operations that happen at one time, and what must hold then.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The moment of the step on the simulated clock.
    pub when: StepTime,
    /// Note for users; may be empty.
    pub note: String,
    /// What happens, in order; the planner runs when all of it has happened.
    pub operations: Vec<Operation>,
    /// What must hold when the planner has nothing more to decide.
    pub expect: Expectation,
    /// Its line in the text, from 1; `None` if it was not read from a text.
    pub line: Option<u32>,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            when: StepTime::Now,
            note: String::new(),
            operations: Vec::new(),
            expect: Expectation::default(),
            line: None,
        }
    }
}

/// When a step happens, in simulated time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTime {
    /// At the same time as the step before, after it.
    Now,
    /// This long after the step before.
    After(Duration),
    /// At this time from the start.
    At(Duration),
}

/// Something that users, tasks or agents do.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Tasks are submitted.
    Submit(Box<Submission>),
    /// Running tasks come to their end.
    Finish(Vec<String>),
    /// Running tasks fail; those with restarts left ask for slots again.
    Fail(Vec<String>),
    /// A user kills tasks.
    Kill(Vec<String>),
    /// Tasks that were asked to stop have saved and leave.
    Leave(Vec<String>),
    /// A user pauses jobs.
    Pause(Vec<String>),
    /// A user activates paused jobs.
    Activate(Vec<String>),
    /// A user changes settings of a job.
    Set {
        /// Name of the job that is changed.
        job: String,
        /// The settings that change; those that are `None` stay.
        settings: JobSettings,
    },
    /// A user changes the limit of a workspace.
    Limit {
        /// Name of the workspace that is changed.
        workspace: String,
        /// Its new limits, in place of all it had.
        settings: WorkspaceSettings,
    },
    /// A user moves a job in the queue.
    Move {
        /// Name of the job that is moved.
        job: String,
        /// The job that it is moved next to.
        anchor: String,
        /// Whether it goes ahead of that one; else behind it.
        ahead: bool,
    },
    /// Excludes an agent for tasks, from their next start on.
    Exclude {
        /// Names of tasks or jobs.
        tasks: Vec<String>,
        /// Name of the agent that they do not run on.
        agent: String,
    },
    /// A user takes agents or slots into service, or out of it.
    Serve {
        /// The agents or slots.
        places: Vec<ServiceTarget>,
        /// Whether they take work from now on.
        service: Service,
    },
    /// Connections of agents are lost.
    Lose(Vec<String>),
    /// Agents whose connection was lost connect again.
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
pub struct ServiceTarget {
    /// Name of the agent in the description.
    pub agent: String,
    /// The slot; `None` = the whole agent.
    pub slot: Option<u32>,
}

/// Tasks that are submitted together.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The job they belong to; created if it does not exist.
    pub job: String,
    /// Its settings; only a new job takes them.
    pub settings: JobSettings,
    /// Name of the task; `None` = the job's name and a number.
    pub name: Option<String>,
    /// How many tasks like this are submitted.
    pub tasks: u32,
    /// Their kind, which determines defaults.
    pub kind: TaskKind,
    /// Slots that each task asks for; 0 = none.
    pub slots: u32,
    /// Whether they can be asked to stop and start again later.
    pub preemptible: bool,
    /// Whether all slots of a task must be on one agent.
    pub single_node: bool,
    /// Agents they must not run on.
    pub exclude: BTreeSet<String>,
    /// How long each runs in total; `None` = until something ends it.
    pub duration: Option<Duration>,
    /// How long they take to save and leave when they are asked to stop; `None` = until [`Operation::Leave`].
    pub stops_in: Option<Duration>,
    /// Number of failures after which each asks for slots again.
    pub restarts: u32,
    /// How long they have waited already.
    pub waited: Duration,
    /// How long ago their job was submitted, if it is new; `None` = as long ago as they have waited.
    pub job_age: Option<Duration>,
    /// Where they already run; `None` = they wait for the planner.
    pub on: Option<Vec<Start>>,
    /// Whether they have been asked to stop already; only where they run.
    pub stopping: bool,
}

/// Slots of one agent that a task has from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Name of the agent that has the slots.
    pub agent: String,
    /// How many of its slots; `None` = all that the task asks for.
    pub slots: Option<u32>,
}

/// What a submission of a kind of task has where its description does not mention it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindDefaults {
    /// Slots that each task asks for; 0 = none.
    pub slots: u32,
    /// Whether it can be asked to stop and start again later.
    pub preemptible: bool,
    /// Whether its slots must be on one agent.
    pub single_node: bool,
    /// Number of failures after which it asks for slots again.
    pub restarts: u32,
}

impl KindDefaults {
    /// The defaults of tasks of a kind.
    pub const fn of(kind: TaskKind) -> Self {
        let service = Self {
            slots: 1,
            preemptible: false,
            single_node: true,
            restarts: 0,
        };
        match kind {
            TaskKind::Trial => Self {
                preemptible: true,
                single_node: false,
                restarts: 5,
                ..service
            },
            TaskKind::Generic => Self {
                preemptible: true,
                single_node: false,
                ..service
            },
            TaskKind::Notebook | TaskKind::Shell | TaskKind::Command => service,
            TaskKind::Tensorboard | TaskKind::CheckpointGc => Self {
                slots: 0,
                ..service
            },
        }
    }
}

/// What must hold. What is not mentioned is not checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expectation {
    /// By task or job: what has slots.
    pub running: BTreeMap<String, RunExpectation>,
    /// By task or job: what waits.
    pub waiting: BTreeMap<String, WaitExpectation>,
    /// Exactly the tasks that have been asked to stop.
    pub stopping: Option<BTreeSet<String>>,
    /// By job: slots in use by work that is not stopping.
    pub slots: BTreeMap<String, u64>,
    /// By task: slots on each agent, largest part first.
    pub parts: BTreeMap<String, Vec<u32>>,
    /// By job: number of jobs ahead in the queue; `None` = the policy has no order.
    pub ahead: BTreeMap<String, Option<u64>>,
    /// By job: number of tasks that completed.
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
pub enum RunExpectation {
    /// Exactly this many tasks run.
    Tasks(u64),
    /// At least one task runs, and its tasks run on exactly these agents.
    On(BTreeSet<String>),
    /// The running tasks have exactly so many slots, by agent.
    Slots(BTreeMap<String, u64>),
}

/// What is expected to wait.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitExpectation {
    /// Exactly this many tasks wait.
    Tasks(u64),
    /// At least one task waits, and all that wait do so for a reason of this kind.
    Because(String),
    /// This many tasks for each kind of reason, and no others.
    Kinds(BTreeMap<String, u64>),
    /// At least one task waits, and all that wait do so for a reason with these fields.
    Reason(BTreeMap<String, Value>),
}
