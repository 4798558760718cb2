//! Query strings: repeated keys, dotted nesting, text for every scalar.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::WireError;
use super::de::{Node, Origin};

/// No message of the API nests deeper in a query (`experimentIdFilter.incl` has two levels). Keys beyond it belong to
/// no field and are ignored like any unknown one; the bound keeps hostile keys from building deep values.
const MAX_LEVELS: usize = 8;

/// Reads the query string of a request (without the question mark).
///
/// Both spellings of a name are known, repeated keys make lists, the last occurrence of a scalar counts, unknown keys
/// are ignored.
///
/// # Errors
/// A known field's text cannot be read as its type. The error names the field.
pub fn decode_query<T: DeserializeOwned + Default>(query: &str) -> Result<T, WireError> {
    let mut root = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
        let key = unescape(key)?;
        let text = unescape(text).map_err(|error| error.under_field(&key))?;
        insert(&mut root, &key, text);
    }
    T::deserialize(Node::new(Value::Object(root), Origin::Query))
}

/// Writes a query string that [`decode_query`] reads back: unset options, empty texts and empty lists are left out.
///
/// # Errors
/// Only for types that JSON cannot represent; this crate has none.
pub fn encode_query<T: Serialize>(query: &T) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    write(&mut text, "", &serde_json::to_value(query)?);
    Ok(text)
}

fn insert(root: &mut Map<String, Value>, key: &str, text: String) {
    let mut segments: Vec<String> = key.split('.').map(camel_case).collect();
    let Some(last) = segments.pop() else { return };
    if segments.len() >= MAX_LEVELS {
        return;
    }
    let mut map = root;
    for segment in segments {
        let slot = map.entry(segment).or_insert(Value::Null);
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        let Value::Object(inner) = slot else { return };
        map = inner;
    }
    let slot = map.entry(last).or_insert_with(|| Value::Array(Vec::new()));
    // `a.b=1&a=2`: the message form of `a` stays.
    if let Value::Array(occurrences) = slot {
        occurrences.push(Value::String(text));
    }
}

/// The camel case spelling of a name, which is what query types use: keys in either spelling are then one key, whose
/// occurrences keep their order.
fn camel_case(name: &str) -> String {
    let mut spelled = String::with_capacity(name.len());
    let mut raise = false;
    for letter in name.chars() {
        if letter == '_' {
            raise = true;
        } else if std::mem::take(&mut raise) {
            spelled.push(letter.to_ascii_uppercase());
        } else {
            spelled.push(letter);
        }
    }
    spelled
}

/// Decodes `application/x-www-form-urlencoded`. A percent sign without two hexadecimal digits is kept.
fn unescape(text: &str) -> Result<String, WireError> {
    let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let coded = text.as_bytes();
    let mut plain = Vec::with_capacity(coded.len());
    let mut at = 0;
    while let Some(&byte) = coded.get(at) {
        at += 1;
        match (byte, hex(coded.get(at)), hex(coded.get(at + 1))) {
            (b'%', Some(high), Some(low)) => {
                // Two hexadecimal digits are below 256.
                plain.push(u8::try_from(high * 16 + low).unwrap_or(u8::MAX));
                at += 2;
            }
            (b'+', _, _) => plain.push(b' '),
            _ => plain.push(byte),
        }
    }
    String::from_utf8(plain).map_err(|_| WireError::new("the query is not UTF-8 text"))
}

fn write(text: &mut String, key: &str, value: &Value) {
    let scalar = match value {
        Value::Null => return,
        Value::Array(elements) => {
            for element in elements {
                write(text, key, element);
            }
            return;
        }
        Value::Object(entries) => {
            for (name, value) in entries {
                if key.is_empty() {
                    write(text, name, value);
                } else {
                    write(text, &format!("{key}.{name}"), value);
                }
            }
            return;
        }
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(scalar) if scalar.is_empty() => return,
        Value::String(scalar) => scalar.clone(),
    };
    if !text.is_empty() {
        text.push('&');
    }
    escape(text, key);
    text.push('=');
    escape(text, &scalar);
}

fn escape(text: &mut String, plain: &str) {
    for byte in plain.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            for digit in [byte >> 4, byte & 0xf] {
                let digit = char::from_digit(u32::from(digit), 16).unwrap_or('0');
                text.push(digit.to_ascii_uppercase());
            }
        }
    }
}
