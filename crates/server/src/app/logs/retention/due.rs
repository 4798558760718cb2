//! What is decided about old logs: which of them may go, and when to look next. Knows no clock and no rows.

use std::fmt;

use det_config::master::Schedule;
use serde::{Deserialize, Serialize};

/// A day, in microseconds.
const DAY: i64 = 86_400_000_000;

/// How long logs are kept after the end of their task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLifetime {
    /// They are never deleted.
    Forever,
    /// So many days, 0 or more.
    Days(i64),
}

impl LogLifetime {
    /// By the days of the trial itself, or else those of the cluster; below 0 and none are for ever.
    pub(crate) fn of(own: Option<i64>, cluster: Option<i16>) -> Self {
        match own.or(cluster.map(i64::from)) {
            Some(days) if days >= 0 => Self::Days(days),
            _ => Self::Forever,
        }
    }

    /// Whether the log of a task that ended at `ended_at` may go at `now`; both in microseconds.
    pub(crate) fn is_over(self, ended_at: i64, now: i64) -> bool {
        match self {
            Self::Forever => false,
            Self::Days(days) => until(ended_at, days) <= now,
        }
    }

    /// Days that are left at `now`, begun ones counted: -1 = for ever. What has not ended has all its days.
    pub(crate) fn remaining(self, ended_at: Option<i64>, now: i64) -> i64 {
        let Self::Days(days) = self else { return -1 };
        let left = until(ended_at.unwrap_or(now), days).saturating_sub(now);
        if left <= 0 { 0 } else { (left - 1) / DAY + 1 }
    }
}

impl fmt::Display for LogLifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("for ever"),
            Self::Days(1) => f.write_str("for 1 day after the end of a task"),
            Self::Days(days) => write!(f, "for {days} days after the end of a task"),
        }
    }
}

fn until(ended_at: i64, days: i64) -> i64 {
    ended_at.saturating_add(days.saturating_mul(DAY))
}

/// Since when the next sweep is counted, and for which schedule; stored, so that a restart changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SweepClock {
    /// As it is written; `None` = sweeps only when asked.
    schedule: Option<String>,
    /// The end of the last sweep, or when the schedule came into force; microseconds.
    since: i64,
}

impl SweepClock {
    /// The clock of sweeps by a schedule that comes into force at `now`, microseconds.
    pub(crate) fn from(schedule: Option<&Schedule>, now: i64) -> Self {
        Self {
            schedule: schedule.map(|schedule| schedule.as_str().to_owned()),
            since: now,
        }
    }

    /// What counts now: what is stored, unless that was for another schedule, or the clock has gone back behind it.
    pub(crate) fn resume(stored: Option<Self>, schedule: Option<&Schedule>, now: i64) -> Self {
        match stored {
            Some(stored)
                if stored.since <= now
                    && stored.schedule.as_deref() == schedule.map(Schedule::as_str) =>
            {
                stored
            }
            _ => Self::from(schedule, now),
        }
    }

    /// When the next sweep is due: in the past if it was missed; `None` = never.
    pub(crate) fn next(&self, schedule: Option<&Schedule>) -> Option<i64> {
        schedule?.next_after(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(days: i64) -> i64 {
        1_700_000_000_000_000 + days * DAY
    }

    #[test]
    fn logs_go_when_their_days_are_over_and_not_a_moment_before() {
        for (name, own, cluster, over, left) in [
            ("neither has days", None, None, None, -1),
            ("the cluster has days", None, Some(30), Some(30), 30),
            ("the cluster keeps for ever", None, Some(-1), None, -1),
            ("the trial has days", Some(7), None, Some(7), 7),
            ("the trial keeps longer", Some(60), Some(30), Some(60), 60),
            ("the trial keeps shorter", Some(0), Some(30), Some(0), 0),
            ("the trial keeps for ever", Some(-1), Some(0), None, -1),
            ("at most", Some(32_767), Some(0), Some(32_767), 32_767),
        ] {
            let kept = LogLifetime::of(own, cluster);
            match over {
                None => assert!(!kept.is_over(at(0), i64::MAX), "{name}"),
                Some(days) => {
                    assert!(kept.is_over(at(0), at(days)), "{name}");
                    assert!(!kept.is_over(at(0), at(days) - 1), "{name}");
                }
            }
            // What lives has all its days, however long it lives.
            assert_eq!(kept.remaining(None, at(9)), left, "{name}");
        }
    }

    #[test]
    fn begun_days_count() {
        let kept = LogLifetime::of(Some(2), None);
        for (since_end, left) in [
            (0, 2),
            (1, 2),
            (DAY - 1, 2),
            (DAY, 1),
            (2 * DAY - 1, 1),
            (2 * DAY, 0),
            (9 * DAY, 0),
        ] {
            assert_eq!(
                kept.remaining(Some(at(0)), at(0) + since_end),
                left,
                "{since_end}"
            );
            assert_eq!(kept.is_over(at(0), at(0) + since_end), left == 0);
        }
        // An end that the clock has yet to come to is no overflow.
        assert_eq!(kept.remaining(Some(i64::MAX), 0), i64::MAX / DAY + 1);
        assert!(!kept.is_over(i64::MAX, at(0)));
    }

    #[test]
    fn sweeps_are_counted_on_over_restarts_and_anew_with_another_schedule() {
        let hourly = Schedule::parse("1h").unwrap();
        let nightly = Schedule::parse("0 3 * * *").unwrap();
        let hour = DAY / 24;
        let first = SweepClock::resume(None, Some(&hourly), at(0));
        assert_eq!(first.next(Some(&hourly)), Some(at(0) + hour));
        // Restarts do not put it off; what was missed meanwhile is due.
        let again = SweepClock::resume(Some(first.clone()), Some(&hourly), at(0) + hour / 2);
        assert_eq!(again, first);
        let late = SweepClock::resume(Some(first.clone()), Some(&hourly), at(3));
        assert_eq!(
            late.next(Some(&hourly)),
            Some(at(0) + hour),
            "due since long"
        );
        // Another schedule, or none for a while: from then on.
        let other = SweepClock::resume(Some(first.clone()), Some(&nightly), at(3));
        assert!(other.next(Some(&nightly)).unwrap() > at(3));
        let none = SweepClock::resume(Some(first.clone()), None, at(3));
        assert_eq!(none.next(None), None);
        let back = SweepClock::resume(Some(none), Some(&hourly), at(9));
        assert_eq!(back.next(Some(&hourly)), Some(at(9) + hour));
        // A clock that was put back does not stop it.
        let earlier = SweepClock::resume(Some(first), Some(&hourly), at(-5));
        assert_eq!(earlier.next(Some(&hourly)), Some(at(-5) + hour));
    }
}
