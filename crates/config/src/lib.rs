//! Experiment, master and agent configuration: parse, complete, validate.
//!
//! Text goes in, typed and complete values come out, or a list of every error with its path and line. The crate knows
//! nothing of files, of the environment or of the clock: the caller brings texts, variables, names and seeds.
//!
//! Read [`SubmittedDocument`] first (a document as a user wrote it), then [`experiment::ExperimentConfig`] (what
//! an experiment runs with); [`task`] has the same for notebooks, shells, commands and `TensorBoards`. [`MasterConfig`] and
//! [`AgentConfig`] share one loader, in which a flag beats the environment, the environment beats the files, and the files
//! beat the defaults. [`document`] checks, guesses and describes documents of every kind.
//!
//! How it works inside: [`yaml`] turns text into a tree whose nodes know where they are; a schema, which is data,
//! checks the tree, merges layers, fills in defaults, finds secrets, suggests what a misspelt key may have meant, and is
//! written out as JSON Schema and as tables of keys; the typed values are read from what is left. Since each node keeps
//! its place when layers are merged, [`explain`] can return the origin of every effective value.

pub mod agent;
pub mod container;
#[cfg(test)]
mod declared;
pub mod document;
pub mod errors;
pub mod experiment;
pub mod explain;
mod facts;
pub mod hyperparameters;
mod layer_text;
mod layers;
pub mod limits;
mod log;
pub mod master;
pub mod origin;
mod overrides;
mod pod;
pub mod policies;
mod quote;
mod repair;
mod schema;
pub mod secrets;
pub mod space;
pub mod storage;
pub mod submitted;
pub mod task;
pub mod template;
pub mod units;
mod workload;
pub mod yaml;

pub use agent::{AgentConfig, MAX_ARTIFICIAL_SLOTS};
pub use container::TaskContainerDefaults;
pub use document::DocumentKind;
pub use errors::{ConfigError, ConfigErrors, ConfigWarning, ErrorCode};
pub use experiment::ExperimentConfig;
pub use layers::{LoadedAgent, LoadedConfig, LoadedMaster, Sources};
pub use log::Log;
pub use master::MasterConfig;
pub use overrides::{apply_overrides, hidden_by_overrides, unlikely as unlikely_overrides};
pub use schema::{Key, Requirement, Status, env_name};
pub use submitted::{
    CompletionDefaults, Experiment, PolicedSubmission, SubmittedDocument, SubmittedTask,
    TaskDefaults,
};
pub use template::Template;
pub use units::parse_byte_size;
pub use workload::Workload;
