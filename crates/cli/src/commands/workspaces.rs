//! `det workspace`: workspaces, their defaults for the work in them, and their limits.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use det_client::{Client, ClientError, Query, api_path};
use det_config::{ConfigError, ConfigErrors, yaml};
use serde_json::{Value, json};

use crate::commands::namespaces::{self, BindingAction, NamespaceArgs};
use crate::commands::projects::{self, ListArgs as ListProjectsArgs};
use crate::commands::{deletion, lookup};
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;
use crate::paging::{OrderArgs, PageArgs};
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{amount, indented, items, text};

/// Options of `det workspace`.
#[derive(Debug, Args)]
pub(crate) struct WorkspaceArgs {
    #[command(subcommand)]
    action: Option<WorkspaceAction>,
}

#[derive(Debug, Subcommand)]
enum WorkspaceAction {
    /// List workspaces (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// List the projects of a workspace
    ListProjects(ListProjectsArgs),
    /// List the resource pools that work in a workspace may use
    ListPools(NameArgs),
    /// Show a workspace
    Describe(NameArgs),
    /// Create a workspace
    Create(Box<CreateArgs>),
    /// Change a workspace
    Edit(Box<EditArgs>),
    /// Bind workspaces to Kubernetes namespaces
    #[command(subcommand)]
    Bindings(BindingAction),
    /// Limit the slots that work in a workspace may have at once
    #[command(subcommand)]
    ResourceQuota(QuotaAction),
    /// Put a workspace away with its projects; nothing more can be put there
    Archive(OneArgs),
    /// Take an archived workspace out again
    Unarchive(OneArgs),
    /// Delete a workspace with everything in it
    Delete(DeleteArgs),
}

#[derive(Debug, Default, Args)]
struct ListArgs {
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    paging: PageArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// Name of the workspace
    workspace_name: String,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Name of the workspace
    workspace_name: String,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Name of the workspace
    workspace_name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
struct SettingArgs {
    /// UID on the agent to run all users' tasks in it as; for administrators, like the next three
    #[arg(long, value_name = "UID")]
    agent_uid: Option<i64>,
    /// User on the agent to run tasks as
    #[arg(long, value_name = "NAME")]
    agent_user: Option<String>,
    /// GID on the agent to run tasks as
    #[arg(long, value_name = "GID")]
    agent_gid: Option<i64>,
    /// Group on the agent to run tasks as
    #[arg(long, value_name = "NAME")]
    agent_group: Option<String>,
    /// Checkpoint storage of experiments in it, as JSON; {} for the cluster's
    #[arg(long, value_name = "JSON")]
    checkpoint_storage_config: Option<String>,
    /// The same from a file, YAML or JSON
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "checkpoint_storage_config"
    )]
    checkpoint_storage_config_file: Option<PathBuf>,
    /// Pool of work with slots that names none; "" for the cluster's default
    #[arg(long, value_name = "POOL")]
    default_compute_pool: Option<String>,
    /// Pool of work without slots that names none; "" for the cluster's default
    #[arg(long, value_name = "POOL")]
    default_aux_pool: Option<String>,
    /// Most slots in use at once by all work in it, or none for no limit; for administrators
    #[arg(long, value_name = "N|none", allow_negative_numbers = true, value_parser = limit)]
    max_slots: Option<i64>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Parses a limit of slots into the form of the API: -1 = none.
fn limit(given: &str) -> Result<i64, String> {
    if given.eq_ignore_ascii_case("none") {
        return Ok(-1);
    }
    let slots: Result<u32, _> = given.parse();
    slots
        .map(i64::from)
        .map_err(|_| "a limit is a number of slots, or none".to_owned())
}

impl SettingArgs {
    /// A refusal by the master whose errors name flags and files instead of the API's fields.
    fn as_given(&self, error: ClientError, name: &str) -> CliError {
        match &error {
            ClientError::Failed {
                document_errors: errors,
                ..
            } if !errors.is_empty() => {
                let storage = self.checkpoint_storage_config_file.as_deref();
                let storage = storage.map(shown_name);
                let errors = errors.iter().map(ConfigError::from_json);
                let errors = errors.map(|error| named_as_given(error, name, storage.as_deref()));
                CliError::document(
                    "the workspace's settings",
                    &ConfigErrors::together(errors.collect()),
                )
            }
            _ => error.into(),
        }
    }

    /// The settings given, as members of a request.
    fn body(&self) -> Result<Value, CliError> {
        let mut body = json!({
            "defaultComputePool": self.default_compute_pool,
            "defaultAuxPool": self.default_aux_pool,
            "maxSlots": self.max_slots,
        });
        let named = self.agent_user.is_some() || self.agent_group.is_some();
        if named || self.agent_uid.is_some() || self.agent_gid.is_some() {
            body["agentUserGroup"] = json!({
                "agentUid": self.agent_uid,
                "agentUser": self.agent_user,
                "agentGid": self.agent_gid,
                "agentGroup": self.agent_group,
            });
        }
        let storage = match (
            &self.checkpoint_storage_config,
            &self.checkpoint_storage_config_file,
        ) {
            (Some(text), _) => Some(("--checkpoint-storage-config".to_owned(), text.clone())),
            (None, Some(file)) => Some((shown_name(file), read_text(file)?)),
            (None, None) => None,
        };
        if let Some((name, text)) = storage {
            let storage = yaml::parse(&text).map_err(|errors| {
                CliError::document("the checkpoint storage", &errors.in_file(&name))
            })?;
            body["checkpointStorageConfig"] = storage.to_value();
        }
        Ok(body)
    }
}

/// Fields of the API, each with the flag that sets it. Where one name is the beginning of another, the longer comes first.
const GIVEN_AS: [(&str, &str); 10] = [
    ("agentUserGroup.agentUid", "--agent-uid"),
    ("agentUserGroup.agentUser", "--agent-user"),
    ("agentUserGroup.agentGid", "--agent-gid"),
    ("agentUserGroup.agentGroup", "--agent-group"),
    (
        "agentUserGroup",
        "--agent-uid, --agent-user, --agent-gid, --agent-group",
    ),
    ("checkpointStorageConfig", "--checkpoint-storage-config"),
    ("defaultComputePool", "--default-compute-pool"),
    ("defaultAuxPool", "--default-aux-pool"),
    ("maxSlots", "--max-slots"),
    ("clusterQuotaPairs", "--resource-quota"),
];

/// An error about a field of the API as one about the flag or file that set it. `name` is the flag or argument with the
/// workspace's name, `storage` the file with its checkpoint storage, if any.
fn named_as_given(mut error: ConfigError, name: &str, storage: Option<&str>) -> ConfigError {
    let path = error.path.clone();
    let found = GIVEN_AS.iter().find_map(|(field, flag)| {
        let below = path.strip_prefix(field)?;
        (below.is_empty() || below.starts_with(['.', '['])).then_some((*field, *flag, below))
    });
    let (source, below) = match found {
        Some(("checkpointStorageConfig", flag, below)) => (storage.unwrap_or(flag), below),
        Some((field, flag, below)) => {
            if field == "agentUserGroup" {
                // The fields that the hint names are the flags.
                error.hint = None;
            }
            (flag, below)
        }
        None if path == "name" => (name, ""),
        None => return error,
    };
    error.source = Some(source.into());
    below
        .strip_prefix('.')
        .unwrap_or(below)
        .clone_into(&mut error.path);
    error
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the workspace, not in use
    name: String,
    #[command(flatten)]
    settings: SettingArgs,
    /// Most slots in use at once in the namespace that is made for it; on agents the same as --max-slots
    #[arg(long, value_name = "N", conflicts_with = "max_slots", value_parser = limit)]
    resource_quota: Option<i64>,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
struct EditArgs {
    /// Name of the workspace
    workspace_name: String,
    /// Its name from now on
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    settings: SettingArgs,
}

#[derive(Debug, Subcommand)]
enum QuotaAction {
    /// Set the limit of slots of a workspace; for administrators
    Set {
        /// Name of the workspace
        workspace_name: String,
        /// Most slots in use at once by all work in it, or none for no limit
        #[arg(value_name = "N|none", value_parser = limit)]
        resource_quota: i64,
        /// Cluster that the limit is in
        #[arg(long, value_name = "NAME")]
        cluster_name: Option<String>,
    },
    /// List the limits of slots of a workspace by cluster: the lowest, of the master or of others
    #[command(visible_alias = "ls")]
    List(NameArgs),
}

/// Carries out `det workspace …`.
pub(crate) async fn run(args: WorkspaceArgs, context: &Context) -> Result<(), CliError> {
    let action = args
        .action
        .unwrap_or_else(|| WorkspaceAction::List(ListArgs::default()));
    match action {
        WorkspaceAction::List(args) => list(&context.session().await?.client, &args).await,
        WorkspaceAction::ListProjects(args) => {
            projects::projects(&context.session().await?.client, &args).await
        }
        WorkspaceAction::ListPools(args) => {
            let client = context.session().await?.client;
            list_pools(&client, &args).await
        }
        WorkspaceAction::Describe(args) => {
            let client = context.session().await?.client;
            let workspace = lookup::workspace(&client, &args.workspace_name).await?;
            show(&workspace, args.format)
        }
        WorkspaceAction::Create(args) => create(&args, context).await,
        WorkspaceAction::Edit(args) => {
            let mut body = args.settings.body()?;
            body["name"] = json!(args.name);
            let client = context.session().await?.client;
            let path = path_of(&client, &args.workspace_name, None).await?;
            let changed = client.patch(&path, &body).await;
            let changed = changed.map_err(|e| args.settings.as_given(e, "--name"))?;
            show(&changed["workspace"], args.settings.format)
        }
        WorkspaceAction::Bindings(action) => namespaces::run(action, context).await,
        WorkspaceAction::ResourceQuota(QuotaAction::List(args)) => {
            list_quotas(&context.session().await?.client, &args).await
        }
        WorkspaceAction::ResourceQuota(QuotaAction::Set {
            workspace_name,
            resource_quota,
            cluster_name,
        }) => {
            let client = context.session().await?.client;
            let path = path_of(&client, &workspace_name, Some("set-resource-quota")).await?;
            let cluster = cluster_name.unwrap_or_default();
            let body = json!({"clusterQuotaPairs": {cluster: resource_quota}});
            client.post(&path, Some(&body)).await?;
            output::line(match resource_quota {
                -1 => format!("Workspace {workspace_name} has no limit of slots"),
                slots => {
                    let most = amount(&slots.to_string(), "slot");
                    format!("Workspace {workspace_name} is limited to {most}")
                }
            })
        }
        WorkspaceAction::Archive(args) => act(context, &args, "archive", "Archived").await,
        WorkspaceAction::Unarchive(args) => act(context, &args, "unarchive", "Unarchived").await,
        WorkspaceAction::Delete(args) => delete(context, &args).await,
    }
}

async fn act(context: &Context, args: &OneArgs, action: &str, done: &str) -> Result<(), CliError> {
    let client = context.session().await?.client;
    let name = &args.workspace_name;
    let path = path_of(&client, name, Some(action)).await?;
    client.post(&path, None).await?;
    output::line(format_args!("{done} workspace {name}"))
}

async fn path_of(client: &Client, name: &str, below: Option<&str>) -> Result<String, CliError> {
    let id = text(&lookup::workspace(client, name).await?, "id");
    let segments = ["workspaces", &id].into_iter().chain(below);
    Ok(api_path(segments))
}

const HEADERS: [&str; 11] = [
    "ID",
    "Name",
    "# Projects",
    "Agent Uid",
    "Agent Gid",
    "Agent User",
    "Agent Group",
    "Default Compute Pool",
    "Default Aux Pool",
    "Max Slots",
    "Archived",
];

fn row(workspace: &Value) -> Vec<String> {
    let identity = &workspace["agentUserGroup"];
    vec![
        text(workspace, "id"),
        text(workspace, "name"),
        text(workspace, "numProjects"),
        text(identity, "agentUid"),
        text(identity, "agentGid"),
        text(identity, "agentUser"),
        text(identity, "agentGroup"),
        text(workspace, "defaultComputePool"),
        text(workspace, "defaultAuxPool"),
        text(workspace, "maxSlots"),
        text(workspace, "archived"),
    ]
}

async fn list(client: &Client, args: &ListArgs) -> Result<(), CliError> {
    let workspaces = client
        .list(
            &api_path(["workspaces"]),
            &args.order.add_to(Query::new()),
            "workspaces",
            args.paging.paging(200),
        )
        .await?;
    args.paging.note_pages(workspaces.len());
    let mut listing = Listing::new(HEADERS);
    for workspace in &workspaces {
        listing.push(row(workspace));
    }
    listing.print(args.format.format(), &workspaces)
}

/// Shows one workspace.
fn show(workspace: &Value, format: FormatArgs) -> Result<(), CliError> {
    let mut listing = Listing::new(HEADERS.into_iter().chain(["Checkpoint Storage Config"]));
    let mut row = row(workspace);
    row.push(indented(&workspace["checkpointStorageConfig"]));
    listing.push(row);
    listing.print(format.format(), workspace)
}

async fn list_pools(client: &Client, args: &NameArgs) -> Result<(), CliError> {
    let name = &args.workspace_name;
    let path = path_of(client, name, Some("available-resource-pools")).await?;
    let answer = client.get(&path, &Query::new()).await?;
    let pools: Vec<String> = items(&answer["resourcePools"])
        .filter_map(|pool| pool.as_str().map(str::to_owned))
        .collect();
    let mut listing = Listing::new(["Workspace", "Available Resource Pools"]);
    listing.push([name.clone(), pools.join(", ")]);
    listing.print(args.format.format(), &answer["resourcePools"])
}

async fn list_quotas(client: &Client, args: &NameArgs) -> Result<(), CliError> {
    let below = Some("get-k8s-resource-quotas");
    let path = path_of(client, &args.workspace_name, below).await?;
    let answer = client.get(&path, &Query::new()).await?;
    let quotas = &answer["resourceQuotas"];
    let mut listing = Listing::new(["Cluster", "Slots"]);
    for (cluster, slots) in quotas.as_object().into_iter().flatten() {
        // The API has a fraction for them, which is never there.
        let slots = slots.as_f64().unwrap_or_default();
        listing.push([cluster.clone(), slots.to_string()]);
    }
    listing.print(args.format.format(), quotas)
}

async fn create(args: &CreateArgs, context: &Context) -> Result<(), CliError> {
    let mut body = args.settings.body()?;
    body["name"] = json!(args.name);
    if let Some(namespaces) = args.namespace.body() {
        body["clusterNamespaceMeta"] = namespaces;
    }
    if let Some(slots) = args.resource_quota {
        body["clusterQuotaPairs"] = json!({args.namespace.cluster(): slots});
    }
    let client = context.session().await?.client;
    let made = client.post(&api_path(["workspaces"]), Some(&body)).await;
    let made = made.map_err(|e| args.settings.as_given(e, "NAME"))?;
    show(&made["workspace"], args.settings.format)?;
    if args.settings.format.format() == Format::Table {
        namespaces::print_bound(&args.name, &made["namespaceBindings"])?;
    }
    Ok(())
}

async fn delete(context: &Context, args: &DeleteArgs) -> Result<(), CliError> {
    let name = &args.workspace_name;
    let client = context.session().await?.client;
    let path = path_of(&client, name, None).await?;
    let question = format!(
        "Deleting workspace \"{name}\" deletes its projects, experiments and templates for good, and with everything in it \
         the Kubernetes namespace that was made for it, if there is one. \
         (`det workspace archive` only puts it away.) Delete it?"
    );
    deletion::delete(
        &client,
        &path,
        &format!("workspace {name}"),
        &question,
        args.yes,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_flag_or_file() {
        for (path, storage, expected) in [
            ("name", None, "--name: no"),
            ("maxSlots", None, "--max-slots: no"),
            ("defaultComputePool", None, "--default-compute-pool: no"),
            ("agentUserGroup.agentUid", None, "--agent-uid: no"),
            (
                "checkpointStorageConfig.access_key",
                None,
                "--checkpoint-storage-config: access_key: no",
            ),
            (
                "checkpointStorageConfig.access_key",
                Some("s3.yaml"),
                "s3.yaml: access_key: no",
            ),
            (
                "clusterQuotaPairs[\"x\"]",
                None,
                "--resource-quota: [\"x\"]: no",
            ),
            ("maxSlotsOfOthers", None, "<config>.maxSlotsOfOthers: no"),
        ] {
            let error = ConfigError::new(path, None, "no");
            let shown = named_as_given(error, "--name", storage).to_string();
            assert_eq!(shown, expected);
        }
    }
}
