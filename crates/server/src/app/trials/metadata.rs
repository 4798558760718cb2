//! What the metadata of a run may be.

use serde_json::{Map, Value};

use crate::error::{AppError, AppResult};

/// Limits of a run's metadata: `docs/contract/http-api.md`, "Metadata of runs".
const METADATA_DEPTH: usize = 10;
const METADATA_KEYS: usize = 1000;
const METADATA_KEY_CHARS: usize = 50;
const METADATA_TEXT_CHARS: usize = 5000;
const METADATA_ITEMS: usize = 100;

/// Refuses metadata beyond the documented limits, naming the key at fault.
pub(super) fn check(metadata: &Map<String, Value>) -> AppResult<()> {
    fn check_value(path: &str, value: &Value, depth: usize, keys: &mut usize) -> AppResult<()> {
        let refuse = |what: String| Err(AppError::invalid(format!("field \"{path}\": {what}")));
        if depth > METADATA_DEPTH {
            return refuse(format!(
                "metadata must not nest deeper than {METADATA_DEPTH} levels"
            ));
        }
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    *keys += 1;
                    if *keys > METADATA_KEYS {
                        return refuse(format!(
                            "metadata must not have more than {METADATA_KEYS} keys"
                        ));
                    }
                    let shown = key.escape_debug();
                    if key.is_empty() || key.chars().count() > METADATA_KEY_CHARS {
                        return refuse(format!(
                            "key \"{shown}\" must have 1 to {METADATA_KEY_CHARS} characters"
                        ));
                    }
                    if key.contains(['$', '.', '[', ']', '\0']) {
                        return refuse(format!(
                            "key \"{shown}\" must not contain \"$\", \".\", \"[\", \"]\" or NUL"
                        ));
                    }
                    check_value(&format!("{path}.{key}"), value, depth + 1, keys)?;
                }
            }
            Value::Array(items) => {
                if items.len() > METADATA_ITEMS {
                    return refuse(format!(
                        "a list must not have more than {METADATA_ITEMS} items, found {}",
                        items.len()
                    ));
                }
                for (index, item) in items.iter().enumerate() {
                    check_value(&format!("{path}[{index}]"), item, depth + 1, keys)?;
                }
            }
            Value::String(text)
                if text.chars().count() > METADATA_TEXT_CHARS || text.contains('\0') =>
            {
                return refuse(format!(
                    "a text must have at most {METADATA_TEXT_CHARS} characters and no NUL"
                ));
            }
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
        Ok(())
    }
    check_value("metadata", &Value::Object(metadata.clone()), 0, &mut 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(value: Value) -> AppResult<()> {
        let Value::Object(members) = value else {
            panic!("an object")
        };
        check(&members)
    }

    #[test]
    fn metadata_within_the_limits_are_taken() {
        metadata(json!({"a": {"b": [1, "x", null, true]}, "c": 1.5})).unwrap();
        metadata(json!({})).unwrap();
    }

    #[test]
    fn metadata_beyond_a_limit_are_refused_by_name() {
        let deep = (0..11).fold(json!(1), |inner, _| json!({ "k": inner }));
        let many: serde_json::Map<String, Value> =
            (0..1001).map(|n| (format!("k{n}"), json!(n))).collect();
        for (value, expected) in [
            (deep, "nest deeper than 10"),
            (Value::Object(many), "more than 1000 keys"),
            (
                json!({"x": {"a.b": 1}}),
                "field \"metadata.x\": key \"a.b\" must not contain",
            ),
            (json!({"k".repeat(51): 1}), "must have 1 to 50 characters"),
            (
                json!({"t": "x".repeat(5001)}),
                "field \"metadata.t\": a text must have at most 5000",
            ),
            (
                json!({"l": vec![0; 101]}),
                "field \"metadata.l\": a list must not have more than 100 items",
            ),
        ] {
            let message = metadata(value).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }
}
