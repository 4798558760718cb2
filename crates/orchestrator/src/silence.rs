//! When a trial counts as silent: its containers run, and its code has reported nothing and written nothing for too long.

use std::time::Duration;

use det_ids::Micros;

/// Counts how long the code of one attempt has reported and written nothing. Times are those of the steady clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceClock {
    last: Micros,
    /// Whether this silence has been reported: it is once, until something is received.
    reported: bool,
}

/// What follows from a look at a [`SilenceClock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// It may go on for so long.
    Within(Duration),
    /// It has lasted too long, for so long by now, and this is the first look that finds it.
    TooLong(Duration),
    /// It has lasted too long, and a look before has found it.
    Reported,
}

impl SilenceClock {
    /// Begins to count.
    pub fn new(now: Micros) -> Self {
        Self {
            last: now,
            reported: false,
        }
    }

    /// A report or a line of the log has come.
    pub fn received(&mut self, now: Micros) {
        self.last = self.last.max(now);
        self.reported = false;
    }

    /// How long nothing has been received.
    pub fn silent_for(&self, now: Micros) -> Duration {
        let micros = now.0.saturating_sub(self.last.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Looks whether it is silent for too long. `timeout` = longer than zero.
    pub fn look(&mut self, timeout: Duration, now: Micros) -> Silence {
        let silent = self.silent_for(now);
        match timeout.checked_sub(silent).filter(|left| !left.is_zero()) {
            Some(left) => Silence::Within(left),
            None if self.reported => Silence::Reported,
            None => {
                self.reported = true;
                Silence::TooLong(silent)
            }
        }
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
    fn a_silence_is_reported_once_and_again_after_something_was_received() {
        let mut clock = SilenceClock::new(at(0));
        assert_eq!(
            clock.look(TIMEOUT, at(4)),
            Silence::Within(Duration::from_secs(6))
        );
        clock.received(at(5));
        assert_eq!(
            clock.look(TIMEOUT, at(14)),
            Silence::Within(Duration::from_secs(1))
        );
        assert_eq!(clock.look(TIMEOUT, at(15)), Silence::TooLong(TIMEOUT));
        assert_eq!(clock.look(TIMEOUT, at(40)), Silence::Reported);
        clock.received(at(41));
        assert_eq!(
            clock.look(TIMEOUT, at(42)),
            Silence::Within(Duration::from_secs(9))
        );
        assert_eq!(clock.look(TIMEOUT, at(51)), Silence::TooLong(TIMEOUT));
    }

    proptest! {
        /// Whatever the order in which things are received, nothing is reported that was received within its time.
        #[test]
        fn what_is_received_within_the_time_is_not_silent(received in prop::collection::vec(0i64..1000, 1..20), later in 0i64..20) {
            let mut clock = SilenceClock::new(at(0));
            for second in &received {
                clock.received(at(*second));
            }
            let last = received.iter().max().copied().unwrap_or(0);
            let found = clock.look(TIMEOUT, at(last + later));
            prop_assert_eq!(matches!(found, Silence::TooLong(_)), later >= 10);
        }
    }
}
