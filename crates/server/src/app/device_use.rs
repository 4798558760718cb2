//! How much the devices of connected agents are used, as they last reported it. In memory only: it is of interest as it is
//! now, and an agent that connects reports everything again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_agent_proto::DeviceReport;
use det_ids::{PlaceId, SlotId};

/// The newest reports of a place's devices, by slot.
pub(crate) type Uses = BTreeMap<SlotId, DeviceReport>;

/// The newest report of each device. Cheap to clone.
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
        reports: Vec<DeviceReport>,
        is_connected: impl Fn(&PlaceId) -> bool,
    ) {
        let reports = reports.into_iter().map(|report| (report.slot, report));
        let mut known = self.lock();
        known.retain(|place, _| is_connected(place));
        known.insert(place.clone(), reports.collect());
    }

    /// The newest reports of a place.
    pub(crate) fn of(&self, place: &PlaceId) -> Uses {
        self.lock().get(place).cloned().unwrap_or_default()
    }
}
