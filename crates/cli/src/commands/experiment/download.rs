//! Downloading the files and the checkpoints of an experiment.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use det_client::{Client, ClientError, Query};
use det_ids::ExperimentId;
use serde_json::Value;

use super::path_below;
use crate::commands::checkpoint::{fetch, is_downloadable, print_downloaded};
use crate::error::CliError;
use crate::output;
use crate::values::{items, text};

/// Options of `det experiment download-model-def`.
#[derive(Debug, Args)]
pub(crate) struct ModelDefArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// Where to put the archive
    #[arg(short, long, value_name = "PATH", default_value = ".")]
    output_dir: PathBuf,
}

/// Options of `det experiment download`.
#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    /// Where to put the checkpoints, each in a directory named by its UUID
    #[arg(short, long, value_name = "PATH", default_value = "checkpoints")]
    output_dir: PathBuf,
    /// How many checkpoints
    #[arg(long, value_name = "N", default_value_t = 1)]
    top_n: usize,
    /// The validation metric that decides [default: the searcher's]
    #[arg(long, value_name = "METRIC", requires = "smaller_is_better")]
    sort_by: Option<String>,
    /// With --sort-by: whether a smaller value is better
    #[arg(long, value_name = "true|false", requires = "sort_by")]
    smaller_is_better: Option<bool>,
    /// Print only the paths of the checkpoints
    #[arg(short, long)]
    quiet: bool,
}

/// Saves the archive of an experiment's files.
pub(crate) async fn model_def(client: &Client, args: &ModelDefArgs) -> Result<(), CliError> {
    let id = args.experiment_id;
    let route = path_below(id, "model_def");
    let answer = client.get(&route, &Query::new()).await?;
    let encoded = text(&answer, "b64Tgz");
    let archive = STANDARD
        .decode(&encoded)
        .map_err(|error| ClientError::BadAnswer {
            url: client.master().join(&route),
            reason: format!("its archive is not base64 ({error})"),
        })?;
    let file = args
        .output_dir
        .join(format!("experiment_{id}_model_def.tgz"));
    fs::create_dir_all(&args.output_dir)
        .and_then(|()| fs::write(&file, archive))
        .map_err(|error| CliError::file("write", &file, &error))?;
    output::note(format_args!("saved \"{}\"", file.display()));
    Ok(())
}

/// Downloads the best checkpoints of an experiment.
pub(crate) async fn checkpoints(client: &Client, args: DownloadArgs) -> Result<(), CliError> {
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
        (None, _) => Query::new().with("sortByAttr", "SORT_BY_SEARCHER_METRIC"),
    };
    let id = args.experiment_id;
    let answer = client.get(&path_below(id, "checkpoints"), &query).await?;
    let chosen: Vec<&Value> = items(&answer["checkpoints"])
        .filter(|checkpoint| is_downloadable(checkpoint))
        .take(args.top_n)
        .collect();
    if chosen.is_empty() {
        return Err(CliError::request(format!(
            "experiment {id} has no checkpoint that can be downloaded"
        )));
    }
    for checkpoint in chosen {
        let directory = args.output_dir.join(text(checkpoint, "uuid"));
        fetch(client, checkpoint, &directory).await?;
        print_downloaded(checkpoint, &directory, args.quiet)?;
    }
    Ok(())
}
