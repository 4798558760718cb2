//! What comes from outside: people and faults, and the end of the faults.

use std::rc::Rc;

use det_ids::{ContainerId, ExperimentId};
use det_invariants::Violation;
use det_lifecycle::experiment::ExperimentState;
use det_taskspec::ContainerExit;

use super::{Asked, CommitFault, Event, Failed, PROGRESS, SILENCE, World};
use crate::history::{Service, Submission, Ways, What, Wish};
use crate::master::{Refused, Topic, Tx, can_ever_fit};
use crate::rows::{SECOND, Time};

/// People look after the cluster this often once the faults have ended.
const TIDY: Time = 60 * SECOND;

impl World {
    /// A user asks; a refusal or a master that is away is their own matter.
    fn ask(&mut self, ask: impl FnOnce(&mut Tx<'_>) -> Result<(), Refused>) -> bool {
        match self.write(Asked::FromOutside, ask) {
            Ok(()) => true,
            Err(Failed::Refused(_) | Failed::Unavailable | Failed::Crashed) => false,
        }
    }

    fn experiment_at(&self, place: usize) -> Option<ExperimentId> {
        let ids: Vec<ExperimentId> = self.rows.experiments.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[place % ids.len()])
    }

    pub(super) fn outside(&mut self, step: usize) {
        let what = self.history.steps[step].1.clone();
        self.note(|| format!("{what:?}"));
        match what {
            What::Submit(submission) => {
                let submission = Rc::new(submission);
                if self.ask(|tx| tx.create_experiment(&submission).map(|_| ())) {
                    self.counts.experiments += 1;
                }
            }
            What::Steer(place, wish) => {
                if let Some(id) = self.experiment_at(place) {
                    self.ask(|tx| tx.steer(id, wish));
                }
            }
            What::KillTrial(place, trial) => {
                let live = self
                    .experiment_at(place)
                    .map(|id| self.rows.live_trials_of(id))
                    .unwrap_or_default();
                if !live.is_empty() {
                    let id = live[trial % live.len()];
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
                    let Some(row) = tx.rows.experiment_mut(id) else {
                        return Ok(());
                    };
                    if max_slots.is_some_and(|n| n < row.submission.slots) {
                        return Err("fewer than one trial needs".to_owned());
                    }
                    row.max_slots = max_slots;
                    Ok(())
                });
            }
            What::Service(agent, service) => {
                let id = format!("a{agent}").into();
                self.ask(|tx| tx.set_agent_service(&id, service));
            }
            What::SlotService(agent, slot, enable) => {
                let id = format!("a{agent}").into();
                self.ask(|tx| tx.set_slot_service(&id, slot, enable));
            }
            fault => {
                self.counts.faults += 1;
                self.fault(fault);
            }
        }
    }

    fn change_job(
        &mut self,
        place: usize,
        change: impl FnOnce(&mut Tx<'_>, ExperimentId) -> Result<(), Refused>,
    ) {
        let Some(id) = self.experiment_at(place) else {
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
        reason = "it is taken apart, and is nobody's afterwards"
    )]
    fn fault(&mut self, fault: What) {
        match fault {
            What::MasterCrash(down) => self.master_dies(down),
            What::CrashAtCommit {
                skip,
                committed,
                down,
            } => self
                .armed
                .push((skip + 1, CommitFault::Crash { committed, down })),
            What::CommitFails { skip, committed } => self
                .armed
                .push((skip + 1, CommitFault::Fails { committed })),
            What::StoreAway(long) => {
                self.store_away_until = self.store_away_until.max(self.now + long);
            }
            What::AgentCrash { agent, down, host } => self.agent_dies(agent, down, host),
            What::Cut { agent, long, ways } => self.cut(agent, long, ways),
            What::Reset(agent) => {
                if let Some(link) = self.agents[agent].link {
                    self.agent_notices(link, false);
                }
            }
            What::Slow { agent, delay, long } => {
                let host = &mut self.agents[agent];
                host.slow_by = delay;
                host.slow_until = self.now + long;
            }
            What::ProcessKilled(agent, which, supervisor) => {
                let alive: Vec<ContainerId> = self
                    .processes
                    .values()
                    .filter(|p| p.alive && p.agent == agent)
                    .map(|p| p.spec.container.clone())
                    .collect();
                if !alive.is_empty() {
                    let id = alive[which % alive.len()].clone();
                    let report = (!supervisor).then_some(ContainerExit::Signaled {
                        signal: 9,
                        out_of_memory: false,
                    });
                    self.dies(&id, report);
                }
            }
            What::Submit(_)
            | What::Steer(..)
            | What::KillTrial(..)
            | What::Priority(..)
            | What::MaxSlots(..)
            | What::Service(..)
            | What::SlotService(..)
            | What::Weight(..) => {}
        }
    }

    fn cut(&mut self, agent: usize, long: Time, ways: Ways) {
        let host = &mut self.agents[agent];
        if host.cut_until > self.now {
            return;
        }
        host.cut_until = self.now + long;
        host.cut_ways = ways;
        let open: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, l)| l.agent == agent)
            .map(|(id, _)| *id)
            .collect();
        for link in open {
            let wait = self.luck.between(SILENCE, SILENCE + 10 * SECOND);
            if ways != Ways::ToHost {
                self.after(wait, Event::MasterNotices(link, true));
            }
            if ways != Ways::ToMaster {
                self.after(SILENCE, Event::AgentNotices(link, true));
            }
        }
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.note(|| "the faults end".to_owned());
        self.armed.clear();
        self.store_away_until = 0;
        for agent in 0..self.agents.len() {
            self.agents[agent].cut_until = 0;
            self.agents[agent].slow_until = 0;
            self.after(SECOND, Event::AgentUp(agent));
        }
        self.after(SECOND, Event::MasterUp);
        self.after(TIDY, Event::Tidy);
    }

    /// People put everything into service and let everything run, until all has ended.
    pub(super) fn tidy(&mut self) {
        for agent in 0..self.agents.len() {
            let id = format!("a{agent}").into();
            let Some(row) = self.rows.agents.get(&id).cloned() else {
                continue;
            };
            if !row.enabled {
                self.ask(|tx| tx.set_agent_service(&id, Service::Enable));
            }
            for slot in row.disabled_slots {
                self.ask(|tx| tx.set_slot_service(&id, slot, true));
            }
        }
        let paused: Vec<ExperimentId> = self
            .rows
            .experiments
            .values()
            .filter(|e| e.row.state == ExperimentState::Paused)
            .map(|e| e.row.id)
            .collect();
        for id in paused {
            self.ask(|tx| tx.steer(id, Wish::Activate));
        }
        // Taken in while the agents were away, and too large for all of them: it waits for good, and says so.
        if self.rows.agents.len() == self.agents.len() {
            let live: Vec<(ExperimentId, Rc<Submission>)> = self
                .rows
                .experiments
                .values()
                .filter(|e| e.row.state.is_live())
                .map(|e| (e.row.id, e.submission.clone()))
                .collect();
            for (id, submission) in live {
                if can_ever_fit(&self.rows, &submission).is_err() {
                    self.ask(|tx| tx.steer(id, Wish::Kill));
                }
            }
        }
        let busy = self
            .rows
            .experiments
            .values()
            .any(|e| e.row.state.is_live() || e.row.state == ExperimentState::Deleting);
        let held = self.agents.iter().any(|host| !host.records.is_empty());
        let running = self.processes.values().any(|p| p.alive);
        if !busy && !held && !running {
            self.check(true);
            self.done = true;
            return;
        }
        if self.now > self.history.heal_at + PROGRESS {
            self.stuck();
            return;
        }
        self.after(TIDY, Event::Tidy);
    }

    fn stuck(&mut self) {
        let live: Vec<String> = self
            .rows
            .live
            .trials
            .iter()
            .filter_map(|id| self.rows.trials.get(id))
            .map(|t| {
                let allocation = self.rows.live_of_task(&t.row.task_id);
                format!(
                    "trial {} {:?}, allocation {:?}",
                    t.row.id,
                    t.row.state,
                    allocation.map(|a| (&a.row.id, &a.row.state, &a.row.wait_reason))
                )
            })
            .collect();
        let experiments: Vec<(ExperimentId, ExperimentState)> = self
            .rows
            .experiments
            .values()
            .filter(|e| e.row.state.is_live() || e.row.state == ExperimentState::Deleting)
            .map(|e| (e.row.id, e.row.state))
            .collect();
        let held: Vec<&ContainerId> = self
            .agents
            .iter()
            .flat_map(|host| host.records.keys())
            .collect();
        self.violated(Violation {
            number: 4,
            what: format!(
                "no progress since the faults ended: experiments {experiments:?}; {live:?}; agents hold {held:?}"
            ),
        });
    }
}
