//! Which logs may be read.

use det_authz::Kind;
use det_ids::{TaskId, TrialId};
use det_store::{Store, allocations, trials};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// The tasks whose logs are the log of a task: itself.
pub(crate) async fn of_task(
    store: &Store,
    actor: &Actor,
    task_id: TaskId,
) -> AppResult<Vec<TaskId>> {
    reads::tasks::find(store, actor, &task_id).await?;
    Ok(vec![task_id])
}

/// The tasks whose logs are the log of a trial, oldest first.
pub(crate) async fn of_trial(
    store: &Store,
    actor: &Actor,
    trial_id: TrialId,
) -> AppResult<Vec<TaskId>> {
    reads::require(actor, Kind::Trial, "logs of trials")?;
    let mut conn = store.read().await?;
    if trials::find(&mut conn.conn(), trial_id).await?.is_none() {
        return Err(AppError::not_found("trial", trial_id));
    }
    let tasks = allocations::tasks_of_trial(&mut conn.conn(), trial_id).await?;
    Ok(tasks.into_iter().map(|task| task.id).collect())
}
