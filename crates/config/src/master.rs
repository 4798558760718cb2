//! The master's configuration. `docs/reference/master-configuration.md` lists its keys.
//!
//! [`LoadedConfig::load`](crate::LoadedConfig::load) merges files, environment and flags. Keys of what is not built yet are kept as they are, each
//! with a warning; unknown keys are errors with a hint.

mod effective;
mod reload;
mod schedule;
pub(crate) mod schema;
mod shown;
mod types;
mod underlay;

use serde_json::Value;

use crate::container::TaskContainerDefaults;
use crate::errors::ConfigWarning;
use crate::yaml::Node;

pub use effective::{DEFAULT_PRIORITY, EffectiveScheduler};
pub use reload::{Change, RefusedChange, Reload, RemovedPool};
pub use schedule::Schedule;
pub use schema::aws_slots;
pub use schema::{
    AdditionalManager, AgentManager, Authz, Autoscaling, Database, DefaultTask, KubernetesManager,
    ManagerSettings, MasterConfig, Observability, PodScheduler, ResourceManager, ResourcePool,
    Retention, Scheduler, Security, SlotRequests, SlotType, TaskExposure, TaskGateway, Telemetry,
    TlsFiles, TokenLifespan, Webhooks,
};
pub use types::{FittingPolicy, ManagerKind, SchedulerKind};
pub use underlay::Underlay;
use underlay::pool_named;

impl Security {
    /// The kind of keys that shells are given: `RSA`, `ECDSA` or `ED25519`.
    pub fn ssh_key_type(&self) -> &str {
        let ssh = self.ssh.as_ref();
        ssh.and_then(|ssh| ssh["key_type"].as_str())
            .unwrap_or("ED25519")
    }
}

impl MasterConfig {
    /// The port to listen on: as configured, else 8443 with TLS and 8080 without.
    pub fn effective_port(&self) -> u16 {
        match (self.port, self.security.tls.is_enabled()) {
            (0, true) => 8443,
            (0, false) => 8080,
            (port, _) => port,
        }
    }

    /// Address of the Pachyderm server, which tasks receive; `None` = none is configured.
    pub fn pachyderm_address(&self) -> Option<&str> {
        let address = self.kept.get("integrations")?["pachyderm"]["address"].as_str()?;
        (!address.is_empty()).then_some(address)
    }

    /// The cluster's checkpoint storage as a layer under experiments, secrets included.
    pub fn checkpoint_storage_json(&self) -> Option<Value> {
        let storage = self.checkpoint_storage.as_ref()?;
        Some(serde_json::to_value(storage).expect("maps with text keys are JSON"))
    }

    /// All managers with their pools, the main one first.
    pub fn managers(&self) -> impl Iterator<Item = (&ResourceManager, &[ResourcePool])> {
        let additional = self.additional_resource_managers.iter();
        let additional = additional.map(|it| (&it.resource_manager, &it.resource_pools[..]));
        std::iter::once((&self.resource_manager, &self.resource_pools[..])).chain(additional)
    }

    /// The pool of this name, with its manager.
    fn managed_pool(&self, name: &str) -> Option<(&ResourceManager, &ResourcePool)> {
        self.managers().find_map(|(manager, pools)| {
            let pool = pools.iter().find(|pool| pool.pool_name == name)?;
            Some((manager, pool))
        })
    }

    /// The pool of this name, of whatever manager.
    pub fn resource_pool(&self, name: &str) -> Option<&ResourcePool> {
        self.managed_pool(name).map(|(_, pool)| pool)
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

    /// The scheduler of a pool: its own, or that of its manager.
    pub fn effective_scheduler(&self, pool: &ResourcePool) -> EffectiveScheduler {
        let managed = self.managed_pool(&pool.pool_name);
        let manager = managed.map_or(&self.resource_manager, |(manager, _)| manager);
        manager.scheduler_of(pool)
    }

    /// Warnings of pools whose own scheduler lacks settings of the cluster's. `root` is what was read, with places.
    pub(crate) fn scheduler_warnings(&self, root: &Node) -> Vec<ConfigWarning> {
        let mut warnings = Vec::new();
        for (number, (manager, pools)) in self.managers().enumerate() {
            let of_manager = manager.scheduler.as_ref();
            let Some(of_manager) = of_manager.filter(|block| !block.is_empty()) else {
                continue;
            };
            let within = match number.checked_sub(1) {
                None => String::new(),
                Some(index) => format!("additional_resource_managers[{index}]."),
            };
            for (index, pool) in pools.iter().enumerate() {
                let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
                let lacking = own.map_or_else(Vec::new, |own| own.lacks(of_manager));
                if lacking.is_empty() {
                    continue;
                }
                let message = format!(
                    "resource pool \"{}\" has a scheduler of its own, so \"{within}resource_manager.scheduler\" does not apply to it, not even its {}; it runs with {}",
                    pool.pool_name,
                    lacking.join(", "),
                    manager.scheduler_of(pool),
                );
                let path = format!("{within}resource_pools[{index}].scheduler");
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
