//! Hashes of the tokens that agents identify themselves with, one for each agent id that has ever joined.

use det_ids::AgentId;

use crate::{Conn, StoreError};

/// The token of an agent.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct AgentTokenRow {
    /// Agent that it belongs to. It need not be connected, nor have a row of its own.
    pub agent_id: AgentId,
    /// Hash of the token; no two agents have the same.
    pub token_hash: Vec<u8>,
    /// When the agent joined with it, microseconds.
    pub joined_at: i64,
    /// Since when it is refused; `None` = it is accepted.
    pub revoked_at: Option<i64>,
}

/// The token of an agent.
pub async fn find(
    conn: &mut Conn<'_>,
    agent_id: &AgentId,
) -> Result<Option<AgentTokenRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        AgentTokenRow,
        "SELECT * FROM agent_tokens WHERE agent_id = $1",
        agent_id
    )?)
}

/// The token with this hash.
pub async fn find_by_hash(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
) -> Result<Option<AgentTokenRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        AgentTokenRow,
        "SELECT * FROM agent_tokens WHERE token_hash = $1",
        token_hash
    )?)
}

/// Makes a token the accepted one of an agent, in place of an earlier one. It no longer belongs to any other agent.
pub async fn accept(
    conn: &mut Conn<'_>,
    agent_id: &AgentId,
    token_hash: &[u8],
    at: i64,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM agent_tokens WHERE token_hash = $1 OR agent_id = $2",
        token_hash,
        agent_id
    )?;
    execute!(
        conn,
        "INSERT INTO agent_tokens (agent_id, token_hash, joined_at) VALUES ($1, $2, $3)",
        agent_id,
        token_hash,
        at
    )?;
    Ok(())
}

/// Refuses the token of an agent from now on; whether there was one that was accepted.
pub async fn revoke(conn: &mut Conn<'_>, agent_id: &AgentId, at: i64) -> Result<bool, StoreError> {
    let revoked = execute!(
        conn,
        "UPDATE agent_tokens SET revoked_at = $1 WHERE agent_id = $2 AND revoked_at IS NULL",
        at,
        agent_id
    )?;
    Ok(revoked > 0)
}
