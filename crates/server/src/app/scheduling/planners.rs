//! What scheduling keeps of each pool from one pass to the next: a planner that is notified of what changes.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::Micros;
use det_scheduler::{Planner, Work};

use crate::app::limits::Limits;
use crate::app::pools::Pools;
use crate::app::snapshots::Snapshots;
use crate::live::{CacheChanges, LiveCache};

/// Any moment, to compare plans.
const NOON: Micros = Micros(43_200_000_000);

/// The planners by pool. All of it can be had from a cache.
#[derive(Default)]
pub(super) struct Planners {
    pools: BTreeMap<String, PoolPlanner>,
}

struct PoolPlanner {
    planner: Planner,
    aux_limit: u32,
}

impl Planners {
    /// Updates the planners with how the pools are configured, and with what has changed in the cache.
    pub(super) fn update(
        &mut self,
        pools: &Pools,
        snapshots: &Snapshots,
        cache: &LiveCache,
        touched: &CacheChanges,
        limits: &Limits,
    ) {
        if touched.everything {
            self.pools.clear();
        }
        // Work in a pool that was configured once waits there, and that is reported.
        let mut names: BTreeSet<String> = pools.names().into_iter().collect();
        names.extend(cache.pools_of(touched).map(str::to_owned));
        self.pools
            .retain(|pool, kept| names.contains(pool) || !kept.planner.is_idle());
        names.extend(self.pools.keys().cloned());
        let mut known = Vec::new();
        for pool in names {
            let aux_limit = pools.aux_limit(&pool);
            match self.pools.get_mut(&pool) {
                Some(kept) if kept.aux_limit == aux_limit => {
                    kept.planner.set_settings(pools.settings(&pool));
                    known.push(pool);
                }
                _ => {
                    let planner = snapshots.planner(cache, &pool, limits);
                    self.pools.insert(pool, PoolPlanner { planner, aux_limit });
                }
            }
        }
        for pool in known {
            if let Some(kept) = self.pools.get_mut(&pool) {
                kept.catch_up(&pool, cache, touched);
                kept.planner.set_workspaces(limits.in_pool(&pool));
                // Builds for tests look at everything again.
                debug_assert_eq!(
                    kept.planner.plan(NOON),
                    snapshots.planner(cache, &pool, limits).plan(NOON),
                    "the planner of {pool} was not notified of all of {touched:?}"
                );
            }
        }
    }

    /// The planner of a pool, where there is one.
    pub(super) fn of(&mut self, pool: &str) -> Option<&mut Planner> {
        self.pools.get_mut(pool).map(|kept| &mut kept.planner)
    }

    /// The planners of pools in which something waits or runs.
    pub(super) fn busy(&mut self) -> impl Iterator<Item = (&str, &mut Planner)> {
        self.pools
            .iter_mut()
            .map(|(pool, kept)| (pool.as_str(), &mut kept.planner))
            .filter(|(_, planner)| !planner.is_idle())
    }
}

impl PoolPlanner {
    fn catch_up(&mut self, pool: &str, cache: &LiveCache, touched: &CacheChanges) {
        let planner = &mut self.planner;
        for id in &touched.places {
            match cache.place(id, self.aux_limit) {
                Some((in_pool, place)) if in_pool == pool => planner.put_place(place),
                _ => planner.remove_place(id),
            }
        }
        let mut gone = Vec::new();
        for id in &touched.jobs {
            match cache.job_in(id, pool) {
                Some(job) => planner.put_job(id, job),
                None => gone.push(id),
            }
        }
        for id in &touched.allocations {
            match cache.work_of(id) {
                Some((in_pool, Work::Waits(request))) if in_pool == pool => {
                    planner.put_request(request);
                }
                Some((in_pool, Work::Runs(running))) if in_pool == pool => {
                    planner.put_running(running);
                }
                _ => planner.remove(id),
            }
        }
        for job in gone {
            planner.remove_job(job);
        }
    }
}
