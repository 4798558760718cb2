//! The typed configuration of the master.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Schedule;
use crate::container::TaskContainerDefaults;
use crate::log::Log;
use crate::storage::CheckpointStorage;

/// Everything the master is configured with; every default is filled in.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct MasterConfig {
    /// Log of the master itself.
    pub log: Log,
    /// The database; empty = the embedded store in `data_dir`.
    pub db: Database,
    /// Seconds until an idle TensorBoard ends; 0 = never.
    pub tensorboard_timeout: u32,
    /// Seconds until an idle notebook ends; `None` = never.
    pub notebook_timeout: Option<u32>,
    /// Identities, TLS, passwords.
    pub security: Security,
    /// Checkpoint storage of experiments that name none; `None` = they must.
    pub checkpoint_storage: Option<CheckpointStorage>,
    /// What tasks get unless they or their pool say otherwise.
    pub task_container_defaults: TaskContainerDefaults,
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0 = by TLS, see [`MasterConfig::effective_port`].
    pub port: u16,
    /// Directory of the embedded store and of files; `None` = the caller's choice.
    pub data_dir: Option<String>,
    /// Whether work larger than the cluster is refused at submit; otherwise it waits, with a reason.
    pub launch_error: bool,
    /// Name for people.
    pub cluster_name: String,
    /// Whether other origins may call the API from a browser.
    pub enable_cors: bool,
    /// Switches, a leading `-` turns one off.
    pub feature_switches: Vec<String>,
    /// Ports never given to traffic between containers.
    pub reserved_ports: Vec<u16>,
    /// How long task logs are kept.
    pub retention_policy: Retention,
    /// What is reported to whom.
    pub telemetry: Telemetry,
    /// Metrics for operators.
    pub observability: Observability,
    /// Outgoing webhooks.
    pub webhooks: Webhooks,
    /// Who runs containers.
    pub resource_manager: ResourceManager,
    /// Pools of agents; at least one.
    pub resource_pools: Vec<ResourcePool>,
    /// Keys of what is not built yet, as given.
    #[serde(flatten)]
    pub kept: Map<String, Value>,
}

impl fmt::Debug for MasterConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterConfig {}", self.to_logged_json())
    }
}

/// The database.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// Address of a PostgreSQL database, `postgres://…`; never together with the parts below.
    pub url: Option<String>,
    /// Account.
    pub user: Option<String>,
    /// Secret of the account.
    pub password: Option<String>,
    /// Host.
    pub host: Option<String>,
    /// Port.
    pub port: u16,
    /// Name of the database.
    pub name: Option<String>,
    /// libpq's `sslmode`.
    pub ssl_mode: String,
    /// File with the certificate authority; `None` = libpq's default.
    pub ssl_root_cert: Option<String>,
}

impl Database {
    /// The address of the PostgreSQL database, or `None` for the embedded store. Holds the password.
    pub fn postgres_url(&self) -> Option<String> {
        if let Some(url) = &self.url {
            return Some(url.clone());
        }
        let host = self.host.as_deref()?;
        let user = percent_encode(self.user.as_deref().unwrap_or_default());
        let password = match &self.password {
            Some(password) => format!(":{}", percent_encode(password)),
            None => String::new(),
        };
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let name = percent_encode(self.name.as_deref().unwrap_or_default());
        let mut url = format!(
            "postgres://{user}{password}@{host}:{}/{name}?sslmode={}",
            self.port, self.ssl_mode
        );
        if let Some(path) = &self.ssl_root_cert {
            url.push_str("&sslrootcert=");
            url.push_str(&percent_encode(path));
        }
        Some(url)
    }
}

/// Everything but unreserved characters (RFC 3986, section 2.3) as `%XX`.
fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// Identities, TLS, passwords.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Identity of tasks of users without a linked one.
    pub default_task: DefaultTask,
    /// Certificate and key; TLS is on when both are given.
    pub tls: TlsFiles,
    /// Who may do what.
    pub authz: Authz,
    /// Password of `admin` and `determined` on the first start; empty = blank passwords.
    pub initial_user_password: String,
    /// How long access tokens live.
    pub token: TokenLifespan,
    /// What an agent must present to join; `None` = anything goes.
    pub agent_token: Option<String>,
    /// Names by which clients reach a master that listens on loopback, beside those of loopback and of its machine.
    #[serde(default)]
    pub host_names: Vec<String>,
    /// Absolute directories of the master's host below which the configurations of users may name checkpoint storage,
    /// beside the master's own checkpoint directory and the configured storage.
    #[serde(default)]
    pub allowed_host_paths: Vec<String>,
    /// Type and size of SSH keys, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Value>,
}

/// Unix identity of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultTask {
    /// User name.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Group name.
    pub group: String,
    /// Group id.
    pub gid: u32,
}

/// Files of a TLS server; both or neither.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Path of the certificate chain; empty = none.
    pub cert: String,
    /// Path of the private key; empty = none.
    pub key: String,
}

impl TlsFiles {
    /// Whether the master speaks TLS.
    pub fn is_enabled(&self) -> bool {
        !self.cert.is_empty() && !self.key.is_empty()
    }
}

/// Who may do what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authz {
    /// `basic` or `rbac`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Used when the type is unknown at run time.
    pub fallback: String,
    /// The other keys, as given.
    #[serde(flatten)]
    pub kept: Map<String, Value>,
}

/// How long access tokens live, in days; -1 = as long as can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLifespan {
    /// Unless asked otherwise.
    pub default_lifespan_days: i32,
    /// At most.
    pub max_lifespan_days: i32,
}

/// How long task logs are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Days after the end of a task; -1 and `None` = for ever.
    pub log_retention_days: Option<i16>,
    /// When logs are swept; `None` = only when asked.
    pub schedule: Option<Schedule>,
}

/// What is reported to whom. Off: there is nobody to report to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Whether anything is reported.
    pub enabled: bool,
    /// Kept, unused.
    pub segment_master_key: String,
    /// Kept, unused.
    pub segment_webui_key: String,
    /// Whether traces are sent.
    pub otel_enabled: bool,
    /// Where traces are sent.
    pub otel_endpoint: String,
    /// Identity of the cluster; `None` = the stored one.
    pub cluster_id: Option<String>,
}

/// Metrics for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observability {
    /// Whether the Prometheus routes answer.
    pub enable_prometheus: bool,
}

/// Outgoing webhooks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhooks {
    /// Key that signs them; `None` = a generated one, kept in the store.
    pub signing_key: Option<String>,
    /// Address of the master in links; empty = none.
    pub base_url: String,
}

/// Who runs containers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceManager {
    /// `agent`, or one that is not built yet.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of this manager.
    pub cluster_name: String,
    /// Free tags.
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

impl MasterConfig {
    /// The pool of work without slots that names none; `None` when every task must name one.
    pub fn default_aux_pool(&self) -> Option<&str> {
        self.default_pool(self.resource_manager.default_aux_resource_pool.as_deref())
    }

    /// The pool of work with slots that names none; `None` when every task must name one.
    pub fn default_compute_pool(&self) -> Option<&str> {
        self.default_pool(
            self.resource_manager
                .default_compute_resource_pool
                .as_deref(),
        )
    }

    fn default_pool<'a>(&'a self, configured: Option<&'a str>) -> Option<&'a str> {
        if self.resource_manager.no_default_resource_pools {
            return None;
        }
        match (
            configured.filter(|name| !name.is_empty()),
            &self.resource_pools[..],
        ) {
            (Some(name), _) => Some(name),
            (None, [only]) => Some(&only.pool_name),
            (None, _) => Some("default"),
        }
    }
}

/// A pool of agents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourcePool {
    /// Unique name.
    pub pool_name: String,
    /// For people.
    pub description: String,
    /// Scheduler of this pool; with any key in it the cluster's does not count at all.
    pub scheduler: Option<Scheduler>,
    /// Tasks without slots on one agent.
    pub max_aux_containers_per_agent: u32,
    /// What tasks in this pool get, over the cluster's defaults.
    pub task_container_defaults: Option<TaskContainerDefaults>,
    /// How long a lost agent's tasks are waited for.
    #[serde(with = "crate::units::duration_text")]
    pub agent_reconnect_wait: Duration,
    /// How agents are made on demand, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Value>,
    /// Namespace of the pool's tasks, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_namespace: Option<String>,
}

/// A scheduler block as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scheduler {
    /// `None` = by the rule of [`EffectiveScheduler`].
    #[serde(rename = "type")]
    pub kind: Option<SchedulerKind>,
    /// Which agent among those with room.
    pub fitting_policy: Option<FittingPolicy>,
    /// Whether a task may spread unevenly over agents.
    pub allow_heterogeneous_fits: Option<bool>,
    /// Whether higher priority interrupts lower; only for `priority`.
    pub preemption: Option<bool>,
    /// Priority of work that names none, 1 to 99; only for `priority`.
    pub default_priority: Option<u8>,
}

impl Scheduler {
    /// Whether the block says nothing, which is the same as no block.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the cluster's block sets and this one, which replaces it whole, leaves open, as far as that would make a
    /// difference: `"preemption" (true)`.
    pub(super) fn lacks(&self, cluster: &Self) -> Vec<String> {
        let own = EffectiveScheduler::of(Some(self), false);
        let mut lacking = Vec::new();
        let mut told = |key: &str, value: Value, with: Self| {
            let would = EffectiveScheduler::of(Some(&with), false);
            let only_priority_has_it = matches!(key, "preemption" | "default_priority");
            if would != own && !(only_priority_has_it && own.kind != SchedulerKind::Priority) {
                lacking.push(format!("\"{key}\" ({value})"));
            }
        };
        if let (None, Some(kind)) = (self.kind, cluster.kind) {
            let kind_too = Self {
                kind: Some(kind),
                ..self.clone()
            };
            told("type", json!(kind), kind_too);
        }
        if let (None, Some(fit)) = (self.fitting_policy, cluster.fitting_policy) {
            let fit_too = Self {
                fitting_policy: Some(fit),
                ..self.clone()
            };
            told("fitting_policy", json!(fit), fit_too);
        }
        if let (None, Some(uneven)) = (
            self.allow_heterogeneous_fits,
            cluster.allow_heterogeneous_fits,
        ) {
            let uneven_too = Self {
                allow_heterogeneous_fits: Some(uneven),
                ..self.clone()
            };
            told("allow_heterogeneous_fits", json!(uneven), uneven_too);
        }
        if let (None, Some(preemption)) = (self.preemption, cluster.preemption) {
            let preemption_too = Self {
                preemption: Some(preemption),
                ..self.clone()
            };
            told("preemption", json!(preemption), preemption_too);
        }
        if let (None, Some(priority)) = (self.default_priority, cluster.default_priority) {
            let priority_too = Self {
                default_priority: Some(priority),
                ..self.clone()
            };
            told("default_priority", json!(priority), priority_too);
        }
        lacking
    }
}

/// How the queue of a pool is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    /// Each gets a share by weight and demand.
    FairShare,
    /// Lower numbers first.
    Priority,
    /// In order of arrival, one task of each job in turn.
    RoundRobin,
}

/// Which agent among those with room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FittingPolicy {
    /// The one that is then fullest.
    Best,
    /// The one that is then emptiest.
    Worst,
}

/// Priority of work that names none, when nothing is configured.
pub const DEFAULT_PRIORITY: u8 = 42;

/// What a pool's queue runs with.
///
/// A block without a type means `fair_share`, unless it holds a key that only `priority` has; no block at all means
/// `priority` without preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveScheduler {
    /// Order of the queue.
    pub kind: SchedulerKind,
    /// Whether running work can be interrupted; fair share always can.
    pub preemption: bool,
    /// Priority of work that names none; lower goes first.
    pub default_priority: u8,
    /// Which agent among those with room.
    pub fitting_policy: FittingPolicy,
    /// Whether a task may spread unevenly over agents.
    pub allow_heterogeneous_fits: bool,
    /// Whether this comes from the cluster's block (or its absence) rather than the pool's.
    pub inherited: bool,
}

impl EffectiveScheduler {
    pub(super) fn of(block: Option<&Scheduler>, inherited: bool) -> Self {
        let kind = match block {
            None => SchedulerKind::Priority,
            Some(block) => block.kind.unwrap_or(
                if block.preemption.is_some() || block.default_priority.is_some() {
                    SchedulerKind::Priority
                } else {
                    SchedulerKind::FairShare
                },
            ),
        };
        let asked = block.and_then(|block| block.preemption).unwrap_or(false);
        Self {
            kind,
            preemption: match kind {
                SchedulerKind::FairShare => true,
                SchedulerKind::Priority => asked,
                SchedulerKind::RoundRobin => false,
            },
            default_priority: block
                .and_then(|block| block.default_priority)
                .unwrap_or(DEFAULT_PRIORITY),
            fitting_policy: block
                .and_then(|block| block.fitting_policy)
                .unwrap_or(FittingPolicy::Best),
            allow_heterogeneous_fits: block
                .and_then(|block| block.allow_heterogeneous_fits)
                .unwrap_or(false),
            inherited,
        }
    }
}

impl fmt::Display for EffectiveScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SchedulerKind::FairShare => "fair_share",
            SchedulerKind::Priority => "priority",
            SchedulerKind::RoundRobin => "round_robin",
        };
        let fit = match self.fitting_policy {
            FittingPolicy::Best => "best",
            FittingPolicy::Worst => "worst",
        };
        write!(f, "scheduler \"{kind}\", fitting policy \"{fit}\"")?;
        if self.kind == SchedulerKind::Priority {
            let preemption = if self.preemption { "with" } else { "without" };
            write!(
                f,
                ", {preemption} preemption, default priority {}",
                self.default_priority
            )?;
        }
        Ok(())
    }
}
