//! Agents: joining, leaving, taking out of service.

use std::collections::BTreeSet;

use det_agent_proto::ContainerState;
use det_ids::{AllocationId, ContainerId, PlaceId};
use det_orchestrator::Event;

use super::{PATIENCE, Refused, Topic, Tx};
use crate::history::Service;
use crate::mutant::Mutant;
use crate::rows::{Agent, Container, Time};

/// A container as an agent reports it.
pub(crate) type Reported = (ContainerId, ContainerState);

impl Tx<'_> {
    /// An agent says hello with everything it holds.
    pub(crate) fn agent_joined(
        &mut self,
        id: &PlaceId,
        instance: u32,
        slots: u32,
        containers: &[Reported],
    ) -> Result<(), Refused> {
        let before = self.rows.agents.get(id).cloned();
        self.rows.version += 1;
        self.rows.agents.insert(
            id.clone(),
            Agent {
                id: id.clone(),
                instance,
                slots,
                enabled: before.as_ref().is_none_or(|b| b.enabled),
                draining: before.as_ref().is_some_and(|b| b.draining),
                disabled_slots: before
                    .as_ref()
                    .map(|b| b.disabled_slots.clone())
                    .unwrap_or_default(),
                disconnected_at: None,
            },
        );
        self.record("agent", id.to_string(), "connected", None);
        let observed = containers
            .iter()
            .map(|(id, state)| (id.clone(), state.clone().into()));
        self.advance([Event::PlaceReturned {
            place: id.clone(),
            is_new: before.is_some_and(|b| b.instance != instance),
            observed: observed.collect(),
        }])
    }

    /// The end of an agent's connection. A connection that has taken its place meanwhile counts more.
    pub(crate) fn agent_left(&mut self, id: &PlaceId) {
        if self.memory.connections.contains_key(id) {
            return;
        }
        let now = self.now;
        let Some(row) = self.rows.agent_mut(id) else {
            return;
        };
        if row.disconnected_at.is_some() {
            return;
        }
        row.disconnected_at = Some(now);
        self.record("agent", id.to_string(), "disconnected", None);
        self.wake(Topic::Deadlines);
        self.wake(Topic::Schedule);
    }

    /// Gives up an agent that has been away since `since`.
    pub(crate) fn give_up_agent(&mut self, id: &PlaceId, since: Time) -> Result<(), Refused> {
        let still = self
            .rows
            .agents
            .get(id)
            .is_some_and(|a| a.disconnected_at == Some(since));
        if !still {
            return Ok(());
        }
        self.advance([Event::PlaceLost {
            place: id.clone(),
            reason: "the place was away for too long".to_owned(),
        }])?;
        self.rows.version += 1;
        self.rows.agents.remove(id);
        self.record("agent", id.to_string(), "removed", None);
        self.wake(Topic::Schedule);
        Ok(())
    }

    /// Until when an absent agent is waited for; `None` = it is there.
    pub(crate) fn given_up_at(&self, agent: &Agent) -> Option<Time> {
        if self.is(Mutant::EndlessPatience) {
            return None;
        }
        agent.disconnected_at.map(|since| since + PATIENCE)
    }

    pub(crate) fn set_agent_service(
        &mut self,
        id: &PlaceId,
        service: Service,
    ) -> Result<(), Refused> {
        if !self.memory.connections.contains_key(id) {
            return Err(format!("agent {id} is not connected"));
        }
        let row = self
            .rows
            .agent_mut(id)
            .ok_or_else(|| format!("agent {id} not found"))?;
        (row.enabled, row.draining) = match service {
            Service::Enable => (true, false),
            Service::Drain => (false, true),
            Service::Disable => (false, false),
        };
        if service == Service::Disable {
            self.end_for_infrastructure(id, |_| true)?;
        }
        self.wake(Topic::Schedule);
        Ok(())
    }

    pub(crate) fn set_slot_service(
        &mut self,
        id: &PlaceId,
        slot: u32,
        enable: bool,
    ) -> Result<(), Refused> {
        if !self.memory.connections.contains_key(id) {
            return Err(format!("agent {id} is not connected"));
        }
        let row = self
            .rows
            .agent_mut(id)
            .filter(|row| slot < row.slots)
            .ok_or_else(|| format!("slot {id}/{slot} not found"))?;
        if enable {
            row.disabled_slots.remove(&slot);
        } else {
            row.disabled_slots.insert(slot);
            self.end_for_infrastructure(id, |c| c.slots.contains(&slot))?;
        }
        self.wake(Topic::Schedule);
        Ok(())
    }

    fn end_for_infrastructure(
        &mut self,
        agent_id: &PlaceId,
        concerned: impl Fn(&Container) -> bool,
    ) -> Result<(), Refused> {
        let allocations: BTreeSet<AllocationId> = self
            .rows
            .live_containers_of(agent_id)
            .into_iter()
            .filter(|c| concerned(c))
            .map(|c| c.row.allocation_id.clone())
            .collect();
        self.advance(allocations.into_iter().map(|id| Event::PlatformFailed {
            id,
            reason: "taken out of service".to_owned(),
        }))
    }
}
