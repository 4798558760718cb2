//! How long services have not been used, and what follows when it was too long.

use std::collections::BTreeMap;
use std::time::Duration;

use det_ids::{Micros, TaskId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::task::TaskEvent;
use det_taskspec::TaskKind;

use crate::{Cause, Refusal, Rows, Scene, tasks};

/// Counts how long a service has not been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleClock {
    last: Micros,
    /// Requests that are answered at present.
    current: u32,
}

impl IdleClock {
    /// A clock that counts disuse from `now`.
    pub fn new(now: Micros) -> Self {
        Self {
            last: now,
            current: 0,
        }
    }

    /// Restarts the count at `now`; earlier moments than the last use change nothing.
    pub fn used(&mut self, now: Micros) {
        self.last = self.last.max(now);
    }

    /// Notes the start of a use with a duration, such as a connection: until its end no time counts as disuse.
    pub fn begins_use(&mut self, now: Micros) {
        self.used(now);
        self.current = self.current.saturating_add(1);
    }

    /// Notes the end of a use that [`Self::begins_use`] has noted, and restarts the count.
    pub fn ends_use(&mut self, now: Micros) {
        self.used(now);
        self.current = self.current.saturating_sub(1);
    }

    /// How long it may go on without use; zero = its time is over.
    pub fn left(&self, timeout: Duration, now: Micros) -> Duration {
        if self.current > 0 {
            return timeout;
        }
        timeout.saturating_sub(now.since(self.last))
    }
}

/// A live attempt of a task whose service may not be idle for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleService {
    /// The task that the service belongs to.
    pub task: TaskId,
    /// Longest time without use before its task is ended.
    pub timeout: Duration,
    /// Whether its time counts at present ([`counts_idle`]).
    pub counts: bool,
}

/// Whether the time of a task counts while its attempt is in this state: its service is up, or waits for
/// something to show.
pub fn counts_idle(kind: TaskKind, state: &AllocationState) -> bool {
    match state {
        AllocationState::Ready => true,
        AllocationState::Starting(_) => kind.waits_for_content(),
        AllocationState::Pending
        | AllocationState::Preempting
        | AllocationState::Saving
        | AllocationState::Killing { .. }
        | AllocationState::Terminated { .. } => false,
    }
}

/// Counts for several tasks how long their services have not been used.
#[derive(Debug, Clone, Default)]
pub struct IdleClocks(BTreeMap<TaskId, IdleClock>);

impl IdleClocks {
    /// The clock of a task; `None` = its time is not counted.
    pub fn of(&mut self, task: &TaskId) -> Option<&mut IdleClock> {
        self.0.get_mut(task)
    }

    /// Counts for exactly these from now on. Returns those that have been idle for too long, and how long until the next
    /// look is due; `None` = there is nothing to look at.
    pub fn look(
        &mut self,
        watched: Vec<IdleService>,
        now: Micros,
    ) -> (Vec<IdleService>, Option<Duration>) {
        let mut before = std::mem::take(&mut self.0);
        let (mut over, mut next) = (Vec::new(), None::<Duration>);
        for row in watched {
            let left = if row.counts {
                let known = before.remove(&row.task);
                let clock = known.unwrap_or_else(|| IdleClock::new(now));
                self.0.insert(row.task.clone(), clock);
                clock.left(row.timeout, now)
            } else {
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

/// The service of a task was not used for its whole timeout: the task ends, unless it has just ended or been released.
pub(crate) fn unused<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    timeout: Duration,
) -> Result<(), Refusal> {
    let Some(task) = scene.rows.task(id) else {
        return Ok(());
    };
    let attempt = scene.rows.live_allocation(id);
    let attempt = attempt.and_then(|attempt| scene.rows.allocation(&attempt));
    if !attempt.is_some_and(|attempt| counts_idle(task.kind, &attempt.state)) {
        return Ok(());
    }
    let what = match task.kind {
        TaskKind::Notebook => {
            "no request came, and what \"notebook_idle_type\" counts was not there"
        }
        TaskKind::Trial
        | TaskKind::Shell
        | TaskKind::Command
        | TaskKind::Tensorboard
        | TaskKind::CheckpointGc
        | TaskKind::Generic => "no request came",
    };
    let cause = Cause::master(format!(
        "it was idle for {} s (\"idle_timeout\"): {what}",
        timeout.as_secs()
    ));
    tasks::on(scene, id, TaskEvent::Kill, &cause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    #[test]
    fn the_time_is_over_when_nothing_used_it_for_so_long() {
        let mut clock = IdleClock::new(at(0));
        assert_eq!(clock.left(TIMEOUT, at(4)), Duration::from_secs(6));
        clock.used(at(5));
        assert_eq!(clock.left(TIMEOUT, at(14)), Duration::from_secs(1));
        assert_eq!(clock.left(TIMEOUT, at(15)), Duration::ZERO);
        assert_eq!(clock.left(TIMEOUT, at(99)), Duration::ZERO);
    }

    #[test]
    fn a_request_that_takes_long_is_use_until_it_ends() {
        let mut clock = IdleClock::new(at(0));
        clock.begins_use(at(1));
        assert_eq!(clock.left(TIMEOUT, at(60)), TIMEOUT);
        clock.ends_use(at(60));
        assert_eq!(clock.left(TIMEOUT, at(61)), Duration::from_secs(9));
    }

    #[test]
    fn each_task_has_its_own_time_and_only_while_it_counts() {
        let watched = |task: &str, counts| IdleService {
            task: task.into(),
            timeout: TIMEOUT,
            counts,
        };
        let mut clocks = IdleClocks::default();
        let look = |clocks: &mut IdleClocks, rows, now| {
            let (over, next) = clocks.look(rows, at(now));
            let over: Vec<String> = over.into_iter().map(|it| it.task.to_string()).collect();
            (over, next.map(|next| next.as_secs()))
        };
        let both = || vec![watched("a", true), watched("b", false)];
        assert_eq!(look(&mut clocks, both(), 0), (vec![], Some(10)));
        assert!(clocks.of(&"b".into()).is_none());
        clocks.of(&"a".into()).unwrap().used(at(4));
        assert_eq!(look(&mut clocks, both(), 10), (vec![], Some(4)));
        assert_eq!(look(&mut clocks, both(), 14).0, ["a"]);
        // One that counts no more begins anew.
        assert_eq!(look(&mut clocks, vec![watched("a", false)], 15).0.len(), 0);
        assert_eq!(look(&mut clocks, both(), 30), (vec![], Some(10)));
        assert_eq!(look(&mut clocks, Vec::new(), 31), (vec![], None));
        assert!(clocks.of(&"a".into()).is_none());
    }

    proptest! {
        /// Never ends what was used within its time, whatever the order in which uses are noted.
        #[test]
        fn use_within_the_time_keeps_it(uses in prop::collection::vec(0i64..1000, 1..20), later in 0i64..20) {
            let mut clock = IdleClock::new(at(0));
            for second in &uses {
                clock.used(at(*second));
            }
            let last = uses.iter().max().copied().unwrap_or(0);
            let over = clock.left(TIMEOUT, at(last + later)).is_zero();
            prop_assert_eq!(over, later >= 10);
        }
    }
}
