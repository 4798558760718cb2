//! `det project`: projects of workspaces.

use clap::{Args, Subcommand};
use det_client::{Client, Query, Session, api_path};
use serde_json::{Value, json};

use crate::commands::experiment::list;
use crate::commands::{deletion, lookup};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::paging::{OrderArgs, PageArgs};
use crate::table::{FormatArgs, Listing};
use crate::values::text;

/// Options of `det project`.
#[derive(Debug, Args)]
pub(crate) struct ProjectArgs {
    #[command(subcommand)]
    action: ProjectAction,
}

#[derive(Debug, Subcommand)]
enum ProjectAction {
    /// List the projects of a workspace
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// List the experiments of a project
    ListExperiments(ExperimentsArgs),
    /// Show a project with its experiments
    Describe(DescribeArgs),
    /// Create a project
    Create(CreateArgs),
    /// Change a project
    Edit(EditArgs),
    /// Put a project away; nothing more can be put there
    Archive(OneArgs),
    /// Take an archived project out again
    Unarchive(OneArgs),
    /// Delete a project with everything in it
    Delete(DeleteArgs),
}

/// Options of `det project list` and `det workspace list-projects`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Name of the workspace
    workspace_name: String,
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
    /// Name of the project
    project_name: String,
}

#[derive(Debug, Args)]
struct ExperimentsArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Show those of other users and archived ones too
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    paging: PageArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct DescribeArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Show experiments of other users and archived ones too
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the workspace
    workspace_name: String,
    /// Name of the project, not in use in the workspace
    name: String,
    /// Description of the project
    #[arg(long)]
    description: Option<String>,
    /// Short name, not in use in the cluster [default: made of the name]
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct EditArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Its name from now on
    #[arg(long = "new_name", alias = "new-name", value_name = "NAME")]
    new_name: Option<String>,
    /// Description of the project
    #[arg(long)]
    description: Option<String>,
    /// Short name, not in use in the cluster
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Carries out `det project …`.
pub(crate) async fn run(args: ProjectArgs, context: &Context) -> Result<(), CliError> {
    let session = context.session().await?;
    let client = &session.client;
    match args.action {
        ProjectAction::List(args) => projects(client, &args).await,
        ProjectAction::ListExperiments(args) => {
            let project = find(client, &args.one).await?;
            let query = args.order.add_to(of_project(&project));
            let experiments = list::ListArgs {
                all: args.all,
                show_project: false,
                paging: args.paging,
                format: args.format,
            };
            list::experiments(&session, query, experiments).await
        }
        ProjectAction::Describe(args) => describe(&session, args).await,
        ProjectAction::Create(args) => {
            let workspace = lookup::workspace(client, &args.workspace_name).await?;
            let path = api_path(["workspaces", &text(&workspace, "id"), "projects"]);
            let body = json!({"name": args.name, "description": args.description, "key": args.key});
            let made = client.post(&path, Some(&body)).await?;
            show(&made["project"], args.format)
        }
        ProjectAction::Edit(args) => {
            let path = path_of(&find(client, &args.one).await?, None);
            let body =
                json!({"name": args.new_name, "description": args.description, "key": args.key});
            let changed = client.patch(&path, &body).await?;
            show(&changed["project"], args.format)
        }
        ProjectAction::Archive(one) => act(client, &one, "archive", "Archived").await,
        ProjectAction::Unarchive(one) => act(client, &one, "unarchive", "Unarchived").await,
        ProjectAction::Delete(args) => {
            let path = path_of(&find(client, &args.one).await?, None);
            let name = &args.one.project_name;
            let question = format!(
                "Deleting project \"{name}\" deletes its experiments and notes for good. \
                 (`det project archive` only puts it away.) Delete it?"
            );
            let what = format!("project {name}");
            deletion::delete(client, &path, &what, &question, args.yes).await
        }
    }
}

async fn act(client: &Client, one: &OneArgs, action: &str, done: &str) -> Result<(), CliError> {
    let path = path_of(&find(client, one).await?, Some(action));
    client.post(&path, None).await?;
    output::line(format_args!("{done} project {}", one.project_name))
}

fn path_of(project: &Value, below: Option<&str>) -> String {
    let id = text(project, "id");
    api_path(["projects", &id].into_iter().chain(below))
}

async fn find(client: &Client, one: &OneArgs) -> Result<Value, CliError> {
    lookup::project(client, &one.workspace_name, &one.project_name).await
}

/// Lists the projects of a workspace.
pub(crate) async fn projects(client: &Client, args: &ListArgs) -> Result<(), CliError> {
    let workspace = lookup::workspace(client, &args.workspace_name).await?;
    let projects = client
        .list(
            &api_path(["workspaces", &text(&workspace, "id"), "projects"]),
            &args.order.add_to(Query::new()),
            "projects",
            args.paging.paging(200),
        )
        .await?;
    args.paging.note_pages(projects.len());
    listing(&projects).print(args.format.format(), &projects)
}

/// Projects as a list.
fn listing(projects: &[Value]) -> Listing {
    let mut listing = Listing::new([
        "ID",
        "Key",
        "Name",
        "Description",
        "# Experiments",
        "# Active Experiments",
        "Archived",
    ]);
    for project in projects {
        listing.push(
            [
                "id",
                "key",
                "name",
                "description",
                "numExperiments",
                "numActiveExperiments",
                "archived",
            ]
            .map(|member| text(project, member)),
        );
    }
    listing
}

/// Shows one project.
fn show(project: &Value, format: FormatArgs) -> Result<(), CliError> {
    listing(std::slice::from_ref(project)).print(format.format(), project)
}

async fn describe(session: &Session, args: DescribeArgs) -> Result<(), CliError> {
    let project = find(&session.client, &args.one).await?;
    show(&project, args.format)?;
    if args.format.is_chosen() {
        return Ok(());
    }
    output::line("\nAssociated Experiments")?;
    let query = OrderArgs::default().add_to(of_project(&project));
    let experiments = list::ListArgs {
        all: args.all,
        format: args.format,
        ..list::ListArgs::default()
    };
    list::experiments(session, query, experiments).await
}

/// The query for the experiments of a project.
fn of_project(project: &Value) -> Query {
    Query::new().with("projectId", text(project, "id"))
}
