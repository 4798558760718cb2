//! Which agents a request that has waited too long is closest to getting.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use det_ids::Micros;
use smallvec::{SmallVec, smallvec};

use crate::future::ShapeSet;
use crate::gang::{Group, divide};
use crate::model::PoolSettings;
use crate::prepared::Prepared;
use crate::space::{AgentRank, Shape, Space};

/// Requests made at or before this time have waited so long that they reserve; `None` = no request ever does.
pub(crate) fn reserve_before(settings: &PoolSettings, now: Micros) -> Option<i64> {
    settings.reserve_after.map(|patience| {
        let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        now.0.saturating_sub(patience)
    })
}

/// Agents that one request reserves: usually one, and there may be thousands of requests, so it is kept inline.
pub(crate) type ReservedAgents = SmallVec<[AgentRank; 4]>;

/// Reservations of requests that pass each other: of one priority class, or of a whole run.
pub(crate) struct Reserver {
    /// Units of each agent's capacity that earlier reservations use.
    booked: Vec<u32>,
    /// Shapes for which no agent is left; more bookings cannot change that.
    hopeless: ShapeSet,
    ranking: Ranking,
}

/// Agents ranked by the units that a request could obtain there.
#[derive(Default)]
struct Ranking {
    /// How many requests had been placed when it was computed: each one leaves less to obtain.
    placed: Option<usize>,
    /// Open agents, those with most obtainable units first; equal ones by rank.
    by_obtainable: Vec<AgentRank>,
    /// By shape: how many agents at the start of `by_obtainable` cannot hold it. Bookings only grow, so they never
    /// will.
    passed: BTreeMap<usize, usize>,
    /// Open agents that are not booked, by size.
    by_size: BTreeMap<u32, UnbookedAgents>,
}

/// Agents of one size that can be taken whole: the units that are still in use there, and the agent; fewest first.
#[derive(Default)]
struct UnbookedAgents {
    /// Includes those that have been booked since.
    all: Vec<(u32, AgentRank)>,
    /// How many at the start of `all` are booked; this number only grows.
    passed: usize,
    /// How many of them are not booked.
    left: usize,
}

impl UnbookedAgents {
    fn iter<'s>(&'s self, booked: &'s [u32]) -> impl Iterator<Item = (u32, AgentRank)> + 's {
        let rest = self.all[self.passed..].iter().copied();
        rest.filter(|(_, agent)| booked[*agent as usize] == 0)
    }
}

impl Reserver {
    pub(crate) fn new(prepared: &Prepared) -> Self {
        Self {
            booked: vec![0; prepared.agents.len()],
            hopeless: ShapeSet::new(prepared.shapes.len()),
            ranking: Ranking::default(),
        }
    }

    /// Whether no agent is left for a shape.
    pub(crate) fn is_hopeless(&self, number: usize) -> bool {
        self.hopeless.contains(number)
    }

    /// Chooses the agents on which the fewest units are still in use, and books them. `obtainable` returns, by agent,
    /// the units that are free, held back, or (under the priority rule) held by work the request could preempt; it may
    /// change only when the number of requests `placed` does.
    ///
    /// The choice is stable: work that starts on other agents only makes those less attractive.
    pub(crate) fn closest(
        &mut self,
        space: &Space,
        placed: usize,
        obtainable: impl FnOnce() -> Vec<u32>,
        number: usize,
        shape: &Shape,
    ) -> Option<ReservedAgents> {
        if self.ranking.placed != Some(placed) {
            self.ranking = Ranking::new(space, placed, &obtainable(), &self.booked);
        }
        let chosen = self
            .one_agent(space, number, shape)
            .map(|agent| smallvec![agent])
            .or_else(|| {
                shape
                    .spans()
                    .then(|| self.whole_agents(space, shape))
                    .flatten()
            });
        match &chosen {
            Some(agents) => {
                for agent in agents {
                    let units = space.cell(*agent).capacity.min(shape.units);
                    let booked = &mut self.booked[*agent as usize];
                    let first = *booked == 0;
                    *booked = booked.saturating_add(units);
                    if first && *booked > 0 {
                        self.ranking.is_booked(space, *agent, &self.booked);
                    }
                }
            }
            None => {
                self.hopeless.insert(number);
            }
        }
        chosen
    }

    fn one_agent(&mut self, space: &Space, number: usize, shape: &Shape) -> Option<AgentRank> {
        let Ranking {
            by_obtainable,
            passed,
            ..
        } = &mut self.ranking;
        let passed = passed.entry(number).or_default();
        let ahead = by_obtainable[*passed..].iter().position(|agent| {
            let left = space
                .cell(*agent)
                .capacity
                .saturating_sub(self.booked[*agent as usize]);
            left >= shape.units && shape.allows(*agent)
        });
        *passed = ahead.map_or(by_obtainable.len(), |ahead| *passed + ahead);
        by_obtainable.get(*passed).copied()
    }

    fn whole_agents(&self, space: &Space, shape: &Shape) -> Option<ReservedAgents> {
        if shape.excluded.is_empty() {
            return whole(&self.ranking.by_size, &self.booked, space, shape);
        }
        let allowed = |agents: &UnbookedAgents| {
            let unbooked = agents.iter(&self.booked);
            let all: Vec<_> = unbooked.filter(|(_, agent)| shape.allows(*agent)).collect();
            UnbookedAgents {
                left: all.len(),
                passed: 0,
                all,
            }
        };
        let sizes = self.ranking.by_size.iter();
        let allowed = sizes
            .map(|(size, agents)| (*size, allowed(agents)))
            .collect();
        whole(&allowed, &self.booked, space, shape)
    }
}

impl Ranking {
    fn new(space: &Space, placed: usize, obtainable: &[u32], booked: &[u32]) -> Self {
        let open = || space.cells().iter().zip(0..).filter(|(cell, _)| cell.open);
        let obtainable_on = |agent: AgentRank| obtainable[agent as usize];
        let mut by_obtainable: Vec<(Reverse<u32>, AgentRank)> = open()
            .map(|(cell, agent)| (Reverse(cell.capacity.min(obtainable_on(agent))), agent))
            .collect();
        by_obtainable.sort_unstable();
        let mut by_size: BTreeMap<u32, UnbookedAgents> = BTreeMap::new();
        let unbooked = |agent: AgentRank| booked[agent as usize] == 0;
        for (cell, agent) in open().filter(|(cell, agent)| cell.capacity > 0 && unbooked(*agent)) {
            let missing = cell.capacity.saturating_sub(obtainable_on(agent));
            by_size
                .entry(cell.capacity)
                .or_default()
                .all
                .push((missing, agent));
        }
        for agents in by_size.values_mut() {
            agents.all.sort_unstable();
            agents.left = agents.all.len();
        }
        Self {
            placed: Some(placed),
            by_obtainable: by_obtainable.into_iter().map(|(_, agent)| agent).collect(),
            passed: BTreeMap::new(),
            by_size,
        }
    }

    /// Removes an agent, which was just booked, from those that can be taken whole.
    fn is_booked(&mut self, space: &Space, agent: AgentRank, booked: &[u32]) {
        if let Some(agents) = self.by_size.get_mut(&space.cell(agent).capacity) {
            agents.left = agents.left.saturating_sub(1);
            let rest = agents.all[agents.passed..].iter();
            agents.passed += rest
                .take_while(|(_, agent)| booked[*agent as usize] > 0)
                .count();
        }
    }
}

/// Whole agents that add up to a shape: of equal sizes those with the fewest units in use.
fn whole(
    sizes: &BTreeMap<u32, UnbookedAgents>,
    booked: &[u32],
    space: &Space,
    shape: &Shape,
) -> Option<ReservedAgents> {
    let equal = sizes
        .iter()
        .filter(|(size, agents)| {
            shape.units.is_multiple_of(**size) && (shape.units / **size) as usize <= agents.left
        })
        .map(|(size, agents)| {
            let chosen = agents.iter(booked).take((shape.units / *size) as usize);
            let missing: u64 = chosen.map(|(missing, _)| u64::from(missing)).sum();
            (missing, Reverse(*size), agents)
        })
        .min_by_key(|(missing, size, _)| (*missing, *size));
    let first = |agents: &UnbookedAgents, count: u32| -> ReservedAgents {
        let unbooked = agents.iter(booked).take(count as usize);
        unbooked.map(|(_, agent)| agent).collect()
    };
    if let Some((_, Reverse(size), agents)) = equal {
        return Some(first(agents, shape.units / size));
    }
    let groups: Vec<Group> = sizes
        .iter()
        .rev()
        .filter(|(_, agents)| agents.left > 0)
        .map(|(size, agents)| (*size, u32::try_from(agents.left).unwrap_or(u32::MAX)))
        .collect();
    let division = divide(&groups, shape.units, space.heterogeneous())?;
    let mut chosen = ReservedAgents::new();
    for (size, count) in division {
        chosen.extend(first(sizes.get(&size)?, count));
    }
    Some(chosen)
}
