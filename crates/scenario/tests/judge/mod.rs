//! An independent, slow judge of plans. It shares no code with the scheduler: it counts slots one by one, tries sums of
//! places by brute force, and follows the rules literally.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several test binaries, each of which uses its own part; exported by none"
)]

pub mod fit;
mod reasons;
pub mod shares;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, PlaceId, PriorityOrder, SlotId};
use det_scheduler::{
    PlaceState, Plan, Policy, PreemptReason, Progress, Request, RunningAllocation, SlotState,
    WaitReason, plan,
};

pub use fit::State;
use fit::used_slots;

/// Panics unless `plan` is sound for `before` and all its reasons are true.
pub fn check(before: &State, plan: &Plan) {
    let (before, plan) = &without_pauses(before, plan);
    placements(before, plan);
    preemptions(before, plan);
    hand_overs(before, plan);
    every_request_is_answered(before, plan);
    let after = before.after(plan);
    caps(before, &after);
    match before.pool.settings.policy {
        Policy::Priority { preemption, .. } => {
            less_important_work_does_not_overtake(before, plan, preemption);
            if preemption {
                less_important_work_is_preempted(before, &after, plan);
            }
        }
        Policy::FairShare => shares::check(before, &after, plan),
        Policy::RoundRobin => turns::check(before, plan),
    }
    every_victim_is_needed(before, &after, plan);
    for (allocation, reason) in &plan.waiting {
        let request = before.find(allocation);
        assert!(
            reasons::is_true(before, &after, plan, request, reason),
            "untrue: {allocation} waits because {reason:?}\n{plan:#?}\n{:#?}",
            before.pool
        );
        let sentence = reason.to_string();
        assert!(
            sentence.len() > 20 && !sentence.ends_with('.'),
            "{sentence}"
        );
    }
}

/// The same without requests that may not start yet: they claim nothing, so that all rules hold as if they were not there.
/// Panics unless each of them waits for its time.
fn without_pauses(before: &State, plan: &Plan) -> (State, Plan) {
    let (mut state, mut rest) = (before.clone(), plan.clone());
    let is_paused = |request: &Request| request.not_before.is_some_and(|at| at > before.now);
    for request in before.queue.requests.iter().filter(|it| is_paused(it)) {
        let id = &request.allocation_id;
        let mut waiting = plan.waiting.iter().filter(|(waits, _)| waits == id);
        let reason = waiting.next().map(|(_, reason)| reason);
        let is_so = |reason| reasons::is_true(before, before, plan, request, reason);
        assert!(
            matches!(reason, Some(WaitReason::PausedAfterFailures { .. }))
                && reason.is_some_and(is_so),
            "{id} is paused, and {reason:?}"
        );
        rest.waiting.retain(|(waits, _)| waits != id);
    }
    state.queue.requests.retain(|request| !is_paused(request));
    (state, rest)
}

/// Deciding again on a state that a plan was just applied to must change nothing.
pub fn check_final(after: &State) {
    let again = plan(&after.pool, &after.queue, after.now);
    assert!(
        again.placements.is_empty() && again.preempt.is_empty() && again.hand_over.is_empty(),
        "deciding again on its own result does more: {again:#?}\n{:#?}\n{:#?}",
        after.pool,
        after.queue
    );
    check(after, &again);
}

fn placements(before: &State, plan: &Plan) {
    let mut initial_steps: BTreeSet<(PlaceId, SlotId)> = BTreeSet::new();
    let mut aux: BTreeMap<PlaceId, u32> = BTreeMap::new();
    for placement in &plan.placements {
        let request = before.find(&placement.allocation_id);
        let total: usize = placement.parts.iter().map(|(_, slots)| slots.len()).sum();
        assert_eq!(total, request.slots as usize, "a gang is placed whole");
        let places: BTreeSet<_> = placement.parts.iter().map(|(place, _)| place).collect();
        assert_eq!(places.len(), placement.parts.len(), "one part per agent");
        if request.single_place || request.slots == 0 {
            assert_eq!(placement.parts.len(), 1);
        }
        let in_part = before.places_in_part(request);
        if let Some(most) = in_part {
            assert_eq!(placement.parts.len(), most, "as few agents as can hold it");
        }
        for (place_id, slots) in &placement.parts {
            let place = before.place(place_id);
            assert_eq!(place.state, PlaceState::Enabled);
            assert!(!request.excluded_places.contains(place_id));
            if request.slots == 0 {
                let used = aux.entry(place_id.clone()).or_insert(place.aux_used);
                *used += 1;
                assert!(*used <= place.aux_limit, "aux limit of {place_id}");
            }
            if placement.parts.len() > 1 && in_part.is_none() {
                let offered = place
                    .slots
                    .iter()
                    .filter(|slot| slot.state == SlotState::Free);
                assert_eq!(offered.count(), slots.len(), "a gang takes whole agents");
                assert_eq!(used_slots(place), 0, "a gang takes unused agents");
            }
            for slot_id in slots {
                let slot = place.slots.iter().find(|slot| slot.id == *slot_id);
                assert_eq!(slot.map(|slot| &slot.state), Some(&SlotState::Free));
                assert!(
                    initial_steps.insert((place_id.clone(), *slot_id)),
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

fn preemptions(before: &State, plan: &Plan) {
    let policy = before.pool.settings.policy;
    let by_priority = matches!(
        policy,
        Policy::Priority {
            preemption: true,
            ..
        }
    );
    let mut stopped = BTreeSet::new();
    for stop in &plan.preempt {
        assert!(stopped.insert(&stop.allocation_id), "asked twice");
        let victim = before.running(&stop.allocation_id).expect("a victim runs");
        assert!(victim.request.preemptible);
        assert_eq!(
            victim.progress,
            Progress::Active,
            "a stopping one is not asked again"
        );
        let own = before.job(&victim.request);
        match (&stop.reason, &stop.for_allocation) {
            (PreemptReason::OverJobCap { max_slots, in_use }, None) => {
                assert_eq!(own.max_slots, Some(*max_slots));
                assert!(in_use > max_slots);
            }
            (
                PreemptReason::HigherPriority {
                    priority,
                    own_priority,
                    order,
                },
                Some(winner),
            ) => {
                assert!(by_priority);
                let winner = before.find(winner);
                assert_eq!(*order, before.pool.settings.priority_order);
                assert!(
                    rank(before, winner) < rank(before, &victim.request),
                    "only less important work stops"
                );
                assert_eq!(before.job(winner).priority, *priority);
                assert_eq!(own.priority, *own_priority);
            }
            (PreemptReason::MovedAhead, Some(winner)) => {
                assert!(by_priority);
                let winner = before.job(before.find(winner));
                assert_eq!(winner.priority, own.priority);
                assert!(winner.moved || own.moved);
            }
            (PreemptReason::OverFairShare { .. }, Some(_)) => {
                assert_eq!(policy, Policy::FairShare);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Work that starts although a more important request of the same kind waits for slots must be preemptible, and must
/// not start at all while slots are being freed.
fn less_important_work_does_not_overtake(before: &State, plan: &Plan, preemption: bool) {
    for placement in &plan.placements {
        let started = before.find(&placement.allocation_id);
        for (allocation, reason) in &plan.waiting {
            let waits = before.find(allocation);
            let freeing = matches!(reason, WaitReason::WaitingForPreemption { .. });
            let blocked = freeing
                || matches!(
                    reason,
                    WaitReason::NotEnoughFreeSlots { .. } | WaitReason::ReservedFor { .. }
                );
            let own = before.job(waits);
            if own.workspace == before.job(started).workspace
                && rank(before, waits) < rank(before, started)
                && started.slots > 0
                && (blocked || matches!(reason, WaitReason::OverWorkspaceLimit { .. }))
                && let Some((most, used)) = before.after(plan).workspace_of(waits)
            {
                assert!(
                    waits.slots > most || used + waits.slots <= most,
                    "{} takes what {allocation} waits for of its workspace: {plan:#?}",
                    placement.allocation_id
                );
            }
            let same_kind = (waits.slots == 0) == (started.slots == 0);
            if blocked && same_kind && rank(before, waits) < rank(before, started) {
                assert!(
                    preemption && started.preemptible && !freeing,
                    "{} overtakes {allocation}: {plan:#?}",
                    placement.allocation_id
                );
            }
        }
    }
}

/// If no slots are kept for a request, the first request that waits for slots waits only if preempting less important
/// work would not help.
fn less_important_work_is_preempted(before: &State, after: &State, plan: &Plan) {
    let keeps = |reason: &WaitReason| {
        matches!(
            reason,
            WaitReason::WaitingForPreemption { .. } | WaitReason::ReservedFor { .. }
        )
    };
    if !plan.reservations.is_empty() || plan.waiting.iter().any(|(_, reason)| keeps(reason)) {
        return;
    }
    for (allocation, reason) in &plan.waiting {
        let request = before.find(allocation);
        if !matches!(
            reason,
            WaitReason::NotEnoughFreeSlots { .. } | WaitReason::AuxFull { .. }
        ) {
            continue;
        }
        let own = rank(before, request);
        let kind = |other: &Request| (other.slots == 0) == (request.slots == 0);
        // The slots of work that stops for a more important request are for that one.
        let leaves = |running: &RunningAllocation| match &running.progress {
            Progress::Active => false,
            Progress::Stopping => true,
            Progress::PreemptedFor(owner) => !plan.waiting.iter().any(|(waits, _)| {
                waits == owner && order(before, before.find(owner)) < order(before, request)
            }),
        };
        let gives_way = |running: &RunningAllocation| {
            kind(&running.request)
                && (leaves(running)
                    || (running.request.preemptible && rank(before, &running.request) > own))
        };
        assert!(
            !after.without(gives_way).fits(request),
            "less important work could be preempted for {allocation}: {plan:#?} {:#?}",
            before.pool
        );
    }
}

/// If work is stopped for one request alone, and nothing else was stopping, all of it had to stop.
fn every_victim_is_needed(before: &State, after: &State, plan: &Plan) {
    let still = |running: &RunningAllocation| running.progress == Progress::Active;
    let winners: BTreeSet<_> = plan.preempt.iter().map(|s| &s.for_allocation).collect();
    let [Some(winner)] = winners.iter().copied().collect::<Vec<_>>()[..] else {
        return;
    };
    // What is reserved for others may have been in the way.
    if !before.pool.running.iter().all(still) || !plan.reservations.is_empty() {
        return;
    }
    let request = before.find(winner);
    let remaining = after.without(|running| !still(running));
    assert!(remaining.fits(request), "{winner} would fit: {plan:#?}");
    for stop in &plan.preempt {
        let kept = after.without(|running| {
            !still(running) && running.request.allocation_id != stop.allocation_id
        });
        // A later one of the class may have started beside it, or have been booked.
        assert!(
            !kept.fits(request),
            "{} need not have been stopped: {plan:#?}",
            stop.allocation_id
        );
    }
}

fn hand_overs(before: &State, plan: &Plan) {
    for tie in &plan.hand_over {
        let owner =
            before
                .running(&tie.allocation_id)
                .and_then(|running| match &running.progress {
                    Progress::PreemptedFor(owner) => Some(before.find(owner)),
                    Progress::Active | Progress::Stopping => None,
                });
        let owner = owner.expect("only slots that are kept for a waiting request are handed over");
        let taker = before.find(&tie.for_allocation);
        assert!(
            order(before, taker) < order(before, owner),
            "only to a more important one"
        );
    }
}

fn caps(before: &State, after: &State) {
    for (id, job) in &before.queue.jobs {
        let (used_before, used_after) = (before.in_use(id.as_str()), after.in_use(id.as_str()));
        if let Some(cap) = job.max_slots
            && used_after > used_before
        {
            assert!(used_after <= cap, "{id} uses {used_after} of {cap}");
        }
    }
    for request in &before.queue.requests {
        if let (Some((_, before)), Some((most, after))) =
            (before.workspace_of(request), after.workspace_of(request))
            && after > before
        {
            assert!(after <= most, "the workspace uses {after} of {most}");
        }
    }
}

fn every_request_is_answered(before: &State, plan: &Plan) {
    let asked: Vec<_> = sorted(before.queue.requests.iter().map(|r| &r.allocation_id));
    let placed = plan.placements.iter().map(|p| &p.allocation_id);
    let answered = sorted(placed.chain(plan.waiting.iter().map(|(allocation, _)| allocation)));
    assert_eq!(asked, answered, "each request starts or has one reason");
}

fn sorted<'a>(ids: impl Iterator<Item = &'a AllocationId>) -> Vec<&'a AllocationId> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort();
    ids
}

/// The lower one is more important.
fn rank(state: &State, request: &Request) -> i16 {
    let priority = i16::from(state.job(request).priority);
    match state.pool.settings.priority_order {
        PriorityOrder::LowerFirst => priority,
        PriorityOrder::HigherFirst => 100 - priority,
    }
}

/// What requests are sorted by under the priority rule.
fn order<'a>(state: &State, request: &'a Request) -> (i16, i64, i64, i64, &'a str) {
    let job = state.job(request);
    (
        rank(state, request),
        job.position.unwrap_or(job.submitted_at.0),
        job.submitted_at.0,
        request.requested_at.0,
        request.allocation_id.as_str(),
    )
}

/// The same state with everything in another order.
pub fn shuffled(state: &State) -> State {
    let mut other = state.clone();
    other.pool.places.reverse();
    other.pool.running.reverse();
    other.queue.requests.reverse();
    let middle = other.queue.requests.len() / 3;
    other.queue.requests.rotate_left(middle);
    for place in &mut other.pool.places {
        place.slots.reverse();
    }
    other
}

/// Plans that differ from a good one by one thing that no rule allows.
pub fn broken(state: &State, good: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mut change = |change: Damage<'_>| {
        let mut plan = good.clone();
        if change(&mut plan) {
            found.push(plan);
        }
    };
    break_placements(state, &mut change);
    break_reasons(state, &mut change);
    break_preemptions(state, &mut change);
    found
}

/// Makes a plan a wrong one; `false` = this plan has nothing of the kind.
type Damage<'a> = &'a dyn Fn(&mut Plan) -> bool;

fn break_placements(state: &State, change: &mut dyn FnMut(Damage<'_>)) {
    // A slot that is in use.
    change(&|plan| {
        let taken = state.pool.places.iter().find_map(|place| {
            let slot = place
                .slots
                .iter()
                .find(|slot| matches!(slot.state, SlotState::Held(_)))?;
            Some((place.id.clone(), vec![slot.id]))
        });
        let part = plan
            .placements
            .iter_mut()
            .find(|p| p.parts.len() == 1 && p.parts[0].1.len() == 1)
            .map(|placement| &mut placement.parts[0]);
        match (part, taken) {
            (Some(part), Some(taken)) => {
                *part = taken;
                true
            }
            _ => false,
        }
    });
    // A part of a gang.
    change(&|plan| {
        let gang = plan.placements.iter_mut().find(|p| p.parts.len() > 1);
        gang.is_some_and(|gang| gang.parts.pop().is_some())
    });
}

fn break_reasons(state: &State, change: &mut dyn FnMut(Damage<'_>)) {
    // A request without an answer.
    change(&|plan| plan.waiting.pop().is_some());
    // A request that could start, with the reason that there are not enough free slots.
    change(&|plan| {
        let Some(last) = plan.placements.pop() else {
            return false;
        };
        let request = state.find(&last.allocation_id);
        if request.slots == 0 {
            return false;
        }
        plan.waiting.push((
            last.allocation_id.clone(),
            WaitReason::NotEnoughFreeSlots {
                needed: request.slots,
                single_place: request.single_place,
                free_total: 0,
                largest_free_on_one_place: 0,
                held_by: det_scheduler::Holders::new(Vec::new(), 0),
            },
        ));
        true
    });
    // Wrong numbers.
    change(&|plan| {
        plan.waiting.iter_mut().any(|(_, reason)| match reason {
            WaitReason::OverFairShare { share, .. } => {
                *share += 1;
                true
            }
            WaitReason::NotEnoughFreeSlots { free_total, .. } => {
                *free_total += 1;
                true
            }
            WaitReason::OverJobCap { in_use, .. } => {
                *in_use += 1;
                true
            }
            _ => false,
        })
    });
}

fn break_preemptions(state: &State, change: &mut dyn FnMut(Damage<'_>)) {
    // Work that does not have to stop.
    change(&|plan| {
        let spared = state.pool.running.iter().find(|running| {
            running.progress == Progress::Active
                && !plan
                    .preempt
                    .iter()
                    .any(|stop| stop.allocation_id == running.request.allocation_id)
        });
        let (Some(spared), Some(stop)) = (spared, plan.preempt.first().cloned()) else {
            return false;
        };
        let id = spared.request.allocation_id.clone();
        plan.preempt.push(det_scheduler::Preemption {
            allocation_id: id,
            ..stop
        });
        // It may be as good a victim as the others; together they are too many.
        plan.reservations.is_empty()
            && state
                .pool
                .running
                .iter()
                .all(|running| running.progress == Progress::Active)
            && plan
                .preempt
                .iter()
                .all(|other| other.for_allocation == plan.preempt[0].for_allocation)
    });
}
