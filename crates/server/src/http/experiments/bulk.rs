//! The same for many experiments: each by itself, with a result for each. And moving them, and saying how long their
//! logs are kept, one or many.

use det_api_types::experiments::{
    BulkExperimentsRequest, BulkExperimentsResponse, ExperimentActionResult, MoveExperimentRequest,
    MoveExperimentsRequest, PutExperimentRetainLogsRequest, PutExperimentsRetainLogsRequest,
};
use det_api_types::page::Empty;
use det_ids::ExperimentId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::logs::retention::retention_days;
use crate::app::reads::experiments::listing::{self, named_project};
use crate::app::{Master, reads};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::http::error;
use crate::http::extract::{Caller, PathId, WireBody};
use crate::http::respond::{Answer, empty, message};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
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

/// What is done to each experiment.
#[derive(Debug, Clone, Copy)]
enum Action {
    Activate,
    Pause,
    Cancel,
    Kill,
    Archive,
    Unarchive,
    Delete,
    /// To this project.
    Move(i64),
    /// Keep its logs for so many days.
    KeepLogs(i16),
}

impl Action {
    async fn perform(self, master: &Master, actor: &Actor, id: ExperimentId) -> AppResult<()> {
        match self {
            Self::Activate => master.experiments.activate(actor, id).await,
            Self::Pause => master.experiments.pause(actor, id).await,
            Self::Cancel => master.experiments.cancel(actor, id).await,
            Self::Kill => master.experiments.kill(actor, id).await,
            Self::Archive => master.experiments.archive(actor, id, true).await,
            Self::Unarchive => master.experiments.archive(actor, id, false).await,
            Self::Delete => master.experiments.delete(actor, id).await,
            Self::Move(to) => master.projects.move_experiment(actor, id, to).await,
            Self::KeepLogs(days) => {
                master
                    .log_retention
                    .set_days_of_experiment(actor, id, days)
                    .await
            }
        }
    }
}

async fn perform(
    master: &Master,
    actor: &Actor,
    project_id: i64,
    request: BulkExperimentsRequest,
    action: Action,
) -> Answer {
    let ids: Vec<ExperimentId> = match &request.filters {
        Some(filters) => listing::meant(master, actor, project_id, filters)
            .await?
            .iter()
            .map(|row| row.id)
            .collect(),
        None => request
            .experiment_ids
            .into_iter()
            .map(ExperimentId)
            .collect(),
    };
    let mut results = Vec::with_capacity(ids.len());
    for id in ids {
        let error = match one(master, actor, project_id, id, action).await {
            Ok(()) => String::new(),
            Err(failure) => {
                error::log(&failure);
                failure.message
            }
        };
        results.push(ExperimentActionResult { error, id: id.0 });
    }
    message(&BulkExperimentsResponse { results })
}

async fn one(
    master: &Master,
    actor: &Actor,
    project_id: i64,
    id: ExperimentId,
    action: Action,
) -> AppResult<()> {
    let row = reads::experiments::find(&master.context.store, actor, id).await?;
    if named_project(project_id).is_some_and(|project| row.project_id != project) {
        return Err(AppError::not_found("experiment", id)
            .hint(format!("it is not in project {project_id}")));
    }
    action.perform(master, actor, id).await
}

/// Lets experiments run.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/activate", operation_id = "ActivateExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn activate_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Activate).await
}

/// Pauses experiments.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/pause", operation_id = "PauseExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn pause_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Pause).await
}

/// Ends experiments; their trials save first.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/cancel", operation_id = "CancelExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn cancel_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Cancel).await
}

/// Ends experiments at once.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/kill", operation_id = "KillExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn kill_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Kill).await
}

/// Puts experiments away.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/archive", operation_id = "ArchiveExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn archive_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Archive).await
}

/// Takes experiments out again.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/unarchive",
    operation_id = "UnarchiveExperiments", tag = "experiments", params(("projectId" = i64, Path)),
    request_body = BulkExperimentsRequest, responses((status = 200, body = BulkExperimentsResponse)))]
async fn unarchive_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Unarchive).await
}

/// Deletes ended experiments with their checkpoints, in the background.
#[utoipa::path(delete, path = "/api/v1/projects/{projectId}/experiments/delete", operation_id = "DeleteExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = BulkExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn delete_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<BulkExperimentsRequest>,
) -> Answer {
    perform(&master, &actor, project_id, body, Action::Delete).await
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
    master.projects.move_experiment(&actor, id, to).await?;
    empty()
}

/// Moves experiments of a project to another one.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/experiments/move", operation_id = "MoveExperiments",
    tag = "experiments", params(("projectId" = i64, Path)), request_body = MoveExperimentsRequest,
    responses((status = 200, body = BulkExperimentsResponse)))]
async fn move_experiments(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<MoveExperimentsRequest>,
) -> Answer {
    let to = body.destination_project_id;
    reads::homes::all(&master.homes, &actor)?.require_open(to)?;
    let request = BulkExperimentsRequest {
        experiment_ids: body.experiment_ids,
        filters: body.filters,
        project_id,
    };
    perform(&master, &actor, project_id, request, Action::Move(to)).await
}

/// Says how long the logs of an experiment's trials are kept.
#[utoipa::path(put, path = "/api/v1/experiments/{experimentId}/retain_logs", operation_id = "PutExperimentRetainLogs",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = PutExperimentRetainLogsRequest,
    responses((status = 200, body = Empty)))]
async fn put_experiment_retain_logs(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<PutExperimentRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    master
        .log_retention
        .set_days_of_experiment(&actor, id, days)
        .await?;
    empty()
}

/// Says how long the logs of several experiments' trials are kept.
#[utoipa::path(put, path = "/api/v1/projects/{projectId}/experiments/retain_logs",
    operation_id = "PutExperimentsRetainLogs", tag = "experiments", params(("projectId" = i64, Path)),
    request_body = PutExperimentsRetainLogsRequest, responses((status = 200, body = BulkExperimentsResponse)))]
async fn put_experiments_retain_logs(
    Caller(master, actor): Caller,
    PathId(project_id): PathId,
    WireBody(body): WireBody<PutExperimentsRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    let request = BulkExperimentsRequest {
        experiment_ids: body.experiment_ids,
        filters: body.filters,
        project_id,
    };
    perform(&master, &actor, project_id, request, Action::KeepLogs(days)).await
}
