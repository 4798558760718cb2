//! What a configuration may hold, as data, and the walks over it: check, fill in defaults, hide secrets, list leaves.
//!
//! Keeping the keys as data instead of code is what allows hints ("did you mean"), environment names for every leaf
//! and one place for each default.

mod walk;

use crate::errors::{ConfigError, ConfigErrors, MAX_TOLD, Position, edit_distance};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

#[cfg(test)]
pub(crate) use walk::assert_defaults_are_json;
pub(crate) use walk::{Leaf, MASK, fill_defaults, leaves, mask, mask_all};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Bool,
    /// An integer within these bounds, both included.
    Int(i64, i64),
    /// A number above the bound.
    Above(f64),
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A duration as text.
    Duration,
    /// Anything, kept as it is.
    Any,
    /// A map with any content, kept as it is.
    AnyMap,
    List(&'static Kind),
    /// A map with free keys.
    Map(&'static Kind),
    Section(&'static Section),
    Union(&'static Union),
    /// Text with a rule of its own, which may also rewrite the value into its normal form.
    TextBy(fn(&mut Checker, &mut Node)),
    /// A shape with a rule of its own, which may also rewrite the value into its normal form.
    Custom(fn(&mut Checker, &mut Node)),
}

impl Kind {
    fn holds_secrets(self) -> bool {
        let any = |fields: &[Field]| fields.iter().any(Field::holds_secrets);
        match self {
            Self::Section(section) => any(section.fields),
            Self::Union(union) => {
                any(union.common) || union.variants.iter().any(|variant| any(variant.fields))
            }
            Self::List(item) | Self::Map(item) => item.holds_secrets(),
            _ => false,
        }
    }
}

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) fields: &'static [Field],
    /// Old or alternative names: `(old, new, whether to warn)`.
    pub(crate) aliases: &'static [(&'static str, &'static str, bool)],
    /// Rules between fields; runs when the fields themselves have been looked at.
    pub(crate) check: Option<fn(&mut Checker, &Node)>,
}

/// A map whose `tag` key chooses further keys.
#[derive(Debug)]
pub(crate) struct Union {
    pub(crate) tag: &'static str,
    /// What an absent tag means once everything is merged; `None` = the tag is needed.
    pub(crate) default_tag: Option<&'static str>,
    pub(crate) common: &'static [Field],
    pub(crate) variants: &'static [Variant],
    pub(crate) check: Option<fn(&mut Checker, &Node)>,
    pub(crate) aliases: &'static [(&'static str, &'static str, bool)],
}

#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
    pub(crate) note: Note,
}

/// When a field must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Optional,
    /// Wherever its section is given.
    Always,
    /// Once all layers are merged.
    Finally,
}

/// What to tell a person who gives a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Nothing,
    /// Kept, but nothing acts on it yet.
    Kept,
    /// Accepted for old files, with this explanation.
    Warn(&'static str),
}

/// A key of a section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) need: Need,
    /// JSON.
    pub(crate) default: Option<&'static str>,
    pub(crate) secret: bool,
    pub(crate) note: Note,
}

/// An optional key without default.
pub(crate) const fn field(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        need: Need::Optional,
        default: None,
        secret: false,
        note: Note::Nothing,
    }
}

impl Field {
    /// Whether it is a secret, or has one somewhere below it.
    pub(crate) fn holds_secrets(&self) -> bool {
        self.secret || self.kind.holds_secrets()
    }

    pub(crate) const fn or(mut self, json: &'static str) -> Self {
        self.default = Some(json);
        self
    }

    pub(crate) const fn always(mut self) -> Self {
        self.need = Need::Always;
        self
    }

    pub(crate) const fn finally(mut self) -> Self {
        self.need = Need::Finally;
        self
    }

    pub(crate) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    pub(crate) const fn kept(mut self) -> Self {
        self.note = Note::Kept;
        self
    }

    pub(crate) const fn warn(mut self, why: &'static str) -> Self {
        self.note = Note::Warn(why);
        self
    }
}

pub(crate) const fn section(fields: &'static [Field]) -> Section {
    Section {
        fields,
        aliases: &[],
        check: None,
    }
}

impl Section {
    pub(crate) const fn aliases(
        mut self,
        aliases: &'static [(&'static str, &'static str, bool)],
    ) -> Self {
        self.aliases = aliases;
        self
    }

    pub(crate) const fn check(mut self, check: fn(&mut Checker, &Node)) -> Self {
        self.check = Some(check);
        self
    }
}

pub(crate) const fn variant(name: &'static str, fields: &'static [Field]) -> Variant {
    Variant {
        name,
        fields,
        note: Note::Nothing,
    }
}

impl Variant {
    pub(crate) const fn kept(mut self) -> Self {
        self.note = Note::Kept;
        self
    }
}

/// Bounds of common integers.
pub(crate) const NATURAL: Kind = Kind::Int(0, i64::MAX);
/// From 1 on.
pub(crate) const POSITIVE: Kind = Kind::Int(1, i64::MAX);
/// What fits in 32 bits.
pub(crate) const NATURAL_32: Kind = Kind::Int(0, u32::MAX as i64);
/// A TCP port, 0 included where it means "choose".
pub(crate) const PORT: Kind = Kind::Int(0, 65_535);

/// How complete the document has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// As submitted: what other layers may bring can be missing.
    Sane,
    /// All layers are merged.
    Complete,
}

#[derive(Debug, Clone)]
enum Segment {
    Key(String),
    Index(usize),
}

/// Collects mistakes and warnings on a walk through a document.
pub(crate) struct Checker {
    pub(crate) stage: Stage,
    pub(crate) errors: Vec<ConfigError>,
    pub(crate) warnings: Vec<String>,
    path: Vec<Segment>,
    root: &'static Section,
    /// Keys that people misplace: leaf name, where it belongs.
    suggestions: &'static [(&'static str, &'static str)],
}

impl Checker {
    pub(crate) fn new(
        root: &'static Section,
        suggestions: &'static [(&'static str, &'static str)],
        stage: Stage,
    ) -> Self {
        Self {
            stage,
            errors: Vec::new(),
            warnings: Vec::new(),
            path: Vec::new(),
            root,
            suggestions,
        }
    }

    /// Checks a whole document; on success gives back the warnings.
    pub(crate) fn run(mut self, node: &mut Node) -> Result<Vec<String>, ConfigErrors> {
        self.section(node, self.root);
        ConfigErrors::check(self.errors)?;
        Ok(self.warnings)
    }

    /// The path of the value being looked at.
    pub(crate) fn path(&self) -> String {
        let mut out = String::new();
        for segment in &self.path {
            match segment {
                Segment::Index(index) => {
                    out.push('[');
                    out.push_str(&index.to_string());
                    out.push(']');
                }
                Segment::Key(key) if is_plain_key(key) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    out += key;
                }
                Segment::Key(key) => {
                    let quoted = format!("[{key:?}]");
                    out.push_str(&quoted);
                }
            }
        }
        out
    }

    /// Records a mistake at the current path.
    pub(crate) fn error(&mut self, at: Option<&Position>, message: impl Into<String>) {
        let error = ConfigError::new(self.path(), at, message);
        self.errors.push(error);
    }

    /// Records a mistake with advice at the current path.
    pub(crate) fn error_hint(
        &mut self,
        at: Option<&Position>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let error = ConfigError::new(self.path(), at, message).with_hint(hint);
        self.errors.push(error);
    }

    /// Records a mistake below the current path.
    pub(crate) fn error_in(
        &mut self,
        key: &str,
        at: Option<&Position>,
        message: impl Into<String>,
    ) {
        self.within(key, |checker| checker.error(at, message));
    }

    /// Records a warning that starts with the current path.
    pub(crate) fn warn(&mut self, text: &str) {
        let warning = format!("{}: {text}", self.path());
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Works one key further down.
    pub(crate) fn within<T>(&mut self, key: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(Segment::Key(key.to_owned()));
        let result = work(self);
        self.path.pop();
        result
    }

    /// Works on one element of a list.
    pub(crate) fn within_index<T>(&mut self, index: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(Segment::Index(index));
        let result = work(self);
        self.path.pop();
        result
    }

    fn mismatch(&mut self, node: &Node, expected: &str) {
        let message = format!("must be {expected}, not {}", node.kind());
        match node.text() {
            Some(text) if expected == "true or false" => {
                let hint = match text.to_ascii_lowercase().as_str() {
                    "yes" | "on" | "y" | "true" => "write true without quotes",
                    "no" | "off" | "n" | "false" => "write false without quotes",
                    _ => return self.error(node.at.as_ref(), message),
                };
                self.error_hint(node.at.as_ref(), message, hint);
            }
            None if expected == "a string"
                && matches!(node.tree, Tree::Number(_) | Tree::Bool(_)) =>
            {
                self.error_hint(node.at.as_ref(), message, "put it in quotes");
            }
            _ => self.error(node.at.as_ref(), message),
        }
    }

    /// Checks one value and brings it into its normal form.
    pub(crate) fn value(&mut self, node: &mut Node, kind: Kind) {
        match kind {
            Kind::Any => {}
            Kind::AnyMap => {
                if node.members().is_none() {
                    self.mismatch(node, "a map");
                }
            }
            Kind::Bool => {
                if !matches!(node.tree, Tree::Bool(_)) {
                    self.mismatch(node, "true or false");
                }
            }
            Kind::Int(min, max) => self.int(node, min, max),
            Kind::Above(bound) => match &node.tree {
                Tree::Number(number) if number.as_f64().is_some_and(|value| value > bound) => {}
                Tree::Number(number) => {
                    let message = format!("must be above {bound}, not {number}");
                    self.error(node.at.as_ref(), message);
                }
                _ => self.mismatch(node, "a number"),
            },
            Kind::Text => {
                if node.text().is_none() {
                    self.mismatch(node, "a string");
                }
            }
            Kind::Choice(words) => self.choice(node, words),
            Kind::Duration => match node.text().map(parse_duration) {
                Some(Ok(_)) => {}
                Some(Err(message)) => self.error(node.at.as_ref(), message),
                None => self.mismatch(node, "a duration like \"25s\""),
            },
            Kind::List(item) => match &mut node.tree {
                Tree::List(items) => {
                    for (index, element) in items.iter_mut().enumerate() {
                        self.within_index(index, |checker| checker.value(element, *item));
                    }
                }
                _ => self.mismatch(node, "a list"),
            },
            Kind::Map(item) => match &mut node.tree {
                Tree::Map(members) => {
                    members.retain(|_, member| !matches!(member.tree, Tree::Null));
                    for (key, member) in members {
                        self.within(key, |checker| checker.value(member, *item));
                    }
                }
                _ => self.mismatch(node, "a map"),
            },
            Kind::Section(section) => self.section(node, section),
            Kind::Union(union) => self.union(node, union),
            Kind::TextBy(check) | Kind::Custom(check) => check(self, node),
        }
    }

    fn int(&mut self, node: &mut Node, min: i64, max: i64) {
        if !matches!(node.tree, Tree::Number(_)) {
            return self.mismatch(node, "an integer");
        }
        match node.integer() {
            Some(value) if (min..=max).contains(&value) => node.tree = Tree::Number(value.into()),
            Some(value) if value < min => {
                self.error(
                    node.at.as_ref(),
                    format!("must be at least {min}, not {value}"),
                );
            }
            Some(value) => {
                self.error(
                    node.at.as_ref(),
                    format!("must be at most {max}, not {value}"),
                );
            }
            None => self.error(node.at.as_ref(), "must be an integer"),
        }
    }

    fn choice(&mut self, node: &Node, words: &'static [&'static str]) {
        match node.text() {
            Some(text) if words.contains(&text) => {}
            Some(text) => {
                let message = format!("must be one of {}, not \"{text}\"", quoted(words));
                match closest(text, words.iter().copied()) {
                    Some(word) => {
                        self.error_hint(
                            node.at.as_ref(),
                            message,
                            format!("did you mean \"{word}\"?"),
                        );
                    }
                    None => self.error(node.at.as_ref(), message),
                }
            }
            None => self.mismatch(node, &format!("one of {}", quoted(words))),
        }
    }

    pub(crate) fn section(&mut self, node: &mut Node, section: &'static Section) {
        let at = node.at.clone();
        if node.members().is_none() {
            return self.mismatch(node, "a map");
        }
        self.rename(node, section.aliases);
        let names: Vec<&'static str> = section.fields.iter().map(|field| field.name).collect();
        self.unknown_keys(node, &names, "");
        self.fields(node, at.as_ref(), section.fields, "");
        if let Some(check) = section.check {
            check(self, node);
        }
    }

    /// Gives old names their new ones and drops nulls: a null is the same as nothing.
    fn rename(&mut self, node: &mut Node, aliases: &[(&'static str, &'static str, bool)]) {
        let Some(members) = node.members_mut() else {
            return;
        };
        members.retain(|_, member| !matches!(member.tree, Tree::Null));
        for (old, new, warn) in aliases {
            let Some(value) = members.remove(*old) else {
                continue;
            };
            if *warn {
                self.within(old, |checker| {
                    checker.warn(&format!("is the old name of \"{new}\""));
                });
            }
            members.entry((*new).to_owned()).or_insert(value);
        }
    }

    /// Refuses keys that are not in `names`; `of` names the variant they would have to belong to.
    fn unknown_keys(&mut self, node: &Node, names: &[&'static str], of: &str) {
        for (key, member) in node.members().into_iter().flatten() {
            if names.contains(&key.as_str()) {
                continue;
            }
            // A text that is none of ours has thousands of them, and only the first mistakes are told.
            let told = self.errors.len() < MAX_TOLD;
            let hint = told.then(|| self.hint(key, names)).flatten();
            let message = if told && hint.is_none() {
                format!("is not a known key{of}; known are {}", quoted(names))
            } else {
                format!("is not a known key{of}")
            };
            self.within(key, |checker| {
                let error = ConfigError::new(checker.path(), member.at.as_ref(), message);
                checker.errors.push(ConfigError { hint, ..error });
            });
        }
    }

    /// What an unknown key may have meant.
    fn hint(&self, key: &str, siblings: &[&'static str]) -> Option<String> {
        if let Some((_, place)) = self.suggestions.iter().find(|(leaf, _)| *leaf == key) {
            return Some(format!("did you mean \"{place}\"?"));
        }
        if let Some(sibling) = closest(key, siblings.iter().copied()) {
            return Some(format!("did you mean \"{sibling}\"?"));
        }
        let here = match self.path() {
            path if path.is_empty() => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        let places: Vec<String> = leaves(self.root)
            .into_iter()
            .map(|leaf| leaf.path)
            .filter(|path| path.rsplit('.').next() == Some(key) && *path != here)
            .collect();
        // A leaf name that occurs all over the schema says nothing.
        (1..=3)
            .contains(&places.len())
            .then(|| format!("did you mean {}?", quoted_or(&places)))
    }

    fn fields(
        &mut self,
        node: &mut Node,
        at: Option<&Position>,
        fields: &'static [Field],
        of: &str,
    ) {
        for field in fields {
            if let Some(member) = node.get_mut(field.name) {
                self.within(field.name, |checker| {
                    checker.note(field.note);
                    checker.value(member, field.kind);
                });
                continue;
            }
            let needed = match field.need {
                Need::Optional => false,
                Need::Always => true,
                Need::Finally => self.stage == Stage::Complete && field.default.is_none(),
            };
            if needed {
                self.error_in(field.name, at, format!("is required{of}"));
            }
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Nothing => {}
            Note::Kept => self.warn("is accepted and kept but not acted on yet"),
            Note::Warn(why) => self.warn(why),
        }
    }

    fn union(&mut self, node: &mut Node, union: &'static Union) {
        let at = node.at.clone();
        if node.members().is_none() {
            return self.mismatch(node, "a map");
        }
        self.rename(node, union.aliases);
        let words = || quoted_list(union.variants.iter().map(|variant| variant.name));
        let tag = node.get(union.tag).cloned().or_else(|| {
            union
                .default_tag
                .map(|tag| Node::new(Tree::Text(tag.to_owned())))
        });
        let Some(tag) = tag else {
            if self.stage == Stage::Complete {
                let message = format!("is required: one of {}", words());
                self.error_in(union.tag, at.as_ref(), message);
            } else {
                // Which keys are allowed shows only when a lower layer has brought the tag.
                let names = union_names(union, None);
                self.unknown_keys(node, &names, "");
                self.fields(node, at.as_ref(), union.common, "");
            }
            return;
        };
        let Some(chosen) = union
            .variants
            .iter()
            .find(|variant| tag.text() == Some(variant.name))
        else {
            let given = tag
                .text()
                .map_or_else(|| tag.kind().to_owned(), |text| format!("\"{text}\""));
            let message = format!("must be one of {}, not {given}", words());
            return self.error_in(union.tag, tag.at.as_ref(), message);
        };
        if chosen.note != Note::Nothing {
            let text = format!(
                "\"{}\" is accepted and kept but not acted on yet",
                chosen.name
            );
            self.within(union.tag, |checker| checker.warn(&text));
        }
        let names = union_names(union, Some(chosen));
        let of = format!(" for {} \"{}\"", union.tag, chosen.name);
        self.unknown_keys(node, &names, &of);
        self.fields(node, at.as_ref(), union.common, "");
        self.fields(node, at.as_ref(), chosen.fields, &of);
        if let Some(check) = union.check {
            check(self, node);
        }
    }
}

/// The keys of one variant of a union, or of all.
fn union_names(union: &'static Union, only: Option<&Variant>) -> Vec<&'static str> {
    let mut names = vec![union.tag];
    names.extend(union.common.iter().map(|field| field.name));
    for variant in union.variants {
        if only.is_none_or(|only| only.name == variant.name) {
            names.extend(variant.fields.iter().map(|field| field.name));
        }
    }
    names
}

/// Whether a key needs no quotes in a path.
fn is_plain_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/'))
}

fn quoted(words: &[&str]) -> String {
    quoted_list(words.iter().copied())
}

fn quoted_list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}

fn quoted_or(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    words.join(" or ")
}

/// The candidate nearest to `word`, at most two edits away and not a wholly different word.
fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .filter_map(|candidate| Some((edit_distance(word, candidate, 2)?, candidate)))
        .filter(|(distance, candidate)| *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}
