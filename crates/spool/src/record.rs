//! Records: the lines of a task's log.

use det_ids::{LogLevel, LogStream};
use serde::{Deserialize, Serialize, Serializer};

/// One line that a task wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the line was read, in microseconds since 1970 UTC.
    #[serde(rename = "t")]
    pub timestamp_micros: i64,
    /// The stream on which the task wrote it.
    #[serde(rename = "s")]
    pub stdtype: LogStream,
    /// Rank of the worker that wrote it, when the line gave it.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub rank_id: Option<u32>,
    /// Severity, when the line gave it.
    #[serde(
        rename = "v",
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "short"
    )]
    pub level: Option<LogLevel>,
    /// The text without its line end.
    #[serde(rename = "l")]
    pub log: String,
    /// The outage that this line reports, as data for the master; `None` for other lines.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

/// A period in which records could not be written to the spool's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// When the first record was refused, in microseconds since 1970 UTC.
    #[serde(rename = "f")]
    pub since_micros: i64,
    /// When it ended, or when the task's end stopped waiting for that; in microseconds since 1970 UTC.
    #[serde(rename = "t")]
    pub until_micros: i64,
    /// Number of lines that were lost.
    #[serde(rename = "n")]
    pub lost: u64,
    /// The error of the operating system.
    #[serde(rename = "c")]
    pub cause: String,
}

/// Spools have the short words of levels.
#[expect(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field by reference"
)]
fn short<S: Serializer>(level: &Option<LogLevel>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(LogLevel::word).serialize(serializer)
}

/// Microseconds since 1970 as RFC 3339 UTC with six fraction digits: `2022-03-02T02:15:18.299569Z`.
pub fn rfc3339(micros: i64) -> String {
    let seconds = micros.div_euclid(1_000_000);
    let fraction = micros.rem_euclid(1_000_000);
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// Gregorian date of a day counted from 1970-01-01.
///
/// Counts in years that begin in March, so that the leap day is the last of a year, and in eras of 400 years, which all
/// have 146,097 days.
fn civil_date(day: i64) -> (i64, i64, i64) {
    // There are 719,468 days between 0000-03-01 and 1970-01-01.
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, which repeats: 153 days for five months.
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_with_microseconds() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_646_187_318_299_569, "2022-03-02T02:15:18.299569Z"),
            (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00.000000Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(rfc3339(micros), text);
        }
    }
}
