//! Tokens of agents.
//!
//! The cluster has one token that any agent may join with. Each agent makes a token of its own and shows it from its first
//! connection on; what the master stores is its hash, for the agent's id. From then on the id is that agent's: no other
//! holder of the cluster's token connects as this agent, also while it is away, and the agent needs the cluster's token no
//! more. The id becomes free when the agent has been away for longer than its pool waits (see
//! `Places::give_up_lost`) or when an administrator revokes its token.

use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_ids::{AgentId, PlaceId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_rm_agents::NotAdmitted;
use det_store::events::NewEvent;
use det_store::{WriteTx, agent_tokens, places};

use crate::app::context::Context;
use crate::app::places::Places;
use crate::auth::{Actor, token_hash};
use crate::error::{AppError, AppResult, ErrorKind};

/// What a connection to the agents' address has shown.
#[derive(Debug, Clone)]
pub struct Credential {
    /// Hash of the agent's own token.
    own: Vec<u8>,
    /// Whether it has shown the cluster's token as well.
    may_join: bool,
}

/// Who may connect as which agent. Cheap to clone.
#[derive(Clone)]
pub struct AgentTokens {
    context: Context,
    places: Places,
    /// Hash of the token that agents join with.
    join_token_hash: Arc<[u8]>,
}

impl AgentTokens {
    /// The tokens of a cluster whose agents join with the token of this hash.
    pub(crate) fn new(context: Context, places: Places, join_token_hash: Vec<u8>) -> Self {
        Self {
            context,
            places,
            join_token_hash: join_token_hash.into(),
        }
    }

    /// What the tokens of a request are worth: the agent's own, and that of the cluster if it brings one.
    ///
    /// # Errors
    /// `Unauthenticated` when they allow no agent to connect.
    pub(crate) async fn credential(
        &self,
        own: Option<String>,
        join: Option<&str>,
    ) -> AppResult<Credential> {
        let refused = |message: &str| AppError::new(ErrorKind::Unauthenticated, message);
        let own = own.map(|token| token_hash(&token));
        // An agent's own token is a secret of that agent, so it is never the one that all agents have.
        let Some(own) = own.filter(|own| own[..] != *self.join_token_hash) else {
            return Err(
                refused("this request brings no token of an agent's own").hint(
                    "agents make one by themselves: install the same version on agents and master",
                ),
            );
        };
        // Both sides of the comparison are SHA-256 hashes: how long it takes does not depend on the token.
        let may_join = join.is_some_and(|token| token_hash(token)[..] == *self.join_token_hash);
        if !may_join {
            let mut conn = self.context.store.read().await?;
            let known = agent_tokens::find_by_hash(&mut conn.conn(), &own).await?;
            if known.is_none() {
                return Err(
                    refused("no agent has joined this cluster with this token").hint(
                        "start the agent with the token that the cluster's agents join with, see --agent-token-file",
                    ),
                );
            }
        }
        Ok(Credential { own, may_join })
    }

    /// Decides whether a connection is the agent that it claims to be, and keeps the token of one that joins.
    pub(crate) async fn admit(
        &self,
        agent_id: &AgentId,
        credential: &Credential,
    ) -> AppResult<Result<(), NotAdmitted>> {
        let known = {
            let mut conn = self.context.store.read().await?;
            agent_tokens::find(&mut conn.conn(), agent_id).await?
        };
        // Nearly every connection is one of an agent that has joined before; the transaction that stores it looks again.
        if known.is_some_and(|k| k.token_hash == credential.own && k.revoked_at.is_none()) {
            return Ok(Ok(()));
        }
        let (service, id, credential) = (self.clone(), agent_id.clone(), credential.clone());
        self.context.store
            .write(move |tx| {
                Box::pin(async move {
                    let known = agent_tokens::find(&mut tx.conn(), &id).await?;
                    if let Some(known) = &known
                        && known.token_hash == credential.own
                    {
                        return Ok(known.revoked_at.map_or(Ok(()), |_| Err(revoked(&id))));
                    }
                    let bearer =
                        agent_tokens::find_by_hash(&mut tx.conn(), &credential.own).await?;
                    if let Some(bearer) = &bearer
                        && bearer.revoked_at.is_some()
                    {
                        return Ok(Err(revoked(&bearer.agent_id)));
                    }
                    if !credential.may_join {
                        return Ok(Err(NotAdmitted::Stranger(format!(
                            "this agent's token is not that of agent \"{id}\"; to join under this id, start the agent with \
                             the token that the cluster's agents join with, see --agent-token-file"
                        ))));
                    }
                    if known.is_some_and(|known| known.revoked_at.is_none())
                        && places::find(&mut tx.conn(), &id.clone().into()).await?.is_some()
                    {
                        return Ok(Err(NotAdmitted::Yet(format!(
                            "agent \"{id}\" joined with another token, from another data directory; its id is free when it \
                             has been away for the pool's agent_reconnect_wait, or after: det agent revoke {id}"
                        ))));
                    }
                    if let Some(bearer) = bearer
                        && places::find(&mut tx.conn(), &bearer.agent_id.clone().into()).await?.is_some()
                    {
                        let other = bearer.agent_id;
                        return Ok(Err(NotAdmitted::Yet(format!(
                            "this agent's token is that of agent \"{other}\"; where the data directory was copied, give each \
                             agent its own; where the agent was renamed, it can join when \"{other}\" has been away for the \
                             pool's agent_reconnect_wait"
                        ))));
                    }
                    let now = det_store::now();
                    agent_tokens::accept(&mut tx.conn(), &id, &credential.own, now).await?;
                    service
                        .record_token(tx, &ActorName::Place(PlaceId(id.0.clone())), &id, EventKind::Joined)
                        .await?;
                    Ok::<_, AppError>(Ok(()))
                })
            })
            .await
    }

    /// Fails unless this is the token of an agent that was asked to open a tunnel.
    pub(crate) async fn require_token_of(
        &self,
        agent_id: &AgentId,
        token: Option<String>,
    ) -> AppResult<()> {
        let mut conn = self.context.store.read().await?;
        let known = agent_tokens::find(&mut conn.conn(), agent_id).await?;
        let own = token.map(|token| token_hash(&token));
        match known {
            Some(known)
                if known.revoked_at.is_none()
                    && own
                        .as_ref()
                        .is_some_and(|own| own[..] == known.token_hash[..]) =>
            {
                Ok(())
            }
            _ => Err(AppError::new(
                ErrorKind::Unauthenticated,
                format!(
                    "this is not the token of agent \"{agent_id}\", which the tunnel is to come from"
                ),
            )),
        }
    }

    /// Fails unless the token of a connection is still the agent's: it may have been revoked since it was admitted.
    pub(crate) async fn require_admitted(
        &self,
        tx: &mut WriteTx,
        agent_id: &AgentId,
        credential: &Credential,
    ) -> AppResult<()> {
        let known = agent_tokens::find(&mut tx.conn(), agent_id).await?;
        if known.is_some_and(|k| k.token_hash == credential.own && k.revoked_at.is_none()) {
            return Ok(());
        }
        let message = format!("the token of agent \"{agent_id}\" is no longer accepted");
        Err(AppError::new(ErrorKind::Unauthenticated, message))
    }

    /// Refuses the token of an agent from now on, ends its connection and gives up what runs on it. For administrators.
    /// Its id is free for an agent that joins with the cluster's token and a token of its own that is new.
    pub async fn revoke(&self, actor: &Actor, agent_id: &AgentId) -> AppResult<()> {
        actor.require(
            Permission::Administer,
            Kind::Agent,
            "revoke the tokens of agents",
        )?;
        let (service, id, actor) = (self.clone(), agent_id.clone(), actor.name());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let now = det_store::now();
                    let revoked = agent_tokens::revoke(&mut tx.conn(), &id, now).await?;
                    let place = PlaceId::from(id.clone());
                    let known = places::find(&mut tx.conn(), &place).await?.is_some();
                    if !revoked && !known {
                        return Err(AppError::not_found(
                            ObjectKind::Agent,
                            id.as_str().escape_debug(),
                        )
                        .hint("nothing was changed; \"det agent list\" shows the agents"));
                    }
                    if known {
                        let reason = format!("the token of agent \"{id}\" was revoked");
                        service.places.remove(tx, &place, &reason).await?;
                    }
                    service
                        .record_token(tx, &actor, &id, EventKind::TokenRevoked)
                        .await?;
                    tx.after_commit(move || service.places.connected.cut(&place));
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    async fn record_token(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        agent_id: &AgentId,
        kind: EventKind,
    ) -> AppResult<()> {
        let event = NewEvent::new(actor, Subject::Place(agent_id.clone().into()), kind);
        Ok(self.context.record(tx, event).await?)
    }
}

fn revoked(agent_id: &AgentId) -> NotAdmitted {
    NotAdmitted::Revoked(format!(
        "the token of agent \"{agent_id}\" was revoked; to join again, delete the file \"token\" in the agent's data \
         directory and start it with the token that the cluster's agents join with"
    ))
}
