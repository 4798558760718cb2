//! Which places a request that has waited too long is closest to getting.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use crate::future::ShapeSet;
use crate::gang::{Group, divide};
use crate::prepared::PreparedPool;
use crate::space::{PartialFit, PlaceRank, Shape, Space};

/// Places that one request reserves: usually one, and there may be thousands of requests, so it is kept inline.
pub(crate) type ReservedPlaces = SmallVec<[PlaceRank; 4]>;

/// Reservations of requests that pass each other: of one priority class, or of a whole run.
pub(crate) struct Reserver {
    /// Units of each place's capacity that earlier reservations use.
    booked: Vec<u32>,
    /// Shapes for which no place is left; more bookings cannot change that.
    hopeless: ShapeSet,
    ranking: Ranking,
}

/// Places ranked by the units that a request could obtain there.
#[derive(Default)]
struct Ranking {
    /// How many requests had been placed when it was computed: each one leaves less to obtain.
    placed: Option<usize>,
    /// Open places, those with most obtainable units first; equal ones by rank.
    by_obtainable: Vec<PlaceRank>,
    /// By shape: how many places at the start of `by_obtainable` cannot hold it. Bookings only grow, so they never
    /// will.
    passed: BTreeMap<usize, usize>,
    /// Open places that are not booked, by size.
    by_size: BTreeMap<u32, UnbookedPlaces>,
}

/// Places of one size that can be taken whole: the units that are still in use there, and the place; fewest first.
#[derive(Default)]
struct UnbookedPlaces {
    /// Includes those that have been booked since.
    all: Vec<(u32, PlaceRank)>,
    /// How many at the start of `all` are booked; this number only grows.
    passed: usize,
    /// How many of them are not booked.
    left: usize,
}

impl UnbookedPlaces {
    fn iter<'s>(&'s self, booked: &'s [u32]) -> impl Iterator<Item = (u32, PlaceRank)> + 's {
        let rest = self.all[self.passed..].iter().copied();
        rest.filter(|(_, place)| booked[*place as usize] == 0)
    }
}

impl Reserver {
    pub(crate) fn new(prepared: &PreparedPool) -> Self {
        Self {
            booked: vec![0; prepared.places.len()],
            hopeless: ShapeSet::new(prepared.shapes.len()),
            ranking: Ranking::default(),
        }
    }

    /// Whether no place is left for a shape.
    pub(crate) fn is_hopeless(&self, number: usize) -> bool {
        self.hopeless.contains(number)
    }

    /// Chooses the places on which the fewest units are still in use, and books them. `obtainable` returns, by place,
    /// the units that are free, held back, or (under the priority rule) held by work the request could preempt; it may
    /// change only when the number of requests `placed` does.
    ///
    /// The choice is stable: work that starts on other places only makes those less attractive.
    pub(crate) fn closest(
        &mut self,
        space: &Space,
        placed: usize,
        obtainable: impl FnOnce() -> Vec<u32>,
        number: usize,
        shape: &Shape,
    ) -> Option<ReservedPlaces> {
        if self.ranking.placed != Some(placed) {
            self.ranking = Ranking::new(space, placed, &obtainable(), &self.booked);
        }
        let chosen = self
            .one_place(space, number, shape)
            .map(|place| smallvec![place])
            .or_else(|| {
                shape
                    .spans()
                    .then(|| self.several_places(space, shape))
                    .flatten()
            });
        match &chosen {
            Some(places) => {
                for place in places {
                    let units = space.cell(*place).capacity.min(shape.units);
                    let booked = &mut self.booked[*place as usize];
                    let first = *booked == 0;
                    *booked = booked.saturating_add(units);
                    if first && *booked > 0 {
                        self.ranking.is_booked(space, *place, &self.booked);
                    }
                }
            }
            None => {
                self.hopeless.insert(number);
            }
        }
        chosen
    }

    fn one_place(&mut self, space: &Space, number: usize, shape: &Shape) -> Option<PlaceRank> {
        let Ranking {
            by_obtainable,
            passed,
            ..
        } = &mut self.ranking;
        let passed = passed.entry(number).or_default();
        let ahead = by_obtainable[*passed..].iter().position(|place| {
            let left = space
                .cell(*place)
                .capacity
                .saturating_sub(self.booked[*place as usize]);
            left >= shape.units && shape.allows(*place)
        });
        *passed = ahead.map_or(by_obtainable.len(), |ahead| *passed + ahead);
        by_obtainable.get(*passed).copied()
    }

    /// Several places: whole ones, or those that the shape takes parts of.
    fn several_places(&self, space: &Space, shape: &Shape) -> Option<ReservedPlaces> {
        match (PartialFit { space, shape }).places() {
            Some(most) => self.parts_of_places(space, shape, most as usize),
            None => self.whole_places(space, shape),
        }
    }

    /// Places that hold the shape when nothing else runs: those with most units that are not booked, of equal ones those
    /// where most can be obtained.
    fn parts_of_places(&self, space: &Space, shape: &Shape, most: usize) -> Option<ReservedPlaces> {
        let unbooked = |place: PlaceRank| {
            let booked = self.booked[place as usize];
            space.cell(place).capacity.saturating_sub(booked)
        };
        let by_obtainable = self.ranking.by_obtainable.iter().copied();
        let mut places: Vec<PlaceRank> = by_obtainable.filter(|a| shape.allows(*a)).collect();
        places.sort_by_key(|place| Reverse(unbooked(*place)));
        places.truncate(most);
        let held: u64 = places.iter().map(|a| u64::from(unbooked(*a))).sum();
        (held >= u64::from(shape.units)).then(|| places.into_iter().collect())
    }

    fn whole_places(&self, space: &Space, shape: &Shape) -> Option<ReservedPlaces> {
        if shape.excluded.is_empty() {
            return whole(&self.ranking.by_size, &self.booked, space, shape);
        }
        let allowed = |places: &UnbookedPlaces| {
            let unbooked = places.iter(&self.booked);
            let all: Vec<_> = unbooked.filter(|(_, place)| shape.allows(*place)).collect();
            UnbookedPlaces {
                left: all.len(),
                passed: 0,
                all,
            }
        };
        let sizes = self.ranking.by_size.iter();
        let allowed = sizes
            .map(|(size, places)| (*size, allowed(places)))
            .collect();
        whole(&allowed, &self.booked, space, shape)
    }
}

impl Ranking {
    fn new(space: &Space, placed: usize, obtainable: &[u32], booked: &[u32]) -> Self {
        let open = || space.cells().iter().zip(0..).filter(|(cell, _)| cell.open);
        let obtainable_on = |place: PlaceRank| obtainable[place as usize];
        let mut by_obtainable: Vec<(Reverse<u32>, PlaceRank)> = open()
            .map(|(cell, place)| (Reverse(cell.capacity.min(obtainable_on(place))), place))
            .collect();
        by_obtainable.sort_unstable();
        let mut by_size: BTreeMap<u32, UnbookedPlaces> = BTreeMap::new();
        let unbooked = |place: PlaceRank| booked[place as usize] == 0;
        for (cell, place) in open().filter(|(cell, place)| cell.capacity > 0 && unbooked(*place)) {
            let missing = cell.capacity.saturating_sub(obtainable_on(place));
            by_size
                .entry(cell.capacity)
                .or_default()
                .all
                .push((missing, place));
        }
        for places in by_size.values_mut() {
            places.all.sort_unstable();
            places.left = places.all.len();
        }
        Self {
            placed: Some(placed),
            by_obtainable: by_obtainable.into_iter().map(|(_, place)| place).collect(),
            passed: BTreeMap::new(),
            by_size,
        }
    }

    /// Removes a place, which was just booked, from those that can be taken whole.
    fn is_booked(&mut self, space: &Space, place: PlaceRank, booked: &[u32]) {
        if let Some(places) = self.by_size.get_mut(&space.cell(place).capacity) {
            places.left = places.left.saturating_sub(1);
            let rest = places.all[places.passed..].iter();
            places.passed += rest
                .take_while(|(_, place)| booked[*place as usize] > 0)
                .count();
        }
    }
}

/// Whole places that add up to a shape: of equal sizes those with the fewest units in use.
fn whole(
    sizes: &BTreeMap<u32, UnbookedPlaces>,
    booked: &[u32],
    space: &Space,
    shape: &Shape,
) -> Option<ReservedPlaces> {
    let equal = sizes
        .iter()
        .filter(|(size, places)| {
            shape.units.is_multiple_of(**size) && (shape.units / **size) as usize <= places.left
        })
        .map(|(size, places)| {
            let chosen = places.iter(booked).take((shape.units / *size) as usize);
            let missing: u64 = chosen.map(|(missing, _)| u64::from(missing)).sum();
            (missing, Reverse(*size), places)
        })
        .min_by_key(|(missing, size, _)| (*missing, *size));
    let first = |places: &UnbookedPlaces, count: u32| -> ReservedPlaces {
        let unbooked = places.iter(booked).take(count as usize);
        unbooked.map(|(_, place)| place).collect()
    };
    if let Some((_, Reverse(size), places)) = equal {
        return Some(first(places, shape.units / size));
    }
    let groups: Vec<Group> = sizes
        .iter()
        .rev()
        .filter(|(_, places)| places.left > 0)
        .map(|(size, places)| (*size, u32::try_from(places.left).unwrap_or(u32::MAX)))
        .collect();
    let division = divide(&groups, shape.units, space.heterogeneous())?;
    let mut chosen = ReservedPlaces::new();
    for (size, count) in division {
        chosen.extend(first(sizes.get(&size)?, count));
    }
    Some(chosen)
}
