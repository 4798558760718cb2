//! `det notebook`: `JupyterLab` in the cluster.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::commands::launched::{
    self, Launch, LaunchArgs, LaunchedAction, ListArgs, NOTEBOOK, OpenPageArgs,
};
use crate::context::Context;
use crate::error::CliError;

/// Options of `det notebook`.
#[derive(Debug, Args)]
pub(crate) struct NotebookArgs {
    #[command(subcommand)]
    action: Option<NotebookAction>,
}

#[derive(Debug, Subcommand)]
enum NotebookAction {
    /// Start a notebook, and open it in the browser when it is ready
    ///
    /// What it writes is lost when it ends, unless it is on a mounted directory (-v).
    ///
    /// Exit codes: 0 it is ready; 1 it ended before; 130 Ctrl-C, after which the notebook goes on.
    Start(Box<StartArgs>),
    /// Open a notebook in the browser, when it is ready
    Open(OpenPageArgs),
    #[command(flatten)]
    Launched(LaunchedAction),
}

#[derive(Debug, Args)]
struct StartArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// Print its address, and open no browser
    #[arg(long)]
    no_browser: bool,
}

/// Carries out `det notebook …`.
pub(crate) async fn run(args: NotebookArgs, context: &Context) -> Result<ExitCode, CliError> {
    let action = match args.action {
        // Errors in the user's files are reported before a master is contacted.
        Some(NotebookAction::Start(args)) => return start(*args, context).await,
        Some(NotebookAction::Open(args)) => {
            let session = context.session().await?;
            return launched::open_page(&NOTEBOOK, &session, &args).await;
        }
        Some(NotebookAction::Launched(action)) => action,
        None => LaunchedAction::List(ListArgs::default()),
    };
    let session = context.session().await?;
    launched::run(&NOTEBOOK, action, &session).await?;
    Ok(ExitCode::SUCCESS)
}

async fn start(args: StartArgs, context: &Context) -> Result<ExitCode, CliError> {
    let (detach, preview) = (args.launch.detach, args.launch.preview);
    let launch = Launch::prepare(&NOTEBOOK, args.launch, &[])?;
    let session = context.session().await?;
    if preview {
        launch.preview(&session.client).await?;
        return Ok(ExitCode::SUCCESS);
    }
    launched::start_page(launch, &session, detach, !args.no_browser).await
}
