//! Users' code: it meets its peers, trains, reports, saves, and repeats every call until it has an answer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use det_ids::ContainerId;
use det_invariants::{Report, ReportContent};
use det_lifecycle::trial::EarlyExit;
use det_taskspec::ContainerExit;

use super::{Answer, Asked, Event, Failed, Spec, World};
use crate::master::{Call, Reply};
use crate::random::Stream;
use crate::rows::SECOND;

/// The processes of a container.
pub(super) struct Process {
    pub(super) spec: Rc<Spec>,
    /// The index of the agent that it runs on.
    pub(super) agent: usize,
    pub(super) alive: bool,
    /// The supervisor's report of their end.
    pub(super) report: Option<ContainerExit>,
    /// Since when nobody wants it, while its agent was there and connected.
    pub(super) unwanted_since: Option<i64>,
    /// Counts calls and steps; what comes for an earlier one comes too late.
    number: u64,
    pending: VecDeque<Call>,
    step: i64,
    sequence: i64,
    /// Ends so once nothing is pending.
    exit: Option<i32>,
    fails_at: Option<i64>,
    early: Option<(i64, EarlyExit)>,
    deaf: bool,
    luck: Stream,
}

impl Process {
    fn new(seed: u64, agent: usize, spec: Rc<Spec>) -> Self {
        let submission = &spec.submission;
        // What a trial is like holds for all its runs, what a run is like for all its containers.
        let mut trial = Stream::of(seed, &format!("trial {}", spec.trial_id));
        let mut run = Stream::of(seed, &format!("run {}.{}", spec.trial_id, spec.run_id));
        let left = (submission.steps - spec.from_step).max(1);
        let fails = run.percent(submission.failing);
        let fails_at = fails.then(|| spec.from_step + run.between(1, left));
        let early = if trial.percent(submission.early) {
            Some(EarlyExit::InvalidHyperparameters)
        } else if trial.percent(submission.early / 2) {
            Some(EarlyExit::UserRequested)
        } else {
            None
        };
        let early = early.map(|reason| (trial.between(1, submission.steps), reason));
        Self {
            agent,
            alive: true,
            report: None,
            unwanted_since: None,
            number: 0,
            pending: VecDeque::from([Call::Meet, Call::Line { sequence: 0 }]),
            step: spec.from_step,
            sequence: 1,
            exit: None,
            fails_at,
            early,
            deaf: trial.percent(submission.deaf),
            luck: Stream::of(seed, &format!("container {}", spec.container)),
            spec,
        }
    }

    /// Ends the processes.
    pub(super) fn end(&mut self, report: Option<ContainerExit>) {
        self.alive = false;
        self.report = report;
        self.number += 1;
    }

    fn metric(&self, step: i64) -> f64 {
        let mut luck = Stream::of(u64::from(self.spec.seed), &format!("metric {step}"));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let value = luck.between(0, 1_000_000) as f64 / 1e6;
        value
    }
}

impl World {
    pub(super) fn start_process(&mut self, agent: usize, spec: Rc<Spec>) {
        self.counts.runs += u64::from(spec.member == 0);
        let id = spec.container.clone();
        self.processes
            .insert(id.clone(), Process::new(self.history.seed, agent, spec));
        self.send_call(&id, SECOND / 10);
    }

    /// Sends the first pending call after some time.
    fn send_call(&mut self, id: &ContainerId, wait: i64) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        let Some(call) = process.pending.front().cloned() else {
            return;
        };
        process.number += 1;
        let (number, agent) = (process.number, process.agent);
        let way = self.delay(agent);
        let event = if self.cut_until(agent, true).is_some() {
            Event::Answer(id.clone(), number, None)
        } else {
            Event::CallArrives(id.clone(), number, call)
        };
        let late = if matches!(event, Event::Answer(..)) {
            10 * SECOND
        } else {
            0
        };
        self.after(wait + way + late, event);
    }

    pub(super) fn call_arrives(&mut self, id: &ContainerId, number: u64, call: Call) {
        let Some(process) = self.processes.get(id) else {
            return;
        };
        let (agent, spec) = (process.agent, process.spec.clone());
        if let Call::Checkpoint { uuid, files, .. } = &call {
            // Files are stored before they are reported.
            self.storage.insert(uuid.clone(), files.clone());
        }
        let report = self.report_of(&spec, &call);
        let outcome = self.write(Asked::FromOutside, |tx| {
            tx.take(&spec.allocation, &spec.container, call)
        });
        let answer = match outcome {
            Ok(reply) => Some(Answer {
                outcome: Ok(reply),
                report,
            }),
            Err(Failed::Refused(refused)) => Some(Answer {
                outcome: Err(refused),
                report: None,
            }),
            Err(Failed::Unavailable | Failed::Crashed) => None,
        };
        let lost = self.cut_until(agent, false).is_some();
        let wait = if lost { 10 * SECOND } else { self.delay(agent) };
        let answer = answer.filter(|_| !lost);
        self.after(wait, Event::Answer(id.clone(), number, answer));
    }

    /// What an answer to this call would acknowledge.
    fn report_of(&self, spec: &Spec, call: &Call) -> Option<Report> {
        let what = match call {
            Call::Metric { step, value } => ReportContent::Metric {
                step: *step,
                value: *value,
            },
            Call::Checkpoint { uuid, .. } => ReportContent::Checkpoint { uuid: uuid.clone() },
            Call::Line { sequence } => ReportContent::Line {
                spool: spec.container.to_string(),
                sequence: *sequence,
            },
            Call::EarlyExit(reason) => ReportContent::Control {
                what: format!("it ends early: {reason:?}"),
            },
            Call::Meet | Call::Poll | Call::Acknowledge => return None,
        };
        Some(Report {
            trial_id: spec.trial_id,
            run_id: spec.run_id,
            newest_run: self
                .rows
                .trials
                .get(&spec.trial_id)
                .map_or(spec.run_id, |t| t.row.run_id),
            what,
        })
    }

    pub(super) fn answer(&mut self, id: &ContainerId, number: u64, answer: Option<Answer>) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if process.number != number || !process.alive {
            return;
        }
        let Some(answer) = answer else {
            let wait = process.luck.between(SECOND, 8 * SECOND);
            return self.send_call(id, wait);
        };
        if let Some(report) = answer.report {
            self.counts.acknowledged += 1;
            self.fresh.push(report);
        }
        match answer.outcome {
            Ok(Reply::NotYet) => return self.send_call(id, 2 * SECOND),
            Ok(Reply::Done | Reply::Preempt(false)) => {
                process.pending.pop_front();
            }
            Ok(Reply::Preempt(true)) => {
                process.pending.clear();
                let step = process.step;
                push_checkpoint(process, step);
                process.pending.push_back(Call::Acknowledge);
                process.exit = Some(0);
            }
            // Some code goes on whatever happens.
            Err(_)
                if process.deaf || matches!(process.pending.front(), Some(Call::Line { .. })) =>
            {
                process.pending.pop_front();
            }
            // An exception that nobody catches. A checkpoint that was saved already is no reason for one.
            Err(_) => {
                process.pending.clear();
                process.exit = Some(1);
            }
        }
        self.go_on_with_code(id);
    }

    fn go_on_with_code(&mut self, id: &ContainerId) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if !process.pending.is_empty() {
            return self.send_call(id, 1_000);
        }
        if let Some(code) = process.exit {
            let wait = process.luck.between(1_000, 2 * SECOND);
            let exit = ContainerExit::Exited { code };
            return self.after(wait, Event::Dies(id.clone(), Some(exit)));
        }
        // Only the chief works by itself; the others end with it.
        if process.spec.member == 0 {
            process.number += 1;
            let time = process.spec.submission.step_time;
            let wait = process.luck.between(time / 2, time * 3 / 2);
            let number = process.number;
            self.after(wait, Event::Code(id.clone(), number));
        }
    }

    /// Trains one step.
    pub(super) fn code_step(&mut self, id: &ContainerId, number: u64) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if process.number != number || !process.alive {
            return;
        }
        process.step += 1;
        let step = process.step;
        if process.fails_at == Some(step) {
            process.exit = Some(1);
            return self.go_on_with_code(id);
        }
        if let Some((_, reason)) = process.early.filter(|(at, _)| *at == step) {
            process.pending.push_back(Call::EarlyExit(reason));
            // Some code says that it ends and does not; then the master ends it.
            if !process.deaf {
                process.exit = Some(0);
            }
            return self.go_on_with_code(id);
        }
        let value = process.metric(step);
        process.pending.push_back(Call::Metric { step, value });
        let sequence = process.sequence;
        process.sequence += 1;
        process.pending.push_back(Call::Line { sequence });
        let submission = process.spec.submission.clone();
        if step >= submission.steps {
            push_checkpoint(process, step);
            process.exit = Some(0);
        } else {
            if step % submission.checkpoint_every == 0 {
                push_checkpoint(process, step);
            }
            if !process.deaf {
                process.pending.push_back(Call::Poll);
            }
        }
        self.go_on_with_code(id);
    }

    /// Processes end.
    pub(super) fn dies(&mut self, id: &ContainerId, report: Option<ContainerExit>) {
        let Some(process) = self.processes.get_mut(id).filter(|p| p.alive) else {
            return;
        };
        let ended_well = report == Some(ContainerExit::Exited { code: 0 });
        let what = format!("{id} on a{} ends: {report:?}", process.agent);
        process.end(report);
        let (agent, spec) = (process.agent, process.spec.clone());
        self.note(|| what);
        self.end_is_seen(agent, id);
        if spec.member != 0 || !ended_well {
            return;
        }
        let peers: Vec<ContainerId> = self
            .processes
            .values()
            .filter(|p| p.alive && p.spec.allocation == spec.allocation)
            .map(|p| p.spec.container.clone())
            .collect();
        for peer in peers {
            let wait = self.luck.between(1_000, 3 * SECOND);
            let exit = Some(ContainerExit::Exited { code: 0 });
            self.after(wait, Event::Dies(peer, exit));
        }
    }
}

fn push_checkpoint(process: &mut Process, steps: i64) {
    let spec = &process.spec;
    let files = BTreeMap::from([
        ("model.pt".to_owned(), steps * 10),
        ("state.json".to_owned(), 2),
    ]);
    process.pending.push_back(Call::Checkpoint {
        uuid: format!("{}-{}-{steps}", spec.trial_id, spec.run_id),
        steps,
        files,
    });
}
