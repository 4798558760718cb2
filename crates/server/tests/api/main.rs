//! The API, endpoint by endpoint, against a whole master. One file per resource family; one binary, since linking the
//! master is what costs.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod agent_tokens;
mod agents;
mod allocations;
mod auth;
mod authorisation;
mod background;
mod checkpoint_files;
mod checkpoints;
mod config_policies;
mod device_health;
mod doctor;
mod drop_in;
mod events;
mod experiments;
mod gangs;
mod intake;
mod jobs;
mod large_searches;
mod launches;
mod log_policies;
mod log_retention;
mod logs;
mod managers;
mod master;
mod model_definitions;
mod namespaces;
mod notebooks;
mod origin;
mod pages;
mod pool_defaults;
mod pools;
mod projects;
mod races;
mod recovery;
mod reload;
mod renewal;
mod retries;
mod rights;
mod services_host;
mod shells;
mod system_metrics;
mod task_kinds;
mod task_lists;
mod tasks;
mod templates;
mod tensorboards;
mod trials;
mod unmanaged;
mod users;
mod workspaces;
