//! Points in time as RFC 3339 text.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};

use super::scalar::{named_scalar, scalar_schema};
use super::{WireError, de};

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A point in time: microseconds since 1970-01-01T00:00:00Z.
///
/// Written as RFC 3339 in UTC with `Z` and 0, 3 or 6 fraction digits, whichever suffice. Read from RFC 3339 with any
/// offset; digits beyond the sixth are cut off, and a time without an offset is taken as UTC, because some clients send
/// what their user typed. Years run from 1 to 9999, which is what clients can hold; a value outside is written as the
/// nearest time within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// 0001-01-01T00:00:00Z.
    pub const MIN: Self = Self(-62_135_596_800 * MICROS_PER_SECOND);
    /// 9999-12-31T23:59:59.999999Z.
    pub const MAX: Self = Self(253_402_300_800 * MICROS_PER_SECOND - 1);

    /// Microseconds since 1970-01-01T00:00:00Z.
    pub fn micros(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = (*self).clamp(Self::MIN, Self::MAX).0;
        let seconds = time.div_euclid(MICROS_PER_SECOND);
        let micros = time.rem_euclid(MICROS_PER_SECOND);
        let (year, month, day) = date_of(seconds.div_euclid(SECONDS_PER_DAY));
        let second = seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match micros {
            0 => {}
            _ if micros % 1000 == 0 => write!(f, ".{:03}", micros / 1000)?,
            _ => write!(f, ".{micros:06}")?,
        }
        f.write_str("Z")
    }
}

impl FromStr for Timestamp {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self, WireError> {
        parse(text.trim()).ok_or_else(|| {
            de::expected(
                "an RFC 3339 time such as 2025-01-31T12:00:00Z",
                &Value::String(text.to_owned()),
            )
        })
    }
}

/// Reads the text from front to back, piece by piece.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// A number of exactly `digits` digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        let mut number = 0;
        for byte in head {
            number = number * 10 + i64::from(char::from(*byte).to_digit(10)?);
        }
        self.0 = rest;
        Some(number)
    }

    /// One byte out of `choice`.
    fn one_of(&mut self, choice: &[u8]) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        choice.contains(&first).then(|| {
            self.0 = rest;
            first
        })
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let mut reader = Reader(text.as_bytes());
    let year = reader.number(4)?;
    reader.one_of(b"-")?;
    let month = reader.number(2)?;
    reader.one_of(b"-")?;
    let day = reader.number(2)?;
    reader.one_of(b"Tt ")?;
    let hour = reader.number(2)?;
    reader.one_of(b":")?;
    let minute = reader.number(2)?;
    reader.one_of(b":")?;
    let second = reader.number(2)?;
    let micros = match reader.one_of(b".,") {
        None => 0,
        Some(_) => fraction(&mut reader)?,
    };
    let offset_minutes = offset(&mut reader)?;
    let valid = reader.0.is_empty()
        && year >= 1
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !valid {
        return None;
    }
    let minutes = (days_of(year, month, day) * 24 + hour) * 60 + minute - offset_minutes;
    let time = Timestamp((minutes * 60 + second) * MICROS_PER_SECOND + micros);
    (Timestamp::MIN..=Timestamp::MAX)
        .contains(&time)
        .then_some(time)
}

/// The digits behind the point as microseconds, further ones cut off.
fn fraction(reader: &mut Reader<'_>) -> Option<i64> {
    let mut micros = 0;
    let mut digits = 0_u32;
    while let Some(digit) = reader.number(1) {
        if digits < 6 {
            micros = micros * 10 + digit;
        }
        digits = digits.saturating_add(1);
    }
    (digits > 0).then(|| micros * 10_i64.pow(6_u32.saturating_sub(digits)))
}

/// Minutes east of UTC: `Z`, `+02:00`, `+0200`, or nothing.
fn offset(reader: &mut Reader<'_>) -> Option<i64> {
    if reader.0.is_empty() || reader.one_of(b"Zz").is_some() {
        return Some(0);
    }
    let sign = if reader.one_of(b"+-")? == b'-' { -1 } else { 1 };
    let hours = reader.number(2)?;
    reader.one_of(b":");
    let minutes = reader.number(2)?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

// The two conversions below count in years that begin on the first of March, so that the leap day comes last and the
// months' lengths follow (153 m + 2) / 5; 400 such years always have 146,097 days.

/// Days from 1970-01-01 to this date of the proleptic Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_of`]: year, month, day.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

named_scalar!(Timestamp, "an RFC 3339 time", |value| match &value {
    Value::String(text) => text.parse(),
    _ => Err(de::expected("an RFC 3339 time", &value)),
});

scalar_schema!(
    Timestamp,
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .description(Some("a point in time, RFC 3339"))
);
