//! Deleting a workspace or a project, which takes the master a while.

use std::time::Duration;

use det_client::{Client, ClientError, Query};

use crate::error::CliError;
use crate::values::text;
use crate::{output, prompt};

/// The pause between two requests for what is being deleted.
const REFRESH: Duration = Duration::from_secs(1);

/// Deletes a workspace or project after asking, and waits until it is gone.
pub(crate) async fn delete(
    client: &Client,
    path: &str,
    what: &str,
    question: &str,
    yes: bool,
) -> Result<(), CliError> {
    if !yes && !prompt::confirm(question, "--yes")? {
        output::note("nothing was deleted");
        return Ok(());
    }
    let answer = client.delete(path).await?;
    if answer["completed"] != true {
        output::note(format_args!("Deletion of {what} is in progress"));
        loop {
            tokio::time::sleep(REFRESH).await;
            let found = match client.get(path, &Query::new()).await {
                Err(ClientError::NotFound { .. }) => break,
                found => found?,
            };
            let kinds = ["workspace", "project"];
            let thing = kinds
                .map(|kind| &found[kind])
                .into_iter()
                .find(|t| t.is_object());
            if let Some(thing) = thing.filter(|t| t["state"] == "WORKSPACE_STATE_DELETE_FAILED") {
                let why = text(thing, "errorMessage");
                return Err(CliError::request(format!(
                    "{what} could not be deleted: {why}"
                )));
            }
        }
    }
    output::line(format_args!("Deleted {what}"))
}
