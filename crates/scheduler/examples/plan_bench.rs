//! How long one plan takes: `cargo run --release -p det-scheduler --example plan_bench`.
//!
//! Prints the median and the worst of repeated runs for pools of 1,000 agents of 8 slots and 50,000 waiting requests.
#![expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use det_ids::{AgentId, AllocationId, JobId, Micros, SlotId, TaskId};
use det_scheduler::{
    AgentSnapshot, AgentState, Job, Plan, Policy, PoolSettings, PoolSnapshot, Progress, Queue,
    Request, RunningAllocation, SlotSnapshot, SlotState, plan,
};

const AGENTS: u32 = 1_000;
const SLOTS: u32 = 8;
const WAITING: u32 = 50_000;
const REPEATS: usize = 9;
const NOW: Micros = Micros(1_000_000_000_000);

fn main() {
    println!("{AGENTS} agents of {SLOTS} slots, {WAITING} waiting, median and worst of {REPEATS}");
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
        last.place.len(),
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
        single_agent: false,
        preemptible: true,
        excluded_agents: BTreeSet::new(),
        requested_at: Micros(NOW.0 - waited_seconds * 1_000_000),
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
    };
    let running = (JobId::from("job-running"), job(0));
    let mut queue = Queue {
        requests: (0..WAITING)
            .map(|n| request(format!("{n}.1"), n % jobs, slots(n), waited_seconds))
            .collect(),
        jobs: (0..jobs)
            .map(|n| (JobId(format!("job-{n}")), job(n)))
            .collect(),
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
        agents: (0..AGENTS)
            .map(|n| AgentSnapshot {
                id: AgentId(format!("agent-{n:04}")),
                state: AgentState::Enabled,
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
    for agent in &mut pool.agents {
        for slot in &mut agent.slots {
            let mut request = request(format!("r.{}.{}", agent.id, slot.id), 0, 1, 0);
            request.job_id = JobId::from("job-running");
            slot.state = SlotState::Held(request.allocation_id.clone());
            pool.running.push(RunningAllocation {
                request,
                placement: vec![(agent.id.clone(), vec![slot.id])],
                started_at: NOW,
                progress: Progress::Active,
            });
        }
    }
    pool
}
