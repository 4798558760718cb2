//! The manager of Kubernetes over a double of the API, beyond what every manager must do. The test is the kubelet.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_faults;
mod backends;
mod calls;
mod deletion;
mod devices;
mod disruption;
mod events;
mod exposure;
mod forwards;
mod gangs;
mod growth;
mod images;
mod limits;
mod namespaces;
mod nodes;
mod priorities;
mod restarts;
mod schedules;
#[path = "../support/mod.rs"]
mod support;
mod upgrades;
