//! Values as YAML text.

use std::fmt::Write;

use serde_json::Value;

use super::{Tree, parse_scalar};

/// The value as YAML in block style. Reading the text again gives the same value.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

/// Writes a value that starts on a line of its own.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                pad(indent, out);
                out.push_str(&text(key));
                out.push(':');
                after_marker(member, indent, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                pad(indent, out);
                out.push('-');
                match item {
                    // The first key is on the line of the hyphen.
                    Value::Object(members) if !members.is_empty() => {
                        let mut inner = String::new();
                        block(item, indent + 2, &mut inner);
                        out.push(' ');
                        out.push_str(&inner[indent + 2..]);
                    }
                    item => after_marker(item, indent, out),
                }
            }
        }
        other => {
            pad(indent, out);
            out.push_str(&inline(other));
            out.push('\n');
        }
    }
}

/// Writes a value after `key:` or `-`.
fn after_marker(value: &Value, indent: usize, out: &mut String) {
    let nested = match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if nested {
        out.push('\n');
        block(value, indent + 2, out);
    } else {
        out.push(' ');
        out.push_str(&inline(value));
        out.push('\n');
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        // Scalars and empty lists and maps are written in YAML as in JSON.
        other => other.to_string(),
    }
}

/// A string, plain where that reads back as the same string.
fn text(string: &str) -> String {
    let plain_start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '/';
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=+".contains(c);
    if string.starts_with(plain_start)
        && string.chars().all(plain)
        && parse_scalar(string).is_ok_and(|tree| matches!(tree, Tree::Text(_)))
        && !matches!(string, "y" | "n" | "yes" | "no" | "on" | "off" | "Y" | "N")
    {
        return string.to_owned();
    }
    // A double-quoted JSON string, with everything that YAML counts as a line break or as not printable escaped.
    let mut out = String::from("\"");
    for c in string.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control()
                || matches!(
                    c,
                    '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
                ) =>
            {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
