//! Metrics of trials: reporting and reading.

use axum::response::Response;
use bytes::Bytes;
use det_api_types::metrics::{
    GetMetricsQuery, GetTrialMetricsQuery, IncomingReport, MetricsChunk, MetricsReport,
    ReportTrialMetricsRequest, read_report,
};
use det_api_types::page::Empty;
use det_api_types::wire::Timestamp;
use det_ids::{ReportId, TrialId};
use det_store::metrics::StoredReport;
use tokio::sync::mpsc;

use crate::app::metrics::stream::{Reports, Source};
use crate::app::metrics::{Report, TRAINING, VALIDATION};
use crate::app::reads;
use crate::error::AppResult;
use crate::http::answers::send_in_time;
use crate::http::extract::{Caller, PathId, RawBody, Reporter, StreamStart, WireQuery};
use crate::http::respond::{self, Answer, StreamAnswer, empty};
use crate::http::routes::{Routes, routes};
use crate::http::views::trials::metrics_document;

/// Messages that wait to be sent.
const MESSAGES: usize = 2;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(report_trial_metrics))
        .routes(routes!(get_metrics))
        .routes(routes!(get_training_metrics))
        .routes(routes!(get_validation_metrics))
}

/// Ingests a report of a trial.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/metrics", operation_id = "ReportTrialMetrics", tag = "metrics",
    params(("trialId" = i64, Path)), request_body = ReportTrialMetricsRequest,
    responses((status = 200, body = Empty)))]
async fn report_trial_metrics(
    Reporter(master, actor): Reporter,
    PathId(trial_id): PathId<TrialId>,
    body: RawBody,
) -> Answer {
    let size = body.len();
    let incoming = body.decode(|body| Ok(read_report(body)?)).await?;
    let report = report(trial_id, incoming);
    master.metrics.report(&actor, report, size).await?;
    empty()
}

/// A report off the wire; the path's trial wins over the body's.
fn report(trial_id: TrialId, incoming: IncomingReport) -> Report {
    Report {
        trial_id,
        run_id: incoming.trial_run_id,
        group: incoming.group,
        step: incoming.steps_completed,
        at: incoming
            .report_time
            .map_or_else(det_store::now, |time| time.0),
        metrics: incoming.avg_metrics,
        batches: incoming.batch_metrics,
        report_id: incoming.report_id.and_then(ReportId::given),
        may_repeat: true,
    }
}

/// Reports of trials, of one group or of all.
#[utoipa::path(get, path = "/api/v1/trials/metrics/trial_metrics", operation_id = "GetMetrics", tag = "metrics",
    params(GetMetricsQuery), responses((status = 200, body = MetricsChunk, description = "a stream of messages")))]
async fn get_metrics(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetMetricsQuery>,
) -> StreamAnswer {
    let group = Some(query.group).filter(|group| !group.is_empty());
    let reports =
        reads::metrics::reports(&master.sources.metrics, &actor, query.trial_ids, group).await?;
    Ok(stream(reports, streaming).await)
}

/// Training reports of trials.
#[utoipa::path(get, path = "/api/v1/trials/metrics/training_metrics", operation_id = "GetTrainingMetrics",
    tag = "metrics", params(GetTrialMetricsQuery),
    responses((status = 200, body = MetricsChunk, description = "a stream of messages")))]
async fn get_training_metrics(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetTrialMetricsQuery>,
) -> StreamAnswer {
    let group = Some(TRAINING.to_owned());
    let reports =
        reads::metrics::reports(&master.sources.metrics, &actor, query.trial_ids, group).await?;
    Ok(stream(reports, streaming).await)
}

/// Validation reports of trials.
#[utoipa::path(get, path = "/api/v1/trials/metrics/validation_metrics", operation_id = "GetValidationMetrics",
    tag = "metrics", params(GetTrialMetricsQuery),
    responses((status = 200, body = MetricsChunk, description = "a stream of messages")))]
async fn get_validation_metrics(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetTrialMetricsQuery>,
) -> StreamAnswer {
    let group = Some(VALIDATION.to_owned());
    let reports =
        reads::metrics::reports(&master.sources.metrics, &actor, query.trial_ids, group).await?;
    Ok(stream(reports, streaming).await)
}

async fn stream(reports: Reports, streaming: StreamStart) -> Response {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    // Ends by itself when all is sent, or when the receiver has gone.
    tokio::spawn(async move {
        // An error waits to be read without anything else in memory. A receiver that has gone needs none.
        if let Err(error) = send_all(reports, &sender).await {
            let _ = sender.send(Err(error)).await;
        }
    });
    respond::stream(receiver, streaming).await
}

/// Sends message after message until the end, or until the receiver has gone.
async fn send_all(mut reports: Reports, out: &mpsc::Sender<AppResult<Bytes>>) -> AppResult<()> {
    loop {
        let message = reports.next().await?;
        if message.is_empty() {
            return Ok(());
        }
        let line = respond::line(&chunk(message)?)?;
        if !send_in_time(out, line).await? {
            return Ok(());
        }
    }
}

/// A message; documents are made one by one, and what they are made of is released.
fn chunk(message: Vec<(Source, StoredReport)>) -> AppResult<MetricsChunk> {
    let document = |(source, report): (Source, StoredReport)| {
        Ok(MetricsReport {
            trial_id: source.trial_id,
            end_time: Timestamp(report.at),
            metrics: metrics_document(&source.group, &report)?,
            total_batches: source.step,
            // Reports that a newer run has outdated are not among them.
            archived: false,
            id: source.id.0,
            trial_run_id: source.run_id,
            group: source.group,
        })
    };
    Ok(MetricsChunk {
        metrics: message
            .into_iter()
            .map(document)
            .collect::<AppResult<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use det_ids::RunId;

    use super::*;

    #[test]
    fn a_report_is_read_as_the_harness_sends_it() {
        let body = br#"{"group":"training","metrics":{"trialId":1,"trialRunId":2,"stepsCompleted":3,"reportTime":null,
            "metrics":{"avgMetrics":{"loss":"NaN"},"batchMetrics":null}}}"#;
        let report = report(TrialId(7), read_report(body).unwrap());
        assert_eq!(
            (report.trial_id, report.run_id, report.group.as_str()),
            (TrialId(7), RunId(2), "training")
        );
        assert_eq!(report.step, Some(3));
        assert!(report.at > 0, "without a time it is now");
        assert_eq!(report.metrics["loss"], "NaN");
        assert!(report.batches.is_none());
        assert_eq!(report.report_id, None);
    }

    #[test]
    fn a_report_may_bring_a_time_batches_and_an_identity() {
        let body = br#"{"group":"validation","report_id":"r1","metrics":{"trialRunId":"1","stepsCompleted":1,
            "reportTime":"1970-01-01T00:00:01Z","metrics":{"avgMetrics":{},"batchMetrics":[{"loss":1}]}}}"#;
        let report = report(TrialId(7), read_report(body).unwrap());
        assert_eq!(report.at, 1_000_000);
        assert_eq!(
            report.batches.map(|b| b.get().to_owned()).as_deref(),
            Some(r#"[{"loss":1}]"#)
        );
        assert_eq!(report.report_id, Some("r1".into()));
    }
}
