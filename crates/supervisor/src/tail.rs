//! The last lines of a task's output, and what follows from them about what failed first.
//!
//! When one process of a training fails, the others fail after it because it is gone. Launchers of this project's package
//! leave a file that names the first; of others what torch's launcher writes at its end is taken, else the first traceback.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::torch_launcher::FirstFailure;
use det_spool::{LogStream, Record};
use det_taskspec::sandbox::{FAILED_RANK_FILE, FailedRank, MOST_OF_FAILED_RANK};
use det_taskspec::{ContainerExit, ExitCause};

/// Lines that are kept of each rank, and of all together.
const KEPT: usize = ExitCause::MOST_LINES;
/// Ranks whose lines are kept; those of others count among all.
const MOST_RANKS: usize = 64;
/// The line with which Python begins to show an error that nothing has caught.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// How long before the end of its container a rank may have shown the error that ended it, microseconds: launchers first end
/// the other ranks. What has shown one before, and nothing since, may still have gone on.
const ENDS_WITHIN: i64 = 60 * 1_000_000;
/// How much earlier than the errors of those that waited for it a rank counts as failed that ended without one, microseconds:
/// on other hosts they may come a little earlier than here, and clocks differ.
const BEFORE_OTHERS: i64 = 1_000_000;

/// The end of a task's output. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    all: VecDeque<String>,
    of_ranks: BTreeMap<u32, VecDeque<String>>,
    /// The last traceback of each rank.
    tracebacks: BTreeMap<u32, Traceback>,
    /// What torch's launcher has written of the rank that it saw fail first.
    first_failure: FirstFailure,
}

/// An error that Python has shown.
#[derive(Debug, Clone, Copy)]
struct Traceback {
    /// When its first line was written, microseconds.
    at: i64,
    end: TracebackEnd,
}

/// What has followed the first line of a traceback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TracebackEnd {
    /// Frames alone: the error is still to come.
    Open,
    /// The error as well, and nothing after it.
    Last,
    /// Other lines: the error was caught, or its message has several lines.
    Followed,
}

impl Traceback {
    /// Exit code of the process, where the traceback shows it: Python ends with 1 after an error that nothing has caught.
    fn exit_code(self) -> Option<i32> {
        (self.end == TracebackEnd::Last).then_some(1)
    }

    /// Takes the rank's next line.
    fn see(&mut self, text: &str) {
        self.end = match self.end {
            TracebackEnd::Open if text.starts_with(' ') => TracebackEnd::Open,
            TracebackEnd::Open => TracebackEnd::Last,
            TracebackEnd::Last | TracebackEnd::Followed => TracebackEnd::Followed,
        };
    }
}

impl Tail {
    /// Adds lines, the oldest first.
    pub(crate) fn see(&self, records: &[Record]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            lines.see(record);
        }
    }

    /// What is known of how the task failed at `now`, microseconds; `None` if it did not, or not by itself.
    pub(crate) fn cause(
        &self,
        exit: &ContainerExit,
        run_dir: &Path,
        now: i64,
    ) -> Option<ExitCause> {
        match exit {
            ContainerExit::Exited { code: 1.. } | ContainerExit::Signaled { .. } => {}
            ContainerExit::Exited { .. }
            | ContainerExit::SetupFailed { .. }
            | ContainerExit::StartFailed { .. }
            | ContainerExit::Lost { .. }
            | ContainerExit::Killed => return None,
        }
        let failed = det_spool::read_plain(&run_dir.join(FAILED_RANK_FILE), MOST_OF_FAILED_RANK)
            .ok()
            .and_then(|text| serde_json::from_slice::<FailedRank>(&text).ok());
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(lines.cause(failed, now))
    }
}

impl Lines {
    fn see(&mut self, record: &Record) {
        let text = record.log.trim_end();
        if text.is_empty() {
            return;
        }
        push(&mut self.all, text);
        let Some(rank) = record.rank_id else {
            self.first_failure.see(text);
            return;
        };
        if !self.of_ranks.contains_key(&rank) && self.of_ranks.len() >= MOST_RANKS {
            return;
        }
        push(self.of_ranks.entry(rank).or_default(), text);
        if record.stdtype == LogStream::Stderr && text == TRACEBACK {
            // One that did no harm may have been shown before.
            let began = Traceback {
                at: record.timestamp_micros,
                end: TracebackEnd::Open,
            };
            self.tracebacks.insert(rank, began);
        } else if let Some(traceback) = self.tracebacks.get_mut(&rank) {
            traceback.see(text);
        }
    }

    fn cause(&self, failed: Option<FailedRank>, now: i64) -> ExitCause {
        // One that has written nothing was ended from outside: what the others wrote is what follows from that.
        if let Some(failed) = failed {
            return failed.into();
        }
        let tracebacks = self.tracebacks.iter();
        let first = tracebacks.min_by_key(|(rank, traceback)| (traceback.at, **rank));
        let lowest = self.of_ranks.keys().next().copied();
        if let Some((rank, code)) = self.first_failure.found(lowest)
            && let Some(lines) = self.of_ranks.get(&rank)
            && !self.tracebacks.contains_key(&rank)
        {
            // It ended in silence; the errors of the others follow from that.
            return ExitCause {
                at: first.map_or(now, |(_, traceback)| traceback.at - BEFORE_OTHERS),
                rank: Some(rank),
                exit_code: Some(code),
                last_lines: lines.iter().cloned().collect(),
            };
        }
        let own = first.and_then(|(rank, _)| self.of_ranks.get(rank));
        ExitCause {
            at: first.map_or(now, |(_, traceback)| traceback.at),
            rank: first.map(|(rank, _)| *rank),
            exit_code: first
                .filter(|(_, traceback)| now.saturating_sub(traceback.at) <= ENDS_WITHIN)
                .and_then(|(_, traceback)| traceback.exit_code()),
            last_lines: own.unwrap_or(&self.all).iter().cloned().collect(),
        }
    }
}

fn push(lines: &mut VecDeque<String>, text: &str) {
    if lines.len() == KEPT {
        lines.pop_front();
    }
    lines.push_back(ExitCause::shortened(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64, rank: Option<u32>, text: &str) -> Record {
        Record {
            timestamp_micros: at,
            stdtype: LogStream::Stderr,
            rank_id: rank,
            level: None,
            log: text.to_owned(),
            outage: None,
        }
    }

    fn cause(records: &[Record], file: Option<&str>) -> ExitCause {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("train")).unwrap();
        if let Some(text) = file {
            std::fs::write(dir.path().join(FAILED_RANK_FILE), text).unwrap();
        }
        let tail = Tail::default();
        tail.see(records);
        let exit = ContainerExit::Exited { code: 1 };
        tail.cause(&exit, dir.path(), 99).unwrap()
    }

    fn two_failures() -> Vec<Record> {
        vec![
            line(1, Some(2), "step 1"),
            line(2, Some(3), TRACEBACK),
            line(3, Some(3), "ValueError: boom"),
            line(4, Some(2), TRACEBACK),
            line(5, Some(2), "RuntimeError: Connection closed by peer"),
            line(6, None, "SignalException: got signal: 15"),
        ]
    }

    #[test]
    fn the_first_traceback_names_the_rank_and_its_lines() {
        let found = cause(&two_failures(), None);
        assert_eq!(
            (found.at, found.rank, found.exit_code),
            (2, Some(3), Some(1))
        );
        assert_eq!(found.last_lines, [TRACEBACK, "ValueError: boom"]);
    }

    #[test]
    fn an_error_that_was_caught_shows_no_exit_code() {
        for (after, exit_code) in [
            (
                &["  File \"ddp.py\", line 7", "ValueError: boom"][..],
                Some(1),
            ),
            (&["  File \"ddp.py\", line 7"], None),
            (&["ValueError: boom", "goes on with the next batch"], None),
            (
                &["ValueError: boom", TRACEBACK, "RuntimeError: twice"],
                Some(1),
            ),
        ] {
            let mut records = vec![line(1, Some(3), TRACEBACK)];
            let rest = (2..).zip(after).map(|(at, text)| line(at, Some(3), text));
            records.extend(rest);
            assert_eq!(cause(&records, None).exit_code, exit_code, "{after:?}");
        }
        // The rank goes on without a word: another one failed.
        let tail = Tail::default();
        tail.see(&[
            line(1, Some(3), TRACEBACK),
            line(2, Some(3), "ValueError: boom"),
        ]);
        let exit = ContainerExit::Exited { code: 241 };
        let later = tail.cause(&exit, Path::new("/nonexistent"), 2 + ENDS_WITHIN);
        assert_eq!(later.unwrap().exit_code, None);
    }

    #[test]
    fn what_the_launcher_has_left_counts_first() {
        let found = cause(
            &two_failures(),
            Some(r#"{"rank": 2, "exit_code": 7, "failed_at": 4, "last_lines": ["step 1"]}"#),
        );
        assert_eq!(
            (found.at, found.rank, found.exit_code),
            (4, Some(2), Some(7))
        );
        assert_eq!(found.last_lines, ["step 1"]);
        // Of one that wrote nothing there are no lines: those of others are what followed.
        let silent = cause(
            &two_failures(),
            Some(r#"{"rank": 5, "exit_code": 137, "failed_at": 4}"#),
        );
        assert!(silent.last_lines.is_empty());
        let unreadable = cause(&two_failures(), Some("{"));
        assert_eq!(unreadable.rank, Some(3));
    }

    #[test]
    fn a_rank_that_ended_in_silence_is_the_one_that_torchs_launcher_names() {
        let mut records = two_failures();
        records.insert(0, line(0, Some(1), "about to fail"));
        let block = [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "Root Cause (first observed failure):",
            "[0]:",
            "  rank      : 1 (local_rank: 0)",
            "  exitcode  : 9 (pid: 4711)",
        ];
        records.extend(block.map(|text| line(7, None, text)));
        let found = cause(&records, None);
        assert_eq!(
            (found.at, found.rank, found.exit_code),
            (2 - BEFORE_OTHERS, Some(1), Some(9))
        );
        assert_eq!(found.last_lines, ["about to fail"]);
        // One with an error of its own is found by that, with its time.
        records.push(line(8, Some(1), TRACEBACK));
        assert_eq!(cause(&records, None).at, 2);
    }

    #[test]
    fn without_ranks_the_last_lines_of_all_are_kept_shortened() {
        let many: Vec<Record> = (0..30)
            .map(|n| line(n, None, &format!("{n} {}", "x".repeat(2000))))
            .collect();
        let found = cause(&many, None);
        assert_eq!((found.at, found.rank), (99, None));
        assert_eq!(found.last_lines.len(), KEPT);
        assert!(found.last_lines.iter().all(|line| line.len() < 500));
        assert!(found.last_lines[KEPT - 1].starts_with("29 "));
    }

    #[test]
    fn a_good_end_has_no_cause() {
        let tail = Tail::default();
        let exit = ContainerExit::Exited { code: 0 };
        assert_eq!(tail.cause(&exit, Path::new("/nonexistent"), 1), None);
    }
}
