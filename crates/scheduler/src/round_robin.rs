//! The round robin rule.
//!
//! Jobs take turns, those with the fewest slots in use first; equal ones in order of submission. In its turn a job
//! starts its first waiting request; if that does not fit, the job is out for this pass. Turns continue until all jobs
//! are out. Zero-slot requests are in the same queue. Nothing is preempted.
//!
//! A request that its job's cap holds back, or that the places in service could not hold even if they were empty, is
//! skipped: its job's next one is tried.
//!
//! A job whose first request would take its workspace above its limit is out for this pass too.
//!
//! A job whose first request has waited longer than [`crate::PoolSettings::reserve_after`] goes before all others, the
//! longest wait first; if that request does not fit, it reserves the places it is closest to getting. So a large request
//! is not passed by small ones for ever.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use det_ids::Micros;

use crate::capacity::Feasibility;
use crate::decision::{Decision, DecisionState, Wait};
use crate::free_capacity::FreeCapacity;
use crate::prepared::PreparedPool;
use crate::reserve::{ReservedPlaces, Reserver};
use crate::space::{Parts, PlaceRank, Space};

/// Decides for slot requests and zero-slot requests together.
pub(crate) fn decide(prepared: &PreparedPool, now: Micros) -> Decision {
    let mut pass = RoundRobinPass::new(prepared, now);
    pass.shared.stop_over_cap(&mut pass.decision);
    pass.aged_first();
    pass.turns();
    pass.finish()
}

struct RoundRobinPass<'a> {
    shared: DecisionState<'a>,
    decision: Decision,
    slots: FreeCapacity<'a>,
    aux: FreeCapacity<'a>,
    reserver: Reserver,
    /// Requests that reserve places, and those places.
    reserving: Vec<(usize, ReservedPlaces)>,
    /// The waiting requests of each job.
    lines: Vec<Line>,
}

/// The waiting requests of a job, which are adjacent, as a range of request numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// The first one that has not been considered.
    next: usize,
    /// One after the number of the job's last request.
    end: usize,
    /// The one that did not fit.
    blocked: Option<usize>,
}

impl<'a> RoundRobinPass<'a> {
    fn new(prepared: &'a PreparedPool, now: Micros) -> Self {
        let mut lines = vec![Line::default(); prepared.jobs.len()];
        for (request, waiting) in prepared.requests.iter().enumerate() {
            let line = &mut lines[waiting.job];
            if line.end == 0 {
                line.next = request;
            }
            line.end = request + 1;
        }
        let free = prepared.slot_space();
        let aux = prepared.aux_space(&free);
        Self {
            shared: DecisionState::new(prepared, now),
            decision: Decision::default(),
            slots: FreeCapacity::of_now(prepared, free),
            aux: FreeCapacity::of_now(prepared, aux),
            reserver: Reserver::new(prepared),
            reserving: Vec::new(),
            lines,
        }
    }

    /// The next request of a job; sets the reasons of those that are skipped.
    fn head(&mut self, job: usize) -> Option<usize> {
        loop {
            let line = self.lines[job];
            if line.blocked.is_some() || line.next >= line.end {
                return None;
            }
            let request = line.next;
            if let Some(wait) = self.passed_over(request) {
                self.shared.waits[request] = wait;
                self.lines[job].next += 1;
                continue;
            }
            return Some(request);
        }
    }

    fn passed_over(&mut self, request: usize) -> Option<Wait> {
        let waiting = &self.shared.prepared.requests[request];
        if *self.shared.feasibility(waiting.shape) == Feasibility::Usable {
            if self.shared.is_over_cap(request) {
                return Some(Wait::OverCap);
            }
            let above = self.shared.workspaces.is_above(waiting);
            above.then_some(Wait::OverWorkspace { kept_for: None })
        } else {
            Some(Wait::Infeasible)
        }
    }

    /// Serves the jobs whose first request is older than the age limit, the oldest first.
    fn aged_first(&mut self) {
        if self.shared.reserve_before.is_none() {
            return;
        }
        let prepared = self.shared.prepared;
        let age = |request: usize| {
            let waiting = &prepared.requests[request];
            let order = prepared.jobs[waiting.job].order;
            (waiting.requested_at, order, request)
        };
        let mut oldest = BinaryHeap::new();
        for job in 0..self.lines.len() {
            if let Some(request) = self.head(job)
                && self.shared.waited_too_long(request)
            {
                oldest.push(Reverse(age(request)));
            }
        }
        while let Some(Reverse((_, _, request))) = oldest.pop() {
            let job = prepared.requests[request].job;
            if !self.offer(job, request) {
                self.reserve(request);
            } else if let Some(request) = self.head(job)
                && self.shared.waited_too_long(request)
            {
                oldest.push(Reverse(age(request)));
            }
        }
    }

    fn turns(&mut self) {
        let prepared = self.shared.prepared;
        let mut turn: Vec<usize> = (0..self.lines.len())
            .filter(|job| self.head(*job).is_some())
            .collect();
        turn.sort_unstable_by_key(|job| (self.shared.in_use[*job], prepared.jobs[*job].order));
        while !turn.is_empty() {
            turn.retain(|&job| match self.head(job) {
                Some(request) => self.offer(job, request),
                None => false,
            });
        }
    }

    /// Starts a job's first request if it fits; returns whether it did.
    fn offer(&mut self, job: usize, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        if let Some(limit) = self.shared.exceeds(request) {
            self.shared.waits[request] = limit;
            self.lines[job].blocked = Some(request);
            return false;
        }
        let zero_slots = waiting.slots == 0;
        let capacity = if zero_slots {
            &mut self.aux
        } else {
            &mut self.slots
        };
        let Some(parts) = capacity.fit(request) else {
            self.shared.waits[request] = Wait::NotEnoughFree;
            self.lines[job].blocked = Some(request);
            return false;
        };
        capacity.take(request, &parts);
        if !zero_slots {
            self.score_aux(&parts);
        }
        self.shared.start(request);
        self.lines[job].next += 1;
        self.decision.placed.push((request, parts));
        true
    }

    /// Updates the scores for zero-slot requests, which depend on the slots in use.
    fn score_aux(&mut self, parts: &Parts) {
        for &(place, _) in parts {
            let score = self.slots.free.aux_score(place);
            self.aux.free.set_fixed_score(place, score);
        }
    }

    /// Holds back the places that a blocked request is closest to getting.
    fn reserve(&mut self, request: usize) {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let shape = &prepared.shapes[waiting.shape].shape;
        self.shared.keep(request);
        if self.shared.waits[request] != Wait::NotEnoughFree {
            // It does not wait for places.
            return;
        }
        // Of a single unit there is none free where it may run, so there is nothing that others could take from it.
        if shape.units == 1 || self.reserver.is_hopeless(waiting.shape) {
            return;
        }
        let places = PlaceRank::try_from(prepared.places.len()).unwrap_or(PlaceRank::MAX);
        let capacity = &self.slots;
        let closest = self.reserver.closest(
            &capacity.free,
            self.decision.placed.len(),
            || {
                (0..places)
                    .map(|place| capacity.free_or_held(place))
                    .collect()
            },
            waiting.shape,
            shape,
        );
        if let Some(closest) = closest {
            for &place in &closest {
                self.slots.hold(place, u32::MAX);
            }
            self.reserving.push((request, closest));
        }
    }

    /// Computes the reasons of all waiting requests.
    fn finish(mut self) -> Decision {
        for line in std::mem::take(&mut self.lines) {
            let Some(blocked) = line.blocked else {
                continue;
            };
            for request in blocked + 1..line.end {
                let wait = self.passed_over(request).unwrap_or(Wait::InTurn(blocked));
                self.shared.waits[request] = wait;
            }
        }
        self.slots.release_all_held();
        self.mark_reserved();
        let (slots, aux): (Space, Space) = (self.slots.free, self.aux.free);
        self.decision.reservations = self.reserving;
        self.shared.explain(&slots, Some(&aux), &mut self.decision);
        self.decision
    }

    /// Changes the reason of requests that did not fit only because of what is reserved.
    fn mark_reserved(&mut self) {
        let prepared = self.shared.prepared;
        if self.reserving.is_empty() {
            return;
        }
        let mut fits: Vec<Option<bool>> = vec![None; prepared.shapes.len()];
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if self.shared.waits[request] != Wait::NotEnoughFree || waiting.slots == 0 {
                continue;
            }
            let shape = &prepared.shapes[waiting.shape].shape;
            let free = &self.slots.free;
            let fits = *fits[waiting.shape].get_or_insert_with(|| free.fit(shape, 0).is_some());
            let owner = self
                .reserving
                .iter()
                .filter(|(owner, _)| *owner != request)
                .find(|(_, places)| places.iter().any(|place| shape.allows(*place)));
            if let (true, Some((owner, _))) = (fits, owner) {
                self.shared.waits[request] = Wait::ReservedFor(*owner);
            }
        }
    }
}
