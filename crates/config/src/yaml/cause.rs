//! What most likely made a text no YAML, where the parser reports only what it met: a colon that is missing, a tab in the
//! indentation, quotes within quotes.
//!
//! Like [`unclosed`] it reads lines of the text after an error. Values are not repeated, since they may be
//! secrets; keys are.

use super::{parser_mentions, position, unclosed};
use crate::errors::{ConfigError, ErrorCode};

/// Longest word that is taken for a key.
const LONGEST_KEY: usize = 40;

/// The error at the place of its most likely cause, with what to write there; as it was where there is no likely cause.
pub(super) fn explained(text: &str, error: ConfigError) -> ConfigError {
    unclosed::located(text, error)
        .or_else(|error| tab(text, error))
        .or_else(|error| missing_colon(text, error))
        .unwrap_or_else(hinted)
}

/// An error with the most frequent cause of it as its hint.
fn hinted(error: ConfigError) -> ConfigError {
    let hint = if parser_mentions(&error, &["mapping values are not allowed"]) {
        "put quotes around a text that holds \": \", and indent the keys of one map alike"
    } else if parser_mentions(&error, &["did not find expected"]) {
        "indent the keys of one map, and the items of one list, alike"
    } else if parser_mentions(&error, &["trailing content after"]) {
        unclosed::CLOSE_QUOTE
    } else if parser_mentions(&error, &["bracket"]) {
        "close each [ with ] and each { with }, or put quotes around a text that holds brackets"
    } else {
        return error;
    };
    if error.hint.is_some() {
        error
    } else {
        error.with_hint(hint)
    }
}

/// A tab in the indentation, at its own line: in the middle of a text the parser names the line on which the text began.
fn tab(text: &str, error: ConfigError) -> Result<ConfigError, ConfigError> {
    let Some(first) = error.line.filter(|_| parser_mentions(&error, &["tab"])) else {
        return Err(error);
    };
    let skipped = (first as usize).saturating_sub(1);
    let found = text
        .lines()
        .enumerate()
        .skip(skipped)
        .find_map(|(index, line)| {
            let indentation = &line[..line.len() - line.trim_start().len()];
            Some((index + 1, indentation.find('\t')? + 1))
        });
    let Some((line, column)) = found else {
        return Err(error);
    };
    let message = "is not YAML: there is a tab in the indentation of this line";
    Ok(syntax(line, column, message).with_hint("indent with spaces; YAML takes no tabs there"))
}

/// A line between the keys of a map that has no colon.
fn missing_colon(text: &str, error: ConfigError) -> Result<ConfigError, ConfigError> {
    let Some(number) = error.line.map(|line| line as usize) else {
        return Err(error);
    };
    let lines: Vec<Line> = lines_of(text)
        .take_while(|line| line.number <= number)
        .collect();
    let culprit = if parser_mentions(&error, &["expected ':'", "intercepting"]) {
        let (line, above) = lines.split_last().unzip();
        line.filter(|line| line.number == number && !goes_on(line, above.unwrap_or_default()))
    } else if parser_mentions(&error, &["mapping values are not allowed"]) {
        before_colon(&lines)
    } else {
        None
    };
    let Some(line) = culprit.filter(|line| !line.has_colon()) else {
        return Err(error);
    };
    let below = lines_of(text).find(|below| below.number > line.number);
    let has_below = below.is_some_and(|below| below.indent > line.indent);
    Ok(line.without_colon(has_below))
}

/// The line that the parser took for the beginning of a text, where the last of the lines has a colon: the one above it.
fn before_colon<'l, 't>(lines: &'l [Line<'t>]) -> Option<&'l Line<'t>> {
    let [above @ .., before, last] = lines else {
        return None;
    };
    if before.indent > last.indent || before.has_colon() {
        return None;
    }
    (!goes_on(before, above)).then_some(before)
}

/// Whether a line is most likely the second one of a value: it is below a key that has one on its own line.
fn goes_on(line: &Line, above: &[Line]) -> bool {
    let around = above.iter().rfind(|above| above.indent < line.indent);
    around.is_some_and(|around| around.has_colon() && !around.ends_with_colon())
}

/// Whether a text is most likely a key and its value without the colon in between.
pub(crate) fn lacks_colon(text: &str) -> bool {
    text.split_once(' ')
        .is_some_and(|(word, rest)| is_key(word) && !rest.contains(' '))
}

fn is_key(word: &str) -> bool {
    word.len() <= LONGEST_KEY
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word
            .chars()
            .all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn syntax(line: usize, column: usize, message: impl Into<String>) -> ConfigError {
    let at = position(line, column);
    ConfigError::new("", Some(&at), ErrorCode::Syntax.message(message.into()))
}

/// A line that has more than a comment.
#[derive(Debug, Clone, Copy)]
struct Line<'t> {
    /// Counted from 1.
    number: usize,
    /// Characters before its content: blanks, and the dashes of lists.
    indent: usize,
    /// Without its comment.
    content: &'t str,
}

fn lines_of(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let content = line.trim_start_matches([' ', '-', '\t']);
        let indent = line.len() - content.len();
        let content = content.split(" #").next().unwrap_or(content).trim_end();
        let is_empty = content.is_empty() || content.starts_with('#');
        (!is_empty).then_some(Line {
            number: index + 1,
            indent,
            content,
        })
    })
}

impl Line<'_> {
    fn has_colon(&self) -> bool {
        self.ends_with_colon() || self.content.contains(": ") || self.content.contains(":\t")
    }

    fn ends_with_colon(&self) -> bool {
        self.content.ends_with(':')
    }

    /// The error that it has no colon. `has_below` = lines below it are indented further, and are its value.
    fn without_colon(&self, has_below: bool) -> ConfigError {
        let error = |message: &str| syntax(self.number, self.indent + 1, message);
        let end = self.content.find([' ', '\t', ':']);
        let (word, rest) = self.content.split_at(end.unwrap_or(self.content.len()));
        let missing = "is not YAML: this line has no colon after its key";
        match (is_key(word), rest.starts_with(':'), rest.is_empty()) {
            (true, true, _) => {
                error("is not YAML: there is no space behind the colon after the key")
                    .with_hint(format!("write \"{word}: VALUE\""))
            }
            (true, false, false) => error(missing).with_hint(format!("write \"{word}: VALUE\"")),
            (true, false, true) if has_below => {
                error(missing).with_hint(format!("write \"{word}:\""))
            }
            _ => error(missing).with_hint(
                "write \"KEY: VALUE\"; an item of a list begins with \"- \", and a text of several lines is indented \
                 below its key",
            ),
        }
    }
}
