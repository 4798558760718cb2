//! How long logs are kept, and deleting those that have been kept long enough.
//!
//! Each trial has a number of days of its own, or goes by the cluster's at that moment. What is deleted is decided from
//! the rows in the transaction that deletes it, a batch at a time: whatever stops a sweep half way, the next one goes on.

pub(crate) mod due;

use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_config::policies::Workload;
use det_failpoints::failpoint;
use det_ids::{ExperimentId, TaskId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::logs::retention::{self, EndedLog};
use det_store::{WriteTx, allocations, experiments, settings};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::app::config_policies::ConfigPolicies;
use crate::app::context::Context;
use crate::app::documents::require_storable;
use crate::app::existing;
use crate::app::logs::retention::due::{LogLifetime, SweepClock};
use crate::app::ownership::Ownership;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// Ended tasks that are looked at together.
const PAGE: i64 = 1000;
/// Tasks whose logs go in one transaction, at most.
const BATCH: usize = 100;
/// Stored pieces of logs that go in one transaction, at most: some ten megabytes.
const CHUNKS: usize = 100;
/// The key of configurations and policies.
const KEY: &str = "retention_policy.log_retention_days";
/// The setting that keeps the [`SweepClock`].
const COUNTED: &str = "log_sweep";

/// The days that a request asks for.
pub(crate) fn retention_days(given: Option<i64>) -> AppResult<i16> {
    let found = given.map_or_else(
        || "it is missing".to_owned(),
        |days| format!("found {days}"),
    );
    given
        .and_then(|days| i16::try_from(days).ok())
        .filter(|days| *days >= -1)
        .ok_or_else(|| {
            AppError::invalid(format!(
                "field \"numDays\" must be -1 to 32767, {found}"
            ))
            .hint("0 deletes logs with the next sweep after the end of their task, -1 keeps them for ever")
        })
}

/// What a batch of a sweep did.
struct SweepCounts {
    /// Tasks that are done with.
    tasks: usize,
    /// Log lines that were deleted.
    lines: i64,
}

/// How long logs are kept, and deleting those that have been kept long enough. Cheap to clone.
#[derive(Clone)]
pub struct LogRetention {
    context: Context,
    ownership: Ownership,
    policies: ConfigPolicies,
    /// Held by the caller that deletes old logs: two at once would only be in each other's way.
    sweeping: Arc<Mutex<()>>,
}

impl LogRetention {
    /// By the configuration in force, within these policies.
    pub(crate) fn new(context: Context, ownership: Ownership, policies: ConfigPolicies) -> Self {
        Self {
            context,
            ownership,
            policies,
            sweeping: Arc::default(),
        }
    }

    /// Sets how long the logs of all trials of an experiment are kept, of those to come too.
    pub async fn set_days_of_experiment(
        &self,
        actor: &Actor,
        id: ExperimentId,
        days: i16,
    ) -> AppResult<()> {
        // Few days delete what was logged.
        let to_do = format!("set how long the logs of experiment {id} are kept");
        self.ownership.require_owner(actor, id, &to_do).await?;
        let (service, actor, days) = (self.clone(), actor.name(), i64::from(days));
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let row = existing::experiment(&mut tx.conn(), id).await?;
                    service.require_days_unfixed(tx, &row, days).await?;
                    let mut config: Value =
                        serde_json::from_str(&row.config).map_err(AppError::internal)?;
                    config["retention_policy"] = json!({"log_retention_days": days});
                    let config = config.to_string();
                    require_storable(&config)?;
                    experiments::set_config(&mut tx.conn(), id, &config).await?;
                    allocations::set_log_retention_of_experiment(&mut tx.conn(), id, Some(days))
                        .await?;
                    let reason = format!(
                        "logs of its trials are kept {}",
                        LogLifetime::of(Some(days), None)
                    );
                    service
                        .record(tx, &actor, Subject::Experiment(id), &reason)
                        .await
                })
            })
            .await
    }

    /// Sets how long the logs of a trial are kept.
    pub async fn set_days_of_trial(&self, actor: &Actor, id: TrialId, days: i16) -> AppResult<()> {
        let to_do = format!("set how long the log of trial {id} is kept");
        self.ownership
            .require_owner_of_trial(actor, id, &to_do)
            .await?;
        let (service, actor, days) = (self.clone(), actor.name(), i64::from(days));
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let trial = existing::trial(&mut tx.conn(), id).await?;
                    let row = existing::experiment(&mut tx.conn(), trial.experiment_id).await?;
                    service.require_days_unfixed(tx, &row, days).await?;
                    for task in allocations::tasks_of_trial(&mut tx.conn(), id).await? {
                        allocations::set_log_retention(&mut tx.conn(), &task.id, Some(days))
                            .await?;
                    }
                    let reason = format!("its logs are kept {}", LogLifetime::of(Some(days), None));
                    service
                        .record(tx, &actor, Subject::Trial(id), &reason)
                        .await
                })
            })
            .await
    }

    /// Refuses days other than those that policies fix.
    async fn require_days_unfixed(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        days: i64,
    ) -> AppResult<()> {
        let job = experiments::job(&mut tx.conn(), &row.job_id)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, &row.job_id))?;
        self.policies
            .require_unfixed(job.workspace_id, Workload::Experiment, KEY, &json!(days))
            .await?;
        Ok(())
    }

    async fn record(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        subject: Subject,
        reason: &str,
    ) -> AppResult<()> {
        let event = NewEvent::new(actor, subject, EventKind::LogRetention).reason(reason);
        Ok(self.context.record(tx, event).await?)
    }

    /// By the cluster's configuration as it is now.
    pub(crate) fn kept(&self, own: Option<i64>) -> LogLifetime {
        LogLifetime::of(
            own,
            self.context.config().retention_policy.log_retention_days,
        )
    }

    /// Deletes the logs that have been kept long enough, now. Gives the number of their lines.
    pub async fn clean_up(&self, actor: &Actor) -> AppResult<i64> {
        actor.require(
            Permission::Administer,
            Kind::Task,
            "delete old logs of all tasks",
        )?;
        self.sweep(&actor.name()).await
    }

    /// Looks at all ended tasks once, and deletes the logs that are due. Gives the number of their lines.
    async fn sweep(&self, actor: &ActorName) -> AppResult<i64> {
        let _alone = self.sweeping.lock().await;
        let (mut after, mut lines) = ((i64::MIN, TaskId::from("")), 0);
        loop {
            let page = {
                let mut conn = self.context.store.read().await?;
                retention::page(&mut conn.conn(), (after.0, &after.1), PAGE).await?
            };
            let Some(last) = page.last() else { break };
            after = (last.ended_at, last.task_id.clone());
            let due: Vec<TaskId> = page
                .into_iter()
                .filter(|log| self.is_due(log))
                .map(|log| log.task_id)
                .collect();
            let mut rest = &due[..];
            while !rest.is_empty() {
                if self.context.shutdown.is_cancelled() {
                    return Err(AppError::new(
                        ErrorKind::Unavailable,
                        "the master is stopping, and not all old logs have been deleted",
                    )
                    .hint("the next sweep goes on with it"));
                }
                let batch = &rest[..rest.len().min(BATCH)];
                let swept = self.delete(actor, batch).await?;
                lines += swept.lines;
                rest = &rest[swept.tasks..];
            }
        }
        if lines > 0 {
            tracing::info!(lines, "logs that were kept long enough were deleted");
        }
        Ok(lines)
    }

    fn is_due(&self, log: &EndedLog) -> bool {
        self.kept(log.days)
            .is_over(log.ended_at, det_store::earliest_now())
    }

    /// One transaction's worth of these tasks' logs, from the first one on.
    async fn delete(&self, actor: &ActorName, tasks: &[TaskId]) -> AppResult<SweepCounts> {
        let (service, actor, tasks) = (self.clone(), actor.to_owned(), tasks.to_vec());
        let swept = self
            .context
            .write(move |tx| {
                Box::pin(async move {
                    let swept = service.delete_in(tx, &actor, tasks).await?;
                    failpoint!("server::log_retention::sweep::before_commit");
                    Ok::<_, AppError>(swept)
                })
            })
            .await?;
        failpoint!("server::log_retention::sweep::after_commit");
        Ok(swept)
    }

    async fn delete_in(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        tasks: Vec<TaskId>,
    ) -> AppResult<SweepCounts> {
        let mut chunks_left = CHUNKS;
        let mut swept = SweepCounts { tasks: 0, lines: 0 };
        for task_id in tasks {
            if chunks_left == 0 {
                break;
            }
            // The task may go on, its trial may keep its logs, or both may be gone by now.
            let log = retention::find(&mut tx.conn(), &task_id).await?;
            let Some(log) = log.filter(|log| self.is_due(log)) else {
                swept.tasks += 1;
                continue;
            };
            let gone =
                retention::delete(&mut tx.conn(), &task_id, chunks_left, det_store::now()).await?;
            swept.lines += gone.lines;
            chunks_left -= gone.chunks;
            if !gone.whole {
                break;
            }
            swept.tasks += 1;
            let reason = format!("its log was deleted: it is kept {}", self.kept(log.days));
            let event = NewEvent::new(actor, Subject::Task(task_id), EventKind::LogsDeleted)
                .reason(&*reason);
            self.context.record(tx, event).await?;
        }
        Ok(swept)
    }

    /// Sweeps if one is due by the schedule. Gives the moment of the next sweep in microseconds; `None` = only when asked.
    pub(crate) async fn sweep_if_due(&self, actor: &ActorName) -> AppResult<Option<i64>> {
        let schedule = self.context.config().retention_policy.schedule.clone();
        let stored = {
            let mut conn = self.context.store.read().await?;
            settings::find(&mut conn.conn(), COUNTED).await?
        };
        let stored: Option<SweepClock> = stored.and_then(|text| {
            let read = serde_json::from_str(&text);
            // It decides only when the next sweep is.
            let unreadable = |error: &serde_json::Error| {
                tracing::warn!(%error, "when logs were last swept cannot be read: time counts from now");
            };
            read.inspect_err(unreadable).ok()
        });
        let now = det_store::earliest_now();
        let mut counted = SweepClock::resume(stored.clone(), schedule.as_ref(), now);
        if counted.next(schedule.as_ref()).is_some_and(|at| at <= now) {
            self.sweep(actor).await?;
            counted = SweepClock::from(schedule.as_ref(), det_store::earliest_now());
        }
        // A cluster without a schedule has nothing to remember, unless it had one.
        if Some(&counted) != stored.as_ref() && (schedule.is_some() || stored.is_some()) {
            self.remember(&counted).await?;
        }
        Ok(counted.next(schedule.as_ref()))
    }

    async fn remember(&self, counted: &SweepClock) -> AppResult<()> {
        let text = serde_json::to_string(counted).map_err(AppError::internal)?;
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    settings::set(&mut tx.conn(), COUNTED, &text).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }
}
