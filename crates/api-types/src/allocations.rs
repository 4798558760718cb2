//! Allocations: one attempt's claim on slots, and the reports and requests of its containers.

use det_ids::{AllocationId, ContainerId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::tasks::TaskState;
use crate::wire::{Object, Timestamp};

/// An attempt of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Id of the allocation: the task and the number of the attempt from 1, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// How far it is; with several containers, how far the last of them is.
    pub state: TaskState,
    /// Whether it may be used: service up, or all containers have met.
    pub is_ready: Option<bool>,
    /// When the scheduler gave it slots; `None` = it waits.
    pub start_time: Option<Timestamp>,
    /// When its last container ended; absent while it lives.
    pub end_time: Option<Timestamp>,
    /// Slots that it asks for and, once it is placed, has.
    pub slots: i64,
    /// How it ended, as a sentence for users.
    pub exit_reason: Option<String>,
    /// Exit code of the chief's container; `None` = it has not ended, or ended without one.
    pub status_code: Option<i64>,
}

/// Answer of `GetAllocation`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetAllocationResponse {
    /// The allocation that the path names.
    pub allocation: Allocation,
}

/// What a container finds for accelerators.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceleratorData {
    /// Id of the container.
    #[schema(value_type = String)]
    pub container_id: ContainerId,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Host name of the machine, as the container reports it.
    pub node_name: String,
    /// Id of the task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Product name of the accelerators, as the container reports it.
    pub accelerator_type: String,
    /// Stable identities of the accelerators, as the driver reports them.
    pub accelerator_uuids: Vec<String>,
    /// Resource pool of the allocation.
    pub resource_pool: String,
}

/// Body of `PostAllocationAcceleratorData`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostAllocationAcceleratorDataRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// The accelerators that the container sees.
    pub accelerator_data: AcceleratorData,
}

/// Body of `AllocationReady`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationReadyRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
}

/// Body of `AllocationWaiting`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationWaitingRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
}

/// Body of `MarkAllocationResourcesDaemon`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MarkAllocationResourcesDaemonRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// The container again; the one in the path counts.
    #[schema(value_type = String)]
    pub resources_id: ContainerId,
}

/// How the containers of an allocation find each other. Element *i* of each list belongs to rank *i*; 0 is the chief.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RendezvousInfo {
    /// Addresses of the containers, by rank.
    pub addresses: Vec<String>,
    /// Rank of the container that asks, from 0.
    pub rank: i64,
    /// Numbers of slots of the containers, by rank.
    pub slots: Vec<i64>,
}

/// Answer of `AllocationRendezvousInfo`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationRendezvousInfoResponse {
    /// How to find each other.
    pub rendezvous_info: RendezvousInfo,
}

/// Query of `AllocationPreemptionSignal`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct AllocationPreemptionSignalQuery {
    /// Seconds to wait before the answer "no"; `None` and 0 = none.
    pub timeout_seconds: Option<i64>,
}

/// Answer of `AllocationPreemptionSignal`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationPreemptionSignalResponse {
    /// Whether to save and exit.
    pub preempt: bool,
}

/// Body of `AckAllocationPreemptionSignal`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AckAllocationPreemptionSignalRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
}

/// Body of `AllocationPendingPreemptionSignal`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationPendingPreemptionSignalRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
}

/// Body of `AllocationAllGather`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationAllGatherRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Identity of the member; joining again with it replaces the first call.
    pub request_uuid: Option<String>,
    /// How many members give something before anyone gets an answer, 1 to 65536. Must be given.
    pub num_peers: Option<i64>,
    /// What this member gives to all; what is no JSON object arrives there as `{"value": …}`.
    pub data: Object,
}

/// Answer of `AllocationAllGather`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationAllGatherResponse {
    /// What each member gave, one entry for each.
    pub data: Vec<Object>,
}

/// Body of `PostAllocationProxyAddress`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostAllocationProxyAddressRequest {
    /// The allocation again; the one in the path counts.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// Address under which the task's services are reached.
    pub proxy_address: String,
}
