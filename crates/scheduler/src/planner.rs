//! A planner that keeps what it is told, so that a pass after a few changes costs little more than these changes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use det_ids::{AgentId, AllocationId, JobId, Micros, SlotId, WorkspaceId};

use crate::decision::Decided;
use crate::model::{
    AgentSnapshot, Job, Policy, PoolSettings, PoolSnapshot, Queue, Request, RunningAllocation,
    WorkspaceLimit,
};
use crate::plan::{HandOver, Placement, Plan, Preemption};
use crate::prepared::Prepared;
use crate::reason::WaitReason;
use crate::space::Parts;
use crate::{fair_share, priority, round_robin};

/// One pool and its queue, told change by change. Passes over it decide what [`crate::plan()`] would decide for all of it.
///
/// What is told may come in any order and more than once; it shows at the next pass. Ids of allocations are unique: one
/// that runs waits no more, and the other way round.
pub struct Planner {
    prepared: Prepared,
    /// The reasons of the last pass.
    reasons: HashSet<Arc<WaitReason>>,
    /// Where the next pass goes on telling reasons whose numbers have changed.
    cursor: usize,
}

/// What a pass decided, and reasons that the caller does not know yet.
#[derive(Debug, Default)]
pub struct Pass {
    /// As in [`Plan::place`].
    pub place: Vec<Placement>,
    /// As in [`Plan::preempt`].
    pub preempt: Vec<Preemption>,
    /// As in [`Plan::hand_over`].
    pub hand_over: Vec<HandOver>,
    /// Requests that wait for another kind of reason than was told last, or of whose reason nothing was told, and some of
    /// those whose numbers have changed.
    pub waiting: Vec<(AllocationId, Arc<WaitReason>)>,
    /// How many of `waiting` are those.
    pub refreshed: usize,
    /// Requests at most whose numbers have changed since their reasons were told, and are not among `waiting`.
    pub outdated: usize,
}

impl Planner {
    /// An empty pool.
    pub fn new(settings: PoolSettings) -> Self {
        Self {
            prepared: Prepared::new(settings),
            reasons: HashSet::new(),
            cursor: 0,
        }
    }

    /// A pool and its queue as they are.
    pub fn of(pool: &PoolSnapshot, queue: &Queue) -> Self {
        let mut planner = Self::new(pool.settings.clone());
        for agent in &pool.agents {
            planner.put_agent(agent.clone());
        }
        // Agents get their numbers before there is anything that would have to be numbered anew.
        planner.prepared.settle();
        for (id, job) in &queue.jobs {
            planner.put_job(id, job.clone());
        }
        planner.set_workspaces(queue.workspaces.clone());
        for request in &queue.requests {
            planner.put_request(request.clone());
        }
        for running in &pool.running {
            planner.put_running(running.clone());
        }
        planner
    }

    /// How the pool decides from now on.
    pub fn set_settings(&mut self, settings: PoolSettings) {
        self.prepared.set_settings(settings);
    }

    /// An agent as it is now.
    pub fn put_agent(&mut self, agent: AgentSnapshot) {
        self.prepared.put_agent(Arc::new(agent));
    }

    /// The pool does not have this agent any more.
    pub fn remove_agent(&mut self, id: &AgentId) {
        self.prepared.remove_agent(id);
    }

    /// A job as it is now.
    pub fn put_job(&mut self, id: &JobId, job: Job) {
        self.prepared.put_job(id, job);
    }

    /// Nothing of a job waits or runs any more.
    pub fn remove_job(&mut self, id: &JobId) {
        self.prepared.remove_job(id);
    }

    /// The workspaces that have a limit now.
    pub fn set_workspaces(&mut self, limits: BTreeMap<WorkspaceId, WorkspaceLimit>) {
        self.prepared.workspaces = limits;
    }

    /// A request waits.
    pub fn put_request(&mut self, request: Request) {
        self.prepared.remove_running(&request.allocation_id);
        self.prepared.put_request(Arc::new(request));
    }

    /// An allocation holds something, as it does now.
    pub fn put_running(&mut self, running: RunningAllocation) {
        self.prepared
            .requests
            .remove(&running.request.allocation_id);
        self.prepared.put_running(Arc::new(running));
    }

    /// An allocation neither waits nor runs.
    pub fn remove(&mut self, id: &AllocationId) {
        self.prepared.requests.remove(id);
        self.prepared.remove_running(id);
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.prepared.requests.is_empty_when_settled()
            && self.prepared.running.is_empty_when_settled()
    }

    /// Decides, and tells reasons that the caller does not know: all that are new in kind, and `refreshed` at most of
    /// those whose numbers alone have changed, in turn.
    pub fn pass(&mut self, now: Micros, refreshed: usize) -> Pass {
        self.prepared.settle();
        let mut decided = decide(&self.prepared, now);
        let place = placements(&self.prepared, &decided.placed);
        let (of, list) = std::mem::take(&mut decided.reasons).into_parts();
        let list = self.intern(list);
        let Told {
            waiting,
            refreshed,
            outdated,
        } = self.tell(&of, &list, refreshed);
        Pass {
            place,
            preempt: decided.preempt,
            hand_over: decided.hand_over,
            waiting,
            refreshed,
            outdated,
        }
    }

    /// Decides, with the reasons of all that waits.
    pub fn plan(&mut self, now: Micros) -> Plan {
        self.prepared.settle();
        let decided = decide(&self.prepared, now);
        let place = placements(&self.prepared, &decided.placed);
        let waiting = self.prepared.requests.iter().enumerate();
        Plan {
            place,
            preempt: decided.preempt,
            hand_over: decided.hand_over,
            waiting: waiting
                .filter_map(|(number, waiting)| {
                    let reason = decided.reasons.of(number)?.clone();
                    Some((waiting.request.allocation_id.clone(), reason))
                })
                .collect(),
            reservations: decided
                .reservations
                .iter()
                .map(|(request, agents)| self.prepared.reservation(*request, agents))
                .collect(),
        }
    }

    /// What would start now.
    pub fn starting(&mut self, now: Micros) -> HashSet<AllocationId> {
        self.prepared.settle();
        let placed = decide(&self.prepared, now).placed;
        placed
            .iter()
            .map(|(number, _)| {
                self.prepared.requests[*number]
                    .request
                    .allocation_id
                    .clone()
            })
            .collect()
    }

    /// Why a request would wait if it were made now; `None` = it would start at once. `job` describes its job if nothing of
    /// it waits or runs here. The planner is as before afterwards.
    pub fn wait_of(&mut self, request: Request, job: Job, now: Micros) -> Option<WaitReason> {
        let (id, job_id) = (request.allocation_id.clone(), request.job_id.clone());
        let is_known = self.prepared.knows_job(&job_id);
        if !is_known {
            self.put_job(&job_id, job);
        }
        self.put_request(request);
        self.prepared.settle();
        let reasons = decide(&self.prepared, now).reasons;
        let number = self.prepared.number_of(&id);
        let reason = number.and_then(|number| reasons.of(number)).cloned();
        self.remove(&id);
        if !is_known {
            self.remove_job(&job_id);
        }
        reason
    }

    /// The earliest moment after `now` at which a waiting request comes of age ([`PoolSettings::reserve_after`]). Of what
    /// was told since the last pass it knows nothing.
    pub fn next_of_age(&self, now: Micros) -> Option<Micros> {
        let patience = self.prepared.settings.reserve_after?;
        let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        let due = self.prepared.requests.iter();
        due.map(|waiting| waiting.requested_at.0.saturating_add(patience))
            .filter(|due| *due > now.0)
            .min()
            .map(Micros)
    }

    /// Reasons that were reasons before are the same objects, which are compared quickly.
    fn intern(&mut self, list: Vec<WaitReason>) -> Vec<Arc<WaitReason>> {
        let mut before = std::mem::take(&mut self.reasons);
        list.into_iter()
            .map(|reason| {
                if let Some(known) = self.reasons.get(&reason) {
                    return Arc::clone(known);
                }
                let shared = before.take(&reason).unwrap_or_else(|| Arc::new(reason));
                self.reasons.insert(Arc::clone(&shared));
                shared
            })
            .collect()
    }

    /// Notes and answers what is to be told: at most `most` of those whose numbers alone have changed.
    fn tell(&mut self, of: &[u32], list: &[Arc<WaitReason>], most: usize) -> Told {
        let requests = self.prepared.requests.entries_mut();
        let mut told = Told::default();
        // From the cursor to the end, then from the beginning to the cursor.
        let start = self.cursor.min(requests.len());
        let mut next = None;
        for number in (start..requests.len()).chain(0..start) {
            let Some(reason) = of[number].checked_sub(1).map(|at| &list[at as usize]) else {
                continue;
            };
            let waiting = &mut requests[number];
            if let Some(known) = &waiting.told {
                if Arc::ptr_eq(known, reason) {
                    continue;
                }
                if std::mem::discriminant(&**known) == std::mem::discriminant(&**reason) {
                    if told.refreshed == most {
                        told.outdated += 1;
                        next.get_or_insert(number);
                        continue;
                    }
                    if known == reason {
                        waiting.told = Some(Arc::clone(reason));
                        continue;
                    }
                    told.refreshed += 1;
                }
            }
            waiting.told = Some(Arc::clone(reason));
            let id = waiting.request.allocation_id.clone();
            told.waiting.push((id, Arc::clone(reason)));
        }
        self.cursor = next.unwrap_or(0);
        told
    }
}

/// What is told after a pass.
#[derive(Default)]
struct Told {
    waiting: Vec<(AllocationId, Arc<WaitReason>)>,
    refreshed: usize,
    outdated: usize,
}

fn decide(prepared: &Prepared, now: Micros) -> Decided {
    match prepared.settings.policy {
        Policy::Priority { preemption, .. } => priority::decide(prepared, preemption, now),
        Policy::FairShare => fair_share::decide(prepared, now),
        Policy::RoundRobin => round_robin::decide(prepared, now),
    }
}

fn placements(prepared: &Prepared, placed: &[(usize, Parts)]) -> Vec<Placement> {
    if placed.is_empty() {
        return Vec::new();
    }
    let mut free = prepared.free_slots();
    placed
        .iter()
        .map(|(request, parts)| Placement {
            allocation_id: prepared.requests[*request].request.allocation_id.clone(),
            parts: name_slots(prepared, &mut free, *request, parts),
        })
        .collect()
}

/// Turns counts into slots: on each agent the lowest free numbers.
fn name_slots(
    prepared: &Prepared,
    free: &mut [std::vec::IntoIter<SlotId>],
    request: usize,
    parts: &Parts,
) -> Vec<(AgentId, Vec<SlotId>)> {
    let zero_slots = prepared.requests[request].slots == 0;
    parts
        .iter()
        .map(|&(agent, units)| {
            let wanted = if zero_slots { 0 } else { units as usize };
            let slots = free[agent as usize].by_ref().take(wanted).collect();
            (prepared.agents[agent as usize].agent.id.clone(), slots)
        })
        .collect()
}
