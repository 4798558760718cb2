//! What scheduling keeps of each pool from one pass to the next: a planner that is told what changes.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AgentId, AllocationId, JobId, Micros, WorkspaceId};
use det_scheduler::{Placement, Planner, WorkspaceLimit};

use crate::app::Master;
use crate::live::{Image, Touched, Work};

/// Any moment, to compare plans.
const NOON: Micros = Micros(43_200_000_000);

/// The planners by pool. All of it can be had from an image.
#[derive(Default)]
pub(super) struct Planners {
    pools: BTreeMap<String, PoolPlanner>,
    /// The limits of workspaces.
    limits: BTreeMap<WorkspaceId, u32>,
    /// Slots that work in the limited workspaces uses, by pool; with what was placed since it was counted.
    in_use: BTreeMap<String, BTreeMap<WorkspaceId, u32>>,
}

struct PoolPlanner {
    planner: Planner,
    aux_limit: u32,
}

impl Planners {
    /// Tells the planners how the pools are configured, and what has changed in the image.
    pub(super) fn tell(&mut self, master: &Master, image: &Image, touched: &Touched) {
        if touched.everything {
            self.pools.clear();
        }
        // Work in a pool that was configured once waits there, and is told so.
        let mut names: BTreeSet<String> = master.pool_names().into_iter().collect();
        names.extend(image.pools_of(touched).map(str::to_owned));
        self.pools
            .retain(|pool, kept| names.contains(pool) || !kept.planner.is_idle());
        names.extend(self.pools.keys().cloned());
        let limits = master.places.get().slot_limits();
        let mut known = Vec::new();
        for pool in names {
            let aux_limit = master.aux_limit(&pool);
            match self.pools.get_mut(&pool) {
                Some(kept) if kept.aux_limit == aux_limit => {
                    kept.planner.set_settings(master.pool_settings(&pool));
                    known.push(pool);
                }
                _ => {
                    let planner = master.planner_of(image, &pool, &limits);
                    self.pools.insert(pool, PoolPlanner { planner, aux_limit });
                }
            }
        }
        for pool in &known {
            if let Some(kept) = self.pools.get_mut(pool) {
                kept.catch_up(pool, image, touched);
            }
        }
        self.tell_limits(&limits);
        for pool in known {
            if let Some(kept) = self.pools.get_mut(&pool) {
                // Builds for tests look at everything again.
                debug_assert_eq!(
                    kept.planner.plan(NOON),
                    master.planner_of(image, &pool, &limits).plan(NOON),
                    "the planner of {pool} was not told all of {touched:?}"
                );
            }
        }
    }

    /// The planner of a pool, where there is one.
    pub(super) fn of(&mut self, pool: &str) -> Option<&mut Planner> {
        self.pools.get_mut(pool).map(|kept| &mut kept.planner)
    }

    /// Tells the planners the limits of workspaces, and what is in use of them in the other pools.
    fn tell_limits(&mut self, limits: &BTreeMap<WorkspaceId, u32>) {
        self.limits.clone_from(limits);
        self.in_use.clear();
        if !self.limits.is_empty() {
            for (pool, kept) in &mut self.pools {
                let in_use = kept.planner.in_use_by_workspace();
                self.in_use.insert(pool.clone(), in_use);
            }
        }
        for pool in self.pools.keys().cloned().collect::<Vec<_>>() {
            self.ready(&pool);
        }
    }

    /// The planner of a pool, told what is in use of the limits of workspaces in the other pools now.
    pub(super) fn ready(&mut self, pool: &str) -> Option<&mut Planner> {
        let kept = self.pools.get_mut(pool)?;
        let in_use_elsewhere = |workspace: &WorkspaceId| {
            let others = self.in_use.iter().filter(|(other, _)| *other != pool);
            let slots = others.filter_map(|(_, in_use)| in_use.get(workspace));
            slots.fold(0_u32, |sum, slots| sum.saturating_add(*slots))
        };
        let limits = self.limits.iter().map(|(workspace, max_slots)| {
            let limit = WorkspaceLimit {
                max_slots: *max_slots,
                in_other_pools: in_use_elsewhere(workspace),
            };
            (*workspace, limit)
        });
        kept.planner.set_workspaces(limits.collect());
        Some(&mut kept.planner)
    }

    /// Counts what a pass has placed, for the pools that come after it.
    pub(super) fn note_placed(&mut self, pool: &str, image: &Image, placed: &[Placement]) {
        let Some(in_use) = self.in_use.get_mut(pool) else {
            return;
        };
        for placement in placed {
            if let Some((workspace, slots)) = image.workspace_of(placement.allocation_id.as_str()) {
                let sum = in_use.entry(workspace).or_default();
                *sum = sum.saturating_add(slots);
            }
        }
    }

    /// The pools in which something waits or runs.
    pub(super) fn busy(&self) -> Vec<String> {
        let busy = self
            .pools
            .iter()
            .filter(|(_, kept)| !kept.planner.is_idle());
        busy.map(|(pool, _)| pool.clone()).collect()
    }
}

impl PoolPlanner {
    fn catch_up(&mut self, pool: &str, image: &Image, touched: &Touched) {
        let planner = &mut self.planner;
        for id in &touched.agents {
            match image.agent(id, self.aux_limit) {
                Some((in_pool, agent)) if in_pool == pool => planner.put_agent(agent),
                _ => planner.remove_agent(&AgentId(id.clone())),
            }
        }
        let mut gone = Vec::new();
        for id in &touched.jobs {
            match image.job_in(id, pool) {
                Some(job) => planner.put_job(&JobId(id.clone()), job),
                None => gone.push(JobId(id.clone())),
            }
        }
        for id in &touched.allocations {
            match image.work_of(id) {
                Some((in_pool, Work::Waits(request))) if in_pool == pool => {
                    planner.put_request(request);
                }
                Some((in_pool, Work::Runs(running))) if in_pool == pool => {
                    planner.put_running(running);
                }
                _ => planner.remove(&AllocationId(id.clone())),
            }
        }
        for job in gone {
            planner.remove_job(&job);
        }
    }
}

impl Master {
    /// A planner of a pool as an image shows it.
    fn planner_of(
        &self,
        image: &Image,
        pool: &str,
        limits: &BTreeMap<WorkspaceId, u32>,
    ) -> Planner {
        let (snapshot, queue) = self.pool_in(image, pool, limits);
        Planner::of(&snapshot, &queue)
    }
}
