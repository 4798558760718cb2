//! `det agent list|enable|disable|revoke`: the agents of a cluster; `det agent check-isolation`: this machine.

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use serde_json::{Value, json};

use crate::agent::{self, AgentArgs};
use crate::commands::tasks;
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, joined, last_part, members, plain, text, time};

/// The subcommands of `det agent`.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentAction {
    /// List agents
    #[command(visible_alias = "ls")]
    List(FormatArgs),
    /// Let an agent take tasks again
    Enable(AgentChoice),
    /// Keep tasks off an agent; those that run there are stopped
    Disable {
        #[command(flatten)]
        choice: AgentChoice,
        /// Let the tasks that run there finish, and show them
        #[arg(long)]
        drain: bool,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Refuse an agent's token from now on: it is cut off, its tasks start elsewhere, and its id is free
    Revoke {
        /// Id of the agent
        agent_id: String,
    },
    /// Show what a process task could reach on this machine, by trying it in a task's sandbox
    CheckIsolation {
        #[command(flatten)]
        agent: Box<AgentArgs>,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// One agent, or all.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct AgentChoice {
    /// Id of the agent
    agent_id: Option<String>,
    /// All agents of the cluster
    #[arg(long)]
    all: bool,
}

/// Carries out `det agent list|enable|disable|revoke|check-isolation`.
pub(crate) async fn run(action: AgentAction, context: &Context) -> Result<(), CliError> {
    if let AgentAction::CheckIsolation { agent, format } = action {
        return agent::check_isolation(*agent, format.format()).await;
    }
    let client = context.session().await?.client;
    match action {
        AgentAction::CheckIsolation { .. } => Ok(()),
        AgentAction::List(format) => list(&client, format.format()).await,
        AgentAction::Enable(choice) => {
            for agent in chosen(&client, choice).await? {
                client
                    .post(&api_path(["agents", &agent, "enable"]), None)
                    .await?;
                output::note(format_args!("Enabled agent {agent}."));
            }
            Ok(())
        }
        AgentAction::Revoke { agent_id } => {
            client
                .post(&api_path(["agents", &agent_id, "revoke"]), None)
                .await?;
            output::note(format_args!("Revoked the token of agent {agent_id}."));
            Ok(())
        }
        AgentAction::Disable {
            choice,
            drain,
            format,
        } => disable(&client, choice, drain, format.format()).await,
    }
}

/// The agents of the cluster, by id.
pub(crate) async fn all(client: &Client) -> Result<Vec<Value>, CliError> {
    let answer = client.get(&api_path(["agents"]), &Query::new()).await?;
    let mut agents: Vec<Value> = items(&answer["agents"]).cloned().collect();
    agents.sort_by_key(|agent| text(agent, "id"));
    Ok(agents)
}

async fn list(client: &Client, format: Format) -> Result<(), CliError> {
    let columns = [
        ("id", "Agent ID"),
        ("version", "Version"),
        ("registered_time", "Registered Time"),
        ("num_slots", "Slots"),
        ("num_containers", "Containers"),
        ("resource_pools", "Resource Pool"),
        ("enabled", "Enabled"),
        ("draining", "Draining"),
        ("addresses", "Addresses"),
    ];
    let mut listing = Listing::new(columns.map(|(_, header)| header));
    let mut objects = Vec::new();
    let mut disconnected = Vec::new();
    let mut faults = Vec::new();
    for agent in all(client).await? {
        let id = text(&agent, "id");
        let is_away = agent["disconnected"] == true;
        if is_away {
            disconnected.push(last_part(&id).to_owned());
        }
        let fault = text(&agent, "fault");
        if !fault.is_empty() {
            faults.push(format!("{}: {fault}", last_part(&id)));
        }
        let cells = [
            json!(last_part(&id)),
            agent["version"].clone(),
            json!(time(&agent, "registeredTime")),
            json!(members(&agent["slots"]).count()),
            json!(members(&agent["containers"]).count()),
            json!(joined(&agent, "resourcePools")),
            agent["enabled"].clone(),
            agent["draining"].clone(),
            json!(joined(&agent, "addresses")),
        ];
        listing.push(columns.iter().zip(&cells).map(|((name, _), cell)| {
            // Scripts read CSV. It was neither disabled nor asked to drain, and takes no work all the same.
            match *name {
                "enabled" if is_away && format == Format::Table => "disconnected".to_owned(),
                "draining" if is_away && format == Format::Table => "-".to_owned(),
                _ => plain(cell),
            }
        }));
        let mut object: serde_json::Map<_, _> = columns
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .zip(cells)
            .collect();
        // Scripts read the columns of the table by position, so the table gets no further column.
        object.insert("agent_version".to_owned(), agent["agentVersion"].clone());
        object.insert("disconnected".to_owned(), json!(is_away));
        object.insert("fault".to_owned(), json!(fault));
        objects.push(object);
    }
    listing.print(format, &objects)?;
    if format == Format::Table && !disconnected.is_empty() {
        output::note(format_args!(
            "disconnected: {}; tasks there go on, and start elsewhere if the agent is not back in time \
             (agent_reconnect_wait of its pool)",
            disconnected.join(", ")
        ));
    }
    if format == Format::Table {
        for fault in faults {
            output::note(format_args!(
                "takes no new tasks until its host can start containers: {fault}"
            ));
        }
    }
    Ok(())
}

async fn chosen(client: &Client, choice: AgentChoice) -> Result<Vec<String>, CliError> {
    match choice.agent_id {
        Some(agent) => Ok(vec![agent]),
        None => Ok(all(client)
            .await?
            .iter()
            .map(|agent| last_part(&text(agent, "id")).to_owned())
            .collect()),
    }
}

async fn disable(
    client: &Client,
    choice: AgentChoice,
    drain: bool,
    format: Format,
) -> Result<(), CliError> {
    let agents = chosen(client, choice).await?;
    let body = drain.then(|| json!({"drain": true}));
    for agent in &agents {
        client
            .post(&api_path(["agents", agent, "disable"]), body.as_ref())
            .await?;
        output::note(format_args!("Disabled agent {agent}."));
    }
    if !drain {
        return Ok(());
    }
    let mut running = tasks::all(client).await?;
    running.retain(|_, task| {
        items(&task["resources"])
            .flat_map(|resources| members(&resources["agentDevices"]))
            .any(|(agent, _)| agents.contains(agent))
    });
    output::note(if running.is_empty() {
        "No tasks in progress on draining nodes."
    } else {
        "Tasks still in progress on draining nodes."
    });
    tasks::print(&running, format)
}
