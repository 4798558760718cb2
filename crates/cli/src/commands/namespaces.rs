//! `det workspace bindings`: the Kubernetes namespaces that the work in workspaces runs in.

use clap::{ArgGroup, Args, Subcommand};
use det_client::{Query, api_path};
use serde_json::{Value, json};

use crate::commands::lookup;
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{FormatArgs, Listing};
use crate::values::text;

/// Commands of `det workspace bindings`.
#[derive(Debug, Subcommand)]
pub(crate) enum BindingAction {
    /// Bind a workspace to a namespace, for what is started later; for administrators
    Set(SetArgs),
    /// Take the binding of a workspace away: its work runs in the namespace of its pool; for administrators
    Delete(DeleteArgs),
    /// List the namespaces of a workspace
    #[command(visible_alias = "ls")]
    List(ListArgs),
}

/// The namespace that a workspace is to have.
#[derive(Debug, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// Kubernetes cluster, by the name of its resource manager; needed where there are several
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster_name: Option<String>,
    /// Kubernetes namespace that exists
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Have the master make a namespace
    #[arg(long, conflicts_with = "namespace")]
    auto_create_namespace: bool,
    /// Have the master make a namespace in every cluster
    #[arg(long, conflicts_with_all = ["namespace", "auto_create_namespace", "cluster_name"])]
    auto_create_namespace_all_clusters: bool,
}

impl NamespaceArgs {
    /// The name of the cluster, empty where it was not named.
    pub(crate) fn cluster(&self) -> &str {
        self.cluster_name.as_deref().unwrap_or_default()
    }

    /// As a member of a request; `None` = no namespace is asked for.
    pub(crate) fn body(&self) -> Option<Value> {
        let every = self.auto_create_namespace_all_clusters;
        let is_asked = self.namespace.is_some() || self.auto_create_namespace || every;
        is_asked.then(|| {
            json!({self.cluster(): {
                "clusterName": self.cluster(),
                "namespace": self.namespace,
                "autoCreateNamespace": self.auto_create_namespace,
                "autoCreateNamespaceAllClusters": every,
            }})
        })
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(false)
    .args(["namespace", "auto_create_namespace", "auto_create_namespace_all_clusters"]))]
pub(crate) struct SetArgs {
    /// Name of the workspace
    workspace_name: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Name of the workspace
    workspace_name: String,
    /// Kubernetes cluster, by the name of its resource manager; needed where there are several
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Name of the workspace
    workspace_name: String,
    #[command(flatten)]
    format: FormatArgs,
}

/// Carries out `det workspace bindings …`.
pub(crate) async fn run(action: BindingAction, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match action {
        BindingAction::Set(args) => {
            let name = &args.workspace_name;
            let workspace = lookup::workspace(&client, name).await?;
            let id = text(&workspace, "id");
            let path = api_path(["workspaces", &id, "namespace-bindings"]);
            let body = json!({
                "workspaceId": workspace["id"],
                "clusterNamespaceMeta": args.namespace.body(),
            });
            let answer = client.post(&path, Some(&body)).await?;
            print_bound(name, &answer["namespaceBindings"])
        }
        BindingAction::Delete(args) => {
            let name = &args.workspace_name;
            let id = text(&lookup::workspace(&client, name).await?, "id");
            let path = api_path(["workspaces", &id, "namespace-bindings"]);
            let cluster = args.cluster_name.unwrap_or_default();
            let query = Query::new().with("clusterNames", cluster);
            client.delete_chosen(&path, &query).await?;
            output::line(format_args!("Took away the binding of workspace {name}"))
        }
        BindingAction::List(args) => {
            let id = text(
                &lookup::workspace(&client, &args.workspace_name).await?,
                "id",
            );
            let path = api_path(["workspaces", &id, "list-namespace-bindings"]);
            let answer = client.get(&path, &Query::new()).await?;
            let bindings = &answer["namespaceBindings"];
            let mut listing = Listing::new(["Cluster", "Namespace", "Auto-created"]);
            for binding in bindings.as_object().into_iter().flat_map(|it| it.values()) {
                listing.push([
                    text(binding, "clusterName"),
                    text(binding, "namespace"),
                    text(binding, "autoCreateNamespace"),
                ]);
            }
            listing.print(args.format.format(), bindings)
        }
    }
}

/// Prints what a workspace was bound to.
pub(crate) fn print_bound(workspace: &str, bindings: &Value) -> Result<(), CliError> {
    for binding in bindings.as_object().into_iter().flat_map(|it| it.values()) {
        let cluster = match text(binding, "clusterName") {
            name if name.is_empty() => String::new(),
            name => format!(" of cluster {name}"),
        };
        output::line(format_args!(
            "Workspace {workspace} is bound to namespace {}{cluster}",
            text(binding, "namespace")
        ))?;
    }
    Ok(())
}
