//! Log records: shipping and reading.

mod incoming;

use det_ids::{AgentId, AllocationId, ContainerId, TaskId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::OrderBy;
use crate::wire::{SalvagedElement, Timestamp, wire_enum};

pub use incoming::{
    Id, IncomingLogs, PlainLevel, PlainLog, PlainLogs, PlainTime, Text, read_task_logs,
};

wire_enum! {
    /// Severity of a record.
    pub enum LogLevel("LOG_LEVEL_") {
        /// Not given: the line has no level.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The finest detail, below `DEBUG`.
        Trace = 1 => "TRACE",
        /// Detail for developers who search for an error.
        Debug = 2 => "DEBUG",
        /// Normal operation: no action is needed.
        Info = 3 => "INFO",
        /// Degraded operation: it goes on, but something should be looked at.
        Warning = 4 => "WARNING",
        /// An operation failed; the program goes on.
        Error = 5 => "ERROR",
        /// A failure after which the program cannot go on.
        Critical = 6 => "CRITICAL",
    }
}

/// One record on its way in.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskLog {
    /// Must be unset: the store numbers records.
    pub id: Option<i64>,
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`; `None` = not given.
    #[schema(value_type = Option<String>)]
    pub allocation_id: Option<AllocationId>,
    /// The agent that the container ran on.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Id of the container that wrote it; `None` = not given.
    #[schema(value_type = Option<String>)]
    pub container_id: Option<ContainerId>,
    /// By which process of a distributed task, from 0.
    pub rank_id: Option<i64>,
    /// When it was printed; `None` = when it arrives.
    pub timestamp: Option<Timestamp>,
    /// Severity, if the line contains one.
    pub level: Option<LogLevel>,
    /// Text of the line.
    pub log: String,
    /// Which program wrote it: `task`, `master`, `agent`.
    pub source: Option<String>,
    /// Stream that it was written to: `stdout` or `stderr`; `None` = not known.
    pub stdtype: Option<String>,
}

/// Identity of a shipped batch, for senders that may send it twice (an addition of ours).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpoolPosition {
    /// The sender's spool, unique over the cluster.
    pub id: String,
    /// Sequence number of the batch's first record in that spool; the others follow without gaps.
    pub first: u64,
    /// Periods in which the spool's disk was full, reported by some of the records.
    pub outages: Vec<SpoolOutage>,
}

/// A time in which a spool's disk took no records (an addition of ours).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpoolOutage {
    /// Sequence number of the record that reports it.
    pub sequence: u64,
    /// When the first record was refused.
    pub since: Timestamp,
    /// When it was over, or was not waited for any longer.
    pub until: Timestamp,
    /// How many log lines were lost in that time.
    pub lost: u64,
    /// The error of the disk.
    pub cause: String,
}

/// Body of `PostTaskLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostTaskLogsRequest {
    /// The records, all of one task. Broken ones are dropped, not refused.
    #[schema(value_type = Vec<TaskLog>)]
    pub logs: Vec<SalvagedElement<TaskLog>>,
    /// Position of these records in the sender's spool; `None` = repeated records cannot be recognised.
    pub spool: Option<SpoolPosition>,
}

/// One record of `POST /task-logs`, whose body is a list of them (read it as `Vec<Salvaged<UnmanagedLog>>`). Sent by
/// trials that run outside the cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnmanagedLog {
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The attempt; unmanaged trials have none.
    #[schema(value_type = Option<String>)]
    pub allocation_id: Option<AllocationId>,
    /// The agent that the container ran on.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Id of the container that wrote it; `None` = not given.
    #[schema(value_type = Option<String>)]
    pub container_id: Option<ContainerId>,
    /// Rank, as it should be named.
    pub rank_id: Option<i64>,
    /// Rank, as the client names it.
    pub rank: Option<i64>,
    /// The client sends one start-up time for all records of a run.
    pub timestamp: Option<Timestamp>,
    /// Severity of the line; `None` = it has none.
    pub level: Option<LogLevel>,
    /// Text of the line.
    pub log: String,
    /// Program that wrote it, such as `task`; `None` = not given.
    pub source: Option<String>,
    /// Stream that it was written to: `stdout` or `stderr`; `None` = not known.
    pub stdtype: Option<String>,
}

/// Query of `TaskLogs` and `TrialLogs`. Filters combine with and; the values of one filter with or.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// Records at most; 0 = all. Not together with `follow`.
    pub limit: i64,
    /// Keep the stream open until the task has ended.
    pub follow: bool,
    /// Only these attempts (tasks only).
    #[schema(value_type = Vec<String>)]
    #[param(value_type = Vec<String>)]
    pub allocation_ids: Vec<AllocationId>,
    /// Only records from these agents; empty = from all.
    #[schema(value_type = Vec<String>)]
    #[param(value_type = Vec<String>)]
    pub agent_ids: Vec<AgentId>,
    /// Only records from these containers; empty = from all.
    #[schema(value_type = Vec<String>)]
    #[param(value_type = Vec<String>)]
    pub container_ids: Vec<ContainerId>,
    /// Only these ranks; −1 = records without one.
    pub rank_ids: Vec<i64>,
    /// Only records of exactly these severities; empty = of all.
    pub levels: Vec<LogLevel>,
    /// Only records of these streams, `stdout` or `stderr`; empty = of all.
    pub stdtypes: Vec<String>,
    /// Only records that these programs wrote, such as `task`; empty = of all.
    pub sources: Vec<String>,
    /// Only records up to this time, itself included.
    pub timestamp_before: Option<Timestamp>,
    /// Only records after this time, itself excluded.
    pub timestamp_after: Option<Timestamp>,
    /// Direction of the order in which records arrived; ascending gives the oldest first.
    pub order_by: OrderBy,
    /// Only records with this text, in any letter case.
    pub search_text: String,
    /// Read `search_text` as a regular expression.
    pub enable_regex: bool,
}

/// One message of the `TaskLogs` stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskLogsResponse {
    /// Number of the record, as text.
    pub id: String,
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// When it was printed, as its sender reported, else when it arrived.
    pub timestamp: Timestamp,
    /// The line as clients print it, line feed included.
    pub message: String,
    /// Severity of the line.
    pub level: LogLevel,
    /// Text of the line without what `message` adds to it.
    pub log: String,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`; `None` = not given.
    #[schema(value_type = Option<String>)]
    pub allocation_id: Option<AllocationId>,
    /// The agent that the container ran on.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Id of the container that wrote it; `None` = not known.
    #[schema(value_type = Option<String>)]
    pub container_id: Option<ContainerId>,
    /// Rank of the process that wrote it in a distributed task, from 0; `None` = not known.
    pub rank_id: Option<i64>,
    /// Program that wrote it: `task`, `master`, `agent`; `None` = not known.
    pub source: Option<String>,
    /// Stream that it was written to: `stdout` or `stderr`; `None` = not known.
    pub stdtype: Option<String>,
}

/// One message of the `TrialLogs` stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialLogsResponse {
    /// Number of the record, as text.
    pub id: String,
    /// Number of the trial.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// When it was printed, as its sender reported, else when it arrived.
    pub timestamp: Timestamp,
    /// The line as clients print it, line feed included.
    pub message: String,
    /// Severity of the line.
    pub level: LogLevel,
    /// The agent that the container ran on.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Id of the container that wrote it; `None` = not known.
    #[schema(value_type = Option<String>)]
    pub container_id: Option<ContainerId>,
    /// Rank of the process that wrote it in a distributed task, from 0; `None` = not known.
    pub rank_id: Option<i64>,
    /// Text of the line without what `message` adds to it.
    pub log: Option<String>,
    /// Program that wrote it: `task`, `master`, `agent`; `None` = not known.
    pub source: Option<String>,
    /// Stream that it was written to: `stdout` or `stderr`; `None` = not known.
    pub stdtype: Option<String>,
}

/// Query of `TaskLogsFields` and `TrialLogsFields`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct LogFieldsQuery {
    /// Keep the stream open and repeat what changed.
    pub follow: bool,
}

/// One message of the `TaskLogsFields` stream: the distinct values seen so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskLogsFieldsResponse {
    /// Allocations that occur in the log.
    #[schema(value_type = Vec<String>)]
    pub allocation_ids: Vec<AllocationId>,
    /// Agents that occur in the log.
    #[schema(value_type = Vec<String>)]
    pub agent_ids: Vec<AgentId>,
    /// Containers that occur in the log.
    #[schema(value_type = Vec<String>)]
    pub container_ids: Vec<ContainerId>,
    /// Ranks that occur in the log.
    pub rank_ids: Vec<i64>,
    /// Streams that occur in the log.
    pub stdtypes: Vec<String>,
    /// Programs that occur in the log.
    pub sources: Vec<String>,
}

/// One message of the `TrialLogsFields` stream: the distinct values seen so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialLogsFieldsResponse {
    /// Agents that occur in the log.
    #[schema(value_type = Vec<String>)]
    pub agent_ids: Vec<AgentId>,
    /// Containers that occur in the log.
    #[schema(value_type = Vec<String>)]
    pub container_ids: Vec<ContainerId>,
    /// Ranks that occur in the log.
    pub rank_ids: Vec<i64>,
    /// Streams that occur in the log.
    pub stdtypes: Vec<String>,
    /// Programs that occur in the log.
    pub sources: Vec<String>,
}

/// Query of `MasterLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct MasterLogsQuery {
    /// Records to skip; negative counts from the end.
    pub offset: i64,
    /// Records at most; 0 = all.
    pub limit: i64,
    /// Keep the stream open and send further records as they are written.
    pub follow: bool,
    /// Only records that concern this trial, its experiment or its tasks; 0 = all. An addition of ours.
    #[schema(value_type = i64)]
    #[param(value_type = i64)]
    pub trial_id: TrialId,
}

/// A record of the master's own log.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogEntry {
    /// Number of the record in this process.
    pub id: i64,
    /// Text of the line.
    pub message: String,
    /// When the line was written.
    pub timestamp: Timestamp,
    /// Severity of the line.
    pub level: LogLevel,
}

/// One message of the `MasterLogs` stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MasterLogsResponse {
    /// The next record of the master's log.
    pub log_entry: LogEntry,
}
