//! Which places are connected now, each with the driver that serves it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{InstanceId, PlaceId};
use det_rm::{LeaseId, Leases};
use tokio_util::sync::CancellationToken;

/// The places that are connected now. Cheap to clone.
#[derive(Clone, Default)]
pub struct ConnectedPlaces {
    leases: Arc<Mutex<Leases<CancellationToken>>>,
}

/// A place that a driver serves.
#[derive(Debug, Clone)]
pub struct Lease {
    id: LeaseId,
    lost: CancellationToken,
}

impl det_rm::Lease for Lease {
    async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl ConnectedPlaces {
    fn lock(&self) -> MutexGuard<'_, Leases<CancellationToken>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a place to a driver; an earlier one of the same place loses it. `None` = another place with this id is
    /// connected.
    pub(crate) fn take(&self, place: &PlaceId, instance: &InstanceId) -> Option<Lease> {
        let lost = CancellationToken::new();
        let (id, earlier) = self.lock().take(place, instance, lost.clone())?;
        if let Some(earlier) = earlier {
            earlier.cancel();
        }
        Some(Lease { id, lost })
    }

    /// A driver gives its place back; `false` when it had lost it before.
    pub(crate) fn give_back(&self, lease: &Lease) -> bool {
        self.lock().give_back(&lease.id)
    }

    /// Ends the connection of a place, if it has one. It counts as gone at once.
    pub(crate) fn cut(&self, place: &PlaceId) {
        if let Some(lost) = self.lock().take_away(place) {
            lost.cancel();
        }
    }

    /// Whether the place is connected now.
    pub fn has(&self, place: &PlaceId) -> bool {
        self.lock().is_served(place)
    }
}
