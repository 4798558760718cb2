//! An agent's configuration: `agent-config` reference §2.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::errors::{ConfigError, ConfigErrors};
use crate::layers::{Schema, env_names};
use crate::master::Log;
use crate::schema::{
    Checker, Kind, NATURAL_32, PORT, Section, Stage, field, fill_defaults, leaves, mask, section,
};
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

static AGENT: Section = section(&[
    field("config_file", Kind::Text),
    field("log", Kind::Section(&crate::master::LOG)).or("{}"),
    field("master_host", Kind::TextBy(crate::container::not_empty)).finally(),
    field("master_port", PORT).or("0"),
    field("agent_id", Kind::TextBy(crate::container::not_empty)),
    field("resource_pool", Kind::TextBy(crate::container::not_empty)).or("\"default\""),
    field("container_master_host", Kind::Text),
    field("container_master_port", Kind::Int(1, 65_535)),
    field("slot_type", Kind::TextBy(slot_type)).or("\"auto\""),
    field("visible_gpus", Kind::Text),
    field("artificial_slots", NATURAL_32).or("0"),
    field("security", Kind::Section(&SECURITY)).or("{}"),
    field("debug", Kind::Bool).or("false"),
    field("http_proxy", Kind::Text).or(EMPTY),
    field("https_proxy", Kind::Text).or(EMPTY),
    field("ftp_proxy", Kind::Text).or(EMPTY),
    field("no_proxy", Kind::Text).or(EMPTY),
    // Some hours: longer than the ten minutes that the master waits for a lost agent, even where pauses are cut short at
    // random. An agent that comes back later still hands over logs and is told what to end.
    field("agent_reconnect_attempts", NATURAL_32).or("2880"),
    field("agent_reconnect_backoff", NATURAL_32).or("5"),
    field(
        "container_runtime",
        Kind::Choice(&["auto", "docker", "podman", "process"]),
    )
    .or("\"auto\""),
    field("container_auto_remove_disabled", Kind::Bool).or("false"),
    field("hooks", Kind::Section(&HOOKS)).or("{}"),
    field("api_enabled", Kind::Bool).or("false"),
    field("bind_ip", Kind::Text).or("\"0.0.0.0\""),
    field("bind_port", PORT).or("9090"),
    field("tls", Kind::Bool).or("false"),
    field("tls_cert", Kind::Text).or(EMPTY),
    field("tls_key", Kind::Text).or(EMPTY),
    field("fluent", Kind::Any).warn("is ignored; agents ship logs themselves"),
    field("label", Kind::Any).warn("is ignored; use \"resource_pool\""),
    field("image_root", Kind::Text),
    field("agent_token", Kind::Text).secret(),
    field("agent_token_file", Kind::Text),
    field("python", Kind::Text),
    field("data_dir", Kind::Text),
])
.aliases(&[("runtime", "container_runtime", false)])
.check(document);

static SECURITY: Section = section(&[field("tls", Kind::Section(&TLS)).or("{}")]);

static TLS: Section = section(&[
    field("enabled", Kind::Bool).or("false"),
    field("skip_verify", Kind::Bool).or("false"),
    field("master_cert", Kind::Text).or(EMPTY),
    field("master_cert_name", Kind::Text).or(EMPTY),
    field("client_cert", Kind::Text).or(EMPTY),
    field("client_key", Kind::Text).or(EMPTY),
])
.check(tls);

static HOOKS: Section = section(&[field("on_connection_lost", Kind::List(&Kind::Text)).or("[]")]);

static SCHEMA: Schema = Schema {
    root: &AGENT,
    suggestions: &[],
    translate: |_, _| {},
};

/// `gpu` is the old name of `cuda`.
fn slot_type(checker: &mut Checker, node: &mut Node) {
    if node.text() == Some("gpu") {
        checker.warn("\"gpu\" is the old name of \"cuda\"");
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
    if checker.stage != Stage::Complete {
        return;
    }
    if let (Some(cert), true) = (given(node, "master_cert"), is_true(node, "skip_verify")) {
        checker.error_in(
            "master_cert",
            cert.at.as_ref(),
            "cannot be combined with \"skip_verify\"",
        );
    }
    for (one, other) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
        if let (Some(file), None) = (given(node, one), given(node, other)) {
            let message = format!("is required beside \"{one}\"");
            checker.error_in(other, file.at.as_ref(), message);
        }
    }
}

fn document(checker: &mut Checker, root: &Node) {
    if checker.stage != Stage::Complete {
        return;
    }
    if is_true(root, "tls") && is_true(root, "api_enabled") {
        for key in ["tls_cert", "tls_key"] {
            if given(root, key).is_none() {
                let at = root.get("tls").and_then(|node| node.at.clone());
                checker.error_in(key, at.as_ref(), "is required for TLS on the debug server");
            }
        }
    }
    if let (Some(_), Some(file)) = (given(root, "agent_token"), given(root, "agent_token_file")) {
        checker.error_in(
            "agent_token_file",
            file.at.as_ref(),
            "cannot be combined with \"agent_token\"",
        );
    }
}

impl AgentConfig {
    /// Reads the configuration; arguments and result as for [`crate::MasterConfig::load`].
    ///
    /// # Errors
    /// Every mistake, each with its path and the file and line, variable or flag it comes from.
    pub fn load(
        files: &[(String, String)],
        env: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<(Self, Vec<String>), ConfigErrors> {
        let (mut root, warnings) = SCHEMA.load(files, env, flags)?;
        fill_defaults(&mut root, SCHEMA.root);
        let mut config: Self = serde_json::from_value(root.to_value())
            .map_err(|error| ConfigError::new("", None, format!("cannot be read: {error}")))?;
        if config.visible_gpus.is_none() {
            let name = ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
            config.visible_gpus = name.iter().find_map(|name| env.get(*name)).cloned();
        }
        for host in [&mut config.container_master_host, &mut config.agent_id] {
            if host.as_deref() == Some("") {
                *host = None;
            }
        }
        Ok((config, warnings))
    }

    /// The configuration as JSON for showing: the token and the credentials in proxy addresses are hidden.
    pub fn to_masked_json(&self) -> Value {
        let mut value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        mask(&mut value, SCHEMA.root);
        for key in ["http_proxy", "https_proxy", "ftp_proxy"] {
            let shown = value
                .get(key)
                .and_then(Value::as_str)
                .map(without_credentials);
            if let (Some(shown), Some(members)) = (shown, value.as_object_mut()) {
                members.insert(key.to_owned(), Value::from(shown));
            }
        }
        value
    }

    /// The variable of every key, `(DET_MASTER_HOST, master_host)`; `…_FILE` as for [`crate::MasterConfig`].
    pub fn environment_names() -> Vec<(String, String)> {
        let known = leaves(SCHEMA.root);
        env_names(&known)
            .into_iter()
            .map(|(name, leaf)| (name, leaf.path.clone()))
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

/// A URL without the user and password in it.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) if scheme.is_empty() => format!("{}@{host}{path}", crate::schema::MASK),
        Some((_, host)) => format!("{scheme}://{}@{host}{path}", crate::schema::MASK),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests;
