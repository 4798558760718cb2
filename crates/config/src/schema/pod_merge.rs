//! Strategic merge patch as Kubernetes does it: <https://kubernetes.io/docs/reference/using-api/> and, for the keys of
//! lists, the tags of the pod's types.

use std::collections::{BTreeMap, HashSet};

use crate::yaml::{Node, Tree};

/// How a list of Kubernetes merges.
enum ListRule {
    /// Maps, by the value of this key.
    By(&'static str),
    /// Scalars, as a set.
    Scalars,
    /// The stronger side replaces.
    Atomic,
}

fn list_rule(list: &str) -> ListRule {
    ListRule::By(match list {
        "containers" | "initContainers" | "ephemeralContainers" => "name",
        "volumes" | "env" | "imagePullSecrets" | "schedulingGates" | "resourceClaims" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" => "containerPort",
        "hostAliases" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        "ownerReferences" => "uid",
        "finalizers" => return ListRule::Scalars,
        _ => return ListRule::Atomic,
    })
}

type Members = BTreeMap<String, Node>;

/// Merges a pod over a weaker one. The stronger side's elements come first; a volume with the same name is replaced
/// whole, since Kubernetes refuses two sources under one name. A null has no effect. `$patch` (`replace`, `merge`,
/// `delete`), `$retainKeys`, `$deleteFromPrimitiveList/KEY` and `$setElementOrder/KEY` of the stronger side are carried
/// out; those of the weaker side have had their effect on what is weaker still.
pub(crate) fn merge(strong: Node, weak: Node) -> Node {
    let at = strong.at.clone().or_else(|| weak.at.clone());
    let weak = without_directives(weak);
    let merged = merge_nodes(strong, weak, ListRule::Atomic);
    Node {
        tree: merged.map_or_else(|| Tree::Map(BTreeMap::new()), |node| node.tree),
        at,
    }
}

/// A pod without the directives of a merge, which have no effect on the weakest layer.
pub(crate) fn without_directives(node: Node) -> Node {
    let at = node.at.clone();
    applied(node).unwrap_or(Node {
        tree: Tree::Map(BTreeMap::new()),
        at,
    })
}

/// What a patch adds where there was nothing; `None` when it only deletes.
fn applied(node: Node) -> Option<Node> {
    let tree = match node.tree {
        Tree::Map(members) => {
            if patch_of(&members) == Some("delete") {
                return None;
            }
            let kept = members
                .into_iter()
                .filter(|(key, _)| !key.starts_with('$'))
                .filter_map(|(key, member)| Some((key, applied(member)?)));
            Tree::Map(kept.collect())
        }
        Tree::List(items) => Tree::List(
            items
                .into_iter()
                .filter(|item| !is_marker(item))
                .filter_map(applied)
                .collect(),
        ),
        tree => tree,
    };
    Some(Node { tree, at: node.at })
}

fn patch_of(members: &Members) -> Option<&str> {
    members.get("$patch").and_then(Node::text)
}

/// Whether an element of a list holds directives and nothing else.
fn is_marker(node: &Node) -> bool {
    node.members().is_some_and(|members| {
        !members.is_empty() && members.keys().all(|key| key.starts_with('$'))
    })
}

/// `None` when the stronger side deletes the value.
fn merge_nodes(strong: Node, weak: Node, rule: ListRule) -> Option<Node> {
    let at = strong.at.clone();
    let tree = match (strong.tree, weak.tree, rule) {
        (Tree::Null, weak_tree, _) => {
            return Some(Node {
                tree: weak_tree,
                at: weak.at,
            });
        }
        (Tree::Map(ours), Tree::Map(theirs), _) => Tree::Map(merge_maps(ours, theirs)?),
        (Tree::List(ours), Tree::List(theirs), ListRule::By(key)) => {
            Tree::List(merge_lists(ours, theirs, key, true))
        }
        (Tree::List(ours), Tree::List(theirs), ListRule::Scalars) => {
            let known: HashSet<String> = theirs.iter().map(json_text).collect();
            let new = ours
                .into_iter()
                .filter(|item| !known.contains(&json_text(item)))
                .collect::<Vec<_>>();
            Tree::List(theirs.into_iter().chain(new).collect())
        }
        (tree, _, _) => return applied(Node { tree, at }),
    };
    Some(Node { tree, at })
}

/// The value as JSON text, by which elements of long lists are found again.
fn json_text(node: &Node) -> String {
    node.to_value().to_string()
}

fn merge_maps(mut ours: Members, mut theirs: Members) -> Option<Members> {
    match patch_of(&ours) {
        Some("delete") => return None,
        Some("replace") => theirs.clear(),
        _ => {}
    }
    if let Some(Tree::List(keys)) = ours.get("$retainKeys").map(|node| &node.tree) {
        let keys: HashSet<&str> = keys.iter().filter_map(Node::text).collect();
        theirs.retain(|name, _| keys.contains(name.as_str()));
    }
    let orders = directives(&mut ours, "$setElementOrder/");
    for (list, gone) in directives(&mut ours, "$deleteFromPrimitiveList/") {
        if let Some(Tree::List(items)) = theirs.get_mut(&list).map(|node| &mut node.tree) {
            let gone: HashSet<String> = gone.iter().map(json_text).collect();
            items.retain(|item| !gone.contains(&json_text(item)));
        }
    }
    for (key, strong) in ours {
        if key.starts_with('$') {
            continue;
        }
        let merged = match theirs.remove(&key) {
            None => applied(strong),
            Some(weak) if key == "volumes" => volumes(strong, weak),
            Some(weak) => merge_nodes(strong, weak, list_rule(&key)),
        };
        if let Some(merged) = merged {
            theirs.insert(key, merged);
        }
    }
    for (list, order) in orders {
        if let (Some(Tree::List(items)), ListRule::By(by)) = (
            theirs.get_mut(&list).map(|node| &mut node.tree),
            list_rule(&list),
        ) {
            let place = |item: &Node| {
                let wanted = |entry: &Node| match (entry.get(by), item.get(by)) {
                    (Some(a), Some(b)) => a.tree == b.tree,
                    _ => false,
                };
                order.iter().position(wanted).unwrap_or(usize::MAX)
            };
            items.sort_by_cached_key(place);
        }
    }
    Some(theirs)
}

/// Takes the directives of this name, each with the list that it is about.
fn directives(members: &mut Members, name: &str) -> Vec<(String, Vec<Node>)> {
    let keys: Vec<String> = members
        .keys()
        .filter(|key| key.starts_with(name))
        .cloned()
        .collect();
    keys.into_iter()
        .filter_map(|key| match members.remove(&key)?.tree {
            Tree::List(items) => Some((key[name.len()..].to_owned(), items)),
            _ => None,
        })
        .collect()
}

fn volumes(strong: Node, weak: Node) -> Option<Node> {
    match (strong.tree, weak.tree) {
        (Tree::List(ours), Tree::List(theirs)) => Some(Node {
            tree: Tree::List(merge_lists(ours, theirs, "name", false)),
            at: strong.at,
        }),
        (tree, weak_tree) => merge_nodes(
            Node {
                tree,
                at: strong.at,
            },
            Node {
                tree: weak_tree,
                at: weak.at,
            },
            ListRule::Atomic,
        ),
    }
}

/// Merges two lists of maps by the value of a key; `deep` = elements with the same key are merged, not replaced.
///
/// An element of nothing but `$patch: replace` replaces the weaker list; with `$patch: delete` it removes the weaker
/// element with its key, with `$patch: replace` and a key it takes that element's place unmerged.
fn merge_lists(ours: Vec<Node>, mut theirs: Vec<Node>, by: &str, deep: bool) -> Vec<Node> {
    let replaces_all = ours.iter().any(|item| {
        is_marker(item)
            && item
                .members()
                .is_some_and(|m| patch_of(m) == Some("replace"))
    });
    if replaces_all {
        theirs.clear();
    }
    let mut merged = Vec::new();
    for item in ours {
        if is_marker(&item) {
            continue;
        }
        let same = item.get(by).and_then(|key| {
            theirs
                .iter()
                .position(|other| other.get(by).is_some_and(|other| other.tree == key.tree))
        });
        let weak = same.map(|index| theirs.remove(index));
        let result = match weak {
            Some(weak) if deep => merge_nodes(item, weak, ListRule::Atomic),
            _ => applied(item),
        };
        merged.extend(result);
    }
    merged.extend(theirs);
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn merged(strong: &Value, weak: &Value) -> Value {
        merge(Node::from(strong), Node::from(weak)).to_value()
    }

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
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn directives_are_carried_out() {
        for (name, strong, weak, expected) in [
            (
                "an element is deleted",
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}]}}),
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "c"}, {"name": "b"}]}}),
            ),
            (
                "a list is replaced",
                json!({"spec": {"volumes": [{"$patch": "replace"}, {"name": "mine"}]}}),
                json!({"spec": {"volumes": [{"name": "theirs"}]}}),
                json!({"spec": {"volumes": [{"name": "mine"}]}}),
            ),
            (
                "an element is replaced",
                json!({"spec": {"containers": [{"name": "a", "$patch": "replace", "tty": true}]}}),
                json!({"spec": {"containers": [{"name": "a", "stdin": true}]}}),
                json!({"spec": {"containers": [{"name": "a", "tty": true}]}}),
            ),
            (
                "a map is replaced",
                json!({"spec": {"nodeSelector": {"$patch": "replace", "zone": "a"}}}),
                json!({"spec": {"nodeSelector": {"gpu": "yes"}}}),
                json!({"spec": {"nodeSelector": {"zone": "a"}}}),
            ),
            (
                "a map is deleted",
                json!({"metadata": {"labels": {"$patch": "delete"}}}),
                json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}),
                json!({"metadata": {"annotations": {"c": "d"}}}),
            ),
            (
                "a map is merged when asked to",
                json!({"metadata": {"labels": {"$patch": "merge", "x": "1"}}}),
                json!({"metadata": {"labels": {"a": "b"}}}),
                json!({"metadata": {"labels": {"a": "b", "x": "1"}}}),
            ),
            (
                "only some keys are retained",
                json!({"spec": {"securityContext": {"$retainKeys": ["fsGroup", "sysctls"], "sysctls": []}}}),
                json!({"spec": {"securityContext": {"fsGroup": 5, "runAsNonRoot": true}}}),
                json!({"spec": {"securityContext": {"fsGroup": 5, "sysctls": []}}}),
            ),
            (
                "scalars leave a list of scalars and join it",
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c", "b"]}}),
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"finalizers": ["b", "c"]}}),
            ),
            (
                "the order is given",
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a"}]}}),
                json!({"spec": {"containers": [{"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            ),
            (
                "other lists are atomic",
                json!({"spec": {"tolerations": [{"key": "a"}]}}),
                json!({"spec": {"tolerations": [{"key": "b"}]}}),
                json!({"spec": {"tolerations": [{"key": "a"}]}}),
            ),
            (
                "a null has no effect",
                json!({"spec": {"containers": null, "nodeSelector": {"a": null}}}),
                json!({"spec": {"containers": [{"name": "b"}], "nodeSelector": {"a": "b"}}}),
                json!({"spec": {"containers": [{"name": "b"}], "nodeSelector": {"a": "b"}}}),
            ),
            (
                "directives with nothing to act on leave no trace",
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}, {"$patch": "replace"}],
                                "nodeSelector": {"$patch": "replace", "b": "c"}}}),
                json!({}),
                json!({"spec": {"containers": [], "nodeSelector": {"b": "c"}}}),
            ),
            (
                "those of the weaker side are gone too",
                json!({"spec": {"hostname": "h"}}),
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
                json!({"spec": {"containers": [], "hostname": "h"}}),
            ),
        ] {
            assert_eq!(merged(&strong, &weak), expected, "{name}");
        }
    }

    #[test]
    fn a_mount_of_the_default_is_neutralised_by_another_volume_at_its_path() {
        let strong = json!({"spec": {
            "containers": [{"name": "determined-container",
                            "volumeMounts": [{"name": "empty", "mountPath": "/data"}]}],
            "volumes": [{"name": "empty", "emptyDir": {}}]}});
        let weak = json!({"spec": {
            "containers": [{"name": "determined-container",
                            "volumeMounts": [{"name": "host", "mountPath": "/data"}]}],
            "volumes": [{"name": "host", "hostPath": {"path": "/srv"}}]}});
        let pod = merged(&strong, &weak);
        assert_eq!(
            pod["spec"]["containers"][0]["volumeMounts"],
            json!([{"name": "empty", "mountPath": "/data"}])
        );
    }
}
