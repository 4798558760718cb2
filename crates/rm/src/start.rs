//! What a manager receives of a container that it is to start.

use det_ids::{ExperimentId, JobId, RunId, TrialId, WorkspaceId};
use det_taskspec::ContainerSpec;
use serde_json::Value;

/// A container that is to start: what it runs, and what is known of its task. A manager passes on the specification, and
/// reads of the rest what its places are made by: an agent needs none of it, a pod has labels, a namespace and a
/// customisation of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStart {
    /// What it runs. Its owner's number, its task and its allocation are in it.
    pub spec: ContainerSpec,
    /// Its task, and where the task belongs.
    pub origin: Origin,
}

/// The task of a container, and where it belongs in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// The entry in the job queue that the task belongs to.
    pub job_id: JobId,
    /// Priority of the job, 1 to 99; which goes first is a setting of the pool.
    pub priority: u8,
    /// Name of the resource pool that the allocation was placed in.
    pub resource_pool: String,
    /// Number of the workspace that the job belongs to.
    pub workspace_id: WorkspaceId,
    /// The namespace that the attempt was placed in; `None` = that of its pool.
    pub namespace: Option<PlacedNamespace>,
    /// The workspace's name; empty if it has just been deleted.
    pub workspace_name: String,
    /// Login name of the user who owns the task.
    pub owner_name: String,
    /// The experiment that the task works for, if any.
    pub experiment_id: Option<ExperimentId>,
    /// The trial that the task works for, if any.
    pub trial_id: Option<TrialId>,
    /// Number of the trial's run that the allocation is; 0 without a trial.
    pub run_id: RunId,
    /// Number of the allocation among those of its task, from 1.
    pub attempt: u32,
    /// Whether the allocation can be asked to give its slots back, and its task goes on later.
    pub preemptible: bool,
    /// Ports of the services of its task that users reach through the master: that of its kind, and those of
    /// `environment.proxy_ports`. They are among those of the specification.
    pub service_ports: Vec<u16>,
    /// Rank of the container in its allocation; 0 is the chief.
    pub member: u32,
    /// Number of containers in the allocation, at least 1.
    pub members: usize,
    /// `environment.pod_spec` of the task's effective configuration, in which that of the pool is merged; `None` = there is
    /// none. It may contain secrets of the owner.
    pub pod_spec: Option<Value>,
}

/// The namespace that an attempt was placed in, since its workspace was bound to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedNamespace {
    /// Name of that namespace.
    pub name: String,
    /// Whether its manager makes it: where it does not exist, it will.
    pub made: bool,
}
