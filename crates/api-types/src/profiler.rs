//! System metrics of trials and other tasks: as supervisors report them, and as the older operations of the profiler give them.

use det_ids::{AgentId, ContainerId, ReportId, RunId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::wire::{Float, Object, Timestamp, wire_enum};

/// Body of `ReportSystemMetrics`, an addition of ours: what the supervisor of one container has measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportSystemMetricsRequest {
    /// Which run of the trial reports; must be its current one.
    #[schema(value_type = i64)]
    pub trial_run_id: RunId,
    /// The agent whose machine was measured.
    #[schema(value_type = String)]
    pub agent_id: AgentId,
    /// Whether some of the reports may have been sent before, without an answer.
    pub again: bool,
    /// What was measured, oldest first.
    pub reports: Vec<SystemMetricsReport>,
}

/// What a supervisor measured on its machine, as averages over some seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SystemMetricsReport {
    /// Identity of the report within the run, so that a repeated one is not a second point.
    #[schema(value_type = String)]
    pub report_id: ReportId,
    /// When the seconds that it is an average of were over.
    pub time: Timestamp,
    /// Values by name, or by label and name, for each of the groups `gpu`, `cpu`, `memory`, `disk` and `network`.
    pub groups: Object,
}

/// Answer of `ReportSystemMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportSystemMetricsResponse {
    /// Whether further reports are wanted. Not when the trial's own code reports the same of this agent: then these were
    /// not stored either.
    pub collect: bool,
}

/// Body of `ReportTaskSystemMetrics`, an addition of ours: what the supervisor of one container of a launched task has
/// measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportTaskSystemMetricsRequest {
    /// The agent whose machine was measured.
    #[schema(value_type = String)]
    pub agent_id: AgentId,
    /// What was measured, oldest first. The id of each is that of the container, `-`, and the report's number in it, from 1:
    /// what is sent again is stored once.
    pub reports: Vec<SystemMetricsReport>,
}

/// Query of `GetTaskSystemMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTaskSystemMetricsQuery {
    /// Only this group; empty = every one.
    pub group: String,
    /// Where to go on: `next` of the answer before; 0 = at the beginning.
    pub after: i64,
}

/// Answer of `GetTaskSystemMetrics`, an addition of ours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTaskSystemMetricsResponse {
    /// What was measured, in the order in which it was stored.
    pub metrics: Vec<TaskSystemMetrics>,
    /// Where to go on; absent = that was all so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

/// Averages over some seconds of one group in one container of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskSystemMetrics {
    /// One of `gpu`, `cpu`, `memory`, `disk` and `network`.
    pub group: String,
    /// When the seconds that it is an average of were over.
    pub time: Timestamp,
    /// Id of the container.
    #[schema(value_type = String)]
    pub container_id: ContainerId,
    /// Values by agent and name, or by agent, label and name, as metrics of trials have them.
    pub values: Object,
}

wire_enum! {
    /// What a series of readings is about.
    pub enum ProfilerMetricType("PROFILER_METRIC_TYPE_") {
        /// In a query: any.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Of the machine: GPUs, processors, memory, disks, network.
        System = 1 => "SYSTEM",
        /// How long steps of the training took.
        Timing = 2 => "TIMING",
        /// Any other series: neither of the machine nor of how long steps took.
        Misc = 3 => "MISC",
    }
}

/// What distinguishes a series from the others of its trial.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialProfilerMetricLabels {
    /// Number of the trial that was measured.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// Name of the metric, such as `gpu_util`.
    pub name: String,
    /// The agent whose machine was measured; empty where none was named.
    #[schema(value_type = String)]
    pub agent_id: AgentId,
    /// UUID of the GPU, for metrics of GPUs; path of the file system, for `disk_util`; else empty.
    pub gpu_uuid: String,
    /// What the series is about: the machine, the time of steps, or other things.
    pub metric_type: ProfilerMetricType,
}

/// Readings of one series: three lists of the same length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialProfilerMetricsBatch {
    /// Readings, in the unit of the metric.
    pub values: Vec<Float>,
    /// Batch that was trained when each was measured; 0 where it was not reported.
    pub batches: Vec<i64>,
    /// Time of each reading.
    pub timestamps: Vec<Timestamp>,
    /// What the series measures, and where.
    pub labels: TrialProfilerMetricLabels,
}

/// Body of `PostTrialProfilerMetricsBatch`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostTrialProfilerMetricsBatchRequest {
    /// Readings, each batch of one series.
    pub batches: Vec<TrialProfilerMetricsBatch>,
}

/// A message of `GetTrialProfilerMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialProfilerMetricsResponse {
    /// The next readings of one series.
    pub batch: TrialProfilerMetricsBatch,
}

/// A message of `GetTrialProfilerAvailableSeries`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialProfilerAvailableSeriesResponse {
    /// All series that there are by now.
    pub labels: Vec<TrialProfilerMetricLabels>,
}

/// Query of `GetTrialProfilerMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTrialProfilerMetricsQuery {
    /// Whether the stream goes on until the trial ends.
    pub follow: bool,
    /// Which series; as parameters `labels.name` and so on.
    #[param(value_type = Option<ProfilerSeriesFilter>, style = DeepObject)]
    pub labels: ProfilerSeriesFilter,
}

/// Which series of a trial are asked for: those that have all that is given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfilerSeriesFilter {
    /// The agent whose machine was measured; empty = any.
    #[schema(value_type = String)]
    pub agent_id: AgentId,
    /// UUID of the GPU, or path of the file system; empty = any.
    pub gpu_uuid: String,
    /// Kind of the metric; unspecified = any.
    pub metric_type: ProfilerMetricType,
    /// Name of the metric, such as `gpu_util`; empty = any.
    pub name: String,
}

/// Query of `GetTrialProfilerAvailableSeries`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTrialProfilerAvailableSeriesQuery {
    /// Whether the stream goes on until the trial ends.
    pub follow: bool,
}
