//! Query strings: repeated keys, dotted nesting, text for every scalar.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
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
    let spaced = text.replace('+', " ");
    let plain = percent_decode_str(&spaced).decode_utf8();
    plain
        .map(Cow::into_owned)
        .map_err(|_| WireError::new("the query is not UTF-8 text"))
}
