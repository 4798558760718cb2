//! Agents and slots.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use det_api_types::agents::{
    DisableAgentRequest, DisableAgentResponse, DisableSlotRequest, DisableSlotResponse,
    EnableAgentResponse, EnableSlotResponse, GetAgentResponse, GetAgentsQuery, GetAgentsResponse,
    GetSlotResponse, GetSlotsResponse, RevokeAgentResponse,
};
use det_ids::{AgentId, PlaceId, SlotId};
use det_scheduler::Service;

use crate::app::reads;
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_agents))
        .routes(routes!(get_agent))
        .routes(routes!(enable_agent))
        .routes(routes!(disable_agent))
        .routes(routes!(revoke_agent))
        .routes(routes!(get_slots))
        .routes(routes!(get_slot))
        .routes(routes!(enable_slot))
        .routes(routes!(disable_slot))
}

/// An agent and one of its slots, from a path.
type SlotPath = Result<Path<(PlaceId, String)>, PathRejection>;

fn slot_path(path: SlotPath) -> AppResult<(PlaceId, SlotId)> {
    let Path((agent_id, slot)) =
        path.map_err(|_| AppError::invalid("the address of this request cannot be read"))?;
    // Clients send the last part of a slot's key, which other masters write with leading zeros.
    match slot.parse() {
        Ok(number) => Ok((agent_id, SlotId(number))),
        Err(_) => Err(AppError::invalid(format!(
            "\"{}\" in the request's address must be the number of a slot",
            slot.escape_debug()
        ))),
    }
}

/// All agents, connected or expected back.
#[utoipa::path(get, path = "/api/v1/agents", operation_id = "GetAgents", tag = "agents",
    params(GetAgentsQuery), responses((status = 200, body = GetAgentsResponse)))]
async fn get_agents(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetAgentsQuery>,
) -> Answer {
    let (found, pagination) = reads::agents::page(&master.sources.agents, &actor, &query).await?;
    let agents = views::agents::listed(&found, &query);
    message(&GetAgentsResponse { agents, pagination })
}

/// An agent with its slots and containers, as it is now.
#[utoipa::path(get, path = "/api/v1/agents/{agentId}", operation_id = "GetAgent", tag = "agents",
    params(("agentId" = String, Path, description = "the agent")),
    responses((status = 200, body = GetAgentResponse)))]
async fn get_agent(Caller(master, actor): Caller, Path(agent_id): Path<PlaceId>) -> Answer {
    let found = reads::agents::find(&master.sources.agents, &actor, &agent_id).await?;
    message(&GetAgentResponse {
        agent: views::agents::one(&found),
    })
}

/// Lets an agent take work again. For administrators.
#[utoipa::path(post, path = "/api/v1/agents/{agentId}/enable", operation_id = "EnableAgent", tag = "agents",
    params(("agentId" = String, Path, description = "the agent")),
    responses((status = 200, body = EnableAgentResponse)))]
async fn enable_agent(Caller(master, actor): Caller, Path(agent_id): Path<PlaceId>) -> Answer {
    let changed = master
        .agents
        .set_service(&actor, &agent_id, None, Service::Enabled)
        .await?;
    message(&EnableAgentResponse {
        agent: views::agents::one(&changed),
    })
}

/// Takes an agent out of service: its work is killed, or finished first with `drain`. For administrators.
#[utoipa::path(post, path = "/api/v1/agents/{agentId}/disable", operation_id = "DisableAgent", tag = "agents",
    params(("agentId" = String, Path, description = "the agent")),
    request_body = DisableAgentRequest,
    responses((status = 200, body = DisableAgentResponse)))]
async fn disable_agent(
    Caller(master, actor): Caller,
    Path(agent_id): Path<PlaceId>,
    WireBody(body): WireBody<DisableAgentRequest>,
) -> Answer {
    let changed = master
        .agents
        .set_service(&actor, &agent_id, None, service(body.drain))
        .await?;
    message(&DisableAgentResponse {
        agent: views::agents::one(&changed),
    })
}

fn service(drain: bool) -> Service {
    if drain {
        Service::Draining
    } else {
        Service::Disabled
    }
}

/// Refuses the token of an agent from now on: its connection ends, what runs on it is given up, and its id is free. For
/// administrators; an addition of ours.
#[utoipa::path(post, path = "/api/v1/agents/{agentId}/revoke", operation_id = "RevokeAgent", tag = "agents",
    params(("agentId" = String, Path, description = "the agent")),
    responses((status = 200, body = RevokeAgentResponse)))]
async fn revoke_agent(Caller(master, actor): Caller, Path(agent_id): Path<AgentId>) -> Answer {
    master.agent_tokens.revoke(&actor, &agent_id).await?;
    message(&RevokeAgentResponse::default())
}

/// The slots of an agent.
#[utoipa::path(get, path = "/api/v1/agents/{agentId}/slots", operation_id = "GetSlots", tag = "agents",
    params(("agentId" = String, Path, description = "the agent")),
    responses((status = 200, body = GetSlotsResponse)))]
async fn get_slots(Caller(master, actor): Caller, Path(agent_id): Path<PlaceId>) -> Answer {
    let found = reads::agents::find(&master.sources.agents, &actor, &agent_id).await?;
    message(&GetSlotsResponse {
        slots: views::agents::one(&found).slots.into_values().collect(),
    })
}

/// One slot of an agent.
#[utoipa::path(get, path = "/api/v1/agents/{agentId}/slots/{slotId}", operation_id = "GetSlot", tag = "agents",
    params(("agentId" = String, Path, description = "the agent"), ("slotId" = String, Path, description = "the slot's number")),
    responses((status = 200, body = GetSlotResponse)))]
async fn get_slot(Caller(master, actor): Caller, path: SlotPath) -> Answer {
    let (agent_id, slot) = slot_path(path)?;
    let found = reads::agents::find(&master.sources.agents, &actor, &agent_id).await?;
    message(&GetSlotResponse {
        slot: views::agents::slot(&found, slot)?,
    })
}

/// Lets a slot take work again. For administrators.
#[utoipa::path(post, path = "/api/v1/agents/{agentId}/slots/{slotId}/enable", operation_id = "EnableSlot", tag = "agents",
    params(("agentId" = String, Path, description = "the agent"), ("slotId" = String, Path, description = "the slot's number")),
    responses((status = 200, body = EnableSlotResponse)))]
async fn enable_slot(Caller(master, actor): Caller, path: SlotPath) -> Answer {
    let (agent_id, slot) = slot_path(path)?;
    let changed = master
        .agents
        .set_service(&actor, &agent_id, Some(slot), Service::Enabled)
        .await?;
    message(&EnableSlotResponse {
        slot: views::agents::slot(&changed, slot)?,
    })
}

/// Takes a slot out of service: its work is killed, or finished first with `drain`. For administrators.
#[utoipa::path(post, path = "/api/v1/agents/{agentId}/slots/{slotId}/disable", operation_id = "DisableSlot", tag = "agents",
    params(("agentId" = String, Path, description = "the agent"), ("slotId" = String, Path, description = "the slot's number")),
    request_body = DisableSlotRequest,
    responses((status = 200, body = DisableSlotResponse)))]
async fn disable_slot(
    Caller(master, actor): Caller,
    path: SlotPath,
    WireBody(body): WireBody<DisableSlotRequest>,
) -> Answer {
    let (agent_id, slot) = slot_path(path)?;
    let changed = master
        .agents
        .set_service(&actor, &agent_id, Some(slot), service(body.drain))
        .await?;
    message(&DisableSlotResponse {
        slot: views::agents::slot(&changed, slot)?,
    })
}
