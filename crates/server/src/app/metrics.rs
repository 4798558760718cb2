//! Metric reports: taking them in, judging repeats, best and latest validation, and what the search makes of them.
//!
//! Reports of all trials gather while a commit is under way and are stored together, as one row of a journal
//! (`intake`); some seconds later, or when somebody reads, the journal is folded into chunks and statistics
//! (`folding`). A validation's decision by the search commits in the same transaction as the validation
//! (`docs/contract/searchers.md`, "One transaction").

mod folding;
mod intake;
mod memory;
pub mod reports;
pub mod series;
pub(crate) mod stream;

use std::collections::BTreeMap;

use det_config::experiment::ExperimentConfig;
use det_config::hyperparameters::SearchMethod;
use det_failpoints::failpoint;
use det_ids::ExperimentId;
use det_orchestrator::Event;
use det_searcher::Event as SearchEvent;
use det_store::metrics::{self, GroupSummary, StoredReport, number};
use det_store::{WriteTx, experiments, trials};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::app::Master;
use crate::error::{AppError, AppResult, ErrorKind};

pub use folding::run_folding;
pub use intake::Intake;
use intake::{Arriving, Taken};
use memory::LiveTrial;

/// The group that feeds the search.
pub const VALIDATION: &str = "validation";
/// The group of training metrics.
pub const TRAINING: &str = "training";
/// Groups of system metrics: without steps, append only.
const PROFILER_GROUPS: [&str; 5] = ["gpu", "cpu", "memory", "disk", "network"];

/// A report on its way in.
#[derive(Debug)]
pub struct Report {
    /// Whose.
    pub trial_id: i64,
    /// Run that reports.
    pub run_id: i64,
    /// Which group.
    pub group: String,
    /// Steps completed; `None` for profiler groups.
    pub step: Option<i64>,
    /// When, microseconds.
    pub at: i64,
    /// Average (or validation) metrics by name.
    pub metrics: Map<String, Value>,
    /// Metrics of single batches: a JSON list of objects.
    pub batches: Option<Box<RawValue>>,
    /// Identity given by the sender, if any.
    pub report_id: Option<String>,
}

impl Master {
    /// Takes in one report; answers when it is durable.
    pub async fn report_metrics(&self, report: Report) -> AppResult<()> {
        check(&report)?;
        let validation = report.group == VALIDATION;
        let arriving = Arriving::new(report)?;
        if validation {
            self.store_validation(arriving).await
        } else {
            self.gather(arriving).await
        }
    }

    /// Stores a validation together with what the search decides by it.
    async fn store_validation(&self, arriving: Arriving) -> AppResult<()> {
        let trial_id = arriving.report.trial_id;
        let mut reports = vec![arriving];
        loop {
            let handler = self.clone();
            let taken = self
                .context
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        let taken = handler.take_in(tx, reports).await?;
                        if let Taken::Done(results) = &taken {
                            for report in results.iter().flatten().flatten() {
                                handler.on_validation(tx, trial_id, report).await?;
                            }
                        }
                        failpoint!("server::metrics::store::before_commit");
                        Ok::<_, AppError>(taken)
                    })
                })
                .await?;
            failpoint!("server::metrics::store::after_commit");
            match taken {
                Taken::Done(results) => {
                    return results
                        .into_iter()
                        .try_for_each(|result| result.map(|_| ()));
                }
                Taken::FoldFirst(again) => {
                    self.settle_metrics().await?;
                    reports = again;
                }
            }
        }
    }
}

/// Metrics in one report. Statistics are kept of each, and shown with the trial.
const MOST_NAMES: usize = 10_000;
/// Bytes in the name of a metric or of a group.
const MOST_NAME_BYTES: usize = 1024;

/// Refuses what no state of the trial could make right.
fn check(report: &Report) -> AppResult<()> {
    if report.group.is_empty() || report.group.contains('.') || report.group.contains('\0') {
        return Err(AppError::invalid(format!(
            "metric group \"{}\" is not allowed: a group's name must not be empty and must not contain \".\"",
            report.group.escape_debug()
        )));
    }
    if report.group.len() > MOST_NAME_BYTES {
        return Err(AppError::invalid(format!(
            "a metric group's name may have at most {MOST_NAME_BYTES} bytes, found {}",
            report.group.len()
        )));
    }
    if report.metrics.len() > MOST_NAMES {
        return Err(AppError::invalid(format!(
            "a report may have at most {MOST_NAMES} metrics, found {}",
            report.metrics.len()
        ))
        .hint("put long lists of numbers into one metric, or into batch metrics"));
    }
    if let Some(name) = report
        .metrics
        .keys()
        .find(|name| name.len() > MOST_NAME_BYTES)
    {
        return Err(AppError::invalid(format!(
            "a metric's name may have at most {MOST_NAME_BYTES} bytes, found {}",
            name.len()
        )));
    }
    let stepless = PROFILER_GROUPS.contains(&report.group.as_str());
    match report.step {
        None if !stepless => {
            return Err(AppError::invalid(
                "field \"metrics.stepsCompleted\" is missing: metrics need a step",
            ));
        }
        Some(step) if step < 0 => {
            return Err(AppError::invalid(format!(
                "field \"metrics.stepsCompleted\" must be 0 or more, found {step}"
            )));
        }
        _ => {}
    }
    for key in ["epoch", "epochs"] {
        if let Some(value) = report.metrics.get(key)
            && number(value).is_none()
        {
            return Err(AppError::invalid(format!(
                "metric \"{key}\" must be a number, found {value}"
            )));
        }
    }
    Ok(())
}

impl Master {
    /// A new run reports for the first time in this group: statistics and best validation leave out what it outdates.
    ///
    /// Reports of older runs must be in chunks, and not in the journal; `unfolded` = groups and steps of what this run has
    /// in the journal.
    async fn begin_run(
        &self,
        tx: &mut WriteTx,
        trial: &mut LiveTrial,
        first: &Report,
        unfolded: &[(String, Option<i64>)],
    ) -> AppResult<()> {
        let trial_id = first.trial_id;
        let mut starts = metrics::run_starts(&mut tx.conn(), trial_id).await?;
        if starts.is_empty() {
            return Ok(());
        }
        let start =
            |group: &str, step: Option<i64>| (group.to_owned(), first.run_id, step.unwrap_or(-1));
        starts.push(start(&first.group, first.step));
        starts.extend(unfolded.iter().map(|(group, step)| start(group, *step)));
        let mut groups: BTreeMap<String, GroupSummary> = BTreeMap::new();
        let mut best: (Option<f64>, Option<StoredReport>) = (None, None);
        let mut latest: (Option<f64>, Option<StoredReport>) = (None, None);
        let searcher = match experiments::find(&mut tx.conn(), trial.experiment_id).await? {
            Some(experiment) => (experiment.searcher_metric, experiment.smaller_is_better),
            None => return Ok(()),
        };
        let names: std::collections::BTreeSet<String> =
            starts.iter().map(|(name, _, _)| name.clone()).collect();
        for name in names {
            let outdated = metrics::outdated_from(&starts, &name);
            let mut summary = GroupSummary::new();
            let mut after = 0;
            loop {
                let chunks =
                    metrics::chunks(&mut tx.conn(), trial_id, Some(&name), after, 256).await?;
                let Some(last) = chunks.last() else { break };
                after = last.id;
                for chunk in &chunks {
                    for report in chunk.unpack()? {
                        if !metrics::counts(&outdated, chunk.run_id, report.step) {
                            continue;
                        }
                        summary.add(&report);
                        if name == VALIDATION {
                            consider(&mut best, &mut latest, &report, &searcher.0, searcher.1);
                        }
                    }
                    if chunk.run_id == trial.run_id {
                        summary.run_id = trial.run_id;
                    }
                }
            }
            // Steps are compared within one run only.
            if summary.run_id != trial.run_id {
                summary.last_step = -1;
            }
            metrics::save_summary(&mut tx.conn(), trial_id, &name, &summary).await?;
            groups.insert(name, summary);
        }
        trial.groups = memory::live_groups(&groups);
        let json = |report: &Option<StoredReport>| {
            report
                .as_ref()
                .map(serde_json::to_string)
                .transpose()
                .map_err(AppError::internal)
        };
        let (best_text, latest_text) = (json(&best.1)?, json(&latest.1)?);
        trials::set_validations(
            &mut tx.conn(),
            trial_id,
            (best.0, best_text.as_deref()),
            (latest.0, latest_text.as_deref()),
        )
        .await?;
        Ok(())
    }

    /// Best and latest validation of trial and experiment, and the search.
    async fn on_validation(
        &self,
        tx: &mut WriteTx,
        trial_id: i64,
        report: &StoredReport,
    ) -> AppResult<()> {
        let Some(trial) = trials::find(&mut tx.conn(), trial_id).await? else {
            return Ok(());
        };
        let Some(experiment) = experiments::find(&mut tx.conn(), trial.experiment_id).await? else {
            return Ok(());
        };
        let text = serde_json::to_string(report).map_err(AppError::internal)?;
        let metric = report
            .metrics
            .get(&experiment.searcher_metric)
            .and_then(number);
        let finite = metric.filter(|m| m.is_finite());
        let better =
            finite.is_some_and(|m| is_better(m, trial.best_metric, experiment.smaller_is_better));
        trials::set_validations(
            &mut tx.conn(),
            trial_id,
            if better {
                (finite, Some(text.as_str()))
            } else {
                (trial.best_metric, trial.best_validation.as_deref())
            },
            (finite, Some(&text)),
        )
        .await?;
        if let Some(m) = finite
            && is_better(m, experiment.best_metric, experiment.smaller_is_better)
        {
            experiments::set_best(&mut tx.conn(), experiment.id, Some(trial_id), Some(m)).await?;
        }
        if trial.ended_at.is_some() || experiment.ended_at.is_some() {
            return Ok(());
        }
        let time_metric = time_metric(self.configs.of(&experiment)?.as_ref());
        let time = time_metric.as_ref().and_then(|name| {
            report.metrics.get(name).and_then(number).or_else(|| {
                #[expect(clippy::cast_precision_loss, reason = "steps stay far below 2^52")]
                let steps = report.step.filter(|_| name == "batches").map(|s| s as f64);
                steps
            })
        });
        let request_id = det_ids::RequestId(trial.request_id.clone());
        let unusable = metric.is_none() || (time_metric.is_some() && time.is_none());
        let event = match metric {
            Some(metric) if !unusable => SearchEvent::Validation {
                request_id,
                metric,
                time,
            },
            _ => SearchEvent::UnusableValidation { request_id },
        };
        if unusable && trial.notice.is_none() {
            let wanted =
                time_metric.map_or_else(String::new, |t| format!(" and the time metric \"{t}\""));
            let notice = format!(
                "a validation of this trial has no number for the searcher's metric \"{}\"{wanted}; it was recorded, \
                 and the search decides nothing by it",
                experiment.searcher_metric
            );
            trials::set_notice(&mut tx.conn(), trial_id, Some(&notice)).await?;
            crate::app::logs::write_line(&self.context.hub, tx, &trial.task_id, None, &notice)?;
        }
        let id = ExperimentId(experiment.id);
        self.orchestration
            .advance(tx, [Event::Search { id, event }])
            .await
    }
}

/// The metric that the search measures training time by, where it does.
fn time_metric(config: &ExperimentConfig) -> Option<String> {
    match &config.searcher.method {
        SearchMethod::AsyncHalving { time_metric, .. }
        | SearchMethod::AdaptiveAsha { time_metric, .. } => Some(time_metric.clone()),
        SearchMethod::Single | SearchMethod::Random { .. } | SearchMethod::Grid { .. } => None,
    }
}

/// Whether `metric` beats `best`.
pub fn is_better(metric: f64, best: Option<f64>, smaller_is_better: bool) -> bool {
    best.is_none_or(|best| {
        if smaller_is_better {
            metric < best
        } else {
            metric > best
        }
    })
}

fn consider(
    best: &mut (Option<f64>, Option<StoredReport>),
    latest: &mut (Option<f64>, Option<StoredReport>),
    report: &StoredReport,
    metric: &str,
    smaller_is_better: bool,
) {
    let value = report
        .metrics
        .get(metric)
        .and_then(number)
        .filter(|m| m.is_finite());
    if let Some(v) = value
        && is_better(v, best.0, smaller_is_better)
    {
        *best = (value, Some(report.clone()));
    }
    *latest = (value, Some(report.clone()));
}

/// The part of `new` that `earlier` reports do not hold. `Ok(None)`: all of it is known. `Err`: it contradicts them.
fn without_known(
    earlier: &[StoredReport],
    new: StoredReport,
    group: &str,
) -> AppResult<Option<StoredReport>> {
    if let Some(id) = &new.report_id
        && earlier.iter().any(|e| e.report_id.as_ref() == Some(id))
    {
        return Ok(None);
    }
    let same: Vec<&StoredReport> = earlier.iter().filter(|e| e.step == new.step).collect();
    if new.step.is_none() || same.is_empty() {
        return Ok(Some(new));
    }
    let mut rest = Map::new();
    for (name, value) in &new.metrics {
        match same.iter().find_map(|e| e.metrics.get(name)) {
            None => {
                rest.insert(name.clone(), value.clone());
            }
            Some(known) if known == value => {}
            Some(known) => {
                return Err(AppError::new(
                    ErrorKind::Conflict,
                    format!(
                        "metric \"{name}\" of group \"{group}\" at step {} is {known} already and cannot become {value}",
                        new.step.unwrap_or_default()
                    ),
                ));
            }
        }
    }
    let known = same.iter().find(|e| e.batches.is_some());
    let batches = match (&new.batches, known) {
        (Some(_), Some(known)) if !known.same_batches(&new) => {
            return Err(AppError::new(
                ErrorKind::Conflict,
                format!(
                    "the batch metrics of group \"{group}\" at step {} are there already and cannot be changed",
                    new.step.unwrap_or_default()
                ),
            ));
        }
        (given, None) => given.clone(),
        (_, Some(_)) => None,
    };
    if rest.is_empty() && batches.is_none() {
        return Ok(None);
    }
    Ok(Some(StoredReport {
        metrics: rest,
        batches,
        ..new
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(step: i64, metrics: Value) -> StoredReport {
        let Value::Object(metrics) = metrics else {
            panic!("an object")
        };
        StoredReport {
            step: Some(step),
            at: 0,
            metrics,
            batches: None,
            report_id: None,
        }
    }

    #[test]
    fn a_repeated_report_is_not_a_second_point() {
        let known = [report(3, json!({"loss": 0.5}))];
        assert_eq!(
            without_known(&known, report(3, json!({"loss": 0.5})), "training").unwrap(),
            None
        );
    }

    #[test]
    fn new_names_at_a_known_step_are_merged() {
        let known = [report(3, json!({"loss": 0.5}))];
        let rest = without_known(
            &known,
            report(3, json!({"loss": 0.5, "accuracy": 1.0})),
            "training",
        )
        .unwrap();
        assert_eq!(rest, Some(report(3, json!({"accuracy": 1.0}))));
    }

    #[test]
    fn another_value_at_a_known_step_is_a_conflict() {
        let known = [report(3, json!({"loss": 0.5}))];
        let error = without_known(&known, report(3, json!({"loss": 0.6})), "training").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert_eq!(
            error.message,
            "metric \"loss\" of group \"training\" at step 3 is 0.5 already and cannot become 0.6"
        );
    }

    #[test]
    fn an_infinite_metric_is_never_best() {
        let (mut best, mut latest) = ((None, None), (None, None));
        for value in [json!("NaN"), json!(2.0), json!("-Infinity"), json!(3.0)] {
            consider(
                &mut best,
                &mut latest,
                &report(1, json!({ "loss": value })),
                "loss",
                true,
            );
        }
        assert_eq!(best.0, Some(2.0));
        assert_eq!(latest.0, Some(3.0));
    }
}
