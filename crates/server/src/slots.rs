//! Slots of places, as rows hold them.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::SlotId;
use det_rm::Capacity;
use det_scheduler::{Service, Services};
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

/// What users let a place and its slots do, as its row has it.
pub fn services(row: &AgentRow) -> Result<Services, StoreError> {
    let mut services = Services {
        place: Service::of(row.enabled, row.draining),
        slots: BTreeMap::new(),
    };
    for (slots, service) in [
        (&row.draining_slots, Service::Draining),
        (&row.disabled_slots, Service::Disabled),
    ] {
        for slot in slot_set(slots)? {
            services.set(Some(SlotId(slot)), service);
        }
    }
    Ok(services)
}

/// Stores what users let a place and its slots do.
pub fn set_services(row: &mut AgentRow, services: &Services) {
    row.enabled = services.place == Service::Enabled;
    row.draining = services.place == Service::Draining;
    let with = |service| {
        let slots = services.slots.iter().filter(|(_, of)| **of == service);
        slot_text(&slots.map(|(slot, _)| slot.0).collect())
    };
    row.disabled_slots = with(Service::Disabled);
    row.draining_slots = with(Service::Draining);
}

/// A stored list of slot numbers.
pub fn slot_set(text: &str) -> Result<BTreeSet<u32>, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
        what: "a list of slots".into(),
        message: e.to_string(),
    })
}

/// A list of slot numbers as it is stored.
fn slot_text(slots: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = slots.iter().map(u32::to_string).collect();
    format!("[{}]", numbers.join(","))
}
