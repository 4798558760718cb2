//! System metrics: what supervisors measure, what code reports itself, and the readings of older clients.
//!
//! All of them are reports without a step in the profiler's groups, as the PyPI package sends them: below the id of the
//! agent values by name, or by label (a GPU, a path) and name.
//!
//! Code that reports system metrics of an agent itself takes the place of that agent's supervisor: the next time it
//! reports, its reports are left out, and the answer is that they are not wanted. Which code does so is known in memory only; a
//! master that was started again knows it with the code's next report, and the supervisor has ended measuring by then.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::{AgentId, ReportId, RunId, TrialId};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value, json};

use super::journal::EncodedReport;
use super::{MOST_NAME_BYTES, MOST_NAMES, Metrics, Report, check};
use crate::app::existing;
use crate::app::ownership::ReportSubject;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Groups of the machine, as supervisors and the PyPI package's profiler report them.
const MACHINE_GROUPS: [&str; 5] = ["gpu", "cpu", "memory", "disk", "network"];
/// The group of readings of older clients that contain how long steps of the training took.
pub(super) const TIMING_GROUP: &str = "profiler_timing";
/// The group of other readings of older clients.
pub(super) const MISC_GROUP: &str = "profiler_misc";

/// Reports of a supervisor in one request at most.
const MOST_REPORTS: usize = 1000;
/// Readings of older clients in one request at most.
const MOST_READINGS: usize = 20_000;
/// Bytes of the labels that they have together at most, with those of a series counted for each of its readings: so often
/// they are stored.
const MOST_LABEL_BYTES: usize = 4 << 20;
/// Reports that are made of readings, encoded and stored at once: each may take a few kilobytes, of a reading that came as
/// thirty bytes.
const REPORTS_AT_ONCE: usize = 1000;
/// Agents whose code reports for itself that are known at once.
const MOST_KNOWN: usize = 4096;
/// Levels of maps and lists in a report of system metrics. Series are made of three: agent, label, name.
const MOST_LEVELS: usize = 8;

/// Whether reports of this group have no step.
pub(super) fn is_profiler_group(group: &str) -> bool {
    MACHINE_GROUPS.contains(&group) || group == TIMING_GROUP || group == MISC_GROUP
}

/// What the supervisor of one container has measured.
#[derive(Debug)]
pub struct Measurements {
    /// The run of the trial that it belongs to.
    pub run_id: RunId,
    /// The agent that it runs on.
    pub agent_id: AgentId,
    /// Whether some of it may be stored already.
    pub again: bool,
    /// What the supervisor measured, each with the time at which it was made.
    pub reports: Vec<MeasuredReport>,
}

/// What a supervisor measured on its machine, as averages over some seconds.
#[derive(Debug)]
pub struct MeasuredReport {
    /// What its sender calls it, if anything.
    pub report_id: Option<ReportId>,
    /// When it was made, microseconds.
    pub at: i64,
    /// Values of each group, by name or by label and name.
    pub groups: Map<String, Value>,
}

/// What a series of readings is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesKind {
    /// The machine: GPUs, processors, memory, disks, network.
    System,
    /// How long steps of the training took.
    Timing,
    /// Any other series: neither of the machine nor of how long steps took.
    Misc,
}

/// What distinguishes a series of a trial from its others. Each text may be shared with other series, also the agent's id,
/// which therefore is no [`AgentId`]: there may be a reading for each second of a long trial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesLabels {
    /// What the readings are about.
    pub kind: SeriesKind,
    /// Name of the metric.
    pub name: Arc<str>,
    /// The agent; empty = none was named.
    pub agent_id: Arc<str>,
    /// UUID of a GPU, or path of a file system; empty = neither.
    pub label: Arc<str>,
}

/// Readings of one series, from an older client.
#[derive(Debug)]
pub struct Readings {
    /// Number of the trial that they are of.
    pub trial_id: TrialId,
    /// What distinguishes their series from the others of the trial.
    pub labels: SeriesLabels,
    /// Values, the batch of each, and when each was measured, microseconds.
    pub readings: Vec<Reading>,
}

/// One value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// What was measured, in the unit of the metric.
    pub value: f64,
    /// Batch that was trained; 0 = not reported.
    pub batch: i64,
    /// When it was measured, microseconds.
    pub at: i64,
}

/// The runs whose code reports the system metrics of an agent itself: the newest of them, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct CodeReports(Mutex<RecentReporters>);

#[derive(Debug, Default)]
struct RecentReporters {
    runs: HashSet<(TrialId, RunId, String)>,
    oldest_first: VecDeque<(TrialId, RunId, String)>,
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

    fn has(&self, trial_id: TrialId, run_id: RunId, agent: &str) -> bool {
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
        measured: Measurements,
    ) -> AppResult<bool> {
        self.ownership
            .require_reporter(actor, ReportSubject::Trial(trial_id))
            .await?;
        actor.require_run(trial_id, measured.run_id)?;
        let agent = measured.agent_id.as_str();
        check_agent(agent)?;
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
        require_bounded(&all)?;
        let mut by_trial: BTreeMap<TrialId, Vec<Readings>> = BTreeMap::new();
        for readings in all {
            by_trial
                .entry(readings.trial_id)
                .or_default()
                .push(readings);
        }
        let mut arriving = Vec::new();
        // Nothing is stored unless everything may be.
        for (&trial_id, readings) in &by_trial {
            let about = ReportSubject::Trial(trial_id);
            self.ownership.require_reporter(actor, about).await?;
            let run_id = match actor.run() {
                Some(run_id) => run_id,
                None => {
                    let mut conn = self.context.store.read().await?;
                    existing::trial(&mut conn.conn(), trial_id).await?.run_id
                }
            };
            arriving.push(PlacedReadings::new(trial_id, run_id, readings)?);
        }
        for readings in arriving {
            let mut reports = readings.reports();
            loop {
                let some = reports.by_ref().take(REPORTS_AT_ONCE);
                let some: Vec<Report> = some.collect::<AppResult<_>>()?;
                if some.is_empty() {
                    break;
                }
                for report in &some {
                    self.code_reports.note(report);
                }
                self.store_together(readings.trial_id, some).await?;
            }
        }
        Ok(())
    }

    /// Stores reports of one trial, in one change as far as possible.
    async fn store_together(&self, trial_id: TrialId, reports: Vec<Report>) -> AppResult<()> {
        let mut arriving = Vec::with_capacity(reports.len());
        for report in reports {
            check(&report)?;
            arriving.push(EncodedReport::new(report)?);
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

/// Refuses what no supervisor measures: groups that are none of the machine's, and reports larger than those of a trial may
/// be.
pub(crate) fn check_measured(agent: &str, groups: &Map<String, Value>) -> AppResult<()> {
    check_agent(agent)?;
    for (group, values) in groups {
        check_group(group, values)?;
    }
    check_nested(groups)
}

fn check_agent(agent: &str) -> AppResult<()> {
    if agent.is_empty() || agent.len() > MOST_NAME_BYTES {
        return Err(AppError::invalid(format!(
            "field \"agentId\" must have 1 to {MOST_NAME_BYTES} bytes, found {}",
            agent.len()
        )));
    }
    Ok(())
}

fn check_group(group: &str, values: &Value) -> AppResult<()> {
    if MACHINE_GROUPS.contains(&group) && values.is_object() {
        return Ok(());
    }
    Err(AppError::invalid(format!(
        "field \"groups\" may have an object for each of {}, found \"{}\"",
        MACHINE_GROUPS.join(", "),
        group.escape_debug()
    )))
}

/// A report for each group of what was measured.
fn measured_reports(trial_id: TrialId, measured: Measurements) -> AppResult<Vec<Report>> {
    let mut reports = Vec::new();
    for report in measured.reports {
        for (group, values) in report.groups {
            check_group(&group, &values)?;
            reports.push(Report {
                trial_id,
                run_id: measured.run_id,
                group,
                step: None,
                at: report.at,
                metrics: Map::from_iter([(measured.agent_id.0.clone(), values)]),
                batches: None,
                report_id: report.report_id.clone(),
                may_repeat: measured.again,
            });
        }
    }
    Ok(reports)
}

/// Refuses more readings, or longer labels, than one request may have.
fn require_bounded(all: &[Readings]) -> AppResult<()> {
    let count: usize = all.iter().map(|of| of.readings.len()).sum();
    if count > MOST_READINGS {
        return Err(AppError::invalid(format!(
            "a request may have at most {MOST_READINGS} readings, found {count}"
        ))
        .hint("send them in several requests"));
    }
    let label_bytes: usize = all
        .iter()
        .map(|of| of.labels.text_bytes().saturating_mul(of.readings.len()))
        .fold(0, usize::saturating_add);
    if label_bytes > MOST_LABEL_BYTES {
        return Err(AppError::invalid(format!(
            "the readings of a request may have at most {} MiB of labels, counted for each reading, found {} KiB",
            MOST_LABEL_BYTES >> 20,
            label_bytes >> 10
        ))
        .hint("send them in several requests, or shorten the labels"));
    }
    Ok(())
}

/// A reading, and the report that it belongs to: what was measured at the same time is in one.
#[derive(Debug)]
struct PlacedReading<'a> {
    /// Group, time in microseconds and batch of that report.
    report: (&'static str, i64, i64),
    labels: &'a SeriesLabels,
    value: f64,
}

/// The readings of one trial in the order of the reports that they become.
#[derive(Debug)]
pub(super) struct PlacedReadings<'a> {
    trial_id: TrialId,
    run_id: RunId,
    readings: Vec<PlacedReading<'a>>,
}

impl<'a> PlacedReadings<'a> {
    /// # Errors
    /// Labels do not fit together, or more than a report may have was measured at the same time.
    pub(super) fn new(trial_id: TrialId, run_id: RunId, all: &'a [Readings]) -> AppResult<Self> {
        let mut readings = Vec::new();
        for series in all {
            let group = series.labels.group()?;
            readings.extend(series.readings.iter().map(|reading| PlacedReading {
                report: (group, reading.at, reading.batch),
                labels: &series.labels,
                value: reading.value,
            }));
        }
        // Of two values of one series at the same time the later one counts.
        readings.sort_by_key(|reading| reading.report);
        let placed = Self {
            trial_id,
            run_id,
            readings,
        };
        // Agent, label and name of each count there.
        let most = MOST_NAMES / 3;
        if let Some(together) = placed.together().find(|together| together.len() > most) {
            return Err(AppError::invalid(format!(
                "a request may have at most {most} readings of one time, found {}",
                together.len()
            ))
            .hint("send them in several requests"));
        }
        Ok(placed)
    }

    /// The readings of each report.
    fn together(&self) -> impl Iterator<Item = &[PlacedReading<'a>]> {
        self.readings
            .chunk_by(|one, next| one.report == next.report)
    }

    /// The reports, each made when it is asked for.
    pub(super) fn reports(&self) -> impl Iterator<Item = AppResult<Report>> {
        self.together().map(|together| {
            let mut metrics = Map::new();
            for reading in together {
                let value = json_number(reading.value);
                reading.labels.insert(&mut metrics, value);
            }
            let (group, at, batch) = together.first().map_or(("", 0, 0), |first| first.report);
            // What was trained is kept where values of single batches are: a report with a step could not be repeated.
            let batches = (batch != 0).then(|| json!([{ "batch": batch }]));
            let batches = batches.map(|batches| RawValue::from_string(batches.to_string()));
            Ok(Report {
                trial_id: self.trial_id,
                run_id: self.run_id,
                group: group.to_owned(),
                step: None,
                at,
                metrics,
                batches: batches.transpose().map_err(AppError::internal)?,
                report_id: None,
                may_repeat: false,
            })
        })
    }
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

    /// Bytes of all its texts.
    pub(super) fn text_bytes(&self) -> usize {
        [&self.name, &self.agent_id, &self.label]
            .map(|text| text.len())
            .into_iter()
            .sum()
    }

    /// Puts a value of the series into the document of a report.
    fn insert(&self, report: &mut Map<String, Value>, value: Value) {
        let mut place = report;
        for key in [&self.agent_id, &self.label] {
            if key.is_empty() {
                continue;
            }
            let inner = place
                .entry(&**key)
                .or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { return };
            place = inner;
        }
        place.insert(self.name.to_string(), value);
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

/// The groups that series of this kind and name can be in; an empty name and no kind match any.
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

/// Refuses a report of system metrics with longer names, more levels or more values below its first level than its readers
/// can do with: each value becomes a reading that has all names above it.
pub(super) fn check_nested(metrics: &Map<String, Value>) -> AppResult<()> {
    let mut count = metrics.len();
    let mut unseen: Vec<(usize, &Value)> = metrics.values().map(|value| (1, value)).collect();
    while let Some((level, value)) = unseen.pop() {
        let below: Vec<&Value> = match value {
            Value::Object(members) => {
                if let Some(name) = members.keys().find(|name| name.len() > MOST_NAME_BYTES) {
                    return Err(AppError::invalid(format!(
                        "a name in a report of system metrics may have at most {MOST_NAME_BYTES} bytes, found {}",
                        name.len()
                    )));
                }
                count += members.len();
                members.values().collect()
            }
            Value::Array(items) => {
                count += items.len();
                items.iter().collect()
            }
            _ => continue,
        };
        if level == MOST_LEVELS {
            return Err(AppError::invalid(format!(
                "a report of system metrics may have at most {MOST_LEVELS} levels of maps and lists, found more"
            )));
        }
        if count > MOST_NAMES {
            return Err(AppError::invalid(format!(
                "a report of system metrics may have at most {MOST_NAMES} names and values on all levels together, \
                 found more"
            ))
            .hint("send them in several reports"));
        }
        unseen.extend(below.into_iter().map(|value| (level + 1, value)));
    }
    Ok(())
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

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(members) = value else {
            panic!("an object")
        };
        members
    }

    #[test]
    fn reports_with_more_than_readers_can_do_with_are_refused() {
        let long = "x".repeat(MOST_NAME_BYTES + 1);
        let values = |count: usize| -> Map<String, Value> {
            (0..count).map(|n| (format!("x{n}"), json!(1))).collect()
        };
        let mut deep = json!(1);
        for _ in 1..MOST_LEVELS {
            deep = json!({ "x": deep });
        }
        check_nested(&object(json!({"a": {"GPU-1": values(MOST_NAMES - 2)}}))).unwrap();
        check_nested(&object(json!({ "a": deep }))).unwrap();
        for (metrics, text) in [
            (json!({"a": {&long: {"x": 1}}}), "1024 bytes, found 1025"),
            (
                json!({"a": {"GPU-1": {&long: 1}}}),
                "1024 bytes, found 1025",
            ),
            (
                json!({"a": {"GPU-1": values(MOST_NAMES - 1)}}),
                "10000 names",
            ),
            (
                json!({"a": {"GPU-1": {"x": vec![1; MOST_NAMES]}}}),
                "10000 names",
            ),
            (json!({"a": {"x": deep}}), "8 levels"),
            (json!({"a": {"x": [deep]}}), "8 levels"),
        ] {
            let error = check_nested(&object(metrics)).unwrap_err();
            assert!(error.message.contains(text), "{}", error.message);
        }
    }

    fn many(series: usize, each: usize, label: &str) -> Vec<Readings> {
        let reading = |at: usize| Reading {
            value: 1.0,
            batch: 0,
            at: i64::try_from(at).unwrap(),
        };
        (0..series)
            .map(|n| Readings {
                trial_id: TrialId(1),
                labels: labels(SeriesKind::System, "a", label, &format!("gpu_{n}")),
                readings: (0..each).map(reading).collect(),
            })
            .collect()
    }

    #[test]
    fn readings_are_refused_by_what_they_become() {
        require_bounded(&many(20, 1000, "GPU-1")).unwrap();
        let label = "x".repeat(1000);
        require_bounded(&many(1, 4000, &label)).unwrap();
        for (readings, text) in [
            (many(20, 1001, "GPU-1"), "20000 readings, found 20020"),
            (many(1, 5000, &label), "4 MiB of labels"),
        ] {
            let error = require_bounded(&readings).unwrap_err();
            assert!(error.message.contains(text), "{}", error.message);
        }
        let together = many(MOST_NAMES / 3 + 1, 1, "GPU-1");
        let error = PlacedReadings::new(TrialId(1), RunId::FIRST, &together).unwrap_err();
        assert!(error.message.contains("of one time"), "{}", error.message);
        // What is not refused then makes reports that are not, either.
        let together = PlacedReadings::new(TrialId(1), RunId::FIRST, &together[1..]).unwrap();
        let reports: Vec<Report> = together.reports().collect::<AppResult<_>>().unwrap();
        assert_eq!(reports.len(), 1);
        check(&reports[0]).unwrap();
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
            run_id: RunId::FIRST,
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
        assert!(!known.has(TrialId(1), RunId(1), "agent"));
        known.note(&report(1, "cpu", json!({"cpu_util_simple": 5})));
        assert!(known.has(TrialId(1), RunId(1), "agent"));
        assert!(!known.has(TrialId(1), RunId(2), "agent"), "another run");
        for trial in 2..=5000 {
            known.note(&report(trial, "cpu", json!({})));
        }
        assert!(!known.has(TrialId(1), RunId(1), "agent"));
        assert!(known.has(TrialId(5000), RunId(1), "agent"));
        assert_eq!(known.0.lock().unwrap().runs.len(), MOST_KNOWN);
    }
}
