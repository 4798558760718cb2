//! Lists of launched tasks.

use std::collections::HashMap;

use clap::{Args, ValueEnum};
use det_client::{Client, Query, Session, api_path};
use det_config::task::LaunchKind;
use serde_json::{Value, json};

use super::Kind;
use crate::commands::{failures, lookup};
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, joined, state, text, time};

/// The columns of a list, in the words of the `PyPI` client: scripts read them.
const COLUMNS: &[&str] = &[
    "id",
    "username",
    "description",
    "state",
    "exitStatus",
    "resourcePool",
    "workspaceName",
];
/// When one was started, a column of tables.
const STARTED: &str = "startTime";
/// Those of a list of TensorBoards.
const OF_TENSORBOARDS: &[&str] = &[
    "id",
    "username",
    "description",
    "state",
    "experimentIds",
    "trialIds",
    "exitStatus",
    "resourcePool",
    "workspaceName",
];

/// Options of the lists of launched tasks.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ListArgs {
    /// Show those of other users too
    #[arg(short, long)]
    all: bool,
    /// Print only the ids
    #[arg(short, long, conflicts_with_all = ["csv", "json"])]
    quiet: bool,
    /// Only those in this workspace
    #[arg(short, long, value_name = "NAME")]
    workspace_name: Option<String>,
    /// What to sort by
    #[arg(long, value_enum, default_value_t, value_name = "COLUMN")]
    sort_by: SortBy,
    /// In which direction
    #[arg(long, value_enum, default_value_t)]
    order_by: OrderBy,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "camelCase")]
enum SortBy {
    Id,
    Username,
    Description,
    State,
    ExitStatus,
    ResourcePool,
    WorkspaceName,
    #[default]
    StartTime,
}

impl SortBy {
    /// The member of the listed objects; `None` = they come in this order.
    fn member(self) -> Option<&'static str> {
        match self {
            Self::Id => Some("id"),
            Self::Username => Some("username"),
            Self::Description => Some("description"),
            Self::State => Some("state"),
            Self::ExitStatus => Some("exitStatus"),
            Self::ResourcePool => Some("resourcePool"),
            Self::WorkspaceName => Some("workspaceName"),
            Self::StartTime => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum OrderBy {
    #[default]
    Asc,
    Desc,
}

/// Lists tasks of a kind: the user's own, or all.
pub(super) async fn list(kind: &Kind, session: &Session, args: &ListArgs) -> Result<(), CliError> {
    let client = &session.client;
    let mut query = Query::new();
    if let Some(name) = &args.workspace_name {
        query = query.with("workspaceId", lookup::workspace_id(client, name).await?);
    }
    if !args.all {
        query = query.with("users", &session.user);
    }
    let answer = client.get(&api_path([kind.collection]), &query).await?;
    let mut found = shown(client, items(&answer[kind.collection])).await?;
    sort(&mut found, args.sort_by, args.order_by);
    if args.quiet {
        return found
            .iter()
            .try_for_each(|one| output::line(text(one, "id")));
    }
    let format = args.format.format();
    listing(kind, format, &found).print(format, &found)?;
    if format == Format::Table && found.iter().any(is_cut) {
        let group = kind.group;
        output::note(format_args!(
            "`det {group} describe ID` shows in full how one ended"
        ));
    }
    Ok(())
}

/// Shows one, as a list of one; as JSON it is the object alone.
pub(super) async fn describe(
    kind: &Kind,
    client: &Client,
    id: &str,
    format: Format,
) -> Result<(), CliError> {
    let answer = kind.get(client, id).await?;
    let found = shown(client, [&answer[kind.member]]).await?;
    listing(kind, format, &found).print(format, &found.first())?;
    let one = &answer[kind.member];
    let last_lines = &one["lastFailure"]["lastLines"];
    let has_more = is_cut(one) || items(last_lines).next().is_some();
    if format == Format::Table && has_more {
        let ended = failures::with_last_lines(&text(one, "exitStatus"), last_lines);
        output::line(format_args!("\nIt has ended: {ended}"))?;
    }
    Ok(())
}

/// The API's objects with the name of the workspace, and the state without its prefix.
async fn shown<'a>(
    client: &Client,
    found: impl IntoIterator<Item = &'a Value>,
) -> Result<Vec<Value>, CliError> {
    let workspaces = lookup::workspaces(client).await?;
    let names: HashMap<i64, String> = workspaces
        .iter()
        .filter_map(|workspace| Some((workspace["id"].as_i64()?, text(workspace, "name"))))
        .collect();
    let complete = |one: &Value| {
        let mut one = one.clone();
        one["state"] = if one["paused"] == true {
            json!("PAUSED")
        } else {
            json!(state(&one, "state"))
        };
        if let Some(id) = one["workspaceId"].as_i64() {
            let name = names.get(&id).cloned();
            one["workspaceName"] =
                json!(name.unwrap_or_else(|| format!("missing workspace id {id}")));
        }
        one
    };
    Ok(found.into_iter().map(complete).collect())
}

/// Sorts what is in the order of the launches.
fn sort(found: &mut [Value], by: SortBy, order: OrderBy) {
    if let Some(member) = by.member() {
        found.sort_by_cached_key(|one| text(one, member));
    }
    if order == OrderBy::Desc {
        found.reverse();
    }
}

/// Most characters of how one ended, in the table of a list.
const SHORT: usize = 60;

/// The rows of a list. Tables have sentences in short, and the time of the start too, which CSV has not: programs read its
/// columns.
fn listing(kind: &Kind, format: Format, found: &[Value]) -> Listing {
    let columns = match kind.launch {
        LaunchKind::Tensorboard => OF_TENSORBOARDS,
        LaunchKind::Notebook | LaunchKind::Shell | LaunchKind::Command | LaunchKind::Generic => {
            COLUMNS
        }
    };
    let started = (format == Format::Table).then_some(STARTED);
    let columns: Vec<&str> = columns
        .iter()
        .flat_map(|column| {
            let started = started.filter(|_| *column == "state");
            std::iter::once(*column).chain(started)
        })
        .collect();
    let mut listing = Listing::new(columns.iter().copied());
    for one in found {
        listing.push(columns.iter().map(|column| match (*column, &one[*column]) {
            // As the `PyPI` client writes lists.
            (_, Value::Array(_)) => format!("[{}]", joined(one, column)),
            (STARTED, _) => time(one, column),
            ("exitStatus", _) if format == Format::Table => shortened(how_ended(one), SHORT),
            _ => text(one, column),
        }));
    }
    listing
}

/// How one ended, in few words: of one whose code failed the last line of that, which most often names the error.
fn how_ended(one: &Value) -> String {
    let last = failures::lines(&one["lastFailure"]["lastLines"]).pop();
    match (one["exitCode"].as_i64(), last) {
        (Some(code), Some(last)) => format!("exit code {code}: {}", last.trim()),
        _ => text(one, "exitStatus"),
    }
}

/// Whether a table leaves out a part of how one ended.
fn is_cut(one: &Value) -> bool {
    how_ended(one).chars().count() > SHORT
}

/// A text in at most so many characters.
fn shortened(text: String, width: usize) -> String {
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_of_a_table_is_shortened() {
        let sentence = "its container ended with exit code 137 (killed by a signal)";
        let short = shortened(sentence.to_owned(), 40);
        assert_eq!(short, "its container ended with exit code 137…");
        assert_eq!(shortened(short.clone(), 40), short);
    }

    #[test]
    fn a_list_has_the_last_line_of_code_that_failed() {
        let ended = |code: Value, lines: Value| {
            how_ended(
                &json!({"exitStatus": "it ended", "exitCode": code, "lastFailure": {"lastLines": lines}}),
            )
        };
        let lines = json!([
            "Traceback (most recent call last):",
            " KeyError: \u{1b}'lr'"
        ]);
        assert_eq!(
            ended(json!(1), lines.clone()),
            "exit code 1: KeyError: \\x1b'lr'"
        );
        assert_eq!(ended(Value::Null, lines), "it ended");
        assert_eq!(ended(json!(1), json!([])), "it ended");
        assert_eq!(how_ended(&json!({"exitStatus": "", "exitCode": null})), "");
    }
}
