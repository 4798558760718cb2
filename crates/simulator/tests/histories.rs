//! Hundreds of cluster-hours with everything that can go wrong: a fixed set of seeds, and one that is new each time.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::hash::{BuildHasher, RandomState};

use det_simulator::{Counts, History, SECOND, play, shrink};

/// Hours of users and faults in each history; healing comes on top.
const HOURS: u32 = 8;
/// Seeds that every run of the test plays.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=26;
/// What a run must cover at least.
const CLUSTER_HOURS: i64 = 200;

/// Plays a seed; a failure is made small and kept, and the message names the file.
fn holds(seed: u64) -> Counts {
    let history = History::of(seed, HOURS);
    let outcome = play(&history, None);
    let Some(found) = outcome.violation else {
        return outcome.counts;
    };
    let small = shrink(&history, None);
    let path = format!("{}/seed-{seed}.json", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, serde_json::to_string_pretty(&small).unwrap()).unwrap();
    panic!(
        "seed {seed} fails at {} s: {}\n{} of its {} steps are enough: \
         cargo run -p det-simulator -- --replay {path}\nonce mended, keep it below crates/simulator/regressions",
        found.at / SECOND,
        found.violation,
        small.steps.len(),
        history.steps.len(),
    );
}

#[test]
fn the_fixed_seeds_hold() {
    let mut counts = Counts::default();
    for seed in SEEDS {
        counts += holds(seed);
    }
    println!("{counts}");
    assert!(
        counts.time >= CLUSTER_HOURS * 3600 * SECOND,
        "less than {CLUSTER_HOURS} cluster-hours: {counts}"
    );
    assert!(
        counts.faults > 1000 && counts.runs > 1000 && counts.quiescent > 10_000,
        "hardly anything happens: {counts}"
    );
}

#[test]
fn a_new_seed_holds() {
    let seed = RandomState::new().hash_one("a seed") % 1_000_000_000;
    println!("seed {seed}: again with cargo run -p det-simulator -- --seed {seed} --hours {HOURS}");
    println!("{}", holds(seed));
}

#[test]
fn a_history_is_the_same_whenever_it_is_played() {
    let history = History::of(7, HOURS);
    assert_eq!(play(&history, None), play(&history, None));
    let text = serde_json::to_string(&history).unwrap();
    let read: History = serde_json::from_str(&text).unwrap();
    assert_eq!(read, history);
}
