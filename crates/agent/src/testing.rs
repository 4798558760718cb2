//! Builders shared by the unit tests.

use det_taskspec::{
    ClusterFacts, ContainerRequest, ContainerSpec, DeviceKind, Entrypoint, Granted, KindFacts,
    PerDevice, PlaceFacts, PoolDefaults, TaskFacts, TaskUser,
};

/// A zero-slot command that runs `shell`.
pub(crate) fn container_spec(id: &str, shell: &str) -> ContainerSpec {
    let task = TaskFacts {
        task_id: "7c0f".into(),
        allocation_id: "7c0f.1".into(),
        kind: KindFacts::Command,
        description: "command of a test".into(),
        owner_id: 7,
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
        cluster: ClusterFacts::default(),
    };
    let place = PlaceFacts {
        container_id: id.into(),
        slots: Granted::Devices(Vec::new()),
        device_kind: DeviceKind::Cpu,
        members: 1,
        chief_slot: None,
    };
    det_taskspec::container_spec(&task, &place, "secret").unwrap()
}
