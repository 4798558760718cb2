//! Reading agents with their slots.

use std::collections::BTreeMap;

use det_api_types::agents::{AgentSortBy, GetAgentsQuery};
use det_api_types::page::{OrderBy, Pagination};
use det_authz::Kind;
use det_ids::PlaceId;
use det_lifecycle::object::ObjectKind;
use det_store::allocations::{self, ContainerRow};
use det_store::places::{self, PlaceRow};

use crate::app::device_use::{DeviceUse, Uses};
use crate::app::reads;
use crate::app::reads::paging;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use det_store::Store;

/// What agents are read from.
#[derive(Clone)]
pub(crate) struct AgentSources {
    pub(crate) store: Store,
    pub(crate) device_use: DeviceUse,
}

/// An agent, the live containers on it, and how much its devices are used.
pub(crate) type AgentView = (PlaceRow, Vec<ContainerRow>, Uses);

/// Agents, the live containers on them and on others, and how much the devices of each are used.
pub(crate) struct AgentsView {
    pub(crate) rows: Vec<PlaceRow>,
    pub(crate) live: Vec<ContainerRow>,
    pub(crate) uses: BTreeMap<PlaceId, Uses>,
}

/// One page of the agents.
pub(crate) async fn page(
    sources: &AgentSources,
    actor: &Actor,
    query: &GetAgentsQuery,
) -> AppResult<(AgentsView, Pagination)> {
    reads::require(actor, Kind::Agent, "agents")?;
    let (mut rows, live) = {
        let mut conn = sources.store.read().await?;
        let rows = places::list(&mut conn.conn()).await?;
        (rows, allocations::live_containers(&mut conn.conn()).await?)
    };
    if query.sort_by == AgentSortBy::Time {
        rows.sort_by(|a, b| (a.registered_at, &a.id).cmp(&(b.registered_at, &b.id)));
    }
    if query.order_by == OrderBy::Desc {
        rows.reverse();
    }
    let (rows, pagination) = paging::slice(rows, query.offset, query.limit);
    let of = |row: &PlaceRow| (row.id.clone(), sources.device_use.of(&row.id));
    let uses = rows.iter().map(of).collect();
    Ok((AgentsView { rows, live, uses }, pagination))
}

/// One agent with all that is on it.
pub(crate) async fn find(
    sources: &AgentSources,
    actor: &Actor,
    agent_id: &PlaceId,
) -> AppResult<AgentView> {
    reads::require(actor, Kind::Agent, "agents")?;
    let mut conn = sources.store.read().await?;
    let Some(row) = places::find(&mut conn.conn(), agent_id).await? else {
        return Err(AppError::not_found(
            ObjectKind::Agent,
            agent_id.as_str().escape_debug(),
        ));
    };
    let live = allocations::live_containers_of_place(&mut conn.conn(), agent_id).await?;
    Ok((row, live, sources.device_use.of(agent_id)))
}
