//! A job's place in the queue of its pool.

use det_ids::{JobId, Micros};
use det_scheduler::{QueueEntry, Side};
use det_store::experiments::JobRow;

/// A change of a job's place or share.
#[derive(Debug, Clone, PartialEq)]
pub enum JobChange {
    /// 1 to 99; which goes first is decided by the pool's manager.
    Priority(i64),
    /// Weight in a fair-share pool, finite and above 0.
    Weight(f64),
    /// Name of the pool that it moves to.
    ResourcePool(String),
    /// Most slots in use at once; `None` = no cap.
    MaxSlots(Option<i64>),
    /// Directly ahead of or behind another job of the same pool, whose priority it takes.
    Move(Side, JobId),
}

/// The position of a job in the queue of its pool.
pub(crate) fn queue_entry_of(job: &JobRow) -> QueueEntry {
    QueueEntry {
        job_id: job.id.clone(),
        priority: job.priority,
        submitted_at: Micros(job.submitted_at),
        position: job.position,
        moved: job.moved,
    }
}
