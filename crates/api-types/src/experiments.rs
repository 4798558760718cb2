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
        /// It is paused: its trials ask for no slots until it is activated.
        Paused = 2 => "PAUSED",
        /// It ends because its search is over.
        StoppingCompleted = 3 => "STOPPING_COMPLETED",
        /// Its trials save a checkpoint and end, since it was canceled.
        StoppingCanceled = 4 => "STOPPING_CANCELED",
        /// It ends because it failed.
        StoppingError = 5 => "STOPPING_ERROR",
        /// Its search came to its end.
        Completed = 6 => "COMPLETED",
        /// Ended before its time, by request.
        Canceled = 7 => "CANCELED",
        /// Ended by a failure, such as of its search or of its trials.
        Error = 8 => "ERROR",
        /// Not sent by this master: a deleted experiment is not found any more.
        Deleted = 9 => "DELETED",
        /// Its checkpoints and rows are being deleted.
        Deleting = 10 => "DELETING",
        /// Deleting it failed; it can be tried again.
        DeleteFailed = 11 => "DELETE_FAILED",
        /// Its containers are killed without time to save, since a user killed it.
        StoppingKilled = 12 => "STOPPING_KILLED",
        /// Active, all trials wait for slots.
        Queued = 13 => "QUEUED",
        /// Active, the farthest trial pulls its image.
        Pulling = 14 => "PULLING",
        /// Active, the farthest trial is being started.
        Starting = 15 => "STARTING",
        /// Active, and at least one of its trials runs.
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
    /// Number of the experiment, counted from 1 over the whole cluster.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
    /// What users wrote about it, plain text; empty = nothing.
    pub description: String,
    /// Tags that users gave it.
    pub labels: Vec<String>,
    /// When it was created.
    pub start_time: Timestamp,
    /// When it ended; `None` = it has not.
    pub end_time: Option<Timestamp>,
    /// State of its life cycle, refined while it is active by what its trials do.
    pub state: ExperimentState,
    /// Whether it is put away.
    pub archived: bool,
    /// Number of trials created so far, ended ones included.
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
    /// Resource pool that its trials ask for slots.
    pub resource_pool: String,
    /// Name of the search method, such as `adaptive_asha`.
    pub searcher_type: String,
    /// Validation metric that the search optimises.
    pub searcher_metric: Option<String>,
    /// The `hyperparameters` section of the effective configuration: the space that is searched.
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
    /// Number of the project that it is in.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// Name of the project.
    pub project_name: String,
    /// Number of the workspace that its project is in.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Name of the workspace.
    pub workspace_name: String,
    /// Whether the project or workspace is put away.
    pub parent_archived: bool,
    /// The configuration that it runs with, defaults and templates included, secrets hidden.
    #[schema(value_type = Object)]
    pub config: RawObject,
    /// The configuration text as the user sent it, secrets hidden.
    pub original_config: String,
    /// Number of the user who owns the project.
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
    /// Content of the file; empty for a directory.
    pub content: Bytes,
    /// Time of modification, seconds since 1970.
    pub mtime: Int64,
    /// Unix mode, file type bits included.
    pub mode: i64,
    /// Number of the owner on the machine that sent it; not read.
    pub uid: i64,
    /// Number of the group on the machine that sent it; not read.
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
    /// Name of a template that the configuration is laid over; `None` = none.
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
    /// The configuration that it runs with, secrets hidden.
    #[schema(value_type = Object)]
    pub config: RawObject,
}

/// Answer of `CreateExperiment`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateExperimentResponse {
    /// The new experiment.
    pub experiment: Experiment,
    /// The configuration that it runs with, defaults and templates included, secrets hidden.
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
    /// The same as `experiment.config`, for clients that look here.
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
        /// By number of the experiment that it was forked from.
        ForkedFrom = 10 => "FORKED_FROM",
        /// By name of the resource pool.
        ResourcePool = 11 => "RESOURCE_POOL",
        /// By number of the project.
        ProjectId = 12 => "PROJECT_ID",
        /// By bytes of its checkpoints that are not deleted.
        CheckpointSize = 13 => "CHECKPOINT_SIZE",
        /// By number of its checkpoints that are not deleted.
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
    /// Experiments to skip from the start of the sorted list.
    pub offset: i64,
    /// Elements at most; 0 = 100, −1 = all, −2 = none.
    pub limit: i64,
    /// Substring of the description, in any letter case.
    pub description: String,
    /// Substring of the name, in any letter case.
    pub name: String,
    /// Only experiments that have all of these labels.
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
    /// Only experiments whose numbers pass this filter.
    #[param(value_type = Option<Int32FieldFilter>, style = DeepObject)]
    pub experiment_id_filter: Int32FieldFilter,
    /// Not read; older clients send it.
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

/// A validation that was better than every one before it in its experiment.
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
    /// The validations that were best when they were reported, oldest first.
    pub validation_history: Vec<ValidationHistoryEntry>,
}

/// Body of `PatchExperiment`: what is `None` stays.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchExperiment {
    /// The experiment again; the one in the path counts.
    #[schema(value_type = i64)]
    pub id: ExperimentId,
    /// New name, which must not be blank; `None` = it stays.
    pub name: Option<String>,
    /// New description, which may be empty; `None` = it stays.
    pub description: Option<String>,
    /// New notes, Markdown, which may be empty; `None` = they stay.
    pub notes: Option<String>,
    /// New labels in place of all it has; `None` = they stay.
    pub labels: Option<Vec<String>>,
    /// New resources; only while it is live.
    pub resources: Option<PatchExperimentResources>,
    /// Which checkpoints are kept from now on; `None` = as before.
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
    /// Number of the experiment to continue, which must have ended.
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
    /// Path relative to the top of the model definition, parts separated by `/`.
    pub path: String,
    /// Last part of the path.
    pub name: String,
    /// When the file was last changed, as the submitting machine reported; `None` = not known.
    pub modified_time: Option<Timestamp>,
    /// Size of the file in bytes; 0 for a directory.
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
    /// The experiment again; the one in the path counts.
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
    /// Only experiments whose description contains this text; empty = all.
    pub description: String,
    /// Only experiments whose name contains this text; empty = all.
    pub name: String,
    /// Only experiments that have all of these labels.
    pub labels: Vec<String>,
    /// Only those put away, or only others.
    pub archived: Option<bool>,
    /// Only experiments in one of these states; empty = in any.
    pub states: Vec<ExperimentState>,
    /// Only experiments of one of these users, by number; empty = of all.
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
    /// Act on the experiments that match these filters; `None` = on those of `experiment_ids`.
    pub filters: Option<BulkExperimentFilters>,
    /// The project again; the one in the path counts.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
}

/// Body of `PutExperimentRetainLogs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutExperimentRetainLogsRequest {
    /// The experiment again; the one in the path counts.
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
    /// Act on the experiments that match these filters; `None` = on those of `experiment_ids`.
    pub filters: Option<BulkExperimentFilters>,
    /// Days after the end of a task, -1 to 32767; -1 = for ever. Must be given.
    pub num_days: Option<i64>,
    /// The project again; the one in the path counts.
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
    /// The experiment again; the one in the path counts.
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
    /// Act on the experiments that match these filters; `None` = on those of `experiment_ids`.
    pub filters: Option<BulkExperimentFilters>,
    /// The project again; the one in the path counts.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// The project that they move to.
    #[schema(value_type = i64)]
    pub destination_project_id: ProjectId,
}
