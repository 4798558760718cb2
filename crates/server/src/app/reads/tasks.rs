//! Reading tasks.

use std::collections::HashMap;

use det_api_types::launches::{GetLaunchesQuery, LaunchSortBy};
use det_api_types::page::{OrderBy, Pagination};
use det_authz::{Identity, Kind, Permission, Target};
use det_ids::{AllocationId, ExperimentId, PriorityOrder, TaskId, UserId};
use det_lifecycle::container::ObservedState;
use det_lifecycle::task::TaskState;
use det_scheduler::Policy;
use det_store::allocations::{self, AllocationRow, ContainerRow, TaskRow};
use det_store::experiments::{self, JobRow};
use det_store::places::{self, PlaceRow};
use det_store::task_documents::{self, LaunchedFilter, LaunchedTask, TaskDocument};
use det_store::{Conn, Store};
use det_taskspec::{Device, Remover, RunsIn, TaskDetails, TaskKind, TaskUser};
use serde_json::Value;

use crate::app::documents::shown_task_config;
use crate::app::existing::no_task_of;
use crate::app::failures::{self, Failure};
use crate::app::pools::Pools;
use crate::app::reads::paging;
use crate::app::services::{Offer, Services};
use crate::app::specs::identity::TaskUsers;
use crate::app::specs::service_port;
use crate::app::{existing, reads};
use crate::auth::{Actor, Auth, User};
use crate::error::AppResult;

/// What tasks are read from.
#[derive(Clone)]
pub(crate) struct TaskSources {
    pub(crate) store: Store,
    pub(crate) auth: Auth,
    pub(crate) pools: Pools,
    pub(crate) services: Services,
    /// Knows the Unix identities of code.
    pub(crate) task_users: TaskUsers,
}

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Task, "tasks")
}

/// The task with this id, or the error "not found".
pub(crate) async fn find(store: &Store, actor: &Actor, task_id: &TaskId) -> AppResult<TaskRow> {
    require(actor)?;
    existing::task(&mut store.read().await?.conn(), task_id).await
}

/// One task with everything about it.
pub(crate) struct TaskView {
    /// Row of the task.
    pub(crate) row: TaskRow,
    /// Its attempts: running ones first, then the newest.
    pub(crate) attempts: Vec<AllocationRow>,
    /// Why it failed; `None` = it has not.
    pub(crate) failure: Option<Failure>,
    /// What it runs as, with its configuration as the actor may see it; `None` = it works for an experiment.
    pub(crate) document: Option<(TaskDocument, Value)>,
}

/// One task with its attempts and what it runs as.
pub(crate) async fn whole(
    sources: &TaskSources,
    actor: &Actor,
    id: &TaskId,
) -> AppResult<TaskView> {
    require(actor)?;
    let mut conn = sources.store.read().await?;
    let row = existing::task(&mut conn.conn(), id).await?;
    let attempts = allocations::of_task(&mut conn.conn(), id).await?;
    let document = task_documents::find(&mut conn.conn(), id).await?;
    let document = match document {
        Some(document) => {
            let config = reads::document("configuration of task", id, &document.config)?;
            let shown = shown_task_config(actor, row.owner_id, &config);
            Some((document, shown))
        }
        None => None,
    };
    Ok(TaskView {
        failure: failures::of_task(&mut conn.conn(), &row).await?,
        row,
        attempts,
        document,
    })
}

/// A live allocation with what its pool decides about how it is shown.
pub(crate) struct LiveAllocation {
    /// Row of the allocation.
    pub(crate) row: AllocationRow,
    /// The rule by which its pool orders and preempts.
    pub(crate) policy: Policy,
    /// Which of two priorities goes first in its pool.
    pub(crate) priority_order: PriorityOrder,
    /// What its containers run in.
    pub(crate) runs_in: RunsIn,
}

/// Everything that runs or waits to run.
pub(crate) struct Live {
    /// Allocations that have not ended.
    pub(crate) allocations: Vec<LiveAllocation>,
    /// Containers of these allocations.
    pub(crate) containers: Vec<ContainerRow>,
    /// Agents of all pools, those that are away among them.
    pub(crate) agents: Vec<PlaceRow>,
    /// The jobs of live experiments and of live allocations.
    pub(crate) jobs: Vec<JobRow>,
    /// The descriptions of launched tasks that live, those that are paused among them.
    pub(crate) descriptions: HashMap<TaskId, String>,
    /// Launched tasks that are paused.
    pub(crate) paused: Vec<LaunchedTask>,
    /// Generic tasks that ended a short time ago, the newest first; none unless they are asked for.
    pub(crate) ended: Vec<LaunchedTask>,
    /// Why those of them failed that did.
    pub(crate) failures: HashMap<TaskId, Failure>,
    /// What the running allocations offer at the ports that they have published.
    pub(crate) services: HashMap<AllocationId, Vec<Offer>>,
    /// The names of the owners of the jobs.
    pub(crate) owners: HashMap<UserId, String>,
    /// How the pools of paused and ended tasks schedule, and which of two priorities goes first there.
    pub(crate) pools: HashMap<String, (Policy, PriorityOrder)>,
}

/// Everything that runs or waits to run; `with_ended` = and generic tasks that ended a short time ago.
pub(crate) async fn live(
    sources: &TaskSources,
    actor: &Actor,
    with_ended: bool,
) -> AppResult<Live> {
    require(actor)?;
    let mut conn = sources.store.read().await?;
    let live = allocations::live(&mut conn.conn()).await?;
    let pool = |name: &str| {
        let policy = sources.pools.settings(name).policy;
        (policy, sources.pools.priority_order(name))
    };
    let scheduled = |row: AllocationRow| {
        let (policy, priority_order) = pool(&row.resource_pool);
        LiveAllocation {
            policy,
            priority_order,
            runs_in: sources.pools.runs_in(&row.resource_pool),
            row,
        }
    };
    let filter = LaunchedFilter {
        ended_after: Some(i64::MAX),
        ..LaunchedFilter::default()
    };
    // Most of what a task runs as is not shown here, and can be large.
    let heads = task_documents::launched_heads(&mut conn.conn(), &filter).await?;
    let paused = heads
        .iter()
        .filter(|head| head.state == TaskState::Suspended);
    let paused: Vec<TaskId> = paused.map(|head| head.id.clone()).collect();
    let paused = task_documents::launched_all(&mut conn.conn(), &paused).await?;
    let ended = if with_ended {
        let filter = LaunchedFilter {
            kind: Some(TaskKind::Generic),
            ended_after: Some(det_store::now() - LISTED_AFTER_END),
            ..LaunchedFilter::default()
        };
        let mut rows = task_documents::launched(&mut conn.conn(), &filter).await?;
        rows.retain(|row| row.ended_at.is_some());
        rows
    } else {
        Vec::new()
    };
    let newest = newest_attempts(&mut conn.conn(), &ended).await?;
    let failures = failures::of_launched(&mut conn.conn(), &ended, &newest).await?;
    let failures = failures.into_iter().map(|(id, one)| (id, one.in_list()));
    let jobs = experiments::live_jobs(&mut conn.conn()).await?;
    let owners = jobs.iter().map(|job| job.owner_id);
    let owners = owners.chain(heads.iter().map(|head| head.owner_id));
    let owners = owners.chain(ended.iter().map(|row| row.owner_id));
    let owners = owners.filter_map(|id| Some((id, sources.auth.user(id)?.username.clone())));
    let containers = allocations::live_containers(&mut conn.conn()).await?;
    Ok(Live {
        services: published(sources, &mut conn.conn(), &live, &containers).await?,
        owners: owners.collect(),
        pools: paused
            .iter()
            .chain(&ended)
            .map(|row| (row.resource_pool.clone(), pool(&row.resource_pool)))
            .collect(),
        descriptions: heads
            .into_iter()
            .map(|head| (head.id, head.description))
            .collect(),
        paused,
        ended,
        failures: failures.collect(),
        allocations: live.into_iter().map(scheduled).collect(),
        containers,
        agents: places::list(&mut conn.conn()).await?,
        jobs,
    })
}

/// What running allocations offer at the ports that their containers have published. Most have published none, and cost
/// nothing here.
async fn published(
    sources: &TaskSources,
    conn: &mut Conn<'_>,
    live: &[AllocationRow],
    containers: &[ContainerRow],
) -> AppResult<HashMap<AllocationId, Vec<Offer>>> {
    let mut of_experiments: HashMap<ExperimentId, Vec<Offer>> = HashMap::new();
    let mut found = HashMap::new();
    for container in containers.iter().filter(|row| row.member == 0) {
        let Some(ObservedState::Running { ports, .. }) = &container.observed else {
            continue;
        };
        let attempt = live.iter().find(|row| row.id == container.allocation_id);
        let Some(attempt) = attempt.filter(|_| !ports.is_empty()) else {
            continue;
        };
        let known = attempt.experiment_id.and_then(|id| of_experiments.get(&id));
        let mut offers = match known {
            Some(offers) => offers.clone(),
            None => {
                let services = &sources.services;
                let port = service_port(attempt);
                services
                    .offers(conn, &attempt.task_id, attempt.experiment_id, port)
                    .await?
            }
        };
        if let Some(id) = attempt.experiment_id {
            of_experiments.entry(id).or_insert_with(|| offers.clone());
        }
        offers.retain(|offer| ports.iter().any(|(inside, _)| *inside == offer.port));
        found.insert(attempt.id.clone(), offers);
    }
    Ok(found)
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

/// A launched task as its readers see it.
pub(crate) struct LaunchedView {
    /// Row of the launched task.
    pub(crate) row: LaunchedTask,
    /// Its owner; `None` = the user exists no more.
    pub(crate) owner: Option<User>,
    /// The Unix identity of its code; `None` = the owner exists no more.
    pub(crate) unix_user: Option<TaskUser>,
    /// Its live attempt, else its newest one.
    pub(crate) attempt: Option<AllocationRow>,
    /// The live container of that attempt, with the devices that it has.
    pub(crate) container: Option<(ContainerRow, Vec<Device>)>,
    /// Why it failed; `None` = it has not.
    pub(crate) failure: Option<Failure>,
}

/// How long lists contain what has ended, in microseconds: as clients of these clusters are used to, a day.
const LISTED_AFTER_END: i64 = 24 * 3600 * 1_000_000;

/// One page of the launched tasks of a kind: those that live, and those that ended a short time ago.
pub(crate) async fn launched(
    sources: &TaskSources,
    actor: &Actor,
    kind: TaskKind,
    query: &GetLaunchesQuery,
) -> AppResult<(Vec<LaunchedView>, Pagination)> {
    require(actor)?;
    let named = query
        .users
        .iter()
        .filter_map(|name| sources.auth.user_by_name(name));
    let numbered = query.user_ids.iter().copied();
    let owners: Vec<UserId> = named.map(|user| user.id).chain(numbered).collect();
    if owners.is_empty() && !query.users.is_empty() {
        return Ok(paging::slice(Vec::new(), query.offset, query.limit));
    }
    let filter = LaunchedFilter {
        kind: Some(kind),
        owners,
        workspace_id: query.workspace_id.given(),
        ended_after: Some(det_store::now() - LISTED_AFTER_END),
        ..LaunchedFilter::default()
    };
    let mut conn = sources.store.read().await?;
    let mut heads = task_documents::launched_heads(&mut conn.conn(), &filter).await?;
    match query.sort_by {
        LaunchSortBy::Unspecified | LaunchSortBy::StartTime => heads.reverse(),
        LaunchSortBy::Id => heads.sort_by(|a, b| a.id.cmp(&b.id)),
        LaunchSortBy::Description => {
            heads.sort_by(|a, b| paging::by_name(&a.description, &b.description));
        }
        LaunchSortBy::WorkspaceId => heads.sort_by_key(|head| head.workspace_id),
    }
    if query.order_by == OrderBy::Desc {
        heads.reverse();
    }
    let (heads, pagination) = paging::slice(heads, query.offset, query.limit);
    let (heads, pagination) = paging::within(heads, pagination, |head| head.bytes);
    let ids: Vec<TaskId> = heads.into_iter().map(|head| head.id).collect();
    let rows = task_documents::launched_all(&mut conn.conn(), &ids).await?;
    let mut shown = views(sources, actor, &mut conn.conn(), rows).await?;
    for view in &mut shown {
        view.failure = view.failure.take().map(Failure::in_list);
    }
    Ok((shown, pagination))
}

/// One launched task of a kind.
pub(crate) async fn launched_one(
    sources: &TaskSources,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
) -> AppResult<LaunchedView> {
    require(actor)?;
    let filter = LaunchedFilter {
        kind: Some(kind),
        id: Some(id.clone()),
        ..LaunchedFilter::default()
    };
    let mut conn = sources.store.read().await?;
    let rows = task_documents::launched(&mut conn.conn(), &filter).await?;
    let mut found = views(sources, actor, &mut conn.conn(), rows).await?;
    found.pop().ok_or_else(|| no_task_of(kind, id))
}

/// One launched task that browsers have a page of: a notebook or a TensorBoard.
pub(crate) async fn with_page(
    sources: &TaskSources,
    actor: &Actor,
    id: &TaskId,
) -> AppResult<LaunchedView> {
    let row = find(&sources.store, actor, id).await?;
    match row.kind {
        TaskKind::Notebook | TaskKind::Tensorboard => {
            launched_one(sources, actor, row.kind, id).await
        }
        TaskKind::Trial
        | TaskKind::Shell
        | TaskKind::Command
        | TaskKind::CheckpointGc
        | TaskKind::Generic => Err(no_task_of(TaskKind::Notebook, id)),
    }
}

/// One launched task of a kind with its configuration, without what is hidden from the actor.
pub(crate) async fn launched_with_config(
    sources: &TaskSources,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
) -> AppResult<(LaunchedView, Value)> {
    let view = launched_one(sources, actor, kind, id).await?;
    let mut conn = sources.store.read().await?;
    let document = task_documents::find(&mut conn.conn(), id).await?;
    let document = document.ok_or_else(|| no_task_of(kind, id))?;
    let config = reads::document("configuration of task", id, &document.config)?;
    let shown = shown_task_config(actor, view.row.owner_id, &config);
    Ok((view, shown))
}

/// Hides what opens a shell or a notebook from actors that it is not for.
fn hide_key(actor: &Actor, row: &mut LaunchedTask) {
    let target = Target::identified(Identity::Task(&row.id)).owned_by(row.owner_id);
    if actor.may(Permission::TakeKey, &target) {
        return;
    }
    match &mut row.details {
        TaskDetails::Shell(shell) => shell.private_key.clear(),
        TaskDetails::Notebook(notebook) => {
            notebook.token.clear();
            notebook.private_key.clear();
        }
        // Never listed: users see the row of such a task only.
        TaskDetails::CheckpointGc(removal) => {
            if let Remover::Python { storage, .. } = &mut removal.remover {
                *storage = serde_json::Value::Null;
            }
        }
        TaskDetails::Tensorboard(tensorboard) => tensorboard.key.clear(),
        TaskDetails::Command | TaskDetails::Generic(_) => {}
    }
}

/// Of each of these tasks its live attempt, else its newest one.
async fn newest_attempts(
    conn: &mut Conn<'_>,
    rows: &[LaunchedTask],
) -> AppResult<HashMap<TaskId, AllocationRow>> {
    let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
    let mut attempts = HashMap::new();
    for attempt in allocations::of_tasks(conn, &ids).await? {
        attempts.entry(attempt.task_id.clone()).or_insert(attempt);
    }
    Ok(attempts)
}

/// What lists and answers show of launched tasks, in four queries however many they are.
async fn views(
    sources: &TaskSources,
    actor: &Actor,
    conn: &mut Conn<'_>,
    rows: Vec<LaunchedTask>,
) -> AppResult<Vec<LaunchedView>> {
    let mut attempts = newest_attempts(conn, &rows).await?;
    let mut failures = failures::of_launched(conn, &rows, &attempts).await?;
    let mut containers: HashMap<AllocationId, (ContainerRow, Vec<Device>)> = HashMap::new();
    if attempts.values().any(|attempt| attempt.ended_at.is_none()) {
        let places = places::list(conn).await?;
        for container in allocations::live_containers(conn).await? {
            let place = places.iter().find(|place| place.id == container.place_id);
            let devices = place.map(|row| row.capacity.devices()).unwrap_or_default();
            let own = devices
                .into_iter()
                .filter(|device| container.slots.contains(&device.id));
            let own = own.collect();
            containers
                .entry(container.allocation_id.clone())
                .or_insert((container, own));
        }
    }
    let view = |mut row: LaunchedTask| {
        let attempt = attempts.remove(&row.id);
        let owner = sources.auth.user(row.owner_id);
        hide_key(actor, &mut row);
        let users = &sources.task_users;
        LaunchedView {
            unix_user: owner
                .as_ref()
                .map(|owner| users.in_workspace(row.workspace_id, owner)),
            owner,
            container: attempt.as_ref().and_then(|a| containers.remove(&a.id)),
            failure: failures.remove(&row.id),
            attempt,
            row,
        }
    };
    Ok(rows.into_iter().map(view).collect())
}
