//! Resource manager for agents: who is connected, what each should run, and sending it.
//!
//! An agent's connection is served by one task ([`serve`]). It holds nothing that is not also in a row or in the agent:
//! after every change, and after a restart of either side, [`det_rm::PlaceView`] compares what the rows want with what
//! the agent has reported, and says what to send.
//!
//! Connections to ports of containers go through the agents too: [`Tunnels`].
//!
//! The master is reached through [`Registry`]: the core that all resource managers share, and who may connect.

mod connection;
mod registry;
mod tunnels;

pub use connection::serve;
pub use registry::{NotAdmitted, Registry};
pub use tunnels::{TunnelError, TunnelStream, Tunnels};
