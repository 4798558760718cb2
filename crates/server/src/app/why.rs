//! Why a job runs or waits: from the rows and from the pool as scheduling sees it.
//!
//! [`Explanations`] loads what explains a job. What follows from that is decided here as well: where the job is at
//! ([`JobSituation`]), and what is in its way (`why/contention.rs`). Views only put it into words.

mod contention;
mod situation;

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, JobId, Micros, PlaceId, PriorityOrder, RunId, SlotId, quantity};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::Subject;
use det_lifecycle::state_name::StateName;
use det_lifecycle::task::{TaskEnd, TaskState};
use det_scheduler::{Estimate, PlaceState, Policy, PoolSnapshot, Queue, SlotState, estimate};
use det_store::experiments::SearcherKind;
use det_store::places::PlaceRow;
use det_store::trials::Sort;
use det_store::{allocations, events, experiments, places, task_documents, trials};
use serde::Deserialize;

use crate::app::context::Context;
use crate::app::failures;
use crate::app::jobs::{JobQueue, JobSubject, QueuedJob};
use crate::app::managers::Managers;
use crate::app::offload;
use crate::app::pools::Pools;
use crate::app::snapshots::Snapshots;
use crate::error::{AppError, AppResult};

pub use contention::{Ahead, Holder};
pub use situation::{InQueue, JobSituation};

/// Waiting tasks of a job whose start is estimated at most.
const MOST_ESTIMATES: usize = 8;
/// Faults of places and slots that are named at most.
const MOST_FAULTS: usize = 100;
/// Places that are away that are named at most.
const MOST_AWAY: usize = 100;
/// Places that were given up that are looked at, the last ones.
const MOST_LOST: i64 = 100;
/// How long before a task was requested a place may have been given up to be named, microseconds: an hour.
const LOST_BEFORE: i64 = 3_600_000_000;

/// Everything that explains a job.
#[derive(Debug, Clone)]
pub struct JobExplanation {
    /// Id of the job that is explained.
    pub job_id: JobId,
    /// What it is the entry of.
    pub subject: JobSubject,
    /// Its resource pool; of several the one in which it waits.
    pub pool: String,
    /// Its entry in the queue, with what waits and what runs; `None` = it asks for nothing at present.
    pub entry: Option<QueuedJob>,
    /// All jobs of its pool, in the order in which they are served.
    pub queue: Vec<QueuedJob>,
    /// The jobs of its workspace in other pools.
    pub workspace_held_in_other_pools: Vec<QueuedJob>,
    /// What failed in it, and of what, if it has ended in an error and the record contains it.
    pub failure: Option<JobFailure>,
    /// How its pool decides, as users read it.
    pub scheduling: String,
    /// The rule by which it does.
    pub policy: Policy,
    /// Which of two priorities is served first there.
    pub priority_order: PriorityOrder,
    /// The prospects of its waiting tasks in each other pool that they may go to, as sentences.
    pub other_pools: BTreeMap<AllocationId, Vec<String>>,
    /// Places and slots of its pool.
    pub capacity: PoolCapacity,
    /// Places of its pool, and slots of them, that faults keep out of service, and what is wrong with each.
    pub faults: Vec<(PlaceId, Option<SlotId>, String)>,
    /// The places of its pool that are away.
    pub away: Vec<AwayPlace>,
    /// Places of its pool that were given up lately, newest first, if it waits.
    pub lost: Vec<LostPlace>,
    /// How long places of its pool are waited for, microseconds.
    pub patience: i64,
    /// How the attempt before each of its waiting ones ended, and when, where that is known.
    pub last_ends: BTreeMap<AllocationId, (String, Option<i64>)>,
    /// When each of its waiting tasks may start.
    pub estimates: BTreeMap<AllocationId, Estimate>,
    /// Places and slots of each running allocation of the pool.
    pub placements: BTreeMap<AllocationId, Vec<(PlaceId, i64)>>,
}

/// What failed in a job that has ended in an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// What failed, and of what, a sentence.
    pub sentence: String,
    /// The last lines of the code that failed; empty = none are known.
    pub last_lines: Vec<String>,
}

/// A place that is away and waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwayPlace {
    /// Id of the place.
    pub id: PlaceId,
    /// Since when it is away, microseconds.
    pub since: i64,
    /// Until when it is waited for, microseconds.
    pub until: i64,
}

/// A place that was given up and is not back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPlace {
    /// Id of the place.
    pub id: PlaceId,
    /// How many slots it had.
    pub slots: i64,
    /// When it was given up, microseconds.
    pub at: i64,
    /// Why it was given up, a sentence for users.
    pub reason: String,
}

/// What the record has of a place that was given up; older masters recorded none of it.
#[derive(Deserialize)]
struct LostDetail {
    resource_pool: String,
    slots: i64,
}

/// How many places and slots a pool has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCapacity {
    /// Number of places that take new work.
    pub places: i64,
    /// Number of places that are draining, disabled or away.
    pub out_of_service: i64,
    /// Slots of the places that take work, without those out of service.
    pub slots: i64,
    /// Slots of these that are free.
    pub free: i64,
}

/// Microseconds that work will still take which has taken `elapsed` for a part of itself, from 0 to 1.
fn time_left(elapsed: i64, progress: f64) -> Option<i64> {
    if !(progress > 0.0 && progress <= 1.0) {
        return None;
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "an estimate; too large becomes the largest"
    )]
    let left = (elapsed.max(0) as f64 * (1.0 - progress) / progress) as i64;
    Some(left)
}

impl PoolCapacity {
    fn of(pool: &PoolSnapshot) -> Self {
        let mut capacity = Self::default();
        for place in &pool.places {
            if place.state != PlaceState::Enabled {
                capacity.out_of_service += 1;
                continue;
            }
            capacity.places += 1;
            for slot in &place.slots {
                match slot.state {
                    SlotState::Free => {
                        capacity.slots += 1;
                        capacity.free += 1;
                    }
                    SlotState::Held(_) => capacity.slots += 1,
                    SlotState::Draining(_) | SlotState::Disabled(_) | SlotState::Foreign => {}
                }
            }
        }
        capacity
    }
}

/// Explains why jobs run or wait. Cheap to clone.
#[derive(Clone)]
pub struct Explanations {
    context: Context,
    managers: Managers,
    pools: Pools,
    snapshots: Snapshots,
    queue: JobQueue,
}

impl Explanations {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        (managers, pools): (Managers, Pools),
        snapshots: Snapshots,
        queue: JobQueue,
    ) -> Self {
        Self {
            context,
            managers,
            pools,
            snapshots,
            queue,
        }
    }

    /// The job of this id, or the one of the task or of the attempt that has it.
    async fn job_of(&self, id: &JobId) -> AppResult<JobId> {
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        if experiments::job(conn, id).await?.is_some() {
            return Ok(id.clone());
        }
        if let Some(task) = allocations::find_task(conn, &id.to_string().into()).await? {
            return Ok(task.job_id);
        }
        let attempt = allocations::find(conn, &id.to_string().into()).await?;
        // What has no job is refused by that name.
        Ok(attempt.map_or_else(|| id.clone(), |attempt| attempt.job_id))
    }

    /// The explanation of an experiment's job that has not been deleted, or of a task's job. The id may be that of a task of
    /// the job, or of an attempt of one.
    pub async fn explain(&self, id: &JobId) -> AppResult<JobExplanation> {
        let job_id = &self.job_of(id).await?;
        let experiment = {
            let mut conn = self.context.store.read().await?;
            experiments::find_by_job(&mut conn.conn(), job_id).await?
        };
        let all = self.queue.list(None).await?;
        let entry = all
            .iter()
            .filter(|entry| entry.job.id == *job_id)
            // Of several pools the one in which it waits is what users ask about.
            .max_by_key(|entry| entry.allocations.iter().any(|a| a.placed_at.is_none()))
            .cloned();
        let (subject, pool) = match (experiment, &entry) {
            (Some(row), None) => {
                let pool = row.resource_pool.clone();
                (JobSubject::Experiment(Box::new(row.into())), pool)
            }
            (Some(row), Some(entry)) => (
                JobSubject::Experiment(Box::new(row.into())),
                entry.job.resource_pool.clone(),
            ),
            (None, Some(entry)) => (entry.subject.clone(), entry.job.resource_pool.clone()),
            (None, None) => self.task_at_rest(job_id).await?,
        };
        let (snapshot, queue) = self.snapshots.with_queue(&pool).await?;
        let placements = placements(&snapshot);
        let capacity = PoolCapacity::of(&snapshot);
        let failure = self.failure(&subject).await?;
        let estimates = match &entry {
            Some(entry) => {
                self.estimates(entry, &all, &pool, (snapshot, queue))
                    .await?
            }
            None => BTreeMap::new(),
        };
        let other_pools = match &entry {
            Some(entry) => self.other_pools(entry).await?,
            None => BTreeMap::new(),
        };
        let last_ends = self.last_ends(entry.as_ref()).await?;
        let workspace = entry.as_ref().map(|entry| entry.job.workspace_id);
        let rows = self.places_of(&pool).await?;
        let patience = self.pools.reconnect_patience_micros(&pool);
        let lost = self.lost(entry.as_ref(), &pool).await?;
        let (here, in_other_pools): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|entry| entry.job.resource_pool == pool);
        Ok(JobExplanation {
            estimates,
            other_pools,
            policy: self.pools.settings(&pool).policy,
            priority_order: self.pools.priority_order(&pool),
            queue: here,
            workspace_held_in_other_pools: in_other_pools
                .into_iter()
                .filter(|entry| Some(entry.job.workspace_id) == workspace)
                .collect(),
            scheduling: self.scheduling(&pool),
            faults: faults(&rows),
            away: away(&rows, patience),
            lost,
            patience,
            last_ends,
            failure,
            capacity,
            placements,
            job_id: job_id.clone(),
            subject,
            entry,
            pool,
        })
    }

    /// How a pool decides, and what is wrong with its manager, for users.
    fn scheduling(&self, pool: &str) -> String {
        let scheduler = self.pools.scheduling(pool);
        match self.managers.trouble_of(pool) {
            Some(trouble) => format!("{scheduler}; {trouble}"),
            None => scheduler,
        }
    }

    /// The places of a pool, as their rows have them.
    async fn places_of(&self, pool: &str) -> AppResult<Vec<PlaceRow>> {
        let mut conn = self.context.store.read().await?;
        let rows = places::list(&mut conn.conn()).await?.into_iter();
        Ok(rows.filter(|row| row.resource_pool == pool).collect())
    }

    /// The places of a pool that were given up since shortly before the first waiting task of a job was requested, and that
    /// are not back.
    async fn lost(&self, entry: Option<&QueuedJob>, pool: &str) -> AppResult<Vec<LostPlace>> {
        let waiting = entry.into_iter().flat_map(QueuedJob::waiting);
        let Some(since) = waiting.map(|row| row.requested_at).min() else {
            return Ok(Vec::new());
        };
        let since = since.saturating_sub(LOST_BEFORE);
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let events = events::lost_places(conn, MOST_LOST).await?;
        let known: BTreeSet<PlaceId> = (places::list(conn).await?.into_iter())
            .map(|row| row.id)
            .collect();
        let mut lost: Vec<LostPlace> = Vec::new();
        for event in events.into_iter().take_while(|event| event.at >= since) {
            let detail = event.detail.as_deref().map(serde_json::from_str);
            let (Subject::Place(id), Some(Ok(detail))) = (event.subject, detail) else {
                continue;
            };
            let LostDetail {
                resource_pool,
                slots,
            } = detail;
            // One that came back and was lost again is lost once.
            let is_here = resource_pool == pool && !known.contains(&id);
            if is_here && !lost.iter().any(|other| other.id == id) {
                lost.push(LostPlace {
                    id,
                    slots,
                    at: event.at,
                    reason: event.reason.unwrap_or_default(),
                });
            }
        }
        Ok(lost)
    }

    /// How the attempt before each of the first waiting ones of a job ended.
    async fn last_ends(
        &self,
        entry: Option<&QueuedJob>,
    ) -> AppResult<BTreeMap<AllocationId, (String, Option<i64>)>> {
        let mut conn = self.context.store.read().await?;
        let mut ends = BTreeMap::new();
        let waiting = entry.into_iter().flat_map(QueuedJob::waiting);
        for row in waiting.take(MOST_ESTIMATES) {
            let task = allocations::find_task(&mut conn.conn(), &row.task_id).await?;
            let before = task.and_then(|task| u32::try_from(task.attempts - 1).ok());
            let Some(before) = before.filter(|number| *number > 0) else {
                continue;
            };
            let last = allocations::find(&mut conn.conn(), &row.task_id.allocation(before)).await?;
            if let Some((reason, at)) = last.and_then(|row| Some((row.exit_reason?, row.ended_at)))
            {
                ends.insert(row.id.clone(), (reason, at));
            }
        }
        Ok(ends)
    }

    /// What failed in an experiment that ended in an error: its first trial that did, else itself. Of a task, its last
    /// attempt.
    async fn failure(&self, subject: &JobSubject) -> AppResult<Option<JobFailure>> {
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let row = match subject {
            JobSubject::Experiment(row) if row.state == ExperimentState::Errored => row,
            JobSubject::Task { row, .. } if row.state == TaskState::Ended(TaskEnd::Failed) => {
                let failure = failures::of_task(conn, row).await?;
                return Ok(failure.map(|failure| JobFailure {
                    sentence: format!("it failed: {}", failure.reason),
                    last_lines: failure.last_lines,
                }));
            }
            JobSubject::Experiment(_) | JobSubject::Task { .. } => return Ok(None),
        };
        let errored = [StateName::Error];
        let (first, all) =
            trials::list(conn, row.id, Some(&errored), Sort::Id, false, 0, 1).await?;
        let Some(trial) = first.first() else {
            let subject = Subject::Experiment(row.id);
            let reason = failures::reason_in_record(conn, &subject).await?;
            return Ok(reason.map(|reason| JobFailure {
                sentence: format!("experiment {} failed: {reason}", row.id),
                last_lines: Vec::new(),
            }));
        };
        let more = match u64::try_from(all - 1) {
            Ok(0) | Err(_) => String::new(),
            Ok(more) => format!("; {} failed", quantity(more, "more trial")),
        };
        let failure = failures::of_trial(conn, trial).await?;
        Ok(failure.map(|failure| JobFailure {
            sentence: format!("trial {} failed: {}{more}", trial.id, failure.reason),
            last_lines: failure.last_lines,
        }))
    }

    /// The task of a job that asks for nothing, and its pool.
    async fn task_at_rest(&self, job_id: &JobId) -> AppResult<(JobSubject, String)> {
        let mut conn = self.context.store.read().await?;
        let task = allocations::task_of_job(&mut conn.conn(), job_id).await?;
        let job = experiments::job(&mut conn.conn(), job_id).await?;
        let (task, job) = task
            .zip(job)
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, job_id.as_str().escape_debug()))?;
        let document = task_documents::find(&mut conn.conn(), &task.id).await?;
        let name = document.map(|document| document.description);
        Ok((self.queue.subject(task, name), job.resource_pool))
    }

    /// The prospects of the first waiting tasks of a job in the other pools that it names.
    async fn other_pools(
        &self,
        entry: &QueuedJob,
    ) -> AppResult<BTreeMap<AllocationId, Vec<String>>> {
        let mut sentences = BTreeMap::new();
        if entry.job.fallback.is_none() {
            return Ok(sentences);
        }
        for row in entry.waiting().take(MOST_ESTIMATES) {
            let looked = self.snapshots.in_other_pools(row, &entry.job).await?;
            sentences.insert(row.id.clone(), looked);
        }
        Ok(sentences)
    }

    /// When the waiting tasks of a job may start; of the first few, because each takes some plans.
    async fn estimates(
        &self,
        entry: &QueuedJob,
        all: &[QueuedJob],
        pool: &str,
        looked: (PoolSnapshot, Queue),
    ) -> AppResult<BTreeMap<AllocationId, Estimate>> {
        let waiting: Vec<AllocationId> = entry
            .waiting()
            .take(MOST_ESTIMATES)
            .map(|row| row.id.clone())
            .collect();
        if waiting.is_empty() {
            return Ok(BTreeMap::new());
        }
        let ends = self.foreseen_ends(all, pool).await?;
        let (snapshot, queue) = looked;
        let now = Micros(det_store::now());
        offload(true, move || {
            let of = |id| (estimate(&snapshot, &queue, now, &ends, &id), id);
            let estimates = waiting.into_iter().map(of);
            estimates.map(|(estimate, id)| (id, estimate)).collect()
        })
        .await
    }

    /// The ends of running trials of experiments that start nothing afterwards, as their progress lets expect; of work that
    /// has been asked to stop the moment until which it may take.
    async fn foreseen_ends(
        &self,
        all: &[QueuedJob],
        pool: &str,
    ) -> AppResult<BTreeMap<AllocationId, Micros>> {
        let now = det_store::now();
        let mut conn = self.context.store.read().await?;
        let mut ends: BTreeMap<AllocationId, Micros> = all
            .iter()
            .flat_map(|entry| &entry.allocations)
            .filter(|row| row.resource_pool == pool && row.placed_at.is_some())
            .filter_map(|row| Some((row.id.clone(), Micros(row.preempt_deadline?))))
            .collect();
        let singles = all.iter().filter(|entry| {
            let single = match &entry.subject {
                JobSubject::Experiment(row) => row.searcher_name == SearcherKind::Single,
                JobSubject::Task { .. } => false,
            };
            single && entry.job.resource_pool == pool
        });
        for row in singles.flat_map(|entry| &entry.allocations) {
            let (Some(placed), Some(trial)) = (row.placed_at, row.trial_id) else {
                continue;
            };
            // What an earlier run has done does not show how fast this one is.
            if row.run_id != RunId::FIRST || row.preempt_deadline.is_some() {
                continue;
            }
            let Some(trial) = trials::find(&mut conn.conn(), trial).await? else {
                continue;
            };
            if let Some(left) = time_left(now - placed, trial.progress) {
                ends.insert(row.id.clone(), Micros(now.saturating_add(left)));
            }
        }
        Ok(ends)
    }
}

/// Places and slots of what runs in a pool.
fn placements(pool: &PoolSnapshot) -> BTreeMap<AllocationId, Vec<(PlaceId, i64)>> {
    let count = |slots: usize| i64::try_from(slots).unwrap_or(i64::MAX);
    let of_running = pool.running.iter().map(|running| {
        let places = running.placement.iter();
        let places = places.map(|(place, slots)| (place.clone(), count(slots.len())));
        (running.request.allocation_id.clone(), places.collect())
    });
    of_running.collect()
}

/// Those of these places, and of their slots, that faults keep out of service.
fn faults(rows: &[PlaceRow]) -> Vec<(PlaceId, Option<SlotId>, String)> {
    let mut faults = Vec::new();
    for row in rows {
        if let Some(fault) = &row.services.fault {
            faults.push((row.id.clone(), None, fault.clone()));
        }
        for slot in row.services.faults.keys() {
            if let Some(fault) = row.services.fault_of(*slot) {
                faults.push((row.id.clone(), Some(*slot), fault.to_owned()));
            }
        }
    }
    faults.truncate(MOST_FAULTS);
    faults
}

/// Those of these places that are away, by id. `patience` = how long they are waited for, microseconds.
fn away(rows: &[PlaceRow], patience: i64) -> Vec<AwayPlace> {
    // Rows date an absence by the steady clock; users read the system's.
    let step = det_store::now().saturating_sub(det_store::steady_now());
    let away = rows.iter().filter_map(|row| {
        let since = row.disconnected_at?.saturating_add(step);
        Some(AwayPlace {
            id: row.id.clone(),
            since,
            until: since.saturating_add(patience),
        })
    });
    away.take(MOST_AWAY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_progress() {
        assert_eq!(time_left(60, 0.25), Some(180));
        assert_eq!(time_left(60, 1.0), Some(0));
        for unusable in [0.0, -1.0, 1.5, f64::NAN] {
            assert_eq!(time_left(60, unusable), None);
        }
        assert_eq!(time_left(i64::MAX, 1e-300), Some(i64::MAX));
    }
}
