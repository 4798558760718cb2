//! Workspaces and projects. This version has one of each, which cannot be changed; every experiment is in it.

use axum::extract::State;
use det_api_types::workspaces::{
    GetProjectResponse, GetWorkspaceProjectsQuery, GetWorkspaceProjectsResponse,
    GetWorkspaceResponse, GetWorkspacesQuery, GetWorkspacesResponse,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, PathId, WireQuery};
use crate::http::respond::{Answer, message};
use crate::http::views::paging;
use crate::http::views::workspaces::{
    Counts, Owner, UNCATEGORIZED, UNCATEGORIZED_ID, project, workspace,
};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_workspaces))
        .routes(routes!(get_workspace))
        .routes(routes!(get_workspace_projects))
        .routes(routes!(get_project))
}

/// Who owns workspace and project: the first administrator.
pub(crate) fn owner(master: &Master) -> Owner {
    let users = master.auth.users();
    users
        .iter()
        .find(|user| user.admin)
        .or(users.first())
        .map_or_else(Owner::default, |user| Owner {
            id: user.id,
            username: user.username.clone(),
        })
}

async fn counts(master: &Master) -> AppResult<Counts> {
    master.catalogue.refresh(&master.store).await?;
    let totals = master.catalogue.totals();
    let totals = totals.get(&UNCATEGORIZED_ID).copied().unwrap_or_default();
    Ok(Counts {
        experiments: totals.experiments,
        active: totals.live,
        trials: totals.trials,
        last_started_at: totals.last_created_at,
    })
}

/// What a listing asks of the only thing that there is.
struct Asked<'a> {
    name: &'a str,
    archived: Option<bool>,
    users: &'a [String],
    user_ids: &'a [i64],
}

impl Asked<'_> {
    /// Whether the only workspace or project is among what is asked for.
    fn fits(&self, owner: &Owner) -> bool {
        let nobody = self.users.is_empty() && self.user_ids.is_empty();
        UNCATEGORIZED
            .to_lowercase()
            .contains(&self.name.to_lowercase())
            && self.archived != Some(true)
            && (nobody || self.users.contains(&owner.username) || self.user_ids.contains(&owner.id))
    }
}

fn check(what: &str, id: i64) -> AppResult<()> {
    if id == UNCATEGORIZED_ID {
        Ok(())
    } else {
        Err(AppError::not_found(what, id)
            .hint(format!("this version has one {what}: 1, {UNCATEGORIZED}")))
    }
}

/// Workspaces.
#[utoipa::path(get, path = "/api/v1/workspaces", operation_id = "GetWorkspaces", tag = "workspaces",
    params(GetWorkspacesQuery), responses((status = 200, body = GetWorkspacesResponse)))]
async fn get_workspaces(
    State(master): State<Master>,
    _caller: Caller,
    WireQuery(query): WireQuery<GetWorkspacesQuery>,
) -> Answer {
    let owner = owner(&master);
    let asked = Asked {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let exact = query.name_case_sensitive.is_empty() || query.name_case_sensitive == UNCATEGORIZED;
    let mut found = Vec::new();
    if asked.fits(&owner) && exact && query.pinned != Some(true) {
        found.push(workspace(&owner, &counts(&master).await?));
    }
    let (workspaces, pagination) = paging::slice(found, query.offset, query.limit);
    message(&GetWorkspacesResponse {
        workspaces,
        pagination,
    })
}

/// One workspace.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}", operation_id = "GetWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = GetWorkspaceResponse)))]
async fn get_workspace(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
) -> Answer {
    check("workspace", id)?;
    message(&GetWorkspaceResponse {
        workspace: workspace(&owner(&master), &counts(&master).await?),
    })
}

/// Projects of a workspace.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}/projects", operation_id = "GetWorkspaceProjects",
    tag = "workspaces", params(("id" = i64, Path), GetWorkspaceProjectsQuery),
    responses((status = 200, body = GetWorkspaceProjectsResponse)))]
async fn get_workspace_projects(
    State(master): State<Master>,
    _caller: Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<GetWorkspaceProjectsQuery>,
) -> Answer {
    check("workspace", id)?;
    let owner = owner(&master);
    let asked = Asked {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let mut found = Vec::new();
    if asked.fits(&owner) {
        found.push(project(&owner, &counts(&master).await?));
    }
    let (projects, pagination) = paging::slice(found, query.offset, query.limit);
    message(&GetWorkspaceProjectsResponse {
        projects,
        pagination,
    })
}

/// One project.
#[utoipa::path(get, path = "/api/v1/projects/{id}", operation_id = "GetProject", tag = "projects",
    params(("id" = i64, Path)), responses((status = 200, body = GetProjectResponse)))]
async fn get_project(State(master): State<Master>, _caller: Caller, PathId(id): PathId) -> Answer {
    check("project", id)?;
    message(&GetProjectResponse {
        project: project(&owner(&master), &counts(&master).await?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_workspace_is_found_by_part_of_its_name_and_by_its_owner() {
        let owner = Owner {
            id: 1,
            username: "admin".into(),
        };
        let asked = Asked {
            name: "",
            archived: None,
            users: &[],
            user_ids: &[],
        };
        assert!(asked.fits(&owner));
        assert!(
            Asked {
                name: "uncat",
                ..asked
            }
            .fits(&owner)
        );
        let asked = Asked {
            name: "other",
            archived: None,
            users: &[],
            user_ids: &[],
        };
        assert!(!asked.fits(&owner));
        assert!(
            !Asked {
                name: "",
                archived: Some(true),
                users: &[],
                user_ids: &[]
            }
            .fits(&owner)
        );
        assert!(
            Asked {
                name: "",
                archived: Some(false),
                users: &["admin".into()],
                user_ids: &[]
            }
            .fits(&owner)
        );
        assert!(
            !Asked {
                name: "",
                archived: None,
                users: &["bob".into()],
                user_ids: &[2]
            }
            .fits(&owner)
        );
    }
}
