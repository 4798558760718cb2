//! Which agents a request that has waited too long is closest to getting.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use det_ids::Micros;

use crate::future::ShapeSet;
use crate::gang::{Group, divide};
use crate::model::PoolSettings;
use crate::prepared::Prepared;
use crate::space::{AgentRank, Shape, Space};

/// Requests made at or before this time have waited so long that they reserve; `None` = nobody ever does.
pub(crate) fn reserve_before(settings: &PoolSettings, now: Micros) -> Option<i64> {
    settings.reserve_after.map(|patience| {
        let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        now.0.saturating_sub(patience)
    })
}

/// Reservations of requests that pass each other: of one priority class, or of a whole run.
pub(crate) struct Reserver {
    /// Units of each agent's capacity that earlier reservations count on.
    booked: Vec<u32>,
    /// Shapes for which no agent is left; later bookings only leave less.
    hopeless: ShapeSet,
    ranking: Ranking,
}

/// Agents as one look at the room within reach ranks them.
#[derive(Default)]
struct Ranking {
    /// How much had been placed by then: more leaves less within reach.
    placed: Option<usize>,
    /// Open agents, those with most room within reach first, of equals the first.
    by_room: Vec<AgentRank>,
    /// By shape: how many of the first of these cannot hold it. What is booked only grows, so they never will.
    passed: BTreeMap<usize, usize>,
    /// Room within reach, by agent.
    reach: Vec<u32>,
    /// Open agents that are not booked by size: what each still has to get back, and which agent; least first.
    by_size: BTreeMap<u32, Vec<(u32, AgentRank)>>,
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

    /// Chooses the agents on which the request has least to wait for, and books them. `within_reach` gives, by agent, the
    /// room that is free, held back, or (under the priority rule) held by work the request could preempt; it is another one
    /// only after another number of requests was `placed`.
    ///
    /// The choice is stable: work that starts beside the chosen agents only makes the others less attractive.
    pub(crate) fn closest(
        &mut self,
        space: &Space,
        placed: usize,
        within_reach: impl FnOnce() -> Vec<u32>,
        number: usize,
        shape: &Shape,
    ) -> Option<Vec<AgentRank>> {
        if self.ranking.placed != Some(placed) {
            self.ranking = Ranking::new(space, placed, within_reach(), &self.booked);
        }
        let chosen = self
            .one_agent(space, number, shape)
            .map(|agent| vec![agent])
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
                    if *booked == 0 {
                        self.ranking.is_booked(space, *agent);
                    }
                    *booked = booked.saturating_add(units);
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
            by_room, passed, ..
        } = &mut self.ranking;
        let passed = passed.entry(number).or_default();
        let ahead = by_room[*passed..].iter().position(|agent| {
            let left = space
                .cell(*agent)
                .capacity
                .saturating_sub(self.booked[*agent as usize]);
            left >= shape.units && shape.allows(*agent)
        });
        *passed = ahead.map_or(by_room.len(), |ahead| *passed + ahead);
        by_room.get(*passed).copied()
    }

    fn whole_agents(&self, space: &Space, shape: &Shape) -> Option<Vec<AgentRank>> {
        if shape.excluded.is_empty() {
            return whole(&self.ranking.by_size, space, shape);
        }
        let mut allowed = self.ranking.by_size.clone();
        for agents in allowed.values_mut() {
            agents.retain(|(_, agent)| shape.allows(*agent));
        }
        whole(&allowed, space, shape)
    }
}

impl Ranking {
    fn new(space: &Space, placed: usize, within_reach: Vec<u32>, booked: &[u32]) -> Self {
        let open = || space.cells().iter().zip(0..).filter(|(cell, _)| cell.open);
        let mut by_room: Vec<AgentRank> = open().map(|(_, agent)| agent).collect();
        let reach = |agent: AgentRank| within_reach[agent as usize];
        by_room.sort_by_key(|agent| {
            (
                Reverse(space.cell(*agent).capacity.min(reach(*agent))),
                *agent,
            )
        });
        let mut by_size: BTreeMap<u32, Vec<(u32, AgentRank)>> = BTreeMap::new();
        let unbooked = |agent: AgentRank| booked[agent as usize] == 0;
        for (cell, agent) in open().filter(|(cell, agent)| cell.capacity > 0 && unbooked(*agent)) {
            let missing = cell.capacity.saturating_sub(reach(agent));
            by_size
                .entry(cell.capacity)
                .or_default()
                .push((missing, agent));
        }
        for agents in by_size.values_mut() {
            agents.sort_unstable();
        }
        Self {
            placed: Some(placed),
            by_room,
            passed: BTreeMap::new(),
            reach: within_reach,
            by_size,
        }
    }

    /// An agent cannot be taken whole any more.
    fn is_booked(&mut self, space: &Space, agent: AgentRank) {
        let size = space.cell(agent).capacity;
        let missing = size.saturating_sub(self.reach[agent as usize]);
        if let Some(agents) = self.by_size.get_mut(&size)
            && let Ok(place) = agents.binary_search(&(missing, agent))
        {
            agents.remove(place);
        }
    }
}

/// Whole agents that make up a shape: of equal ones those with least to get back.
fn whole(
    sizes: &BTreeMap<u32, Vec<(u32, AgentRank)>>,
    space: &Space,
    shape: &Shape,
) -> Option<Vec<AgentRank>> {
    let equal = sizes
        .iter()
        .filter(|(size, agents)| {
            shape.units.is_multiple_of(**size) && (shape.units / **size) as usize <= agents.len()
        })
        .map(|(size, agents)| {
            let chosen = &agents[..(shape.units / *size) as usize];
            let missing: u64 = chosen.iter().map(|(missing, _)| u64::from(*missing)).sum();
            (missing, Reverse(*size), chosen)
        })
        .min_by_key(|(missing, size, _)| (*missing, *size));
    if let Some((_, _, chosen)) = equal {
        return Some(chosen.iter().map(|(_, agent)| *agent).collect());
    }
    let groups: Vec<Group> = sizes
        .iter()
        .rev()
        .filter(|(_, agents)| !agents.is_empty())
        .map(|(size, agents)| (*size, u32::try_from(agents.len()).unwrap_or(u32::MAX)))
        .collect();
    let division = divide(&groups, shape.units, space.heterogeneous())?;
    let mut chosen = Vec::new();
    for (size, count) in division {
        let agents = sizes.get(&size)?;
        chosen.extend(agents.iter().take(count as usize).map(|(_, agent)| *agent));
    }
    Some(chosen)
}
