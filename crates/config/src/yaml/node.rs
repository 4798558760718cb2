//! The tree that a text becomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use super::scalar;
use crate::errors::{ConfigError, ConfigErrors, ErrorCode};
use crate::origin::{Position, Source};

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value itself, with its members.
    pub tree: Tree,
    /// Its place in the text: for a member of a map the place of its key. `None` when it comes from no text.
    pub at: Option<Position>,
}

/// The shapes of a value: those of JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// `null`, `~` or nothing at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(Number),
    /// A text, which may be empty.
    Text(String),
    /// A list of values, each with its place.
    List(Vec<Node>),
    /// A map with text keys, visited in sorted order.
    Map(BTreeMap<String, Node>),
}

impl Node {
    /// A node that comes from no text.
    pub fn new(tree: Tree) -> Self {
        Self { tree, at: None }
    }

    /// The member `key` of a map, unless this is no map, or the member is missing or null.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.tree {
            Tree::Map(members) => members
                .get(key)
                .filter(|node| !matches!(node.tree, Tree::Null)),
            _ => None,
        }
    }

    /// The node at a dotted path of map keys; `None` as for [`Node::get`].
    pub fn find(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// Member `key` of a map for change; `None` when this is no map or has no such member.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.tree {
            Tree::Map(members) => members.get_mut(key),
            _ => None,
        }
    }

    /// The members, when this is a map.
    pub fn members(&self) -> Option<&BTreeMap<String, Self>> {
        match &self.tree {
            Tree::Map(members) => Some(members),
            _ => None,
        }
    }

    /// The members for change, when this is a map.
    pub(crate) fn members_mut(&mut self) -> Option<&mut BTreeMap<String, Self>> {
        match &mut self.tree {
            Tree::Map(members) => Some(members),
            _ => None,
        }
    }

    /// Removes a member of a map; `None` as for [`Node::get`].
    pub(crate) fn take(&mut self, key: &str) -> Option<Self> {
        self.members_mut()?
            .remove(key)
            .filter(|member| !matches!(member.tree, Tree::Null))
    }

    /// Puts a node at a dotted path, making maps on the way; what is in the way is replaced.
    pub(crate) fn put(&mut self, path: &str, node: Self) {
        let mut target = self;
        for key in path.split('.') {
            if target.members().is_none() {
                target.tree = Tree::Map(BTreeMap::new());
            }
            let Some(members) = target.members_mut() else {
                return;
            };
            target = members
                .entry(key.to_owned())
                .or_insert_with(|| Self::new(Tree::Null));
        }
        *target = node;
    }

    /// The tree without nulls, empty maps and empty lists, which have no effect; what is below the keys `verbatim` stays as
    /// it is. `None` when nothing is left.
    pub(crate) fn pruned(self, verbatim: &[&str]) -> Option<Self> {
        let tree = match self.tree {
            Tree::Null => return None,
            Tree::List(items) if items.is_empty() => return None,
            // An element without a value is still an element.
            Tree::List(items) => Tree::List(
                items
                    .into_iter()
                    .map(|item| {
                        let at = item.at.clone();
                        item.pruned(verbatim).unwrap_or(Self {
                            tree: Tree::Null,
                            at,
                        })
                    })
                    .collect(),
            ),
            Tree::Map(members) => {
                let members: BTreeMap<String, Self> = members
                    .into_iter()
                    .filter_map(|(key, member)| {
                        let whole = verbatim.contains(&&*key) && !matches!(member.tree, Tree::Null);
                        let member = if whole {
                            member
                        } else {
                            member.pruned(verbatim)?
                        };
                        Some((key, member))
                    })
                    .collect();
                if members.is_empty() {
                    return None;
                }
                Tree::Map(members)
            }
            tree => tree,
        };
        Some(Self { tree, at: self.at })
    }

    /// The text, when this is a string.
    pub fn text(&self) -> Option<&str> {
        match &self.tree {
            Tree::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text, unless it is empty.
    pub(crate) fn filled_text(&self) -> Option<String> {
        let text = self.text().filter(|text| !text.is_empty())?;
        Some(text.to_owned())
    }

    /// A checked and complete tree as typed values.
    ///
    /// # Errors
    /// The tree does not have the shape of the type.
    pub(crate) fn typed<T: DeserializeOwned>(&self) -> Result<T, ConfigErrors> {
        serde_json::from_value(self.to_value())
            .map_err(|error| ConfigError::new("", None, format!("cannot be read: {error}")).into())
    }

    /// The first text or key that holds the character NUL, which no file name, variable or database text can.
    pub(super) fn first_nul(&self) -> Option<ConfigError> {
        fn look(node: &Node, path: &str) -> Option<ConfigError> {
            let refuse = || {
                Some(ConfigError::new(
                    path,
                    node.at.as_ref(),
                    ErrorCode::Syntax.message("holds a NUL character"),
                ))
            };
            match &node.tree {
                Tree::Text(text) if text.contains('\0') => refuse(),
                Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) => None,
                Tree::List(items) => items
                    .iter()
                    .enumerate()
                    .find_map(|(index, item)| look(item, &format!("{path}[{index}]"))),
                Tree::Map(members) => members.iter().find_map(|(key, member)| {
                    if key.contains('\0') {
                        return refuse();
                    }
                    let below = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    look(member, &below)
                }),
            }
        }
        look(self, "")
    }

    /// The number as an integer, when it is one (`1.0` is).
    pub fn integer(&self) -> Option<i64> {
        match &self.tree {
            Tree::Number(number) => scalar::integral(number),
            _ => None,
        }
    }

    /// What kind of value this is, for users.
    pub fn kind(&self) -> &'static str {
        match &self.tree {
            Tree::Null => "null",
            Tree::Bool(_) => "a boolean",
            Tree::Number(_) => "a number",
            Tree::Text(_) => "a string",
            Tree::List(_) => "a list",
            Tree::Map(_) => "a map",
        }
    }

    /// The same value as JSON, without its places.
    pub fn to_value(&self) -> Value {
        match &self.tree {
            Tree::Null => Value::Null,
            Tree::Bool(value) => Value::Bool(*value),
            Tree::Number(number) => Value::Number(number.clone()),
            Tree::Text(text) => Value::String(text.clone()),
            Tree::List(items) => items.iter().map(Self::to_value).collect(),
            Tree::Map(members) => members
                .iter()
                .map(|(key, node)| (key.clone(), node.to_value()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    /// What a copy of this tree costs.
    pub(super) fn size(&self) -> Size {
        let text = self.text().map_or(0, str::len);
        let own = |memory| Size {
            nodes: 1,
            bytes: text,
            memory,
        };
        match &self.tree {
            Tree::List(items) => items
                .iter()
                .fold(own(LIST_BYTES), |size, item| size.plus(&item.size(), 0)),
            Tree::Map(members) => members
                .iter()
                .fold(own(MAP_BYTES), |mut size, (key, node)| {
                    size.memory += MEMBER_BYTES + key.len();
                    size.plus(&node.size(), key.len())
                }),
            _ => own(NODE_BYTES + text),
        }
    }

    /// Levels of lists and maps in this tree; 0 for a scalar.
    pub(super) fn depth(&self) -> usize {
        match &self.tree {
            Tree::List(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Tree::Map(members) => 1 + members.values().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Names what this tree was read from.
    pub(crate) fn set_source(&mut self, source: &Arc<Source>) {
        self.each_place(&mut |at| at.source = Some(Arc::clone(source)));
    }

    /// Changes the place of this node and of all below it; those without one get an empty one first.
    pub(crate) fn each_place(&mut self, change: &mut impl FnMut(&mut Position)) {
        change(self.at.get_or_insert(Position {
            source: None,
            line: 0,
            column: 0,
        }));
        match &mut self.tree {
            Tree::List(items) => items.iter_mut().for_each(|item| item.each_place(change)),
            Tree::Map(members) => members
                .values_mut()
                .for_each(|node| node.each_place(change)),
            _ => {}
        }
    }
}

/// Memory in bytes of a scalar in a list or a map, without its text: the node, and what a growing list holds in reserve.
pub(super) const NODE_BYTES: usize = size_of::<Node>();
/// Memory in bytes of a list without its elements, at least four of which are allocated at once.
pub(super) const LIST_BYTES: usize = 5 * NODE_BYTES;
/// Memory in bytes of a map without its members: a node of the tree that holds them has places for eleven.
pub(super) const MAP_BYTES: usize = 12 * (NODE_BYTES + size_of::<String>());
/// Memory in bytes of a member of a map, without its value and the text of its key.
pub(super) const MEMBER_BYTES: usize = 2 * size_of::<String>() + 16;

/// How large a tree is in memory, before it is built.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    /// Number of its nodes, the root included.
    pub(super) nodes: usize,
    /// Bytes of keys and texts.
    pub(super) bytes: usize,
    /// Bytes of memory, by the count of [`super::MAX_TREE_BYTES`].
    pub(super) memory: usize,
}

impl Size {
    pub(super) fn plus(self, other: &Self, key_bytes: usize) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            bytes: self
                .bytes
                .saturating_add(other.bytes)
                .saturating_add(key_bytes),
            memory: self.memory.saturating_add(other.memory),
        }
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        Self::new(match value {
            Value::Null => Tree::Null,
            Value::Bool(value) => Tree::Bool(*value),
            Value::Number(number) => Tree::Number(number.clone()),
            Value::String(text) => Tree::Text(text.clone()),
            Value::Array(items) => Tree::List(items.iter().map(Self::from).collect()),
            Value::Object(members) => Tree::Map(
                members
                    .iter()
                    .map(|(key, value)| (key.clone(), Self::from(value)))
                    .collect(),
            ),
        })
    }
}
