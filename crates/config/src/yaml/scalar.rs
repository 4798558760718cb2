//! Plain scalars: which are null, booleans, numbers, and which are just text. YAML 1.2.2, section 10.3.2 (core schema).

use crate::quote::cut;
use serde_json::Number;

use super::Tree;

/// What an unquoted scalar means.
///
/// # Errors
/// A sentence for `.inf` and `.nan`, and for numbers too large for a double: JSON, in which configurations are stored
/// and handed to tasks, cannot carry them.
pub fn parse_scalar(text: &str) -> Result<Tree, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Tree::Null),
        "true" | "True" | "TRUE" => return Ok(Tree::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Tree::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(format!("\"{}\" is not a finite number", cut(text)));
    }
    if let Some(number) = radix(text) {
        return Ok(Tree::Number(number));
    }
    if !is_decimal(unsigned) {
        return Ok(Tree::Text(text.to_owned()));
    }
    if let Ok(number) = text.parse::<i64>() {
        return Ok(Tree::Number(number.into()));
    }
    if let Ok(number) = unsigned.parse::<u64>()
        && !text.starts_with('-')
    {
        return Ok(Tree::Number(number.into()));
    }
    text.parse::<f64>()
        .ok()
        .and_then(Number::from_f64)
        .map(Tree::Number)
        .ok_or_else(|| format!("\"{}\" is too large for a number", cut(text)))
}

/// What YAML 1.1 read where an unquoted scalar means something else now: booleans as words, integers with underscores, with
/// a leading zero (octal) and with colons (base 60). `None` when both read the same.
pub(super) fn in_yaml_1_1(text: &str) -> Option<String> {
    // The longest such integer that is worth a warning has the 26 characters of 64 bits in groups of three.
    if text.len() > 26 {
        return None;
    }
    match text {
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some("true".into()),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some("false".into()),
        _ => {}
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value = if digits.contains(':') {
        digits
            .split(':')
            .enumerate()
            .try_fold(0_u64, |sum, (index, part)| {
                let part: u64 = part.parse().ok().filter(|n| index == 0 || *n < 60)?;
                sum.checked_mul(60)?.checked_add(part)
            })?
    } else {
        let plain = digits.replace('_', "");
        let octal = plain.len() > 1 && plain.starts_with('0');
        if !octal && plain.len() == digits.len() {
            return None;
        }
        u64::from_str_radix(&plain, if octal { 8 } else { 10 }).ok()?
    };
    Some(format!("{sign}{value}"))
}

/// `0o17` and `0x1f`, without a sign.
fn radix(text: &str) -> Option<Number> {
    let (digits, radix) = match (text.strip_prefix("0o"), text.strip_prefix("0x")) {
        (Some(digits), _) => (digits, 8),
        (_, Some(digits)) => (digits, 16),
        _ => return None,
    };
    // `from_str_radix` would also take a sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().map(Number::from)
}

/// `[0-9]+ ( . [0-9]* )?` or `. [0-9]+`, then an optional exponent.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let good_mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    good_mantissa
        && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

/// The number as an integer, when it is a whole number within reach (`1.0` is 1).
pub(crate) fn integral(number: &Number) -> Option<i64> {
    if let Some(value) = number.as_i64() {
        return Some(value);
    }
    let value = number.as_f64().filter(|_| !number.is_u64())?;
    // Whole doubles up to 2^53 convert exactly.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be whole and small"
    )]
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then_some(value as i64)
}
