//! Carries out what the life cycles decide: loads rows, asks the pure room, stores the next state, does the effects.
//!
//! Everything here runs inside one transaction and may lead from an allocation to its trial, to the search, to the
//! experiment, and back to other trials.

use det_failpoints::failpoint;
use det_lifecycle::allocation::AllocationEvent;
use det_lifecycle::experiment::{
    ExperimentEffect, ExperimentEvent, ExperimentState, SearchOutcome,
};
use det_lifecycle::trial::{History, TrialEffect, TrialEvent, TrialState};
use det_searcher::{Action, Event as SearchEvent, ExitReason, Outcome};
use det_store::allocations::TaskRow;
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::trials::{NewTrial, TrialRow};
use det_store::{StoreError, WriteTx, allocations, experiments, trials};
use det_taskspec::TaskKind;
use futures::future::BoxFuture;

use crate::app::Master;
use crate::app::log_policies::allow_restarts;
use crate::app::log_retention::configured_days;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Code that has said that it ends early is given this long.
const EARLY_EXIT_MICROS: i64 = 10 * 1_000_000;

/// Why something happens: who, and for what reason, for events and log lines.
#[derive(Debug, Clone)]
pub struct Cause {
    /// Who or what.
    pub actor: String,
    /// For people.
    pub reason: Option<String>,
}

impl Cause {
    /// By the master, for a reason.
    pub fn master(reason: impl Into<String>) -> Self {
        Self {
            actor: "master".into(),
            reason: Some(reason.into()),
        }
    }

    /// By a person or task.
    pub fn actor(actor: String) -> Self {
        Self {
            actor,
            reason: None,
        }
    }
}

impl Master {
    /// Something happens to an experiment.
    pub(crate) fn experiment_event<'a>(
        &'a self,
        tx: &'a mut WriteTx,
        id: i64,
        event: ExperimentEvent,
        cause: &'a Cause,
    ) -> BoxFuture<'a, AppResult<()>> {
        Box::pin(async move {
            let row = experiments::find(&mut tx.conn(), id)
                .await?
                .ok_or_else(|| AppError::not_found("experiment", id))?;
            let before = row.state;
            let step = before
                .on(event)
                .map_err(|refused| AppError::precondition(refused.message))?;
            if step.state != before {
                let ended = step
                    .effects
                    .contains(&ExperimentEffect::End)
                    .then(det_store::now);
                experiments::set_state(&mut tx.conn(), id, step.state, ended).await?;
                self.record(
                    tx,
                    NewEvent {
                        actor: &cause.actor,
                        subject_kind: "experiment",
                        subject_id: id.to_string(),
                        kind: "state",
                        from: Some(before.stored_name()),
                        to: Some(step.state.stored_name()),
                        reason: cause.reason.as_deref(),
                        ..Default::default()
                    },
                )
                .await?;
                self.wake_scheduler(tx);
            }
            for effect in step.effects {
                self.experiment_effect(tx, &row, step.state, effect, cause)
                    .await?;
            }
            Ok(())
        })
    }

    async fn experiment_effect(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        state: ExperimentState,
        effect: ExperimentEffect,
        cause: &Cause,
    ) -> AppResult<()> {
        let each = match effect {
            ExperimentEffect::PauseTrials => TrialEvent::Pause,
            ExperimentEffect::ActivateTrials => TrialEvent::Activate,
            ExperimentEffect::CancelTrials => TrialEvent::Cancel,
            ExperimentEffect::KillTrials => TrialEvent::Kill,
            ExperimentEffect::CloseSearch => {
                return self.advance_search(tx, row.id, SearchEvent::Close).await;
            }
            ExperimentEffect::End => {
                let progress = if state == ExperimentState::Completed {
                    1.0
                } else {
                    // The search counts what ended as done; people want to know how far the code came.
                    trials::mean_progress(&mut tx.conn(), row.id).await?
                };
                experiments::set_progress(&mut tx.conn(), row.id, progress).await?;
                self.end_search(tx, row.id).await?;
                self.configs.forget(row.id);
                let hub = self.hub.clone();
                tx.after_commit(move || hub.notify(&Topic::CleanUp));
                return Ok(());
            }
            ExperimentEffect::Remove => {
                let hub = self.hub.clone();
                tx.after_commit(move || hub.notify(&Topic::CleanUp));
                return Ok(());
            }
        };
        for trial in trials::live_of_experiment(&mut tx.conn(), row.id).await? {
            self.trial_event(tx, trial.id, each.clone(), cause).await?;
        }
        // The last trial may have ended on the way; one that was paused ends at once.
        if trials::count_live(&mut tx.conn(), row.id).await? == 0
            && matches!(
                effect,
                ExperimentEffect::CancelTrials | ExperimentEffect::KillTrials
            )
        {
            self.experiment_event(tx, row.id, ExperimentEvent::TrialsEnded, cause)
                .await
                .or_else(already_ended)?;
        }
        Ok(())
    }

    /// Something happens to a trial.
    pub(crate) fn trial_event<'a>(
        &'a self,
        tx: &'a mut WriteTx,
        id: i64,
        event: TrialEvent,
        cause: &'a Cause,
    ) -> BoxFuture<'a, AppResult<()>> {
        Box::pin(async move {
            let mut row = trials::find(&mut tx.conn(), id)
                .await?
                .ok_or_else(|| AppError::not_found("trial", id))?;
            let experiment = experiments::find(&mut tx.conn(), row.experiment_id)
                .await?
                .ok_or_else(|| AppError::not_found("experiment", row.experiment_id))?;
            let before = row.state;
            let restarts = u32::try_from(row.restarts).unwrap_or(u32::MAX);
            let (allowed, no_restart) = match (self.config_for(&experiment), &event) {
                (Ok(config), TrialEvent::AllocationEnded(_)) => (
                    config.max_restarts,
                    self.no_restart_because(&experiment, &row).await?,
                ),
                (Ok(config), _) => (config.max_restarts, None),
                // What it is to do is not known any more; it can still end.
                (Err(error @ StoreError::Corrupt { .. }), _) => (u32::MAX, Some(error.to_string())),
                (Err(error), _) => return Err(error.into()),
            };
            let history = History {
                restarts,
                max_restarts: allowed,
                experiment_stops: experiment.state.is_stopping(),
                restarts_forbidden: no_restart.is_some(),
            };
            let step = before
                .on(event, history)
                .map_err(|refused| AppError::precondition(refused.message))?;
            if let Some(why) = &no_restart
                && restarts < allowed
                && step.effects.contains(&TrialEffect::TellErrored)
            {
                let text = format!("Not started again after {restarts} restarts: {why}");
                self.log_line(tx, &row.task_id, None, &text)?;
            }
            for effect in &step.effects {
                match effect {
                    TrialEffect::ChargeRestart => row.restarts += 1,
                    TrialEffect::ResetRestarts => {
                        row.restarts = 0;
                        allow_restarts(tx, &row).await?;
                    }
                    _ => {}
                }
            }
            if step.state != before || row.restarts != i64::from(history.restarts) {
                row.ended_at = step.state.is_terminal().then(det_store::now);
                row.state = step.state;
                trials::set_state(&mut tx.conn(), id, row.state, row.restarts, row.ended_at)
                    .await?;
                self.record(
                    tx,
                    NewEvent {
                        actor: &cause.actor,
                        subject_kind: "trial",
                        subject_id: id.to_string(),
                        kind: "state",
                        from: Some(before.stored_name()),
                        to: Some(step.state.stored_name()),
                        reason: cause.reason.as_deref(),
                        ..Default::default()
                    },
                )
                .await?;
            }
            for effect in step.effects {
                self.trial_effect(tx, &row, &experiment, effect, cause)
                    .await?;
            }
            Ok(())
        })
    }

    async fn trial_effect(
        &self,
        tx: &mut WriteTx,
        row: &TrialRow,
        experiment: &ExperimentRow,
        effect: TrialEffect,
        cause: &Cause,
    ) -> AppResult<()> {
        let request_id = || det_ids::RequestId(row.request_id.clone());
        let early = |reason| SearchEvent::EarlyExit {
            request_id: request_id(),
            reason,
        };
        match effect {
            TrialEffect::Request => self.request_run(tx, row, experiment).await,
            TrialEffect::Preempt => {
                self.live_allocation_event(tx, row, AllocationEvent::Preempt, cause)
                    .await
            }
            TrialEffect::Kill => {
                self.live_allocation_event(tx, row, AllocationEvent::Kill, cause)
                    .await
            }
            TrialEffect::KillSoon => {
                if let Some(mut live) =
                    allocations::live_of_task(&mut tx.conn(), &row.task_id).await?
                {
                    live.preempt_deadline = Some(det_store::steady_now() + EARLY_EXIT_MICROS);
                    allocations::update(&mut tx.conn(), &live).await?;
                    self.wake_deadlines(tx);
                    // Its room will be free soon: what waits for it may have another reason now.
                    self.wake_scheduler(tx);
                }
                Ok(())
            }
            // Counted with the state.
            TrialEffect::ChargeRestart | TrialEffect::ResetRestarts => Ok(()),
            TrialEffect::TellErrored => {
                self.advance_search(tx, experiment.id, early(ExitReason::Errored))
                    .await
            }
            TrialEffect::TellCanceled => {
                self.advance_search(tx, experiment.id, early(ExitReason::Canceled))
                    .await
            }
            TrialEffect::TellInvalid => {
                self.advance_search(tx, experiment.id, early(ExitReason::InvalidHyperparameters))
                    .await
            }
            TrialEffect::End => {
                allocations::set_task_end(&mut tx.conn(), &row.task_id, Some(det_store::now()))
                    .await?;
                let (hub, topic) = (self.hub.clone(), Topic::TaskLog(row.task_id.clone()));
                let trial_id = row.id;
                self.metric_intake.forget(trial_id);
                tx.after_commit(move || {
                    // Stored, and those who wait for it do not know.
                    failpoint!("server::lifecycle::end_trial::after_commit");
                    hub.notify(&topic);
                    hub.notify(&Topic::Trial(trial_id));
                });
                self.advance_search(
                    tx,
                    experiment.id,
                    SearchEvent::Ended {
                        request_id: request_id(),
                    },
                )
                .await?;
                if trials::count_live(&mut tx.conn(), experiment.id).await? == 0 {
                    self.experiment_event(tx, experiment.id, ExperimentEvent::TrialsEnded, cause)
                        .await
                        .or_else(already_ended)?;
                }
                failpoint!("server::lifecycle::end_trial::before_commit");
                Ok(())
            }
        }
    }

    async fn live_allocation_event(
        &self,
        tx: &mut WriteTx,
        row: &TrialRow,
        event: AllocationEvent,
        cause: &Cause,
    ) -> AppResult<()> {
        match allocations::live_of_task(&mut tx.conn(), &row.task_id).await? {
            Some(live) => self.allocation_event(tx, &live.id, event, cause).await,
            None => Ok(()),
        }
    }

    /// Tells the search of an experiment and carries out what it asks for. Of an experiment whose search is over,
    /// nothing happens.
    pub(crate) fn advance_search<'a>(
        &'a self,
        tx: &'a mut WriteTx,
        experiment_id: i64,
        event: SearchEvent,
    ) -> BoxFuture<'a, AppResult<()>> {
        Box::pin(async move {
            let Some(experiment) = experiments::find(&mut tx.conn(), experiment_id).await? else {
                return Ok(());
            };
            if !experiment.state.is_live() {
                return Ok(());
            }
            let (actions, progress) = self.tell_search(tx, &experiment, event).await?;
            if progress > experiment.progress {
                experiments::set_progress(&mut tx.conn(), experiment_id, progress).await?;
            }
            self.carry_out(tx, &experiment, actions).await
        })
    }

    /// Carries out what a search asks for.
    pub(crate) async fn carry_out(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        actions: Vec<Action>,
    ) -> AppResult<()> {
        let cause = Cause::master("the search decided it");
        let mut created = 0;
        for action in actions {
            match action {
                Action::Create {
                    request_id,
                    hparams,
                    seed,
                } => {
                    let known =
                        trials::find_by_request(&mut tx.conn(), experiment.id, request_id.as_str())
                            .await?;
                    if let Some(trial) = known {
                        self.take_up_trial(tx, experiment, &trial, &hparams, &cause)
                            .await?;
                    } else {
                        self.create_trial(tx, experiment, request_id.0, &hparams, seed)
                            .await?;
                        created += 1;
                    }
                }
                Action::Stop { request_id } => {
                    let trial =
                        trials::find_by_request(&mut tx.conn(), experiment.id, request_id.as_str())
                            .await?;
                    if let Some(trial) = trial {
                        let cause = Cause::master(
                            "the search stopped it: its validation is not among the best",
                        );
                        self.trial_event(tx, trial.id, TrialEvent::StopBySearch, &cause)
                            .await?;
                    }
                }
                Action::Shutdown(outcome) => {
                    if created > 0 {
                        experiments::add_trials(&mut tx.conn(), experiment.id, created).await?;
                        created = 0;
                    }
                    let trials_live = trials::count_live(&mut tx.conn(), experiment.id).await? > 0;
                    let outcome = match outcome {
                        Outcome::Completed => SearchOutcome::Completed,
                        Outcome::Canceled => SearchOutcome::Canceled,
                        Outcome::Failed => SearchOutcome::Failed,
                    };
                    self.experiment_event(
                        tx,
                        experiment.id,
                        ExperimentEvent::SearchOver {
                            outcome,
                            trials_live,
                        },
                        &cause,
                    )
                    .await?;
                }
            }
        }
        if created > 0 {
            experiments::add_trials(&mut tx.conn(), experiment.id, created).await?;
        }
        Ok(())
    }

    /// The search of a continued experiment comes to a trial of before: one that completed counts, any other goes on.
    async fn take_up_trial(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        trial: &TrialRow,
        hparams: &serde_json::Map<String, serde_json::Value>,
        cause: &Cause,
    ) -> AppResult<()> {
        if trial.state == TrialState::Completed {
            let request_id = det_ids::RequestId(trial.request_id.clone());
            return self
                .advance_search(tx, experiment.id, SearchEvent::Ended { request_id })
                .await;
        }
        self.continue_trial(tx, experiment, trial, hparams, cause)
            .await?;
        if experiment.state != ExperimentState::Active {
            self.trial_event(tx, trial.id, TrialEvent::Pause, cause)
                .await?;
        }
        Ok(())
    }

    /// Adds a trial that the search asks for.
    async fn create_trial(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        request_id: String,
        hparams: &serde_json::Map<String, serde_json::Value>,
        seed: u32,
    ) -> AppResult<()> {
        let state = match experiment.state {
            ExperimentState::Active => TrialState::Active,
            _ => TrialState::Paused,
        };
        let now = det_store::now();
        let task_id = format!("{}.{request_id}", experiment.id);
        let config = self.config_for(experiment)?;
        let warm_start = self.warm_start_checkpoint(tx, &config).await?;
        let id = trials::insert(
            &mut tx.conn(),
            &NewTrial {
                experiment_id: experiment.id,
                request_id,
                task_id: task_id.clone(),
                state,
                hparams: serde_json::to_string(hparams).map_err(AppError::internal)?,
                seed: i64::from(seed),
                warm_start_checkpoint: warm_start,
                log_retention_days: configured_days(&config),
                created_at: now,
            },
        )
        .await?;
        self.insert_trial_task(tx, experiment, id, task_id).await?;
        self.record(
            tx,
            NewEvent {
                actor: "master",
                subject_kind: "trial",
                subject_id: id.to_string(),
                kind: "created",
                to: Some(state.stored_name()),
                detail: Some(format!("{{\"experimentId\":{}}}", experiment.id)),
                ..Default::default()
            },
        )
        .await?;
        if state == TrialState::Active {
            let row = trials::find(&mut tx.conn(), id)
                .await?
                .ok_or_else(|| AppError::not_found("trial", id))?;
            self.request_run(tx, &row, experiment).await?;
        }
        Ok(())
    }

    /// Adds a task of a trial.
    async fn insert_trial_task(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        trial_id: i64,
        task_id: String,
    ) -> AppResult<()> {
        let task = TaskRow {
            id: task_id,
            kind: TaskKind::Trial,
            job_id: experiment.job_id.clone(),
            owner_id: experiment.owner_id,
            experiment_id: Some(experiment.id),
            trial_id: Some(trial_id),
            attempts: 0,
            log_lines: 0,
            created_at: det_store::now(),
            ended_at: None,
            logs_deleted_at: None,
        };
        Ok(allocations::insert_task(&mut tx.conn(), &task).await?)
    }

    /// Lets an ended trial go on, as a further task with these hyperparameters. Restarts stay within a task; what is
    /// continued gets one of its own (`wire-contract` reference §14), so that its log can be followed.
    pub(crate) async fn continue_trial(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        trial: &TrialRow,
        hparams: &serde_json::Map<String, serde_json::Value>,
        cause: &Cause,
    ) -> AppResult<()> {
        let earlier = allocations::tasks_of_trial(&mut tx.conn(), trial.id)
            .await?
            .len();
        let task_id = format!("{}.{}-{earlier}", experiment.id, trial.request_id);
        self.insert_trial_task(tx, experiment, trial.id, task_id.clone())
            .await?;
        let hparams = serde_json::to_string(hparams).map_err(AppError::internal)?;
        trials::set_continuation(&mut tx.conn(), trial.id, &task_id, &hparams).await?;
        self.trial_event(tx, trial.id, TrialEvent::Continue, cause)
            .await
    }

    /// Wakes the watch over deadlines after the commit.
    pub(crate) fn wake_deadlines(&self, tx: &mut WriteTx) {
        let hub = self.hub.clone();
        tx.after_commit(move || hub.notify(&Topic::Deadlines));
    }
}

/// Trials may end an experiment on several ways at once; the second one finds it ended, which is what it wanted.
fn already_ended(error: AppError) -> AppResult<()> {
    if error.kind == crate::error::ErrorKind::Precondition {
        Ok(())
    } else {
        Err(error)
    }
}
