//! Resource manager for agents: who is connected, what each should run, and sending it.
//!
//! An agent's connection is served by one task (`connection.rs`), which begins with a request to one of [`routes`]. It holds nothing that is not also in a row or in the agent:
//! after every change, and after a restart of either side, [`det_rm::PlaceView`] compares what the rows want with what
//! the agent has reported, and returns what to send.
//!
//! Connections to ports of containers go through the agents too: [`Tunnels`], which is how this manager implements
//! [`det_rm::Reach`]. Agents open them on request, or, where they accept connections, the master does (`direct.rs`).
//!
//! The master is reached through [`Registry`]: the core that all resource managers share, and who may connect.

mod connection;
mod direct;
mod endpoints;
mod registry;
mod tunnels;

pub use endpoints::{Dialect, Refusal, routes};
pub use registry::{NotAdmitted, Registry};
pub use tunnels::{TunnelStream, Tunnels};
