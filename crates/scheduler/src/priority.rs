//! The priority rule.
//!
//! Requests are in queue order: priority, position of the job, submission of the job, time of the request, id. Slot
//! requests and zero-slot requests are decided in two separate runs of the same rule, so that neither blocks the other.
//! A pass goes through the priority classes from the most important to the least. Within a class:
//!
//! 1. **Offer.** Each request in order starts if it fits what is free. Later ones may pass one that does not fit, until
//!    that one *reserves*: because it has waited [`crate::PoolSettings::reserve_after`], or because its victims are
//!    still stopping. What it reserves is held back for the rest of the class.
//! 2. **Preempt** (if the pool preempts). Each request that did not fit, in order: if it fits the *future* — what is
//!    free, and what stopping work will free, less what earlier ones of this step count on — that is booked. Otherwise
//!    victims are looked for among less important preemptible work. What an allocation that was preempted for a request
//!    holds is for that request: less important requests do not count on it, and a more important one that needs it
//!    takes it over before other work is asked to stop. A request that an earlier one of its own class may stop,
//!    because one of their jobs was moved, is offered free slots only after this step: otherwise it would start now and
//!    be stopped next.
//! 3. **Close.** If a request did not fit, less important classes start nothing (without preemption), or only work that
//!    can be preempted again (with it), and nothing while running work is being stopped.
//!
//! A request that its job's cap holds back, that is admitted to no place, or that no enabled or returning places could hold,
//! closes nothing, because no request would gain by waiting for it.
//!
//! Running the rule again on its own result decides nothing new, because step 1 leaves nothing that fits, and step 2
//! finds the same requests in the same order with the same capacity.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::Micros;

use crate::capacity::Feasibility;
use crate::decision::{Decision, DecisionState, Wait};
use crate::free_capacity::{FreeCapacity, StoppingWork};
use crate::future::{FutureCapacity, ShapeSet};
use crate::ordered::OrderedEntry;
use crate::plan::{HandOver, PreemptReason, Preemption};
use crate::prepared::PreparedPool;
use crate::reason::BlockingCause;
use crate::reserve::{ReservedPlaces, Reserver};
use crate::space::{Parts, PlaceRank, Shape, Space};
use crate::victims;

/// Decides for slot requests, then for zero-slot requests.
pub(crate) fn decide(prepared: &PreparedPool, preemption: bool, now: Micros) -> Decision {
    let mut decision = Decision::default();
    let mut state = DecisionState::new(prepared, now);
    state.stop_over_cap(&mut decision);
    let (zero, slots): (Vec<usize>, Vec<usize>) =
        (0..prepared.requests.len()).partition(|request| prepared.requests[*request].slots == 0);

    let mut pass = PriorityPass::new(&mut state, prepared.slot_space(), preemption, false);
    pass.all(&slots, &mut decision);
    let slot_space = pass.capacity.free;
    let aux_space = (!zero.is_empty()).then(|| {
        let aux = prepared.aux_space(&slot_space);
        let mut pass = PriorityPass::new(&mut state, aux, preemption, true);
        pass.all(&zero, &mut decision);
        pass.capacity.free
    });

    state.explain(&slot_space, aux_space.as_ref(), &mut decision);
    decision
}

/// One pass: slots, or auxiliary units.
struct PriorityPass<'a, 'b> {
    shared: &'b mut DecisionState<'a>,
    preemption: bool,
    zero_slots: bool,
    /// With a future if the pool preempts.
    capacity: FreeCapacity<'a>,
    /// Ranks of the priorities of jobs that were moved in the queue.
    moved: BTreeSet<i64>,
    /// First request of a finished class that did not fit.
    blocked: Option<usize>,
    /// First request for which running work is being stopped.
    freeing: Option<usize>,
}

/// A request that did not fit, or had to wait because running work is being stopped for another.
struct PendingRequest {
    request: usize,
    shape: usize,
    /// Index in [`Class::reserving`] if it reserves places because of its age.
    reserved_by_age: Option<usize>,
}

/// A request that reserves places.
struct ReservingRequest {
    request: usize,
    /// First those reserved because of its age, then those where work stops for it.
    places: ReservedPlaces,
    /// How many of them are reserved because of its age.
    reserved_by_age: usize,
}

/// State of the priority class that is being decided.
struct Class {
    /// Rank of the priority in the pool's order; the lower one goes first.
    rank: i64,
    /// Requests to be considered in step 2, in order.
    pending: Vec<PendingRequest>,
    /// Requests that close the class unless a limit holds them back in the end, in order.
    unfit: Vec<usize>,
    /// Jobs of requests that did not fit; only where one may stop another of the class.
    blocked_jobs: BTreeSet<usize>,
    /// Requests that an earlier one of the class may stop; they are offered free slots last.
    deferred: Vec<usize>,
    /// Requests that reserve, in order.
    reserving: Vec<ReservingRequest>,
    /// Places reserved because of age, which are closed in the future capacity.
    closed: Vec<PlaceRank>,
    reserver: Reserver,
    /// Slots reserved because of age, by job with a cap, and the first request that reserves: a job reserves no more
    /// than its cap lets it use, and later requests of it do not take that.
    reserved: BTreeMap<usize, (u64, usize)>,
    /// Those later requests, each with the first one that reserves.
    capped: BTreeMap<usize, usize>,
    /// Deferred requests that did not fit, each with the one for which work is being stopped.
    held: BTreeMap<usize, usize>,
    /// Requests that were deferred: a later one may have reserved before them.
    came_last: BTreeSet<usize>,
    /// Whether a job of this class was moved.
    moved: bool,
    /// Units by place held by work that this class may preempt by its priority; computed on demand.
    preemptible: Option<Vec<u32>>,
    /// Shapes for which there are no victims.
    victimless: ShapeSet,
}

impl Class {
    fn new(prepared: &PreparedPool, rank: i64, moved: bool, members: usize) -> Self {
        Self {
            rank,
            pending: Vec::with_capacity(members),
            unfit: Vec::with_capacity(members),
            blocked_jobs: BTreeSet::new(),
            deferred: Vec::new(),
            reserving: Vec::new(),
            closed: Vec::new(),
            reserver: Reserver::new(prepared),
            reserved: BTreeMap::new(),
            capped: BTreeMap::new(),
            held: BTreeMap::new(),
            came_last: BTreeSet::new(),
            moved,
            preemptible: None,
            victimless: ShapeSet::new(prepared.shapes.len()),
        }
    }

    /// The request that reserves what is left of its job's cap, if `request` would need some of that.
    fn job_reserves(&self, shared: &DecisionState, request: usize) -> Option<usize> {
        if self.reserved.is_empty() {
            return None;
        }
        let waiting = &shared.prepared.requests[request];
        let max_slots = shared.prepared.jobs[waiting.job].max_slots?;
        let &(reserved, first) = self.reserved.get(&waiting.job)?;
        let wanted = shared.in_use[waiting.job] + reserved + u64::from(waiting.slots);
        (wanted > u64::from(max_slots)).then_some(first)
    }

    /// The request that reserves what a request of this shape would fit.
    fn held_back_for(&self, request: usize, shape: &Shape) -> Option<usize> {
        let known = self.capped.get(&request).or(self.held.get(&request));
        known.copied().or_else(|| {
            self.reserving
                .iter()
                .filter(|owner| owner.request < request || self.came_last.contains(&request))
                .filter(|owner| owner.request != request)
                .find(|owner| owner.places.iter().any(|place| shape.allows(*place)))
                .map(|owner| owner.request)
        })
    }
}

impl<'a, 'b> PriorityPass<'a, 'b> {
    fn new(
        shared: &'b mut DecisionState<'a>,
        free: Space,
        preemption: bool,
        zero_slots: bool,
    ) -> Self {
        let prepared = shared.prepared;
        let capacity = if preemption {
            let stopping = StoppingWork {
                stops: &shared.stopping,
                asked: &BTreeMap::new(),
            };
            let in_use = shared.in_use.clone();
            FreeCapacity::with_future(prepared, free, in_use, stopping, zero_slots)
        } else {
            FreeCapacity::of_now(prepared, free)
        };
        let moved = prepared.jobs.iter().filter(|job| job.moved);
        Self {
            preemption,
            zero_slots,
            capacity,
            moved: moved.map(|job| job.rank).collect(),
            blocked: None,
            freeing: None,
            shared,
        }
    }

    fn all(&mut self, requests: &[usize], decision: &mut Decision) {
        let prepared = self.shared.prepared;
        let rank = |request: &usize| prepared.jobs[prepared.requests[*request].job].rank;
        for members in requests.chunk_by(|a, b| rank(a) == rank(b)) {
            self.class(rank(&members[0]), members, decision);
        }
    }

    fn class(&mut self, rank: i64, members: &[usize], decision: &mut Decision) {
        let prepared = self.shared.prepared;
        let moved = self.moved.contains(&rank);
        let mut class = Class::new(prepared, rank, moved, members.len());
        for &request in members {
            if !self.defer(&mut class, request) {
                self.offer(&mut class, request, decision);
            }
        }
        self.preempt_for_pending(&mut class, decision);
        let deferred = std::mem::take(&mut class.deferred);
        class.came_last.extend(&deferred);
        for request in deferred {
            match self.freeing {
                Some(ahead) => self.wait_for_free_slots(&mut class, request, ahead),
                None => self.offer(&mut class, request, decision),
            }
        }
        self.preempt_for_pending(&mut class, decision);
        self.open_again(&class);
        self.mark_reserved(&class, members);
        self.close(&class);
        self.keep_from_less_important(members);
        let reserve = class.reserving.into_iter();
        decision
            .reservations
            .extend(reserve.map(|owner| (owner.request, owner.places)));
    }

    /// Whether a request is to come last, because a blocked one of its class may stop it.
    fn defer(&self, class: &mut Class, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let defer = class.moved
            && self.preemption
            && waiting.preemptible
            && self.freeing.is_none()
            && class
                .blocked_jobs
                .iter()
                .any(|blocked| may_preempt(prepared, *blocked, waiting.job));
        if defer {
            class.deferred.push(request);
        }
        defer
    }

    /// A deferred request does not start while running work is being stopped for its class.
    fn wait_for_free_slots(&mut self, class: &mut Class, request: usize, ahead: usize) {
        let prepared = self.shared.prepared;
        let shape = &prepared.shapes[prepared.requests[request].shape].shape;
        self.shared.waits[request] = if self.capacity.free.fit(shape, 0).is_some() {
            Wait::ReservedFor(ahead)
        } else {
            // Or what it would fit is held back for a later request.
            class.held.insert(request, ahead);
            Wait::NotEnoughFree
        };
        class.unfit.push(request);
    }

    /// Step 3: the first request that did not fit closes the class. A later one of its job may have started meanwhile
    /// and filled the job's cap: then it is the cap that holds it back. One that is admitted to no place, as by a quota,
    /// closes nothing: less important work takes nothing from it.
    fn close(&mut self, class: &Class) {
        let prepared = self.shared.prepared;
        for &request in &class.unfit {
            let shape = &prepared.shapes[prepared.requests[request].shape];
            if shape.misfits.as_ref().is_some_and(|it| it.is_refused) {
                continue;
            }
            let freeing = self.shared.waits[request] == Wait::Freeing;
            match self.shared.exceeds(request).filter(|_| !freeing) {
                Some(limit) => self.shared.waits[request] = limit,
                None => {
                    self.blocked.get_or_insert(request);
                }
            }
        }
    }

    /// Keeps what is left of the workspaces' limits for this class, so that less important work does not take it.
    fn keep_from_less_important(&mut self, members: &[usize]) {
        if !self.shared.workspaces.any() {
            return;
        }
        for &request in members {
            if !matches!(
                self.shared.waits[request],
                Wait::Starts | Wait::OverCap | Wait::Infeasible
            ) {
                self.shared.keep(request);
            }
        }
    }

    /// Step 1 for one request.
    fn offer(&mut self, class: &mut Class, request: usize, decision: &mut Decision) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let feasibility = self.shared.feasibility(waiting.shape);
        if *feasibility != Feasibility::Usable {
            if matches!(feasibility, Feasibility::Returning(_)) {
                class.unfit.push(request);
            }
            self.shared.waits[request] = Wait::Infeasible;
            self.capacity.release_victims(request);
            return;
        }
        if let Some(limit) = self.shared.exceeds(request) {
            self.shared.waits[request] = limit;
            if limit != Wait::OverCap && self.shared.waited_too_long(request) {
                self.shared.keep(request);
            }
            self.capacity.release_victims(request);
            return;
        }
        if let Some((ahead, because)) = self.gate(waiting.preemptible) {
            self.shared.waits[request] = Wait::Behind {
                request: ahead,
                because,
            };
            if because == BlockingCause::SlotsBeingFreed {
                class.pending.push(PendingRequest {
                    request,
                    shape: waiting.shape,
                    reserved_by_age: None,
                });
            }
            return;
        }
        if let Some(owner) = class.job_reserves(self.shared, request) {
            self.shared.waits[request] = Wait::NotEnoughFree;
            class.capped.insert(request, owner);
            return;
        }
        if let Some(parts) = self.capacity.fit(request) {
            self.place(request, parts, decision);
            return;
        }
        self.shared.waits[request] = Wait::NotEnoughFree;
        class.unfit.push(request);
        if self.preemption && class.moved {
            class.blocked_jobs.insert(waiting.job);
        }
        if self.shared.waited_too_long(request)
            || self.capacity.victims_by_request.contains_key(&request)
        {
            self.shared.keep(request);
        }
        let reserved_by_age = self.hold_back(class, request, decision);
        class.pending.push(PendingRequest {
            request,
            shape: waiting.shape,
            reserved_by_age,
        });
    }

    /// Whether a more important request keeps this class, or this kind of request, from starting.
    fn gate(&self, preemptible: bool) -> Option<(usize, BlockingCause)> {
        let blocked = self.blocked?;
        if !self.preemption {
            Some((blocked, BlockingCause::PreemptionOff))
        } else if !preemptible {
            Some((blocked, BlockingCause::NotPreemptible))
        } else {
            self.freeing
                .map(|request| (request, BlockingCause::SlotsBeingFreed))
        }
    }

    fn place(&mut self, request: usize, parts: Parts, decision: &mut Decision) {
        self.shared.start(request);
        self.capacity.take(request, &parts);
        decision.placed.push((request, parts));
    }

    /// Holds back capacity for a request that did not fit and reserves. Returns its index in [`Class::reserving`] if it
    /// does so because of its age.
    fn hold_back(
        &mut self,
        class: &mut Class,
        request: usize,
        decision: &Decision,
    ) -> Option<usize> {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        if prepared.shapes[waiting.shape].shape.units == 1 {
            // No unit is free where it may run, so there is nothing that others could take from it.
            return None;
        }
        let mut places = ReservedPlaces::new();
        // Only if its job could use what it would reserve.
        if self.shared.waited_too_long(request)
            && class.job_reserves(self.shared, request).is_none()
            && let Some(closest) = self.closest(class, waiting.shape, decision)
        {
            for &place in &closest {
                self.capacity.hold(place, u32::MAX);
            }
            places = closest;
            if prepared.jobs[waiting.job].max_slots.is_some() {
                let reserved = class.reserved.entry(waiting.job).or_insert((0, request));
                reserved.0 += u64::from(waiting.slots);
            }
        }
        let reserved_by_age = places.len();
        for (place, units) in self.capacity.claimed_free_units(request) {
            self.capacity.hold(place, units);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if !places.is_empty() {
            class.reserving.push(ReservingRequest {
                request,
                places,
                reserved_by_age,
            });
        }
        (reserved_by_age > 0).then(|| class.reserving.len() - 1)
    }

    fn closest(
        &mut self,
        class: &mut Class,
        shape: usize,
        decision: &Decision,
    ) -> Option<ReservedPlaces> {
        let prepared = self.shared.prepared;
        if class.reserver.is_hopeless(shape) {
            return None;
        }
        let free_or_held = || {
            let preemptible = class.preemptible.get_or_insert_with(|| {
                if self.preemption {
                    preemptible_below(prepared, class.rank, self.zero_slots)
                } else {
                    vec![0; prepared.places.len()]
                }
            });
            let below = preemptible.iter().zip(0..);
            below
                .map(|(below, place)| self.capacity.free_or_held(place).saturating_add(*below))
                .collect()
        };
        class.reserver.closest(
            &self.capacity.free,
            decision.placed.len(),
            free_or_held,
            shape,
            &prepared.shapes[shape].shape,
        )
    }

    /// Step 2 for the class.
    fn preempt_for_pending(&mut self, class: &mut Class, decision: &mut Decision) {
        let Some(mut future) = self.capacity.future.take() else {
            return;
        };
        for candidate in std::mem::take(&mut class.pending) {
            // Most requests have a shape that was tried before.
            let hopeless = !class.moved
                && future.misfits.contains(candidate.shape)
                && class.victimless.contains(candidate.shape)
                && !self
                    .capacity
                    .victims_by_request
                    .contains_key(&candidate.request);
            if (hopeless || !self.book(&mut future, class, candidate.request, decision))
                && let Some(reserved_by_age) = candidate.reserved_by_age
            {
                // Later requests do not count on its places, and stop no work there only to find them reserved.
                let owner = &class.reserving[reserved_by_age];
                for &place in &owner.places[..owner.reserved_by_age] {
                    if future.space.cell(place).open {
                        future.space.set_open(place, false);
                        class.closed.push(place);
                    }
                }
            }
        }
        self.capacity.future = Some(future);
    }

    /// Ends the reservations of the class: they do not bind other classes.
    fn open_again(&mut self, class: &Class) {
        self.capacity.release_all_held();
        if let Some(future) = &mut self.capacity.future {
            for &place in &class.closed {
                future.space.set_open(place, true);
                future.misfits.clear();
            }
        }
    }

    /// Books future capacity for a request, asking other work to stop if necessary. Whether it fits then.
    fn book(
        &mut self,
        future: &mut FutureCapacity,
        class: &mut Class,
        request: usize,
        decision: &mut Decision,
    ) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let mut own = self
            .capacity
            .victims_by_request
            .remove(&request)
            .unwrap_or_default();
        if !own.is_empty() {
            future.release(prepared, &own);
            class.victimless.clear();
        }
        let slots = u64::from(waiting.slots);
        if prepared.jobs[waiting.job]
            .max_slots
            .is_some_and(|max| slots > 0 && future.in_use[waiting.job] + slots > u64::from(max))
            || self.shared.workspaces.hold_back(request, waiting)
        {
            return false;
        }
        let mut parts = future.fit_with(prepared, request, &own);
        if parts.is_none()
            && let Some(victims) = self.find_victims(future, class, request)
        {
            let asked = self.take_over(&victims, request, decision);
            self.ask_to_stop(&asked, request, decision);
            future.note_stopping(prepared, &asked);
            future.release(prepared, &victims);
            own.extend(victims);
            parts = future.fit_with(prepared, request, &own);
        }
        let Some(parts) = parts else {
            return false;
        };
        let behind = matches!(self.shared.waits[request], Wait::Behind { .. });
        if own.is_empty() && !behind {
            own = future.stopping_among(&parts);
        }
        if !own.is_empty() {
            own.sort_unstable();
            self.shared.wait_for(request, own);
            self.freeing.get_or_insert(request);
        }
        for (place, units) in parts {
            future.space.take(place, units);
        }
        future.in_use[waiting.job] += slots;
        self.shared.keep(request);
        true
    }

    fn find_victims(
        &self,
        future: &FutureCapacity,
        class: &mut Class,
        request: usize,
    ) -> Option<Vec<usize>> {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        // With moved jobs the candidates depend on the job, and a failure does not hold for others of the shape.
        let by_shape = !prepared.jobs[waiting.job].moved && !class.moved;
        if by_shape && class.victimless.contains(waiting.shape) {
            return None;
        }
        // Work that already stops for less important requests is taken first: that stops nothing in addition.
        let stopping = self
            .capacity
            .victims_by_request
            .range(request + 1..)
            .rev()
            .flat_map(|(owner, victims)| victims.iter().rev().map(|victim| (*owner, *victim)))
            .filter(|(owner, victim)| {
                let owner = &prepared.jobs[prepared.requests[*owner].job];
                owner.rank > class.rank
                    || may_preempt(prepared, waiting.job, prepared.running[*victim].job)
            })
            .map(|(_, victim)| victim);
        let active = (0..prepared.running.len())
            .rev()
            .take_while(|number| prepared.jobs[prepared.running[*number].job].rank >= class.rank)
            .filter(|number| {
                let active = &prepared.running[*number];
                active.preemptible
                    && active.zero_slots() == self.zero_slots
                    && !self.shared.stopping[*number]
                    && may_preempt(prepared, waiting.job, active.job)
            });
        let shape = &prepared.shapes[waiting.shape].shape;
        let candidates = stopping.chain(active);
        let found = victims::search(&future.space, shape, &prepared.running, candidates);
        if found.is_none() && by_shape {
            class.victimless.insert(waiting.shape);
        }
        found
    }

    /// Assigns those of `victims` that already stop to `request`; returns the others.
    fn take_over(
        &mut self,
        victims: &[usize],
        request: usize,
        decision: &mut Decision,
    ) -> Vec<usize> {
        let prepared = self.shared.prepared;
        let (stopping, active): (Vec<usize>, Vec<usize>) = victims
            .iter()
            .partition(|victim| self.shared.stopping[**victim]);
        for tied in self.capacity.victims_by_request.values_mut() {
            tied.retain(|victim| !stopping.contains(victim));
        }
        decision
            .hand_over
            .extend(stopping.into_iter().map(|victim| HandOver {
                allocation_id: prepared.running[victim].id().clone(),
                for_allocation: prepared.requests[request].id().clone(),
            }));
        active
    }

    fn ask_to_stop(&mut self, victims: &[usize], request: usize, decision: &mut Decision) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let priority = prepared.jobs[waiting.job].priority;
        for &victim in victims {
            self.shared.stopping[victim] = true;
            let active = &prepared.running[victim];
            let own_priority = prepared.jobs[active.job].priority;
            decision.preempt.push(Preemption {
                allocation_id: active.running.request.allocation_id.clone(),
                for_allocation: Some(waiting.request.allocation_id.clone()),
                reason: if own_priority == priority {
                    PreemptReason::MovedAhead
                } else {
                    PreemptReason::HigherPriority {
                        priority,
                        own_priority,
                        order: prepared.settings.priority_order,
                    }
                },
            });
        }
    }

    /// Changes the reason of requests that fit but for what their class held back.
    fn mark_reserved(&mut self, class: &Class, members: &[usize]) {
        if class.reserving.is_empty() {
            return;
        }
        let prepared = self.shared.prepared;
        let mut fits: Vec<Option<bool>> = vec![None; prepared.shapes.len()];
        for &request in members {
            if self.shared.waits[request] != Wait::NotEnoughFree {
                continue;
            }
            let waiting = &prepared.requests[request];
            let shape = &prepared.shapes[waiting.shape].shape;
            let fits = *fits[waiting.shape]
                .get_or_insert_with(|| self.capacity.free.fit(shape, 0).is_some());
            if !fits {
                continue;
            }
            if let Some(owner) = class.held_back_for(request, shape) {
                self.shared.waits[request] = Wait::ReservedFor(owner);
            }
        }
    }
}

/// Units by place that the class of this rank could get by preemption, those of stopping work included.
fn preemptible_below(prepared: &PreparedPool, rank: i64, zero_slots: bool) -> Vec<u32> {
    let mut capacity = vec![0_u32; prepared.places.len()];
    for active in &*prepared.running {
        if active.preemptible
            && active.zero_slots() == zero_slots
            && prepared.jobs[active.job].rank > rank
        {
            for part in &active.parts {
                let sum = &mut capacity[part.place as usize];
                *sum = sum.saturating_add(part.usable);
            }
        }
    }
    capacity
}

/// Whether a job may stop work of another: always if that one is less important. Within one priority only if that one
/// is behind because a user moved one of the two, never because it was submitted later.
fn may_preempt(prepared: &PreparedPool, job: usize, other: usize) -> bool {
    let (own, other) = (&prepared.jobs[job], &prepared.jobs[other]);
    other.rank > own.rank
        || (other.rank == own.rank
            && other.order > own.order
            && other.submitted_at <= own.submitted_at
            && (own.moved || other.moved))
}
