//! Pausing, stopping, archiving and deleting experiments.

use clap::Args;
use det_client::Client;
use det_ids::ExperimentId;

use super::{path, path_below};
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
