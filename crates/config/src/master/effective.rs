//! What a configuration of the master means where it leaves something open.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::{Value, json};

use super::schema::{
    Database, ManagerSettings, MasterConfig, PodScheduler, ResourceManager, ResourcePool,
    Scheduler, TlsFiles,
};
use super::types::{FittingPolicy, ManagerKind, SchedulerKind};

impl fmt::Debug for MasterConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterConfig {}", self.to_logged_json())
    }
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
            url.extend(percent_encode(path));
        }
        Some(url)
    }
}

/// What stays as it is in a part of an address (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn percent_encode(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, UNRESERVED)
}

impl TlsFiles {
    /// Whether the master speaks TLS.
    pub fn is_enabled(&self) -> bool {
        !self.cert.is_empty() && !self.key.is_empty()
    }
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

impl ResourceManager {
    /// What it runs containers by: agents, a Kubernetes cluster, Slurm or PBS.
    pub fn kind(&self) -> ManagerKind {
        self.settings.kind()
    }

    /// The scheduler of a pool of this manager. The pool's block, if it has any key, replaces the manager's whole; without any block
    /// tasks are served by priority, without preemption (`docs/contract/scheduling.md`, "Schedulers of pools").
    pub fn scheduler_of(&self, pool: &ResourcePool) -> EffectiveScheduler {
        let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
        let cluster = self.scheduler.as_ref().filter(|block| !block.is_empty());
        self.scheduler_with(own.or(cluster), own.is_none())
    }

    /// What a block leads to in pools of this manager; `None` = there is none. `inherited` = it is not the pool's own.
    pub(super) fn scheduler_with(
        &self,
        block: Option<&Scheduler>,
        inherited: bool,
    ) -> EffectiveScheduler {
        let mut scheduler = EffectiveScheduler::of(block, inherited);
        let priority = block.and_then(|block| block.default_priority);
        let uneven = block.and_then(|block| block.allow_heterogeneous_fits);
        if let ManagerSettings::Kubernetes(cluster) = &self.settings {
            if priority.is_none() {
                scheduler.default_priority = DEFAULT_POD_PRIORITY;
            }
            if uneven.is_none() {
                scheduler.allow_heterogeneous_fits = true;
            }
            // The older way to ask for it.
            if block.is_none() && cluster.default_scheduler == PodScheduler::Preemption {
                scheduler.preemption = true;
            }
        }
        scheduler
    }
}

impl Scheduler {
    /// Whether the block sets nothing, which is the same as no block.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the cluster's block sets and this one, which replaces it whole, leaves open, as far as that would make a
    /// difference: `"preemption" (true)`.
    pub(super) fn lacks(&self, cluster: &Self) -> Vec<String> {
        let own = EffectiveScheduler::of(Some(self), false);
        let mut lacking = Vec::new();
        let mut compare = |key: &str, value: Value, with: Self| {
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
            compare("type", json!(kind), kind_too);
        }
        if let (None, Some(fit)) = (self.fitting_policy, cluster.fitting_policy) {
            let fit_too = Self {
                fitting_policy: Some(fit),
                ..self.clone()
            };
            compare("fitting_policy", json!(fit), fit_too);
        }
        if let (None, Some(uneven)) = (
            self.allow_heterogeneous_fits,
            cluster.allow_heterogeneous_fits,
        ) {
            let uneven_too = Self {
                allow_heterogeneous_fits: Some(uneven),
                ..self.clone()
            };
            compare("allow_heterogeneous_fits", json!(uneven), uneven_too);
        }
        if let (None, Some(preemption)) = (self.preemption, cluster.preemption) {
            let preemption_too = Self {
                preemption: Some(preemption),
                ..self.clone()
            };
            compare("preemption", json!(preemption), preemption_too);
        }
        if let (None, Some(priority)) = (self.default_priority, cluster.default_priority) {
            let priority_too = Self {
                default_priority: Some(priority),
                ..self.clone()
            };
            compare("default_priority", json!(priority), priority_too);
        }
        lacking
    }
}

/// Priority of work that names none, when nothing is configured.
pub const DEFAULT_PRIORITY: u8 = 42;

/// The same in pools of a Kubernetes cluster, where a higher number goes first.
const DEFAULT_POD_PRIORITY: u8 = 50;

/// What a pool's queue runs with.
///
/// A block without a type means `fair_share`, unless it holds a key that only `priority` has; no block at all means
/// `priority` without preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveScheduler {
    /// The rule by which the pool serves its queue.
    pub kind: SchedulerKind,
    /// Whether running work can be interrupted; fair share always can.
    pub preemption: bool,
    /// Priority of work that names none, 1 to 99.
    pub default_priority: u8,
    /// Which agent among those with free slots.
    pub fitting_policy: FittingPolicy,
    /// Whether a task that needs several agents, or nodes, may have unequal parts of them. Unless configured, of nodes alone.
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
