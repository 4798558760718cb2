//! Checks that the reason of a waiting request is true.

use det_ids::AllocationId;
use det_scheduler::{
    BlockingCause, PlaceSnapshot, PlaceState, Plan, Policy, Progress, Request, SlotState,
    WaitReason,
};

use super::fit::{State, free_slots};
use super::{order, rank, shares, turns};

#[expect(clippy::too_many_lines, reason = "one match over the reasons")]
pub fn is_true(
    before: &State,
    after: &State,
    plan: &Plan,
    request: &Request,
    reason: &WaitReason,
) -> bool {
    let all = |place: &PlaceSnapshot| !request.excluded_places.contains(&place.id);
    let in_service = |place: &PlaceSnapshot| all(place) && place.state == PlaceState::Enabled;
    match reason {
        WaitReason::NoPlaces => before.pool.places.is_empty(),
        WaitReason::PlacesDoNotFit { lacking, otherwise } => {
            let Some(misfits) = request.misfits.as_ref().filter(|_| !lacking.is_empty()) else {
                return false;
            };
            let mut request = request.clone();
            let places = misfits.never.iter().chain(&misfits.now);
            request.excluded_places.extend(places.cloned());
            request.misfits = None;
            is_true(before, after, plan, &request, otherwise)
        }
        WaitReason::AllPlacesExcluded { .. } => !before.pool.places.iter().any(all),
        WaitReason::ContainerTooLarge { needed, most } => {
            let limit = before.pool.settings.max_slots_per_container;
            *needed == request.slots
                && needed > most
                && limit.is_some_and(|limit| limit.max(1) == *most)
                && (request.single_place || limit == Some(0))
        }
        WaitReason::NoPlaceLargeEnough { .. }
        | WaitReason::PoolTooSmall { .. }
        | WaitReason::GangDoesNotDivide { .. } => {
            !before.holds(request, &before.empty_sizes(all, |_| true))
        }
        WaitReason::PlacesUnavailable { .. } => {
            let offered = |state: &SlotState| matches!(state, SlotState::Free | SlotState::Held(_));
            !before.holds(request, &before.empty_sizes(in_service, offered))
        }
        WaitReason::WaitingForInstances { .. } => before.pool.settings.provisionable.is_some(),
        WaitReason::OverJobCap {
            needed,
            max_slots,
            in_use: used,
        } => {
            before.job(request).max_slots == Some(*max_slots)
                && *used == after.in_use(request.job_id.as_str())
                && used + needed > *max_slots
        }
        WaitReason::OverWorkspaceLimit {
            workspace,
            needed,
            max_slots,
            in_use,
            kept_for,
        } => {
            let within = in_use + needed <= *max_slots;
            *needed == request.slots
                && before.job(request).workspace == Some(*workspace)
                && after.workspace_of(request) == Some((*max_slots, *in_use))
                && match kept_for {
                    None => !within,
                    Some(first) => {
                        within
                            && has_claim(before, after, request, before.find(first))
                            && waiting(plan, first).is_some()
                            && in_use + needed + claimed(before, after, plan, request) > *max_slots
                    }
                }
        }
        WaitReason::OverFairShare {
            needed,
            share,
            in_use,
            reserved,
            demand,
            capacity,
        } => {
            let own = shares::parts(after)[&request.job_id];
            before.pool.settings.policy == Policy::FairShare
                && u64::from(*share) == own.share
                && u64::from(*in_use) == own.active
                && *demand == own.demand
                && u64::from(*capacity) == shares::capacity(before)
                && *needed == request.slots
                && in_use + reserved + needed > *share
                && slots_are_kept_for_own_job(before, plan, request, *reserved)
                && (*reserved > 0 || !after.fits(request))
        }
        WaitReason::BehindOwnJob { allocation } => {
            before.pool.settings.policy == Policy::RoundRobin
                && turns::is_behind_own(before, plan, request, allocation)
        }
        WaitReason::BehindHigherPriority {
            allocation,
            priority,
            because,
            order,
        } => {
            let blocking = (allocation, *priority, *because);
            *order == before.pool.settings.priority_order
                && is_behind(before, after, plan, request, blocking)
        }
        WaitReason::ReservedFor { allocation } => {
            is_reserved_for(before, after, plan, request, allocation)
        }
        WaitReason::WaitingForPreemption { victims } => {
            !victims.is_empty()
                && victims.iter().all(|victim| {
                    after
                        .running(victim)
                        .is_some_and(|running| shares::leaves(after, running))
                })
        }
        WaitReason::NotEnoughFreeSlots {
            needed,
            free_total,
            largest_free_on_one_place,
            held_by,
            ..
        } => {
            let free: Vec<u32> = after
                .pool
                .places
                .iter()
                .filter(|a| in_service(a))
                .map(free_slots)
                .collect();
            let true_holders = held_by.as_slice().iter().all(|holder| {
                after
                    .running(&holder.allocation)
                    .is_some_and(|running| running.request.slots == holder.slots)
            });
            *needed == request.slots
                && *free_total == free.iter().sum::<u32>()
                && *largest_free_on_one_place == free.iter().max().copied().unwrap_or(0)
                && true_holders
                && !fits_without_worse(before, plan, request)
        }
        WaitReason::AuxFull { .. } => !fits_without_worse(before, plan, request),
        WaitReason::PausedAfterFailures { until } => {
            request.not_before == Some(*until) && *until > before.now
        }
    }
}

fn waiting<'a>(plan: &'a Plan, id: &AllocationId) -> Option<&'a WaitReason> {
    plan.waiting
        .iter()
        .find(|(other, _)| other == id)
        .map(|(_, reason)| reason)
}

/// Whether another request of the same workspace may keep what is left of its limit.
fn has_claim(before: &State, after: &State, request: &Request, other: &Request) -> bool {
    let (own, theirs) = (before.job(request), before.job(other));
    let by_priority = matches!(before.pool.settings.policy, Policy::Priority { .. });
    let patience = before.pool.settings.reserve_after;
    let waited = before.now.0 - other.requested_at.0;
    let old = patience.is_some_and(|p| i128::from(waited) >= p.as_micros().cast_signed());
    let freeing = after
        .pool
        .running
        .iter()
        .any(|running| running.progress == Progress::PreemptedFor(other.allocation_id.clone()));
    let booked = matches!(
        before.pool.settings.policy,
        Policy::Priority {
            preemption: true,
            ..
        } | Policy::FairShare
    ) && after
        .pool
        .running
        .iter()
        .any(|r| r.progress != Progress::Active);
    own.workspace == theirs.workspace
        && other.allocation_id != request.allocation_id
        && (old
            || freeing
            || booked
            || (by_priority && rank(before, other) < rank(before, request)))
}

/// Slots of all waiting requests that may keep what is left of the workspace's limit.
fn claimed(before: &State, after: &State, plan: &Plan, request: &Request) -> u32 {
    plan.waiting
        .iter()
        .map(|(id, _)| before.find(id))
        .filter(|other| has_claim(before, after, request, other))
        .map(|other| other.slots)
        .sum()
}

fn is_behind(
    before: &State,
    after: &State,
    plan: &Plan,
    request: &Request,
    (allocation, priority, because): (&AllocationId, u8, BlockingCause),
) -> bool {
    let Policy::Priority { preemption, .. } = before.pool.settings.policy else {
        return false;
    };
    let Some(their_reason) = waiting(plan, allocation) else {
        return false;
    };
    let truth = match because {
        BlockingCause::PreemptionOff => !preemption,
        BlockingCause::NotPreemptible => preemption && !request.preemptible,
        BlockingCause::SlotsBeingFreed => after
            .pool
            .running
            .iter()
            .any(|running| running.progress != Progress::Active),
    };
    let theirs = before.find(allocation);
    truth
        && before.job(theirs).priority == priority
        && rank(before, theirs) < rank(before, request)
        && (theirs.slots == 0) == (request.slots == 0)
        && !their_reason.is_permanent()
        && !matches!(
            their_reason,
            WaitReason::OverJobCap { .. } | WaitReason::OverWorkspaceLimit { .. }
        )
}

fn is_reserved_for(
    before: &State,
    after: &State,
    plan: &Plan,
    request: &Request,
    holder: &AllocationId,
) -> bool {
    let theirs = before.find(holder);
    let patience = before.pool.settings.reserve_after;
    let waited = before.now.0 - theirs.requested_at.0;
    let old = patience.is_some_and(|p| i128::from(waited) >= p.as_micros().cast_signed());
    let freeing = |state: &State| {
        state
            .pool
            .running
            .iter()
            .any(|running| running.progress == Progress::PreemptedFor(holder.clone()))
    };
    let held = plan.reservations.iter().any(|reservation| {
        reservation.allocation_id == *holder
            && reservation
                .places
                .iter()
                .any(|a| !request.excluded_places.contains(a))
    });
    let Some(their_reason) = waiting(plan, holder) else {
        return false;
    };
    match before.pool.settings.policy {
        Policy::Priority { .. } => {
            let reserves =
                order(before, theirs) < order(before, request) && (old || freeing(before)) && held;
            // A job was moved within the priority, and its request must not start what it would stop next.
            let stopping = after
                .pool
                .running
                .iter()
                .any(|r| r.progress != Progress::Active);
            let own = before.job(request).priority;
            let moved = before
                .queue
                .jobs
                .values()
                .any(|job| job.priority == own && job.moved);
            // They are of one job, and it may not use enough for all that reserve and this one.
            let cap = before.job(request).max_slots;
            let in_use = after.in_use(request.job_id.as_str());
            let reserved: u32 = plan
                .reservations
                .iter()
                .map(|reservation| before.find(&reservation.allocation_id))
                .filter(|other| other.job_id == request.job_id)
                .map(|other| other.slots)
                .sum();
            let capped = theirs.job_id == request.job_id
                && cap.is_some_and(|cap| in_use + reserved + request.slots > cap);
            // One that an earlier one of its class may stop comes last: another may have reserved before.
            let came_last = moved && request.preemptible && old && held;
            before.job(theirs).priority == own
                && (reserves || came_last || (stopping && moved) || (capped && old))
                && fits_without_worse(before, plan, request)
        }
        Policy::FairShare => {
            let own = shares::parts(after)[&theirs.job_id];
            let wanted = own.active + u64::from(theirs.slots);
            let entitled = wanted <= own.share || (old && wanted <= own.nominal);
            let booked = matches!(their_reason, WaitReason::WaitingForPreemption { .. });
            entitled && held && (old || freeing(after) || booked) && after.fits(request)
        }
        Policy::RoundRobin => old && held && after.fits(request),
    }
}

/// Whether other requests of the job, for which slots are kept, ask for this many slots.
fn slots_are_kept_for_own_job(
    before: &State,
    plan: &Plan,
    request: &Request,
    reserved: u32,
) -> bool {
    let kept: u32 = plan
        .waiting
        .iter()
        .filter(|(id, reason)| {
            let other = before.find(id);
            let reserves = plan.reservations.iter().any(|r| r.allocation_id == *id);
            other.job_id == request.job_id
                && other.allocation_id != request.allocation_id
                && (reserves || matches!(reason, WaitReason::WaitingForPreemption { .. }))
        })
        .map(|(id, _)| before.find(id).slots)
        .sum();
    reserved == kept
}

/// Whether a request would fit after the plan, were it not for less important work that the plan starts.
fn fits_without_worse(before: &State, plan: &Plan, request: &Request) -> bool {
    let Policy::Priority { .. } = before.pool.settings.policy else {
        return before.after(plan).fits(request);
    };
    let own = rank(before, request);
    let mut kept = plan.clone();
    kept.placements
        .retain(|placement| rank(before, before.find(&placement.allocation_id)) <= own);
    before.after(&kept).fits(request)
}
