//! The present, and durations that a step of the system's clock does not change.
//!
//! The system's clock is set by administrators and by time synchronisation, and may step by days in either direction. It
//! dates what happened. How long something has lasted is counted by a steady clock: the system's time when this
//! process first asked, plus what the monotonic clock has counted since.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// Microseconds that tests have put the system's clock forward.
static STEP: AtomicI64 = AtomicI64::new(0);

/// The system's time, in microseconds since 1970: for what is shown and recorded.
pub fn now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
        .saturating_add(STEP.load(Ordering::Relaxed))
}

/// The steady clock, in microseconds: close to [`now`] unless the system's clock has stepped since this process began.
/// For deadlines of seconds and minutes; a moment given by it is compared with it.
pub fn steady_now() -> i64 {
    static START: OnceLock<(Instant, i64)> = OnceLock::new();
    let (began, at) = START.get_or_init(|| (Instant::now(), now()));
    let elapsed = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
    at.saturating_add(elapsed)
}

/// The earlier of both clocks, in microseconds: for deciding that something has expired. What expires is never
/// early because the system's clock was put forward.
pub fn earliest_now() -> i64 {
    now().min(steady_now())
}

/// The later of both clocks, in microseconds: for giving something a time to expire at. What gets it is never early
/// because the system's clock was behind.
pub fn latest_now() -> i64 {
    now().max(steady_now())
}

/// Steps the system's clock as this process sees it, by microseconds: for tests.
#[doc(hidden)]
pub fn step_clock(micros: i64) {
    // The steady clock begins before the first step.
    let _ = steady_now();
    STEP.fetch_add(micros, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;

    /// One test, since the step is that of the process.
    #[test]
    fn a_step_changes_what_is_recorded_and_no_duration() {
        let (wall, steady) = (now(), steady_now());
        for step in [DAY, -2 * DAY, DAY] {
            step_clock(step);
            let passed = steady_now() - steady;
            assert!((0..DAY / 2).contains(&passed), "{passed}");
            assert!(earliest_now() <= steady_now() && steady_now() <= latest_now());
        }
        step_clock(DAY);
        assert!(now() - wall >= DAY);
        assert!(earliest_now() - steady < DAY / 2);
        step_clock(-DAY);
    }
}
