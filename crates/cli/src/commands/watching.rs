//! Watching what goes on in the cluster: through outages of the master, and until Ctrl-C.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use det_client::ClientError;
use tokio::time::Instant;

use crate::error::{CliError, Exit};
use crate::output;

/// How long to retry while the master cannot be reached.
const RETRY_LIMIT: Duration = Duration::from_mins(10);

/// Watches something until its end or until Ctrl-C, which ends this process alone; `goes_on` then reports that, and what can be
/// done.
pub(crate) async fn until_ctrl_c(
    goes_on: impl Display,
    watching: impl Future<Output = Result<ExitCode, CliError>>,
) -> Result<ExitCode, CliError> {
    tokio::select! {
        result = watching => result,
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
            let passing = match &error {
                ClientError::Unreachable { .. } | ClientError::Interrupted { .. } => true,
                ClientError::Failed { status, .. } => (502..=504).contains(status),
                _ => false,
            };
            if !passing {
                return Err(error.into());
            }
            let since = *self.lost_at.get_or_insert_with(|| {
                output::note(format_args!("{error}; trying again"));
                Instant::now()
            });
            if since.elapsed() > RETRY_LIMIT {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
