//! `det experiment describe`: experiments with their trials and workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use det_client::{Client, Paging, Query, api_path};
use det_ids::ExperimentId;
use serde_json::{Value, json};

use super::follow::all_trials;
use super::get;
use super::lifecycle::Outcomes;
use super::outcome::{note_best_trial, note_failure, note_kept_checkpoints, note_missing_metric};
use crate::error::CliError;
use crate::output;
use crate::table::{Format, Listing};
use crate::values::{
    indented, items, members, number, plain, progress, state, text, time, wait_reason,
    wait_reason_in,
};

/// Options of `det experiment describe`.
#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    /// Ids of the experiments, separated by commas
    #[arg(value_delimiter = ',', required = true)]
    experiment_ids: Vec<ExperimentId>,
    /// Show all metrics
    #[arg(long)]
    metrics: bool,
    /// Show all steps of the trials in the table, not only the last ones
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    form: FormArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct FormArgs {
    /// Print as CSV
    #[arg(long)]
    csv: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Write experiments.csv, trials.csv and workloads.csv into this directory
    #[arg(long, value_name = "PATH")]
    outdir: Option<PathBuf>,
}

/// A trial, its workloads, and the id of its experiment.
struct TrialHistory {
    experiment: String,
    trial: Value,
    workloads: Vec<Value>,
}

/// Shows experiments, their trials and their workloads.
pub(crate) async fn run(client: &Client, args: &DescribeArgs) -> Result<ExitCode, CliError> {
    let mut outcomes = Outcomes::of(args.experiment_ids.len());
    let (mut found, mut answers) = (Vec::new(), Vec::new());
    for id in &args.experiment_ids {
        if let Some(answer) = outcomes.take(*id, get(client, *id).await)? {
            found.push(*id);
            answers.push(answer);
        }
    }
    if args.form.json {
        output::json(&answers)?;
        return Ok(outcomes.exit());
    }
    print(
        args,
        "Experiment:",
        "experiments.csv",
        &experiment_rows(&answers),
    )?;
    for answer in &answers {
        explain_waiting(answer);
        note_best_trial(&answer["experiment"]);
        note_kept_checkpoints(&answer["experiment"]);
    }

    let mut runs = Vec::new();
    for (id, answer) in found.iter().zip(&answers) {
        let trials = all_trials(client, *id).await?;
        note_failure(client, &answer["experiment"], &trials).await?;
        let before = runs.len();
        for trial in trials {
            let route = api_path(["trials", &text(&trial, "id"), "workloads"]);
            let workloads = client
                .list(&route, &Query::new(), "workloads", Paging::all(500))
                .await?;
            runs.push(TrialHistory {
                experiment: id.to_string(),
                trial,
                workloads,
            });
        }
        let workloads = runs[before..].iter().flat_map(|run| &run.workloads);
        let validations =
            workloads.map(|workload| &workload["validation"]["metrics"]["avgMetrics"]);
        let mut workloads = runs[before..].iter().flat_map(|run| &run.workloads);
        let trains = workloads.any(|workload| workload["training"].is_object());
        note_missing_metric(&answer["experiment"], validations, trains);
    }
    let format = match (args.form.csv, &args.form.outdir) {
        (false, None) => Format::Table,
        _ => Format::Csv,
    };
    print(args, "\nTrials:", "trials.csv", &trial_rows(&runs, format))?;
    if format == Format::Table {
        explain_waiting_trials(&runs);
    }
    let mut steps = TrialSteps::of(&runs);
    let left_out = if format == Format::Table && !args.all {
        steps.keep_last()
    } else {
        0
    };
    let workloads = workload_rows(&steps, args.metrics);
    print(args, "\nWorkloads:", "workloads.csv", &workloads)?;
    if left_out > 0 {
        output::note(format_args!(
            "{left_out} earlier steps are not shown; --all shows all"
        ));
    }
    Ok(outcomes.exit())
}

fn print(args: &DescribeArgs, title: &str, file: &str, listing: &Listing) -> Result<(), CliError> {
    if let Some(directory) = &args.form.outdir {
        return listing.save(&Path::new(directory).join(file));
    }
    output::line(title)?;
    if args.form.csv {
        output::for_programs(listing.to_csv())
    } else {
        output::line(listing.to_table())
    }
}

/// Prints why an experiment waits, if the master's answer contains a reason.
fn explain_waiting(answer: &Value) {
    let experiment = &answer["experiment"];
    let reason = [experiment, &answer["jobSummary"]]
        .into_iter()
        .map(wait_reason)
        .find(|reason| !reason.is_empty());
    if let Some(reason) = reason {
        output::note(format_args!(
            "experiment {} waits: {reason}",
            text(experiment, "id")
        ));
    }
}

/// Most trials that are named when several wait for the same reason.
const NAMED: usize = 5;

/// Prints in full why trials wait, once for all that wait for the same reason: the table has only a short form.
fn explain_waiting_trials(runs: &[TrialHistory]) {
    let mut alike: Vec<(&Value, Vec<String>)> = Vec::new();
    for TrialHistory { trial, .. } in runs {
        if wait_reason(trial).is_empty() {
            continue;
        }
        let message = |trial: &Value| trial["waitReason"]["message"].clone();
        let known = alike
            .iter_mut()
            .find(|(first, _)| message(first) == message(trial));
        match known {
            Some((_, ids)) => ids.push(text(trial, "id")),
            None => alike.push((trial, vec![text(trial, "id")])),
        }
    }
    for (trial, ids) in alike {
        let (named, more) = ids.split_at(ids.len().min(NAMED));
        let more = match more.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (trials, wait) = match ids.len() {
            1 => ("trial", "waits"),
            _ => ("trials", "wait"),
        };
        output::note(format_args!(
            "{trials} {}{more} {wait}: {}",
            named.join(", "),
            wait_reason(trial)
        ));
    }
}

fn experiment_rows(answers: &[Value]) -> Listing {
    let mut listing = Listing::new([
        "Experiment ID",
        "State",
        "Progress",
        "Started",
        "Ended",
        "Name",
        "Description",
        "Archived",
        "Resource Pool",
        "Labels",
    ]);
    for answer in answers {
        let experiment = &answer["experiment"];
        let mut labels: Vec<String> = items(&experiment["labels"]).map(plain).collect();
        labels.sort_unstable();
        listing.push([
            text(experiment, "id"),
            state(experiment, "state"),
            progress(experiment),
            time(experiment, "startTime"),
            time(experiment, "endTime"),
            text(experiment, "name"),
            text(experiment, "description"),
            text(experiment, "archived"),
            text(experiment, "resourcePool"),
            labels.join(", "),
        ]);
    }
    listing
}

fn trial_rows(runs: &[TrialHistory], format: Format) -> Listing {
    let mut listing = Listing::new([
        "Trial ID",
        "Experiment ID",
        "State",
        "Started",
        "Ended",
        "H-Params",
        "Waiting Reason",
    ]);
    for TrialHistory {
        experiment, trial, ..
    } in runs
    {
        listing.push([
            text(trial, "id"),
            experiment.clone(),
            state(trial, "state"),
            time(trial, "startTime"),
            time(trial, "endTime"),
            indented(&trial["hparams"]),
            wait_reason_in(format, trial),
        ]);
    }
    listing
}

/// What a trial reported at one number of batches.
#[derive(Default)]
struct Step {
    /// When the last report came.
    reported: String,
    /// Whether there is one of training or validation.
    is_reported: bool,
    training: BTreeMap<String, Value>,
    validation: BTreeMap<String, Value>,
    validated: String,
    checkpoint_state: String,
    checkpointed: String,
}

impl Step {
    /// The state of what was reported: a report is complete. Empty without one; a checkpoint has a state of its own.
    fn state(&self) -> &'static str {
        if self.is_reported { "COMPLETED" } else { "" }
    }
}

/// Most rows of the table of steps, unless there are more trials.
const MOST_STEPS: usize = 20;

/// The steps of trials, by the ids of these.
struct TrialSteps(Vec<(String, BTreeMap<i64, Step>)>);

impl TrialSteps {
    fn of(runs: &[TrialHistory]) -> Self {
        let runs = runs.iter();
        Self(
            runs.map(|run| (text(&run.trial, "id"), steps(&run.workloads)))
                .collect(),
        )
    }

    /// Drops all but the last steps of each trial; returns how many are left out.
    fn keep_last(&mut self) -> usize {
        let most = (MOST_STEPS / self.0.len().max(1)).max(1);
        let mut left_out = 0;
        for (_, steps) in &mut self.0 {
            while steps.len() > most {
                steps.pop_first();
                left_out += 1;
            }
        }
        left_out
    }
}

/// The steps of a trial: its training, validation and checkpoint reports, merged by the number of batches.
fn steps(workloads: &[Value]) -> BTreeMap<i64, Step> {
    let mut steps: BTreeMap<i64, Step> = BTreeMap::new();
    for workload in workloads {
        for kind in ["training", "validation", "checkpoint"] {
            let report = &workload[kind];
            let Some(batches) = report["totalBatches"].as_i64() else {
                continue;
            };
            let step = steps.entry(batches).or_default();
            let at = time(report, "endTime");
            // All times have one format and one zone, so the greater text is the later time.
            step.reported = step.reported.clone().max(at.clone());
            let metrics = || {
                members(&report["metrics"]["avgMetrics"])
                    .map(|(name, value)| (name.clone(), value.clone()))
            };
            step.is_reported |= kind != "checkpoint";
            match kind {
                "training" => step.training.extend(metrics()),
                "validation" => {
                    step.validation.extend(metrics());
                    step.validated = at;
                }
                _ => {
                    step.checkpoint_state = state(report, "state");
                    step.checkpointed = at;
                }
            }
        }
    }
    steps
}

/// The names of the metrics that have a number in at least one step.
fn numeric_names<'a>(metrics: impl Iterator<Item = &'a BTreeMap<String, Value>>) -> Vec<String> {
    let names: BTreeSet<&String> = metrics
        .flatten()
        .filter(|(_, value)| number(value).is_some())
        .map(|(name, _)| name)
        .collect();
    names.into_iter().cloned().collect()
}

fn workload_rows(TrialSteps(trials): &TrialSteps, metrics: bool) -> Listing {
    let all_steps = || trials.iter().flat_map(|(_, steps)| steps.values());
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    if metrics {
        training = numeric_names(all_steps().map(|step| &step.training));
        validation = numeric_names(all_steps().map(|step| &step.validation));
    }
    let mut headers: Vec<String> = ["Trial ID", "# of Batches", "State", "Report Time"]
        .map(str::to_owned)
        .into();
    headers.extend(
        training
            .iter()
            .map(|name| format!("Training Metric: {name}")),
    );
    headers.extend(
        [
            "Checkpoint State",
            "Checkpoint Report Time",
            "Validation State",
            "Validation Report Time",
        ]
        .map(str::to_owned),
    );
    headers.extend(
        validation
            .iter()
            .map(|name| format!("Validation Metric: {name}")),
    );
    let mut listing = Listing::new(headers);
    let nothing = json!(null);
    let shown = |values: &BTreeMap<String, Value>, name: &String| {
        plain(values.get(name).unwrap_or(&nothing))
    };
    for (trial, steps) in trials {
        for (batches, step) in steps {
            let validation_state = if step.validated.is_empty() {
                ""
            } else {
                "COMPLETED"
            };
            let mut row = vec![
                trial.clone(),
                batches.to_string(),
                step.state().to_owned(),
                step.reported.clone(),
            ];
            row.extend(training.iter().map(|name| shown(&step.training, name)));
            row.extend([
                step.checkpoint_state.clone(),
                step.checkpointed.clone(),
                validation_state.to_owned(),
                step.validated.clone(),
            ]);
            row.extend(validation.iter().map(|name| shown(&step.validation, name)));
            listing.push(row);
        }
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> String {
        format!("2026-11-21T10:00:0{second}Z")
    }

    fn run_of(id: i64, workloads: Vec<Value>) -> TrialHistory {
        TrialHistory {
            experiment: "1".to_owned(),
            trial: json!({"id": id}),
            workloads,
        }
    }

    #[test]
    fn the_reports_of_a_step_are_one_row() {
        let run = run_of(
            5,
            vec![
                json!({"training": {"totalBatches": 10, "endTime": at(1), "metrics": {"avgMetrics": {"loss": 0.5, "note": "x"}}}}),
                json!({"validation": {"totalBatches": 10, "endTime": at(2), "metrics": {"avgMetrics": {"accuracy": 0.9}}}}),
                json!({"checkpoint": {"totalBatches": 10, "endTime": at(3), "state": "STATE_DELETED", "uuid": "u"}}),
                json!({"training": {"totalBatches": 2, "endTime": at(0), "metrics": {"avgMetrics": {"loss": 0.7}}}}),
                json!({"checkpoint": {"totalBatches": 12, "endTime": at(4), "state": "STATE_COMPLETED", "uuid": "v"}}),
            ],
        );
        assert_eq!(
            workload_rows(&TrialSteps::of(&[run]), true).to_csv(),
            "Trial ID,# of Batches,State,Report Time,Training Metric: loss,Checkpoint State,Checkpoint Report Time,\
             Validation State,Validation Report Time,Validation Metric: accuracy\n\
             5,2,COMPLETED,2026-11-21 10:00:00+0000,0.7,,,,,\n\
             5,10,COMPLETED,2026-11-21 10:00:03+0000,0.5,DELETED,2026-11-21 10:00:03+0000,COMPLETED,\
             2026-11-21 10:00:02+0000,0.9\n\
             5,12,,2026-11-21 10:00:04+0000,,COMPLETED,2026-11-21 10:00:04+0000,,,\n"
        );
    }

    #[test]
    fn of_many_steps_the_last_ones_are_shown() {
        let step = |batches: i64| json!({"training": {"totalBatches": batches, "endTime": at(1)}});
        let runs = |trials: i64, steps: i64| -> Vec<TrialHistory> {
            let run = |id| run_of(id, (1..=steps).map(step).collect());
            (1..=trials).map(run).collect()
        };
        for (trials, steps, shown) in [(1, 20, 20), (1, 300, 20), (2, 300, 20), (30, 5, 30)] {
            let mut all = TrialSteps::of(&runs(trials, steps));
            let left_out = all.keep_last();
            let rows = workload_rows(&all, false).to_csv().lines().count() - 1;
            assert_eq!(rows, shown);
            assert_eq!(i64::try_from(rows + left_out).unwrap(), trials * steps);
            assert!(all.0.iter().all(|(_, kept)| kept.contains_key(&steps)));
        }
        assert_eq!(TrialSteps::of(&[]).keep_last(), 0);
    }
}
