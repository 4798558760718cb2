//! How long the code of running trials has been silent: no report, and no line of its log.
//!
//! Only memory knows it: after a restart of the master each has the whole time again, so that nothing is reported
//! too early.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_ids::{AllocationId, Micros, TaskId};
use det_orchestrator::{Silence, SilenceClock};
use tokio::sync::Notify;

use crate::auth::Actor;

/// What was received of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A line of its log.
    Line,
    /// A report of metrics, or of a checkpoint.
    Report,
}

/// A running attempt of a trial's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) task: TaskId,
    pub(crate) allocation: AllocationId,
    /// How long it may be silent; zero = for ever.
    pub(crate) timeout: Duration,
}

/// What is known of a task that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilentFor {
    pub(crate) silent: Duration,
    /// When it last reported, by the system's clock.
    pub(crate) last_report: Option<i64>,
}

#[derive(Debug)]
struct Watched {
    allocation: AllocationId,
    clock: SilenceClock,
    last_report: Option<i64>,
}

impl Watched {
    fn new(allocation: &AllocationId, now: Micros) -> Self {
        Self {
            allocation: allocation.clone(),
            clock: SilenceClock::new(now),
            last_report: None,
        }
    }
}

/// Notes what is received of trials. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Silences {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    watched: Mutex<HashMap<TaskId, Watched>>,
    changed: Notify,
}

impl Silences {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Watched>> {
        let watched = self.inner.watched.lock();
        watched.unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was received of a caller just now: it counts where that is a trial's task.
    pub(crate) fn received(&self, actor: &Actor, what: Received) {
        if let Actor::Task(task) = actor
            && task.trial_id.is_some()
        {
            self.received_of(&task.task_id, &task.allocation_id, what);
        }
    }

    fn received_of(&self, task: &TaskId, allocation: &AllocationId, what: Received) {
        let now = Micros(det_store::steady_now());
        let mut watched = self.lock();
        // What is new is kept until the next look, which drops it if it does not run.
        let known = watched
            .entry(task.clone())
            .or_insert_with(|| Watched::new(allocation, now));
        // An older attempt may still deliver what it has written.
        if known.allocation == *allocation {
            known.clock.received(now);
            if what == Received::Report {
                known.last_report = Some(det_store::now());
            }
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
        let now = Micros(det_store::steady_now());
        let watched = self.lock();
        let known = watched.get(task)?;
        Some(SilentFor {
            silent: known.clock.silent_for(now),
            last_report: known.last_report,
        })
    }

    /// Watches exactly these from now on. Returns those that have been silent for too long and were not reported yet, with
    /// how long, and how long until another look is due.
    pub(crate) fn look(
        &self,
        running: Vec<Running>,
        now: Micros,
    ) -> (Vec<(Running, Duration)>, Option<Duration>) {
        let mut watched = self.lock();
        let mut before = std::mem::take(&mut *watched);
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for attempt in running {
            let known = before.remove(&attempt.task);
            let mut known = known
                .filter(|known| known.allocation == attempt.allocation)
                .unwrap_or_else(|| Watched::new(&attempt.allocation, now));
            if !attempt.timeout.is_zero() {
                match known.clock.look(attempt.timeout, now) {
                    Silence::Within(left) => {
                        next = Some(next.map_or(left, |next| next.min(left)));
                    }
                    Silence::TooLong(silent) => due.push((attempt.clone(), silent)),
                    // What is received next begins another silence, at the earliest now.
                    Silence::Reported => {
                        next = Some(next.map_or(attempt.timeout, |n| n.min(attempt.timeout)));
                    }
                }
            }
            watched.insert(attempt.task, known);
        }
        if let Some(shortest) = due.iter().map(|(attempt, _)| attempt.timeout).min() {
            next = Some(next.map_or(shortest, |next| next.min(shortest)));
        }
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(attempt: u32, seconds: u64) -> Vec<Running> {
        let task = TaskId::from("t");
        vec![Running {
            allocation: task.allocation(attempt),
            task,
            timeout: Duration::from_secs(seconds),
        }]
    }

    #[test]
    fn each_attempt_has_its_own_time_and_is_reported_once() {
        let silences = Silences::default();
        let start = det_store::steady_now();
        let at = |seconds: i64| Micros(start + seconds * 1_000_000);
        let look = |attempt, now| {
            let (due, next) = silences.look(running(attempt, 10), at(now));
            (due.len(), next.map(|next| next.as_secs()))
        };
        assert_eq!(look(1, 0), (0, Some(10)));
        assert_eq!(look(1, 10), (1, Some(10)));
        assert_eq!(look(1, 11), (0, Some(10)));
        // Another attempt is another silence.
        assert_eq!(look(2, 12), (0, Some(10)));
        assert_eq!(silences.look(Vec::new(), at(13)), (Vec::new(), None));
        assert_eq!(silences.of(&TaskId::from("t")), None);
    }

    #[test]
    fn without_a_timeout_nothing_is_due_and_the_time_is_known() {
        let silences = Silences::default();
        let start = det_store::steady_now();
        let (due, next) = silences.look(running(1, 0), Micros(start - 1_000_000_000));
        assert_eq!((due.len(), next), (0, None));
        let task = TaskId::from("t");
        let silent = silences.of(&task).unwrap();
        assert!(silent.silent.as_secs() >= 1000 && silent.last_report.is_none());
        silences.received_of(&task, &task.allocation(2), Received::Line);
        assert_eq!(silences.of(&task).unwrap().last_report, None);
        silences.received_of(&task, &task.allocation(1), Received::Report);
        let later = silences.of(&task).unwrap();
        assert!(later.silent < silent.silent && later.last_report.is_some());
    }
}
