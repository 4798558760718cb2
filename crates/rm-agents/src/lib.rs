//! Resource manager for agents: who is connected, what each should run, and sending it.
//!
//! An agent's connection is served by one task ([`serve`]). It holds nothing that is not also in a row or in the agent:
//! after every change, and after a restart of either side, [`det_rm::reconcile`] compares what the rows want with what
//! the agent has reported, and says what to send.
//!
//! The master is reached through [`Registry`]: the core that all resource managers share, and who may connect.

mod connection;
mod registry;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::PlaceId;
use tokio_util::sync::CancellationToken;

pub use connection::serve;
pub use registry::{NotAdmitted, Registry};

/// Which agents are connected now.
#[derive(Clone, Default)]
pub struct Connections {
    inner: Arc<Mutex<HashMap<PlaceId, Connected>>>,
}

struct Connected {
    instance_id: String,
    /// Grows with every connection, so that an older one cannot remove a newer one.
    serial: u64,
    /// Cancelled when it is to end: a newer one takes its place, or the agent's token was revoked.
    ended: CancellationToken,
}

/// Outcome of [`Connections::register`].
pub enum Registration {
    /// Go on under this serial; end when the token is cancelled.
    Accepted(u64, CancellationToken),
    /// Another agent with this id is connected.
    Taken,
}

impl Connections {
    /// Registers a connection. An earlier one of the same agent (same data directory) is replaced: its end has not been
    /// noticed yet. Another agent with the same id is refused.
    pub fn register(&self, place: &PlaceId, instance_id: &str) -> Registration {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let serial = match inner.get(place) {
            Some(other) if other.instance_id != instance_id => return Registration::Taken,
            Some(other) => {
                other.ended.cancel();
                other.serial + 1
            }
            None => 1,
        };
        let ended = CancellationToken::new();
        inner.insert(
            place.clone(),
            Connected {
                instance_id: instance_id.to_owned(),
                serial,
                ended: ended.clone(),
            },
        );
        Registration::Accepted(serial, ended)
    }

    /// Removes a connection; `false` when a newer one has taken its place.
    pub fn unregister(&self, place: &PlaceId, serial: u64) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.get(place).is_some_and(|c| c.serial == serial) {
            inner.remove(place);
            true
        } else {
            false
        }
    }

    /// Ends the connection of an agent, if it has one. It counts as gone at once.
    pub fn cut(&self, place: &PlaceId) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = inner.remove(place) {
            connected.ended.cancel();
        }
    }

    /// Whether the agent is connected now.
    pub fn is_connected(&self, place: &PlaceId) -> bool {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(place)
    }
}
