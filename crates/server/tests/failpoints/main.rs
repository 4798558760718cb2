//! Every listed point of the master, on both databases: a scenario that goes through all multi-step actions is played by
//! clients and agents who repeat what got no answer, while the master ends at the point and is started again.
//!
//! The scenario must end as if nothing had happened: each action took effect once, and the invariants hold. The master is
//! a process of its own (this binary once more), so that its end is a real one.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../support/invariants.rs"]
mod invariants;

mod agent;
mod master;
mod scenario;

use std::collections::BTreeSet;

use det_failpoints::{POINTS, Part};
use futures::StreamExt as _;

/// The writer's points are come to again and again: cut the first, and some on the way.
const TIMES: [u32; 6] = [1, 2, 7, 12, 19, 27];
/// Scenarios played side by side; each waits most of the time.
const AT_ONCE: usize = 4;

/// What to arm: each point once, those of the writer several times.
fn armings() -> Vec<String> {
    POINTS
        .iter()
        .filter(|(_, part)| *part == Part::Master)
        .flat_map(|(name, _)| {
            let times: &[u32] = if name.starts_with("store::") {
                &TIMES
            } else {
                &[1]
            };
            times.iter().map(move |n| format!("{name}@{n}"))
        })
        .collect()
}

/// Plays the scenario for each arming, some at a time; gives what went wrong.
async fn play_all(place: master::Database) {
    let mut failed = Vec::new();
    let mut reached = BTreeSet::new();
    let mut scenarios = futures::stream::iter(armings())
        .map(|arming| {
            let scenario = tokio::spawn(scenario::play(place.clone(), arming.clone()));
            async move { (arming, scenario.await) }
        })
        .buffer_unordered(AT_ONCE);
    while let Some((arming, outcome)) = scenarios.next().await {
        match outcome {
            Ok(true) => {
                reached.insert(arming.split('@').next().unwrap().to_owned());
            }
            // A later time may not come in this scenario; the point itself must.
            Ok(false) => {}
            Err(error) => failed.push(format!("{arming}: {error}")),
        }
    }
    let missed: Vec<&str> = POINTS
        .iter()
        .filter(|(name, part)| *part == Part::Master && !reached.contains(*name))
        .map(|(name, _)| *name)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(
        missed.is_empty(),
        "the scenario does not come to {missed:?}"
    );
}

#[tokio::test]
async fn every_action_is_cut_at_every_point_on_sqlite() {
    play_all(master::Database::Sqlite).await;
}

#[tokio::test]
async fn every_action_is_cut_at_every_point_on_postgres() {
    match std::env::var("DET_TEST_POSTGRES_URL") {
        Ok(server) => play_all(master::Database::Postgres(server)).await,
        Err(_) => skipped("failpoints"),
    }
}

async fn blind_submissions(place: master::Database) {
    for (arming, there) in [
        ("server::experiments::create::before_commit@1", 1),
        ("server::experiments::create::after_commit@1", 2),
    ] {
        let found = scenario::submit_blindly(place.clone(), arming.to_owned()).await;
        assert_eq!(found, there, "{arming}");
    }
}

#[tokio::test]
async fn a_submission_repeated_blindly_is_there_as_often_as_it_was_stored_on_sqlite() {
    blind_submissions(master::Database::Sqlite).await;
}

#[tokio::test]
async fn a_submission_repeated_blindly_is_there_as_often_as_it_was_stored_on_postgres() {
    match std::env::var("DET_TEST_POSTGRES_URL") {
        Ok(server) => blind_submissions(master::Database::Postgres(server)).await,
        Err(_) => skipped("a blind submission"),
    }
}

#[expect(clippy::print_stdout, reason = "a skip must be seen")]
fn skipped(what: &str) {
    println!("SKIPPED: {what} on PostgreSQL: DET_TEST_POSTGRES_URL is not set");
}

/// Not a test: the master's process.
#[tokio::test]
#[ignore = "the master's process; started by the tests"]
async fn the_process() {
    master::run_here().await;
}
