//! Changes of a job's place in the queue or its share of slots; effective at once, on waiting and running work.

use det_lifecycle::allocation::AllocationEvent;
use det_lifecycle::experiment::ExperimentState;
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::{WriteTx, allocations, experiments, trials};
use serde_json::{Value, json};

use crate::app::Master;
use crate::app::lifecycle::{Cause, experiment_state};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// A change of a job's place or share.
#[derive(Debug, Clone, PartialEq)]
pub enum JobChange {
    /// 1 to 99, lower first.
    Priority(i64),
    /// Above 0.
    Weight(f64),
    /// Another pool.
    ResourcePool(String),
    /// Most slots in use at once; `None` = no cap.
    MaxSlots(Option<i64>),
}

impl Master {
    /// Changes a job's place or share; effective at once.
    pub async fn update_job(
        &self,
        actor: &Actor,
        job_id: &str,
        change: JobChange,
    ) -> AppResult<()> {
        let (master, job_id, actor) = (self.clone(), job_id.to_owned(), actor.name());
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let row = experiments::find_by_job(&mut tx.conn(), &job_id)
                        .await?
                        .filter(|r| experiment_state(r).is_ok_and(ExperimentState::is_live))
                        .ok_or_else(|| AppError::not_found("job", &job_id))?;
                    master.change_job_in(tx, &row, change, &actor).await
                })
            })
            .await
    }

    pub(crate) async fn change_job_in(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        change: JobChange,
        actor: &str,
    ) -> AppResult<()> {
        let mut job = experiments::job(&mut tx.conn(), &row.job_id)
            .await?
            .ok_or_else(|| AppError::not_found("job", &row.job_id))?;
        let current = experiments::find(&mut tx.conn(), row.id)
            .await?
            .map_or_else(|| row.config.clone(), |r| r.config);
        let mut config: Value = serde_json::from_str(&current).map_err(AppError::internal)?;
        match &change {
            JobChange::Priority(priority) => {
                if !(1..=99).contains(priority) {
                    return Err(AppError::invalid(format!(
                        "a priority must be 1 to 99 (lower goes first), found {priority}"
                    )));
                }
                if job.priority != *priority {
                    job.priority = *priority;
                    job.position = None;
                }
                config["resources"]["priority"] = json!(priority);
            }
            JobChange::Weight(weight) => {
                if !weight.is_finite() || *weight <= 0.0 {
                    return Err(AppError::invalid(format!(
                        "a weight must be above 0, found {weight}"
                    )));
                }
                job.weight = *weight;
                config["resources"]["weight"] = json!(weight);
            }
            JobChange::MaxSlots(slots) => {
                if let Some(slots) = slots {
                    let per_trial = config["resources"]["slots_per_trial"].as_i64().unwrap_or(0);
                    if *slots < per_trial || *slots > i64::from(u32::MAX) {
                        return Err(AppError::invalid(format!(
                            "max_slots must be at least slots_per_trial ({per_trial}), found {slots}"
                        )));
                    }
                }
                job.max_slots = *slots;
                config["resources"]["max_slots"] = json!(slots);
            }
            JobChange::ResourcePool(pool) => {
                if !self.pool_names().contains(pool) {
                    return Err(AppError::invalid(format!(
                        "resource pool \"{pool}\" does not exist"
                    ))
                    .hint(format!("choose one of: {}", self.pool_names().join(", "))));
                }
                if job.resource_pool == *pool {
                    return Err(AppError::invalid(format!(
                        "the job is in resource pool \"{pool}\" already"
                    )));
                }
                job.resource_pool.clone_from(pool);
                job.position = None;
                config["resources"]["resource_pool"] = json!(pool);
            }
        }
        experiments::update_job(&mut tx.conn(), &job).await?;
        experiments::set_config(&mut tx.conn(), row.id, &config.to_string()).await?;
        if matches!(change, JobChange::ResourcePool(_)) {
            self.move_trials(
                tx,
                row,
                &Cause {
                    actor: actor.to_owned(),
                    reason: Some("its job moves to another resource pool".into()),
                },
            )
            .await?;
        }
        self.record(
            tx,
            NewEvent {
                actor,
                subject_kind: "job",
                subject_id: job.id.clone(),
                kind: "changed",
                detail: Some(json!({"priority": job.priority, "weight": job.weight, "maxSlots": job.max_slots, "resourcePool": job.resource_pool}).to_string()),
                ..Default::default()
            },
        )
        .await?;
        self.wake_scheduler(tx);
        Ok(())
    }

    /// Running trials save, exit and ask again in the pool that the job is in now; waiting ones ask again at once.
    async fn move_trials(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        cause: &Cause,
    ) -> AppResult<()> {
        for trial in trials::live_of_experiment(&mut tx.conn(), row.id).await? {
            if let Some(live) = allocations::live_of_task(&mut tx.conn(), &trial.task_id).await? {
                self.allocation_event(tx, &live.id, AllocationEvent::Preempt, cause)
                    .await?;
            }
        }
        Ok(())
    }
}
