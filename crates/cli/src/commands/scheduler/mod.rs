//! `det scheduler simulate`: plays a scenario of a cluster and its workload through the master's planner.

mod cluster;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use det_config::units::parse_duration;
use det_scenario::{
    Detail, EndCondition, Expectation, JobReport, OnImpossible, Options, Report, Scenario, play,
    read,
};
use det_scheduler::Policy;

use self::cluster::Guesses;
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;
use crate::table::Listing;

/// Options of `det scheduler`.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Play a scenario on a simulated clock, and print what starts, stops and waits when, and why
    ///
    /// The format of a scenario is in docs/scheduler-simulation.md. Exit code 1 when the file has errors, or when
    /// something that it expects does not happen.
    Simulate(SimulateArgs),
}

#[derive(Debug, Args)]
struct SimulateArgs {
    /// Scenario (YAML or JSON); - for standard input
    #[arg(required_unless_present = "from_cluster")]
    file: Option<PathBuf>,
    /// Start from the agents and the queue of the cluster as they are now; the steps of FILE, if given, go on from there
    #[arg(long)]
    from_cluster: bool,
    /// Resource pool to start from [default: the one for computing]
    #[arg(long, value_name = "POOL", requires = "from_cluster")]
    pool: Option<String>,
    /// How long each task of the cluster is taken to run from now on, or from its start
    #[arg(long, value_name = "DURATION", default_value = "1h", requires = "from_cluster", value_parser = duration)]
    duration: Duration,
    /// How long each of them takes to save and leave when it is asked to stop
    #[arg(long, value_name = "DURATION", default_value = "1m", requires = "from_cluster", value_parser = parse_duration)]
    stops_in: Duration,
    /// Play under this policy instead of the pool's; several, repeated or with commas, are compared
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = PossibleValuesParser::new(POLICIES))]
    policy: Vec<String>,
    /// Print as JSON: every moment with its decisions, placements, queue and reasons
    #[arg(long)]
    json: bool,
}

const POLICIES: [&str; 4] = ["priority", "priority-preempt", "fair-share", "round-robin"];

/// Priority of jobs that name none, where the pool's own policy has no default.
const DEFAULT_PRIORITY: u8 = 42;

fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() {
        return Err("a task runs for longer than that".to_owned());
    }
    Ok(duration)
}

/// Carries out `det scheduler …`. The master is asked only with `--from-cluster`.
pub(crate) async fn run(
    args: SchedulerArgs,
    context: impl Fn() -> Result<Context, CliError>,
) -> Result<ExitCode, CliError> {
    let Action::Simulate(args) = args.action;
    let described = match &args.file {
        Some(path) => Some(load(path)?),
        None => None,
    };
    let scenario = match described {
        Some(described) if !args.from_cluster => described,
        described => {
            let now = jiff::Timestamp::now();
            let answers = cluster::ask(&context()?, args.pool.as_deref()).await?;
            let guesses = Guesses {
                duration: args.duration,
                stops_in: args.stops_in,
            };
            let (start, notes) = cluster::scenario(&answers, now, guesses)?;
            for note in notes {
                output::note(note);
            }
            continue_from(start, described, args.file.as_deref())?
        }
    };
    let file = args
        .file
        .as_deref()
        .map_or_else(|| "the cluster's queue".to_owned(), shown_name);
    match args.policy.as_slice() {
        [] => single(&file, &scenario, OnImpossible::Fail, args.json),
        [policy] => single(
            &file,
            &under(&scenario, policy),
            OnImpossible::Skip,
            args.json,
        ),
        policies => compare(&file, &scenario, policies, args.json),
    }
}

fn load(path: &Path) -> Result<Scenario, CliError> {
    read(&read_text(path)?).map_err(|errors| unusable(&shown_name(path), &errors))
}

/// The errors of a scenario, each with the file before its line.
fn unusable(file: &str, errors: &det_scenario::DescriptionErrors) -> CliError {
    let lines: Vec<String> = errors
        .to_string()
        .lines()
        .map(|line| format!("{file}: {line}"))
        .collect();
    CliError::request(format!(
        "the scenario cannot be played:\n{}",
        lines.join("\n")
    ))
    .with_hint("docs/scheduler-simulation.md describes every key")
}

/// A scenario that starts with the cluster as it is, and continues with the jobs and steps of a file.
fn continue_from(
    mut start: Scenario,
    described: Option<Scenario>,
    file: Option<&Path>,
) -> Result<Scenario, CliError> {
    let Some(described) = described else {
        return Ok(start);
    };
    let file = file.map_or_else(String::new, shown_name);
    if !described.pool.agents.is_empty() {
        return Err(CliError::request(format!(
            "{file}: agents: come from the cluster; leave them out, or let others \"join\" in a step"
        )));
    }
    if described.pool.settings != det_scheduler::PoolSettings::default() {
        return Err(CliError::request(format!(
            "{file}: pool: its settings come from the cluster; leave them out, or give --policy"
        )));
    }
    if !described.name.is_empty() {
        start.name = described.name;
    }
    start.about = described.about;
    start.jobs = described.jobs;
    start.steps.extend(described.steps);
    if described.until != EndCondition::LastStep {
        start.until = described.until;
    }
    Ok(start)
}

/// The same scenario under another policy, without the expectations, which are about its own.
fn under(scenario: &Scenario, policy: &str) -> Scenario {
    let mut other = scenario.clone();
    for step in &mut other.steps {
        step.expect = Expectation::default();
    }
    let settings = &mut other.pool.settings;
    let default_priority = match settings.policy {
        Policy::Priority {
            default_priority, ..
        } => default_priority,
        Policy::FairShare | Policy::RoundRobin => DEFAULT_PRIORITY,
    };
    settings.policy = match policy {
        "fair-share" => Policy::FairShare,
        "round-robin" => Policy::RoundRobin,
        other => Policy::Priority {
            preemption: other == "priority-preempt",
            default_priority,
        },
    };
    other
}

fn played(
    file: &str,
    scenario: &Scenario,
    detail: Detail,
    on_impossible: OnImpossible,
) -> Result<Report, CliError> {
    let options = Options {
        detail,
        on_impossible,
    };
    play(scenario, options).map_err(|errors| unusable(file, &errors))
}

/// Plays and prints one scenario.
fn single(
    file: &str,
    scenario: &Scenario,
    on_impossible: OnImpossible,
    json: bool,
) -> Result<ExitCode, CliError> {
    let detail = if json {
        Detail::Everything
    } else {
        Detail::Changes
    };
    let report = played(file, scenario, detail, on_impossible)?;
    if json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    for mismatch in &report.mismatches {
        output::note(format_args!("{file}: {mismatch}"));
    }
    Ok(if report.mismatches.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(report: &Report) -> Result<(), CliError> {
    for line in report.timeline() {
        output::line(line)?;
    }
    let mut jobs = Listing::new([
        "Job",
        "Tasks",
        "Completed",
        "Running",
        "Waiting",
        "First Start",
        "Mean Wait",
        "Longest Wait",
        "Preemptions",
        "Slot Seconds",
    ]);
    for job in &report.jobs {
        jobs.push([
            job.job.clone(),
            job.tasks.to_string(),
            job.completed.to_string(),
            job.running.to_string(),
            job.waiting.to_string(),
            job.first_start.map_or_else(|| "never".to_owned(), clock),
            clock(job.mean_wait),
            clock(job.longest_wait),
            job.preempted.to_string(),
            format!("{:.0}", job.slot_seconds),
        ]);
    }
    output::line("")?;
    output::line(jobs.to_table())?;
    output::line("")?;
    let simulated = clock(report.seconds);
    match used(report) {
        Some(part) => output::line(format_args!(
            "{simulated} simulated; {part} of the slots in service were used"
        )),
        None if report.seconds > 0.0 => output::line(format_args!(
            "{simulated} simulated; no slot was in service"
        )),
        None => output::line(
            "no time passed: steps with `after` or `at`, or `until: rest`, let it pass",
        ),
    }
}

/// The part of the slots in service that was used; `None` when there were none.
fn used(report: &Report) -> Option<String> {
    let utilisation = report.utilisation;
    (utilisation.offered > 0.0).then(|| format!("{:.1}%", utilisation.part * 100.0))
}

/// Plays a scenario under several policies, and prints a row for each.
fn compare(
    file: &str,
    scenario: &Scenario,
    policies: &[String],
    json: bool,
) -> Result<ExitCode, CliError> {
    let mut reports = Vec::new();
    for policy in policies {
        let other = under(scenario, policy);
        let detail = if json {
            Detail::Everything
        } else {
            Detail::Changes
        };
        // An operation on a task that runs under one policy may be impossible where it does not run.
        reports.push(played(file, &other, detail, OnImpossible::Skip)?);
    }
    if json {
        output::json(&reports)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Listing::new([
        "Policy",
        "Mean Wait",
        "Longest Wait",
        "Preemptions",
        "Completed",
        "Waiting",
        "Simulated",
        "Utilisation",
    ]);
    for (policy, report) in policies.iter().zip(&reports) {
        let tasks: u64 = report.jobs.iter().map(|job| job.tasks).sum();
        let waited: f64 = report
            .jobs
            .iter()
            .map(|job| job.mean_wait * real(job.tasks))
            .sum();
        let longest = report
            .jobs
            .iter()
            .map(|job| job.longest_wait)
            .fold(0.0, f64::max);
        let sum = |count: fn(&det_scenario::JobReport) -> u64| {
            report.jobs.iter().map(count).sum::<u64>().to_string()
        };
        rows.push([
            policy.clone(),
            clock(waited / real(tasks.max(1))),
            clock(longest),
            sum(|job| job.preempted),
            sum(|job| job.completed),
            sum(|job| job.waiting),
            clock(report.seconds),
            used(report).unwrap_or_else(|| "no slots".to_owned()),
        ]);
    }
    output::line(rows.to_table())?;
    by_job(policies, &reports)?;
    Ok(ExitCode::SUCCESS)
}

/// Most jobs in the table of a comparison.
const MOST_JOBS: usize = 20;

/// Prints a row for each job whose wait, start or end differs, the largest differences first.
fn by_job(policies: &[String], reports: &[Report]) -> Result<(), CliError> {
    let Some(first) = reports.first() else {
        return Ok(());
    };
    // Jobs are sorted by name.
    let of = |report: &'_ Report, name: &str| {
        let jobs = &report.jobs;
        jobs.binary_search_by(|job| job.job.as_str().cmp(name)).ok()
    };
    let mut jobs: Vec<(f64, &str, Vec<Option<&JobReport>>)> = first
        .jobs
        .iter()
        .map(|job| {
            let found = reports
                .iter()
                .map(|report| Some(&report.jobs[of(report, &job.job)?]));
            let each: Vec<Option<&JobReport>> = found.collect();
            (change(&each), job.job.as_str(), each)
        })
        .filter(|(change, ..)| *change > 0.0)
        .collect();
    jobs.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    output::line("")?;
    if jobs.is_empty() {
        return output::line("No job waits, starts or ends at another time under another policy.");
    }
    let headers = policies
        .iter()
        .map(|policy| format!("{policy}: wait, start, end"));
    let mut rows = Listing::new(std::iter::once("Job".to_owned()).chain(headers));
    for (_, name, each) in jobs.iter().take(MOST_JOBS) {
        let cells = each.iter().map(|job| job.map_or_else(String::new, fared));
        rows.push(std::iter::once((*name).to_owned()).chain(cells));
    }
    output::line(rows.to_table())?;
    let left_out = jobs.len().saturating_sub(MOST_JOBS);
    let same = first.jobs.len() - jobs.len();
    if left_out > 0 {
        output::note(format_args!(
            "{left_out} more with smaller differences: --json has all of them"
        ));
    }
    if same > 0 {
        output::note(format_args!("{same} that fare the same are left out"));
    }
    Ok(())
}

/// Seconds by which a job's mean wait, start or end differ most between the reports.
fn change(each: &[Option<&JobReport>]) -> f64 {
    // What has not happened by the end counts as later than everything that has.
    let value = |of: fn(&JobReport) -> f64| {
        let values = || each.iter().flatten().map(|job| of(job));
        let (low, high) = (
            values().fold(f64::INFINITY, f64::min),
            values().fold(f64::NEG_INFINITY, f64::max),
        );
        if high > low { high - low } else { 0.0 }
    };
    value(|job| job.mean_wait)
        .max(value(|job| job.first_start.unwrap_or(f64::MAX)))
        .max(value(|job| job.last_end.unwrap_or(f64::MAX)))
}

fn fared(job: &JobReport) -> String {
    let at = |time: Option<f64>| time.map_or_else(|| "never".to_owned(), clock);
    format!(
        "{}, {}, {}",
        clock(job.mean_wait),
        at(job.first_start),
        at(job.last_end)
    )
}

/// Seconds as `h:mm:ss`.
fn clock(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.round()).map_or(u64::MAX, |d| d.as_secs());
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of tasks are small")]
fn real(number: u64) -> f64 {
    number as f64
}
