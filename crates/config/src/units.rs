//! Sizes and durations as users write them.

use crate::quote::cut;
use std::fmt::Write;
use std::time::Duration;

/// A size in bytes as text: a number, an optional space, then optionally one of `k m g t p` in any case with an optional
/// `b` or `ib` behind it, or just `b`. Multiples are binary: `4g` = `4 GiB` = 4294967296. A fraction is cut to whole bytes.
///
/// # Errors
/// A sentence that names the text and the accepted forms.
pub fn parse_byte_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{}\" is not a size; write bytes or a number with a unit, like \"64m\" or \"4 GiB\"",
            cut(text)
        )
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let exponent = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        "p" | "pb" | "pib" => 5,
        _ => return Err(wrong()),
    };
    let multiple = 1_u64 << (10 * exponent);
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(multiple)
            .ok_or_else(|| format!("\"{}\" is too large a size", cut(text)));
    }
    let (whole, fraction) = number.split_once('.').ok_or_else(wrong)?;
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(wrong());
    }
    let value: f64 = number.parse().map_err(|_| wrong())?;
    // Only the fraction needs a float, and 2^63 bytes are far beyond any memory.
    #[expect(clippy::cast_precision_loss, reason = "a power of two is exact")]
    let bytes = value * multiple as f64;
    if bytes >= 9_223_372_036_854_775_808.0 {
        return Err(format!("\"{}\" is too large a size", cut(text)));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative and below 2^63"
    )]
    Ok(bytes as u64)
}

/// A duration as text: one or more of a decimal number and a unit (`h`, `m`, `s`, `ms`, `us`, `ns`), like `1h30m` or `1.5s`;
/// `0` needs no unit. Never negative.
///
/// # Errors
/// A sentence that names the text and the accepted form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "\"{}\" is not a duration; write a number with a unit, like \"90s\" or \"1h30m\"",
            cut(text)
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let nanoseconds: u64 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(wrong()),
        };
        total = times(number, nanoseconds)
            .ok_or_else(wrong)
            .and_then(|part| {
                total
                    .checked_add(part)
                    .filter(|sum| *sum <= Duration::from_secs(MAX_SECONDS))
                    .ok_or_else(|| format!("\"{}\" is too long a duration", cut(text)))
            })?;
        rest = tail;
    }
    Ok(total)
}

/// The longest duration accepted: about 292 years, as much as 63 bits of nanoseconds hold.
const MAX_SECONDS: u64 = 9_223_372_036;

/// `number` (digits with at most one point) times a unit, exactly, cut to whole nanoseconds.
fn times(number: &str, nanoseconds: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut total = u128::from(whole) * u128::from(nanoseconds);
    // Digits beyond the eighteenth are below a nanosecond of an hour.
    let fraction = &fraction[..fraction.len().min(18)];
    if !fraction.is_empty() {
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        total += u128::from(fraction.parse::<u64>().ok()?) * u128::from(nanoseconds) / scale;
    }
    let seconds = u64::try_from(total / 1_000_000_000).ok()?;
    let rest = u32::try_from(total % 1_000_000_000).ok()?;
    Some(Duration::new(seconds, rest))
}

/// A duration as the text that [`parse_duration`] reads: `1h30m`, `25s`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut out = String::new();
    let seconds = duration.as_secs();
    let nanoseconds = duration.subsec_nanos();
    for (value, unit) in [
        (u128::from(seconds / 3600), "h"),
        (u128::from(seconds / 60 % 60), "m"),
        (u128::from(seconds % 60), "s"),
        (u128::from(nanoseconds / 1_000_000), "ms"),
        (u128::from(nanoseconds / 1_000 % 1_000), "us"),
        (u128::from(nanoseconds % 1_000), "ns"),
    ] {
        if value > 0 {
            // Writing to a string cannot fail.
            let _ = write!(out, "{value}{unit}");
        }
    }
    if out.is_empty() {
        out.push_str("0s");
    }
    out
}

/// Durations in serialised configurations: text, as users write them.
pub(crate) mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::format_duration(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(reader)?;
        super::parse_duration(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn byte_sizes_are_binary_and_forgiving() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("1b", 1),
            ("1 B", 1),
            ("1k", 1 << 10),
            ("1KB", 1 << 10),
            ("1 KiB", 1 << 10),
            ("64m", 64 << 20),
            ("1.5g", 3 << 29),
            ("4 GiB", 4 << 30),
            ("2T", 2 << 40),
            ("1pib", 1 << 50),
        ] {
            assert_eq!(parse_byte_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_byte_sizes_are_refused() {
        for text in [
            "",
            "giga",
            "1.gb",
            "1 gi",
            "1 i",
            "-1",
            "1  g",
            ".5g",
            "1.2.3",
            "1e3",
            "g",
            "1 x",
            "99999999999p",
            "99999999.5p",
        ] {
            assert!(parse_byte_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_follow_the_usual_form() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("25s", 25_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("300ms", 300),
            ("1h10m10s", 4_210_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1d",
            "1 s",
            "1.2.3s",
            "..s",
            "99999999999h",
            "9999999999999999999999s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(format_duration(Duration::from_mins(90)), "1h30m");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    proptest! {
        #[test]
        fn a_printed_duration_reads_back_the_same(seconds in 0..9_000_000_000_u64, nanos in 0..1_000_000_000_u32) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-z. µ]{0,20}") {
            let _ = (parse_byte_size(&text), parse_duration(&text));
        }
    }
}
