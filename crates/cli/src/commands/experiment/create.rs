//! Creating and continuing experiments.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use det_client::{Client, Query, api_path};
use det_config::document::DocumentKind;
use det_ids::{ExperimentId, ProjectId};
use serde_json::{Value, json};

use super::first_trial;
use super::follow::{self, FollowedOutput};
use crate::commands::lookup;
use crate::commands::publishing::PublishArgs;
use crate::commands::submission::{UserDocument, announce, warn};
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::gather;
use crate::output;
use crate::values::text;

/// Options of `det experiment create`.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct CreateArgs {
    /// Experiment configuration (YAML); - for standard input
    config_file: PathBuf,
    /// Directory that holds the model; what its .detignore names is left out
    model_def: Option<PathBuf>,
    /// Further file or directory to send, under its own name (may be repeated)
    #[arg(short, long = "include", value_name = "PATH")]
    includes: Vec<PathBuf>,
    /// Value that beats the configuration file's, key.path=VALUE with YAML after the = (may be repeated)
    #[arg(long = "config", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Name of a template to build upon (may be repeated: a later one is stronger)
    #[arg(long = "template", value_name = "NAME")]
    templates: Vec<String>,
    /// Project to put the experiment in (1, Uncategorized, is where it goes if the configuration names none)
    #[arg(long = "project_id", alias = "project-id", value_name = "ID", value_parser = lookup::project_id())]
    project_id: Option<ProjectId>,
    /// Follow the logs of a single trial, or the progress of a search
    #[arg(short, long, visible_alias = "follow", conflicts_with = "paused")]
    follow_first_trial: bool,
    /// Create the experiment without starting it
    #[arg(long)]
    paused: bool,
    /// Send the configuration without checking it here first
    #[arg(long)]
    no_check: bool,
    /// Show which files are sent
    #[arg(short, long)]
    verbose: bool,
    /// Test the configuration with a small run (not available)
    #[arg(short, long, hide = true)]
    test_mode: bool,
    /// Run on this machine instead of the cluster (not available)
    #[arg(long, hide = true)]
    local: bool,
    #[command(flatten)]
    publish: PublishArgs,
}

/// Options of `det experiment continue`.
#[derive(Debug, Args)]
pub(crate) struct ContinueArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// Configuration (YAML) that beats the experiment's own
    #[arg(long, value_name = "PATH")]
    config_file: Option<PathBuf>,
    /// Value that beats the configuration's, key.path=VALUE with YAML after the = (may be repeated)
    #[arg(long = "config", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Follow the logs of a single trial, or the progress of a search
    #[arg(short, long, visible_alias = "follow")]
    follow_first_trial: bool,
}

/// Creates an experiment.
pub(crate) async fn create(args: CreateArgs, context: &Context) -> Result<ExitCode, CliError> {
    args.refuse_options_not_built()?;
    let file = Some(args.config_file.as_path());
    let mut written = UserDocument::read(DocumentKind::Experiment, file, args.overrides)?;
    if !args.publish.is_empty() {
        let mut config = written.to_value()?;
        if args.publish.declare_in(&mut config)? {
            let ports = &config["environment"]["proxy_ports"];
            written.lay_over("environment.proxy_ports", ports);
        }
    }
    if !args.no_check {
        // Keys that a template or the cluster's policies set may be missing.
        written.check(!args.templates.is_empty())?;
    }
    let config = written.to_text()?;
    let files = gather(args.model_def.as_deref(), &args.includes)?;
    announce(&files, args.verbose);

    let published = args.publish.take().await?;
    let client = context.session().await?.client;
    let mut body = json!({
        "config": config,
        "modelDefinition": files.into_json(),
        "activate": !args.paused,
        "validateOnly": false,
    });
    match args.templates.as_slice() {
        [] => {}
        [template] => body["template"] = json!(template),
        several => body["templates"] = json!(several),
    }
    if let Some(project) = args.project_id {
        body["projectId"] = json!(project);
    }
    let answer = client
        .post(&api_path(["experiments"]), Some(&body))
        .await
        .map_err(|error| written.refusal(error))?;
    let Some(id) = answer["experiment"]["id"].as_i64().map(ExperimentId) else {
        return Err(det_client::ClientError::BadAnswer {
            url: client.master().join(&api_path(["experiments"])),
            reason: "it has no experiment".to_owned(),
        }
        .into());
    };
    output::line(format_args!("Created experiment {id}"))?;
    written.warn_of_overrides();
    warn("a trial", &answer["warnings"]);
    warn("a trial", &answer["messages"]);
    if args.follow_first_trial {
        let task = async || task_of_first_trial(&client, id).await;
        let followed = follow::after_start(&client, id, followed(&answer));
        return published.during(&client, task, followed).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// The task of an experiment's first trial, the newest where it has several.
async fn task_of_first_trial(client: &Client, id: ExperimentId) -> Result<String, CliError> {
    let none = || CliError::request(format!("experiment {id} has no task yet"));
    let trial = first_trial(client, id).await?.ok_or_else(none)?;
    let path = api_path(["trials", &trial.to_string()]);
    let answer = client.get(&path, &Query::new()).await?;
    match text(&answer["trial"], "taskId") {
        task if task.is_empty() => Err(none()),
        task => Ok(task),
    }
}

/// Continues an ended experiment.
pub(crate) async fn continue_experiment(
    args: ContinueArgs,
    context: &Context,
) -> Result<ExitCode, CliError> {
    let id = args.experiment_id;
    let file = args.config_file.as_deref();
    let written = UserDocument::read(DocumentKind::Experiment, file, args.overrides)?;
    written.check(true)?;
    let config = written.to_text()?;
    let client: Client = context.session().await?.client;
    let body = json!({"id": id, "overrideConfig": config});
    let answer = client
        .post(&api_path(["experiments", "continue"]), Some(&body))
        .await
        .map_err(|error| written.refusal(error))?;
    output::line(format_args!("Continued experiment {id}"))?;
    warn("a trial", &answer["warnings"]);
    if args.follow_first_trial {
        let experiment = client
            .get(&api_path(["experiments", &id.to_string()]), &Query::new())
            .await?;
        return follow::after_start(&client, id, followed(&experiment)).await;
    }
    Ok(ExitCode::SUCCESS)
}

impl CreateArgs {
    fn refuse_options_not_built(&self) -> Result<(), CliError> {
        if self.test_mode || self.local {
            return Err(CliError::usage(
                "this program has neither a test mode nor a local mode; both are deprecated",
            )
            .with_hint("run the script itself, or create the experiment with a short searcher"));
        }
        if !self.publish.is_empty() && !self.follow_first_trial {
            return Err(CliError::usage(
                "ports are published as long as the experiment is followed: --publish needs --follow-first-trial (-f)",
            ));
        }
        Ok(())
    }
}

/// What to show of a new experiment: the logs of a single trial, or the progress of a search.
fn followed(answer: &Value) -> FollowedOutput {
    let experiment = &answer["experiment"];
    let searcher = [&answer["config"], &experiment["config"]]
        .into_iter()
        .map(|config| text(&config["searcher"], "name"))
        .chain([text(experiment, "searcherType")])
        .find(|name| !name.is_empty());
    match searcher.as_deref() {
        None | Some("single") => FollowedOutput::FirstTrial,
        Some(_) => FollowedOutput::Search,
    }
}
