//! Metrics of trials: reporting and reading.

mod incoming;

use det_ids::{ReportId, RunId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::wire::{Object, RawList, RawObject, Timestamp};

pub use incoming::{IncomingReport, read_report};

/// The values of one report, over the whole of it and, where known, of each batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    /// Values over the whole report.
    pub avg_metrics: Object,
    /// Values of each batch; `None` = not reported.
    #[schema(value_type = Option<Vec<Object>>)]
    pub batch_metrics: Option<RawList>,
}

/// One report of a trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialMetrics {
    /// The trial; the path wins.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// Which run of the trial reports; must be its current one.
    #[schema(value_type = i64)]
    pub trial_run_id: RunId,
    /// Batches (or whatever the trial counts) done so far; `None` only for profiler groups.
    pub steps_completed: Option<i64>,
    /// When it was measured; `None` = when it arrives.
    pub report_time: Option<Timestamp>,
    /// The values, by name of the metric.
    pub metrics: Metrics,
}

/// Body of `ReportTrialMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportTrialMetricsRequest {
    /// Metrics of one step of one trial.
    pub metrics: TrialMetrics,
    /// `training`, `validation`, or a group of the user's own; no points.
    pub group: String,
    /// Identity of this report within the trial, chosen by the sender, so that a repeated one is not a second point
    /// (an addition of ours); `None` from clients that know none.
    #[schema(value_type = Option<String>)]
    pub report_id: Option<ReportId>,
}

/// Query of `GetTrainingMetrics` and `GetValidationMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTrialMetricsQuery {
    /// Numbers of the trials whose reports to give.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub trial_ids: Vec<TrialId>,
}

/// Query of `GetMetrics`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetMetricsQuery {
    /// Numbers of the trials whose reports to give.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub trial_ids: Vec<TrialId>,
    /// Group to read; empty = all.
    pub group: String,
}

/// One stored report, as metric streams give it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsReport {
    /// Number of the trial.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// When it was measured, as the trial reported, else when it arrived.
    pub end_time: Timestamp,
    /// The stored document: `validation_metrics` for the validation group, `avg_metrics` and `batch_metrics` for every
    /// other.
    pub metrics: RawObject,
    /// Batches, or what else the trial counts, that were done when it was measured.
    pub total_batches: i64,
    /// Whether a newer run has replaced it.
    pub archived: bool,
    /// Number of the report, for telling it from others of the same stream.
    pub id: i64,
    /// Number of the run of the trial that reported it, from 1.
    #[schema(value_type = i64)]
    pub trial_run_id: RunId,
    /// Metric group of the report: `training`, `validation` or one that its task named.
    pub group: String,
}

/// One message of the `GetTrainingMetrics`, `GetValidationMetrics` and `GetMetrics` streams: at most 1000 reports,
/// ordered by trial, run and step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsChunk {
    /// The next reports, 1000 at most.
    pub metrics: Vec<MetricsReport>,
}
