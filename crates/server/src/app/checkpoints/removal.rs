//! Removing files of checkpoints: files, then rows.
//!
//! A removal marks its checkpoints in a transaction that also decides about warm starts, deletes files, and stores what
//! is left of each. What is cut short in between is found by the mark and done again. Removals of one checkpoint may
//! overlap: the mark has the patterns of all of them, each takes its own away, and what one of them has found gone stays
//! gone.

use std::collections::{BTreeMap, BTreeSet};

use det_checkpoint_files::glob::Pattern;
use det_config::storage::StorageLocation;
use det_failpoints::failpoint;
use det_ids::{CheckpointId, ExperimentId};
use det_lifecycle::record::ActorName;
use det_store::checkpoints::{self, CheckpointRow, CheckpointState};
use det_store::experiments::ExperimentRow;
use det_store::{WriteTx, checkpoint_removals};
use det_taskspec::RemovalCause;

use crate::app::checkpoints::by_task::{RemovalTasks, under_way};
use crate::app::checkpoints::files::CheckpointFiles;
use crate::app::checkpoints::storage::{Owner, Storage};
use crate::app::checkpoints::{
    BATCH, Checkpoints, RemainingFiles, check_uuid, parsed, patterns, resources, stored_experiment,
};
use crate::app::context::Context;
use crate::app::ownership::Ownership;
use crate::app::searches::config_of;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// What becomes of checkpoints that trials start from when files are to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarmStarts {
    /// The whole removal is refused.
    Refuse,
    /// They stay, the others go.
    Keep,
}

/// Why files go, and who has them deleted.
#[derive(Debug, Clone)]
pub(crate) struct Why {
    /// What follows when a task has done it.
    pub(crate) cause: RemovalCause,
    /// In the record of events.
    pub(crate) actor: ActorName,
    /// In the record of events.
    pub(crate) reason: Option<&'static str>,
}

/// How far a removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Everything that was to go is gone.
    Done,
    /// A task deletes some of it.
    ByTask,
}

/// Removing files of checkpoints. Cheap to clone.
#[derive(Clone)]
pub struct CheckpointRemoval {
    context: Context,
    ownership: Ownership,
    checkpoints: Checkpoints,
    files: CheckpointFiles,
    tasks: RemovalTasks,
}

impl CheckpointRemoval {
    /// The removal of files of checkpoints, with the rows that follow it.
    pub(crate) fn new(
        context: Context,
        ownership: Ownership,
        checkpoints: Checkpoints,
        files: CheckpointFiles,
        tasks: RemovalTasks,
    ) -> Self {
        Self {
            context,
            ownership,
            checkpoints,
            files,
            tasks,
        }
    }

    /// Deletes the files of checkpoints; their rows stay, in the state `DELETED`.
    pub async fn delete(&self, actor: &Actor, uuids: Vec<CheckpointId>) -> AppResult<()> {
        self.remove_matching(actor, uuids, vec!["**/*".to_owned()])
            .await
    }

    /// Deletes the files of checkpoints that match any of the patterns. Without patterns nothing is deleted: the storage is
    /// looked at, and files that others have deleted are taken from the checkpoints' resources and sizes.
    pub async fn remove_matching(
        &self,
        actor: &Actor,
        uuids: Vec<CheckpointId>,
        globs: Vec<String>,
    ) -> AppResult<()> {
        if uuids.is_empty() {
            return Err(AppError::invalid(
                "field \"checkpointUuids\" is empty: name at least one checkpoint",
            ));
        }
        for (index, uuid) in uuids.iter().enumerate() {
            check_uuid(&format!("checkpointUuids[{index}]"), uuid)?;
        }
        let patterns = patterns(&globs)?;
        let rows = self.removable(actor, &uuids, patterns.is_empty()).await?;
        let (service, actor) = (self.clone(), actor.name());
        // Its own task: a client that goes away does not leave files deleted and rows unchanged.
        tokio::spawn(async move {
            if patterns.is_empty() {
                let reason = Some("files were found to be missing in the storage");
                return service.compare(rows, &actor, reason).await;
            }
            let why = Why {
                cause: RemovalCause::Request,
                actor,
                reason: Some("a user asked for it"),
            };
            service
                .remove(rows, patterns, WarmStarts::Refuse, &why)
                .await
                .map(drop)
        })
        .await
        .map_err(AppError::internal)?
    }

    /// The checkpoints with these ids, if each exists and the actor may take files from them. What trials start from is
    /// refused here before anything is removed, and decided in the transaction that begins the removal.
    async fn removable(
        &self,
        actor: &Actor,
        uuids: &[CheckpointId],
        only_compared: bool,
    ) -> AppResult<Vec<CheckpointRow>> {
        let rows = self
            .checkpoints
            .known(uuids.iter().cloned().collect())
            .await?;
        self.ownership
            .require_reporter_of_checkpoints(actor, &rows)
            .await?;
        if only_compared {
            return Ok(rows);
        }
        let mut conn = self.context.store.read().await?;
        let sources: BTreeSet<CheckpointId> = checkpoints::warm_start_sources(&mut conn.conn())
            .await?
            .into_iter()
            .collect();
        if let Some(row) = rows.iter().find(|row| sources.contains(&row.uuid)) {
            return Err(in_use(&row.uuid));
        }
        Ok(rows)
    }

    /// Deletes matching files and stores what is left, experiment by experiment; where the master does not reach the storage,
    /// a task does it. Goes on after a failure and then returns the first one.
    ///
    /// A removal begins with a transaction that decides about warm starts and marks the checkpoints: from then on no trial
    /// starts from them. It ends with one that takes the mark away. What is cut short in between is resumed at the next
    /// start of the master.
    pub(crate) async fn remove(
        &self,
        rows: Vec<CheckpointRow>,
        patterns: Vec<Pattern>,
        warm_starts: WarmStarts,
        why: &Why,
    ) -> AppResult<Progress> {
        let (mut failure, mut progress) = (None, Progress::Done);
        for (experiment, rows) in by_experiment(rows)? {
            let experiment = stored_experiment(&self.context.store, experiment).await?;
            let storage = self.files.within_reach(&experiment).await?;
            for batch in rows.chunks(BATCH) {
                let uuids = batch.iter().map(|row| row.uuid.clone()).collect();
                let Some(storage) = storage.clone() else {
                    let sent = self
                        .send_task(&experiment, uuids, &patterns, warm_starts, why)
                        .await;
                    progress = Progress::ByTask;
                    failure = failure.or(sent.err());
                    continue;
                };
                let marked = self.begin(uuids, &patterns, warm_starts).await?;
                failpoint!("server::checkpoints::remove::after_mark");
                let batch = self.files.with_owners(marked, &experiment);
                let wanted = patterns.clone();
                let (left, failed) =
                    tokio::task::spawn_blocking(move || remove_each(&storage, batch, &wanted))
                        .await
                        .map_err(AppError::internal)?;
                self.store_left(left, patterns.clone(), &why.actor, why.reason)
                    .await?;
                failure = failure.or(failed);
            }
        }
        failure.map_or(Ok(progress), Err)
    }

    /// Whether files of an experiment are in a directory that only tasks reach.
    pub(crate) async fn is_elsewhere(&self, experiment: &ExperimentRow) -> AppResult<bool> {
        let location = &config_of(experiment)?.checkpoint_storage.location;
        let is_directory = matches!(
            location,
            StorageLocation::SharedFs { .. } | StorageLocation::Directory { .. }
        );
        Ok(is_directory && self.files.within_reach(experiment).await?.is_none())
    }

    /// Marks checkpoints and stores the task that deletes their files, in one transaction. Without checkpoints the task
    /// deletes what else there is of a deleted experiment.
    pub(crate) async fn send_task(
        &self,
        experiment: &ExperimentRow,
        uuids: Vec<CheckpointId>,
        patterns: &[Pattern],
        warm_starts: WarmStarts,
        why: &Why,
    ) -> AppResult<()> {
        let globs: Vec<String> = patterns.iter().map(|p| p.text().to_owned()).collect();
        let (service, patterns) = (self.clone(), patterns.to_vec());
        // What administrators demand of tasks may refuse it, before anything is marked.
        let draft = self.tasks.draft(experiment, why.cause).await?;
        let (experiment, why) = (experiment.clone(), why.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let marked = service.mark(tx, uuids, &patterns, warm_starts).await?;
                    if marked.is_empty() && why.cause != RemovalCause::Deletion {
                        return Ok(());
                    }
                    let marked = marked.into_iter().map(|row| row.uuid).collect();
                    let task = service.tasks.task(draft, marked, globs);
                    service
                        .tasks
                        .launch(tx, task, experiment.id, &why.actor)
                        .await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// Marks checkpoints whose files are to be removed, and returns them; deleted ones are left out.
    async fn begin(
        &self,
        uuids: Vec<CheckpointId>,
        patterns: &[Pattern],
        warm_starts: WarmStarts,
    ) -> AppResult<Vec<CheckpointRow>> {
        let (service, patterns) = (self.clone(), patterns.to_vec());
        self.context
            .write(move |tx| {
                Box::pin(async move { service.mark(tx, uuids, &patterns, warm_starts).await })
            })
            .await
    }

    async fn mark(
        &self,
        tx: &mut WriteTx,
        uuids: Vec<CheckpointId>,
        patterns: &[Pattern],
        warm_starts: WarmStarts,
    ) -> AppResult<Vec<CheckpointRow>> {
        let sources: BTreeSet<CheckpointId> = checkpoints::warm_start_sources(&mut tx.conn())
            .await?
            .into_iter()
            .collect();
        let mut marked = Vec::with_capacity(uuids.len());
        for uuid in uuids {
            let Some(mut row) = checkpoints::find(&mut tx.conn(), &uuid).await? else {
                continue;
            };
            if row.state == CheckpointState::Deleted {
                continue;
            }
            if sources.contains(&uuid) {
                match warm_starts {
                    WarmStarts::Refuse => return Err(in_use(&uuid)),
                    WarmStarts::Keep => continue,
                }
            }
            row.removing = Some(with(row.removing.as_deref(), patterns)?);
            checkpoints::update(&mut tx.conn(), &row).await?;
            marked.push(row);
        }
        self.checkpoints.recount_all(tx, &marked).await?;
        Ok(marked)
    }

    /// Removals that were under way when the master ended: done again.
    pub(crate) async fn resume(&self) -> AppResult<()> {
        let rows = {
            let mut conn = self.context.store.read().await?;
            let conn = &mut conn.conn();
            let open = checkpoint_removals::open(conn).await?;
            // Tasks go on while the master restarts.
            let by_tasks = under_way(conn, &open).await?;
            let mut rows = checkpoints::in_removal(conn).await?;
            rows.retain(|row| !by_tasks.contains(&row.uuid));
            rows
        };
        let mut by_patterns: BTreeMap<String, Vec<CheckpointRow>> = BTreeMap::new();
        for row in rows {
            by_patterns
                .entry(row.removing.clone().unwrap_or_default())
                .or_default()
                .push(row);
        }
        let mut failure = None;
        for (removing, rows) in by_patterns {
            let globs: Vec<String> = marked(Some(&removing))?.into_iter().collect();
            let why = Why {
                cause: RemovalCause::Resumed,
                actor: ActorName::Master,
                reason: Some("its removal was cut short and resumed"),
            };
            let done = self
                .remove(rows, parsed(&globs)?, WarmStarts::Keep, &why)
                .await;
            failure = failure.or(done.err());
        }
        failure.map_or(Ok(()), Err)
    }

    /// Compares checkpoints with their storage and stores what is left of each. Deletes nothing.
    async fn compare(
        &self,
        rows: Vec<CheckpointRow>,
        actor: &ActorName,
        reason: Option<&'static str>,
    ) -> AppResult<()> {
        let mut failure = None;
        for (experiment, rows) in by_experiment(rows)? {
            let experiment = stored_experiment(&self.context.store, experiment).await?;
            let Some(storage) = self.files.within_reach(&experiment).await? else {
                let uuids = rows.into_iter().map(|row| row.uuid).collect();
                let why = Why {
                    cause: RemovalCause::Request,
                    actor: actor.to_owned(),
                    reason,
                };
                let sent = self.send_task(&experiment, uuids, &[], WarmStarts::Keep, &why);
                failure = failure.or(sent.await.err());
                continue;
            };
            let rows = self.files.with_owners(rows, &experiment);
            let (left, failed) =
                tokio::task::spawn_blocking(move || remove_each(&storage, rows, &[]))
                    .await
                    .map_err(AppError::internal)?;
            self.store_left(left, Vec::new(), actor, reason).await?;
            failure = failure.or(failed);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Stores what the removal of these patterns has left of checkpoints; `None` = everything that it had.
    async fn store_left(
        &self,
        left: Vec<(CheckpointId, Option<RemainingFiles>)>,
        removed: Vec<Pattern>,
        actor: &ActorName,
        reason: Option<&'static str>,
    ) -> AppResult<()> {
        if left.is_empty() {
            return Ok(());
        }
        let (service, actor) = (self.clone(), actor.to_owned());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    for (uuid, left) in left {
                        // The row may have changed, or gone with its experiment, while the files were deleted.
                        if let Some(row) = checkpoints::find(&mut tx.conn(), &uuid).await? {
                            let mut now = resources(&row)?;
                            if let Some(left) = left {
                                // Another removal may have stored meanwhile that it took more away.
                                now.retain(|path, _| left.contains_key(path));
                            }
                            service
                                .checkpoints
                                .note_left(tx, row, now, &removed, &actor, reason)
                                .await?;
                        }
                    }
                    Ok::<_, AppError>(())
                })
            })
            .await
    }
}

/// The patterns of the removals that a mark names.
fn marked(mark: Option<&str>) -> AppResult<BTreeSet<String>> {
    mark.map_or(Ok(BTreeSet::new()), |mark| {
        serde_json::from_str(mark).map_err(AppError::internal)
    })
}

/// Bytes of a mark at most: removals by tasks may be under way for long, and more may be asked for meanwhile.
const MOST_MARK_BYTES: usize = 64 << 10;

/// The mark once a removal of these patterns has begun.
fn with(mark: Option<&str>, patterns: &[Pattern]) -> AppResult<String> {
    let mut all = marked(mark)?;
    all.extend(patterns.iter().map(|pattern| pattern.text().to_owned()));
    let text = serde_json::to_string(&all).map_err(AppError::internal)?;
    let before = mark.map_or(0, str::len);
    if text.len() > MOST_MARK_BYTES.max(before) {
        return Err(AppError::precondition(format!(
            "removals of other files of this checkpoint are under way, whose patterns have {before} bytes; together with these \
             they may have {MOST_MARK_BYTES}"
        ))
        .hint("wait until those have ended: det task list"));
    }
    Ok(text)
}

/// The mark once a removal of these patterns has ended; `None` = no other is under way.
pub(super) fn without(mark: Option<&str>, patterns: &[Pattern]) -> AppResult<Option<String>> {
    let mut all = marked(mark)?;
    all.retain(|text| patterns.iter().all(|pattern| pattern.text() != text));
    let left = (!all.is_empty()).then(|| serde_json::to_string(&all));
    left.transpose().map_err(AppError::internal)
}

/// A checkpoint that some trial started from stays.
pub(crate) fn in_use(uuid: &CheckpointId) -> AppError {
    AppError::precondition(format!(
        "checkpoint \"{uuid}\" cannot be deleted: a trial was started from it"
    ))
    .hint("delete the experiments that started from it first")
}

fn by_experiment(
    rows: Vec<CheckpointRow>,
) -> AppResult<BTreeMap<ExperimentId, Vec<CheckpointRow>>> {
    let mut by_experiment: BTreeMap<ExperimentId, Vec<CheckpointRow>> = BTreeMap::new();
    for row in rows
        .into_iter()
        .filter(|row| row.state != CheckpointState::Deleted)
    {
        let Some(experiment) = row.experiment_id else {
            return Err(AppError::precondition(format!(
                "checkpoint \"{}\" belongs to no experiment",
                row.uuid
            )));
        };
        by_experiment.entry(experiment).or_default().push(row);
    }
    Ok(by_experiment)
}

/// Deletes files of one checkpoint after the other; returns what is left of each (`None` = all that it had, also after a
/// failure), and the first failure. Without patterns nothing is deleted.
fn remove_each(
    storage: &Storage,
    rows: Vec<(CheckpointRow, Owner)>,
    patterns: &[Pattern],
) -> (
    Vec<(CheckpointId, Option<RemainingFiles>)>,
    Option<AppError>,
) {
    let (mut left, mut failure) = (Vec::with_capacity(rows.len()), None);
    for (row, owner) in rows {
        let now = remove_one(storage, &row, owner, patterns).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            None
        });
        left.push((row.uuid, now));
    }
    (left, failure)
}

/// What is left of the files that were reported. Files that the reporter did not list do not count.
fn remove_one(
    storage: &Storage,
    row: &CheckpointRow,
    owner: Owner,
    patterns: &[Pattern],
) -> AppResult<Option<RemainingFiles>> {
    let known = resources(row)?;
    let now = storage.remove_matching(&row.uuid, owner, patterns)?;
    if now.is_empty() {
        return Ok(Some(RemainingFiles::new()));
    }
    let is_left = |path: &String| now.contains_key(path);
    if known
        .keys()
        .filter(|path| !path.ends_with('/'))
        .all(is_left)
    {
        return Ok(None);
    }
    let left: RemainingFiles = known
        .into_iter()
        .filter(|(path, _)| is_left(path))
        .collect();
    if left.is_empty() && !patterns.is_empty() {
        storage.remove(&row.uuid, owner)?;
    }
    Ok(Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(globs: &[&str]) -> Vec<Pattern> {
        globs.iter().map(|g| Pattern::parse(g).unwrap()).collect()
    }

    #[test]
    fn a_removal_that_ends_leaves_the_mark_of_another() {
        let (first, second) = (removal(&["a", "b"]), removal(&["b", "c"]));
        let one = with(None, &first).unwrap();
        let both = with(Some(&one), &second).unwrap();
        assert_eq!(both, r#"["a","b","c"]"#);
        let rest = without(Some(&both), &first).unwrap();
        assert_eq!(rest.as_deref(), Some(r#"["c"]"#));
        assert_eq!(without(rest.as_deref(), &second).unwrap(), None);
    }

    #[test]
    fn a_mark_does_not_grow_for_ever() {
        let mut mark = None;
        let refused = (0..100).find_map(|n| {
            let next = with(
                mark.as_deref(),
                &removal(&[&format!("{n}{}", "a".repeat(4000))]),
            );
            match next {
                Ok(next) => {
                    mark = Some(next);
                    None
                }
                Err(error) => Some(error),
            }
        });
        assert!(refused.unwrap().message.contains("are under way"));
        let known = with(mark.as_deref(), &[]).unwrap();
        assert_eq!(Some(known), mark, "what it has may be done again");
    }

    #[test]
    fn a_report_of_what_is_left_ends_no_removal() {
        let mark = with(None, &removal(&["*.pt"])).unwrap();
        assert_eq!(without(Some(&mark), &[]).unwrap().as_ref(), Some(&mark));
        assert_eq!(without(None, &[]).unwrap(), None);
    }
}
