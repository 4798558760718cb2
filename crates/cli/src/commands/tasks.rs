//! `det task`: the tasks that run or wait, and their logs.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use serde_json::Value;

use crate::commands::logs::{self, LogArgs, LogSource};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{amount, items, members, note_whole_reasons, text, time, wait_reason_in};

/// Options of `det task`.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    #[command(subcommand)]
    action: Option<TaskAction>,
}

#[derive(Debug, Subcommand)]
enum TaskAction {
    /// List the tasks of the cluster (the default)
    #[command(visible_alias = "ls")]
    List(FormatArgs),
    /// Print what a task logged
    Logs {
        /// Id of the task, or enough of its beginning
        task_id: String,
        /// Only these allocations (may be repeated)
        #[arg(long = "allocation-id", value_name = "ID")]
        allocation_ids: Vec<String>,
        #[command(flatten)]
        logs: Box<LogArgs>,
    },
    /// Delete the logs that have been kept long enough, now
    CleanupLogs,
}

/// The tasks of the cluster: the API's summary of each by allocation id.
pub(crate) type Tasks = BTreeMap<String, Value>;

/// Carries out `det task …`.
pub(crate) async fn run(args: TaskArgs, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    match args.action {
        None => print(&all(&client).await?, Format::Table),
        Some(TaskAction::List(format)) => print(&all(&client).await?, format.format()),
        Some(TaskAction::CleanupLogs) => {
            let answer = client.post(&api_path(["cleanup_logs"]), None).await?;
            let lines = text(&answer, "removedCount");
            output::line(format_args!("Deleted {} of logs", amount(&lines, "line")))
        }
        Some(TaskAction::Logs {
            task_id,
            allocation_ids,
            logs,
        }) => {
            let id = expand(&client, task_id).await?;
            let query = Query::new().with_all("allocationIds", allocation_ids);
            logs::print(&client, &LogSource::Task(id), query, &logs).await
        }
    }
}

/// The tasks that hold or want slots.
pub(crate) async fn all(client: &Client) -> Result<Tasks, CliError> {
    let answer = client.get(&api_path(["tasks"]), &Query::new()).await?;
    Ok(members(&answer["allocationIdToSummary"])
        .map(|(id, task)| (id.clone(), task.clone()))
        .collect())
}

/// Prints tasks in the order of their registration.
pub(crate) fn print(tasks: &Tasks, format: Format) -> Result<(), CliError> {
    let mut listing = Listing::new([
        "Task ID",
        "Allocation ID",
        "Name",
        "Slots Needed",
        "Registered Time",
        "Agent",
        "Priority",
        "Resource Pool",
        "Ports",
        "Waiting Reason",
    ]);
    let mut in_order: Vec<&Value> = tasks.values().collect();
    in_order.sort_by_key(|task| text(task, "registeredTime"));
    let mut directions = Vec::new();
    for task in in_order {
        let priority = match task["schedulerType"].as_str() {
            Some("priority" | "kubernetes") => {
                directions.push(text(task, "priorityOrder"));
                text(task, "priority")
            }
            _ => "N/A".to_owned(),
        };
        listing.push([
            text(task, "taskId"),
            text(task, "allocationId"),
            text(task, "name"),
            text(task, "slotsNeeded"),
            time(task, "registeredTime"),
            agents_of(task),
            priority,
            text(task, "resourcePool"),
            ports_of(task),
            wait_reason_in(format, task),
        ]);
    }
    listing.print(format, tasks)?;
    note_whole_reasons(format, tasks.values());
    directions.sort_unstable();
    directions.dedup();
    if format == Format::Table && !directions.is_empty() {
        output::note(format_args!("priority: {}", directions.join("; ")));
    }
    Ok(())
}

fn agents_of(task: &Value) -> String {
    if task["resources"].is_null() {
        return "unassigned".to_owned();
    }
    let agents: Vec<&str> = items(&task["resources"])
        .flat_map(|resources| members(&resources["agentDevices"]))
        .map(|(agent, _)| agent.as_str())
        .collect();
    if agents.is_empty() {
        "unassigned".to_owned()
    } else {
        agents.join(", ")
    }
}

fn ports_of(task: &Value) -> String {
    let mut ports: Vec<i64> = items(&task["proxyPorts"])
        .filter_map(|port| port["port"].as_i64())
        .collect();
    ports.sort_unstable();
    ports
        .iter()
        .map(i64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// The whole id of a task of which the beginning is given. Ids of ended tasks are not listed, so text that is the beginning
/// of no id is returned as a whole id.
async fn expand(client: &Client, given: String) -> Result<String, CliError> {
    if given.len() >= 36 {
        return Ok(given);
    }
    let mut fitting: Vec<String> = all(client)
        .await?
        .values()
        .map(|task| text(task, "taskId"))
        .filter(|id| id.starts_with(&given))
        .collect();
    fitting.sort_unstable();
    fitting.dedup();
    match fitting.as_slice() {
        [] => Ok(given),
        [one] => Ok(one.clone()),
        [first, second, ..] => Err(CliError::request(format!(
            "\"{given}\" is the beginning of {} task ids, among them {first} and {second}; give more of it",
            fitting.len()
        ))),
    }
}
