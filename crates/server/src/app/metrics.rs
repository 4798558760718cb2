//! Metrics of trials: ingested, judged, kept in a journal, compacted, and read.
//!
//! # States of a report
//!
//! | state | where it is | what ends it |
//! | --- | --- | --- |
//! | gathered | in memory, beside the others that wait for the writer (`intake`) | the writer comes to it |
//! | judged | in the transaction that stores it: new, partly new, a repeat, a conflict, of another run ([`journal`]) | the commit |
//! | in the journal | a row for each commit, with the reports of many trials (`det_store::journal`) | compaction, some seconds later, or when a client reads (`compaction`) |
//! | compacted | in a chunk of its trial and group, in the statistics of each metric, in the trial's steps (`det_store::metrics`) | the deletion of its experiment |
//!
//! A report is acknowledged when it is in the journal. A validation goes by itself: the search's decision by it commits
//! in the same transaction (`docs/contract/searchers.md`, "One transaction"). A report of a run that a newer run has
//! outdated stays in its chunk and does not count ([`reports::ReportCutoffs`]).
//!
//! Series ([`series`]) are made of chunks, for charts; streams (`stream`) send the reports in order. System metrics
//! (`system`) are reports without a step, in groups of their own, which older clients read as series of readings
//! (`stored_series`).
//!
//! # What survives what
//!
//! - A kill of the master loses what was gathered; a caller that reported has no answer and reports again, which is a
//!   repeat if it was stored after all.
//! - The journal is in the database. What a master leaves in it is compacted by the next one.
//! - What the journal keeps in memory (`memory`) is dropped when a change is undone, or when it is not known whether it
//!   was made; the rows bring it back. So is what is kept of a trial whose run changes or ends (`Journal::evict`).
//! - Series may lag behind the chunks by any number of reports: who reads them reads what came since.
//!
//! # Who may hold what
//!
//! - The list of gathered reports: a mutex, held to push and to take, never across an await. It has a report for each
//!   request that waits for its answer.
//! - The journal's memory: taken out by the writer alone for as long as it judges, and put back; the mutex is never held
//!   across an await. It has some 50,000 trials at most and the reports that are not compacted: compaction begins when they
//!   have eight megabytes.
//! - The state of compaction: a mutex as well. One compaction runs at a time; readers wait for it ([`Journal::flush`])
//!   and hold nothing meanwhile.
//! - A stream is counted with `stream::STREAM_BYTES` in the budget of its user, and holds a connection only while it
//!   reads a page of chunks.
//! - Which code reports system metrics itself: a mutex, held to look and to note; some thousand names at most.
//! - The series of a group are brought up to date by one task at a time; others do not wait for it.

mod backlog;
mod compaction;
mod intake;
pub mod journal;
mod memory;
pub mod reports;
pub mod series;
pub(crate) mod stored_series;
pub(crate) mod stream;
pub(crate) mod system;
pub mod task_metrics;

use std::sync::Arc;

use det_failpoints::failpoint;
use det_ids::{ReportId, RunId, TrialId};
use det_orchestrator::{Event, validation};
use det_searcher::Event as SearchEvent;
use det_store::metrics::{StoredReport, number};
use det_store::{WriteTx, experiments, trials};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::orchestration::Orchestration;
use crate::app::orchestration::searched_metric;
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::silences::{Contact, Silences};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

use intake::Intake;
use journal::{AppendOutcome, EncodedReport, Journal};
use series::Series;
use system::{CodeReports, is_profiler_group};

/// The group that feeds the search.
pub const VALIDATION: &str = "validation";
/// The group of training metrics.
pub const TRAINING: &str = "training";
/// A report on its way in.
#[derive(Debug)]
pub struct Report {
    /// Id of the trial that reports.
    pub trial_id: TrialId,
    /// Number of the trial's run that reports.
    pub run_id: RunId,
    /// The group of metrics: `training`, `validation` or one of the user's.
    pub group: String,
    /// Steps completed; `None` for profiler groups.
    pub step: Option<i64>,
    /// When it was measured, microseconds.
    pub at: i64,
    /// Average (or validation) metrics by name.
    pub metrics: Map<String, Value>,
    /// Metrics of single batches: a JSON list of objects.
    pub batches: Option<Box<RawValue>>,
    /// Identity given by the sender, if any.
    pub report_id: Option<ReportId>,
    /// Whether one with this identity may be stored already. Of reports without a step that is expensive to find out.
    pub may_repeat: bool,
}

/// Metric reports on their way in. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    context: Context,
    configs: Configs,
    orchestration: Orchestration,
    ownership: Ownership,
    journal: Journal,
    series: Series,
    intake: Intake,
    code_reports: Arc<CodeReports>,
    silences: Silences,
}

impl Metrics {
    /// Into this journal and these series.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        orchestration: Orchestration,
        ownership: Ownership,
        (journal, series): (Journal, Series),
        silences: Silences,
    ) -> Self {
        Self {
            intake: Intake::new(context.clone(), journal.clone()),
            code_reports: Arc::default(),
            context,
            configs,
            orchestration,
            ownership,
            journal,
            series,
            silences,
        }
    }

    /// Ingests one report, of `size` bytes as it came; answers when it is durable.
    pub async fn report(&self, actor: &Actor, report: Report, size: usize) -> AppResult<()> {
        let (trial_id, group) = (report.trial_id, report.group.clone());
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        actor.require_run(trial_id, report.run_id)?;
        check(&report)?;
        self.code_reports.note(&report);
        // A thread of its own reports these, whatever the training does.
        if !is_profiler_group(&group) {
            self.silences.received(actor, Contact::Report);
        }
        let arriving = EncodedReport::new(report)?;
        if group == VALIDATION {
            self.store_validation(arriving).await?;
        } else {
            self.intake.gather(arriving).await?;
        }
        if is_profiler_group(&group) {
            self.note_system_metrics(trial_id);
        }
        self.series.note_report(trial_id, &group, size);
        Ok(())
    }

    /// Stores a validation together with what the search decides by it.
    async fn store_validation(&self, arriving: EncodedReport) -> AppResult<()> {
        let trial_id = arriving.report.trial_id;
        let mut reports = vec![arriving];
        loop {
            let service = self.clone();
            let appended = self
                .context
                .write(move |tx| {
                    Box::pin(async move {
                        let appended = service.journal.append(tx, reports).await?;
                        if let AppendOutcome::Done(results) = &appended {
                            for report in results.iter().flatten().flatten() {
                                service.on_validation(tx, trial_id, report).await?;
                            }
                        }
                        failpoint!("server::metrics::store::before_commit");
                        Ok::<_, AppError>(appended)
                    })
                })
                .await?;
            failpoint!("server::metrics::store::after_commit");
            match appended {
                AppendOutcome::Done(results) => {
                    return results
                        .into_iter()
                        .try_for_each(|result| result.map(|_| ()));
                }
                AppendOutcome::CompactFirst(again) => {
                    self.journal.flush().await?;
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
    let stepless = is_profiler_group(&report.group);
    if stepless {
        system::check_nested(&report.metrics)?;
    }
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

impl Metrics {
    /// Best and latest validation of trial and experiment, and the search.
    async fn on_validation(
        &self,
        tx: &mut WriteTx,
        trial_id: TrialId,
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
        // What runs outside the cluster is searched there.
        let searched = !experiment.unmanaged;
        if !searched || trial.ended_at.is_some() || experiment.ended_at.is_some() {
            return Ok(());
        }
        let time_metric = searched_metric::time_metric(self.configs.of(&experiment)?.as_ref());
        let time = time_metric.as_ref().map(|name| {
            report.metrics.get(name).and_then(number).or_else(|| {
                #[expect(clippy::cast_precision_loss, reason = "steps stay far below 2^52")]
                let steps = report.step.filter(|_| name == "batches").map(|s| s as f64);
                steps
            })
        });
        let event = validation(trial.request_id.clone(), metric, time);
        let unusable = matches!(event, SearchEvent::UnusableValidation { .. });
        if unusable && trial.notice.is_none() {
            let metric = &experiment.searcher_metric;
            let timeless = time_metric.as_deref().filter(|_| time == Some(None));
            let notice = searched_metric::unusable(metric, timeless, report);
            searched_metric::note(&self.context, tx, &trial, &notice).await?;
        }
        let id = experiment.id;
        self.orchestration
            .advance(tx, [Event::Search { id, event }])
            .await
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
