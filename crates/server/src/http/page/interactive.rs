//! Where clients send a browser for a notebook or a TensorBoard: a page that waits until it is ready, and then leads there.

use axum::extract::{Path, Request};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use det_ids::TaskId;
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::task::TaskState;
use serde::Deserialize;

use crate::app::reads;
use crate::app::reads::tasks::LaunchedView;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::Caller;
use crate::http::page::{AGAIN, answer, escape, layout, login, refused};
use crate::http::views::launches;
use crate::http::views::tasks::wait_reason;

/// `/det/interactive/TASK/…`, as clients of 0.38.1 write it.
pub(crate) const PATH: &str = "/det/interactive/{taskId}/{*rest}";
/// `/det/wait/KIND/TASK`, an older form.
pub(crate) const OLDER_PATH: &str = "/det/wait/{kind}/{taskId}";

/// The task that an address of either form names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageOf {
    task_id: TaskId,
}

/// The page of a task.
pub(crate) async fn show(
    caller: Result<Caller, ApiError>,
    Path(page): Path<PageOf>,
    request: Request,
) -> Response {
    let view = match caller {
        Err(ApiError(error)) if error.kind == ErrorKind::Unauthenticated => {
            let (parts, _) = request.into_parts();
            return login::first(&parts).unwrap_or_else(|error| ApiError(error).into_response());
        }
        Err(ApiError(error)) => Err(error),
        Ok(Caller(master, actor)) => {
            reads::tasks::with_page(&master.sources.tasks, &actor, &page.task_id).await
        }
    };
    view.and_then(|view| of(&view))
        .unwrap_or_else(|error| refused(&error))
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
    if view.row.state == TaskState::Suspended {
        let id = &view.row.id;
        let body = format!(
            "<h1>{name} is paused</h1>\n<p>It goes on after <code>det task unpause {id}</code>.</p>\n{logs}\n<p>This page \
             reloads by itself, and opens it once it is ready.</p>"
        );
        return Ok(answer(layout(&name, AGAIN, &body)));
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
