//! Properties of plans over random histories, judged by `common::judge`, which shares no code with the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

mod common;

use common::{Traits, World, judge, notebook, pool, prio};
use det_ids::{AllocationId, JobId, Micros, PriorityOrder};
use det_scheduler::{
    Misfits, Pass, PlaceState, Plan, Planner, Policy, Progress, SlotState, WaitKind, WaitReason,
};
use proptest::prelude::*;

/// A minute in microseconds.
const MINUTE: i64 = 60_000_000;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Event {
    Submit {
        slots: u32,
        priority: u8,
        job: u8,
        kind: Kind,
        excluded: Option<u8>,
        /// Minutes before which it does not start.
        pause: Option<u8>,
    },
    /// The n-th running allocation ends; one that was asked to stop waits again.
    End(u8),
    /// The n-th waiting request is withdrawn.
    Withdraw(u8),
    Priority {
        job: u8,
        priority: u8,
    },
    Cap {
        job: u8,
        cap: Option<u32>,
    },
    Weight {
        job: u8,
        halves: u8,
    },
    Move {
        job: u8,
        position: i8,
    },
    Place {
        place: u8,
        state: PlaceState,
    },
    Slot {
        place: u8,
        slot: u8,
    },
    /// The n-th running allocation is stopped by a user.
    Pause(u8),
    Minutes(u8),
    Plan,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Trial,
    SingleTrial,
    Notebook,
}

#[derive(Debug, Clone)]
struct Start {
    sizes: Vec<u32>,
    aux: u32,
    rule: Rule,
    worst: bool,
    uneven: bool,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    Priority,
    Preemption,
    FairShare,
    RoundRobin,
}

fn starts() -> impl Strategy<Value = Start> {
    let size = prop_oneof![Just(1), Just(2), Just(3), Just(4), Just(4), Just(8)];
    (
        prop::collection::vec(size, 0..6),
        0_u32..3,
        prop_oneof![
            1 => Just(Rule::Priority),
            3 => Just(Rule::Preemption),
            3 => Just(Rule::FairShare),
            1 => Just(Rule::RoundRobin),
        ],
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(sizes, aux, rule, worst, uneven)| Start {
            sizes,
            aux,
            rule,
            worst,
            uneven,
        })
}

fn events() -> impl Strategy<Value = Event> {
    let slots =
        prop_oneof![3 => 0_u32..5, 2 => prop_oneof![Just(6_u32), Just(8), Just(12), Just(16)]];
    let priority = prop_oneof![Just(10_u8), Just(42), Just(42), Just(42), Just(90)];
    let kind = prop_oneof![3 => Just(Kind::Trial), 1 => Just(Kind::SingleTrial), 1 => Just(Kind::Notebook)];
    let state = prop_oneof![
        4 => Just(PlaceState::Enabled),
        1 => Just(PlaceState::Draining),
        1 => Just(PlaceState::Disabled),
        1 => Just(PlaceState::Disconnected),
    ];
    let job = 0_u8..6;
    prop_oneof![
        12 => (
            slots, priority.clone(), job.clone(), kind,
            prop::option::weighted(0.15, 0_u8..6), prop::option::weighted(0.2, 0_u8..10),
        )
            .prop_map(|(slots, priority, job, kind, excluded, pause)| Event::Submit {
                slots, priority, job, kind, excluded, pause
            }),
        8 => any::<u8>().prop_map(Event::End),
        1 => any::<u8>().prop_map(Event::Withdraw),
        1 => (job.clone(), priority).prop_map(|(job, priority)| Event::Priority { job, priority }),
        1 => (job.clone(), prop::option::of(0_u32..9)).prop_map(|(job, cap)| Event::Cap { job, cap }),
        1 => (job.clone(), 1_u8..7).prop_map(|(job, halves)| Event::Weight { job, halves }),
        1 => (job, any::<i8>()).prop_map(|(job, position)| Event::Move { job, position }),
        1 => (any::<u8>(), state).prop_map(|(place, state)| Event::Place { place, state }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(place, slot)| Event::Slot { place, slot }),
        1 => any::<u8>().prop_map(Event::Pause),
        2 => (0_u8..8).prop_map(Event::Minutes),
        10 => Just(Event::Plan),
    ]
}

fn build(start: &Start) -> World {
    let mut world = pool();
    for (number, size) in start.sizes.iter().enumerate() {
        world = world.place_in(&format!("a{number}"), *size, start.aux, PlaceState::Enabled);
    }
    world = match start.rule {
        Rule::Priority => world,
        Rule::Preemption => world.preemption(),
        Rule::FairShare => world.fair_share(),
        Rule::RoundRobin => world.round_robin(),
    };
    if start.worst {
        world = world.worst_fit();
    }
    if start.uneven {
        world = world.uneven();
    }
    world
}

#[expect(clippy::too_many_lines, reason = "one match over the events")]
fn happen(mut world: World, number: usize, event: &Event) -> World {
    let job_name = |job: u8| format!("job{job}");
    match event {
        Event::Submit {
            slots,
            priority,
            job,
            kind,
            excluded,
            pause,
        } => {
            let mut traits: Traits = match kind {
                Kind::Trial => prio(*priority),
                Kind::SingleTrial => prio(*priority).single(),
                Kind::Notebook => notebook(*priority),
            };
            if let Some(place) = excluded {
                traits = traits.not_on(&format!("a{place}"));
            }
            world = world.queued(&format!("t{number}"), *slots, &traits.job(&job_name(*job)));
            let until = pause.map(|minutes| Micros(world.now.0 + i64::from(minutes) * MINUTE));
            if let Some(request) = world.queue.requests.last_mut() {
                request.not_before = until;
            }
        }
        Event::End(nth) => {
            if let Some(at) = pick(world.pool.running.len(), *nth) {
                let ended = world.pool.running[at].clone();
                let id = ended.request.allocation_id.0.clone();
                let mut request = world.ends(&id);
                if ended.progress != Progress::Active {
                    request.allocation_id = format!("{id}+").into();
                    request.requested_at = world.now;
                    world.queue.requests.push(request);
                }
            }
        }
        Event::Withdraw(nth) => {
            if let Some(at) = pick(world.queue.requests.len(), *nth) {
                world.queue.requests.remove(at);
            }
        }
        Event::Priority { job, priority } => {
            if let Some(job) = world.queue.jobs.get_mut(&job_name(*job).into()) {
                job.priority = *priority;
                job.position = None;
                job.moved = false;
            }
        }
        Event::Cap { job, cap } => {
            if let Some(job) = world.queue.jobs.get_mut(&job_name(*job).into()) {
                job.max_slots = *cap;
            }
        }
        Event::Weight { job, halves } => {
            if let Some(job) = world.queue.jobs.get_mut(&job_name(*job).into()) {
                job.weight = f64::from(*halves) / 2.0;
            }
        }
        Event::Move { job, position } => {
            let now = world.now.0;
            if let Some(job) = world.queue.jobs.get_mut(&job_name(*job).into()) {
                job.position = Some(now + i64::from(*position) * 1_000_000);
                job.moved = true;
            }
        }
        Event::Place { place, state } => {
            if let Some(at) = pick(world.pool.places.len(), *place) {
                world.pool.places[at].state = *state;
            }
        }
        Event::Slot { place, slot } => {
            if let Some(at) = pick(world.pool.places.len(), *place) {
                let slots = &mut world.pool.places[at].slots;
                if let Some(at) = pick(slots.len(), *slot) {
                    slots[at].state = match slots[at].state.clone() {
                        SlotState::Free => SlotState::Disabled(None),
                        SlotState::Held(holder) => SlotState::Draining(Some(holder)),
                        // Others may take what is not in service, and give it back.
                        SlotState::Disabled(None) => SlotState::Foreign,
                        SlotState::Draining(None) | SlotState::Foreign => SlotState::Free,
                        SlotState::Draining(Some(holder)) | SlotState::Disabled(Some(holder)) => {
                            SlotState::Held(holder)
                        }
                    };
                }
            }
        }
        Event::Pause(nth) => {
            if let Some(at) = pick(world.pool.running.len(), *nth) {
                let running = &mut world.pool.running[at];
                if running.progress == Progress::Active {
                    running.progress = Progress::Stopping;
                }
            }
        }
        Event::Minutes(minutes) => world.now.0 += i64::from(*minutes) * MINUTE,
        Event::Plan => {
            world.step();
        }
    }
    world
}

fn pick(len: usize, nth: u8) -> Option<usize> {
    (len > 0).then(|| usize::from(nth) % len.max(1))
}

/// The same world where the higher number goes first, with numbers that make the same work as important.
fn mirrored(world: &World) -> World {
    let mut other = world.clone();
    other.pool.settings.priority_order = PriorityOrder::HigherFirst;
    if let Policy::Priority {
        default_priority, ..
    } = &mut other.pool.settings.policy
    {
        *default_priority = 100 - *default_priority;
    }
    for job in other.queue.jobs.values_mut() {
        job.priority = 100 - job.priority;
    }
    other
}

/// What a plan does, and the kinds of its reasons: all but numbers of priorities.
fn without_priorities(plan: &Plan) -> impl PartialEq + std::fmt::Debug {
    let preempt = plan.preempt.iter();
    let waiting = plan.waiting.iter();
    (
        plan.placements.clone(),
        preempt
            .map(|stop| (stop.allocation_id.clone(), stop.for_allocation.clone()))
            .collect::<Vec<_>>(),
        plan.hand_over.clone(),
        waiting
            .map(|(id, reason)| (id.clone(), reason.kind()))
            .collect::<Vec<_>>(),
        plan.reservations.clone(),
    )
}

/// The same world with everything handed in in another order.
fn shuffled(world: &World, by: usize) -> World {
    let mut other = world.clone();
    let rotate = |len: usize| if len == 0 { 0 } else { by % len };
    other.pool.places.reverse();
    let middle = rotate(other.pool.running.len());
    other.pool.running.rotate_left(middle);
    other.queue.requests.reverse();
    let middle = rotate(other.queue.requests.len());
    other.queue.requests.rotate_left(middle);
    for place in &mut other.pool.places {
        place.slots.reverse();
    }
    other
}

/// Updates a planner with the differences.
fn update(planner: &mut Planner, before: &World, after: &World) {
    if before.pool.settings != after.pool.settings {
        planner.set_settings(after.pool.settings.clone());
    }
    for (id, job) in &after.queue.jobs {
        if before.queue.jobs.get(id) != Some(job) {
            planner.put_job(id, job.clone());
        }
    }
    for place in &before.pool.places {
        if after.pool.places.iter().all(|other| other.id != place.id) {
            planner.remove_place(&place.id);
        }
    }
    for place in &after.pool.places {
        if !before.pool.places.contains(place) {
            planner.put_place(place.clone());
        }
    }
    let live = |world: &World| -> Vec<AllocationId> {
        let requests = world.queue.requests.iter();
        let running = world.pool.running.iter().map(|running| &running.request);
        let all = requests.chain(running);
        all.map(|request| request.allocation_id.clone()).collect()
    };
    let still = live(after);
    for id in live(before) {
        if !still.contains(&id) {
            planner.remove(&id);
        }
    }
    for request in &after.queue.requests {
        if !before.queue.requests.contains(request) {
            planner.put_request(request.clone());
        }
    }
    for running in &after.pool.running {
        if !before.pool.running.contains(running) {
            planner.put_running(running.clone());
        }
    }
    for id in before.queue.jobs.keys() {
        if !after.queue.jobs.contains_key(id) {
            planner.remove_job(id);
        }
    }
}

/// What a caller knows of the reasons after a pass, which must be what a plan contains.
fn compare(
    known: &mut BTreeMap<AllocationId, Arc<WaitReason>>,
    pass: Pass,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&pass.placements, &plan.placements);
    prop_assert_eq!(&pass.preempt, &plan.preempt);
    prop_assert_eq!(&pass.hand_over, &plan.hand_over);
    for (id, reason) in pass.waiting {
        let before = known.insert(id, Arc::clone(&reason));
        prop_assert_ne!(
            before,
            Some(reason),
            "a reason is reported again without a change"
        );
    }
    let mut behind = 0;
    for (id, reason) in &plan.waiting {
        let known = known.get(id).map(|known| &**known);
        prop_assert_eq!(
            known.map(WaitReason::kind),
            Some(reason.kind()),
            "{} is known",
            id
        );
        behind += usize::from(known != Some(reason));
    }
    prop_assert!(
        behind <= pass.outdated,
        "{behind} are out of date, reported {}",
        pass.outdated
    );
    Ok(())
}

/// A request that is only asked about gets the answer that it would get if it were made, and leaves no trace.
fn probe(planner: &mut Planner, world: &World, number: usize) -> Result<(), TestCaseError> {
    let running = world.pool.running.iter().map(|running| &running.request);
    let like = world.queue.requests.iter().chain(running).nth(number % 7);
    let Some(like) = like else {
        return Ok(());
    };
    let job = world.queue.jobs[&like.job_id].clone();
    let mut request = like.clone();
    request.allocation_id = AllocationId::from("probe.1");
    request.requested_at = world.now;
    if number.is_multiple_of(2) {
        request.job_id = JobId::from("probe");
    }
    let mut asked = world.clone();
    let jobs = &mut asked.queue.jobs;
    jobs.entry(request.job_id.clone()).or_insert(job.clone());
    asked.queue.requests.push(request.clone());
    let plan = asked.decide();
    let mut waiting = plan.waiting.into_iter();
    let waits = waiting.find(|(id, _)| *id == request.allocation_id);
    prop_assert_eq!(
        planner.wait_reason_if_added(request, job, world.now),
        waits.map(|(_, reason)| reason)
    );
    prop_assert_eq!(planner.plan(world.now), world.decide());
    Ok(())
}

proptest! {
    /// A planner that is updated with every change decides what a plan of everything decides, and reports every reason.
    #[test]
    fn a_planner_updated_with_changes_decides_as_one_of_everything(
        start in starts(),
        history in prop::collection::vec(events(), 1..80),
        refreshed in prop_oneof![Just(usize::MAX), 0_usize..4],
        places in prop::collection::btree_set((0_usize..80, any::<u8>(), any::<bool>()), 0..4),
    ) {
        let mut world = build(&start);
        let mut planner = Planner::of(&world.pool, &world.queue);
        let mut known = BTreeMap::new();
        for (number, event) in history.iter().enumerate() {
            let before = world.clone();
            world = happen(world, number, event);
            for (_, which, joins) in places.iter().filter(|(when, ..)| *when == number) {
                if *joins {
                    world = world.place_in(&format!("b{number}-{which}"), 4, 2, PlaceState::Enabled);
                } else if let Some(at) = pick(world.pool.places.len(), *which) {
                    let id = &world.pool.places[at].id;
                    let mut placements = world.pool.running.iter().flat_map(|r| &r.placement);
                    if placements.all(|(place, _)| place != id) {
                        world.pool.places.remove(at);
                    }
                }
            }
            // Several changes may come together.
            update(&mut planner, &before, &world);
            if number % 3 == 0 {
                continue;
            }
            let plan = world.decide();
            prop_assert_eq!(&planner.plan(world.now), &plan);
            compare(&mut known, planner.pass(world.now, refreshed), &plan)?;
            let requests = &world.queue.requests;
            known.retain(|id, _| requests.iter().any(|request| request.allocation_id == *id));
            probe(&mut planner, &world, number)?;
        }
    }

    /// No slot twice, no gang split, nothing more important stopped for less, caps kept, every waiting request answered
    /// with a reason that is true, and deciding again on the result does nothing.
    #[test]
    fn every_plan_of_a_history_is_sound_true_and_final(
        start in starts(),
        history in prop::collection::vec(events(), 1..60),
    ) {
        let mut world = build(&start);
        for (number, event) in history.iter().enumerate() {
            world = happen(world, number, event);
            if matches!(event, Event::Plan) {
                judge::check_final(&world.state());
            }
        }
    }

    /// The order in which places, allocations and requests are handed in does not matter.
    #[test]
    fn the_same_input_gives_the_same_plan(
        start in starts(),
        history in prop::collection::vec(events(), 1..40),
        by in 0_usize..100,
    ) {
        let mut world = build(&start);
        for (number, event) in history.iter().enumerate() {
            world = happen(world, number, event);
        }
        prop_assert_eq!(world.decide(), world.decide());
        prop_assert_eq!(world.decide(), shuffled(&world, by).decide());
    }

    /// A place that a request does not fit is used as little as one that it excludes.
    #[test]
    fn places_that_do_not_fit_are_left_out_like_excluded_ones(
        start in starts(),
        history in prop::collection::vec(events(), 1..40),
    ) {
        let mut world = build(&start);
        for (number, event) in history.iter().enumerate() {
            world = happen(world, number, event);
        }
        let excluding = world.decide();
        for request in &mut world.queue.requests {
            let places = std::mem::take(&mut request.excluded_places);
            let lacking = |place| (place, (true, "it lacks something".to_owned()));
            request.misfits = Some(Misfits::of(places.into_iter().map(lacking)).into());
        }
        let misfitting = world.decide();
        prop_assert_eq!(&misfitting.placements, &excluding.placements);
        prop_assert_eq!(&misfitting.preempt, &excluding.preempt);
        prop_assert_eq!(misfitting.waiting.len(), excluding.waiting.len());
    }

    /// The direction of priority decides nothing but which of two numbers is more important.
    #[test]
    fn either_direction_of_priority_gives_the_same_plan(
        start in starts(),
        history in prop::collection::vec(events(), 1..40),
    ) {
        let mut world = build(&start);
        for (number, event) in history.iter().enumerate() {
            world = happen(world, number, event);
        }
        let (lower, higher) = (world.decide(), mirrored(&world).decide());
        prop_assert_eq!(without_priorities(&lower), without_priorities(&higher));
    }

    /// When everything that runs ends, again and again, everything that can run does run.
    #[test]
    fn no_request_waits_for_ever(
        start in starts(),
        history in prop::collection::vec(events(), 1..40),
    ) {
        let mut world = build(&start);
        for (number, event) in history.iter().enumerate() {
            world = happen(world, number, event);
        }
        // All pauses are over.
        world.now.0 += 10 * MINUTE;
        for _ in 0..history.len() * 4 + 8 {
            world.step();
            let running: Vec<(String, bool)> = world
                .pool
                .running
                .iter()
                .map(|r| (r.request.allocation_id.0.clone(), r.progress == Progress::Active))
                .collect();
            for (id, finished) in running {
                let request = world.ends(&id);
                if !finished {
                    world.queue.requests.push(request);
                }
            }
        }
        let plan = world.decide();
        for (allocation, reason) in &plan.waiting {
            prop_assert!(
                reason.is_permanent()
                    || matches!(reason.kind(), WaitKind::PlacesUnavailable | WaitKind::BehindHigherPriority),
                "{} still waits: {:?}", allocation, reason
            );
        }
        let stuck = plan.waiting.iter().any(|(_, reason)| reason.kind() == WaitKind::PlacesUnavailable);
        prop_assert!(
            stuck || plan.waiting.iter().all(|(_, r)| r.kind() != WaitKind::BehindHigherPriority)
        );
    }
}
