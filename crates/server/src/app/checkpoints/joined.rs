//! Checkpoints with the validations of their steps.
//!
//! A checkpoint normally reaches the master before the validation of the same step (`wire-contract` reference §11.1),
//! so the two are put together when they are read.

use std::collections::{BTreeMap, BTreeSet};

use det_store::checkpoints::CheckpointRow;
use det_store::metrics::{StoredReport, number};
use det_store::{Store, StoreError};

use crate::app::checkpoints::policy::{Candidate, Validated};
use crate::app::checkpoints::reports::{Outdating, at_steps};
use crate::app::metrics::VALIDATION;

/// A checkpoint and the validation of the same trial at the same step.
#[derive(Debug, Clone)]
pub struct Joined {
    /// The checkpoint.
    pub row: CheckpointRow,
    /// `None` = its step was not validated.
    pub validation: Option<StoredReport>,
}

impl Joined {
    /// A metric of the validation as a number; `None` when it is missing or none.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.validation.as_ref()?.metrics.get(name).and_then(number)
    }

    /// What a checkpoint policy looks at; `metric` is the searcher's. Checkpoints without a trial are no policy's.
    pub fn candidate(&self, metric: &str) -> Option<Candidate> {
        let validation = self.validation.as_ref().and_then(|report| {
            let metric = self.metric(metric).filter(|m| m.is_finite())?;
            Some(Validated { metric, at: report.at })
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

/// Finds the validations of checkpoints, in the order given: one look at each trial among them.
pub async fn with_validations(store: &Store, rows: Vec<CheckpointRow>) -> Result<Vec<Joined>, StoreError> {
    let mut wanted: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for row in &rows {
        if let Some(trial_id) = row.trial_id {
            wanted.entry(trial_id).or_default().insert(row.steps);
        }
    }
    let mut found: BTreeMap<(i64, i64), StoredReport> = BTreeMap::new();
    for (trial_id, steps) in wanted {
        let outdating = Outdating::load(store, trial_id).await?;
        for (step, report) in at_steps(store, &outdating, trial_id, VALIDATION, &steps).await? {
            found.insert((trial_id, step), report);
        }
    }
    Ok(rows
        .into_iter()
        .map(|row| Joined { validation: row.trial_id.and_then(|id| found.get(&(id, row.steps)).cloned()), row })
        .collect())
}
