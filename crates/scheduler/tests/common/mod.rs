//! A world to schedule in: builders that read like a sentence, a way to let time pass, and an independent judge.
#![allow(dead_code, reason = "each test file uses its own part of this module")]
#![allow(
    unreachable_pub,
    reason = "shared by several test binaries, exported by none"
)]

/// The checks that every plan must pass; the scenarios of `crates/scenario` run the same ones.
#[path = "../../../scenario/tests/judge/mod.rs"]
pub mod judge;

use std::collections::BTreeSet;

use det_ids::{AllocationId, JobId, Micros, PlaceId, PriorityOrder, SlotId, TaskId};
use det_scheduler::{
    Fitting, Job, Misfits, PlaceSnapshot, PlaceState, Plan, Policy, PoolSnapshot, Progress, Queue,
    Request, RunningAllocation, SlotSnapshot, SlotState, plan,
};

/// A pool, its queue and a clock.
#[derive(Clone)]
pub struct World {
    pub pool: PoolSnapshot,
    pub queue: Queue,
    pub now: Micros,
    clock: i64,
}

/// What a task is like, beside its name and slots.
#[derive(Clone)]
pub struct Traits {
    priority: u8,
    job: Option<String>,
    single_place: bool,
    preemptible: bool,
    cap: Option<u32>,
    position: Option<i64>,
    waited: i64,
    excluded: Vec<String>,
    /// Places that it does not fit, whether that lasts, and why.
    unfit: Vec<(String, bool, String)>,
    /// Why it is admitted to no place, whichever there are.
    refused: Option<String>,
    on: Vec<String>,
}

/// A preemptible trial of this priority, in a job of its own.
pub fn prio(priority: u8) -> Traits {
    Traits {
        priority,
        job: None,
        single_place: false,
        preemptible: true,
        cap: None,
        position: None,
        waited: 0,
        excluded: Vec::new(),
        unfit: Vec::new(),
        refused: None,
        on: Vec::new(),
    }
}

/// A notebook: one place, cannot be preempted.
pub fn notebook(priority: u8) -> Traits {
    let mut traits = prio(priority);
    traits.single_place = true;
    traits.preemptible = false;
    traits
}

impl Traits {
    pub fn job(mut self, job: &str) -> Self {
        self.job = Some(job.to_owned());
        self
    }
    pub fn single(mut self) -> Self {
        self.single_place = true;
        self
    }
    pub fn cap(mut self, max_slots: u32) -> Self {
        self.cap = Some(max_slots);
        self
    }
    pub fn moved_to(mut self, position: i64) -> Self {
        self.position = Some(position);
        self
    }
    pub fn waited_minutes(mut self, minutes: i64) -> Self {
        self.waited = minutes * 60_000_000;
        self
    }
    pub fn not_on(mut self, place: &str) -> Self {
        self.excluded.push(place.to_owned());
        self
    }
    /// Does not fit a place that could take it later, or, `never`, could not.
    pub fn unfit_for(mut self, place: &str, never: bool, reason: &str) -> Self {
        self.unfit
            .push((place.to_owned(), never, reason.to_owned()));
        self
    }
    /// Is admitted to no place of the pool, and to none that is added.
    pub fn refused(mut self, reason: &str) -> Self {
        self.refused = Some(reason.to_owned());
        self
    }
    pub fn on(mut self, place: &str) -> Self {
        self.on.push(place.to_owned());
        self
    }
}

/// What a plan is expected to do, or to give as a reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Starts(String),
    Stops(String),
    Waits(String, &'static str),
}

pub fn start(task: &str) -> Outcome {
    Outcome::Starts(task.to_owned())
}
pub fn preempt(task: &str) -> Outcome {
    Outcome::Stops(task.to_owned())
}
pub fn wait(task: &str, kind: &'static str) -> Outcome {
    Outcome::Waits(task.to_owned(), kind)
}

/// An empty pool without preemption, at a quiet hour.
pub fn pool() -> World {
    World {
        pool: PoolSnapshot::default(),
        queue: Queue::default(),
        now: Micros(100 * 3_600_000_000),
        clock: 0,
    }
}

impl World {
    pub fn preemption(mut self) -> Self {
        self.pool.settings.policy = Policy::Priority {
            preemption: true,
            default_priority: 42,
        };
        self
    }
    pub fn higher_first(mut self) -> Self {
        self.pool.settings.priority_order = PriorityOrder::HigherFirst;
        self
    }
    pub fn fair_share(mut self) -> Self {
        self.pool.settings.policy = Policy::FairShare;
        self
    }
    pub fn round_robin(mut self) -> Self {
        self.pool.settings.policy = Policy::RoundRobin;
        self
    }
    pub fn worst_fit(mut self) -> Self {
        self.pool.settings.fitting = Fitting::Worst;
        self
    }
    pub fn uneven(mut self) -> Self {
        self.pool.settings.allow_heterogeneous_fits = true;
        self
    }
    pub fn place(self, id: &str, slots: u32) -> Self {
        self.place_in(id, slots, 100, PlaceState::Enabled)
    }
    pub fn places(mut self, sizes: &[u32]) -> Self {
        for (number, size) in sizes.iter().enumerate() {
            self = self.place(&format!("a{number}"), *size);
        }
        self
    }
    pub fn place_in(mut self, id: &str, slots: u32, aux_limit: u32, state: PlaceState) -> Self {
        self.pool.places.push(PlaceSnapshot {
            id: PlaceId::from(id),
            state,
            slots: (0..slots)
                .map(|n| SlotSnapshot {
                    id: SlotId(n),
                    state: SlotState::Free,
                })
                .collect(),
            aux_limit,
            aux_used: 0,
        });
        self
    }
    /// A slot that is not offered.
    pub fn draining_slot(mut self, place: &str, slot: u32) -> Self {
        let slot = &mut self.place_mut(place).slots[slot as usize];
        slot.state = match slot.state.clone() {
            SlotState::Free => SlotState::Draining(None),
            SlotState::Held(holder) => SlotState::Draining(Some(holder)),
            other => other,
        };
        self
    }
    pub fn running(mut self, task: &str, slots: u32, traits: &Traits) -> Self {
        let request = self.request(task, slots, traits);
        let placement = self.lay_out(&request, &traits.on);
        self.occupy(request, placement);
        self
    }
    pub fn queued(mut self, task: &str, slots: u32, traits: &Traits) -> Self {
        let request = self.request(task, slots, traits);
        self.queue.requests.push(request);
        self
    }
    /// `count` tasks `name1`, `name2`, … of one job `name`.
    pub fn queued_many(mut self, name: &str, count: u32, slots: u32, traits: &Traits) -> Self {
        for n in 1..=count {
            self = self.queued(&format!("{name}{n}"), slots, &traits.clone().job(name));
        }
        self
    }
    pub fn running_many(mut self, name: &str, count: u32, slots: u32, traits: &Traits) -> Self {
        for n in 1..=count {
            self = self.running(&format!("{name}{n}"), slots, &traits.clone().job(name));
        }
        self
    }

    fn request(&mut self, task: &str, slots: u32, traits: &Traits) -> Request {
        self.clock += 1_000_000;
        let requested_at = Micros(self.now.0 - 3_600_000_000 / 30 + self.clock - traits.waited);
        let job_id = JobId::from(
            traits
                .job
                .clone()
                .unwrap_or_else(|| format!("job of {task}")),
        );
        self.queue.jobs.entry(job_id.clone()).or_insert(Job {
            priority: traits.priority,
            weight: 1.0,
            max_slots: traits.cap,
            submitted_at: requested_at,
            position: traits.position,
            moved: traits.position.is_some(),
            workspace: None,
        });
        Request {
            allocation_id: AllocationId::from(task),
            task_id: TaskId::from(task),
            job_id,
            slots,
            single_place: traits.single_place,
            preemptible: traits.preemptible,
            excluded_places: traits
                .excluded
                .iter()
                .map(|a| PlaceId::from(a.as_str()))
                .collect(),
            misfits: self.misfits(traits).map(Into::into),
            requested_at,
            not_before: None,
        }
    }

    fn misfits(&self, traits: &Traits) -> Option<Misfits> {
        if let Some(reason) = &traits.refused {
            let places = self.pool.places.iter().map(|place| place.id.clone());
            return Some(Misfits::refused(places, reason.clone()));
        }
        let unfit = traits.unfit.iter();
        let unfit = unfit.map(|(place, never, reason)| {
            (PlaceId::from(place.as_str()), (*never, reason.clone()))
        });
        (!traits.unfit.is_empty()).then(|| Misfits::of(unfit))
    }

    /// Slots for a running task: on the named places, or wherever they are free, first places first.
    fn lay_out(&self, request: &Request, on: &[String]) -> Vec<(PlaceId, Vec<SlotId>)> {
        let mut left = request.slots as usize;
        let mut placement = Vec::new();
        for place in &self.pool.places {
            let named = on.is_empty() || on.iter().any(|id| id == place.id.as_str());
            let free: Vec<SlotId> = place
                .slots
                .iter()
                .filter(|slot| slot.state == SlotState::Free)
                .map(|slot| slot.id)
                .take(left)
                .collect();
            if !named || (free.is_empty() && request.slots > 0) {
                continue;
            }
            left -= free.len();
            placement.push((place.id.clone(), free));
            if left == 0 {
                break;
            }
        }
        assert_eq!(
            left, 0,
            "the scenario has no free slots for {}",
            request.allocation_id
        );
        placement
    }

    /// Puts an allocation on its slots.
    pub fn occupy(&mut self, request: Request, placement: Vec<(PlaceId, Vec<SlotId>)>) {
        for (place, slots) in &placement {
            let id = request.allocation_id.clone();
            let place = self.place_mut(place.as_str());
            if slots.is_empty() {
                place.aux_used += 1;
            }
            for slot in &mut place.slots {
                if slots.contains(&slot.id) {
                    assert_eq!(
                        slot.state,
                        SlotState::Free,
                        "slot {} of {}",
                        slot.id,
                        place.id
                    );
                    slot.state = SlotState::Held(id.clone());
                }
            }
        }
        self.pool.running.push(RunningAllocation {
            request,
            placement,
            started_at: self.now,
            progress: Progress::Active,
        });
    }

    pub fn place_mut(&mut self, id: &str) -> &mut PlaceSnapshot {
        let found = self
            .pool
            .places
            .iter_mut()
            .find(|place| place.id.as_str() == id);
        found.expect("the scenario names an agent of its pool")
    }

    pub fn job_mut(&mut self, id: &str) -> &mut Job {
        let found = self.queue.jobs.get_mut(&JobId::from(id));
        found.expect("the scenario names a job of its queue")
    }

    pub fn decide(&self) -> Plan {
        plan(&self.pool, &self.queue, self.now)
    }

    /// Decides, has the judge look at it, and applies it.
    pub fn step(&mut self) -> Plan {
        let plan = self.decide();
        judge::check(&self.state(), &plan);
        self.apply(&plan);
        plan
    }

    pub fn state(&self) -> judge::State {
        judge::State {
            pool: self.pool.clone(),
            queue: self.queue.clone(),
            now: self.now,
        }
    }

    pub fn apply(&mut self, plan: &Plan) {
        for placement in &plan.placements {
            let at = self
                .queue
                .requests
                .iter()
                .position(|request| request.allocation_id == placement.allocation_id);
            let request = self
                .queue
                .requests
                .remove(at.expect("only waiting requests start"));
            self.occupy(request, placement.parts.clone());
            self.now.0 += 1;
        }
        for stop in &plan.preempt {
            let running = self
                .pool
                .running
                .iter_mut()
                .find(|running| running.request.allocation_id == stop.allocation_id);
            running.expect("only running work stops").progress = match &stop.for_allocation {
                Some(allocation) => Progress::PreemptedFor(allocation.clone()),
                None => Progress::Stopping,
            };
        }
        for tie in &plan.hand_over {
            let running = self
                .pool
                .running
                .iter_mut()
                .find(|running| running.request.allocation_id == tie.allocation_id);
            running.expect("only running work is handed over").progress =
                Progress::PreemptedFor(tie.for_allocation.clone());
        }
    }

    /// A running task ends and returns what it held.
    pub fn ends(&mut self, task: &str) -> Request {
        let at = self
            .pool
            .running
            .iter()
            .position(|running| running.request.allocation_id.as_str() == task);
        let ended = self
            .pool
            .running
            .remove(at.expect("only running work ends"));
        for (place, slots) in &ended.placement {
            let Some(place) = self.pool.places.iter_mut().find(|known| known.id == *place) else {
                continue;
            };
            if slots.is_empty() {
                place.aux_used -= 1;
            }
            for slot in place
                .slots
                .iter_mut()
                .filter(|slot| slots.contains(&slot.id))
            {
                slot.state = match slot.state.clone() {
                    SlotState::Held(_) => SlotState::Free,
                    SlotState::Draining(_) => SlotState::Draining(None),
                    SlotState::Disabled(_) => SlotState::Disabled(None),
                    SlotState::Free | SlotState::Foreign => panic!("slot {} was held", slot.id),
                };
            }
        }
        ended.request
    }

    /// All tasks that were asked to stop do so, and wait again.
    pub fn stopped_ones_come_back(&mut self) {
        let stopping: Vec<String> = self
            .pool
            .running
            .iter()
            .filter(|running| running.progress != Progress::Active)
            .map(|running| running.request.allocation_id.0.clone())
            .collect();
        for task in stopping {
            let mut request = self.ends(&task);
            request.requested_at = self.now;
            self.queue.requests.push(request);
        }
    }

    pub fn is_running(&self, task: &str) -> bool {
        self.pool
            .running
            .iter()
            .any(|running| running.request.allocation_id.as_str() == task)
    }

    /// One step, and what it must have done, all of it.
    pub fn expect(mut self, expected: &[Outcome]) -> Self {
        let plan = self.step();
        let expected: BTreeSet<Outcome> = expected.iter().cloned().collect();
        assert_eq!(outcomes(&plan), expected, "{plan:#?}");
        self
    }

    /// One step, and how many of a job's tasks run after it.
    pub fn expect_running(mut self, job: &str, tasks: usize) -> Self {
        self.step();
        assert_eq!(self.count_running(job), tasks);
        self
    }

    pub fn count_running(&self, job: &str) -> usize {
        self.pool
            .running
            .iter()
            .filter(|running| running.request.job_id.as_str() == job)
            .count()
    }

    pub fn then(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

pub fn outcomes(plan: &Plan) -> BTreeSet<Outcome> {
    let starts = plan
        .placements
        .iter()
        .map(|p| start(p.allocation_id.as_str()));
    let stops = plan
        .preempt
        .iter()
        .map(|p| preempt(p.allocation_id.as_str()));
    let waits = plan
        .waiting
        .iter()
        .map(|(allocation, reason)| wait(allocation.as_str(), reason.kind().name()));
    starts.chain(stops).chain(waits).collect()
}
