//! Live rows in the form that the planner gets.

use std::sync::Arc;

use det_ids::{Micros, PlaceId};
use det_orchestrator::Course;
use det_scheduler::{Job, Misfits, PlaceSnapshot, Request, SlotState, Work};
use det_store::allocations::AllocationRow;
use det_store::experiments::JobRow;

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
        // It takes no work now, and may later.
        slot.state = SlotState::Draining(None);
    }
    snapshot
}

/// Sets of training ports in use, each with the places where it is.
pub(crate) fn port_steps(cache: &LiveCache) -> Vec<(u16, Vec<PlaceId>)> {
    let used = cache.allocations.values().filter_map(|allocation| {
        let step = u16::try_from(allocation.row.port_step?).ok()?;
        let containers = allocation.containers.iter();
        let places = containers.map(|container| container.row.place_id.clone());
        Some((step, places.collect()))
    });
    used.collect()
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
