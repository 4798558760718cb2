//! Ending launched tasks, and changing them.

use clap::{Args, Subcommand};
use det_client::Client;
use serde_json::json;

use super::{End, GENERIC, Kind, KnownTasks, expand};
use crate::error::CliError;
use crate::output;
use crate::values::{priority_orders, text};

/// Options of `kill`.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Ids, or enough of their beginnings
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Go on after what is refused, and count it as no failure
    #[arg(short, long)]
    force: bool,
}

/// The attributes of a launched task that can be changed.
#[derive(Debug, Subcommand)]
pub(crate) enum SetAction {
    #[doc = concat!("Set the priority, 1 to 99 (", priority_orders!(), ")")]
    Priority {
        /// Its id, or enough of its beginning
        id: String,
        /// The new priority
        #[arg(value_parser = clap::value_parser!(i64).range(1..=99))]
        priority: i64,
    },
}

/// Ends tasks at once. One id that is not known keeps all of them alive, unless failures are ignored.
pub(super) async fn kill(kind: &Kind, client: &Client, args: &KillArgs) -> Result<(), CliError> {
    let known = KnownTasks::of(kind, client, &args.ids).await?;
    let mut ids = Vec::new();
    for given in &args.ids {
        match known.expand(client, given).await {
            Ok(id) => ids.push(id),
            Err(error) if args.force => note_skipped(&error),
            Err(error) => return Err(error),
        }
    }
    for (index, id) in ids.iter().enumerate() {
        match kill_one(kind, client, id).await {
            Ok(()) => {}
            Err(error) if args.force => note_skipped(&error),
            Err(error) => {
                for left in &ids[index + 1..] {
                    output::note(format_args!("{} {left} was not killed", kind.noun));
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Ends one at once, or reports that it had ended before.
async fn kill_one(kind: &Kind, client: &Client, id: &str) -> Result<(), CliError> {
    if let Some(end) = kind.end(&kind.get(client, id).await?) {
        note_ended(kind, id, &end);
        return Ok(());
    }
    client.post(&kind.path(id, ["kill"]), None).await?;
    output::line(format_args!("Killed {} {id}", kind.noun))
}

/// Reports that what is to be killed has ended.
fn note_ended(kind: &Kind, id: &str, end: &End) {
    output::note(format_args!(
        "{} {id} has ended already ({}), so there is nothing to kill",
        kind.noun, end.reason
    ));
}

fn note_skipped(error: &CliError) {
    output::note(format_args!("skipped: {error}"));
}

/// Whether a task is to rest or to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It gives its slots back.
    Pause,
    /// It is started again.
    Unpause,
}

/// Has a task rest or go on, and reports what that has changed. What belongs to it may have been changed even where it rests or
/// goes on already.
pub(crate) async fn turn(
    kind: &Kind,
    client: &Client,
    id: &str,
    turn: Turn,
) -> Result<(), CliError> {
    let before = kind.get(client, id).await?;
    let before = &before[kind.member];
    let state = text(before, "taskState");
    let paused = before["paused"] == true || state == "GENERIC_TASK_STATE_PAUSED";
    // One that is still stopping for a pause is kept from it.
    let stopping = state == "GENERIC_TASK_STATE_STOPPING_PAUSED";
    let action = match turn {
        Turn::Pause => "pause",
        Turn::Unpause => "unpause",
    };
    client.post(&GENERIC.path(id, [action]), None).await?;
    let noun = kind.noun;
    match turn {
        Turn::Pause if paused => output::note(format_args!("{noun} {id} was paused already")),
        Turn::Unpause if !paused && !stopping => {
            output::note(format_args!("{noun} {id} was not paused: it goes on"));
        }
        Turn::Pause => return output::line(format_args!("Paused {noun} {id}")),
        Turn::Unpause => return output::line(format_args!("Unpaused {noun} {id}")),
    }
    Ok(())
}

/// Changes an attribute of a task.
pub(super) async fn set(kind: &Kind, client: &Client, action: SetAction) -> Result<(), CliError> {
    let SetAction::Priority { id, priority } = action;
    let id = expand(kind, client, &id).await?;
    let body = json!({"priority": priority});
    client
        .post(&kind.path(&id, ["set_priority"]), Some(&body))
        .await?;
    output::line(format_args!(
        "Set the priority of {} {id} to {priority}",
        kind.noun
    ))
}
