//! Free capacity as it will be when stopping work has ended.

use std::collections::BTreeSet;

use crate::prepared::PreparedPool;
use crate::space::{Parts, PlaceRank, Space, spread_of};

/// A set of shapes. Clearing it takes constant time.
pub(crate) struct ShapeSet {
    since: Vec<u32>,
    epoch: u32,
}

impl ShapeSet {
    pub(crate) fn new(shapes: usize) -> Self {
        Self {
            since: vec![0; shapes],
            epoch: 1,
        }
    }

    pub(crate) fn contains(&self, shape: usize) -> bool {
        self.since[shape] == self.epoch
    }

    pub(crate) fn insert(&mut self, shape: usize) {
        self.since[shape] = self.epoch;
    }

    pub(crate) fn clear(&mut self) {
        self.epoch += 1;
    }
}

/// Capacity that is free now or will be when stopping work has ended.
pub(crate) struct FutureCapacity {
    pub(crate) space: Space,
    /// Shapes known not to fit, until capacity is added.
    pub(crate) misfits: ShapeSet,
    /// Slots by job, booked ones included.
    pub(crate) in_use: Vec<u64>,
    /// Stopping allocations by place, least important last.
    pub(crate) stopping_on: Vec<Vec<usize>>,
}

impl FutureCapacity {
    /// Adds what stopping allocations hold; they are given by their numbers.
    pub(crate) fn release(&mut self, prepared: &PreparedPool, stopping: &[usize]) {
        for part in stopping
            .iter()
            .flat_map(|number| &prepared.running[*number].parts)
        {
            self.space.give(part.place, part.usable, part.held);
            self.misfits.clear();
        }
    }

    pub(crate) fn note_stopping(&mut self, prepared: &PreparedPool, stopping: &[usize]) {
        for &number in stopping {
            for part in &prepared.running[number].parts {
                self.stopping_on[part.place as usize].push(number);
            }
        }
    }

    pub(crate) fn stopping_among(&self, parts: &Parts) -> Vec<usize> {
        let numbers: BTreeSet<usize> = parts
            .iter()
            .flat_map(|(place, _)| self.stopping_on[*place as usize].iter().copied())
            .collect();
        numbers.into_iter().collect()
    }

    /// Where a request fits for which `victims` stop: preferably on their places, else anywhere.
    pub(crate) fn fit_with(
        &mut self,
        prepared: &PreparedPool,
        request: usize,
        victims: &[usize],
    ) -> Option<Parts> {
        if victims.is_empty() {
            return self.fit(prepared, request);
        }
        let waiting = &prepared.requests[request];
        let near: BTreeSet<PlaceRank> = victims
            .iter()
            .flat_map(|victim| &prepared.running[*victim].parts)
            .map(|part| part.place)
            .collect();
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let shape = &prepared.shapes[waiting.shape].shape;
        self.space
            .fit_near(shape, spread, &near)
            .or_else(|| self.fit(prepared, request))
    }

    pub(crate) fn fit(&mut self, prepared: &PreparedPool, request: usize) -> Option<Parts> {
        let waiting = &prepared.requests[request];
        if self.misfits.contains(waiting.shape) {
            return None;
        }
        let spread = spread_of(waiting.request.allocation_id.as_str());
        let fit = self
            .space
            .fit(&prepared.shapes[waiting.shape].shape, spread);
        if fit.is_none() {
            self.misfits.insert(waiting.shape);
        }
        fit
    }
}
