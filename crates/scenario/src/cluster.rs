//! The simulated pool: agents, jobs, tasks, and what a master would have stored of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId, TaskId, WorkspaceId};
use det_scheduler::{
    HandOver, Placement, Preemption, Progress, Request, RunningAllocation, WorkspaceLimit,
};
use serde::{Deserialize, Serialize};

use crate::agents::{Agent, Agents};
use crate::description::{Service, WorkspaceSettings};
use crate::task_names::TaskNames;
use crate::text::names;

/// Between the submission times of two jobs, so that a job fits in between.
const JOB_GAP: i64 = 1_000;

/// Everything that a master stores. Times are in microseconds from the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) now: i64,
    stamps: Stamps,
    pub(crate) agents: Agents,
    pub(crate) workspaces: Workspaces,
    pub(crate) jobs: BTreeMap<String, Job>,
    /// All tasks that were submitted, in order of submission.
    pub(crate) tasks: Vec<Task>,
    pub(crate) names: TaskNames,
    /// Tasks that wait or run.
    pub(crate) live: BTreeSet<usize>,
    /// What running tasks hold.
    #[serde(skip)]
    pub(crate) held: HeldSlots,
    /// What has changed since the planner was updated.
    #[serde(skip)]
    pub(crate) changes: Changes,
}

/// Times that were assigned, so that order is always determined.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Stamps {
    /// The last one of a request: each further one is later.
    last: i64,
    /// Submission times of all jobs.
    jobs: BTreeSet<i64>,
    /// By wanted submission time, the last one that was assigned instead: all in between are taken.
    #[serde(skip)]
    after: HashMap<i64, i64>,
}

impl Stamps {
    /// A time later than all that were assigned before, at or after `now`.
    fn next(&mut self, now: i64) -> i64 {
        self.last = now.max(self.last + 1);
        self.last
    }

    /// A submission time for a job, the wanted one or a little later, with free times between it and those of other jobs.
    fn of_job(&mut self, wanted: i64) -> i64 {
        let known = self.after.get(&wanted).copied();
        let mut stamp = known.unwrap_or(wanted);
        while let Some(taken) = self
            .jobs
            .range(stamp.saturating_sub(JOB_GAP - 1)..stamp.saturating_add(JOB_GAP))
            .next_back()
        {
            stamp = taken.saturating_add(JOB_GAP);
        }
        self.jobs.insert(stamp);
        self.after.insert(wanted, stamp);
        stamp
    }
}

/// Workspaces by name. The planner knows each by its number in this order, from 1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Workspaces(pub(crate) BTreeMap<String, WorkspaceSettings>);

impl Workspaces {
    /// The workspaces that have a limit.
    pub(crate) fn limits(&self) -> BTreeMap<WorkspaceId, WorkspaceLimit> {
        let workspaces = self.0.values().zip(1..);
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
    pub(crate) fn name(&self, id: WorkspaceId) -> Option<String> {
        let mut names = self.0.keys().zip(1..);
        let found = names.find(|(_, number)| WorkspaceId(*number) == id);
        found.map(|(name, _)| name.clone())
    }

    /// The number of a workspace, by its name.
    pub(crate) fn number(&self, name: &str) -> Option<WorkspaceId> {
        let mut names = self.0.keys().zip(1..);
        let found = names.find(|(known, _)| *known == name);
        found.map(|(_, number)| WorkspaceId(number))
    }

    /// Refuses the name of a workspace that does not exist.
    pub(crate) fn require(&self, name: Option<&str>) -> Result<(), String> {
        match name {
            Some(name) if !self.0.contains_key(name) => Err(format!(
                "there is no workspace \"{name}\"; list it below \"workspaces\""
            )),
            _ => Ok(()),
        }
    }
}

/// What running tasks hold, by agent. All of it can be computed from the tasks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct HeldSlots {
    slots: BTreeMap<String, BTreeMap<u32, usize>>,
    aux: BTreeMap<String, u32>,
    /// Number of slots in use on all agents.
    pub(crate) total: u64,
}

impl HeldSlots {
    /// A task holds these slots, by agent, from now on.
    fn hold(&mut self, number: usize, parts: &[(String, Vec<u32>)]) {
        for (agent, slots) in parts {
            let here = self.slots.entry(agent.clone()).or_default();
            here.extend(slots.iter().map(|slot| (*slot, number)));
            if slots.is_empty() {
                *self.aux.entry(agent.clone()).or_default() += 1;
            }
            self.total += slots.len() as u64;
        }
    }

    /// These slots, by agent, are free from now on.
    fn release(&mut self, parts: &[(String, Vec<u32>)]) {
        for (agent, slots) in parts {
            if let Some(here) = self.slots.get_mut(agent) {
                for slot in slots {
                    here.remove(slot);
                }
            }
            if slots.is_empty()
                && let Some(aux) = self.aux.get_mut(agent)
            {
                *aux = aux.saturating_sub(1);
            }
            self.total = self.total.saturating_sub(slots.len() as u64);
        }
    }

    /// The task that holds a slot of an agent.
    pub(crate) fn holder(&self, agent: &str, slot: u32) -> Option<usize> {
        self.slots.get(agent)?.get(&slot).copied()
    }

    /// Zero-slot tasks on an agent.
    pub(crate) fn aux_used(&self, agent: &str) -> u32 {
        self.aux.get(agent).copied().unwrap_or(0)
    }
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

impl Changes {
    /// Records that a job was changed.
    pub(crate) fn touch_job(&mut self, job: &str) {
        if !self.jobs.contains(job) {
            self.jobs.insert(job.to_owned());
        }
    }

    /// Records that an agent was added, removed, or taken into or out of service.
    pub(crate) fn touch_agent(&mut self, agent: &str) {
        self.agents.insert(agent.to_owned());
        self.service = true;
    }

    /// Records that other slots of agents are in use.
    fn touch_parts(&mut self, parts: &[(String, Vec<u32>)]) {
        let agents = parts.iter().map(|(agent, _)| agent.clone());
        self.agents.extend(agents);
    }
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
            misfits: None,
            requested_at: Micros(requested_at),
            not_before: None,
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
    /// Records that a task was changed, and with it its job.
    pub(crate) fn touch_task(&mut self, number: usize) {
        self.changes.tasks.insert(number);
        self.changes.touch_job(&self.tasks[number].job);
    }

    /// Computes the fields that are not stored.
    pub(crate) fn restored(mut self) -> Self {
        self.held = HeldSlots::default();
        self.stamps.after.clear();
        for number in self.live.clone() {
            self.hold(number);
        }
        self.changes.everything = true;
        self
    }

    /// Counts the slots that a running task holds.
    fn hold(&mut self, number: usize) {
        if let TaskState::Running(running) = &self.tasks[number].state {
            self.held.hold(number, &running.parts);
            self.changes.touch_parts(&running.parts);
        }
    }

    /// Releases the slots that a running task holds.
    fn release_slots(&mut self, number: usize) {
        if let TaskState::Running(running) = &self.tasks[number].state {
            self.held.release(&running.parts);
            self.changes.touch_parts(&running.parts);
        }
    }

    /// A submission time for a job, `waited` ago or a little later.
    pub(crate) fn job_stamp(&mut self, waited: i64) -> i64 {
        self.stamps.of_job(self.now.saturating_sub(waited))
    }

    /// Applies decisions: starts tasks, and asks tasks to stop.
    pub(crate) fn apply(
        &mut self,
        place: &[Placement],
        preempt: &[Preemption],
        hand_over: &[HandOver],
    ) {
        for placement in place {
            let Some(number) = self.names.of_allocation(&placement.allocation_id) else {
                continue;
            };
            let parts = placement.parts.iter();
            let parts = parts
                .map(|(agent, slots)| (agent.0.clone(), slots.iter().map(|slot| slot.0).collect()))
                .collect();
            self.start(number, parts);
        }
        for preemption in preempt {
            let Some(number) = self.names.of_allocation(&preemption.allocation_id) else {
                continue;
            };
            let owner = preemption.for_allocation.as_ref().map(|id| id.0.clone());
            self.ask_to_stop(number, owner);
            self.tasks[number].preempted += 1;
        }
        for tie in hand_over {
            if let Some(number) = self.names.of_allocation(&tie.allocation_id)
                && let TaskState::Running(running) = &mut self.tasks[number].state
                && let Some(stop) = &mut running.stop
            {
                stop.for_allocation = Some(tie.for_allocation.0.clone());
                self.touch_task(number);
            }
        }
    }

    /// Starts a waiting task on these slots.
    pub(crate) fn start(&mut self, number: usize, parts: Vec<(String, Vec<u32>)>) {
        let started_at = self.stamps.next(self.now);
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
        self.names.add(&task, number);
        let name = task.job.clone();
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
        let requested_at = self.stamps.next(self.now).saturating_sub(waited);
        let since = self.now.saturating_sub(waited);
        let task = &mut self.tasks[number];
        task.run += 1;
        self.names.add_allocation(task, number);
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

    /// Ends a task, and with it what it holds.
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

    /// Slots of agents that take work.
    pub(crate) fn in_service(&self) -> u64 {
        let offered = |id: &String, agent: &Agent| {
            let held = |slot| self.held.holder(id, slot).is_some();
            let serves = agent.service == Service::Enabled && agent.lost_at.is_none();
            let slots = agent.slots.iter().zip(0..);
            slots
                .filter(|(slot, number)| (serves && **slot == Service::Enabled) || held(*number))
                .count() as u64
        };
        self.agents
            .in_pool
            .iter()
            .map(|(id, agent)| offered(id, agent))
            .sum()
    }

    /// Removes an agent that has been disconnected for too long; its work is lost. Returns what happened, for users.
    pub(crate) fn give_up(&mut self, id: &str) -> String {
        let lost = self.lose_work(id, None);
        self.agents.give_up(id);
        self.changes.touch_agent(id);
        format!("agent {id} is given up{}", losing(&self.tasks, &lost))
    }
}

/// What was lost, as text for users.
pub(crate) fn losing(tasks: &[Task], lost: &[usize]) -> String {
    if lost.is_empty() {
        return String::new();
    }
    let lost = lost.iter().map(|number| tasks[*number].name.as_str());
    format!(", and with it {}", names(lost))
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
    match cluster.names.of_allocation(allocation) {
        Some(number) => cluster.tasks[number].name.clone(),
        None => allocation.0.clone(),
    }
}
