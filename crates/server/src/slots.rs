//! Slots of places, as rows hold them.

use std::collections::BTreeSet;

use det_ids::SlotId;
use det_rm::Capacity;
use det_store::StoreError;
use det_store::agents::AgentRow;
use det_taskspec::Device;

/// What a place offers, as its row has it.
pub fn capacity(row: &AgentRow) -> Result<Capacity, StoreError> {
    serde_json::from_str(&row.devices).map_err(|e| StoreError::Corrupt {
        what: format!("devices of agent {}", row.id),
        message: e.to_string(),
    })
}

/// The slots of a place, each as a device; where slots are only counted, devices without names.
pub fn devices(row: &AgentRow) -> Result<Vec<Device>, StoreError> {
    Ok(match capacity(row)? {
        Capacity::Devices(devices) => devices,
        Capacity::Count { slots, kind } => (0..slots)
            .map(|number| Device {
                id: SlotId(number),
                brand: String::new(),
                uuid: String::new(),
                kind,
            })
            .collect(),
    })
}

/// A stored list of slot numbers.
pub fn slot_set(text: &str) -> Result<BTreeSet<u32>, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
        what: "a list of slots".into(),
        message: e.to_string(),
    })
}

/// A list of slot numbers as it is stored.
pub fn slot_text(slots: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = slots.iter().map(u32::to_string).collect();
    format!("[{}]", numbers.join(","))
}
