//! Metric reports as they were ingested: a row for each commit, of all trials together, until they are compacted into
//! chunks.
//!
//! A commit of the reports of many trials costs one short row at the end of one table, and not a row, an index entry and
//! a new summary for each trial. Some seconds later, and after a start, [`SortedReports`] sorts the rows by trial and
//! packs them, on another thread than the writer's; [`apply`] stores chunks, statistics and steps and removes the journal's rows, in one
//! transaction. So at every commit the chunks, the statistics and the trials' steps are consistent, and the journal holds
//! the rest.

use std::collections::BTreeMap;

use det_ids::{JournalId, RunId, TrialId};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::db::Link;
use crate::metrics::GroupSummary;
use crate::{Conn, StoreError, chunk, metrics};

/// Most reports in one chunk.
pub const CHUNK_REPORTS: usize = 2048;
/// A chunk is full with so many bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Most bytes that [`read`] gives at once, as they are stored; a single row may have more.
const READ_BYTES: usize = 16 << 20;
/// A compaction takes no more rows once it stores into so many groups of trials: bounds how long its transaction delays
/// others.
const COMPACTED_GROUPS: usize = 512;
/// Most rows that one statement fetches.
const READ_ROWS: i64 = 64;

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        what: "the journal of metrics".into(),
        message: error.to_string(),
    }
}

/// One report in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The trial that reported it.
    pub trial_id: TrialId,
    /// Number of the trial's run that reported it.
    pub run_id: RunId,
    /// Metric group of the report.
    pub group: String,
    /// The report as [`metrics::NewReport::encode`] made it.
    pub line: Vec<u8>,
}

/// The reports that one commit added to the journal.
#[derive(Debug, Clone, crate::Row)]
pub struct JournalRow {
    /// Order of arrival, given by the writer of the row.
    pub id: JournalId,
    /// The [`Entry`]s of the commit in order, as one compressed value.
    pub data: Vec<u8>,
}

impl JournalRow {
    /// The reports in the order of their arrival. `Err` = the stored value cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let entries = self.unpack();
        entries
            .map_err(|error| error.in_row(|| format!("row {} of the journal of metrics", self.id)))
    }

    fn unpack(&self) -> Result<Vec<Entry>, StoreError> {
        let bytes = chunk::unpack_bytes(&self.data)?;
        let mut lines = bytes.split(|b| *b == b'\n');
        let mut entries = Vec::new();
        // The part behind the last line feed is empty.
        while let Some(head) = lines.next().filter(|head| !head.is_empty()) {
            let (trial_id, run_id, group) = serde_json::from_slice(head).map_err(corrupt)?;
            let line = lines
                .next()
                .ok_or_else(|| corrupt("it ends within a report"))?;
            entries.push(Entry {
                trial_id,
                run_id,
                group,
                line: line.to_vec(),
            });
        }
        Ok(entries)
    }
}

/// Packs the entries of one commit.
pub fn pack<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    for entry in entries {
        let head = (entry.trial_id, entry.run_id, &entry.group);
        serde_json::to_writer(&mut bytes, &head).map_err(corrupt)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&entry.line);
        bytes.push(b'\n');
    }
    chunk::pack_bytes(&bytes)
}

/// Adds a row. Its number must be higher than that of every stored row.
pub async fn append(conn: &mut Conn<'_>, id: JournalId, data: &[u8]) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO metric_journal (id, data) VALUES ($1, $2)",
        id,
        data
    )?;
    Ok(())
}

/// Rows after `after` in order: all of them, or the first ones up to some 16 MiB.
pub async fn read(conn: &mut Conn<'_>, after: JournalId) -> Result<Vec<JournalRow>, StoreError> {
    let (mut rows, mut after, mut bytes) = (Vec::new(), after, 0);
    loop {
        let page = fetch_all!(
            conn,
            JournalRow,
            "SELECT id, data FROM metric_journal WHERE id > $1 ORDER BY id LIMIT $2",
            after,
            READ_ROWS
        )?;
        let Some(last) = page.last() else {
            return Ok(rows);
        };
        after = last.id;
        bytes += page.iter().map(|row| row.data.len()).sum::<usize>();
        rows.extend(page);
        if bytes >= READ_BYTES {
            return Ok(rows);
        }
    }
}

/// The newest row; the default = the journal is empty.
pub async fn newest(conn: &mut Conn<'_>) -> Result<JournalId, StoreError> {
    let (newest,) = fetch_one!(
        conn,
        (JournalId,),
        "SELECT COALESCE(MAX(id), 0) FROM metric_journal"
    )?;
    Ok(newest)
}

/// Reports of the journal's oldest rows, sorted by trial, run and group.
#[derive(Debug, Default)]
pub struct SortedReports {
    through: JournalId,
    // Chunks of a trial are in the order of its runs.
    lines: BTreeMap<(TrialId, RunId, String), Vec<Vec<u8>>>,
}

impl SortedReports {
    /// Sorts what rows hold. Takes no more of them once one transaction has enough to store.
    pub fn of(rows: &[JournalRow]) -> Result<Self, StoreError> {
        let mut sorted = Self::default();
        for row in rows {
            for entry in row.entries()? {
                sorted
                    .lines
                    .entry((entry.trial_id, entry.run_id, entry.group))
                    .or_default()
                    .push(entry.line);
            }
            sorted.through = row.id;
            if sorted.lines.len() >= COMPACTED_GROUPS {
                break;
            }
        }
        Ok(sorted)
    }

    /// The trials that reported, each once.
    pub fn trials(&self) -> Vec<TrialId> {
        let mut ids: Vec<TrialId> = self
            .lines
            .keys()
            .map(|(trial_id, _, _)| *trial_id)
            .collect();
        ids.dedup();
        ids
    }

    /// Packs it, and adds it to the stored statistics of its trials.
    pub fn prepare(
        self,
        mut summaries: BTreeMap<TrialId, BTreeMap<String, GroupSummary>>,
    ) -> Result<Compaction, StoreError> {
        let mut compaction = Compaction {
            through: self.through,
            ..Compaction::default()
        };
        let mut highest: BTreeMap<(TrialId, RunId), i64> = BTreeMap::new();
        let mut changed: BTreeMap<(TrialId, String), GroupSummary> = BTreeMap::new();
        for ((trial_id, run_id, group), lines) in self.lines {
            let key = (trial_id, group.clone());
            let mut summary = changed
                .remove(&key)
                .or_else(|| summaries.get_mut(&trial_id)?.remove(&group))
                .unwrap_or_default();
            summary.start_run(run_id);
            let last = compaction.pack_lines(trial_id, run_id, &group, &lines, &mut summary)?;
            if metrics::counts_as_progress(&group)
                && let Some(last) = last
            {
                let known = highest.entry((trial_id, run_id)).or_insert(last);
                *known = last.max(*known);
            }
            changed.insert(key, summary);
        }
        for ((trial_id, group), summary) in changed {
            compaction.summaries.push(Summary {
                trial_id,
                last_step: summary.last_step,
                document: serde_json::to_string(&summary).map_err(|error| {
                    corrupt(error).in_row(|| format!("metric summary of trial {trial_id}"))
                })?,
                group,
            });
        }
        for ((trial_id, run_id), highest) in highest {
            compaction.steps.push(Steps {
                trial_id,
                run_id,
                highest,
            });
        }
        Ok(compaction)
    }
}

/// The chunks, statistics and steps that a compaction stores.
#[derive(Debug, Default)]
pub struct Compaction {
    through: JournalId,
    chunks: Vec<metrics::NewChunk>,
    summaries: Vec<Summary>,
    steps: Vec<Steps>,
}

#[derive(Debug)]
struct Summary {
    trial_id: TrialId,
    group: String,
    last_step: i64,
    document: String,
}

/// The highest step that a run reported in the groups that count for it.
#[derive(Debug)]
struct Steps {
    trial_id: TrialId,
    run_id: RunId,
    highest: i64,
}

/// What the statistics need of a report; single batches are passed over.
#[derive(Deserialize)]
struct Values {
    #[serde(rename = "s", default)]
    step: Option<i64>,
    #[serde(rename = "m")]
    metrics: Map<String, Value>,
}

impl Compaction {
    /// The last row of the journal that is compacted.
    pub fn through(&self) -> JournalId {
        self.through
    }

    /// Packs reports of one trial, run and group into chunks and adds them to the statistics. Gives the highest step.
    fn pack_lines(
        &mut self,
        trial_id: TrialId,
        run_id: RunId,
        group: &str,
        lines: &[Vec<u8>],
        summary: &mut GroupSummary,
    ) -> Result<Option<i64>, StoreError> {
        let mut chunk = metrics::NewChunk::new(trial_id, run_id, group);
        let mut highest = None;
        for line in lines {
            let values: Values = serde_json::from_slice(line).map_err(|error| {
                let of = || format!("a report of trial {trial_id} in the journal of metrics");
                corrupt(error).in_row(of)
            })?;
            summary.add_values(values.step, &values.metrics);
            chunk.push(values.step, line);
            highest = highest.max(values.step);
            if chunk.reports() >= CHUNK_REPORTS || chunk.bytes() >= CHUNK_BYTES {
                self.chunks.push(chunk.packed()?);
                chunk = metrics::NewChunk::new(trial_id, run_id, group);
            }
        }
        if chunk.reports() > 0 {
            self.chunks.push(chunk.packed()?);
        }
        Ok(highest)
    }
}

/// Stores what was prepared and removes it from the journal. Reports of trials that are gone meanwhile go with them;
/// steps of an older run change nothing.
pub async fn apply(conn: &mut Conn<'_>, compaction: Compaction) -> Result<(), StoreError> {
    // The steps of trials are raised past the rows in memory.
    conn.flush().await?;
    metrics::append_all(conn, compaction.chunks).await?;
    match &mut conn.link {
        Link::Lite(_) => {
            for summary in &compaction.summaries {
                execute!(
                    conn,
                    "INSERT INTO metric_summaries (trial_id, group_name, last_step, document) \
                     SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT 1 FROM trials WHERE id = $1) \
                     ON CONFLICT (trial_id, group_name) \
                     DO UPDATE SET last_step = excluded.last_step, document = excluded.document",
                    summary.trial_id,
                    summary.group.as_str(),
                    summary.last_step,
                    summary.document.as_str()
                )?;
            }
            for steps in &compaction.steps {
                execute!(
                    conn,
                    "UPDATE trials SET total_batches = $1 WHERE id = $2 AND run_id = $3 AND total_batches < $1",
                    steps.highest,
                    steps.trial_id,
                    steps.run_id
                )?;
            }
        }
        Link::Pg(pg) => apply_lists(pg, &compaction.summaries, &compaction.steps).await?,
    }
    if let Ok(unit) = conn.writing() {
        for steps in &compaction.steps {
            unit.trials.remove(&steps.trial_id);
        }
    }
    execute!(
        conn,
        "DELETE FROM metric_journal WHERE id <= $1",
        compaction.through
    )?;
    Ok(())
}

/// The same on PostgreSQL with a statement for each table: there each statement is a round trip.
async fn apply_lists(
    conn: &mut sqlx::PgConnection,
    summaries: &[Summary],
    steps: &[Steps],
) -> Result<(), sqlx::Error> {
    let of = |value: fn(&Summary) -> i64| summaries.iter().map(value).collect::<Vec<i64>>();
    sqlx::query(
        "INSERT INTO metric_summaries (trial_id, group_name, last_step, document) \
         SELECT n.trial_id, n.group_name, n.last_step, n.document \
         FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) AS n (trial_id, group_name, last_step, document) \
         JOIN trials t ON t.id = n.trial_id \
         ON CONFLICT (trial_id, group_name) DO UPDATE SET last_step = excluded.last_step, document = excluded.document",
    )
    .bind(of(|s| s.trial_id.0))
    .bind(summaries.iter().map(|s| s.group.as_str()).collect::<Vec<_>>())
    .bind(of(|s| s.last_step))
    .bind(summaries.iter().map(|s| s.document.as_str()).collect::<Vec<_>>())
    .execute(&mut *conn)
    .await?;
    let of = |value: fn(&Steps) -> i64| steps.iter().map(value).collect::<Vec<i64>>();
    sqlx::query(
        "UPDATE trials t SET total_batches = n.highest \
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS n (trial_id, run_id, highest) \
         WHERE t.id = n.trial_id AND t.run_id = n.run_id AND t.total_batches < n.highest",
    )
    .bind(of(|s| s.trial_id.0))
    .bind(of(|s| s.run_id.0))
    .bind(of(|s| s.highest))
    .execute(conn)
    .await?;
    Ok(())
}
