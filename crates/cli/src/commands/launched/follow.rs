//! Following a launched task until its end.

use std::process::ExitCode;
use std::time::Duration;

use det_client::{Client, Query};
use tokio::time::Instant;

use super::{End, Kind};
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::commands::watching::{Retries, until_ctrl_c};
use crate::error::CliError;
use crate::output;

/// How long a task may take to end after the last line of its log.
const WRAP_UP: Duration = Duration::from_secs(10);

/// Prints the log of a task that was just launched until its end; the exit code is that of its program, or 1 if it was
/// killed or lost. Ctrl-C ends this command, not the task.
pub(crate) async fn follow(kind: &Kind, client: &Client, id: &str) -> Result<ExitCode, CliError> {
    let Kind { noun, group, .. } = kind;
    let goes_on = format!(
        "{noun} {id} goes on; follow it with `det {group} logs -f {id}`, end it with `det {group} kill {id}`"
    );
    until_ctrl_c(goes_on, to_the_end(kind, client, id)).await
}

async fn to_the_end(kind: &Kind, client: &Client, id: &str) -> Result<ExitCode, CliError> {
    // The log has why it waits, too.
    let source = LogSource::Task(id.to_owned());
    logs::print(client, &source, Query::new(), &LogArgs::following()).await?;
    // Its last lines were just printed.
    let End { code, reason, .. } = end_after_logs(kind, client, id).await?;
    if code != 0 {
        output::note(format_args!("{} {id} has ended: {reason}", kind.noun));
    }
    Ok(code.into())
}

/// How a task ended whose log has ended: it ends a moment later.
async fn end_after_logs(kind: &Kind, client: &Client, id: &str) -> Result<End, CliError> {
    let mut retries = Retries::default();
    let since = Instant::now();
    loop {
        let answer = retries.run(async || kind.get(client, id).await).await?;
        if let Some(end) = kind.end(&answer) {
            return Ok(end);
        }
        if since.elapsed() > WRAP_UP {
            return Err(CliError::request(format!(
                "the log of {} {id} has ended, and the {} itself has not",
                kind.noun, kind.noun
            ))
            .with_hint(format!(
                "`det {} logs -f {id}` follows it again",
                kind.group
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
