//! How long something has not been used.

use std::time::Duration;

use det_ids::Micros;

/// Counts how long a service has not been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleClock {
    last: Micros,
    /// Requests that are answered at present.
    current: u32,
}

impl IdleClock {
    /// Begins to count.
    pub fn new(now: Micros) -> Self {
        Self {
            last: now,
            current: 0,
        }
    }

    /// It was used.
    pub fn used(&mut self, now: Micros) {
        self.last = self.last.max(now);
    }

    /// A use begins that takes some time.
    pub fn begins_use(&mut self, now: Micros) {
        self.used(now);
        self.current = self.current.saturating_add(1);
    }

    /// Such a use ends.
    pub fn ends_use(&mut self, now: Micros) {
        self.used(now);
        self.current = self.current.saturating_sub(1);
    }

    /// How long it may go on without use; zero = its time is over.
    pub fn left(&self, timeout: Duration, now: Micros) -> Duration {
        if self.current > 0 {
            return timeout;
        }
        let unused = now.0.saturating_sub(self.last.0);
        timeout.saturating_sub(Duration::from_micros(u64::try_from(unused).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    #[test]
    fn the_time_is_over_when_nothing_used_it_for_so_long() {
        let mut clock = IdleClock::new(at(0));
        assert_eq!(clock.left(TIMEOUT, at(4)), Duration::from_secs(6));
        clock.used(at(5));
        assert_eq!(clock.left(TIMEOUT, at(14)), Duration::from_secs(1));
        assert_eq!(clock.left(TIMEOUT, at(15)), Duration::ZERO);
        assert_eq!(clock.left(TIMEOUT, at(99)), Duration::ZERO);
    }

    #[test]
    fn a_request_that_takes_long_is_use_until_it_ends() {
        let mut clock = IdleClock::new(at(0));
        clock.begins_use(at(1));
        assert_eq!(clock.left(TIMEOUT, at(60)), TIMEOUT);
        clock.ends_use(at(60));
        assert_eq!(clock.left(TIMEOUT, at(61)), Duration::from_secs(9));
    }

    proptest! {
        /// Never ends what was used within its time, whatever the order in which uses are noted.
        #[test]
        fn use_within_the_time_keeps_it(uses in prop::collection::vec(0i64..1000, 1..20), later in 0i64..20) {
            let mut clock = IdleClock::new(at(0));
            for second in &uses {
                clock.used(at(*second));
            }
            let last = uses.iter().max().copied().unwrap_or(0);
            let over = clock.left(TIMEOUT, at(last + later)).is_zero();
            prop_assert_eq!(over, later >= 10);
        }
    }
}
