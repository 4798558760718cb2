//! Workspaces, the projects in them, and who has pinned which.

use det_ids::{ProjectId, UserId, WorkspaceId};
use strum::{EnumString, IntoStaticStr, VariantNames};

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError};

/// The workspace of everything that was put nowhere else.
pub const UNCATEGORIZED_WORKSPACE: WorkspaceId = WorkspaceId(1);

/// The project, in [`UNCATEGORIZED_WORKSPACE`], of everything that was put nowhere else.
pub const UNCATEGORIZED_PROJECT: ProjectId = ProjectId(1);

/// How far the deletion of a workspace or a project is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum DeletionState {
    /// It is in progress.
    Deleting,
    /// It has failed; the row has the error.
    DeleteFailed,
}

/// A workspace, with what it gives to the work in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
pub struct WorkspaceRow {
    /// Number of the workspace, unique over the cluster.
    pub id: WorkspaceId,
    /// Its name, unique over the cluster.
    pub name: String,
    /// The user who owns it; `None` = the cluster's own.
    pub owner_id: Option<UserId>,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Whether it is archived.
    pub archived: bool,
    /// Unix identity of tasks in it; `None` = their user's.
    pub agent_uid: Option<i64>,
    /// Unix user name that belongs to `agent_uid`; `None` = not set.
    pub agent_user: Option<String>,
    /// Numeric group id of the same identity; `None` = not set.
    pub agent_gid: Option<i64>,
    /// Unix group name that belongs to `agent_gid`; `None` = not set.
    pub agent_group: Option<String>,
    /// Checkpoint storage laid over the cluster's, JSON.
    pub checkpoint_storage: Option<String>,
    /// Pool of work with slots that names none; `None` = the cluster's default.
    pub default_compute_pool: Option<String>,
    /// Pool of work without slots that names none; `None` = the cluster's default.
    pub default_aux_pool: Option<String>,
    /// Most slots in use at once by all work in it; `None` = no limit.
    pub max_slots: Option<i64>,
    /// How far its deletion is; `None` = it is not being deleted.
    #[row(word)]
    pub state: Option<DeletionState>,
    /// Why the deletion failed, for users; `None` = it did not.
    pub error: Option<String>,
    /// When it was created, microseconds.
    pub created_at: i64,
}

/// A project, without its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
pub struct ProjectRow {
    /// Number of the project, unique over the cluster.
    pub id: ProjectId,
    /// Number of the workspace that it is in.
    pub workspace_id: WorkspaceId,
    /// Name of the project, unique in its workspace.
    pub name: String,
    /// Short name, unique over the cluster.
    pub key: String,
    /// The user who owns it; `None` = the cluster's own.
    pub owner_id: Option<UserId>,
    /// Whether it cannot be changed.
    pub immutable: bool,
    /// Whether it is archived.
    pub archived: bool,
    /// How far its deletion is; `None` = it was not asked for.
    #[row(word)]
    pub state: Option<DeletionState>,
    /// Why the deletion failed, for users; `None` = it did not.
    pub error: Option<String>,
    /// When it was created, microseconds.
    pub created_at: i64,
}

/// The columns of a [`ProjectRow`].
macro_rules! projects {
    ($which:literal) => {
        concat!(
            "SELECT id, workspace_id, name, key, owner_id, immutable, archived, state, error, created_at \
             FROM projects ",
            $which
        )
    };
}

/// The texts of a project: read where they are shown, and never kept in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
pub struct ProjectTexts {
    /// Number of the project.
    pub id: ProjectId,
    /// What the project is for, free text; may be empty.
    pub description: String,
    /// JSON list of `{name, contents}`.
    pub notes: String,
}

/// What lists of projects are sorted and cut by of their texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
pub struct ProjectTextsHead {
    /// Number of the project.
    pub id: ProjectId,
    /// The first 200 characters of its description.
    pub beginning: String,
    /// Bytes of its description and notes.
    pub bytes: i64,
}

/// That a user has pinned a workspace.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct PinRow {
    /// Number of the user who pinned it.
    pub user_id: UserId,
    /// Number of the pinned workspace.
    pub workspace_id: WorkspaceId,
    /// When it was pinned, microseconds.
    pub pinned_at: i64,
}

/// All workspaces by number.
pub async fn list(conn: &mut Conn<'_>) -> Result<Vec<WorkspaceRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        WorkspaceRow,
        "SELECT * FROM workspaces ORDER BY id"
    )?)
}

/// All projects by number.
pub async fn projects(conn: &mut Conn<'_>) -> Result<Vec<ProjectRow>, StoreError> {
    Ok(fetch_all!(conn, ProjectRow, projects!("ORDER BY id"))?)
}

/// All pins, in no order.
pub async fn pins(conn: &mut Conn<'_>) -> Result<Vec<PinRow>, StoreError> {
    Ok(fetch_all!(conn, PinRow, "SELECT * FROM workspace_pins")?)
}

/// The workspace with this number; `None` = there is none.
pub async fn find(
    conn: &mut Conn<'_>,
    id: WorkspaceId,
) -> Result<Option<WorkspaceRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        WorkspaceRow,
        "SELECT * FROM workspaces WHERE id = $1",
        id
    )?)
}

/// The project with this number, without its texts; `None` = there is none.
pub async fn find_project(
    conn: &mut Conn<'_>,
    id: ProjectId,
) -> Result<Option<ProjectRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        ProjectRow,
        projects!("WHERE id = $1"),
        id
    )?)
}

/// The texts of the projects with these numbers, in no order.
pub async fn project_texts(
    conn: &mut Conn<'_>,
    ids: &[ProjectId],
) -> Result<Vec<ProjectTexts>, StoreError> {
    let mut found = Vec::new();
    for ids in pieces(ids) {
        let mut query = Query::new("SELECT id, description, notes FROM projects");
        query.any_of("id", ids.iter().map(|id| Value::from(*id)));
        found.extend(query.fetch_all(conn).await?);
    }
    Ok(found)
}

/// The beginnings and sizes of the texts of a workspace's projects, in no order.
pub async fn project_text_heads(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
) -> Result<Vec<ProjectTextsHead>, StoreError> {
    Ok(fetch_all!(
        conn,
        ProjectTextsHead,
        "SELECT id, substr(description, 1, 200) AS beginning, \
         CAST(octet_length(description) + octet_length(notes) AS BIGINT) AS bytes \
         FROM projects WHERE workspace_id = $1",
        workspace_id
    )?)
}

/// Adds a workspace (its `id` is not looked at) and gives its number. Its name must be free.
pub async fn insert(conn: &mut Conn<'_>, row: &WorkspaceRow) -> Result<WorkspaceId, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (WorkspaceId,),
        "INSERT INTO workspaces (name, owner_id, immutable, archived, agent_uid, agent_user, agent_gid, agent_group, \
         checkpoint_storage, default_compute_pool, default_aux_pool, max_slots, state, error, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) RETURNING id",
        row.name.as_str(),
        row.owner_id,
        row.immutable,
        row.archived,
        row.agent_uid,
        row.agent_user.as_deref(),
        row.agent_gid,
        row.agent_group.as_deref(),
        row.checkpoint_storage.as_deref(),
        row.default_compute_pool.as_deref(),
        row.default_aux_pool.as_deref(),
        row.max_slots,
        row.state.map(<&str>::from),
        row.error.as_deref(),
        row.created_at
    )?;
    Ok(id)
}

/// Stores all that can change of a workspace under its number.
pub async fn update(conn: &mut Conn<'_>, row: &WorkspaceRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE workspaces SET name = $1, archived = $2, agent_uid = $3, agent_user = $4, agent_gid = $5, \
         agent_group = $6, checkpoint_storage = $7, default_compute_pool = $8, default_aux_pool = $9, max_slots = $10, \
         state = $11, error = $12 WHERE id = $13",
        row.name.as_str(),
        row.archived,
        row.agent_uid,
        row.agent_user.as_deref(),
        row.agent_gid,
        row.agent_group.as_deref(),
        row.checkpoint_storage.as_deref(),
        row.default_compute_pool.as_deref(),
        row.default_aux_pool.as_deref(),
        row.max_slots,
        row.state.map(<&str>::from),
        row.error.as_deref(),
        row.id
    )?;
    Ok(())
}

/// Removes a workspace without projects, with its pins, templates, policies and bindings. Namespaces that were made for it
/// are to go from their clusters.
pub async fn delete(conn: &mut Conn<'_>, id: WorkspaceId) -> Result<(), StoreError> {
    crate::namespaces::release(conn, id).await?;
    for sql in [
        "DELETE FROM workspace_pins WHERE workspace_id = $1",
        "DELETE FROM templates WHERE workspace_id = $1",
        "DELETE FROM config_policies WHERE workspace_id = $1",
        "DELETE FROM workspaces WHERE id = $1",
    ] {
        execute!(conn, sql, id)?;
    }
    Ok(())
}

/// Adds a project without notes (its `id` is not looked at) and gives its number. Its name must be free in its workspace,
/// its key in the cluster.
pub async fn insert_project(
    conn: &mut Conn<'_>,
    row: &ProjectRow,
    description: &str,
) -> Result<ProjectId, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (ProjectId,),
        "INSERT INTO projects (workspace_id, name, key, owner_id, immutable, archived, description, notes, state, error, \
         created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, '[]', $8, $9, $10) RETURNING id",
        row.workspace_id,
        row.name.as_str(),
        row.key.as_str(),
        row.owner_id,
        row.immutable,
        row.archived,
        description,
        row.state.map(<&str>::from),
        row.error.as_deref(),
        row.created_at
    )?;
    Ok(id)
}

/// Stores all that can change of a project, but for its texts, under its number.
pub async fn update_project(conn: &mut Conn<'_>, row: &ProjectRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE projects SET workspace_id = $1, name = $2, key = $3, archived = $4, state = $5, error = $6 \
         WHERE id = $7",
        row.workspace_id,
        row.name.as_str(),
        row.key.as_str(),
        row.archived,
        row.state.map(<&str>::from),
        row.error.as_deref(),
        row.id
    )?;
    Ok(())
}

/// Stores another description of a project.
pub async fn set_description(
    conn: &mut Conn<'_>,
    project_id: ProjectId,
    description: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE projects SET description = $1 WHERE id = $2",
        description,
        project_id
    )?;
    Ok(())
}

/// Stores other notes of a project.
pub async fn set_notes(
    conn: &mut Conn<'_>,
    project_id: ProjectId,
    notes: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE projects SET notes = $1 WHERE id = $2",
        notes,
        project_id
    )?;
    Ok(())
}

/// Removes a project without experiments.
pub async fn delete_project(conn: &mut Conn<'_>, id: ProjectId) -> Result<(), StoreError> {
    execute!(conn, "DELETE FROM projects WHERE id = $1", id)?;
    Ok(())
}

/// Pins a workspace for a user; one that is pinned stays as it is.
pub async fn pin(conn: &mut Conn<'_>, row: &PinRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO workspace_pins (user_id, workspace_id, pinned_at) VALUES ($1, $2, $3) \
         ON CONFLICT (user_id, workspace_id) DO NOTHING",
        row.user_id,
        row.workspace_id,
        row.pinned_at
    )?;
    Ok(())
}

/// Removes a user's pin.
pub async fn unpin(
    conn: &mut Conn<'_>,
    user_id: UserId,
    workspace_id: WorkspaceId,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM workspace_pins WHERE user_id = $1 AND workspace_id = $2",
        user_id,
        workspace_id
    )?;
    Ok(())
}
