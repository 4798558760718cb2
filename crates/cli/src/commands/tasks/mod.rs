//! `det task`: the tasks that run or wait, their logs, and generic tasks.

mod generic;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use serde_json::Value;

use crate::commands::failures::with_last_lines;
use crate::commands::launched::Turn;
use crate::commands::logs::{self, LogArgs, LogSource};
use crate::commands::lookup;
use crate::commands::trial_metrics::{self, TaskMetricsArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{
    amount, items, members, note_whole_reasons, state, text, time, wait_reason_in,
};

/// Options of `det task`.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    #[command(subcommand)]
    action: Option<TaskAction>,
}

#[derive(Debug, Subcommand)]
enum TaskAction {
    /// List the tasks of the cluster that run or wait (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
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
    /// Print what a task that is no trial's uses of its machines, where that is measured
    Metrics(TaskMetricsArgs),
    /// Delete the logs that have been kept long enough, now
    CleanupLogs,
    /// Create a generic task, and run it
    Create(Box<generic::CreateArgs>),
    /// Run a generic task again, with its configuration and its files
    Fork(generic::ForkArgs),
    /// Print the configuration that a generic task runs with
    Config {
        /// Id of the task, or enough of its beginning
        task_id: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a task, and those that belong to it, give their slots back; commands and services only if launched with
    /// "preemptible: true"
    Pause {
        /// Id of the task, or enough of its beginning
        task_id: String,
    },
    /// Let a paused task, and those that belong to it, go on
    #[command(visible_alias = "activate")]
    Unpause {
        /// Id of the task, or enough of its beginning
        task_id: String,
    },
    /// End a generic task at once, with those that belong to it
    Kill {
        /// Id of the task, or enough of its beginning
        task_id: String,
        /// End everything that belongs to the same task as this one
        #[arg(long)]
        root: bool,
    },
}

/// Options of `det task list`.
#[derive(Debug, Default, Args)]
struct ListArgs {
    /// Tasks too that are paused, and generic ones that ended in the last day
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// The tasks of the cluster: the API's summary of each by allocation id.
pub(crate) type Tasks = BTreeMap<String, Value>;

/// Carries out `det task …`.
pub(crate) async fn run(args: TaskArgs, context: &Context) -> Result<ExitCode, CliError> {
    let action = match args.action {
        // Errors in the user's files are reported before a master is contacted.
        Some(TaskAction::Create(args)) => return generic::create(*args, context).await,
        Some(TaskAction::Fork(args)) => return generic::fork(args, context).await,
        other => other,
    };
    let client = context.session().await?.client;
    let result = match action {
        Some(TaskAction::Create(_) | TaskAction::Fork(_)) => Ok(()),
        None => list(&client, &ListArgs::default()).await,
        Some(TaskAction::List(args)) => list(&client, &args).await,
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
            let id = lookup::task_id(&client, task_id).await?;
            let logs = logs.of_allocations(allocation_ids);
            logs::print(&client, &LogSource::Task(id), &logs).await
        }
        Some(TaskAction::Metrics(args)) => {
            let id = lookup::task_id(&client, args.task_id.clone()).await?;
            trial_metrics::print_of_task(&client, &id, &args).await
        }
        Some(TaskAction::Config { task_id, json }) => generic::config(&client, task_id, json).await,
        Some(TaskAction::Pause { task_id }) => generic::act(&client, task_id, Turn::Pause).await,
        Some(TaskAction::Unpause { task_id }) => {
            generic::act(&client, task_id, Turn::Unpause).await
        }
        Some(TaskAction::Kill { task_id, root }) => generic::kill(&client, task_id, root).await,
    };
    result.map(|()| ExitCode::SUCCESS)
}

/// The tasks that hold or want slots.
pub(crate) async fn all(client: &Client) -> Result<Tasks, CliError> {
    Ok(in_queue(&answer(client, false).await?))
}

/// What the API lists; `all` = with generic tasks that ended a short time ago.
async fn answer(client: &Client, all: bool) -> Result<Value, CliError> {
    let query = Query::new().with_some("withEnded", Some(all).filter(|all| *all));
    Ok(client.get(&api_path(["tasks"]), &query).await?)
}

fn in_queue(answer: &Value) -> Tasks {
    members(&answer["allocationIdToSummary"])
        .map(|(id, task)| (id.clone(), task.clone()))
        .collect()
}

/// Prints the tasks that hold or want slots, and names those that are paused; or with those that are paused or have ended.
async fn list(client: &Client, args: &ListArgs) -> Result<(), CliError> {
    let answer = answer(client, args.all).await?;
    let format = args.format.format();
    if args.all {
        if format == Format::Json {
            return output::json(&answer);
        }
        let resting = ["pausedTasks", "endedTasks"];
        let resting = resting.iter().flat_map(|member| items(&answer[*member]));
        print_with(&in_queue(&answer), resting.collect(), format)?;
        if format == Format::Table {
            note_failures(items(&answer["endedTasks"]));
        }
        return Ok(());
    }
    print(&in_queue(&answer), format)?;
    if format == Format::Table {
        for task in items(&answer["pausedTasks"]) {
            let id = text(task, "taskId");
            let since = time(task, "startTime");
            output::note(format_args!(
                "paused: task {id}, created {since}; `det task unpause {id}` lets it go on"
            ));
        }
    }
    Ok(())
}

/// Most tasks of which a list prints why they failed.
const EXPLAINED: usize = 5;

/// Prints why those of some tasks that have ended failed that did, the newest first.
fn note_failures<'a>(ended: impl Iterator<Item = &'a Value>) {
    let failed = ended.filter(|task| task["lastFailure"].is_object());
    for (index, task) in failed.enumerate() {
        if index == EXPLAINED {
            output::note("others failed too: `det job why TASK_ID` explains it");
            return;
        }
        let (id, failure) = (text(task, "taskId"), &task["lastFailure"]);
        let sentence = format!("task {id} failed: {}", text(failure, "reason"));
        output::note(with_last_lines(&sentence, &failure["lastLines"]));
    }
}

/// Prints tasks in the order of their registration.
pub(crate) fn print(tasks: &Tasks, format: Format) -> Result<(), CliError> {
    print_with(tasks, Vec::new(), format)
}

/// As [`print()`], and after them tasks that neither hold nor want slots, the oldest first.
fn print_with(tasks: &Tasks, mut resting: Vec<&Value>, format: Format) -> Result<(), CliError> {
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
        "State",
        "Owner",
        "Description",
    ]);
    let mut in_order: Vec<&Value> = tasks.values().collect();
    in_order.sort_by_key(|task| text(task, "registeredTime"));
    let mut directions = Vec::new();
    for task in in_order {
        let priority = priority_of(task, &mut directions);
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
            state_of(task),
            text(task, "username"),
            text(task, "description"),
        ]);
    }
    resting.sort_by_key(|task| text(task, "startTime"));
    for task in resting {
        let state = text(task, "taskState");
        let state = state.strip_prefix("GENERIC_TASK_STATE_").unwrap_or(&state);
        let mut row = [const { String::new() }; 13];
        row[0] = text(task, "taskId");
        row[2] = text(task, "name");
        row[4] = time(task, "startTime");
        row[6] = priority_of(task, &mut directions);
        row[7] = text(task, "resourcePool");
        state.clone_into(&mut row[10]);
        row[11] = text(task, "username");
        row[12] = text(task, "description");
        listing.push(row);
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

/// The priority of a task, where its pool has any; which direction is the more important one is added to `directions`.
fn priority_of(task: &Value, directions: &mut Vec<String>) -> String {
    match task["schedulerType"].as_str() {
        Some("priority" | "kubernetes") => {
            directions.push(text(task, "priorityOrder"));
            text(task, "priority")
        }
        _ => "N/A".to_owned(),
    }
}

/// Where a task that holds or wants slots is in its life.
fn state_of(task: &Value) -> String {
    let placed = items(&task["resources"]).next().is_some();
    match &*state(task, "state") {
        // The word of the lists of commands and services.
        "TERMINATING" => "TERMINATING".to_owned(),
        // It was asked to save and give its slots back.
        _ if task["isStopping"] == true => "STOPPING".to_owned(),
        // An older master lists no states.
        "" | "UNSPECIFIED" if placed => "RUNNING".to_owned(),
        "" | "UNSPECIFIED" => "QUEUED".to_owned(),
        known => known.to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_has_the_state_that_the_list_of_its_kind_shows() {
        let of = |state: Value, placed: bool, stopping: bool| {
            let resources = if placed { json!([{}]) } else { json!([]) };
            state_of(&json!({"state": state, "resources": resources, "isStopping": stopping}))
        };
        assert_eq!(of(json!("STATE_WAITING"), true, false), "WAITING");
        assert_eq!(of(json!("STATE_QUEUED"), false, false), "QUEUED");
        assert_eq!(of(json!("STATE_RUNNING"), true, true), "STOPPING");
        assert_eq!(of(json!("STATE_TERMINATING"), true, true), "TERMINATING");
        for older in [Value::Null, json!("STATE_UNSPECIFIED")] {
            assert_eq!(of(older.clone(), true, false), "RUNNING");
            assert_eq!(of(older, false, false), "QUEUED");
        }
    }
}
