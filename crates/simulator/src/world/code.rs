//! Users' code: it meets its peers, trains, reports, saves, and repeats every call until it has an answer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use det_ids::{CheckpointId, ContainerId, SpoolId, TaskId};
use det_invariants::{Report, ReportContent};
use det_lifecycle::trial::EarlyExit;
use det_taskspec::ContainerExit;

use super::network::{Network, Way};
use super::process::Master;
use super::scene::Scene;
use super::{Answer, ChangeError, ChangeOrigin, Event, Spec, Work};
use crate::history::Launch;
use crate::master::{Call, Reply};
use crate::random::Stream;
use crate::rows::{Rows, SECOND};

/// The processes of a container.
pub(super) struct Process {
    pub(super) spec: Rc<Spec>,
    /// The index of the agent that it runs on.
    pub(super) agent: usize,
    pub(super) alive: bool,
    /// The supervisor's report of their end.
    pub(super) report: Option<ContainerExit>,
    /// Since when the rows do not want it, while its agent ran and was connected.
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
    fn new(seed: u64, agent: usize, spec: &Rc<Spec>) -> Self {
        let mut process = Self {
            agent,
            alive: true,
            report: None,
            unwanted_since: None,
            number: 0,
            pending: VecDeque::new(),
            step: 0,
            sequence: 1,
            exit: None,
            fails_at: None,
            early: None,
            deaf: false,
            luck: Stream::of(seed, &format!("container {}", spec.container)),
            spec: Rc::clone(spec),
        };
        match &spec.work {
            Work::Trial {
                trial_id,
                run_id,
                from_step,
                submission,
                ..
            } => {
                // What a trial is like holds for all its runs, what a run is like for all its containers.
                let mut trial = Stream::of(seed, &format!("trial {trial_id}"));
                let mut run = Stream::of(seed, &format!("run {trial_id}.{run_id}"));
                let left = (submission.steps - from_step).max(1);
                let fails = run.percent(submission.failing);
                process.fails_at = fails.then(|| from_step + run.between(1, left));
                let early = if trial.percent(submission.early) {
                    Some(EarlyExit::InvalidHyperparameters)
                } else if trial.percent(submission.early / 2) {
                    Some(EarlyExit::UserRequested)
                } else {
                    None
                };
                process.early = early.map(|reason| (trial.between(1, submission.steps), reason));
                process.deaf = trial.percent(submission.deaf);
                process.step = *from_step;
                process.pending = VecDeque::from([Call::Meet, Call::Line { sequence: 0 }]);
            }
            Work::Launched(_, launch) => {
                let luck = &mut process.luck;
                let fails = luck.percent(launch.failing);
                process.fails_at = fails.then(|| luck.between(1, launch.steps));
                process.deaf = launch.deaf;
                if launch.has_service() {
                    process.pending.push_back(Call::Up);
                }
            }
        }
        process
    }

    /// Ends the processes of the container; `report` is what is reported of that.
    pub(super) fn end(&mut self, report: Option<ContainerExit>) {
        self.alive = false;
        self.report = report;
        self.number += 1;
    }

    /// Trains one step, after which its code calls or ends.
    fn train(&mut self) {
        self.step += 1;
        let step = self.step;
        if self.fails_at == Some(step) {
            self.exit = Some(1);
            return;
        }
        let spec = self.spec.clone();
        let (seed, submission) = match &spec.work {
            Work::Trial {
                seed, submission, ..
            } => (*seed, submission),
            Work::Launched(_, launch) => return self.works(launch),
        };
        if let Some((_, reason)) = self.early.filter(|(at, _)| *at == step) {
            self.pending.push_back(Call::EarlyExit(reason));
            // Some code reports that it ends and does not; then the master ends it.
            if !self.deaf {
                self.exit = Some(0);
            }
            return;
        }
        let value = metric(seed, step);
        self.pending.push_back(Call::Metric { step, value });
        let sequence = self.sequence;
        self.sequence += 1;
        self.pending.push_back(Call::Line { sequence });
        if step >= submission.steps {
            push_checkpoint(self, step);
            self.exit = Some(0);
        } else {
            if step % submission.checkpoint_every == 0 {
                push_checkpoint(self, step);
            }
            if !self.deaf {
                self.pending.push_back(Call::Poll);
            }
        }
    }

    /// What a task of its own does after a step.
    fn works(&mut self, launch: &Launch) {
        if launch.has_service() && self.luck.percent(launch.used) {
            self.pending.push_back(Call::Used);
        }
        // Services know no such question, and run for as long as their users want.
        if !launch.has_service() && !self.deaf {
            self.pending.push_back(Call::Poll);
        }
        if self.step >= launch.steps {
            self.exit = Some(0);
        }
    }

    /// How long a step takes.
    fn step_time(&self) -> i64 {
        match &self.spec.work {
            Work::Trial { submission, .. } => submission.step_time,
            Work::Launched(_, launch) => launch.step_time,
        }
    }
}

fn metric(seed: u32, step: i64) -> f64 {
    let mut luck = Stream::of(u64::from(seed), &format!("metric {step}"));
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let value = luck.between(0, 1_000_000) as f64 / 1e6;
    value
}

/// Users' code, and the checkpoints that it has stored.
pub(super) struct Code {
    seed: u64,
    processes: BTreeMap<ContainerId, Process>,
    /// Files of checkpoints, by name.
    storage: BTreeMap<CheckpointId, BTreeMap<String, i64>>,
    /// When services were last used, or came up, as the master knows it.
    uses: BTreeMap<TaskId, i64>,
}

impl Code {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            processes: BTreeMap::new(),
            storage: BTreeMap::new(),
            uses: BTreeMap::new(),
        }
    }

    /// When the service of a task was last used, or came up, as far as the master knows; `None` = it never was.
    pub(super) fn last_use(&self, task: &TaskId) -> Option<i64> {
        self.uses.get(task).copied()
    }

    /// The processes of a container, ended ones included until they are removed.
    pub(super) fn process(&self, id: &ContainerId) -> Option<&Process> {
        self.processes.get(id)
    }

    /// All processes that run.
    pub(super) fn alive(&mut self) -> impl Iterator<Item = (&ContainerId, &mut Process)> {
        self.processes.iter_mut().filter(|(_, p)| p.alive)
    }

    /// The containers whose processes run on an agent's host.
    pub(super) fn alive_on(&self, agent: usize) -> Vec<ContainerId> {
        let alive = self
            .processes
            .iter()
            .filter(|(_, p)| p.alive && p.agent == agent);
        alive.map(|(id, _)| id.clone()).collect()
    }

    /// All processes on a host end without a report.
    pub(super) fn end_all_on(&mut self, agent: usize) {
        let gone = self.alive().filter(|(_, p)| p.agent == agent);
        for (_, process) in gone {
            process.end(None);
        }
    }

    /// Removes what is known of a container.
    pub(super) fn remove(&mut self, id: &ContainerId) {
        self.processes.remove(id);
    }

    /// The stored files of a checkpoint.
    pub(super) fn files(&self, checkpoint: &CheckpointId) -> BTreeMap<String, i64> {
        self.storage.get(checkpoint).cloned().unwrap_or_default()
    }

    /// Starts the processes of a container on an agent's host.
    pub(super) fn start(
        &mut self,
        scene: &mut Scene,
        network: &Network,
        agent: usize,
        spec: &Rc<Spec>,
    ) {
        scene.counts.runs += u64::from(spec.member == 0);
        let id = spec.container.clone();
        let process = Process::new(self.seed, agent, spec);
        let calls = !process.pending.is_empty();
        self.processes.insert(id.clone(), process);
        if calls {
            self.send_call(scene, network, &id, SECOND / 10);
        } else {
            self.go_on(scene, network, &id);
        }
    }

    /// Sends the first pending call after some time.
    fn send_call(&mut self, scene: &mut Scene, network: &Network, id: &ContainerId, wait: i64) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        let Some(call) = process.pending.front().cloned() else {
            return;
        };
        process.number += 1;
        let (number, agent) = (process.number, process.agent);
        let way = network.delay(scene, agent);
        let cut = network.cut_until(scene.now, agent, Way::ToMaster);
        let (event, late) = if cut.is_some() {
            (Event::Answer(id.clone(), number, None), 10 * SECOND)
        } else {
            (Event::CallArrives(id.clone(), number, call), 0)
        };
        scene.after(wait + way + late, event);
    }

    /// A call reaches the master.
    pub(super) fn call_arrives(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        master: &mut Master,
        id: &ContainerId,
        number: u64,
        call: Call,
    ) {
        let Some(process) = self.processes.get(id) else {
            return;
        };
        let (agent, spec) = (process.agent, process.spec.clone());
        if let Call::Checkpoint { uuid, files, .. } = &call {
            // Files are stored before they are reported.
            self.storage.insert(uuid.clone(), files.clone());
        }
        let report = report_of(master.rows(), &spec, &call);
        let is_use = matches!(call, Call::Up | Call::Used);
        let outcome = master.write(scene, network, ChangeOrigin::FromOutside, |tx| {
            tx.take(&spec.allocation, &spec.container, call)
        });
        if let (true, true, Work::Launched(task, _)) = (is_use, outcome.is_ok(), &spec.work) {
            self.uses.insert(task.clone(), scene.now);
        }
        let answer = match outcome {
            Ok(reply) => Some(Answer {
                outcome: Ok(reply),
                report,
            }),
            Err(ChangeError::Refused(refused)) => Some(Answer {
                outcome: Err(refused),
                report: None,
            }),
            Err(ChangeError::Unavailable | ChangeError::Crashed) => None,
        };
        let lost = network.cut_until(scene.now, agent, Way::ToHost).is_some();
        let wait = if lost {
            10 * SECOND
        } else {
            network.delay(scene, agent)
        };
        let answer = answer.filter(|_| !lost);
        scene.after(wait, Event::Answer(id.clone(), number, answer));
    }

    /// The answer to a call reaches the code; gives what is acknowledged by it.
    pub(super) fn answer(
        &mut self,
        scene: &mut Scene,
        network: &Network,
        id: &ContainerId,
        number: u64,
        answer: Option<Answer>,
    ) -> Option<Report> {
        let process = self.processes.get_mut(id)?;
        if process.number != number || !process.alive {
            return None;
        }
        let Some(Answer { outcome, report }) = answer else {
            let wait = process.luck.between(SECOND, 8 * SECOND);
            self.send_call(scene, network, id, wait);
            return None;
        };
        scene.counts.acknowledged += u64::from(report.is_some());
        match outcome {
            Ok(Reply::NotYet) => {
                self.send_call(scene, network, id, 2 * SECOND);
                return report;
            }
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
            // An exception that the code does not catch. A checkpoint that was saved already is no reason for one.
            Err(_) => {
                process.pending.clear();
                process.exit = Some(1);
            }
        }
        self.go_on(scene, network, id);
        report
    }

    fn go_on(&mut self, scene: &mut Scene, network: &Network, id: &ContainerId) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if !process.pending.is_empty() {
            return self.send_call(scene, network, id, 1_000);
        }
        if let Some(code) = process.exit {
            let wait = process.luck.between(1_000, 2 * SECOND);
            let exit = ContainerExit::Exited { code };
            return scene.after(wait, Event::Dies(id.clone(), Some(exit)));
        }
        // Only the chief works by itself; the others end with it.
        if process.spec.member == 0 {
            process.number += 1;
            let time = process.step_time();
            let wait = process.luck.between(time / 2, time * 3 / 2);
            let number = process.number;
            scene.after(wait, Event::Code(id.clone(), number));
        }
    }

    /// Trains one step of the code, after which it calls or ends.
    pub(super) fn step(
        &mut self,
        scene: &mut Scene,
        network: &Network,
        id: &ContainerId,
        number: u64,
    ) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if process.number != number || !process.alive {
            return;
        }
        process.train();
        self.go_on(scene, network, id);
    }

    /// Processes end; gives the agent on whose host they were. The rest of a gang ends with its chief.
    pub(super) fn dies(
        &mut self,
        scene: &mut Scene,
        id: &ContainerId,
        report: Option<ContainerExit>,
    ) -> Option<EndedProcesses> {
        let process = self.processes.get_mut(id).filter(|p| p.alive)?;
        let ended_well = report == Some(ContainerExit::Exited { code: 0 });
        let what = format!("{id} on a{} ends: {report:?}", process.agent);
        process.end(report);
        let (agent, spec) = (process.agent, process.spec.clone());
        scene.note(|| what);
        let peers = if spec.member == 0 && ended_well {
            let peers = self
                .alive()
                .filter(|(_, p)| p.spec.allocation == spec.allocation);
            peers.map(|(id, _)| id.clone()).collect()
        } else {
            Vec::new()
        };
        Some(EndedProcesses { agent, peers })
    }
}

/// Where processes have ended, and which containers end with them.
pub(super) struct EndedProcesses {
    /// The index of the agent on whose host they were.
    pub(super) agent: usize,
    /// Containers that end with them.
    pub(super) peers: Vec<ContainerId>,
}

/// What an answer to this call would acknowledge.
fn report_of(rows: &Rows, spec: &Spec, call: &Call) -> Option<Report> {
    let what = match call {
        Call::Metric { step, value } => ReportContent::Metric {
            step: *step,
            value: *value,
        },
        Call::Checkpoint { uuid, .. } => ReportContent::Checkpoint { uuid: uuid.clone() },
        Call::Line { sequence } => ReportContent::Line {
            spool: SpoolId(spec.container.to_string()),
            sequence: *sequence,
        },
        Call::EarlyExit(reason) => ReportContent::Control {
            what: format!("it ends early: {reason:?}"),
        },
        Call::Meet | Call::Poll | Call::Acknowledge | Call::Up | Call::Used => return None,
    };
    let Work::Trial {
        trial_id, run_id, ..
    } = spec.work
    else {
        return None;
    };
    let trial = rows.trials.get(&trial_id);
    Some(Report {
        trial_id,
        run_id,
        newest_run: trial.map_or(run_id, |t| t.row.run_id),
        what,
    })
}

fn push_checkpoint(process: &mut Process, steps: i64) {
    let Work::Trial {
        trial_id, run_id, ..
    } = process.spec.work
    else {
        return;
    };
    let files = BTreeMap::from([
        ("model.pt".to_owned(), steps * 10),
        ("state.json".to_owned(), 2),
    ]);
    process.pending.push_back(Call::Checkpoint {
        uuid: format!("{trial_id}-{run_id}-{steps}").into(),
        steps,
        files,
    });
}
