//! YAML and JSON text as a tree whose nodes know where they are.
//!
//! Scalars follow the YAML 1.2 core schema, so `1e-3` is a number and `yes` a string. Duplicate keys are errors; anchors,
//! aliases and `<<` work; several documents, foreign tags and infinite numbers are refused with a sentence. Depth and
//! the number of nodes that aliases make are limited, so that no small text becomes a large tree.

mod cause;
mod emit;
mod json;
mod node;
mod scalar;
mod unclosed;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

// The event parser beneath serde-saphyr: an untyped tree with positions is more than serde's data model can carry.
use det_ids::one_line;
use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Tag};

use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, ErrorCode, MAX_REPORTED, Message};
use crate::origin::Position;
use crate::quote::cut;

pub(crate) use cause::lacks_colon;
pub use emit::to_yaml;
pub(crate) use json::from_value;
use node::Size;
pub use node::{Node, Tree};
pub use scalar::parse_scalar;

/// Deepest nesting of lists and maps; below the 128 that `serde_json` reads back.
pub const MAX_DEPTH: usize = 100;
/// Most nodes that anchors, aliases and merge keys may copy, over the whole text.
pub const MAX_ALIAS_NODES: usize = 50_000;
/// Most bytes of keys and texts that they may copy: a single long text, named a thousand times, is a large tree as well.
pub const MAX_ALIAS_BYTES: usize = 1 << 20;
/// Longest configuration in bytes. Tasks get at most 128 KiB of it, so the rest is for comments.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Most memory in bytes that the tree of a configuration may take, by a count that is never below the true size. It is
/// counted while the tree is built, and holds some 80,000 numbers in a list or 5,000 maps.
pub const MAX_TREE_BYTES: usize = 5 << 20;

/// How much a text may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of the text.
    pub text_bytes: usize,
    /// Most memory of the tree in bytes.
    pub tree_bytes: usize,
}

impl Limits {
    /// Configurations, from whomever they come.
    pub const CONFIGURATION: Self = Self {
        text_bytes: MAX_TEXT_BYTES,
        tree_bytes: MAX_TREE_BYTES,
    };
    /// Files that a user reads on the user's own machine, such as described workloads. Of the densest text the tree is
    /// some four hundred times as large.
    pub const OWN_FILE: Self = Self {
        text_bytes: 4 << 20,
        tree_bytes: usize::MAX,
    };
}

/// A text as far as it could be read, with the errors that do not keep the rest from being checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    /// The tree; of a key that is given twice it has the first value.
    pub(crate) root: Node,
    /// Keys given twice, and values that are none.
    pub(crate) errors: Vec<ConfigError>,
    /// Values without quotes that YAML 1.1 read as something else; at most [`MAX_REPORTED`].
    pub(crate) ambiguous: Vec<ConfigWarning>,
}

/// Reads one YAML or JSON document. An empty text is null.
///
/// # Errors
/// What is wrong, with line and column: bad syntax, keys given twice, a second document, a limit passed.
pub fn parse(text: &str) -> Result<Node, ConfigErrors> {
    parse_within(text, Limits::CONFIGURATION)
}

/// As [`parse`], within other limits.
///
/// # Errors
/// As [`parse`].
pub fn parse_within(text: &str, limits: Limits) -> Result<Node, ConfigErrors> {
    let Reading { root, errors, .. } = read_within(text, limits)?;
    ConfigErrors::check(errors)?;
    Ok(root)
}

/// As [`parse`], but a key that is given twice, or a value that is none, is no reason to look no further.
///
/// # Errors
/// One error with line and column: bad syntax, a second document, a limit passed.
pub(crate) fn read(text: &str) -> Result<Reading, ConfigErrors> {
    read_within(text, Limits::CONFIGURATION)
}

fn read_within(text: &str, limits: Limits) -> Result<Reading, ConfigErrors> {
    if text.len() > limits.text_bytes {
        let message = ErrorCode::TooLarge.message(format!(
            "has {} bytes; at most {} are allowed",
            text.len(),
            limits.text_bytes
        ));
        return Err(ConfigError::new("", None, message)
            .with_hint("keep data in files of the context directory")
            .into());
    }
    if let Some(offset) = text.find('\0') {
        return Err(at_offset(
            text,
            offset,
            ErrorCode::Syntax.message("holds a NUL character"),
        )
        .into());
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let reading = match Builder::new(text, limits).document() {
        Ok(reading) => reading,
        // Whatever it is, it is too large.
        Err(error) if error.code == ErrorCode::TooLarge => return Err(error.into()),
        // JSON allows what YAML does not (tabs as indentation); a text that is good JSON is read as JSON.
        Err(error) => match json::read(text, limits) {
            Some(read) => read?,
            None => return Err(cause::explained(text, error).into()),
        },
    };
    // An escape (`"\0"`) spells what the text itself may not hold.
    match reading.root.first_nul() {
        Some(at) => Err(at.into()),
        None => Ok(reading),
    }
}

/// Whether the parser's error contains one of these words. Its errors have a text and no kind, so nothing else
/// distinguishes them; only hints depend on this.
fn parser_mentions(error: &ConfigError, words: &[&str]) -> bool {
    error.code == ErrorCode::Syntax && words.iter().any(|word| error.message.contains(word))
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
            Err(at_offset(
                &good,
                good.len(),
                ErrorCode::Syntax.message("is not UTF-8 text"),
            )
            .into())
        }
    }
}

/// An error of the whole document at a byte offset of the text.
fn at_offset(text: &str, offset: usize, message: Message) -> ConfigError {
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
    /// Memory in bytes that the tree may still take.
    left: usize,
    limits: Limits,
    /// Path of the node that is being read: `.key` and `[index]`.
    path: Vec<String>,
    errors: Vec<ConfigError>,
    ambiguous: Vec<ConfigWarning>,
}

/// An event with the place where it starts.
type LocatedEvent<'text> = (Event<'text>, Position);

impl<'text> Builder<'text> {
    fn new(text: &'text str, limits: Limits) -> Self {
        Self {
            parser: Parser::new_from_str(text),
            anchors: HashMap::new(),
            copied: Size::default(),
            left: limits.tree_bytes,
            limits,
            path: Vec::new(),
            errors: Vec::new(),
            ambiguous: Vec::new(),
        }
    }

    /// The next event that is not a comment; `None` at the end.
    fn next(&mut self) -> Result<Option<LocatedEvent<'text>>, ConfigError> {
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
                        ErrorCode::Syntax
                            .message(format!("is not YAML: {}", one_line(&error.info()))),
                    ));
                }
            }
        }
    }

    fn expect_next(&mut self) -> Result<LocatedEvent<'text>, ConfigError> {
        self.next()?.ok_or_else(|| {
            ConfigError::new(
                "",
                None,
                ErrorCode::Syntax.message("is not YAML: the text ends too early"),
            )
        })
    }

    /// The one document of the text.
    fn document(mut self) -> Result<Reading, ConfigError> {
        let mut root = None;
        while let Some((event, at)) = self.next()? {
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(ConfigError::new(
                        "",
                        Some(&at),
                        ErrorCode::Syntax.message("holds several documents; one is allowed"),
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
                        ErrorCode::Syntax
                            .message(format!("is not YAML: unexpected {}", event_name(&other))),
                    ));
                }
            }
        }
        Ok(Reading {
            root: root.unwrap_or_else(|| Node {
                tree: Tree::Null,
                at: Some(position(1, 1)),
            }),
            errors: self.errors,
            ambiguous: self.ambiguous,
        })
    }

    /// The node that starts with this event, `depth` levels down.
    fn node(
        &mut self,
        (event, at): LocatedEvent<'text>,
        depth: usize,
    ) -> Result<Node, ConfigError> {
        if depth >= MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let (tree, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.charge(node::NODE_BYTES.saturating_add(text.len()), &at)?;
                if matches!(style, ScalarStyle::Plain) && tag.is_none() {
                    self.note_ambiguous(&text, &at);
                }
                let tree = scalar_tree(&text, style, tag.as_deref());
                // As if the value were absent: the rest is checked all the same.
                let tree = tree.unwrap_or_else(|message| {
                    self.note(&at, message);
                    Tree::Null
                });
                (tree, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.charge(node::LIST_BYTES, &at)?;
                if let Some(message) = foreign(tag.as_deref(), "seq") {
                    self.note(&at, message);
                }
                (self.list(depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.charge(node::MAP_BYTES, &at)?;
                if let Some(message) = foreign(tag.as_deref(), "map") {
                    self.note(&at, message);
                }
                (self.map(depth)?, anchor)
            }
            Event::Alias(id) => return self.alias(id, &at, depth),
            other => {
                return Err(ConfigError::new(
                    "",
                    Some(&at),
                    ErrorCode::Syntax
                        .message(format!("is not YAML: unexpected {}", event_name(&other))),
                ));
            }
        };
        let node = Node {
            tree,
            at: Some(at.clone()),
        };
        if anchor != 0 {
            // Kept in addition to the tree, so a copy as well: anchors around anchors would hold each level once more.
            self.count_copy(node.size(), &at)?;
            self.anchors.insert(anchor, Arc::new(node.clone()));
        }
        Ok(node)
    }

    /// Counts memory that the tree is about to take, or refuses it.
    fn charge(&mut self, bytes: usize, at: &Position) -> Result<(), ConfigError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(too_large(Some(at), self.limits)),
        }
    }

    /// Counts a copy that is about to be made, or refuses it.
    fn count_copy(&mut self, size: Size, at: &Position) -> Result<(), ConfigError> {
        self.copied = self.copied.plus(&size, 0);
        self.charge(size.memory, at)?;
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
                "an alias is inside the value that it names",
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
            self.path.push(format!("[{}]", items.len()));
            items.push(self.node(next, depth + 1)?);
            self.path.pop();
        }
    }

    fn map(&mut self, depth: usize) -> Result<Tree, ConfigError> {
        let mut members: BTreeMap<String, Node> = BTreeMap::new();
        let mut merged: Option<Node> = None;
        let mut empty: Option<String> = None;
        loop {
            let next = self.expect_next()?;
            if matches!(next.0, Event::MappingEnd) {
                break;
            }
            let is_merge =
                matches!(&next.0, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let (key, at) = self.key(next)?;
            self.charge(node::MEMBER_BYTES.saturating_add(key.len()), &at)?;
            let value = self.expect_next()?;
            self.path.push(format!(".{key}"));
            let mut node = self.node(value, depth + 1)?;
            node.at = Some(at.clone());
            let first = if is_merge {
                merged.as_ref()
            } else {
                members.get(&key)
            };
            match first {
                Some(first) => {
                    self.errors.push(self.duplicate(&at, first.at.as_ref()));
                    // Right behind a section without a value it lost its indentation: what is meant is shown with it.
                    if let Some(section) = empty.take().and_then(|name| members.get_mut(&name)) {
                        section.tree = Tree::Map(BTreeMap::from([(key, node)]));
                    }
                }
                None if is_merge => merged = Some(node),
                None => {
                    empty = matches!(node.tree, Tree::Null).then(|| key.clone());
                    members.insert(key, node);
                }
            }
            self.path.pop();
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

    /// Notes an error at the current path.
    fn note(&mut self, at: &Position, message: String) {
        let error = ConfigError::new(self.current_path(), Some(at), message);
        self.errors.push(error);
    }

    /// Notes a value that YAML 1.1 read as something else.
    fn note_ambiguous(&mut self, text: &str, at: &Position) {
        if self.ambiguous.len() < MAX_REPORTED
            && let Some(before) = scalar::in_yaml_1_1(text)
        {
            let now = match parse_scalar(text) {
                Ok(Tree::Number(number)) => format!("the number {number}"),
                _ => "text".to_owned(),
            };
            let message = format!(
                "{text} without quotes is {now} here, where YAML 1.1 read {before}; write {before}, or \"{text}\" in quotes"
            );
            let warning = ConfigWarning::new(self.current_path(), Some(at), message);
            self.ambiguous.push(warning);
        }
    }

    fn current_path(&self) -> String {
        let path = self.path.concat();
        path.strip_prefix('.').unwrap_or(&path).to_owned()
    }

    /// The error that the key at the current path is given a second time.
    fn duplicate(&self, at: &Position, first: Option<&Position>) -> ConfigError {
        let error = ConfigError::new(
            self.current_path(),
            Some(at),
            ErrorCode::DuplicateKey.message("is given twice"),
        );
        match first {
            Some(first) => error.with_hint(format!("the first one is on line {}", first.line)),
            None => error,
        }
    }

    /// A key of a map: scalars count as their text.
    fn key(&mut self, (event, at): LocatedEvent<'text>) -> Result<(String, Position), ConfigError> {
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
                        // Counted as a key.
                        memory: 0,
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

fn bad_key(at: &Position) -> ConfigError {
    ConfigError::new(
        "",
        Some(at),
        ErrorCode::Syntax.message("a key must be a string, not a list or a map"),
    )
}

fn too_large(at: Option<&Position>, limits: Limits) -> ConfigError {
    ConfigError::new(
        "",
        at,
        ErrorCode::TooLarge.message(format!(
            "has too many values: read up to here they take the {} bytes of memory that are allowed",
            limits.tree_bytes
        )),
    )
    .with_hint("keep data in files of the context directory")
}

fn too_deep(at: &Position) -> ConfigError {
    ConfigError::new(
        "",
        Some(at),
        ErrorCode::TooLarge.message(format!("is nested more than {MAX_DEPTH} levels deep")),
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

/// What is wrong with the tag of a list or a map: they may carry only their own.
fn foreign(tag: Option<&Tag>, allowed: &str) -> Option<String> {
    let tag = tag?;
    let own = tag.core_suffix() == Some(allowed) || tag.original() == "!";
    (!own).then(|| unsupported(tag))
}

fn unsupported(tag: &Tag) -> String {
    format!("tag \"{}\" is not supported", tag.original())
}

/// A scalar by its tag, its quotes and its text.
fn scalar_tree(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Tree, String> {
    let Some(tag) = tag else {
        return if matches!(style, ScalarStyle::Plain) {
            parse_scalar(text)
        } else {
            Ok(Tree::Text(text.to_owned()))
        };
    };
    let suffix = tag.core_suffix();
    if tag.original() == "!" || suffix == Some("str") {
        return Ok(Tree::Text(text.to_owned()));
    }
    let tree = match suffix {
        Some("int" | "float" | "bool" | "null") => parse_scalar(text)?,
        _ => return Err(unsupported(tag)),
    };
    match (suffix, &tree) {
        (Some("int"), Tree::Number(number)) if scalar::integral(number).is_some() => Ok(tree),
        (Some("float"), Tree::Number(_))
        | (Some("bool"), Tree::Bool(_))
        | (Some("null"), Tree::Null) => Ok(tree),
        _ => Err(format!(
            "\"{}\" does not fit its tag \"{}\"",
            cut(text),
            tag.original()
        )),
    }
}

#[cfg(test)]
mod tests;
