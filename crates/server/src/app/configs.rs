//! Effective configurations of live experiments, parsed once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use det_config::container::CompiledPolicies;
use det_config::experiment::ExperimentConfig;
use det_config::task::TaskConfig;
use det_ids::{ExperimentId, UserId};
use det_store::StoreError;
use det_store::experiments::ExperimentRow;
use det_store::task_documents::TaskDocument;

use crate::app::searches::config_of;

/// Parsed configurations of live experiments, each with the text it was read from: a row with another text, be it newer,
/// or older, or of a change that is undone, is never answered with it.
#[derive(Clone, Default)]
pub struct Configs {
    parsed: Arc<Mutex<HashMap<ExperimentId, ParsedConfig>>>,
}

struct ParsedConfig {
    text: String,
    config: Arc<ExperimentConfig>,
    /// Its log policies, once they have been asked for.
    log_policies: OnceLock<Option<Arc<OwnedPolicies>>>,
}

/// The log policies of an experiment, and in whose name they are searched for.
#[derive(Debug)]
pub(crate) struct OwnedPolicies {
    pub(crate) compiled: CompiledPolicies,
    /// Number of the user who owns the experiment.
    pub(crate) owner: UserId,
}

impl Configs {
    fn lock(&self) -> MutexGuard<'_, HashMap<ExperimentId, ParsedConfig>> {
        self.parsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The effective configuration of an experiment, parsed once.
    pub fn of(&self, row: &ExperimentRow) -> Result<Arc<ExperimentConfig>, StoreError> {
        if let Some(known) = self.lock().get(&row.id)
            && known.text == row.config
        {
            return Ok(known.config.clone());
        }
        let config = Arc::new(config_of(row)?);
        if row.ended_at.is_none() {
            let parsed = ParsedConfig {
                text: row.config.clone(),
                config: config.clone(),
                log_policies: OnceLock::new(),
            };
            self.lock().insert(row.id, parsed);
        }
        Ok(config)
    }

    /// The log policies of an experiment, if they are known.
    #[expect(
        clippy::option_option,
        reason = "not known is not the same as known to be none"
    )]
    pub(crate) fn log_policies(
        &self,
        experiment_id: ExperimentId,
    ) -> Option<Option<Arc<OwnedPolicies>>> {
        let parsed = self.lock();
        parsed.get(&experiment_id)?.log_policies.get().cloned()
    }

    /// Keeps the log policies of a live experiment.
    pub(crate) fn keep_log_policies(
        &self,
        row: &ExperimentRow,
        policies: Option<Arc<OwnedPolicies>>,
    ) {
        if let Some(known) = self.lock().get(&row.id)
            && known.text == row.config
        {
            // Who was first has found the same.
            let _ = known.log_policies.set(policies);
        }
    }

    /// Evicts an experiment that has ended: it is not asked for again and again.
    pub(crate) fn evict(&self, experiment_id: ExperimentId) {
        self.lock().remove(&experiment_id);
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
