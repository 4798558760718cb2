//! What tasks that work for no experiment run as: their effective configurations, and what only their kind has.

use std::collections::HashMap;

use det_ids::{JobId, TaskId, UserId, WorkspaceId};
use det_lifecycle::task::TaskState;
use det_taskspec::{TaskDetails, TaskKind};

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError, column};

/// What a task runs as. Later changes of templates, pools or the master do not change it.
#[derive(Clone, PartialEq, Eq, crate::Row)]
#[row(id = "task_id")]
pub struct TaskDocument {
    /// Id of the task that the document is of.
    pub task_id: TaskId,
    /// The generic task that it belongs to: it is paused, activated and killed with that one.
    pub parent_id: Option<TaskId>,
    /// The name that its owner gave it, or one that was generated.
    pub description: String,
    /// The configuration that it runs with, defaults included, JSON.
    pub config: String,
    /// What only its kind has.
    #[row(json)]
    pub details: TaskDetails,
}

/// A launched task as lists show it.
#[derive(Clone, PartialEq, crate::Row)]
pub struct LaunchedTask {
    /// Id of the launched task.
    pub id: TaskId,
    /// Kind of the task, such as a notebook or a command.
    #[row(word)]
    pub kind: TaskKind,
    /// Id of the job by which the task is queued.
    pub job_id: JobId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// The workspace that it is in.
    pub workspace_id: WorkspaceId,
    /// Pool that it waits or runs in.
    pub resource_pool: String,
    /// Priority of its job, 1 to 99; which goes first is the pool's.
    pub priority: i64,
    /// Where it is in its life.
    #[row(json = "machine")]
    pub state: TaskState,
    /// When it was launched, microseconds.
    pub created_at: i64,
    /// When it ended, microseconds; `None` = it has not.
    pub ended_at: Option<i64>,
    /// When its log was deleted because it had been kept long enough, microseconds; `None` = it was not.
    pub logs_deleted_at: Option<i64>,
    /// The generic task that it belongs to, as [`TaskDocument::parent_id`]; `None` = to none.
    pub parent_id: Option<TaskId>,
    /// The name that its owner gave it, or one that was generated.
    pub description: String,
    /// What only its kind has, as [`TaskDocument::details`].
    #[row(json)]
    pub details: TaskDetails,
}

/// Which launched tasks to list.
#[derive(Debug, Clone, Default)]
pub struct LaunchedFilter {
    /// Of this kind; `None` = of every kind.
    pub kind: Option<TaskKind>,
    /// Only the task with this id; `None` = with any.
    pub id: Option<TaskId>,
    /// Of these owners; empty = of all.
    pub owners: Vec<UserId>,
    /// Only tasks in this workspace; `None` = in any.
    pub workspace_id: Option<WorkspaceId>,
    /// That live, or ended at this time or later, in microseconds.
    pub ended_after: Option<i64>,
}

impl LaunchedFilter {
    fn apply(&self, query: &mut Query) {
        query.condition("t.experiment_id IS NULL");
        if let Some(kind) = self.kind {
            query
                .condition("t.kind = ")
                .bind(Value::Text(kind.name().to_owned()));
        }
        if let Some(id) = &self.id {
            query.condition("t.id = ").bind(Value::from(id));
        }
        if !self.owners.is_empty() {
            query.any_of("t.owner_id", self.owners.iter().copied());
        }
        if let Some(id) = self.workspace_id {
            query.condition("j.workspace_id = ").bind(id);
        }
        if let Some(at) = self.ended_after {
            query
                .condition("(t.ended_at IS NULL OR t.ended_at >= ")
                .bind(Value::Integer(at))
                .push(")");
        }
    }
}

const SELECT: &str = "SELECT t.id, t.kind, t.job_id, t.owner_id, j.workspace_id, j.resource_pool, j.priority, t.machine, t.created_at, \
    t.ended_at, t.logs_deleted_at, d.parent_id, d.description, d.details FROM tasks t JOIN task_documents d ON d.task_id = t.id JOIN jobs j ON j.id = t.job_id";

/// Launched tasks, the newest first.
pub async fn launched(
    conn: &mut Conn<'_>,
    filter: &LaunchedFilter,
) -> Result<Vec<LaunchedTask>, StoreError> {
    conn.flush().await?;
    let mut query = Query::new(SELECT);
    filter.apply(&mut query);
    query.push(" ORDER BY t.created_at DESC, t.id");
    query.fetch_all(conn).await
}

/// What lists of launched tasks are sorted and cut by.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(id = "id")]
pub struct LaunchedHead {
    /// Id of the launched task.
    pub id: TaskId,
    /// The workspace that it is in.
    pub workspace_id: WorkspaceId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// Where it is in its life, as [`LaunchedTask::state`].
    #[row(json = "machine")]
    pub state: TaskState,
    /// The name that its owner gave it, or one that was generated.
    pub description: String,
    /// Bytes of its [`TaskDocument::details`] as stored.
    pub bytes: i64,
}

const SELECT_HEADS: &str = "SELECT t.id, j.workspace_id, t.owner_id, t.machine, d.description, CAST(octet_length(d.details) AS BIGINT) AS bytes \
    FROM tasks t JOIN task_documents d ON d.task_id = t.id JOIN jobs j ON j.id = t.job_id";

/// The heads of launched tasks, the newest first.
pub async fn launched_heads(
    conn: &mut Conn<'_>,
    filter: &LaunchedFilter,
) -> Result<Vec<LaunchedHead>, StoreError> {
    conn.flush().await?;
    let mut query = Query::new(SELECT_HEADS);
    filter.apply(&mut query);
    query.push(" ORDER BY t.created_at DESC, t.id");
    query.fetch_all(conn).await
}

/// The launched tasks with these ids, in this order; those that are gone are left out.
pub async fn launched_all(
    conn: &mut Conn<'_>,
    ids: &[TaskId],
) -> Result<Vec<LaunchedTask>, StoreError> {
    conn.flush().await?;
    let mut found: HashMap<TaskId, LaunchedTask> = HashMap::with_capacity(ids.len());
    for piece in pieces(ids) {
        let mut query = Query::new(SELECT);
        query.any_of("t.id", piece.iter().map(Value::from));
        let rows = query.fetch_all::<LaunchedTask>(conn).await?;
        found.extend(rows.into_iter().map(|row| (row.id.clone(), row)));
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

/// What a task runs as; `None` = it has no document of its own.
pub async fn find(conn: &mut Conn<'_>, id: &TaskId) -> Result<Option<TaskDocument>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TaskDocument,
        "SELECT * FROM task_documents WHERE task_id = $1",
        id
    )?)
}

/// The beginnings of the names of these tasks, 1,000 characters at most, as far as they have documents of their own.
pub async fn descriptions(
    conn: &mut Conn<'_>,
    ids: &[TaskId],
) -> Result<HashMap<TaskId, String>, StoreError> {
    conn.flush().await?;
    let mut found = HashMap::new();
    for piece in pieces(ids) {
        let mut query = Query::new(
            "SELECT task_id, substr(description, 1, 1000) AS description FROM task_documents",
        );
        query.any_of("task_id", piece.iter().map(Value::from));
        found.extend(query.fetch_all::<(TaskId, String)>(conn).await?);
    }
    Ok(found)
}

/// A task with everything that belongs to it, and to that, the highest first.
pub async fn tree(conn: &mut Conn<'_>, root: &TaskId) -> Result<Vec<TaskId>, StoreError> {
    conn.flush().await?;
    let rows = fetch_all!(
        conn,
        (TaskId, i64),
        "WITH RECURSIVE below (id, depth) AS (SELECT $1, CAST(0 AS BIGINT) UNION ALL \
         SELECT d.task_id, b.depth + 1 FROM task_documents d JOIN below b ON d.parent_id = b.id) \
         SELECT id, depth FROM below ORDER BY depth, id",
        root
    )?;
    Ok(rows.into_iter().map(|(id, _)| id).collect())
}

/// Stores what a new task runs as.
pub async fn insert(conn: &mut Conn<'_>, new: &TaskDocument) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO task_documents (task_id, parent_id, description, config, details) VALUES ($1, $2, $3, $4, $5)",
        &new.task_id,
        new.parent_id.as_ref(),
        new.description.as_str(),
        new.config.as_str(),
        column::text(&new.details)
    )?;
    Ok(())
}
