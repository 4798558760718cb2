//! Moves a job in the queue.

use det_ids::{JobId, Micros};
use det_scheduler::{Policy, PoolSettings, QueueEntry, Side, move_job};

use crate::cluster::{Cluster, Job};

/// Moves a job next to another, as the master does.
///
/// # Errors
/// A sentence for users, if a job is not in the queue, or the policy has no order.
pub(crate) fn move_in_queue(
    cluster: &mut Cluster,
    settings: &PoolSettings,
    job: &str,
    anchor: &str,
    side: Side,
) -> Result<(), String> {
    match settings.policy {
        Policy::Priority { .. } => {}
        Policy::FairShare => {
            return Err(
                "jobs of a fair share pool have no order; change a weight instead".to_owned(),
            );
        }
        Policy::RoundRobin => {
            return Err(
                "jobs of a round robin pool have no order; change a cap instead".to_owned(),
            );
        }
    }
    let queue: Vec<QueueEntry> = cluster
        .jobs
        .iter()
        .filter(|(_, job)| job.live > 0 || !job.held.is_empty())
        .map(|(name, job)| queue_entry(name, job))
        .collect();
    let (job, anchor) = (JobId(job.to_owned()), JobId(anchor.to_owned()));
    let changed = move_job(&queue, &job, &anchor, side, settings.priority_order)
        .map_err(|refused| refused.to_string())?;
    for queue_entry in changed {
        if let Some(job) = cluster.jobs.get_mut(&queue_entry.job_id.0) {
            job.priority = queue_entry.priority;
            job.position = queue_entry.position;
            job.moved = queue_entry.moved;
        }
        cluster.changes.touch_job(&queue_entry.job_id.0);
    }
    Ok(())
}

fn queue_entry(name: &str, job: &Job) -> QueueEntry {
    QueueEntry {
        job_id: JobId(name.to_owned()),
        priority: job.priority,
        submitted_at: Micros(job.submitted_at),
        position: job.position,
        moved: job.moved,
    }
}
