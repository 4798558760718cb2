//! Finding workspaces, projects and resource pools by their names, and tasks by the beginnings of their ids.

use clap::builder::TypedValueParser;
use det_client::{Client, ClientError, Query, api_path};
use det_ids::ProjectId;
use det_taskspec::TaskKind;
use serde_json::Value;

use crate::error::CliError;
use crate::values::{items, members, text};

/// Reads the number of a project, from 1, on the command line.
pub(crate) fn project_id() -> impl TypedValueParser<Value = ProjectId> {
    clap::value_parser!(i64).range(1..).map(ProjectId)
}

/// All workspaces that the user may see.
pub(crate) async fn workspaces(client: &Client) -> Result<Vec<Value>, CliError> {
    let answer = client.get(&api_path(["workspaces"]), &Query::new()).await?;
    Ok(items(&answer["workspaces"]).cloned().collect())
}

/// The workspace of this name; the error names those that exist.
pub(crate) async fn workspace(client: &Client, name: &str) -> Result<Value, CliError> {
    let known = workspaces(client).await?;
    let found = known.iter().find(|workspace| workspace["name"] == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<String> = known.iter().map(|w| text(w, "name")).collect();
        CliError::request(format!(
            "there is no workspace \"{name}\"; the workspaces are: {}",
            names.join(", ")
        ))
    })
}

/// The id of the workspace of this name.
pub(crate) async fn workspace_id(client: &Client, name: &str) -> Result<i64, CliError> {
    let found = workspace(client, name).await?;
    Ok(found["id"].as_i64().unwrap_or_default())
}

/// The project of this name in a workspace; the error names those that exist.
pub(crate) async fn project(
    client: &Client,
    workspace: &str,
    project: &str,
) -> Result<Value, CliError> {
    let id = text(&self::workspace(client, workspace).await?, "id");
    let path = api_path(["workspaces", &id, "projects"]);
    let answer = client.get(&path, &Query::new()).await?;
    let mut found = items(&answer["projects"]).filter(|p| p["name"] == project);
    found.next().cloned().ok_or_else(|| {
        let names: Vec<String> = items(&answer["projects"])
            .map(|p| text(p, "name"))
            .collect();
        CliError::request(format!(
            "there is no project \"{project}\" in workspace \"{workspace}\"; its projects are: {}",
            names.join(", ")
        ))
    })
}

/// The resource pool of this name in the answer of `GET /api/v1/resource-pools`; without a name, the default for computing.
pub(crate) fn pool<'a>(answer: &'a Value, name: Option<&str>) -> Result<&'a Value, CliError> {
    let pools = || items(&answer["resourcePools"]);
    let found = pools().find(|pool| match name {
        Some(name) => pool["name"] == name,
        None => pool["defaultComputePool"] == true,
    });
    found.ok_or_else(|| {
        let names: Vec<String> = pools().map(|pool| text(pool, "name")).collect();
        let wanted = match name {
            Some(name) => format!("there is no resource pool \"{name}\""),
            None => "no resource pool is the default for computing".to_owned(),
        };
        CliError::request(format!("{wanted}; the pools are: {}", names.join(", ")))
    })
}

/// The whole id of a task, of any kind, of which the beginning is given. Not all tasks that have ended are listed, so text
/// that is the beginning of no id is returned as a whole id.
pub(crate) async fn task_id(client: &Client, given: String) -> Result<String, CliError> {
    if is_whole_id(&given) {
        return Ok(given);
    }
    let query = Query::new().with("withEnded", true);
    let answer = client.get(&api_path(["tasks"]), &query).await?;
    let in_queue = members(&answer["allocationIdToSummary"]).map(|(_, task)| task);
    let resting = ["pausedTasks", "endedTasks"];
    let resting = resting.iter().flat_map(|member| items(&answer[*member]));
    let mut ids: Vec<String> = in_queue
        .chain(resting)
        .map(|task| text(task, "taskId"))
        .collect();
    if let Some(found) = by_beginning("task", &given, &ids)? {
        return Ok(found);
    }
    // None at work: one that has ended may be meant. Each list has those that live and those that ended in the last day.
    for collection in TaskKind::ALL.into_iter().filter_map(TaskKind::collection) {
        match client.get(&api_path([collection]), &Query::new()).await {
            Ok(answer) => ids.extend(items(&answer[collection]).map(|task| text(task, "id"))),
            Err(ClientError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(by_beginning("task", &given, &ids)?.unwrap_or(given))
}

/// Whether a text is as long as the id of a task, a UUID, and so no beginning of one.
pub(crate) fn is_whole_id(given: &str) -> bool {
    given.len() >= 36
}

/// The one of some ids that begins with a text; a whole id is returned as it is. `None` = none begins with it. `noun` names
/// what the ids are of.
pub(crate) fn by_beginning(
    noun: &str,
    given: &str,
    ids: &[String],
) -> Result<Option<String>, CliError> {
    if given.is_empty() {
        return Err(CliError::usage(format!(
            "an empty text is the id of no {noun}"
        )));
    }
    if is_whole_id(given) {
        return Ok(Some(given.to_owned()));
    }
    let mut fitting: Vec<&String> = ids.iter().filter(|id| id.starts_with(given)).collect();
    fitting.sort_unstable();
    fitting.dedup();
    match fitting.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).clone())),
        [first, second, ..] => Err(CliError::request(format!(
            "\"{given}\" is the beginning of {} {noun} ids, among them {first} and {second}; give more of it",
            fitting.len()
        ))),
    }
}
