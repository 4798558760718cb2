//! Searches: the last snapshot and the events since.

use det_ids::ExperimentId;

use crate::unit::save_rows;
use crate::{Conn, StoreError};

/// What is needed to bring a search back.
#[derive(Debug, Clone)]
pub struct StoredSearch {
    /// Sequence number of the last event that the snapshot holds.
    pub through: i64,
    /// State of the search at that event, JSON.
    pub snapshot: String,
    /// Later events in order: sequence number and JSON.
    pub events: Vec<(i64, String)>,
}

/// The stored search of an experiment.
pub async fn find(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
) -> Result<Option<StoredSearch>, StoreError> {
    conn.flush().await?;
    let Some((through, snapshot)) = fetch_optional!(
        conn,
        (i64, String),
        "SELECT through, snapshot FROM search_snapshots WHERE experiment_id = $1",
        experiment_id
    )?
    else {
        return Ok(None);
    };
    let events = fetch_all!(
        conn,
        (i64, String),
        "SELECT seq, event FROM search_events WHERE experiment_id = $1 AND seq > $2 ORDER BY seq",
        experiment_id,
        through
    )?;
    Ok(Some(StoredSearch {
        through,
        snapshot,
        events,
    }))
}

/// Appends one event.
#[expect(clippy::unused_async, reason = "like all functions of rows")]
pub async fn append_event(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    seq: i64,
    event: &str,
) -> Result<(), StoreError> {
    let event = (experiment_id, seq, event.to_owned());
    conn.writing()?.search_events.push(event);
    Ok(())
}

/// Writes events of searches: experiment, number, JSON.
pub(crate) async fn save_events(
    conn: &mut Conn<'_>,
    rows: &[(ExperimentId, i64, String)],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO search_events",
        (
            experiment_id: "bigint" = |row| row.0,
            seq: "bigint" = |row| row.1,
            event: "text" = |row| row.2.as_str(),
        ),
        ""
    );
    Ok(())
}

/// Replaces the snapshot and drops the events it holds.
pub async fn save_snapshot(
    conn: &mut Conn<'_>,
    experiment_id: ExperimentId,
    through: i64,
    snapshot: &str,
) -> Result<(), StoreError> {
    conn.flush().await?;
    execute!(
        conn,
        "INSERT INTO search_snapshots (experiment_id, through, snapshot) VALUES ($1, $2, $3) \
         ON CONFLICT (experiment_id) DO UPDATE SET through = excluded.through, snapshot = excluded.snapshot",
        experiment_id,
        through,
        snapshot
    )?;
    execute!(
        conn,
        "DELETE FROM search_events WHERE experiment_id = $1 AND seq <= $2",
        experiment_id,
        through
    )?;
    Ok(())
}

/// Removes the search of an experiment that has ended.
pub async fn delete(conn: &mut Conn<'_>, experiment_id: ExperimentId) -> Result<(), StoreError> {
    conn.flush().await?;
    execute!(
        conn,
        "DELETE FROM search_events WHERE experiment_id = $1",
        experiment_id
    )?;
    execute!(
        conn,
        "DELETE FROM search_snapshots WHERE experiment_id = $1",
        experiment_id
    )?;
    Ok(())
}
