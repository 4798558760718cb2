//! Checkpoints with the validations of their steps.
//!
//! A checkpoint normally reaches the master before the validation of the same step (`docs/contract/http-api.md`,
//! "Metric reports"), so the two are put together when they are read.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{CheckpointId, TrialId};
use det_store::checkpoints::{self, CheckpointHead, CheckpointRow, CheckpointState};
use det_store::experiments::ExperimentRow;
use det_store::metrics::{StoredReport, number};
use det_store::{Store, StoreError};

use crate::app::checkpoints::policy::{Candidate, CheckpointValidation, Policy};
use crate::app::metrics::VALIDATION;
use crate::app::metrics::reports::at_steps;
use crate::app::searches::config_of;
use crate::error::AppResult;

/// A checkpoint and the validation of the same trial at the same step.
#[derive(Debug, Clone)]
pub struct CheckpointWithValidation {
    /// Row of the checkpoint.
    pub row: CheckpointRow,
    /// `None` = its step was not validated.
    pub validation: Option<StoredReport>,
}

impl CheckpointWithValidation {
    /// A metric of the validation as a number; `None` when it is missing or none.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.validation.as_ref()?.metrics.get(name).and_then(number)
    }

    /// What a checkpoint policy looks at; `metric` is the searcher's. Checkpoints without a trial are no policy's.
    pub fn candidate(&self, metric: &str) -> Option<Candidate> {
        let validation = self.validation.as_ref().and_then(|report| {
            let metric = self.metric(metric).filter(|m| m.is_finite())?;
            Some(CheckpointValidation {
                metric,
                at: report.at,
            })
        });
        Some(Candidate {
            uuid: self.row.uuid.clone(),
            trial_id: self.row.trial_id?,
            steps: self.row.steps,
            reported_at: self.row.reported_at,
            validation,
        })
    }
}

/// The steps of checkpoints by trial, from the trial and the steps of each.
pub(crate) fn steps_of(
    checkpoints: impl Iterator<Item = (Option<TrialId>, i64)>,
) -> BTreeMap<TrialId, BTreeSet<i64>> {
    let mut all: BTreeMap<TrialId, BTreeSet<i64>> = BTreeMap::new();
    for (trial_id, steps) in checkpoints {
        if let Some(trial_id) = trial_id {
            all.entry(trial_id).or_default().insert(steps);
        }
    }
    all
}

/// A metric of the validations of checkpoints, as a number: by trial and step.
pub(crate) async fn validated(
    store: &Store,
    heads: &[CheckpointHead],
    metric: &str,
) -> Result<BTreeMap<(TrialId, i64), f64>, StoreError> {
    let wanted = steps_of(heads.iter().map(|head| (head.trial_id, head.steps)));
    let reports = at_steps(store, VALIDATION, &wanted, Some(metric)).await?;
    let value = |report: &StoredReport| report.metrics.get(metric).and_then(number);
    Ok(reports
        .iter()
        .filter_map(|(at, report)| Some((*at, value(report)?)))
        .collect())
}

/// Finds the validations of checkpoints, in the order given.
pub async fn with_validations(
    store: &Store,
    rows: Vec<CheckpointRow>,
) -> Result<Vec<CheckpointWithValidation>, StoreError> {
    let wanted = steps_of(rows.iter().map(|row| (row.trial_id, row.steps)));
    let found = at_steps(store, VALIDATION, &wanted, None).await?;
    Ok(rows
        .into_iter()
        .map(|row| CheckpointWithValidation {
            validation: row
                .trial_id
                .and_then(|id| found.get(&(id, row.steps)).cloned()),
            row,
        })
        .collect())
}

/// The checkpoint policy of an experiment.
pub(crate) fn policy_of(row: &ExperimentRow) -> AppResult<Policy> {
    let storage = config_of(row)?.checkpoint_storage;
    let places = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(Policy {
        experiment_best: places(storage.save_experiment_best),
        trial_best: places(storage.save_trial_best),
        trial_latest: places(storage.save_trial_latest),
        smaller_is_better: row.smaller_is_better,
    })
}

/// The checkpoints that a policy decides over, and those that it must keep.
pub(crate) async fn collectable(
    store: &Store,
    row: &ExperimentRow,
) -> AppResult<(Vec<CheckpointWithValidation>, BTreeSet<CheckpointId>)> {
    let (rows, protected) = {
        let mut conn = store.read().await?;
        let rows = checkpoints::of_experiment(&mut conn.conn(), row.id).await?;
        (
            rows,
            checkpoints::warm_start_sources(&mut conn.conn()).await?,
        )
    };
    let stored = rows
        .into_iter()
        .filter(|c| {
            matches!(
                c.state,
                CheckpointState::Completed | CheckpointState::PartiallyDeleted
            )
        })
        .collect();
    Ok((
        with_validations(store, stored).await?,
        protected.into_iter().collect(),
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn joined(uuid: &str, steps: i64, loss: Option<f64>) -> CheckpointWithValidation {
        CheckpointWithValidation {
            row: CheckpointRow {
                uuid: uuid.into(),
                experiment_id: Some(det_ids::ExperimentId(3)),
                trial_id: Some(TrialId(9)),
                task_id: "3.r".into(),
                allocation_id: Some("3.r.1".into()),
                state: CheckpointState::Completed,
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
}
