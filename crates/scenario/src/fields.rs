//! Reading values out of a tree, with every mistake told by path and line.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use det_config::ConfigErrors;
use det_config::errors::{Position, edit_distance};
use det_config::units::parse_duration;
use det_config::yaml::{self, Node, Tree};

/// Most mistakes that are told.
const MOST_TOLD: usize = 50;

/// Something in a description that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where in the document, `steps[2].submit.slots`; empty for the document as a whole.
    pub path: String,
    /// Line of the text, counted from 1; `None` when it comes from no text.
    pub line: Option<u32>,
    /// What is wrong and what is allowed: lower case, no full stop.
    pub message: String,
    /// What to do instead, when there is a good guess.
    pub hint: Option<String>,
}

impl fmt::Display for Mistake {
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

/// All mistakes of a description, in the order of its text; never empty when returned as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, mistake) in self.0.iter().take(MOST_TOLD).enumerate() {
            let lead = if number == 0 { "" } else { "\n" };
            write!(f, "{lead}{mistake}")?;
        }
        match self.0.len().saturating_sub(MOST_TOLD) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more mistakes"),
        }
    }
}

impl std::error::Error for Mistakes {}

impl From<Mistake> for Mistakes {
    fn from(mistake: Mistake) -> Self {
        Self(vec![mistake])
    }
}

impl From<ConfigErrors> for Mistakes {
    fn from(errors: ConfigErrors) -> Self {
        let mistake = |error: det_config::ConfigError| Mistake {
            path: error.path,
            line: error.line,
            message: error.message,
            hint: error.hint,
        };
        Self(errors.0.into_iter().map(mistake).collect())
    }
}

/// Collects mistakes.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) mistakes: Vec<Mistake>,
}

/// A value with its path.
#[derive(Debug, Clone)]
pub(crate) struct Value<'n> {
    pub(crate) node: &'n Node,
    pub(crate) path: String,
}

/// A map whose keys are taken one by one; those that are left over are mistakes.
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

    /// The text, when this is one.
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
/// Every mistake, with path and line, in the order of the text.
pub(crate) fn read_with<T>(
    text: &str,
    document: impl FnOnce(&mut Reader, &Value<'_>) -> Option<T>,
) -> Result<T, Mistakes> {
    let node = yaml::parse_within(text, yaml::Limits::OWN_FILE)?;
    let mut reader = Reader::default();
    let read = document(&mut reader, &Value::root(&node));
    reader.check()?;
    // A document without mistakes is complete.
    read.ok_or_else(|| Mistakes(Vec::new()))
}

impl Reader {
    pub(crate) fn mistake(&mut self, value: &Value<'_>, message: impl Into<String>) {
        self.mistakes.push(Mistake {
            path: value.path.clone(),
            line: value.line(),
            message: message.into(),
            hint: None,
        });
    }

    /// What is wrong with the kind of a value.
    pub(crate) fn mismatch(&mut self, value: &Value<'_>, expected: &str) {
        self.mistake(
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

    /// Keys that nobody took are mistakes.
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
            self.mistake(&value, "is not a key here");
            let nearest = nearest(key, &fields.known);
            if let (Some(mistake), Some(nearest)) = (self.mistakes.last_mut(), nearest) {
                mistake.hint = Some(format!("did you mean \"{nearest}\"?"));
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

    /// The elements of a list; anything else is a list of one.
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

    /// A name: text, or a number that is meant as one.
    pub(crate) fn name(&mut self, value: &Value<'_>) -> Option<String> {
        match &value.node.tree {
            Tree::Text(text) if !text.is_empty() => Some(text.clone()),
            Tree::Text(_) => {
                self.mistake(value, "must not be empty");
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
            self.mistake(value, format!("must be {least} to {most}, not {number}"));
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
            self.mistake(value, format!("must be above 0, not {number}"));
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
                self.mistake(value, "is too long a time; at most ten years");
                None
            }
            Err(message) => {
                self.mistake(value, message);
                None
            }
        }
    }

    /// One of these words.
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
            self.mistake(
                value,
                format!("must be one of {}, not \"{text}\"", known.join(", ")),
            );
            let nearest = nearest(text, &known);
            if let (Some(mistake), Some(nearest)) = (self.mistakes.last_mut(), nearest) {
                mistake.hint = Some(format!("did you mean \"{nearest}\"?"));
            }
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// `Err` with all mistakes in the order of the text.
    pub(crate) fn check(mut self) -> Result<(), Mistakes> {
        if self.mistakes.is_empty() {
            return Ok(());
        }
        self.mistakes
            .sort_by_key(|mistake| mistake.line.unwrap_or(u32::MAX));
        Err(Mistakes(self.mistakes))
    }
}

/// The longest time that a scenario may speak of.
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
