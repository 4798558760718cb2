//! Budgets in bytes: how much memory each kind of transient data may take, in all and for one user.
//!
//! Everything that a client can make the master hold is reserved from a [`Budget`] before it is held, and released when
//! the [`Reservation`] is dropped. [`Budgets`] is the list of all of them; `docs/memory.md` has the same list, and a test
//! compares the two.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::UserId;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::{AppError, AppResult, ErrorKind};

const MIB: usize = 1 << 20;

/// Who a reservation is counted for: the user behind a request; `None` = a request without a valid token. All requests
/// without a token share one account.
pub type Account = Option<UserId>;

/// How many bytes, of memory or of files, one budget gives out: to all together, and to each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Name in answers and documents.
    pub name: &'static str,
    /// Bytes that all reservations together may have.
    pub total: usize,
    /// Bytes that the reservations of one user together may have. A single reservation may be larger, up to `total`, when
    /// its user has no other one.
    pub share: usize,
    /// Bytes for which reservations of one user may wait: what waits may be in memory already.
    pub queue: usize,
    /// How long a reservation waits for others to be released; after that the request is refused with status 503.
    pub wait: Duration,
}

/// Bytes of requests that are received, while they are in memory: at most the first 256 KiB of each.
pub const REQUESTS: Limits = Limits {
    name: "requests",
    total: 48 * MIB,
    share: 12 * MIB,
    queue: 64 * MIB,
    wait: Duration::from_secs(10),
};
/// Bytes of large requests that are received, in files below the data directory.
pub const SPOOLED: Limits = Limits {
    name: "spooled_requests",
    total: 2048 * MIB,
    share: 512 * MIB,
    queue: 64 * MIB,
    wait: Duration::from_secs(10),
};
/// Bytes of large requests that have arrived and are being handled.
pub const HANDLED: Limits = Limits {
    name: "handled_requests",
    total: 160 * MIB,
    share: 48 * MIB,
    queue: 512 * MIB,
    wait: Duration::from_secs(60),
};
/// Bytes of answers that their clients have not read yet.
pub const ANSWERS: Limits = Limits {
    name: "answers",
    total: 96 * MIB,
    share: 32 * MIB,
    queue: 32 * MIB,
    wait: Duration::from_secs(10),
};
/// What each archive of a checkpoint is counted for: pieces that wait to be read, what its compression holds, and a list of
/// some 10,000 files.
pub const ARCHIVE_BYTES: usize = 3 * MIB;
/// Bytes of archives of checkpoints that are being made. Each has a thread until its client has read it: the limits are
/// a number of archives, below that of threads.
pub const ARCHIVES: Limits = Limits {
    name: "archives",
    total: 16 * ARCHIVE_BYTES,
    share: 4 * ARCHIVE_BYTES,
    queue: 4 * ARCHIVE_BYTES,
    wait: Duration::from_secs(5),
};
/// Bytes that streams of metrics hold to put reports into order.
pub const STREAMS: Limits = Limits {
    name: "metric_streams",
    total: 96 * MIB,
    share: 48 * MIB,
    queue: 64 * MIB,
    wait: Duration::from_secs(30),
};
/// Bytes that members of allocations have given to all-gathers.
pub const ALL_GATHERS: Limits = Limits {
    name: "all_gathers",
    total: 64 * MIB,
    share: 16 * MIB,
    queue: 0,
    wait: Duration::ZERO,
};

/// All budgets of a master.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// For requests while they are in memory: see [`REQUESTS`].
    pub requests: Budget,
    /// For large requests in files: see [`SPOOLED`].
    pub spooled: Budget,
    /// For large requests that are being handled: see [`HANDLED`].
    pub handled: Budget,
    /// For answers that clients have not read yet: see [`ANSWERS`].
    pub answers: Budget,
    /// For archives of checkpoints that are being made: see [`ARCHIVES`].
    pub archives: Budget,
    /// For streams of metrics: see [`STREAMS`].
    pub streams: Budget,
    /// For values given to all-gathers: see [`ALL_GATHERS`].
    pub all_gathers: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            requests: Budget::new(REQUESTS),
            spooled: Budget::new(SPOOLED),
            handled: Budget::new(HANDLED),
            answers: Budget::new(ANSWERS),
            archives: Budget::new(ARCHIVES),
            streams: Budget::new(STREAMS),
            all_gathers: Budget::new(ALL_GATHERS),
        }
    }
}

impl Budgets {
    /// All of them, in the order of the documents.
    pub fn all(&self) -> [&Budget; 7] {
        [
            &self.requests,
            &self.spooled,
            &self.handled,
            &self.answers,
            &self.archives,
            &self.streams,
            &self.all_gathers,
        ]
    }
}

/// One budget. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    peak: usize,
    refused: u64,
    by_account: HashMap<Account, usize>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    account: Account,
    bytes: usize,
    granted: oneshot::Sender<Reservation>,
}

/// How a budget is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Limits of the budget.
    pub limits: Limits,
    /// Bytes reserved now.
    pub used: usize,
    /// Most bytes that were reserved at once since the start.
    pub peak: usize,
    /// Number of reservations that wait for others to be released.
    pub waiting: usize,
    /// Reservations that were refused since the start.
    pub refused: u64,
}

/// Bytes of a budget; released when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    inner: Arc<Inner>,
    account: Account,
    bytes: usize,
}

impl Limits {
    /// Whether `bytes` more may be reserved for an account that has `own` of `used` bytes.
    fn admit(&self, used: usize, own: usize, bytes: usize) -> bool {
        let within_share = own == 0 || own.saturating_add(bytes) <= self.share;
        within_share && used.saturating_add(bytes) <= self.total
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn own(&self, account: Account) -> usize {
        self.by_account.get(&account).copied().unwrap_or(0)
    }

    fn take(&mut self, account: Account, bytes: usize) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        *self.by_account.entry(account).or_insert(0) += bytes;
    }

    fn give(&mut self, account: Account, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        if let Some(own) = self.by_account.get_mut(&account) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_account.remove(&account);
            }
        }
    }

    /// The next waiter that can be admitted, first come, first served. One whose account has its share lets others pass;
    /// one for which the whole budget has no space does not, or small ones would keep it waiting for ever.
    fn next(&mut self, limits: &Limits) -> Option<Waiter> {
        let mut found = None;
        for (place, waiter) in self.waiting.iter().enumerate() {
            let own = self.own(waiter.account);
            if waiter.granted.is_closed() || limits.admit(self.used, own, waiter.bytes) {
                found = Some(place);
                break;
            }
            if limits.admit(0, own, waiter.bytes) {
                return None;
            }
        }
        self.waiting.remove(found?)
    }
}

impl Budget {
    /// A budget of which nothing is reserved.
    pub fn new(limits: Limits) -> Self {
        Self {
            inner: Arc::new(Inner {
                limits,
                state: Mutex::default(),
            }),
        }
    }

    /// How it is used now.
    pub fn usage(&self) -> Usage {
        let state = self.inner.lock();
        Usage {
            limits: self.inner.limits,
            used: state.used,
            peak: state.peak,
            waiting: state.waiting.len(),
            refused: state.refused,
        }
    }

    /// Reserves at once, or not at all.
    pub fn try_reserve(&self, account: Account, bytes: usize) -> AppResult<Reservation> {
        let mut state = self.inner.lock();
        if state.waiting.is_empty()
            && self
                .inner
                .limits
                .admit(state.used, state.own(account), bytes)
        {
            state.take(account, bytes);
            drop(state);
            return Ok(self.granted(account, bytes));
        }
        state.refused += 1;
        Err(self.busy(bytes))
    }

    /// Reserves, once others have released enough; waits at most as long as the budget's limits allow.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when that has not happened in time, or never can.
    pub async fn reserve(&self, account: Account, bytes: usize) -> AppResult<Reservation> {
        let limits = self.inner.limits;
        let queued = {
            let mut state = self.inner.lock();
            if bytes > limits.total {
                state.refused += 1;
                return Err(self.busy(bytes));
            }
            let waiting: usize = state
                .waiting
                .iter()
                .filter(|waiter| waiter.account == account)
                .map(|waiter| waiter.bytes)
                .sum();
            let own = state.own(account);
            let passes = state.waiting.iter().all(|w| w.account != account)
                && (state.waiting.is_empty()
                    || state
                        .waiting
                        .iter()
                        .all(|w| !limits.admit(0, state.own(w.account), w.bytes)));
            if passes && limits.admit(state.used, own, bytes) {
                state.take(account, bytes);
                None
            } else if waiting > 0 && waiting.saturating_add(bytes) > limits.queue {
                state.refused += 1;
                return Err(self.busy(bytes));
            } else {
                let (granted, answer) = oneshot::channel();
                state.waiting.push_back(Waiter {
                    account,
                    bytes,
                    granted,
                });
                Some(answer)
            }
        };
        let Some(answer) = queued else {
            return Ok(self.granted(account, bytes));
        };
        if let Ok(Ok(reservation)) = timeout(limits.wait, answer).await {
            return Ok(reservation);
        }
        let mut state = self.inner.lock();
        state.waiting.retain(|waiter| !waiter.granted.is_closed());
        state.refused += 1;
        drop(state);
        // The one that gave up may have been in the way of others.
        grant(&self.inner);
        Err(self.busy(bytes))
    }

    fn granted(&self, account: Account, bytes: usize) -> Reservation {
        Reservation {
            inner: self.inner.clone(),
            account,
            bytes,
        }
    }

    fn busy(&self, bytes: usize) -> AppError {
        let Limits {
            name, total, share, ..
        } = self.inner.limits;
        AppError::new(
            ErrorKind::Busy,
            format!(
                "the master is too busy to take {bytes} bytes: its budget \"{name}\" is {total} bytes for all users and \
                 {share} for one"
            ),
        )
        .hint("try again in a moment, with fewer requests at once; `det master memory` shows what is in use")
    }
}

/// Gives waiting reservations what there is.
fn grant(inner: &Arc<Inner>) {
    loop {
        let next = {
            let mut state = inner.lock();
            let Some(waiter) = state.next(&inner.limits) else {
                return;
            };
            if waiter.granted.is_closed() {
                continue;
            }
            state.take(waiter.account, waiter.bytes);
            waiter
        };
        let reservation = Reservation {
            inner: inner.clone(),
            account: next.account,
            bytes: next.bytes,
        };
        // Outside of the lock: one whose waiter has gone is dropped here, and releases what it has.
        drop(next.granted.send(reservation));
    }
}

impl Reservation {
    /// Bytes that are reserved by it now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `more` bytes in addition if that is possible now; whether it was. Passes by what waits: who holds
    /// something finishes sooner.
    pub fn try_grow(&mut self, more: usize) -> bool {
        let mut state = self.inner.lock();
        let others = state.own(self.account).saturating_sub(self.bytes);
        let admitted = self.inner.limits.admit(
            state.used - self.bytes.min(state.used),
            others,
            self.bytes.saturating_add(more),
        );
        if admitted {
            state.take(self.account, more);
            self.bytes += more;
        }
        admitted
    }
}

impl Reservation {
    /// Releases all but so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less > 0 {
            self.bytes -= less;
            self.inner.lock().give(self.account, less);
            grant(&self.inner);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.inner.lock().give(self.account, self.bytes);
            grant(&self.inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Limits = Limits {
        name: "test",
        total: 100,
        share: 40,
        queue: 100,
        wait: Duration::from_millis(1),
    };

    #[tokio::test]
    async fn a_user_gets_no_more_than_a_share_and_others_do_not_notice() {
        let budget = Budget::new(SMALL);
        let _first = budget.reserve(Some(UserId(1)), 30).await.unwrap();
        let error = budget.reserve(Some(UserId(1)), 20).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.contains("40 for one"), "{}", error.message);
        let _second = budget.reserve(Some(UserId(2)), 40).await.unwrap();
        assert_eq!(budget.usage().used, 70);
        assert_eq!(budget.usage().refused, 1);
    }

    #[tokio::test]
    async fn one_large_reservation_is_admitted_when_its_user_has_no_other() {
        let budget = Budget::new(SMALL);
        let large = budget.reserve(Some(UserId(1)), 100).await.unwrap();
        assert!(budget.try_reserve(Some(UserId(2)), 1).is_err());
        drop(large);
        assert!(budget.reserve(None, 101).await.is_err());
        assert_eq!(budget.usage().used, 0);
    }

    #[tokio::test]
    async fn what_is_released_goes_to_the_first_that_waits() {
        let patient = Limits {
            wait: Duration::from_secs(600),
            ..SMALL
        };
        let budget = Budget::new(patient);
        let held = budget.reserve(Some(UserId(1)), 90).await.unwrap();
        let waiting = {
            let budget = budget.clone();
            tokio::spawn(async move { budget.reserve(Some(UserId(2)), 40).await.unwrap() })
        };
        while budget.usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert!(
            budget.try_reserve(Some(UserId(3)), 5).is_err(),
            "no reservation passes the one that waits"
        );
        drop(held);
        assert_eq!(waiting.await.unwrap().bytes(), 40);
    }

    #[tokio::test]
    async fn a_waiter_of_a_full_share_lets_others_pass() {
        let patient = Limits {
            wait: Duration::from_secs(600),
            ..SMALL
        };
        let budget = Budget::new(patient);
        let held = budget.reserve(Some(UserId(1)), 40).await.unwrap();
        let waiting = {
            let budget = budget.clone();
            tokio::spawn(async move { budget.reserve(Some(UserId(1)), 10).await.map(drop) })
        };
        while budget.usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
        let other = budget.reserve(Some(UserId(2)), 30).await.unwrap();
        assert_eq!(other.bytes(), 30);
        drop(held);
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_waiter_that_left_gets_nothing() {
        let patient = Limits {
            wait: Duration::from_secs(600),
            ..SMALL
        };
        let budget = Budget::new(patient);
        let held = budget.reserve(Some(UserId(1)), 90).await.unwrap();
        let waiting = {
            let budget = budget.clone();
            tokio::spawn(async move { budget.reserve(Some(UserId(2)), 40).await.map(drop) })
        };
        while budget.usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        assert!(waiting.await.is_err());
        drop(held);
        assert_eq!(budget.usage().used, 0);
        assert!(budget.try_reserve(Some(UserId(3)), 100).is_ok());
    }

    #[tokio::test]
    async fn what_turns_out_smaller_releases_the_rest() {
        let budget = Budget::new(SMALL);
        let mut held = budget.reserve(Some(UserId(1)), 90).await.unwrap();
        held.shrink_to(30);
        held.shrink_to(60);
        assert_eq!((held.bytes(), budget.usage().used), (30, 30));
        assert!(budget.try_reserve(Some(UserId(2)), 70).is_ok());
        drop(held);
        assert_eq!(budget.usage().used, 0);
    }

    proptest! {
        #[test]
        fn a_budget_is_never_exceeded_and_always_given_back(
            wanted in prop::collection::vec((0_i64..4, 0_usize..60, any::<bool>()), 0..60)
        ) {
            let budget = Budget::new(SMALL);
            let mut held: Vec<Reservation> = Vec::new();
            for (account, bytes, release) in wanted {
                if release {
                    held.pop();
                } else if let Ok(reservation) = budget.try_reserve(Some(UserId(account)), bytes) {
                    held.push(reservation);
                } else if let Some(last) = held.last_mut() {
                    last.try_grow(bytes / 4);
                }
                let usage = budget.usage();
                prop_assert!(usage.used <= SMALL.total && usage.peak <= SMALL.total);
                prop_assert_eq!(usage.used, held.iter().map(Reservation::bytes).sum::<usize>());
            }
            held.clear();
            prop_assert_eq!(budget.usage().used, 0);
        }
    }

    /// The document lists every budget with its limits.
    #[test]
    fn the_document_has_every_budget() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memory.md");
        let text = std::fs::read_to_string(path).unwrap();
        for budget in Budgets::default().all() {
            let limits = budget.usage().limits;
            let row = format!(
                "| `{}` | {} MiB | {} MiB | {} s |",
                limits.name,
                limits.total / MIB,
                limits.share / MIB,
                limits.wait.as_secs()
            );
            assert!(text.contains(&row), "docs/memory.md has no row \"{row}\"");
        }
    }
}
