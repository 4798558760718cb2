//! The configuration in force, and how the process around a master reads it again.
//!
//! Code that needs a key asks for the configuration at that moment and keeps nothing of it: another one may take its
//! place at any time (`app::reload`).

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use det_config::LoadedMaster;
use det_config::errors::ConfigError;
use det_config::explain::ExplainedKey;
use det_config::master::{ManagerKind, MasterConfig};
use det_rm::Manager;
use tokio::sync::watch;

/// What the process around a master does for it.
pub trait Surroundings: Send + Sync {
    /// Reads files, environment and flags again, exactly as at the start. Blocks.
    ///
    /// # Errors
    /// Every error in them, or why something cannot be read.
    fn read_config(&self) -> Result<LoadedMaster, UnusableConfig>;

    /// Logs from now on what is at least this important: `trace`, `debug`, `info`, `warn`, `error` or `fatal`.
    fn set_log_level(&self, level: &str);
}

/// Why what was read is no configuration.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct UnusableConfig {
    /// All of it, as users read it.
    pub message: String,
    /// The single errors; empty when a source could not be read at all.
    pub errors: Vec<ConfigError>,
}

/// The configuration in force, shared.
pub struct InForce {
    /// Kinds of resource managers that this master has a driver for.
    drivers: Vec<ManagerKind>,
    state: RwLock<State>,
    /// How often the configuration was replaced; receivers wait for the next time.
    changes: watch::Sender<u64>,
}

struct State {
    config: Arc<MasterConfig>,
    /// The resource managers of the configuration.
    managers: Arc<Vec<Manager>>,
    origins: Arc<Vec<ExplainedKey>>,
    /// Pools that are gone once a change under way is stored: nothing new goes there.
    leaving: BTreeSet<String>,
}

impl InForce {
    /// What the master is started with. `drivers` = the kinds of resource managers that it has a driver for.
    pub fn new(loaded: LoadedMaster, drivers: Vec<ManagerKind>) -> Self {
        Self {
            state: RwLock::new(State {
                origins: Arc::new(loaded.origins()),
                managers: Arc::new(Manager::of(&loaded.config, &drivers)),
                config: Arc::new(loaded.config),
                leaving: BTreeSet::new(),
            }),
            drivers,
            changes: watch::Sender::new(0),
        }
    }

    /// Wakes after another configuration has been put in force.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The configuration as it is now.
    pub fn config(&self) -> Arc<MasterConfig> {
        self.read(|state| state.config.clone())
    }

    /// Its resource managers, the main one first.
    pub fn managers(&self) -> Arc<Vec<Manager>> {
        self.read(|state| state.managers.clone())
    }

    /// Every value of it with its origin, secrets hidden.
    pub fn origins(&self) -> Arc<Vec<ExplainedKey>> {
        self.read(|state| state.origins.clone())
    }

    /// Whether a pool is about to go: asked in the transaction that puts something there.
    pub(crate) fn is_leaving(&self, name: &str) -> bool {
        self.read(|state| state.leaving.contains(name))
    }

    /// Keeps these pools free from now on: they are about to go.
    pub(crate) fn leave(&self, pools: BTreeSet<String>) {
        self.write(|state| state.leaving = pools);
    }

    /// Gives up what [`Self::leave`] began.
    pub(crate) fn stay(&self) {
        self.write(|state| state.leaving.clear());
    }

    /// Puts another configuration in force.
    pub(crate) fn replace(&self, config: MasterConfig, origins: Vec<ExplainedKey>) {
        let managers = Arc::new(Manager::of(&config, &self.drivers));
        let (config, origins) = (Arc::new(config), Arc::new(origins));
        self.write(|state| {
            state.config = config;
            state.managers = managers;
            state.origins = origins;
            state.leaving.clear();
        });
        self.changes.send_modify(|count| *count += 1);
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
    }
}
