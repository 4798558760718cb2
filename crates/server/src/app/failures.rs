//! Why a trial or a task has failed, as the rows have it: the reason of its last attempt, and the last lines of its code.

use std::collections::HashMap;

use det_ids::{AllocationId, EventId, TaskId};
use det_lifecycle::allocation::{AllocationExit, AllocationState};
use det_lifecycle::container::ObservedState;
use det_lifecycle::record::{RecordedState, Subject};
use det_lifecycle::state_name::StateName;
use det_lifecycle::task::{TaskEnd, TaskState};
use det_lifecycle::trial::TrialState;
use det_store::allocations::{AllocationRow, ContainerRow, TaskRow};
use det_store::events::EventRow;
use det_store::task_documents::LaunchedTask;
use det_store::trials::TrialRow;
use det_store::{Conn, StoreError, allocations, events};

/// Attempts that are looked through, newest first, for one that failed.
const MOST_ATTEMPTS: u32 = 8;
/// Events that are looked through for a reason at a time, and their bytes.
const EVENTS: (i64, i64) = (1_000, 1 << 20);
/// Pages of events that are looked through at most.
const MOST_PAGES: usize = 16;

/// How a trial or a task failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What failed, a sentence for users.
    pub reason: String,
    /// The attempt that failed; `None` = none is known.
    pub allocation_id: Option<AllocationId>,
    /// When that attempt ended, or the trial where no attempt is known, microseconds; `None` = not known.
    pub ended_at: Option<i64>,
    /// The last lines of its code, shortened; of a gang those of the rank that failed first.
    pub last_lines: Vec<String>,
}

impl Failure {
    /// The failure as lists show it: with the last line alone.
    pub(crate) fn in_list(mut self) -> Self {
        let last = self.last_lines.pop();
        self.last_lines = last.into_iter().collect();
        self
    }

    fn of_attempt(row: AllocationRow, reason: String, last_lines: Vec<String>) -> Self {
        Self {
            reason,
            allocation_id: Some(row.id),
            ended_at: row.ended_at,
            last_lines,
        }
    }
}

/// Why a trial has failed, or why it was last started again after a failure. `None` = it has done neither, or the rows have
/// no reason.
pub(crate) async fn of_trial(
    conn: &mut Conn<'_>,
    trial: &TrialRow,
) -> Result<Option<Failure>, StoreError> {
    let has_failed = trial.state == TrialState::Errored;
    if !has_failed && (trial.ended_at.is_some() || trial.restarts == 0) {
        return Ok(None);
    }
    let task = allocations::find_task(conn, &trial.task_id).await?;
    let attempt = match task {
        Some(task) => last_failed(conn, &task).await?,
        None => None,
    };
    if !has_failed {
        return Ok(attempt);
    }
    let recorded = reason_in_record(conn, &Subject::Trial(trial.id)).await?;
    Ok(match (recorded, attempt) {
        (Some(reason), Some(attempt)) => Some(Failure { reason, ..attempt }),
        (Some(reason), None) => Some(Failure {
            reason,
            allocation_id: None,
            ended_at: trial.ended_at,
            last_lines: Vec::new(),
        }),
        (None, attempt) => attempt,
    })
}

/// How the last attempt of a task that has failed ended. `None` = it has not failed, or the rows have no reason.
pub(crate) async fn of_task(
    conn: &mut Conn<'_>,
    task: &TaskRow,
) -> Result<Option<Failure>, StoreError> {
    let failed = task.state == TaskState::Ended(TaskEnd::Failed);
    let (true, Ok(number)) = (failed, u32::try_from(task.attempts)) else {
        return Ok(None);
    };
    let Some(last) = allocations::find(conn, &task.id.allocation(number)).await? else {
        return Ok(None);
    };
    let Some(reason) = last.exit_reason.clone() else {
        return Ok(None);
    };
    let containers = allocations::containers(conn, &last.id).await?;
    let lines = last_lines(task.logs_deleted_at, &containers);
    Ok(Some(Failure::of_attempt(last, reason, lines)))
}

/// How those of these launched tasks that have failed did, in one query however many they are. `newest` has the newest
/// attempt of each.
pub(crate) async fn of_launched(
    conn: &mut Conn<'_>,
    tasks: &[LaunchedTask],
    newest: &HashMap<TaskId, AllocationRow>,
) -> Result<HashMap<TaskId, Failure>, StoreError> {
    let failed = tasks.iter().filter_map(|task| {
        let attempt = newest.get(&task.id)?;
        let reason = attempt.exit_reason.clone()?;
        let failed = task.state == TaskState::Ended(TaskEnd::Failed);
        failed.then_some((task, attempt, reason))
    });
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<AllocationId> = failed.iter().map(|(_, row, _)| row.id.clone()).collect();
    let containers = allocations::containers_of(conn, &ids).await?;
    let mut of_attempts: HashMap<&AllocationId, &[ContainerRow]> = HashMap::new();
    for of_one in containers.chunk_by(|a, b| a.allocation_id == b.allocation_id) {
        if let [first, ..] = of_one {
            of_attempts.insert(&first.allocation_id, of_one);
        }
    }
    let failures = failed.into_iter().map(|(task, attempt, reason)| {
        let containers = of_attempts.get(&attempt.id).copied().unwrap_or_default();
        let lines = last_lines(task.logs_deleted_at, containers);
        let failure = Failure::of_attempt(attempt.clone(), reason, lines);
        (task.id.clone(), failure)
    });
    Ok(failures.collect())
}

/// The newest attempt of a task that ended in a failure.
async fn last_failed(conn: &mut Conn<'_>, task: &TaskRow) -> Result<Option<Failure>, StoreError> {
    let newest = u32::try_from(task.attempts).unwrap_or(0);
    for number in (1..=newest).rev().take(MOST_ATTEMPTS as usize) {
        let Some(row) = allocations::find(conn, &task.id.allocation(number)).await? else {
            continue;
        };
        let failed = matches!(
            row.state,
            AllocationState::Terminated {
                exit: AllocationExit::Failed { .. } | AllocationExit::Infrastructure { .. }
            }
        );
        if let (true, Some(reason)) = (failed, row.exit_reason.clone()) {
            let containers = allocations::containers(conn, &row.id).await?;
            let lines = last_lines(task.logs_deleted_at, &containers);
            return Ok(Some(Failure::of_attempt(row, reason, lines)));
        }
    }
    Ok(None)
}

/// The last lines of the container that failed first; none of a log that was deleted.
fn last_lines(logs_deleted_at: Option<i64>, containers: &[ContainerRow]) -> Vec<String> {
    if logs_deleted_at.is_some() {
        return Vec::new();
    }
    let causes = containers.iter().filter_map(|row| match &row.observed {
        Some(ObservedState::Terminated { cause, .. }) if !row.daemon => cause.as_ref(),
        _ => None,
    });
    let first = causes.min_by_key(|cause| cause.at);
    first.map_or_else(Vec::new, |cause| cause.last_lines.clone())
}

/// Why something began to fail, as the record has it: the last time that it did. `None` = the record has no reason.
pub(crate) async fn reason_in_record(
    conn: &mut Conn<'_>,
    subject: &Subject,
) -> Result<Option<String>, StoreError> {
    let (mut found, mut after) = (None, EventId::default());
    for _ in 0..MOST_PAGES {
        let events = events::list(conn, after, Some(subject), EVENTS.0, EVENTS.1).await?;
        let Some(last) = events.last() else {
            break;
        };
        after = last.id;
        for event in events {
            if begins_to_fail(&event) {
                found = event.reason.filter(|reason| !reason.is_empty());
            }
        }
    }
    Ok(found)
}

/// Whether an event of an experiment or a trial is that it began to fail.
fn begins_to_fail(event: &EventRow) -> bool {
    const STOPPING: RecordedState = RecordedState::Work(StateName::StoppingError);
    const ENDED: RecordedState = RecordedState::Work(StateName::Error);
    // What was stopping has its reason already.
    event.to == Some(STOPPING) || (event.to == Some(ENDED) && event.from != Some(STOPPING))
}
