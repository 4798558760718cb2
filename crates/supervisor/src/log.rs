//! The task's log, stored in the spool: the writer waits while the spool is full, the shipper waits for lines.
//!
//! A full or failing disk makes the task wait too, and writes are tried again until they succeed. A line of the log
//! then reports since when, and is sent to the master with details, which become an event of the task. After the task's
//! end there is no wait: later lines are held in memory, up to [`MAX_HELD`] bytes, and shipped from there if necessary.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use det_spool::{
    Batch, LogLevel, LogStream, MAX_BATCH_BYTES, Outage, Reader, Record, SpoolError, Writer,
};

use crate::clock::now_micros;
use crate::failure::chain;
use crate::report::Diagnostics;

/// Time until a failed write is tried again.
const DISK_RETRY: Duration = Duration::from_millis(500);
/// The most bytes held in memory, after the task's end, while the disk is full. One batch.
const MAX_HELD: usize = MAX_BATCH_BYTES;

/// The log of the task. Clones are the same log.
#[derive(Debug, Clone)]
pub(crate) struct Log(Arc<SharedLog>);

#[derive(Debug)]
struct SharedLog {
    dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    diagnostics: Diagnostics,
    /// Whether lines are also printed: in pods, whose output clients of Kubernetes read.
    prints: bool,
}

#[derive(Debug)]
struct State {
    writer: Writer,
    /// Sequence number of the last record that readers can see.
    flushed: u64,
    phase: LogPhase,
    /// The current outage of the disk; `None` = the disk works.
    outage: Option<Outage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogPhase {
    /// The task runs: a full spool or disk makes it wait.
    Running,
    /// The task has ended: the rest of its output is stored even if the spool is full.
    Draining,
    /// No more records follow; shipping continues until the deadline at most.
    Closed { deadline: Instant },
}

impl Log {
    /// Opens the spool in `dir`.
    pub(crate) fn open(
        dir: &Path,
        capacity_bytes: u64,
        diagnostics: Diagnostics,
        prints: bool,
    ) -> Result<Self, SpoolError> {
        let writer = Writer::open(dir, capacity_bytes)?;
        let flushed = writer.last();
        Ok(Self(Arc::new(SharedLog {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                writer,
                flushed,
                phase: LogPhase::Running,
                outage: None,
            }),
            changed: Condvar::new(),
            diagnostics,
            prints,
        })))
    }

    /// Stores records. While the task runs, this waits for free space, and with it the task.
    pub(crate) fn append(&self, records: &[Record]) {
        let mut state = self.lock();
        for record in records {
            while state.phase == LogPhase::Running && state.writer.is_full() {
                state = self.wait(state);
            }
            state = self.store(state, record);
        }
        drop(self.flush(state));
        self.0.changed.notify_all();
        if self.0.prints {
            let lines: String = records.iter().map(|it| format!("{}\n", it.log)).collect();
            // The log that counts is in the spool.
            drop(std::io::stdout().write_all(lines.as_bytes()));
        }
    }

    /// Adds a message for users to the task's log.
    pub(crate) fn add_message(&self, level: LogLevel, text: &str) {
        let records: Vec<Record> = text
            .lines()
            .map(|line| Record {
                timestamp_micros: now_micros(),
                stdtype: LogStream::Stderr,
                rank_id: None,
                level: Some(level),
                log: line.to_owned(),
                outage: None,
            })
            .collect();
        self.append(&records);
    }

    /// The task has ended: from now on no write waits for free space.
    pub(crate) fn begin_drain(&self) {
        self.lock().phase = LogPhase::Draining;
        self.0.changed.notify_all();
    }

    /// No more records follow, and shipping may continue for `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        let mut state = self.lock();
        state.phase = LogPhase::Closed {
            deadline: Instant::now() + patience,
        };
        state = self.flush(state);
        if let Some(outage) = state.outage.take() {
            // There is no wait for its end: a record in memory reports it.
            self.record_result(state.writer.hold(&outage_record(outage)).map(drop));
        }
        self.record_result(state.writer.sync());
        self.0.changed.notify_all();
    }

    /// The records that could not be written to disk, once no more follow.
    pub(crate) fn unwritten(&self) -> Option<Batch> {
        let state = self.lock();
        // The disk may have space by now; then the spool is complete and the agent can ship the rest.
        let state = self.flush(state);
        state.writer.held()
    }

    /// A reader of all records that the master does not have.
    pub(crate) fn reader(&self) -> Result<Reader, SpoolError> {
        Reader::open(&self.0.dir)
    }

    /// A reader of what follows record `sequence`.
    pub(crate) fn reader_after(&self, sequence: u64) -> Reader {
        Reader::after(&self.0.dir, sequence)
    }

    /// Waits until there are records after `sequence` and returns the last one; `None` if there will be none, or if the
    /// time for shipping is over.
    pub(crate) fn wait_for_records(&self, sequence: u64) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if let LogPhase::Closed { deadline } = state.phase
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

    /// Records that the master has everything up to `sequence`, which frees space.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        if let Err(error) = self.lock().writer.acknowledge(sequence) {
            self.0.diagnostics.note(chain(&error));
        }
        self.0.changed.notify_all();
    }

    /// Time left for shipping; `None` = no limit, because the task runs.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match self.lock().phase {
            LogPhase::Running | LogPhase::Draining => None,
            LogPhase::Closed { deadline } => {
                Some(deadline.saturating_duration_since(Instant::now()))
            }
        }
    }

    /// Waits for `duration`, or until the log is closed or its time for shipping is over.
    pub(crate) fn pause(&self, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        let was_closed = matches!(state.phase, LogPhase::Closed { .. });
        loop {
            let until = match state.phase {
                LogPhase::Closed { .. } if !was_closed => return,
                LogPhase::Closed { deadline } => until.min(deadline),
                LogPhase::Running | LogPhase::Draining => until,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait_for(state, left);
        }
    }

    /// Adds a record; retries until that succeeds. After the task's end it does not wait: the record is kept in memory,
    /// or dropped if that is full.
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
                // It can never be stored.
                self.record_result(Err(error));
                return state;
            }
            self.record_disk_error(&mut state, &error);
            if state.phase != LogPhase::Running {
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

    /// Flushes all records so that readers see them; retries until that succeeds, but after the task's end tries
    /// only once.
    /// Reports the end of an outage.
    fn flush<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            match state.writer.flush() {
                Ok(()) => match state.outage.take() {
                    None => break,
                    Some(outage) => {
                        // Nothing else is in memory, so this does not wait.
                        self.record_result(state.writer.hold(&outage_record(outage)).map(drop));
                        continue;
                    }
                },
                Err(error) => self.record_disk_error(&mut state, &error),
            }
            if state.phase != LogPhase::Running {
                return state;
            }
            state = self.wait_for(state, DISK_RETRY);
        }
        state.flushed = state.writer.last();
        state
    }

    /// Records that a write failed.
    fn record_disk_error(&self, state: &mut State, error: &SpoolError) {
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

    fn record_result(&self, outcome: Result<(), SpoolError>) {
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

/// The record that reports an outage, which ends now.
fn outage_record(outage: Outage) -> Record {
    let outage = Outage {
        until_micros: now_micros(),
        ..outage
    };
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let seconds = (outage.until_micros - outage.since_micros) as f64 / 1e6;
    let missing = match outage.lost {
        0 => "its output waited meanwhile, and nothing of it is missing".to_owned(),
        1 => "1 line of it is missing".to_owned(),
        lines => format!("{lines} lines of it are missing"),
    };
    Record {
        timestamp_micros: outage.until_micros,
        stdtype: LogStream::Stderr,
        rank_id: None,
        level: Some(LogLevel::Warning),
        log: format!(
            "the log of this task could not be written to its agent's disk for {seconds:.1} s ({}): {missing}",
            outage.cause
        ),
        outage: Some(outage),
    }
}

/// The error of the operating system.
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
        let log = Log::open(&dir.path().join("spool"), capacity, diagnostics, false).unwrap();
        (dir, log)
    }

    fn record(text: &str) -> Record {
        Record {
            timestamp_micros: 0,
            stdtype: LogStream::Stdout,
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

    /// Waits until a write has failed.
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
    fn a_full_disk_makes_the_task_wait_and_is_logged_when_space_is_free() {
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
            "what is on no disk is not reported as stored"
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
            "logged once"
        );
    }

    #[test]
    fn last_lines_on_a_full_disk_are_held_in_memory_and_the_outage_is_logged() {
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
    fn lines_that_memory_cannot_hold_are_counted() {
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
            "each line is kept or counted"
        );
    }

    #[test]
    fn last_lines_are_in_the_spool_if_the_disk_has_space_in_the_end() {
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
