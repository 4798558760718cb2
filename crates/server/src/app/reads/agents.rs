//! Reading agents with their slots.

use det_authz::Kind;
use det_ids::PlaceId;
use det_store::Store;
use det_store::agents::{self, AgentRow};
use det_store::allocations::{self, ContainerRow};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// All agents, and the live containers on them.
pub(crate) async fn list(
    store: &Store,
    actor: &Actor,
) -> AppResult<(Vec<AgentRow>, Vec<ContainerRow>)> {
    reads::require(actor, Kind::Agent, "agents")?;
    let mut conn = store.read().await?;
    let rows = agents::list(&mut conn.conn()).await?;
    let live = allocations::live_containers(&mut conn.conn()).await?;
    Ok((rows, live))
}

/// One agent, and the live containers on it.
pub(crate) async fn find(
    store: &Store,
    actor: &Actor,
    agent_id: &PlaceId,
) -> AppResult<(AgentRow, Vec<ContainerRow>)> {
    reads::require(actor, Kind::Agent, "agents")?;
    let mut conn = store.read().await?;
    let Some(row) = agents::find(&mut conn.conn(), agent_id).await? else {
        return Err(AppError::not_found(
            "agent",
            agent_id.as_str().escape_debug(),
        ));
    };
    let live = allocations::live_containers_of_place(&mut conn.conn(), agent_id).await?;
    Ok((row, live))
}
