//! `det trial metrics`: what a trial reported, and what was measured of it; `det task metrics`: what was measured of
//! another task.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use det_client::{Client, Query, api_path};
use det_ids::TrialId;
use det_taskspec::TaskKind;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::kinds;
use crate::table::{Format, FormatArgs, Listing};
use crate::values::{items, members, number, plain, rounded, size, text, time};

/// Options of `det trial metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Id of the trial
    trial_id: TrialId,
    /// Only this group, such as `validation`, `gpu` or `cpu`
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    shown: ShownArgs,
}

/// Options of `det task metrics`.
#[derive(Debug, Args)]
pub(crate) struct TaskMetricsArgs {
    /// Id of the task, or enough of its beginning
    pub(crate) task_id: String,
    /// Only this group: `cpu`, `memory`, `disk`, `network` or `gpu`
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    shown: ShownArgs,
}

/// What of metrics is printed, and how.
#[derive(Debug, Args)]
struct ShownArgs {
    /// Only the metric of this name
    #[arg(long)]
    metric: Option<String>,
    /// List every value, not one line for each metric
    #[arg(long)]
    values: bool,
    #[command(flatten)]
    format: FormatArgs,
}

impl ShownArgs {
    fn begin(&self) -> MetricsOutput {
        if self.values {
            MetricsOutput::Values(Vec::new())
        } else {
            MetricsOutput::Statistics(BTreeMap::new())
        }
    }

    /// Adds what is to be printed of a report to what was found.
    fn add(&self, found: &mut MetricsOutput, report: &Value) {
        for (metric, value) in values_of(report) {
            if self.metric.as_ref().is_none_or(|name| *name == metric.name) {
                found.add(metric, report, value);
            }
        }
    }

    /// Prints what was found. False = nothing was, and a user is to read why; programs read an empty list.
    fn print(&self, found: &MetricsOutput) -> Result<bool, CliError> {
        if self.format.format() == Format::Table && found.is_empty() {
            return Ok(false);
        }
        found.print(self.format.format())?;
        Ok(true)
    }
}

/// Carries out `det trial metrics`.
pub(crate) async fn print(client: &Client, args: &MetricsArgs) -> Result<(), CliError> {
    let query = Query::new()
        .with("trialIds", args.trial_id)
        .with_some("group", args.group.as_ref());
    let path = api_path(["trials", "metrics", "trial_metrics"]);
    let mut stream = client.stream(&path, &query).await?;
    let mut found = args.shown.begin();
    let mut names = BTreeSet::new();
    while let Some(message) = stream.next().await? {
        for report in items(&message["metrics"]) {
            args.shown.add(&mut found, report);
            names.extend(values_of(report).into_iter().map(|(metric, _)| metric.name));
        }
    }
    if args.shown.print(&found)? {
        return Ok(());
    }
    let trial = client
        .get(
            &api_path(["trials", &args.trial_id.to_string()]),
            &Query::new(),
        )
        .await?;
    let trial = &trial["trial"];
    let experiment = client
        .get(
            &api_path(["experiments", &text(trial, "experimentId")]),
            &Query::new(),
        )
        .await?;
    let about = MetricSubject {
        what: format!("trial {}", args.trial_id),
        has_ended: trial["endTime"].is_string(),
        profiled: experiment["experiment"]["config"]["profiling"]["enabled"] == true,
        is_trial: true,
        groups: members(&trial["summaryMetrics"])
            .map(|(name, _)| group_of_summary(name).to_owned())
            .collect(),
    };
    Err(about.nothing(args.group.as_deref(), &names))
}

/// Carries out `det task metrics`: those of a trial's task are metrics of its trial.
pub(crate) async fn print_of_task(
    client: &Client,
    task_id: &str,
    args: &TaskMetricsArgs,
) -> Result<(), CliError> {
    let path = api_path(["tasks", task_id, "system_metrics"]);
    let mut found = args.shown.begin();
    let mut names = BTreeSet::new();
    let mut after = 0;
    loop {
        let query = Query::new()
            .with_some("group", args.group.as_ref())
            .with("after", after);
        let page = client.get(&path, &query).await?;
        for report in items(&page["metrics"]) {
            let report = json!({"group": report["group"], "endTime": report["time"],
                "metrics": {"avg_metrics": report["values"]}});
            args.shown.add(&mut found, &report);
            names.extend(
                values_of(&report)
                    .into_iter()
                    .map(|(metric, _)| metric.name),
            );
        }
        match page["next"].as_i64() {
            Some(next) if next > after => after = next,
            _ => break,
        }
    }
    if args.shown.print(&found)? {
        return Ok(());
    }
    let answer = client
        .get(&api_path(["tasks", task_id]), &Query::new())
        .await?;
    let task = &answer["task"];
    let kind = kinds::of_task(task)?;
    if kind == TaskKind::Trial {
        return Err(CliError::request(format!(
            "task {task_id} is that of a trial, whose metrics are in the trial"
        ))
        .with_hint("det trial metrics TRIAL_ID prints them"));
    }
    let about = MetricSubject {
        what: format!("task {task_id}"),
        has_ended: task["endTime"].is_string(),
        profiled: profiled(client, task_id, kind).await?,
        is_trial: false,
        groups: match &args.group {
            Some(_) => groups_of_task(client, task_id).await?,
            None => BTreeSet::new(),
        },
    };
    Err(about.nothing(args.group.as_deref(), &names))
}

/// Whether the configuration of a task of this kind has it measured.
async fn profiled(client: &Client, task_id: &str, kind: TaskKind) -> Result<bool, CliError> {
    let config = match (kind, kind.collection()) {
        (TaskKind::Generic, _) => {
            let path = api_path(["tasks", task_id, "config"]);
            let answer = client.get(&path, &Query::new()).await?;
            serde_json::from_str(&text(&answer, "config")).unwrap_or_default()
        }
        (_, Some(collection)) => {
            let path = api_path([collection, task_id]);
            let mut answer = client.get(&path, &Query::new()).await?;
            answer["config"].take()
        }
        // Tasks of the platform's own have no configuration.
        (_, None) => return Ok(false),
    };
    Ok(config["profiling"]["enabled"] == true)
}

/// What is known of something of which no metrics were found.
struct MetricSubject {
    /// What it is, such as `trial 7`.
    what: String,
    has_ended: bool,
    /// Whether its configuration has it measured.
    profiled: bool,
    /// Whether its code reports metrics of its own.
    is_trial: bool,
    /// The groups that it has metrics in, where one of them was looked at.
    groups: BTreeSet<String>,
}

/// The name of a group by its key in the summary of a trial.
fn group_of_summary(key: &str) -> &str {
    match key {
        "avg_metrics" => "training",
        "validation_metrics" => "validation",
        group => group,
    }
}

/// The groups of a task's first reports.
async fn groups_of_task(client: &Client, task_id: &str) -> Result<BTreeSet<String>, CliError> {
    let path = api_path(["tasks", task_id, "system_metrics"]);
    let page = client.get(&path, &Query::new()).await?;
    let groups = items(&page["metrics"]);
    Ok(groups.map(|report| text(report, "group")).collect())
}

/// Groups in which the platform measures.
const SYSTEM_GROUPS: [&str; 5] = ["cpu", "disk", "gpu", "memory", "network"];

impl MetricSubject {
    /// Why nothing was found. `names` are those of the metrics that were looked at.
    fn nothing(&self, group: Option<&str>, names: &BTreeSet<String>) -> CliError {
        let what = &self.what;
        let of_group = group.map_or_else(String::new, |group| format!(" in group \"{group}\""));
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return CliError::request(format!("{what} has no metric of this name{of_group}"))
                .with_hint(format!("it has: {}", names.join(", ")));
        }
        let is_measured = group.is_some_and(|group| SYSTEM_GROUPS.contains(&group));
        if group.is_some() && !is_measured && !self.groups.is_empty() {
            let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
            return CliError::request(format!("{what} has no metrics{of_group}"))
                .with_hint(format!("it has groups: {}", groups.join(", ")));
        }
        if self.is_trial && group.is_some_and(|group| !SYSTEM_GROUPS.contains(&group)) {
            let yet = if self.has_ended { "" } else { " yet" };
            return CliError::request(format!(
                "{what} has no metrics{of_group}{yet}: its code has reported none"
            ));
        }
        let reported = if self.is_trial && group.is_none() {
            ": its code has reported none, and"
        } else {
            ":"
        };
        let measured = match (self.profiled, self.has_ended) {
            (false, _) => {
                return CliError::request(format!(
                    "{what} has no metrics{of_group}{reported} what it uses is not measured, as its configuration does \
                     not ask for that"
                ))
                .with_hint(
                    "\"profiling: {enabled: true}\" in the configuration has the next one measured",
                );
            }
            (_, false) if group == Some("gpu") && !self.groups.is_empty() => {
                "there is no GPU that can be measured"
            }
            (true, false) => {
                "what it uses is measured from the start of its code, and nothing has arrived yet"
            }
            (true, true) if group == Some("gpu") => "there was no GPU that could be measured",
            (true, true) => "it ended before anything was measured",
        };
        CliError::request(format!(
            "{what} has no metrics{of_group}{reported} {measured}"
        ))
    }
}

/// A metric of a trial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    group: String,
    name: String,
    /// What it is of: the agent, and a GPU or a path; empty = of the whole trial.
    of: String,
}

/// The metrics in a report, with values of objects taken out of them.
fn values_of(report: &Value) -> Vec<(Metric, &Value)> {
    let group = plain(&report["group"]);
    let documents = ["avg_metrics", "validation_metrics"].into_iter();
    let mut found = Vec::new();
    for document in documents.map(|name| &report["metrics"][name]) {
        for (name, value) in members(document) {
            flatten(&group, &[], name, value, &mut found);
        }
    }
    found
}

fn flatten<'a>(
    group: &str,
    of: &[&str],
    name: &str,
    value: &'a Value,
    found: &mut Vec<(Metric, &'a Value)>,
) {
    if value.is_object() {
        let of = [of, &[name]].concat();
        for (name, value) in members(value) {
            flatten(group, &of, name, value, found);
        }
        return;
    }
    let metric = Metric {
        group: group.to_owned(),
        name: name.to_owned(),
        of: of.join(" "),
    };
    found.push((metric, value));
}

/// The form in which metrics are printed.
enum MetricsOutput {
    /// One line for each metric.
    Statistics(BTreeMap<Metric, Statistics>),
    /// One line for each value: the metric, when, at which step, and the value.
    Values(Vec<(Metric, String, Value, Value)>),
}

/// Statistics of a metric's values.
#[derive(Debug, Clone, Default, PartialEq)]
struct Statistics {
    /// How many values there are.
    count: u64,
    /// How many of them are finite numbers.
    numbers: u32,
    sum: f64,
    lowest: Option<f64>,
    highest: Option<f64>,
    last: Value,
}

impl Statistics {
    fn add(&mut self, value: &Value) {
        self.count += 1;
        self.last = value.clone();
        if let Some(value) = number(value).filter(|value| value.is_finite()) {
            self.numbers += 1;
            self.sum += value;
            self.lowest = Some(self.lowest.map_or(value, |lowest| lowest.min(value)));
            self.highest = Some(self.highest.map_or(value, |highest| highest.max(value)));
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.numbers > 0).then(|| self.sum / f64::from(self.numbers))
    }
}

impl MetricsOutput {
    fn add(&mut self, metric: Metric, report: &Value, value: &Value) {
        match self {
            Self::Statistics(all) => all.entry(metric).or_default().add(value),
            Self::Values(all) => {
                let step = report["totalBatches"].clone();
                all.push((metric, time(report, "endTime"), step, value.clone()));
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Statistics(all) => all.is_empty(),
            Self::Values(all) => all.is_empty(),
        }
    }

    fn print(&self, format: Format) -> Result<(), CliError> {
        let shown = |name: &str, value: Option<f64>| {
            value.map_or_else(String::new, |value| in_unit(format, name, value))
        };
        match self {
            Self::Statistics(all) => {
                let columns = [
                    "Group", "Metric", "Of", "Count", "Min", "Mean", "Max", "Last",
                ];
                let mut listing = Listing::new(columns);
                for (metric, statistics) in all {
                    let last = shown_value(format, &metric.name, &statistics.last);
                    listing.push([
                        metric.group.clone(),
                        metric.name.clone(),
                        metric.of.clone(),
                        statistics.count.to_string(),
                        shown(&metric.name, statistics.lowest),
                        shown(&metric.name, statistics.mean()),
                        shown(&metric.name, statistics.highest),
                        last,
                    ]);
                }
                let objects: Vec<Value> = all
                    .iter()
                    .map(|(metric, statistics)| {
                        json!({"group": metric.group, "metric": metric.name, "of": metric.of,
                            "count": statistics.count, "min": statistics.lowest, "mean": statistics.mean(),
                            "max": statistics.highest, "last": statistics.last})
                    })
                    .collect();
                listing.print(format, &objects)
            }
            Self::Values(all) => {
                let columns = ["Time", "# of Batches", "Group", "Metric", "Of", "Value"];
                let mut listing = Listing::new(columns);
                for (metric, time, step, value) in all {
                    listing.push([
                        time.clone(),
                        plain(step),
                        metric.group.clone(),
                        metric.name.clone(),
                        metric.of.clone(),
                        shown_value(format, &metric.name, value),
                    ]);
                }
                let objects: Vec<Value> = all
                    .iter()
                    .map(|(metric, time, step, value)| {
                        json!({"time": time, "batches": step, "group": metric.group, "metric": metric.name,
                            "of": metric.of, "value": value})
                    })
                    .collect();
                listing.print(format, &objects)
            }
        }
    }
}

fn shown_value(format: Format, name: &str, value: &Value) -> String {
    match value.as_f64() {
        Some(number) => in_unit(format, name, number),
        None => plain(value),
    }
}

/// A number in a table with the unit of system metrics; plain where programs read it.
fn in_unit(format: Format, name: &str, value: f64) -> String {
    if format != Format::Table {
        return value.to_string();
    }
    match name {
        "gpu_util" | "cpu_util_simple" | "disk_util" => format!("{value:.1}%"),
        "memory_free" | "gpu_free_memory" => size(value),
        "disk_iops" => format!("{value:.1}/s"),
        _ if name.starts_with("net_throughput_") || name.starts_with("disk_throughput_") => {
            format!("{}/s", size(value))
        }
        _ => rounded(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_found_the_reason_is_true() {
        let nothing = |has_ended, profiled, is_trial, group, names: &[&str]| {
            let about = MetricSubject {
                what: "trial 7".to_owned(),
                has_ended,
                profiled,
                is_trial,
                groups: BTreeSet::new(),
            };
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            match about.nothing(group, &names) {
                CliError::Failure { message, hint, .. } => (message, hint.unwrap_or_default()),
                CliError::OutputClosed => (String::new(), String::new()),
            }
        };
        let off = nothing(true, false, false, None, &[]);
        assert!(off.0.contains("its configuration does not ask"), "{off:?}");
        assert!(off.1.contains("profiling: {enabled: true}"), "{off:?}");
        let on = nothing(false, true, false, Some("cpu"), &[]);
        assert!(on.0.contains("nothing has arrived yet"), "{on:?}");
        let short = nothing(true, true, false, None, &[]);
        assert!(short.0.contains("ended before"), "{short:?}");
        // What code reports depends on no configuration.
        let group = nothing(true, false, true, Some("validation"), &[]);
        assert_eq!(
            group.0,
            "trial 7 has no metrics in group \"validation\": its code has reported none"
        );
        let name = nothing(true, false, true, None, &["accuracy", "loss"]);
        assert_eq!(name.1, "it has: accuracy, loss");
    }

    #[test]
    fn a_group_that_there_is_not_is_answered_with_those_that_there_are() {
        let about = MetricSubject {
            what: "task 7".to_owned(),
            has_ended: false,
            profiled: true,
            is_trial: false,
            groups: ["cpu", "memory"].map(str::to_owned).into(),
        };
        let of = |group| match about.nothing(Some(group), &BTreeSet::new()) {
            CliError::Failure { message, hint, .. } => (message, hint.unwrap_or_default()),
            CliError::OutputClosed => (String::new(), String::new()),
        };
        let misspelt = of("memroy");
        assert_eq!(misspelt.0, "task 7 has no metrics in group \"memroy\"");
        assert_eq!(misspelt.1, "it has groups: cpu, memory");
        let gpu = of("gpu");
        assert!(gpu.0.contains("there is no GPU"), "{gpu:?}");
    }

    #[test]
    fn values_of_agents_and_gpus_are_metrics_of_their_own() {
        let report = json!({"group": "gpu", "metrics": {"avg_metrics":
            {"a1": {"GPU-1": {"gpu_util": 50.0}, "x": "text"}, "loss": 1.0}, "batch_metrics": null}});
        let found: Vec<(String, String, String)> = values_of(&report)
            .into_iter()
            .map(|(metric, value)| (metric.name, metric.of, plain(value)))
            .collect();
        let expected = [
            ("gpu_util", "a1 GPU-1", "50.0"),
            ("x", "a1", "text"),
            ("loss", "", "1.0"),
        ];
        assert_eq!(
            found,
            expected.map(|(name, of, value)| (name.into(), of.into(), value.into()))
        );
    }

    #[test]
    fn statistics_leave_out_what_is_no_number() {
        let mut statistics = Statistics::default();
        for value in [json!(1.0), json!("NaN"), json!(4), json!("text")] {
            statistics.add(&value);
        }
        assert_eq!((statistics.count, statistics.mean()), (4, Some(2.5)));
        assert_eq!(
            (statistics.lowest, statistics.highest, statistics.last),
            (Some(1.0), Some(4.0), json!("text"))
        );
    }

    #[test]
    fn tables_show_units_and_programs_see_numbers() {
        for (name, value, text) in [
            ("gpu_util", 12.345, "12.3%"),
            ("memory_free", 2e9, "1.9GB"),
            ("net_throughput_sent", 1500.0, "1.5KB/s"),
            ("disk_iops", 3.0, "3.0/s"),
            ("loss", 0.123_456, "0.1235"),
        ] {
            assert_eq!(in_unit(Format::Table, name, value), text);
            assert_eq!(in_unit(Format::Csv, name, value), value.to_string());
        }
    }
}
