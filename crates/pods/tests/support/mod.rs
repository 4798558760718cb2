//! Members of allocations, and ways into JSON.

use det_ids::{ExperimentId, JobId, RunId, TaskId, TrialId, UserId, WorkspaceId};
use det_pods::{
    ClaimApi, ClusterFacts, MasterCert, MasterUrl, Member, Objects, Scheduler, Seal, SlotResource,
    objects,
};
use det_rm::{ContainerStart, Origin};
use det_taskspec::{ContainerSpec, Entrypoint, Script, SlotGrant, TaskKind, TaskUser};
use serde_json::Value;

/// A task id as the master makes them.
pub(crate) const TASK: &str = "0b6cfe5d-6b39-4b93-9d0f-5f2f4cf1a7aa";

/// A cluster with GPUs.
pub(crate) fn facts() -> ClusterFacts {
    ClusterFacts {
        cluster_id: "12345678-aaaa-4bbb-8ccc-123456789abc".into(),
        seal: Seal::new("secret", ""),
        master: MasterUrl {
            scheme: "http".into(),
            host: "master.det.svc".into(),
            port: 8080,
            cert: MasterCert::Usual,
            cert_name: None,
        },
        helper_image: Some("det/helper:1".into()),
        slots: SlotResource::Extended("nvidia.com/gpu".into()).into(),
        claims: ClaimApi::V1,
        scheduler: Scheduler::Native,
        preempts: false,
        default_grace_seconds: 30,
    }
}

/// A container with `slots` slots of the `attempt`th allocation of a task of this kind, on the node `n<rank>`.
pub(crate) fn member(kind: TaskKind, task: &str, attempt: u32, rank: u32, slots: u32) -> Member {
    let task_id = TaskId::from(task);
    let allocation_id = task_id.allocation(attempt);
    let container_id = format!("c{rank}");
    let is_trial = kind == TaskKind::Trial;
    let env = [
        ("DET_SESSION_TOKEN", "secret-token"),
        ("DET_RESOURCES_TYPE", "docker-container"),
        ("MINE", "1"),
    ];
    let script = Script {
        task_type: kind,
        allocation_id: allocation_id.clone(),
        task_id: task_id.clone(),
        container_id: container_id.as_str().into(),
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        work_dir: "/run/determined/workdir".into(),
        context: true,
        startup_hook: true,
        pool_startup_hook: None,
        rendezvous: is_trial,
        storage_probe: None,
        entrypoint: Entrypoint::Shell("true".into()),
        readiness: Vec::new(),
        readiness_port: None,
        idle_check: None,
        system_metrics: None,
        task_metrics: None,
        files: Vec::new(),
        token: "secret-token".into(),
        grace_seconds: 10,
        save_seconds: None,
    };
    let spec = ContainerSpec {
        container_id: container_id.as_str().into(),
        allocation_id,
        task_id,
        description: "a task of a test".into(),
        image: "user/image:2".into(),
        force_pull_image: false,
        registry_auth: None,
        user: TaskUser::default(),
        owner_id: UserId(7),
        slots: SlotGrant::Count(slots),
        mounts: Vec::new(),
        shm_size_bytes: 64 << 20,
        network_mode: "bridge".into(),
        ports: Vec::new(),
        devices: Vec::new(),
        add_capabilities: Vec::new(),
        default_capabilities: Vec::new(),
        drop_capabilities: Vec::new(),
        script,
    };
    let origin = Origin {
        job_id: JobId::from("job"),
        priority: 50,
        resource_pool: "gpu pool".into(),
        workspace_id: WorkspaceId(1),
        namespace: None,
        workspace_name: "Uncategorized".into(),
        owner_name: "ada".into(),
        experiment_id: is_trial.then_some(ExperimentId(3)),
        trial_id: is_trial.then_some(TrialId(9)),
        run_id: RunId(attempt.into()),
        attempt,
        preemptible: is_trial,
        service_ports: Vec::new(),
        member: rank,
        members: 1,
        pod_spec: None,
    };
    Member {
        start: ContainerStart { spec, origin },
        place: format!("n{rank}@pool").as_str().into(),
        node: format!("n{rank}"),
    }
}

/// A command with one slot, of one container.
pub(crate) fn command() -> Member {
    member(TaskKind::Command, TASK, 1, 0, 1)
}

/// A command whose pod is customised.
pub(crate) fn customised(pod_spec: Value) -> Member {
    let mut member = command();
    member.start.origin.pod_spec = Some(pod_spec);
    member
}

/// A trial with a pod of each of these sizes.
pub(crate) fn gang(sizes: &[u32]) -> Vec<Member> {
    let sizes = (0..).zip(sizes);
    let task = format!("3.{TASK}");
    sizes
        .map(|(rank, slots)| member(TaskKind::Trial, &task, 1, rank, *slots))
        .collect()
}

/// Their objects in a cluster with GPUs.
pub(crate) fn objects_of(members: &[Member]) -> Objects {
    objects(&facts(), "work", members).unwrap()
}

/// The `spec` of the pods of a Job.
pub(crate) fn pod_spec(job: &Value) -> &Value {
    &job["spec"]["template"]["spec"]
}

/// The container of the task in a Job.
pub(crate) fn task_container(job: &Value) -> &Value {
    let containers = pod_spec(job)["containers"].as_array().unwrap();
    let last = containers.last().unwrap();
    assert_eq!(last["name"], "determined-container");
    last
}

/// The init container of the system in a Job.
pub(crate) fn init_container(job: &Value) -> &Value {
    let containers = pod_spec(job)["initContainers"].as_array().unwrap();
    let last = containers.last().unwrap();
    assert_eq!(last["name"], "determined-init-container");
    last
}

/// The value of a container's variable.
pub(crate) fn variable<'c>(container: &'c Value, name: &str) -> Option<&'c Value> {
    let mut found = container["env"].as_array().unwrap().iter();
    let entry = found.find(|entry| entry["name"] == name)?;
    Some(entry.get("value").unwrap_or(&entry["valueFrom"]))
}

/// The script of a rank in the Secret.
pub(crate) fn script(objects: &Objects, rank: u32) -> Script {
    let data = &objects.secret["stringData"];
    let text = data[format!("task-{rank}.json")].as_str().unwrap();
    serde_json::from_str(text).unwrap()
}
