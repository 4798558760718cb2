//! Strategic merge patch as a Kubernetes API server does it:
//! <https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/>. Which lists merge, and by
//! which keys, is in the table of `det-podspec`; `tests/pod_merge` compares the result with that of a real API server.
//!
//! Where the server has no good answer, this has one: `docs/contract/configuration.md`, "Pod specs".

use std::collections::{BTreeMap, HashMap, HashSet};

use det_podspec::{ListMerge, Type, pod};

use crate::yaml::{Node, Tree};

type Members = BTreeMap<String, Node>;

/// Merges a pod over a weaker one.
///
/// Elements of lists that merge are in the order of the stronger side; an element of the weaker side alone goes before the
/// first that it preceded there, or else to the end. A null takes the value away. `$patch` (`replace`, `merge`, `delete`),
/// `$retainKeys`, `$deleteFromPrimitiveList/KEY` and `$setElementOrder/KEY` of the stronger side are carried out; those of
/// the weaker side have had their effect on what is weaker still. A volume with another source than the weaker one's has
/// that source alone.
pub(crate) fn merge(strong: Node, weak: Node) -> Node {
    let at = strong.at.clone().or_else(|| weak.at.clone());
    let weak = without_directives(weak);
    let tree = match (strong.tree, weak.tree) {
        (Tree::Map(ours), Tree::Map(theirs)) => Tree::Map(merge_maps(ours, theirs, Some(pod()))),
        (tree, _) => without_directives(Node { tree, at: None }).tree,
    };
    Node { tree, at }
}

/// A pod without the directives and the nulls of a merge, which have no effect on the weakest layer.
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
        Tree::Null => return None,
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

/// Whether an element of a list contains directives and nothing else.
pub(crate) fn is_marker(node: &Node) -> bool {
    node.members().is_some_and(|members| {
        !members.is_empty() && members.keys().all(|key| key.starts_with('$'))
    })
}

/// Text by which equal values are found again in long lists.
fn identity(node: &Node) -> String {
    node.to_value().to_string()
}

/// The same of an element's key; `None` = the element has none.
fn identity_of(item: &Node, key: &str) -> Option<String> {
    item.get(key).map(identity)
}

fn merge_maps(mut ours: Members, mut theirs: Members, of: Option<&'static Type>) -> Members {
    match patch_of(&ours) {
        Some("delete") => return Members::new(),
        Some("replace") => theirs.clear(),
        _ => {}
    }
    if let Some(Tree::List(keys)) = ours.get("$retainKeys").map(|node| &node.tree) {
        let keys: HashSet<&str> = keys.iter().filter_map(Node::text).collect();
        theirs.retain(|name, _| keys.contains(name.as_str()));
    }
    let mut orders: BTreeMap<String, Vec<Node>> = directives(&mut ours, "$setElementOrder/")
        .into_iter()
        .collect();
    for (list, gone) in directives(&mut ours, "$deleteFromPrimitiveList/") {
        if let Some(Tree::List(items)) = theirs.get_mut(&list).map(|node| &mut node.tree) {
            let gone: HashSet<String> = gone.iter().map(identity).collect();
            items.retain(|item| !gone.contains(&identity(item)));
        }
    }
    for (key, strong) in ours {
        if key.starts_with('$') {
            continue;
        }
        let order = orders.remove(&key);
        let weak = theirs.remove(&key);
        if let Some(merged) = merge_member(strong, weak, Member { of, key: &key }, order) {
            theirs.insert(key, merged);
        }
    }
    // What is only put in order.
    for (key, order) in orders {
        if let Some(Tree::List(items)) = theirs.get_mut(&key).map(|node| &mut node.tree) {
            let rule = Member { of, key: &key }.rule();
            *items = in_order(std::mem::take(items), &order, rule);
        }
    }
    theirs
}

/// A key of a map of type `of`; `None` = a map of unknown keys.
#[derive(Clone, Copy)]
struct Member<'k> {
    of: Option<&'static Type>,
    key: &'k str,
}

impl Member<'_> {
    fn rule(self) -> ListMerge {
        let field = self.of.and_then(|of| of.field(self.key));
        field.map_or(ListMerge::Atomic, |field| field.merge)
    }

    /// The type of the map, or of the elements of the list.
    fn inner(self) -> Option<&'static Type> {
        self.of?.field(self.key)?.shape.inner()
    }
}

/// `None` when there is nothing of the member any more.
fn merge_member(
    strong: Node,
    weak: Option<Node>,
    member: Member<'_>,
    order: Option<Vec<Node>>,
) -> Option<Node> {
    let at = strong.at.clone();
    let weak = weak.map(|weak| weak.tree);
    let (rule, inner) = (member.rule(), member.inner());
    let tree = match (strong.tree, weak) {
        (Tree::Map(ours), Some(Tree::Map(theirs))) => Tree::Map(merge_maps(ours, theirs, inner)),
        (Tree::List(ours), weak @ (None | Some(Tree::List(_)))) => {
            let theirs = match weak {
                Some(Tree::List(theirs)) => theirs,
                _ => Vec::new(),
            };
            Tree::List(merge_lists(ours, theirs, rule, inner, order))
        }
        (tree, _) => return applied(Node { tree, at }),
    };
    Some(Node { tree, at })
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

fn merge_lists(
    ours: Vec<Node>,
    theirs: Vec<Node>,
    rule: ListMerge,
    inner: Option<&'static Type>,
    order: Option<Vec<Node>>,
) -> Vec<Node> {
    match rule {
        ListMerge::Atomic => {
            let replaced = ours.into_iter().filter(|item| !is_marker(item));
            let replaced = replaced.filter_map(applied).collect();
            match order {
                Some(order) => in_order(replaced, &order, rule),
                None => replaced,
            }
        }
        ListMerge::Set => {
            let order = order.unwrap_or_else(|| ours.clone());
            let original = theirs.clone();
            let mut known = HashSet::new();
            let merged = theirs.into_iter().chain(ours);
            let merged = merged.filter(|item| known.insert(identity(item))).collect();
            interleaved(merged, &original, &order, rule)
        }
        ListMerge::By { key, one_source } => {
            let by = By {
                key,
                one_source,
                inner,
            };
            by.merged(ours, theirs, order)
        }
    }
}

/// How lists of maps merge whose elements have a key.
struct By {
    key: &'static str,
    one_source: bool,
    inner: Option<&'static Type>,
}

impl By {
    fn merged(&self, ours: Vec<Node>, theirs: Vec<Node>, order: Option<Vec<Node>>) -> Vec<Node> {
        let rule = ListMerge::By {
            key: self.key,
            one_source: self.one_source,
        };
        let patch = |item: &Node| item.members().and_then(patch_of).map(str::to_owned);
        let mut replaces = false;
        let mut gone = HashSet::new();
        let mut plain = Vec::new();
        for item in ours {
            match patch(&item).as_deref() {
                Some("replace") => replaces = true,
                Some("delete") => gone.extend(identity_of(&item, self.key)),
                _ if is_marker(&item) => {}
                _ => plain.push(item),
            }
        }
        let is_ordered = order.is_some();
        let order = order.unwrap_or_else(|| keys_of(&plain, self.key));
        if replaces {
            let plain = plain.into_iter().filter_map(applied).collect();
            return interleaved(plain, &[], &order, rule);
        }
        let mut merged: Vec<Node> = theirs;
        let before = merged.len();
        merged.retain(|item| identity_of(item, self.key).is_none_or(|key| !gone.contains(&key)));
        let kept = merged.len();
        let mut known: HashMap<String, usize> = HashMap::new();
        for (index, item) in merged.iter().enumerate() {
            if let Some(key) = identity_of(item, self.key) {
                known.entry(key).or_insert(index);
            }
        }
        for item in plain {
            let key = identity_of(&item, self.key);
            match key.as_ref().and_then(|key| known.get(key)) {
                Some(index) => {
                    let weak = std::mem::replace(&mut merged[*index], Node::new(Tree::Null));
                    merged[*index] = self.element(item, weak);
                }
                None => {
                    if let Some(item) = applied(item) {
                        if let Some(key) = key {
                            known.insert(key, merged.len());
                        }
                        merged.push(item);
                    }
                }
            }
        }
        // Where an order is given, a server counts as many new elements as were deleted among those that existed.
        let counted = if is_ordered { before } else { kept };
        let original = keys_of(&merged[..counted.min(merged.len())], self.key);
        interleaved(merged, &original, &order, rule)
    }

    /// An element over the weaker one with the same key.
    fn element(&self, strong: Node, weak: Node) -> Node {
        let at = strong.at.clone();
        let (Tree::Map(ours), Tree::Map(mut theirs)) = (strong.tree, weak.tree) else {
            // Not reached: only maps have a key.
            return Node::new(Tree::Map(Members::new()));
        };
        let names_source = |key: &str, member: &Node| {
            key != self.key && !key.starts_with('$') && !matches!(member.tree, Tree::Null)
        };
        if self.one_source
            && !ours.contains_key("$retainKeys")
            && ours.iter().any(|(key, member)| names_source(key, member))
        {
            theirs.retain(|key, _| ours.contains_key(key));
        }
        Node {
            tree: Tree::Map(merge_maps(ours, theirs, self.inner)),
            at,
        }
    }
}

/// Elements with nothing but their key, for their order.
fn keys_of(items: &[Node], key: &str) -> Vec<Node> {
    let keys = items.iter().filter_map(|item| item.get(key));
    let only = |value: &Node| BTreeMap::from([(key.to_owned(), value.clone())]);
    keys.map(|value| Node::new(Tree::Map(only(value))))
        .collect()
}

/// A list in the order that a directive gives.
fn in_order(items: Vec<Node>, order: &[Node], rule: ListMerge) -> Vec<Node> {
    let original = match rule {
        ListMerge::By { key, .. } => keys_of(&items, key),
        ListMerge::Set | ListMerge::Atomic => items.clone(),
    };
    interleaved(items, &original, order, rule)
}

/// Those of `items` that are in `order`, in that order, and each of the others before the first of them that it preceded in
/// `original`, as far as the order of the others among themselves allows.
fn interleaved(items: Vec<Node>, original: &[Node], order: &[Node], rule: ListMerge) -> Vec<Node> {
    let of = |item: &Node| match rule {
        ListMerge::By { key, .. } => identity_of(item, key),
        ListMerge::Set | ListMerge::Atomic => Some(identity(item)),
    };
    let places = |list: &[Node]| {
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, item) in list.iter().enumerate() {
            if let Some(key) = of(item) {
                places.entry(key).or_insert(place);
            }
        }
        places
    };
    let (wanted, before) = (places(order), places(original));
    let mut ordered = Vec::new();
    let mut others = Vec::new();
    for item in items {
        let key = of(&item);
        let was = key.as_ref().and_then(|key| before.get(key)).copied();
        match key.as_ref().and_then(|key| wanted.get(key)) {
            Some(place) => ordered.push((*place, was, item)),
            None => others.push((was, item)),
        }
    }
    ordered.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(was, _)| was.unwrap_or(usize::MAX));
    let mut merged = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, was, item) in ordered {
        while let Some((_, other)) = others.next_if(|(place, _)| match (place, was) {
            (Some(place), Some(was)) => *place < was,
            _ => false,
        }) {
            merged.push(other);
        }
        merged.push(item);
    }
    merged.extend(others.map(|(_, other)| other));
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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
                    {"name": "sidecar", "image": "x"},
                    {"name": "determined-container", "volumeMounts": [
                        {"name": "mine", "mountPath": "/data"}, {"name": "theirs", "mountPath": "/other"}]},
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
                "to replace is about the whole list",
                json!({"spec": {"containers": [{"name": "a", "$patch": "replace"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "a", "stdin": true}]}}),
                json!({"spec": {"containers": [{"name": "b"}]}}),
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
                json!({"metadata": {"labels": {}, "annotations": {"c": "d"}}}),
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
                json!({"metadata": {"finalizers": ["c", "b"]}}),
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
                "a null takes away",
                json!({"spec": {"containers": null, "nodeSelector": {"a": null, "c": null}, "hostname": null}}),
                json!({"spec": {"containers": [{"name": "b"}], "nodeSelector": {"a": "b", "d": "e"}}}),
                json!({"spec": {"nodeSelector": {"d": "e"}}}),
            ),
            (
                "elements of the weaker side keep their place",
                json!({"spec": {"volumes": [{"name": "x"}, {"name": "c"}, {"name": "y"}, {"name": "a"}]}}),
                json!({"spec": {"volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]}}),
                json!({"spec": {"volumes": [{"name": "x"}, {"name": "b"}, {"name": "c"}, {"name": "y"}, {"name": "a"},
                                            {"name": "d"}]}}),
            ),
            (
                "another source of a volume takes the place of the weaker one, the same one merges",
                json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/mine"}},
                                            {"name": "c"}]}}),
                json!({"spec": {"volumes": [{"name": "a", "secret": {"secretName": "s"}},
                                            {"name": "b", "hostPath": {"path": "/theirs", "type": "Directory"}},
                                            {"name": "c", "emptyDir": {}}]}}),
                json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}},
                                            {"name": "b", "hostPath": {"path": "/mine", "type": "Directory"}},
                                            {"name": "c", "emptyDir": {}}]}}),
            ),
            (
                "a key means a list that merges only where Kubernetes has it",
                json!({"spec": {"resources": {"claims": [{"name": "a"}]}, "new": {"containers": [{"name": "a"}]}}}),
                json!({"spec": {"resources": {"claims": [{"name": "b"}]}, "new": {"containers": [{"name": "b"}]}}}),
                json!({"spec": {"resources": {"claims": [{"name": "a"}]}, "new": {"containers": [{"name": "a"}]}}}),
            ),
            (
                "what is new brings no directives along",
                json!({"spec": {"nodeSelector": {"$patch": "replace", "a": "b"},
                                "containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}], "tty": null}]}}),
                json!({"spec": {}}),
                json!({"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "a", "env": []}]}}),
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

    /// Documents of the keys that mean something in a merge, in places where they do and where they do not.
    fn documents() -> impl Strategy<Value = Value> {
        let keys = prop::sample::select(vec![
            "spec",
            "containers",
            "volumes",
            "name",
            "env",
            "emptyDir",
            "nodeSelector",
            "tolerations",
            "finalizers",
            "metadata",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$setElementOrder/volumes",
            "$deleteFromPrimitiveList/finalizers",
        ]);
        let scalar = prop::sample::select(vec![
            json!(null),
            json!("replace"),
            json!("delete"),
            json!("merge"),
            json!("a"),
            json!(1),
        ]);
        scalar.prop_recursive(6, 60, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn has_remains(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(has_remains),
            Value::Object(members) => {
                let mut members = members.iter();
                members.any(|(key, value)| key.starts_with('$') || has_remains(value))
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn nothing_is_too_odd_and_nothing_remains_of_a_patch(strong in documents(), weak in documents()) {
            let pod = merged(&json!({"spec": strong}), &json!({"spec": weak}));
            prop_assert!(!has_remains(&pod), "{pod}");
            let same = merged(&json!({}), &pod);
            prop_assert_eq!(&same, &pod);
        }
    }
}
