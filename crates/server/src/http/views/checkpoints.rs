//! Checkpoints as clients see them.

use det_api_types::checkpoints::{Checkpoint, CheckpointState, CheckpointTrainingMetadata};
use det_api_types::wire::{Float, Int64, Object, Timestamp};
use det_store::StoreError;
use det_store::experiments::ExperimentRow;
use det_store::metrics::StoredReport;
use det_store::trials::TrialRow;
use serde_json::Value;

use crate::app::checkpoints::joined::CheckpointWithValidation;
use crate::app::checkpoints::resources;
use crate::app::reads::document;
use crate::app::reads::sight::Sight;
use crate::http::views::experiments::object;
use crate::http::views::trials::{BatchMetrics, hyperparameters, metrics};

const STORAGE: &str = "checkpoint_storage";

/// The training that a checkpoint comes from.
#[derive(Debug, Clone)]
pub struct Training<'a> {
    /// Row of the trial that reported the checkpoint.
    pub trial: &'a TrialRow,
    /// The configuration of the experiment, see [`download_config`].
    pub config: &'a Object,
    /// The searcher's metric.
    pub metric: &'a str,
    /// Training metrics of the same step.
    pub training: Option<StoredReport>,
}

/// The effective configuration as it is seen. With `with_keys` the checkpoint storage is whole: clients download with that
/// (`docs/contract/http-api.md`, "Checkpoints").
pub fn download_config(
    row: &ExperimentRow,
    sight: Sight,
    with_keys: bool,
) -> Result<Object, StoreError> {
    let config = document("configuration of experiment", row.id, &row.config)?;
    let mut masked = sight.mask(&config);
    if let Some(storage) = config.get(STORAGE).filter(|_| with_keys) {
        masked[STORAGE] = storage.clone();
    }
    match masked {
        Value::Object(members) => Ok(Object(members)),
        _ => Err(StoreError::Corrupt {
            what: format!("configuration of experiment {}", row.id),
            message: "not an object".into(),
        }),
    }
}

/// A checkpoint; without `training` when it comes from none.
pub fn checkpoint(
    joined: &CheckpointWithValidation,
    training: Option<Training<'_>>,
) -> Result<Checkpoint, StoreError> {
    let row = &joined.row;
    let training = match training {
        None => CheckpointTrainingMetadata::default(),
        Some(training) => CheckpointTrainingMetadata {
            trial_id: Some(training.trial.id),
            experiment_id: Some(training.trial.experiment_id),
            experiment_config: Some(training.config.clone()),
            hparams: Some(hyperparameters(training.trial)?),
            training_metrics: training
                .training
                .map(|report| metrics(report, BatchMetrics::Left)),
            validation_metrics: joined
                .validation
                .clone()
                .map(|report| metrics(report, BatchMetrics::Left)),
            searcher_metric: joined.metric(training.metric).map(Float),
        },
    };
    Ok(Checkpoint {
        uuid: row.uuid.clone(),
        task_id: Some(row.task_id.clone()),
        allocation_id: row.allocation_id.clone(),
        report_time: Some(Timestamp(row.reported_at)),
        resources: resources(row)?
            .into_iter()
            .map(|(path, size)| (path, Int64(size)))
            .collect(),
        metadata: object("metadata of checkpoint", &row.uuid, &row.metadata)?,
        state: CheckpointState::from_name(row.state.name()).unwrap_or_default(),
        training,
        storage_id: row.storage_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::checkpoints::joined::tests::joined;
    use crate::http::views::{experiments, trials};

    #[test]
    fn only_the_storage_is_shown_with_its_keys() {
        let row = experiments::tests::row();
        let shown = |with_keys| {
            let config = download_config(&row, Sight::Others, with_keys).unwrap();
            config.into_value()
        };
        let config = shown(true);
        assert_eq!(config["checkpoint_storage"]["secret_key"], "SK");
        assert_eq!(config["data"]["secrets"]["token"], "********");
        let config = shown(false);
        assert_eq!(config["checkpoint_storage"]["secret_key"], "********");
    }

    #[test]
    fn a_checkpoint_is_shown_with_its_training() {
        let (trial, config) = (trials::tests::row(), Object::default());
        let training = Training {
            trial: &trial,
            config: &config,
            metric: "loss",
            training: None,
        };
        let shown =
            serde_json::to_value(checkpoint(&joined("u", 5, Some(0.5)), Some(training)).unwrap())
                .unwrap();
        assert_eq!(shown["resources"]["m.pt"], "26");
        assert_eq!(shown["training"]["searcherMetric"], 0.5);
        assert_eq!(
            shown["training"]["validationMetrics"]["avgMetrics"]["loss"],
            0.5
        );
        assert_eq!(shown["training"]["trialId"], 9);
        assert_eq!(shown["training"]["hparams"]["lr"], 0.1);
        assert_eq!(shown["metadata"]["steps_completed"], 5);
    }
}
