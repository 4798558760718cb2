//! Requests that take parts of several places, because no whole places in service ever add up to them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::gang::{Group, even_parts, places_in_part};

use super::{Parts, PlaceRank, Score, Shape, Space, rotated, sort_by_preference};

/// Answers of [`PartialFit::places`] that are kept at most.
const MOST_ANSWERS: usize = 4_096;

/// Over how many places sizes are divided, as far as it was asked for. Sums over thousands of places of different sizes take
/// long, and each pass asks for every request, though what they ask differs in few sizes: places in service stay the same
/// while a [`Space`] lasts.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownParts(Arc<Mutex<BTreeMap<Question, Option<u32>>>>);

/// What the answer depends on.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    units: u32,
    /// How many places of which size the shape may not use, of those in service.
    excluded: BTreeMap<u32, u32>,
}

impl KnownParts {
    fn of(&self, question: Question, answer: impl FnOnce(&Question) -> Option<u32>) -> Option<u32> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = known.get(&question) {
            return *answer;
        }
        let answer = answer(&question);
        if known.len() >= MOST_ANSWERS {
            known.clear();
        }
        known.insert(question, answer);
        answer
    }
}

/// A shape that may take parts of places.
pub(crate) struct PartialFit<'a> {
    pub(crate) space: &'a Space,
    pub(crate) shape: &'a Shape,
}

impl PartialFit<'_> {
    /// Over how many places the shape is divided if it takes parts of them; `None` = it takes whole ones, or one.
    pub(crate) fn places(&self) -> Option<u32> {
        if !self.space.heterogeneous || !self.shape.spans() {
            return None;
        }
        let places = self.shape.excluded.iter().map(|place| *place as usize);
        let mut excluded: BTreeMap<u32, u32> = BTreeMap::new();
        for place in places.filter(|place| self.space.in_service[*place]) {
            let capacity = self.space.cells[place].capacity;
            *excluded.entry(capacity).or_default() += 1;
        }
        let question = Question {
            units: self.shape.units,
            excluded,
        };
        let sizes = &self.space.sizes;
        self.space.parts.of(question, |question| {
            let groups = sizes.iter().rev().map(|(size, count)| {
                let excluded = question.excluded.get(size).copied().unwrap_or(0);
                (*size, count.saturating_sub(excluded))
            });
            let groups: Vec<Group> = groups.filter(|(_, count)| *count > 0).collect();
            places_in_part(&groups, question.units, true)
        })
    }

    /// How many of the open places that the shape may use have so many free units.
    pub(crate) fn free_groups(&self) -> BTreeMap<u32, u32> {
        let mut groups = BTreeMap::new();
        let excluded = &self.shape.excluded;
        for ((free, _), places) in &self.space.buckets {
            let barred = excluded.iter().filter(|a| places.contains(a)).count();
            let count = u32::try_from(places.len() - barred).unwrap_or(u32::MAX);
            *groups.entry(*free).or_default() += count;
        }
        groups
    }

    /// Parts of `most` places that add up to the shape, preferably of those in `first`: equal ones if places have so many
    /// free units, else parts of the places with most free units, as even as these allow.
    pub(super) fn fit(&self, spread: u64, first: &BTreeSet<PlaceRank>, most: u32) -> Option<Parts> {
        let units = self.shape.units;
        let count = most as usize;
        if most > 0 && units.is_multiple_of(most) {
            let each = units / most;
            let mut places = self.by_free(spread, each);
            if places.len() >= count {
                sort_by_preference(self.space, &mut places, first);
                places.truncate(count);
                return Some(places.into_iter().map(|place| (place, each)).collect());
            }
        }
        let mut places = self.by_free(spread, 1);
        // Stable, so that of the others those with most free units come first.
        places.sort_by_key(|place| !first.contains(place));
        places.truncate(count);
        let free: Vec<u32> = places.iter().map(|a| self.space.cell(*a).free()).collect();
        let mut parts: Parts = places
            .into_iter()
            .zip(even_parts(&free, units)?)
            .filter(|(_, units)| *units > 0)
            .collect();
        parts.sort_by_key(|(_, units)| Reverse(*units));
        Some(parts)
    }

    /// Open places that the shape may use with at least so many free units, those with most first.
    fn by_free(&self, spread: u64, least: u32) -> Vec<PlaceRank> {
        let lowest = Score {
            numerator: 0,
            denominator: 0,
        };
        self.space
            .buckets
            .range((least, lowest)..)
            .rev()
            .flat_map(|(_, places)| rotated(places, spread, self.space.cells.len()))
            .filter(|place| self.shape.allows(*place))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Fitting;
    use crate::space::Cell;

    fn place(capacity: u32) -> Cell {
        Cell {
            open: true,
            capacity,
            busy: 0,
            used: 0,
            total: capacity,
            fixed_score: None,
        }
    }

    fn shape(units: u32, excluded: &[PlaceRank]) -> Shape {
        Shape {
            units,
            single_place: false,
            excluded: excluded.to_vec(),
        }
    }

    #[test]
    fn what_differs_in_no_size_is_summed_up_once() {
        // 3,000 places of different even sizes: no odd number is a sum of them.
        let cells = (0..3_000).map(|number| place(2 * number + 2)).collect();
        let mut space = Space::new(Fitting::Best, true, cells);
        for pass in 0..100 {
            for units in [6_001, 6_003, 7_001] {
                let shape = shape(units, &[]);
                let partial = PartialFit {
                    space: &space,
                    shape: &shape,
                };
                assert_eq!(partial.places(), Some(2));
            }
            // What runs there does not matter.
            space.take(pass, 1);
        }
        let known = |space: &Space| {
            space
                .parts
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len()
        };
        assert_eq!(known(&space), 3);
        let without = shape(6_001, &[2_999, 2_998]);
        let partial = PartialFit {
            space: &space,
            shape: &without,
        };
        assert_eq!(partial.places(), Some(2));
        assert_eq!(known(&space), 4);
    }

    #[test]
    fn the_answers_that_are_kept_are_bounded() {
        let space = Space::new(Fitting::Best, true, vec![place(4), place(6), place(8)]);
        for units in 0..10_000 {
            let shape = shape(units, &[]);
            let partial = PartialFit {
                space: &space,
                shape: &shape,
            };
            let expected = matches!(units, 9 | 11 | 13 | 15 | 16 | 17);
            assert_eq!(partial.places().is_some(), expected, "{units}");
            let known = space.parts.0.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(known.len() <= MOST_ANSWERS);
        }
    }
}
