//! Compacting the journal of reports into chunks, statistics and steps.
//!
//! Takes no input: it looks at the rows. So what a master that was killed left in the journal is compacted by the next one
//! as if nothing had happened.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_failpoints::failpoint;
use det_store::journal::{self as rows, JournalRow, Sorted};
use det_store::metrics;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::journal::Journal;
use crate::app::beside;
use crate::error::{AppError, AppResult, ErrorKind};

/// A report is compacted at the latest so long after it was stored: long enough for a chunk to be worth it, and short
/// enough that a start has little to do.
const COMPACT_AFTER: Duration = Duration::from_secs(15);
/// Compacted earlier when so many bytes of reports have gathered.
const COMPACT_BYTES: usize = 8 << 20;
/// Sorting and packing less than this is done where it is, more of it beside the runtime's other work.
const LONG_WORK: usize = 256 << 10;
/// How long to wait after a failure, unless somebody asks.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Whether the two numbers below are known; not so after a start, and when a change was undone.
    known: bool,
    /// How often that was invalidated.
    invalidations: u64,
    /// The newest row of the journal.
    newest: i64,
    /// The last row that was compacted.
    compacted: i64,
    /// The last row that a compaction has begun to store; it may come to nothing.
    used: i64,
    /// Since when something waits to be compacted.
    since: Option<Instant>,
    bytes: usize,
    asked: Vec<oneshot::Sender<AppResult<()>>>,
}

/// When to compact, and who waits for it.
#[derive(Default)]
pub(super) struct Compaction {
    state: Mutex<State>,
    wake: Notify,
}

impl Compaction {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row of the journal was committed.
    pub(super) fn appended(&self, id: i64, bytes: usize) {
        let mut state = self.state();
        state.newest = state.newest.max(id);
        state.bytes += bytes;
        let first = state.since.is_none();
        state.since.get_or_insert_with(Instant::now);
        if first || state.bytes >= COMPACT_BYTES {
            self.wake.notify_one();
        }
    }

    /// Rows of the journal through this one were compacted.
    pub(super) fn compacted(&self, through: i64) {
        let mut state = self.state();
        state.compacted = state.compacted.max(through);
        state.newest = state.newest.max(through);
    }

    /// What the journal holds is not known any more.
    pub(super) fn invalidate(&self) {
        let mut state = self.state();
        state.known = false;
        state.invalidations += 1;
        self.wake.notify_one();
    }

    /// A compaction of the rows through this one is being made. A caller that looks at the journal later in the same
    /// group of changes sees it empty, and must not give their numbers again.
    fn storing(&self, through: i64) {
        let mut state = self.state();
        state.used = state.used.max(through);
    }

    /// The highest number of a row that was committed or compacted since the start, or that is just being compacted.
    pub(super) fn highest(&self) -> i64 {
        let state = self.state();
        state.newest.max(state.compacted).max(state.used)
    }

    /// When to compact next; `None` = when there is something to compact.
    fn due(&self) -> Option<Instant> {
        let state = self.state();
        if !state.known || !state.asked.is_empty() || state.bytes >= COMPACT_BYTES {
            return Some(Instant::now());
        }
        state.since.map(|since| since + COMPACT_AFTER)
    }
}

impl Journal {
    /// Waits until chunks, statistics and steps contain everything that was acknowledged so far: for those who are about
    /// to read them. Costs nothing when they do already. Errs while the master stops.
    pub async fn flush(&self) -> AppResult<()> {
        let compaction = self.compaction();
        let (reply, answer) = oneshot::channel();
        {
            let mut state = compaction.state();
            if state.known && state.compacted >= state.newest {
                return Ok(());
            }
            state.asked.push(reply);
        }
        compaction.wake.notify_one();
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
        let compaction = self.compaction();
        let invalidations = {
            let mut state = compaction.state();
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
                rows::read(&mut conn.conn(), 0).await?
            };
            if rows.first().is_none_or(|row| row.id > newest) {
                break;
            }
            self.compact_rows(rows).await?;
        }
        let mut state = compaction.state();
        state.newest = state.newest.max(newest);
        state.compacted = state.compacted.max(newest);
        // What was invalidated meanwhile is not answered by this pass.
        state.known = state.invalidations == invalidations;
        Ok(())
    }

    async fn compact_rows(&self, rows: Vec<JournalRow>) -> AppResult<()> {
        let long = rows.iter().map(|row| row.data.len()).sum::<usize>() >= LONG_WORK;
        let sorted = beside(long, move || Sorted::of(&rows)).await??;
        let stored = {
            let mut conn = self.context.store.read().await?;
            metrics::summaries_of(&mut conn.conn(), &sorted.trials()).await?
        };
        let packed = beside(long, move || sorted.prepare(stored)).await??;
        let journal = self.clone();
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let through = packed.through();
                    let undone = journal.clone();
                    tx.on_rollback(move || undone.invalidate());
                    journal.compaction().storing(through);
                    rows::apply(&mut tx.conn(), packed).await?;
                    tx.once_stored(move || journal.compacted(through));
                    failpoint!("server::metrics::fold::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::metrics::fold::after_commit");
        Ok(())
    }

    /// Compacts whenever it is due, for as long as it is polled.
    pub(crate) async fn run(&self) {
        let compaction = self.compaction();
        loop {
            let due = compaction.due();
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            if due.is_none_or(|due| due > Instant::now()) {
                tokio::select! {
                    () = pause => {}
                    () = compaction.wake.notified() => continue,
                }
            }
            let asked = std::mem::take(&mut compaction.state().asked);
            let outcome = self.compact().await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, cause = ?error.cause, "metric reports could not be compacted; they are safe in the journal");
                compaction.invalidate();
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
