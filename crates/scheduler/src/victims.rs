//! Which running allocations must stop so that a request fits.

use std::collections::BTreeMap;

use crate::gang::{Group, divide};
use crate::order::{Active, Part};
use crate::space::{Shape, Space};

/// Looks for victims among `candidates`, which come least important first. Answers with their numbers, least important
/// first, or `None` if `shape` does not fit even without all of them.
///
/// Candidates are removed one by one until the request fits. Then, most important first, each is given back if the
/// request still fits: what was removed on agents that do not matter goes on running.
pub(crate) fn search(
    space: &Space,
    shape: &Shape,
    running: &[Active<'_>],
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

/// Room of the agents that a shape may use, with the two counts that answer whether it fits.
struct Trial<'a> {
    space: &'a Space,
    shape: &'a Shape,
    /// Free room and units in use, by rank; room of agents that are out of question stays 0.
    agents: Vec<Room>,
    /// Agents that hold the whole request.
    roomy: u32,
    /// Unused agents by size; empty for a request that may not span agents.
    idle: BTreeMap<u32, u32>,
}

#[derive(Clone, Copy, Default)]
struct Room {
    eligible: bool,
    free: u32,
    used: u32,
}

impl<'a> Trial<'a> {
    fn new(space: &'a Space, shape: &'a Shape) -> Self {
        let agents = space
            .cells()
            .iter()
            .zip(0..)
            .map(|(cell, rank)| {
                if cell.open && shape.allows(rank) {
                    Room {
                        eligible: true,
                        free: cell.free(),
                        used: cell.used,
                    }
                } else {
                    Room::default()
                }
            })
            .collect();
        let mut trial = Self {
            space,
            shape,
            agents,
            roomy: 0,
            idle: BTreeMap::new(),
        };
        for rank in 0..trial.agents.len() {
            trial.count(rank, true);
        }
        trial
    }

    fn matters(&self, part: &Part) -> bool {
        self.agents[part.agent as usize].eligible
    }

    fn change(&mut self, parts: &[Part], change: Change) {
        for part in parts
            .iter()
            .filter(|part| self.matters(part))
            .copied()
            .collect::<Vec<_>>()
        {
            let rank = part.agent as usize;
            self.count(rank, false);
            let room = &mut self.agents[rank];
            match change {
                Change::Free => {
                    room.free = room.free.saturating_add(part.usable);
                    room.used = room.used.saturating_sub(part.held);
                }
                Change::Hold => {
                    room.free = room.free.saturating_sub(part.usable);
                    room.used = room.used.saturating_add(part.held);
                }
            }
            self.count(rank, true);
        }
    }

    /// Adds an agent to the counts, or takes it out of them.
    fn count(&mut self, rank: usize, present: bool) {
        let room = self.agents[rank];
        if !room.eligible {
            return;
        }
        if room.free >= self.shape.units {
            self.roomy = if present {
                self.roomy + 1
            } else {
                self.roomy - 1
            };
        }
        if self.shape.spans() && room.used == 0 && room.free > 0 {
            let agents = self.idle.entry(room.free).or_default();
            *agents = if present { *agents + 1 } else { *agents - 1 };
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
