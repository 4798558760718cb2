//! Reading checkpoints.

pub(crate) mod order;

use std::collections::{BTreeMap, BTreeSet};

use det_api_types::checkpoints::{CheckpointState, GetCheckpointsQuery};
use det_api_types::page::Pagination;
use det_authz::Kind;
use det_config::experiment::mask_document;
use det_ids::{ExperimentId, TrialId};
use det_store::checkpoints::{self, CheckpointRow};
use det_store::experiments::ExperimentRow;
use det_store::metrics::StoredReport;
use det_store::trials::{self, TrialRow};
use serde_json::{Value, json};

use self::order::{sort, sort_key};
use crate::app::checkpoints::archive::Format;
use crate::app::checkpoints::files::Archive;
use crate::app::checkpoints::joined::{Joined, collectable, policy_of, with_validations};
use crate::app::checkpoints::policy::to_delete;
use crate::app::documents::may_use_secrets;
use crate::app::metrics::TRAINING;
use crate::app::metrics::reports::at_steps;
use crate::app::reads::paging;
use crate::app::reads::sight::Sight;
use crate::app::{Master, reads};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

const STORAGE: &str = "checkpoint_storage";

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Checkpoint, "checkpoints")
}

/// Checkpoints with the training that they come from.
pub(crate) struct Trained {
    /// The checkpoints.
    pub(crate) checkpoints: Vec<Joined>,
    /// The experiment that they come from.
    pub(crate) experiment: ExperimentRow,
    /// Their trials by id.
    pub(crate) trials: BTreeMap<TrialId, TrialRow>,
    /// Training reports at the checkpoints' steps, by trial and step.
    pub(crate) training: BTreeMap<(TrialId, i64), StoredReport>,
    /// What the reader sees of the experiment's configuration.
    pub(crate) sight: Sight,
    /// Whether the reader is given the credentials of the checkpoint storage, to download with them.
    pub(crate) with_keys: bool,
}

/// A checkpoint as it is shown.
pub(crate) enum Found {
    /// It comes from a trial.
    Trained(Box<Trained>),
    /// It does not.
    Bare(Box<Joined>),
}

/// One page of the checkpoints of an experiment.
pub(crate) async fn of_experiment(
    master: &Master,
    actor: &Actor,
    id: ExperimentId,
    query: &GetCheckpointsQuery,
) -> AppResult<(Trained, Pagination)> {
    require(actor)?;
    let experiment = reads::experiments::find(&master.context.store, actor, id).await?;
    let rows = {
        let mut conn = master.context.store.read().await?;
        checkpoints::of_experiment(&mut conn.conn(), id).await?
    };
    page(master, actor, experiment, rows, query).await
}

/// One page of the checkpoints of a trial.
pub(crate) async fn of_trial(
    master: &Master,
    actor: &Actor,
    id: TrialId,
    query: &GetCheckpointsQuery,
) -> AppResult<(Trained, Pagination)> {
    require(actor)?;
    let trial = reads::trials::find(&master.context.store, actor, id).await?;
    let experiment =
        reads::experiments::find(&master.context.store, actor, trial.experiment_id).await?;
    let rows = {
        let mut conn = master.context.store.read().await?;
        checkpoints::of_trial(&mut conn.conn(), id).await?
    };
    page(master, actor, experiment, rows, query).await
}

async fn page(
    master: &Master,
    actor: &Actor,
    experiment: ExperimentRow,
    mut rows: Vec<CheckpointRow>,
    query: &GetCheckpointsQuery,
) -> AppResult<(Trained, Pagination)> {
    let key = sort_key(
        query.sort_by_attr,
        &query.sort_by_metric,
        query.order_by,
        &experiment.searcher_metric,
        experiment.smaller_is_better,
    )
    .map_err(AppError::invalid)?;
    if !query.states.is_empty() {
        rows.retain(|row| {
            CheckpointState::from_name(row.state.name())
                .is_some_and(|state| query.states.contains(&state))
        });
    }
    master.metric_journal.flush().await?;
    let (joined, pagination) = if key.needs_validations() {
        let mut joined = with_validations(&master.context.store, rows).await?;
        sort(&mut joined, &key, query.order_by);
        paging::slice(joined, query.offset, query.limit)
    } else {
        let mut bare: Vec<Joined> = rows.into_iter().map(bare).collect();
        sort(&mut bare, &key, query.order_by);
        let (bare, pagination) = paging::slice(bare, query.offset, query.limit);
        let rows = bare.into_iter().map(|joined| joined.row).collect();
        (
            with_validations(&master.context.store, rows).await?,
            pagination,
        )
    };
    let trained = with_training(master, actor, experiment, joined).await?;
    Ok((trained, pagination))
}

fn bare(row: CheckpointRow) -> Joined {
    Joined {
        row,
        validation: None,
    }
}

async fn with_training(
    master: &Master,
    actor: &Actor,
    experiment: ExperimentRow,
    checkpoints: Vec<Joined>,
) -> AppResult<Trained> {
    let mut steps: BTreeMap<TrialId, BTreeSet<i64>> = BTreeMap::new();
    for joined in &checkpoints {
        if let Some(trial_id) = joined.row.trial_id {
            steps.entry(trial_id).or_default().insert(joined.row.steps);
        }
    }
    let training = at_steps(&master.context.store, TRAINING, &steps).await?;
    let trial_ids: Vec<TrialId> = steps.into_keys().collect();
    let trials = {
        let mut conn = master.context.store.read().await?;
        trials::find_all(&mut conn.conn(), &trial_ids).await?
    };
    Ok(Trained {
        checkpoints,
        trials: trials.into_iter().map(|trial| (trial.id, trial)).collect(),
        training,
        sight: Sight::of(actor, experiment.owner_id),
        with_keys: sees_storage_keys(master, actor, &experiment)?,
        experiment,
    })
}

/// Whether a reader is given the credentials of an experiment's checkpoint storage, to download with them: actors who may
/// use the experiment's secrets are, and all are where they are those that the cluster or the workspace gives to every
/// experiment.
fn sees_storage_keys(
    master: &Master,
    reader: &Actor,
    experiment: &ExperimentRow,
) -> AppResult<bool> {
    if may_use_secrets(reader, experiment.owner_id) {
        return Ok(true);
    }
    let config = serde_json::from_str(&experiment.config).map_err(AppError::internal)?;
    let common = master
        .renewals
        .storage_of_everybody(experiment.project_id)?;
    Ok(common
        .iter()
        .any(|common| has_only_keys_of(&config, common)))
}

/// Whether all credentials of the checkpoint storage of a configuration are those of `common`, a storage that everybody's
/// experiments are given.
fn has_only_keys_of(config: &Value, common: &Value) -> bool {
    let storage = &config[STORAGE];
    let shown = &mask_document(&json!({ STORAGE: storage }))[STORAGE];
    storage.as_object().is_none_or(|members| {
        members
            .iter()
            .all(|(key, value)| shown[key] == *value || common[key] == *value)
    })
}

/// One checkpoint.
pub(crate) async fn find(master: &Master, actor: &Actor, uuid: &str) -> AppResult<Found> {
    require(actor)?;
    let row = master.checkpoints.find(uuid).await?;
    shown(master, actor, row).await
}

/// A checkpoint, whose row is known, as it is shown.
pub(crate) async fn shown(master: &Master, actor: &Actor, row: CheckpointRow) -> AppResult<Found> {
    require(actor)?;
    let (Some(experiment_id), Some(trial_id)) = (row.experiment_id, row.trial_id) else {
        return Ok(Found::Bare(Box::new(bare(row))));
    };
    let store = &master.context.store;
    let experiment = reads::experiments::find(store, actor, experiment_id).await?;
    reads::trials::find(store, actor, trial_id).await?;
    master.metric_journal.flush().await?;
    let joined = with_validations(store, vec![row]).await?;
    let trained = with_training(master, actor, experiment, joined).await?;
    Ok(Found::Trained(Box::new(trained)))
}

/// The files of a checkpoint as an archive, piece by piece, counted for who asks.
pub(crate) async fn archive(
    master: &Master,
    actor: &Actor,
    uuid: &str,
    format: Format,
) -> AppResult<Archive> {
    require(actor)?;
    let account = Some(actor.user().id);
    master.checkpoint_files.archive(account, uuid, format).await
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
    master: &Master,
    actor: &Actor,
    experiment_id: ExperimentId,
    change: PolicyChange,
) -> AppResult<(String, Vec<Joined>)> {
    require(actor)?;
    let experiment = reads::experiments::find(&master.context.store, actor, experiment_id).await?;
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
    master.metric_journal.flush().await?;
    let (mut joined, protected) = collectable(&master.context.store, &experiment).await?;
    let candidates: Vec<_> = joined
        .iter()
        .filter_map(|joined| joined.candidate(&experiment.searcher_metric))
        .collect();
    let doomed: BTreeSet<String> = to_delete(&candidates, &protected, &policy)
        .into_iter()
        .collect();
    joined.retain(|joined| doomed.contains(&joined.row.uuid));
    Ok((experiment.searcher_metric, joined))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
