//! `det job`: the queue, and changes of it.

mod capacity;

use clap::{Args, Subcommand};
use det_client::{Client, Query, api_path};
use det_config::yaml::to_yaml;
use det_ids::TrialId;
use serde_json::{Value, json};

use self::capacity::missing_capacity;
use crate::commands::failures::{self, with_last_lines};
use crate::commands::lookup;
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::paging::PageArgs;
use crate::table::{Format, Listing};
use crate::values::{
    amount, items, joined, note_whole_reasons, priority_orders, state, text, time, wait_reason,
    wait_reason_in, weight,
};

/// Options of `det job`.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    action: Option<JobAction>,
}

#[derive(Debug, Subcommand)]
enum JobAction {
    /// List the jobs of a resource pool in the order of the queue (the default)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Explain why a job, a task or a trial runs or waits
    ///
    /// A "place" in reasons is what tasks run on: a machine with an agent, or a node of Kubernetes.
    Why(WhyArgs),
    /// Change the place or the share of a job
    #[command(visible_aliases = ["u", "set"])]
    Update(UpdateArgs),
    /// Change several jobs: all of them or, if one change is refused, none
    UpdateBatch(BatchArgs),
}

#[derive(Debug, Args)]
struct WhyArgs {
    /// Id of a job, of a task (or enough of its beginning) or of an allocation, or the number of an experiment
    #[arg(required_unless_present = "trial")]
    id: Option<String>,
    /// Number of a trial, in place of an id
    #[arg(short, long, value_name = "TRIAL_ID", conflicts_with = "id")]
    trial: Option<TrialId>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct UpdateArgs {
    /// Id of a job, of a task (or enough of its beginning) or of an allocation, or the number of an experiment
    #[arg(value_name = "ID")]
    job_id: String,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ChangeArgs {
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
        help = concat!("New priority, 1 to 99: ", priority_orders!()))]
    priority: Option<i64>,
    /// New weight in fair share, above 0
    #[arg(short, long, value_name = "X", allow_negative_numbers = true, value_parser = weight)]
    weight: Option<f64>,
    /// Pool to move the job to: its trials save, stop and go on there
    #[arg(long, value_name = "POOL")]
    resource_pool: Option<String>,
    /// Serve it directly before this job, with that one's priority
    #[arg(long, value_name = "JOB_ID")]
    ahead_of: Option<String>,
    /// Serve it directly after this job, with that one's priority
    #[arg(long, value_name = "JOB_ID")]
    behind_of: Option<String>,
}

#[derive(Debug, Args)]
struct BatchArgs {
    /// Changes as `JOB_ID.OPERATION=VALUE`; operations are priority, weight, resource-pool, ahead-of and behind-of
    #[arg(required = true, value_name = "OPERATION")]
    operations: Vec<String>,
}

#[derive(Debug, Default, Args)]
struct ListArgs {
    /// The pool [default: the one for computing]
    #[arg(short = 'p', long, value_name = "POOL")]
    resource_pool: Option<String>,
    #[command(flatten)]
    paging: PageArgs,
    /// The end of the queue first
    #[arg(long)]
    reverse: bool,
    #[command(flatten)]
    form: FormArgs,
}

#[derive(Debug, Default, Args)]
#[group(multiple = false)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four flags of which at most one is set, as the command line has them"
)]
struct FormArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Print as YAML
    #[arg(long)]
    yaml: bool,
    /// Print as a table (the default)
    #[arg(long)]
    table: bool,
    /// Print as CSV
    #[arg(long)]
    csv: bool,
}

/// Shown in place of what the user may not see.
const OMITTED: &str = "***";

/// Carries out `det job …`.
pub(crate) async fn run(args: JobArgs, context: &Context) -> Result<(), CliError> {
    match args.action {
        None => list(ListArgs::default(), context).await,
        Some(JobAction::List(args)) => list(args, context).await,
        Some(JobAction::Why(args)) => why(&args, context).await,
        Some(JobAction::Update(args)) => {
            let UpdateArgs { job_id, change } = args;
            let pool = change.resource_pool.clone();
            let update = json!({
                "jobId": job_id,
                "priority": change.priority,
                "weight": change.weight,
                "resourcePool": change.resource_pool,
                "aheadOf": change.ahead_of,
                "behindOf": change.behind_of,
            });
            send(vec![update], context).await?;
            if let Some(pool) = pool {
                output::note(format_args!(
                    "its running tasks are asked to save and stop, and continue in resource pool {pool} from there; \
                     det job why {job_id} shows its state"
                ));
            }
            output::line(format_args!("Updated job {job_id}"))
        }
        Some(JobAction::UpdateBatch(args)) => {
            let updates: Vec<Value> = args
                .operations
                .iter()
                .map(|operation| parse_operation(operation).map_err(CliError::usage))
                .collect::<Result<_, _>>()?;
            let count = updates.len();
            send(updates, context).await?;
            output::line(format_args!("Made {count} changes of the queue"))
        }
    }
}

async fn why(args: &WhyArgs, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    let mut trial = json!(null);
    let job_id = match (&args.trial, &args.id) {
        (Some(id), _) => {
            let path = api_path(["trials", &id.to_string()]);
            trial = client.get(&path, &Query::new()).await?["trial"].take();
            job_id(&client, &text(&trial, "experimentId")).await?
        }
        (None, Some(id)) if id.parse::<u64>().is_ok() => job_id(&client, id).await?,
        // The master knows that of a task itself.
        (None, id) => lookup::task_id(&client, id.clone().unwrap_or_default()).await?,
    };
    let mut explanation = client
        .get(&api_path(["job-queues", &job_id, "why"]), &Query::new())
        .await?;
    if args.json {
        if args.trial.is_some() {
            explanation["lastFailure"] = trial["lastFailure"].take();
        }
        return output::json(&explanation);
    }
    let failure = failures::sentence(&trial);
    if failure.is_some() {
        // Those of the trial that was asked about are shown, and none beside them.
        explanation["lastLines"].take();
    }
    output::write(explanation_text(&explanation))?;
    failure.map_or(Ok(()), |failure| output::line(sentence_start(&failure)))
}

/// The id of a job that is named as for `det job why`: by it, by a task (or enough of the beginning of its id) or an allocation, or
/// by the number of its experiment.
async fn job_id(client: &Client, named: &str) -> Result<String, CliError> {
    if named.parse::<u64>().is_err() {
        let id = lookup::task_id(client, named.to_owned()).await?;
        let answer = client
            .get(&api_path(["job-queues", &id, "why"]), &Query::new())
            .await?;
        return Ok(text(&answer["job"], "jobId"));
    }
    let path = api_path(["experiments", named]);
    let answer = client.get(&path, &Query::new()).await?;
    Ok(text(&answer["experiment"], "jobId"))
}

/// The explanation of a job's state, as text of several lines.
fn explanation_text(explanation: &Value) -> String {
    let mut lines = Vec::new();
    let (job, pool) = (&explanation["job"], &explanation["pool"]);
    let rule = Rule::of(pool);
    lines.push(format!(
        "{} ({}) of {}, job {}: {}",
        sentence_start(&text(job, "label")),
        text(job, "name"),
        text(job, "username"),
        text(job, "jobId"),
        with_last_lines(&text(explanation, "summary"), &explanation["lastLines"]),
    ));
    let out = match pool["agentsOutOfService"].as_i64() {
        Some(out @ 1..) => format!(", and {out} that take no work now"),
        _ => String::new(),
    };
    // What runs outside the cluster is in no pool.
    if !text(pool, "name").is_empty() {
        lines.push(format!(
            "Resource pool {}: {} of {} free on {}{out}; {}",
            text(pool, "name"),
            text(pool, "freeSlots"),
            amount(&text(pool, "slots"), "slot"),
            amount(&text(pool, "agents"), "agent"),
            text(pool, "scheduling"),
        ));
    }
    lines.extend(missing_capacity(pool));
    if items(&explanation["waiting"]).next().is_some() {
        lines.push("Waiting:".to_owned());
    }
    let waiting: Vec<&Value> = items(&explanation["waiting"]).collect();
    for alike in waiting.chunk_by(|a, b| have_same_reason(a, b)) {
        lines.extend(waiting_lines(alike));
    }
    for (title, member) in [
        ("Running:", "running"),
        ("Others hold:", "heldBy"),
        (
            "Its workspace has in other pools:",
            "workspaceHeldInOtherPools",
        ),
    ] {
        if items(&explanation[member]).next().is_some() {
            lines.push(title.to_owned());
        }
        let others = member != "running";
        lines.extend(
            items(&explanation[member]).map(|holder| holder_line(holder, others.then_some(rule))),
        );
    }
    let count = explanation["aheadCount"].as_i64().unwrap_or(0);
    if count > 0 {
        lines.push(match rule {
            Rule::Priority => format!(
                "Served before it ({count}; by priority, {}):",
                text(pool, "priorityOrder")
            ),
            Rule::FairShare => format!("Share the pool with it, by weight and demand ({count}):"),
            Rule::RoundRobin => format!("Take turns with it ({count}):"),
        });
    }
    for ahead in items(&explanation["ahead"]) {
        lines.push(format!(
            "  {} ({}) of {}: {}has {} of {}, job {}",
            text(ahead, "label"),
            text(ahead, "name"),
            text(ahead, "username"),
            rule.rank(ahead)
                .map_or_else(String::new, |rank| format!("{rank}, ")),
            text(ahead, "allocatedSlots"),
            amount(&text(ahead, "requestedSlots"), "slot"),
            text(ahead, "jobId"),
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// A text with its first letter in upper case.
fn sentence_start(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

/// Most tasks that are named when several wait for the same reason.
const NAMED: usize = 5;

/// Whether two tasks wait for the same reason with the same message; the times since when may differ.
fn have_same_reason(a: &Value, b: &Value) -> bool {
    [
        "slots",
        "resourcePool",
        "estimatedStart",
        "estimateBasis",
        "otherPools",
        "lastEnd",
    ]
    .iter()
    .all(|member| a[*member] == b[*member])
        && a["waitReason"]["message"] == b["waitReason"]["message"]
}

/// The lines about tasks that wait for the same reason: the first in full, the others by name.
fn waiting_lines(alike: &[&Value]) -> Vec<String> {
    let Some((task, others)) = alike.split_first() else {
        return Vec::new();
    };
    let reason = match wait_reason(task) {
        reason if reason.is_empty() => "the scheduler has not looked at it yet".to_owned(),
        reason => reason,
    };
    let mut lines = vec![format!(
        "  {} ({}, in resource pool {} since {}): {reason}",
        name_and_id(task),
        slots(task),
        text(task, "resourcePool"),
        time(task, "since"),
    )];
    lines.push(match time(task, "estimatedStart") {
        at if at.is_empty() => format!("    no estimate: {}", text(task, "estimateBasis")),
        at => format!("    may start at {at}, {}", text(task, "estimateBasis")),
    });
    let last_end = text(task, "lastEnd");
    if !last_end.is_empty() {
        let at = match time(task, "lastEndedAt") {
            at if at.is_empty() => at,
            at => format!(" at {at}"),
        };
        lines.push(format!("    its last attempt ended{at}: {last_end}"));
    }
    let other_pools = task["otherPools"].as_array().into_iter().flatten();
    lines.extend(other_pools.filter_map(|line| Some(format!("    {}", line.as_str()?))));
    if !others.is_empty() {
        let name = |task: &&Value| match text(task, "label") {
            name if name.is_empty() => text(task, "allocationId"),
            name => name,
        };
        let mut named: Vec<String> = others.iter().take(NAMED).map(name).collect();
        if others.len() > NAMED {
            named.push(format!("{} more", others.len() - NAMED));
        }
        let wait = if others.len() == 1 { "waits" } else { "wait" };
        lines.push(format!(
            "    for the same reason {wait} {}",
            named.join(", ")
        ));
    }
    lines
}

/// What decides the order of jobs in a pool.
#[derive(Clone, Copy)]
enum Rule {
    Priority,
    FairShare,
    RoundRobin,
}

impl Rule {
    fn of(pool: &Value) -> Self {
        match pool["schedulerType"].as_str() {
            Some("SCHEDULER_TYPE_FAIR_SHARE") => Self::FairShare,
            Some("SCHEDULER_TYPE_ROUND_ROBIN") => Self::RoundRobin,
            _ => Self::Priority,
        }
    }

    /// The value of a job that decides its position; `None` when jobs take turns.
    fn rank(self, job: &Value) -> Option<String> {
        match self {
            Self::Priority => Some(format!("priority {}", text(job, "priority"))),
            Self::FairShare => Some(format!("weight {}", text(job, "weight"))),
            Self::RoundRobin => None,
        }
    }
}

/// A task's name, and the id that other commands take.
fn name_and_id(task: &Value) -> String {
    let id = text(task, "allocationId");
    match text(task, "label") {
        name if name.is_empty() => id,
        name => format!("{name} [{id}]"),
    }
}

fn slots(task: &Value) -> String {
    amount(&text(task, "slots"), "slot")
}

/// A line about an allocation that holds slots, with the owner if it belongs to another job.
fn holder_line(holder: &Value, others: Option<Rule>) -> String {
    let owner = others.map_or_else(String::new, |rule| {
        let rank = rule.rank(holder);
        format!(
            " of {} ({}{})",
            text(holder, "username"),
            text(holder, "name"),
            rank.map_or_else(String::new, |rank| format!(", {rank}")),
        )
    });
    let stays = match (&holder["isStopping"], &holder["isPreemptible"]) {
        (Value::Bool(true), _) => ", has been asked to stop",
        (_, Value::Bool(false)) => ", cannot be preempted",
        _ => "",
    };
    let place = match joined(holder, "agents") {
        agents if agents.is_empty() => format!("in {}", text(holder, "resourcePool")),
        agents => format!("on {agents}"),
    };
    format!(
        "  {}{owner}: {} {place} since {}{stays}",
        name_and_id(holder),
        slots(holder),
        time(holder, "since"),
    )
}

async fn send(mut updates: Vec<Value>, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    for update in &mut updates {
        for member in ["jobId", "aheadOf", "behindOf"] {
            if let Some(named) = update[member].as_str() {
                update[member] = job_id(&client, named).await?.into();
            }
        }
    }
    let body = json!({ "updates": updates });
    client.post(&api_path(["job-queues"]), Some(&body)).await?;
    Ok(())
}

/// Parses a change such as `JOB_ID.priority=3` into a member of the request.
fn parse_operation(text: &str) -> Result<Value, String> {
    let shape = || {
        format!(
            "\"{text}\" is no change of a job: write JOB_ID.OPERATION=VALUE, such as {}.priority=3",
            text.split('.')
                .next()
                .filter(|id| !id.is_empty())
                .unwrap_or("JOB_ID")
        )
    };
    let (job_id, rest) = text.split_once('.').ok_or_else(shape)?;
    let (operation, value) = rest.split_once('=').ok_or_else(shape)?;
    if job_id.is_empty() || value.is_empty() {
        return Err(shape());
    }
    let number = |what: &str| format!("\"{text}\": {what}, found \"{value}\"");
    let (member, value) = match operation.replace('_', "-").as_str() {
        "priority" => {
            let priority: i64 = value
                .parse()
                .map_err(|_| number("a priority is a whole number from 1 to 99"))?;
            ("priority", json!(priority))
        }
        "weight" => {
            let weight = weight(value).map_err(|wrong| number(&wrong))?;
            ("weight", json!(weight))
        }
        "resource-pool" => ("resourcePool", json!(value)),
        "ahead-of" => ("aheadOf", json!(value)),
        "behind-of" => ("behindOf", json!(value)),
        other => {
            return Err(format!(
                "\"{text}\": there is no operation \"{other}\"; there are priority, weight, resource-pool, ahead-of and behind-of"
            ));
        }
    };
    Ok(json!({"jobId": job_id, member: value}))
}

async fn list(args: ListArgs, context: &Context) -> Result<(), CliError> {
    let client = context.session().await?.client;
    let pools = client
        .get(&api_path(["resource-pools"]), &Query::new())
        .await?;
    let pool = lookup::pool(&pools, args.resource_pool.as_deref())?;
    let order = if args.reverse {
        "ORDER_BY_DESC"
    } else {
        "ORDER_BY_ASC"
    };
    let query = Query::new()
        .with_some("resourcePool", args.resource_pool.as_deref())
        .with("orderBy", order);
    let jobs: Vec<Value> = client
        .list(
            &api_path(["job-queues-v2"]),
            &query,
            "jobs",
            args.paging.paging(100),
        )
        .await?
        .into_iter()
        .filter_map(unwrap_job)
        .collect();
    args.paging.note_pages(jobs.len());
    if args.form.yaml {
        return output::write(to_yaml(&json!({ "jobs": jobs })));
    }
    let by_priority = matches!(
        pool["schedulerType"].as_str(),
        Some("SCHEDULER_TYPE_PRIORITY" | "SCHEDULER_TYPE_KUBERNETES")
    );
    let format = match (args.form.json, args.form.csv) {
        (true, _) => Format::Json,
        (_, true) => Format::Csv,
        _ => Format::Table,
    };
    rows(&jobs, by_priority, format).print(format, &json!({ "jobs": jobs }))?;
    if by_priority && format == Format::Table {
        output::note(format_args!("priority: {}", text(pool, "priorityOrder")));
    }
    note_whole_reasons(format, &jobs);
    let elsewhere = busy_pools(&pools, pool);
    if args.resource_pool.is_none() && format == Format::Table && !elsewhere.is_empty() {
        output::note(format_args!(
            "this is resource pool {}; there are jobs in {} as well: -p POOL shows them",
            text(pool, "name"),
            elsewhere.join(", ")
        ));
    }
    Ok(())
}

/// The other pools that have jobs, each with their number.
fn busy_pools(pools: &Value, shown: &Value) -> Vec<String> {
    let others = items(&pools["resourcePools"]).filter(|pool| pool["name"] != shown["name"]);
    others
        .filter_map(|pool| {
            let count = |member: &str| pool["stats"][member].as_i64().unwrap_or(0);
            let jobs = count("queuedCount") + count("scheduledCount");
            (jobs > 0).then(|| format!("{} ({jobs})", text(pool, "name")))
        })
        .collect()
}

/// The job inside an element of the list, which contains it in full or without what the user may not see.
fn unwrap_job(mut job: Value) -> Option<Value> {
    for form in ["full", "limited"] {
        if job[form].is_object() {
            return Some(job[form].take());
        }
    }
    None
}

fn rows(jobs: &[Value], by_priority: bool, format: Format) -> Listing {
    let mut listing = Listing::new([
        "#",
        "ID",
        "Type",
        "Job Name",
        if by_priority { "Priority" } else { "Weight" },
        "Submitted",
        "Slots (acquired/needed)",
        "State",
        "User",
        "Waiting Reason",
    ]);
    for job in jobs {
        let omitted = |shown: String| match job["name"] {
            Value::Null => OMITTED.to_owned(),
            _ => shown,
        };
        let ahead = match job["summary"]["jobsAhead"].as_i64() {
            Some(ahead) if ahead >= 0 => ahead.to_string(),
            _ => "N/A".to_owned(),
        };
        let name = match job["type"].as_str() {
            Some("TYPE_EXPERIMENT") => format!("{} ({})", text(job, "name"), text(job, "entityId")),
            _ => text(job, "name"),
        };
        let job_state = match state(&job["summary"], "state") {
            state if state.is_empty() => "N/A".to_owned(),
            state => state,
        };
        listing.push([
            ahead,
            text(job, "jobId"),
            text(job, "type").trim_start_matches("TYPE_").to_owned(),
            omitted(name),
            text(job, if by_priority { "priority" } else { "weight" }),
            omitted(time(job, "submissionTime")),
            format!(
                "{}/{}",
                text(job, "allocatedSlots"),
                text(job, "requestedSlots")
            ),
            job_state,
            omitted(text(job, "username")),
            wait_reason_in(format, job),
        ]);
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_pools_with_jobs_are_named() {
        let pool = |name: &str, queued: i64| json!({"name": name, "stats": {"queuedCount": queued, "scheduledCount": 1}});
        let idle = json!({"name": "idle", "stats": {"queuedCount": 0, "scheduledCount": 0}});
        let pools = json!({"resourcePools": [pool("a", 3), pool("b", 2), idle]});
        assert_eq!(busy_pools(&pools, &pools["resourcePools"][0]), ["b (3)"]);
    }

    #[test]
    fn tasks_that_wait_for_the_same_reason_are_shown_together() {
        let task = |name: &str, slots: u32, since: &str| {
            json!({"label": name, "allocationId": format!("{name}.1"), "slots": slots, "resourcePool": "p",
                "since": since, "estimateBasis": "no end is known",
                "waitReason": {"message": "no free slots", "since": since}})
        };
        let explain = |waiting: Vec<Value>| {
            explanation_text(&json!({"pool": {"name": "p", "agents": 1}, "waiting": waiting}))
        };
        let shown = explain(vec![
            task("a", 1, "2026-11-21T10:00:00Z"),
            task("b", 1, "2026-11-21T10:00:05Z"),
            task("c", 2, "2026-11-21T10:00:05Z"),
        ]);
        assert!(shown.contains("  a [a.1] (1 slot, "), "{shown}");
        assert!(
            shown.contains("\n    for the same reason waits b\n  c [c.1] (2 slots, "),
            "{shown}"
        );
        let many: Vec<Value> = (0..9)
            .map(|n| task(&n.to_string(), 1, "2026-11-21T10:00:00Z"))
            .collect();
        assert!(explain(many).contains("\n    for the same reason wait 1, 2, 3, 4, 5, 3 more\n"));
    }

    #[test]
    fn agents_that_are_away_are_named_with_what_they_have() {
        let away = json!({"agent": "a1", "since": "2026-11-21T10:00:00Z",
            "waitedUntil": "2026-11-21T10:10:00Z", "holds": ["trial 1 of experiment 1"]});
        let waiting = json!({"allocationId": "2.x.2", "slots": 1, "lastEnd": "agent \"a2\" was away for 11m",
            "lastEndedAt": "2026-11-21T10:00:00Z"});
        let shown = explanation_text(&json!({"waiting": [waiting],
            "pool": {"name": "p", "agentsAway": [away], "reconnectWaitSeconds": 600}}));
        for line in [
            "(agent_reconnect_wait of the pool is 600 seconds):\n  a1 since ",
            ": the master waits for it until ",
            "; it has trial 1 of experiment 1, which goes on there",
            ": agent \"a2\" was away for 11m\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn what_runs_outside_the_cluster_is_in_no_pool() {
        let shown = |pool: &str| {
            explanation_text(&json!({"pool": {"name": pool, "agents": 0}, "summary": "unmanaged"}))
        };
        assert!(!shown("").contains("Resource pool"), "{}", shown(""));
        assert!(shown("default").contains("Resource pool default: "));
    }

    #[test]
    fn jobs_have_the_labels_of_the_master_and_priorities_its_direction() {
        let ahead = json!({"label": "experiment 3", "name": "search", "username": "ada", "priority": 1,
            "allocatedSlots": 1, "requestedSlots": 2, "jobId": "j3"});
        let shown = explanation_text(
            &json!({"job": {"label": "command 9.x", "name": "command 9.x", "username": "bob", "jobId": "j"},
            "pool": {"agents": 1, "priorityOrder": "higher goes first"}, "summary": "waiting",
            "aheadCount": 1, "ahead": [ahead]}),
        );
        for line in [
            "Command 9.x (command 9.x) of bob, job j: waiting\n",
            "\nServed before it (1; by priority, higher goes first):\n",
            "\n  experiment 3 (search) of ada: priority 1, has 1 of 2 slots, job j3\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn a_change_names_job_operation_and_value() {
        assert_eq!(
            parse_operation("j-1.priority=3"),
            Ok(json!({"jobId": "j-1", "priority": 3}))
        );
        assert_eq!(
            parse_operation("j.resource_pool=a.b"),
            Ok(json!({"jobId": "j", "resourcePool": "a.b"}))
        );
        assert_eq!(
            parse_operation("j.ahead-of=k"),
            Ok(json!({"jobId": "j", "aheadOf": "k"}))
        );
        for (wrong, why) in [
            ("j", "write JOB_ID.OPERATION=VALUE, such as j.priority=3"),
            ("j.priority", "write JOB_ID.OPERATION=VALUE"),
            ("j.priority=", "write JOB_ID.OPERATION=VALUE"),
            (
                "j.priority=high",
                "whole number from 1 to 99, found \"high\"",
            ),
            ("j.size=3", "no operation \"size\""),
        ] {
            let error = parse_operation(wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
