//! Playing a scenario: time passes, tasks run and end, and the planner is asked whenever something has happened.
//!
//! A moment is over when the planner decides nothing new. Tasks that take no time to leave have left by then, and what
//! they made room for has started. Between steps the clock jumps to the next thing that happens by itself: a task ends,
//! or leaves, a request comes of age, a lost agent is given up.

use std::collections::BTreeMap;

use det_ids::{AllocationId, Micros};
use det_scheduler::{Plan, Policy, PoolSettings, PoolSnapshot, Queue, WaitReason, plan};

use crate::cluster::{Cluster, End, Task, TaskState};
use crate::description::{Scenario, Step, Until, When};
use crate::expect::Look;
use crate::fields::{Mistake, Mistakes};
use crate::report::{
    Decision, JobReport, Mismatch, Moment, QueueEntry, Report, RunningTask, Use, WaitingTask,
    policy_text,
};
use crate::text::micros;

/// Plans in a row at one moment; more would mean that the planner does not come to rest.
const MOST_ROUNDS: usize = 10_000;
/// Moments of a scenario at most.
const MOST_MOMENTS: usize = 1_000_000;
/// Requests that come of age within this time do so together.
const AGE_STEP: i64 = 1_000_000;

/// How a scenario is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// What is told of each moment.
    pub detail: Detail,
    /// What becomes of an operation that cannot happen.
    pub refusals: Refusals,
}

/// What becomes of an operation that cannot happen, such as the end of a task that does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refusals {
    /// It is a mistake of the scenario.
    #[default]
    Fail,
    /// It is passed over; for scenarios that were drawn by chance.
    PassOver,
}

/// How much a report says of each moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// What changed.
    #[default]
    Changes,
    /// What changed, all that runs and waits, and the queue.
    Everything,
}

/// A plan and what it was made for.
#[derive(Debug)]
pub struct Observation<'a> {
    /// The pool before the plan.
    pub pool: &'a PoolSnapshot,
    /// The queue before the plan.
    pub queue: &'a Queue,
    /// When.
    pub now: Micros,
    /// What the planner decided.
    pub plan: &'a Plan,
}

/// Plays a scenario; `watch` is shown every plan.
///
/// # Errors
/// What cannot happen: a step before the one before it, a task that does not exist, a planner that does not come to
/// rest.
pub fn play(
    scenario: &Scenario,
    options: Options,
    watch: &mut dyn FnMut(&Observation<'_>),
) -> Result<Report, Mistakes> {
    let mut player = Player {
        scenario,
        settings: &scenario.pool.settings,
        options,
        watch,
        cluster: Cluster::of(scenario),
        reasons: BTreeMap::new(),
        moments: Vec::new(),
        mismatches: Vec::new(),
        used: BTreeMap::new(),
        offered: 0.0,
    };
    for (number, step) in scenario.steps.iter().enumerate() {
        player.step(number + 1, step)?;
    }
    match scenario.until {
        Until::LastStep => {}
        Until::Time(time) => player.pass_until(Some(micros(time)))?,
        Until::Rest => player.pass_until(None)?,
    }
    Ok(player.report())
}

struct Player<'a> {
    scenario: &'a Scenario,
    settings: &'a PoolSettings,
    options: Options,
    watch: &'a mut dyn FnMut(&Observation<'_>),
    cluster: Cluster,
    /// Why tasks wait, by number.
    reasons: BTreeMap<usize, WaitReason>,
    moments: Vec<Moment>,
    mismatches: Vec<Mismatch>,
    /// Slots times microseconds, by job.
    used: BTreeMap<String, f64>,
    offered: f64,
}

impl Player<'_> {
    fn policy(&self) -> Policy {
        self.settings.policy
    }

    fn step(&mut self, number: usize, step: &Step) -> Result<(), Mistakes> {
        let at = match step.when {
            When::Now => self.cluster.now,
            When::After(wait) => self.cluster.now.saturating_add(micros(wait)),
            When::At(time) => micros(time),
        };
        let wrong = |what: &str, message: String| Mistake {
            path: format!("steps[{}]{what}", number - 1),
            line: step.line,
            message,
            hint: None,
        };
        if at < self.cluster.now {
            let message = "is before the step before it".to_owned();
            return Err(wrong(".at", message).into());
        }
        self.pass_until(Some(at))?;
        let mut happened = Vec::new();
        for operation in &step.operations {
            let policy = self.policy();
            match self.cluster.operate(self.scenario, policy, operation) {
                Ok(done) => happened.extend(done),
                Err(message) if self.options.refusals == Refusals::Fail => {
                    return Err(wrong("", message).into());
                }
                Err(_) => {}
            }
        }
        self.moment(Some((number, step)), happened)?;
        let look = Look {
            cluster: &self.cluster,
            settings: self.settings,
            reasons: &self.reasons,
            step: number,
            line: step.line,
        };
        self.mismatches.extend(look.compare(&step.expect));
        Ok(())
    }

    /// Lets time pass until `end`, or until nothing more happens by itself.
    fn pass_until(&mut self, end: Option<i64>) -> Result<(), Mistakes> {
        while let Some(next) = self.next_event() {
            if end.is_some_and(|end| next > end) {
                break;
            }
            self.set_time(next);
            let happened = self.what_is_due();
            self.moment(None, happened)?;
        }
        if let Some(end) = end {
            self.set_time(end);
        }
        Ok(())
    }

    fn set_time(&mut self, time: i64) {
        let passed = time.saturating_sub(self.cluster.now);
        if passed <= 0 {
            return;
        }
        let (_, capacity) = self.cluster.usage();
        self.offered += real(capacity) * seconds(passed);
        for number in &self.cluster.live {
            let task = &self.cluster.tasks[*number];
            if let Some(running) = task.running() {
                let slots = running.parts.iter().map(|(_, slots)| slots.len() as u64);
                let used = self.used.entry(task.job.clone()).or_default();
                *used += real(slots.sum()) * seconds(passed);
            }
        }
        self.cluster.now = time;
    }

    /// When something happens by itself next.
    fn next_event(&self) -> Option<i64> {
        let now = self.cluster.now;
        let patience = self.settings.reserve_after.map(micros);
        let of_task = |task: &Task| match &task.state {
            TaskState::Running(running) => {
                let ends = task.left.map(|left| running.since.saturating_add(left));
                let leaves = running.stop.as_ref().and_then(|stop| stop.due);
                [ends, leaves].into_iter().flatten().min()
            }
            TaskState::Waiting(waiting) => patience
                .map(|patience| {
                    let due = waiting.requested_at.saturating_add(patience);
                    due.div_euclid(AGE_STEP)
                        .saturating_add(1)
                        .saturating_mul(AGE_STEP)
                })
                .filter(|due| *due > now),
            TaskState::Held | TaskState::Ended(..) => None,
        };
        let tasks = self
            .cluster
            .live
            .iter()
            .filter_map(|number| of_task(&self.cluster.tasks[*number]));
        let wait = micros(self.scenario.pool.reconnect_wait);
        let agents = self
            .cluster
            .agents
            .values()
            .filter_map(|agent| Some(agent.lost_at?.saturating_add(wait)));
        tasks.chain(agents).map(|at| at.max(now)).min()
    }

    /// Does what is due: tasks end and leave, agents are given up.
    fn what_is_due(&mut self) -> Vec<String> {
        let now = self.cluster.now;
        let mut happened = Vec::new();
        let live: Vec<usize> = self.cluster.live.iter().copied().collect();
        for number in live {
            let task = &self.cluster.tasks[number];
            let Some(running) = task.running() else {
                continue;
            };
            let ends = task
                .left
                .is_some_and(|left| running.since.saturating_add(left) <= now);
            let leaves = running
                .stop
                .as_ref()
                .and_then(|stop| stop.due)
                .is_some_and(|due| due <= now);
            if ends {
                happened.push(format!("{} ends", task.name));
                self.cluster.end(number, End::Completed);
            } else if leaves {
                happened.push(format!("{} has saved and leaves", task.name));
                self.cluster.leave_one(number);
            }
        }
        let wait = micros(self.scenario.pool.reconnect_wait);
        let overdue: Vec<String> = self
            .cluster
            .agents
            .iter()
            .filter(|(_, agent)| {
                agent
                    .lost_at
                    .is_some_and(|since| since.saturating_add(wait) <= now)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in overdue {
            happened.push(self.cluster.give_up(&id));
        }
        happened
    }

    /// Asks the planner until it has nothing more to decide, and records what came of it.
    fn moment(
        &mut self,
        step: Option<(usize, &Step)>,
        mut happened: Vec<String>,
    ) -> Result<(), Mistakes> {
        let mut decisions = Vec::new();
        let mut reasons = BTreeMap::new();
        for round in 0.. {
            if round > MOST_ROUNDS || self.moments.len() > MOST_MOMENTS {
                let message = if round > MOST_ROUNDS {
                    "the planner does not come to rest here"
                } else {
                    "more happens in this scenario than can be told"
                };
                return Err(Mistake {
                    path: step.map_or(String::new(), |(number, _)| {
                        format!("steps[{}]", number - 1)
                    }),
                    line: step.and_then(|(_, step)| step.line),
                    message: message.to_owned(),
                    hint: None,
                }
                .into());
            }
            let (plan, done) = self.ask();
            let nothing = done.is_empty();
            decisions.extend(done);
            reasons = self.reasons_of(plan);
            let due = self.what_is_due();
            if nothing && due.is_empty() {
                break;
            }
            for line in due {
                match line.strip_suffix(" has saved and leaves") {
                    // It was asked a moment ago.
                    Some(task) => decisions.push(Decision::Left {
                        task: task.to_owned(),
                    }),
                    None => happened.push(line),
                }
            }
        }
        self.record(step, happened, decisions, reasons);
        Ok(())
    }

    /// One plan, carried out.
    fn ask(&mut self) -> (Plan, Vec<Decision>) {
        let (pool, queue) = self.cluster.look(self.settings);
        let now = Micros(self.cluster.now);
        let plan = plan(&pool, &queue, now);
        (self.watch)(&Observation {
            pool: &pool,
            queue: &queue,
            now,
            plan: &plan,
        });
        let mut decisions = Vec::new();
        for placement in &plan.place {
            let on = placement.parts.iter();
            decisions.push(Decision::Start {
                task: task_of(&placement.allocation_id),
                on: on
                    .map(|(agent, slots)| (agent.0.clone(), slots.iter().map(|s| s.0).collect()))
                    .collect(),
            });
        }
        for stop in &plan.preempt {
            decisions.push(Decision::Stop {
                task: task_of(&stop.allocation_id),
                for_task: stop.for_allocation.as_ref().map(task_of),
                reason: stop.reason,
                message: stop.reason.to_string(),
            });
        }
        for tie in &plan.hand_over {
            decisions.push(Decision::HandOver {
                task: task_of(&tie.allocation_id),
                for_task: task_of(&tie.for_allocation),
            });
        }
        self.cluster.apply(&plan);
        (plan, decisions)
    }

    fn reasons_of(&self, plan: Plan) -> BTreeMap<usize, WaitReason> {
        plan.waiting
            .into_iter()
            .filter_map(|(allocation, reason)| {
                Some((self.cluster.of_allocation(&allocation)?, reason))
            })
            .collect()
    }

    fn record(
        &mut self,
        step: Option<(usize, &Step)>,
        happened: Vec<String>,
        decisions: Vec<Decision>,
        reasons: BTreeMap<usize, WaitReason>,
    ) {
        let begin_to_wait: Vec<WaitingTask> = reasons
            .iter()
            .filter(|(number, reason)| {
                self.reasons
                    .get(number)
                    .is_none_or(|known| known.kind() != reason.kind())
            })
            .map(|(number, reason)| self.waiting_task(*number, reason))
            .collect();
        self.reasons = reasons;
        if step.is_none() && happened.is_empty() && decisions.is_empty() && begin_to_wait.is_empty()
        {
            return;
        }
        let (used, capacity) = self.cluster.usage();
        let everything = self.options.detail == Detail::Everything;
        self.moments.push(Moment {
            at: seconds(self.cluster.now),
            step: step.map(|(number, _)| number),
            note: step.map_or(String::new(), |(_, step)| step.note.clone()),
            happened,
            decisions,
            begin_to_wait,
            used,
            capacity,
            running: everything.then(|| self.running()),
            waiting: everything.then(|| self.waiting()),
            queue: everything.then(|| self.queue()),
        });
    }

    fn waiting_task(&self, number: usize, reason: &WaitReason) -> WaitingTask {
        let task = &self.cluster.tasks[number];
        let since = match task.state {
            TaskState::Waiting(waiting) => waiting.since,
            TaskState::Held | TaskState::Running(_) | TaskState::Ended(..) => self.cluster.now,
        };
        WaitingTask {
            task: task.name.clone(),
            job: task.job.clone(),
            slots: task.slots,
            since: seconds(since),
            reason: reason.clone(),
            message: reason.to_string(),
        }
    }

    fn waiting(&self) -> Vec<WaitingTask> {
        self.reasons
            .iter()
            .map(|(number, reason)| self.waiting_task(*number, reason))
            .collect()
    }

    fn running(&self) -> Vec<RunningTask> {
        self.cluster
            .live
            .iter()
            .filter_map(|number| {
                let task = &self.cluster.tasks[*number];
                let running = task.running()?;
                Some(RunningTask {
                    task: task.name.clone(),
                    job: task.job.clone(),
                    since: seconds(running.since),
                    on: running.parts.iter().cloned().collect(),
                    stopping: running.stop.is_some(),
                })
            })
            .collect()
    }

    fn queue(&self) -> Vec<QueueEntry> {
        let mut entries: BTreeMap<&str, QueueEntry> = BTreeMap::new();
        for number in &self.cluster.live {
            let task = &self.cluster.tasks[*number];
            let job = &self.cluster.jobs[&task.job];
            let entry = entries.entry(&task.job).or_insert_with(|| QueueEntry {
                job: task.job.clone(),
                priority: job.priority,
                weight: job.weight,
                max_slots: job.max_slots,
                ahead: None,
                running: 0,
                waiting: 0,
                slots: 0,
            });
            match task.running() {
                Some(running) => {
                    let slots = running.parts.iter().map(|(_, slots)| slots.len() as u64);
                    entry.running += 1;
                    entry.slots += slots.sum::<u64>();
                }
                None => entry.waiting += 1,
            }
        }
        match self.cluster.order(self.policy()) {
            None => entries.into_values().collect(),
            Some(order) => order
                .into_iter()
                .zip(0..)
                .filter_map(|(job, ahead)| {
                    let mut entry = entries.remove(job)?;
                    entry.ahead = Some(ahead);
                    Some(entry)
                })
                .collect(),
        }
    }

    fn report(mut self) -> Report {
        let moments = std::mem::take(&mut self.moments);
        // The sum of nothing is -0.
        let used = self.used.values().sum::<f64>() + 0.0;
        let part = if self.offered > 0.0 {
            used / self.offered
        } else {
            0.0
        };
        Report {
            name: self.scenario.name.clone(),
            policy: policy_text(self.settings),
            moments,
            jobs: self.jobs(),
            utilisation: Use {
                used,
                offered: self.offered,
                part,
            },
            waiting: self.waiting(),
            mismatches: std::mem::take(&mut self.mismatches),
            seconds: seconds(self.cluster.now),
        }
    }

    fn jobs(&self) -> Vec<JobReport> {
        let mut jobs: BTreeMap<&str, (JobReport, f64)> = BTreeMap::new();
        let now = self.cluster.now;
        for task in &self.cluster.tasks {
            let (report, waited) = jobs.entry(&task.job).or_default();
            report.job.clone_from(&task.job);
            report.tasks += 1;
            report.preempted += u64::from(task.preempted);
            let mut own = task.waited;
            match &task.state {
                TaskState::Held => {}
                TaskState::Waiting(waiting) => {
                    report.waiting += 1;
                    own += now - waiting.since;
                }
                TaskState::Running(_) => report.running += 1,
                TaskState::Ended(End::Completed, _) => report.completed += 1,
                TaskState::Ended(End::Failed | End::Killed, _) => report.lost += 1,
            }
            *waited += seconds(own);
            report.longest_wait = report.longest_wait.max(seconds(own));
            if let Some(start) = task.first_started_at.map(seconds) {
                let first = report.first_start.get_or_insert(start);
                *first = first.min(start);
            }
        }
        jobs.into_values()
            .map(|(mut report, waited)| {
                report.mean_wait = waited / real(report.tasks);
                report.slot_seconds = self.used.get(&report.job).copied().unwrap_or(0.0);
                report
            })
            .collect()
    }
}

/// The task of an allocation.
fn task_of(allocation: &AllocationId) -> String {
    match allocation.0.rsplit_once('.') {
        Some((task, _)) => task.to_owned(),
        None => allocation.0.clone(),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times of a scenario are far below 2^52 microseconds"
)]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "numbers of slots are small")]
fn real(number: u64) -> f64 {
    number as f64
}
