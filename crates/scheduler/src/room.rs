//! Room during one run: what is free, what stopping work will free, for whom it does, and what is held back.

use std::collections::BTreeMap;

use det_ids::AllocationId;

use crate::future::{Future, ShapeSet};
use crate::model::Progress;
use crate::prepared::{Part, Prepared};
use crate::space::{AgentRank, Parts, Space, spread_of};

/// Room of one run: of slots, or of auxiliary places.
pub(crate) struct Room<'a> {
    prepared: &'a Prepared,
    /// What is free now, less what is held back.
    pub(crate) free: Space,
    /// Shapes known not to fit, until room is added.
    misfits: ShapeSet,
    /// What will be free when stopping work has ended, less what is booked. Only where work is preempted.
    pub(crate) future: Option<Future>,
    /// Running allocations that stop for a request that still waits, by request.
    pub(crate) ties: BTreeMap<usize, Vec<usize>>,
    /// Units held back by agent.
    held_back: Vec<u32>,
}

/// Running work that stops.
#[derive(Clone, Copy)]
pub(crate) struct Stopping<'s> {
    /// By running allocation: whether it stops, by an earlier plan or this one.
    pub(crate) stops: &'s [bool],
    /// Those that this plan asked to stop, with the request that each makes room for.
    pub(crate) asked: &'s BTreeMap<usize, usize>,
}

impl<'a> Room<'a> {
    /// Room without a look at what stopping work will free.
    pub(crate) fn of_now(prepared: &'a Prepared, free: Space) -> Self {
        Self {
            prepared,
            free,
            misfits: ShapeSet::new(prepared.shapes.len()),
            future: None,
            ties: BTreeMap::new(),
            held_back: vec![0; prepared.agents.len()],
        }
    }

    /// Room with a look at what stopping work will free. `in_use` is by job, stopping work included.
    pub(crate) fn with_future(
        prepared: &'a Prepared,
        free: Space,
        in_use: Vec<u64>,
        stopping: Stopping<'_>,
        zero_slots: bool,
    ) -> Self {
        let mut future = Future {
            space: free.clone(),
            misfits: ShapeSet::new(prepared.shapes.len()),
            in_use,
            stopping_on: vec![Vec::new(); prepared.agents.len()],
        };
        let mut room = Self::of_now(prepared, free);
        let unowned = room.find_ties(stopping, zero_slots);
        for victims in room.ties.values() {
            future.note_stopping(prepared, victims);
        }
        future.note_stopping(prepared, &unowned);
        future.release(prepared, &unowned);
        room.future = Some(future);
        room
    }

    /// Sorts stopping work into that which belongs to a waiting request, and that which anybody may count on: the
    /// answer.
    fn find_ties(&mut self, stopping: Stopping<'_>, zero_slots: bool) -> Vec<usize> {
        let prepared = self.prepared;
        let mut owners: BTreeMap<&AllocationId, Vec<usize>> = BTreeMap::new();
        let mut unowned = Vec::new();
        for (number, active) in prepared.running.iter().enumerate() {
            if !stopping.stops[number] || active.zero_slots() != zero_slots {
                continue;
            }
            match (stopping.asked.get(&number), &active.running.progress) {
                (Some(request), _) => self.ties.entry(*request).or_default().push(number),
                (None, Progress::PreemptedFor(owner)) => {
                    owners.entry(owner).or_default().push(number);
                }
                (None, Progress::Active | Progress::Stopping) => unowned.push(number),
            }
        }
        for (owner, victims) in owners {
            let waits = prepared.number_of(owner);
            let waits =
                waits.filter(|number| (prepared.requests[*number].slots == 0) == zero_slots);
            match waits {
                Some(request) => self.ties.entry(request).or_default().extend(victims),
                None => unowned.extend(victims),
            }
        }
        unowned
    }

    /// Where a request fits now. A shape that does not fit is not tried again until there is more room.
    pub(crate) fn fit(&mut self, request: usize) -> Option<Parts> {
        let waiting = &self.prepared.requests[request];
        if self.misfits.contains(waiting.shape) {
            return None;
        }
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let fit = self
            .free
            .fit(&self.prepared.shapes[waiting.shape].shape, spread);
        if fit.is_none() {
            self.misfits.insert(waiting.shape);
        }
        fit
    }

    /// Gives a request the room it fits. What was still being freed for it is anybody's.
    pub(crate) fn take(&mut self, request: usize, parts: &Parts) {
        let waiting = &self.prepared.requests[request];
        for &(agent, units) in parts {
            self.free.take(agent, units);
        }
        if let Some(future) = &mut self.future {
            for &(agent, units) in parts {
                future.space.take(agent, units);
            }
            future.in_use[waiting.job] += u64::from(waiting.slots);
        }
        self.disown(request);
    }

    /// A request cannot use what is being freed for it: that is anybody's.
    pub(crate) fn disown(&mut self, request: usize) {
        if let Some(victims) = self.ties.remove(&request)
            && let Some(future) = &mut self.future
        {
            future.release(self.prepared, &victims);
        }
    }

    /// The room on which a request counts beside that of its own stopping victims: by agent, units that are free now.
    pub(crate) fn own_room(&mut self, request: usize) -> Parts {
        let Some(victims) = self.ties.get(&request) else {
            return Parts::new();
        };
        let parts: Vec<Part> = victims
            .iter()
            .flat_map(|victim| self.prepared.running[*victim].parts.iter().copied())
            .collect();
        let mut freed: BTreeMap<AgentRank, u32> = BTreeMap::new();
        for part in &parts {
            *freed.entry(part.agent).or_default() += part.usable;
            self.free.give(part.agent, part.usable, part.held);
        }
        let waiting = &self.prepared.requests[request];
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let near = freed.keys().copied().collect();
        let shape = &self.prepared.shapes[waiting.shape].shape;
        let fit = self.free.fit_near(shape, spread, &near);
        for part in &parts {
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
    pub(crate) fn hold(&mut self, agent: AgentRank, units: u32) {
        let cell = self.free.cell(agent);
        let held = &mut self.held_back[agent as usize];
        let more = units.saturating_sub(*held).min(cell.free());
        if more > 0 && cell.open {
            *held += more;
            self.free.take(agent, more);
        }
    }

    /// Holds back `units` more on an agent, or as many as are free there: the answer.
    pub(crate) fn hold_more(&mut self, agent: AgentRank, units: u32) -> u32 {
        let cell = self.free.cell(agent);
        if !cell.open {
            return 0;
        }
        let more = units.min(cell.free());
        if more > 0 {
            self.held_back[agent as usize] += more;
            self.free.take(agent, more);
        }
        more
    }

    /// Ends the holding back of `units` on an agent.
    pub(crate) fn let_go(&mut self, agent: AgentRank, units: u32) {
        let held = &mut self.held_back[agent as usize];
        let units = units.min(*held);
        if units > 0 {
            *held -= units;
            self.free.give(agent, units, units);
            self.misfits.clear();
        }
    }

    /// Holds back whatever on an agent exceeds `units`.
    pub(crate) fn leave_at_most(&mut self, agent: AgentRank, units: u32) {
        let more = self.free.cell(agent).free().saturating_sub(units);
        self.hold_more(agent, more);
    }

    /// Room that is free on an agent, held back or not.
    pub(crate) fn within_reach(&self, agent: AgentRank) -> u32 {
        let held_back = self.held_back[agent as usize];
        self.free.cell(agent).free().saturating_add(held_back)
    }

    /// Ends all holding back.
    pub(crate) fn give_back(&mut self) {
        for (units, agent) in self.held_back.iter_mut().zip(0..) {
            if *units > 0 {
                self.free.give(agent, *units, *units);
                self.misfits.clear();
                *units = 0;
            }
        }
    }
}
