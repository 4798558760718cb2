//! The manager of one cluster with GPUs, for tests and measurements.
#![allow(unreachable_pub, reason = "it is a module of several programs")]

use std::path::PathBuf;
use std::time::Duration;

use det_rm_kube::{
    Exposure, MasterCert, MasterSettings, PoolSettings, Scheduler, Seal, Settings, SlotResource,
};
use det_taskspec::DeviceKind;

/// Settings with one pool.
pub fn settings(kubeconfig: PathBuf) -> Settings {
    Settings {
        manager: "k".to_owned(),
        is_main: true,
        cluster_id: "0a1b2c3d-0000-0000-0000-000000000000".into(),
        seal: Seal::new("secret", ""),
        kubeconfig: Some(kubeconfig),
        namespace: String::new(),
        pools: vec![PoolSettings {
            name: "default".to_owned(),
            namespace: None,
            pod_spec: None,
            growth: None,
        }],
        slots: SlotResource::Extended("nvidia.com/gpu".to_owned()).into(),
        slot_kind: DeviceKind::Cuda,
        master: MasterSettings {
            scheme: None,
            host: Some("master.example".to_owned()),
            port: 8080,
            service: None,
            serves_tls: false,
            cert: MasterCert::Usual,
            cert_name: None,
        },
        exposure: Exposure::PodIp,
        helper_image: Some("helper".to_owned()),
        scheduler: Scheduler::Native,
        preempts: false,
        leaves_objects: false,
        start_within: Duration::from_mins(1),
        adopt_within: Duration::ZERO,
        pull_within: Duration::from_mins(5),
    }
}
