//! Which running allocations must stop so that a request fits.

use std::collections::BTreeMap;

use crate::gang::{Group, divide};
use crate::prepared::{Active, Part};
use crate::space::{AgentRank, Shape, Space};

/// Looks for victims among `candidates`, which come least important first, for a `shape` that does not fit `space`.
/// Answers with their numbers, least important first, or `None` if it does not fit even without all of them.
///
/// Candidates are removed one by one until the request fits. Then, most important first, each is given back if the
/// request still fits: what was removed on agents that do not matter goes on running.
pub(crate) fn search(
    space: &Space,
    shape: &Shape,
    running: &[Active],
    candidates: impl Iterator<Item = usize>,
) -> Option<Vec<usize>> {
    let mut trial = Trial::new(space, shape);
    let mut removed: Vec<usize> = Vec::new();
    for candidate in candidates {
        let parts = &running[candidate].parts;
        if !parts.iter().any(|part| trial.matters(part)) {
            continue;
        }
        removed.push(candidate);
        trial.change(parts, Change::Free);
        if trial.fits() {
            let mut kept = Vec::new();
            for victim in removed.into_iter().rev() {
                trial.change(&running[victim].parts, Change::Hold);
                if !trial.fits() {
                    trial.change(&running[victim].parts, Change::Free);
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

/// What becomes of the space without some work, with the two counts that answer whether a shape fits.
struct Trial<'a> {
    space: &'a Space,
    shape: &'a Shape,
    /// Agents where something was changed.
    changed: BTreeMap<AgentRank, Room>,
    /// Agents that hold the whole request; none without a change.
    roomy: u32,
    /// Unused agents by size; empty for a request that may not span agents.
    idle: BTreeMap<u32, u32>,
}

#[derive(Clone, Copy)]
struct Room {
    /// Below 0 where more is held than there may be: a limit that was lowered.
    free: i64,
    used: u32,
}

impl<'a> Trial<'a> {
    fn new(space: &'a Space, shape: &'a Shape) -> Self {
        let idle = if shape.spans() {
            space.idle_groups(shape).into_iter().collect()
        } else {
            BTreeMap::new()
        };
        Self {
            space,
            shape,
            changed: BTreeMap::new(),
            roomy: 0,
            idle,
        }
    }

    fn matters(&self, part: &Part) -> bool {
        self.space.cell(part.agent).open && self.shape.allows(part.agent)
    }

    fn change(&mut self, parts: &[Part], change: Change) {
        for part in parts {
            if !self.matters(part) {
                continue;
            }
            let cell = self.space.cell(part.agent);
            let before = *self.changed.entry(part.agent).or_insert(Room {
                free: i64::from(cell.capacity) - i64::from(cell.busy),
                used: cell.used,
            });
            let after = match change {
                Change::Free => Room {
                    free: before.free + i64::from(part.usable),
                    used: before.used.saturating_sub(part.held),
                },
                Change::Hold => Room {
                    free: before.free - i64::from(part.usable),
                    used: before.used.saturating_add(part.held),
                },
            };
            self.changed.insert(part.agent, after);
            self.count(before, false);
            self.count(after, true);
        }
    }

    /// Adds an agent to the counts, or takes it out of them.
    fn count(&mut self, room: Room, present: bool) {
        if room.free >= i64::from(self.shape.units) {
            self.roomy = if present {
                self.roomy + 1
            } else {
                self.roomy.saturating_sub(1)
            };
        }
        let size = u32::try_from(room.free).unwrap_or(0);
        if self.shape.spans() && room.used == 0 && size > 0 {
            let agents = self.idle.entry(size).or_default();
            *agents = if present {
                *agents + 1
            } else {
                agents.saturating_sub(1)
            };
        }
    }

    fn fits(&self) -> bool {
        if self.roomy > 0 {
            return true;
        }
        if !self.shape.spans() {
            return false;
        }
        let groups: Vec<Group> = self
            .idle
            .iter()
            .rev()
            .map(|(size, count)| (*size, *count))
            .collect();
        divide(&groups, self.shape.units, self.space.heterogeneous()).is_some()
    }
}
