//! An independent, slow judge of plans. It shares no code with the scheduler: it counts slots one by one and tries
//! sums of agents by brute force.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AgentId, AllocationId, SlotId};
use det_scheduler::{
    AgentSnapshot, AgentState, Behind, Job, Plan, Policy, PreemptReason, Progress, Request,
    SlotState, WaitReason,
};

use super::World;

/// Panics unless `plan` is sound for `before` and all it says is true.
pub fn check(before: &World, plan: &Plan) {
    placements(before, plan);
    preemptions(before, plan);
    hand_overs(before, plan);
    nobody_overtakes(before, plan);
    let mut after = before.clone();
    after.apply(plan);
    caps(before, &after);
    everybody_answered(before, plan);
    for (allocation, reason) in &plan.waiting {
        let request = find(before, allocation);
        let told = format!(
            "{allocation} waits because {reason:?}\n{plan:#?}\n{:#?}",
            before.pool
        );
        assert!(
            true_reason(before, &after, plan, request, reason),
            "untrue: {told}"
        );
        let sentence = reason.to_string();
        assert!(
            sentence.len() > 20 && !sentence.ends_with('.'),
            "{sentence}"
        );
    }
}

/// Applying the plan and deciding again must change nothing.
pub fn check_settled(after: &World) {
    let again = after.decide();
    assert!(
        again.place.is_empty() && again.preempt.is_empty() && again.hand_over.is_empty(),
        "deciding again on its own result does more: {again:#?}\n{:#?}\n{:#?}",
        after.pool,
        after.queue
    );
    check(after, &again);
}

fn placements(before: &World, plan: &Plan) {
    let mut given: BTreeSet<(AgentId, SlotId)> = BTreeSet::new();
    let mut aux: BTreeMap<AgentId, u32> = BTreeMap::new();
    for placement in &plan.place {
        let request = find(before, &placement.allocation_id);
        let total: usize = placement.parts.iter().map(|(_, slots)| slots.len()).sum();
        assert_eq!(total, request.slots as usize, "a gang is placed whole");
        let agents: BTreeSet<_> = placement.parts.iter().map(|(agent, _)| agent).collect();
        assert_eq!(agents.len(), placement.parts.len(), "one part per agent");
        if request.single_agent || request.slots == 0 {
            assert_eq!(placement.parts.len(), 1);
        }
        for (agent_id, slots) in &placement.parts {
            let agent = agent(before, agent_id);
            assert_eq!(agent.state, AgentState::Enabled);
            assert!(!request.excluded_agents.contains(agent_id));
            if request.slots == 0 {
                let used = aux.entry(agent_id.clone()).or_insert(agent.aux_used);
                *used += 1;
                assert!(*used <= agent.aux_limit, "aux limit of {agent_id}");
            }
            if placement.parts.len() > 1 {
                let offered = agent
                    .slots
                    .iter()
                    .filter(|slot| slot.state == SlotState::Free);
                assert_eq!(offered.count(), slots.len(), "a gang takes whole agents");
                assert_eq!(used_slots(agent), 0, "a gang takes unused agents");
            }
            for slot_id in slots {
                let slot = agent.slots.iter().find(|slot| slot.id == *slot_id);
                assert_eq!(slot.map(|slot| &slot.state), Some(&SlotState::Free));
                assert!(
                    given.insert((agent_id.clone(), *slot_id)),
                    "slot given twice"
                );
            }
        }
        if !before.pool.settings.allow_heterogeneous_fits {
            let sizes: BTreeSet<_> = placement.parts.iter().map(|(_, s)| s.len()).collect();
            assert_eq!(sizes.len(), 1, "equal agents only");
        }
    }
}

fn preemptions(before: &World, plan: &Plan) {
    let Policy::Priority { preemption, .. } = before.pool.settings.policy;
    let mut stopped = BTreeSet::new();
    for stop in &plan.preempt {
        assert!(stopped.insert(&stop.allocation_id), "asked twice");
        let victim = before
            .pool
            .running
            .iter()
            .find(|running| running.request.allocation_id == stop.allocation_id)
            .expect("a victim runs");
        assert!(victim.request.preemptible);
        assert_eq!(
            victim.progress,
            Progress::Active,
            "a stopping one is not asked again"
        );
        let own = job(before, &victim.request);
        match (&stop.reason, &stop.for_allocation) {
            (PreemptReason::OverJobCap { max_slots, in_use }, None) => {
                assert_eq!(own.max_slots, Some(*max_slots));
                assert!(in_use > max_slots);
            }
            (
                PreemptReason::HigherPriority {
                    priority,
                    own_priority,
                },
                Some(winner),
            ) => {
                assert!(preemption);
                assert!(priority < own_priority, "only less important work stops");
                assert_eq!(job(before, find(before, winner)).priority, *priority);
                assert_eq!(own.priority, *own_priority);
            }
            (PreemptReason::MovedAhead, Some(winner)) => {
                assert!(preemption);
                let winner = job(before, find(before, winner));
                assert_eq!(winner.priority, own.priority);
                assert!(winner.position.is_some() || own.position.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What starts although a more important request of the same kind waits for room must be able to make room, and must
/// not start at all while room is being freed.
fn nobody_overtakes(before: &World, plan: &Plan) {
    let Policy::Priority { preemption, .. } = before.pool.settings.policy;
    for placement in &plan.place {
        let started = find(before, &placement.allocation_id);
        for (allocation, reason) in &plan.waiting {
            let waits = find(before, allocation);
            let freeing = matches!(reason, WaitReason::WaitingForPreemption { .. });
            let blocked = freeing
                || matches!(reason, WaitReason::NotEnoughFreeSlots { .. })
                || matches!(reason, WaitReason::ReservedFor { .. });
            let same_kind = (waits.slots == 0) == (started.slots == 0);
            if blocked && same_kind && job(before, waits).priority < job(before, started).priority {
                assert!(
                    preemption && started.preemptible && !freeing,
                    "{} overtakes {allocation}: {plan:#?}",
                    placement.allocation_id
                );
            }
        }
    }
}

fn hand_overs(before: &World, plan: &Plan) {
    for tie in &plan.hand_over {
        let running = before.pool.running.iter();
        let owner = running
            .filter(|running| running.request.allocation_id == tie.allocation_id)
            .find_map(|running| match &running.progress {
                Progress::PreemptedFor(owner) => Some(find(before, owner)),
                Progress::Active | Progress::Stopping => None,
            });
        let owner = owner.expect("only room of a waiting request is handed over");
        let taker = find(before, &tie.for_allocation);
        assert!(
            order(before, taker) < order(before, owner),
            "only to a more important one"
        );
    }
}

fn caps(before: &World, after: &World) {
    for (id, job) in &before.queue.jobs {
        let (used_before, used_after) = (in_use(before, id.as_str()), in_use(after, id.as_str()));
        if let Some(cap) = job.max_slots
            && used_after > used_before
        {
            assert!(used_after <= cap, "{id} uses {used_after} of {cap}");
        }
    }
}

fn everybody_answered(before: &World, plan: &Plan) {
    let asked: Vec<_> = sorted(before.queue.requests.iter().map(|r| &r.allocation_id));
    let placed = plan.place.iter().map(|p| &p.allocation_id);
    let answered = sorted(placed.chain(plan.waiting.iter().map(|(allocation, _)| allocation)));
    assert_eq!(asked, answered, "each request starts or has one reason");
}

fn sorted<'a>(ids: impl Iterator<Item = &'a AllocationId>) -> Vec<&'a AllocationId> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort();
    ids
}

fn true_reason(
    before: &World,
    after: &World,
    plan: &Plan,
    request: &Request,
    reason: &WaitReason,
) -> bool {
    let own = job(before, request);
    let waiting = |id: &AllocationId| plan.waiting.iter().find(|(other, _)| other == id);
    let all = |agent: &AgentSnapshot| !request.excluded_agents.contains(&agent.id);
    let in_service = |agent: &AgentSnapshot| all(agent) && agent.state == AgentState::Enabled;
    match reason {
        WaitReason::NoAgents => before.pool.agents.is_empty(),
        WaitReason::AllAgentsExcluded { .. } => !before.pool.agents.iter().any(all),
        WaitReason::NoAgentLargeEnough { .. }
        | WaitReason::PoolTooSmall { .. }
        | WaitReason::GangDoesNotDivide { .. } => {
            !holds(before, request, &empty_sizes(before, all, |_| true))
        }
        WaitReason::AgentsUnavailable { .. } => {
            let offered = |state: &SlotState| matches!(state, SlotState::Free | SlotState::Held(_));
            !holds(before, request, &empty_sizes(before, in_service, offered))
        }
        WaitReason::WaitingForInstances { .. } => before.pool.settings.provisionable.is_some(),
        WaitReason::OverJobCap {
            needed,
            max_slots,
            in_use: used,
        } => {
            own.max_slots == Some(*max_slots)
                && *used == in_use(after, request.job_id.as_str())
                && used + needed > *max_slots
        }
        WaitReason::BehindHigherPriority {
            allocation,
            priority,
            because,
        } => {
            let Some((_, their_reason)) = waiting(allocation) else {
                return false;
            };
            let Policy::Priority { preemption, .. } = before.pool.settings.policy;
            let truth = match because {
                Behind::PreemptionOff => !preemption,
                Behind::NotPreemptible => preemption && !request.preemptible,
                Behind::RoomBeingFreed => after
                    .pool
                    .running
                    .iter()
                    .any(|running| running.progress != Progress::Active),
            };
            let theirs = find(before, allocation);
            truth
                && job(before, theirs).priority == *priority
                && *priority < own.priority
                && (theirs.slots == 0) == (request.slots == 0)
                && !their_reason.is_permanent()
                && !matches!(their_reason, WaitReason::OverJobCap { .. })
        }
        WaitReason::ReservedFor { allocation } => {
            let theirs = find(before, allocation);
            let patience = before.pool.settings.reserve_after;
            let waited = before.now.0 - theirs.requested_at.0;
            let old = patience.is_some_and(|p| i128::from(waited) >= p.as_micros().cast_signed());
            let freeing = before
                .pool
                .running
                .iter()
                .any(|running| running.progress == Progress::PreemptedFor(allocation.clone()));
            let held = plan.reservations.iter().any(|reservation| {
                reservation.allocation_id == *allocation
                    && reservation
                        .agents
                        .iter()
                        .any(|a| !request.excluded_agents.contains(a))
            });
            let reserves =
                order(before, theirs) < order(before, request) && (old || freeing) && held;
            // A job was moved within the priority, and its request must not start what it would stop next.
            let stopping = after
                .pool
                .running
                .iter()
                .any(|r| r.progress != Progress::Active);
            let moved = before
                .queue
                .jobs
                .values()
                .any(|job| job.priority == own.priority && job.position.is_some());
            waiting(allocation).is_some()
                && job(before, theirs).priority == own.priority
                && (reserves || (stopping && moved))
                && fits_without_worse(before, plan, request)
        }
        WaitReason::WaitingForPreemption { victims } => {
            !victims.is_empty()
                && victims.iter().all(|victim| {
                    after.pool.running.iter().any(|running| {
                        running.request.allocation_id == *victim
                            && running.progress != Progress::Active
                    })
                })
        }
        WaitReason::NotEnoughFreeSlots {
            needed,
            free_total,
            largest_free_on_one_agent,
            held_by,
            ..
        } => {
            let free: Vec<u32> = after
                .pool
                .agents
                .iter()
                .filter(|a| in_service(a))
                .map(free_slots)
                .collect();
            let true_holders = held_by.as_slice().iter().all(|holder| {
                after.pool.running.iter().any(|running| {
                    running.request.allocation_id == holder.allocation
                        && running.request.slots == holder.slots
                })
            });
            *needed == request.slots
                && *free_total == free.iter().sum::<u32>()
                && *largest_free_on_one_agent == free.iter().max().copied().unwrap_or(0)
                && true_holders
                && !fits_without_worse(before, plan, request)
        }
        WaitReason::AuxFull { .. } => !fits_without_worse(before, plan, request),
    }
}

/// Whether a request would fit after the plan, were it not for less important work that the plan starts.
fn fits_without_worse(before: &World, plan: &Plan, request: &Request) -> bool {
    let own = job(before, request).priority;
    let mut kept = plan.clone();
    kept.place
        .retain(|placement| job(before, find(before, &placement.allocation_id)).priority <= own);
    let mut world = before.clone();
    world.apply(&kept);
    let agents: Vec<&AgentSnapshot> = world
        .pool
        .agents
        .iter()
        .filter(|a| a.state == AgentState::Enabled && !request.excluded_agents.contains(&a.id))
        .collect();
    if request.slots == 0 {
        return agents.iter().any(|agent| agent.aux_used < agent.aux_limit);
    }
    let unused = agents
        .iter()
        .filter(|a| used_slots(a) == 0)
        .map(|a| free_slots(a));
    agents
        .iter()
        .any(|agent| free_slots(agent) >= request.slots)
        || sums_up(&world, request, &unused.collect::<Vec<_>>())
}

/// Sizes of agents as if nothing ran.
fn empty_sizes(
    world: &World,
    agents: impl Fn(&AgentSnapshot) -> bool,
    slots: impl Fn(&SlotState) -> bool,
) -> Vec<(u32, u32)> {
    let counted = world.pool.agents.iter().filter(|agent| agents(agent));
    counted
        .map(|agent| {
            let size = agent.slots.iter().filter(|slot| slots(&slot.state)).count();
            (number(size), agent.aux_limit)
        })
        .collect()
}

fn holds(world: &World, request: &Request, sizes: &[(u32, u32)]) -> bool {
    if request.slots == 0 {
        return sizes.iter().any(|(_, aux)| *aux > 0);
    }
    let sizes: Vec<u32> = sizes.iter().map(|(size, _)| *size).collect();
    sizes.iter().any(|size| *size >= request.slots) || sums_up(world, request, &sizes)
}

/// Whether whole agents of these sizes make up the request.
fn sums_up(world: &World, request: &Request, sizes: &[u32]) -> bool {
    if request.single_agent {
        return false;
    }
    let equal = sizes.iter().any(|size| {
        *size > 0
            && request.slots.is_multiple_of(*size)
            && number(sizes.iter().filter(|other| *other == size).count()) * size >= request.slots
    });
    if equal || !world.pool.settings.allow_heterogeneous_fits {
        return equal;
    }
    let mut sums = BTreeSet::from([0]);
    for size in sizes {
        sums = sums.iter().flat_map(|sum| [*sum, sum + size]).collect();
    }
    sums.contains(&request.slots)
}

fn free_slots(agent: &AgentSnapshot) -> u32 {
    if agent.state != AgentState::Enabled {
        return 0;
    }
    let free = agent
        .slots
        .iter()
        .filter(|slot| slot.state == SlotState::Free);
    number(free.count())
}

fn used_slots(agent: &AgentSnapshot) -> usize {
    let used = agent.slots.iter().filter(|slot| match &slot.state {
        SlotState::Free => false,
        SlotState::Held(_) => true,
        SlotState::Draining(holder) | SlotState::Disabled(holder) => holder.is_some(),
    });
    used.count()
}

fn in_use(world: &World, job: &str) -> u32 {
    let running = world.pool.running.iter();
    running
        .filter(|running| running.request.job_id.as_str() == job)
        .map(|running| running.request.slots)
        .sum()
}

fn order<'a>(world: &World, request: &'a Request) -> (u8, i64, i64, i64, &'a str) {
    let job = job(world, request);
    (
        job.priority,
        job.position.unwrap_or(job.submitted_at.0),
        job.submitted_at.0,
        request.requested_at.0,
        request.allocation_id.as_str(),
    )
}

fn job<'a>(world: &'a World, request: &Request) -> &'a Job {
    &world.queue.jobs[&request.job_id]
}

fn agent<'a>(world: &'a World, id: &AgentId) -> &'a AgentSnapshot {
    let found = world.pool.agents.iter().find(|agent| agent.id == *id);
    found.expect("plans name agents of the pool")
}

fn find<'a>(world: &'a World, allocation: &AllocationId) -> &'a Request {
    let found = world
        .queue
        .requests
        .iter()
        .find(|r| r.allocation_id == *allocation);
    found.expect("plans name requests of the queue")
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("scenarios are small")
}
