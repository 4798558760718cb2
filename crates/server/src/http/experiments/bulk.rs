//! The same for many experiments: each by itself, with a result for each. And moving them, and setting how long their
//! logs are kept, one or many.

use det_api_types::experiments::{
    BulkExperimentFilters, BulkExperimentsRequest, BulkExperimentsResponse, ExperimentActionResult,
    MoveExperimentRequest, MoveExperimentsRequest, PutExperimentRetainLogsRequest,
    PutExperimentsRetainLogsRequest,
};
use det_api_types::page::Empty;
use det_ids::{ExperimentId, ProjectId};

use crate::app::actions::{Action, act, act_on_all};
use crate::app::logs::retention::retention_days;
use crate::app::reads::experiments::listing::BulkSelection;
use crate::error::AppResult;
use crate::http::extract::{Caller, PathId, WireBody};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(activate_experiments))
        .routes(routes!(pause_experiments))
        .routes(routes!(cancel_experiments))
        .routes(routes!(kill_experiments))
        .routes(routes!(archive_experiments))
        .routes(routes!(unarchive_experiments))
        .routes(routes!(delete_experiments))
        .routes(routes!(move_experiment))
        .routes(routes!(move_experiments))
        .routes(routes!(put_experiment_retain_logs))
        .routes(routes!(put_experiments_retain_logs))
}

/// The experiments that a request is about.
fn chosen(ids: Vec<ExperimentId>, filters: Option<BulkExperimentFilters>) -> BulkSelection {
    match filters {
        Some(filters) => BulkSelection::Meant(Box::new(filters)),
        None => BulkSelection::Ids(ids),
    }
}

/// What came of an action for each experiment.
fn answer(outcomes: Vec<(ExperimentId, AppResult<()>)>) -> Answer {
    let result = |(id, outcome): (ExperimentId, AppResult<()>)| ExperimentActionResult {
        error: outcome
            .err()
            .map_or_else(String::new, |error| error.message),
        id,
    };
    message(&BulkExperimentsResponse {
        results: outcomes.into_iter().map(result).collect(),
    })
}

/// Lets experiments run.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/activate", operation_id = "ActivateExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn activate_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(
        act_on_all(
            &master.actions,
            &actor,
            project_id,
            chosen,
            Action::Activate,
        )
        .await?,
    )
}

/// Pauses experiments of a project: their trials save, stop and give their slots back.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/pause", operation_id = "PauseExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn pause_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(act_on_all(&master.actions, &actor, project_id, chosen, Action::Pause).await?)
}

/// Ends experiments; their trials save first.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/cancel", operation_id = "CancelExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn cancel_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(act_on_all(&master.actions, &actor, project_id, chosen, Action::Cancel).await?)
}

/// Ends experiments at once.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/kill", operation_id = "KillExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn kill_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(act_on_all(&master.actions, &actor, project_id, chosen, Action::Kill).await?)
}

/// Puts experiments away.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/archive", operation_id = "ArchiveExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn archive_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(act_on_all(&master.actions, &actor, project_id, chosen, Action::Archive).await?)
}

/// Takes experiments out again.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/unarchive",
    operation_id = "UnarchiveExperiments", tag = "experiments", params(("projectId" = i64, Path)),
    request_body = BulkExperimentsRequest, responses((status = 200, body = BulkExperimentsResponse)))]
async fn unarchive_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(
        act_on_all(
            &master.actions,
            &actor,
            project_id,
            chosen,
            Action::Unarchive,
        )
        .await?,
    )
}

/// Deletes ended experiments with their checkpoints, in the background.
#[utoipa::path(delete, path = "/api/v1/projects/{projectId}/experiments/delete", operation_id = "DeleteExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn delete_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(act_on_all(&master.actions, &actor, project_id, chosen, Action::Delete).await?)
}

/// Moves an experiment to another project.
#[utoipa::path(post, path = "/api/v1/experiments/{experimentId}/move", operation_id = "MoveExperiment",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = MoveExperimentRequest,
    responses((status = 200, body = Empty)))]
async fn move_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<MoveExperimentRequest>,
) -> Answer {
    let to = body.destination_project_id;
    act(&master.actions, &actor, id, Action::Move(to)).await?;
    empty()
}

/// Moves experiments of a project to another one.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/move", operation_id = "MoveExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = MoveExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn move_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<MoveExperimentsRequest>,
) -> Answer {
    let to = body.destination_project_id;
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(
        act_on_all(
            &master.actions,
            &actor,
            project_id,
            chosen,
            Action::Move(to),
        )
        .await?,
    )
}

/// Sets how long the logs of an experiment's trials are kept.
#[utoipa::path(put, path = "/api/v1/experiments/{experimentId}/retain_logs", operation_id = "PutExperimentRetainLogs",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = PutExperimentRetainLogsRequest,
    responses((status = 200, body = Empty)))]
async fn put_experiment_retain_logs(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<PutExperimentRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    act(&master.actions, &actor, id, Action::KeepLogs(days)).await?;
    empty()
}

/// Sets how long the logs of several experiments' trials are kept.
#[utoipa::path(put, path = "/api/v1/projects/{projectId}/experiments/retain_logs",
    operation_id = "PutExperimentsRetainLogs", tag = "experiments", params(("projectId" = i64, Path)),
    request_body = PutExperimentsRetainLogsRequest, responses((status = 200, body = BulkExperimentsResponse)))]
async fn put_experiments_retain_logs(
    Caller(master, actor): Caller,
    PathId(project_id): PathId<ProjectId>,
    WireBody(body): WireBody<PutExperimentsRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    let chosen = chosen(body.experiment_ids, body.filters);
    answer(
        act_on_all(
            &master.actions,
            &actor,
            project_id,
            chosen,
            Action::KeepLogs(days),
        )
        .await?,
    )
}
