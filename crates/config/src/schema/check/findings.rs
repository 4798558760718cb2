//! What a check finds, and where.

use std::collections::{HashMap, HashSet};

use super::Stage;
use crate::errors::{
    ConfigError, ConfigErrors, ConfigWarning, ErrorCode, MAX_KEPT, MAX_REPORTED, Message,
    drop_missing_of_given, each_once,
};
use crate::origin::Position;
use crate::quote::{MAX_QUOTED, cut};
use crate::schema::Document;
use crate::secrets::{found_text, is_place_of_secrets};
use crate::yaml::{Node, Tree};

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

impl<T: AsRef<str> + ?Sized> From<&T> for Segment {
    fn from(key: &T) -> Self {
        Self::Key(key.as_ref().to_owned())
    }
}

impl From<usize> for Segment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A value that is in the wrong place, in a way that is well known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misplacement {
    pub(crate) from: Vec<Segment>,
    pub(crate) to: Vec<Segment>,
}

/// Collects what a check finds: errors and warnings, each at the place where the check is.
pub(crate) struct Findings {
    /// The kind of document that is checked.
    pub(crate) document: &'static Document,
    /// Decides whether what is missing is an error.
    pub(crate) stage: Stage,
    pub(crate) errors: Vec<ConfigError>,
    pub(crate) warnings: Vec<ConfigWarning>,
    pub(crate) place: DocumentPosition,
    /// What could be put right by moving it.
    pub(crate) misplaced: Vec<Misplacement>,
    /// Paths of keys that unknown ones most likely meant: to report these as missing as well would be to report one error twice.
    pub(super) meant: Vec<String>,
    /// Keys that are written without a value, with their places.
    empty: Vec<(String, Position)>,
}

impl Findings {
    pub(crate) fn new(document: &'static Document, stage: Stage) -> Self {
        Self {
            document,
            stage,
            errors: Vec::new(),
            warnings: Vec::new(),
            place: DocumentPosition::default(),
            misplaced: Vec::new(),
            meant: Vec::new(),
            empty: Vec::new(),
        }
    }

    /// The errors and the warnings of a layer.
    pub(crate) fn taken(self) -> (LayerErrors, Vec<ConfigWarning>) {
        let (mut errors, warnings) = self.parts();
        errors.merge_related();
        (errors, warnings)
    }

    /// The warnings, each once, unless there are errors.
    pub(crate) fn finish(self) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        self.finish_after(LayerErrors::default())
    }

    /// As [`Self::finish`], where `earlier` are the errors of the layers that the document is made of.
    pub(crate) fn finish_after(
        self,
        earlier: LayerErrors,
    ) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        let (mut errors, warnings) = self.parts();
        errors.add_earlier(earlier);
        ConfigErrors::check(errors.errors)?;
        Ok(warnings)
    }

    fn parts(self) -> (LayerErrors, Vec<ConfigWarning>) {
        let errors = LayerErrors {
            errors: self.errors,
            meant: self.meant,
            empty: self.empty,
        };
        (errors, each_once(self.warnings))
    }

    /// Records an error at the current path.
    pub(crate) fn error(&mut self, at: Option<&Position>, message: impl Into<Message>) {
        if self.errors.len() < MAX_KEPT {
            let error = ConfigError::new(self.place.path(), at, message);
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
            let error = ConfigError::new(self.place.path(), at, message).with_hint(hint);
            self.errors.push(error);
        }
    }

    /// Records an error with the allowed word nearest to what was given, if any is near.
    pub(crate) fn error_near(
        &mut self,
        at: Option<&Position>,
        message: impl Into<Message>,
        near: Option<&str>,
    ) {
        match near {
            Some(word) => self.error_hint(at, message, format!("did you mean \"{word}\"?")),
            None => self.error(at, message),
        }
    }

    /// Records an error below the current path.
    pub(crate) fn error_in(
        &mut self,
        key: &str,
        at: Option<&Position>,
        message: impl Into<Message>,
    ) {
        self.within(key, |findings| findings.error(at, message));
    }

    /// Records an error with advice below the current path.
    pub(crate) fn error_hint_in(
        &mut self,
        key: &str,
        at: Option<&Position>,
        message: impl Into<Message>,
        hint: impl Into<String>,
    ) {
        self.within(key, |findings| findings.error_hint(at, message, hint));
    }

    /// Records a warning at the current path.
    pub(crate) fn warn(&mut self, at: Option<&Position>, message: impl Into<String>) {
        let warning = ConfigWarning::new(self.place.path(), at, message);
        self.warnings.push(warning);
    }

    /// Records a warning below the current path.
    pub(crate) fn warn_in(&mut self, key: &str, at: Option<&Position>, message: impl Into<String>) {
        self.within(key, |findings| findings.warn(at, message));
    }

    /// Works one step further down.
    pub(crate) fn within<T>(
        &mut self,
        step: impl Into<Segment>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.place.steps.push(step.into());
        let result = work(self);
        self.place.steps.pop();
        result
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
        let to = self.place.steps.iter().chain(steps).cloned().collect();
        self.belongs(key, to);
    }

    /// Notes that the member `key` at the current path belongs one level up.
    pub(crate) fn belongs_above(&mut self, key: &str) {
        self.belongs_above_as(key, key);
    }

    /// Notes that the member `key` at the current path belongs one level up, as `name`.
    pub(crate) fn belongs_above_as(&mut self, key: &str, name: &str) {
        let mut to = self.place.steps.clone();
        to.pop();
        to.push(Segment::Key(name.to_owned()));
        self.belongs(key, to);
    }

    fn belongs(&mut self, key: &str, to: Vec<Segment>) {
        if self.misplaced.len() < MAX_REPORTED {
            let mut from = self.place.steps.clone();
            from.push(Segment::Key(key.to_owned()));
            self.misplaced.push(Misplacement { from, to });
        }
    }

    /// Records that the value is of the wrong kind.
    pub(crate) fn mismatch(&mut self, node: &Node, expected: &str) {
        let found = self.place.found(node);
        let message = ErrorCode::WrongType.message(format!("must be {expected}, not {found}"));
        let text = node.text().filter(|_| !self.place.is_secret());
        match mismatch_hint(text, node, expected) {
            Some(hint) => self.error_hint(node.at.as_ref(), message, hint),
            None => self.error(node.at.as_ref(), message),
        }
    }

    /// Notes the keys of a map at the current path that have no value.
    pub(super) fn note_empty(&mut self, node: &Node) {
        for (key, member) in node.members().into_iter().flatten() {
            if self.empty.len() < MAX_REPORTED
                && matches!(member.tree, Tree::Null)
                && let Some(at) = member.at.as_ref().filter(|at| at.line > 0)
            {
                let path = self.place.path_to(key);
                self.empty.push((path, at.clone()));
            }
        }
    }
}

/// Where a check is in the document.
#[derive(Default)]
pub(crate) struct DocumentPosition {
    pub(super) steps: Vec<Segment>,
    /// Above 0 below a secret: values are not quoted.
    pub(super) hush: usize,
}

impl DocumentPosition {
    /// The path of the value being looked at.
    pub(crate) fn path(&self) -> String {
        let mut out = String::new();
        for segment in &self.steps {
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

    /// The path of the member `key`.
    pub(super) fn path_to(&self, key: &str) -> String {
        let mut here = self.path();
        push_key(&mut here, key);
        here
    }

    /// Where the key `key`, which is not known here, belongs in a document, by what users are known to misplace.
    pub(crate) fn known_in(&self, document: &Document, key: &str) -> Option<&'static str> {
        let here = self.path_to(key);
        document
            .places
            .iter()
            .find(|(from, _)| match from.strip_prefix('.') {
                Some(top) => top == here,
                None => *from == here || (!from.contains('.') && *from == key),
            })
            .map(|(_, to)| *to)
            .filter(|to| *to != here)
    }

    /// Where the key would be with less indentation, as far as no list is on the way.
    pub(super) fn outer_paths(&self, key: &str) -> Vec<String> {
        let mut outer = Vec::new();
        let mut prefix = String::new();
        for segment in &self.steps {
            let mut place = prefix.clone();
            push_key(&mut place, key);
            outer.push(place);
            match segment {
                Segment::Key(step) => push_key(&mut prefix, step),
                Segment::Index(_) | Segment::Named(_) => return outer,
            }
        }
        outer
    }

    /// Whether what is here may be a secret, by the schema or by the name of a key on the way.
    fn is_secret(&self) -> bool {
        let is_place =
            |step: &Segment| matches!(step, Segment::Key(key) if is_place_of_secrets(key));
        self.hush > 0 || self.steps.iter().any(is_place)
    }

    /// A text as an error quotes it.
    pub(super) fn cited(&self, text: &str) -> String {
        if self.is_secret() {
            "a string that is not shown".to_owned()
        } else {
            format!("\"{}\"", cut(text))
        }
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
}

/// The errors of a layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LayerErrors {
    pub(crate) errors: Vec<ConfigError>,
    /// Paths of keys that unknown ones most likely meant: see [`Findings::meant`].
    pub(crate) meant: Vec<String>,
    /// Keys that are written without a value: see [`Findings::empty`].
    pub(crate) empty: Vec<(String, Position)>,
}

impl LayerErrors {
    pub(crate) fn extend(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.meant.extend(other.meant);
        self.empty.extend(other.empty);
    }

    /// Adds errors that were found before, in the layers that this document is made of, and drops those about missing
    /// keys that the earlier ones explain.
    fn add_earlier(&mut self, earlier: Self) {
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

    /// Brings the errors together: what is missing is reported where its key is written without a value, and not at all
    /// where another error is about the value.
    fn merge_related(&mut self) {
        drop_missing_of_given(&mut self.errors);
        self.place_missing_at_empty_keys();
    }

    /// Moves the errors about missing keys to those that are written without a value.
    fn place_missing_at_empty_keys(&mut self) {
        let mut places: HashMap<&str, &Position> = HashMap::new();
        for (path, at) in &self.empty {
            places.entry(path.as_str()).or_insert(at);
        }
        for error in &mut self.errors {
            if let Some(at) = places.get(error.path.as_str())
                && error.code == ErrorCode::Missing
            {
                let mut placed = error.clone().placed(at);
                if placed != *error {
                    let with_reason = "is required and has no value here";
                    placed.message = placed.message.replacen("is required", with_reason, 1);
                    *error = placed;
                }
            }
        }
    }
}

/// What to write instead of a value of the wrong kind; `text` is the value if it may be quoted.
fn mismatch_hint(text: Option<&str>, node: &Node, expected: &str) -> Option<String> {
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
        ("an integer" | "a number", Some(text)) if number(text) => "write it without quotes".into(),
        ("a map", Some(text)) if text.contains(':') && !text.contains(": ") => {
            "put a space behind the \":\"".into()
        }
        ("a map", Some(text)) if crate::yaml::lacks_colon(text) => {
            "put a colon and a space between the key and its value".into()
        }
        ("a list", Some(text)) if text.len() <= MAX_QUOTED => format!("write [{}]", cut(text)),
        ("a string", None) if matches!(node.tree, Tree::Number(_) | Tree::Bool(_)) => {
            "put it in quotes".into()
        }
        _ => return None,
    })
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

/// Whether a key needs no quotes in a path.
fn is_plain_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '$'))
}
