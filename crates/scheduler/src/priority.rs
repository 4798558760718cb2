//! The priority rule.
//!
//! Requests stand in queue order: priority, place of the job, submission of the job, time of the request, id. Slot
//! requests and zero-slot requests are decided in two separate runs of the same rule, so that neither blocks the other.
//! A run goes through the priority classes from the most important to the least. Within a class:
//!
//! 1. **Offer.** Each request in order takes its place if it fits what is free. Later ones may pass one that does not
//!    fit, until that one *reserves*: because it has waited [`crate::PoolSettings::reserve_after`], or because its
//!    victims are still stopping. What it reserves is held back for the rest of the class.
//! 2. **Make room** (with preemption). Each request that did not fit, in order: if it fits the *future* — what is free,
//!    and what stopping work will free, less what earlier ones of this step count on — that is booked. Otherwise
//!    victims are looked for among less important preemptible work. Room of an allocation that was preempted for a
//!    request is that request's: nobody less important counts on it, and a more important one that needs it takes it
//!    over, before anybody else is asked to stop.
//!    A request that an earlier one of its own class may stop, because one of their jobs was moved, is offered room only
//!    after this step: else it would start now and be stopped next.
//! 3. **Close.** If a request did not fit, less important classes start nothing (without preemption), or only work that
//!    can make room again (with it), and nothing while running work is being stopped.
//!
//! A request that its job's cap holds back, or that no enabled or returning agents could hold, closes nothing: nobody
//! would gain by waiting for it.
//!
//! Running the rule again on its own result decides nothing new, because step 1 leaves nothing that fits, and step 2
//! meets the same requests in the same order with the same room.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::Micros;

use crate::capacity::Fate;
use crate::decision::{Decided, Shared, Wait};
use crate::future::{Future, ShapeSet};
use crate::plan::{HandOver, PreemptReason, Preemption};
use crate::prepared::Prepared;
use crate::reason::Behind;
use crate::reserve::{Reserved, Reserver, reserve_before};
use crate::room::{Room, Stopping};
use crate::space::{AgentRank, Parts, Space};
use crate::victims;

/// Decides for slot requests, then for zero-slot requests.
pub(crate) fn decide(prepared: &Prepared, preemption: bool, now: Micros) -> Decided {
    let mut decided = Decided::default();
    let mut state = Shared::new(prepared);
    state.stop_over_cap(&mut decided);
    let (zero, slots): (Vec<usize>, Vec<usize>) =
        (0..prepared.requests.len()).partition(|request| prepared.requests[*request].slots == 0);

    let mut run = Run::new(&mut state, prepared.slot_space(), preemption, now, false);
    run.all(&slots, &mut decided);
    let slot_space = run.room.free;
    let aux_space = (!zero.is_empty()).then(|| {
        let aux = prepared.aux_space(&slot_space);
        let mut run = Run::new(&mut state, aux, preemption, now, true);
        run.all(&zero, &mut decided);
        run.room.free
    });

    state.explain(&slot_space, aux_space.as_ref(), &mut decided);
    decided
}

/// One run: slots, or auxiliary places.
struct Run<'a, 'b> {
    shared: &'b mut Shared<'a>,
    preemption: bool,
    zero_slots: bool,
    /// Requests made at or before this time reserve.
    reserve_before: Option<i64>,
    /// With a future if the pool preempts.
    room: Room<'a>,
    /// Priorities of jobs that were moved in the queue.
    moved: BTreeSet<u8>,
    /// First request of a finished class that did not fit.
    blocked: Option<usize>,
    /// First request for which room is being freed.
    freeing: Option<usize>,
}

/// A request that did not fit, or was held while room is being freed.
struct Wish {
    request: usize,
    shape: usize,
    /// The place in [`Class::holders`] if it reserves agents because of its age.
    aged: Option<usize>,
}

/// A request that reserves.
struct Holder {
    request: usize,
    /// Those reserved because of age, then those where work stops for it.
    agents: Reserved,
    /// How many of the first kind.
    aged: usize,
}

/// What belongs to the class at hand.
struct Class {
    priority: u8,
    /// In order.
    wishes: Vec<Wish>,
    /// Requests that close the class if nothing else holds them back in the end, in order.
    unfit: Vec<usize>,
    /// Jobs of requests that did not fit; only where one may stop another of the class.
    blocked_jobs: BTreeSet<usize>,
    /// Requests that an earlier one of the class may stop: they come last.
    deferred: Vec<usize>,
    /// Requests that reserve, with the agents, in order.
    holders: Vec<Holder>,
    /// Agents reserved because of age on which nobody else's room is booked.
    closed: Vec<AgentRank>,
    reserver: Reserver,
    /// Slots reserved because of age, by job with a cap, and the first request that reserves: a job reserves no more
    /// than its cap lets it use, and later requests of it do not take that.
    reserved: BTreeMap<usize, (u64, usize)>,
    /// Those later requests, with the first one that reserves.
    capped: BTreeMap<usize, usize>,
    /// Deferred requests that found no room, with the one for which room is being freed.
    held: BTreeMap<usize, usize>,
    /// Requests that came last: one behind them may have reserved before.
    came_last: BTreeSet<usize>,
    /// Whether a job of this class was moved.
    moved: bool,
    /// Room by agent held by work that this class may preempt by its priority; made when first needed.
    preemptible: Option<Vec<u32>>,
    /// Shapes for which there are no victims.
    victimless: ShapeSet,
}

impl<'a, 'b> Run<'a, 'b> {
    fn new(
        shared: &'b mut Shared<'a>,
        free: Space,
        preemption: bool,
        now: Micros,
        zero_slots: bool,
    ) -> Self {
        let prepared = shared.prepared;
        let room = if preemption {
            let stopping = Stopping {
                stops: &shared.stopping,
                asked: &BTreeMap::new(),
            };
            let in_use = shared.in_use.clone();
            Room::with_future(prepared, free, in_use, stopping, zero_slots)
        } else {
            Room::of_now(prepared, free)
        };
        let moved = prepared.jobs.iter().filter(|job| job.moved);
        Self {
            preemption,
            zero_slots,
            reserve_before: reserve_before(&prepared.settings, now),
            room,
            moved: moved.map(|job| job.priority).collect(),
            blocked: None,
            freeing: None,
            shared,
        }
    }

    fn all(&mut self, requests: &[usize], decided: &mut Decided) {
        let prepared = self.shared.prepared;
        let priority = |request: &usize| prepared.jobs[prepared.requests[*request].job].priority;
        for members in requests.chunk_by(|a, b| priority(a) == priority(b)) {
            self.class(priority(&members[0]), members, decided);
        }
    }

    fn class(&mut self, priority: u8, members: &[usize], decided: &mut Decided) {
        let prepared = self.shared.prepared;
        let mut class = Class {
            priority,
            wishes: Vec::with_capacity(members.len()),
            unfit: Vec::with_capacity(members.len()),
            blocked_jobs: BTreeSet::new(),
            deferred: Vec::new(),
            holders: Vec::new(),
            closed: Vec::new(),
            reserver: Reserver::new(prepared),
            reserved: BTreeMap::new(),
            capped: BTreeMap::new(),
            held: BTreeMap::new(),
            came_last: BTreeSet::new(),
            moved: self.moved.contains(&priority),
            preemptible: None,
            victimless: ShapeSet::new(prepared.shapes.len()),
        };
        for &request in members {
            if !self.defer(&mut class, request) {
                self.offer(&mut class, request, decided);
            }
        }
        self.make_room(&mut class, decided);
        let deferred = std::mem::take(&mut class.deferred);
        class.came_last.extend(&deferred);
        for request in deferred {
            match self.freeing {
                Some(ahead) => self.wait_for_room(&mut class, request, ahead),
                None => self.offer(&mut class, request, decided),
            }
        }
        self.make_room(&mut class, decided);
        self.open_again(&class);
        self.tell_reserved_from_full(&class, members);
        self.close(&class);
        self.keep_from_less_important(members);
        let reserve = class.holders.into_iter();
        decided
            .reservations
            .extend(reserve.map(|holder| (holder.request, holder.agents)));
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

    /// A deferred request does not start while room is being freed in its class.
    fn wait_for_room(&mut self, class: &mut Class, request: usize, ahead: usize) {
        let prepared = self.shared.prepared;
        let shape = &prepared.shapes[prepared.requests[request].shape].shape;
        self.shared.waits[request] = if self.room.free.fit(shape, 0).is_some() {
            Wait::ReservedFor(ahead)
        } else {
            // Or what it would fit is held back for one behind it.
            class.held.insert(request, ahead);
            Wait::NoRoom
        };
        class.unfit.push(request);
    }

    /// Step 3: the first request that did not fit closes the class. A later one of its job may have started meanwhile
    /// and filled the job's cap: then it is the cap that holds it back.
    fn close(&mut self, class: &Class) {
        for &request in &class.unfit {
            let freeing = self.shared.waits[request] == Wait::Freeing;
            match self.shared.exceeds(request).filter(|_| !freeing) {
                Some(limit) => self.shared.waits[request] = limit,
                None => {
                    self.blocked.get_or_insert(request);
                }
            }
        }
    }

    /// Less important work of a workspace does not take what this class waits for.
    fn keep_from_less_important(&mut self, members: &[usize]) {
        if !self.shared.workspaces.any() {
            return;
        }
        for &request in members {
            if !matches!(
                self.shared.waits[request],
                Wait::Starts | Wait::OverCap | Wait::Fate
            ) {
                self.shared.keep(request);
            }
        }
    }

    /// Step 1 for one request.
    fn offer(&mut self, class: &mut Class, request: usize, decided: &mut Decided) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let fate = self.shared.fate(waiting.shape);
        if *fate != Fate::Usable {
            if matches!(fate, Fate::Returning(_)) {
                class.unfit.push(request);
            }
            self.shared.waits[request] = Wait::Fate;
            self.room.disown(request);
            return;
        }
        if let Some(limit) = self.shared.exceeds(request) {
            self.shared.waits[request] = limit;
            if limit != Wait::OverCap && self.is_old(request) {
                self.shared.keep(request);
            }
            self.room.disown(request);
            return;
        }
        if let Some((ahead, because)) = self.gate(waiting.preemptible) {
            self.shared.waits[request] = Wait::Behind {
                request: ahead,
                because,
            };
            if because == Behind::RoomBeingFreed {
                class.wishes.push(Wish {
                    request,
                    shape: waiting.shape,
                    aged: None,
                });
            }
            return;
        }
        if let Some(holder) = self.job_reserves(class, request) {
            self.shared.waits[request] = Wait::NoRoom;
            class.capped.insert(request, holder);
            return;
        }
        if let Some(parts) = self.room.fit(request) {
            self.place(request, parts, decided);
            return;
        }
        self.shared.waits[request] = Wait::NoRoom;
        class.unfit.push(request);
        if self.preemption && class.moved {
            class.blocked_jobs.insert(waiting.job);
        }
        if self.is_old(request) || self.room.ties.contains_key(&request) {
            self.shared.keep(request);
        }
        let aged = self.hold_back(class, request, decided);
        class.wishes.push(Wish {
            request,
            shape: waiting.shape,
            aged,
        });
    }

    /// Whether a more important request keeps this class, or this kind of request, from starting.
    fn gate(&self, preemptible: bool) -> Option<(usize, Behind)> {
        let blocked = self.blocked?;
        if !self.preemption {
            Some((blocked, Behind::PreemptionOff))
        } else if !preemptible {
            Some((blocked, Behind::NotPreemptible))
        } else {
            self.freeing
                .map(|request| (request, Behind::RoomBeingFreed))
        }
    }

    fn place(&mut self, request: usize, parts: Parts, decided: &mut Decided) {
        self.shared.start(request);
        self.room.take(request, &parts);
        decided.placed.push((request, parts));
    }

    /// Holds back room for a request that did not fit and reserves. Its place in [`Class::holders`] if it does so
    /// because of its age.
    fn hold_back(&mut self, class: &mut Class, request: usize, decided: &Decided) -> Option<usize> {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        if prepared.shapes[waiting.shape].shape.units == 1 {
            // No room at all is free where it may run, so there is nothing that others could take from it.
            return None;
        }
        let mut agents = Reserved::new();
        if self.is_over_age(class, request)
            && let Some(closest) = self.closest(class, waiting.shape, decided)
        {
            for &agent in &closest {
                self.room.hold(agent, u32::MAX);
            }
            agents = closest;
            if prepared.jobs[waiting.job].max_slots.is_some() {
                let reserved = class.reserved.entry(waiting.job).or_insert((0, request));
                reserved.0 += u64::from(waiting.slots);
            }
        }
        let aged = agents.len();
        for (agent, units) in self.room.own_room(request) {
            self.room.hold(agent, units);
            if !agents.contains(&agent) {
                agents.push(agent);
            }
        }
        if !agents.is_empty() {
            class.holders.push(Holder {
                request,
                agents,
                aged,
            });
        }
        (aged > 0).then(|| class.holders.len() - 1)
    }

    /// Whether a request has waited so long that it reserves, and its job could use what it would reserve.
    fn is_over_age(&self, class: &Class, request: usize) -> bool {
        self.is_old(request) && self.job_reserves(class, request).is_none()
    }

    fn is_old(&self, request: usize) -> bool {
        let waiting = &self.shared.prepared.requests[request];
        self.reserve_before
            .is_some_and(|limit| waiting.requested_at.0 <= limit)
    }

    /// The request that reserves what is left of its job's cap, so that `request` would take from it.
    fn job_reserves(&self, class: &Class, request: usize) -> Option<usize> {
        if class.reserved.is_empty() {
            return None;
        }
        let waiting = &self.shared.prepared.requests[request];
        let max_slots = self.shared.prepared.jobs[waiting.job].max_slots?;
        let &(reserved, first) = class.reserved.get(&waiting.job)?;
        let wanted = self.shared.in_use[waiting.job] + reserved + u64::from(waiting.slots);
        (wanted > u64::from(max_slots)).then_some(first)
    }

    fn closest(&mut self, class: &mut Class, shape: usize, decided: &Decided) -> Option<Reserved> {
        let prepared = self.shared.prepared;
        if class.reserver.is_hopeless(shape) {
            return None;
        }
        let within_reach = || {
            let preemptible = class
                .preemptible
                .get_or_insert_with(|| self.preemptible_below(class.priority));
            let below = preemptible.iter().zip(0..);
            below
                .map(|(below, agent)| self.room.within_reach(agent).saturating_add(*below))
                .collect()
        };
        class.reserver.closest(
            &self.room.free,
            decided.placed.len(),
            within_reach,
            shape,
            &prepared.shapes[shape].shape,
        )
    }

    /// Room by agent that this class could have by preempting, stopping or not.
    fn preemptible_below(&self, priority: u8) -> Vec<u32> {
        let prepared = self.shared.prepared;
        let mut room = vec![0_u32; prepared.agents.len()];
        if self.preemption {
            for active in &*prepared.running {
                if active.preemptible
                    && active.zero_slots() == self.zero_slots
                    && prepared.jobs[active.job].priority > priority
                {
                    for part in &active.parts {
                        let sum = &mut room[part.agent as usize];
                        *sum = sum.saturating_add(part.usable);
                    }
                }
            }
        }
        room
    }

    /// Step 2 for the class.
    fn make_room(&mut self, class: &mut Class, decided: &mut Decided) {
        let Some(mut future) = self.room.future.take() else {
            return;
        };
        for wish in std::mem::take(&mut class.wishes) {
            // Most are like one that was tried before.
            let hopeless = !class.moved
                && future.misfits.contains(wish.shape)
                && class.victimless.contains(wish.shape)
                && !self.room.ties.contains_key(&wish.request);
            if (hopeless || !self.book(&mut future, class, wish.request, decided))
                && let Some(aged) = wish.aged
            {
                // Nobody after it counts on its agents, or stops work there only to find them reserved.
                let holder = &class.holders[aged];
                for &agent in &holder.agents[..holder.aged] {
                    if future.space.cell(agent).open {
                        future.space.set_open(agent, false);
                        class.closed.push(agent);
                    }
                }
            }
        }
        self.room.future = Some(future);
    }

    /// What the class has reserved binds no other.
    fn open_again(&mut self, class: &Class) {
        self.room.give_back();
        if let Some(future) = &mut self.room.future {
            for &agent in &class.closed {
                future.space.set_open(agent, true);
                future.misfits.clear();
            }
        }
    }

    /// Books room in the future for a request, asking others to stop if need be. Whether it has any.
    fn book(
        &mut self,
        future: &mut Future,
        class: &mut Class,
        request: usize,
        decided: &mut Decided,
    ) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let mut own = self.room.ties.remove(&request).unwrap_or_default();
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
            let asked = self.take_over(&victims, request, decided);
            self.ask_to_stop(&asked, request, decided);
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
        for (agent, units) in parts {
            future.space.take(agent, units);
        }
        future.in_use[waiting.job] += slots;
        self.shared.keep(request);
        true
    }

    fn find_victims(
        &self,
        future: &Future,
        class: &mut Class,
        request: usize,
    ) -> Option<Vec<usize>> {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        // With moved jobs the candidates depend on the job, and a failure says nothing about others of the shape.
        let by_shape = !prepared.jobs[waiting.job].moved && !class.moved;
        if by_shape && class.victimless.contains(waiting.shape) {
            return None;
        }
        // What already stops for less important requests costs nobody anything.
        let stopping = self
            .room
            .ties
            .range(request + 1..)
            .rev()
            .flat_map(|(owner, victims)| victims.iter().rev().map(|victim| (*owner, *victim)))
            .filter(|(owner, victim)| {
                let owner = &prepared.jobs[prepared.requests[*owner].job];
                owner.priority > class.priority
                    || may_preempt(prepared, waiting.job, prepared.running[*victim].job)
            })
            .map(|(_, victim)| victim);
        let active = (0..prepared.running.len())
            .rev()
            .take_while(|number| {
                prepared.jobs[prepared.running[*number].job].priority >= class.priority
            })
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

    /// Ties those of `victims` that stop already to `request`; answers with the others.
    fn take_over(
        &mut self,
        victims: &[usize],
        request: usize,
        decided: &mut Decided,
    ) -> Vec<usize> {
        let prepared = self.shared.prepared;
        let (stopping, active): (Vec<usize>, Vec<usize>) = victims
            .iter()
            .partition(|victim| self.shared.stopping[**victim]);
        for tied in self.room.ties.values_mut() {
            tied.retain(|victim| !stopping.contains(victim));
        }
        decided.hand_over.extend(stopping.into_iter().map(|victim| {
            HandOver {
                allocation_id: prepared.running[victim]
                    .running
                    .request
                    .allocation_id
                    .clone(),
                for_allocation: prepared.requests[request].request.allocation_id.clone(),
            }
        }));
        active
    }

    fn ask_to_stop(&mut self, victims: &[usize], request: usize, decided: &mut Decided) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let priority = prepared.jobs[waiting.job].priority;
        for &victim in victims {
            self.shared.stopping[victim] = true;
            let active = &prepared.running[victim];
            let own_priority = prepared.jobs[active.job].priority;
            decided.preempt.push(Preemption {
                allocation_id: active.running.request.allocation_id.clone(),
                for_allocation: Some(waiting.request.allocation_id.clone()),
                reason: if own_priority == priority {
                    PreemptReason::MovedAhead
                } else {
                    PreemptReason::HigherPriority {
                        priority,
                        own_priority,
                    }
                },
            });
        }
    }

    /// Some requests of the class were held up only by what it held back: says so.
    fn tell_reserved_from_full(&mut self, class: &Class, members: &[usize]) {
        if class.holders.is_empty() {
            return;
        }
        let prepared = self.shared.prepared;
        let mut fits: Vec<Option<bool>> = vec![None; prepared.shapes.len()];
        for &request in members {
            if self.shared.waits[request] != Wait::NoRoom {
                continue;
            }
            let waiting = &prepared.requests[request];
            let shape = &prepared.shapes[waiting.shape].shape;
            let fits =
                *fits[waiting.shape].get_or_insert_with(|| self.room.free.fit(shape, 0).is_some());
            if !fits {
                continue;
            }
            let ahead = class
                .holders
                .iter()
                .filter(|holder| holder.request < request || class.came_last.contains(&request))
                .filter(|holder| holder.request != request)
                .find(|holder| holder.agents.iter().any(|agent| shape.allows(*agent)))
                .map(|holder| holder.request);
            let known = class.capped.get(&request).or(class.held.get(&request));
            if let Some(holder) = known.copied().or(ahead) {
                self.shared.waits[request] = Wait::ReservedFor(holder);
            }
        }
    }
}

/// Whether a job may stop work of another: always if that one is less important. Within one priority only if that one
/// is behind because somebody moved one of the two, never because it was submitted later.
fn may_preempt(prepared: &Prepared, job: usize, other: usize) -> bool {
    let (own, other) = (&prepared.jobs[job], &prepared.jobs[other]);
    other.priority > own.priority
        || (other.priority == own.priority
            && other.order > own.order
            && other.submitted_at <= own.submitted_at
            && (own.moved || other.moved))
}
