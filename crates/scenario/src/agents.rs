//! The agents of the simulated pool, and those that left it for a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::description::{AgentDescription, Service};

/// One agent with its slots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) slots: Vec<Service>,
    pub(crate) aux: u32,
    pub(crate) service: Service,
    /// When its connection was lost; `None` = it is connected.
    pub(crate) lost_at: Option<i64>,
}

impl Agent {
    fn of(description: &AgentDescription) -> Self {
        Self {
            slots: vec![Service::Enabled; description.slots as usize],
            aux: description.aux,
            service: description.service,
            lost_at: None,
        }
    }
}

/// All agents, by id.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Agents {
    /// Those in the pool, also while their connection is lost.
    pub(crate) in_pool: BTreeMap<String, Agent>,
    /// Those that were given up, for their return.
    gone: BTreeMap<String, Agent>,
}

impl Agents {
    /// The agents at the start of a scenario.
    pub(crate) fn of(descriptions: &[AgentDescription]) -> Self {
        let agents = descriptions.iter();
        Self {
            in_pool: agents
                .map(|agent| (agent.id.clone(), Agent::of(agent)))
                .collect(),
            gone: BTreeMap::new(),
        }
    }

    /// An agent of the pool; errs with a sentence for users when there is none of that id.
    pub(crate) fn known(&self, id: &str) -> Result<&Agent, String> {
        self.in_pool
            .get(id)
            .ok_or_else(|| format!("there is no agent \"{id}\" in the pool"))
    }

    /// Adds a new agent; errs when the pool has one of that id.
    pub(crate) fn join(&mut self, agent: &AgentDescription) -> Result<(), String> {
        let id = &agent.id;
        if self.in_pool.contains_key(id) {
            return Err(format!("agent \"{id}\" is in the pool already"));
        }
        self.gone.remove(id);
        self.in_pool.insert(id.clone(), Agent::of(agent));
        Ok(())
    }

    /// Connects an agent again, also one that was given up.
    pub(crate) fn bring_back(&mut self, id: &str) -> Result<(), String> {
        if let Some(agent) = self.gone.remove(id) {
            self.in_pool.insert(id.to_owned(), agent);
        }
        self.known(id)?;
        if let Some(agent) = self.in_pool.get_mut(id) {
            agent.lost_at = None;
        }
        Ok(())
    }

    /// Removes an agent until it comes back.
    pub(crate) fn give_up(&mut self, id: &str) {
        if let Some(mut agent) = self.in_pool.remove(id) {
            agent.lost_at = None;
            self.gone.insert(id.to_owned(), agent);
        }
    }

    /// Whether some agent or slot takes no new work.
    pub(crate) fn some_out_of_service(&self) -> bool {
        self.in_pool.values().any(|agent| {
            agent.service != Service::Enabled
                || agent.lost_at.is_some()
                || agent.slots.iter().any(|slot| *slot != Service::Enabled)
        })
    }
}
