//! Shells: SSH servers in containers.

use axum::extract::Path;
use det_api_types::launches::{
    GetLaunchesQuery, GetShellResponse, GetShellsResponse, LaunchShellRequest, LaunchShellResponse,
    SetShellPriorityRequest, Shell, ShellResponse,
};
use det_api_types::wire::Object;
use det_config::task::LaunchKind;
use det_ids::TaskId;
use det_lifecycle::container::ObservedState;
use det_taskspec::{TaskDetails, TaskKind};
use serde_json::json;

use crate::app::reads::tasks::LaunchedView;
use crate::app::{changes, reads};
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, message, object};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::{launch_request, launch_warnings, launched};

const KIND: TaskKind = TaskKind::Shell;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_shells, launch_shell))
        .routes(routes!(get_shell))
        .routes(routes!(kill_shell))
        .routes(routes!(set_shell_priority))
}

fn shell(view: &LaunchedView) -> Shell {
    let (private_key, public_key) = match &view.row.details {
        TaskDetails::Shell(shell) => (shell.private_key.clone(), shell.public_key.clone()),
        _ => (String::new(), String::new()),
    };
    launched!(Shell, view, {
        private_key,
        public_key,
        addresses: addresses(view),
        agent_user_group: Some(unix_user(view)),
    })
}

/// Where its container's ports are.
fn addresses(view: &LaunchedView) -> Vec<Object> {
    let observed = view
        .container
        .as_ref()
        .and_then(|(row, _)| row.observed.as_ref());
    let Some(ObservedState::Running {
        host_address,
        ports,
        ..
    }) = observed
    else {
        return Vec::new();
    };
    let address = |(inside, outside): &(u16, u16)| {
        object(json!({"containerPort": inside, "hostIp": host_address, "hostPort": outside}))
    };
    ports.iter().map(address).collect()
}

/// As whom one enters it. Clients need the name.
fn unix_user(view: &LaunchedView) -> Object {
    let user = view.unix_user.clone().unwrap_or_default();
    object(json!({"user": user.user, "uid": user.uid, "group": user.group, "gid": user.gid}))
}

/// Shells that live, and those that ended in the last 24 hours.
#[utoipa::path(get, path = "/api/v1/shells", operation_id = "GetShells", tag = "shells",
    params(GetLaunchesQuery), responses((status = 200, body = GetShellsResponse)))]
async fn get_shells(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetLaunchesQuery>,
) -> Answer {
    let (page, pagination) =
        reads::tasks::launched(&master.sources.tasks, &actor, KIND, &query).await?;
    message(&GetShellsResponse {
        shells: page.iter().map(shell).collect(),
        pagination,
    })
}

/// Launches a shell, or only checks its configuration.
#[utoipa::path(post, path = "/api/v1/shells", operation_id = "LaunchShell", tag = "shells",
    request_body = LaunchShellRequest, responses((status = 200, body = LaunchShellResponse)))]
async fn launch_shell(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<LaunchShellRequest>,
) -> Answer {
    let request = launch_request!(LaunchKind::Shell, body);
    let (made, view) = changes::launch(&master.changes.launches, &actor, request).await?;
    message(&LaunchShellResponse {
        shell: view.as_ref().map(shell).unwrap_or_default(),
        config: object(made.config),
        warnings: launch_warnings(made.slots_exceeded),
        messages: made.warnings,
    })
}

/// A shell with its effective configuration.
#[utoipa::path(get, path = "/api/v1/shells/{shellId}", operation_id = "GetShell", tag = "shells",
    params(("shellId" = String, Path, description = "the shell")),
    responses((status = 200, body = GetShellResponse)))]
async fn get_shell(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    let (view, config) =
        reads::tasks::launched_with_config(&master.sources.tasks, &actor, KIND, &id).await?;
    message(&GetShellResponse {
        shell: shell(&view),
        config: object(config),
    })
}

/// Ends a shell at once; of one that has ended nothing changes.
#[utoipa::path(post, path = "/api/v1/shells/{shellId}/kill", operation_id = "KillShell", tag = "shells",
    params(("shellId" = String, Path, description = "the shell")),
    responses((status = 200, body = ShellResponse)))]
async fn kill_shell(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    message(&ShellResponse {
        shell: shell(&changes::kill_launched(&master.changes.launches, &actor, KIND, &id).await?),
    })
}

/// Changes the priority of a shell; of one that runs it changes nothing that is visible.
#[utoipa::path(post, path = "/api/v1/shells/{shellId}/set_priority", operation_id = "SetShellPriority",
    tag = "shells", params(("shellId" = String, Path, description = "the shell")),
    request_body = SetShellPriorityRequest, responses((status = 200, body = ShellResponse)))]
async fn set_shell_priority(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<SetShellPriorityRequest>,
) -> Answer {
    let priority = body.priority;
    let view =
        changes::set_priority_of_launched(&master.changes.launches, &actor, KIND, &id, priority)
            .await?;
    message(&ShellResponse {
        shell: shell(&view),
    })
}
