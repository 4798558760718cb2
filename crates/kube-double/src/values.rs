//! Reading and changing JSON objects whose shape is not certain: what is absent, or of another type, reads as empty.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// The string at a pointer; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The array at a pointer; empty if there is none.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The integer at a pointer.
pub(crate) fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

/// Whether there is `true` at a pointer.
pub(crate) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool) == Some(true)
}

/// The entries of the object at a pointer that are strings.
pub(crate) fn texts<'a>(
    value: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    value
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// The value as an object, which it becomes if it is none.
pub(crate) fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(object) => object,
        // It has just become one.
        _ => unreachable!("the value is an object"),
    }
}

/// Sets the value at a path, making objects on the way.
pub(crate) fn set(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    *at(value, path) = new.into();
}

/// Sets the value at a path unless there is one.
pub(crate) fn set_default(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    let place = at(value, path);
    if place.is_null() {
        *place = new.into();
    }
}

/// Appends to the array at a path, making it if there is none.
pub(crate) fn push(value: &mut Value, path: &[&str], new: Value) {
    match at(value, path) {
        Value::Array(array) => array.push(new),
        other => *other = json!([new]),
    }
}

/// The place of a value, with objects made on the way; `null` if it is new.
fn at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(value, |value, step| {
        object(value).entry(*step).or_insert(Value::Null)
    })
}

/// Removes the value at a path.
pub(crate) fn unset(value: &mut Value, path: &[&str]) {
    let Some((last, way)) = path.split_last() else {
        return;
    };
    let mut place = value;
    for step in way {
        match place.get_mut(*step) {
            Some(next) => place = next,
            None => return,
        }
    }
    if let Some(object) = place.as_object_mut() {
        object.remove(*last);
    }
}

/// A moment as the API writes it: UTC, whole seconds.
pub(crate) fn moment(after_seconds: i64) -> String {
    let now = Timestamp::now();
    let moment = now
        .checked_add(SignedDuration::from_secs(after_seconds))
        .unwrap_or(now);
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The status of a condition of an object; empty if it has none of that type.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == kind)
        .map(|condition| text(condition, "/status"))
        .unwrap_or_default()
}

/// Sets a condition of an object; its time of transition changes with its status only.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) {
    let old = list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == kind && text(condition, "/status") == status)
        .map(|condition| text(condition, "/lastTransitionTime").to_owned());
    let mut condition = json!({
        "type": kind,
        "status": status,
        "lastTransitionTime": old.unwrap_or_else(|| moment(0)),
    });
    for (key, value) in [("reason", reason), ("message", message)] {
        if !value.is_empty() {
            set(&mut condition, &[key], value);
        }
    }
    let conditions = at(object, &["status", "conditions"]);
    let Value::Array(conditions) = conditions else {
        *conditions = json!([condition]);
        return;
    };
    match conditions.iter_mut().find(|old| text(old, "/type") == kind) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}
