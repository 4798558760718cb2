//! How long one plan takes: `cargo run --release -p det-scheduler --example plan_bench`.
//!
//! Prints the median and the worst of repeated runs for pools of 1,000 places of 8 slots: plans of everything for
//! 50,000 waiting requests, then for each policy and 1,000, 10,000 and 50,000 waiting requests a plan of everything and
//! passes of a planner that is updated with one event. With an argument, only the rows whose names contain it.
#![expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId, TaskId};
use det_scheduler::{
    Job, Pass, PlaceSnapshot, PlaceState, Plan, Planner, Policy, PoolSettings, PoolSnapshot,
    Progress, Queue, Request, RunningAllocation, SlotSnapshot, SlotState, plan,
};

const PLACES: u32 = 1_000;
const SLOTS: u32 = 8;
const WAITING: u32 = 50_000;
const REPEATS: usize = 9;
const EVENTS: usize = 25;
const PRIORITY: Policy = Policy::Priority {
    preemption: false,
    default_priority: 42,
};
const PREEMPTION: Policy = Policy::Priority {
    preemption: true,
    default_priority: 42,
};
const NOW: Micros = Micros(1_000_000_000_000);

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let report = |name: &str, pool: &PoolSnapshot, queue: &Queue| {
        if wanted(name) {
            report(name, pool, queue);
        }
    };
    let increments = |name: &str, policy: Policy, waiting: u32, waited_seconds: i64| {
        if wanted(&format!("{name} {waiting}")) {
            increments(name, policy, waiting, waited_seconds);
        }
    };
    println!("{PLACES} places of {SLOTS} slots, {WAITING} waiting, median and worst of {REPEATS}");
    let mixed = |n: u32| [1, 1, 2, 4, 8, 16][n as usize % 6];
    report(
        "empty pool, mixed sizes",
        &pool(false),
        &queue(50, mixed, 0),
    );
    report(
        "full pool, one slot each",
        &full(false),
        &queue(50, |_| 1, 0),
    );
    report(
        "full pool, mixed sizes, five priorities",
        &full(false),
        &queue(5, mixed, 0),
    );
    report(
        "full pool, preemption, 16 slots each",
        &full(true),
        &queue(50, |_| 16, 0),
    );
    report(
        "full pool, preemption, mixed sizes",
        &full(true),
        &queue(5, mixed, 0),
    );
    report(
        "full pool, all past the age limit",
        &full(false),
        &queue(1, mixed, 3_600),
    );
    report(
        "full pool, preemption, past the age limit",
        &full(true),
        &queue(1, mixed, 3_600),
    );
    report(
        "full pool, 1,000 shapes",
        &full(false),
        &queue(5, |n| 1 + n % 1_000, 0),
    );
    println!("\nfull pool, mixed sizes; one pass after one event, median (worst) of {EVENTS}, ms");
    println!(
        "{:26} {:>7} {:>11} {:>15} {:>15} {:>15}",
        "policy", "waiting", "everything", "a task ends", "one is added", "one withdrawn"
    );
    for (name, policy) in [
        ("priority", PRIORITY),
        ("priority, preemption", PREEMPTION),
        ("fair share", Policy::FairShare),
        ("round robin", Policy::RoundRobin),
    ] {
        for waiting in [1_000, 10_000, WAITING] {
            increments(name, policy, waiting, 0);
        }
        // All of them past the age limit.
        increments(&format!("{name}, old"), policy, WAITING, 3_600);
    }
}

/// Passes after single events, over a pool that has come to rest.
fn increments(name: &str, policy: Policy, waiting: u32, waited_seconds: i64) {
    let mixed = |n: u32| [1, 1, 2, 4, 8, 16][n as usize % 6];
    let mut pool = PoolSnapshot {
        // The holder of a slot follows from what runs.
        places: self::pool(false).places,
        ..full(false)
    };
    pool.settings.policy = policy;
    let mut queue = queue(5, mixed, waited_seconds);
    queue.requests.truncate(waiting as usize);
    let start = Instant::now();
    black_box(plan(black_box(&pool), black_box(&queue), NOW));
    let everything = start.elapsed();

    let mut planner = Planner::of(&pool, &queue);
    rest(&mut planner, &mut pool, &queue);
    let mut ends = Vec::new();
    let mut additions = Vec::new();
    let mut withdrawals = Vec::new();
    for event in 0..EVENTS {
        let ended = pool.running.swap_remove(event * 7 % pool.running.len());
        let start = Instant::now();
        planner.remove(&ended.request.allocation_id);
        let pass = planner.pass(NOW, 10);
        ends.push(start.elapsed());
        carry_out(&mut planner, &mut pool, &queue, &pass);
        rest(&mut planner, &mut pool, &queue);

        let number = u32::try_from(event).unwrap_or_default();
        let added = request(format!("new-{event}"), number % 500, mixed(number), 0);
        let id = added.allocation_id.clone();
        let start = Instant::now();
        planner.put_request(added);
        black_box(planner.pass(NOW, 10));
        additions.push(start.elapsed());

        let start = Instant::now();
        planner.remove(&id);
        black_box(planner.pass(NOW, 10));
        withdrawals.push(start.elapsed());
    }
    println!(
        "{name:26} {waiting:7} {:11.1} {:>15} {:>15} {:>15}",
        everything.as_secs_f64() * 1e3,
        spread(ends),
        spread(additions),
        spread(withdrawals),
    );
}

/// Lets a planner decide until it decides nothing new; what it stops has left, and does not come back.
fn rest(planner: &mut Planner, pool: &mut PoolSnapshot, queue: &Queue) {
    loop {
        let pass = planner.pass(NOW, usize::MAX);
        if pass.placements.is_empty() && pass.preempt.is_empty() {
            return;
        }
        carry_out(planner, pool, queue, &pass);
    }
}

fn carry_out(planner: &mut Planner, pool: &mut PoolSnapshot, queue: &Queue, pass: &Pass) {
    for stopped in &pass.preempt {
        planner.remove(&stopped.allocation_id);
        pool.running
            .retain(|running| running.request.allocation_id != stopped.allocation_id);
    }
    for placed in &pass.placements {
        let mut requests = queue.requests.iter();
        let Some(request) = requests.find(|r| r.allocation_id == placed.allocation_id) else {
            planner.remove(&placed.allocation_id);
            continue;
        };
        let running = RunningAllocation {
            request: request.clone(),
            placement: placed.parts.clone(),
            started_at: NOW,
            progress: Progress::Active,
        };
        planner.put_running(running.clone());
        pool.running.push(running);
    }
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{:.2} ({:.2})",
        ms(times[times.len() / 2]),
        times.last().copied().map_or(0.0, ms)
    )
}

fn report(name: &str, pool: &PoolSnapshot, queue: &Queue) {
    let mut times: Vec<Duration> = Vec::new();
    let mut last = Plan::default();
    for _ in 0..REPEATS {
        let start = Instant::now();
        last = black_box(plan(black_box(pool), black_box(queue), NOW));
        times.push(start.elapsed());
    }
    times.sort();
    println!(
        "{name:45} {:7.1} ms, worst {:7.1} ms: {} start, {} stop, {} wait",
        times[REPEATS / 2].as_secs_f64() * 1e3,
        times[REPEATS - 1].as_secs_f64() * 1e3,
        last.placements.len(),
        last.preempt.len(),
        last.waiting.len(),
    );
}

fn request(name: String, job: u32, slots: u32, waited_seconds: i64) -> Request {
    Request {
        task_id: TaskId(name.clone()),
        allocation_id: AllocationId(name),
        job_id: JobId(format!("job-{job}")),
        slots,
        single_place: false,
        preemptible: true,
        excluded_places: BTreeSet::new(),
        misfits: None,
        requested_at: Micros(NOW.0 - waited_seconds * 1_000_000),
        not_before: None,
    }
}

fn queue(priorities: u32, slots: impl Fn(u32) -> u32, waited_seconds: i64) -> Queue {
    let jobs = 500;
    let job = |n: u32| Job {
        priority: u8::try_from(1 + n % priorities).unwrap_or(99),
        weight: 1.0,
        max_slots: None,
        submitted_at: Micros(i64::from(n)),
        position: None,
        moved: false,
        workspace: None,
    };
    let running = (JobId::from("job-running"), job(0));
    let mut queue = Queue {
        requests: (0..WAITING)
            .map(|n| request(format!("{n}.1"), n % jobs, slots(n), waited_seconds))
            .collect(),
        jobs: (0..jobs)
            .map(|n| (JobId(format!("job-{n}")), job(n)))
            .collect(),
        ..Queue::default()
    };
    queue.jobs.insert(
        running.0,
        Job {
            priority: 99,
            ..running.1
        },
    );
    queue
}

fn pool(preemption: bool) -> PoolSnapshot {
    PoolSnapshot {
        settings: PoolSettings {
            policy: Policy::Priority {
                preemption,
                default_priority: 42,
            },
            ..PoolSettings::default()
        },
        places: (0..PLACES)
            .map(|n| PlaceSnapshot {
                id: PlaceId(format!("agent-{n:04}")),
                state: PlaceState::Enabled,
                slots: (0..SLOTS)
                    .map(|slot| SlotSnapshot {
                        id: SlotId(slot),
                        state: SlotState::Free,
                    })
                    .collect(),
                aux_limit: 100,
                aux_used: 0,
            })
            .collect(),
        running: Vec::new(),
    }
}

/// A pool where every slot is held by a preemptible allocation of its own.
fn full(preemption: bool) -> PoolSnapshot {
    let mut pool = pool(preemption);
    for place in &mut pool.places {
        for slot in &mut place.slots {
            let mut request = request(format!("r.{}.{}", place.id, slot.id), 0, 1, 0);
            request.job_id = JobId::from("job-running");
            slot.state = SlotState::Held(request.allocation_id.clone());
            pool.running.push(RunningAllocation {
                request,
                placement: vec![(place.id.clone(), vec![slot.id])],
                started_at: NOW,
                progress: Progress::Active,
            });
        }
    }
    pool
}
