//! The task's log on its way through the spool: who writes waits for room, who ships waits for lines.
//!
//! A disk that takes nothing makes the task wait, too, and is tried again until it does. A line of the log then tells
//! since when, and goes to the master with its particulars, which become an event of the task. After the task's end
//! nobody waits: what comes then is held in memory, [`MAX_HELD`] of it, and shipped from there if need be.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use det_spool::{
    Batch, Level, MAX_BATCH_BYTES, Outage, Reader, Record, SpoolError, Stdtype, Writer,
};

use crate::clock::now_micros;
use crate::failure::chain;
use crate::report::Diagnostics;

/// How long to wait before trying a disk again that took no line.
const DISK_RETRY: Duration = Duration::from_millis(500);
/// Bytes held in memory, after the task's end, for a disk that takes nothing. One batch.
const MAX_HELD: usize = MAX_BATCH_BYTES;

/// The log of the task. Clones are the same log.
#[derive(Debug, Clone)]
pub(crate) struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    diagnostics: Diagnostics,
}

#[derive(Debug)]
struct State {
    writer: Writer,
    /// Sequence number of the last record that a reader finds.
    flushed: u64,
    phase: Phase,
    /// Since when the disk takes nothing; its end is not known yet.
    outage: Option<Outage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The task runs: a full spool or disk makes it wait.
    Running,
    /// The task has ended: what is left in its pipes goes to the spool, full or not.
    Draining,
    /// Nothing more comes; shipping goes on until the deadline at most.
    Closed { deadline: Instant },
}

impl Log {
    /// Opens the spool in `dir`.
    pub(crate) fn open(
        dir: &Path,
        capacity_bytes: u64,
        diagnostics: Diagnostics,
    ) -> Result<Self, SpoolError> {
        let writer = Writer::open(dir, capacity_bytes)?;
        let flushed = writer.last();
        Ok(Self(Arc::new(Shared {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                writer,
                flushed,
                phase: Phase::Running,
                outage: None,
            }),
            changed: Condvar::new(),
            diagnostics,
        })))
    }

    /// Stores records. While the task runs this waits for room, and so in the end does the task.
    pub(crate) fn append(&self, records: &[Record]) {
        let mut state = self.lock();
        for record in records {
            while state.phase == Phase::Running && state.writer.is_full() {
                state = self.wait(state);
            }
            state = self.store(state, record);
        }
        drop(self.flush(state));
        self.0.changed.notify_all();
    }

    /// Tells people something in the task's log.
    pub(crate) fn say(&self, level: Level, text: &str) {
        let records: Vec<Record> = text
            .lines()
            .map(|line| Record {
                timestamp_micros: now_micros(),
                stdtype: Stdtype::Stderr,
                rank_id: None,
                level: Some(level),
                log: line.to_owned(),
                outage: None,
            })
            .collect();
        self.append(&records);
    }

    /// The task has ended: nobody waits for room any longer.
    pub(crate) fn begin_drain(&self) {
        self.lock().phase = Phase::Draining;
        self.0.changed.notify_all();
    }

    /// Nothing more comes, and shipping may go on for `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        let mut state = self.lock();
        state.phase = Phase::Closed {
            deadline: Instant::now() + patience,
        };
        state = self.flush(state);
        if let Some(outage) = state.outage.take() {
            // Its end is not waited for: what is held in memory now tells of it.
            self.note(state.writer.hold(&telling(outage)).map(drop));
        }
        self.note(state.writer.sync());
        self.0.changed.notify_all();
    }

    /// What the disk has not taken to the last, once nothing more comes.
    pub(crate) fn unwritten(&self) -> Option<Batch> {
        let state = self.lock();
        // It may have room by now, and then the spool is as good as ever for whoever ships the rest.
        let state = self.flush(state);
        state.writer.held()
    }

    /// A reader of everything that the master does not have.
    pub(crate) fn reader(&self) -> Result<Reader, SpoolError> {
        Reader::open(&self.0.dir)
    }

    /// A reader of what follows record `sequence`.
    pub(crate) fn reader_after(&self, sequence: u64) -> Reader {
        Reader::after(&self.0.dir, sequence)
    }

    /// Waits until there are records after `sequence` and says up to which; `None` when there will be none, or when the
    /// time for shipping is over.
    pub(crate) fn wait_for_records(&self, sequence: u64) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if let Phase::Closed { deadline } = state.phase
                && (state.flushed <= sequence || Instant::now() >= deadline)
            {
                return None;
            }
            if state.flushed > sequence {
                return Some(state.flushed);
            }
            state = self.wait(state);
        }
    }

    /// Notes that the master has everything up to `sequence`, which makes room.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        if let Err(error) = self.lock().writer.acknowledge(sequence) {
            self.0.diagnostics.note(chain(&error));
        }
        self.0.changed.notify_all();
    }

    /// Time left for shipping; `None` = without end, because the task runs.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match self.lock().phase {
            Phase::Running | Phase::Draining => None,
            Phase::Closed { deadline } => Some(deadline.saturating_duration_since(Instant::now())),
        }
    }

    /// Waits for `duration`, less if the log is closed meanwhile or its time runs out.
    pub(crate) fn pause(&self, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        let was_closed = matches!(state.phase, Phase::Closed { .. });
        loop {
            let until = match state.phase {
                Phase::Closed { .. } if !was_closed => return,
                Phase::Closed { deadline } => until.min(deadline),
                Phase::Running | Phase::Draining => until,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait_for(state, left);
        }
    }

    /// Adds a record, however often that takes. After the task's end nobody waits: memory takes it, or it is lost.
    fn store<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        record: &Record,
    ) -> MutexGuard<'a, State> {
        loop {
            let Err(error) = state.writer.append(record) else {
                return state;
            };
            if let SpoolError::Encode { .. } = error {
                // It will never be taken.
                self.note(Err(error));
                return state;
            }
            self.refused(&mut state, &error);
            if state.phase != Phase::Running {
                let is_held =
                    state.writer.held_bytes() < MAX_HELD && state.writer.hold(record).is_ok();
                if let Some(outage) = &mut state.outage {
                    outage.lost += u64::from(!is_held);
                }
                return state;
            }
            state = self.wait_for(state, DISK_RETRY);
        }
    }

    /// Puts everything where readers find it, however often that takes; after the task's end it is tried once. The end
    /// of an outage is told then and there.
    fn flush<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            match state.writer.flush() {
                Ok(()) => match state.outage.take() {
                    None => break,
                    Some(outage) => {
                        // Nothing else is in memory: this waits for nothing.
                        self.note(state.writer.hold(&telling(outage)).map(drop));
                        continue;
                    }
                },
                Err(error) => self.refused(&mut state, &error),
            }
            if state.phase != Phase::Running {
                return state;
            }
            state = self.wait_for(state, DISK_RETRY);
        }
        state.flushed = state.writer.last();
        state
    }

    /// The disk takes nothing.
    fn refused(&self, state: &mut State, error: &SpoolError) {
        if state.outage.is_none() {
            self.0.diagnostics.note(chain(error));
            let now = now_micros();
            state.outage = Some(Outage {
                since_micros: now,
                until_micros: now,
                lost: 0,
                cause: root_cause(error),
            });
        }
    }

    fn note(&self, outcome: Result<(), SpoolError>) {
        if let Err(error) = outcome {
            self.0.diagnostics.note(chain(&error));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.0.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        duration: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self.0.changed.wait_timeout(state, duration);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The line that tells of an outage, which ends now.
fn telling(outage: Outage) -> Record {
    let outage = Outage {
        until_micros: now_micros(),
        ..outage
    };
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let seconds = (outage.until_micros - outage.since_micros) as f64 / 1e6;
    let missing = match outage.lost {
        0 => "its output waited meanwhile, and nothing of it is missing".to_owned(),
        lines => format!("{lines} lines of it are missing"),
    };
    Record {
        timestamp_micros: outage.until_micros,
        stdtype: Stdtype::Stderr,
        rank_id: None,
        level: Some(Level::Warning),
        log: format!(
            "the log of this task could not be written to its agent's disk for {seconds:.1} s ({}): {missing}",
            outage.cause
        ),
        outage: Some(outage),
    }
}

/// What the operating system said.
fn root_cause(error: &SpoolError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(capacity: u64) -> (tempfile::TempDir, Log) {
        let dir = tempfile::tempdir().unwrap();
        let diagnostics = Diagnostics::to_file(&dir.path().join("supervisor.log"));
        let log = Log::open(&dir.path().join("spool"), capacity, diagnostics).unwrap();
        (dir, log)
    }

    fn record(text: &str) -> Record {
        Record {
            timestamp_micros: 0,
            stdtype: Stdtype::Stdout,
            rank_id: None,
            level: None,
            log: text.to_owned(),
            outage: None,
        }
    }

    fn full() -> std::fs::File {
        let mut options = std::fs::File::options();
        options.append(true).open("/dev/full").unwrap()
    }

    /// Waits until the disk has refused something.
    fn refused_something(log: &Log) {
        while log.lock().outage.is_none() {
            std::thread::yield_now();
        }
    }

    fn all(log: &Log) -> Vec<Record> {
        let batch = log.reader_after(0).next_batch(100, 1 << 20).unwrap();
        batch.map(|batch| batch.records).unwrap_or_default()
    }

    #[test]
    fn a_full_disk_makes_the_task_wait_and_is_told_of_when_it_has_room() {
        let (_dir, log) = log(1 << 20);
        log.append(&[record("first")]);
        let disk = log.lock().writer.swap_file(full());
        let writer = std::thread::spawn({
            let log = log.clone();
            move || log.append(&[record("second")])
        });
        refused_something(&log);
        assert_eq!(
            log.lock().flushed,
            1,
            "what is on no disk is not said to be there"
        );
        log.lock().writer.swap_file(disk);
        writer.join().unwrap();
        let records = all(&log);
        let texts: Vec<&str> = records.iter().map(|r| r.log.as_str()).collect();
        assert_eq!(texts[..2], ["first", "second"]);
        assert!(
            texts[2].starts_with("the log of this task could not be written")
                && texts[2].ends_with(
                    "(No space left on device (os error 28)): its output waited meanwhile, and nothing of it is missing"
                ),
            "{texts:?}"
        );
        let outage = records[2].outage.clone().unwrap();
        assert_eq!(
            (outage.lost, outage.cause.as_str()),
            (0, "No space left on device (os error 28)")
        );
        assert!(outage.since_micros <= outage.until_micros);
        assert_eq!(
            (log.wait_for_records(0), records.len()),
            (Some(3), 3),
            "told once"
        );
    }

    #[test]
    fn last_lines_beside_a_full_disk_are_held_and_told_of() {
        let (_dir, log) = log(1 << 20);
        log.append(&[record("first")]);
        log.lock().writer.swap_file(full());
        log.begin_drain();
        log.append(&[record("second")]);
        log.append(&[record("third")]);
        log.close(Duration::from_secs(30));
        assert_eq!(log.wait_for_records(0), Some(1));
        assert_eq!(log.wait_for_records(1), None);
        let held = log.unwritten().unwrap();
        assert_eq!(held.first, 2);
        let texts: Vec<&str> = held.records.iter().map(|r| r.log.as_str()).collect();
        assert_eq!(texts[..2], ["second", "third"]);
        assert!(texts[2].contains("nothing of it is missing"), "{texts:?}");
        assert_eq!(texts.len(), 3);
    }

    #[test]
    fn what_not_even_memory_takes_is_counted() {
        let (_dir, log) = log(1 << 20);
        log.lock().writer.swap_file(full());
        log.begin_drain();
        let long = record(&"x".repeat(100_000));
        log.append(&vec![long; 60]);
        log.close(Duration::from_secs(30));
        let held = log.unwritten().unwrap();
        let outage = held.records.last().unwrap().outage.clone().unwrap();
        assert!(outage.lost > 0);
        assert_eq!(
            outage.lost + held.last() - 1,
            60,
            "each line is there or counted"
        );
    }

    #[test]
    fn last_lines_are_in_the_spool_when_the_disk_has_room_in_the_end() {
        let (_dir, log) = log(1 << 20);
        let disk = log.lock().writer.swap_file(full());
        log.begin_drain();
        log.append(&[record("first")]);
        log.lock().writer.swap_file(disk);
        log.close(Duration::from_secs(30));
        assert_eq!(log.unwritten(), None);
        let records = all(&log);
        assert_eq!(records.len(), 2);
        assert!(records[1].outage.is_some());
    }

    #[test]
    fn a_full_spool_makes_the_task_wait_until_the_master_has_taken_lines() {
        let (_dir, log) = log(1);
        log.append(&[record("first")]);
        let (started, has_started) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let log = log.clone();
            move || {
                started.send(()).unwrap();
                log.append(&[record("second")]);
            }
        });
        has_started.recv().unwrap();
        assert!(!writer.is_finished());
        log.acknowledge(1);
        writer.join().unwrap();
        assert_eq!(log.wait_for_records(1), Some(2));
    }

    #[test]
    fn the_end_of_the_task_lets_the_last_lines_into_a_full_spool() {
        let (_dir, log) = log(1);
        log.append(&[record("first")]);
        let writer = std::thread::spawn({
            let log = log.clone();
            move || log.append(&[record("second")])
        });
        log.begin_drain();
        writer.join().unwrap();
        assert_eq!(log.wait_for_records(1), Some(2));
    }

    #[test]
    fn a_closed_log_ends_the_waiting_of_its_shipper() {
        let (_dir, log) = log(1 << 20);
        let shipper = std::thread::spawn({
            let log = log.clone();
            move || log.wait_for_records(0)
        });
        log.close(Duration::from_secs(30));
        assert_eq!(shipper.join().unwrap(), None);
        assert!(log.time_left().is_some());
    }

    #[test]
    fn no_time_left_ends_shipping_with_lines_in_the_spool() {
        let (_dir, log) = log(1 << 20);
        log.append(&[record("kept for the agent")]);
        log.close(Duration::ZERO);
        assert_eq!(log.wait_for_records(0), None);
    }
}
