//! Background work of the master: scheduling, deadlines, what ended experiments leave behind.

use det_ids::{ExperimentId, Micros, PlaceId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::record::ActorName;
use det_orchestrator::{Absence, Cause, Core, Due, Event as Decide, IdleService};

use super::connections::Connections;
use super::network::Network;
use super::process::Master;
use super::scene::Scene;
use super::{ChangeError, Event};
use crate::master::{PATIENCE, PlannerAnswer, RefusalText, Topic, Tx, core, watched};
use crate::rows::{SECOND, Time};

/// The master while it does background work.
pub(super) struct Passes<'a> {
    pub(super) master: &'a mut Master,
    pub(super) scene: &'a mut Scene,
    pub(super) network: &'a mut Network,
}

impl Passes<'_> {
    /// Background work looks at the rows.
    pub(super) fn pass(&mut self, start: u64, topic: Topic) {
        if start != self.master.work.start || self.master.memory.is_none() {
            return;
        }
        self.master.work.passes.remove(&topic);
        match topic {
            Topic::Schedule => self.schedule(),
            Topic::Deadlines => self.deadlines(),
            Topic::CleanUp => self.clean_up(),
            Topic::Backlog(id) => self.catch_up(id),
            Topic::Place(id) => Connections {
                master: self.master,
                scene: self.scene,
                network: self.network,
            }
            .reconcile(&id),
            // Nothing here waits for these.
            Topic::Allocation(_) | Topic::TaskLog(_) | Topic::Trial(_) => {}
        }
    }

    fn schedule(&mut self) {
        if self.master.work.planned.is_some() {
            // Passes do not overlap: one more after this one.
            self.master.work.passes.insert(Topic::Schedule);
            self.scene
                .after(1_000, Event::Pass(self.master.work.start, Topic::Schedule));
            return;
        }
        if self.master.store.is_away(self.scene.now) {
            self.master
                .work
                .retry(self.scene, SECOND / 2, Topic::Schedule);
            return;
        }
        let (rule, now) = (self.master.rule, self.scene.now);
        let planned = PlannerAnswer::of(self.core(), self.master.rows(), rule, now);
        if let Some(at) = planned.look_again {
            self.master
                .work
                .again(self.scene, at - now, Topic::Schedule);
        }
        let decided = planned.decided(self.master.rows());
        if decided.is_empty() {
            return;
        }
        self.scene.note(|| {
            format!(
                "plan: place {:?}, preempt {:?}",
                decided
                    .placements
                    .iter()
                    .map(|p| (p.allocation_id.as_str(), &p.parts))
                    .collect::<Vec<_>>(),
                decided
                    .preempt
                    .iter()
                    .map(|p| p.allocation_id.as_str())
                    .collect::<Vec<_>>()
            )
        });
        self.master.work.planned = Some(decided);
        let wait = self.scene.luck.between(0, 20_000);
        self.scene.after(wait, Event::Apply(self.master.work.start));
    }

    /// Between the planner's look and this something else may have happened: an agent went, a slot was taken out of
    /// service.
    pub(super) fn apply(&mut self, start: u64) {
        if start != self.master.work.start {
            return;
        }
        let Some(decided) = self.master.work.planned.take() else {
            return;
        };
        if self.change(|tx| tx.apply_plan(decided)) == Err(ChangeError::Unavailable) {
            self.master
                .work
                .retry(self.scene, SECOND / 2, Topic::Schedule);
        }
    }

    fn deadlines(&mut self) {
        match self.deadlines_round() {
            Ok(Some(at)) => {
                let wait = (at - self.scene.now).max(1);
                self.master.work.again(self.scene, wait, Topic::Deadlines);
            }
            Ok(None) => {}
            Err(_) => self.master.work.retry(self.scene, SECOND, Topic::Deadlines),
        }
    }

    fn deadlines_round(&mut self) -> Result<Option<Time>, ChangeError> {
        if self.master.store.is_away(self.scene.now) {
            return Err(ChangeError::Unavailable);
        }
        let now = Micros(self.scene.now);
        let mut next: Option<Micros> = None;
        let agents: Vec<_> = self.master.rows().agents.values().cloned().collect();
        for agent in agents {
            let (core, since) = (self.core(), agent.row.disconnected_at);
            match core.absence(since, self.is_connected(&agent.id), PATIENCE, now) {
                Absence::None => {}
                Absence::Unstored => {
                    self.change(|tx| {
                        tx.advance([Decide::PlaceLeft {
                            place: agent.id,
                            cause: Cause::actor(ActorName::Master),
                        }])
                    })?;
                }
                Absence::Until(at) => next = Some(next.map_or(at, |next| next.min(at))),
                Absence::TooLong(since) => {
                    self.scene.note(|| format!("{} is given up", agent.id));
                    let given_up = Decide::PlaceGivenUp {
                        place: agent.id,
                        since: Some(since),
                        slots: 0,
                        reason: "the agent was away for too long".to_owned(),
                    };
                    self.change(|tx| tx.advance([given_up]))?;
                }
            }
        }
        let rows = self.master.rows();
        let live = rows.live.allocations.iter();
        let live = live.filter_map(|id| rows.allocations.get(id));
        let deadlines = live.filter_map(|a| Some((a.row.id.clone(), a.row.preempt_deadline?)));
        let due = Due::of(deadlines, now);
        for id in due.now {
            self.change(|tx| tx.advance([Decide::Overdue { id }]))?;
        }
        let watched = watched(self.master.rows());
        let memory = self.master.memory.as_mut();
        let looked = memory.map(|memory| memory.idle.look(watched, now));
        let (over, idle) = looked.unwrap_or_default();
        for IdleService { task, timeout, .. } in over {
            self.scene.note(|| format!("{task} is idle for too long"));
            self.scene.counts.idle += 1;
            let unused = Decide::Unused { id: task, timeout };
            self.change(|tx| tx.advance([unused]))?;
        }
        let idle = idle.and_then(|left| i64::try_from(left.as_micros()).ok());
        let idle = idle.map(|left| Micros(now.0 + left));
        let moments = next.into_iter().chain(due.next).chain(idle);
        Ok(moments.min().map(|at| at.0))
    }

    fn is_connected(&self, place: &PlaceId) -> bool {
        let memory = self.master.memory.as_ref();
        memory.is_some_and(|memory| memory.connections.contains_key(place))
    }

    fn core(&self) -> Core {
        core(self.scene.mutant())
    }

    fn catch_up(&mut self, id: ExperimentId) {
        let away = self.master.store.is_away(self.scene.now);
        let event = Decide::CatchUp { id };
        if away || self.change(|tx| tx.advance([event])) == Err(ChangeError::Unavailable) {
            let topic = Topic::Backlog(id);
            self.master.work.retry(self.scene, SECOND, topic);
        }
    }

    fn clean_up(&mut self) {
        if self.master.store.is_away(self.scene.now) {
            self.master
                .work
                .retry(self.scene, 5 * SECOND, Topic::CleanUp);
            return;
        }
        let doomed: Vec<ExperimentId> = self
            .master
            .rows()
            .experiments
            .values()
            .filter(|e| e.row.state == ExperimentState::Deleting)
            .map(|e| e.row.id)
            .collect();
        for id in doomed {
            let outcome = self.change(|tx| {
                let deleting = tx
                    .rows
                    .experiments
                    .get(&id)
                    .is_some_and(|e| e.row.state == ExperimentState::Deleting);
                if deleting {
                    tx.rows.delete_experiment(id);
                }
                Ok(())
            });
            match outcome {
                Ok(()) => self.scene.note(|| format!("experiment {id} is deleted")),
                Err(ChangeError::Crashed) => return,
                Err(_) => self
                    .master
                    .work
                    .retry(self.scene, 5 * SECOND, Topic::CleanUp),
            }
        }
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<(), RefusalText>,
    ) -> Result<(), ChangeError> {
        self.master.change(self.scene, self.network, change)
    }
}
