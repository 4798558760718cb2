//! `det template`: configurations that those of experiments and tasks are merged over.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_config::document::{self, CheckOptions, DocumentKind};
use det_config::errors::ConfigErrors;
use det_config::yaml::{self, to_yaml};
use serde_json::{Value, json};

use crate::commands::lookup;
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;
use crate::table::{FormatArgs, Listing};
use crate::values::{items, text};

/// Options of `det template`.
#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    action: Option<TemplateAction>,
}

#[derive(Debug, Subcommand)]
enum TemplateAction {
    /// List templates (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what a template sets
    Describe(NameArgs),
    /// Add a template
    Create(CreateArgs),
    /// Add a template, or give the one of this name another content
    Set(FileArgs),
    /// Change a part of a template
    SetValue(SetValueArgs),
    /// Give a template another name
    Rename(RenameArgs),
    /// Remove a template; what was made of it stays as it is
    #[command(visible_aliases = ["rm", "delete"])]
    Remove(NameArgs),
}

#[derive(Debug, Default, Args)]
struct ListArgs {
    /// Show what the templates set
    #[arg(short, long)]
    details: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Name of the template
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    template_name: String,
}

#[derive(Debug, Args)]
struct FileArgs {
    /// Name of the template
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    template_name: String,
    /// What it sets (YAML); - for standard input
    template_file: PathBuf,
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    template: FileArgs,
    /// Workspace to put the template in
    #[arg(short, long, value_name = "NAME")]
    workspace_name: Option<String>,
}

#[derive(Debug, Args)]
struct SetValueArgs {
    #[command(subcommand)]
    part: TemplatePart,
}

#[derive(Debug, Subcommand)]
enum TemplatePart {
    /// Give it another content
    Config(FileArgs),
}

#[derive(Debug, Args)]
struct RenameArgs {
    /// Name of the template
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    template_name: String,
    /// Its name from now on
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    new_name: String,
}

fn path(name: &str) -> String {
    api_path(["templates", name])
}

/// Carries out `det template …`.
pub(crate) async fn run(args: TemplateArgs, context: &Context) -> Result<(), CliError> {
    let action = args
        .action
        .unwrap_or_else(|| TemplateAction::List(ListArgs::default()));
    match action {
        TemplateAction::List(args) => list(&context.session().await?.client, &args).await,
        TemplateAction::Describe(NameArgs { template_name }) => {
            let client = context.session().await?.client;
            let answer = client.get(&path(&template_name), &Query::new()).await?;
            output::write(to_yaml(&answer["template"]["config"]))
        }
        TemplateAction::Create(args) => {
            let (name, config) = read(&args.template)?;
            let client = context.session().await?.client;
            let workspace = match &args.workspace_name {
                Some(name) => lookup::workspace_id(&client, name).await?,
                None => 0,
            };
            let body = json!({"name": name, "config": config, "workspaceId": workspace});
            client.post(&path(name), Some(&body)).await?;
            output::line(format_args!("Created template {name}"))
        }
        TemplateAction::Set(args) => {
            let (name, config) = read(&args)?;
            let client = context.session().await?.client;
            let body = json!({"name": name, "config": config});
            client.put(&path(name), &body).await?;
            output::line(format_args!("Set template {name}"))
        }
        TemplateAction::SetValue(SetValueArgs {
            part: TemplatePart::Config(args),
        }) => {
            let (name, config) = read(&args)?;
            let client = context.session().await?.client;
            client.patch(&path(name), &config).await?;
            output::line(format_args!("Updated template {name}"))
        }
        TemplateAction::Rename(RenameArgs {
            template_name,
            new_name,
        }) => {
            let client = context.session().await?.client;
            let body = json!({"oldName": template_name, "newName": new_name});
            client
                .patch(&api_path(["template", "rename"]), &body)
                .await?;
            output::line(format_args!(
                "Renamed template {template_name} to {new_name}"
            ))
        }
        TemplateAction::Remove(NameArgs { template_name }) => {
            let client = context.session().await?.client;
            client.delete(&path(&template_name)).await?;
            output::line(format_args!("Removed template {template_name}"))
        }
    }
}

/// The name and the content of a template that is to be stored. It is checked as the master does, so that errors have their
/// positions in the file.
fn read(args: &FileArgs) -> Result<(&str, Value), CliError> {
    let unusable = |errors: ConfigErrors| CliError::document("the template", &errors);
    let (file, text) = (
        shown_name(&args.template_file),
        read_text(&args.template_file)?,
    );
    document::check(
        DocumentKind::Template,
        &file,
        &text,
        CheckOptions::default(),
    )
    .map_err(unusable)?;
    let config = yaml::parse(&text).map_err(|errors| unusable(errors.in_file(&file)))?;
    Ok((&args.template_name, config.to_value()))
}

async fn list(client: &Client, args: &ListArgs) -> Result<(), CliError> {
    let answer = client.get(&api_path(["templates"]), &Query::new()).await?;
    let names: HashMap<i64, String> = lookup::workspaces(client)
        .await?
        .iter()
        .filter_map(|workspace| Some((workspace["id"].as_i64()?, text(workspace, "name"))))
        .collect();
    let mut headers = vec!["Name", "Workspace"];
    if args.details {
        headers.push("Config");
    }
    let mut listing = Listing::new(headers);
    for template in items(&answer["templates"]) {
        let workspace = template["workspaceId"]
            .as_i64()
            .and_then(|id| names.get(&id).cloned());
        let mut row = vec![text(template, "name"), workspace.unwrap_or_default()];
        if args.details {
            row.push(to_yaml(&template["config"]).trim_end().to_owned());
        }
        listing.push(row);
    }
    listing.print(args.format.format(), &answer["templates"])
}
