//! Compacting the journal of reports into chunks, statistics and steps.
//!
//! Takes no input: it looks at the rows. So what a master that was killed left in the journal is compacted by the next one
//! as if nothing had happened.

use std::time::Duration;

use det_failpoints::failpoint;
use det_ids::JournalId;
use det_store::journal::{self as rows, JournalRow, SortedReports};
use det_store::metrics;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::journal::Journal;
use crate::app::offload;
use crate::error::{AppError, AppResult, ErrorKind};

/// Sorting and packing less than this is done in place, more of it on a blocking thread.
const LONG_WORK: usize = 256 << 10;
/// How long to wait after a failure, unless a caller asks.
const PAUSE: Duration = Duration::from_secs(1);

impl Journal {
    /// Waits until chunks, statistics and steps contain everything that was acknowledged so far: for those who are about
    /// to read them. Costs nothing when they do already. Errs while the master stops.
    pub async fn flush(&self) -> AppResult<()> {
        let backlog = self.backlog();
        let (reply, answer) = oneshot::channel();
        {
            let mut state = backlog.state();
            if state.known && state.compacted >= state.newest {
                return Ok(());
            }
            state.asked.push(reply);
        }
        backlog.wake.notify_one();
        let stopping = || {
            AppError::new(
                ErrorKind::Unavailable,
                "the master is stopping; ask again when it is back",
            )
        };
        tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(stopping())),
            () = self.context.shutdown.cancelled() => Err(stopping()),
        }
    }

    /// Compacts everything that is in the journal when it begins.
    async fn compact(&self) -> AppResult<()> {
        let backlog = self.backlog();
        let invalidations = {
            let mut state = backlog.state();
            (state.since, state.bytes) = (None, 0);
            state.invalidations
        };
        let newest = {
            let mut conn = self.context.store.read().await?;
            rows::newest(&mut conn.conn()).await?
        };
        loop {
            let rows = {
                let mut conn = self.context.store.read().await?;
                rows::read(&mut conn.conn(), JournalId::default()).await?
            };
            if rows.first().is_none_or(|row| row.id > newest) {
                break;
            }
            self.compact_rows(rows).await?;
        }
        let mut state = backlog.state();
        state.newest = state.newest.max(newest);
        state.compacted = state.compacted.max(newest);
        // What was invalidated meanwhile is not answered by this pass.
        state.known = state.invalidations == invalidations;
        Ok(())
    }

    async fn compact_rows(&self, rows: Vec<JournalRow>) -> AppResult<()> {
        let long = rows.iter().map(|row| row.data.len()).sum::<usize>() >= LONG_WORK;
        let sorted = offload(long, move || SortedReports::of(&rows)).await??;
        let stored = {
            let mut conn = self.context.store.read().await?;
            metrics::summaries_of(&mut conn.conn(), &sorted.trials()).await?
        };
        let packed = offload(long, move || sorted.prepare(stored)).await??;
        let journal = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let through = packed.through();
                    let undone = journal.clone();
                    tx.on_rollback(move || undone.invalidate());
                    journal.backlog().storing(through);
                    rows::apply(&mut tx.conn(), packed).await?;
                    tx.once_stored(move || journal.compacted(through));
                    failpoint!("server::metrics::compact::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::metrics::compact::after_commit");
        Ok(())
    }

    /// Compacts whenever it is due, for as long as it is polled.
    pub(crate) async fn run(&self) {
        let backlog = self.backlog();
        loop {
            let due = backlog.due();
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            if due.is_none_or(|due| due > Instant::now()) {
                tokio::select! {
                    () = pause => {}
                    () = backlog.wake.notified() => continue,
                }
            }
            let asked = std::mem::take(&mut backlog.state().asked);
            let outcome = self.compact().await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, cause = ?error.cause, "metric reports could not be compacted; they are safe in the journal");
                backlog.invalidate();
            }
            for reply in asked {
                // The caller may have stopped waiting.
                let _ = reply.send(match &outcome {
                    Ok(()) => Ok(()),
                    Err(error) => Err(error.without_cause()),
                });
            }
            if outcome.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
