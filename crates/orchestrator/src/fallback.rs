//! Requests that have waited long enough in one pool go on to the next one that their job names, once they would start
//! there (`docs/contract/scheduling.md`, "Several pools").

use std::collections::{BTreeMap, BTreeSet, HashSet};

use det_ids::{AllocationId, JobId, Micros};
use det_lifecycle::fallback::Fallback;
use det_scheduler::{Job, Request};

use crate::{Core, Event};

/// A request that waits in one pool and may go to others.
#[derive(Debug, Clone)]
pub struct Seeker<'a> {
    /// The request as the planner of its pool has it: slots, constraints, job.
    pub request: Request,
    /// Name of the pool in which it waits.
    pub resource_pool: &'a str,
    /// The pools of its job in order of preference, with the wait before each further one counts.
    pub fallback: &'a Fallback,
}

/// The planners of the pools, as the choice asks them.
pub trait Prospects {
    /// The requests of a pool that start there at the next pass.
    fn starting(&mut self, pool: &str) -> HashSet<AllocationId>;

    /// The job of a request as the queue of a pool has it.
    fn job_in(&self, job: &JobId, pool: &str) -> Option<Job>;

    /// Whether a request would start in a pool if it was added there now; `None` = there is no such pool.
    fn would_start(&mut self, pool: &str, request: Request, job: Job) -> Option<bool>;
}

/// What becomes of requests that may go to several pools.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SentOn {
    /// Those that go on, each to the pool of this name.
    pub moves: Vec<(AllocationId, String)>,
    /// How long until another pool opens to one of them, microseconds.
    pub next: Option<i64>,
}

impl SentOn {
    /// One event for each request that changes its pool.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.moves.iter().map(|(id, pool)| Event::ChangesPool {
            id: id.clone(),
            resource_pool: pool.clone(),
        })
    }
}

impl Core {
    /// Sends requests that do not start where they wait on to pools in which they would start now, at most one to each
    /// pool. `seekers` = the earliest first; `most_probes` = how often [`Prospects::would_start`] is asked at most. What one
    /// request of a job is refused, others of the same size are not asked for.
    pub fn send_on<'a>(
        &self,
        seekers: impl IntoIterator<Item = Seeker<'a>>,
        prospects: &mut impl Prospects,
        most_probes: usize,
        now: Micros,
    ) -> SentOn {
        let mut sent = SentOn::default();
        let mut probes = 0;
        let mut refused: BTreeSet<(JobId, u32, &str)> = BTreeSet::new();
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        // By pool: what starts there anyway.
        let mut starting: BTreeMap<&str, HashSet<AllocationId>> = BTreeMap::new();
        for seeker in seekers {
            let Seeker {
                request,
                resource_pool,
                fallback,
            } = seeker;
            // It starts nowhere yet; its own pool has the time at which that changes.
            if request.not_before.is_some_and(|at| at > now) {
                continue;
            }
            let (open, next) = fallback.open(request.requested_at.0, now.0);
            if let Some(next) = next {
                sent.next = Some(sent.next.map_or(next, |soonest| soonest.min(next)));
            }
            let others = open.iter().map(String::as_str);
            let others: Vec<&str> = others.filter(|pool| *pool != resource_pool).collect();
            if others.is_empty() {
                continue;
            }
            let own = starting
                .entry(resource_pool)
                .or_insert_with(|| prospects.starting(resource_pool));
            if own.contains(&request.allocation_id) {
                continue;
            }
            for pool in others {
                let shape = (request.job_id.clone(), request.slots, pool);
                if taken.contains(pool) || refused.contains(&shape) || probes == most_probes {
                    continue;
                }
                let Some(job) = prospects.job_in(&request.job_id, pool) else {
                    continue;
                };
                let Some(would_start) = prospects.would_start(pool, request.clone(), job) else {
                    continue;
                };
                probes += 1;
                if would_start {
                    taken.insert(pool);
                    let id = request.allocation_id.clone();
                    sent.moves.push((id, pool.to_owned()));
                    break;
                }
                refused.insert(shape);
            }
        }
        sent
    }
}
