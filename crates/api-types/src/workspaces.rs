//! Workspaces and projects.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination};
use crate::users::AgentUserGroup;
use crate::wire::{Object, Timestamp, wire_enum};

wire_enum! {
    /// How far the deletion of a workspace or project is.
    pub enum WorkspaceState("WORKSPACE_STATE_") {
        /// Not asked for.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Going on.
        Deleting = 1 => "DELETING",
        /// Failed.
        DeleteFailed = 2 => "DELETE_FAILED",
        /// Done.
        Deleted = 3 => "DELETED",
    }
}

/// A workspace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Workspace {
    /// Number; 1 is the immutable one named Uncategorized.
    pub id: i64,
    /// Its name, unique.
    pub name: String,
    /// Whether it is put away.
    pub archived: bool,
    /// User name of the owner.
    pub username: String,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Projects in it.
    pub num_projects: i64,
    /// Whether the caller has pinned it.
    pub pinned: bool,
    /// Owner.
    pub user_id: i64,
    /// Experiments in it.
    pub num_experiments: i64,
    /// How far its deletion is.
    pub state: WorkspaceState,
    /// Why the deletion failed.
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
}

/// A note of a project.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// Title.
    pub name: String,
    /// Text, Markdown.
    pub contents: String,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Project {
    /// Number; 1 is the immutable one named Uncategorized.
    pub id: i64,
    /// Its name, unique in its workspace.
    pub name: String,
    /// Workspace it is in.
    pub workspace_id: i64,
    /// Description of the user.
    pub description: String,
    /// Start of its latest experiment.
    pub last_experiment_started_at: Option<Timestamp>,
    /// Notes of the users.
    pub notes: Vec<Note>,
    /// Experiments in it.
    pub num_experiments: i64,
    /// Live experiments in it.
    pub num_active_experiments: i64,
    /// Whether it is put away.
    pub archived: bool,
    /// User name of the owner.
    pub username: String,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Owner.
    pub user_id: i64,
    /// Name of its workspace.
    pub workspace_name: String,
    /// How far its deletion is.
    pub state: WorkspaceState,
    /// Why the deletion failed.
    pub error_message: String,
    /// Short name, unique over the cluster.
    pub key: String,
    /// Runs (trials) in it.
    pub num_runs: i64,
}

wire_enum! {
    /// Sort keys of `GetWorkspaces`.
    pub enum WorkspaceSortBy("SORT_BY_") {
        /// By id.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By id.
        Id = 1 => "ID",
        /// By name.
        Name = 2 => "NAME",
    }
}

wire_enum! {
    /// Sort keys of `GetWorkspaceProjects`.
    pub enum ProjectSortBy("SORT_BY_") {
        /// By id.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By creation.
        CreationTime = 1 => "CREATION_TIME",
        /// By start of the latest experiment.
        LastExperimentStartTime = 2 => "LAST_EXPERIMENT_START_TIME",
        /// By name.
        Name = 3 => "NAME",
        /// By description.
        Description = 4 => "DESCRIPTION",
        /// By id.
        Id = 5 => "ID",
    }
}

/// Query of `GetWorkspaces`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetWorkspacesQuery {
    /// Sort key.
    pub sort_by: WorkspaceSortBy,
    /// Direction.
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
    pub user_ids: Vec<i64>,
    /// Exactly this name.
    pub name_case_sensitive: String,
}

/// Answer of `GetWorkspaces`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspacesResponse {
    /// The page's workspaces.
    pub workspaces: Vec<Workspace>,
    /// Where the page lies.
    pub pagination: Pagination,
}

/// Answer of `GetWorkspace`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspaceResponse {
    /// The workspace.
    pub workspace: Workspace,
}

/// Query of `GetWorkspaceProjects`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetWorkspaceProjectsQuery {
    /// Sort key.
    pub sort_by: ProjectSortBy,
    /// Direction.
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
    pub user_ids: Vec<i64>,
}

/// Answer of `GetWorkspaceProjects`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetWorkspaceProjectsResponse {
    /// The page's projects.
    pub projects: Vec<Project>,
    /// Where the page lies.
    pub pagination: Pagination,
}

/// Answer of `GetProject`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetProjectResponse {
    /// The project.
    pub project: Project,
}
