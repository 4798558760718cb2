//! The fair share rule.
//!
//! Slots are divided among jobs by weight times demand (`shares`). A job's demand is what its running work has and its
//! waiting requests ask for, at most its cap; requests that would not fit even if all preemptible work were gone do not
//! count. Requests are in order of the jobs' submission, then of their own. A run over the slot requests:
//!
//! 1. **Offer.** Each request that keeps its job within its share starts if it fits without what is held back for
//!    requests that running work stops for. Those that have waited longer than [`crate::PoolSettings::reserve_after`]
//!    come first, and reserve the places they are closest to getting if they do not fit.
//! 2. **Preempt.** Each request within its job's share that does not fit, in order: if it fits what stopping work will
//!    free, that is booked. Otherwise jobs above their share give up work until it fits: the job furthest above first,
//!    the work started last first; work that turns out not to matter continues. If it never fits, no work stops. Steps
//!    1 and 2 are repeated until no more work is asked to stop, because a job that gives up work may be entitled to
//!    start other work.
//! 3. **Hand out.** What is free and not held back goes to requests beyond their jobs' shares, the job with the least
//!    work for its weight and demand first. Work that starts this way is the first to stop when another job is entitled
//!    to its slots. A job for which slots are being held back gets none, because they would count against its share.
//!
//! Work that cannot be preempted may keep a gang from fitting at all, or leave its job less than its share would be
//! without such work (its *nominal* share). That must end some time, and no more of it may start in between. So a
//! request that has waited longer than the limit, that does not fit, and that is within its job's nominal share
//! reserves too, although it is entitled to nothing yet; and until it starts nothing that cannot be preempted is handed
//! what is free beyond its job's share. No work stops for it, and once it fits it starts like others: within the share
//! that its job has then.
//!
//! A job whose only task is larger than its share runs on what is left over, and may wait as long as small tasks within
//! their jobs' shares keep coming. Where there are about as many jobs as slots, "at least one slot for each" can depend
//! on a single job more or less that could be served, and a share may be enough only while it cannot be used.
//!
//! What stopping work holds is kept for the request it was asked to stop for, as long as that one is within its job's
//! share. Work that is killed because its place or slot is out of service counts as gone.
//!
//! What cannot be preempted raises its job's share to what it holds once it runs. A pass that starts such work is
//! repeated with that work as given, so that the plan is final: running the rule on its own result decides nothing new.
//!
//! Zero-slot requests compete for nothing but auxiliary units: they start in order of submission.

mod job_shares;
mod preemptible;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use det_ids::Micros;

use crate::capacity::Feasibility;
use crate::decision::{Decision, DecisionState, Wait};
use crate::free_capacity::{FreeCapacity, StoppingWork};
use crate::future::{FutureCapacity, ShapeSet};
use crate::plan::{PreemptReason, Preemption};
use crate::prepared::PreparedPool;
use crate::reserve::{ReservedPlaces, Reserver};
use crate::space::{Parts, PlaceRank, Space, spread_of};
use crate::victims;
use job_shares::{Division, attainable_shapes, shared_slots};
use preemptible::PreemptibleWork;

/// Decides for slot requests by share, then for zero-slot requests in order.
pub(crate) fn decide(prepared: &PreparedPool, now: Micros) -> Decision {
    // Work that starts and cannot be preempted. Each iteration may add some; the loop ends because capacity is limited.
    let mut given: Vec<(usize, Parts)> = Vec::new();
    loop {
        let mut pass = FairSharePass::new(prepared, now, &given);
        pass.all();
        let known = given.len();
        let found = pass.decision.placed[known..]
            .iter()
            .filter(|(request, _)| !prepared.requests[*request].request.preemptible);
        given.extend(found.cloned());
        if given.len() == known {
            return pass.finish();
        }
    }
}

/// One pass over the pool.
struct FairSharePass<'a> {
    shared: DecisionState<'a>,
    decision: Decision,
    /// The free slots that the slot requests leave; nothing is held back in it.
    free: Space,
    /// By running allocation: whether it stops, or is about to be killed because of where it runs.
    leaving: Vec<bool>,
    /// Running allocations that this pass asked to stop, with the request that each stops for.
    asked: BTreeMap<usize, usize>,
    /// By shape: whether it would fit if all preemptible work were gone.
    attainable: Vec<bool>,
}

/// State of one iteration of steps 1 and 2.
struct Iteration {
    /// Requests within their jobs' shares that did not fit, in order.
    pending: BTreeSet<usize>,
    /// Whether capacity that was held back is free again, so that requests must be offered it.
    changed: bool,
    /// Units held back for requests that work stops for.
    claims: BTreeMap<usize, Parts>,
    reserver: Reserver,
    /// Places reserved because of age, by request.
    reserved_by_age: BTreeMap<usize, ReservedPlaces>,
    /// Those requests in `reserved_by_age` that are within their jobs' nominal shares only.
    blocked_by_fixed: BTreeSet<usize>,
    /// Requests for which units are held back, with the places.
    reserving: BTreeMap<usize, BTreeSet<PlaceRank>>,
    /// Running work that can be preempted; `None` = nothing has asked for it yet.
    preemptible: Option<PreemptibleWork>,
    /// Shapes for which there are no victims.
    victimless: ShapeSet,
}

impl<'a> FairSharePass<'a> {
    fn new(prepared: &'a PreparedPool, now: Micros, given: &[(usize, Parts)]) -> Self {
        let mut shared = DecisionState::new(prepared, now);
        let mut decision = Decision::default();
        shared.stop_over_cap(&mut decision);
        let mut free = prepared.slot_space();
        for (request, parts) in given {
            shared.start(*request);
            for &(place, units) in parts {
                free.take(place, units);
            }
            decision.placed.push((*request, parts.clone()));
        }
        let leaving: Vec<bool> = prepared
            .running
            .iter()
            .zip(&shared.stopping)
            .map(|(active, stopping)| *stopping || active.dying)
            .collect();
        let attainable = attainable_shapes(prepared, &free, &leaving);
        shared.capacity = prepared.places.iter().map(shared_slots).sum();
        let division = Division {
            shared: &shared,
            leaving: &leaving,
            attainable: &attainable,
        };
        shared.job_shares = division.job_shares(given);
        Self {
            shared,
            decision,
            free,
            leaving,
            asked: BTreeMap::new(),
            attainable,
        }
    }

    fn all(&mut self) {
        let prepared = self.shared.prepared;
        let requests: Vec<usize> = (0..prepared.requests.len())
            .filter(|request| prepared.requests[*request].slots > 0)
            .collect();
        loop {
            let nothing = Space::new(prepared.settings.fitting, false, Vec::new());
            let free = std::mem::replace(&mut self.free, nothing);
            let stopping = StoppingWork {
                stops: &self.leaving,
                asked: &self.asked,
            };
            let in_use = self.shared.in_use.clone();
            let mut capacity = FreeCapacity::with_future(prepared, free, in_use, stopping, false);
            let mut iteration = Iteration {
                pending: BTreeSet::new(),
                changed: true,
                claims: BTreeMap::new(),
                reserver: Reserver::new(prepared),
                reserved_by_age: BTreeMap::new(),
                blocked_by_fixed: BTreeSet::new(),
                reserving: BTreeMap::new(),
                preemptible: None,
                victimless: ShapeSet::new(prepared.shapes.len()),
            };
            for job_share in &mut self.shared.job_shares {
                job_share.booked = 0;
            }
            self.shared.workspaces.keep_nothing();
            self.hold_for_stopping(&mut iteration, &mut capacity);
            let (reserved_by_age, young): (Vec<usize>, Vec<usize>) = requests
                .iter()
                .partition(|request| self.shared.waited_too_long(**request));
            while std::mem::take(&mut iteration.changed) {
                for &request in reserved_by_age.iter().chain(&young) {
                    if self.shared.waits[request] != Wait::Starts {
                        self.offer(&mut iteration, &mut capacity, request);
                    }
                }
            }
            let asked = self.asked.len();
            self.preempt_for_pending(&mut iteration, &mut capacity);
            if self.asked.len() == asked {
                self.hand_out(&iteration, &mut capacity);
                capacity.release_all_held();
                self.free = capacity.free;
                self.mark_reserved(&iteration);
                return;
            }
            capacity.release_all_held();
            self.free = capacity.free;
        }
    }

    /// Whether a request is held up only by work of others that cannot be preempted.
    fn is_blocked_by_fixed(&self, request: usize) -> bool {
        let waiting = &self.shared.prepared.requests[request];
        let job_share = &self.shared.job_shares[waiting.job];
        let wanted = job_share.active + job_share.booked + u64::from(waiting.slots);
        self.shared.waited_too_long(request) && wanted <= job_share.nominal
    }

    /// Holds back the free units that requests need in addition to those of the work which stops for them, as long as
    /// they are within their jobs' shares.
    fn hold_for_stopping(&mut self, iteration: &mut Iteration, capacity: &mut FreeCapacity<'a>) {
        let tied: Vec<usize> = capacity.victims_by_request.keys().copied().collect();
        for request in tied {
            if self.shared.waits[request] == Wait::Starts || self.limit(request).is_some() {
                capacity.release_victims(request);
                continue;
            }
            let mut claim = Parts::new();
            for (place, units) in capacity.claimed_free_units(request) {
                claim.push((place, capacity.hold_more(place, units)));
            }
            let places = claim.iter().map(|(place, _)| *place);
            iteration
                .reserving
                .entry(request)
                .or_default()
                .extend(places);
            iteration.claims.insert(request, claim);
            iteration.pending.insert(request);
            self.shared.keep(request);
            self.book(request);
        }
    }

    /// Releases what is held back for a request that fits on other places than those where work stops for it.
    fn release_claim(
        &mut self,
        iteration: &mut Iteration,
        capacity: &mut FreeCapacity<'a>,
        request: usize,
    ) {
        let Some(claim) = iteration.claims.remove(&request) else {
            return;
        };
        for (place, units) in claim {
            capacity.release_held(place, units);
        }
        let waiting = &self.shared.prepared.requests[request];
        let booked = &mut self.shared.job_shares[waiting.job].booked;
        *booked = booked.saturating_sub(u64::from(waiting.slots));
        iteration.reserving.remove(&request);
        iteration.pending.remove(&request);
        iteration.changed = true;
    }

    /// Why a request is not entitled to start, regardless of free slots; `None` = it is entitled.
    fn limit(&mut self, request: usize) -> Option<Wait> {
        let waiting = &self.shared.prepared.requests[request];
        if *self.shared.feasibility(waiting.shape) != Feasibility::Usable {
            return Some(Wait::Infeasible);
        }
        let limit = self.shared.exceeds(request);
        if limit == Some(Wait::OverCap) {
            return limit;
        }
        if !self.attainable[waiting.shape] {
            return Some(Wait::NotEnoughFree);
        }
        let job_share = &self.shared.job_shares[waiting.job];
        let wanted = job_share.active + job_share.booked + u64::from(waiting.slots);
        (wanted > job_share.share)
            .then_some(Wait::OverShare)
            .or(limit)
    }

    /// Counts a waiting request as if it had started, because slots are held back for it.
    fn book(&mut self, request: usize) {
        let waiting = &self.shared.prepared.requests[request];
        self.shared.job_shares[waiting.job].booked += u64::from(waiting.slots);
    }

    fn start(&mut self, capacity: &mut FreeCapacity<'a>, request: usize, parts: Parts) {
        let waiting = &self.shared.prepared.requests[request];
        self.shared.job_shares[waiting.job].active += u64::from(waiting.slots);
        self.shared.start(request);
        capacity.take(request, &parts);
        self.decision.placed.push((request, parts));
    }

    /// Step 1 for one request.
    fn offer(
        &mut self,
        iteration: &mut Iteration,
        capacity: &mut FreeCapacity<'a>,
        request: usize,
    ) {
        if iteration.blocked_by_fixed.contains(&request) {
            return;
        }
        let reserves = iteration.reserved_by_age.contains_key(&request);
        if !reserves
            && !iteration.claims.contains_key(&request)
            && let Some(limit) = self.limit(request)
        {
            self.shared.waits[request] = limit;
            if matches!(limit, Wait::OverWorkspace { .. }) && self.shared.waited_too_long(request) {
                self.shared.keep(request);
            }
            let blocked_by_fixed = matches!(limit, Wait::OverShare | Wait::NotEnoughFree)
                && self.is_blocked_by_fixed(request);
            if blocked_by_fixed && self.shared.exceeds(request).is_some() {
                // If its workspace is at its limit, it waits for that workspace's work to end.
                self.shared.keep(request);
            } else if blocked_by_fixed
                && capacity.fit(request).is_none()
                && self.reserve(iteration, capacity, request)
            {
                iteration.blocked_by_fixed.insert(request);
                self.shared.keep(request);
                self.shared.waits[request] = Wait::NotEnoughFree;
                self.book(request);
            }
            iteration.pending.remove(&request);
            return;
        }
        if let Some(parts) = capacity.fit(request).filter(|_| !reserves) {
            self.release_claim(iteration, capacity, request);
            iteration.pending.remove(&request);
            self.start(capacity, request, parts);
            return;
        }
        self.shared.waits[request] = Wait::NotEnoughFree;
        iteration.pending.insert(request);
        if self.shared.waited_too_long(request) {
            self.shared.keep(request);
        }
        let claims = iteration.claims.contains_key(&request);
        if !reserves
            && self.shared.waited_too_long(request)
            && self.reserve(iteration, capacity, request)
            && !claims
        {
            self.book(request);
        }
    }

    /// Holds back the places that a request is closest to getting; whether there are any.
    fn reserve(
        &self,
        iteration: &mut Iteration,
        capacity: &mut FreeCapacity<'a>,
        request: usize,
    ) -> bool {
        let prepared = self.shared.prepared;
        let shape = prepared.requests[request].shape;
        // Of a single unit there is none free where it may run, so there is nothing that others could take from it.
        if prepared.shapes[shape].shape.units == 1 || iteration.reserver.is_hopeless(shape) {
            return false;
        }
        let places = PlaceRank::try_from(prepared.places.len()).unwrap_or(PlaceRank::MAX);
        let closest = iteration.reserver.closest(
            &capacity.free,
            self.decision.placed.len(),
            || {
                (0..places)
                    .map(|place| capacity.free_or_held(place))
                    .collect()
            },
            shape,
            &prepared.shapes[shape].shape,
        );
        let Some(closest) = closest else {
            return false;
        };
        for &place in &closest {
            capacity.hold(place, u32::MAX);
            iteration
                .reserving
                .entry(request)
                .or_default()
                .insert(place);
        }
        iteration.reserved_by_age.insert(request, closest);
        true
    }

    /// Step 2, "preempt": has work of jobs above their shares stop for requests within theirs.
    fn preempt_for_pending(&mut self, iteration: &mut Iteration, capacity: &mut FreeCapacity<'a>) {
        let Some(mut future) = capacity.future.take() else {
            return;
        };
        let mut closed: BTreeSet<PlaceRank> = BTreeSet::new();
        // Requests that work already stops for come first, so that others do not count on the same units.
        let pending = std::mem::take(&mut iteration.pending);
        let (tied, others): (Vec<usize>, Vec<usize>) = pending
            .into_iter()
            .partition(|request| capacity.victims_by_request.contains_key(request));
        for request in tied.into_iter().chain(others) {
            if !self.preempt_for(&mut future, iteration, capacity, request)
                && let Some(places) = iteration.reserved_by_age.get(&request)
            {
                // Later requests do not count on its places, and stop no work there only to find them reserved.
                for &place in places.iter().filter(|place| closed.insert(**place)) {
                    future.space.set_open(place, false);
                }
            }
        }
        for place in closed {
            future.space.set_open(place, true);
            future.misfits.clear();
        }
        capacity.future = Some(future);
    }

    /// Books future capacity for a request, asking other work to stop if necessary. Whether it fits then.
    fn preempt_for(
        &mut self,
        future: &mut FutureCapacity,
        iteration: &mut Iteration,
        capacity: &mut FreeCapacity<'a>,
        request: usize,
    ) -> bool {
        let prepared = self.shared.prepared;
        let mut own = capacity
            .victims_by_request
            .remove(&request)
            .unwrap_or_default();
        let counted = !own.is_empty() || iteration.reserved_by_age.contains_key(&request);
        if !own.is_empty() {
            future.release(prepared, &own);
            iteration.victimless.clear();
        }
        if !counted && let Some(limit) = self.limit(request) {
            // A later request of its job fitted and used its part of the share.
            self.shared.waits[request] = limit;
            return false;
        }
        let mut parts = future.fit_with(prepared, request, &own);
        if parts.is_none()
            && let Some(victims) = self.find_victims(future, iteration, request)
        {
            self.ask_to_stop(&victims, request);
            future.note_stopping(prepared, &victims);
            future.release(prepared, &victims);
            own.extend(victims);
            parts = future.fit_with(prepared, request, &own);
        }
        let Some(parts) = parts else {
            return false;
        };
        if own.is_empty() {
            own = future.stopping_among(&parts);
        }
        if own.is_empty() {
            // It fits what is free now, which is held back for another request.
            return true;
        }
        own.sort_unstable();
        self.shared.wait_for(request, own);
        self.shared.keep(request);
        if !counted {
            self.book(request);
        }
        for (place, units) in parts {
            future.space.take(place, units);
            iteration
                .reserving
                .entry(request)
                .or_default()
                .insert(place);
        }
        true
    }

    /// Work of jobs above their share that must stop so that a request fits.
    fn find_victims(
        &self,
        future: &FutureCapacity,
        iteration: &mut Iteration,
        request: usize,
    ) -> Option<Vec<usize>> {
        let prepared = self.shared.prepared;
        let shape = prepared.requests[request].shape;
        if iteration.victimless.contains(shape) {
            return None;
        }
        let work = iteration
            .preemptible
            .get_or_insert_with(|| PreemptibleWork::new(prepared, &self.leaving));
        let found = victims::search(
            &future.space,
            &prepared.shapes[shape].shape,
            &prepared.running,
            work.candidates(prepared, &self.shared.job_shares, &self.leaving),
        );
        if found.is_none() {
            iteration.victimless.insert(shape);
        }
        found
    }

    fn ask_to_stop(&mut self, victims: &[usize], request: usize) {
        let prepared = self.shared.prepared;
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        for &victim in victims {
            let active = &prepared.running[victim];
            let job_share = &mut self.shared.job_shares[active.job];
            self.decision.preempt.push(Preemption {
                allocation_id: active.running.request.allocation_id.clone(),
                for_allocation: Some(prepared.requests[request].request.allocation_id.clone()),
                reason: PreemptReason::OverFairShare {
                    share: number(job_share.share),
                    in_use: number(job_share.active),
                },
            });
            job_share.active = job_share.active.saturating_sub(u64::from(active.slots));
            self.leaving[victim] = true;
            self.asked.insert(victim, request);
        }
    }

    /// Step 3, "hand out": gives what is left to requests beyond their jobs' shares.
    fn hand_out(&mut self, iteration: &Iteration, capacity: &mut FreeCapacity<'a>) {
        let prepared = self.shared.prepared;
        let places = PlaceRank::try_from(prepared.places.len()).unwrap_or(PlaceRank::MAX);
        // Of each place only as much is handed out as is not booked.
        for place in 0..places {
            if let Some(future) = &capacity.future {
                let unbooked = future.space.cell(place).free();
                capacity.limit_free(place, unbooked);
            }
        }
        let fits: Vec<bool> = prepared
            .shapes
            .iter()
            .map(|view| view.slots > 0 && capacity.free.fit(&view.shape, 0).is_some())
            .collect();
        let mut open: BTreeMap<usize, std::collections::VecDeque<usize>> = BTreeMap::new();
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if fits[waiting.shape]
                && self.shared.waits[request] == Wait::OverShare
                && self.shared.job_shares[waiting.job].booked == 0
            {
                open.entry(waiting.job).or_default().push_back(request);
            }
        }
        let mut least: BinaryHeap<Reverse<Turn>> = open
            .keys()
            .map(|job| Reverse(Turn::of(&self.shared, *job)))
            .collect();
        while let Some(Reverse(turn)) = least.pop() {
            let Some(requests) = open.get_mut(&turn.job) else {
                continue;
            };
            while let Some(request) = requests.pop_front() {
                if let Some(limit) = self.shared.exceeds(request) {
                    self.shared.waits[request] = limit;
                } else if self.would_add_fixed(iteration, request) {
                    // Its reason names the request that it would block.
                } else if let Some(parts) = capacity.fit(request) {
                    self.start(capacity, request, parts);
                    least.push(Reverse(Turn::of(&self.shared, turn.job)));
                    break;
                }
            }
        }
        for (request, places) in &iteration.reserving {
            let places = places.iter().copied().collect();
            self.decision.reservations.push((*request, places));
        }
    }

    /// Whether a request cannot be preempted, and would run on places reserved by a request that waits for the end of
    /// such work.
    fn would_add_fixed(&self, iteration: &Iteration, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let shape = &prepared.shapes[waiting.shape].shape;
        let may_use = |places: &ReservedPlaces| places.iter().any(|place| shape.allows(*place));
        !waiting.preemptible
            && iteration.blocked_by_fixed.iter().any(|blocked_by_fixed| {
                iteration
                    .reserved_by_age
                    .get(blocked_by_fixed)
                    .is_some_and(may_use)
            })
    }

    /// Changes the reason of requests that would fit but for what is held back for others.
    fn mark_reserved(&mut self, iteration: &Iteration) {
        let prepared = self.shared.prepared;
        if iteration.reserving.is_empty() {
            return;
        }
        let mut fits: Vec<Option<bool>> = vec![None; prepared.shapes.len()];
        for (request, waiting) in prepared.requests.iter().enumerate() {
            let own = self.shared.job_shares.get(waiting.job);
            let wait = self.shared.waits[request];
            let may = match wait {
                Wait::NotEnoughFree => self.attainable[waiting.shape],
                Wait::OverShare => own.is_some_and(|job_share| job_share.booked == 0),
                _ => false,
            };
            if !may {
                continue;
            }
            let shape = &prepared.shapes[waiting.shape].shape;
            let fits = *fits[waiting.shape]
                .get_or_insert_with(|| self.free.fit(shape, spread_of("")).is_some());
            let owner = iteration
                .reserving
                .iter()
                .filter(|(owner, _)| **owner != request)
                .find(|(_, places)| places.iter().any(|place| shape.allows(*place)));
            if let (true, Some((owner, _))) = (fits, owner) {
                self.shared.waits[request] = Wait::ReservedFor(*owner);
            }
        }
    }

    /// Places the zero-slot requests in order, and computes all reasons.
    fn finish(mut self) -> Decision {
        let prepared = self.shared.prepared;
        let mut aux = FreeCapacity::of_now(prepared, prepared.aux_space(&self.free));
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if waiting.slots > 0 {
                continue;
            }
            self.shared.waits[request] =
                if *self.shared.feasibility(waiting.shape) != Feasibility::Usable {
                    Wait::Infeasible
                } else if let Some(parts) = aux.fit(request) {
                    aux.take(request, &parts);
                    self.decision.placed.push((request, parts));
                    Wait::Starts
                } else {
                    Wait::NotEnoughFree
                };
        }
        self.shared
            .explain(&self.free, Some(&aux.free), &mut self.decision);
        self.decision
    }
}

/// A job's turn when slots are handed out: least work for its weight and demand first, then earlier submission.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Turn {
    ratio: f64,
    order: u32,
    job: usize,
}

impl Turn {
    fn of(shared: &DecisionState, job: usize) -> Self {
        let view = &shared.prepared.jobs[job];
        let job_share = &shared.job_shares[job];
        #[expect(
            clippy::cast_precision_loss,
            reason = "numbers of slots are far below 2^52"
        )]
        let claim = |slots: u64| slots as f64;
        Self {
            ratio: claim(job_share.active) / (view.weight * claim(job_share.demand.max(1))),
            order: view.order,
            job,
        }
    }
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.ratio
            .total_cmp(&other.ratio)
            .then_with(|| self.order.cmp(&other.order))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
