//! Agents, slots and containers as clients see them, built from rows without further queries.

use std::collections::BTreeMap;

use det_api_types::agents::{
    Agent, Container, ContainerState, Device, DeviceStats, DeviceType, GetAgentsQuery, Slot,
    SlotStats, SlotUsage,
};
use det_api_types::wire::Timestamp;
use det_ids::{PlaceId, SlotId};
use det_lifecycle::container::ObservedState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::place::DeviceReading;
use det_scheduler::Service;
use det_store::allocations::ContainerRow;
use det_store::places::PlaceRow;
use det_taskspec::{Device as OwnDevice, DeviceKind};

use crate::app::API_VERSION;
use crate::app::device_use::Uses;
use crate::app::reads::agents::{AgentView, AgentsView};
use crate::error::{AppError, AppResult};

/// Kind of a device on the wire.
pub fn device_type(kind: DeviceKind) -> DeviceType {
    match kind {
        DeviceKind::Cpu => DeviceType::Cpu,
        DeviceKind::Cuda => DeviceType::Cuda,
        DeviceKind::Rocm => DeviceType::Rocm,
    }
}

/// A device on the wire.
pub fn device(device: &OwnDevice) -> Device {
    Device {
        id: device.id,
        brand: device.brand.clone(),
        uuid: device.uuid.clone(),
        kind: device_type(device.kind),
    }
}

/// How far a container is, on the wire.
pub fn container_state(state: Option<&ObservedState>) -> ContainerState {
    match state {
        None | Some(ObservedState::Assigned) => ContainerState::Assigned,
        Some(ObservedState::Pulling) => ContainerState::Pulling,
        Some(ObservedState::Starting) => ContainerState::Starting,
        Some(ObservedState::Running { .. }) => ContainerState::Running,
        Some(ObservedState::Terminated { .. }) => ContainerState::Terminated,
    }
}

/// Agents in the order of `rows`; `live` are the containers that hold slots, of these agents and of others.
pub fn agents(rows: &[PlaceRow], live: &[ContainerRow]) -> Vec<Agent> {
    let mut of_agent: BTreeMap<&PlaceId, Vec<&ContainerRow>> = BTreeMap::new();
    for container in live {
        of_agent
            .entry(&container.place_id)
            .or_default()
            .push(container);
    }
    rows.iter()
        .map(|row| agent(row, of_agent.get(&row.id).map_or(&[][..], Vec::as_slice)))
        .collect()
}

/// As [`agents`], with how much slots are used and without what the query leaves out of each; counts are of all that there
/// is.
pub(crate) fn listed(found: &AgentsView, query: &GetAgentsQuery) -> Vec<Agent> {
    let mut agents = agents(&found.rows, &found.live);
    for (agent, row) in agents.iter_mut().zip(&found.rows) {
        if let Some(uses) = found.uses.get(&row.id) {
            show_usage(agent, uses);
        }
        if query.exclude_slots {
            agent.slots.clear();
        }
        if query.exclude_containers {
            agent.containers.clear();
            for slot in agent.slots.values_mut() {
                slot.container = None;
            }
        }
    }
    agents
}

/// One agent with the containers that hold its slots.
pub fn agent(row: &PlaceRow, live: &[&ContainerRow]) -> Agent {
    let devices = row.capacity.devices();
    // An agent without a connection takes no work and keeps what it has until it is back or given up, whatever was asked
    // of it: clients know that as an agent that is drained. What was asked stays in the row.
    let away = row.disconnected_at.is_some();
    let takes_work = row.services.of_place() == Service::Enabled && !away;
    let drains = away || row.services.of_place() == Service::Draining;
    let mut containers = BTreeMap::new();
    let mut holder: BTreeMap<SlotId, Container> = BTreeMap::new();
    for container in live {
        let shown = Container {
            id: container.id.clone(),
            state: container_state(container.observed.as_ref()),
            devices: devices
                .iter()
                .filter(|d| container.slots.contains(&d.id))
                .map(device)
                .collect(),
            parent: String::new(),
            permission_denied: false,
        };
        for slot in &container.slots {
            holder.insert(*slot, shown.clone());
        }
        containers.insert(container.id.clone(), shown);
    }
    let others = row
        .capacity
        .used_by_others(|slot| holder.contains_key(&slot));
    for slot in others {
        // As clients know it: a container without a task.
        let container = Container {
            id: "unknown".into(),
            state: container_state(None),
            devices: Vec::new(),
            parent: String::new(),
            permission_denied: false,
        };
        holder.insert(slot, container);
    }
    let slots: BTreeMap<SlotId, Slot> = devices
        .iter()
        .map(|own| {
            let service = row.services.of_slot(own.id);
            let slot = Slot {
                id: own.id.to_string(),
                device: device(own),
                enabled: takes_work && service == Service::Enabled,
                container: holder.remove(&own.id),
                draining: drains || service == Service::Draining,
                usage: None,
                fault: (row.services.fault_of(own.id))
                    .unwrap_or_default()
                    .to_owned(),
            };
            (own.id, slot)
        })
        .collect();
    Agent {
        id: row.id.clone(),
        registered_time: Some(Timestamp(row.registered_at)),
        slot_stats: slot_stats(slots.values()),
        slots,
        containers,
        resource_pools: vec![row.resource_pool.clone()],
        addresses: row.addresses.clone(),
        enabled: takes_work,
        draining: drains,
        // An agent of another protocol is refused, so that all of them speak the master's version of the API.
        version: API_VERSION.to_owned(),
        agent_version: row.version.clone(),
        disconnected: away,
        fault: row.services.fault.clone().unwrap_or_default(),
    }
}

/// Shows how much the slots of an agent are used, if it is connected.
fn show_usage(agent: &mut Agent, uses: &Uses) {
    if agent.disconnected {
        return;
    }
    for slot in agent.slots.values_mut() {
        slot.usage = uses.get(&slot.device.id).map(usage);
    }
}

fn usage(reading: &DeviceReading) -> SlotUsage {
    let bytes = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
    SlotUsage {
        utilization_percent: reading.used_percent.map(i64::from),
        memory_used_bytes: bytes(reading.memory_used_bytes),
        memory_bytes: bytes(reading.memory_bytes),
        celsius: reading.celsius.map(i64::from),
    }
}

/// One agent with all that is on it.
pub(crate) fn one((row, live, uses): &AgentView) -> Agent {
    let mut agent = agent(row, &live.iter().collect::<Vec<_>>());
    show_usage(&mut agent, uses);
    agent
}

/// One slot of an agent.
pub(crate) fn slot(view: &AgentView, number: SlotId) -> AppResult<Slot> {
    let slot = one(view).slots.remove(&number);
    slot.ok_or_else(|| {
        AppError::not_found(
            ObjectKind::Slot,
            format!("{}/{number}", view.0.id.as_str().escape_debug()),
        )
    })
}

fn slot_stats<'a>(slots: impl Iterator<Item = &'a Slot>) -> SlotStats {
    let mut stats = SlotStats::default();
    for slot in slots {
        count(
            stats
                .type_stats
                .entry(slot.device.kind.to_string())
                .or_default(),
            slot,
        );
        count(
            stats
                .brand_stats
                .entry(slot.device.brand.clone())
                .or_default(),
            slot,
        );
    }
    stats
}

fn count(stats: &mut DeviceStats, slot: &Slot) {
    stats.total += 1;
    if slot.draining {
        stats.draining += 1;
    } else if !slot.enabled {
        stats.disabled += 1;
    }
    if let Some(container) = &slot.container {
        *stats.states.entry(container.state.to_string()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use det_lifecycle::container::DesiredState;

    use det_rm::Capacity;
    use det_scheduler::Services;

    use super::*;

    fn cpu(number: u32) -> OwnDevice {
        OwnDevice {
            id: SlotId(number),
            brand: "CPU".into(),
            uuid: format!("u{number}"),
            kind: DeviceKind::Cpu,
        }
    }

    fn row() -> PlaceRow {
        let mut services = Services::default();
        services.set(Some(SlotId(1)), Service::Disabled);
        PlaceRow {
            id: "a".into(),
            resource_pool: "default".into(),
            instance_id: "i".into(),
            services,
            capacity: Capacity::Devices([0, 1].map(cpu).to_vec()),
            addresses: vec!["10.0.0.1".into()],
            version: "1".into(),
            runtime: "process".into(),
            registered_at: 0,
            disconnected_at: None,
        }
    }

    fn container() -> ContainerRow {
        ContainerRow {
            id: "c".into(),
            allocation_id: "1.x.1".into(),
            place_id: "a".into(),
            member: 0,
            slots: BTreeSet::from([SlotId(0)]),
            desired: DesiredState::Run,
            observed: Some(ObservedState::Pulling),
            daemon: false,
            joined: false,
            accelerators: None,
            ended_at: None,
        }
    }

    #[test]
    fn a_slot_names_its_container_and_a_disabled_one_is_counted() {
        let agents = agents(&[row()], &[container()]);
        let agent = &agents[0];
        let used = agent.slots[&SlotId(0)].container.as_ref().unwrap();
        assert_eq!(
            (used.id.as_str(), used.state, used.devices.len()),
            ("c", ContainerState::Pulling, 1)
        );
        assert!(agent.slots[&SlotId(0)].enabled);
        assert!(!agent.slots[&SlotId(1)].enabled && agent.slots[&SlotId(1)].container.is_none());
        let stats = &agent.slot_stats.type_stats["TYPE_CPU"];
        assert_eq!(
            (stats.total, stats.disabled, stats.states["STATE_PULLING"]),
            (2, 1, 1)
        );
    }

    #[test]
    fn an_agent_that_is_away_is_shown_as_drained_with_its_slots() {
        let away = PlaceRow {
            disconnected_at: Some(5),
            ..row()
        };
        let agent = agent(&away, &[]);
        assert!(!agent.enabled && agent.draining && agent.disconnected);
        assert!(agent.slots.values().all(|s| !s.enabled && s.draining));
        let stats = &agent.slot_stats.type_stats["TYPE_CPU"];
        assert_eq!((stats.total, stats.disabled, stats.draining), (2, 0, 2));
    }

    #[test]
    fn the_version_of_the_api_is_beside_that_of_the_program() {
        let agent = agent(&row(), &[]);
        assert_eq!(
            (agent.version.as_str(), agent.agent_version.as_str()),
            (API_VERSION, "1")
        );
    }

    #[test]
    fn a_container_without_slots_is_listed_with_the_agent() {
        let aux = ContainerRow {
            slots: BTreeSet::new(),
            observed: None,
            ..container()
        };
        let agents = agents(&[row()], &[aux]);
        assert_eq!(
            agents[0].containers[&"c".into()].state,
            ContainerState::Assigned
        );
        assert!(agents[0].slots.values().all(|s| s.container.is_none()));
    }
}
