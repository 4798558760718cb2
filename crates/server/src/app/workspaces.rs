//! Workspaces: adding, changing, putting away, deleting them. Everybody sees them all and may add some; the owner of one
//! and administrators change it, administrators alone its limit of slots and the Unix
//! identity of its tasks. Number 1, Uncategorized, belongs to the cluster
//! and stays as it is but for that limit.

mod checks;
mod known;

use std::collections::BTreeMap;

use det_authz::{Kind, Permission, Target};
use det_ids::ExperimentId;
use det_lifecycle::experiment::ExperimentEvent;
use det_orchestrator::Event;
use det_store::WriteTx;
use det_store::events::NewEvent;
use det_store::experiments::{self, Member};
use det_store::workspaces::{self, DELETE_FAILED, DELETING, PinRow, WorkspaceRow};
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

pub(crate) use checks::Mistakes;
pub use known::{Known, Places};
pub(crate) use known::{path_of, require_unarchived, require_unarchived_workspace};

use crate::app::Master;
use crate::app::orchestration::Cause;
use crate::app::users::UnixIdentity;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// What only administrators may do.
const TO_LIMIT: &str = "limit the slots of workspaces";
/// What would let people run their tasks as root, were it not for administrators only.
const TO_BE_SOMEBODY: &str = "choose the Unix identity of tasks";
/// Experiments named in a refusal at most.
const MOST_NAMED: usize = 5;

/// A workspace to add.
#[derive(Debug, Clone, Default)]
pub struct NewWorkspace {
    /// Its name.
    pub name: String,
    /// Unix identity of tasks in it.
    pub identity: UnixIdentity,
    /// Checkpoint storage laid over the cluster's; empty = none.
    pub checkpoint_storage: Map<String, Value>,
    /// Pool of work with slots; empty = the cluster's.
    pub default_compute_pool: String,
    /// Pool of work without slots; empty = the cluster's.
    pub default_aux_pool: String,
    /// Most slots in use at once; -1 = no limit, `None` = not said.
    pub max_slots: Option<i64>,
    /// The same by cluster.
    pub quotas: BTreeMap<String, i64>,
    /// Whether a Kubernetes namespace was asked for.
    pub namespaces: bool,
}

/// Changes of a workspace; `None` leaves things as they are.
#[derive(Debug, Clone, Default)]
pub struct WorkspacePatch {
    /// New name.
    pub name: Option<String>,
    /// See [`NewWorkspace`].
    pub identity: Option<UnixIdentity>,
    /// See [`NewWorkspace`].
    pub checkpoint_storage: Option<Map<String, Value>>,
    /// See [`NewWorkspace`].
    pub default_compute_pool: Option<String>,
    /// See [`NewWorkspace`].
    pub default_aux_pool: Option<String>,
    /// See [`NewWorkspace`].
    pub max_slots: Option<i64>,
    /// See [`NewWorkspace`].
    pub quotas: BTreeMap<String, i64>,
    /// See [`NewWorkspace`].
    pub namespaces: bool,
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

/// Kubernetes' part of workspaces.
pub(crate) fn no_namespaces() -> AppError {
    AppError::new(
        ErrorKind::NotBuilt,
        "namespaces of workspaces belong to Kubernetes, which is not built in this version",
    )
    .hint(
        "a limit of slots needs no namespace here: `det workspace resource-quota set WORKSPACE N`",
    )
}

impl Master {
    /// Changes workspaces or projects in one transaction, which is given them as they are; the copy in memory follows
    /// with the commit.
    pub(crate) async fn change_places<T, F>(&self, change: F) -> AppResult<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(Self, &'t mut WriteTx, Places) -> BoxFuture<'t, AppResult<T>>
            + Send
            + 'static,
    {
        let master = self.clone();
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let places = Places::load(&mut tx.conn()).await?;
                    let outcome = change(master.clone(), tx, places).await?;
                    master.learn_places(tx).await?;
                    Ok(outcome)
                })
            })
            .await
    }

    /// The copy in memory takes in, with the commit, what this transaction has changed.
    pub(crate) async fn learn_places(&self, tx: &mut WriteTx) -> AppResult<()> {
        let places = Places::load(&mut tx.conn()).await?;
        let master = self.clone();
        tx.once_stored(move || {
            master.places.set(places);
            // Not before: a pass would see the old limits.
            master.context.hub.notify(&Topic::Schedule);
        });
        Ok(())
    }

    /// Adds a workspace.
    pub async fn create_workspace(
        &self,
        actor: &Actor,
        new: NewWorkspace,
    ) -> AppResult<WorkspaceRow> {
        actor.require(Permission::Create, Kind::Workspace, "create workspaces")?;
        let owner = actor.user().id;
        if new.namespaces {
            return Err(no_namespaces());
        }
        let mut mistakes = Mistakes::default();
        let patch = WorkspacePatch {
            name: Some(new.name),
            identity: Some(new.identity),
            checkpoint_storage: Some(new.checkpoint_storage),
            default_compute_pool: Some(new.default_compute_pool),
            default_aux_pool: Some(new.default_aux_pool),
            max_slots: new.max_slots,
            quotas: new.quotas,
            namespaces: false,
        };
        let mut row = WorkspaceRow {
            owner_id: Some(owner),
            created_at: det_store::now(),
            ..WorkspaceRow::default()
        };
        self.apply_patch(&mut mistakes, &mut row, patch)?;
        mistakes.refuse("the workspace")?;
        if row.max_slots.is_some() {
            actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
        }
        if identity_of(&row) != UnixIdentity::default() {
            actor.require(Permission::Administer, Kind::Workspace, TO_BE_SOMEBODY)?;
        }
        let actor = actor.name();
        self.change_places(move |master, tx, places| {
            Box::pin(async move {
                require_free(&places, &row)?;
                row.id = workspaces::insert(&mut tx.conn(), &row).await?;
                let pin = PinRow {
                    user_id: owner,
                    workspace_id: row.id,
                    pinned_at: row.created_at,
                };
                workspaces::pin(&mut tx.conn(), &pin).await?;
                master
                    .record_workspace(tx, &actor, "created", &row, Some(shown_settings(&row)))
                    .await?;
                Ok(row)
            })
        })
        .await
    }

    /// Changes a workspace.
    pub async fn change_workspace(
        &self,
        actor: &Actor,
        id: i64,
        patch: WorkspacePatch,
    ) -> AppResult<WorkspaceRow> {
        if patch.namespaces {
            return Err(no_namespaces());
        }
        let actor = actor.clone();
        self.change_places(move |master, tx, places| {
            Box::pin(async move {
                let before = places.workspace(id)?;
                let to_do = format!("change workspace \"{}\"", before.name);
                if patch.is_about_the_limit() {
                    actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
                } else {
                    master.ownership.require_of(
                        &actor,
                        Permission::Change,
                        &target(before),
                        &to_do,
                    )?;
                    require_mutable(before)?;
                }
                require_unarchived_workspace(before, "it cannot be changed")?;
                let mut row = before.clone();
                let mut mistakes = Mistakes::default();
                master.apply_patch(&mut mistakes, &mut row, patch)?;
                mistakes.refuse("the workspace")?;
                if row == *before {
                    return Ok(row);
                }
                if row.max_slots != before.max_slots {
                    actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
                }
                if identity_of(&row) != identity_of(before) {
                    actor.require(Permission::Administer, Kind::Workspace, TO_BE_SOMEBODY)?;
                }
                require_free(&places, &row)?;
                workspaces::update(&mut tx.conn(), &row).await?;
                let detail = Some(shown_settings(&row));
                master
                    .record_workspace(tx, &actor.name(), "changed", &row, detail)
                    .await?;
                if row.max_slots != before.max_slots {
                    master.context.wake(tx, Topic::Schedule);
                }
                Ok(row)
            })
        })
        .await
    }

    /// Puts changes into a row; what is wrong with them is noted.
    fn apply_patch(
        &self,
        mistakes: &mut Mistakes,
        row: &mut WorkspaceRow,
        patch: WorkspacePatch,
    ) -> AppResult<()> {
        if let Some(name) = patch.name {
            row.name = mistakes.name(&name);
        }
        if let Some(identity) = patch.identity
            && let Some(identity) = mistakes.take(identity.checked_halves())
        {
            row.agent_uid = identity.uid;
            row.agent_user = identity.user;
            row.agent_gid = identity.gid;
            row.agent_group = identity.group;
        }
        if let Some(storage) = patch.checkpoint_storage {
            row.checkpoint_storage = self.checked_storage(mistakes, storage)?;
        }
        if let Some(pool) = patch.default_compute_pool {
            row.default_compute_pool = self.checked_pool(mistakes, "defaultComputePool", pool);
        }
        if let Some(pool) = patch.default_aux_pool {
            row.default_aux_pool = self.checked_pool(mistakes, "defaultAuxPool", pool);
        }
        if let Some(slots) = patch.max_slots {
            row.max_slots = mistakes.limit("maxSlots", slots);
        }
        if let Some(limit) = self.quota(mistakes, patch.quotas) {
            row.max_slots = limit;
        }
        Ok(())
    }

    /// Puts a workspace away with its projects, or takes it out again. What runs in it goes on.
    pub async fn archive_workspace(&self, actor: &Actor, id: i64, archived: bool) -> AppResult<()> {
        let actor = actor.clone();
        self.change_places(move |master, tx, places| {
            Box::pin(async move {
                let mut row = places.workspace(id)?.clone();
                let verb = if archived { "archive" } else { "unarchive" };
                let to_do = format!("{verb} workspace \"{}\"", row.name);
                master
                    .ownership
                    .require_of(&actor, Permission::Change, &target(&row), &to_do)?;
                require_mutable(&row)?;
                if row.archived == archived {
                    return Ok(());
                }
                row.archived = archived;
                workspaces::update(&mut tx.conn(), &row).await?;
                let kind = if archived { "archived" } else { "unarchived" };
                master
                    .record_workspace(tx, &actor.name(), kind, &row, None)
                    .await
            })
        })
        .await
    }

    /// Pins a workspace for the person who asks, or takes the pin away.
    pub async fn pin_workspace(&self, actor: &Actor, id: i64, pinned: bool) -> AppResult<()> {
        actor.require(Permission::Annotate, Kind::Workspace, "pin workspaces")?;
        let user_id = actor.user().id;
        let actor = actor.name();
        self.change_places(move |master, tx, places| {
            Box::pin(async move {
                let row = places.workspace(id)?;
                if places.pins.contains_key(&(user_id, id)) == pinned {
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
                let kind = if pinned { "pinned" } else { "unpinned" };
                master.record_workspace(tx, &actor, kind, row, None).await
            })
        })
        .await
    }

    /// Deletes a workspace with everything in it. `true` = it is gone; else its experiments are being deleted, and it
    /// goes with the last of them.
    pub async fn delete_workspace(&self, actor: &Actor, id: i64) -> AppResult<bool> {
        let actor = actor.clone();
        self.change_places(move |master, tx, places| {
            Box::pin(async move {
                let mut row = places.workspace(id)?.clone();
                let what = format!("workspace \"{}\"", row.name);
                let to_do = format!("delete {what}");
                master
                    .ownership
                    .require_of(&actor, Permission::Delete, &target(&row), &to_do)?;
                require_mutable_or_deleting(&row)?;
                let members = experiments::of_workspace(&mut tx.conn(), id).await?;
                master.delete_members(tx, &actor, &what, &members).await?;
                for project in places.projects_of(id) {
                    let own = members.iter().any(|member| member.project_id == project.id);
                    master.begin_deletion(tx, &actor, project, own).await?;
                }
                if members.is_empty() {
                    workspaces::delete(&mut tx.conn(), id).await?;
                    master
                        .record_workspace(tx, &actor.name(), "deleted", &row, None)
                        .await?;
                    return Ok(true);
                }
                if row.state.as_deref() != Some(DELETING) {
                    row.state = Some(DELETING.to_owned());
                    row.error = None;
                    workspaces::update(&mut tx.conn(), &row).await?;
                    master
                        .record_workspace(tx, &actor.name(), "deleting", &row, None)
                        .await?;
                }
                Ok(false)
            })
        })
        .await
    }

    /// Begins to delete the experiments of what is deleted. Refused while one of them lives, and where some belong to
    /// others, unless an administrator asks.
    pub(crate) async fn delete_members(
        &self,
        tx: &mut WriteTx,
        actor: &Actor,
        what: &str,
        members: &[Member],
    ) -> AppResult<()> {
        let live: Vec<&Member> = members.iter().filter(|m| m.is_in_use()).collect();
        if !live.is_empty() {
            return Err(AppError::precondition(format!(
                "{what} cannot be deleted: {} in it have not come to their end ({})",
                counted(live.len()),
                named(&live)
            ))
            .hint(
                "end them with `det experiment cancel ID` or `det experiment kill ID`, or move them elsewhere with \
                 `det experiment move`",
            ));
        }
        let experiment = Target::of(Kind::Experiment);
        let foreign: Vec<&Member> = members
            .iter()
            .filter(|m| !actor.may(Permission::Delete, &experiment.owned_by(m.owner_id)))
            .collect();
        if !foreign.is_empty() {
            return Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "user \"{}\" may not delete {what}: {} in it belong to others ({})",
                    actor.user().username,
                    counted(foreign.len()),
                    named(&foreign)
                ),
            )
            .hint("ask an administrator to do it, or archive it"));
        }
        let cause = Cause {
            actor: actor.name().into(),
            reason: Some(format!("{what} is deleted").into()),
        };
        let events = members.iter().map(|member| Event::Experiment {
            id: ExperimentId(member.id),
            event: ExperimentEvent::Delete,
            cause: cause.clone(),
        });
        self.orchestration.advance(tx, events).await?;
        if !members.is_empty() {
            let hub = self.context.hub.clone();
            tx.after_commit(move || hub.notify(&Topic::CleanUp));
        }
        Ok(())
    }

    /// After the deletion of an experiment of this project: goes on with what waits for it. `failed` = it could not be
    /// deleted, and why.
    pub(crate) async fn after_member_deletion(
        &self,
        tx: &mut WriteTx,
        actor: &str,
        project_id: i64,
        failed: Option<&str>,
    ) -> AppResult<()> {
        let Some(mut project) = workspaces::find_project(&mut tx.conn(), project_id).await? else {
            return Ok(());
        };
        if project.state.as_deref() != Some(DELETING) {
            return Ok(());
        }
        let workspace = workspaces::find(&mut tx.conn(), project.workspace_id).await?;
        let workspace = workspace.filter(|row| row.state.as_deref() == Some(DELETING));
        if let Some(why) = failed {
            project.state = Some(DELETE_FAILED.to_owned());
            project.error = Some(why.to_owned());
            workspaces::update_project(&mut tx.conn(), &project).await?;
            self.record_project(tx, actor, "delete_failed", &project, None)
                .await?;
            if let Some(mut workspace) = workspace {
                workspace.state = Some(DELETE_FAILED.to_owned());
                workspace.error = Some(why.to_owned());
                workspaces::update(&mut tx.conn(), &workspace).await?;
                self.record_workspace(tx, actor, "delete_failed", &workspace, None)
                    .await?;
            }
            return self.learn_places(tx).await;
        }
        if !experiments::project_is_empty(&mut tx.conn(), project_id).await? {
            return Ok(());
        }
        workspaces::delete_project(&mut tx.conn(), project_id).await?;
        self.record_project(tx, actor, "deleted", &project, None)
            .await?;
        if let Some(workspace) = workspace {
            let places = Places::load(&mut tx.conn()).await?;
            if places.projects_of(workspace.id).next().is_none() {
                workspaces::delete(&mut tx.conn(), workspace.id).await?;
                self.record_workspace(tx, actor, "deleted", &workspace, None)
                    .await?;
            }
        }
        self.learn_places(tx).await
    }

    pub(super) async fn record_workspace(
        &self,
        tx: &mut WriteTx,
        actor: &str,
        kind: &'static str,
        row: &WorkspaceRow,
        detail: Option<Value>,
    ) -> AppResult<()> {
        let event = NewEvent {
            actor,
            subject_kind: "workspace",
            subject_id: row.id.to_string(),
            kind,
            reason: row.error.as_deref(),
            detail: detail.map(|detail| detail.to_string()),
            ..Default::default()
        };
        Ok(self.context.record(tx, event).await?)
    }
}

/// What is worth telling of a workspace's settings in an event: no secrets.
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

fn require_free(places: &Places, row: &WorkspaceRow) -> AppResult<()> {
    match places.workspace_named(&row.name) {
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
    if row.state.as_deref() == Some(DELETING) {
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

fn counted(count: usize) -> String {
    if count == 1 {
        "1 experiment".to_owned()
    } else {
        format!("{count} experiments")
    }
}

/// The first of some experiments.
fn named(members: &[&Member]) -> String {
    let first = members.iter().take(MOST_NAMED);
    let mut text: Vec<String> = first.map(|member| member.id.to_string()).collect();
    if members.len() > MOST_NAMED {
        text.push("…".to_owned());
    }
    text.join(", ")
}
