//! The configurations of the two long-running processes, read from their layers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Sources, env_names, file_variables, load, value_names};
use crate::agent::AgentConfig;
use crate::errors::{ConfigErrors, ConfigWarning};
use crate::explain::{ExplainedKey, rows};
use crate::master::{MasterConfig, Underlay};
use crate::origin::{Layer, Source};
use crate::schema::{Document, Kind, fill_defaults, leaves};
use crate::yaml::Node;

/// A configuration of a long-running process.
trait ProcessConfig: Debug + DeserializeOwned {
    /// The document that holds it.
    const DOCUMENT: &'static Document;

    /// Completes what the schema's defaults cannot, and returns the warnings that only the typed values give. `root` is
    /// what was read, with places; `env` the whole environment.
    fn finish(&mut self, root: &Node, env: &BTreeMap<String, String>) -> Vec<ConfigWarning>;

    /// The configuration as JSON for showing, secrets hidden.
    fn shown(&self) -> Value;
}

impl ProcessConfig for MasterConfig {
    const DOCUMENT: &'static Document = &crate::master::schema::DOCUMENT;

    fn finish(&mut self, root: &Node, _env: &BTreeMap<String, String>) -> Vec<ConfigWarning> {
        self.scheduler_warnings(root)
    }

    fn shown(&self) -> Value {
        self.to_shown_json()
    }
}

impl ProcessConfig for AgentConfig {
    const DOCUMENT: &'static Document = &crate::agent::DOCUMENT;

    fn finish(&mut self, _root: &Node, env: &BTreeMap<String, String>) -> Vec<ConfigWarning> {
        if self.visible_gpus.is_none() {
            let names = ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
            self.visible_gpus = names.iter().find_map(|name| env.get(*name)).cloned();
        }
        for host in [&mut self.container_master_host, &mut self.agent_id] {
            host.take_if(|host| host.is_empty());
        }
        Vec::new()
    }

    fn shown(&self) -> Value {
        self.to_masked_json()
    }
}

/// The configuration of a process, [`MasterConfig`] or [`AgentConfig`], as it was read: with warnings and with the origin
/// of every value.
#[derive(Debug, Clone)]
pub struct LoadedConfig<C> {
    /// The configuration, with every default that does not depend on a host.
    pub config: C,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
    /// What was read, before the defaults.
    root: Node,
}

/// The configuration of a master as it was read.
pub type LoadedMaster = LoadedConfig<MasterConfig>;

/// The configuration of an agent as it was read.
pub type LoadedAgent = LoadedConfig<AgentConfig>;

#[expect(
    private_bounds,
    reason = "what a configuration gives to its loader speaks of the schema, which callers need not know"
)]
impl<C: ProcessConfig> LoadedConfig<C> {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Every error, each with its path and the file with line and column, variable or flag it comes from.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigErrors> {
        let (root, mut warnings) = load(C::DOCUMENT, sources)?;
        let mut whole = root.clone();
        fill_defaults(&mut whole, C::DOCUMENT.root);
        let mut config: C = whole.typed()?;
        warnings.extend(config.finish(&root, sources.env));
        Ok(Self {
            config,
            warnings,
            root,
        })
    }

    /// Every effective value with its origin, secrets hidden.
    pub fn origins(&self) -> Vec<ExplainedKey> {
        rows(&self.config.shown(), &self.root)
    }

    /// The same with each variable under the name in which its value was given: `DET_X_FILE (/run/x)` in place of `DET_X`.
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

    /// The variable of every key, `(DET_DB_HOST, db.host)`. A `…_FILE` variable, which names a file with the value, is for
    /// the caller to read and hand in under the name without the suffix.
    pub fn environment_names() -> Vec<(String, String)> {
        env_names(&leaves(C::DOCUMENT.root))
            .into_iter()
            .map(|(name, leaf)| (name, leaf.path.clone()))
            .collect()
    }

    /// The names of variables that hold a single value, which a file may hold instead.
    pub fn value_names() -> Vec<String> {
        value_names(C::DOCUMENT.root)
    }

    /// Of these variables those that name a file with the value of another, with that:
    /// `(DET_NAME_FILE, DET_NAME)`, keys within elements of lists among them.
    pub fn file_variables(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
        file_variables(C::DOCUMENT.root, env.keys())
    }

    /// The dotted paths of keys that a flag can set, and whether each is a switch.
    pub fn flags() -> Vec<(String, bool)> {
        leaves(C::DOCUMENT.root)
            .into_iter()
            .map(|leaf| (leaf.path, matches!(leaf.kind, Kind::Bool)))
            .collect()
    }
}

impl LoadedMaster {
    /// What this master lays under work in a pool, with the places of its files.
    pub fn underlay(&self, pool: &str) -> Underlay {
        Underlay::of(&self.root, &self.config, pool)
    }
}
