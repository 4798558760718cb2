//! Waiting until the service of a launched task can be used.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use det_client::{Client, ClientError, LineStream, Query, api_path};
use serde_json::Value;

use super::Kind;
use crate::commands::logs::{self, LogSource};
use crate::commands::watching::{Retries, until_ctrl_c};
use crate::error::{CliError, Exit};
use crate::output;
use crate::values::{state, text};

/// The pause between two looks at a task whose changes cannot be followed.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the log of a task may go on after its end.
const WRAP_UP: Duration = Duration::from_secs(5);

/// Waits until a task is ready, and prints its log meanwhile, which contains what it waits for; the log of one that is being
/// ended has no answer to that. Errs with the reason when it ends or is paused before. `Some` = Ctrl-C has ended the waiting,
/// not the task.
pub(crate) async fn until_ready(
    kind: &Kind,
    client: &Client,
    id: &str,
) -> Result<Option<ExitCode>, CliError> {
    let Kind { noun, group, .. } = kind;
    let first = look(client, id).await?;
    let is_ending = match readiness(kind, client, id, &first).await? {
        Readiness::Ready => return Ok(None),
        Readiness::Ended(reason) => return Err(has_ended(kind, id, &reason, "")),
        Readiness::Ending => true,
        Readiness::Waiting => false,
    };
    let until = if is_ending { "end" } else { "be ready" };
    output::note(format_args!("waiting for {noun} {id} to {until}"));
    let mut ready = false;
    let waiting = async {
        let last = RefCell::new(String::new());
        let ended = if is_ending {
            wait(kind, client, id).await?
        } else {
            wait_with_log(kind, client, id, &last).await?
        };
        if let Some(reason) = ended {
            return Err(has_ended(kind, id, &reason, &last.borrow()));
        }
        ready = true;
        Ok(ExitCode::SUCCESS)
    };
    let goes_on = format!(
        "{noun} {id} goes on; open it with `det {group} open {id}`, end it with `det {group} kill {id}`"
    );
    until_ctrl_c(goes_on, waiting).await?;
    Ok((!ready).then(|| Exit::Interrupted.into()))
}

/// Waits as [`wait`] does, and prints the log, to its end if the task ends. `last` = what was logged last.
async fn wait_with_log(
    kind: &Kind,
    client: &Client,
    id: &str,
    last: &RefCell<String>,
) -> Result<Option<String>, CliError> {
    let source = LogSource::Task(id.to_owned());
    let mut log = std::pin::pin!(logs::note_all(client, &source, last));
    let mut wait = std::pin::pin!(wait(kind, client, id));
    tokio::select! {
        result = &mut wait => {
            let ended = result?;
            if ended.is_some() {
                // The reason is not repeated where the log has it: a log that takes longer is left.
                let _ = tokio::time::timeout(WRAP_UP, log).await;
            }
            Ok(ended)
        }
        // Its end is that of the task, or one of the connection: either is noticed by the other.
        () = &mut log => wait.await,
    }
}

/// Waits until a task is ready, or has ended: then the result is why.
async fn wait(kind: &Kind, client: &Client, id: &str) -> Result<Option<String>, CliError> {
    let mut retries = Retries::default();
    let mut changes = Changes::default();
    loop {
        let task = retries.run(async || look(client, id).await).await?;
        match readiness(kind, client, id, &task).await? {
            Readiness::Ready => return Ok(None),
            Readiness::Ended(reason) => return Ok(Some(reason)),
            Readiness::Waiting | Readiness::Ending => {}
        }
        changes.next(client, id, &task).await;
    }
}

/// The API's object of a task.
async fn look(client: &Client, id: &str) -> Result<Value, ClientError> {
    let mut answer = client.get(&api_path(["tasks", id]), &Query::new()).await?;
    Ok(answer["task"].take())
}

/// Whether the service of a task can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Readiness {
    Ready,
    Waiting,
    /// It was asked to end, and is started again only if it was to be.
    Ending,
    /// It has ended, and why.
    Ended(String),
}

/// Whether a task is ready; errs when it is paused, because nothing but a user ends that.
async fn readiness(
    kind: &Kind,
    client: &Client,
    id: &str,
    task: &Value,
) -> Result<Readiness, CliError> {
    let Kind { noun, group, .. } = kind;
    let has_ended = !task["endTime"].is_null();
    if !has_ended && task["allocations"][0]["isReady"] == true {
        return Ok(Readiness::Ready);
    }
    let answer = kind.get(client, id).await?;
    if has_ended {
        let end = kind.end(&answer);
        let reason = end.map_or_else(|| "it has terminated".to_owned(), |end| end.in_full());
        return Ok(Readiness::Ended(reason));
    }
    let one = &answer[kind.member];
    if one["paused"] == true {
        return Err(CliError::request(format!("{noun} {id} is paused"))
            .with_hint(format!("`det {group} unpause {id}` lets it go on")));
    }
    Ok(match state(one, "state").as_str() {
        "TERMINATING" => Readiness::Ending,
        _ => Readiness::Waiting,
    })
}

/// The error for a task that has ended, and why. `logged` = the last line that it logged itself, if that is on the screen: where
/// it is the end of the reason, it is not repeated.
fn has_ended(kind: &Kind, id: &str, reason: &str, logged: &str) -> CliError {
    let Kind { noun, group, .. } = kind;
    // Lines of code below the reason are shown together.
    let rest = reason
        .strip_suffix(logged)
        .filter(|_| !reason.contains('\n'));
    let rest = rest.map(|rest| rest.trim_end_matches([':', ' ']));
    let shown = rest.filter(|rest| !rest.is_empty()).unwrap_or(reason);
    let message = format!("{noun} {id} has ended: {shown}");
    CliError::request(message).with_hint(format!(
        "`det {group} logs {id}` shows what it logged, `det {group} start` starts another one"
    ))
}

/// The changes of a task's newest attempt, in the master's record.
#[derive(Default)]
struct Changes {
    allocation: String,
    /// The last event that was seen.
    after: String,
    stream: Option<LineStream>,
}

impl Changes {
    /// Waits until something has changed, or might have: a stream ends with the master, and there is none for callers that
    /// may not read the record, such as tasks.
    async fn next(&mut self, client: &Client, id: &str, task: &Value) {
        let newest = text(&task["allocations"][0], "allocationId");
        if newest != self.allocation {
            *self = Self {
                allocation: newest,
                ..Self::default()
            };
        }
        match self.try_next(client, id).await {
            Ok(Some(event)) => self.after = text(&event, "id"),
            Ok(None) | Err(_) => {
                self.stream = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn try_next(&mut self, client: &Client, id: &str) -> Result<Option<Value>, ClientError> {
        if self.stream.is_none() {
            let (kind, subject) = match self.allocation.as_str() {
                "" => ("task", id),
                allocation => ("allocation", allocation),
            };
            let query = Query::new()
                .with("follow", true)
                .with("subjectKind", kind)
                .with("subjectId", subject)
                .with_some("after", Some(&self.after).filter(|id| !id.is_empty()));
            self.stream = Some(client.stream(&api_path(["events"]), &query).await?);
        }
        match &mut self.stream {
            Some(stream) => stream.next().await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::launched::TENSORBOARD;

    #[test]
    fn a_reason_that_the_log_has_shown_is_not_repeated() {
        let reason = "the task could not be started (exit code 1): there are no files";
        let message =
            |reason: &str, logged| has_ended(&TENSORBOARD, "t", reason, logged).to_string();
        for (logged, expected) in [
            (
                "",
                "TensorBoard t has ended: the task could not be started (exit code 1): there are no files",
            ),
            (
                "other",
                "TensorBoard t has ended: the task could not be started (exit code 1): there are no files",
            ),
            (
                "there are no files",
                "TensorBoard t has ended: the task could not be started (exit code 1)",
            ),
            (
                "Allocation t.1 ended: the task could not be started (exit code 1): there are no files",
                "TensorBoard t has ended: the task could not be started (exit code 1): there are no files",
            ),
            (
                "the task could not be started (exit code 1): there are no files",
                "TensorBoard t has ended: the task could not be started (exit code 1): there are no files",
            ),
        ] {
            assert_eq!(message(reason, logged), expected);
        }
        let several = "it failed; the last lines of its code:\n    boom";
        assert!(message(several, "boom").ends_with(several));
    }
}
