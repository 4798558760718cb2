//! Trials as clients see them.

use std::collections::BTreeMap;

use det_api_types::checkpoints::CheckpointState;
use det_api_types::metrics::Metrics;
use det_api_types::page::WaitReason;
use det_api_types::trials::{
    CheckpointWorkload, MetricsWorkload, Trial, TrialState, WorkloadContainer,
};
use det_api_types::wire::{Float, Int64, Object, RawList, RawObject, Timestamp};
use det_config::experiment::{mask_member, mask_with_variables, may_hold_secrets};
use det_ids::TaskId;
use det_store::StoreError;
use det_store::allocations::TaskRow;
use det_store::checkpoints::CheckpointRow;
use det_store::metrics::{GroupSummary, MetricSummary, StoredReport, ValueKind};
use det_store::trials::TrialRow;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::app::checkpoints::resources;
use crate::app::metrics::{TRAINING, VALIDATION};
use crate::app::reads::trials::history::Entry;
use crate::app::reads::trials::{TrialParts, validation};
use crate::error::{AppError, AppResult};
use crate::http::views::experiments::{object, trial_state};
use crate::http::views::tasks;

/// A trial as it is at `now`, microseconds. An error = what is stored of it cannot be read.
pub fn trial(row: &TrialRow, parts: &TrialParts, now: i64) -> Result<Trial, StoreError> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "durations stay far below 2^52 microseconds"
    )]
    let seconds = (row.ended_at.unwrap_or(now) - row.created_at).max(0) as f64 / 1e6;
    let state = trial_state(row.state, parts.phase);
    let wait_reason = match &parts.allocation {
        Some(allocation) => tasks::wait_reason(allocation),
        None => None,
    };
    let is_paused = state == TrialState::Paused;
    let task = parts.tasks.iter().find(|task| task.id == row.task_id);
    let task_ids: Vec<TaskId> = parts.tasks.iter().map(|task| task.id.clone()).collect();
    Ok(Trial {
        id: row.id,
        experiment_id: row.experiment_id,
        start_time: Timestamp(row.created_at),
        end_time: row.ended_at.map(Timestamp),
        state,
        restarts: row.restarts.min(parts.max_restarts),
        hparams: hyperparameters(row)?,
        total_batches_processed: row.total_batches,
        best_validation: stored_validation(row, row.best_validation.as_deref())?,
        latest_validation: stored_validation(row, row.latest_validation.as_deref())?,
        best_checkpoint: parts
            .best_checkpoint
            .as_ref()
            .map(checkpoint_workload)
            .transpose()?,
        runner_state: row.runner_state.clone(),
        wall_clock_time: Float(seconds),
        warm_start_checkpoint_uuid: row.warm_start_checkpoint.clone().unwrap_or_default(),
        task_id: task_ids.first().cloned(),
        total_checkpoint_size: Int64(row.checkpoint_bytes),
        checkpoint_count: row.checkpoint_count,
        summary_metrics: Some(summary_metrics(&parts.summaries)),
        task_ids,
        searcher_metric_value: row.best_metric.map(Float),
        log_retention_days: task.and_then(|task| task.log_retention_days),
        metadata: Some(object("metadata of trial", row.id, &row.metadata)?),
        log_policy_matched: task.and_then(log_policies_matched),
        wait_reason: wait_reason.or_else(|| is_paused.then(|| paused(row))),
        last_failure: parts.failure.as_ref().map(tasks::failure),
        notice: row.notice.clone(),
    })
}

/// Why a trial does not run that is paused.
fn paused(row: &TrialRow) -> WaitReason {
    let experiment_id = row.experiment_id;
    let (kind, message) = match row.unmanaged {
        Some(_) => (
            "unmanaged",
            "it runs outside the cluster, and its code has not sent a heartbeat yet".to_owned(),
        ),
        None => (
            "paused",
            format!(
                "experiment {experiment_id} is paused; `det experiment activate {experiment_id}` lets it go on"
            ),
        ),
    };
    WaitReason {
        kind: kind.to_owned(),
        message,
        ..WaitReason::default()
    }
}

/// The names of all log policies that matched, the first one first.
fn log_policies_matched(task: &TaskRow) -> Option<String> {
    let matched = &task.log_findings.as_ref()?.matched;
    (!matched.is_empty()).then(|| matched.join(", "))
}

fn stored_validation(
    row: &TrialRow,
    text: Option<&str>,
) -> Result<Option<MetricsWorkload>, StoreError> {
    let Some(report) = validation(row, text)? else {
        return Ok(None);
    };
    Ok(Some(metrics_workload(report, BatchMetrics::Left)))
}

/// Whether the values of single batches are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMetrics {
    /// As they were reported.
    Given,
    /// They are left out, whether or not there are any.
    Left,
}

/// The values of a report.
pub fn metrics(report: StoredReport, batches: BatchMetrics) -> Metrics {
    let batch_metrics = report
        .batches
        .filter(|_| batches == BatchMetrics::Given)
        .and_then(RawList::new);
    Metrics {
        avg_metrics: Object(report.metrics),
        batch_metrics,
    }
}

/// A report as an entry of a trial's history.
pub fn metrics_workload(report: StoredReport, batches: BatchMetrics) -> MetricsWorkload {
    MetricsWorkload {
        end_time: Some(Timestamp(report.at)),
        total_batches: report.step.unwrap_or(0),
        metrics: metrics(report, batches),
        num_inputs: 0,
    }
}

/// A checkpoint as an entry of a trial's history.
pub fn checkpoint_workload(row: &CheckpointRow) -> Result<CheckpointWorkload, StoreError> {
    Ok(CheckpointWorkload {
        uuid: row.uuid.clone(),
        end_time: Some(Timestamp(row.reported_at)),
        state: CheckpointState::from_name(row.state.name()).unwrap_or_default(),
        resources: resources(row)?
            .into_iter()
            .map(|(path, size)| (path, Int64(size)))
            .collect(),
        total_batches: row.steps,
        metadata: object("metadata of checkpoint", &row.uuid, &row.metadata)?,
    })
}

/// An entry of a trial's history.
pub(crate) fn workload(
    entry: Entry,
    batches: BatchMetrics,
) -> Result<WorkloadContainer, StoreError> {
    let mut container = WorkloadContainer::default();
    match entry {
        Entry::Checkpoint(row) => container.checkpoint = Some(checkpoint_workload(&row)?),
        Entry::Validation(report) => {
            container.validation = Some(metrics_workload(report, batches));
        }
        Entry::Training(report) => container.training = Some(metrics_workload(report, batches)),
    }
    Ok(container)
}

/// Statistics of each metric by group, under the groups' names in documents (`docs/contract/http-api.md`, "Metric groups in
/// documents").
pub fn summary_metrics(groups: &BTreeMap<String, GroupSummary>) -> Object {
    groups
        .iter()
        .filter(|(_, summary)| !summary.metrics.is_empty())
        .map(|(group, summary)| {
            let name = match group.as_str() {
                TRAINING => "avg_metrics",
                VALIDATION => "validation_metrics",
                other => other,
            };
            let metrics: Map<String, Value> = summary
                .metrics
                .iter()
                .map(|(metric, summary)| (metric.clone(), metric_summary(summary)))
                .collect();
            (name.to_owned(), Value::Object(metrics))
        })
        .collect()
}

/// Only numbers have statistics.
fn metric_summary(summary: &MetricSummary) -> Value {
    let mut shown = json!({"type": summary.kind, "count": summary.count, "last": summary.last});
    if summary.kind == ValueKind::Number {
        for (key, value) in [
            ("sum", summary.sum),
            ("min", summary.min),
            ("max", summary.max),
            ("mean", summary.mean()),
        ] {
            shown[key] = json!(value);
        }
    }
    shown
}

/// The stored document of a report, as metric streams give it. The values of single batches stay text.
pub fn metrics_document(group: &str, report: &StoredReport) -> AppResult<RawObject> {
    #[derive(Serialize)]
    struct Validation<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        batch_metrics: Option<&'a RawValue>,
        validation_metrics: &'a Map<String, Value>,
    }
    #[derive(Serialize)]
    struct Other<'a> {
        avg_metrics: &'a Map<String, Value>,
        batch_metrics: Option<&'a RawValue>,
    }
    let batch_metrics = report.batches.as_deref();
    let text = if group == VALIDATION {
        serde_json::value::to_raw_value(&Validation {
            batch_metrics,
            validation_metrics: &report.metrics,
        })
    } else {
        serde_json::value::to_raw_value(&Other {
            avg_metrics: &report.metrics,
            batch_metrics,
        })
    };
    text.ok().and_then(RawObject::new).ok_or_else(|| {
        AppError::internal(anyhow::anyhow!(
            "a metric report could not be written as JSON"
        ))
    })
}

/// The hyperparameters of a trial for showing: passwords in addresses are hidden, as others see
/// its experiment's configuration. Its code has them as they are.
pub fn hyperparameters(row: &TrialRow) -> Result<Object, StoreError> {
    let hparams = object("hyperparameters of trial", row.id, &row.hparams)?;
    if !may_hold_secrets("hyperparameters", &row.hparams) {
        return Ok(hparams);
    }
    let masked = mask_member(
        "hyperparameters",
        &Value::Object(hparams.0),
        mask_with_variables,
    );
    match masked {
        Value::Object(members) => Ok(Object(members)),
        _ => Ok(Object::default()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::app::reads::phase::Phase;
    use det_ids::{ExperimentId, RunId, TrialId, UserId};
    use det_lifecycle::log_findings::LogFindings;
    use det_lifecycle::task::TaskState;
    use det_taskspec::TaskKind;

    pub(crate) fn row() -> TrialRow {
        TrialRow {
            id: TrialId(9),
            experiment_id: ExperimentId(3),
            request_id: "r".into(),
            task_id: "3.r".into(),
            state: det_lifecycle::trial::TrialState::Active,
            hparams: r#"{"lr":0.1}"#.into(),
            seed: 0,
            run_id: RunId(2),
            restarts: 7,
            warm_start_checkpoint: None,
            latest_checkpoint: None,
            latest_checkpoint_steps: None,
            total_batches: 100,
            progress: 0.5,
            runner_state: "training".into(),
            metadata: "{}".into(),
            best_metric: Some(0.5),
            best_validation: Some(r#"{"s":50,"t":5000000,"m":{"loss":0.5}}"#.into()),
            latest_metric: Some(0.6),
            latest_validation: Some(
                r#"{"s":100,"t":6000000,"m":{"loss":0.6,"note":"NaN"}}"#.into(),
            ),
            checkpoint_count: 1,
            checkpoint_bytes: 26,
            notice: None,
            created_at: 1_000_000,
            ended_at: None,
            unmanaged: None,
        }
    }

    fn task(id: &str, days: i64) -> TaskRow {
        let mut findings = LogFindings::default();
        findings.add_match(&format!("policy of {id}"));
        TaskRow {
            id: id.into(),
            kind: TaskKind::Trial,
            job_id: "job".into(),
            owner_id: UserId(1),
            experiment_id: Some(ExperimentId(3)),
            trial_id: Some(TrialId(7)),
            state: TaskState::Running,
            demand: None,
            attempts: 1,
            losses: 0,
            log_lines: 0,
            created_at: 1,
            ended_at: None,
            logs_deleted_at: None,
            log_findings: Some(findings),
            log_retention_days: Some(days),
        }
    }

    #[test]
    fn a_trial_is_shown_with_what_clients_need() {
        let parts = TrialParts {
            phase: Phase::Running,
            tasks: vec![task("3.r", 7), task("3.r-1", 8)],
            max_restarts: 5,
            ..TrialParts::default()
        };
        let shown = trial(&row(), &parts, 3_500_000).unwrap();
        assert_eq!(shown.state, TrialState::Running);
        assert_eq!(shown.restarts, 5, "shown capped");
        assert_eq!(shown.task_id, Some("3.r".into()));
        assert_eq!(shown.task_ids, ["3.r", "3.r-1"].map(TaskId::from));
        // What its current task has.
        assert_eq!(shown.log_retention_days, Some(7));
        assert_eq!(shown.log_policy_matched.as_deref(), Some("policy of 3.r"));
        assert_eq!(shown.wall_clock_time, Float(2.5));
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["bestValidation"]["metrics"]["avgMetrics"]["loss"], 0.5);
        assert_eq!(json["latestValidation"]["totalBatches"], 100);
        assert_eq!(json["totalCheckpointSize"], "26");
    }

    #[test]
    fn summaries_have_the_shape_that_clients_read() {
        let mut group = GroupSummary::new();
        for value in [json!(1.0), json!(3.0)] {
            let metrics =
                Map::from_iter([("loss".to_owned(), value), ("tag".to_owned(), json!("x"))]);
            group.add(&StoredReport {
                step: Some(1),
                at: 0,
                metrics,
                batches: None,
                report_id: None,
            });
        }
        let groups = BTreeMap::from([
            (TRAINING.to_owned(), group.clone()),
            ("mine".to_owned(), group),
        ]);
        let shown = summary_metrics(&groups).into_value();
        assert_eq!(
            shown["avg_metrics"]["loss"],
            json!({"type": "number", "count": 2, "sum": 4.0, "min": 1.0, "max": 3.0, "mean": 2.0, "last": 3.0})
        );
        assert_eq!(
            shown["mine"]["tag"],
            json!({"type": "string", "count": 2, "last": "x"})
        );
    }

    #[test]
    fn documents_differ_by_group() {
        let report = StoredReport {
            step: Some(1),
            at: 0,
            metrics: Map::from_iter([("loss".to_owned(), json!(1.0))]),
            batches: None,
            report_id: None,
        };
        assert_eq!(
            metrics_document(VALIDATION, &report).unwrap().get(),
            r#"{"validation_metrics":{"loss":1.0}}"#
        );
        assert_eq!(
            metrics_document("mine", &report).unwrap().get(),
            r#"{"avg_metrics":{"loss":1.0},"batch_metrics":null}"#
        );
    }
}
