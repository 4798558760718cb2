//! What a resource manager is.

use std::collections::BTreeMap;
use std::time::Duration;

use det_config::master::{
    FittingPolicy, ManagerKind, MasterConfig, ResourceManager, ResourcePool, SchedulerKind,
};
use det_scheduler::{Fitting, Policy, PoolSettings};

/// A resource manager: the owner of pools.
#[derive(Debug, Clone, PartialEq)]
pub struct Manager {
    /// Its name in the configuration; the main one may have none.
    pub name: String,
    /// How it runs containers.
    pub kind: ManagerKind,
    /// Whether it can run any.
    pub health: Health,
    /// Names and values that users are shown; nothing depends on them.
    pub metadata: BTreeMap<String, String>,
    /// Its pools, in the order of the configuration.
    pub pools: Vec<Pool>,
}

/// Whether a manager can run containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its places can join, and run what the core places there.
    Serving,
    /// This version has no driver for it: its pools are known by name, and nothing can run there.
    NotBuilt,
}

/// A resource pool, with its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its name, which no other pool of any manager has.
    pub name: String,
    /// What administrators say about it.
    pub description: String,
    /// How it schedules; the order of priorities is its manager's.
    pub settings: PoolSettings,
    /// Priority of jobs that name none, 1 to 99.
    pub default_priority: u8,
    /// Containers without slots that each place takes at once.
    pub aux_limit: u32,
    /// How long a place may be away before what runs there is given up.
    pub patience: Duration,
}

impl Manager {
    /// The managers of a configuration: the main one first, then the additional ones.
    pub fn of(config: &MasterConfig) -> Vec<Self> {
        let main = (
            &config.resource_manager,
            &config.resource_pools,
            Health::Serving,
        );
        let others = config.additional_resource_managers.iter().map(|other| {
            let pools = &other.resource_pools;
            (&other.resource_manager, pools, Health::NotBuilt)
        });
        std::iter::once(main)
            .chain(others)
            .map(|(manager, pools, health)| Self {
                name: manager.cluster_name.clone(),
                kind: manager.kind,
                health,
                metadata: manager.metadata.clone(),
                pools: pools.iter().map(|pool| Pool::of(manager, pool)).collect(),
            })
            .collect()
    }

    /// A pool of this manager.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }
}

impl Pool {
    fn of(manager: &ResourceManager, pool: &ResourcePool) -> Self {
        let scheduler = manager.scheduler_of(pool);
        Self {
            name: pool.pool_name.clone(),
            description: pool.description.clone(),
            settings: PoolSettings {
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
                priority_order: manager.kind.priority_order(),
                allow_heterogeneous_fits: scheduler.allow_heterogeneous_fits,
                ..PoolSettings::default()
            },
            default_priority: scheduler.default_priority,
            aux_limit: pool.max_aux_containers_per_agent,
            patience: pool.agent_reconnect_wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use det_config::{LoadedMaster, Sources};
    use det_ids::PriorityOrder;

    use super::*;

    #[test]
    fn additional_managers_are_like_the_main_one() {
        let text = "
            resource_manager: {type: agent, cluster_name: lab, scheduler: {type: fair_share}}
            resource_pools: [{pool_name: default, agent_reconnect_wait: 1m}, {pool_name: b}]
            additional_resource_managers:
              - resource_manager: {type: kubernetes, cluster_name: cloud, max_slots_per_pod: 8}
                resource_pools: [{pool_name: pods, max_aux_containers_per_agent: 7}]
        ";
        let files = [("master.yaml".to_owned(), text.to_owned())];
        let loaded = LoadedMaster::load(Sources {
            files: &files,
            ..Sources::default()
        });
        let config = loaded.unwrap_or_else(|errors| panic!("{errors}")).config;
        let managers = Manager::of(&config);
        let seen: Vec<_> = managers
            .iter()
            .map(|manager| (manager.name.as_str(), manager.kind, manager.health))
            .collect();
        assert_eq!(
            seen,
            [
                ("lab", ManagerKind::Agent, Health::Serving),
                ("cloud", ManagerKind::Kubernetes, Health::NotBuilt)
            ]
        );
        let pool = |manager: usize, name: &str| managers[manager].pool(name).unwrap();
        assert_eq!(pool(0, "default").settings.policy, Policy::FairShare);
        assert_eq!(pool(0, "default").patience, Duration::from_mins(1));
        let order = |manager, name| pool(manager, name).settings.priority_order;
        assert_eq!(order(0, "b"), PriorityOrder::LowerFirst);
        assert_eq!(order(1, "pods"), PriorityOrder::HigherFirst);
        assert_eq!(pool(1, "pods").aux_limit, 7);
        assert!(managers[0].pool("pods").is_none());
    }
}
