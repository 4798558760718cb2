//! Workspaces and projects.

use std::collections::BTreeMap;

use det_ids::{ProjectId, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination};
use crate::users::AgentUserGroup;
use crate::wire::{Float, Object, Timestamp, wire_enum};

wire_enum! {
    /// How far the deletion of a workspace or project is.
    pub enum WorkspaceState("WORKSPACE_STATE_") {
        /// Its deletion was not asked for.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The deletion is in progress.
        Deleting = 1 => "DELETING",
        /// The deletion failed; it can be tried again.
        DeleteFailed = 2 => "DELETE_FAILED",
        /// Not sent by this master: what is deleted is not found any more.
        Deleted = 3 => "DELETED",
    }
}

/// A workspace: contains projects, and gives them pools, storage, policies and a limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Workspace {
    /// Number; 1 is the immutable one named Uncategorized.
    #[schema(value_type = i64)]
    pub id: WorkspaceId,
    /// Its name, unique.
    pub name: String,
    /// Whether it is put away.
    pub archived: bool,
    /// User name of the owner.
    pub username: String,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Number of projects in it.
    pub num_projects: i64,
    /// Whether the caller has pinned it.
    pub pinned: bool,
    /// Id of the user who owns it.
    #[schema(value_type = i64)]
    pub user_id: UserId,
    /// Number of experiments in it, ended ones included.
    pub num_experiments: i64,
    /// How far its deletion is.
    pub state: WorkspaceState,
    /// Why the deletion failed; empty = it did not.
    pub error_message: String,
    /// Unix identity of tasks in it; `None` = the user's.
    pub agent_user_group: Option<AgentUserGroup>,
    /// Checkpoint storage of experiments in it; `None` = the cluster's.
    pub checkpoint_storage_config: Option<Object>,
    /// When the caller pinned it.
    pub pinned_at: Option<Timestamp>,
    /// Default pool of tasks with slots; `None` = the cluster's.
    pub default_compute_pool: Option<String>,
    /// Default pool of tasks without slots; `None` = the cluster's.
    pub default_aux_pool: Option<String>,
    /// Kubernetes namespace made for it.
    pub auto_created_namespace: Option<String>,
    /// Our own: most slots in use at once by all work in it; `None` = no limit.
    pub max_slots: Option<i64>,
}

/// A note of a project.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// Title of the note.
    pub name: String,
    /// Text of the note, Markdown.
    pub contents: String,
}

/// A project: contains experiments, in one workspace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Project {
    /// Number; 1 is the immutable one named Uncategorized.
    #[schema(value_type = i64)]
    pub id: ProjectId,
    /// Its name, unique in its workspace.
    pub name: String,
    /// Number of the workspace that it is in.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// What users wrote about it, plain text; empty = nothing.
    pub description: String,
    /// Start of its latest experiment.
    pub last_experiment_started_at: Option<Timestamp>,
    /// Notes that users wrote about it, in their order.
    pub notes: Vec<Note>,
    /// Number of experiments in it, ended ones included.
    pub num_experiments: i64,
    /// Number of experiments in it that have not ended.
    pub num_active_experiments: i64,
    /// Whether it is put away.
    pub archived: bool,
    /// User name of the owner.
    pub username: String,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Id of the user who owns it.
    #[schema(value_type = i64)]
    pub user_id: UserId,
    /// Name of its workspace.
    pub workspace_name: String,
    /// How far its deletion is.
    pub state: WorkspaceState,
    /// Why the deletion failed; empty = it did not.
    pub error_message: String,
    /// Short name, unique over the cluster.
    pub key: String,
    /// Number of trials of its experiments, which some clients call runs.
    pub num_runs: i64,
}

wire_enum! {
    /// Sort keys of `GetWorkspaces`.
    pub enum WorkspaceSortBy("SORT_BY_") {
        /// By number of the workspace.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By number of the workspace; the same as without a key.
        Id = 1 => "ID",
        /// By name, without regard to letter case.
        Name = 2 => "NAME",
    }
}

wire_enum! {
    /// Sort keys of `GetWorkspaceProjects`.
    pub enum ProjectSortBy("SORT_BY_") {
        /// By number of the project; the tie break of all other keys.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By time of creation.
        CreationTime = 1 => "CREATION_TIME",
        /// By start of the latest experiment.
        LastExperimentStartTime = 2 => "LAST_EXPERIMENT_START_TIME",
        /// By name, without regard to letter case.
        Name = 3 => "NAME",
        /// By description, without regard to letter case.
        Description = 4 => "DESCRIPTION",
        /// By number of the project; the same as without a key.
        Id = 5 => "ID",
    }
}

/// Query of `GetWorkspaces`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetWorkspacesQuery {
    /// Attribute to sort by; unspecified = by number of the workspace.
    pub sort_by: WorkspaceSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Substring of the name, in any letter case; an exact match comes first.
    pub name: String,
    /// Only those put away, or only others.
    pub archived: Option<bool>,
    /// Only these owners, by name.
    pub users: Vec<String>,
    /// Only those pinned by the caller, or only others.
    pub pinned: Option<bool>,
    /// Only these owners, by number.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub user_ids: Vec<UserId>,
    /// Only the workspace of exactly this name, letter case included; empty = all.
    pub name_case_sensitive: String,
}

/// Answer of `GetWorkspaces`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspacesResponse {
    /// The page's workspaces.
    pub workspaces: Vec<Workspace>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspaceResponse {
    /// The workspace that the path names.
    pub workspace: Workspace,
}

/// Query of `GetWorkspaceProjects`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetWorkspaceProjectsQuery {
    /// Attribute to sort by; unspecified = by number of the project.
    pub sort_by: ProjectSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Substring of the name, in any letter case.
    pub name: String,
    /// Only those put away, or only others.
    pub archived: Option<bool>,
    /// Only these owners, by name.
    pub users: Vec<String>,
    /// Only these owners, by number.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub user_ids: Vec<UserId>,
}

/// Answer of `GetWorkspaceProjects`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspaceProjectsResponse {
    /// The page's projects.
    pub projects: Vec<Project>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetProject`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetProjectResponse {
    /// The project that the request names, as it is now.
    pub project: Project,
}

/// The Kubernetes namespace that a workspace is to have in a cluster: one of the first three fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceNamespaceMeta {
    /// Name of one that exists.
    pub namespace: Option<String>,
    /// Whether to make a namespace for the workspace.
    pub auto_create_namespace: bool,
    /// Whether to make one in each cluster.
    pub auto_create_namespace_all_clusters: bool,
    /// Name of the cluster: that of its resource manager.
    pub cluster_name: Option<String>,
    /// Most slots in use at once in it, if it is made; -1 = no limit.
    pub resource_quota: Option<i64>,
}

/// The Kubernetes namespace of a workspace in a cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceNamespaceBinding {
    /// Number of the workspace.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the cluster: that of its resource manager.
    pub cluster_name: String,
    /// Whether it was made for the workspace.
    pub auto_create_namespace: bool,
}

/// Body of `PostWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostWorkspaceRequest {
    /// Name of the new workspace, which no other may have.
    pub name: String,
    /// Unix identity of tasks in it.
    pub agent_user_group: Option<AgentUserGroup>,
    /// Checkpoint storage of experiments in it.
    pub checkpoint_storage_config: Option<Object>,
    /// Default pool of work with slots.
    pub default_compute_pool: Option<String>,
    /// Default pool of work without slots.
    pub default_aux_pool: Option<String>,
    /// The namespaces that it is to have in Kubernetes, by name of the cluster.
    pub cluster_namespace_meta: BTreeMap<String, WorkspaceNamespaceMeta>,
    /// Limits of slots by cluster; the empty name is this one.
    pub cluster_quota_pairs: BTreeMap<String, i64>,
    /// Our own: most slots in use at once by all work in it; -1 = no limit.
    pub max_slots: Option<i64>,
}

/// Answer of `PostWorkspace` and `PatchWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangedWorkspaceResponse {
    /// The workspace as it is now.
    pub workspace: Workspace,
    /// Kubernetes namespaces that it was bound to, by cluster.
    pub namespace_bindings: BTreeMap<String, WorkspaceNamespaceBinding>,
}

/// Body of `PatchWorkspace`. Null leaves things as they are; an empty text, object or identity clears them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchWorkspace {
    /// New name, not in use; `None` = it stays.
    pub name: Option<String>,
    /// Unix identity of tasks in it.
    pub agent_user_group: Option<AgentUserGroup>,
    /// Checkpoint storage of experiments in it.
    pub checkpoint_storage_config: Option<Object>,
    /// Default pool of work with slots.
    pub default_compute_pool: Option<String>,
    /// The same under an older name.
    pub default_compute_resource_pool: Option<String>,
    /// Default pool of work without slots.
    pub default_aux_pool: Option<String>,
    /// The same under an older name.
    pub default_aux_resource_pool: Option<String>,
    /// The namespaces that it is to have in Kubernetes, by name of the cluster.
    pub cluster_namespace_meta: BTreeMap<String, WorkspaceNamespaceMeta>,
    /// Our own: most slots in use at once by all work in it; -1 = no limit.
    pub max_slots: Option<i64>,
}

/// Answer of `DeleteWorkspace` and `DeleteProject`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeletionResponse {
    /// Whether it is gone; else it goes on.
    pub completed: bool,
}

/// Body of `SetResourceQuotas`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetResourceQuotasRequest {
    /// The workspace again; the one in the path counts.
    #[schema(value_type = i64)]
    pub id: WorkspaceId,
    /// Limits of slots by cluster; the empty name is this one, -1 = no limit.
    pub cluster_quota_pairs: BTreeMap<String, i64>,
}

/// Answer of `GetKubernetesResourceQuotas`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetKubernetesResourceQuotasResponse {
    /// Limits of slots by cluster, as far as there are any.
    pub resource_quotas: BTreeMap<String, Float>,
}

/// Body of `SetWorkspaceNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetWorkspaceNamespaceBindingsRequest {
    /// The workspace again; the one in the path counts.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Namespaces by cluster; the empty name is the only one, or the main one.
    pub cluster_namespace_meta: BTreeMap<String, WorkspaceNamespaceMeta>,
}

/// Answer of `SetWorkspaceNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetWorkspaceNamespaceBindingsResponse {
    /// The namespaces that it was bound to, by cluster.
    pub namespace_bindings: BTreeMap<String, WorkspaceNamespaceBinding>,
}

/// Query of `DeleteWorkspaceNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct DeleteWorkspaceNamespaceBindingsQuery {
    /// The clusters; none, or the empty name = the only one, or the main one.
    pub cluster_names: Vec<String>,
}

/// Answer of `ListWorkspaceNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListWorkspaceNamespaceBindingsResponse {
    /// The namespaces of its work by cluster, default ones included.
    pub namespace_bindings: BTreeMap<String, WorkspaceNamespaceBinding>,
}

/// Answer of `GetWorkspacesWithDefaultNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspacesWithDefaultNamespaceBindingsResponse {
    /// Those whose work runs in the default namespace of a cluster at least.
    #[schema(value_type = Vec<i64>)]
    pub workspace_ids: Vec<WorkspaceId>,
}

/// Body of `BulkAutoCreateWorkspaceNamespaceBindings`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BulkAutoCreateWorkspaceNamespaceBindingsRequest {
    /// Numbers of the workspaces.
    #[schema(value_type = Vec<i64>)]
    pub workspace_ids: Vec<WorkspaceId>,
}

/// Query of `ListRPsBoundToWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct ListRPsBoundToWorkspaceQuery {
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
}

/// Answer of `ListRPsBoundToWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListRPsBoundToWorkspaceResponse {
    /// Pools that work in the workspace may use.
    pub resource_pools: Vec<String>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Body of `PostProject`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostProjectRequest {
    /// Name, not in use in the workspace.
    pub name: String,
    /// What the project is for, free text; `None` = empty.
    pub description: Option<String>,
    /// The workspace again; the one in the path counts.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
    /// Short name, not in use in the cluster; made of the name if not given.
    pub key: Option<String>,
}

/// Body of `PatchProject`. Null leaves things as they are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchProject {
    /// New name, not in use in the workspace; `None` = it stays.
    pub name: Option<String>,
    /// New description; empty clears it.
    pub description: Option<String>,
    /// New short name, unique over the cluster; `None` = it stays.
    pub key: Option<String>,
}

/// Body of `MoveProject`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MoveProjectRequest {
    /// The project again; the one in the path counts.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
    /// The workspace that it moves to.
    #[schema(value_type = i64)]
    pub destination_workspace_id: WorkspaceId,
}

/// Body of `PutProjectNotes`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutProjectNotesRequest {
    /// All notes, in place of those there were.
    pub notes: Vec<Note>,
    /// The project again; the one in the path counts.
    #[schema(value_type = i64)]
    pub project_id: ProjectId,
}

/// Answer of `AddProjectNote` and `PutProjectNotes`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectNotesResponse {
    /// All notes as they are now.
    pub notes: Vec<Note>,
}
