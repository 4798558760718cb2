//! `det job list`: the queue.

use clap::{Args, Subcommand};
use det_client::{Query, api_path};
use det_config::yaml::to_yaml;
use serde_json::{Value, json};

use crate::args::PageArgs;
use crate::commands::tasks::priority_direction;
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::table::{Format, Listing};
use crate::values::{items, state, text, time, wait_reason};

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

/// Shown in place of what the person may not see.
const OMITTED: &str = "***";

/// Carries out `det job …`.
pub(crate) async fn run(args: JobArgs, context: &Context) -> Result<(), CliError> {
    let args = match args.action {
        None => ListArgs::default(),
        Some(JobAction::List(args)) => args,
    };
    let client = context.session().await?.client;
    let pools = client
        .get(&api_path(["resource-pools"]), &Query::new())
        .await?;
    let pool = find_pool(&pools, args.resource_pool.as_deref())?;
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
    rows(&jobs, by_priority).print(format, &json!({ "jobs": jobs }))?;
    if by_priority && format == Format::Table {
        let direction = priority_direction(&text(pool, "schedulerType"));
        output::note(format_args!("priority: {direction}"));
    }
    Ok(())
}

/// The pool asked for, or the default one for computing.
fn find_pool<'a>(answer: &'a Value, name: Option<&str>) -> Result<&'a Value, CliError> {
    let pools = || items(&answer["resourcePools"]);
    let found = pools().find(|pool| match name {
        Some(name) => pool["name"] == name,
        None => pool["defaultComputePool"] == true,
    });
    found.ok_or_else(|| {
        let names: Vec<String> = pools().map(|pool| text(pool, "name")).collect();
        let wanted = match name {
            Some(name) => format!("there is no resource pool \"{name}\""),
            None => "no resource pool is the default for computing".to_owned(),
        };
        CliError::request(format!("{wanted}; the pools are: {}", names.join(", ")))
    })
}

/// The job itself, marked by whether all of it may be seen.
fn unwrap_job(mut job: Value) -> Option<Value> {
    for form in ["full", "limited"] {
        if job[form].is_object() {
            return Some(job[form].take());
        }
    }
    None
}

fn rows(jobs: &[Value], by_priority: bool) -> Listing {
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
            wait_reason(job),
        ]);
    }
    listing
}
