//! The log of a process itself, which master and agent configure alike.

use serde::{Deserialize, Serialize};

use crate::schema::{Kind, Section, field, section};

const LEVELS: Kind = Kind::Choice(&["trace", "debug", "info", "warn", "error", "fatal"]);
/// Log of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// `trace`, `debug`, `info`, `warn`, `error` or `fatal`.
    pub level: String,
    /// Whether it is coloured on a terminal.
    pub color: bool,
}

pub(crate) static LOG: Section = section(&[
    field("level", LEVELS, "Least important lines that are logged").or("\"info\""),
    field(
        "color",
        Kind::Bool,
        "Whether the log is coloured on a terminal",
    )
    .or("true"),
]);
