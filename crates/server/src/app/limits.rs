//! What the limits of workspaces leave to each resource pool. A workspace has one limit for all pools, and each pool has a
//! planner of its own: what its work uses elsewhere is reported to each.

use std::collections::BTreeMap;

use det_ids::WorkspaceId;
use det_scheduler::{Placement, WorkspaceLimit};

use crate::app::homes::Homes;
use crate::live::LiveCache;

/// The limited workspaces and what they use.
pub(crate) struct Limits {
    by_workspace: BTreeMap<WorkspaceId, Limit>,
}

struct Limit {
    max_slots: u32,
    /// Slots in use, by pool.
    in_use: BTreeMap<String, u32>,
}

impl Limits {
    /// As they are now.
    pub(super) fn of(homes: &Homes, cache: &LiveCache) -> Self {
        let mut by_workspace: BTreeMap<WorkspaceId, Limit> = homes
            .slot_limits()
            .into_iter()
            .map(|(workspace, max_slots)| {
                let in_use = BTreeMap::new();
                (workspace, Limit { max_slots, in_use })
            })
            .collect();
        if !by_workspace.is_empty() {
            for (workspace, pool, slots) in cache.held() {
                if let Some(limit) = by_workspace.get_mut(&workspace) {
                    limit.add(pool, slots);
                }
            }
        }
        Self { by_workspace }
    }

    /// As the planner of a pool is to know them.
    pub(super) fn in_pool(&self, pool: &str) -> BTreeMap<WorkspaceId, WorkspaceLimit> {
        let limits = self.by_workspace.iter();
        limits
            .map(|(workspace, limit)| {
                let others = limit.in_use.iter().filter(|(other, _)| *other != pool);
                let limit = WorkspaceLimit {
                    max_slots: limit.max_slots,
                    in_other_pools: others.fold(0, |sum, (_, slots)| sum.saturating_add(*slots)),
                };
                (*workspace, limit)
            })
            .collect()
    }

    /// A pass over a pool placed these.
    pub(super) fn note(&mut self, cache: &LiveCache, pool: &str, placed: &[Placement]) {
        for placement in placed {
            let workspace = cache.workspace_of(&placement.allocation_id);
            let limit = workspace.and_then(|workspace| self.by_workspace.get_mut(&workspace));
            if let Some(limit) = limit {
                let slots: usize = placement.parts.iter().map(|(_, slots)| slots.len()).sum();
                limit.add(pool, u32::try_from(slots).unwrap_or(u32::MAX));
            }
        }
    }
}

impl Limit {
    fn add(&mut self, pool: &str, slots: u32) {
        let in_use = self.in_use.entry(pool.to_owned()).or_default();
        *in_use = in_use.saturating_add(slots);
    }
}
