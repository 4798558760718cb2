//! When the services of tasks were last used, and which of them are idle for too long.
//!
//! Only memory knows it: a restart of the master counts as use, so that nothing ends too early.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::{Micros, TaskId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::task::TaskEvent;
use det_orchestrator::{Event, IdleClock};
use det_store::allocations;
use det_store::task_documents::{self, LaunchedFilter};
use det_taskspec::TaskKind;
use tokio::sync::Notify;

use crate::app::context::Context;
use crate::app::orchestration::{Cause, Orchestration};
use crate::error::{AppError, AppResult, ErrorKind};

/// Notes the use of services. Cheap to clone.
#[derive(Clone, Default)]
pub struct Idle {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    clocks: Mutex<HashMap<TaskId, IdleClock>>,
    changed: Notify,
}

/// A request that is answered at present: as long as it lives, its service is in use.
pub(crate) struct InUse {
    idle: Idle,
    task: TaskId,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.idle.with(&self.task, IdleClock::ends_use);
    }
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, IdleClock>> {
        self.inner
            .clocks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the clock of a task; false = it has none.
    fn with(&self, task: &TaskId, change: impl FnOnce(&mut IdleClock, Micros)) -> bool {
        let now = Micros(det_store::steady_now());
        let mut clocks = self.lock();
        let Some(clock) = clocks.get_mut(task) else {
            return false;
        };
        change(clock, now);
        true
    }

    /// A request to a service begins. `None` = its time is not counted yet, or not at all: its end must not be counted for
    /// another request.
    pub(crate) fn begin(&self, task: &TaskId) -> Option<InUse> {
        self.with(task, IdleClock::begins_use).then(|| InUse {
            idle: self.clone(),
            task: task.clone(),
        })
    }

    /// A service was in use just now.
    pub(crate) fn used(&self, task: &TaskId) {
        self.with(task, IdleClock::used);
    }

    /// There is a task whose time is to be watched.
    pub(crate) fn wake(&self) {
        self.inner.changed.notify_one();
    }

    /// Waits for a task whose time is to be watched.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// Ends what is idle for too long; how long until another look is due, `None` = until there is something to watch.
    pub(crate) async fn end_idle(
        &self,
        context: &Context,
        orchestration: &Orchestration,
    ) -> AppResult<Option<Duration>> {
        let watched = watched(context).await?;
        let now = Micros(det_store::steady_now());
        let (over, next) = self.look(&watched, now);
        for task in over {
            end(orchestration, task).await?;
        }
        Ok(next)
    }

    /// The tasks that are idle for too long, and how long until another look is due.
    fn look<'w>(
        &self,
        watched: &'w [Watched],
        now: Micros,
    ) -> (Vec<&'w Watched>, Option<Duration>) {
        let mut clocks = self.lock();
        clocks.retain(|task, _| watched.iter().any(|row| row.task == *task));
        let mut over = Vec::new();
        let mut next: Option<Duration> = None;
        for row in watched {
            let left = if row.runs {
                let clock = clocks.entry(row.task.clone());
                clock
                    .or_insert_with(|| IdleClock::new(now))
                    .left(row.timeout, now)
            } else {
                clocks.remove(&row.task);
                row.timeout
            };
            if left.is_zero() {
                over.push(row);
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        (over, next)
    }
}

/// A live task whose service may not be idle for ever.
struct Watched {
    task: TaskId,
    kind: TaskKind,
    timeout: Duration,
    /// Whether its service is up, or it is a TensorBoard that waits for something to show.
    runs: bool,
}

async fn watched(context: &Context) -> AppResult<Vec<Watched>> {
    let live = LaunchedFilter {
        ended_after: Some(i64::MAX),
        ..LaunchedFilter::default()
    };
    let mut conn = context.store.read().await?;
    let tasks = task_documents::launched(&mut conn.conn(), &live).await?;
    let timed = tasks
        .into_iter()
        .filter_map(|task| Some((task.details.idle_timeout()?, task)));
    let timed: Vec<_> = timed.collect();
    let ids: Vec<TaskId> = timed.iter().map(|(_, task)| task.id.clone()).collect();
    let mut states: HashMap<TaskId, AllocationState> = HashMap::new();
    if !ids.is_empty() {
        for attempt in allocations::of_tasks(&mut conn.conn(), &ids).await? {
            states.entry(attempt.task_id).or_insert(attempt.state);
        }
    }
    let watched = timed.into_iter().map(|(timeout, task)| Watched {
        runs: match states.get(&task.id) {
            Some(AllocationState::Ready) => true,
            Some(AllocationState::Starting(_)) => task.kind == TaskKind::Tensorboard,
            _ => false,
        },
        task: task.id,
        kind: task.kind,
        timeout,
    });
    Ok(watched.collect())
}

async fn end(orchestration: &Orchestration, row: &Watched) -> AppResult<()> {
    let seconds = row.timeout.as_secs();
    let what = match row.kind {
        TaskKind::Notebook => {
            "no request came, and what \"notebook_idle_type\" counts was not there"
        }
        _ => "no request came",
    };
    let ended = orchestration.commit(Event::Task {
        id: row.task.clone(),
        event: TaskEvent::Kill,
        cause: Cause::master(format!(
            "it was idle for {seconds} s (\"idle_timeout\"): {what}"
        )),
    });
    match ended.await {
        // It has ended by itself just now.
        Err(AppError {
            kind: ErrorKind::Precondition | ErrorKind::NotFound,
            ..
        }) => Ok(()),
        other => other,
    }
}
