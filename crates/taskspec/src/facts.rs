//! What a specification is made from: the facts about a task, and those about the place of one of its containers.
//!
//! All are plain values. `det-config` fills in what an experiment's configuration and a pool's defaults contain, the
//! master what its rows and its own configuration contain.

use det_ids::{
    AllocationId, CheckpointId, ClusterId, ContainerId, ExperimentId, MasterId, RunId, TaskId,
    TrialId, UserId,
};
use serde::{Deserialize, Serialize};

use crate::{
    DeviceKind, DeviceMapping, Entrypoint, Mount, RegistryAuth, SlotGrant, SshKeyPair, TaskDetails,
    TaskKind, TaskUser,
};

/// What is known of a task wherever it runs: the same for all containers of an allocation. Not printable, because
/// variables and storage keys are secrets.
#[derive(Clone)]
pub struct TaskFacts {
    /// Id of the task.
    pub task_id: TaskId,
    /// The attempt that the containers belong to.
    pub allocation_id: AllocationId,
    /// The kind of the task and what only that kind has.
    pub kind: KindFacts,
    /// One line for users: `trial 3 of experiment 1`.
    pub description: String,
    /// Number in the cluster of the user whose task this is.
    pub owner_id: UserId,
    /// Login name of that user.
    pub owner_name: String,
    /// Unix identity that the task is given.
    pub user: TaskUser,
    /// What its configuration asks for.
    pub request: ContainerRequest,
    /// What its pool gives to every task.
    pub defaults: PoolDefaults,
    /// Checkpoint storage, for tasks that read or write checkpoints.
    pub storage: Option<StorageFacts>,
    /// The cluster that it runs in.
    pub cluster: ClusterFacts,
}

/// The kind of a task with what a task of that kind has and others have not.
#[derive(Clone)]
pub enum KindFacts {
    /// A trial of an experiment.
    Trial(TrialFacts),
    /// A task that was launched by itself.
    Launched(TaskDetails),
}

impl KindFacts {
    /// The kind without its facts.
    pub fn kind(&self) -> TaskKind {
        match self {
            Self::Trial(_) => TaskKind::Trial,
            Self::Launched(details) => details.kind(),
        }
    }
}

/// What only a trial has.
#[derive(Clone)]
pub struct TrialFacts {
    /// Number of the trial.
    pub trial_id: TrialId,
    /// Number of the trial's experiment.
    pub experiment_id: ExperimentId,
    /// Number of the trial's run, which is this allocation. It grows from run to run.
    pub run_id: RunId,
    /// Which of the sets of training ports the allocation has ([`HostPorts`](crate::HostPorts)); `None` = it was given none.
    pub port_step: Option<u16>,
    /// The key pair by which launchers reach the other containers of the allocation: the same for all of them, whenever
    /// their specifications are made.
    pub launch_keys: SshKeyPair,
    /// Seed of the trial, 32 bits without a sign.
    pub seed: i64,
    /// Its hyperparameters, a JSON object as stored: integers stay integers.
    pub hparams: String,
    /// The effective configuration of its experiment, a JSON object as stored.
    pub experiment_config: String,
    /// UUID of its complete checkpoint with the most steps; `None` = it has stored none.
    pub latest_checkpoint: Option<CheckpointId>,
    /// Steps that the trial had completed at `latest_checkpoint`.
    pub latest_checkpoint_steps: Option<i64>,
    /// UUID of a checkpoint of another trial that the first run starts from, at step 0.
    pub warm_start_checkpoint: Option<CheckpointId>,
    /// Whether the supervisor measures what the trial uses: `profiling.enabled`.
    pub system_metrics: bool,
}

impl TrialFacts {
    /// UUID of the checkpoint that the run starts from: the trial's own before another trial's.
    pub fn start_checkpoint(&self) -> Option<&CheckpointId> {
        let own = self.latest_checkpoint.as_ref();
        own.or(self.warm_start_checkpoint.as_ref())
    }

    /// Steps that the trial has completed where the run starts.
    pub fn steps_completed(&self) -> i64 {
        self.latest_checkpoint_steps.unwrap_or(0)
    }
}

/// What a task's configuration asks for, whatever kind of task it is.
#[derive(Clone, Default)]
pub struct ContainerRequest {
    /// The command to run; `None` = the configuration names nothing.
    pub entrypoint: Option<Entrypoint>,
    /// Container image for slots of each kind.
    pub image: PerDevice<String>,
    /// Whether the image is pulled even when it is present.
    pub force_pull_image: bool,
    /// Credentials for the image's registry.
    pub registry_auth: Option<RegistryAuth>,
    /// `NAME=VALUE` or `NAME`, later entries win. Values may refer to earlier entries (`$A`, `${B}`).
    pub variables: PerDevice<Vec<String>>,
    /// Working directory; `None` = of a trial the pool's, of a launched task [`WORK_DIR`](crate::WORK_DIR).
    pub work_dir: Option<String>,
    /// Container ports that the configuration names, those of `proxied_ports` among them.
    pub ports: Vec<u16>,
    /// Container ports of the task's own services, which users reach through the master.
    pub proxied_ports: Vec<u16>,
    /// Host directories to mount, in order.
    pub bind_mounts: Vec<BindMount>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: u64,
    /// Host devices to give to the container.
    pub devices: Vec<DeviceMapping>,
    /// Linux capabilities that the container gets beside the engine's default ones.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities that the container does not get, also where the engine gives them by default or they are added.
    pub drop_capabilities: Vec<String>,
    /// Whether the harness logs in detail.
    pub debug: bool,
    /// Whether the supervisor measures what a launched task uses: `profiling.enabled`. That of trials is in their facts.
    pub system_metrics: bool,
    /// The effective configuration of a launched task as JSON, without credentials; `None` = it is not shown to the task.
    pub document: Option<String>,
    /// Customisation of its pods, an object of the Kubernetes API as configured; only managers of pods read it.
    pub pod_spec: Option<serde_json::Value>,
}

/// What a pool gives to every task unless its configuration has its own.
#[derive(Clone, Default)]
pub struct PoolDefaults {
    /// Logins for registries of images. They are the administrator's: no part of a configuration, which tasks read, and each
    /// for one registry.
    pub logins: Vec<RegistryAuth>,
    /// Working directory of trials; `None` = [`WORK_DIR`](crate::WORK_DIR). The configuration of a launched task has it.
    pub work_dir: Option<String>,
    /// Name of the Docker network that containers are in, or `host`.
    pub network_mode: String,
    /// Host devices to give to the container.
    pub devices: Vec<DeviceMapping>,
    /// Linux capabilities that an administrator gives to every task.
    pub add_capabilities: Vec<String>,
    /// Text of a shell script that is sourced before the user's own hook.
    pub startup_hook: Option<String>,
    /// Network interface for traffic between the containers of a task.
    pub network_interface: Option<String>,
    /// Ports that Gloo may use between containers of a task, `low:high`; `None` = any.
    pub gloo_port_range: Option<String>,
    /// Ports that NCCL may use between containers of a task, `low:high`; `None` = any.
    pub nccl_port_range: Option<String>,
}

/// Checkpoint storage of a task.
#[derive(Clone)]
pub struct StorageFacts {
    /// Its configuration, as the training library reads it.
    pub document: serde_json::Value,
    /// The host directory, where it is one.
    pub shared_fs: Option<SharedFs>,
}

/// The host directory of `shared_fs` storage.
#[derive(Clone)]
pub struct SharedFs {
    /// Absolute path on every host.
    pub host_path: String,
    /// Bind propagation of the mount, `rprivate` by default.
    pub propagation: String,
    /// Whether it is the storage of the master's own configuration: an administrator chose the path, so agents create it
    /// with their own rights.
    pub is_clusters_own: bool,
    /// Where the storage of the master's own configuration is below `host_path`, empty for itself; `None` = it is another
    /// storage, and what is below `host_path` was chosen by a user.
    pub clusters_directory: Option<String>,
}

/// What the master contributes to every task.
#[derive(Clone, Default)]
pub struct ClusterFacts {
    /// Identity of the cluster, a UUID.
    pub cluster_id: ClusterId,
    /// Identity of this start of the master, a UUID.
    pub master_id: MasterId,
    /// Address of a Pachyderm server that the cluster's tasks use.
    pub pachyderm_address: Option<String>,
}

/// What is known of one container's place: an agent's machine, or another that runs containers.
#[derive(Clone)]
pub struct PlaceFacts {
    /// The container; on the wire, the resource.
    pub container_id: ContainerId,
    /// What the container is granted of the place's slots.
    pub slots: SlotGrant,
    /// Kind of these slots; [`DeviceKind::Cpu`] without slots.
    pub device_kind: DeviceKind,
    /// Number of containers in the allocation, at least 1.
    pub members: usize,
    /// What the container runs in.
    pub runs_in: RunsIn,
}

/// What a container runs in, as far as its specification depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsIn {
    /// A container or sandbox of an agent. Containers that must reach each other share the network of their machine.
    Machine,
    /// A pod, which has an address of its own.
    Pod,
}

impl RunsIn {
    /// What clients and the harness call it: the value of `DET_RESOURCES_TYPE`, and of the resources of an allocation.
    pub fn resources_type(self) -> &'static str {
        match self {
            Self::Machine => "docker-container",
            Self::Pod => "k8s-job",
        }
    }
}

/// One value for each kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PerDevice<T> {
    /// For slots that are shares of a processor, and for tasks without slots.
    pub cpu: T,
    /// For slots that are NVIDIA GPUs.
    pub cuda: T,
    /// For slots that are AMD GPUs.
    pub rocm: T,
}

impl<T> PerDevice<T> {
    /// The value for slots of this kind.
    pub fn get(&self, kind: DeviceKind) -> &T {
        match kind {
            DeviceKind::Cpu => &self.cpu,
            DeviceKind::Cuda => &self.cuda,
            DeviceKind::Rocm => &self.rocm,
        }
    }
}

/// A host directory that a configuration wants in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    /// Absolute path on the agent's host.
    pub host_path: String,
    /// Path in the container; relative ones are below the work dir.
    pub container_path: String,
    /// Whether the container may not write to it.
    pub read_only: bool,
    /// Bind propagation of the mount, `rprivate` by default.
    pub propagation: String,
}

impl BindMount {
    /// The mount, with the rights of the task's own user: a user has named the path.
    pub fn untrusted(&self) -> Mount {
        Mount {
            host_path: self.host_path.clone(),
            container_path: self.container_path.clone(),
            read_only: self.read_only,
            propagation: self.propagation.clone(),
            create: false,
            trusted: false,
            shared: None,
        }
    }
}
