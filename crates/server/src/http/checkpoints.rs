//! Checkpoints: reporting, looking at them, changing, deleting and downloading them.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use det_api_types::checkpoints::{
    Checkpoint, CheckpointState, CheckpointsRemoveFilesRequest, DeleteCheckpointsRequest,
    GetCheckpointResponse, PatchCheckpointsRequest, PostCheckpointMetadataRequest,
    PostCheckpointMetadataResponse,
};
use det_api_types::page::Empty;
use det_api_types::wire::Int64;
use det_ids::{CheckpointId, ExperimentId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::checkpoints::archive::Format;
use crate::app::checkpoints::joined::CheckpointWithValidation;
use crate::app::checkpoints::{CheckpointReport, resources};
use crate::app::reads::checkpoints::{PolicyChange, ShownCheckpoint, TrainedCheckpoints};
use crate::app::{changes, reads};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::answers;
use crate::http::extract::{Caller, PathId, Reporter, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views::checkpoints::{Training, checkpoint, download_config};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
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

/// Checkpoints of one experiment as clients see them.
pub(crate) fn show_all(shown: &TrainedCheckpoints) -> AppResult<Vec<Checkpoint>> {
    let config = download_config(&shown.experiment, shown.sight, shown.with_keys)?;
    let show = |joined: &CheckpointWithValidation| {
        let trial = joined.row.trial_id.and_then(|id| shown.trials.get(&id));
        let from = trial.map(|trial| Training {
            trial,
            config: &config,
            metric: &shown.experiment.searcher_metric,
            training: shown.training.get(&(trial.id, joined.row.steps)).cloned(),
        });
        checkpoint(joined, from)
    };
    Ok(shown
        .checkpoints
        .iter()
        .map(show)
        .collect::<Result<_, _>>()?)
}

/// One checkpoint as clients see it.
fn show(found: &ShownCheckpoint) -> AppResult<Checkpoint> {
    match found {
        ShownCheckpoint::Bare(joined) => Ok(checkpoint(joined, None)?),
        ShownCheckpoint::Trained(trained) => show_all(trained)?
            .pop()
            .ok_or_else(|| AppError::internal(anyhow::anyhow!("a checkpoint was lost on the way"))),
    }
}

/// Records a checkpoint that a task has stored; a repeat changes nothing.
#[utoipa::path(post, path = "/api/v1/checkpoints", operation_id = "ReportCheckpoint", tag = "checkpoints",
    request_body = Checkpoint, responses((status = 200, body = Empty)))]
async fn report_checkpoint(
    Reporter(master, actor): Reporter,
    WireBody(body): WireBody<Checkpoint>,
) -> Answer {
    master.checkpoints.report(&actor, report(body)?).await?;
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
async fn get_checkpoint(Caller(master, actor): Caller, Path(uuid): Path<CheckpointId>) -> Answer {
    let found = reads::checkpoints::find(&master.sources.checkpoints, &actor, &uuid).await?;
    message(&GetCheckpointResponse {
        checkpoint: show(&found)?,
    })
}

/// Replaces the user's metadata of a checkpoint.
#[utoipa::path(post, path = "/api/v1/checkpoints/{checkpointUuid}/metadata", operation_id = "PostCheckpointMetadata",
    tag = "checkpoints", params(("checkpointUuid" = String, Path)), request_body = PostCheckpointMetadataRequest,
    responses((status = 200, body = PostCheckpointMetadataResponse)))]
async fn post_checkpoint_metadata(
    Caller(master, actor): Caller,
    Path(uuid): Path<CheckpointId>,
    WireBody(body): WireBody<PostCheckpointMetadataRequest>,
) -> Answer {
    let metadata = body.checkpoint.metadata.0;
    let found =
        changes::annotate_checkpoint(&master.changes.checkpoints, &actor, &uuid, metadata).await?;
    message(&PostCheckpointMetadataResponse {
        checkpoint: show(&found)?,
    })
}

/// Takes note of which files are left of checkpoints.
#[utoipa::path(patch, path = "/api/v1/checkpoints", operation_id = "PatchCheckpoints", tag = "checkpoints",
    request_body = PatchCheckpointsRequest, responses((status = 200, body = Empty)))]
async fn patch_checkpoints(
    Caller(master, actor): Caller,
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
    master.checkpoints.patch(&actor, changes).await?;
    empty()
}

/// Deletes the files of checkpoints; their rows stay, with the state `DELETED`.
#[utoipa::path(delete, path = "/api/v1/checkpoints", operation_id = "DeleteCheckpoints", tag = "checkpoints",
    request_body = DeleteCheckpointsRequest, responses((status = 200, body = Empty)))]
async fn delete_checkpoints(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<DeleteCheckpointsRequest>,
) -> Answer {
    master
        .checkpoint_removal
        .delete(&actor, body.checkpoint_uuids)
        .await?;
    empty()
}

/// Deletes files of checkpoints.
#[utoipa::path(post, path = "/api/v1/checkpoints/rm", operation_id = "CheckpointsRemoveFiles", tag = "checkpoints",
    request_body = CheckpointsRemoveFilesRequest, responses((status = 200, body = Empty)))]
async fn checkpoints_remove_files(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<CheckpointsRemoveFilesRequest>,
) -> Answer {
    master
        .checkpoint_removal
        .remove_matching(&actor, body.checkpoint_uuids, body.checkpoint_globs)
        .await?;
    empty()
}

/// A checkpoint's files as an archive: `Accept` chooses between gzip tar, tar and zip.
#[utoipa::path(get, path = "/checkpoints/{checkpointUuid}", operation_id = "DownloadCheckpoint", tag = "checkpoints",
    params(("checkpointUuid" = String, Path)),
    responses((status = 200, description = "the archive", content_type = "application/gzip")))]
async fn download_checkpoint(
    Caller(master, actor): Caller,
    Path(uuid): Path<CheckpointId>,
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
    let archive =
        reads::checkpoints::archive(&master.sources.checkpoints, &actor, &uuid, format).await?;
    let pieces = futures::stream::unfold(archive.pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((piece.map_err(AppError::internal), pieces))
    });
    let name = format!("attachment; filename=\"{uuid}.{}\"", format.extension());
    // `identity` keeps the compression layer away: the client unpacks the raw stream.
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::CONTENT_ENCODING, "identity"),
        (header::CONTENT_DISPOSITION, name.as_str()),
    ];
    Ok((headers, answers::paced_stream(pieces, archive.held)).into_response())
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
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireQuery(query): WireQuery<PolicyQuery>,
) -> Answer {
    let change = PolicyChange {
        experiment_best: query.save_experiment_best,
        trial_best: query.save_trial_best,
        trial_latest: query.save_trial_latest,
    };
    let (metric, doomed) =
        reads::checkpoints::doomed(&master.sources.checkpoints, &actor, id, change).await?;
    let shown = doomed
        .iter()
        .map(previewed)
        .collect::<AppResult<Vec<Value>>>()?;
    message(&json!({"checkpoints": shown, "metric_name": metric}))
}

/// A checkpoint under the names that the old product's client reads. It counts those as validated that have a `step`
/// with a `validation`.
fn previewed(joined: &CheckpointWithValidation) -> AppResult<Value> {
    let row = &joined.row;
    let metrics = joined
        .validation
        .as_ref()
        .map(|report| Value::Object(report.metrics.clone()));
    Ok(json!({
        "TrialID": row.trial_id,
        "StepsCompleted": row.steps,
        "State": row.state.name(),
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
        assert_eq!(report.task_id.as_str(), "1.a");
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
