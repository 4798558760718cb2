//! The master's side of the connections of agents.

use std::collections::BTreeMap;
use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_ids::{ContainerId, PlaceId};
use det_lifecycle::container::DesiredState;
use det_lifecycle::record::ActorName;
use det_orchestrator::{Cause, Event as Decide};
use det_rm::Order;
use det_taskspec::TaskKind;

use super::host::agent_id;
use super::network::{Network, Way};
use super::process::Master;
use super::scene::Scene;
use super::{ChangeError, Event, Spec, ToAgent, ToMaster, Work};
use crate::master::{Connection, REPEAT_END, RefusalText, Topic, Tx, place};
use crate::mutant::Mutant;
use crate::rows::Rows;

/// The master while it serves a connection.
pub(super) struct Connections<'a> {
    pub(super) master: &'a mut Master,
    pub(super) scene: &'a mut Scene,
    pub(super) network: &'a mut Network,
}

impl Connections<'_> {
    /// Something reaches the master on a connection.
    pub(super) fn receive(&mut self, link: u64, message: ToMaster) {
        let Some(id) = self.network.agent_at_master(link).map(agent_id) else {
            return;
        };
        match message {
            ToMaster::Hello {
                instance,
                slots,
                containers,
            } => self.hello(link, &id, instance, slots, &containers),
            ToMaster::Container(container, state) => {
                let Some(memory) = &mut self.master.memory else {
                    return;
                };
                if let Some(connection) = memory.connections.get_mut(&id)
                    && connection.link == link
                {
                    connection.view.received(&container, state.clone().into());
                }
                self.scene
                    .note(|| format!("{id} reports {container} {state:?}"));
                let outcome = self.change(|tx| {
                    tx.advance([Decide::Observed {
                        place: id.clone(),
                        container_id: container.clone(),
                        observed: state.into(),
                    }])
                });
                match outcome {
                    // The loop of the connection compares after every message.
                    Ok(()) => self.master.wake(self.scene, place(&id)),
                    Err(ChangeError::Crashed) => {}
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
        let Some(memory) = &mut self.master.memory else {
            return;
        };
        let mut replaced = None;
        if let Some(other) = memory.connections.get(id) {
            if other.instance != instance {
                self.network
                    .send_to_agent(self.scene, link, ToAgent::Refused);
                self.network.close_at_master(link);
                return;
            }
            replaced = Some(other.link);
        }
        let reports = containers.iter().cloned();
        let view = reports.map(|(id, state)| (id, state.into())).collect();
        memory.connections.insert(
            id.clone(),
            Connection {
                link,
                instance,
                view,
            },
        );
        if let Some(old) = replaced {
            // Its task may still be about to handle something.
            let wait = self.scene.luck.between(0, 500_000);
            self.scene.after(wait, Event::MasterNotices(old, false));
        }
        self.scene
            .note(|| format!("{id} sends its greeting with {containers:?}"));
        match self.change(|tx| tx.agent_joined(id, instance, slots, containers)) {
            Ok(()) => {
                self.network
                    .send_to_agent(self.scene, link, ToAgent::Welcome);
                self.master.wake(self.scene, place(id));
            }
            Err(ChangeError::Crashed) => {}
            Err(_) => self.end_connection(link),
        }
    }

    pub(super) fn notices(&mut self, link: u64, silence: bool) {
        let Some(agent) = self.network.agent_of(link) else {
            return;
        };
        let cut = self.network.cut_until(self.scene.now, agent, Way::ToMaster);
        if silence && cut.is_none() {
            return;
        }
        self.end_connection(link);
    }

    /// The master's side of a connection ends.
    fn end_connection(&mut self, link: u64) {
        let Some(id) = self.network.agent_at_master(link).map(agent_id) else {
            return;
        };
        self.network.close_at_master(link);
        self.network.notify_of_end(self.scene, link, Way::ToHost);
        let Some(memory) = &mut self.master.memory else {
            return;
        };
        if memory.connections.get(&id).is_none_or(|c| c.link != link) {
            return;
        }
        memory.connections.remove(&id);
        self.scene.note(|| format!("{id} is disconnected"));
        let left = Decide::PlaceLeft {
            place: id,
            cause: Cause::actor(ActorName::Master),
        };
        if self.change(|tx| tx.advance([left])) == Err(ChangeError::Unavailable) {
            self.master.wake(self.scene, Topic::Deadlines);
        }
    }

    /// Sends an agent what is missing.
    pub(super) fn reconcile(&mut self, id: &PlaceId) {
        let Some(connection) = self
            .master
            .memory
            .as_ref()
            .and_then(|m| m.connections.get(id))
        else {
            return;
        };
        let link = connection.link;
        if self.master.store.is_away(self.scene.now) {
            self.end_connection(link);
            return;
        }
        let rows: BTreeMap<ContainerId, DesiredState> = self
            .master
            .rows()
            .live_containers_of(id)
            .into_iter()
            .map(|c| (c.row.id.clone(), c.row.desired))
            .collect();
        let mutant = self.scene.mutant().and_then(Mutant::of_manager);
        for order in connection.view.orders(&rows, mutant) {
            if !self.follow_order(id, link, &order) {
                return;
            }
        }
    }

    /// Sends one order; `false` when the connection is gone.
    fn follow_order(&mut self, id: &PlaceId, link: u64, order: &Order) -> bool {
        let outcome = match order {
            // A token is stored for it.
            Order::Start(_) => self.change(|_| Ok(())),
            Order::NeverStarted(container) => {
                let id = container.clone();
                self.change(|tx| tx.advance([Decide::NeverStarted { id }]))
            }
            Order::End { .. } | Order::Forget(_) => Ok(()),
        };
        if let Err(failed) = outcome {
            if failed != ChangeError::Crashed {
                self.end_connection(link);
            }
            return false;
        }
        let spec = match order {
            Order::Start(container) => spec(self.master.rows(), container),
            _ => None,
        };
        let Some(connection) = self
            .master
            .memory
            .as_mut()
            .and_then(|m| m.connections.get_mut(id))
            .filter(|c| c.link == link)
        else {
            return false;
        };
        let message = match order {
            Order::Start(_) => match spec {
                Some(spec) => ToAgent::Start(Rc::new(spec)),
                None => return true,
            },
            Order::End { container_id, .. } => {
                self.scene.after(REPEAT_END, Event::Repeat(link));
                ToAgent::Kill(container_id.clone())
            }
            Order::NeverStarted(_) => return true,
            Order::Forget(container) => ToAgent::Forget(container.clone()),
        };
        connection.view.sent(order);
        self.scene.note(|| format!("to {id}: {message:?}"));
        self.network.send_to_agent(self.scene, link, message);
        true
    }

    /// Orders to end that had no effect are given again.
    pub(super) fn repeat(&mut self, link: u64) {
        let Some(id) = self.network.agent_at_master(link).map(agent_id) else {
            return;
        };
        let connection = self
            .master
            .memory
            .as_mut()
            .and_then(|m| m.connections.get_mut(&id))
            .filter(|c| c.link == link);
        if let Some(connection) = connection {
            connection.view.repeat_ends();
            self.master.wake(self.scene, place(&id));
        }
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<(), RefusalText>,
    ) -> Result<(), ChangeError> {
        self.master.change(self.scene, self.network, change)
    }
}

/// What a container is started with; `None` = it is not to run any more.
fn spec(rows: &Rows, container: &ContainerId) -> Option<Spec> {
    let held = rows.containers.get(container)?;
    let row = &held.row;
    let allocation = &rows.allocations.get(&row.allocation_id)?.row;
    let work = match allocation.kind {
        TaskKind::Notebook
        | TaskKind::Shell
        | TaskKind::Command
        | TaskKind::Tensorboard
        | TaskKind::CheckpointGc
        | TaskKind::Generic => {
            let launched = rows.launched.get(&allocation.task_id)?;
            Work::Launched(allocation.task_id.clone(), launched.launch.clone())
        }
        TaskKind::Trial => {
            let trial = rows.trials.get(&allocation.trial_id?)?;
            let experiment = rows.experiments.get(&trial.row.experiment_id)?;
            let latest = trial.latest_checkpoint.as_ref();
            Work::Trial {
                trial_id: trial.row.id,
                run_id: allocation.run_id,
                seed: trial.seed,
                from_step: latest.map_or(0, |(_, steps)| *steps),
                submission: experiment.submission.clone(),
            }
        }
    };
    // The row may have changed since it was read.
    (row.ended_at.is_none() && row.desired.starts()).then(|| Spec {
        container: row.id.clone(),
        allocation: allocation.id.clone(),
        member: usize::try_from(row.member).unwrap_or(usize::MAX),
        work,
    })
}
