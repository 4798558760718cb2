//! Experiment, master and agent configuration: parse, complete, validate.
pub mod hyperparameters;
