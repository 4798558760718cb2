//! What running tasks ask: preemption, meeting their peers, readiness, exchange.

use std::time::Duration;

use bytes::Bytes;
use det_ids::{AllocationId, ContainerId, TaskId};
use det_lifecycle::allocation::{AllocationEvent, AllocationState};
use det_lifecycle::container::ObservedState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::task::{Meeting, Release};
use det_orchestrator::Event;
use det_store::allocations::{self, AllocationRow, ContainerRow};
use det_taskspec::TaskKind;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::app::all_gathers::AllGathers;
use crate::app::context::Context;
use crate::app::existing::no_task_of;
use crate::app::idle::Idle;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::reads;
use crate::app::reads::allocations::require_form;
use crate::app::silences::Silences;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// The longest that a poll is held.
const LONGEST_POLL: Duration = Duration::from_secs(600);

/// Bytes of JSON that are stored of a container's accelerators: some hundreds of devices.
const MOST_ACCELERATOR_DATA: usize = 32 << 10;

/// How the containers of an allocation find each other; element *i* belongs to rank *i*.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Addresses of the hosts that the containers run on.
    pub addresses: Vec<String>,
    /// Rank of the container that asks, from 0.
    pub rank: i64,
    /// Number of slots of each container.
    pub slots: Vec<i64>,
}

/// What a member brings to an exchange between the containers of an allocation.
#[derive(Debug)]
pub struct Contribution {
    uuid: String,
    peers: usize,
    data: Bytes,
}

impl Contribution {
    /// Of the member `uuid`, one of `peers`; `data` is JSON text.
    ///
    /// # Errors
    /// No member is named, or there are not 1 to 65,536 of them.
    pub(crate) fn new(uuid: String, peers: i64, data: Bytes) -> AppResult<Self> {
        if uuid.is_empty() {
            return Err(AppError::invalid(
                "field \"requestUuid\" must name the member that asks",
            ));
        }
        match usize::try_from(peers) {
            Ok(peers @ 1..=65_536) => Ok(Self { uuid, peers, data }),
            _ => Err(AppError::invalid(format!(
                "field \"numPeers\" must be 1 to 65536, the number of members, found {peers}"
            ))),
        }
    }
}

/// Allocations, as their tasks speak of them. Cheap to clone.
#[derive(Clone)]
pub struct Allocations {
    context: Context,
    ownership: Ownership,
    all_gathers: AllGathers,
    orchestration: Orchestration,
    idle: Idle,
    silences: Silences,
}

impl Allocations {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        ownership: Ownership,
        all_gathers: AllGathers,
        orchestration: Orchestration,
        (idle, silences): (Idle, Silences),
    ) -> Self {
        Self {
            context,
            ownership,
            all_gathers,
            orchestration,
            idle,
            silences,
        }
    }

    /// Whether the allocation is to save and exit: waits up to `timeout` for a yes.
    pub async fn preemption_signal(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        timeout: Duration,
    ) -> AppResult<bool> {
        self.require_reporter(actor, allocation_id).await?;
        let deadline = Instant::now() + timeout.min(LONGEST_POLL);
        let mut changes = self
            .context
            .hub
            .subscribe(Topic::Allocation(allocation_id.clone()));
        loop {
            let row = {
                let mut conn = self.context.store.read().await?;
                allocations::find(&mut conn.conn(), allocation_id).await?
            };
            let Some(row) = row else { return Ok(false) };
            if shows_that_it_listens(actor, &row) {
                let (id, cause) = (row.id, Cause::actor(actor.name()));
                // This wakes the poll, should it matter.
                self.orchestration
                    .commit(Event::Listens { id, cause })
                    .await?;
                continue;
            }
            if row.state.is_to_save() || row.state.is_terminal() {
                return Ok(row.state.is_to_save());
            }
            tokio::select! {
                woken = timeout_at(deadline, changes.changed()) => {
                    if woken.is_err() {
                        return Ok(false);
                    }
                }
                () = self.context.shutdown.cancelled() => return Ok(false),
            }
        }
    }

    /// The task reports that something else than the master ends it: it is preempted.
    pub(crate) async fn disrupted(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
    ) -> AppResult<()> {
        let row = self.find(actor, allocation_id).await?;
        if !row.preemptible || row.state.is_ending() {
            let why = if row.preemptible {
                "is being ended by the master"
            } else {
                "cannot be preempted"
            };
            return Err(AppError::new(
                ErrorKind::Conflict,
                format!("allocation \"{allocation_id}\" {why}"),
            ));
        }
        let (id, cause) = (allocation_id.clone(), Cause::actor(actor.name()));
        let event = AllocationEvent::Preempt;
        self.orchestration
            .commit(Event::Allocation { id, event, cause })
            .await
    }

    /// The task reports that it saves and exits, or that its service is up. `None` = what nothing follows from: that a
    /// service is not up yet, or where it is, which its agent has reported already.
    pub(crate) async fn report(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        event: Option<AllocationEvent>,
    ) -> AppResult<()> {
        self.find(actor, allocation_id).await?;
        let Some(event) = event else {
            return Ok(());
        };
        let (id, cause) = (allocation_id.clone(), Cause::actor(actor.name()));
        let is_up = event == AllocationEvent::Meet;
        self.orchestration
            .commit(Event::Allocation { id, event, cause })
            .await?;
        if is_up {
            self.idle.wake();
        }
        Ok(())
    }

    /// A notebook reports whether it is in use.
    pub(crate) async fn report_use(
        &self,
        actor: &Actor,
        task: &TaskId,
        idle: bool,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Task(task))
            .await?;
        let live = {
            let mut conn = self.context.store.read().await?;
            allocations::live_of_task(&mut conn.conn(), task).await?
        };
        let live = live.ok_or_else(|| {
            AppError::precondition(format!(
                "task \"{task}\" does not run: it cannot be reported as in use"
            ))
        })?;
        if live.kind != TaskKind::Notebook {
            return Err(no_task_of(TaskKind::Notebook, task));
        }
        if !idle {
            self.idle.used(task);
        }
        Ok(())
    }

    /// Notes that a container has come to the meeting, and waits until all have. A second call of the same container
    /// replaces the first.
    pub async fn rendezvous(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        container_id: &ContainerId,
    ) -> AppResult<Rendezvous> {
        self.require_reporter(actor, allocation_id).await?;
        let mut changes = self
            .context
            .hub
            .subscribe(Topic::Allocation(allocation_id.clone()));
        self.orchestration
            .commit(Event::Joined {
                id: allocation_id.clone(),
                container_id: container_id.clone(),
                cause: Cause::actor(actor.name()),
            })
            .await?;
        // With the last of them its code begins, and its silence counts.
        self.silences.wake();
        loop {
            let (row, containers) = {
                let mut conn = self.context.store.read().await?;
                (
                    allocations::find(&mut conn.conn(), allocation_id).await?,
                    allocations::containers(&mut conn.conn(), allocation_id).await?,
                )
            };
            let Some(row) = row else {
                return Err(AppError::not_found(ObjectKind::Allocation, allocation_id));
            };
            if let Some(meeting) = meeting(&containers, container_id) {
                return Ok(meeting);
            }
            if row.ended_at.is_some() {
                return Err(AppError::precondition(format!(
                    "allocation \"{allocation_id}\" has ended before all its containers met"
                )));
            }
            tokio::select! {
                () = changes.changed() => {}
                () = self.context.shutdown.cancelled() => {
                    return Err(AppError::new(crate::error::ErrorKind::Unavailable, "the master is stopping")
                        .hint("ask again; nothing is lost"));
                }
            }
        }
    }

    /// Marks a container as a helper that does not keep the allocation alive. Of a lone container this is ignored.
    pub async fn mark_daemon(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        container_id: &ContainerId,
    ) -> AppResult<()> {
        self.require_reporter(actor, allocation_id).await?;
        self.orchestration
            .commit(Event::Daemon {
                id: allocation_id.clone(),
                container_id: container_id.clone(),
                cause: Cause::actor(actor.name()),
            })
            .await
    }

    /// Stores what a container reports of its accelerators: `data` makes that of the allocation, whose row knows some of it
    /// better.
    pub async fn accelerator_data(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        container_id: &ContainerId,
        data: impl FnOnce(AllocationRow) -> AppResult<Value>,
    ) -> AppResult<()> {
        let data = data(self.find(actor, allocation_id).await?)?.to_string();
        if data.len() > MOST_ACCELERATOR_DATA {
            return Err(AppError::invalid(format!(
                "the accelerators of a container take {} bytes as JSON, and at most {MOST_ACCELERATOR_DATA} are stored",
                data.len()
            )));
        }
        let (allocation, container) = (allocation_id.clone(), container_id.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let rows = allocations::containers(&mut tx.conn(), &allocation).await?;
                    let alone = rows.len() == 1;
                    let Some(mut row) = rows.into_iter().find(|r| r.id == container || alone)
                    else {
                        return Err(AppError::not_found(ObjectKind::Container, &container));
                    };
                    row.accelerators = Some(data);
                    allocations::update_container(&mut tx.conn(), &row).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Waits until all members have given something, and returns the same answer to each: the body `{"data":[…]}` with
    /// all of it. Joining again under the same id replaces what was given. Lives in memory: after a restart of the master
    /// the members ask again.
    pub async fn all_gather(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        given: Contribution,
    ) -> AppResult<Bytes> {
        let Contribution { uuid, peers, data } = given;
        self.find(actor, allocation_id).await?;
        let topic = Topic::Allocation(allocation_id.clone());
        let mut changes = self.context.hub.subscribe(topic.clone());
        // Before anything is kept, so that nothing is after the end.
        self.require_unended(allocation_id).await?;
        self.all_gathers
            .give(Some(actor.user().id), allocation_id, &uuid, peers, data)?;
        self.context.hub.notify(&topic);
        loop {
            let answer = self.all_gathers.complete(allocation_id, &uuid, peers);
            // Again, should the allocation have ended between the look at it and the gift.
            let unended = self.require_unended(allocation_id).await;
            if unended.is_err() {
                self.all_gathers.remove(allocation_id);
            }
            if let Some(answer) = answer {
                return Ok(answer);
            }
            unended?;
            tokio::select! {
                () = changes.changed() => {}
                () = self.context.shutdown.cancelled() => {
                    return Err(AppError::new(crate::error::ErrorKind::Unavailable, "the master is stopping"));
                }
            }
        }
    }

    /// An allocation that exists, for those who may act for it.
    async fn find(&self, actor: &Actor, allocation_id: &AllocationId) -> AppResult<AllocationRow> {
        let row = reads::allocations::find(&self.context.store, actor, allocation_id).await?;
        self.require_reporter(actor, allocation_id).await?;
        Ok(row)
    }

    async fn require_reporter(&self, actor: &Actor, allocation_id: &AllocationId) -> AppResult<()> {
        require_form(allocation_id)?;
        self.ownership
            .require_reporter(actor, ReportSubject::Allocation(allocation_id))
            .await
    }

    async fn require_unended(&self, allocation_id: &AllocationId) -> AppResult<()> {
        let row = {
            let mut conn = self.context.store.read().await?;
            allocations::find(&mut conn.conn(), allocation_id).await?
        };
        if row.is_none_or(|row| row.ended_at.is_some()) {
            return Err(AppError::precondition(format!(
                "allocation \"{allocation_id}\" has ended"
            )));
        }
        Ok(())
    }
}

/// Whether a poll of the preemption signal is the first sign that the code of an attempt can be asked to save and exit.
fn shows_that_it_listens(actor: &Actor, row: &AllocationRow) -> bool {
    let by_itself = matches!(actor, Actor::Task(task) if task.allocation_id == row.id);
    by_itself
        && row.preemptible
        && Release::of(row.kind) == Release::BySaving(Meeting::Poll)
        && matches!(row.state, AllocationState::Starting(_))
}

/// The addresses of all members, once all have come and their addresses are known.
fn meeting(containers: &[ContainerRow], container_id: &ContainerId) -> Option<Rendezvous> {
    let members = containers.iter();
    let members = members.map(|row| (row.joined, row.observed.as_ref()));
    let addresses = ObservedState::meeting(members)?;
    let (mut slots, mut rank) = (Vec::new(), None);
    for row in containers {
        if row.id == *container_id {
            rank = Some(row.member);
        }
        slots.push(i64::try_from(row.slots.len()).unwrap_or(i64::MAX));
    }
    rank.map(|rank| Rendezvous {
        addresses: addresses.into_iter().map(str::to_owned).collect(),
        rank,
        slots,
    })
}
