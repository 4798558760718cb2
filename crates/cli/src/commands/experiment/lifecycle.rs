//! Pausing, stopping, archiving and deleting experiments.

use clap::Args;
use det_client::Client;
use det_ids::ExperimentId;
use serde_json::json;

use super::{path, path_below};
use crate::commands::projects;
use crate::error::CliError;
use crate::{output, prompt};

/// One experiment.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct One {
    /// Id of the experiment
    pub(crate) experiment_id: ExperimentId,
}

/// Options of `det experiment delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    one: One,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Tells the master to do `action` with an experiment; `done` says that it did.
pub(crate) async fn act(
    client: &Client,
    one: One,
    action: &str,
    done: &str,
) -> Result<(), CliError> {
    let id = one.experiment_id;
    client.post(&path_below(id, action), None).await?;
    output::line(format_args!("{done} experiment {id}"))
}

/// Deletes an experiment after asking.
pub(crate) async fn delete(client: &Client, args: &DeleteArgs) -> Result<(), CliError> {
    let id = args.one.experiment_id;
    let question = format!(
        "Deleting experiment {id} deletes its logs, metrics and checkpoints for good. \
         (`det e archive {id}` only hides it.) Delete it?"
    );
    if !args.yes && !prompt::confirm(&question, "--yes")? {
        output::note("nothing was deleted");
        return Ok(());
    }
    client.delete(&path(id)).await?;
    output::line(format_args!("Deletion of experiment {id} is in progress"))
}

/// Options of `det experiment move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    one: One,
    /// Name of the workspace that it goes to
    workspace_name: String,
    /// Name of the project that it goes to
    project_name: String,
}

/// Moves an experiment to another project.
pub(crate) async fn go_to(client: &Client, args: &MoveArgs) -> Result<(), CliError> {
    let (id, name) = (args.one.experiment_id, &args.project_name);
    let project = projects::named(client, &args.workspace_name, name).await?;
    let body = json!({"experimentId": id, "destinationProjectId": project["id"]});
    client.post(&path_below(id, "move"), Some(&body)).await?;
    output::line(format_args!("Moved experiment {id} to project \"{name}\""))
}
