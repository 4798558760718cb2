//! `det config-policies`: what administrators set over the configurations of users.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use det_client::{Client, Query, api_path};
use det_config::document::{self, CheckOptions, DocumentKind};
use det_config::policies::Workload;
use det_config::yaml::to_yaml;
use serde_json::{Value, json};

use crate::commands::lookup;
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;

/// Options of `det config-policies`.
#[derive(Debug, Args)]
pub(crate) struct PoliciesArgs {
    #[command(subcommand)]
    action: PoliciesAction,
}

#[derive(Debug, Subcommand)]
enum PoliciesAction {
    /// Show policies
    Describe(DescribeArgs),
    /// Set policies, in place of those there were
    Set(SetArgs),
    /// Remove policies
    Delete(ScopeArgs),
}

#[derive(Debug, Args)]
struct ScopeArgs {
    /// Kind of work
    workload_type: WorkloadArg,
    /// Of this workspace [default: of the whole cluster]
    #[arg(short, long, value_name = "NAME")]
    workspace_name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WorkloadArg {
    /// Experiments
    #[value(alias = "experiments")]
    Experiment,
    /// Notebooks, `TensorBoards`, shells and commands
    Tasks,
}

impl WorkloadArg {
    fn workload(self) -> Workload {
        match self {
            Self::Experiment => Workload::Experiment,
            Self::Tasks => Workload::Tasks,
        }
    }

    fn wire(self) -> &'static str {
        match self {
            Self::Experiment => "EXPERIMENT",
            Self::Tasks => "NTSC",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Tasks => "task",
        }
    }
}

#[derive(Debug, Args)]
struct DescribeArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Print as JSON
    #[arg(long, conflicts_with = "yaml")]
    json: bool,
    /// Print as YAML (the default)
    #[arg(long)]
    yaml: bool,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Kind of work
    workload_type: WorkloadArg,
    /// The policies (YAML): `invariant_config` and `constraints`; - for standard input
    config_file: PathBuf,
    /// Of this workspace [default: of the whole cluster]
    #[arg(short, long, value_name = "NAME")]
    workspace_name: Option<String>,
}

impl ScopeArgs {
    async fn path(&self, client: &Client) -> Result<String, CliError> {
        let kind = self.workload_type.wire();
        Ok(match &self.workspace_name {
            None => api_path(["config-policies", "global", kind]),
            Some(name) => {
                let id = lookup::workspace_id(client, name).await?.to_string();
                api_path(["config-policies", "workspaces", &id, kind])
            }
        })
    }

    fn whose(&self) -> String {
        match &self.workspace_name {
            None => "of the cluster".to_owned(),
            Some(name) => format!("of workspace {name}"),
        }
    }
}

/// Carries out `det config-policies …`.
pub(crate) async fn run(args: PoliciesArgs, context: &Context) -> Result<(), CliError> {
    match args.action {
        PoliciesAction::Describe(args) => {
            let client = context.session().await?.client;
            let path = args.scope.path(&client).await?;
            let answer = client.get(&path, &Query::new()).await?;
            show(&answer["configPolicies"], args.json)
        }
        PoliciesAction::Set(args) => {
            let text = read_text(&args.config_file)?;
            let kind = DocumentKind::Policies(args.workload_type.workload());
            let file = shown_name(&args.config_file);
            document::check(kind, &file, &text, CheckOptions::default())
                .map_err(|errors| CliError::document("the policies", &errors))?;
            let scope = ScopeArgs {
                workload_type: args.workload_type,
                workspace_name: args.workspace_name,
            };
            let client = context.session().await?.client;
            let path = scope.path(&client).await?;
            let body = json!({
                "configPolicies": text,
                "workloadType": scope.workload_type.wire(),
            });
            let answer = client.put(&path, &body).await?;
            output::note(format_args!(
                "Set the {} policies {}:",
                scope.workload_type.name(),
                scope.whose()
            ));
            show(&answer["configPolicies"], false)
        }
        PoliciesAction::Delete(scope) => {
            let client = context.session().await?.client;
            let path = scope.path(&client).await?;
            client.delete(&path).await?;
            output::line(format_args!(
                "Removed the {} policies {}",
                scope.workload_type.name(),
                scope.whose()
            ))
        }
    }
}

fn show(policies: &Value, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::json(policies);
    }
    if policies.as_object().is_none_or(serde_json::Map::is_empty) {
        output::note("there are no such policies");
        return Ok(());
    }
    output::write(to_yaml(policies))
}
