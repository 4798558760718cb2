//! Which waiting requests places are worth adding for.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::{World, notebook, pool, prio, wait};
use det_scheduler::{Growth, PlaceState, Planner, Policy, Provisionable, Share, plan};
use proptest::prelude::*;

/// A pool that grows to so many places of 8 slots.
fn growing(mut world: World, most: u32) -> World {
    world.pool.settings.provisionable = Some(Provisionable {
        slots_per_instance: 8,
        max_instances: most,
    });
    world
}

fn growth(world: &World) -> Vec<Growth> {
    Planner::of(&world.pool, &world.queue)
        .pass(world.now, 0)
        .growth
}

/// Who asks for places, with how many are added and what is taken of each.
fn asked(world: &World) -> Vec<(String, u32, Vec<u32>)> {
    let asked = growth(world).into_iter().map(|it| {
        let shares = it.shares.iter().map(|share| share.slots);
        (
            it.allocation_id.to_string(),
            it.added_places,
            shares.collect(),
        )
    });
    asked.collect()
}

fn ask(id: &str, added: u32, shares: &[u32]) -> (String, u32, Vec<u32>) {
    (id.to_owned(), added, shares.to_vec())
}

#[test]
fn a_pool_of_fixed_places_asks_for_none() {
    let world = pool().place("a", 8).queued("t", 16, &prio(42));
    assert_eq!(asked(&world), []);
}

#[test]
fn a_gang_asks_for_what_present_places_lack() {
    let empty = growing(pool(), 4).queued("t", 16, &prio(42));
    assert_eq!(asked(&empty), [ask("t", 2, &[8, 8])]);
    let half = growing(pool(), 4).place("a", 8).queued("t", 16, &prio(42));
    assert_eq!(asked(&half), [ask("t", 1, &[8, 8])]);
    let busy = growing(pool(), 4)
        .place("a", 8)
        .running("r", 1, &prio(42))
        .queued("t", 16, &prio(42));
    assert_eq!(asked(&busy), [ask("t", 2, &[8, 8])]);
}

#[test]
fn a_busy_pool_grows_for_what_would_fit_it_when_it_is_empty() {
    let world = growing(pool(), 2)
        .place("a", 8)
        .running("r", 6, &prio(42))
        .queued("t", 4, &prio(42));
    assert_eq!(asked(&world), [ask("t", 1, &[4])]);
}

#[test]
fn no_more_places_are_asked_for_than_the_pool_may_have() {
    let world = growing(pool(), 3)
        .place("a", 8)
        .place_in("off", 8, 0, PlaceState::Disabled)
        .place_in("gone", 8, 0, PlaceState::Disconnected)
        .running("r", 8, &prio(42))
        .queued("large", 16, &prio(42))
        .queued("small", 8, &prio(42))
        .queued("late", 8, &prio(42));
    assert_eq!(asked(&world), [ask("small", 1, &[8])]);
    let never = growing(pool(), 1).queued("t", 16, &prio(42));
    assert_eq!(asked(&never), []);
    let uneven = growing(pool(), 4).queued("t", 12, &prio(42));
    assert_eq!(asked(&uneven), []);
}

#[test]
fn small_requests_share_a_place_that_is_added() {
    let mut world = growing(pool(), 4).place("a", 8).running("r", 8, &prio(42));
    for name in ["t1", "t2", "t3"] {
        world = world.queued(name, 4, &prio(42));
    }
    let expected = [ask("t1", 1, &[4]), ask("t2", 0, &[4]), ask("t3", 1, &[4])];
    assert_eq!(asked(&world), expected);
}

#[test]
fn the_more_important_request_comes_first() {
    let world = growing(pool(), 2)
        .place("a", 8)
        .running("r", 8, &prio(42))
        .queued("later", 8, &prio(50))
        .queued("urgent", 8, &prio(10));
    assert_eq!(asked(&world), [ask("urgent", 1, &[8])]);
    let both = growing(world, 3);
    assert_eq!(
        asked(&both),
        [ask("urgent", 1, &[8]), ask("later", 1, &[8])]
    );
}

#[test]
fn nothing_is_asked_for_behind_one_that_no_growth_helps() {
    let world = growing(pool(), 2)
        .place("a", 8)
        .running("r", 8, &prio(42))
        .queued("urgent", 16, &prio(10))
        .queued("later", 8, &notebook(50));
    assert_eq!(asked(&world), []);
}

#[test]
fn limits_of_jobs_are_no_reason_to_grow() {
    let world = growing(pool(), 4)
        .place("a", 8)
        .running("r", 8, &prio(42).job("j").cap(8))
        .queued("t", 8, &prio(42).job("j").cap(8));
    assert_eq!(asked(&world), []);
}

#[test]
fn places_that_do_not_fit_are_not_counted_on() {
    let world = growing(pool(), 2).place("a", 8).queued(
        "t",
        4,
        &prio(42).unfit_for("a", false, "memory is in use"),
    );
    assert_eq!(asked(&world), [ask("t", 1, &[4])]);
    let excluded = growing(pool(), 3)
        .place("a", 8)
        .queued("t", 4, &prio(42).not_on("a"));
    assert_eq!(asked(&excluded), [ask("t", 1, &[4])]);
}

#[test]
fn no_place_is_added_for_what_is_admitted_to_none() {
    let quota = "quota \"few\" of namespace \"team\" has cpu 8 used of 8, and the task needs 1";
    for world in [pool(), pool().place("a", 8)] {
        let world = growing(world, 4)
            .queued("t", 16, &prio(42).refused(quota))
            .queued("n", 0, &notebook(42).refused(quota));
        assert_eq!(asked(&world), []);
        world.clone().expect(&[
            wait("t", "agents_do_not_fit"),
            wait("n", "agents_do_not_fit"),
        ]);
        let (_, reason) = plan(&world.pool, &world.queue, world.now).waiting.remove(0);
        assert!(reason.to_string().contains(quota), "{reason}");
        let behind = world.queued("u", 8, &prio(42)).queued("v", 8, &prio(42));
        let free = u32::try_from(behind.pool.places.len()).unwrap();
        assert_eq!(asked(&behind).len(), 2 - free as usize);
    }
}

#[test]
fn what_a_quota_refuses_keeps_no_less_important_work_from_starting() {
    let world = growing(pool(), 3)
        .place("a", 8)
        .running("r", 3, &prio(10))
        .queued("refused", 1, &prio(10).refused("a quota"));
    let fits = world.clone().queued("t", 5, &prio(42));
    assert_eq!(fits.decide().placements.len(), 1);
    let grows = world
        .queued("t", 6, &prio(42))
        .queued("gang", 16, &prio(42));
    assert_eq!(asked(&grows), [ask("t", 1, &[6])]);
}

#[test]
fn no_place_is_added_for_less_important_work_that_may_not_start() {
    // Two more places would hold the gang, which starts nothing before the urgent task has started.
    let world = growing(pool(), 3)
        .place("a", 8)
        .running("r", 8, &prio(10))
        .queued("urgent", 24, &prio(10))
        .queued("gang", 16, &prio(42));
    assert_eq!(asked(&world), []);
    let given_up = |world: &World| {
        let mut planner = Planner::of(&world.pool, &world.queue);
        planner.given_up = Arc::new(BTreeSet::from(["urgent".into()]));
        let growth = planner.pass(world.now, 0).growth;
        let ids = growth.into_iter().map(|it| it.allocation_id.to_string());
        ids.collect::<Vec<_>>()
    };
    let small = growing(pool(), 3)
        .place("a", 8)
        .running("r", 8, &prio(10))
        .queued("urgent", 8, &prio(10))
        .queued("gang", 16, &prio(42))
        .queued("equal", 8, &prio(10));
    assert_eq!(given_up(&small), ["equal"]);
}

#[test]
fn a_task_that_was_given_up_takes_nothing_of_what_the_pool_may_become() {
    let world = growing(pool(), 2)
        .place("a", 8)
        .running("r", 8, &prio(42))
        .queued("hopeless", 8, &prio(42))
        .queued("behind", 8, &prio(42));
    assert_eq!(asked(&world), [ask("hopeless", 1, &[8])]);
    let given_up = |ids: &[&str]| {
        let mut planner = Planner::of(&world.pool, &world.queue);
        planner.given_up = Arc::new(ids.iter().map(|id| (*id).into()).collect());
        let growth = planner.pass(world.now, 0).growth;
        let ids = growth.into_iter().map(|it| it.allocation_id.to_string());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(given_up(&["hopeless"]), ["behind"]);
    assert!(given_up(&["hopeless", "behind", "ended"]).is_empty());
    assert_eq!(given_up(&["behind"]), ["hopeless"]);
}

#[test]
fn many_tasks_that_no_growth_helps_do_not_hide_one_that_it_does() {
    // Each of them needs more places than the pool may have free.
    let mut world = growing(pool(), 2).place("a", 8).running("r", 8, &prio(42));
    for number in 0..1_500 {
        world = world.queued(&format!("large{number:04}"), 16, &prio(42));
    }
    let world = world.queued("small", 8, &prio(42));
    assert_eq!(asked(&world), [ask("small", 1, &[8])]);
}

#[test]
fn a_pool_without_places_grows_for_tasks_without_slots() {
    let world = growing(pool(), 2)
        .queued("n1", 0, &notebook(42))
        .queued("n2", 0, &notebook(42));
    assert_eq!(asked(&world), [ask("n1", 1, &[0]), ask("n2", 0, &[0])]);
}

#[test]
fn parts_have_the_containers_that_the_pool_divides_them_among() {
    let mut world = growing(pool(), 2).queued("t", 16, &prio(42));
    world.pool.settings.max_slots_per_container = Some(3);
    let share = Share {
        slots: 8,
        containers: 3,
    };
    assert_eq!(growth(&world)[0].shares, [share, share]);
}

#[test]
fn a_reason_is_reported_again_when_that_is_asked_for() {
    let world = growing(pool(), 2).queued("t", 8, &prio(42));
    let mut planner = Planner::of(&world.pool, &world.queue);
    assert_eq!(planner.pass(world.now, 0).waiting.len(), 1);
    assert_eq!(planner.pass(world.now, 0).waiting.len(), 0);
    planner.unreported.insert("t".into());
    planner.unreported.insert("unknown".into());
    assert_eq!(planner.pass(world.now, 0).waiting.len(), 1);
    assert_eq!(planner.pass(world.now, 0).waiting.len(), 0);
}

proptest! {
    /// With the places that all requests ask for, the most important one of them starts; never more are asked for than the
    /// pool may have, and no place is asked for twice.
    #[test]
    fn places_that_are_added_are_of_use(
        places in prop::collection::vec(0_u32..=8, 0..4),
        waiting in prop::collection::vec((0_u32..=24, 1_u8..5, any::<bool>(), 0_u8..6), 1..6),
        most in 1_u32..8,
        fair in any::<bool>(),
    ) {
        let mut world = growing(pool(), most);
        if fair {
            world.pool.settings.policy = Policy::FairShare;
        }
        for (number, used) in places.iter().enumerate() {
            let name = format!("p{number}");
            world = world.place(&name, 8);
            if *used > 0 {
                world = world.running(&format!("r{number}"), *used, &prio(1).on(&name));
            }
        }
        let mut given_up = BTreeSet::new();
        for (number, (slots, priority, single, kind)) in waiting.iter().enumerate() {
            let mut traits = if *single { notebook(*priority) } else { prio(*priority) };
            let id = format!("t{number}");
            match kind {
                0 => traits = traits.refused("a quota"),
                1 => drop(given_up.insert(id.as_str().into())),
                _ => {}
            }
            world = world.queued(&id, *slots, &traits);
        }
        let mut planner = Planner::of(&world.pool, &world.queue);
        planner.given_up = Arc::new(given_up.clone());
        let growth = planner.pass(world.now, 0).growth;
        for asked in &growth {
            prop_assert!(!given_up.contains(&asked.allocation_id));
            let mut requests = world.queue.requests.iter();
            let request = requests.find(|it| it.allocation_id == asked.allocation_id).unwrap();
            prop_assert_eq!(&request.misfits, &None);
        }
        let added: u32 = growth.iter().map(|it| it.added_places).sum();
        let present = u32::try_from(places.len()).unwrap();
        prop_assert!(growth.is_empty() || added + present <= most.max(present));
        let slots: BTreeMap<String, u32> = world.queue.requests.iter().map(|it| (it.allocation_id.to_string(), it.slots)).collect();
        for asked in &growth {
            let shares: u32 = asked.shares.iter().map(|share| share.slots).sum();
            prop_assert_eq!(slots[asked.allocation_id.as_str()], shares);
        }
        let Some(first) = growth.first() else {
            return Ok(());
        };
        prop_assert!(first.added_places > 0);
        for number in 0..added {
            world = world.place(&format!("new{number}"), 8);
        }
        // Places that have come take what was given up as well, as if it had been helped.
        world.queue.requests.retain(|it| it.misfits.is_none() && !given_up.contains(&it.allocation_id));
        let placed = world.decide().placements;
        if !fair {
            let starts = placed.iter().any(|it| it.allocation_id == first.allocation_id);
            prop_assert!(starts, "{first:?} does not start with {added} places more: {placed:?}");
        }
    }
}
