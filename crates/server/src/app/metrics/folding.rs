//! Folding the journal of reports into chunks, statistics and steps.
//!
//! Takes no input: it looks at the rows. So what a master that was killed left in the journal is folded by the next one
//! as if nothing had happened.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_failpoints::failpoint;
use det_store::journal::{self, JournalRow, Sorted};
use det_store::metrics;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::app::{Master, beside};
use crate::error::{AppError, AppResult, ErrorKind};

/// A report is folded at the latest so long after it was stored: long enough for a chunk to be worth it, and short
/// enough that a start has little to do.
const FOLD_AFTER: Duration = Duration::from_secs(15);
/// Folded earlier when so many bytes of reports have gathered.
const FOLD_BYTES: usize = 8 << 20;
/// Sorting and packing less than this is done where it is, more of it beside the runtime's other work.
const LONG_WORK: usize = 256 << 10;
/// How long to wait after a failure, unless somebody asks.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Whether the two numbers below are known; not so after a start, and when a change was undone.
    known: bool,
    /// How often that was put in doubt.
    doubts: u64,
    /// The newest row of the journal.
    newest: i64,
    /// The last row that was folded.
    folded: i64,
    /// The last row that a fold has begun to store; it may come to nothing.
    used: i64,
    /// Since when something waits to be folded.
    since: Option<Instant>,
    bytes: usize,
    asked: Vec<oneshot::Sender<AppResult<()>>>,
}

/// When to fold, and who waits for it.
#[derive(Default)]
pub(super) struct Folding {
    state: Mutex<State>,
    wake: Notify,
}

impl Folding {
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
        if first || state.bytes >= FOLD_BYTES {
            self.wake.notify_one();
        }
    }

    /// Rows of the journal through this one were folded.
    pub(super) fn folded(&self, through: i64) {
        let mut state = self.state();
        state.folded = state.folded.max(through);
        state.newest = state.newest.max(through);
    }

    /// Nobody knows what the journal holds.
    pub(super) fn doubt(&self) {
        let mut state = self.state();
        state.known = false;
        state.doubts += 1;
        self.wake.notify_one();
    }

    /// A fold of the rows through this one is being made. Whoever looks at the journal later in the same group of
    /// changes sees it empty, and must not give their numbers again.
    fn storing(&self, through: i64) {
        let mut state = self.state();
        state.used = state.used.max(through);
    }

    /// The highest number of a row that was committed or folded since the start, or that is just being folded.
    pub(super) fn highest(&self) -> i64 {
        let state = self.state();
        state.newest.max(state.folded).max(state.used)
    }

    /// When to fold next; `None` = when something is there to be folded.
    fn due(&self) -> Option<Instant> {
        let state = self.state();
        if !state.known || !state.asked.is_empty() || state.bytes >= FOLD_BYTES {
            return Some(Instant::now());
        }
        state.since.map(|since| since + FOLD_AFTER)
    }
}

impl Master {
    /// Waits until chunks, statistics and steps hold everything that was acknowledged so far. Asked by whoever reads
    /// them. Costs nothing when they do already.
    pub async fn settle_metrics(&self) -> AppResult<()> {
        let folding = self.metric_intake.folding();
        let (reply, answer) = oneshot::channel();
        {
            let mut state = folding.state();
            if state.known && state.folded >= state.newest {
                return Ok(());
            }
            state.asked.push(reply);
        }
        folding.wake.notify_one();
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

    /// Folds everything that is in the journal when it begins.
    async fn fold_journal(&self) -> AppResult<()> {
        let folding = self.metric_intake.folding();
        let doubts = {
            let mut state = folding.state();
            (state.since, state.bytes) = (None, 0);
            state.doubts
        };
        let newest = {
            let mut conn = self.context.store.read().await?;
            journal::newest(&mut conn.conn()).await?
        };
        loop {
            let rows = {
                let mut conn = self.context.store.read().await?;
                journal::read(&mut conn.conn(), 0).await?
            };
            if rows.first().is_none_or(|row| row.id > newest) {
                break;
            }
            self.fold_rows(rows).await?;
        }
        let mut state = folding.state();
        state.newest = state.newest.max(newest);
        state.folded = state.folded.max(newest);
        // What was put in doubt meanwhile is not answered by this pass.
        state.known = state.doubts == doubts;
        Ok(())
    }

    async fn fold_rows(&self, rows: Vec<JournalRow>) -> AppResult<()> {
        let long = rows.iter().map(|row| row.data.len()).sum::<usize>() >= LONG_WORK;
        let sorted = beside(long, move || Sorted::of(&rows)).await??;
        let stored = {
            let mut conn = self.context.store.read().await?;
            metrics::summaries_of(&mut conn.conn(), &sorted.trials()).await?
        };
        let fold = beside(long, move || sorted.prepare(stored)).await??;
        let intake = self.metric_intake.clone();
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let through = fold.through();
                    let doubting = intake.clone();
                    tx.on_rollback(move || doubting.doubt());
                    intake.folding().storing(through);
                    journal::apply(&mut tx.conn(), fold).await?;
                    tx.once_stored(move || intake.folded(through));
                    failpoint!("server::metrics::fold::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::metrics::fold::after_commit");
        Ok(())
    }
}

/// Folds whenever it is due, until the master stops.
pub async fn run_folding(master: Master) {
    let folding = master.metric_intake.folding();
    loop {
        let due = folding.due();
        let pause = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        if due.is_none_or(|due| due > Instant::now()) {
            tokio::select! {
                () = pause => {}
                () = folding.wake.notified() => continue,
            }
        }
        let asked = std::mem::take(&mut folding.state().asked);
        let outcome = master.fold_journal().await;
        if let Err(error) = &outcome {
            tracing::warn!(%error, cause = ?error.cause, "metric reports could not be folded; they are safe in the journal");
            folding.doubt();
        }
        for reply in asked {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(match &outcome {
                Ok(()) => Ok(()),
                Err(error) => Err(super::intake::copy(error)),
            });
        }
        if outcome.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
