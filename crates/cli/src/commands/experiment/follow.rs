//! Watching experiments until they end.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use det_client::{Client, ClientError, Paging, Query};
use det_ids::{ExperimentId, TrialId};
use serde_json::Value;
use tokio::time::Instant;

use super::outcome::{note_best_trial, note_failure, note_missing_metric};
use super::progress::{Display, SearchView};
use super::{first_trial, get, path_below};
use crate::commands::failures;
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::commands::watching::{Retries, until_ctrl_c};
use crate::error::{CliError, Exit};
use crate::output;
use crate::values::{state, wait_reason};

/// The pause between two requests for the state of a search; longer when it has many trials, all of which are loaded.
const REFRESH: Duration = Duration::from_millis(700);
const REFRESH_OF_MANY: Duration = Duration::from_secs(4);
/// The number of trials from which a search has many.
const MANY_TRIALS: usize = 200;
/// How long an experiment may take to end after the last line of its logs.
const WRAP_UP: Duration = Duration::from_secs(10);

/// Options of `det experiment wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// Seconds between two looks
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = parse_interval)]
    polling_interval: f64,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| Duration::try_from_secs_f64(*seconds).is_ok_and(|time| !time.is_zero()))
        .ok_or_else(|| "it must be a number of seconds above 0".to_owned())
}

/// What is shown of an experiment while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FollowedOutput {
    /// The logs of its one trial.
    FirstTrial,
    /// The progress of its search.
    Search,
}

/// Follows an experiment that was just started. Ctrl-C ends this command, not the experiment.
pub(crate) async fn after_start(
    client: &Client,
    id: ExperimentId,
    followed: FollowedOutput,
) -> Result<ExitCode, CliError> {
    let watching = async {
        match followed {
            FollowedOutput::FirstTrial => first_trial_logs(client, id).await,
            FollowedOutput::Search => search(client, id).await,
        }
    };
    until_ctrl_c(goes_on(id), watching).await
}

/// Shows the progress of an experiment until it ends. Ctrl-C ends this command, not the experiment.
pub(crate) async fn progress(client: &Client, id: ExperimentId) -> Result<ExitCode, CliError> {
    until_ctrl_c(goes_on(id), search(client, id)).await
}

fn goes_on(id: ExperimentId) -> String {
    format!(
        "experiment {id} goes on; follow it with `det e follow {id}` or `det e logs -f {id}`, stop it with `det e kill {id}`"
    )
}

/// Waits until an experiment has ended; the code is 0 only if it completed.
pub(crate) async fn wait(client: &Client, args: &WaitArgs) -> Result<ExitCode, CliError> {
    let id = args.experiment_id;
    let interval = Duration::from_secs_f64(args.polling_interval);
    let mut retries = Retries::default();
    loop {
        let answer = retries.run(async || get(client, id).await).await?;
        let now = state(&answer["experiment"], "state");
        if now == "PAUSED" {
            return Err(CliError::request(format!(
                "experiment {id} is paused, so waiting for its end could take for ever"
            ))
            .with_hint(format!("let it go on with `det e activate {id}`")));
        }
        if is_terminal(&now) {
            output::note(format_args!("experiment {id} has ended: {now}"));
            let experiment = &answer["experiment"];
            note_best_trial(experiment);
            if now == "ERROR" || experiment["bestTrialId"].is_null() {
                let trials = all_trials(client, id).await?;
                note_failure(client, experiment, &trials).await?;
                note_metric_missing_in(experiment, &trials);
            } else {
                note_failure(client, experiment, &failed_trials(client, id).await?).await?;
            }
            return Ok(code_for(&now));
        }
        tokio::time::sleep(interval).await;
    }
}

/// Prints the logs of the first trial from its beginning to its end.
async fn first_trial_logs(client: &Client, id: ExperimentId) -> Result<ExitCode, CliError> {
    let trial = wait_for_first_trial(client, id).await?;
    output::note(format_args!("following trial {trial}"));
    let source = LogSource::Trial(trial);
    logs::print(client, &source, &LogArgs::following()).await?;
    let now = state_after_logs(client, id).await?;
    if is_terminal(&now) {
        output::note(format_args!("experiment {id} has ended: {now}"));
        if now == "ERROR" {
            note_reason(client, trial).await?;
        }
    } else {
        output::note(format_args!("experiment {id} is {now}"));
    }
    Ok(code_for(&now))
}

/// Prints of what a trial failed; the last lines of its code were shown with its log.
async fn note_reason(client: &Client, trial: TrialId) -> Result<(), CliError> {
    let shown = failures::trial(client, &trial.to_string()).await?;
    if let Some(reason) = shown.as_ref().and_then(failures::reason) {
        output::note(format_args!("trial {trial} failed: {reason}"));
    }
    Ok(())
}

async fn wait_for_first_trial(client: &Client, id: ExperimentId) -> Result<TrialId, CliError> {
    let mut retries = Retries::default();
    let mut pause = Duration::from_millis(100);
    let mut reported = String::new();
    loop {
        let found = retries.run(async || first_trial(client, id).await).await?;
        if let Some(trial) = found {
            return Ok(trial);
        }
        let answer = retries.run(async || get(client, id).await).await?;
        let now = state(&answer["experiment"], "state");
        if is_terminal(&now) {
            return Err(CliError::request(format!(
                "experiment {id} has ended without a trial: {now}"
            )));
        }
        let reason = wait_reason(&answer["experiment"]);
        let message = if reason.is_empty() {
            "waiting for the first trial to begin".to_owned()
        } else {
            format!("waiting for the first trial to begin: {reason}")
        };
        if message != reported {
            output::note(&message);
            reported = message;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// The state of an experiment whose only trial has no more logs: the experiment ends a moment later than they do.
async fn state_after_logs(client: &Client, id: ExperimentId) -> Result<String, CliError> {
    let mut retries = Retries::default();
    let ended_at = Instant::now();
    loop {
        let answer = retries.run(async || get(client, id).await).await?;
        let now = state(&answer["experiment"], "state");
        if is_terminal(&now) || now == "PAUSED" || ended_at.elapsed() > WRAP_UP {
            return Ok(now);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Shows the progress of a search until its end.
async fn search(client: &Client, id: ExperimentId) -> Result<ExitCode, CliError> {
    let mut retries = Retries::default();
    let mut display = Display::new();
    loop {
        let answer = retries.run(async || get(client, id).await).await?;
        let trials = retries.run(async || all_trials(client, id).await).await?;
        let view = SearchView::new(&answer["experiment"], &trials);
        if is_terminal(&view.state) {
            display.clear();
            output::line(format_args!(
                "experiment {id} has ended: {}",
                view.summary()
            ))?;
            note_failure(client, &answer["experiment"], &trials).await?;
            if answer["experiment"]["bestTrialId"].is_null() {
                note_metric_missing_in(&answer["experiment"], &trials);
            }
            return Ok(code_for(&view.state));
        }
        display.show(&view);
        let pause = if trials.len() < MANY_TRIALS {
            REFRESH
        } else {
            REFRESH_OF_MANY
        };
        tokio::time::sleep(pause).await;
    }
}

/// Prints which metric is missing where no latest validation of an experiment's trials has the one of its searcher.
fn note_metric_missing_in(experiment: &Value, trials: &[Value]) {
    let latest = trials.iter();
    let latest = latest.map(|trial| &trial["latestValidation"]["metrics"]["avgMetrics"]);
    let trains = |trial: &Value| trial["totalBatchesProcessed"].as_i64() > Some(0);
    note_missing_metric(experiment, latest, trials.iter().any(trains));
}

/// All trials of an experiment.
pub(super) async fn all_trials(
    client: &Client,
    id: ExperimentId,
) -> Result<Vec<Value>, ClientError> {
    trials(client, id, &Query::new()).await
}

/// The trials of an experiment that failed.
async fn failed_trials(client: &Client, id: ExperimentId) -> Result<Vec<Value>, ClientError> {
    trials(client, id, &Query::new().with("states", "STATE_ERROR")).await
}

async fn trials(
    client: &Client,
    id: ExperimentId,
    query: &Query,
) -> Result<Vec<Value>, ClientError> {
    let path = path_below(id, "trials");
    client.list(&path, query, "trials", Paging::all(500)).await
}

/// Whether an experiment in this state, as the API names it, has ended.
pub(super) fn is_terminal(state: &str) -> bool {
    matches!(state, "COMPLETED" | "CANCELED" | "ERROR" | "DELETED")
}

/// The exit code for a state: a failure if the experiment ended without completing.
fn code_for(state: &str) -> ExitCode {
    if is_terminal(state) && state != "COMPLETED" {
        Exit::Failed.into()
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bad_end_is_a_failure() {
        let failed = format!("{:?}", ExitCode::from(Exit::Failed));
        for (state, fails) in [
            ("COMPLETED", false),
            ("CANCELED", true),
            ("ERROR", true),
            ("RUNNING", false),
            ("PAUSED", false),
        ] {
            assert_eq!(format!("{:?}", code_for(state)) == failed, fails, "{state}");
        }
    }

    #[test]
    fn an_interval_is_a_time_above_zero() {
        assert_eq!(parse_interval("0.5"), Ok(0.5));
        for bad in ["0", "-1", "NaN", "x", "1e300"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
