//! The keys of managers of Kubernetes clusters.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};

use super::IGNORED;
use super::slot_type::{self, OBJECT_NAME, RESOURCE_NAME, SLOT_TYPE_OF_PODS, SlotType};
use crate::container::schema::NOT_EMPTY;
use crate::errors::ErrorCode;
use crate::quote::cut;
use crate::schema::{Findings, Kind, NATURAL_32, PORT, Special, Walk, keys, text_by};
use crate::yaml::{Node, Tree};

keys! {
    /// What only managers of Kubernetes clusters are configured with.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct KubernetesManager, KUBERNETES {
        /// Namespace of tasks of workspaces without one; must exist.
        default_namespace: String = Kind::Text, or("\"\"");
        /// Most slots of a pod; 0 = no task of two or more slots.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_slots_per_pod: Option<u32> = NATURAL_32;
        /// Service by which pods reach the master.
        #[serde(skip_serializing_if = "Option::is_none")]
        master_service_name: Option<String> = Kind::Text;
        /// What a slot is: an NVIDIA GPU, an AMD GPU, processors, or a device that pods claim.
        slot_type: SlotType = Kind::Special(&SLOT_TYPE_OF_PODS), or("\"cuda\"");
        /// Extended resource of which a slot is one; `nvidia.com/gpu` or `amd.com/gpu` unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot_resource_name: Option<String> = Kind::Special(&RESOURCE_NAME);
        /// `DeviceClass` of the devices that are slots, for slot type `dra`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_class: Option<String> = Kind::Special(&OBJECT_NAME);
        /// Driver whose devices are counted, where the class selects by what the master does not evaluate.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_driver: Option<String> = Kind::Special(&OBJECT_NAME);
        /// What a slot asks for.
        slot_resource_requests: SlotRequests = Kind::Section(&SLOT_REQUESTS), or("{}");
        /// How pods are scheduled beyond what Kubernetes does.
        default_scheduler: PodScheduler = Kind::Special(&DEFAULT_SCHEDULER), or("\"\"");
        /// Queue that `kueue` or `volcano` starts tasks from; empty = by the pool's name, that of the namespace.
        scheduler_queue: String = Kind::Text, or("\"\"");
        /// File with the access to the cluster; without one that of the pod.
        kubeconfig_path: String = Kind::Text, or("\"\"");
        /// Scheme by which pods reach the master.
        #[serde(skip_serializing_if = "Option::is_none")]
        determined_master_scheme: Option<String> = Kind::Choice(&["http", "https"]);
        /// Host by which pods reach the master.
        #[serde(skip_serializing_if = "Option::is_none")]
        determined_master_host: Option<String> = Kind::Text;
        /// Port by which pods reach the master.
        #[serde(skip_serializing_if = "Option::is_none")]
        determined_master_port: Option<u16> = PORT;
        /// Keep the objects of ended tasks, for debugging.
        leave_kubernetes_resources: bool = Kind::Bool, or("false");
        /// Gateway of the cluster through which the master connects to services of tasks; implies `task_exposure: gateway`.
        #[serde(skip_serializing_if = "Option::is_none")]
        internal_task_gateway: Option<TaskGateway> = Kind::Section(&GATEWAY);
        /// How the master connects to services of tasks: at the addresses of pods, by port-forward of the API, through a Gateway, or at ports of nodes; `gateway` where `internal_task_gateway` is given.
        #[serde(skip_serializing_if = "Option::is_none")]
        task_exposure: Option<TaskExposure> = Kind::Choice(&["pod_ip", "port_forward", "gateway", "node_port"]),
            built_in("\"pod_ip\"");
        /// Image with `det-supervisor`, which init containers copy into each pod: that of the master.
        helper_image: String = Kind::Text, or("\"\"");
    }
    without field {
        /// Settings of Fluent Bit, which shipped the logs of pods in old versions; supervisors send logs now.
        fluent = Kind::Any, warn(IGNORED);
        /// Name of a Secret with access to the cluster, which the Helm chart reads.
        kubeconfig_secret_name = Kind::Any, warn(SECRET_OF_CHART);
        /// Key of that Secret under which the kubeconfig is, which the Helm chart reads.
        kubeconfig_secret_value = Kind::Any, warn(SECRET_OF_CHART);
    }
    without key {
        /// The keys of older versions, as given.
        #[serde(flatten)]
        ignored: Map<String, Value>;
    }
}

const SECRET_OF_CHART: &str =
    "is ignored; the chart mounts that secret, and `kubeconfig_path` names the file";

keys! {
    /// What a slot asks for.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct SlotRequests, SLOT_REQUESTS {
        /// Processors of a slot, for slots of type `cpu`.
        cpu: Number = Kind::AtLeast(0.0), or("0");
    }
}

/// How the master connects to services of tasks in a cluster: notebooks, shells, TensorBoards and ports of `proxy_ports`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskExposure {
    /// At the addresses of pods, which the master's network must have routes to.
    PodIp,
    /// Through the API server, by port-forward of the pod.
    PortForward,
    /// Through a Gateway of the cluster: [`KubernetesManager::internal_task_gateway`].
    Gateway,
    /// At ports of the node that the pod runs on.
    NodePort,
}

impl KubernetesManager {
    /// How the master connects to services of tasks: a gateway alone means that it is used, as in the earlier product, which
    /// had no other key.
    pub fn exposure(&self) -> TaskExposure {
        match (self.task_exposure, &self.internal_task_gateway) {
            (Some(exposure), _) => exposure,
            (None, Some(_)) => TaskExposure::Gateway,
            (None, None) => TaskExposure::PodIp,
        }
    }
}

keys! {
    /// The Gateway through which the master connects to services of tasks.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TaskGateway, GATEWAY {
        /// Name of the Gateway.
        gateway_name: String = Kind::Special(&DNS_LABEL), always;
        /// Namespace of the Gateway.
        gateway_namespace: String = Kind::Special(&DNS_LABEL), always;
        /// Address at which the master reaches the Gateway: an IP address or the name of a host.
        gateway_ip: String = Kind::Special(&NOT_EMPTY), always;
        /// First port of the Gateway that is given to a service of a task.
        gateway_port_range_start: u16 = Kind::Int(1025, 65_535), or("32768");
        /// Last port of the Gateway that is given to a service of a task.
        gateway_port_range_end: u16 = Kind::Int(1025, 65_535), or("65535");
    }
    with check(gateway)
}

/// How pods are scheduled beyond what Kubernetes does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodScheduler {
    /// The master alone decides when pods start and which ones give way.
    #[serde(rename = "")]
    Master,
    /// As [`Self::Master`], and pods of a higher priority interrupt others.
    Preemption,
    /// The coscheduling plugin starts gangs.
    Coscheduler,
    /// The cluster's own scheduler starts gangs, by a `PodGroup`.
    Podgroup,
    /// Kueue decides when the pods of a task start.
    Kueue,
    /// Volcano decides when the pods of a task start.
    Volcano,
    /// Nothing starts the pods of a gang together.
    None,
}

/// What may start gangs; empty = the master, which `preemption` is too.
const SCHEDULERS: &[&str] = &[
    "",
    "coscheduler",
    "preemption",
    "podgroup",
    "kueue",
    "volcano",
    "none",
];

static DEFAULT_SCHEDULER: Special = text_by(
    "`coscheduler`, `preemption`, `podgroup`, `kueue`, `volcano`, `none`, or empty",
    || json!({"enum": SCHEDULERS}),
    default_scheduler,
);

fn default_scheduler(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("priority") {
        return walk.findings.error_hint(
            node.at.as_ref(),
            ErrorCode::Removed.message("\"priority\" was removed"),
            "use \"preemption\"",
        );
    }
    walk.value(node, Kind::Choice(SCHEDULERS));
}

fn gateway(findings: &mut Findings, node: &Node) {
    let port = |key: &str, default: i64| node.get(key).and_then(Node::integer).unwrap_or(default);
    let start = port("gateway_port_range_start", 32_768);
    let end = port("gateway_port_range_end", 65_535);
    if start >= end {
        let at = node
            .get("gateway_port_range_end")
            .or_else(|| node.get("gateway_port_range_start"))
            .and_then(|node| node.at.clone());
        let message = ErrorCode::OutOfRange.message(format!(
            "must be above \"gateway_port_range_start\", which is {start}, not {end}"
        ));
        findings.error_in("gateway_port_range_end", at.as_ref(), message);
    }
}

static DNS_LABEL: Special = text_by(
    "name as in DNS",
    || json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}),
    dns_label,
);

/// RFC 1123, section 2.1: lower case letters, digits and hyphens, at most 63.
fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn dns_label(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(text) if is_dns_label(text) => {}
        Some(text) => {
            let message = format!(
                "must be a name of lower case letters, digits and hyphens, not \"{}\"",
                cut(text)
            );
            walk.findings.error(node.at.as_ref(), message);
        }
        None => walk.value(node, Kind::Text),
    }
}

/// A way to services and the Gateway that is one: both together must agree.
fn exposure(findings: &mut Findings, node: &Node) {
    let Some(given) = node.get("task_exposure") else {
        return;
    };
    let has_gateway = node
        .get("internal_task_gateway")
        .is_some_and(|node| !matches!(node.tree, Tree::Null));
    let message = match given.text() {
        Some("gateway") if !has_gateway => {
            "is \"gateway\", which needs \"internal_task_gateway\": name the Gateway there, or choose another way"
                .to_owned()
        }
        Some(way) if has_gateway && way != "gateway" => format!(
            "is \"{way}\", and \"internal_task_gateway\", which is another way to services of tasks, is given as well: \
             remove one of them"
        ),
        _ => return,
    };
    let message = ErrorCode::Conflict.message(message);
    findings.error_in("task_exposure", given.at.as_ref(), message);
}

/// Rules between the keys, once all layers are merged.
pub(super) fn complete(findings: &mut Findings, node: &Node) {
    exposure(findings, node);
    slot_type::of_manager(findings, node);
    let slots = node.get("slot_type");
    let processors = node.find("slot_resource_requests.cpu");
    let positive = processors.is_some_and(
        |node| matches!(&node.tree, Tree::Number(n) if n.as_f64().is_some_and(|n| n > 0.0)),
    );
    if slots.and_then(Node::text) == Some("cpu") && !positive {
        let at = slots.and_then(|node| node.at.as_ref());
        findings.within("slot_resource_requests", |findings| {
            findings.error_in(
                "cpu",
                at,
                ErrorCode::OutOfRange.message("must be above 0 for slot type \"cpu\""),
            );
        });
    }
}
