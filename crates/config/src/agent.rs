//! An agent's configuration. `docs/reference/agent-configuration.md` lists its keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::container::schema::{BYTE_SIZE, NOT_EMPTY};
use crate::errors::ErrorCode;
use crate::log::{LOG, Log};
use crate::schema::{
    Document, Findings, Kind, NATURAL_32, PORT, REAL_PORT, Special, Walk, keys, mask, special,
    text_by,
};
use crate::secrets::mask_addresses;
use crate::yaml::Node;

mod ulimits;

use ulimits::ULIMIT;
pub use ulimits::Ulimit;

/// The most made-up slots of an agent. An agent reports each of its slots in one message, which the master reads up to a
/// size; a machine with real devices has far fewer.
pub const MAX_ARTIFICIAL_SLOTS: u32 = 4096;

impl fmt::Debug for AgentConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentConfig {}", self.to_masked_json())
    }
}

/// Which devices of the machine become slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotType {
    /// NVIDIA GPUs, else AMD GPUs, else one slot of all processors.
    Auto,
    /// None; the agent runs tasks without slots only.
    None,
    /// One slot for each NVIDIA GPU or MIG instance.
    Cuda,
    /// One slot for each AMD GPU.
    Rocm,
    /// One slot of all processors.
    Cpu,
}

/// What the agent runs containers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker if it answers, else processes.
    Auto,
    /// Containers of a Docker engine.
    Docker,
    /// Containers of Podman.
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
    /// Root of the host, user id 0.
    Root,
}

const EMPTY: &str = "\"\"";

/// What an agent's configuration is made of.
pub(crate) static DOCUMENT: Document = Document {
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

keys! {
    /// Everything an agent is configured with; every default that does not depend on its host is filled in.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    pub struct AgentConfig, AGENT {
        /// Log of the agent itself.
        log: Log = Kind::Section(&LOG), or("{}");
        /// Name or address of the master's host, without scheme and port.
        master_host: String = Kind::Special(&NOT_EMPTY), finally;
        /// Port of the master; 0 = 443 with TLS, 80 without.
        master_port: u16 = PORT, or("0");
        /// Unique in the cluster; the host's name unless given.
        agent_id: Option<String> = Kind::Special(&NOT_EMPTY);
        /// Resource pool that the agent's slots join.
        resource_pool: String = Kind::Special(&NOT_EMPTY), or("\"default\"");
        /// Host of the master as seen from containers; `master_host` unless given.
        container_master_host: Option<String> = Kind::Text;
        /// Port of the master as seen from containers; `master_port` unless given.
        container_master_port: Option<u16> = REAL_PORT;
        /// Which devices of the machine become slots; `auto` takes GPUs and, without any, the processors.
        slot_type: SlotType = Kind::Special(&SLOT_TYPE), or("\"auto\"");
        /// GPUs to use, by index, UUID, bus id or serial, comma-separated; all unless given here or by
        /// `ROCR_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES`.
        visible_gpus: Option<String> = Kind::Text;
        /// So many made-up processor slots instead of real ones, for tests.
        artificial_slots: u32 = Kind::Int(0, MAX_ARTIFICIAL_SLOTS as i64), or("0");
        /// How the agent speaks TLS with the master and whom it trusts.
        security: AgentSecurity = Kind::Section(&SECURITY), or("{}");
        /// Whether the scripts of all tasks on this agent log in detail, as `debug` of a task's configuration does for one.
        debug: bool = Kind::Bool, or("false");
        /// Proxy for tasks. Images are pulled by the container engine, with the proxies of its own configuration.
        http_proxy: String = Kind::Text, or(EMPTY);
        /// Proxy for tasks; not for image pulls, as `http_proxy`.
        https_proxy: String = Kind::Text, or(EMPTY);
        /// Proxy of tasks for FTP, as `http_proxy`.
        ftp_proxy: String = Kind::Text, or(EMPTY);
        /// Hosts that are reached without a proxy.
        no_proxy: String = Kind::Text, or(EMPTY);
        /// Attempts to reach the master again, not counting quick first ones, before the lost connection's hook runs.
        agent_reconnect_attempts: u32 = NATURAL_32, or("2880");
        /// Seconds between two attempts to reach the master again.
        agent_reconnect_backoff: u32 = NATURAL_32, or("5");
        /// What containers are run with; `auto` is Docker if it answers, else processes.
        container_runtime: Runtime = Kind::Choice(&["auto", "docker", "podman", "process"]), or("\"auto\"");
        /// Port at which the agent accepts the tunnels to services of its tasks from its master, with TLS, on all addresses. Unless
        /// given the agent accepts no connections and opens the tunnels itself.
        tunnel_port: Option<u16> = REAL_PORT;
        /// Host of this agent as the master reaches its `tunnel_port`; the address from which the agent reaches the master unless
        /// given.
        tunnel_host: Option<String> = Kind::Special(&NOT_EMPTY);
        /// Whether ended containers of an engine are kept, for a look at what they have left. They are removed at the first
        /// start of the agent without this.
        container_auto_remove_disabled: bool = Kind::Bool, or("false");
        /// Commands that the agent runs when something happens to it.
        hooks: Hooks = Kind::Section(&HOOKS), or("{}");
        /// Whether the agent's debug server runs: it shows health, version, metrics, and the ids and states of containers to
        /// everything that reaches its address.
        api_enabled: bool = Kind::Bool, or("false");
        /// Address of the debug server; 127.0.0.1 = for this machine alone.
        bind_ip: String = Kind::Text, or("\"0.0.0.0\"");
        /// Port of the debug server.
        bind_port: u16 = PORT, or("9090");
        /// Whether the debug server speaks TLS.
        tls: bool = Kind::Bool, or("false");
        /// Certificate of the debug server.
        tls_cert: String = Kind::Text, or(EMPTY);
        /// Key of the debug server.
        tls_key: String = Kind::Text, or(EMPTY);
        /// Image cache of runtimes other than Docker.
        image_root: Option<String> = Kind::Text, kept;
        /// Token that the cluster's agents join with; not needed once this agent has joined.
        agent_token: Option<String> = Kind::Text, secret;
        /// File that contains the token of `agent_token`.
        agent_token_file: Option<String> = Kind::Text;
        /// Interpreter that process tasks get as `python3`; the first on the path unless given.
        python: Option<String> = Kind::Text;
        /// Directory of everything the agent keeps.
        data_dir: Option<String> = Kind::Text;
        /// Directories of this host below which users' configurations may name paths that the program itself creates,
        /// reads or deletes (checkpoint storage, mount points), in addition to the configured checkpoint storage; also
        /// directories of the system, home directories and devices that tasks may be given.
        allowed_host_paths: Vec<String> = Kind::List(&Kind::Text), or("[]");
        /// Linux capabilities, such as `SYS_ADMIN`, that users' configurations may ask for in `add_capabilities`
        /// although they reach beyond the container: with most of them a task can become root of the host. Those that
        /// engines give by default and `IPC_LOCK`, `SYS_NICE`, `SYS_PTRACE` and the like need no entry, nor those of
        /// `task_container_defaults`; in the host's network `NET_RAW` and `NET_BIND_SERVICE` do.
        allowed_capabilities: Vec<String> = Kind::List(&Kind::Text), or("[]");
        /// Who process tasks of users without a mapping are on this host: an unprivileged user id for each, or root.
        /// As root a task can read whatever root owns on the host, and change it where it is mounted for writing.
        root_tasks: RootTasks = Kind::Choice(&["unprivileged", "root"]), or("\"unprivileged\"");
        /// Directory of this host with a directory for each user, which the user's notebooks and shells have as
        /// `persistent` in their working directory and which outlives them. The agent makes it, for root only. Put it on
        /// a file system that all agents of the pool share. There are none unless given.
        user_directories: Option<String> = Kind::Special(&ABSOLUTE);
        /// What a container may take of this host. The limits are for a container with one slot or none; with more slots
        /// they are multiplied by their number.
        task_limits: TaskLimits = Kind::Section(&TASK_LIMITS), or("{}");
        /// Limits of processes in containers of an engine, as of `docker run --ulimit`: `memlock=-1`, `nofile=65536:131072`
        /// (soft and hard; -1 = none). What is not given is as the engine sets it; tasks that are processes have the limits
        /// of the agent.
        ulimits: Vec<String> = Kind::List(&Kind::Special(&ULIMIT)), or("[]");
        /// Python modules that the agent imports once, ahead of time, for trials and commands that run as processes: a
        /// program that imports them does not wait for that. Not unless given.
        warm_start: Option<WarmStart> = Kind::Section(&WARM_START);
    }
    without field {
        /// The file that this was read from.
        config_file = Kind::Text, built_in(EMPTY);
        /// Fluent Bit, the log shipper of agents before version 0.25.1.
        fluent = Kind::Any, warn("is ignored; agents ship logs themselves");
        /// Label of the agent, before version 0.20.
        label = Kind::Any, warn("is ignored; use \"resource_pool\"");
    }
    with aliases(&[("runtime", "container_runtime", false)]).check(check_document)
}

keys! {
    /// Modules that are imported ahead for tasks, and by which interpreter.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct WarmStart, WARM_START {
        /// The interpreter, by an absolute path. Programs start warm that find it as their `python3`.
        python: String = Kind::Special(&ABSOLUTE), always;
        /// The modules, such as `torch`, which are imported in this order with the rights of the agent: name modules of
        /// the administrator only.
        imports: Vec<String> = Kind::List(&Kind::Text), always;
    }
}

keys! {
    /// What a container may take of its host.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct TaskLimits, TASK_LIMITS {
        /// Memory for each slot, at least 16 MiB, `/dev/shm` included; no swap is used beyond it. No limit unless given.
        memory: Option<u64> = Kind::Special(&TASK_MEMORY);
        /// Processors whose time may be used, for each slot; `0.5` is half of one. No limit unless given.
        cpus: Option<f64> = Kind::AtLeast(0.01);
        /// Processes and threads at once, for each slot, at least 32. No limit unless given.
        processes: Option<u32> = Kind::Int(32, u32::MAX as i64);
        /// Whether tasks are refused where this host cannot limit them; otherwise they are started with a warning in
        /// their log.
        required: bool = Kind::Bool, or("false");
    }
}

/// The least memory of a container: its supervisor must fit into it too.
const LEAST_TASK_MEMORY: u64 = 16 << 20;

static TASK_MEMORY: Special = special(
    "size in bytes, or text like `4 GiB`, at least 16 MiB",
    || (BYTE_SIZE.json)(),
    task_memory,
);

fn task_memory(walk: &mut Walk, node: &mut Node) {
    (BYTE_SIZE.check)(walk, node);
    let too_small = matches!(&node.tree, crate::yaml::Tree::Number(bytes)
        if bytes.as_u64().is_some_and(|bytes| bytes < LEAST_TASK_MEMORY));
    if too_small {
        let message = "must be at least 16 MiB, which a task needs to start at all";
        walk.findings.error(node.at.as_ref(), message);
    }
}

keys! {
    /// TLS towards the master.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct AgentSecurity, SECURITY {
        /// Whether the agent speaks TLS with the master, and which certificates count.
        tls: AgentTls = Kind::Section(&TLS), or("{}");
    }
}

keys! {
    /// TLS towards the master.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct AgentTls, TLS {
        /// Whether the master is spoken to with TLS.
        enabled: bool = Kind::Bool, or("false");
        /// Whether any certificate of the master is accepted.
        skip_verify: bool = Kind::Bool, or("false");
        /// File with the certificate authority; the system's unless given.
        master_cert: String = Kind::Text, or(EMPTY);
        /// Name expected in the master's certificate; its host unless given.
        master_cert_name: String = Kind::Text, or(EMPTY);
        /// File with the agent's certificate.
        client_cert: String = Kind::Text, or(EMPTY);
        /// File with the agent's key.
        client_key: String = Kind::Text, or(EMPTY);
    }
    with check(tls)
}

keys! {
    /// Commands that the agent runs when something happens to it.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Hooks, HOOKS {
        /// Command that runs when the master cannot be reached for good.
        on_connection_lost: Vec<String> = Kind::List(&Kind::Text), or("[]");
    }
}

const NOT_ABSOLUTE: &str = "must be an absolute path without \"..\"";

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.split('/').any(|part| part == "..")
}

static ABSOLUTE: Special = text_by(
    "absolute path without `..`",
    || json!({"type": "string", "pattern": "^/"}),
    |walk, node| match node.text() {
        Some(path) if is_absolute(path) => {}
        Some(_) => walk.findings.error(node.at.as_ref(), NOT_ABSOLUTE),
        None => walk.value(node, Kind::Text),
    },
);

static SLOT_TYPE: Special = text_by(
    "`auto`, `none`, `cuda`, `rocm`, `cpu`; older: `gpu`",
    || json!({"enum": ["auto", "none", "cuda", "rocm", "cpu", "gpu"]}),
    slot_type,
);

/// `gpu` is the old name of `cuda`.
fn slot_type(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("gpu") {
        walk.findings
            .warn(node.at.as_ref(), "\"gpu\" is the old name of \"cuda\"");
        node.tree = crate::yaml::Tree::Text("cuda".into());
    }
    walk.value(node, Kind::Choice(&["auto", "none", "cuda", "rocm", "cpu"]));
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

fn tls(findings: &mut Findings, node: &Node) {
    if !findings.stage.is_complete() {
        return;
    }
    if let (Some(cert), true) = (given(node, "master_cert"), is_true(node, "skip_verify")) {
        findings.error_in(
            "master_cert",
            cert.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"skip_verify\""),
        );
    }
    for (one, other) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
        if let (Some(file), None) = (given(node, one), given(node, other)) {
            let message = ErrorCode::Missing.message(format!("is required beside \"{one}\""));
            findings.error_in(other, file.at.as_ref(), message);
        }
    }
}

fn check_document(findings: &mut Findings, root: &Node) {
    if !findings.stage.is_complete() {
        return;
    }
    if is_true(root, "tls") && is_true(root, "api_enabled") {
        for key in ["tls_cert", "tls_key"] {
            if given(root, key).is_none() {
                let at = root.get("tls").and_then(|node| node.at.clone());
                findings.error_in(
                    key,
                    at.as_ref(),
                    ErrorCode::Missing.message("is required for TLS on the debug server"),
                );
            }
        }
    }
    if let (Some(host), None) = (given(root, "tunnel_host"), given(root, "tunnel_port")) {
        findings.error_in(
            "tunnel_host",
            host.at.as_ref(),
            ErrorCode::Missing
                .message("needs \"tunnel_port\", without which the agent accepts no tunnels"),
        );
    }
    if let Some(crate::yaml::Tree::List(paths)) =
        root.get("allowed_host_paths").map(|node| &node.tree)
    {
        for (index, path) in paths.iter().enumerate() {
            if !is_absolute(path.text().unwrap_or_default()) {
                findings.error_in(
                    &format!("allowed_host_paths[{index}]"),
                    path.at.as_ref(),
                    NOT_ABSOLUTE,
                );
            }
        }
    }
    if let (Some(_), Some(file)) = (given(root, "agent_token"), given(root, "agent_token_file")) {
        findings.error_in(
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

    /// The limit of processor time in thousandths of a processor, for each slot; `None` = there is none.
    pub fn task_cpu_millis(&self) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 0.01; a number too large becomes the largest"
        )]
        self.task_limits
            .cpus
            .map(|cpus| (cpus * 1000.0).round() as u64)
    }

    /// The limits of processes in containers, as [`AgentConfig::ulimits`] has them.
    pub fn parsed_ulimits(&self) -> Vec<Ulimit> {
        // What is not one was refused.
        self.ulimits
            .iter()
            .filter_map(|text| Ulimit::parse(text).ok())
            .collect()
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
