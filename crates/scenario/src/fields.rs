//! Reads values from a tree; every error is reported with its path and line.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use det_config::ConfigErrors;
use det_config::errors::edit_distance;
use det_config::origin::Position;
use det_config::units::parse_duration;
use det_config::yaml::{self, Node, Tree};

/// The most errors that are shown.
const MOST_SHOWN: usize = 50;

/// An error in a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptionError {
    /// Where in the document, `steps[2].submit.slots`; empty for the document as a whole.
    pub path: String,
    /// Line of the text, counted from 1; `None` if it was not read from a text.
    pub line: Option<u32>,
    /// What is wrong and what is allowed: lower case, no full stop.
    pub message: String,
    /// A suggestion, if there is one.
    pub hint: Option<String>,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// All errors of a description, in the order of its text; never empty when returned as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptionErrors(pub Vec<DescriptionError>);

impl fmt::Display for DescriptionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().take(MOST_SHOWN).enumerate() {
            let lead = if number == 0 { "" } else { "\n" };
            write!(f, "{lead}{error}")?;
        }
        match self.0.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more errors"),
        }
    }
}

impl std::error::Error for DescriptionErrors {}

impl From<DescriptionError> for DescriptionErrors {
    fn from(error: DescriptionError) -> Self {
        Self(vec![error])
    }
}

impl From<ConfigErrors> for DescriptionErrors {
    fn from(errors: ConfigErrors) -> Self {
        let error = |error: det_config::ConfigError| DescriptionError {
            path: error.path,
            line: error.line,
            message: error.message,
            hint: error.hint,
        };
        Self(errors.0.into_iter().map(error).collect())
    }
}

/// Collects errors while values are read.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) errors: Vec<DescriptionError>,
}

/// A value with its path.
#[derive(Debug, Clone)]
pub(crate) struct Value<'n> {
    pub(crate) node: &'n Node,
    pub(crate) path: String,
}

/// A map whose keys are taken one by one; keys that remain are errors.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    path: String,
    members: BTreeMap<&'n str, &'n Node>,
    known: Vec<&'static str>,
}

impl<'n> Value<'n> {
    pub(crate) fn root(node: &'n Node) -> Self {
        Self {
            node,
            path: String::new(),
        }
    }

    pub(crate) fn line(&self) -> Option<u32> {
        let line = |at: &Position| (at.line > 0).then_some(at.line);
        self.node.at.as_ref().and_then(line)
    }

    fn below(&self, key: &str, node: &'n Node) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            node,
            path: format!("{}{dot}{key}", self.path),
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.node.tree, Tree::Null)
    }

    /// The text, if the value is one.
    pub(crate) fn text(&self) -> Option<&'n str> {
        self.node.text()
    }
}

impl<'n> Fields<'n> {
    /// The member `key`, unless it is missing or null.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Value<'n>> {
        self.known.push(key);
        let node = self.members.remove(key)?;
        let dot = if self.path.is_empty() { "" } else { "." };
        let value = Value {
            node,
            path: format!("{}{dot}{key}", self.path),
        };
        (!value.is_null()).then_some(value)
    }
}

/// Reads a whole document in YAML or JSON.
///
/// # Errors
/// All errors, with path and line, in the order of the text.
pub(crate) fn read_with<T>(
    text: &str,
    document: impl FnOnce(&mut Reader, &Value<'_>) -> Option<T>,
) -> Result<T, DescriptionErrors> {
    let node = yaml::parse_within(text, yaml::Limits::OWN_FILE)?;
    let mut reader = Reader::default();
    let read = document(&mut reader, &Value::root(&node));
    reader.check()?;
    // A document without errors is complete.
    read.ok_or_else(|| DescriptionErrors(Vec::new()))
}

impl Reader {
    pub(crate) fn error(&mut self, value: &Value<'_>, message: impl Into<String>) {
        self.errors.push(DescriptionError {
            path: value.path.clone(),
            line: value.line(),
            message: message.into(),
            hint: None,
        });
    }

    /// Reports that a value has another type than `expected`.
    pub(crate) fn mismatch(&mut self, value: &Value<'_>, expected: &str) {
        self.error(
            value,
            format!("must be {expected}, not {}", value.node.kind()),
        );
    }

    pub(crate) fn fields<'n>(&mut self, value: &Value<'n>) -> Option<Fields<'n>> {
        let Some(members) = value.node.members() else {
            self.mismatch(value, "a map");
            return None;
        };
        Some(Fields {
            path: value.path.clone(),
            members: members
                .iter()
                .map(|(key, node)| (key.as_str(), node))
                .collect(),
            known: Vec::new(),
        })
    }

    /// Reports the keys that were not taken as errors.
    pub(crate) fn finish(&mut self, fields: Fields<'_>) {
        for (key, node) in fields.members {
            let value = Value {
                node,
                path: if fields.path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{}.{key}", fields.path)
                },
            };
            self.error(&value, "is not a key here");
            let nearest = nearest(key, &fields.known);
            if let (Some(error), Some(nearest)) = (self.errors.last_mut(), nearest) {
                error.hint = Some(format!("did you mean \"{nearest}\"?"));
            }
        }
    }

    /// The members of a map with free keys.
    pub(crate) fn members<'n>(&mut self, value: &Value<'n>) -> Vec<(&'n str, Value<'n>)> {
        let Some(members) = value.node.members() else {
            self.mismatch(value, "a map");
            return Vec::new();
        };
        members
            .iter()
            .map(|(key, node)| (key.as_str(), value.below(key, node)))
            .collect()
    }

    /// The elements of a list; another value counts as a list of one.
    pub(crate) fn one_or_many<'n>(value: &Value<'n>) -> Vec<Value<'n>> {
        match &value.node.tree {
            Tree::List(_) => Self::elements(value),
            _ => vec![value.clone()],
        }
    }

    pub(crate) fn list<'n>(&mut self, value: &Value<'n>) -> Vec<Value<'n>> {
        if !matches!(value.node.tree, Tree::List(_)) {
            self.mismatch(value, "a list");
        }
        Self::elements(value)
    }

    fn elements<'n>(value: &Value<'n>) -> Vec<Value<'n>> {
        let Tree::List(items) = &value.node.tree else {
            return Vec::new();
        };
        let element = |(index, node)| Value {
            node,
            path: format!("{}[{index}]", value.path),
        };
        items.iter().enumerate().map(element).collect()
    }

    /// A name: text, or a number that is used as one.
    pub(crate) fn name(&mut self, value: &Value<'_>) -> Option<String> {
        match &value.node.tree {
            Tree::Text(text) if !text.is_empty() => Some(text.clone()),
            Tree::Text(_) => {
                self.error(value, "must not be empty");
                None
            }
            Tree::Number(number) => Some(number.to_string()),
            _ => {
                self.mismatch(value, "a name");
                None
            }
        }
    }

    pub(crate) fn names(&mut self, value: &Value<'_>) -> Vec<String> {
        Self::one_or_many(value)
            .iter()
            .filter_map(|value| self.name(value))
            .collect()
    }

    pub(crate) fn text(&mut self, value: &Value<'_>) -> Option<String> {
        let text = value.text();
        if text.is_none() {
            self.mismatch(value, "a string");
        }
        text.map(str::to_owned)
    }

    pub(crate) fn flag(&mut self, value: &Value<'_>) -> Option<bool> {
        if let Tree::Bool(flag) = value.node.tree {
            return Some(flag);
        }
        self.mismatch(value, "true or false");
        None
    }

    pub(crate) fn integer(&mut self, value: &Value<'_>, least: u32, most: u32) -> Option<u32> {
        let Some(number) = value.node.integer() else {
            self.mismatch(value, "a whole number");
            return None;
        };
        let within = u32::try_from(number)
            .ok()
            .filter(|number| (least..=most).contains(number));
        if within.is_none() {
            self.error(value, format!("must be {least} to {most}, not {number}"));
        }
        within
    }

    pub(crate) fn count(&mut self, value: &Value<'_>) -> Option<u64> {
        self.integer(value, 0, u32::MAX).map(u64::from)
    }

    pub(crate) fn above_zero(&mut self, value: &Value<'_>) -> Option<f64> {
        let Tree::Number(number) = &value.node.tree else {
            self.mismatch(value, "a number");
            return None;
        };
        let within = number
            .as_f64()
            .filter(|number| *number > 0.0 && number.is_finite());
        if within.is_none() {
            self.error(value, format!("must be above 0, not {number}"));
        }
        within
    }

    /// A duration as text with units, or a number of seconds.
    pub(crate) fn duration(&mut self, value: &Value<'_>) -> Option<Duration> {
        let read = match &value.node.tree {
            Tree::Text(text) => parse_duration(text),
            Tree::Number(number) => parse_duration(&format!("{number}s")),
            _ => {
                self.mismatch(value, "a duration like \"90s\" or \"1h30m\"");
                return None;
            }
        };
        match read {
            Ok(duration) if duration <= LONGEST => Some(duration),
            Ok(_) => {
                self.error(value, "is too long a time; at most ten years");
                None
            }
            Err(message) => {
                self.error(value, message);
                None
            }
        }
    }

    /// The value that belongs to the word in the text; an error is noted if it is none of `words`.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        value: &Value<'_>,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let known: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        let Some(text) = value.text() else {
            self.mismatch(value, &format!("one of {}", known.join(", ")));
            return None;
        };
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            self.error(
                value,
                format!("must be one of {}, not \"{text}\"", known.join(", ")),
            );
            let nearest = nearest(text, &known);
            if let (Some(error), Some(nearest)) = (self.errors.last_mut(), nearest) {
                error.hint = Some(format!("did you mean \"{nearest}\"?"));
            }
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// `Err` with all errors in the order of the text, if there are any.
    pub(crate) fn check(mut self) -> Result<(), DescriptionErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        self.errors
            .sort_by_key(|error| error.line.unwrap_or(u32::MAX));
        Err(DescriptionErrors(self.errors))
    }
}

/// The longest duration that a scenario may contain.
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);

/// The word that was most likely meant.
pub(crate) fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let word = word.replace('-', "_");
    known
        .iter()
        .filter_map(|candidate| Some((edit_distance(&word, candidate, 2)?, *candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}
