//! Reading the job queue and resource pools.

use det_authz::Kind;
use det_ids::JobId;
use det_store::agents::{self, AgentRow};
use det_store::allocations::{self, ContainerRow};
use det_store::queue_days::{self, QueueDay};

use crate::app::jobs::QueuedJob;
use crate::app::why::JobStory;
use crate::app::{Master, reads};
use crate::auth::Actor;
use crate::error::AppResult;

/// Days that statistics reach back.
const DAYS_OF_STATISTICS: i64 = 30;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Job, "jobs")
}

/// The queue of a pool, in the order in which it is served; an empty name = the default pool.
pub(crate) async fn queue(master: &Master, actor: &Actor, pool: &str) -> AppResult<Vec<QueuedJob>> {
    require(actor)?;
    let pool = master.queue.pool_or_default(pool)?;
    master.queue.list(Some(&pool)).await
}

/// What is queued in a pool, and what tasks waited for its slots on each of the last days.
pub(crate) struct PoolStatistics {
    /// The pool's name.
    pub(crate) pool: String,
    /// Days on which tasks began to run, oldest first.
    pub(crate) days: Vec<QueueDay>,
}

/// All queues, and the statistics of the named pools; none named = of all.
pub(crate) async fn statistics(
    master: &Master,
    actor: &Actor,
    pools: &[String],
) -> AppResult<(Vec<QueuedJob>, Vec<PoolStatistics>)> {
    require(actor)?;
    let pools = if pools.is_empty() {
        master.pools.names()
    } else {
        pools
            .iter()
            .map(|name| master.queue.pool_or_default(name))
            .collect::<AppResult<_>>()?
    };
    let queue = master.queue.list(None).await?;
    let mut conn = master.context.store.read().await?;
    let first = queue_days::day_of(det_store::now()) - DAYS_OF_STATISTICS;
    let mut statistics = Vec::with_capacity(pools.len());
    for pool in pools {
        let days = queue_days::since(&mut conn.conn(), &pool, first).await?;
        statistics.push(PoolStatistics { pool, days });
    }
    Ok((queue, statistics))
}

/// Why a job runs or waits.
pub(crate) async fn explanation(
    master: &Master,
    actor: &Actor,
    job_id: &JobId,
) -> AppResult<JobStory> {
    require(actor)?;
    master.job_stories.explain(job_id).await
}

/// What resource pools are made of.
pub(crate) struct PoolContents {
    /// All agents.
    pub(crate) agents: Vec<AgentRow>,
    /// All live containers.
    pub(crate) containers: Vec<ContainerRow>,
    /// All queues.
    pub(crate) queue: Vec<QueuedJob>,
}

/// What is in the resource pools.
pub(crate) async fn pools(master: &Master, actor: &Actor) -> AppResult<PoolContents> {
    reads::require(actor, Kind::Pool, "resource pools")?;
    let (agents, containers) = {
        let mut conn = master.context.store.read().await?;
        (
            agents::list(&mut conn.conn()).await?,
            allocations::live_containers(&mut conn.conn()).await?,
        )
    };
    Ok(PoolContents {
        agents,
        containers,
        queue: master.queue.list(None).await?,
    })
}
