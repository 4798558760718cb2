//! What an actor may do to things that belong to somebody.
//!
//! Everybody who is known may read everything; this cluster has no walls inside. Beyond that:
//!
//! - *Reports* (metrics, progress, log lines, checkpoints, meetings of containers) come from the task they are about.
//!   Of trials that run outside the cluster they come from the owner; an administrator may help out.
//! - *Steering* (pause, activate, cancel, kill, continue as it is, archive, texts, priority, places in the queue) is open
//!   to all people, who are named in the events that it leaves. A task steers only what belongs to its owner: a pipeline
//!   may drive its own experiments, code from elsewhere may not touch those of others.
//! - *Redirecting* changes what runs in the owner's name, with whose identity, where, or which of the owner's files are
//!   kept: continuing with an override, moves to projects and pools, checkpoint policy, how long logs are kept. It is for
//!   the owner, the owner's tasks and administrators: [`Master::require_owner`]. Others fork.
//! - *Deleting* cannot be undone. It takes a person: the owner, or an administrator.
//! - *Templates* are used by everybody, and changed, renamed and deleted by their owners and administrators in person.
//! - *Workspaces and projects* are added by everybody, and changed, put away and deleted by their owners and
//!   administrators, in person: `Master::require_own`. Limits of slots and Unix identities are for administrators.
//! - *The cluster itself* (agents, users, the master's configuration and log) is for administrators, and never for
//!   their tasks: [`Actor::require_admin`].

use std::collections::BTreeSet;

use det_store::checkpoints::CheckpointRow;
use det_store::{allocations, experiments, trials};

use crate::app::Master;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// What a report is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reported<'a> {
    /// A trial.
    Trial(i64),
    /// A task.
    Task(&'a str),
    /// An allocation.
    Allocation(&'a str),
}

impl Master {
    /// Only the task itself, its owner and administrators report. Errs with "not found" for what is not there, as far
    /// as people ask.
    pub(crate) async fn require_reporter(
        &self,
        actor: &Actor,
        about: Reported<'_>,
    ) -> AppResult<()> {
        match (actor, about) {
            (Actor::Task(_), Reported::Trial(id)) => actor.require_trial(id),
            (Actor::Task(_), Reported::Task(id)) => actor.require_task(id),
            (Actor::Task(_), Reported::Allocation(id)) => actor.require_allocation(id),
            (Actor::User(user), _) if user.admin => Ok(()),
            (Actor::User(user), _) => {
                let (what, owner) = self.owner_of(about).await?;
                if owner == user.id {
                    Ok(())
                } else {
                    Err(self.not_yours(actor, &format!("act for {what}"), owner))
                }
            }
        }
    }

    /// Checkpoints are changed and deleted by those who may report them.
    pub(crate) async fn require_reporter_of_checkpoints(
        &self,
        actor: &Actor,
        rows: &[CheckpointRow],
    ) -> AppResult<()> {
        // Thousands of checkpoints come of a few trials.
        let sources: BTreeSet<(Option<i64>, &str)> = rows
            .iter()
            .map(|row| (row.trial_id, row.task_id.as_str()))
            .collect();
        for (trial, task) in sources {
            let about = trial.map_or(Reported::Task(task), Reported::Trial);
            self.require_reporter(actor, about).await?;
        }
        Ok(())
    }

    async fn owner_of(&self, about: Reported<'_>) -> AppResult<(String, i64)> {
        let mut conn = self.store.read().await?;
        let task = match about {
            Reported::Trial(id) => {
                let trial = trials::find(&mut conn.conn(), id)
                    .await?
                    .ok_or_else(|| AppError::not_found("trial", id))?;
                let experiment = experiments::find(&mut conn.conn(), trial.experiment_id)
                    .await?
                    .ok_or_else(|| AppError::not_found("experiment", trial.experiment_id))?;
                return Ok((format!("trial {id}"), experiment.owner_id));
            }
            Reported::Task(id) => id.to_owned(),
            Reported::Allocation(id) => {
                allocations::find(&mut conn.conn(), id)
                    .await?
                    .ok_or_else(|| AppError::not_found("allocation", id.escape_debug()))?
                    .task_id
            }
        };
        let row = allocations::find_task(&mut conn.conn(), &task)
            .await?
            .ok_or_else(|| AppError::not_found("task", task.escape_debug()))?;
        Ok((format!("task \"{task}\""), row.owner_id))
    }

    /// People steer every experiment, a task only those of its owner.
    pub(crate) async fn require_steering(
        &self,
        actor: &Actor,
        experiment_id: i64,
    ) -> AppResult<()> {
        let Actor::Task(task) = actor else {
            return Ok(());
        };
        let owner = self.experiment_owner(experiment_id).await?;
        if owner == task.owner.id {
            return Ok(());
        }
        Err(AppError::new(
            ErrorKind::Forbidden,
            format!(
                "task \"{}\" may not change experiment {experiment_id}: it belongs to {}, and a task acts only on what \
                 belongs to its own owner",
                task.task_id,
                self.name_of(owner)
            ),
        ))
    }

    /// A trial's experiment decides who steers it.
    pub(crate) async fn require_steering_of_trial(
        &self,
        actor: &Actor,
        trial_id: i64,
    ) -> AppResult<()> {
        if matches!(actor, Actor::User(_)) {
            return Ok(());
        }
        let trial = {
            let mut conn = self.store.read().await?;
            trials::find(&mut conn.conn(), trial_id).await?
        };
        let trial = trial.ok_or_else(|| AppError::not_found("trial", trial_id))?;
        self.require_steering(actor, trial.experiment_id).await
    }

    /// A job's experiment decides who steers it; a job that is not there is left to the use case.
    pub(crate) async fn require_steering_of_job(
        &self,
        actor: &Actor,
        job_id: &str,
    ) -> AppResult<()> {
        if matches!(actor, Actor::User(_)) {
            return Ok(());
        }
        let row = {
            let mut conn = self.store.read().await?;
            experiments::find_by_job(&mut conn.conn(), job_id).await?
        };
        match row {
            Some(row) => self.require_steering(actor, row.id).await,
            None => Ok(()),
        }
    }

    /// What changes the work that runs in an owner's name, its place or its files is for the owner, the owner's tasks and
    /// administrators in person. `to_do` completes "may not …".
    pub(crate) async fn require_owner(
        &self,
        actor: &Actor,
        experiment_id: i64,
        to_do: &str,
    ) -> AppResult<()> {
        match actor {
            Actor::Task(_) => self.require_steering(actor, experiment_id).await,
            Actor::User(user) if user.admin => Ok(()),
            Actor::User(user) => {
                let owner = self.experiment_owner(experiment_id).await?;
                if owner == user.id {
                    return Ok(());
                }
                let name = self.name_of(owner);
                Err(self.not_yours(actor, to_do, owner).hint(format!(
                    "ask {name} or an administrator to do it, or create an experiment of your own from it: \
                     `det experiment create` with its configuration and files"
                )))
            }
        }
    }

    /// [`Master::require_owner`] of a trial's experiment.
    pub(crate) async fn require_owner_of_trial(
        &self,
        actor: &Actor,
        trial_id: i64,
        to_do: &str,
    ) -> AppResult<()> {
        let trial = {
            let mut conn = self.store.read().await?;
            trials::find(&mut conn.conn(), trial_id).await?
        };
        let trial = trial.ok_or_else(|| AppError::not_found("trial", trial_id))?;
        self.require_owner(actor, trial.experiment_id, to_do).await
    }

    /// [`Master::require_owner`] of a job's experiment; a job that does not exist is left to the use case.
    pub(crate) async fn require_owner_of_job(
        &self,
        actor: &Actor,
        job_id: &str,
        to_do: &str,
    ) -> AppResult<()> {
        let row = {
            let mut conn = self.store.read().await?;
            experiments::find_by_job(&mut conn.conn(), job_id).await?
        };
        match row {
            Some(row) => self.require_owner(actor, row.id, to_do).await,
            None => Ok(()),
        }
    }

    /// What cannot be undone takes the owner or an administrator, in person. `what` completes "may not delete …".
    pub(crate) async fn require_deletion(
        &self,
        actor: &Actor,
        experiment_id: i64,
        what: &str,
    ) -> AppResult<()> {
        let user = actor.require_person(&format!("delete {what}"))?;
        if user.admin {
            return Ok(());
        }
        let owner = self.experiment_owner(experiment_id).await?;
        if owner == user.id {
            Ok(())
        } else {
            Err(self.not_yours(actor, &format!("delete {what}"), owner))
        }
    }

    async fn experiment_owner(&self, id: i64) -> AppResult<i64> {
        let mut conn = self.store.read().await?;
        let row = experiments::find(&mut conn.conn(), id).await?;
        row.map(|row| row.owner_id)
            .ok_or_else(|| AppError::not_found("experiment", id))
    }

    pub(crate) fn name_of(&self, user_id: i64) -> String {
        self.auth.user(user_id).map_or_else(
            || format!("user {user_id}"),
            |user| format!("user \"{}\"", user.username),
        )
    }

    pub(crate) fn not_yours(&self, actor: &Actor, to_do: &str, owner: i64) -> AppError {
        let owner = self.name_of(owner);
        AppError::new(
            ErrorKind::Forbidden,
            format!(
                "user \"{}\" may not {to_do}: it belongs to {owner}",
                actor.user().username
            ),
        )
        .hint(format!("ask {owner} or an administrator to do it"))
    }
}

/// What even administrators cannot do: they get the reason, others that they may not.
pub(crate) fn refuse_to_all(actor: &Actor, to_do: &str, reason: AppError) -> AppError {
    if matches!(actor, Actor::User(user) if user.admin) {
        return reason;
    }
    AppError::new(
        ErrorKind::Forbidden,
        format!(
            "user \"{}\" may not {to_do}: {}",
            actor.user().username,
            reason.message
        ),
    )
}
