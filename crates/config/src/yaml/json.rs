//! JSON that is no YAML: what the YAML reader refuses is read here.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::node::{LIST_BYTES, MAP_BYTES, MEMBER_BYTES, NODE_BYTES};
use super::{Builder, Limits, MAX_DEPTH, Node, Reading, Tree, position, too_large};
use crate::errors::{ConfigError, ConfigErrors};

/// Reads JSON; `None` when it is not JSON, an error when it is but has a duplicate key.
pub(super) fn read(text: &str, limits: Limits) -> Option<Result<Reading, ConfigError>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match (JsonNode {
        depth: 0,
        left: &Cell::new(limits.tree_bytes),
        limits,
    })
    .deserialize(&mut reader)
    {
        Ok(root) => {
            reader.end().ok()?;
            // Strings of JSON hold no tabs as such, so all are between values; a space in place of one keeps every place.
            let spaced = text.replace('\t', " ");
            Some(Ok(match Builder::new(&spaced, limits).document() {
                Ok(reading) => reading,
                Err(_) => Reading {
                    root,
                    errors: Vec::new(),
                    ambiguous: Vec::new(),
                },
            }))
        }
        Err(error) if error.is_data() => {
            let at = position(error.line(), error.column());
            let message = error.to_string();
            let message = message
                .split(" at line ")
                .next()
                .unwrap_or(&message)
                .to_owned();
            Some(Err(ConfigError::new("", Some(&at), message)))
        }
        Err(_) => None,
    }
}

/// The tree of a parsed JSON value, within the limits of a configuration.
///
/// # Errors
/// The value is nested too deeply, or would take too much memory as a tree; building stops there.
pub(crate) fn from_value(value: &Value) -> Result<Node, ConfigErrors> {
    let limits = Limits::CONFIGURATION;
    let reader = JsonNode {
        depth: 0,
        left: &Cell::new(limits.tree_bytes),
        limits,
    };
    reader.deserialize(value).map_err(|error| {
        let error = ConfigError::new("", None, error.to_string());
        error
            .with_hint("keep data in files of the context directory")
            .into()
    })
}

/// Reads one JSON value at a depth, refusing duplicate keys and more memory than is left.
#[derive(Clone, Copy)]
struct JsonNode<'a> {
    depth: usize,
    /// Memory in bytes that the whole tree may still take.
    left: &'a Cell<usize>,
    limits: Limits,
}

impl<'de> DeserializeSeed<'de> for JsonNode<'_> {
    type Value = Node;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Node, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonNode<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        self.charge(NODE_BYTES)?;
        Ok(Node::new(Tree::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        self.charge(NODE_BYTES)?;
        Ok(Node::new(Tree::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        self.charge(NODE_BYTES)?;
        Ok(Node::new(Tree::Number(value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        self.charge(NODE_BYTES)?;
        Ok(Node::new(Tree::Number(value.into())))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        self.charge(NODE_BYTES)?;
        Number::from_f64(value)
            .map(|number| Node::new(Tree::Number(number)))
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        self.charge(NODE_BYTES.saturating_add(value.len()))?;
        Ok(Node::new(Tree::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let below = self.deeper()?;
        self.charge(LIST_BYTES)?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(below)? {
            items.push(item);
        }
        Ok(Node::new(Tree::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let below = self.deeper()?;
        self.charge(MAP_BYTES)?;
        let mut members = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            self.charge(MEMBER_BYTES.saturating_add(key.len()))?;
            let node = access.next_value_seed(below)?;
            if members.insert(key.clone(), node).is_some() {
                return Err(de::Error::custom(format!("key \"{key}\" is given twice")));
            }
        }
        Ok(Node::new(Tree::Map(members)))
    }
}

impl JsonNode<'_> {
    fn charge<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            let refusal = too_large(None, self.limits);
            E::custom(refusal.message)
        })?;
        self.left.set(left);
        Ok(())
    }

    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        if self.depth + 1 >= MAX_DEPTH {
            return Err(E::custom(format!(
                "is nested more than {MAX_DEPTH} levels deep"
            )));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}
