//! JSON that is no YAML: what the YAML reader refuses is read here.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::{Builder, MAX_DEPTH, Node, Reading, Tree, position};
use crate::errors::ConfigError;

/// Reads JSON; `None` when it is not JSON, an error when it is but has a duplicate key.
pub(super) fn read(text: &str) -> Option<Result<Reading, ConfigError>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match JsonNode(0).deserialize(&mut reader) {
        Ok(root) => {
            reader.end().ok()?;
            // Strings of JSON hold no tabs as such, so all stand between values; a space there keeps every place.
            let spaced = text.replace('\t', " ");
            Some(Ok(match Builder::new(&spaced).document() {
                Ok(reading) => reading,
                Err(_) => Reading {
                    root,
                    mistakes: Vec::new(),
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

/// Reads one JSON value at a depth, refusing duplicate keys.
struct JsonNode(usize);

impl<'de> DeserializeSeed<'de> for JsonNode {
    type Value = Node;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Node, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::new(Tree::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::new(Tree::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::new(Tree::Number(value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::new(Tree::Number(value.into())))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        Number::from_f64(value)
            .map(|number| Node::new(Tree::Number(number)))
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::new(Tree::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let depth = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(JsonNode(depth))? {
            items.push(item);
        }
        Ok(Node::new(Tree::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let depth = self.deeper()?;
        let mut members = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            let node = access.next_value_seed(JsonNode(depth))?;
            if members.insert(key.clone(), node).is_some() {
                return Err(de::Error::custom(format!("key \"{key}\" is given twice")));
            }
        }
        Ok(Node::new(Tree::Map(members)))
    }
}

impl JsonNode {
    fn deeper<E: de::Error>(&self) -> Result<usize, E> {
        if self.0 + 1 >= MAX_DEPTH {
            return Err(E::custom(format!(
                "is nested more than {MAX_DEPTH} levels deep"
            )));
        }
        Ok(self.0 + 1)
    }
}
