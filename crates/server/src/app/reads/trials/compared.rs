//! Reading the metrics of several trials side by side.

use std::collections::{BTreeMap, HashSet};

use det_ids::TrialId;
use det_store::series::Point;

use crate::app::metrics::series::SeriesQuery;
use crate::app::reads::trials::{TrialSources, TrialWithParts, compacted};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Names of metrics, by group.
pub(crate) type Names = BTreeMap<String, Vec<String>>;

/// A trial with points of its metrics.
pub(crate) struct ComparedTrial {
    /// The trial as it is shown elsewhere.
    pub(crate) trial: TrialWithParts,
    /// Points by group and metric.
    pub(crate) groups: Vec<(String, BTreeMap<String, Vec<Point>>)>,
}

/// Trials that are compared at most: the answer has the points of all of them.
const MOST_COMPARED: usize = 200;

/// Points of the named metrics of trials, each once, in the order of the trials.
pub(crate) async fn compare(
    sources: &TrialSources,
    actor: &Actor,
    trial_ids: Vec<TrialId>,
    names: &Names,
    look: &SeriesQuery,
) -> AppResult<Vec<ComparedTrial>> {
    if trial_ids.len() > MOST_COMPARED {
        return Err(AppError::invalid(format!(
            "field \"trialIds\" names {} trials, of at most {MOST_COMPARED}",
            trial_ids.len()
        )));
    }
    let mut seen = HashSet::new();
    let trial_ids: Vec<TrialId> = trial_ids
        .into_iter()
        .filter(|id| seen.insert(*id))
        .collect();
    sources.journal.flush().await?;
    let mut compared = Vec::with_capacity(trial_ids.len());
    for trial_id in trial_ids {
        let trial = compacted(&sources.store, actor, trial_id).await?;
        let mut groups = Vec::with_capacity(names.len());
        for (group, names) in names {
            let points = sources.series.points(trial_id, group, names, look).await?;
            groups.push((group.clone(), points));
        }
        compared.push(ComparedTrial { trial, groups });
    }
    Ok(compared)
}
