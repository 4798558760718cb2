//! The fair share rule, followed literally: shares by bisection, and what a plan must look like under them.

use std::collections::BTreeMap;

use det_ids::{JobId, WorkspaceId};
use det_scheduler::{
    PlaceState, Plan, PreemptReason, Progress, Request, RunningAllocation, SlotState, WaitReason,
};

use super::fit::State;

/// A job under the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobPart {
    pub demand: u64,
    pub share: u64,
    /// Its share if all work could be preempted.
    pub nominal: u64,
    pub active: u64,
    weight: f64,
}

impl JobPart {
    fn ratio(&self, active: u64) -> f64 {
        real(active) / (self.weight * real(self.demand))
    }
}

/// Whether an allocation is on its way out: it was asked to stop, or its place or slot is out of service.
pub fn leaves(state: &State, running: &RunningAllocation) -> bool {
    let out_of_service = running.placement.iter().any(|(place_id, slots)| {
        let place = state.place(place_id);
        place.state == PlaceState::Disabled
            || place
                .slots
                .iter()
                .any(|s| slots.contains(&s.id) && matches!(s.state, SlotState::Disabled(_)))
    });
    running.progress != Progress::Active || out_of_service
}

/// Slots that are divided among jobs.
pub fn capacity(state: &State) -> u64 {
    let counted = |place: &det_scheduler::PlaceSnapshot| {
        let slots = place.slots.iter().filter(|slot| match place.state {
            PlaceState::Enabled => !matches!(
                slot.state,
                SlotState::Disabled(_) | SlotState::Draining(None) | SlotState::Foreign
            ),
            PlaceState::Draining | PlaceState::Disconnected => {
                matches!(
                    slot.state,
                    SlotState::Held(_) | SlotState::Draining(Some(_))
                )
            }
            PlaceState::Disabled => false,
        });
        slots.count() as u64
    };
    state.pool.places.iter().map(counted).sum()
}

/// Demand, share and use of every job.
pub fn parts(state: &State) -> BTreeMap<JobId, JobPart> {
    let bare = state.without(|running| running.request.preemptible || leaves(state, running));
    let mut found: BTreeMap<JobId, (JobPart, u64)> = BTreeMap::new();
    let allowance = |workspace: &WorkspaceId| {
        let limit = state.queue.workspaces.get(workspace)?;
        Some(u64::from(
            limit.max_slots.saturating_sub(limit.in_other_pools),
        ))
    };
    let cap = |id: &JobId| {
        let job = &state.queue.jobs[id];
        let own = job.max_slots.map_or(u64::MAX, u64::from);
        let limit = job.workspace.as_ref().and_then(allowance);
        own.min(limit.unwrap_or(u64::MAX))
    };
    for running in &state.pool.running {
        let (part, fixed) = entry(&mut found, state, &running.request);
        let slots = u64::from(running.request.slots);
        part.demand += slots;
        if !leaves(state, running) {
            part.active += slots;
            *fixed += if running.request.preemptible {
                0
            } else {
                slots
            };
        }
    }
    let empty = state.without(|_| true);
    let mut movable = found.clone();
    for request in state.queue.requests.iter().filter(|r| r.slots > 0) {
        let fits_cap = u64::from(request.slots) <= cap(&request.job_id);
        for (found, remaining) in [(&mut found, &bare), (&mut movable, &empty)] {
            let (part, _) = entry(found, state, request);
            if remaining.fits(request) && fits_cap {
                part.demand += u64::from(request.slots);
            }
        }
    }
    for (job, (part, _)) in found.iter_mut().chain(&mut movable) {
        part.demand = part.demand.min(cap(job));
    }
    let mut order: Vec<JobId> = found.keys().cloned().collect();
    order.sort_by_key(|job| place(state, job));
    for (_, fixed) in movable.values_mut() {
        *fixed = 0;
    }
    share_out_within_limits(state, &mut movable, &order);
    share_out_within_limits(state, &mut found, &order);
    for (job, (part, _)) in &mut found {
        part.nominal = movable[job].0.share;
    }
    found
        .into_iter()
        .map(|(job, (part, _))| (job, part))
        .collect()
}

fn entry<'a>(
    found: &'a mut BTreeMap<JobId, (JobPart, u64)>,
    state: &State,
    request: &Request,
) -> &'a mut (JobPart, u64) {
    found.entry(request.job_id.clone()).or_insert((
        JobPart {
            demand: 0,
            share: 0,
            nominal: 0,
            active: 0,
            weight: state.job(request).weight,
        },
        0,
    ))
}

/// What jobs are sorted by to decide ties.
fn place(state: &State, id: &JobId) -> (i64, i64, JobId) {
    let job = &state.queue.jobs[id];
    let position = job.position.unwrap_or(job.submitted_at.0);
    (position, job.submitted_at.0, id.clone())
}

/// Shares, and where the jobs of a workspace would together get more than it may use, that much divided among them first.
fn share_out_within_limits(
    state: &State,
    found: &mut BTreeMap<JobId, (JobPart, u64)>,
    order: &[JobId],
) {
    let mut bound = found.clone();
    share_out(&mut bound, order, capacity(state));
    for _ in &state.queue.workspaces {
        for (workspace, limit) in &state.queue.workspaces {
            let most = u64::from(limit.max_slots.saturating_sub(limit.in_other_pools));
            let own = |job: &JobId| state.queue.jobs[job].workspace == Some(*workspace);
            let shares = bound.iter().filter(|(job, _)| own(job));
            if shares.map(|(_, (part, _))| part.share).sum::<u64>() <= most {
                continue;
            }
            let mut few = found.clone();
            few.retain(|job, _| own(job));
            let few_in_order: Vec<JobId> = order.iter().filter(|job| own(job)).cloned().collect();
            share_out(&mut few, &few_in_order, most);
            for (job, (part, _)) in few {
                let (bound, fixed) = bound.get_mut(&job).expect("the job is listed");
                bound.demand = part.share;
                *fixed = part.share;
            }
            share_out(&mut bound, order, capacity(state));
        }
    }
    for (job, (part, _)) in found {
        part.share = bound[job].0.share;
    }
}

fn share_out(found: &mut BTreeMap<JobId, (JobPart, u64)>, order: &[JobId], capacity: u64) {
    let least_one = |(part, fixed): &(JobPart, u64)| (*fixed).max(part.demand.min(1));
    let enough = found.values().map(least_one).sum::<u64>() <= capacity;
    let low = |entry: &(JobPart, u64)| if enough { least_one(entry) } else { entry.1 };
    let high = |(part, fixed): &(JobPart, u64)| part.demand.max(*fixed);
    let total = found.values().map(high).sum::<u64>().min(capacity);
    let at = |entry: &(JobPart, u64), factor: f64| {
        let wanted = factor * entry.0.weight * real(entry.0.demand);
        wanted.max(real(low(entry))).min(real(high(entry)))
    };
    let (mut below, mut above) = (0.0, 1e9);
    for _ in 0..200 {
        let middle = f64::midpoint(below, above);
        if found.values().map(|entry| at(entry, middle)).sum::<f64>() < real(total) {
            below = middle;
        } else {
            above = middle;
        }
    }
    let mut exact: Vec<(JobId, f64)> = order
        .iter()
        .map(|job| (job.clone(), at(&found[job], above)))
        .collect();
    let mut initial_steps = 0;
    for (job, share) in &mut exact {
        let whole = (*share + 1e-6).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small"
        )]
        let slots = whole as u64;
        found.get_mut(job).expect("the job is listed").0.share = slots;
        initial_steps += slots;
        *share = ((*share - whole) * 1e6).round().max(0.0);
    }
    // A stable sort: of equal remainders the earlier job's comes first.
    exact.sort_by(|a, b| b.1.total_cmp(&a.1));
    let grows = exact
        .into_iter()
        .filter(|(job, _)| found[job].0.share < high(&found[job]))
        .map(|(job, _)| job)
        .collect::<Vec<_>>();
    for job in grows
        .into_iter()
        .take(usize::try_from(total.saturating_sub(initial_steps)).expect("scenarios are small"))
    {
        found.get_mut(&job).expect("the job is listed").0.share += 1;
    }
}

#[expect(clippy::cast_precision_loss, reason = "scenarios are small")]
fn real(slots: u64) -> f64 {
    slots as f64
}

/// Panics unless a plan respects the shares.
pub fn check(before: &State, after: &State, plan: &Plan) {
    let parts = parts(after);
    for stop in &plan.preempt {
        let PreemptReason::OverFairShare { share, in_use } = stop.reason else {
            continue;
        };
        let victim = before.running(&stop.allocation_id).expect("a victim runs");
        let own = parts[&victim.request.job_id];
        assert_eq!(u64::from(share), own.share, "{stop:?} {parts:#?}");
        assert!(in_use > share, "only work above its job's share stops");
        let winner = before.find(stop.for_allocation.as_ref().expect("it is for a request"));
        assert_ne!(winner.job_id, victim.request.job_id);
        let theirs = parts[&winner.job_id];
        assert!(
            theirs.active + u64::from(winner.slots) <= theirs.share,
            "{stop:?}: only for work within its job's share: {parts:#?}"
        );
    }
    surplus_goes_to_the_least_served(before, plan, &parts);
    surplus_is_preempted(before, after, plan, &parts);
    zero_slot_work_is_first_in_first_out(before, plan);
}

/// Of two jobs that could have had the same slots beyond their shares, the one with less for its claim got them.
fn surplus_goes_to_the_least_served(before: &State, plan: &Plan, parts: &BTreeMap<JobId, JobPart>) {
    let mut last: BTreeMap<&JobId, &Request> = BTreeMap::new();
    for placement in &plan.placements {
        let request = before.find(&placement.allocation_id);
        if request.slots > 0 {
            last.insert(&request.job_id, request);
        }
    }
    for (job, request) in last {
        let own = parts[job];
        // Work that cannot be preempted has changed the shares by which it was chosen.
        if own.active <= own.share || !request.preemptible {
            continue;
        }
        let ratio = own.ratio(own.active - u64::from(request.slots));
        for (allocation, reason) in &plan.waiting {
            let other = before.find(allocation);
            let alike = other.slots == request.slots
                && other.single_place == request.single_place
                && other.excluded_places == request.excluded_places;
            if let WaitReason::OverFairShare { reserved: 0, .. } = reason
                && alike
                && other.job_id != *job
            {
                let theirs = parts[&other.job_id];
                assert!(
                    ratio <= theirs.ratio(theirs.active) + 1e-9,
                    "{} got more of what is over than {allocation}: {parts:#?} {plan:#?}",
                    request.allocation_id
                );
            }
        }
    }
}

/// If nothing is kept for a request, a request within its share waits only if preempting work above its share would not
/// help.
fn surplus_is_preempted(
    before: &State,
    after: &State,
    plan: &Plan,
    parts: &BTreeMap<JobId, JobPart>,
) {
    let freeing = |reason: &WaitReason| matches!(reason, WaitReason::WaitingForPreemption { .. });
    if !plan.reservations.is_empty() || plan.waiting.iter().any(|(_, reason)| freeing(reason)) {
        return;
    }
    let mut above: BTreeMap<&JobId, u64> = parts
        .iter()
        .map(|(job, part)| (job, part.active.saturating_sub(part.share)))
        .collect();
    let mut newest: Vec<&RunningAllocation> = after
        .pool
        .running
        .iter()
        .filter(|running| running.request.preemptible && !leaves(after, running))
        .collect();
    newest.sort_by_key(|running| {
        let request = &running.request;
        std::cmp::Reverse((
            running.started_at,
            request.requested_at,
            &request.allocation_id,
        ))
    });
    let mut goes = Vec::new();
    for running in newest {
        let above = above
            .get_mut(&running.request.job_id)
            .expect("its job has a part");
        if *above > 0 && running.request.slots > 0 {
            *above = above.saturating_sub(u64::from(running.request.slots));
            goes.push(running.request.allocation_id.clone());
        }
    }
    let remaining = after
        .without(|running| goes.contains(&running.request.allocation_id) || leaves(after, running));
    for (allocation, reason) in &plan.waiting {
        let request = before.find(allocation);
        let WaitReason::NotEnoughFreeSlots { .. } = reason else {
            continue;
        };
        let own = parts[&request.job_id];
        let entitled = own.active + u64::from(request.slots) <= own.share;
        assert!(
            !entitled || !remaining.fits(request),
            "{allocation} is entitled to slots that {goes:?} could free: {plan:#?} {parts:#?}"
        );
    }
}

fn zero_slot_work_is_first_in_first_out(before: &State, plan: &Plan) {
    for placement in &plan.placements {
        let started = before.find(&placement.allocation_id);
        for (allocation, _) in &plan.waiting {
            let waits = before.find(allocation);
            let key = |request: &Request| {
                let place = place(before, &request.job_id);
                (place, request.requested_at, request.allocation_id.clone())
            };
            assert!(
                started.slots > 0
                    || waits.slots > 0
                    || started.excluded_places != waits.excluded_places
                    || key(started) < key(waits),
                "{} passes {allocation}",
                started.allocation_id
            );
        }
    }
}
