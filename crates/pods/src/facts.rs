//! What the objects of an allocation are made from.

use std::collections::BTreeMap;

use det_ids::{ClusterId, PlaceId};
use det_rm::ContainerStart;

use crate::backend::Scheduler;
use crate::devices::ClaimApi;
use crate::seal::Seal;

/// What all objects of one cluster have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Identity of the installation, a UUID.
    pub cluster_id: ClusterId,
    /// What records of its Jobs are sealed with.
    pub seal: Seal,
    /// The master as pods reach it.
    pub master: MasterUrl,
    /// Image with the program `det-supervisor`, from which init containers copy it; `None` = none is configured.
    pub helper_image: Option<String>,
    /// How slots are asked of Kubernetes.
    pub slots: SlotResources,
    /// Version of the API in which devices are claimed.
    pub claims: ClaimApi,
    /// What starts the pods of a gang together.
    pub scheduler: Scheduler,
    /// Whether pods may end pods of a lower priority, by their `PriorityClass`.
    pub preempts: bool,
    /// Seconds between SIGTERM and SIGKILL of pods that name none; the time that a task's own grace takes is the least.
    pub default_grace_seconds: u32,
}

/// The master as pods reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterUrl {
    /// Scheme of the address: `http` or `https`.
    pub scheme: String,
    /// Name or address, an IPv6 address without brackets.
    pub host: String,
    /// Port that it listens on.
    pub port: u16,
    /// How tasks check its certificate.
    pub cert: MasterCert,
    /// Name on its certificate; `None` = the host.
    pub cert_name: Option<String>,
}

impl MasterUrl {
    /// Whether it is reached with TLS.
    pub fn tls(&self) -> bool {
        self.scheme.eq_ignore_ascii_case("https")
    }

    /// The address as `scheme://host:port`; an IPv6 host gets brackets.
    pub fn url(&self) -> String {
        let Self {
            scheme, host, port, ..
        } = self;
        if host.contains(':') && !host.starts_with('[') {
            return format!("{scheme}://[{host}]:{port}");
        }
        format!("{scheme}://{host}:{port}")
    }
}

/// How tasks check the master's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterCert {
    /// With the certificate authorities of their image.
    Usual,
    /// With these certificates, PEM, which are placed in the container.
    Text(String),
    /// Tasks accept any certificate.
    NoVerify,
}

/// How slots are asked of Kubernetes in each pool of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotResources {
    usual: SlotResource,
    of_pools: BTreeMap<String, SlotResource>,
}

impl SlotResources {
    /// `usual` = that of pools which are not in `of_pools`, by name.
    pub fn new(usual: SlotResource, of_pools: BTreeMap<String, SlotResource>) -> Self {
        Self { usual, of_pools }
    }

    /// That of a pool, by its name.
    pub fn of(&self, pool: &str) -> &SlotResource {
        self.of_pools.get(pool).unwrap_or(&self.usual)
    }

    /// That of pools without one of their own, which quotas of workspaces count.
    pub fn usual(&self) -> &SlotResource {
        &self.usual
    }

    /// Whether pools differ in it.
    pub fn differ(&self) -> bool {
        !self.of_pools.is_empty()
    }

    /// Whether only slots give a container some of a resource, by its name: GPUs, what slots are in any pool, and devices of
    /// classes, which Kubernetes gives as a resource as well.
    pub(crate) fn give_alone(&self, resource: &str) -> bool {
        let mut all = self.of_pools.values().chain([&self.usual]);
        is_gpu(resource)
            || resource.starts_with(CLASS_RESOURCES)
            || all.any(|it| matches!(it, SlotResource::Extended(name) if name == resource))
    }

    /// The classes of devices that are slots somewhere.
    pub fn classes(&self) -> impl Iterator<Item = &DeviceClass> {
        let all = self.of_pools.values().chain([&self.usual]);
        all.filter_map(SlotResource::class)
    }
}

impl From<SlotResource> for SlotResources {
    fn from(usual: SlotResource) -> Self {
        Self::new(usual, BTreeMap::new())
    }
}

/// How slots are asked of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotResource {
    /// One of an extended resource for each slot: `nvidia.com/gpu`, `amd.com/gpu`, `nvidia.com/mig-1g.10gb`.
    Extended(String),
    /// A share of a node's processors for each slot.
    Cpu {
        /// Thousandths of a processor for one slot.
        millis: u64,
    },
    /// A device of a class for each slot, which pods claim.
    Devices(DeviceClass),
}

/// A class of devices of which each is a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceClass {
    name: String,
    resource: String,
    driver: Option<String>,
}

impl DeviceClass {
    /// `name` = that of the `DeviceClass`. `driver` = the driver whose devices are counted, where that is not known from the class;
    /// `None` = those that the class selects.
    pub fn new(name: &str, driver: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            resource: format!("{name}.deviceclass.resource.k8s.io/devices"),
            driver,
        }
    }

    /// Name of the `DeviceClass`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The resource that its devices are for quotas of namespaces: `NAME.deviceclass.resource.k8s.io/devices`.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The driver whose devices are counted; `None` = those that the class selects.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }
}

impl SlotResource {
    /// What one slot is of the resource, in the unit in which [`holds`](crate::holds) counts it.
    pub fn per_slot(&self) -> u64 {
        match self {
            Self::Extended(_) | Self::Devices(_) => 1,
            Self::Cpu { millis } => *millis,
        }
    }

    /// Its name among the resources of Kubernetes; that of devices is by which quotas of namespaces count them.
    pub fn name(&self) -> &str {
        match self {
            Self::Extended(name) => name,
            Self::Cpu { .. } => "cpu",
            Self::Devices(class) => &class.resource,
        }
    }

    /// The class of its devices; `None` = slots are not claimed.
    pub fn class(&self) -> Option<&DeviceClass> {
        match self {
            Self::Devices(class) => Some(class),
            Self::Extended(_) | Self::Cpu { .. } => None,
        }
    }
}

/// What the names of the resources begin with by which containers get devices of a class without a claim of their own:
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/>.
const CLASS_RESOURCES: &str = "deviceclass.resource.kubernetes.io/";

fn is_gpu(resource: &str) -> bool {
    resource == "amd.com/gpu" || resource.starts_with("nvidia.com/")
}

/// A container of an allocation, and the node that it was placed on.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// What it runs, and what is known of its task.
    pub start: ContainerStart,
    /// Id of the place, a node in a pool, that it was given.
    pub place: PlaceId,
    /// Name of the node of that place.
    pub node: String,
}

impl Member {
    /// Its rank in the allocation.
    pub(crate) fn rank(&self) -> u32 {
        self.start.origin.member
    }

    /// Name of its resource pool.
    pub(crate) fn pool(&self) -> &str {
        &self.start.origin.resource_pool
    }

    /// Slots that it is granted.
    pub(crate) fn slots(&self) -> u32 {
        self.start.spec.slots.count()
    }
}
