//! Numbers of free units by place, indexed so that a fit is found without visiting all places.
//!
//! A [`Space`] knows places only by their rank (their index in id order) and capacity only as a number of units: slots
//! in one run, auxiliary units in the other. Places are in buckets of equal free units and score; entirely unused
//! places are also in groups of equal size, for requests that take whole places. Nothing is copied to try a change: it is
//! undone.

mod partial;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::gang::{Group, divide};
use crate::model::Fitting;

pub(crate) use partial::PartialFit;

/// Rank of a place in id order.
pub(crate) type PlaceRank = u32;

/// What has to fit: the part of a request that determines where it can be placed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// Number of units; at least 1.
    pub(crate) units: u32,
    /// Whether all of them must be on one place.
    pub(crate) single_place: bool,
    /// Places that must not be used, ascending.
    pub(crate) excluded: Vec<PlaceRank>,
}

impl Shape {
    /// Whether the request may use this place.
    pub(crate) fn allows(&self, place: PlaceRank) -> bool {
        self.excluded.binary_search(&place).is_err()
    }

    /// Whether the request may span places.
    pub(crate) fn spans(&self) -> bool {
        !self.single_place && self.units > 1
    }
}

/// The units of one place, slots or auxiliary ones: how many there are and how many are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Whether new work may be placed.
    pub(crate) open: bool,
    /// Units that can be given to work.
    pub(crate) capacity: u32,
    /// Units of the capacity that are taken.
    pub(crate) busy: u32,
    /// Units that work holds, those outside the capacity included (a draining slot in use).
    pub(crate) used: u32,
    /// All units of the place, usable or not: the denominator of its free share.
    pub(crate) total: u32,
    /// A score that replaces the one computed from the free units.
    pub(crate) fixed_score: Option<Score>,
}

impl Cell {
    /// Units that can be taken now, if the place is open.
    pub(crate) fn free(&self) -> u32 {
        self.capacity.saturating_sub(self.busy)
    }
}

/// How well a place suits, as a fraction; greater is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    numerator: u32,
    denominator: u32,
}

impl Score {
    /// Score of a place with `free` of `total` units.
    pub(crate) fn new(fitting: Fitting, free: u32, total: u32) -> Self {
        match fitting {
            Fitting::Best => Self {
                numerator: 1,
                denominator: free.saturating_add(1),
            },
            Fitting::Worst => Self {
                numerator: free,
                denominator: total.max(1),
            },
        }
    }

    /// Compares by value; the derived order only arranges buckets.
    fn by_value(self, other: Self) -> Ordering {
        let left = u64::from(self.numerator) * u64::from(other.denominator);
        let right = u64::from(other.numerator) * u64::from(self.denominator);
        left.cmp(&right)
    }
}

/// Units taken on places.
pub(crate) type Parts = Vec<(PlaceRank, u32)>;

/// Units of all places.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    fitting: Fitting,
    heterogeneous: bool,
    cells: Vec<Cell>,
    /// By place: whether it is in service. Rules close places for a while, which does not change this.
    in_service: Vec<bool>,
    /// Places in service by capacity; those without any are left out.
    sizes: BTreeMap<u32, u32>,
    /// What is known of dividing requests over parts of these.
    parts: partial::KnownParts,
    /// Open places by free units, then score.
    buckets: BTreeMap<(u32, Score), BTreeSet<PlaceRank>>,
    /// Open places without work, by free units; places without free units are left out.
    idle: BTreeMap<u32, BTreeSet<PlaceRank>>,
}

impl Space {
    /// The places that are open here are those in service.
    pub(crate) fn new(fitting: Fitting, heterogeneous: bool, cells: Vec<Cell>) -> Self {
        let mut sizes = BTreeMap::new();
        for cell in cells.iter().filter(|cell| cell.open && cell.capacity > 0) {
            *sizes.entry(cell.capacity).or_default() += 1;
        }
        let mut space = Self {
            fitting,
            heterogeneous,
            in_service: cells.iter().map(|cell| cell.open).collect(),
            cells,
            sizes,
            parts: partial::KnownParts::default(),
            buckets: BTreeMap::new(),
            idle: BTreeMap::new(),
        };
        for place in 0..u32::try_from(space.cells.len()).unwrap_or(u32::MAX) {
            space.enter(place);
        }
        space
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub(crate) fn cell(&self, place: PlaceRank) -> &Cell {
        &self.cells[place as usize]
    }

    /// The score of a place for zero-slot requests, where its slots, which these are, decide it.
    pub(crate) fn aux_score(&self, place: PlaceRank) -> Option<Score> {
        let slots = self.cell(place);
        (slots.used > 0).then(|| Score::new(self.fitting, slots.free(), slots.total))
    }

    pub(crate) fn heterogeneous(&self) -> bool {
        self.heterogeneous
    }

    /// Takes `units` that are free.
    pub(crate) fn take(&mut self, place: PlaceRank, units: u32) {
        self.change(place, |cell| {
            cell.busy = cell.busy.saturating_add(units);
            cell.used = cell.used.saturating_add(units);
        });
    }

    /// Releases what work on this place held: `held` units, of which `usable` can be given to new work.
    pub(crate) fn give(&mut self, place: PlaceRank, usable: u32, held: u32) {
        self.change(place, |cell| {
            cell.busy = cell.busy.saturating_sub(usable);
            cell.used = cell.used.saturating_sub(held);
        });
    }

    /// Undoes [`Self::give`] with the same units.
    pub(crate) fn undo_release(&mut self, place: PlaceRank, usable: u32, held: u32) {
        self.change(place, |cell| {
            cell.busy = cell.busy.saturating_add(usable);
            cell.used = cell.used.saturating_add(held);
        });
    }

    /// Sets whether a place takes new work.
    pub(crate) fn set_open(&mut self, place: PlaceRank, open: bool) {
        self.change(place, |cell| cell.open = open);
    }

    /// Sets a score that replaces the one computed from the free units; `None` = none.
    pub(crate) fn set_fixed_score(&mut self, place: PlaceRank, score: Option<Score>) {
        self.change(place, |cell| cell.fixed_score = score);
    }

    /// Where `shape` fits now: on one place if any holds it all, else on several if it may span them: whole ones, or
    /// parts of as few as [`PartialFit::places`] gives. `spread` varies which of several equal places is taken.
    pub(crate) fn fit(&self, shape: &Shape, spread: u64) -> Option<Parts> {
        if let Some(place) = self.fit_one(shape, spread) {
            return Some(vec![(place, shape.units)]);
        }
        if shape.spans() {
            self.fit_gang(shape, spread)
        } else {
            None
        }
    }

    /// Where `shape` fits on the places in `near`, where work stops for it: on one of them, or on several places; if
    /// those are whole ones, they include all of these.
    pub(crate) fn fit_near(
        &self,
        shape: &Shape,
        spread: u64,
        near: &BTreeSet<PlaceRank>,
    ) -> Option<Parts> {
        let one = near
            .iter()
            .copied()
            .filter(|place| shape.allows(*place))
            .filter(|place| {
                let cell = self.cell(*place);
                cell.open && cell.free() >= shape.units
            })
            .min_by(|a, b| self.score(*b).by_value(self.score(*a)));
        match one {
            Some(place) => Some(vec![(place, shape.units)]),
            None if !shape.spans() => None,
            None => {
                let partial = PartialFit { space: self, shape };
                match partial.places() {
                    // Of parts other places may have more than those that were freed.
                    Some(most) => {
                        let anywhere = || partial.fit(spread, &BTreeSet::new(), most);
                        partial.fit(spread, near, most).or_else(anywhere)
                    }
                    // Whole places are all of these or none.
                    None => self.fit_whole(shape, spread, near).filter(|parts| {
                        let taken = parts.iter().filter(|(place, _)| near.contains(place));
                        taken.count() == near.len()
                    }),
                }
            }
        }
    }

    fn fit_one(&self, shape: &Shape, spread: u64) -> Option<PlaceRank> {
        let least = Score {
            numerator: 0,
            denominator: 0,
        };
        let mut best: Option<(Score, PlaceRank)> = None;
        for ((_, score), places) in self.buckets.range((shape.units, least)..) {
            if best.is_some_and(|(so_far, _)| score.by_value(so_far).is_le()) {
                continue;
            }
            if let Some(place) =
                rotated(places, spread, self.cells.len()).find(|a| shape.allows(*a))
            {
                best = Some((*score, place));
            }
        }
        best.map(|(_, place)| place)
    }

    /// Unused places that a shape may take, by size, largest first.
    pub(crate) fn idle_groups(&self, shape: &Shape) -> Vec<Group> {
        self.idle
            .iter()
            .rev()
            .map(|(size, places)| {
                let barred = shape.excluded.iter().filter(|a| places.contains(a)).count();
                let count = places.len() - barred;
                (*size, u32::try_from(count).unwrap_or(u32::MAX))
            })
            .collect()
    }

    /// Several places that hold `shape` together: whole ones, or parts. Preferably those in `first`.
    fn fit_gang(&self, shape: &Shape, spread: u64) -> Option<Parts> {
        let (partial, anywhere) = (PartialFit { space: self, shape }, BTreeSet::new());
        match partial.places() {
            Some(most) => partial.fit(spread, &anywhere, most),
            None => self.fit_whole(shape, spread, &anywhere),
        }
    }

    /// Whole unused places that add up to `shape`, preferably those in `first`.
    fn fit_whole(&self, shape: &Shape, spread: u64, first: &BTreeSet<PlaceRank>) -> Option<Parts> {
        let chosen = divide(&self.idle_groups(shape), shape.units, self.heterogeneous)?;
        let mut parts = Parts::new();
        for (size, count) in chosen {
            let places = self.idle.get(&size)?;
            let mut ranked: Vec<PlaceRank> = rotated(places, spread, self.cells.len())
                .filter(|place| shape.allows(*place))
                .collect();
            sort_by_preference(self, &mut ranked, first);
            parts.extend(ranked.into_iter().take(count as usize).map(|a| (a, size)));
        }
        Some(parts)
    }

    fn score(&self, place: PlaceRank) -> Score {
        let cell = self.cell(place);
        cell.fixed_score
            .unwrap_or_else(|| Score::new(self.fitting, cell.free(), cell.total))
    }

    fn change(&mut self, place: PlaceRank, change: impl FnOnce(&mut Cell)) {
        self.leave(place);
        change(&mut self.cells[place as usize]);
        self.enter(place);
    }

    fn enter(&mut self, place: PlaceRank) {
        let cell = &self.cells[place as usize];
        let (open, free, unused) = (cell.open, cell.free(), cell.used == 0);
        if !open || free == 0 {
            return;
        }
        let key = (free, self.score(place));
        self.buckets.entry(key).or_default().insert(place);
        if unused {
            self.idle.entry(free).or_default().insert(place);
        }
    }

    fn leave(&mut self, place: PlaceRank) {
        let cell = &self.cells[place as usize];
        let free = cell.free();
        if !cell.open || free == 0 {
            return;
        }
        let key = (free, self.score(place));
        if let Some(places) = self.buckets.get_mut(&key) {
            places.remove(&place);
            if places.is_empty() {
                self.buckets.remove(&key);
            }
        }
        if let Some(places) = self.idle.get_mut(&free) {
            places.remove(&place);
            if places.is_empty() {
                self.idle.remove(&free);
            }
        }
    }
}

/// Those in `first` come first, then those that suit best. Stable, so that the rotation decides between equals.
fn sort_by_preference(space: &Space, places: &mut [PlaceRank], first: &BTreeSet<PlaceRank>) {
    places.sort_by(|a, b| {
        let is_first = |place| first.contains(place);
        is_first(b)
            .cmp(&is_first(a))
            .then_with(|| space.score(*b).by_value(space.score(*a)))
    });
}

/// All members, starting at a rank that `spread` chooses among `places_in_pool` ranks.
fn rotated(
    places: &BTreeSet<PlaceRank>,
    spread: u64,
    places_in_pool: usize,
) -> impl Iterator<Item = PlaceRank> {
    let start = spread % (places_in_pool.max(1) as u64);
    let start = u32::try_from(start).unwrap_or(0);
    places.range(start..).chain(places.range(..start)).copied()
}

/// A number that differs from one allocation to the next and is the same in every run (FNV-1a, 64 bits).
pub(crate) fn spread_of(id: &str) -> u64 {
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(fitting: Fitting, places: &[(u32, u32)]) -> Space {
        let cells = places
            .iter()
            .map(|&(capacity, busy)| Cell {
                open: true,
                capacity,
                busy,
                used: busy,
                total: capacity,
                fixed_score: None,
            })
            .collect();
        Space::new(fitting, false, cells)
    }

    fn one(units: u32) -> Shape {
        Shape {
            units,
            single_place: true,
            excluded: Vec::new(),
        }
    }

    #[test]
    fn best_takes_the_fullest_and_worst_the_emptiest_share() {
        let places = [(8, 0), (8, 6), (4, 1), (2, 0)];
        let best = space(Fitting::Best, &places).fit(&one(2), 7);
        assert!(matches!(best.as_deref(), Some([(1 | 3, 2)])), "{best:?}");
        let best = space(Fitting::Best, &places).fit(&one(3), 7);
        assert_eq!(best, Some(vec![(2, 3)]));
        let worst = space(Fitting::Worst, &places).fit(&one(2), 7);
        assert!(matches!(worst.as_deref(), Some([(0 | 3, 2)])), "{worst:?}");
    }

    #[test]
    fn an_excluded_place_is_never_taken() {
        let shape = Shape {
            excluded: vec![0],
            ..one(2)
        };
        for spread in 0..10 {
            let fit = space(Fitting::Best, &[(2, 0), (8, 0)]).fit(&shape, spread);
            assert_eq!(fit, Some(vec![(1, 2)]));
        }
    }

    #[test]
    fn what_is_taken_and_given_back_leaves_no_trace() {
        let before = space(Fitting::Best, &[(4, 0), (4, 1)]);
        let mut after = before.clone();
        after.take(0, 3);
        after.take(1, 1);
        after.give(0, 3, 3);
        after.give(1, 1, 1);
        assert_eq!(after.cells, before.cells);
        assert_eq!(after.buckets, before.buckets);
        assert_eq!(after.idle, before.idle);
    }

    #[test]
    fn free_units_on_a_closed_place_are_not_offered() {
        let mut cells = space(Fitting::Best, &[(4, 0)]).cells;
        cells[0].open = false;
        assert_eq!(Space::new(Fitting::Best, true, cells).fit(&one(1), 0), None);
    }
}
