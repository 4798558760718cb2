//! Experiments as clients see them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use det_api_types::experiments::{Experiment, ExperimentState};
use det_api_types::trials::TrialState;
use det_api_types::wire::{Float, Int64, Object, RawObject, Timestamp};
use det_config::experiment::{mask_member, may_hold_secrets};
use det_config::submitted::{self, SubmittedDocument};
use det_lifecycle::{experiment, trial};
use det_store::StoreError;
use det_store::experiments::ExperimentRow;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::app::reads::document;
use crate::app::reads::experiments::{Home, ShownExperiments};
use crate::app::reads::phase::Phase;
use crate::app::reads::sight::Sight;
use crate::error::{AppError, AppResult};

/// Words one of which is in every configuration with a secret. A text without them needs no closer look.
const SECRET_WORDS: [&str; 6] = [
    "secret",
    "key",
    "token",
    "connection_string",
    "credential",
    "auth",
];

/// The reported state of an experiment.
pub fn state(stored: experiment::ExperimentState, phase: Phase) -> ExperimentState {
    use experiment::{ExperimentState as Stored, Stop};
    match (stored, phase) {
        (Stored::Active, Phase::Queued) => ExperimentState::Queued,
        (Stored::Active, Phase::Pulling) => ExperimentState::Pulling,
        (Stored::Active, Phase::Starting) => ExperimentState::Starting,
        (Stored::Active, Phase::Running) => ExperimentState::Running,
        (Stored::Paused, _) => ExperimentState::Paused,
        (Stored::Stopping(Stop::Canceled), _) => ExperimentState::StoppingCanceled,
        (Stored::Stopping(Stop::Killed), _) => ExperimentState::StoppingKilled,
        (Stored::Stopping(Stop::Completed), _) => ExperimentState::StoppingCompleted,
        (Stored::Stopping(Stop::Errored), _) => ExperimentState::StoppingError,
        (Stored::Completed, _) => ExperimentState::Completed,
        (Stored::Canceled, _) => ExperimentState::Canceled,
        (Stored::Errored, _) => ExperimentState::Error,
        // Removed once it has ended; clients know one word for both.
        (Stored::StoppingToDelete(_) | Stored::Deleting, _) => ExperimentState::Deleting,
        (Stored::DeleteFailed, _) => ExperimentState::DeleteFailed,
    }
}

/// The reported state of a trial.
pub fn trial_state(stored: trial::TrialState, phase: Phase) -> TrialState {
    use trial::{Stop, TrialState as Stored};
    match (stored, phase) {
        (Stored::Active, Phase::Queued) => TrialState::Queued,
        (Stored::Active, Phase::Pulling) => TrialState::Pulling,
        (Stored::Active, Phase::Starting) => TrialState::Starting,
        (Stored::Active, Phase::Running) => TrialState::Running,
        (Stored::Paused | Stored::Pausing, _) => TrialState::Paused,
        (Stored::Stopping(Stop::Canceled), _) => TrialState::StoppingCanceled,
        (Stored::Stopping(Stop::Killed), _) => TrialState::StoppingKilled,
        (Stored::Stopping(Stop::BySearch | Stop::Early(_)), _) => TrialState::StoppingCompleted,
        (Stored::Completed, _) => TrialState::Completed,
        (Stored::Canceled, _) => TrialState::Canceled,
        (Stored::Errored, _) => TrialState::Error,
    }
}

/// A stored JSON object.
pub fn object(what: &str, id: impl std::fmt::Display, text: &str) -> Result<Object, StoreError> {
    match document(what, &id, text)? {
        Value::Object(members) => Ok(Object(members)),
        other => Err(StoreError::Corrupt {
            what: format!("{what} {id}"),
            message: format!("not an object: {other}"),
        }),
    }
}

/// The effective configuration of an experiment with its secrets hidden, and the parts of it that are shown by themselves.
struct ShownConfig {
    whole: RawObject,
    hyperparameters: Option<RawObject>,
    pachyderm: Option<RawObject>,
}

impl ShownConfig {
    /// Of the stored text. Only members that may hold secrets are read; a list has many experiments, and of each the rest
    /// is copied as it is.
    fn of(row: &ExperimentRow, sight: Sight) -> Result<Self, StoreError> {
        let corrupt = |e: serde_json::Error| StoreError::Corrupt {
            what: format!("configuration of experiment {}", row.id),
            message: e.to_string(),
        };
        let mut members: BTreeMap<String, Cow<'_, RawValue>> =
            serde_json::from_str::<BTreeMap<String, &RawValue>>(&row.config)
                .map_err(corrupt)?
                .into_iter()
                .map(|(name, text)| (name, Cow::Borrowed(text)))
                .collect();
        for (name, text) in &mut members {
            let holds_more =
                || sight == Sight::Others && (name == "environment" || text.get().contains("://"));
            if may_hold_secrets(name, text.get()) || holds_more() {
                let member = serde_json::from_str(text.get()).map_err(corrupt)?;
                let masked = mask_member(name, &member, |document| sight.mask(document));
                let masked = to_raw_value(&masked).map_err(corrupt)?;
                *text = Cow::Owned(masked);
            }
        }
        let object = |text: &RawValue| RawObject::new(text.to_owned());
        let pachyderm = match members.get("integrations") {
            Some(text) if text.get().starts_with('{') => {
                serde_json::from_str::<BTreeMap<String, &RawValue>>(text.get())
                    .map_err(corrupt)?
                    .get("pachyderm")
                    .and_then(|text| object(text))
            }
            _ => None,
        };
        Ok(Self {
            whole: RawObject::new(to_raw_value(&members).map_err(corrupt)?).unwrap_or_default(),
            hyperparameters: members.get("hyperparameters").and_then(|text| object(text)),
            pachyderm,
        })
    }
}

/// The configuration as submitted, with its secrets hidden. A text without secrets is shown letter by letter; one with
/// secrets as JSON, which is YAML too.
pub fn masked_original(text: &str, sight: Sight) -> String {
    let lower = text.to_ascii_lowercase();
    let has_more = sight == Sight::Others
        && (lower.contains("environment") || lower.contains("data") || lower.contains("://"));
    // A name can be hidden from this look only behind escapes and tags; an address with a password has an `@`.
    let has_secrets =
        lower.contains(['\\', '!', '@']) || SECRET_WORDS.iter().any(|word| lower.contains(word));
    if !has_secrets && !has_more {
        return text.to_owned();
    }
    let shown = SubmittedDocument::parse(submitted::Experiment, text).map(|submitted| {
        let document = submitted.to_value();
        let masked = sight.mask(&document);
        if masked == document {
            text.to_owned()
        } else {
            format!("{masked:#}\n")
        }
    });
    shown.unwrap_or_else(|_| {
        "# this configuration cannot be shown: it cannot be read any more\n".to_owned()
    })
}

/// Experiments as their reader sees them.
pub(crate) fn all(shown: &ShownExperiments) -> Result<Vec<Experiment>, StoreError> {
    let now = det_store::now();
    let each = shown.each();
    each.map(|(row, phase, home, sight)| experiment(row, phase, home, now, sight))
        .collect()
}

/// The one experiment that was read.
pub(crate) fn one(shown: &ShownExperiments) -> AppResult<Experiment> {
    all(shown)?
        .pop()
        .ok_or_else(|| AppError::internal(anyhow::anyhow!("an experiment was lost on the way")))
}

/// An experiment. `phase` counts while it is active.
pub fn experiment(
    row: &ExperimentRow,
    phase: Phase,
    home: Home<'_>,
    now: i64,
    sight: Sight,
) -> Result<Experiment, StoreError> {
    let config = ShownConfig::of(row, sight)?;
    let labels = document("labels of experiment", row.id, &row.labels)?;
    let labels = serde_json::from_value(labels).map_err(|e| StoreError::Corrupt {
        what: format!("labels of experiment {}", row.id),
        message: e.to_string(),
    })?;
    Ok(Experiment {
        id: row.id,
        description: row.description.clone(),
        labels,
        start_time: Timestamp(row.created_at),
        end_time: row.ended_at.map(Timestamp),
        state: state(row.state, phase),
        archived: row.archived,
        num_trials: row.trial_count,
        display_name: row.display_name.clone(),
        user_id: row.owner_id,
        username: row.username.clone(),
        resource_pool: row.resource_pool.clone(),
        searcher_type: row.searcher_name.to_string(),
        searcher_metric: Some(row.searcher_metric.clone()),
        hyperparameters: config.hyperparameters,
        name: row.name.clone(),
        notes: row.notes.clone(),
        job_id: row.job_id.clone(),
        forked_from: row.parent_id,
        progress: progress(row).map(Float),
        project_id: row.project_id,
        project_name: home.project.to_owned(),
        workspace_id: home.workspace_id,
        workspace_name: home.workspace.to_owned(),
        parent_archived: home.archived,
        original_config: masked_original(&row.original_config, sight),
        project_owner_id: home.owner_id,
        checkpoint_size: Int64(row.checkpoint_bytes),
        checkpoint_count: row.checkpoint_count,
        best_trial_id: row.best_trial_id,
        best_trial_searcher_metric: row.best_metric.map(Float),
        pachyderm_integration: config.pachyderm,
        duration: Some((row.ended_at.unwrap_or(now) - row.created_at).max(0) / 1_000_000),
        config: config.whole,
        unmanaged: row.unmanaged,
        external_experiment_id: row.external_id.clone().map(String::from),
        checkpoint_failure: row.checkpoint_failure.clone(),
        ..Experiment::default()
    })
}

/// How far an experiment is; `None` = not known. Of an unmanaged one nothing is but what its code reports.
fn progress(row: &ExperimentRow) -> Option<f64> {
    if !row.unmanaged {
        return Some(row.progress);
    }
    let is_completed = row.state == experiment::ExperimentState::Completed;
    (row.progress > 0.0).then_some(if is_completed { 1.0 } else { row.progress })
}

#[cfg(test)]
pub(crate) mod tests {
    use det_ids::{ExperimentId, ProjectId, TrialId, UserId};
    use det_store::experiments::SearcherKind;
    use serde_json::json;

    use super::*;

    pub(crate) fn row() -> ExperimentRow {
        ExperimentRow {
            id: ExperimentId(3),
            job_id: "job".into(),
            owner_id: UserId(2),
            project_id: ProjectId(1),
            parent_id: None,
            name: "mnist".into(),
            description: "d".into(),
            labels: r#"["a","b"]"#.into(),
            notes: String::new(),
            state: experiment::ExperimentState::Active,
            archived: false,
            config: r#"{"name":"mnist","data":{"secrets":{"token":"hunter2"}},"hyperparameters":{"lr":{"type":"const","val":1}},
                "checkpoint_storage":{"type":"s3","bucket":"b","access_key":"AK","secret_key":"SK","save_experiment_best":0,
                "save_trial_best":1,"save_trial_latest":1},"max_restarts":5}"#
                .into(),
            original_config: "name: mnist\n".into(),
            searcher_name: SearcherKind::Single,
            searcher_metric: "loss".into(),
            smaller_is_better: true,
            progress: 0.25,
            created_at: 1_000_000,
            ended_at: None,
            trial_count: 1,
            best_trial_id: Some(TrialId(9)),
            best_metric: Some(0.5),
            checkpoint_count: 2,
            checkpoint_bytes: 1 << 40,
            collected: false,
            username: "alice".into(),
            display_name: "Alice".into(),
            resource_pool: "default".into(),
            priority: 42,
            weight: 1.0,
            max_slots: None,
            unmanaged: false,
            external_id: None,
            checkpoint_failure: None,
        }
    }

    #[test]
    fn an_active_experiment_is_shown_as_its_farthest_allocation() {
        for (phase, expected) in [
            (Phase::Queued, ExperimentState::Queued),
            (Phase::Pulling, ExperimentState::Pulling),
            (Phase::Starting, ExperimentState::Starting),
            (Phase::Running, ExperimentState::Running),
        ] {
            assert_eq!(
                experiment(&row(), phase, Home::default(), 0, Sight::Own)
                    .unwrap()
                    .state,
                expected
            );
            assert_eq!(
                state(experiment::ExperimentState::Paused, phase),
                ExperimentState::Paused
            );
        }
    }

    #[test]
    fn secrets_are_hidden_and_sizes_are_text() {
        let shown = serde_json::to_value(
            experiment(
                &row(),
                Phase::Running,
                Home::default(),
                61_500_000,
                Sight::Others,
            )
            .unwrap(),
        )
        .unwrap();
        assert_eq!(shown["config"]["data"]["secrets"]["token"], "********");
        assert_eq!(
            shown["config"]["checkpoint_storage"]["secret_key"],
            "********"
        );
        assert_eq!(shown["checkpointSize"], "1099511627776");
        assert_eq!(shown["duration"], 60);
        assert_eq!(shown["labels"], serde_json::json!(["a", "b"]));
        assert_eq!(shown["hyperparameters"]["lr"]["val"], 1);
    }

    #[test]
    fn the_submitted_text_is_shown_as_it_is_unless_it_holds_secrets() {
        let plain = "name: x # my first\nmax_restarts: 1\n";
        assert_eq!(masked_original(plain, Sight::Own), plain);
        let harmless = "description: the key to it all\n";
        assert_eq!(masked_original(harmless, Sight::Own), harmless);
        let secret = "name: x\ndata:\n  secrets:\n    token: hunter2\n";
        let shown = masked_original(secret, Sight::Own);
        assert!(
            !shown.contains("hunter2") && shown.contains("********"),
            "{shown}"
        );
        let address = "checkpoint_storage: {endpoint_url: 'http://u:hunter2@h'}\n";
        assert!(!masked_original(address, Sight::Own).contains("hunter2"));
        assert!(!masked_original("data: {secrets: {a: hunter2}\n", Sight::Own).contains("hunter2"));
    }

    #[test]
    fn variables_are_for_the_owner() {
        let mut row = row();
        row.config =
            json!({"name": "n", "environment": {"environment_variables": {"cpu": ["A=hunter2"]}},
            "bind_mounts": [{"host_path": "http://h?password=hunter2"}]})
            .to_string();
        row.original_config = "environment:\n  environment_variables: [A=hunter2]\n".into();
        let show = |sight| {
            let shown = experiment(&row, Phase::Queued, Home::default(), 0, sight).unwrap();
            serde_json::to_value(shown).unwrap()
        };
        let (own, others) = (show(Sight::Own), show(Sight::Others));
        assert_eq!(own["originalConfig"], row.original_config.as_str());
        let variables = |shown: &Value| shown["config"]["environment"].to_string();
        assert!(variables(&own).contains("A=hunter2"), "{own}");
        assert!(variables(&others).contains("A=********"), "{others}");
        assert!(!others.to_string().contains("hunter2"), "{others}");
    }

    #[test]
    fn every_secret_key_is_noticed_in_a_submitted_text() {
        let keys = det_config::DocumentKind::Experiment.keys();
        let secrets: Vec<&str> = keys
            .iter()
            .filter(|key| key.secret)
            .map(|key| key.path.as_str())
            .collect();
        assert!(secrets.len() > 5, "{secrets:?}");
        for path in secrets {
            let noticed = SECRET_WORDS.iter().any(|word| path.contains(word));
            assert!(noticed, "{path} is not hidden in submitted texts");
        }
    }
}
