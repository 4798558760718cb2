//! Experiments: configuration, state and files.

use det_ids::{ExperimentId, JobId, ProjectId, TrialId, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::jobs::JobSummary;
use crate::page::{OrderBy, Pagination};
use crate::wire::{Bytes, Float, Int64, Object, RawObject, Timestamp, wire_enum};

wire_enum! {
    /// State of an experiment.
    pub enum ExperimentState("STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Wants to run. Stored, never shown: see queued, pulling, starting, running.
        Active = 1 => "ACTIVE",
        /// Wants no slots.
        Paused = 2 => "PAUSED",
        /// It ends because its search is over.
        StoppingCompleted = 3 => "STOPPING_COMPLETED",
        /// Ends gracefully, canceled.
        StoppingCanceled = 4 => "STOPPING_CANCELED",
        /// It ends because it failed.
        StoppingError = 5 => "STOPPING_ERROR",
        /// Its search came to its end.
        Completed = 6 => "COMPLETED",
        /// Ended before its time, by request.
        Canceled = 7 => "CANCELED",
        /// Ended by a failure, such as of its search or of its trials.
        Error = 8 => "ERROR",
        /// It is deleted.
        Deleted = 9 => "DELETED",
        /// Its checkpoints and rows are being deleted.
        Deleting = 10 => "DELETING",
        /// Could not be deleted.
        DeleteFailed = 11 => "DELETE_FAILED",
        /// Ends at once, killed.
        StoppingKilled = 12 => "STOPPING_KILLED",
        /// Active, all trials wait for slots.
        Queued = 13 => "QUEUED",
        /// Active, the farthest trial pulls its image.
        Pulling = 14 => "PULLING",
        /// Active, the farthest trial is being started.
        Starting = 15 => "STARTING",
        /// Active, a trial runs.
        Running = 16 => "RUNNING",
    }
}

wire_enum! {
    /// What the user should know about an accepted launch.
    pub enum LaunchWarning("LAUNCH_WARNING_") {
        /// There is nothing to warn of.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The pool has fewer slots at present than one trial needs.
        CurrentSlotsExceeded = 1 => "CURRENT_SLOTS_EXCEEDED",
    }
}

/// An experiment: a configuration and a model definition, searched or trained as one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Experiment {
    /// Number, counted from 1.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
    /// Description of the user.
    pub description: String,
    /// Labels of the user.
    pub labels: Vec<String>,
    /// When it was created.
    pub start_time: Timestamp,
    /// When it ended; `None` = it has not.
    pub end_time: Option<Timestamp>,
    /// How far it is.
    pub state: ExperimentState,
    /// Whether it is put away.
    pub archived: bool,
    /// Trials so far.
    pub num_trials: i64,
    /// Its trials, in listings that give none empty.
    #[schema(value_type = Vec<i64>)]
    pub trial_ids: Vec<TrialId>,
    /// Display name of the owner; empty = the user name.
    pub display_name: String,
    /// Id of the user who owns it.
    #[schema(value_type = i64)]
    pub user_id: UserId,
    /// User name of the owner.
    pub username: String,
    /// Pool it runs in.
    pub resource_pool: String,
    /// Name of the searcher.
    pub searcher_type: String,
    /// Metric of the searcher.
    pub searcher_metric: Option<String>,
    /// Hyperparameters of the configuration.
    #[schema(value_type = Option<Object>)]
    pub hyperparameters: Option<RawObject>,
    /// Name of the experiment.
    pub name: String,
    /// Notes of the user, Markdown.
    pub notes: String,
    /// Its entry in the job queue.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Experiment it was forked from.
    #[schema(value_type = Option<i64>)]
    pub forked_from: Option<ExperimentId>,
    /// How far it is, from 0 to 1; `None` = not known.
    pub progress: Option<Float>,
    /// Project it is in.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// Name of the project.
    pub project_name: String,
    /// Workspace it is in.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Name of the workspace.
    pub workspace_name: String,
    /// Whether the project or workspace is put away.
    pub parent_archived: bool,
    /// The effective configuration.
    #[schema(value_type = Object)]
    pub config: RawObject,
    /// The configuration as submitted.
    pub original_config: String,
    /// Owner of the project.
    #[schema(value_type = i64)]
    pub project_owner_id: UserId,
    /// Bytes of its stored checkpoints.
    pub checkpoint_size: Int64,
    /// Number of its stored checkpoints.
    pub checkpoint_count: i64,
    /// Trial with the best validation.
    #[schema(value_type = Option<i64>)]
    pub best_trial_id: Option<TrialId>,
    /// The searcher's metric of that trial.
    pub best_trial_searcher_metric: Option<Float>,
    /// Whether its trials run outside the cluster.
    pub unmanaged: bool,
    /// Name given from outside, if created by it.
    pub external_experiment_id: Option<String>,
    /// Name of its trial given from outside.
    pub external_trial_id: Option<String>,
    /// Bytes of its model definition.
    pub model_definition_size: i64,
    /// Data versioning integration of the configuration.
    #[schema(value_type = Option<Object>)]
    pub pachyderm_integration: Option<RawObject>,
    /// Seconds from start to end or now.
    pub duration: Option<i64>,
    /// Why files of its checkpoints that were to be deleted, by its policy or on request, are still there; `None` = they
    /// are gone, or none were to go (an addition of ours).
    pub checkpoint_failure: Option<String>,
}

/// A file shipped with an experiment or task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    /// Path relative to the context directory.
    pub path: String,
    /// Tar type flag: 48 file, 53 directory.
    #[serde(rename = "type")]
    pub kind: i64,
    /// Content; empty for directories.
    pub content: Bytes,
    /// Time of modification, seconds since 1970.
    pub mtime: Int64,
    /// Unix mode, file type bits included.
    pub mode: i64,
    /// Owner on the client.
    pub uid: i64,
    /// Group on the client.
    pub gid: i64,
}

/// Body of `CreateExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateExperimentRequest {
    /// Files of the context directory, parents possibly after their children.
    pub model_definition: Vec<File>,
    /// The configuration, YAML text.
    pub config: String,
    /// Check only; nothing is stored.
    pub validate_only: bool,
    /// Experiment to fork; its files are used when none are given.
    #[schema(value_type = Option<i64>)]
    pub parent_id: Option<ExperimentId>,
    /// Start at once; otherwise it stays paused.
    pub activate: bool,
    /// Project; 0 and 1 leave the choice to the configuration.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// Template below the configuration.
    pub template: Option<String>,
    /// Further templates below the configuration, each over the ones before it (an addition of ours).
    pub templates: Vec<String>,
    /// Whether its trials run outside the cluster.
    pub unmanaged: bool,
}

/// Answer of `PutExperiment`, whose body is that of `CreateExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutExperimentResponse {
    /// The experiment of the external id.
    pub experiment: Experiment,
    /// Its effective configuration.
    #[schema(value_type = Object)]
    pub config: RawObject,
}

/// Answer of `CreateExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateExperimentResponse {
    /// The new experiment.
    pub experiment: Experiment,
    /// The effective configuration.
    pub config: Object,
    /// What the user should know.
    pub warnings: Vec<LaunchWarning>,
    /// Warnings about the configuration, as sentences (an addition to the original API).
    pub messages: Vec<String>,
}

/// Answer of `GetExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentResponse {
    /// The experiment that the path names.
    pub experiment: Experiment,
    /// Its place in the queue; `None` = it has ended.
    pub job_summary: Option<JobSummary>,
    /// The effective configuration again.
    #[schema(value_type = Object)]
    pub config: RawObject,
}

wire_enum! {
    /// Sort keys of `GetExperiments`.
    pub enum ExperimentSortBy("SORT_BY_") {
        /// By number of the experiment; the tie break of all other keys.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By number of the experiment; the same as without a key.
        Id = 1 => "ID",
        /// By description, as text.
        Description = 2 => "DESCRIPTION",
        /// By time of creation.
        StartTime = 3 => "START_TIME",
        /// By end; unended ones last.
        EndTime = 4 => "END_TIME",
        /// By name of the state, in alphabetical order.
        State = 5 => "STATE",
        /// By number of trials.
        NumTrials = 6 => "NUM_TRIALS",
        /// By progress of the search, 0 to 1.
        Progress = 7 => "PROGRESS",
        /// By user name of the owner.
        User = 8 => "USER",
        /// By name, as text.
        Name = 9 => "NAME",
        /// By experiment forked from.
        ForkedFrom = 10 => "FORKED_FROM",
        /// By name of the resource pool.
        ResourcePool = 11 => "RESOURCE_POOL",
        /// By number of the project.
        ProjectId = 12 => "PROJECT_ID",
        /// By bytes of checkpoints.
        CheckpointSize = 13 => "CHECKPOINT_SIZE",
        /// By number of checkpoints.
        CheckpointCount = 14 => "CHECKPOINT_COUNT",
        /// By the best value of the searcher's metric.
        SearcherMetricVal = 15 => "SEARCHER_METRIC_VAL",
    }
}

/// A range or set of numbers; `None` bounds nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Int32FieldFilter {
    /// Only values below this one match; `None` = no bound.
    pub lt: Option<i64>,
    /// The largest value that matches; `None` = no bound.
    pub lte: Option<i64>,
    /// Only values above this one match; `None` = no bound.
    pub gt: Option<i64>,
    /// The smallest value that matches; `None` = no bound.
    pub gte: Option<i64>,
    /// Only these values match; empty = any does.
    pub incl: Vec<i64>,
    /// Values that do not match.
    pub not_in: Vec<i64>,
}

/// Query of `GetExperiments`. Filters combine with and.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetExperimentsQuery {
    /// Attribute to sort by; unspecified = by number of the experiment.
    pub sort_by: ExperimentSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip.
    pub offset: i64,
    /// Elements at most; 0 = 100, −1 = all, −2 = none.
    pub limit: i64,
    /// Substring of the description, in any letter case.
    pub description: String,
    /// Substring of the name, in any letter case.
    pub name: String,
    /// All of these labels.
    pub labels: Vec<String>,
    /// Only those put away, or only others (which also leaves out archived projects and workspaces when no project is
    /// named).
    pub archived: Option<bool>,
    /// Only these states; clients name stored states.
    pub states: Vec<ExperimentState>,
    /// Only these owners, by name.
    pub users: Vec<String>,
    /// Only these owners, by number.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub user_ids: Vec<UserId>,
    /// Only this project; 0 = all.
    #[schema(value_type = i64)]
    #[param(value_type = i64)]
    pub project_id: ProjectId,
    /// Only these ids.
    #[param(value_type = Option<Int32FieldFilter>, style = DeepObject)]
    pub experiment_id_filter: Int32FieldFilter,
    /// Give best trials too.
    pub show_trial_data: bool,
}

/// Answer of `GetExperiments`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentsResponse {
    /// The page's experiments.
    pub experiments: Vec<Experiment>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Query of `GetExperimentLabels`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetExperimentLabelsQuery {
    /// Only this project; `None` or 0 = all.
    #[schema(value_type = Option<i64>)]
    #[param(value_type = Option<i64>)]
    pub project_id: Option<ProjectId>,
}

/// Answer of `GetExperimentLabels`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentLabelsResponse {
    /// Labels in use, the most frequent first.
    pub labels: Vec<String>,
}

/// Answer of `GetBestSearcherValidationMetric`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetBestSearcherValidationMetricResponse {
    /// Best value of the searcher's metric over the whole experiment.
    pub metric: Option<Float>,
}

/// One point of `GetExperimentValidationHistory`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidationHistoryEntry {
    /// Trial that set the record.
    #[schema(value_type = i64)]
    pub trial_id: TrialId,
    /// When the value was reached.
    pub end_time: Timestamp,
    /// The value of the searcher's metric, better than all before it.
    pub searcher_metric: Float,
}

/// Answer of `GetExperimentValidationHistory`: how the best value came down (or went up).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetExperimentValidationHistoryResponse {
    /// The records, oldest first.
    pub validation_history: Vec<ValidationHistoryEntry>,
}

/// Body of `PatchExperiment`: what is `None` stays.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchExperiment {
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
    /// New name; not blank.
    pub name: Option<String>,
    /// New description, which may be empty; `None` = it stays.
    pub description: Option<String>,
    /// New notes, Markdown, which may be empty; `None` = they stay.
    pub notes: Option<String>,
    /// New labels, replacing all.
    pub labels: Option<Vec<String>>,
    /// New resources; only while it is live.
    pub resources: Option<PatchExperimentResources>,
    /// New checkpoint policy.
    pub checkpoint_storage: Option<PatchExperimentCheckpointStorage>,
}

/// Resources of an experiment to change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchExperimentResources {
    /// Slots it may use at once; null, and nothing else in this object, lifts the cap.
    pub max_slots: Option<i64>,
    /// Place among the queue's priorities.
    pub priority: Option<i64>,
    /// Share in a fair-share pool.
    pub weight: Option<Float>,
}

impl PatchExperimentResources {
    /// The cap to set; `None` = it stays. An explicit null cannot be distinguished from a missing field, but clients
    /// write this object only to change something: where nothing else is set, it is the cap that goes.
    pub fn cap(&self) -> Option<Option<i64>> {
        let alone = self.priority.is_none() && self.weight.is_none();
        (self.max_slots.is_some() || alone).then_some(self.max_slots)
    }
}

/// Checkpoint policy of an experiment to change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchExperimentCheckpointStorage {
    /// Best checkpoints of the experiment to keep.
    pub save_experiment_best: Option<i64>,
    /// Best checkpoints of each trial to keep.
    pub save_trial_best: Option<i64>,
    /// Latest checkpoints of each trial to keep.
    pub save_trial_latest: Option<i64>,
}

/// Answer of `PatchExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchExperimentResponse {
    /// The experiment as it is now.
    pub experiment: Experiment,
}

/// Body of `ContinueExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContinueExperimentRequest {
    /// The ended experiment.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
    /// Changes of its configuration, YAML text.
    pub override_config: String,
}

/// Answer of `ContinueExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContinueExperimentResponse {
    /// The experiment as it is now.
    pub experiment: Experiment,
    /// What the user should know.
    pub warnings: Vec<LaunchWarning>,
}

/// Answer of `GetModelDef`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModelDefResponse {
    /// The files, a gzip tar.
    pub b64_tgz: Bytes,
}

/// A file or directory of a model definition.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FileNode {
    /// Path from the top.
    pub path: String,
    /// Last part of the path.
    pub name: String,
    /// Time of modification.
    pub modified_time: Option<Timestamp>,
    /// Size in bytes.
    pub content_length: i64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Media type that the file's extension suggests, such as `application/json`; empty for a directory.
    pub content_type: String,
    /// The entries of a directory.
    #[schema(no_recursion)]
    pub files: Vec<FileNode>,
}

/// Answer of `GetModelDefTree`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModelDefTreeResponse {
    /// The entries of the top directory.
    pub files: Vec<FileNode>,
}

/// Body of `GetModelDefFile`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModelDefFileRequest {
    /// Repeats the path of the request.
    #[schema(value_type = i64)]
    pub experiment_id: ExperimentId,
    /// Path of the file in the model definition.
    pub path: String,
}

/// Answer of `GetModelDefFile`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModelDefFileResponse {
    /// Content of the file, base64.
    pub file: Bytes,
}

/// Which experiments a bulk action is about, when not by id.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BulkExperimentFilters {
    /// Substring of the description.
    pub description: String,
    /// Substring of the name.
    pub name: String,
    /// All of these labels.
    pub labels: Vec<String>,
    /// Only those put away, or only others.
    pub archived: Option<bool>,
    /// Only these states.
    pub states: Vec<ExperimentState>,
    /// Only these owners.
    #[schema(value_type = Vec<i64>)]
    pub user_ids: Vec<UserId>,
    /// Only this project; 0 = all.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// Experiments that are left out although the other filters match them.
    #[schema(value_type = Vec<i64>)]
    pub excluded_experiment_ids: Vec<ExperimentId>,
}

/// Body of the bulk actions: `ActivateExperiments`, `ArchiveExperiments`, `CancelExperiments`, `DeleteExperiments`,
/// `KillExperiments`, `PauseExperiments`, `UnarchiveExperiments`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BulkExperimentsRequest {
    /// Experiments by id; ignored when there are filters.
    #[schema(value_type = Vec<i64>)]
    pub experiment_ids: Vec<ExperimentId>,
    /// Experiments by properties.
    pub filters: Option<BulkExperimentFilters>,
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
}

/// Body of `PutExperimentRetainLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutExperimentRetainLogsRequest {
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub experiment_id: ExperimentId,
    /// Days after the end of a task, -1 to 32767; -1 = for ever. Must be given.
    pub num_days: Option<i64>,
}

/// Body of `PutExperimentsRetainLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutExperimentsRetainLogsRequest {
    /// Experiments by id; ignored when there are filters.
    #[schema(value_type = Vec<i64>)]
    pub experiment_ids: Vec<ExperimentId>,
    /// Experiments by properties.
    pub filters: Option<BulkExperimentFilters>,
    /// Days after the end of a task, -1 to 32767; -1 = for ever. Must be given.
    pub num_days: Option<i64>,
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
}

/// What became of one experiment in a bulk action.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExperimentActionResult {
    /// Why not; empty = done.
    pub error: String,
    /// Number of the experiment.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
}

/// Answer of the bulk actions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BulkExperimentsResponse {
    /// One entry for each experiment.
    pub results: Vec<ExperimentActionResult>,
}

/// Body of `MoveExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MoveExperimentRequest {
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub experiment_id: ExperimentId,
    /// The project that it moves to.
    #[schema(value_type = i64)]
    pub destination_project_id: ProjectId,
}

/// Body of `MoveExperiments`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MoveExperimentsRequest {
    /// Experiments by id; ignored when there are filters.
    #[schema(value_type = Vec<i64>)]
    pub experiment_ids: Vec<ExperimentId>,
    /// Experiments by properties.
    pub filters: Option<BulkExperimentFilters>,
    /// Repeats the path.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// The project that they move to.
    #[schema(value_type = i64)]
    pub destination_project_id: ProjectId,
}
