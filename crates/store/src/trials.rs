//! Trials.

use std::collections::HashMap;
use std::sync::Arc;

use det_ids::{CheckpointId, ExperimentId, RequestId, RunId, TaskId, TrialId};
use det_lifecycle::state_name::StateName;
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::{TrialCounts, UnmanagedState};

use crate::column;
use crate::query::{Query, pieces};
use crate::unit::save_rows;
use crate::{Conn, StoreError};

/// A trial, with what was last reported of it.
#[derive(Debug, Clone, PartialEq, crate::Row)]
pub struct TrialRow {
    /// Number, over the whole cluster.
    pub id: TrialId,
    /// Number of the experiment that the trial belongs to.
    pub experiment_id: ExperimentId,
    /// The searcher's name for it; of an unmanaged trial, its external id or a UUID.
    pub request_id: RequestId,
    /// Id of its current task; a continuation gives it a new one.
    pub task_id: TaskId,
    /// The state of its life cycle. Its name is stored in the column `state` too, for queries.
    #[row(json = "machine")]
    pub state: TrialState,
    /// Hyperparameters that it trains with, JSON object.
    pub hparams: String,
    /// Seed of its random values, 0 to 2^31 - 1.
    pub seed: i64,
    /// Counts allocations; reports of an older run are refused.
    pub run_id: RunId,
    /// How many failures counted against its restart limit so far.
    pub restarts: i64,
    /// Checkpoint that the first run starts from.
    pub warm_start_checkpoint: Option<CheckpointId>,
    /// Complete checkpoint with the most steps.
    pub latest_checkpoint: Option<CheckpointId>,
    /// Steps of that checkpoint; `None` = none exists.
    pub latest_checkpoint_steps: Option<i64>,
    /// Steps of the checkpoint that the current run began from, or the highest step that it reported since.
    pub total_batches: i64,
    /// How far it is, 0 to 1.
    pub progress: f64,
    /// The activity that the training code reports: `training`, …
    pub runner_state: String,
    /// What users or the code noted about it, JSON object.
    pub metadata: String,
    /// Best searcher metric as reported.
    pub best_metric: Option<f64>,
    /// Best validation, JSON: see `metrics::StoredReport`.
    pub best_validation: Option<String>,
    /// Latest searcher metric as reported.
    pub latest_metric: Option<f64>,
    /// Latest validation, JSON: see `metrics::StoredReport`; `None` = there is none.
    pub latest_validation: Option<String>,
    /// How many of its checkpoints are not deleted.
    pub checkpoint_count: i64,
    /// Bytes of the checkpoints that `checkpoint_count` counts.
    pub checkpoint_bytes: i64,
    /// Something that users should know, such as reports without the searcher's metric.
    pub notice: Option<String>,
    /// When it was created, microseconds.
    pub created_at: i64,
    /// When it ended, microseconds; `None` while live.
    pub ended_at: Option<i64>,
    /// What is known of its code, of which `state` follows; `None` = the master runs it.
    #[row(json)]
    pub unmanaged: Option<UnmanagedState>,
}

/// What a trial is added with; the store adds its number.
#[derive(Debug, Clone)]
pub struct NewTrial {
    /// Number of the experiment that the trial belongs to.
    pub experiment_id: ExperimentId,
    /// The searcher's name for it; of an unmanaged trial, its external id or a UUID.
    pub request_id: RequestId,
    /// Id of its first task.
    pub task_id: TaskId,
    /// The state that its life cycle begins with.
    pub state: TrialState,
    /// Hyperparameters that it trains with, JSON object.
    pub hparams: String,
    /// Seed of its random values, 0 to 2^31 - 1.
    pub seed: i64,
    /// Checkpoint that the first run starts from; `None` = from the beginning.
    pub warm_start_checkpoint: Option<CheckpointId>,
    /// When it was created, microseconds.
    pub created_at: i64,
    /// What is known of its code; `None` = the master runs it.
    pub unmanaged: Option<UnmanagedState>,
}

/// Adds a trial and gives its number.
pub async fn insert(conn: &mut Conn<'_>, new: &NewTrial) -> Result<TrialId, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (TrialId,),
        "INSERT INTO trials (experiment_id, request_id, task_id, state, machine, hparams, seed, run_id, restarts, \
         warm_start_checkpoint, total_batches, progress, runner_state, metadata, checkpoint_count, checkpoint_bytes, \
         created_at, unmanaged) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, $8, 0, 0.0, '', '{}', 0, 0, $9, $10) RETURNING id",
        new.experiment_id,
        &new.request_id,
        &new.task_id,
        new.state.stored_name(),
        column::text(&new.state),
        new.hparams.as_str(),
        new.seed,
        new.warm_start_checkpoint.as_ref(),
        new.created_at,
        new.unmanaged.as_ref().map(column::text).as_deref()
    )?;
    let unit = conn.writing()?;
    unit.trials.keep(Arc::new(new.row(id)), false);
    unit.experiments.count_trials(new.experiment_id, 1);
    Ok(id)
}

impl NewTrial {
    /// The row as [`insert`] stores it.
    fn row(&self, id: TrialId) -> TrialRow {
        TrialRow {
            id,
            experiment_id: self.experiment_id,
            request_id: self.request_id.clone(),
            task_id: self.task_id.clone(),
            state: self.state,
            hparams: self.hparams.clone(),
            seed: self.seed,
            run_id: RunId::default(),
            restarts: 0,
            warm_start_checkpoint: self.warm_start_checkpoint.clone(),
            latest_checkpoint: None,
            latest_checkpoint_steps: None,
            total_batches: 0,
            progress: 0.0,
            runner_state: String::new(),
            metadata: "{}".into(),
            best_metric: None,
            best_validation: None,
            latest_metric: None,
            latest_validation: None,
            checkpoint_count: 0,
            checkpoint_bytes: 0,
            notice: None,
            created_at: self.created_at,
            ended_at: None,
            unmanaged: self.unmanaged,
        }
    }
}

/// Writes changed trials.
pub(crate) async fn save_changed(
    conn: &mut Conn<'_>,
    rows: &[Arc<TrialRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO trials",
        (
            id: "bigint" = |row| row.id,
            experiment_id: "bigint" = |row| row.experiment_id,
            request_id: "text" = |row| &row.request_id,
            task_id: "text" = |row| &row.task_id,
            state: "text" = |row| row.state.stored_name(),
            machine: "text" = |row| column::text(&row.state),
            hparams: "text" = |row| row.hparams.as_str(),
            seed: "bigint" = |row| row.seed,
            run_id: "bigint" = |row| row.run_id,
            restarts: "bigint" = |row| row.restarts,
            latest_checkpoint: "text" = |row| row.latest_checkpoint.as_ref(),
            latest_checkpoint_steps: "bigint" = |row| row.latest_checkpoint_steps,
            total_batches: "bigint" = |row| row.total_batches,
            progress: "double precision" = |row| row.progress,
            runner_state: "text" = |row| row.runner_state.as_str(),
            metadata: "text" = |row| row.metadata.as_str(),
            best_metric: "double precision" = |row| row.best_metric,
            best_validation: "text" = |row| row.best_validation.as_deref(),
            latest_metric: "double precision" = |row| row.latest_metric,
            latest_validation: "text" = |row| row.latest_validation.as_deref(),
            checkpoint_count: "bigint" = |row| row.checkpoint_count,
            checkpoint_bytes: "bigint" = |row| row.checkpoint_bytes,
            notice: "text" = |row| row.notice.as_deref(),
            created_at: "bigint" = |row| row.created_at,
            ended_at: "bigint" = |row| row.ended_at,
            unmanaged: "text" = |row| row.unmanaged.as_ref().map(column::text),
        ),
        "ON CONFLICT (id) DO UPDATE SET task_id = excluded.task_id, state = excluded.state, \
         machine = excluded.machine, hparams = excluded.hparams, run_id = excluded.run_id, \
         restarts = excluded.restarts, latest_checkpoint = excluded.latest_checkpoint, \
         latest_checkpoint_steps = excluded.latest_checkpoint_steps, total_batches = excluded.total_batches, \
         progress = excluded.progress, runner_state = excluded.runner_state, metadata = excluded.metadata, \
         best_metric = excluded.best_metric, best_validation = excluded.best_validation, \
         latest_metric = excluded.latest_metric, latest_validation = excluded.latest_validation, \
         checkpoint_count = excluded.checkpoint_count, checkpoint_bytes = excluded.checkpoint_bytes, \
         notice = excluded.notice, ended_at = excluded.ended_at, unmanaged = excluded.unmanaged"
    );
    Ok(())
}

/// The trial with this number; `None` = there is none.
pub async fn find(conn: &mut Conn<'_>, id: TrialId) -> Result<Option<TrialRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(row) = unit.trials.get(&id)
    {
        return Ok(Some(TrialRow::clone(row)));
    }
    let row = fetch_optional!(conn, TrialRow, "SELECT * FROM trials WHERE id = $1", id)?;
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.trials.keep(Arc::new(row.clone()), false);
    }
    Ok(row)
}

/// Changes a trial, if there is one with this number.
async fn edit(
    conn: &mut Conn<'_>,
    id: TrialId,
    change: impl FnOnce(&mut TrialRow),
) -> Result<(), StoreError> {
    if conn.writing()?.trials.get(&id).is_none() {
        find(conn, id).await?;
    }
    conn.writing()?.edit_trial(id, change);
    Ok(())
}

/// The trial that the searcher calls `request_id`.
pub async fn find_by_request(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    request_id: &RequestId,
) -> Result<Option<TrialRow>, StoreError> {
    // Number and name of a trial never change; the rest may be newer in memory.
    let found = fetch_optional!(
        conn,
        (TrialId,),
        "SELECT id FROM trials WHERE experiment_id = $1 AND request_id = $2",
        experiment_id,
        request_id
    )?;
    match found {
        Some((id,)) => find(conn, id).await,
        None => Ok(None),
    }
}

/// All trials of an experiment by number.
pub async fn of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Vec<TrialRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE experiment_id = $1 ORDER BY id",
        experiment_id
    )?)
}

/// The numbers of all trials of an experiment, in order.
pub async fn ids_of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Vec<TrialId>, StoreError> {
    conn.flush().await?;
    let rows = fetch_all!(
        conn,
        (TrialId,),
        "SELECT id FROM trials WHERE experiment_id = $1 ORDER BY id",
        experiment_id
    )?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// A live trial and its state.
#[derive(Debug, Clone, PartialEq, crate::Row)]
pub struct LiveTrial {
    /// Number of the trial, over the whole cluster.
    pub id: TrialId,
    /// The state of its life cycle, as [`TrialRow::state`].
    #[row(json = "machine")]
    pub state: TrialState,
}

/// A statement of [`live_states`] with this condition and order.
macro_rules! live {
    ($which:literal) => {
        concat!(
            "SELECT id, machine FROM trials WHERE experiment_id = $1 AND ended_at IS NULL AND ",
            $which
        )
    };
}

/// A statement of [`live_states`]: those in one state, at most so many.
pub(crate) const LIVE_OF_STATE: &str = live!("state = $2 ORDER BY id LIMIT $3");
/// A statement of [`live_states`]: all that are being stopped.
pub(crate) const STOPPING: &str = live!("state NOT IN ('ACTIVE', 'PAUSED') ORDER BY id");

/// Live trials of an experiment by number: all that are being stopped, and at most `most` of those that are active, and of
/// those that are paused.
pub async fn live_states(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    most: i64,
) -> Result<Vec<LiveTrial>, StoreError> {
    conn.flush().await?;
    let mut live = fetch_all!(conn, LiveTrial, STOPPING, experiment_id)?;
    for state in [TrialState::Active, TrialState::Paused] {
        let state = state.stored_name();
        live.extend(fetch_all!(
            conn,
            LiveTrial,
            LIVE_OF_STATE,
            experiment_id,
            state,
            most
        )?);
    }
    live.sort_unstable_by_key(|trial| trial.id);
    Ok(live)
}

/// Live trials of an experiment by number.
pub async fn live_of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Vec<TrialRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE experiment_id = $1 AND ended_at IS NULL ORDER BY id",
        experiment_id
    )?)
}

/// How many trials of an experiment are live.
pub async fn count_live(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<i64, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(cell) = unit.experiments.get(&experiment_id)
        && let Some(count) = cell.live_trials
    {
        return Ok(count);
    }
    conn.flush().await?;
    let (n,) = fetch_one!(
        conn,
        (i64,),
        "SELECT COUNT(*) FROM trials WHERE experiment_id = $1 AND ended_at IS NULL",
        experiment_id
    )?;
    if let Some(unit) = &mut conn.unit {
        unit.experiments
            .note(&experiment_id, |cell| cell.live_trials = Some(n));
    }
    Ok(n)
}

/// The statement of [`counts`], also for the test of query plans.
pub(crate) const COUNTS: &str =
    "SELECT machine, COUNT(*), MIN(id) FROM trials WHERE experiment_id = $1 GROUP BY machine";

/// How many trials of an experiment are in each state.
pub async fn counts(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<TrialCounts, StoreError> {
    conn.flush().await?;
    let rows = fetch_all!(conn, (String, i64, TrialId), COUNTS, experiment_id)?;
    let mut counts = TrialCounts::default();
    for (machine, number, first) in rows {
        let corrupt = |message| StoreError::Corrupt {
            what: format!("state of trial {first} of experiment {experiment_id}"),
            message,
        };
        let state = column::json(&machine).map_err(corrupt)?;
        let number = u64::try_from(number).map_err(|error| corrupt(error.to_string()))?;
        counts.add(state, number);
    }
    Ok(counts)
}

/// An unmanaged trial whose code is waited for.
#[derive(Debug, Clone, PartialEq, crate::Row)]
pub struct UnmanagedTrial {
    /// Number of the trial, over the whole cluster.
    pub id: TrialId,
    /// What is known of its code, as [`TrialRow::unmanaged`].
    #[row(json = "unmanaged")]
    pub state: UnmanagedState,
}

/// The statement of [`unmanaged`], also for the test of query plans.
pub(crate) const UNMANAGED: &str =
    "SELECT id, unmanaged FROM trials WHERE unmanaged IS NOT NULL AND ended_at IS NULL ORDER BY id";

/// The unmanaged trials that have not ended, by number.
pub async fn unmanaged(conn: &mut Conn<'_>) -> Result<Vec<UnmanagedTrial>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(conn, UnmanagedTrial, UNMANAGED)?)
}

/// The mean of the progress that the trials of an experiment reported, 0 to 1; 0 without trials.
pub async fn mean_progress(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<f64, StoreError> {
    conn.flush().await?;
    let (progress,) = fetch_one!(
        conn,
        (f64,),
        "SELECT COALESCE(AVG(progress), 0.0) FROM trials WHERE experiment_id = $1",
        experiment_id
    )?;
    Ok(progress)
}

/// What to sort an experiment's trials by; the id is the tie break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Number of the trial.
    #[default]
    Id,
    /// Time of creation.
    StartTime,
    /// End; live ones last.
    EndTime,
    /// Name of the stored state, in alphabetical order.
    State,
    /// Best validation by the searcher's metric, as reported.
    BestValidation,
    /// Latest validation by the searcher's metric, as reported.
    LatestValidation,
    /// Steps of the current run, as [`TrialRow::total_batches`].
    BatchesProcessed,
    /// Time from creation to end; live ones last.
    Duration,
    /// Failures that counted against the restart limit.
    Restarts,
    /// Bytes of its checkpoints that are not deleted.
    CheckpointSize,
    /// Days that logs are kept; those that follow the cluster last.
    LogRetentionDays,
}

impl Sort {
    /// Every key, once.
    pub const ALL: [Self; 11] = [
        Self::Id,
        Self::StartTime,
        Self::EndTime,
        Self::State,
        Self::BestValidation,
        Self::LatestValidation,
        Self::BatchesProcessed,
        Self::Duration,
        Self::Restarts,
        Self::CheckpointSize,
        Self::LogRetentionDays,
    ];

    fn column(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::StartTime => "created_at",
            Self::EndTime => "ended_at",
            Self::State => "state",
            Self::BestValidation => "best_metric",
            Self::LatestValidation => "latest_metric",
            Self::BatchesProcessed => "total_batches",
            Self::Duration => "ended_at - created_at",
            Self::Restarts => "restarts",
            Self::CheckpointSize => "checkpoint_bytes",
            Self::LogRetentionDays => {
                "(SELECT t.log_retention_days FROM tasks t WHERE t.id = trials.task_id)"
            }
        }
    }
}

fn of(select: &str, experiment_id: ExperimentId, states: Option<&[StateName]>) -> Query {
    let mut query = Query::new(select);
    query.condition("experiment_id = ").bind(experiment_id);
    if let Some(states) = states {
        query.any_of("state", states.iter().copied());
    }
    query
}

pub(crate) fn count_query(experiment_id: ExperimentId, states: Option<&[StateName]>) -> Query {
    of("SELECT COUNT(*) FROM trials", experiment_id, states)
}

/// The numbers of a page only: what is sorted is then a few bytes of each trial, not all its texts.
pub(crate) fn page_query(
    experiment_id: ExperimentId,
    states: Option<&[StateName]>,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> Query {
    let mut query = of("SELECT id FROM trials", experiment_id, states);
    query
        .push(" ORDER BY ")
        .push(sort.column())
        .push(if descending {
            " DESC NULLS LAST"
        } else {
            " ASC NULLS LAST"
        });
    if sort != Sort::Id {
        query
            .push(", id")
            .push(if descending { " DESC" } else { " ASC" });
    }
    query.page(offset, limit);
    query
}

pub(crate) fn rows_query(ids: &[TrialId]) -> Query {
    let mut query = Query::new("SELECT * FROM trials");
    query.any_of("id", ids.iter().copied());
    query
}

/// One page of an experiment's trials, and how many match in all. `limit` below 0 = all.
pub async fn list(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    states: Option<&[StateName]>,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> Result<(Vec<TrialRow>, i64), StoreError> {
    conn.flush().await?;
    let total = count_query(experiment_id, states)
        .fetch_all::<(i64,)>(conn)
        .await?
        .first()
        .map_or(0, |(n,)| *n);
    let ids: Vec<TrialId> = page_query(experiment_id, states, sort, descending, offset, limit)
        .fetch_all::<(TrialId,)>(conn)
        .await?
        .into_iter()
        .map(|(id,)| id)
        .collect();
    Ok((in_order(conn, &ids).await?, total))
}

/// The trials with these numbers, in this order; those that are gone are left out.
async fn in_order(conn: &mut Conn<'_>, ids: &[TrialId]) -> Result<Vec<TrialRow>, StoreError> {
    conn.flush().await?;
    let mut found: HashMap<TrialId, TrialRow> = HashMap::with_capacity(ids.len());
    for some in pieces(ids) {
        for row in rows_query(some).fetch_all::<TrialRow>(conn).await? {
            found.insert(row.id, row);
        }
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

/// The trials with these numbers.
pub async fn find_all(conn: &mut Conn<'_>, ids: &[TrialId]) -> Result<Vec<TrialRow>, StoreError> {
    in_order(conn, ids).await
}

/// Stores the progress, 0 to 1.
pub async fn set_progress(
    conn: &mut Conn<'_>,
    id: TrialId,
    progress: f64,
) -> Result<(), StoreError> {
    edit(conn, id, |row| row.progress = progress).await
}

/// Stores the activity that the training code reports.
pub async fn set_runner_state(
    conn: &mut Conn<'_>,
    id: TrialId,
    state: &str,
) -> Result<(), StoreError> {
    edit(conn, id, |row| state.clone_into(&mut row.runner_state)).await
}

/// Stores what users or the code noted about a trial, in place of what is stored.
pub async fn set_metadata(
    conn: &mut Conn<'_>,
    id: TrialId,
    metadata: &str,
) -> Result<(), StoreError> {
    edit(conn, id, |row| metadata.clone_into(&mut row.metadata)).await
}

/// Stores a sentence that users see with the trial.
pub async fn set_notice(
    conn: &mut Conn<'_>,
    id: TrialId,
    notice: Option<&str>,
) -> Result<(), StoreError> {
    edit(conn, id, |row| row.notice = notice.map(str::to_owned)).await
}

/// Stores best and latest validation. A metric that is not a number is stored as none (the databases disagree on NaN);
/// the validation's own text keeps it.
pub async fn set_validations(
    conn: &mut Conn<'_>,
    id: TrialId,
    best: (Option<f64>, Option<&str>),
    latest: (Option<f64>, Option<&str>),
) -> Result<(), StoreError> {
    edit(conn, id, |row| {
        row.best_metric = best.0.filter(|m| !m.is_nan());
        row.best_validation = best.1.map(str::to_owned);
        row.latest_metric = latest.0.filter(|m| !m.is_nan());
        row.latest_validation = latest.1.map(str::to_owned);
    })
    .await
}

/// Counts the checkpoints of a trial anew and finds the complete one with the most steps.
pub async fn recount_checkpoints(conn: &mut Conn<'_>, id: TrialId) -> Result<(), StoreError> {
    let (count, bytes) = fetch_one!(
        conn,
        (i64, i64),
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM checkpoints \
         WHERE trial_id = $1 AND state <> 'DELETED'",
        id
    )?;
    let latest = fetch_optional!(
        conn,
        (CheckpointId, i64),
        "SELECT uuid, steps FROM checkpoints WHERE trial_id = $1 AND state = 'COMPLETED' AND removing IS NULL \
         ORDER BY steps DESC, reported_at DESC LIMIT 1",
        id
    )?;
    edit(conn, id, |row| {
        row.checkpoint_count = count;
        row.checkpoint_bytes = bytes;
        (row.latest_checkpoint, row.latest_checkpoint_steps) = latest.unzip();
    })
    .await
}
