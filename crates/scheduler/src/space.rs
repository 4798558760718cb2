//! Numbers of free units by agent, indexed so that a fit is found without visiting all agents.
//!
//! A [`Space`] knows agents only by their rank (their index in id order) and capacity only as a number of units: slots
//! in one run, auxiliary places in the other. Agents are in buckets of equal free units and score; entirely unused
//! agents are also in groups of equal size, for requests that span agents. Nothing is copied to try a change: it is
//! undone.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::gang::{Group, divide};
use crate::model::Fitting;

/// Rank of an agent in id order.
pub(crate) type AgentRank = u32;

/// What has to fit: the part of a request that determines where it can be placed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// Number of units; at least 1.
    pub(crate) units: u32,
    /// Whether all of them must be on one agent.
    pub(crate) single_agent: bool,
    /// Agents that must not be used, ascending.
    pub(crate) excluded: Vec<AgentRank>,
}

impl Shape {
    /// Whether the request may use this agent.
    pub(crate) fn allows(&self, agent: AgentRank) -> bool {
        self.excluded.binary_search(&agent).is_err()
    }

    /// Whether the request may span agents.
    pub(crate) fn spans(&self) -> bool {
        !self.single_agent && self.units > 1
    }
}

/// Units of one agent.
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
    /// All units of the agent, usable or not: the denominator of its free share.
    pub(crate) total: u32,
    /// A score that replaces the one computed from the free units.
    pub(crate) fixed_score: Option<Score>,
}

impl Cell {
    /// Units that can be taken now, if the agent is open.
    pub(crate) fn free(&self) -> u32 {
        self.capacity.saturating_sub(self.busy)
    }
}

/// How well an agent suits, as a fraction; greater is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    numerator: u32,
    denominator: u32,
}

impl Score {
    /// Score of an agent with `free` of `total` units.
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

/// Units taken on agents.
pub(crate) type Parts = Vec<(AgentRank, u32)>;

/// Units of all agents.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    fitting: Fitting,
    heterogeneous: bool,
    cells: Vec<Cell>,
    /// Open agents by free units, then score.
    buckets: BTreeMap<(u32, Score), BTreeSet<AgentRank>>,
    /// Open agents without work, by free units; agents without free units are left out.
    idle: BTreeMap<u32, BTreeSet<AgentRank>>,
}

impl Space {
    pub(crate) fn new(fitting: Fitting, heterogeneous: bool, cells: Vec<Cell>) -> Self {
        let mut space = Self {
            fitting,
            heterogeneous,
            cells,
            buckets: BTreeMap::new(),
            idle: BTreeMap::new(),
        };
        for agent in 0..u32::try_from(space.cells.len()).unwrap_or(u32::MAX) {
            space.enter(agent);
        }
        space
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub(crate) fn cell(&self, agent: AgentRank) -> &Cell {
        &self.cells[agent as usize]
    }

    pub(crate) fn heterogeneous(&self) -> bool {
        self.heterogeneous
    }

    /// Takes `units` that are free.
    pub(crate) fn take(&mut self, agent: AgentRank, units: u32) {
        self.change(agent, |cell| {
            cell.busy = cell.busy.saturating_add(units);
            cell.used = cell.used.saturating_add(units);
        });
    }

    /// Releases what work on this agent held: `held` units, of which `usable` can be given to new work.
    pub(crate) fn give(&mut self, agent: AgentRank, usable: u32, held: u32) {
        self.change(agent, |cell| {
            cell.busy = cell.busy.saturating_sub(usable);
            cell.used = cell.used.saturating_sub(held);
        });
    }

    /// Undoes [`Self::give`].
    pub(crate) fn undo_release(&mut self, agent: AgentRank, usable: u32, held: u32) {
        self.change(agent, |cell| {
            cell.busy = cell.busy.saturating_add(usable);
            cell.used = cell.used.saturating_add(held);
        });
    }

    /// Sets whether an agent takes new work.
    pub(crate) fn set_open(&mut self, agent: AgentRank, open: bool) {
        self.change(agent, |cell| cell.open = open);
    }

    /// Sets a score that replaces the one computed from the free units; `None` = none.
    pub(crate) fn set_fixed_score(&mut self, agent: AgentRank, score: Option<Score>) {
        self.change(agent, |cell| cell.fixed_score = score);
    }

    /// Where `shape` fits now: on one agent if any holds it all, else on whole agents if it may span them. `spread`
    /// varies which of several equal agents is taken.
    pub(crate) fn fit(&self, shape: &Shape, spread: u64) -> Option<Parts> {
        if let Some(agent) = self.fit_one(shape, spread) {
            return Some(vec![(agent, shape.units)]);
        }
        if shape.spans() {
            self.fit_gang(shape, spread, &BTreeSet::new())
        } else {
            None
        }
    }

    /// Where `shape` fits on the agents in `near`, where work stops for it: on one of them, or on whole agents that
    /// include
    /// all of them.
    pub(crate) fn fit_near(
        &self,
        shape: &Shape,
        spread: u64,
        near: &BTreeSet<AgentRank>,
    ) -> Option<Parts> {
        let one = near
            .iter()
            .copied()
            .filter(|agent| shape.allows(*agent))
            .filter(|agent| {
                let cell = self.cell(*agent);
                cell.open && cell.free() >= shape.units
            })
            .min_by(|a, b| self.score(*b).by_value(self.score(*a)));
        match one {
            Some(agent) => Some(vec![(agent, shape.units)]),
            None if shape.spans() => self.fit_gang(shape, spread, near).filter(|parts| {
                let taken = parts.iter().filter(|(agent, _)| near.contains(agent));
                taken.count() == near.len()
            }),
            None => None,
        }
    }

    fn fit_one(&self, shape: &Shape, spread: u64) -> Option<AgentRank> {
        let least = Score {
            numerator: 0,
            denominator: 0,
        };
        let mut best: Option<(Score, AgentRank)> = None;
        for ((_, score), agents) in self.buckets.range((shape.units, least)..) {
            if best.is_some_and(|(so_far, _)| score.by_value(so_far).is_le()) {
                continue;
            }
            if let Some(agent) =
                rotated(agents, spread, self.cells.len()).find(|a| shape.allows(*a))
            {
                best = Some((*score, agent));
            }
        }
        best.map(|(_, agent)| agent)
    }

    /// Unused agents that a shape may take, by size, largest first.
    pub(crate) fn idle_groups(&self, shape: &Shape) -> Vec<Group> {
        self.idle
            .iter()
            .rev()
            .map(|(size, agents)| {
                let barred = shape.excluded.iter().filter(|a| agents.contains(a)).count();
                let count = agents.len() - barred;
                (*size, u32::try_from(count).unwrap_or(u32::MAX))
            })
            .collect()
    }

    /// Whole unused agents that add up to `shape`, preferably those in `first`.
    fn fit_gang(&self, shape: &Shape, spread: u64, first: &BTreeSet<AgentRank>) -> Option<Parts> {
        let chosen = divide(&self.idle_groups(shape), shape.units, self.heterogeneous)?;
        let mut parts = Parts::new();
        for (size, count) in chosen {
            let agents = self.idle.get(&size)?;
            let mut ranked: Vec<AgentRank> = rotated(agents, spread, self.cells.len())
                .filter(|agent| shape.allows(*agent))
                .collect();
            // A stable sort, so that the rotation decides between equals.
            ranked.sort_by(|a, b| {
                let is_first = |agent| first.contains(agent);
                is_first(b)
                    .cmp(&is_first(a))
                    .then_with(|| self.score(*b).by_value(self.score(*a)))
            });
            parts.extend(ranked.into_iter().take(count as usize).map(|a| (a, size)));
        }
        Some(parts)
    }

    fn score(&self, agent: AgentRank) -> Score {
        let cell = self.cell(agent);
        cell.fixed_score
            .unwrap_or_else(|| Score::new(self.fitting, cell.free(), cell.total))
    }

    fn change(&mut self, agent: AgentRank, change: impl FnOnce(&mut Cell)) {
        self.leave(agent);
        change(&mut self.cells[agent as usize]);
        self.enter(agent);
    }

    fn enter(&mut self, agent: AgentRank) {
        let cell = &self.cells[agent as usize];
        let (open, free, unused) = (cell.open, cell.free(), cell.used == 0);
        if !open || free == 0 {
            return;
        }
        let key = (free, self.score(agent));
        self.buckets.entry(key).or_default().insert(agent);
        if unused {
            self.idle.entry(free).or_default().insert(agent);
        }
    }

    fn leave(&mut self, agent: AgentRank) {
        let cell = &self.cells[agent as usize];
        let free = cell.free();
        if !cell.open || free == 0 {
            return;
        }
        let key = (free, self.score(agent));
        if let Some(agents) = self.buckets.get_mut(&key) {
            agents.remove(&agent);
            if agents.is_empty() {
                self.buckets.remove(&key);
            }
        }
        if let Some(agents) = self.idle.get_mut(&free) {
            agents.remove(&agent);
            if agents.is_empty() {
                self.idle.remove(&free);
            }
        }
    }
}

/// All members, starting at a rank that `spread` chooses among `agents_in_pool` ranks.
fn rotated(
    agents: &BTreeSet<AgentRank>,
    spread: u64,
    agents_in_pool: usize,
) -> impl Iterator<Item = AgentRank> {
    let start = spread % (agents_in_pool.max(1) as u64);
    let start = u32::try_from(start).unwrap_or(0);
    agents.range(start..).chain(agents.range(..start)).copied()
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

    fn space(fitting: Fitting, agents: &[(u32, u32)]) -> Space {
        let cells = agents
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
            single_agent: true,
            excluded: Vec::new(),
        }
    }

    #[test]
    fn best_takes_the_fullest_and_worst_the_emptiest_share() {
        let agents = [(8, 0), (8, 6), (4, 1), (2, 0)];
        let best = space(Fitting::Best, &agents).fit(&one(2), 7);
        assert!(matches!(best.as_deref(), Some([(1 | 3, 2)])), "{best:?}");
        let best = space(Fitting::Best, &agents).fit(&one(3), 7);
        assert_eq!(best, Some(vec![(2, 3)]));
        let worst = space(Fitting::Worst, &agents).fit(&one(2), 7);
        assert!(matches!(worst.as_deref(), Some([(0 | 3, 2)])), "{worst:?}");
    }

    #[test]
    fn an_excluded_agent_is_never_taken() {
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
    fn free_units_on_a_closed_agent_are_not_offered() {
        let mut cells = space(Fitting::Best, &[(4, 0)]).cells;
        cells[0].open = false;
        assert_eq!(Space::new(Fitting::Best, true, cells).fit(&one(1), 0), None);
    }
}
