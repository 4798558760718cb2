//! What a container gets besides its command: images, variables, mounts, devices, and the cluster's defaults for them.
//! `docs/reference` lists their keys.

pub(crate) mod log_policies;
pub(crate) mod schema;

use std::collections::BTreeMap;

pub use det_taskspec::{BindMount, PerDevice};
use det_taskspec::{DeviceMapping, RegistryAuth};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{Section, fill_defaults, merge_documents};
use crate::yaml::{Node, Tree};

/// Software environment of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Container image.
    pub image: PerDevice<String>,
    /// `NAME=VALUE` or `NAME`, later entries win. Values may refer to earlier ones (`$A`, `${B}`).
    pub environment_variables: PerDevice<Vec<String>>,
    /// Ports of the chief container that are reachable through the master.
    pub proxy_ports: Vec<ProxyPort>,
    /// Named container ports, informational.
    pub ports: BTreeMap<String, u16>,
    /// Pull the image even when it is present.
    pub force_pull_image: bool,
    /// Credentials for the image's registry.
    pub registry_auth: Option<RegistryAuth>,
    /// Linux capabilities to add.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities to drop.
    pub drop_capabilities: Vec<String>,
    /// A Kubernetes pod, as written.
    pub pod_spec: Option<Value>,
    /// Working directory of the task; `None` = the pool's, else the run directory's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
}

/// A port of a task behind the master's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyPort {
    /// Port in the container, from 1.
    pub proxy_port: u16,
    /// Whether raw TCP is tunnelled instead of HTTP.
    pub proxy_tcp: bool,
    /// Whether anyone may connect.
    pub unauthenticated: bool,
    /// Whether this is the task's main service.
    pub default_service_id: bool,
}

/// HPC scheduler options, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Slurm {
    /// Slots of a node, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    /// Kind of GPU to ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// Further options of `sbatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sbatch_args: Option<Vec<String>>,
}

/// HPC scheduler options, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pbs {
    /// Slots of a node, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    /// Further options of `qsub`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pbsbatch_args: Option<Vec<String>>,
}

/// A reaction to a line of a task's log: `docs/contract/configuration.md`, "Log policies".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPolicy {
    /// Label of a run whose log matched. `None` only for old unnamed policies.
    pub name: Option<String>,
    /// Regular expression, searched anywhere in a line. `None` switches the policy of this name off.
    pub pattern: Option<String>,
    /// What to do on a match; `None` = label only.
    pub action: Option<LogAction>,
}

/// What a log policy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogAction {
    /// The trial is not restarted again.
    CancelRetries,
    /// Later restarts avoid the node whose log matched.
    ExcludeNode,
}

/// What tasks get unless they say otherwise. `None` and empty mean "not set": a weaker level decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskContainerDefaults {
    /// Interface for traffic between the containers of a task; a comma-separated list.
    pub dtrain_network_interface: Option<String>,
    /// `low:high`, ports of NCCL.
    pub nccl_port_range: Option<String>,
    /// `low:high`, ports of GLOO.
    pub gloo_port_range: Option<String>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: Option<u64>,
    /// Docker network of containers.
    pub network_mode: Option<String>,
    /// Pod spec of tasks without slots.
    pub cpu_pod_spec: Option<Value>,
    /// Pod spec of tasks with slots.
    pub gpu_pod_spec: Option<Value>,
    /// Pod spec of checkpoint garbage collection.
    pub checkpoint_gc_pod_spec: Option<Value>,
    /// Images; a device kind without one falls through.
    pub image: PerDevice<Option<String>>,
    /// Credentials for the images' registry.
    pub registry_auth: Option<RegistryAuth>,
    /// Pull images even when they are present.
    pub force_pull_image: Option<bool>,
    /// `NAME=VALUE` or `NAME`.
    pub environment_variables: PerDevice<Vec<String>>,
    /// Linux capabilities to add.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities to drop.
    pub drop_capabilities: Vec<String>,
    /// Host devices.
    pub devices: Vec<DeviceMapping>,
    /// Host directories.
    pub bind_mounts: Vec<BindMount>,
    /// Working directory of notebooks, shells, commands and generic tasks.
    pub work_dir: Option<String>,
    /// Options of Slurm.
    pub slurm: Slurm,
    /// Options of PBS.
    pub pbs: Pbs,
    /// A shell script run before each task.
    pub startup_hook: Option<String>,
    /// Reactions to log lines.
    pub log_policies: Vec<LogPolicy>,
    /// Seconds that a preempted task has to stop.
    pub preemption_timeout: Option<u32>,
    /// Kubernetes options.
    pub kubernetes: KubernetesDefaults,
}

/// Defaults for Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KubernetesDefaults {
    /// Most slots of a pod; 0 = no task of two or more slots. `None` = the resource manager decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slots_per_pod: Option<u32>,
}

/// `/dev/shm` of a task when nothing says otherwise: 4 GiB.
pub const DEFAULT_SHM_SIZE_BYTES: u64 = 4 << 30;
/// Seconds that a preempted task has to stop when nothing says otherwise.
pub const DEFAULT_PREEMPTION_TIMEOUT: u32 = 3600;
/// Docker network of containers when nothing says otherwise.
pub const DEFAULT_NETWORK_MODE: &str = "bridge";

impl TaskContainerDefaults {
    /// Size of `/dev/shm` in bytes.
    pub fn effective_shm_size_bytes(&self) -> u64 {
        self.shm_size_bytes.unwrap_or(DEFAULT_SHM_SIZE_BYTES)
    }

    /// Docker network of containers.
    pub fn effective_network_mode(&self) -> &str {
        self.network_mode.as_deref().unwrap_or(DEFAULT_NETWORK_MODE)
    }

    /// Seconds that a preempted task has to stop.
    pub fn effective_preemption_timeout(&self) -> u32 {
        self.preemption_timeout
            .unwrap_or(DEFAULT_PREEMPTION_TIMEOUT)
    }

    /// These defaults (of a pool) over weaker ones (of the cluster): `docs/contract/configuration.md`, "Merging".
    #[must_use]
    pub fn over(&self, weaker: &Self) -> Self {
        let merged = merge_documents(
            &schema::TASK_CONTAINER_DEFAULTS,
            self.to_node(),
            weaker.to_node(),
        );
        serde_json::from_value(merged.to_value())
            .expect("what is merged was written by this type, and merging keeps its shape")
    }

    /// These defaults as a tree that comes from no text, without what is not set.
    pub(crate) fn to_node(&self) -> Node {
        let value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        Node::from(&value)
            .pruned(&["cpu_pod_spec", "gpu_pod_spec", "checkpoint_gc_pod_spec"])
            .unwrap_or_else(|| Node::new(Tree::Map(BTreeMap::new())))
    }
}

/// A complete and checked document of an experiment or a task with every default.
pub(crate) fn with_defaults(mut root: Node, section: &'static Section) -> Node {
    fill_defaults(&mut root, section);
    if let Some(environment) = root.get_mut("environment") {
        schema::complete_images(environment);
    }
    root
}
