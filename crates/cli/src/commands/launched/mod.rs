//! What all kinds of tasks that users launch have in common on the command line: their configuration and files, their
//! lists, how they are followed, and what is done to them. The kind is a value, [`Kind`]; a group such as `det command`
//! adds how its kind is launched to [`LaunchedAction`].

mod config;
mod follow;
mod launch;
mod list;
mod other;
mod page;
mod ready;
mod steer;

use clap::Subcommand;
use det_client::{Client, ClientError, Query, Session, api_path};
use det_config::task::LaunchKind;
use det_config::yaml::to_yaml;
use serde_json::Value;

use crate::commands::failures::with_last_lines;
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::commands::lookup;
use crate::error::CliError;
use crate::output;
use crate::table::FormatArgs;
use crate::values::{items, state, text};

pub(crate) use config::ConfigArgs;
pub(crate) use follow::follow;
pub(crate) use launch::{Launch, LaunchArgs};
pub(crate) use list::ListArgs;
pub(crate) use other::{instead, require_kind};
pub(crate) use page::{OpenPageArgs, open_page, start_page};
pub(crate) use ready::until_ready;
pub(crate) use steer::{Turn, turn};

/// A kind of task, as the command line and the API name it.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The kind for checking configurations.
    pub(crate) launch: LaunchKind,
    /// What one is called in messages: `command`.
    pub(crate) noun: &'static str,
    /// The group of `det` that is about it, for hints: `cmd`.
    pub(crate) group: &'static str,
    /// The part of the API's paths for it, and the member of the answer that lists it: `commands`.
    collection: &'static str,
    /// The member of answers that has one of it: `command`.
    member: &'static str,
}

/// The kind of commands: programs that run once.
pub(crate) static COMMAND: Kind = Kind::new(LaunchKind::Command, "cmd");

/// The kind of shells: SSH servers.
pub(crate) static SHELL: Kind = Kind::new(LaunchKind::Shell, "shell");

/// The kind of notebooks: `JupyterLab`.
pub(crate) static NOTEBOOK: Kind = Kind::new(LaunchKind::Notebook, "notebook");

/// The kind of TensorBoards.
pub(crate) static TENSORBOARD: Kind = Kind::new(LaunchKind::Tensorboard, "tensorboard");

/// The kind of generic tasks, of which the API has no list, and which it calls tasks.
pub(crate) static GENERIC: Kind = Kind::new(LaunchKind::Generic, "task");

/// How a task ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The exit code of its program; 1 for one that no program's end was the end of, since it was killed or lost.
    pub(crate) code: u8,
    /// Why it ended, as the master puts it.
    pub(crate) reason: String,
    /// The last lines of its code, as the API has them, if it failed.
    last_lines: Value,
}

impl End {
    /// Why it ended, with the last lines of its code if it failed.
    pub(crate) fn in_full(&self) -> String {
        with_last_lines(&self.reason, &self.last_lines)
    }
}

impl Kind {
    /// The kind of a launch, with its group of commands.
    const fn new(launch: LaunchKind, group: &'static str) -> Self {
        let task = launch.task();
        let (noun, collection, member) = match task.collection() {
            Some(collection) => (task.noun(), collection, task.word()),
            None => ("task", "tasks", "task"),
        };
        Self {
            launch,
            noun,
            group,
            collection,
            member,
        }
    }

    /// The kind of a launch.
    pub(crate) fn of(launch: LaunchKind) -> &'static Self {
        match launch {
            LaunchKind::Command => &COMMAND,
            LaunchKind::Shell => &SHELL,
            LaunchKind::Notebook => &NOTEBOOK,
            LaunchKind::Tensorboard => &TENSORBOARD,
            LaunchKind::Generic => &GENERIC,
        }
    }

    /// `/api/v1/commands/ID`, and what is below it.
    pub(crate) fn path<'a>(&self, id: &'a str, below: impl IntoIterator<Item = &'a str>) -> String {
        let whole = [self.collection, id].into_iter().chain(below);
        api_path(whole)
    }

    /// The API's answer about one.
    pub(crate) async fn get(&self, client: &Client, id: &str) -> Result<Value, ClientError> {
        client.get(&self.path(id, []), &Query::new()).await
    }

    /// How the one in an answer about it ended; `None` = it has not.
    pub(crate) fn end(&self, answer: &Value) -> Option<End> {
        let one = &answer[self.member];
        if self.launch == LaunchKind::Generic {
            return end_of_generic(one);
        }
        (state(one, "state") == "TERMINATED").then(|| End {
            code: exit_code(&one["exitCode"]),
            reason: text(one, "exitStatus"),
            last_lines: one["lastFailure"]["lastLines"].clone(),
        })
    }
}

/// How a generic task ended, of which the API shows its attempts, the newest first.
fn end_of_generic(task: &Value) -> Option<End> {
    if task["endTime"].is_null() {
        return None;
    }
    let last = &task["allocations"][0];
    let (code, reason) = match text(task, "taskState").as_str() {
        "GENERIC_TASK_STATE_COMPLETED" => (0, text(last, "exitReason")),
        "GENERIC_TASK_STATE_CANCELED" => (1, "it was killed".to_owned()),
        _ => (
            // A task that failed did not do well, whatever the exit code of its program.
            exit_code(&last["statusCode"]).max(1),
            text(last, "exitReason"),
        ),
    };
    Some(End {
        code,
        reason,
        last_lines: task["lastFailure"]["lastLines"].clone(),
    })
}

/// An exit code of the API as that of a process; one that there is not, or that no process has, is a failure.
fn exit_code(value: &Value) -> u8 {
    let code = value.as_u64().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(1)
}

/// What is done to launched tasks of all kinds. `ID` is an id or enough of its beginning.
#[derive(Debug, Subcommand)]
pub(crate) enum LaunchedAction {
    /// List your own, those that live and those that ended in the last day (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one with its state and its owner
    Describe {
        /// Its id, or enough of its beginning
        id: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Print the configuration that one runs with
    Config {
        /// Its id, or enough of its beginning
        id: String,
    },
    /// Print what one logged
    Logs {
        /// Its id, or enough of its beginning
        id: String,
        /// Only these allocations (may be repeated)
        #[arg(long = "allocation-id", value_name = "ID")]
        allocation_ids: Vec<String>,
        #[command(flatten)]
        logs: Box<LogArgs>,
    },
    /// Let one that was launched with "preemptible: true" give its slots back
    Pause {
        /// Its id, or enough of its beginning
        id: String,
    },
    /// Let a paused one go on: it is started again
    #[command(visible_alias = "activate")]
    Unpause {
        /// Its id, or enough of its beginning
        id: String,
    },
    /// End some at once
    Kill(steer::KillArgs),
    /// Change an attribute of one
    #[command(subcommand, subcommand_value_name = "ATTRIBUTE")]
    Set(steer::SetAction),
}

/// Carries out an action on tasks of a kind.
pub(crate) async fn run(
    kind: &Kind,
    action: LaunchedAction,
    session: &Session,
) -> Result<(), CliError> {
    let client = &session.client;
    match action {
        LaunchedAction::List(args) => list::list(kind, session, &args).await,
        LaunchedAction::Describe { id, format } => {
            let id = expand(kind, client, &id).await?;
            list::describe(kind, client, &id, format.format()).await
        }
        LaunchedAction::Config { id } => {
            let id = expand(kind, client, &id).await?;
            output::write(to_yaml(&kind.get(client, &id).await?["config"]))
        }
        LaunchedAction::Logs {
            id,
            allocation_ids,
            logs,
        } => {
            let id = expand(kind, client, &id).await?;
            let logs = logs.of_allocations(allocation_ids);
            logs::print(client, &LogSource::Task(id), &logs).await
        }
        LaunchedAction::Pause { id } => {
            let id = expand(kind, client, &id).await?;
            turn(kind, client, &id, Turn::Pause).await
        }
        LaunchedAction::Unpause { id } => {
            let id = expand(kind, client, &id).await?;
            turn(kind, client, &id, Turn::Unpause).await
        }
        LaunchedAction::Kill(args) => steer::kill(kind, client, &args).await,
        LaunchedAction::Set(action) => steer::set(kind, client, action).await,
    }
}

/// The whole id of one of which the beginning is given. Errs when it is that of a task of another kind.
pub(crate) async fn expand(kind: &Kind, client: &Client, given: &str) -> Result<String, CliError> {
    let known = KnownTasks::of(kind, client, std::slice::from_ref(&given)).await?;
    known.expand(client, given).await
}

/// The tasks of a kind that beginnings of ids are looked up in: those that live, and those that ended in the last day.
struct KnownTasks<'k> {
    kind: &'k Kind,
    ids: Vec<String>,
}

impl<'k> KnownTasks<'k> {
    /// Asks for the list, unless all that is given are whole ids.
    async fn of(
        kind: &'k Kind,
        client: &Client,
        given: &[impl AsRef<str>],
    ) -> Result<Self, CliError> {
        let mut ids = Vec::new();
        if !given.iter().all(|id| lookup::is_whole_id(id.as_ref())) {
            let answer = client
                .get(&api_path([kind.collection]), &Query::new())
                .await?;
            ids.extend(items(&answer[kind.collection]).map(|one| text(one, "id")));
        }
        Ok(Self { kind, ids })
    }

    async fn expand(&self, client: &Client, given: &str) -> Result<String, CliError> {
        let Kind { noun, group, .. } = self.kind;
        if lookup::is_whole_id(given) {
            let task = GENERIC.get(client, given).await.map_err(|error| {
                let unknown = matches!(error, ClientError::NotFound { .. });
                let error = CliError::from(error);
                if unknown {
                    error.with_hint(format!(
                        "`det {group} list --all` shows the {noun}s there are"
                    ))
                } else {
                    error
                }
            })?;
            require_kind(self.kind, given, &task["task"])?;
            return Ok(given.to_owned());
        }
        if let Some(id) = lookup::by_beginning(noun, given, &self.ids)? {
            return Ok(id);
        }
        let id = lookup::task_id(client, given.to_owned()).await?;
        if lookup::is_whole_id(&id) {
            let task = GENERIC.get(client, &id).await?;
            require_kind(self.kind, &id, &task["task"])?;
        }
        Err(CliError::request(format!(
            "no {noun} that lives or ended in the last day has an id that begins with \"{given}\""
        ))
        .with_hint(format!(
            "`det {group} list --all` shows them; an older one needs its whole id"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_end_of_a_command_is_that_of_its_program() {
        let end = |state: &str, code: Value| {
            let command = json!({"state": state, "exitCode": code, "exitStatus": "why"});
            COMMAND
                .end(&json!({"command": command}))
                .map(|end| end.code)
        };
        assert_eq!(end("STATE_RUNNING", Value::Null), None);
        assert_eq!(end("STATE_TERMINATED", json!(0)), Some(0));
        assert_eq!(end("STATE_TERMINATED", json!(137)), Some(137));
        for odd in [Value::Null, json!(-1), json!(256)] {
            assert_eq!(end("STATE_TERMINATED", odd), Some(1));
        }
    }

    #[test]
    fn the_end_of_a_generic_task_is_that_of_its_last_attempt() {
        let end = |state: &str, code: Value| {
            let task = json!({
                "endTime": "2026-11-25T19:22:34Z", "taskState": format!("GENERIC_TASK_STATE_{state}"),
                "allocations": [{"statusCode": code, "exitReason": "why"}, {"statusCode": 9}],
            });
            GENERIC.end(&json!({"task": task})).map(|end| end.code)
        };
        assert_eq!(end("COMPLETED", json!(0)), Some(0));
        assert_eq!(end("ERROR", json!(3)), Some(3));
        assert_eq!(end("ERROR", json!(0)), Some(1));
        assert_eq!(end("ERROR", Value::Null), Some(1));
        assert_eq!(end("CANCELED", json!(137)), Some(1));
        let lives = json!({"task": {"endTime": null, "taskState": "GENERIC_TASK_STATE_PAUSED"}});
        assert_eq!(GENERIC.end(&lives), None);
    }
}
