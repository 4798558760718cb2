//! Work that experiments leave behind: the checkpoint policy after their end, and their deletion.
//!
//! Files first, rows after: whatever stops half way is found again by the rows and finished.

use std::collections::BTreeSet;
use std::time::Duration;

use det_failpoints::failpoint;
use det_ids::{CheckpointId, ClusterId, ExperimentId};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_orchestrator::Event;
use det_store::checkpoint_removals::OpenRemoval;
use det_store::checkpoints::{CheckpointRow, CheckpointState};
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::{WriteTx, checkpoint_removals, checkpoints, experiments, trials};
use det_taskspec::RemovalCause;

use crate::app::checkpoints::by_task::{RemovalOutcome, RemovalTasks};
use crate::app::checkpoints::files::CheckpointFiles;
use crate::app::checkpoints::joined::{collectable, policy_of};
use crate::app::checkpoints::patterns;
use crate::app::checkpoints::policy::to_delete;
use crate::app::checkpoints::removal::{CheckpointRemoval, Progress, WarmStarts, Why, in_use};
use crate::app::checkpoints::storage::Storage;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::metrics::journal::Journal;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::searches::config_of;
use crate::app::workspaces::HomeDeletion;
use crate::error::{AppError, AppResult, ErrorKind};

/// After a pass that the database's absence cut short, try again after this long.
const RETRY: Duration = Duration::from_secs(5);
/// Who does all this, in events.
const ACTOR: ActorName = ActorName::Master;

/// Cleans up after experiments. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CleanUp {
    context: Context,
    configs: Configs,
    orchestration: Orchestration,
    home_deletion: HomeDeletion,
    metric_journal: Journal,
    checkpoint_files: CheckpointFiles,
    checkpoint_removal: CheckpointRemoval,
    removal_tasks: RemovalTasks,
    cluster_id: ClusterId,
}

impl CleanUp {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        (orchestration, home_deletion): (Orchestration, HomeDeletion),
        metric_journal: Journal,
        checkpoint_files: CheckpointFiles,
        (checkpoint_removal, removal_tasks): (CheckpointRemoval, RemovalTasks),
        cluster_id: ClusterId,
    ) -> Self {
        Self {
            context,
            configs,
            orchestration,
            home_deletion,
            metric_journal,
            checkpoint_files,
            checkpoint_removal,
            removal_tasks,
            cluster_id,
        }
    }

    /// Takes up the removals of checkpoints that an earlier master has left. Gives when to try again, if the database's
    /// absence kept it from being done.
    pub(crate) async fn resume(&self) -> Option<Duration> {
        match self.checkpoint_removal.resume().await {
            Ok(()) => None,
            Err(error) => failed(None, &error),
        }
    }

    /// One look at everything that is left to do. One experiment's failure does not keep the others waiting. Gives when to
    /// look again without being woken: only what the database's absence kept from being done is tried again by itself.
    pub(crate) async fn pass(&self) -> Option<Duration> {
        let mut retry = None;
        let open = match self.finish_removals(&mut retry).await {
            Ok(open) => open,
            Err(error) => return failed(None, &error),
        };
        let rows = match self.to_clean_up().await {
            Ok(rows) => rows,
            Err(error) => return failed(None, &error),
        };
        // What a task deletes first is finished before anything else is done.
        for row in rows.into_iter().filter(|row| !open.contains(&row.id)) {
            if self.context.shutdown.is_cancelled() {
                break;
            }
            if let Err(error) = self.clean_up(&row).await {
                retry = retry.or(failed(Some(row.id), &error));
            }
        }
        retry
    }

    /// Finishes the removals whose tasks have ended, and returns the experiments that have others.
    async fn finish_removals(
        &self,
        retry: &mut Option<Duration>,
    ) -> AppResult<BTreeSet<ExperimentId>> {
        let open = {
            let mut conn = self.context.store.read().await?;
            checkpoint_removals::open(&mut conn.conn()).await?
        };
        let (ended, live): (Vec<_>, Vec<_>) = open
            .into_iter()
            .partition(|removal| removal.state.is_terminal());
        let mut waiting: BTreeSet<ExperimentId> =
            live.iter().map(|removal| removal.experiment_id).collect();
        for removal in ended {
            let id = removal.experiment_id;
            if let Err(error) = self.finish(removal).await {
                waiting.insert(id);
                *retry = retry.or(failed(Some(id), &error));
            }
        }
        Ok(waiting)
    }

    /// Finishes one removal: the marks go, and what was waiting for it goes on.
    async fn finish(&self, removal: OpenRemoval) -> AppResult<()> {
        self.metric_journal.flush().await?;
        let service = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let outcome = service.removal_tasks.finish(tx, &removal, &ACTOR).await?;
                    match outcome {
                        Some(outcome) => service.after_removal(tx, outcome).await,
                        None => Ok(()),
                    }
                })
            })
            .await
    }

    async fn after_removal(&self, tx: &mut WriteTx, outcome: RemovalOutcome) -> AppResult<()> {
        let RemovalOutcome {
            experiment_id: id,
            cause,
            count,
            failure,
        } = outcome;
        let recorded = match (cause, failure) {
            (RemovalCause::Deletion, failure) => {
                let left = checkpoints::of_experiment(&mut tx.conn(), id).await?;
                let left = left
                    .iter()
                    .filter(|row| row.state != CheckpointState::Deleted)
                    .count();
                let open = checkpoint_removals::open(&mut tx.conn()).await?;
                if open.iter().any(|other| other.experiment_id == id) {
                    return Ok(());
                }
                // Without checkpoints it was for the TensorBoard files alone, of which no account is kept.
                let failure = failure.filter(|_| count > 0);
                let why = failure
                    .or_else(|| (left > 0).then(|| format!("{left} of its checkpoints are left")));
                return match why {
                    Some(why) => self.deletion_failed(tx, id, &why).await,
                    None => self.delete_rows(tx, id).await,
                };
            }
            (RemovalCause::Policy, None) => RemovalRecord::policy_deleted(count),
            (RemovalCause::Policy, Some(why)) => RemovalRecord::policy_failed(&why),
            (RemovalCause::Request | RemovalCause::Resumed, None) => RemovalRecord::Nothing,
            (RemovalCause::Request | RemovalCause::Resumed, Some(why)) => RemovalRecord::Failed(
                format!("files of {count} checkpoints could not be deleted: {why}"),
            ),
        };
        if experiments::find(&mut tx.conn(), id).await?.is_none() {
            return Ok(());
        }
        self.record(tx, id, &recorded).await
    }

    /// Stores what became of checkpoints of an experiment, which is stored.
    async fn record(
        &self,
        tx: &mut WriteTx,
        id: ExperimentId,
        recorded: &RemovalRecord,
    ) -> AppResult<()> {
        let (reason, failure) = match recorded {
            RemovalRecord::Nothing => (None, None),
            RemovalRecord::Done(reason) => (Some(reason), None),
            RemovalRecord::Failed(reason) => (Some(reason), Some(&**reason)),
        };
        experiments::set_checkpoint_failure(&mut tx.conn(), id, failure).await?;
        if let Some(reason) = reason {
            let event = NewEvent::new(ACTOR, Subject::Experiment(id), EventKind::Collected)
                .reason(&**reason);
            self.context.record(tx, event).await?;
        }
        Ok(())
    }

    async fn to_clean_up(&self) -> AppResult<Vec<ExperimentRow>> {
        let mut conn = self.context.store.read().await?;
        Ok(experiments::to_clean_up(&mut conn.conn()).await?)
    }

    async fn clean_up(&self, row: &ExperimentRow) -> AppResult<()> {
        if row.state == ExperimentState::Deleting {
            self.delete(row).await
        } else {
            self.collect(row).await
        }
    }

    /// Applies the checkpoint policy of an experiment that has ended. Storage that the master cannot reach ends the matter
    /// with an event that records it; setting the policy again tries again.
    async fn collect(&self, row: &ExperimentRow) -> AppResult<()> {
        self.metric_journal.flush().await?;
        let (joined, protected) = collectable(&self.context.store, row).await?;
        let candidates: Vec<_> = joined
            .iter()
            .filter_map(|joined| joined.candidate(&row.searcher_metric))
            .collect();
        let doomed: BTreeSet<CheckpointId> = to_delete(&candidates, &protected, &policy_of(row)?)
            .into_iter()
            .collect();
        let doomed: Vec<CheckpointRow> = joined
            .into_iter()
            .map(|joined| joined.row)
            .filter(|c| doomed.contains(&c.uuid))
            .collect();
        let count = doomed.len();
        let why = Why {
            cause: RemovalCause::Policy,
            actor: ACTOR,
            reason: Some("the checkpoint policy does not keep it"),
        };
        let recorded = match self.remove(doomed, WarmStarts::Keep, &why).await {
            Ok(_) if count == 0 => RemovalRecord::Nothing,
            Ok(Progress::Done) => RemovalRecord::policy_deleted(count),
            Ok(Progress::ByTask) => RemovalRecord::Done(format!(
                "the checkpoint policy does not keep {count} checkpoints: a task deletes them"
            )),
            Err(error) if error.kind == ErrorKind::Unavailable => return Err(error),
            Err(error) => {
                tracing::warn!(experiment.id = row.id.0, %error, "the checkpoint policy could not be applied");
                RemovalRecord::policy_failed(&error.message)
            }
        };
        let (service, id, config) = (self.clone(), row.id, row.config.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let Some(row) = experiments::find(&mut tx.conn(), id).await? else {
                        return Ok(());
                    };
                    // Continued, being deleted, or given another policy meanwhile: then another pass decides.
                    if !row.state.is_terminal() || row.config != config {
                        return Ok(());
                    }
                    experiments::set_collected(&mut tx.conn(), id, true).await?;
                    service.record(tx, id, &recorded).await
                })
            })
            .await
    }

    async fn remove(
        &self,
        rows: Vec<CheckpointRow>,
        warm_starts: WarmStarts,
        why: &Why,
    ) -> AppResult<Progress> {
        if rows.is_empty() {
            return Ok(Progress::Done);
        }
        let everything = patterns(&["**/*".to_owned()])?;
        self.checkpoint_removal
            .remove(rows, everything, warm_starts, why)
            .await
    }

    /// Deletes an experiment: its checkpoints' files, its TensorBoard files, then everything that is stored of it.
    async fn delete(&self, row: &ExperimentRow) -> AppResult<()> {
        failpoint!("server::clean_up::delete::before_files");
        match self.delete_files(row).await {
            Ok(Progress::Done) => {}
            Ok(Progress::ByTask) => return Ok(()),
            Err(error) if error.kind == ErrorKind::Unavailable => return Err(error),
            Err(error) => {
                tracing::warn!(experiment.id = row.id.0, %error, "an experiment could not be deleted");
                let (service, id) = (self.clone(), row.id);
                return self
                    .context
                    .write(move |tx| {
                        Box::pin(
                            async move { service.deletion_failed(tx, id, &error.message).await },
                        )
                    })
                    .await;
            }
        }
        failpoint!("server::clean_up::delete::after_files");
        let (service, id) = (self.clone(), row.id);
        self.context
            .write(move |tx| Box::pin(async move { service.delete_rows(tx, id).await }))
            .await?;
        failpoint!("server::clean_up::delete::after_commit");
        Ok(())
    }

    async fn deletion_failed(
        &self,
        tx: &mut WriteTx,
        id: ExperimentId,
        message: &str,
    ) -> AppResult<()> {
        let Some(row) = experiments::find(&mut tx.conn(), id).await? else {
            return Ok(());
        };
        if row.state != ExperimentState::Deleting {
            return Ok(());
        }
        let failed = Event::Experiment {
            id,
            event: ExperimentEvent::DeleteFailed,
            cause: Cause::master(message),
        };
        self.orchestration.advance(tx, [failed]).await?;
        let why = format!("experiment {id} could not be deleted: {message}");
        self.home_deletion
            .after_member(tx, &ACTOR, row.project_id, Some(&why))
            .await
    }

    /// Everything that is stored of an experiment whose files are gone.
    async fn delete_rows(&self, tx: &mut WriteTx, id: ExperimentId) -> AppResult<()> {
        let Some(row) = experiments::find(&mut tx.conn(), id).await? else {
            return Ok(());
        };
        if row.state != ExperimentState::Deleting {
            return Ok(());
        }
        self.metric_journal.evict_all();
        experiments::delete(&mut tx.conn(), id).await?;
        let event = NewEvent::new(ACTOR, Subject::Experiment(id), EventKind::Deleted)
            .states(Some(row.state.state_name().into()), None);
        self.context.record(tx, event).await?;
        self.home_deletion
            .after_member(tx, &ACTOR, row.project_id, None)
            .await?;
        let configs = self.configs.clone();
        tx.after_commit(move || configs.evict(id));
        failpoint!("server::clean_up::delete::before_commit");
        Ok(())
    }

    async fn delete_files(&self, row: &ExperimentRow) -> AppResult<Progress> {
        let (rows, trials, protected) = {
            let mut conn = self.context.store.read().await?;
            let rows = checkpoints::of_experiment(&mut conn.conn(), row.id).await?;
            let trials = trials::ids_of_experiment(&mut conn.conn(), row.id).await?;
            let sources: BTreeSet<CheckpointId> = checkpoints::warm_start_sources(&mut conn.conn())
                .await?
                .into_iter()
                .collect();
            (rows, trials, sources)
        };
        let rows: Vec<CheckpointRow> = rows
            .into_iter()
            .filter(|c| c.state != CheckpointState::Deleted)
            .collect();
        // Before any of them goes; the removal decides again in its own transaction.
        if let Some(needed) = rows.iter().find(|c| protected.contains(&c.uuid)) {
            return Err(in_use(&needed.uuid));
        }
        // The code of an unmanaged one may have stored them on a machine that is none of the cluster's.
        if row.unmanaged
            && let Err(unreachable) = self.checkpoint_files.storage_of(row)
        {
            tracing::info!(experiment.id = row.id.0, reason = %unreachable, "checkpoint files of an unmanaged experiment that is deleted were left where they are");
            return Ok(Progress::Done);
        }
        let why = Why {
            cause: RemovalCause::Deletion,
            actor: ACTOR,
            reason: Some("its experiment is being deleted"),
        };
        let has_checkpoints = !rows.is_empty();
        if self.remove(rows, WarmStarts::Refuse, &why).await? == Progress::ByTask {
            return Ok(Progress::ByTask);
        }
        // Its TensorBoard files are where no checkpoint has led.
        if !has_checkpoints
            && !trials.is_empty()
            && self.checkpoint_removal.is_elsewhere(row).await?
        {
            let removal = &self.checkpoint_removal;
            removal
                .send_task(row, Vec::new(), &[], WarmStarts::Refuse, &why)
                .await?;
            return Ok(Progress::ByTask);
        }
        let config = config_of(row)?;
        let (cluster_id, id) = (self.cluster_id.clone(), row.id);
        let allowed = self.checkpoint_files.allowed_paths();
        let owner = self.checkpoint_files.owner_now(row);
        let outcome = tokio::task::spawn_blocking(move || {
            Storage::of(&config, &allowed)?.remove_tensorboard(&cluster_id, id, &trials, owner)
        })
        .await
        .map_err(AppError::internal)?;
        // TensorBoard files are no part of what the master keeps account of: where they are out of reach, belong to
        // another user or are not those of its trials they stay.
        if let Err(error) = outcome {
            tracing::warn!(experiment.id = row.id.0, %error, "TensorBoard files of a deleted experiment were left where they are");
        }
        Ok(Progress::Done)
    }
}

/// What the record of an experiment has of the deletion of its checkpoints' files.
enum RemovalRecord {
    /// Nothing that anyone needs to know.
    Nothing,
    /// What was done, a sentence.
    Done(String),
    /// Why it was not done, a sentence; it is shown with the experiment too.
    Failed(String),
}

impl RemovalRecord {
    fn policy_deleted(count: impl std::fmt::Display) -> Self {
        Self::Done(format!("the checkpoint policy deleted {count} checkpoints"))
    }

    fn policy_failed(why: &str) -> Self {
        Self::Failed(format!("the checkpoint policy could not be applied: {why}"))
    }
}

fn failed(experiment_id: Option<ExperimentId>, error: &AppError) -> Option<Duration> {
    tracing::warn!(experiment.id = experiment_id.map(|id| id.0), %error, cause = ?error.cause, "cleaning up after an experiment failed");
    (error.kind == ErrorKind::Unavailable).then_some(RETRY)
}
