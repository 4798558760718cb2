//! What the objects of an allocation are made from.

use det_ids::{ClusterId, PlaceId};
use det_rm::ContainerStart;

use crate::backend::Scheduler;
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
    pub slots: SlotResource,
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

/// How slots are asked of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotResource {
    /// One of an extended resource for each slot: `nvidia.com/gpu`, `amd.com/gpu`.
    Extended(String),
    /// A share of a node's processors for each slot.
    Cpu {
        /// Thousandths of a processor for one slot.
        millis: u64,
    },
}

impl SlotResource {
    /// What one slot is of the resource, in the unit in which [`holds`](crate::holds) counts it.
    pub fn per_slot(&self) -> u64 {
        match self {
            Self::Extended(_) => 1,
            Self::Cpu { millis } => *millis,
        }
    }

    /// Its name among the resources of Kubernetes.
    pub fn name(&self) -> &str {
        match self {
            Self::Extended(name) => name,
            Self::Cpu { .. } => "cpu",
        }
    }
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

    /// Slots that it is granted.
    pub(crate) fn slots(&self) -> u32 {
        self.start.spec.slots.count()
    }
}
