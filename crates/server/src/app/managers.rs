//! Resource managers: which there are, whether they can run anything, and what their places are called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use det_config::master::ManagerKind;
use det_ids::WorkspaceId;
use det_rm::{Health, Manager, Membership, PlaceWord};

use crate::app::growth::GrowthBoard;
use crate::in_force::InForce;

/// The resource managers as configured, and what their drivers report of them. Cheap to clone.
#[derive(Clone)]
pub struct Managers {
    in_force: Arc<InForce>,
    /// By name of a manager: what its driver last reported, unless that is that it is up.
    ailing: Arc<Mutex<BTreeMap<String, Health>>>,
    /// By name of a manager: the slots that workspaces may use at a time in its pools, as its driver last reported.
    limits: Arc<Mutex<BTreeMap<String, SlotLimits>>>,
    /// What waits for their clusters to grow.
    pub(crate) growth: GrowthBoard,
}

/// How many slots workspaces may use at a time.
type SlotLimits = BTreeMap<WorkspaceId, u32>;

impl Managers {
    /// Of this configuration; of none is anything known yet.
    pub(crate) fn new(in_force: Arc<InForce>) -> Self {
        Self {
            in_force,
            ailing: Arc::default(),
            limits: Arc::default(),
            growth: GrowthBoard::default(),
        }
    }

    /// All of them, the main one first.
    pub fn list(&self) -> Arc<Vec<Manager>> {
        self.in_force.managers()
    }

    /// Whether a manager can run containers now, as its driver last reported.
    pub fn health(&self, manager: &Manager) -> Health {
        if !manager.is_built {
            let kind = manager.kind;
            return Health::Down(format!(
                "resource managers of type {kind} are not built in this version"
            ));
        }
        let ailing = self.ailing.lock().unwrap_or_else(PoisonError::into_inner);
        ailing.get(&manager.name).cloned().unwrap_or_default()
    }

    /// Notes what a driver reports of its manager.
    pub(crate) fn note_health(&self, manager: &str, health: Health) {
        let mut ailing = self.ailing.lock().unwrap_or_else(PoisonError::into_inner);
        if ailing.get(manager).unwrap_or(&Health::Up) == &health {
            return;
        }
        match health.reason() {
            None => tracing::info!(resource_manager = manager, "a resource manager is up"),
            Some(reason) => tracing::warn!(
                resource_manager = manager,
                can_start = health.is_up(),
                reason,
                "a resource manager is not well"
            ),
        }
        if health == Health::Up {
            ailing.remove(manager);
        } else {
            ailing.insert(manager.to_owned(), health);
        }
    }

    /// Notes the limits of workspaces in a manager's pools, as its driver reports them.
    pub(crate) fn note_limits(&self, manager: &str, reported: SlotLimits) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.insert(manager.to_owned(), reported);
    }

    /// The limits of workspaces in the pools of each manager that has any, with those pools.
    pub(crate) fn limits(&self) -> Vec<(BTreeSet<String>, SlotLimits)> {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let managers = self.list();
        let limited = managers.iter().filter_map(|manager| {
            let limits = limits.get(&manager.name)?;
            let pools = manager.pools.iter().map(|pool| pool.name.clone());
            (!limits.is_empty()).then(|| (pools.collect(), limits.clone()))
        });
        limited.collect()
    }

    /// The manager of a pool and how many slots a workspace may use at a time in its pools; `None` = it has no such limit.
    pub(crate) fn limit_in(&self, pool: &str, workspace: WorkspaceId) -> Option<(String, u32)> {
        let (manager, _) = self.of_pool(pool)?;
        let limit = self.limit_of(&manager, workspace)?;
        Some((manager, limit))
    }

    /// How many slots a workspace may use at a time in the pools of a manager, as its driver reports; `None` = it has no such
    /// limit.
    pub(crate) fn limit_of(&self, manager: &str, workspace: WorkspaceId) -> Option<u32> {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.get(manager)?.get(&workspace).copied()
    }

    /// What is wrong with the manager of a pool, as a clause; `None` = nothing is known to be.
    pub(crate) fn trouble_of(&self, pool: &str) -> Option<String> {
        let managers = self.list();
        let manager = managers.iter().find(|it| it.pool(pool).is_some())?;
        let health = self.health(manager);
        let reason = health.reason()?;
        let what = if health.is_up() {
            "works in part"
        } else {
            "can start nothing at present"
        };
        Some(format!(
            "its resource manager \"{}\" {what}: {reason}",
            manager.name
        ))
    }

    /// Why no agent can join a pool, completing `resource pool "x" …`, with the pools that agents can join.
    pub(crate) fn closed_to_agents(&self, pool: &str) -> Option<String> {
        let managers = self.list();
        let why = match managers.iter().find(|it| it.pool(pool).is_some()) {
            None => "does not exist".to_owned(),
            Some(manager) => match (manager.unusable(), Membership::of(manager.kind)) {
                (Some(why), _) => why,
                (None, Membership::Joins) => return None,
                (None, Membership::Selected) => format!(
                    "belongs to resource manager \"{}\" of type {}, whose {}s are no agents",
                    manager.name,
                    manager.kind,
                    PlaceWord::of(manager.kind)
                ),
            },
        };
        let joined = managers.iter().filter(|manager| {
            manager.is_built && Membership::of(manager.kind) == Membership::Joins
        });
        let open = joined.flat_map(|manager| &manager.pools);
        let open: Vec<&str> = open.map(|pool| pool.name.as_str()).collect();
        Some(format!("{why}; agents can join: {}", open.join(", ")))
    }

    /// The pools of a manager, by its name.
    pub(crate) fn pools_of(&self, manager: &str) -> Vec<String> {
        let managers = self.list();
        let pools = managers.iter().filter(|it| it.name == manager);
        let pools = pools.flat_map(|it| &it.pools);
        pools.map(|pool| pool.name.clone()).collect()
    }

    /// The manager of a pool, by its name, and its kind; `None` = the pool is not configured.
    pub(crate) fn of_pool(&self, pool: &str) -> Option<(String, ManagerKind)> {
        let managers = self.list();
        let manager = managers.iter().find(|it| it.pool(pool).is_some())?;
        Some((manager.name.clone(), manager.kind))
    }

    /// What users call the places of a pool.
    pub(crate) fn place_word(&self, pool: &str) -> PlaceWord {
        let manager = self.of_pool(pool);
        manager.map_or_else(PlaceWord::default, |(_, kind)| PlaceWord::of(kind))
    }

    /// How places come into a pool, and leave it.
    pub(crate) fn membership(&self, pool: &str) -> Membership {
        let manager = self.of_pool(pool);
        manager.map_or_else(Membership::default, |(_, kind)| Membership::of(kind))
    }
}
