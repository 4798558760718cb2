//! Workspaces, projects and pins in memory: small tables that nearly every request looks at.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use det_ids::{AllocationId, ProjectId, UserId, WorkspaceId};
use det_lifecycle::object::ObjectKind;
use det_rm::{BoundNamespace, LiveAttempt, Namespaces};
use det_store::namespaces::{self, BindingRow, MadeRow};
use det_store::workspaces::{self, DeletionState, ProjectRow, UNCATEGORIZED_PROJECT, WorkspaceRow};
use det_store::{Conn, Store, StoreError};

use crate::error::{AppError, AppResult};

/// What is committed, shared. Every change reads the rows again in its own transaction and hands them over with the
/// commit, so the copy is never ahead of them.
#[derive(Clone)]
pub struct KnownHomes {
    homes: Arc<RwLock<Arc<Homes>>>,
}

impl KnownHomes {
    /// Reads all workspaces and projects from the store, once at the start.
    pub async fn load(store: &Store) -> Result<Self, StoreError> {
        let mut conn = store.read().await?;
        let homes = Homes::load(&mut conn.conn()).await?;
        Ok(Self {
            homes: Arc::new(RwLock::new(Arc::new(homes))),
        })
    }

    /// Everything as it is now.
    pub fn get(&self) -> Arc<Homes> {
        self.homes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set(&self, homes: Homes) {
        *self.homes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(homes);
    }
}

/// All workspaces, projects and pins.
#[derive(Debug, Clone, Default)]
pub struct Homes {
    /// Every workspace, archived ones included, by its number.
    pub workspaces: BTreeMap<WorkspaceId, WorkspaceRow>,
    /// Every project, archived ones included, by its number.
    pub projects: BTreeMap<ProjectId, ProjectRow>,
    /// When a user (first) has pinned a workspace (second), in microseconds.
    pub pins: BTreeMap<(UserId, WorkspaceId), i64>,
    /// By workspace, and by cluster as its resource manager is called: the namespace of its work there.
    pub bindings: BTreeMap<(WorkspaceId, String), BindingRow>,
    /// Namespaces that are made for workspaces, or removed.
    pub made: Vec<MadeRow>,
}

impl Homes {
    /// Reads all workspaces and projects, with pins and namespaces.
    pub(crate) async fn load(conn: &mut Conn<'_>) -> Result<Self, StoreError> {
        let workspaces = workspaces::list(conn).await?;
        let projects = workspaces::projects(conn).await?;
        let pins = workspaces::pins(conn).await?;
        let bindings = namespaces::bindings(conn).await?;
        Ok(Self {
            workspaces: workspaces.into_iter().map(|row| (row.id, row)).collect(),
            projects: projects.into_iter().map(|row| (row.id, row)).collect(),
            pins: pins
                .into_iter()
                .map(|pin| ((pin.user_id, pin.workspace_id), pin.pinned_at))
                .collect(),
            bindings: bindings
                .into_iter()
                .map(|row| ((row.workspace_id, row.cluster_name.clone()), row))
                .collect(),
            made: namespaces::made(conn).await?,
        })
    }

    /// The workspace with this number, or the error "not found".
    pub fn workspace(&self, id: WorkspaceId) -> AppResult<&WorkspaceRow> {
        self.workspaces
            .get(&id)
            .ok_or_else(|| AppError::not_found(ObjectKind::Workspace, id))
    }

    /// The name of a workspace, where it is known.
    pub(crate) fn name_of(&self, id: WorkspaceId) -> Option<String> {
        self.workspaces.get(&id).map(|row| row.name.clone())
    }

    /// A project with its workspace.
    pub fn project(&self, id: ProjectId) -> AppResult<(&ProjectRow, &WorkspaceRow)> {
        let found = self.projects.get(&id);
        let project = found.ok_or_else(|| AppError::not_found(ObjectKind::Project, id))?;
        Ok((project, self.workspace(project.workspace_id)?))
    }

    /// The workspace of exactly this name.
    pub fn workspace_named(&self, name: &str) -> Option<&WorkspaceRow> {
        self.workspaces.values().find(|row| row.name == name)
    }

    /// The projects of a workspace, by number.
    pub fn projects_of(&self, workspace_id: WorkspaceId) -> impl Iterator<Item = &ProjectRow> {
        let all = self.projects.values();
        all.filter(move |row| row.workspace_id == workspace_id)
    }

    /// The project of exactly this name in a workspace.
    pub fn project_named(&self, workspace_id: WorkspaceId, name: &str) -> Option<&ProjectRow> {
        self.projects_of(workspace_id).find(|row| row.name == name)
    }

    /// Whether a project is put away, by itself or with its workspace.
    pub fn is_archived(&self, project: &ProjectRow) -> bool {
        let workspace = self.workspaces.get(&project.workspace_id);
        project.archived || workspace.is_some_and(|row| row.archived)
    }

    /// How many slots the work in each workspace that has a limit may have at once.
    pub fn slot_limits(&self) -> BTreeMap<WorkspaceId, u32> {
        let limit = |row: &WorkspaceRow| {
            let slots = row.max_slots?;
            Some((row.id, u32::try_from(slots).unwrap_or(u32::MAX)))
        };
        self.workspaces.values().filter_map(limit).collect()
    }

    /// The namespace of a workspace's work in a cluster; `None` = it is not bound there.
    pub(crate) fn binding(&self, workspace: WorkspaceId, cluster: &str) -> Option<&BindingRow> {
        self.bindings.get(&(workspace, cluster.to_owned()))
    }

    /// The workspaces that are bound to a namespace of a cluster.
    pub(crate) fn bound_to(&self, cluster: &str, namespace: &str) -> Vec<WorkspaceId> {
        let bound = self.bindings.values();
        let bound = bound.filter(|row| row.cluster_name == cluster && row.namespace == namespace);
        bound.map(|row| row.workspace_id).collect()
    }

    /// The namespace that is made for a workspace, which has the same name in all clusters; `None` = none was asked for yet.
    pub(crate) fn made_for(&self, workspace: WorkspaceId) -> Option<&str> {
        let made = self.made.iter();
        let mut made = made.filter(|row| row.workspace_id == workspace && !row.removed);
        made.next().map(|row| row.namespace.as_str())
    }

    /// What is wanted of the namespaces of a cluster. `in_use` = the attempts that have not ended,
    /// with those that they were placed in.
    pub(crate) fn namespaces(
        &self,
        cluster: &str,
        in_use: BTreeMap<AllocationId, LiveAttempt>,
    ) -> Namespaces {
        let mut bound: BTreeMap<String, BoundNamespace> = BTreeMap::new();
        let here = self.bindings.values();
        for row in here.filter(|row| row.cluster_name == cluster) {
            let entry = bound.entry(row.namespace.clone()).or_default();
            entry.workspaces.insert(row.workspace_id);
            if row.auto_create {
                entry.made_for = Some(row.workspace_id);
                let quota = row
                    .quota
                    .map(|most| u32::try_from(most).unwrap_or(u32::MAX));
                entry.quota = quota;
            }
        }
        let removed = self.made.iter();
        let removed = removed.filter(|row| row.cluster_name == cluster && row.removed);
        let removed = removed.map(|row| row.namespace.clone());
        // Work of others may be in it: it goes when that has ended, and nothing is bound to it.
        let is_used = |name: &String| {
            let mut in_use = in_use.values().filter_map(|it| it.namespace.as_ref());
            bound.contains_key(name) || in_use.any(|it| it == name)
        };
        let removed = removed.filter(|name| !is_used(name)).collect();
        Namespaces {
            bound,
            in_use,
            removed,
        }
    }

    /// Refuses to put anything into a project that is put away or being deleted.
    pub(crate) fn require_open(
        &self,
        project_id: ProjectId,
    ) -> AppResult<(&ProjectRow, &WorkspaceRow)> {
        let (project, workspace) = self.project(project_id)?;
        let path = path_of(project, workspace);
        if project.state == Some(DeletionState::Deleting) {
            return Err(AppError::precondition(format!(
                "project {path} is being deleted: nothing more can be put there"
            )));
        }
        require_unarchived(project, workspace, "nothing more can be put there")?;
        Ok((project, workspace))
    }

    /// Refuses to change what is in a project that is put away, by itself or with its workspace. `so` completes the message:
    /// what does not happen because of it.
    pub(crate) fn require_unarchived(&self, project_id: ProjectId, so: &str) -> AppResult<()> {
        let (project, workspace) = self.project(project_id)?;
        require_unarchived(project, workspace, so)
    }

    /// Where an experiment is, for showing. One whose project was deleted a moment ago is shown as uncategorized.
    pub(crate) fn home(&self, project_id: ProjectId) -> Option<(&ProjectRow, &WorkspaceRow)> {
        self.project(project_id)
            .or_else(|_| self.project(UNCATEGORIZED_PROJECT))
            .ok()
    }
}

/// Refuses what is not for a project that is put away, by itself or with its workspace.
pub(crate) fn require_unarchived(
    project: &ProjectRow,
    workspace: &WorkspaceRow,
    so: &str,
) -> AppResult<()> {
    let how = match (workspace.archived, project.archived) {
        (true, _) => format!("det workspace unarchive \"{}\"", workspace.name),
        (false, true) => format!(
            "det project unarchive \"{}\" \"{}\"",
            workspace.name, project.name
        ),
        (false, false) => return Ok(()),
    };
    Err(AppError::precondition(format!(
        "project {} is archived: {so}",
        path_of(project, workspace)
    ))
    .hint(format!("take it out again with `{how}`")))
}

/// Refuses what is not for a workspace that is put away.
pub(crate) fn require_unarchived_workspace(workspace: &WorkspaceRow, so: &str) -> AppResult<()> {
    if !workspace.archived {
        return Ok(());
    }
    let name = &workspace.name;
    Err(
        AppError::precondition(format!("workspace \"{name}\" is archived: {so}")).hint(format!(
            "take it out again with `det workspace unarchive \"{name}\"`"
        )),
    )
}

/// Refuses to put anything into a workspace that is put away or being deleted. `so` completes the message: what does not
/// happen because of it.
pub(crate) fn require_open_workspace(workspace: &WorkspaceRow, so: &str) -> AppResult<()> {
    if workspace.state == Some(DeletionState::Deleting) {
        return Err(AppError::precondition(format!(
            "workspace \"{}\" is being deleted: {so}",
            workspace.name
        )));
    }
    require_unarchived_workspace(workspace, so)
}

/// A project as messages name it.
pub(crate) fn path_of(project: &ProjectRow, workspace: &WorkspaceRow) -> String {
    format!("\"{}\" of workspace \"{}\"", project.name, workspace.name)
}
