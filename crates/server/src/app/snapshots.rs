//! Resource pools and their queues as they are at a moment, for plans, estimates and questions.

use det_scheduler::{Planner, PoolSnapshot, Queue};

use crate::app::context::Context;
use crate::app::decisions::CORE;
use crate::app::homes::KnownHomes;
use crate::app::limits::Limits;
use crate::app::pools::Pools;
use crate::error::AppResult;
use crate::live::{Image, Live};

/// Looks at what is live, pool by pool. Cheap to clone.
#[derive(Clone)]
pub struct Snapshots {
    pub(super) context: Context,
    pub(super) live: Live,
    pools: Pools,
    pub(super) homes: KnownHomes,
}

impl Snapshots {
    /// Of what is live in the pools, under the limits of these workspaces.
    pub(crate) fn new(context: Context, live: Live, pools: Pools, homes: KnownHomes) -> Self {
        Self {
            context,
            live,
            pools,
            homes,
        }
    }

    /// What the limits of workspaces leave to each pool.
    pub(super) fn limits(&self, image: &Image) -> Limits {
        Limits::of(&self.homes.get(), image)
    }

    /// A planner of a pool as an image shows it.
    pub(super) fn planner(&self, image: &Image, pool: &str, limits: &Limits) -> Planner {
        let (snapshot, queue) = self.in_image(image, pool, limits);
        Planner::of(&snapshot, &queue)
    }

    /// A pool and its queue as an image shows them.
    pub(super) fn in_image(
        &self,
        image: &Image,
        pool: &str,
        limits: &Limits,
    ) -> (PoolSnapshot, Queue) {
        CORE.pool(
            (
                self.pools.settings(pool),
                image.places(pool, self.pools.aux_limit(pool)),
            ),
            image.work(pool),
            image.jobs(pool).collect(),
            limits.in_pool(pool),
        )
    }

    /// A pool without what runs in it.
    fn places_in(&self, image: &Image, pool: &str) -> PoolSnapshot {
        PoolSnapshot {
            settings: self.pools.settings(pool),
            places: image.places(pool, self.pools.aux_limit(pool)),
            running: Vec::new(),
        }
    }

    /// A pool and its queue as they are now, for estimates.
    pub(crate) async fn with_queue(&self, pool: &str) -> AppResult<(PoolSnapshot, Queue)> {
        let look = |image: &Image| self.in_image(image, pool, &self.limits(image));
        Ok(self.live.look_at_jobs(&self.context.store, look).await?)
    }

    /// The pool's places as they are now, without what runs there: for questions such as whether a request can ever fit.
    pub(crate) async fn of_pool(&self, pool: &str) -> AppResult<PoolSnapshot> {
        let look = |image: &Image| self.places_in(image, pool);
        Ok(self.live.look(&self.context.store, look).await?)
    }
}
