//! Tasks, their allocations, the containers of these, and the containers' tokens.

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError};

/// What runs containers.
#[derive(Debug, Clone, crate::Row)]
pub struct TaskRow {
    /// `<experiment>.<request uuid>` for trials.
    pub id: String,
    /// `TRIAL`.
    pub kind: String,
    /// Its job.
    pub job_id: String,
    /// Whose.
    pub owner_id: i64,
    /// Its experiment, for trials.
    pub experiment_id: Option<i64>,
    /// Its trial, for trials.
    pub trial_id: Option<i64>,
    /// Allocations so far.
    pub attempts: i64,
    /// Lines in its log; the id of the newest one.
    pub log_lines: i64,
    /// Microseconds.
    pub created_at: i64,
    /// Microseconds; `None` while it may run again.
    pub ended_at: Option<i64>,
}

/// One attempt's claim on slots.
#[derive(Debug, Clone, crate::Row)]
pub struct AllocationRow {
    /// `<task>.<n>`.
    pub id: String,
    /// Its task.
    pub task_id: String,
    /// Its job.
    pub job_id: String,
    /// Its trial, for trials.
    pub trial_id: Option<i64>,
    /// The trial's run that it is.
    pub run_id: i64,
    /// Stored state name: `PENDING`, `ASSIGNED`, …
    pub state: String,
    /// Life cycle state with its data, JSON.
    pub machine: String,
    /// Pool it waits or runs in.
    pub resource_pool: String,
    /// Slots asked for.
    pub slots: i64,
    /// Whether all slots must be on one agent.
    pub single_agent: bool,
    /// Whether it may be asked to make room.
    pub preemptible: bool,
    /// Microseconds.
    pub requested_at: i64,
    /// When it was given slots.
    pub placed_at: Option<i64>,
    /// When its first container ran.
    pub started_at: Option<i64>,
    /// When its last container ended.
    pub ended_at: Option<i64>,
    /// When it is killed if it has not made room by then.
    pub preempt_deadline: Option<i64>,
    /// The allocation that its room goes to once it has stopped.
    pub preempted_for: Option<String>,
    /// How it ended, for people.
    pub exit_reason: Option<String>,
    /// Exit code of the chief.
    pub status_code: Option<i64>,
    /// Why it waits, JSON.
    pub wait_reason: Option<String>,
    /// Since when for that reason.
    pub wait_since: Option<i64>,
}

/// One container of an allocation.
#[derive(Debug, Clone, crate::Row)]
pub struct ContainerRow {
    /// UUID; the wire's resource id.
    pub id: String,
    /// Its allocation.
    pub allocation_id: String,
    /// Where.
    pub agent_id: String,
    /// Place in the allocation; 0 is the chief.
    pub member: i64,
    /// JSON list of slot numbers.
    pub slots: String,
    /// `run`, `stop` (with grace) or `kill`.
    pub desired: String,
    /// Last report of the agent, JSON of `ContainerState`.
    pub observed: Option<String>,
    /// A helper that does not keep the allocation alive.
    pub daemon: bool,
    /// Whether it has called for the rendezvous.
    pub joined: bool,
    /// What it said of its accelerators, JSON.
    pub accelerators: Option<String>,
    /// Microseconds; `None` while its slots are held.
    pub ended_at: Option<i64>,
}

/// Adds a task.
pub async fn insert_task(conn: &mut Conn<'_>, task: &TaskRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO tasks (id, kind, job_id, owner_id, experiment_id, trial_id, attempts, log_lines, created_at, \
         ended_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        task.id.as_str(),
        task.kind.as_str(),
        task.job_id.as_str(),
        task.owner_id,
        task.experiment_id,
        task.trial_id,
        task.attempts,
        task.log_lines,
        task.created_at,
        task.ended_at
    )?;
    Ok(())
}

/// One task.
pub async fn find_task(conn: &mut Conn<'_>, id: &str) -> Result<Option<TaskRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TaskRow,
        "SELECT * FROM tasks WHERE id = $1",
        id
    )?)
}

/// The tasks of a trial, oldest first.
pub async fn tasks_of_trial(
    conn: &mut Conn<'_>,
    trial_id: i64,
) -> Result<Vec<TaskRow>, StoreError> {
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
    trial_ids: &[i64],
) -> Result<Vec<TaskRow>, StoreError> {
    let mut tasks: Vec<TaskRow> = Vec::new();
    for ids in pieces(trial_ids) {
        let mut query = Query::new("SELECT * FROM tasks");
        query.any_of("trial_id", ids.iter().map(|id| Value::Integer(*id)));
        tasks.extend(query.fetch_all::<TaskRow>(conn).await?);
    }
    tasks.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(tasks)
}

/// Notes the end of a task, or (with `None`) that it goes on.
pub async fn set_task_end(
    conn: &mut Conn<'_>,
    id: &str,
    ended_at: Option<i64>,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE tasks SET ended_at = $1 WHERE id = $2",
        ended_at,
        id
    )?;
    Ok(())
}

/// Counts one more attempt of a task and gives its number.
pub async fn next_attempt(conn: &mut Conn<'_>, task_id: &str) -> Result<i64, StoreError> {
    let (n,) = fetch_one!(
        conn,
        (i64,),
        "UPDATE tasks SET attempts = attempts + 1, ended_at = NULL WHERE id = $1 RETURNING attempts",
        task_id
    )?;
    Ok(n)
}

/// Adds an allocation.
pub async fn insert(conn: &mut Conn<'_>, row: &AllocationRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO allocations (id, task_id, job_id, trial_id, run_id, state, machine, resource_pool, slots, \
         single_agent, preemptible, requested_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        row.id.as_str(),
        row.task_id.as_str(),
        row.job_id.as_str(),
        row.trial_id,
        row.run_id,
        row.state.as_str(),
        row.machine.as_str(),
        row.resource_pool.as_str(),
        row.slots,
        row.single_agent,
        row.preemptible,
        row.requested_at
    )?;
    Ok(())
}

/// One allocation.
pub async fn find(conn: &mut Conn<'_>, id: &str) -> Result<Option<AllocationRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        AllocationRow,
        "SELECT * FROM allocations WHERE id = $1",
        id
    )?)
}

/// All live allocations, in order of request.
pub async fn live(conn: &mut Conn<'_>) -> Result<Vec<AllocationRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        AllocationRow,
        "SELECT * FROM allocations WHERE ended_at IS NULL ORDER BY requested_at, id"
    )?)
}

/// The live allocation of a task.
pub async fn live_of_task(
    conn: &mut Conn<'_>,
    task_id: &str,
) -> Result<Option<AllocationRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        AllocationRow,
        "SELECT * FROM allocations WHERE task_id = $1 AND ended_at IS NULL",
        task_id
    )?)
}

/// The allocations of a task: running ones first, then the newest.
pub async fn of_task(conn: &mut Conn<'_>, task_id: &str) -> Result<Vec<AllocationRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        AllocationRow,
        "SELECT * FROM allocations WHERE task_id = $1 \
         ORDER BY CASE WHEN ended_at IS NULL THEN 0 ELSE 1 END, requested_at DESC, run_id DESC",
        task_id
    )?)
}

/// The live allocations of several trials.
pub async fn live_of_trials(
    conn: &mut Conn<'_>,
    trial_ids: &[i64],
) -> Result<Vec<AllocationRow>, StoreError> {
    let mut live = Vec::new();
    for ids in pieces(trial_ids) {
        let mut query = Query::new("SELECT * FROM allocations");
        query.condition("ended_at IS NULL");
        query.any_of("trial_id", ids.iter().map(|id| Value::Integer(*id)));
        live.extend(query.fetch_all(conn).await?);
    }
    Ok(live)
}

/// For experiments: the states of their live allocations.
pub async fn live_states_of_experiments(
    conn: &mut Conn<'_>,
    experiment_ids: &[i64],
) -> Result<Vec<(i64, String)>, StoreError> {
    let mut states = Vec::new();
    for ids in pieces(experiment_ids) {
        let mut query = Query::new(
            "SELECT t.experiment_id, a.state FROM allocations a JOIN tasks t ON t.id = a.task_id",
        );
        query.condition("a.ended_at IS NULL");
        query.any_of("t.experiment_id", ids.iter().map(|id| Value::Integer(*id)));
        states.extend(query.fetch_all(conn).await?);
    }
    Ok(states)
}

pub(crate) const LIVE_STATES: &str = "SELECT t.experiment_id, a.state FROM allocations a \
     JOIN tasks t ON t.id = a.task_id WHERE a.ended_at IS NULL AND t.experiment_id IS NOT NULL";

/// The states of all live allocations, each with its experiment.
pub async fn live_states(conn: &mut Conn<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    Ok(fetch_all!(conn, (i64, String), LIVE_STATES)?)
}

/// Stores all that changes in an allocation's life.
pub async fn update(conn: &mut Conn<'_>, row: &AllocationRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE allocations SET state = $1, machine = $2, resource_pool = $3, placed_at = $4, started_at = $5, \
         ended_at = $6, preempt_deadline = $7, exit_reason = $8, status_code = $9, wait_reason = $10, \
         wait_since = $11, preempted_for = $12 WHERE id = $13",
        row.state.as_str(),
        row.machine.as_str(),
        row.resource_pool.as_str(),
        row.placed_at,
        row.started_at,
        row.ended_at,
        row.preempt_deadline,
        row.exit_reason.as_deref(),
        row.status_code,
        row.wait_reason.as_deref(),
        row.wait_since,
        row.preempted_for.as_deref(),
        row.id.as_str()
    )?;
    Ok(())
}

/// Stores why an allocation waits.
pub async fn set_wait(
    conn: &mut Conn<'_>,
    id: &str,
    reason: Option<&str>,
    since: Option<i64>,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE allocations SET wait_reason = $1, wait_since = $2 WHERE id = $3",
        reason,
        since,
        id
    )?;
    Ok(())
}

/// Adds a container.
pub async fn insert_container(conn: &mut Conn<'_>, row: &ContainerRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO containers (id, allocation_id, agent_id, member, slots, desired, daemon, joined) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        row.id.as_str(),
        row.allocation_id.as_str(),
        row.agent_id.as_str(),
        row.member,
        row.slots.as_str(),
        row.desired.as_str(),
        row.daemon,
        row.joined
    )?;
    Ok(())
}

/// One container.
pub async fn find_container(
    conn: &mut Conn<'_>,
    id: &str,
) -> Result<Option<ContainerRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE id = $1",
        id
    )?)
}

/// The containers of an allocation in order of their place.
pub async fn containers(
    conn: &mut Conn<'_>,
    allocation_id: &str,
) -> Result<Vec<ContainerRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE allocation_id = $1 ORDER BY member",
        allocation_id
    )?)
}

/// All containers that hold slots.
pub async fn live_containers(conn: &mut Conn<'_>) -> Result<Vec<ContainerRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE ended_at IS NULL ORDER BY allocation_id, member"
    )?)
}

/// The containers of an agent that hold slots.
pub async fn live_containers_of_agent(
    conn: &mut Conn<'_>,
    agent_id: &str,
) -> Result<Vec<ContainerRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ContainerRow,
        "SELECT * FROM containers WHERE agent_id = $1 AND ended_at IS NULL ORDER BY allocation_id, member",
        agent_id
    )?)
}

/// Stores all that changes in a container's life.
pub async fn update_container(conn: &mut Conn<'_>, row: &ContainerRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE containers SET desired = $1, observed = $2, daemon = $3, joined = $4, accelerators = $5, \
         ended_at = $6 WHERE id = $7",
        row.desired.as_str(),
        row.observed.as_deref(),
        row.daemon,
        row.joined,
        row.accelerators.as_deref(),
        row.ended_at,
        row.id.as_str()
    )?;
    Ok(())
}

/// Adds the hash of a token that acts for an allocation.
pub async fn insert_token(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
    allocation_id: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO container_tokens (token_hash, allocation_id) VALUES ($1, $2)",
        token_hash,
        allocation_id
    )?;
    Ok(())
}

/// Whose token this is: the allocation, its task's owner, and until when (`None` = while the allocation lives).
#[derive(Debug, Clone, crate::Row)]
pub struct TokenOwner {
    /// The allocation.
    pub allocation_id: String,
    /// The allocation's task.
    pub task_id: String,
    /// The allocation's trial.
    pub trial_id: Option<i64>,
    /// Which run of its trial the allocation is; 0 without a trial.
    pub run_id: i64,
    /// The task's owner.
    pub owner_id: i64,
    /// Microseconds.
    pub expires_at: Option<i64>,
}

/// Whose token has this hash.
pub async fn find_token(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
) -> Result<Option<TokenOwner>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TokenOwner,
        "SELECT k.allocation_id, a.task_id, a.trial_id, a.run_id, t.owner_id, k.expires_at FROM container_tokens k \
         JOIN allocations a ON a.id = k.allocation_id JOIN tasks t ON t.id = a.task_id WHERE k.token_hash = $1",
        token_hash
    )?)
}

/// Lets the tokens of an ended allocation expire.
pub async fn expire_tokens(
    conn: &mut Conn<'_>,
    allocation_id: &str,
    at: i64,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE container_tokens SET expires_at = $1 WHERE allocation_id = $2 AND expires_at IS NULL",
        at,
        allocation_id
    )?;
    Ok(())
}

/// Removes tokens that expired before `at`.
pub async fn delete_expired_tokens(conn: &mut Conn<'_>, at: i64) -> Result<u64, StoreError> {
    Ok(execute!(
        conn,
        "DELETE FROM container_tokens WHERE expires_at <= $1",
        at
    )?)
}

/// Live allocations with a moment by which they must have ended.
pub async fn with_deadline(conn: &mut Conn<'_>) -> Result<Vec<AllocationRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        AllocationRow,
        "SELECT * FROM allocations WHERE ended_at IS NULL AND preempt_deadline IS NOT NULL"
    )?)
}
