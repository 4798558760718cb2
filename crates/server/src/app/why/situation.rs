//! Where a job is at, in one word.

use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::task::TaskState;
use det_store::allocations::TaskRow;
use det_store::experiments::ExperimentHead;

use super::{JobExplanation, JobFailure};
use crate::app::jobs::{JobSubject, QueuedJob};

/// Where a job is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSituation<'a> {
    /// Its code runs outside the cluster, and asks for nothing here.
    Unmanaged,
    /// Its code ran outside the cluster and has ended in the state of this name.
    UnmanagedEnded(&'a str),
    /// It asks for nothing until a user runs this command.
    PausedUntil(String),
    /// It has ended.
    Ended {
        /// Name of the state that it ended in.
        state: &'a str,
        /// What failed in it, where it did and that is known.
        failure: Option<&'a JobFailure>,
    },
    /// It ends when its running tasks have ended.
    Stopping,
    /// It is deleted when its running tasks have ended.
    StoppingToDelete,
    /// It has not ended and is not paused: it runs, waits for slots, or asks for nothing at this moment.
    Live {
        /// What of it is in the queue; `None` = nothing at this moment.
        in_queue: Option<InQueue>,
        /// Number of the attempt for which its task waits to be started again; `None` = it is no such task.
        again: Option<i64>,
    },
}

/// How many attempts of a job are in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InQueue {
    /// Attempts that were placed: they have their slots, or need none.
    pub running: usize,
    /// Attempts that wait to be placed.
    pub waiting: usize,
}

impl JobExplanation {
    /// Where the job is at.
    pub fn situation(&self) -> JobSituation<'_> {
        match &self.subject {
            JobSubject::Experiment(row) => self.of_experiment(row),
            JobSubject::Task { row, .. } => self.of_task(row),
        }
    }

    fn of_experiment<'a>(&'a self, row: &'a ExperimentHead) -> JobSituation<'a> {
        match &row.state {
            state if row.unmanaged && !state.is_terminal() => JobSituation::Unmanaged,
            ExperimentState::Paused => {
                JobSituation::PausedUntil(format!("det experiment activate {}", row.id))
            }
            state if row.unmanaged && !state.is_live() => {
                JobSituation::UnmanagedEnded(state.stored_name())
            }
            state if !state.is_live() => self.ended(state.stored_name()),
            ExperimentState::Stopping(_) => JobSituation::Stopping,
            ExperimentState::StoppingToDelete(_) => JobSituation::StoppingToDelete,
            _ => self.live(None),
        }
    }

    fn of_task<'a>(&'a self, row: &'a TaskRow) -> JobSituation<'a> {
        match row.state {
            TaskState::Suspended => JobSituation::PausedUntil(row.resume_command()),
            TaskState::Queued => self.live((row.attempts > 1).then_some(row.attempts)),
            TaskState::Running | TaskState::Stopping(_) => self.live(None),
            TaskState::Ended(_) => self.ended(end_of(row)),
        }
    }

    fn ended<'a>(&'a self, state: &'a str) -> JobSituation<'a> {
        JobSituation::Ended {
            state,
            failure: self.failure.as_ref(),
        }
    }

    fn live(&self, again: Option<i64>) -> JobSituation<'_> {
        let in_queue = self.entry.as_ref().map(|entry| {
            let waiting = QueuedJob::waiting(entry).count();
            InQueue {
                running: entry.allocations.len() - waiting,
                waiting,
            }
        });
        JobSituation::Live { in_queue, again }
    }
}

/// The word for the end of a task. The lists of commands and services have one for all ends, and how one ended besides.
fn end_of(row: &TaskRow) -> &str {
    match row.kind.collection() {
        Some(_) => "TERMINATED",
        None => row.state.name(),
    }
}
