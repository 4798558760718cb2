//! Where reports gather until the writer comes to them.
//!
//! A report is put beside the others that wait, and the first of them hands one change to the writer. When the writer
//! comes to it, it takes everything that waits by then; so a lone report waits for no other, and under load one row of the
//! journal holds the reports of many trials. Validations go by themselves, each with what the search decides by it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_failpoints::failpoint;
use det_store::{StoreError, WriteTx};
use tokio::sync::oneshot;

use super::journal::{AppendOutcome, EncodedReport, Journal};
use crate::app::context::Context;
use crate::error::{AppError, AppResult};
use crate::works::guarded;

/// Most reports in one row of the journal.
const GATHER: usize = 2048;
/// Most bytes of reports in one row of the journal; a single report may have more.
const GATHER_BYTES: usize = 4 << 20;
type Reply = oneshot::Sender<AppResult<()>>;

/// What waits for the writer.
#[derive(Default)]
struct WaitingReports {
    reports: Vec<(EncodedReport, Reply)>,
    /// Whether a change is on its way to the writer that will take them.
    scheduled: bool,
}

impl WaitingReports {
    /// Takes what waits for the writer, up to what one row of the journal may hold, and returns whether more waits:
    /// then the caller comes again.
    fn take(&mut self) -> (Vec<(EncodedReport, Reply)>, bool) {
        let mut bytes = 0;
        let fits = self
            .reports
            .iter()
            .take(GATHER)
            .take_while(|(arriving, _)| {
                let has_capacity = bytes < GATHER_BYTES;
                bytes += arriving.bytes();
                has_capacity
            })
            .count();
        let rest = self.reports.split_off(fits);
        let more = !rest.is_empty();
        self.scheduled = more;
        (std::mem::replace(&mut self.reports, rest), more)
    }
}

/// The reports that a change has taken, for the caller that answers them in the end.
#[derive(Default)]
struct Change {
    /// Whether the writer came to it and took what waited.
    begun: bool,
    /// Whether it left some for the next change.
    more: bool,
    replies: Vec<(Reply, AppResult<()>)>,
}

/// What is to follow a change.
enum FollowUp {
    Nothing,
    /// More waits than one row of the journal may hold.
    Again,
    /// The journal must be compacted first.
    Compact,
}

/// The intake of metric reports. Cheap to clone.
#[derive(Clone)]
pub(super) struct Intake {
    context: Context,
    journal: Journal,
    waiting: Arc<Mutex<WaitingReports>>,
}

impl Intake {
    /// An intake that writes reports into this journal.
    pub(super) fn new(context: Context, journal: Journal) -> Self {
        Self {
            context,
            journal,
            waiting: Arc::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingReports> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a report beside the others that wait; answers when it is durable.
    pub(super) async fn gather(&self, arriving: EncodedReport) -> AppResult<()> {
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.waiting();
            waiting.reports.push((arriving, reply));
            !std::mem::replace(&mut waiting.scheduled, true)
        };
        if first {
            // By itself: the caller that reported may go away, and the others still want their answer.
            let work = self.clone().store_waiting();
            let context = self.context.clone();
            tokio::spawn(guarded("metric intake", work, move |why| context.fail(why)));
        }
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    async fn store_waiting(self) {
        loop {
            let change = Arc::new(Mutex::new(Change::default()));
            let (intake, taken) = (self.clone(), change.clone());
            let outcome = self
                .context
                .write(move |tx| Box::pin(async move { intake.take_waiting(tx, taken).await }))
                .await;
            let error = match outcome {
                Ok(FollowUp::Nothing) => return,
                Ok(FollowUp::Again) => continue,
                Ok(FollowUp::Compact) => match self.journal.flush().await {
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
            let mut waiting = self.waiting();
            waiting.scheduled = false;
            replies.extend(waiting.reports.drain(..).map(|(_, reply)| reply));
        }
        tracing::warn!(%error, cause = ?error.cause, reports = replies.len(), "metric reports could not be stored");
        for reply in replies {
            // A reporter that went away sends the report again.
            let _ = reply.send(Err(error.without_cause()));
        }
        change.begun && change.more
    }

    /// The writer's part: takes everything that waits.
    async fn take_waiting(
        &self,
        tx: &mut WriteTx,
        change: Arc<Mutex<Change>>,
    ) -> AppResult<FollowUp> {
        let (taken, more) = self.waiting().take();
        let (reports, replies): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        {
            // Should this fail, they are answered with its error.
            let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
            (change.begun, change.more) = (true, more);
            change.replies = replies.into_iter().map(|reply| (reply, Ok(()))).collect();
        }
        if reports.is_empty() {
            return Ok(FollowUp::Nothing);
        }
        match self.journal.append(tx, reports).await? {
            AppendOutcome::Done(results) => {
                let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
                for ((_, answer), result) in change.replies.iter_mut().zip(results) {
                    *answer = result.map(|_| ());
                }
                failpoint!("server::metrics::gather::before_commit");
            }
            AppendOutcome::CompactFirst(reports) => {
                let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
                change.begun = false;
                let replies = change.replies.drain(..).map(|(reply, _)| reply);
                let returned: Vec<_> = reports.into_iter().zip(replies).collect();
                let mut waiting = self.waiting();
                // In front of those that came meanwhile, in the same order.
                waiting.reports.splice(0..0, returned);
                waiting.scheduled = true;
                return Ok(FollowUp::Compact);
            }
        }
        // Not when it is unknown whether the commit happened: an answer means that the report is durable.
        tx.once_stored(move || {
            failpoint!("server::metrics::gather::after_commit");
            let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
            for (reply, result) in change.replies.drain(..) {
                // A reporter that went away sends the report again and finds it known.
                let _ = reply.send(result);
            }
        });
        Ok(if more {
            FollowUp::Again
        } else {
            FollowUp::Nothing
        })
    }
}
