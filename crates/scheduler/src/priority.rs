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

use det_ids::{AllocationId, Micros};

use crate::capacity::Fate;
use crate::decision::{Decided, Shared, Wait};
use crate::future::{Future, Misfits};
use crate::model::Progress;
use crate::order::Prepared;
use crate::plan::{HandOver, PreemptReason, Preemption, Reservation};
use crate::reason::Behind;
use crate::reserve::Reserver;
use crate::space::{AgentRank, Parts, Space, spread_of};
use crate::victims;

/// Decides for slot requests, then for zero-slot requests.
pub(crate) fn decide(prepared: &Prepared<'_>, preemption: bool, now: Micros) -> Decided {
    let mut decided = Decided::default();
    let mut state = Shared::new(prepared);
    state.stop_over_cap(&mut decided);
    let (zero, slots): (Vec<usize>, Vec<usize>) = (0..prepared.requests.len())
        .partition(|request| prepared.requests[*request].request.slots == 0);

    let mut run = Run::new(&mut state, prepared.slot_space(), preemption, now, false);
    run.all(&slots, &mut decided);
    let slot_space = run.free;
    let mut run = Run::new(
        &mut state,
        prepared.aux_space(&slot_space),
        preemption,
        now,
        true,
    );
    run.all(&zero, &mut decided);
    let aux_space = run.free;

    state.explain(&slot_space, &aux_space, &mut decided);
    decided
}

/// One run: slots, or auxiliary places.
struct Run<'a, 'b> {
    shared: &'b mut Shared<'a>,
    preemption: bool,
    zero_slots: bool,
    /// Requests made at or before this time reserve.
    reserve_before: Option<i64>,
    /// What is free now.
    free: Space,
    misfits: Misfits,
    /// What will be free when stopping work has ended, less what is booked. Only with preemption.
    future: Option<Future>,
    /// Running allocations that were preempted for a request that still waits, by request.
    ties: BTreeMap<usize, Vec<usize>>,
    /// First request of a finished class that did not fit.
    blocked: Option<usize>,
    /// First request for which room is being freed.
    freeing: Option<usize>,
}

/// What belongs to the class at hand.
struct Class {
    priority: u8,
    /// Requests that did not fit, or were held while room is being freed, in order.
    wishes: Vec<usize>,
    blocked: Option<usize>,
    /// Jobs of requests that did not fit.
    blocked_jobs: BTreeSet<usize>,
    /// Requests that an earlier one of the class may stop: they come last.
    deferred: Vec<usize>,
    /// Units held back by agent.
    held_back: BTreeMap<AgentRank, u32>,
    /// Requests that reserve, with the agents, in order.
    holders: Vec<(usize, Vec<AgentRank>)>,
    /// Agents reserved because of age, by request.
    aged: BTreeMap<usize, Vec<AgentRank>>,
    reserver: Reserver,
    /// Slots reserved because of age, by job: a job reserves no more than its cap lets it use.
    reserved: BTreeMap<usize, u64>,
    /// Whether running work of this class belongs to a job that was moved.
    moved: bool,
    /// Room by agent held by work that this class may preempt by its priority; made when first needed.
    preemptible: Option<Vec<u32>>,
    /// Shapes for which there are no victims.
    victimless: BTreeSet<usize>,
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
        let reserve_before = prepared.pool.settings.reserve_after.map(|patience| {
            let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
            now.0.saturating_sub(patience)
        });
        let mut run = Self {
            misfits: Misfits::new(prepared.shapes.len()),
            future: preemption.then(|| Future {
                space: free.clone(),
                misfits: Misfits::new(prepared.shapes.len()),
                in_use: shared.in_use.clone(),
                stopping_on: vec![Vec::new(); prepared.agents.len()],
            }),
            shared,
            preemption,
            zero_slots,
            reserve_before,
            free,
            ties: BTreeMap::new(),
            blocked: None,
            freeing: None,
        };
        run.find_ties();
        run
    }

    /// Sorts stopping work into that which belongs to a waiting request and that which anybody may count on.
    fn find_ties(&mut self) {
        let prepared = self.shared.prepared;
        let stopping: Vec<usize> = (0..prepared.running.len())
            .filter(|number| {
                self.shared.stopping[*number]
                    && prepared.running[*number].zero_slots() == self.zero_slots
            })
            .collect();
        let mut owners: BTreeMap<&AllocationId, Vec<usize>> = BTreeMap::new();
        let mut unowned = Vec::new();
        for number in stopping {
            match &prepared.running[number].running.progress {
                Progress::PreemptedFor(owner) => owners.entry(owner).or_default().push(number),
                Progress::Active | Progress::Stopping => unowned.push(number),
            }
        }
        if !owners.is_empty() {
            for (number, waiting) in prepared.requests.iter().enumerate() {
                let same_run = (waiting.request.slots == 0) == self.zero_slots;
                if same_run && let Some(victims) = owners.remove(&waiting.request.allocation_id) {
                    self.ties.insert(number, victims);
                }
            }
        }
        unowned.extend(owners.into_values().flatten());
        if let Some(future) = &mut self.future {
            for victims in self.ties.values() {
                future.note_stopping(prepared, victims);
            }
            future.note_stopping(prepared, &unowned);
            future.release(prepared, &unowned);
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
            wishes: Vec::new(),
            blocked: None,
            blocked_jobs: BTreeSet::new(),
            deferred: Vec::new(),
            held_back: BTreeMap::new(),
            holders: Vec::new(),
            aged: BTreeMap::new(),
            reserver: Reserver::new(prepared.agents.len()),
            reserved: BTreeMap::new(),
            moved: prepared.running.iter().any(|active| {
                let job = &prepared.jobs[active.job];
                job.moved && job.priority == priority
            }),
            preemptible: None,
            victimless: BTreeSet::new(),
        };
        for &request in members {
            if !self.defer(&mut class, request) {
                self.offer(&mut class, request, decided);
            }
        }
        self.make_room(&mut class, decided);
        let deferred = std::mem::take(&mut class.deferred);
        for request in deferred {
            match self.freeing {
                Some(ahead) => self.wait_for_room(&mut class, request, ahead),
                None => self.offer(&mut class, request, decided),
            }
        }
        self.make_room(&mut class, decided);
        self.tell_reserved_from_full(&class, members);
        self.blocked = self.blocked.or(class.blocked);
        for (request, agents) in class.holders {
            decided.reservations.push(self.reservation(request, agents));
        }
    }

    /// Whether a request is to come last, because a blocked one of its class may stop it.
    fn defer(&self, class: &mut Class, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let defer = self.preemption
            && waiting.request.preemptible
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
        self.shared.waits[request] = Some(if self.free.fit(shape, 0).is_some() {
            Wait::ReservedFor(ahead)
        } else {
            Wait::NoRoom
        });
        class.blocked.get_or_insert(request);
    }

    /// Step 1 for one request.
    fn offer(&mut self, class: &mut Class, request: usize, decided: &mut Decided) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let slots = u64::from(waiting.request.slots);
        if let Some(max_slots) = prepared.jobs[waiting.job].max_slots
            && slots > 0
            && self.shared.in_use[waiting.job] + slots > u64::from(max_slots)
        {
            self.shared.waits[request] = Some(Wait::OverCap { max_slots });
            return;
        }
        match self.shared.fate(waiting.shape) {
            Fate::Usable => {}
            Fate::Returning(reason) => {
                let wait = Wait::Fate(reason.clone());
                self.shared.waits[request] = Some(wait);
                class.blocked.get_or_insert(request);
                return;
            }
            Fate::NeedsPerson(reason) | Fate::Never(reason) => {
                let wait = Wait::Fate(reason.clone());
                self.shared.waits[request] = Some(wait);
                return;
            }
        }
        if let Some((ahead, because)) = self.gate(waiting.request.preemptible) {
            self.shared.waits[request] = Some(Wait::Behind {
                request: ahead,
                because,
            });
            if because == Behind::RoomBeingFreed {
                class.wishes.push(request);
            }
            return;
        }
        let shape = &prepared.shapes[waiting.shape].shape;
        if !self.misfits.contains(waiting.shape) {
            let spread = spread_of(waiting.request.allocation_id.as_str());
            if let Some(parts) = self.free.fit(shape, spread) {
                self.place(request, parts, decided);
                return;
            }
            self.misfits.insert(waiting.shape);
        }
        self.shared.waits[request] = Some(Wait::NoRoom);
        class.blocked.get_or_insert(request);
        class.wishes.push(request);
        if self.preemption {
            class.blocked_jobs.insert(waiting.job);
        }
        self.hold_back(class, request);
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
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let slots = u64::from(waiting.request.slots);
        self.shared.in_use[waiting.job] += slots;
        for &(agent, units) in &parts {
            self.free.take(agent, units);
        }
        if let Some(future) = &mut self.future {
            for &(agent, units) in &parts {
                future.space.take(agent, units);
            }
            future.in_use[waiting.job] += slots;
            // It did not need what was still being freed for it.
            if let Some(victims) = self.ties.remove(&request) {
                future.release(prepared, &victims);
            }
        }
        decided.placed.push((request, parts));
    }

    /// Holds back room for a request that did not fit and reserves.
    fn hold_back(&mut self, class: &mut Class, request: usize) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        if prepared.shapes[waiting.shape].shape.units == 1 {
            // No room at all is free where it may run, so there is nothing that others could take from it.
            return;
        }
        let mut agents: BTreeSet<AgentRank> = BTreeSet::new();
        if self.is_over_age(class, request)
            && let Some(closest) = self.closest(class, waiting.shape)
        {
            for &agent in &closest {
                self.hold(class, agent, u32::MAX);
            }
            agents.extend(&closest);
            *class.reserved.entry(waiting.job).or_default() += u64::from(waiting.request.slots);
            class.aged.insert(request, closest);
        }
        for (agent, units) in self.own_room(request) {
            self.hold(class, agent, units);
            agents.insert(agent);
        }
        if !agents.is_empty() {
            class.holders.push((request, agents.into_iter().collect()));
        }
    }

    /// Whether a request has waited so long that it reserves, and its job could use what it would reserve.
    fn is_over_age(&self, class: &Class, request: usize) -> bool {
        let waiting = &self.shared.prepared.requests[request];
        let old = self
            .reserve_before
            .is_some_and(|limit| waiting.request.requested_at.0 <= limit);
        let Some(max_slots) = self.shared.prepared.jobs[waiting.job].max_slots else {
            return old;
        };
        let reserved = class.reserved.get(&waiting.job).copied().unwrap_or(0);
        let wanted = self.shared.in_use[waiting.job] + reserved + u64::from(waiting.request.slots);
        old && wanted <= u64::from(max_slots)
    }

    fn closest(&mut self, class: &mut Class, shape: usize) -> Option<Vec<AgentRank>> {
        let prepared = self.shared.prepared;
        if class.reserver.is_hopeless(shape) {
            return None;
        }
        let preemptible = class
            .preemptible
            .get_or_insert_with(|| self.preemptible_below(class.priority));
        let within_reach: Vec<u32> = self
            .free
            .cells()
            .iter()
            .zip(0..)
            .zip(preemptible.iter())
            .map(|((cell, agent), below)| {
                let held_back = class.held_back.get(&agent).copied().unwrap_or(0);
                cell.free().saturating_add(held_back).saturating_add(*below)
            })
            .collect();
        class.reserver.closest(
            &self.free,
            &within_reach,
            shape,
            &prepared.shapes[shape].shape,
        )
    }

    /// Room by agent that this class could have by preempting, stopping or not.
    fn preemptible_below(&self, priority: u8) -> Vec<u32> {
        let prepared = self.shared.prepared;
        let mut room = vec![0_u32; prepared.agents.len()];
        if self.preemption {
            for active in &prepared.running {
                if active.running.request.preemptible
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

    /// The room on which a request counts beside that of its own stopping victims: by agent, units that are free now.
    fn own_room(&mut self, request: usize) -> Parts {
        let prepared = self.shared.prepared;
        let Some(victims) = self.ties.get(&request) else {
            return Parts::new();
        };
        let mut freed: BTreeMap<AgentRank, u32> = BTreeMap::new();
        for part in victims
            .iter()
            .flat_map(|victim| &prepared.running[*victim].parts)
        {
            *freed.entry(part.agent).or_default() += part.usable;
            self.free.give(part.agent, part.usable, part.held);
        }
        let waiting = &prepared.requests[request];
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let fit = self.free.fit(&prepared.shapes[waiting.shape].shape, spread);
        for part in victims
            .iter()
            .flat_map(|victim| &prepared.running[*victim].parts)
        {
            self.free.take_again(part.agent, part.usable, part.held);
        }
        match fit {
            Some(parts) => parts
                .into_iter()
                .map(|(agent, units)| {
                    let own = freed.get(&agent).copied().unwrap_or(0);
                    (agent, units.saturating_sub(own))
                })
                .collect(),
            // Something took the room in between. What is left of it is still the best hope.
            None => freed.into_keys().map(|agent| (agent, u32::MAX)).collect(),
        }
    }

    /// Holds back up to `units` on an agent, as far as they are free.
    fn hold(&mut self, class: &mut Class, agent: AgentRank, units: u32) {
        let cell = self.free.cell(agent);
        let held = class.held_back.entry(agent).or_default();
        let more = units.saturating_sub(*held).min(cell.free());
        if more > 0 && cell.open {
            *held += more;
            self.free.take(agent, more);
        }
    }

    /// Step 2 for the class.
    fn make_room(&mut self, class: &mut Class, decided: &mut Decided) {
        // What was held back keeps the order of the class; the future keeps its own books.
        for (agent, units) in std::mem::take(&mut class.held_back) {
            self.free.give(agent, units, units);
            self.misfits.clear();
        }
        let Some(mut future) = self.future.take() else {
            return;
        };
        let mut closed: BTreeSet<AgentRank> = BTreeSet::new();
        for request in std::mem::take(&mut class.wishes) {
            if !self.book(&mut future, class, request, decided)
                && let Some(agents) = class.aged.get(&request)
            {
                // Nobody after it counts on its agents, or stops work there only to find them reserved.
                for &agent in agents.iter().filter(|agent| closed.insert(**agent)) {
                    future.space.set_open(agent, false);
                }
            }
        }
        for agent in closed {
            future.space.set_open(agent, true);
            future.misfits.clear();
        }
        self.future = Some(future);
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
        let mut own = self.ties.remove(&request).unwrap_or_default();
        if !own.is_empty() {
            future.release(prepared, &own);
            class.victimless.clear();
        }
        let slots = u64::from(waiting.request.slots);
        if prepared.jobs[waiting.job]
            .max_slots
            .is_some_and(|max| slots > 0 && future.in_use[waiting.job] + slots > u64::from(max))
        {
            return false;
        }
        let mut parts = future.fit(prepared, request);
        if parts.is_none()
            && let Some(victims) = self.find_victims(future, class, request)
        {
            let asked = self.take_over(&victims, request, decided);
            self.ask_to_stop(&asked, request, decided);
            future.note_stopping(prepared, &asked);
            future.release(prepared, &victims);
            own.extend(victims);
            parts = future.fit(prepared, request);
        }
        let Some(parts) = parts else {
            return false;
        };
        let behind = matches!(self.shared.waits[request], Some(Wait::Behind { .. }));
        if own.is_empty() && !behind {
            own = future.stopping_among(&parts);
        }
        if !own.is_empty() {
            own.sort_unstable();
            self.shared.waits[request] = Some(Wait::Freeing(own));
        }
        for (agent, units) in parts {
            future.space.take(agent, units);
        }
        future.in_use[waiting.job] += slots;
        self.freeing.get_or_insert(request);
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
        if by_shape && class.victimless.contains(&waiting.shape) {
            return None;
        }
        // What already stops for less important requests costs nobody anything.
        let stopping = self
            .ties
            .range(request + 1..)
            .rev()
            .flat_map(|(_, victims)| victims.iter().rev().copied())
            .filter(|victim| may_preempt(prepared, waiting.job, prepared.running[*victim].job));
        let active = (0..prepared.running.len())
            .rev()
            .take_while(|number| {
                prepared.jobs[prepared.running[*number].job].priority >= class.priority
            })
            .filter(|number| {
                let active = &prepared.running[*number];
                active.running.request.preemptible
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
        for tied in self.ties.values_mut() {
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
        let mut fits: BTreeMap<usize, bool> = BTreeMap::new();
        for &request in members {
            if self.shared.waits[request] != Some(Wait::NoRoom) {
                continue;
            }
            let waiting = &prepared.requests[request];
            let shape = &prepared.shapes[waiting.shape].shape;
            let fits = *fits
                .entry(waiting.shape)
                .or_insert_with(|| self.free.fit(shape, 0).is_some());
            let ahead = class
                .holders
                .iter()
                .take_while(|(holder, _)| *holder < request)
                .find(|(_, agents)| agents.iter().any(|agent| shape.allows(*agent)));
            if let (true, Some((holder, _))) = (fits, ahead) {
                self.shared.waits[request] = Some(Wait::ReservedFor(*holder));
            }
        }
    }

    fn reservation(&self, request: usize, agents: Vec<AgentRank>) -> Reservation {
        let prepared = self.shared.prepared;
        Reservation {
            allocation_id: prepared.requests[request].request.allocation_id.clone(),
            agents: agents
                .into_iter()
                .map(|agent| prepared.agents[agent as usize].agent.id.clone())
                .collect(),
        }
    }
}

/// Whether a job may stop work of another: always if that one is less important. Within one priority only if that one
/// is behind because somebody moved one of the two, never because it was submitted later.
fn may_preempt(prepared: &Prepared<'_>, job: usize, other: usize) -> bool {
    let (own, other) = (&prepared.jobs[job], &prepared.jobs[other]);
    other.priority > own.priority
        || (other.priority == own.priority
            && other.order > own.order
            && other.submitted_at <= own.submitted_at
            && (own.moved || other.moved))
}
