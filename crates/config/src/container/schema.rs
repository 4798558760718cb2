//! The keys of what a container gets: environments, mounts, devices, the cluster's defaults for them.

use super::{DEFAULT_SHM_SIZE, LogPolicy, PerDevice};
use det_taskspec::{BindMount, DeviceMapping, RegistryAuth};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::log_policies::DEFAULT_LOG_POLICIES;
use crate::errors::ErrorCode;
use crate::pod::POD;
use crate::quote::cut;
use crate::schema::{
    Findings, Kind, Merge, NATURAL, NATURAL_32, PORT, POSITIVE, POSITIVE_32, REAL_PORT, Section,
    Special, Stage, Walk, duration_schema, field, keys, section, special, text_by,
};
use crate::storage::{ABSOLUTE_PATH, PROPAGATION};
use crate::units::{parse_byte_size, parse_duration};
use crate::yaml::{Node, Tree};

/// The kinds of device that a setting can have a value of its own for.
const KINDS: [&str; 3] = ["cpu", "cuda", "rocm"];

const STRINGS: Kind = Kind::List(&Kind::Text);

const CAPABILITIES: Kind = STRINGS;

pub(crate) static REGISTRY_AUTH: Section = section(&[
    field("username", Kind::Text, "Account"),
    field("password", Kind::Text, "Secret of the account").secret(),
    field(
        "serveraddress",
        Kind::Text,
        "Registry that the credentials are for; without it they go to whichever registry holds the image",
    ),
    field("email", Kind::Text, "Contact address of the account"),
    field("auth", Kind::Text, "Account and secret, joined with a colon, as base64").secret(),
    field("identitytoken", Kind::Text, "Token in place of a secret").secret(),
    field("registrytoken", Kind::Text, "Bearer token for the registry").secret(),
])
.named("registry_auth")
.aliases(&[("server", "serveraddress", false)])
.check(registry);

fn registry(findings: &mut Findings, node: &Node) {
    if node.get("serveraddress").is_none() {
        findings.warn(
            node.at.as_ref(),
            "names no \"serveraddress\": the credentials are sent to whichever registry holds the image",
        );
    }
}

keys! {
    /// A port of a task behind the master's proxy.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ProxyPort, PROXY_PORT {
        /// Port that the task listens on inside the container.
        proxy_port: u16 = REAL_PORT, always;
        /// Tunnel raw TCP instead of HTTP.
        proxy_tcp: bool = Kind::Bool, or("false");
        /// Let anyone connect, without a token of the master.
        unauthenticated: bool = Kind::Bool, or("false");
        /// Make this the main service of the task.
        default_service_id: bool = Kind::Bool, or("false");
    }
    with named("proxy_port")
}

/// Images of the published environments, which hold what the unmodified clients' training loops need.
pub(crate) const DEFAULT_IMAGES: &str = r#"{
    "cpu": "determinedai/pytorch-ngc-dev:0736b6d",
    "cuda": "determinedai/pytorch-ngc-dev:0736b6d",
    "rocm": "determinedai/environments:rocm-5.6-pytorch-1.3-tf-2.10-rocm-mpich-0736b6d"
}"#;

keys! {
    /// Software environment of a task.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Environment, ENVIRONMENT {
        /// Container image, one for all kinds of slot or one for each.
        image: PerDevice<String> = Kind::Special(&IMAGE), or(DEFAULT_IMAGES);
        /// Variables, `NAME=VALUE` or `NAME`; later ones win and may refer to earlier ones (`$A`, `${B}`).
        environment_variables: PerDevice<Vec<String>> = Kind::Special(&VARIABLES),
            or("{}"), merged(Merge::AppendByDevice);
        /// Ports of the chief container that are reachable through the master.
        proxy_ports: Vec<ProxyPort> = Kind::List(&Kind::Section(&PROXY_PORT)),
            or("[]"), merged(Merge::NewBy("proxy_port"));
        /// Ports of the container by name, published on 127.0.0.1 of its host or declared in its pod; the master reaches those of `proxy_ports` alone.
        ports: BTreeMap<String, u16> = Kind::Map(&PORT), or("{}");
        /// Pull the image even when it is present.
        force_pull_image: bool = Kind::Bool, or("false");
        /// Credentials for the image's registry.
        registry_auth: Option<RegistryAuth> = Kind::Section(&REGISTRY_AUTH), merged(Merge::Replace);
        /// Linux capabilities, such as `SYS_PTRACE`, that containers get beside the engine's default ones.
        add_capabilities: Vec<String> = CAPABILITIES, or("[]"), merged(Merge::Set);
        /// Linux capabilities, such as `NET_RAW`, that containers do not get, also where the engine gives them by default or they are added; `ALL` = all but the added ones.
        drop_capabilities: Vec<String> = CAPABILITIES, or("[]"), merged(Merge::Set);
        /// Customisation of the task's Kubernetes pods.
        pod_spec: Option<Value> = Kind::Special(&POD), merged(Merge::Pod);
        /// Working directory of the trials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work_dir: Option<String> = Kind::Text;
    }
}

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

pub(crate) const BIND_MOUNTS: Kind = Kind::List(&Kind::Section(&BIND_MOUNT));

static BIND_MOUNT: Section = section(&[
    field(
        "host_path",
        Kind::Special(&ABSOLUTE_PATH),
        "Absolute path on the agent's host",
    )
    .always(),
    field(
        "container_path",
        Kind::Special(&CONTAINER_PATH),
        "Path in the container; a relative one is below the working directory",
    )
    .always(),
    field("read_only", Kind::Bool, "Refuse writes").or("false"),
    field("propagation", PROPAGATION, "Bind propagation of Docker").or("\"rprivate\""),
])
.named("bind_mount");

/// Mounts that cannot work in any container: paths that climb, the directory of the task's own files, one path twice.
pub(crate) fn mounts(findings: &mut Findings, document: &Node) {
    let Some(Tree::List(items)) = document.get("bind_mounts").map(|node| &node.tree) else {
        return;
    };
    let mut targets: HashSet<&str> = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        for key in ["host_path", "container_path"] {
            let Some(node) = item.get(key) else { continue };
            let Some(path) = node.text() else { continue };
            let target = path.trim_end_matches('/');
            let inside = |directory: &str| {
                target
                    .strip_prefix(directory)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let why = if path.split('/').any(|part| part == "..") {
                "must not contain \"..\""
            } else if key == "host_path" {
                continue;
            } else if inside(det_taskspec::RUN_DIR) {
                "is where the task's own files are"
            } else if !targets.insert(target) {
                "is used by another bind mount already"
            } else {
                continue;
            };
            findings.within("bind_mounts", |findings| {
                findings.within(index, |findings| {
                    let message = format!("\"{}\" {why}", cut(path));
                    findings.error_in(key, node.at.as_ref(), message);
                });
            });
        }
    }
}

static CONTAINER_PATH: Special = text_by(
    "path in the container",
    || json!({"type": "string", "minLength": 1, "not": {"const": "."}}),
    container_path,
);

fn container_path(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some("." | "") => walk.findings.error(
            node.at.as_ref(),
            "must be a path below the working directory, or absolute",
        ),
        Some(_) => {}
        None => walk.value(node, Kind::Text),
    }
}

keys! {
    /// HPC scheduler options, kept as written.
    #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Slurm, SLURM {
        /// Slots of each node of the HPC cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        slots_per_node: Option<u32> = POSITIVE_32;
        /// Kind of GPU to ask for.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpu_type: Option<String> = Kind::Text;
        /// Further options of `sbatch`, one a list element.
        #[serde(skip_serializing_if = "Option::is_none")]
        sbatch_args: Option<Vec<String>> = Kind::Special(&SBATCH_ARGS), merged(Merge::Append);
    }
}

keys! {
    /// HPC scheduler options, kept as written.
    #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Pbs, PBS {
        /// Slots of each node of the HPC cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        slots_per_node: Option<u32> = POSITIVE_32;
        /// Further options of qsub; chunk and GPU counts in `-l select` and `-l place` are ignored.
        #[serde(skip_serializing_if = "Option::is_none")]
        pbsbatch_args: Option<Vec<String>> = Kind::Special(&PBS_ARGS), merged(Merge::Append);
    }
}

/// Options that the system sets itself, with the keys that users have for the same.
const OWNED_BY_SYSTEM: &[(&str, &str)] = &[
    ("--job-name", "use \"name\" or \"description\""),
    ("-J", "use \"name\" or \"description\""),
    (
        "--nodes",
        "use \"resources.slots_per_trial\" and \"slots_per_node\"",
    ),
    (
        "-N",
        "use \"resources.slots_per_trial\" and \"slots_per_node\"",
    ),
    ("--ntasks", "the system starts one task on each node"),
    ("-n", "the system starts one task on each node"),
    (
        "--ntasks-per-node",
        "the system starts one task on each node",
    ),
    ("--gpus", "use \"resources.slots_per_trial\""),
    ("-G", "use \"resources.slots_per_trial\""),
    ("--gpus-per-node", "use \"slots_per_node\""),
    ("--gpus-per-task", "use \"slots_per_node\""),
    ("--gpus-per-socket", "use \"slots_per_node\""),
    ("--partition", "use \"resources.resource_pool\""),
    ("-p", "use \"resources.resource_pool\""),
    ("--array", "use a searcher with several trials"),
    ("-a", "use a searcher with several trials"),
    ("--chdir", "the working directory is set by the system"),
    ("-D", "the working directory is set by the system"),
    ("--output", "the system keeps the logs"),
    ("-o", "the system keeps the logs"),
    ("--error", "the system keeps the logs"),
    ("-e", "the system keeps the logs"),
    ("--requeue", "use \"max_restarts\""),
    ("--wrap", "use \"entrypoint\""),
];

static SBATCH_ARGS: Special = special(
    "list of strings, without what the system sets",
    || json!({"type": "array", "items": {"type": "string"}}),
    sbatch_args,
);

fn sbatch_args(walk: &mut Walk, node: &mut Node) {
    walk.value(node, STRINGS);
    let Tree::List(items) = &node.tree else {
        return;
    };
    for (index, item) in items.iter().enumerate() {
        let Some(text) = item.text() else { continue };
        let name = text.split(['=', ' ']).next().unwrap_or_default();
        if let Some((_, advice)) = OWNED_BY_SYSTEM.iter().find(|(option, _)| *option == name) {
            walk.within(index, |walk| {
                let message = format!("option \"{}\" is set by the system", cut(name));
                walk.findings.error_hint(item.at.as_ref(), message, *advice);
            });
        }
    }
}

static PBS_ARGS: Special = special(
    "list of strings",
    || json!({"type": "array", "items": {"type": "string"}}),
    pbs_args,
);

fn pbs_args(walk: &mut Walk, node: &mut Node) {
    walk.value(node, STRINGS);
    let Tree::List(items) = &node.tree else {
        return;
    };
    let texts: Vec<&str> = items.iter().filter_map(Node::text).collect();
    let joined = texts.join(" ");
    for word in ["select=", "place="] {
        if joined.contains(&format!("-l {word}")) {
            let message = format!("\"-l {word}\": its chunk and GPU counts are ignored");
            walk.findings.warn(node.at.as_ref(), message);
        }
    }
}

static DEVICE: Section = section(&[
    field(
        "host_path",
        Kind::Special(&ABSOLUTE_PATH),
        "Device on the host",
    )
    .always(),
    field(
        "container_path",
        Kind::Special(&ABSOLUTE_PATH),
        "Device in the container",
    )
    .always(),
    field(
        "mode",
        Kind::Special(&DEVICE_MODE),
        "What the task may do with it",
    )
    .or("\"mrw\""),
]);

pub(crate) const DEVICES: Kind = Kind::List(&Kind::Special(&DEVICE_OR_TEXT));

static DEVICE_OR_TEXT: Special = special(
    "`/host:/container[:mode]` or map of `host_path`, `container_path`, `mode`",
    || {
        json!({"anyOf": [
            {"type": "string", "pattern": "^/[^:]*:/[^:]*(:[mrw]+)?$"},
            {
                "type": "object",
                "properties": {
                    "host_path": {"type": "string", "pattern": "^/"},
                    "container_path": {"type": "string", "pattern": "^/"},
                    "mode": {"type": ["string", "null"], "pattern": "^[mrw]+$", "default": "mrw"},
                },
                "required": ["host_path", "container_path"],
                "additionalProperties": false,
            },
        ]})
    },
    device,
)
.named("device")
.of(Kind::Section(&DEVICE));

static DEVICE_MODE: Special = text_by(
    "some of `m`, `r`, `w`",
    || json!({"type": "string", "pattern": "^[mrw]+$"}),
    device_mode,
);

fn device_mode(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(mode) if !mode.is_empty() && mode.chars().all(|c| "mrw".contains(c)) => {}
        _ => {
            let message = format!(
                "must be made of \"m\", \"r\" and \"w\", not {}",
                walk.findings.place.found(node)
            );
            walk.findings.error(node.at.as_ref(), message);
        }
    }
}

/// `/host:/container[:mode]` or a map; becomes a map.
fn device(walk: &mut Walk, node: &mut Node) {
    if let Some(text) = node.text() {
        let parts: Vec<&str> = text.split(':').collect();
        let (host, container, mode) = match parts[..] {
            [host, container] => (host, container, "mrw"),
            [host, container, mode] => (host, container, mode),
            _ => {
                let message = format!("must be \"/host:/container[:mode]\", not \"{}\"", cut(text));
                return walk.findings.error(node.at.as_ref(), message);
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
    walk.value(node, Kind::Section(&DEVICE));
    let at = node.at.clone();
    if let Some(members) = node.members_mut() {
        members.entry("mode".to_owned()).or_insert_with(|| Node {
            tree: Tree::Text("mrw".to_owned()),
            at,
        });
    }
}

/// Brings a value per device into its normal form: a map with `cpu`, `cuda`, `rocm`.
fn per_device(
    walk: &mut Walk,
    node: &mut Node,
    spread: bool,
    item: Kind,
    advice: impl Fn(&str) -> Option<String>,
) {
    if spread {
        // The three are the same: checking one reports each error once.
        let before = walk.findings.errors.len();
        walk.value(node, item);
        if walk.findings.errors.len() == before {
            let tree = KINDS
                .iter()
                .map(|kind| ((*kind).to_owned(), node.clone()))
                .collect();
            node.tree = Tree::Map(tree);
        }
        return;
    }
    if node.members().is_none() {
        return walk.findings.mismatch(
            node,
            "one value for all devices or a map of \"cpu\", \"cuda\", \"rocm\"",
        );
    }
    let Some(members) = node.members_mut() else {
        return;
    };
    let is_stored = walk.findings.stage == Stage::Stored;
    members.retain(|key, member| {
        // `{A=B}` is a map with a key that has no value.
        let is_kind = KINDS.contains(&key.as_str()) || key == "gpu";
        !matches!(member.tree, Tree::Null) || !(is_kind || is_stored)
    });
    if let Some(gpu) = members.remove("gpu") {
        walk.findings
            .warn_in("gpu", gpu.at.as_ref(), "is the old name of \"cuda\"");
        members.entry("cuda".to_owned()).or_insert(gpu);
    }
    for (key, member) in members {
        walk.within(key, |walk| {
            if KINDS.contains(&key.as_str()) {
                walk.value(member, item);
            } else {
                let message = ErrorCode::UnknownKey
                    .message("is not a known key; known are \"cpu\", \"cuda\", \"rocm\"");
                match advice(key) {
                    Some(hint) => walk.findings.error_hint(member.at.as_ref(), message, hint),
                    None => walk.findings.error(member.at.as_ref(), message),
                }
            }
        });
    }
}

/// The JSON schema of a value for all devices or one for each.
fn by_device(item: &Value) -> Value {
    let or_null = json!({"anyOf": [item, {"type": "null"}]});
    json!({"anyOf": [item, {
        "type": "object",
        "properties": {
            "cpu": or_null,
            "cuda": or_null,
            "rocm": or_null,
            "gpu": {"anyOf": [item, {"type": "null"}], "deprecated": true, "description": "Old name of cuda."},
        },
        "additionalProperties": false,
    }]})
}

pub(crate) static IMAGE: Special = special(
    "image, or map of images by `cpu`, `cuda`, `rocm`",
    || by_device(&json!({"type": "string", "minLength": 1})),
    image,
)
.named("image");

fn image(walk: &mut Walk, node: &mut Node) {
    let spread = node.text().is_some();
    per_device(walk, node, spread, Kind::Special(&IMAGE_NAME), |_| None);
}

static IMAGE_NAME: Special = text_by(
    "image",
    || json!({"type": "string", "minLength": 1}),
    image_name,
);

fn image_name(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some("") => walk.findings.error(node.at.as_ref(), "must name an image"),
        Some(_) => {}
        None => walk.value(node, Kind::Text),
    }
}

pub(crate) static VARIABLES: Special = special(
    "list of `NAME=VALUE`, or map of such lists by `cpu`, `cuda`, `rocm`",
    || {
        by_device(
            &json!({"type": "array", "items": {"type": "string", "pattern": VARIABLE_PATTERN}}),
        )
    },
    variables,
)
.named("environment_variables");

fn variables(walk: &mut Walk, node: &mut Node) {
    let spread = matches!(node.tree, Tree::List(_));
    per_device(walk, node, spread, Kind::List(&VARIABLE_KIND), |key| {
        let name = variable_name(key);
        is_variable_name(name).then(|| format!("write a list, with \"- {name}=VALUE\""))
    });
}

static VARIABLE_KIND: Kind = Kind::Special(&VARIABLE);

static VARIABLE: Special = text_by(
    "`NAME=VALUE` or `NAME`",
    || json!({"type": "string", "pattern": VARIABLE_PATTERN}),
    variable,
);

const VARIABLE_PATTERN: &str = r"^([^=\s]+=|[^=:\s]+$)";

/// The name at the beginning of a text.
fn variable_name(text: &str) -> &str {
    let end = text.find(|c: char| c == '=' || c == ':' || c.is_whitespace());
    &text[..end.unwrap_or(text.len())]
}

/// There are names with colons (`npm_config_//host/:_authToken`); without a value one is most likely meant for `=`.
fn is_variable(text: &str) -> bool {
    let (name, has_value) = match text.split_once('=') {
        Some((name, _)) => (name, true),
        None => (text, false),
    };
    !name.contains(char::is_whitespace) && (has_value || !name.contains(':'))
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn variable(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(text) if text.is_empty() || text.starts_with('=') => {
            walk.findings
                .error(node.at.as_ref(), "must be \"NAME=VALUE\" or \"NAME\"");
        }
        // The rest of such a text is the value most likely, so it is not shown.
        Some(text) if walk.findings.stage != Stage::Stored && !is_variable(text) => {
            let message = "must be \"NAME=VALUE\" or \"NAME\", without blanks in the name";
            match variable_name(text) {
                name if is_variable_name(name) => {
                    let hint = format!("write {name}=VALUE");
                    walk.findings.error_hint(node.at.as_ref(), message, hint);
                }
                _ => walk.findings.error(node.at.as_ref(), message),
            }
        }
        Some(_) => {}
        None => {
            let message = format!("must be \"NAME=VALUE\" or \"NAME\", not {}", node.kind());
            match node.members() {
                Some(_) => walk.findings.error_hint(
                    node.at.as_ref(),
                    message,
                    "write NAME=VALUE, with an equals sign and without a colon",
                ),
                None => walk.findings.error(node.at.as_ref(), message),
            }
        }
    }
}

/// A size in bytes or as text; becomes bytes.
pub(crate) static BYTE_SIZE: Special = special(
    "size in bytes, or text like `4 GiB`",
    || {
        json!({"anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?( ?([kKmMgGtTpP]([iI]?[bB])?|[bB]))?$"},
        ]})
    },
    byte_size,
);

fn byte_size(walk: &mut Walk, node: &mut Node) {
    match node.text().map(parse_byte_size) {
        None => walk.value(node, NATURAL),
        Some(Ok(bytes)) => node.tree = Tree::Number(bytes.into()),
        Some(Err(message)) => walk.findings.error(node.at.as_ref(), message),
    }
}

static PORT_RANGE: Special = text_by(
    "range of ports like `12350:12400`",
    || json!({"type": "string", "pattern": "^([0-9]+:[0-9]+)?$"}),
    port_range,
);

fn port_range(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let bounds = text
        .split_once(':')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    if !text.is_empty() && !bounds.is_some_and(|(low, high)| low >= 1 && low <= high) {
        let message = format!(
            "must be a range of ports like \"12350:12400\", not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

keys! {
    /// What tasks on Kubernetes get unless they have their own.
    #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct KubernetesDefaults, KUBERNETES {
        /// Most slots of a pod; 0 = no task of two or more slots.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_slots_per_pod: Option<u32> = NATURAL_32;
    }
}

keys! {
    /// What tasks get unless they give their own. `None` and empty mean "not set": a weaker level decides.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct TaskContainerDefaults, TASK_CONTAINER_DEFAULTS {
        /// Interface for traffic between the containers of a task; a comma-separated list is allowed.
        dtrain_network_interface: Option<String> = Kind::Text, built_in("\"\"");
        /// Ports that NCCL may use between containers of a task, as `low:high`.
        nccl_port_range: Option<String> = Kind::Special(&PORT_RANGE), built_in("\"\"");
        /// Ports that Gloo may use between containers of a task, as `low:high`.
        gloo_port_range: Option<String> = Kind::Special(&PORT_RANGE), built_in("\"\"");
        /// Size of `/dev/shm` in bytes.
        shm_size_bytes: Option<u64> = POSITIVE, built_in(DEFAULT_SHM_SIZE);
        /// Docker network of containers; `host` is the host's own, also on Kubernetes.
        network_mode: Option<String> = Kind::Special(&NOT_EMPTY), built_in("\"bridge\"");
        /// Kubernetes pod of tasks without slots.
        cpu_pod_spec: Option<Value> = Kind::Special(&POD), merged(Merge::Replace);
        /// Kubernetes pod of tasks with slots.
        gpu_pod_spec: Option<Value> = Kind::Special(&POD), merged(Merge::Replace);
        /// Kubernetes pod of the deletion of checkpoints, instead of the experiment's.
        checkpoint_gc_pod_spec: Option<Value> = Kind::Special(&POD), merged(Merge::Replace);
        /// Image of tasks that name none.
        image: PerDevice<Option<String>> = Kind::Special(&IMAGE);
        /// Login for the images' registry. It is not shown to tasks, and used for the registry of `serveraddress`; unless given, for Docker Hub and the registries of this `image`.
        registry_auth: Option<RegistryAuth> = Kind::Section(&REGISTRY_AUTH), merged(Merge::Replace);
        /// Pull images even when they are present.
        force_pull_image: Option<bool> = Kind::Bool, built_in("false");
        /// Variables of every task, `NAME=VALUE` or `NAME`.
        environment_variables: PerDevice<Vec<String>> = Kind::Special(&VARIABLES), merged(Merge::VariablesByDevice);
        /// Linux capabilities, such as `SYS_PTRACE`, that containers get beside the engine's default ones.
        add_capabilities: Vec<String> = CAPABILITIES, merged(Merge::Set);
        /// Linux capabilities, such as `NET_RAW`, that containers do not get, also where the engine gives them by default or they are added; `ALL` = all but the added ones.
        drop_capabilities: Vec<String> = CAPABILITIES, merged(Merge::Set);
        /// Devices of the host that containers may use.
        devices: Vec<DeviceMapping> = DEVICES, merged(Merge::NewBy("container_path"));
        /// Directories of the host that are mounted into containers.
        bind_mounts: Vec<BindMount> = BIND_MOUNTS, merged(Merge::NewBy("container_path"));
        /// Working directory of tasks that name none.
        work_dir: Option<String> = Kind::Text;
        /// Options for clusters that Slurm schedules.
        slurm: Slurm = Kind::Section(&SLURM), built_in("{}"), kept;
        /// Options for clusters that PBS schedules.
        pbs: Pbs = Kind::Section(&PBS), built_in("{}"), kept;
        /// Shell script run before each task.
        startup_hook: Option<String> = Kind::Text, built_in("\"\"");
        /// Reactions to lines of logs.
        log_policies: Vec<LogPolicy> = DEFAULT_LOG_POLICIES, merged(Merge::LogPolicies);
        /// Seconds that a preempted task has to stop.
        preemption_timeout: Option<u32> = NATURAL_32, built_in("3600");
        /// What only tasks on Kubernetes get.
        kubernetes: KubernetesDefaults = Kind::Section(&KUBERNETES);
    }
    with named("task_container_defaults").check(mounts)
}

/// A string with something in it.
pub(crate) static NOT_EMPTY: Special = text_by(
    "string, not empty",
    || json!({"type": "string", "minLength": 1}),
    not_empty,
);

fn not_empty(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some("") => walk.findings.error(node.at.as_ref(), "must not be empty"),
        Some(_) => {}
        None => walk.value(node, Kind::Text),
    }
}

/// How long a trial may be silent. Each silence that is too long is looked at, so a shorter time than this is work for the
/// master without new facts.
pub(crate) static SILENCE_TIMEOUT: Special = text_by(
    "duration of 1 s or more, or `0s`",
    duration_schema,
    silence_timeout,
);

const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

fn silence_timeout(walk: &mut Walk, node: &mut Node) {
    walk.value(node, Kind::Duration);
    let too_short = |timeout: Duration| !timeout.is_zero() && timeout < SHORTEST_SILENCE;
    if node
        .text()
        .is_some_and(|text| parse_duration(text).is_ok_and(too_short))
    {
        walk.findings.error(
            node.at.as_ref(),
            ErrorCode::OutOfRange.message("must be at least 1s, or 0s for \"for ever\""),
        );
    }
}
