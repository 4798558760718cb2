//! Rights to things that have an owner: loads who owns them, where the answer depends on it, and asks the table of
//! rights (`det_authz`).

use std::collections::BTreeSet;

use det_authz::{
    Decision, Identity, Kind, MissingRight, Permission, Target, decide, depends_on_owner,
};
use det_ids::{AllocationId, ExperimentId, JobId, TaskId, TrialId, UserId};
use det_lifecycle::object::ObjectKind;
use det_store::allocations::TaskRow;
use det_store::checkpoints::CheckpointRow;
use det_store::{Store, allocations, experiments, trials};

use crate::app::existing;
use crate::auth::{Actor, Auth};
use crate::error::{AppError, AppResult};

/// What a report is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReportSubject<'a> {
    /// A trial, by its number.
    Trial(TrialId),
    /// A task, by its id.
    Task(&'a TaskId),
    /// An allocation, by its id.
    Allocation(&'a AllocationId),
}

/// What a job is the entry of.
enum Entry {
    Experiment(ExperimentId),
    Task(Box<TaskRow>),
}

/// Who may do what to what has an owner. Cheap to clone.
#[derive(Clone)]
pub struct Ownership {
    store: Store,
    auth: Auth,
}

impl Ownership {
    /// Rights to what the rows of this database name an owner of.
    pub(crate) fn new(store: Store, auth: Auth) -> Self {
        Self { store, auth }
    }

    /// Only the task itself, its owner and administrators report. Errs with "not found" for what does not exist, where
    /// its owner matters.
    pub(crate) async fn require_reporter(
        &self,
        actor: &Actor,
        about: ReportSubject<'_>,
    ) -> AppResult<()> {
        let mut target = Target::identified(match about {
            ReportSubject::Trial(id) => Identity::Trial(id),
            ReportSubject::Task(id) => Identity::Task(id),
            ReportSubject::Allocation(id) => Identity::Allocation(id),
        });
        let mut what = String::new();
        if depends_on_owner(&actor.asking(), Permission::Report, &target) {
            let (found, owner) = self.owner_of(about).await?;
            what = found;
            target = target.owned_by(owner);
        }
        self.require_of(
            actor,
            Permission::Report,
            &target,
            &format!("act for {what}"),
        )
    }

    /// Checkpoints are changed and deleted by those who may report them.
    pub(crate) async fn require_reporter_of_checkpoints(
        &self,
        actor: &Actor,
        rows: &[CheckpointRow],
    ) -> AppResult<()> {
        // Thousands of checkpoints come of a few trials.
        let sources: BTreeSet<(Option<TrialId>, &TaskId)> = rows
            .iter()
            .map(|row| (row.trial_id, &row.task_id))
            .collect();
        for (trial, task) in sources {
            let about = trial.map_or(ReportSubject::Task(task), ReportSubject::Trial);
            self.require_reporter(actor, about).await?;
        }
        Ok(())
    }

    async fn owner_of(&self, about: ReportSubject<'_>) -> AppResult<(String, UserId)> {
        let mut conn = self.store.read().await?;
        let task = match about {
            ReportSubject::Trial(id) => {
                let trial = existing::trial(&mut conn.conn(), id).await?;
                let experiment =
                    existing::experiment(&mut conn.conn(), trial.experiment_id).await?;
                return Ok((format!("trial {id}"), experiment.owner_id));
            }
            ReportSubject::Task(id) => id.clone(),
            ReportSubject::Allocation(id) => {
                allocations::find(&mut conn.conn(), id)
                    .await?
                    .ok_or_else(|| {
                        AppError::not_found(ObjectKind::Allocation, id.as_str().escape_debug())
                    })?
                    .task_id
            }
        };
        let row = existing::task(&mut conn.conn(), &task).await?;
        Ok((format!("task \"{task}\""), row.owner_id))
    }

    /// Users may steer every experiment, a task only those of its owner.
    pub(crate) async fn require_steering(
        &self,
        actor: &Actor,
        experiment_id: ExperimentId,
    ) -> AppResult<()> {
        let to_do = format!("change experiment {experiment_id}");
        self.require_of_experiment(actor, Permission::Steer, experiment_id, &to_do)
            .await
    }

    /// A trial's experiment decides who steers it.
    pub(crate) async fn require_steering_of_trial(
        &self,
        actor: &Actor,
        trial_id: TrialId,
    ) -> AppResult<()> {
        if !owner_matters(actor, Permission::Steer) {
            return Ok(());
        }
        let experiment_id = self.experiment_of_trial(trial_id).await?;
        self.require_steering(actor, experiment_id).await
    }

    /// Users steer every task, a task only those of its owner.
    pub(crate) async fn require_steering_of_task(
        &self,
        actor: &Actor,
        id: &TaskId,
    ) -> AppResult<()> {
        let row = existing::task(&mut self.store.read().await?.conn(), id).await?;
        let to_do = format!("change task \"{id}\"");
        self.require_of_task(actor, Permission::Steer, &row, &to_do)
    }

    /// The files of a launched task are for its owner, the owner's tasks and administrators.
    pub(crate) fn require_files(&self, actor: &Actor, row: &TaskRow) -> AppResult<()> {
        let to_do = format!("read the files of task \"{}\"", row.id);
        self.require_of_task(actor, Permission::UseSecrets, row, &to_do)
    }

    /// A job's experiment or task decides who steers it; a job that does not exist is left to the use case.
    pub(crate) async fn require_steering_of_job(
        &self,
        actor: &Actor,
        job_id: &JobId,
    ) -> AppResult<()> {
        if !owner_matters(actor, Permission::Steer) {
            return Ok(());
        }
        match self.entry_of_job(job_id).await? {
            Some(Entry::Experiment(id)) => self.require_steering(actor, id).await,
            Some(Entry::Task(row)) => {
                let to_do = format!("change task \"{}\"", row.id);
                self.require_of_task(actor, Permission::Steer, &row, &to_do)
            }
            None => Ok(()),
        }
    }

    /// What changes the work that runs in an owner's name, its place or its files is for the owner, the owner's tasks and
    /// administrators themselves, not their tasks. `to_do` completes "may not …".
    pub(crate) async fn require_owner(
        &self,
        actor: &Actor,
        experiment_id: ExperimentId,
        to_do: &str,
    ) -> AppResult<()> {
        // What a task asks is refused in one sentence, whatever it would change.
        let change = format!("change experiment {experiment_id}");
        let to_do = match actor {
            Actor::User(_) => to_do,
            Actor::Task(_) => &change,
        };
        self.require_of_experiment(actor, Permission::Redirect, experiment_id, to_do)
            .await
    }

    /// [`Ownership::require_owner`] of a trial's experiment.
    pub(crate) async fn require_owner_of_trial(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        to_do: &str,
    ) -> AppResult<()> {
        let experiment_id = self.experiment_of_trial(trial_id).await?;
        self.require_owner(actor, experiment_id, to_do).await
    }

    /// [`Ownership::require_owner`] of a task. `to_do` completes "may not …".
    pub(crate) async fn require_owner_of_task(
        &self,
        actor: &Actor,
        id: &TaskId,
        to_do: &str,
    ) -> AppResult<()> {
        let row = existing::task(&mut self.store.read().await?.conn(), id).await?;
        self.require_of_task(actor, Permission::Redirect, &row, to_do)
    }

    /// [`Ownership::require_owner`] of a job's experiment or task; a job that does not exist is left to the use case.
    pub(crate) async fn require_owner_of_job(
        &self,
        actor: &Actor,
        job_id: &JobId,
        to_do: &str,
    ) -> AppResult<()> {
        match self.entry_of_job(job_id).await? {
            Some(Entry::Experiment(id)) => self.require_owner(actor, id, to_do).await,
            Some(Entry::Task(row)) => {
                self.require_of_task(actor, Permission::Redirect, &row, to_do)
            }
            None => Ok(()),
        }
    }

    /// What cannot be undone takes the owner or an administrator, and no task. `what` completes "may not delete …".
    pub(crate) async fn require_deletion(
        &self,
        actor: &Actor,
        experiment_id: ExperimentId,
        what: &str,
    ) -> AppResult<()> {
        let to_do = format!("delete {what}");
        self.require_of_experiment(actor, Permission::Delete, experiment_id, &to_do)
            .await
    }

    async fn require_of_experiment(
        &self,
        actor: &Actor,
        permission: Permission,
        id: ExperimentId,
        to_do: &str,
    ) -> AppResult<()> {
        let mut target = Target::of(Kind::Experiment);
        if owner_matters(actor, permission) {
            let mut conn = self.store.read().await?;
            let row = existing::experiment(&mut conn.conn(), id).await?;
            target = target.owned_by(row.owner_id);
        }
        self.require_of(actor, permission, &target, to_do)
    }

    /// Asks the table of rights about a target, whose owner is known where it matters. `to_do` completes "may not …".
    pub(crate) fn require_of(
        &self,
        actor: &Actor,
        permission: Permission,
        target: &Target<'_>,
        to_do: &str,
    ) -> AppResult<()> {
        let Decision::Refused { missing } = decide(&actor.asking(), permission, target) else {
            return Ok(());
        };
        // What has no owner belongs to the cluster, represented by its first administrator.
        let owner = target
            .owner()
            .or_else(|| self.auth.cluster_owner().map(|user| user.id));
        let owner = self.name_of(owner.unwrap_or_default());
        let refusal = actor.refusal(missing, target, to_do, &owner);
        if permission == Permission::Redirect
            && target.kind() == Kind::Experiment
            && missing == MissingRight::Ownership
            && matches!(actor, Actor::User(_))
        {
            return Err(refusal.hint(format!(
                "ask {owner} or an administrator to do it, or create an experiment of your own from it: \
                 `det experiment create` with its configuration and files"
            )));
        }
        Err(refusal)
    }

    async fn experiment_of_trial(&self, trial_id: TrialId) -> AppResult<ExperimentId> {
        let mut conn = self.store.read().await?;
        let trial = trials::find(&mut conn.conn(), trial_id).await?;
        trial
            .map(|trial| trial.experiment_id)
            .ok_or_else(|| AppError::not_found(ObjectKind::Trial, trial_id))
    }

    fn require_of_task(
        &self,
        actor: &Actor,
        permission: Permission,
        row: &TaskRow,
        to_do: &str,
    ) -> AppResult<()> {
        let target = Target::identified(Identity::Task(&row.id)).owned_by(row.owner_id);
        self.require_of(actor, permission, &target, to_do)
    }

    async fn entry_of_job(&self, job_id: &JobId) -> AppResult<Option<Entry>> {
        let mut conn = self.store.read().await?;
        if let Some(row) = experiments::find_by_job(&mut conn.conn(), job_id).await? {
            return Ok(Some(Entry::Experiment(row.id)));
        }
        let task = allocations::task_of_job(&mut conn.conn(), job_id).await?;
        Ok(task.map(|row| Entry::Task(Box::new(row))))
    }

    pub(crate) fn name_of(&self, user_id: UserId) -> String {
        self.auth.user(user_id).map_or_else(
            || format!("user {user_id}"),
            |user| format!("user \"{}\"", user.username),
        )
    }
}

/// Whether an actor's right to an experiment depends on who owns it.
fn owner_matters(actor: &Actor, permission: Permission) -> bool {
    depends_on_owner(&actor.asking(), permission, &Target::of(Kind::Experiment))
}
