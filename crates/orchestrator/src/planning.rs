//! What the planner is given, and what its plan does to the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use det_ids::{AllocationId, ContainerId, JobId, Micros, PlaceId, SlotId, WorkspaceId};
use det_lifecycle::allocation::AllocationState;
use det_scheduler::{
    HandOver, Job, PlaceSnapshot, Placement, PoolSettings, PoolSnapshot, Preemption, Progress,
    Queue, Request, RunningAllocation, SlotState, WaitExplanation, Work, WorkspaceLimit,
};

use det_taskspec::HostPorts;

use crate::{Allocation, Core, Event, Mutant, PlacedAllocation};

impl Allocation {
    /// What it asks the planner for; `excluded` = places that it must not run on.
    pub fn request(&self, excluded: BTreeSet<PlaceId>) -> Request {
        Request {
            allocation_id: self.id.clone(),
            task_id: self.task_id.clone(),
            job_id: self.job_id.clone(),
            slots: self.slots,
            single_place: self.single_place,
            preemptible: self.preemptible,
            excluded_places: excluded,
            misfits: None,
            requested_at: self.requested_at,
            not_before: self.not_before,
        }
    }

    /// The part of the row that decides whether it waits, runs or stops.
    pub fn course(&self) -> Course<'_> {
        Course {
            placed_at: self.placed_at,
            preempted_for: self.preempted_for.as_ref(),
            preempt_deadline: self.preempt_deadline,
            state: &self.state,
        }
    }
}

/// How far an allocation is, as its row contains it.
#[derive(Debug, Clone, Copy)]
pub struct Course<'a> {
    /// When it was given slots; `None` = it waits.
    pub placed_at: Option<Micros>,
    /// The waiting allocation that its slots go to once it has stopped.
    pub preempted_for: Option<&'a AllocationId>,
    /// When it is killed if it has not exited by then.
    pub preempt_deadline: Option<Micros>,
    /// State of the allocation's life cycle.
    pub state: &'a AllocationState,
}

impl Course<'_> {
    /// What an allocation that has not ended does in its pool. `placement` = what it still holds, slots by place.
    pub fn work(self, request: Request, placement: Vec<(PlaceId, Vec<SlotId>)>) -> Work {
        let Some(started_at) = self.placed_at else {
            return Work::Waits(request);
        };
        let progress = match (self.preempted_for, self.preempt_deadline, self.state) {
            (Some(other), _, _) => Progress::PreemptedFor(other.clone()),
            (None, Some(_), _) | (None, None, AllocationState::Killing { .. }) => {
                Progress::Stopping
            }
            (None, None, _) => Progress::Active,
        };
        Work::Runs(RunningAllocation {
            request,
            placement,
            started_at,
            progress,
        })
    }
}

impl Core {
    /// A pool and its queue as the planner gets them.
    pub fn pool(
        &self,
        (settings, places): (PoolSettings, Vec<PlaceSnapshot>),
        work: impl IntoIterator<Item = Work>,
        jobs: BTreeMap<JobId, Job>,
        workspaces: BTreeMap<WorkspaceId, WorkspaceLimit>,
    ) -> (PoolSnapshot, Queue) {
        let mut pool = PoolSnapshot {
            settings,
            places,
            running: Vec::new(),
        };
        let mut queue = Queue {
            requests: Vec::new(),
            jobs,
            workspaces,
        };
        for work in work {
            match work {
                Work::Waits(request) => queue.requests.push(request),
                Work::Runs(running) => pool.running.push(running),
            }
        }
        if self.is(Mutant::DoublePlacement) {
            pool.running.clear();
            let slots = pool.places.iter_mut().flat_map(|place| &mut place.slots);
            for slot in slots.filter(|slot| matches!(slot.state, SlotState::Held(_))) {
                slot.state = SlotState::Free;
            }
        }
        (pool, queue)
    }
}

/// What a pass of the scheduler decided for a pool, to be stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PassDecision {
    /// Requests that get slots now, with the slots on each place.
    pub placements: Vec<Placement>,
    /// Running allocations that are asked to stop.
    pub preempt: Vec<Preemption>,
    /// Stopping allocations whose slots are for another request from now on.
    pub hand_over: Vec<HandOver>,
    /// Requests with the reason why they wait; many may wait for the same one.
    pub waiting: Vec<(AllocationId, Arc<WaitExplanation>)>,
}

impl PassDecision {
    /// Leaves out reasons that are stored already, and those of allocations that do not wait any more. `stored` gives the
    /// stored reason of an allocation that waits; the outer `None` = it does not wait.
    pub fn keep_news<'a>(
        &mut self,
        stored: impl Fn(&AllocationId) -> Option<Option<&'a WaitExplanation>>,
    ) {
        self.waiting
            .retain(|(id, waiting)| stored(id).is_some_and(|known| known != Some(&**waiting)));
    }

    /// Whether the pass has decided nothing that is to be stored.
    pub fn is_empty(&self) -> bool {
        self.placements.is_empty()
            && self.preempt.is_empty()
            && self.hand_over.is_empty()
            && self.waiting.is_empty()
    }

    /// The events that store it, in their order: what starts, what is asked to stop, why the rest waits. `settings` = those
    /// of the pool; `ports` gives the ports of what starts, `new_id` makes the id of a container. No namespace is
    /// chosen: bindings are no part of a plan.
    pub fn into_events(
        self,
        settings: &PoolSettings,
        ports: &mut HostPorts,
        mut new_id: impl FnMut() -> ContainerId,
    ) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        events.extend(self.placements.into_iter().map(|mut placement| {
            let places = placement.parts.iter().map(|(place, _)| place.clone());
            let places: Vec<PlaceId> = places.collect();
            let by_place = placement.parts.into_iter();
            let by_container = by_place.flat_map(|(place, slots)| {
                let containers = settings.containers_of(slots).into_iter();
                containers.map(move |slots| (place.clone(), slots))
            });
            placement.parts = by_container.collect();
            Event::Place(PlacedAllocation {
                container_ids: placement.parts.iter().map(|_| new_id()).collect(),
                ports: ports.give(&placement.allocation_id, &places),
                namespace: None,
                placement,
            })
        }));
        events.extend(self.preempt.into_iter().map(|it| Event::PreemptFor {
            id: it.allocation_id,
            for_allocation: it.for_allocation,
            reason: it.reason.to_string(),
        }));
        events.extend(self.hand_over.into_iter().map(|it| Event::HandOver {
            id: it.allocation_id,
            for_allocation: it.for_allocation,
        }));
        events.extend(self.waiting.into_iter().map(|(id, waiting)| Event::Waits {
            id,
            waiting: Arc::unwrap_or_clone(waiting),
        }));
        events
    }
}

/// What of several things is due at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due<T> {
    /// Those whose moment has come or passed.
    pub now: Vec<T>,
    /// The earliest moment of the others; `None` = there are no others.
    pub next: Option<Micros>,
}

impl<T> Due<T> {
    /// Sorts things by whether they are due at `now` or later.
    pub fn of(things: impl IntoIterator<Item = (T, Micros)>, now: Micros) -> Self {
        let mut due = Self {
            now: Vec::new(),
            next: None,
        };
        for (thing, at) in things {
            if at <= now {
                due.now.push(thing);
            } else {
                due.next = Some(due.next.map_or(at, |next| next.min(at)));
            }
        }
        due
    }
}
