//! What the limits of workspaces leave to each resource pool. A workspace has one limit for all pools of the cluster, and may
//! have one for those of a resource manager; each pool has a planner of its own: what its work uses elsewhere is reported
//! to each.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::WorkspaceId;
use det_scheduler::{Placement, WorkspaceLimit};

use crate::app::homes::Homes;
use crate::app::managers::Managers;
use crate::live::LiveCache;

/// The limited workspaces and what they use.
pub(crate) struct Limits {
    scopes: Vec<Scope>,
}

/// Pools that have their limits together.
struct Scope {
    /// Names of the pools; `None` = all pools.
    pools: Option<BTreeSet<String>>,
    by_workspace: BTreeMap<WorkspaceId, Limit>,
}

struct Limit {
    max_slots: u32,
    /// Slots in use, by pool.
    in_use: BTreeMap<String, u32>,
}

impl Limits {
    /// The limits of the cluster and of its managers, with what is in use now.
    pub(super) fn of(homes: &Homes, managers: &Managers, cache: &LiveCache) -> Self {
        let of_managers = managers.limits().into_iter();
        let of_managers = of_managers.map(|(pools, limits)| Scope::new(Some(pools), limits));
        let of_cluster = Scope::new(None, homes.slot_limits());
        let mut scopes: Vec<Scope> = std::iter::once(of_cluster).chain(of_managers).collect();
        scopes.retain(|scope| !scope.by_workspace.is_empty());
        let mut limits = Self { scopes };
        if !limits.scopes.is_empty() {
            for (workspace, pool, slots) in cache.held() {
                limits.add(workspace, pool, slots);
            }
        }
        limits
    }

    /// As the planner of a pool is to know them: of several limits of a workspace the one that leaves it the least there.
    pub(super) fn in_pool(&self, pool: &str) -> BTreeMap<WorkspaceId, WorkspaceLimit> {
        let mut tightest: BTreeMap<WorkspaceId, WorkspaceLimit> = BTreeMap::new();
        for scope in self.scopes.iter().filter(|scope| scope.has(pool)) {
            for (workspace, limit) in &scope.by_workspace {
                let limit = limit.in_pool(pool);
                let known = tightest.entry(*workspace).or_insert(limit);
                if limit.here() < known.here() {
                    *known = limit;
                }
            }
        }
        tightest
    }

    /// A pass over a pool placed these.
    pub(super) fn note(&mut self, cache: &LiveCache, pool: &str, placed: &[Placement]) {
        for placement in placed {
            if let Some(workspace) = cache.workspace_of(&placement.allocation_id) {
                let slots: usize = placement.parts.iter().map(|(_, slots)| slots.len()).sum();
                self.add(workspace, pool, u32::try_from(slots).unwrap_or(u32::MAX));
            }
        }
    }

    fn add(&mut self, workspace: WorkspaceId, pool: &str, slots: u32) {
        for scope in self.scopes.iter_mut().filter(|scope| scope.has(pool)) {
            if let Some(limit) = scope.by_workspace.get_mut(&workspace) {
                let in_use = limit.in_use.entry(pool.to_owned()).or_default();
                *in_use = in_use.saturating_add(slots);
            }
        }
    }
}

impl Scope {
    fn new(pools: Option<BTreeSet<String>>, limits: BTreeMap<WorkspaceId, u32>) -> Self {
        let limits = limits.into_iter().map(|(workspace, max_slots)| {
            let in_use = BTreeMap::new();
            (workspace, Limit { max_slots, in_use })
        });
        Self {
            pools,
            by_workspace: limits.collect(),
        }
    }

    fn has(&self, pool: &str) -> bool {
        let pools = self.pools.as_ref();
        pools.is_none_or(|pools| pools.contains(pool))
    }
}

impl Limit {
    fn in_pool(&self, pool: &str) -> WorkspaceLimit {
        let others = self.in_use.iter().filter(|(other, _)| *other != pool);
        WorkspaceLimit {
            max_slots: self.max_slots,
            in_other_pools: others.fold(0, |sum, (_, slots)| sum.saturating_add(*slots)),
        }
    }
}
