//! The keys of resource managers and their schedulers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::kubernetes::{self, KUBERNETES, KubernetesManager};
use super::slot_type::SLOT_TYPE;
use super::{CLIENT_TLS, ResourcePool, filled};
use crate::container::schema::TASK_CONTAINER_DEFAULTS;
use crate::errors::ErrorCode;
use crate::master::types::{FittingPolicy, ManagerKind, SchedulerKind};
use crate::schema::{
    Aliases, Field, Findings, Kind, PORT, Section, Special, Union, Walk, field, keys, section,
    text_by, union, variant,
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
    /// How it runs containers, with what only managers of that kind are configured with.
    #[serde(flatten)]
    pub settings: ManagerSettings,
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
}

/// The kind of a manager, with the keys that managers of other kinds do not have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ManagerSettings {
    /// Settings of a manager of our own agents.
    Agent(AgentManager),
    /// Settings of a manager of a Kubernetes cluster.
    Kubernetes(Box<KubernetesManager>),
    /// [`ManagerKind::Slurm`]: its keys, as given.
    Slurm(Map<String, Value>),
    /// [`ManagerKind::Pbs`]: its keys, as given.
    Pbs(Map<String, Value>),
}

impl ManagerSettings {
    /// The kind without its keys.
    pub fn kind(&self) -> ManagerKind {
        match self {
            Self::Agent(_) => ManagerKind::Agent,
            Self::Kubernetes(_) => ManagerKind::Kubernetes,
            Self::Slurm(_) => ManagerKind::Slurm,
            Self::Pbs(_) => ManagerKind::Pbs,
        }
    }
}

keys! {
    /// What only managers of agents are configured with, besides the scheduler.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct AgentManager, AGENT {
        /// Whether agents must present a certificate.
        require_authentication: bool = Kind::Bool, or("false"), kept;
        /// File with the authority of the agents' certificates.
        client_ca: String = Kind::Text, or("\"\""), kept;
    }
    without field {
        /// Scheduler of pools without one of their own.
        scheduler = Kind::Section(&SCHEDULER);
    }
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
        variant("agent", AGENT.fields),
        variant("kubernetes", KUBERNETES.fields),
        variant("slurm", HPC).kept(),
        variant("pbs", HPC).kept(),
    ],
)
.named("resource_manager")
.default_tag("agent")
.aliases(ALIASES)
.check(manager);

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
        Some("kubernetes") if findings.stage.is_complete() => kubernetes::complete(findings, node),
        _ => {}
    }
}
