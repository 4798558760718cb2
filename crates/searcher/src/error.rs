//! Why a search cannot be created.

use det_config::limits::Points;
pub use det_config::limits::{MAX_RUNGS, MAX_TRIALS};

/// Why a search cannot be created or restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// A setting of the searcher is out of range.
    #[error("searcher.{field} is {value}; {allowed}")]
    Setting {
        /// Name of the setting below `searcher`.
        field: &'static str,
        /// The value that was configured, as text.
        value: String,
        /// What is allowed, a sentence for users.
        allowed: String,
    },
    /// A hyperparameter cannot be sampled, or cannot be an axis of a grid.
    #[error("hyperparameters.{path}: {problem}")]
    Hyperparameter {
        /// Names from the top of the space, joined by dots.
        path: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The grid has too many points.
    #[error(
        "the grid has {points} points, at most {MAX_TRIALS} are allowed; lower a count, or use the random searcher"
    )]
    GridTooLarge {
        /// Number of its points, as far as it can be represented.
        points: Points,
    },
    /// The snapshot does not fit this program or this configuration.
    #[error("the search cannot be restored from its snapshot: {problem}")]
    Snapshot {
        /// What does not fit, for users.
        problem: String,
    },
}

impl SearchError {
    pub(crate) fn setting(
        field: &'static str,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Setting {
            field,
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    pub(crate) fn snapshot(problem: impl Into<String>) -> Self {
        Self::Snapshot {
            problem: problem.into(),
        }
    }
}
