//! The simulated pool: agents, jobs, tasks, and what a master would have stored of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId, TaskId, WorkspaceId};
use det_scheduler::{
    HandOver, Job as PlannerJob, PlaceSnapshot, PlaceState, Placement, Policy, PoolSettings,
    PoolSnapshot, Preemption, Progress, Queue, Request, RunningAllocation, SlotSnapshot, SlotState,
    WorkspaceLimit,
};
use serde::{Deserialize, Serialize};

use crate::description::{AgentDescription, Service, WorkspaceSettings};

/// Between the submission times of two jobs, so that a job fits in between.
const JOB_GAP: i64 = 1_000;

/// Everything that a master stores. Times are in microseconds from the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) now: i64,
    /// The last time that was assigned: each further one is later, so that order is always determined.
    stamp: i64,
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) workspaces: BTreeMap<String, WorkspaceSettings>,
    pub(crate) jobs: BTreeMap<String, Job>,
    /// In order of submission.
    pub(crate) tasks: Vec<Task>,
    pub(crate) names: BTreeMap<String, usize>,
    /// Tasks by the allocations that they have had.
    allocations: BTreeMap<String, usize>,
    /// Tasks that wait or run.
    pub(crate) live: BTreeSet<usize>,
    /// Agents that were given up, for their return.
    pub(crate) gone: BTreeMap<String, Agent>,
    /// Submission times of all jobs.
    job_stamps: BTreeSet<i64>,
    /// By wanted submission time, the last one that was assigned instead: all in between are taken.
    #[serde(skip)]
    job_stamp_after: HashMap<i64, i64>,
    /// Tasks by job, in order of submission.
    of_job: BTreeMap<String, Vec<usize>>,
    /// What running tasks hold.
    #[serde(skip)]
    held: HeldSlots,
    /// What has changed since the planner was updated.
    #[serde(skip)]
    changes: Changes,
}

/// What running tasks hold, by agent. All of it can be computed from the tasks.
#[derive(Debug, Clone, PartialEq, Default)]
struct HeldSlots {
    slots: BTreeMap<String, BTreeMap<u32, usize>>,
    aux: BTreeMap<String, u32>,
    total: u64,
}

/// What has changed since the planner was updated.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Changes {
    /// Everything has changed: the cluster was restored.
    pub(crate) everything: bool,
    pub(crate) tasks: BTreeSet<usize>,
    pub(crate) jobs: BTreeSet<String>,
    pub(crate) agents: BTreeSet<String>,
    /// Whether agents or slots were added, removed, or taken into or out of service.
    pub(crate) service: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) slots: Vec<Service>,
    pub(crate) aux: u32,
    pub(crate) service: Service,
    /// When its connection was lost; `None` = it is connected.
    pub(crate) lost_at: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) priority: u8,
    pub(crate) weight: f64,
    pub(crate) max_slots: Option<u32>,
    pub(crate) concurrent: Option<u32>,
    pub(crate) submitted_at: i64,
    pub(crate) position: Option<i64>,
    /// Whether a user moved it in the queue.
    pub(crate) moved: bool,
    pub(crate) workspace: Option<String>,
    pub(crate) paused: bool,
    /// Tasks it has had, for their names.
    pub(crate) tasks: u32,
    /// Its tasks that wait or run.
    pub(crate) live: u32,
    /// Its tasks that do not ask for slots yet: because it is paused, or has enough live tasks.
    pub(crate) held: BTreeSet<usize>,
    /// Slots times microseconds that its tasks used, without those that have slots now.
    pub(crate) slot_micros: i128,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) job: String,
    pub(crate) slots: u32,
    pub(crate) single_node: bool,
    pub(crate) preemptible: bool,
    pub(crate) exclude: BTreeSet<String>,
    /// Microseconds that it still has to run; `None` = it runs until something ends it.
    pub(crate) left: Option<i64>,
    /// Microseconds that it needs to save and stop; `None` = it stops with [`crate::Operation::Leave`].
    pub(crate) stops_in: Option<i64>,
    pub(crate) restarts: u32,
    /// Number of allocations that it has had.
    pub(crate) run: u32,
    pub(crate) state: TaskState,
    pub(crate) first_started_at: Option<i64>,
    pub(crate) waited: i64,
    pub(crate) preempted: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum TaskState {
    /// Its job does not ask for it yet.
    Held,
    Waiting(WaitingState),
    Running(RunningState),
    Ended(End, i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct WaitingState {
    /// The time of its request, which is its position in the queue.
    pub(crate) requested_at: i64,
    pub(crate) since: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunningState {
    pub(crate) requested_at: i64,
    pub(crate) started_at: i64,
    pub(crate) since: i64,
    pub(crate) parts: Vec<(String, Vec<u32>)>,
    pub(crate) stop: Option<Stop>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stop {
    /// The allocation that gets its slots.
    pub(crate) for_allocation: Option<String>,
    /// When it leaves; `None` = with [`crate::Operation::Leave`].
    pub(crate) due: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Completed,
    Failed,
    Killed,
}

impl Agent {
    pub(crate) fn of(description: &AgentDescription) -> Self {
        Self {
            slots: vec![Service::Enabled; description.slots as usize],
            aux: description.aux,
            service: description.service,
            lost_at: None,
        }
    }
}

impl Task {
    pub(crate) fn allocation(&self) -> String {
        format!("{}.{}", self.name, self.run)
    }

    pub(crate) fn running(&self) -> Option<&RunningState> {
        match &self.state {
            TaskState::Running(running) => Some(running),
            TaskState::Held | TaskState::Waiting(_) | TaskState::Ended(..) => None,
        }
    }

    pub(crate) fn request(&self, requested_at: i64) -> Request {
        Request {
            allocation_id: AllocationId(self.allocation()),
            task_id: TaskId(self.name.clone()),
            job_id: JobId(self.job.clone()),
            slots: self.slots,
            single_place: self.single_node,
            preemptible: self.preemptible,
            excluded_places: self.exclude.iter().cloned().map(PlaceId).collect(),
            requested_at: Micros(requested_at),
        }
    }
}

impl RunningState {
    fn slots(&self) -> u64 {
        let slots = self.parts.iter().map(|(_, slots)| slots.len() as u64);
        slots.sum()
    }

    /// Slots times microseconds until now.
    pub(crate) fn slot_micros(&self, now: i64) -> i128 {
        i128::from(self.slots()) * i128::from(now - self.since)
    }
}

impl Cluster {
    /// Returns and clears what has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn touch_task(&mut self, number: usize) {
        self.changes.tasks.insert(number);
        let job = &self.tasks[number].job;
        if !self.changes.jobs.contains(job) {
            self.changes.jobs.insert(job.clone());
        }
    }

    pub(crate) fn touch_job(&mut self, job: &str) {
        self.changes.jobs.insert(job.to_owned());
    }

    /// Records that an agent was added, removed, or taken into or out of service.
    pub(crate) fn touch_agent(&mut self, agent: &str) {
        self.changes.agents.insert(agent.to_owned());
        self.changes.service = true;
    }

    /// Computes the fields that are not stored.
    pub(crate) fn restored(mut self) -> Self {
        self.held = HeldSlots::default();
        self.job_stamp_after.clear();
        for number in self.live.clone() {
            self.hold(number);
        }
        self.changes.everything = true;
        self
    }

    /// Counts the slots that a running task holds.
    fn hold(&mut self, number: usize) {
        let TaskState::Running(running) = &self.tasks[number].state else {
            return;
        };
        for (agent, slots) in &running.parts {
            let here = self.held.slots.entry(agent.clone()).or_default();
            here.extend(slots.iter().map(|slot| (*slot, number)));
            if slots.is_empty() {
                *self.held.aux.entry(agent.clone()).or_default() += 1;
            }
            self.held.total += slots.len() as u64;
            self.changes.agents.insert(agent.clone());
        }
    }

    /// Releases the slots that a running task holds.
    fn release_slots(&mut self, number: usize) {
        let TaskState::Running(running) = &self.tasks[number].state else {
            return;
        };
        for (agent, slots) in &running.parts {
            if let Some(here) = self.held.slots.get_mut(agent) {
                for slot in slots {
                    here.remove(slot);
                }
            }
            if slots.is_empty()
                && let Some(aux) = self.held.aux.get_mut(agent)
            {
                *aux = aux.saturating_sub(1);
            }
            self.held.total = self.held.total.saturating_sub(slots.len() as u64);
            self.changes.agents.insert(agent.clone());
        }
    }

    /// Slots that tasks hold on an agent.
    pub(crate) fn held_on(&self, agent: &str) -> impl Fn(u32) -> bool + '_ {
        let here = self.held.slots.get(agent);
        move |slot| here.is_some_and(|here| here.contains_key(&slot))
    }

    /// Zero-slot tasks on an agent.
    pub(crate) fn aux_used(&self, agent: &str) -> u32 {
        self.held.aux.get(agent).copied().unwrap_or(0)
    }

    /// A time later than all that were assigned before, at or after `now`.
    pub(crate) fn next_stamp(&mut self) -> i64 {
        self.stamp = self.now.max(self.stamp + 1);
        self.stamp
    }

    /// A submission time for a job, `waited` ago or a little later, with free times between it and those of other jobs.
    pub(crate) fn job_stamp(&mut self, waited: i64) -> i64 {
        let wished = self.now.saturating_sub(waited);
        let known = self.job_stamp_after.get(&wished).copied();
        let mut stamp = known.unwrap_or(wished);
        while let Some(taken) = self
            .job_stamps
            .range(stamp.saturating_sub(JOB_GAP - 1)..stamp.saturating_add(JOB_GAP))
            .next_back()
        {
            stamp = taken.saturating_add(JOB_GAP);
        }
        self.job_stamps.insert(stamp);
        self.job_stamp_after.insert(wished, stamp);
        stamp
    }

    pub(crate) fn task(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Numbers of the tasks of a job, or of the task of that name.
    pub(crate) fn tasks_of(&self, name: &str) -> Vec<usize> {
        if self.jobs.contains_key(name) {
            return self.of_job.get(name).cloned().unwrap_or_default();
        }
        self.task(name).into_iter().collect()
    }

    /// The pool and its queue as the planner's input.
    pub(crate) fn snapshot(&self, settings: &PoolSettings) -> (PoolSnapshot, Queue) {
        let mut pool = PoolSnapshot {
            settings: settings.clone(),
            ..PoolSnapshot::default()
        };
        let mut queue = Queue::default();
        for &number in &self.live {
            let task = &self.tasks[number];
            match &task.state {
                TaskState::Waiting(waiting) => {
                    queue.requests.push(task.request(waiting.requested_at));
                }
                TaskState::Running(running) => {
                    pool.running.push(allocation(task, running));
                }
                TaskState::Held | TaskState::Ended(..) => continue,
            }
            let job = &self.jobs[&task.job];
            queue
                .jobs
                .entry(JobId(task.job.clone()))
                .or_insert_with(|| self.planner_job(job));
        }
        queue.workspaces = self.limits();
        pool.places = self
            .agents
            .iter()
            .map(|(id, agent)| self.place_snapshot(id, agent))
            .collect();
        (pool, queue)
    }

    /// The workspaces that have a limit.
    pub(crate) fn limits(&self) -> BTreeMap<WorkspaceId, WorkspaceLimit> {
        let workspaces = self.workspaces.values().zip(1..);
        workspaces
            .filter_map(|(workspace, number)| {
                let limit = WorkspaceLimit {
                    max_slots: workspace.max_slots?,
                    in_other_pools: workspace.in_other_pools,
                };
                Some((WorkspaceId(number), limit))
            })
            .collect()
    }

    /// The name of a workspace, by its number.
    pub(crate) fn workspace_name(&self, id: WorkspaceId) -> Option<String> {
        let mut names = self.workspaces.keys().zip(1..);
        let found = names.find(|(_, number)| WorkspaceId(*number) == id);
        found.map(|(name, _)| name.clone())
    }

    pub(crate) fn planner_job(&self, job: &Job) -> PlannerJob {
        let mut names = self.workspaces.keys().zip(1..);
        PlannerJob {
            priority: job.priority,
            weight: job.weight,
            max_slots: job.max_slots,
            submitted_at: Micros(job.submitted_at),
            position: job.position,
            moved: job.moved,
            workspace: names
                .find(|(name, _)| Some(*name) == job.workspace.as_ref())
                .map(|(_, number)| WorkspaceId(number)),
        }
    }

    /// An agent as the planner's input.
    pub(crate) fn place_snapshot(&self, id: &str, agent: &Agent) -> PlaceSnapshot {
        let here = self.held.slots.get(id);
        PlaceSnapshot {
            id: PlaceId(id.to_owned()),
            state: match (agent.lost_at, agent.service) {
                (Some(_), _) => PlaceState::Disconnected,
                (None, Service::Enabled) => PlaceState::Enabled,
                (None, Service::Draining) => PlaceState::Draining,
                (None, Service::Disabled) => PlaceState::Disabled,
            },
            slots: agent
                .slots
                .iter()
                .zip(0..)
                .map(|(service, slot)| {
                    let holder = here.and_then(|here| here.get(&slot));
                    let holder =
                        holder.map(|number| AllocationId(self.tasks[*number].allocation()));
                    slot_snapshot(*service, slot, holder)
                })
                .collect(),
            aux_limit: agent.aux,
            aux_used: self.aux_used(id),
        }
    }

    /// Applies decisions: starts tasks, and asks tasks to stop.
    pub(crate) fn apply(
        &mut self,
        place: &[Placement],
        preempt: &[Preemption],
        hand_over: &[HandOver],
    ) {
        for placement in place {
            let Some(number) = self.of_allocation(&placement.allocation_id) else {
                continue;
            };
            let parts = placement.parts.iter();
            let parts = parts
                .map(|(agent, slots)| (agent.0.clone(), slots.iter().map(|slot| slot.0).collect()))
                .collect();
            self.start(number, parts);
        }
        for preemption in preempt {
            let Some(number) = self.of_allocation(&preemption.allocation_id) else {
                continue;
            };
            let owner = preemption.for_allocation.as_ref().map(|id| id.0.clone());
            self.ask_to_stop(number, owner);
            self.tasks[number].preempted += 1;
        }
        for tie in hand_over {
            if let Some(number) = self.of_allocation(&tie.allocation_id)
                && let TaskState::Running(running) = &mut self.tasks[number].state
                && let Some(stop) = &mut running.stop
            {
                stop.for_allocation = Some(tie.for_allocation.0.clone());
                self.touch_task(number);
            }
        }
    }

    /// The task of an allocation.
    pub(crate) fn of_allocation(&self, allocation: &AllocationId) -> Option<usize> {
        self.allocations.get(allocation.as_str()).copied()
    }

    /// Starts a waiting task on these slots.
    pub(crate) fn start(&mut self, number: usize, parts: Vec<(String, Vec<u32>)>) {
        let started_at = self.next_stamp();
        let now = self.now;
        let task = &mut self.tasks[number];
        let TaskState::Waiting(waiting) = task.state else {
            return;
        };
        task.waited += now - waiting.since;
        task.first_started_at.get_or_insert(now);
        task.state = TaskState::Running(RunningState {
            requested_at: waiting.requested_at,
            started_at,
            since: now,
            parts,
            stop: None,
        });
        self.hold(number);
        self.touch_task(number);
    }

    pub(crate) fn ask_to_stop(&mut self, number: usize, for_allocation: Option<String>) {
        let now = self.now;
        let task = &mut self.tasks[number];
        let due = task.stops_in.map(|wait| now.saturating_add(wait));
        if let TaskState::Running(running) = &mut task.state {
            running.stop = Some(Stop {
                for_allocation,
                due,
            });
        }
        self.touch_task(number);
    }

    /// Adds a task, which asks for slots as soon as its job allows it.
    pub(crate) fn submit(&mut self, task: Task, waited: i64) -> usize {
        let number = self.tasks.len();
        self.names.insert(task.name.clone(), number);
        let name = task.job.clone();
        self.of_job.entry(name.clone()).or_default().push(number);
        self.tasks.push(task);
        if let Some(job) = self.jobs.get_mut(&name) {
            job.tasks += 1;
            if !job.paused && job.concurrent.is_none_or(|most| job.live < most) {
                job.live += 1;
                self.wait(number, waited);
            } else {
                job.held.insert(number);
            }
        }
        number
    }

    /// Lets held tasks of a job ask for slots, as many as the job may have live.
    pub(crate) fn release(&mut self, job: &str) {
        loop {
            let Some(known) = self.jobs.get_mut(job) else {
                return;
            };
            let full = known.concurrent.is_some_and(|most| known.live >= most);
            if known.paused || full {
                return;
            }
            let Some(number) = known.held.pop_first() else {
                return;
            };
            known.live += 1;
            self.wait(number, 0);
        }
    }

    /// A task asks for slots, as if it had done so `waited` ago.
    fn wait(&mut self, number: usize, waited: i64) {
        let requested_at = self.next_stamp().saturating_sub(waited);
        let since = self.now.saturating_sub(waited);
        let task = &mut self.tasks[number];
        task.run += 1;
        self.allocations.insert(task.allocation(), number);
        task.state = TaskState::Waiting(WaitingState {
            requested_at,
            since,
        });
        self.live.insert(number);
        self.touch_task(number);
    }

    /// Removes a live task from its slots or the queue; the caller sets its next state.
    fn remove_live(&mut self, number: usize) {
        self.release_slots(number);
        let now = self.now;
        let task = &mut self.tasks[number];
        let mut slot_micros = 0;
        match &task.state {
            TaskState::Running(running) => {
                slot_micros = running.slot_micros(now);
                if let Some(left) = &mut task.left {
                    *left = left.saturating_sub(now - running.since).max(0);
                }
            }
            TaskState::Waiting(waiting) => task.waited += now - waiting.since,
            TaskState::Held | TaskState::Ended(..) => return,
        }
        self.live.remove(&number);
        if let Some(job) = self.jobs.get_mut(&task.job) {
            job.live = job.live.saturating_sub(1);
            job.slot_micros += slot_micros;
        }
        self.touch_task(number);
    }

    /// Ends a task.
    pub(crate) fn end(&mut self, number: usize, how: End) {
        self.remove_live(number);
        let now = self.now;
        let task = &mut self.tasks[number];
        let job = task.job.clone();
        task.state = TaskState::Ended(how, now);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.held.remove(&number);
        }
        self.release(&job);
    }

    /// A task gives up its slots and asks again, now or when its job is active again.
    pub(crate) fn request_again(&mut self, number: usize) {
        let was_live = self.live.contains(&number);
        self.remove_live(number);
        let task = &mut self.tasks[number];
        task.state = TaskState::Held;
        let name = task.job.clone();
        let Some(job) = self.jobs.get_mut(&name) else {
            return;
        };
        if was_live && !job.paused {
            // It still counts as one of the job's live tasks.
            job.live += 1;
            self.wait(number, 0);
        } else {
            job.held.insert(number);
            self.release(&name);
        }
    }

    /// The work on an agent (or on one slot of it) is lost: trials ask again without losing a restart, others end.
    pub(crate) fn lose_work(&mut self, agent: &str, slot: Option<u32>) -> Vec<usize> {
        let here = |number: &usize| {
            let parts = self.tasks[*number].running().map(|running| &running.parts);
            parts.into_iter().flatten().any(|(other, slots)| {
                other == agent && slot.is_none_or(|slot| slots.contains(&slot))
            })
        };
        let lost: Vec<usize> = self.live.iter().copied().filter(here).collect();
        for &number in &lost {
            if self.tasks[number].preemptible {
                self.request_again(number);
            } else {
                self.end(number, End::Killed);
            }
        }
        lost
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u64 {
        self.held.total
    }

    /// Slots of agents that take work.
    pub(crate) fn in_service(&self) -> u64 {
        let offered = |id: &String, agent: &Agent| {
            let held = self.held_on(id);
            let serves = agent.service == Service::Enabled && agent.lost_at.is_none();
            let slots = agent.slots.iter().zip(0..);
            slots
                .filter(|(slot, number)| (serves && **slot == Service::Enabled) || held(*number))
                .count() as u64
        };
        self.agents
            .iter()
            .map(|(id, agent)| offered(id, agent))
            .sum()
    }

    /// Whether some agent or slot takes no new work.
    pub(crate) fn some_out_of_service(&self) -> bool {
        self.agents.values().any(|agent| {
            agent.service != Service::Enabled
                || agent.lost_at.is_some()
                || agent.slots.iter().any(|slot| *slot != Service::Enabled)
        })
    }

    /// Free slots of agents that take work.
    pub(crate) fn free(&self, settings: &PoolSettings) -> u64 {
        let (pool, _) = self.snapshot(settings);
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
    pub(crate) fn order(&self, settings: &PoolSettings) -> Option<Vec<&str>> {
        let by_priority = match settings.policy {
            Policy::Priority { .. } => true,
            Policy::RoundRobin => false,
            Policy::FairShare => return None,
        };
        let live: BTreeSet<&str> = self
            .live
            .iter()
            .map(|number| self.tasks[*number].job.as_str())
            .collect();
        let mut order: Vec<&str> = live.into_iter().collect();
        order.sort_by_key(|name| {
            let job = &self.jobs[*name];
            let rank = by_priority.then(|| settings.priority_order.rank(job.priority));
            let position = job.position.unwrap_or(job.submitted_at);
            (rank, position, job.submitted_at)
        });
        Some(order)
    }
}

pub(crate) fn allocation(task: &Task, running: &RunningState) -> RunningAllocation {
    RunningAllocation {
        request: task.request(running.requested_at),
        placement: running
            .parts
            .iter()
            .map(|(agent, slots)| {
                let slots = slots.iter().copied().map(SlotId).collect();
                (PlaceId(agent.clone()), slots)
            })
            .collect(),
        started_at: Micros(running.started_at),
        progress: match &running.stop {
            None => Progress::Active,
            Some(Stop {
                for_allocation: Some(owner),
                ..
            }) => Progress::PreemptedFor(AllocationId(owner.clone())),
            Some(_) => Progress::Stopping,
        },
    }
}

/// The name of an allocation's task; the allocation's own where there is none.
pub(crate) fn task_name(cluster: &Cluster, allocation: &AllocationId) -> String {
    match cluster.of_allocation(allocation) {
        Some(number) => cluster.tasks[number].name.clone(),
        None => allocation.0.clone(),
    }
}

fn slot_snapshot(service: Service, slot: u32, holder: Option<AllocationId>) -> SlotSnapshot {
    SlotSnapshot {
        id: SlotId(slot),
        state: match service {
            Service::Enabled => holder.map_or(SlotState::Free, SlotState::Held),
            Service::Draining => SlotState::Draining(holder),
            Service::Disabled => SlotState::Disabled(holder),
        },
    }
}
