//! `det checkpoint`: what trials have saved.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use det_client::{Client, Query, api_path};
use det_ids::{ExperimentId, TrialId};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::CliError;
use crate::table::{Format, FormatArgs, Listing};
use crate::unpack::{MARKER, unpack_download};
use crate::values::{amount, indented, items, members, number, size, state, text, time};
use crate::{output, prompt};

/// Options of `det checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    action: CheckpointAction,
}

#[derive(Debug, Subcommand)]
enum CheckpointAction {
    /// List the checkpoints of an experiment or of a trial
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show a checkpoint
    Describe {
        /// UUID of the checkpoint
        uuid: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Download a checkpoint
    Download(DownloadArgs),
    /// Delete checkpoints with all their files
    Delete(RemovalArgs),
    /// Delete files of checkpoints
    Rm {
        #[command(flatten)]
        args: RemovalArgs,
        /// Pattern of the files to delete; repeat for several. Without any, nothing is deleted, and what the storage has
        /// of the checkpoints is read again
        #[arg(long, value_name = "PATTERN")]
        glob: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct RemovalArgs {
    /// UUIDs of the checkpoints, with commas between them
    #[arg(value_name = "UUIDS", value_delimiter = ',', required = true)]
    checkpoints_uuids: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Id of the experiment
    #[arg(required_unless_present = "trial_id")]
    experiment_id: Option<ExperimentId>,
    /// List those of this trial
    #[arg(long, value_name = "ID", conflicts_with = "experiment_id")]
    trial_id: Option<TrialId>,
    #[command(flatten)]
    choice: BestArgs,
}

/// How many checkpoints to list, and in which format.
#[derive(Debug, Clone, Args)]
pub(crate) struct BestArgs {
    /// Only the best N by the searcher's metric; those without a validation are left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    best: Option<u32>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct DownloadArgs {
    /// UUID of the checkpoint
    uuid: String,
    /// Where to put it [default: checkpoints/UUID]
    #[arg(short, long, value_name = "PATH")]
    output_dir: Option<PathBuf>,
    /// Print only the path of the checkpoint
    #[arg(short, long)]
    quiet: bool,
    /// Where from: every mode downloads through the master
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Straight from the storage (not available)
    Direct,
    /// Through the master
    Master,
    /// Through the master
    Auto,
}

/// Carries out `det checkpoint …`.
pub(crate) async fn run(args: CheckpointArgs, context: &Context) -> Result<(), CliError> {
    let client = || async { context.session().await.map(|session| session.client) };
    match args.action {
        CheckpointAction::List(args) => {
            let path = match (args.experiment_id, args.trial_id) {
                (_, Some(trial)) => api_path(["trials", &trial.to_string(), "checkpoints"]),
                (Some(experiment), None) => experiment_path(experiment),
                (None, None) => {
                    return Err(CliError::usage("name an experiment or a --trial-id"));
                }
            };
            list(&client().await?, &path, &args.choice).await
        }
        CheckpointAction::Describe { uuid, format } => {
            let checkpoint = get(&client().await?, &uuid).await?;
            describe(&checkpoint).print(format.format(), &checkpoint)
        }
        CheckpointAction::Download(args) => {
            if args.mode == Mode::Direct {
                return Err(CliError::usage(
                    "this program downloads checkpoints through the master only; leave --mode away",
                ));
            }
            let client = client().await?;
            let checkpoint = get(&client, &args.uuid).await?;
            let directory = args
                .output_dir
                .unwrap_or_else(|| default_directory(&args.uuid));
            fetch(&client, &checkpoint, &directory).await?;
            print_downloaded(&checkpoint, &directory, args.quiet)
        }
        CheckpointAction::Delete(args) => delete(&args, context).await,
        CheckpointAction::Rm { args, glob } => remove_files(&args, &glob, context).await,
    }
}

async fn delete(args: &RemovalArgs, context: &Context) -> Result<(), CliError> {
    let question = "Deleting checkpoints deletes all their files in the checkpoint storage. Do you still want to proceed?";
    if !args.yes && !prompt::confirm(question, "--yes")? {
        output::note("nothing was deleted");
        return Ok(());
    }
    let body = json!({"checkpointUuids": args.checkpoints_uuids});
    let client = context.session().await?.client;
    client
        .delete_listed(&api_path(["checkpoints"]), &body)
        .await?;
    output::line(format_args!(
        "Deletion of checkpoints {} is in progress",
        args.checkpoints_uuids.join(",")
    ))
}

async fn remove_files(
    args: &RemovalArgs,
    globs: &[String],
    context: &Context,
) -> Result<(), CliError> {
    let uuids = args.checkpoints_uuids.join(",");
    let question = "All files that match the patterns are deleted in all these checkpoints in the checkpoint storage. \
                    Do you still want to proceed?";
    if !args.yes && !globs.is_empty() && !prompt::confirm(question, "--yes")? {
        output::note("nothing was deleted");
        return Ok(());
    }
    let body = json!({"checkpointUuids": args.checkpoints_uuids, "checkpointGlobs": globs});
    let client = context.session().await?.client;
    client
        .post(&api_path(["checkpoints", "rm"]), Some(&body))
        .await?;
    if globs.is_empty() {
        return output::line(format_args!(
            "No glob patterns provided, refreshing resources of checkpoints {uuids} is in progress."
        ));
    }
    output::line(format_args!(
        "Removal of files from checkpoints {uuids} is in progress."
    ))
}

fn experiment_path(experiment: ExperimentId) -> String {
    api_path(["experiments", &experiment.to_string(), "checkpoints"])
}

/// The directory that a checkpoint is downloaded to when no other is named.
pub(crate) fn default_directory(uuid: &str) -> PathBuf {
    Path::new("checkpoints").join(uuid)
}

/// Lists the checkpoints of an experiment.
pub(crate) async fn list_of_experiment(
    client: &Client,
    experiment: ExperimentId,
    choice: &BestArgs,
) -> Result<(), CliError> {
    list(client, &experiment_path(experiment), choice).await
}

/// Loads one checkpoint.
pub(crate) async fn get(client: &Client, uuid: &str) -> Result<Value, CliError> {
    let mut answer = client
        .get(&api_path(["checkpoints", uuid]), &Query::new())
        .await?;
    Ok(answer["checkpoint"].take())
}

async fn list(client: &Client, path: &str, choice: &BestArgs) -> Result<(), CliError> {
    let sort = if choice.best.is_some() {
        "SORT_BY_SEARCHER_METRIC"
    } else {
        "SORT_BY_END_TIME"
    };
    let mut query = Query::new()
        .with_some("limit", choice.best)
        .with("sortByAttr", sort);
    if choice.best.is_some() {
        // The best are those that can be had.
        query = query.with("states", "STATE_COMPLETED");
    }
    let answer = client.get(path, &query).await?;
    let checkpoints: Vec<&Value> = items(&answer["checkpoints"]).collect();
    let mut listing = Listing::new([
        "Trial ID",
        "# of Batches",
        "State",
        "Validation Metric",
        "UUID",
        "Resources",
        "Size",
    ]);
    for checkpoint in &checkpoints {
        let training = &checkpoint["training"];
        let metric = text(&training["experimentConfig"]["searcher"], "metric");
        listing.push([
            text(training, "trialId"),
            text(&checkpoint["metadata"], "steps_completed"),
            state(checkpoint, "state"),
            text(&training["validationMetrics"]["avgMetrics"], &metric),
            text(checkpoint, "uuid"),
            files_of(checkpoint),
            size(bytes_of(checkpoint)),
        ]);
    }
    listing.print(choice.format.format(), &checkpoints)
}

fn files_of(checkpoint: &Value) -> String {
    let mut names: Vec<&str> = members(&checkpoint["resources"])
        .map(|(name, _)| name.as_str())
        .collect();
    names.sort_unstable();
    names.join("\n")
}

fn bytes_of(checkpoint: &Value) -> f64 {
    members(&checkpoint["resources"])
        .filter_map(|(_, bytes)| number(bytes))
        .sum()
}

fn describe(checkpoint: &Value) -> Listing {
    let training = &checkpoint["training"];
    let mut listing = Listing::new([
        "Experiment ID",
        "Trial ID",
        "Steps Completed",
        "Report Time",
        "Checkpoint UUID",
        "State",
        "Validation Metrics",
        "Metadata",
    ]);
    listing.push([
        text(training, "experimentId"),
        text(training, "trialId"),
        text(&checkpoint["metadata"], "steps_completed"),
        time(checkpoint, "reportTime"),
        text(checkpoint, "uuid"),
        state(checkpoint, "state"),
        indented(&training["validationMetrics"]["avgMetrics"]),
        indented(&checkpoint["metadata"]),
    ]);
    listing
}

/// Whether the files of a checkpoint exist, so that they can be downloaded.
pub(crate) fn is_downloadable(checkpoint: &Value) -> bool {
    matches!(
        state(checkpoint, "state").as_str(),
        "COMPLETED" | "PARTIALLY_DELETED"
    )
}

/// The files of a checkpoint that a directory lacks, or has with another size.
fn missing_files<'a>(checkpoint: &'a Value, directory: &Path) -> Vec<&'a str> {
    let files = checkpoint["resources"].as_object().into_iter().flatten();
    let is_there = |path: &str, size: &Value| {
        let found = fs::symlink_metadata(directory.join(path));
        let size = size.as_str().and_then(|text| text.parse().ok());
        found
            .is_ok_and(|found| !found.is_file() || size.is_none_or(|size: u64| size == found.len()))
    };
    files
        .filter(|(path, _)| !path.ends_with('/') && path.as_str() != MARKER)
        .filter(|(path, size)| !is_there(path, size))
        .map(|(path, _)| path.as_str())
        .collect()
}

/// Whether a directory was downloaded from a checkpoint with this metadata.
fn is_marked_as(marker: &Path, metadata: &Value) -> bool {
    let text = fs::read_to_string(marker).unwrap_or_default();
    serde_json::from_str::<Value>(&text).is_ok_and(|marked| marked == *metadata)
}

/// Downloads a checkpoint into `directory`, unless that contains it already.
pub(crate) async fn fetch(
    client: &Client,
    checkpoint: &Value,
    directory: &Path,
) -> Result<(), CliError> {
    let uuid = text(checkpoint, "uuid");
    if !is_downloadable(checkpoint) {
        return Err(CliError::request(format!(
            "checkpoint {uuid} is in state {}; only COMPLETED and PARTIALLY_DELETED ones can be downloaded",
            state(checkpoint, "state")
        )));
    }
    let marker = directory.join(MARKER);
    if marker.exists() || directory.join("MLmodel").exists() {
        let missing = missing_files(checkpoint, directory);
        let Some(first) = missing.first() else {
            output::note(format_args!(
                "\"{}\" holds a checkpoint already; nothing was downloaded",
                directory.display()
            ));
            return Ok(());
        };
        if !is_marked_as(&marker, &checkpoint["metadata"]) {
            return Err(CliError::request(format!(
                "\"{}\" holds another checkpoint: it lacks {} of {uuid}, such as \"{first}\"; nothing was downloaded",
                directory.display(),
                amount(&missing.len().to_string(), "file"),
            ))
            .with_hint("name another directory with --output-dir, or remove that one"));
        }
    }
    let path = api_path(["checkpoints", &uuid]);
    // The archive is not under /api.
    let path = path.trim_start_matches("/api/v1");
    // Weights hardly become smaller by compression, which takes far longer than to send them.
    let download = client.download(path, "application/x-tar").await?;
    unpack_download(download, directory).await?;
    if !marker.exists() {
        // Checkpoints of old versions lack the file, and loading a checkpoint needs it.
        let metadata = format!("{:#}\n", checkpoint["metadata"]);
        fs::write(&marker, metadata).map_err(|error| CliError::file("write", &marker, &error))?;
    }
    Ok(())
}

/// Prints the path of a downloaded checkpoint, and its description unless `quiet`.
pub(crate) fn print_downloaded(
    checkpoint: &Value,
    directory: &Path,
    quiet: bool,
) -> Result<(), CliError> {
    if quiet {
        return output::line(directory.display());
    }
    output::line("Local checkpoint path:")?;
    output::line(format_args!("{} \n", directory.display()))?;
    describe(checkpoint).print(Format::Table, &json!(null))
}
