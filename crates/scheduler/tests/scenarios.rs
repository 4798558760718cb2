//! Named scenarios: the pool in one line, what must happen in the next.

mod common;

use common::{World, notebook, pool, preempt, prio, start, wait};
use det_ids::{AllocationId, PlaceId, PriorityOrder};
use det_scheduler::{
    BlockingCause, PlaceState, PreemptReason, Progress, Provisionable, WaitKind, WaitReason,
    can_ever_fit, plan,
};

/// Sizes of the parts a request was placed in, largest first.
fn parts_of(world: &World, task: &str) -> Vec<usize> {
    let plan = world.decide();
    common::judge::check(&world.state(), &plan);
    let placed = plan
        .placements
        .iter()
        .find(|p| p.allocation_id.as_str() == task);
    let mut sizes: Vec<usize> = placed
        .map(|p| p.parts.iter().map(|(_, slots)| slots.len()).collect())
        .unwrap_or_default();
    sizes.sort_unstable();
    sizes.reverse();
    sizes
}

fn place_of(world: &World, task: &str) -> String {
    let plan = world.decide();
    let placed = plan
        .placements
        .iter()
        .find(|p| p.allocation_id.as_str() == task);
    placed.expect("it starts").parts[0].0.0.clone()
}

#[test]
fn a_request_is_divided_over_places_as_documented() {
    type Case = (&'static str, u32, &'static [u32], bool, &'static [usize]);
    let cases: &[Case] = &[
        ("the nine holds it alone", 6, &[2, 3, 9], false, &[6]),
        ("two sixes", 12, &[6, 6, 4, 4, 4], false, &[6, 6]),
        (
            "12 is no multiple of 8, two fours are 8",
            12,
            &[8, 8, 4, 4],
            false,
            &[],
        ),
        (
            "8+4 when uneven fits are allowed",
            12,
            &[8, 8, 4, 4],
            true,
            &[8, 4],
        ),
        ("8, none of the 6, then 4", 12, &[8, 6, 4], true, &[8, 4]),
        (
            "equal agents are preferred to uneven ones",
            16,
            &[12, 8, 8, 4],
            true,
            &[8, 8],
        ),
        ("sixteen on two eights", 16, &[8, 8, 8], false, &[8, 8]),
    ];
    for (name, slots, places, uneven, expected) in cases {
        let mut world = pool().places(places).queued("t", *slots, &prio(42));
        if *uneven {
            world = world.uneven();
        }
        assert_eq!(parts_of(&world, "t"), *expected, "{name}");
    }
}

#[test]
fn one_busy_slot_keeps_an_place_out_of_a_gang() {
    let world = pool()
        .places(&[8, 4, 4])
        .running("busy", 1, &prio(42).on("a0"))
        .queued("t", 8, &prio(42));
    assert_eq!(parts_of(&world, "t"), [4, 4]);
}

#[test]
fn auxiliary_containers_do_not_keep_an_place_out_of_a_gang() {
    let world = pool()
        .places(&[4, 4])
        .running("tb", 0, &prio(42).on("a0"))
        .queued("t", 8, &prio(42));
    assert_eq!(parts_of(&world, "t"), [4, 4]);
}

#[test]
fn best_fit_fills_and_worst_fit_spreads() {
    let world = pool()
        .places(&[4, 4])
        .running("busy", 1, &prio(42).on("a0"))
        .queued("t", 1, &prio(42));
    assert_eq!(place_of(&world, "t"), "a0");
    assert_eq!(place_of(&world.worst_fit(), "t"), "a1");
}

#[test]
fn best_fit_puts_zero_slot_work_beside_slot_work() {
    let world = pool()
        .places(&[4, 4, 4])
        .running("busy", 3, &prio(42).on("a1"))
        .queued("tb", 0, &notebook(42));
    assert_eq!(place_of(&world, "tb"), "a1");
}

#[test]
fn row_1_without_preemption_slots_are_kept_free_for_the_more_important() {
    let waits_b = wait("b", "not_enough_free_slots");
    let waits_a = wait("A7", "behind_higher_priority");
    pool()
        .place("a", 6)
        .running_many("A", 6, 1, &prio(30))
        .queued("A7", 1, &prio(30).job("A"))
        .queued("b", 3, &prio(10))
        .expect(&[waits_b.clone(), waits_a.clone()])
        .then(|w| {
            w.ends("A1");
            w.ends("A2");
        })
        .expect(&[waits_b, waits_a])
        .then(|w| {
            w.ends("A3");
        })
        .expect(&[start("b"), wait("A7", "not_enough_free_slots")])
        .then(|w| {
            w.ends("b");
        })
        .expect(&[start("A7")]);
}

#[test]
fn row_2_with_preemption_exactly_enough_is_stopped_newest_first() {
    pool()
        .place("a", 6)
        .preemption()
        .running_many("A", 6, 1, &prio(30))
        .queued("b", 3, &prio(10))
        .expect(&[
            preempt("A4"),
            preempt("A5"),
            preempt("A6"),
            wait("b", "waiting_for_preemption"),
        ])
        .then(|w| {
            w.ends("A6");
            w.ends("A4");
        })
        .expect(&[wait("b", "waiting_for_preemption")])
        .then(|w| {
            w.ends("A5");
        })
        .expect(&[start("b")]);
}

fn row_3(third: &common::Traits) -> World {
    pool()
        .place("a", 6)
        .preemption()
        .running("n", 1, &notebook(60))
        .queued("x", 6, &prio(40))
        .queued("y", 3, third)
}

#[test]
fn row_3_preemptible_work_backfills_behind_a_blocked_one() {
    row_3(&prio(50)).expect(&[wait("x", "not_enough_free_slots"), start("y")]);
}

#[test]
fn row_4_backfill_is_preempted_when_the_blocked_one_can_start() {
    row_3(&prio(50))
        .expect(&[wait("x", "not_enough_free_slots"), start("y")])
        .then(|w| {
            w.ends("n");
        })
        .expect(&[preempt("y"), wait("x", "waiting_for_preemption")])
        .then(World::stopped_ones_come_back)
        .expect(&[start("x"), wait("y", "not_enough_free_slots")])
        .then(|w| {
            w.ends("x");
        })
        .expect(&[start("y")]);
}

#[test]
fn row_5_what_cannot_be_preempted_does_not_backfill() {
    let world = row_3(&notebook(50)).expect(&[
        wait("x", "not_enough_free_slots"),
        wait("y", "behind_higher_priority"),
    ]);
    let plan = world.decide();
    assert_eq!(
        plan.waiting[1].1,
        WaitReason::BehindHigherPriority {
            allocation: AllocationId::from("x"),
            priority: 40,
            order: PriorityOrder::LowerFirst,
            because: BlockingCause::NotPreemptible,
        }
    );
}

#[test]
fn where_the_higher_number_goes_first_it_preempts_and_is_reported_to() {
    let world = pool()
        .place("a", 2)
        .place("b", 2)
        .preemption()
        .higher_first()
        .running("n", 2, &prio(60))
        .running("m", 2, &prio(10))
        .queued("x", 2, &prio(50))
        .queued("y", 2, &prio(20));
    let plan = world.decide();
    let stopped: Vec<_> = plan
        .preempt
        .iter()
        .map(|stop| stop.allocation_id.as_str())
        .collect();
    assert_eq!(stopped, ["m"]);
    assert_eq!(
        plan.preempt[0].reason.to_string(),
        "work of priority 50 needs its slots (its own is 10; higher goes first)"
    );
    let waiting: Vec<_> = plan.waiting.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(waiting, ["x", "y"]);
    let reason = plan.waiting[1].1.to_string();
    assert!(
        reason.starts_with("'x' has priority 50 (higher goes first) and waits"),
        "{reason}"
    );
}

#[test]
fn row_6_only_victims_that_matter_are_stopped() {
    pool()
        .places(&[2, 2])
        .preemption()
        .running("n", 1, &notebook(80).on("a0"))
        .running("l", 1, &prio(70).on("a0"))
        .running("m", 2, &prio(60).on("a1"))
        .queued("h", 2, &prio(5).single())
        .expect(&[preempt("m"), wait("h", "waiting_for_preemption")]);
}

#[test]
fn row_7_equal_priority_is_not_preempted() {
    pool()
        .place("a", 6)
        .preemption()
        .running_many("A", 6, 1, &prio(20))
        .queued("b", 2, &prio(20))
        .expect(&[wait("b", "not_enough_free_slots")]);
}

#[test]
fn row_8_zero_slot_work_does_not_wait_for_slots() {
    pool()
        .place("a", 6)
        .queued("tb", 0, &notebook(90))
        .queued("big", 12, &prio(1))
        .expect(&[start("tb"), wait("big", "pool_too_small")]);
    pool()
        .place("a", 6)
        .running("busy", 6, &prio(50))
        .queued("tb", 0, &notebook(90))
        .queued("big", 6, &prio(1))
        .expect(&[start("tb"), wait("big", "not_enough_free_slots")]);
}

#[test]
fn row_9_a_capped_job_is_passed_over() {
    let world = pool()
        .place("a", 6)
        .queued_many("C", 5, 1, &prio(10).cap(2))
        .queued_many("D", 5, 1, &prio(20))
        .expect(&[
            start("C1"),
            start("C2"),
            wait("C3", "over_job_cap"),
            wait("C4", "over_job_cap"),
            wait("C5", "over_job_cap"),
            start("D1"),
            start("D2"),
            start("D3"),
            start("D4"),
            wait("D5", "not_enough_free_slots"),
        ]);
    assert_eq!((world.count_running("C"), world.count_running("D")), (2, 4));
}

#[test]
fn row_10_the_seven_steps() {
    // 1: a search takes all eight slots.
    let world = pool()
        .place("a", 8)
        .preemption()
        .queued_many("search", 20, 1, &prio(2))
        .expect_running("search", 8)
        // 2: a more important distributed trial takes four of them.
        .queued("dist", 4, &prio(1).job("dist"))
        .then(|w| {
            let plan = w.step();
            assert_eq!(plan.preempt.len(), 4);
            w.stopped_ones_come_back();
        })
        .expect_running("dist", 1);
    assert_eq!(world.count_running("search"), 4);
    // 3: a notebook waits as long as the two need more than seven.
    let mut world = world.queued("notebook", 1, &notebook(3));
    world.step();
    while world.count_running("search") > 0 {
        assert_eq!(
            world.is_running("notebook"),
            world.count_running("search") < 4
        );
        let ended = world
            .pool
            .running
            .iter()
            .find(|running| running.request.job_id.as_str() == "search")
            .map(|running| running.request.allocation_id.0.clone());
        world.ends(&ended.unwrap());
        world.step();
    }
    // 4: the notebook is alone.
    world.ends("dist");
    world.step();
    assert_eq!(world.pool.running.len(), 1);
    world
        // 5 and 6: eight slots are not free, and a notebook cannot be stopped; a smaller one fills the gap.
        .queued("eight", 8, &prio(1))
        .queued("four", 4, &prio(2))
        .expect(&[wait("eight", "not_enough_free_slots"), start("four")])
        // 7: the notebook ends, the smaller one is preempted, and starts again at the end.
        .then(|w| {
            w.ends("notebook");
        })
        .expect(&[preempt("four"), wait("eight", "waiting_for_preemption")])
        .then(World::stopped_ones_come_back)
        .expect(&[start("eight"), wait("four", "not_enough_free_slots")])
        .then(|w| {
            w.ends("eight");
        })
        .expect(&[start("four")]);
}

#[test]
fn later_ones_of_the_class_pass_until_the_blocked_one_is_old() {
    let young = pool()
        .places(&[4, 4])
        .running("r0", 3, &prio(42).on("a0"))
        .running("r1", 2, &prio(42).on("a1"))
        .queued("four", 4, &prio(42).waited_minutes(1))
        .queued("two", 2, &prio(42))
        .queued("one", 1, &prio(42));
    young.expect(&[
        wait("four", "not_enough_free_slots"),
        start("two"),
        start("one"),
    ]);
    let old = pool()
        .places(&[4, 4])
        .running("r0", 3, &prio(42).on("a0"))
        .running("r1", 2, &prio(42).on("a1"))
        .queued("four", 4, &prio(42).waited_minutes(11))
        .queued("two", 2, &prio(42))
        .queued("one", 1, &prio(42));
    let plan = old.decide();
    assert_eq!(plan.reservations.len(), 1);
    assert_eq!(
        plan.reservations[0].places,
        [PlaceId::from("a1")],
        "two slots are missing, not three"
    );
    let old = old.expect(&[
        wait("four", "not_enough_free_slots"),
        wait("two", "reserved_for"),
        start("one"),
    ]);
    old.then(|w| {
        w.ends("r1");
    })
    .expect(&[start("four"), wait("two", "not_enough_free_slots")]);
}

#[test]
fn an_old_gang_collects_whole_places() {
    let world = pool()
        .places(&[2, 2, 2])
        .running("r0", 2, &prio(42).on("a0"))
        .running("r1", 1, &prio(42).on("a1"))
        .running("r2", 1, &prio(42).on("a2"))
        .queued("gang", 4, &prio(42).waited_minutes(10))
        .queued("one", 1, &prio(42));
    world
        .expect(&[
            wait("gang", "not_enough_free_slots"),
            wait("one", "reserved_for"),
        ])
        .then(|w| {
            w.ends("r1");
        })
        .expect(&[
            wait("gang", "not_enough_free_slots"),
            wait("one", "reserved_for"),
        ])
        .then(|w| {
            w.ends("r0");
        })
        .expect(&[start("gang"), start("one")]);
}

#[test]
fn backfill_may_use_what_an_old_one_reserves() {
    pool()
        .place("a", 6)
        .preemption()
        .running("n", 1, &notebook(60))
        .queued("x", 6, &prio(40).waited_minutes(60))
        .queued("y", 3, &prio(50))
        .expect(&[wait("x", "not_enough_free_slots"), start("y")]);
}

#[test]
fn victims_stay_with_the_one_they_stop_for() {
    let world = pool()
        .places(&[2, 2, 2])
        .preemption()
        .running("l0", 2, &prio(80).on("a0"))
        .running("l1", 2, &prio(70).on("a1"))
        .running("l2", 2, &prio(60).on("a2"))
        .queued("b", 2, &prio(20))
        .expect(&[preempt("l0"), wait("b", "waiting_for_preemption")])
        // A less important one looks for others, a more important one takes what is already on its way.
        .queued("d", 2, &prio(30))
        .expect(&[
            preempt("l1"),
            wait("b", "waiting_for_preemption"),
            wait("d", "waiting_for_preemption"),
        ])
        .queued("c", 2, &prio(10));
    let plan = world.decide();
    assert_eq!(plan.hand_over.len(), 1);
    assert_eq!(plan.hand_over[0].allocation_id.as_str(), "l1");
    assert_eq!(plan.hand_over[0].for_allocation.as_str(), "c");
    let world = world.expect(&[
        preempt("l2"),
        wait("c", "waiting_for_preemption"),
        wait("b", "waiting_for_preemption"),
        wait("d", "waiting_for_preemption"),
    ]);
    // b is removed: any request may get its victim's slots.
    world
        .then(|w| w.queue.requests.retain(|r| r.allocation_id.as_str() != "b"))
        .queued("e", 2, &prio(25))
        .expect(&[
            wait("c", "waiting_for_preemption"),
            wait("e", "behind_higher_priority"),
            wait("d", "waiting_for_preemption"),
        ])
        .then(World::stopped_ones_come_back)
        .expect(&[
            start("c"),
            start("d"),
            start("e"),
            wait("l0", "not_enough_free_slots"),
            wait("l1", "not_enough_free_slots"),
            wait("l2", "not_enough_free_slots"),
        ]);
}

#[test]
fn later_ones_do_not_take_what_is_being_freed_for_an_earlier_one() {
    let world = pool()
        .place("a", 4)
        .preemption()
        .running("l", 2, &prio(80))
        .running("n", 1, &notebook(10))
        .queued("x", 3, &prio(20))
        .expect(&[preempt("l"), wait("x", "waiting_for_preemption")]);
    world
        .queued("y", 1, &prio(20))
        .expect(&[
            wait("x", "waiting_for_preemption"),
            wait("y", "reserved_for"),
        ])
        .then(World::stopped_ones_come_back)
        .expect(&[
            start("x"),
            wait("y", "not_enough_free_slots"),
            wait("l", "not_enough_free_slots"),
        ]);
}

#[test]
fn within_a_priority_only_a_move_preempts() {
    let world = pool()
        .place("a", 2)
        .preemption()
        .running("early", 2, &prio(42))
        .queued("late", 2, &prio(42))
        .expect(&[wait("late", "not_enough_free_slots")]);
    let mut moved = world.clone();
    let late = moved.job_mut("job of late");
    (late.position, late.moved) = (Some(0), true);
    let plan = moved.decide();
    assert_eq!(plan.preempt[0].reason, PreemptReason::MovedAhead);
    moved.expect(&[preempt("early"), wait("late", "waiting_for_preemption")]);
}

#[test]
fn a_move_that_changes_nothing_between_two_jobs_preempts_nothing() {
    // The later search has been moved further back; it was behind the earlier one all along.
    let mut world = pool()
        .place("a", 3)
        .preemption()
        .running("early", 1, &prio(42).job("E"))
        .running("late", 2, &prio(42).job("L"))
        .queued("early2", 1, &prio(42).job("E"));
    let now = world.now.0;
    let moved = world.job_mut("L");
    (moved.position, moved.moved) = (Some(now), true);
    world.expect(&[wait("early2", "not_enough_free_slots")]);
}

#[test]
fn lowering_a_cap_stops_the_newest_until_it_holds() {
    let world = pool()
        .place("a", 8)
        .running_many("C", 4, 2, &prio(42))
        .then(|w| w.job_mut("C").max_slots = Some(5))
        .queued("D", 2, &prio(50));
    let plan = world.decide();
    assert_eq!(
        plan.preempt[0].reason,
        PreemptReason::OverJobCap {
            max_slots: 5,
            in_use: 8
        }
    );
    world
        .expect(&[
            preempt("C4"),
            preempt("C3"),
            wait("D", "not_enough_free_slots"),
        ])
        .then(World::stopped_ones_come_back)
        .expect(&[
            wait("C3", "over_job_cap"),
            wait("C4", "over_job_cap"),
            start("D"),
        ]);
}

#[test]
fn zero_slot_work_is_limited_by_place_and_preempted_by_zero_slot_work() {
    pool()
        .place_in("a", 4, 1, PlaceState::Enabled)
        .queued("t1", 0, &notebook(42))
        .queued("t2", 0, &notebook(42))
        .expect(&[start("t1"), wait("t2", "aux_full")]);
    pool()
        .place_in("a", 4, 1, PlaceState::Enabled)
        .preemption()
        .running("trial", 0, &prio(50))
        .running("slots", 4, &prio(60))
        .queued("better", 0, &notebook(10))
        .expect(&[preempt("trial"), wait("better", "waiting_for_preemption")]);
    pool()
        .place_in("a", 4, 0, PlaceState::Enabled)
        .queued("t", 0, &notebook(42))
        .expect(&[wait("t", "aux_full")]);
}

#[test]
fn places_out_of_service_take_nothing_and_report_it() {
    for state in [
        PlaceState::Draining,
        PlaceState::Disabled,
        PlaceState::Disconnected,
    ] {
        pool()
            .place_in("a", 4, 100, state)
            .queued("t", 2, &prio(42))
            .queued("tb", 0, &notebook(42))
            .expect(&[
                wait("t", "agents_unavailable"),
                wait("tb", "agents_unavailable"),
            ]);
    }
    pool()
        .place("a", 2)
        .draining_slot("a", 0)
        .queued("two", 2, &prio(10))
        .queued("one", 1, &prio(50))
        .expect(&[wait("two", "agents_unavailable"), start("one")]);
}

#[test]
fn the_less_important_wait_for_a_lost_connection_but_not_for_a_user() {
    let world = |state| {
        pool()
            .place("a", 4)
            .place_in("b", 4, 100, state)
            .queued("gang", 8, &prio(10))
            .queued("small", 1, &prio(50))
    };
    world(PlaceState::Disconnected).expect(&[
        wait("gang", "agents_unavailable"),
        wait("small", "behind_higher_priority"),
    ]);
    world(PlaceState::Disabled).expect(&[wait("gang", "agents_unavailable"), start("small")]);
}

#[test]
fn impossible_requests_do_not_block_others() {
    pool()
        .places(&[4, 4])
        .queued("wide", 6, &prio(1))
        .queued("single", 8, &prio(1).single())
        .queued("huge", 16, &prio(1))
        .queued("nowhere", 1, &prio(1).not_on("a0").not_on("a1"))
        .queued("small", 1, &prio(90))
        .expect(&[
            wait("wide", "gang_does_not_divide"),
            wait("single", "no_agent_large_enough"),
            wait("huge", "pool_too_small"),
            wait("nowhere", "all_agents_excluded"),
            start("small"),
        ]);
    pool()
        .queued("t", 1, &prio(42))
        .expect(&[wait("t", "no_agents")]);
}

#[test]
fn excluded_places_are_passed_over() {
    pool()
        .places(&[4, 4])
        .running("busy", 4, &prio(42).on("a1"))
        .queued("t", 2, &prio(42).not_on("a0"))
        .queued("u", 2, &prio(42))
        .expect(&[wait("t", "not_enough_free_slots"), start("u")]);
}

#[test]
fn places_that_a_request_does_not_fit_are_passed_over_and_named() {
    let memory = "its containers need 64 GiB of memory, and less is free";
    let zone = "node selector \"zone\" is \"a\"";
    let traits = prio(42)
        .unfit_for("a0", true, zone)
        .unfit_for("a1", false, memory)
        .unfit_for("a2", true, zone);
    let world = || pool().places(&[4, 4, 4]).queued("t", 2, &traits);
    world().expect(&[wait("t", "agents_do_not_fit")]);
    let reason = |world: World| {
        plan(&world.pool, &world.queue, world.now)
            .waiting
            .remove(0)
            .1
    };
    let WaitReason::PlacesDoNotFit { otherwise, .. } = reason(world()) else {
        panic!("{}", reason(world()));
    };
    assert_eq!(otherwise.kind(), WaitKind::NotEnoughFreeSlots);
    assert_eq!(
        reason(world()).to_string(),
        format!(
            "2 places do not fit: {zone}; 1 place does not fit: {memory}; as to the others: {otherwise}"
        )
    );
    let fits_nowhere = |slots| {
        let traits = prio(42).unfit_for("a0", true, zone);
        reason(pool().places(&[4]).queued("t", slots, &traits)).to_string()
    };
    for slots in [0, 2] {
        assert_eq!(
            fits_nowhere(slots),
            format!(
                "1 place does not fit: {zone}, and no other place takes it; change what the task demands, or the places"
            )
        );
    }
    world().place("b", 4).expect(&[start("t")]);
}

#[test]
fn slots_of_work_that_stops_for_other_reasons_are_counted() {
    let mut world = pool()
        .place("a", 4)
        .preemption()
        .running("paused", 2, &prio(80))
        .running("victim", 2, &prio(90))
        .queued("x", 2, &prio(10));
    world.pool.running[0].progress = Progress::Stopping;
    world.expect(&[wait("x", "waiting_for_preemption")]);
}

#[test]
fn what_can_never_run_is_refused_with_the_nearest_sizes() {
    let refused = |world: World| {
        let request = world.queue.requests[0].clone();
        can_ever_fit(&world.pool, &request.demand()).expect_err("it cannot fit")
    };
    let wide = refused(pool().places(&[8, 8, 8]).queued("t", 12, &prio(42)));
    assert_eq!(wide.nearest, [8, 16]);
    assert_eq!(
        wide.message,
        "needs 12 slots, more than one place has, and whole places do not add up to that; the pool has 3 places of \
         8 slots; ask for 8 or 16"
    );
    let huge = refused(pool().places(&[8, 8]).queued("t", 32, &prio(42)));
    assert_eq!(
        (huge.nearest, huge.reason.kind()),
        (vec![16], WaitKind::PoolTooSmall)
    );
    let single = refused(pool().places(&[4, 8]).queued("t", 16, &prio(42).single()));
    assert_eq!(
        (single.nearest, single.reason.kind()),
        (vec![8], WaitKind::NoPlaceLargeEnough)
    );
    let uneven = refused(pool().places(&[8, 4]).uneven().queued("t", 13, &prio(42)));
    assert_eq!(
        (uneven.nearest, uneven.reason.kind()),
        (vec![12], WaitKind::PoolTooSmall)
    );

    let fits = |world: World| can_ever_fit(&world.pool, &world.queue.requests[0].demand()).is_ok();
    assert!(fits(
        pool()
            .place_in("a", 4, 0, PlaceState::Disabled)
            .queued("t", 4, &prio(42))
    ));
    assert!(!fits(
        pool()
            .place_in("a", 4, 0, PlaceState::Enabled)
            .queued("t", 0, &prio(42))
    ));
    let mut cloud = pool().queued("t", 16, &prio(42));
    cloud.pool.settings.provisionable = Some(Provisionable {
        slots_per_instance: 8,
        max_instances: 2,
    });
    assert!(fits(cloud.clone()));
    cloud.expect(&[wait("t", "waiting_for_instances")]);
}

#[test]
fn reasons_read_as_sentences_and_carry_numbers() {
    let world = pool()
        .place("a", 4)
        .running("t1", 3, &prio(50))
        .queued("t2", 2, &prio(50));
    let plan = world.decide();
    assert_eq!(
        plan.waiting[0].1.to_string(),
        "needs 2 slots; 1 free in total, at most 1 on one place; held by 't1' (3 slots, priority 50); it starts when enough \
         running work ends"
    );
    let json = serde_json::to_value(&plan.waiting[0].1).unwrap();
    assert_eq!(json["kind"], "not_enough_free_slots");
    assert_eq!(json["held_by"][0]["slots"], 3);
}

#[test]
fn where_a_limit_was_lowered_as_many_stop_as_it_takes() {
    let board = |world: World, name: &str| world.running(name, 0, &prio(50));
    let mut world = pool().preemption().place_in("a", 1, 2, PlaceState::Enabled);
    for name in ["b1", "b2", "b3"] {
        world = board(world, name);
    }
    world.queued("urgent", 0, &prio(10)).expect(&[
        preempt("b2"),
        preempt("b3"),
        wait("urgent", "waiting_for_preemption"),
    ]);
}
