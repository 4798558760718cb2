//! The job queue as it is now: which jobs hold or want slots, in which order they are served.

use std::collections::BTreeMap;

use det_store::allocations::{self, AllocationRow};
use det_store::experiments::{self, ExperimentRow, JobRow};

use crate::app::Master;
use crate::app::job_changes::JobChange;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// The workspace of everything, as long as there is only one: Uncategorized.
pub const DEFAULT_WORKSPACE_ID: i64 = 1;

/// A job with live allocations, waiting or placed.
#[derive(Debug, Clone)]
pub struct QueuedJob {
    /// Its place and share.
    pub job: JobRow,
    /// Its experiment.
    pub experiment: ExperimentRow,
    /// Its live allocations, in order of request; never empty.
    pub allocations: Vec<AllocationRow>,
    /// Jobs of the same pool that are served before it.
    pub ahead: i64,
}

impl QueuedJob {
    /// Whether anything of it has slots.
    pub fn is_scheduled(&self) -> bool {
        self.allocations.iter().any(|a| a.placed_at.is_some())
    }

    /// Slots that its allocations ask for, those they have included.
    pub fn requested_slots(&self) -> i64 {
        self.allocations.iter().map(|a| a.slots).sum()
    }

    /// Slots that its allocations have.
    pub fn allocated_slots(&self) -> i64 {
        self.allocations
            .iter()
            .filter(|a| a.placed_at.is_some())
            .map(|a| a.slots)
            .sum()
    }

    /// Whether all of it can be asked to make room.
    pub fn is_preemptible(&self) -> bool {
        self.allocations.iter().all(|a| a.preemptible)
    }
}

/// A change of the queue as it was asked for: exactly one of the last three must be given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueChange {
    /// The job.
    pub job_id: String,
    /// Whether a place before or behind another job was asked for.
    pub moves: bool,
    /// New priority.
    pub priority: Option<i64>,
    /// New share.
    pub weight: Option<f64>,
    /// New pool.
    pub resource_pool: Option<String>,
}

impl QueueChange {
    /// What it comes to; `index` (from 0) names it in a refusal.
    fn check(self, index: usize) -> AppResult<(String, JobChange)> {
        if self.job_id.is_empty() {
            return Err(AppError::invalid(format!(
                "field \"updates[{index}].jobId\" must name a job"
            )));
        }
        if self.moves {
            return Err(AppError::new(
                ErrorKind::Invalid,
                format!("job \"{}\" cannot be moved ahead of or behind another job: moves are not built", self.job_id),
            )
            .hint("give it another priority; lower numbers are served first"));
        }
        let change = match (self.priority, self.weight, self.resource_pool) {
            (Some(priority), None, None) => JobChange::Priority(priority),
            (None, Some(weight), None) => JobChange::Weight(weight),
            (None, None, Some(pool)) => JobChange::ResourcePool(pool),
            _ => {
                return Err(AppError::invalid(format!(
                    "field \"updates[{index}]\" must have exactly one of priority, weight and resourcePool"
                )));
            }
        };
        Ok((self.job_id, change))
    }
}

/// The order in which jobs of one pool are served: lower priority numbers first, then by place.
fn rank(job: &JobRow) -> (i64, i64, &str) {
    (
        job.priority,
        job.position.unwrap_or(job.submitted_at),
        &job.id,
    )
}

impl Master {
    /// The queue of one pool, or of all pools one after the other, each in the order in which it is served.
    pub async fn job_queue(&self, pool: Option<&str>) -> AppResult<Vec<QueuedJob>> {
        let (live, experiments, jobs) = {
            let mut conn = self.store.read().await?;
            let live = allocations::live(&mut conn.conn()).await?;
            if live.is_empty() {
                return Ok(Vec::new());
            }
            (
                live,
                experiments::live(&mut conn.conn()).await?,
                experiments::live_jobs(&mut conn.conn()).await?,
            )
        };
        let mut of_job: BTreeMap<String, Vec<AllocationRow>> = BTreeMap::new();
        for allocation in live {
            of_job
                .entry(allocation.job_id.clone())
                .or_default()
                .push(allocation);
        }
        let mut experiment_of: BTreeMap<String, ExperimentRow> = experiments
            .into_iter()
            .map(|e| (e.job_id.clone(), e))
            .collect();
        let mut queue: Vec<QueuedJob> = jobs
            .into_iter()
            .filter(|job| pool.is_none_or(|pool| job.resource_pool == pool))
            .filter_map(|job| {
                // A job without work at present, such as a paused one, is in no queue.
                let allocations = of_job.remove(&job.id)?;
                let experiment = experiment_of.remove(&job.id)?;
                Some(QueuedJob {
                    job,
                    experiment,
                    allocations,
                    ahead: 0,
                })
            })
            .collect();
        queue.sort_by(|a, b| {
            (&a.job.resource_pool, rank(&a.job)).cmp(&(&b.job.resource_pool, rank(&b.job)))
        });
        let mut before: BTreeMap<String, i64> = BTreeMap::new();
        for entry in &mut queue {
            let ahead = before.entry(entry.job.resource_pool.clone()).or_default();
            entry.ahead = *ahead;
            *ahead += 1;
        }
        Ok(queue)
    }

    /// Makes changes of the queue in order. All are checked before the first is made.
    pub async fn change_queue(&self, actor: &Actor, changes: Vec<QueueChange>) -> AppResult<()> {
        let checked: Vec<(String, JobChange)> = changes
            .into_iter()
            .enumerate()
            .map(|(index, change)| change.check(index))
            .collect::<AppResult<_>>()?;
        for (job_id, _) in &checked {
            self.require_steering_of_job(actor, job_id).await?;
        }
        for (job_id, change) in checked {
            self.update_job(actor, &job_id, change).await?;
        }
        Ok(())
    }

    /// The pool that a listing is about: the one named, else the default one for work with slots.
    pub fn pool_or_default(&self, name: &str) -> AppResult<String> {
        let pools = self.pool_names();
        if name.is_empty() {
            return self
                .default_compute_pool()
                .filter(|pool| pools.contains(pool))
                .or_else(|| pools.first().cloned())
                .ok_or_else(|| {
                    AppError::new(ErrorKind::NotFound, "this master has no resource pools")
                });
        }
        if pools.iter().any(|pool| pool == name) {
            return Ok(name.to_owned());
        }
        Err(AppError::not_found("resource pool", name)
            .hint(format!("choose one of: {}", pools.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> QueueChange {
        QueueChange {
            job_id: "j".into(),
            ..QueueChange::default()
        }
    }

    #[test]
    fn exactly_one_change_is_taken() {
        let priority = QueueChange {
            priority: Some(3),
            ..change()
        };
        assert_eq!(
            priority.clone().check(0).unwrap(),
            ("j".into(), JobChange::Priority(3))
        );
        let two = QueueChange {
            weight: Some(1.0),
            ..priority
        };
        assert!(two.check(4).unwrap_err().message.contains("updates[4]"));
        assert!(
            change()
                .check(0)
                .unwrap_err()
                .message
                .contains("exactly one")
        );
    }

    #[test]
    fn a_move_is_refused_with_what_to_do_instead() {
        let error = QueueChange {
            moves: true,
            ..change()
        }
        .check(0)
        .unwrap_err();
        assert!(
            error.message.contains("moves are not built"),
            "{}",
            error.message
        );
        assert!(error.hint.unwrap().contains("priority"));
    }

    #[test]
    fn lower_priorities_and_earlier_places_go_first() {
        let job = |id: &str, priority, position, submitted_at| JobRow {
            id: id.into(),
            kind: "experiment".into(),
            owner_id: 1,
            resource_pool: "default".into(),
            priority,
            weight: 1.0,
            max_slots: None,
            position,
            submitted_at,
        };
        let mut jobs = [
            job("late", 42, None, 30),
            job("moved", 42, Some(5), 40),
            job("early", 42, None, 10),
            job("urgent", 1, None, 50),
        ];
        jobs.sort_by(|a, b| rank(a).cmp(&rank(b)));
        let order: Vec<&str> = jobs.iter().map(|j| j.id.as_str()).collect();
        assert_eq!(order, ["urgent", "moved", "early", "late"]);
    }
}
