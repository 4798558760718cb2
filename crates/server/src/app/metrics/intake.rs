//! Where reports gather, and how they get into the journal.
//!
//! A report is put beside the others that wait, and the first of them hands one change to the writer. When the writer
//! comes to it, it takes everything that waits by then; so a lone report waits for nobody, and under load one row of the
//! journal holds the reports of many trials. Validations go by themselves, each with what the search decides by it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_failpoints::failpoint;
use det_store::journal::{self, Entry};
use det_store::metrics::{self, NewReport, StoredReport};
use det_store::{StoreError, WriteTx};
use tokio::sync::oneshot;

use super::folding::Folding;
use super::memory::Memory;
use super::{Report, VALIDATION, without_known};
use crate::app::Master;
use crate::background;
use crate::error::{AppError, AppResult};

/// Most reports in one row of the journal.
const GATHER: usize = 2048;
/// Most bytes of reports in one row of the journal; a single report may have more.
const GATHER_BYTES: usize = 4 << 20;
/// Groups of metrics that a trial may have: all of them are shown with it.
const MOST_GROUPS: usize = 256;
/// Chunks among which a repeat of a report without a step is looked for, the newest ones.
const CHUNKS_OF_REPEATS: i64 = 256;

/// A report on its way, encoded.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) report: Report,
    line: Vec<u8>,
}

impl Arriving {
    pub(super) fn new(report: Report) -> Result<Self, StoreError> {
        let line = NewReport {
            step: report.step,
            at: report.at,
            metrics: &report.metrics,
            batches: report.batches.as_deref(),
            report_id: report.report_id.as_deref(),
        }
        .encode()?;
        Ok(Self { report, line })
    }
}

type Reply = oneshot::Sender<AppResult<()>>;

/// What waits for the writer.
#[derive(Default)]
struct Waiting {
    reports: Vec<(Arriving, Reply)>,
    /// Whether a change is on its way to the writer that will take them.
    scheduled: bool,
}

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    memory: Mutex<Memory>,
    folding: Folding,
}

/// The intake of metric reports. Cheap to clone.
#[derive(Clone, Default)]
pub struct Intake {
    inner: Arc<Inner>,
}

/// What came of handing reports to the writer.
pub(super) enum Taken {
    /// For each its answer: the part of it that was new, or `None` for a repeat.
    Done(Vec<AppResult<Option<StoredReport>>>),
    /// Nothing was taken: a new run reports for the first time, and the journal still holds reports of an older one.
    FoldFirst(Vec<Arriving>),
}

impl Intake {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.inner
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.inner
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What turns the journal into chunks.
    pub(super) fn folding(&self) -> &Folding {
        &self.inner.folding
    }

    /// Forgets what is known of a trial: its run has changed, or it has ended. To be called in the transaction that
    /// changes it.
    pub(crate) fn forget(&self, trial_id: i64) {
        self.memory().forget(Some(trial_id));
    }

    /// Forgets what is known of all trials: some were deleted.
    pub(crate) fn forget_all(&self) {
        self.memory().forget(None);
    }

    /// Rows of the journal through this one are folded. To be called as soon as that is committed: from then on the rows
    /// do not tell which numbers were given.
    pub(super) fn folded(&self, through: i64) {
        self.folding().folded(through);
        self.memory().folded(through);
    }

    /// A change was undone, or nobody knows whether it was made: the rows have to tell.
    pub(super) fn doubt(&self) {
        *self.memory() = Memory::default();
        self.folding().doubt();
    }

    /// Takes what waits for the writer, up to what one row of the journal may hold, and tells whether more waits: then
    /// whoever took this comes again.
    fn take_waiting(&self) -> (Vec<(Arriving, Reply)>, bool) {
        let mut waiting = self.waiting();
        let mut bytes = 0;
        let fits = waiting
            .reports
            .iter()
            .take(GATHER)
            .take_while(|(arriving, _)| {
                let room = bytes < GATHER_BYTES;
                bytes += arriving.line.len();
                room
            })
            .count();
        let rest = waiting.reports.split_off(fits);
        let more = !rest.is_empty();
        waiting.scheduled = more;
        (std::mem::replace(&mut waiting.reports, rest), more)
    }
}

/// The reports that a change has taken, for whoever answers them in the end.
#[derive(Default)]
struct Change {
    /// Whether the writer came to it and took what waited.
    begun: bool,
    /// Whether it left some for the next change.
    more: bool,
    replies: Vec<(Reply, AppResult<()>)>,
}

/// What is to follow a change.
enum Next {
    Nothing,
    /// More waits than one row of the journal may hold.
    Again,
    Fold,
}

/// The same failure for each of several callers; the cause is logged once.
pub(super) fn copy(error: &AppError) -> AppError {
    let mut copy = AppError::new(error.kind, error.message.clone());
    copy.hint.clone_from(&error.hint);
    copy
}

impl Master {
    /// Puts a report beside the others that wait; answers when it is durable.
    pub(super) async fn gather(&self, arriving: Arriving) -> AppResult<()> {
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.metric_intake.waiting();
            waiting.reports.push((arriving, reply));
            !std::mem::replace(&mut waiting.scheduled, true)
        };
        if first {
            // By itself: whoever reported may go away, and the others still want their answer.
            let work = self.clone().store_waiting();
            tokio::spawn(background::guarded(self.clone(), "metric intake", work));
        }
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    async fn store_waiting(self) {
        loop {
            let change = Arc::new(Mutex::new(Change::default()));
            let (handler, taken) = (self.clone(), change.clone());
            let outcome = self
                .context
                .store
                .write(move |tx| Box::pin(async move { handler.take_waiting(tx, taken).await }))
                .await;
            let error = match outcome {
                Ok(Next::Nothing) => return,
                Ok(Next::Again) => continue,
                Ok(Next::Fold) => match self.settle_metrics().await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if !self.refuse(&change, &error) {
                return;
            }
        }
    }

    /// Answers those whose reports could not be stored; whether others still wait for this change's driver.
    fn refuse(&self, change: &Mutex<Change>, error: &AppError) -> bool {
        let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replies: Vec<Reply> = change.replies.drain(..).map(|(reply, _)| reply).collect();
        if !change.begun {
            let mut waiting = self.metric_intake.waiting();
            waiting.scheduled = false;
            replies.extend(waiting.reports.drain(..).map(|(_, reply)| reply));
        }
        tracing::warn!(%error, cause = ?error.cause, reports = replies.len(), "metric reports could not be stored");
        for reply in replies {
            // A reporter that went away sends the report again.
            let _ = reply.send(Err(copy(error)));
        }
        change.begun && change.more
    }

    /// The writer's part: takes everything that waits.
    async fn take_waiting(&self, tx: &mut WriteTx, change: Arc<Mutex<Change>>) -> AppResult<Next> {
        let (taken, more) = self.metric_intake.take_waiting();
        let (reports, replies): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        {
            // Should this fail, they are answered with its error.
            let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
            (change.begun, change.more) = (true, more);
            change.replies = replies.into_iter().map(|reply| (reply, Ok(()))).collect();
        }
        if reports.is_empty() {
            return Ok(Next::Nothing);
        }
        match self.take_in(tx, reports).await? {
            Taken::Done(results) => {
                let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
                for ((_, answer), result) in change.replies.iter_mut().zip(results) {
                    *answer = result.map(|_| ());
                }
                failpoint!("server::metrics::gather::before_commit");
            }
            Taken::FoldFirst(reports) => {
                let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
                change.begun = false;
                let replies = change.replies.drain(..).map(|(reply, _)| reply);
                let returned: Vec<_> = reports.into_iter().zip(replies).collect();
                let mut waiting = self.metric_intake.waiting();
                // In front of those that came meanwhile, in the same order.
                waiting.reports.splice(0..0, returned);
                waiting.scheduled = true;
                return Ok(Next::Fold);
            }
        }
        // Not when nobody knows whether the commit happened: an answer says that the report is durable.
        tx.once_stored(move || {
            failpoint!("server::metrics::gather::after_commit");
            let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
            for (reply, result) in change.replies.drain(..) {
                // A reporter that went away sends the report again and finds it known.
                let _ = reply.send(result);
            }
        });
        Ok(if more { Next::Again } else { Next::Nothing })
    }

    /// Judges reports and adds what is new of them to the journal.
    pub(super) async fn take_in(
        &self,
        tx: &mut WriteTx,
        reports: Vec<Arriving>,
    ) -> AppResult<Taken> {
        // Put back at the end: a change that fails on the way leaves nothing to believe in.
        let mut memory = std::mem::take(&mut *self.metric_intake.memory());
        let intake = self.metric_intake.clone();
        tx.on_rollback(move || intake.doubt());
        let used = self.metric_intake.folding().highest();
        memory.load(tx, used).await?;
        let ids: HashSet<i64> = reports.iter().map(|a| a.report.trial_id).collect();
        memory.learn(tx, ids).await?;
        let fold_first = reports.iter().any(|arriving| {
            let report = &arriving.report;
            let first_of_newer_run = memory.trial(report.trial_id).is_some_and(|trial| {
                trial.run_id == report.run_id
                    && trial.run_id > 1
                    && trial.last_step(&report.group).is_none()
            });
            first_of_newer_run
                && memory
                    .recent(report.trial_id)
                    .iter()
                    .any(|recent| recent.run_id < report.run_id)
        });
        if fold_first {
            *self.metric_intake.memory() = memory;
            return Ok(Taken::FoldFirst(reports));
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
            let intake = self.metric_intake.clone();
            tx.once_stored(move || intake.folding().appended(id, bytes));
        }
        *self.metric_intake.memory() = memory;
        Ok(Taken::Done(results))
    }

    /// Decides what of a report is new: all of it, some keys, or nothing (`None`, a repeat). `before` = what the same
    /// change has taken already.
    async fn judge(
        &self,
        tx: &mut WriteTx,
        memory: &mut Memory,
        before: &[Entry],
        arriving: Arriving,
    ) -> AppResult<AppResult<Option<Entry>>> {
        let Arriving { report, mut line } = arriving;
        let Some(trial) = memory.trial(report.trial_id) else {
            return Ok(Err(AppError::not_found("trial", report.trial_id)));
        };
        if report.run_id < trial.run_id {
            return Ok(Err(AppError::precondition(format!(
                "run {} of trial {} is over: run {} has taken its place, and reports of an older run are not taken any \
                 more",
                report.run_id, report.trial_id, trial.run_id
            ))));
        }
        if report.run_id > trial.run_id {
            return Ok(Err(AppError::precondition(format!(
                "run {} of trial {} has not begun: its newest is run {}, and only that may report",
                report.run_id, report.trial_id, trial.run_id
            ))));
        }
        if trial.groups.len() >= MOST_GROUPS && !trial.groups.contains_key(&report.group) {
            return Ok(Err(AppError::invalid(format!(
                "trial {} has metrics in {MOST_GROUPS} groups already, and may have no more",
                report.trial_id
            ))));
        }
        if trial.last_step(&report.group).is_none() && trial.run_id > 1 {
            // What this run has reported in other groups may still be in the journal.
            let mut begun = trial.clone();
            let unfolded = unfolded(memory, before, &report)?;
            self.begin_run(tx, &mut begun, &report, &unfolded).await?;
            for (group, step) in unfolded {
                begun.reported(&group, report.run_id, step);
            }
            memory.learnt(report.trial_id, begun);
        }
        let Some(trial) = memory.trial(report.trial_id) else {
            return Ok(Err(AppError::not_found("trial", report.trial_id)));
        };
        let last_step = trial.last_step(&report.group).unwrap_or(-1);
        let may_be_known = match report.step {
            Some(step) => step <= last_step,
            None => report.report_id.is_some(),
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
}

/// Groups and steps of what the report's run has in the journal, or in the same change.
fn unfolded(
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
