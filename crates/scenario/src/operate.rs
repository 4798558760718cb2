//! Applies operations to the simulated pool. Each returns what happened, as text for users, or why it is not possible.

use det_scheduler::{Policy, PoolSettings, Side};

use crate::agents::Agents;
use crate::cluster::{Cluster, End, Job, Task, TaskState, Workspaces, losing};
use crate::description::{
    AgentDescription, JobSettings, Operation, Scenario, Service, ServiceTarget, Start, Submission,
    WorkspaceSettings,
};
use crate::queue::move_in_queue;
use crate::text::{micros, names};
use det_ids::quantity;

/// Most tasks of a scenario.
const MOST_TASKS: usize = 1_000_000;

/// Applies operations to a pool with these settings.
pub(crate) struct Operator<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) settings: &'a PoolSettings,
    pub(crate) cluster: &'a mut Cluster,
}

impl Operator<'_> {
    /// Applies one operation.
    pub(crate) fn operate(&mut self, operation: &Operation) -> Result<Vec<String>, String> {
        match operation {
            Operation::Submit(submission) => self.submit_all(submission),
            Operation::Finish(which) => self.end_running(which, "ends", |operator, number| {
                operator.cluster.end(number, End::Completed);
            }),
            Operation::Fail(which) => self.end_running(which, "fails", Self::fail),
            Operation::Kill(which) => self.kill(which),
            Operation::Leave(which) => self.leave(which),
            Operation::Pause(jobs) => self.each_job(jobs, "is paused", Self::pause),
            Operation::Activate(jobs) => {
                self.each_job(jobs, "is active again", |operator, name| {
                    let cluster = &mut *operator.cluster;
                    if let Some(job) = cluster.jobs.get_mut(name) {
                        job.paused = false;
                    }
                    cluster.release(name);
                })
            }
            Operation::Set { job, settings: own } => self.set(job, own),
            Operation::Limit {
                workspace,
                settings: limits,
            } => self.limit(workspace, *limits),
            Operation::Move { job, anchor, ahead } => {
                let (side, preposition) = if *ahead {
                    (Side::Ahead, "ahead of")
                } else {
                    (Side::Behind, "behind")
                };
                move_in_queue(self.cluster, self.settings, job, anchor, side)?;
                Ok(vec![format!("{job} moves {preposition} {anchor}")])
            }
            Operation::Exclude { tasks, agent } => self.exclude(tasks, agent),
            Operation::Serve { places, service } => {
                let each = places.iter().map(|place| self.serve(place, *service));
                each.collect()
            }
            Operation::Lose(agents) => self.each_agent(agents, |cluster, id| {
                let now = cluster.now;
                if let Some(agent) = cluster.agents.in_pool.get_mut(id) {
                    agent.lost_at.get_or_insert(now);
                }
                format!("the connection of agent {id} is lost")
            }),
            Operation::Return(agents) => self.bring_back(agents),
            Operation::Join(agents) => self.join(agents),
            Operation::Remove(agents) => self.each_agent(agents, |cluster, id| {
                let lost = cluster.lose_work(id, None);
                cluster.agents.in_pool.remove(id);
                let losing = losing(&cluster.tasks, &lost);
                format!("agent {id} leaves the pool{losing}")
            }),
            Operation::RestartMaster => {
                let stored =
                    serde_json::to_string(&*self.cluster).map_err(|error| error.to_string())?;
                let restored: Cluster =
                    serde_json::from_str(&stored).map_err(|error| error.to_string())?;
                *self.cluster = restored.restored();
                Ok(vec!["the master restarts".to_owned()])
            }
        }
    }

    fn submit_all(&mut self, submission: &Submission) -> Result<Vec<String>, String> {
        if self.cluster.tasks.len() + submission.tasks as usize > MOST_TASKS {
            return Err(format!("a scenario has at most {MOST_TASKS} tasks"));
        }
        let waited = micros(submission.waited);
        let name = &submission.job;
        if !self.cluster.jobs.contains_key(name) {
            if self.cluster.names.has_task(name) {
                return Err(format!("\"{name}\" is the name of a task already"));
            }
            let job = self.new_job(submission)?;
            self.cluster.jobs.insert(name.clone(), job);
        } else if submission.settings != JobSettings::default() {
            return Err(format!(
                "job \"{name}\" exists already: use \"set\" to change it"
            ));
        }
        let mut first = None;
        for _ in 0..submission.tasks {
            let number = self.cluster.jobs[name].tasks + 1;
            let task = submission
                .name
                .clone()
                .unwrap_or_else(|| format!("{name}.{number}"));
            if self.cluster.names.has_task(&task)
                || (self.cluster.jobs.contains_key(&task) && task != *name)
            {
                return Err(format!("the name \"{task}\" is taken"));
            }
            let number = self.cluster.submit(new_task(task, submission), waited);
            first.get_or_insert(number);
            if let Some(on) = &submission.on {
                self.start_on(number, on)?;
                if submission.stopping {
                    self.cluster.ask_to_stop(number, None);
                }
            }
        }
        let job = &self.cluster.jobs[name];
        let priority = match self.settings.policy {
            Policy::Priority { .. } => format!(", priority {}", job.priority),
            Policy::FairShare => format!(", weight {}", job.weight),
            Policy::RoundRobin => String::new(),
        };
        let each = match (submission.slots, submission.tasks) {
            (0, _) => "without slots".to_owned(),
            (slots, 1) => format!("of {}", quantity(slots.into(), "slot")),
            (slots, _) => format!("of {} each", quantity(slots.into(), "slot")),
        };
        Ok(vec![format!(
            "{name} asks for {} {each}{priority}",
            quantity(submission.tasks.into(), "task"),
        )])
    }

    fn new_job(&mut self, submission: &Submission) -> Result<Job, String> {
        let listed = self.scenario.jobs.get(&submission.job);
        let listed = listed.cloned().unwrap_or_default();
        let own = &submission.settings;
        let workspace = own.workspace.clone().or(listed.workspace);
        self.cluster.workspaces.require(workspace.as_deref())?;
        let default_priority = match self.settings.policy {
            Policy::Priority {
                default_priority, ..
            } => default_priority,
            Policy::FairShare | Policy::RoundRobin => 42,
        };
        Ok(Job {
            priority: own.priority.or(listed.priority).unwrap_or(default_priority),
            weight: own.weight.or(listed.weight).unwrap_or(1.0),
            max_slots: own.max_slots.or(listed.max_slots).flatten(),
            concurrent: own.concurrent.or(listed.concurrent),
            submitted_at: self
                .cluster
                .job_stamp(micros(submission.job_age.unwrap_or(submission.waited))),
            workspace,
            ..Job::default()
        })
    }

    /// Starts a new task on these agents.
    fn start_on(&mut self, number: usize, on: &[Start]) -> Result<(), String> {
        if !matches!(self.cluster.tasks[number].state, TaskState::Waiting(_)) {
            return Err("its job lets no more of its tasks start".to_owned());
        }
        let mut left = self.cluster.tasks[number].slots;
        let mut parts = Vec::new();
        for start in on {
            let agent = self.cluster.agents.known(&start.agent)?;
            if left == 0
                && parts.is_empty()
                && self.cluster.held.aux_used(&start.agent) >= agent.aux
            {
                return Err(format!(
                    "{} has no auxiliary place left for {}",
                    start.agent, self.cluster.tasks[number].name
                ));
            }
            let taken = &self.cluster.held;
            let wanted = start.slots.unwrap_or(left).min(left);
            let free: Vec<u32> = (0..)
                .zip(&agent.slots)
                .filter(|(slot, service)| {
                    **service == Service::Enabled && taken.holder(&start.agent, *slot).is_none()
                })
                .map(|(slot, _)| slot)
                .take(wanted as usize)
                .collect();
            left -= u32::try_from(free.len()).unwrap_or(left);
            parts.push((start.agent.clone(), free));
        }
        if left > 0 {
            return Err(format!(
                "{} has no free slots for {}: {} are missing there",
                names(on.iter().map(|start| start.agent.as_str())),
                self.cluster.tasks[number].name,
                quantity(left.into(), "slot"),
            ));
        }
        self.cluster.start(number, parts);
        Ok(())
    }

    fn end_running(
        &mut self,
        which: &[String],
        verb: &str,
        end: impl Fn(&mut Self, usize),
    ) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for name in which {
            let found = self.cluster.names.known(name)?;
            let running: Vec<usize> = found
                .into_iter()
                .filter(|number| self.cluster.tasks[*number].running().is_some())
                .collect();
            if running.is_empty() {
                return Err(format!("nothing of \"{name}\" runs"));
            }
            for number in running {
                done.push(format!("{} {verb}", self.cluster.tasks[number].name));
                end(self, number);
            }
        }
        Ok(done)
    }

    fn fail(&mut self, number: usize) {
        let task = &mut self.cluster.tasks[number];
        if task.restarts == 0 {
            self.cluster.end(number, End::Failed);
        } else {
            task.restarts -= 1;
            self.cluster.request_again(number);
        }
    }

    fn kill(&mut self, which: &[String]) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for name in which {
            let live: Vec<usize> = self
                .cluster
                .names
                .known(name)?
                .into_iter()
                .filter(|number| !matches!(self.cluster.tasks[*number].state, TaskState::Ended(..)))
                .collect();
            if live.is_empty() {
                return Err(format!("\"{name}\" has ended already"));
            }
            // Held tasks first, because ending a live one would release the next held one.
            let held = |number: &usize| self.cluster.tasks[*number].state == TaskState::Held;
            let (held, rest): (Vec<usize>, Vec<usize>) = live.into_iter().partition(held);
            for number in held.into_iter().chain(rest) {
                self.cluster.end(number, End::Killed);
            }
            done.push(format!("{name} is killed"));
        }
        Ok(done)
    }

    /// Tasks that were asked to stop leave.
    fn leave(&mut self, which: &[String]) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for name in which {
            let stops = |number: &usize| {
                self.cluster.tasks[*number]
                    .running()
                    .is_some_and(|running| running.stop.is_some())
            };
            let stopping: Vec<usize> = self
                .cluster
                .names
                .known(name)?
                .into_iter()
                .filter(stops)
                .collect();
            if stopping.is_empty() {
                return Err(format!("nothing of \"{name}\" was asked to stop"));
            }
            for number in stopping {
                done.push(format!(
                    "{} has saved and leaves",
                    self.cluster.tasks[number].name
                ));
                self.cluster.request_again(number);
            }
        }
        Ok(done)
    }

    fn pause(&mut self, name: &str) {
        if let Some(job) = self.cluster.jobs.get_mut(name) {
            job.paused = true;
        }
        for number in self.cluster.names.of(name) {
            match &self.cluster.tasks[number].state {
                TaskState::Waiting(_) => self.cluster.request_again(number),
                TaskState::Running(running) if running.stop.is_none() => {
                    self.cluster.ask_to_stop(number, None);
                }
                TaskState::Running(_) | TaskState::Held | TaskState::Ended(..) => {}
            }
        }
    }

    fn each_job(
        &mut self,
        jobs: &[String],
        what: &str,
        change: impl Fn(&mut Self, &str),
    ) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for name in jobs {
            if !self.cluster.jobs.contains_key(name) {
                return Err(format!("there is no job \"{name}\""));
            }
            change(self, name);
            done.push(format!("{name} {what}"));
        }
        Ok(done)
    }

    fn set(&mut self, name: &str, settings: &JobSettings) -> Result<Vec<String>, String> {
        self.cluster
            .workspaces
            .require(settings.workspace.as_deref())?;
        let job = self
            .cluster
            .jobs
            .get_mut(name)
            .ok_or_else(|| format!("there is no job \"{name}\""))?;
        let mut done = Vec::new();
        if let Some(priority) = settings.priority {
            if job.priority != priority {
                // A change of the priority undoes a move.
                (job.position, job.moved) = (None, false);
            }
            job.priority = priority;
            done.push(format!("{name} gets priority {priority}"));
        }
        if let Some(weight) = settings.weight {
            job.weight = weight;
            done.push(format!("{name} gets weight {weight}"));
        }
        if let Some(max_slots) = settings.max_slots {
            job.max_slots = max_slots;
            done.push(match max_slots {
                Some(most) => format!("{name} may use at most {}", quantity(most.into(), "slot")),
                None => format!("{name} may use any number of slots"),
            });
        }
        if let Some(concurrent) = settings.concurrent {
            job.concurrent = Some(concurrent);
            let tasks = quantity(concurrent.into(), "task");
            done.push(format!("{name} may have {tasks} at a time"));
        }
        if let Some(workspace) = &settings.workspace {
            job.workspace = Some(workspace.clone());
            done.push(format!("{name} moves to workspace {workspace}"));
        }
        self.cluster.changes.touch_job(name);
        self.cluster.release(name);
        Ok(done)
    }

    fn limit(&mut self, name: &str, settings: WorkspaceSettings) -> Result<Vec<String>, String> {
        self.cluster.workspaces.require(Some(name))?;
        self.cluster.workspaces.0.insert(name.to_owned(), settings);
        let most = match settings.max_slots {
            Some(most) => format!("at most {}", quantity(most.into(), "slot")),
            None => "any number of slots".to_owned(),
        };
        Ok(vec![format!("workspace {name} may use {most}")])
    }

    fn exclude(&mut self, which: &[String], agent: &str) -> Result<Vec<String>, String> {
        self.cluster.agents.known(agent)?;
        for name in which {
            for number in self.cluster.names.known(name)? {
                self.cluster.tasks[number].exclude.insert(agent.to_owned());
                self.cluster.touch_task(number);
            }
        }
        let who = names(which.iter().map(String::as_str));
        Ok(vec![format!("{who} no longer may run on agent {agent}")])
    }

    fn serve(&mut self, place: &ServiceTarget, service: Service) -> Result<String, String> {
        let cluster = &mut *self.cluster;
        if cluster.agents.known(&place.agent)?.lost_at.is_some() {
            return Err(format!(
                "agent \"{}\" is not connected, so it cannot be notified",
                place.agent
            ));
        }
        let what = match place.slot {
            Some(slot) => format!("slot {slot} of agent {}", place.agent),
            None => format!("agent {}", place.agent),
        };
        cluster.changes.touch_agent(&place.agent);
        if let Some(agent) = cluster.agents.in_pool.get_mut(&place.agent) {
            match place.slot {
                None => agent.service = service,
                Some(slot) => {
                    *agent
                        .slots
                        .get_mut(slot as usize)
                        .ok_or_else(|| format!("there is no {what}"))? = service;
                }
            }
        }
        Ok(match service {
            Service::Enabled => format!("{what} takes work"),
            Service::Draining => format!("{what} finishes what it has"),
            Service::Disabled => {
                let lost = cluster.lose_work(&place.agent, place.slot);
                let losing = losing(&cluster.tasks, &lost);
                format!("{what} is taken out of service{losing}")
            }
        })
    }

    /// Does something to each of these agents, which must be in the pool.
    fn each_agent(
        &mut self,
        agents: &[String],
        change: impl Fn(&mut Cluster, &str) -> String,
    ) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for id in agents {
            self.cluster.agents.known(id)?;
            self.cluster.changes.touch_agent(id);
            done.push(change(self.cluster, id));
        }
        Ok(done)
    }

    fn bring_back(&mut self, agents: &[String]) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for id in agents {
            self.cluster.agents.bring_back(id)?;
            self.cluster.changes.touch_agent(id);
            done.push(format!("agent {id} is back"));
        }
        Ok(done)
    }

    fn join(&mut self, agents: &[AgentDescription]) -> Result<Vec<String>, String> {
        let mut done = Vec::new();
        for agent in agents {
            self.cluster.agents.join(agent)?;
            self.cluster.changes.touch_agent(&agent.id);
            let slots = quantity(agent.slots.into(), "slot");
            done.push(format!("agent {} joins with {slots}", agent.id));
        }
        Ok(done)
    }
}

impl Cluster {
    /// The pool at the start of a scenario.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let mut cluster = Self::default();
        cluster.workspaces = Workspaces(scenario.workspaces.clone());
        cluster.agents = Agents::of(&scenario.pool.agents);
        cluster.restored()
    }
}

fn new_task(name: String, submission: &Submission) -> Task {
    Task {
        name,
        job: submission.job.clone(),
        slots: submission.slots,
        single_node: submission.single_node,
        preemptible: submission.preemptible,
        exclude: submission.exclude.clone(),
        left: submission.duration.map(micros),
        stops_in: submission.stops_in.map(micros),
        restarts: submission.restarts,
        run: 0,
        state: TaskState::Held,
        first_started_at: None,
        waited: 0,
        preempted: 0,
    }
}
