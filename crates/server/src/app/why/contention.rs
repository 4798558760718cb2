//! What keeps a job from its slots: the jobs that are served before it, and what holds slots.

use det_ids::PlaceId;
use det_scheduler::{Policy, WaitKind};
use det_store::allocations::AllocationRow;

use super::JobExplanation;
use crate::app::jobs::QueuedJob;

/// Jobs, tasks, and holders of slots that an explanation names at most.
const MOST: usize = 100;

/// An attempt that was placed, and the job that it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// The job's entry in the queue.
    pub job: &'a QueuedJob,
    /// The attempt, with or without slots.
    pub attempt: &'a AllocationRow,
}

impl JobExplanation {
    /// Its attempts that wait, as many as are named.
    pub fn waiting(&self) -> impl Iterator<Item = &AllocationRow> {
        self.entry.iter().flat_map(QueuedJob::waiting).take(MOST)
    }

    /// Its attempts that were placed, as many as are named.
    pub fn running(&self) -> impl Iterator<Item = Holder<'_>> {
        self.entry.iter().flat_map(holders).take(MOST)
    }

    /// The jobs that are in its way: where priorities decide, those before it, else all that it shares the pool with. Those
    /// that ask for slots and those that ask for none are in no way of each other. A job that asks for nothing has none.
    pub fn ahead(&self) -> Ahead<'_> {
        let Some(entry) = &self.entry else {
            return Ahead::default();
        };
        let place = self.queue.iter().position(|it| it.job.id == self.job_id);
        let end = match self.policy {
            Policy::Priority { .. } => place,
            Policy::FairShare | Policy::RoundRobin => None,
        };
        let before = self.queue.iter().take(end.unwrap_or(self.queue.len()));
        let asks_for_slots = entry.allocations.iter().any(|row| row.slots > 0);
        let is_concerned = |other: &&QueuedJob| {
            asks_for_slots == (other.requested_slots() > 0 || other.allocated_slots > 0)
        };
        let jobs: Vec<&QueuedJob> = before
            .filter(|other| other.job.id != self.job_id)
            .filter(is_concerned)
            .collect();
        let count = jobs.len();
        Ahead {
            nearest: jobs.into_iter().skip(count.saturating_sub(MOST)).collect(),
            count,
        }
    }

    /// The largest of other jobs' attempts that hold slots of its pool. Where nothing waits, others are in no job's way.
    pub fn held_by(&self) -> Vec<Holder<'_>> {
        if self.waiting().next().is_none() {
            return Vec::new();
        }
        let others = self.queue.iter();
        largest(others.filter(|other| other.job.id != self.job_id))
    }

    /// The largest of its workspace's attempts that hold slots of other pools, if it waits because the workspace is at its
    /// limit.
    pub fn workspace_held_elsewhere(&self) -> Vec<Holder<'_>> {
        let is_at_limit = |row: &AllocationRow| {
            let reason = row.wait_reason.as_ref();
            reason.is_some_and(|reason| reason.kind == WaitKind::OverWorkspaceLimit)
        };
        if !self.waiting().any(is_at_limit) {
            return Vec::new();
        }
        largest(self.workspace_held_in_other_pools.iter())
    }

    /// Its attempts that hold something on a place, as many as are named.
    pub fn held_on(&self, place: &PlaceId) -> impl Iterator<Item = &AllocationRow> {
        let own = self.entry.iter().flat_map(|entry| &entry.allocations);
        let has = move |row: &&AllocationRow| {
            let places = self.placements.get(&row.id);
            places.is_some_and(|places| places.iter().any(|(id, _)| id == place))
        };
        own.filter(has).take(MOST)
    }
}

/// The jobs that are in the way of one.
#[derive(Debug, Clone, Default)]
pub struct Ahead<'a> {
    /// The last of them, in the order in which they are served.
    pub nearest: Vec<&'a QueuedJob>,
    /// How many jobs are in the way, those included that `nearest` leaves out.
    pub count: usize,
}

/// The attempts of a job that were placed.
fn holders(job: &QueuedJob) -> impl Iterator<Item = Holder<'_>> {
    let placed = job.allocations.iter().filter(|row| row.placed_at.is_some());
    placed.map(move |attempt| Holder { job, attempt })
}

/// The attempts of these jobs that hold most slots, by size.
fn largest<'a>(jobs: impl Iterator<Item = &'a QueuedJob>) -> Vec<Holder<'a>> {
    let mut found: Vec<Holder<'_>> = jobs
        .flat_map(holders)
        .filter(|holder| holder.attempt.slots > 0)
        .collect();
    found.sort_by(|a, b| {
        let (a, b) = (a.attempt, b.attempt);
        (b.slots, &a.id).cmp(&(a.slots, &b.id))
    });
    found.truncate(MOST);
    found
}
