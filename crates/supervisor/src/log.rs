//! The task's log on its way through the spool: who writes waits for room, who ships waits for lines.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use det_spool::{Level, Reader, Record, SpoolError, Stdtype, Writer};

use crate::clock::now_micros;
use crate::failure::chain;
use crate::report::Diagnostics;

/// How long to wait before trying a disk again that took no line.
const DISK_RETRY: Duration = Duration::from_millis(500);

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
            state = self.insist(state, |writer| writer.append(record).map(drop));
        }
        state = self.insist(state, Writer::flush);
        state.flushed = state.writer.last();
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
                log: line.replace('\0', ""),
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
        if let Err(error) = state.writer.sync() {
            self.0.diagnostics.note(chain(&error));
        }
        self.0.changed.notify_all();
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

    /// Does `write` until it succeeds; after the task's end, once.
    fn insist<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut write: impl FnMut(&mut Writer) -> Result<(), SpoolError>,
    ) -> MutexGuard<'a, State> {
        loop {
            let Err(error) = write(&mut state.writer) else {
                return state;
            };
            self.0.diagnostics.note(chain(&error));
            if state.phase != Phase::Running {
                return state;
            }
            state = self.wait_for(state, DISK_RETRY);
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
        }
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
