//! Plays a scenario: time passes, tasks run and end, and the planner runs whenever something has happened.
//!
//! A moment ends when the planner decides nothing new. By then, tasks that take no time to leave have left, and the
//! requests that got their slots have started. Between steps the clock jumps to the next thing that happens by itself:
//! a task ends, or leaves, a request reaches the age limit, a lost agent is removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::{AllocationId, Micros};
use det_scheduler::{Plan, Policy, PoolSettings, PoolSnapshot, Queue, WaitKind, WaitReason};

use crate::cluster::{Cluster, End, TaskState, task_name};
use crate::description::{EndCondition, Expectation, Scenario, Step, StepTime};
use crate::expect::PoolState;
use crate::fields::{DescriptionError, DescriptionErrors};
use crate::operate::Operator;
use crate::planning::{PlanningState, order, snapshot};
use crate::report::{
    Decision, JobReport, Mismatch, Moment, QueueEntry, Report, RunningTask, Utilisation,
    WaitingTask, policy_text,
};
use crate::text::micros;

/// The most plans in a row at one moment; more would mean that the planner never stops deciding.
const MOST_PLANS: usize = 10_000;
/// The most moments of a scenario.
const MOST_MOMENTS: usize = 1_000_000;

/// How a scenario is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// How much the report contains of each moment.
    pub detail: Detail,
    /// What to do with an operation that cannot happen.
    pub on_impossible: OnImpossible,
}

/// What to do with an operation that cannot happen, such as the end of a task that does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnImpossible {
    /// Fail: it is an error of the scenario.
    #[default]
    Fail,
    /// Skip it; for scenarios that were generated at random.
    Skip,
}

/// How much a report contains of each moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Only what changed since the moment before.
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
    /// The time of the plan.
    pub now: Micros,
    /// What the planner decided.
    pub plan: &'a Plan,
}

/// Plays a scenario.
///
/// # Errors
/// The scenario is impossible: a step is earlier than the one before it, a task does not exist, or the planner never
/// stops deciding.
pub fn play(scenario: &Scenario, options: Options) -> Result<Report, DescriptionErrors> {
    play_for(scenario, options, None)
}

/// As [`play()`]; `watch` is called with every plan and the whole pool and queue, which is slower.
///
/// # Errors
/// As [`play()`].
pub fn play_watched(
    scenario: &Scenario,
    options: Options,
    watch: &mut dyn FnMut(&Observation<'_>),
) -> Result<Report, DescriptionErrors> {
    play_for(scenario, options, Some(watch))
}

fn play_for<'a>(
    scenario: &'a Scenario,
    options: Options,
    watch: Option<&'a mut (dyn FnMut(&Observation<'_>) + 'a)>,
) -> Result<Report, DescriptionErrors> {
    let mut player = Player {
        scenario,
        settings: &scenario.pool.settings,
        options,
        watch,
        cluster: Cluster::of(scenario),
        planning: PlanningState::new(&scenario.pool.settings),
        reasons: BTreeMap::new(),
        kinds_before: BTreeMap::new(),
        moments: Vec::new(),
        mismatches: Vec::new(),
        offered: 0.0,
    };
    player.update_planner();
    for (place, step) in scenario.steps.iter().enumerate() {
        player.step(
            (place + 1)
                .checked_sub(scenario.initial_steps)
                .filter(|number| *number > 0),
            step,
        )?;
    }
    match scenario.until {
        EndCondition::LastStep => {}
        EndCondition::Time(time) => player.pass_until(Some(micros(time)))?,
        EndCondition::Rest => player.pass_until(None)?,
    }
    player.refresh_reasons();
    Ok(player.report())
}

struct Player<'a> {
    scenario: &'a Scenario,
    settings: &'a PoolSettings,
    options: Options,
    watch: Option<&'a mut (dyn FnMut(&Observation<'_>) + 'a)>,
    cluster: Cluster,
    planning: PlanningState,
    /// Why tasks wait, by task number. Unless the options ask for all details, the numbers in reasons may be out of
    /// date.
    reasons: BTreeMap<usize, Arc<WaitReason>>,
    /// The kinds of the reasons that changed in this moment, as they were before it, by task number; `None` = it did
    /// not wait.
    kinds_before: BTreeMap<usize, Option<WaitKind>>,
    moments: Vec<Moment>,
    mismatches: Vec<Mismatch>,
    offered: f64,
}

impl Player<'_> {
    fn policy(&self) -> Policy {
        self.settings.policy
    }

    fn step(&mut self, number: Option<usize>, step: &Step) -> Result<(), DescriptionErrors> {
        let at = match step.when {
            StepTime::Now => self.cluster.now,
            StepTime::After(wait) => self.cluster.now.saturating_add(micros(wait)),
            StepTime::At(time) => micros(time),
        };
        let wrong = |what: &str, message: String| DescriptionError {
            path: number.map_or(String::new(), |number| {
                format!("steps[{}]{what}", number - 1)
            }),
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
            let mut operator = Operator {
                scenario: self.scenario,
                settings: self.settings,
                cluster: &mut self.cluster,
            };
            match operator.operate(operation) {
                Ok(done) => happened.extend(done),
                Err(message) if self.options.on_impossible == OnImpossible::Fail => {
                    return Err(wrong("", message).into());
                }
                Err(_) => {}
            }
        }
        self.moment(Some((number, step)), happened)?;
        if step.expect != Expectation::default() {
            self.refresh_reasons();
        }
        let snapshot = PoolState {
            cluster: &self.cluster,
            settings: self.settings,
            reasons: &self.reasons,
            step: number.unwrap_or(0),
            line: step.line,
        };
        self.mismatches.extend(snapshot.compare(&step.expect));
        Ok(())
    }

    /// Lets time pass until `end`, or until nothing more happens by itself.
    fn pass_until(&mut self, end: Option<i64>) -> Result<(), DescriptionErrors> {
        while let Some(next) = self.next_event() {
            if end.is_some_and(|end| next > end) {
                break;
            }
            self.set_time(next);
            let happened = self.process_due();
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
        self.offered += real(self.planning.capacity) * seconds(passed);
        self.cluster.now = time;
    }

    /// The next time at which something happens by itself.
    fn next_event(&self) -> Option<i64> {
        let now = self.cluster.now;
        let wait = micros(self.scenario.pool.reconnect_wait);
        let agents = self
            .cluster
            .agents
            .in_pool
            .values()
            .filter_map(|agent| Some(agent.lost_at?.saturating_add(wait)));
        let tasks = self.planning.next_due().into_iter();
        tasks.chain(agents).map(|at| at.max(now)).min()
    }

    /// Processes what is due: tasks end and leave, lost agents are removed.
    fn process_due(&mut self) -> Vec<String> {
        let now = self.cluster.now;
        let mut happened = Vec::new();
        for number in self.planning.take_due(now) {
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
                self.cluster.request_again(number);
            }
        }
        let wait = micros(self.scenario.pool.reconnect_wait);
        let overdue: Vec<String> = self
            .cluster
            .agents
            .in_pool
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

    /// Runs the planner until it decides nothing more, and records the result.
    fn moment(
        &mut self,
        step: Option<(Option<usize>, &Step)>,
        mut happened: Vec<String>,
    ) -> Result<(), DescriptionErrors> {
        let mut decisions = Vec::new();
        let mut stepwise = false;
        for plans in 0.. {
            if plans > MOST_PLANS || self.moments.len() > MOST_MOMENTS {
                let message = if plans > MOST_PLANS {
                    "the planner does not come to rest here"
                } else {
                    "this scenario has more moments than a report can hold"
                };
                return Err(DescriptionError {
                    path: step
                        .and_then(|(number, _)| number)
                        .map_or(String::new(), |number| format!("steps[{}]", number - 1)),
                    line: step.and_then(|(_, step)| step.line),
                    message: message.to_owned(),
                    hint: None,
                }
                .into());
            }
            let PlanResult {
                decisions: done,
                is_final,
            } = self.plan_once();
            let nothing = done.is_empty();
            decisions.extend(done);
            let due = self.process_due();
            // A watcher is also called with the plan that decides nothing.
            if due.is_empty() && (nothing || (is_final && self.watch.is_none())) {
                break;
            }
            stepwise = true;
            for line in due {
                match line.strip_suffix(" has saved and leaves") {
                    // It was asked before.
                    Some(task) => decisions.push(Decision::Left {
                        task: task.to_owned(),
                    }),
                    None => happened.push(line),
                }
            }
        }
        self.update_planner();
        let begins = self.kinds_before.iter().any(|(number, before)| {
            let reason = self.reasons.get(number);
            reason.is_some_and(|reason| *before != Some(reason.kind()))
        });
        if stepwise && begins && !self.reports_all_reasons() {
            // Reasons reported earlier in this moment may have other numbers by now.
            self.refresh_reasons();
        }
        self.record(step, happened, decisions);
        Ok(())
    }

    /// Whether every plan reports all reasons.
    fn reports_all_reasons(&self) -> bool {
        self.watch.is_some() || self.options.detail == Detail::Everything
    }

    /// Updates the planner with what has changed.
    fn update_planner(&mut self) {
        for number in self.planning.update_planner(&mut self.cluster) {
            if !matches!(self.cluster.tasks[number].state, TaskState::Waiting(_)) {
                self.set_reason(number, None);
            }
        }
    }

    /// Sets the reason for which a task waits; `None` = it does not wait.
    fn set_reason(&mut self, number: usize, reason: Option<Arc<WaitReason>>) {
        let before = match reason {
            Some(reason) => self.reasons.insert(number, reason),
            None => self.reasons.remove(&number),
        };
        self.kinds_before
            .entry(number)
            .or_insert(before.map(|reason| reason.kind()));
    }

    /// Updates the numbers in all reasons.
    fn refresh_reasons(&mut self) {
        self.update_planner();
        let plan = self.planning.planner.plan(Micros(self.cluster.now));
        for (allocation, reason) in plan.waiting {
            if let Some(number) = self.cluster.names.of_allocation(&allocation) {
                self.reasons.insert(number, Arc::new(reason));
            }
        }
    }

    /// Makes one plan and applies it.
    fn plan_once(&mut self) -> PlanResult {
        self.update_planner();
        let now = Micros(self.cluster.now);
        let plan = if self.reports_all_reasons() {
            let plan = self.planning.planner.plan(now);
            if let Some(watch) = &mut self.watch {
                let (pool, queue) = snapshot(&self.cluster, self.settings);
                watch(&Observation {
                    pool: &pool,
                    queue: &queue,
                    now,
                    plan: &plan,
                });
            }
            for (allocation, reason) in &plan.waiting {
                if let Some(number) = self.cluster.names.of_allocation(allocation) {
                    self.set_reason(number, Some(Arc::new(reason.clone())));
                }
            }
            plan
        } else {
            let pass = self.planning.planner.pass(now, 0);
            for (allocation, reason) in pass.waiting {
                if let Some(number) = self.cluster.names.of_allocation(&allocation) {
                    self.set_reason(number, Some(reason));
                }
            }
            Plan {
                placements: pass.placements,
                preempt: pass.preempt,
                hand_over: pass.hand_over,
                ..Plan::default()
            }
        };
        let task_of = |id: &AllocationId| task_name(&self.cluster, id);
        let mut decisions = Vec::new();
        for placement in &plan.placements {
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
        self.cluster
            .apply(&plan.placements, &plan.preempt, &plan.hand_over);
        PlanResult {
            decisions,
            // Under fair share, work that starts changes the shares, and with them the reasons of the others.
            is_final: plan.preempt.is_empty()
                && plan.hand_over.is_empty()
                && self.policy() != Policy::FairShare,
        }
    }

    fn record(
        &mut self,
        step: Option<(Option<usize>, &Step)>,
        happened: Vec<String>,
        decisions: Vec<Decision>,
    ) {
        let begin_to_wait: Vec<WaitingTask> = std::mem::take(&mut self.kinds_before)
            .into_iter()
            .filter_map(|(number, before)| {
                let reason = self.reasons.get(&number)?;
                (before != Some(reason.kind())).then(|| self.waiting_task(number, reason))
            })
            .collect();
        if step.is_none() && happened.is_empty() && decisions.is_empty() && begin_to_wait.is_empty()
        {
            return;
        }
        let (used, capacity) = (self.cluster.held.total, self.planning.capacity);
        let everything = self.options.detail == Detail::Everything;
        self.moments.push(Moment {
            at: seconds(self.cluster.now),
            step: step.and_then(|(number, _)| number),
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
            message: reason.explain(|_| None, |id| self.cluster.workspaces.name(id)),
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
        match order(&self.cluster, self.settings) {
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
        let jobs = self.jobs();
        // The sum of an empty list is -0.
        let used = jobs.iter().map(|job| job.slot_seconds).sum::<f64>() + 0.0;
        let part = if self.offered > 0.0 {
            used / self.offered
        } else {
            0.0
        };
        Report {
            name: self.scenario.name.clone(),
            policy: policy_text(self.settings),
            moments,
            jobs,
            utilisation: Utilisation {
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
        let mut used: BTreeMap<&str, i128> = BTreeMap::new();
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
                TaskState::Running(running) => {
                    report.running += 1;
                    *used.entry(&task.job).or_default() += running.slot_micros(now);
                }
                TaskState::Ended(End::Completed, _) => report.completed += 1,
                TaskState::Ended(End::Failed | End::Killed, _) => report.lost += 1,
            }
            if let TaskState::Ended(_, at) = &task.state {
                let at = seconds(*at);
                report.last_end = Some(report.last_end.map_or(at, |end| end.max(at)));
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
                if report.completed + report.lost < report.tasks {
                    report.last_end = None;
                }
                let before = self.cluster.jobs.get(&report.job);
                let before = before.map_or(0, |job| job.slot_micros);
                let now = used.get(report.job.as_str()).copied().unwrap_or(0);
                report.slot_seconds = slot_seconds(before + now);
                report
            })
            .collect()
    }
}

/// The result of one plan.
struct PlanResult {
    decisions: Vec<Decision>,
    /// Whether a further plan would decide nothing.
    is_final: bool,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times of a scenario are far below 2^52 microseconds"
)]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

#[expect(
    clippy::cast_precision_loss,
    reason = "what all slots are used for in a scenario is far below 2^52 milliseconds, and shown in seconds"
)]
fn slot_seconds(micros: i128) -> f64 {
    micros as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "numbers of slots are small")]
fn real(number: u64) -> f64 {
    number as f64
}
