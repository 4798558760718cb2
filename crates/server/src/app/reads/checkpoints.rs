//! Reading checkpoints.

pub(crate) mod order;

use std::collections::{BTreeMap, BTreeSet};

use det_api_types::checkpoints::{CheckpointState, GetCheckpointsQuery};
use det_api_types::page::Pagination;
use det_authz::Kind;
use det_config::experiment::mask_document;
use det_ids::{CheckpointId, ExperimentId, TrialId};
use det_store::checkpoints::{self, CheckpointHead, CheckpointRow};
use det_store::experiments::ExperimentRow;
use det_store::metrics::StoredReport;
use det_store::trials::{self, TrialRow};
use serde_json::{Value, json};

use self::order::{sort, sort_key};
use crate::app::checkpoints::Checkpoints;
use crate::app::checkpoints::archive::Format;
use crate::app::checkpoints::files::{Archive, CheckpointFiles};
use crate::app::checkpoints::joined::{
    CheckpointWithValidation, collectable, policy_of, steps_of, validated, with_validations,
};
use crate::app::checkpoints::policy::to_delete;
use crate::app::documents::may_use_secrets;
use crate::app::metrics::TRAINING;
use crate::app::metrics::journal::Journal;
use crate::app::metrics::reports::at_steps;
use crate::app::reads;
use crate::app::reads::paging::{self, PAGE_BYTES};
use crate::app::reads::sight::Sight;
use crate::app::renewal::Renewals;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use det_store::Store;

const STORAGE: &str = "checkpoint_storage";
/// Checkpoints whose reports are read at once: few enough to be looked up one by one.
const AT_ONCE: usize = 16;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Checkpoint, "checkpoints")
}

/// Checkpoints with the training that they come from.
pub(crate) struct TrainedCheckpoints {
    /// The checkpoints, each with its validation.
    pub(crate) checkpoints: Vec<CheckpointWithValidation>,
    /// The experiment that they come from.
    pub(crate) experiment: ExperimentRow,
    /// The trials that wrote them, by number.
    pub(crate) trials: BTreeMap<TrialId, TrialRow>,
    /// Training reports at the checkpoints' steps, by trial and step.
    pub(crate) training: BTreeMap<(TrialId, i64), StoredReport>,
    /// What the reader sees of the experiment's configuration.
    pub(crate) sight: Sight,
    /// Whether the reader is given the credentials of the checkpoint storage, to download with them.
    pub(crate) with_keys: bool,
}

/// What checkpoints are read from.
#[derive(Clone)]
pub(crate) struct CheckpointSources {
    pub(crate) store: Store,
    /// Reports are in it before they are in the store.
    pub(crate) journal: Journal,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) files: CheckpointFiles,
    /// Knows which storage all experiments are given.
    pub(crate) renewals: Renewals,
}

/// A checkpoint as it is shown.
pub(crate) enum ShownCheckpoint {
    /// It comes from a trial.
    Trained(Box<TrainedCheckpoints>),
    /// It comes from no trial: a task without one reported it.
    Bare(Box<CheckpointWithValidation>),
}

/// One page of the checkpoints of an experiment.
pub(crate) async fn of_experiment(
    sources: &CheckpointSources,
    actor: &Actor,
    id: ExperimentId,
    query: &GetCheckpointsQuery,
) -> AppResult<(TrainedCheckpoints, Pagination)> {
    require(actor)?;
    let experiment = reads::experiments::find(&sources.store, actor, id).await?;
    let heads = {
        let mut conn = sources.store.read().await?;
        checkpoints::heads_of_experiment(&mut conn.conn(), id).await?
    };
    page(sources, actor, experiment, heads, query).await
}

/// One page of the checkpoints of a trial.
pub(crate) async fn of_trial(
    sources: &CheckpointSources,
    actor: &Actor,
    id: TrialId,
    query: &GetCheckpointsQuery,
) -> AppResult<(TrainedCheckpoints, Pagination)> {
    require(actor)?;
    let trial = reads::trials::find(&sources.store, actor, id).await?;
    let experiment = reads::experiments::find(&sources.store, actor, trial.experiment_id).await?;
    let heads = {
        let mut conn = sources.store.read().await?;
        checkpoints::heads_of_trial(&mut conn.conn(), id).await?
    };
    page(sources, actor, experiment, heads, query).await
}

/// The page of these checkpoints that is asked for. It ends early where what is shown of them is large.
async fn page(
    sources: &CheckpointSources,
    actor: &Actor,
    experiment: ExperimentRow,
    mut heads: Vec<CheckpointHead>,
    query: &GetCheckpointsQuery,
) -> AppResult<(TrainedCheckpoints, Pagination)> {
    let key = sort_key(
        query.sort_by_attr,
        &query.sort_by_metric,
        query.order_by,
        &experiment.searcher_metric,
        experiment.smaller_is_better,
    )
    .map_err(AppError::invalid)?;
    if !query.states.is_empty() {
        heads.retain(|head| {
            CheckpointState::from_name(head.state.name())
                .is_some_and(|state| query.states.contains(&state))
        });
    }
    sources.journal.flush().await?;
    let store = &sources.store;
    let metrics = match key.metric() {
        Some(metric) => validated(store, &heads, metric).await?,
        None => BTreeMap::new(),
    };
    sort(&mut heads, &key, query.order_by, &metrics);
    let (heads, pagination) = paging::slice(heads, query.offset, query.limit);
    // Each is shown with its experiment's configuration.
    let config = i64::try_from(experiment.config.len()).unwrap_or(i64::MAX);
    let (heads, mut pagination) =
        paging::within(heads, pagination, |head| head.bytes.saturating_add(config));
    let uuids: Vec<CheckpointId> = heads.into_iter().map(|head| head.uuid).collect();
    let rows = {
        let mut conn = store.read().await?;
        checkpoints::find_all(&mut conn.conn(), &uuids).await?
    };
    let mut rows: BTreeMap<CheckpointId, CheckpointRow> = rows
        .into_iter()
        .map(|row| (row.uuid.clone(), row))
        .collect();
    let rows: Vec<CheckpointRow> = uuids.iter().filter_map(|id| rows.remove(id)).collect();
    let count = rows.len();
    let trained = with_training(sources, actor, experiment, rows).await?;
    let dropped = count - trained.checkpoints.len();
    pagination.end_index -= i64::try_from(dropped).unwrap_or(0);
    Ok((trained, pagination))
}

/// Checkpoints with the training that they come from. Where their reports are large the last ones are left out; the first
/// never is.
async fn with_training(
    sources: &CheckpointSources,
    actor: &Actor,
    experiment: ExperimentRow,
    rows: Vec<CheckpointRow>,
) -> AppResult<TrainedCheckpoints> {
    let store = &sources.store;
    let mut trained = TrainedCheckpoints {
        checkpoints: Vec::new(),
        trials: BTreeMap::new(),
        training: BTreeMap::new(),
        sight: Sight::of(actor, experiment.owner_id),
        with_keys: sees_storage_keys(sources, actor, &experiment)?,
        experiment,
    };
    let mut left = PAGE_BYTES;
    for rows in rows.chunks(AT_ONCE) {
        let steps = steps_of(rows.iter().map(|row| (row.trial_id, row.steps)));
        trained
            .training
            .extend(at_steps(store, TRAINING, &steps, None).await?);
        for joined in with_validations(store, rows.to_vec()).await? {
            let at = joined.row.trial_id.map(|trial| (trial, joined.row.steps));
            let training = at.and_then(|at| trained.training.get(&at));
            let reports = training.into_iter().chain(&joined.validation);
            let texts = [
                &joined.row.metadata,
                &joined.row.resources,
                &trained.experiment.config,
            ];
            let shown: usize = texts
                .map(String::len)
                .into_iter()
                .chain(reports.map(bytes_of))
                .sum();
            left = left.saturating_sub(i64::try_from(shown).unwrap_or(i64::MAX));
            if left < 0 && !trained.checkpoints.is_empty() {
                break;
            }
            trained.checkpoints.push(joined);
        }
        if left < 0 {
            break;
        }
    }
    let of_trials = trained
        .checkpoints
        .iter()
        .filter_map(|joined| joined.row.trial_id);
    let ids: Vec<TrialId> = of_trials.collect::<BTreeSet<_>>().into_iter().collect();
    let trials = {
        let mut conn = store.read().await?;
        trials::find_all(&mut conn.conn(), &ids).await?
    };
    trained.trials = trials.into_iter().map(|trial| (trial.id, trial)).collect();
    Ok(trained)
}

/// Bytes of a report's metrics as text.
fn bytes_of(report: &StoredReport) -> usize {
    serde_json::to_string(&report.metrics).map_or(0, |text| text.len())
}

/// Whether a reader is given the credentials of an experiment's checkpoint storage, to download with them: actors who may
/// use the experiment's secrets are, and all are where they are those that the cluster or the workspace gives to every
/// experiment.
fn sees_storage_keys(
    sources: &CheckpointSources,
    reader: &Actor,
    experiment: &ExperimentRow,
) -> AppResult<bool> {
    if may_use_secrets(reader, experiment.owner_id) {
        return Ok(true);
    }
    let config = serde_json::from_str(&experiment.config).map_err(AppError::internal)?;
    let common = sources
        .renewals
        .storage_of_the_cluster(experiment.project_id)?;
    Ok(common
        .iter()
        .any(|common| has_only_keys_of(&config, common)))
}

/// Whether all credentials of the checkpoint storage of a configuration are those of `common`, a storage that the
/// experiments of all users are given.
fn has_only_keys_of(config: &Value, common: &Value) -> bool {
    let storage = &config[STORAGE];
    let shown = &mask_document(&json!({ STORAGE: storage }))[STORAGE];
    storage.as_object().is_none_or(|members| {
        members
            .iter()
            .all(|(key, value)| shown[key] == *value || common[key] == *value)
    })
}

/// The checkpoint with this UUID, or the error "not found".
pub(crate) async fn find(
    sources: &CheckpointSources,
    actor: &Actor,
    uuid: &CheckpointId,
) -> AppResult<ShownCheckpoint> {
    require(actor)?;
    let row = sources.checkpoints.find(uuid).await?;
    shown(sources, actor, row).await
}

/// A checkpoint, whose row is known, as it is shown.
pub(crate) async fn shown(
    sources: &CheckpointSources,
    actor: &Actor,
    row: CheckpointRow,
) -> AppResult<ShownCheckpoint> {
    require(actor)?;
    let (Some(experiment_id), Some(trial_id)) = (row.experiment_id, row.trial_id) else {
        let bare = CheckpointWithValidation {
            row,
            validation: None,
        };
        return Ok(ShownCheckpoint::Bare(Box::new(bare)));
    };
    let store = &sources.store;
    let experiment = reads::experiments::find(store, actor, experiment_id).await?;
    reads::trials::find(store, actor, trial_id).await?;
    sources.journal.flush().await?;
    let trained = with_training(sources, actor, experiment, vec![row]).await?;
    Ok(ShownCheckpoint::Trained(Box::new(trained)))
}

/// The files of a checkpoint as an archive, piece by piece, counted for the caller.
pub(crate) async fn archive(
    sources: &CheckpointSources,
    actor: &Actor,
    uuid: &CheckpointId,
    format: Format,
) -> AppResult<Archive> {
    require(actor)?;
    let account = Some(actor.user().id);
    sources.files.archive(account, uuid, format).await
}

/// How many checkpoints a policy keeps; what is `None` is as the experiment has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PolicyChange {
    /// Best checkpoints of the experiment.
    pub(crate) experiment_best: Option<i64>,
    /// Best checkpoints of each trial.
    pub(crate) trial_best: Option<i64>,
    /// Latest checkpoints of each trial.
    pub(crate) trial_latest: Option<i64>,
}

/// The checkpoints of an experiment that a policy would delete, and the metric that it goes by.
pub(crate) async fn doomed(
    sources: &CheckpointSources,
    actor: &Actor,
    experiment_id: ExperimentId,
    change: PolicyChange,
) -> AppResult<(String, Vec<CheckpointWithValidation>)> {
    require(actor)?;
    let experiment = reads::experiments::find(&sources.store, actor, experiment_id).await?;
    let mut policy = policy_of(&experiment)?;
    for (field, given, kept) in [
        (
            "save_experiment_best",
            change.experiment_best,
            &mut policy.experiment_best,
        ),
        ("save_trial_best", change.trial_best, &mut policy.trial_best),
        (
            "save_trial_latest",
            change.trial_latest,
            &mut policy.trial_latest,
        ),
    ] {
        if let Some(given) = given {
            *kept = usize::try_from(given).map_err(|_| {
                AppError::invalid(format!(
                    "field \"{field}\" must be 0 or more, found {given}"
                ))
            })?;
        }
    }
    sources.journal.flush().await?;
    let (mut joined, protected) = collectable(&sources.store, &experiment).await?;
    let candidates: Vec<_> = joined
        .iter()
        .filter_map(|joined| joined.candidate(&experiment.searcher_metric))
        .collect();
    let doomed: BTreeSet<CheckpointId> = to_delete(&candidates, &protected, &policy)
        .into_iter()
        .collect();
    joined.retain(|joined| doomed.contains(&joined.row.uuid));
    Ok((experiment.searcher_metric, joined))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_every_caller_is_given_are_known_from_others() {
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
}
