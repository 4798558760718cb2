//! What the managers of Kubernetes clusters are configured with, from the master's configuration, and what they seal Jobs with.

use std::time::Duration;

use det_config::master::{
    KubernetesManager, ManagerSettings, MasterConfig, PodScheduler, ResourcePool, SlotType,
    TaskExposure, TaskGateway,
};
use det_ids::ClusterId;
use det_rm_kube::{
    DeviceClass, Exposure, GatewayName, GatewaySettings, GroupApi, GrowthSettings, MasterCert,
    MasterSettings, PoolSettings, Scheduler, Seal, Settings, SlotResource, SlotResources,
};
use det_store::{Conn, StoreError, settings};
use det_taskspec::DeviceKind;
use serde_json::Value;

/// How long Kubernetes may take to assign a pod to the node that was chosen for it.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long an image may fail to be pulled for reasons that may pass.
const PULL_WITHIN: Duration = Duration::from_mins(5);

/// How long a forward that has begun is held to find out whether something listens: a node takes some milliseconds to refuse.
const REFUSED_WITHIN: Duration = Duration::from_millis(100);

/// How long after the master begins pods that ask for nodes stay, though their tasks are not known to wait yet.
const ADOPT_WITHIN: Duration = Duration::from_secs(15);

/// Setting with the secret that records of Jobs are sealed with.
const SECRET: &str = "job_seal_secret";
/// Setting with when it was made.
const SINCE: &str = "job_seal_since";

/// What records of Jobs are sealed with, made at the first start that seals. Before Jobs are made: those of earlier versions
/// are known by the time of their creation.
pub(crate) async fn seal(conn: &mut Conn<'_>) -> Result<Seal, StoreError> {
    if let (Some(secret), Some(since)) = (
        settings::find(conn, SECRET).await?,
        settings::find(conn, SINCE).await?,
    ) {
        return Ok(Seal::new(&secret, &since));
    }
    let secret = hex::encode(rand::random::<[u8; 32]>());
    let since = jiff::Timestamp::now();
    let since = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    settings::set(conn, SECRET, &secret).await?;
    settings::set(conn, SINCE, &since).await?;
    Ok(Seal::new(&secret, &since))
}

/// The managers of Kubernetes clusters of a configuration.
///
/// # Errors
/// A sentence: the master's certificate cannot be read.
pub(super) fn settings(
    config: &MasterConfig,
    identity: (&ClusterId, &Seal),
) -> Result<Vec<Settings>, String> {
    let mut managers = Vec::new();
    for (number, (manager, pools)) in config.managers().enumerate() {
        if let ManagerSettings::Kubernetes(cluster) = &manager.settings {
            let manager = (manager.cluster_name.as_str(), &**cluster, number == 0);
            managers.push(of(config, identity, manager, pools)?);
        }
    }
    Ok(managers)
}

fn of(
    config: &MasterConfig,
    (cluster_id, seal): (&ClusterId, &Seal),
    (name, manager, is_main): (&str, &KubernetesManager, bool),
    pools: &[ResourcePool],
) -> Result<Settings, String> {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let (usual, slot_kind) = slots(manager);
    let of_pools = pools
        .iter()
        .filter_map(|pool| Some((pool.pool_name.clone(), slots_of_pool(pool)?)));
    let pool = |pool: &ResourcePool| PoolSettings {
        name: pool.pool_name.clone(),
        namespace: pool
            .kubernetes_namespace
            .clone()
            .filter(|it| !it.is_empty()),
        pod_spec: membership(config, pool),
        growth: pool.autoscaling.as_ref().map(|growing| GrowthSettings {
            max_pending_pods: growing.max_pending_pods,
            give_up_after: growing.give_up_after,
            image: growing.image.clone(),
        }),
    };
    let port = manager.determined_master_port.filter(|port| *port != 0);
    let cert = &config.security.tls.cert;
    Ok(Settings {
        manager: name.to_owned(),
        is_main,
        cluster_id: cluster_id.clone(),
        seal: seal.of_manager(name),
        kubeconfig: given(&manager.kubeconfig_path).map(Into::into),
        namespace: manager.default_namespace.clone(),
        pools: pools.iter().map(pool).collect(),
        slots: SlotResources::new(usual, of_pools.collect()),
        slot_kind,
        master: MasterSettings {
            scheme: (manager.determined_master_scheme.as_deref()).and_then(given),
            host: (manager.determined_master_host.as_deref()).and_then(given),
            port: port.unwrap_or_else(|| config.effective_port()),
            service: (manager.master_service_name.as_deref()).and_then(given),
            serves_tls: !cert.is_empty(),
            cert: match cert.as_str() {
                "" => MasterCert::Usual,
                file => MasterCert::Text(std::fs::read_to_string(file).map_err(|error| {
                    format!("the master's certificate \"{file}\" cannot be read: {error}")
                })?),
            },
            cert_name: None,
        },
        exposure: exposure(manager),
        helper_image: given(&manager.helper_image),
        scheduler: scheduler(manager.default_scheduler, manager.scheduler_queue.clone()),
        preempts: manager.default_scheduler == PodScheduler::Preemption,
        leaves_objects: manager.leave_kubernetes_resources,
        start_within: START_WITHIN,
        adopt_within: ADOPT_WITHIN,
        pull_within: PULL_WITHIN,
    })
}

/// How services of tasks are reached.
fn exposure(manager: &KubernetesManager) -> Exposure {
    match (manager.exposure(), &manager.internal_task_gateway) {
        (TaskExposure::PortForward, _) => Exposure::PortForward {
            refused_within: REFUSED_WITHIN,
        },
        (TaskExposure::Gateway, Some(gateway)) => Exposure::Gateway(gateway_settings(gateway)),
        (TaskExposure::NodePort, _) => Exposure::NodePort,
        // The configuration refuses this way without a gateway.
        (TaskExposure::PodIp, _) | (TaskExposure::Gateway, None) => Exposure::PodIp,
    }
}

fn gateway_settings(gateway: &TaskGateway) -> GatewaySettings {
    GatewaySettings {
        gateway: GatewayName {
            namespace: gateway.gateway_namespace.clone(),
            name: gateway.gateway_name.clone(),
        },
        address: gateway.gateway_ip.clone(),
        ports: gateway.gateway_port_range_start..=gateway.gateway_port_range_end,
    }
}

/// The pod by which nodes belong to a pool: what the pool has for tasks with slots, else of those without, else what the
/// cluster has for tasks with slots.
fn membership(config: &MasterConfig, pool: &ResourcePool) -> Option<Value> {
    let of_pool = pool.task_container_defaults.as_ref();
    let of_pool = of_pool.and_then(|own| own.gpu_pod_spec.as_ref().or(own.cpu_pod_spec.as_ref()));
    of_pool
        .or(config.task_container_defaults.gpu_pod_spec.as_ref())
        .cloned()
}

/// What starts the pods of a gang together.
fn scheduler(configured: PodScheduler, queue: String) -> Scheduler {
    match configured {
        PodScheduler::Coscheduler => Scheduler::Coscheduler,
        // The manager finds out which version the cluster has.
        PodScheduler::Podgroup => Scheduler::PodGroup(GroupApi::V1Beta1),
        PodScheduler::Kueue => Scheduler::Kueue { queue },
        PodScheduler::Volcano => Scheduler::Volcano { queue },
        PodScheduler::None => Scheduler::None,
        // With preemption too, which is the master's own.
        PodScheduler::Master | PodScheduler::Preemption => Scheduler::Native,
    }
}

/// What a slot is in a cluster, and what users are shown it as.
fn slots(manager: &KubernetesManager) -> (SlotResource, DeviceKind) {
    let extended = |usual: &str| {
        let named = manager.slot_resource_name.as_deref();
        SlotResource::Extended(named.unwrap_or(usual).to_owned())
    };
    match manager.slot_type {
        SlotType::Rocm => (extended("amd.com/gpu"), DeviceKind::Rocm),
        SlotType::Cpu => {
            let cpus = manager.slot_resource_requests.cpu.as_f64();
            // The configuration refuses slots of no size.
            let millis = (cpus.unwrap_or(1.0) * 1000.0).round().max(1.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of processors, at least a thousandth"
            )]
            let millis = millis as u64;
            (SlotResource::Cpu { millis }, DeviceKind::Cpu)
        }
        SlotType::Cuda => (extended("nvidia.com/gpu"), DeviceKind::Cuda),
        SlotType::Dra => {
            // The configuration demands a class.
            let class = manager.device_class.as_deref().unwrap_or_default();
            // By what classes of AMD's driver are called; the kind decides which image tasks get.
            let kind = if class.ends_with("amd.com") {
                DeviceKind::Rocm
            } else {
                DeviceKind::Cuda
            };
            let class = DeviceClass::new(class, manager.device_driver.clone());
            (SlotResource::Devices(class), kind)
        }
    }
}

/// What a slot is in a pool, where it is something else than in the rest of the cluster.
fn slots_of_pool(pool: &ResourcePool) -> Option<SlotResource> {
    let extended = pool.slot_resource_name.clone();
    let class = pool.device_class.as_deref();
    let class = class.map(|class| DeviceClass::new(class, pool.device_driver.clone()));
    extended
        .map(SlotResource::Extended)
        .or(class.map(SlotResource::Devices))
}

#[cfg(test)]
mod tests {
    use det_config::{LoadedMaster, Sources};

    use super::*;

    fn managers(text: &str) -> Vec<Settings> {
        let files = [("master.yaml".to_owned(), text.to_owned())];
        let sources = Sources {
            files: &files,
            ..Sources::default()
        };
        let config = LoadedMaster::load(sources).unwrap_or_else(|errors| panic!("{errors}"));
        let identity = (&"cluster".into(), &Seal::new("secret", ""));
        settings(&config.config, identity).unwrap()
    }

    #[test]
    fn each_manager_reaches_pods_as_it_is_configured() {
        let found = managers(
            "
            resource_manager: {type: kubernetes, max_slots_per_pod: 8, determined_master_host: m}
            additional_resource_managers:
            - resource_manager:
                type: kubernetes
                cluster_name: west
                max_slots_per_pod: 8
                determined_master_host: m
                task_exposure: port_forward
              resource_pools: [{pool_name: west}]
            - resource_manager:
                type: kubernetes
                cluster_name: south
                max_slots_per_pod: 8
                determined_master_host: m
                task_exposure: node_port
              resource_pools: [{pool_name: south}]
            - resource_manager:
                type: kubernetes
                cluster_name: east
                max_slots_per_pod: 8
                determined_master_host: m
                internal_task_gateway:
                  {gateway_name: g, gateway_namespace: n, gateway_ip: h, gateway_port_range_start: 50000}
              resource_pools: [{pool_name: east}]
        ",
        );
        assert_eq!(found[0].exposure, Exposure::PodIp);
        let refused_within = REFUSED_WITHIN;
        assert_eq!(found[1].exposure, Exposure::PortForward { refused_within });
        assert_eq!(found[2].exposure, Exposure::NodePort);
        let gateway = GatewaySettings {
            gateway: GatewayName {
                namespace: "n".to_owned(),
                name: "g".to_owned(),
            },
            address: "h".to_owned(),
            ports: 50_000..=65_535,
        };
        assert_eq!(found[3].exposure, Exposure::Gateway(gateway));
    }

    #[test]
    fn slots_are_what_the_manager_or_the_pool_names() {
        let found = managers(
            "
            resource_manager:
              type: kubernetes
              max_slots_per_pod: 8
              determined_master_host: m
              slot_resource_name: nvidia.com/mig-1g.10gb
            resource_pools: [{pool_name: default}, {pool_name: whole, slot_resource_name: nvidia.com/gpu}]
            additional_resource_managers:
            - resource_manager:
                type: kubernetes
                cluster_name: west
                max_slots_per_pod: 8
                determined_master_host: m
                slot_type: dra
                device_class: gpu.amd.com
              resource_pools: [{pool_name: west}, {pool_name: old, device_class: old, device_driver: d.example.com}]
        ",
        );
        let slots = &found[0].slots;
        assert_eq!(slots.of("default").name(), "nvidia.com/mig-1g.10gb");
        assert_eq!(slots.of("whole").name(), "nvidia.com/gpu");
        assert_eq!(found[0].slot_kind, DeviceKind::Cuda);
        let slots = &found[1].slots;
        let class = |pool: &str| slots.of(pool).class().cloned();
        assert_eq!(class("west"), Some(DeviceClass::new("gpu.amd.com", None)));
        let driver = Some("d.example.com".to_owned());
        assert_eq!(class("old"), Some(DeviceClass::new("old", driver)));
        assert_eq!(found[1].slot_kind, DeviceKind::Rocm);
    }

    #[test]
    fn nodes_belong_to_a_pool_by_its_own_pods_before_those_of_the_cluster() {
        let text = "
            resource_manager: {type: kubernetes, max_slots_per_pod: 8, determined_master_host: m}
            task_container_defaults: {gpu_pod_spec: {spec: {nodeSelector: {of: cluster}}}}
            resource_pools:
            - {pool_name: default}
            - {pool_name: cpu, task_container_defaults: {cpu_pod_spec: {spec: {nodeSelector: {of: cpu}}}}}
            - pool_name: both
              task_container_defaults:
                cpu_pod_spec: {spec: {nodeSelector: {of: cpu}}}
                gpu_pod_spec: {spec: {nodeSelector: {of: gpu}}}
        ";
        let managers = managers(text);
        let pools = managers[0].pools.iter();
        let of =
            pools.map(|pool| pool.pod_spec.as_ref().unwrap()["spec"]["nodeSelector"]["of"].clone());
        assert_eq!(of.collect::<Vec<_>>(), ["cluster", "cpu", "gpu"]);
    }
}
