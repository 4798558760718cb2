//! Projects: adding, changing, moving, putting away, deleting them; moving experiments between them.

use std::collections::{BTreeMap, HashSet};

use det_authz::{Kind, Permission, Target};
use det_ids::{ExperimentId, ProjectId, WorkspaceId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::events::NewEvent;
use det_store::experiments::{self, Member};
use det_store::workspaces::{self, DeletionState, ProjectRow, ProjectTexts, WorkspaceRow};
use det_store::{Conn, WriteTx};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::context::Context;
use crate::app::existing;
use crate::app::experiments::experiment_row;
use crate::app::homes::{
    Homes, KnownHomes, path_of, require_unarchived, require_unarchived_workspace,
};
use crate::app::orchestration::Cause;
use crate::app::ownership::Ownership;
use crate::app::renewal::{ATTEMPTS, Renewal, Renewals, RenewedConfig, overtaken};
use crate::app::workspaces::{FieldErrors, HomeChanges, HomeDeletion};
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;
use crate::rights::refuse_to_all;

/// Characters of a short name at most.
const LONGEST_KEY: usize = 5;
/// Characters of a short name that is made of a name, before what makes it different from others.
const KEY_STEM: usize = 3;
/// Bytes of a project's notes, and of its description, at most: every page of projects has them.
const LONGEST_TEXT: usize = 128 << 10;

/// A project to add.
#[derive(Debug, Clone, Default)]
pub struct NewProject {
    /// Workspace it goes into.
    pub workspace_id: WorkspaceId,
    /// Name of the project.
    pub name: String,
    /// What the project is for, free text; may be empty.
    pub description: String,
    /// Short name; empty = made of the name.
    pub key: String,
}

/// Changes of a project; `None` leaves things as they are.
#[derive(Debug, Clone, Default)]
pub struct ProjectPatch {
    /// New name, not in use in the workspace.
    pub name: Option<String>,
    /// New description, free text; empty clears it.
    pub description: Option<String>,
    /// New short name, unique over the cluster; `None` = it stays.
    pub key: Option<String>,
}

/// A note of a project, in the form in which it is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// Title of the note.
    pub name: String,
    /// Text of the note, Markdown.
    pub contents: String,
}

/// A change of a project's notes.
#[derive(Debug, Clone)]
pub enum NotesChange {
    /// Adds this note behind the others.
    Add(Note),
    /// These in place of all.
    Replace(Vec<Note>),
}

/// Projects as users change them, and what moves between them. Cheap to clone.
#[derive(Clone)]
pub struct Projects {
    context: Context,
    homes: KnownHomes,
    ownership: Ownership,
    changes: HomeChanges,
    deletion: HomeDeletion,
    renewals: Renewals,
}

impl Projects {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        homes: KnownHomes,
        ownership: Ownership,
        changes: HomeChanges,
        deletion: HomeDeletion,
        renewals: Renewals,
    ) -> Self {
        Self {
            context,
            homes,
            ownership,
            changes,
            deletion,
            renewals,
        }
    }

    /// Adds a project.
    pub async fn create(&self, actor: &Actor, new: NewProject) -> AppResult<ProjectRow> {
        actor.require(Permission::Create, Kind::Project, "create projects")?;
        let owner = actor.user().id;
        let mut errors = FieldErrors::default();
        let description = new.description;
        check_description(&mut errors, Some(&description));
        let patch = ProjectPatch {
            name: Some(new.name),
            description: None,
            key: Some(new.key.clone()).filter(|key| !key.is_empty()),
        };
        let mut row = ProjectRow {
            workspace_id: new.workspace_id,
            owner_id: Some(owner),
            created_at: det_store::now(),
            ..ProjectRow::default()
        };
        apply_patch(&mut errors, &mut row, patch);
        errors.refuse("the project")?;
        let who = actor.clone();
        let actor = actor.name();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let workspace = homes.workspace(row.workspace_id)?;
                    require_accepts_projects(&who, workspace)?;
                    if row.key.is_empty() {
                        row.key = generated_key(&row.name, &homes);
                    }
                    require_free(&homes, &row)?;
                    row.id = workspaces::insert_project(&mut tx.conn(), &row, &description).await?;
                    let detail = json!({"name": row.name, "workspaceId": row.workspace_id});
                    service
                        .changes
                        .record_project(tx, &actor, EventKind::Created, &row, Some(detail))
                        .await?;
                    Ok(row)
                })
            })
            .await
    }

    /// Changes a project.
    pub async fn change(
        &self,
        actor: &Actor,
        id: ProjectId,
        patch: ProjectPatch,
    ) -> AppResult<ProjectRow> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let before = service.owned_project(&actor, &homes, id, "change")?;
                    require_unarchived(
                        before,
                        homes.workspace(before.workspace_id)?,
                        "it cannot be changed",
                    )?;
                    let mut row = before.clone();
                    let mut errors = FieldErrors::default();
                    check_description(&mut errors, patch.description.as_deref());
                    let description = patch.description.clone();
                    apply_patch(&mut errors, &mut row, patch);
                    errors.refuse("the project")?;
                    require_free(&homes, &row)?;
                    let known = texts_of(&mut tx.conn(), id).await?.description;
                    let description = description.filter(|new| *new != known);
                    if row == *before && description.is_none() {
                        return Ok(row);
                    }
                    workspaces::update_project(&mut tx.conn(), &row).await?;
                    if let Some(description) = description {
                        workspaces::set_description(&mut tx.conn(), id, &description).await?;
                    }
                    let detail = json!({"name": row.name, "key": row.key});
                    service
                        .changes
                        .record_project(tx, &actor.name(), EventKind::Changed, &row, Some(detail))
                        .await?;
                    Ok(row)
                })
            })
            .await
    }

    /// Changes a project's notes: open to all users, whose names are in the events.
    pub async fn change_notes(
        &self,
        actor: &Actor,
        id: ProjectId,
        change: NotesChange,
    ) -> AppResult<Vec<Note>> {
        actor.require(
            Permission::Annotate,
            Kind::Project,
            "change notes of projects",
        )?;
        let who = actor.clone();
        let actor = actor.name();
        self.changes.write(self.clone(), move |service, tx, homes| {
            Box::pin(async move {
                let (row, workspace) = homes.project(id)?;
                let to_do = format!("change the notes of project {}", path_of(row, workspace));
                require_mutable(row, workspace)
                    .map_err(|reason| refuse_to_all(&who, Kind::Project, &to_do, reason))?;
                require_unarchived(row, workspace, "its notes cannot be changed")?;
                let notes = match change {
                    NotesChange::Add(note) => {
                        let mut notes = notes_of(&texts_of(&mut tx.conn(), id).await?)?;
                        notes.push(note);
                        notes
                    }
                    NotesChange::Replace(notes) => notes,
                };
                let text = serde_json::to_string(&notes).map_err(AppError::internal)?;
                if text.len() > LONGEST_TEXT {
                    return Err(AppError::invalid(format!(
                        "the notes of a project may have {LONGEST_TEXT} bytes in all, these have {}",
                        text.len()
                    )));
                }
                workspaces::set_notes(&mut tx.conn(), id, &text).await?;
                let detail = json!({"notes": notes.len()});
                service
                    .changes.record_project(tx, &actor, EventKind::Changed, row, Some(detail))
                    .await?;
                Ok(notes)
            })
        })
        .await
    }

    /// Puts a project away or takes it out again. What runs in it goes on.
    pub async fn archive(&self, actor: &Actor, id: ProjectId, archived: bool) -> AppResult<()> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let verb = if archived { "archive" } else { "unarchive" };
                    let mut row = service.owned_project(&actor, &homes, id, verb)?.clone();
                    let workspace = homes.workspace(row.workspace_id)?;
                    if workspace.archived {
                        return Err(AppError::precondition(format!(
                            "project {} cannot be {verb}d by itself: its workspace is archived",
                            path_of(&row, workspace)
                        ))
                        .hint(format!("det workspace unarchive \"{}\"", workspace.name)));
                    }
                    if row.archived == archived {
                        return Ok(());
                    }
                    row.archived = archived;
                    workspaces::update_project(&mut tx.conn(), &row).await?;
                    let kind = if archived {
                        EventKind::Archived
                    } else {
                        EventKind::Unarchived
                    };
                    service
                        .changes
                        .record_project(tx, &actor.name(), kind, &row, None)
                        .await
                })
            })
            .await
    }

    /// Deletes a project with everything in it. `true` = it is gone; else its experiments are being deleted, and it
    /// goes with the last of them.
    pub async fn delete(&self, actor: &Actor, id: ProjectId) -> AppResult<bool> {
        let actor = actor.clone();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let (row, workspace) = homes.project(id)?;
                    let what = format!("project {}", path_of(row, workspace));
                    let to_do = format!("delete {what}");
                    service.ownership.require_of(
                        &actor,
                        Permission::Delete,
                        &target(row),
                        &to_do,
                    )?;
                    if row.immutable {
                        require_mutable(row, workspace)?;
                    }
                    let members = experiments::of_project(&mut tx.conn(), id).await?;
                    service
                        .deletion
                        .delete_members(tx, &actor, &what, &members)
                        .await?;
                    service
                        .deletion
                        .begin(tx, &actor, row, !members.is_empty())
                        .await?;
                    Ok(members.is_empty())
                })
            })
            .await
    }

    /// Moves a project with its experiments to another workspace. What runs goes on, under the limits of the new one.
    /// While experiments of others in it have not ended it is for administrators: what runs next of them may run with
    /// another Unix identity.
    pub async fn move_to(&self, actor: &Actor, id: ProjectId, to: WorkspaceId) -> AppResult<()> {
        let actor = actor.clone();
        self.owned_project(&actor, &self.homes.get(), id, "move")?;
        let decided = self.renew_members(id, to).await?;
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let mut row = service.owned_project(&actor, &homes, id, "move")?.clone();
                    let home = homes.workspace(row.workspace_id)?;
                    require_unarchived(&row, home, "it cannot be moved")?;
                    require_accepts_projects(&actor, homes.workspace(to)?)?;
                    if row.workspace_id == to {
                        return Ok(());
                    }
                    let members = experiments::of_project(&mut tx.conn(), id).await?;
                    require_own_live(
                        &actor,
                        &path_of(&row, homes.workspace(row.workspace_id)?),
                        &members,
                    )?;
                    let detail = json!({"from": row.workspace_id, "to": to});
                    row.workspace_id = to;
                    require_free(&homes, &row)?;
                    workspaces::update_project(&mut tx.conn(), &row).await?;
                    experiments::follow_project(&mut tx.conn(), id, to).await?;
                    let cause = Cause::actor(actor.name());
                    let run_here = |member: &&Member| member.is_live() && !member.unmanaged;
                    for member in members.iter().filter(run_here) {
                        let row = existing::experiment(&mut tx.conn(), member.id).await?;
                        let renewed = decided
                            .get(&member.id)
                            .filter(|renewed| renewed.is_about(&row));
                        let renewed = renewed.ok_or_else(|| overtaken(member.id))?;
                        service.renewals.store(tx, &row, renewed, &cause).await?;
                    }
                    service
                        .changes
                        .record_project(tx, &actor.name(), EventKind::Moved, &row, Some(detail))
                        .await?;
                    service.context.wake(tx, Topic::Schedule);
                    Ok(())
                })
            })
            .await
    }

    /// Decides about the live experiments of a project that is to be moved.
    async fn renew_members(
        &self,
        id: ProjectId,
        to: WorkspaceId,
    ) -> AppResult<BTreeMap<ExperimentId, RenewedConfig>> {
        let homes = self.homes.get();
        let workspace = homes.workspace(to)?;
        let members = {
            let mut conn = self.context.store.read().await?;
            experiments::of_project(&mut conn.conn(), id).await?
        };
        // What runs outside the cluster has nothing that policies and pools of a workspace could decide.
        let live = members.iter().filter(|row| row.is_live() && !row.unmanaged);
        let mut decided = BTreeMap::new();
        for member in live {
            let found = {
                let mut conn = self.context.store.read().await?;
                experiments::find(&mut conn.conn(), member.id).await?
            };
            // Deleted since.
            let Some(row) = found else { continue };
            if !row.state.is_live() {
                continue;
            }
            let renewed = self
                .renewals
                .renew(&row, None, workspace, Renewal::Move)
                .await?;
            decided.insert(row.id, renewed);
        }
        Ok(decided)
    }

    /// Moves an experiment to another project. What runs goes on, under the limits of the new workspace.
    pub async fn move_experiment(
        &self,
        actor: &Actor,
        id: ExperimentId,
        to: ProjectId,
    ) -> AppResult<()> {
        // Another workspace may mean another Unix identity, other policies and other limits.
        let to_do = format!("move experiment {id}");
        self.ownership.require_owner(actor, id, &to_do).await?;
        for _ in 0..ATTEMPTS {
            let row = experiment_row(&self.context.store, id).await?;
            let homes = self.homes.get();
            let (_, workspace) = homes.require_open(to)?;
            let is_run_here = row.ended_at.is_none() && !row.unmanaged;
            let renewed = if is_run_here && row.project_id != to {
                Some(
                    self.renewals
                        .renew(&row, None, workspace, Renewal::Move)
                        .await?,
                )
            } else {
                None
            };
            let (service, actor) = (self.clone(), actor.name());
            let done = self
                .context
                .write(move |tx| {
                    Box::pin(async move { service.move_in(tx, &actor, id, to, renewed).await })
                })
                .await?;
            if done {
                return Ok(());
            }
        }
        Err(overtaken(id))
    }

    /// Moves an experiment, unless it is another one by now than the one that was decided about.
    async fn move_in(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        id: ExperimentId,
        to: ProjectId,
        renewed: Option<RenewedConfig>,
    ) -> AppResult<bool> {
        let row = existing::experiment(&mut tx.conn(), id).await?;
        let homes = Homes::load(&mut tx.conn()).await?;
        let (project, workspace) = homes.require_open(to)?;
        if row.project_id == to {
            return Ok(true);
        }
        homes.require_unarchived(row.project_id, "nothing can be moved out of it")?;
        if row.archived {
            return Err(AppError::precondition(format!(
                "experiment {id} is archived and cannot be moved"
            ))
            .hint(format!(
                "take it out again with `det experiment unarchive {id}`"
            )));
        }
        if matches!(
            row.state,
            ExperimentState::Deleting | ExperimentState::StoppingToDelete(_)
        ) {
            return Err(AppError::precondition(format!(
                "experiment {id} is being deleted and cannot be moved"
            )));
        }
        let renewed = renewed.filter(|renewed| renewed.is_about(&row));
        if row.ended_at.is_none() && !row.unmanaged && renewed.is_none() {
            return Ok(false);
        }
        experiments::set_project(&mut tx.conn(), id, project.id, workspace.id).await?;
        if let Some(renewed) = renewed {
            let cause = Cause::actor(actor);
            self.renewals.store(tx, &row, &renewed, &cause).await?;
        }
        let detail = json!({"from": row.project_id, "to": to});
        let event = NewEvent::new(actor, Subject::Experiment(id), EventKind::Moved).detail(detail);
        self.context.record(tx, event).await?;
        self.context.wake(tx, Topic::Schedule);
        Ok(true)
    }

    /// A project that the actor may change.
    fn owned_project<'p>(
        &self,
        actor: &Actor,
        homes: &'p Homes,
        id: ProjectId,
        verb: &str,
    ) -> AppResult<&'p ProjectRow> {
        let (row, workspace) = homes.project(id)?;
        let to_do = format!("{verb} project {}", path_of(row, workspace));
        self.ownership
            .require_of(actor, Permission::Change, &target(row), &to_do)?;
        require_mutable(row, workspace)?;
        Ok(row)
    }
}

/// A project to the table of rights.
fn target(row: &ProjectRow) -> Target<'static> {
    let target = Target::of(Kind::Project);
    row.owner_id.map_or(target, |owner| target.owned_by(owner))
}

/// Refuses to move live experiments of others along with their project.
fn require_own_live(actor: &Actor, path: &str, members: &[Member]) -> AppResult<()> {
    let may_move = |member: &Member| {
        let experiment = Target::of(Kind::Experiment).owned_by(member.owner_id);
        actor.may(Permission::Redirect, &experiment)
    };
    let foreign: Vec<String> = members
        .iter()
        .filter(|member| member.is_live() && !may_move(member))
        .map(|member| member.id.to_string())
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(AppError::new(
        ErrorKind::Forbidden,
        format!(
            "user \"{}\" may not move project {path}: experiments of others in it have not ended ({})",
            actor.user().username,
            foreign.join(", ")
        ),
    )
    .hint("ask an administrator to do it, or wait until they have ended"))
}

/// The texts of one project.
async fn texts_of(conn: &mut Conn<'_>, id: ProjectId) -> AppResult<ProjectTexts> {
    let found = workspaces::project_texts(conn, &[id]).await?.pop();
    found.ok_or_else(|| AppError::not_found(ObjectKind::Project, id))
}

/// A project's notes.
pub fn notes_of(texts: &ProjectTexts) -> AppResult<Vec<Note>> {
    serde_json::from_str(&texts.notes).map_err(AppError::internal)
}

fn check_description(errors: &mut FieldErrors, description: Option<&str>) {
    if description.is_some_and(|text| text.len() > LONGEST_TEXT) {
        errors.add(
            "description",
            format!("must have at most {LONGEST_TEXT} bytes"),
        );
    }
}

/// Puts a patch into a row, which has no description.
fn apply_patch(errors: &mut FieldErrors, row: &mut ProjectRow, patch: ProjectPatch) {
    if let Some(name) = patch.name {
        row.name = errors.name(&name);
    }
    if let Some(key) = patch.key {
        let key = key.trim().to_ascii_uppercase();
        let plain = key.chars().all(|c| c.is_ascii_alphanumeric());
        if key.is_empty() || key.len() > LONGEST_KEY || !plain {
            errors.add(
                "key",
                format!(
                    "must be 1 to {LONGEST_KEY} letters (a to z) and digits, found \"{}\"",
                    key.escape_debug()
                ),
            );
        }
        row.key = key;
    }
}

/// A short name made of the letters and digits of a name: the first few, and a number where those are in use.
fn generated_key(name: &str, homes: &Homes) -> String {
    let taken: HashSet<&str> = homes
        .projects
        .values()
        .map(|row| row.key.as_str())
        .collect();
    let mut stem: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(KEY_STEM)
        .collect();
    stem.make_ascii_uppercase();
    if stem.is_empty() {
        stem.push('P');
    }
    // Longer numbers leave less of the name; a key that is longer than those that users choose is always free.
    let numbered = (1_u64..).map(|number| {
        let number = number.to_string();
        let keep = LONGEST_KEY.saturating_sub(number.len()).max(1);
        format!("{}{number}", &stem[..stem.len().min(keep)])
    });
    let all = std::iter::once(stem.clone()).chain(numbered);
    let mut free = all.filter(|key| !taken.contains(key.as_str()));
    free.next().unwrap_or(stem)
}

fn require_free(homes: &Homes, row: &ProjectRow) -> AppResult<()> {
    let taken = |message: String| Err(AppError::new(ErrorKind::Conflict, message));
    if let Some(other) = homes.project_named(row.workspace_id, &row.name)
        && other.id != row.id
    {
        let workspace = homes.workspace(row.workspace_id)?;
        return taken(format!(
            "there is a project {} already",
            path_of(other, workspace)
        ));
    }
    let mut others = homes.projects.values().filter(|other| other.id != row.id);
    if let Some(other) = others.find(|other| other.key == row.key) {
        let workspace = homes.workspace(other.workspace_id)?;
        return taken(format!(
            "the key \"{}\" belongs to project {} already",
            row.key,
            path_of(other, workspace)
        ));
    }
    Ok(())
}

/// Refuses to put a project into the cluster's own workspace, and into one that is put away or being deleted.
fn require_accepts_projects(actor: &Actor, workspace: &WorkspaceRow) -> AppResult<()> {
    let name = &workspace.name;
    if workspace.immutable {
        let reason = AppError::precondition(format!(
            "workspace \"{name}\" belongs to the cluster: no project can be put there"
        ))
        .hint("create a workspace of your own with `det workspace create NAME`");
        let to_do = format!("put projects into workspace \"{name}\"");
        return Err(refuse_to_all(actor, Kind::Workspace, &to_do, reason));
    }
    if workspace.state == Some(DeletionState::Deleting) {
        return Err(AppError::precondition(format!(
            "workspace \"{name}\" is being deleted: no project can be put there"
        )));
    }
    require_unarchived_workspace(workspace, "no project can be put there")
}

/// Refuses to change Uncategorized, and what is being deleted.
fn require_mutable(row: &ProjectRow, workspace: &WorkspaceRow) -> AppResult<()> {
    let path = path_of(row, workspace);
    if row.immutable {
        return Err(AppError::precondition(format!(
            "project {path} belongs to the cluster and cannot be changed"
        ))
        .hint("create a project of your own with `det project create WORKSPACE NAME`"));
    }
    if row.state == Some(DeletionState::Deleting) {
        return Err(AppError::precondition(format!(
            "project {path} is being deleted and cannot be changed"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_of_names_and_never_twice() {
        let mut homes = Homes::default();
        let mut keys = Vec::new();
        for (id, name) in
            (1..)
                .map(ProjectId)
                .zip(["Vision", "vision 2", "v!", "éü", "äö", "Visionary"])
        {
            let key = generated_key(name, &homes);
            keys.push(key.clone());
            let row = ProjectRow {
                id,
                key,
                ..ProjectRow::default()
            };
            homes.projects.insert(id, row);
        }
        assert_eq!(keys, ["VIS", "VIS1", "V", "P", "P1", "VIS2"]);
    }

    #[test]
    fn keys_that_users_choose_are_short_and_plain() {
        for (given, kept) in [
            ("ab1", Some("AB1")),
            ("", None),
            ("abcdef", None),
            ("a-b", None),
        ] {
            let (mut errors, mut row) = (FieldErrors::default(), ProjectRow::default());
            let patch = ProjectPatch {
                key: Some(given.to_owned()),
                ..ProjectPatch::default()
            };
            apply_patch(&mut errors, &mut row, patch);
            let outcome = errors.refuse("the project");
            assert_eq!(outcome.ok().map(|()| row.key.as_str()), kept, "{given}");
        }
    }
}
