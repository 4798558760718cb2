//! Places: joining, leaving, being given up, and what users let them do.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, ContainerId, InstanceId, Micros, PlaceId, SlotId};
use det_lifecycle::container::ObservedState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_scheduler::{Service, Services};
use serde_json::json;

use crate::{Cause, Core, Effect, Event, Mutant, PlaceRows, Record, Refusal, Scene, Topic};

/// Somewhere containers run, as its row contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the resource pool that its slots are in.
    pub resource_pool: String,
    /// Identity of what it keeps between its connections.
    pub instance: InstanceId,
    /// What users let it and its slots do.
    pub services: Services,
    /// Since when it is away, by the steady clock; `None` = it is connected.
    pub disconnected_at: Option<Micros>,
}

impl Place {
    /// The row of a place that joins; what users let it do stays as it was before.
    pub fn joined(before: Option<&Self>, resource_pool: String, instance: InstanceId) -> Self {
        Self {
            resource_pool,
            instance,
            services: before.map_or_else(Services::default, |known| known.services.clone()),
            disconnected_at: None,
        }
    }

    /// Whether new work may be placed on these slots.
    pub fn takes(&self, slots: &[SlotId]) -> bool {
        let serves = |slot: &SlotId| self.services.of_slot(*slot) == Service::Enabled;
        self.disconnected_at.is_none()
            && self.services.of_place() == Service::Enabled
            && slots.iter().all(serves)
    }
}

/// What is to be done about a place that may be away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// Nothing: it is connected, or is waited for without end.
    None,
    /// It is away and its row still has it as connected: the end of its connection could not be stored when it came.
    Unstored,
    /// It is waited for until this moment.
    Until(Micros),
    /// It has been away since this moment, which is too long: it is given up.
    TooLong(Micros),
}

impl Core {
    /// What is to be done about a place. `disconnected_at` = since when it is away, as its row contains it; `patience` = how
    /// long places of its pool may be away, in microseconds. All moments are by the steady clock.
    pub fn absence(
        &self,
        disconnected_at: Option<Micros>,
        is_connected: bool,
        patience: i64,
        now: Micros,
    ) -> Absence {
        match disconnected_at {
            None if is_connected || self.is(Mutant::IgnoresAbsence) => Absence::None,
            None => Absence::Unstored,
            Some(_) if self.is(Mutant::EndlessPatience) => Absence::None,
            Some(since) => match Micros(since.0.saturating_add(patience)) {
                until if until > now => Absence::Until(until),
                _ => Absence::TooLong(since),
            },
        }
    }
}

/// Records what happens to a place.
fn record<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    kind: EventKind,
    cause: Cause,
    detail: Option<String>,
) {
    scene.record(Record {
        cause,
        subject: Subject::Place(place.clone()),
        kind,
        from: None,
        to: None,
        detail,
    });
}

/// A place has joined, and its row is stored: what it holds is compared with what is known.
pub(crate) fn joined<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: PlaceId,
    known_instance: Option<&InstanceId>,
    observed: Vec<(ContainerId, ObservedState)>,
) -> Result<(), Refusal> {
    let row = scene
        .rows
        .place(&place)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Place, &place))?;
    let cause = Cause::actor(ActorName::Place(place.clone()));
    record(scene, &place, EventKind::Connected, cause, None);
    if known_instance.is_some_and(|known| *known != row.instance) {
        scene.then(Event::PlaceLost {
            place: place.clone(),
            reason: "the place came back without its tasks".to_owned(),
        });
    }
    let held = observed.iter().map(|(id, _)| id.clone()).collect();
    for (container_id, observed) in observed {
        scene.then(Event::Observed {
            place: place.clone(),
            container_id,
            observed,
        });
    }
    scene.then(Event::Missing { place, held });
    scene.wake(Topic::Schedule);
    Ok(())
}

/// A place is away. Its containers go on; after the pool's patience they are given up.
pub(crate) fn left<R: PlaceRows>(scene: &mut Scene<'_, R>, place: &PlaceId, cause: Cause) {
    let found = scene.rows.place(place);
    let Some(mut row) = found.filter(|row| row.disconnected_at.is_none()) else {
        return;
    };
    row.disconnected_at = Some(scene.clock.steady);
    scene.rows.update_place(place, &row);
    record(scene, place, EventKind::Disconnected, cause, None);
    scene.wake(Topic::Deadlines);
    scene.wake(Topic::Schedule);
}

/// A place is given up with everything on it, unless it has come back since.
pub(crate) fn given_up<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: PlaceId,
    since: Option<Micros>,
    slots: usize,
    reason: String,
) {
    let found = scene.rows.place(&place);
    if let Some(row) = found.filter(|row| since.is_none() || row.disconnected_at == since) {
        scene.then(Event::PlaceLost {
            place: place.clone(),
            reason: reason.clone(),
        });
        scene.then(Event::PlaceRemoved {
            place,
            resource_pool: row.resource_pool,
            slots,
            reason,
        });
    }
}

/// Nothing is left on a place that was given up: its row goes. The record keeps what its pool lost with it.
pub(crate) fn removed<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    (resource_pool, slots): (&str, usize),
    reason: &str,
) {
    scene.effect(Effect::RemovePlace(place.clone()));
    let detail = json!({"resource_pool": resource_pool, "slots": slots});
    record(
        scene,
        place,
        EventKind::Removed,
        Cause::master(reason),
        Some(detail.to_string()),
    );
    scene.wake(Topic::Schedule);
}

/// A place has reported the faults of its slots' devices: slots with new ones take no new work. One that is given up
/// meanwhile has none any more.
pub(crate) fn faults_reported<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    faults: &BTreeMap<SlotId, String>,
) {
    let Some(mut row) = scene.rows.place(place) else {
        return;
    };
    let before = row.services.clone();
    let drained = row.services.note_faults(faults);
    if row.services == before {
        return;
    }
    scene.rows.update_place(place, &row);
    for slot in &drained {
        let reason = faults.get(slot).map(|reason| reason.as_str().into());
        let cause = Cause {
            reason,
            ..Cause::actor(ActorName::Place(place.clone()))
        };
        let detail = Some(of_slot(*slot));
        record(scene, place, EventKind::Draining, cause, detail);
    }
    if !drained.is_empty() {
        scene.wake(Topic::Schedule);
    }
}

/// A place has reported whether it can start containers. While it cannot it takes no new work; what runs there goes on.
pub(crate) fn host_reported<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    fault: Option<String>,
) {
    let Some(mut row) = scene.rows.place(place) else {
        return;
    };
    let kind = match (&row.services.fault, &fault) {
        (before, now) if before == now => return,
        (None, Some(_)) => Some(EventKind::HostFault),
        (Some(_), None) => Some(EventKind::HostFaultEnded),
        // It still cannot, for another reason.
        _ => None,
    };
    let reason = fault.as_deref().map(Into::into);
    row.services.fault = fault;
    scene.rows.update_place(place, &row);
    if let Some(kind) = kind {
        let cause = Cause {
            reason,
            ..Cause::actor(ActorName::Place(place.clone()))
        };
        record(scene, place, kind, cause, None);
        scene.wake(Topic::Schedule);
    }
}

/// The details that a record has of one slot, as JSON.
fn of_slot(slot: SlotId) -> String {
    format!("{{\"slot\":{}}}", slot.0)
}

/// Users let a place, or one of its slots, do something else.
pub(crate) fn serve<R: PlaceRows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    slot: Option<SlotId>,
    service: Service,
    cause: Cause,
) -> Result<(), Refusal> {
    let mut row = scene
        .rows
        .place(place)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Place, place))?;
    row.services.set(slot, service);
    scene.rows.update_place(place, &row);
    let kind = match service {
        Service::Enabled => EventKind::Enabled,
        Service::Draining => EventKind::Draining,
        Service::Disabled => EventKind::Disabled,
    };
    let detail = slot.map(of_slot);
    record(scene, place, kind, cause, detail);
    if service == Service::Disabled {
        let what = match slot {
            Some(slot) => format!("slot {} of place \"{place}\"", slot.0),
            None => format!("place \"{place}\""),
        };
        let holders = scene.rows.holders(place).into_iter();
        let concerned: BTreeSet<AllocationId> = holders
            .filter(|(_, slots)| slot.is_none_or(|slot| slots.contains(&slot)))
            .map(|(id, _)| id)
            .collect();
        for id in concerned {
            let reason = format!("{what} was disabled");
            scene.then(Event::PlatformFailed { id, reason });
        }
    }
    scene.wake(Topic::Schedule);
    Ok(())
}
