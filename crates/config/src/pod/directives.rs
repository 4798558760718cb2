//! The directives of a strategic merge, wherever they are in a pod: what an API server would refuse.

use std::collections::BTreeSet;

use det_podspec::{ListMerge, Type};

use crate::schema::Findings;
use crate::yaml::{Node, Tree};

/// How the names of directives begin that are about a list beside them.
const DELETES: &str = "$deleteFromPrimitiveList/";
const ORDERS: &str = "$setElementOrder/";

/// Whether an element of a list contains directives and nothing else.
pub(super) fn is_marker(item: &Node) -> bool {
    let members = item.members();
    members.is_some_and(|members| members.keys().all(|key| key.starts_with('$')))
}

/// Checks the directives of a pod.
pub(super) fn check(findings: &mut Findings, pod: &Node) {
    value(findings, pod, Some(det_podspec::pod()));
}

fn value(findings: &mut Findings, node: &Node, of: Option<&'static Type>) {
    match &node.tree {
        Tree::List(items) => {
            for (index, item) in items.iter().enumerate() {
                findings.within(index, |findings| value(findings, item, of));
            }
        }
        Tree::Map(members) => {
            for (key, member) in members {
                findings.within(key, |findings| {
                    if key.starts_with('$') {
                        directive(findings, key, member);
                    } else {
                        let field = of.and_then(|of| of.field_spelled(key));
                        value(findings, member, field.and_then(|it| it.shape.inner()));
                    }
                });
                if let Some(ListMerge::By { key: by, .. }) = rule(of, key)
                    && let Tree::List(items) = &member.tree
                {
                    elements(findings, key, items, by);
                    order(findings, node, key, items, by);
                }
            }
            retained(findings, node);
        }
        _ => {}
    }
}

fn rule(of: Option<&'static Type>, key: &str) -> Option<ListMerge> {
    Some(of?.field_spelled(key)?.merge)
}

/// Elements that are to be deleted need the key by which they are found, and what replaces the list is an element of its
/// own: an API server leaves out what else is in it.
fn elements(findings: &mut Findings, list: &str, items: &[Node], by: &str) {
    for (index, item) in items.iter().enumerate() {
        let message = match item.get("$patch").and_then(Node::text) {
            Some("delete") if super::given(item, by).is_none() => {
                format!("deletes no element: give its \"{by}\"")
            }
            Some("replace") if !is_marker(item) => {
                "replaces the whole list: make it an element of its own, {$patch: replace}"
                    .to_owned()
            }
            _ => continue,
        };
        findings.within(list, |findings| {
            findings.within(index, |findings| {
                findings.error_in("$patch", item.at.as_ref(), message);
            });
        });
    }
}

/// An order has all elements that are given, as they follow each other.
fn order(findings: &mut Findings, node: &Node, list: &str, items: &[Node], by: &str) {
    let directive = format!("{ORDERS}{list}");
    let Some(Tree::List(order)) = node.get(&directive).map(|order| &order.tree) else {
        return;
    };
    let key = |item: &Node| super::given(item, by).map(|value| value.to_value().to_string());
    let order: Vec<Option<String>> = order.iter().map(key).collect();
    let kept = items.iter().filter(|item| item.get("$patch").is_none());
    let mut rest = order.as_slice();
    for item in kept {
        let key = key(item);
        match rest.iter().position(|it| *it == key) {
            Some(place) => rest = &rest[place + 1..],
            None => {
                let message = format!("must have all elements of \"{list}\", in the order there");
                let at = node.get(&directive).and_then(|it| it.at.as_ref());
                return findings.error_in(&directive, at, message);
            }
        }
    }
}

/// What keeps only some keys keeps those that it sets.
fn retained(findings: &mut Findings, node: &Node) {
    let (Some(keys), Some(members)) = (node.get("$retainKeys"), node.members()) else {
        return;
    };
    let Tree::List(items) = &keys.tree else {
        return;
    };
    let kept: BTreeSet<&str> = items.iter().filter_map(Node::text).collect();
    let set = members
        .iter()
        .filter(|(key, member)| !key.starts_with('$') && !matches!(member.tree, Tree::Null));
    if let Some((key, _)) = set
        .into_iter()
        .find(|(key, _)| !kept.contains(key.as_str()))
    {
        let message = format!("leaves out \"{key}\", which is set beside it");
        findings.error_in("$retainKeys", keys.at.as_ref(), message);
    }
}

fn directive(findings: &mut Findings, key: &str, node: &Node) {
    if key == "$patch" {
        if !matches!(node.text(), Some("replace" | "merge" | "delete")) {
            let message = format!(
                "must be \"replace\", \"merge\" or \"delete\", not {}",
                findings.place.found(node)
            );
            findings.error(node.at.as_ref(), message);
        }
    } else if key == "$retainKeys" || key.starts_with(DELETES) || key.starts_with(ORDERS) {
        if !matches!(node.tree, Tree::List(_)) {
            findings.mismatch(node, "a list");
        }
    } else {
        findings.error(
            node.at.as_ref(),
            "is not a directive; known are \"$patch\", \"$retainKeys\", \"$deleteFromPrimitiveList/KEY\", \"$setElementOrder/KEY\"",
        );
    }
}
