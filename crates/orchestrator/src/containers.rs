//! Containers: where they are placed, what is reported of them, and what that means for their allocation.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::allocation::{AllocationEvent, AllocationState, Phase};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::TaskEvent;
use det_scheduler::Placement;
use det_taskspec::{ContainerExit, ExitCause, TaskKind};

use crate::{
    Allocation, Cause, Container, Effect, Event, Mutant, PlacedAllocation, Record, Refusal, Rows,
    Scene, Topic, allocations, tasks,
};

/// The exit code that an exit is shown with.
fn status_code(exit: &ContainerExit) -> Option<i64> {
    match exit {
        ContainerExit::Exited { code } | ContainerExit::SetupFailed { code, .. } => {
            Some(i64::from(*code))
        }
        ContainerExit::Signaled { signal, .. } => Some(128 + i64::from(*signal)),
        ContainerExit::Killed => Some(137),
        ContainerExit::StartFailed { .. } | ContainerExit::Lost { .. } => None,
    }
}

fn place_cause(place: &PlaceId) -> Cause {
    Cause::actor(ActorName::Place(place.clone()))
}

/// Stores a placement of the scheduler, if its request still waits and its places still take work.
pub(crate) fn place<R: Rows>(
    scene: &mut Scene<'_, R>,
    placed: PlacedAllocation,
) -> Result<(), Refusal> {
    let PlacedAllocation {
        placement,
        container_ids,
        ports,
        namespace,
    } = placed;
    let id = placement.allocation_id.clone();
    let found = scene.rows.allocation(&id);
    let Some(mut row) = found.filter(|row| row.placed_at.is_none() && row.ended_at.is_none())
    else {
        return Ok(());
    };
    // A place, or the request's pool, changed between the plan and now: the change has woken the scheduler again.
    if !still_fits(scene, &row, &placement) {
        return Ok(());
    }
    let parts = placement.parts.iter().zip(container_ids);
    for (member, ((place, slots), container_id)) in (0..).zip(parts) {
        let container = Container {
            id: container_id.clone(),
            allocation_id: id.clone(),
            place: place.clone(),
            member,
            desired: DesiredState::Run,
            observed: None,
            daemon: false,
            joined: false,
            ended_at: None,
        };
        scene.rows.insert_container(container, slots);
        scene.effect(Effect::ContainerPlaced {
            id: container_id,
            allocation_id: id.clone(),
        });
        scene.wake(Topic::Place(place.clone()));
    }
    row.placed_at = Some(scene.clock.wall);
    row.port_step = ports.step.filter(|_| row.kind == TaskKind::Trial);
    row.service_port = ports.service;
    row.namespace = namespace;
    scene.rows.update_allocation(&row);
    let mut places: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (place, slots) in &placement.parts {
        let on_place = places.entry(place.as_str()).or_default();
        on_place.extend(slots.iter().map(|slot| slot.0));
    }
    let where_to: Vec<String> = places
        .iter()
        .map(|(place, slots)| match slots.as_slice() {
            [] => format!("place {place}"),
            [slot] => format!("place {place}, slot {slot}"),
            slots => format!("place {place}, {} slots", slots.len()),
        })
        .collect();
    let mut text = format!("Assigned to {}", where_to.join("; "));
    if let Some(namespace) = &row.namespace {
        text = format!("{text}, in namespace \"{namespace}\"");
    }
    scene.log(&row.task_id, Some(&id), text);
    scene.record(Record {
        cause: Cause::actor(ActorName::Master),
        subject: Subject::Allocation(id.clone()),
        kind: EventKind::Placed,
        from: Some(AllocationState::Pending.state_name().into()),
        to: Some(
            AllocationState::Starting(Phase::Assigned)
                .state_name()
                .into(),
        ),
        detail: Some(serde_json::json!(places).to_string()),
    });
    scene.effect(Effect::Placed {
        resource_pool: row.resource_pool.clone(),
        requested_at: row.requested_at,
        placed_at: scene.clock.wall,
    });
    let cause = Cause::master("it was given slots");
    allocations::on(scene, &id, AllocationEvent::Place, &cause)?;
    tasks::on(scene, &row.task_id, TaskEvent::Place, &cause)
}

fn still_fits<R: Rows>(scene: &Scene<'_, R>, row: &Allocation, placement: &Placement) -> bool {
    placement.parts.iter().all(|(id, slots)| {
        scene
            .rows
            .place(id)
            .is_some_and(|place| place.resource_pool == row.resource_pool && place.takes(slots))
    })
}

/// A place reports on a container. Reports on containers that no row wants any more change nothing: the place is then
/// ordered to remove them.
pub(crate) fn observed<R: Rows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    id: &ContainerId,
    observed: ObservedState,
) -> Result<(), Refusal> {
    let found = scene.rows.container(id);
    let Some(mut row) = found.filter(|row| row.ended_at.is_none() && row.place == *place) else {
        return Ok(());
    };
    if let ObservedState::Terminated { exit, cause } = observed {
        return ended(scene, id, exit, cause);
    }
    // A report of an earlier connection may come after one of a later one: life only moves on.
    let moves_back = scene.is(Mutant::MovesBack);
    if row
        .observed
        .as_ref()
        .is_some_and(|known| *known == observed || (observed.is_before(known) && !moves_back))
    {
        return Ok(());
    }
    let runs = matches!(observed, ObservedState::Running { .. });
    row.observed = Some(observed);
    scene.rows.update_container(&row);
    // The allocation of the row: what the place reports of it must not choose the log.
    if runs && let Some(of) = scene.rows.allocation(&row.allocation_id) {
        let text = format!("Container started on place {place}");
        scene.log(&of.task_id, Some(&of.id), text);
    }
    scene.wake(Topic::Allocation(row.allocation_id.clone()));
    members_changed(scene, &row.allocation_id, &place_cause(place))
}

/// A container is gone: its slots are free, and its allocation is notified.
pub(crate) fn ended<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &ContainerId,
    exit: ContainerExit,
    cause: Option<ExitCause>,
) -> Result<(), Refusal> {
    let found = scene.rows.container(id);
    let Some(mut row) = found.filter(|row| row.ended_at.is_none()) else {
        return Ok(());
    };
    let status_code = status_code(&exit);
    row.observed = Some(ObservedState::Terminated { exit, cause });
    row.ended_at = Some(scene.clock.wall);
    scene.rows.update_container(&row);
    if row.member == 0
        && let Some(mut allocation) = scene.rows.allocation(&row.allocation_id)
    {
        allocation.status_code = status_code;
        scene.rows.update_allocation(&allocation);
    }
    scene.effect(Effect::ContainerEnded(row.id));
    scene.wake(Topic::Place(row.place.clone()));
    scene.wake(Topic::Schedule);
    members_changed(scene, &row.allocation_id, &place_cause(&row.place))
}

fn members_changed<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    cause: &Cause,
) -> Result<(), Refusal> {
    allocations::on(scene, id, AllocationEvent::MembersChanged, cause)
}

/// A container that must not be started has not been: its row ends without its place.
pub(crate) fn never_started<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &ContainerId,
) -> Result<(), Refusal> {
    match scene.rows.container(id) {
        Some(row) if row.desired != DesiredState::Run => {
            ended(scene, id, ContainerExit::Killed, None)
        }
        _ => Ok(()),
    }
}

/// The containers of an allocation, among them this one.
fn peers<R: Rows>(
    scene: &Scene<'_, R>,
    id: &AllocationId,
    container_id: &ContainerId,
) -> Result<(Vec<Container>, usize), Refusal> {
    let rows = scene.rows.containers(id);
    match rows.iter().position(|row| row.id == *container_id) {
        Some(place) => Ok((rows, place)),
        None => Err(Refusal::not_found(ObjectKind::Container, container_id)),
    }
}

/// A container has come to the meeting; once all have, the allocation is ready.
pub(crate) fn joined<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: AllocationId,
    container_id: &ContainerId,
    cause: Cause,
) -> Result<(), Refusal> {
    let (mut rows, place) = peers(scene, &id, container_id)?;
    if !rows[place].joined {
        rows[place].joined = true;
        scene.rows.update_container(&rows[place]);
    }
    scene.wake(Topic::Allocation(id.clone()));
    if rows.iter().all(|row| row.joined) {
        let event = AllocationEvent::Meet;
        scene.then(Event::Allocation { id, event, cause });
    }
    Ok(())
}

/// A container does not keep its allocation alive.
pub(crate) fn daemon<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: AllocationId,
    container_id: &ContainerId,
    cause: Cause,
) -> Result<(), Refusal> {
    let (mut rows, place) = peers(scene, &id, container_id)?;
    if rows.len() == 1 || rows[place].daemon {
        return Ok(());
    }
    rows[place].daemon = true;
    scene.rows.update_container(&rows[place]);
    let event = AllocationEvent::MembersChanged;
    scene.then(Event::Allocation { id, event, cause });
    Ok(())
}

/// What a place reported before and does not hold any more is lost.
pub(crate) fn missing<R: Rows>(
    scene: &mut Scene<'_, R>,
    place: &PlaceId,
    held: &BTreeSet<ContainerId>,
) {
    for row in scene.rows.live_containers_on(place) {
        if row.observed.is_some() && !held.contains(&row.id) {
            lose(scene, row.id, "the place does not know it any more");
        }
    }
}

/// Everything on a place is given up.
pub(crate) fn place_lost<R: Rows>(scene: &mut Scene<'_, R>, place: &PlaceId, reason: &str) {
    for row in scene.rows.live_containers_on(place) {
        lose(scene, row.id, reason);
    }
}

fn lose<R: Rows>(scene: &mut Scene<'_, R>, id: ContainerId, message: &str) {
    let message = message.to_owned();
    let exit = ContainerExit::Lost { message };
    scene.then(Event::ContainerEnded { id, exit });
}
