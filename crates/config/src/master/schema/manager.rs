//! The keys of resource managers and their schedulers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{CLIENT_TLS, IGNORED, ResourcePool, filled};
use crate::container::schema::{NOT_EMPTY, TASK_CONTAINER_DEFAULTS};
use crate::errors::ErrorCode;
use crate::master::types::{FittingPolicy, ManagerKind, SchedulerKind};
use crate::quote::cut;
use crate::schema::{
    Aliases, Field, Findings, Kind, NATURAL_32, PORT, Section, Special, Union, Walk, field, keys,
    section, text_by, union, variant,
};
use crate::yaml::{Node, Tree};

/// A further resource manager with its pools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdditionalManager {
    /// The manager, with a name of its own.
    pub resource_manager: ResourceManager,
    /// Its pools, at least one.
    pub resource_pools: Vec<ResourcePool>,
}

/// The resource manager, which has containers run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceManager {
    /// How it runs containers.
    #[serde(rename = "type")]
    pub kind: ManagerKind,
    /// Name of this manager.
    pub cluster_name: String,
    /// Names and values that users are shown; nothing depends on them.
    pub metadata: BTreeMap<String, String>,
    /// Scheduler of pools without one of their own.
    pub scheduler: Option<Scheduler>,
    /// Pool of work without slots; `None` = the only pool, or `default`.
    pub default_aux_resource_pool: Option<String>,
    /// Pool of work with slots; `None` = the only pool, or `default`.
    pub default_compute_resource_pool: Option<String>,
    /// Whether every task must name its pool.
    pub no_default_resource_pools: bool,
    /// The other keys, as given.
    #[serde(flatten)]
    pub kept: Map<String, Value>,
}

keys! {
    /// A scheduler block as written.
    #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Scheduler, SCHEDULER {
        /// Order of the queue; blank means `fair_share`, unless a key of `priority` is given.
        #[serde(rename = "type")]
        kind as "type": Option<SchedulerKind> = Kind::Choice(&["fair_share", "priority", "round_robin"]),
            also("{\"const\": \"\"}");
        /// Which agent among those with free slots: the one that is then fullest, or emptiest.
        fitting_policy: Option<FittingPolicy> = Kind::Choice(&["best", "worst"]), built_in("\"best\"");
        /// Whether a task that needs several agents may have unequal parts of them, and parts of agents that are in use.
        allow_heterogeneous_fits: Option<bool> = Kind::Bool, built_in("false");
        /// Whether higher priority interrupts lower; for `priority`.
        preemption: Option<bool> = Kind::Bool, built_in("false");
        /// Priority of work that names none; lower goes first on agents, higher on Kubernetes; for `priority`.
        default_priority: Option<u8> = Kind::Int(1, 99), built_in("42");
    }
    with named("scheduler").aliases(&[("fit", "fitting_policy", true)]).check(scheduler)
}

fn scheduler(findings: &mut Findings, node: &Node) {
    if let Some(kind @ ("fair_share" | "round_robin")) = node.get("type").and_then(Node::text) {
        for key in ["preemption", "default_priority"] {
            if let Some(given) = node.get(key) {
                let text =
                    format!("means something only for scheduler \"priority\", not \"{kind}\"");
                findings.warn_in(key, given.at.as_ref(), text);
            }
        }
    }
}

const ALIASES: Aliases = &[
    (
        "default_cpu_resource_pool",
        "default_aux_resource_pool",
        true,
    ),
    (
        "default_gpu_resource_pool",
        "default_compute_resource_pool",
        true,
    ),
    ("name", "cluster_name", true),
    ("namespace", "default_namespace", true),
    ("determined_master_ip", "determined_master_host", true),
];

pub(super) static RESOURCE_MANAGER: Union = union(
    "type",
    "Kind of manager",
    &[
        field("cluster_name", Kind::Text, "Name of this manager, unique").or("\"default\""),
        field("metadata", Kind::Map(&Kind::Text), "Free tags").or("{}"),
        field(
            "default_aux_resource_pool",
            Kind::Text,
            "Pool of work without slots that names none",
        )
        .built_in("\"default\""),
        field(
            "default_compute_resource_pool",
            Kind::Text,
            "Pool of work with slots that names none",
        )
        .built_in("\"default\""),
        field(
            "no_default_resource_pools",
            Kind::Bool,
            "Whether every task must name its pool",
        )
        .or("false"),
    ],
    &[
        variant(
            "agent",
            &[
                field(
                    "scheduler",
                    Kind::Section(&SCHEDULER),
                    "Scheduler of pools without one of their own",
                ),
                field(
                    "require_authentication",
                    Kind::Bool,
                    "Whether agents must present a certificate",
                )
                .or("false")
                .kept(),
                field(
                    "client_ca",
                    Kind::Text,
                    "File with the authority of the agents' certificates",
                )
                .or("\"\"")
                .kept(),
            ],
        ),
        variant("kubernetes", KUBERNETES),
        variant("slurm", HPC).kept(),
        variant("pbs", HPC).kept(),
    ],
)
.named("resource_manager")
.default_tag("agent")
.aliases(ALIASES)
.check(manager);

const SECRET_OF_CHART: &str =
    "is ignored; the chart mounts that secret, and `kubeconfig_path` names the file";

const KUBERNETES: &[Field] = &[
    field(
        "default_namespace",
        Kind::Text,
        "Namespace of tasks of workspaces without one; must exist",
    )
    .or("\"\""),
    field(
        "max_slots_per_pod",
        NATURAL_32,
        "Most slots of a pod; 0 = no task of two or more slots",
    ),
    field(
        "master_service_name",
        Kind::Text,
        "Service by which pods reach the master",
    ),
    field("slot_type", Kind::Special(&SLOT_TYPE), "What a slot is").or("\"cuda\""),
    field(
        "slot_resource_requests",
        Kind::Section(&SLOT_REQUESTS),
        "What a slot asks for",
    )
    .or("{}"),
    field(
        "default_scheduler",
        Kind::Special(&DEFAULT_SCHEDULER),
        "How pods are scheduled beyond what Kubernetes does",
    )
    .or("\"\""),
    field(
        "scheduler_queue",
        Kind::Text,
        "Queue that `kueue` or `volcano` starts tasks from; empty = by the pool's name, that of the namespace",
    )
    .or("\"\""),
    field(
        "kubeconfig_path",
        Kind::Text,
        "File with the access to the cluster; without one that of the pod",
    )
    .or("\"\""),
    field(
        "determined_master_scheme",
        Kind::Choice(&["http", "https"]),
        "Scheme by which pods reach the master",
    ),
    field(
        "determined_master_host",
        Kind::Text,
        "Host by which pods reach the master",
    ),
    field(
        "determined_master_port",
        PORT,
        "Port by which pods reach the master",
    ),
    field(
        "leave_kubernetes_resources",
        Kind::Bool,
        "Keep the objects of ended tasks, for debugging",
    )
    .or("false"),
    field(
        "internal_task_gateway",
        Kind::Section(&GATEWAY),
        "Gateway by which tasks of another cluster are reached",
    )
    .kept(),
    field(
        "helper_image",
        Kind::Text,
        "Image with `det-supervisor`, which init containers copy into each pod: that of the master",
    )
    .or("\"\""),
    field("fluent", Kind::Any, "Older key").warn(IGNORED),
    field("kubeconfig_secret_name", Kind::Any, "Older key").warn(SECRET_OF_CHART),
    field("kubeconfig_secret_value", Kind::Any, "Older key").warn(SECRET_OF_CHART),
];

static SLOT_TYPE: Special = text_by(
    "`cuda`, `rocm`, `cpu`; older: `gpu`",
    || json!({"enum": ["cuda", "rocm", "cpu", "gpu"]}),
    slot_type,
);

/// `gpu` is the old name of `cuda`.
fn slot_type(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("gpu") {
        walk.findings
            .warn(node.at.as_ref(), "\"gpu\" is the old name of \"cuda\"");
        node.tree = Tree::Text("cuda".into());
    }
    walk.value(node, Kind::Choice(&["cuda", "rocm", "cpu"]));
}

static SLOT_REQUESTS: Section = section(&[field(
    "cpu",
    Kind::AtLeast(0.0),
    "Processors of a slot, for slots of type `cpu`",
)
.or("0")]);

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

static GATEWAY: Section = section(&[
    field(
        "gateway_name",
        Kind::Special(&DNS_LABEL),
        "Name of the gateway",
    )
    .always(),
    field(
        "gateway_namespace",
        Kind::Special(&DNS_LABEL),
        "Namespace of the gateway",
    )
    .always(),
    field(
        "gateway_ip",
        Kind::Special(&NOT_EMPTY),
        "Address of the gateway",
    )
    .always(),
    field(
        "gateway_port_range_start",
        Kind::Int(1025, 65_535),
        "First port of the gateway",
    )
    .or("32768"),
    field(
        "gateway_port_range_end",
        Kind::Int(1025, 65_535),
        "Last port of the gateway",
    )
    .or("65535"),
])
.check(gateway);

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
pub(super) fn is_dns_label(text: &str) -> bool {
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

const HPC: &[Field] = &[
    field(
        "master_host",
        Kind::Text,
        "Host by which tasks reach the master",
    ),
    field("master_port", PORT, "Port by which tasks reach the master"),
    field("host", Kind::Text, "Host of the launcher"),
    field("port", PORT, "Port of the launcher").or("8181"),
    field(
        "protocol",
        Kind::Choice(&["http", "https"]),
        "How the launcher is spoken to",
    )
    .or("\"http\""),
    field(
        "security",
        Kind::Section(&HPC_SECURITY),
        "TLS towards the launcher",
    ),
    field(
        "container_run_type",
        Kind::Special(&CONTAINER_RUN_TYPE),
        "How containers are run",
    )
    .or("\"singularity\""),
    field(
        "auth_file",
        Kind::Text,
        "File with the token for the launcher",
    ),
    field(
        "slot_type",
        Kind::Special(&SLOT_TYPE),
        "What a slot is; by what a partition has unless given",
    ),
    field(
        "rendezvous_network_interface",
        Kind::Text,
        "Interface for traffic between containers",
    ),
    field(
        "proxy_network_interface",
        Kind::Text,
        "Interface by which tasks are reached",
    ),
    field("user_name", Kind::Text, "User that the launcher runs as"),
    field("group_name", Kind::Text, "Group that the launcher runs as"),
    field(
        "sudo_authorized",
        Kind::Text,
        "Users that the launcher may run tasks as",
    )
    .or("\"ALL\""),
    field(
        "apptainer_image_root",
        Kind::Text,
        "Directory of images of Apptainer",
    ),
    field(
        "singularity_image_root",
        Kind::Text,
        "Directory of images of Singularity",
    ),
    field(
        "job_storage_root",
        Kind::Text,
        "Directory of what the launcher keeps of jobs",
    )
    .or("\"$HOME/.launcher\""),
    field("path", Kind::Text, "PATH of the launcher"),
    field(
        "ld_library_path",
        Kind::Text,
        "LD_LIBRARY_PATH of the launcher",
    ),
    field(
        "launcher_jvm_args",
        Kind::Text,
        "Options of the launcher's Java",
    ),
    field(
        "tres_supported",
        Kind::Bool,
        "Whether Slurm has SelectType cons_tres",
    )
    .or("true"),
    field(
        "gres_supported",
        Kind::Bool,
        "Whether GPUs are generic resources",
    )
    .or("true"),
    field(
        "job_project_source",
        Kind::Special(&JOB_PROJECT_SOURCE),
        "What becomes the account of jobs",
    ),
    field(
        "partition_overrides",
        PARTITIONS,
        "Other settings for some partitions, by name in any case",
    ),
];

const PARTITIONS: Kind = Kind::Map(&PARTITION_KIND);
static PARTITION_KIND: Kind = Kind::Section(&PARTITION);

static HPC_SECURITY: Section = section(&[field(
    "tls",
    Kind::Section(&CLIENT_TLS),
    "TLS towards the launcher",
)]);

static PARTITION: Section = section(&[
    field("description", Kind::Text, "Description for users"),
    field(
        "rendezvous_network_interface",
        Kind::Text,
        "Interface for traffic between containers",
    ),
    field(
        "proxy_network_interface",
        Kind::Text,
        "Interface by which tasks are reached",
    ),
    field("slot_type", Kind::Special(&SLOT_TYPE), "What a slot is"),
    field(
        "task_container_defaults",
        Kind::Section(&TASK_CONTAINER_DEFAULTS),
        "What tasks in this partition get, over the cluster's defaults",
    ),
]);

static CONTAINER_RUN_TYPE: Special = text_by(
    "`singularity`, `podman`, `enroot`; also: `apptainer`",
    || json!({"enum": ["singularity", "podman", "enroot", "apptainer"]}),
    container_run_type,
);

/// `apptainer` is another name of `singularity`.
fn container_run_type(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("apptainer") {
        node.tree = Tree::Text("singularity".into());
    }
    walk.value(node, Kind::Choice(&["singularity", "podman", "enroot"]));
}

static JOB_PROJECT_SOURCE: Special = text_by(
    "`project`, `workspace`, `label`, `label:PREFIX`",
    || json!({"type": "string", "pattern": "^(project|workspace|label(:.*)?)$"}),
    job_project_source,
);

fn job_project_source(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(text)
            if matches!(text, "project" | "workspace" | "label") || text.starts_with("label:") => {}
        Some(_) => walk.findings.mismatch(
            node,
            "one of \"project\", \"workspace\", \"label\", \"label:PREFIX\"",
        ),
        None => walk.value(node, Kind::Text),
    }
}

/// Rules between the keys of a manager.
fn manager(findings: &mut Findings, node: &Node) {
    match node.get("type").and_then(Node::text) {
        Some("slurm" | "pbs") => {
            let (apptainer, singularity) = (
                filled(node, "apptainer_image_root"),
                filled(node, "singularity_image_root"),
            );
            if let (Some(_), Some(given)) = (apptainer, singularity) {
                findings.error_in(
                    "singularity_image_root",
                    given.at.as_ref(),
                    ErrorCode::Conflict
                        .message("cannot be combined with \"apptainer_image_root\"; choose one"),
                );
            }
        }
        Some("kubernetes") if findings.stage.is_complete() => {
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
        _ => {}
    }
}
