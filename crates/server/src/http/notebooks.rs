//! Notebooks: `JupyterLab` in containers.

use axum::extract::Path;
use det_api_types::launches::{
    GetLaunchesQuery, GetNotebookResponse, GetNotebooksResponse, IdleNotebookRequest,
    LaunchNotebookRequest, LaunchNotebookResponse, Notebook, NotebookResponse,
    SetNotebookPriorityRequest,
};
use det_api_types::page::Empty;
use det_config::task::LaunchKind;
use det_ids::TaskId;
use det_taskspec::TaskKind;

use crate::app::reads::tasks::LaunchedView;
use crate::app::{changes, reads};
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message, object};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::{launch_request, launch_warnings, launched, service_address};

const KIND: TaskKind = TaskKind::Notebook;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_notebooks, launch_notebook))
        .routes(routes!(get_notebook))
        .routes(routes!(kill_notebook))
        .routes(routes!(set_notebook_priority))
        .routes(routes!(idle_notebook))
}

fn notebook(view: &LaunchedView) -> Notebook {
    let service_address = service_address(view);
    launched!(Notebook, view, { service_address })
}

/// Notebooks that live, and those that ended in the last 24 hours.
#[utoipa::path(get, path = "/api/v1/notebooks", operation_id = "GetNotebooks", tag = "notebooks",
    params(GetLaunchesQuery), responses((status = 200, body = GetNotebooksResponse)))]
async fn get_notebooks(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetLaunchesQuery>,
) -> Answer {
    let (page, pagination) =
        reads::tasks::launched(&master.sources.tasks, &actor, KIND, &query).await?;
    message(&GetNotebooksResponse {
        notebooks: page.iter().map(notebook).collect(),
        pagination,
    })
}

/// Launches a notebook, or only checks its configuration.
#[utoipa::path(post, path = "/api/v1/notebooks", operation_id = "LaunchNotebook", tag = "notebooks",
    request_body = LaunchNotebookRequest, responses((status = 200, body = LaunchNotebookResponse)))]
async fn launch_notebook(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<LaunchNotebookRequest>,
) -> Answer {
    let request = launch_request!(LaunchKind::Notebook, body);
    let (made, view) = changes::launch(&master.changes.launches, &actor, request).await?;
    message(&LaunchNotebookResponse {
        notebook: view.as_ref().map(notebook).unwrap_or_default(),
        config: object(made.config),
        warnings: launch_warnings(made.slots_exceeded),
        messages: made.warnings,
    })
}

/// A notebook with its effective configuration.
#[utoipa::path(get, path = "/api/v1/notebooks/{notebookId}", operation_id = "GetNotebook", tag = "notebooks",
    params(("notebookId" = String, Path, description = "the notebook")),
    responses((status = 200, body = GetNotebookResponse)))]
async fn get_notebook(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    let (view, config) =
        reads::tasks::launched_with_config(&master.sources.tasks, &actor, KIND, &id).await?;
    message(&GetNotebookResponse {
        notebook: notebook(&view),
        config: object(config),
    })
}

/// Ends a notebook at once; of one that has ended nothing changes.
#[utoipa::path(post, path = "/api/v1/notebooks/{notebookId}/kill", operation_id = "KillNotebook", tag = "notebooks",
    params(("notebookId" = String, Path, description = "the notebook")),
    responses((status = 200, body = NotebookResponse)))]
async fn kill_notebook(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    message(&NotebookResponse {
        notebook: notebook(
            &changes::kill_launched(&master.changes.launches, &actor, KIND, &id).await?,
        ),
    })
}

/// Changes the priority of a notebook; of one that runs it changes nothing that is visible.
#[utoipa::path(post, path = "/api/v1/notebooks/{notebookId}/set_priority", operation_id = "SetNotebookPriority",
    tag = "notebooks", params(("notebookId" = String, Path, description = "the notebook")),
    request_body = SetNotebookPriorityRequest, responses((status = 200, body = NotebookResponse)))]
async fn set_notebook_priority(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<SetNotebookPriorityRequest>,
) -> Answer {
    let priority = body.priority;
    let view =
        changes::set_priority_of_launched(&master.changes.launches, &actor, KIND, &id, priority)
            .await?;
    message(&NotebookResponse {
        notebook: notebook(&view),
    })
}

/// A notebook reports whether it is in use: one that is not, and gets no requests, ends after its `idle_timeout`.
#[utoipa::path(put, path = "/api/v1/notebooks/{notebookId}/report_idle", operation_id = "IdleNotebook", tag = "notebooks",
    params(("notebookId" = String, Path, description = "the notebook")), request_body = IdleNotebookRequest,
    responses((status = 200, body = Empty)))]
async fn idle_notebook(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<IdleNotebookRequest>,
) -> Answer {
    master
        .allocations
        .report_use(&actor, &id, body.idle)
        .await?;
    empty()
}
