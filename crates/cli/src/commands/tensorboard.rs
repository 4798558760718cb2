//! `det tensorboard`: TensorBoards over experiments and trials.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use det_ids::{ExperimentId, TrialId};
use serde_json::json;

use crate::commands::launched::{
    self, Launch, LaunchArgs, LaunchedAction, ListArgs, OpenPageArgs, TENSORBOARD,
};
use crate::context::Context;
use crate::error::CliError;

/// Options of `det tensorboard`.
#[derive(Debug, Args)]
pub(crate) struct TensorBoardArgs {
    #[command(subcommand)]
    action: Option<TensorBoardAction>,
}

#[derive(Debug, Subcommand)]
enum TensorBoardAction {
    /// Start a TensorBoard over experiments and trials, and open it in the browser when it is ready
    ///
    /// Exit codes: 0 it is ready; 1 it ended before; 130 Ctrl-C, after which the TensorBoard goes on.
    Start(Box<StartArgs>),
    /// Open a TensorBoard in the browser, when it is ready
    Open(OpenPageArgs),
    #[command(flatten)]
    Launched(LaunchedAction),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("shown").required(true).multiple(true).args(["experiment_ids", "trial_ids"]))]
struct StartArgs {
    /// Experiments to show; of one with more than 100 trials, the best 100
    #[arg(value_name = "EXPERIMENT_ID")]
    experiment_ids: Vec<ExperimentId>,
    /// Trials to show, at most 100 (may be repeated)
    #[arg(short, long, num_args = 1.., value_name = "TRIAL_ID")]
    trial_ids: Vec<TrialId>,
    #[command(flatten)]
    launch: LaunchArgs,
    /// Print its address, and open no browser
    #[arg(long)]
    no_browser: bool,
}

/// Carries out `det tensorboard …`.
pub(crate) async fn run(args: TensorBoardArgs, context: &Context) -> Result<ExitCode, CliError> {
    let action = match args.action {
        // Errors in the user's files are reported before a master is contacted.
        Some(TensorBoardAction::Start(args)) => return start(*args, context).await,
        Some(TensorBoardAction::Open(args)) => {
            let session = context.session().await?;
            return launched::open_page(&TENSORBOARD, &session, &args).await;
        }
        Some(TensorBoardAction::Launched(action)) => action,
        None => LaunchedAction::List(ListArgs::default()),
    };
    let session = context.session().await?;
    launched::run(&TENSORBOARD, action, &session).await?;
    Ok(ExitCode::SUCCESS)
}

async fn start(args: StartArgs, context: &Context) -> Result<ExitCode, CliError> {
    let (detach, preview) = (args.launch.detach, args.launch.preview);
    let mut launch = Launch::prepare(&TENSORBOARD, args.launch, &[])?;
    launch.ask("experimentIds", json!(args.experiment_ids));
    launch.ask("trialIds", json!(args.trial_ids));
    let session = context.session().await?;
    if preview {
        launch.preview(&session.client).await?;
        return Ok(ExitCode::SUCCESS);
    }
    launched::start_page(launch, &session, detach, !args.no_browser).await
}
