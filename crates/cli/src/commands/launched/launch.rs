//! Launching a task of one of the kinds that have a list of their own in the API.

use std::path::PathBuf;

use clap::Args;
use det_client::{Client, ClientError, api_path};
use det_config::yaml::to_yaml;
use serde_json::{Value, json};

use super::Kind;
use super::config::{ConfigArgs, Volume, add_entrypoint, add_volumes, parse_volume};
use crate::commands::lookup;
use crate::commands::publishing::PublishArgs;
use crate::commands::submission::{UserDocument, warn};
use crate::error::CliError;
use crate::output;
use crate::values::text;

/// The flags of a launch.
#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// Configuration (YAML); - for standard input
    #[arg(long, value_name = "PATH")]
    config_file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Directory of the agent's machine to mount in the container (may be repeated)
    #[arg(short, long = "volume", value_name = "HOST_PATH:CONTAINER_PATH[:ro|:rw]", value_parser = parse_volume)]
    volumes: Vec<Volume>,
    /// Workspace to run it in [default: Uncategorized]
    #[arg(short, long, value_name = "NAME")]
    workspace_name: Option<String>,
    /// Name of a template to build upon
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Do not follow it: print its id and return
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Print the configuration that it would have, and start nothing
    #[arg(long, conflicts_with = "detach")]
    pub(crate) preview: bool,
}

/// A launch that was checked as far as it can be without a master.
#[derive(Debug)]
pub(crate) struct Launch {
    kind: &'static Kind,
    written: UserDocument,
    /// Whether the configuration has something to run, here or, possibly, in its template.
    pub(crate) has_entrypoint: bool,
    workspace_name: Option<String>,
    body: Value,
}

impl Launch {
    /// Reads and checks the configuration, and gathers the files. `words` is what to run unless the configuration names it.
    pub(crate) fn prepare(
        kind: &'static Kind,
        mut args: LaunchArgs,
        words: &[String],
    ) -> Result<Self, CliError> {
        let partial = args.template.is_some();
        let written = args
            .config
            .read(kind, args.config_file.as_deref(), partial)?;
        let mut config = written.to_value()?;
        add_volumes(&mut config, &args.volumes)?;
        let own = config["entrypoint"].clone();
        let has_entrypoint = add_entrypoint(&mut config, words) || partial;
        if !words.is_empty() && config["entrypoint"] == own {
            output::note(format_args!(
                "warning: the configuration has an entrypoint, and it is what runs; left out: {}",
                words.join(" ")
            ));
        }
        let mut body = json!({"config": config, "files": args.config.files()?});
        if let Some(template) = args.template {
            body["templateName"] = json!(template);
        }
        Ok(Self {
            kind,
            written,
            has_entrypoint,
            workspace_name: args.workspace_name,
            body,
        })
    }

    /// Gives it the ports that are to be published.
    pub(crate) fn publish(&mut self, ports: &PublishArgs) -> Result<(), CliError> {
        ports.declare_in(&mut self.body["config"])?;
        Ok(())
    }

    /// The kind of task that is launched.
    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Asks for something that only this kind has.
    pub(crate) fn ask(&mut self, member: &str, value: Value) {
        self.body[member] = value;
    }

    /// Prints the configuration that it would have; nothing is launched.
    pub(crate) async fn preview(mut self, client: &Client) -> Result<(), CliError> {
        self.ask("preview", json!(true));
        let answer = self.post(client).await?;
        warn(&format!("the {}", self.kind.noun), &answer["messages"]);
        output::write(to_yaml(&answer["config"]))
    }

    /// The master's answer to the launch.
    async fn post(&mut self, client: &Client) -> Result<Value, CliError> {
        if let Some(name) = &self.workspace_name {
            self.body["workspaceId"] = json!(lookup::workspace_id(client, name).await?);
        }
        let path = api_path([self.kind.collection]);
        let answer = client.post(&path, Some(&self.body)).await;
        answer.map_err(|error| self.written.refusal(error))
    }

    /// Has the master launch it; returns its id and its description.
    pub(crate) async fn send(mut self, client: &Client) -> Result<(String, String), CliError> {
        let answer = self.post(client).await?;
        let one = &answer[self.kind.member];
        let id = text(one, "id");
        if id.is_empty() {
            return Err(ClientError::BadAnswer {
                url: client.master().join(&api_path([self.kind.collection])),
                reason: format!("it has no {}", self.kind.noun),
            }
            .into());
        }
        let what = format!("the {}", self.kind.noun);
        warn(&what, &answer["warnings"]);
        warn(&what, &answer["messages"]);
        Ok((id, text(one, "description")))
    }
}
