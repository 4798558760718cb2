//! What the job queue shows of experiments: without the texts of their users, which may be long.

use det_ids::{ExperimentId, JobId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::state_name::StateName;

use super::{ExperimentRow, JobRow, SearcherKind};
use crate::query::Query;
use crate::{Conn, StoreError};

/// An experiment as an entry of the queue.
#[derive(Debug, Clone, PartialEq, crate::Row)]
#[row(kind = "experiment")]
pub struct ExperimentHead {
    /// Its number, unique over the cluster.
    pub id: ExperimentId,
    /// Id of the job by which the experiment is queued.
    pub job_id: JobId,
    /// Name of the experiment, which need not be unique.
    pub name: String,
    /// The state of its life cycle, as [`ExperimentRow::state`].
    #[row(json = "machine")]
    pub state: ExperimentState,
    /// Search method by which its trials are created.
    #[row(word)]
    pub searcher_name: SearcherKind,
    /// Progress of its search, 0 to 1.
    pub progress: f64,
    /// Whether it runs outside the cluster, and only reports.
    pub unmanaged: bool,
    /// Login name of the owner.
    pub username: String,
}

impl From<ExperimentRow> for ExperimentHead {
    fn from(row: ExperimentRow) -> Self {
        Self {
            id: row.id,
            job_id: row.job_id,
            name: row.name,
            state: row.state,
            searcher_name: row.searcher_name,
            progress: row.progress,
            unmanaged: row.unmanaged,
            username: row.username,
        }
    }
}

/// The statement of [`queued`], also for the test of query plans. `+`: in the order of its numbers SQLite would read the whole
/// table.
pub(crate) const QUEUED: &str = "SELECT e.id, e.job_id, e.name, e.machine, e.searcher_name, e.progress, e.unmanaged, \
     u.username FROM experiments e JOIN users u ON u.id = e.owner_id WHERE e.job_id IN \
     (SELECT a.job_id FROM allocations a WHERE a.ended_at IS NULL) ORDER BY +e.id";

/// The statement of [`queued_jobs`], also for the test of query plans.
pub(crate) const QUEUED_JOBS: &str = "SELECT j.* FROM jobs j WHERE j.id IN \
     (SELECT a.job_id FROM allocations a WHERE a.ended_at IS NULL) ORDER BY j.submitted_at, j.id";

/// The experiments with live allocations, by number.
pub async fn queued(conn: &mut Conn<'_>) -> Result<Vec<ExperimentHead>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(conn, ExperimentHead, QUEUED)?)
}

/// The jobs with live allocations, in the order in which they were submitted.
pub async fn queued_jobs(conn: &mut Conn<'_>) -> Result<Vec<JobRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(conn, JobRow, QUEUED_JOBS)?)
}

/// The jobs of all experiments that have not ended, and of all live allocations.
pub async fn live_jobs(conn: &mut Conn<'_>) -> Result<Vec<JobRow>, StoreError> {
    conn.flush().await?;
    let mut query =
        Query::new("SELECT j.* FROM jobs j WHERE j.id IN (SELECT e.job_id FROM experiments e");
    query.any_of("e.state", StateName::LIVE);
    query.push(
        " UNION SELECT a.job_id FROM allocations a WHERE a.ended_at IS NULL) ORDER BY j.submitted_at, j.id",
    );
    query.fetch_all(conn).await
}
