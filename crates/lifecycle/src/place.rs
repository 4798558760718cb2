//! What a place offers, whatever runs containers there.

use det_ids::SlotId;
use det_taskspec::{Device, DeviceKind};
use serde::{Deserialize, Serialize};

/// How much a device of a place is in use, as it was last read. What the device or its driver does not count is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceReading {
    /// How much of the time it was in use lately, per cent.
    pub used_percent: Option<u32>,
    /// Bytes of its memory that are in use.
    pub memory_used_bytes: Option<u64>,
    /// Bytes of memory that it has.
    pub memory_bytes: Option<u64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<u32>,
}

/// What a place offers.
///
/// As JSON a list of devices, or an object with a count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Capacity {
    /// Devices with names; a container is granted some of them.
    Devices(Vec<Device>),
    /// So many slots; a container is granted a number of them, and the place chooses which.
    Count {
        /// How many slots the place offers.
        slots: u32,
        /// The kind of device that each of them is.
        kind: DeviceKind,
        /// How many of them are used at present by what this master has not started, and may be free later.
        #[serde(default, skip_serializing_if = "is_none")]
        others: u32,
    },
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_none(others: &u32) -> bool {
    *others == 0
}

impl Capacity {
    /// Whether slots are devices with names.
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Devices(_))
    }

    /// The slots, each as a device; where slots are only counted, devices without names.
    pub fn devices(&self) -> Vec<Device> {
        match self {
            Self::Devices(devices) => devices.clone(),
            Self::Count { slots, kind, .. } => (0..*slots)
                .map(|number| Device {
                    id: SlotId(number),
                    brand: String::new(),
                    uuid: String::new(),
                    kind: *kind,
                })
                .collect(),
        }
    }

    /// The slots that count as used by others, where `held` are those that containers hold: the last ones that are not
    /// held.
    pub fn used_by_others(&self, held: impl Fn(SlotId) -> bool) -> Vec<SlotId> {
        match self {
            Self::Devices(_) => Vec::new(),
            Self::Count { slots, others, .. } => {
                let free = (0..*slots).rev().map(SlotId).filter(|slot| !held(*slot));
                free.take(*others as usize).collect()
            }
        }
    }

    /// Slots that the place offers; numbered from 0 where they have no names.
    pub fn slots(&self) -> Vec<SlotId> {
        match self {
            Self::Devices(devices) => devices.iter().map(|device| device.id).collect(),
            Self::Count { slots, .. } => (0..*slots).map(SlotId).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_slots_are_stored_as_a_count_and_named_ones_as_a_list() {
        let counted = Capacity::Count {
            slots: 2,
            kind: DeviceKind::Cuda,
            others: 1,
        };
        let held = |slot| slot == SlotId(1);
        assert_eq!(counted.used_by_others(held), [SlotId(0)]);
        assert_eq!(counted.used_by_others(|_| false), [SlotId(1)]);
        let named = Capacity::Devices(counted.devices());
        for (capacity, is_list) in [(&counted, false), (&named, true)] {
            let stored = serde_json::to_value(capacity).unwrap();
            assert_eq!(stored.is_array(), is_list);
            assert_eq!(
                serde_json::from_value::<Capacity>(stored).unwrap(),
                *capacity
            );
            assert_eq!(capacity.slots(), [SlotId(0), SlotId(1)]);
        }
    }
}
