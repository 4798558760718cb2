//! The builder of specifications that unit tests and integration tests share.

use det_ids::{TaskId, UserId};
use det_taskspec::{
    ClusterFacts, ContainerRequest, ContainerSpec, DeviceKind, Entrypoint, KindFacts, PerDevice,
    PlaceFacts, PoolDefaults, RunsIn, SlotGrant, TaskDetails, TaskFacts, TaskUser,
};

/// A zero-slot command that runs `shell`, in the container `id` of a task of its own.
pub(crate) fn container_spec(id: &str, shell: &str) -> ContainerSpec {
    let task_id = TaskId::from(format!("task-of-{id}"));
    let task = TaskFacts {
        allocation_id: task_id.allocation(1),
        task_id,
        kind: KindFacts::Launched(TaskDetails::Command),
        description: "command of a test".into(),
        owner_id: UserId(7),
        owner_name: "ada".into(),
        user: TaskUser::default(),
        request: ContainerRequest {
            entrypoint: Some(Entrypoint::Shell(shell.into())),
            image: PerDevice {
                cpu: "none".into(),
                ..PerDevice::default()
            },
            shm_size_bytes: 64 << 20,
            ..ContainerRequest::default()
        },
        defaults: PoolDefaults {
            network_mode: "bridge".into(),
            ..PoolDefaults::default()
        },
        storage: None,
        cluster: ClusterFacts {
            cluster_id: "cluster-1".into(),
            master_id: "master-1".into(),
            ..ClusterFacts::default()
        },
    };
    let place = PlaceFacts {
        runs_in: RunsIn::Machine,
        container_id: id.into(),
        slots: SlotGrant::Devices(Vec::new()),
        device_kind: DeviceKind::Cpu,
        members: 1,
    };
    det_taskspec::container_spec(&task, &place, "task-token").unwrap()
}
