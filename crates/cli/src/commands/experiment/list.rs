//! Lists of experiments and of their trials.

use clap::Args;
use det_client::{Client, Query, Session, api_path};
use det_ids::ExperimentId;
use serde_json::Value;

use super::path_below;
use crate::error::CliError;
use crate::paging::PageArgs;
use crate::table::{FormatArgs, Listing};
use crate::values::{indented, note_whole_reasons, progress, state, text, time, wait_reason_in};

/// Options of `det experiment list`.
#[derive(Debug, Default, Args)]
pub(crate) struct ListArgs {
    /// Show those of other users and archived ones too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show the workspace and the project of each
    #[arg(long = "show_project", alias = "show-project")]
    pub(crate) show_project: bool,
    #[command(flatten)]
    pub(crate) paging: PageArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Options of `det experiment list-trials`.
#[derive(Debug, Args)]
pub(crate) struct ListTrialsArgs {
    /// Id of the experiment
    experiment_id: ExperimentId,
    #[command(flatten)]
    paging: PageArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Lists the experiments that `query` selects: the user's own that are not archived, or all.
pub(crate) async fn experiments(
    session: &Session,
    query: Query,
    args: ListArgs,
) -> Result<(), CliError> {
    let query = if args.all {
        query
    } else {
        query.with("archived", false).with("users", &session.user)
    };
    let path = api_path(["experiments"]);
    let paging = args.paging.paging(200);
    let experiments = session
        .client
        .list(&path, &query, "experiments", paging)
        .await?;
    args.paging.note_pages(experiments.len());
    listing(&experiments, args.show_project, args.all).print(args.format.format(), &experiments)
}

/// Experiments as a list; `all` = with archived ones among them.
fn listing(experiments: &[Value], show_project: bool, all: bool) -> Listing {
    let mut headers = vec![
        "ID",
        "Owner",
        "Name",
        "Parent ID",
        "State",
        "Progress",
        "Started",
        "Ended",
        "Resource Pool",
    ];
    if show_project {
        headers.splice(0..0, ["Workspace", "Project"]);
    }
    if all {
        headers.push("Archived");
    }
    let mut listing = Listing::new(headers);
    for experiment in experiments {
        let mut row = vec![
            text(experiment, "id"),
            text(experiment, "username"),
            text(experiment, "name"),
            text(experiment, "forkedFrom"),
            state(experiment, "state"),
            progress(experiment),
            time(experiment, "startTime"),
            time(experiment, "endTime"),
            text(experiment, "resourcePool"),
        ];
        if show_project {
            let place = ["workspaceName", "projectName"].map(|member| text(experiment, member));
            row.splice(0..0, place);
        }
        if all {
            row.push(text(experiment, "archived"));
        }
        listing.push(row);
    }
    listing
}

/// Lists the trials of an experiment.
pub(crate) async fn trials(client: &Client, args: ListTrialsArgs) -> Result<(), CliError> {
    let trials: Vec<Value> = client
        .list(
            &path_below(args.experiment_id, "trials"),
            &Query::new(),
            "trials",
            args.paging.paging(200),
        )
        .await?;
    args.paging.note_pages(trials.len());
    let format = args.format.format();
    let mut listing = Listing::new([
        "Trial ID",
        "State",
        "H-Params",
        "Started",
        "Ended",
        "# of Batches",
        "Waiting Reason",
    ]);
    for trial in &trials {
        listing.push([
            text(trial, "id"),
            state(trial, "state"),
            indented(&trial["hparams"]),
            time(trial, "startTime"),
            time(trial, "endTime"),
            text(trial, "totalBatchesProcessed"),
            wait_reason_in(format, trial),
        ]);
    }
    listing.print(format, &trials)?;
    note_whole_reasons(format, &trials);
    Ok(())
}
