//! Builds the engine's description of a container. Pure.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HealthConfig, HostConfig,
    Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum as Propagation,
    MountType, PortBinding, ResourcesUlimits,
};
use det_taskspec::sandbox::HOST_NETWORK;
use det_taskspec::{CheckedMount, ContainerSpec, DeviceKind, Mount, RUN_DIR};

use super::engine::{
    ContainerContext, LABEL_AGENT, LABEL_ALLOCATION, LABEL_CLUSTER, LABEL_CONTAINER,
    LABEL_DESCRIPTION, LABEL_INSTANCE, LABEL_TASK, log_config,
};
use crate::containers::store::RuntimeKind;
use crate::options::Ulimit;

/// Address of the host on which ports are published. The agent's own tunnels are the only way to them that is meant: what
/// listens in a container may ask for no password. Containers of distributed tasks find each other on the host's network.
const PUBLISHED_ON: &str = "127.0.0.1";

/// The mode of a container that shares its host's network.
pub(crate) const HOST: &str = "host";

/// Microseconds over which the engine counts processor time.
const PERIOD_MICROS: i64 = 100_000;

/// The container that `spec` asks for.
pub(super) fn build(
    kind: RuntimeKind,
    spec: &ContainerSpec,
    context: ContainerContext<'_>,
) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(super::pull::full_reference(&spec.image)),
        user: Some(format!("{}:{}", spec.user.uid, spec.user.gid)),
        // Replaces the image's entrypoint and, with it, the image's command.
        entrypoint: Some(entrypoint(context)),
        working_dir: Some("/".to_owned()),
        env: Some(
            context
                .env
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        labels: Some(labels(spec, context)),
        exposed_ports: publishes(context).then(|| {
            spec.ports
                .iter()
                .map(|port| format!("{port}/tcp"))
                .collect()
        }),
        host_config: Some(host_config(kind, spec, context)),
        // Nothing of an image runs before the supervisor has compared the mounts: its health check would.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// The supervisor's command line. What must be mounted is a part of it, since nothing in the container can change that: what
/// is in the run directory is what the image and the task's mounts let be seen there.
fn entrypoint(context: ContainerContext<'_>) -> Vec<String> {
    let mut words = vec![context.prepared.supervisor.clone(), "run".to_owned()];
    if !publishes(context) {
        words.push(HOST_NETWORK.to_owned());
    }
    let checked = context.prepared.checked.iter();
    words.extend(checked.map(CheckedMount::option));
    words
}

/// Ports are published unless the container has the host's anyway.
fn publishes(context: ContainerContext<'_>) -> bool {
    context.network_mode != HOST
}

fn labels(spec: &ContainerSpec, context: ContainerContext<'_>) -> HashMap<String, String> {
    [
        (LABEL_CONTAINER, spec.container_id.as_str()),
        (LABEL_ALLOCATION, spec.allocation_id.as_str()),
        (LABEL_TASK, spec.task_id.as_str()),
        (LABEL_DESCRIPTION, &spec.description),
        (LABEL_AGENT, context.agent_id.as_str()),
        (LABEL_CLUSTER, context.cluster_id.as_str()),
        (LABEL_INSTANCE, context.instance_id.as_str()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

fn host_config(
    kind: RuntimeKind,
    spec: &ContainerSpec,
    context: ContainerContext<'_>,
) -> HostConfig {
    let mut mounts = vec![
        bind(&context.dir.run().to_string_lossy(), RUN_DIR, false),
        // Read-only: the file is shared with other tasks and with the host.
        bind(
            &context.dir.supervisor().to_string_lossy(),
            &context.prepared.supervisor,
            true,
        ),
    ];
    let work_dir = spec.user.work_dir(&spec.script.work_dir);
    let own = context.prepared.mounts.iter();
    mounts.extend(own.map(|mount| user_mount(mount, &work_dir)));

    let rocm = rocm_nodes(context);
    let mut devices: Vec<DeviceMapping> = context
        .prepared
        .devices
        .iter()
        .map(|device| mapping(&device.host_path, &device.container_path, &device.mode))
        .collect();
    devices.extend(rocm.iter().map(|node| mapping(node, node, "rwm")));

    let port_bindings = publishes(context).then(|| {
        spec.ports
            .iter()
            .map(|port| {
                let any_port = PortBinding {
                    host_ip: Some(PUBLISHED_ON.to_owned()),
                    host_port: Some(String::new()),
                };
                (format!("{port}/tcp"), Some(vec![any_port]))
            })
            .collect()
    });

    let number = |limit: Option<u64>| limit.and_then(|limit| i64::try_from(limit).ok());
    let limits = context.limits;
    let memory = number(limits.memory_bytes);
    HostConfig {
        memory,
        // Memory and swap together.
        memory_swap: memory,
        // Unlike a number of processors, a quota may be above what the host has.
        cpu_period: limits.cpu_millis.map(|_| PERIOD_MICROS),
        cpu_quota: number(limits.cpu_millis)
            .map(|millis| millis.saturating_mul(PERIOD_MICROS / 1000)),
        pids_limit: number(limits.processes),
        ulimits: (!context.ulimits.is_empty()).then(|| ulimits(context.ulimits)),
        mounts: Some(mounts),
        network_mode: Some(context.network_mode.to_owned()),
        port_bindings,
        shm_size: i64::try_from(spec.shm_size_bytes)
            .ok()
            .filter(|size| *size > 0),
        devices: Some(devices),
        device_requests: gpu_request(kind, context).map(|request| vec![request]),
        cap_add: Some(spec.add_capabilities.clone()),
        cap_drop: Some(context.prepared.dropped_capabilities.clone()),
        security_opt: security_options(spec, !rocm.is_empty()),
        // AMD's devices belong to this group.
        group_add: (!rocm.is_empty()).then(|| vec!["video".to_owned()]),
        log_config: Some(log_config()),
        auto_remove: Some(false),
        ..HostConfig::default()
    }
}

fn ulimits(limits: &[Ulimit]) -> Vec<ResourcesUlimits> {
    limits
        .iter()
        .map(|limit| ResourcesUlimits {
            name: Some(limit.name.clone()),
            soft: Some(limit.soft),
            hard: Some(limit.hard),
        })
        .collect()
}

/// Differences from the engine's default protection of a container.
fn security_options(spec: &ContainerSpec, has_rocm: bool) -> Option<Vec<String>> {
    let mut options = Vec::new();
    if has_rocm {
        // AMD's runtime needs system calls that the default filter refuses.
        options.push("seccomp=unconfined".to_owned());
    }
    if spec.user.uid != 0 {
        // The user chose the image: a setuid-root program in it would give any user root's rights on what is
        // mounted.
        options.push("no-new-privileges".to_owned());
    }
    (!options.is_empty()).then_some(options)
}

/// Asks for exactly the container's NVIDIA GPUs.
fn gpu_request(kind: RuntimeKind, context: ContainerContext<'_>) -> Option<DeviceRequest> {
    let uuids: Vec<String> = context
        .devices
        .iter()
        .filter(|device| device.device.kind == DeviceKind::Cuda)
        .map(|device| device.device.uuid.clone())
        .collect();
    if uuids.is_empty() {
        return None;
    }
    Some(if kind == RuntimeKind::Podman {
        // Any other form is ignored without an error.
        DeviceRequest {
            driver: Some("cdi".to_owned()),
            device_ids: Some(
                uuids
                    .iter()
                    .map(|uuid| format!("nvidia.com/gpu={uuid}"))
                    .collect(),
            ),
            ..DeviceRequest::default()
        }
    } else {
        DeviceRequest {
            device_ids: Some(uuids),
            capabilities: Some(vec![
                ["gpu", "compute", "utility"].map(str::to_owned).to_vec(),
            ]),
            ..DeviceRequest::default()
        }
    })
}

/// Device files of the container's AMD GPUs.
fn rocm_nodes(context: ContainerContext<'_>) -> Vec<String> {
    let mut nodes: Vec<String> = context
        .devices
        .iter()
        .filter(|device| device.device.kind == DeviceKind::Rocm)
        .flat_map(|device| device.nodes.iter())
        .map(|node| node.to_string_lossy().into_owned())
        .collect();
    if context
        .devices
        .iter()
        .any(|device| device.device.kind == DeviceKind::Rocm)
    {
        nodes.insert(0, "/dev/kfd".to_owned());
    }
    // Instances of one GPU share its files.
    nodes.dedup();
    nodes
}

fn mapping(host: &str, container: &str, mode: &str) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(host.to_owned()),
        path_in_container: Some(container.to_owned()),
        cgroup_permissions: Some(mode.to_owned()),
    }
}

fn bind(host: &str, container: &str, read_only: bool) -> EngineMount {
    EngineMount {
        source: Some(host.to_owned()),
        target: Some(container.to_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(read_only),
        ..EngineMount::default()
    }
}

fn user_mount(mount: &Mount, work_dir: &str) -> EngineMount {
    let target = mount.target(work_dir);
    let propagation = match mount.propagation.as_str() {
        "private" => Propagation::PRIVATE,
        "shared" => Propagation::SHARED,
        "rshared" => Propagation::RSHARED,
        "slave" => Propagation::SLAVE,
        "rslave" => Propagation::RSLAVE,
        _ => Propagation::RPRIVATE,
    };
    EngineMount {
        bind_options: Some(MountBindOptions {
            propagation: Some(propagation),
            ..MountBindOptions::default()
        }),
        ..bind(&mount.host_path, &target, mount.read_only)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use det_ids::SlotId;
    use det_taskspec::Device;

    use super::*;
    use crate::containers::prepare::PreparedContainer;
    use crate::containers::store::ContainerDir;
    use crate::devices::LocalDevice;
    use crate::options::Limits;
    use crate::testing::container_spec;

    fn device(id: u32, kind: DeviceKind, nodes: &[&str]) -> LocalDevice {
        LocalDevice {
            device: Device {
                id: SlotId(id),
                brand: "x".into(),
                uuid: format!("GPU-{id}"),
                kind,
            },
            nodes: nodes.iter().map(PathBuf::from).collect(),
            part_of: None,
        }
    }

    fn body(
        kind: RuntimeKind,
        spec: &ContainerSpec,
        devices: &[LocalDevice],
        network_mode: &str,
    ) -> ContainerCreateBody {
        let dir = ContainerDir::new(Path::new("/data/containers"), &spec.container_id).unwrap();
        build(
            kind,
            spec,
            ContainerContext {
                dir: &dir,
                devices,
                agent_id: &"a".into(),
                instance_id: &"i".into(),
                cluster_id: &"c".into(),
                network_mode,
                env: &[("NVIDIA_VISIBLE_DEVICES".into(), "void".into())],
                prepared: &PreparedContainer {
                    mounts: spec.mounts.clone(),
                    devices: spec.devices.clone(),
                    dropped_capabilities: vec!["NET_RAW".into()],
                    checked: vec![CheckedMount {
                        path: "/run/determined".into(),
                        device: 7,
                        inode: 8,
                    }],
                    supervisor: "/det-supervisor-x".into(),
                    ..PreparedContainer::default()
                },
                limits: &Limits {
                    memory_bytes: Some(2 << 30),
                    cpu_millis: Some(1500),
                    processes: Some(500),
                },
                ulimits: &[Ulimit {
                    name: "nofile".into(),
                    soft: 1024,
                    hard: 4096,
                }],
            },
        )
    }

    #[test]
    fn the_supervisor_replaces_the_images_entrypoint() {
        let mut spec = container_spec("c1", "true");
        spec.user.uid = 1000;
        spec.user.gid = 1001;
        spec.image = "busybox".into();
        let body = body(RuntimeKind::Docker, &spec, &[], "bridge");
        assert_eq!(body.image.as_deref(), Some("busybox:latest"));
        assert_eq!(
            body.entrypoint.unwrap(),
            ["/det-supervisor-x", "run", "--mount=7:8:/run/determined"]
        );
        assert_eq!(body.user.as_deref(), Some("1000:1001"));
        assert_eq!(body.env.unwrap(), ["NVIDIA_VISIBLE_DEVICES=void"]);
        assert_eq!(body.labels.unwrap()["ai.determined.container.id"], "c1");
        let host = body.host_config.unwrap();
        assert_eq!(host.auto_remove, Some(false));
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
        assert_eq!(host.device_requests, None);
        let mounts = host.mounts.unwrap();
        assert_eq!(mounts[0].source.as_deref(), Some("/data/containers/c1/run"));
        assert_eq!(mounts[0].target.as_deref(), Some("/run/determined"));
        assert_eq!(mounts[1].target.as_deref(), Some("/det-supervisor-x"));
        assert_eq!(mounts[1].read_only, Some(true));
        assert_eq!(host.cap_drop.unwrap(), ["NET_RAW"]);
        assert_eq!(body.healthcheck.unwrap().test.unwrap(), ["NONE"]);
    }

    #[test]
    fn the_engine_gets_the_limits_of_the_agent() {
        let spec = container_spec("c1", "true");
        let host = body(RuntimeKind::Docker, &spec, &[], "bridge")
            .host_config
            .unwrap();
        assert_eq!(
            (host.memory, host.memory_swap),
            (Some(2 << 30), Some(2 << 30))
        );
        assert_eq!(
            (host.cpu_quota, host.cpu_period),
            (Some(150_000), Some(100_000))
        );
        assert_eq!(host.pids_limit, Some(500));
        let files = ResourcesUlimits {
            name: Some("nofile".into()),
            soft: Some(1024),
            hard: Some(4096),
        };
        assert_eq!(host.ulimits, Some(vec![files]));
    }

    #[test]
    fn docker_gets_gpus_by_uuid_and_podman_by_cdi_name() {
        let spec = container_spec("c1", "true");
        let devices = [
            device(0, DeviceKind::Cuda, &[]),
            device(2, DeviceKind::Cuda, &[]),
        ];
        let request = |kind| {
            body(kind, &spec, &devices, "host")
                .host_config
                .unwrap()
                .device_requests
                .unwrap()
                .remove(0)
        };
        let docker = request(RuntimeKind::Docker);
        assert_eq!(docker.device_ids.unwrap(), ["GPU-0", "GPU-2"]);
        assert_eq!(
            docker.capabilities.unwrap(),
            [["gpu", "compute", "utility"]]
        );
        let podman = request(RuntimeKind::Podman);
        assert_eq!(podman.driver.as_deref(), Some("cdi"));
        assert_eq!(
            podman.device_ids.unwrap(),
            ["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-2"]
        );
    }

    #[test]
    fn amd_gpus_bring_their_device_files_once() {
        let spec = container_spec("c1", "true");
        let devices = [
            device(0, DeviceKind::Rocm, &["/dev/dri/renderD128"]),
            device(1, DeviceKind::Rocm, &["/dev/dri/renderD129"]),
        ];
        let host = body(RuntimeKind::Docker, &spec, &devices, "host")
            .host_config
            .unwrap();
        let paths: Vec<String> = host
            .devices
            .unwrap()
            .into_iter()
            .filter_map(|device| device.path_on_host)
            .collect();
        assert_eq!(
            paths,
            ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
        );
        assert_eq!(host.security_opt.unwrap(), ["seccomp=unconfined"]);
        assert_eq!(host.group_add.unwrap(), ["video"]);
    }

    #[test]
    fn ports_are_published_on_loopback_unless_the_network_is_the_hosts() {
        let mut spec = container_spec("c1", "true");
        spec.ports = vec![1734];
        let bridged = body(RuntimeKind::Docker, &spec, &[], "bridge");
        assert_eq!(bridged.exposed_ports.unwrap(), ["1734/tcp"]);
        let published = bridged.host_config.unwrap().port_bindings.unwrap();
        let binding = PortBinding {
            host_ip: Some("127.0.0.1".into()),
            host_port: Some(String::new()),
        };
        assert_eq!(
            published,
            HashMap::from([("1734/tcp".into(), Some(vec![binding]))])
        );
        let hosted = body(RuntimeKind::Docker, &spec, &[], "host");
        assert_eq!(
            hosted.entrypoint.unwrap(),
            [
                "/det-supervisor-x",
                "run",
                "--host-network",
                "--mount=7:8:/run/determined"
            ]
        );
        assert_eq!(hosted.exposed_ports, None);
        assert_eq!(hosted.host_config.unwrap().port_bindings, None);
    }

    #[test]
    fn mounts_below_the_working_directory_keep_their_propagation() {
        let mut spec = container_spec("c1", "true");
        spec.user.user = "svc".into();
        spec.script.work_dir = "/home/$AGENT_USER".into();
        spec.mounts = vec![Mount {
            host_path: "/nfs/data".into(),
            container_path: "data".into(),
            read_only: true,
            propagation: "rslave".into(),
            create: false,
            trusted: false,
            shared: None,
        }];
        let mounts = body(RuntimeKind::Docker, &spec, &[], "bridge")
            .host_config
            .unwrap()
            .mounts
            .unwrap();
        let data = mounts.last().unwrap();
        assert_eq!(data.target.as_deref(), Some("/home/svc/data"));
        assert_eq!(data.read_only, Some(true));
        assert_eq!(
            data.bind_options.as_ref().unwrap().propagation,
            Some(Propagation::RSLAVE)
        );
    }
}
