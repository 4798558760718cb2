//! What the processes of a trial do, and which rank keeps the others waiting: our own addition.

use det_ids::{AllocationId, ContainerId, PlaceId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Timestamp;

/// One process of a task: what it is, what it waits for and how much it computes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskProcess {
    /// Its id, as the container's processes see it.
    pub pid: i64,
    /// Id of its parent process, as the container's processes see it.
    pub parent: i64,
    /// Its program; of an interpreter also the script or module.
    pub command: String,
    /// Rank that its launcher has given it.
    pub rank: Option<i64>,
    /// The kernel's letter for its main thread: R, S, D, T, Z.
    pub state: String,
    /// Function of the kernel that its main thread waits in; empty = none, or not to be seen.
    pub wait_channel: String,
    /// System call of its main thread; empty = none, or not to be seen.
    pub system_call: String,
    /// Number of its threads, the main one included.
    pub threads: i64,
    /// Microseconds of processors that it has used.
    pub cpu_micros: i64,
    /// Those within the time that it was watched.
    pub cpu_window_micros: i64,
    /// Functions that the main thread of a Python process is in, the innermost first.
    pub stack: Vec<String>,
    /// Where the stack comes from, or why there is none.
    pub stack_source: String,
}

/// What the processes of one container do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskDiagnosis {
    /// Microseconds for which they were watched.
    pub window_micros: i64,
    /// Processes of the task, ascending by id; those beyond the limit count as `omitted`.
    pub processes: Vec<TaskProcess>,
    /// Processes that are left out.
    pub omitted: i64,
}

/// Body of `PostAllocationDiagnosis`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostAllocationDiagnosisRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// The container again; the one in the path counts.
    #[schema(value_type = String)]
    pub resources_id: ContainerId,
    /// What the processes of this container do.
    pub diagnosis: TaskDiagnosis,
}

/// Body of `DiagnoseTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiagnoseTrialRequest {
    /// The trial again; the one in the path counts.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// Seconds to wait for the answers of its containers, 0 to 60; 15 unless given.
    pub timeout_seconds: Option<i64>,
}

/// One rank of a trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RankDiagnosis {
    /// Its number: what its launcher gave it, else that of its container.
    pub rank: i64,
    /// Number of its container in the allocation.
    pub container_rank: i64,
    /// Id of the container that the process runs in.
    #[schema(value_type = String)]
    pub container_id: ContainerId,
    /// The agent that it runs on.
    #[schema(value_type = String)]
    pub agent_id: PlaceId,
    /// Whether it keeps the others waiting, as far as can be seen.
    pub odd: bool,
    /// What it does, as a part of a sentence: `sleeps`.
    pub activity: String,
    /// Where it waits: a system call, else a function of the kernel; empty = nowhere, or not to be seen.
    pub waits_in: String,
    /// Why nothing is known of it; empty = something is.
    pub problem: String,
    /// The process that was looked at.
    pub process: Option<TaskProcess>,
    /// Microseconds for which it was watched.
    pub window_micros: i64,
    /// When its container last wrote into the log, among the newest lines of it.
    pub last_log_at: Option<Timestamp>,
    /// When the trial last reported, since this master has started. Mostly one rank reports for all.
    pub last_report_at: Option<Timestamp>,
}

/// Answer of `DiagnoseTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiagnoseTrialResponse {
    /// Number of the trial.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// The attempt that was looked at.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Seconds for which it has reported nothing and written nothing; `None` = this is not counted yet.
    pub silent_seconds: Option<i64>,
    /// What follows from all this about the trial, a sentence for users.
    pub conclusion: String,
    /// The ranks in their order.
    pub ranks: Vec<RankDiagnosis>,
}
