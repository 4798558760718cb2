//! Reading agents with their slots.

use det_api_types::agents::{AgentSortBy, GetAgentsQuery};
use det_api_types::page::{OrderBy, Pagination};
use det_authz::Kind;
use det_ids::PlaceId;
use det_store::Store;
use det_store::allocations::{self, ContainerRow};
use det_store::places::{self, PlaceRow};

use crate::app::reads;
use crate::app::reads::paging;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// An agent, and the live containers on it.
pub(crate) type AgentView = (PlaceRow, Vec<ContainerRow>);

/// One page of the agents, and the live containers on them and on others.
pub(crate) async fn page(
    store: &Store,
    actor: &Actor,
    query: &GetAgentsQuery,
) -> AppResult<(Vec<PlaceRow>, Vec<ContainerRow>, Pagination)> {
    reads::require(actor, Kind::Agent, "agents")?;
    let (mut rows, live) = {
        let mut conn = store.read().await?;
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
    Ok((rows, live, pagination))
}

/// One agent, and the live containers on it.
pub(crate) async fn find(store: &Store, actor: &Actor, agent_id: &PlaceId) -> AppResult<AgentView> {
    reads::require(actor, Kind::Agent, "agents")?;
    let mut conn = store.read().await?;
    let Some(row) = places::find(&mut conn.conn(), agent_id).await? else {
        return Err(AppError::not_found(
            "agent",
            agent_id.as_str().escape_debug(),
        ));
    };
    let live = allocations::live_containers_of_place(&mut conn.conn(), agent_id).await?;
    Ok((row, live))
}
