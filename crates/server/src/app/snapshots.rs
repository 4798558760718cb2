//! Resource pools and their queues as they are at a moment, for plans, estimates and questions.

use std::collections::BTreeSet;

use det_scheduler::{Planner, PoolSnapshot, Queue};
use det_taskspec::PlaceRuntime;

use crate::app::context::Context;
use crate::app::decisions::CORE;
use crate::app::homes::KnownHomes;
use crate::app::limits::Limits;
use crate::app::managers::Managers;
use crate::app::pools::Pools;
use crate::error::AppResult;
use crate::live::{self, Live, LiveCache};

/// Looks at what is live, pool by pool. Cheap to clone.
#[derive(Clone)]
pub struct Snapshots {
    pub(super) context: Context,
    pub(super) live: Live,
    pub(super) managers: Managers,
    pools: Pools,
    pub(super) homes: KnownHomes,
}

impl Snapshots {
    /// Of what is live in the pools, under the limits of these workspaces.
    pub(crate) fn new(
        context: Context,
        live: Live,
        (managers, pools): (Managers, Pools),
        homes: KnownHomes,
    ) -> Self {
        Self {
            context,
            live,
            managers,
            pools,
            homes,
        }
    }

    /// What the limits of workspaces leave to each pool.
    pub(super) fn limits(&self, cache: &LiveCache) -> Limits {
        Limits::of(&self.homes.get(), &self.managers, cache)
    }

    /// A planner of a pool as a cache shows it.
    pub(super) fn planner(&self, cache: &LiveCache, pool: &str, limits: &Limits) -> Planner {
        let (snapshot, queue) = self.in_cache(cache, pool, limits);
        Planner::of(&snapshot, &queue)
    }

    /// A pool and its queue as a cache shows them.
    pub(super) fn in_cache(
        &self,
        cache: &LiveCache,
        pool: &str,
        limits: &Limits,
    ) -> (PoolSnapshot, Queue) {
        CORE.pool(
            (
                self.pools.settings(pool),
                cache.places(pool, self.pools.aux_limit(pool)),
            ),
            cache.work(pool),
            cache.jobs(pool).collect(),
            limits.in_pool(pool),
        )
    }

    /// A pool without what runs in it.
    fn places_in(&self, cache: &LiveCache, pool: &str) -> PoolSnapshot {
        PoolSnapshot {
            settings: self.pools.settings(pool),
            places: cache.places(pool, self.pools.aux_limit(pool)),
            running: Vec::new(),
        }
    }

    /// What the places of these pools start containers with; empty = they have no places now.
    pub(super) async fn runtimes(&self, pools: &[String]) -> AppResult<BTreeSet<PlaceRuntime>> {
        let look = |cache: &LiveCache| live::runtimes(cache, pools);
        Ok(self.live.look(&self.context.store, look).await?)
    }

    /// A pool and its queue as they are now, for estimates.
    pub(crate) async fn with_queue(&self, pool: &str) -> AppResult<(PoolSnapshot, Queue)> {
        let look = |cache: &LiveCache| self.in_cache(cache, pool, &self.limits(cache));
        Ok(self.live.look_at_jobs(&self.context.store, look).await?)
    }

    /// The pool's places as they are now, without what runs there: for questions such as whether a request can ever fit.
    pub(crate) async fn of_pool(&self, pool: &str) -> AppResult<PoolSnapshot> {
        let look = |cache: &LiveCache| self.places_in(cache, pool);
        Ok(self.live.look(&self.context.store, look).await?)
    }
}
