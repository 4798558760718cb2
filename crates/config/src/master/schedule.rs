//! When something is done again and again: every so long, or at the moments that five cron fields name.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::quote::cut;
use crate::units::parse_duration;

/// A schedule as it was written, understood.
///
/// The five fields of cron are minute, hour, day of the month, month and day of the week (0 and 7 = Sunday), in UTC.
/// Where both a day of the month and a day of the week are named, one of them is enough, as cron has it everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schedule {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Every(Duration),
    Cron(Cron),
}

/// What is done more often than this is no schedule but a loop.
const SHORTEST: Duration = Duration::from_secs(1);

/// The allowed values of each field, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    /// Sunday is bit 0.
    weekdays: u64,
    /// Whether days of the month and of the week are both named: then either is enough.
    either_day: bool,
}

/// A field of a cron line.
struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    /// Words for values, the first one for `low`.
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        low: 0,
        high: 59,
        names: &[],
    },
    Field {
        name: "hour",
        low: 0,
        high: 23,
        names: &[],
    },
    Field {
        name: "day of the month",
        low: 1,
        high: 31,
        names: &[],
    },
    Field {
        name: "month",
        low: 1,
        high: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Field {
        name: "day of the week",
        low: 0,
        high: 7,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

/// What other readers of cron fields take in their place, after an `@`.
const NICKNAMES: [(&str, &str); 7] = [
    ("hourly", "0 * * * *"),
    ("daily", "0 0 * * *"),
    ("midnight", "0 0 * * *"),
    ("weekly", "0 0 * * 0"),
    ("monthly", "0 0 1 * *"),
    ("yearly", "0 0 1 1 *"),
    ("annually", "0 0 1 1 *"),
];

/// Days in each month, at most.
const MONTHS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
/// Days to look ahead: the 29th of February is at most eight years away.
const HORIZON: usize = 8 * 366 + 1;

impl Schedule {
    /// Reads a duration of a second or more, or five cron fields.
    ///
    /// # Errors
    /// What the text must be, and which part of it is not.
    pub fn parse(text: &str) -> Result<Self, String> {
        let kind = match parse_duration(text) {
            Ok(every) if every < SHORTEST => {
                return Err(format!("must be 1s or longer, not \"{}\"", cut(text)));
            }
            Ok(every) => Kind::Every(every),
            Err(_) => Kind::Cron(Cron::parse(text)?),
        };
        Ok(Self {
            text: text.to_owned(),
            kind,
        })
    }

    /// The text that it was read from.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first moment after `since` (microseconds since 1970, in and out); `None` = beyond all calendars.
    pub fn next_after(&self, since: i64) -> Option<i64> {
        match &self.kind {
            Kind::Every(every) => since.checked_add(i64::try_from(every.as_micros()).ok()?),
            Kind::Cron(cron) => cron.next_after(since),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Schedule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.text
    }
}

impl Cron {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!(
                "must be a duration like \"24h\" or five cron fields like \"0 3 * * *\", not \"{}\"{why}",
                cut(text)
            )
        };
        if let Some(name) = text.strip_prefix('@') {
            let fields = NICKNAMES.iter().find(|(known, _)| *known == name);
            let instead = fields.map_or_else(String::new, |(_, fields)| {
                format!("; \"{fields}\" means the same")
            });
            return Err(wrong(format!(
                ": names of schedules are not known here{instead}"
            )));
        }
        let mut fields = text.split_whitespace();
        let mut sets = [0; 5];
        let mut named = [false; 5];
        for (place, field) in FIELDS.iter().enumerate() {
            let given = fields.next().ok_or_else(|| wrong(String::new()))?;
            let set = field.parse(given).map_err(|part| {
                wrong(format!(
                    ": \"{}\" is no {} (\"*\" or {} to {}, ranges, steps, lists)",
                    cut(part),
                    field.name,
                    field.low,
                    field.high
                ))
            })?;
            sets[place] = set;
            named[place] = set != field.all();
        }
        if fields.next().is_some() {
            return Err(wrong(String::new()));
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let cron = Self {
            minutes,
            hours,
            days,
            months,
            weekdays,
            either_day: named[2] && named[4],
        };
        if cron.ever() {
            Ok(cron)
        } else {
            Err(wrong(": no month named there has such a day".to_owned()))
        }
    }

    /// Whether any day of any year is meant.
    fn ever(&self) -> bool {
        let first = self.days.trailing_zeros();
        self.either_day
            || (1..=12)
                .zip(MONTHS)
                .any(|(month, length)| has(self.months, month) && first <= length)
    }

    fn next_after(&self, since: i64) -> Option<i64> {
        let since = Timestamp::from_microsecond(since).ok()?;
        let since = since.to_zoned(TimeZone::UTC).datetime();
        let mut date = since.date();
        // The minute of `since` has begun already.
        let mut from = i32::from(since.hour()) * 60 + i32::from(since.minute()) + 1;
        for _ in 0..=HORIZON {
            if self.is_day(date)
                && let Some((hour, minute)) = self.time_from(from)
            {
                let at = date.at(hour, minute, 0, 0);
                return TimeZone::UTC
                    .to_timestamp(at)
                    .ok()
                    .map(Timestamp::as_microsecond);
            }
            date = date.tomorrow().ok()?;
            from = 0;
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let day = has(self.days, date.day().unsigned_abs().into());
        let weekday = date.weekday().to_sunday_zero_offset().unsigned_abs();
        let weekday = has(self.weekdays, weekday.into());
        has(self.months, date.month().unsigned_abs().into())
            && if self.either_day {
                day || weekday
            } else {
                day && weekday
            }
    }

    /// The first hour and minute from this minute of the day on.
    fn time_from(&self, from: i32) -> Option<(i8, i8)> {
        (0..24_i8).find_map(|hour| {
            let minute = (0..60_i8).find(|minute| {
                i32::from(hour) * 60 + i32::from(*minute) >= from
                    && has(self.minutes, minute.unsigned_abs().into())
            })?;
            has(self.hours, hour.unsigned_abs().into()).then_some((hour, minute))
        })
    }
}

fn has(set: u64, value: u32) -> bool {
    set & (1 << value) != 0
}

impl Field {
    fn all(&self) -> u64 {
        let last = if self.high == 7 { 6 } else { self.high };
        (self.low..=last).fold(0, |set, value| set | 1 << value)
    }

    /// The values meant; the part that means none is the error.
    fn parse<'t>(&self, text: &'t str) -> Result<u64, &'t str> {
        text.split(',').try_fold(0, |set, part| {
            self.part(part).map(|more| set | more).ok_or(part)
        })
    }

    fn part(&self, part: &str) -> Option<u64> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step.parse().ok().filter(|step| *step > 0)?)),
            None => (part, None),
        };
        let (first, last) = if matches!(range, "*" | "?") {
            (self.low, self.high)
        } else if let Some((first, last)) = range.split_once('-') {
            (self.value(first)?, self.value(last)?)
        } else {
            let only = self.value(range)?;
            // A step from a single value goes on to the end.
            (only, if step.is_some() { self.high } else { only })
        };
        if first > last {
            return None;
        }
        let values = (first..=last).step_by(step.unwrap_or(1));
        // Both 0 and 7 are Sunday.
        Some(values.fold(0, |set, value| {
            set | 1 << if self.high == 7 { value % 7 } else { value }
        }))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let named = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text))
            .and_then(|place| u32::try_from(place).ok());
        match named {
            Some(place) => Some(self.low + place),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text
                .parse()
                .ok()
                .filter(|value| (self.low..=self.high).contains(value)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_microsecond()
    }

    #[test]
    fn the_next_moment_is_the_first_one_after() {
        for (schedule, since, next) in [
            ("24h", "2024-05-01T10:00:00.5Z", "2024-05-02T10:00:00.5Z"),
            ("1.5s", "2024-05-01T10:00:00Z", "2024-05-01T10:00:01.5Z"),
            (
                "* * * * *",
                "2024-05-01T10:00:59.9Z",
                "2024-05-01T10:01:00Z",
            ),
            ("0 3 * * *", "2024-05-01T02:59:59Z", "2024-05-01T03:00:00Z"),
            ("0 3 * * *", "2024-05-01T03:00:00Z", "2024-05-02T03:00:00Z"),
            ("0 3 * * *", "2024-12-31T03:00:30Z", "2025-01-01T03:00:00Z"),
            (
                "*/20 8-9 * * *",
                "2024-05-01T08:41:00Z",
                "2024-05-01T09:00:00Z",
            ),
            (
                "5/20 * * * *",
                "2024-05-01T08:26:00Z",
                "2024-05-01T08:45:00Z",
            ),
            (
                "59 23 31 * ?",
                "2024-05-31T23:59:00Z",
                "2024-07-31T23:59:00Z",
            ),
            (
                "0 0 29 feb *",
                "2096-03-01T00:00:00Z",
                "2104-02-29T00:00:00Z",
            ),
            (
                "0 0 * * mon",
                "2024-05-01T00:00:00Z",
                "2024-05-06T00:00:00Z",
            ),
            ("0 0 * * 7", "2024-05-01T00:00:00Z", "2024-05-05T00:00:00Z"),
            (
                "0 0 * * 5-7",
                "2024-05-04T12:00:00Z",
                "2024-05-05T00:00:00Z",
            ),
            // Either day is enough, where both are named.
            (
                "0 0 15 * FRI",
                "2024-05-01T00:00:00Z",
                "2024-05-03T00:00:00Z",
            ),
            (
                "0 0 15 * FRI",
                "2024-05-10T00:00:00Z",
                "2024-05-15T00:00:00Z",
            ),
            (
                "0 0 31 2 sun",
                "2024-02-01T00:00:00Z",
                "2024-02-04T00:00:00Z",
            ),
            (
                "0 0 1 JAN,jul *",
                "2024-02-01T00:00:00Z",
                "2024-07-01T00:00:00Z",
            ),
        ] {
            let parsed = Schedule::parse(schedule).unwrap();
            assert_eq!(parsed.next_after(at(since)), Some(at(next)), "{schedule}");
            assert_eq!(parsed.to_string(), schedule);
        }
    }

    #[test]
    fn moments_are_strictly_later_and_none_is_left_out() {
        // Monday to Friday at two times, over a change of the year.
        let schedule = Schedule::parse("30 6,18 * * 1-5").unwrap();
        let mut now = at("2023-12-25T00:00:00Z");
        let mut seen = 0;
        while now < at("2024-01-08T00:00:00Z") {
            let next = schedule.next_after(now).unwrap();
            assert!(next > now);
            assert_eq!(schedule.next_after(next - 1), Some(next));
            now = next;
            seen += 1;
        }
        assert_eq!(seen, 21);
    }

    #[test]
    fn what_never_comes_or_is_no_schedule_is_refused_with_the_part() {
        for (text, expected) in [
            ("sometimes", "five cron fields"),
            ("", "five cron fields"),
            ("0 3 * *", "five cron fields"),
            ("0 3 * * * *", "five cron fields"),
            ("60 3 * * *", "\"60\" is no minute"),
            (
                "@daily",
                "not \"@daily\": names of schedules are not known here; \"0 0 * * *\" means the same",
            ),
            ("@reboot", "names of schedules are not known here"),
            ("0 24 * * *", "\"24\" is no hour"),
            ("0 3 0 * *", "\"0\" is no day of the month"),
            ("0 3 * 13 *", "\"13\" is no month"),
            ("0 3 * mon *", "\"mon\" is no month"),
            ("0 3 * * 8", "\"8\" is no day of the week"),
            ("mon 3 * * *", "\"mon\" is no minute"),
            ("0 +3 * * *", "\"+3\" is no hour"),
            ("5-1 3 * * *", "\"5-1\" is no minute"),
            ("*/0 3 * * *", "\"*/0\" is no minute"),
            ("1,,2 3 * * *", "\"\" is no minute"),
            ("0 0 31 2,4 *", "no month named there has such a day"),
            ("0", "must be 1s or longer"),
            ("999ms", "must be 1s or longer"),
        ] {
            let reported = Schedule::parse(text).unwrap_err();
            assert!(reported.contains(expected), "{text}: {reported}");
        }
    }

    #[test]
    fn beyond_all_calendars_there_is_no_next_moment() {
        for text in ["1h", "0 3 * * *"] {
            assert_eq!(Schedule::parse(text).unwrap().next_after(i64::MAX), None);
        }
    }
}
