//! Scheduling: what the planner is given, and what becomes of its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{AllocationId, ContainerId, JobId, Micros, PlaceId, SlotId};
use det_lifecycle::allocation::AllocationState;
use det_orchestrator::{Event, Placed, Waiting};
use det_scheduler::{
    Job, NeverFits, PlaceSnapshot, PlaceState, Plan, Policy, PoolSettings, PoolSnapshot, Progress,
    Queue, Request, RunningAllocation, SlotSnapshot, SlotState, plan,
};

use super::{Refused, Tx};
use crate::history::{Rule, Submission};
use crate::mutant::Mutant;
use crate::rows::{Rows, Time};

/// Zero-slot containers that each agent takes at once.
const AUX_LIMIT: u32 = 2;
/// Shorter than the product's, so that simulated requests come of age.
const RESERVE_AFTER: Duration = Duration::from_secs(600);

/// A plan, and when to look again although nothing changes.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    pub(crate) look_again: Option<Time>,
}

impl Planned {
    /// Asks the planner about the rows as they are.
    pub(crate) fn of(rows: &Rows, rule: Rule, now: Time, mutant: Option<Mutant>) -> Self {
        let (snapshot, queue) = pool(rows, rule, mutant);
        let age = i64::try_from(RESERVE_AFTER.as_micros()).unwrap_or(i64::MAX);
        let look_again = queue
            .requests
            .iter()
            .map(|r| r.requested_at.0 + age)
            .filter(|due| *due > now)
            .min();
        Self {
            plan: plan(&snapshot, &queue, Micros(now)),
            look_again,
        }
    }

    /// The reasons of waiting, as they are stored.
    pub(crate) fn reasons(&self) -> BTreeMap<&AllocationId, String> {
        self.plan
            .waiting
            .iter()
            .map(|(id, reason)| (id, reason.to_string()))
            .collect()
    }
}

fn pool(rows: &Rows, rule: Rule, mutant: Option<Mutant>) -> (PoolSnapshot, Queue) {
    let mut held: BTreeMap<(&PlaceId, u32), AllocationId> = BTreeMap::new();
    let mut aux: BTreeMap<&PlaceId, u32> = BTreeMap::new();
    let live = || {
        rows.live
            .containers
            .iter()
            .filter_map(|id| rows.containers.get(id))
    };
    let mut parts: BTreeMap<&AllocationId, Vec<(PlaceId, Vec<SlotId>)>> = BTreeMap::new();
    for container in live() {
        for slot in &container.slots {
            held.insert(
                (&container.row.place, *slot),
                container.row.allocation_id.clone(),
            );
        }
        if container.slots.is_empty() {
            *aux.entry(&container.row.place).or_default() += 1;
        }
        let of = &container.row.allocation_id;
        parts.entry(of).or_default().push((
            container.row.place.clone(),
            container.slots.iter().copied().map(SlotId).collect(),
        ));
    }
    let unheld = mutant == Some(Mutant::DoublePlacement);
    if unheld {
        held.clear();
        parts.clear();
    }
    let mut snapshot = PoolSnapshot {
        settings: PoolSettings {
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
        },
        ..PoolSnapshot::default()
    };
    for agent in rows.agents.values() {
        let slot = |number: u32| {
            let holder = held.get(&(&agent.id, number)).cloned();
            SlotSnapshot {
                id: SlotId(number),
                state: if agent.disabled_slots.contains(&number) {
                    SlotState::Disabled(holder)
                } else {
                    holder.map_or(SlotState::Free, SlotState::Held)
                },
            }
        };
        snapshot.places.push(PlaceSnapshot {
            id: agent.id.clone(),
            state: match (agent.disconnected_at, agent.enabled, agent.draining) {
                (Some(_), _, _) => PlaceState::Disconnected,
                (None, _, true) => PlaceState::Draining,
                (None, true, false) => PlaceState::Enabled,
                (None, false, false) => PlaceState::Disabled,
            },
            slots: (0..agent.slots).map(slot).collect(),
            aux_limit: AUX_LIMIT,
            aux_used: aux.get(&agent.id).copied().unwrap_or(0),
        });
    }
    let mut queue = Queue::default();
    for row in rows
        .live
        .allocations
        .iter()
        .filter_map(|id| rows.allocations.get(id))
    {
        let row = &row.row;
        if row.placed_at.is_none() {
            queue.requests.push(request(row));
        } else if !unheld {
            snapshot.running.push(RunningAllocation {
                request: request(row),
                placement: parts.remove(&row.id).unwrap_or_default(),
                started_at: row.placed_at.unwrap_or(row.requested_at),
                progress: match (&row.preempted_for, row.preempt_deadline, &row.state) {
                    (Some(other), _, _) => Progress::PreemptedFor(other.clone()),
                    (None, Some(_), _) | (None, None, AllocationState::Killing { .. }) => {
                        Progress::Stopping
                    }
                    (None, None, _) => Progress::Active,
                },
            });
        }
    }
    for id in rows
        .live
        .allocations
        .iter()
        .filter_map(|id| rows.allocations.get(id))
        .filter_map(|a| a.row.experiment_id)
        .collect::<BTreeSet<_>>()
    {
        let Some(experiment) = rows.experiments.get(&id) else {
            continue;
        };
        queue.jobs.insert(
            JobId(id.to_string()),
            Job {
                priority: experiment.priority,
                weight: f64::from(experiment.weight) / 2.0,
                max_slots: experiment.max_slots,
                submitted_at: Micros(experiment.submitted_at),
                position: None,
                moved: false,
                workspace: None,
            },
        );
    }
    (snapshot, queue)
}

fn request(row: &det_orchestrator::Allocation) -> Request {
    Request {
        allocation_id: row.id.clone(),
        task_id: row.task_id.clone(),
        job_id: row.job_id.clone(),
        slots: row.slots,
        single_place: row.single_place,
        preemptible: true,
        excluded_places: BTreeSet::new(),
        requested_at: row.requested_at,
    }
}

/// Whether a submission can ever run on the agents that there are. A pool without agents cannot say no.
pub(crate) fn can_ever_fit(rows: &Rows, submission: &Submission) -> Result<(), NeverFits> {
    let (snapshot, _) = pool(rows, Rule::default(), None);
    if snapshot.places.is_empty() {
        return Ok(());
    }
    let request = Request {
        allocation_id: "submission".into(),
        task_id: "submission".into(),
        job_id: "submission".into(),
        slots: submission.slots,
        single_place: submission.single_place,
        preemptible: true,
        excluded_places: BTreeSet::new(),
        requested_at: Micros(0),
    };
    det_scheduler::can_ever_fit(&snapshot, &request)
}

impl Tx<'_> {
    /// Stores a plan.
    pub(crate) fn apply_plan(&mut self, planned: &Planned) -> Result<(), Refused> {
        let plan = &planned.plan;
        for placement in &plan.placements {
            let last = self.rows.last_container;
            let ids = (last + 1..).take(placement.parts.len());
            self.advance([Event::Place(Placed {
                placement: placement.clone(),
                container_ids: ids.map(|n| ContainerId(format!("c{n}"))).collect(),
            })])?;
        }
        let preempt = plan.preempt.iter().map(|it| Event::PreemptFor {
            id: it.allocation_id.clone(),
            for_allocation: it.for_allocation.clone(),
            reason: it.reason.to_string(),
        });
        let hand_over = plan.hand_over.iter().map(|it| Event::HandOver {
            id: it.allocation_id.clone(),
            for_allocation: it.for_allocation.clone(),
        });
        self.advance(preempt.chain(hand_over))?;
        for (id, reason) in &plan.waiting {
            let (kind, message) = (reason.kind(), reason.to_string());
            let stored = self.rows.allocations.get(id);
            if stored.is_none_or(|it| it.row.wait_reason.as_ref() == Some(&message)) {
                continue;
            }
            self.advance([Event::Waits {
                id: id.clone(),
                waiting: Waiting {
                    kind,
                    stored: message.clone(),
                    message,
                },
            }])?;
            if let Some(row) = self.rows.allocation_mut(id) {
                row.wait_kind = row.row.wait_reason.is_some().then_some(kind);
            }
        }
        Ok(())
    }
}
