//! Tasks that are named in a command for tasks of another kind.

use det_taskspec::{LaunchKind, TaskKind};
use serde_json::Value;

use super::Kind;
use crate::error::CliError;
use crate::kinds;

/// Where to turn with a task of a kind.
pub(crate) fn instead(kind: TaskKind) -> String {
    match (kind, LaunchKind::of(kind)) {
        (TaskKind::CheckpointGc, _) => {
            "it ends by itself; its owner can end it with `det task kill`".to_owned()
        }
        (_, Some(launch)) => format!("`det {}` is for {}", Kind::of(launch).group, kind.plural()),
        (_, None) => "`det experiment` and `det trial` are for trials".to_owned(),
    }
}

/// Errs when a task, as the API shows it, is of another kind than the one that a command is for.
pub(crate) fn require_kind(wanted: &Kind, id: &str, task: &Value) -> Result<(), CliError> {
    let kind = kinds::of_task(task)?;
    let wanted = wanted.launch.task();
    if kind == wanted {
        return Ok(());
    }
    let plural = match wanted {
        TaskKind::Generic => format!("{} (`det task create`)", wanted.plural()),
        TaskKind::Trial
        | TaskKind::Command
        | TaskKind::Notebook
        | TaskKind::Shell
        | TaskKind::Tensorboard
        | TaskKind::CheckpointGc => wanted.plural().to_owned(),
    };
    Err(CliError::request(format!(
        "task {id} is {}, and this command is for {plural}",
        kind.one()
    ))
    .with_hint(instead(kind)))
}
