//! Mirrors `app/agents.rs`, `app/containers.rs` and `rm_agents/connection.rs`.

use std::collections::BTreeSet;

use det_agent_proto::ContainerState;
use det_lifecycle::allocation::{AllocationEvent, AllocationState};
use det_lifecycle::container::{Desired, Observed};
use det_scheduler::{HandOver, Placement, Preemption};
use det_taskspec::ContainerExit;

use super::{PATIENCE, Refused, Topic, Tx};
use crate::history::Service;
use crate::mutant::Mutant;
use crate::rows::{Agent, Container, Time};

/// A container as an agent reports it.
pub(crate) type Reported = (String, ContainerState);

fn lost(message: &str) -> ContainerExit {
    ContainerExit::Lost {
        message: message.to_owned(),
    }
}

impl Tx<'_> {
    /// An agent says hello with everything it holds.
    pub(crate) fn agent_joined(
        &mut self,
        id: &str,
        instance: u32,
        slots: u32,
        containers: &[Reported],
    ) -> Result<(), Refused> {
        let before = self.rows.agents.get(id).cloned();
        self.rows.version += 1;
        self.rows.agents.insert(
            id.to_owned(),
            Agent {
                id: id.to_owned(),
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
        self.record("agent", id, "connected", None);
        if before.is_some_and(|b| b.instance != instance) {
            self.lose_containers(id, "the agent came back without its tasks")?;
        }
        for (container, state) in containers {
            self.apply_container_report(id, container, state.clone())?;
        }
        let held: BTreeSet<&str> = containers.iter().map(|(id, _)| id.as_str()).collect();
        let missing: Vec<String> = self
            .rows
            .live_containers_of(id)
            .into_iter()
            .filter(|c| c.observed.is_some() && !held.contains(c.id.as_str()))
            .map(|c| c.id.clone())
            .collect();
        for container in missing {
            self.container_ended(&container, lost("the agent does not know it any more"))?;
        }
        self.wake(Topic::Schedule);
        Ok(())
    }

    /// The end of an agent's connection. A connection that has taken its place meanwhile counts more.
    pub(crate) fn agent_left(&mut self, id: &str) {
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
        self.record("agent", id, "disconnected", None);
        self.wake(Topic::Deadlines);
        self.wake(Topic::Schedule);
    }

    pub(crate) fn lose_containers(&mut self, agent_id: &str, why: &str) -> Result<(), Refused> {
        let live: Vec<String> = self
            .rows
            .live_containers_of(agent_id)
            .into_iter()
            .map(|c| c.id.clone())
            .collect();
        for container in live {
            self.container_ended(&container, lost(why))?;
        }
        Ok(())
    }

    /// Gives up an agent that has been away since `since`.
    pub(crate) fn give_up_agent(&mut self, id: &str, since: Time) -> Result<(), Refused> {
        let still = self
            .rows
            .agents
            .get(id)
            .is_some_and(|a| a.disconnected_at == Some(since));
        if !still {
            return Ok(());
        }
        self.lose_containers(id, "the agent was away for too long")?;
        self.rows.version += 1;
        self.rows.agents.remove(id);
        self.record("agent", id, "removed", None);
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

    pub(crate) fn set_agent_service(&mut self, id: &str, service: Service) -> Result<(), Refused> {
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
        id: &str,
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
        agent_id: &str,
        concerned: impl Fn(&Container) -> bool,
    ) -> Result<(), Refused> {
        let allocations: BTreeSet<String> = self
            .rows
            .live_containers_of(agent_id)
            .into_iter()
            .filter(|c| concerned(c))
            .map(|c| c.allocation_id.clone())
            .collect();
        for allocation in allocations {
            let event = AllocationEvent::Infrastructure("taken out of service".to_owned());
            self.allocation_event(&allocation, event)?;
        }
        Ok(())
    }

    pub(crate) fn place_allocation(&mut self, placement: &Placement) -> Result<(), Refused> {
        let id = placement.allocation_id.as_str();
        let Some(row) = self.rows.allocations.get(id) else {
            return Ok(());
        };
        if row.placed_at.is_some() || row.ended_at.is_some() {
            return Ok(());
        }
        for (agent, slots) in &placement.parts {
            // The agent changed between the plan and now: the change has woken the scheduler for another pass.
            let takes_work = self.rows.agents.get(agent.as_str()).is_some_and(|a| {
                a.disconnected_at.is_none()
                    && a.enabled
                    && slots.iter().all(|s| !a.disabled_slots.contains(&s.0))
            });
            if !takes_work {
                return Ok(());
            }
        }
        for (member, (agent, slots)) in placement.parts.iter().enumerate() {
            self.rows.last_container += 1;
            let container = Container {
                id: format!("c{}", self.rows.last_container),
                allocation_id: id.to_owned(),
                agent_id: agent.0.clone(),
                member,
                slots: slots.iter().map(|s| s.0).collect(),
                desired: Desired::Run,
                observed: None,
                joined: false,
                ended_at: None,
            };
            self.rows.insert_container(container);
            self.wake_agent(agent.as_str());
        }
        let now = self.now;
        if let Some(row) = self.rows.allocation_mut(id) {
            row.placed_at = Some(now);
        }
        self.record("allocation", id, "placed", Some("ASSIGNED"));
        self.allocation_event(id, AllocationEvent::Place)
    }

    pub(crate) fn preempt_for_scheduler(&mut self, preemption: &Preemption) -> Result<(), Refused> {
        let id = preemption.allocation_id.as_str();
        let Some(row) = self
            .rows
            .allocation_mut(id)
            .filter(|row| row.ended_at.is_none())
        else {
            return Ok(());
        };
        row.preempted_for = preemption.for_allocation.as_ref().map(|a| a.0.clone());
        self.allocation_event(id, AllocationEvent::Preempt)
    }

    pub(crate) fn hand_over(&mut self, hand_over: &HandOver) {
        if let Some(row) = self
            .rows
            .allocation_mut(hand_over.allocation_id.as_str())
            .filter(|row| row.ended_at.is_none())
        {
            row.preempted_for = Some(hand_over.for_allocation.0.clone());
        }
    }

    pub(crate) fn note_waiting(&mut self, id: &str, reason: &str) {
        if let Some(row) = self
            .rows
            .allocation_mut(id)
            .filter(|row| row.placed_at.is_none() && row.ended_at.is_none())
        {
            row.wait_reason = Some(reason.to_owned());
        }
    }

    pub(crate) fn apply_container_report(
        &mut self,
        agent_id: &str,
        container: &str,
        state: ContainerState,
    ) -> Result<(), Refused> {
        let moves_back = self.is(Mutant::MovesBack);
        let Some(row) = self.rows.containers.get(container) else {
            return Ok(());
        };
        if row.ended_at.is_some() || row.agent_id != agent_id {
            return Ok(());
        }
        let state = Observed::from(state);
        if let Observed::Terminated { exit } = state {
            return self.container_ended(container, exit);
        }
        if row
            .observed
            .as_ref()
            .is_some_and(|known| *known == state || (state.is_before(known) && !moves_back))
        {
            return Ok(());
        }
        let allocation = row.allocation_id.clone();
        if let Some(row) = self.rows.container_mut(container) {
            row.observed = Some(state);
        }
        self.allocation_event(&allocation, AllocationEvent::MembersChanged)
    }

    fn container_ended(&mut self, container: &str, exit: ContainerExit) -> Result<(), Refused> {
        let now = self.now;
        let Some(row) = self.rows.container_mut(container) else {
            return Ok(());
        };
        row.observed = Some(Observed::Terminated { exit });
        row.ended_at = Some(now);
        let (agent, allocation) = (row.agent_id.clone(), row.allocation_id.clone());
        self.rows.live.containers.remove(container);
        self.wake_agent(&agent);
        self.wake(Topic::Schedule);
        self.allocation_event(&allocation, AllocationEvent::MembersChanged)
    }

    pub(crate) fn container_never_started(&mut self, container: &str) -> Result<(), Refused> {
        let Some(row) = self.rows.containers.get(container) else {
            return Ok(());
        };
        if row.ended_at.is_some() || row.desired == Desired::Run {
            return Ok(());
        }
        self.container_ended(container, ContainerExit::Killed)
    }

    /// Ends an allocation that did not make room in time.
    pub(crate) fn end_overdue(&mut self, id: &str) -> Result<(), Refused> {
        let now = self.now;
        let Some(row) = self.rows.allocation_mut(id).filter(|row| {
            row.ended_at.is_none() && row.preempt_deadline.is_some_and(|due| due <= now)
        }) else {
            return Ok(());
        };
        row.preempt_deadline = None;
        let event = match row.state {
            AllocationState::Preempting | AllocationState::Saving => {
                AllocationEvent::PreemptTimedOut
            }
            _ => AllocationEvent::Kill,
        };
        self.allocation_event(id, event)
    }
}
