//! Checkpoints: reporting, looking at them, changing, deleting and downloading them.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use det_api_types::checkpoints::{
    Checkpoint, CheckpointState, CheckpointsRemoveFilesRequest, DeleteCheckpointsRequest,
    GetCheckpointResponse, GetCheckpointsQuery, PatchCheckpointsRequest,
    PostCheckpointMetadataRequest, PostCheckpointMetadataResponse,
};
use det_api_types::page::{Empty, Pagination};
use det_api_types::wire::Int64;
use det_store::checkpoints::CheckpointRow;
use det_store::experiments::ExperimentRow;
use det_store::trials::{self, TrialRow};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::app::checkpoints::archive::Format;
use crate::app::checkpoints::joined::{Joined, collectable, policy_of, with_validations};
use crate::app::checkpoints::policy::to_delete;
use crate::app::checkpoints::reports::at_steps;
use crate::app::checkpoints::{CheckpointReport, resources};
use crate::app::metrics::TRAINING;
use crate::app::submission::may_use_secrets;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::experiments;
use crate::http::extract::{Caller, PathId, Reporter, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::views::checkpoints::{
    Training, checkpoint, download_config, has_only_keys_of, sort, sort_key,
};
use crate::http::views::experiments::Sight;
use crate::http::views::paging;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(
            report_checkpoint,
            patch_checkpoints,
            delete_checkpoints
        ))
        .routes(routes!(checkpoints_remove_files))
        .routes(routes!(get_checkpoint))
        .routes(routes!(post_checkpoint_metadata))
        .routes(routes!(download_checkpoint))
        .routes(routes!(preview_gc))
}

/// One page of the checkpoints of an experiment, or of one of its trials.
pub(crate) async fn page(
    master: &Master,
    reader: &Actor,
    experiment: &ExperimentRow,
    mut rows: Vec<CheckpointRow>,
    query: &GetCheckpointsQuery,
) -> AppResult<(Vec<Checkpoint>, Pagination)> {
    let key = sort_key(
        query.sort_by_attr,
        &query.sort_by_metric,
        query.order_by,
        &experiment.searcher_metric,
        experiment.smaller_is_better,
    )
    .map_err(AppError::invalid)?;
    if !query.states.is_empty() {
        rows.retain(|row| {
            CheckpointState::from_name(&row.state)
                .is_some_and(|state| query.states.contains(&state))
        });
    }
    master.settle_metrics().await?;
    let (joined, pagination) = if key.needs_validations() {
        let mut joined = with_validations(&master.store, rows).await?;
        sort(&mut joined, &key, query.order_by);
        paging::slice(joined, query.offset, query.limit)
    } else {
        let mut bare: Vec<Joined> = rows
            .into_iter()
            .map(|row| Joined {
                row,
                validation: None,
            })
            .collect();
        sort(&mut bare, &key, query.order_by);
        let (bare, pagination) = paging::slice(bare, query.offset, query.limit);
        let rows = bare.into_iter().map(|joined| joined.row).collect();
        (with_validations(&master.store, rows).await?, pagination)
    };
    Ok((
        show_all(master, reader, experiment, &joined).await?,
        pagination,
    ))
}

/// Checkpoints of one experiment with the training that they come from.
async fn show_all(
    master: &Master,
    reader: &Actor,
    experiment: &ExperimentRow,
    checkpoints: &[Joined],
) -> AppResult<Vec<Checkpoint>> {
    let sight = Sight::of(reader, experiment.owner_id);
    let with_keys = sees_storage_keys(master, reader, experiment)?;
    let config = download_config(experiment, sight, with_keys)?;
    let mut steps: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for joined in checkpoints {
        if let Some(trial_id) = joined.row.trial_id {
            steps.entry(trial_id).or_default().insert(joined.row.steps);
        }
    }
    let training = at_steps(&master.store, TRAINING, &steps).await?;
    let trial_ids: Vec<i64> = steps.into_keys().collect();
    let trials: BTreeMap<i64, TrialRow> = {
        let mut conn = master.store.read().await?;
        trials::find_all(&mut conn.conn(), &trial_ids)
            .await?
            .into_iter()
            .map(|trial| (trial.id, trial))
            .collect()
    };
    let show = |joined: &Joined| {
        let trial = joined.row.trial_id.and_then(|id| trials.get(&id));
        let from = trial.map(|trial| Training {
            trial,
            config: &config,
            metric: &experiment.searcher_metric,
            training: training.get(&(trial.id, joined.row.steps)).cloned(),
        });
        checkpoint(joined, from)
    };
    Ok(checkpoints.iter().map(show).collect::<Result<_, _>>()?)
}

/// Whether a reader is shown the credentials of an experiment's checkpoint storage, to download with them: the owner's own
/// tasks are too, and everybody is where they are those that the cluster or the workspace gives everybody's experiments.
fn sees_storage_keys(
    master: &Master,
    reader: &Actor,
    experiment: &ExperimentRow,
) -> AppResult<bool> {
    if may_use_secrets(reader, experiment.owner_id) {
        return Ok(true);
    }
    let config = serde_json::from_str(&experiment.config).map_err(AppError::internal)?;
    let common = master.storage_of_everybody(experiment.project_id)?;
    Ok(common
        .iter()
        .any(|common| has_only_keys_of(&config, common)))
}

/// One checkpoint as it is shown.
async fn show(master: &Master, reader: &Actor, row: CheckpointRow) -> AppResult<Checkpoint> {
    let (Some(experiment_id), Some(trial_id)) = (row.experiment_id, row.trial_id) else {
        return Ok(checkpoint(
            &Joined {
                row,
                validation: None,
            },
            None,
        )?);
    };
    let experiment = experiments::find(master, experiment_id).await?;
    crate::http::trials::find(master, trial_id).await?;
    master.settle_metrics().await?;
    let joined = with_validations(&master.store, vec![row]).await?;
    let shown = show_all(master, reader, &experiment, &joined).await?;
    shown
        .into_iter()
        .next()
        .ok_or_else(|| AppError::internal(anyhow::anyhow!("a checkpoint was lost on the way")))
}

/// Takes in a checkpoint that a task has stored; a repeat changes nothing.
#[utoipa::path(post, path = "/api/v1/checkpoints", operation_id = "ReportCheckpoint", tag = "checkpoints",
    request_body = Checkpoint, responses((status = 200, body = Empty)))]
async fn report_checkpoint(
    State(master): State<Master>,
    Reporter(actor): Reporter,
    WireBody(body): WireBody<Checkpoint>,
) -> Answer {
    master.report_checkpoint(&actor, report(body)?).await?;
    empty()
}

/// A report off the wire.
fn report(body: Checkpoint) -> AppResult<CheckpointReport> {
    match body.state {
        CheckpointState::Unspecified | CheckpointState::Completed => {}
        other => {
            return Err(AppError::invalid(format!(
                "field \"state\" must be STATE_COMPLETED, found {other}: a checkpoint is reported when it is stored"
            )));
        }
    }
    Ok(CheckpointReport {
        uuid: body.uuid,
        task_id: body.task_id.unwrap_or_default(),
        allocation_id: body.allocation_id,
        metadata: body.metadata.0,
        resources: sizes(body.resources),
        reported_at: body.report_time.map(|time| time.0),
        storage_id: body.storage_id,
    })
}

fn sizes(resources: BTreeMap<String, Int64>) -> BTreeMap<String, i64> {
    resources
        .into_iter()
        .map(|(path, size)| (path, size.0))
        .collect()
}

/// One checkpoint with the training that it comes from.
#[utoipa::path(get, path = "/api/v1/checkpoints/{checkpointUuid}", operation_id = "GetCheckpoint",
    tag = "checkpoints", params(("checkpointUuid" = String, Path)),
    responses((status = 200, body = GetCheckpointResponse)))]
async fn get_checkpoint(
    State(master): State<Master>,
    Caller(actor): Caller,
    Path(uuid): Path<String>,
) -> Answer {
    let row = master.checkpoint(&uuid).await?;
    message(&GetCheckpointResponse {
        checkpoint: show(&master, &actor, row).await?,
    })
}

/// Replaces the user's metadata of a checkpoint.
#[utoipa::path(post, path = "/api/v1/checkpoints/{checkpointUuid}/metadata", operation_id = "PostCheckpointMetadata",
    tag = "checkpoints", params(("checkpointUuid" = String, Path)), request_body = PostCheckpointMetadataRequest,
    responses((status = 200, body = PostCheckpointMetadataResponse)))]
async fn post_checkpoint_metadata(
    State(master): State<Master>,
    Caller(actor): Caller,
    Path(uuid): Path<String>,
    WireBody(body): WireBody<PostCheckpointMetadataRequest>,
) -> Answer {
    let row = master
        .set_checkpoint_metadata(&actor, &uuid, body.checkpoint.metadata.0)
        .await?;
    message(&PostCheckpointMetadataResponse {
        checkpoint: show(&master, &actor, row).await?,
    })
}

/// Takes note of which files are left of checkpoints.
#[utoipa::path(patch, path = "/api/v1/checkpoints", operation_id = "PatchCheckpoints", tag = "checkpoints",
    request_body = PatchCheckpointsRequest, responses((status = 200, body = Empty)))]
async fn patch_checkpoints(
    State(master): State<Master>,
    Caller(actor): Caller,
    WireBody(body): WireBody<PatchCheckpointsRequest>,
) -> Answer {
    let changes = body
        .checkpoints
        .into_iter()
        .map(|change| {
            (
                change.uuid,
                change.resources.map(|left| sizes(left.resources)),
            )
        })
        .collect();
    master.patch_checkpoints(&actor, changes).await?;
    empty()
}

/// Deletes checkpoints.
#[utoipa::path(delete, path = "/api/v1/checkpoints", operation_id = "DeleteCheckpoints", tag = "checkpoints",
    request_body = DeleteCheckpointsRequest, responses((status = 200, body = Empty)))]
async fn delete_checkpoints(
    State(master): State<Master>,
    Caller(actor): Caller,
    WireBody(body): WireBody<DeleteCheckpointsRequest>,
) -> Answer {
    master
        .delete_checkpoints(&actor, body.checkpoint_uuids)
        .await?;
    empty()
}

/// Deletes files of checkpoints.
#[utoipa::path(post, path = "/api/v1/checkpoints/rm", operation_id = "CheckpointsRemoveFiles", tag = "checkpoints",
    request_body = CheckpointsRemoveFilesRequest, responses((status = 200, body = Empty)))]
async fn checkpoints_remove_files(
    State(master): State<Master>,
    Caller(actor): Caller,
    WireBody(body): WireBody<CheckpointsRemoveFilesRequest>,
) -> Answer {
    master
        .remove_checkpoint_files(&actor, body.checkpoint_uuids, body.checkpoint_globs)
        .await?;
    empty()
}

/// A checkpoint's files as an archive: `Accept` chooses between gzip tar, tar and zip.
#[utoipa::path(get, path = "/checkpoints/{checkpointUuid}", operation_id = "DownloadCheckpoint", tag = "checkpoints",
    params(("checkpointUuid" = String, Path)),
    responses((status = 200, description = "the archive", content_type = "application/gzip")))]
async fn download_checkpoint(
    State(master): State<Master>,
    _caller: Caller,
    Path(uuid): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let accept = headers
        .get(header::ACCEPT)
        .map(|value| value.to_str().unwrap_or("?"));
    let format = Format::negotiate(accept).ok_or_else(|| {
        AppError::new(
            ErrorKind::UnsupportedMedia,
            format!(
                "checkpoints are not sent as \"{}\"",
                accept.unwrap_or_default().escape_debug()
            ),
        )
        .hint("accept application/gzip, application/x-tar or application/zip")
    })?;
    let pieces = master.checkpoint_archive(&uuid, format).await?;
    let pieces = futures::stream::unfold(pieces, |mut pieces| async move {
        Some((pieces.recv().await?, pieces))
    });
    let name = format!("attachment; filename=\"{uuid}.{}\"", format.extension());
    // `identity` keeps the compression layer away: the client unpacks the raw stream.
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::CONTENT_ENCODING, "identity"),
        (header::CONTENT_DISPOSITION, name.as_str()),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Query of `PreviewCheckpointPolicy`; what is missing is as the experiment has it.
#[derive(Debug, Clone, Default, Deserialize, Serialize, utoipa::ToSchema, utoipa::IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
struct PolicyQuery {
    /// Best checkpoints of the experiment to keep.
    save_experiment_best: Option<i64>,
    /// Best checkpoints of each trial to keep.
    save_trial_best: Option<i64>,
    /// Latest checkpoints of each trial to keep.
    save_trial_latest: Option<i64>,
}

/// The checkpoints that a policy would delete.
#[utoipa::path(get, path = "/experiments/{experimentId}/preview_gc", operation_id = "PreviewCheckpointPolicy",
    tag = "checkpoints", params(("experimentId" = i64, Path), PolicyQuery),
    responses((status = 200, body = Object, description = "checkpoints and metric_name")))]
async fn preview_gc(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<PolicyQuery>,
) -> Answer {
    let experiment = experiments::find(&master, id).await?;
    let number = |field: &str, given: Option<i64>| {
        given
            .map(|n| {
                usize::try_from(n).map_err(|_| {
                    AppError::invalid(format!("field \"{field}\" must be 0 or more, found {n}"))
                })
            })
            .transpose()
    };
    let mut policy = policy_of(&experiment)?;
    for (field, given, place) in [
        (
            "save_experiment_best",
            query.save_experiment_best,
            &mut policy.experiment_best,
        ),
        (
            "save_trial_best",
            query.save_trial_best,
            &mut policy.trial_best,
        ),
        (
            "save_trial_latest",
            query.save_trial_latest,
            &mut policy.trial_latest,
        ),
    ] {
        *place = number(field, given)?.unwrap_or(*place);
    }
    master.settle_metrics().await?;
    let (joined, protected) = collectable(&master.store, &experiment).await?;
    let candidates: Vec<_> = joined
        .iter()
        .filter_map(|joined| joined.candidate(&experiment.searcher_metric))
        .collect();
    let doomed: BTreeSet<String> = to_delete(&candidates, &protected, &policy)
        .into_iter()
        .collect();
    let shown = joined
        .iter()
        .filter(|joined| doomed.contains(&joined.row.uuid))
        .map(previewed)
        .collect::<AppResult<Vec<Value>>>()?;
    message(&json!({"checkpoints": shown, "metric_name": experiment.searcher_metric}))
}

/// A checkpoint under the names that the old product's client reads. It counts those as validated that have a `step`
/// with a `validation`.
fn previewed(joined: &Joined) -> AppResult<Value> {
    let row = &joined.row;
    let metrics = joined
        .validation
        .as_ref()
        .map(|report| Value::Object(report.metrics.clone()));
    Ok(json!({
        "TrialID": row.trial_id,
        "StepsCompleted": row.steps,
        "State": row.state,
        "ValidationMetrics": metrics,
        "UUID": row.uuid,
        "Resources": resources(row)?,
        "ReportTime": det_api_types::wire::Timestamp(row.reported_at).to_string(),
        "step": {"validation": metrics.as_ref().map(|metrics| json!({"metrics": {"validation_metrics": metrics}}))},
    }))
}

#[cfg(test)]
mod tests {
    use det_api_types::wire;

    use super::*;

    #[test]
    fn a_report_is_read_as_the_harness_sends_it() {
        let body = br#"{"uuid":"0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11","taskId":"1.a","allocationId":"1.a.1",
            "metadata":{"steps_completed":3},"resources":{"d/":"0","m.txt":"2"},"training":{},
            "reportTime":"1970-01-01T00:00:02Z","state":"STATE_COMPLETED","storageId":null}"#;
        let report = report(wire::decode(body).unwrap()).unwrap();
        assert_eq!(report.task_id, "1.a");
        assert_eq!(report.reported_at, Some(2_000_000));
        assert_eq!(
            report.resources,
            BTreeMap::from([("d/".to_owned(), 0), ("m.txt".to_owned(), 2)])
        );
    }

    #[test]
    fn only_stored_checkpoints_are_reported() {
        let body = Checkpoint {
            state: CheckpointState::Deleted,
            ..Checkpoint::default()
        };
        let error = report(body).unwrap_err();
        assert!(
            error
                .message
                .starts_with("field \"state\" must be STATE_COMPLETED, found STATE_DELETED")
        );
    }
}
