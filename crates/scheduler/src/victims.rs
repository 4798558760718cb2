//! Which running allocations must stop so that a request fits.

use std::collections::BTreeMap;

use crate::gang::{Group, divide, holds_on};
use crate::prepared::{ActiveAllocation, Part};
use crate::space::{PartialFit, PlaceRank, Shape, Space};

/// Looks for victims among `candidates`, which come least important first, for a `shape` that does not fit `space`.
/// Returns their numbers, least important first, or `None` if it does not fit even without all of them.
///
/// Candidates are removed one by one until the request fits. Then, most important first, each is given back if the
/// request still fits: what was removed on places that do not matter goes on running.
pub(crate) fn search(
    space: &Space,
    shape: &Shape,
    running: &[ActiveAllocation],
    candidates: impl Iterator<Item = usize>,
) -> Option<Vec<usize>> {
    let mut delta = SpaceDelta::new(space, shape);
    let mut removed: Vec<usize> = Vec::new();
    for candidate in candidates {
        let parts = &running[candidate].parts;
        if !parts.iter().any(|part| delta.matters(part)) {
            continue;
        }
        removed.push(candidate);
        delta.change(parts, Change::Free);
        if delta.fits() {
            let mut kept = Vec::new();
            for victim in removed.into_iter().rev() {
                delta.change(&running[victim].parts, Change::Hold);
                if !delta.fits() {
                    delta.change(&running[victim].parts, Change::Free);
                    kept.push(victim);
                }
            }
            kept.reverse();
            return Some(kept);
        }
    }
    None
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Free,
    Hold,
}

/// The space as it would be without some of its work, with the two counts that decide whether a shape fits.
struct SpaceDelta<'a> {
    space: &'a Space,
    shape: &'a Shape,
    /// Free and used units of the places where something was changed.
    changed: BTreeMap<PlaceRank, PlaceUse>,
    /// Number of changed places that hold the whole request.
    places_that_fit: u32,
    /// Over how many places the request is divided if it takes parts of them.
    places_in_part: Option<u32>,
    /// Places by size: all by their free units for a request that takes parts of them, else the unused ones. Empty for a
    /// request that may not span places.
    groups: BTreeMap<u32, u32>,
}

/// How many units of one place are free and in use, while victims are chosen.
#[derive(Clone, Copy)]
struct PlaceUse {
    /// Below 0 where more is held than there may be: a limit that was lowered.
    free: i64,
    used: u32,
}

impl<'a> SpaceDelta<'a> {
    fn new(space: &'a Space, shape: &'a Shape) -> Self {
        let partial = PartialFit { space, shape };
        let places_in_part = partial.places();
        let groups = if places_in_part.is_some() {
            partial.free_groups()
        } else if shape.spans() {
            space.idle_groups(shape).into_iter().collect()
        } else {
            BTreeMap::new()
        };
        Self {
            space,
            shape,
            changed: BTreeMap::new(),
            places_that_fit: 0,
            places_in_part,
            groups,
        }
    }

    fn matters(&self, part: &Part) -> bool {
        self.space.cell(part.place).open && self.shape.allows(part.place)
    }

    fn change(&mut self, parts: &[Part], change: Change) {
        for part in parts {
            if !self.matters(part) {
                continue;
            }
            let cell = self.space.cell(part.place);
            let before = *self.changed.entry(part.place).or_insert(PlaceUse {
                free: i64::from(cell.capacity) - i64::from(cell.busy),
                used: cell.used,
            });
            let after = match change {
                Change::Free => PlaceUse {
                    free: before.free + i64::from(part.usable),
                    used: before.used.saturating_sub(part.held),
                },
                Change::Hold => PlaceUse {
                    free: before.free - i64::from(part.usable),
                    used: before.used.saturating_add(part.held),
                },
            };
            self.changed.insert(part.place, after);
            self.count(before, false);
            self.count(after, true);
        }
    }

    /// Adds a place to the counts, or takes it out of them.
    fn count(&mut self, place: PlaceUse, present: bool) {
        if place.free >= i64::from(self.shape.units) {
            self.places_that_fit = if present {
                self.places_that_fit + 1
            } else {
                self.places_that_fit.saturating_sub(1)
            };
        }
        let size = u32::try_from(place.free).unwrap_or(0);
        let counts = place.used == 0 || self.places_in_part.is_some();
        if self.shape.spans() && counts && size > 0 {
            let places = self.groups.entry(size).or_default();
            *places = if present {
                *places + 1
            } else {
                places.saturating_sub(1)
            };
        }
    }

    fn fits(&self) -> bool {
        if self.places_that_fit > 0 {
            return true;
        }
        if !self.shape.spans() {
            return false;
        }
        let groups = self.groups.iter().rev();
        let groups = groups.map(|(size, count)| (*size, *count));
        if let Some(most) = self.places_in_part {
            return holds_on(groups, self.shape.units, most);
        }
        let groups: Vec<Group> = groups.collect();
        divide(&groups, self.shape.units, self.space.heterogeneous()).is_some()
    }
}
