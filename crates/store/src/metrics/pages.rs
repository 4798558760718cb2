//! Chunks page by page. A page begins at its place in the index: reading the last page of a long history costs what
//! reading the first one does.

use det_ids::{MetricChunkId, RunId, TrialId};

use super::ChunkRow;
use crate::db::Link;
use crate::{Conn, StoreError};

/// A statement whose text differs between the databases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageQuery {
    lite: &'static str,
    pg: &'static str,
}

impl PageQuery {
    /// In the words of this connection's database.
    pub(crate) fn on(self, conn: &Conn<'_>) -> &'static str {
        match conn.link {
            Link::Lite(_) => self.lite,
            Link::Pg(_) => self.pg,
        }
    }
}

/// The run that chunk `$3` is of.
macro_rules! run_of_place {
    () => {
        "COALESCE((SELECT c.run_id FROM metric_chunks c WHERE c.id = $3), 0)"
    };
}

/// Chunks of one group after chunk `$3`: runs follow one another, so the order of runs is that of arrival, and the index
/// has it.
///
/// Of a comparison of rows SQLite looks up the first column only, and goes through the whole run to the place from there.
/// So it is given the rest of the run and the later runs one after the other, each a range of the index; it merges them
/// as it goes and stops at the limit.
macro_rules! group_page {
    ($columns:literal, $also:literal) => {
        PageQuery {
            lite: concat!(
                "SELECT ",
                $columns,
                " FROM metric_chunks WHERE trial_id = $1 AND group_name = $2 AND run_id = ",
                run_of_place!(),
                " AND id > $3",
                $also,
                " UNION ALL SELECT ",
                $columns,
                " FROM metric_chunks WHERE trial_id = $1 AND group_name = $2 AND run_id > ",
                run_of_place!(),
                $also,
                " ORDER BY run_id, id LIMIT $4"
            ),
            pg: concat!(
                "SELECT ",
                $columns,
                " FROM metric_chunks WHERE trial_id = $1 AND group_name = $2 AND (run_id, id) > (",
                run_of_place!(),
                ", $3)",
                $also,
                " ORDER BY run_id, id LIMIT $4"
            ),
        }
    };
}

/// A statement of [`chunks`], also for the test of query plans: the chunks of one group.
pub(crate) const GROUP_CHUNKS: PageQuery = group_page!("*", "");
/// See [`chunks`]. The plus signs keep both databases from going through the chunks of all other trials by number.
pub(crate) const TRIAL_CHUNKS: &str =
    "SELECT * FROM metric_chunks WHERE trial_id = $1 AND +id > $2 ORDER BY +id LIMIT $3";
/// The statement of [`marks`], also for the test of query plans.
pub(crate) const MARKS: PageQuery = group_page!("id, run_id, first_step, last_step, reports", "");
/// The statement of [`chunks_between`], also for the test of query plans.
pub(crate) const BETWEEN: PageQuery = group_page!("*", " AND last_step >= $5 AND first_step <= $6");

/// A page of a trial's chunks after chunk `after`, in order; of one group when given. Without a group each page costs a
/// look at all chunks of the trial: groups one by one are the way to read a long history.
pub async fn chunks(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: Option<&str>,
    after: MetricChunkId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    let of_group = GROUP_CHUNKS.on(conn);
    Ok(match group {
        Some(group) => fetch_all!(conn, ChunkRow, of_group, trial_id, group, after, limit)?,
        None => fetch_all!(conn, ChunkRow, TRIAL_CHUNKS, trial_id, after, limit)?,
    })
}

/// The position of a chunk, without its reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, crate::Row)]
pub struct ChunkMark {
    /// Position of the chunk in the order of arrival.
    pub id: MetricChunkId,
    /// Run of the trial that reported what is in it.
    pub run_id: RunId,
    /// Lowest step in it; -1 without steps.
    pub first_step: i64,
    /// Highest step in it; -1 without steps.
    pub last_step: i64,
    /// How many reports are in it.
    pub reports: i64,
}

/// As [`chunks`] of one group, without what is in them.
pub async fn marks(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    after: MetricChunkId,
    limit: i64,
) -> Result<Vec<ChunkMark>, StoreError> {
    let sql = MARKS.on(conn);
    Ok(fetch_all!(
        conn, ChunkMark, sql, trial_id, group, after, limit
    )?)
}

/// Chunks of a group that may hold reports at these steps, in order of their runs and of arrival, at most
/// `limit`, after chunk `after`.
pub async fn chunks_between(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    steps: std::ops::RangeInclusive<i64>,
    after: MetricChunkId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    let sql = BETWEEN.on(conn);
    Ok(fetch_all!(
        conn,
        ChunkRow,
        sql,
        trial_id,
        group,
        after,
        limit,
        *steps.start(),
        *steps.end()
    )?)
}
