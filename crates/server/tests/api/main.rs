//! The API, endpoint by endpoint, against a whole master. One file per resource family; one binary, since linking the
//! master is what costs.

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod allocations;
mod auth;
mod events;
mod jobs;
mod logs;
mod master;
mod tasks;
mod users;
