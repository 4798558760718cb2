//! The journal: every report that is acknowledged is in it, or in the chunks that it was compacted into.
//!
//! Reports are judged and appended here, in the transaction of the caller; `compaction` empties the journal.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{JournalId, MetricChunkId, RunId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_orchestrator::require_current_run;
use det_store::journal::{self, Entry};
use det_store::metrics::{self, GroupSummary, NewReport, StoredReport, number};
use det_store::{StoreError, WriteTx, experiments, trials};
use serde_json::Map;

use super::backlog::Backlog;
use super::memory::{self, LiveTrial, Memory};
use super::{Report, VALIDATION, is_better};
use crate::app::context::Context;
use crate::error::{AppError, AppResult, ErrorKind};

/// Groups of metrics that a trial may have: all of them are shown with it.
const MOST_GROUPS: usize = 256;
/// Chunks among which a repeat of a report without a step is looked for, the newest ones.
const CHUNKS_OF_REPEATS: i64 = 256;

/// A report on its way, encoded.
#[derive(Debug)]
pub(super) struct EncodedReport {
    pub(super) report: Report,
    line: Vec<u8>,
}

impl EncodedReport {
    pub(super) fn new(report: Report) -> Result<Self, StoreError> {
        let line = NewReport {
            step: report.step,
            at: report.at,
            metrics: &report.metrics,
            batches: report.batches.as_deref(),
            report_id: report.report_id.as_ref(),
        }
        .encode()?;
        Ok(Self { report, line })
    }

    /// Bytes that the report takes in the journal, before compression.
    pub(super) fn bytes(&self) -> usize {
        self.line.len()
    }
}

/// What came of appending reports.
pub(super) enum AppendOutcome {
    /// For each its answer: the part of it that was new, or `None` for a repeat.
    Done(Vec<AppResult<Option<StoredReport>>>),
    /// Nothing was appended: a new run reports for the first time, and the journal still holds reports of an older one.
    CompactFirst(Vec<EncodedReport>),
}

/// The journal of metric reports. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pub(super) context: Context,
    shared: Arc<SharedJournal>,
}

#[derive(Default)]
struct SharedJournal {
    memory: Mutex<Memory>,
    backlog: Backlog,
}

impl Journal {
    /// The journal whose reports are in the database of `context`.
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            shared: Arc::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.shared
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// When to compact, and who waits for it.
    pub(super) fn backlog(&self) -> &Backlog {
        &self.shared.backlog
    }

    /// Drops what is kept in memory of a trial: its run has changed, or it has ended. To be called in the transaction
    /// that changes it.
    pub(crate) fn evict(&self, trial_id: TrialId) {
        self.memory().evict(Some(trial_id));
    }

    /// Drops what is kept in memory of all trials: some were deleted.
    pub(crate) fn evict_all(&self) {
        self.memory().evict(None);
    }

    /// Rows of the journal through this one are compacted. To be called as soon as that is committed: from then on the
    /// rows do not show which numbers were given.
    pub(super) fn compacted(&self, through: JournalId) {
        self.backlog().compacted(through);
        self.memory().compacted(through);
    }

    /// A change was undone, or it is unknown whether it was made: the rows decide.
    pub(super) fn invalidate(&self) {
        *self.memory() = Memory::default();
        self.backlog().invalidate();
    }

    /// Judges reports and adds what is new of them to the journal.
    pub(super) async fn append(
        &self,
        tx: &mut WriteTx,
        reports: Vec<EncodedReport>,
    ) -> AppResult<AppendOutcome> {
        // Put back at the end: a change that fails on the way leaves nothing to believe in.
        let mut memory = std::mem::take(&mut *self.memory());
        let undone = self.clone();
        tx.on_rollback(move || undone.invalidate());
        let used = self.backlog().highest();
        memory.load(tx, used).await?;
        let ids: HashSet<TrialId> = reports.iter().map(|a| a.report.trial_id).collect();
        memory.load_trials(tx, ids).await?;
        let compact_first = reports.iter().any(|arriving| {
            let report = &arriving.report;
            let first_of_newer_run = memory.trial(report.trial_id).is_some_and(|trial| {
                trial.run_id == report.run_id
                    && trial.run_id > RunId::FIRST
                    && trial.last_step(&report.group).is_none()
            });
            first_of_newer_run
                && memory
                    .recent(report.trial_id)
                    .iter()
                    .any(|recent| recent.run_id < report.run_id)
        });
        if compact_first {
            *self.memory() = memory;
            return Ok(AppendOutcome::CompactFirst(reports));
        }
        let mut entries = Vec::with_capacity(reports.len());
        let mut results = Vec::with_capacity(reports.len());
        for arriving in reports {
            let validation = arriving.report.group == VALIDATION;
            let judged = self.judge(tx, &mut memory, &entries, arriving).await?;
            results.push(match judged {
                Ok(Some(entry)) => {
                    let stored = validation
                        .then(|| metrics::decode(&entry.line))
                        .transpose()?;
                    entries.push(entry);
                    Ok(stored)
                }
                Ok(None) => Ok(None),
                Err(refused) => Err(refused),
            });
        }
        if !entries.is_empty() {
            let id = memory.next_id();
            let data = journal::pack(&entries)?;
            journal::append(&mut tx.conn(), id, &data).await?;
            let bytes = entries.iter().map(|entry| entry.line.len()).sum();
            memory.note(id, entries);
            let journal = self.clone();
            tx.once_stored(move || journal.backlog().appended(id, bytes));
        }
        *self.memory() = memory;
        Ok(AppendOutcome::Done(results))
    }

    /// Decides what of a report is new: all of it, some keys, or nothing (`None`, a repeat). `before` = what the same
    /// change has taken already.
    async fn judge(
        &self,
        tx: &mut WriteTx,
        memory: &mut Memory,
        before: &[Entry],
        arriving: EncodedReport,
    ) -> AppResult<AppResult<Option<Entry>>> {
        let EncodedReport { report, mut line } = arriving;
        let Some(trial) = memory.trial(report.trial_id) else {
            return Ok(Err(AppError::not_found(ObjectKind::Trial, report.trial_id)));
        };
        let run = Some(report.run_id);
        if let Err(refused) = require_current_run(report.trial_id, trial.run_id, run) {
            return Ok(Err(AppError::precondition(refused.to_string())));
        }
        if trial.groups.len() >= MOST_GROUPS && !trial.groups.contains_key(&report.group) {
            return Ok(Err(AppError::invalid(format!(
                "trial {} has metrics in {MOST_GROUPS} groups already, and may have no more",
                report.trial_id
            ))));
        }
        if trial.last_step(&report.group).is_none() && trial.run_id > RunId::FIRST {
            // What this run has reported in other groups may still be in the journal.
            let mut begun = trial.clone();
            let uncompacted = uncompacted(memory, before, &report)?;
            self.begin_run(tx, &mut begun, &report, &uncompacted)
                .await?;
            for (group, step) in uncompacted {
                begun.reported(&group, report.run_id, step);
            }
            memory.keep(report.trial_id, begun);
        }
        let Some(trial) = memory.trial(report.trial_id) else {
            return Ok(Err(AppError::not_found(ObjectKind::Trial, report.trial_id)));
        };
        let last_step = trial.last_step(&report.group).unwrap_or(-1);
        let may_be_known = match report.step {
            Some(step) => step <= last_step,
            None => report.may_repeat && report.report_id.is_some(),
        };
        trial.reported(&report.group, report.run_id, report.step);
        if may_be_known {
            let earlier = earlier(tx, memory, before, &report).await?;
            match without_known(&earlier, metrics::decode(&line)?, &report.group) {
                Err(conflict) => return Ok(Err(conflict)),
                Ok(None) => return Ok(Ok(None)),
                Ok(Some(rest)) => {
                    line = serde_json::to_vec(&rest).map_err(AppError::internal)?;
                }
            }
        }
        Ok(Ok(Some(Entry {
            trial_id: report.trial_id,
            run_id: report.run_id,
            group: report.group,
            line,
        })))
    }

    /// A new run reports for the first time in this group: statistics and best validation leave out what it outdates.
    ///
    /// Reports of older runs must be in chunks, and not in the journal; `uncompacted` = groups and steps of what this run has
    /// in the journal.
    async fn begin_run(
        &self,
        tx: &mut WriteTx,
        trial: &mut LiveTrial,
        first: &Report,
        uncompacted: &[(String, Option<i64>)],
    ) -> AppResult<()> {
        let trial_id = first.trial_id;
        let mut starts = metrics::run_starts(&mut tx.conn(), trial_id).await?;
        if starts.is_empty() {
            return Ok(());
        }
        let start =
            |group: &str, step: Option<i64>| (group.to_owned(), first.run_id, step.unwrap_or(-1));
        starts.push(start(&first.group, first.step));
        starts.extend(uncompacted.iter().map(|(group, step)| start(group, *step)));
        let mut groups: BTreeMap<String, GroupSummary> = BTreeMap::new();
        let mut best: (Option<f64>, Option<StoredReport>) = (None, None);
        let mut latest: (Option<f64>, Option<StoredReport>) = (None, None);
        let searcher = match experiments::find(&mut tx.conn(), trial.experiment_id).await? {
            Some(experiment) => (experiment.searcher_metric, experiment.smaller_is_better),
            None => return Ok(()),
        };
        let names: BTreeSet<String> = starts.iter().map(|(name, _, _)| name.clone()).collect();
        for name in names {
            let outdated = metrics::outdated_from(&starts, &name);
            let mut summary = GroupSummary::new();
            let mut after = MetricChunkId::default();
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
}

/// Groups and steps of what the report's run has in the journal, or in the same change.
fn uncompacted(
    memory: &Memory,
    before: &[Entry],
    report: &Report,
) -> Result<Vec<(String, Option<i64>)>, StoreError> {
    let in_journal = memory
        .recent(report.trial_id)
        .iter()
        .filter(|recent| recent.run_id == report.run_id)
        .map(|recent| (&recent.group, &recent.line));
    let in_this_change = before
        .iter()
        .filter(|entry| entry.trial_id == report.trial_id && entry.run_id == report.run_id)
        .map(|entry| (&entry.group, &entry.line));
    in_journal
        .chain(in_this_change)
        .map(|(group, line)| Ok((group.clone(), metrics::decode(line)?.step)))
        .collect()
}

/// What is stored of this run and group that the report could repeat.
async fn earlier(
    tx: &mut WriteTx,
    memory: &Memory,
    before: &[Entry],
    report: &Report,
) -> Result<Vec<StoredReport>, StoreError> {
    let mut conn = tx.conn();
    let (trial_id, run_id, group) = (report.trial_id, report.run_id, report.group.as_str());
    let chunks = match report.step {
        Some(step) => metrics::chunks_with_step(&mut conn, trial_id, group, run_id, step).await?,
        None => {
            metrics::newest_without_step(&mut conn, trial_id, group, run_id, CHUNKS_OF_REPEATS)
                .await?
        }
    };
    let mut earlier = Vec::new();
    for chunk in chunks {
        earlier.extend(chunk.unpack_at(report.step)?);
    }
    let in_journal = memory
        .recent(trial_id)
        .iter()
        .filter(|r| r.run_id == run_id && r.group == group)
        .map(|r| &r.line);
    let in_this_change = before
        .iter()
        .filter(|e| e.trial_id == trial_id && e.run_id == run_id && e.group == group)
        .map(|e| &e.line);
    for line in in_journal.chain(in_this_change) {
        if metrics::is_at(line, report.step) {
            earlier.push(metrics::decode(line)?);
        }
    }
    Ok(earlier)
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
    use serde_json::{Value, json};

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
