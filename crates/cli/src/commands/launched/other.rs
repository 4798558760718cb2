//! Tasks that are named in a command for tasks of another kind.

use det_config::task::LaunchKind;
use serde_json::Value;

use super::Kind;
use crate::error::CliError;
use crate::values::text;

/// What a kind of task is called in the API, in a sentence, and where to turn with one.
struct OtherKind {
    on_the_wire: &'static str,
    one: &'static str,
    instead: &'static str,
    /// The kind of launched tasks that it is; `None` = users launch none.
    launch: Option<LaunchKind>,
}

const KINDS: [OtherKind; 7] = [
    OtherKind {
        on_the_wire: "TASK_TYPE_TRIAL",
        one: "a trial",
        instead: "`det experiment` and `det trial` are for trials",
        launch: None,
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_COMMAND",
        one: "a command",
        instead: "`det cmd` is for commands",
        launch: Some(LaunchKind::Command),
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_NOTEBOOK",
        one: "a notebook",
        instead: "`det notebook` is for notebooks",
        launch: Some(LaunchKind::Notebook),
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_SHELL",
        one: "a shell",
        instead: "`det shell` is for shells",
        launch: Some(LaunchKind::Shell),
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_TENSORBOARD",
        one: "a TensorBoard",
        instead: "`det tensorboard` is for TensorBoards",
        launch: Some(LaunchKind::TensorBoard),
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_GENERIC",
        one: "a generic task",
        instead: "`det task` is for generic tasks",
        launch: Some(LaunchKind::Generic),
    },
    OtherKind {
        on_the_wire: "TASK_TYPE_CHECKPOINT_GC",
        one: "a deletion of checkpoints",
        instead: "it ends by itself; its owner can end it with `det task kill`",
        launch: None,
    },
];

/// Errs when a task, as the API shows it, is of another kind than the one that a command is for.
pub(crate) fn require_kind(wanted: &Kind, id: &str, task: &Value) -> Result<(), CliError> {
    let kind = text(task, "taskType");
    let other = KINDS.iter().find(|one| one.on_the_wire == kind);
    let Some(other) = other.filter(|one| one.launch != Some(wanted.launch)) else {
        return Ok(());
    };
    let plural = match wanted.launch {
        LaunchKind::Generic => "generic tasks (`det task create`)".to_owned(),
        LaunchKind::Command
        | LaunchKind::Notebook
        | LaunchKind::Shell
        | LaunchKind::TensorBoard => format!("{}s", wanted.noun),
    };
    Err(CliError::request(format!(
        "task {id} is {}, and this command is for {plural}",
        other.one
    ))
    .with_hint(other.instead))
}
