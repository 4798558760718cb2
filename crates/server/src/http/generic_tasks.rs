//! Generic tasks: commands that can be paused, forked and made of several.

use axum::extract::Path;
use det_api_types::launches::{
    CreateGenericTaskRequest, CreateGenericTaskResponse, GetGenericTaskConfigResponse,
    KillGenericTaskRequest,
};
use det_api_types::page::Empty;
use det_config::task::LaunchKind;
use det_ids::{ProjectId, TaskId};
use det_taskspec::TaskKind;

use crate::app::launches::{GenericRequest, LaunchRequest, SubtreeStart, TensorBoardRequest};
use crate::app::{changes, reads};
use crate::http::context_files::context_files;
use crate::http::extract::{Caller, WireBody};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::launch_warnings;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(create_generic_task))
        .routes(routes!(get_generic_task_config))
        .routes(routes!(kill_generic_task))
        .routes(routes!(pause_generic_task))
        .routes(routes!(unpause_generic_task))
}

/// Launches a generic task, or only checks its configuration.
#[utoipa::path(post, path = "/api/v1/generic-tasks", operation_id = "CreateGenericTask", tag = "tasks",
    request_body = CreateGenericTaskRequest, responses((status = 200, body = CreateGenericTaskResponse)))]
async fn create_generic_task(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<CreateGenericTaskRequest>,
) -> Answer {
    let request = LaunchRequest {
        kind: LaunchKind::Generic,
        config: body.config,
        files: context_files("contextDirectory", body.context_directory)?,
        workspace_id: None,
        templates: Some(body.template_name)
            .into_iter()
            .filter(|name| !name.is_empty())
            .collect(),
        preview: body.preview,
        tensorboard: TensorBoardRequest::default(),
        generic: GenericRequest {
            project_id: body.project_id.and_then(ProjectId::given),
            parent: body.parent_id.and_then(TaskId::given),
            forked_from: body.forked_from.and_then(TaskId::given),
            inherit_context: body.inherit_context.unwrap_or_default(),
            no_pause: body.no_pause.unwrap_or_default(),
        },
    };
    let (made, _) = changes::launch(&master.changes.launches, &actor, request).await?;
    message(&CreateGenericTaskResponse {
        task_id: made.id.unwrap_or_default(),
        warnings: launch_warnings(made.slots_exceeded),
        messages: made.warnings,
        config: made.config.to_string(),
    })
}

/// The configuration of a generic task.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/config", operation_id = "GetGenericTaskConfig", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetGenericTaskConfigResponse)))]
async fn get_generic_task_config(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    let kind = TaskKind::Generic;
    let (_, config) =
        reads::tasks::launched_with_config(&master.sources.tasks, &actor, kind, &id).await?;
    message(&GetGenericTaskConfigResponse {
        config: config.to_string(),
    })
}

/// Ends a generic task at once, with those that belong to it.
#[utoipa::path(post, path = "/api/v1/tasks/{taskId}/kill", operation_id = "KillGenericTask", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    request_body = KillGenericTaskRequest, responses((status = 200, body = Empty)))]
async fn kill_generic_task(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<KillGenericTaskRequest>,
) -> Answer {
    let from = if body.kill_from_root {
        SubtreeStart::Root
    } else {
        SubtreeStart::Task
    };
    let kind = TaskKind::Generic;
    master.launches.kill(&actor, kind, &id, from).await?;
    empty()
}

/// Lets a generic task give its slots back and rest, with those that belong to it.
#[utoipa::path(post, path = "/api/v1/tasks/{taskId}/pause", operation_id = "PauseGenericTask", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")), responses((status = 200, body = Empty)))]
async fn pause_generic_task(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    master.launches.pause(&actor, &id).await?;
    empty()
}

/// Lets a paused generic task go on, with those that belong to it.
#[utoipa::path(post, path = "/api/v1/tasks/{taskId}/unpause", operation_id = "UnpauseGenericTask", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")), responses((status = 200, body = Empty)))]
async fn unpause_generic_task(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    master.launches.activate(&actor, &id).await?;
    empty()
}
