//! Experiments, their jobs and model definitions.

use std::collections::{HashMap, HashSet};

use det_ids::{ExperimentId, ExternalExperimentId, JobId, ProjectId, TrialId, UserId, WorkspaceId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::fallback::Fallback;
use det_lifecycle::state_name::StateName;
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

use crate::archives::{self, NewArchive};
use crate::catalogue::Catalogue;
use crate::column::text;
use crate::query::{Query, Value, pieces};
use crate::unit::ExperimentCell;
use crate::{Conn, Store, StoreError, column, users};

/// What a job of the queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum JobKind {
    /// The trials of an experiment.
    Experiment,
    /// A task that works for no experiment.
    Task,
}

/// The search of an experiment, by the word of its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum SearcherKind {
    /// One trial, of one set of hyperparameters.
    Single,
    /// Trials by chance.
    Random,
    /// Trials on all points of a grid.
    Grid,
    /// Asynchronous successive halving.
    AsyncHalving,
    /// Several of the latter, side by side.
    AdaptiveAsha,
}

/// An entry of the job queue.
#[derive(Debug, Clone, PartialEq, crate::Row)]
pub struct JobRow {
    /// UUID of the job.
    pub id: JobId,
    /// Whether it is the job of an experiment or of a task.
    #[row(word)]
    pub kind: JobKind,
    /// The user who owns it.
    pub owner_id: UserId,
    /// Resource pool in whose queue it is.
    pub resource_pool: String,
    /// 1 to 99; which goes first is the pool's.
    #[row(number)]
    pub priority: u8,
    /// Fair-share weight, above 0.
    pub weight: f64,
    /// Most slots in use at once; `None` = no cap.
    #[row(number)]
    pub max_slots: Option<u32>,
    /// Position in the queue that a move has set, of this job or of one next to it; `None` = by time of submission.
    pub position: Option<i64>,
    /// Whether it was moved itself.
    pub moved: bool,
    /// Other pools that its requests may go on to; `None` = they stay in `resource_pool`.
    #[row(json)]
    pub fallback: Option<Fallback>,
    /// What its containers demand of places besides slots, in the form of `det_pods::demands`; `None` = nothing.
    #[row(json)]
    pub demands: Option<serde_json::Value>,
    /// When it was submitted, microseconds.
    pub submitted_at: i64,
    /// Workspace of its experiment's project, or of its task.
    pub workspace_id: WorkspaceId,
}

/// An experiment with its owner's name and its job's settings.
#[derive(Debug, Clone, PartialEq, crate::Row)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "columns that have nothing to do with each other"
)]
pub struct ExperimentRow {
    /// Its number, unique over the cluster.
    pub id: ExperimentId,
    /// Id of the job by which the experiment is queued.
    pub job_id: JobId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// The project that it is in.
    pub project_id: ProjectId,
    /// Experiment it was forked from.
    pub parent_id: Option<ExperimentId>,
    /// Name of the experiment, which need not be unique.
    pub name: String,
    /// What users wrote about it, free text; may be empty.
    pub description: String,
    /// Labels that users gave it, JSON list of strings.
    pub labels: String,
    /// Notes of its users, Markdown; may be empty.
    pub notes: String,
    /// The state of its life cycle. Its name is stored in the column `state` too, for queries.
    #[row(json = "machine")]
    pub state: ExperimentState,
    /// Whether it is archived, and so left out of lists that do not ask for archived ones.
    pub archived: bool,
    /// The configuration that it runs with, defaults included, JSON.
    pub config: String,
    /// The configuration as submitted, before templates and defaults; JSON where secrets were put in place of masks.
    pub original_config: String,
    /// Search method by which its trials are created.
    #[row(word)]
    pub searcher_name: SearcherKind,
    /// Validation metric that the search optimises.
    pub searcher_metric: String,
    /// Whether lower values of that metric are better.
    pub smaller_is_better: bool,
    /// Progress of its search, 0 to 1.
    pub progress: f64,
    /// When it was submitted, microseconds.
    pub created_at: i64,
    /// When it ended, microseconds; `None` while live.
    pub ended_at: Option<i64>,
    /// How many trials were created so far, ended ones included.
    pub trial_count: i64,
    /// Trial with the best validation.
    pub best_trial_id: Option<TrialId>,
    /// Its searcher metric as reported.
    pub best_metric: Option<f64>,
    /// How many of its checkpoints are not deleted.
    pub checkpoint_count: i64,
    /// Bytes of the checkpoints that `checkpoint_count` counts.
    pub checkpoint_bytes: i64,
    /// Whether the checkpoint policy has been applied since the end.
    pub collected: bool,
    /// Login name of the owner.
    pub username: String,
    /// Display name of the owner; empty = none.
    pub display_name: String,
    /// Resource pool of its job.
    pub resource_pool: String,
    /// Priority of its job, 1 to 99.
    pub priority: i64,
    /// Fair-share weight of its job, above 0.
    pub weight: f64,
    /// Most slots of its job in use at once; `None` = no cap.
    pub max_slots: Option<i64>,
    /// Whether it runs outside the cluster, and only reports.
    pub unmanaged: bool,
    /// The name by which its code finds it again, unique over the cluster.
    pub external_id: Option<ExternalExperimentId>,
    /// Why files of its checkpoints that were to be deleted are still there, for users; `None` = they are gone, or none
    /// were to go.
    pub checkpoint_failure: Option<String>,
}

const SELECT: &str = "SELECT e.*, c.config, c.original_config, u.username, u.display_name, j.priority, j.weight, \
     j.max_slots FROM experiments e JOIN experiment_configs c ON c.experiment_id = e.id \
     JOIN users u ON u.id = e.owner_id JOIN jobs j ON j.id = e.job_id";

/// The revision of the next change of any experiment's row; see [`crate::catalogue`].
macro_rules! next_revision {
    () => {
        "(SELECT COALESCE(MAX(n.revision), 0) + 1 FROM (SELECT MAX(revision) AS revision FROM experiments \
         UNION ALL SELECT MAX(revision) AS revision FROM deleted_experiments) n)"
    };
}

/// A change of experiments' rows: what comes after `SET`. Every change goes through here, or lists do not show it.
macro_rules! update {
    ($changes:literal) => {
        concat!(
            "UPDATE experiments SET revision = ",
            next_revision!(),
            ", ",
            $changes
        )
    };
}

mod places;
mod queued;
mod settings;
mod unmanaged;

pub(crate) use unmanaged::{OF_EXTERNAL_ID, UNMANAGED_RUNNING, UNMANAGED_TRIALS_OF};
pub use unmanaged::{find_by_external_id, unmanaged_running, unmanaged_trials_of};

pub use places::{Member, follow_project, of_project, of_workspace, project_is_empty, set_project};
pub use queued::{ExperimentHead, live_jobs, queued, queued_jobs};
pub(crate) use queued::{QUEUED, QUEUED_JOBS};
pub use settings::{set_config, set_searcher, set_texts};

/// The conditions that listed experiments meet; all of them must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Substring of the name, any case.
    pub name: Option<String>,
    /// Substring of the description, any case.
    pub description: Option<String>,
    /// Only experiments that have all of these labels.
    pub labels: Vec<String>,
    /// Only experiments of one of these users; `None` = of any.
    pub owners: Option<Vec<UserId>>,
    /// Only archived, or only not archived.
    pub archived: Option<bool>,
    /// Only experiments in one of these states; `None` = in any.
    pub states: Option<Vec<StateName>>,
    /// Only experiments of this project; `None` = of any.
    pub project_id: Option<ProjectId>,
    /// No experiments of these projects.
    pub not_projects: HashSet<ProjectId>,
    /// Only experiments with a number below this one; `None` = no bound.
    pub id_below: Option<ExperimentId>,
    /// Only experiments with a number above this one; `None` = no bound.
    pub id_above: Option<ExperimentId>,
    /// Only experiments with one of these numbers; `None` = with any.
    pub ids: Option<Vec<ExperimentId>>,
    /// No experiments with these numbers.
    pub not_ids: Vec<ExperimentId>,
    /// Of those in state `ACTIVE`, only these.
    pub active: Option<Active>,
}

/// Some of the active experiments: their phase is known by their allocations only.
#[derive(Debug, Clone)]
pub enum Active {
    /// Those of the active experiments that are in this set.
    Only(HashSet<ExperimentId>),
    /// Those of the active experiments that are not in this set.
    Not(HashSet<ExperimentId>),
}

impl Active {
    pub(crate) fn has(&self, id: ExperimentId) -> bool {
        match self {
            Self::Only(ids) => ids.contains(&id),
            Self::Not(ids) => !ids.contains(&id),
        }
    }
}

/// What to sort by; the id is always the tie break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Number of the experiment.
    #[default]
    Id,
    /// Description, as in a dictionary: the first 128 characters of it.
    Description,
    /// Name, as in a dictionary.
    Name,
    /// Time of creation.
    StartTime,
    /// End; unfinished ones last.
    EndTime,
    /// Name of the stored state, in alphabetical order.
    State,
    /// Number of trials.
    TrialCount,
    /// Progress of the search, 0 to 1.
    Progress,
    /// Login name of the owner.
    User,
    /// Number of the experiment it was forked from; unforked ones last.
    ForkedFrom,
    /// Name of its pool.
    ResourcePool,
    /// Number of its project.
    ProjectId,
    /// Bytes of its checkpoints that are not deleted.
    CheckpointSize,
    /// Number of its checkpoints that are not deleted.
    CheckpointCount,
    /// Best searcher metric; missing last.
    SearcherMetric,
}

/// The revision of the next change.
pub(crate) async fn next_revision(conn: &mut Conn<'_>) -> Result<i64, StoreError> {
    let (revision,) = fetch_one!(
        conn,
        (i64,),
        concat!("SELECT CAST(", next_revision!(), " AS BIGINT)")
    )?;
    Ok(revision)
}

impl Sort {
    /// Every key, once.
    pub const ALL: [Self; 15] = [
        Self::Id,
        Self::Description,
        Self::Name,
        Self::StartTime,
        Self::EndTime,
        Self::State,
        Self::TrialCount,
        Self::Progress,
        Self::User,
        Self::ForkedFrom,
        Self::ResourcePool,
        Self::ProjectId,
        Self::CheckpointSize,
        Self::CheckpointCount,
        Self::SearcherMetric,
    ];
}

/// The statement that reads what a page shows.
pub(crate) fn page_query(ids: &[ExperimentId]) -> Query {
    let mut query = Query::new(SELECT);
    query.any_of("e.id", ids.iter().copied());
    query
}

/// One page of experiments, and how many match in all. `limit` below 0 = all.
pub async fn list(
    store: &Store,
    catalogue: &Catalogue,
    filter: &Filter,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> Result<(Vec<ExperimentRow>, i64), StoreError> {
    catalogue.refresh(store).await?;
    let search = catalogue.search(store, filter).await?;
    let mut conn = store.read().await?;
    let conn = &mut conn.conn();
    let names: HashMap<UserId, String> = match sort {
        Sort::User => users::names(conn).await?.into_iter().collect(),
        _ => HashMap::new(),
    };
    let (ids, total) = catalogue.page(&search, sort, descending, offset, limit, &names);
    let mut rows: Vec<ExperimentRow> = Vec::new();
    let mut left = PAGE_BYTES;
    for ids in ids.chunks(AT_ONCE) {
        let found = page_query(ids).fetch_all::<ExperimentRow>(conn).await?;
        let mut found: HashMap<ExperimentId, ExperimentRow> =
            found.into_iter().map(|row| (row.id, row)).collect();
        // One that was deleted a moment ago is left out.
        for row in ids.iter().filter_map(|id| found.remove(id)) {
            let bytes = text_bytes(&row);
            if bytes > left && !rows.is_empty() {
                return Ok((rows, total));
            }
            left = left.saturating_sub(bytes);
            rows.push(row);
        }
    }
    Ok((rows, total))
}

/// Bytes of texts that the experiments of a page have together at most; one that has more comes alone.
const PAGE_BYTES: usize = 8 << 20;
/// Experiments that are read at once.
const AT_ONCE: usize = 100;

/// Bytes of what users have written of an experiment.
fn text_bytes(row: &ExperimentRow) -> usize {
    let texts = [
        &row.config,
        &row.original_config,
        &row.notes,
        &row.description,
        &row.labels,
        &row.name,
    ];
    texts.map(String::len).iter().sum()
}

/// The numbers of all experiments that a filter lets through, in their order.
pub async fn numbers(
    store: &Store,
    catalogue: &Catalogue,
    filter: &Filter,
) -> Result<Vec<ExperimentId>, StoreError> {
    catalogue.refresh(store).await?;
    let search = catalogue.search(store, filter).await?;
    let (ids, _) = catalogue.page(&search, Sort::Id, false, 0, -1, &HashMap::new());
    Ok(ids)
}

/// The experiment with this number; `None` = there is none.
pub async fn find(
    conn: &mut Conn<'_>,
    id: ExperimentId,
) -> Result<Option<ExperimentRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(cell) = unit.experiments.get(&id)
    {
        return Ok(Some(ExperimentRow::clone(&cell.row)));
    }
    let mut query = Query::new(SELECT);
    query.condition("e.id = ").bind(id);
    let row = query.fetch_all::<ExperimentRow>(conn).await?.pop();
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.experiments
            .keep(ExperimentCell::of(row.clone()), false);
    }
    Ok(row)
}

/// Changes an experiment, if there is one with this number.
async fn edit(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    change: impl FnOnce(&mut ExperimentRow),
) -> Result<(), StoreError> {
    if conn.writing()?.experiments.get(&id).is_none() {
        find(conn, id).await?;
    }
    conn.writing()?.experiments.edit(&id, change);
    Ok(())
}

/// Writes what changes in the life of experiments. The rest of their rows is written where it is changed.
pub(crate) async fn save_changed<'r>(
    conn: &mut Conn<'_>,
    rows: impl Iterator<Item = &'r ExperimentRow>,
) -> Result<(), StoreError> {
    for row in rows {
        execute!(
            conn,
            update!(
                "state = $1, machine = $2, ended_at = $3, collected = $4, progress = $5, best_trial_id = $6, \
                 best_metric = $7, trial_count = $8, archived = $9, checkpoint_count = $10, \
                 checkpoint_bytes = $11, checkpoint_failure = $12 WHERE id = $13"
            ),
            row.state.stored_name(),
            column::text(&row.state),
            row.ended_at,
            row.collected,
            row.progress,
            row.best_trial_id,
            row.best_metric,
            row.trial_count,
            row.archived,
            row.checkpoint_count,
            row.checkpoint_bytes,
            row.checkpoint_failure.as_deref(),
            row.id
        )?;
    }
    Ok(())
}

/// Experiments that have not ended.
pub async fn live(conn: &mut Conn<'_>) -> Result<Vec<ExperimentRow>, StoreError> {
    conn.flush().await?;
    live_query().fetch_all(conn).await
}

/// The numbers of experiments that have not ended, with this many trials or more.
pub async fn live_with_trials(
    conn: &mut Conn<'_>,
    least: i64,
) -> Result<Vec<ExperimentId>, StoreError> {
    let mut query = Query::new("SELECT id FROM experiments");
    query.any_of("state", StateName::LIVE);
    query
        .condition("trial_count >= ")
        .bind(Value::Integer(least));
    let rows: Vec<(ExperimentId,)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

pub(crate) fn live_query() -> Query {
    let mut query = Query::new(SELECT);
    query.any_of("e.state", StateName::LIVE);
    query.push(" ORDER BY e.id");
    query
}

pub(crate) fn clean_up_queries() -> [Query; 2] {
    let mut uncollected = Query::new(SELECT);
    uncollected.condition("NOT e.collected");
    uncollected.condition("e.state IN ('COMPLETED', 'CANCELED', 'ERROR')");
    let mut deleting = Query::new(SELECT);
    deleting.condition("e.state = 'DELETING'");
    [uncollected, deleting]
}

/// Experiments with work left after their end: policy not applied yet, or deletion under way.
pub async fn to_clean_up(conn: &mut Conn<'_>) -> Result<Vec<ExperimentRow>, StoreError> {
    conn.flush().await?;
    // Two statements, each by an index of its own: nearly all experiments have ended and nothing is left to do.
    let [uncollected, deleting] = clean_up_queries();
    let mut rows: Vec<ExperimentRow> = uncollected.fetch_all(conn).await?;
    rows.extend(deleting.fetch_all(conn).await?);
    rows.sort_unstable_by_key(|row: &ExperimentRow| row.id);
    Ok(rows)
}

/// What an experiment is added with; the store adds its number and times.
#[derive(Debug, Clone)]
pub struct NewExperiment {
    /// Row of the job by which the experiment is queued.
    pub job: JobRow,
    /// The project that it is created in.
    pub project_id: ProjectId,
    /// Experiment it is forked from; `None` = of none.
    pub parent_id: Option<ExperimentId>,
    /// Name of the experiment, which need not be unique.
    pub name: String,
    /// What users wrote about it, free text; may be empty.
    pub description: String,
    /// Labels that users gave it, JSON list of strings.
    pub labels: String,
    /// The state that its life cycle begins with.
    pub state: ExperimentState,
    /// Effective configuration, JSON.
    pub config: String,
    /// Configuration as submitted, as [`ExperimentRow::original_config`].
    pub original_config: String,
    /// Search method by which its trials are created.
    pub searcher_name: SearcherKind,
    /// Metric that is optimised.
    pub searcher_metric: String,
    /// Whether lower values of that metric are better.
    pub smaller_is_better: bool,
    /// The gzip tar archive of the model definition.
    pub model_definition: NewArchive<ExperimentId>,
    /// Whether it runs outside the cluster, and only reports.
    pub unmanaged: bool,
    /// The name by which its code finds it again, unique over the cluster; `None` = it has none.
    pub external_id: Option<ExternalExperimentId>,
}

/// Adds the row of a job.
pub async fn insert_job(conn: &mut Conn<'_>, job: &JobRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO jobs (id, kind, owner_id, resource_pool, priority, weight, max_slots, position, moved, fallback, \
         demands, submitted_at, workspace_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        &job.id,
        <&str>::from(job.kind),
        job.owner_id,
        job.resource_pool.as_str(),
        i64::from(job.priority),
        job.weight,
        job.max_slots.map(i64::from),
        job.position,
        job.moved,
        job.fallback.as_ref().map(text).as_deref(),
        job.demands.as_ref().map(text).as_deref(),
        job.submitted_at,
        job.workspace_id
    )?;
    conn.writing()?.jobs.push(job.id.clone());
    Ok(())
}

/// Adds an experiment with its job and model definition; gives its number.
pub async fn insert(conn: &mut Conn<'_>, new: &NewExperiment) -> Result<ExperimentId, StoreError> {
    let job = &new.job;
    insert_job(conn, job).await?;
    let (id,) = fetch_one!(
        conn,
        (ExperimentId,),
        concat!(
            "INSERT INTO experiments (job_id, owner_id, project_id, parent_id, name, description, labels, notes, state, \
         machine, archived, resource_pool, searcher_name, searcher_metric, smaller_is_better, progress, created_at, \
         trial_count, checkpoint_count, checkpoint_bytes, collected, name_folded, description_folded, unmanaged, \
         external_id, revision) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, '', $8, $9, $10, $11, $12, $13, $14, 0.0, $15, 0, 0, 0, $18, $16, $17, \
         $18, $19, ",
            next_revision!(),
            ") RETURNING id"
        ),
        &job.id,
        job.owner_id,
        new.project_id,
        new.parent_id,
        new.name.as_str(),
        new.description.as_str(),
        new.labels.as_str(),
        new.state.stored_name(),
        column::text(&new.state),
        false,
        job.resource_pool.as_str(),
        <&str>::from(new.searcher_name),
        new.searcher_metric.as_str(),
        new.smaller_is_better,
        job.submitted_at,
        new.name.to_lowercase(),
        new.description.to_lowercase(),
        // The files of an unmanaged experiment are its user's: its policy is applied once it is set by a user.
        new.unmanaged,
        new.external_id.as_ref()
    )?;
    execute!(
        conn,
        "INSERT INTO experiment_configs (experiment_id, config, original_config) VALUES ($1, $2, $3)",
        id,
        new.config.as_str(),
        new.original_config.as_str()
    )?;
    archives::insert_of_experiment(conn, id, &new.model_definition).await?;
    Ok(id)
}

/// Takes back the end of an experiment that is continued.
pub async fn clear_end(conn: &mut Conn<'_>, id: ExperimentId) -> Result<(), StoreError> {
    edit(conn, id, |row| {
        row.ended_at = None;
        row.collected = false;
    })
    .await
}

/// Stores the progress, 0 to 1.
pub async fn set_progress(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    progress: f64,
) -> Result<(), StoreError> {
    edit(conn, id, |row| row.progress = progress).await
}

/// Stores the best validation so far. A metric that is not a number is stored as none: the databases disagree on NaN.
pub async fn set_best(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    trial_id: Option<TrialId>,
    metric: Option<f64>,
) -> Result<(), StoreError> {
    edit(conn, id, |row| {
        row.best_trial_id = trial_id;
        row.best_metric = metric.filter(|m| !m.is_nan());
    })
    .await
}

/// Shows or hides an experiment.
pub async fn set_archived(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    archived: bool,
) -> Result<(), StoreError> {
    edit(conn, id, |row| row.archived = archived).await
}

/// Notes whether the checkpoint policy has been applied since the end.
pub async fn set_collected(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    collected: bool,
) -> Result<(), StoreError> {
    edit(conn, id, |row| row.collected = collected).await
}

/// Notes why files of checkpoints of an experiment that were to be deleted are still there; `None` = they are gone.
pub async fn set_checkpoint_failure(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    failure: Option<&str>,
) -> Result<(), StoreError> {
    edit(conn, id, |row| {
        row.checkpoint_failure = failure.map(str::to_owned);
    })
    .await
}

/// Counts the checkpoints of an experiment anew.
pub async fn recount_checkpoints(conn: &mut Conn<'_>, id: ExperimentId) -> Result<(), StoreError> {
    let (count, bytes) = fetch_one!(
        conn,
        (i64, i64),
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM checkpoints \
         WHERE experiment_id = $1 AND state <> 'DELETED'",
        id
    )?;
    edit(conn, id, |row| {
        row.checkpoint_count = count;
        row.checkpoint_bytes = bytes;
    })
    .await
}

/// The job with this id; `None` = there is none.
pub async fn job(conn: &mut Conn<'_>, id: &JobId) -> Result<Option<JobRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_optional!(
        conn,
        JobRow,
        "SELECT * FROM jobs WHERE id = $1",
        id
    )?)
}

/// Several jobs, in no order; those that do not exist are left out.
pub async fn jobs(conn: &mut Conn<'_>, ids: &[JobId]) -> Result<Vec<JobRow>, StoreError> {
    conn.flush().await?;
    let mut found = Vec::with_capacity(ids.len());
    for piece in pieces(ids) {
        let mut query = Query::new("SELECT * FROM jobs");
        query.any_of("id", piece.iter().map(Value::from));
        found.extend(query.fetch_all::<JobRow>(conn).await?);
    }
    Ok(found)
}

/// The experiment of a job.
pub async fn find_by_job(
    conn: &mut Conn<'_>,
    job_id: &JobId,
) -> Result<Option<ExperimentRow>, StoreError> {
    conn.flush().await?;
    let mut query = Query::new(SELECT);
    query.condition("e.job_id = ").bind(Value::from(job_id));
    Ok(query.fetch_all(conn).await?.pop())
}

/// Stores the settings of a job.
pub async fn update_job(conn: &mut Conn<'_>, job: &JobRow) -> Result<(), StoreError> {
    conn.flush().await?;
    let unit = conn.writing()?;
    unit.experiments.remove_all();
    unit.jobs.push(job.id.clone());
    execute!(
        conn,
        "UPDATE jobs SET resource_pool = $1, priority = $2, weight = $3, max_slots = $4, position = $5, moved = $6, \
         fallback = $7, demands = $8 WHERE id = $9",
        job.resource_pool.as_str(),
        i64::from(job.priority),
        job.weight,
        job.max_slots.map(i64::from),
        job.position,
        job.moved,
        job.fallback.as_ref().map(text).as_deref(),
        job.demands.as_ref().map(text).as_deref(),
        &job.id
    )?;
    execute!(
        conn,
        update!("resource_pool = $1 WHERE job_id = $2 AND resource_pool <> $1"),
        job.resource_pool.as_str(),
        &job.id
    )?;
    Ok(())
}

/// Removes an experiment and everything that belongs to it. Checkpoint files are deleted by the caller.
pub async fn delete(conn: &mut Conn<'_>, id: ExperimentId) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.evict_rows();
    for sql in [
        "DELETE FROM metric_chunks WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = $1)",
        "DELETE FROM metric_runs WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = $1)",
        "DELETE FROM metric_series WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = $1)",
        "DELETE FROM metric_summaries WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = $1)",
        "DELETE FROM log_chunks WHERE task_id IN (SELECT id FROM tasks WHERE experiment_id = $1)",
        "DELETE FROM log_spools WHERE task_id IN (SELECT id FROM tasks WHERE experiment_id = $1)",
        "DELETE FROM container_tokens WHERE allocation_id IN (SELECT a.id FROM allocations a \
         JOIN tasks t ON t.id = a.task_id WHERE t.experiment_id = $1)",
        "DELETE FROM containers WHERE allocation_id IN (SELECT a.id FROM allocations a \
         JOIN tasks t ON t.id = a.task_id WHERE t.experiment_id = $1)",
        "DELETE FROM allocations WHERE task_id IN (SELECT id FROM tasks WHERE experiment_id = $1)",
        "DELETE FROM tasks WHERE experiment_id = $1",
        "DELETE FROM checkpoints WHERE experiment_id = $1",
        "DELETE FROM trials WHERE experiment_id = $1",
        "DELETE FROM search_events WHERE experiment_id = $1",
        "DELETE FROM search_snapshots WHERE experiment_id = $1",
        "DELETE FROM model_definitions WHERE experiment_id = $1",
        "DELETE FROM experiment_configs WHERE experiment_id = $1",
        concat!(
            "INSERT INTO deleted_experiments (experiment_id, revision) VALUES ($1, ",
            next_revision!(),
            ") ON CONFLICT (experiment_id) DO NOTHING"
        ),
    ] {
        execute!(conn, sql, id)?;
    }
    let job = fetch_optional!(
        conn,
        (JobId,),
        "SELECT job_id FROM experiments WHERE id = $1",
        id
    )?;
    execute!(conn, "DELETE FROM experiments WHERE id = $1", id)?;
    if let Some((job,)) = job {
        execute!(conn, "DELETE FROM jobs WHERE id = $1", &job)?;
    }
    Ok(())
}
