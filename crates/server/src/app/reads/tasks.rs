//! Reading tasks.

use det_authz::Kind;
use det_ids::{PriorityOrder, TaskId};
use det_scheduler::Policy;
use det_store::Store;
use det_store::agents::{self, AgentRow};
use det_store::allocations::{self, AllocationRow, ContainerRow, TaskRow};
use det_store::experiments::{self, JobRow};
use det_taskspec::TaskKind;

use crate::app::{Master, existing, reads};
use crate::auth::Actor;
use crate::error::AppResult;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Task, "tasks")
}

/// One task.
pub(crate) async fn find(store: &Store, actor: &Actor, task_id: &TaskId) -> AppResult<TaskRow> {
    require(actor)?;
    existing::task(&mut store.read().await?.conn(), task_id).await
}

/// One task with its allocations.
pub(crate) async fn with_allocations(
    store: &Store,
    actor: &Actor,
    task_id: &TaskId,
) -> AppResult<(TaskRow, Vec<AllocationRow>)> {
    require(actor)?;
    let mut conn = store.read().await?;
    let task = existing::task(&mut conn.conn(), task_id).await?;
    let allocations = allocations::of_task(&mut conn.conn(), task_id).await?;
    Ok((task, allocations))
}

/// Everything that runs or waits to run.
pub(crate) struct Live {
    /// Live allocations, each with how its pool schedules, and which of two priorities goes first there.
    pub(crate) allocations: Vec<(AllocationRow, Policy, PriorityOrder)>,
    /// Their containers.
    pub(crate) containers: Vec<ContainerRow>,
    /// All agents.
    pub(crate) agents: Vec<AgentRow>,
    /// The jobs of live experiments.
    pub(crate) jobs: Vec<JobRow>,
}

/// Everything that runs or waits to run.
pub(crate) async fn live(master: &Master, actor: &Actor) -> AppResult<Live> {
    require(actor)?;
    let mut conn = master.context.store.read().await?;
    let live = allocations::live(&mut conn.conn()).await?;
    let scheduled = |row: AllocationRow| {
        let policy = master.pools.settings(&row.resource_pool).policy;
        let order = master.pools.priority_order(&row.resource_pool);
        (row, policy, order)
    };
    Ok(Live {
        allocations: live.into_iter().map(scheduled).collect(),
        containers: allocations::live_containers(&mut conn.conn()).await?,
        agents: agents::list(&mut conn.conn()).await?,
        jobs: experiments::live_jobs(&mut conn.conn()).await?,
    })
}

/// The kind of each live allocation's task.
pub(crate) async fn live_kinds(store: &Store, actor: &Actor) -> AppResult<Vec<TaskKind>> {
    require(actor)?;
    let mut conn = store.read().await?;
    let live = allocations::live(&mut conn.conn()).await?;
    Ok(live.iter().map(|row| row.kind).collect())
}

/// The containers of all attempts of a task.
pub(crate) async fn containers(
    store: &Store,
    actor: &Actor,
    task_id: &TaskId,
) -> AppResult<Vec<ContainerRow>> {
    require(actor)?;
    let mut conn = store.read().await?;
    existing::task(&mut conn.conn(), task_id).await?;
    let mut containers = Vec::new();
    for allocation in allocations::of_task(&mut conn.conn(), task_id).await? {
        containers.extend(allocations::containers(&mut conn.conn(), &allocation.id).await?);
    }
    Ok(containers)
}
