//! `det trial`: trials, their logs and their checkpoints.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_ids::TrialId;
use serde_json::{Value, json};

use crate::commands::checkpoint::{
    self, default_directory, fetch, is_downloadable, print_downloaded,
};
use crate::commands::failures;
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::commands::retention::RetentionTime;
use crate::commands::trial_metrics::{self, MetricsArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::paging::PageArgs;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{indented, items, plain, state, text, time, wait_reason};

/// Options of `det trial`.
#[derive(Debug, Args)]
pub(crate) struct TrialArgs {
    #[command(subcommand)]
    action: TrialAction,
}

#[derive(Debug, Subcommand)]
enum TrialAction {
    /// Show a trial and what it reported
    Describe(DescribeArgs),
    /// List the metrics of a trial, those of the machine too
    Metrics(MetricsArgs),
    /// Print what a trial logged
    Logs {
        /// Id of the trial
        trial_id: TrialId,
        #[command(flatten)]
        logs: Box<LogArgs>,
    },
    /// Show what each rank of a running trial does, and which one keeps the others waiting
    ///
    /// Looks at the processes for a second. Python stacks are shown where the task's environment has py-spy, and of code that
    /// uses the Core API.
    Doctor {
        /// Id of the trial
        trial_id: TrialId,
        /// Seconds to wait for the answers of its containers
        #[arg(long, value_name = "SECONDS", default_value_t = 15,
            value_parser = clap::value_parser!(i64).range(1..=60))]
        timeout: i64,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Stop a trial at once
    Kill {
        /// Id of the trial
        trial_id: TrialId,
    },
    /// Change a trial
    #[command(subcommand)]
    Set(SetAction),
    /// Download a checkpoint of a trial
    Download(DownloadArgs),
}

/// The attributes of a trial that can be changed.
#[derive(Debug, Subcommand)]
enum SetAction {
    /// Set how long logs are kept
    LogRetention {
        /// Id of the trial
        trial_id: TrialId,
        #[command(flatten)]
        time: RetentionTime,
    },
}

#[derive(Debug, Args)]
struct DescribeArgs {
    /// Id of the trial
    trial_id: TrialId,
    /// Show the summary of the metrics
    #[arg(long)]
    metrics_summary: bool,
    /// Show all metrics, those of batches too
    #[arg(long)]
    metrics: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    paging: PageArgs,
}

#[derive(Debug, Args)]
struct DownloadArgs {
    /// Id of the trial
    trial_id: TrialId,
    #[command(flatten)]
    which: CheckpointChoice,
    /// Where to put it [default: checkpoints/UUID]
    #[arg(short, long, value_name = "PATH")]
    output_dir: Option<PathBuf>,
    /// With --best: the validation metric that decides [default: the searcher's]
    #[arg(long, value_name = "METRIC", requires = "smaller_is_better")]
    sort_by: Option<String>,
    /// With --sort-by: whether a smaller value is better
    #[arg(long, value_name = "true|false", requires = "sort_by")]
    smaller_is_better: Option<bool>,
    /// Print only the path of the checkpoint
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct CheckpointChoice {
    /// The checkpoint with the best validation
    #[arg(long)]
    best: bool,
    /// The newest checkpoint
    #[arg(long)]
    latest: bool,
    /// The checkpoint with this UUID
    #[arg(long)]
    uuid: Option<String>,
}

/// Carries out `det trial …`.
pub(crate) async fn run(args: TrialArgs, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match args.action {
        TrialAction::Describe(args) => describe(&client, &args).await,
        TrialAction::Metrics(args) => trial_metrics::print(&client, &args).await,
        TrialAction::Logs { trial_id, logs } => {
            logs::print(&client, &LogSource::Trial(trial_id), &logs).await
        }
        TrialAction::Doctor {
            trial_id,
            timeout,
            format,
        } => doctor(&client, trial_id, timeout, format.format()).await,
        TrialAction::Kill { trial_id } => {
            let answer = client
                .get(&api_path(["trials", &trial_id.to_string()]), &Query::new())
                .await?;
            let now = state(&answer["trial"], "state");
            if matches!(now.as_str(), "COMPLETED" | "CANCELED" | "ERROR") {
                output::note(format_args!(
                    "trial {trial_id} has ended already ({now}), so there is nothing to kill"
                ));
                return Ok(());
            }
            client.post(&path(trial_id, "kill"), None).await?;
            output::line(format_args!("Killed trial {trial_id}"))
        }
        TrialAction::Set(SetAction::LogRetention { trial_id, time }) => {
            let body = json!({"trialId": trial_id, "numDays": time.days()});
            client.put(&path(trial_id, "retain_logs"), &body).await?;
            output::line(format_args!("Logs of trial {trial_id} {}", time.describe()))
        }
        TrialAction::Download(args) => download(&client, args).await,
    }
}

fn path(trial: TrialId, below: &str) -> String {
    api_path(["trials", &trial.to_string(), below])
}

/// Shows what the ranks of a trial do, and what follows.
async fn doctor(
    client: &Client,
    trial: TrialId,
    timeout: i64,
    format: Format,
) -> Result<(), CliError> {
    let body = json!({"trialId": trial, "timeoutSeconds": timeout});
    let answer = client.post(&path(trial, "diagnose"), Some(&body)).await?;
    rank_rows(&answer).print(format, &answer)?;
    if format != Format::Table {
        return Ok(());
    }
    for rank in items(&answer["ranks"]) {
        let process = &rank["process"];
        let stack: Vec<String> = items(&process["stack"]).map(plain).collect();
        if !stack.is_empty() {
            output::line(format_args!(
                "\nrank {}, process {} ({}), stack by {}, innermost first:",
                text(rank, "rank"),
                text(process, "pid"),
                text(process, "command"),
                text(process, "stackSource")
            ))?;
            for frame in stack {
                output::line(format_args!("    {frame}"))?;
            }
        }
    }
    let silent = text(&answer, "silentSeconds");
    if !silent.is_empty() {
        output::note(format_args!(
            "no report and no line of its log for {silent} s"
        ));
    }
    let without: Vec<&Value> = items(&answer["ranks"])
        .filter(|rank| {
            !rank["process"].is_null() && items(&rank["process"]["stack"]).next().is_none()
        })
        .collect();
    if let Some(first) = without
        .first()
        .map(|rank| text(&rank["process"], "stackSource"))
        && !first.is_empty()
    {
        output::note(format_args!("no Python stack: {first}"));
    }
    output::line(format_args!(
        "\nConclusion: {}",
        text(&answer, "conclusion")
    ))
}

fn rank_rows(answer: &Value) -> Listing {
    let mut listing = Listing::new([
        "Rank",
        "Agent",
        "Process",
        "Does",
        "Waits in",
        "CPU",
        "At",
        "Last log",
        "Last report",
    ]);
    for rank in items(&answer["ranks"]) {
        let process = &rank["process"];
        let mark = if rank["odd"] == true { " *" } else { "" };
        let does = match text(rank, "problem") {
            problem if problem.is_empty() => text(rank, "activity"),
            problem => format!("{} ({problem})", text(rank, "activity")),
        };
        let millis = |member: &Value| member.as_i64().unwrap_or(0) / 1000;
        let cpu = if process.is_null() {
            String::new()
        } else {
            let (used, watched) = (
                millis(&process["cpuWindowMicros"]),
                millis(&rank["windowMicros"]),
            );
            format!("{used} of {watched} ms")
        };
        listing.push([
            format!("{}{mark}", text(rank, "rank")),
            text(rank, "agentId"),
            if process.is_null() {
                String::new()
            } else {
                format!("{} {}", text(process, "pid"), text(process, "command"))
            },
            does,
            text(rank, "waitsIn"),
            cpu,
            items(&process["stack"])
                .next()
                .map(plain)
                .unwrap_or_default(),
            time(rank, "lastLogAt"),
            time(rank, "lastReportAt"),
        ]);
    }
    listing
}

async fn describe(client: &Client, args: &DescribeArgs) -> Result<(), CliError> {
    let id = args.trial_id.to_string();
    let mut answer = client
        .get(&api_path(["trials", &id]), &Query::new())
        .await?;
    let query = Query::new().with("includeBatchMetrics", args.metrics);
    let workloads = client
        .list(
            &path(args.trial_id, "workloads"),
            &query,
            "workloads",
            args.paging.paging(1000),
        )
        .await?;
    args.paging.note_pages(workloads.len());
    let format = args.format.format();
    if format == Format::Json {
        answer["workloads"] = Value::Array(workloads);
        return output::json(&answer);
    }
    let trial = &answer["trial"];
    let mut about = Listing::new([
        "Experiment ID",
        "State",
        "H-Params",
        "Summary Metrics",
        "Started",
        "Ended",
    ]);
    about.push([
        text(trial, "experimentId"),
        state(trial, "state"),
        indented(&trial["hparams"]),
        indented(&trial["summaryMetrics"]),
        time(trial, "startTime"),
        time(trial, "endTime"),
    ]);
    about.print(format, &json!(null))?;
    note_restarts(trial);
    let waiting = wait_reason(trial);
    if !waiting.is_empty() {
        output::note(format_args!("waiting: {waiting}"));
    }
    output::line("\nWorkloads:")?;
    workload_rows(&workloads, args.metrics).print(format, &json!(null))?;
    if args.metrics_summary {
        output::json(&trial["summaryMetrics"])?;
    }
    Ok(())
}

/// Prints how often a trial was restarted, which log policies matched, of what it failed, and what its search could not use.
fn note_restarts(trial: &Value) {
    let (restarts, matched) = (text(trial, "restarts"), text(trial, "logPolicyMatched"));
    if restarts != "0" && !restarts.is_empty() {
        output::note(format_args!("restarts after failures: {restarts}"));
    }
    if !matched.is_empty() {
        output::note(format_args!("log policies that matched: {matched}"));
    }
    if let Some(failure) = failures::sentence(trial) {
        output::note(failure);
    }
    let notice = text(trial, "notice");
    if !notice.is_empty() {
        output::note(notice);
    }
}

fn workload_rows(workloads: &[Value], metrics: bool) -> Listing {
    let mut headers = vec![
        "# of Batches",
        "Report Time",
        "Checkpoint",
        "Checkpoint UUID",
        "Checkpoint Metadata",
        "Validation Metrics",
    ];
    if metrics {
        headers.push("Workload Metrics");
    }
    let mut listing = Listing::new(headers);
    for workload in workloads {
        let (training, validation, saved) = (
            &workload["training"],
            &workload["validation"],
            &workload["checkpoint"],
        );
        let Some(any) = [training, validation, saved]
            .into_iter()
            .find(|workload| !workload.is_null())
        else {
            continue;
        };
        let mut row = vec![
            text(any, "totalBatches"),
            time(any, "endTime"),
            state(saved, "state"),
            text(saved, "uuid"),
            indented(&saved["metadata"]),
            indented(&validation["metrics"]),
        ];
        if metrics {
            row.push(indented(&training["metrics"]));
        }
        listing.push(row);
    }
    listing
}

async fn download(client: &Client, args: DownloadArgs) -> Result<(), CliError> {
    if args.sort_by.is_some() && !args.which.best {
        return Err(CliError::usage(
            "--sort-by and --smaller-is-better go with --best only",
        ));
    }
    let checkpoint = match &args.which.uuid {
        Some(uuid) => checkpoint::get(client, uuid).await?,
        None => choose(client, &args).await?,
    };
    let directory = args
        .output_dir
        .unwrap_or_else(|| default_directory(&text(&checkpoint, "uuid")));
    fetch(client, &checkpoint, &directory).await?;
    print_downloaded(&checkpoint, &directory, args.quiet)
}

/// The best or the newest checkpoint of a trial that can be downloaded.
async fn choose(client: &Client, args: &DownloadArgs) -> Result<Value, CliError> {
    let query = match (&args.sort_by, args.smaller_is_better) {
        (Some(metric), smaller) => Query::new().with("sortByMetric", metric).with(
            "orderBy",
            if smaller == Some(true) {
                "ORDER_BY_ASC"
            } else {
                "ORDER_BY_DESC"
            },
        ),
        // Without an order the master puts the better ones first.
        (None, _) if args.which.best => Query::new().with("sortByAttr", "SORT_BY_SEARCHER_METRIC"),
        (None, _) => Query::new()
            .with("sortByAttr", "SORT_BY_BATCH_NUMBER")
            .with("orderBy", "ORDER_BY_DESC"),
    };
    let answer = client
        .get(&path(args.trial_id, "checkpoints"), &query)
        .await?;
    items(&answer["checkpoints"])
        .find(|checkpoint| is_downloadable(checkpoint))
        .cloned()
        .ok_or_else(|| {
            CliError::request(format!(
                "trial {} has no checkpoint that can be downloaded",
                args.trial_id
            ))
        })
}
