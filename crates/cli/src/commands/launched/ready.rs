//! Waiting until the service of a launched task can be used.

use std::process::ExitCode;
use std::time::Duration;

use det_client::{Client, ClientError, LineStream, Query, api_path};
use serde_json::Value;

use super::Kind;
use crate::commands::logs::{self, LogSource};
use crate::commands::watching::{Retries, until_ctrl_c};
use crate::error::{CliError, Exit};
use crate::output;
use crate::values::text;

/// The pause between two looks at a task whose changes cannot be followed.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until a task is ready, and prints its log meanwhile, which contains what it waits for. Errs with the reason when it
/// ends or is paused before. `Some` = Ctrl-C has ended the waiting, not the task.
pub(crate) async fn until_ready(
    kind: &Kind,
    client: &Client,
    id: &str,
) -> Result<Option<ExitCode>, CliError> {
    let Kind { noun, group, .. } = kind;
    if is_ready(kind, client, id, &look(client, id).await?).await? {
        return Ok(None);
    }
    output::note(format_args!("waiting for {noun} {id} to be ready"));
    let mut ready = false;
    let waiting = async {
        let source = LogSource::Task(id.to_owned());
        let mut wait = std::pin::pin!(wait(kind, client, id));
        tokio::select! {
            result = &mut wait => result?,
            // Its end is that of the task, or one of the connection: either is noticed by the other.
            () = logs::note_all(client, &source) => wait.await?,
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

async fn wait(kind: &Kind, client: &Client, id: &str) -> Result<(), CliError> {
    let mut retries = Retries::default();
    let mut changes = Changes::default();
    loop {
        let task = retries.run(async || look(client, id).await).await?;
        if is_ready(kind, client, id, &task).await? {
            return Ok(());
        }
        changes.next(client, id, &task).await;
    }
}

/// The API's object of a task.
async fn look(client: &Client, id: &str) -> Result<Value, ClientError> {
    let mut answer = client.get(&api_path(["tasks", id]), &Query::new()).await?;
    Ok(answer["task"].take())
}

/// Whether a task is ready; errs when it has ended, and when it is paused, because nothing but a user ends that.
async fn is_ready(kind: &Kind, client: &Client, id: &str, task: &Value) -> Result<bool, CliError> {
    let Kind { noun, group, .. } = kind;
    if task["endTime"].is_null() {
        if task["allocations"][0]["isReady"] == true {
            return Ok(true);
        }
        if kind.get(client, id).await?[kind.member]["paused"] == true {
            return Err(CliError::request(format!("{noun} {id} is paused"))
                .with_hint(format!("`det {group} unpause {id}` lets it go on")));
        }
        return Ok(false);
    }
    let reason = kind.end(&kind.get(client, id).await?);
    let reason = reason.map_or_else(|| "it has terminated".to_owned(), |end| end.in_full());
    Err(
        CliError::request(format!("{noun} {id} has ended: {reason}")).with_hint(format!(
            "`det {group} logs {id}` shows what it logged, `det {group} start` starts another one"
        )),
    )
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
