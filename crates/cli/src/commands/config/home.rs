//! The workspace that work would be submitted to, loaded from the master, for `det config explain`.

use clap::Args;
use det_client::{Client, ClientError, Query, api_path};
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload};
use det_config::submitted::{Experiment, SubmittedDocument, SubmittedTask};
use det_config::task::LaunchKind;
use det_ids::ProjectId;
use serde_json::{Value, json};

use crate::commands::lookup;
use crate::error::CliError;
use crate::values::{items, text};

/// Id of the workspace of work that names none.
const UNCATEGORIZED: i64 = 1;

/// The workspace and the project that the work would be submitted to.
#[derive(Debug, Args)]
pub(super) struct HomeArgs {
    /// Ask the master for the workspace that the file names and for the policies in force there
    #[arg(long)]
    ask_master: bool,
    /// Ask the master for this workspace instead of the file's
    #[arg(long, value_name = "NAME", conflicts_with = "project_id")]
    workspace: Option<String>,
    /// Project in that workspace; it must exist
    #[arg(long, value_name = "NAME", requires = "workspace")]
    project: Option<String>,
    /// Ask the master for the workspace of this project; above 1 it wins over the file's, as with det experiment create
    #[arg(long = "project_id", alias = "project-id", value_name = "ID", value_parser = lookup::project_id())]
    project_id: Option<ProjectId>,
}

impl HomeArgs {
    /// Whether a master is asked.
    pub(super) fn asks(&self) -> bool {
        self.ask_master || self.workspace.is_some() || self.project_id.is_some()
    }
}

/// What a workspace adds to the configuration of work in it.
pub(super) struct Home {
    name: String,
    compute_pool: Option<String>,
    aux_pool: Option<String>,
    storage: Option<Value>,
    /// The checkpoint storage of the master, secrets masked; `None` = this user may not see it.
    pub(super) master_storage: Option<Value>,
    /// Policies in force, the weakest first: the workspace's, then the cluster's.
    pub(super) policies: Vec<Policies>,
}

impl Home {
    /// Loads it from the master. `of_file` are the workspace and the project that the file names.
    pub(super) async fn ask(
        client: &Client,
        args: &HomeArgs,
        of_file: (Option<&str>, Option<&str>),
        workload: Workload,
    ) -> Result<Self, CliError> {
        let workspace = match (&args.workspace, args.project_id, of_file) {
            (Some(workspace), _, _) => named(client, workspace, args.project.as_deref()).await?,
            (None, Some(id), _) if id.0 > UNCATEGORIZED => of_project(client, id).await?,
            (None, _, (Some(workspace), project)) => named(client, workspace, project).await?,
            (None, _, (None, _)) => workspace(client, &UNCATEGORIZED.to_string()).await?,
        };
        let filled = |key: &str| Some(text(&workspace, key)).filter(|text| !text.is_empty());
        let (id, name) = (text(&workspace, "id"), text(&workspace, "name"));
        let kind = match workload {
            Workload::Experiment => "EXPERIMENT",
            Workload::Tasks => "NTSC",
        };
        let mut policies = Vec::new();
        for (scope, path) in [
            (
                format!("workspace \"{name}\""),
                api_path(["config-policies", "workspaces", &id, kind]),
            ),
            (
                "the cluster".to_owned(),
                api_path(["config-policies", "global", kind]),
            ),
        ] {
            let answer = client.get(&path, &Query::new()).await?;
            let document = &answer["configPolicies"];
            if document
                .as_object()
                .is_some_and(|members| !members.is_empty())
            {
                let read = Policies::from_value(workload, &scope, document);
                let what = format!("the policies of {scope}");
                policies.push(read.map_err(|errors| CliError::document(&what, &errors))?);
            }
        }
        let storage = &workspace["checkpointStorageConfig"];
        let has_storage = storage
            .as_object()
            .is_some_and(|members| !members.is_empty());
        Ok(Self {
            compute_pool: filled("defaultComputePool"),
            aux_pool: filled("defaultAuxPool"),
            storage: has_storage.then(|| storage.clone()),
            master_storage: master_storage(client).await?,
            policies,
            name,
        })
    }

    /// The default pool for work with this many slots.
    pub(super) fn pool(&self, slots: u32) -> Option<&str> {
        let pool = if slots == 0 {
            &self.aux_pool
        } else {
            &self.compute_pool
        };
        pool.as_deref()
    }

    fn layer(&self, pool: Option<&str>, storage: Option<&Value>) -> (Source, Value) {
        let mut layer = json!({});
        if let Some(storage) = storage {
            layer["checkpoint_storage"] = storage.clone();
        }
        if let Some(pool) = pool {
            layer["resources"] = json!({"resource_pool": pool});
        }
        let source = Source::layer(Layer::Workspace(self.name.clone()));
        (source, layer)
    }

    /// An experiment merged over the workspace's settings; `pool` is the workspace's default pool if the work uses it.
    pub(super) fn under(
        &self,
        submitted: SubmittedDocument,
        pool: Option<&str>,
    ) -> SubmittedDocument {
        let (source, layer) = self.layer(pool, self.storage.as_ref());
        submitted.over(SubmittedDocument::of_layer(Experiment, source, &layer))
    }

    /// The same for a task, which has no checkpoint storage.
    pub(super) fn under_task(
        &self,
        kind: LaunchKind,
        submitted: SubmittedTask,
        pool: Option<&str>,
    ) -> SubmittedTask {
        let (source, layer) = self.layer(pool, None);
        submitted.over(SubmittedTask::of_layer(kind, source, &layer))
    }
}

/// The master's own checkpoint storage; `None` when this user may not see it, as only administrators may.
async fn master_storage(client: &Client) -> Result<Option<Value>, CliError> {
    let path = api_path(["master", "config"]);
    match client.get(&path, &Query::new()).await {
        Ok(mut answer) => {
            let storage = answer["config"]["checkpoint_storage"].take();
            Ok(Some(storage).filter(Value::is_object))
        }
        Err(ClientError::Forbidden { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Errs when the master has no pool of this name.
pub(super) async fn require_pool(client: &Client, pool: &str) -> Result<(), CliError> {
    let path = api_path(["resource-pools"]);
    let answer = client.get(&path, &Query::new()).await?;
    let names: Vec<String> = items(&answer["resourcePools"])
        .map(|pool| text(pool, "name"))
        .collect();
    if names.iter().any(|name| name == pool) {
        return Ok(());
    }
    Err(CliError::request(format!(
        "the master has no pool \"{pool}\", which --pool names; it has {}",
        names.join(", ")
    )))
}

async fn workspace(client: &Client, id: &str) -> Result<Value, CliError> {
    let path = api_path(["workspaces", id]);
    Ok(client.get(&path, &Query::new()).await?["workspace"].take())
}

async fn named(client: &Client, name: &str, project: Option<&str>) -> Result<Value, CliError> {
    if let Some(project) = project {
        lookup::project(client, name, project).await?;
    }
    lookup::workspace(client, name).await
}

async fn of_project(client: &Client, id: ProjectId) -> Result<Value, CliError> {
    let path = api_path(["projects", &id.to_string()]);
    let answer = client.get(&path, &Query::new()).await?;
    workspace(client, &text(&answer["project"], "workspaceId")).await
}
