//! Scheduling: what the planner is given, and what becomes of its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, ContainerId, Micros};
use det_orchestrator::{Core, PassDecision};
use det_scheduler::{
    Job, NeverFits, PlaceSnapshot, Plan, Planner, Policy, PoolSettings, PoolSnapshot, Queue,
    SlotDemand, WaitExplanation, Work,
};

use serde_json::Map;

use super::{RefusalText, Tx};
use crate::history::Rule;
use crate::rows::{Agent, Allocation, Experiment, LaunchedTask, Rows, Time};

/// Zero-slot containers that each agent takes at once.
const AUX_LIMIT: u32 = 2;
/// Shorter than the product's, so that simulated requests come of age.
const RESERVE_AFTER: Duration = Duration::from_secs(600);

/// A plan, and when to look again although nothing changes.
pub(crate) struct PlannerAnswer {
    pub(crate) plan: Plan,
    pub(crate) look_again: Option<Time>,
}

impl PlannerAnswer {
    /// Asks the planner about the rows as they are.
    pub(crate) fn of(core: Core, rows: &Rows, rule: Rule, now: Time) -> Self {
        let (snapshot, queue) = pool(core, rows, rule);
        let mut planner = Planner::of(&snapshot, &queue);
        Self {
            plan: planner.plan(Micros(now)),
            look_again: planner.next_due_at(Micros(now)).map(|at| at.0),
        }
    }

    /// The reasons of waiting, as they are stored.
    pub(crate) fn reasons(&self) -> BTreeMap<&AllocationId, String> {
        let waiting = self.plan.waiting.iter();
        waiting.map(|(id, why)| (id, why.to_string())).collect()
    }

    /// What of it is to be stored.
    pub(crate) fn decided(&self, rows: &Rows) -> PassDecision {
        let waiting = self.plan.waiting.iter().map(|(id, reason)| {
            let waiting = WaitExplanation {
                kind: reason.kind(),
                message: reason.to_string(),
                details: Map::new(),
            };
            (id.clone(), Arc::new(waiting))
        });
        let mut decided = PassDecision {
            placements: self.plan.placements.clone(),
            preempt: self.plan.preempt.clone(),
            hand_over: self.plan.hand_over.clone(),
            waiting: waiting.collect(),
        };
        decided.keep_news(|id| {
            let row = &rows.allocations.get(id)?.row;
            let waits = row.placed_at.is_none() && row.ended_at.is_none();
            waits.then_some(row.wait_reason.as_ref())
        });
        decided
    }
}

fn settings(rule: Rule) -> PoolSettings {
    PoolSettings {
        policy: match rule {
            Rule::Priority => Policy::Priority {
                preemption: true,
                default_priority: 42,
            },
            Rule::FairShare => Policy::FairShare,
            Rule::RoundRobin => Policy::RoundRobin,
        },
        reserve_after: Some(RESERVE_AFTER),
        ..PoolSettings::default()
    }
}

fn pool(core: Core, rows: &Rows, rule: Rule) -> (PoolSnapshot, Queue) {
    let live = rows.live.allocations.iter();
    let live: Vec<&Allocation> = live.filter_map(|id| rows.allocations.get(id)).collect();
    let experiments: BTreeSet<_> = live.iter().filter_map(|a| a.row.experiment_id).collect();
    let jobs = experiments.iter().filter_map(|id| rows.experiments.get(id));
    let jobs = jobs.map(|experiment| (experiment.row.job_id.clone(), job(experiment)));
    let launched = live
        .iter()
        .filter_map(|a| rows.launched.get(&a.row.task_id));
    let jobs = jobs.chain(launched.map(|task| (task.job_id.clone(), job_of_task(task))));
    let work = live.iter().map(|allocation| work(rows, allocation));
    let pool = (settings(rule), places(rows));
    core.pool(pool, work, jobs.collect(), BTreeMap::new())
}

fn places(rows: &Rows) -> Vec<PlaceSnapshot> {
    let place = |agent: &Agent| {
        let containers = rows.live_containers_of(&agent.id).into_iter();
        PlaceSnapshot::of(
            agent.id.clone(),
            (&agent.row.services, agent.is_connected()),
            agent.slots(),
            AUX_LIMIT,
            containers.map(|c| (&c.row.allocation_id, c.slots.as_slice())),
        )
    };
    rows.agents.values().map(place).collect()
}

fn work(rows: &Rows, allocation: &Allocation) -> Work {
    let row = &allocation.row;
    let request = row.request(BTreeSet::new());
    let held = rows.members(&row.id).into_iter();
    let held = held.filter(|container| container.row.ended_at.is_none());
    let held = held.map(|container| (container.row.place.clone(), container.slots.clone()));
    row.course().work(request, held.collect())
}

fn job(experiment: &Experiment) -> Job {
    Job {
        priority: experiment.priority,
        weight: f64::from(experiment.weight) / 2.0,
        max_slots: experiment.max_slots,
        submitted_at: Micros(experiment.submitted_at),
        position: None,
        moved: false,
        workspace: None,
    }
}

fn job_of_task(task: &LaunchedTask) -> Job {
    Job {
        priority: task.launch.priority,
        weight: 1.0,
        max_slots: None,
        submitted_at: Micros(task.submitted_at),
        position: None,
        moved: false,
        workspace: None,
    }
}

/// Whether so many slots, on one place or on several, can ever be had on the agents that there are. A pool without agents
/// cannot refuse.
pub(crate) fn can_ever_fit(rows: &Rows, slots: u32, single_place: bool) -> Result<(), NeverFits> {
    let snapshot = PoolSnapshot {
        settings: settings(Rule::default()),
        places: places(rows),
        running: Vec::new(),
    };
    if snapshot.places.is_empty() {
        return Ok(());
    }
    let ask = SlotDemand {
        slots,
        single_place,
        excluded: &BTreeSet::new(),
    };
    det_scheduler::can_ever_fit(&snapshot, &ask)
}

impl Tx<'_> {
    /// Stores what a pass of the scheduler has decided, in this change.
    pub(crate) fn apply_plan(&mut self, decided: PassDecision) -> Result<(), RefusalText> {
        let mut ports = self.rows.host_ports();
        for placement in &decided.placements {
            if let Some(wish) = self.rows.port_wish(&placement.allocation_id) {
                ports.wish(placement.allocation_id.clone(), wish);
            }
        }
        let events = decided.into_events(&settings(Rule::default()), &mut ports, || {
            self.rows.last_container += 1;
            ContainerId(format!("c{}", self.rows.last_container))
        });
        self.advance(events)
    }
}
