//! Patches of the three kinds that the API takes.

use det_podspec::{ListMerge, Type, type_named};
use serde_json::Value;

use crate::failure::Failure;
use crate::values::{object, text};

/// Lists outside of what users write in pods whose members a strategic merge patch merges, and the key of their members: of
/// statuses, and of nodes.
const OTHER_MERGE_KEYS: &[(&str, &str)] = &[
    ("conditions", "type"),
    ("containerStatuses", "name"),
    ("ephemeralContainerStatuses", "name"),
    ("initContainerStatuses", "name"),
    ("taints", "key"),
];

/// JSON merge patch (RFC 7396).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object(target);
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Strategic merge patch of an object: as [`merge`], but that lists with a key are merged member by member, sets such as
/// finalizers are united, and `$patch` replaces or deletes. Which lists have a key in pods is what [`det_podspec`] has.
pub(crate) fn strategic(target: &mut Value, patch: &Value) {
    let of = match text(target, "/kind") {
        "Pod" => Some(det_podspec::pod()),
        _ => None,
    };
    within(target, patch, of);
}

/// The type of the value of a key, as far as it is one that a pod contains.
fn type_of(of: Option<&'static Type>, key: &str) -> Option<&'static Type> {
    match (of, key) {
        (Some(of), key) => of.field(key)?.shape.inner(),
        (None, "metadata") => type_named("ObjectMeta"),
        // Those of Jobs and the like are pods.
        (None, "template") => Some(det_podspec::pod()),
        (None, _) => None,
    }
}

/// How the list of a key merges.
fn merge_of(of: Option<&'static Type>, key: &str) -> ListMerge {
    let of_pod = of.and_then(|of| of.field(key)).map(|field| field.merge);
    let other = || {
        let known = OTHER_MERGE_KEYS.iter().find(|(list, _)| *list == key);
        known.map_or(ListMerge::Atomic, |(_, key)| ListMerge::By {
            key,
            one_source: false,
        })
    };
    of_pod.unwrap_or_else(other)
}

fn within(target: &mut Value, patch: &Value, of: Option<&'static Type>) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if text(patch, "/$patch") == "replace" {
        *target = patch.clone();
        object(target).remove("$patch");
        return;
    }
    let target = object(target);
    for (key, value) in fields {
        if value.is_null() {
            target.remove(key);
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        if text(value, "/$patch") == "delete" {
            target.remove(key);
            continue;
        }
        let place = target.entry(key.clone()).or_insert(Value::Null);
        let inner = type_of(of, key);
        match (value, merge_of(of, key)) {
            (Value::Array(members), ListMerge::By { key, .. }) => {
                merge_members(place, members, (key, inner));
            }
            (Value::Array(members), ListMerge::Set) => unite(place, members),
            _ => within(place, value, inner),
        }
    }
}

fn merge_members(target: &mut Value, members: &[Value], (key, of): (&str, Option<&'static Type>)) {
    let mut merged = match target.take() {
        Value::Array(old) => old,
        _ => Vec::new(),
    };
    if members
        .iter()
        .any(|member| text(member, "/$patch") == "replace")
    {
        merged.clear();
    }
    for member in members {
        let is_same = |old: &Value| old.get(key).is_some() && old.get(key) == member.get(key);
        match text(member, "/$patch") {
            "delete" => merged.retain(|old| !is_same(old)),
            "replace" if member.get(key).is_none() => {}
            _ => match merged.iter_mut().find(|old| is_same(old)) {
                Some(old) => within(old, member, of),
                None => merged.push(member.clone()),
            },
        }
    }
    *target = Value::Array(merged);
}

fn unite(target: &mut Value, members: &[Value]) {
    let mut united = match target.take() {
        Value::Array(old) => old,
        _ => Vec::new(),
    };
    for member in members {
        if !united.contains(member) {
            united.push(member.clone());
        }
    }
    *target = Value::Array(united);
}

/// JSON patch (RFC 6902): `add`, `replace`, `remove` and `test`.
pub(crate) fn json_patch(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    let Value::Array(operations) = patch else {
        return Err(Failure::bad_request("a JSON patch is an array"));
    };
    for operation in operations {
        let path = text(operation, "/path");
        let value = operation.get("value").cloned().unwrap_or(Value::Null);
        let is_done = match text(operation, "/op") {
            "add" => add(target, path, value),
            "replace" => target
                .pointer_mut(path)
                .map(|place| *place = value)
                .is_some(),
            "remove" => remove(target, path),
            "test" => target.pointer(path).unwrap_or(&Value::Null) == &value,
            other => {
                let message = format!("the operation {other:?} of a JSON patch is not known");
                return Err(Failure::bad_request(message));
            }
        };
        if !is_done {
            return Err(Failure::unprocessable_patch(text(operation, "/op"), path));
        }
    }
    Ok(())
}

/// The parent of a pointer's value, and the last step.
fn parent<'a>(target: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    let last = last.replace("~1", "/").replace("~0", "~");
    Some((target.pointer_mut(parent)?, last))
}

fn add(target: &mut Value, path: &str, value: Value) -> bool {
    match parent(target, path) {
        None if path.is_empty() => {
            *target = value;
            true
        }
        Some((Value::Object(object), last)) => {
            object.insert(last, value);
            true
        }
        Some((Value::Array(array), last)) => {
            let index = match last.as_str() {
                "-" => Some(array.len()),
                last => last.parse().ok(),
            };
            match index.filter(|index| *index <= array.len()) {
                Some(index) => {
                    array.insert(index, value);
                    true
                }
                None => false,
            }
        }
        _ => false,
    }
}

fn remove(target: &mut Value, path: &str) -> bool {
    match parent(target, path) {
        Some((Value::Object(object), last)) => object.remove(&last).is_some(),
        Some((Value::Array(array), last)) => match last.parse::<usize>() {
            Ok(index) if index < array.len() => {
                array.remove(index);
                true
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_replaces_lists_and_removes_with_null() {
        let mut value = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(
            &mut value,
            &json!({"a": {"c": [3]}, "d": null, "e": {"f": 1}}),
        );
        assert_eq!(value, json!({"a": {"b": 1, "c": [3]}, "e": {"f": 1}}));
    }

    #[test]
    fn a_strategic_patch_merges_lists_by_key() {
        let mut value = json!({"kind": "Pod", "spec": {"containers": [
            {"name": "a", "image": "x", "args": ["1"], "env": [{"name": "K", "value": "1"}]},
            {"name": "b"},
        ]}});
        let patch = json!({"metadata": {"finalizers": ["f"]}, "spec": {"containers": [
            {"name": "a", "args": ["2"], "env": [{"name": "L", "value": "2"}]},
            {"name": "b", "$patch": "delete"},
            {"name": "c"},
        ]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        strategic(&mut value, &patch);
        let more = json!({"metadata": {"finalizers": ["g"]}, "status": {"conditions": [{"type": "Ready", "reason": "r"}]}});
        strategic(&mut value, &more);
        let expected = json!({"kind": "Pod", "metadata": {"finalizers": ["f", "g"]}, "spec": {"containers": [
            {"name": "a", "image": "x", "args": ["2"],
             "env": [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}]},
            {"name": "c"},
        ]}, "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}]}});
        assert_eq!(value, expected);
        // Lists of other objects have no keys, except those of their metadata and their pods.
        let mut job = json!({"kind": "Job", "spec": {"ports": [{"containerPort": 1}],
            "template": {"spec": {"volumes": [{"name": "v"}]}}}});
        let patch = json!({"spec": {"ports": [{"containerPort": 2}],
            "template": {"spec": {"volumes": [{"name": "w"}]}}}});
        strategic(&mut job, &patch);
        assert_eq!(job["spec"]["ports"], json!([{"containerPort": 2}]));
        let volumes = &job["spec"]["template"]["spec"]["volumes"];
        assert_eq!(*volumes, json!([{"name": "v"}, {"name": "w"}]));
    }

    #[test]
    fn a_json_patch_is_done_whole_or_fails() {
        let mut value = json!({"a": [1, 2], "b/c": 1});
        let patch = json!([
            {"op": "test", "path": "/a/0", "value": 1},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "remove", "path": "/a/0"},
            {"op": "replace", "path": "/b~1c", "value": 2},
        ]);
        json_patch(&mut value, &patch).unwrap();
        assert_eq!(value, json!({"a": [2, 3], "b/c": 2}));
        for patch in [
            json!([{"op": "test", "path": "/a/0", "value": 9}]),
            json!([{"op": "remove", "path": "/a/9"}]),
            json!([{"op": "add", "path": "/x/y/z", "value": 9}]),
            json!([{"op": "move", "path": "/x"}]),
            json!({}),
        ] {
            assert!(json_patch(&mut value.clone(), &patch).is_err(), "{patch}");
        }
    }
}
