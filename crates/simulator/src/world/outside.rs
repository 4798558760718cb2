//! What comes from outside: users and faults, and the end of the faults.

use std::rc::Rc;

use det_ids::{ContainerId, ExperimentId, TaskId};
use det_invariants::Violation;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::task::TaskState;
use det_orchestrator::Task;
use det_scheduler::Service;
use det_taskspec::{ContainerExit, TaskKind};

use super::host::agent_id;
use super::store::CommitFault;
use super::{ChangeError, ChangeOrigin, Event, World};
use crate::history::{Launch, Submission, TaskWish, What, Wish};
use crate::master::{RefusalText, Topic, Tx, can_ever_fit};
use crate::rows::{SECOND, Time};

/// After the faults end, everything live must have come to its end within this time.
const PROGRESS: Time = 72 * 3600 * SECOND;

/// Administrators look after the cluster this often once the faults have ended.
const TIDY: Time = 60 * SECOND;

/// One of those that are known.
fn at<T>(mut known: impl ExactSizeIterator<Item = T>, place: usize) -> Option<T> {
    place
        .checked_rem(known.len())
        .and_then(|place| known.nth(place))
}

impl World {
    /// A user asks; a refusal or a master that is away is their own matter.
    fn ask(&mut self, ask: impl FnOnce(&mut Tx<'_>) -> Result<(), RefusalText>) -> bool {
        let (scene, network) = (&mut self.scene, &mut self.network);
        match self
            .master
            .write(scene, network, ChangeOrigin::FromOutside, ask)
        {
            Ok(()) => true,
            Err(ChangeError::Refused(_) | ChangeError::Unavailable | ChangeError::Crashed) => false,
        }
    }

    fn launch(&mut self, launch: Launch, parent: Option<TaskId>) {
        let launch = Rc::new(launch);
        if self.ask(|tx| tx.launch(&launch, parent)) {
            self.scene.counts.launched += 1;
        }
    }

    pub(super) fn outside(&mut self, step: usize) {
        let what = self.history.steps[step].1.clone();
        self.scene.note(|| format!("{what:?}"));
        match what {
            What::Submit(submission) => {
                let submission = Rc::new(submission);
                if self.ask(|tx| tx.create_experiment(&submission).map(|_| ())) {
                    self.scene.counts.experiments += 1;
                }
            }
            What::Launch(launch) => self.launch(launch, None),
            What::LaunchChild(place, launch) => {
                let parent = at(self.master.rows().launched.keys().cloned(), place);
                self.launch(launch, parent);
            }
            What::SteerTask(place, wish) => {
                if let Some(id) = at(self.master.rows().launched.keys().cloned(), place) {
                    self.ask(|tx| tx.steer_task(&id, wish));
                }
            }
            What::Steer(place, wish) => {
                if let Some(id) = at(self.master.rows().experiments.keys().copied(), place) {
                    self.ask(|tx| tx.steer(id, wish));
                }
            }
            What::KillTrial(place, trial) => {
                let rows = self.master.rows();
                let experiment = at(rows.experiments.keys().copied(), place);
                let live = experiment.map(|id| rows.live_trials_of(id));
                if let Some(id) = live.and_then(|live| at(live.into_iter(), trial)) {
                    self.ask(|tx| tx.kill_trial(id));
                }
            }
            What::Priority(place, priority) => {
                self.change_job(place, |tx, id| {
                    if let Some(row) = tx.rows.experiment_mut(id) {
                        row.priority = priority;
                    }
                    Ok(())
                });
            }
            What::Weight(place, weight) => {
                self.change_job(place, |tx, id| {
                    if let Some(row) = tx.rows.experiment_mut(id) {
                        row.weight = weight;
                    }
                    Ok(())
                });
            }
            What::MaxSlots(place, max_slots) => {
                self.change_job(place, |tx, id| {
                    let known = tx.rows.experiments.get(&id);
                    let least = known.map_or(0, |it| it.submission.slots);
                    if max_slots.is_some_and(|n| n < least) {
                        return Err("fewer than one trial needs".to_owned());
                    }
                    if let Some(row) = tx.rows.experiment_mut(id) {
                        row.max_slots = max_slots;
                    }
                    Ok(())
                });
            }
            What::Service(agent, service) => {
                let id = agent_id(agent);
                self.ask(|tx| tx.serve(&id, None, service.into()));
            }
            What::SlotService(agent, slot, enable) => {
                let id = agent_id(agent);
                let service = if enable {
                    Service::Enabled
                } else {
                    Service::Disabled
                };
                self.ask(|tx| tx.serve(&id, Some(slot), service));
            }
            fault => {
                self.scene.counts.faults += 1;
                self.fault(fault);
            }
        }
    }

    fn change_job(
        &mut self,
        place: usize,
        change: impl FnOnce(&mut Tx<'_>, ExperimentId) -> Result<(), RefusalText>,
    ) {
        let Some(id) = at(self.master.rows().experiments.keys().copied(), place) else {
            return;
        };
        self.ask(|tx| {
            let live = tx
                .rows
                .experiments
                .get(&id)
                .is_some_and(|e| e.row.state.is_live());
            if !live {
                return Err(format!("experiment {id} does not live"));
            }
            change(tx, id)?;
            tx.wakes.insert(Topic::Schedule);
            Ok(())
        });
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is taken apart, and has no owner afterwards"
    )]
    fn fault(&mut self, fault: What) {
        match fault {
            What::MasterCrash(down) => {
                self.master.dies(&mut self.scene, &mut self.network, down);
            }
            What::CrashAtCommit {
                skip,
                committed,
                down,
            } => {
                let fault = CommitFault::Crash { committed, down };
                self.master.store.arm(skip, fault);
            }
            What::CommitFails { skip, committed } => {
                let fault = CommitFault::Fails { committed };
                self.master.store.arm(skip, fault);
            }
            What::StoreAway(long) => {
                let store = &mut self.master.store;
                store.away_until = store.away_until.max(self.scene.now + long);
            }
            What::AgentCrash { agent, down, host } => {
                let (scene, network) = (&mut self.scene, &mut self.network);
                self.hosts[agent].dies(scene, network, &mut self.code, down, host);
            }
            What::Cut { agent, long, ways } => {
                self.network.cut(&mut self.scene, agent, long, ways);
            }
            What::Reset(agent) => {
                if let Some(link) = self.hosts[agent].link {
                    self.agent_notices(link, false);
                }
            }
            What::Slow { agent, delay, long } => {
                self.network.slow(self.scene.now, agent, delay, long);
            }
            What::ProcessKilled(agent, which, supervisor) => {
                let alive = self.code.alive_on(agent);
                if !alive.is_empty() {
                    let id = alive[which % alive.len()].clone();
                    let report = (!supervisor).then_some(ContainerExit::Signaled {
                        signal: 9,
                        out_of_memory: false,
                    });
                    self.processes_end(&id, report);
                }
            }
            What::Submit(_)
            | What::Launch(_)
            | What::LaunchChild(..)
            | What::SteerTask(..)
            | What::Steer(..)
            | What::KillTrial(..)
            | What::Priority(..)
            | What::MaxSlots(..)
            | What::Service(..)
            | What::SlotService(..)
            | What::Weight(..) => {}
        }
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.scene.note(|| "the faults end".to_owned());
        self.master.store.heal();
        for agent in 0..self.hosts.len() {
            self.network.heal(agent);
            self.scene.after(SECOND, Event::AgentUp(agent));
        }
        self.scene.after(SECOND, Event::MasterUp);
        self.scene.after(TIDY, Event::Tidy);
    }

    /// Administrators put everything into service and let everything run, until all has ended.
    pub(super) fn tidy(&mut self) {
        for agent in 0..self.hosts.len() {
            let id = agent_id(agent);
            let Some(row) = self.master.rows().agents.get(&id).cloned() else {
                continue;
            };
            let services = row.row.services;
            if services.place != Service::Enabled {
                self.ask(|tx| tx.serve(&id, None, Service::Enabled));
            }
            for slot in services.slots.into_keys() {
                self.ask(|tx| tx.serve(&id, Some(slot.0), Service::Enabled));
            }
        }
        let paused: Vec<ExperimentId> = self
            .master
            .rows()
            .experiments
            .values()
            .filter(|e| e.row.state == ExperimentState::Paused)
            .map(|e| e.row.id)
            .collect();
        for id in paused {
            self.ask(|tx| tx.steer(id, Wish::Activate));
        }
        let rests =
            |task: &&Task| task.kind != TaskKind::Trial && task.state == TaskState::Suspended;
        let resting = self.master.rows().tasks.values().filter(rests);
        let resting: Vec<TaskId> = resting.map(|task| task.id.clone()).collect();
        for id in resting {
            self.ask(|tx| tx.steer_task(&id, TaskWish::Activate));
        }
        // Accepted while the agents were away, and too large for all of them: it waits for good, with its reason.
        if self.master.rows().agents.len() == self.hosts.len() {
            let live: Vec<(ExperimentId, Rc<Submission>)> = self
                .master
                .rows()
                .experiments
                .values()
                .filter(|e| e.row.state.is_live())
                .map(|e| (e.row.id, e.submission.clone()))
                .collect();
            for (id, submission) in live {
                let (slots, single_place) = (submission.slots, submission.single_place);
                if can_ever_fit(self.master.rows(), slots, single_place).is_err() {
                    self.ask(|tx| tx.steer(id, Wish::Kill));
                }
            }
        }
        if self.master.rows().agents.len() == self.hosts.len() {
            let rows = self.master.rows();
            let fits = |slots| can_ever_fit(rows, slots, true).is_ok();
            let never = rows
                .launched
                .iter()
                .filter(|(_, task)| !fits(task.launch.slots));
            let never: Vec<TaskId> = never.map(|(id, _)| id.clone()).collect();
            for id in never {
                self.ask(|tx| tx.steer_task(&id, TaskWish::Kill));
            }
        }
        let rows = self.master.rows();
        let tasks = rows.launched.keys().filter_map(|id| rows.tasks.get(id));
        let works = tasks.filter(|task| task.ended_at.is_none()).count() > 0;
        let busy = works
            || rows
                .experiments
                .values()
                .any(|e| e.row.state.is_live() || e.row.state == ExperimentState::Deleting);
        let held = self.hosts.iter().any(|host| !host.records.is_empty());
        let running = self.code.alive().next().is_some();
        if !busy && !held && !running {
            self.check(true);
            self.done = true;
            return;
        }
        if self.scene.now > self.history.heal_at + PROGRESS {
            self.stuck();
            return;
        }
        self.scene.after(TIDY, Event::Tidy);
    }

    fn stuck(&mut self) {
        let live: Vec<String> = self
            .master
            .rows()
            .live
            .trials
            .iter()
            .filter_map(|id| self.master.rows().trials.get(id))
            .map(|t| {
                let allocation = self.master.rows().live_of_task(&t.row.task_id);
                format!(
                    "trial {} {:?}, allocation {:?}",
                    t.row.id,
                    t.row.state,
                    allocation.map(|a| (&a.row.id, &a.row.state, &a.row.wait_reason))
                )
            })
            .collect();
        let experiments: Vec<(ExperimentId, ExperimentState)> = self
            .master
            .rows()
            .experiments
            .values()
            .filter(|e| e.row.state.is_live() || e.row.state == ExperimentState::Deleting)
            .map(|e| (e.row.id, e.row.state))
            .collect();
        let rows = self.master.rows();
        let tasks = rows.launched.keys().filter_map(|id| rows.tasks.get(id));
        let tasks: Vec<(&TaskId, TaskState)> = tasks
            .filter(|task| task.ended_at.is_none())
            .map(|task| (&task.id, task.state))
            .collect();
        let held: Vec<&ContainerId> = self
            .hosts
            .iter()
            .flat_map(|host| host.records.keys())
            .collect();
        self.scene.violated(Violation {
            number: 4,
            what: format!(
                "no progress since the faults ended: experiments {experiments:?}; {live:?}; tasks {tasks:?}; agents hold {held:?}"
            ),
        });
    }
}
