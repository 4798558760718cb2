//! Tasks: whatever runs containers.

use axum::extract::Path;
use det_api_types::tasks::{
    AllocationSummary, CleanupLogsResponse, GetActiveTasksCountResponse,
    GetTaskAcceleratorDataResponse, GetTaskContextDirectoryResponse, GetTaskResponse,
    GetTasksQuery, GetTasksResponse,
};
use det_api_types::wire::Int64;
use det_ids::TaskId;
use det_taskspec::TaskKind;

use crate::app::reads;
use crate::app::reads::model_definition::Archive;
use crate::http::extract::{Caller, WireQuery};
use crate::http::model_definition::archive_as_text;
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_tasks))
        .routes(routes!(get_plain_tasks))
        .routes(routes!(get_active_tasks_count))
        .routes(routes!(get_task))
        .routes(routes!(get_task_context_directory))
        .routes(routes!(get_task_accelerator_data))
        .routes(routes!(cleanup_logs))
}

/// Live allocations with their containers.
#[utoipa::path(get, path = "/api/v1/tasks", operation_id = "GetTasks", tag = "tasks",
    params(GetTasksQuery), responses((status = 200, body = GetTasksResponse)))]
async fn get_tasks(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetTasksQuery>,
) -> Answer {
    let live = reads::tasks::live(&master.sources.tasks, &actor, query.with_ended).await?;
    message(&GetTasksResponse {
        allocation_id_to_summary: views::tasks::summaries(&live),
        paused_tasks: views::tasks::paused(&live),
        ended_tasks: views::tasks::ended(&live),
    })
}

/// Live allocations with their containers, by allocation id: the address that scripts of older clients poll.
#[utoipa::path(get, path = "/tasks", operation_id = "PlainTasks", tag = "tasks",
    responses((status = 200, body = BTreeMap<String, AllocationSummary>)))]
async fn get_plain_tasks(Caller(master, actor): Caller) -> Answer {
    let live = reads::tasks::live(&master.sources.tasks, &actor, false).await?;
    message(&views::tasks::summaries(&live))
}

/// How many interactive tasks live.
#[utoipa::path(get, path = "/api/v1/tasks/count", operation_id = "GetActiveTasksCount", tag = "tasks",
    responses((status = 200, body = GetActiveTasksCountResponse)))]
async fn get_active_tasks_count(Caller(master, actor): Caller) -> Answer {
    let mut counts = GetActiveTasksCountResponse::default();
    for kind in reads::tasks::live_kinds(&master.context.store, &actor).await? {
        match kind {
            TaskKind::Command => counts.commands += 1,
            TaskKind::Notebook => counts.notebooks += 1,
            TaskKind::Shell => counts.shells += 1,
            TaskKind::Tensorboard => counts.tensorboards += 1,
            TaskKind::Trial | TaskKind::CheckpointGc | TaskKind::Generic => {}
        }
    }
    message(&counts)
}

/// One task with its attempts, running ones first.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}", operation_id = "GetTask", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskResponse)))]
async fn get_task(Caller(master, actor): Caller, Path(task_id): Path<TaskId>) -> Answer {
    message(&GetTaskResponse {
        task: views::tasks::task(
            &reads::tasks::whole(&master.sources.tasks, &actor, &task_id).await?,
        ),
    })
}

/// The files that a task starts with: a gzip tar as base64.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/context_directory", operation_id = "GetTaskContextDirectory", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskContextDirectoryResponse)))]
async fn get_task_context_directory(
    Caller(master, actor): Caller,
    Path(task_id): Path<TaskId>,
) -> Answer {
    match Archive::of_task(&master.sources.archives, &actor, &task_id).await? {
        Some(archive) => Ok(archive_as_text(archive).await?),
        None => message(&GetTaskContextDirectoryResponse::default()),
    }
}

/// What the containers of all attempts of a task found for accelerators.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/acceleratorData", operation_id = "GetTaskAcceleratorData", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskAcceleratorDataResponse)))]
async fn get_task_accelerator_data(
    Caller(master, actor): Caller,
    Path(task_id): Path<TaskId>,
) -> Answer {
    let mut accelerator_data = Vec::new();
    for container in reads::tasks::containers(&master.context.store, &actor, &task_id).await? {
        accelerator_data.extend(views::tasks::accelerators(&container)?);
    }
    message(&GetTaskAcceleratorDataResponse { accelerator_data })
}

/// Deletes the logs that have been kept long enough, now.
#[utoipa::path(post, path = "/api/v1/cleanup_logs", operation_id = "CleanupLogs", tag = "tasks",
    responses((status = 200, body = CleanupLogsResponse)))]
async fn cleanup_logs(Caller(master, actor): Caller) -> Answer {
    message(&CleanupLogsResponse {
        removed_count: Int64(master.log_retention.clean_up(&actor).await?),
    })
}
