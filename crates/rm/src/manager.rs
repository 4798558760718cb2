//! What a resource manager is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use det_config::container::TaskContainerDefaults;
use det_config::master::{
    EffectiveScheduler, FittingPolicy, ManagerKind, ManagerSettings, MasterConfig, ResourceManager,
    ResourcePool, SchedulerKind,
};
use det_ids::quantity;
use det_scheduler::{Fitting, Policy, PoolSettings, Provisionable};
use det_taskspec::RunsIn;

use crate::NamespaceSettings;

/// A resource manager: the owner of pools.
#[derive(Debug, Clone, PartialEq)]
pub struct Manager {
    /// Its name in the configuration; the main one's may be empty.
    pub name: String,
    /// Kind of the manager, which selects its driver.
    pub kind: ManagerKind,
    /// Whether this master has a driver for its kind. Without one its pools are known by name, and nothing can run there.
    pub is_built: bool,
    /// Names and values that users are shown; nothing depends on them.
    pub metadata: BTreeMap<String, String>,
    /// The namespaces of its cluster, which workspaces can be bound to; `None` = it has none.
    pub namespaces: Option<NamespaceSettings>,
    /// Its pools, in the order of the configuration.
    pub pools: Vec<Pool>,
}

/// Whether a manager can run containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// Its places can join, and run what the core places there.
    #[default]
    Up,
    /// It works in part; the reason is a sentence.
    Degraded(String),
    /// It can start nothing at present: what is placed on its places waits there, and nothing is placed on those that have
    /// left. The reason is a sentence.
    Down(String),
}

impl Health {
    /// Whether it can start containers, if only in part.
    pub fn is_up(&self) -> bool {
        !matches!(self, Self::Down(_))
    }

    /// The reason why it is down or works in part only, a sentence; `None` = it is up.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Up => None,
            Self::Degraded(reason) | Self::Down(reason) => Some(reason),
        }
    }
}

/// How the places of a manager come into its pools, and leave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Membership {
    /// Each names the pool that it joins, and stays in it until it is stopped.
    #[default]
    Joins,
    /// The configuration of a pool selects them among the machines of a cluster: without the pool they are in none.
    Selected,
}

impl Membership {
    /// That of the places of managers of this kind.
    pub fn of(kind: ManagerKind) -> Self {
        match kind {
            ManagerKind::Agent => Self::Joins,
            ManagerKind::Kubernetes | ManagerKind::Slurm | ManagerKind::Pbs => Self::Selected,
        }
    }
}

/// The word for a place of a manager in texts for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlaceWord {
    /// "agent": a machine on which an agent of this platform runs.
    #[default]
    Agent,
    /// "node": a machine of a cluster that another system manages, such as Kubernetes.
    Node,
}

impl PlaceWord {
    /// What the places of managers of this kind are called.
    pub fn of(kind: ManagerKind) -> Self {
        match kind {
            ManagerKind::Agent => Self::Agent,
            ManagerKind::Kubernetes | ManagerKind::Slurm | ManagerKind::Pbs => Self::Node,
        }
    }

    /// So many of them: `1 agent`, `2 agents`.
    pub fn counted(self, number: usize) -> String {
        quantity(number as u64, &self.to_string())
    }
}

impl fmt::Display for PlaceWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Node => "node",
        })
    }
}

/// What containers of a manager of this kind run in.
pub fn runs_in(kind: ManagerKind) -> RunsIn {
    match kind {
        ManagerKind::Kubernetes => RunsIn::Pod,
        ManagerKind::Agent | ManagerKind::Slurm | ManagerKind::Pbs => RunsIn::Machine,
    }
}

/// A resource pool of a manager, with its limits and the settings of its scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its name, which no other pool of any manager has.
    pub name: String,
    /// Its description as administrators wrote it; may be empty.
    pub description: String,
    /// Its scheduler as configured, as users see it.
    pub scheduler: EffectiveScheduler,
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
    /// The managers of a configuration: the main one first, then the additional ones. `built` = the kinds of managers that
    /// the master has a driver for.
    pub fn of(config: &MasterConfig, built: &[ManagerKind]) -> Vec<Self> {
        let managers = config.managers().map(|(manager, pools)| Self {
            name: manager.cluster_name.clone(),
            kind: manager.kind(),
            is_built: built.contains(&manager.kind()),
            metadata: manager.metadata.clone(),
            namespaces: namespaces(manager),
            pools: (pools.iter())
                .map(|pool| Pool::of(manager, pool, container_limit(config, manager, pool)))
                .collect(),
        });
        managers.collect()
    }

    /// The pool of this name; `None` = the manager has none of it.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Why nothing can run in its pools, completing `resource pool "x" …`; `None` = it serves them.
    pub fn unusable(&self) -> Option<String> {
        (!self.is_built).then(|| {
            format!(
                "belongs to resource manager \"{}\" of type {}, which is not built in this version",
                self.name, self.kind
            )
        })
    }
}

/// The namespaces of a manager's cluster; `None` = managers of its kind have none.
fn namespaces(manager: &ResourceManager) -> Option<NamespaceSettings> {
    match &manager.settings {
        ManagerSettings::Kubernetes(cluster) => {
            let default = Some(cluster.default_namespace.clone());
            let default = default.filter(|name| !name.is_empty());
            Some(NamespaceSettings { default })
        }
        ManagerSettings::Agent(_) | ManagerSettings::Slurm(_) | ManagerSettings::Pbs(_) => None,
    }
}

/// Most slots of one container of a pool: the pool's own limit, else its manager's, else that of the cluster's defaults.
/// `None` = as many as its place has.
fn container_limit(
    config: &MasterConfig,
    manager: &ResourceManager,
    pool: &ResourcePool,
) -> Option<u32> {
    match &manager.settings {
        ManagerSettings::Kubernetes(cluster) => {
            let of = |defaults: &TaskContainerDefaults| defaults.kubernetes.max_slots_per_pod;
            let of_pool = pool.task_container_defaults.as_ref().and_then(of);
            of_pool
                .or(cluster.max_slots_per_pod)
                .or_else(|| of(&config.task_container_defaults))
        }
        ManagerSettings::Agent(_) | ManagerSettings::Slurm(_) | ManagerSettings::Pbs(_) => None,
    }
}

impl Pool {
    fn of(manager: &ResourceManager, pool: &ResourcePool, container_limit: Option<u32>) -> Self {
        let scheduler = manager.scheduler_of(pool);
        Self {
            name: pool.pool_name.clone(),
            description: pool.description.clone(),
            scheduler,
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
                priority_order: manager.kind().priority_order(),
                allow_heterogeneous_fits: scheduler.allow_heterogeneous_fits,
                max_slots_per_container: container_limit,
                provisionable: pool.autoscaling.as_ref().map(|growing| Provisionable {
                    slots_per_instance: growing.slots_per_node,
                    max_instances: growing.max_nodes,
                }),
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
              - resource_manager: {type: agent, cluster_name: attic, scheduler: {type: round_robin}}
                resource_pools: [{pool_name: old, agent_reconnect_wait: 2m}]
              - resource_manager: {type: kubernetes, cluster_name: cloud, max_slots_per_pod: 8, default_scheduler: preemption}
                resource_pools:
                - {pool_name: pods, max_aux_containers_per_agent: 7}
                - {pool_name: small, task_container_defaults: {kubernetes: {max_slots_per_pod: 2}}}
              - resource_manager: {type: kubernetes, cluster_name: rack, max_slots_per_pod: 8, default_namespace: research}
                resource_pools: [{pool_name: racked}]
        ";
        let files = [("master.yaml".to_owned(), text.to_owned())];
        let loaded = LoadedMaster::load(Sources {
            files: &files,
            ..Sources::default()
        });
        let config = loaded.unwrap_or_else(|errors| panic!("{errors}")).config;
        let managers = Manager::of(&config, &[ManagerKind::Agent]);
        let seen: Vec<_> = managers
            .iter()
            .map(|manager| (manager.name.as_str(), manager.kind, manager.is_built))
            .collect();
        assert_eq!(
            seen,
            [
                ("lab", ManagerKind::Agent, true),
                ("attic", ManagerKind::Agent, true),
                ("cloud", ManagerKind::Kubernetes, false),
                ("rack", ManagerKind::Kubernetes, false)
            ]
        );
        let pool = |manager: usize, name: &str| managers[manager].pool(name).unwrap();
        assert_eq!(pool(0, "default").settings.policy, Policy::FairShare);
        assert_eq!(pool(0, "default").patience, Duration::from_mins(1));
        let preempts = |manager, name| match pool(manager, name).settings.policy {
            Policy::Priority { preemption, .. } => preemption,
            Policy::FairShare | Policy::RoundRobin => false,
        };
        assert!(preempts(2, "pods") && !preempts(1, "old"));
        let order = |manager, name| pool(manager, name).settings.priority_order;
        assert_eq!(order(0, "b"), PriorityOrder::LowerFirst);
        assert_eq!(pool(1, "old").settings.policy, Policy::RoundRobin);
        assert_eq!(pool(1, "old").patience, Duration::from_mins(2));
        assert_eq!(order(2, "pods"), PriorityOrder::HigherFirst);
        assert_eq!(pool(2, "pods").aux_limit, 7);
        let most = |manager, name| pool(manager, name).settings.max_slots_per_container;
        assert_eq!(most(0, "b"), None);
        assert_eq!((most(2, "pods"), most(2, "small")), (Some(8), Some(2)));
        let default = |manager: usize| {
            let namespaces = managers[manager].namespaces.as_ref();
            namespaces.map(|it| it.default.as_deref())
        };
        assert_eq!(
            [default(0), default(2), default(3)],
            [None, Some(None), Some(Some("research"))]
        );
        assert_eq!(managers[1].unusable(), None);
        let unusable = managers[2].unusable().unwrap();
        assert!(
            unusable.contains("\"cloud\" of type kubernetes"),
            "{unusable}"
        );
        assert!(managers[0].pool("pods").is_none());
    }
}
