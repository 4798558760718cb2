//! Rows in bulk, many in one statement: for tools that fill a database with what would otherwise take a cluster months.
//!
//! The master itself adds things one by one, through the modules of the resources, which also leave events behind.
//! Texts are bound; numbers are part of the statement's text, since there can be more of them than a statement takes
//! parameters.

use det_ids::{AllocationId, ExperimentId, JobId, RequestId, TaskId, TrialId, UserId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::task::{TaskEnd, TaskState};
use det_lifecycle::trial::TrialState;

use crate::column::text;
use crate::experiments::NewExperiment;
use crate::query::{Query, Value};
use crate::{Conn, StoreError, column};

/// Rows in one statement: with some ten texts each, below the least number of parameters that either database takes.
const ROWS: usize = 500;

/// A list of rows being written after `VALUES`.
struct Rows {
    query: Query,
    rows: usize,
    values: usize,
}

impl Rows {
    fn new(insert: &str) -> Self {
        Self {
            query: Query::new(insert),
            rows: 0,
            values: 0,
        }
    }

    fn row(&mut self) -> &mut Self {
        self.query.push(if self.rows == 0 { " (" } else { "), (" });
        self.rows += 1;
        self.values = 0;
        self
    }

    fn next(&mut self) {
        if self.values > 0 {
            self.query.push(", ");
        }
        self.values += 1;
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.next();
        self.query.bind(Value::Text(text.to_owned()));
        self
    }

    fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(text),
            None => self.literal("NULL"),
        }
    }

    fn literal(&mut self, text: &str) -> &mut Self {
        self.next();
        self.query.push(text);
        self
    }

    fn integer(&mut self, n: i64) -> &mut Self {
        self.literal(&n.to_string())
    }

    fn optional_integer(&mut self, n: Option<i64>) -> &mut Self {
        match n {
            Some(n) => self.integer(n),
            None => self.literal("NULL"),
        }
    }

    /// A finite number; anything else is stored as none.
    fn real(&mut self, n: Option<f64>) -> &mut Self {
        match n.filter(|n| n.is_finite()) {
            // With an exponent, so that both databases read a 64-bit float and not an exact decimal.
            Some(n) => self.literal(&format!("{n:e}")),
            None => self.literal("NULL"),
        }
    }

    fn boolean(&mut self, value: bool) -> &mut Self {
        self.literal(if value { "TRUE" } else { "FALSE" })
    }

    /// Adds the rows; gives the numbers of `RETURNING id` in the order of the rows.
    async fn insert_returning<T>(mut self, conn: &mut Conn<'_>) -> Result<Vec<T>, StoreError>
    where
        T: column::ColumnValue + Ord + Send + Unpin,
    {
        self.query.push(") RETURNING id");
        let rows = self.query.fetch_all::<(T,)>(conn).await?;
        let mut ids: Vec<T> = rows.into_iter().map(|(id,)| id).collect();
        // Numbers are given in the order of the rows; the order in which they are returned is not promised.
        ids.sort_unstable();
        Ok(ids)
    }

    async fn insert(mut self, conn: &mut Conn<'_>) -> Result<(), StoreError> {
        self.query.push(") RETURNING CAST(0 AS BIGINT)");
        // Gives no rows that matter; both databases take the clause, and one way of running is enough.
        self.query.fetch_all::<(i64,)>(conn).await.map(|_| ())
    }
}

/// An experiment that was submitted in the past.
#[derive(Debug, Clone)]
pub struct PastExperiment {
    /// As it was submitted, in the state that it has now. The model definition is left out.
    pub new: NewExperiment,
    /// Whether it is archived, and so left out of lists that do not ask for archived ones.
    pub archived: bool,
    /// Progress of its search, 0 to 1.
    pub progress: f64,
    /// When it ended, microseconds; `None` while live.
    pub ended_at: Option<i64>,
    /// Trials that will be added.
    pub trial_count: i64,
    /// Best value of the searcher's metric; `None` = nothing was validated.
    pub best_metric: Option<f64>,
    /// Checkpoints not deleted, and their size.
    pub checkpoints: (i64, i64),
}

/// Adds experiments with their jobs, their checkpoint policies applied; gives their numbers in order.
pub async fn experiments(
    conn: &mut Conn<'_>,
    all: &[PastExperiment],
) -> Result<Vec<ExperimentId>, StoreError> {
    let mut ids = Vec::with_capacity(all.len());
    // Nothing reads a database that is being filled: one revision is enough for all.
    let revision = crate::experiments::next_revision(conn).await?;
    for some in all.chunks(ROWS) {
        insert_jobs(conn, some).await?;
        let some_ids = insert_experiments(conn, some, revision).await?;
        insert_configs(conn, some, &some_ids).await?;
        ids.extend(some_ids);
    }
    Ok(ids)
}

async fn insert_jobs(conn: &mut Conn<'_>, some: &[PastExperiment]) -> Result<(), StoreError> {
    let mut jobs = Rows::new(
        "INSERT INTO jobs (id, kind, owner_id, resource_pool, priority, weight, max_slots, position, moved, fallback, demands, submitted_at) VALUES",
    );
    for past in some {
        let job = &past.new.job;
        jobs.row()
            .text(job.id.as_str())
            .text(job.kind.into())
            .integer(job.owner_id.0)
            .text(&job.resource_pool)
            .integer(i64::from(job.priority))
            .real(Some(job.weight))
            .optional_integer(job.max_slots.map(i64::from))
            .optional_integer(job.position)
            .boolean(job.moved)
            .optional_text(job.fallback.as_ref().map(text).as_deref())
            .optional_text(job.demands.as_ref().map(text).as_deref())
            .integer(job.submitted_at);
    }
    jobs.insert(conn).await
}

async fn insert_experiments(
    conn: &mut Conn<'_>,
    some: &[PastExperiment],
    revision: i64,
) -> Result<Vec<ExperimentId>, StoreError> {
    let mut rows = Rows::new(
        "INSERT INTO experiments (job_id, owner_id, project_id, parent_id, name, name_folded, description, \
         description_folded, labels, notes, state, machine, archived, resource_pool, searcher_name, \
         searcher_metric, smaller_is_better, progress, created_at, ended_at, trial_count, best_metric, \
         checkpoint_count, checkpoint_bytes, collected, revision) VALUES",
    );
    for past in some {
        let new = &past.new;
        rows.row()
            .text(new.job.id.as_str())
            .integer(new.job.owner_id.0)
            .integer(new.project_id.0)
            .optional_integer(new.parent_id.map(|id| id.0))
            .text(&new.name)
            .text(&new.name.to_lowercase())
            .text(&new.description)
            .text(&new.description.to_lowercase())
            .text(&new.labels)
            .literal("''")
            .text(new.state.stored_name())
            .text(&column::text(&new.state))
            .boolean(past.archived)
            .text(&new.job.resource_pool)
            .text(new.searcher_name.into())
            .text(&new.searcher_metric)
            .boolean(new.smaller_is_better)
            .real(Some(past.progress))
            .integer(new.job.submitted_at)
            .optional_integer(past.ended_at)
            .integer(past.trial_count)
            .real(past.best_metric)
            .integer(past.checkpoints.0)
            .integer(past.checkpoints.1)
            .boolean(past.ended_at.is_some())
            .integer(revision);
    }
    rows.insert_returning(conn).await
}

async fn insert_configs(
    conn: &mut Conn<'_>,
    some: &[PastExperiment],
    ids: &[ExperimentId],
) -> Result<(), StoreError> {
    let mut configs =
        Rows::new("INSERT INTO experiment_configs (experiment_id, config, original_config) VALUES");
    for (past, id) in some.iter().zip(ids) {
        configs
            .row()
            .integer(id.0)
            .text(&past.new.config)
            .text(&past.new.original_config);
    }
    configs.insert(conn).await
}

/// A trial that has ended.
#[derive(Debug, Clone)]
pub struct PastTrial {
    /// Number of the experiment that the trial belongs to.
    pub experiment_id: ExperimentId,
    /// The job of its experiment.
    pub job_id: JobId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// The searcher's name for it.
    pub request_id: RequestId,
    /// Its task, which is added as well.
    pub task_id: TaskId,
    /// The state of its life cycle.
    pub state: TrialState,
    /// Hyperparameters that it trained with, JSON object.
    pub hparams: String,
    /// Failures that counted against its restart limit.
    pub restarts: i64,
    /// Highest step that it reported.
    pub total_batches: i64,
    /// Best searcher metric with its validation as JSON; `None` = it has not validated.
    pub best: Option<(f64, String)>,
    /// Latest searcher metric with its validation as JSON; `None` = it has not validated.
    pub latest: Option<(f64, String)>,
    /// Checkpoints not deleted, and their size.
    pub checkpoints: (i64, i64),
    /// Pool that it ran in.
    pub resource_pool: String,
    /// How its only allocation ended.
    pub allocation: AllocationState,
    /// When it began, microseconds.
    pub created_at: i64,
    /// When it ended, microseconds.
    pub ended_at: i64,
}

/// Adds trials with their tasks and allocations; gives their numbers in order.
pub async fn trials(conn: &mut Conn<'_>, all: &[PastTrial]) -> Result<Vec<TrialId>, StoreError> {
    let mut ids = Vec::with_capacity(all.len());
    for some in all.chunks(ROWS) {
        let some_ids = insert_trials(conn, some).await?;
        insert_tasks(conn, some, &some_ids).await?;
        insert_allocations(conn, some, &some_ids).await?;
        ids.extend(some_ids);
    }
    Ok(ids)
}

async fn insert_trials(
    conn: &mut Conn<'_>,
    some: &[PastTrial],
) -> Result<Vec<TrialId>, StoreError> {
    let mut rows = Rows::new(
        "INSERT INTO trials (experiment_id, request_id, task_id, state, machine, hparams, seed, run_id, restarts, \
         total_batches, progress, runner_state, metadata, best_metric, best_validation, latest_metric, \
         latest_validation, checkpoint_count, checkpoint_bytes, created_at, ended_at) VALUES",
    );
    for past in some {
        let text = |v: &Option<(f64, String)>| v.as_ref().map(|(_, text)| text.clone());
        rows.row()
            .integer(past.experiment_id.0)
            .text(past.request_id.as_str())
            .text(past.task_id.as_str())
            .text(past.state.stored_name())
            .text(&column::text(&past.state))
            .text(&past.hparams)
            .integer(0)
            .integer(1)
            .integer(past.restarts)
            .integer(past.total_batches)
            .literal("1.0")
            .literal("''")
            .literal("'{}'")
            .real(past.best.as_ref().map(|(metric, _)| *metric))
            .optional_text(text(&past.best).as_deref())
            .real(past.latest.as_ref().map(|(metric, _)| *metric))
            .optional_text(text(&past.latest).as_deref())
            .integer(past.checkpoints.0)
            .integer(past.checkpoints.1)
            .integer(past.created_at)
            .integer(past.ended_at);
    }
    rows.insert_returning(conn).await
}

async fn insert_tasks(
    conn: &mut Conn<'_>,
    some: &[PastTrial],
    ids: &[TrialId],
) -> Result<(), StoreError> {
    let mut tasks = Rows::new(
        "INSERT INTO tasks (id, kind, job_id, owner_id, experiment_id, trial_id, machine, attempts, log_lines, \
         created_at, ended_at) VALUES",
    );
    for (past, id) in some.iter().zip(ids) {
        tasks
            .row()
            .text(past.task_id.as_str())
            .literal("'TRIAL'")
            .text(past.job_id.as_str())
            .integer(past.owner_id.0)
            .integer(past.experiment_id.0)
            .integer(id.0)
            .text(&column::text(&TaskState::Ended(TaskEnd::Completed)))
            .integer(1)
            .integer(0)
            .integer(past.created_at)
            .integer(past.ended_at);
    }
    tasks.insert(conn).await
}

async fn insert_allocations(
    conn: &mut Conn<'_>,
    some: &[PastTrial],
    ids: &[TrialId],
) -> Result<(), StoreError> {
    let mut allocations = Rows::new(
        "INSERT INTO allocations (id, task_id, job_id, trial_id, run_id, state, machine, resource_pool, slots, \
         single_place, preemptible, requested_at, placed_at, started_at, ended_at) VALUES",
    );
    for (past, id) in some.iter().zip(ids) {
        let (begin, end) = (past.created_at, past.ended_at);
        allocations
            .row()
            .text(past.task_id.allocation(1).as_str())
            .text(past.task_id.as_str())
            .text(past.job_id.as_str())
            .integer(id.0)
            .integer(1)
            .text(past.allocation.stored_name())
            .text(&column::text(&past.allocation))
            .text(&past.resource_pool)
            .integer(1)
            .boolean(true)
            .boolean(true)
            .integer(begin)
            .integer(begin)
            .integer(begin)
            .integer(end);
    }
    allocations.insert(conn).await
}

/// Adds statistics of groups of trials: trial, group, last step, document (see `metrics::GroupSummary`).
pub async fn summaries(
    conn: &mut Conn<'_>,
    all: &[(TrialId, &str, i64, String)],
) -> Result<(), StoreError> {
    for some in all.chunks(ROWS) {
        let mut rows = Rows::new(
            "INSERT INTO metric_summaries (trial_id, group_name, last_step, document) VALUES",
        );
        for (trial_id, group, last_step, document) in some {
            rows.row()
                .integer(trial_id.0)
                .text(group)
                .integer(*last_step)
                .text(document);
        }
        rows.insert(conn).await?;
    }
    Ok(())
}

/// Adds checkpoints, none of which may be stored yet.
pub async fn checkpoints(
    conn: &mut Conn<'_>,
    all: &[crate::checkpoints::CheckpointRow],
) -> Result<(), StoreError> {
    for some in all.chunks(ROWS) {
        let mut rows = Rows::new(
            "INSERT INTO checkpoints (uuid, experiment_id, trial_id, task_id, allocation_id, state, steps, metadata, \
             resources, bytes, reported_at, storage_id, owner_uid) VALUES",
        );
        for row in some {
            rows.row()
                .text(row.uuid.as_str())
                .optional_integer(row.experiment_id.map(|id| id.0))
                .optional_integer(row.trial_id.map(|id| id.0))
                .text(row.task_id.as_str())
                .optional_text(row.allocation_id.as_ref().map(AllocationId::as_str))
                .text(row.state.name())
                .integer(row.steps)
                .text(&row.metadata)
                .text(&row.resources)
                .integer(row.bytes)
                .integer(row.reported_at)
                .optional_integer(row.storage_id.map(|id| id.0))
                .optional_integer(row.owner_uid);
        }
        rows.insert(conn).await?;
    }
    Ok(())
}

/// Makes the database collect statistics of its columns, as it does from time to time by itself.
pub async fn analyze(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    execute!(conn, "ANALYZE")?;
    Ok(())
}
