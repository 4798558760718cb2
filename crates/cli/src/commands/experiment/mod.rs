//! `det experiment`: searches and single runs.

pub(super) mod create;
mod describe;
mod download;
mod follow;
mod lifecycle;
pub(super) mod list;
mod outcome;
mod progress;
mod set;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_config::yaml::to_yaml;
use det_ids::{ExperimentId, TrialId};
use serde_json::Value;

use crate::commands::checkpoint::{self, BestArgs};
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::values::items;

/// Options of `det experiment`.
#[derive(Debug, Args)]
pub(crate) struct ExperimentArgs {
    #[command(subcommand)]
    action: Option<ExperimentAction>,
}

#[derive(Debug, Subcommand)]
enum ExperimentAction {
    /// Create an experiment, and run it
    Create(Box<create::CreateArgs>),
    /// List experiments (the default)
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show experiments, their trials and what they reported
    Describe(describe::DescribeArgs),
    /// List the trials of an experiment
    #[command(visible_alias = "lt")]
    ListTrials(list::ListTrialsArgs),
    /// List the checkpoints of an experiment
    #[command(visible_alias = "lc")]
    ListCheckpoints {
        /// Id of the experiment
        experiment_id: ExperimentId,
        #[command(flatten)]
        choice: BestArgs,
    },
    /// Print what the first trial of an experiment logged
    Logs {
        /// Id of the experiment
        experiment_id: ExperimentId,
        #[command(flatten)]
        logs: Box<LogArgs>,
    },
    /// Wait until an experiment has ended; the exit code shows whether it completed
    Wait(follow::WaitArgs),
    /// Show the progress of an experiment until it has ended
    Follow {
        /// Id of the experiment
        experiment_id: ExperimentId,
    },
    /// Let the trials of experiments save and give their slots back
    Pause(lifecycle::ExperimentsArg),
    /// Let paused experiments go on
    #[command(visible_alias = "unpause")]
    Activate(lifecycle::ExperimentsArg),
    /// Stop experiments; their trials may save first
    Cancel(lifecycle::ExperimentsArg),
    /// Stop experiments at once
    Kill(lifecycle::ExperimentsArg),
    /// Hide ended experiments from lists
    Archive(lifecycle::ExperimentsArg),
    /// Show archived experiments again
    Unarchive(lifecycle::ExperimentsArg),
    /// Delete experiments with their checkpoints and logs
    Delete(lifecycle::DeleteArgs),
    /// Move an experiment to another project
    Move(lifecycle::MoveArgs),
    /// Run an ended experiment on
    Continue(create::ContinueArgs),
    /// Change an experiment
    #[command(subcommand, subcommand_value_name = "ATTRIBUTE")]
    Set(set::SetAction),
    /// Change the labels of an experiment
    #[command(subcommand, subcommand_value_name = "ACTION")]
    Label(set::LabelAction),
    /// Print the configuration that an experiment runs with
    Config(lifecycle::ExperimentArg),
    /// Download the files that an experiment was made from
    DownloadModelDef(download::ModelDefArgs),
    /// Download the best checkpoints of an experiment
    Download(download::DownloadArgs),
}

/// Carries out `det experiment …`.
pub(crate) async fn run(args: ExperimentArgs, context: &Context) -> Result<ExitCode, CliError> {
    // Errors in the user's files are reported before a master is contacted.
    let action = match args.action {
        None => ExperimentAction::List(list::ListArgs::default()),
        Some(ExperimentAction::Create(args)) => return create::create(*args, context).await,
        Some(ExperimentAction::Continue(args)) => {
            return create::continue_experiment(args, context).await;
        }
        Some(other) => other,
    };
    let session = context.session().await?;
    let client = &session.client;
    let result = match action {
        ExperimentAction::Create(_) | ExperimentAction::Continue(_) => Ok(()),
        ExperimentAction::List(args) => list::experiments(&session, Query::new(), args).await,
        ExperimentAction::Describe(args) => return describe::run(client, &args).await,
        ExperimentAction::ListTrials(args) => list::trials(client, args).await,
        ExperimentAction::ListCheckpoints {
            experiment_id,
            choice,
        } => checkpoint::list_of_experiment(client, experiment_id, &choice).await,
        ExperimentAction::Logs {
            experiment_id,
            logs,
        } => {
            let trial = first_trial(client, experiment_id).await?.ok_or_else(|| {
                CliError::request(format!("experiment {experiment_id} has no trial yet"))
                    .with_hint(format!("wait for one with `det e follow {experiment_id}`"))
            })?;
            logs::print(client, &LogSource::Trial(trial), &logs).await?;
            note_other_trials(client, experiment_id, trial).await
        }
        ExperimentAction::Wait(args) => return follow::wait(client, &args).await,
        ExperimentAction::Follow { experiment_id } => {
            return follow::progress(client, experiment_id).await;
        }
        ExperimentAction::Pause(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Pause).await;
        }
        ExperimentAction::Activate(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Activate).await;
        }
        ExperimentAction::Cancel(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Cancel).await;
        }
        ExperimentAction::Kill(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Kill).await;
        }
        ExperimentAction::Archive(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Archive).await;
        }
        ExperimentAction::Unarchive(several) => {
            return lifecycle::act(client, &several, lifecycle::Action::Unarchive).await;
        }
        ExperimentAction::Delete(args) => return lifecycle::delete(client, &args).await,
        ExperimentAction::Move(args) => lifecycle::move_to_project(client, &args).await,
        ExperimentAction::Set(action) => set::set(client, action).await,
        ExperimentAction::Label(action) => set::label(client, action).await,
        ExperimentAction::Config(one) => {
            let answer = get(client, one.experiment_id).await?;
            output::write(to_yaml(&answer["experiment"]["config"]))
        }
        ExperimentAction::DownloadModelDef(args) => download::model_def(client, &args).await,
        ExperimentAction::Download(args) => download::checkpoints(client, args).await,
    };
    result.map(|()| ExitCode::SUCCESS)
}

/// Path of an experiment in the API: `/api/v1/experiments/ID`.
fn path(experiment: ExperimentId) -> String {
    api_path(["experiments", &experiment.to_string()])
}

/// The path of something below an experiment.
fn path_below(experiment: ExperimentId, below: &str) -> String {
    api_path(["experiments", &experiment.to_string(), below])
}

/// The master's answer about an experiment: `experiment` itself, `config` and `jobSummary`.
async fn get(client: &Client, experiment: ExperimentId) -> Result<Value, det_client::ClientError> {
    client.get(&path(experiment), &Query::new()).await
}

/// Names the best trial of a search, of whose first trial the logs were printed.
async fn note_other_trials(
    client: &Client,
    experiment: ExperimentId,
    printed: TrialId,
) -> Result<(), CliError> {
    let answer = get(client, experiment).await?;
    let trials = answer["experiment"]["numTrials"].as_i64().unwrap_or(1);
    if trials > 1 {
        let best = outcome::best_trial(&answer["experiment"]);
        let best = best.map_or_else(String::new, |best| format!("; the best is {best}"));
        output::note(format_args!(
            "these are the logs of trial {printed}, of {trials} trials{best}: `det trial logs ID` prints those of another"
        ));
    }
    Ok(())
}

/// The trial with the lowest id on the first page; `None` while there is none.
async fn first_trial(
    client: &Client,
    experiment: ExperimentId,
) -> Result<Option<TrialId>, det_client::ClientError> {
    let answer = client
        .get(&path_below(experiment, "trials"), &Query::new())
        .await?;
    Ok(items(&answer["trials"])
        .filter_map(|trial| trial["id"].as_i64())
        .min()
        .map(TrialId))
}
