//! The master as a process: its connections, its background work, its starts and ends.

use std::collections::BTreeMap;
use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_ids::{AllocationId, ContainerId, ExperimentId, PlaceId};
use det_lifecycle::container::{Desired, Observed};
use det_lifecycle::experiment::ExperimentState;
use det_orchestrator::Event as Decide;
use det_rm::{Heard, Order, reconcile};

use super::{Event, Failed, Spec, ToAgent, ToMaster, World};
use crate::master::{Connection, Memory, Planned, REPEAT_END, Topic, place};
use crate::mutant::Mutant;
use crate::rows::{SECOND, Time};

impl World {
    pub(super) fn master_dies(&mut self, down: Time) {
        if self.memory.take().is_none() {
            return;
        }
        self.note(|| format!("master dies for {} s", down / SECOND));
        self.passes.clear();
        self.planned = None;
        self.start += 1;
        let open: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, l)| l.master_open)
            .map(|(id, _)| *id)
            .collect();
        for link in open {
            if let Some(link) = self.links.get_mut(&link) {
                link.master_open = false;
            }
            self.notify_of_end(link, false);
        }
        self.after(down, Event::MasterUp);
    }

    pub(super) fn master_up(&mut self) {
        if self.memory.is_some() {
            return;
        }
        if self.now < self.store_away_until {
            // It cannot start without its database and is started again.
            self.after(SECOND, Event::MasterUp);
            return;
        }
        self.note(|| "master starts".to_owned());
        self.memory = Some(Memory::default());
        let marked = self.change(|tx| {
            let connected: Vec<PlaceId> = tx
                .rows
                .agents
                .values()
                .filter(|a| a.disconnected_at.is_none())
                .map(|a| a.id.clone())
                .collect();
            for agent in connected {
                tx.agent_left(&agent);
            }
            tx.wakes.clear();
            Ok(())
        });
        match marked {
            Ok(()) => {}
            // The start failed.
            Err(Failed::Unavailable | Failed::Refused(_)) => {
                self.master_dies(SECOND);
                return;
            }
            Err(Failed::Crashed) => return,
        }
        if self.is(Mutant::SleepsAfterStart) {
            return;
        }
        for topic in [Topic::Schedule, Topic::Deadlines, Topic::CleanUp] {
            self.wake(topic);
        }
    }

    /// Background work looks at the rows.
    pub(super) fn pass(&mut self, start: u64, topic: Topic) {
        if start != self.start || self.memory.is_none() {
            return;
        }
        self.passes.remove(&topic);
        match topic {
            Topic::Schedule => self.schedule(),
            Topic::Deadlines => self.deadlines(),
            Topic::CleanUp => self.clean_up(),
            Topic::Place(id) => self.reconcile(&id),
            // Nothing here waits for these.
            Topic::Allocation(_) | Topic::TaskLog(_) | Topic::Trial(_) => {}
        }
    }

    /// Looks again after some time, although nothing changes.
    fn again(&mut self, wait: Time, topic: Topic) {
        self.after(wait, Event::Timer(self.start, topic));
    }

    /// Tries again after some time.
    fn retry(&mut self, wait: Time, topic: Topic) {
        self.retry_at = self.retry_at.max(self.now + wait);
        self.again(wait, topic);
    }

    fn schedule(&mut self) {
        if self.planned.is_some() {
            // Passes do not overlap: one more after this one.
            self.passes.insert(Topic::Schedule);
            self.after(1_000, Event::Pass(self.start, Topic::Schedule));
            return;
        }
        if self.now < self.store_away_until {
            self.retry(SECOND / 2, Topic::Schedule);
            return;
        }
        let planned = Planned::of(&self.rows, self.history.rule, self.now, self.mutant);
        if let Some(at) = planned.look_again {
            self.again(at - self.now, Topic::Schedule);
        }
        let reasons = planned.reasons();
        let same = reasons.iter().all(|(id, reason)| {
            self.rows
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
        self.note(|| {
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
        self.planned = Some(planned);
        let wait = self.luck.between(0, 20_000);
        self.after(wait, Event::Apply(self.start));
    }

    /// Between the planner's look and this something else may have happened: an agent went, a slot was taken out of
    /// service.
    pub(super) fn apply(&mut self, start: u64) {
        if start != self.start {
            return;
        }
        let Some(planned) = self.planned.take() else {
            return;
        };
        if self.change(|tx| tx.apply_plan(&planned)) == Err(Failed::Unavailable) {
            self.retry(SECOND / 2, Topic::Schedule);
        }
    }

    fn deadlines(&mut self) {
        match self.deadlines_round() {
            Ok(Some(at)) => self.again((at - self.now).max(1), Topic::Deadlines),
            Ok(None) => {}
            Err(_) => self.retry(SECOND, Topic::Deadlines),
        }
    }

    fn deadlines_round(&mut self) -> Result<Option<Time>, Failed> {
        if self.now < self.store_away_until {
            return Err(Failed::Unavailable);
        }
        let mut next: Option<Time> = None;
        let agents: Vec<_> = self.rows.agents.values().cloned().collect();
        for agent in agents {
            let connected = self
                .memory
                .as_ref()
                .is_some_and(|m| m.connections.contains_key(&agent.id));
            // The end of its connection could not be stored when it came.
            if agent.disconnected_at.is_none() && !connected && !self.is(Mutant::ForgetsAbsence) {
                self.change(|tx| {
                    tx.agent_left(&agent.id);
                    Ok(())
                })?;
                continue;
            }
            let mut due = None;
            if let (Some(memory), Some(since)) = (&mut self.memory, agent.disconnected_at) {
                let tx = crate::master::Tx::new(&mut self.rows, memory, self.now, self.mutant);
                due = tx.given_up_at(&agent).map(|due| (since, due));
            }
            match due {
                Some((since, due)) if due <= self.now => {
                    self.note(|| format!("{} is given up", agent.id));
                    self.change(|tx| tx.give_up_agent(&agent.id, since))?;
                }
                Some((_, due)) => next = Some(next.map_or(due, |n| n.min(due))),
                None => {}
            }
        }
        let live: Vec<(AllocationId, Time)> = self
            .rows
            .live
            .allocations
            .iter()
            .filter_map(|id| self.rows.allocations.get(id))
            .filter_map(|a| Some((a.row.id.clone(), a.row.preempt_deadline?.0)))
            .collect();
        for (id, due) in live {
            if due > self.now {
                next = Some(next.map_or(due, |n| n.min(due)));
            } else {
                self.change(|tx| tx.advance([Decide::Overdue { id: id.clone() }]))?;
            }
        }
        Ok(next)
    }

    fn clean_up(&mut self) {
        if self.now < self.store_away_until {
            self.retry(5 * SECOND, Topic::CleanUp);
            return;
        }
        let doomed: Vec<ExperimentId> = self
            .rows
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
                Ok(()) => self.note(|| format!("experiment {id} is deleted")),
                Err(Failed::Crashed) => return,
                Err(_) => self.retry(5 * SECOND, Topic::CleanUp),
            }
        }
    }

    /// Something reaches the master on a connection.
    pub(super) fn arrive(&mut self, link: u64, message: ToMaster) {
        let Some(agent) = self
            .links
            .get(&link)
            .filter(|l| l.master_open)
            .map(|l| l.agent)
        else {
            return;
        };
        let id = self.agents[agent].id.clone();
        match message {
            ToMaster::Hello {
                instance,
                slots,
                containers,
            } => self.hello(link, &id, instance, slots, &containers),
            ToMaster::Container(container, state) => {
                let Some(memory) = &mut self.memory else {
                    return;
                };
                if let Some(connection) = memory.connections.get_mut(&id)
                    && connection.link == link
                {
                    connection.heard.entry(container.clone()).or_default().state =
                        Some(state.clone().into());
                }
                self.note(|| format!("{id} reports {container} {state:?}"));
                let outcome = self.change(|tx| {
                    tx.advance([Decide::Observed {
                        place: id.clone(),
                        container_id: container.clone(),
                        observed: state.into(),
                    }])
                });
                match outcome {
                    // The loop of the connection compares after every message.
                    Ok(()) => self.wake(place(&id)),
                    Err(Failed::Crashed) => {}
                    Err(_) => self.end_connection(link),
                }
            }
        }
    }

    fn hello(
        &mut self,
        link: u64,
        id: &PlaceId,
        instance: u32,
        slots: u32,
        containers: &[(ContainerId, ContainerState)],
    ) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let mut replaced = None;
        if let Some(other) = memory.connections.get(id) {
            if other.instance != instance {
                self.say_to_agent(link, ToAgent::Refused);
                if let Some(link) = self.links.get_mut(&link) {
                    link.master_open = false;
                }
                return;
            }
            replaced = Some(other.link);
        }
        let heard: BTreeMap<ContainerId, Heard> = containers
            .iter()
            .map(|(container, state)| {
                let heard = Heard {
                    state: Some(state.clone().into()),
                    ..Heard::default()
                };
                (container.clone(), heard)
            })
            .collect();
        memory.connections.insert(
            id.clone(),
            Connection {
                link,
                instance,
                heard,
            },
        );
        if let Some(old) = replaced {
            // Its task may still be about to handle something.
            let wait = self.luck.between(0, 500_000);
            self.after(wait, Event::MasterNotices(old, false));
        }
        self.note(|| format!("{id} says hello with {containers:?}"));
        match self.change(|tx| tx.agent_joined(id, instance, slots, containers)) {
            Ok(()) => {
                self.say_to_agent(link, ToAgent::Welcome);
                self.wake(place(id));
            }
            Err(Failed::Crashed) => {}
            Err(_) => self.end_connection(link),
        }
    }

    pub(super) fn master_notices(&mut self, link: u64, silence: bool) {
        let Some(agent) = self.links.get(&link).map(|l| l.agent) else {
            return;
        };
        if silence && self.cut_until(agent, true).is_none() {
            return;
        }
        self.end_connection(link);
    }

    /// The master's side of a connection ends.
    pub(super) fn end_connection(&mut self, link: u64) {
        let Some(open) = self.links.get_mut(&link).filter(|l| l.master_open) else {
            return;
        };
        open.master_open = false;
        let agent = open.agent;
        self.notify_of_end(link, false);
        let id = self.agents[agent].id.clone();
        let Some(memory) = &mut self.memory else {
            return;
        };
        if memory.connections.get(&id).is_none_or(|c| c.link != link) {
            return;
        }
        memory.connections.remove(&id);
        self.note(|| format!("{id} is disconnected"));
        let stored = self.change(|tx| {
            tx.agent_left(&id);
            Ok(())
        });
        if stored == Err(Failed::Unavailable) && !self.is(Mutant::ForgetsAbsence) {
            self.wake(Topic::Deadlines);
        }
    }

    /// Sends an agent what is missing.
    fn reconcile(&mut self, id: &PlaceId) {
        let Some(connection) = self.memory.as_ref().and_then(|m| m.connections.get(id)) else {
            return;
        };
        let link = connection.link;
        if self.now < self.store_away_until {
            self.end_connection(link);
            return;
        }
        let rows: BTreeMap<ContainerId, Desired> = self
            .rows
            .live_containers_of(id)
            .into_iter()
            .map(|c| (c.row.id.clone(), c.row.desired))
            .collect();
        for order in reconcile(&rows, &connection.heard) {
            if !self.follow_order(id, link, order) {
                return;
            }
        }
    }

    /// Sends one order; `false` when the connection is gone.
    fn follow_order(&mut self, id: &PlaceId, link: u64, order: Order) -> bool {
        let leaves_strays = self.is(Mutant::LeavesStrays);
        let outcome = match &order {
            // A token is stored for it.
            Order::Start(_) => self.change(|_| Ok(())),
            Order::NeverStarted(container) => {
                let id = container.clone();
                self.change(|tx| tx.advance([Decide::NeverStarted { id }]))
            }
            Order::End { .. } | Order::Forget(_) => Ok(()),
        };
        if let Err(failed) = outcome {
            if failed != Failed::Crashed {
                self.end_connection(link);
            }
            return false;
        }
        let spec = match &order {
            Order::Start(container) => self.spec(container),
            _ => None,
        };
        let Some(connection) = self
            .memory
            .as_mut()
            .and_then(|m| m.connections.get_mut(id))
            .filter(|c| c.link == link)
        else {
            return false;
        };
        let message = match order {
            Order::Start(container) => {
                let Some(spec) = spec else {
                    return true;
                };
                connection.heard.entry(container).or_default().start_sent = true;
                ToAgent::Start(Rc::new(spec))
            }
            Order::End {
                container_id,
                grace,
            } => {
                let sent = if grace { Desired::Stop } else { Desired::Kill };
                connection
                    .heard
                    .entry(container_id.clone())
                    .or_default()
                    .end_sent = Some(sent);
                self.after(REPEAT_END, Event::Repeat(link));
                ToAgent::Kill(container_id)
            }
            Order::NeverStarted(_) => return true,
            Order::Forget(container) => {
                let heard = connection.heard.remove(&container);
                let ended =
                    heard.is_none_or(|h| matches!(h.state, Some(Observed::Terminated { .. })));
                if leaves_strays && !ended {
                    return true;
                }
                ToAgent::Forget(container)
            }
        };
        self.note(|| format!("to {id}: {message:?}"));
        self.say_to_agent(link, message);
        true
    }

    fn spec(&self, container: &ContainerId) -> Option<Spec> {
        let held = self.rows.containers.get(container)?;
        let row = &held.row;
        let allocation = &self.rows.allocations.get(&row.allocation_id)?.row;
        let trial = self.rows.trials.get(&allocation.trial_id?)?;
        let experiment = self.rows.experiments.get(&trial.row.experiment_id)?;
        // The row may have changed since it was read.
        (row.ended_at.is_none() && row.desired == Desired::Run).then(|| Spec {
            container: row.id.clone(),
            allocation: allocation.id.clone(),
            trial_id: trial.row.id,
            run_id: allocation.run_id,
            seed: trial.seed,
            member: usize::try_from(row.member).unwrap_or(usize::MAX),
            from_step: trial
                .latest_checkpoint
                .as_ref()
                .map_or(0, |(_, steps)| *steps),
            submission: experiment.submission.clone(),
        })
    }

    /// Orders to end that had no effect are given again.
    pub(super) fn repeat(&mut self, link: u64) {
        let Some(open) = self.links.get(&link).filter(|l| l.master_open) else {
            return;
        };
        let id = self.agents[open.agent].id.clone();
        let connection = self
            .memory
            .as_mut()
            .and_then(|m| m.connections.get_mut(&id))
            .filter(|c| c.link == link);
        if let Some(connection) = connection {
            for heard in connection.heard.values_mut() {
                heard.end_sent = None;
            }
            self.wake(place(&id));
        }
    }
}
