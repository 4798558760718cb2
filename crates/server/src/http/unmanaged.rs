//! What runs outside the cluster: experiments and trials by the names that their code gives them, and what it reports of
//! its life.

use axum::extract::Path;
use det_api_types::experiments::{CreateExperimentRequest, PutExperimentResponse};
use det_api_types::trials::{
    CreateTrialRequest, CreateTrialResponse, GetTrialByExternalIdResponse, PatchTrialRequest,
    PatchTrialResponse, PutTrialRequest, PutTrialResponse, StartTrialRequest, StartTrialResponse,
    Trial, TrialState,
};
use det_ids::{ExperimentId, ExternalExperimentId, RequestId, TrialId};
use serde_json::{Map, Value};

use crate::app::reads::trials::TrialWithParts;
use crate::app::unmanaged::Heartbeat;
use crate::app::{changes, reads};
use crate::error::{AppError, AppResult};
use crate::http::experiments::submission;
use crate::http::extract::{Caller, PathId, WireBody};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(put_experiment))
        .routes(routes!(create_trial, put_trial))
        .routes(routes!(get_trial_by_external_id))
        .routes(routes!(start_trial))
        .routes(routes!(patch_trial))
}

fn show((row, parts): &TrialWithParts) -> AppResult<Trial> {
    Ok(views::trials::trial(row, parts, det_store::now())?)
}

/// The unmanaged experiment of an external id: as it is, or a new one.
#[utoipa::path(put, path = "/api/v1/experiments/by-external-id/{externalExperimentId}", operation_id = "PutExperiment",
    tag = "experiments", params(("externalExperimentId" = String, Path)), request_body = CreateExperimentRequest,
    responses((status = 200, body = PutExperimentResponse)))]
async fn put_experiment(
    Caller(master, actor): Caller,
    Path(external_id): Path<ExternalExperimentId>,
    WireBody(body): WireBody<CreateExperimentRequest>,
) -> Answer {
    let request = submission(body)?;
    let shown =
        changes::put_experiment(&master.changes.experiments, &actor, external_id, request).await?;
    let experiment = shown.as_ref().map(views::experiments::one).transpose()?;
    let experiment = experiment.unwrap_or_default();
    message(&PutExperimentResponse {
        config: experiment.config.clone(),
        experiment,
    })
}

/// The experiment and the hyperparameters of a new trial.
fn new_trial(body: CreateTrialRequest) -> AppResult<(ExperimentId, Map<String, Value>)> {
    if body.unmanaged != Some(true) {
        return Err(AppError::invalid(
            "field \"unmanaged\" must be true: the master creates the trials that it runs, as their search asks for them",
        ));
    }
    let experiment_id = body.experiment_id.filter(|id| id.0 > 0).ok_or_else(|| {
        AppError::invalid("field \"experimentId\" is missing: a trial belongs to an experiment")
    })?;
    let hparams = body.hparams.unwrap_or_default().0;
    Ok((experiment_id, hparams))
}

/// Adds a trial to an unmanaged experiment.
#[utoipa::path(post, path = "/api/v1/trials", operation_id = "CreateTrial", tag = "trials",
    request_body = CreateTrialRequest, responses((status = 200, body = CreateTrialResponse)))]
async fn create_trial(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<CreateTrialRequest>,
) -> Answer {
    let (experiment_id, hparams) = new_trial(body)?;
    let trial =
        changes::put_trial(&master.changes.trials, &actor, experiment_id, None, hparams).await?;
    message(&CreateTrialResponse {
        trial: show(&trial)?,
    })
}

/// The trial of an external id in an unmanaged experiment: as it is, or a new one.
#[utoipa::path(put, path = "/api/v1/trials", operation_id = "PutTrial", tag = "trials",
    request_body = PutTrialRequest, responses((status = 200, body = PutTrialResponse)))]
async fn put_trial(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PutTrialRequest>,
) -> Answer {
    let external_id = RequestId(body.external_trial_id.unwrap_or_default());
    let (experiment_id, hparams) = new_trial(body.create_trial_request.unwrap_or_default())?;
    let external_id = Some(external_id);
    let trial = changes::put_trial(
        &master.changes.trials,
        &actor,
        experiment_id,
        external_id,
        hparams,
    )
    .await?;
    message(&PutTrialResponse {
        trial: show(&trial)?,
    })
}

/// A trial by the names that its code gave to it and its experiment.
#[utoipa::path(get, path = "/api/v1/trials/by-external-id/{externalExperimentId}/{externalTrialId}",
    operation_id = "GetTrialByExternalID", tag = "trials",
    params(("externalExperimentId" = String, Path), ("externalTrialId" = String, Path)),
    responses((status = 200, body = GetTrialByExternalIdResponse)))]
async fn get_trial_by_external_id(
    Caller(master, actor): Caller,
    Path((experiment, trial)): Path<(ExternalExperimentId, RequestId)>,
) -> Answer {
    let whole =
        reads::trials::by_external_id(&master.sources.trials, &actor, &experiment, &trial).await?;
    message(&GetTrialByExternalIdResponse {
        trial: show(&whole)?,
    })
}

/// The code of an unmanaged trial begins a run.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/start", operation_id = "StartTrial", tag = "trials",
    params(("trialId" = i64, Path)), request_body = StartTrialRequest,
    responses((status = 200, body = StartTrialResponse)))]
async fn start_trial(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<StartTrialRequest>,
) -> Answer {
    let resumes = body.resume.unwrap_or(false);
    let run = master.unmanaged.start(&actor, id, resumes).await?;
    message(&StartTrialResponse {
        trial_run_id: run.run_id,
        latest_checkpoint: run.latest_checkpoint,
        steps_completed: run.steps_completed,
    })
}

/// The code of an unmanaged trial reports that it runs, or how it ended.
#[utoipa::path(patch, path = "/api/v1/trials/{trialId}", operation_id = "PatchTrial", tag = "trials",
    params(("trialId" = i64, Path)), request_body = PatchTrialRequest,
    responses((status = 200, body = PatchTrialResponse)))]
async fn patch_trial(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<PatchTrialRequest>,
) -> Answer {
    let heartbeat = match body.state {
        None | Some(TrialState::Unspecified | TrialState::Running | TrialState::Active) => {
            Heartbeat::Running
        }
        Some(TrialState::Completed) => Heartbeat::Completed,
        Some(TrialState::Error) => Heartbeat::Failed,
        Some(other) => {
            return Err(AppError::invalid(format!(
                "field \"state\" must be STATE_RUNNING, STATE_COMPLETED or STATE_ERROR, found {}: that is what code can \
                 report of itself",
                other.as_str()
            ))
            .into());
        }
    };
    let trial = changes::beat(&master.changes.trials, &actor, id, heartbeat).await?;
    message(&PatchTrialResponse {
        trial: show(&trial)?,
    })
}
