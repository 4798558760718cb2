//! Requests that have waited long enough in one resource pool go to the next one that their configuration names, once
//! they would start there (`docs/contract/scheduling.md`, "Several pools").
//!
//! A request keeps its place in its own pool meanwhile. The next run of its trial asks in the first pool again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use det_config::experiment::ExperimentConfig;
use det_ids::{AllocationId, JobId, Micros};
use det_lifecycle::fallback::Fallback;
use det_orchestrator::{Prospects, Seeker};
use det_scheduler::{Job, Planner, Request};
use det_store::allocations::AllocationRow;
use det_store::experiments::JobRow;

use super::Scheduling;
use super::planners::Planners;
use crate::app::decisions::CORE;
use crate::app::offload;
use crate::app::snapshots::Snapshots;
use crate::error::AppResult;
use crate::live::{self, LiveCache};

/// Plans that one pass makes at most to see whether a request would start elsewhere.
const MOST_PROBES: usize = 16;
/// How long a request waits in each pool unless its configuration has another duration.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_mins(10);

/// What became of requests that may go to several pools.
pub(super) struct FallbackMoves {
    /// Requests that go on to another pool now.
    pub(super) requests: BTreeSet<AllocationId>,
    /// How long until another pool opens to one of them.
    pub(super) next: Option<Duration>,
}

/// The planners of a pass, as the choice of a pool asks them.
struct Pass<'a> {
    cache: &'a LiveCache,
    /// Jobs whose requests may go on.
    jobs: BTreeMap<&'a JobId, &'a JobRow>,
    planners: &'a mut Planners,
    now: Micros,
}

impl Prospects for Pass<'_> {
    fn starting(&mut self, pool: &str) -> HashSet<AllocationId> {
        let planner = self.planners.of(pool);
        planner.map_or_else(HashSet::new, |planner| planner.starting(self.now))
    }

    fn job_in(&self, job: &JobId, pool: &str) -> Option<Job> {
        let row = self.jobs.get(job)?;
        Some(self.cache.job_entry(row, pool))
    }

    fn would_start(&mut self, pool: &str, request: Request, job: Job) -> Option<bool> {
        let planner = self.planners.of(pool)?;
        // Other places fit it there.
        let there = live::request_of(self.cache, &request.allocation_id, pool);
        let request = there.unwrap_or(request);
        let waits = planner.wait_reason_if_added(request, job, self.now);
        Some(waits.is_none())
    }
}

/// Sends requests that do not start where they wait on to pools in which they would start now, at most one to each pool.
pub(super) async fn send_on(
    scheduling: &Scheduling,
    cache: &LiveCache,
    planners: &mut Planners,
) -> AppResult<FallbackMoves> {
    let now = Micros(det_store::now());
    let waiting = cache.with_fallback();
    let seekers = waiting.iter().filter_map(|(row, job)| {
        Some(Seeker {
            request: live::request(cache, row),
            resource_pool: &row.resource_pool,
            fallback: job.fallback.as_ref()?,
        })
    });
    let mut pass = Pass {
        cache,
        jobs: waiting.iter().map(|(_, job)| (&job.id, *job)).collect(),
        planners,
        now,
    };
    let sent = CORE.send_on(seekers, &mut pass, MOST_PROBES, now);
    for event in sent.events() {
        scheduling.orchestration.commit(event).await?;
    }
    Ok(FallbackMoves {
        requests: sent.moves.into_iter().map(|(id, _)| id).collect(),
        next: sent
            .next
            .map(|micros| Duration::from_micros(micros.unsigned_abs())),
    })
}

impl Snapshots {
    /// Why a request would wait if it were in this pool, in words; `None` = it would be placed at once.
    async fn wait_in(
        &self,
        row: &AllocationRow,
        job: &JobRow,
        pool: &str,
    ) -> AppResult<Option<String>> {
        let look = |cache: &LiveCache| {
            let (snapshot, queue) = self.in_cache(cache, pool, &self.limits(cache));
            let request = live::request_in(cache, row, pool);
            (snapshot, queue, cache.job_entry(job, pool), request)
        };
        let (snapshot, queue, entry, request) =
            self.live.look_at_jobs(&self.context.store, look).await?;
        let reason = offload(true, move || {
            let now = Micros(det_store::now());
            Planner::of(&snapshot, &queue).wait_reason_if_added(request, entry, now)
        })
        .await?;
        let Some(reason) = reason else {
            return Ok(None);
        };
        let homes = self.homes.get();
        let explain = |cache: &LiveCache| {
            let label = |id: &AllocationId| cache.label(id);
            reason.explain(label, |id| homes.name_of(id))
        };
        Ok(Some(self.live.look(&self.context.store, explain).await?))
    }

    /// The prospects of a waiting request in each other pool that it may go to, as sentences.
    pub(crate) async fn in_other_pools(
        &self,
        row: &AllocationRow,
        job: &JobRow,
    ) -> AppResult<Vec<String>> {
        let Some(fallback) = &job.fallback else {
            return Ok(Vec::new());
        };
        let now = det_store::now();
        let (open, next) = fallback.open(row.requested_at, now);
        let mut sentences = Vec::new();
        for (number, pool) in fallback.pools.iter().enumerate() {
            if *pool == row.resource_pool {
                continue;
            }
            sentences.push(if number < open.len() {
                match self.wait_in(row, job, pool).await? {
                    Some(reason) => format!(
                        "it may go to resource pool \"{pool}\" as well, and would wait there: {reason}"
                    ),
                    None => format!("it is about to go to resource pool \"{pool}\""),
                }
            } else {
                let more = i64::try_from(number - open.len()).unwrap_or(i64::MAX);
                let wait = next
                    .unwrap_or(fallback.wait)
                    .saturating_add(fallback.wait.saturating_mul(more));
                format!(
                    "it may go to resource pool \"{pool}\" if it still waits in {} s",
                    wait.max(0) / 1_000_000 + 1
                )
            });
        }
        Ok(sentences)
    }
}

/// The other pools that requests of an experiment may go on to, as its job's row has them.
pub(crate) fn fallback_of(config: &ExperimentConfig) -> Option<Fallback> {
    let pools = &config.resources.resource_pools;
    if pools.len() < 2 {
        return None;
    }
    let wait = config
        .resources
        .resource_pool_wait
        .map_or(DEFAULT_WAIT, |seconds| {
            Duration::from_secs(u64::from(seconds))
        });
    Some(Fallback {
        pools: pools.clone(),
        wait: i64::try_from(wait.as_micros()).unwrap_or(i64::MAX).max(1),
    })
}
