//! Trials.

use std::collections::HashMap;

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError};

/// A trial.
#[derive(Debug, Clone, crate::Row)]
pub struct TrialRow {
    /// Number, over the whole cluster.
    pub id: i64,
    /// Its experiment.
    pub experiment_id: i64,
    /// The searcher's name for it.
    pub request_id: String,
    /// Its current task.
    pub task_id: String,
    /// Stored state name.
    pub state: String,
    /// Life cycle state with its data, JSON.
    pub machine: String,
    /// Hyperparameters, JSON object.
    pub hparams: String,
    /// 0 to 2^31.
    pub seed: i64,
    /// Counts allocations; reports of an older run are refused.
    pub run_id: i64,
    /// Failures charged so far.
    pub restarts: i64,
    /// Checkpoint that the first run starts from.
    pub warm_start_checkpoint: Option<String>,
    /// Complete checkpoint with the most steps.
    pub latest_checkpoint: Option<String>,
    /// Its steps.
    pub latest_checkpoint_steps: Option<i64>,
    /// Highest step reported by the current run.
    pub total_batches: i64,
    /// 0 to 1.
    pub progress: f64,
    /// What the code says it does: `training`, …
    pub runner_state: String,
    /// Users' metadata, JSON object.
    pub metadata: String,
    /// Best searcher metric as reported.
    pub best_metric: Option<f64>,
    /// Best validation, JSON: see `metrics::StoredReport`.
    pub best_validation: Option<String>,
    /// Latest searcher metric as reported.
    pub latest_metric: Option<f64>,
    /// Latest validation, JSON.
    pub latest_validation: Option<String>,
    /// Checkpoints not deleted.
    pub checkpoint_count: i64,
    /// Their size.
    pub checkpoint_bytes: i64,
    /// Something people should know, such as reports without the searcher's metric.
    pub notice: Option<String>,
    /// Microseconds.
    pub created_at: i64,
    /// Microseconds; `None` while live.
    pub ended_at: Option<i64>,
}

/// A new trial.
#[derive(Debug, Clone)]
pub struct NewTrial {
    /// See [`TrialRow`].
    pub experiment_id: i64,
    /// See [`TrialRow`].
    pub request_id: String,
    /// See [`TrialRow`].
    pub task_id: String,
    /// See [`TrialRow`].
    pub state: String,
    /// See [`TrialRow`].
    pub machine: String,
    /// See [`TrialRow`].
    pub hparams: String,
    /// See [`TrialRow`].
    pub seed: i64,
    /// See [`TrialRow`].
    pub warm_start_checkpoint: Option<String>,
    /// See [`TrialRow`].
    pub created_at: i64,
}

/// Adds a trial and gives its number.
pub async fn insert(conn: &mut Conn<'_>, new: &NewTrial) -> Result<i64, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (i64,),
        "INSERT INTO trials (experiment_id, request_id, task_id, state, machine, hparams, seed, run_id, restarts, \
         warm_start_checkpoint, total_batches, progress, runner_state, metadata, checkpoint_count, checkpoint_bytes, \
         created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, $8, 0, 0.0, '', '{}', 0, 0, $9) RETURNING id",
        new.experiment_id,
        new.request_id.as_str(),
        new.task_id.as_str(),
        new.state.as_str(),
        new.machine.as_str(),
        new.hparams.as_str(),
        new.seed,
        new.warm_start_checkpoint.as_deref(),
        new.created_at
    )?;
    Ok(id)
}

/// One trial.
pub async fn find(conn: &mut Conn<'_>, id: i64) -> Result<Option<TrialRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE id = $1",
        id
    )?)
}

/// The trial that the searcher calls `request_id`.
pub async fn find_by_request(
    conn: &mut Conn<'_>,
    experiment_id: i64,
    request_id: &str,
) -> Result<Option<TrialRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE experiment_id = $1 AND request_id = $2",
        experiment_id,
        request_id
    )?)
}

/// All trials of an experiment by number.
pub async fn of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: i64,
) -> Result<Vec<TrialRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE experiment_id = $1 ORDER BY id",
        experiment_id
    )?)
}

/// Live trials of an experiment by number.
pub async fn live_of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: i64,
) -> Result<Vec<TrialRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        TrialRow,
        "SELECT * FROM trials WHERE experiment_id = $1 AND ended_at IS NULL ORDER BY id",
        experiment_id
    )?)
}

/// How many trials of an experiment are live.
pub async fn count_live(conn: &mut Conn<'_>, experiment_id: i64) -> Result<i64, StoreError> {
    let (n,) = fetch_one!(
        conn,
        (i64,),
        "SELECT COUNT(*) FROM trials WHERE experiment_id = $1 AND ended_at IS NULL",
        experiment_id
    )?;
    Ok(n)
}

/// How far the trials of an experiment said they were, on average; 0 without trials.
pub async fn mean_progress(conn: &mut Conn<'_>, experiment_id: i64) -> Result<f64, StoreError> {
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
    /// Number.
    #[default]
    Id,
    /// Creation.
    StartTime,
    /// End; live ones last.
    EndTime,
    /// Stored state.
    State,
    /// Best validation by the searcher's metric, as reported.
    BestValidation,
    /// Latest validation by the searcher's metric, as reported.
    LatestValidation,
    /// Steps.
    BatchesProcessed,
    /// Run time.
    Duration,
    /// Failures.
    Restarts,
    /// Checkpoint bytes.
    CheckpointSize,
}

impl Sort {
    /// All of them.
    pub const ALL: [Self; 10] = [
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
        }
    }
}

fn of(select: &str, experiment_id: i64, states: Option<&[String]>) -> Query {
    let mut query = Query::new(select);
    query
        .condition("experiment_id = ")
        .bind(Value::Integer(experiment_id));
    if let Some(states) = states {
        query.any_of("state", states.iter().map(|s| Value::Text(s.clone())));
    }
    query
}

pub(crate) fn count_query(experiment_id: i64, states: Option<&[String]>) -> Query {
    of("SELECT COUNT(*) FROM trials", experiment_id, states)
}

/// The numbers of a page only: what is sorted is then a few bytes of each trial, not all its texts.
pub(crate) fn page_query(
    experiment_id: i64,
    states: Option<&[String]>,
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

pub(crate) fn rows_query(ids: &[i64]) -> Query {
    let mut query = Query::new("SELECT * FROM trials");
    query.any_of("id", ids.iter().map(|id| Value::Integer(*id)));
    query
}

/// One page of an experiment's trials, and how many match in all. `limit` below 0 = all.
pub async fn list(
    conn: &mut Conn<'_>,
    experiment_id: i64,
    states: Option<&[String]>,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> Result<(Vec<TrialRow>, i64), StoreError> {
    let total = count_query(experiment_id, states)
        .fetch_all::<(i64,)>(conn)
        .await?
        .first()
        .map_or(0, |(n,)| *n);
    let ids: Vec<i64> = page_query(experiment_id, states, sort, descending, offset, limit)
        .fetch_all::<(i64,)>(conn)
        .await?
        .into_iter()
        .map(|(id,)| id)
        .collect();
    Ok((in_order(conn, &ids).await?, total))
}

/// The trials with these numbers, in this order; those that are gone are left out.
async fn in_order(conn: &mut Conn<'_>, ids: &[i64]) -> Result<Vec<TrialRow>, StoreError> {
    let mut found: HashMap<i64, TrialRow> = HashMap::with_capacity(ids.len());
    for some in pieces(ids) {
        for row in rows_query(some).fetch_all::<TrialRow>(conn).await? {
            found.insert(row.id, row);
        }
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

/// The trials with these numbers.
pub async fn find_all(conn: &mut Conn<'_>, ids: &[i64]) -> Result<Vec<TrialRow>, StoreError> {
    in_order(conn, ids).await
}

/// Stores what the life cycle decided.
pub async fn set_state(
    conn: &mut Conn<'_>,
    id: i64,
    state: &str,
    machine: &str,
    restarts: i64,
    ended_at: Option<i64>,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET state = $1, machine = $2, restarts = $3, ended_at = $4 WHERE id = $5",
        state,
        machine,
        restarts,
        ended_at,
        id
    )?;
    Ok(())
}

/// Starts the next run on `task_id`: its number is `run_id` and steps count anew from `total_batches`.
pub async fn start_run(
    conn: &mut Conn<'_>,
    id: i64,
    task_id: &str,
    run_id: i64,
    total_batches: i64,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET run_id = $1, task_id = $2, total_batches = $3, runner_state = '' WHERE id = $4",
        run_id,
        task_id,
        total_batches,
        id
    )?;
    Ok(())
}

/// Gives an ended trial another task and other hyperparameters (JSON) for the runs to come.
pub async fn set_continuation(
    conn: &mut Conn<'_>,
    id: i64,
    task_id: &str,
    hparams: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET task_id = $1, hparams = $2 WHERE id = $3",
        task_id,
        hparams,
        id
    )?;
    Ok(())
}

/// Stores the progress, 0 to 1.
pub async fn set_progress(conn: &mut Conn<'_>, id: i64, progress: f64) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET progress = $1 WHERE id = $2",
        progress,
        id
    )?;
    Ok(())
}

/// Stores what the code says it does.
pub async fn set_runner_state(conn: &mut Conn<'_>, id: i64, state: &str) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET runner_state = $1 WHERE id = $2",
        state,
        id
    )?;
    Ok(())
}

/// Stores users' metadata.
pub async fn set_metadata(conn: &mut Conn<'_>, id: i64, metadata: &str) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET metadata = $1 WHERE id = $2",
        metadata,
        id
    )?;
    Ok(())
}

/// Stores a sentence that people should see with the trial.
pub async fn set_notice(
    conn: &mut Conn<'_>,
    id: i64,
    notice: Option<&str>,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET notice = $1 WHERE id = $2",
        notice,
        id
    )?;
    Ok(())
}

/// Raises the highest step reported.
pub async fn raise_total_batches(
    conn: &mut Conn<'_>,
    id: i64,
    step: i64,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET total_batches = $1 WHERE id = $2 AND total_batches < $1",
        step,
        id
    )?;
    Ok(())
}

/// Stores best and latest validation. A metric that is not a number is stored as none (the databases disagree on NaN);
/// the validation's own text keeps it.
pub async fn set_validations(
    conn: &mut Conn<'_>,
    id: i64,
    best: (Option<f64>, Option<&str>),
    latest: (Option<f64>, Option<&str>),
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET best_metric = $1, best_validation = $2, latest_metric = $3, latest_validation = $4 \
         WHERE id = $5",
        best.0.filter(|m| !m.is_nan()),
        best.1,
        latest.0.filter(|m| !m.is_nan()),
        latest.1,
        id
    )?;
    Ok(())
}

/// Counts the checkpoints of a trial anew and finds the complete one with the most steps.
pub async fn recount_checkpoints(conn: &mut Conn<'_>, id: i64) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE trials SET \
         checkpoint_count = (SELECT COUNT(*) FROM checkpoints c WHERE c.trial_id = $1 AND c.state <> 'DELETED'), \
         checkpoint_bytes = (SELECT CAST(COALESCE(SUM(c.bytes), 0) AS BIGINT) FROM checkpoints c \
         WHERE c.trial_id = $1 AND c.state <> 'DELETED'), \
         latest_checkpoint = (SELECT c.uuid FROM checkpoints c WHERE c.trial_id = $1 AND c.state = 'COMPLETED' \
         ORDER BY c.steps DESC, c.reported_at DESC LIMIT 1), \
         latest_checkpoint_steps = (SELECT MAX(c.steps) FROM checkpoints c WHERE c.trial_id = $1 \
         AND c.state = 'COMPLETED') WHERE id = $1",
        id
    )?;
    Ok(())
}
