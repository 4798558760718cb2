//! Lists of launched tasks.

use std::collections::HashMap;

use clap::{Args, ValueEnum};
use det_client::{Client, Query, Session, api_path};
use det_config::task::LaunchKind;
use serde_json::{Value, json};

use super::Kind;
use crate::commands::lookup;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, joined, state, text};

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
    listing(kind, &found).print(args.format.format(), &found)
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
    listing(kind, &found).print(format, &found.first())
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

fn listing(kind: &Kind, found: &[Value]) -> Listing {
    let columns = match kind.launch {
        LaunchKind::TensorBoard => OF_TENSORBOARDS,
        LaunchKind::Notebook | LaunchKind::Shell | LaunchKind::Command | LaunchKind::Generic => {
            COLUMNS
        }
    };
    let mut listing = Listing::new(columns.iter().copied());
    for one in found {
        listing.push(columns.iter().map(|column| match &one[*column] {
            // As the `PyPI` client writes lists.
            Value::Array(_) => format!("[{}]", joined(one, column)),
            _ => text(one, column),
        }));
    }
    listing
}
