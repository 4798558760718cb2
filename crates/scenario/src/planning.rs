//! The planner of a simulated pool, updated with what changes, and the times at which something is due by itself.

use std::collections::{BTreeSet, HashMap};

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId};
use det_scheduler::{
    Job as PlannerJob, PlaceSnapshot, PlaceState, Planner, Policy, PoolSettings, PoolSnapshot,
    Queue, SlotSnapshot, SlotState,
};

use crate::agents::Agent;
use crate::cluster::{Cluster, Job, Task, TaskState, Workspaces, allocation};
use crate::text::micros;

/// Requests that reach the age limit within this time, in microseconds, do so together.
const AGE_STEP: i64 = 1_000_000;

/// State that is kept from one plan to the next.
pub(crate) struct PlanningState {
    settings: PoolSettings,
    pub(crate) planner: Planner,
    /// The allocation of each task that the planner knows, by task number.
    known_allocations: HashMap<usize, AllocationId>,
    /// When something happens to a task by itself, the earliest first.
    due: BTreeSet<(i64, usize)>,
    due_of: HashMap<usize, i64>,
    /// Slots that take work, or are still in use.
    pub(crate) capacity: u64,
    /// Whether some agent or slot takes no new work; slots in use there count until that work ends.
    some_out: bool,
}

impl PlanningState {
    pub(crate) fn new(settings: &PoolSettings) -> Self {
        Self {
            settings: settings.clone(),
            planner: Planner::new(settings.clone()),
            known_allocations: HashMap::new(),
            due: BTreeSet::new(),
            due_of: HashMap::new(),
            capacity: 0,
            some_out: false,
        }
    }

    /// Updates the planner with what has changed; returns the tasks that have changed.
    pub(crate) fn update_planner(&mut self, cluster: &mut Cluster) -> BTreeSet<usize> {
        let mut changes = std::mem::take(&mut cluster.changes);
        if changes.everything {
            *self = Self::new(&self.settings);
            changes.tasks = (0..cluster.tasks.len()).collect();
            changes.jobs = cluster.jobs.keys().cloned().collect();
            changes.agents = cluster.agents.in_pool.keys().cloned().collect();
            changes.service = true;
        }
        if changes.service {
            self.some_out = cluster.agents.some_out_of_service();
        }
        if changes.service || self.some_out {
            self.capacity = cluster.in_service();
        }
        for id in &changes.agents {
            match cluster.agents.in_pool.get(id) {
                Some(agent) => self.planner.put_place(place_snapshot(cluster, id, agent)),
                None => self.planner.remove_place(&PlaceId(id.clone())),
            }
        }
        let mut gone = Vec::new();
        for name in &changes.jobs {
            let id = JobId(name.clone());
            match cluster.jobs.get(name).filter(|job| job.live > 0) {
                Some(job) => self
                    .planner
                    .put_job(&id, planner_job(&cluster.workspaces, job)),
                None => gone.push(id),
            }
        }
        self.planner.set_workspaces(cluster.workspaces.limits());
        for &number in &changes.tasks {
            self.update_task(&cluster.tasks[number], number);
            self.set_due(&cluster.tasks[number], number, cluster.now);
        }
        for id in gone {
            self.planner.remove_job(&id);
        }
        changes.tasks
    }

    fn update_task(&mut self, task: &Task, number: usize) {
        let now = match &task.state {
            TaskState::Waiting(_) | TaskState::Running(_) => Some(AllocationId(task.allocation())),
            TaskState::Held | TaskState::Ended(..) => None,
        };
        let before = match &now {
            Some(id) => self.known_allocations.insert(number, id.clone()),
            None => self.known_allocations.remove(&number),
        };
        if let Some(before) = before
            && now.as_ref() != Some(&before)
        {
            self.planner.remove(&before);
        }
        match &task.state {
            TaskState::Waiting(waiting) => {
                self.planner.put_request(task.request(waiting.requested_at));
            }
            TaskState::Running(running) => self.planner.put_running(allocation(task, running)),
            TaskState::Held | TaskState::Ended(..) => {}
        }
    }

    /// Records when something happens to a task by itself: it ends, or leaves, or its request reaches the age limit.
    fn set_due(&mut self, task: &Task, number: usize, now: i64) {
        if let Some(before) = self.due_of.remove(&number) {
            self.due.remove(&(before, number));
        }
        let due = match &task.state {
            TaskState::Running(running) => {
                let ends = task.left.map(|left| running.since.saturating_add(left));
                let leaves = running.stop.as_ref().and_then(|stop| stop.due);
                [ends, leaves].into_iter().flatten().min()
            }
            TaskState::Waiting(waiting) => self
                .settings
                .reserve_after
                .map(micros)
                .map(|patience| {
                    let due = waiting.requested_at.saturating_add(patience);
                    due.div_euclid(AGE_STEP)
                        .saturating_add(1)
                        .saturating_mul(AGE_STEP)
                })
                .filter(|due| *due > now),
            TaskState::Held | TaskState::Ended(..) => None,
        };
        if let Some(due) = due {
            self.due.insert((due, number));
            self.due_of.insert(number, due);
        }
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the tasks for which something is due by `now`, in the order of their numbers.
    pub(crate) fn take_due(&mut self, now: i64) -> BTreeSet<usize> {
        let mut tasks = BTreeSet::new();
        while let Some((at, number)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, number));
            self.due_of.remove(&number);
            tasks.insert(number);
        }
        tasks
    }
}

/// The pool and its queue as the planner's input.
pub(crate) fn snapshot(cluster: &Cluster, settings: &PoolSettings) -> (PoolSnapshot, Queue) {
    let mut pool = PoolSnapshot {
        settings: settings.clone(),
        ..PoolSnapshot::default()
    };
    let mut queue = Queue::default();
    for &number in &cluster.live {
        let task = &cluster.tasks[number];
        match &task.state {
            TaskState::Waiting(waiting) => {
                queue.requests.push(task.request(waiting.requested_at));
            }
            TaskState::Running(running) => {
                pool.running.push(allocation(task, running));
            }
            TaskState::Held | TaskState::Ended(..) => continue,
        }
        let job = &cluster.jobs[&task.job];
        queue
            .jobs
            .entry(JobId(task.job.clone()))
            .or_insert_with(|| planner_job(&cluster.workspaces, job));
    }
    queue.workspaces = cluster.workspaces.limits();
    pool.places = cluster
        .agents
        .in_pool
        .iter()
        .map(|(id, agent)| place_snapshot(cluster, id, agent))
        .collect();
    (pool, queue)
}

/// A job as the planner's input.
fn planner_job(workspaces: &Workspaces, job: &Job) -> PlannerJob {
    PlannerJob {
        priority: job.priority,
        weight: job.weight,
        max_slots: job.max_slots,
        submitted_at: Micros(job.submitted_at),
        position: job.position,
        moved: job.moved,
        workspace: job
            .workspace
            .as_deref()
            .and_then(|name| workspaces.number(name)),
    }
}

/// An agent as the planner's input.
fn place_snapshot(cluster: &Cluster, id: &str, agent: &Agent) -> PlaceSnapshot {
    PlaceSnapshot {
        id: PlaceId(id.to_owned()),
        state: agent.service.of_place(agent.lost_at.is_none()),
        slots: agent
            .slots
            .iter()
            .zip(0..)
            .map(|(service, slot)| {
                let holder = cluster.held.holder(id, slot);
                let holder = holder.map(|number| AllocationId(cluster.tasks[number].allocation()));
                SlotSnapshot {
                    id: SlotId(slot),
                    state: service.of_slot(holder),
                }
            })
            .collect(),
        aux_limit: agent.aux,
        aux_used: cluster.held.aux_used(id),
    }
}

/// Free slots of agents that take work.
pub(crate) fn free_slots(cluster: &Cluster, settings: &PoolSettings) -> u64 {
    let (pool, _) = snapshot(cluster, settings);
    let free = |agent: &PlaceSnapshot| {
        let free = agent.slots.iter();
        free.filter(|slot| slot.state == SlotState::Free).count() as u64
    };
    pool.places
        .iter()
        .filter(|agent| agent.state == PlaceState::Enabled)
        .map(free)
        .sum()
}

/// Live jobs in the order in which they are served; `None` if the policy has no order.
pub(crate) fn order<'a>(cluster: &'a Cluster, settings: &PoolSettings) -> Option<Vec<&'a str>> {
    let by_priority = match settings.policy {
        Policy::Priority { .. } => true,
        Policy::RoundRobin => false,
        Policy::FairShare => return None,
    };
    let live: BTreeSet<&str> = cluster
        .live
        .iter()
        .map(|number| cluster.tasks[*number].job.as_str())
        .collect();
    let mut order: Vec<&str> = live.into_iter().collect();
    order.sort_by_key(|name| {
        let job = &cluster.jobs[*name];
        let rank = by_priority.then(|| settings.priority_order.rank(job.priority));
        let position = job.position.unwrap_or(job.submitted_at);
        (rank, position, job.submitted_at)
    });
    Some(order)
}
