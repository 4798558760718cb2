//! Checkpoints.

use det_ids::{AllocationId, CheckpointId, ExperimentId, StorageId, TaskId, TrialId};
pub use det_lifecycle::state_name::CheckpointState;

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError};

/// A checkpoint that a task has reported: its files are in a storage, its metadata here.
#[derive(Debug, Clone, crate::Row)]
#[row(id = "uuid")]
pub struct CheckpointRow {
    /// UUID of the checkpoint, which the task chose.
    pub uuid: CheckpointId,
    /// Number of the experiment that the trial belongs to; `None` = the task is no trial's.
    pub experiment_id: Option<ExperimentId>,
    /// Number of the trial that wrote it; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// Id of the task that wrote it.
    pub task_id: TaskId,
    /// Id of the allocation that wrote it; `None` = code outside the cluster did.
    pub allocation_id: Option<AllocationId>,
    /// Which of its files exist.
    #[row(word)]
    pub state: CheckpointState,
    /// `steps_completed` of its metadata: steps that were done when it was written.
    pub steps: i64,
    /// The task's metadata, a JSON object.
    pub metadata: String,
    /// JSON object: path to bytes.
    pub resources: String,
    /// Bytes of all files that `resources` names.
    pub bytes: i64,
    /// When it was reported, microseconds.
    pub reported_at: i64,
    /// The storage that holds its files; `None` = not known.
    pub storage_id: Option<StorageId>,
    /// Unix user id that its task ran as; `None` = not known.
    pub owner_uid: Option<i64>,
    /// While files are being removed: JSON list of the patterns.
    pub removing: Option<String>,
}

/// What lists of checkpoints are filtered, sorted and cut by.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(id = "uuid")]
pub struct CheckpointHead {
    /// Id of the checkpoint, chosen by the task that wrote it.
    pub uuid: CheckpointId,
    /// Number of the trial that wrote it; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// Which of its files exist.
    #[row(word)]
    pub state: CheckpointState,
    /// Steps that were completed when it was written: `steps_completed` of its metadata.
    pub steps: i64,
    /// When it was reported, microseconds.
    pub reported_at: i64,
    /// Bytes of its metadata and resources.
    pub bytes: i64,
}

/// The columns of a [`CheckpointHead`].
macro_rules! heads {
    ($which:literal) => {
        concat!(
            "SELECT uuid, trial_id, state, steps, reported_at, \
             CAST(octet_length(metadata) + octet_length(resources) AS BIGINT) AS bytes FROM checkpoints ",
            $which
        )
    };
}

/// Adds a checkpoint; an existing one is left as it is. Returns whether it was added.
pub async fn insert(conn: &mut Conn<'_>, row: &CheckpointRow) -> Result<bool, StoreError> {
    let added = execute!(
        conn,
        "INSERT INTO checkpoints (uuid, experiment_id, trial_id, task_id, allocation_id, state, steps, metadata, \
         resources, bytes, reported_at, storage_id, owner_uid, removing) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
         ON CONFLICT (uuid) DO NOTHING",
        &row.uuid,
        row.experiment_id,
        row.trial_id,
        &row.task_id,
        row.allocation_id.as_ref(),
        row.state.name(),
        row.steps,
        row.metadata.as_str(),
        row.resources.as_str(),
        row.bytes,
        row.reported_at,
        row.storage_id,
        row.owner_uid,
        row.removing.as_deref()
    )?;
    Ok(added > 0)
}

/// The checkpoint with this id; `None` = there is none.
pub async fn find(
    conn: &mut Conn<'_>,
    uuid: &CheckpointId,
) -> Result<Option<CheckpointRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        CheckpointRow,
        "SELECT * FROM checkpoints WHERE uuid = $1",
        uuid
    )?)
}

/// Stores the state, metadata, files and pending removal of a checkpoint; the rest never changes.
pub async fn update(conn: &mut Conn<'_>, row: &CheckpointRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE checkpoints SET state = $1, metadata = $2, resources = $3, bytes = $4, removing = $5 WHERE uuid = $6",
        row.state.name(),
        row.metadata.as_str(),
        row.resources.as_str(),
        row.bytes,
        row.removing.as_deref(),
        &row.uuid
    )?;
    Ok(())
}

/// The checkpoints of a trial by steps.
pub async fn of_trial(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
) -> Result<Vec<CheckpointRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        CheckpointRow,
        "SELECT * FROM checkpoints WHERE trial_id = $1 ORDER BY steps, reported_at, uuid",
        trial_id
    )?)
}

/// The statement of [`heads_of_trial`].
pub(crate) const HEADS_OF_TRIAL: &str =
    heads!("WHERE trial_id = $1 ORDER BY steps, reported_at, uuid");
/// The statement of [`heads_of_experiment`].
pub(crate) const HEADS_OF_EXPERIMENT: &str =
    heads!("WHERE experiment_id = $1 ORDER BY reported_at, uuid");

/// The heads of a trial's checkpoints by steps.
pub async fn heads_of_trial(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
) -> Result<Vec<CheckpointHead>, StoreError> {
    Ok(fetch_all!(conn, CheckpointHead, HEADS_OF_TRIAL, trial_id)?)
}

/// The heads of an experiment's checkpoints by report time.
pub async fn heads_of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Vec<CheckpointHead>, StoreError> {
    Ok(fetch_all!(
        conn,
        CheckpointHead,
        HEADS_OF_EXPERIMENT,
        experiment_id
    )?)
}

pub(crate) fn of_trials_query(trial_ids: &[TrialId]) -> Query {
    let mut query = Query::new("SELECT * FROM checkpoints");
    query.any_of("trial_id", trial_ids.iter().copied());
    query
}

/// The checkpoints of several trials, in no order.
pub async fn of_trials(
    conn: &mut Conn<'_>,
    trial_ids: &[TrialId],
) -> Result<Vec<CheckpointRow>, StoreError> {
    let mut found = Vec::new();
    for ids in pieces(trial_ids) {
        found.extend(of_trials_query(ids).fetch_all(conn).await?);
    }
    Ok(found)
}

/// The statement of [`of_experiment`], also for the test of query plans.
pub(crate) const OF_EXPERIMENT: &str =
    "SELECT * FROM checkpoints WHERE experiment_id = $1 ORDER BY reported_at, uuid";
/// The statement of [`warm_start_sources`], also for the test of query plans.
pub(crate) const WARM_STARTED: &str =
    "SELECT DISTINCT warm_start_checkpoint FROM trials WHERE warm_start_checkpoint IS NOT NULL";

/// The statement of [`in_removal`], also for the test of query plans.
pub(crate) const IN_REMOVAL: &str =
    "SELECT * FROM checkpoints WHERE removing IS NOT NULL ORDER BY uuid";

/// The checkpoints of an experiment by report time.
pub async fn of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Vec<CheckpointRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        CheckpointRow,
        OF_EXPERIMENT,
        experiment_id
    )?)
}

/// The checkpoints with these ids.
pub async fn find_all(
    conn: &mut Conn<'_>,
    uuids: &[CheckpointId],
) -> Result<Vec<CheckpointRow>, StoreError> {
    let mut found = Vec::new();
    for uuids in pieces(uuids) {
        let mut query = Query::new("SELECT * FROM checkpoints");
        query.any_of("uuid", uuids.iter().map(Value::from));
        found.extend(query.fetch_all(conn).await?);
    }
    Ok(found)
}

/// The checkpoints of which files are being removed.
pub async fn in_removal(conn: &mut Conn<'_>) -> Result<Vec<CheckpointRow>, StoreError> {
    Ok(fetch_all!(conn, CheckpointRow, IN_REMOVAL)?)
}

/// The storage of a location, which is given a number if it has none yet. `location` is its section of a configuration
/// without secrets.
pub async fn storage_id(conn: &mut Conn<'_>, location: &str) -> Result<StorageId, StoreError> {
    let known = fetch_optional!(
        conn,
        (StorageId,),
        "SELECT id FROM checkpoint_storages WHERE location = $1",
        location
    )?;
    if let Some((id,)) = known {
        return Ok(id);
    }
    let (id,) = fetch_one!(
        conn,
        (StorageId,),
        "INSERT INTO checkpoint_storages (location) VALUES ($1) RETURNING id",
        location
    )?;
    Ok(id)
}

/// Whether a storage with this number exists.
pub async fn has_storage(conn: &mut Conn<'_>, id: StorageId) -> Result<bool, StoreError> {
    let found = fetch_optional!(
        conn,
        (StorageId,),
        "SELECT id FROM checkpoint_storages WHERE id = $1",
        id
    )?;
    Ok(found.is_some())
}

/// Checkpoints that trials start from. In a transaction that includes what it has changed itself.
pub async fn warm_start_sources(conn: &mut Conn<'_>) -> Result<Vec<CheckpointId>, StoreError> {
    if conn.unit.is_some() {
        conn.flush().await?;
    }
    let rows = fetch_all!(conn, (CheckpointId,), WARM_STARTED)?;
    Ok(rows.into_iter().map(|(uuid,)| uuid).collect())
}
