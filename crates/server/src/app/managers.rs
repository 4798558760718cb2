//! Resource managers: which there are, whether they can run anything, and what their places are called.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use det_config::master::ManagerKind;
use det_rm::{Health, Manager, PlaceWord};

use crate::in_force::InForce;

/// The resource managers as configured, and what their drivers report of them. Cheap to clone.
#[derive(Clone)]
pub struct Managers {
    in_force: Arc<InForce>,
    /// By name of a manager: what its driver last reported, unless that is that it is up.
    ailing: Arc<Mutex<BTreeMap<String, Health>>>,
}

impl Managers {
    /// Of this configuration; of none is anything known yet.
    pub(crate) fn new(in_force: Arc<InForce>) -> Self {
        Self {
            in_force,
            ailing: Arc::default(),
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

    /// Why no agent can join a pool, completing `resource pool "x" …`, with the pools that agents can join.
    pub(crate) fn closed_to_agents(&self, pool: &str) -> Option<String> {
        let managers = self.list();
        let why = match managers.iter().find(|it| it.pool(pool).is_some()) {
            None => "does not exist".to_owned(),
            Some(manager) => match (manager.unusable(), manager.kind) {
                (Some(why), _) => why,
                (None, ManagerKind::Agent) => return None,
                (None, kind) => format!(
                    "belongs to resource manager \"{}\" of type {kind}, whose {}s are no agents",
                    manager.name,
                    PlaceWord::of(kind)
                ),
            },
        };
        let of_agents = managers
            .iter()
            .filter(|manager| manager.is_built && manager.kind == ManagerKind::Agent);
        let open = of_agents.flat_map(|manager| &manager.pools);
        let open: Vec<&str> = open.map(|pool| pool.name.as_str()).collect();
        Some(format!("{why}; agents can join: {}", open.join(", ")))
    }

    /// What users call the places of a pool.
    pub(crate) fn place_word(&self, pool: &str) -> PlaceWord {
        let managers = self.list();
        let manager = managers.iter().find(|it| it.pool(pool).is_some());
        manager.map_or(PlaceWord::Agent, |manager| PlaceWord::of(manager.kind))
    }
}
