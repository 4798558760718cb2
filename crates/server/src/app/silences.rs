//! How long the code of running trials has been silent: no report, and no line of its log.
//!
//! Only memory knows it: after a restart of the master each has the whole time again, so that nothing is reported
//! too early.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::{Micros, TaskId};
use det_orchestrator::{RunningTrial, SilenceClocks};
use det_taskspec::TaskKind;
use tokio::sync::Notify;

use crate::auth::Actor;

/// What was received of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contact {
    /// A line of its log.
    Line,
    /// A report of metrics, or of a checkpoint.
    Report,
}

/// What is known of a task that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilentFor {
    pub(crate) silent: Duration,
    /// When it last reported, by the system's clock.
    pub(crate) last_report: Option<i64>,
}

/// Notes what is received of trials. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Silences {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    clocks: Mutex<SilenceClocks>,
    changed: Notify,
}

impl Silences {
    fn lock(&self) -> MutexGuard<'_, SilenceClocks> {
        let clocks = self.inner.clocks.lock();
        clocks.unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was received of a caller just now: it counts where that is a trial's task.
    pub(crate) fn received(&self, actor: &Actor, what: Contact) {
        if let Actor::Task(task) = actor
            && task.kind == TaskKind::Trial
        {
            let now = Micros(det_store::steady_now());
            let report = (what == Contact::Report).then(det_store::now);
            self.lock()
                .received(&task.task_id, &task.allocation_id, now, report);
        }
    }

    /// There may be another running trial to watch.
    pub(crate) fn wake(&self) {
        self.inner.changed.notify_one();
    }

    /// Waits for another running trial to watch.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// How long a task has been silent; `None` = it is not watched.
    pub(crate) fn of(&self, task: &TaskId) -> Option<SilentFor> {
        let known = self.lock().of(task, Micros(det_store::steady_now()));
        known.map(|(silent, last_report)| SilentFor {
            silent,
            last_report,
        })
    }

    /// Looks at these trials at the present time: see [`SilenceClocks::look`].
    pub(crate) fn look(
        &self,
        running: Vec<RunningTrial>,
    ) -> (Vec<(RunningTrial, Duration)>, Option<Duration>) {
        self.lock().look(running, Micros(det_store::steady_now()))
    }
}
