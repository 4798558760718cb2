//! Metric reports, stored as chunks, and the statistics of each metric name.

mod pages;
mod runs;

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{MetricChunkId, ReportId, RunId, TrialId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::db::Link;
use crate::query::{Query, Value as Parameter, pieces};
use crate::{Conn, StoreError, chunk};

pub(crate) use pages::{BETWEEN, GROUP_CHUNKS, MARKS, TRIAL_CHUNKS};
pub use pages::{ChunkMark, chunks, chunks_between, marks};
pub(crate) use runs::run_starts_query;
pub use runs::{counts, outdated_from, run_starts, run_starts_of};

/// One report as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredReport {
    /// Steps completed; `None` for profiler groups.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// When it was measured, microseconds.
    #[serde(rename = "t")]
    pub at: i64,
    /// Average (or validation) metrics by name. Non-finite numbers are the strings `NaN`, `Infinity`, `-Infinity`.
    #[serde(rename = "m")]
    pub metrics: serde_json::Map<String, Value>,
    /// Metrics of single batches, as JSON text: as values they would take some thirty times as much.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<Box<RawValue>>,
    /// Identity given by the sender, if any.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub report_id: Option<ReportId>,
}

/// A [`StoredReport`] without the metrics of its single batches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Averages {
    /// Steps completed; `None` for profiler groups.
    #[serde(rename = "s", default)]
    pub step: Option<i64>,
    /// When it was measured, microseconds.
    #[serde(rename = "t")]
    pub at: i64,
    /// Average (or validation) metrics by name, with non-finite numbers as in [`StoredReport::metrics`].
    #[serde(rename = "m")]
    pub metrics: Map<String, Value>,
}

/// About how many bytes a value takes besides its place.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 32 + value_bytes(item)).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| 96 + name.len() + value_bytes(value))
            .sum(),
    }
}

impl PartialEq for StoredReport {
    fn eq(&self, other: &Self) -> bool {
        (self.step, self.at, &self.metrics, &self.report_id)
            == (other.step, other.at, &other.metrics, &other.report_id)
            && self.same_batches(other)
    }
}

impl StoredReport {
    /// About how many bytes it takes in memory.
    pub fn bytes(&self) -> usize {
        let batches = self.batches.as_ref().map_or(0, |text| text.get().len());
        256 + batches
            + self
                .metrics
                .iter()
                .map(|(name, value)| 96 + name.len() + value_bytes(value))
                .sum::<usize>()
    }

    /// Whether both have the same metrics of single batches, however they are written.
    pub fn same_batches(&self, other: &Self) -> bool {
        match (&self.batches, &other.batches) {
            (None, None) => true,
            (Some(one), Some(another)) => {
                one.get() == another.get()
                    || match (
                        serde_json::from_str::<Value>(one.get()),
                        serde_json::from_str::<Value>(another.get()),
                    ) {
                        (Ok(one), Ok(another)) => one == another,
                        _ => false,
                    }
            }
            _ => false,
        }
    }
}

/// A report on its way into the store: the same as [`StoredReport`], borrowed, with the values of single batches as the
/// text that came.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct NewReport<'a> {
    /// Steps completed; `None` for profiler groups.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// When it was measured, microseconds.
    #[serde(rename = "t")]
    pub at: i64,
    /// Average (or validation) metrics by name, with non-finite numbers as in [`StoredReport::metrics`].
    #[serde(rename = "m")]
    pub metrics: &'a Map<String, Value>,
    /// See [`StoredReport`]; JSON that `serde_json` can read as a [`Value`].
    #[serde(rename = "b", skip_serializing_if = "Option::is_none")]
    pub batches: Option<&'a RawValue>,
    /// Identity given by the sender; `None` = it gave none.
    #[serde(rename = "i", skip_serializing_if = "Option::is_none")]
    pub report_id: Option<&'a ReportId>,
}

impl NewReport<'_> {
    /// The report as one line of JSON, which reads back as a [`StoredReport`].
    pub fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let corrupt = |e: serde_json::Error| StoreError::Corrupt {
            what: "a new metric report".into(),
            message: e.to_string(),
        };
        // Text that was written over several lines is put on one.
        let on_one_line = match self.batches {
            Some(raw) if raw.get().contains(['\n', '\r']) => {
                let value: Value = serde_json::from_str(raw.get()).map_err(corrupt)?;
                Some(serde_json::value::to_raw_value(&value).map_err(corrupt)?)
            }
            _ => None,
        };
        let report = NewReport {
            batches: on_one_line.as_deref().or(self.batches),
            ..*self
        };
        serde_json::to_vec(&report).map_err(corrupt)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// The JSON type of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueKind {
    /// Numbers, the non-finite ones included, which are stored as strings.
    Number,
    /// Strings, or values of more than one type.
    String,
    /// Nothing but JSON `true` and `false`.
    Boolean,
    /// JSON objects, which are not looked into.
    Object,
    /// JSON lists, which are not looked into.
    Array,
    /// Nothing but nulls.
    Null,
}

/// Statistics of one metric name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// The type of its values.
    #[serde(rename = "type")]
    pub kind: ValueKind,
    /// How many values were reported.
    pub count: i64,
    /// Sum of the finite values; `None` = not all values are numbers, or none is finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<f64>,
    /// Lowest finite value; `None` = as for the sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest finite value; `None` = as for the sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// How many values were NaN or infinite: sum, min, max and mean leave those out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_finite: i64,
    /// Value of the report that arrived last.
    pub last: Value,
}

/// Statistics of a trial's group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Statistics of each metric, by its name.
    pub metrics: BTreeMap<String, MetricSummary>,
    /// Highest step reported by the current run; -1 before the first.
    pub last_step: i64,
    /// The newest run that has reported.
    pub run_id: RunId,
}

impl Default for GroupSummary {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupSummary {
    /// The statistics of a group without reports.
    pub fn new() -> Self {
        Self {
            metrics: BTreeMap::new(),
            last_step: -1,
            run_id: RunId::default(),
        }
    }

    /// Counts one more report in.
    pub fn add(&mut self, report: &StoredReport) {
        self.add_values(report.step, &report.metrics);
    }

    /// Goes on with reports of `run_id`: steps are compared within one run only.
    pub fn start_run(&mut self, run_id: RunId) {
        if self.run_id != run_id {
            self.run_id = run_id;
            self.last_step = -1;
        }
    }

    /// Adds the values of one report.
    pub fn add_values(&mut self, step: Option<i64>, metrics: &Map<String, Value>) {
        if let Some(step) = step {
            self.last_step = self.last_step.max(step);
        }
        for (name, value) in metrics {
            if let Some(summary) = self.metrics.get_mut(name) {
                summary.add(value);
            } else if self.metrics.len() < MOST_NAMES {
                // Beyond that the reports themselves are kept: statistics are shown with each list of trials.
                self.metrics.insert(name.clone(), MetricSummary::of(value));
            }
        }
    }
}

/// Names of metrics in one group of a trial of which statistics are kept, the first ones.
const MOST_NAMES: usize = 10_000;

/// A number as metrics carry it: JSON numbers and the strings for non-finite ones.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => match s.as_str() {
            "NaN" | "Nan" | "nan" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn kind(value: &Value) -> ValueKind {
    match value {
        _ if number(value).is_some() => ValueKind::Number,
        Value::String(_) => ValueKind::String,
        Value::Bool(_) => ValueKind::Boolean,
        Value::Object(_) => ValueKind::Object,
        Value::Array(_) => ValueKind::Array,
        Value::Null | Value::Number(_) => ValueKind::Null,
    }
}

impl MetricSummary {
    fn of(value: &Value) -> Self {
        let mut summary = Self {
            kind: kind(value),
            count: 0,
            sum: None,
            min: None,
            max: None,
            non_finite: 0,
            last: Value::Null,
        };
        summary.add(value);
        summary
    }

    fn add(&mut self, value: &Value) {
        self.count += 1;
        if self.kind != kind(value) {
            self.kind = ValueKind::String;
            (self.sum, self.min, self.max) = (None, None, None);
        } else if let Some(n) = number(value) {
            if n.is_finite() {
                self.sum = Some(self.sum.unwrap_or(0.0) + n);
                self.min = Some(self.min.map_or(n, |m| m.min(n)));
                self.max = Some(self.max.map_or(n, |m| m.max(n)));
            } else {
                self.non_finite += 1;
            }
        }
        self.last = value.clone();
    }

    /// Mean over the finite values, for numbers.
    pub fn mean(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
        self.sum
            .map(|sum| sum / (self.count - self.non_finite).max(1) as f64)
    }
}

/// A stored chunk of reports.
#[derive(Debug, Clone, crate::Row)]
pub struct ChunkRow {
    /// Number of the chunk, ascending in order of arrival.
    pub id: MetricChunkId,
    /// The trial that reported it.
    pub trial_id: TrialId,
    /// `training`, `validation`, or a group of the user's.
    pub group_name: String,
    /// Number of the trial's run that reported it.
    pub run_id: RunId,
    /// Lowest step in it; -1 without steps.
    pub first_step: i64,
    /// Highest step in it; -1 without steps.
    pub last_step: i64,
    /// Number of reports in it.
    pub reports: i64,
    /// The [`StoredReport`]s in order, as one compressed value.
    pub data: Vec<u8>,
}

impl ChunkRow {
    /// The reports in the order of their arrival. `Err` = the stored value cannot be read.
    pub fn unpack(&self) -> Result<Vec<StoredReport>, StoreError> {
        chunk::unpack(&self.data).map_err(|error| self.name_in(error))
    }

    /// The reports in order, without the metrics of their single batches: those may be a hundred times as much,
    /// and are passed over.
    pub fn unpack_averages(&self) -> Result<Vec<Averages>, StoreError> {
        chunk::unpack(&self.data).map_err(|error| self.name_in(error))
    }

    /// The reports at `step` in order; `None` = those without one.
    pub fn unpack_at(&self, step: Option<i64>) -> Result<Vec<StoredReport>, StoreError> {
        let bytes = chunk::unpack_bytes(&self.data).map_err(|error| self.name_in(error))?;
        bytes
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty() && is_at(line, step))
            .map(|line| decode(line).map_err(|error| self.name_in(error)))
            .collect()
    }

    fn name_in(&self, error: StoreError) -> StoreError {
        error.in_row(|| format!("metric chunk {} of trial {}", self.id, self.trial_id))
    }
}

/// Whether a line that [`NewReport::encode`] made is of this step. It is the first thing in the line, if it has one.
pub fn is_at(line: &[u8], step: Option<i64>) -> bool {
    let after = line.strip_prefix(b"{\"s\":");
    match step {
        None => after.is_none(),
        Some(step) => after.is_some_and(|rest| {
            let digits = step.to_string();
            rest.strip_prefix(digits.as_bytes())
                .is_some_and(|rest| rest.starts_with(b","))
        }),
    }
}

/// Reads a line that [`NewReport::encode`] made.
pub fn decode(line: &[u8]) -> Result<StoredReport, StoreError> {
    serde_json::from_slice(line).map_err(|e| StoreError::Corrupt {
        what: "a metric report".into(),
        message: e.to_string(),
    })
}

/// Whether steps reported in this group are the trial's progress.
pub(crate) fn counts_as_progress(group: &str) -> bool {
    group == "training" || group == "validation"
}

/// A chunk on its way into the store.
#[derive(Debug)]
pub struct NewChunk {
    trial_id: TrialId,
    run_id: RunId,
    group: String,
    first_step: i64,
    last_step: i64,
    reports: usize,
    /// JSON lines; packed ones after [`NewChunk::packed`].
    data: Vec<u8>,
}

impl NewChunk {
    /// A chunk without reports.
    pub fn new(trial_id: TrialId, run_id: RunId, group: &str) -> Self {
        Self {
            trial_id,
            run_id,
            group: group.to_owned(),
            first_step: -1,
            last_step: -1,
            reports: 0,
            data: Vec::new(),
        }
    }

    /// Adds a report that [`NewReport::encode`] made a line of.
    pub fn push(&mut self, step: Option<i64>, line: &[u8]) {
        if let Some(step) = step {
            self.last_step = self.last_step.max(step);
            self.first_step = match self.first_step {
                -1 => step,
                first => first.min(step),
            };
        }
        self.reports += 1;
        self.data.extend_from_slice(line);
        self.data.push(b'\n');
    }

    /// How many reports it holds.
    pub fn reports(&self) -> usize {
        self.reports
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Packs it for `append_all`; nothing can be added after that.
    pub fn packed(self) -> Result<Self, StoreError> {
        Ok(Self {
            data: chunk::pack_bytes(&self.data)?,
            ..self
        })
    }
}

/// Appends packed chunks in their order. Those of trials that are gone are left out.
pub(crate) async fn append_all(
    conn: &mut Conn<'_>,
    chunks: Vec<NewChunk>,
) -> Result<(), StoreError> {
    runs::note(conn, &chunks).await?;
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let pg = match &mut conn.link {
        Link::Pg(pg) => pg,
        Link::Lite(_) => {
            for chunk in chunks {
                execute!(
                    conn,
                    "INSERT INTO metric_chunks (trial_id, group_name, run_id, first_step, last_step, reports, data) \
                     SELECT $1, $2, $3, $4, $5, $6, $7 WHERE EXISTS (SELECT 1 FROM trials WHERE id = $1)",
                    chunk.trial_id,
                    chunk.group,
                    chunk.run_id,
                    chunk.first_step,
                    chunk.last_step,
                    count(chunk.reports),
                    chunk.data
                )?;
            }
            return Ok(());
        }
    };
    // On PostgreSQL each statement is a round trip: one for all.
    let of = |value: fn(&NewChunk) -> i64| chunks.iter().map(value).collect::<Vec<i64>>();
    sqlx::query(
        "INSERT INTO metric_chunks (trial_id, group_name, run_id, first_step, last_step, reports, data) \
         SELECT n.trial_id, n.group_name, n.run_id, n.first_step, n.last_step, n.reports, n.data \
         FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) \
         WITH ORDINALITY AS n (trial_id, group_name, run_id, first_step, last_step, reports, data, place) \
         JOIN trials t ON t.id = n.trial_id ORDER BY n.place",
    )
    .bind(of(|c| c.trial_id.0))
    .bind(chunks.iter().map(|c| c.group.as_str()).collect::<Vec<_>>())
    .bind(of(|c| c.run_id.0))
    .bind(of(|c| c.first_step))
    .bind(of(|c| c.last_step))
    .bind(chunks.iter().map(|c| count(c.reports)).collect::<Vec<_>>())
    .bind(chunks.iter().map(|c| c.data.as_slice()).collect::<Vec<_>>())
    .execute(&mut **pg)
    .await?;
    Ok(())
}

/// Appends reports of one trial, group and run as one chunk.
pub async fn append(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    run_id: RunId,
    reports: &[StoredReport],
) -> Result<(), StoreError> {
    let mut chunk = NewChunk::new(trial_id, run_id, group);
    for report in reports {
        let line = serde_json::to_vec(report).map_err(|e| StoreError::Corrupt {
            what: "a new metric report".into(),
            message: e.to_string(),
        })?;
        chunk.push(report.step, &line);
    }
    append_all(conn, vec![chunk.packed()?]).await
}

/// Chunks of one run that may hold `step`.
pub async fn chunks_with_step(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    run_id: RunId,
    step: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ChunkRow,
        "SELECT * FROM metric_chunks WHERE trial_id = $1 AND group_name = $2 AND run_id = $3 AND first_step <= $4 \
         AND last_step >= $4 ORDER BY id",
        trial_id,
        group,
        run_id,
        step
    )?)
}

/// The newest chunks of one run without steps, newest first.
pub async fn newest_without_step(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    run_id: RunId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ChunkRow,
        "SELECT * FROM metric_chunks WHERE trial_id = $1 AND group_name = $2 AND run_id = $3 AND first_step < 0 \
         ORDER BY id DESC LIMIT $4",
        trial_id,
        group,
        run_id,
        limit
    )?)
}

/// Most pairs of trial and step that one statement asks for.
const PLACES: usize = 1000;

pub(crate) fn at_steps_query(group: &str, places: &[(TrialId, i64)]) -> Query {
    let mut query = Query::new("WITH w (trial_id, step) AS (VALUES ");
    for (index, (trial_id, step)) in places.iter().enumerate() {
        query
            .push(if index == 0 { "(" } else { ", (" })
            .bind(*trial_id)
            .push(", ")
            .bind(Parameter::Integer(*step))
            .push(")");
    }
    // A cross join makes SQLite begin with the places, however small it believes the table to be.
    query
        .push(") SELECT DISTINCT m.id FROM w CROSS JOIN metric_chunks m WHERE m.trial_id = w.trial_id AND m.group_name = ")
        .bind(Parameter::Text(group.to_owned()))
        .push(" AND m.first_step <= w.step AND m.last_step >= w.step");
    query
}

pub(crate) fn rows_query(ids: &[MetricChunkId]) -> Query {
    let mut query = Query::new("SELECT * FROM metric_chunks");
    query.any_of("id", ids.iter().copied());
    query
}

/// Chunks of one group that may hold what trials reported at these steps: `(trial, step)`. In the order of arrival.
pub async fn chunks_at(
    conn: &mut Conn<'_>,
    group: &str,
    places: &[(TrialId, i64)],
) -> Result<Vec<ChunkRow>, StoreError> {
    let mut ids = BTreeSet::new();
    for some in places.chunks(PLACES) {
        let found = at_steps_query(group, some)
            .fetch_all::<(MetricChunkId,)>(conn)
            .await?;
        ids.extend(found.into_iter().map(|(id,)| id));
    }
    let ids: Vec<MetricChunkId> = ids.into_iter().collect();
    let mut found: Vec<ChunkRow> = Vec::with_capacity(ids.len());
    for some in pieces(&ids) {
        found.extend(rows_query(some).fetch_all::<ChunkRow>(conn).await?);
    }
    found.sort_unstable_by_key(|chunk: &ChunkRow| chunk.id);
    Ok(found)
}

/// The statistics of a trial's groups.
pub async fn summaries(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
) -> Result<BTreeMap<String, GroupSummary>, StoreError> {
    summaries_of(conn, &[trial_id])
        .await
        .map(|mut all| all.remove(&trial_id).unwrap_or_default())
}

pub(crate) fn summaries_query(trial_ids: &[TrialId]) -> Query {
    let mut query = Query::new("SELECT trial_id, group_name, document FROM metric_summaries");
    query.any_of("trial_id", trial_ids.iter().copied());
    query
}

/// The statistics of several trials' groups.
pub async fn summaries_of(
    conn: &mut Conn<'_>,
    trial_ids: &[TrialId],
) -> Result<BTreeMap<TrialId, BTreeMap<String, GroupSummary>>, StoreError> {
    let mut all: BTreeMap<TrialId, BTreeMap<String, GroupSummary>> = BTreeMap::new();
    for ids in pieces(trial_ids) {
        let rows = summaries_query(ids)
            .fetch_all::<(TrialId, String, String)>(conn)
            .await?;
        for (trial_id, group, document) in rows {
            let summary = serde_json::from_str(&document).map_err(|e| StoreError::Corrupt {
                what: format!("metric summary of trial {trial_id}"),
                message: e.to_string(),
            })?;
            all.entry(trial_id).or_default().insert(group, summary);
        }
    }
    Ok(all)
}

/// Stores the statistics of one group.
pub async fn save_summary(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    summary: &GroupSummary,
) -> Result<(), StoreError> {
    let document = serde_json::to_string(summary).map_err(|e| StoreError::Corrupt {
        what: "a metric summary".into(),
        message: e.to_string(),
    })?;
    execute!(
        conn,
        "INSERT INTO metric_summaries (trial_id, group_name, last_step, document) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (trial_id, group_name) DO UPDATE SET last_step = excluded.last_step, document = excluded.document",
        trial_id,
        group,
        summary.last_step,
        document.as_str()
    )?;
    Ok(())
}
