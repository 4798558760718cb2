//! Live rows in the form that the planner gets.

use std::sync::Arc;

use det_ids::{Micros, PlaceId, TaskId};
use det_orchestrator::Course;
use det_scheduler::{Job, Misfits, PlaceSnapshot, Request, SlotState, Work};
use det_store::allocations::AllocationRow;
use det_store::experiments::JobRow;
use det_taskspec::{GivenPorts, HostPorts, Hosts};

use super::{Allocation, Container, LiveCache, Place};

/// What an allocation does in its pool.
pub(super) fn work(allocation: &Allocation, request: Request) -> Work {
    let row = &allocation.row;
    let course = Course {
        placed_at: row.placed_at.map(Micros),
        preempted_for: row.preempted_for.as_ref(),
        preempt_deadline: row.preempt_deadline.map(Micros),
        state: &row.state,
    };
    let containers = allocation.containers.iter();
    let held = containers.map(|c| (c.row.place_id.clone(), c.slots.clone()));
    course.work(request, held.collect())
}

/// A place with the containers on it, each with its allocation.
pub(super) fn place_snapshot<'a>(
    place: &Place,
    containers: impl Iterator<Item = (&'a Allocation, &'a Container)>,
    aux_limit: u32,
) -> PlaceSnapshot {
    let mut snapshot = PlaceSnapshot::of(
        place.row.id.clone(),
        (&place.row.services, place.row.disconnected_at.is_none()),
        place.slots.iter().copied(),
        aux_limit,
        containers.map(|(of, container)| (&of.row.id, container.slots.as_slice())),
    );
    let is_held = |slot| {
        let mut slots = snapshot.slots.iter();
        slots.any(|it| it.id == slot && it.state != SlotState::Free)
    };
    let others = place.row.capacity.used_by_others(is_held);
    for slot in snapshot
        .slots
        .iter_mut()
        .filter(|it| others.contains(&it.id))
    {
        slot.state = SlotState::Foreign;
    }
    snapshot
}

/// The allocations of some pools.
pub(crate) fn allocations_of_pools(
    cache: &LiveCache,
    is_of: impl Fn(&str) -> bool,
) -> Vec<Arc<AllocationRow>> {
    let rows = cache.allocations.values().map(|allocation| &allocation.row);
    rows.filter(|row| is_of(&row.resource_pool))
        .cloned()
        .collect()
}

/// The ports that live allocations have, on the hosts that there are. `reserved` are given to none.
pub(crate) fn host_ports(cache: &LiveCache, reserved: &[u16]) -> HostPorts {
    let places = cache.places.values();
    let places = places.map(|place| (&place.row.id, place.row.addresses.as_slice()));
    let mut ports = HostPorts::new(Hosts::new(places), reserved);
    let port = |stored: Option<i64>| stored.and_then(|port| u16::try_from(port).ok());
    for allocation in cache.allocations.values() {
        let given = GivenPorts {
            step: port(allocation.row.port_step),
            service: port(allocation.row.service_port),
        };
        if given != GivenPorts::default() {
            let containers = allocation.containers.iter();
            ports.note(given, containers.map(|container| &container.row.place_id));
        }
    }
    ports
}

/// Services that were placed before their ports were stored with their allocations: their tasks, and where they are.
pub(crate) fn older_services(cache: &LiveCache) -> Vec<(TaskId, Vec<PlaceId>)> {
    let older = cache.allocations.values().filter(|allocation| {
        let row = &allocation.row;
        row.placed_at.is_some() && row.service_port.is_none() && row.kind.service_ports().is_some()
    });
    let places_of = |allocation: &Allocation| {
        let containers = allocation.containers.iter();
        containers
            .map(|container| container.row.place_id.clone())
            .collect()
    };
    older
        .map(|allocation| (allocation.row.task_id.clone(), places_of(allocation)))
        .collect()
}

/// What a row asks for, where these places do not fit it for other reasons than slots.
pub(super) fn asked(row: &AllocationRow, misfits: Option<Arc<Misfits>>) -> Request {
    Request {
        allocation_id: row.id.clone(),
        task_id: row.task_id.clone(),
        job_id: row.job_id.clone(),
        slots: u32::try_from(row.slots).unwrap_or(u32::MAX),
        single_place: row.single_place,
        preemptible: row.preemptible,
        excluded_places: row.excluded_places.clone().unwrap_or_default(),
        misfits,
        requested_at: Micros(row.requested_at),
        not_before: row.not_before.map(Micros),
    }
}

pub(super) fn entry(job: &JobRow) -> Job {
    Job {
        priority: job.priority,
        weight: job.weight,
        max_slots: job.max_slots,
        submitted_at: Micros(job.submitted_at),
        position: job.position,
        moved: job.moved,
        workspace: Some(job.workspace_id),
    }
}
