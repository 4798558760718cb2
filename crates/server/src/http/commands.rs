//! Commands.

use axum::extract::Path;
use det_api_types::launches::{
    Command, CommandResponse, GetCommandResponse, GetCommandsResponse, GetLaunchesQuery,
    LaunchCommandRequest, LaunchCommandResponse, SetCommandPriorityRequest,
};
use det_config::task::LaunchKind;
use det_ids::TaskId;
use det_taskspec::TaskKind;

use crate::app::reads::tasks::LaunchedView;
use crate::app::{changes, reads};
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, message, object};
use crate::http::routes::{Routes, routes};
use crate::http::views::launches::{launch_request, launch_warnings, launched};

const KIND: TaskKind = TaskKind::Command;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_commands, launch_command))
        .routes(routes!(get_command))
        .routes(routes!(kill_command))
        .routes(routes!(set_command_priority))
}

fn command(view: &LaunchedView) -> Command {
    launched!(Command, view, {})
}

/// Commands that live, and those that ended in the last 24 hours.
#[utoipa::path(get, path = "/api/v1/commands", operation_id = "GetCommands", tag = "commands",
    params(GetLaunchesQuery), responses((status = 200, body = GetCommandsResponse)))]
async fn get_commands(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetLaunchesQuery>,
) -> Answer {
    let (page, pagination) =
        reads::tasks::launched(&master.sources.tasks, &actor, KIND, &query).await?;
    message(&GetCommandsResponse {
        commands: page.iter().map(command).collect(),
        pagination,
    })
}

/// Launches a command, or only checks its configuration.
#[utoipa::path(post, path = "/api/v1/commands", operation_id = "LaunchCommand", tag = "commands",
    request_body = LaunchCommandRequest, responses((status = 200, body = LaunchCommandResponse)))]
async fn launch_command(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<LaunchCommandRequest>,
) -> Answer {
    let request = launch_request!(LaunchKind::Command, body);
    let (made, view) = changes::launch(&master.changes.launches, &actor, request).await?;
    message(&LaunchCommandResponse {
        command: view.as_ref().map(command).unwrap_or_default(),
        config: object(made.config),
        warnings: launch_warnings(made.slots_exceeded),
        messages: made.warnings,
    })
}

/// A command with its effective configuration.
#[utoipa::path(get, path = "/api/v1/commands/{commandId}", operation_id = "GetCommand", tag = "commands",
    params(("commandId" = String, Path, description = "the command")),
    responses((status = 200, body = GetCommandResponse)))]
async fn get_command(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    let (view, config) =
        reads::tasks::launched_with_config(&master.sources.tasks, &actor, KIND, &id).await?;
    message(&GetCommandResponse {
        command: command(&view),
        config: object(config),
    })
}

/// Ends a command at once; of one that has ended nothing changes.
#[utoipa::path(post, path = "/api/v1/commands/{commandId}/kill", operation_id = "KillCommand", tag = "commands",
    params(("commandId" = String, Path, description = "the command")),
    responses((status = 200, body = CommandResponse)))]
async fn kill_command(Caller(master, actor): Caller, Path(id): Path<TaskId>) -> Answer {
    message(&CommandResponse {
        command: command(
            &changes::kill_launched(&master.changes.launches, &actor, KIND, &id).await?,
        ),
    })
}

/// Changes the priority of a command; of one that runs it changes nothing that is visible.
#[utoipa::path(post, path = "/api/v1/commands/{commandId}/set_priority", operation_id = "SetCommandPriority",
    tag = "commands", params(("commandId" = String, Path, description = "the command")),
    request_body = SetCommandPriorityRequest, responses((status = 200, body = CommandResponse)))]
async fn set_command_priority(
    Caller(master, actor): Caller,
    Path(id): Path<TaskId>,
    WireBody(body): WireBody<SetCommandPriorityRequest>,
) -> Answer {
    let priority = body.priority;
    let view =
        changes::set_priority_of_launched(&master.changes.launches, &actor, KIND, &id, priority)
            .await?;
    message(&CommandResponse {
        command: command(&view),
    })
}
