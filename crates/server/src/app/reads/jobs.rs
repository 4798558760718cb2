//! Reading the job queue and resource pools.

mod pool_use;

use std::collections::BTreeMap;

use det_api_types::jobs::{GetJobsQuery, JobState};
use det_api_types::page::{OrderBy, Pagination};
use det_api_types::pools::GetResourcePoolsQuery;
use det_authz::Kind;
use det_ids::JobId;
use det_rm::{Manager, Pool};
use det_store::allocations::{self, ContainerRow};
use det_store::places::{self, PlaceRow};
use det_store::queue_days::{self, QueueDay};
use det_taskspec::RunsIn;

use crate::app::jobs::{JobQueue, QueuedJob};
use crate::app::managers::Managers;
use crate::app::pools::Pools;
use crate::app::reads;
use crate::app::reads::paging;
use crate::app::why::{Explanations, JobExplanation};
use crate::auth::Actor;
use crate::error::AppResult;
use det_store::Store;

/// Jobs on a page when no limit is given.
const DEFAULT_LIMIT: i64 = 100;
/// Days that statistics reach back.
const DAYS_OF_STATISTICS: i64 = 30;

/// What queues and pools are read from.
#[derive(Clone)]
pub(crate) struct JobSources {
    pub(crate) store: Store,
    pub(crate) managers: Managers,
    pub(crate) pools: Pools,
    pub(crate) queue: JobQueue,
    pub(crate) explanations: Explanations,
}

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Job, "jobs")
}

/// One page of the queue of a pool, in the order in which it is served.
pub(crate) async fn page(
    sources: &JobSources,
    actor: &Actor,
    query: &GetJobsQuery,
) -> AppResult<(Vec<QueuedJob>, Pagination)> {
    require(actor)?;
    let pool = sources.queue.pool_or_default(&query.resource_pool)?;
    let mut queue = sources.queue.list(Some(&pool)).await?;
    if !query.states.is_empty() {
        queue.retain(|entry| query.states.contains(&state(entry)));
    }
    if query.order_by == OrderBy::Desc {
        queue.reverse();
    }
    let limit = match query.limit {
        0 => DEFAULT_LIMIT,
        limit => limit,
    };
    let (queue, pagination) = paging::slice(queue, query.offset, limit);
    let limit = query.limit;
    Ok((
        queue,
        Pagination {
            limit,
            ..pagination
        },
    ))
}

/// The reported state of a job.
pub(crate) fn state(queued: &QueuedJob) -> JobState {
    if queued.backfilled {
        JobState::ScheduledBackfilled
    } else if queued.is_scheduled() {
        JobState::Scheduled
    } else {
        JobState::Queued
    }
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
    sources: &JobSources,
    actor: &Actor,
    pools: &[String],
) -> AppResult<(Vec<QueuedJob>, Vec<PoolStatistics>)> {
    require(actor)?;
    let pools = if pools.is_empty() {
        sources.pools.names()
    } else {
        pools
            .iter()
            .map(|name| sources.queue.pool_or_default(name))
            .collect::<AppResult<_>>()?
    };
    let queue = sources.queue.list(None).await?;
    let mut conn = sources.store.read().await?;
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
    sources: &JobSources,
    actor: &Actor,
    job_id: &JobId,
) -> AppResult<JobExplanation> {
    require(actor)?;
    sources.explanations.explain(job_id).await
}

/// A resource pool as it is configured.
pub(crate) struct PoolView {
    /// Name, settings and limits of the pool.
    pub(crate) configured: Pool,
    /// Name of its manager; may be empty.
    pub(crate) manager: String,
    /// What its containers run in.
    pub(crate) runs_in: RunsIn,
    /// Free tags of its manager.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Whether work with slots goes here by default.
    pub(crate) default_compute: bool,
    /// Whether work without slots goes here by default.
    pub(crate) default_aux: bool,
}

/// Resource pools, and what is in them and in others.
pub(crate) struct PoolContents {
    /// The pools, in the order of the configuration.
    pub(crate) pools: Vec<PoolView>,
    /// Agents of all pools, those that are away among them.
    pub(crate) agents: Vec<PlaceRow>,
    /// All live containers.
    pub(crate) containers: Vec<ContainerRow>,
    /// Jobs in the queues of all pools.
    pub(crate) queue: Vec<QueuedJob>,
}

/// One page of the resource pools of all managers.
pub(crate) async fn pools(
    sources: &JobSources,
    actor: &Actor,
    query: &GetResourcePoolsQuery,
) -> AppResult<(PoolContents, Pagination)> {
    reads::require(actor, Kind::Pool, "resource pools")?;
    // Clients look for the one pool with this flag and fail without it, also where every task must name its pool.
    let default_compute = sources.queue.pool_or_default("")?;
    let default_aux = sources.pools.default_aux_pool();
    let view = |(manager, configured): (&Manager, &Pool)| PoolView {
        manager: manager.name.clone(),
        runs_in: det_rm::runs_in(manager.kind),
        metadata: manager.metadata.clone(),
        default_compute: configured.name == default_compute,
        default_aux: Some(&configured.name) == default_aux.as_ref(),
        configured: configured.clone(),
    };
    let managers = sources.managers.list();
    let configured: Vec<(&Manager, &Pool)> = managers
        .iter()
        .flat_map(|manager| manager.pools.iter().map(move |pool| (manager, pool)))
        .collect();
    let (configured, pagination) = paging::slice(configured, query.offset, query.limit);
    let (agents, containers) = {
        let mut conn = sources.store.read().await?;
        (
            places::list(&mut conn.conn()).await?,
            allocations::live_containers(&mut conn.conn()).await?,
        )
    };
    let contents = PoolContents {
        pools: configured.into_iter().map(view).collect(),
        agents,
        containers,
        queue: sources.queue.list(None).await?,
    };
    Ok((contents, pagination))
}
