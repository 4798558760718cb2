//! The ordered record of every change.

use crate::{Conn, StoreError, WriteTx};

/// A change to record.
#[derive(Debug, Clone, Default)]
pub struct NewEvent<'a> {
    /// Who or what: `user:alice`, `master`, `agent:a1`, `task:1.x`.
    pub actor: &'a str,
    /// What kind of thing changed: `experiment`, `trial`, `allocation`, `agent`, `user`, `checkpoint`.
    pub subject_kind: &'static str,
    /// Which one.
    pub subject_id: String,
    /// What happened: `created`, `state`, `deleted`, …
    pub kind: &'static str,
    /// State before, where there is one.
    pub from: Option<&'a str>,
    /// State after, where there is one.
    pub to: Option<&'a str>,
    /// Why, for people.
    pub reason: Option<&'a str>,
    /// More, as JSON.
    pub detail: Option<String>,
}

/// A recorded change.
#[derive(Debug, Clone, crate::Row)]
pub struct EventRow {
    /// Position; grows with every event.
    pub id: i64,
    /// When, in microseconds.
    pub at: i64,
    /// See [`NewEvent`].
    pub actor: String,
    /// See [`NewEvent`].
    pub subject_kind: String,
    /// See [`NewEvent`].
    pub subject_id: String,
    /// See [`NewEvent`].
    pub kind: String,
    /// See [`NewEvent`].
    pub from_state: Option<String>,
    /// See [`NewEvent`].
    pub to_state: Option<String>,
    /// See [`NewEvent`].
    pub reason: Option<String>,
    /// See [`NewEvent`].
    pub detail: Option<String>,
}

/// Records a change in the transaction that makes it.
pub async fn append(tx: &mut WriteTx, event: NewEvent<'_>) -> Result<(), StoreError> {
    execute!(
        &mut tx.conn(),
        "INSERT INTO events (at, actor, subject_kind, subject_id, kind, from_state, to_state, reason, detail) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        crate::now(),
        event.actor,
        event.subject_kind,
        event.subject_id.as_str(),
        event.kind,
        event.from,
        event.to,
        event.reason,
        event.detail.as_deref()
    )?;
    Ok(())
}

/// See [`list`].
pub(crate) const ALL: &str = "SELECT * FROM events WHERE id > $1 ORDER BY id LIMIT $2";
/// See [`list`].
pub(crate) const OF_SUBJECT: &str = "SELECT * FROM events WHERE subject_kind = $2 AND subject_id = $3 AND id > $1 \
     ORDER BY id LIMIT $4";

/// Events after `after`, oldest first, at most `limit`; of one subject when `subject` is given.
pub async fn list(
    conn: &mut Conn<'_>,
    after: i64,
    subject: Option<(&str, &str)>,
    limit: i64,
) -> Result<Vec<EventRow>, StoreError> {
    let rows = match subject {
        None => fetch_all!(conn, EventRow, ALL, after, limit),
        Some((kind, id)) => fetch_all!(conn, EventRow, OF_SUBJECT, after, kind, id, limit),
    }?;
    Ok(rows)
}

/// The newest event's id; 0 when there is none.
pub async fn last_id(conn: &mut Conn<'_>) -> Result<i64, StoreError> {
    let (id,) = fetch_one!(conn, (i64,), "SELECT COALESCE(MAX(id), 0) FROM events")?;
    Ok(id)
}
