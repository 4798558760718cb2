//! What the manager of one cluster is configured with.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use det_ids::{ClusterId, PlaceId};
use det_pods::{GatewayName, MasterCert, Scheduler, Seal, SlotResource, SlotResources};
use det_taskspec::DeviceKind;
use serde_json::Value;

/// What the manager of one Kubernetes cluster is configured with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Name of the manager, unique in the master's configuration.
    pub manager: String,
    /// Whether it is the master's main manager: nodes of its first pool are places by their own names.
    pub is_main: bool,
    /// Identity of the master's cluster, a UUID: part of the names of all objects, and a label on them.
    pub cluster_id: ClusterId,
    /// What records of its Jobs are sealed with.
    pub seal: Seal,
    /// File with the access to the cluster; `None` = that of the pod that the master runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of tasks whose pool has none; empty = that of the access.
    pub namespace: String,
    /// Its pools, in the order of the configuration.
    pub pools: Vec<PoolSettings>,
    /// How slots are asked of Kubernetes.
    pub slots: SlotResources,
    /// What users are shown a slot as.
    pub slot_kind: DeviceKind,
    /// How pods reach the master.
    pub master: MasterSettings,
    /// How the master connects to ports of pods.
    pub exposure: Exposure,
    /// Image with the supervisor, which brings it into every pod.
    pub helper_image: Option<String>,
    /// What starts the pods of a gang together. Which version of a `PodGroup` the cluster has is found by the manager.
    pub scheduler: Scheduler,
    /// Whether pods may end pods of a lower priority, by their `PriorityClass`.
    pub preempts: bool,
    /// Whether Jobs of ended tasks are left to Kubernetes, which deletes them after a while.
    pub leaves_objects: bool,
    /// How long Kubernetes may take to assign a pod to its node.
    pub start_within: Duration,
    /// How long after it begins the manager keeps placeholders of tasks that it does not know to wait: the nodes that those
    /// wait for may not have joined yet.
    pub adopt_within: Duration,
    /// How long an image may fail to be pulled for reasons that may pass.
    pub pull_within: Duration,
}

/// How the master connects to ports of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exposure {
    /// At the addresses of pods, which the master's network must have routes to.
    PodIp,
    /// Through the API server, by port-forward of the pod.
    PortForward {
        /// How long is waited for a refusal after a forward has begun: that nothing listens is not known before. Where
        /// something was found to listen, it is not waited for.
        refused_within: Duration,
    },
    /// Through listeners of a Gateway of the cluster.
    Gateway(GatewaySettings),
    /// At ports of the nodes that pods run on, which the master's network must have routes to.
    NodePort,
}

/// The Gateway through which services of tasks are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Which Gateway it is.
    pub gateway: GatewayName,
    /// Address at which the master reaches it: an IP address, or the name of a host.
    pub address: String,
    /// The ports of it that are given to services of tasks.
    pub ports: RangeInclusive<u16>,
}

/// A pool of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// Name of the pool.
    pub name: String,
    /// Namespace of its tasks; `None` = the manager's.
    pub namespace: Option<String>,
    /// Customisation of its pods, by which nodes belong to it; `None` = all nodes do.
    pub pod_spec: Option<Value>,
    /// How nodes are asked for; `None` = they are not.
    pub growth: Option<GrowthSettings>,
}

/// How a pool asks for nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrowthSettings {
    /// Most pods that ask at a time.
    pub max_pending_pods: u32,
    /// How long a task asks for nodes before it stops for a while.
    pub give_up_after: Duration,
    /// Image of the pods that ask.
    pub image: String,
}

/// How pods reach the master.
#[derive(Debug, Clone, PartialEq)]
pub struct MasterSettings {
    /// `http` or `https`; `None` = as the master serves.
    pub scheme: Option<String>,
    /// Its host; `None` = that of its service.
    pub host: Option<String>,
    /// Port on which pods reach the master.
    pub port: u16,
    /// Its Kubernetes service, in the namespace that the master runs in.
    pub service: Option<String>,
    /// Whether the master itself serves with TLS.
    pub serves_tls: bool,
    /// How its certificate is checked.
    pub cert: MasterCert,
    /// Name on its certificate, where it is not the host's.
    pub cert_name: Option<String>,
}

impl Settings {
    /// The place that a node is in a pool. Nodes of the main manager's first pool have their own names; a node that is in
    /// another pool as well is another place there, with the pool's name behind it.
    pub(crate) fn place(&self, node: &str, pool: usize) -> PlaceId {
        if pool == 0 && self.is_main {
            PlaceId::from(node)
        } else {
            PlaceId::from(format!("{node}@{}", self.pools[pool].name).as_str())
        }
    }

    /// Whether slots of another place of a node are of something else than these.
    pub(crate) fn differs(&self, node: &str, place: &PlaceId, slots: &SlotResource) -> bool {
        let mut pools = self.pools.iter().enumerate();
        self.slots.differ()
            && pools.any(|(number, pool)| {
                self.slots.of(&pool.name).name() != slots.name()
                    && self.place(node, number) == *place
            })
    }

    /// Whether nodes are asked for in a pool, by its name.
    pub(crate) fn grows(&self, pool: &str) -> bool {
        let mut pools = self.pools.iter();
        pools.any(|it| it.name == pool && it.growth.is_some())
    }

    /// The namespace of a pool's tasks, by the pool's name.
    pub(crate) fn namespace_of(&self, pool: &str) -> Option<&str> {
        let own = self.pools.iter().find(|it| it.name == pool);
        let own = own.and_then(|pool| pool.namespace.as_deref());
        own.or(Some(self.namespace.as_str()))
            .filter(|namespace| !namespace.is_empty())
    }
}
