//! Tasks: whatever runs containers.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use det_api_types::tasks::{
    CleanupLogsResponse, GetActiveTasksCountResponse, GetTaskAcceleratorDataResponse,
    GetTaskContextDirectoryResponse, GetTaskResponse, GetTasksResponse, TaskType,
};
use det_api_types::wire::Int64;
use det_store::allocations::TaskRow;
use det_store::{Conn, agents, allocations, experiments};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use det_scheduler::Policy;

use crate::app::Master;
use crate::error::{AppError, AppResult};
use crate::http::extract::Caller;
use crate::http::respond::{Answer, message};
use crate::http::views;

/// Bytes of an archive that are turned into text at once; a multiple of three, so that the pieces join without padding.
const PIECE: usize = 48 * 1024;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_tasks))
        .routes(routes!(get_active_tasks_count))
        .routes(routes!(get_task))
        .routes(routes!(get_task_context_directory))
        .routes(routes!(get_task_accelerator_data))
        .routes(routes!(cleanup_logs))
}

/// A task, or the refusal that it does not exist.
pub(crate) async fn find_task(conn: &mut Conn<'_>, task_id: &str) -> AppResult<TaskRow> {
    allocations::find_task(conn, task_id)
        .await?
        .ok_or_else(|| AppError::not_found("task", task_id.escape_debug()))
}

/// Live allocations with their containers.
#[utoipa::path(get, path = "/api/v1/tasks", operation_id = "GetTasks", tag = "tasks",
    responses((status = 200, body = GetTasksResponse)))]
async fn get_tasks(State(master): State<Master>, _caller: Caller) -> Answer {
    let mut conn = master.store.read().await?;
    let live = allocations::live(&mut conn.conn()).await?;
    let containers = allocations::live_containers(&mut conn.conn()).await?;
    let agents = agents::list(&mut conn.conn()).await?;
    let jobs = experiments::live_jobs(&mut conn.conn()).await?;
    drop(conn);
    // The client knows this one by its short name.
    let scheduler = |pool: &str| match master.pool_settings(pool).policy {
        Policy::Priority { .. } => "priority".to_owned(),
        Policy::FairShare => "fair_share".to_owned(),
        Policy::RoundRobin => "round_robin".to_owned(),
    };
    let summaries = views::tasks::summaries(&live, &containers, &agents, &jobs, scheduler)?;
    message(&GetTasksResponse {
        allocation_id_to_summary: summaries,
    })
}

/// How many interactive tasks live.
#[utoipa::path(get, path = "/api/v1/tasks/count", operation_id = "GetActiveTasksCount", tag = "tasks",
    responses((status = 200, body = GetActiveTasksCountResponse)))]
async fn get_active_tasks_count(State(master): State<Master>, _caller: Caller) -> Answer {
    let mut conn = master.store.read().await?;
    let live = allocations::live(&mut conn.conn()).await?;
    let mut counts = GetActiveTasksCountResponse::default();
    // Trials are not counted here, and they are nearly all that lives.
    for allocation in live.iter().filter(|a| a.trial_id.is_none()) {
        let task = find_task(&mut conn.conn(), &allocation.task_id).await?;
        match TaskType::from_name(&task.kind) {
            Some(TaskType::Command) => counts.commands += 1,
            Some(TaskType::Notebook) => counts.notebooks += 1,
            Some(TaskType::Shell) => counts.shells += 1,
            Some(TaskType::Tensorboard) => counts.tensorboards += 1,
            Some(
                TaskType::Unspecified
                | TaskType::Trial
                | TaskType::CheckpointGc
                | TaskType::Generic,
            )
            | None => {}
        }
    }
    message(&counts)
}

/// One task with its attempts, running ones first.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}", operation_id = "GetTask", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskResponse)))]
async fn get_task(
    State(master): State<Master>,
    _caller: Caller,
    Path(task_id): Path<String>,
) -> Answer {
    let mut conn = master.store.read().await?;
    let row = find_task(&mut conn.conn(), &task_id).await?;
    let allocations = allocations::of_task(&mut conn.conn(), &task_id).await?;
    message(&GetTaskResponse {
        task: views::tasks::task(&row, &allocations)?,
    })
}

/// The files that a task starts with: a gzip tar as base64.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/context_directory", operation_id = "GetTaskContextDirectory", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskContextDirectoryResponse)))]
async fn get_task_context_directory(
    State(master): State<Master>,
    _caller: Caller,
    Path(task_id): Path<String>,
) -> Answer {
    let mut conn = master.store.read().await?;
    let row = find_task(&mut conn.conn(), &task_id).await?;
    let archive = match row.experiment_id {
        Some(id) => experiments::model_definition(&mut conn.conn(), id)
            .await?
            .unwrap_or_default(),
        None => Vec::new(),
    };
    drop(conn);
    Ok(archive_as_text(archive))
}

/// `{"b64Tgz":"…"}`, written piece by piece: the text of a large archive never exists as a whole.
pub(crate) fn archive_as_text(archive: Vec<u8>) -> Response {
    let archive = Bytes::from(archive);
    let pieces = (0..archive.len()).step_by(PIECE).map(move |start| {
        let end = (start + PIECE).min(archive.len());
        Bytes::from(STANDARD.encode(&archive[start..end]))
    });
    let text = std::iter::once(Bytes::from_static(b"{\"b64Tgz\":\""))
        .chain(pieces)
        .chain(std::iter::once(Bytes::from_static(b"\"}")))
        .map(Ok::<_, Infallible>);
    // The archive is compressed already: `identity` keeps the compression layer from doing it again.
    (
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CONTENT_ENCODING, "identity"),
        ],
        Body::from_stream(futures::stream::iter(text)),
    )
        .into_response()
}

/// What the containers of all attempts of a task found for accelerators.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/acceleratorData", operation_id = "GetTaskAcceleratorData", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")),
    responses((status = 200, body = GetTaskAcceleratorDataResponse)))]
async fn get_task_accelerator_data(
    State(master): State<Master>,
    _caller: Caller,
    Path(task_id): Path<String>,
) -> Answer {
    let mut conn = master.store.read().await?;
    find_task(&mut conn.conn(), &task_id).await?;
    let mut accelerator_data = Vec::new();
    for allocation in allocations::of_task(&mut conn.conn(), &task_id).await? {
        for container in allocations::containers(&mut conn.conn(), &allocation.id).await? {
            accelerator_data.extend(views::tasks::accelerators(&container)?);
        }
    }
    message(&GetTaskAcceleratorDataResponse { accelerator_data })
}

/// Deletes the logs that have been kept long enough, now.
#[utoipa::path(post, path = "/api/v1/cleanup_logs", operation_id = "CleanupLogs", tag = "tasks",
    responses((status = 200, body = CleanupLogsResponse)))]
async fn cleanup_logs(State(master): State<Master>, Caller(actor): Caller) -> Answer {
    message(&CleanupLogsResponse {
        removed_count: Int64(master.clean_up_logs(&actor).await?),
    })
}

#[cfg(test)]
mod tests {
    use det_api_types::wire;

    use super::*;

    #[tokio::test]
    async fn an_archive_in_pieces_reads_as_one() {
        for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 2] {
            let archive: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let body =
                axum::body::to_bytes(archive_as_text(archive.clone()).into_body(), usize::MAX)
                    .await
                    .unwrap();
            let read: GetTaskContextDirectoryResponse = wire::decode(&body).unwrap();
            assert_eq!(read.b64_tgz.0, archive, "{size}");
        }
    }
}
