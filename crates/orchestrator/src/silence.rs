//! When a trial counts as silent: its containers run, and its code has reported nothing and written nothing for too long;
//! and what is added to its record and its log then.

use std::collections::BTreeMap;
use std::time::Duration;

use det_ids::{AllocationId, Micros, TaskId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::record::{EventKind, Subject};
use det_taskspec::TaskKind;
use serde_json::json;

use crate::hang::{Finding, Rank};
use crate::{Cause, LogLevel, Record, Scene, TaskRows};

/// The least time between two silences of an attempt that are reported: code that writes a line now and then would fill its
/// log and the record of events with them.
const BETWEEN_REPORTS: Duration = Duration::from_mins(1);

/// Counts how long the code of one attempt has reported and written nothing. Times are those of the steady clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceClock {
    last: Micros,
    /// When a silence was reported last, of those of this attempt. Each is once, until something is received.
    reported: Option<Micros>,
}

/// What follows from a look at a [`SilenceClock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// It may go on for so long.
    Within(Duration),
    /// It has lasted too long, for so long by now, and this is the first look that finds it.
    TooLong(Duration),
    /// It has lasted too long, and a look before has found it.
    Reported,
}

impl SilenceClock {
    /// A clock that counts silence from `now`.
    pub fn new(now: Micros) -> Self {
        Self {
            last: now,
            reported: None,
        }
    }

    /// A report or a line of the log has come.
    pub fn received(&mut self, now: Micros) {
        self.last = self.last.max(now);
    }

    /// Time since the last report or line of the log.
    pub fn silent_for(&self, now: Micros) -> Duration {
        now.since(self.last)
    }

    /// Looks whether it is silent for too long. `timeout` = longer than zero.
    pub fn look(&mut self, timeout: Duration, now: Micros) -> Silence {
        let silent = self.silent_for(now);
        let of_silence = timeout.saturating_sub(silent);
        let of_report = match self.reported {
            None => Duration::ZERO,
            Some(reported) if reported >= self.last => {
                return Silence::Reported;
            }
            Some(reported) => BETWEEN_REPORTS.saturating_sub(now.since(reported)),
        };
        let left = of_silence.max(of_report);
        if left.is_zero() {
            self.reported = Some(now);
            Silence::TooLong(silent)
        } else {
            Silence::Within(left)
        }
    }
}

/// A running attempt of a trial's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningTrial {
    /// The task of the trial.
    pub task: TaskId,
    /// The live allocation of the task.
    pub allocation: AllocationId,
    /// How long it may be silent; zero = for ever.
    pub timeout: Duration,
}

/// What is known of the silence of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AttemptSilence {
    allocation: AllocationId,
    clock: SilenceClock,
    last_report: Option<i64>,
}

impl AttemptSilence {
    fn new(allocation: &AllocationId, now: Micros) -> Self {
        Self {
            allocation: allocation.clone(),
            clock: SilenceClock::new(now),
            last_report: None,
        }
    }
}

/// Counts for several trials how long their code has been silent.
#[derive(Debug, Clone, Default)]
pub struct SilenceClocks(BTreeMap<TaskId, AttemptSilence>);

impl SilenceClocks {
    /// Something was received of an attempt; `report` = when, by the system's clock, if it was a report.
    pub fn received(
        &mut self,
        task: &TaskId,
        allocation: &AllocationId,
        now: Micros,
        report: Option<i64>,
    ) {
        // What is new is kept until the next look, which drops it if it does not run.
        let known = self.0.entry(task.clone());
        let known = known.or_insert_with(|| AttemptSilence::new(allocation, now));
        // An older attempt may still deliver what it has written.
        if known.allocation == *allocation {
            known.clock.received(now);
            known.last_report = report.or(known.last_report);
        }
    }

    /// How long a task has been silent, and when it last reported, by the system's clock; `None` = it is not watched.
    pub fn of(&self, task: &TaskId, now: Micros) -> Option<(Duration, Option<i64>)> {
        let known = self.0.get(task)?;
        Some((known.clock.silent_for(now), known.last_report))
    }

    /// Counts for exactly these from now on. Returns those that have been silent for too long and were not reported yet,
    /// with how long, and how long until another look is due.
    pub fn look(
        &mut self,
        running: Vec<RunningTrial>,
        now: Micros,
    ) -> (Vec<(RunningTrial, Duration)>, Option<Duration>) {
        let mut before = std::mem::take(&mut self.0);
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        let mut sooner = |left: Duration| next = Some(next.map_or(left, |next| next.min(left)));
        for attempt in running {
            let known = before.remove(&attempt.task);
            let mut known = known
                .filter(|known| known.allocation == attempt.allocation)
                .unwrap_or_else(|| AttemptSilence::new(&attempt.allocation, now));
            if !attempt.timeout.is_zero() {
                match known.clock.look(attempt.timeout, now) {
                    Silence::Within(left) => sooner(left),
                    Silence::TooLong(silent) => {
                        sooner(attempt.timeout);
                        due.push((attempt.clone(), silent));
                    }
                    // What is received next begins another silence, at the earliest now.
                    Silence::Reported => sooner(attempt.timeout),
                }
            }
            self.0.insert(attempt.task, known);
        }
        (due, next)
    }
}

/// Ranks with a line of their own in the log, at most.
const MOST_LINES: usize = 32;
/// Functions that such a line names, at most.
const MOST_FRAMES: usize = 6;

/// A trial was silent for too long, and its containers were asked what they do: the record and the log contain what was
/// found. Nothing if it has ended or is being ended meanwhile: its log contains why.
pub(crate) fn found<R: TaskRows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    (silent, timeout): (Duration, Duration),
    finding: &Finding,
) {
    let Some(row) = scene.rows.allocation(id) else {
        return;
    };
    let (TaskKind::Trial, AllocationState::Ready, Some(trial_id)) =
        (row.kind, &row.state, row.trial_id)
    else {
        return;
    };
    let reason = format!(
        "its code has reported nothing and written nothing for {} s (\"silence_timeout\" is {} s): {}",
        silent.as_secs(),
        timeout.as_secs(),
        finding.conclusion
    );
    let ranks = finding.ranks.iter().take(MOST_LINES).map(rank_json);
    let detail = json!({
        "allocationId": id,
        "silentSeconds": silent.as_secs(),
        "conclusion": finding.conclusion,
        "ranks": ranks.collect::<Vec<_>>(),
    });
    scene.record(Record {
        cause: Cause::master(&reason),
        subject: Subject::Trial(trial_id),
        kind: EventKind::Silent,
        from: None,
        to: None,
        detail: Some(detail.to_string()),
    });
    for line in lines(&reason, finding) {
        scene.log_at(LogLevel::Warning, &row.task_id, Some(id), line);
    }
}

fn rank_json(rank: &Rank) -> serde_json::Value {
    let stack = rank.process.as_ref().map(|process| {
        let frames = process.stack.iter().take(MOST_FRAMES);
        frames.collect::<Vec<_>>()
    });
    json!({
        "rank": rank.rank,
        "agentId": rank.place,
        "odd": rank.odd,
        "activity": rank.activity.phrase(),
        "waitsIn": rank.waits_in(),
        "problem": rank.problem,
        "stack": stack,
    })
}

/// The lines of a silent trial's log.
fn lines(reason: &str, finding: &Finding) -> Vec<String> {
    let mut lines = vec![format!("This trial may hang: {reason}")];
    for rank in finding.ranks.iter().take(MOST_LINES) {
        let mut line = format!("- {rank}");
        if let Some(process) = &rank.process {
            let (used, watched) = (process.cpu_window_micros, rank.window_micros);
            line.push_str(&format!(
                "; process {} ({}), {} ms of processors in {} ms",
                process.pid,
                process.command,
                used / 1000,
                watched / 1000
            ));
            let stack = process.stack.iter().take(MOST_FRAMES);
            let stack: Vec<&str> = stack.map(String::as_str).collect();
            if !stack.is_empty() {
                line.push_str(&format!("; stack, innermost first: {}", stack.join(" < ")));
            }
        }
        lines.push(line);
    }
    if finding.ranks.len() > MOST_LINES {
        let more = finding.ranks.len() - MOST_LINES;
        lines.push(format!("- and {more} more ranks"));
    }
    lines
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
    fn a_silence_is_reported_once_and_again_after_something_was_received() {
        let mut clock = SilenceClock::new(at(0));
        assert_eq!(
            clock.look(TIMEOUT, at(4)),
            Silence::Within(Duration::from_secs(6))
        );
        clock.received(at(5));
        assert_eq!(
            clock.look(TIMEOUT, at(14)),
            Silence::Within(Duration::from_secs(1))
        );
        assert_eq!(clock.look(TIMEOUT, at(15)), Silence::TooLong(TIMEOUT));
        assert_eq!(clock.look(TIMEOUT, at(40)), Silence::Reported);
        clock.received(at(81));
        assert_eq!(
            clock.look(TIMEOUT, at(82)),
            Silence::Within(Duration::from_secs(9))
        );
        assert_eq!(clock.look(TIMEOUT, at(91)), Silence::TooLong(TIMEOUT));
    }

    #[test]
    fn an_attempt_has_one_silence_reported_in_a_minute() {
        let mut clock = SilenceClock::new(at(0));
        assert_eq!(clock.look(TIMEOUT, at(10)), Silence::TooLong(TIMEOUT));
        clock.received(at(11));
        // It is too long already, and its turn comes with the minute.
        assert_eq!(
            clock.look(TIMEOUT, at(40)),
            Silence::Within(Duration::from_secs(30))
        );
        assert_eq!(
            clock.look(TIMEOUT, at(70)),
            Silence::TooLong(Duration::from_secs(59))
        );
        assert_eq!(clock.look(TIMEOUT, at(300)), Silence::Reported);
    }

    fn running(attempt: u32, seconds: u64) -> Vec<RunningTrial> {
        let task = TaskId::from("t");
        vec![RunningTrial {
            allocation: task.allocation(attempt),
            task,
            timeout: Duration::from_secs(seconds),
        }]
    }

    #[test]
    fn each_attempt_has_its_own_time_and_is_reported_once() {
        let mut clocks = SilenceClocks::default();
        let mut look = |attempt, now| {
            let (due, next) = clocks.look(running(attempt, 10), at(now));
            (due.len(), next.map(|next| next.as_secs()))
        };
        assert_eq!(look(1, 0), (0, Some(10)));
        assert_eq!(look(1, 10), (1, Some(10)));
        assert_eq!(look(1, 11), (0, Some(10)));
        // Another attempt is another silence.
        assert_eq!(look(2, 12), (0, Some(10)));
        assert_eq!(clocks.look(Vec::new(), at(13)), (Vec::new(), None));
        assert_eq!(clocks.of(&"t".into(), at(13)), None);
    }

    #[test]
    fn without_a_timeout_nothing_is_due_and_the_time_is_known() {
        let mut clocks = SilenceClocks::default();
        let (due, next) = clocks.look(running(1, 0), at(0));
        assert_eq!((due.len(), next), (0, None));
        let task = TaskId::from("t");
        let minute = Duration::from_mins(1);
        assert_eq!(clocks.of(&task, at(60)), Some((minute, None)));
        clocks.received(&task, &task.allocation(2), at(50), Some(1));
        assert_eq!(clocks.of(&task, at(60)), Some((minute, None)));
        clocks.received(&task, &task.allocation(1), at(50), Some(2));
        clocks.received(&task, &task.allocation(1), at(55), None);
        assert_eq!(
            clocks.of(&task, at(60)),
            Some((Duration::from_secs(5), Some(2)))
        );
    }

    proptest! {
        /// Whatever the order in which things are received, nothing is reported that was received within its time.
        #[test]
        fn what_is_received_within_the_time_is_not_silent(received in prop::collection::vec(0i64..1000, 1..20), later in 0i64..20) {
            let mut clock = SilenceClock::new(at(0));
            for second in &received {
                clock.received(at(*second));
            }
            let last = received.iter().max().copied().unwrap_or(0);
            let found = clock.look(TIMEOUT, at(last + later));
            prop_assert_eq!(matches!(found, Silence::TooLong(_)), later >= 10);
        }
    }
}
