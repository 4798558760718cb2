//! What a pool has at present, and what of it is in use.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::PlaceId;
use det_store::places::PlaceRow;
use det_taskspec::DeviceKind;

use super::PoolContents;
use crate::app::jobs::QueuedJob;

/// What a pool has and what of it is in use. Places that are away do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolUse {
    /// Number of places that are connected.
    pub(crate) places: i64,
    /// Number of slots of these places.
    pub(crate) slots: i64,
    /// Number of slots of these places that containers hold.
    pub(crate) slots_used: i64,
    /// Number of live containers without slots on these places, those included that are being started.
    pub(crate) aux_containers: i64,
    /// The kind of its devices, and their brand; `None` = it has none. Pools hold one kind as a rule; where there are
    /// several, the most frequent one counts.
    pub(crate) devices: Option<(DeviceKind, String)>,
}

impl PoolContents {
    /// What the pool of this name has, and what of it is in use.
    pub(crate) fn use_of(&self, pool: &str) -> PoolUse {
        let of_pool = |place: &&PlaceRow| place.resource_pool == pool;
        let present: Vec<&PlaceRow> = (self.agents.iter())
            .filter(of_pool)
            .filter(|place| place.disconnected_at.is_none())
            .collect();
        let mut kinds: BTreeMap<DeviceKind, (i64, String)> = BTreeMap::new();
        let mut slots = 0;
        for device in present.iter().flat_map(|place| place.capacity.devices()) {
            slots += 1;
            let (count, _) = kinds.entry(device.kind).or_insert((0, device.brand));
            *count += 1;
        }
        let devices = kinds.into_iter().max_by_key(|(_, (count, _))| *count);
        let ids: BTreeSet<&PlaceId> = present.iter().map(|place| &place.id).collect();
        let (mut slots_used, mut aux_containers) = (0, 0);
        let containers = self.containers.iter();
        for container in containers.filter(|it| ids.contains(&it.place_id)) {
            match i64::try_from(container.slots.len()).unwrap_or(i64::MAX) {
                0 => aux_containers += 1,
                more => slots_used += more,
            }
        }
        PoolUse {
            places: i64::try_from(present.len()).unwrap_or(i64::MAX),
            slots,
            slots_used,
            aux_containers,
            devices: devices.map(|(kind, (_, brand))| (kind, brand)),
        }
    }

    /// The entries of the queue of the pool of this name.
    pub(crate) fn queue_of(&self, pool: &str) -> impl Iterator<Item = &QueuedJob> {
        self.queue
            .iter()
            .filter(move |entry| entry.job.resource_pool == pool)
    }
}
