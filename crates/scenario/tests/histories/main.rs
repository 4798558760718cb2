//! Random histories; the judge checks each of their plans.
//!
//! The seeds are always the same. `DET_HISTORIES_SEED` takes another first one, `DET_HISTORIES_COUNT` another number of
//! histories for each policy: a failure is reproduced with its seed and a count of 1. A history that fails is made as
//! small as possible, and written to a scenario file.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![allow(clippy::print_stdout, reason = "a test prints its seeds")]

mod draw;
#[path = "../judge/mod.rs"]
mod judge;
mod shrink;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;

use det_scenario::{
    Detail, Observation, OnImpossible, Operation, Options, Report, Scenario, play, play_watched,
};
use det_scheduler::{Policy, plan};

const FIRST_SEED: u64 = 20_260_801;

/// Seconds after which all old tasks must have started.
const LONG_ENOUGH: f64 = 50.0 * 60.0;

const OPTIONS: Options = Options {
    detail: Detail::Changes,
    on_impossible: OnImpossible::Skip,
};

const PRIORITY: Policy = Policy::Priority {
    preemption: false,
    default_priority: 42,
};
const PREEMPTION: Policy = Policy::Priority {
    preemption: true,
    default_priority: 42,
};

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("{name} is \"{text}\": {error}")),
        Err(_) => default,
    }
}

thread_local! {
    /// Whether panics of this thread are caught and reported by this test.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    static PANIC_MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What a closure panicked with, if it did.
fn panic_message_of(act: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CAUGHT.get() {
                PANIC_MESSAGE.set(info.to_string());
            } else {
                before(info);
            }
        }));
    });
    CAUGHT.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(act));
    CAUGHT.set(false);
    outcome.err().map(|_| PANIC_MESSAGE.take())
}

fn state_of(observation: &Observation<'_>) -> judge::State {
    judge::State {
        pool: observation.pool.clone(),
        queue: observation.queue.clone(),
        now: observation.now,
    }
}

/// Checks that a plan is sound, true, deterministic and final.
fn judged(observation: &Observation<'_>) {
    let state = state_of(observation);
    let decided = observation.plan;
    judge::check(&state, decided);
    let other = judge::shuffled(&state);
    assert_eq!(
        plan(&other.pool, &other.queue, other.now),
        *decided,
        "another order of the input gives another plan"
    );
    if !decided.placements.is_empty()
        || !decided.preempt.is_empty()
        || !decided.hand_over.is_empty()
    {
        judge::check_final(&state.after(decided));
    }
}

fn plays_without_failure(scenario: &Scenario) {
    if let Err(errors) = play_watched(scenario, OPTIONS, &mut judged) {
        panic!("{errors}");
    }
}

/// Checks that old requests start, whatever is submitted after them.
fn old_requests_start(scenario: &Scenario) {
    // Slots by which a job's nominal share fell short of its waiting request, under fair share.
    let mut short: BTreeMap<String, bool> = BTreeMap::new();
    let mut impossible: BTreeMap<String, bool> = BTreeMap::new();
    let mut watch = |observation: &Observation<'_>| {
        let state = state_of(observation);
        let fair = state.pool.settings.policy == Policy::FairShare;
        let parts = if fair {
            judge::shares::parts(&state)
        } else {
            BTreeMap::new()
        };
        for request in &state.queue.requests {
            if !request.job_id.as_str().starts_with("old") {
                continue;
            }
            let job = request.job_id.0.clone();
            let never = det_scheduler::can_ever_fit(&state.pool, &request.demand()).is_err();
            *impossible.entry(job.clone()).or_default() |= never;
            if let Some(part) = parts.get(&request.job_id) {
                *short.entry(job).or_default() |= part.nominal < u64::from(request.slots);
            }
        }
    };
    let report =
        play_watched(scenario, OPTIONS, &mut watch).unwrap_or_else(|error| panic!("{error}"));
    // Ten minutes, and for each of them the requests ahead of it.
    if report.seconds < LONG_ENOUGH || !everything_ends(scenario) {
        return;
    }
    for job in report.jobs.iter().filter(|job| job.job.starts_with("old")) {
        let excused = [&short, &impossible]
            .iter()
            .any(|found| found.get(&job.job).copied().unwrap_or(false));
        assert!(
            job.first_start.is_some() || excused,
            "{} waits for ever: {:#?}",
            job.job,
            report.waiting.iter().find(|task| task.job == job.job)
        );
    }
}

/// Whether all tasks come to an end by themselves.
fn everything_ends(scenario: &Scenario) -> bool {
    scenario
        .steps
        .iter()
        .flat_map(|step| &step.operations)
        .all(|operation| match operation {
            Operation::Submit(submission) => submission.duration.is_some(),
            _ => true,
        })
}

fn fails(scenario: &Scenario, test: fn(&Scenario)) -> Option<String> {
    panic_message_of(|| test(scenario))
}

/// Plays `count` histories; stops with a small one at the first that fails.
fn all(policy: Policy, count: u64, make: fn(u64, Policy) -> Scenario, test: fn(&Scenario)) {
    let first = from_environment("DET_HISTORIES_SEED", FIRST_SEED);
    let count = from_environment("DET_HISTORIES_COUNT", count);
    println!("DET_HISTORIES_SEED={first} DET_HISTORIES_COUNT={count}: {policy:?}");
    for seed in first..first + count {
        let scenario = make(seed, policy);
        let Some(failure) = fails(&scenario, test) else {
            continue;
        };
        let mut small = shrink::shrink(scenario, &|candidate| fails(candidate, test).is_some());
        small.name = format!("history {seed}");
        let failure = fails(&small, test).unwrap_or(failure);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{seed}.yaml"));
        let text = det_config::yaml::to_yaml(&small.to_value());
        std::fs::write(&path, &text).unwrap();
        panic!(
            "the history of seed {seed} fails (DET_HISTORIES_SEED={seed} DET_HISTORIES_COUNT=1 repeats it), the \
             smallest like it is in {}:\n{text}\n{failure}",
            path.display()
        );
    }
}

#[test]
fn histories_of_priority_without_preemption() {
    all(PRIORITY, 20_000, draw::history, plays_without_failure);
}

#[test]
fn histories_of_priority_with_preemption() {
    all(PREEMPTION, 30_000, draw::history, plays_without_failure);
}

#[test]
fn histories_of_fair_share() {
    all(
        Policy::FairShare,
        30_000,
        draw::history,
        plays_without_failure,
    );
}

#[test]
fn histories_of_round_robin() {
    all(
        Policy::RoundRobin,
        20_000,
        draw::history,
        plays_without_failure,
    );
}

#[test]
fn aged_requests_start_by_priority() {
    all(PRIORITY, 500, draw::pressure, old_requests_start);
    all(PREEMPTION, 500, draw::pressure, old_requests_start);
}

#[test]
fn aged_requests_start_by_share() {
    all(Policy::FairShare, 1_000, draw::pressure, old_requests_start);
}

#[test]
fn aged_requests_start_in_turn() {
    all(Policy::RoundRobin, 500, draw::pressure, old_requests_start);
}

/// What happened, and why tasks wait in the end. In between, a reason may be reported by the plan that decides, or by
/// the next one, which decides nothing: what a request waits for is first taken by less important work of the same
/// plan.
fn outcome(mut report: Report) -> Report {
    for moment in &mut report.moments {
        moment.begin_to_wait.clear();
    }
    report.moments.retain(|moment| {
        moment.step.is_some() || !moment.happened.is_empty() || !moment.decisions.is_empty()
    });
    report
}

/// A watcher receives every reason of every plan; without one the outcome is the same.
#[test]
fn a_report_does_not_depend_on_a_watcher() {
    for policy in [PRIORITY, PREEMPTION, Policy::FairShare, Policy::RoundRobin] {
        for seed in FIRST_SEED..FIRST_SEED + 1_000 {
            let history = draw::history(seed, policy);
            let watched = play_watched(&history, OPTIONS, &mut |_| {}).unwrap();
            let unwatched = play(&history, OPTIONS).unwrap();
            assert_eq!(
                outcome(unwatched),
                outcome(watched),
                "seed {seed}, {policy:?}"
            );
        }
    }
}

/// The judge must reject plans that are wrong.
#[test]
fn the_judge_rejects_broken_plans() {
    let mut wrong = 0;
    for policy in [PRIORITY, PREEMPTION, Policy::FairShare, Policy::RoundRobin] {
        for seed in FIRST_SEED..FIRST_SEED + 100 {
            let mut watch = |observation: &Observation<'_>| {
                let state = state_of(observation);
                for plan in judge::broken(&state, observation.plan) {
                    let failure = panic_message_of(|| judge::check(&state, &plan));
                    assert!(failure.is_some(), "seed {seed}: {plan:#?}");
                    wrong += 1;
                }
            };
            play_watched(&draw::history(seed, policy), OPTIONS, &mut watch).unwrap();
        }
    }
    assert!(wrong > 1_000, "only {wrong} wrong plans");
}
