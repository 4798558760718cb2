//! Holds a document against the schema: every error with its place, its path, what was found and what is allowed.

mod empty;
mod lost;
mod unknown;

use std::collections::HashSet;

use super::{Aliases, Document, Field, Kind, Need, Note, Section, Union, Variant};
use crate::errors::{
    ConfigError, ConfigErrors, ConfigWarning, ErrorCode, MAX_KEPT, MAX_REPORTED, Message,
    drop_missing_of_given, each_once,
};
use crate::origin::Position;
use crate::quote::{MAX_QUOTED, cut, quoted, quoted_list};
use crate::secrets::{found_text, is_place_of_secrets};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

use unknown::other_variant;
pub(crate) use unknown::{closest, snake};

/// How complete the document has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// As submitted: what other layers may bring can be missing.
    Sane,
    /// All layers are merged.
    Complete,
    /// As stored by an earlier version: complete, and what was removed since is read.
    Stored,
}

impl Stage {
    /// Whether everything that is needed must be there.
    pub(crate) fn is_complete(self) -> bool {
        self != Self::Sane
    }
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A member of a map.
    Key(String),
    /// An element of a list.
    Index(usize),
    /// The element of a list of maps whose `name` this is.
    Named(&'static str),
}

/// A value that is in the wrong place, in a way that is well known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misplaced {
    pub(crate) from: Vec<Segment>,
    pub(crate) to: Vec<Segment>,
}

/// Collects errors and warnings on a walk through a document.
pub(crate) struct Checker {
    pub(crate) stage: Stage,
    pub(crate) errors: Vec<ConfigError>,
    pub(crate) warnings: Vec<ConfigWarning>,
    path: Vec<Segment>,
    document: &'static Document,
    /// What could be put right by moving it.
    pub(crate) misplaced: Vec<Misplaced>,
    /// Paths of keys that unknown ones most likely meant: to report these as missing as well would be to report one error twice.
    pub(crate) meant: Vec<String>,
    /// Keys that are written without a value, with their places.
    empty: Vec<(String, Position)>,
    /// Above 0 below a secret: values are not quoted.
    hush: usize,
}

/// The errors of a layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LayerErrors {
    pub(crate) errors: Vec<ConfigError>,
    /// See [`Checker::meant`].
    pub(crate) meant: Vec<String>,
    /// See [`Checker::empty`].
    pub(crate) empty: Vec<(String, Position)>,
}

impl LayerErrors {
    pub(crate) fn extend(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.meant.extend(other.meant);
        self.empty.extend(other.empty);
    }
}

impl Checker {
    pub(crate) fn new(document: &'static Document, stage: Stage) -> Self {
        Self {
            stage,
            errors: Vec::new(),
            warnings: Vec::new(),
            path: Vec::new(),
            document,
            misplaced: Vec::new(),
            meant: Vec::new(),
            empty: Vec::new(),
            hush: 0,
        }
    }

    /// The document that is checked.
    pub(crate) fn document(&self) -> &'static Document {
        self.document
    }

    /// Translates older forms and checks a whole document; on success gives back the warnings.
    pub(crate) fn run(mut self, node: &mut Node) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        self.check(node);
        self.finish()
    }

    /// Translates older forms and checks a whole document.
    pub(crate) fn check(&mut self, node: &mut Node) {
        (self.document.translate)(self, node);
        self.value(node, Kind::Section(self.document.root));
    }

    /// Adds errors that were found before, in the layers that this document is made of, and drops those about missing
    /// keys that the earlier ones explain.
    pub(crate) fn add_earlier(&mut self, earlier: LayerErrors) {
        // A document that is not even a map misses everything.
        let is_no_map = earlier.errors.iter().any(|error| error.path.is_empty());
        // What an unknown key most likely meant is found better in its layer than in the whole.
        let place = |error: &ConfigError| {
            let at = (error.line, error.column);
            (error.path.clone(), error.source.clone(), at)
        };
        let unknown = earlier
            .errors
            .iter()
            .filter(|e| e.code == ErrorCode::UnknownKey);
        let reported: HashSet<_> = unknown.map(place).collect();
        self.errors.retain(|error| {
            let said = |meant: &String| {
                *meant == error.path
                    || meant
                        .strip_prefix(error.path.as_str())
                        .is_some_and(|rest| rest.starts_with('.'))
            };
            !(error.code == ErrorCode::Missing && (is_no_map || earlier.meant.iter().any(said)))
                && !(error.code == ErrorCode::UnknownKey && reported.contains(&place(error)))
        });
        self.errors.extend(earlier.errors);
        self.empty.extend(earlier.empty);
        self.merge_related();
    }

    /// The errors and the warnings so far.
    pub(crate) fn taken(mut self) -> (LayerErrors, Vec<ConfigWarning>) {
        self.merge_related();
        let errors = LayerErrors {
            errors: self.errors,
            meant: self.meant,
            empty: self.empty,
        };
        (errors, each_once(self.warnings))
    }

    /// The warnings, each once, unless there are errors.
    pub(crate) fn finish(mut self) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        self.merge_related();
        ConfigErrors::check(self.errors)?;
        Ok(each_once(self.warnings))
    }

    /// Brings the errors together: what is missing is reported where its key is written without a value, and not at all
    /// where another error is about the value.
    fn merge_related(&mut self) {
        drop_missing_of_given(&mut self.errors);
        self.place_missing_at_empty_keys();
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
                Segment::Key(key) => push_key(&mut out, key),
                Segment::Named(name) => push_key(&mut out, name),
            }
        }
        out
    }

    /// Notes that the member `key` at the current path belongs elsewhere: at a dotted path from the top.
    pub(crate) fn belongs_at(&mut self, key: &str, place: &str) {
        let to = place
            .split('.')
            .map(|key| Segment::Key(key.to_owned()))
            .collect();
        self.belongs(key, to);
    }

    /// Notes that the member `key` at the current path belongs further down: at `steps` from the current path.
    pub(crate) fn belongs_below(&mut self, key: &str, steps: &[Segment]) {
        let to = self.path.iter().chain(steps).cloned().collect();
        self.belongs(key, to);
    }

    /// Notes that the member `key` at the current path belongs one level up.
    pub(crate) fn belongs_above(&mut self, key: &str) {
        let mut to = self.path.clone();
        to.pop();
        to.push(Segment::Key(key.to_owned()));
        self.belongs(key, to);
    }

    fn belongs(&mut self, key: &str, to: Vec<Segment>) {
        if self.misplaced.len() < MAX_REPORTED {
            let mut from = self.path.clone();
            from.push(Segment::Key(key.to_owned()));
            self.misplaced.push(Misplaced { from, to });
        }
    }

    /// A text as an error quotes it.
    fn cited(&self, text: &str) -> String {
        if self.is_secret() {
            "a string that is not shown".to_owned()
        } else {
            format!("\"{}\"", cut(text))
        }
    }

    /// Records an error at the current path.
    pub(crate) fn error(&mut self, at: Option<&Position>, message: impl Into<Message>) {
        if self.errors.len() < MAX_KEPT {
            let error = ConfigError::new(self.path(), at, message);
            self.errors.push(error);
        }
    }

    /// Records an error with advice at the current path.
    pub(crate) fn error_hint(
        &mut self,
        at: Option<&Position>,
        message: impl Into<Message>,
        hint: impl Into<String>,
    ) {
        if self.errors.len() < MAX_KEPT {
            let error = ConfigError::new(self.path(), at, message).with_hint(hint);
            self.errors.push(error);
        }
    }

    /// Records an error below the current path.
    pub(crate) fn error_in(
        &mut self,
        key: &str,
        at: Option<&Position>,
        message: impl Into<Message>,
    ) {
        self.within(key, |checker| checker.error(at, message));
    }

    /// Records an error with advice below the current path.
    pub(crate) fn error_hint_in(
        &mut self,
        key: &str,
        at: Option<&Position>,
        message: impl Into<Message>,
        hint: impl Into<String>,
    ) {
        self.within(key, |checker| checker.error_hint(at, message, hint));
    }

    /// Records a warning at the current path.
    pub(crate) fn warn(&mut self, at: Option<&Position>, message: impl Into<String>) {
        let warning = ConfigWarning::new(self.path(), at, message);
        self.warnings.push(warning);
    }

    /// Records a warning below the current path.
    pub(crate) fn warn_in(&mut self, key: &str, at: Option<&Position>, message: impl Into<String>) {
        self.within(key, |checker| checker.warn(at, message));
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

    /// Whether what is here may be a secret, by the schema or by the name of a key on the way.
    fn is_secret(&self) -> bool {
        let is_place =
            |step: &Segment| matches!(step, Segment::Key(key) if is_place_of_secrets(key));
        self.hush > 0 || self.path.iter().any(is_place)
    }

    /// A value for users: scalars as they are, unless they are secret.
    pub(crate) fn found(&self, node: &Node) -> String {
        if self.is_secret() {
            return node.kind().to_owned();
        }
        match &node.tree {
            Tree::Text(text) => format!("the string \"{}\"", cut(text)),
            Tree::Number(number) => format!("the number {}", cut(&number.to_string())),
            Tree::Bool(value) => value.to_string(),
            Tree::Null | Tree::List(_) | Tree::Map(_) => node.kind().to_owned(),
        }
    }

    /// Records that the value is of the wrong kind.
    pub(crate) fn mismatch(&mut self, node: &Node, expected: &str) {
        let found = self.found(node);
        let message = ErrorCode::WrongType.message(format!("must be {expected}, not {found}"));
        match self.mismatch_hint(node, expected) {
            Some(hint) => self.error_hint(node.at.as_ref(), message, hint),
            None => self.error(node.at.as_ref(), message),
        }
    }

    fn mismatch_hint(&self, node: &Node, expected: &str) -> Option<String> {
        let text = node.text().filter(|_| !self.is_secret());
        let number = |text: &str| {
            crate::yaml::parse_scalar(text).is_ok_and(|tree| matches!(tree, Tree::Number(_)))
        };
        Some(match (expected, text) {
            ("true or false", Some(text)) => match text.to_ascii_lowercase().as_str() {
                // Only a text in quotes is one of these two; the others are texts without quotes as well.
                word @ ("true" | "false") => format!("write {word} without quotes"),
                "yes" | "on" | "y" => "write true".into(),
                "no" | "off" | "n" => "write false".into(),
                _ => return None,
            },
            ("an integer" | "a number", Some(text)) if number(text) => {
                "write it without quotes".into()
            }
            ("a map", Some(text)) if text.contains(':') && !text.contains(": ") => {
                "put a space behind the \":\"".into()
            }
            ("a list", Some(text)) if text.len() <= MAX_QUOTED => format!("write [{}]", cut(text)),
            ("a string", None) if matches!(node.tree, Tree::Number(_) | Tree::Bool(_)) => {
                "put it in quotes".into()
            }
            _ => return None,
        })
    }

    /// Checks one value and brings it into its normal form.
    pub(crate) fn value(&mut self, node: &mut Node, kind: Kind) {
        // A scalar in place of what holds secrets may be one of them, in a form that we do not have. What is in a free
        // map nobody but its owner knows.
        let is_structure = matches!(node.tree, Tree::Null | Tree::List(_) | Tree::Map(_));
        let may_hold = matches!(kind, Kind::AnyMap) || kind.holds_secrets();
        let hush = usize::from(!is_structure && may_hold);
        self.hush += hush;
        self.value_of(node, kind);
        self.hush -= hush;
    }

    fn value_of(&mut self, node: &mut Node, kind: Kind) {
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
            Kind::Above(bound) => self.number(node, "above", |value| value > bound, bound),
            Kind::AtLeast(bound) => self.number(node, "at least", |value| value >= bound, bound),
            Kind::Text => {
                if node.text().is_none() {
                    self.mismatch(node, "a string");
                }
            }
            Kind::Choice(words) => self.choice(node, words),
            Kind::Duration => match node.text().map(parse_duration) {
                Some(Ok(_)) => {}
                Some(Err(message)) => self.error(node.at.as_ref(), message),
                None => self.duration_mismatch(node),
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
            Kind::Special(special) => (special.check)(self, node),
        }
    }

    fn int(&mut self, node: &mut Node, min: i64, max: i64) {
        let Tree::Number(number) = &node.tree else {
            return self.mismatch(node, "an integer");
        };
        let given = number.to_string();
        match node.integer() {
            Some(value) if (min..=max).contains(&value) => node.tree = Tree::Number(value.into()),
            Some(value) if value < min => {
                let message =
                    ErrorCode::OutOfRange.message(format!("must be at least {min}, not {value}"));
                self.error(node.at.as_ref(), message);
            }
            Some(value) => {
                let message =
                    ErrorCode::OutOfRange.message(format!("must be at most {max}, not {value}"));
                self.error(node.at.as_ref(), message);
            }
            None => {
                let message = format!("must be an integer, not {}", cut(&given));
                let message = ErrorCode::WrongType.message(message);
                self.error(node.at.as_ref(), message);
            }
        }
    }

    fn number(&mut self, node: &Node, how: &str, good: impl Fn(f64) -> bool, bound: f64) {
        match &node.tree {
            Tree::Number(number) if number.as_f64().is_some_and(good) => {}
            Tree::Number(number) => {
                let message =
                    ErrorCode::OutOfRange.message(format!("must be {how} {bound}, not {number}"));
                self.error(node.at.as_ref(), message);
            }
            _ => self.mismatch(node, "a number"),
        }
    }

    fn duration_mismatch(&mut self, node: &Node) {
        match &node.tree {
            Tree::Number(number) => {
                let message = format!("must be a duration with a unit, not the number {number}");
                let message = ErrorCode::WrongType.message(message);
                let hint = format!("write \"{number}s\" for seconds");
                self.error_hint(node.at.as_ref(), message, hint);
            }
            _ => self.mismatch(node, "a duration like \"25s\""),
        }
    }

    fn choice(&mut self, node: &Node, words: &'static [&'static str]) {
        match node.text() {
            Some(text) if words.contains(&text) => {}
            Some(text) => {
                let message = ErrorCode::NotOneOf.message(format!(
                    "must be one of {}, not {}",
                    quoted(words),
                    self.cited(text)
                ));
                match closest(text, words.iter().copied()) {
                    Some(word) => {
                        let hint = format!("did you mean \"{word}\"?");
                        self.error_hint(node.at.as_ref(), message, hint);
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
        let lost = self.lost_indentation(node, section);
        self.rename(node, section.aliases, section.fields);
        let names: Vec<&'static str> = section.fields.iter().map(|field| field.name).collect();
        let fields = |name: &str| section.field(name);
        self.unknown_keys(node, &names, fields, "", |key| {
            let above = lost.get(key)?;
            Some(format!("indent it below \"{above}\", which has no value"))
        });
        self.fields(node, at.as_ref(), section.fields, "");
        if let Some(check) = section.check {
            check(self, node);
        }
    }

    /// Gives old names their new ones and drops nulls: a null is the same as nothing, except where it takes away what a
    /// weaker layer gives.
    fn rename(&mut self, node: &mut Node, aliases: Aliases, fields: &'static [Field]) {
        self.note_empty(node);
        let Some(members) = node.members_mut() else {
            return;
        };
        let clears = |key: &str| fields.iter().any(|field| field.clears && field.name == key);
        members.retain(|key, member| !matches!(member.tree, Tree::Null) || clears(key));
        for (old, new, warn) in aliases {
            let Some(value) = members.remove(*old) else {
                continue;
            };
            if *warn {
                let message = format!("is the old name of \"{new}\"");
                self.warn_in(old, value.at.as_ref(), message);
            }
            if let Some(given) = members.get(*new) {
                if given.to_value() != value.to_value() {
                    let message = ErrorCode::Conflict.message(format!(
                        "is another name of \"{new}\", which is given as well"
                    ));
                    self.error_in(old, value.at.as_ref(), message);
                }
            } else {
                members.insert((*new).to_owned(), value);
            }
        }
    }

    fn fields(
        &mut self,
        node: &mut Node,
        at: Option<&Position>,
        fields: &'static [Field],
        of: &str,
    ) {
        for field in fields {
            let given = node
                .get_mut(field.name)
                .filter(|member| !matches!(member.tree, Tree::Null));
            if let Some(member) = given {
                self.hush += usize::from(field.secret);
                self.within(field.name, |checker| {
                    checker.note(member, field);
                    checker.value(member, field.kind);
                });
                self.hush -= usize::from(field.secret);
                continue;
            }
            let needed = match field.need {
                Need::Optional => false,
                Need::Always => true,
                Need::Finally => self.stage.is_complete() && field.default.is_none(),
            };
            if needed {
                let hint = lower_first(field.about).replace('`', "\"");
                let message = ErrorCode::Missing.message(format!("is required{of}"));
                if hint == field.name {
                    self.error_in(field.name, at, message);
                } else {
                    self.error_hint_in(field.name, at, message, hint);
                }
            }
        }
    }

    fn note(&mut self, node: &Node, field: &'static Field) {
        let text = match field.note {
            Note::Nothing | Note::Retired(_) => return,
            Note::Kept => "is accepted and kept but not acted on yet",
            Note::Warn(why) => why,
        };
        // The effective configuration of one experiment, given to another, has defaults that nobody wrote.
        if !super::says_nothing(node, field) {
            self.warn(node.at.as_ref(), text);
        }
    }

    fn union(&mut self, node: &mut Node, union: &'static Union) {
        let at = node.at.clone();
        if node.members().is_none() {
            return self.mismatch(node, "a map");
        }
        self.rename(node, union.aliases, &[]);
        let words = || {
            let current = union.variants.iter().filter(|v| !v.is_retired());
            quoted_list(current.map(|variant| variant.name))
        };
        let tag = node.get(union.tag).cloned().or_else(|| {
            union
                .default_tag
                .map(|tag| Node::new(Tree::Text(tag.to_owned())))
        });
        let Some(tag) = tag else {
            if self.stage.is_complete() {
                let message =
                    ErrorCode::Missing.message(format!("is required: one of {}", words()));
                self.error_in(union.tag, at.as_ref(), message);
            } else {
                // Which keys are allowed shows only when a lower layer has brought the tag.
                let names = union_names(union, None);
                let fields = |name: &str| named(union.common, name);
                self.unknown_keys(node, &names, fields, "", |_| None);
                self.fields(node, at.as_ref(), union.common, "");
                self.variants_alike(node, union);
            }
            return;
        };
        let Some(chosen) = tag.text().and_then(|name| union.variant(name)) else {
            return self.union_of_unknown(node, &tag, union, &words());
        };
        if let (Note::Retired(advice), false) = (chosen.note, self.stage == Stage::Stored) {
            let message = ErrorCode::Removed.message(format!("\"{}\" was removed", chosen.name));
            return self.error_hint_in(union.tag, tag.at.as_ref(), message, advice);
        }
        if chosen.note == Note::Kept {
            let text = format!(
                "\"{}\" is accepted and kept but not acted on yet",
                chosen.name
            );
            self.warn_in(union.tag, tag.at.as_ref(), text);
        }
        let of = format!(" for {} \"{}\"", union.tag, chosen.name);
        if !chosen.open {
            let names = union_names(union, Some(chosen));
            let fields =
                |name: &str| named(union.common, name).or_else(|| named(chosen.fields, name));
            self.unknown_keys(node, &names, fields, &of, |key| other_variant(union, key));
        }
        self.fields(node, at.as_ref(), union.common, "");
        self.fields(node, at.as_ref(), chosen.fields, &of);
        if let Some(check) = union.check {
            check(self, node);
        }
    }

    /// Reports that the tag is none of the variants, and what else is wrong: the keys that no variant has, and the values
    /// as the variant of the nearest name wants them.
    fn union_of_unknown(
        &mut self,
        node: &mut Node,
        tag: &Node,
        union: &'static Union,
        words: &str,
    ) {
        let given = match tag.text() {
            Some(text) => self.cited(text),
            None => self.found(tag),
        };
        let message = ErrorCode::NotOneOf.message(format!("must be one of {words}, not {given}"));
        let current = || union.variants.iter().filter(|v| !v.is_retired());
        let near = tag
            .text()
            .and_then(|text| closest(text, current().map(|variant| variant.name)));
        match near {
            Some(word) => {
                let hint = format!("did you mean \"{word}\"?");
                self.error_hint_in(union.tag, tag.at.as_ref(), message, hint);
            }
            None => self.error_in(union.tag, tag.at.as_ref(), message),
        }
        let at = node.at.clone();
        let near = near.and_then(|word| union.variant(word));
        let is_open = near.map_or_else(|| current().any(|variant| variant.open), |near| near.open);
        if !is_open {
            let fields = |name: &str| {
                let of_near = near.and_then(|near| named(near.fields, name));
                named(union.common, name).or(of_near)
            };
            self.unknown_keys(node, &union_names(union, None), fields, "", |_| None);
        }
        self.fields(node, at.as_ref(), union.common, "");
        match near {
            Some(near) => {
                let of = format!(" for {} \"{}\"", union.tag, near.name);
                self.fields(node, at.as_ref(), near.fields, &of);
            }
            None => self.variants_alike(node, union),
        }
    }

    /// Checks the keys of variants while it is not known which variant it will be: where all that have a key agree on
    /// what it may be, that can be checked already.
    fn variants_alike(&mut self, node: &mut Node, union: &'static Union) {
        let names: Vec<String> = node
            .members()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect();
        for name in names {
            let fields: Vec<&'static Field> = union
                .variants
                .iter()
                .filter(|variant| !variant.is_retired())
                .flat_map(|variant| variant.fields.iter())
                .filter(|field| field.name == name)
                .collect();
            if let ([field], Some(member)) = (&fields[..], node.get_mut(&name)) {
                self.hush += usize::from(field.secret);
                self.within(&name, |checker| checker.value(member, field.kind));
                self.hush -= usize::from(field.secret);
            }
        }
    }
}

/// Appends a key to a path.
pub(crate) fn push_key(path: &mut String, key: &str) {
    if is_plain_key(key) {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    } else {
        // A variable with its value may be given where its name alone should be.
        path.push_str(&format!("[{:?}]", found_text(key)));
    }
}

fn named(fields: &'static [Field], name: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.name == name)
}

/// The keys of one variant of a union, or of all.
fn union_names(union: &'static Union, only: Option<&Variant>) -> Vec<&'static str> {
    let mut names = vec![union.tag];
    names.extend(union.common.iter().map(|field| field.name));
    for variant in union.variants {
        if only.is_none_or(|only| only.name == variant.name) {
            for field in variant.fields {
                if !names.contains(&field.name) {
                    names.push(field.name);
                }
            }
        }
    }
    names
}

/// Whether a key needs no quotes in a path.
fn is_plain_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '$'))
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        // An abbreviation keeps its capitals.
        Some(first) if !chars.clone().next().is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}
