//! Trials: what users do to them and what their code reports.

mod metadata;

use det_config::experiment::ExperimentConfig;
use det_ids::{StorageId, TrialId};
use det_lifecycle::trial::{EarlyExit, TrialEvent};
use det_orchestrator::Event;
use det_searcher::Event as SearchEvent;
use det_store::{WriteTx, checkpoints, experiments, trials};
use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::app::checkpoints::{location_text, storage_location};
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::existing;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::searches::config_of;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Longest state that code may report of itself, in characters.
const RUNNER_STATE_CHARS: usize = 255;
/// Longest place of a checkpoint storage, in bytes of JSON.
const LONGEST_LOCATION: usize = 16 * 1024;

/// Trials: what their code reports and what users change. Cheap to clone.
#[derive(Clone)]
pub struct Trials {
    context: Context,
    configs: Configs,
    ownership: Ownership,
    orchestration: Orchestration,
}

impl Trials {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        ownership: Ownership,
        orchestration: Orchestration,
    ) -> Self {
        Self {
            context,
            configs,
            ownership,
            orchestration,
        }
    }

    /// Ends a trial at once.
    pub async fn kill(&self, actor: &Actor, id: TrialId) -> AppResult<()> {
        self.ownership.require_steering_of_trial(actor, id).await?;
        let (event, cause) = (TrialEvent::Kill, Cause::actor(actor.name()));
        self.orchestration
            .commit(Event::Trial { id, event, cause })
            .await
    }

    /// Stores how far the trial reports to be: a fraction, or (not `is_raw`) units of the searcher's length.
    pub async fn report_progress(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        progress: f64,
        is_raw: bool,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        let actor = actor.clone();
        if !progress.is_finite() || progress < 0.0 {
            return Err(AppError::invalid(format!(
                "field \"progress\" must be a number of 0 or more, found {progress}"
            )));
        }
        let service = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let trial = existing::trial(&mut tx.conn(), trial_id).await?;
                    actor.require_current_run(trial_id, trial.run_id)?;
                    let experiment =
                        existing::experiment(&mut tx.conn(), trial.experiment_id).await?;
                    let fraction = if is_raw {
                        progress
                    } else {
                        length_units(service.configs.of(&experiment)?.as_ref())
                            .map_or(progress, |units| progress / units)
                    }
                    .clamp(0.0, 1.0);
                    trials::set_progress(&mut tx.conn(), trial_id, fraction).await?;
                    if experiment.unmanaged {
                        let (id, conn) = (experiment.id, &mut tx.conn());
                        return Ok(experiments::set_progress(conn, id, fraction).await?);
                    }
                    if trial.ended_at.is_some() {
                        return Ok(());
                    }
                    let request_id = trial.request_id;
                    let event = SearchEvent::Progress {
                        request_id,
                        fraction,
                    };
                    let id = experiment.id;
                    service
                        .orchestration
                        .advance(tx, [Event::Search { id, event }])
                        .await
                })
            })
            .await
    }

    /// Stores that the trial's code ends early. A repeat changes nothing.
    pub async fn report_early_exit(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        reason: EarlyExit,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        self.orchestration
            .commit(Event::EarlyExit {
                id: trial_id,
                run: actor.run(),
                reason,
                cause: Cause::actor(actor.name()),
            })
            .await
    }

    /// Stores what the trial's code reports to be doing: `training`, `validating`, …
    pub async fn set_runner_state(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        state: &str,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        if state.chars().count() > RUNNER_STATE_CHARS || state.contains('\0') {
            return Err(AppError::invalid(format!(
                "field \"state\" must be at most {RUNNER_STATE_CHARS} characters without NUL"
            )));
        }
        let state = state.to_owned();
        self.change_run(actor, trial_id, move |tx| {
            Box::pin(async move {
                Ok(trials::set_runner_state(&mut tx.conn(), trial_id, &state).await?)
            })
        })
        .await
    }

    /// Replaces the metadata of the run, and returns it.
    pub async fn set_run_metadata(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        metadata: Map<String, Value>,
    ) -> AppResult<Map<String, Value>> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        metadata::check(&metadata)?;
        let text = serde_json::to_string(&metadata).map_err(AppError::internal)?;
        self.change_run(actor, trial_id, move |tx| {
            Box::pin(
                async move { Ok(trials::set_metadata(&mut tx.conn(), trial_id, &text).await?) },
            )
        })
        .await?;
        Ok(metadata)
    }

    /// Changes a trial, unless an older run of it asks.
    async fn change_run<F>(&self, actor: &Actor, trial_id: TrialId, change: F) -> AppResult<()>
    where
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, AppResult<()>> + Send + 'static,
    {
        let actor = actor.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let trial = existing::trial(&mut tx.conn(), trial_id).await?;
                    actor.require_current_run(trial_id, trial.run_id)?;
                    change(tx).await
                })
            })
            .await
    }

    /// The trial's code begins to report. Returns the checkpoint storage that it uses: `storage` is its
    /// section of a configuration, `None` = the experiment's.
    pub async fn start_run(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        storage: Option<Map<String, Value>>,
    ) -> AppResult<StorageId> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        let experiment = {
            let mut conn = self.context.store.read().await?;
            let trial = existing::trial(&mut conn.conn(), trial_id).await?;
            existing::experiment(&mut conn.conn(), trial.experiment_id).await?
        };
        let location = match storage {
            Some(section) => location_text(&Value::Object(section)),
            None => storage_location(&config_of(&experiment)?)?,
        };
        if location.len() > LONGEST_LOCATION {
            return Err(AppError::invalid(format!(
                "field \"checkpointStorage\" names a place of {} bytes; at most {LONGEST_LOCATION} are allowed",
                location.len()
            )));
        }
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    Ok::<_, AppError>(checkpoints::storage_id(&mut tx.conn(), &location).await?)
                })
            })
            .await
    }
}

/// The length of a trial in the searcher's units, where the configuration gives one.
fn length_units(config: &ExperimentConfig) -> Option<f64> {
    use det_config::experiment::{Length, MaxLength};
    use det_config::hyperparameters::SearchMethod;
    let units = match (&config.searcher.method, &config.searcher.max_length) {
        (
            SearchMethod::AsyncHalving { max_time, .. }
            | SearchMethod::AdaptiveAsha { max_time, .. },
            _,
        ) => *max_time,
        (_, Some(MaxLength::Unitless(n))) => *n,
        (
            _,
            Some(MaxLength::Length(Length::Batches(n) | Length::Records(n) | Length::Epochs(n))),
        ) => *n,
        (_, None) => return None,
    };
    #[expect(clippy::cast_precision_loss, reason = "lengths stay far below 2^52")]
    (units > 0).then_some(units as f64)
}
