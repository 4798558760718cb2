//! Checkpoints and their files.

use std::collections::BTreeMap;

use det_ids::{AllocationId, CheckpointId, ExperimentId, StorageId, TaskId, TrialId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::metrics::Metrics;
use crate::page::{OrderBy, Pagination};
use crate::wire::{Float, Int64, Object, Timestamp, wire_enum};

wire_enum! {
    /// State of a checkpoint.
    pub enum CheckpointState("STATE_") {
        /// Not known; in a report, the same as completed.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Its files are being written. This master stores a checkpoint only once it is complete, in another state.
        Active = 1 => "ACTIVE",
        /// All of its files are stored.
        Completed = 2 => "COMPLETED",
        /// Its files could not be stored; they are incomplete or absent.
        Error = 3 => "ERROR",
        /// All of its files were deleted; the record of it stays.
        Deleted = 4 => "DELETED",
        /// Some of its files are gone.
        PartiallyDeleted = 5 => "PARTIALLY_DELETED",
    }
}

wire_enum! {
    /// Sort keys of checkpoint listings.
    pub enum CheckpointSortBy("SORT_BY_") {
        /// By the searcher's metric, better first unless a direction is given; the same as `SEARCHER_METRIC`.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By UUID; the tie break of all other keys.
        Uuid = 1 => "UUID",
        /// By number of the trial.
        TrialId = 2 => "TRIAL_ID",
        /// By `steps_completed` of the checkpoint's metadata.
        BatchNumber = 3 => "BATCH_NUMBER",
        /// By the time at which it was reported.
        EndTime = 4 => "END_TIME",
        /// By name of the state, in alphabetical order.
        State = 5 => "STATE",
        /// By the searcher's metric, better first unless a direction is given.
        SearcherMetric = 6 => "SEARCHER_METRIC",
    }
}

/// A checkpoint; also the body of `ReportCheckpoint`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoint {
    /// Chosen by the client, version 4.
    #[schema(value_type = String)]
    pub uuid: CheckpointId,
    /// Id of the task that wrote it; `None` = not known.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Attempt that wrote it; `None` outside the cluster.
    #[schema(value_type = Option<String>)]
    pub allocation_id: Option<AllocationId>,
    /// When it was reported; `None` in a report = when that arrives.
    pub report_time: Option<Timestamp>,
    /// Size in bytes of each file; directories end in `/` and count 0.
    pub resources: BTreeMap<String, Int64>,
    /// The user's metadata; `steps_completed` is always among them.
    pub metadata: Object,
    /// Whether its files exist: all, some or none of them.
    pub state: CheckpointState,
    /// The training it comes from.
    pub training: CheckpointTrainingMetadata,
    /// Storage that contains it, as configured at the start of the run.
    #[schema(value_type = Option<i64>)]
    pub storage_id: Option<StorageId>,
}

/// The training a checkpoint comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointTrainingMetadata {
    /// The trial; `None` = no training information.
    #[schema(value_type = Option<i64>)]
    pub trial_id: Option<TrialId>,
    /// Number of the experiment; `None` = no training information.
    #[schema(value_type = Option<i64>)]
    pub experiment_id: Option<ExperimentId>,
    /// The experiment's effective configuration. Its storage section must be complete, since clients download with it.
    pub experiment_config: Option<Object>,
    /// Hyperparameters of the trial, by name; `None` = no training information.
    pub hparams: Option<Object>,
    /// Training metrics of the same step.
    pub training_metrics: Option<Metrics>,
    /// Validation metrics of the same step.
    pub validation_metrics: Option<Metrics>,
    /// The searcher's metric of the same step.
    pub searcher_metric: Option<Float>,
}

/// Answer of `GetCheckpoint`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetCheckpointResponse {
    /// The checkpoint that the path names.
    pub checkpoint: Checkpoint,
}

/// Query of `GetExperimentCheckpoints` and `GetTrialCheckpoints`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetCheckpointsQuery {
    /// Sort by an attribute; not together with `sort_by_metric`.
    pub sort_by_attr: CheckpointSortBy,
    /// Sort by a validation metric of this name.
    pub sort_by_metric: String,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Only checkpoints in one of these states; empty = in any.
    pub states: Vec<CheckpointState>,
}

/// Answer of `GetExperimentCheckpoints`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentCheckpointsResponse {
    /// The page's checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetTrialCheckpoints`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTrialCheckpointsResponse {
    /// The page's checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Body of `PatchCheckpoints`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchCheckpointsRequest {
    /// The checkpoints that changed, with their new contents.
    pub checkpoints: Vec<PatchCheckpoint>,
}

/// Change of one checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchCheckpoint {
    /// Which checkpoint to change.
    #[schema(value_type = String)]
    pub uuid: CheckpointId,
    /// The files that are left; `None` = untouched.
    pub resources: Option<PatchCheckpointResources>,
}

/// Files of a checkpoint after a change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchCheckpointResources {
    /// Size in bytes of each file that is left; none = the checkpoint is deleted.
    pub resources: BTreeMap<String, Int64>,
}

/// Body of `DeleteCheckpoints`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteCheckpointsRequest {
    /// Checkpoints to delete.
    #[schema(value_type = Vec<String>)]
    pub checkpoint_uuids: Vec<CheckpointId>,
}

/// Body of `CheckpointsRemoveFiles`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointsRemoveFilesRequest {
    /// Checkpoints to take files from.
    #[schema(value_type = Vec<String>)]
    pub checkpoint_uuids: Vec<CheckpointId>,
    /// Patterns of the files; not empty, no `..`.
    pub checkpoint_globs: Vec<String>,
}

/// Body of `PostCheckpointMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostCheckpointMetadataRequest {
    /// Its metadata replace the stored ones whole; the rest is ignored.
    pub checkpoint: Checkpoint,
}

/// Answer of `PostCheckpointMetadata`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostCheckpointMetadataResponse {
    /// The checkpoint as it is now.
    pub checkpoint: Checkpoint,
}
