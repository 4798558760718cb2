//! Tasks that users launch by themselves: commands, shells and generic tasks.

use det_ids::{ExperimentId, JobId, ProjectId, TaskId, TrialId, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::agents::Container;
use crate::experiments::{BulkExperimentFilters, File, LaunchWarning};
use crate::page::{Failure, OrderBy, Pagination};
use crate::tasks::TaskState;
use crate::wire::{Object, Timestamp, wire_enum};

wire_enum! {
    /// What a list of launched tasks is sorted by.
    pub enum LaunchSortBy("SORT_BY_") {
        /// By the time of the launch.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By id of the task, as text.
        Id = 1 => "ID",
        /// By the name that its owner gave it.
        Description = 2 => "DESCRIPTION",
        /// By the time of the launch.
        StartTime = 4 => "START_TIME",
        /// By number of the workspace.
        WorkspaceId = 5 => "WORKSPACE_ID",
    }
}

/// Query of `GetCommands` and its like.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetLaunchesQuery {
    /// What to sort by.
    pub sort_by: LaunchSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Only those of users with these names.
    pub users: Vec<String>,
    /// Only those of users with these numbers.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub user_ids: Vec<UserId>,
    /// Only those in this workspace; 0 = in all.
    #[schema(value_type = i64)]
    #[param(value_type = i64)]
    pub workspace_id: WorkspaceId,
}

/// Declares the messages of one kind of launched task: the object with what only this kind has, and the answers that contain
/// it as `$field`, or `$list` in a list.
macro_rules! launched {
    (
        $(#[$doc:meta])*
        $object:ident, $field:ident, $list:ident,
        $launch_request:ident, $launch_response:ident, $get_response:ident, $list_response:ident, $change_response:ident,
        $priority_request:ident, $id:ident,
        { $($(#[$asked_doc:meta])* $asked:ident: $asked_kind:ty,)* },
        { $($(#[$own_doc:meta])* $own:ident: $kind:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $object {
            /// Its id, a UUID.
            #[schema(value_type = String)]
            pub id: TaskId,
            /// The name that its owner gave it, or one that was generated.
            pub description: String,
            /// State of the task: that of its live allocation, queued without one, or terminated once it has ended.
            pub state: TaskState,
            /// When it was launched.
            pub start_time: Timestamp,
            /// Its container; `None` = it has none at present.
            pub container: Option<Container>,
            /// Name of its owner for display.
            pub display_name: String,
            /// Number of the user who owns it.
            #[schema(value_type = i64)]
            pub user_id: UserId,
            /// User name of the owner.
            pub username: String,
            /// Pool that it waits or runs in.
            pub resource_pool: String,
            /// How it ended, a sentence; empty while it lives.
            pub exit_status: String,
            /// Exit code of its program; `None` = it has not ended, or it was killed or lost (an addition of ours).
            pub exit_code: Option<i64>,
            /// Why it failed; `None` = it has not (an addition of ours).
            pub last_failure: Option<Failure>,
            /// Whether it is paused, and asks for nothing until it is resumed; its state is then that of what waits (an
            /// addition of ours).
            pub paused: bool,
            /// Its entry of the queue.
            #[schema(value_type = String)]
            pub job_id: JobId,
            /// The workspace that it is in.
            #[schema(value_type = i64)]
            pub workspace_id: WorkspaceId,
            $($(#[$own_doc])* pub $own: $kind,)*
        }

        /// Body of the launch.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $launch_request {
            /// Configuration of the task, over that of the template.
            pub config: Object,
            /// Name of a template that the configuration is laid over; empty = none.
            pub template_name: String,
            /// Files of the context directory.
            pub files: Vec<File>,
            /// Not read; older clients send it.
            pub data: String,
            /// Workspace; 0 = Uncategorized.
            #[schema(value_type = i64)]
            pub workspace_id: WorkspaceId,
            /// Check only; nothing is stored.
            pub preview: bool,
            $($(#[$asked_doc])* pub $asked: $asked_kind,)*
        }

        /// Answer of the launch.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $launch_response {
            /// The new task.
            pub $field: $object,
            /// The configuration that it runs with, defaults and template included, secrets hidden.
            pub config: Object,
            /// What the user should know.
            pub warnings: Vec<LaunchWarning>,
            /// Warnings about the configuration, as sentences (an addition of ours).
            pub messages: Vec<String>,
        }

        /// The task with its configuration.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $get_response {
            /// The task that the path names.
            pub $field: $object,
            /// The configuration that it runs with, defaults and template included, secrets hidden.
            pub config: Object,
        }

        /// One page of the tasks.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $list_response {
            /// The page's tasks.
            pub $list: Vec<$object>,
            /// Position of the page in the whole list.
            pub pagination: Pagination,
        }

        /// The task after a change.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $change_response {
            /// The task as it is now.
            pub $field: $object,
        }

        /// Body of a change of its priority.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $priority_request {
            /// The task again; the one in the address counts.
            #[schema(value_type = String)]
            pub $id: TaskId,
            /// 1 to 99; which goes first is the pool's.
            pub priority: i64,
        }
    };
}

launched! {
    /// A command: a program that runs in a container until it ends.
    Command, command, commands,
    LaunchCommandRequest, LaunchCommandResponse, GetCommandResponse, GetCommandsResponse, CommandResponse,
    SetCommandPriorityRequest, command_id, {}, {}
}

launched! {
    /// A shell: an SSH server in a container.
    Shell, shell, shells,
    LaunchShellRequest, LaunchShellResponse, GetShellResponse, GetShellsResponse, ShellResponse,
    SetShellPriorityRequest, shell_id, {}, {
        /// The key that opens it, in OpenSSH's format; empty for all but its owner and the owner's tasks.
        private_key: String,
        /// The public part of the key, as in `authorized_keys`.
        public_key: String,
        /// Its ports: `containerPort`, `hostIp`, `hostPort`.
        addresses: Vec<Object>,
        /// As whom one enters it: `user`, `uid`, `group`, `gid`.
        agent_user_group: Option<Object>,
    }
}

launched! {
    /// A notebook: a `JupyterLab` in a container.
    Notebook, notebook, notebooks,
    LaunchNotebookRequest, LaunchNotebookResponse, GetNotebookResponse, GetNotebooksResponse, NotebookResponse,
    SetNotebookPriorityRequest, notebook_id, {}, {
        /// Its path on the master. For its owner and the owner's tasks it has the token that the notebook asks for.
        service_address: String,
    }
}

launched! {
    /// A TensorBoard over experiments and trials.
    Tensorboard, tensorboard, tensorboards,
    LaunchTensorboardRequest, LaunchTensorboardResponse, GetTensorboardResponse, GetTensorboardsResponse,
    TensorboardResponse, SetTensorboardPriorityRequest, tensorboard_id, {
        /// Experiments to show, with their trials.
        #[schema(value_type = Vec<i64>)]
        experiment_ids: Vec<ExperimentId>,
        /// Single trials to show, by number.
        #[schema(value_type = Vec<i64>)]
        trial_ids: Vec<TrialId>,
        /// Experiments to show as well: those that match. `projectId` must be given.
        filters: Option<BulkExperimentFilters>,
    }, {
        /// The experiments that it shows.
        #[schema(value_type = Vec<i64>)]
        experiment_ids: Vec<ExperimentId>,
        /// The single trials that it shows.
        #[schema(value_type = Vec<i64>)]
        trial_ids: Vec<TrialId>,
        /// Its path on the master.
        service_address: String,
    }
}

/// Body of `IdleNotebook`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IdleNotebookRequest {
    /// The notebook again; the one in the address counts.
    #[schema(value_type = String)]
    pub notebook_id: TaskId,
    /// Whether it is not in use.
    pub idle: bool,
}

/// Body of `CreateGenericTask`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateGenericTaskRequest {
    /// Files of the context directory.
    pub context_directory: Vec<File>,
    /// The configuration, YAML text.
    pub config: String,
    /// Project whose workspace it goes into; 0 = Uncategorized.
    #[schema(value_type = Option<i64>)]
    pub project_id: Option<ProjectId>,
    /// Task whose configuration and files it begins with.
    #[schema(value_type = Option<String>)]
    pub forked_from: Option<TaskId>,
    /// Task that it belongs to.
    #[schema(value_type = Option<String>)]
    pub parent_id: Option<TaskId>,
    /// Whether it starts with the files of its parent.
    pub inherit_context: Option<bool>,
    /// Whether it is never paused.
    pub no_pause: Option<bool>,
    /// Template to lay the configuration over; empty = none (an addition of ours).
    pub template_name: String,
    /// Check and complete the configuration, and launch nothing (an addition of ours).
    pub preview: bool,
}

/// Answer of `CreateGenericTask`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateGenericTaskResponse {
    /// The new task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// What the user should know.
    pub warnings: Vec<LaunchWarning>,
    /// Warnings about the configuration, as sentences (an addition of ours).
    pub messages: Vec<String>,
    /// The effective configuration, JSON text, secrets hidden (an addition of ours).
    pub config: String,
}

/// Answer of `GetGenericTaskConfig`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetGenericTaskConfigResponse {
    /// The effective configuration, JSON text.
    pub config: String,
}

/// Body of `KillGenericTask`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KillGenericTaskRequest {
    /// The task again; the one in the address counts.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Whether everything ends that belongs to the same task as this one.
    pub kill_from_root: bool,
}
