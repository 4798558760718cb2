//! Following a launched task until its end.

use std::process::ExitCode;
use std::time::Duration;

use det_client::Client;
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
    let following = LogArgs::following();
    let last = logs::print_until_end(client, &source, &following).await?;
    // The last lines of its code were just printed.
    let End { code, reason, .. } = end_after_logs(kind, client, id).await?;
    if code != 0 {
        let seen = last.filter(|_| output::stdout_is_terminal());
        output::note(end_note(kind, id, (code, &reason), seen.as_deref()));
    }
    Ok(code.into())
}

/// How a task failed. `seen` = the last line of its log, where that has been printed to the same screen: if it has the reason,
/// that is not repeated.
fn end_note(kind: &Kind, id: &str, (code, reason): (u8, &str), seen: Option<&str>) -> String {
    let noun = kind.noun;
    if seen.is_some_and(|line| !reason.is_empty() && line.contains(reason)) {
        format!("{noun} {id} has ended with exit code {code}")
    } else {
        format!("{noun} {id} has ended: {reason}")
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::launched::COMMAND;

    #[test]
    fn a_reason_that_is_on_the_screen_already_is_not_repeated() {
        let reason = "the task could not be started (exit code 1): no Python";
        let note = |seen| end_note(&COMMAND, "c", (1, reason), seen);
        let whole = format!("command c has ended: {reason}");
        assert_eq!(note(None), whole);
        assert_eq!(note(Some("step 7\n")), whole);
        let line = format!("Allocation c.1 ended: {reason}\n");
        assert_eq!(note(Some(&line)), "command c has ended with exit code 1");
        assert_eq!(
            end_note(&COMMAND, "c", (1, ""), Some(&line)),
            "command c has ended: "
        );
    }
}
