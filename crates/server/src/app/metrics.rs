//! Metric reports: taking them in, judging repeats, best and latest validation, and what the search makes of them.
//!
//! Reports of all trials gather while a commit is under way and are stored together, as one chunk for each trial and
//! group. A validation's decision by the search commits in the same transaction (`searchers` reference §8).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use det_config::experiment::ExperimentConfig;
use det_config::hyperparameters::SearchMethod;
use det_searcher::Event;
use det_store::metrics::{self, GroupSummary, StoredReport, number};
use det_store::trials::TrialRow;
use det_store::{StoreError, WriteTx, experiments, trials};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use crate::app::Master;
use crate::error::{AppError, AppResult, ErrorKind};

/// The group that feeds the search.
pub const VALIDATION: &str = "validation";
/// The group of training metrics.
pub const TRAINING: &str = "training";
/// Groups of system metrics: without steps, append only.
const PROFILER_GROUPS: [&str; 5] = ["gpu", "cpu", "memory", "disk", "network"];
/// Most reports in one transaction.
const GATHER: usize = 2048;

/// A report on its way in.
#[derive(Debug)]
pub struct Report {
    /// Whose.
    pub trial_id: i64,
    /// Run that reports.
    pub run_id: i64,
    /// Which group.
    pub group: String,
    /// What.
    pub report: StoredReport,
}

/// Where reports gather. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    sender: mpsc::Sender<(Report, oneshot::Sender<AppResult<()>>)>,
}

/// The other end of [`Intake`], for [`run_intake`].
pub type IntakeReceiver = mpsc::Receiver<(Report, oneshot::Sender<AppResult<()>>)>;

impl Intake {
    /// An intake and its other end.
    pub fn new() -> (Self, IntakeReceiver) {
        let (sender, receiver) = mpsc::channel(GATHER);
        (Self { sender }, receiver)
    }
}

/// Statistics of live trials in memory; rows hold the same.
#[derive(Clone, Default)]
pub struct Summaries {
    loaded: Arc<Mutex<HashMap<i64, BTreeMap<String, GroupSummary>>>>,
}

impl Summaries {
    fn take(&self, trial_id: i64) -> Option<BTreeMap<String, GroupSummary>> {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&trial_id)
    }

    fn put(&self, trial_id: i64, groups: BTreeMap<String, GroupSummary>) {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(trial_id, groups);
    }

    /// Forgets a trial that has ended.
    pub(crate) fn forget(&self, trial_id: i64) {
        self.take(trial_id);
    }
}

impl Master {
    /// Takes in one report; answers when it is durable.
    pub async fn report_metrics(&self, report: Report) -> AppResult<()> {
        if report.group.is_empty() || report.group.contains('.') || report.group.contains('\0') {
            return Err(AppError::invalid(format!(
                "metric group \"{}\" is not allowed: a group's name must not be empty and must not contain \".\"",
                report.group.escape_debug()
            )));
        }
        let stepless = PROFILER_GROUPS.contains(&report.group.as_str());
        match report.report.step {
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
            if let Some(value) = report.report.metrics.get(key)
                && number(value).is_none()
            {
                return Err(AppError::invalid(format!(
                    "metric \"{key}\" must be a number, found {value}"
                )));
            }
        }
        let (reply, answer) = oneshot::channel();
        let closed = || AppError::from(StoreError::Closed);
        self.metric_intake
            .sender
            .send((report, reply))
            .await
            .map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

/// Stores gathered reports until the master stops.
pub async fn run_intake(master: Master, mut receiver: IntakeReceiver) {
    let mut gathered = Vec::with_capacity(GATHER);
    while receiver.recv_many(&mut gathered, GATHER).await > 0 {
        let (reports, replies): (Vec<_>, Vec<_>) = gathered.drain(..).unzip();
        let handler = master.clone();
        let outcome = master
            .store
            .write(move |tx| Box::pin(async move { handler.store_reports(tx, reports).await }))
            .await;
        match outcome {
            Ok(results) => {
                for (reply, result) in replies.into_iter().zip(results) {
                    // A reporter that went away sends the report again and finds it known.
                    let _ = reply.send(result);
                }
            }
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, reports = replies.len(), "metric reports could not be stored");
                for reply in replies {
                    let mut copy = AppError::new(error.kind, error.message.clone());
                    copy.hint.clone_from(&error.hint);
                    let _ = reply.send(Err(copy));
                }
            }
        }
    }
}

/// Reports to be stored as one chunk: of one trial, group and run.
type Pending = BTreeMap<(i64, String), Vec<StoredReport>>;

impl Master {
    async fn store_reports(
        &self,
        tx: &mut WriteTx,
        reports: Vec<Report>,
    ) -> AppResult<Vec<AppResult<()>>> {
        let mut rows: HashMap<i64, Option<TrialRow>> = HashMap::new();
        let mut summaries: HashMap<i64, BTreeMap<String, GroupSummary>> = HashMap::new();
        let mut pending: Pending = BTreeMap::new();
        let mut results = Vec::with_capacity(reports.len());
        let mut validations = Vec::new();
        for Report {
            trial_id,
            run_id,
            group,
            report,
        } in reports
        {
            if let std::collections::hash_map::Entry::Vacant(entry) = rows.entry(trial_id) {
                entry.insert(trials::find(&mut tx.conn(), trial_id).await?);
            }
            let Some(Some(row)) = rows.get(&trial_id) else {
                results.push(Err(AppError::not_found("trial", trial_id)));
                continue;
            };
            if row.run_id != run_id {
                results.push(Err(AppError::precondition(format!(
                    "run {run_id} of trial {trial_id} is over: run {} has taken its place, and reports of an older run \
                     are not taken any more",
                    row.run_id
                ))));
                continue;
            }
            let groups = match summaries.entry(trial_id) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(self.load_summaries(tx, trial_id).await?)
                }
            };
            let taken = self
                .judge(tx, row, &group, report, groups, &mut pending)
                .await?;
            results.push(taken.map(|report| {
                if let Some(report) = report
                    && group == VALIDATION
                {
                    validations.push((trial_id, report));
                }
            }));
        }
        for ((trial_id, group), reports) in &pending {
            let Some(Some(row)) = rows.get(trial_id) else {
                continue;
            };
            metrics::append(&mut tx.conn(), *trial_id, group, row.run_id, reports).await?;
            if let Some(summary) = summaries.get(trial_id).and_then(|g| g.get(group)) {
                metrics::save_summary(&mut tx.conn(), *trial_id, group, summary).await?;
            }
            if (group == TRAINING || group == VALIDATION)
                && let Some(step) = reports.iter().filter_map(|r| r.step).max()
                && step > row.total_batches
            {
                trials::raise_total_batches(&mut tx.conn(), *trial_id, step).await?;
            }
        }
        for (trial_id, groups) in summaries {
            let cache = self.summaries.clone();
            tx.on_rollback(move || cache.forget(trial_id));
            self.summaries.put(trial_id, groups);
        }
        for (trial_id, report) in validations {
            self.on_validation(tx, trial_id, report).await?;
        }
        Ok(results)
    }

    async fn load_summaries(
        &self,
        tx: &mut WriteTx,
        trial_id: i64,
    ) -> Result<BTreeMap<String, GroupSummary>, StoreError> {
        match self.summaries.take(trial_id) {
            Some(groups) => Ok(groups),
            None => metrics::summaries(&mut tx.conn(), trial_id).await,
        }
    }

    /// Decides what of a report is new: all of it, some keys, or nothing (`None`, a repeat). Puts the new part into
    /// `pending` and the statistics.
    async fn judge(
        &self,
        tx: &mut WriteTx,
        row: &TrialRow,
        group: &str,
        report: StoredReport,
        groups: &mut BTreeMap<String, GroupSummary>,
        pending: &mut Pending,
    ) -> AppResult<AppResult<Option<StoredReport>>> {
        let first_of_run = groups.get(group).is_none_or(|g| g.run_id != row.run_id);
        if first_of_run && row.run_id > 1 {
            self.begin_run(tx, row, group, report.step, groups).await?;
        }
        let summary = groups.entry(group.to_owned()).or_default();
        summary.run_id = row.run_id;
        let key = (row.id, group.to_owned());
        let mut new = report;
        let may_be_known = match new.step {
            Some(step) => step <= summary.last_step,
            None => new.report_id.is_some(),
        };
        if may_be_known {
            let mut earlier: Vec<StoredReport> = Vec::new();
            for chunk in metrics::chunks_with_step(
                &mut tx.conn(),
                row.id,
                group,
                row.run_id,
                new.step.unwrap_or(-1),
            )
            .await?
            {
                earlier.extend(chunk.unpack()?);
            }
            earlier.extend(pending.get(&key).into_iter().flatten().cloned());
            match without_known(&earlier, new, group) {
                Err(conflict) => return Ok(Err(conflict)),
                Ok(None) => return Ok(Ok(None)),
                Ok(Some(rest)) => new = rest,
            }
        }
        summary.add(&new);
        pending.entry(key).or_default().push(new.clone());
        Ok(Ok(Some(new)))
    }

    /// A new run reports for the first time in this group: statistics and best validation leave out what it outdates.
    async fn begin_run(
        &self,
        tx: &mut WriteTx,
        row: &TrialRow,
        group: &str,
        step: Option<i64>,
        groups: &mut BTreeMap<String, GroupSummary>,
    ) -> AppResult<()> {
        let mut starts = metrics::run_starts(&mut tx.conn(), row.id).await?;
        if starts.is_empty() {
            return Ok(());
        }
        starts.push((group.to_owned(), row.run_id, step.unwrap_or(-1)));
        groups.clear();
        let mut best: (Option<f64>, Option<StoredReport>) = (None, None);
        let mut latest: (Option<f64>, Option<StoredReport>) = (None, None);
        let searcher = match experiments::find(&mut tx.conn(), row.experiment_id).await? {
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
                    metrics::chunks(&mut tx.conn(), row.id, Some(&name), after, 256).await?;
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
                    if chunk.run_id == row.run_id {
                        summary.run_id = row.run_id;
                    }
                }
            }
            // Steps are compared within one run only.
            if summary.run_id != row.run_id {
                summary.last_step = -1;
            }
            metrics::save_summary(&mut tx.conn(), row.id, &name, &summary).await?;
            groups.insert(name, summary);
        }
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
            row.id,
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
        report: StoredReport,
    ) -> AppResult<()> {
        let Some(trial) = trials::find(&mut tx.conn(), trial_id).await? else {
            return Ok(());
        };
        let Some(experiment) = experiments::find(&mut tx.conn(), trial.experiment_id).await? else {
            return Ok(());
        };
        let text = serde_json::to_string(&report).map_err(AppError::internal)?;
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
        let time_metric = time_metric(self.config_for(&experiment)?.as_ref());
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
            Some(metric) if !unusable => Event::Validation {
                request_id,
                metric,
                time,
            },
            _ => Event::UnusableValidation { request_id },
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
            self.log_line(tx, &trial.task_id, None, &notice).await?;
        }
        self.advance_search(tx, experiment.id, event).await
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
    let known_batches: Option<&Value> = same.iter().find_map(|e| e.batches.as_ref());
    let batches = match (&new.batches, known_batches) {
        (Some(given), Some(known)) if given != known => {
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
