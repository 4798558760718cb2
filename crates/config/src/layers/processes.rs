//! The configurations of the two long-running processes, read from their layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Sources, env_names, file_variables, flags, load, value_names};
use crate::agent::{AGENT, AgentConfig};
use crate::errors::{ConfigErrors, ConfigWarning};
use crate::explain::{ExplainedKey, rows};
use crate::master::schema::MASTER;
use crate::master::{MasterConfig, Underlay};
use crate::origin::{Layer, Source};
use crate::schema::{fill_defaults, leaves};
use crate::yaml::Node;

/// A configuration as it was read: with warnings and with the origin of every value.
#[derive(Debug, Clone)]
pub struct LoadedMaster {
    /// The configuration.
    pub config: MasterConfig,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
    /// What was read, before the defaults.
    root: Node,
}

impl LoadedMaster {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Every error, each with its path and the file with line and column, variable or flag it comes from.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigErrors> {
        let (root, mut warnings) = load(crate::master::schema::document(), sources)?;
        let mut whole = root.clone();
        fill_defaults(&mut whole, &MASTER);
        let config: MasterConfig = whole.typed()?;
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
        let known = leaves(&MASTER);
        env_names(&known)
            .into_iter()
            .map(|(name, leaf)| (name, leaf.path.clone()))
            .collect()
    }

    /// The names of variables that hold a single value, which a file may hold instead.
    pub fn value_names() -> Vec<String> {
        value_names(&MASTER)
    }

    /// Of these variables those that name a file with the value of another, with that:
    /// `(DET_NAME_FILE, DET_NAME)`, keys within elements of lists among them.
    pub fn file_variables(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
        file_variables(&MASTER, env.keys())
    }

    /// The dotted paths of keys that a flag can set, and whether each is a switch.
    pub fn flags() -> Vec<(String, bool)> {
        flags(&MASTER)
    }
}

/// A configuration as it was read: with warnings and with the origin of every value.
#[derive(Debug, Clone)]
pub struct LoadedAgent {
    /// The configuration.
    pub config: AgentConfig,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
    /// What was read, before the defaults.
    root: Node,
}

impl LoadedAgent {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Every error, each with its path and the file with line and column, variable or flag it comes from.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigErrors> {
        let (root, warnings) = load(crate::agent::document(), sources)?;
        let mut whole = root.clone();
        fill_defaults(&mut whole, &AGENT);
        let mut config: AgentConfig = whole.typed()?;
        if config.visible_gpus.is_none() {
            let name = ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
            config.visible_gpus = name.iter().find_map(|name| sources.env.get(*name)).cloned();
        }
        for host in [&mut config.container_master_host, &mut config.agent_id] {
            if host.as_deref() == Some("") {
                *host = None;
            }
        }
        Ok(Self {
            config,
            warnings,
            root,
        })
    }

    /// Every effective value with its origin, secrets hidden.
    pub fn origins(&self) -> Vec<ExplainedKey> {
        rows(&self.config.to_masked_json(), &self.root)
    }
}

impl AgentConfig {
    /// Reads the configuration; arguments and result as for [`crate::MasterConfig::load`].
    ///
    /// # Errors
    /// As [`LoadedAgent::load`].
    pub fn load(
        files: &[(String, String)],
        env: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigErrors> {
        let loaded = LoadedAgent::load(Sources { files, env, flags })?;
        Ok((loaded.config, loaded.warnings))
    }

    /// The variable of every key, `(DET_MASTER_HOST, master_host)`; `…_FILE` as for [`crate::MasterConfig`].
    pub fn environment_names() -> Vec<(String, String)> {
        let known = leaves(&AGENT);
        env_names(&known)
            .into_iter()
            .map(|(name, leaf)| (name, leaf.path.clone()))
            .collect()
    }

    /// The names of variables that hold a single value, which a file may hold instead.
    pub fn value_names() -> Vec<String> {
        value_names(&AGENT)
    }

    /// Of these variables those that name a file with the value of another, with that:
    /// `(DET_NAME_FILE, DET_NAME)`, keys within elements of lists among them.
    pub fn file_variables(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
        file_variables(&AGENT, env.keys())
    }

    /// The dotted paths of keys that a flag can set, and whether each is a switch.
    pub fn flags() -> Vec<(String, bool)> {
        flags(&AGENT)
    }
}
