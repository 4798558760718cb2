//! `det master info|config|logs|memory|reload`: a running master's facts, configuration and logs.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_config::yaml::to_yaml;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, size, text};

/// The subcommands of `det master`.
#[derive(Debug, Subcommand)]
pub(crate) enum MasterAction {
    /// Show the version, the ids and the features of the master
    Info(DocumentArgs),
    /// Show the master's configuration, secrets masked
    Config(ConfigArgs),
    /// Show the master's own log
    Logs(LogsArgs),
    /// Show how much memory the master has, and what requests and answers may hold of it
    Memory(FormatArgs),
    /// Have the master read its configuration again and take it on without a restart: all of it, or nothing with every
    /// reason. SIGHUP to its process does the same
    Reload(ReloadArgs),
}

/// The output format of a document.
#[derive(Debug, Clone, Copy, Args)]
#[group(multiple = false)]
pub(crate) struct DocumentArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Print as YAML (the default)
    #[arg(long)]
    yaml: bool,
}

/// Options of `det master config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Option<ConfigAction>,
    #[command(flatten)]
    form: DocumentArgs,
    /// Show where every value comes from: file and line, variable, flag or default
    #[arg(long)]
    origins: bool,
}

/// Options of `det master reload`.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Only show what would change
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Show the configuration (the default)
    Show(DocumentArgs),
    /// Change the master's log until it starts again or reads its configuration again
    Set(SetArgs),
}

/// Options of `det master config set`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct SetArgs {
    /// Least important lines that are logged
    #[arg(long = "log.level", value_name = "LEVEL", ignore_case = true,
        value_parser = levels())]
    log_level: Option<String>,
    /// Whether the log is coloured
    #[arg(long = "log.color", value_name = "on|off", value_parser = ["on", "off"])]
    log_color: Option<String>,
}

/// Options of `det master logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Go on printing what is logged, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<u32>,
}

/// Carries out `det master info|config|logs|memory|reload`.
pub(crate) async fn run(action: MasterAction, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match action {
        MasterAction::Info(form) => {
            let info = client.get(&api_path(["master"]), &Query::new()).await?;
            print(&info, form)
        }
        MasterAction::Config(ConfigArgs {
            action: Some(ConfigAction::Set(args)),
            ..
        }) => set(&client, &args).await,
        MasterAction::Config(args) => {
            if args.origins {
                let path = api_path(["master", "config", "origins"]);
                let answer = client.get(&path, &Query::new()).await?;
                return origins(&answer["origins"], args.form);
            }
            let answer = client
                .get(&api_path(["master", "config"]), &Query::new())
                .await?;
            let form = match args.action {
                Some(ConfigAction::Show(form)) if form.json => form,
                _ => args.form,
            };
            print(&answer["config"], form)
        }
        MasterAction::Logs(args) => logs(&client, &args).await,
        MasterAction::Memory(args) => memory(&client, args).await,
        MasterAction::Reload(args) => reload(&client, &args).await,
    }
}

/// The names of levels in the API, and those in configuration files.
fn levels() -> PossibleValuesParser {
    PossibleValuesParser::new([
        PossibleValue::new("TRACE"),
        PossibleValue::new("DEBUG"),
        PossibleValue::new("INFO"),
        PossibleValue::new("WARNING").alias("WARN"),
        PossibleValue::new("ERROR"),
        PossibleValue::new("CRITICAL").alias("FATAL"),
    ])
}

async fn set(client: &Client, args: &SetArgs) -> Result<(), CliError> {
    let (mut log, mut paths) = (serde_json::Map::new(), Vec::new());
    if let Some(level) = &args.log_level {
        let level = match level.to_ascii_uppercase().as_str() {
            "WARN" => "LOG_LEVEL_WARNING".to_owned(),
            "FATAL" => "LOG_LEVEL_CRITICAL".to_owned(),
            level => format!("LOG_LEVEL_{level}"),
        };
        log.insert("level".to_owned(), level.into());
        paths.push("log.level");
    }
    if let Some(color) = &args.log_color {
        log.insert("color".to_owned(), (color == "on").into());
        paths.push("log.color");
    }
    let body = json!({"config": {"log": log}, "fieldMask": {"paths": paths}});
    client.patch(&api_path(["master", "config"]), &body).await?;
    output::line(
        "Changed, until the master starts again or reads its configuration again: the files are as they were.",
    )
}

fn origins(keys: &Value, form: DocumentArgs) -> Result<(), CliError> {
    if form.json {
        return output::json(keys);
    }
    let mut listing = Listing::new(["Key", "Value", "From"]);
    for key in items(keys) {
        listing.push([text(key, "path"), shown(&key["value"]), text(key, "place")]);
    }
    listing.print(Format::Table, keys)
}

async fn memory(client: &Client, args: FormatArgs) -> Result<(), CliError> {
    let answer = client
        .get(&api_path(["master", "memory"]), &Query::new())
        .await?;
    let bytes = |object: &Value, member: &str| size(object[member].as_f64().unwrap_or(0.0));
    let format = args.format();
    if format == Format::Table {
        output::line(format!(
            "{} in memory, {} at most since the start, {} threads",
            bytes(&answer, "residentBytes"),
            bytes(&answer, "peakResidentBytes"),
            text(&answer, "threads")
        ))?;
    }
    let mut listing = Listing::new([
        "Budget",
        "In Use",
        "Most So Far",
        "Limit",
        "For One User",
        "Waiting",
        "Refused",
    ]);
    for budget in items(&answer["budgets"]) {
        listing.push([
            text(budget, "name"),
            bytes(budget, "usedBytes"),
            bytes(budget, "peakBytes"),
            bytes(budget, "limitBytes"),
            bytes(budget, "shareBytes"),
            text(budget, "waiting"),
            text(budget, "refused"),
        ]);
    }
    listing.print(format, &answer)
}

async fn reload(client: &Client, args: &ReloadArgs) -> Result<(), CliError> {
    let body = json!({"validateOnly": args.check});
    let answer = client
        .post(&api_path(["master", "reload"]), Some(&body))
        .await?;
    for warning in items(&answer["warnings"]) {
        output::note(format_args!(
            "warning: {}",
            warning.as_str().unwrap_or_default()
        ));
    }
    let changes = &answer["changes"];
    let format = args.format.format();
    if format == Format::Table {
        let n = items(changes).count();
        let changes = if n == 1 { "change" } else { "changes" };
        output::line(match (n, args.check) {
            (0, _) => "Nothing differs from the configuration in force.".to_owned(),
            (n, true) => format!("The running master would take on {n} {changes}:"),
            (n, false) => format!("The master has taken on {n} {changes}:"),
        })?;
        if n == 0 {
            return Ok(());
        }
    }
    let mut listing = Listing::new(["Key", "Was", "Is", "Note"]);
    for change in items(changes) {
        let note = if change["acts"] == false {
            "kept; nothing acts on it"
        } else {
            ""
        };
        listing.push([
            text(change, "path"),
            shown(&change["from"]),
            shown(&change["to"]),
            note.to_owned(),
        ]);
    }
    listing.print(format, &answer)
}

/// A value of a configuration in a cell.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn print(document: &Value, form: DocumentArgs) -> Result<(), CliError> {
    if form.json {
        output::json(document)
    } else {
        output::write(to_yaml(document))
    }
}

async fn logs(client: &Client, args: &LogsArgs) -> Result<(), CliError> {
    let query = Query::new()
        .with("follow", args.follow)
        .with_some("offset", args.tail.map(|tail| -i64::from(tail)));
    let me = client.get(&api_path(["me"]), &Query::new()).await?;
    let whole = me["user"]["admin"] == true;
    if !whole {
        output::note(
            "only administrators read the whole log of the master; these are its lines about experiments, trials and tasks",
        );
    }
    let mut stream = client.stream(&api_path(["master", "logs"]), &query).await?;
    let mut printed = false;
    while let Some(message) = stream.next().await? {
        printed = true;
        let entry = &message["logEntry"];
        output::line(format_args!(
            "{} [{}]: {}",
            text(entry, "timestamp"),
            text(entry, "level"),
            text(entry, "message")
        ))?;
    }
    if !whole && !printed {
        return Err(
            CliError::request("the log of the master has no line that this user may read")
                .with_hint(
                    "ask an administrator for it: `det master logs` as a user with admin rights",
                ),
        );
    }
    Ok(())
}
