//! The hyperparameter space of an experiment: `docs/contract/configuration.md`, "Hyperparameters".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A named group of hyperparameters. Names are visited in sorted order wherever order matters.
pub type Space = BTreeMap<String, Hyperparameter>;

/// One node of the space: a leaf that is sampled, or a nested group.
#[derive(Debug, Clone, PartialEq)]
pub enum Hyperparameter {
    /// Always this value.
    Const(Value),
    /// An integer from `minval` to `maxval`, both included.
    Int {
        /// Lowest value.
        minval: i64,
        /// Highest value; above `minval`.
        maxval: i64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// A real number in `[minval, maxval)`.
    Double {
        /// Lowest value.
        minval: f64,
        /// Bound above; above `minval`.
        maxval: f64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// `base` to the power of a real number in `[minval, maxval)`.
    Log {
        /// Lowest exponent.
        minval: f64,
        /// Bound above of the exponent; above `minval`.
        maxval: f64,
        /// Above 0.
        base: f64,
        /// Points of a grid, at least 1.
        count: Option<u64>,
    },
    /// One of these values; never empty.
    Categorical(Vec<Value>),
    /// A nested group.
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
    pub source_trial_id: Option<i64>,
    /// Every trial starts from this checkpoint.
    pub source_checkpoint_uuid: Option<String>,
    /// The method and its own settings.
    pub method: SearchMethod,
}

/// The five search methods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum SearchMethod {
    /// One trial.
    Single,
    /// Independent samples.
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
        /// Rungs, at least 1.
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
    /// Several ASHA brackets side by side.
    AdaptiveAsha {
        /// Which brackets.
        mode: AdaptiveMode,
        /// Rungs of the largest bracket at most.
        max_rungs: u64,
        /// Explicit rung counts; empty = derived from `mode`.
        bracket_rungs: Vec<u64>,
        /// As for ASHA.
        divisor: f64,
        /// As for ASHA, over all brackets.
        max_trials: u64,
        /// As for ASHA, over all brackets.
        max_concurrent_trials: u64,
        /// As for ASHA.
        time_metric: String,
        /// As for ASHA.
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
