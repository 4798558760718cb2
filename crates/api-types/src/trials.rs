//! Trials and their reports.

use std::collections::BTreeMap;

use det_ids::{CheckpointId, ExperimentId, RunId, StorageId, TaskId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::checkpoints::CheckpointState;
use crate::experiments::ExperimentState;
use crate::metrics::Metrics;
use crate::page::{Failure, OrderBy, Pagination, WaitReason};
use crate::wire::{Float, Int64, Object, Timestamp, wire_enum};

wire_enum! {
    /// State of a trial.
    pub enum TrialState("STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Wants to run. Stored, never shown: see queued, pulling, starting, running.
        Active = 1 => "ACTIVE",
        /// Its experiment is paused: it asks for no slots until that is activated.
        Paused = 2 => "PAUSED",
        /// It saves a checkpoint and ends, since its experiment was canceled.
        StoppingCanceled = 3 => "STOPPING_CANCELED",
        /// Its containers are killed without time to save, since a user killed it.
        StoppingKilled = 4 => "STOPPING_KILLED",
        /// It ends because its search is done with it, or its code asked for it.
        StoppingCompleted = 5 => "STOPPING_COMPLETED",
        /// It ends because it failed.
        StoppingError = 6 => "STOPPING_ERROR",
        /// Ended before its time, by request.
        Canceled = 7 => "CANCELED",
        /// It ended as its search or its code wanted.
        Completed = 8 => "COMPLETED",
        /// Ended by a failure that is not tried again.
        Error = 9 => "ERROR",
        /// Active, waiting for slots.
        Queued = 10 => "QUEUED",
        /// Active, its image is being pulled.
        Pulling = 11 => "PULLING",
        /// Active, its containers are being started.
        Starting = 12 => "STARTING",
        /// Active and running.
        Running = 13 => "RUNNING",
    }
}

/// A trial: one set of hyperparameters being trained; survives restarts and preemptions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Trial {
    /// Number, counted from 1 over the whole cluster.
    #[schema(value_type = i64)]
    pub id: TrialId,
    /// The experiment it belongs to.
    #[schema(value_type = i64)]
    pub experiment_id: ExperimentId,
    /// When it was created.
    pub start_time: Timestamp,
    /// When it ended; `None` = it has not.
    pub end_time: Option<Timestamp>,
    /// State of its life cycle, refined while it is active by what its containers do.
    pub state: TrialState,
    /// Restarts after failures, at most the configured number.
    pub restarts: i64,
    /// The values of the hyperparameters that it trains with, by name.
    pub hparams: Object,
    /// Steps of the checkpoint that its current run began from, or the highest step that it reported since.
    pub total_batches_processed: i64,
    /// Best validation by the searcher's metric.
    pub best_validation: Option<MetricsWorkload>,
    /// Last validation that was reported; `None` = there is none yet.
    pub latest_validation: Option<MetricsWorkload>,
    /// Checkpoint of the best validation.
    pub best_checkpoint: Option<CheckpointWorkload>,
    /// What the training program reports that it does: `training`, `validating`, `checkpointing`, or nothing.
    pub runner_state: String,
    /// Seconds from start to end or now.
    pub wall_clock_time: Float,
    /// UUID of the checkpoint that it began from; empty = from scratch.
    #[schema(value_type = String)]
    pub warm_start_checkpoint_uuid: CheckpointId,
    /// Its first task; `None` = it has none yet.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Bytes of its stored checkpoints.
    pub total_checkpoint_size: Int64,
    /// Number of its stored checkpoints.
    pub checkpoint_count: i64,
    /// Statistics of each metric by group.
    pub summary_metrics: Option<Object>,
    /// All its tasks, in order.
    #[schema(value_type = Vec<String>)]
    pub task_ids: Vec<TaskId>,
    /// The searcher's metric of its best validation.
    pub searcher_metric_value: Option<Float>,
    /// Days its logs are kept after the end of a task; −1 = for ever, `None` = the cluster's default.
    pub log_retention_days: Option<i64>,
    /// What users or the training code noted about it, by name.
    pub metadata: Option<Object>,
    /// Name of the log policy that matched.
    pub log_policy_matched: Option<String>,
    /// Why it does not run yet (an addition of ours).
    pub wait_reason: Option<WaitReason>,
    /// Why it has failed, or was last started again after a failure; only where one trial is asked for (an addition of ours).
    pub last_failure: Option<Failure>,
    /// What its search could not use of its reports, a sentence; `None` = nothing (an addition of ours).
    pub notice: Option<String>,
}

/// Body of `PutTrialRetainLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutTrialRetainLogsRequest {
    /// The trial again; the one in the path counts.
    #[schema(value_type = Option<i64>)]
    pub trial_id: Option<TrialId>,
    /// Days after the end of a task, -1 to 32767; -1 = for ever. Must be given.
    pub num_days: Option<i64>,
}

/// Answer of `GetTrialRemainingLogRetentionDays`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialRemainingLogRetentionDaysResponse {
    /// Days, begun ones counted, until the logs of its newest task may be deleted; −1 = never, 0 = with the next sweep.
    pub remaining_days: Option<i64>,
}

/// A validation or a stretch of training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsWorkload {
    /// When it was measured, as the trial reported, else when it arrived.
    pub end_time: Option<Timestamp>,
    /// The values, by name of the metric.
    pub metrics: Metrics,
    /// Inputs it was measured over; 0 when not known.
    pub num_inputs: i64,
    /// Batches, or what else the trial counts, that were done when it was measured.
    pub total_batches: i64,
}

/// A checkpoint, as workloads and trials show it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointWorkload {
    /// The checkpoint; empty while it is not stored.
    #[schema(value_type = String)]
    pub uuid: CheckpointId,
    /// When the checkpoint was reported; `None` = not known.
    pub end_time: Option<Timestamp>,
    /// Whether its files exist: all, some or none of them.
    pub state: CheckpointState,
    /// Size in bytes of each file.
    pub resources: BTreeMap<String, Int64>,
    /// `steps_completed` of the checkpoint: batches that were done when it was written.
    pub total_batches: i64,
    /// The checkpoint's metadata, `steps_completed` included.
    pub metadata: Object,
}

/// One entry of a trial's history: exactly one member is set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadContainer {
    /// Metrics of a stretch of training, or of any group besides `validation`.
    pub training: Option<MetricsWorkload>,
    /// Metrics of one validation.
    pub validation: Option<MetricsWorkload>,
    /// One checkpoint, and whether its files exist.
    pub checkpoint: Option<CheckpointWorkload>,
}

wire_enum! {
    /// Sort keys of `GetExperimentTrials`.
    pub enum TrialSortBy("SORT_BY_") {
        /// By number of the trial; the tie break of all other keys.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By number of the trial; the same as without a key.
        Id = 1 => "ID",
        /// By time of creation.
        StartTime = 2 => "START_TIME",
        /// By end; unended ones last.
        EndTime = 3 => "END_TIME",
        /// By name of the state, in alphabetical order.
        State = 4 => "STATE",
        /// By the best value of the searcher's metric.
        BestValidationMetric = 5 => "BEST_VALIDATION_METRIC",
        /// By the latest value of the searcher's metric.
        LatestValidationMetric = 6 => "LATEST_VALIDATION_METRIC",
        /// By steps of the current run, as `total_batches_processed`.
        BatchesProcessed = 7 => "BATCHES_PROCESSED",
        /// By time from creation to end; unended ones last.
        Duration = 8 => "DURATION",
        /// By number of failures that counted against the restart limit.
        Restarts = 9 => "RESTARTS",
        /// By bytes of its checkpoints that are not deleted.
        CheckpointSize = 10 => "CHECKPOINT_SIZE",
        /// By days that its logs are kept; trials that follow the cluster's setting last.
        LogRetentionDays = 11 => "LOG_RETENTION_DAYS",
    }
}

/// Query of `GetExperimentTrials`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetExperimentTrialsQuery {
    /// Attribute to sort by; unspecified = by number of the trial.
    pub sort_by: TrialSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Trials to skip from the start of the sorted list.
    pub offset: i64,
    /// Elements at most; 0 = 100, −1 = all, −2 = none.
    pub limit: i64,
    /// Only these states, in the names of experiment states.
    pub states: Vec<ExperimentState>,
}

/// Answer of `GetExperimentTrials`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentTrialsResponse {
    /// The page's trials.
    pub trials: Vec<Trial>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialResponse {
    /// The trial that the path names.
    pub trial: Trial,
}

wire_enum! {
    /// Which entries of a trial's history to give.
    pub enum WorkloadFilter("FILTER_OPTION_") {
        /// Checkpoints and metrics of the groups that are asked for.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Only checkpoints, whether or not their files exist.
        Checkpoint = 1 => "CHECKPOINT",
        /// Only reports of the group `validation`.
        Validation = 2 => "VALIDATION",
        /// Checkpoints and validations.
        CheckpointOrValidation = 3 => "CHECKPOINT_OR_VALIDATION",
    }
}

wire_enum! {
    /// Kind of metrics.
    pub enum MetricType("METRIC_TYPE_") {
        /// Metrics of any type.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Metrics of the group `training`.
        Training = 1 => "TRAINING",
        /// Metrics of the group `validation`.
        Validation = 2 => "VALIDATION",
        /// Metrics of the profiler; histories give none of them.
        Profiling = 3 => "PROFILING",
    }
}

/// Query of `GetTrialWorkloads`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTrialWorkloadsQuery {
    /// Direction of the sort order; sorted by step unless `sort_key` is given.
    pub order_by: OrderBy,
    /// Entries to skip from the start of the sorted list.
    pub offset: i64,
    /// Entries at most; 0 = all.
    pub limit: i64,
    /// Metric or `batches` to sort by; empty = `batches`.
    pub sort_key: String,
    /// The kinds of entries that are returned; unspecified = all.
    pub filter: WorkloadFilter,
    /// Whether to give the values of each batch too.
    pub include_batch_metrics: bool,
    /// Kind of metrics (older than `group`).
    pub metric_type: MetricType,
    /// Group of metrics; empty = the one that `metric_type` names, else `training` and `validation`.
    pub group: String,
    /// Leave out checkpoints whose files are gone.
    pub remove_deleted_checkpoints: bool,
}

/// Answer of `GetTrialWorkloads`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialWorkloadsResponse {
    /// The page's entries.
    pub workloads: Vec<WorkloadContainer>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Query of `CompareTrials`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct CompareTrialsQuery {
    /// The trials; at least one.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub trial_ids: Vec<TrialId>,
    /// Points of each metric at most; 0 = 1000.
    pub max_datapoints: i64,
    /// Metrics of the group that `group` or `metric_type` names.
    pub metric_names: Vec<String>,
    /// Only steps from this one on; 0 = from the first.
    pub start_batches: i64,
    /// Only steps up to this one; 0 = to the last.
    pub end_batches: i64,
    /// Kind of metrics (older than `group`).
    pub metric_type: MetricType,
    /// Group that `metric_names` are in; empty = the one that `metric_type` names.
    pub group: String,
    /// Metrics as `group.name`, in addition to or instead of `metric_names`.
    pub metric_ids: Vec<String>,
}

/// A point of a series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataPoint {
    /// Batches, or what else the trial counts, that were done when it was measured.
    pub batches: i64,
    /// Values at this step, by name of the metric.
    pub values: Option<Object>,
    /// When it was measured.
    pub time: Timestamp,
    /// Epoch, where it is among the metrics asked for.
    pub epoch: Option<Float>,
}

/// Points of the metrics of one group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownsampledMetrics {
    /// The points, ascending by step.
    pub data: Vec<DataPoint>,
    /// Kind of metrics (older than `group`).
    #[serde(rename = "type")]
    pub kind: MetricType,
    /// Group that the metrics are in: `training`, `validation` or one of the user's own.
    pub group: String,
}

/// A trial with the series that were asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ComparableTrial {
    /// The trial as it is now.
    pub trial: Trial,
    /// The series that were asked for, one entry for each group.
    pub metrics: Vec<DownsampledMetrics>,
}

/// Answer of `CompareTrials`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompareTrialsResponse {
    /// The trials in the order asked for.
    pub trials: Vec<ComparableTrial>,
}

/// Body of `ReportTrialProgress`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportTrialProgressRequest {
    /// The trial again; the one in the path counts.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// How far the trial is: a fraction of 1 when `is_raw`, else units of the searcher.
    pub progress: Float,
    /// Whether `progress` is a fraction.
    pub is_raw: bool,
}

wire_enum! {
    /// Why a trial ends early.
    pub enum ExitedReason("EXITED_REASON_") {
        /// Not given by the code.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The hyperparameters turned out to be unusable.
        InvalidHp = 1 => "INVALID_HP",
        /// The hyperparameters were unusable from the start.
        InitInvalidHp = 2 => "INIT_INVALID_HP",
        /// The user's code asked to stop. Clients send it though no server knew it: a graceful stop.
        UserRequestedStop = 3 => "USER_REQUESTED_STOP",
    }
}

/// Body of `ReportTrialSearcherEarlyExit`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialEarlyExit {
    /// Why the trial exited early.
    pub reason: ExitedReason,
}

/// Body of `PostTrialRunnerMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialRunnerMetadata {
    /// What the training program does; empty on exit.
    pub state: String,
}

/// Body of `RunPrepareForReporting`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPrepareForReportingRequest {
    /// The run, which is the trial.
    #[schema(value_type = i64)]
    pub run_id: TrialId,
    /// Checkpoint storage the trial really uses; `None` = it stores none.
    pub checkpoint_storage: Option<Object>,
}

/// Answer of `RunPrepareForReporting`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPrepareForReportingResponse {
    /// Number of that storage, to be named in checkpoint reports.
    #[schema(value_type = Option<i64>)]
    pub storage_id: Option<StorageId>,
}

/// Answer of `GetRunMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetRunMetadataResponse {
    /// What users or the training code noted about the run, by name.
    pub metadata: Object,
}

/// Body of `PostRunMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostRunMetadataRequest {
    /// The run (the trial) again; the one in the path counts.
    #[schema(value_type = i64)]
    pub run_id: TrialId,
    /// The new metadata, which replace all that is stored.
    pub metadata: Object,
}

/// Answer of `PostRunMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostRunMetadataResponse {
    /// The metadata as they are now.
    pub metadata: Object,
}

/// Body of `CreateTrial`: a trial of an unmanaged experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateTrialRequest {
    /// Its experiment, which must be unmanaged.
    #[schema(value_type = Option<i64>)]
    pub experiment_id: Option<ExperimentId>,
    /// Hyperparameters of the trial, by name.
    pub hparams: Option<Object>,
    /// Must be true: the master creates the trials that it runs.
    pub unmanaged: Option<bool>,
}

/// Answer of `CreateTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateTrialResponse {
    /// The new trial.
    pub trial: Trial,
}

/// Body of `PutTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutTrialRequest {
    /// The trial, in case that there is none of this external id yet.
    pub create_trial_request: Option<CreateTrialRequest>,
    /// Its name within its experiment, given from outside.
    pub external_trial_id: Option<String>,
}

/// Answer of `PutTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutTrialResponse {
    /// The trial of the external id.
    pub trial: Trial,
}

/// Answer of `GetTrialByExternalID`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = GetTrialByExternalIDResponse)]
pub struct GetTrialByExternalIdResponse {
    /// The trial of the external ids in the path.
    pub trial: Trial,
}

/// Body of `PatchTrial`: a heartbeat of an unmanaged trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchTrialRequest {
    /// The trial again; the one in the path counts.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// Running, completed or failed; `None` = it runs.
    pub state: Option<TrialState>,
}

/// Answer of `PatchTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchTrialResponse {
    /// The trial as it is now.
    pub trial: Trial,
}

/// Body of `StartTrial`: the code of an unmanaged trial begins a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartTrialRequest {
    /// The trial again; the one in the path counts.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// Whether it goes on from the newest checkpoint of its runs before.
    pub resume: Option<bool>,
}

/// Answer of `StartTrial`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartTrialResponse {
    /// Counts the runs of the trial, from 1; reports of older ones are refused.
    #[schema(value_type = i64)]
    pub trial_run_id: RunId,
    /// UUID of the checkpoint to go on from; `None` = from the beginning.
    #[schema(value_type = Option<String>)]
    pub latest_checkpoint: Option<CheckpointId>,
    /// Steps of that checkpoint; 0 without one.
    pub steps_completed: i64,
}
