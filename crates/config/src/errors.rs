//! Errors and warnings of a configuration, each with its path and, where the text is known, its place.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::origin::Position;

/// Most errors that are reported; a text that is none of ours has one on every line.
pub const MAX_REPORTED: usize = 100;
/// Errors of one document that a check keeps at most, so that their memory is bounded; the first [`MAX_REPORTED`] in the order
/// of the text are reported.
pub(crate) const MAX_KEPT: usize = 2_000;
/// Characters of a message, a path or a hint that are reported: each may quote what was written.
const MAX_CHARS: usize = 400;

/// Kinds of errors, for code to match on. Messages are for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The text is neither YAML nor JSON, or not one document.
    Syntax,
    /// The text, or what it holds, is larger or deeper than a configuration may be.
    TooLarge,
    /// A key is given twice in one map.
    DuplicateKey,
    /// A value is required and not given.
    Missing,
    /// There is no such key, or it belongs to another kind of document or section.
    UnknownKey,
    /// The value has another type than the key.
    WrongType,
    /// A number, or the number of characters or elements, is below or above what is allowed.
    OutOfRange,
    /// The value is none of the allowed words.
    NotOneOf,
    /// Two keys exclude each other.
    Conflict,
    /// The key or the value was allowed in earlier versions.
    Removed,
    /// Anything else that is wrong with a value.
    Invalid,
}

impl ErrorCode {
    /// The text of an error of this kind.
    pub fn message(self, text: impl Into<String>) -> Message {
        Message {
            code: self,
            text: text.into(),
        }
    }
}

/// The text of an error with its kind. A text alone is of the kind [`ErrorCode::Invalid`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    code: ErrorCode,
    text: String,
}

impl<T: Into<String>> From<T> for Message {
    fn from(text: T) -> Self {
        ErrorCode::Invalid.message(text)
    }
}

/// One error of a configuration, with its path, its place and advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where in the document, `resources.devices[0].mode`; empty for the document as a whole.
    pub path: String,
    /// Line of the text, counted from 1. `None` when the value does not come from the text.
    pub line: Option<u32>,
    /// Column of the text, counted from 1. `None` like `line`.
    pub column: Option<u32>,
    /// The file, variable, flag or template that gave the value. `None` = the one document at hand.
    pub source: Option<Arc<str>>,
    /// What sort of error it is, for programs.
    pub code: ErrorCode,
    /// What is wrong, what was found and what is allowed: lower case, no full stop.
    pub message: String,
    /// What to do instead, when there is a good guess.
    pub hint: Option<String>,
    /// For a broken form that is well known: the parts of the document concerned, as YAML in their right form. One
    /// error of several carries it for all.
    pub repaired: Option<Arc<String>>,
}

impl ConfigError {
    /// An error at `path`, whose text is at `position`.
    pub fn new(
        path: impl Into<String>,
        position: Option<&Position>,
        message: impl Into<Message>,
    ) -> Self {
        let Message { code, text } = message.into();
        let lined = position.filter(|position| position.line > 0);
        Self {
            path: shortened(path.into()),
            line: lined.map(|position| position.line),
            column: lined.map(|position| position.column),
            source: position.and_then(named),
            code,
            message: shortened(text),
            hint: None,
            repaired: None,
        }
    }

    /// The error as JSON: `{"path", "code", "message", "source", "line", "column", "hint", "repaired"}`, null what there is not.
    pub fn to_json(&self) -> Value {
        json!({
            "path": self.path, "code": self.code, "message": self.message, "source": self.source.as_deref(),
            "line": self.line, "column": self.column,
            "hint": self.hint, "repaired": self.repaired.as_deref().map(String::as_str),
        })
    }

    /// Reads [`Self::to_json`]; what is not there or is none of ours is left open.
    pub fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let number = |key: &str| value[key].as_u64().and_then(|n| u32::try_from(n).ok());
        Self {
            path: text("path").unwrap_or_default(),
            code: ErrorCode::deserialize(&value["code"]).unwrap_or(ErrorCode::Invalid),
            message: text("message").unwrap_or_default(),
            source: text("source").map(Into::into),
            line: number("line"),
            column: number("column"),
            hint: text("hint"),
            repaired: text("repaired").map(Arc::new),
        }
    }

    /// The same error with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shortened(hint.into()));
        self
    }

    /// The same error at another place.
    pub(crate) fn placed(mut self, position: &Position) -> Self {
        let lined = (position.line > 0).then_some(position);
        self.line = lined.map(|position| position.line);
        self.column = lined.map(|position| position.column);
        self.source = named(position);
        self
    }
}

fn named(position: &Position) -> Option<Arc<str>> {
    let source = position.source.as_ref()?;
    Some(shortened(source.place()).into())
}

/// The text without its middle, when it is long: quotes are at the begin, what is wrong with them at the end.
fn shortened(text: String) -> String {
    // Bytes are never fewer than characters.
    if text.len() <= MAX_CHARS {
        return text;
    }
    let cut = |(offset, _): (usize, char)| offset;
    let head = text.char_indices().nth(MAX_CHARS / 2).map(cut);
    let tail = text.char_indices().rev().nth(MAX_CHARS / 2).map(cut);
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => {
            let (head, tail) = (whole_words(&text, head), tail_of_words(&text, tail));
            format!("{head} … {tail}")
        }
        _ => text,
    }
}

/// Characters of a word that is left out whole where it would be cut.
const LONGEST_WORD: usize = 60;

/// The text before `end`, without the word that would be cut there.
fn whole_words(text: &str, end: usize) -> &str {
    let head = &text[..end];
    match head.rfind(' ') {
        Some(at) if !text[end..].starts_with(' ') && end - at <= LONGEST_WORD => &head[..at],
        _ => head,
    }
}

/// The text from `begin` on, without the word that would be cut there.
fn tail_of_words(text: &str, begin: usize) -> &str {
    let tail = &text[begin..];
    match tail.find(' ') {
        Some(at) if !text[..begin].ends_with(' ') && at <= LONGEST_WORD => &tail[at + 1..],
        _ => tail,
    }
}

/// Writes the place and the path of an error or a warning: `train.yaml:7:3: resources.slots` where the source has a
/// name; of the one document at hand only the path.
fn write_place(
    f: &mut fmt::Formatter<'_>,
    source: &str,
    line: Option<u32>,
    column: Option<u32>,
    path: &str,
) -> fmt::Result {
    f.write_str(source)?;
    for number in [line, column].into_iter().flatten() {
        write!(f, ":{number}")?;
    }
    // An override and `--set` are named by their path.
    let is_said = || {
        source
            .strip_suffix(path)
            .is_some_and(|before| before.ends_with(' '))
    };
    if path.is_empty() || is_said() {
        Ok(())
    } else {
        write!(f, ": {path}")
    }
}

impl fmt::Display for ConfigError {
    /// One line: `train.yaml:7:3: resources.slots: message; hint: …`, and for a document without a name
    /// `<config>.resources.slots: message (line 7, column 3); hint: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => {
                write_place(f, source, self.line, self.column, &self.path)?;
                write!(f, ": {}", self.message)?;
            }
            None => {
                let dot = if self.path.is_empty() || self.path.starts_with('[') {
                    ""
                } else {
                    "."
                };
                write!(f, "<config>{dot}{}: {}", self.path, self.message)?;
                match (self.line, self.column) {
                    (Some(line), Some(column)) => write!(f, " (line {line}, column {column})")?,
                    (Some(line), None) => write!(f, " (line {line})")?,
                    (None, _) => {}
                }
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Drops the errors that a key is missing where another error is about the same key: it was given and could not be
/// read.
pub(crate) fn drop_missing_of_given(errors: &mut Vec<ConfigError>) {
    let is_missing = |error: &ConfigError| error.code == ErrorCode::Missing;
    if !errors.iter().any(is_missing) {
        return;
    }
    let given: HashSet<String> = errors
        .iter()
        .filter(|error| !is_missing(error))
        .map(|error| error.path.clone())
        .collect();
    let mut repaired = None;
    errors.retain_mut(|error| {
        let kept = !(is_missing(error) && given.contains(&error.path));
        if !kept {
            repaired = repaired.take().or(error.repaired.take());
        }
        kept
    });
    if let (Some(repaired), Some(first)) = (repaired, errors.first_mut()) {
        first.repaired.get_or_insert(repaired);
    }
}

/// All errors of a configuration, in the order of the text; never empty when returned as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// A single error.
    pub fn one(error: ConfigError) -> Self {
        Self(vec![error])
    }

    /// The same errors, those without a source as errors of this file.
    #[must_use]
    pub fn in_file(mut self, file: &str) -> Self {
        for error in &mut self.0 {
            error.source.get_or_insert_with(|| file.into());
        }
        self
    }

    /// The right form of the parts that are broken in a well-known way, as YAML; `None` when there are none.
    pub fn repaired(&self) -> Option<&str> {
        self.0
            .iter()
            .find_map(|error| error.repaired.as_deref().map(String::as_str))
    }

    /// Errors reported together, in the order of the text; of very many the first ones.
    pub fn together(errors: Vec<ConfigError>) -> Self {
        match Self::check(errors) {
            Ok(()) => Self(Vec::new()),
            Err(errors) => errors,
        }
    }

    /// `Err` with the errors in the order of the text, or `Ok` when there are none.
    pub(crate) fn check(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() {
            return Ok(());
        }
        errors.sort_by(|a, b| {
            let key = |e: &ConfigError| order(e.source.as_ref(), e.line, e.column);
            key(a)
                .cmp(&key(b))
                .then_with(|| a.path.cmp(&b.path))
                .then_with(|| a.message.cmp(&b.message))
        });
        errors.dedup_by(|later, kept| {
            let same = (
                &later.source,
                later.line,
                later.column,
                &later.path,
                &later.message,
            ) == (
                &kept.source,
                kept.line,
                kept.column,
                &kept.path,
                &kept.message,
            );
            if same && kept.repaired.is_none() {
                kept.repaired = later.repaired.take();
            }
            same
        });
        let more = errors.len().saturating_sub(MAX_REPORTED);
        if more > 0 {
            let at_least = if errors.len() >= MAX_KEPT {
                "at least "
            } else {
                ""
            };
            let repaired = errors.iter_mut().find_map(|error| error.repaired.take());
            errors.truncate(MAX_REPORTED);
            let message = format!("has {at_least}{more} more errors");
            errors.push(ConfigError::new("", None, message));
            if let Some(first) = errors.first_mut() {
                first.repaired = repaired;
            }
        }
        Err(Self(errors))
    }
}

impl ConfigErrors {
    /// The same errors with each variable under the name in which its value was given: `DET_X_FILE (/run/x)` in place of
    /// `DET_X`.
    #[must_use]
    pub fn variables_named(mut self, names: &BTreeMap<String, String>) -> Self {
        for error in &mut self.0 {
            name_variable(&mut error.source, names);
        }
        self
    }
}

fn name_variable(source: &mut Option<Arc<str>>, names: &BTreeMap<String, String>) {
    if let Some(name) = source.as_deref().and_then(|source| names.get(source)) {
        *source = Some(name.as_str().into());
    }
}

impl fmt::Display for ConfigErrors {
    /// A line for each error, then the right form of what is broken in a well-known way.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        if let Some(repaired) = self.repaired() {
            f.write_str("\nperhaps this was meant:")?;
            for line in repaired.lines() {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self::one(error)
    }
}

/// What a user should know although it is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Where in the document; empty for the document as a whole.
    pub path: String,
    /// Line of the text, counted from 1. `None` when the value does not come from the text.
    pub line: Option<u32>,
    /// Column of the text, counted from 1. `None` like `line`.
    pub column: Option<u32>,
    /// The file, variable, flag or template that gave the value. `None` = the one document at hand.
    pub source: Option<Arc<str>>,
    /// What is to be known: lower case, no full stop.
    pub message: String,
}

impl ConfigWarning {
    /// Names the variable that gave the value, as [`ConfigErrors::variables_named`] does.
    pub fn variable_named(&mut self, names: &BTreeMap<String, String>) {
        name_variable(&mut self.source, names);
    }

    /// A warning about the value at `path`, whose text is at `position`.
    pub fn new(
        path: impl Into<String>,
        position: Option<&Position>,
        message: impl Into<String>,
    ) -> Self {
        let ConfigError {
            path,
            line,
            column,
            source,
            message,
            ..
        } = ConfigError::new(path, position, message);
        Self {
            path,
            line,
            column,
            source,
            message,
        }
    }

    /// Where it is in the order of the text.
    pub(crate) fn order(&self) -> (Option<Arc<str>>, u32, u32) {
        order(self.source.as_ref(), self.line, self.column)
    }

    /// Names this file as its source, unless its source is known.
    pub(crate) fn name_file(&mut self, file: &str) {
        self.source.get_or_insert_with(|| file.into());
    }

    /// The warning as JSON: `{"path", "message", "source", "line", "column"}`, null what there is not.
    pub fn to_json(&self) -> Value {
        json!({
            "path": self.path, "message": self.message, "source": self.source.as_deref(),
            "line": self.line, "column": self.column,
        })
    }

    /// The place: `train.yaml:7:3: resources.slots`, without what is not known.
    fn place(&self) -> String {
        struct Position<'a>(&'a ConfigWarning);
        impl fmt::Display for Position<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let source = self.0.source.as_deref().unwrap_or("<config>");
                write_place(f, source, self.0.line, self.0.column, &self.0.path)
            }
        }
        Position(self).to_string()
    }

    /// The warning with its place, for users at a terminal: `train.yaml:7:3: resources.slots: warning: …`.
    pub fn located(&self) -> String {
        format!("{}: warning: {}", self.place(), self.message)
    }

    /// The warning with its place where that is known, for a log whose lines carry their level.
    pub fn for_log(&self) -> String {
        match self.source {
            Some(_) => format!("{}: {}", self.place(), self.message),
            None => self.to_string(),
        }
    }

    /// The path without the numbers of elements: what is the same for each element of a list is reported once.
    fn subject(&self) -> String {
        let mut out = String::new();
        let mut rest = self.path.as_str();
        while let Some((head, tail)) = rest.split_once('[') {
            out.push_str(head);
            rest = tail.split_once(']').map_or("", |(_, tail)| tail);
        }
        out + rest
    }
}

impl fmt::Display for ConfigWarning {
    /// The path and the message, without the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

/// The order of the text; what has no place comes last.
fn order(
    source: Option<&Arc<str>>,
    line: Option<u32>,
    column: Option<u32>,
) -> (Option<Arc<str>>, u32, u32) {
    let last = u32::MAX;
    (
        source.cloned(),
        line.unwrap_or(last),
        column.unwrap_or(last),
    )
}

/// Each warning once: the same words about the same key are not repeated for other layers and other elements of a list.
pub(crate) fn each_once(warnings: Vec<ConfigWarning>) -> Vec<ConfigWarning> {
    let mut seen = BTreeSet::new();
    warnings
        .into_iter()
        .filter(|warning| seen.insert((warning.subject(), warning.message.clone())))
        .collect()
}

/// How many single-character insertions, deletions, substitutions and swaps of neighbours lead from `a` to `b`, or `None`
/// when more than `limit`.
pub fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    // A character has one to four bytes: very unlike lengths need no further look.
    if a.len() > 4 * (b.len() + limit) || b.len() > 4 * (a.len() + limit) {
        return None;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    // Only prefixes of lengths that differ by no more than the limit can be that near, so of each row a band is computed;
    // beside it there is a value that is too large, which the next two rows may look at.
    let over = limit + 1;
    let first = |length: usize| if length <= limit { length } else { over };
    let mut two_above: Vec<usize> = vec![over; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).map(first).collect();
    let mut row: Vec<usize> = vec![over; b.len() + 1];
    for (i, x) in a.iter().enumerate() {
        let (from, to) = (
            (i + 1).saturating_sub(limit).max(1),
            (i + 1 + limit).min(b.len()),
        );
        row[from - 1] = if from == 1 { first(i + 1) } else { over };
        let mut least_of_row = row[from - 1];
        for column in from..=to {
            let (j, y) = (column - 1, &b[column - 1]);
            let substituted = above[j] + usize::from(x != y);
            let mut least = substituted.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(two_above[j - 1] + 1);
            }
            row[column] = least;
            least_of_row = least_of_row.min(least);
        }
        if let Some(beside) = row.get_mut(to + 1) {
            *beside = over;
        }
        // No later row is below the least of this one and the one above it; of that one the band was no larger.
        let above_band = &above[from - 1..=to];
        if least_of_row > limit && above_band.iter().all(|distance| *distance > limit) {
            return None;
        }
        (two_above, above, row) = (above, row, two_above);
    }
    above.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::origin::Source;

    #[test]
    fn a_long_list_is_cut_between_its_words() {
        for count in 50..90 {
            let words = (0..count).map(|n| format!("\"key_{n}\","));
            let words: Vec<String> = words.collect();
            let short = shortened(words.join(" "));
            let (head, tail) = short.split_once(" … ").unwrap();
            let kept: Vec<&str> = head.split(' ').chain(tail.split(' ')).collect();
            assert!(kept.len() > 20 && kept.len() < words.len(), "{short}");
            for word in kept {
                assert!(words.iter().any(|known| known == word), "{word} in {short}");
            }
        }
    }

    #[test]
    fn what_is_reported_is_bounded_whatever_was_written() {
        let long = "9".repeat(3_000_000);
        let error = ConfigError::new(&*long, None, format!("\"{long}\" is too large"));
        assert!(error.to_string().len() < 2_000);
        assert!(error.message.ends_with("9\" is too large"), "{error}");
        let wide = ConfigError::new("", None, "ü".repeat(300));
        assert_eq!(
            wide.message.chars().count(),
            300,
            "short enough in characters"
        );
        let many = (0..1_000).map(|n| ConfigError::new(format!("k{n}"), None, "is not known"));
        let reported = ConfigErrors::check(many.collect()).unwrap_err();
        assert_eq!(reported.0.len(), MAX_REPORTED + 1);
        assert_eq!(reported.0[MAX_REPORTED].message, "has 900 more errors");
    }

    #[test]
    fn an_error_reads_as_one_line_with_path_line_and_hint() {
        let position = Position {
            source: None,
            line: 3,
            column: 5,
        };
        let error = ConfigError::new("resources.slots", Some(&position), "is not a key here")
            .with_hint("use \"resources.slots_per_trial\"");
        assert_eq!(
            error.to_string(),
            "<config>.resources.slots: is not a key here (line 3, column 5); hint: use \"resources.slots_per_trial\""
        );
        let whole = ConfigError::new("", None, "is empty");
        assert_eq!(whole.to_string(), "<config>: is empty");
        assert_eq!(
            ConfigErrors(vec![whole.clone(), whole]).to_string(),
            "<config>: is empty\n<config>: is empty"
        );
    }

    #[test]
    fn errors_of_files_and_variables_begin_with_their_place() {
        let position = |source: Source, line, column| Position {
            source: Some(Arc::new(source)),
            line,
            column,
        };
        let file = position(Source::document("b.yaml"), 2, 1);
        assert_eq!(
            ConfigError::new("port", Some(&file), "x").to_string(),
            "b.yaml:2:1: port: x"
        );
        assert_eq!(
            ConfigError::new("", Some(&file), "is no map").to_string(),
            "b.yaml:2:1: is no map"
        );
        assert_eq!(
            ConfigWarning::new("port", Some(&file), "is old").located(),
            "b.yaml:2:1: port: warning: is old"
        );
        let variable = position(Source::variable("DET_PORT"), 0, 0);
        assert_eq!(
            ConfigError::new("port", Some(&variable), "x").to_string(),
            "DET_PORT: port: x"
        );
    }

    #[test]
    fn the_right_form_follows_the_errors() {
        let mut broken = ConfigError::new("image", None, "is not a known key");
        broken.repaired = Some(Arc::new("environment:\n  image: x\n".to_owned()));
        let errors = ConfigErrors(vec![broken, ConfigError::new("b", None, "is wrong")]);
        assert_eq!(
            errors.to_string(),
            "<config>.image: is not a known key\n<config>.b: is wrong\nperhaps this was meant:\n    environment:\n      image: x"
        );
    }

    #[test]
    fn a_warning_is_given_once_for_all_elements() {
        let warning = |path: &str| ConfigWarning::new(path, None, "is old");
        let reported = each_once(vec![
            warning("a[0].b"),
            warning("a[1].b"),
            warning("a[0].c"),
            warning("a[0].b"),
        ]);
        assert_eq!(reported, [warning("a[0].b"), warning("a[0].c")]);
    }

    #[test]
    fn edit_distances_stop_at_the_limit() {
        assert_eq!(edit_distance("resoruces", "resources", 2), Some(1));
        assert_eq!(
            edit_distance("slot_per_trail", "slots_per_trial", 3),
            Some(2)
        );
        assert_eq!(edit_distance("name", "name", 2), Some(0));
        assert_eq!(edit_distance("mame", "name", 2), Some(1));
        assert_eq!(edit_distance("slots", "slots_per_trial", 2), None);
        assert_eq!(edit_distance("", "ab", 2), Some(2));
        assert_eq!(edit_distance("ab", "", 2), Some(2));
        assert_eq!(edit_distance("abcd", "badc", 2), Some(2));
        // What a user sends costs no more than its length, however alike two texts are.
        let long = "a".repeat(100_000);
        assert_eq!(
            edit_distance(&format!("{long}bcd"), &format!("{long}xyz"), 2),
            None
        );
        assert_eq!(edit_distance(&format!("{long}b"), &long, 2), Some(1));
    }

    proptest! {
        /// With a limit above both lengths everything is computed.
        #[test]
        fn a_limit_changes_no_distance_below_it(a in "[abc]{0,9}", b in "[abc]{0,9}", limit in 0_usize..5) {
            let whole = edit_distance(&a, &b, 20);
            prop_assert_eq!(edit_distance(&a, &b, limit), whole.filter(|distance| *distance <= limit));
            prop_assert_eq!(edit_distance(&b, &a, 20), whole);
        }
    }
}
