//! Time, random numbers and retry delays.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since 1970 UTC.
pub(crate) fn now_micros() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A number that others cannot guess, of 64 random bits.
pub(crate) fn random() -> u64 {
    // The standard library seeds the first of each thread from the kernel and counts on; the hash hides the count.
    RandomState::new().build_hasher().finish()
}

/// Waiting times between attempts: doubling, with jitter, so that the tasks of a cluster do not all call a restarted
/// master at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Starts at 50 ms and grows to 15 s.
    pub(crate) fn new() -> Self {
        Self {
            next: Duration::from_millis(50),
            longest: Duration::from_secs(15),
        }
    }

    /// Limits all further waits to this.
    pub(crate) fn limit(&mut self, longest: Duration) {
        self.longest = self.longest.min(longest);
    }

    /// How long to wait before the next attempt: between half and all of the current step.
    pub(crate) fn delay(&mut self) -> Duration {
        let step = self.next.min(self.longest);
        self.next = step.saturating_mul(2);
        let thousandths = u32::try_from(500 + random() % 501).unwrap_or(1000);
        step * thousandths / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_vary_by_half() {
        let mut backoff = Backoff::new();
        for step in [
            50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000,
        ] {
            let step = Duration::from_millis(step);
            let delay = backoff.delay();
            assert!(delay <= step && delay >= step / 2, "{delay:?} of {step:?}");
        }
        backoff.limit(Duration::from_secs(1));
        assert!(backoff.delay() <= Duration::from_secs(1));
    }
}
