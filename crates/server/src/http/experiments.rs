//! Experiments: creating, listing, steering, changing.

pub mod bulk;

use det_api_types::checkpoints::{GetCheckpointsQuery, GetExperimentCheckpointsResponse};
use det_api_types::experiments::{
    ContinueExperimentRequest, ContinueExperimentResponse, CreateExperimentRequest,
    CreateExperimentResponse, GetBestSearcherValidationMetricResponse, GetExperimentLabelsQuery,
    GetExperimentLabelsResponse, GetExperimentResponse, GetExperimentValidationHistoryResponse,
    GetExperimentsQuery, GetExperimentsResponse, PatchExperiment, PatchExperimentResources,
    PatchExperimentResponse, ValidationHistoryEntry,
};
use det_api_types::jobs::{JobState, JobSummary};
use det_api_types::page::Empty;
use det_api_types::trials::{GetExperimentTrialsQuery, GetExperimentTrialsResponse};
use det_api_types::wire::{Float, Timestamp};
use det_ids::{ExperimentId, ProjectId};

use crate::app::actions::{Action, act};
use crate::app::experiments::ExperimentPatch;
use crate::app::reads::experiments::{QueuePlace, Record, listing};
use crate::app::submission::NewExperimentRequest;
use crate::app::{changes, reads};
use crate::error::{AppError, AppResult};
use crate::http::context_files::context_files;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message, object};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::launch_warnings;
use crate::http::{checkpoints as checkpoint_routes, trials as trial_routes, views};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_experiments, create_experiment))
        .routes(routes!(get_experiment, delete_experiment, patch_experiment))
        .routes(routes!(continue_experiment))
        .routes(routes!(activate_experiment))
        .routes(routes!(pause_experiment))
        .routes(routes!(cancel_experiment))
        .routes(routes!(kill_experiment))
        .routes(routes!(archive_experiment))
        .routes(routes!(unarchive_experiment))
        .routes(routes!(get_experiment_labels))
        .routes(routes!(get_experiment_trials))
        .routes(routes!(get_experiment_checkpoints))
        .routes(routes!(get_experiment_validation_history))
        .routes(routes!(get_best_searcher_validation_metric))
        .merge(bulk::routes())
}

/// Where an active experiment is in its queue.
fn job_summary(place: &QueuePlace) -> Option<JobSummary> {
    match place {
        QueuePlace::NotActive => None,
        QueuePlace::Runs => Some(JobSummary {
            state: JobState::Scheduled,
            jobs_ahead: 0,
        }),
        QueuePlace::BetweenRuns => Some(JobSummary {
            state: JobState::Queued,
            jobs_ahead: -1,
        }),
        QueuePlace::Queued(job) => Some(views::jobs::summary(job)),
    }
}

/// Experiments by page.
#[utoipa::path(get, path = "/api/v1/experiments", operation_id = "GetExperiments", tag = "experiments",
    params(GetExperimentsQuery), responses((status = 200, body = GetExperimentsResponse)))]
async fn get_experiments(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetExperimentsQuery>,
) -> Answer {
    let (shown, pagination, _turn) =
        listing::page(&master.sources.experiments, &actor, &query).await?;
    message(&GetExperimentsResponse {
        experiments: views::experiments::all(&shown)?,
        pagination,
    })
}

/// An experiment with its configuration and its place in the queue.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}", operation_id = "GetExperiment", tag = "experiments",
    params(("experimentId" = i64, Path)), responses((status = 200, body = GetExperimentResponse)))]
async fn get_experiment(Caller(master, actor): Caller, PathId(id): PathId<ExperimentId>) -> Answer {
    let (shown, place) =
        reads::experiments::with_place(&master.sources.experiments, &actor, id).await?;
    let job_summary = job_summary(&place);
    let experiment = views::experiments::one(&shown)?;
    let config = experiment.config.clone();
    message(&GetExperimentResponse {
        experiment,
        job_summary,
        config,
    })
}

/// Creates an experiment, or only checks a configuration.
#[utoipa::path(post, path = "/api/v1/experiments", operation_id = "CreateExperiment", tag = "experiments",
    request_body = CreateExperimentRequest, responses((status = 200, body = CreateExperimentResponse)))]
async fn create_experiment(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<CreateExperimentRequest>,
) -> Answer {
    let request = submission(body)?;
    let (created, shown) =
        changes::create_experiment(&master.changes.experiments, &actor, request).await?;
    let experiment = shown.as_ref().map(views::experiments::one).transpose()?;
    message(&CreateExperimentResponse {
        experiment: experiment.unwrap_or_default(),
        config: object(created.config),
        warnings: launch_warnings(created.slots_exceeded),
        messages: created.warnings,
    })
}

/// What a request to create an experiment asks for.
pub(super) fn submission(body: CreateExperimentRequest) -> AppResult<NewExperimentRequest> {
    if body.config.trim().is_empty() {
        return Err(AppError::invalid(
            "field \"config\" is missing: an experiment needs a configuration, as YAML text",
        ));
    }
    Ok(NewExperimentRequest {
        config: body.config,
        files: context_files("modelDefinition", body.model_definition)?,
        activate: body.activate,
        project_id: body.project_id.given(),
        parent_id: body.parent_id.and_then(ExperimentId::given),
        templates: body
            .template
            .into_iter()
            .chain(body.templates)
            .filter(|name| !name.is_empty())
            .collect(),
        validate_only: body.validate_only,
        unmanaged: body.unmanaged,
        external_id: None,
    })
}

/// Lets an experiment's trials run.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/activate", operation_id = "ActivateExperiment",
    tag = "experiments", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn activate_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Activate).await?;
    empty()
}

/// Lets an experiment's trials save and give their slots back.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/pause", operation_id = "PauseExperiment", tag = "experiments",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn pause_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Pause).await?;
    empty()
}

/// Ends an experiment; its trials save first.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/cancel", operation_id = "CancelExperiment", tag = "experiments",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn cancel_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Cancel).await?;
    empty()
}

/// Ends an experiment at once.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/kill", operation_id = "KillExperiment", tag = "experiments",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn kill_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Kill).await?;
    empty()
}

/// Puts an ended experiment away.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/archive", operation_id = "ArchiveExperiment",
    tag = "experiments", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn archive_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Archive).await?;
    empty()
}

/// Takes an experiment out again.
#[utoipa::path(post, path = "/api/v1/experiments/{id}/unarchive", operation_id = "UnarchiveExperiment",
    tag = "experiments", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unarchive_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Unarchive).await?;
    empty()
}

/// Deletes an ended experiment with its checkpoints, in the background.
#[utoipa::path(delete, path = "/api/v1/experiments/{experimentId}", operation_id = "DeleteExperiment",
    tag = "experiments", params(("experimentId" = i64, Path)), responses((status = 200, body = Empty)))]
async fn delete_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    act(&master.actions, &actor, id, Action::Delete).await?;
    empty()
}

/// Lets an ended experiment go on.
#[utoipa::path(post, path = "/api/v1/experiments/continue", operation_id = "ContinueExperiment", tag = "experiments",
    request_body = ContinueExperimentRequest, responses((status = 200, body = ContinueExperimentResponse)))]
async fn continue_experiment(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<ContinueExperimentRequest>,
) -> Answer {
    let id = body.id;
    if id.0 <= 0 {
        return Err(AppError::invalid("field \"id\" must name the experiment to continue").into());
    }
    let config = &body.override_config;
    let shown =
        changes::continue_experiment(&master.changes.experiments, &actor, id, config).await?;
    message(&ContinueExperimentResponse {
        experiment: views::experiments::one(&shown)?,
        warnings: Vec::new(),
    })
}

/// Changes texts, labels, resources or checkpoint policy of an experiment; what is null stays.
#[utoipa::path(patch, path = "/api/v1/experiments/{experimentId}", operation_id = "PatchExperiment",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = PatchExperiment,
    responses((status = 200, body = PatchExperimentResponse)))]
async fn patch_experiment(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<PatchExperiment>,
) -> Answer {
    let cap = body
        .resources
        .as_ref()
        .and_then(PatchExperimentResources::cap);
    let resources = body.resources.unwrap_or_default();
    let policy = body.checkpoint_storage.unwrap_or_default();
    let patch = ExperimentPatch {
        name: body.name,
        description: body.description,
        notes: body.notes,
        labels: body.labels,
        max_slots: cap,
        priority: resources.priority,
        weight: resources.weight.map(|weight| weight.0),
        save_experiment_best: policy.save_experiment_best,
        save_trial_best: policy.save_trial_best,
        save_trial_latest: policy.save_trial_latest,
    };
    let shown = changes::patch_experiment(&master.changes.experiments, &actor, id, patch).await?;
    message(&PatchExperimentResponse {
        experiment: views::experiments::one(&shown)?,
    })
}

/// Labels in use.
#[utoipa::path(get, path = "/api/v1/experiment/labels", operation_id = "GetExperimentLabels", tag = "experiments",
    params(GetExperimentLabelsQuery), responses((status = 200, body = GetExperimentLabelsResponse)))]
async fn get_experiment_labels(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetExperimentLabelsQuery>,
) -> Answer {
    let project = query.project_id.and_then(ProjectId::given);
    let labels = reads::experiments::labels(&master.sources.experiments, &actor, project).await?;
    message(&GetExperimentLabelsResponse { labels })
}

/// Trials of an experiment by page.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/trials", operation_id = "GetExperimentTrials",
    tag = "experiments", params(("experimentId" = i64, Path), GetExperimentTrialsQuery),
    responses((status = 200, body = GetExperimentTrialsResponse)))]
async fn get_experiment_trials(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireQuery(query): WireQuery<GetExperimentTrialsQuery>,
) -> Answer {
    let (trials, pagination) =
        reads::trials::page(&master.sources.trials, &actor, id, &query).await?;
    let trials = trial_routes::show_all(trials)?;
    message(&GetExperimentTrialsResponse { trials, pagination })
}

/// Checkpoints of an experiment by page.
#[utoipa::path(get, path = "/api/v1/experiments/{id}/checkpoints", operation_id = "GetExperimentCheckpoints",
    tag = "experiments", params(("id" = i64, Path), GetCheckpointsQuery),
    responses((status = 200, body = GetExperimentCheckpointsResponse)))]
async fn get_experiment_checkpoints(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireQuery(query): WireQuery<GetCheckpointsQuery>,
) -> Answer {
    let (shown, pagination) =
        reads::checkpoints::of_experiment(&master.sources.checkpoints, &actor, id, &query).await?;
    let checkpoints = checkpoint_routes::show_all(&shown)?;
    message(&GetExperimentCheckpointsResponse {
        checkpoints,
        pagination,
    })
}

/// How the best value of the searcher's metric came about.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/validation-history",
    operation_id = "GetExperimentValidationHistory", tag = "experiments", params(("experimentId" = i64, Path)),
    responses((status = 200, body = GetExperimentValidationHistoryResponse)))]
async fn get_experiment_validation_history(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    let records =
        reads::experiments::validation_history(&master.sources.experiments, &actor, id).await?;
    let entry = |record: Record| ValidationHistoryEntry {
        trial_id: record.trial_id,
        end_time: Timestamp(record.at),
        searcher_metric: Float(record.metric),
    };
    message(&GetExperimentValidationHistoryResponse {
        validation_history: records.into_iter().map(entry).collect(),
    })
}

/// The best value of the searcher's metric over the whole experiment.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/searcher/best_searcher_validation_metric",
    operation_id = "GetBestSearcherValidationMetric", tag = "experiments", params(("experimentId" = i64, Path)),
    responses((status = 200, body = GetBestSearcherValidationMetricResponse)))]
async fn get_best_searcher_validation_metric(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    let best = reads::experiments::best_metric(&master.context.store, &actor, id).await?;
    message(&GetBestSearcherValidationMetricResponse {
        metric: Some(Float(best)),
    })
}
