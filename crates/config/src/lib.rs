//! Experiment, master and agent configuration: parse, complete, validate.
//!
//! Text goes in, typed and complete values come out, or a list of every mistake with its path and line. The room knows
//! nothing of files, of the environment or of the clock: whoever calls it brings texts, variables, names and seeds.
//!
//! Read [`experiment::Submitted`] first (a document as a person wrote it), then [`experiment::ExperimentConfig`] (what
//! an experiment runs with). [`master::MasterConfig`] and [`agent::AgentConfig`] share one loader, in which a flag beats
//! the environment, the environment beats the files, and the files beat the defaults.
//!
//! How it works inside: [`yaml`] turns text into a tree whose nodes know where they stand; a schema, which is data,
//! checks the tree, fills in defaults, finds secrets and suggests what a misspelt key may have meant; the typed
//! values are read from what is left.

pub mod agent;
pub mod container;
pub mod errors;
pub mod experiment;
pub mod hyperparameters;
mod layers;
pub mod master;
mod pod;
mod schema;
pub mod space;
pub mod storage;
pub mod units;
pub mod yaml;

pub use agent::AgentConfig;
pub use container::TaskContainerDefaults;
pub use errors::{ConfigError, ConfigErrors};
pub use experiment::{CompletionDefaults, ExperimentConfig, Submitted, apply_overrides};
pub use master::MasterConfig;
pub use units::parse_byte_size;
