//! Log lines of tasks, stored as chunks.

use serde::{Deserialize, Serialize};

use crate::{Conn, StoreError, chunk};

/// One line as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was printed, microseconds.
    #[serde(rename = "t")]
    pub at: i64,
    /// Text with exactly one line end.
    #[serde(rename = "l")]
    pub log: String,
    /// `LOG_LEVEL_…`, if known.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// `stdout` or `stderr`.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub stdtype: Option<String>,
    /// `task`, `master`, `agent`.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Rank of a worker process.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub rank_id: Option<i64>,
    /// Allocation that printed it.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub allocation_id: Option<String>,
    /// Container that printed it.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Agent it ran on.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
}

/// A stored chunk of lines.
#[derive(Debug, Clone, crate::Row)]
pub struct ChunkRow {
    /// Id of its first line in the task, from 1.
    pub first_line: i64,
    /// How many lines.
    pub lines: i64,
    /// Packed [`LogLine`]s.
    pub data: Vec<u8>,
}

impl ChunkRow {
    /// The lines with their ids.
    pub fn unpack(&self) -> Result<Vec<(i64, LogLine)>, StoreError> {
        let lines: Vec<LogLine> = chunk::unpack(&self.data)?;
        Ok((self.first_line..).zip(lines).collect())
    }
}

/// Lines packed for storing, so that the writer need not spend its time on it.
#[derive(Debug, Clone)]
pub struct Packed {
    count: i64,
    first_at: i64,
    last_at: i64,
    data: Vec<u8>,
}

/// Packs lines.
pub fn pack(lines: &[LogLine]) -> Result<Packed, StoreError> {
    let times = || lines.iter().map(|l| l.at);
    Ok(Packed {
        count: i64::try_from(lines.len()).unwrap_or(i64::MAX),
        first_at: times().min().unwrap_or(0),
        last_at: times().max().unwrap_or(0),
        data: chunk::pack(lines)?,
    })
}

/// Appends lines to a task's log. Lines of an unknown task are refused with `false`.
pub async fn append(
    conn: &mut Conn<'_>,
    task_id: &str,
    lines: &Packed,
) -> Result<bool, StoreError> {
    if lines.count == 0 {
        return Ok(true);
    }
    let Some((last,)) = fetch_optional!(
        conn,
        (i64,),
        "UPDATE tasks SET log_lines = log_lines + $1 WHERE id = $2 RETURNING log_lines",
        lines.count,
        task_id
    )?
    else {
        return Ok(false);
    };
    execute!(
        conn,
        "INSERT INTO log_chunks (task_id, first_line, lines, first_at, last_at, data) VALUES ($1, $2, $3, $4, $5, $6)",
        task_id,
        last - lines.count + 1,
        lines.count,
        lines.first_at,
        lines.last_at,
        lines.data.as_slice()
    )?;
    Ok(true)
}

/// How many of the lines from sequence number `first` are already stored, and notes that all `count` of them are now.
/// A spool's first number is 1.
pub async fn advance_spool(
    conn: &mut Conn<'_>,
    spool_id: &str,
    task_id: &str,
    first: i64,
    count: i64,
) -> Result<i64, StoreError> {
    let next = fetch_optional!(
        conn,
        (i64,),
        "SELECT next_sequence FROM log_spools WHERE spool_id = $1",
        spool_id
    )?
    .map_or(1, |(n,)| n);
    let end = first + count;
    if end > next {
        execute!(
            conn,
            "INSERT INTO log_spools (spool_id, task_id, next_sequence) VALUES ($1, $2, $3) \
             ON CONFLICT (spool_id) DO UPDATE SET next_sequence = excluded.next_sequence",
            spool_id,
            task_id,
            end
        )?;
    }
    Ok((next - first).clamp(0, count))
}

/// A page of a task's chunks that hold lines after `after`, oldest first.
pub async fn chunks_after(
    conn: &mut Conn<'_>,
    task_id: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ChunkRow,
        "SELECT first_line, lines, data FROM log_chunks WHERE task_id = $1 AND first_line >= \
         COALESCE((SELECT MAX(first_line) FROM log_chunks WHERE task_id = $1 AND first_line <= $2), 0) \
         AND first_line + lines > $2 ORDER BY first_line LIMIT $3",
        task_id,
        after + 1,
        limit
    )?)
}

/// A page of a task's chunks that hold lines before `before`, newest first.
pub async fn chunks_before(
    conn: &mut Conn<'_>,
    task_id: &str,
    before: i64,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ChunkRow,
        "SELECT first_line, lines, data FROM log_chunks WHERE task_id = $1 AND first_line < $2 \
         ORDER BY first_line DESC LIMIT $3",
        task_id,
        before,
        limit
    )?)
}
