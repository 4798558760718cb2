//! `TensorBoards` over experiments and trials.

use axum::extract::Path;
use det_api_types::launches::{
    GetLaunchesQuery, GetTensorboardResponse, GetTensorboardsResponse, LaunchTensorboardRequest,
    LaunchTensorboardResponse, SetTensorboardPriorityRequest, Tensorboard, TensorboardResponse,
};
use det_config::task::LaunchKind;
use det_ids::TaskId;
use det_taskspec::{TaskDetails, TaskKind};

use crate::app::launches::TensorBoardRequest;
use crate::app::reads::experiments::listing::BulkSelection;
use crate::app::reads::tasks::LaunchedView;
use crate::app::{changes, reads};
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, message, object};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::{launch_request, launch_warnings, launched, service_address};

const KIND: TaskKind = TaskKind::Tensorboard;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_tensorboards, launch_tensorboard))
        .routes(routes!(get_tensorboard))
        .routes(routes!(kill_tensorboard))
        .routes(routes!(set_tensorboard_priority))
}

fn tensorboard(view: &LaunchedView) -> Tensorboard {
    let (experiment_ids, trial_ids) = match &view.row.details {
        TaskDetails::Tensorboard(own) => (own.experiment_ids.clone(), own.trial_ids.clone()),
        _ => (Vec::new(), Vec::new()),
    };
    let service_address = service_address(view);
    launched!(Tensorboard, view, { experiment_ids, trial_ids, service_address })
}

/// `TensorBoards` that live, and those that ended in the last 24 hours.
#[utoipa::path(get, path = "/api/v1/tensorboards", operation_id = "GetTensorboards", tag = "tensorboards",
    params(GetLaunchesQuery), responses((status = 200, body = GetTensorboardsResponse)))]
async fn get_tensorboards(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetLaunchesQuery>,
) -> Answer {
    let (page, pagination) =
        reads::tasks::launched(&master.sources.tasks, &actor, KIND, &query).await?;
    message(&GetTensorboardsResponse {
        tensorboards: page.iter().map(tensorboard).collect(),
        pagination,
    })
}

/// Launches a tensorboard, or only checks its configuration.
#[utoipa::path(post, path = "/api/v1/tensorboards", operation_id = "LaunchTensorboard", tag = "tensorboards",
    request_body = LaunchTensorboardRequest, responses((status = 200, body = LaunchTensorboardResponse)))]
async fn launch_tensorboard(
    Caller(master, actor): Caller,
    WireBody(mut body): WireBody<LaunchTensorboardRequest>,
) -> Answer {
    let more = body
        .filters
        .take()
        .map(|filters| (filters.project_id, BulkSelection::Meant(Box::new(filters))));
    let shows = TensorBoardRequest {
        experiment_ids: std::mem::take(&mut body.experiment_ids),
        trial_ids: std::mem::take(&mut body.trial_ids),
    };
    let mut request = launch_request!(LaunchKind::Tensorboard, body);
    request.tensorboard = shows;
    let (made, view) =
        changes::launch_tensorboard(&master.changes.launches, &actor, request, more).await?;
    message(&LaunchTensorboardResponse {
        tensorboard: view.as_ref().map(tensorboard).unwrap_or_default(),
        config: object(made.config),
        warnings: launch_warnings(made.slots_exceeded),
        messages: made.warnings,
    })
}

/// A `TensorBoard` with its effective configuration.
#[utoipa::path(get, path = "/api/v1/tensorboards/{tensorboardId}", operation_id = "GetTensorboard", tag = "tensorboards",
    params(("tensorboardId" = String, Path, description = "the tensorboard")),
    responses((status = 200, body = GetTensorboardResponse)))]
async fn get_tensorboard(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    let (view, config) =
        reads::tasks::launched_with_config(&master.sources.tasks, &actor, KIND, &id).await?;
    message(&GetTensorboardResponse {
        tensorboard: tensorboard(&view),
        config: object(config),
    })
}

/// Ends a tensorboard at once; of one that has ended nothing changes.
#[utoipa::path(post, path = "/api/v1/tensorboards/{tensorboardId}/kill", operation_id = "KillTensorboard", tag = "tensorboards",
    params(("tensorboardId" = String, Path, description = "the tensorboard")),
    responses((status = 200, body = TensorboardResponse)))]
async fn kill_tensorboard(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    message(&TensorboardResponse {
        tensorboard: tensorboard(
            &changes::kill_launched(&master.changes.launches, &actor, KIND, &id).await?,
        ),
    })
}

/// Changes the priority of a tensorboard; of one that runs it changes nothing that is visible.
#[utoipa::path(post, path = "/api/v1/tensorboards/{tensorboardId}/set_priority", operation_id = "SetTensorboardPriority",
    tag = "tensorboards", params(("tensorboardId" = String, Path, description = "the tensorboard")),
    request_body = SetTensorboardPriorityRequest, responses((status = 200, body = TensorboardResponse)))]
async fn set_tensorboard_priority(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<SetTensorboardPriorityRequest>,
) -> Answer {
    let priority = body.priority;
    let view =
        changes::set_priority_of_launched(&master.changes.launches, &actor, KIND, &id, priority)
            .await?;
    message(&TensorboardResponse {
        tensorboard: tensorboard(&view),
    })
}
