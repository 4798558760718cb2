//! Resource pools as configured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use det_config::container::TaskContainerDefaults;
use det_config::experiment::ExperimentConfig;
use det_config::master::{FittingPolicy, SchedulerKind};
use det_config::priority::PriorityOrder;
use det_scheduler::{Fitting, Policy, PoolSettings};
use det_store::StoreError;
use det_store::experiments::ExperimentRow;

use crate::app::Master;
use crate::app::log_policies::LogPolicies;
use crate::app::searches::config_of;

/// Parsed configurations of live experiments, each with the text it was read from: a row with another text, be it newer,
/// or older, or of a change that is undone, is never answered with it.
#[derive(Clone, Default)]
pub struct Configs {
    parsed: Arc<Mutex<HashMap<i64, Parsed>>>,
}

struct Parsed {
    text: String,
    config: Arc<ExperimentConfig>,
    /// Its log policies, once they have been asked for.
    log_policies: OnceLock<Option<Arc<LogPolicies>>>,
}

impl Configs {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Parsed>> {
        self.parsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log policies of an experiment, if they are known.
    #[expect(
        clippy::option_option,
        reason = "not known is not the same as known to be none"
    )]
    pub(crate) fn log_policies(&self, experiment_id: i64) -> Option<Option<Arc<LogPolicies>>> {
        let parsed = self.lock();
        parsed.get(&experiment_id)?.log_policies.get().cloned()
    }

    /// Keeps the log policies of a live experiment.
    pub(crate) fn keep_log_policies(
        &self,
        row: &ExperimentRow,
        policies: Option<Arc<LogPolicies>>,
    ) {
        if let Some(known) = self.lock().get(&row.id)
            && known.text == row.config
        {
            // Who was first has found the same.
            let _ = known.log_policies.set(policies);
        }
    }

    /// Forgets an experiment that has ended: nobody asks again and again.
    pub(crate) fn forget(&self, experiment_id: i64) {
        self.lock().remove(&experiment_id);
    }
}

impl Master {
    /// The effective configuration of an experiment, parsed once.
    pub fn config_for(&self, row: &ExperimentRow) -> Result<Arc<ExperimentConfig>, StoreError> {
        if let Some(known) = self.configs.lock().get(&row.id)
            && known.text == row.config
        {
            return Ok(known.config.clone());
        }
        let config = Arc::new(config_of(row)?);
        if row.ended_at.is_none() {
            let parsed = Parsed {
                text: row.config.clone(),
                config: config.clone(),
                log_policies: OnceLock::new(),
            };
            self.configs.lock().insert(row.id, parsed);
        }
        Ok(config)
    }

    /// Names of the pools, in the order of the configuration.
    pub fn pool_names(&self) -> Vec<String> {
        self.config()
            .resource_pools
            .iter()
            .map(|p| p.pool_name.clone())
            .collect()
    }

    /// How a pool schedules.
    pub fn pool_settings(&self, pool: &str) -> PoolSettings {
        let config = self.config();
        let Some(configured) = config.resource_pool(pool) else {
            return PoolSettings::default();
        };
        let scheduler = config.effective_scheduler(configured);
        PoolSettings {
            policy: match scheduler.kind {
                SchedulerKind::Priority => Policy::Priority {
                    preemption: scheduler.preemption,
                    default_priority: scheduler.default_priority,
                },
                SchedulerKind::FairShare => Policy::FairShare,
                SchedulerKind::RoundRobin => Policy::RoundRobin,
            },
            fitting: match scheduler.fitting_policy {
                FittingPolicy::Best => Fitting::Best,
                FittingPolicy::Worst => Fitting::Worst,
            },
            allow_heterogeneous_fits: scheduler.allow_heterogeneous_fits,
            ..PoolSettings::default()
        }
    }

    /// Which of two priorities goes first in this pool.
    pub fn priority_order(&self, pool: &str) -> PriorityOrder {
        let config = self.config();
        config
            .resource_pool(pool)
            .map_or_else(PriorityOrder::default, |p| {
                config.effective_scheduler(p).priority_order
            })
    }

    /// Priority of a job in this pool that names none; 1 to 99.
    pub fn default_priority(&self, pool: &str) -> u8 {
        let config = self.config();
        config
            .resource_pool(pool)
            .map_or(det_config::master::DEFAULT_PRIORITY, |p| {
                config.effective_scheduler(p).default_priority
            })
    }

    /// Zero-slot containers that each agent of the pool takes at once.
    pub fn aux_limit(&self, pool: &str) -> u32 {
        self.config()
            .resource_pool(pool)
            .map_or(0, |p| p.max_aux_containers_per_agent)
    }

    /// Where work with slots goes when it names no pool.
    pub fn default_compute_pool(&self) -> Option<String> {
        self.config().default_compute_pool().map(str::to_owned)
    }

    /// Where work without slots goes when it names no pool.
    pub fn default_aux_pool(&self) -> Option<String> {
        self.config().default_aux_pool().map(str::to_owned)
    }

    /// What every container of the pool gets unless it says otherwise.
    pub fn container_defaults(&self, pool: &str) -> TaskContainerDefaults {
        self.config().effective_task_container_defaults(pool)
    }

    /// How long an agent of the pool may be away before its tasks are given up.
    pub(crate) fn reconnect_patience_micros(&self, pool: &str) -> i64 {
        let wait = self
            .config()
            .resource_pool(pool)
            .map_or(std::time::Duration::from_secs(600), |p| {
                p.agent_reconnect_wait
            });
        i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)
    }
}
