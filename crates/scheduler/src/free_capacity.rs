//! Free capacity during one run: what is free, what stopping work will free and for which request, and what is held
//! back.

use std::collections::BTreeMap;

use det_ids::AllocationId;

use crate::future::{FutureCapacity, ShapeSet};
use crate::model::Progress;
use crate::prepared::{Part, PreparedPool};
use crate::space::{Parts, PlaceRank, Space, spread_of};

/// Free capacity of one run, in slots or in auxiliary units.
pub(crate) struct FreeCapacity<'a> {
    prepared: &'a PreparedPool,
    /// What is free now, less what is held back.
    pub(crate) free: Space,
    /// Shapes known not to fit, until capacity is added.
    misfits: ShapeSet,
    /// What will be free when stopping work has ended, less what is booked. Only where work is preempted.
    pub(crate) future: Option<FutureCapacity>,
    /// Running allocations that stop for a request that still waits, by request.
    pub(crate) victims_by_request: BTreeMap<usize, Vec<usize>>,
    /// Units held back by place.
    held_back: Vec<u32>,
}

/// Which running allocations stop, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct StoppingWork<'s> {
    /// By running allocation: whether it stops, by an earlier plan or this one.
    pub(crate) stops: &'s [bool],
    /// Those that this plan asked to stop, with the request that each stops for.
    pub(crate) asked: &'s BTreeMap<usize, usize>,
}

impl<'a> FreeCapacity<'a> {
    /// Free capacity that ignores what stopping work will free.
    pub(crate) fn of_now(prepared: &'a PreparedPool, free: Space) -> Self {
        Self {
            prepared,
            free,
            misfits: ShapeSet::new(prepared.shapes.len()),
            future: None,
            victims_by_request: BTreeMap::new(),
            held_back: vec![0; prepared.places.len()],
        }
    }

    /// Free capacity that also tracks what stopping work will free. `in_use` is by job, stopping work included.
    pub(crate) fn with_future(
        prepared: &'a PreparedPool,
        free: Space,
        in_use: Vec<u64>,
        stopping: StoppingWork<'_>,
        zero_slots: bool,
    ) -> Self {
        let mut future = FutureCapacity {
            space: free.clone(),
            misfits: ShapeSet::new(prepared.shapes.len()),
            in_use,
            stopping_on: vec![Vec::new(); prepared.places.len()],
        };
        let mut capacity = Self::of_now(prepared, free);
        let unowned = capacity.assign_stopping(stopping, zero_slots);
        for victims in capacity.victims_by_request.values() {
            future.note_stopping(prepared, victims);
        }
        future.note_stopping(prepared, &unowned);
        future.release(prepared, &unowned);
        capacity.future = Some(future);
        capacity
    }

    /// Assigns stopping work to the waiting requests that it stops for. Returns the rest, whose capacity any request
    /// may use.
    fn assign_stopping(&mut self, stopping: StoppingWork<'_>, zero_slots: bool) -> Vec<usize> {
        let prepared = self.prepared;
        let mut owners: BTreeMap<&AllocationId, Vec<usize>> = BTreeMap::new();
        let mut unowned = Vec::new();
        for (number, active) in prepared.running.iter().enumerate() {
            if !stopping.stops[number] || active.zero_slots() != zero_slots {
                continue;
            }
            match (stopping.asked.get(&number), &active.running.progress) {
                (Some(request), _) => self
                    .victims_by_request
                    .entry(*request)
                    .or_default()
                    .push(number),
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
                Some(request) => self
                    .victims_by_request
                    .entry(request)
                    .or_default()
                    .extend(victims),
                None => unowned.extend(victims),
            }
        }
        unowned
    }

    /// Where a request fits now. A shape that does not fit is not tried again until there is more free capacity.
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

    /// Takes the parts that a request fits. What was still being freed for it is now for any request.
    pub(crate) fn take(&mut self, request: usize, parts: &Parts) {
        let waiting = &self.prepared.requests[request];
        for &(place, units) in parts {
            self.free.take(place, units);
        }
        if let Some(future) = &mut self.future {
            for &(place, units) in parts {
                future.space.take(place, units);
            }
            future.in_use[waiting.job] += u64::from(waiting.slots);
        }
        self.release_victims(request);
    }

    /// A request cannot use what is being freed for it: from now on any request may.
    pub(crate) fn release_victims(&mut self, request: usize) {
        if let Some(victims) = self.victims_by_request.remove(&request)
            && let Some(future) = &mut self.future
        {
            future.release(self.prepared, &victims);
        }
    }

    /// Units that are free now, by place, and that a request needs in addition to those of its own stopping victims.
    pub(crate) fn claimed_free_units(&mut self, request: usize) -> Parts {
        let Some(victims) = self.victims_by_request.get(&request) else {
            return Parts::new();
        };
        let parts: Vec<Part> = victims
            .iter()
            .flat_map(|victim| self.prepared.running[*victim].parts.iter().copied())
            .collect();
        let mut freed: BTreeMap<PlaceRank, u32> = BTreeMap::new();
        for part in &parts {
            *freed.entry(part.place).or_default() += part.usable;
            self.free.give(part.place, part.usable, part.held);
        }
        let waiting = &self.prepared.requests[request];
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let near = freed.keys().copied().collect();
        let shape = &self.prepared.shapes[waiting.shape].shape;
        let fit = self.free.fit_near(shape, spread, &near);
        for part in &parts {
            self.free.undo_release(part.place, part.usable, part.held);
        }
        match fit {
            Some(parts) => parts
                .into_iter()
                .map(|(place, units)| {
                    let own = freed.get(&place).copied().unwrap_or(0);
                    (place, units.saturating_sub(own))
                })
                .collect(),
            // Other work took some of these units in between; what is left of them is still the best choice.
            None => freed.into_keys().map(|place| (place, u32::MAX)).collect(),
        }
    }

    /// Holds back up to `units` on a place, as far as they are free.
    pub(crate) fn hold(&mut self, place: PlaceRank, units: u32) {
        let cell = self.free.cell(place);
        let held = &mut self.held_back[place as usize];
        let more = units.saturating_sub(*held).min(cell.free());
        if more > 0 && cell.open {
            *held += more;
            self.free.take(place, more);
        }
    }

    /// Holds back `units` more on a place, or as many as are free there; returns how many.
    pub(crate) fn hold_more(&mut self, place: PlaceRank, units: u32) -> u32 {
        let cell = self.free.cell(place);
        if !cell.open {
            return 0;
        }
        let more = units.min(cell.free());
        if more > 0 {
            self.held_back[place as usize] += more;
            self.free.take(place, more);
        }
        more
    }

    /// Stops holding back `units` on a place.
    pub(crate) fn release_held(&mut self, place: PlaceRank, units: u32) {
        let held = &mut self.held_back[place as usize];
        let units = units.min(*held);
        if units > 0 {
            *held -= units;
            self.free.give(place, units, units);
            self.misfits.clear();
        }
    }

    /// Holds back all free units on a place above `units`.
    pub(crate) fn limit_free(&mut self, place: PlaceRank, units: u32) {
        let more = self.free.cell(place).free().saturating_sub(units);
        self.hold_more(place, more);
    }

    /// Units that are free on a place, held back or not.
    pub(crate) fn free_or_held(&self, place: PlaceRank) -> u32 {
        let held_back = self.held_back[place as usize];
        self.free.cell(place).free().saturating_add(held_back)
    }

    /// Stops holding back anything.
    pub(crate) fn release_all_held(&mut self) {
        for (units, place) in self.held_back.iter_mut().zip(0..) {
            if *units > 0 {
                self.free.give(place, *units, *units);
                self.misfits.clear();
                *units = 0;
            }
        }
    }
}
