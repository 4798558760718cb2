//! System metrics: what supervisors measure, what code reports itself, and the readings of older clients.
//!
//! All of them are reports without a step in the profiler's groups, as the PyPI package sends them: below the id of the
//! agent values by name, or by label (a GPU, a path) and name.
//!
//! Code that reports system metrics of an agent itself takes the place of that agent's supervisor: the next time it
//! reports, its reports are left out, and the answer is that they are not wanted. Which code does so is known in memory only; a
//! master that was started again knows it with the code's next report, and the supervisor has ended measuring by then.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use det_ids::TrialId;
use det_store::metrics::{StoredReport, number};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value, json};

use super::journal::Arriving;
use super::{MOST_NAME_BYTES, Metrics, Report, check};
use crate::app::existing;
use crate::app::ownership::Reported;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Groups of the machine, as supervisors and the PyPI package's profiler report them.
const MACHINE_GROUPS: [&str; 5] = ["gpu", "cpu", "memory", "disk", "network"];
/// The group of readings of older clients that say how long steps of the training took.
const TIMING_GROUP: &str = "profiler_timing";
/// The group of other readings of older clients.
const MISC_GROUP: &str = "profiler_misc";

/// Reports of a supervisor in one request at most.
const MOST_REPORTS: usize = 1000;
/// Readings of older clients in one request at most.
const MOST_READINGS: usize = 20_000;
/// Agents whose code reports for itself that are known at once.
const MOST_KNOWN: usize = 4096;

/// Whether reports of this group have no step.
pub(super) fn is_profiler_group(group: &str) -> bool {
    MACHINE_GROUPS.contains(&group) || group == TIMING_GROUP || group == MISC_GROUP
}

/// What the supervisor of one container has measured.
#[derive(Debug)]
pub struct Measured {
    /// The run of the trial that it belongs to.
    pub run_id: i64,
    /// The agent that it runs on.
    pub agent_id: String,
    /// Whether some of it may be stored already.
    pub again: bool,
    /// The reports.
    pub reports: Vec<MeasuredReport>,
}

/// Averages over some seconds.
#[derive(Debug)]
pub struct MeasuredReport {
    /// Identity within the run.
    pub report_id: String,
    /// When it was made, microseconds.
    pub at: i64,
    /// Values of each group, by name or by label and name.
    pub groups: Map<String, Value>,
}

/// Kind of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesKind {
    /// Of the machine.
    System,
    /// How long steps of the training took.
    Timing,
    /// Anything else.
    Misc,
}

/// What distinguishes a series of a trial from its others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesLabels {
    /// What it is about.
    pub kind: SeriesKind,
    /// Name of the metric.
    pub name: String,
    /// The agent; empty = none was named.
    pub agent_id: String,
    /// UUID of a GPU, or path of a file system; empty = neither.
    pub label: String,
}

/// Readings of one series, from an older client.
#[derive(Debug)]
pub struct Readings {
    /// The trial.
    pub trial_id: TrialId,
    /// The series.
    pub labels: SeriesLabels,
    /// Values, the batch of each, and when each was measured, microseconds.
    pub readings: Vec<Reading>,
}

/// One value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The value.
    pub value: f64,
    /// Batch that was trained; 0 = not reported.
    pub batch: i64,
    /// When it was measured, microseconds.
    pub at: i64,
}

/// The runs whose code reports the system metrics of an agent itself: the newest of them, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct CodeReports(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    runs: HashSet<(TrialId, i64, String)>,
    oldest_first: VecDeque<(TrialId, i64, String)>,
}

impl CodeReports {
    /// Takes note of a report of the code.
    pub(super) fn note(&self, report: &Report) {
        if !MACHINE_GROUPS.contains(&report.group.as_str()) {
            return;
        }
        let agents = report
            .metrics
            .iter()
            .filter(|(agent, values)| values.is_object() && agent.len() <= MOST_NAME_BYTES);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A report is of one agent; of others that name more, some are enough.
        for (agent, _) in agents.take(4) {
            let run = (report.trial_id, report.run_id, agent.clone());
            if known.runs.insert(run.clone()) {
                known.oldest_first.push_back(run);
            }
        }
        while known.runs.len() > MOST_KNOWN
            && let Some(oldest) = known.oldest_first.pop_front()
        {
            known.runs.remove(&oldest);
        }
    }

    fn has(&self, trial_id: TrialId, run_id: i64, agent: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.runs.contains(&(trial_id, run_id, agent.to_owned()))
    }
}

impl Metrics {
    /// Ingests what a supervisor has measured; answers when it is durable. `false` = the trial's code reports the same
    /// itself: nothing is stored, and nothing further is wanted.
    pub async fn report_measured(
        &self,
        actor: &Actor,
        trial_id: TrialId,
        measured: Measured,
    ) -> AppResult<bool> {
        self.ownership
            .require_reporter(actor, Reported::Trial(trial_id))
            .await?;
        actor.require_run(trial_id, measured.run_id)?;
        let agent = &measured.agent_id;
        if agent.is_empty() || agent.len() > MOST_NAME_BYTES {
            return Err(AppError::invalid(format!(
                "field \"agentId\" must have 1 to {MOST_NAME_BYTES} bytes, found {}",
                agent.len()
            )));
        }
        if measured.reports.len() > MOST_REPORTS {
            return Err(AppError::invalid(format!(
                "a request may have at most {MOST_REPORTS} reports, found {}",
                measured.reports.len()
            )));
        }
        if self.code_reports.has(trial_id, measured.run_id, agent) {
            return Ok(false);
        }
        let reports = measured_reports(trial_id, measured)?;
        self.store_together(trial_id, reports).await?;
        Ok(true)
    }

    /// Ingests readings of older clients; answers when they are durable. They have no identity: those that are sent twice
    /// are stored twice.
    pub async fn report_readings(&self, actor: &Actor, all: Vec<Readings>) -> AppResult<()> {
        let count: usize = all.iter().map(|readings| readings.readings.len()).sum();
        if count > MOST_READINGS {
            return Err(AppError::invalid(format!(
                "a request may have at most {MOST_READINGS} readings, found {count}"
            ))
            .hint("send them in several requests"));
        }
        let mut by_trial: BTreeMap<TrialId, Vec<Readings>> = BTreeMap::new();
        for readings in all {
            by_trial
                .entry(readings.trial_id)
                .or_default()
                .push(readings);
        }
        let mut arriving = Vec::new();
        // Nothing is stored unless everything may be.
        for (trial_id, readings) in by_trial {
            let about = Reported::Trial(trial_id);
            self.ownership.require_reporter(actor, about).await?;
            let run_id = match actor.run() {
                Some(run_id) => run_id,
                None => {
                    let mut conn = self.context.store.read().await?;
                    existing::trial(&mut conn.conn(), trial_id).await?.run_id
                }
            };
            arriving.push((trial_id, reports_of_readings(trial_id, run_id, readings)?));
        }
        for (trial_id, reports) in arriving {
            for report in &reports {
                self.code_reports.note(report);
            }
            self.store_together(trial_id, reports).await?;
        }
        Ok(())
    }

    /// Stores reports of one trial, in one change as far as possible.
    async fn store_together(&self, trial_id: TrialId, reports: Vec<Report>) -> AppResult<()> {
        let mut arriving = Vec::with_capacity(reports.len());
        for report in reports {
            check(&report)?;
            arriving.push(Arriving::new(report)?);
        }
        let stored = arriving.into_iter().map(|one| self.intake.gather(one));
        futures::future::try_join_all(stored).await?;
        self.note_system_metrics(trial_id);
        Ok(())
    }

    /// Wakes those who follow the trial's system metrics.
    pub(super) fn note_system_metrics(&self, trial_id: TrialId) {
        self.context.hub.notify(&Topic::SystemMetrics(trial_id));
    }
}

/// A report for each group of what was measured.
fn measured_reports(trial_id: TrialId, measured: Measured) -> AppResult<Vec<Report>> {
    let mut reports = Vec::new();
    for report in measured.reports {
        for (group, values) in report.groups {
            if !MACHINE_GROUPS.contains(&group.as_str()) || !values.is_object() {
                return Err(AppError::invalid(format!(
                    "field \"groups\" may have an object for each of {}, found \"{}\"",
                    MACHINE_GROUPS.join(", "),
                    group.escape_debug()
                )));
            }
            reports.push(Report {
                trial_id,
                run_id: measured.run_id,
                group,
                step: None,
                at: report.at,
                metrics: Map::from_iter([(measured.agent_id.clone(), values)]),
                batches: None,
                report_id: Some(report.report_id.clone()).filter(|id| !id.is_empty()),
                may_repeat: measured.again,
            });
        }
    }
    Ok(reports)
}

/// Reports of readings: what was measured at the same time is in one.
fn reports_of_readings(
    trial_id: TrialId,
    run_id: i64,
    all: Vec<Readings>,
) -> AppResult<Vec<Report>> {
    let mut reports: BTreeMap<(&'static str, i64, i64), Map<String, Value>> = BTreeMap::new();
    for Readings {
        labels, readings, ..
    } in all
    {
        let group = labels.group()?;
        for reading in readings {
            let report = reports
                .entry((group, reading.at, reading.batch))
                .or_default();
            labels.insert(report, json_number(reading.value));
        }
    }
    reports
        .into_iter()
        .map(|((group, at, batch), metrics)| {
            // What was trained is kept where values of single batches are: a report with a step could not be repeated.
            let batches = (batch != 0).then(|| json!([{ "batch": batch }]));
            let batches = batches.map(|batches| RawValue::from_string(batches.to_string()));
            Ok(Report {
                trial_id,
                run_id,
                group: group.to_owned(),
                step: None,
                at,
                metrics,
                batches: batches.transpose().map_err(AppError::internal)?,
                report_id: None,
                may_repeat: false,
            })
        })
        .collect()
}

/// As metrics are stored: what JSON has no number for is text.
fn json_number(value: f64) -> Value {
    match Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

impl SeriesLabels {
    /// The group that its readings are stored in.
    ///
    /// # Errors
    /// The name belongs to none, or the labels do not fit together.
    fn group(&self) -> AppResult<&'static str> {
        if self.agent_id.is_empty() && !self.label.is_empty() {
            return Err(AppError::invalid(
                "label \"gpuUuid\" needs the label \"agentId\" too",
            ));
        }
        if self.name.is_empty() {
            return Err(AppError::invalid("label \"name\" is missing"));
        }
        let too_long = [&self.name, &self.agent_id, &self.label]
            .into_iter()
            .find(|text| text.len() > MOST_NAME_BYTES);
        if let Some(text) = too_long {
            return Err(AppError::invalid(format!(
                "a label may have at most {MOST_NAME_BYTES} bytes, found {}",
                text.len()
            )));
        }
        groups_with(Some(self.kind), &self.name)
            .first()
            .copied()
            .ok_or_else(|| {
                AppError::invalid(format!(
                    "metric \"{}\" is no system metric: their names begin with {}",
                    self.name.escape_debug(),
                    PREFIXES.map(|(prefix, _)| prefix).join(", ")
                ))
            })
    }

    /// Puts a value of the series into the document of a report.
    fn insert(&self, report: &mut Map<String, Value>, value: Value) {
        let mut place = report;
        for key in [&self.agent_id, &self.label] {
            if key.is_empty() {
                continue;
            }
            let inner = place
                .entry(key.as_str())
                .or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { return };
            place = inner;
        }
        place.insert(self.name.clone(), value);
    }
}

/// How names of system metrics begin, in this package and in older ones, and their groups.
const PREFIXES: [(&str, &str); 6] = [
    ("gpu_", "gpu"),
    ("cpu_", "cpu"),
    ("memory_", "memory"),
    ("free_memory", "memory"),
    ("disk_", "disk"),
    ("net_", "network"),
];

/// The groups that series of this kind and name can be in; an empty name and no kind stand for any.
pub(crate) fn groups_with(kind: Option<SeriesKind>, name: &str) -> Vec<&'static str> {
    let of_machine = MACHINE_GROUPS.into_iter().filter(|group| {
        name.is_empty()
            || PREFIXES
                .iter()
                .any(|(prefix, of)| of == group && name.starts_with(prefix))
    });
    let wanted = |wanted| kind.is_none_or(|kind| kind == wanted);
    let mut groups = Vec::new();
    if wanted(SeriesKind::System) {
        groups.extend(of_machine);
    }
    if wanted(SeriesKind::Timing) {
        groups.push(TIMING_GROUP);
    }
    if wanted(SeriesKind::Misc) {
        groups.push(MISC_GROUP);
    }
    groups
}

/// The readings in a stored report of this group.
pub(crate) fn readings_of(group: &str, report: &StoredReport) -> Vec<(SeriesLabels, Reading)> {
    let kind = match group {
        TIMING_GROUP => SeriesKind::Timing,
        MISC_GROUP => SeriesKind::Misc,
        _ => SeriesKind::System,
    };
    let batch = report
        .batches
        .as_deref()
        .and_then(batch_of)
        .unwrap_or_default();
    let mut found = Vec::new();
    let mut add = |agent: &str, label: &str, name: &str, value: &Value| {
        if let Some(value) = number(value) {
            let labels = SeriesLabels {
                kind,
                name: name.to_owned(),
                agent_id: agent.to_owned(),
                label: label.to_owned(),
            };
            let at = report.at;
            found.push((labels, Reading { value, batch, at }));
        }
    };
    for (agent, values) in &report.metrics {
        let Value::Object(values) = values else {
            add("", "", agent, values);
            continue;
        };
        for (label, value) in values {
            match value {
                Value::Object(values) => {
                    for (name, value) in values {
                        add(agent, label, name, value);
                    }
                }
                value => add(agent, "", label, value),
            }
        }
    }
    found
}

fn batch_of(batches: &RawValue) -> Option<i64> {
    #[derive(serde::Deserialize)]
    struct Batch {
        batch: i64,
    }
    let batches: Vec<Batch> = serde_json::from_str(batches.get()).ok()?;
    batches.first().map(|one| one.batch)
}

/// Series that were found, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct FoundSeries {
    labels: BTreeSet<SeriesLabels>,
}

/// Series of a trial that are listed at most.
const MOST_SERIES: usize = 2000;

impl FoundSeries {
    /// Adds a series.
    ///
    /// # Errors
    /// The trial has more than can be listed.
    pub(crate) fn add(&mut self, labels: SeriesLabels) -> AppResult<()> {
        self.labels.insert(labels);
        if self.labels.len() > MOST_SERIES {
            return Err(AppError::invalid(format!(
                "the trial has more than {MOST_SERIES} series of system metrics, which is more than can be listed"
            ))
            .hint("read their reports with GetMetrics"));
        }
        Ok(())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SeriesLabels> {
        self.labels.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(kind: SeriesKind, agent: &str, label: &str, name: &str) -> SeriesLabels {
        SeriesLabels {
            kind,
            name: name.into(),
            agent_id: agent.into(),
            label: label.into(),
        }
    }

    fn stored(report: Report) -> StoredReport {
        StoredReport {
            step: report.step,
            at: report.at,
            metrics: report.metrics,
            batches: report.batches,
            report_id: report.report_id,
        }
    }

    #[test]
    fn readings_come_back_as_they_were_sent() {
        use SeriesKind::{Misc, System, Timing};
        let sent = [
            labels(System, "a", "GPU-1", "gpu_util"),
            labels(System, "a", "", "cpu_util_simple"),
            labels(System, "a", "", "free_memory"),
            labels(System, "a", "/", "disk_util"),
            labels(System, "a", "", "net_throughput_sent"),
            labels(Timing, "", "", "dataloader_next"),
            labels(Misc, "a", "", "samples_per_second"),
        ];
        let readings = sent
            .iter()
            .zip(1_i32..)
            .map(|(labels, n)| Readings {
                trial_id: TrialId(1),
                labels: labels.clone(),
                readings: vec![
                    Reading {
                        value: f64::from(n),
                        batch: 7,
                        at: 100,
                    },
                    Reading {
                        value: f64::NAN,
                        batch: 0,
                        at: 200,
                    },
                ],
            })
            .collect();
        let reports = reports_of_readings(TrialId(1), 1, readings).unwrap();
        let mut found: Vec<(SeriesLabels, Reading)> = Vec::new();
        for report in reports {
            let group = report.group.clone();
            found.extend(readings_of(&group, &stored(report)));
        }
        for (labels, n) in sent.iter().zip(1_i32..) {
            let of_series: Vec<&Reading> = found
                .iter()
                .filter(|(of, _)| of == labels)
                .map(|(_, reading)| reading)
                .collect();
            assert_eq!(of_series.len(), 2, "{labels:?}");
            assert_eq!(
                *of_series[0],
                Reading {
                    value: f64::from(n),
                    batch: 7,
                    at: 100
                }
            );
            assert!(of_series[1].value.is_nan() && of_series[1].batch == 0);
        }
        assert_eq!(found.len(), 14);
    }

    #[test]
    fn labels_that_mean_nothing_are_refused() {
        use SeriesKind::System;
        for (labels, text) in [
            (labels(System, "a", "", "loss"), "gpu_, cpu_, memory_"),
            (labels(System, "", "GPU-1", "gpu_util"), "agentId"),
            (labels(System, "a", "", ""), "name"),
            (labels(System, "a", "", &"x".repeat(2000)), "1024 bytes"),
        ] {
            let error = labels.group().unwrap_err();
            assert!(error.message.contains(text), "{}", error.message);
        }
    }

    #[test]
    fn a_name_narrows_the_groups_that_are_read() {
        use SeriesKind::{System, Timing};
        assert_eq!(groups_with(None, "").len(), 7);
        assert_eq!(groups_with(Some(System), "disk_util"), ["disk"]);
        assert_eq!(groups_with(Some(Timing), "disk_util"), [TIMING_GROUP]);
        assert_eq!(groups_with(Some(System), "x"), Vec::<&str>::new());
    }

    #[test]
    fn runs_with_reports_of_their_own_are_known_in_bounded_memory() {
        let report = |trial_id: i64, group: &str, value: Value| Report {
            trial_id: TrialId(trial_id),
            run_id: 1,
            group: group.into(),
            step: None,
            at: 0,
            metrics: Map::from_iter([("agent".to_owned(), value)]),
            batches: None,
            report_id: None,
            may_repeat: false,
        };
        let known = CodeReports::default();
        known.note(&report(1, "training", json!({})));
        known.note(&report(1, "cpu", json!(5)));
        assert!(!known.has(TrialId(1), 1, "agent"));
        known.note(&report(1, "cpu", json!({"cpu_util_simple": 5})));
        assert!(known.has(TrialId(1), 1, "agent"));
        assert!(!known.has(TrialId(1), 2, "agent"), "another run");
        for trial in 2..=5000 {
            known.note(&report(trial, "cpu", json!({})));
        }
        assert!(!known.has(TrialId(1), 1, "agent"));
        assert!(known.has(TrialId(5000), 1, "agent"));
        assert_eq!(known.0.lock().unwrap().runs.len(), MOST_KNOWN);
    }
}
