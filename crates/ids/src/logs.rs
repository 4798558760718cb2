//! The words of log lines: how much a line matters, which stream it was printed on, and which program wrote it.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How much a line matters to its readers, who filter by it. Serialised as on the wire; the short words are those of
/// spools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogLevel {
    /// The finest detail.
    #[serde(rename = "LOG_LEVEL_TRACE", alias = "trace")]
    Trace,
    /// Detail for developers.
    #[serde(rename = "LOG_LEVEL_DEBUG", alias = "debug")]
    Debug,
    /// The usual course of things, and what users asked for.
    #[serde(rename = "LOG_LEVEL_INFO", alias = "info")]
    Info,
    /// Something went wrong, and the task goes on; or it goes on otherwise than was wanted.
    #[serde(rename = "LOG_LEVEL_WARNING", alias = "warning")]
    Warning,
    /// An operation, a task, or an attempt of its code, failed.
    #[serde(rename = "LOG_LEVEL_ERROR", alias = "error")]
    Error,
    /// The program cannot continue.
    #[serde(rename = "LOG_LEVEL_CRITICAL", alias = "critical")]
    Critical,
}

impl LogLevel {
    /// Every level, the finest first.
    pub const ALL: [Self; 6] = [
        Self::Trace,
        Self::Debug,
        Self::Info,
        Self::Warning,
        Self::Error,
        Self::Critical,
    ];

    /// The name on the wire and in stored lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "LOG_LEVEL_TRACE",
            Self::Debug => "LOG_LEVEL_DEBUG",
            Self::Info => "LOG_LEVEL_INFO",
            Self::Warning => "LOG_LEVEL_WARNING",
            Self::Error => "LOG_LEVEL_ERROR",
            Self::Critical => "LOG_LEVEL_CRITICAL",
        }
    }

    /// The short word, in spools.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }

    /// The level of this name of the wire; `None` = there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }
}

/// A word of log lines that has a fixed set of values, besides which clients may send any text.
pub trait LogWord: Copy + fmt::Debug + 'static {
    /// All values of the fixed set.
    const ALL: &'static [Self];

    /// The text on the wire and in stored lines.
    fn text(self) -> &'static str;
}

/// The stream on which a line was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// Standard output of the task's processes.
    Stdout,
    /// Standard error, and messages of the supervisor to users.
    Stderr,
}

impl LogStream {
    /// The text on the wire and in stored lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl LogWord for LogStream {
    const ALL: &'static [Self] = &[Self::Stdout, Self::Stderr];

    fn text(self) -> &'static str {
        self.as_str()
    }
}

/// Which program wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogSource {
    /// The task's own code, or what supervises it.
    Task,
    /// The master that runs the task.
    Master,
    /// The agent that ran the task.
    Agent,
}

impl LogSource {
    /// The text on the wire and in stored lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Master => "master",
            Self::Agent => "agent",
        }
    }
}

impl LogWord for LogSource {
    const ALL: &'static [Self] = &[Self::Task, Self::Master, Self::Agent];

    fn text(self) -> &'static str {
        self.as_str()
    }
}

/// A word of a line: one of ours, or what a client sent in its place. Ordered by the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word<T> {
    /// One of ours.
    Known(T),
    /// Any other text.
    Other(String),
}

impl<T: LogWord> Word<T> {
    /// The word of this text.
    pub fn read(text: String) -> Self {
        let known = T::ALL.iter().find(|word| word.text() == text);
        known.map_or(Self::Other(text), |word| Self::Known(*word))
    }

    /// The word as it is stored and sent, also where this version does not know it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(word) => word.text(),
            Self::Other(text) => text,
        }
    }
}

impl<T: LogWord> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}

impl<T: LogWord> From<Word<T>> for String {
    fn from(word: Word<T>) -> Self {
        match word {
            Word::Known(word) => word.text().to_owned(),
            Word::Other(text) => text,
        }
    }
}

impl<T: LogWord> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: LogWord + Eq> PartialOrd for Word<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: LogWord + Eq> Ord for Word<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_by_either_of_their_names() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::of_name(level.as_str()), Some(level));
            for name in [level.as_str(), level.word()] {
                let json = format!("\"{name}\"");
                assert_eq!(serde_json::from_str::<LogLevel>(&json).unwrap(), level);
            }
            let written = serde_json::to_string(&level).unwrap();
            assert_eq!(written, format!("\"{}\"", level.as_str()));
        }
        assert_eq!(LogLevel::of_name("LOG_LEVEL_UNSPECIFIED"), None);
    }

    #[test]
    fn words_of_clients_keep_their_text() {
        for text in ["stdout", "stderr", "", "Stdout", "pipe"] {
            assert_eq!(Word::<LogStream>::read(text.to_owned()).as_str(), text);
        }
        let ours = Word::read("master".to_owned());
        assert_eq!(ours, LogSource::Master.into());
        let mut words =
            ["task", "x", "agent", "b"].map(|text| Word::<LogSource>::read(text.into()));
        words.sort();
        assert_eq!(
            words.map(|word| word.to_string()),
            ["agent", "b", "task", "x"]
        );
    }
}
