//! Effective configurations of live experiments, parsed, and their log policies, compiled. Those that are used are held
//! within a number of bytes; what has left memory is made again from the rows.

mod byte_cache;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_config::container::CompiledPolicies;
use det_config::experiment::ExperimentConfig;
use det_config::task::TaskConfig;
use det_ids::{ExperimentId, UserId};
use det_store::StoreError;
use det_store::experiments::ExperimentRow;
use det_store::task_documents::TaskDocument;

use self::byte_cache::ByteCache;
use crate::app::searches::config_of;

/// Bytes that parsed configurations are counted for at most.
const CONFIGS_BYTES: usize = 96 << 20;
/// A configuration as values takes up to so many times the bytes of its text.
const VALUES: usize = 16;
/// Bytes that compiled log policies are counted for at most.
const POLICIES_BYTES: usize = 96 << 20;
/// What policies are counted for that are searched for in little time, as those of a default configuration.
const CHEAP_BYTES: usize = 64 << 10;
/// What others are counted for: the most that they may take once compiled (2 MiB), and what a search remembers (4 MiB).
const COSTLY_BYTES: usize = 6 << 20;

/// Parsed configurations of live experiments, each with the text it was read from: a row with another text, be it newer,
/// or older, or of a change that is undone, is never answered with it.
#[derive(Clone)]
pub struct Configs {
    known: Arc<Mutex<ConfigCache>>,
}

struct ConfigCache {
    parsed: ByteCache<ParsedConfig>,
    /// Log policies of the experiments that have asked for them; `None` = they have none.
    policies: ByteCache<Option<Arc<OwnedPolicies>>>,
}

struct ParsedConfig {
    text: String,
    config: Arc<ExperimentConfig>,
}

/// The log policies of an experiment, and in whose name they are searched for.
#[derive(Debug)]
pub(crate) struct OwnedPolicies {
    pub(crate) compiled: CompiledPolicies,
    /// Number of the user who owns the experiment.
    pub(crate) owner: UserId,
}

impl Default for Configs {
    fn default() -> Self {
        Self {
            known: Arc::new(Mutex::new(ConfigCache {
                parsed: ByteCache::new(CONFIGS_BYTES),
                policies: ByteCache::new(POLICIES_BYTES),
            })),
        }
    }
}

impl Configs {
    fn lock(&self) -> MutexGuard<'_, ConfigCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The effective configuration of an experiment, parsed once as long as it is held.
    pub fn of(&self, row: &ExperimentRow) -> Result<Arc<ExperimentConfig>, StoreError> {
        if let Some(known) = self.lock().parsed.get(row.id)
            && known.text == row.config
        {
            return Ok(known.config.clone());
        }
        let config = Arc::new(config_of(row)?);
        if row.ended_at.is_none() {
            let parsed = ParsedConfig {
                text: row.config.clone(),
                config: config.clone(),
            };
            let bytes = row.config.len().saturating_mul(1 + VALUES);
            let mut known = self.lock();
            known.parsed.insert(row.id, parsed, bytes);
            // They may be those of another text.
            known.policies.remove(row.id);
        }
        Ok(config)
    }

    /// The log policies of an experiment, if they are held.
    #[expect(
        clippy::option_option,
        reason = "not known is not the same as known to be none"
    )]
    pub(crate) fn log_policies(
        &self,
        experiment_id: ExperimentId,
    ) -> Option<Option<Arc<OwnedPolicies>>> {
        self.lock().policies.get(experiment_id).cloned()
    }

    /// Holds the log policies of a live experiment.
    pub(crate) fn keep_log_policies(
        &self,
        row: &ExperimentRow,
        policies: Option<Arc<OwnedPolicies>>,
    ) {
        let bytes = match &policies {
            Some(policies) if !policies.compiled.are_cheap() => COSTLY_BYTES,
            Some(_) | None => CHEAP_BYTES,
        };
        let mut known = self.lock();
        if let Some(parsed) = known.parsed.get(row.id)
            && parsed.text == row.config
        {
            known.policies.insert(row.id, policies, bytes);
        }
    }

    /// Evicts an experiment that has ended: it is not asked for again and again.
    pub(crate) fn evict(&self, experiment_id: ExperimentId) {
        let mut known = self.lock();
        known.parsed.remove(experiment_id);
        known.policies.remove(experiment_id);
    }
}

/// Days that an experiment's configuration has the logs of its trials' tasks kept: -1 = for ever, `None` = the cluster's
/// default.
pub(crate) fn log_retention_days(config: &ExperimentConfig) -> Option<i64> {
    let policy = config.retention_policy.as_ref()?;
    Some(i64::from(policy.log_retention_days))
}

/// The effective configuration of a launched task.
pub(crate) fn launched_config(document: &TaskDocument) -> Result<TaskConfig, StoreError> {
    let unreadable = |message: String| StoreError::Corrupt {
        what: format!("configuration of task {}", document.task_id),
        message,
    };
    let value = serde_json::from_str(&document.config).map_err(|e| unreadable(e.to_string()))?;
    TaskConfig::from_json(&value).map_err(|e| unreadable(e.to_string()))
}
