//! Places as last seen, of whatever resource manager.
//!
//! The table is called `agents`: it is older than managers whose places are no agents, and a name on disk costs more to
//! change than to explain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use det_ids::{InstanceId, PlaceId, SlotId};
use det_lifecycle::place::Capacity;
use det_scheduler::{Fault, Service, Services};
use det_taskspec::PlaceRuntime;
use sqlx::postgres::PgRow;

use crate::column::{FromRow, text};
use crate::unit::save_rows;
use crate::{Conn, StoreError};

/// A place: what containers run on, such as an agent's machine or a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceRow {
    /// Its id; for an agent that of the agent.
    pub id: PlaceId,
    /// Resource pool that it joined.
    pub resource_pool: String,
    /// Identity of what it keeps between its connections: of an agent that of its data directory.
    pub instance_id: InstanceId,
    /// What users let it and its slots do.
    pub services: Services,
    /// Slots that it offers, as named devices or as a count.
    pub capacity: Capacity,
    /// Addresses of the host, most useful first; empty where the manager names none.
    pub addresses: Vec<String>,
    /// Software version, as it reports it; empty where the manager names none.
    pub version: String,
    /// What containers are started with.
    pub runtime: PlaceRuntime,
    /// When it first joined, microseconds.
    pub registered_at: i64,
    /// Since when it is away; `None` = connected.
    pub disconnected_at: Option<i64>,
}

/// A place as its columns have it.
#[derive(crate::Row)]
#[row(kind = "place")]
struct Columns {
    id: PlaceId,
    resource_pool: String,
    instance_id: InstanceId,
    enabled: bool,
    draining: bool,
    #[row(json)]
    disabled_slots: BTreeSet<SlotId>,
    #[row(json)]
    draining_slots: BTreeSet<SlotId>,
    #[row(json)]
    slot_faults: BTreeMap<SlotId, Fault>,
    fault: Option<String>,
    #[row(json = "devices")]
    capacity: Capacity,
    #[row(json)]
    addresses: Vec<String>,
    version: String,
    runtime: String,
    registered_at: i64,
    disconnected_at: Option<i64>,
}

impl From<Columns> for PlaceRow {
    fn from(columns: Columns) -> Self {
        let mut services = Services {
            place: Service::of(columns.enabled, columns.draining),
            fault: columns.fault,
            faults: columns.slot_faults,
            ..Services::default()
        };
        for (slots, service) in [
            (columns.draining_slots, Service::Draining),
            (columns.disabled_slots, Service::Disabled),
        ] {
            for slot in slots {
                services.set(Some(slot), service);
            }
        }
        Self {
            id: columns.id,
            resource_pool: columns.resource_pool,
            instance_id: columns.instance_id,
            services,
            capacity: columns.capacity,
            addresses: columns.addresses,
            version: columns.version,
            runtime: columns.runtime.into(),
            registered_at: columns.registered_at,
            disconnected_at: columns.disconnected_at,
        }
    }
}

impl FromRow for PlaceRow {
    const COLUMNS: &'static [&'static str] = Columns::COLUMNS;

    fn from_lite(row: &rusqlite::Row<'_>, places: &[usize]) -> rusqlite::Result<Self> {
        Columns::from_lite(row, places).map(Self::from)
    }

    fn from_pg(row: &PgRow) -> sqlx::Result<Self> {
        Columns::from_pg(row).map(Self::from)
    }
}

impl PlaceRow {
    /// The slots that users let do this, as their column has them.
    fn slots_that(&self, service: Service) -> String {
        let slots = self.services.slots.iter();
        let these = slots.filter(|(_, of)| **of == service);
        text(&these.map(|(slot, _)| slot).collect::<Vec<_>>())
    }
}

/// All places by id.
pub async fn list(conn: &mut Conn<'_>) -> Result<Vec<PlaceRow>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        PlaceRow,
        "SELECT * FROM agents ORDER BY id"
    )?)
}

/// The place with this id, connected or away; `None` = there is none.
pub async fn find(conn: &mut Conn<'_>, id: &PlaceId) -> Result<Option<PlaceRow>, StoreError> {
    if let Some(unit) = &conn.unit
        && let Some(row) = unit.places.get(id)
    {
        return Ok(Some(PlaceRow::clone(row)));
    }
    let row = fetch_optional!(conn, PlaceRow, "SELECT * FROM agents WHERE id = $1", id)?;
    if let (Some(unit), Some(row)) = (&mut conn.unit, &row) {
        unit.places.keep(Arc::new(row.clone()), false);
    }
    Ok(row)
}

/// Adds or replaces a place. It stays registered since it first came.
pub async fn save(conn: &mut Conn<'_>, row: &PlaceRow) -> Result<(), StoreError> {
    let known = find(conn, &row.id).await?;
    let mut row = row.clone();
    if let Some(known) = known {
        row.registered_at = known.registered_at;
    }
    conn.writing()?.places.keep(Arc::new(row), true);
    Ok(())
}

/// Writes new and changed places.
pub(crate) async fn save_all(
    conn: &mut Conn<'_>,
    rows: &[Arc<PlaceRow>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO agents",
        (
            id: "text" = |row| &row.id,
            resource_pool: "text" = |row| row.resource_pool.as_str(),
            instance_id: "text" = |row| &row.instance_id,
            enabled: "boolean" = |row| row.services.place == Service::Enabled,
            draining: "boolean" = |row| row.services.place == Service::Draining,
            disabled_slots: "text" = |row| row.slots_that(Service::Disabled),
            draining_slots: "text" = |row| row.slots_that(Service::Draining),
            slot_faults: "text" = |row| text(&row.services.faults),
            fault: "text" = |row| row.services.fault.as_deref(),
            devices: "text" = |row| text(&row.capacity),
            addresses: "text" = |row| text(&row.addresses),
            version: "text" = |row| row.version.as_str(),
            runtime: "text" = |row| row.runtime.as_str(),
            registered_at: "bigint" = |row| row.registered_at,
            disconnected_at: "bigint" = |row| row.disconnected_at,
        ),
        "ON CONFLICT (id) DO UPDATE SET resource_pool = excluded.resource_pool, instance_id = excluded.instance_id, \
         enabled = excluded.enabled, draining = excluded.draining, disabled_slots = excluded.disabled_slots, \
         draining_slots = excluded.draining_slots, slot_faults = excluded.slot_faults, fault = excluded.fault, devices = excluded.devices, \
         addresses = excluded.addresses, version = excluded.version, runtime = excluded.runtime, \
         disconnected_at = excluded.disconnected_at"
    );
    Ok(())
}

/// Removes a place.
pub async fn delete(conn: &mut Conn<'_>, id: &PlaceId) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.remove_place(id);
    execute!(conn, "DELETE FROM agents WHERE id = $1", id)?;
    Ok(())
}
