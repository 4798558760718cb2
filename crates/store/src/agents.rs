//! Agents as last seen.

use crate::{Conn, StoreError};

/// An agent.
#[derive(Debug, Clone, crate::Row)]
pub struct AgentRow {
    /// Its id.
    pub id: String,
    /// Pool it joined.
    pub resource_pool: String,
    /// Identity of its data directory.
    pub instance_id: String,
    /// Whether it takes work.
    pub enabled: bool,
    /// Whether it finishes what it has and takes nothing new.
    pub draining: bool,
    /// JSON list of slot numbers.
    pub disabled_slots: String,
    /// JSON list of slot numbers.
    pub draining_slots: String,
    /// JSON list of `Device`.
    pub devices: String,
    /// JSON list of host addresses.
    pub addresses: String,
    /// Software version.
    pub version: String,
    /// `docker`, `podman`, `process`.
    pub runtime: String,
    /// First connection, microseconds.
    pub registered_at: i64,
    /// Since when it is away; `None` = connected.
    pub disconnected_at: Option<i64>,
}

/// All agents by id.
pub async fn list(conn: &mut Conn<'_>) -> Result<Vec<AgentRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        AgentRow,
        "SELECT * FROM agents ORDER BY id"
    )?)
}

/// One agent.
pub async fn find(conn: &mut Conn<'_>, id: &str) -> Result<Option<AgentRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        AgentRow,
        "SELECT * FROM agents WHERE id = $1",
        id
    )?)
}

/// Adds or replaces an agent.
pub async fn save(conn: &mut Conn<'_>, row: &AgentRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO agents (id, resource_pool, instance_id, enabled, draining, disabled_slots, draining_slots, \
         devices, addresses, version, runtime, registered_at, disconnected_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
         ON CONFLICT (id) DO UPDATE SET resource_pool = excluded.resource_pool, instance_id = excluded.instance_id, \
         enabled = excluded.enabled, draining = excluded.draining, disabled_slots = excluded.disabled_slots, \
         draining_slots = excluded.draining_slots, devices = excluded.devices, addresses = excluded.addresses, \
         version = excluded.version, runtime = excluded.runtime, disconnected_at = excluded.disconnected_at",
        row.id.as_str(),
        row.resource_pool.as_str(),
        row.instance_id.as_str(),
        row.enabled,
        row.draining,
        row.disabled_slots.as_str(),
        row.draining_slots.as_str(),
        row.devices.as_str(),
        row.addresses.as_str(),
        row.version.as_str(),
        row.runtime.as_str(),
        row.registered_at,
        row.disconnected_at
    )?;
    Ok(())
}

/// Notes that every connected agent is away: a master that starts has no connections yet.
pub async fn mark_all_disconnected(conn: &mut Conn<'_>, at: i64) -> Result<u64, StoreError> {
    Ok(execute!(
        conn,
        "UPDATE agents SET disconnected_at = $1 WHERE disconnected_at IS NULL",
        at
    )?)
}

/// Forgets an agent.
pub async fn delete(conn: &mut Conn<'_>, id: &str) -> Result<(), StoreError> {
    execute!(conn, "DELETE FROM agents WHERE id = $1", id)?;
    Ok(())
}
