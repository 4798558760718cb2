//! The master's configuration. `docs/reference/master-configuration.md` lists its keys.
//!
//! [`MasterConfig::load`] merges files, environment and flags. Keys of what is not built yet are kept as they are, each
//! with a warning; unknown keys are mistakes with a hint.

mod reload;
mod schedule;
pub(crate) mod schema;
mod shown;
mod types;
mod underlay;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::container::TaskContainerDefaults;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning};
use crate::explain::{ExplainedKey, rows};
use crate::layers::{Sources, env_names, load};
use crate::origin::{Layer, Source};
use crate::schema::{fill_defaults, leaves};
use crate::yaml::Node;

pub use reload::{Change, NotLive, Reload};
pub use schedule::Schedule;
pub(crate) use schema::LOG;
pub use schema::aws_slots;
pub use types::{
    Authz, DEFAULT_PRIORITY, Database, DefaultTask, EffectiveScheduler, FittingPolicy, Log,
    MasterConfig, Observability, ResourceManager, ResourcePool, Retention, Scheduler,
    SchedulerKind, Security, Telemetry, TlsFiles, TokenLifespan, Webhooks,
};
pub use underlay::Underlay;
use underlay::pool_named;

/// A configuration as it was read: with warnings and with the origin of every value.
#[derive(Debug, Clone)]
pub struct LoadedMaster {
    /// The configuration.
    pub config: MasterConfig,
    /// What the person should know although it is no mistake.
    pub warnings: Vec<ConfigWarning>,
    /// What was read, before the defaults.
    root: Node,
}

impl LoadedMaster {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Every mistake, each with its path and the file with line and column, variable or flag it comes from.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigErrors> {
        let (root, mut warnings) = load(&schema::DOCUMENT, sources)?;
        let mut whole = root.clone();
        fill_defaults(&mut whole, &schema::MASTER);
        let config: MasterConfig = serde_json::from_value(whole.to_value())
            .map_err(|error| ConfigError::new("", None, format!("cannot be read: {error}")))?;
        warnings.extend(config.scheduler_warnings(&root));
        Ok(Self {
            config,
            warnings,
            root,
        })
    }

    /// Every effective value with its origin, secrets hidden.
    pub fn origins(&self) -> Vec<ExplainedKey> {
        rows(&self.config.to_shown_json(), &self.root)
    }

    /// What this master lays under work in a pool, with the places of its files.
    pub fn underlay(&self, pool: &str) -> Underlay {
        Underlay::of(&self.root, &self.config, pool)
    }
}

impl LoadedMaster {
    /// The same with variables named as those that say so, as `DET_X_FILE (/run/x)` in place of `DET_X`.
    #[must_use]
    pub fn variables_named(mut self, names: &BTreeMap<String, String>) -> Self {
        self.root.each_place(&mut |at| {
            let source = at.source.as_ref().filter(|s| s.layer == Layer::Variable);
            if let Some(name) = source.and_then(|source| names.get(&source.name)) {
                at.source = Some(Arc::new(Source::variable(name.as_str())));
            }
        });
        for warning in &mut self.warnings {
            warning.variable_named(names);
        }
        self
    }
}

impl MasterConfig {
    /// Reads the configuration. `files` are `(name, text)`, later ones stronger; `env` is the whole environment, of which
    /// `DET_…` names of known keys count; `flags` are `(dotted key, value)`. Also gives warnings for the log.
    ///
    /// # Errors
    /// As [`LoadedMaster::load`].
    pub fn load(
        files: &[(String, String)],
        env: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigErrors> {
        let loaded = LoadedMaster::load(Sources { files, env, flags })?;
        Ok((loaded.config, loaded.warnings))
    }

    /// The variable of every key, `(DET_DB_HOST, db.host)`. A `…_FILE` variable, which names a file with the value, is for
    /// the caller to read and hand in under the name without the suffix.
    pub fn environment_names() -> Vec<(String, String)> {
        let known = leaves(&schema::MASTER);
        env_names(&known)
            .into_iter()
            .map(|(name, leaf)| (name, leaf.path.clone()))
            .collect()
    }

    /// The names of variables that hold a single value, which a file may hold instead.
    pub fn value_names() -> Vec<String> {
        crate::layers::value_names(&schema::MASTER)
    }

    /// Of these variables those that name a file with the value of another, with that:
    /// `(DET_NAME_FILE, DET_NAME)`, keys within elements of lists among them.
    pub fn file_variables(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
        crate::layers::file_variables(&schema::MASTER, env.keys())
    }

    /// The dotted paths of keys that a flag can set, and whether each is a switch.
    pub fn flags() -> Vec<(String, bool)> {
        crate::layers::flags(&schema::MASTER)
    }

    /// The port to listen on: as configured, else 8443 with TLS and 8080 without.
    pub fn effective_port(&self) -> u16 {
        match (self.port, self.security.tls.is_enabled()) {
            (0, true) => 8443,
            (0, false) => 8080,
            (port, _) => port,
        }
    }

    /// Address of the Pachyderm server that tasks are told of; `None` = there is none.
    pub fn pachyderm_address(&self) -> Option<&str> {
        let address = self.kept.get("integrations")?["pachyderm"]["address"].as_str()?;
        (!address.is_empty()).then_some(address)
    }

    /// The cluster's checkpoint storage as a layer under experiments, secrets included.
    pub fn checkpoint_storage_json(&self) -> Option<Value> {
        let storage = self.checkpoint_storage.as_ref()?;
        Some(serde_json::to_value(storage).expect("maps with text keys are JSON"))
    }

    /// The pool of this name.
    pub fn resource_pool(&self, name: &str) -> Option<&ResourcePool> {
        self.resource_pools
            .iter()
            .find(|pool| pool.pool_name == name)
    }

    /// The defaults for tasks in a pool: the pool's own over the cluster's. An unknown pool gets the cluster's.
    pub fn effective_task_container_defaults(&self, pool: &str) -> TaskContainerDefaults {
        match self
            .resource_pool(pool)
            .and_then(|pool| pool.task_container_defaults.as_ref())
        {
            Some(own) => own.over(&self.task_container_defaults),
            None => self.task_container_defaults.clone(),
        }
    }

    /// The scheduler of a pool. The pool's block, if it has any key, replaces the cluster's whole; without any block
    /// tasks are served by priority, without preemption (`docs/contract/scheduling.md`, "Schedulers of pools").
    pub fn effective_scheduler(&self, pool: &ResourcePool) -> EffectiveScheduler {
        let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
        let cluster = self
            .resource_manager
            .scheduler
            .as_ref()
            .filter(|block| !block.is_empty());
        EffectiveScheduler::of(own.or(cluster), own.is_none())
    }

    /// `root` is what was read, so that the places are known.
    fn scheduler_warnings(&self, root: &Node) -> Vec<ConfigWarning> {
        let cluster = self
            .resource_manager
            .scheduler
            .as_ref()
            .filter(|block| !block.is_empty());
        let mut warnings = Vec::new();
        for (index, pool) in self.resource_pools.iter().enumerate() {
            let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
            let (Some(own), Some(cluster)) = (own, cluster) else {
                continue;
            };
            let lacking = own.lacks(cluster);
            if !lacking.is_empty() {
                let message = format!(
                    "resource pool \"{}\" has a scheduler of its own, so \"resource_manager.scheduler\" does not apply to it, not even its {}; it runs with {}",
                    pool.pool_name,
                    lacking.join(", "),
                    self.effective_scheduler(pool),
                );
                let path = format!("resource_pools[{index}].scheduler");
                let block =
                    pool_named(root, &pool.pool_name).and_then(|pool| pool.get("scheduler"));
                let written = block.and_then(|block| block.at.as_ref());
                warnings.push(ConfigWarning::new(path, written, message));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
