//! How long tasks waited for their slots: a sum for each resource pool and day, kept in step with the placements.

use crate::{Conn, StoreError};

/// A day in microseconds.
const DAY: i64 = 86_400_000_000;

/// The waits of one pool that ended on one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, crate::Row)]
pub struct QueueDay {
    /// The day, counted from 1970-01-01 UTC as 0.
    pub day: i64,
    /// How many allocations of the pool were given slots on that day.
    pub placed: i64,
    /// What they waited together, microseconds.
    pub waited: i64,
}

/// The day of a moment in microseconds.
pub fn day_of(moment: i64) -> i64 {
    moment.div_euclid(DAY)
}

/// Adds placements to a day.
pub async fn add(conn: &mut Conn<'_>, pool: &str, more: QueueDay) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO queue_days (resource_pool, day, placed, waited) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (resource_pool, day) DO UPDATE SET placed = queue_days.placed + excluded.placed, \
         waited = queue_days.waited + excluded.waited",
        pool,
        more.day,
        more.placed,
        more.waited
    )?;
    Ok(())
}

/// The days of a pool from `first` on, in order. Days on which nothing was placed are not among them.
pub async fn since(
    conn: &mut Conn<'_>,
    pool: &str,
    first: i64,
) -> Result<Vec<QueueDay>, StoreError> {
    Ok(fetch_all!(
        conn,
        QueueDay,
        "SELECT day, placed, waited FROM queue_days WHERE resource_pool = $1 AND day >= $2 ORDER BY day",
        pool,
        first
    )?)
}
