//! Where clients send a browser for a notebook or a TensorBoard: a page that waits until it is ready, and then leads there.

use axum::extract::{Path, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use det_ids::TaskId;
use det_lifecycle::allocation::AllocationState;
use det_taskspec::TaskKind;

use crate::app::reads::tasks::LaunchedView;
use crate::app::{Master, existing, reads};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::caller_of;
use crate::http::page::{AGAIN, answer, escape, layout, login, refused};
use crate::http::views::launches;
use crate::http::views::tasks::wait_reason;

/// `/det/interactive/TASK/…`, as clients of 0.38.1 write it.
pub(crate) const PATH: &str = "/det/interactive/{taskId}/{*rest}";
/// `/det/wait/KIND/TASK`, an older form.
pub(crate) const OLDER_PATH: &str = "/det/wait/{kind}/{taskId}";

/// The page of a task.
pub(crate) async fn show(
    State(master): State<Master>,
    Path((task, _)): Path<(TaskId, String)>,
    request: Request,
) -> Response {
    shown(&master, task, request).await
}

/// The page of a task at its older address.
pub(crate) async fn show_older(
    State(master): State<Master>,
    Path((_, task)): Path<(String, TaskId)>,
    request: Request,
) -> Response {
    shown(&master, task, request).await
}

async fn shown(master: &Master, task: TaskId, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let actor = match caller_of(&parts, master).await {
        Err(error) if error.kind == ErrorKind::Unauthenticated => {
            return login::first(&parts).unwrap_or_else(|error| ApiError(error).into_response());
        }
        Err(error) => Err(error),
        Ok(actor) => find(master, &actor, &task).await,
    };
    match actor {
        Ok(view) => of(&view).unwrap_or_else(|error| refused(&error)),
        Err(error) => refused(&error),
    }
}

async fn find(master: &Master, actor: &crate::auth::Actor, id: &TaskId) -> AppResult<LaunchedView> {
    let row = reads::tasks::find(&master.context.store, actor, id).await?;
    match row.kind {
        TaskKind::Notebook | TaskKind::Tensorboard => {
            reads::tasks::launched_one(&master.sources.tasks, actor, row.kind, id).await
        }
        _ => Err(existing::no_task_of(TaskKind::Notebook, id)),
    }
}

fn of(view: &LaunchedView) -> AppResult<Response> {
    let state = view.attempt.as_ref().map(|attempt| &attempt.state);
    if view.row.ended_at.is_none() && matches!(state, Some(AllocationState::Ready)) {
        let to = HeaderValue::try_from(launches::service_address(view));
        let to = to.map_err(AppError::internal)?;
        return Ok((StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response());
    }
    let name = escape(&view.row.description);
    let logs = format!(
        "<p>Its log: <code>det task logs -f {}</code></p>",
        view.row.id
    );
    if view.row.ended_at.is_some() {
        let why = escape(&launches::exit_status(view));
        let body = format!("<h1>{name} has ended</h1>\n<p>{why}</p>\n{logs}");
        return Ok(answer(layout(&name, "", &body)));
    }
    let what = match view.attempt.as_ref().and_then(wait_reason) {
        Some(reason) => format!("It waits for slots: {}.", escape(&reason.message)),
        None => "It starts.".to_owned(),
    };
    let body = format!(
        "<h1>{name} is not ready yet</h1>\n<p>{what}</p>\n{logs}\n<p>This page reloads by itself, and opens it once it is ready.</p>"
    );
    Ok(answer(layout(&name, AGAIN, &body)))
}
