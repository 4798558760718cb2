//! Projects.

use axum::extract::Path;
use det_api_types::page::{Empty, OrderBy};
use det_api_types::workspaces::{
    DeletionResponse, GetProjectResponse, GetWorkspaceProjectsQuery, GetWorkspaceProjectsResponse,
    MoveProjectRequest, Note, PatchProject, PostProjectRequest, ProjectNotesResponse,
    ProjectSortBy, PutProjectNotesRequest,
};
use det_store::workspaces::ProjectRow;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::app::projects::{NewProject, NotesChange, ProjectPatch};
use crate::app::reads;
use crate::app::reads::paging::{self, by_name};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::workspaces::{Asked, shown};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_workspace_projects, post_project))
        .routes(routes!(get_project, patch_project, delete_project))
        .routes(routes!(get_project_by_key))
        .routes(routes!(archive_project))
        .routes(routes!(unarchive_project))
        .routes(routes!(move_project))
        .routes(routes!(add_project_note, put_project_notes))
}

/// Projects of a workspace. Of those with large texts a page has fewer than `limit`.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}/projects", operation_id = "GetWorkspaceProjects",
    tag = "projects", params(("id" = i64, Path), GetWorkspaceProjectsQuery),
    responses((status = 200, body = GetWorkspaceProjectsResponse)))]
async fn get_workspace_projects(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<GetWorkspaceProjectsQuery>,
) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    homes.workspace(id)?;
    let shown = shown(&master, &homes, &actor).await?;
    let asked = Asked {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let fits = |row: &&ProjectRow| {
        let owner = shown.owner(row.owner_id);
        asked.fits(&row.name, homes.is_archived(row), &owner)
    };
    let mut rows: Vec<&ProjectRow> = homes.projects_of(id).filter(fits).collect();
    let started = |row: &ProjectRow| {
        let totals = shown.totals.get(&row.id);
        totals.and_then(|totals| totals.last_created_at)
    };
    let heads = reads::homes::text_heads(&master.context.store, &actor, id).await?;
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
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let texts = reads::homes::texts(&master.context.store, &actor, &ids).await?;
    message(&GetWorkspaceProjectsResponse {
        projects: rows
            .into_iter()
            .map(|row| shown.project(row, texts.get(&row.id)))
            .collect::<AppResult<_>>()?,
        pagination,
    })
}

async fn answer(master: &Master, actor: &Actor, row: &ProjectRow) -> Answer {
    let homes = reads::homes::all(&master.homes, actor)?;
    let texts = reads::homes::texts(&master.context.store, actor, &[row.id]).await?;
    let shown = shown(master, &homes, actor).await?;
    message(&GetProjectResponse {
        project: shown.project(row, texts.get(&row.id))?,
    })
}

/// Adds a project to a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/projects", operation_id = "PostProject",
    tag = "projects", params(("id" = i64, Path)), request_body = PostProjectRequest,
    responses((status = 200, body = GetProjectResponse)))]
async fn post_project(
    Caller(master, actor): Caller,
    PathId(workspace_id): PathId,
    WireBody(body): WireBody<PostProjectRequest>,
) -> Answer {
    let new = NewProject {
        workspace_id,
        name: body.name,
        description: body.description.unwrap_or_default(),
        key: body.key.unwrap_or_default(),
    };
    let row = master.projects.create(&actor, new).await?;
    answer(&master, &actor, &row).await
}

/// One project.
#[utoipa::path(get, path = "/api/v1/projects/{id}", operation_id = "GetProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = GetProjectResponse)))]
async fn get_project(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    answer(&master, &actor, homes.project(id)?.0).await
}

/// The project with a short name.
#[utoipa::path(get, path = "/api/v1/projects/key/{key}", operation_id = "GetProjectByKey", tag = "projects",
    params(("key" = String, Path)), responses((status = 200, body = GetProjectResponse)))]
async fn get_project_by_key(Caller(master, actor): Caller, Path(key): Path<String>) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    let mut projects = homes.projects.values();
    let row = projects.find(|row| row.key.eq_ignore_ascii_case(&key));
    let row = row.ok_or_else(|| AppError::not_found("project", key.escape_debug()))?;
    answer(&master, &actor, row).await
}

/// Changes a project. Null leaves things as they are.
#[utoipa::path(patch, path = "/api/v1/projects/{id}", operation_id = "PatchProject", tag = "projects",
    params(("id" = i64, Path)), request_body = PatchProject,
    responses((status = 200, body = GetProjectResponse)))]
async fn patch_project(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<PatchProject>,
) -> Answer {
    let patch = ProjectPatch {
        name: body.name,
        description: body.description,
        key: body.key,
    };
    let row = master.projects.change(&actor, id, patch).await?;
    answer(&master, &actor, &row).await
}

/// Deletes a project with everything in it, in the background where there are experiments.
#[utoipa::path(delete, path = "/api/v1/projects/{id}", operation_id = "DeleteProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = DeletionResponse)))]
async fn delete_project(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    let completed = master.projects.delete(&actor, id).await?;
    message(&DeletionResponse { completed })
}

/// Puts a project away.
#[utoipa::path(post, path = "/api/v1/projects/{id}/archive", operation_id = "ArchiveProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn archive_project(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.projects.archive(&actor, id, true).await?;
    empty()
}

/// Takes a project out again.
#[utoipa::path(post, path = "/api/v1/projects/{id}/unarchive", operation_id = "UnarchiveProject",
    tag = "projects", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unarchive_project(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.projects.archive(&actor, id, false).await?;
    empty()
}

/// Moves a project with its experiments to another workspace.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/move", operation_id = "MoveProject", tag = "projects",
    params(("projectId" = i64, Path)), request_body = MoveProjectRequest,
    responses((status = 200, body = Empty)))]
async fn move_project(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<MoveProjectRequest>,
) -> Answer {
    let to = body.destination_workspace_id;
    master.projects.move_to(&actor, id, to).await?;
    empty()
}

/// Adds a note to a project.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/notes", operation_id = "AddProjectNote",
    tag = "projects", params(("projectId" = i64, Path)), request_body = Note,
    responses((status = 200, body = ProjectNotesResponse)))]
async fn add_project_note(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<Note>,
) -> Answer {
    let change = NotesChange::Add(body);
    let notes = master.projects.change_notes(&actor, id, change).await?;
    message(&ProjectNotesResponse { notes })
}

/// Stores a project's notes in place of those there were.
#[utoipa::path(put, path = "/api/v1/projects/{projectId}/notes", operation_id = "PutProjectNotes",
    tag = "projects", params(("projectId" = i64, Path)), request_body = PutProjectNotesRequest,
    responses((status = 200, body = ProjectNotesResponse)))]
async fn put_project_notes(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<PutProjectNotesRequest>,
) -> Answer {
    let change = NotesChange::Replace(body.notes);
    let notes = master.projects.change_notes(&actor, id, change).await?;
    message(&ProjectNotesResponse { notes })
}
