//! Mistakes in a configuration, each with its path and, where the text is known, its line.

use std::fmt;
use std::sync::Arc;

/// Most mistakes that are told; a text that is none of ours has one on every line.
pub const MAX_TOLD: usize = 100;
/// Characters of a message, a path or a hint that are told: each may quote what was written.
const MAX_TOLD_CHARS: usize = 400;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The file, or the variable or flag that gave the value. `None` = the one document at hand.
    pub source: Option<Arc<str>>,
    /// Line, counted from 1; 0 when the source has no lines (a variable or a flag).
    pub line: u32,
    /// Column, counted from 1; 0 when the source has no lines.
    pub column: u32,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where in the document, `resources.devices[0].mode`; empty for the document as a whole.
    pub path: String,
    /// Line of the text, counted from 1. `None` when the value does not come from the text.
    pub line: Option<u32>,
    /// Column of the text, counted from 1. `None` like `line`.
    pub column: Option<u32>,
    /// The file, variable or flag that gave the value, when there may be several. `None` = the one document at hand.
    pub source: Option<String>,
    /// What is wrong and what is allowed: lower case, no full stop.
    pub message: String,
    /// What to do instead, when there is a good guess.
    pub hint: Option<String>,
}

impl ConfigError {
    /// A mistake at `path`, whose text stands at `position`.
    pub fn new(
        path: impl Into<String>,
        position: Option<&Position>,
        message: impl Into<String>,
    ) -> Self {
        let lined = position.filter(|position| position.line > 0);
        Self {
            path: shortened(path.into()),
            line: lined.map(|position| position.line),
            column: lined.map(|position| position.column),
            source: position.and_then(|position| position.source.as_deref().map(str::to_owned)),
            message: shortened(message.into()),
            hint: None,
        }
    }

    /// The same mistake with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shortened(hint.into()));
        self
    }
}

/// The text without its middle, when it is long: quotes are at the begin, what is wrong with them at the end.
fn shortened(text: String) -> String {
    // Bytes are never fewer than characters.
    if text.len() <= MAX_TOLD_CHARS {
        return text;
    }
    let cut = |(offset, _): (usize, char)| offset;
    let head = text.char_indices().nth(MAX_TOLD_CHARS / 2).map(cut);
    let tail = text.char_indices().rev().nth(MAX_TOLD_CHARS / 2).map(cut);
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => {
            format!("{} … {}", &text[..head], &text[tail..])
        }
        _ => text,
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        write!(f, "<config>{dot}{}: {}", self.path, self.message)?;
        match (self.line, &self.source) {
            (Some(line), Some(source)) => write!(f, " (line {line} of {source})")?,
            (Some(line), None) => write!(f, " (line {line})")?,
            (None, Some(source)) => write!(f, " (from {source})")?,
            (None, None) => {}
        }
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// All mistakes of a configuration, in the order of the text; never empty when returned as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// A single mistake.
    pub fn one(error: ConfigError) -> Self {
        Self(vec![error])
    }

    /// `Err` with the mistakes in the order of the text, or `Ok` when there are none.
    pub(crate) fn check(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() {
            return Ok(());
        }
        errors.sort_by(|a, b| {
            let key = |e: &ConfigError| (e.source.clone(), e.line.unwrap_or(u32::MAX));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.path.cmp(&b.path))
                .then_with(|| a.message.cmp(&b.message))
        });
        errors.dedup();
        let more = errors.len().saturating_sub(MAX_TOLD);
        if more > 0 {
            errors.truncate(MAX_TOLD);
            let message = format!("has {more} more mistakes");
            errors.push(ConfigError::new("", None, message));
        }
        Err(Self(errors))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
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

/// How many single-character insertions, deletions and substitutions lead from `a` to `b`, or `None` when more than `limit`.
pub(crate) fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_bounded_whatever_was_written() {
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
        let told = ConfigErrors::check(many.collect()).unwrap_err();
        assert_eq!(told.0.len(), MAX_TOLD + 1);
        assert_eq!(told.0[MAX_TOLD].message, "has 900 more mistakes");
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
            "<config>.resources.slots: is not a key here (line 3); hint: use \"resources.slots_per_trial\""
        );
        let whole = ConfigError::new("", None, "is empty");
        assert_eq!(whole.to_string(), "<config>: is empty");
        assert_eq!(
            ConfigErrors(vec![whole.clone(), whole]).to_string(),
            "<config>: is empty\n<config>: is empty"
        );
    }

    #[test]
    fn errors_of_files_and_variables_name_their_source() {
        let file = Position {
            source: Some("b.yaml".into()),
            line: 2,
            column: 1,
        };
        assert_eq!(
            ConfigError::new("port", Some(&file), "x").to_string(),
            "<config>.port: x (line 2 of b.yaml)"
        );
        let variable = Position {
            source: Some("DET_PORT".into()),
            line: 0,
            column: 0,
        };
        assert_eq!(
            ConfigError::new("port", Some(&variable), "x").to_string(),
            "<config>.port: x (from DET_PORT)"
        );
    }

    #[test]
    fn edit_distances_stop_at_the_limit() {
        assert_eq!(edit_distance("resoruces", "resources", 2), Some(2));
        assert_eq!(edit_distance("name", "name", 2), Some(0));
        assert_eq!(edit_distance("mame", "name", 2), Some(1));
        assert_eq!(edit_distance("slots", "slots_per_trial", 2), None);
        assert_eq!(edit_distance("", "ab", 2), Some(2));
    }
}
