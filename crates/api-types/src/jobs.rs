//! The job queue.

use det_ids::{AllocationId, JobId, PlaceId, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination, WaitReason};
use crate::pools::SchedulerType;
use crate::wire::{Float, Timestamp, wire_enum};

wire_enum! {
    /// State of a job.
    pub enum JobState("STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// No task of it has slots: all of it waits, or is paused.
        Queued = 1 => "QUEUED",
        /// At least one task of it has slots.
        Scheduled = 2 => "SCHEDULED",
        /// Something of it runs in a gap.
        ScheduledBackfilled = 3 => "SCHEDULED_BACKFILLED",
    }
}

wire_enum! {
    /// Kind of a job.
    pub enum JobType("TYPE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// An experiment with all its trials.
        Experiment = 1 => "EXPERIMENT",
        /// A notebook (JupyterLab) outside experiments.
        Notebook = 2 => "NOTEBOOK",
        /// A TensorBoard server outside experiments.
        Tensorboard = 3 => "TENSORBOARD",
        /// A shell: an SSH server in a container.
        Shell = 4 => "SHELL",
        /// A command: a program that runs in a container until it ends.
        Command = 5 => "COMMAND",
        /// Deletion of checkpoints.
        CheckpointGc = 6 => "CHECKPOINT_GC",
        /// Something outside the cluster's own schedulers.
        External = 7 => "EXTERNAL",
        /// A generic task.
        Generic = 8 => "GENERIC",
    }
}

/// State and position of a job in the queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSummary {
    /// Whether anything of it runs.
    pub state: JobState,
    /// Jobs before it; −1 = not known.
    pub jobs_ahead: i64,
}

/// An entry of the job queue: an experiment, or a task that works for none.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Job {
    /// State and position in the queue.
    pub summary: JobSummary,
    /// Kind of the job.
    #[serde(rename = "type")]
    pub kind: JobType,
    /// When it was submitted.
    pub submission_time: Timestamp,
    /// User name of the owner.
    pub username: String,
    /// Id of the user who owns it.
    #[schema(value_type = i64)]
    pub user_id: UserId,
    /// Resource pool in whose queue it is.
    pub resource_pool: String,
    /// Whether it can be stopped and resumed.
    pub is_preemptible: bool,
    /// Position in the queue's priorities; `None` = the pool does not use priorities.
    pub priority: Option<i64>,
    /// Share in a fair-share pool.
    pub weight: Float,
    /// Experiment number or task id.
    pub entity_id: String,
    /// Id of the job, a UUID.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Slots it asks for at present.
    pub requested_slots: i64,
    /// Slots that its running tasks hold now.
    pub allocated_slots: i64,
    /// Name of the experiment; of another task its name, else its kind and id.
    pub name: String,
    /// How far it is, from 0 to 1.
    pub progress: Float,
    /// Number of the workspace that it counts for.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Why it does not run yet (an addition of ours).
    pub wait_reason: Option<WaitReason>,
}

/// A job the caller may know little about.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitedJob {
    /// State and position in the queue.
    pub summary: Option<JobSummary>,
    /// Kind of the job.
    #[serde(rename = "type")]
    pub kind: JobType,
    /// Resource pool in whose queue it is.
    pub resource_pool: String,
    /// Whether it can be stopped and resumed.
    pub is_preemptible: bool,
    /// Place among the queue's priorities.
    pub priority: Option<i64>,
    /// Share in a fair-share pool.
    pub weight: Option<Float>,
    /// Id of the job, a UUID.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Slots it asks for at present.
    pub requested_slots: i64,
    /// Slots that its running tasks hold now.
    pub allocated_slots: i64,
    /// How far it is, from 0 to 1; `None` = not known.
    pub progress: Option<Float>,
    /// Number of the workspace that it counts for.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
}

/// A job as far as the caller may see it: exactly one member is set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RbacJob {
    /// The whole job, for callers who may see it; `None` = see `limited`.
    pub full: Option<Job>,
    /// What other callers may know of the job; `None` = see `full`.
    pub limited: Option<LimitedJob>,
}

/// Query of `GetJobs` and `GetJobsV2`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetJobsQuery {
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = 100.
    pub limit: i64,
    /// Only this pool; empty = the default compute pool.
    pub resource_pool: String,
    /// Direction, by place in the queue.
    pub order_by: OrderBy,
    /// Only jobs in one of these states; empty = in any.
    pub states: Vec<JobState>,
}

/// Answer of `GetJobs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetJobsResponse {
    /// Position of the page in the whole list.
    pub pagination: Pagination,
    /// The page's jobs.
    pub jobs: Vec<Job>,
}

/// Answer of `GetJobsV2`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetJobsV2Response {
    /// Position of the page in the whole list.
    pub pagination: Pagination,
    /// The page's jobs.
    pub jobs: Vec<RbacJob>,
}

/// Query of `GetJobQueueStats`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetJobQueueStatsQuery {
    /// Only these pools; none = all.
    pub resource_pools: Vec<String>,
}

/// Counts over a pool's queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStats {
    /// Jobs of which nothing runs.
    pub queued_count: i64,
    /// Jobs of which something runs.
    pub scheduled_count: i64,
}

/// Time spent in the queue in one period.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregateQueueStats {
    /// The day in UTC, `YYYY-MM-DD`.
    pub period_start: String,
    /// Mean seconds in the queue.
    pub seconds: Float,
}

/// Statistics of one pool's queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RpQueueStat {
    /// Numbers of jobs in the queue, by state.
    pub stats: QueueStats,
    /// Name of the resource pool.
    pub resource_pool: String,
    /// Time in the queue, by day.
    pub aggregates: Vec<AggregateQueueStats>,
}

/// Answer of `GetJobQueueStats`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetJobQueueStatsResponse {
    /// One entry for each pool.
    pub results: Vec<RpQueueStat>,
}

/// One change of the queue: exactly one of the optional members is set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueControl {
    /// Id of the job, a UUID.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Id of the job to move it directly before; `None` = not so.
    #[schema(value_type = Option<String>)]
    pub ahead_of: Option<JobId>,
    /// Id of the job to move it directly behind; `None` = not so.
    #[schema(value_type = Option<String>)]
    pub behind_of: Option<JobId>,
    /// Pool to move the job to; running trials save, exit and ask again there.
    pub resource_pool: Option<String>,
    /// New priority, 1 to 99; `priority_order` of the pool defines which goes first.
    pub priority: Option<i64>,
    /// New weight in a fair-share pool, finite and above 0.
    pub weight: Option<Float>,
}

/// Body of `UpdateJobQueue`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateJobQueueRequest {
    /// The changes, in order.
    pub updates: Vec<QueueControl>,
}

/// What a resource pool has at present.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolSummary {
    /// Name of the resource pool.
    pub name: String,
    /// How it decides, in a sentence.
    pub scheduling: String,
    /// The rule by which it does.
    pub scheduler_type: SchedulerType,
    /// Which of two priorities is served first in this pool, as text for users: `lower goes first`.
    pub priority_order: String,
    /// Agents that are connected and take new work.
    pub agents: i64,
    /// Agents that are draining, disabled or away.
    pub agents_out_of_service: i64,
    /// Slots of the agents that take work.
    pub slots: i64,
    /// Those of them that are free.
    pub free_slots: i64,
    /// What is wrong with agents, and with devices, that are out of service for that, a line each; at most a hundred.
    pub faults: Vec<String>,
    /// Agents of the pool that are away, by id; at most a hundred.
    pub agents_away: Vec<AwayAgent>,
    /// Agents of the pool that were given up since an hour before the job began to wait, and are not back, newest first; at
    /// most a hundred. Empty for a job that does not wait.
    pub agents_lost: Vec<LostAgent>,
    /// How long the master waits for an agent of the pool that is away, in seconds: `agent_reconnect_wait` of the pool.
    pub reconnect_wait_seconds: i64,
}

/// An agent that was connected and is not, and that the master waits for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwayAgent {
    /// Id of the agent.
    #[schema(value_type = String)]
    pub agent: PlaceId,
    /// Since when it is away.
    pub since: Timestamp,
    /// Until when the master waits for it; what it has is given up after that.
    pub waited_until: Timestamp,
    /// What the job has on it, as labels for users; at most a hundred.
    pub holds: Vec<String>,
}

/// An agent that was given up: its slots are missing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LostAgent {
    /// Id of the agent.
    #[schema(value_type = String)]
    pub agent: PlaceId,
    /// Slots that it had when it was given up.
    pub slots: i64,
    /// When it was given up.
    pub at: Timestamp,
    /// Why it was given up, a sentence for users.
    pub reason: String,
}

/// A job that is served before another one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobAhead {
    /// Id of the job, a UUID.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Experiment number or task id.
    pub entity_id: String,
    /// What users call it: `experiment 3`, or the kind and the id of a task.
    pub label: String,
    /// Name of the experiment; of another task its name, else its kind and id.
    pub name: String,
    /// User name of the owner.
    pub username: String,
    /// Its priority; lower is served first on agents. Of no consequence under other rules than priority.
    pub priority: i64,
    /// Its weight. Of no consequence under other rules than fair share.
    pub weight: Float,
    /// Slots it asks for, those it has included.
    pub requested_slots: i64,
    /// Slots that its running tasks hold now.
    pub allocated_slots: i64,
}

/// Slots of the pool that a running task holds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotHolder {
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Label for users, `trial 7 of experiment 3`; empty = only its id is known.
    pub label: String,
    /// Id of the job that the allocation belongs to, a UUID.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Name of its job: of the experiment, or of the task.
    pub name: String,
    /// User name of the owner.
    pub username: String,
    /// Its job's priority; lower is more important on agents.
    pub priority: i64,
    /// Share of its job in a fair-share pool, above 0; of no consequence under other rules.
    pub weight: Float,
    /// Slots it holds.
    pub slots: i64,
    /// Pool that it runs in.
    pub resource_pool: String,
    /// Agents it runs on, where that is the pool of the question.
    #[schema(value_type = Vec<String>)]
    pub agents: Vec<PlaceId>,
    /// Whether it can be preempted.
    pub is_preemptible: bool,
    /// Whether it has been asked to stop.
    pub is_stopping: bool,
    /// Since when it has them.
    pub since: Option<Timestamp>,
}

/// A task of a job that waits for slots.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingTask {
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Label for users, `trial 7 of experiment 3`; empty = only its id is known.
    pub label: String,
    /// Slots it asks for; 0 = a place for a task without slots.
    pub slots: i64,
    /// When it entered the queue.
    pub since: Timestamp,
    /// Pool that it waits in.
    pub resource_pool: String,
    /// Why; `None` = the scheduler has not looked at it yet.
    pub wait_reason: Option<WaitReason>,
    /// When it may start if what runs ends as its progress lets expect, and nothing else is submitted; `None` =
    /// unknown.
    pub estimated_start: Option<Timestamp>,
    /// What the estimate rests on, or why there is none.
    pub estimate_basis: String,
    /// For each of the other pools that its configuration names, a sentence why it does not run there.
    pub other_pools: Vec<String>,
    /// How the attempt before this one ended, as a sentence; empty = this is the first, or it ended without a reason.
    pub last_end: String,
    /// When it ended; `None` = as above.
    pub last_ended_at: Option<Timestamp>,
}

/// Answer of `ExplainJob`: the complete explanation of why a job runs or waits.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainJobResponse {
    /// State of the job, in a sentence.
    pub summary: String,
    /// The job that the path names.
    pub job: JobAhead,
    /// The pool that it is in.
    pub pool: PoolSummary,
    /// Its tasks that wait, in the order in which they are served.
    pub waiting: Vec<WaitingTask>,
    /// Its running allocations, with the slots that they hold.
    pub running: Vec<SlotHolder>,
    /// The jobs that are served before it, the last of them directly before it; at most a hundred.
    pub ahead: Vec<JobAhead>,
    /// How many jobs are served before it, those included that `ahead` leaves out.
    pub ahead_count: i64,
    /// Others that hold slots of the pool, the largest first; at most a hundred.
    pub held_by: Vec<SlotHolder>,
    /// What the limit of its workspace counts in other pools, where that limit is what it waits for: the largest first,
    /// at most a hundred.
    pub workspace_held_in_other_pools: Vec<SlotHolder>,
    /// The last lines of the code that failed, if the job has ended in an error and they are known.
    pub last_lines: Vec<String>,
}
