//! When a waiting request may start: runs the planner forward over the expected ends of running work.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, JobId, Micros, PlaceId};

use crate::model::{
    PlaceSnapshot, PoolSnapshot, Progress, Queue, Request, RunningAllocation, SlotSnapshot,
    SlotState,
};
use crate::plan::Placement;
use crate::planner::{Pass, Planner};
use crate::reason::WaitReason;

/// The most plans that one estimate makes.
const MOST_PLANS: usize = 256;

/// When a request may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Estimate {
    /// At this time, if running work ends as expected and nothing else is submitted.
    At(Micros),
    /// At this time at the latest: it waits for these allocations, which have been asked to stop and may take until
    /// then.
    AtTheLatest(Micros, Vec<AllocationId>),
    /// These allocations, whose end is not known, hold what it waits for. Of a request for slots none is named that
    /// holds no slot.
    Unforeseeable(Vec<AllocationId>),
    /// It waits for work of its workspace in other pools.
    InOtherPools,
    /// The end of running work does not help: the pool or the request must be changed, or a user must act.
    NotByWaiting,
    /// Not computed, because more than `MOST_PLANS` plans would be needed.
    TooFar,
}

/// Estimates when the request `target` starts. `ends` has the expected end of running allocations where it is known,
/// and the deadline of those that have been asked to stop; stopping allocations without an entry count as ended. Work
/// that starts in the meantime is assumed never to end.
pub fn estimate(
    pool: &PoolSnapshot,
    queue: &Queue,
    now: Micros,
    ends: &BTreeMap<AllocationId, Micros>,
    target: &AllocationId,
) -> Estimate {
    let mut forecast = ForecastPool::new(pool, queue, now, ends);
    // Work that starts again is assumed never to end.
    let mut ends = ends.clone();
    let mut stopping_first: Vec<AllocationId> = Vec::new();
    let mut limit = Limit::Slots;
    for _ in 0..MOST_PLANS {
        let pass = forecast.planner.pass(forecast.now, 0);
        if pass
            .placements
            .iter()
            .any(|placed| placed.allocation_id == *target)
        {
            return if stopping_first.is_empty() {
                Estimate::At(forecast.now)
            } else {
                Estimate::AtTheLatest(forecast.now, stopping_first)
            };
        }
        let mut reasons = pass.waiting.iter();
        let needs_more = reasons.any(|(id, reason)| {
            id == target
                && (reason.is_permanent()
                    || matches!(**reason, WaitReason::PlacesUnavailable { .. }))
        });
        let mut reasons = pass.waiting.iter();
        if let Some((_, reason)) = reasons.find(|(id, _)| id == target) {
            limit = Limit::of(reason);
        }
        if needs_more {
            return Estimate::NotByWaiting;
        }
        if forecast.apply(pass) {
            continue;
        }
        let next = forecast
            .running
            .keys()
            .filter_map(|id| Some((*ends.get(id)?, id.clone())))
            .min();
        // What pauses may start before anything ends.
        if let Some(start) = forecast.planner.next_start_at(forecast.now)
            && next.as_ref().is_none_or(|(end, _)| start < *end)
        {
            forecast.now = start;
            continue;
        }
        let Some((end, id)) = next else {
            let elsewhere = queue.workspaces.values().any(|own| own.in_other_pools > 0);
            if limit == Limit::Workspace && elsewhere {
                return Estimate::InOtherPools;
            }
            let asks = queue
                .requests
                .iter()
                .find(|one| one.allocation_id == *target);
            let is_relevant =
                |job: &JobId| asks.is_none_or(|asks| limit.is_relevant(queue, &asks.job_id, job));
            let held = forecast.running.into_iter();
            let gives = |held: &Request| held.slots > 0 || asks.is_none_or(|asks| asks.slots == 0);
            let held = held.filter(|(id, request)| {
                forecast.real.contains(id) && gives(request) && is_relevant(&request.job_id)
            });
            return Estimate::Unforeseeable(held.map(|(id, _)| id).collect());
        };
        forecast.now = forecast.now.max(end);
        ends.remove(&id);
        let request = forecast.release(&id);
        if forecast.displaced.contains(&id) {
            forecast.requeue(request);
        }
        if forecast.stopping.contains(&id) {
            stopping_first.push(id);
        }
    }
    Estimate::TooFar
}

/// What a request waits for, and therefore whose end would help.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// Free slots: the end of any work would help.
    Slots,
    /// Its job's limit: the end of work of its job would help.
    Job,
    /// Its workspace's limit: the end of work of jobs in its workspace would help.
    Workspace,
}

impl Limit {
    fn of(reason: &WaitReason) -> Self {
        match reason {
            WaitReason::OverJobCap { .. } => Self::Job,
            WaitReason::OverWorkspaceLimit { .. } => Self::Workspace,
            _ => Self::Slots,
        }
    }

    /// Whether the end of work of `other` would help `own`.
    fn is_relevant(self, queue: &Queue, own: &JobId, other: &JobId) -> bool {
        let workspace = |job: &JobId| queue.jobs.get(job).and_then(|job| job.workspace);
        match self {
            Self::Slots => true,
            Self::Job => own == other,
            Self::Workspace => workspace(own) == workspace(other),
        }
    }
}

/// A pool and its queue as they are expected to be at the time `now`.
struct ForecastPool {
    planner: Planner,
    waiting: BTreeMap<AllocationId, Request>,
    running: BTreeMap<AllocationId, Request>,
    /// Allocations that really run, as opposed to those that the estimate has started.
    real: BTreeSet<AllocationId>,
    /// Those in `real` that have been asked to stop.
    stopping: BTreeSet<AllocationId>,
    /// Those in `stopping` that were preempted for another request and will be requested again.
    displaced: BTreeSet<AllocationId>,
    now: Micros,
}

impl ForecastPool {
    fn new(
        pool: &PoolSnapshot,
        queue: &Queue,
        now: Micros,
        ends: &BTreeMap<AllocationId, Micros>,
    ) -> Self {
        let (going_on, gone): (Vec<_>, Vec<_>) = pool.running.iter().partition(|running| {
            running.progress == Progress::Active
                || ends.contains_key(&running.request.allocation_id)
        });
        let running: BTreeMap<AllocationId, Request> = going_on
            .iter()
            .map(|running| &running.request)
            .map(|request| (request.allocation_id.clone(), request.clone()))
            .collect();
        let stopping = going_on
            .iter()
            .filter(|running| running.progress != Progress::Active)
            .map(|running| running.request.allocation_id.clone())
            .collect();
        let displaced = pool.running.iter().filter_map(|running| {
            let for_another = matches!(running.progress, Progress::PreemptedFor(_));
            for_another.then(|| running.request.allocation_id.clone())
        });
        let gone_ids: BTreeSet<&AllocationId> = gone
            .iter()
            .map(|running| &running.request.allocation_id)
            .collect();
        let of_pool = |id: &AllocationId| running.contains_key(id) || gone_ids.contains(id);
        let mut auxiliary: BTreeMap<&PlaceId, u32> = BTreeMap::new();
        for running in pool.running.iter().filter(|r| r.request.slots == 0) {
            for (place, _) in &running.placement {
                *auxiliary.entry(place).or_default() += 1;
            }
        }
        let places = pool.places.iter().map(|place| PlaceSnapshot {
            slots: place
                .slots
                .iter()
                .map(|slot| SlotSnapshot {
                    id: slot.id,
                    state: without_holder(&slot.state, of_pool),
                })
                .collect(),
            aux_used: place
                .aux_used
                .saturating_sub(auxiliary.get(&place.id).copied().unwrap_or(0)),
            ..place.clone()
        });
        let snapshot = PoolSnapshot {
            settings: pool.settings.clone(),
            places: places.collect(),
            running: going_on.into_iter().cloned().collect(),
        };
        let displaced: BTreeSet<AllocationId> = displaced.collect();
        let mut queue = queue.clone();
        let again = gone.iter().map(|running| &running.request);
        let again = again
            .filter(|request| request.preemptible && displaced.contains(&request.allocation_id));
        queue.requests.extend(again.cloned());
        Self {
            planner: Planner::of(&snapshot, &queue),
            waiting: queue
                .requests
                .iter()
                .map(|request| (request.allocation_id.clone(), request.clone()))
                .collect(),
            real: running.keys().cloned().collect(),
            running,
            stopping,
            displaced,
            now,
        }
    }

    /// Applies what a pass decided; returns whether it decided anything.
    fn apply(&mut self, pass: Pass) -> bool {
        let acted = !pass.placements.is_empty() || !pass.preempt.is_empty();
        for placed in pass.placements {
            self.place(placed);
        }
        for stopped in pass.preempt {
            let request = self.release(&stopped.allocation_id);
            self.requeue(request);
        }
        acted
    }

    /// Requests the slots again for an allocation that was preempted.
    fn requeue(&mut self, request: Option<Request>) {
        if let Some(request) = request.filter(|request| request.preemptible) {
            self.planner.put_request(request.clone());
            self.waiting.insert(request.allocation_id.clone(), request);
        }
    }

    fn place(&mut self, placed: Placement) {
        let Some(request) = self.waiting.remove(&placed.allocation_id) else {
            return;
        };
        self.running.insert(placed.allocation_id, request.clone());
        self.planner.put_running(RunningAllocation {
            request,
            placement: placed.parts,
            started_at: self.now,
            progress: Progress::Active,
        });
    }

    /// Ends an allocation; returns its request.
    fn release(&mut self, id: &AllocationId) -> Option<Request> {
        self.planner.remove(id);
        self.running.remove(id)
    }
}

/// The state of a slot without its holder, which is in the list of running allocations.
fn without_holder(state: &SlotState, of_pool: impl Fn(&AllocationId) -> bool) -> SlotState {
    match state {
        SlotState::Held(holder) if of_pool(holder) => SlotState::Free,
        SlotState::Draining(Some(holder)) if of_pool(holder) => SlotState::Draining(None),
        SlotState::Disabled(Some(holder)) if of_pool(holder) => SlotState::Disabled(None),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Job, PlaceState, WorkspaceLimit};
    use det_ids::{SlotId, TaskId, WorkspaceId};

    const HOUR: i64 = 3_600_000_000;

    fn request(id: &str, slots: u32, at: i64) -> Request {
        Request {
            allocation_id: AllocationId(id.into()),
            task_id: TaskId(id.into()),
            job_id: JobId(id.into()),
            slots,
            single_place: false,
            preemptible: true,
            excluded_places: BTreeSet::new(),
            misfits: None,
            requested_at: Micros(at),
            not_before: None,
        }
    }

    /// One place of four slots on which `a` has two, `b` one and `c` one.
    fn full() -> PoolSnapshot {
        let holders = ["a", "a", "b", "c"];
        let slots = holders.iter().zip(0..).map(|(holder, id)| SlotSnapshot {
            id: SlotId(id),
            state: SlotState::Held(AllocationId((*holder).into())),
        });
        let running = |id: &str, slots: &[u32]| RunningAllocation {
            request: request(id, u32::try_from(slots.len()).unwrap(), 0),
            placement: vec![(
                PlaceId("x".into()),
                slots.iter().copied().map(SlotId).collect(),
            )],
            started_at: Micros(0),
            progress: Progress::Active,
        };
        PoolSnapshot {
            places: vec![PlaceSnapshot {
                id: PlaceId("x".into()),
                state: PlaceState::Enabled,
                slots: slots.collect(),
                aux_limit: 4,
                aux_used: 0,
            }],
            running: vec![
                running("a", &[0, 1]),
                running("b", &[2]),
                running("c", &[3]),
            ],
            ..PoolSnapshot::default()
        }
    }

    fn ends(known: &[(&str, i64)]) -> BTreeMap<AllocationId, Micros> {
        let known = known.iter();
        known
            .map(|(id, at)| (AllocationId((*id).into()), Micros(*at)))
            .collect()
    }

    fn of(queue: &[Request], known: &[(&str, i64)], target: &str) -> Estimate {
        let queue = Queue {
            requests: queue.to_vec(),
            ..Queue::default()
        };
        estimate(
            &full(),
            &queue,
            Micros(HOUR),
            &ends(known),
            &AllocationId(target.into()),
        )
    }

    #[test]
    fn a_request_starts_when_enough_has_ended() {
        let queue = [request("two", 2, 10)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR), ("a", 9 * HOUR)];
        assert_eq!(of(&queue, &known, "two"), Estimate::At(Micros(3 * HOUR)));
    }

    #[test]
    fn those_before_it_start_first() {
        let queue = [request("first", 2, 10), request("then", 2, 20)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR), ("a", 9 * HOUR)];
        assert_eq!(of(&queue, &known, "then"), Estimate::At(Micros(9 * HOUR)));
    }

    #[test]
    fn an_end_that_is_overdue_is_now() {
        let queue = [request("one", 1, 10)];
        assert_eq!(of(&queue, &[("b", 5)], "one"), Estimate::At(Micros(HOUR)));
    }

    #[test]
    fn allocations_without_a_known_end_are_named() {
        let queue = [request("all", 4, 10)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR)];
        let left = Estimate::Unforeseeable(vec![AllocationId("a".into())]);
        assert_eq!(of(&queue, &known, "all"), left);
    }

    #[test]
    fn at_a_limit_only_the_end_of_what_counts_there_would_help() {
        let job = |max_slots: Option<u32>, workspace: Option<i64>| Job {
            priority: 42,
            weight: 1.0,
            max_slots,
            submitted_at: Micros(0),
            position: None,
            moved: false,
            workspace: workspace.map(WorkspaceId),
        };
        let held = |jobs: &[(&str, Job)], limits: &[(i64, u32)]| {
            let more = Request {
                job_id: JobId("a".into()),
                ..request("more", 1, 10)
            };
            let jobs = jobs.iter();
            let queue = Queue {
                requests: vec![more],
                jobs: jobs
                    .map(|(id, job)| (JobId((*id).into()), job.clone()))
                    .collect(),
                workspaces: limits
                    .iter()
                    .map(|(id, max_slots)| {
                        let limit = WorkspaceLimit {
                            max_slots: *max_slots,
                            in_other_pools: 0,
                        };
                        (WorkspaceId(*id), limit)
                    })
                    .collect(),
            };
            let target = AllocationId("more".into());
            match estimate(&full(), &queue, Micros(HOUR), &BTreeMap::new(), &target) {
                Estimate::Unforeseeable(held) => held.iter().map(ToString::to_string).collect(),
                other => vec![format!("{other:?}")],
            }
        };
        assert_eq!(held(&[("a", job(None, None))], &[]), ["a", "b", "c"]);
        assert_eq!(held(&[("a", job(Some(2), None))], &[]), ["a"]);
        let of_one = [
            ("a", job(None, Some(1))),
            ("b", job(None, Some(1))),
            ("c", job(None, Some(2))),
        ];
        assert_eq!(held(&of_one, &[(1, 3)]), ["a", "b"]);
    }

    #[test]
    fn work_without_slots_holds_nothing_of_what_a_request_for_slots_waits_for() {
        let mut pool = full();
        pool.running.push(RunningAllocation {
            request: request("board", 0, 0),
            placement: vec![(PlaceId("x".into()), Vec::new())],
            started_at: Micros(0),
            progress: Progress::Active,
        });
        let queue = Queue {
            requests: vec![request("more", 1, 0)],
            ..Queue::default()
        };
        let target = AllocationId("more".into());
        let Estimate::Unforeseeable(held) =
            estimate(&pool, &queue, Micros(HOUR), &BTreeMap::new(), &target)
        else {
            panic!("nothing that runs has an expected end");
        };
        let held: Vec<&str> = held.iter().map(AllocationId::as_str).collect();
        assert_eq!(held, ["a", "b", "c"]);
    }

    #[test]
    fn what_stops_may_take_until_its_deadline_and_then_wants_to_go_on() {
        let mut pool = full();
        pool.settings.policy = crate::model::Policy::Priority {
            preemption: true,
            default_priority: 42,
        };
        for running in &mut pool.running {
            if running.request.allocation_id.as_str() == "a" {
                running.progress = Progress::PreemptedFor(AllocationId("x".into()));
            }
        }
        let urgent = Job {
            priority: 1,
            weight: 1.0,
            max_slots: None,
            submitted_at: Micros(0),
            position: None,
            moved: false,
            workspace: None,
        };
        let queue = Queue {
            requests: vec![request("x", 2, 0), request("y", 1, 1)],
            jobs: BTreeMap::from([(JobId("x".into()), urgent)]),
            ..Queue::default()
        };
        let ends = BTreeMap::from([(AllocationId("a".into()), Micros(5 * HOUR))]);
        let of = |id: &str| estimate(&pool, &queue, Micros(HOUR), &ends, &AllocationId(id.into()));
        assert_eq!(
            of("x"),
            Estimate::AtTheLatest(Micros(5 * HOUR), vec![AllocationId("a".into())])
        );
        // The others continue, and the preempted one is before it in the queue: only work that really runs is named.
        let Estimate::Unforeseeable(held) = of("y") else {
            panic!("{:?}", of("y"));
        };
        let held: Vec<&str> = held.iter().map(AllocationId::as_str).collect();
        assert_eq!(held, ["b", "c"]);
    }

    #[test]
    fn what_is_too_large_does_not_wait_for_the_end_of_anything() {
        let queue = Queue {
            requests: vec![request("x", 9, 0)],
            ..Queue::default()
        };
        let none = BTreeMap::new();
        let estimate = estimate(
            &full(),
            &queue,
            Micros(HOUR),
            &none,
            &AllocationId("x".into()),
        );
        assert_eq!(estimate, Estimate::NotByWaiting);
    }
}
