//! Trials that do not report the metric by which their search decides: what their users read about it.

use det_config::experiment::ExperimentConfig;
use det_config::hyperparameters::SearchMethod;
use det_ids::TrialId;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::trial::TrialState;
use det_orchestrator::{LogLevel, SearchedMetrics};
use det_store::events::NewEvent;
use det_store::experiments::{ExperimentRow, SearcherKind};
use det_store::metrics::{StoredReport, number};
use det_store::trials::{Sort, TrialRow};
use det_store::{StoreError, WriteTx, experiments, trials};

use crate::app::context::Context;

/// Names of metrics that are shown at most.
const MOST_NAMES: usize = 20;
/// Characters of a name that are shown at most.
const MOST_OF_NAME: usize = 100;

/// How the sentence about a validation ends that is of no use.
const USELESS: &str = ". The validation is recorded, and the search decides nothing by it";
/// Trials of a search that failed, the first ones, that are looked at for what they reported.
const LOOKED_AT: i64 = 100;

/// Why a validation is of no use to the search. `metric` = the searcher's, `time` = its time metric, where it has one.
pub(crate) fn unusable(metric: &str, time: Option<&str>, report: &StoredReport) -> String {
    let problem = |kind: &str, name: &str| match report.metrics.get(name) {
        None => Some(format!("{kind} \"{name}\" was not reported")),
        Some(value) if number(value).is_none() => {
            Some(format!("{kind} \"{name}\" was reported as no number"))
        }
        Some(_) => None,
    };
    let problems = [
        problem("searcher metric", metric),
        time.and_then(|time| problem("time metric", time)),
    ];
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    let shorten = |name: &String| name.chars().take(MOST_OF_NAME).collect::<String>();
    let mut names: Vec<String> = report
        .metrics
        .keys()
        .take(MOST_NAMES)
        .map(shorten)
        .collect();
    let more = report.metrics.len().saturating_sub(MOST_NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let reported = match names.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let problems = match problems.as_slice() {
        // Numbers by name that are none for the search: not finite.
        [] => format!("searcher metric \"{metric}\" has no usable value"),
        problems => problems.join(", "),
    };
    format!("{problems}; reported validation metrics: {reported}{USELESS}")
}

/// The metric that the search measures training time by, where it does.
pub(crate) fn time_metric(config: &ExperimentConfig) -> Option<String> {
    match &config.searcher.method {
        SearchMethod::AsyncHalving { time_metric, .. }
        | SearchMethod::AdaptiveAsha { time_metric, .. } => Some(time_metric.clone()),
        SearchMethod::Single | SearchMethod::Random { .. } | SearchMethod::Grid { .. } => None,
    }
}

/// By what the search of an experiment decides, and what the first of its trials that a notice is about reported in
/// place of it.
pub(crate) async fn of_search(
    tx: &mut WriteTx,
    experiment: &ExperimentRow,
    config: &ExperimentConfig,
) -> Result<SearchedMetrics, StoreError> {
    let (first, _) = trials::list(
        &mut tx.conn(),
        experiment.id,
        None,
        Sort::Id,
        false,
        0,
        LOOKED_AT,
    )
    .await?;
    let misses = first.iter().find_map(|trial| {
        let notice = trial.notice.as_ref()?;
        let misses = notice.strip_suffix(USELESS).unwrap_or(notice);
        Some(format!("trial {}: {misses}", trial.id))
    });
    Ok(SearchedMetrics {
        metric: experiment.searcher_metric.clone(),
        time_metric: time_metric(config),
        misses,
    })
}

/// Stores what users should know of a trial's reports: with the trial, in its log and in the record.
pub(crate) async fn note(
    context: &Context,
    tx: &mut WriteTx,
    trial: &TrialRow,
    text: &str,
) -> Result<(), StoreError> {
    trials::set_notice(&mut tx.conn(), trial.id, Some(text)).await?;
    context.write_line(tx, &trial.task_id, None, (LogLevel::Warning, text))?;
    let subject = Subject::Trial(trial.id);
    let event = NewEvent::new(ActorName::Master, subject, EventKind::MetricMissing).reason(text);
    context.record(tx, event).await
}

/// A trial has ended: if it completed without a validation by which its search could have decided, its users read so.
/// A search of one trial decides nothing, and much that it runs is no training: that is left alone.
pub(crate) async fn note_if_never_reported(
    context: &Context,
    tx: &mut WriteTx,
    id: TrialId,
) -> Result<(), StoreError> {
    let Some(trial) = trials::find(&mut tx.conn(), id).await? else {
        return Ok(());
    };
    let reported_nothing = trial.latest_validation.is_none() && trial.notice.is_none();
    if trial.state != TrialState::Completed || trial.unmanaged.is_some() || !reported_nothing {
        return Ok(());
    }
    let Some(experiment) = experiments::find(&mut tx.conn(), trial.experiment_id).await? else {
        return Ok(());
    };
    if experiment.searcher_name == SearcherKind::Single {
        return Ok(());
    }
    let text = format!(
        "searcher metric \"{}\" was never reported; reported validation metrics: none. Report it with \
         core_context.train.report_validation_metrics: training metrics are not looked at by the search",
        experiment.searcher_metric
    );
    note(context, tx, &trial, &text).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(metrics: serde_json::Value) -> StoredReport {
        let serde_json::Value::Object(metrics) = metrics else {
            panic!("metrics are an object");
        };
        StoredReport {
            step: Some(1),
            at: 0,
            metrics,
            batches: None,
            report_id: None,
        }
    }

    #[test]
    fn what_was_reported_in_place_of_the_searchers_metric_is_named() {
        let of = |metrics, time| unusable("loss", time, &report(metrics));
        let other = of(serde_json::json!({"f1": 1, "accuracy": 0.5}), None);
        assert!(
            other.starts_with(
                "searcher metric \"loss\" was not reported; reported validation metrics: accuracy, f1."
            ),
            "{other}"
        );
        let text = of(serde_json::json!({"loss": "low"}), Some("hours"));
        assert!(
            text.starts_with(
                "searcher metric \"loss\" was reported as no number, time metric \"hours\" was not reported; "
            ),
            "{text}"
        );
        let none = of(serde_json::json!({}), None);
        assert!(none.contains("validation metrics: none."), "{none}");
    }
}
