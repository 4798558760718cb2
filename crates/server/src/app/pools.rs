//! Resource pools as configured, each with the resource manager that it belongs to.

use std::sync::Arc;
use std::time::Duration;

use det_config::container::TaskContainerDefaults;
use det_config::priority::PriorityOrder;
use det_rm::{Manager, Pool};
use det_scheduler::PoolSettings;

use crate::error::{AppError, AppResult, ErrorKind};
use crate::in_force::InForce;

/// How long places of a pool that is not configured any more may be away.
const PATIENCE: Duration = Duration::from_mins(10);

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

    /// The resource managers, the main one first. Pools of the others are known by name; nothing can run there yet.
    pub fn managers(&self) -> Arc<Vec<Manager>> {
        self.in_force.managers()
    }

    /// Names of the pools of the main manager, in the order of the configuration.
    pub fn names(&self) -> Vec<String> {
        let managers = self.managers();
        let pools = managers.iter().take(1).flat_map(|main| &main.pools);
        pools.map(|pool| pool.name.clone()).collect()
    }

    fn look<T>(&self, name: &str, look: impl FnOnce(&Pool) -> T) -> Option<T> {
        self.managers().first()?.pool(name).map(look)
    }

    /// Refuses what goes into a pool that is not there, or is about to go; asked in the transaction that puts it there.
    pub(crate) fn require(&self, name: &str) -> AppResult<()> {
        if self.in_force.has_pool(name) {
            return Ok(());
        }
        if let Some(whose) = self.other_manager(name) {
            return Err(AppError::new(
                ErrorKind::NotBuilt,
                format!("resource pool \"{name}\" {whose}"),
            ));
        }
        let others: Vec<String> = self.names();
        let others: Vec<&str> = others
            .iter()
            .map(String::as_str)
            .filter(|pool| *pool != name)
            .collect();
        Err(
            AppError::invalid(format!("resource pool \"{name}\" does not exist"))
                .hint(format!("choose one of: {}", others.join(", "))),
        )
    }

    /// Of a pool of another than the main manager, why nothing can run there; completes `resource pool "x" …`.
    pub(crate) fn other_manager(&self, pool: &str) -> Option<String> {
        let managers = self.managers();
        let other = managers.iter().skip(1).find(|m| m.pool(pool).is_some())?;
        Some(format!(
            "belongs to resource manager \"{}\" of additional_resource_managers, which are not built in this version",
            other.name
        ))
    }

    /// How a pool schedules.
    pub fn settings(&self, pool: &str) -> PoolSettings {
        self.look(pool, |pool| pool.settings.clone())
            .unwrap_or_default()
    }

    /// Which of two priorities goes first in this pool.
    pub fn priority_order(&self, pool: &str) -> PriorityOrder {
        self.look(pool, |pool| pool.priority_order)
            .unwrap_or_default()
    }

    /// Priority of a job in this pool that names none; 1 to 99.
    pub fn default_priority(&self, pool: &str) -> u8 {
        self.look(pool, |pool| pool.default_priority)
            .unwrap_or(det_config::master::DEFAULT_PRIORITY)
    }

    /// Zero-slot containers that each place of the pool takes at once.
    pub fn aux_limit(&self, pool: &str) -> u32 {
        self.look(pool, |pool| pool.aux_limit).unwrap_or(0)
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

    /// How long a place of the pool may be away before its tasks are given up, in microseconds.
    pub(crate) fn reconnect_patience_micros(&self, pool: &str) -> i64 {
        let wait = self.look(pool, |pool| pool.patience).unwrap_or(PATIENCE);
        i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)
    }
}
