//! Which way priorities point.

use std::fmt;

/// Which of two priorities goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PriorityOrder {
    /// The lower number is more important, as for agents.
    #[default]
    LowerFirst,
    /// The higher number is more important, as for Kubernetes.
    HigherFirst,
}

/// As users read it: `lower goes first`.
impl fmt::Display for PriorityOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LowerFirst => "lower goes first",
            Self::HigherFirst => "higher goes first",
        })
    }
}
