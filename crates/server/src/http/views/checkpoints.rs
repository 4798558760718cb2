//! Checkpoints as clients see them.

use std::cmp::Ordering;

use det_api_types::checkpoints::{
    Checkpoint, CheckpointSortBy, CheckpointState, CheckpointTrainingMetadata,
};
use det_api_types::page::OrderBy;
use det_api_types::wire::{Float, Int64, Object, Timestamp};
use det_config::experiment::mask_document;
use det_store::StoreError;
use det_store::experiments::ExperimentRow;
use det_store::metrics::StoredReport;
use det_store::trials::TrialRow;
use serde_json::{Value, json};

use crate::app::checkpoints::joined::Joined;
use crate::app::checkpoints::resources;
use crate::http::views::experiments::{Sight, document, object};
use crate::http::views::trials::{BatchMetrics, metrics};

const STORAGE: &str = "checkpoint_storage";

/// The training that a checkpoint comes from.
#[derive(Debug, Clone)]
pub struct Training<'a> {
    /// Its trial.
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

/// Whether all credentials of the checkpoint storage of a configuration are those of `common`, a storage that everybody's
/// experiments are given.
pub fn has_only_keys_of(config: &Value, common: &Value) -> bool {
    let storage = &config[STORAGE];
    let shown = &mask_document(&json!({ STORAGE: storage }))[STORAGE];
    storage.as_object().is_none_or(|members| {
        members
            .iter()
            .all(|(key, value)| shown[key] == *value || common[key] == *value)
    })
}

/// A checkpoint; without `training` when it comes from none.
pub fn checkpoint(
    joined: &Joined,
    training: Option<Training<'_>>,
) -> Result<Checkpoint, StoreError> {
    let row = &joined.row;
    let training = match training {
        None => CheckpointTrainingMetadata::default(),
        Some(training) => CheckpointTrainingMetadata {
            trial_id: Some(training.trial.id),
            experiment_id: Some(training.trial.experiment_id),
            experiment_config: Some(training.config.clone()),
            hparams: Some(object(
                "hyperparameters of trial",
                training.trial.id,
                &training.trial.hparams,
            )?),
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
        state: CheckpointState::from_name(&row.state).unwrap_or_default(),
        training,
        storage_id: row.storage_id,
    })
}

/// What a listing is sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SortKey {
    /// An attribute of the checkpoint.
    Attribute(CheckpointSortBy),
    /// A validation metric; checkpoints without it come last.
    Metric {
        /// Its name.
        name: String,
        /// Whether the largest comes first.
        largest_first: bool,
    },
}

impl SortKey {
    /// Whether the order depends on validations.
    pub fn needs_validations(&self) -> bool {
        matches!(self, Self::Metric { .. })
    }
}

/// What a request asks to sort by. `metric` is the searcher's, which is the key when nothing is asked; better values of
/// it come first unless a direction is given. `Err` names the fields that exclude each other.
pub fn sort_key(
    attribute: CheckpointSortBy,
    by_metric: &str,
    order: OrderBy,
    metric: &str,
    smaller_is_better: bool,
) -> Result<SortKey, &'static str> {
    match (attribute, by_metric) {
        (CheckpointSortBy::Unspecified | CheckpointSortBy::SearcherMetric, "") => {
            Ok(SortKey::Metric {
                name: metric.to_owned(),
                largest_first: match order {
                    OrderBy::Unspecified => !smaller_is_better,
                    OrderBy::Asc => false,
                    OrderBy::Desc => true,
                },
            })
        }
        (CheckpointSortBy::Unspecified, name) => Ok(SortKey::Metric {
            name: name.to_owned(),
            largest_first: order == OrderBy::Desc,
        }),
        (attribute, "") => Ok(SortKey::Attribute(attribute)),
        _ => Err("fields \"sortByAttr\" and \"sortByMetric\" exclude each other: give one of them"),
    }
}

/// Sorts a listing; the uuid is the tie break.
pub fn sort(items: &mut [Joined], key: &SortKey, order: OrderBy) {
    match key {
        SortKey::Attribute(attribute) => items.sort_by(|a, b| {
            let ascending =
                by_attribute(*attribute, a, b).then_with(|| a.row.uuid.cmp(&b.row.uuid));
            if order == OrderBy::Desc {
                ascending.reverse()
            } else {
                ascending
            }
        }),
        SortKey::Metric {
            name,
            largest_first,
        } => items.sort_by(|a, b| {
            // What is not finite ranks with what is not there.
            let value = |item: &Joined| item.metric(name).filter(|m| m.is_finite());
            let order = match (value(a), value(b)) {
                (Some(a), Some(b)) if *largest_first => b.total_cmp(&a),
                (Some(a), Some(b)) => a.total_cmp(&b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            order.then_with(|| a.row.uuid.cmp(&b.row.uuid))
        }),
    }
}

fn by_attribute(attribute: CheckpointSortBy, a: &Joined, b: &Joined) -> Ordering {
    let (a, b) = (&a.row, &b.row);
    match attribute {
        // The searcher's metric is a metric and never comes here.
        CheckpointSortBy::Unspecified
        | CheckpointSortBy::SearcherMetric
        | CheckpointSortBy::Uuid => Ordering::Equal,
        CheckpointSortBy::TrialId => a.trial_id.cmp(&b.trial_id),
        CheckpointSortBy::BatchNumber => a.steps.cmp(&b.steps),
        CheckpointSortBy::EndTime => a.reported_at.cmp(&b.reported_at),
        CheckpointSortBy::State => a.state.cmp(&b.state),
    }
}

#[cfg(test)]
mod tests {
    use det_store::checkpoints::CheckpointRow;
    use serde_json::json;

    use super::*;
    use crate::http::views::{experiments, trials};

    fn joined(uuid: &str, steps: i64, loss: Option<f64>) -> Joined {
        Joined {
            row: CheckpointRow {
                uuid: uuid.into(),
                experiment_id: Some(3),
                trial_id: Some(9),
                task_id: "3.r".into(),
                allocation_id: Some("3.r.1".into()),
                state: "COMPLETED".into(),
                steps,
                metadata: format!("{{\"steps_completed\":{steps}}}"),
                resources: r#"{"m.pt":26}"#.into(),
                bytes: 26,
                reported_at: 1,
                storage_id: None,
                owner_uid: None,
                removing: None,
            },
            validation: loss.map(|loss| StoredReport {
                step: Some(steps),
                at: 0,
                metrics: serde_json::Map::from_iter([("loss".to_owned(), json!(loss))]),
                batches: None,
                report_id: None,
            }),
        }
    }

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
    fn keys_that_everybody_is_given_are_known_from_others() {
        let storage = json!({"type": "s3", "bucket": "mine", "access_key": "AK", "secret_key": "SK",
            "save_trial_best": 1});
        let config = json!({ "checkpoint_storage": storage });
        assert!(has_only_keys_of(&config, &storage));
        let common = json!({"type": "s3", "bucket": "all", "access_key": "AK", "secret_key": "SK"});
        assert!(has_only_keys_of(&config, &common));
        for other in [
            json!({"access_key": "AK"}),
            json!({"secret_key": "no", "access_key": "AK"}),
            Value::Null,
        ] {
            assert!(!has_only_keys_of(&config, &other), "{other}");
        }
        let plain = json!({"checkpoint_storage": {"type": "shared_fs", "host_path": "/x"}});
        assert!(has_only_keys_of(&plain, &Value::Null));
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

    fn sorted(attribute: CheckpointSortBy, order: OrderBy, smaller_is_better: bool) -> Vec<String> {
        let mut items = vec![
            joined("a", 3, None),
            joined("b", 2, Some(0.5)),
            joined("c", 1, Some(0.1)),
            joined("d", 4, Some(0.5)),
        ];
        let key = sort_key(attribute, "", order, "loss", smaller_is_better).unwrap();
        sort(&mut items, &key, order);
        items.into_iter().map(|j| j.row.uuid).collect()
    }

    #[test]
    fn better_ones_come_first_and_unvalidated_ones_last() {
        use CheckpointSortBy::{BatchNumber, SearcherMetric, Unspecified, Uuid};
        assert_eq!(
            sorted(Unspecified, OrderBy::Unspecified, true),
            ["c", "b", "d", "a"]
        );
        assert_eq!(
            sorted(SearcherMetric, OrderBy::Unspecified, false),
            ["b", "d", "c", "a"]
        );
        assert_eq!(
            sorted(SearcherMetric, OrderBy::Asc, false),
            ["c", "b", "d", "a"]
        );
        assert_eq!(
            sorted(BatchNumber, OrderBy::Desc, true),
            ["d", "a", "b", "c"]
        );
        assert_eq!(
            sorted(Uuid, OrderBy::Unspecified, true),
            ["a", "b", "c", "d"]
        );
    }

    #[test]
    fn two_sort_keys_are_refused() {
        assert!(sort_key(CheckpointSortBy::Uuid, "loss", OrderBy::Asc, "loss", true).is_err());
    }
}
