//! Rows that a use case cannot do without: each errs with "not found" where it does not exist.

use det_ids::{ExperimentId, JobId, TaskId, TrialId, UserId};
use det_lifecycle::object::ObjectKind;
use det_store::Conn;
use det_store::allocations::{self, TaskRow};
use det_store::experiments::{self, ExperimentRow, JobRow};
use det_store::trials::{self, TrialRow};
use det_taskspec::TaskKind;

use crate::auth::{Auth, User};
use crate::error::{AppError, AppResult};

/// The experiment with this number, or the error "not found".
pub(crate) async fn experiment(conn: &mut Conn<'_>, id: ExperimentId) -> AppResult<ExperimentRow> {
    let row = experiments::find(conn, id).await?;
    row.ok_or_else(|| AppError::not_found(ObjectKind::Experiment, id))
}

/// The trial with this number, or the error "not found".
pub(crate) async fn trial(conn: &mut Conn<'_>, id: TrialId) -> AppResult<TrialRow> {
    let row = trials::find(conn, id).await?;
    row.ok_or_else(|| AppError::not_found(ObjectKind::Trial, id))
}

/// The trial of a task whose kind is [`TaskKind::Trial`]: `trial_id` of its row, or of a row of its attempts. A row of such a
/// task that names none errs as a defect of what is stored.
pub(crate) fn trial_of(task_id: &TaskId, trial_id: Option<TrialId>) -> AppResult<TrialId> {
    trial_id.ok_or_else(|| {
        AppError::internal(anyhow::anyhow!(
            "task {task_id} is that of a trial, and its row names none"
        ))
    })
}

/// The job with this id, or the error "not found".
pub(crate) async fn job(conn: &mut Conn<'_>, id: &JobId) -> AppResult<JobRow> {
    let row = experiments::job(conn, id).await?;
    row.ok_or_else(|| AppError::not_found(ObjectKind::Job, id))
}

/// The task with this id, or the error "not found".
pub(crate) async fn task(conn: &mut Conn<'_>, id: &TaskId) -> AppResult<TaskRow> {
    let row = allocations::find_task(conn, id).await?;
    row.ok_or_else(|| AppError::not_found(ObjectKind::Task, id.as_str().escape_debug()))
}

/// The user with this number, or the error "not found".
pub(crate) fn user(auth: &Auth, id: UserId) -> AppResult<User> {
    auth.user(id)
        .ok_or_else(|| AppError::not_found(ObjectKind::User, id))
}

/// There is no task of this kind with this id.
pub(crate) fn no_task_of(kind: TaskKind, id: &TaskId) -> AppError {
    AppError::not_found(ObjectKind::TaskOf(kind), id.as_str().escape_debug())
}
