//! What users let places and their slots do, and how the planner sees a place with it.

use std::collections::BTreeMap;

use det_ids::{AllocationId, PlaceId, SlotId};

use crate::model::{PlaceSnapshot, PlaceState, SlotSnapshot, SlotState};

/// What users let a place or a slot do.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// It takes new work, if it is connected.
    #[default]
    Enabled,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It takes nothing; what runs there is killed and starts elsewhere.
    Disabled,
}

impl Service {
    /// The service that a row contains as two flags. What drains takes no new work, whatever the other flag is.
    pub fn of(enabled: bool, draining: bool) -> Self {
        match (enabled, draining) {
            (_, true) => Self::Draining,
            (true, false) => Self::Enabled,
            (false, false) => Self::Disabled,
        }
    }

    /// The state of a place with this service.
    pub fn of_place(self, connected: bool) -> PlaceState {
        match self {
            _ if !connected => PlaceState::Disconnected,
            Self::Enabled => PlaceState::Enabled,
            Self::Draining => PlaceState::Draining,
            Self::Disabled => PlaceState::Disabled,
        }
    }

    /// The state of a slot with this service, which `holder` holds.
    pub fn of_slot(self, holder: Option<AllocationId>) -> SlotState {
        match self {
            Self::Enabled => holder.map_or(SlotState::Free, SlotState::Held),
            Self::Draining => SlotState::Draining(holder),
            Self::Disabled => SlotState::Disabled(holder),
        }
    }
}

/// A fault of a slot's device, as its place has reported it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fault {
    /// What is wrong, in a few words for users.
    pub reason: String,
    /// Whether the newest report still has it.
    pub ongoing: bool,
}

/// What users let a place and each of its slots do, and what keeps slots from it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Services {
    /// Of the place as a whole, as users let it.
    pub place: Service,
    /// What keeps the place from starting anything, as it has reported it, in a few words for users. While there is
    /// something, the place drains.
    pub fault: Option<String>,
    /// Of its slots; one that is missing is enabled.
    pub slots: BTreeMap<SlotId, Service>,
    /// Faults of slots: those that took a slot out of service, and those with which users have enabled it again.
    pub faults: BTreeMap<SlotId, Fault>,
}

impl Services {
    /// Of the place as a whole, with what keeps it from starting anything.
    pub fn of_place(&self) -> Service {
        match self.place {
            Service::Enabled if self.fault.is_some() => Service::Draining,
            service => service,
        }
    }

    /// What users let one slot do, whatever holds for its whole place.
    pub fn of_slot(&self, slot: SlotId) -> Service {
        self.slots.get(&slot).copied().unwrap_or_default()
    }

    /// Lets a slot, or (`None`) the place as a whole, do something else.
    pub fn set(&mut self, slot: Option<SlotId>, service: Service) {
        match slot {
            None => self.place = service,
            Some(slot) if service == Service::Enabled => {
                self.slots.remove(&slot);
                // One that goes on is known now, and takes the slot out of service only when it becomes another.
                self.faults.retain(|of, fault| *of != slot || fault.ongoing);
            }
            Some(slot) => {
                self.slots.insert(slot, service);
            }
        }
    }

    /// Takes note of all faults that the place reports now. A new one, or one that differs from what was reported of the
    /// slot before, takes the slot out of service: it drains, until users enable it. Returns these slots.
    pub fn note_faults(&mut self, reported: &BTreeMap<SlotId, String>) -> Vec<SlotId> {
        for (slot, fault) in &mut self.faults {
            fault.ongoing = reported.contains_key(slot);
        }
        let slots = &self.slots;
        self.faults
            .retain(|slot, fault| fault.ongoing || slots.contains_key(slot));
        let mut drained = Vec::new();
        for (slot, reason) in reported {
            let fault = Fault {
                reason: reason.clone(),
                ongoing: true,
            };
            let known = self.faults.insert(*slot, fault);
            if known.is_none_or(|known| known.reason != *reason)
                && self.of_slot(*slot) == Service::Enabled
            {
                self.set(Some(*slot), Service::Draining);
                drained.push(*slot);
            }
        }
        drained
    }

    /// The fault that keeps a slot out of service.
    pub fn fault_of(&self, slot: SlotId) -> Option<&str> {
        let fault = self.faults.get(&slot)?;
        (self.of_slot(slot) != Service::Enabled).then_some(fault.reason.as_str())
    }
}

impl PlaceSnapshot {
    /// A place with these slots, as what runs on it leaves it. `containers` = those that hold something there, each with
    /// its allocation and slots; one without slots counts as an auxiliary unit.
    pub fn of<'a>(
        id: PlaceId,
        (services, connected): (&Services, bool),
        slots: impl IntoIterator<Item = SlotId>,
        aux_limit: u32,
        containers: impl IntoIterator<Item = (&'a AllocationId, &'a [SlotId])>,
    ) -> Self {
        let mut held: BTreeMap<SlotId, &AllocationId> = BTreeMap::new();
        let mut aux_used = 0;
        for (allocation, own) in containers {
            held.extend(own.iter().map(|slot| (*slot, allocation)));
            aux_used += u32::from(own.is_empty());
        }
        let slots = slots.into_iter().map(|slot| {
            let holder = held.get(&slot).copied().cloned();
            SlotSnapshot {
                id: slot,
                state: services.of_slot(slot).of_slot(holder),
            }
        });
        Self {
            id,
            state: services.of_place().of_place(connected),
            slots: slots.collect(),
            aux_limit,
            aux_used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_takes_its_slot_out_of_service_until_users_enable_it() {
        let report = |faults: &[(u32, &str)]| -> BTreeMap<SlotId, String> {
            let faults = faults.iter();
            faults
                .map(|(slot, reason)| (SlotId(*slot), (*reason).to_owned()))
                .collect()
        };
        let mut services = Services::default();
        services.set(Some(SlotId(1)), Service::Disabled);
        let drained = services.note_faults(&report(&[(0, "hot"), (1, "hot")]));
        assert_eq!(drained, [SlotId(0)], "users disabled the other");
        assert_eq!(services.of_slot(SlotId(0)), Service::Draining);
        assert_eq!(services.of_slot(SlotId(1)), Service::Disabled);
        assert_eq!(services.fault_of(SlotId(0)), Some("hot"));
        // It passes, and the slot stays out of service for a reason that is shown.
        assert!(services.note_faults(&report(&[])).is_empty());
        assert_eq!(services.fault_of(SlotId(0)), Some("hot"));
        services.set(Some(SlotId(0)), Service::Enabled);
        assert_eq!(services.faults.get(&SlotId(0)), None);
        // One that users know of does not drain the slot again, another one does.
        services.note_faults(&report(&[(0, "1 error")]));
        services.set(Some(SlotId(0)), Service::Enabled);
        assert!(services.note_faults(&report(&[(0, "1 error")])).is_empty());
        assert_eq!(services.fault_of(SlotId(0)), None, "it is in service");
        assert_eq!(
            services.note_faults(&report(&[(0, "2 errors")])),
            [SlotId(0)]
        );
        assert_eq!(services.fault_of(SlotId(0)), Some("2 errors"));
        // An error that has passed while the slot was in service is removed.
        services.set(Some(SlotId(0)), Service::Enabled);
        services.note_faults(&report(&[]));
        assert_eq!(services.note_faults(&report(&[(0, "2 errors")])).len(), 1);
    }

    #[test]
    fn a_place_shows_what_holds_its_slots_and_what_users_let_them_do() {
        let mut services = Services::default();
        services.set(Some(SlotId(1)), Service::Disabled);
        services.set(Some(SlotId(2)), Service::Draining);
        services.set(Some(SlotId(3)), Service::Disabled);
        services.set(Some(SlotId(3)), Service::Enabled);
        let (a, b) = (AllocationId::from("a"), AllocationId::from("b"));
        let containers = [(&a, &[SlotId(0), SlotId(1)][..]), (&b, &[])];
        let snapshot = |services: &Services, connected| {
            let slots = (0..4).map(SlotId);
            PlaceSnapshot::of("p".into(), (services, connected), slots, 2, containers)
        };
        let states: Vec<SlotState> = snapshot(&services, true)
            .slots
            .into_iter()
            .map(|s| s.state)
            .collect();
        assert_eq!(
            states,
            [
                SlotState::Held(a.clone()),
                SlotState::Disabled(Some(a.clone())),
                SlotState::Draining(None),
                SlotState::Free
            ]
        );
        assert_eq!(snapshot(&services, true).state, PlaceState::Enabled);
        assert_eq!(snapshot(&services, true).aux_used, 1);
        assert_eq!(snapshot(&services, false).state, PlaceState::Disconnected);
        // One that cannot start anything takes no new work until it can, whatever users let it do.
        services.fault = Some("the disk is full".to_owned());
        assert_eq!(snapshot(&services, true).state, PlaceState::Draining);
        services.set(None, Service::Enabled);
        assert_eq!(snapshot(&services, true).state, PlaceState::Draining);
        services.set(None, Service::Disabled);
        assert_eq!(snapshot(&services, true).state, PlaceState::Disabled);
        services.fault = None;
        services.set(None, Service::Enabled);
        assert_eq!(snapshot(&services, true).state, PlaceState::Enabled);
        assert_eq!(Service::of(true, true), Service::Draining);
        assert_eq!(Service::of(false, false), Service::Disabled);
    }
}
