//! Rows turned into what clients see. No queries: the caller brings all rows that are needed.

pub mod agents;
pub mod checkpoints;
pub(crate) mod diagnosis;
pub mod experiments;
pub mod jobs;
pub mod launches;
pub mod logs;
pub mod tasks;
pub mod trials;
pub mod users;
pub mod why;
pub mod workspaces;
