//! Which places are connected, and by whom.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::PlaceId;
use tokio_util::sync::CancellationToken;

/// The places that are connected now. Cheap to clone.
#[derive(Clone, Default)]
pub struct Connections {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Grows with every connection of any place, so that an older one cannot end a newer one.
    last: u64,
    places: HashMap<PlaceId, Connected>,
}

struct Connected {
    instance: String,
    serial: u64,
    ended: CancellationToken,
}

/// A connection of a place, for the driver that serves it.
#[derive(Debug, Clone)]
pub struct Lease {
    place: PlaceId,
    serial: u64,
    ended: CancellationToken,
}

impl Lease {
    /// Waits until the connection is to end: a newer one takes its place, or the core has cut it.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Connections {
    /// Registers a connection. An earlier one of the same place (same instance) is replaced: its end has not been noticed
    /// yet. `None` = another place with this id is connected.
    pub fn register(&self, place: &PlaceId, instance: &str) -> Option<Lease> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = inner.places.get(place) {
            if other.instance != instance {
                return None;
            }
            other.ended.cancel();
        }
        inner.last += 1;
        let lease = Lease {
            place: place.clone(),
            serial: inner.last,
            ended: CancellationToken::new(),
        };
        let connected = Connected {
            instance: instance.to_owned(),
            serial: lease.serial,
            ended: lease.ended.clone(),
        };
        inner.places.insert(place.clone(), connected);
        Some(lease)
    }

    /// Ends a connection; `false` when it had ended before, or a newer one has taken its place.
    pub fn end(&self, lease: &Lease) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let current = inner.places.get(&lease.place);
        let is_current = current.is_some_and(|connected| connected.serial == lease.serial);
        if is_current {
            inner.places.remove(&lease.place);
        }
        is_current
    }

    /// Ends the connection of a place, if it has one. It counts as gone at once.
    pub fn cut(&self, place: &PlaceId) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = inner.places.remove(place) {
            connected.ended.cancel();
        }
    }

    /// Whether the place is connected now.
    pub fn is_connected(&self, place: &PlaceId) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.places.contains_key(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_connection_ends_no_newer_one() {
        let (connections, place) = (Connections::default(), PlaceId::from("a"));
        let first = connections.register(&place, "disk 1").unwrap();
        assert!(connections.register(&place, "disk 2").is_none());
        let second = connections.register(&place, "disk 1").unwrap();
        assert!(first.ended.is_cancelled() && !second.ended.is_cancelled());
        assert!(!connections.end(&first) && connections.is_connected(&place));
        // Also after the place was cut off and has come back.
        connections.cut(&place);
        assert!(second.ended.is_cancelled() && !connections.is_connected(&place));
        let third = connections.register(&place, "disk 2").unwrap();
        assert!(!connections.end(&first) && !connections.end(&second));
        assert!(connections.end(&third) && !connections.end(&third));
    }
}
