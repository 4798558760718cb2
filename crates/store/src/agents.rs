//! Agents as last seen.

use std::sync::Arc;

use det_ids::PlaceId;

use crate::unit::save_rows;
use crate::{Conn, StoreError};

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct AgentRow {
    /// Its id, which is that of the place.
    pub id: PlaceId,
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
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        AgentRow,
        "SELECT * FROM agents ORDER BY id"
    )?)
}

/// One agent.
pub async fn find(conn: &mut Conn<'_>, id: &PlaceId) -> Result<Option<AgentRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(row) = unit.agents.get(id)
    {
        return Ok(Some(AgentRow::clone(row)));
    }
    let row = fetch_optional!(conn, AgentRow, "SELECT * FROM agents WHERE id = $1", id)?;
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.agents.keep(Arc::new(row.clone()), false);
    }
    Ok(row)
}

/// Adds or replaces an agent. It stays registered since it first came.
pub async fn save(conn: &mut Conn<'_>, row: &AgentRow) -> Result<(), StoreError> {
    let known = find(conn, &row.id).await?;
    let mut row = row.clone();
    if let Some(known) = known {
        row.registered_at = known.registered_at;
    }
    conn.writing()?.agents.keep(Arc::new(row), true);
    Ok(())
}

/// Writes new and changed agents.
pub(crate) async fn save_all(
    conn: &mut Conn<'_>,
    rows: &[Arc<AgentRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO agents",
        (
            id: "text" = |row| &row.id,
            resource_pool: "text" = |row| row.resource_pool.as_str(),
            instance_id: "text" = |row| row.instance_id.as_str(),
            enabled: "boolean" = |row| row.enabled,
            draining: "boolean" = |row| row.draining,
            disabled_slots: "text" = |row| row.disabled_slots.as_str(),
            draining_slots: "text" = |row| row.draining_slots.as_str(),
            devices: "text" = |row| row.devices.as_str(),
            addresses: "text" = |row| row.addresses.as_str(),
            version: "text" = |row| row.version.as_str(),
            runtime: "text" = |row| row.runtime.as_str(),
            registered_at: "bigint" = |row| row.registered_at,
            disconnected_at: "bigint" = |row| row.disconnected_at,
        ),
        "ON CONFLICT (id) DO UPDATE SET resource_pool = excluded.resource_pool, instance_id = excluded.instance_id, \
         enabled = excluded.enabled, draining = excluded.draining, disabled_slots = excluded.disabled_slots, \
         draining_slots = excluded.draining_slots, devices = excluded.devices, addresses = excluded.addresses, \
         version = excluded.version, runtime = excluded.runtime, \
         disconnected_at = excluded.disconnected_at"
    );
    Ok(())
}

/// Notes that every connected agent is away: a master that starts has no connections yet.
pub async fn mark_all_disconnected(conn: &mut Conn<'_>, at: i64) -> Result<u64, StoreError> {
    conn.flush().await?;
    conn.writing()?.evict_rows();
    Ok(execute!(
        conn,
        "UPDATE agents SET disconnected_at = $1 WHERE disconnected_at IS NULL",
        at
    )?)
}

/// Removes an agent.
pub async fn delete(conn: &mut Conn<'_>, id: &PlaceId) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.remove_agent(id);
    execute!(conn, "DELETE FROM agents WHERE id = $1", id)?;
    Ok(())
}
