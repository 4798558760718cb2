//! An agent's configuration. `docs/reference/agent-configuration.md` lists its keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::container::schema::NOT_EMPTY;
use crate::errors::ErrorCode;
use crate::log::{LOG, Log};
use crate::schema::{
    Checker, Document, Kind, NATURAL_32, PORT, REAL_PORT, Section, Special, field, mask, section,
    text_by,
};
use crate::secrets::mask_addresses;
use crate::yaml::Node;

/// Everything an agent is configured with; every default that does not depend on its host is filled in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of the file with two values"
)]
pub struct AgentConfig {
    /// Log of the agent itself.
    pub log: Log,
    /// Host of the master.
    pub master_host: String,
    /// Port of the master; 0 = by TLS, see [`AgentConfig::effective_master_port`].
    pub master_port: u16,
    /// Unique in the cluster; `None` = the host's name.
    pub agent_id: Option<String>,
    /// Pool to join.
    pub resource_pool: String,
    /// Host of the master as seen from containers; `None` = `master_host`.
    pub container_master_host: Option<String>,
    /// Port of the master as seen from containers; `None` = as from the agent.
    pub container_master_port: Option<u16>,
    /// Which devices become slots.
    pub slot_type: SlotType,
    /// GPUs to use, by index, UUID, bus id or serial, comma-separated; `None` = all.
    pub visible_gpus: Option<String>,
    /// So many made-up processor slots instead of real ones; 0 = none.
    pub artificial_slots: u32,
    /// TLS towards the master.
    pub security: AgentSecurity,
    /// Verbose task scripts.
    pub debug: bool,
    /// Proxy for tasks and image pulls; empty = none.
    pub http_proxy: String,
    /// Proxy for tasks and image pulls; empty = none.
    pub https_proxy: String,
    /// Proxy for tasks; empty = none.
    pub ftp_proxy: String,
    /// Hosts that are reached without a proxy; empty = none.
    pub no_proxy: String,
    /// Attempts to reach the master again before giving up.
    pub agent_reconnect_attempts: u32,
    /// Seconds between two attempts.
    pub agent_reconnect_backoff: u32,
    /// How containers are run.
    pub container_runtime: Runtime,
    /// Whether ended containers are kept.
    pub container_auto_remove_disabled: bool,
    /// Commands for special moments.
    pub hooks: Hooks,
    /// Whether the local debug server runs.
    pub api_enabled: bool,
    /// Address of the debug server.
    pub bind_ip: String,
    /// Port of the debug server.
    pub bind_port: u16,
    /// Whether the debug server speaks TLS.
    pub tls: bool,
    /// Certificate of the debug server; empty = none.
    pub tls_cert: String,
    /// Key of the debug server; empty = none.
    pub tls_key: String,
    /// Image cache of runtimes other than Docker; `None` = none.
    pub image_root: Option<String>,
    /// What the agent presents to the master; `None` = nothing.
    pub agent_token: Option<String>,
    /// File that holds the above.
    pub agent_token_file: Option<String>,
    /// Python interpreter that process tasks get as `python3`; `None` = the first on the path.
    pub python: Option<String>,
    /// Directory of everything the agent keeps; `None` = the caller's choice.
    pub data_dir: Option<String>,
    /// Directories of this host below which users' configurations may name paths that the agent creates or gives to tasks.
    pub allowed_host_paths: Vec<String>,
    /// Linux capabilities that users' configurations may ask for although they reach beyond the container.
    pub allowed_capabilities: Vec<String>,
    /// Who process tasks of users without a mapping are.
    pub root_tasks: RootTasks,
}

impl fmt::Debug for AgentConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentConfig {}", self.to_masked_json())
    }
}

/// Which devices become slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotType {
    /// NVIDIA GPUs, else AMD GPUs, else one slot of all processors.
    Auto,
    /// None; the agent runs tasks without slots only.
    None,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
    /// One slot of all processors.
    Cpu,
}

/// How containers are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker if it answers, else processes.
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Sandboxed processes, without images.
    Process,
}

/// Who process tasks of users without a mapping are, where the agent is root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootTasks {
    /// An unprivileged user id for each user.
    Unprivileged,
    /// Root of the host.
    Root,
}

/// TLS towards the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSecurity {
    /// See the members.
    pub tls: AgentTls,
}

/// TLS towards the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTls {
    /// Whether the master is spoken to with TLS.
    pub enabled: bool,
    /// Whether any certificate is believed; never with `master_cert`.
    pub skip_verify: bool,
    /// File with the certificate authority; empty = the system's.
    pub master_cert: String,
    /// Name expected in the master's certificate; empty = its host.
    pub master_cert_name: String,
    /// Certificate of the agent; empty = none. Only with `client_key`.
    pub client_cert: String,
    /// Key of the agent; empty = none.
    pub client_key: String,
}

/// Commands for special moments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Run when the master cannot be reached for good; empty = nothing.
    pub on_connection_lost: Vec<String>,
}

const EMPTY: &str = "\"\"";

static DOCUMENT: Document = Document {
    root: &AGENT,
    places: &[
        (".pool", "resource_pool"),
        (".id", "agent_id"),
        (".level", "log.level"),
        (".master_cert", "security.tls.master_cert"),
        (".skip_verify", "security.tls.skip_verify"),
    ],
    slots_key: "artificial_slots",
    translate: |_, _| {},
};

/// What this document is made of.
pub(crate) fn document() -> &'static Document {
    &DOCUMENT
}

pub(crate) static AGENT: Section = section(&[
    field("config_file", Kind::Text, "The file that this was read from").built_in(EMPTY),
    field(
        "log",
        Kind::Section(&LOG),
        "Log of the agent itself",
    )
    .or("{}"),
    field("master_host", Kind::Special(&NOT_EMPTY), "Host of the master").finally(),
    field(
        "master_port",
        PORT,
        "Port of the master; 0 = 443 with TLS, 80 without",
    )
    .or("0"),
    field(
        "agent_id",
        Kind::Special(&NOT_EMPTY),
        "Unique in the cluster; the host's name unless given",
    ),
    field("resource_pool", Kind::Special(&NOT_EMPTY), "Pool to join").or("\"default\""),
    field(
        "container_master_host",
        Kind::Text,
        "Host of the master as seen from containers; `master_host` unless given",
    ),
    field(
        "container_master_port",
        REAL_PORT,
        "Port of the master as seen from containers; `master_port` unless given",
    ),
    field(
        "slot_type",
        Kind::Special(&SLOT_TYPE),
        "Which devices become slots",
    )
    .or("\"auto\""),
    field(
        "visible_gpus",
        Kind::Text,
        "GPUs to use, by index, UUID, bus id or serial, comma-separated; all unless given here or by ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES",
    ),
    field(
        "artificial_slots",
        NATURAL_32,
        "So many made-up processor slots instead of real ones, for tests",
    )
    .or("0"),
    field(
        "security",
        Kind::Section(&SECURITY),
        "TLS towards the master",
    )
    .or("{}"),
    field("debug", Kind::Bool, "Verbose scripts of tasks").or("false").kept(),
    field("http_proxy", Kind::Text, "Proxy for tasks and image pulls").or(EMPTY),
    field("https_proxy", Kind::Text, "Proxy for tasks and image pulls").or(EMPTY),
    field("ftp_proxy", Kind::Text, "Proxy for tasks").or(EMPTY),
    field(
        "no_proxy",
        Kind::Text,
        "Hosts that are reached without a proxy",
    )
    .or(EMPTY),
    // Some hours: longer than the ten minutes that the master waits for a lost agent, even where pauses are cut short at
    // random. An agent that comes back later still hands over logs and is told what to end.
    field(
        "agent_reconnect_attempts",
        NATURAL_32,
        "Attempts to reach the master again before the command for a lost connection runs",
    )
    .or("2880"),
    field(
        "agent_reconnect_backoff",
        NATURAL_32,
        "Seconds between two attempts",
    )
    .or("5"),
    field(
        "container_runtime",
        Kind::Choice(&["auto", "docker", "podman", "process"]),
        "How containers are run",
    )
    .or("\"auto\""),
    field(
        "container_auto_remove_disabled",
        Kind::Bool,
        "Whether ended containers are kept",
    )
    .or("false")
    .kept(),
    field("hooks", Kind::Section(&HOOKS), "Commands for special moments").or("{}"),
    field(
        "api_enabled",
        Kind::Bool,
        "Whether the local debug server runs",
    )
    .or("false")
    .kept(),
    field("bind_ip", Kind::Text, "Address of the debug server")
        .or("\"0.0.0.0\"")
        .kept(),
    field("bind_port", PORT, "Port of the debug server").or("9090").kept(),
    field("tls", Kind::Bool, "Whether the debug server speaks TLS")
        .or("false")
        .kept(),
    field("tls_cert", Kind::Text, "Certificate of the debug server")
        .or(EMPTY)
        .kept(),
    field("tls_key", Kind::Text, "Key of the debug server").or(EMPTY).kept(),
    field("fluent", Kind::Any, "Older key").warn("is ignored; agents ship logs themselves"),
    field("label", Kind::Any, "Older key").warn("is ignored; use \"resource_pool\""),
    field(
        "image_root",
        Kind::Text,
        "Image cache of runtimes other than Docker",
    )
    .kept(),
    field(
        "agent_token",
        Kind::Text,
        "Token that the cluster's agents join with; not needed once this agent has joined",
    )
    .secret(),
    field("agent_token_file", Kind::Text, "File that holds the above"),
    field(
        "python",
        Kind::Text,
        "Interpreter that process tasks get as `python3`; the first on the path unless given",
    ),
    field(
        "data_dir",
        Kind::Text,
        "Directory of everything the agent keeps",
    ),
    field(
        "allowed_host_paths",
        Kind::List(&Kind::Text),
        "Directories of this host below which users' configurations may name paths that the program itself creates, reads or deletes (checkpoint storage, mount points), beside the configured checkpoint storage; also directories of the system, home directories and devices that tasks may be given",
    )
    .or("[]"),
    field(
        "allowed_capabilities",
        Kind::List(&Kind::Text),
        "Linux capabilities, such as `SYS_ADMIN`, that users' configurations may ask for in `add_capabilities` although they reach beyond the container: with most of them a task can become root of the host. Those that engines give by default and `IPC_LOCK`, `SYS_NICE`, `SYS_PTRACE` and the like need no entry, nor those of `task_container_defaults`",
    )
    .or("[]"),
    field(
        "root_tasks",
        Kind::Choice(&["unprivileged", "root"]),
        "Who process tasks of users without a mapping are on this host: an unprivileged user id for each, or root. As root a task can read whatever root owns on the host, and change it where it is mounted for writing",
    )
    .or("\"unprivileged\""),
])
.aliases(&[("runtime", "container_runtime", false)])
.check(check_document);

static SECURITY: Section =
    section(&[field("tls", Kind::Section(&TLS), "TLS towards the master").or("{}")]);

static TLS: Section = section(&[
    field(
        "enabled",
        Kind::Bool,
        "Whether the master is spoken to with TLS",
    )
    .or("false"),
    field(
        "skip_verify",
        Kind::Bool,
        "Whether any certificate is believed",
    )
    .or("false"),
    field(
        "master_cert",
        Kind::Text,
        "File with the certificate authority; the system's unless given",
    )
    .or(EMPTY),
    field(
        "master_cert_name",
        Kind::Text,
        "Name expected in the master's certificate; its host unless given",
    )
    .or(EMPTY),
    field(
        "client_cert",
        Kind::Text,
        "File with the agent's certificate",
    )
    .or(EMPTY),
    field("client_key", Kind::Text, "File with the agent's key").or(EMPTY),
])
.check(tls);

static HOOKS: Section = section(&[field(
    "on_connection_lost",
    Kind::List(&Kind::Text),
    "Command that runs when the master cannot be reached for good",
)
.or("[]")]);

static SLOT_TYPE: Special = text_by(
    "`auto`, `none`, `cuda`, `rocm`, `cpu`; older: `gpu`",
    || json!({"enum": ["auto", "none", "cuda", "rocm", "cpu", "gpu"]}),
    slot_type,
);

/// `gpu` is the old name of `cuda`.
fn slot_type(checker: &mut Checker, node: &mut Node) {
    if node.text() == Some("gpu") {
        checker.warn(node.at.as_ref(), "\"gpu\" is the old name of \"cuda\"");
        node.tree = crate::yaml::Tree::Text("cuda".into());
    }
    checker.value(node, Kind::Choice(&["auto", "none", "cuda", "rocm", "cpu"]));
}

fn given<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.get(key).filter(|member| member.text() != Some(""))
}

fn is_true(node: &Node, key: &str) -> bool {
    matches!(
        node.get(key).map(|member| &member.tree),
        Some(crate::yaml::Tree::Bool(true))
    )
}

fn tls(checker: &mut Checker, node: &Node) {
    if !checker.stage.is_complete() {
        return;
    }
    if let (Some(cert), true) = (given(node, "master_cert"), is_true(node, "skip_verify")) {
        checker.error_in(
            "master_cert",
            cert.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"skip_verify\""),
        );
    }
    for (one, other) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
        if let (Some(file), None) = (given(node, one), given(node, other)) {
            let message = ErrorCode::Missing.message(format!("is required beside \"{one}\""));
            checker.error_in(other, file.at.as_ref(), message);
        }
    }
}

fn check_document(checker: &mut Checker, root: &Node) {
    if !checker.stage.is_complete() {
        return;
    }
    if is_true(root, "tls") && is_true(root, "api_enabled") {
        for key in ["tls_cert", "tls_key"] {
            if given(root, key).is_none() {
                let at = root.get("tls").and_then(|node| node.at.clone());
                checker.error_in(
                    key,
                    at.as_ref(),
                    ErrorCode::Missing.message("is required for TLS on the debug server"),
                );
            }
        }
    }
    if let Some(crate::yaml::Tree::List(paths)) =
        root.get("allowed_host_paths").map(|node| &node.tree)
    {
        for (index, path) in paths.iter().enumerate() {
            let text = path.text().unwrap_or_default();
            let plain = text.starts_with('/') && !text.split('/').any(|part| part == "..");
            if !plain {
                checker.error_in(
                    &format!("allowed_host_paths[{index}]"),
                    path.at.as_ref(),
                    "must be an absolute path without \"..\"",
                );
            }
        }
    }
    if let (Some(_), Some(file)) = (given(root, "agent_token"), given(root, "agent_token_file")) {
        checker.error_in(
            "agent_token_file",
            file.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"agent_token\""),
        );
    }
}

impl AgentConfig {
    /// The configuration as JSON for showing: the token, and credentials in addresses, those of proxies most of all, are hidden.
    pub fn to_masked_json(&self) -> Value {
        let mut value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        mask(&mut value, &AGENT);
        mask_addresses(&mut value);
        value
    }

    /// The port of the master: as configured, else 443 with TLS and 80 without.
    pub fn effective_master_port(&self) -> u16 {
        match (self.master_port, self.security.tls.enabled) {
            (0, true) => 443,
            (0, false) => 80,
            (port, _) => port,
        }
    }
}

#[cfg(test)]
mod tests;
