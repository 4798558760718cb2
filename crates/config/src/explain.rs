//! Where each effective key comes from.

use serde_json::Value;

use crate::origin::Origin;
use crate::schema::push_key;
use crate::yaml::{Node, Tree};

/// A key of an effective configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedKey {
    /// Path of the key, with indexes of list elements: `bind_mounts[0].host_path`.
    pub path: String,
    /// Its effective value: a scalar, or an empty list or map.
    pub value: Value,
    /// The layer, and where it has one the place, that the value comes from.
    pub origin: Origin,
}

impl ExplainedKey {
    /// `{"path", "value", "origin"}`.
    pub fn to_json(&self) -> Value {
        serde_json::json!({"path": self.path, "value": self.value, "origin": self.origin.to_json()})
    }
}

/// Every leaf of an effective configuration with its origin, which is that of the node of the merged tree that it was
/// read from. What the tree does not have was filled in.
pub(crate) fn rows(effective: &Value, tree: &Node) -> Vec<ExplainedKey> {
    let mut found = Vec::new();
    walk(effective, Some(tree), String::new(), &mut found);
    found
}

fn walk(value: &Value, node: Option<&Node>, path: String, found: &mut Vec<ExplainedKey>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                let mut path = path.clone();
                push_key(&mut path, key);
                walk(member, below(node, |n| n.members()?.get(key)), path, found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let child = below(node, |n| match &n.tree {
                    Tree::List(items) => items.get(index),
                    _ => None,
                });
                walk(item, child, format!("{path}[{index}]"), found);
            }
        }
        leaf => found.push(ExplainedKey {
            path,
            value: leaf.clone(),
            origin: Origin(node.and_then(|node| node.at.clone())),
        }),
    }
}

/// The node below, or the node itself where the effective form is more explicit than what was written (a constant
/// hyperparameter).
fn below<'n>(
    node: Option<&'n Node>,
    child: impl FnOnce(&'n Node) -> Option<&'n Node>,
) -> Option<&'n Node> {
    let node = node?;
    match node.tree {
        Tree::Map(_) => child(node),
        Tree::List(_) => child(node).or(Some(node)),
        _ => Some(node),
    }
}
