//! Pod specs: which fields a person may not set, and how two specs are merged. `experiment-config` reference §10.1, §12.4.
//!
//! Everything else about a pod spec is kept as it was written; giving it a meaning is the business of the Kubernetes
//! resource manager.

use std::collections::BTreeMap;

use crate::schema::Checker;
use crate::yaml::{Node, Tree};

/// The container that the system owns.
const TASK_CONTAINER: &str = "determined-container";
/// A reserved init container.
const INIT_CONTAINER: &str = "determined-init-container";

/// Fields of the task's container that the system sets, with advice.
const OWNED: &[(&str, &str)] = &[
    ("image", "use \"environment.image\""),
    ("imagePullPolicy", "use \"environment.force_pull_image\""),
    ("command", "use \"entrypoint\""),
    ("args", "use \"entrypoint\""),
    ("workingDir", "the working directory is set by the system"),
    ("ports", "use \"environment.proxy_ports\""),
    ("livenessProbe", "the system watches the task itself"),
    ("readinessProbe", "the system watches the task itself"),
    ("startupProbe", "the system watches the task itself"),
    ("lifecycle", "use a startup hook"),
    (
        "terminationMessagePath",
        "the system reports how the task ended",
    ),
    (
        "terminationMessagePolicy",
        "the system reports how the task ended",
    ),
];

/// Checks the value of `pod_spec`.
pub(crate) fn check(checker: &mut Checker, node: &mut Node) {
    if node.members().is_none() {
        let message = format!("must be a Kubernetes pod, not {}", node.kind());
        return checker.error(node.at.as_ref(), message);
    }
    for key in ["name", "name_space"] {
        forbid(checker, node, key, "the system names its pods");
    }
    if let Some(metadata) = node.get("metadata") {
        checker.within("metadata", |checker| {
            forbid(checker, metadata, "name", "the system names its pods");
            forbid(
                checker,
                metadata,
                "namespace",
                "bind the workspace or the pool to a namespace",
            );
        });
    }
    let Some(spec) = node.get("spec") else {
        return;
    };
    checker.within("spec", |checker| {
        forbid(
            checker,
            spec,
            "hostNetwork",
            "set \"task_container_defaults.network_mode\" to \"host\" in the master's configuration",
        );
        if let Some(policy) = given(spec, "restartPolicy")
            && policy.text() != Some("Never")
        {
            checker.within("restartPolicy", |checker| {
                checker.warn("is overridden by \"Never\": the system restarts trials itself");
            });
        }
        for list in ["containers", "initContainers"] {
            if let Some(Node { tree: Tree::List(items), .. }) = given(spec, list) {
                checker.within(list, |checker| {
                    for (index, item) in items.iter().enumerate() {
                        checker.within_index(index, |checker| container(checker, item, list));
                    }
                });
            }
        }
    });
}

fn container(checker: &mut Checker, node: &Node, list: &str) {
    let name = node.get("name").and_then(Node::text);
    let reserved = match name {
        Some(INIT_CONTAINER) => true,
        Some(TASK_CONTAINER) => list == "initContainers",
        _ => false,
    };
    if reserved {
        let at = node.get("name").and_then(|name| name.at.clone());
        let message = format!("\"{}\" is reserved", name.unwrap_or_default());
        return checker.error_in("name", at.as_ref(), message);
    }
    if name != Some(TASK_CONTAINER) {
        return;
    }
    for (key, advice) in OWNED {
        forbid(checker, node, key, advice);
    }
    if let Some(context) = given(node, "securityContext") {
        checker.within("securityContext", |checker| {
            for key in ["runAsUser", "runAsGroup"] {
                forbid(
                    checker,
                    context,
                    key,
                    "use \"det user link-with-agent-user\"",
                );
            }
        });
    }
    if let Some(resources) = node.get("resources") {
        checker.within("resources", |checker| {
            for kind in ["requests", "limits"] {
                if let Some(amounts) = resources.get(kind) {
                    checker.within(kind, |checker| {
                        for gpu in ["nvidia.com/gpu", "amd.com/gpu"] {
                            forbid(checker, amounts, gpu, "use \"resources.slots_per_trial\"");
                        }
                    });
                }
            }
        });
    }
}

/// The member `key`, in Kubernetes' camel case or in snake case.
fn given<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.get(key).or_else(|| node.get(&snake(key)))
}

fn snake(key: &str) -> String {
    let mut out = String::new();
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn forbid(checker: &mut Checker, node: &Node, key: &str, advice: &str) {
    for spelling in [key.to_owned(), snake(key)] {
        if let Some(member) = node.get(&spelling) {
            checker.within(&spelling, |checker| {
                checker.error_hint(member.at.as_ref(), "cannot be set in a pod spec", advice);
            });
        }
        if spelling == snake(key) && key == spelling {
            break;
        }
    }
}

/// The key by which Kubernetes merges the elements of a list, or `None` for lists that the stronger side replaces.
fn merge_key(list: &str) -> Option<&'static str> {
    Some(match list {
        "containers" | "initContainers" | "ephemeralContainers" => "name",
        "volumes" | "env" | "imagePullSecrets" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" => "containerPort",
        "hostAliases" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        _ => return None,
    })
}

/// Merges the task's spec over a default one, as Kubernetes' strategic merge patch does. The stronger side's elements come
/// first; a volume with the same name is replaced whole, since two sources under one name are refused by Kubernetes.
pub(crate) fn merge(strong: Node, weak: Node) -> Node {
    let at = strong.at.clone().or_else(|| weak.at.clone());
    match (strong.tree, weak.tree) {
        (Tree::Null, weak) => Node { tree: weak, at },
        (Tree::Map(strong), Tree::Map(weak)) => Node {
            tree: Tree::Map(merge_maps(strong, weak)),
            at,
        },
        (strong, _) => Node { tree: strong, at },
    }
}

fn merge_maps(
    mut strong: BTreeMap<String, Node>,
    weak: BTreeMap<String, Node>,
) -> BTreeMap<String, Node> {
    for (key, node) in weak {
        let merged = match strong.remove(&key) {
            None => node,
            Some(ours) => match (ours.tree, node.tree, merge_key(&key)) {
                (Tree::List(ours_items), Tree::List(items), Some(by)) => Node {
                    tree: Tree::List(merge_lists(ours_items, items, by, key != "volumes")),
                    at: ours.at,
                },
                (ours_tree, tree, _) => merge(
                    Node {
                        tree: ours_tree,
                        at: ours.at,
                    },
                    Node { tree, at: node.at },
                ),
            },
        };
        strong.insert(key, merged);
    }
    strong
}

fn merge_lists(mut strong: Vec<Node>, weak: Vec<Node>, by: &str, deep: bool) -> Vec<Node> {
    for item in weak {
        let same = strong
            .iter_mut()
            .find(|ours| match (ours.get(by), item.get(by)) {
                (Some(ours), Some(item)) => ours.tree == item.tree,
                _ => false,
            });
        match same {
            Some(ours) if deep => {
                let ours_node = std::mem::replace(ours, Node::new(Tree::Null));
                *ours = merge(ours_node, item);
            }
            Some(_) => {}
            None => strong.push(item),
        }
    }
    strong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tasks_spec_wins_over_the_default_element_by_element() {
        let strong = Node::from(&json!({"spec": {
            "containers": [{"name": "determined-container", "volumeMounts": [{"name": "mine", "mountPath": "/data"}]}],
            "volumes": [{"name": "mine", "emptyDir": {}}, {"name": "shared", "emptyDir": {}}],
            "tolerations": [{"key": "mine"}],
        }}));
        let weak = Node::from(&json!({"metadata": {"labels": {"team": "a"}}, "spec": {
            "containers": [
                {"name": "sidecar", "image": "x"},
                {"name": "determined-container", "volumeMounts": [
                    {"name": "theirs", "mountPath": "/data"}, {"name": "theirs", "mountPath": "/other"}]},
            ],
            "volumes": [{"name": "shared", "hostPath": {"path": "/x"}}, {"name": "theirs", "hostPath": {"path": "/y"}}],
            "tolerations": [{"key": "theirs"}],
        }}));
        assert_eq!(
            merge(strong, weak).to_value(),
            json!({"metadata": {"labels": {"team": "a"}}, "spec": {
                "containers": [
                    {"name": "determined-container", "volumeMounts": [
                        {"name": "mine", "mountPath": "/data"}, {"name": "theirs", "mountPath": "/other"}]},
                    {"name": "sidecar", "image": "x"},
                ],
                "volumes": [
                    {"name": "mine", "emptyDir": {}},
                    {"name": "shared", "emptyDir": {}},
                    {"name": "theirs", "hostPath": {"path": "/y"}},
                ],
                "tolerations": [{"key": "mine"}],
            }})
        );
    }
}
