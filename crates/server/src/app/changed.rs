//! Changes that are answered with what they changed: a service makes the change, and a reader shows it to who asked.

use det_ids::ExperimentId;

use crate::app::Master;
use crate::app::experiments::{CreatedExperiment, ExperimentPatch};
use crate::app::reads::experiments::{self, Shown};
use crate::app::submission::NewExperimentRequest;
use crate::auth::Actor;
use crate::error::AppResult;

/// Creates an experiment; without it when the submission was only checked.
pub(crate) async fn created_experiment(
    master: &Master,
    actor: &Actor,
    request: NewExperimentRequest,
) -> AppResult<(CreatedExperiment, Option<Shown>)> {
    let created = master.experiments.create(actor, request).await?;
    let shown = match created.id {
        Some(id) => Some(experiments::one(master, actor, id).await?),
        None => None,
    };
    Ok((created, shown))
}

/// Lets an ended experiment go on, with changed settings if any.
pub(crate) async fn continued_experiment(
    master: &Master,
    actor: &Actor,
    id: ExperimentId,
    override_config: &str,
) -> AppResult<Shown> {
    let service = &master.experiments;
    service.continue_ended(actor, id, override_config).await?;
    experiments::one(master, actor, id).await
}

/// Changes texts, labels, resources or checkpoint policy of an experiment.
pub(crate) async fn patched_experiment(
    master: &Master,
    actor: &Actor,
    id: ExperimentId,
    patch: ExperimentPatch,
) -> AppResult<Shown> {
    master.experiments.patch(actor, id, patch).await?;
    experiments::one(master, actor, id).await
}
