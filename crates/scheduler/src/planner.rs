//! A planner that keeps its input between passes, so that a pass after a few changes costs little more than these
//! changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId, WorkspaceId};

use crate::decision::Decision;
use crate::growth::{Growth, growth};
use crate::model::{
    Job, PlaceSnapshot, Policy, PoolSettings, PoolSnapshot, Queue, Request, RunningAllocation,
    WorkspaceLimit,
};
use crate::pauses::{Pauses, QueueChange};
use crate::plan::{HandOver, Placement, Plan, Preemption};
use crate::prepared::{PlaceView, PreparedPool};
use crate::reason::WaitReason;
use crate::space::Parts;
use crate::{fair_share, priority, round_robin};

/// One pool and its queue, updated change by change. A pass decides what [`crate::plan()`] would decide for the whole
/// input.
///
/// Updates may come in any order and more than once; they take effect at the next pass. Ids of allocations are unique:
/// one that runs does not wait, and the other way round.
pub struct Planner {
    prepared: PreparedPool,
    pauses: Pauses,
    /// The reasons of the last pass.
    reasons: HashSet<Arc<WaitReason>>,
    /// The request at which the next pass continues to report reasons whose numbers have changed.
    cursor: usize,
    /// Requests whose reason the next pass reports, even if that has not changed; it takes them out. Those that do not wait are
    /// ignored.
    pub unreported: BTreeSet<AllocationId>,
    /// Requests that places are not added for at present, because adding them has failed: they take nothing of what the pool
    /// may become. Those that do not wait are ignored.
    pub given_up: Arc<BTreeSet<AllocationId>>,
}

/// What a pass decided, and the reasons that have changed since the caller last received them.
#[derive(Debug, Default)]
pub struct Pass {
    /// Requests that start, as in [`Plan::placements`].
    pub placements: Vec<Placement>,
    /// Running allocations that are to stop, as in [`Plan::preempt`].
    pub preempt: Vec<Preemption>,
    /// Slots being freed that change hands, as in [`Plan::hand_over`].
    pub hand_over: Vec<HandOver>,
    /// Requests whose kind of reason differs from the one last reported, requests without a reported reason, and some
    /// of those whose reason changed only in its numbers.
    pub waiting: Vec<(AllocationId, Arc<WaitReason>)>,
    /// How many of `waiting` changed only in their numbers.
    pub refreshed: usize,
    /// Upper bound of the number of requests whose reason changed in its numbers but is not in `waiting`.
    pub outdated: usize,
    /// The requests that places are worth adding for, the most important first; none in a pool of fixed places.
    pub growth: Vec<Growth>,
}

impl Planner {
    /// A planner for an empty pool.
    pub fn new(settings: PoolSettings) -> Self {
        Self {
            prepared: PreparedPool::new(settings),
            pauses: Pauses::default(),
            reasons: HashSet::new(),
            cursor: 0,
            unreported: BTreeSet::new(),
            given_up: Arc::default(),
        }
    }

    /// A planner for this pool and queue.
    pub fn of(pool: &PoolSnapshot, queue: &Queue) -> Self {
        let mut planner = Self::new(pool.settings.clone());
        for place in &pool.places {
            planner.put_place(place.clone());
        }
        // Places get their numbers first, while nothing refers to them that would have to be renumbered.
        planner.prepared.apply_changes();
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

    /// Replaces the settings of the pool.
    pub fn set_settings(&mut self, settings: PoolSettings) {
        self.prepared.set_settings(settings);
    }

    /// Adds or replaces a place.
    pub fn put_place(&mut self, place: PlaceSnapshot) {
        self.prepared.put_place(Arc::new(place));
    }

    /// Removes a place; ignored if the pool does not have it.
    pub fn remove_place(&mut self, id: &PlaceId) {
        self.prepared.remove_place(id);
    }

    /// Adds or replaces a job.
    pub fn put_job(&mut self, id: &JobId, job: Job) {
        self.prepared.put_job(id, job);
    }

    /// Removes a job of which nothing waits or runs any more.
    pub fn remove_job(&mut self, id: &JobId) {
        self.prepared.remove_job(id);
    }

    /// Replaces the list of workspaces that have a limit.
    pub fn set_workspaces(&mut self, limits: BTreeMap<WorkspaceId, WorkspaceLimit>) {
        self.prepared.workspaces = limits;
    }

    /// Adds or replaces a waiting request; it does not run any more.
    pub fn put_request(&mut self, request: Request) {
        self.prepared.remove_running(&request.allocation_id);
        let request = Arc::new(request);
        match request.not_before {
            Some(until) => {
                if self.pauses.put(Arc::clone(&request), until) {
                    self.prepared.requests.remove(&request.allocation_id);
                }
            }
            None => {
                self.pauses.remove(&request.allocation_id);
                self.prepared.put_request(request);
            }
        }
    }

    /// Adds or replaces a running allocation; it does not wait any more.
    pub fn put_running(&mut self, running: RunningAllocation) {
        let id = &running.request.allocation_id;
        self.pauses.remove(id);
        self.prepared.requests.remove(id);
        self.prepared.put_running(Arc::new(running));
    }

    /// Removes an allocation: it neither waits nor runs.
    pub fn remove(&mut self, id: &AllocationId) {
        self.pauses.remove(id);
        self.prepared.requests.remove(id);
        self.prepared.remove_running(id);
    }

    /// Applies what was updated, and puts into the queue what may start at this time.
    fn look(&mut self, now: Micros) {
        for change in self.pauses.changes(now) {
            match change {
                QueueChange::Comes(request) => self.prepared.put_request(request),
                QueueChange::Goes(id) => {
                    self.prepared.requests.remove(&id);
                }
            }
        }
        self.prepared.apply_changes();
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.pauses.is_empty()
            && self.prepared.requests.is_empty_after_changes()
            && self.prepared.running.is_empty_after_changes()
    }

    /// Decides, and reports the reasons that have changed: all that changed in kind, and at most `refreshed` of those
    /// that changed only in their numbers, each in turn.
    pub fn pass(&mut self, now: Micros, refreshed: usize) -> Pass {
        self.look(now);
        for id in std::mem::take(&mut self.unreported) {
            if let Some(number) = self.prepared.number_of(&id) {
                self.prepared.requests.entries_mut()[number].reported_reason = None;
            }
        }
        let mut decision = decide(&self.prepared, now);
        let placements = placements(&self.prepared, &decision.placed);
        let (of, list) = std::mem::take(&mut decision.reasons).into_parts();
        let list = intern(&mut self.reasons, list);
        let reason_of = |number: usize| list.get(of[number].checked_sub(1)? as usize);
        let growth = growth(&self.prepared, reason_of, &decision.placed, &self.given_up);
        let ReasonUpdates {
            mut waiting,
            refreshed,
            outdated,
        } = self.changed_reasons(&of, &list, refreshed);
        waiting.extend(self.pauses.news());
        Pass {
            placements,
            preempt: decision.preempt,
            hand_over: decision.hand_over,
            waiting,
            refreshed,
            outdated,
            growth,
        }
    }

    /// Decides, with the reasons of all waiting requests.
    pub fn plan(&mut self, now: Micros) -> Plan {
        self.look(now);
        let decision = decide(&self.prepared, now);
        let placements = placements(&self.prepared, &decision.placed);
        let waiting = self.prepared.requests.iter().enumerate();
        Plan {
            placements,
            preempt: decision.preempt,
            hand_over: decision.hand_over,
            waiting: waiting
                .filter_map(|(number, waiting)| {
                    let reason = decision.reasons.of(number)?.clone();
                    Some((waiting.request.allocation_id.clone(), reason))
                })
                .chain(self.pauses.reasons())
                .collect(),
            reservations: decision
                .reservations
                .iter()
                .map(|(request, places)| self.prepared.reservation(*request, places))
                .collect(),
        }
    }

    /// The requests that would start now.
    pub fn starting(&mut self, now: Micros) -> HashSet<AllocationId> {
        self.look(now);
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

    /// Why a request would wait if it were added now; `None` = it would start at once. `job` describes its job if the
    /// planner does not have it yet. The planner is unchanged afterwards.
    pub fn wait_reason_if_added(
        &mut self,
        request: Request,
        job: Job,
        now: Micros,
    ) -> Option<WaitReason> {
        let (id, job_id) = (request.allocation_id.clone(), request.job_id.clone());
        let is_known = self.prepared.knows_job(&job_id);
        if !is_known {
            self.put_job(&job_id, job);
        }
        self.put_request(request);
        self.look(now);
        let reasons = decide(&self.prepared, now).reasons;
        let number = self.prepared.number_of(&id);
        let reason = number.and_then(|number| reasons.of(number)).cloned();
        let reason = reason.or_else(|| self.pauses.reason_of(&id));
        self.remove(&id);
        if !is_known {
            self.remove_job(&job_id);
        }
        reason
    }

    /// The earliest time after `now` at which a pass may decide otherwise without any update: a waiting request starts to
    /// reserve ([`PoolSettings::reserve_after`]), or may start ([`Request::not_before`]). Updates of the queue since the last
    /// pass are not considered.
    pub fn next_due_at(&self, now: Micros) -> Option<Micros> {
        let reserves = next_reservation_at(&self.prepared, now);
        reserves.into_iter().chain(self.next_start_at(now)).min()
    }

    /// The earliest time after `now` at which a request may start that may not before ([`Request::not_before`]).
    pub(crate) fn next_start_at(&self, now: Micros) -> Option<Micros> {
        self.pauses.next(now)
    }

    /// Records and returns the reasons to report: at most `most` of those that changed only in their numbers.
    fn changed_reasons(
        &mut self,
        of: &[u32],
        list: &[Arc<WaitReason>],
        most: usize,
    ) -> ReasonUpdates {
        let requests = self.prepared.requests.entries_mut();
        let mut updates = ReasonUpdates::default();
        // From the cursor to the end, then from the beginning to the cursor.
        let start = self.cursor.min(requests.len());
        let mut next = None;
        for number in (start..requests.len()).chain(0..start) {
            let Some(reason) = of[number].checked_sub(1).map(|at| &list[at as usize]) else {
                continue;
            };
            let waiting = &mut requests[number];
            if let Some(known) = &waiting.reported_reason {
                if Arc::ptr_eq(known, reason) {
                    continue;
                }
                if std::mem::discriminant(&**known) == std::mem::discriminant(&**reason) {
                    if updates.refreshed == most {
                        updates.outdated += 1;
                        next.get_or_insert(number);
                        continue;
                    }
                    if known == reason {
                        waiting.reported_reason = Some(Arc::clone(reason));
                        continue;
                    }
                    updates.refreshed += 1;
                }
            }
            waiting.reported_reason = Some(Arc::clone(reason));
            let id = waiting.request.allocation_id.clone();
            updates.waiting.push((id, Arc::clone(reason)));
        }
        self.cursor = next.unwrap_or(0);
        updates
    }
}

/// The earliest time after `now` at which a waiting request starts to reserve ([`PoolSettings::reserve_after`]).
fn next_reservation_at(pool: &PreparedPool, now: Micros) -> Option<Micros> {
    let patience = pool.settings.reserve_after?;
    let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
    let due = pool.requests.iter();
    due.map(|waiting| waiting.requested_at.0.saturating_add(patience))
        .filter(|due| *due > now.0)
        .min()
        .map(Micros)
}

/// Reuses the objects of equal reasons of the last pass, `reasons`, so that they can be compared by address; afterwards
/// `reasons` are those of this one.
fn intern(reasons: &mut HashSet<Arc<WaitReason>>, list: Vec<WaitReason>) -> Vec<Arc<WaitReason>> {
    let mut before = std::mem::take(reasons);
    list.into_iter()
        .map(|reason| {
            if let Some(known) = reasons.get(&reason) {
                return Arc::clone(known);
            }
            let shared = before.take(&reason).unwrap_or_else(|| Arc::new(reason));
            reasons.insert(Arc::clone(&shared));
            shared
        })
        .collect()
}

/// The reasons to report after a pass; the fields are those of [`Pass`].
#[derive(Default)]
struct ReasonUpdates {
    waiting: Vec<(AllocationId, Arc<WaitReason>)>,
    refreshed: usize,
    outdated: usize,
}

fn decide(prepared: &PreparedPool, now: Micros) -> Decision {
    match prepared.settings.policy {
        Policy::Priority { preemption, .. } => priority::decide(prepared, preemption, now),
        Policy::FairShare => fair_share::decide(prepared, now),
        Policy::RoundRobin => round_robin::decide(prepared, now),
    }
}

fn placements(prepared: &PreparedPool, placed: &[(usize, Parts)]) -> Vec<Placement> {
    if placed.is_empty() {
        return Vec::new();
    }
    let mut free: Vec<_> = prepared.places.iter().map(PlaceView::free_slots).collect();
    placed
        .iter()
        .map(|(request, parts)| Placement {
            allocation_id: prepared.requests[*request].request.allocation_id.clone(),
            parts: name_slots(prepared, &mut free, *request, parts),
        })
        .collect()
}

/// Chooses the slots for a number of units: on each place the lowest free ids.
fn name_slots(
    prepared: &PreparedPool,
    free: &mut [impl Iterator<Item = SlotId>],
    request: usize,
    parts: &Parts,
) -> Vec<(PlaceId, Vec<SlotId>)> {
    let zero_slots = prepared.requests[request].slots == 0;
    parts
        .iter()
        .map(|&(place, units)| {
            let wanted = if zero_slots { 0 } else { units as usize };
            let slots = free[place as usize].by_ref().take(wanted).collect();
            (prepared.places[place as usize].place.id.clone(), slots)
        })
        .collect()
}
