//! Live rows in the form that the planner gets.

use std::collections::HashMap;

use det_ids::{AllocationId, Micros, WorkspaceId};
use det_lifecycle::allocation::AllocationState;
use det_scheduler::{
    Job, PlaceSnapshot, Progress, Request, RunningAllocation, SlotSnapshot, SlotState,
};
use det_store::allocations::AllocationRow;
use det_store::experiments::JobRow;

use super::{Allocation, Container, Place, Work};

pub(super) fn work(allocation: &Allocation) -> Work {
    if allocation.row.placed_at.is_none() {
        Work::Waits(request(&allocation.row))
    } else {
        Work::Runs(running(allocation))
    }
}

/// A place with the containers on it, each with its allocation.
pub(super) fn place_snapshot<'a>(
    place: &Place,
    containers: impl Iterator<Item = (&'a Allocation, &'a Container)>,
    aux_limit: u32,
) -> PlaceSnapshot {
    let mut held: HashMap<u32, &AllocationId> = HashMap::new();
    let mut aux_used = 0;
    for (allocation, own) in containers {
        held.extend(own.slots.iter().map(|slot| (slot.0, &allocation.row.id)));
        aux_used += u32::from(own.slots.is_empty());
    }
    PlaceSnapshot {
        id: place.row.id.clone(),
        state: place.state(),
        slots: slots(place, &held),
        aux_limit,
        aux_used,
    }
}

fn slots(place: &Place, held: &HashMap<u32, &AllocationId>) -> Vec<SlotSnapshot> {
    place
        .slots
        .iter()
        .map(|slot| {
            let holder = held.get(&slot.0).copied().cloned();
            let state = if place.disabled.contains(&slot.0) {
                SlotState::Disabled(holder)
            } else if place.draining.contains(&slot.0) {
                SlotState::Draining(holder)
            } else {
                holder.map_or(SlotState::Free, SlotState::Held)
            };
            SlotSnapshot { id: *slot, state }
        })
        .collect()
}

pub(super) fn running(allocation: &Allocation) -> RunningAllocation {
    let row = &allocation.row;
    RunningAllocation {
        request: request(row),
        placement: allocation
            .containers
            .iter()
            .map(|c| (c.row.place_id.clone(), c.slots.clone()))
            .collect(),
        started_at: Micros(row.placed_at.unwrap_or(row.requested_at)),
        progress: match (&row.preempted_for, row.preempt_deadline, &row.state) {
            (Some(other), _, _) => Progress::PreemptedFor(other.clone()),
            (None, Some(_), _) | (None, None, AllocationState::Killing { .. }) => {
                Progress::Stopping
            }
            (None, None, _) => Progress::Active,
        },
    }
}

/// What a row asks for.
pub(crate) fn request(row: &AllocationRow) -> Request {
    Request {
        allocation_id: row.id.clone(),
        task_id: row.task_id.clone(),
        job_id: row.job_id.clone(),
        slots: u32::try_from(row.slots).unwrap_or(u32::MAX),
        single_place: row.single_place,
        preemptible: row.preemptible,
        excluded_places: row.excluded_places.clone().unwrap_or_default(),
        requested_at: Micros(row.requested_at),
    }
}

pub(super) fn entry(job: &JobRow) -> Job {
    Job {
        priority: u8::try_from(job.priority).unwrap_or(99),
        weight: job.weight,
        max_slots: job.max_slots.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        submitted_at: Micros(job.submitted_at),
        position: job.position,
        moved: job.moved,
        workspace: Some(WorkspaceId(job.workspace_id)),
    }
}
