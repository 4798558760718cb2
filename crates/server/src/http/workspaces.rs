//! Workspaces.

use det_api_types::page::{Empty, OrderBy};
use det_api_types::wire::Float;
use det_api_types::workspaces::{
    ChangedWorkspaceResponse, DeletionResponse, GetKubernetesResourceQuotasResponse,
    GetWorkspaceResponse, GetWorkspacesQuery, GetWorkspacesResponse, ListRPsBoundToWorkspaceQuery,
    ListRPsBoundToWorkspaceResponse, PatchWorkspace, PostWorkspaceRequest,
    SetResourceQuotasRequest, WorkspaceSortBy,
};
use det_store::workspaces::WorkspaceRow;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::homes::Homes;
use crate::app::reads::paging::{self, by_name};
use crate::app::workspaces::{NewWorkspace, WorkspacePatch};
use crate::app::{Master, reads};
use crate::auth::Actor;
use crate::error::AppResult;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::users::identity;
use crate::http::views::workspaces::{Owner, Shown};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_workspaces, post_workspace))
        .routes(routes!(get_workspace, patch_workspace, delete_workspace))
        .routes(routes!(archive_workspace))
        .routes(routes!(unarchive_workspace))
        .routes(routes!(pin_workspace))
        .routes(routes!(unpin_workspace))
        .routes(routes!(set_resource_quotas))
        .routes(routes!(get_kubernetes_resource_quotas))
        .routes(routes!(list_rps_bound_to_workspace))
}

/// What workspaces and projects are shown with, counted now.
pub(super) async fn shown<'a>(
    master: &Master,
    homes: &'a Homes,
    actor: &Actor,
) -> AppResult<Shown<'a>> {
    let totals = reads::homes::totals(&master.context.store, &master.catalogue, actor).await?;
    let users = master.auth.users();
    Ok(Shown {
        homes,
        users: users
            .iter()
            .map(|user| (user.id, user.username.clone()))
            .collect(),
        cluster: master
            .auth
            .cluster_owner()
            .map_or_else(Owner::default, |user| Owner {
                id: user.id,
                username: user.username.clone(),
            }),
        totals,
        viewer: actor.user().id,
    })
}

/// What a listing asks of each workspace or project.
pub(super) struct Asked<'a> {
    pub(super) name: &'a str,
    pub(super) archived: Option<bool>,
    pub(super) users: &'a [String],
    pub(super) user_ids: &'a [i64],
}

impl Asked<'_> {
    /// Whether one with these properties is asked for.
    pub(super) fn fits(&self, name: &str, archived: bool, owner: &Owner) -> bool {
        let anybody = self.users.is_empty() && self.user_ids.is_empty();
        name.to_lowercase().contains(&self.name.to_lowercase())
            && self.archived.is_none_or(|wanted| wanted == archived)
            && (anybody
                || self.users.contains(&owner.username)
                || self.user_ids.contains(&owner.id))
    }

    /// Puts what has exactly the name that was asked for first: clients take the first one.
    pub(super) fn exact_first<T>(&self, items: &mut [T], name: impl Fn(&T) -> &str) {
        if !self.name.is_empty() {
            items.sort_by_key(|item| name(item) != self.name);
        }
    }
}

/// The workspaces that the caller may see.
#[utoipa::path(get, path = "/api/v1/workspaces", operation_id = "GetWorkspaces", tag = "workspaces",
    params(GetWorkspacesQuery), responses((status = 200, body = GetWorkspacesResponse)))]
async fn get_workspaces(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetWorkspacesQuery>,
) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    let shown = shown(&master, &homes, &actor).await?;
    let asked = Asked {
        name: &query.name,
        archived: query.archived,
        users: &query.users,
        user_ids: &query.user_ids,
    };
    let exactly = &query.name_case_sensitive;
    let fits = |row: &&WorkspaceRow| {
        let pinned = homes.pins.contains_key(&(shown.viewer, row.id));
        asked.fits(&row.name, row.archived, &shown.owner(row.owner_id))
            && (exactly.is_empty() || *exactly == row.name)
            && query.pinned.is_none_or(|wanted| wanted == pinned)
    };
    let mut rows: Vec<&WorkspaceRow> = homes.workspaces.values().filter(fits).collect();
    if query.sort_by == WorkspaceSortBy::Name {
        rows.sort_by(|a, b| by_name(&a.name, &b.name));
    }
    if query.order_by == OrderBy::Desc {
        rows.reverse();
    }
    asked.exact_first(&mut rows, |row| row.name.as_str());
    let (rows, pagination) = paging::slice(rows, query.offset, query.limit);
    message(&GetWorkspacesResponse {
        workspaces: rows
            .into_iter()
            .map(|row| shown.workspace(row))
            .collect::<AppResult<_>>()?,
        pagination,
    })
}

async fn changed(master: &Master, actor: &Actor, row: &WorkspaceRow) -> Answer {
    let homes = reads::homes::all(&master.homes, actor)?;
    message(&ChangedWorkspaceResponse {
        workspace: shown(master, &homes, actor).await?.workspace(row)?,
        ..ChangedWorkspaceResponse::default()
    })
}

/// Adds a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces", operation_id = "PostWorkspace", tag = "workspaces",
    request_body = PostWorkspaceRequest, responses((status = 200, body = ChangedWorkspaceResponse)))]
async fn post_workspace(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PostWorkspaceRequest>,
) -> Answer {
    let new = NewWorkspace {
        name: body.name,
        identity: body.agent_user_group.map(identity).unwrap_or_default(),
        checkpoint_storage: body.checkpoint_storage_config.unwrap_or_default().0,
        default_compute_pool: body.default_compute_pool.unwrap_or_default(),
        default_aux_pool: body.default_aux_pool.unwrap_or_default(),
        max_slots: body.max_slots,
        quotas: body.cluster_quota_pairs,
        namespaces: !body.cluster_namespace_meta.is_empty(),
    };
    let row = master.workspaces.create(&actor, new).await?;
    changed(&master, &actor, &row).await
}

/// One workspace.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}", operation_id = "GetWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = GetWorkspaceResponse)))]
async fn get_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    let row = homes.workspace(id)?;
    message(&GetWorkspaceResponse {
        workspace: shown(&master, &homes, &actor).await?.workspace(row)?,
    })
}

/// Changes a workspace. Null leaves things as they are.
#[utoipa::path(patch, path = "/api/v1/workspaces/{id}", operation_id = "PatchWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), request_body = PatchWorkspace,
    responses((status = 200, body = ChangedWorkspaceResponse)))]
async fn patch_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<PatchWorkspace>,
) -> Answer {
    let patch = WorkspacePatch {
        name: body.name,
        identity: body.agent_user_group.map(identity),
        checkpoint_storage: body.checkpoint_storage_config.map(|object| object.0),
        default_compute_pool: body
            .default_compute_pool
            .or(body.default_compute_resource_pool),
        default_aux_pool: body.default_aux_pool.or(body.default_aux_resource_pool),
        max_slots: body.max_slots,
        namespaces: !body.cluster_namespace_meta.is_empty(),
        ..WorkspacePatch::default()
    };
    let row = master.workspaces.change(&actor, id, patch).await?;
    changed(&master, &actor, &row).await
}

/// Deletes a workspace with everything in it, in the background where there are experiments.
#[utoipa::path(delete, path = "/api/v1/workspaces/{id}", operation_id = "DeleteWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = DeletionResponse)))]
async fn delete_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    let completed = master.workspaces.delete(&actor, id).await?;
    message(&DeletionResponse { completed })
}

/// Puts a workspace away.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/archive", operation_id = "ArchiveWorkspace",
    tag = "workspaces", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn archive_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.workspaces.archive(&actor, id, true).await?;
    empty()
}

/// Takes a workspace out again.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/unarchive", operation_id = "UnarchiveWorkspace",
    tag = "workspaces", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unarchive_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.workspaces.archive(&actor, id, false).await?;
    empty()
}

/// Pins a workspace for the caller.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/pin", operation_id = "PinWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn pin_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.workspaces.pin(&actor, id, true).await?;
    empty()
}

/// Takes the caller's pin away.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/unpin", operation_id = "UnpinWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unpin_workspace(Caller(master, actor): Caller, PathId(id): PathId) -> Answer {
    master.workspaces.pin(&actor, id, false).await?;
    empty()
}

/// Limits the slots that work in a workspace may have at once.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/set-resource-quota", operation_id = "SetResourceQuotas",
    tag = "workspaces", params(("id" = i64, Path)), request_body = SetResourceQuotasRequest,
    responses((status = 200, body = Empty)))]
async fn set_resource_quotas(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireBody(body): WireBody<SetResourceQuotasRequest>,
) -> Answer {
    let patch = WorkspacePatch {
        quotas: body.cluster_quota_pairs,
        ..WorkspacePatch::default()
    };
    master.workspaces.change(&actor, id, patch).await?;
    empty()
}

/// The limit of slots of a workspace, by the name of the cluster.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}/get-k8s-resource-quotas",
    operation_id = "GetKubernetesResourceQuotas", tag = "workspaces", params(("id" = i64, Path)),
    responses((status = 200, body = GetKubernetesResourceQuotasResponse)))]
async fn get_kubernetes_resource_quotas(
    Caller(master, actor): Caller,
    PathId(id): PathId,
) -> Answer {
    let homes = reads::homes::all(&master.homes, &actor)?;
    let row = homes.workspace(id)?;
    let cluster = master
        .context
        .config()
        .resource_manager
        .cluster_name
        .clone();
    let limit = homes.slot_limits().get(&row.id).copied();
    message(&GetKubernetesResourceQuotasResponse {
        resource_quotas: limit
            .into_iter()
            .map(|slots| (cluster.clone(), Float(f64::from(slots))))
            .collect(),
    })
}

/// The pools that work in a workspace may use: all of them, since pools are not bound to workspaces in this version.
#[utoipa::path(get, path = "/api/v1/workspaces/{workspaceId}/available-resource-pools",
    operation_id = "ListRPsBoundToWorkspace", tag = "workspaces",
    params(("workspaceId" = i64, Path), ListRPsBoundToWorkspaceQuery),
    responses((status = 200, body = ListRPsBoundToWorkspaceResponse)))]
async fn list_rps_bound_to_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId,
    WireQuery(query): WireQuery<ListRPsBoundToWorkspaceQuery>,
) -> Answer {
    reads::homes::all(&master.homes, &actor)?.workspace(id)?;
    let (resource_pools, pagination) =
        paging::slice(master.pools.serving(), query.offset, query.limit);
    message(&ListRPsBoundToWorkspaceResponse {
        resource_pools,
        pagination,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_found_by_part_of_their_name_and_by_their_owner() {
        let owner = Owner {
            id: 1,
            username: "admin".into(),
        };
        let nobody: (&[String], &[i64]) = (&[], &[]);
        let admin = ["admin".to_owned()];
        let bob = ["bob".to_owned()];
        for (name, archived, (users, user_ids), expected) in [
            ("", None, nobody, true),
            ("uncat", None, nobody, true),
            ("other", None, nobody, false),
            ("", Some(true), nobody, false),
            ("", Some(false), (&admin[..], &[][..]), true),
            ("", None, (&bob[..], &[2][..]), false),
            ("", None, (&bob[..], &[1][..]), true),
        ] {
            let asked = Asked {
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
        let asked = Asked {
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
