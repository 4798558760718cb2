//! Agents, their slots and devices, and the containers on them.

use std::collections::BTreeMap;

use det_ids::{ContainerId, PlaceId, SlotId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination};
use crate::wire::{Timestamp, wire_enum};

wire_enum! {
    /// Kind of a device.
    pub enum DeviceType("TYPE_") {
        /// Not known, such as that of the slots of a pool without agents.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// A share of the host's processors.
        Cpu = 1 => "CPU",
        /// An NVIDIA GPU.
        Cuda = 2 => "CUDA",
        /// An AMD GPU.
        Rocm = 3 => "ROCM",
    }
}

wire_enum! {
    /// State of a container.
    pub enum ContainerState("STATE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// It is assigned to an agent, which has not begun with it yet.
        Assigned = 1 => "ASSIGNED",
        /// Its image is being pulled.
        Pulling = 2 => "PULLING",
        /// The container is being created and started on its agent.
        Starting = 3 => "STARTING",
        /// The container runs.
        Running = 4 => "RUNNING",
        /// The container has ended.
        Terminated = 5 => "TERMINATED",
    }
}

/// A device of an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// Number on the agent, counted from 0.
    #[schema(value_type = i64)]
    pub id: SlotId,
    /// Product name of the device; of a GPU as its driver reports it.
    pub brand: String,
    /// Identity of the device that stays the same over restarts: its driver's, or derived from the id of the agent.
    pub uuid: String,
    /// The kind of device: of the processor, of NVIDIA or of AMD.
    #[serde(rename = "type")]
    pub kind: DeviceType,
}

/// A container on an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// The container's id, which is also the resource id of allocation calls.
    #[schema(value_type = String)]
    pub id: ContainerId,
    /// How far the container is on the way from assigned to terminated.
    pub state: ContainerState,
    /// Devices of the agent that it has; empty = it runs without slots.
    pub devices: Vec<Device>,
    /// Legacy name of its parent; empty.
    pub parent: String,
    /// Whether the caller may not know more about it.
    pub permission_denied: bool,
}

/// How much a device is used, as its agent last reported it (an addition of ours). What the device does not count is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotUsage {
    /// How much of the time it was in use lately, per cent.
    pub utilization_percent: Option<i64>,
    /// Bytes of its memory that are in use.
    pub memory_used_bytes: Option<i64>,
    /// Bytes of memory that it has.
    pub memory_bytes: Option<i64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<i64>,
}

/// A schedulable device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Slot {
    /// Number on the agent, as text.
    pub id: String,
    /// The device that the slot consists of.
    pub device: Device,
    /// Whether work may be placed on it.
    pub enabled: bool,
    /// The container that has it; `None` = free.
    pub container: Option<Container>,
    /// Whether it takes no new work and lets the present one finish.
    pub draining: bool,
    /// How much it is used; `None` = its agent does not report it (an addition of ours).
    pub usage: Option<SlotUsage>,
    /// What is wrong with the device and keeps the slot out of service until it is enabled; empty = nothing (an addition
    /// of ours).
    pub fault: String,
}

/// Counts over the slots of an agent that share something.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceStats {
    /// Slots by the state of their container.
    pub states: BTreeMap<String, i64>,
    /// Slots that take no new work and let the present one finish.
    pub draining: i64,
    /// Slots that take no new work and do not drain.
    pub disabled: i64,
    /// All slots, of whatever state.
    pub total: i64,
}

/// Counts over the slots of an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotStats {
    /// By wire name of the device type.
    pub type_stats: BTreeMap<String, DeviceStats>,
    /// The same counts by product name of the device.
    pub brand_stats: BTreeMap<String, DeviceStats>,
}

/// An agent: a part of the cluster that offers slots and runs containers, such as a machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Agent {
    /// Id of the agent, unique over the cluster.
    #[schema(value_type = String)]
    pub id: PlaceId,
    /// When it first connected; `None` = not known.
    pub registered_time: Option<Timestamp>,
    /// Slots by key, which is a number; clients show the last path part of a key, in the order in which they come.
    #[schema(value_type = BTreeMap<String, Slot>)]
    pub slots: BTreeMap<SlotId, Slot>,
    /// Containers by id.
    #[schema(value_type = BTreeMap<String, Container>)]
    pub containers: BTreeMap<ContainerId, Container>,
    /// Resource pools that its slots belong to.
    pub resource_pools: Vec<String>,
    /// Addresses under which its containers are reached.
    pub addresses: Vec<String>,
    /// Whether work may be placed on it.
    pub enabled: bool,
    /// Whether it takes no new work and lets the present one finish.
    pub draining: bool,
    /// Version of the API that the agent speaks, such as `0.38.1`; clients compare it with the master's.
    pub version: String,
    /// Version of the agent program.
    pub agent_version: String,
    /// Whether its connection is lost: it is `draining` until it is back or given up, whatever was asked of it (an addition
    /// of ours).
    pub disconnected: bool,
    /// What keeps its host from starting containers: it is `draining` until that is over, whatever was asked of it; empty =
    /// nothing (an addition of ours).
    pub fault: String,
    /// Counts over its slots.
    pub slot_stats: SlotStats,
}

wire_enum! {
    /// Sort keys of `GetAgents`.
    pub enum AgentSortBy("SORT_BY_") {
        /// By id of the agent, as text.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By id of the agent, as text; the same as without a key.
        Id = 1 => "ID",
        /// By registration time.
        Time = 2 => "TIME",
    }
}

/// Query of `GetAgents`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetAgentsQuery {
    /// Attribute to sort by; unspecified = by id of the agent.
    pub sort_by: AgentSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Leave the slot maps empty.
    pub exclude_slots: bool,
    /// Leave the container maps empty.
    pub exclude_containers: bool,
}

/// Answer of `GetAgents`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetAgentsResponse {
    /// The agents of this page.
    pub agents: Vec<Agent>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetAgent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetAgentResponse {
    /// The agent that the path names.
    pub agent: Agent,
}

/// Answer of `EnableAgent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnableAgentResponse {
    /// The agent as it is now.
    pub agent: Agent,
}

/// Body of `DisableAgent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisableAgentRequest {
    /// The agent again; the one in the path counts.
    #[schema(value_type = String)]
    pub agent_id: PlaceId,
    /// Let running tasks finish; otherwise they are killed.
    pub drain: bool,
}

/// Answer of `DisableAgent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisableAgentResponse {
    /// The agent as it is now.
    pub agent: Agent,
}

/// Answer of `RevokeAgent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct RevokeAgentResponse {}

/// Answer of `GetSlots`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetSlotsResponse {
    /// The agent's slots.
    pub slots: Vec<Slot>,
}

/// Answer of `GetSlot`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetSlotResponse {
    /// The slot that the path names.
    pub slot: Slot,
}

/// Answer of `EnableSlot`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnableSlotResponse {
    /// The slot as it is now.
    pub slot: Slot,
}

/// Body of `DisableSlot`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisableSlotRequest {
    /// The agent again; the one in the path counts.
    #[schema(value_type = String)]
    pub agent_id: PlaceId,
    /// The slot again; the one in the path counts.
    pub slot_id: String,
    /// Let the running task finish; otherwise it is killed.
    pub drain: bool,
}

/// Answer of `DisableSlot`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisableSlotResponse {
    /// The slot as it is now.
    pub slot: Slot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_the_order_of_their_numbers() {
        let slots = [10, 2, 0, 1, 11].map(|number| (SlotId(number), Slot::default()));
        let agent = Agent {
            slots: BTreeMap::from(slots),
            ..Agent::default()
        };
        let text = serde_json::to_string(&agent).unwrap_or_default();
        let at = ["0", "1", "2", "10", "11"].map(|key| text.find(&format!("\"{key}\":")));
        assert!(at.is_sorted() && at[0].is_some(), "{at:?}: {text}");
    }
}
