//! What a user customises of a pod, in the names of Kubernetes.

use det_podspec::{camel_case_keys, pod};
use serde_json::Value;

use crate::json::{self, Object};

/// Name of the task's container: what a user gives an entry of this name is merged into it.
pub(crate) const TASK_CONTAINER: &str = "determined-container";
/// Name of the init container that places supervisor and script.
pub(crate) const INIT_CONTAINER: &str = "determined-init-container";

/// A pod as a user customises it. What is of another shape than Kubernetes has it is left out; configurations with such
/// values were refused before.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserPod {
    /// `metadata.labels` of the pod.
    pub(crate) labels: Object,
    /// `metadata.annotations` of the pod.
    pub(crate) annotations: Object,
    /// The `spec` of the pod without its containers.
    pub(crate) spec: Object,
    /// Its containers but for the task's.
    pub(crate) containers: Vec<Value>,
    /// The init containers of the pod.
    pub(crate) init_containers: Vec<Value>,
    /// What it has for the task's container.
    pub(crate) task: Object,
}

impl UserPod {
    /// From `environment.pod_spec`, a pod with keys as Kubernetes has them or in snake case.
    pub(crate) fn of(pod_spec: Option<&Value>) -> Self {
        let pod_spec = pod_spec.map(|value| camel_case_keys(plain(value), pod()));
        let Some(Value::Object(mut pod)) = pod_spec else {
            return Self::default();
        };
        let mut metadata = json::take_object(&mut pod, "metadata");
        let mut spec = json::take_object(&mut pod, "spec");
        let mut task = Object::new();
        let mut containers = containers(&mut spec, "containers");
        containers.retain_mut(|container| {
            if name(container) != Some(TASK_CONTAINER) {
                return true;
            }
            if let Value::Object(container) = container {
                task = std::mem::take(container);
            }
            false
        });
        let mut init_containers = self::containers(&mut spec, "initContainers");
        init_containers.retain(|container| name(container) != Some(INIT_CONTAINER));
        Self {
            labels: texts(&mut metadata, "labels"),
            annotations: texts(&mut metadata, "annotations"),
            spec,
            containers,
            init_containers,
            task,
        }
    }
}

/// The name of a container, a volume or another element of a list.
pub(crate) fn name(element: &Value) -> Option<&str> {
    json::text(element, &["name"])
}

fn texts(metadata: &mut Object, key: &str) -> Object {
    let texts = json::take_object(metadata, key).into_iter();
    texts.filter(|(_, value)| value.is_string()).collect()
}

fn containers(spec: &mut Object, key: &str) -> Vec<Value> {
    let mut containers = json::take_list(spec, key);
    containers.retain(Value::is_object);
    containers
}

/// A value without nulls, which are no values, and without the directives of merges, which are done.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(key, value)| !key.starts_with('$') && !value.is_null())
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect::<Object>()
            .into(),
        Value::Array(items) => items
            .iter()
            .filter(|item| !item.is_null() && item.get("$patch").is_none())
            .map(plain)
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_in_snake_case_become_those_of_kubernetes() {
        let pod = UserPod::of(Some(&json!({
            "metadata": {"labels": {"team": "a", "number": 3}},
            "spec": {
                "node_selector": {"zone_name": "a"},
                "priorityClassName": "high",
                "priority_class_name": "low",
                "containers": [
                    {"name": "side", "volume_mounts": [{"name": "v", "mountPath": "/v"}]},
                    {"name": "determined-container", "security_context": {"run_as_user": 5, "privileged": true}},
                ],
                "init_containers": [{"name": "first"}, {"name": "determined-init-container"}],
                "new_in_kubernetes": {"a_b": 1},
            },
        })));
        assert_eq!(pod.labels, json::map([("team", "a")]));
        let spec = json!({"nodeSelector": {"zone_name": "a"}, "priorityClassName": "high", "new_in_kubernetes": {"a_b": 1}});
        assert_eq!(Value::from(pod.spec), spec);
        assert_eq!(
            pod.containers,
            [json!({"name": "side", "volumeMounts": [{"name": "v", "mountPath": "/v"}]})]
        );
        assert_eq!(
            Value::from(pod.task)["securityContext"],
            json!({"runAsUser": 5, "privileged": true})
        );
        assert_eq!(pod.init_containers, [json!({"name": "first"})]);
    }

    #[test]
    fn what_is_left_of_merges_and_what_is_no_value_goes() {
        let pod = UserPod::of(Some(&json!({
            "$patch": "merge",
            "spec": {"a": null, "tolerations": [{"$patch": "replace"}, {"key": "x", "effect": null}]},
        })));
        assert_eq!(
            Value::from(pod.spec),
            json!({"tolerations": [{"key": "x"}]})
        );
        for other in [json!(null), json!([1]), json!({"spec": [], "metadata": 3})] {
            assert!(UserPod::of(Some(&other)).spec.is_empty(), "{other}");
        }
    }
}
