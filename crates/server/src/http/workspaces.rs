//! Workspaces.

use det_api_types::page::Empty;
use det_api_types::wire::Float;
use det_api_types::workspaces::{
    ChangedWorkspaceResponse, DeletionResponse, GetKubernetesResourceQuotasResponse,
    GetWorkspaceResponse, GetWorkspacesQuery, GetWorkspacesResponse, ListRPsBoundToWorkspaceQuery,
    ListRPsBoundToWorkspaceResponse, PatchWorkspace, PostWorkspaceRequest,
    SetResourceQuotasRequest,
};
use det_ids::WorkspaceId;
use det_store::namespaces::BindingRow;

use crate::app::reads::homes::WorkspaceView;
use crate::app::workspaces::WorkspacePatch;
use crate::app::{changes, reads};
use crate::error::AppResult;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::namespaces::choices;
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::users::identity;
use crate::http::views::workspaces::{by_cluster, workspace};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
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

/// The workspaces that the caller may see.
#[utoipa::path(get, path = "/api/v1/workspaces", operation_id = "GetWorkspaces", tag = "workspaces",
    params(GetWorkspacesQuery), responses((status = 200, body = GetWorkspacesResponse)))]
async fn get_workspaces(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetWorkspacesQuery>,
) -> Answer {
    let (rows, pagination) =
        reads::homes::workspaces(&master.sources.homes, &actor, &query).await?;
    message(&GetWorkspacesResponse {
        workspaces: rows.iter().map(workspace).collect::<AppResult<_>>()?,
        pagination,
    })
}

fn changed_answer((view, bindings): &(WorkspaceView, Vec<BindingRow>)) -> Answer {
    message(&ChangedWorkspaceResponse {
        workspace: workspace(view)?,
        namespace_bindings: by_cluster(bindings),
    })
}

/// Adds a workspace.
#[utoipa::path(post, path = "/api/v1/workspaces", operation_id = "PostWorkspace", tag = "workspaces",
    request_body = PostWorkspaceRequest, responses((status = 200, body = ChangedWorkspaceResponse)))]
async fn post_workspace(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PostWorkspaceRequest>,
) -> Answer {
    let new = WorkspacePatch {
        name: Some(body.name),
        identity: body.agent_user_group.map(identity),
        checkpoint_storage: body.checkpoint_storage_config.map(|object| object.0),
        default_compute_pool: body.default_compute_pool,
        default_aux_pool: body.default_aux_pool,
        max_slots: body.max_slots,
        quotas: body.cluster_quota_pairs,
    };
    let choices = choices(body.cluster_namespace_meta);
    let created =
        changes::create_workspace(&master.changes.workspaces, &actor, new, choices).await?;
    changed_answer(&created)
}

/// A workspace with counts of what is in it.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}", operation_id = "GetWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = GetWorkspaceResponse)))]
async fn get_workspace(Caller(master, actor): Caller, PathId(id): PathId<WorkspaceId>) -> Answer {
    let view = reads::homes::workspace(&master.sources.homes, &actor, id).await?;
    message(&GetWorkspaceResponse {
        workspace: workspace(&view)?,
    })
}

/// Changes a workspace. Null leaves things as they are.
#[utoipa::path(patch, path = "/api/v1/workspaces/{id}", operation_id = "PatchWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), request_body = PatchWorkspace,
    responses((status = 200, body = ChangedWorkspaceResponse)))]
async fn patch_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
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
        ..WorkspacePatch::default()
    };
    let choices = choices(body.cluster_namespace_meta);
    let changed =
        changes::patch_workspace(&master.changes.workspaces, &actor, id, patch, choices).await?;
    changed_answer(&changed)
}

/// Deletes a workspace with everything in it, in the background where there are experiments.
#[utoipa::path(delete, path = "/api/v1/workspaces/{id}", operation_id = "DeleteWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = DeletionResponse)))]
async fn delete_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
) -> Answer {
    let completed = master.workspaces.delete(&actor, id).await?;
    message(&DeletionResponse { completed })
}

/// Puts a workspace away.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/archive", operation_id = "ArchiveWorkspace",
    tag = "workspaces", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn archive_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
) -> Answer {
    master.workspaces.archive(&actor, id, true).await?;
    empty()
}

/// Takes a workspace out again.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/unarchive", operation_id = "UnarchiveWorkspace",
    tag = "workspaces", params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unarchive_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
) -> Answer {
    master.workspaces.archive(&actor, id, false).await?;
    empty()
}

/// Pins a workspace for the caller.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/pin", operation_id = "PinWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn pin_workspace(Caller(master, actor): Caller, PathId(id): PathId<WorkspaceId>) -> Answer {
    master.workspaces.pin(&actor, id, true).await?;
    empty()
}

/// Takes the caller's pin away.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/unpin", operation_id = "UnpinWorkspace", tag = "workspaces",
    params(("id" = i64, Path)), responses((status = 200, body = Empty)))]
async fn unpin_workspace(Caller(master, actor): Caller, PathId(id): PathId<WorkspaceId>) -> Answer {
    master.workspaces.pin(&actor, id, false).await?;
    empty()
}

/// Limits the slots that work in a workspace may have at once.
#[utoipa::path(post, path = "/api/v1/workspaces/{id}/set-resource-quota", operation_id = "SetResourceQuotas",
    tag = "workspaces", params(("id" = i64, Path)), request_body = SetResourceQuotasRequest,
    responses((status = 200, body = Empty)))]
async fn set_resource_quotas(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
    WireBody(body): WireBody<SetResourceQuotasRequest>,
) -> Answer {
    changes::set_quotas(
        &master.changes.workspaces,
        &actor,
        id,
        body.cluster_quota_pairs,
    )
    .await?;
    empty()
}

/// The limits of slots of a workspace, by the name of the cluster: the lowest, of the master or of others.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}/get-k8s-resource-quotas",
    operation_id = "GetKubernetesResourceQuotas", tag = "workspaces", params(("id" = i64, Path)),
    responses((status = 200, body = GetKubernetesResourceQuotasResponse)))]
async fn get_kubernetes_resource_quotas(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
) -> Answer {
    let quotas = reads::homes::quotas(&master.sources.homes, &actor, id)?.into_iter();
    let quotas = quotas.map(|(cluster, slots)| (cluster, Float(f64::from(slots))));
    message(&GetKubernetesResourceQuotasResponse {
        resource_quotas: quotas.collect(),
    })
}

/// The pools that work in a workspace may use: all of them, since pools are not bound to workspaces in this version.
#[utoipa::path(get, path = "/api/v1/workspaces/{workspaceId}/available-resource-pools",
    operation_id = "ListRPsBoundToWorkspace", tag = "workspaces",
    params(("workspaceId" = i64, Path), ListRPsBoundToWorkspaceQuery),
    responses((status = 200, body = ListRPsBoundToWorkspaceResponse)))]
async fn list_rps_bound_to_workspace(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
    WireQuery(query): WireQuery<ListRPsBoundToWorkspaceQuery>,
) -> Answer {
    let (resource_pools, pagination) =
        reads::homes::pools(&master.sources.homes, &actor, id, &query)?;
    message(&ListRPsBoundToWorkspaceResponse {
        resource_pools,
        pagination,
    })
}
