//! `det preview-search`: which trials a search would run.

mod trace;

use std::path::PathBuf;

use clap::Args;
use det_client::api_path;
use det_config::document::DocumentKind;
use det_config::yaml::to_yaml;
use serde_json::{Value, json};

use crate::commands::submission::UserDocument;
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::read_config;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, text};

/// Options of `det preview-search`.
#[derive(Debug, Args)]
pub(crate) struct PreviewArgs {
    /// Experiment configuration (YAML); - for standard input
    #[arg(required_unless_present = "trace")]
    config_file: Option<PathBuf>,
    /// Drive a search event by event, without a master: a file (YAML or JSON; - for standard input) with a configuration,
    /// what happens to its trials, and what is expected of the search; see docs/search-traces.md
    #[arg(long, value_name = "FILE", conflicts_with = "config_file")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Asks the master to plan the search of a configuration, and prints the plan.
pub(crate) async fn run(args: PreviewArgs, context: &Context) -> Result<(), CliError> {
    if let Some(file) = &args.trace {
        return trace::run(file, args.format.format());
    }
    // The command line requires one of the two.
    let file = args.config_file.unwrap_or_default();
    let (written, config) = read_config(&file)?;
    if config["searcher"].is_null() {
        return Err(CliError::request(format!(
            "\"{}\" has no \"searcher\" section, so there is no search to preview",
            file.display()
        )));
    }
    // Only the keys that a search needs must be set.
    let written = UserDocument::of_text(DocumentKind::Experiment, &file, &written);
    written.check(true)?;
    let session = context.session().await?;
    let body = json!({"config": config});
    let answer = session
        .client
        .post(&api_path(["preview-hp-search"]), Some(&body))
        .await
        .map_err(|error| written.refusal(error))?;
    let summary = &answer["summary"];
    let mut listing = Listing::new(["Trials", "Training Time"]);
    for trials in items(&summary["trials"]) {
        listing.push([text(trials, "count"), training_time(&trials["unit"])]);
    }
    if args.format.format() == Format::Table {
        output::line("Using search configuration:")?;
        output::line(to_yaml(&without_nulls(&summary["config"])))?;
    }
    listing.print(args.format.format(), summary)
}

fn training_time(unit: &Value) -> String {
    if unit["maxLength"] == true {
        "train to completion".to_owned()
    } else {
        format!("train for {} {}", text(unit, "value"), text(unit, "name"))
    }
}

fn without_nulls(config: &Value) -> Value {
    match config {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
