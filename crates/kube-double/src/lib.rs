//! A double of the Kubernetes API, for tests only: an HTTP server in the test's process that answers as an API server does,
//! as far as resource managers use one, and that has faults when a test asks for them.
//!
//! Start at [`ApiDouble`]. Objects are JSON values in memory with one counter of versions and a history, which watches read.
//! A write runs the controllers ([`Controllers`]: Jobs, scheduler, garbage collection) before it is answered, so nothing
//! depends on time; the test itself is the kubelet: [`ApiDouble::pod_phase`], [`ApiDouble::set_pod_status`] and
//! [`ApiDouble::finish_deletion`], gives what listens on ports of pods ([`listen`]) and nodes ([`give_node_ports`]), and decides when an
//! autoscaler looks: [`scale_up`]. [`Faults`] has what can go wrong.
//!
//! It knows of the kinds of Kubernetes what their objects are completed with and how they end, no more: there are no schemas,
//! owners of fields, quotas, admission webhooks or disruption budgets, and objects are converted between versions by name
//! only. Any other group and plural is a custom resource without rules. What it does is described by the public documentation of
//! Kubernetes: API concepts, Jobs, pod failure policies, pod life cycle, garbage collection, finalizers.

mod access;
mod admission;
mod autoscaling;
mod cluster;
mod controllers;
mod deletion;
mod discovery;
mod double;
mod failure;
mod faults;
mod forwards;
mod http;
mod index;
mod jobs;
mod lists;
mod patches;
mod scheduling;
mod selectors;
mod services;
mod shared;
mod target;
mod values;
mod watches;
mod writes;

pub use autoscaling::{NodeGroup, scale_up};
pub use controllers::Controllers;
pub use double::{ApiDouble, Objects, give_node_ports, listen};
pub use faults::Faults;
pub use shared::RecordedRequest;
