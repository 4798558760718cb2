//! Requests that are divided over parts of places.

mod common;

use common::{World, pool, preempt, prio, start, wait};
use det_ids::PlaceId;
use det_scheduler::PlaceState;

/// The parts that a request is placed in.
fn parts(world: &World, task: &str) -> Vec<(PlaceId, usize)> {
    let plan = world.decide();
    let placed = plan
        .placements
        .iter()
        .find(|placed| placed.allocation_id.as_str() == task);
    let parts = placed.into_iter().flat_map(|placed| &placed.parts);
    parts
        .map(|(place, slots)| (place.clone(), slots.len()))
        .collect()
}

/// Sizes of the parts a request was placed in, largest first.
fn parts_of(world: &World, task: &str) -> Vec<usize> {
    let mut sizes: Vec<usize> = parts(world, task)
        .into_iter()
        .map(|(_, size)| size)
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

#[test]
fn parts_are_of_few_places_and_equal_where_they_can_be() {
    for (slots, places, expected) in [
        (10, vec![8, 8, 4], vec![5, 5]),
        (7, vec![4, 4], vec![4, 3]),
        (9, vec![2, 8, 2], vec![7, 2]),
        (11, vec![4, 4, 4], vec![4, 4, 3]),
    ] {
        let even = pool().places(&places).queued("t", slots, &prio(42));
        even.clone().expect(&[wait("t", "gang_does_not_divide")]);
        assert_eq!(parts_of(&even.uneven(), "t"), expected, "{slots}");
    }
}

#[test]
fn what_whole_places_never_add_up_to_takes_parts_beside_other_work() {
    let world = |slots| {
        pool()
            .uneven()
            .places(&[4, 4])
            .running("busy", 2, &prio(42).on("a1"))
            .queued("t", slots, &prio(42))
    };
    assert_eq!(parts_of(&world(6), "t"), [4, 2]);
    assert_eq!(parts_of(&world(5), "t"), [3, 2]);
    world(7).expect(&[wait("t", "not_enough_free_slots")]);
    // Whole places hold eight, so that it waits for them.
    world(8).expect(&[wait("t", "not_enough_free_slots")]);
    // A place that is not in service is no whole one to wait for.
    let lost = pool()
        .uneven()
        .places(&[4, 3])
        .place_in("gone", 3, 0, PlaceState::Disconnected)
        .queued("t", 6, &prio(42));
    assert_eq!(parts_of(&lost, "t"), [3, 3]);
}

#[test]
fn parts_are_not_scattered_over_more_places_than_an_empty_pool_needs() {
    let world = pool()
        .uneven()
        .places(&[4, 4, 4])
        .running("r0", 1, &prio(42).on("a0"))
        .running("r1", 1, &prio(42).on("a1"))
        .running("r2", 2, &prio(42).on("a2"))
        .queued("seven", 7, &prio(42))
        .queued("one", 1, &prio(42));
    // Three, three and two slots are free, and then seven in all.
    world
        .expect(&[wait("seven", "not_enough_free_slots"), start("one")])
        .expect(&[wait("seven", "not_enough_free_slots")])
        .then(|w| {
            w.ends("r0");
        })
        .expect(&[start("seven")]);
    let even = pool()
        .uneven()
        .places(&[4, 4, 4])
        .running("busy", 1, &prio(42).on("a1"))
        .queued("t", 6, &prio(42));
    // Equal parts, of which one fills the place that is in use.
    assert_eq!(parts_of(&even, "t"), [3, 3]);
    let places: Vec<PlaceId> = parts(&even, "t")
        .into_iter()
        .map(|(place, _)| place)
        .collect();
    assert!(places.contains(&"a1".into()), "{places:?}");
}

#[test]
fn an_old_gang_collects_parts_of_places() {
    let world = pool()
        .uneven()
        .places(&[4, 4])
        .running("r0", 4, &prio(42).on("a0"))
        .running("r1", 2, &prio(42).on("a1"))
        .queued("gang", 7, &prio(42).waited_minutes(10))
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
fn only_as_much_as_parts_need_is_preempted() {
    pool()
        .uneven()
        .preemption()
        .places(&[4, 4])
        .running("first", 1, &prio(50).on("a0"))
        .running("second", 1, &prio(50).on("a1"))
        .running("third", 2, &prio(50).on("a1"))
        .queued("urgent", 7, &prio(10))
        .expect(&[
            preempt("second"),
            preempt("third"),
            wait("urgent", "waiting_for_preemption"),
        ]);
}

#[test]
fn parts_elsewhere_are_kept_while_what_they_wait_for_ends() {
    let mut world = pool()
        .uneven()
        .preemption()
        .places(&[4, 4, 4])
        .running("important", 2, &prio(1).on("a1"))
        .running("other", 1, &prio(1).on("a2"))
        .running("gang", 6, &prio(60))
        .queued("urgent", 7, &prio(10))
        .queued("small", 1, &prio(50));
    // The gang leaves four and two slots, of which the urgent request needs four, with the three of the third place.
    for _ in 0..2 {
        let plan = world.step();
        assert!(plan.placements.is_empty(), "{:?}", plan.placements);
    }
    world.ends("gang");
    let mut sizes = parts_of(&world, "urgent");
    sizes.sort_unstable();
    assert_eq!(sizes, [3, 4]);
}

#[test]
fn two_gangs_of_parts_both_run_in_the_end() {
    let world = pool()
        .uneven()
        .places(&[4, 4])
        .queued("a", 7, &prio(42))
        .queued("b", 7, &prio(42));
    world
        .expect(&[start("a"), wait("b", "not_enough_free_slots")])
        .then(|w| {
            w.ends("a");
        })
        .expect(&[start("b")]);
}
