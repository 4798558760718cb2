//! The log of a process itself, which master and agent configure alike.

use serde::{Deserialize, Serialize};

use crate::schema::{Kind, keys};

const LEVELS: Kind = Kind::Choice(&["trace", "debug", "info", "warn", "error", "fatal"]);
keys! {
    /// How a process writes its own log.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Log, LOG {
        /// Least important lines that are logged.
        level: String = LEVELS, or("\"info\"");
        /// Whether the log is coloured on a terminal.
        color: bool = Kind::Bool, or("true");
    }
}
