//! Where a quote or a bracket was opened that is not closed: the parser reports the place where it noticed.
//!
//! A scan of the text beside the parser, only after an error, in one pass. It knows quotes, brackets, comments and block
//! scalars; where it errs, the place is another one and nothing else.

use super::{parser_mentions, position};
use crate::errors::{ConfigError, ErrorCode, Message};

/// A quote or a bracket that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenMark {
    character: char,
    /// Line and column, counted from 1.
    line: usize,
    column: usize,
}

/// What is open at a place of the text.
#[derive(Debug, Default)]
struct Scan {
    /// The quoted text that reaches up to the place or ended last before it, with the line that it ended on; `None` while
    /// it is open.
    quoted: Option<(OpenMark, Option<usize>)>,
    brackets: Vec<OpenMark>,
}

const NOT_CLOSED: &str = "is not YAML: the quote that is opened here is not closed";
/// What to do about a quote that is not closed.
pub(super) const CLOSE_QUOTE: &str =
    "close the quote; a quote within quotes is written '' within ' and \\\" within \"";

const CLOSE_BRACKET: &str = "close it, or put quotes around a text that holds brackets";

/// The error at the place where what was not closed began, if that is the cause; otherwise the error as it was.
pub(super) fn located(text: &str, error: ConfigError) -> Result<ConfigError, ConfigError> {
    let (Some(line), Some(column)) = (error.line, error.column) else {
        return Err(error);
    };
    let place = (line as usize, column as usize);
    if parser_mentions(&error, &["unclosed quote"]) {
        // The parser came to the end of the text, and remembers where it began.
        return Ok(ConfigError {
            message: NOT_CLOSED.to_owned(),
            ..error
        }
        .with_hint(CLOSE_QUOTE));
    }
    if parser_mentions(&error, &["unclosed bracket"]) {
        let opened = text.lines().nth(place.0 - 1).unwrap_or_default();
        let character = opened.chars().nth(place.1 - 1).unwrap_or('[');
        let message = format!("is not YAML: the \"{character}\" that is opened here is not closed");
        return Ok(ConfigError { message, ..error }.with_hint(CLOSE_BRACKET));
    }
    let scan = scan(text, place);
    // Only a quote that reaches over the end of its line is certainly not closed where that was meant.
    let quote = scan.quoted.filter(|(opened, ended)| match ended {
        None => true,
        Some(ended) => opened.line < *ended && *ended == place.0,
    });
    if let Some((opened, ended)) = quote {
        let message = match ended {
            None => NOT_CLOSED.to_owned(),
            Some(ended) => format!(
                "{NOT_CLOSED} on this line; the next one is on line {ended}, \
                 where the text goes on"
            ),
        };
        return Ok(moved(
            opened,
            ErrorCode::Syntax.message(message),
            CLOSE_QUOTE,
        ));
    }
    let is_of_flow = parser_mentions(&error, &["flow", "','", "']'", "'}'", "clos", "':'"]);
    match scan.brackets.last() {
        Some(opened) if is_of_flow && opened.line < place.0 => {
            let message = ErrorCode::Syntax.message(format!(
                "is not YAML: the \"{}\" that is opened here is not closed before line {}",
                opened.character, place.0
            ));
            Ok(moved(*opened, message, CLOSE_BRACKET))
        }
        _ => Err(error),
    }
}

fn moved(opened: OpenMark, message: Message, hint: &str) -> ConfigError {
    let at = position(opened.line, opened.column);
    ConfigError::new("", Some(&at), message).with_hint(hint)
}

/// Scans the text up to a line and column.
fn scan(text: &str, place: (usize, usize)) -> Scan {
    let mut scan = Scan::default();
    let mut block: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let indent = line.len() - line.trim_start_matches(' ').len();
        if let Some(parent) = block {
            if line.trim().is_empty() || indent > parent {
                continue;
            }
            block = None;
        }
        if number > place.0 {
            break;
        }
        let end = if number == place.0 {
            place.1
        } else {
            usize::MAX
        };
        scan.line(line, number, end);
        let is_open = matches!(scan.quoted, Some((_, None)));
        if !is_open && scan.brackets.is_empty() && opens_block(line) {
            block = Some(indent);
        }
    }
    scan
}

/// Whether a block scalar (`|`, `>`) begins at the end of this line.
fn opens_block(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or(line).trim_end();
    let last = line.rsplit([' ', ':']).next().unwrap_or_default();
    let mut characters = last.chars();
    matches!(characters.next(), Some('|' | '>'))
        && characters.all(|c| matches!(c, '+' | '-' | '0'..='9'))
}

impl Scan {
    /// Takes the characters of a line before column `end`.
    fn line(&mut self, line: &str, number: usize, end: usize) {
        // Whether a value may begin here: a quote within a plain text is a character like others.
        let mut fresh = true;
        let mut before = ' ';
        let mut characters = line
            .chars()
            .enumerate()
            .map(|(index, c)| (index + 1, c))
            .peekable();
        while let Some((column, c)) = characters.next() {
            if column >= end && !matches!(self.quoted, Some((_, None))) {
                return;
            }
            if let Some((opened, None)) = self.quoted {
                let next = characters.peek().map(|(_, next)| *next);
                match (opened.character, c) {
                    ('"', '\\') => {
                        characters.next();
                    }
                    ('\'', '\'') if next == Some('\'') => {
                        characters.next();
                    }
                    (quote, c) if quote == c => {
                        self.quoted = Some((opened, Some(number)));
                        fresh = false;
                    }
                    _ => {}
                }
                before = c;
                continue;
            }
            match c {
                '#' if before == ' ' || before == '\t' => return,
                '"' | '\'' if fresh => {
                    self.quoted = Some((
                        OpenMark {
                            character: c,
                            line: number,
                            column,
                        },
                        None,
                    ));
                }
                '[' | '{' if fresh => {
                    self.brackets.push(OpenMark {
                        character: c,
                        line: number,
                        column,
                    });
                }
                ']' | '}' => {
                    self.brackets.pop();
                    fresh = false;
                }
                ',' if !self.brackets.is_empty() => fresh = true,
                ':' => fresh = true,
                '-' | '?' if fresh => {}
                ' ' | '\t' => {}
                _ => fresh = false,
            }
            // `a:b` is one plain text.
            if before == ':'
                && !matches!(c, ' ' | '\t' | '"' | '\'' | '[' | '{')
                && !matches!(c, ':')
            {
                fresh = false;
            }
            before = c;
        }
    }
}
