//! Changing experiments.

use clap::{Args, Subcommand};
use det_client::{Client, Query};
use det_ids::{ExperimentId, quantity};
use serde_json::{Value, json};

use super::{get, path, path_below};
use crate::commands::retention::RetentionTime;
use crate::error::CliError;
use crate::table::Listing;
use crate::values::{items, members, plain, priority_orders, text};
use crate::{output, prompt};

/// The attributes of an experiment that can be changed.
#[derive(Debug, Subcommand)]
pub(crate) enum SetAction {
    /// Set the name
    Name {
        /// Id of the experiment
        experiment_id: ExperimentId,
        /// The new name
        name: String,
    },
    /// Set the description
    Description {
        /// Id of the experiment
        experiment_id: ExperimentId,
        /// The new description
        description: String,
    },
    #[command(about = concat!("Set the priority: ", priority_orders!()))]
    Priority {
        /// Id of the experiment
        experiment_id: ExperimentId,
        /// The new priority, 1 to 99
        #[arg(allow_negative_numbers = true)]
        priority: i32,
    },
    /// Set the weight in fair share
    Weight {
        /// Id of the experiment
        experiment_id: ExperimentId,
        /// The new weight
        #[arg(allow_negative_numbers = true, value_parser = crate::values::weight)]
        weight: f64,
    },
    /// Set how many slots the experiment may hold at once
    MaxSlots {
        /// Id of the experiment
        experiment_id: ExperimentId,
        /// The new limit; "none" for no limit
        #[arg(allow_negative_numbers = true, value_parser = parse_limit)]
        max_slots: Limit,
    },
    /// Set which checkpoints are kept, and collect the others
    GcPolicy(GcArgs),
    /// Set how long logs are kept
    LogRetention(RetentionArgs),
}

/// Changes of labels.
#[derive(Debug, Subcommand)]
pub(crate) enum LabelAction {
    /// Add a label
    Add(LabelArgs),
    /// Take a label away
    Remove(LabelArgs),
}

/// Options of `det experiment label …`.
#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// Label to add or to take away
    label: String,
}

/// Options of `det experiment set gc-policy`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// How many best checkpoints of the whole experiment are kept
    #[arg(long, value_name = "N")]
    save_experiment_best: u32,
    /// How many best checkpoints of each trial are kept
    #[arg(long, value_name = "N")]
    save_trial_best: u32,
    /// How many newest checkpoints of each trial are kept
    #[arg(long, value_name = "N")]
    save_trial_latest: u32,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Options of `det experiment set log-retention`.
#[derive(Debug, Args)]
pub(crate) struct RetentionArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    #[command(flatten)]
    time: RetentionTime,
}

/// A number of slots, or no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(Option<u32>);

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "none" | "null" => Ok(Limit(None)),
        number => number
            .parse()
            .map(|slots| Limit(Some(slots)))
            .map_err(|_| "it must be a number of slots or \"none\"".to_owned()),
    }
}

/// Carries out `det experiment set …`.
pub(crate) async fn set(client: &Client, action: SetAction) -> Result<(), CliError> {
    let resources =
        |id: ExperimentId, resources: Value| (id, json!({"id": id, "resources": resources}));
    let (id, body, done) = match action {
        SetAction::Name {
            experiment_id,
            name,
        } => {
            let body = json!({"id": experiment_id, "name": name});
            (
                experiment_id,
                body,
                format!("Set name of experiment {experiment_id} to '{name}'"),
            )
        }
        SetAction::Description {
            experiment_id,
            description,
        } => {
            let body = json!({"id": experiment_id, "description": description});
            let done = format!("Set description of experiment {experiment_id} to '{description}'");
            (experiment_id, body, done)
        }
        SetAction::Priority {
            experiment_id,
            priority,
        } => {
            let (id, body) = resources(experiment_id, json!({"priority": priority}));
            let done = format!(
                "Set `priority` of experiment {id} to {priority} ({})",
                priority_orders!()
            );
            (id, body, done)
        }
        SetAction::Weight {
            experiment_id,
            weight,
        } => {
            let (id, body) = resources(experiment_id, json!({"weight": weight}));
            (
                id,
                body,
                format!("Set `weight` of experiment {id} to {weight}"),
            )
        }
        SetAction::MaxSlots {
            experiment_id,
            max_slots: Limit(limit),
        } => {
            let (id, body) = resources(experiment_id, json!({"maxSlots": limit}));
            let shown = limit.map_or_else(|| "none".to_owned(), |slots| slots.to_string());
            (
                id,
                body,
                format!("Set `max_slots` of experiment {id} to {shown}"),
            )
        }
        SetAction::GcPolicy(args) => return gc_policy(client, &args).await,
        SetAction::LogRetention(args) => return log_retention(client, &args).await,
    };
    client.patch(&path(id), &body).await?;
    output::line(done)
}

/// Carries out `det experiment label …`.
pub(crate) async fn label(client: &Client, action: LabelAction) -> Result<(), CliError> {
    let (args, add) = match action {
        LabelAction::Add(args) => (args, true),
        LabelAction::Remove(args) => (args, false),
    };
    let LabelArgs {
        experiment_id,
        label,
    } = args;
    let answer = get(client, experiment_id).await?;
    let before: Vec<String> = items(&answer["experiment"]["labels"]).map(plain).collect();
    let mut after: Vec<&str> = before
        .iter()
        .map(String::as_str)
        .filter(|present| *present != label)
        .collect();
    if add {
        after.push(&label);
    }
    if before.contains(&label) != add {
        // The API replaces all labels by the list that is sent.
        let body = json!({"id": experiment_id, "labels": after});
        client.patch(&path(experiment_id), &body).await?;
    }
    let done = if add { "Added" } else { "Removed" };
    let link = if add { "to" } else { "from" };
    output::line(format_args!(
        "{done} label '{label}' {link} experiment {experiment_id}"
    ))
}

async fn gc_policy(client: &Client, args: &GcArgs) -> Result<(), CliError> {
    let id = args.experiment_id;
    if !args.yes {
        show_collected(client, args).await?;
        let question = format!("Change which checkpoints of experiment {id} are kept?");
        if !prompt::confirm(&question, "--yes")? {
            output::note("nothing was changed");
            return Ok(());
        }
    }
    let body = json!({"id": id, "checkpointStorage": {
        "saveExperimentBest": args.save_experiment_best,
        "saveTrialBest": args.save_trial_best,
        "saveTrialLatest": args.save_trial_latest,
    }});
    client.patch(&path(id), &body).await?;
    output::line(format_args!(
        "Set GC policy of experiment {id}: best {} of the experiment, best {} and newest {} of each trial",
        args.save_experiment_best, args.save_trial_best, args.save_trial_latest
    ))
}

/// Shows on standard error which checkpoints a policy would delete.
async fn show_collected(client: &Client, args: &GcArgs) -> Result<(), CliError> {
    let query = Query::new()
        .with("save_experiment_best", args.save_experiment_best)
        .with("save_trial_best", args.save_trial_best)
        .with("save_trial_latest", args.save_trial_latest);
    let route = format!("/experiments/{}/preview_gc", args.experiment_id);
    let preview = client.get(&route, &query).await?;
    let metric = text(&preview, "metric_name");
    let mut listing = Listing::new([
        "Trial ID",
        "# of Batches",
        "State",
        &metric,
        "UUID",
        "Resources",
    ]);
    let checkpoints: Vec<&Value> = items(&preview["checkpoints"]).collect();
    for checkpoint in &checkpoints {
        let files: Vec<&str> = members(&checkpoint["Resources"])
            .map(|(name, _)| name.as_str())
            .collect();
        listing.push([
            text(checkpoint, "TrialID"),
            text(checkpoint, "StepsCompleted"),
            text(checkpoint, "State"),
            text(&checkpoint["ValidationMetrics"], &metric),
            text(checkpoint, "UUID"),
            files.join("\n"),
        ]);
    }
    if !checkpoints.is_empty() {
        output::note(listing.to_table());
    }
    output::note(format_args!(
        "this policy deletes {}",
        quantity(checkpoints.len() as u64, "checkpoint")
    ));
    Ok(())
}

async fn log_retention(client: &Client, args: &RetentionArgs) -> Result<(), CliError> {
    let id = args.experiment_id;
    let body = json!({"experimentId": id, "numDays": args.time.days()});
    client.put(&path_below(id, "retain_logs"), &body).await?;
    output::line(format_args!(
        "Logs of experiment {id} {}",
        args.time.describe()
    ))
}
