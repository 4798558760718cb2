//! Experiments and trials that run outside the cluster: their code registers them, and reports its life. What follows is
//! decided in `det_lifecycle::unmanaged`.
//!
//! An external id is unique over the cluster and belongs to the experiment that has it until that is deleted. Who asks for
//! one that another user's experiment has is refused, and neither gets nor changes that experiment: reports of a trial are
//! its owner's and administrators'.

use det_authz::{Kind, Permission, Target};
use det_ids::{
    CheckpointId, ExperimentId, ExternalExperimentId, Micros, RequestId, RunId, TrialId,
};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::unmanaged::UnmanagedEvent;
use det_orchestrator::Event;
use det_store::experiments::ExperimentRow;
use det_store::trials::TrialRow;
use det_store::{WriteTx, experiments, trials};
use serde_json::{Map, Value};

use crate::app::context::Context;
use crate::app::existing;
use crate::app::experiments::{CreatedExperiment, Experiments};
use crate::app::homes::Homes;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::submission::NewExperimentRequest;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// Longest external id, in bytes.
const LONGEST_ID: usize = 255;

/// Longest hyperparameters of a trial, in bytes of JSON.
const LONGEST_HPARAMS: usize = 128 << 10;

/// What code is given to begin a run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedRun {
    /// Counts the runs of the trial, from 1.
    pub run_id: RunId,
    /// UUID of the checkpoint to go on from.
    pub latest_checkpoint: Option<CheckpointId>,
    /// Its steps; 0 without one.
    pub steps_completed: i64,
}

/// What code reports of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// The code runs.
    Running,
    /// It came to its end.
    Completed,
    /// The code has failed.
    Failed,
}

/// What runs outside the cluster. Cheap to clone.
#[derive(Clone)]
pub struct UnmanagedRuns {
    context: Context,
    ownership: Ownership,
    experiments: Experiments,
    orchestration: Orchestration,
}

impl UnmanagedRuns {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        ownership: Ownership,
        experiments: Experiments,
        orchestration: Orchestration,
    ) -> Self {
        Self {
            context,
            ownership,
            experiments,
            orchestration,
        }
    }

    /// The experiment of this external id: the one that has it, as it is, else a new one.
    pub async fn put_experiment(
        &self,
        actor: &Actor,
        external_id: ExternalExperimentId,
        request: NewExperimentRequest,
    ) -> AppResult<CreatedExperiment> {
        actor.require(Permission::Create, Kind::Experiment, "create experiments")?;
        require_usable("external experiment id", external_id.as_str())?;
        if !request.unmanaged {
            return Err(AppError::invalid(
                "an experiment with an external id must be unmanaged: the master finds those that it runs by their numbers",
            )
            .hint("set field \"unmanaged\" to true, or create it with POST /api/v1/experiments"));
        }
        let known = {
            let mut conn = self.context.store.read().await?;
            experiments::find_by_external_id(&mut conn.conn(), &external_id).await?
        };
        if let Some(row) = known {
            self.experiments.require_own_external(actor, &row)?;
            return Ok(CreatedExperiment::existing(row.id));
        }
        let request = NewExperimentRequest {
            external_id: Some(external_id),
            ..request
        };
        self.experiments.create(actor, request).await
    }

    /// Adds a trial. With an external id: the trial that has it in the experiment, as it is, else a new one.
    pub async fn put_trial(
        &self,
        actor: &Actor,
        experiment_id: ExperimentId,
        external_id: Option<RequestId>,
        hparams: Map<String, Value>,
    ) -> AppResult<TrialId> {
        if let Some(id) = &external_id {
            require_usable("external trial id", id.as_str())?;
        }
        let hparams = Value::Object(hparams).to_string();
        if hparams.len() > LONGEST_HPARAMS {
            return Err(AppError::invalid(format!(
                "field \"hparams\" has {} bytes as JSON; at most {LONGEST_HPARAMS} are allowed",
                hparams.len()
            )));
        }
        if hparams.contains("\\u0000") {
            return Err(AppError::invalid(
                "field \"hparams\" must not contain the character NUL",
            ));
        }
        let (service, actor) = (self.clone(), actor.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    service
                        .put_trial_in(tx, &actor, experiment_id, external_id, hparams)
                        .await
                })
            })
            .await
    }

    async fn put_trial_in(
        &self,
        tx: &mut WriteTx,
        actor: &Actor,
        experiment_id: ExperimentId,
        external_id: Option<RequestId>,
        hparams: String,
    ) -> AppResult<TrialId> {
        let experiment = existing::experiment(&mut tx.conn(), experiment_id).await?;
        let to_do = format!("add trials to experiment {experiment_id}");
        let target = Target::of(Kind::Trial).owned_by(experiment.owner_id);
        self.ownership
            .require_of(actor, Permission::Report, &target, &to_do)?;
        let request_id = external_id.unwrap_or_else(|| RequestId(uuid::Uuid::new_v4().to_string()));
        let find = async |tx: &mut WriteTx| {
            trials::find_by_request(&mut tx.conn(), experiment_id, &request_id).await
        };
        if experiment.unmanaged
            && let Some(trial) = find(tx).await?
        {
            return Ok(trial.id);
        }
        require_open(tx, &experiment).await?;
        if experiment.unmanaged {
            self.require_below_limits(tx, &experiment).await?;
        }
        let added = Event::AddTrial {
            id: experiment_id,
            request_id: request_id.clone(),
            hparams,
        };
        self.orchestration.advance(tx, [added]).await?;
        let trial = find(tx).await?;
        trial.map(|trial| trial.id).ok_or_else(|| {
            AppError::not_found(ObjectKind::Trial, request_id.as_str().escape_debug())
        })
    }

    /// Refuses one more trial where there are as many as the configuration allows.
    async fn require_below_limits(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
    ) -> AppResult<()> {
        let config = self.context.config();
        let id = experiment.id;
        let of_experiment = config.max_unmanaged_trials_per_experiment;
        if experiment.trial_count >= of_experiment {
            return Err(AppError::new(
                ErrorKind::Precondition,
                format!(
                    "a trial cannot be added to experiment {id}: it has {}, and an unmanaged experiment may have {of_experiment}",
                    experiment.trial_count
                ),
            )
            .hint(
                "register another experiment, or have an administrator raise max_unmanaged_trials_per_experiment of the \
                 master's configuration",
            ));
        }
        let of_user = config.max_unmanaged_trials_per_user;
        let all = experiments::unmanaged_trials_of(&mut tx.conn(), experiment.owner_id).await?;
        if all >= of_user {
            return Err(AppError::new(
                ErrorKind::Precondition,
                format!(
                    "a trial cannot be added to experiment {id}: the unmanaged experiments of its owner have {all} trials, \
                     and those of one user may have {of_user}"
                ),
            )
            .hint(
                "delete unmanaged experiments that are not needed, or have an administrator raise \
                 max_unmanaged_trials_per_user of the master's configuration",
            ));
        }
        Ok(())
    }

    /// The code of a trial begins a run. `resumes` = it goes on from the newest checkpoint of its runs before.
    pub async fn start(&self, actor: &Actor, id: TrialId, resumes: bool) -> AppResult<StartedRun> {
        let about = ReportSubject::Trial(id);
        self.ownership.require_reporter(actor, about).await?;
        let (service, cause) = (self.clone(), Cause::actor(actor.name()));
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let trial = existing::trial(&mut tx.conn(), id).await?;
                    let experiment =
                        existing::experiment(&mut tx.conn(), trial.experiment_id).await?;
                    if experiment.unmanaged {
                        require_open(tx, &experiment).await?;
                    }
                    let starts = Event::UnmanagedStarts {
                        id,
                        until: service.due(),
                        resumes,
                        cause,
                    };
                    service.orchestration.advance(tx, [starts]).await?;
                    let trial = existing::trial(&mut tx.conn(), id).await?;
                    Ok(started_run(trial, resumes))
                })
            })
            .await
    }

    /// The code of a trial reports that it runs, or how it ended.
    pub async fn beat(&self, actor: &Actor, id: TrialId, heartbeat: Heartbeat) -> AppResult<()> {
        let about = ReportSubject::Trial(id);
        self.ownership.require_reporter(actor, about).await?;
        let event = match heartbeat {
            Heartbeat::Running => UnmanagedEvent::Beat { until: self.due() },
            Heartbeat::Completed => UnmanagedEvent::Completed,
            Heartbeat::Failed => UnmanagedEvent::Failed,
        };
        let cause = Cause::actor(actor.name());
        self.orchestration
            .commit(Event::Unmanaged { id, event, cause })
            .await
    }

    /// When a heartbeat is due at the latest that follows one that comes now.
    fn due(&self) -> Micros {
        let patience = self.context.config().unmanaged_heartbeat_timeout;
        let micros = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        Micros(det_store::steady_now().saturating_add(micros))
    }
}

/// The first run has nothing to go on from, whatever the experiment was made from.
fn started_run(trial: TrialRow, resumes: bool) -> StartedRun {
    let goes_on = resumes && trial.run_id > RunId::FIRST;
    let latest_checkpoint = trial.latest_checkpoint.filter(|_| goes_on);
    StartedRun {
        run_id: trial.run_id,
        steps_completed: match &latest_checkpoint {
            Some(_) => trial.latest_checkpoint_steps.unwrap_or(0),
            None => 0,
        },
        latest_checkpoint,
    }
}

/// Refuses to run anything of an experiment that is archived, or in an archived place.
async fn require_open(tx: &mut WriteTx, row: &ExperimentRow) -> AppResult<()> {
    let id = row.id;
    if row.archived {
        return Err(AppError::precondition(format!(
            "experiment {id} is archived, and nothing of it is started"
        ))
        .hint(format!(
            "take it out again with `det experiment unarchive {id}`"
        )));
    }
    let homes = Homes::load(&mut tx.conn()).await?;
    homes.require_open(row.project_id).map(|_| ())
}

/// Refuses ids that could not be part of an address.
fn require_usable(what: &str, id: &str) -> AppResult<()> {
    let why = if id.is_empty() {
        "is empty".to_owned()
    } else if id.len() > LONGEST_ID {
        format!("has {} bytes", id.len())
    } else if let Some(found) = id.chars().find(|c| *c == '/' || c.is_control()) {
        format!("has the character '{}'", found.escape_default())
    } else if matches!(id, "." | "..") {
        format!("is \"{id}\"")
    } else {
        return Ok(());
    };
    Err(AppError::invalid(format!(
        "the {what} of this request {why}: 1 to {LONGEST_ID} bytes without \"/\" and control characters are allowed, \
         because it is part of addresses"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_ids_must_fit_into_an_address() {
        for id in ["a", "sweep 7", "größe", "x.y:z", "100%"] {
            assert!(require_usable("external experiment id", id).is_ok(), "{id}");
        }
        let long = "x".repeat(LONGEST_ID + 1);
        for id in ["", "a/b", "..", "a\nb", "a\0", &long] {
            let refused = require_usable("external experiment id", id).unwrap_err();
            assert!(refused.message.contains("are allowed"), "{id:?}");
        }
    }
}
