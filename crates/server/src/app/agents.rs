//! Agents and their slots: joining, leaving, enabling, disabling, draining.

use std::collections::{BTreeMap, BTreeSet};

use det_agent_proto::{
    AgentLog, DeviceReport, DevicesReport, Hello, HostReport, PROTOCOL_VERSION, Welcome,
};
use det_authz::{Kind, Permission};
use det_failpoints::failpoint;
use det_ids::{AgentId, LogSource, LogStream, PlaceId, SlotId, one_line};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::place::DeviceReading;
use det_orchestrator::Event;
use det_rm::{Capacity, JoinedPlace, PlaceDetails};
use det_rm_agents::{NotAdmitted, Registry};
use det_scheduler::Service;
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::logs::{self, LogLine};
use det_store::places::{self, PlaceRow};
use det_store::{WriteTx, allocations};
use det_taskspec::{Device, DeviceKind};

use crate::app::agent_tokens::{AgentTokens, Credential};
use crate::app::context::Context;
use crate::app::device_use::DeviceUse;
use crate::app::logs::Logs;
use crate::app::managers::Managers;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::places::Places;
use crate::app::reads::agents::AgentView;
use crate::app::specs::MasterIdentity;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// What an agent reported of the use of one of its devices.
fn reading_of(report: &DeviceReport) -> (SlotId, DeviceReading) {
    let reading = DeviceReading {
        used_percent: report.used_percent,
        memory_used_bytes: report.memory_used_bytes,
        memory_bytes: report.memory_bytes,
        celsius: report.celsius,
    };
    (report.slot, reading)
}

/// How the hello of an agent differs from what is known of it, as a sentence; `None` if it does not. The order of
/// devices and the names of products do not count: they come from drivers and may change with them.
fn changes(known: &PlaceRow, hello: &Hello) -> Option<String> {
    let identities = |devices: &[Device]| -> BTreeSet<(u32, String, DeviceKind)> {
        let identity = |d: &Device| (d.id.0, d.uuid.clone(), d.kind);
        devices.iter().map(identity).collect()
    };
    let before = known.capacity.devices();
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
    (!changes.is_empty()).then(|| changes.join(", and "))
}

/// Agents and their slots as administrators change them, and what they report of themselves. Cheap to clone.
#[derive(Clone)]
pub struct Agents {
    context: Context,
    managers: Managers,
    logs: Logs,
    orchestration: Orchestration,
    places: Places,
    tokens: AgentTokens,
    identity: MasterIdentity,
    /// How much devices are used.
    pub(crate) device_use: DeviceUse,
}

impl Agents {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        managers: Managers,
        logs: Logs,
        orchestration: Orchestration,
        places: Places,
        tokens: AgentTokens,
        identity: MasterIdentity,
    ) -> Self {
        Self {
            context,
            managers,
            logs,
            orchestration,
            places,
            tokens,
            identity,
            device_use: DeviceUse::default(),
        }
    }

    /// Changes what an agent may do, or one slot of it, and returns the agent as it is then.
    pub(crate) async fn set_service(
        &self,
        actor: &Actor,
        agent_id: &PlaceId,
        slot: Option<SlotId>,
        service: Service,
    ) -> AppResult<AgentView> {
        let what = slot.map_or("agents", |_| "slots");
        let to_do = format!("enable or disable {what}");
        actor.require(Permission::Administer, Kind::Agent, &to_do)?;
        self.require_connected(agent_id)?;
        let (this, cause) = (self.clone(), Cause::actor(actor.name()));
        let event = Event::ServiceChanged {
            place: agent_id.clone(),
            slot,
            service,
            cause,
        };
        let id = agent_id.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    this.require_slot(tx, &id, slot).await?;
                    this.orchestration.advance(tx, [event]).await?;
                    let row = places::find(&mut tx.conn(), &id).await?;
                    let row = row.ok_or_else(|| AppError::not_found(ObjectKind::Agent, &id))?;
                    let live = allocations::live_containers_of_place(&mut tx.conn(), &id).await?;
                    let uses = this.device_use.of(&id);
                    Ok((row, live, uses))
                })
            })
            .await
    }

    async fn require_slot(
        &self,
        tx: &mut WriteTx,
        agent_id: &PlaceId,
        slot: Option<SlotId>,
    ) -> AppResult<()> {
        let found = places::find(&mut tx.conn(), agent_id).await?;
        let row = found.ok_or_else(|| AppError::not_found(ObjectKind::Agent, agent_id))?;
        match slot {
            Some(slot) if !row.capacity.slots().contains(&slot) => Err(AppError::not_found(
                ObjectKind::Slot,
                format!("{agent_id}/{slot}"),
            )),
            _ => Ok(()),
        }
    }

    fn require_connected(&self, agent_id: &PlaceId) -> AppResult<()> {
        if self.places.connected.has(agent_id) {
            return Ok(());
        }
        Err(AppError::not_found(ObjectKind::Agent, agent_id)
            .hint("only connected agents can be changed; \"det agent list\" shows them"))
    }
}

/// Characters of a fault that are kept.
const MOST_FAULT: usize = 300;

/// A fault as it is stored: one line, not too long.
fn short(fault: &str) -> String {
    one_line(fault).chars().take(MOST_FAULT).collect()
}

impl Registry for Agents {
    type Core = Places;
    type Credential = Credential;

    fn core(&self) -> &Places {
        &self.places
    }

    async fn credential(&self, own: Option<String>, join: Option<&str>) -> AppResult<Credential> {
        self.tokens.credential(own, join).await
    }

    async fn require_token_of(&self, agent: &AgentId, own: Option<String>) -> AppResult<()> {
        self.tokens.require_token_of(agent, own).await
    }

    fn check(&self, hello: &Hello) -> Result<(), String> {
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
        if let Some(why) = self.managers.closed_to_agents(&hello.resource_pool) {
            return Err(format!("resource pool \"{}\" {why}", hello.resource_pool));
        }
        Ok(())
    }

    async fn admit(
        &self,
        agent: &AgentId,
        credential: &Credential,
    ) -> AppResult<Result<(), NotAdmitted>> {
        self.tokens.admit(agent, credential).await
    }

    async fn remove_changed(&self, hello: &Hello) -> AppResult<Option<String>> {
        let known = {
            let mut conn = self.context.store.read().await?;
            places::find(&mut conn.conn(), &hello.agent_id.clone().into()).await?
        };
        let Some(known) = known else {
            return Ok(None);
        };
        if changes(&known, hello).is_none() {
            return Ok(None);
        }
        let (places, hello) = (self.places.clone(), hello.clone());
        self.context.store
            .write(move |tx| {
                Box::pin(async move {
                    let id = hello.agent_id.clone().into();
                    let found = places::find(&mut tx.conn(), &id).await?;
                    let Some(row) = found else {
                        return Ok(None);
                    };
                    let Some(changes) = changes(&row, &hello) else {
                        return Ok(None);
                    };
                    let message = format!("agent \"{}\" came back changed: {changes}", row.id);
                    places.remove(tx, &row.id, &message).await?;
                    Ok::<_, AppError>(Some(format!(
                        "{changes}; what the master knew of agent \"{}\" is removed and its tasks are given up: start it \
                         again to join as a new agent",
                        row.id
                    )))
                })
            })
            .await
    }

    async fn joined(&self, hello: Hello, credential: &Credential) -> AppResult<()> {
        let (places, tokens, credential) =
            (self.places.clone(), self.tokens.clone(), credential.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    tokens
                        .require_admitted(tx, &hello.agent_id, &credential)
                        .await?;
                    let joined = JoinedPlace {
                        place: hello.agent_id.into(),
                        resource_pool: hello.resource_pool,
                        capacity: Capacity::Devices(hello.devices),
                        instance: hello.instance_id,
                        containers: hello
                            .containers
                            .into_iter()
                            .map(|report| (report.container_id, report.state.into()))
                            .collect(),
                        details: PlaceDetails {
                            addresses: hello.addresses,
                            version: hello.version,
                            runtime: hello.runtime.into(),
                        },
                    };
                    places.join_in(tx, joined).await
                })
            })
            .await?;
        failpoint!("server::places::join::after_commit");
        Ok(())
    }

    async fn logged(&self, agent: &AgentId, log: AgentLog) -> AppResult<()> {
        let (found, containers) = {
            let mut conn = self.context.store.read().await?;
            let id = &log.allocation_id;
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
            row.place_id.as_str() == agent.as_str()
                && log.container_id.as_ref().is_none_or(|id| *id == row.id)
        };
        if !containers.iter().any(own) {
            tracing::warn!(
                agent.id = agent.as_str(),
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
                stdtype: Some(LogStream::Stdout.into()),
                source: Some(LogSource::Agent.into()),
                allocation_id: Some(log.allocation_id.clone()),
                container_id: log.container_id.clone(),
                agent_id: Some(agent.clone()),
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

    async fn devices(&self, agent: &AgentId, report: DevicesReport) -> AppResult<()> {
        let place = PlaceId::from(agent.clone());
        let found = {
            let mut conn = self.context.store.read().await?;
            places::find(&mut conn.conn(), &place).await?
        };
        let Some(row) = found else {
            return Ok(());
        };
        let slots = row.capacity.slots();
        let mut reports = report.devices;
        reports.retain(|report| slots.contains(&report.slot));
        let faults: BTreeMap<SlotId, String> = reports
            .iter()
            .filter_map(|report| Some((report.slot, short(report.fault.as_deref()?))))
            .collect();
        let connected = &self.places.connected;
        let readings = reports.iter().map(reading_of).collect();
        self.device_use
            .keep(&place, readings, |place| connected.has(place));
        let mut services = row.services.clone();
        let drained = services.note_faults(&faults);
        if services == row.services {
            return Ok(());
        }
        for slot in drained {
            tracing::warn!(
                agent.id = agent.as_str(),
                slot = slot.0,
                "a slot with a fault takes no new work until it is enabled: {}",
                faults.get(&slot).map_or("", String::as_str)
            );
        }
        self.orchestration
            .commit(Event::FaultsReported { place, faults })
            .await
    }

    async fn host(&self, agent: &AgentId, report: HostReport) -> AppResult<()> {
        let place = PlaceId::from(agent.clone());
        let fault = report.fault.as_deref().map(short);
        let found = {
            let mut conn = self.context.store.read().await?;
            places::find(&mut conn.conn(), &place).await?
        };
        if found.is_none_or(|row| row.services.fault == fault) {
            return Ok(());
        }
        match &fault {
            Some(fault) => tracing::warn!(
                agent.id = agent.as_str(),
                "an agent takes no new work until its host can start containers: {fault}"
            ),
            None => tracing::info!(
                agent.id = agent.as_str(),
                "an agent takes new work: its host can start containers again"
            ),
        }
        self.orchestration
            .commit(Event::HostReported { place, fault })
            .await
    }

    fn left_later(&self) {
        self.context.hub.notify(&Topic::Deadlines);
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            cluster_id: self.identity.cluster_id.clone(),
            master_id: self.identity.master_id.clone(),
        }
    }
}
