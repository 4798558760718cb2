//! System metrics of tasks that work for no experiment: what the supervisors of their containers have measured.
//!
//! They are chunks, as metrics of trials are, in one order for each task. A task keeps the newest ones, up to [`MOST_BYTES`];
//! what it has goes with its log.

use det_ids::{AgentId, ContainerId, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Conn, StoreError, chunk};

/// Packed bytes that are kept of one task: about two weeks of one container. What packs better than measurements do counts as
/// [`USUAL_RATIO`] has it.
pub const MOST_BYTES: i64 = 32 << 20;
/// How many times as large as its packed bytes a chunk is at most before it counts for more than them: measurements pack to
/// about a fifth. All that is kept of a task has thus at most so many times [`MOST_BYTES`] unpacked.
pub const USUAL_RATIO: usize = 8;

/// What was measured in one container at one time: averages over some seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskMeasurement {
    /// Its number among those of its container, from 1.
    #[serde(rename = "n")]
    pub number: i64,
    /// When it was made, microseconds.
    #[serde(rename = "t")]
    pub at: i64,
    /// The agent that the container runs on.
    #[serde(rename = "a")]
    pub agent_id: AgentId,
    /// Values by name, or by label and name, of each group.
    #[serde(rename = "g")]
    pub groups: Map<String, Value>,
}

/// Measurements that were reported together.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct MeasurementChunk {
    /// Its place in the order of its task: the bytes that all count for which the task has had up to this one.
    pub total: i64,
    /// The container that they are of.
    pub container_id: ContainerId,
    /// The [`TaskMeasurement`]s in order, as one compressed value.
    pub data: Vec<u8>,
}

impl MeasurementChunk {
    /// About how many bytes [`Self::unpack`] reads.
    pub fn unpacked_size(&self) -> usize {
        chunk::unpacked_size(&self.data)
    }

    /// The measurements, in order.
    ///
    /// # Errors
    /// The chunk is damaged.
    pub fn unpack(&self) -> Result<Vec<TaskMeasurement>, StoreError> {
        let unpacked = chunk::unpack(&self.data);
        unpacked.map_err(|error| {
            let (total, container) = (self.total, &self.container_id);
            error.in_row(|| format!("measurements {total} of container {container}"))
        })
    }
}

/// Stores what was measured in a container of a task, in the order of the numbers; what is stored already is passed over.
/// What the task has beyond [`MOST_BYTES`] is deleted, the oldest first, but for the chunk that the bound falls into.
pub async fn append(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    container_id: &ContainerId,
    measured: &[TaskMeasurement],
) -> Result<(), StoreError> {
    let stored = fetch_one!(
        conn,
        (Option<i64>,),
        "SELECT MAX(last_number) FROM task_metrics WHERE task_id = $1 AND container_id = $2",
        task_id,
        container_id
    )?;
    let mut last = stored.0.unwrap_or(0);
    let mut lines = Vec::new();
    for one in measured {
        if one.number <= last {
            continue;
        }
        last = one.number;
        serde_json::to_writer(&mut lines, one).map_err(|error| StoreError::Corrupt {
            what: format!("a measurement of task {task_id}"),
            message: error.to_string(),
        })?;
        lines.push(b'\n');
    }
    if lines.is_empty() {
        return Ok(());
    }
    let data = chunk::pack_bytes(&lines)?;
    let before = fetch_one!(
        conn,
        (Option<i64>,),
        "SELECT MAX(total) FROM task_metrics WHERE task_id = $1",
        task_id
    )?;
    let counted = data.len().max(lines.len() / USUAL_RATIO);
    let bytes = i64::try_from(counted).unwrap_or(i64::MAX);
    let total = before.0.unwrap_or(0).saturating_add(bytes);
    execute!(
        conn,
        "INSERT INTO task_metrics (task_id, total, container_id, last_number, data) VALUES ($1, $2, $3, $4, $5)",
        task_id,
        total,
        container_id,
        last,
        data
    )?;
    execute!(
        conn,
        "DELETE FROM task_metrics WHERE task_id = $1 AND total <= $2",
        task_id,
        total - MOST_BYTES
    )?;
    Ok(())
}

/// Chunks of a task behind the one at `after`, at most `limit`, in order; 0 = from the first one.
pub async fn after(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    after: i64,
    limit: i64,
) -> Result<Vec<MeasurementChunk>, StoreError> {
    Ok(fetch_all!(
        conn,
        MeasurementChunk,
        "SELECT total, container_id, data FROM task_metrics WHERE task_id = $1 AND total > $2 ORDER BY total LIMIT $3",
        task_id,
        after,
        limit
    )?)
}

/// Deletes what is stored of a task.
pub async fn delete(conn: &mut Conn<'_>, task_id: &TaskId) -> Result<(), StoreError> {
    execute!(conn, "DELETE FROM task_metrics WHERE task_id = $1", task_id)?;
    Ok(())
}
