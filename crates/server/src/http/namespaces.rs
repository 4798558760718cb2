//! Kubernetes namespaces of workspaces.

use std::collections::BTreeMap;

use det_api_types::page::Empty;
use det_api_types::workspaces::{
    BulkAutoCreateWorkspaceNamespaceBindingsRequest, DeleteWorkspaceNamespaceBindingsQuery,
    GetWorkspacesWithDefaultNamespaceBindingsResponse, ListWorkspaceNamespaceBindingsResponse,
    SetWorkspaceNamespaceBindingsRequest, SetWorkspaceNamespaceBindingsResponse,
    WorkspaceNamespaceMeta,
};
use det_ids::WorkspaceId;

use crate::app::reads;
use crate::app::workspaces::{NamespaceChoice, NamespaceChoices};
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views::workspaces::by_cluster;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(
            set_workspace_namespace_bindings,
            delete_workspace_namespace_bindings
        ))
        .routes(routes!(list_workspace_namespace_bindings))
        .routes(routes!(get_workspaces_with_default_namespace_bindings))
        .routes(routes!(bulk_auto_create_workspace_namespace_bindings))
}

/// The namespaces that a request asks for.
pub(crate) fn choices(given: BTreeMap<String, WorkspaceNamespaceMeta>) -> NamespaceChoices {
    let choice = |(cluster, meta): (String, WorkspaceNamespaceMeta)| {
        let choice = NamespaceChoice {
            namespace: meta.namespace.filter(|name| !name.is_empty()),
            auto_create: meta.auto_create_namespace,
            in_all_clusters: meta.auto_create_namespace_all_clusters,
            cluster_name: meta.cluster_name,
            quota: meta.resource_quota,
        };
        (cluster, choice)
    };
    given.into_iter().map(choice).collect()
}

/// Binds a workspace to namespaces, by cluster. What is placed later runs there.
#[utoipa::path(post, path = "/api/v1/workspaces/{workspaceId}/namespace-bindings",
    operation_id = "SetWorkspaceNamespaceBindings", tag = "workspaces", params(("workspaceId" = i64, Path)),
    request_body = SetWorkspaceNamespaceBindingsRequest,
    responses((status = 200, body = SetWorkspaceNamespaceBindingsResponse)))]
async fn set_workspace_namespace_bindings(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
    WireBody(body): WireBody<SetWorkspaceNamespaceBindingsRequest>,
) -> Answer {
    let choices = choices(body.cluster_namespace_meta);
    let bindings = master.namespaces.bind(&actor, id, choices).await?;
    message(&SetWorkspaceNamespaceBindingsResponse {
        namespace_bindings: by_cluster(&bindings),
    })
}

/// Takes bindings of a workspace away.
#[utoipa::path(delete, path = "/api/v1/workspaces/{workspaceId}/namespace-bindings",
    operation_id = "DeleteWorkspaceNamespaceBindings", tag = "workspaces",
    params(("workspaceId" = i64, Path), DeleteWorkspaceNamespaceBindingsQuery),
    responses((status = 200, body = Empty)))]
async fn delete_workspace_namespace_bindings(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
    WireQuery(query): WireQuery<DeleteWorkspaceNamespaceBindingsQuery>,
) -> Answer {
    let clusters = query.cluster_names;
    master.namespaces.unbind(&actor, id, clusters).await?;
    empty()
}

/// The namespaces of a workspace in all clusters, default ones included.
#[utoipa::path(get, path = "/api/v1/workspaces/{id}/list-namespace-bindings",
    operation_id = "ListWorkspaceNamespaceBindings", tag = "workspaces", params(("id" = i64, Path)),
    responses((status = 200, body = ListWorkspaceNamespaceBindingsResponse)))]
async fn list_workspace_namespace_bindings(
    Caller(master, actor): Caller,
    PathId(id): PathId<WorkspaceId>,
) -> Answer {
    let bindings = reads::homes::bindings(&master.sources.homes, &actor, id)?;
    message(&ListWorkspaceNamespaceBindingsResponse {
        namespace_bindings: by_cluster(&bindings),
    })
}

/// The workspaces whose work runs in the default namespace of a cluster at least.
#[utoipa::path(get, path = "/api/v1/namespace-bindings/workspace-ids-with-default-bindings",
    operation_id = "GetWorkspacesWithDefaultNamespaceBindings", tag = "workspaces",
    responses((status = 200, body = GetWorkspacesWithDefaultNamespaceBindingsResponse)))]
async fn get_workspaces_with_default_namespace_bindings(Caller(master, actor): Caller) -> Answer {
    let ids = reads::homes::unbound(&master.sources.homes, &actor)?;
    message(&GetWorkspacesWithDefaultNamespaceBindingsResponse {
        workspace_ids: ids.into_iter().collect(),
    })
}

/// Gives workspaces namespaces of their own in every cluster where they have none.
#[utoipa::path(post, path = "/api/v1/namespace-bindings/bulk-auto-create",
    operation_id = "BulkAutoCreateWorkspaceNamespaceBindings", tag = "workspaces",
    request_body = BulkAutoCreateWorkspaceNamespaceBindingsRequest,
    responses((status = 200, body = Empty)))]
async fn bulk_auto_create_workspace_namespace_bindings(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<BulkAutoCreateWorkspaceNamespaceBindingsRequest>,
) -> Answer {
    let ids = body.workspace_ids.into_iter().collect();
    master.namespaces.make_for_all(&actor, ids).await?;
    empty()
}
