//! Tokens with which containers act for their allocation; their hashes are stored.

use det_ids::{AllocationId, ExperimentId, RunId, TaskId, TrialId, UserId};
use det_taskspec::TaskKind;

use crate::db::Link;
use crate::unit::save_rows;
use crate::{Conn, StoreError};

/// Adds the hash of a token that acts for an allocation.
pub async fn insert_token(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
    allocation_id: &AllocationId,
) -> Result<(), StoreError> {
    let token = (token_hash.to_vec(), allocation_id.clone());
    conn.writing()?.tokens.push(token);
    Ok(())
}

/// Writes tokens: hash and allocation.
pub(crate) async fn save_tokens(
    conn: &mut Conn<'_>,
    rows: &[(Vec<u8>, AllocationId)],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO container_tokens",
        (
            token_hash: "bytea" = |row| row.0.as_slice(),
            allocation_id: "text" = |row| &row.1,
        ),
        ""
    );
    Ok(())
}

/// Lets tokens expire: allocation and time.
pub(crate) async fn save_expiries(
    conn: &mut Conn<'_>,
    rows: &[(AllocationId, i64)],
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    match &mut conn.link {
        Link::Lite(_) => {
            for (allocation_id, at) in rows {
                execute!(
                    conn,
                    "UPDATE container_tokens SET expires_at = $1 WHERE allocation_id = $2 AND expires_at IS NULL",
                    *at,
                    allocation_id
                )?;
            }
        }
        Link::Pg(c) => {
            sqlx::query(
                "UPDATE container_tokens k SET expires_at = v.at FROM UNNEST($1::text[], $2::bigint[]) \
                 AS v (allocation_id, at) WHERE k.allocation_id = v.allocation_id AND k.expires_at IS NULL",
            )
            .bind(rows.iter().map(|row| row.0.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
            .execute(&mut **c)
            .await?;
        }
    }
    Ok(())
}

/// The allocation that a token acts for, and its task's owner.
#[derive(Debug, Clone, crate::Row)]
#[row(id = "task_id")]
pub struct TokenOwner {
    /// Id of the allocation that the token acts for.
    pub allocation_id: AllocationId,
    /// Id of the task that the allocation runs.
    pub task_id: TaskId,
    /// Kind of that task.
    #[row(word)]
    pub kind: TaskKind,
    /// The task's experiment, for trials.
    pub experiment_id: Option<ExperimentId>,
    /// Number of the task's trial; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// The number of its trial's run; 0 without a trial.
    pub run_id: RunId,
    /// The user who owns the task.
    pub owner_id: UserId,
    /// When it expires, microseconds; `None` = while the allocation lives.
    pub expires_at: Option<i64>,
}

/// The allocation that the token with this hash acts for.
pub async fn find_token(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
) -> Result<Option<TokenOwner>, StoreError> {
    conn.flush().await?;
    Ok(fetch_optional!(
        conn,
        TokenOwner,
        "SELECT k.allocation_id, a.task_id, t.kind, t.experiment_id, a.trial_id, a.run_id, t.owner_id, k.expires_at \
         FROM container_tokens k \
         JOIN allocations a ON a.id = k.allocation_id JOIN tasks t ON t.id = a.task_id WHERE k.token_hash = $1",
        token_hash
    )?)
}

/// Lets the tokens of an ended allocation expire.
pub async fn expire_tokens(
    conn: &mut Conn<'_>,
    allocation_id: &AllocationId,
    at: i64,
) -> Result<(), StoreError> {
    let expiry = (allocation_id.clone(), at);
    conn.writing()?.expiries.push(expiry);
    Ok(())
}

/// Removes tokens that expired before `at`.
pub async fn delete_expired_tokens(conn: &mut Conn<'_>, at: i64) -> Result<u64, StoreError> {
    conn.flush().await?;
    Ok(execute!(
        conn,
        "DELETE FROM container_tokens WHERE expires_at <= $1",
        at
    )?)
}
