//! Tasks, their allocations, the containers of these, and in `allocations/tokens.rs` the containers' tokens.

mod tokens;

use std::collections::BTreeSet;
use std::sync::Arc;

use det_ids::{
    AllocationId, ContainerId, ExperimentId, JobId, LogLineId, PlaceId, RunId, SlotId, TaskId,
    TrialId, UserId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::task::{Demand, TaskState};
use det_scheduler::WaitExplanation;
use det_taskspec::{TaskKind, TaskLabel};

use crate::query::{Query, Value, pieces};
use crate::unit::{TaskCell, save_rows};
use crate::{Conn, StoreError, column};

pub use tokens::{TokenOwner, delete_expired_tokens, expire_tokens, find_token, insert_token};
pub(crate) use tokens::{save_expiries, save_tokens};

/// A task: what runs containers, attempt by attempt.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct TaskRow {
    /// Id of the task: of a trial `<experiment>.<request id>`, with `-<n>` for its later tasks; of any other a UUID.
    pub id: TaskId,
    /// What kind of task it is.
    #[row(word)]
    pub kind: TaskKind,
    /// Id of the job that the task belongs to.
    pub job_id: JobId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// Number of the trial's experiment; `None` = the task is no trial's.
    pub experiment_id: Option<ExperimentId>,
    /// Number of the trial; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// Where it is in its life.
    #[row(json = "machine")]
    pub state: TaskState,
    /// What each of its attempts asks for; `None` = what its experiment's configuration asks for.
    #[row(json)]
    pub demand: Option<Demand>,
    /// How many allocations it has had so far, the live one included.
    pub attempts: i64,
    /// Allocations in a row that were lost, or could not be started, for a reason of their places, where the task is started
    /// again for that.
    pub losses: i64,
    /// Lines in its log; the id of the newest one.
    pub log_lines: i64,
    /// When it was added, microseconds.
    pub created_at: i64,
    /// When it ended, microseconds; `None` while it may run again.
    pub ended_at: Option<i64>,
    /// When its log was deleted because it had been kept long enough; `None` = it was not, or lines came since.
    pub logs_deleted_at: Option<i64>,
    /// What log policies found in its log; `None` = nothing yet.
    #[row(json)]
    pub log_findings: Option<LogFindings>,
    /// Days that its log is kept after its end: -1 = for ever, `None` = as long as the cluster's configuration has it.
    pub log_retention_days: Option<i64>,
}

impl TaskRow {
    /// What the task is called where users read it.
    pub fn label(&self) -> TaskLabel<'_> {
        TaskLabel::new(self.kind, &self.id, self.trial_id.zip(self.experiment_id))
    }

    /// The command by which a user lets it go on while it is paused: a trial's task follows its experiment.
    pub fn resume_command(&self) -> String {
        match (self.kind, self.experiment_id) {
            (TaskKind::Trial, Some(experiment)) => format!("det experiment activate {experiment}"),
            _ => format!("det task unpause {}", self.id),
        }
    }
}

/// One attempt's claim on slots, with the kind and the experiment of its task.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct AllocationRow {
    /// Its id: `TASK.N`, the task and the number of the attempt from 1.
    pub id: AllocationId,
    /// Id of the task that it runs.
    pub task_id: TaskId,
    /// Kind of the task that it runs.
    #[row(word)]
    pub kind: TaskKind,
    /// Id of the job that the task belongs to.
    pub job_id: JobId,
    /// Its task's experiment, for trials.
    pub experiment_id: Option<ExperimentId>,
    /// Number of the task's trial; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// The trial's run that it is.
    pub run_id: RunId,
    /// The state of its life cycle. Its name is stored in the column `state` too, for queries.
    #[row(json = "machine")]
    pub state: AllocationState,
    /// Pool it waits or runs in.
    pub resource_pool: String,
    /// Slots that it asks for or holds; 0 = a container without slots.
    pub slots: i64,
    /// Whether all slots must be on one place.
    pub single_place: bool,
    /// Whether it may be preempted.
    pub preemptible: bool,
    /// When it was requested, microseconds.
    pub requested_at: i64,
    /// It is not placed before this time, microseconds; `None` = it may be at once.
    pub not_before: Option<i64>,
    /// When it was given slots.
    pub placed_at: Option<i64>,
    /// When its first container ran.
    pub started_at: Option<i64>,
    /// When its last container ended.
    pub ended_at: Option<i64>,
    /// When it is killed if it has not ended after a preemption, microseconds.
    pub preempt_deadline: Option<i64>,
    /// The allocation that its slots go to once it has stopped.
    pub preempted_for: Option<AllocationId>,
    /// Which set of training ports its containers use; `None` = none.
    pub port_step: Option<i64>,
    /// Port of the service that its kind of task brings; 0 = none was free on its host, `None` = it brings none, is not placed,
    /// or an older master placed it, with the port of the task's document.
    pub service_port: Option<i64>,
    /// The namespace that its workspace was bound to when it was placed, in the cluster of its pool's manager; `None` = it was
    /// not bound, and its containers are in that of its pool.
    pub namespace: Option<String>,
    /// How it ended, as a sentence for users.
    pub exit_reason: Option<String>,
    /// Exit code of the chief.
    pub status_code: Option<i64>,
    /// Places that it must not run on; `None` = it may run on any.
    #[row(json)]
    pub excluded_places: Option<BTreeSet<PlaceId>>,
    /// Why it waits; `None` = it does not wait, or the scheduler has not looked at it yet.
    #[row(json)]
    pub wait_reason: Option<WaitExplanation>,
    /// Since when for that reason.
    pub wait_since: Option<i64>,
}

impl AllocationRow {
    /// What the task is called where users read it.
    pub fn label(&self) -> TaskLabel<'_> {
        TaskLabel::new(
            self.kind,
            &self.task_id,
            self.trial_id.zip(self.experiment_id),
        )
    }
}

/// One container of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct ContainerRow {
    /// UUID; the wire's resource id.
    pub id: ContainerId,
    /// Id of the allocation that it belongs to.
    pub allocation_id: AllocationId,
    /// The place that it runs on: an agent's id.
    pub place_id: PlaceId,
    /// Its number in the allocation; 0 is the chief.
    pub member: i64,
    /// Slots of its place that it holds while it has not ended; empty = a container without slots.
    #[row(json)]
    pub slots: BTreeSet<SlotId>,
    /// What is to become of it.
    #[row(word)]
    pub desired: DesiredState,
    /// What was last observed of it; `None` = nothing yet.
    #[row(json)]
    pub observed: Option<ObservedState>,
    /// A helper that does not keep the allocation alive.
    pub daemon: bool,
    /// Whether it has called for the rendezvous.
    pub joined: bool,
    /// The accelerators that it reported, JSON.
    pub accelerators: Option<String>,
    /// When it ended, microseconds; `None` while its slots are held.
    pub ended_at: Option<i64>,
}

/// The text of a query for allocations with this condition and order.
macro_rules! select {
    ($tail:literal) => {
        concat!(
            "SELECT a.*, t.kind, t.experiment_id FROM allocations a JOIN tasks t ON t.id = a.task_id",
            $tail
        )
    };
}

/// Writes new and changed tasks.
pub(crate) async fn save_tasks(
    conn: &mut Conn<'_>,
    rows: &[Arc<TaskRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO tasks",
        (
            id: "text" = |row| &row.id,
            kind: "text" = |row| row.kind.name(),
            job_id: "text" = |row| &row.job_id,
            owner_id: "bigint" = |row| row.owner_id,
            experiment_id: "bigint" = |row| row.experiment_id,
            trial_id: "bigint" = |row| row.trial_id,
            machine: "text" = |row| column::text(&row.state),
            demand: "text" = |row| row.demand.as_ref().map(column::text),
            attempts: "bigint" = |row| row.attempts,
            losses: "bigint" = |row| row.losses,
            log_lines: "bigint" = |row| row.log_lines,
            created_at: "bigint" = |row| row.created_at,
            ended_at: "bigint" = |row| row.ended_at,
            logs_deleted_at: "bigint" = |row| row.logs_deleted_at,
            log_findings: "text" = |row| row.log_findings.as_ref().map(column::text),
            log_retention_days: "bigint" = |row| row.log_retention_days,
        ),
        "ON CONFLICT (id) DO UPDATE SET machine = excluded.machine, attempts = excluded.attempts, \
         losses = excluded.losses, log_lines = excluded.log_lines, ended_at = excluded.ended_at, logs_deleted_at = excluded.logs_deleted_at, \
         log_findings = excluded.log_findings, log_retention_days = excluded.log_retention_days"
    );
    Ok(())
}

/// Changes a task; `None` if there is none with this id.
async fn edit_task<T>(
    conn: &mut Conn<'_>,
    id: &TaskId,
    change: impl FnOnce(&mut TaskRow) -> T,
) -> Result<Option<T>, StoreError> {
    if conn.writing()?.tasks.get(id).is_none() {
        find_task(conn, id).await?;
    }
    let mut outcome = None;
    conn.writing()?
        .tasks
        .edit(id, |row| outcome = Some(change(row)));
    Ok(outcome)
}

/// Counts lines that are added to a task's log and gives the number of the last one; `None` without such a task.
pub(crate) async fn count_lines(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    more: i64,
) -> Result<Option<LogLineId>, StoreError> {
    edit_task(conn, task_id, |row| {
        row.log_lines += more;
        row.logs_deleted_at = None;
        LogLineId(row.log_lines)
    })
    .await
}

/// Notes that nothing of a task's log is left.
pub(crate) async fn set_logs_deleted(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    at: i64,
) -> Result<(), StoreError> {
    edit_task(conn, task_id, |row| row.logs_deleted_at = Some(at)).await?;
    Ok(())
}

/// Stores how long a task's log is kept: see [`TaskRow::log_retention_days`].
pub async fn set_log_retention(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    days: Option<i64>,
) -> Result<(), StoreError> {
    edit_task(conn, task_id, |row| row.log_retention_days = days).await?;
    Ok(())
}

/// The same of all tasks of an experiment.
pub async fn set_log_retention_of_experiment(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    days: Option<i64>,
) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.tasks.remove_all();
    execute!(
        conn,
        "UPDATE tasks SET log_retention_days = $1 WHERE experiment_id = $2",
        days,
        experiment_id
    )?;
    Ok(())
}

/// The task with this id; `None` = there is none.
pub async fn find_task(conn: &mut Conn<'_>, id: &TaskId) -> Result<Option<TaskRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(cell) = unit.tasks.get(id)
    {
        return Ok(Some(TaskRow::clone(&cell.row)));
    }
    let row = fetch_optional!(conn, TaskRow, "SELECT * FROM tasks WHERE id = $1", id)?;
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.tasks.keep(TaskCell::of(row.clone(), false), false);
    }
    Ok(row)
}

/// Several tasks, in no order; those that do not exist are left out.
pub async fn tasks(conn: &mut Conn<'_>, ids: &[TaskId]) -> Result<Vec<TaskRow>, StoreError> {
    conn.flush().await?;
    let mut found = Vec::with_capacity(ids.len());
    for piece in pieces(ids) {
        let mut query = Query::new("SELECT * FROM tasks");
        query.any_of("id", piece.iter().map(Value::from));
        found.extend(query.fetch_all::<TaskRow>(conn).await?);
    }
    Ok(found)
}

pub(crate) const TASK_OF_JOB: &str = "SELECT * FROM tasks WHERE job_id = $1 AND experiment_id IS NULL ORDER BY created_at, id LIMIT 1";

/// The task of a job that is no experiment's.
pub async fn task_of_job(
    conn: &mut Conn<'_>,
    job_id: &JobId,
) -> Result<Option<TaskRow>, StoreError> {
    conn.flush().await?;
    let row = fetch_optional!(conn, TaskRow, TASK_OF_JOB, job_id)?;
    match row {
        // The one in memory is to stay the one that is changed.
        Some(row) if conn.unit.is_some() => find_task(conn, &row.id).await,
        row => Ok(row),
    }
}

/// The tasks of a trial, oldest first.
pub async fn tasks_of_trial(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
) -> Result<Vec<TaskRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        TaskRow,
        "SELECT * FROM tasks WHERE trial_id = $1 ORDER BY created_at, id",
        trial_id
    )?)
}

/// The tasks of several trials, oldest first.
pub async fn tasks_of_trials(
    conn: &mut Conn<'_>,
    trial_ids: &[TrialId],
) -> Result<Vec<TaskRow>, StoreError> {
    conn.flush().await?;
    let mut tasks: Vec<TaskRow> = Vec::new();
    for ids in pieces(trial_ids) {
        let mut query = Query::new("SELECT * FROM tasks");
        query.any_of("trial_id", ids.iter().copied());
        tasks.extend(query.fetch_all::<TaskRow>(conn).await?);
    }
    tasks.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(tasks)
}

/// Writes new and changed allocations.
pub(crate) async fn save_allocations(
    conn: &mut Conn<'_>,
    rows: &[Arc<AllocationRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO allocations",
        (
            id: "text" = |row| &row.id,
            task_id: "text" = |row| &row.task_id,
            job_id: "text" = |row| &row.job_id,
            trial_id: "bigint" = |row| row.trial_id,
            run_id: "bigint" = |row| row.run_id,
            state: "text" = |row| row.state.stored_name(),
            machine: "text" = |row| column::text(&row.state),
            resource_pool: "text" = |row| row.resource_pool.as_str(),
            slots: "bigint" = |row| row.slots,
            single_place: "boolean" = |row| row.single_place,
            preemptible: "boolean" = |row| row.preemptible,
            requested_at: "bigint" = |row| row.requested_at,
            not_before: "bigint" = |row| row.not_before,
            placed_at: "bigint" = |row| row.placed_at,
            started_at: "bigint" = |row| row.started_at,
            ended_at: "bigint" = |row| row.ended_at,
            preempt_deadline: "bigint" = |row| row.preempt_deadline,
            preempted_for: "text" = |row| row.preempted_for.as_ref(),
            port_step: "bigint" = |row| row.port_step,
            service_port: "bigint" = |row| row.service_port,
            namespace: "text" = |row| row.namespace.as_deref(),
            exit_reason: "text" = |row| row.exit_reason.as_deref(),
            status_code: "bigint" = |row| row.status_code,
            excluded_places: "text" = |row| row.excluded_places.as_ref().map(column::text),
            wait_reason: "text" = |row| row.wait_reason.as_ref().map(column::text),
            wait_since: "bigint" = |row| row.wait_since,
        ),
        "ON CONFLICT (id) DO UPDATE SET state = excluded.state, machine = excluded.machine, \
         resource_pool = excluded.resource_pool, placed_at = excluded.placed_at, started_at = excluded.started_at, \
         ended_at = excluded.ended_at, preempt_deadline = excluded.preempt_deadline, \
         preempted_for = excluded.preempted_for, port_step = excluded.port_step, \
         service_port = excluded.service_port, namespace = excluded.namespace, exit_reason = excluded.exit_reason, \
         status_code = excluded.status_code, excluded_places = excluded.excluded_places, \
         wait_reason = excluded.wait_reason, wait_since = excluded.wait_since"
    );
    Ok(())
}

/// The allocation with this id, live or ended; `None` = there is none.
pub async fn find(
    conn: &mut Conn<'_>,
    id: &AllocationId,
) -> Result<Option<AllocationRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(cell) = unit.allocations.get(id)
    {
        return Ok(Some(AllocationRow::clone(&cell.row)));
    }
    let row = fetch_optional!(conn, AllocationRow, select!(" WHERE a.id = $1"), id)?;
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.keep_allocation(row.clone(), false);
    }
    Ok(row)
}

/// All live allocations, in order of request.
pub async fn live(conn: &mut Conn<'_>) -> Result<Vec<AllocationRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        AllocationRow,
        select!(" WHERE a.ended_at IS NULL ORDER BY a.requested_at, a.id")
    )?)
}

/// The live allocation of a task.
pub async fn live_of_task(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
) -> Result<Option<AllocationRow>, StoreError> {
    let known = conn
        .unit
        .as_ref()
        .and_then(|unit| unit.tasks.get(task_id))
        .and_then(|cell| cell.live.clone());
    match known {
        Some(Some(id)) => return find(conn, &id).await,
        Some(None) => return Ok(None),
        None => conn.flush().await?,
    }
    let row = fetch_optional!(
        conn,
        AllocationRow,
        select!(" WHERE a.task_id = $1 AND a.ended_at IS NULL"),
        task_id
    )?;
    if let Some(unit) = &mut conn.unit {
        unit.tasks
            .set_live_allocation(task_id, row.as_ref().map(|row| row.id.clone()));
    }
    match row {
        // The one in memory is to stay the one that is changed.
        Some(row) if conn.unit.is_some() => find(conn, &row.id).await,
        row => Ok(row),
    }
}

/// The allocations of a task: running ones first, then the newest.
pub async fn of_task(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
) -> Result<Vec<AllocationRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        AllocationRow,
        select!(
            " WHERE a.task_id = $1 \
              ORDER BY CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.requested_at DESC, a.run_id DESC"
        ),
        task_id
    )?)
}

/// The allocations of several tasks: of each, running ones first, then the newest.
pub async fn of_tasks(
    conn: &mut Conn<'_>,
    ids: &[TaskId],
) -> Result<Vec<AllocationRow>, StoreError> {
    conn.flush().await?;
    let mut found = Vec::new();
    for piece in pieces(ids) {
        let mut query = Query::new(select!(""));
        query.any_of("a.task_id", piece.iter().map(Value::from));
        query.push(
            " ORDER BY a.task_id, CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.requested_at DESC, a.run_id DESC",
        );
        found.extend(query.fetch_all::<AllocationRow>(conn).await?);
    }
    Ok(found)
}

/// The live allocations of several trials.
pub async fn live_of_trials(
    conn: &mut Conn<'_>,
    trial_ids: &[TrialId],
) -> Result<Vec<AllocationRow>, StoreError> {
    conn.flush().await?;
    let mut live = Vec::new();
    for ids in pieces(trial_ids) {
        let mut query = Query::new(select!(""));
        query.condition("a.ended_at IS NULL");
        query.any_of("a.trial_id", ids.iter().copied());
        live.extend(query.fetch_all(conn).await?);
    }
    Ok(live)
}

/// How far a live allocation of an experiment is.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(kind = "allocation")]
pub struct LiveState {
    /// Id of the live allocation.
    pub id: AllocationId,
    /// Number of the experiment that the allocation works for.
    pub experiment_id: ExperimentId,
    /// The state of its life cycle, as [`AllocationRow::state`].
    #[row(json = "machine")]
    pub state: AllocationState,
}

/// The states of the live allocations of some experiments.
pub async fn live_states_of_experiments(
    conn: &mut Conn<'_>,
    experiment_ids: &[ExperimentId],
) -> Result<Vec<LiveState>, StoreError> {
    conn.flush().await?;
    let mut states = Vec::new();
    for ids in pieces(experiment_ids) {
        let mut query = Query::new(
            "SELECT a.id, t.experiment_id, a.machine FROM allocations a JOIN tasks t ON t.id = a.task_id",
        );
        query.condition("a.ended_at IS NULL");
        query.any_of("t.experiment_id", ids.iter().copied());
        states.extend(query.fetch_all(conn).await?);
    }
    Ok(states)
}

pub(crate) const LIVE_STATES: &str = "SELECT a.id, t.experiment_id, a.machine FROM allocations a \
     JOIN tasks t ON t.id = a.task_id WHERE a.ended_at IS NULL AND t.experiment_id IS NOT NULL";

/// The states of the live allocations of all experiments.
pub async fn live_states(conn: &mut Conn<'_>) -> Result<Vec<LiveState>, StoreError> {
    Ok(fetch_all!(conn, LiveState, LIVE_STATES)?)
}

/// Stores all that changes in an allocation's life.
pub async fn update(conn: &mut Conn<'_>, row: &AllocationRow) -> Result<(), StoreError> {
    if conn.writing()?.allocations.get(&row.id).is_none() {
        find(conn, &row.id).await?;
    }
    conn.writing()?
        .edit_allocation(&row.id, |known| known.clone_from(row));
    Ok(())
}

/// Writes new and changed containers.
pub(crate) async fn save_containers(
    conn: &mut Conn<'_>,
    rows: &[Arc<ContainerRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO containers",
        (
            id: "text" = |row| &row.id,
            allocation_id: "text" = |row| &row.allocation_id,
            place_id: "text" = |row| &row.place_id,
            member: "bigint" = |row| row.member,
            slots: "text" = |row| column::text(&row.slots),
            desired: "text" = |row| <&str>::from(row.desired),
            observed: "text" = |row| row.observed.as_ref().map(column::text),
            daemon: "boolean" = |row| row.daemon,
            joined: "boolean" = |row| row.joined,
            accelerators: "text" = |row| row.accelerators.as_deref(),
            ended_at: "bigint" = |row| row.ended_at,
        ),
        "ON CONFLICT (id) DO UPDATE SET desired = excluded.desired, observed = excluded.observed, \
         daemon = excluded.daemon, joined = excluded.joined, accelerators = excluded.accelerators, \
         ended_at = excluded.ended_at"
    );
    Ok(())
}

/// The container with this id; `None` = there is none.
pub async fn find_container(
    conn: &mut Conn<'_>,
    id: &ContainerId,
) -> Result<Option<ContainerRow>, StoreError> {
    let known = conn
        .unit
        .as_ref()
        .and_then(|unit| unit.allocation_of(id))
        .cloned();
    if let Some(allocation_id) = known {
        let rows = containers(conn, &allocation_id).await?;
        return Ok(rows.into_iter().find(|row| row.id == *id));
    }
    // Unknown in memory: the stored row is the current one.
    let row = fetch_optional!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE id = $1",
        id
    )?;
    match row {
        Some(row) if conn.unit.is_some() => {
            // From now on it is found, and changed, in memory.
            find(conn, &row.allocation_id).await?;
            let rows = containers(conn, &row.allocation_id).await?;
            Ok(rows.into_iter().find(|row| row.id == *id))
        }
        row => Ok(row),
    }
}

/// The containers of an allocation in order of their numbers.
pub async fn containers(
    conn: &mut Conn<'_>,
    allocation_id: &AllocationId,
) -> Result<Vec<ContainerRow>, StoreError> {
    if conn.unit.is_some() {
        find(conn, allocation_id).await?;
    }
    let known = conn
        .unit
        .as_ref()
        .and_then(|unit| unit.allocations.get(allocation_id))
        .and_then(|cell| cell.containers.as_ref());
    if let Some(rows) = known {
        return Ok(rows
            .iter()
            .map(|(row, _)| ContainerRow::clone(row))
            .collect());
    }
    let rows = fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE allocation_id = $1 ORDER BY member",
        allocation_id
    )?;
    if let Some(unit) = &mut conn.unit {
        unit.keep_containers(allocation_id, rows.clone());
    }
    Ok(rows)
}

/// The containers of several allocations, those of one together, in the order of its members.
pub async fn containers_of(
    conn: &mut Conn<'_>,
    allocation_ids: &[AllocationId],
) -> Result<Vec<ContainerRow>, StoreError> {
    conn.flush().await?;
    let mut found = Vec::new();
    for ids in pieces(allocation_ids) {
        let mut query = Query::new("SELECT * FROM containers");
        query.any_of("allocation_id", ids.iter().map(Value::from));
        query.push(" ORDER BY allocation_id, member");
        found.extend(query.fetch_all::<ContainerRow>(conn).await?);
    }
    Ok(found)
}

/// All containers that have not ended, those without slots included.
pub async fn live_containers(conn: &mut Conn<'_>) -> Result<Vec<ContainerRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE ended_at IS NULL ORDER BY allocation_id, member"
    )?)
}

/// The containers of a place that have not ended, those without slots included.
pub async fn live_containers_of_place(
    conn: &mut Conn<'_>,
    place_id: &PlaceId,
) -> Result<Vec<ContainerRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE place_id = $1 AND ended_at IS NULL ORDER BY allocation_id, member",
        place_id
    )?)
}

/// Stores all that changes in a container's life.
pub async fn update_container(conn: &mut Conn<'_>, row: &ContainerRow) -> Result<(), StoreError> {
    containers(conn, &row.allocation_id).await?;
    conn.writing()?
        .allocations
        .edit_container(&row.allocation_id, &row.id, |known| known.clone_from(row));
    Ok(())
}

/// Live allocations with a moment by which they must have ended.
pub async fn with_deadline(conn: &mut Conn<'_>) -> Result<Vec<AllocationRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        AllocationRow,
        select!(" WHERE a.ended_at IS NULL AND a.preempt_deadline IS NOT NULL")
    )?)
}
