//! `det master info|config|logs`: questions to a master.

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_config::yaml::to_yaml;
use serde_json::Value;

use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::values::text;

/// What can be asked of a master.
#[derive(Debug, Subcommand)]
pub(crate) enum MasterQuestion {
    /// Show what the master says of itself
    Info(DocumentArgs),
    /// Show the master's configuration, secrets masked
    Config(ConfigArgs),
    /// Show the master's own log
    Logs(LogsArgs),
}

/// The form of a document.
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
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Show the configuration (the default)
    Show(DocumentArgs),
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

/// Asks, and prints the answer.
pub(crate) async fn run(question: MasterQuestion, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match question {
        MasterQuestion::Info(form) => {
            let info = client.get(&api_path(["master"]), &Query::new()).await?;
            print(&info, form)
        }
        MasterQuestion::Config(args) => {
            let answer = client
                .get(&api_path(["master", "config"]), &Query::new())
                .await?;
            let form = match args.action {
                Some(ConfigAction::Show(form)) if form.json => form,
                _ => args.form,
            };
            print(&answer["config"], form)
        }
        MasterQuestion::Logs(args) => logs(&client, &args).await,
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
    let mut stream = client.stream(&api_path(["master", "logs"]), &query).await?;
    while let Some(message) = stream.next().await? {
        let entry = &message["logEntry"];
        output::line(format_args!(
            "{} [{}]: {}",
            text(entry, "timestamp"),
            text(entry, "level"),
            text(entry, "message")
        ))?;
    }
    Ok(())
}
