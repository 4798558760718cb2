//! Which agents a request that has waited too long is closest to getting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use det_ids::Micros;

use crate::gang::{Group, divide};
use crate::model::PoolSettings;
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
    hopeless: BTreeSet<usize>,
}

impl Reserver {
    pub(crate) fn new(agents: usize) -> Self {
        Self {
            booked: vec![0; agents],
            hopeless: BTreeSet::new(),
        }
    }

    /// Whether no agent is left for a shape.
    pub(crate) fn is_hopeless(&self, number: usize) -> bool {
        self.hopeless.contains(&number)
    }

    /// Chooses the agents on which the request has least to wait for, and books them. `within_reach` is, by agent, the
    /// room that is free, held back, or (under the priority rule) held by work the request could preempt.
    ///
    /// The choice is stable: work that starts beside the chosen agents only makes the others less attractive.
    pub(crate) fn closest(
        &mut self,
        space: &Space,
        within_reach: &[u32],
        number: usize,
        shape: &Shape,
    ) -> Option<Vec<AgentRank>> {
        let chosen = self
            .one_agent(space, within_reach, shape)
            .map(|agent| vec![agent])
            .or_else(|| {
                shape
                    .spans()
                    .then(|| self.whole_agents(space, within_reach, shape))
                    .flatten()
            });
        match &chosen {
            Some(agents) => {
                for agent in agents {
                    let units = space.cell(*agent).capacity.min(shape.units);
                    let booked = &mut self.booked[*agent as usize];
                    *booked = booked.saturating_add(units);
                }
            }
            None => {
                self.hopeless.insert(number);
            }
        }
        chosen
    }

    fn one_agent(&self, space: &Space, within_reach: &[u32], shape: &Shape) -> Option<AgentRank> {
        eligible(space, shape)
            .filter(|(agent, capacity)| {
                capacity.saturating_sub(self.booked[*agent as usize]) >= shape.units
            })
            .max_by_key(|(agent, capacity)| {
                (
                    (*capacity).min(within_reach[*agent as usize]),
                    Reverse(*agent),
                )
            })
            .map(|(agent, _)| agent)
    }

    fn whole_agents(
        &self,
        space: &Space,
        within_reach: &[u32],
        shape: &Shape,
    ) -> Option<Vec<AgentRank>> {
        // By size: what each agent still has to get back, and which agent; least first.
        let mut sizes: BTreeMap<u32, Vec<(u32, AgentRank)>> = BTreeMap::new();
        for (agent, capacity) in eligible(space, shape) {
            if self.booked[agent as usize] == 0 && capacity > 0 {
                let missing = capacity.saturating_sub(within_reach[agent as usize]);
                sizes.entry(capacity).or_default().push((missing, agent));
            }
        }
        for agents in sizes.values_mut() {
            agents.sort_unstable();
        }
        let equal = sizes
            .iter()
            .filter(|(size, agents)| {
                shape.units.is_multiple_of(**size)
                    && (shape.units / **size) as usize <= agents.len()
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
}

/// Agents the shape may use, with the room they have when empty.
fn eligible<'a>(space: &'a Space, shape: &'a Shape) -> impl Iterator<Item = (AgentRank, u32)> + 'a {
    space
        .cells()
        .iter()
        .zip(0..)
        .filter(|(cell, agent)| cell.open && shape.allows(*agent))
        .map(|(cell, agent)| (agent, cell.capacity))
}
