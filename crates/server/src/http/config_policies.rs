//! Policies that administrators lay over configurations.

use axum::extract::Path;
use det_api_types::config_policies::{ConfigPoliciesResponse, PutConfigPoliciesRequest};
use det_api_types::page::Empty;
use det_api_types::wire::Object;
use serde_json::{Map, Value};

use crate::app::config_policies::{Scope, workload};
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, WireBody};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_global, put_global, delete_global))
        .routes(routes!(
            get_of_workspace,
            put_of_workspace,
            delete_of_workspace
        ))
}

fn answer(policies: Map<String, Value>) -> Answer {
    message(&ConfigPoliciesResponse {
        config_policies: Object(policies),
    })
}

fn scope(workspace: &str) -> AppResult<Scope> {
    workspace.parse().map(Scope::Workspace).map_err(|_| {
        AppError::invalid(format!(
            "\"{}\" in the request's address must be the number of a workspace",
            workspace.escape_debug()
        ))
    })
}

/// The policies of the whole cluster for a kind of work.
#[utoipa::path(get, path = "/api/v1/config-policies/global/{workloadType}", operation_id = "GetGlobalConfigPolicies",
    tag = "config policies", params(("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    responses((status = 200, body = ConfigPoliciesResponse)))]
async fn get_global(Caller(master, actor): Caller, Path(kind): Path<String>) -> Answer {
    answer(
        master
            .policies
            .get(&actor, Scope::Cluster, workload(&kind)?)
            .await?,
    )
}

/// Sets the policies of the whole cluster for a kind of work. For administrators.
#[utoipa::path(put, path = "/api/v1/config-policies/global/{workloadType}", operation_id = "PutGlobalConfigPolicies",
    tag = "config policies", params(("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    request_body = PutConfigPoliciesRequest, responses((status = 200, body = ConfigPoliciesResponse)))]
async fn put_global(
    Caller(master, actor): Caller,
    Path(kind): Path<String>,
    WireBody(body): WireBody<PutConfigPoliciesRequest>,
) -> Answer {
    let (scope, kind) = (Scope::Cluster, workload(&kind)?);
    let text = &body.config_policies;
    answer(master.policies.set(&actor, scope, kind, text).await?)
}

/// Removes the policies of the whole cluster for a kind of work. For administrators.
#[utoipa::path(delete, path = "/api/v1/config-policies/global/{workloadType}",
    operation_id = "DeleteGlobalConfigPolicies", tag = "config policies",
    params(("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    responses((status = 200, body = Empty)))]
async fn delete_global(Caller(master, actor): Caller, Path(kind): Path<String>) -> Answer {
    let kind = workload(&kind)?;
    master.policies.delete(&actor, Scope::Cluster, kind).await?;
    empty()
}

/// The policies of a workspace for a kind of work.
#[utoipa::path(get, path = "/api/v1/config-policies/workspaces/{workspaceId}/{workloadType}",
    operation_id = "GetWorkspaceConfigPolicies", tag = "config policies",
    params(("workspaceId" = i64, Path), ("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    responses((status = 200, body = ConfigPoliciesResponse)))]
async fn get_of_workspace(
    Caller(master, actor): Caller,
    Path((workspace, kind)): Path<(String, String)>,
) -> Answer {
    let (scope, kind) = (scope(&workspace)?, workload(&kind)?);
    answer(master.policies.get(&actor, scope, kind).await?)
}

/// Sets the policies of a workspace for a kind of work. For administrators.
#[utoipa::path(put, path = "/api/v1/config-policies/workspaces/{workspaceId}/{workloadType}",
    operation_id = "PutWorkspaceConfigPolicies", tag = "config policies",
    params(("workspaceId" = i64, Path), ("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    request_body = PutConfigPoliciesRequest, responses((status = 200, body = ConfigPoliciesResponse)))]
async fn put_of_workspace(
    Caller(master, actor): Caller,
    Path((workspace, kind)): Path<(String, String)>,
    WireBody(body): WireBody<PutConfigPoliciesRequest>,
) -> Answer {
    let (scope, kind) = (scope(&workspace)?, workload(&kind)?);
    let text = &body.config_policies;
    answer(master.policies.set(&actor, scope, kind, text).await?)
}

/// Removes the policies of a workspace for a kind of work. For administrators.
#[utoipa::path(delete, path = "/api/v1/config-policies/workspaces/{workspaceId}/{workloadType}",
    operation_id = "DeleteWorkspaceConfigPolicies", tag = "config policies",
    params(("workspaceId" = i64, Path), ("workloadType" = String, Path, description = "EXPERIMENT or NTSC")),
    responses((status = 200, body = Empty)))]
async fn delete_of_workspace(
    Caller(master, actor): Caller,
    Path((workspace, kind)): Path<(String, String)>,
) -> Answer {
    let (scope, kind) = (scope(&workspace)?, workload(&kind)?);
    master.policies.delete(&actor, scope, kind).await?;
    empty()
}
