//! Steering tasks that users launched: killing, pausing and activating them, with everything that belongs to them.

use det_ids::TaskId;
use det_lifecycle::task::{RestartPolicy, Stop, TaskEvent, TaskState};
use det_orchestrator::Event;
use det_store::allocations::TaskRow;
use det_store::task_documents::{self, TaskDocument};
use det_store::{Conn, WriteTx, allocations};
use det_taskspec::{TaskDetails, TaskKind};

use super::Launches;
use crate::app::existing;
use crate::app::existing::no_task_of;
use crate::app::orchestration::Cause;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Tasks that belong to one task at most, itself included.
const MOST_MEMBERS: usize = 256;

/// Where a change of a task with others below or above it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubtreeStart {
    /// At the task itself: it, and what belongs to it.
    Task,
    /// At the task that everything belongs to.
    Root,
}

impl Launches {
    /// Ends a task at once, with everything that belongs to it. `kind` = what it must be; of one that has ended nothing
    /// changes.
    pub async fn kill(
        &self,
        actor: &Actor,
        kind: TaskKind,
        id: &TaskId,
        from: SubtreeStart,
    ) -> AppResult<()> {
        self.steer(actor, Some(kind), id, from, TaskEvent::Kill)
            .await
    }

    /// Lets a task of any kind, and those that belong to it, give their slots back and rest.
    pub async fn pause(&self, actor: &Actor, id: &TaskId) -> AppResult<()> {
        self.steer(actor, None, id, SubtreeStart::Task, TaskEvent::Suspend)
            .await
    }

    /// Lets a task of any kind, and those that belong to it, go on.
    pub async fn activate(&self, actor: &Actor, id: &TaskId) -> AppResult<()> {
        self.steer(actor, None, id, SubtreeStart::Task, TaskEvent::Resume)
            .await
    }

    /// `kind` = what the task must be; `None` = any that users launch.
    async fn steer(
        &self,
        actor: &Actor,
        kind: Option<TaskKind>,
        id: &TaskId,
        from: SubtreeStart,
        event: TaskEvent,
    ) -> AppResult<()> {
        self.ownership.require_steering_of_task(actor, id).await?;
        if from == SubtreeStart::Root {
            let root = self.root_of(id).await?;
            self.ownership
                .require_steering_of_task(actor, &root)
                .await?;
        }
        let (service, id, cause) = (self.clone(), id.clone(), Cause::actor(actor.name()));
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    // The master launches deletions of checkpoints; their owners end them as generic tasks.
                    let is_deletion =
                        existing::task(&mut tx.conn(), &id).await?.kind == TaskKind::CheckpointGc;
                    let kind = kind.filter(|kind| {
                        !(is_deletion && *kind == TaskKind::Generic && event == TaskEvent::Kill)
                    });
                    let document = document(tx, kind, &id).await?;
                    let top = match from {
                        SubtreeStart::Task => id.clone(),
                        SubtreeStart::Root => root(&mut tx.conn(), document).await?,
                    };
                    for task in task_documents::tree(&mut tx.conn(), &top).await? {
                        let is_asked = task == id;
                        if !service.is_concerned(tx, &task, &event, is_asked).await? {
                            continue;
                        }
                        let (event, cause) = (event.clone(), cause.clone());
                        let event = Event::Task {
                            id: task,
                            event,
                            cause,
                        };
                        service.orchestration.advance(tx, [event]).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    /// Refuses actors who may not add a part to a task. A tree has few parts, and a kill from its root reaches all of them:
    /// that is for its owner, also where a part of it is another user's.
    pub(super) async fn require_joining(&self, actor: &Actor, parent: &TaskId) -> AppResult<()> {
        for id in [parent.clone(), self.root_of(parent).await?] {
            let to_do = format!("add a part to task \"{id}\"");
            self.ownership
                .require_owner_of_task(actor, &id, &to_do)
                .await?;
        }
        Ok(())
    }

    /// The root of a task's tree. Parents never change, so that it may be asked for before the change.
    async fn root_of(&self, id: &TaskId) -> AppResult<TaskId> {
        let mut conn = self.context.store.read().await?;
        match task_documents::find(&mut conn.conn(), id).await? {
            Some(document) => root(&mut conn.conn(), document).await,
            None => Ok(id.clone()),
        }
    }

    /// Whether an event is for a task: what belongs to the one that was asked for is left alone where it cannot follow.
    async fn is_concerned(
        &self,
        tx: &mut WriteTx,
        id: &TaskId,
        event: &TaskEvent,
        is_asked: bool,
    ) -> AppResult<bool> {
        let row = existing::task(&mut tx.conn(), id).await?;
        if is_asked && *event != TaskEvent::Kill && row.ended_at.is_some() {
            return Err(AppError::precondition(format!(
                "task \"{id}\" has ended ({}): it cannot be paused or activated",
                row.state.name()
            )));
        }
        if *event == TaskEvent::Suspend {
            let document = task_documents::find(&mut tx.conn(), id).await?;
            let refuses = document.is_some_and(|document| is_never_paused(&document));
            if refuses && is_asked {
                return Err(AppError::precondition(format!(
                    "task \"{id}\" was launched as one that is never paused (--no_pause)"
                ))
                .hint(format!("`det task kill {id}` ends it")));
            }
            if refuses {
                return Ok(false);
            }
        }
        // Of the one that was asked for the life cycle reports why it cannot.
        let preemptible = row.demand.and_then(|demand| demand.preemptible);
        let policy = RestartPolicy::of(row.kind, preemptible);
        Ok(is_asked || row.state.follows(event, policy))
    }
}

/// Whether a new task is paused like the one that it belongs to, which is in this state: what a pause would have reached
/// does not start.
pub(super) fn is_paused_with(parent: TaskState, task: &TaskRow, document: &TaskDocument) -> bool {
    let preemptible = task.demand.and_then(|demand| demand.preemptible);
    matches!(
        parent,
        TaskState::Suspended | TaskState::Stopping(Stop::Suspend)
    ) && !is_never_paused(document)
        && RestartPolicy::of(task.kind, preemptible).is_preemptible()
}

fn is_never_paused(document: &TaskDocument) -> bool {
    matches!(&document.details, TaskDetails::Generic(generic) if generic.no_pause)
}

/// The document of a task, which must be of a kind; `None` = of any that users launch.
async fn document(
    tx: &mut WriteTx,
    kind: Option<TaskKind>,
    id: &TaskId,
) -> AppResult<TaskDocument> {
    let found = task_documents::find(&mut tx.conn(), id).await?;
    found
        .filter(|document| kind.is_none_or(|kind| document.details.kind() == kind))
        .ok_or_else(|| no_task_of(kind.unwrap_or(TaskKind::Generic), id))
}

/// The root of the tree of a generic task.
async fn root(conn: &mut Conn<'_>, document: TaskDocument) -> AppResult<TaskId> {
    let mut top = document;
    while let Some(parent) = top.parent_id.clone() {
        match task_documents::find(conn, &parent).await? {
            Some(found) => top = found,
            None => break,
        }
    }
    Ok(top.task_id)
}

/// Tasks belong to generic tasks that have not ended and are not being killed. Returns the state of that one.
pub(super) async fn require_live_parent(tx: &mut WriteTx, id: &TaskId) -> AppResult<TaskState> {
    let parent = document(tx, Some(TaskKind::Generic), id).await?;
    // All of them are steered by one change.
    let root = root(&mut tx.conn(), parent).await?;
    let members = task_documents::tree(&mut tx.conn(), &root).await?.len();
    if members >= MOST_MEMBERS {
        return Err(AppError::precondition(format!(
            "{members} tasks belong to task \"{root}\": no more than {MOST_MEMBERS} may belong together"
        ))
        .hint("launch tasks of their own, without a parent"));
    }
    let row = allocations::find_task(&mut tx.conn(), id).await?;
    match row.map(|row| row.state) {
        Some(state) if state.takes_members() => Ok(state),
        Some(TaskState::Stopping(_)) => Err(AppError::precondition(format!(
            "task \"{id}\" is being killed, with everything that belongs to it: nothing can belong to it any more"
        ))),
        _ => Err(AppError::precondition(format!(
            "task \"{id}\" has ended: nothing can belong to it any more"
        ))),
    }
}
