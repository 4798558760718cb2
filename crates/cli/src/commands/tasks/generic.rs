//! `det task create` and what is done to generic tasks: commands that can be paused, forked and made of several.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use det_client::{Client, ClientError, Query, api_path};
use det_config::document::DocumentKind;
use det_config::yaml::to_yaml;
use det_ids::ProjectId;
use det_taskspec::{LaunchKind, TaskKind};
use serde_json::{Value, json};

use crate::commands::launched::{
    ConfigArgs, GENERIC, Kind, Turn, follow, instead, require_kind, turn,
};
use crate::commands::lookup;
use crate::commands::submission::{UserDocument, warn};
use crate::context::Context;
use crate::error::CliError;
use crate::kinds;
use crate::output;
use crate::values::text;

/// Options of `det task create`.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Configuration (YAML); - for standard input
    config_file: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    started: StartArgs,
    /// Task whose configuration and files to begin with; keys at the top of the file replace those of that task
    #[arg(long, value_name = "TASK_ID")]
    fork: Option<String>,
    /// Name of a template to build upon
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Task that this one belongs to: it is paused, activated and killed with that one
    #[arg(short, long, value_name = "TASK_ID")]
    parent: Option<String>,
    /// Start with the files of the parent
    #[arg(
        long = "inherit_context",
        alias = "inherit-context",
        requires = "parent"
    )]
    inherit_context: bool,
    /// Never let it be paused
    #[arg(long = "no_pause", alias = "no-pause")]
    no_pause: bool,
    /// Print the configuration that it would have, and start nothing
    #[arg(long, conflicts_with = "follow")]
    preview: bool,
}

/// Options of `det task fork`.
#[derive(Debug, Args)]
pub(super) struct ForkArgs {
    /// Id of the task to begin with, or enough of its beginning
    #[arg(value_name = "TASK_ID")]
    parent_task_id: String,
    #[command(flatten)]
    started: StartArgs,
}

/// Where a new task goes, and whether it is followed.
#[derive(Debug, Args)]
struct StartArgs {
    /// Project to put it in
    #[arg(long = "project_id", alias = "project-id", value_name = "ID", value_parser = lookup::project_id())]
    project_id: Option<ProjectId>,
    /// Print what it logs until its end, and end with its exit code
    #[arg(short, long)]
    follow: bool,
}

/// Launches a generic task.
pub(super) async fn create(mut args: CreateArgs, context: &Context) -> Result<ExitCode, CliError> {
    let file = Some(args.config_file.as_path());
    let partial = args.fork.is_some() || args.template.is_some();
    let written = args.config.read(&GENERIC, file, partial)?;
    let mut body = json!({
        "config": written.to_text()?,
        "contextDirectory": args.config.files()?,
        "inheritContext": args.inherit_context,
        "noPause": args.no_pause,
        "preview": args.preview,
        "templateName": args.template.unwrap_or_default(),
    });
    let client = context.session().await?.client;
    for (member, given) in [("forkedFrom", args.fork), ("parentId", args.parent)] {
        if let Some(given) = given {
            body[member] = json!(lookup::task_id(&client, given).await?);
        }
    }
    if args.preview {
        let answer = post(&client, body, &written, &args.started).await?;
        warn("the task", &answer["messages"]);
        output::write(to_yaml(&config_in(&client, &answer)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    start(&client, body, &written, &args.started).await
}

/// Launches a task again.
pub(super) async fn fork(args: ForkArgs, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.session().await?.client;
    let forked = lookup::task_id(&client, args.parent_task_id).await?;
    let body = json!({"config": "", "contextDirectory": [], "forkedFrom": forked});
    let written = UserDocument::read(DocumentKind::TaskOf(GENERIC.launch), None, Vec::new())?;
    start(&client, body, &written, &args.started).await
}

/// The master's answer to the launch.
async fn post(
    client: &Client,
    mut body: Value,
    written: &UserDocument,
    args: &StartArgs,
) -> Result<Value, CliError> {
    if let Some(project) = args.project_id {
        body["projectId"] = json!(project);
    }
    let answer = client.post(&api_path(["generic-tasks"]), Some(&body)).await;
    answer.map_err(|error| written.refusal(error))
}

/// The configuration that an answer has as JSON text.
fn config_in(client: &Client, answer: &Value) -> Result<Value, CliError> {
    let config = serde_json::from_str(&text(answer, "config"));
    config.map_err(|error| {
        ClientError::BadAnswer {
            url: client.master().join(&api_path(["generic-tasks"])),
            reason: format!("its configuration is no JSON: {error}"),
        }
        .into()
    })
}

async fn start(
    client: &Client,
    body: Value,
    written: &UserDocument,
    args: &StartArgs,
) -> Result<ExitCode, CliError> {
    let answer = post(client, body, written, args).await?;
    let id = text(&answer, "taskId");
    if id.is_empty() {
        return Err(ClientError::BadAnswer {
            url: client.master().join(&api_path(["generic-tasks"])),
            reason: "it has no task".to_owned(),
        }
        .into());
    }
    output::line(format_args!("Created task {id}"))?;
    warn("the task", &answer["warnings"]);
    warn("the task", &answer["messages"]);
    if args.follow {
        return follow(&GENERIC, client, &id).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// The id of a task and the API's answer about it. Errs when it is of another kind, which the master does not know by this id
/// where generic tasks are concerned.
async fn generic(client: &Client, given: String) -> Result<(String, Value), CliError> {
    let id = lookup::task_id(client, given).await?;
    let answer = GENERIC.get(client, &id).await?;
    require_kind(&GENERIC, &id, &answer["task"])?;
    Ok((id, answer))
}

/// The id of a task that a user launched, and its kind.
async fn launched(client: &Client, given: String) -> Result<(String, &'static Kind), CliError> {
    let id = lookup::task_id(client, given).await?;
    let answer = GENERIC.get(client, &id).await?;
    let kind = kinds::of_task(&answer["task"])?;
    if let Some(launch) = LaunchKind::of(kind) {
        return Ok((id, Kind::of(launch)));
    }
    let hint = match kind {
        TaskKind::Trial => {
            "`det experiment pause` and `det experiment activate` are for trials".to_owned()
        }
        kind => instead(kind),
    };
    Err(CliError::request(format!(
        "task {id} is {}, which cannot be paused",
        kind.one()
    ))
    .with_hint(hint))
}

/// Ends a task at once, with what belongs to it; `root` = with everything that belongs to the same task as it.
pub(super) async fn kill(client: &Client, id: String, root: bool) -> Result<(), CliError> {
    let id = lookup::task_id(client, id).await?;
    let answer = GENERIC.get(client, &id).await?;
    // Deletions of checkpoints have no commands of their own.
    if kinds::of_task(&answer["task"])? != TaskKind::CheckpointGc {
        require_kind(&GENERIC, &id, &answer["task"])?;
    }
    let body = json!({"taskId": id, "killFromRoot": root});
    client
        .post(&GENERIC.path(&id, ["kill"]), Some(&body))
        .await?;
    if root {
        output::line(format_args!(
            "Killed task {id} and everything that belongs to the same task"
        ))
    } else if let Some(end) = GENERIC.end(&answer) {
        // Others that have not ended may belong to it.
        output::note(format_args!(
            "task {id} has ended already ({}); tasks that belong to it are killed where they have not ended",
            end.reason
        ));
        Ok(())
    } else {
        output::line(format_args!("Killed task {id}"))
    }
}

/// Has a task, of any kind that users launch, rest or go on.
pub(super) async fn act(client: &Client, id: String, to: Turn) -> Result<(), CliError> {
    let (id, kind) = launched(client, id).await?;
    turn(kind, client, &id, to).await
}

/// Prints the configuration of a task, as YAML or as JSON.
pub(super) async fn config(client: &Client, id: String, json: bool) -> Result<(), CliError> {
    let (id, _) = generic(client, id).await?;
    let path = GENERIC.path(&id, ["config"]);
    let answer = client.get(&path, &Query::new()).await?;
    let config = config_in(client, &answer)?;
    if json {
        output::json(&config)
    } else {
        output::write(to_yaml(&config))
    }
}
