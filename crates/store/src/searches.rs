//! Searches: the last snapshot and the events since.

use crate::{Conn, StoreError};

/// What is needed to bring a search back.
#[derive(Debug, Clone)]
pub struct StoredSearch {
    /// Sequence number of the last event that the snapshot holds.
    pub through: i64,
    /// The snapshot, JSON.
    pub snapshot: String,
    /// Later events in order: sequence number and JSON.
    pub events: Vec<(i64, String)>,
}

/// The stored search of an experiment.
pub async fn find(
    conn: &mut Conn<'_>,
    experiment_id: i64,
) -> Result<Option<StoredSearch>, StoreError> {
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
pub async fn append_event(
    conn: &mut Conn<'_>,
    experiment_id: i64,
    seq: i64,
    event: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO search_events (experiment_id, seq, event) VALUES ($1, $2, $3)",
        experiment_id,
        seq,
        event
    )?;
    Ok(())
}

/// Replaces the snapshot and drops the events it holds.
pub async fn save_snapshot(
    conn: &mut Conn<'_>,
    experiment_id: i64,
    through: i64,
    snapshot: &str,
) -> Result<(), StoreError> {
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

/// Forgets the search of an experiment that has ended.
pub async fn delete(conn: &mut Conn<'_>, experiment_id: i64) -> Result<(), StoreError> {
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
