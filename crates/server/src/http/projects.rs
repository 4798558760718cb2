//! Projects.

use axum::extract::Path;
use det_api_types::page::Empty;
use det_api_types::workspaces::{
    DeletionResponse, GetProjectResponse, GetWorkspaceProjectsQuery, GetWorkspaceProjectsResponse,
    MoveProjectRequest, Note, PatchProject, PostProjectRequest, ProjectNotesResponse,
    PutProjectNotesRequest,
};
use det_ids::{ProjectId, WorkspaceId};

use crate::app::projects::{NewProject, Note as StoredNote, NotesChange, ProjectPatch};
use crate::app::reads::homes::ProjectView;
use crate::app::{changes, reads};
use crate::error::AppResult;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;
use crate::http::views::workspaces::project;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
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
    PathId(id): PathId<WorkspaceId>,
    WireQuery(query): WireQuery<GetWorkspaceProjectsQuery>,
) -> Answer {
    let (rows, pagination) =
        reads::homes::projects(&master.sources.homes, &actor, id, &query).await?;
    message(&GetWorkspaceProjectsResponse {
        projects: rows.iter().map(project).collect::<AppResult<_>>()?,
        pagination,
    })
}

fn note(Note { name, contents }: Note) -> StoredNote {
    StoredNote { name, contents }
}

fn answer(view: &ProjectView) -> Answer {
    message(&GetProjectResponse {
        project: project(view)?,
    })
}

/// Adds a project to a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/projects", operation_id = "PostProject",
    tag = "projects", params(("id" = i64, Path)), request_body = PostProjectRequest,
    responses((status = 200, body = GetProjectResponse)))]
async fn post_project(
    Caller(master, actor): Caller,
    PathId(workspace_id): PathId<WorkspaceId>,
    WireBody(body): WireBody<PostProjectRequest>,
) -> Answer {
    let new = NewProject {
        workspace_id,
        name: body.name,
        description: body.description.unwrap_or_default(),
        key: body.key.unwrap_or_default(),
    };
    answer(&changes::create_project(&master.changes.workspaces, &actor, new).await?)
}

/// A project with its notes and counts of its experiments.
#[utoipa::path(get, path = "/api/v1/projects/{id}", operation_id = "GetProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = GetProjectResponse)))]
async fn get_project(Caller(master, actor): Caller, PathId(id): PathId<ProjectId>) -> Answer {
    answer(&reads::homes::project(&master.sources.homes, &actor, id).await?)
}

/// The project with a short name.
#[utoipa::path(get, path = "/api/v1/projects/key/{key}", operation_id = "GetProjectByKey", tag = "projects",
    params(("key" = String, Path)), responses((status = 200, body = GetProjectResponse)))]
async fn get_project_by_key(Caller(master, actor): Caller, Path(key): Path<String>) -> Answer {
    answer(&reads::homes::project_by_key(&master.sources.homes, &actor, &key).await?)
}

/// Changes a project. Null leaves things as they are.
#[utoipa::path(patch, path = "/api/v1/projects/{id}", operation_id = "PatchProject", tag = "projects",
    params(("id" = i64, Path)), request_body = PatchProject,
    responses((status = 200, body = GetProjectResponse)))]
async fn patch_project(
    Caller(master, actor): Caller,
    PathId(id): PathId<ProjectId>,
    WireBody(body): WireBody<PatchProject>,
) -> Answer {
    let patch = ProjectPatch {
        name: body.name,
        description: body.description,
        key: body.key,
    };
    answer(&changes::patch_project(&master.changes.workspaces, &actor, id, patch).await?)
}

/// Deletes a project with everything in it, in the background where there are experiments.
#[utoipa::path(delete, path = "/api/v1/projects/{id}", operation_id = "DeleteProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = DeletionResponse)))]
async fn delete_project(Caller(master, actor): Caller, PathId(id): PathId<ProjectId>) -> Answer {
    let completed = master.projects.delete(&actor, id).await?;
    message(&DeletionResponse { completed })
}

/// Puts a project away.
#[utoipa::path(post, path = "/api/v1/projects/{id}/archive", operation_id = "ArchiveProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn archive_project(Caller(master, actor): Caller, PathId(id): PathId<ProjectId>) -> Answer {
    master.projects.archive(&actor, id, true).await?;
    empty()
}

/// Takes a project out again.
#[utoipa::path(post, path = "/api/v1/projects/{id}/unarchive", operation_id = "UnarchiveProject",
    tag = "projects", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unarchive_project(Caller(master, actor): Caller, PathId(id): PathId<ProjectId>) -> Answer {
    master.projects.archive(&actor, id, false).await?;
    empty()
}

/// Moves a project with its experiments to another workspace.
#[utoipa::path(post, path = "/api/v1/projects/{projectId}/move", operation_id = "MoveProject", tag = "projects",
    params(("projectId" = i64, Path)), request_body = MoveProjectRequest,
    responses((status = 200, body = Empty)))]
async fn move_project(
    Caller(master, actor): Caller,
    PathId(id): PathId<ProjectId>,
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
    PathId(id): PathId<ProjectId>,
    WireBody(body): WireBody<Note>,
) -> Answer {
    let change = NotesChange::Add(note(body));
    let notes = master.projects.change_notes(&actor, id, change).await?;
    message(&ProjectNotesResponse {
        notes: views::workspaces::notes(notes),
    })
}

/// Stores a project's notes in place of those there were.
#[utoipa::path(put, path = "/api/v1/projects/{projectId}/notes", operation_id = "PutProjectNotes",
    tag = "projects", params(("projectId" = i64, Path)), request_body = PutProjectNotesRequest,
    responses((status = 200, body = ProjectNotesResponse)))]
async fn put_project_notes(
    Caller(master, actor): Caller,
    PathId(id): PathId<ProjectId>,
    WireBody(body): WireBody<PutProjectNotesRequest>,
) -> Answer {
    let change = NotesChange::Replace(body.notes.into_iter().map(note).collect());
    let notes = master.projects.change_notes(&actor, id, change).await?;
    message(&ProjectNotesResponse {
        notes: views::workspaces::notes(notes),
    })
}
