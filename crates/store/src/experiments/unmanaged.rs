//! Experiments that run outside the cluster.

use det_ids::{ExperimentId, ExternalExperimentId, UserId};

use super::{ExperimentRow, find};
use crate::{Conn, StoreError};

/// The statement of [`find_by_external_id`], also for the test of query plans.
pub(crate) const OF_EXTERNAL_ID: &str = "SELECT id FROM experiments WHERE external_id = $1";

/// The experiment of this external id.
pub async fn find_by_external_id(
    conn: &mut Conn<'_>,
    external_id: &ExternalExperimentId,
) -> Result<Option<ExperimentRow>, StoreError> {
    // Number and external id of an experiment never change; the rest may be newer in memory.
    let found = fetch_optional!(conn, (ExperimentId,), OF_EXTERNAL_ID, external_id)?;
    match found {
        Some((id,)) => find(conn, id).await,
        None => Ok(None),
    }
}

/// The statement of [`unmanaged_running`], also for the test of query plans.
pub(crate) const UNMANAGED_RUNNING: &str =
    "SELECT id FROM experiments WHERE state = 'ACTIVE' AND unmanaged ORDER BY id";

/// The unmanaged experiments whose code runs.
pub async fn unmanaged_running(conn: &mut Conn<'_>) -> Result<Vec<ExperimentId>, StoreError> {
    conn.flush().await?;
    let rows = fetch_all!(conn, (ExperimentId,), UNMANAGED_RUNNING)?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// The statement of [`unmanaged_trials_of`], also for the test of query plans.
pub(crate) const UNMANAGED_TRIALS_OF: &str = "SELECT CAST(COALESCE(SUM(trial_count), 0) AS BIGINT) FROM experiments WHERE owner_id = $1 AND unmanaged";

/// How many trials the unmanaged experiments of a user have.
pub async fn unmanaged_trials_of(conn: &mut Conn<'_>, owner_id: UserId) -> Result<i64, StoreError> {
    conn.flush().await?;
    let (count,) = fetch_one!(conn, (i64,), UNMANAGED_TRIALS_OF, owner_id)?;
    Ok(count)
}
