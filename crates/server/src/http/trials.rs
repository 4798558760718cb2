//! Trials: looking at them, ending them, and what their code reports.

pub mod compare;

use det_api_types::checkpoints::{GetCheckpointsQuery, GetTrialCheckpointsResponse};
use det_api_types::diagnosis::{DiagnoseTrialRequest, DiagnoseTrialResponse};
use det_api_types::page::Empty;
use det_api_types::trials::{
    ExitedReason, GetRunMetadataResponse, GetTrialRemainingLogRetentionDaysResponse,
    GetTrialResponse, GetTrialWorkloadsQuery, GetTrialWorkloadsResponse, PostRunMetadataRequest,
    PostRunMetadataResponse, PutTrialRetainLogsRequest, ReportTrialProgressRequest,
    RunPrepareForReportingRequest, RunPrepareForReportingResponse, Trial, TrialEarlyExit,
    TrialRunnerMetadata,
};
use det_api_types::wire::Object;
use det_ids::TrialId;
use det_lifecycle::trial::EarlyExit;

use crate::app::logs::retention::retention_days;
use crate::app::reads;
use crate::app::reads::trials::{TrialWithParts, history};
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, PathId, Reporter, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;
use crate::http::views::experiments::object;
use crate::http::views::trials::BatchMetrics;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_trial))
        .routes(routes!(get_trial_workloads))
        .routes(routes!(get_trial_checkpoints))
        .routes(routes!(kill_trial))
        .routes(routes!(diagnose_trial))
        .routes(routes!(put_trial_retain_logs))
        .routes(routes!(get_trial_remaining_log_retention_days))
        .routes(routes!(report_trial_progress))
        .routes(routes!(report_trial_searcher_early_exit))
        .routes(routes!(post_trial_runner_metadata))
        .routes(routes!(run_prepare_for_reporting))
        .routes(routes!(get_run_metadata, post_run_metadata))
        .merge(compare::routes())
}

/// Trials, each with its parts, as clients see them.
pub(crate) fn show_all(trials: Vec<TrialWithParts>) -> AppResult<Vec<Trial>> {
    let now = det_store::now();
    let show = |(row, parts): TrialWithParts| views::trials::trial(&row, &parts, now);
    Ok(trials.into_iter().map(show).collect::<Result<_, _>>()?)
}

/// A trial with its best and latest validation, its best checkpoint and its tasks.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}", operation_id = "GetTrial", tag = "trials",
    params(("trialId" = i64, Path)), responses((status = 200, body = GetTrialResponse)))]
async fn get_trial(Caller(master, actor): Caller, PathId(id): PathId<TrialId>) -> Answer {
    let (row, parts) = reads::trials::whole(&master.sources.trials, &actor, id).await?;
    message(&GetTrialResponse {
        trial: views::trials::trial(&row, &parts, det_store::now())?,
    })
}

/// What a trial has reported, by step.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/workloads", operation_id = "GetTrialWorkloads", tag = "trials",
    params(("trialId" = i64, Path), GetTrialWorkloadsQuery),
    responses((status = 200, body = GetTrialWorkloadsResponse)))]
async fn get_trial_workloads(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireQuery(query): WireQuery<GetTrialWorkloadsQuery>,
) -> Answer {
    let (entries, pagination) = history::page(&master.sources.trials, &actor, id, &query).await?;
    let batches = if query.include_batch_metrics {
        BatchMetrics::Given
    } else {
        BatchMetrics::Left
    };
    let workloads = entries
        .into_iter()
        .map(|entry| views::trials::workload(entry, batches))
        .collect::<Result<_, _>>()?;
    message(&GetTrialWorkloadsResponse {
        workloads,
        pagination,
    })
}

/// Checkpoints of a trial by page.
#[utoipa::path(get, path = "/api/v1/trials/{id}/checkpoints", operation_id = "GetTrialCheckpoints", tag = "trials",
    params(("id" = i64, Path), GetCheckpointsQuery), responses((status = 200, body = GetTrialCheckpointsResponse)))]
async fn get_trial_checkpoints(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireQuery(query): WireQuery<GetCheckpointsQuery>,
) -> Answer {
    let (shown, pagination) =
        reads::checkpoints::of_trial(&master.sources.checkpoints, &actor, id, &query).await?;
    let checkpoints = crate::http::checkpoints::show_all(&shown)?;
    message(&GetTrialCheckpointsResponse {
        checkpoints,
        pagination,
    })
}

/// Ends a trial at once.
#[utoipa::path(post, path = "/api/v1/trials/{id}/kill", operation_id = "KillTrial", tag = "trials",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn kill_trial(Caller(master, actor): Caller, PathId(id): PathId<TrialId>) -> Answer {
    master.trials.kill(&actor, id).await?;
    empty()
}

/// Looks at what the processes of a running trial do, and which rank keeps the others waiting.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/diagnose", operation_id = "DiagnoseTrial", tag = "trials",
    params(("trialId" = i64, Path)), request_body = DiagnoseTrialRequest,
    responses((status = 200, body = DiagnoseTrialResponse)))]
async fn diagnose_trial(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<DiagnoseTrialRequest>,
) -> Answer {
    let timeout = body.timeout_seconds;
    let found = master.doctor.of_trial(&actor, id, timeout).await?;
    message(&views::diagnosis::examination(&found))
}

/// Sets how long the logs of a trial are kept.
#[utoipa::path(put, path = "/api/v1/trials/{trialId}/retain_logs", operation_id = "PutTrialRetainLogs", tag = "trials",
    params(("trialId" = i64, Path)), request_body = PutTrialRetainLogsRequest,
    responses((status = 200, body = Empty)))]
async fn put_trial_retain_logs(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<PutTrialRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    master
        .log_retention
        .set_days_of_trial(&actor, id, days)
        .await?;
    empty()
}

/// How many more days the logs of a trial are kept.
#[utoipa::path(get, path = "/api/v1/trials/{id}/remaining_log_retention_days",
    operation_id = "GetTrialRemainingLogRetentionDays", tag = "trials", params(("id" = i64, Path)),
    responses((status = 200, body = GetTrialRemainingLogRetentionDaysResponse)))]
async fn get_trial_remaining_log_retention_days(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
) -> Answer {
    message(&GetTrialRemainingLogRetentionDaysResponse {
        remaining_days: Some(
            reads::trials::remaining_log_days(&master.sources.trials, &actor, id).await?,
        ),
    })
}

/// The trial's code reports how far it is.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/progress", operation_id = "ReportTrialProgress", tag = "trials",
    params(("trialId" = i64, Path)), request_body = ReportTrialProgressRequest,
    responses((status = 200, body = Empty)))]
async fn report_trial_progress(
    Reporter(master, actor): Reporter,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<ReportTrialProgressRequest>,
) -> Answer {
    master
        .trials
        .report_progress(&actor, id, body.progress.0, body.is_raw)
        .await?;
    empty()
}

/// The trial's code reports that it ends early.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/early_exit", operation_id = "ReportTrialSearcherEarlyExit",
    tag = "trials", params(("trialId" = i64, Path)), request_body = TrialEarlyExit,
    responses((status = 200, body = Empty)))]
async fn report_trial_searcher_early_exit(
    Reporter(master, actor): Reporter,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<TrialEarlyExit>,
) -> Answer {
    let reason = match body.reason {
        ExitedReason::InvalidHp | ExitedReason::InitInvalidHp => EarlyExit::InvalidHyperparameters,
        ExitedReason::UserRequestedStop => EarlyExit::UserRequested,
        ExitedReason::Unspecified => {
            return Err(AppError::invalid("field \"reason\" is missing")
                .hint("give EXITED_REASON_INVALID_HP, EXITED_REASON_INIT_INVALID_HP or EXITED_REASON_USER_REQUESTED_STOP")
                .into());
        }
    };
    master.trials.report_early_exit(&actor, id, reason).await?;
    empty()
}

/// The trial's code reports what it does at present.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/runner/metadata", operation_id = "PostTrialRunnerMetadata",
    tag = "trials", params(("trialId" = i64, Path)), request_body = TrialRunnerMetadata,
    responses((status = 200, body = Empty)))]
async fn post_trial_runner_metadata(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<TrialRunnerMetadata>,
) -> Answer {
    master
        .trials
        .set_runner_state(&actor, id, &body.state)
        .await?;
    empty()
}

/// The trial's code begins to report.
#[utoipa::path(post, path = "/api/v1/runs/start", operation_id = "RunPrepareForReporting", tag = "runs",
    request_body = RunPrepareForReportingRequest, responses((status = 200, body = RunPrepareForReportingResponse)))]
async fn run_prepare_for_reporting(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<RunPrepareForReportingRequest>,
) -> Answer {
    if body.run_id.0 <= 0 {
        return Err(
            AppError::invalid("field \"runId\" must name the run, which is the trial").into(),
        );
    }
    let storage = body.checkpoint_storage.map(|storage| storage.0);
    let storage_id = master
        .trials
        .start_run(&actor, body.run_id, storage)
        .await?;
    message(&RunPrepareForReportingResponse {
        storage_id: Some(storage_id),
    })
}

/// The user's metadata of a run.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/metadata", operation_id = "GetRunMetadata", tag = "runs",
    params(("runId" = i64, Path)), responses((status = 200, body = GetRunMetadataResponse)))]
async fn get_run_metadata(Caller(master, actor): Caller, PathId(id): PathId<TrialId>) -> Answer {
    let row = reads::trials::find(&master.context.store, &actor, id).await?;
    message(&GetRunMetadataResponse {
        metadata: object("metadata of trial", id, &row.metadata)?,
    })
}

/// Replaces the user's metadata of a run.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/metadata", operation_id = "PostRunMetadata", tag = "runs",
    params(("runId" = i64, Path)), request_body = PostRunMetadataRequest,
    responses((status = 200, body = PostRunMetadataResponse)))]
async fn post_run_metadata(
    Caller(master, actor): Caller,
    PathId(id): PathId<TrialId>,
    WireBody(body): WireBody<PostRunMetadataRequest>,
) -> Answer {
    let metadata = master
        .trials
        .set_run_metadata(&actor, id, body.metadata.0)
        .await?;
    message(&PostRunMetadataResponse {
        metadata: Object(metadata),
    })
}
