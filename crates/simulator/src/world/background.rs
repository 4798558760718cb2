//! Background work of the master: scheduling, deadlines, what ended experiments leave behind.

use det_ids::{AllocationId, ExperimentId};
use det_lifecycle::experiment::ExperimentState;
use det_orchestrator::Event as Decide;

use super::connections::Connections;
use super::network::Network;
use super::process::Master;
use super::scene::Scene;
use super::{Event, Failed};
use crate::master::{Planned, Refused, Topic, Tx};
use crate::mutant::Mutant;
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
        let planned = Planned::of(
            self.master.rows(),
            self.master.rule,
            self.scene.now,
            self.scene.mutant(),
        );
        if let Some(at) = planned.look_again {
            self.master
                .work
                .again(self.scene, at - self.scene.now, Topic::Schedule);
        }
        let reasons = planned.reasons();
        let same = reasons.iter().all(|(id, reason)| {
            self.master
                .rows()
                .allocations
                .get(*id)
                .is_none_or(|a| a.row.wait_reason.as_deref() == Some(reason))
        });
        let plan = &planned.plan;
        if plan.placements.is_empty()
            && plan.preempt.is_empty()
            && plan.hand_over.is_empty()
            && same
        {
            return;
        }
        self.scene.note(|| {
            format!(
                "plan: place {:?}, preempt {:?}",
                plan.placements
                    .iter()
                    .map(|p| (p.allocation_id.as_str(), &p.parts))
                    .collect::<Vec<_>>(),
                plan.preempt
                    .iter()
                    .map(|p| p.allocation_id.as_str())
                    .collect::<Vec<_>>()
            )
        });
        self.master.work.planned = Some(planned);
        let wait = self.scene.luck.between(0, 20_000);
        self.scene.after(wait, Event::Apply(self.master.work.start));
    }

    /// Between the planner's look and this something else may have happened: an agent went, a slot was taken out of
    /// service.
    pub(super) fn apply(&mut self, start: u64) {
        if start != self.master.work.start {
            return;
        }
        let Some(planned) = self.master.work.planned.take() else {
            return;
        };
        if self.change(|tx| tx.apply_plan(&planned)) == Err(Failed::Unavailable) {
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

    fn deadlines_round(&mut self) -> Result<Option<Time>, Failed> {
        if self.master.store.is_away(self.scene.now) {
            return Err(Failed::Unavailable);
        }
        let mut next: Option<Time> = None;
        let agents: Vec<_> = self.master.rows().agents.values().cloned().collect();
        for agent in agents {
            let connected = self
                .master
                .memory
                .as_ref()
                .is_some_and(|m| m.connections.contains_key(&agent.id));
            // The end of its connection could not be stored when it came.
            if agent.disconnected_at.is_none()
                && !connected
                && !self.scene.is(Mutant::ForgetsAbsence)
            {
                self.change(|tx| {
                    tx.agent_left(&agent.id);
                    Ok(())
                })?;
                continue;
            }
            let mut due = None;
            if let (Some(memory), Some(since)) = (&mut self.master.memory, agent.disconnected_at) {
                let tx = Tx::new(
                    &mut self.master.store.rows,
                    memory,
                    self.scene.now,
                    self.scene.mutant(),
                );
                due = tx.given_up_at(&agent).map(|due| (since, due));
            }
            match due {
                Some((since, due)) if due <= self.scene.now => {
                    self.scene.note(|| format!("{} is given up", agent.id));
                    self.change(|tx| tx.give_up_agent(&agent.id, since))?;
                }
                Some((_, due)) => next = Some(next.map_or(due, |n| n.min(due))),
                None => {}
            }
        }
        let live: Vec<(AllocationId, Time)> = self
            .master
            .rows()
            .live
            .allocations
            .iter()
            .filter_map(|id| self.master.rows().allocations.get(id))
            .filter_map(|a| Some((a.row.id.clone(), a.row.preempt_deadline?.0)))
            .collect();
        for (id, due) in live {
            if due > self.scene.now {
                next = Some(next.map_or(due, |n| n.min(due)));
            } else {
                self.change(|tx| tx.advance([Decide::Overdue { id: id.clone() }]))?;
            }
        }
        Ok(next)
    }

    fn catch_up(&mut self, id: ExperimentId) {
        let away = self.master.store.is_away(self.scene.now);
        let event = Decide::CatchUp { id };
        if away || self.change(|tx| tx.advance([event])) == Err(Failed::Unavailable) {
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
                Err(Failed::Crashed) => return,
                Err(_) => self
                    .master
                    .work
                    .retry(self.scene, 5 * SECOND, Topic::CleanUp),
            }
        }
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<(), Refused>,
    ) -> Result<(), Failed> {
        self.master.change(self.scene, self.network, change)
    }
}
