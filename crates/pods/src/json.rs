//! Reading and changing JSON of which only parts are known.

use serde_json::{Map, Value};

/// An object of JSON.
pub(crate) type Object = Map<String, Value>;

/// The text at a path of keys.
pub(crate) fn text<'v>(value: &'v Value, path: &[&str]) -> Option<&'v str> {
    at(value, path)?.as_str()
}

/// The text at a path of keys that is not empty.
pub(crate) fn word(value: &Value, path: &[&str]) -> Option<String> {
    text(value, path)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// What is at a path of keys.
pub(crate) fn at<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| value.get(*key))
}

/// The elements at a path of keys; none where there is no list.
pub(crate) fn list<'v>(value: &'v Value, path: &[&str]) -> &'v [Value] {
    at(value, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The texts of a map at a path of keys.
pub(crate) fn texts(value: &Value, path: &[&str]) -> std::collections::BTreeMap<String, String> {
    let members = at(value, path).and_then(Value::as_object);
    let members = members.into_iter().flatten();
    members
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The object `key` of an object, made or put in place of something else where there is none.
pub(crate) fn object<'o>(parent: &'o mut Object, key: &str) -> &'o mut Object {
    let member = parent.entry(key).or_insert_with(empty);
    if !member.is_object() {
        *member = empty();
    }
    match member {
        Value::Object(object) => object,
        _ => unreachable!("it has just been made an object"),
    }
}

/// Takes the list `key` out of an object; empty where there is none.
pub(crate) fn take_list(parent: &mut Object, key: &str) -> Vec<Value> {
    match parent.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// Takes the object `key` out of an object; empty where there is none.
pub(crate) fn take_object(parent: &mut Object, key: &str) -> Object {
    match parent.remove(key) {
        Some(Value::Object(object)) => object,
        _ => Object::new(),
    }
}

/// An object of these members.
pub(crate) fn map<K: Into<String>, V: Into<Value>>(
    members: impl IntoIterator<Item = (K, V)>,
) -> Object {
    let members = members.into_iter();
    members
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

fn empty() -> Value {
    Value::Object(Object::new())
}
