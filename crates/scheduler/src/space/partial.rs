//! Requests that take parts of several places, because no whole places in service ever add up to them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::gang::{Group, even_parts, places_in_part};

use super::{Parts, PlaceRank, Score, Shape, Space, rotated, sort_by_preference};

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
        let mut sizes = self.space.sizes.clone();
        for place in self.shape.excluded.iter().map(|place| *place as usize) {
            if let Some(count) = sizes.get_mut(&self.space.cells[place].capacity) {
                *count = count.saturating_sub(u32::from(self.space.in_service[place]));
            }
        }
        sizes.retain(|_, count| *count > 0);
        let groups: Vec<Group> = sizes.into_iter().rev().collect();
        places_in_part(&groups, self.shape.units, true)
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
