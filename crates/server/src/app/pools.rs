//! Resource pools as configured.

use std::sync::Arc;

use det_config::container::TaskContainerDefaults;
use det_config::master::{FittingPolicy, SchedulerKind};
use det_config::priority::PriorityOrder;
use det_scheduler::{Fitting, Policy, PoolSettings};

use crate::error::{AppError, AppResult};
use crate::in_force::InForce;

/// Resource pools as configured. Cheap to clone.
#[derive(Clone)]
pub struct Pools {
    in_force: Arc<InForce>,
}

impl Pools {
    /// Of this configuration.
    pub(crate) fn new(in_force: Arc<InForce>) -> Self {
        Self { in_force }
    }

    /// Names of the pools, in the order of the configuration.
    pub fn names(&self) -> Vec<String> {
        self.in_force
            .config()
            .resource_pools
            .iter()
            .map(|p| p.pool_name.clone())
            .collect()
    }

    /// Refuses what goes into a pool that is not there, or is about to go; asked in the transaction that puts it there.
    pub(crate) fn require(&self, name: &str) -> AppResult<()> {
        if self.in_force.has_pool(name) {
            return Ok(());
        }
        let pools = self.names();
        let others: Vec<&str> = pools
            .iter()
            .map(String::as_str)
            .filter(|pool| *pool != name)
            .collect();
        Err(
            AppError::invalid(format!("resource pool \"{name}\" does not exist"))
                .hint(format!("choose one of: {}", others.join(", "))),
        )
    }

    /// How a pool schedules.
    pub fn settings(&self, pool: &str) -> PoolSettings {
        let config = self.in_force.config();
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
        let config = self.in_force.config();
        config
            .resource_pool(pool)
            .map_or_else(PriorityOrder::default, |p| {
                config.effective_scheduler(p).priority_order
            })
    }

    /// Priority of a job in this pool that names none; 1 to 99.
    pub fn default_priority(&self, pool: &str) -> u8 {
        let config = self.in_force.config();
        config
            .resource_pool(pool)
            .map_or(det_config::master::DEFAULT_PRIORITY, |p| {
                config.effective_scheduler(p).default_priority
            })
    }

    /// Zero-slot containers that each agent of the pool takes at once.
    pub fn aux_limit(&self, pool: &str) -> u32 {
        self.in_force
            .config()
            .resource_pool(pool)
            .map_or(0, |p| p.max_aux_containers_per_agent)
    }

    /// Where work with slots goes when it names no pool.
    pub fn default_compute_pool(&self) -> Option<String> {
        self.in_force
            .config()
            .default_compute_pool()
            .map(str::to_owned)
    }

    /// Where work without slots goes when it names no pool.
    pub fn default_aux_pool(&self) -> Option<String> {
        self.in_force.config().default_aux_pool().map(str::to_owned)
    }

    /// What every container of the pool gets unless it says otherwise.
    pub fn container_defaults(&self, pool: &str) -> TaskContainerDefaults {
        self.in_force
            .config()
            .effective_task_container_defaults(pool)
    }

    /// How long an agent of the pool may be away before its tasks are given up.
    pub(crate) fn reconnect_patience_micros(&self, pool: &str) -> i64 {
        let wait = self
            .in_force
            .config()
            .resource_pool(pool)
            .map_or(std::time::Duration::from_secs(600), |p| {
                p.agent_reconnect_wait
            });
        i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)
    }
}
