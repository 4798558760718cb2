//! Changes of a job's place in the queue or its share of slots; effective at once, on waiting and running work.

use det_config::experiment::Resources;
use det_config::policies::Workload;
use det_ids::{JobId, TaskId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::TaskEvent;
use det_orchestrator::Event;
use det_scheduler::{Policy, Side, move_job};
use det_store::allocations::TaskRow;
use det_store::events::NewEvent;
use det_store::experiments::{ExperimentRow, JobRow};
use det_store::{WriteTx, allocations, experiments, trials};
use serde_json::json;

use crate::app::config_policies::ConfigPolicies;
use crate::app::context::Context;
use crate::app::documents::require_storable;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::pools::Pools;
use crate::app::queue_entry::{JobChange, queue_entry_of};
use crate::app::searches::config_of;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// Refuses an experiment that has ended or is unmanaged: it is in no queue, and what it may use decides nothing.
pub(crate) fn require_live(row: &ExperimentRow) -> AppResult<()> {
    let state = row.state;
    if row.unmanaged {
        return Err(AppError::precondition(format!(
            "experiment {} is unmanaged: it runs outside the cluster, is in no queue, and has no resources to be changed",
            row.id
        )));
    }
    if state.is_live() {
        return Ok(());
    }
    Err(AppError::new(
        ErrorKind::NotFound,
        format!(
            "experiment {} has ended ({}): its job is in no queue any more, and its resources cannot be changed",
            row.id,
            state.stored_name()
        ),
    )
    .hint("`det job list` shows the jobs that wait or run"))
}

/// Changes of jobs in their transactions. Cheap to clone.
#[derive(Clone)]
pub struct JobChanges {
    context: Context,
    pools: Pools,
    policies: ConfigPolicies,
    orchestration: Orchestration,
}

impl JobChanges {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        pools: Pools,
        policies: ConfigPolicies,
        orchestration: Orchestration,
    ) -> Self {
        Self {
            context,
            pools,
            policies,
            orchestration,
        }
    }

    /// Changes places or shares of jobs, in order; effective at once. Where one is refused nothing changes.
    pub(crate) async fn update(
        &self,
        actor: &Actor,
        changes: Vec<(JobId, JobChange)>,
    ) -> AppResult<()> {
        let (service, actor) = (self.clone(), actor.name());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    for (job_id, change) in changes {
                        let experiment = experiments::find_by_job(&mut tx.conn(), &job_id).await?;
                        if let Some(row) = experiment {
                            require_live(&row)?;
                            service.change_in(tx, &row, change, &actor).await?;
                            continue;
                        }
                        let row = allocations::task_of_job(&mut tx.conn(), &job_id)
                            .await?
                            .ok_or_else(|| {
                                AppError::not_found(ObjectKind::Job, job_id.as_str().escape_debug())
                            })?;
                        service.change_task(tx, &row, &change, &actor).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    /// Changes the job of an experiment, and the keys of its configuration that it comes from.
    pub(crate) async fn change_in(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        change: JobChange,
        actor: &ActorName,
    ) -> AppResult<()> {
        let current = experiments::find(&mut tx.conn(), row.id).await?;
        let mut config = config_of(current.as_ref().unwrap_or(row))?;
        if let JobChange::MaxSlots(Some(slots)) = change {
            let per_trial = config.resources.slots_per_trial;
            if slots < i64::from(per_trial) || slots > i64::from(u32::MAX) {
                return Err(AppError::invalid(format!(
                    "max_slots must be slots_per_trial ({per_trial}) to {}, found {slots}",
                    u32::MAX
                )));
            }
        }
        let job = self
            .change_job(tx, &row.job_id, Workload::Experiment, &change)
            .await?;
        write_down(&mut config.resources, &change, &job);
        let config = config.to_json().to_string();
        require_storable(&config)?;
        experiments::set_config(&mut tx.conn(), row.id, &config).await?;
        if matches!(change, JobChange::ResourcePool(_)) {
            self.move_trials(tx, row, &job.resource_pool, &moved_by(actor))
                .await?;
        }
        self.record(tx, &job, actor).await
    }

    /// Changes the job of a task that works for no experiment.
    async fn change_task(
        &self,
        tx: &mut WriteTx,
        row: &TaskRow,
        change: &JobChange,
        actor: &ActorName,
    ) -> AppResult<()> {
        if row.state.is_terminal() {
            let message = format!(
                "{} has ended ({}): its job is in no queue any more, and cannot be changed",
                row.label(),
                row.state.name()
            );
            return Err(AppError::new(ErrorKind::NotFound, message)
                .hint("`det job list` shows the jobs that wait or run"));
        }
        let job = self
            .change_job(tx, &row.job_id, Workload::Tasks, change)
            .await?;
        if matches!(change, JobChange::ResourcePool(_)) {
            let (pool, cause) = (&job.resource_pool, moved_by(actor));
            self.move_tasks(tx, [row.id.clone()], pool, &cause).await?;
        }
        self.record(tx, &job, actor).await
    }

    /// Stores a job with a change that its policies and its pool allow.
    async fn change_job(
        &self,
        tx: &mut WriteTx,
        job_id: &JobId,
        workload: Workload,
        change: &JobChange,
    ) -> AppResult<JobRow> {
        let mut job = experiments::job(&mut tx.conn(), job_id)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, job_id))?;
        self.policies
            .require_allowed(&job, workload, change)
            .await?;
        match change {
            JobChange::Priority(priority) => {
                let known = u8::try_from(*priority).ok();
                let Some(priority) = known.filter(|priority| (1..=99).contains(priority)) else {
                    return Err(AppError::invalid(format!(
                        "a priority must be 1 to 99 ({}), found {priority}",
                        self.pools.priority_order(&job.resource_pool)
                    )));
                };
                if job.priority != priority {
                    job.priority = priority;
                    (job.position, job.moved) = (None, false);
                }
            }
            JobChange::Weight(weight) => {
                if !weight.is_finite() || *weight <= 0.0 {
                    return Err(AppError::invalid(format!(
                        "a weight must be above 0 and finite, found {weight}"
                    )));
                }
                job.weight = *weight;
            }
            JobChange::MaxSlots(slots) => job.max_slots = slots.map(cap).transpose()?,
            JobChange::Move(side, anchor) => {
                let before = job.priority;
                job = self.move_in_queue(tx, &job, *side, anchor).await?;
                if job.priority != before {
                    let change = JobChange::Priority(i64::from(job.priority));
                    self.policies
                        .require_allowed(&job, workload, &change)
                        .await?;
                }
            }
            JobChange::ResourcePool(pool) => {
                self.pools.require(pool)?;
                // One that names several pools stays in this one from now on.
                if job.resource_pool == *pool && job.fallback.is_none() {
                    return Err(AppError::invalid(format!(
                        "the job is in resource pool \"{pool}\" already"
                    )));
                }
                job.resource_pool.clone_from(pool);
                job.fallback = None;
                (job.position, job.moved) = (None, false);
            }
        }
        experiments::update_job(&mut tx.conn(), &job).await?;
        Ok(job)
    }

    async fn record(&self, tx: &mut WriteTx, job: &JobRow, actor: &ActorName) -> AppResult<()> {
        let now = json!({"priority": job.priority, "weight": job.weight, "maxSlots": job.max_slots,
            "position": job.position, "resourcePool": job.resource_pool});
        let event =
            NewEvent::new(actor, Subject::Job(job.id.clone()), EventKind::Changed).detail(now);
        self.context.record(tx, event).await?;
        self.context.wake(tx, Topic::Schedule);
        Ok(())
    }

    /// Gives the job as it is after a move; others whose positions had to change are stored.
    async fn move_in_queue(
        &self,
        tx: &mut WriteTx,
        job: &JobRow,
        side: Side,
        anchor: &JobId,
    ) -> AppResult<JobRow> {
        let pool = &job.resource_pool;
        let settings = self.pools.settings(pool);
        match settings.policy {
            Policy::Priority { .. } => {}
            policy @ (Policy::FairShare | Policy::RoundRobin) => {
                return Err(no_order(pool, policy));
            }
        }
        let queue: Vec<JobRow> = experiments::live_jobs(&mut tx.conn())
            .await?
            .into_iter()
            .filter(|other| other.resource_pool == *pool)
            .collect();
        let entries: Vec<_> = queue.iter().map(queue_entry_of).collect();
        if *anchor == job.id {
            let side = match side {
                Side::Ahead => "ahead of",
                Side::Behind => "behind",
            };
            return Err(AppError::invalid(format!(
                "job \"{anchor}\" cannot be moved {side} itself: name another job"
            )));
        }
        let moving = &job.id;
        let order = settings.priority_order;
        let changed = move_job(&entries, moving, anchor, side, order).map_err(|refused| {
            AppError::new(
                ErrorKind::NotFound,
                format!(
                    "job \"{moving}\" cannot be moved beside job \"{anchor}\" in resource pool \"{pool}\": {refused}"
                ),
            )
            .hint(format!("`det job list -p {pool}` shows the jobs there"))
        })?;
        let mut moved = job.clone();
        for entry in changed {
            let known = queue.iter().find(|row| row.id == entry.job_id);
            let Some(row) = known else { continue };
            let row = JobRow {
                priority: entry.priority,
                position: entry.position,
                moved: entry.moved,
                ..row.clone()
            };
            if row.id == moved.id {
                moved = row;
            } else {
                experiments::update_job(&mut tx.conn(), &row).await?;
            }
        }
        Ok(moved)
    }

    /// Running trials save, exit and ask again in the pool that the job is in now; waiting ones ask again at once.
    pub(crate) async fn move_trials(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        pool: &str,
        cause: &Cause,
    ) -> AppResult<()> {
        let trials = trials::live_of_experiment(&mut tx.conn(), row.id).await?;
        let tasks = trials.into_iter().map(|trial| trial.task_id);
        self.move_tasks(tx, tasks, pool, cause).await
    }

    /// The attempts of these tasks that wait or run in another pool end, and are followed by others in this one.
    async fn move_tasks(
        &self,
        tx: &mut WriteTx,
        tasks: impl IntoIterator<Item = TaskId>,
        pool: &str,
        cause: &Cause,
    ) -> AppResult<()> {
        let mut events = Vec::new();
        for id in tasks {
            let live = allocations::live_of_task(&mut tx.conn(), &id).await?;
            if live.is_some_and(|live| live.resource_pool != pool) {
                events.push(Event::Task {
                    id,
                    event: TaskEvent::Requeue,
                    cause: cause.clone(),
                });
            }
        }
        self.orchestration.advance(tx, events).await
    }
}

/// A cap on the slots of a job.
fn cap(slots: i64) -> AppResult<u32> {
    u32::try_from(slots).map_err(|_| {
        AppError::invalid(format!(
            "max_slots must be 0 to {}, found {slots}",
            u32::MAX
        ))
    })
}

fn moved_by(actor: &ActorName) -> Cause {
    Cause {
        actor: actor.into(),
        reason: Some("its job moves to another resource pool".into()),
    }
}

/// Writes what a job has become into the resources of its experiment's configuration.
fn write_down(resources: &mut Resources, change: &JobChange, job: &JobRow) {
    match change {
        JobChange::Priority(_) | JobChange::Move(..) => resources.priority = Some(job.priority),
        JobChange::Weight(_) => resources.weight = job.weight,
        JobChange::MaxSlots(_) => resources.max_slots = job.max_slots,
        JobChange::ResourcePool(_) => {
            resources.resource_pools.clear();
            resources.resource_pool_wait = None;
            resources.resource_pool.clone_from(&job.resource_pool);
        }
    }
}

/// Pools that share slots out have no order in which a job could have a place.
fn no_order(pool: &str, policy: Policy) -> AppError {
    let (policy, instead) = match policy {
        Policy::FairShare => (
            "fair share",
            "give the job another weight: `det job update JOB --weight X`",
        ),
        Policy::RoundRobin | Policy::Priority { .. } => (
            "round robin",
            "limit other jobs with `det experiment set max-slots ID N`",
        ),
    };
    AppError::new(
        ErrorKind::Precondition,
        format!(
            "resource pool \"{pool}\" serves jobs by {policy}: there is no order to move them in"
        ),
    )
    .hint(instead)
}
