//! What of the journal waits to be compacted, and who waits for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::JournalId;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::error::AppResult;

/// A report is compacted at the latest so long after it was stored: long enough for a chunk to be worth it, and short
/// enough that a start has little to do.
const COMPACT_AFTER: Duration = Duration::from_secs(15);
/// Compacted earlier when so many bytes of reports have gathered.
const COMPACT_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct State {
    /// Whether the two numbers below are known; not so after a start, and when a change was undone.
    pub(super) known: bool,
    /// How often that was invalidated.
    pub(super) invalidations: u64,
    /// The newest row of the journal.
    pub(super) newest: JournalId,
    /// The last row that was compacted.
    pub(super) compacted: JournalId,
    /// The last row that a compaction has begun to store; it may come to nothing.
    pub(super) used: JournalId,
    /// Since when something waits to be compacted.
    pub(super) since: Option<Instant>,
    pub(super) bytes: usize,
    pub(super) asked: Vec<oneshot::Sender<AppResult<()>>>,
}

/// When to compact, and who waits for it.
#[derive(Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    pub(super) wake: Notify,
}

impl Backlog {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row of the journal was committed.
    pub(super) fn appended(&self, id: JournalId, bytes: usize) {
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
    pub(super) fn compacted(&self, through: JournalId) {
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
    pub(super) fn storing(&self, through: JournalId) {
        let mut state = self.state();
        state.used = state.used.max(through);
    }

    /// The highest number of a row that was committed or compacted since the start, or that is just being compacted.
    pub(super) fn highest(&self) -> JournalId {
        let state = self.state();
        state.newest.max(state.compacted).max(state.used)
    }

    /// When to compact next; `None` = when there is something to compact.
    pub(super) fn due(&self) -> Option<Instant> {
        let state = self.state();
        if !state.known || !state.asked.is_empty() || state.bytes >= COMPACT_BYTES {
            return Some(Instant::now());
        }
        state.since.map(|since| since + COMPACT_AFTER)
    }
}
