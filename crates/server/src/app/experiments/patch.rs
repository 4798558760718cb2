//! Changes of texts, labels, resources and the checkpoint policy of an experiment.

use std::collections::BTreeSet;

use det_config::policies::Workload;
use det_ids::ExperimentId;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::{WriteTx, experiments};
use serde_json::{Value, json};

use super::Experiments;
use crate::app::config_policies::locked;
use crate::app::documents::{
    MAX_NAME_BYTES, MAX_TEXT_BYTES, OBEYED_BY_TERMINALS, is_obeyed_by_terminals, require_storable,
    too_many_labels,
};
use crate::app::existing;
use crate::app::homes::Homes;
use crate::app::job_changes::require_live;
use crate::app::queue_entry::JobChange;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Changes of a user; `None` = as it is.
#[derive(Debug, Clone, Default)]
pub struct ExperimentPatch {
    /// Display name; must not be blank.
    pub name: Option<String>,
    /// New description, free text; `None` = it stays.
    pub description: Option<String>,
    /// New notes, Markdown; `None` = they stay.
    pub notes: Option<String>,
    /// New labels in place of all it has; `None` = they stay.
    pub labels: Option<Vec<String>>,
    /// Most slots in use at once.
    pub max_slots: Option<Option<i64>>,
    /// 1 to 99; which goes first is the pool's.
    pub priority: Option<i64>,
    /// New weight in a fair-share pool, finite and above 0; `None` = it stays.
    pub weight: Option<f64>,
    /// Best checkpoints of the experiment to keep; `None` = it stays.
    pub save_experiment_best: Option<i64>,
    /// Best checkpoints of each trial to keep; `None` = it stays.
    pub save_trial_best: Option<i64>,
    /// Latest checkpoints of each trial to keep; `None` = it stays.
    pub save_trial_latest: Option<i64>,
}

impl ExperimentPatch {
    fn changes_checkpoint_policy(&self) -> bool {
        [
            self.save_experiment_best,
            self.save_trial_best,
            self.save_trial_latest,
        ]
        .iter()
        .any(Option::is_some)
    }
}

impl Experiments {
    /// Changes texts, labels, resources and checkpoint policy.
    pub async fn patch(
        &self,
        actor: &Actor,
        id: ExperimentId,
        patch: ExperimentPatch,
    ) -> AppResult<()> {
        if patch.changes_checkpoint_policy() {
            // The policy deletes checkpoints.
            let to_do = format!("change the checkpoint policy of experiment {id}");
            self.ownership.require_owner(actor, id, &to_do).await?;
        } else {
            self.ownership.require_steering(actor, id).await?;
        }
        let (master, actor) = (self.clone(), actor.name());
        self.context
            .write(move |tx| Box::pin(async move { master.patch_in(tx, id, patch, &actor).await }))
            .await
    }

    /// Refuses texts other than those that policies fix, and labels without those that they add.
    async fn require_texts_unfixed(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        patch: &ExperimentPatch,
    ) -> AppResult<()> {
        let texts = [("name", &patch.name), ("description", &patch.description)];
        if texts.iter().all(|(_, text)| text.is_none()) && patch.labels.is_none() {
            return Ok(());
        }
        let job = experiments::job(&mut tx.conn(), &row.job_id)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, &row.job_id))?;
        for (path, text) in texts {
            if let Some(text) = text {
                self.policies
                    .require_unfixed(job.workspace_id, Workload::Experiment, path, &json!(text))
                    .await?;
            }
        }
        let Some(labels) = &patch.labels else {
            return Ok(());
        };
        let policies = self
            .policies
            .over(job.workspace_id, Workload::Experiment)
            .await?;
        for policy in &policies {
            let fixed = policy.invariant_config().unwrap_or_default();
            let missing = missing_labels(&fixed["labels"], labels);
            if !missing.is_empty() {
                let why = format!("add {}", missing.join(", "));
                return Err(locked(
                    Workload::Experiment,
                    "labels",
                    &json!(labels),
                    &policy.scope,
                    &why,
                ));
            }
        }
        Ok(())
    }

    async fn patch_in(
        &self,
        tx: &mut WriteTx,
        id: ExperimentId,
        patch: ExperimentPatch,
        actor: &ActorName,
    ) -> AppResult<()> {
        let row = existing::experiment(&mut tx.conn(), id).await?;
        let homes = Homes::load(&mut tx.conn()).await?;
        homes.require_unarchived(row.project_id, "what is in it cannot be changed")?;
        self.require_texts_unfixed(tx, &row, &patch).await?;
        patch_texts(tx, &row, &patch).await?;
        let changes: Vec<JobChange> = [
            patch.priority.map(JobChange::Priority),
            patch.weight.map(JobChange::Weight),
            patch.max_slots.map(JobChange::MaxSlots),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !changes.is_empty() {
            require_live(&row)?;
        }
        for change in changes {
            self.job_changes.change_in(tx, &row, change, actor).await?;
        }
        self.patch_checkpoint_policy(tx, &row, &patch).await?;
        self.context
            .record(
                tx,
                NewEvent::new(actor, Subject::Experiment(id), EventKind::Changed),
            )
            .await?;
        Ok(())
    }

    /// Changes how many checkpoints are kept, and wakes the clean-up, which deletes the others.
    async fn patch_checkpoint_policy(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        patch: &ExperimentPatch,
    ) -> AppResult<()> {
        let policy = [
            ("save_experiment_best", patch.save_experiment_best),
            ("save_trial_best", patch.save_trial_best),
            ("save_trial_latest", patch.save_trial_latest),
        ];
        if policy.iter().all(|(_, value)| value.is_none()) {
            return Ok(());
        }
        // A change of the job has stored another configuration.
        let current = existing::experiment(&mut tx.conn(), row.id).await?.config;
        let mut config: Value = serde_json::from_str(&current).map_err(AppError::internal)?;
        let job = experiments::job(&mut tx.conn(), &row.job_id)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, &row.job_id))?;
        for (key, value) in policy {
            let Some(value) = value else { continue };
            let path = format!("checkpoint_storage.{key}");
            self.policies
                .require_unfixed(job.workspace_id, Workload::Experiment, &path, &json!(value))
                .await?;
            let value = u32::try_from(value).map_err(|_| {
                AppError::invalid(format!(
                    "field \"checkpointStorage.{key}\" must be 0 or more, found {value}"
                ))
            })?;
            config["checkpoint_storage"][key] = json!(value);
        }
        let config = config.to_string();
        require_storable(&config)?;
        experiments::set_config(&mut tx.conn(), row.id, &config).await?;
        experiments::set_collected(&mut tx.conn(), row.id, false).await?;
        let hub = self.context.hub.clone();
        tx.after_commit(move || hub.notify(&crate::hub::Topic::CleanUp));
        Ok(())
    }
}

/// Stores the name, description, labels and notes that a change has; the others stay.
async fn patch_texts(
    tx: &mut WriteTx,
    row: &ExperimentRow,
    patch: &ExperimentPatch,
) -> AppResult<()> {
    let name = text("name", MAX_NAME_BYTES, patch.name.as_ref(), &row.name)?;
    if name.trim().is_empty() {
        return Err(AppError::invalid("field \"name\" must not be blank"));
    }
    if name != row.name && is_obeyed_by_terminals(&name) {
        return Err(AppError::invalid(format!(
            "field \"name\" {OBEYED_BY_TERMINALS}"
        )));
    }
    let labels = match &patch.labels {
        Some(labels) => {
            require_plain_labels(labels, &row.labels)?;
            labels_text(labels, &row.labels)?
        }
        None => row.labels.clone(),
    };
    let description = text(
        "description",
        MAX_TEXT_BYTES,
        patch.description.as_ref(),
        &row.description,
    )?;
    let notes = text("notes", MAX_TEXT_BYTES, patch.notes.as_ref(), &row.notes)?;
    let conn = &mut tx.conn();
    experiments::set_texts(conn, row.id, &name, &description, &labels, &notes).await?;
    Ok(())
}

/// The new text of a field of at most `most` bytes; the old one where the change has none.
fn text(field: &str, most: usize, value: Option<&String>, old: &str) -> AppResult<String> {
    match value {
        Some(v) if v.contains('\0') => Err(AppError::invalid(format!(
            "field \"{field}\" must not contain NUL"
        ))),
        Some(v) if v.len() > most => Err(AppError::invalid(format!(
            "field \"{field}\" has {} bytes, of at most {most}",
            v.len()
        ))),
        Some(v) => Ok(v.clone()),
        None => Ok(old.to_owned()),
    }
}

/// Refuses labels with control characters. Clients send all labels to add one: those that were there stay.
fn require_plain_labels(labels: &[String], old: &str) -> AppResult<()> {
    let old: BTreeSet<String> = serde_json::from_str(old).map_err(AppError::internal)?;
    let is_refused = |label: &&String| !old.contains(*label) && is_obeyed_by_terminals(label);
    match labels.iter().find(is_refused) {
        Some(label) => Err(AppError::invalid(format!(
            "field \"labels\": a label {OBEYED_BY_TERMINALS}, found \"{}\"",
            label.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Labels as they are stored: a JSON list, sorted, each once.
fn labels_text(labels: &[String], old: &str) -> AppResult<String> {
    if labels
        .iter()
        .any(|l| l.contains('\0') || l.trim().is_empty())
    {
        return Err(AppError::invalid(
            "field \"labels\": a label must not be blank and must not contain NUL",
        ));
    }
    let set: BTreeSet<&String> = labels.iter().collect();
    let old: BTreeSet<String> = serde_json::from_str(old).map_err(AppError::internal)?;
    // From before there were limits some may be left: taking labels away is always possible.
    if let Some(why) = too_many_labels(set.iter().copied())
        && !set.iter().all(|label| old.contains(*label))
    {
        return Err(AppError::invalid(format!("field \"labels\": {why}")));
    }
    serde_json::to_string(&set).map_err(AppError::internal)
}

/// The labels that a change leaves out although policies fix them.
fn missing_labels(fixed: &Value, labels: &[String]) -> Vec<String> {
    let fixed = fixed.as_array().map_or(&[][..], Vec::as_slice);
    fixed
        .iter()
        .filter_map(Value::as_str)
        .filter(|fixed| !labels.iter().any(|label| label == fixed))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_from_before_stay_when_another_one_is_added() {
        let old = r#"["a\u001b[2J", "b"]"#;
        let labels = |labels: &[&str]| -> Vec<String> {
            labels.iter().map(|&label| label.to_owned()).collect()
        };
        require_plain_labels(&labels(&["a\u{1b}[2J", "b", "new"]), old).unwrap();
        let refused = require_plain_labels(&labels(&["b", "new\u{1b}[2J"]), old);
        assert!(refused.unwrap_err().message.contains("\"labels\""));
    }

    #[test]
    fn labels_have_a_bound_together_and_those_from_before_can_be_taken_away() {
        let of =
            |count: usize| -> Vec<String> { (0..count).map(|n| format!("{n:0>1000}")).collect() };
        labels_text(&of(4), "[]").unwrap();
        let refused = labels_text(&of(5), "[]").unwrap_err().message;
        assert!(
            refused.contains("4096 together, found 5 with 5000"),
            "{refused}"
        );
        assert!(labels_text(&["x".repeat(1025)], "[]").is_err());
        let old = serde_json::to_string(&of(7)).unwrap();
        labels_text(&of(6), &old).unwrap();
        assert!(labels_text(&of(8), &old).is_err());
    }
}
