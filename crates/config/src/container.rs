//! What a container gets besides its command: images, variables, mounts, devices, and the cluster's defaults for them.
//! `experiment-config` reference §8 to §10, `master-config` reference §4.

use std::collections::BTreeMap;

use det_taskspec::{DeviceKind, DeviceMapping, RegistryAuth};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::schema::{Checker, Field, Kind, NATURAL, PORT, POSITIVE, Section, field, section};
use crate::storage::{PROPAGATION, absolute_path};
use crate::units::parse_byte_size;
use crate::yaml::{Node, Tree};

/// One value for each kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PerDevice<T> {
    /// For slots that are shares of a processor, and for tasks without slots.
    pub cpu: T,
    /// For NVIDIA GPUs.
    pub cuda: T,
    /// For AMD GPUs.
    pub rocm: T,
}

impl<T> PerDevice<T> {
    /// The value for slots of this kind.
    pub fn get(&self, kind: DeviceKind) -> &T {
        match kind {
            DeviceKind::Cpu => &self.cpu,
            DeviceKind::Cuda => &self.cuda,
            DeviceKind::Rocm => &self.rocm,
        }
    }
}

/// Software environment of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Container image.
    pub image: PerDevice<String>,
    /// `NAME=VALUE` or `NAME`, later entries win. Values may refer to earlier ones (`$A`, `${B}`).
    pub environment_variables: PerDevice<Vec<String>>,
    /// Ports of the chief container that are reachable through the master.
    pub proxy_ports: Vec<ProxyPort>,
    /// Named container ports, informational.
    pub ports: BTreeMap<String, u16>,
    /// Pull the image even when it is present.
    pub force_pull_image: bool,
    /// Credentials for the image's registry.
    pub registry_auth: Option<RegistryAuth>,
    /// Linux capabilities to add.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities to drop.
    pub drop_capabilities: Vec<String>,
    /// A Kubernetes pod, as written.
    pub pod_spec: Option<Value>,
    /// Working directory of the task; `None` = the pool's, else the run directory's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
}

/// A port of a task behind the master's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyPort {
    /// Port in the container, from 1.
    pub proxy_port: u16,
    /// Whether raw TCP is tunnelled instead of HTTP.
    pub proxy_tcp: bool,
    /// Whether anyone may connect.
    pub unauthenticated: bool,
    /// Whether this is the task's main service.
    pub default_service_id: bool,
}

/// A host directory in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    /// Absolute path on the agent's host.
    pub host_path: String,
    /// Path in the container; relative ones are below the working directory.
    pub container_path: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bind propagation.
    pub propagation: String,
}

/// HPC scheduler options, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Slurm {
    /// Slots of a node, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    /// Kind of GPU to ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// Further options of `sbatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sbatch_args: Option<Vec<String>>,
}

/// HPC scheduler options, kept as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pbs {
    /// Slots of a node, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    /// Further options of `qsub`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pbsbatch_args: Option<Vec<String>>,
}

/// A reaction to a line of a task's log: `experiment-config` reference §4.1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPolicy {
    /// Label of a run whose log matched. `None` only for old unnamed policies.
    pub name: Option<String>,
    /// Regular expression, searched anywhere in a line. `None` switches the policy of this name off.
    pub pattern: Option<String>,
    /// What to do on a match; `None` = label only.
    pub action: Option<LogAction>,
}

/// What a log policy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogAction {
    /// The trial is not restarted again.
    CancelRetries,
    /// Later restarts avoid the node whose log matched.
    ExcludeNode,
}

/// What tasks get unless they say otherwise. `None` and empty mean "not set": a weaker level decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskContainerDefaults {
    /// Interface for traffic between the containers of a task; a comma-separated list.
    pub dtrain_network_interface: Option<String>,
    /// `low:high`, ports of NCCL.
    pub nccl_port_range: Option<String>,
    /// `low:high`, ports of GLOO.
    pub gloo_port_range: Option<String>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: Option<u64>,
    /// Docker network of containers.
    pub network_mode: Option<String>,
    /// Pod spec of tasks without slots.
    pub cpu_pod_spec: Option<Value>,
    /// Pod spec of tasks with slots.
    pub gpu_pod_spec: Option<Value>,
    /// Pod spec of checkpoint garbage collection.
    pub checkpoint_gc_pod_spec: Option<Value>,
    /// Images; a device kind without one falls through.
    pub image: PerDevice<Option<String>>,
    /// Credentials for the images' registry.
    pub registry_auth: Option<RegistryAuth>,
    /// Pull images even when they are present.
    pub force_pull_image: Option<bool>,
    /// `NAME=VALUE` or `NAME`.
    pub environment_variables: PerDevice<Vec<String>>,
    /// Linux capabilities to add.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities to drop.
    pub drop_capabilities: Vec<String>,
    /// Host devices.
    pub devices: Vec<DeviceMapping>,
    /// Host directories.
    pub bind_mounts: Vec<BindMount>,
    /// Working directory of notebooks, shells, commands and generic tasks.
    pub work_dir: Option<String>,
    /// Options of Slurm.
    pub slurm: Slurm,
    /// Options of PBS.
    pub pbs: Pbs,
    /// A shell script run before each task.
    pub startup_hook: Option<String>,
    /// Reactions to log lines.
    pub log_policies: Vec<LogPolicy>,
    /// Seconds that a preempted task has to stop.
    pub preemption_timeout: Option<u32>,
    /// Kubernetes options.
    pub kubernetes: KubernetesDefaults,
}

/// Defaults for Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KubernetesDefaults {
    /// Most slots of a pod; 0 = no task of two or more slots. `None` = the resource manager decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slots_per_pod: Option<u32>,
}

/// `/dev/shm` of a task when nothing says otherwise: 4 GiB.
pub const DEFAULT_SHM_SIZE_BYTES: u64 = 4 << 30;
/// Seconds that a preempted task has to stop when nothing says otherwise.
pub const DEFAULT_PREEMPTION_TIMEOUT: u32 = 3600;
/// Docker network of containers when nothing says otherwise.
pub const DEFAULT_NETWORK_MODE: &str = "bridge";

impl TaskContainerDefaults {
    /// Size of `/dev/shm` in bytes.
    pub fn effective_shm_size_bytes(&self) -> u64 {
        self.shm_size_bytes.unwrap_or(DEFAULT_SHM_SIZE_BYTES)
    }

    /// Docker network of containers.
    pub fn effective_network_mode(&self) -> &str {
        self.network_mode.as_deref().unwrap_or(DEFAULT_NETWORK_MODE)
    }

    /// Seconds that a preempted task has to stop.
    pub fn effective_preemption_timeout(&self) -> u32 {
        self.preemption_timeout
            .unwrap_or(DEFAULT_PREEMPTION_TIMEOUT)
    }

    /// These defaults (of a pool) over weaker ones (of the cluster): `master-config` reference §4.2.
    #[must_use]
    pub fn over(&self, weaker: &Self) -> Self {
        Self {
            dtrain_network_interface: first(
                self.dtrain_network_interface.as_ref(),
                weaker.dtrain_network_interface.as_ref(),
            ),
            nccl_port_range: first(
                self.nccl_port_range.as_ref(),
                weaker.nccl_port_range.as_ref(),
            ),
            gloo_port_range: first(
                self.gloo_port_range.as_ref(),
                weaker.gloo_port_range.as_ref(),
            ),
            shm_size_bytes: self.shm_size_bytes.or(weaker.shm_size_bytes),
            network_mode: first(self.network_mode.as_ref(), weaker.network_mode.as_ref()),
            cpu_pod_spec: first(self.cpu_pod_spec.as_ref(), weaker.cpu_pod_spec.as_ref()),
            gpu_pod_spec: first(self.gpu_pod_spec.as_ref(), weaker.gpu_pod_spec.as_ref()),
            checkpoint_gc_pod_spec: first(
                self.checkpoint_gc_pod_spec.as_ref(),
                weaker.checkpoint_gc_pod_spec.as_ref(),
            ),
            image: PerDevice {
                cpu: first(self.image.cpu.as_ref(), weaker.image.cpu.as_ref()),
                cuda: first(self.image.cuda.as_ref(), weaker.image.cuda.as_ref()),
                rocm: first(self.image.rocm.as_ref(), weaker.image.rocm.as_ref()),
            },
            registry_auth: first(self.registry_auth.as_ref(), weaker.registry_auth.as_ref()),
            force_pull_image: self.force_pull_image.or(weaker.force_pull_image),
            environment_variables: PerDevice {
                cpu: variables_over(
                    &self.environment_variables.cpu,
                    &weaker.environment_variables.cpu,
                ),
                cuda: variables_over(
                    &self.environment_variables.cuda,
                    &weaker.environment_variables.cuda,
                ),
                rocm: variables_over(
                    &self.environment_variables.rocm,
                    &weaker.environment_variables.rocm,
                ),
            },
            add_capabilities: set_union(&self.add_capabilities, &weaker.add_capabilities),
            drop_capabilities: set_union(&self.drop_capabilities, &weaker.drop_capabilities),
            devices: new_ones(&self.devices, &weaker.devices, |device| {
                device.container_path.clone()
            }),
            bind_mounts: new_ones(&self.bind_mounts, &weaker.bind_mounts, |mount| {
                mount.container_path.clone()
            }),
            work_dir: first(self.work_dir.as_ref(), weaker.work_dir.as_ref()),
            slurm: Slurm {
                slots_per_node: self.slurm.slots_per_node.or(weaker.slurm.slots_per_node),
                gpu_type: first(self.slurm.gpu_type.as_ref(), weaker.slurm.gpu_type.as_ref()),
                sbatch_args: arguments(
                    self.slurm.sbatch_args.as_ref(),
                    weaker.slurm.sbatch_args.as_ref(),
                ),
            },
            pbs: Pbs {
                slots_per_node: self.pbs.slots_per_node.or(weaker.pbs.slots_per_node),
                pbsbatch_args: arguments(
                    self.pbs.pbsbatch_args.as_ref(),
                    weaker.pbs.pbsbatch_args.as_ref(),
                ),
            },
            startup_hook: first(self.startup_hook.as_ref(), weaker.startup_hook.as_ref()),
            log_policies: new_ones(&self.log_policies, &weaker.log_policies, log_policy_key),
            preemption_timeout: self.preemption_timeout.or(weaker.preemption_timeout),
            kubernetes: KubernetesDefaults {
                max_slots_per_pod: self
                    .kubernetes
                    .max_slots_per_pod
                    .or(weaker.kubernetes.max_slots_per_pod),
            },
        }
    }

    /// These defaults as a layer under an experiment's document, for trials of so many slots.
    pub(crate) fn experiment_layer(&self, slots_per_trial: i64) -> Value {
        let pod_spec = if slots_per_trial > 0 {
            &self.gpu_pod_spec
        } else {
            &self.cpu_pod_spec
        };
        json!({
            "bind_mounts": self.bind_mounts,
            "log_policies": self.log_policies,
            "preemption_timeout": self.preemption_timeout,
            "slurm": self.slurm,
            "pbs": self.pbs,
            "resources": {"shm_size": self.shm_size_bytes, "devices": self.devices},
            "environment": {
                "image": self.image,
                "environment_variables": self.environment_variables,
                "registry_auth": self.registry_auth,
                "force_pull_image": self.force_pull_image,
                "add_capabilities": self.add_capabilities,
                "drop_capabilities": self.drop_capabilities,
                "pod_spec": pod_spec,
            },
        })
    }
}

fn first<T: Clone>(strong: Option<&T>, weak: Option<&T>) -> Option<T> {
    strong.or(weak).cloned()
}

/// The stronger entries, then the weaker ones of other names.
fn variables_over(strong: &[String], weak: &[String]) -> Vec<String> {
    let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
    let names: Vec<String> = strong.iter().map(|entry| name(entry)).collect();
    let weaker = weak.iter().filter(|entry| !names.contains(&name(entry)));
    strong.iter().chain(weaker).cloned().collect()
}

fn set_union(a: &[String], b: &[String]) -> Vec<String> {
    let set: std::collections::BTreeSet<&String> = a.iter().chain(b).collect();
    set.into_iter().cloned().collect()
}

fn new_ones<T: Clone, K: PartialEq>(strong: &[T], weak: &[T], key: impl Fn(&T) -> K) -> Vec<T> {
    let keys: Vec<K> = strong.iter().map(&key).collect();
    let weaker = weak.iter().filter(|item| !keys.contains(&key(item)));
    strong.iter().chain(weaker).cloned().collect()
}

/// What makes two log policies the same: the name, else action and pattern.
fn log_policy_key(policy: &LogPolicy) -> String {
    match &policy.name {
        Some(name) => format!("name {name}"),
        None => format!("{:?} {:?}", policy.action, policy.pattern),
    }
}

/// Weaker arguments first, so that the stronger ones, which come last, win.
fn arguments(strong: Option<&Vec<String>>, weak: Option<&Vec<String>>) -> Option<Vec<String>> {
    match (strong, weak) {
        (Some(strong), Some(weak)) => Some(weak.iter().chain(strong).cloned().collect()),
        (one, other) => first(one, other),
    }
}

const CAPABILITIES: Kind = Kind::List(&Kind::Text);

pub(crate) static REGISTRY_AUTH: Section = section(&[
    field("username", Kind::Text),
    field("password", Kind::Text).secret(),
    field("serveraddress", Kind::Text),
    field("email", Kind::Text),
    field("auth", Kind::Text).secret(),
    field("identitytoken", Kind::Text).secret(),
    field("registrytoken", Kind::Text).secret(),
])
.aliases(&[("server", "serveraddress", false)])
.check(registry);

fn registry(checker: &mut Checker, node: &Node) {
    if node.get("serveraddress").is_none() {
        checker.warn("names no \"serveraddress\": the credentials are sent to whichever registry holds the image");
    }
}

pub(crate) static PROXY_PORT: Section = section(&[
    field("proxy_port", Kind::Int(1, 65_535)).always(),
    field("proxy_tcp", Kind::Bool).or("false"),
    field("unauthenticated", Kind::Bool).or("false"),
    field("default_service_id", Kind::Bool).or("false"),
]);

/// Images of the published environments, which hold what the unmodified clients' training loops need.
const DEFAULT_IMAGES: &str = r#"{
    "cpu": "determinedai/pytorch-ngc-dev:0736b6d",
    "cuda": "determinedai/pytorch-ngc-dev:0736b6d",
    "rocm": "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d"
}"#;

pub(crate) static ENVIRONMENT: Section = section(&[
    field("image", Kind::Custom(image)).or(DEFAULT_IMAGES),
    field("environment_variables", Kind::Custom(variables)).or("{}"),
    field("proxy_ports", Kind::List(&Kind::Section(&PROXY_PORT)))
        .or("[]")
        .kept(),
    field("ports", Kind::Map(&PORT)).or("{}"),
    field("force_pull_image", Kind::Bool).or("false"),
    field("registry_auth", Kind::Section(&REGISTRY_AUTH)),
    field("add_capabilities", CAPABILITIES).or("[]"),
    field("drop_capabilities", CAPABILITIES).or("[]"),
    field("pod_spec", Kind::Custom(crate::pod::check)).kept(),
    field("work_dir", Kind::Text),
]);

/// Fills in the images that a partial map leaves out; the schema's default covers only a missing map.
pub(crate) fn complete_images(environment: &mut Node) {
    let Ok(Value::Object(defaults)) = serde_json::from_str::<Value>(DEFAULT_IMAGES) else {
        return;
    };
    if let Some(images) = environment.get_mut("image").and_then(Node::members_mut) {
        for (kind, image) in defaults {
            images.entry(kind).or_insert_with(|| Node::from(&image));
        }
    }
}

pub(crate) static BIND_MOUNT: Section = section(&[
    field("host_path", Kind::TextBy(absolute_path)).always(),
    field("container_path", Kind::TextBy(container_path)).always(),
    field("read_only", Kind::Bool).or("false"),
    field("propagation", PROPAGATION).or("\"rprivate\""),
]);

fn container_path(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some("." | "") => checker.error(
            node.at.as_ref(),
            "must be a path below the working directory, or absolute",
        ),
        Some(_) => {}
        None => checker.value(node, Kind::Text),
    }
}

const SLURM_FIELDS: &[Field] = &[
    field("slots_per_node", POSITIVE),
    field("gpu_type", Kind::Text),
    field("sbatch_args", Kind::List(&Kind::Text)),
];
pub(crate) static SLURM: Section = section(SLURM_FIELDS).check(not_acted_on);
pub(crate) static PBS: Section = section(&[
    field("slots_per_node", POSITIVE),
    field("pbsbatch_args", Kind::List(&Kind::Text)),
])
.check(not_acted_on);

/// Warns when a section that nothing acts on yet says something.
pub(crate) fn not_acted_on(checker: &mut Checker, node: &Node) {
    if node.members().is_some_and(|members| !members.is_empty()) {
        checker.warn("is accepted and kept but not acted on yet");
    }
}

static DEVICE: Section = section(&[
    field("host_path", Kind::TextBy(absolute_path)).always(),
    field("container_path", Kind::TextBy(absolute_path)).always(),
    field("mode", Kind::Custom(device_mode)).or("\"mrw\""),
]);

pub(crate) const DEVICES: Kind = Kind::List(&Kind::Custom(device));

fn device_mode(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some(mode) if !mode.is_empty() && mode.chars().all(|c| "mrw".contains(c)) => {}
        _ => checker.error(node.at.as_ref(), "must be made of \"m\", \"r\" and \"w\""),
    }
}

/// `/host:/container[:mode]` or a map; becomes a map.
fn device(checker: &mut Checker, node: &mut Node) {
    if let Some(text) = node.text() {
        let parts: Vec<&str> = text.split(':').collect();
        let (host, container, mode) = match parts[..] {
            [host, container] => (host, container, "mrw"),
            [host, container, mode] => (host, container, mode),
            _ => {
                let message = format!("must be \"/host:/container[:mode]\", not \"{text}\"");
                return checker.error(node.at.as_ref(), message);
            }
        };
        let part = |text: &str| Node {
            tree: Tree::Text(text.to_owned()),
            at: node.at.clone(),
        };
        node.tree = Tree::Map(BTreeMap::from([
            ("host_path".to_owned(), part(host)),
            ("container_path".to_owned(), part(container)),
            ("mode".to_owned(), part(mode)),
        ]));
    }
    checker.value(node, Kind::Section(&DEVICE));
    if let Some(members) = node.members_mut() {
        members
            .entry("mode".to_owned())
            .or_insert_with(|| Node::new(Tree::Text("mrw".to_owned())));
    }
}

/// The three kinds of device, and the old name of one.
const KINDS: [&str; 3] = ["cpu", "cuda", "rocm"];

/// Brings a value per device into its normal form: a map with `cpu`, `cuda`, `rocm`.
fn per_device(checker: &mut Checker, node: &mut Node, spread: bool, item: Kind) {
    if spread {
        let tree = KINDS
            .iter()
            .map(|kind| ((*kind).to_owned(), node.clone()))
            .collect();
        // The three are the same: checking one reports each mistake once.
        let before = checker.errors.len();
        checker.value(node, item);
        if checker.errors.len() == before {
            node.tree = Tree::Map(tree);
        }
        return;
    }
    let Some(members) = node.members_mut() else {
        let message = format!(
            "must be one value for all devices or a map of \"cpu\", \"cuda\", \"rocm\", not {}",
            node.kind()
        );
        return checker.error(node.at.as_ref(), message);
    };
    members.retain(|_, member| !matches!(member.tree, Tree::Null));
    if let Some(gpu) = members.remove("gpu") {
        checker.within("gpu", |checker| checker.warn("is the old name of \"cuda\""));
        members.entry("cuda".to_owned()).or_insert(gpu);
    }
    for (key, member) in members {
        checker.within(key, |checker| {
            if KINDS.contains(&key.as_str()) {
                checker.value(member, item);
            } else {
                checker.error(
                    member.at.as_ref(),
                    "is not a known key; known are \"cpu\", \"cuda\", \"rocm\"",
                );
            }
        });
    }
}

fn image(checker: &mut Checker, node: &mut Node) {
    let spread = node.text().is_some();
    per_device(checker, node, spread, Kind::Custom(image_name));
}

fn image_name(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some("") => checker.error(node.at.as_ref(), "must name an image"),
        Some(_) => {}
        None => checker.value(node, Kind::Text),
    }
}

fn variables(checker: &mut Checker, node: &mut Node) {
    let spread = matches!(node.tree, Tree::List(_));
    per_device(checker, node, spread, Kind::List(&Kind::Custom(variable)));
}

fn variable(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some(text) if text.is_empty() || text.starts_with('=') => {
            checker.error(node.at.as_ref(), "must be \"NAME=VALUE\" or \"NAME\"");
        }
        Some(_) => {}
        None => {
            let message = format!("must be \"NAME=VALUE\" or \"NAME\", not {}", node.kind());
            checker.error(node.at.as_ref(), message);
        }
    }
}

/// A size in bytes or as text; becomes bytes.
pub(crate) fn byte_size(checker: &mut Checker, node: &mut Node) {
    match node.text().map(parse_byte_size) {
        None => checker.value(node, NATURAL),
        Some(Ok(bytes)) => node.tree = Tree::Number(bytes.into()),
        Some(Err(message)) => checker.error(node.at.as_ref(), message),
    }
}

static LOG_POLICY: Section = section(&[
    field("name", Kind::Text),
    field("pattern", Kind::Custom(pattern)),
    field("action", Kind::Custom(action)),
])
.check(log_policy);

pub(crate) const LOG_POLICIES: Kind = Kind::Custom(log_policies);

static LOG_POLICY_KIND: Kind = Kind::Section(&LOG_POLICY);

fn log_policies(checker: &mut Checker, node: &mut Node) {
    checker.value(node, Kind::List(&LOG_POLICY_KIND));
    let Tree::List(items) = &node.tree else {
        return;
    };
    let mut seen: Vec<&str> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(name) = item.get("name") else {
            continue;
        };
        let Some(text) = name.text() else {
            continue;
        };
        if seen.contains(&text) {
            checker.within_index(index, |checker| {
                let message = format!("\"{text}\" names two log policies");
                checker.error_in("name", name.at.as_ref(), message);
            });
        }
        seen.push(text);
    }
}

fn log_policy(checker: &mut Checker, node: &Node) {
    let has = |key| node.get(key).is_some();
    let complete = has("name") || (has("pattern") && has("action"));
    if !complete {
        checker.error(
            node.at.as_ref(),
            "needs a \"name\", or both \"pattern\" and \"action\"",
        );
    }
    if let Some(action) = node.get("action").filter(|action| action.text().is_some()) {
        let text = format!(
            "\"{}\" is accepted and kept but not acted on yet",
            action.text().unwrap_or_default()
        );
        checker.within("action", |checker| checker.warn(&text));
    }
}

fn pattern(checker: &mut Checker, node: &mut Node) {
    let Some(text) = node.text() else {
        return checker.value(node, Kind::Text);
    };
    if let Err(error) = regex::Regex::new(text) {
        let reason = error.to_string();
        let reason = reason
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        let message = format!("is not a regular expression: {reason}");
        checker.error(node.at.as_ref(), message);
    }
}

/// A word, or the old map form with `type`; becomes the word.
fn action(checker: &mut Checker, node: &mut Node) {
    if let Some(members) = node.members()
        && members.len() == 1
        && let Some(kind) = members.get("type").cloned()
    {
        node.tree = kind.tree;
    }
    checker.value(node, Kind::Choice(&["cancel_retries", "exclude_node"]));
}

fn port_range(checker: &mut Checker, node: &mut Node) {
    let Some(text) = node.text() else {
        return checker.value(node, Kind::Text);
    };
    let bounds = text
        .split_once(':')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    if !text.is_empty() && !bounds.is_some_and(|(low, high)| low >= 1 && low <= high) {
        let message = format!("must be a range of ports like \"12350:12400\", not \"{text}\"");
        checker.error(node.at.as_ref(), message);
    }
}

static KUBERNETES: Section = section(&[field("max_slots_per_pod", NATURAL)]).check(not_acted_on);

/// `task_container_defaults` of the cluster, a pool or a partition. No defaults here: unset means "inherit".
pub(crate) static TASK_CONTAINER_DEFAULTS: Section = section(&[
    field("dtrain_network_interface", Kind::Text),
    field("nccl_port_range", Kind::TextBy(port_range)),
    field("gloo_port_range", Kind::TextBy(port_range)),
    field("shm_size_bytes", POSITIVE),
    field("network_mode", Kind::TextBy(not_empty)),
    field("cpu_pod_spec", Kind::Custom(crate::pod::check)).kept(),
    field("gpu_pod_spec", Kind::Custom(crate::pod::check)).kept(),
    field("checkpoint_gc_pod_spec", Kind::Custom(crate::pod::check)).kept(),
    field("image", Kind::Custom(image)),
    field("registry_auth", Kind::Section(&REGISTRY_AUTH)),
    field("force_pull_image", Kind::Bool),
    field("environment_variables", Kind::Custom(variables)),
    field("add_capabilities", CAPABILITIES),
    field("drop_capabilities", CAPABILITIES),
    field("devices", DEVICES),
    field("bind_mounts", Kind::List(&Kind::Section(&BIND_MOUNT))),
    field("work_dir", Kind::Text),
    field("slurm", Kind::Section(&SLURM)),
    field("pbs", Kind::Section(&PBS)),
    field("startup_hook", Kind::Text),
    field("log_policies", LOG_POLICIES),
    field("preemption_timeout", crate::schema::NATURAL_32),
    field("kubernetes", Kind::Section(&KUBERNETES)),
]);

/// A string with something in it.
pub(crate) fn not_empty(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some("") => checker.error(node.at.as_ref(), "must not be empty"),
        Some(_) => {}
        None => checker.value(node, Kind::Text),
    }
}

/// Drops nulls and empty maps and lists from a layer, which say nothing.
pub(crate) fn prune(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(members) => {
            let members: Map<String, Value> = members
                .into_iter()
                .filter_map(|(key, member)| {
                    // In a pod spec an empty map says something: `emptyDir: {}`.
                    let verbatim = key == "pod_spec" && !member.is_null();
                    let member = if verbatim { member } else { prune(member)? };
                    Some((key, member))
                })
                .collect();
            (!members.is_empty()).then_some(Value::Object(members))
        }
        other => Some(other),
    }
}
