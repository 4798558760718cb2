//! System metrics: reports of supervisors, and the older operations of the profiler.

use axum::extract::Path;
use axum::response::Response;
use bytes::Bytes;
use det_api_types::page::Empty;
use det_api_types::profiler::{
    GetTaskSystemMetricsQuery, GetTaskSystemMetricsResponse, GetTrialProfilerAvailableSeriesQuery,
    GetTrialProfilerAvailableSeriesResponse, GetTrialProfilerMetricsQuery,
    GetTrialProfilerMetricsResponse, PostTrialProfilerMetricsBatchRequest, ProfilerMetricType,
    ProfilerSeriesFilter, ReportSystemMetricsRequest, ReportSystemMetricsResponse,
    ReportTaskSystemMetricsRequest, SystemMetricsReport, TaskSystemMetrics,
    TrialProfilerMetricLabels, TrialProfilerMetricsBatch,
};
use det_api_types::wire::{Float, Object, Timestamp};
use det_ids::{TaskId, TrialId};
use tokio::sync::mpsc;

use crate::app::metrics::stored_series::FoundSeries;
use crate::app::metrics::system::{
    MeasuredReport, Measurements, Reading, Readings, SeriesKind, SeriesLabels,
};
use crate::app::reads::profiler::{Profiler, SeriesFilter};
use crate::app::reads::task_metrics;
use crate::error::{AppError, AppResult};
use crate::http::answers::send_in_time;
use crate::http::extract::{Caller, PathId, Reporter, StreamStart, WireBody, WireQuery};
use crate::http::respond::{self, Answer, StreamAnswer, empty, message};
use crate::http::routes::{Routes, routes};

/// Messages that wait to be sent.
const MESSAGES: usize = 2;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(report_system_metrics))
        .routes(routes!(get_task_system_metrics, report_task_system_metrics))
        .routes(routes!(post_trial_profiler_metrics_batch))
        .routes(routes!(get_trial_profiler_metrics))
        .routes(routes!(get_trial_profiler_available_series))
}

/// Ingests what the supervisor of one of the trial's containers has measured.
#[utoipa::path(post, path = "/api/v1/trials/{trialId}/system_metrics", operation_id = "ReportSystemMetrics", tag = "metrics",
    params(("trialId" = i64, Path)), request_body = ReportSystemMetricsRequest,
    responses((status = 200, body = ReportSystemMetricsResponse)))]
async fn report_system_metrics(
    Reporter(master, actor): Reporter,
    PathId(trial_id): PathId<TrialId>,
    WireBody(body): WireBody<ReportSystemMetricsRequest>,
) -> Answer {
    let measured = Measurements {
        run_id: body.trial_run_id,
        agent_id: body.agent_id,
        again: body.again,
        reports: measured_reports(body.reports),
    };
    let collect = (master.metrics)
        .report_measured(&actor, trial_id, measured)
        .await?;
    message(&ReportSystemMetricsResponse { collect })
}

fn measured_reports(reports: Vec<SystemMetricsReport>) -> Vec<MeasuredReport> {
    let reports = reports.into_iter().map(|report| MeasuredReport {
        report_id: report.report_id.given(),
        at: report.time.0,
        groups: report.groups.0,
    });
    reports.collect()
}

/// Ingests what the supervisor of one of a launched task's containers has measured.
#[utoipa::path(post, path = "/api/v1/tasks/{taskId}/system_metrics", operation_id = "ReportTaskSystemMetrics", tag = "tasks",
    params(("taskId" = String, Path, description = "the task")), request_body = ReportTaskSystemMetricsRequest,
    responses((status = 200, body = ReportSystemMetricsResponse)))]
async fn report_task_system_metrics(
    Reporter(master, actor): Reporter,
    Path(task_id): Path<TaskId>,
    WireBody(body): WireBody<ReportTaskSystemMetricsRequest>,
) -> Answer {
    let reports = measured_reports(body.reports);
    (master.task_metrics)
        .report(&actor, &task_id, &body.agent_id, reports)
        .await?;
    message(&ReportSystemMetricsResponse { collect: true })
}

/// What was measured of a launched task, a page at a time.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/system_metrics", operation_id = "GetTaskSystemMetrics", tag = "tasks",
    params(("taskId" = String, Path, description = "the task"), GetTaskSystemMetricsQuery),
    responses((status = 200, body = GetTaskSystemMetricsResponse)))]
async fn get_task_system_metrics(
    Caller(master, actor): Caller,
    Path(task_id): Path<TaskId>,
    WireQuery(query): WireQuery<GetTaskSystemMetricsQuery>,
) -> Answer {
    let what = (query.group.as_str(), query.after);
    let page = task_metrics::page(&master.sources.task_metrics, &actor, &task_id, what).await?;
    let metrics = page.found.into_iter().map(|of| TaskSystemMetrics {
        group: of.group,
        time: Timestamp(of.at),
        container_id: of.container_id,
        values: Object(of.values),
    });
    message(&GetTaskSystemMetricsResponse {
        metrics: metrics.collect(),
        next: page.next,
    })
}

/// Ingests readings of older clients.
#[utoipa::path(post, path = "/api/v1/trials/profiler/metrics", operation_id = "PostTrialProfilerMetricsBatch", tag = "metrics",
    request_body = PostTrialProfilerMetricsBatchRequest, responses((status = 200, body = Empty)))]
async fn post_trial_profiler_metrics_batch(
    Reporter(master, actor): Reporter,
    WireBody(body): WireBody<PostTrialProfilerMetricsBatchRequest>,
) -> Answer {
    let readings = body.batches.into_iter().map(readings);
    let readings = readings.collect::<AppResult<_>>()?;
    master.metrics.report_readings(&actor, readings).await?;
    empty()
}

fn readings(batch: TrialProfilerMetricsBatch) -> AppResult<Readings> {
    let (values, batches, times) = (batch.values, batch.batches, batch.timestamps);
    if values.len() != batches.len() || values.len() != times.len() {
        return Err(AppError::invalid(format!(
            "\"values\", \"batches\" and \"timestamps\" of a batch must have the same length, found {}, {} and {}",
            values.len(),
            batches.len(),
            times.len()
        )));
    }
    let labels = batch.labels;
    let kind = kind(labels.metric_type).ok_or_else(|| {
        AppError::invalid(
            "label \"metricType\" is missing: it must be PROFILER_METRIC_TYPE_SYSTEM, _TIMING or _MISC",
        )
    })?;
    Ok(Readings {
        trial_id: labels.trial_id,
        labels: SeriesLabels {
            kind,
            name: labels.name.into(),
            agent_id: labels.agent_id.0.into(),
            label: labels.gpu_uuid.into(),
        },
        readings: (values.into_iter().zip(batches).zip(times))
            .map(|((value, batch), at)| Reading {
                value: value.0,
                batch,
                at: at.0,
            })
            .collect(),
    })
}

fn kind(kind: ProfilerMetricType) -> Option<SeriesKind> {
    match kind {
        ProfilerMetricType::Unspecified => None,
        ProfilerMetricType::System => Some(SeriesKind::System),
        ProfilerMetricType::Timing => Some(SeriesKind::Timing),
        ProfilerMetricType::Misc => Some(SeriesKind::Misc),
    }
}

fn labels(trial_id: TrialId, labels: &SeriesLabels) -> TrialProfilerMetricLabels {
    TrialProfilerMetricLabels {
        trial_id,
        name: labels.name.to_string(),
        agent_id: (*labels.agent_id).into(),
        gpu_uuid: labels.label.to_string(),
        metric_type: match labels.kind {
            SeriesKind::System => ProfilerMetricType::System,
            SeriesKind::Timing => ProfilerMetricType::Timing,
            SeriesKind::Misc => ProfilerMetricType::Misc,
        },
    }
}

fn filter(labels: ProfilerSeriesFilter) -> SeriesFilter {
    SeriesFilter {
        kind: kind(labels.metric_type),
        name: labels.name,
        agent_id: labels.agent_id.given(),
        label: labels.gpu_uuid,
    }
}

/// Readings of a trial's system metrics: those of every series that has the given labels, a message for some of one.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/profiler/metrics", operation_id = "GetTrialProfilerMetrics", tag = "metrics",
    params(("trialId" = i64, Path), GetTrialProfilerMetricsQuery),
    responses((status = 200, body = GetTrialProfilerMetricsResponse, description = "a stream of messages")))]
async fn get_trial_profiler_metrics(
    Caller(master, actor): Caller,
    PathId(trial_id): PathId<TrialId>,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetTrialProfilerMetricsQuery>,
) -> StreamAnswer {
    let filter = filter(query.labels);
    let mut profiler = Profiler::open(
        &master.sources.metrics,
        &actor,
        trial_id,
        filter,
        query.follow,
    )
    .await?;
    Ok(stream(streaming, move |out| async move {
        loop {
            let found = profiler.next_readings().await?;
            if found.is_empty() {
                return Ok(());
            }
            for (of, readings) in found {
                let batch = TrialProfilerMetricsBatch {
                    values: readings.iter().map(|one| Float(one.value)).collect(),
                    batches: readings.iter().map(|one| one.batch).collect(),
                    timestamps: readings.iter().map(|one| Timestamp(one.at)).collect(),
                    labels: labels(trial_id, &of),
                };
                let line = respond::line(&GetTrialProfilerMetricsResponse { batch })?;
                if !send_in_time(&out, line).await? {
                    return Ok(());
                }
            }
        }
    })
    .await)
}

/// The series of a trial's system metrics: each message has all that there are by then.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/profiler/available_series",
    operation_id = "GetTrialProfilerAvailableSeries", tag = "metrics",
    params(("trialId" = i64, Path), GetTrialProfilerAvailableSeriesQuery),
    responses((status = 200, body = GetTrialProfilerAvailableSeriesResponse, description = "a stream of messages")))]
async fn get_trial_profiler_available_series(
    Caller(master, actor): Caller,
    PathId(trial_id): PathId<TrialId>,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetTrialProfilerAvailableSeriesQuery>,
) -> StreamAnswer {
    let any = SeriesFilter::default();
    let mut profiler =
        Profiler::open(&master.sources.metrics, &actor, trial_id, any, query.follow).await?;
    Ok(stream(streaming, move |out| async move {
        let mut found = FoundSeries::default();
        let mut sent = None;
        loop {
            let more = profiler.next_series(&mut found).await?;
            if sent != Some(found.len()) {
                sent = Some(found.len());
                let labels = found.iter().map(|series| labels(trial_id, series));
                let message = GetTrialProfilerAvailableSeriesResponse {
                    labels: labels.collect(),
                };
                if !send_in_time(&out, respond::line(&message)?).await? {
                    return Ok(());
                }
            }
            if !more {
                return Ok(());
            }
        }
    })
    .await)
}

/// Streams what `send` sends; it is dropped when the client has gone.
async fn stream<S, F>(streaming: StreamStart, send: S) -> Response
where
    S: FnOnce(mpsc::Sender<AppResult<Bytes>>) -> F + Send + 'static,
    F: Future<Output = AppResult<()>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        let sent = tokio::select! {
            sent = send(sender.clone()) => sent,
            () = sender.closed() => return,
        };
        if let Err(error) = sent {
            // A receiver that has gone needs none.
            let _ = sender.send(Err(error)).await;
        }
    });
    respond::stream(receiver, streaming).await
}
