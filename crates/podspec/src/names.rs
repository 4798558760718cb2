//! Keys in snake case, which configurations may have.

use serde_json::{Map, Value};

use crate::Type;

/// A value of type `of` with those of its keys that are in snake case in camel case. A key that is given in both forms has
/// the value of Kubernetes' form; keys that users choose, such as those of labels, and unknown ones stay.
#[must_use]
pub fn camel_case_keys(value: Value, of: &Type) -> Value {
    let Value::Object(members) = value else {
        return value;
    };
    let mut named = Map::new();
    for (key, value) in members {
        let Some(field) = of.field_spelled(&key) else {
            named.insert(key, value);
            continue;
        };
        let value = match (value, field.shape.inner()) {
            (Value::Array(items), Some(inner)) => items
                .into_iter()
                .map(|item| camel_case_keys(item, inner))
                .collect(),
            (value, Some(inner)) => camel_case_keys(value, inner),
            (value, None) => value,
        };
        if field.name == key {
            named.insert(key, value);
        } else {
            named.entry(field.name).or_insert(value);
        }
    }
    named.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod;

    #[test]
    fn known_keys_in_snake_case_are_spelt_as_kubernetes_does() {
        let given = json!({
            "metadata": {"labels": {"node_selector": "x"}},
            "spec": {
                "node_selector": {"zone_name": "a"},
                "priorityClassName": "high",
                "priority_class_name": "low",
                "init_containers": [{"name": "first", "volume_mounts": [{"name": "v", "mount_path": "/v"}]}, 7],
                "new_in_kubernetes": {"a_b": 1},
                "affinity": {"node_affinity": {"required_during_scheduling_ignored_during_execution":
                    {"node_selector_terms": [{"match_expressions": []}]}}},
            },
        });
        let expected = json!({
            "metadata": {"labels": {"node_selector": "x"}},
            "spec": {
                "nodeSelector": {"zone_name": "a"},
                "priorityClassName": "high",
                "initContainers": [{"name": "first", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, 7],
                "new_in_kubernetes": {"a_b": 1},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchExpressions": []}]}}},
            },
        });
        assert_eq!(camel_case_keys(given, pod()), expected);
    }
}
