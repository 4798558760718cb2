//! Tasks: whatever runs containers.

use std::collections::BTreeMap;

use det_ids::{AllocationId, ContainerId, JobId, PlaceId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::agents::Device;
use crate::allocations::{AcceleratorData, Allocation};
use crate::page::{Failure, WaitReason};
use crate::wire::{Bytes, Int64, Timestamp, wire_enum};

wire_enum! {
    /// Kind of a task.
    pub enum TaskType("TASK_TYPE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// A task of a trial: one for each time that the trial is continued.
        Trial = 1 => "TRIAL",
        /// A notebook (JupyterLab) outside experiments.
        Notebook = 2 => "NOTEBOOK",
        /// A shell: an SSH server in a container.
        Shell = 3 => "SHELL",
        /// A command: a program that runs in a container until it ends.
        Command = 4 => "COMMAND",
        /// A TensorBoard server outside experiments.
        Tensorboard = 5 => "TENSORBOARD",
        /// Deletion of checkpoints.
        CheckpointGc = 6 => "CHECKPOINT_GC",
        /// A generic task.
        Generic = 7 => "GENERIC",
    }
}

wire_enum! {
    /// State of a task or allocation.
    pub enum TaskState("STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// An image is being pulled.
        Pulling = 1 => "PULLING",
        /// Its containers are being created and started.
        Starting = 2 => "STARTING",
        /// All of its containers run.
        Running = 3 => "RUNNING",
        /// It has ended.
        Terminated = 4 => "TERMINATED",
        /// It is ending.
        Terminating = 5 => "TERMINATING",
        /// Its service is not up yet.
        Waiting = 6 => "WAITING",
        /// Waits for slots.
        Queued = 7 => "QUEUED",
    }
}

wire_enum! {
    /// State of a generic task.
    pub enum GenericTaskState("GENERIC_TASK_STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// It runs, or waits for slots to run.
        Active = 1 => "ACTIVE",
        /// Ended before its time, as when a user killed it.
        Canceled = 2 => "CANCELED",
        /// Ended by itself, with exit code 0.
        Completed = 3 => "COMPLETED",
        /// Ended by a failure of its code or its container.
        Error = 4 => "ERROR",
        /// A user holds it: it asks for no slots until it is resumed.
        Paused = 5 => "PAUSED",
        /// Gives its slots back, to be paused.
        StoppingPaused = 6 => "STOPPING_PAUSED",
        /// Its containers are being ended, because a user killed it.
        StoppingCanceled = 7 => "STOPPING_CANCELED",
        /// Ends by itself. Not sent by this master.
        StoppingCompleted = 8 => "STOPPING_COMPLETED",
        /// Ends because of a failure. Not sent by this master.
        StoppingError = 9 => "STOPPING_ERROR",
    }
}

/// A task: what runs containers, in one attempt after another.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Task {
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Kind of the task.
    pub task_type: TaskType,
    /// Its attempts, running ones first, then the newest first: clients look at the first one.
    pub allocations: Vec<Allocation>,
    /// When it was created.
    pub start_time: Timestamp,
    /// When it ended; `None` = it has not.
    pub end_time: Option<Timestamp>,
    /// State of a generic task; `None` for every other kind.
    pub task_state: Option<GenericTaskState>,
    /// Configuration of a generic task, JSON text.
    pub config: Option<String>,
    /// Generic task it was forked from.
    #[schema(value_type = Option<String>)]
    pub forked_from: Option<TaskId>,
    /// Generic task it belongs to.
    #[schema(value_type = Option<String>)]
    pub parent_id: Option<TaskId>,
    /// Whether a generic task cannot be paused.
    pub no_pause: Option<bool>,
    /// Why it does not run yet (an addition of ours).
    pub wait_reason: Option<WaitReason>,
    /// Why it failed; `None` = it has not (an addition of ours).
    pub last_failure: Option<Failure>,
    /// When its log was deleted because it had been kept long enough; `None` = it was not (an addition of ours).
    pub logs_deleted_time: Option<Timestamp>,
    /// Name of its owner; `None` where it is no entry of a list, or the user exists no more (an addition of ours).
    pub username: Option<String>,
    /// Its description; `None` where it is no entry of a list (an addition of ours).
    pub description: Option<String>,
    /// Pool that it was last in; `None` where it is no entry of a list (an addition of ours).
    pub resource_pool: Option<String>,
    /// Its kind and id, as summaries of live tasks have it; `None` where it is no entry of a list (an addition of ours).
    pub name: Option<String>,
    /// Scheduler of its pool, as in [`AllocationSummary::scheduler_type`]; `None` where it is no entry of a list (an addition
    /// of ours).
    pub scheduler_type: Option<String>,
    /// Priority of its job; `None` where it is no entry of a list (an addition of ours).
    pub priority: Option<i64>,
    /// Which of two priorities goes first in its pool; `None` where it is no entry of a list (an addition of ours).
    pub priority_order: Option<String>,
}

/// Answer of `CleanupLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CleanupLogsResponse {
    /// Lines of logs that were deleted.
    pub removed_count: Int64,
}

/// Answer of `GetTask`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTaskResponse {
    /// The task that the path names.
    pub task: Task,
}

/// Query of `GetTasks`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTasksQuery {
    /// Also generic tasks that ended in the last 24 hours (an addition of ours).
    pub with_ended: bool,
}

/// Answer of `GetTasks`: live allocations only.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTasksResponse {
    /// What is known of each live allocation, by its id.
    #[schema(value_type = BTreeMap<String, AllocationSummary>)]
    pub allocation_id_to_summary: BTreeMap<AllocationId, AllocationSummary>,
    /// Generic tasks that are paused: they have no live allocation (an addition of ours).
    pub paused_tasks: Vec<Task>,
    /// Generic tasks that ended in the last 24 hours, if they were asked for (an addition of ours).
    pub ended_tasks: Vec<Task>,
}

/// A live allocation, queued or placed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationSummary {
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Job of its task (an addition of ours).
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Kind of the task and its id, or of which trial and experiment it is.
    pub name: String,
    /// When it entered the queue.
    pub registered_time: Option<Timestamp>,
    /// Resource pool that it waits or runs in.
    pub resource_pool: String,
    /// Slots that it asks for or has; 0 = it runs without slots.
    pub slots_needed: i64,
    /// How far it is, as answers about its task have it (an addition of ours).
    pub state: TaskState,
    /// Whether it has slots and has been asked to stop. An addition of ours.
    pub is_stopping: bool,
    /// Its containers; none while it waits.
    pub resources: Vec<ResourcesSummary>,
    /// How its pool serves the queue, such as `priority`.
    pub scheduler_type: String,
    /// Position in the queue's priorities; `None` = the pool does not use priorities.
    pub priority: Option<i64>,
    /// Which of two priorities is served first in the pool, as text for users: `lower goes first` (an addition of ours).
    pub priority_order: String,
    /// Ports that are reached through the master, once it runs.
    pub proxy_ports: Vec<ProxyPortConfig>,
    /// Kind of its task (an addition of ours).
    pub task_type: TaskType,
    /// Name of its owner; empty = the user exists no more (an addition of ours).
    pub username: String,
    /// Description of its task; empty for trials, which have none (an addition of ours).
    pub description: String,
    /// Why it does not run yet (an addition of ours).
    pub wait_reason: Option<WaitReason>,
}

/// One container of a live allocation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesSummary {
    /// Id of the container, under the name that calls of allocations use.
    #[schema(value_type = String)]
    pub resources_id: ContainerId,
    /// What runs it: `docker-container` or `process` on an agent, `k8s-job` in a Kubernetes cluster.
    pub resources_type: String,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Devices that the container has, by the id of the agent they are on.
    #[schema(value_type = BTreeMap<String, ResourcesSummaryDevices>)]
    pub agent_devices: BTreeMap<PlaceId, ResourcesSummaryDevices>,
    /// Id of the container again, the same as `resources_id`.
    #[schema(value_type = Option<String>)]
    pub container_id: Option<ContainerId>,
    /// Set once it has started.
    pub started: Option<ResourcesStarted>,
    /// Set once it has ended.
    pub exited: Option<ResourcesStopped>,
}

/// Devices of a container on one agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesSummaryDevices {
    /// Devices of the agent that the container has.
    pub devices: Vec<Device>,
}

/// How a started container is reached.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesStarted {
    /// Ports of the container that are reached from outside; empty = none.
    pub addresses: Vec<Address>,
    /// Name the container engine gives it.
    pub native_resources_id: String,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Address {
    /// Address inside the container's network; empty: this master does not report it.
    pub container_ip: String,
    /// Port that the program listens on inside the container.
    pub container_port: i64,
    /// Address of the machine that the port is reached at from outside.
    pub host_ip: String,
    /// Port at that address.
    pub host_port: i64,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesStopped {
    /// What went wrong; `None` = nothing.
    pub failure: Option<ResourcesFailure>,
}

wire_enum! {
    /// Kind of a container's failure.
    pub enum FailureType("FAILURE_TYPE_") {
        /// Not one of the others.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// It ran and ended with another code than 0.
        ResourcesFailed = 1 => "RESOURCES_FAILED",
        /// It was canceled before it started.
        ResourcesAborted = 2 => "RESOURCES_ABORTED",
        /// It was not there any more.
        ResourcesMissing = 3 => "RESOURCES_MISSING",
        /// The task was canceled before it started.
        TaskAborted = 4 => "TASK_ABORTED",
        /// The task failed without a code.
        TaskError = 5 => "TASK_ERROR",
        /// The agent went away while it ran.
        AgentFailed = 6 => "AGENT_FAILED",
        /// The agent could not start it.
        AgentError = 7 => "AGENT_ERROR",
        /// It could not be adopted after a restart of the master.
        RestoreError = 8 => "RESTORE_ERROR",
        /// A failure of a kind that the master does not know.
        UnknownError = 9 => "UNKNOWN_ERROR",
    }
}

/// A container's failure.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesFailure {
    /// Kind of the failure.
    pub failure_type: FailureType,
    /// What went wrong, a sentence for users.
    pub err_msg: String,
    /// Exit code, if it ran.
    pub exit_code: Option<i64>,
}

/// A port that is reached through the master.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyPortConfig {
    /// Name in the proxy's path.
    pub service_id: String,
    /// Port that the service listens on inside the container.
    pub port: i64,
    /// Raw TCP instead of HTTP.
    pub proxy_tcp: bool,
    /// Whether anyone can connect, without a token of the master.
    pub unauthenticated: bool,
}

/// Answer of `GetActiveTasksCount`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetActiveTasksCountResponse {
    /// Commands that have not ended.
    pub commands: i64,
    /// Notebooks that have not ended.
    pub notebooks: i64,
    /// Shells that have not ended.
    pub shells: i64,
    /// `TensorBoards` that have not ended.
    pub tensorboards: i64,
}

/// Answer of `GetTaskContextDirectory`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTaskContextDirectoryResponse {
    /// The files, a gzip tar; empty = none.
    pub b64_tgz: Bytes,
}

/// Answer of `GetTaskAcceleratorData`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTaskAcceleratorDataResponse {
    /// One entry for each container of each attempt.
    pub accelerator_data: Vec<AcceleratorData>,
}
