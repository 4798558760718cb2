//! The planner of a simulated pool, which is told what changes, and the moments at which something is due by itself.

use std::collections::{BTreeSet, HashMap};

use det_ids::{AgentId, AllocationId, JobId};
use det_scheduler::{Planner, PoolSettings};

use crate::cluster::{Cluster, Task, TaskState, allocation};
use crate::text::micros;

/// Requests that come of age within this time do so together.
const AGE_STEP: i64 = 1_000_000;

/// What is kept of a cluster from one plan to the next.
pub(crate) struct Planning {
    settings: PoolSettings,
    pub(crate) planner: Planner,
    /// The attempt of each task that the planner knows.
    told: HashMap<usize, AllocationId>,
    /// When something happens to a task by itself, the earliest first.
    due: BTreeSet<(i64, usize)>,
    due_of: HashMap<usize, i64>,
    /// Slots that take work, or have some still.
    pub(crate) capacity: u64,
    /// Whether some agent or slot takes no new work: what runs there counts until it ends.
    some_out: bool,
}

impl Planning {
    pub(crate) fn new(settings: &PoolSettings) -> Self {
        Self {
            settings: settings.clone(),
            planner: Planner::new(settings.clone()),
            told: HashMap::new(),
            due: BTreeSet::new(),
            due_of: HashMap::new(),
            capacity: 0,
            some_out: false,
        }
    }

    /// Tells the planner what has changed; gives the tasks that were touched.
    pub(crate) fn catch_up(&mut self, cluster: &mut Cluster) -> BTreeSet<usize> {
        let mut touched = cluster.take_touched();
        if touched.everything {
            *self = Self::new(&self.settings);
            touched.tasks = (0..cluster.tasks.len()).collect();
            touched.jobs = cluster.jobs.keys().cloned().collect();
            touched.agents = cluster.agents.keys().cloned().collect();
            touched.service = true;
        }
        if touched.service {
            self.some_out = cluster.some_out_of_service();
        }
        if touched.service || self.some_out {
            self.capacity = cluster.in_service();
        }
        for id in &touched.agents {
            match cluster.agents.get(id) {
                Some(agent) => self.planner.put_agent(cluster.agent_snapshot(id, agent)),
                None => self.planner.remove_agent(&AgentId(id.clone())),
            }
        }
        let mut gone = Vec::new();
        for name in &touched.jobs {
            let id = JobId(name.clone());
            match cluster.jobs.get(name).filter(|job| job.live > 0) {
                Some(job) => self.planner.put_job(&id, cluster.planner_job(job)),
                None => gone.push(id),
            }
        }
        self.planner.set_workspaces(cluster.limits());
        for &number in &touched.tasks {
            self.tell(&cluster.tasks[number], number);
            self.set_due(&cluster.tasks[number], number, cluster.now);
        }
        for id in gone {
            self.planner.remove_job(&id);
        }
        touched.tasks
    }

    fn tell(&mut self, task: &Task, number: usize) {
        let now = match &task.state {
            TaskState::Waiting(_) | TaskState::Running(_) => Some(AllocationId(task.allocation())),
            TaskState::Held | TaskState::Ended(..) => None,
        };
        let before = match &now {
            Some(id) => self.told.insert(number, id.clone()),
            None => self.told.remove(&number),
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

    /// Notes when something happens to a task by itself: it ends, or leaves, or its request comes of age.
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

    /// The tasks to which something is due by now, in the order of their numbers.
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
