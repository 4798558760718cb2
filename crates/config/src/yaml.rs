//! YAML and JSON text as a tree whose nodes know where they stand.
//!
//! Scalars follow the YAML 1.2 core schema, so `1e-3` is a number and `yes` a string. Duplicate keys are errors; anchors,
//! aliases and `<<` work; several documents, foreign tags and infinite numbers are refused with a sentence. Depth and
//! the number of nodes that aliases make are limited, so that no small text becomes a large tree.

mod emit;
mod scalar;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
// The event parser beneath serde-saphyr: an untyped tree with positions is more than serde's data model can carry.
use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Tag};

use crate::errors::{ConfigError, ConfigErrors, Position};

pub use emit::to_yaml;
pub use scalar::parse_scalar;

/// Deepest nesting of lists and maps; below the 128 that `serde_json` reads back.
pub const MAX_DEPTH: usize = 100;
/// Most nodes that anchors, aliases and merge keys may copy, over the whole text.
pub const MAX_ALIAS_NODES: usize = 100_000;
/// Most bytes of keys and texts that they may copy: a single long text, named a thousand times, is a large tree as well.
pub const MAX_ALIAS_BYTES: usize = 1 << 20;
/// Longest text in bytes. Of the densest text (`[0,0,0`) the tree is some forty times as large.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
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
    /// A string.
    Text(String),
    /// A list.
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

    /// The text, when this is a string.
    pub fn text(&self) -> Option<&str> {
        match &self.tree {
            Tree::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The first text or key that holds the character NUL, which no file name, variable or database text can.
    fn first_nul(&self) -> Option<ConfigError> {
        fn look(node: &Node, path: &str) -> Option<ConfigError> {
            let refuse = || {
                Some(ConfigError::new(
                    path,
                    node.at.as_ref(),
                    "holds a NUL character",
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

    /// What kind of value this is, for people.
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
    fn size(&self) -> Size {
        let own = Size {
            nodes: 1,
            bytes: self.text().map_or(0, str::len),
        };
        match &self.tree {
            Tree::List(items) => items
                .iter()
                .fold(own, |size, item| size.plus(&item.size(), 0)),
            Tree::Map(members) => members
                .iter()
                .fold(own, |size, (key, node)| size.plus(&node.size(), key.len())),
            _ => own,
        }
    }

    /// Levels of lists and maps in this tree; 0 for a scalar.
    fn depth(&self) -> usize {
        match &self.tree {
            Tree::List(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Tree::Map(members) => 1 + members.values().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Names the file, variable or flag that this tree was read from.
    pub(crate) fn set_source(&mut self, source: &Arc<str>) {
        let at = self.at.get_or_insert(Position {
            source: None,
            line: 0,
            column: 0,
        });
        at.source = Some(Arc::clone(source));
        match &mut self.tree {
            Tree::List(items) => items.iter_mut().for_each(|item| item.set_source(source)),
            Tree::Map(members) => members
                .values_mut()
                .for_each(|node| node.set_source(source)),
            _ => {}
        }
    }
}

/// Size of a tree.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Nodes, the root included.
    nodes: usize,
    /// Bytes of keys and texts.
    bytes: usize,
}

impl Size {
    fn plus(self, other: &Self, key_bytes: usize) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            bytes: self
                .bytes
                .saturating_add(other.bytes)
                .saturating_add(key_bytes),
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

/// Reads one YAML or JSON document. An empty text is null.
///
/// # Errors
/// One mistake with line and column: bad syntax, a duplicate key, a second document, a limit passed.
pub fn parse(text: &str) -> Result<Node, ConfigErrors> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "has {} bytes; at most {MAX_TEXT_BYTES} are allowed",
            text.len()
        );
        return Err(ConfigError::new("", None, message)
            .with_hint("keep data in files of the context directory")
            .into());
    }
    if let Some(offset) = text.find('\0') {
        return Err(at_offset(text, offset, "holds a NUL character").into());
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match Builder::new(text).document() {
        // An escape (`"\0"`) spells what the text itself may not hold.
        Ok(node) => match node.first_nul() {
            Some(at) => Err(at.into()),
            None => Ok(node),
        },
        // JSON allows what YAML does not (tabs as indentation); a text that is good JSON is read as JSON.
        Err(error) => match json(text) {
            Some(Ok(node)) => match node.first_nul() {
                Some(at) => Err(at.into()),
                None => Ok(node),
            },
            Some(Err(duplicate)) => Err(duplicate.into()),
            None => Err(error.into()),
        },
    }
}

/// As [`parse`], for bytes that may not be UTF-8.
///
/// # Errors
/// As [`parse`]; also one that names the line of the first byte that is not UTF-8.
pub fn parse_bytes(bytes: &[u8]) -> Result<Node, ConfigErrors> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text),
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            Err(at_offset(&good, good.len(), "is not UTF-8 text").into())
        }
    }
}

/// A mistake of the whole document at a byte offset of the text.
fn at_offset(text: &str, offset: usize, message: &str) -> ConfigError {
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    ConfigError::new("", Some(&position(line, column)), message)
}

fn position(line: usize, column: usize) -> Position {
    Position {
        source: None,
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
    }
}

/// Builds the tree from the parser's events.
struct Builder<'text> {
    parser: Parser<'text, granit_parser::StrInput<'text>>,
    anchors: HashMap<usize, Arc<Node>>,
    copied: Size,
}

/// An event with the place where it starts.
type Placed<'text> = (Event<'text>, Position);

impl<'text> Builder<'text> {
    fn new(text: &'text str) -> Self {
        Self {
            parser: Parser::new_from_str(text),
            anchors: HashMap::new(),
            copied: Size::default(),
        }
    }

    /// The next event that is not a comment; `None` at the end.
    fn next(&mut self) -> Result<Option<Placed<'text>>, ConfigError> {
        loop {
            match self.parser.next_event() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => {
                    let at = position(span.start.line(), span.start.col() + 1);
                    return Ok(Some((event, at)));
                }
                Some(Err(error)) => {
                    let at = position(error.marker().line(), error.marker().col() + 1);
                    return Err(ConfigError::new(
                        "",
                        Some(&at),
                        format!("is not YAML: {}", error.info().replace('\n', " ")),
                    ));
                }
            }
        }
    }

    fn expect_next(&mut self) -> Result<Placed<'text>, ConfigError> {
        self.next()?
            .ok_or_else(|| ConfigError::new("", None, "is not YAML: the text ends too early"))
    }

    /// The one document of the text.
    fn document(&mut self) -> Result<Node, ConfigError> {
        let mut root = None;
        while let Some((event, at)) = self.next()? {
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(ConfigError::new(
                        "",
                        Some(&at),
                        "holds several documents; one is allowed",
                    )
                    .with_hint("remove the \"---\" in between"));
                }
                Event::DocumentStart(..) => {
                    let first = self.expect_next()?;
                    root = Some(self.node(first, 0)?);
                }
                Event::StreamEnd => break,
                other => {
                    return Err(ConfigError::new(
                        "",
                        Some(&at),
                        format!("is not YAML: unexpected {}", event_name(&other)),
                    ));
                }
            }
        }
        Ok(root.unwrap_or_else(|| Node::new(Tree::Null)))
    }

    /// The node that starts with this event, `depth` levels down.
    fn node(&mut self, (event, at): Placed<'text>, depth: usize) -> Result<Node, ConfigError> {
        if depth >= MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let (tree, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (scalar_tree(&text, style, tag.as_deref(), &at)?, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "seq", &at)?;
                (self.list(depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "map", &at)?;
                (self.map(depth)?, anchor)
            }
            Event::Alias(id) => return self.alias(id, &at, depth),
            other => {
                return Err(ConfigError::new(
                    "",
                    Some(&at),
                    format!("is not YAML: unexpected {}", event_name(&other)),
                ));
            }
        };
        let node = Node {
            tree,
            at: Some(at.clone()),
        };
        if anchor != 0 {
            // Kept beside the tree, so a copy as well: anchors around anchors would hold each level once more.
            self.count_copy(node.size(), &at)?;
            self.anchors.insert(anchor, Arc::new(node.clone()));
        }
        Ok(node)
    }

    /// Counts a copy that is about to be made, or refuses it.
    fn count_copy(&mut self, size: Size, at: &Position) -> Result<(), ConfigError> {
        self.copied = self.copied.plus(&size, 0);
        let what = if self.copied.nodes > MAX_ALIAS_NODES {
            format!("{MAX_ALIAS_NODES} values")
        } else if self.copied.bytes > MAX_ALIAS_BYTES {
            format!("{MAX_ALIAS_BYTES} bytes")
        } else {
            return Ok(());
        };
        Err(ConfigError::new(
            "",
            Some(at),
            format!("anchors and aliases expand to more than {what}"),
        ))
    }

    /// A copy of what the anchor named.
    fn alias(&mut self, id: usize, at: &Position, depth: usize) -> Result<Node, ConfigError> {
        let Some(target) = self.anchors.get(&id).map(Arc::clone) else {
            // The parser knows the anchor, so its node is the one being built.
            return Err(ConfigError::new(
                "",
                Some(at),
                "an alias stands inside the value that it names",
            ));
        };
        let (size, depth) = (target.size(), depth + target.depth());
        self.count_copy(size, at)?;
        if depth >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        Ok(Node {
            tree: target.tree.clone(),
            at: Some(at.clone()),
        })
    }

    fn list(&mut self, depth: usize) -> Result<Tree, ConfigError> {
        let mut items = Vec::new();
        loop {
            let next = self.expect_next()?;
            if matches!(next.0, Event::SequenceEnd) {
                return Ok(Tree::List(items));
            }
            items.push(self.node(next, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Tree, ConfigError> {
        let mut members: BTreeMap<String, Node> = BTreeMap::new();
        let mut merged: Option<Node> = None;
        loop {
            let next = self.expect_next()?;
            if matches!(next.0, Event::MappingEnd) {
                break;
            }
            let is_merge =
                matches!(&next.0, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let (key, at) = self.key(next)?;
            let value = self.expect_next()?;
            let mut node = self.node(value, depth + 1)?;
            node.at = Some(at.clone());
            if is_merge {
                if merged.replace(node).is_some() {
                    return Err(duplicate("<<", &at));
                }
            } else if members.insert(key.clone(), node).is_some() {
                return Err(duplicate(&key, &at));
            }
        }
        if let Some(source) = merged {
            for map in merge_sources(source)? {
                for (key, node) in map {
                    members.entry(key).or_insert(node);
                }
            }
        }
        Ok(Tree::Map(members))
    }

    /// A key of a map: scalars count as their text.
    fn key(&mut self, (event, at): Placed<'text>) -> Result<(String, Position), ConfigError> {
        match event {
            Event::Scalar(text, _, anchor, _) => {
                if anchor != 0 {
                    let node = Node {
                        tree: Tree::Text(text.clone().into_owned()),
                        at: Some(at.clone()),
                    };
                    self.count_copy(node.size(), &at)?;
                    self.anchors.insert(anchor, Arc::new(node));
                }
                Ok((Cow::into_owned(text), at))
            }
            Event::Alias(id) => match self.anchors.get(&id).and_then(|node| node.text()) {
                Some(text) => {
                    let text = text.to_owned();
                    let size = Size {
                        nodes: 1,
                        bytes: text.len(),
                    };
                    self.count_copy(size, &at)?;
                    Ok((text, at))
                }
                None => Err(bad_key(&at)),
            },
            _ => Err(bad_key(&at)),
        }
    }
}

/// The maps that a `<<` brings in, the stronger ones first.
fn merge_sources(node: Node) -> Result<Vec<BTreeMap<String, Node>>, ConfigError> {
    let at = node.at.clone();
    let wrong = || ConfigError::new("", at.as_ref(), "\"<<\" takes a map or a list of maps");
    match node.tree {
        Tree::Map(map) => Ok(vec![map]),
        Tree::List(items) => items
            .into_iter()
            .map(|item| match item.tree {
                Tree::Map(map) => Ok(map),
                _ => Err(wrong()),
            })
            .collect(),
        _ => Err(wrong()),
    }
}

fn duplicate(key: &str, at: &Position) -> ConfigError {
    ConfigError::new("", Some(at), format!("key \"{key}\" is given twice"))
}

fn bad_key(at: &Position) -> ConfigError {
    ConfigError::new("", Some(at), "a key must be a string, not a list or a map")
}

fn too_deep(at: &Position) -> ConfigError {
    ConfigError::new(
        "",
        Some(at),
        format!("is nested more than {MAX_DEPTH} levels deep"),
    )
}

fn event_name(event: &Event<'_>) -> &'static str {
    match event {
        Event::SequenceEnd => "end of a list",
        Event::MappingEnd => "end of a map",
        Event::DocumentEnd | Event::StreamEnd => "end of the text",
        Event::Alias(_) | Event::UnresolvedAlias(_) => "alias",
        _ => "content",
    }
}

/// Lists and maps may carry only their own tag.
fn check_tag(tag: Option<&Tag>, allowed: &str, at: &Position) -> Result<(), ConfigError> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(allowed) && tag.original() != "!" => {
            Err(foreign_tag(tag, at))
        }
        _ => Ok(()),
    }
}

fn foreign_tag(tag: &Tag, at: &Position) -> ConfigError {
    ConfigError::new(
        "",
        Some(at),
        format!("tag \"{}\" is not supported", tag.original()),
    )
}

/// A scalar by its tag, its quotes and its text.
fn scalar_tree(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: &Position,
) -> Result<Tree, ConfigError> {
    let resolved = || parse_scalar(text).map_err(|message| ConfigError::new("", Some(at), message));
    let Some(tag) = tag else {
        return if matches!(style, ScalarStyle::Plain) {
            resolved()
        } else {
            Ok(Tree::Text(text.to_owned()))
        };
    };
    let suffix = tag.core_suffix();
    if tag.original() == "!" || suffix == Some("str") {
        return Ok(Tree::Text(text.to_owned()));
    }
    let tree = match suffix {
        Some("int" | "float" | "bool" | "null") => resolved()?,
        _ => return Err(foreign_tag(tag, at)),
    };
    match (suffix, &tree) {
        (Some("int"), Tree::Number(number)) if scalar::integral(number).is_some() => Ok(tree),
        (Some("float"), Tree::Number(_))
        | (Some("bool"), Tree::Bool(_))
        | (Some("null"), Tree::Null) => Ok(tree),
        _ => Err(ConfigError::new(
            "",
            Some(at),
            format!("\"{text}\" is not what its tag \"{}\" says", tag.original()),
        )),
    }
}

/// Reads JSON, without places; `None` when it is not JSON, an error when it is but has a duplicate key.
fn json(text: &str) -> Option<Result<Node, ConfigError>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match JsonNode(0).deserialize(&mut reader) {
        Ok(node) => reader.end().is_ok().then_some(Ok(node)),
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

#[cfg(test)]
mod tests;
