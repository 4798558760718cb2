//! `det command`: programs that run once.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::commands::launched::{
    self, COMMAND, Launch, LaunchArgs, LaunchedAction, ListArgs, follow,
};
use crate::commands::publishing::PublishArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::output;

/// Options of `det command`.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    #[command(subcommand)]
    action: Option<CommandAction>,
}

#[derive(Debug, Subcommand)]
enum CommandAction {
    /// Run a command, print what it logs, and end with its exit code
    ///
    /// The command's words come after the options: `det cmd run --config resources.slots=2 python3 tool.py --fast`.
    /// A single word is a line for a shell: `det cmd run 'echo a; echo b'`.
    ///
    /// Exit codes: that of the command; 1 if it was killed or lost; 130 Ctrl-C, and 3 when the master is lost for ten minutes,
    /// after which the command goes on; what fails before the command starts has the codes that `det --help` names.
    Run(Box<RunArgs>),
    #[command(flatten)]
    Launched(LaunchedAction),
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    publish: PublishArgs,
    /// What to run, unless the configuration has an entrypoint: a program and its arguments, or one line for a shell
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    entrypoint: Vec<String>,
}

/// Carries out `det command …`.
pub(crate) async fn run(args: CommandArgs, context: &Context) -> Result<ExitCode, CliError> {
    let action = match args.action {
        // Errors in the user's files are reported before a master is contacted.
        Some(CommandAction::Run(args)) => return launch(*args, context).await,
        Some(CommandAction::Launched(action)) => action,
        None => LaunchedAction::List(ListArgs::default()),
    };
    let session = context.session().await?;
    launched::run(&COMMAND, action, &session).await?;
    Ok(ExitCode::SUCCESS)
}

async fn launch(args: RunArgs, context: &Context) -> Result<ExitCode, CliError> {
    let (detach, preview) = (args.launch.detach, args.launch.preview);
    if detach && !args.publish.is_empty() {
        return Err(CliError::usage(
            "ports are published as long as the command is followed: leave out --detach or --publish",
        ));
    }
    let mut launch = Launch::prepare(&COMMAND, args.launch, &args.entrypoint)?;
    if !launch.has_entrypoint {
        return Err(CliError::usage(
            "there is nothing to run: neither the command line nor the configuration has a command",
        )
        .with_hint("write it after the options, for example `det cmd run python3 tool.py`"));
    }
    launch.publish(&args.publish)?;
    if preview {
        launch.preview(&context.session().await?.client).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let published = args.publish.take().await?;
    let client = context.session().await?.client;
    let (id, description) = launch.send(&client).await?;
    if detach {
        output::line(id)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!(
        "Launched command (id: {id}, name: {description})."
    ))?;
    let task = async || Ok(id.clone());
    let followed = follow(&COMMAND, &client, &id);
    published.during(&client, task, followed).await
}
