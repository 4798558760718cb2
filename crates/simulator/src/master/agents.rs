//! Agents: joining, and taking out of service.

use det_agent_proto::ContainerState;
use det_ids::{ContainerId, InstanceId, PlaceId, SlotId};
use det_lifecycle::record::ActorName;
use det_orchestrator::{Cause, Event, Place};
use det_scheduler::Service;

use super::{RefusalText, Tx};
use crate::rows::Agent;

/// A container as an agent reports it.
pub(crate) type ReportedContainer = (ContainerId, ContainerState);

impl Tx<'_> {
    /// An agent sends its greeting with everything that it holds.
    pub(crate) fn agent_joined(
        &mut self,
        id: &PlaceId,
        instance: u32,
        slots: u32,
        containers: &[ReportedContainer],
    ) -> Result<(), RefusalText> {
        let known = self.rows.agents.get(id).map(|known| &known.row);
        let known_instance = known.map(|row| row.instance.clone());
        // There is one pool here.
        let row = Place::joined(known, String::new(), InstanceId(instance.to_string()));
        self.rows.version += 1;
        let id = id.clone();
        let agent = Agent { id, slots, row };
        let place = agent.id.clone();
        self.rows.agents.insert(place.clone(), agent);
        let observed = containers
            .iter()
            .map(|(id, state)| (id.clone(), state.clone().into()));
        self.advance([Event::PlaceJoined {
            place,
            known_instance,
            observed: observed.collect(),
        }])
    }

    /// A user lets an agent, or one of its slots, do something else.
    pub(crate) fn serve(
        &mut self,
        id: &PlaceId,
        slot: Option<u32>,
        service: Service,
    ) -> Result<(), RefusalText> {
        if !self.memory.connections.contains_key(id) {
            return Err(format!("agent {id} is not connected"));
        }
        if let (Some(slot), Some(agent)) = (slot, self.rows.agents.get(id))
            && slot >= agent.slots
        {
            return Err(format!("slot {id}/{slot} not found"));
        }
        self.advance([Event::ServiceChanged {
            place: id.clone(),
            slot: slot.map(SlotId),
            service,
            cause: Cause::actor(ActorName::user("admin")),
        }])
    }
}
