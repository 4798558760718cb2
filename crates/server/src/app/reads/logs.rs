//! Reading logs.

use bytes::Bytes;
use det_authz::Kind;
use det_ids::{TaskId, TrialId, UserId};
use det_lifecycle::object::ObjectKind;
use det_store::{Store, allocations, trials};
use tokio::sync::mpsc;

use crate::app::logs::Logs;
use crate::app::logs::reading::{LogFilter, Reading, Sink};
use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// What logs are read from.
#[derive(Clone)]
pub(crate) struct LogSources {
    pub(crate) store: Store,
    pub(crate) logs: Logs,
}

/// A log that an actor may read: those of some tasks, one after the other.
pub(crate) struct Log {
    logs: Logs,
    user: UserId,
    tasks: Vec<TaskId>,
}

impl Log {
    /// The log of a task.
    pub(crate) async fn of_task(
        sources: &LogSources,
        actor: &Actor,
        task_id: TaskId,
    ) -> AppResult<Self> {
        reads::tasks::find(&sources.store, actor, &task_id).await?;
        Ok(Self {
            logs: sources.logs.clone(),
            user: actor.user().id,
            tasks: vec![task_id],
        })
    }

    /// The log of a trial: of all its tasks, oldest first.
    pub(crate) async fn of_trial(
        sources: &LogSources,
        actor: &Actor,
        trial_id: TrialId,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::Trial, "logs of trials")?;
        let mut conn = sources.store.read().await?;
        if trials::find(&mut conn.conn(), trial_id).await?.is_none() {
            return Err(AppError::not_found(ObjectKind::Trial, trial_id));
        }
        let tasks = allocations::tasks_of_trial(&mut conn.conn(), trial_id).await?;
        Ok(Self {
            logs: sources.logs.clone(),
            user: actor.user().id,
            tasks: tasks.into_iter().map(|task| task.id).collect(),
        })
    }

    /// Reads it as [`Logs::read`] does.
    pub(crate) async fn read(
        self,
        filter: LogFilter,
        reading: Reading,
        sink: impl Sink,
        out: mpsc::Sender<AppResult<Bytes>>,
    ) {
        self.logs
            .read(self.user, self.tasks, filter, reading, sink, out)
            .await;
    }
}
