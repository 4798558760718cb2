//! Workspaces: adding, changing, putting away, deleting them. Every user sees them all and may add some; the owner of one
//! and administrators change it, administrators alone its limit of slots and the Unix
//! identity of its tasks. Number 1, Uncategorized, belongs to the cluster
//! and stays as it is but for that limit.

mod changes;
mod checks;
mod deletion;
mod namespaces;

use std::collections::BTreeMap;

pub use changes::HomeChanges;
pub(crate) use checks::FieldErrors;
pub use deletion::HomeDeletion;
use det_authz::{Kind, Permission, Target};
use det_ids::WorkspaceId;
use det_lifecycle::record::EventKind;
use det_store::task_documents::{self, LaunchedFilter};
use det_store::workspaces::{self, DeletionState, PinRow, WorkspaceRow};
use det_store::{WriteTx, experiments};
pub use namespaces::{NamespaceChoice, NamespaceChoices, WorkspaceNamespaces};
use serde_json::{Map, Value, json};

use crate::app::context::Context;
use crate::app::homes::{Homes, require_unarchived_workspace};
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::users::UnixIdentity;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;
use det_taskspec::TaskLabel;

/// What only administrators may do.
const TO_LIMIT: &str = "limit the slots of workspaces";
/// What would let users run their tasks as root, were it not for administrators only.
const CHOOSE_IDENTITY: &str = "choose the Unix identity of tasks";

/// Changes of a workspace, or what a new one is; `None` leaves things as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkspacePatch {
    /// Name of the workspace, unique over the cluster.
    pub name: Option<String>,
    /// Unix identity of tasks in it.
    pub identity: Option<UnixIdentity>,
    /// Checkpoint storage laid over the cluster's; empty = none.
    pub checkpoint_storage: Option<Map<String, Value>>,
    /// Pool of work with slots; empty = the cluster's.
    pub default_compute_pool: Option<String>,
    /// Pool of work without slots; empty = the cluster's.
    pub default_aux_pool: Option<String>,
    /// Most slots in use at once; -1 = no limit.
    pub max_slots: Option<i64>,
    /// Most slots in use at once in each cluster, by its name; -1 = no limit.
    pub quotas: BTreeMap<String, i64>,
}

impl WorkspacePatch {
    /// Whether nothing but the limit of slots is to change, which is the administrators' business, of Uncategorized too.
    fn is_about_the_limit(&self) -> bool {
        self.name.is_none()
            && self.identity.is_none()
            && self.checkpoint_storage.is_none()
            && self.default_compute_pool.is_none()
            && self.default_aux_pool.is_none()
    }
}

/// Workspaces as users change them. Cheap to clone.
#[derive(Clone)]
pub struct Workspaces {
    context: Context,
    pools: Pools,
    ownership: Ownership,
    changes: HomeChanges,
    deletion: HomeDeletion,
}

impl Workspaces {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        pools: Pools,
        ownership: Ownership,
        changes: HomeChanges,
        deletion: HomeDeletion,
    ) -> Self {
        Self {
            context,
            pools,
            ownership,
            changes,
            deletion,
        }
    }

    /// Adds a workspace.
    pub async fn create(&self, actor: &Actor, new: WorkspacePatch) -> AppResult<WorkspaceRow> {
        actor.require(Permission::Create, Kind::Workspace, "create workspaces")?;
        let owner = actor.user().id;
        let mut errors = FieldErrors::default();
        let mut row = WorkspaceRow {
            owner_id: Some(owner),
            created_at: det_store::now(),
            ..WorkspaceRow::default()
        };
        self.apply_patch(&mut errors, &mut row, new)?;
        errors.refuse("the workspace")?;
        if row.max_slots.is_some() {
            actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
        }
        if identity_of(&row) != UnixIdentity::default() {
            actor.require(Permission::Administer, Kind::Workspace, CHOOSE_IDENTITY)?;
        }
        let actor = actor.name();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    require_free(&homes, &row)?;
                    row.id = workspaces::insert(&mut tx.conn(), &row).await?;
                    let pin = PinRow {
                        user_id: owner,
                        workspace_id: row.id,
                        pinned_at: row.created_at,
                    };
                    workspaces::pin(&mut tx.conn(), &pin).await?;
                    service
                        .changes
                        .record_workspace(
                            tx,
                            &actor,
                            EventKind::Created,
                            &row,
                            Some(shown_settings(&row)),
                        )
                        .await?;
                    Ok(row)
                })
            })
            .await
    }

    /// Changes a workspace.
    pub async fn change(
        &self,
        actor: &Actor,
        id: WorkspaceId,
        patch: WorkspacePatch,
    ) -> AppResult<WorkspaceRow> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let before = homes.workspace(id)?;
                    let to_do = format!("change workspace \"{}\"", before.name);
                    if patch.is_about_the_limit() {
                        actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
                    } else {
                        service.ownership.require_of(
                            &actor,
                            Permission::Change,
                            &target(before),
                            &to_do,
                        )?;
                        require_mutable(before)?;
                    }
                    require_unarchived_workspace(before, "it cannot be changed")?;
                    let mut row = before.clone();
                    let mut errors = FieldErrors::default();
                    service.apply_patch(&mut errors, &mut row, patch)?;
                    errors.refuse("the workspace")?;
                    if row == *before {
                        return Ok(row);
                    }
                    if row.max_slots != before.max_slots {
                        actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
                    }
                    if identity_of(&row) != identity_of(before) {
                        actor.require(Permission::Administer, Kind::Workspace, CHOOSE_IDENTITY)?;
                    }
                    require_free(&homes, &row)?;
                    workspaces::update(&mut tx.conn(), &row).await?;
                    let detail = Some(shown_settings(&row));
                    service
                        .changes
                        .record_workspace(tx, &actor.name(), EventKind::Changed, &row, detail)
                        .await?;
                    if row.max_slots != before.max_slots {
                        service.context.wake(tx, Topic::Schedule);
                    }
                    Ok(row)
                })
            })
            .await
    }

    /// Puts changes into a row; what is wrong with them is noted.
    fn apply_patch(
        &self,
        errors: &mut FieldErrors,
        row: &mut WorkspaceRow,
        patch: WorkspacePatch,
    ) -> AppResult<()> {
        if let Some(name) = patch.name {
            row.name = errors.name(&name);
        }
        if let Some(identity) = patch.identity
            && let Some(identity) = errors.take(identity.checked_halves())
        {
            row.agent_uid = identity.uid;
            row.agent_user = identity.user;
            row.agent_gid = identity.gid;
            row.agent_group = identity.group;
        }
        if let Some(storage) = patch.checkpoint_storage {
            row.checkpoint_storage = self.checked_storage(errors, storage)?;
        }
        if let Some(pool) = patch.default_compute_pool {
            row.default_compute_pool = self.checked_pool(errors, "defaultComputePool", pool);
        }
        if let Some(pool) = patch.default_aux_pool {
            row.default_aux_pool = self.checked_pool(errors, "defaultAuxPool", pool);
        }
        if let Some(slots) = patch.max_slots {
            row.max_slots = errors.limit("maxSlots", slots);
        }
        if let Some(limit) = self.quota(errors, patch.quotas) {
            row.max_slots = limit;
        }
        Ok(())
    }

    /// Puts a workspace away with its projects, or takes it out again. What runs in it goes on.
    pub async fn archive(&self, actor: &Actor, id: WorkspaceId, archived: bool) -> AppResult<()> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let mut row = homes.workspace(id)?.clone();
                    let verb = if archived { "archive" } else { "unarchive" };
                    let to_do = format!("{verb} workspace \"{}\"", row.name);
                    service.ownership.require_of(
                        &actor,
                        Permission::Change,
                        &target(&row),
                        &to_do,
                    )?;
                    require_mutable(&row)?;
                    if row.archived == archived {
                        return Ok(());
                    }
                    row.archived = archived;
                    workspaces::update(&mut tx.conn(), &row).await?;
                    let kind = if archived {
                        EventKind::Archived
                    } else {
                        EventKind::Unarchived
                    };
                    service
                        .changes
                        .record_workspace(tx, &actor.name(), kind, &row, None)
                        .await
                })
            })
            .await
    }

    /// Pins a workspace for the calling user, or takes the pin away.
    pub async fn pin(&self, actor: &Actor, id: WorkspaceId, pinned: bool) -> AppResult<()> {
        actor.require(Permission::Annotate, Kind::Workspace, "pin workspaces")?;
        let user_id = actor.user().id;
        let actor = actor.name();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let row = homes.workspace(id)?;
                    if homes.pins.contains_key(&(user_id, id)) == pinned {
                        return Ok(());
                    }
                    if pinned {
                        let pin = PinRow {
                            user_id,
                            workspace_id: id,
                            pinned_at: det_store::now(),
                        };
                        workspaces::pin(&mut tx.conn(), &pin).await?;
                    } else {
                        workspaces::unpin(&mut tx.conn(), user_id, id).await?;
                    }
                    let kind = if pinned {
                        EventKind::Pinned
                    } else {
                        EventKind::Unpinned
                    };
                    service
                        .changes
                        .record_workspace(tx, &actor, kind, row, None)
                        .await
                })
            })
            .await
    }

    /// Deletes a workspace with everything in it. `true` = it is gone; else its experiments are being deleted, and it
    /// goes with the last of them.
    pub async fn delete(&self, actor: &Actor, id: WorkspaceId) -> AppResult<bool> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let mut row = homes.workspace(id)?.clone();
                    let what = format!("workspace \"{}\"", row.name);
                    let to_do = format!("delete {what}");
                    service.ownership.require_of(
                        &actor,
                        Permission::Delete,
                        &target(&row),
                        &to_do,
                    )?;
                    require_mutable_or_deleting(&row)?;
                    require_no_live_tasks(tx, id, &what).await?;
                    let members = experiments::of_workspace(&mut tx.conn(), id).await?;
                    service
                        .deletion
                        .delete_members(tx, &actor, &what, &members)
                        .await?;
                    for project in homes.projects_of(id) {
                        let own = members.iter().any(|member| member.project_id == project.id);
                        service.deletion.begin(tx, &actor, project, own).await?;
                    }
                    if members.is_empty() {
                        workspaces::delete(&mut tx.conn(), id).await?;
                        service
                            .changes
                            .record_workspace(tx, &actor.name(), EventKind::Deleted, &row, None)
                            .await?;
                        return Ok(true);
                    }
                    if row.state != Some(DeletionState::Deleting) {
                        row.state = Some(DeletionState::Deleting);
                        row.error = None;
                        workspaces::update(&mut tx.conn(), &row).await?;
                        service
                            .changes
                            .record_workspace(tx, &actor.name(), EventKind::Deleting, &row, None)
                            .await?;
                    }
                    Ok(false)
                })
            })
            .await
    }
}

/// Tasks that were launched in a workspace must have ended before it goes.
async fn require_no_live_tasks(tx: &mut WriteTx, id: WorkspaceId, what: &str) -> AppResult<()> {
    let filter = LaunchedFilter {
        workspace_id: Some(id),
        ended_after: Some(i64::MAX),
        ..LaunchedFilter::default()
    };
    let live = task_documents::launched(&mut tx.conn(), &filter).await?;
    let Some(first) = live.first() else {
        return Ok(());
    };
    Err(AppError::precondition(format!(
        "{what} cannot be deleted: {} in it have not ended, the first of them {} \"{}\"",
        if live.len() == 1 {
            "1 task".to_owned()
        } else {
            format!("{} tasks", live.len())
        },
        TaskLabel::new(first.kind, &first.id, None),
        first.description.escape_debug()
    ))
    .hint("kill them first: `det cmd kill ID`, `det task kill ID`"))
}

/// What an event records of a workspace's settings: no secrets.
fn shown_settings(row: &WorkspaceRow) -> Value {
    json!({
        "name": row.name,
        "defaultComputePool": row.default_compute_pool,
        "defaultAuxPool": row.default_aux_pool,
        "maxSlots": row.max_slots,
    })
}

/// A workspace to the table of rights.
fn target(row: &WorkspaceRow) -> Target<'static> {
    let target = Target::of(Kind::Workspace);
    row.owner_id.map_or(target, |owner| target.owned_by(owner))
}

/// The Unix identity of tasks.
fn identity_of(row: &WorkspaceRow) -> UnixIdentity {
    UnixIdentity {
        uid: row.agent_uid,
        user: row.agent_user.clone(),
        gid: row.agent_gid,
        group: row.agent_group.clone(),
    }
}

fn require_free(homes: &Homes, row: &WorkspaceRow) -> AppResult<()> {
    match homes.workspace_named(&row.name) {
        Some(other) if other.id != row.id => Err(AppError::new(
            ErrorKind::Conflict,
            format!("there is a workspace \"{}\" already", row.name),
        )
        .hint("choose another name; `det workspace list` shows those in use")),
        _ => Ok(()),
    }
}

/// Refuses to change Uncategorized.
fn require_mutable(row: &WorkspaceRow) -> AppResult<()> {
    require_mutable_or_deleting(row)?;
    if row.state == Some(DeletionState::Deleting) {
        return Err(AppError::precondition(format!(
            "workspace \"{}\" is being deleted and cannot be changed",
            row.name
        )));
    }
    Ok(())
}

fn require_mutable_or_deleting(row: &WorkspaceRow) -> AppResult<()> {
    if row.immutable {
        return Err(AppError::precondition(format!(
            "workspace \"{}\" belongs to the cluster: it cannot be renamed, archived or deleted",
            row.name
        ))
        .hint("create a workspace of your own with `det workspace create NAME`"));
    }
    Ok(())
}
