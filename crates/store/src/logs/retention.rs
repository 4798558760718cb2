//! Logs that have been kept long enough.
//!
//! What is deleted is decided elsewhere; here are the tasks to decide about, and the deletion, in steps as small as the
//! caller wants them. Spools stay known until their experiment goes: a batch that is repeated later still is recognised.

use det_ids::TaskId;

use crate::{Conn, StoreError, allocations, task_metrics};

/// A task that has ended and whose log has not been deleted.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct EndedLog {
    /// Id of the task that wrote the log.
    pub task_id: TaskId,
    /// When the task ended, microseconds.
    pub ended_at: i64,
    /// Days that the log is kept, as [`crate::allocations::TaskRow::log_retention_days`].
    pub days: Option<i64>,
}

/// What a step of a deletion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletionStep {
    /// Stored pieces that are gone.
    pub chunks: usize,
    /// Number of lines in the pieces that are gone.
    pub lines: i64,
    /// Whether nothing is left of the log.
    pub whole: bool,
}

/// The statement of [`page`], also for the test of query plans.
pub(crate) const ENDED: &str = "SELECT id AS task_id, ended_at, log_retention_days AS days FROM tasks \
     WHERE ended_at IS NOT NULL AND logs_deleted_at IS NULL AND log_lines > 0 AND (ended_at, id) > ($1, $2) \
     ORDER BY ended_at, id LIMIT $3";

/// Tasks that have ended and whose logs are stored, by their end: at most `limit` of those after this end and task.
pub async fn page(
    conn: &mut Conn<'_>,
    after: (i64, &TaskId),
    limit: i64,
) -> Result<Vec<EndedLog>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(conn, EndedLog, ENDED, after.0, after.1, limit)?)
}

/// The same of one task, as this change sees it; `None` = it is not there, has not ended, or has no log to delete.
pub async fn find(conn: &mut Conn<'_>, task_id: &TaskId) -> Result<Option<EndedLog>, StoreError> {
    let Some(task) = allocations::find_task(conn, task_id).await? else {
        return Ok(None);
    };
    let (Some(ended_at), None) = (task.ended_at, task.logs_deleted_at) else {
        return Ok(None);
    };
    Ok(Some(EndedLog {
        task_id: task.id,
        ended_at,
        days: task.log_retention_days,
    }))
}

/// Deletes at most `chunks` pieces of a task's log, the oldest ones first. Once nothing is left, what was measured of the
/// task is deleted as well, and that is noted at the task with the time `now`.
pub async fn delete(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    chunks: usize,
    now: i64,
) -> Result<DeletionStep, StoreError> {
    conn.flush().await?;
    let limit = i64::try_from(chunks).unwrap_or(i64::MAX);
    let gone = fetch_all!(
        conn,
        (i64,),
        "DELETE FROM log_chunks WHERE id IN \
         (SELECT id FROM log_chunks WHERE task_id = $1 ORDER BY first_line LIMIT $2) RETURNING lines",
        task_id,
        limit
    )?;
    let whole = gone.len() < chunks;
    if whole {
        task_metrics::delete(conn, task_id).await?;
        allocations::set_logs_deleted(conn, task_id, now).await?;
    }
    Ok(DeletionStep {
        chunks: gone.len(),
        lines: gone.iter().map(|(lines,)| lines).sum(),
        whole,
    })
}
