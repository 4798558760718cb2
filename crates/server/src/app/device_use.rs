//! How much the devices of connected agents are used, as they last reported it. In memory only: it is of interest as it is
//! now, and an agent that connects reports everything again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{PlaceId, SlotId};
use det_lifecycle::place::DeviceReading;

/// The newest readings of a place's devices, by slot.
pub(crate) type Uses = BTreeMap<SlotId, DeviceReading>;

/// The newest reading of each device. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceUse(Arc<Mutex<BTreeMap<PlaceId, Uses>>>);

impl DeviceUse {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PlaceId, Uses>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a place has reported now, and drops what is known of places that are not connected any more.
    pub(crate) fn keep(
        &self,
        place: &PlaceId,
        readings: Uses,
        is_connected: impl Fn(&PlaceId) -> bool,
    ) {
        let mut known = self.lock();
        known.retain(|place, _| is_connected(place));
        known.insert(place.clone(), readings);
    }

    /// The newest readings of a place.
    pub(crate) fn of(&self, place: &PlaceId) -> Uses {
        self.lock().get(place).cloned().unwrap_or_default()
    }
}
