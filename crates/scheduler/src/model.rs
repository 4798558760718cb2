//! What the scheduler is told: a pool, what runs in it, what waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{AgentId, AllocationId, JobId, Micros, SlotId, TaskId, WorkspaceId};

/// One resource pool at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PoolSnapshot {
    /// How the pool decides.
    pub settings: PoolSettings,
    /// All agents of the pool, in any order; ids are unique.
    pub agents: Vec<AgentSnapshot>,
    /// All allocations that hold something in the pool, in any order, those that are stopping included.
    pub running: Vec<RunningAllocation>,
}

/// How a pool decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// The rule by which requests are ordered and preempted.
    pub policy: Policy,
    /// Which of several agents that fit is taken.
    pub fitting: Fitting,
    /// Whether one allocation may span agents of different sizes. Equal sizes are preferred either way.
    pub allow_heterogeneous_fits: bool,
    /// How long a request may be passed by later ones of its own priority. After that it reserves the agents it is
    /// closest to getting. `None`: it may be passed for ever.
    pub reserve_after: Option<Duration>,
    /// Machines that a provisioner can add; `None` for a pool of fixed agents.
    pub provisionable: Option<Provisionable>,
}

impl Default for PoolSettings {
    /// Priority without preemption, best fit, equal agents only, reservation after ten minutes, fixed agents.
    fn default() -> Self {
        Self {
            policy: Policy::Priority {
                preemption: false,
                default_priority: 42,
            },
            fitting: Fitting::Best,
            allow_heterogeneous_fits: false,
            reserve_after: Some(Duration::from_mins(10)),
            provisionable: None,
        }
    }
}

/// The rule of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Strict priorities, 1 (most important) to 99.
    Priority {
        /// Whether running work may be asked to stop for more important requests.
        preemption: bool,
        /// Priority of a job that is missing from [`Queue::jobs`].
        default_priority: u8,
    },
    /// Slots are divided among jobs by weight times demand. Running work of a job above its share makes room for one
    /// below it; what nobody is entitled to is handed out until somebody is.
    FairShare,
    /// Jobs start one task each in turn, those with the fewest slots first. Nothing is preempted.
    RoundRobin,
}

/// Which of several agents that fit is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fitting {
    /// The fullest one: keeps whole agents free for large requests.
    Best,
    /// The emptiest one: spreads load.
    Worst,
}

/// What a provisioner may add to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provisionable {
    /// Slots of one instance; 0 for a type without slots.
    pub slots_per_instance: u32,
    /// Most instances at any time, those present included.
    pub max_instances: u32,
}

/// One agent of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSnapshot {
    /// Which.
    pub id: AgentId,
    /// Whether it takes work.
    pub state: AgentState,
    /// Its devices, in any order; ids are unique on the agent.
    pub slots: Vec<SlotSnapshot>,
    /// Most zero-slot containers at a time.
    pub aux_limit: u32,
    /// Zero-slot containers on it now.
    pub aux_used: u32,
}

/// Whether an agent takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentState {
    /// Takes new work.
    Enabled,
    /// A person asked it to finish what it has and take nothing new.
    Draining,
    /// A person took it out of service.
    Disabled,
    /// Its connection is lost and may come back by itself; what runs on it is kept, nothing new starts.
    Disconnected,
}

/// One device of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Number on its agent.
    pub id: SlotId,
    /// Who has it.
    pub state: SlotState,
}

/// Who has a slot. A slot is offered only when it is [`SlotState::Free`] and no running allocation names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody.
    Free,
    /// An allocation.
    Held(AllocationId),
    /// Not offered to new work; an allocation may still have it.
    Draining(Option<AllocationId>),
    /// Out of service; an allocation that is being killed may still have it.
    Disabled(Option<AllocationId>),
}

/// An allocation that holds slots, or an auxiliary place, of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningAllocation {
    /// What it asked for.
    pub request: Request,
    /// What it still holds: slots by agent. A zero-slot allocation has one part without slots. Containers that have
    /// exited are not in it any more.
    pub placement: Vec<(AgentId, Vec<SlotId>)>,
    /// When it was given its slots; of one plan's, later for those that stand later in it. Of equally good victims the one
    /// started last is stopped: it loses least.
    pub started_at: Micros,
    /// Whether it has been asked to stop.
    pub progress: Progress,
}

/// Whether a running allocation has been asked to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It runs (or still starts).
    Active,
    /// A plan asked it to stop so that this allocation can start. Its room belongs to that one until it has exited, as
    /// long as that one waits (and, under fair share, is within its job's share).
    PreemptedFor(AllocationId),
    /// It stops for another reason: pause, kill, a lowered cap, a disabled agent. Its room is for anybody.
    Stopping,
}

/// What waits for the pool.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    /// Waiting requests, in any order. Allocation ids are unique and none of them is running.
    pub requests: Vec<Request>,
    /// The jobs of waiting *and* running allocations. A missing one has the pool's default priority, no cap, and counts
    /// as submitted when its allocation was requested.
    pub jobs: BTreeMap<JobId, Job>,
    /// The workspaces that have a limit.
    pub workspaces: BTreeMap<WorkspaceId, WorkspaceLimit>,
}

/// How many slots the jobs of a workspace may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceLimit {
    /// Most slots in use at a time, in all pools together.
    pub max_slots: u32,
    /// Slots that its jobs use in other pools now.
    pub in_other_pools: u32,
}

impl WorkspaceLimit {
    /// Slots that it may use in this pool.
    pub(crate) fn here(self) -> u32 {
        self.max_slots.saturating_sub(self.in_other_pools)
    }
}

/// One wish for slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The attempt it is for.
    pub allocation_id: AllocationId,
    /// The task of that attempt.
    pub task_id: TaskId,
    /// The job it counts for.
    pub job_id: JobId,
    /// Slots; 0 asks for one auxiliary place.
    pub slots: u32,
    /// Whether all slots must be on one agent.
    pub single_agent: bool,
    /// Whether it can be asked to stop and be started again later.
    pub preemptible: bool,
    /// Agents it must not run on.
    pub excluded_agents: BTreeSet<AgentId>,
    /// When it began to wait.
    pub requested_at: Micros,
}

/// An entry of the job queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// 1 to 99, **lower is more important**. Only the priority rule looks at it.
    pub priority: u8,
    /// Share weight, above 0 and finite; anything else counts as 1. Only fair share looks at it.
    pub weight: f64,
    /// Most slots in use at a time by all its allocations; `None` = no cap.
    pub max_slots: Option<u32>,
    /// When the job was submitted.
    pub submitted_at: Micros,
    /// Place in the queue if it is another one than that of its submission: on the scale of submission times in
    /// microseconds, smaller is earlier. Set by [`crate::move_job`].
    pub position: Option<i64>,
    /// Whether somebody moved it. Only then may it stop, or be stopped for, a job of the same priority.
    pub moved: bool,
    /// The workspace it counts for; `None` = one without a limit, whichever.
    pub workspace: Option<WorkspaceId>,
}
