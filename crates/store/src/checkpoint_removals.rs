//! Tasks that delete checkpoints where the master does not reach: from their launch until what came of them is finished.

use det_ids::{ExperimentId, TaskId};
use det_lifecycle::task::TaskState;

use crate::{Conn, StoreError};

/// A task that deletes checkpoints of an experiment, which is not finished yet.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(id = "task_id")]
pub struct OpenRemoval {
    /// Id of the task that deletes the checkpoints.
    pub task_id: TaskId,
    /// Number of the experiment whose checkpoints are removed.
    pub experiment_id: ExperimentId,
    /// Where the task is in its life.
    #[row(json = "machine")]
    pub state: TaskState,
}

/// The statement of [`open`].
pub(crate) const OPEN: &str = "SELECT r.task_id, r.experiment_id, t.machine FROM checkpoint_removals r JOIN tasks t ON t.id = r.task_id ORDER BY r.task_id";

/// All that are not finished.
pub async fn open(conn: &mut Conn<'_>) -> Result<Vec<OpenRemoval>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(conn, OpenRemoval, OPEN)?)
}

/// Whose checkpoints a task deletes; `None` = it deletes none, or what came of it is finished.
pub async fn of_task(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
) -> Result<Option<ExperimentId>, StoreError> {
    let found = fetch_optional!(
        conn,
        (ExperimentId,),
        "SELECT experiment_id FROM checkpoint_removals WHERE task_id = $1",
        task_id
    )?;
    Ok(found.map(|(id,)| id))
}

/// Stores that a task deletes checkpoints of an experiment.
pub async fn insert(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    experiment_id: ExperimentId,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO checkpoint_removals (task_id, experiment_id) VALUES ($1, $2)",
        task_id,
        experiment_id
    )?;
    Ok(())
}

/// What came of a task is stored: its removal is open no more.
pub async fn finish(conn: &mut Conn<'_>, task_id: &TaskId) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM checkpoint_removals WHERE task_id = $1",
        task_id
    )?;
    Ok(())
}
