//! Watching what goes on in the cluster: through outages of the master, and until Ctrl-C.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use det_client::ClientError;
use tokio::time::Instant;

use crate::error::{CliError, Exit};
use crate::output;

/// How long to retry while the master cannot be reached.
pub(crate) const RETRY_LIMIT: Duration = Duration::from_mins(10);
/// The pause between two attempts to reach it.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Watches something until its end or until Ctrl-C, which ends this process alone; `goes_on` then reports that, and what can be
/// done. So it does when the connection to the master is lost for good.
pub(crate) async fn until_ctrl_c(
    goes_on: impl Display,
    watching: impl Future<Output = Result<ExitCode, CliError>>,
) -> Result<ExitCode, CliError> {
    tokio::select! {
        result = watching => result.map_err(|error| error.with_hint_if_lost(goes_on)),
        pressed = tokio::signal::ctrl_c() => {
            pressed.map_err(|error| CliError::request(format!("could not wait for Ctrl-C: {error}")))?;
            output::note(format_args!("\n{goes_on}"));
            Ok(Exit::Interrupted.into())
        }
    }
}

/// Repeats requests while the master cannot be reached, up to a limit since the first failure.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    lost_at: Option<Instant>,
}

impl Retries {
    /// Asks until there is an answer; errs with the last failure after ten minutes, and at once with a refusal.
    pub(crate) async fn run<T>(
        &mut self,
        mut ask: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, CliError> {
        loop {
            let error = match ask().await {
                Ok(answer) => {
                    if self.lost_at.take().is_some() {
                        output::note("the master is back");
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if !error.is_passing() {
                return Err(error.into());
            }
            let since = *self.lost_at.get_or_insert_with(|| {
                output::note(format_args!("{error}; trying again"));
                Instant::now()
            });
            if since.elapsed() > RETRY_LIMIT {
                return Err(CliError::lost(error));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn watched(error: CliError) -> (Exit, Option<String>) {
        let ended = until_ctrl_c("command 7 goes on", async { Err(error) }).await;
        match ended {
            Err(CliError::Failure { exit, hint, .. }) => (exit, hint),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_goes_on_is_printed_when_the_master_is_lost_and_not_when_it_refuses() {
        let goes_on = Some("command 7 goes on".to_owned());
        let away = || ClientError::Failed {
            status: 503,
            message: "the database is away".to_owned(),
            hint: None,
            document_errors: Vec::new(),
        };
        assert_eq!(
            watched(CliError::lost(away())).await,
            (Exit::Connection, goes_on)
        );
        let refused = CliError::request("it was refused").with_hint("ask its owner");
        assert_eq!(
            watched(refused).await,
            (Exit::Failed, Some("ask its owner".to_owned()))
        );
    }
}
