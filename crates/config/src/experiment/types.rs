//! The typed configuration of an experiment.

use serde::{Deserialize, Serialize};

/// The command that a trial runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entrypoint {
    /// Run by a shell, or a trial class (see [`is_trial_class`](super::ExperimentConfig::is_trial_class)).
    Shell(String),
    /// Run as it is, without a shell; never empty.
    Argv(Vec<String>),
}

/// When a validation leads to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointPolicy {
    /// When it beats every earlier one of the experiment.
    Best,
    /// After every validation, whatever its metric.
    All,
    /// After no validation: the training code alone decides.
    None,
}

/// How long a stretch of training is: so many batches, records or epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// Number of batches.
    Batches(u64),
    /// Number of records of the data set.
    Records(u64),
    /// Number of passes over the data set.
    Epochs(u64),
}
