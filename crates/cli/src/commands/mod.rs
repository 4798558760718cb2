//! A file per group of commands.

pub(crate) mod agents;
pub(crate) mod checkpoint;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod deletion;
pub(crate) mod experiment;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod lookup;
pub(crate) mod masters;
pub(crate) mod policies;
pub(crate) mod pools;
pub(crate) mod preview;
pub(crate) mod projects;
pub(crate) mod retention;
pub(crate) mod scheduler;
pub(crate) mod slots;
pub(crate) mod tasks;
pub(crate) mod templates;
pub(crate) mod trial;
pub(crate) mod user;
pub(crate) mod version;
pub(crate) mod workspaces;
