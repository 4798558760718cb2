//! Checkpoints: reported, changed, sent, and deleted by users, by policies and with their experiments.
//!
//! # States of a checkpoint
//!
//! | state | files | row | what ends it |
//! | --- | --- | --- | --- |
//! | not reported | a task writes them | none | the task's report |
//! | `COMPLETED` | as reported | with a list of them | a removal, or the report of a caller that has deleted some |
//! | in removal | some may be gone | marked with the patterns of all removals under way (`removing`) | the transaction of the last of them that stores what is left |
//! | `PARTIALLY_DELETED` | some are left | lists those that are left | another removal |
//! | `DELETED` | none | lists what there was, counts no bytes | the deletion of its experiment |
//!
//! A removal begins with a transaction that decides about warm starts and marks its checkpoints: from then on no trial
//! starts from them. Then files are deleted, then rows are changed: no files are left of a row whose state is `DELETED`.
//! What a kill cuts short is found by the mark and done again at the next start. A repeated report changes nothing, also
//! after the files are gone.
//!
//! Where the master does not reach the storage, or may not touch it, a task of the experiment's owner deletes the files
//! ([`by_task`]): the same transaction stores it, and the marks stay until it has ended.
//!
//! # Who may hold what
//!
//! - Nothing here is kept in memory between requests; the rows are the truth.
//! - Files are opened by handles below allowed paths only ([`allowed`], [`storage`], `docs/checkpoints.md`), on blocking
//!   threads, and never while a transaction is open.
//! - An archive that is being sent holds a few pieces of itself, its directory and one open file ([`archive`]).
//! - A removal works on a batch of checkpoints at a time, between two transactions for each. It holds no lock.
//!
//! # Services
//!
//! [`Checkpoints`] has the rows, [`files::CheckpointFiles`] the files of the master's host, [`by_task::RemovalTasks`] those
//! elsewhere, [`removal::CheckpointRemoval`] goes through all three. Which checkpoints a policy keeps is decided in [`policy`], which knows neither.

pub mod allowed;
pub mod archive;
pub mod by_task;
pub mod files;
pub mod joined;
pub mod policy;
pub mod removal;
pub(crate) mod shared;
pub mod storage;
mod zip;

use std::collections::{BTreeMap, BTreeSet};

use det_checkpoint_files::glob::Pattern;
use det_config::experiment::ExperimentConfig;
use det_failpoints::failpoint;
use det_ids::{AllocationId, CheckpointId, ExperimentId, StorageId, TaskId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::checkpoints::{CheckpointRow, CheckpointState};
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::{
    Store, StoreError, WriteTx, allocations, checkpoint_removals, checkpoints, experiments,
    task_documents, trials,
};
use det_taskspec::{TaskDetails, TaskKind};
use serde_json::{Map, Value, json};

use crate::app::context::Context;
use crate::app::existing;
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::searches::config_of;
use crate::app::silences::{Contact, Silences};
use crate::app::specs::MasterIdentity;
use crate::app::specs::identity::TaskUsers;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// The key of a checkpoint's metadata that names its step.
pub const STEPS: &str = "steps_completed";
/// Checkpoints asked for or changed in one statement or transaction.
const BATCH: usize = 1000;

/// A checkpoint that a task has stored.
#[derive(Debug, Clone)]
pub struct CheckpointReport {
    /// UUID of the checkpoint, which the task chose.
    pub uuid: CheckpointId,
    /// Id of the task that wrote it.
    pub task_id: TaskId,
    /// Attempt that wrote it; `None` = the one that reports.
    pub allocation_id: Option<AllocationId>,
    /// What the task noted of the checkpoint; `steps_completed` is among it.
    pub metadata: Map<String, Value>,
    /// Path to bytes; directories end in `/`.
    pub resources: BTreeMap<String, i64>,
    /// When it was reported, microseconds; `None` = now.
    pub reported_at: Option<i64>,
    /// The storage that holds it, as `RunPrepareForReporting` returned it; `None` = the experiment's.
    pub storage_id: Option<StorageId>,
}

/// What is left of a checkpoint's files: path to bytes, directories end in `/`.
pub type RemainingFiles = BTreeMap<String, i64>;

/// The rows of checkpoints. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    context: Context,
    ownership: Ownership,
    task_users: TaskUsers,
    identity: MasterIdentity,
    silences: Silences,
}

impl Checkpoints {
    /// Of tasks that run as these users, in the cluster of this identity.
    pub(crate) fn new(
        context: Context,
        ownership: Ownership,
        task_users: TaskUsers,
        identity: MasterIdentity,
        silences: Silences,
    ) -> Self {
        Self {
            context,
            ownership,
            task_users,
            identity,
            silences,
        }
    }

    /// Stores a checkpoint that a task reports; a repeated report changes nothing.
    pub async fn report(&self, actor: &Actor, report: CheckpointReport) -> AppResult<()> {
        let row = checked(report)?;
        self.ownership
            .require_reporter(actor, ReportSubject::Task(&row.task_id))
            .await?;
        if [
            self.identity.cluster_id.as_str(),
            self.identity.master_id.as_str(),
        ]
        .contains(&row.uuid.as_str())
        {
            return Err(taken(&row.uuid));
        }
        self.silences.received(actor, Contact::Report);
        let (service, actor) = (self.clone(), actor.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    service.report_in(tx, row, &actor).await?;
                    failpoint!("server::checkpoints::report::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::checkpoints::report::after_commit");
        Ok(())
    }

    async fn report_in(
        &self,
        tx: &mut WriteTx,
        mut row: CheckpointRow,
        actor: &Actor,
    ) -> AppResult<()> {
        if let Some(known) = checkpoints::find(&mut tx.conn(), &row.uuid).await? {
            return same_report(&known, &row);
        }
        let task = existing::task(&mut tx.conn(), &row.task_id).await?;
        if task.kind != TaskKind::Trial {
            return Err(AppError::invalid(format!(
                "field \"taskId\": task \"{}\" runs no trial, and only trials have checkpoints",
                task.id
            )));
        }
        let trial_id = existing::trial_of(&task.id, task.trial_id)?;
        let trial = existing::trial(&mut tx.conn(), trial_id).await?;
        actor.require_current_run(trial_id, trial.run_id)?;
        if let Actor::Task(task) = actor {
            row.allocation_id = Some(task.allocation_id.clone());
        }
        let experiment = existing::experiment(&mut tx.conn(), trial.experiment_id).await?;
        // Containers' directories are named by their ids.
        if allocations::find_container(&mut tx.conn(), &row.uuid.as_str().into())
            .await?
            .is_some()
        {
            return Err(taken(&row.uuid));
        }
        row.trial_id = Some(trial_id);
        row.experiment_id = Some(experiment.id);
        row.owner_uid = self.task_users.uid_of(&experiment).map(i64::from);
        row.storage_id = Some(match row.storage_id {
            None => {
                let location = storage_location(&config_of(&experiment)?)?;
                checkpoints::storage_id(&mut tx.conn(), &location).await?
            }
            Some(id) if checkpoints::has_storage(&mut tx.conn(), id).await? => id,
            Some(id) => {
                return Err(AppError::invalid(format!(
                    "field \"storageId\": there is no storage {id}"
                ))
                .hint("name the one that POST /api/v1/runs/start returned, or none"));
            }
        });
        checkpoints::insert(&mut tx.conn(), &row).await?;
        self.recount(tx, &row).await?;
        self.context.record(
            tx,
            NewEvent::new(actor.name(), Subject::Checkpoint(row.uuid.clone()), EventKind::Created).states(None, Some(row.state.into())).detail(json!({"experimentId": experiment.id, "trialId": trial_id, "steps": row.steps, "bytes": row.bytes})),
        )
        .await?;
        if experiment.ended_at.is_some() {
            // It came after the policy was applied: once more.
            experiments::set_collected(&mut tx.conn(), experiment.id, false).await?;
            let hub = self.context.hub.clone();
            tx.after_commit(move || hub.notify(&Topic::CleanUp));
        }
        Ok(())
    }

    pub(super) async fn recount_all(
        &self,
        tx: &mut WriteTx,
        rows: &[CheckpointRow],
    ) -> Result<(), StoreError> {
        let trials: BTreeSet<TrialId> = rows.iter().filter_map(|row| row.trial_id).collect();
        for trial_id in trials {
            trials::recount_checkpoints(&mut tx.conn(), trial_id).await?;
        }
        Ok(())
    }

    async fn recount(&self, tx: &mut WriteTx, row: &CheckpointRow) -> Result<(), StoreError> {
        if let Some(trial_id) = row.trial_id {
            trials::recount_checkpoints(&mut tx.conn(), trial_id).await?;
        }
        if let Some(experiment_id) = row.experiment_id {
            experiments::recount_checkpoints(&mut tx.conn(), experiment_id).await?;
        }
        Ok(())
    }

    /// The checkpoint with this UUID. An error = it is no UUID, or there is none.
    pub async fn find(&self, uuid: &CheckpointId) -> AppResult<CheckpointRow> {
        check_uuid("checkpointUuid", uuid)?;
        let mut conn = self.context.store.read().await?;
        checkpoints::find(&mut conn.conn(), uuid)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Checkpoint, uuid))
    }

    /// Replaces a checkpoint's metadata; its step stays what it is.
    pub async fn set_metadata(
        &self,
        actor: &Actor,
        uuid: &CheckpointId,
        mut metadata: Map<String, Value>,
    ) -> AppResult<CheckpointRow> {
        check_uuid("checkpointUuid", uuid)?;
        let row = self.find(uuid).await?;
        self.ownership
            .require_reporter_of_checkpoints(actor, &[row])
            .await?;
        let (uuid, actor) = (uuid.to_owned(), actor.clone());
        let service = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let mut row = checkpoints::find(&mut tx.conn(), &uuid)
                        .await?
                        .ok_or_else(|| AppError::not_found(ObjectKind::Checkpoint, &uuid))?;
                    metadata.insert(STEPS.into(), json!(row.steps));
                    row.metadata = Value::Object(metadata).to_string();
                    checkpoints::update(&mut tx.conn(), &row).await?;
                    service
                        .context
                        .record(
                            tx,
                            NewEvent::new(
                                actor.name(),
                                Subject::Checkpoint(row.uuid.clone()),
                                EventKind::Changed,
                            )
                            .reason("its metadata were replaced"),
                        )
                        .await?;
                    Ok(row)
                })
            })
            .await
    }

    /// Takes note of what is left of checkpoints whose files another program has deleted.
    pub async fn patch(
        &self,
        actor: &Actor,
        changes: Vec<(CheckpointId, Option<RemainingFiles>)>,
    ) -> AppResult<()> {
        for (index, (uuid, left)) in changes.iter().enumerate() {
            check_uuid(&format!("checkpoints[{index}].uuid"), uuid)?;
            check_sizes(
                &format!("checkpoints[{index}].resources.resources"),
                left.iter().flatten(),
            )?;
        }
        let named = changes.iter().map(|(uuid, _)| uuid.clone()).collect();
        let rows = self.known(named).await?;
        if !self.is_remover(actor, &rows).await? {
            self.ownership
                .require_reporter_of_checkpoints(actor, &rows)
                .await?;
        }
        let (service, actor) = (self.clone(), actor.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    for (uuid, left) in changes {
                        let row = checkpoints::find(&mut tx.conn(), &uuid)
                            .await?
                            .ok_or_else(|| AppError::not_found(ObjectKind::Checkpoint, &uuid))?;
                        if let Some(left) = left {
                            service
                                .note_left(tx, row, left, &[], &actor.name(), None)
                                .await?;
                        }
                    }
                    Ok(())
                })
            })
            .await
    }

    /// Whether the actor is a task that the master has launched to delete files of all these checkpoints.
    async fn is_remover(&self, actor: &Actor, rows: &[CheckpointRow]) -> AppResult<bool> {
        let Actor::Task(task) = actor else {
            return Ok(false);
        };
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let Some(experiment) = checkpoint_removals::of_task(conn, &task.task_id).await? else {
            return Ok(false);
        };
        let document = task_documents::find(conn, &task.task_id).await?;
        let Some(TaskDetails::CheckpointGc(details)) = document.map(|document| document.details)
        else {
            return Ok(false);
        };
        let named: BTreeSet<&CheckpointId> = details.checkpoints.iter().collect();
        Ok(rows
            .iter()
            .all(|row| row.experiment_id == Some(experiment) && named.contains(&row.uuid)))
    }

    /// Stores what is left of a checkpoint's files: nothing = deleted, less = partially deleted, the same = no change. A
    /// deleted checkpoint keeps the list of what it had, and stays deleted. The removal of these patterns is over.
    pub(crate) async fn note_left(
        &self,
        tx: &mut WriteTx,
        mut row: CheckpointRow,
        left: RemainingFiles,
        removed: &[Pattern],
        actor: &ActorName,
        reason: Option<&str>,
    ) -> AppResult<()> {
        let mark = removal::without(row.removing.as_deref(), removed)?;
        let was_removing = mark != row.removing;
        row.removing = mark;
        let is_unchanged = !left.is_empty() && left == resources(&row)?;
        if row.state == CheckpointState::Deleted || is_unchanged {
            if was_removing {
                checkpoints::update(&mut tx.conn(), &row).await?;
                self.recount(tx, &row).await?;
            }
            return Ok(());
        }
        let before = row.state;
        if left.is_empty() {
            row.state = CheckpointState::Deleted;
            row.bytes = 0;
        } else {
            row.state = CheckpointState::PartiallyDeleted;
            row.bytes = total(&left);
            row.resources = serde_json::to_string(&left).map_err(AppError::internal)?;
        }
        checkpoints::update(&mut tx.conn(), &row).await?;
        self.recount(tx, &row).await?;
        self.context
            .record(
                tx,
                NewEvent::new(
                    actor,
                    Subject::Checkpoint(row.uuid.clone()),
                    EventKind::State,
                )
                .states(Some(before.into()), Some(row.state.into()))
                .reason(reason),
            )
            .await?;
        Ok(())
    }

    /// The checkpoints with these ids, if each exists.
    pub(super) async fn known(
        &self,
        wanted: BTreeSet<CheckpointId>,
    ) -> AppResult<Vec<CheckpointRow>> {
        let wanted: Vec<CheckpointId> = wanted.into_iter().collect();
        let mut conn = self.context.store.read().await?;
        let mut rows = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks(BATCH) {
            rows.extend(checkpoints::find_all(&mut conn.conn(), batch).await?);
        }
        let found: BTreeSet<&str> = rows.iter().map(|r| r.uuid.as_str()).collect();
        if let Some(missing) = wanted.iter().find(|uuid| !found.contains(uuid.as_str())) {
            return Err(AppError::not_found(ObjectKind::Checkpoint, missing));
        }
        Ok(rows)
    }
}

/// An experiment whose checkpoints are meant.
async fn stored_experiment(store: &Store, id: ExperimentId) -> AppResult<ExperimentRow> {
    let mut conn = store.read().await?;
    existing::experiment(&mut conn.conn(), id).await
}

/// The name of a checkpoint's directory must not be that of anything else.
fn taken(uuid: &CheckpointId) -> AppError {
    AppError::new(
        ErrorKind::Conflict,
        format!("field \"uuid\": \"{uuid}\" is the id of something else in this cluster"),
    )
    .hint("choose a new random UUID for each checkpoint")
}

/// A storage as checkpoints are numbered by it: its place without secrets, and without how many checkpoints are kept.
pub(crate) fn storage_location(config: &ExperimentConfig) -> AppResult<String> {
    let location =
        serde_json::to_value(&config.checkpoint_storage.location).map_err(AppError::internal)?;
    Ok(location_text(&location))
}

/// The place of a storage section without what does not belong to the place.
pub(crate) fn location_text(section: &Value) -> String {
    const PLACE: [&str; 9] = [
        "type",
        "host_path",
        "storage_path",
        "container_path",
        "bucket",
        "endpoint_url",
        "prefix",
        "container",
        "account_url",
    ];
    let place: Map<String, Value> = PLACE
        .iter()
        .filter_map(|key| {
            let value = section.get(*key).filter(|value| !value.is_null())?;
            Some(((*key).to_owned(), value.clone()))
        })
        .collect();
    // Addresses may hold a password before the host.
    det_config::experiment::mask_document(&Value::Object(place)).to_string()
}

/// Patterns of one removal at most: each checkpoint's mark names them all.
const MOST_PATTERNS: usize = 100;
/// Bytes of the patterns of one removal at most.
const MOST_PATTERN_BYTES: usize = 16 << 10;

/// The patterns of a request, checked.
pub(crate) fn patterns(globs: &[String]) -> AppResult<Vec<Pattern>> {
    let bytes: usize = globs.iter().map(String::len).sum();
    if globs.len() > MOST_PATTERNS || bytes > MOST_PATTERN_BYTES {
        return Err(AppError::invalid(format!(
            "field \"checkpointGlobs\" has {} patterns of {bytes} bytes; {MOST_PATTERNS} patterns and {MOST_PATTERN_BYTES} bytes \
             are allowed",
            globs.len()
        ))
        .hint("remove files in several requests, or with wider patterns"));
    }
    parsed(globs)
}

/// Patterns that were accepted before. The marks of removals that overlap may have more than one request.
pub(crate) fn parsed(globs: &[String]) -> AppResult<Vec<Pattern>> {
    let one = |(index, text): (usize, &String)| {
        Pattern::parse(text).map_err(|why| {
            AppError::invalid(format!(
                "field \"checkpointGlobs[{index}]\": \"{}\" {why}",
                text.escape_debug()
            ))
        })
    };
    globs.iter().enumerate().map(one).collect()
}

fn check_uuid(field: &str, uuid: &CheckpointId) -> AppResult<()> {
    if uuid.is_well_formed() {
        Ok(())
    } else {
        Err(AppError::invalid(format!(
            "field \"{field}\" must be a UUID, found \"{}\"",
            uuid.as_str().escape_debug()
        )))
    }
}

fn check_sizes<'a>(
    field: &str,
    resources: impl Iterator<Item = (&'a String, &'a i64)>,
) -> AppResult<()> {
    for (path, size) in resources {
        if *size < 0 {
            return Err(AppError::invalid(format!(
                "field \"{field}\": the size of \"{}\" must be 0 or more, found {size}",
                path.escape_debug()
            )));
        }
        if path.contains('\0') {
            return Err(AppError::invalid(format!(
                "field \"{field}\": a path must not contain NUL"
            )));
        }
    }
    Ok(())
}

fn total(resources: &BTreeMap<String, i64>) -> i64 {
    resources
        .values()
        .fold(0, |sum, size| sum.saturating_add(*size))
}

/// A report as a row, without what only the database knows.
fn checked(report: CheckpointReport) -> AppResult<CheckpointRow> {
    check_uuid("uuid", &report.uuid)?;
    if report.uuid.as_str().bytes().any(|b| b.is_ascii_uppercase()) {
        // Storage that ignores the case of letters would have two checkpoints in one directory.
        return Err(AppError::invalid(format!(
            "field \"uuid\" must be in lower case, found \"{}\"",
            report.uuid
        )));
    }
    if report.task_id.as_str().is_empty() {
        return Err(AppError::invalid(
            "field \"taskId\" is missing: a checkpoint belongs to a task",
        ));
    }
    let steps = match report.metadata.get(STEPS) {
        None | Some(Value::Null) => {
            return Err(AppError::invalid(format!(
                "field \"metadata.{STEPS}\" is missing"
            )));
        }
        Some(value) => value.as_i64().filter(|steps| *steps >= 0).ok_or_else(|| {
            AppError::invalid(format!(
                "field \"metadata.{STEPS}\" must be a whole number of 0 or more, found {value}"
            ))
        })?,
    };
    check_sizes("resources", report.resources.iter())?;
    Ok(CheckpointRow {
        uuid: report.uuid,
        experiment_id: None,
        trial_id: None,
        task_id: report.task_id,
        allocation_id: report.allocation_id.filter(|id| !id.as_str().is_empty()),
        state: CheckpointState::Completed,
        steps,
        bytes: total(&report.resources),
        metadata: Value::Object(report.metadata).to_string(),
        resources: serde_json::to_string(&report.resources).map_err(AppError::internal)?,
        reported_at: report.reported_at.unwrap_or_else(det_store::now),
        storage_id: report.storage_id,
        owner_uid: None,
        removing: None,
    })
}

/// What a second report of a known checkpoint means: nothing if it is the same, a conflict otherwise. Of a checkpoint
/// whose files have been deleted meanwhile, a late repeat is nothing either.
fn same_report(known: &CheckpointRow, again: &CheckpointRow) -> AppResult<()> {
    let conflict = |what: &str| {
        Err(AppError::new(
            ErrorKind::Conflict,
            format!(
                "checkpoint \"{}\" was reported before with {what}",
                known.uuid
            ),
        ))
    };
    if known.task_id != again.task_id {
        return conflict("another task");
    }
    if known.steps != again.steps {
        return conflict(&format!(
            "{STEPS} {}, now with {}",
            known.steps, again.steps
        ));
    }
    if known.state == CheckpointState::Completed && resources(known)? != resources(again)? {
        return conflict("other files");
    }
    Ok(())
}

/// The files of a checkpoint: path to bytes.
pub fn resources(row: &CheckpointRow) -> Result<BTreeMap<String, i64>, StoreError> {
    serde_json::from_str(&row.resources).map_err(|e| StoreError::Corrupt {
        what: format!("resources of checkpoint {}", row.uuid),
        message: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";

    fn report() -> CheckpointReport {
        let Value::Object(metadata) = json!({"steps_completed": 3, "framework": "x"}) else {
            panic!("an object")
        };
        CheckpointReport {
            uuid: UUID.into(),
            task_id: "1.a".into(),
            metadata,
            resources: BTreeMap::from([("d/".into(), 0), ("d/m.pt".into(), 26)]),
            reported_at: Some(7),
            allocation_id: None,
            storage_id: None,
        }
    }

    #[test]
    fn a_report_gives_the_step_and_the_size() {
        let row = checked(report()).unwrap();
        assert_eq!(
            (row.steps, row.bytes, row.state.name(), row.reported_at),
            (3, 26, "COMPLETED", 7)
        );
    }

    #[test]
    fn errors_are_named_by_their_field() {
        let with = |change: fn(&mut CheckpointReport)| {
            let mut report = report();
            change(&mut report);
            checked(report).unwrap_err().message
        };
        for (message, expected) in [
            (
                with(|r| r.uuid = "x/y".into()),
                "field \"uuid\" must be a UUID, found \"x/y\"",
            ),
            (
                with(|r| r.uuid = "0B6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11".into()),
                "field \"uuid\" must be in lower case, found \"0B6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11\"",
            ),
            (
                with(|r| r.task_id.0.clear()),
                "field \"taskId\" is missing: a checkpoint belongs to a task",
            ),
            (
                with(|r| r.metadata.clear()),
                "field \"metadata.steps_completed\" is missing",
            ),
            (
                with(|r| {
                    r.metadata.insert(STEPS.into(), json!("many"));
                }),
                "field \"metadata.steps_completed\" must be a whole number of 0 or more, found \"many\"",
            ),
            (
                with(|r| {
                    r.resources.insert("m".into(), -1);
                }),
                "field \"resources\": the size of \"m\" must be 0 or more, found -1",
            ),
        ] {
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn a_storage_is_known_by_its_place_and_not_by_its_secrets() {
        let section = json!({"type": "s3", "bucket": "b", "secret_key": "hidden", "access_key": "a", "prefix": null,
            "save_trial_best": 1});
        assert_eq!(location_text(&section), r#"{"bucket":"b","type":"s3"}"#);
    }

    #[test]
    fn a_repeat_is_nothing_and_a_contradiction_is_a_conflict() {
        let known = checked(report()).unwrap();
        same_report(&known, &checked(report()).unwrap()).unwrap();
        let other_files = CheckpointReport {
            resources: BTreeMap::new(),
            ..report()
        };
        let error = same_report(&known, &checked(other_files.clone()).unwrap()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        let deleted = CheckpointRow {
            state: CheckpointState::Deleted,
            resources: "{}".into(),
            ..known.clone()
        };
        same_report(&deleted, &checked(report()).unwrap()).unwrap();
        let other_task = CheckpointReport {
            task_id: "2.b".into(),
            ..report()
        };
        assert_eq!(
            same_report(&known, &checked(other_task).unwrap())
                .unwrap_err()
                .kind,
            ErrorKind::Conflict
        );
    }

    #[test]
    fn patterns_are_checked_before_anything_is_deleted() {
        assert_eq!(patterns(&[]).unwrap(), []);
        for many in [vec!["a".to_owned(); 101], vec!["a".repeat(4000); 5]] {
            let error = patterns(&many).unwrap_err();
            assert!(error.message.contains("are allowed"), "{}", error.message);
            assert_eq!(
                parsed(&many).unwrap().len(),
                many.len(),
                "a mark may have them"
            );
        }
        let error = patterns(&["a".into(), "../b".into()]).unwrap_err();
        assert!(
            error
                .message
                .starts_with("field \"checkpointGlobs[1]\": \"../b\" leads out"),
            "{}",
            error.message
        );
    }
}
