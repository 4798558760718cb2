//! Reading workspaces and projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::workspaces::{
    GetWorkspaceProjectsQuery, GetWorkspacesQuery, ListRPsBoundToWorkspaceQuery, ProjectSortBy,
    WorkspaceSortBy,
};
use det_authz::Kind;
use det_ids::{ProjectId, UserId, WorkspaceId};
use det_lifecycle::object::ObjectKind;
use det_store::Store;
use det_store::catalogue::{Catalogue, Totals};
use det_store::namespaces::BindingRow;
use det_store::workspaces::{self, ProjectRow, ProjectTexts, ProjectTextsHead, WorkspaceRow};

use crate::app::context::Context;
use crate::app::homes::{Homes, KnownHomes};
use crate::app::pools::Pools;
use crate::app::reads;
use crate::app::reads::paging::{self, by_name};
use crate::app::workspaces::WorkspaceNamespaces;
use crate::auth::{Actor, Auth};
use crate::error::{AppError, AppResult};

/// All workspaces and projects, from memory.
pub(crate) fn all(known: &KnownHomes, actor: &Actor) -> AppResult<Arc<Homes>> {
    reads::require(actor, Kind::Workspace, "workspaces")?;
    reads::require(actor, Kind::Project, "projects")?;
    Ok(known.get())
}

/// A user's number and login name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Owner {
    /// Number of the user.
    pub(crate) id: UserId,
    /// Name by which the user logs in.
    pub(crate) username: String,
}

/// A workspace as it is shown.
pub(crate) struct WorkspaceView {
    /// Row of the workspace.
    pub(crate) row: WorkspaceRow,
    /// Its owner, or who represents the cluster.
    pub(crate) owner: Owner,
    /// Number of projects in it.
    pub(crate) projects: i64,
    /// Number of experiments in it.
    pub(crate) experiments: i64,
    /// When the reader pinned it, in microseconds.
    pub(crate) pinned_at: Option<i64>,
    /// The namespace that is made for it.
    pub(crate) made_namespace: Option<String>,
}

/// A project as it is shown.
pub(crate) struct ProjectView {
    /// Row of the project, without its texts.
    pub(crate) row: ProjectRow,
    /// Its owner, or who represents the cluster.
    pub(crate) owner: Owner,
    /// Name of its workspace.
    pub(crate) workspace: String,
    /// Whether it or its workspace is put away.
    pub(crate) archived: bool,
    /// How many experiments and trials are in it.
    pub(crate) totals: Totals,
    /// Its texts; none of one that was deleted a moment ago.
    pub(crate) texts: Option<ProjectTexts>,
}

/// What workspaces and projects are read from.
#[derive(Clone)]
pub(crate) struct HomeSources {
    pub(crate) context: Context,
    pub(crate) homes: KnownHomes,
    pub(crate) auth: Auth,
    /// Counts the experiments of each project.
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) namespaces: WorkspaceNamespaces,
    pub(crate) pools: Pools,
}

/// What workspaces and projects are shown with, counted now.
struct Overview {
    store: Store,
    homes: Arc<Homes>,
    auth: Auth,
    /// What is in each project.
    totals: BTreeMap<ProjectId, Totals>,
    reader: UserId,
}

impl Overview {
    async fn load(sources: &HomeSources, actor: &Actor) -> AppResult<Self> {
        let homes = all(&sources.homes, actor)?;
        sources.catalogue.refresh(&sources.context.store).await?;
        Ok(Self {
            store: sources.context.store.clone(),
            homes,
            auth: sources.auth.clone(),
            totals: sources.catalogue.totals(),
            reader: actor.user().id,
        })
    }

    /// The owner of what has this owner.
    fn owner(&self, owner_id: Option<UserId>) -> Owner {
        let user = match owner_id {
            Some(id) => self.auth.user(id),
            None => self.auth.cluster_owner(),
        };
        Owner {
            id: owner_id
                .or(user.as_ref().map(|user| user.id))
                .unwrap_or_default(),
            username: user.map_or_else(String::new, |user| user.username.clone()),
        }
    }

    fn totals(&self, project_id: ProjectId) -> Totals {
        self.totals.get(&project_id).copied().unwrap_or_default()
    }

    fn pinned_at(&self, row: &WorkspaceRow) -> Option<i64> {
        self.homes.pins.get(&(self.reader, row.id)).copied()
    }

    fn workspace(&self, row: WorkspaceRow) -> WorkspaceView {
        let (mut projects, mut experiments) = (0, 0);
        for project in self.homes.projects_of(row.id) {
            projects += 1;
            experiments += self.totals(project.id).experiments;
        }
        WorkspaceView {
            owner: self.owner(row.owner_id),
            projects,
            experiments,
            pinned_at: self.pinned_at(&row),
            made_namespace: self.homes.made_for(row.id).map(str::to_owned),
            row,
        }
    }

    /// Projects with their texts.
    async fn projects(&self, rows: Vec<ProjectRow>) -> AppResult<Vec<ProjectView>> {
        let ids: Vec<ProjectId> = rows.iter().map(|row| row.id).collect();
        let texts = {
            let mut conn = self.store.read().await?;
            workspaces::project_texts(&mut conn.conn(), &ids).await?
        };
        let texts = texts.into_iter().map(|texts| (texts.id, texts));
        let mut texts: BTreeMap<ProjectId, ProjectTexts> = texts.collect();
        let view = |row: ProjectRow| {
            let workspace = self.homes.workspaces.get(&row.workspace_id);
            ProjectView {
                owner: self.owner(row.owner_id),
                workspace: workspace.map_or_else(String::new, |row| row.name.clone()),
                archived: self.homes.is_archived(&row),
                totals: self.totals(row.id),
                texts: texts.remove(&row.id),
                row,
            }
        };
        Ok(rows.into_iter().map(view).collect())
    }

    async fn project(&self, row: ProjectRow) -> AppResult<ProjectView> {
        let id = row.id;
        let view = self.projects(vec![row]).await?.pop();
        view.ok_or_else(|| AppError::not_found(ObjectKind::Project, id))
    }
}

/// What a listing asks of each workspace or project.
struct HomeFilter<'a> {
    name: &'a str,
    archived: Option<bool>,
    users: &'a [String],
    user_ids: &'a [UserId],
}

impl HomeFilter<'_> {
    /// Whether one with these properties is asked for.
    fn fits(&self, name: &str, archived: bool, owner: &Owner) -> bool {
        let anybody = self.users.is_empty() && self.user_ids.is_empty();
        name.to_lowercase().contains(&self.name.to_lowercase())
            && self.archived.is_none_or(|wanted| wanted == archived)
            && (anybody
                || self.users.contains(&owner.username)
                || self.user_ids.contains(&owner.id))
    }

    /// Puts what has exactly the name that was asked for first: clients take the first one.
    fn exact_first<T>(&self, items: &mut [T], name: impl Fn(&T) -> &str) {
        if !self.name.is_empty() {
            items.sort_by_key(|item| name(item) != self.name);
        }
    }
}

/// One page of the workspaces.
pub(crate) async fn workspaces(
    sources: &HomeSources,
    actor: &Actor,
    query: &GetWorkspacesQuery,
) -> AppResult<(Vec<WorkspaceView>, Pagination)> {
    let overview = Overview::load(sources, actor).await?;
    let asked = HomeFilter {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let exactly = &query.name_case_sensitive;
    let fits = |row: &&WorkspaceRow| {
        let pinned = overview.pinned_at(row).is_some();
        asked.fits(&row.name, row.archived, &overview.owner(row.owner_id))
            && (exactly.is_empty() || *exactly == row.name)
            && query.pinned.is_none_or(|wanted| wanted == pinned)
    };
    let mut rows: Vec<&WorkspaceRow> = overview.homes.workspaces.values().filter(fits).collect();
    if query.sort_by == WorkspaceSortBy::Name {
        rows.sort_by(|a, b| by_name(&a.name, &b.name));
    }
    if query.order_by == OrderBy::Desc {
        rows.reverse();
    }
    asked.exact_first(&mut rows, |row| row.name.as_str());
    let (rows, pagination) = paging::slice(rows, query.offset, query.limit);
    let page = rows.into_iter().map(|row| overview.workspace(row.clone()));
    Ok((page.collect(), pagination))
}

/// The workspace with this number, or the error "not found".
pub(crate) async fn workspace(
    sources: &HomeSources,
    actor: &Actor,
    id: WorkspaceId,
) -> AppResult<WorkspaceView> {
    let overview = Overview::load(sources, actor).await?;
    Ok(overview.workspace(overview.homes.workspace(id)?.clone()))
}

/// A workspace, whose row is known, as it is shown.
pub(crate) async fn shown_workspace(
    sources: &HomeSources,
    actor: &Actor,
    row: WorkspaceRow,
) -> AppResult<WorkspaceView> {
    Ok(Overview::load(sources, actor).await?.workspace(row))
}

/// The limits of slots of a workspace by cluster: the lowest there, of the master or of others.
pub(crate) fn quotas(
    sources: &HomeSources,
    actor: &Actor,
    id: WorkspaceId,
) -> AppResult<BTreeMap<String, u32>> {
    let homes = all(&sources.homes, actor)?;
    let row = homes.workspace(id)?;
    let main = &sources.context.config().resource_manager.cluster_name;
    let mut limits: BTreeMap<String, u32> = BTreeMap::new();
    if let Some(limit) = homes.slot_limits().get(&row.id) {
        limits.insert(main.clone(), *limit);
    }
    for cluster in sources.namespaces.cluster_names() {
        let binding = homes.binding(id, &cluster);
        let limit = binding.and_then(|row| sources.namespaces.limit(&cluster, row));
        if let Some(limit) = limit {
            let known = limits.entry(cluster).or_insert(limit);
            *known = limit.min(*known);
        }
    }
    Ok(limits)
}

/// The namespaces of a workspace by cluster: those that it is bound to, and the default ones of other clusters.
pub(crate) fn bindings(
    sources: &HomeSources,
    actor: &Actor,
    id: WorkspaceId,
) -> AppResult<Vec<BindingRow>> {
    let homes = all(&sources.homes, actor)?;
    homes.workspace(id)?;
    let bound = homes.bindings.values().filter(|row| row.workspace_id == id);
    let clusters = sources.namespaces.cluster_names().into_iter();
    let others = clusters.filter(|cluster| homes.binding(id, cluster).is_none());
    let others = others.map(|cluster| BindingRow {
        workspace_id: id,
        namespace: sources.namespaces.default_of(&cluster),
        cluster_name: cluster,
        ..BindingRow::default()
    });
    Ok(bound.cloned().chain(others).collect())
}

/// The workspaces whose work runs in the default namespace of a cluster at least.
pub(crate) fn unbound(sources: &HomeSources, actor: &Actor) -> AppResult<Vec<WorkspaceId>> {
    let homes = all(&sources.homes, actor)?;
    let clusters = sources.namespaces.cluster_names();
    let is_unbound = |id: &WorkspaceId| {
        let mut clusters = clusters.iter();
        clusters.any(|cluster| homes.binding(*id, cluster).is_none())
    };
    let ids = homes.workspaces.keys().copied();
    Ok(ids.filter(is_unbound).collect())
}

/// One page of the pools that work in a workspace may use: all of them, since pools are not bound to workspaces in this
/// version.
pub(crate) fn pools(
    sources: &HomeSources,
    actor: &Actor,
    id: WorkspaceId,
    query: &ListRPsBoundToWorkspaceQuery,
) -> AppResult<(Vec<String>, Pagination)> {
    all(&sources.homes, actor)?.workspace(id)?;
    Ok(paging::slice(
        sources.pools.serving(),
        query.offset,
        query.limit,
    ))
}

/// One page of the projects of a workspace. It ends early where their texts are large.
pub(crate) async fn projects(
    sources: &HomeSources,
    actor: &Actor,
    workspace_id: WorkspaceId,
    query: &GetWorkspaceProjectsQuery,
) -> AppResult<(Vec<ProjectView>, Pagination)> {
    let overview = Overview::load(sources, actor).await?;
    let homes = &overview.homes;
    homes.workspace(workspace_id)?;
    let asked = HomeFilter {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let fits = |row: &&ProjectRow| {
        let owner = overview.owner(row.owner_id);
        asked.fits(&row.name, homes.is_archived(row), &owner)
    };
    let mut rows: Vec<&ProjectRow> = homes.projects_of(workspace_id).filter(fits).collect();
    let started = |row: &ProjectRow| overview.totals(row.id).last_created_at;
    let heads = {
        let mut conn = overview.store.read().await?;
        workspaces::project_text_heads(&mut conn.conn(), workspace_id).await?
    };
    let heads = heads.into_iter().map(|head| (head.id, head));
    let heads: BTreeMap<ProjectId, ProjectTextsHead> = heads.collect();
    let beginning = |row: &ProjectRow| heads.get(&row.id).map_or("", |head| &head.beginning);
    match query.sort_by {
        ProjectSortBy::Unspecified | ProjectSortBy::Id => {}
        ProjectSortBy::CreationTime => rows.sort_by_key(|row| (row.created_at, row.id)),
        ProjectSortBy::LastExperimentStartTime => rows.sort_by_key(|row| (started(row), row.id)),
        ProjectSortBy::Name => rows.sort_by(|a, b| by_name(&a.name, &b.name)),
        ProjectSortBy::Description => rows.sort_by(|a, b| by_name(beginning(a), beginning(b))),
    }
    if query.order_by == OrderBy::Desc {
        rows.reverse();
    }
    asked.exact_first(&mut rows, |row| row.name.as_str());
    let (rows, pagination) = paging::slice(rows, query.offset, query.limit);
    let bytes = |row: &&ProjectRow| heads.get(&row.id).map_or(0, |head| head.bytes);
    let (rows, pagination) = paging::within(rows, pagination, bytes);
    let rows = rows.into_iter().cloned().collect();
    Ok((overview.projects(rows).await?, pagination))
}

/// The project with this number, or the error "not found".
pub(crate) async fn project(
    sources: &HomeSources,
    actor: &Actor,
    id: ProjectId,
) -> AppResult<ProjectView> {
    let overview = Overview::load(sources, actor).await?;
    let row = overview.homes.project(id)?.0.clone();
    overview.project(row).await
}

/// The project with a short name, in any letter case.
pub(crate) async fn project_by_key(
    sources: &HomeSources,
    actor: &Actor,
    key: &str,
) -> AppResult<ProjectView> {
    let overview = Overview::load(sources, actor).await?;
    let mut projects = overview.homes.projects.values();
    let row = projects.find(|row| row.key.eq_ignore_ascii_case(key));
    let row = row.ok_or_else(|| AppError::not_found(ObjectKind::Project, key.escape_debug()))?;
    overview.project(row.clone()).await
}

/// A project, whose row is known, as it is shown.
pub(crate) async fn shown_project(
    sources: &HomeSources,
    actor: &Actor,
    row: ProjectRow,
) -> AppResult<ProjectView> {
    Overview::load(sources, actor).await?.project(row).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_found_by_part_of_their_name_and_by_their_owner() {
        let owner = Owner {
            id: UserId(1),
            username: "admin".into(),
        };
        let nobody: (&[String], &[UserId]) = (&[], &[]);
        let admin = ["admin".to_owned()];
        let bob = ["bob".to_owned()];
        for (name, archived, (users, user_ids), expected) in [
            ("", None, nobody, true),
            ("uncat", None, nobody, true),
            ("other", None, nobody, false),
            ("", Some(true), nobody, false),
            ("", Some(false), (&admin[..], &[][..]), true),
            ("", None, (&bob[..], &[UserId(2)][..]), false),
            ("", None, (&bob[..], &[UserId(1)][..]), true),
        ] {
            let asked = HomeFilter {
                name,
                archived,
                users,
                user_ids,
            };
            assert_eq!(
                asked.fits("Uncategorized", false, &owner),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn what_has_exactly_the_name_comes_first() {
        let asked = HomeFilter {
            name: "Vision",
            archived: None,
            users: &[],
            user_ids: &[],
        };
        let mut names = ["vision", "Vision 2", "Vision", "my Vision"];
        asked.exact_first(&mut names, |name| name);
        assert_eq!(names, ["Vision", "vision", "Vision 2", "my Vision"]);
    }
}
