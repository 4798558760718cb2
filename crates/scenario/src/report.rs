//! The result of playing a scenario, as data and as lines of text for users.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use det_scheduler::{Fitting, Policy, PoolSettings, PreemptReason, WaitReason};
use serde::Serialize;

use crate::text::{clock, names};
use det_ids::quantity;

/// The result of playing a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the scenario; may be empty.
    pub name: String,
    /// The rule of the pool, as text for users.
    pub policy: String,
    /// The moments at which something happened, in order of time.
    pub moments: Vec<Moment>,
    /// The result of each job, in order of name.
    pub jobs: Vec<JobReport>,
    /// How well the pool was used.
    pub utilisation: Utilisation,
    /// What still waits, with the reason.
    pub waiting: Vec<WaitingTask>,
    /// Expectations that were not met.
    pub mismatches: Vec<Mismatch>,
    /// Length of the simulation in seconds.
    pub seconds: f64,
}

/// A moment at which something happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Seconds from the start.
    pub at: f64,
    /// Number of the step, from 1; `None` if it happened by itself.
    pub step: Option<usize>,
    /// The step's note; may be empty.
    pub note: String,
    /// What happened, as sentences for users.
    pub happened: Vec<String>,
    /// What the planner decided, in order.
    pub decisions: Vec<Decision>,
    /// Tasks that start to wait, or wait for another kind of reason than before.
    pub begin_to_wait: Vec<WaitingTask>,
    /// Slots that running tasks hold at that moment.
    pub used: u64,
    /// Slots of agents that take work.
    pub capacity: u64,
    /// The tasks that have slots. Only with [`crate::Detail::Everything`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Vec<RunningTask>>,
    /// The tasks that wait. Only with [`crate::Detail::Everything`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Vec<WaitingTask>>,
    /// The queue. Only with [`crate::Detail::Everything`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Vec<QueueEntry>>,
}

/// A decision of the planner, or its immediate effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Decision {
    /// A task starts.
    Start {
        /// The task that starts.
        task: String,
        /// Numbers of slots by agent; empty for a zero-slot task.
        on: BTreeMap<String, Vec<u32>>,
    },
    /// A task is asked to stop.
    Stop {
        /// The task that is asked to stop.
        task: String,
        /// The task that gets its slots; `None` = it stops because of its job's cap.
        for_task: Option<String>,
        /// The rule that makes it stop, with the numbers.
        reason: PreemptReason,
        /// The reason as a sentence for users.
        message: String,
    },
    /// Slots that are being freed are now for another task.
    HandOver {
        /// The task that stops.
        task: String,
        /// The task that gets its slots from now on.
        for_task: String,
    },
    /// A task that was asked to stop has left and asks for slots again.
    Left {
        /// The task that left.
        task: String,
    },
}

/// A task that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitingTask {
    /// Name of the task.
    pub task: String,
    /// Name of the job that the task belongs to.
    pub job: String,
    /// Slots that the task asks for.
    pub slots: u32,
    /// Since when, in seconds from the start.
    pub since: f64,
    /// Why it waits, with the numbers.
    pub reason: WaitReason,
    /// Why it waits, as a sentence for users.
    pub message: String,
}

/// A task that has slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunningTask {
    /// Name of the task.
    pub task: String,
    /// Name of the job that the task belongs to.
    pub job: String,
    /// Since when, in seconds from the start.
    pub since: f64,
    /// Numbers of slots by agent.
    pub on: BTreeMap<String, Vec<u32>>,
    /// Whether it has been asked to stop.
    pub stopping: bool,
}

/// A job in the queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueEntry {
    /// Name of the job.
    pub job: String,
    /// Lower goes first, where priorities decide.
    pub priority: u8,
    /// Share weight, where shares decide.
    pub weight: f64,
    /// The most slots that it may use at a time; `None` = no cap.
    pub max_slots: Option<u32>,
    /// Number of jobs ahead; `None` = the policy has no order.
    pub ahead: Option<u64>,
    /// Number of its tasks that have slots.
    pub running: u64,
    /// Number of its tasks that wait.
    pub waiting: u64,
    /// Slots that its running tasks hold.
    pub slots: u64,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct JobReport {
    /// Name of the job.
    pub job: String,
    /// Number of tasks it had over the whole simulation.
    pub tasks: u64,
    /// Number of its tasks that came to their end by themselves.
    pub completed: u64,
    /// Tasks that failed or were killed.
    pub lost: u64,
    /// Tasks that have slots at the end.
    pub running: u64,
    /// Tasks that wait at the end.
    pub waiting: u64,
    /// When its first task started, in seconds from the start.
    pub first_start: Option<f64>,
    /// When the last of its tasks ended, in seconds from the start; `None` = not all of them have.
    pub last_end: Option<f64>,
    /// Seconds its tasks waited on average.
    pub mean_wait: f64,
    /// Longest wait of one of its tasks, in seconds.
    pub longest_wait: f64,
    /// How often the planner asked one of its tasks to stop.
    pub preempted: u64,
    /// Slots times seconds that it used.
    pub slot_seconds: f64,
}

/// How well a pool was used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Utilisation {
    /// Slots in use, in slot-seconds.
    pub used: f64,
    /// Slots of agents that take work, in slot-seconds.
    pub offered: f64,
    /// `used` divided by `offered`, from 0 to 1; 0 if nothing was offered.
    pub part: f64,
}

/// An expectation that was not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Number of the step, from 1.
    pub step: usize,
    /// Its line in the text.
    pub line: Option<u32>,
    /// What the expectation is about, as its path in the description: `running.search`.
    pub what: String,
    /// The value that was expected.
    pub expected: String,
    /// The value that was found.
    pub found: String,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {}", self.step)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(
            f,
            ": {}: expected {}, found {}",
            self.what, self.expected, self.found
        )
    }
}

/// The rule of a pool, as text for users.
pub(crate) fn policy_text(settings: &PoolSettings) -> String {
    let policy = match settings.policy {
        Policy::Priority {
            preemption,
            default_priority,
        } => {
            let preemption = if preemption { "with" } else { "without" };
            format!("priority {preemption} preemption, default priority {default_priority}")
        }
        Policy::FairShare => "fair share".to_owned(),
        Policy::RoundRobin => "round robin".to_owned(),
    };
    let fitting = match settings.fitting {
        Fitting::Best => "best fit",
        Fitting::Worst => "worst fit",
    };
    let uneven = if settings.allow_heterogeneous_fits {
        ", uneven fits allowed"
    } else {
        ""
    };
    format!("{policy}, {fitting}{uneven}")
}

impl Report {
    /// The timeline as lines of text for users.
    pub fn timeline(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.name.is_empty() {
            lines.push(self.name.clone());
        }
        lines.push(format!("scheduler: {}", self.policy));
        for moment in &self.moments {
            lines.push(String::new());
            lines.extend(moment.lines());
        }
        lines
    }
}

impl Moment {
    fn lines(&self) -> Vec<String> {
        let mut happened_lines: Vec<String> = Vec::new();
        if !self.note.is_empty() {
            happened_lines.push(self.note.clone());
        }
        happened_lines.extend(together(&self.happened));
        happened_lines.extend(self.starts());
        happened_lines.extend(self.stops());
        happened_lines.extend(self.waits());
        let in_use = match (self.used, self.capacity) {
            (0, 0) => "no slots in service".to_owned(),
            (used, 0) => format!("{} in use, none in service", quantity(used, "slot")),
            (used, capacity) => format!("{used} of {} in use", quantity(capacity, "slot")),
        };
        let head = format!("{:>9}  {in_use}", clock(micros(self.at)));
        let mut lines = vec![head];
        lines.extend(
            happened_lines
                .into_iter()
                .map(|line| format!("{:11}{line}", "")),
        );
        lines
    }

    fn starts(&self) -> Vec<String> {
        let mut by_place: Vec<(String, Vec<&str>)> = Vec::new();
        for decision in &self.decisions {
            let Decision::Start { task, on } = decision else {
                continue;
            };
            let parts: Vec<String> = on
                .iter()
                .map(|(agent, slots)| match slots.len() {
                    0 => agent.clone(),
                    slots => format!("{agent} ({})", quantity(slots as u64, "slot")),
                })
                .collect();
            let place = parts.join(" and ");
            match by_place.iter_mut().find(|(known, _)| *known == place) {
                Some((_, tasks)) => tasks.push(task),
                None => by_place.push((place, vec![task])),
            }
        }
        by_place
            .into_iter()
            .map(|(place, tasks)| {
                let each = if tasks.len() > 1 { " each" } else { "" };
                format!("start  {} on {place}{each}", names(tasks))
            })
            .collect()
    }

    fn stops(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut stops: Vec<(String, Vec<&str>)> = Vec::new();
        let mut left: Vec<&str> = Vec::new();
        for decision in &self.decisions {
            match decision {
                Decision::Stop {
                    task,
                    for_task,
                    message,
                    ..
                } => {
                    let why = match for_task {
                        Some(winner) => format!("for {winner}: {message}"),
                        None => message.clone(),
                    };
                    match stops.iter_mut().find(|(known, _)| *known == why) {
                        Some((_, tasks)) => tasks.push(task),
                        None => stops.push((why, vec![task])),
                    }
                }
                Decision::HandOver { task, for_task } => {
                    lines.push(format!("       slots of {task} go to {for_task}"));
                }
                Decision::Left { task } => left.push(task),
                Decision::Start { .. } => {}
            }
        }
        let stops = stops
            .into_iter()
            .map(|(why, tasks)| format!("stop   {} {why}", names(tasks)));
        let mut all: Vec<String> = stops.collect();
        all.append(&mut lines);
        if !left.is_empty() {
            let ask = if left.len() > 1 { "ask" } else { "asks" };
            all.push(format!("left   {} and {ask} again", names(left)));
        }
        all
    }

    fn waits(&self) -> Vec<String> {
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for waiting in &self.begin_to_wait {
            let message = waiting.message.as_str();
            match by_reason.iter_mut().find(|(known, _)| *known == message) {
                Some((_, tasks)) => tasks.push(&waiting.task),
                None => by_reason.push((message, vec![&waiting.task])),
            }
        }
        by_reason
            .into_iter()
            .map(|(message, tasks)| format!("wait   {}: {message}", names(tasks)))
            .collect()
    }
}

/// Combines equal sentences about several tasks into one.
fn together(happened: &[String]) -> Vec<String> {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for line in happened {
        let Some((who, what)) = line.split_once(' ').filter(|(_, what)| {
            matches!(
                *what,
                "ends" | "fails" | "is killed" | "has saved and leaves"
            )
        }) else {
            lines.push((line.clone(), Vec::new()));
            continue;
        };
        match lines.last_mut() {
            Some((known, who_else)) if known == what && !who_else.is_empty() => who_else.push(who),
            _ => lines.push((what.to_owned(), vec![who])),
        }
    }
    lines
        .into_iter()
        .map(|(what, who)| {
            let what = match (what.as_str(), who.len()) {
                ("ends", 2..) => "end",
                ("fails", 2..) => "fail",
                ("is killed", 2..) => "are killed",
                ("has saved and leaves", 2..) => "have saved and leave",
                (what, _) => what,
            };
            let mut line = String::new();
            if !who.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(line, "{} ", names(who));
            }
            line + what
        })
        .collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "times of a scenario are far below 2^52 microseconds"
)]
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened_lines(happened: &[&str]) -> Vec<String> {
        let happened: Vec<String> = happened.iter().map(|line| (*line).to_owned()).collect();
        together(&happened)
    }

    #[test]
    fn one_ends_and_several_end() {
        assert_eq!(happened_lines(&["a.1 ends"]), ["a.1 ends"]);
        assert_eq!(happened_lines(&["a.1 ends", "a.2 ends"]), ["a.1, a.2 end"]);
        assert_eq!(
            happened_lines(&[
                "a has saved and leaves",
                "b has saved and leaves",
                "c fails"
            ]),
            ["a, b have saved and leave", "c fails"]
        );
        assert_eq!(
            happened_lines(&["a is killed", "b is killed"]),
            ["a, b are killed"]
        );
    }

    #[test]
    fn a_pool_without_slots_has_none_in_service() {
        let head = |used, capacity| {
            let moment = Moment {
                at: 0.0,
                step: None,
                note: String::new(),
                happened: Vec::new(),
                decisions: Vec::new(),
                begin_to_wait: Vec::new(),
                used,
                capacity,
                running: None,
                waiting: None,
                queue: None,
            };
            moment.lines()[0].trim().to_owned()
        };
        assert_eq!(head(0, 0), "0:00:00  no slots in service");
        assert_eq!(head(4, 0), "0:00:00  4 slots in use, none in service");
        assert_eq!(head(1, 4), "0:00:00  1 of 4 slots in use");
    }
}
