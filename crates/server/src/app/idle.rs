//! When the services of tasks were last used, and which of them are idle for too long.
//!
//! Only memory knows it: a restart of the master counts as use, so that nothing ends too early.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::{Micros, TaskId};
use det_orchestrator::{Event, IdleClock, IdleClocks, IdleService, counts_idle};
use det_store::task_documents;
use tokio::sync::Notify;

use crate::app::context::Context;
use crate::app::orchestration::Orchestration;
use crate::error::AppResult;
use crate::live::{Live, launched_attempts};

/// Notes the use of services. Cheap to clone.
#[derive(Clone, Default)]
pub struct Idle {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    clocks: Mutex<IdleClocks>,
    /// How long live tasks may be idle, `None` = for ever: what they were launched with, read once.
    timeouts: Mutex<HashMap<TaskId, Option<Duration>>>,
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
    fn lock(&self) -> MutexGuard<'_, IdleClocks> {
        let clocks = self.inner.clocks.lock();
        clocks.unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the clock of a task; false = it has none.
    fn with(&self, task: &TaskId, change: impl FnOnce(&mut IdleClock, Micros)) -> bool {
        let now = Micros(det_store::steady_now());
        let mut clocks = self.lock();
        let Some(clock) = clocks.of(task) else {
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
        live: &Live,
        orchestration: &Orchestration,
    ) -> AppResult<Option<Duration>> {
        let watched = self.watched(context, live).await?;
        let now = Micros(det_store::steady_now());
        let (over, next) = self.lock().look(watched, now);
        for IdleService { task, timeout, .. } in over {
            let unused = Event::Unused { id: task, timeout };
            orchestration.commit(unused).await?;
        }
        Ok(next)
    }

    /// The live attempts of tasks whose services may not be idle for ever.
    async fn watched(&self, context: &Context, live: &Live) -> AppResult<Vec<IdleService>> {
        let attempts = live.look(&context.store, launched_attempts).await?;
        let lock = || {
            let timeouts = self.inner.timeouts.lock();
            timeouts.unwrap_or_else(PoisonError::into_inner)
        };
        let known = std::mem::take(&mut *lock());
        let (mut timeouts, mut watched) = (HashMap::new(), Vec::new());
        for row in attempts {
            let timeout = match known.get(&row.task_id) {
                Some(timeout) => *timeout,
                None => {
                    let mut conn = context.store.read().await?;
                    let document = task_documents::find(&mut conn.conn(), &row.task_id).await?;
                    document.and_then(|document| document.details.idle_timeout())
                }
            };
            timeouts.insert(row.task_id.clone(), timeout);
            watched.extend(timeout.map(|timeout| IdleService {
                task: row.task_id.clone(),
                timeout,
                counts: counts_idle(row.kind, &row.state),
            }));
        }
        *lock() = timeouts;
        Ok(watched)
    }
}
