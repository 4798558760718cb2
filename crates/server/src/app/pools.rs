//! Resource pools as configured, each with the resource manager that it belongs to.

use std::sync::Arc;
use std::time::Duration;

use det_config::container::TaskContainerDefaults;
use det_ids::PriorityOrder;
use det_rm::{Manager, Pool};
use det_scheduler::PoolSettings;
use det_taskspec::RunsIn;

use crate::app::demands::Demands;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::in_force::InForce;

/// How long places of a pool that is not configured any more may be away.
const PATIENCE: Duration = Duration::from_mins(10);

/// Resource pools as configured. Cheap to clone.
#[derive(Clone)]
pub struct Pools {
    in_force: Arc<InForce>,
    /// What jobs demand of places, as the drivers of the pools' managers read it.
    pub(crate) demands: Demands,
}

impl Pools {
    /// The pools of the configuration in force, also after it is replaced.
    pub(crate) fn new(in_force: Arc<InForce>, demands: Demands) -> Self {
        Self { in_force, demands }
    }

    fn managers(&self) -> Arc<Vec<Manager>> {
        self.in_force.managers()
    }

    /// Names of the pools of all managers, in the order of the configuration.
    pub fn names(&self) -> Vec<String> {
        self.names_where(|_| true)
    }

    /// Names of the pools in which work can run, in the order of the configuration.
    pub fn serving(&self) -> Vec<String> {
        self.names_where(|manager| manager.is_built)
    }

    fn names_where(&self, wanted: impl Fn(&Manager) -> bool) -> Vec<String> {
        let managers = self.managers();
        let wanted = managers.iter().filter(|manager| wanted(manager));
        let pools = wanted.flat_map(|manager| &manager.pools);
        pools.map(|pool| pool.name.clone()).collect()
    }

    fn look<T>(&self, name: &str, look: impl FnOnce(&Manager, &Pool) -> T) -> Option<T> {
        let managers = self.managers();
        let (manager, pool) = managers
            .iter()
            .find_map(|manager| Some((manager, manager.pool(name)?)))?;
        Some(look(manager, pool))
    }

    /// Whether a pool is configured, whatever its manager.
    pub(crate) fn is_configured(&self, name: &str) -> bool {
        self.look(name, |_, _| ()).is_some()
    }

    /// Refuses what goes into a pool that is not there, in which nothing can run, or that is about to go; asked in the
    /// transaction that puts it there.
    pub(crate) fn require(&self, name: &str) -> AppResult<()> {
        // In this order: a pool that leaves between the two is not configured any more when it is looked for.
        let is_leaving = self.in_force.is_leaving(name);
        let unusable = self.unusable(name);
        if unusable.is_none() && !is_leaving {
            return Ok(());
        }
        if let (true, Some(why)) = (self.is_configured(name), unusable) {
            return Err(AppError::new(
                ErrorKind::NotBuilt,
                format!("resource pool \"{name}\" {why}"),
            ));
        }
        let mut others = self.serving();
        others.retain(|pool| pool != name);
        Err(
            AppError::invalid(format!("resource pool \"{name}\" does not exist"))
                .hint(format!("choose one of: {}", others.join(", "))),
        )
    }

    /// Why nothing can run in a pool, completing `resource pool "x" …`; `None` = its manager serves it.
    pub(crate) fn unusable(&self, pool: &str) -> Option<String> {
        let why = self.look(pool, |manager, _| manager.unusable());
        why.unwrap_or_else(|| Some("does not exist".to_owned()))
    }

    /// The scheduler of a pool as configured, as users see it; empty where the pool is not configured.
    pub(crate) fn scheduling(&self, pool: &str) -> String {
        self.look(pool, |_, pool| pool.scheduler.to_string())
            .unwrap_or_default()
    }

    /// How a pool schedules, and which of two priorities goes first in it.
    pub fn settings(&self, pool: &str) -> PoolSettings {
        self.look(pool, |_, pool| pool.settings.clone())
            .unwrap_or_default()
    }

    /// Which of two priorities goes first in this pool.
    pub fn priority_order(&self, pool: &str) -> PriorityOrder {
        self.look(pool, |_, pool| pool.settings.priority_order)
            .unwrap_or_default()
    }

    /// Which of two priorities goes first in work of policies: in the pool that they fix, else in those of the main
    /// manager.
    pub(crate) fn priority_order_of_policies(&self, fixed_pool: Option<&str>) -> PriorityOrder {
        if let Some(pool) = fixed_pool {
            return self.priority_order(pool);
        }
        let managers = self.managers();
        managers
            .first()
            .map(|main| main.kind.priority_order())
            .unwrap_or_default()
    }

    /// What containers of this pool run in.
    pub(crate) fn runs_in(&self, pool: &str) -> RunsIn {
        self.look(pool, |manager, _| det_rm::runs_in(manager.kind))
            .unwrap_or(RunsIn::Machine)
    }

    /// Priority of a job in this pool that names none; 1 to 99.
    pub fn default_priority(&self, pool: &str) -> u8 {
        self.look(pool, |_, pool| pool.default_priority)
            .unwrap_or(det_config::master::DEFAULT_PRIORITY)
    }

    /// Zero-slot containers that each place of the pool takes at once.
    pub fn aux_limit(&self, pool: &str) -> u32 {
        self.look(pool, |_, pool| pool.aux_limit).unwrap_or(0)
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

    /// What every container of the pool gets unless its configuration has something else.
    pub fn container_defaults(&self, pool: &str) -> TaskContainerDefaults {
        self.in_force
            .config()
            .effective_task_container_defaults(pool)
    }

    /// How long a place of the pool may be away before its tasks are given up, in microseconds.
    pub(crate) fn reconnect_patience_micros(&self, pool: &str) -> i64 {
        let wait = self.look(pool, |_, pool| pool.patience).unwrap_or(PATIENCE);
        i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)
    }
}

/// Logs what the queue of each pool runs with: blocks of pools replace the cluster's whole, which is easily missed.
pub(crate) fn log_schedulers(managers: &[Manager]) {
    for pool in managers.iter().flat_map(|manager| &manager.pools) {
        let (name, scheduler) = (&pool.name, &pool.scheduler);
        tracing::info!(resource_pool = name, %scheduler, "scheduler in force");
    }
}
