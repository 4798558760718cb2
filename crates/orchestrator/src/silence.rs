//! When a trial counts as silent: its containers run, and its code has reported nothing and written nothing for too long.

use std::time::Duration;

use det_ids::Micros;

/// The least time between two silences of an attempt that are reported: code that writes a line now and then would fill its
/// log and the record of events with them.
const BETWEEN_REPORTS: Duration = Duration::from_mins(1);

/// Counts how long the code of one attempt has reported and written nothing. Times are those of the steady clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceClock {
    last: Micros,
    /// When a silence was reported last, of those of this attempt. Each is once, until something is received.
    reported: Option<Micros>,
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
            reported: None,
        }
    }

    /// A report or a line of the log has come.
    pub fn received(&mut self, now: Micros) {
        self.last = self.last.max(now);
    }

    /// How long nothing has been received.
    pub fn silent_for(&self, now: Micros) -> Duration {
        between(self.last, now)
    }

    /// Looks whether it is silent for too long. `timeout` = longer than zero.
    pub fn look(&mut self, timeout: Duration, now: Micros) -> Silence {
        let silent = self.silent_for(now);
        let of_silence = timeout.saturating_sub(silent);
        let of_report = match self.reported {
            None => Duration::ZERO,
            Some(reported) if reported >= self.last => {
                return Silence::Reported;
            }
            Some(reported) => BETWEEN_REPORTS.saturating_sub(between(reported, now)),
        };
        let left = of_silence.max(of_report);
        if left.is_zero() {
            self.reported = Some(now);
            Silence::TooLong(silent)
        } else {
            Silence::Within(left)
        }
    }
}

fn between(earlier: Micros, later: Micros) -> Duration {
    let micros = later.0.saturating_sub(earlier.0);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
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
        clock.received(at(81));
        assert_eq!(
            clock.look(TIMEOUT, at(82)),
            Silence::Within(Duration::from_secs(9))
        );
        assert_eq!(clock.look(TIMEOUT, at(91)), Silence::TooLong(TIMEOUT));
    }

    #[test]
    fn an_attempt_has_one_silence_reported_in_a_minute() {
        let mut clock = SilenceClock::new(at(0));
        assert_eq!(clock.look(TIMEOUT, at(10)), Silence::TooLong(TIMEOUT));
        clock.received(at(11));
        // It is too long already, and its turn comes with the minute.
        assert_eq!(
            clock.look(TIMEOUT, at(40)),
            Silence::Within(Duration::from_secs(30))
        );
        assert_eq!(
            clock.look(TIMEOUT, at(70)),
            Silence::TooLong(Duration::from_secs(59))
        );
        assert_eq!(clock.look(TIMEOUT, at(300)), Silence::Reported);
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
