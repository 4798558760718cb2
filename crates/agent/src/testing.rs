//! Builders shared by the unit tests.

use det_agent_proto::Welcome;
use det_ids::{AllocationId, ContainerId, TaskId};
use det_taskspec::{ContainerSpec, Entrypoint, RUN_DIR, Script, TaskUser};

pub(crate) fn welcome() -> Welcome {
    Welcome {
        protocol: det_agent_proto::PROTOCOL_VERSION,
        version: "0.1.0".into(),
        cluster_id: "cluster-1".into(),
        master_id: "master-1".into(),
    }
}

/// A zero-slot command that runs `shell`.
pub(crate) fn container_spec(id: &str, shell: &str) -> ContainerSpec {
    let task_id = TaskId::from("7c0f");
    let allocation_id: AllocationId = task_id.allocation(1);
    ContainerSpec {
        container_id: ContainerId::from(id),
        allocation_id: allocation_id.clone(),
        task_id: task_id.clone(),
        description: "command of a test".into(),
        image: "none".into(),
        force_pull_image: false,
        registry_auth: None,
        user: TaskUser::default(),
        owner_id: 7,
        slots: Vec::new(),
        mounts: Vec::new(),
        shm_size_bytes: 64 << 20,
        network_mode: "bridge".into(),
        ports: Vec::new(),
        devices: Vec::new(),
        add_capabilities: Vec::new(),
        default_capabilities: Vec::new(),
        drop_capabilities: Vec::new(),
        script: Script {
            task_type: det_taskspec::TaskKind::Command,
            allocation_id,
            task_id,
            container_id: ContainerId::from(id),
            env: Vec::new(),
            work_dir: format!("{RUN_DIR}/workdir"),
            context: false,
            pool_startup_hook: None,
            rendezvous: false,
            storage_probe: None,
            entrypoint: Entrypoint::Shell(shell.into()),
            files: Vec::new(),
            token: "secret".into(),
            grace_seconds: 10,
        },
    }
}
