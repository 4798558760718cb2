//! Ending launched tasks, and changing them.

use clap::{Args, Subcommand};
use det_client::Client;
use serde_json::json;

use super::{End, GENERIC, Kind, Known, expand};
use crate::error::CliError;
use crate::output;
use crate::values::priority_orders;

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
    let known = Known::of(kind, client, &args.ids).await?;
    let mut ids = Vec::new();
    for given in &args.ids {
        match known.expand(given) {
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
pub(crate) fn note_ended(kind: &Kind, id: &str, end: &End) {
    output::note(format_args!(
        "{} {id} has ended already ({}), so there is nothing to kill",
        kind.noun, end.reason
    ));
}

fn note_skipped(error: &CliError) {
    output::note(format_args!("skipped: {error}"));
}

/// Has a task rest or go on: the API's name of that, and the word that reports it.
pub(super) async fn turn(
    kind: &Kind,
    client: &Client,
    id: &str,
    (action, done): (&str, &str),
) -> Result<(), CliError> {
    let id = expand(kind, client, id).await?;
    client.post(&GENERIC.path(&id, [action]), None).await?;
    output::line(format_args!("{done} {} {id}", kind.noun))
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
