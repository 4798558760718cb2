//! Trials: looking at them, ending them, and what their code says.

pub mod compare;
pub mod workloads;

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use det_api_types::checkpoints::{GetCheckpointsQuery, GetTrialCheckpointsResponse};
use det_api_types::page::{Empty, OrderBy, Pagination};
use det_api_types::trials::{
    ExitedReason, GetExperimentTrialsQuery, GetRunMetadataResponse,
    GetTrialRemainingLogRetentionDaysResponse, GetTrialResponse, GetTrialWorkloadsQuery,
    GetTrialWorkloadsResponse, PostRunMetadataRequest, PostRunMetadataResponse,
    PutTrialRetainLogsRequest, ReportTrialProgressRequest, RunPrepareForReportingRequest,
    RunPrepareForReportingResponse, Trial, TrialEarlyExit, TrialRunnerMetadata, TrialSortBy,
    TrialState,
};
use det_api_types::wire::Object;
use det_lifecycle::trial::EarlyExit;
use det_store::checkpoints::{self, CheckpointRow};
use det_store::experiments::ExperimentRow;
use det_store::trials::{self, Sort, TrialRow};
use det_store::{allocations, metrics};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::app::log_retention::retention_days;
use crate::error::{AppError, AppResult};
use crate::http::experiments::{self, listing};
use crate::http::extract::{Caller, PathId, Reporter, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::views;
use crate::http::views::experiments::{Phase, StateFilter, object};
use crate::http::views::trials::TrialParts;

/// Trials asked about in one statement: below the least number of values that either database takes.
const BATCH: usize = 10_000;

/// Limits of a run's metadata: `docs/contract/http-api.md`, "Metadata of runs".
const METADATA_DEPTH: usize = 10;
const METADATA_KEYS: usize = 1000;
const METADATA_KEY_CHARS: usize = 50;
const METADATA_TEXT_CHARS: usize = 5000;
const METADATA_ITEMS: usize = 100;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_trial))
        .routes(routes!(get_trial_workloads))
        .routes(routes!(get_trial_checkpoints))
        .routes(routes!(kill_trial))
        .routes(routes!(put_trial_retain_logs))
        .routes(routes!(get_trial_remaining_log_retention_days))
        .routes(routes!(report_trial_progress))
        .routes(routes!(report_trial_searcher_early_exit))
        .routes(routes!(post_trial_runner_metadata))
        .routes(routes!(run_prepare_for_reporting))
        .routes(routes!(get_run_metadata, post_run_metadata))
        .merge(compare::routes())
}

/// A trial, or the refusal that it does not exist.
pub(crate) async fn find(master: &Master, id: i64) -> AppResult<TrialRow> {
    let mut conn = master.store.read().await?;
    trials::find(&mut conn.conn(), id)
        .await?
        .ok_or_else(|| AppError::not_found("trial", id))
}

/// One page of an experiment's trials.
pub(crate) async fn page(
    master: &Master,
    experiment_id: i64,
    query: &GetExperimentTrialsQuery,
) -> AppResult<(Vec<TrialRow>, Pagination)> {
    let filter = StateFilter::new(&query.states);
    let stored = filter.as_ref().map(StateFilter::in_question);
    let (sort, descending) = (sort(query.sort_by), query.order_by == OrderBy::Desc);
    let by_phase = filter
        .as_ref()
        .is_some_and(|f| !f.phases.is_empty() && !f.wants_all_phases());
    let limit = listing::store_limit(query.limit);
    master.settle_metrics().await?;
    let mut conn = master.store.read().await?;
    let (offset, fetched) = if by_phase {
        (0, -1)
    } else {
        (query.offset, limit)
    };
    let (mut rows, mut total) = trials::list(
        &mut conn.conn(),
        experiment_id,
        stored.as_deref(),
        sort,
        descending,
        offset,
        fetched,
    )
    .await?;
    drop(conn);
    if let Some(filter) = filter.filter(|_| by_phase) {
        // Live allocations tell active trials apart, so the page is cut afterwards.
        let phases = live(master, &rows).await?;
        let phase = |row: &TrialRow| {
            phases
                .get(&row.id)
                .map_or(Phase::Queued, |(phase, _)| *phase)
        };
        rows.retain(|row| filter.wants(row.state.stored_name(), phase(row)));
        total = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let skipped = usize::try_from(query.offset.max(0)).unwrap_or(usize::MAX);
        let taken = usize::try_from(limit).unwrap_or(usize::MAX);
        rows = rows.into_iter().skip(skipped).take(taken).collect();
    }
    let pagination = listing::pagination(query.offset, query.limit, rows.len(), total);
    Ok((rows, pagination))
}

fn sort(by: TrialSortBy) -> Sort {
    match by {
        TrialSortBy::Unspecified | TrialSortBy::Id => Sort::Id,
        TrialSortBy::LogRetentionDays => Sort::LogRetentionDays,
        TrialSortBy::StartTime => Sort::StartTime,
        TrialSortBy::EndTime => Sort::EndTime,
        TrialSortBy::State => Sort::State,
        TrialSortBy::BestValidationMetric => Sort::BestValidation,
        TrialSortBy::LatestValidationMetric => Sort::LatestValidation,
        TrialSortBy::BatchesProcessed => Sort::BatchesProcessed,
        TrialSortBy::Duration => Sort::Duration,
        TrialSortBy::Restarts => Sort::Restarts,
        TrialSortBy::CheckpointSize => Sort::CheckpointSize,
    }
}

type Live = BTreeMap<i64, (Phase, allocations::AllocationRow)>;

/// The live allocations of trials that have one.
async fn live(master: &Master, rows: &[TrialRow]) -> AppResult<Live> {
    let active: Vec<i64> = rows
        .iter()
        .filter(|row| row.ended_at.is_none())
        .map(|row| row.id)
        .collect();
    let mut found = Live::new();
    let mut conn = master.store.read().await?;
    for batch in active.chunks(BATCH) {
        for row in allocations::live_of_trials(&mut conn.conn(), batch).await? {
            if let Some(trial_id) = row.trial_id {
                found.insert(trial_id, (Phase::of_allocation(&row.state), row));
            }
        }
    }
    Ok(found)
}

/// Trials of one experiment, each with its parts.
pub(crate) async fn show_all(
    master: &Master,
    experiment: &ExperimentRow,
    rows: &[TrialRow],
) -> AppResult<Vec<Trial>> {
    let mut live = live(master, rows).await?;
    let mut best = best_checkpoints(master, rows).await?;
    let config = object(
        "configuration of experiment",
        experiment.id,
        &experiment.config,
    )?;
    let max_restarts = config
        .get("max_restarts")
        .and_then(Value::as_i64)
        .unwrap_or(i64::MAX);
    let now = det_store::now();
    let mut shown = Vec::with_capacity(rows.len());
    for batch in rows.chunks(BATCH) {
        let ids: Vec<i64> = batch.iter().map(|row| row.id).collect();
        let (tasks, mut summaries) = {
            let mut conn = master.store.read().await?;
            let tasks = allocations::tasks_of_trials(&mut conn.conn(), &ids).await?;
            (tasks, metrics::summaries_of(&mut conn.conn(), &ids).await?)
        };
        let mut task_ids: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for task in tasks {
            if let Some(trial_id) = task.trial_id {
                task_ids.entry(trial_id).or_default().push(task.id);
            }
        }
        for row in batch {
            let live = live.remove(&row.id);
            let parts = TrialParts {
                phase: live.as_ref().map_or(Phase::Queued, |(phase, _)| *phase),
                task_ids: task_ids.remove(&row.id).unwrap_or_default(),
                summaries: summaries.remove(&row.id).unwrap_or_default(),
                best_checkpoint: best.remove(&row.id),
                wait_reason: match &live {
                    Some((_, allocation)) => views::tasks::wait_reason(allocation)?,
                    None => None,
                },
                max_restarts,
            };
            let mut trial = views::trials::trial(row, parts, now)?;
            if trial.wait_reason.is_none() && trial.state == TrialState::Paused {
                trial.wait_reason = Some(views::trials::paused(row.experiment_id));
            }
            shown.push(trial);
        }
    }
    Ok(shown)
}

/// The checkpoints of the trials' best validations: those at the same step that still have files.
async fn best_checkpoints(
    master: &Master,
    rows: &[TrialRow],
) -> AppResult<BTreeMap<i64, CheckpointRow>> {
    let mut wanted = BTreeSet::new();
    for row in rows.iter().filter(|row| row.checkpoint_count > 0) {
        wanted.extend(views::trials::best_step(row)?.map(|step| (row.id, step)));
    }
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let trial_ids: Vec<i64> = wanted.iter().map(|(trial_id, _)| *trial_id).collect();
    let mut conn = master.store.read().await?;
    let mut candidates = checkpoints::of_trials(&mut conn.conn(), &trial_ids).await?;
    // Of several at one step the last one is shown.
    candidates.sort_by(|a, b| (a.reported_at, &a.uuid).cmp(&(b.reported_at, &b.uuid)));
    Ok(candidates
        .into_iter()
        .filter(|c| c.state != "DELETED")
        .filter_map(|c| Some((c.trial_id?, c)))
        .filter(|(trial_id, c)| wanted.contains(&(*trial_id, c.steps)))
        .collect())
}

/// One trial.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}", operation_id = "GetTrial", tag = "trials",
    params(("trialId" = i64, Path)), responses((status = 200, body = GetTrialResponse)))]
async fn get_trial(State(master): State<Master>, _caller: Caller, PathId(id): PathId) -> Answer {
    master.settle_metrics().await?;
    let row = find(&master, id).await?;
    let experiment = experiments::find(&master, row.experiment_id).await?;
    let shown = show_all(&master, &experiment, std::slice::from_ref(&row)).await?;
    let trial = shown
        .into_iter()
        .next()
        .ok_or_else(|| AppError::not_found("trial", id))?;
    message(&GetTrialResponse { trial })
}

/// What a trial has reported, by step.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/workloads", operation_id = "GetTrialWorkloads", tag = "trials",
    params(("trialId" = i64, Path), GetTrialWorkloadsQuery),
    responses((status = 200, body = GetTrialWorkloadsResponse)))]
async fn get_trial_workloads(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<GetTrialWorkloadsQuery>,
) -> Answer {
    find(&master, id).await?;
    let (workloads, pagination) = workloads::page(&master, id, &query).await?;
    message(&GetTrialWorkloadsResponse {
        workloads,
        pagination,
    })
}

/// Checkpoints of a trial by page.
#[utoipa::path(get, path = "/api/v1/trials/{id}/checkpoints", operation_id = "GetTrialCheckpoints", tag = "trials",
    params(("id" = i64, Path), GetCheckpointsQuery), responses((status = 200, body = GetTrialCheckpointsResponse)))]
async fn get_trial_checkpoints(
    State(master): State<Master>,
    Caller(actor): Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<GetCheckpointsQuery>,
) -> Answer {
    let row = find(&master, id).await?;
    let experiment = experiments::find(&master, row.experiment_id).await?;
    let rows = {
        let mut conn = master.store.read().await?;
        checkpoints::of_trial(&mut conn.conn(), id).await?
    };
    let (checkpoints, pagination) =
        crate::http::checkpoints::page(&master, &actor, &experiment, rows, &query).await?;
    message(&GetTrialCheckpointsResponse {
        checkpoints,
        pagination,
    })
}

/// Ends a trial at once.
#[utoipa::path(post, path = "/api/v1/trials/{id}/kill", operation_id = "KillTrial", tag = "trials",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn kill_trial(
    State(master): State<Master>,
    Caller(actor): Caller,
    PathId(id): PathId,
) -> Answer {
    master.kill_trial(&actor, id).await?;
    empty()
}

/// Says how long the logs of a trial are kept.
#[utoipa::path(put, path = "/api/v1/trials/{trialId}/retain_logs", operation_id = "PutTrialRetainLogs", tag = "trials",
    params(("trialId" = i64, Path)), request_body = PutTrialRetainLogsRequest,
    responses((status = 200, body = Empty)))]
async fn put_trial_retain_logs(
    State(master): State<Master>,
    Caller(actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<PutTrialRetainLogsRequest>,
) -> Answer {
    let days = retention_days(body.num_days)?;
    master.keep_trial_logs(&actor, id, days).await?;
    empty()
}

/// How long the logs of a trial are there for.
#[utoipa::path(get, path = "/api/v1/trials/{id}/remaining_log_retention_days",
    operation_id = "GetTrialRemainingLogRetentionDays", tag = "trials", params(("id" = i64, Path)),
    responses((status = 200, body = GetTrialRemainingLogRetentionDaysResponse)))]
async fn get_trial_remaining_log_retention_days(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
) -> Answer {
    message(&GetTrialRemainingLogRetentionDaysResponse {
        remaining_days: Some(master.remaining_log_days(id).await?),
    })
}

/// The trial's code says how far it is.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/progress", operation_id = "ReportTrialProgress", tag = "trials",
    params(("trialId" = i64, Path)), request_body = ReportTrialProgressRequest,
    responses((status = 200, body = Empty)))]
async fn report_trial_progress(
    State(master): State<Master>,
    Reporter(actor): Reporter,
    PathId(id): PathId,
    WireBody(body): WireBody<ReportTrialProgressRequest>,
) -> Answer {
    master
        .report_progress(&actor, id, body.progress.0, body.is_raw)
        .await?;
    empty()
}

/// The trial's code says that it ends early.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/early_exit", operation_id = "ReportTrialSearcherEarlyExit",
    tag = "trials", params(("trialId" = i64, Path)), request_body = TrialEarlyExit,
    responses((status = 200, body = Empty)))]
async fn report_trial_searcher_early_exit(
    State(master): State<Master>,
    Reporter(actor): Reporter,
    PathId(id): PathId,
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
    master.report_early_exit(&actor, id, reason).await?;
    empty()
}

/// The trial's code says what it does at present.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/runner/metadata", operation_id = "PostTrialRunnerMetadata",
    tag = "trials", params(("trialId" = i64, Path)), request_body = TrialRunnerMetadata,
    responses((status = 200, body = Empty)))]
async fn post_trial_runner_metadata(
    State(master): State<Master>,
    Caller(actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<TrialRunnerMetadata>,
) -> Answer {
    master.set_runner_state(&actor, id, &body.state).await?;
    empty()
}

/// The trial's code begins to report.
#[utoipa::path(post, path = "/api/v1/runs/start", operation_id = "RunPrepareForReporting", tag = "runs",
    request_body = RunPrepareForReportingRequest, responses((status = 200, body = RunPrepareForReportingResponse)))]
async fn run_prepare_for_reporting(
    State(master): State<Master>,
    Caller(actor): Caller,
    WireBody(body): WireBody<RunPrepareForReportingRequest>,
) -> Answer {
    if body.run_id <= 0 {
        return Err(
            AppError::invalid("field \"runId\" must name the run, which is the trial").into(),
        );
    }
    let storage = body.checkpoint_storage.map(|storage| storage.0);
    let storage_id = master.start_run(&actor, body.run_id, storage).await?;
    message(&RunPrepareForReportingResponse {
        storage_id: Some(storage_id),
    })
}

/// The user's metadata of a run.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/metadata", operation_id = "GetRunMetadata", tag = "runs",
    params(("runId" = i64, Path)), responses((status = 200, body = GetRunMetadataResponse)))]
async fn get_run_metadata(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
) -> Answer {
    let row = find(&master, id).await?;
    message(&GetRunMetadataResponse {
        metadata: object("metadata of trial", id, &row.metadata)?,
    })
}

/// Replaces the user's metadata of a run.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/metadata", operation_id = "PostRunMetadata", tag = "runs",
    params(("runId" = i64, Path)), request_body = PostRunMetadataRequest,
    responses((status = 200, body = PostRunMetadataResponse)))]
async fn post_run_metadata(
    State(master): State<Master>,
    Caller(actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<PostRunMetadataRequest>,
) -> Answer {
    check_metadata(&body.metadata)?;
    let metadata = master.set_run_metadata(&actor, id, body.metadata.0).await?;
    message(&PostRunMetadataResponse {
        metadata: Object(metadata),
    })
}

/// Refuses metadata beyond the documented limits, naming the key at fault.
fn check_metadata(metadata: &Object) -> AppResult<()> {
    fn check(path: &str, value: &Value, depth: usize, keys: &mut usize) -> AppResult<()> {
        let refuse = |what: String| Err(AppError::invalid(format!("field \"{path}\": {what}")));
        if depth > METADATA_DEPTH {
            return refuse(format!(
                "metadata must not nest deeper than {METADATA_DEPTH} levels"
            ));
        }
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    *keys += 1;
                    if *keys > METADATA_KEYS {
                        return refuse(format!(
                            "metadata must not have more than {METADATA_KEYS} keys"
                        ));
                    }
                    let shown = key.escape_debug();
                    if key.is_empty() || key.chars().count() > METADATA_KEY_CHARS {
                        return refuse(format!(
                            "key \"{shown}\" must have 1 to {METADATA_KEY_CHARS} characters"
                        ));
                    }
                    if key.contains(['$', '.', '[', ']', '\0']) {
                        return refuse(format!(
                            "key \"{shown}\" must not contain \"$\", \".\", \"[\", \"]\" or NUL"
                        ));
                    }
                    check(&format!("{path}.{key}"), value, depth + 1, keys)?;
                }
            }
            Value::Array(items) => {
                if items.len() > METADATA_ITEMS {
                    return refuse(format!(
                        "a list must not have more than {METADATA_ITEMS} items, found {}",
                        items.len()
                    ));
                }
                for (index, item) in items.iter().enumerate() {
                    check(&format!("{path}[{index}]"), item, depth + 1, keys)?;
                }
            }
            Value::String(text)
                if text.chars().count() > METADATA_TEXT_CHARS || text.contains('\0') =>
            {
                return refuse(format!(
                    "a text must have at most {METADATA_TEXT_CHARS} characters and no NUL"
                ));
            }
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
        Ok(())
    }
    check("metadata", &Value::Object(metadata.0.clone()), 0, &mut 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(value: Value) -> AppResult<()> {
        let Value::Object(members) = value else {
            panic!("an object")
        };
        check_metadata(&Object(members))
    }

    #[test]
    fn metadata_within_the_limits_are_taken() {
        metadata(json!({"a": {"b": [1, "x", null, true]}, "c": 1.5})).unwrap();
        metadata(json!({})).unwrap();
    }

    #[test]
    fn metadata_beyond_a_limit_are_refused_by_name() {
        let deep = (0..11).fold(json!(1), |inner, _| json!({ "k": inner }));
        let many: serde_json::Map<String, Value> =
            (0..1001).map(|n| (format!("k{n}"), json!(n))).collect();
        for (value, expected) in [
            (deep, "nest deeper than 10"),
            (Value::Object(many), "more than 1000 keys"),
            (
                json!({"x": {"a.b": 1}}),
                "field \"metadata.x\": key \"a.b\" must not contain",
            ),
            (json!({"k".repeat(51): 1}), "must have 1 to 50 characters"),
            (
                json!({"t": "x".repeat(5001)}),
                "field \"metadata.t\": a text must have at most 5000",
            ),
            (
                json!({"l": vec![0; 101]}),
                "field \"metadata.l\": a list must not have more than 100 items",
            ),
        ] {
            let message = metadata(value).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }
}
