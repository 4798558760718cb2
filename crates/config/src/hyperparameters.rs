//! The hyperparameter space of an experiment: `docs/contract/configuration.md`, "Hyperparameters".

use std::collections::BTreeMap;

use det_ids::{CheckpointId, TrialId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A named group of hyperparameters. Names are visited in sorted order wherever order matters.
pub type Space = BTreeMap<String, Hyperparameter>;

/// One node of the space: a leaf that is sampled, or a nested group.
#[derive(Debug, Clone, PartialEq)]
pub enum Hyperparameter {
    /// A constant: every trial gets this value.
    Const(Value),
    /// An integer from `minval` to `maxval`, both included.
    Int {
        /// Lowest value that may be chosen.
        minval: i64,
        /// Highest value; above `minval`.
        maxval: i64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// A real number in `[minval, maxval)`.
    Double {
        /// Lowest value that may be chosen.
        minval: f64,
        /// Bound above; above `minval`.
        maxval: f64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// `base` to the power of a real number in `[minval, maxval)`.
    Log {
        /// Lowest exponent that may be chosen.
        minval: f64,
        /// Bound above of the exponent; above `minval`.
        maxval: f64,
        /// The base of the power; above 0.
        base: f64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// One of these values; never empty.
    Categorical(Vec<Value>),
    /// A group of hyperparameters below one name.
    Group(Space),
}

/// How an experiment searches its space: `docs/contract/searchers.md`, "Methods".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearcherConfig {
    /// The validation metric that is optimised.
    pub metric: String,
    /// Whether a lower metric is better.
    pub smaller_is_better: bool,
    /// Every trial starts from this trial's latest checkpoint. Never together with `source_checkpoint_uuid`.
    pub source_trial_id: Option<TrialId>,
    /// Every trial starts from this checkpoint.
    pub source_checkpoint_uuid: Option<CheckpointId>,
    /// The method and its own settings.
    pub method: SearchMethod,
}

/// How an experiment that has ended can be continued, by the method of its search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuation {
    /// Its one trial goes on, also with another configuration.
    Trial,
    /// Its search runs again from its seed and finds its trials, so the configuration must be the same.
    Search,
    /// Not at all: what its search decided rests on results in the order in which they came.
    Never,
}

impl SearchMethod {
    /// How an experiment of this method is continued.
    pub fn continuation(&self) -> Continuation {
        match self {
            Self::Single => Continuation::Trial,
            Self::Random { .. } | Self::Grid { .. } => Continuation::Search,
            Self::AsyncHalving { .. } | Self::AdaptiveAsha { .. } => Continuation::Never,
        }
    }
}

/// A method of searching, with its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum SearchMethod {
    /// One trial with one value drawn for each hyperparameter.
    Single,
    /// Trials with hyperparameters drawn independently.
    Random {
        /// Trials to create, at least 1.
        max_trials: u64,
        /// Trials alive at once; 0 = no limit.
        max_concurrent_trials: u64,
    },
    /// Every point of the grid once.
    Grid {
        /// Trials alive at once; 0 = no limit.
        max_concurrent_trials: u64,
    },
    /// Asynchronous successive halving, stopping form (Li et al. 2020, arXiv:1810.05934).
    AsyncHalving {
        /// Number of rungs, at least 1.
        num_rungs: u64,
        /// Share that goes on is 1/divisor; above 1.
        divisor: f64,
        /// Trials to create, at least 1.
        max_trials: u64,
        /// Trials alive at once; 0 = derived from the rungs.
        max_concurrent_trials: u64,
        /// The reported metric that measures training time.
        time_metric: String,
        /// Value of `time_metric` at the top rung, at least 1.
        max_time: u64,
    },
    /// Several brackets of asynchronous successive halving at once.
    AdaptiveAsha {
        /// Which brackets are searched: how early trials are stopped.
        mode: AdaptiveMode,
        /// Most rungs of the largest bracket, at least 1.
        max_rungs: u64,
        /// Explicit rung counts; empty = derived from `mode`.
        bracket_rungs: Vec<u64>,
        /// Share that goes on is 1/divisor; above 1.
        divisor: f64,
        /// Trials to create over all brackets, at least 1.
        max_trials: u64,
        /// Trials alive at once over all brackets; 0 = derived from the rungs.
        max_concurrent_trials: u64,
        /// The reported metric that measures training time.
        time_metric: String,
        /// Value of `time_metric` at the top rung, at least 1.
        max_time: u64,
    },
}

/// How eagerly adaptive ASHA stops trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdaptiveMode {
    /// Only the bracket with the most rungs.
    Aggressive,
    /// The upper half of the brackets.
    #[default]
    Standard,
    /// All brackets down to one rung.
    Conservative,
}
