//! Resource pools.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::agents::DeviceType;
use crate::jobs::QueueStats;
use crate::page::Pagination;
use crate::wire::{Float, wire_enum};

wire_enum! {
    /// Where a pool's machines come from.
    pub enum ResourcePoolType("RESOURCE_POOL_TYPE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Machines of Amazon EC2. This master has no such pools.
        Aws = 1 => "AWS",
        /// Google Compute Engine.
        Gcp = 2 => "GCP",
        /// Agents that connect by themselves.
        Static = 3 => "STATIC",
        /// Pods of a Kubernetes cluster.
        K8s = 4 => "K8S",
    }
}

wire_enum! {
    /// How a pool's queue is served.
    pub enum SchedulerType("SCHEDULER_TYPE_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By priority: a more important job is served first, and may preempt others where the pool allows it.
        Priority = 1 => "PRIORITY",
        /// By fair share: each job gets slots in proportion to its weight.
        FairShare = 2 => "FAIR_SHARE",
        /// In turn: jobs start one task each, those with the fewest slots first; nothing is preempted.
        RoundRobin = 3 => "ROUND_ROBIN",
        /// By the scheduler of a Kubernetes cluster.
        Kubernetes = 4 => "KUBERNETES",
        /// By Slurm. This master has no such pools.
        Slurm = 5 => "SLURM",
        /// By PBS. This master has no such pools.
        Pbs = 6 => "PBS",
    }
}

wire_enum! {
    /// Which of the fitting agents is taken.
    pub enum FittingPolicy("FITTING_POLICY_") {
        /// Not given: the value of an absent field.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The fullest agent that has the slots, which keeps others free for large work.
        Best = 1 => "BEST",
        /// The emptiest agent, which spreads work.
        Worst = 2 => "WORST",
        /// The scheduler of Kubernetes decides. Not sent by this master.
        Kubernetes = 3 => "KUBERNETES",
        /// Slurm decides. This master has no such pools.
        Slurm = 4 => "SLURM",
        /// PBS decides. This master has no such pools.
        Pbs = 5 => "PBS",
    }
}

/// A resource pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePool {
    /// Name of the pool, unique over the cluster.
    pub name: String,
    /// What administrators wrote about the pool; empty = nothing.
    pub description: String,
    /// Where its machines come from.
    #[serde(rename = "type")]
    pub kind: ResourcePoolType,
    /// Number of agents (of nodes in Kubernetes) that are connected.
    pub num_agents: i64,
    /// Number of slots of these agents, in use or free.
    pub slots_available: i64,
    /// Number of slots that containers hold.
    pub slots_used: i64,
    /// Kind of device that its slots are; unspecified = it has none at present.
    pub slot_type: DeviceType,
    /// The most containers without slots.
    pub aux_container_capacity: i64,
    /// Live containers without slots, those included that are being started.
    pub aux_containers_running: i64,
    /// Whether tasks with slots go here by default; exactly one pool must have it.
    pub default_compute_pool: bool,
    /// Whether tasks without slots go here by default.
    pub default_aux_pool: bool,
    /// Whether its cloud machines can be taken away.
    pub preemptible: bool,
    /// Fewest cloud machines; always 0, since this master has no cloud pools.
    pub min_agents: i64,
    /// Most cloud machines; always 0, since this master has no cloud pools.
    pub max_agents: i64,
    /// Slots of each cloud machine.
    pub slots_per_agent: i64,
    /// Containers without slots on each agent.
    pub aux_container_capacity_per_agent: i64,
    /// How its queue is served.
    pub scheduler_type: SchedulerType,
    /// Which of two priorities is served first in it, as text for users: `lower goes first` (an addition of ours).
    pub priority_order: String,
    /// Which of several agents that fit gets a task: the fullest or the emptiest.
    pub scheduler_fitting_policy: FittingPolicy,
    /// Where its machines are; always `on-prem`, since this master has no cloud pools.
    pub location: String,
    /// Image of its cloud machines.
    pub image_id: String,
    /// Type of its cloud machines.
    pub instance_type: String,
    /// Address of the master for its cloud machines.
    pub master_url: String,
    /// Name in the master's certificate.
    pub master_cert_name: String,
    /// Script run when a cloud machine starts.
    pub startup_script: String,
    /// Script run when a container starts.
    pub container_startup_script: String,
    /// Docker network of agents on its cloud machines.
    pub agent_docker_network: String,
    /// Docker runtime of agents on its cloud machines.
    pub agent_docker_runtime: String,
    /// Docker image of agents on its cloud machines.
    pub agent_docker_image: String,
    /// Log shipper's image; unused.
    pub agent_fluent_image: String,
    /// Seconds after which an idle cloud machine is removed.
    pub max_idle_agent_period: Float,
    /// Seconds a cloud machine has to connect.
    pub max_agent_starting_period: Float,
    /// Settings of its provider and scheduler.
    pub details: ResourcePoolDetail,
    /// Product name of its accelerators.
    pub accelerator: String,
    /// How many jobs of its queue run and wait.
    pub stats: Option<QueueStats>,
    /// Name of its resource manager.
    pub cluster_name: String,
    /// Particulars of its resource manager: names and values that administrators chose.
    pub resource_manager_metadata: BTreeMap<String, String>,
}

/// Particulars of a pool: those of its kind are set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolDetail {
    /// For machines of Amazon EC2; always `None`, since this master has no such pools.
    pub aws: Option<ResourcePoolAwsDetail>,
    /// For machines of Google Compute Engine; always `None`, since this master has no such pools.
    pub gcp: Option<ResourcePoolGcpDetail>,
    /// For a pool that is served by priority; `None` = by another rule.
    pub priority_scheduler: Option<ResourcePoolPrioritySchedulerDetail>,
}

/// A tag of cloud machines.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsCustomTag {
    /// Key of the tag.
    pub key: String,
    /// Value of the tag.
    pub value: String,
}

/// Amazon EC2 particulars.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolAwsDetail {
    /// AWS region of the machines, such as `us-west-2`.
    pub region: String,
    /// Size of the root volume in GB.
    pub root_volume_size: i64,
    /// Id of the machine image.
    pub image_id: String,
    /// Key of the tag that marks our machines.
    pub tag_key: String,
    /// Value of that tag.
    pub tag_value: String,
    /// Name of the machines.
    pub instance_name: String,
    /// Key for logging in.
    pub ssh_key_name: String,
    /// Whether machines get a public address.
    pub public_ip: bool,
    /// Id of the subnet; `None` = the default.
    pub subnet_id: Option<String>,
    /// Id of the security group of the machines.
    pub security_group_id: String,
    /// ARN of the instance profile that the machines run with.
    pub iam_instance_profile_arn: String,
    /// EC2 type of the machines, such as `p3.8xlarge`; `None` = not set.
    pub instance_type: Option<String>,
    /// CloudWatch log group that machines write to; `None` = none.
    pub log_group: Option<String>,
    /// CloudWatch log stream in that group; `None` = none.
    pub log_stream: Option<String>,
    /// Whether spot machines are used.
    pub spot_enabled: bool,
    /// Highest price in US dollars for an hour of a spot machine; `None` = the on-demand price.
    pub spot_max_price: Option<String>,
    /// Tags that machines get in addition to ours.
    pub custom_tags: Vec<AwsCustomTag>,
}

/// Google Compute Engine particulars.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolGcpDetail {
    /// Id of the Google Cloud project of the machines.
    pub project: String,
    /// Google Cloud zone of the machines, such as `us-west1-b`.
    pub zone: String,
    /// Size of the boot disk in GB.
    pub boot_disk_size: i64,
    /// Image of the boot disk.
    pub boot_disk_source_image: String,
    /// Key of the label that marks our machines.
    pub label_key: String,
    /// Value of that label.
    pub label_value: String,
    /// Prefix of machine names.
    pub name_prefix: String,
    /// Name of the network.
    pub network: String,
    /// Name of the subnetwork; `None` = the default.
    pub subnetwork: Option<String>,
    /// Whether machines get a public address.
    pub external_ip: bool,
    /// Network tags that machines get, for firewall rules.
    pub network_tags: Vec<String>,
    /// E-mail address of the service account that machines run as.
    pub service_account_email: String,
    /// OAuth scopes of that service account.
    pub service_account_scopes: Vec<String>,
    /// Compute Engine type of the machines, such as `n1-standard-8`.
    pub machine_type: String,
    /// Compute Engine type of their GPUs, such as `nvidia-tesla-t4`.
    pub gpu_type: String,
    /// Number of GPUs of each machine.
    pub gpu_num: i64,
    /// Whether machines can be taken away.
    pub preemptible: bool,
    /// Seconds an operation may take.
    pub operation_timeout_period: Float,
}

/// Priority scheduler particulars.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolPrioritySchedulerDetail {
    /// Whether running work gives way.
    pub preemption: bool,
    /// Priority of those who ask for none.
    pub default_priority: i64,
    /// Priority classes of Kubernetes; always empty: this master does not list those that it uses.
    pub k8_priorities: Vec<K8PriorityClass>,
}

/// A priority class of Kubernetes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct K8PriorityClass {
    /// Name of the priority class.
    pub priority_class: String,
    /// Value of the priority class; a higher one is more important.
    pub priority_value: i64,
}

/// Query of `GetResourcePools`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetResourcePoolsQuery {
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Only pools bound to no workspace.
    pub unbound: bool,
}

/// Answer of `GetResourcePools`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetResourcePoolsResponse {
    /// The page's pools.
    pub resource_pools: Vec<ResourcePool>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}
