//! Agents and their slots: joining, leaving, enabling, disabling, draining.

use std::collections::BTreeSet;

use det_agent_proto::{AgentLog, Hello, PROTOCOL_VERSION};
use det_authz::{Kind, Permission};
use det_failpoints::failpoint;
use det_ids::{AllocationId, PlaceId};
use det_orchestrator::Event;
use det_store::agents::{self, AgentRow};
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::events::NewEvent;
use det_store::logs::{self, LogLine};
use det_store::{StoreError, WriteTx, allocations};
use det_taskspec::{Device, DeviceKind};

use crate::app::Master;
use crate::app::agent_tokens::Credential;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// What a person wants of an agent or slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Takes work.
    Enable,
    /// Finishes what it has and takes nothing new.
    Drain,
    /// Takes nothing; what runs is killed and starts elsewhere.
    Disable,
}

/// The devices of an agent.
pub fn devices(row: &AgentRow) -> Result<Vec<Device>, StoreError> {
    serde_json::from_str(&row.devices).map_err(|e| StoreError::Corrupt {
        what: format!("devices of agent {}", row.id),
        message: e.to_string(),
    })
}

/// A stored list of slot numbers.
pub fn slot_set(text: &str) -> Result<BTreeSet<u32>, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
        what: "a list of slots".into(),
        message: e.to_string(),
    })
}

fn slot_text(slots: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = slots.iter().map(u32::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// How an agent that says hello differs from what is known of it, as a sentence; `None` if it does not. The order of
/// devices and the names of products do not count: they come from drivers and may change with them.
fn changes(known: &AgentRow, hello: &Hello) -> Result<Option<String>, StoreError> {
    let identities = |devices: &[Device]| -> BTreeSet<(u32, String, DeviceKind)> {
        let identity = |d: &Device| (d.id.0, d.uuid.clone(), d.kind);
        devices.iter().map(identity).collect()
    };
    let before = devices(known)?;
    let mut changes = Vec::new();
    if known.resource_pool != hello.resource_pool {
        changes.push(format!(
            "it was in resource pool \"{}\" and comes back for \"{}\"",
            known.resource_pool, hello.resource_pool
        ));
    }
    if identities(&before) != identities(&hello.devices) {
        changes.push(if before.len() == hello.devices.len() {
            format!("its {} devices are others than before", before.len())
        } else {
            let (before, now) = (before.len(), hello.devices.len());
            format!("it had {before} devices and comes back with {now}")
        });
    }
    Ok((!changes.is_empty()).then(|| changes.join(", and ")))
}

/// The platform fails these allocations, each once.
fn platform_failures(ids: impl IntoIterator<Item = String>, reason: &str) -> Vec<Event> {
    let ids: BTreeSet<String> = ids.into_iter().collect();
    ids.into_iter()
        .map(|id| Event::PlatformFailed {
            id: AllocationId(id),
            reason: reason.to_owned(),
        })
        .collect()
}

impl Master {
    /// Whether an agent that says hello may join; else the reason.
    pub(crate) fn check_agent(&self, hello: &Hello) -> Result<(), String> {
        if hello.protocol != PROTOCOL_VERSION {
            return Err(format!(
                "the agent (version {}) speaks protocol {}, this master (version {}) speaks {PROTOCOL_VERSION}: \
                 install the same version on both",
                hello.version,
                hello.protocol,
                env!("CARGO_PKG_VERSION")
            ));
        }
        let id = hello.agent_id.as_str();
        if id.is_empty()
            || id.len() > 255
            || id.contains(['/', '\0'])
            || id.chars().any(char::is_control)
        {
            return Err(
                "an agent's id must be 1 to 255 characters without \"/\" and control characters"
                    .into(),
            );
        }
        let pools = self.pools.names();
        if !pools.contains(&hello.resource_pool) {
            return Err(format!(
                "resource pool \"{}\" does not exist; this master has: {}",
                hello.resource_pool,
                pools.join(", ")
            ));
        }
        Ok(())
    }

    /// Removes what is known of an agent that comes back with other devices or for another pool, together with its
    /// containers, and returns why it may not go on as the same agent; `None` if it is unknown or as it was.
    ///
    /// What runs on its slots was placed on devices that may not exist any more.
    pub(crate) async fn remove_changed_agent(&self, hello: &Hello) -> AppResult<Option<String>> {
        let known = {
            let mut conn = self.context.store.read().await?;
            agents::find(&mut conn.conn(), hello.agent_id.as_str()).await?
        };
        let Some(known) = known else {
            return Ok(None);
        };
        if changes(&known, hello)?.is_none() {
            return Ok(None);
        }
        let (master, hello) = (self.clone(), hello.clone());
        self.context.store
            .write(move |tx| {
                Box::pin(async move {
                    let found = agents::find(&mut tx.conn(), hello.agent_id.as_str()).await?;
                    let Some(row) = found else {
                        return Ok(None);
                    };
                    let Some(changes) = changes(&row, &hello)? else {
                        return Ok(None);
                    };
                    let message = format!("agent \"{}\" came back changed: {changes}", row.id);
                    master.remove_agent(tx, &row.id, &message).await?;
                    Ok::<_, AppError>(Some(format!(
                        "{changes}; what the master knew of agent \"{}\" is removed and its tasks are given up: start it \
                         again to join as a new agent",
                        row.id
                    )))
                })
            })
            .await
    }

    /// Removes an agent and gives up its containers.
    pub(crate) async fn remove_agent(
        &self,
        tx: &mut WriteTx,
        id: &str,
        reason: &str,
    ) -> AppResult<()> {
        let lost = Event::PlaceLost {
            place: PlaceId::from(id),
            reason: reason.to_owned(),
        };
        self.orchestration.advance(tx, [lost]).await?;
        agents::delete(&mut tx.conn(), id).await?;
        let event = NewEvent {
            actor: "master",
            subject_kind: "agent",
            subject_id: id.to_owned(),
            kind: "removed",
            reason: Some(reason),
            ..Default::default()
        };
        self.context.record(tx, event).await?;
        self.context.wake(tx, Topic::Schedule);
        Ok(())
    }

    /// Stores that an agent is here, with all its containers.
    pub(crate) async fn agent_joined(
        &self,
        hello: Hello,
        credential: &Credential,
    ) -> AppResult<()> {
        let (master, credential) = (self.clone(), credential.clone());
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    master
                        .require_admitted(tx, hello.agent_id.as_str(), &credential)
                        .await?;
                    // It may have gone since the agent was asked in.
                    master.pools.require(&hello.resource_pool)?;
                    let before = agents::find(&mut tx.conn(), hello.agent_id.as_str()).await?;
                    let json =
                        |value: serde_json::Result<String>| value.map_err(AppError::internal);
                    let row = AgentRow {
                        id: hello.agent_id.0.clone(),
                        resource_pool: hello.resource_pool.clone(),
                        instance_id: hello.instance_id.replace('\0', ""),
                        enabled: before.as_ref().is_none_or(|b| b.enabled),
                        draining: before.as_ref().is_some_and(|b| b.draining),
                        disabled_slots: before
                            .as_ref()
                            .map_or_else(|| "[]".into(), |b| b.disabled_slots.clone()),
                        draining_slots: before
                            .as_ref()
                            .map_or_else(|| "[]".into(), |b| b.draining_slots.clone()),
                        devices: json(serde_json::to_string(&hello.devices))?,
                        addresses: json(serde_json::to_string(&hello.addresses))?,
                        // What the database cannot hold must not keep an agent from joining.
                        version: hello.version.replace('\0', ""),
                        runtime: hello.runtime.replace('\0', ""),
                        registered_at: before
                            .as_ref()
                            .map_or_else(det_store::now, |b| b.registered_at),
                        disconnected_at: None,
                    };
                    agents::save(&mut tx.conn(), &row).await?;
                    master
                        .context
                        .record(
                            tx,
                            NewEvent {
                                actor: &format!("agent:{}", row.id),
                                subject_kind: "agent",
                                subject_id: row.id.clone(),
                                kind: "connected",
                                ..Default::default()
                            },
                        )
                        .await?;
                    let returned = Event::PlaceReturned {
                        place: hello.agent_id.into(),
                        // Containers of another data directory than before are gone for good.
                        is_new: before.is_some_and(|b| b.instance_id != row.instance_id),
                        observed: hello
                            .containers
                            .into_iter()
                            .map(|report| (report.container_id, report.state.into()))
                            .collect(),
                    };
                    master.orchestration.advance(tx, [returned]).await?;
                    failpoint!("server::agents::join::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::agents::join::after_commit");
        Ok(())
    }

    /// Stores that an agent is away, unless it is connected again. Its tasks go on; only after the pool's patience are they
    /// given up. What cannot be stored now is stored by the watch over deadlines.
    pub(crate) async fn agent_left(&self, agent_id: &str) -> AppResult<()> {
        let master = self.clone();
        let agent_id = agent_id.to_owned();
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(mut row) = agents::find(&mut tx.conn(), &agent_id).await? else {
                        return Ok(());
                    };
                    if row.disconnected_at.is_some() || master.connections.is_connected(&agent_id) {
                        return Ok(());
                    }
                    row.disconnected_at = Some(det_store::steady_now());
                    agents::save(&mut tx.conn(), &row).await?;
                    master
                        .context
                        .record(
                            tx,
                            NewEvent {
                                actor: "master",
                                subject_kind: "agent",
                                subject_id: row.id.clone(),
                                kind: "disconnected",
                                ..Default::default()
                            },
                        )
                        .await?;
                    master.context.wake(tx, Topic::Deadlines);
                    master.context.wake(tx, Topic::Schedule);
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// Stores lines of the agent for the log of a task that it has, or had, a container of.
    pub(crate) async fn agent_logged(&self, agent_id: &str, log: AgentLog) -> AppResult<()> {
        let (found, containers) = {
            let mut conn = self.context.store.read().await?;
            let id = log.allocation_id.as_str();
            (
                allocations::find(&mut conn.conn(), id).await?,
                allocations::containers(&mut conn.conn(), id).await?,
            )
        };
        let Some(AllocationRow {
            task_id,
            experiment_id,
            ..
        }) = found
        else {
            return Ok(());
        };
        let own = |row: &ContainerRow| {
            row.place_id == agent_id && log.container_id.as_ref().is_none_or(|id| id.0 == row.id)
        };
        if !containers.iter().any(own) {
            tracing::warn!(
                agent.id = agent_id,
                allocation.id = log.allocation_id.as_str(),
                "lines of an agent for a task that it does not run are left out"
            );
            return Ok(());
        }
        let lines: Vec<LogLine> = log
            .lines
            .into_iter()
            .map(|(at, level, text)| LogLine {
                at,
                log: format!("{}\n", text.trim_end()),
                level: Some(level),
                stdtype: Some("stdout".into()),
                source: Some("agent".into()),
                allocation_id: Some(log.allocation_id.0.clone()),
                container_id: log.container_id.as_ref().map(|c| c.0.clone()),
                agent_id: Some(agent_id.to_owned()),
                rank_id: None,
            })
            .collect();
        match self
            .logs
            .append(experiment_id, task_id, logs::pack(&lines)?, None)
            .await
        {
            // The task was deleted meanwhile.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Changes what an agent may do.
    pub async fn set_agent_service(
        &self,
        actor: &Actor,
        agent_id: &str,
        service: Service,
    ) -> AppResult<()> {
        actor.require(
            Permission::Administer,
            Kind::Agent,
            "enable or disable agents",
        )?;
        self.require_connected(agent_id)?;
        let master = self.clone();
        let (agent_id, actor) = (agent_id.to_owned(), actor.name());
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(mut row) = agents::find(&mut tx.conn(), &agent_id).await? else {
                        return Err(AppError::not_found("agent", &agent_id));
                    };
                    (row.enabled, row.draining) = match service {
                        Service::Enable => (true, false),
                        Service::Drain => (false, true),
                        Service::Disable => (false, false),
                    };
                    agents::save(&mut tx.conn(), &row).await?;
                    if service == Service::Disable {
                        let live = allocations::live_containers_of_place(&mut tx.conn(), &agent_id)
                            .await?;
                        let reason = format!("agent \"{agent_id}\" was disabled");
                        let ids = live.into_iter().map(|c| c.allocation_id);
                        master
                            .orchestration
                            .advance(tx, platform_failures(ids, &reason))
                            .await?;
                    }
                    master
                        .record_service(tx, &actor, &agent_id, service, None)
                        .await?;
                    master.context.wake(tx, Topic::Schedule);
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// Changes what one slot of an agent may do.
    pub async fn set_slot_service(
        &self,
        actor: &Actor,
        agent_id: &str,
        slot: u32,
        service: Service,
    ) -> AppResult<()> {
        actor.require(
            Permission::Administer,
            Kind::Agent,
            "enable or disable slots",
        )?;
        self.require_connected(agent_id)?;
        let master = self.clone();
        let (agent_id, actor) = (agent_id.to_owned(), actor.name());
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(mut row) = agents::find(&mut tx.conn(), &agent_id).await? else {
                        return Err(AppError::not_found("agent", &agent_id));
                    };
                    if !devices(&row)?.iter().any(|d| d.id.0 == slot) {
                        return Err(AppError::not_found("slot", format!("{agent_id}/{slot}")));
                    }
                    let mut disabled = slot_set(&row.disabled_slots)?;
                    let mut draining = slot_set(&row.draining_slots)?;
                    disabled.remove(&slot);
                    draining.remove(&slot);
                    match service {
                        Service::Enable => {}
                        Service::Drain => {
                            draining.insert(slot);
                        }
                        Service::Disable => {
                            disabled.insert(slot);
                        }
                    }
                    row.disabled_slots = slot_text(&disabled);
                    row.draining_slots = slot_text(&draining);
                    agents::save(&mut tx.conn(), &row).await?;
                    if service == Service::Disable {
                        let mut ids = Vec::new();
                        for container in
                            allocations::live_containers_of_place(&mut tx.conn(), &agent_id).await?
                        {
                            if slot_set(&container.slots)?.contains(&slot) {
                                ids.push(container.allocation_id);
                            }
                        }
                        let reason = format!("slot {slot} of agent \"{agent_id}\" was disabled");
                        master
                            .orchestration
                            .advance(tx, platform_failures(ids, &reason))
                            .await?;
                    }
                    master
                        .record_service(tx, &actor, &agent_id, service, Some(slot))
                        .await?;
                    master.context.wake(tx, Topic::Schedule);
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    async fn record_service(
        &self,
        tx: &mut WriteTx,
        actor: &str,
        agent_id: &str,
        service: Service,
        slot: Option<u32>,
    ) -> Result<(), StoreError> {
        self.context
            .record(
                tx,
                NewEvent {
                    actor,
                    subject_kind: "agent",
                    subject_id: agent_id.to_owned(),
                    kind: match service {
                        Service::Enable => "enabled",
                        Service::Drain => "draining",
                        Service::Disable => "disabled",
                    },
                    detail: slot.map(|s| format!("{{\"slot\":{s}}}")),
                    ..Default::default()
                },
            )
            .await
    }

    fn require_connected(&self, agent_id: &str) -> AppResult<()> {
        if self.connections.is_connected(agent_id) {
            return Ok(());
        }
        Err(AppError::not_found("agent", agent_id)
            .hint("only connected agents can be changed; \"det agent list\" shows them"))
    }

    /// Gives up containers of agents that have been away longer than their pool's patience. Idempotent; gives the
    /// moment at which to look again.
    pub(crate) async fn give_up_lost_agents(&self) -> AppResult<Option<i64>> {
        let now = det_store::steady_now();
        let rows = {
            let mut conn = self.context.store.read().await?;
            agents::list(&mut conn.conn()).await?
        };
        let mut next: Option<i64> = None;
        for row in rows {
            let Some(since) = row.disconnected_at else {
                if !self.connections.is_connected(&row.id) {
                    // The end of its connection could not be stored when it came.
                    self.agent_left(&row.id).await?;
                }
                continue;
            };
            let until =
                since.saturating_add(self.pools.reconnect_patience_micros(&row.resource_pool));
            if until > now {
                next = Some(next.map_or(until, |n| n.min(until)));
                continue;
            }
            let master = self.clone();
            self.context
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        let Some(current) = agents::find(&mut tx.conn(), &row.id).await? else {
                            return Ok(());
                        };
                        if current.disconnected_at != Some(since) {
                            return Ok(());
                        }
                        let message = format!("agent \"{}\" was away for too long", row.id);
                        master.remove_agent(tx, &row.id, &message).await?;
                        Ok::<_, AppError>(())
                    })
                })
                .await?;
        }
        Ok(next)
    }
}
