//! Hosts: an agent with its records, which survive it, and the connection that it keeps.

use std::collections::BTreeMap;
use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_agent_proto::adoption::{Adoption, adoption};
use det_ids::{ContainerId, PlaceId};
use det_invariants::Violation;
use det_taskspec::ContainerExit;

use super::code::Code;
use super::network::Network;
use super::scene::Scene;
use super::{Event, Spec, ToAgent, ToMaster};
use crate::history::Host;
use crate::mutant::Mutant;
use crate::rows::{SECOND, Time};

/// A host with its agent.
pub(super) struct AgentHost {
    /// Its index among all agents.
    number: usize,
    pub(super) id: PlaceId,
    slots: u32,
    /// Identity of its data directory.
    instance: u32,
    up: bool,
    /// Counts starts of the agent.
    start: u64,
    /// Whether this start has ever been welcomed.
    session: bool,
    pub(super) link: Option<u64>,
    greeted: bool,
    /// Messages for after the answer to the greeting.
    outbox: Vec<ContainerId>,
    /// Containers that the agent has written down; kept on disk when it ends.
    pub(super) records: BTreeMap<ContainerId, Record>,
}

/// What an agent has written down of a container, and what it remembers besides.
#[derive(Debug, Clone)]
pub(super) struct Record {
    spec: Rc<Spec>,
    phase: Phase,
    kill: bool,
    /// In memory: forget it once it has ended.
    forget: bool,
    /// In memory: how far this start of the agent is with a launch.
    launch: Launch,
    /// In memory: the signal to end was sent.
    end_sent: bool,
}

impl Record {
    fn new(spec: Rc<Spec>) -> Self {
        Self {
            spec,
            phase: Phase::Assigned,
            kill: false,
            forget: false,
            launch: Launch::None,
            end_sent: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Assigned,
    Launching,
    Started,
    Ended(ContainerExit),
    Terminated(ContainerExit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launch {
    None,
    /// The container was announced by the present start of the agent.
    Begun,
    /// The process runs; its record does not have it yet.
    Spawned,
}

/// What an end is called, as `containers/exit.rs` of the agent does.
fn name(report: Option<ContainerExit>, kill: bool) -> ContainerExit {
    match report {
        Some(ContainerExit::Signaled { .. }) | None if kill => ContainerExit::Killed,
        Some(exit) => exit,
        None => ContainerExit::Lost {
            message: "its processes ended without an exit report".to_owned(),
        },
    }
}

/// The id of the agent with this index.
pub(super) fn agent_id(number: usize) -> PlaceId {
    format!("a{number}").into()
}

impl AgentHost {
    pub(super) fn new(number: usize, slots: u32) -> Self {
        Self {
            number,
            id: agent_id(number),
            slots,
            instance: 1,
            up: false,
            start: 0,
            session: false,
            link: None,
            greeted: false,
            outbox: Vec::new(),
            records: BTreeMap::new(),
        }
    }

    /// Whether the agent runs and the master has answered its greeting.
    pub(super) fn is_connected(&self) -> bool {
        self.up && self.greeted
    }

    /// Whether the agent has nothing left to do by itself.
    pub(super) fn is_quiescent(&self) -> bool {
        self.is_connected() && self.records.values().all(|r| !r.forget)
    }

    /// Starts the agent: it reads its records and connects.
    pub(super) fn starts(&mut self, scene: &mut Scene) {
        if self.up {
            return;
        }
        self.up = true;
        self.start += 1;
        self.session = false;
        for record in self.records.values_mut() {
            record.forget = false;
            record.launch = Launch::None;
            record.end_sent = false;
        }
        let known: Vec<ContainerId> = self.records.keys().cloned().collect();
        let number = self.number;
        scene.note(|| format!("a{number} starts with {known:?}"));
        for container in known {
            scene.after(1, Event::Container(number, self.start, container));
        }
        scene.after(1_000, Event::Connect(number, self.start));
    }

    /// The agent dies, and with it perhaps its host.
    pub(super) fn dies(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &mut Code,
        down: Time,
        host: Host,
    ) {
        if !self.up {
            return;
        }
        let number = self.number;
        scene.note(|| format!("a{number} dies for {} s, host {host:?}", down / SECOND));
        self.up = false;
        self.drop_link(scene, network);
        if host != Host::Stays {
            code.end_all_on(number);
        }
        if host == Host::Anew {
            for container in std::mem::take(&mut self.records).keys() {
                code.remove(container);
            }
            self.instance += 1;
        }
        scene.after(down, Event::AgentUp(number));
    }

    /// The agent's side of its connection ends.
    fn drop_link(&mut self, scene: &mut Scene, network: &mut Network) {
        let Some(link) = self.link.take() else {
            return;
        };
        self.greeted = false;
        self.outbox.clear();
        network.close_at_host(scene, link);
    }

    /// A start of the agent tries to connect.
    pub(super) fn connect(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &Code,
        start: u64,
        master_is_up: bool,
    ) {
        if !self.up || self.start != start || self.link.is_some() {
            return;
        }
        let cut = network.is_cut(scene.now, self.number);
        if cut || !master_is_up {
            let wait = if cut { 10 } else { 2 } * SECOND;
            let wait = scene.luck.between(wait / 2, wait);
            scene.after(wait, Event::Connect(self.number, start));
            return;
        }
        let link = network.open(self.number);
        let containers = self.records.keys().cloned();
        let hello = ToMaster::Hello {
            instance: self.instance,
            slots: self.slots,
            containers: containers
                .filter_map(|id| Some((id.clone(), self.reported(code, &id)?)))
                .collect(),
        };
        self.link = Some(link);
        network.send_to_master(scene, link, hello);
    }

    /// The agent finds that its connection is gone, and connects again.
    pub(super) fn loses_link(&mut self, scene: &mut Scene, network: &mut Network) {
        self.drop_link(scene, network);
        let wait = scene.luck.between(SECOND / 20, 3 * SECOND);
        scene.after(wait, Event::Connect(self.number, self.start));
    }

    /// The state of a container that is reported to the master.
    fn reported(&self, code: &Code, container: &ContainerId) -> Option<ContainerState> {
        let record = self.records.get(container)?;
        let running = || ContainerState::Running {
            host_address: String::new(),
            ports: Vec::new(),
            runtime_id: String::new(),
        };
        Some(match &record.phase {
            Phase::Assigned => ContainerState::Assigned,
            Phase::Launching => ContainerState::Starting,
            Phase::Started => running(),
            Phase::Ended(_) if code.process(container).is_some() => running(),
            Phase::Ended(_) => ContainerState::Starting,
            Phase::Terminated(exit) => ContainerState::Terminated {
                exit: exit.clone(),
                cause: None,
            },
        })
    }

    fn report(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &Code,
        container: &ContainerId,
    ) {
        let Some(link) = self.link else {
            return;
        };
        if !self.greeted {
            self.outbox.push(container.clone());
            return;
        }
        if let Some(state) = self.reported(code, container) {
            let report = ToMaster::Container(container.clone(), state);
            network.send_to_master(scene, link, report);
        }
    }

    /// A message reaches the agent.
    pub(super) fn receive(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &Code,
        message: ToAgent,
    ) {
        let goes_on = |id| Event::Container(self.number, self.start, id);
        match message {
            ToAgent::Welcome => {
                self.greeted = true;
                self.session = true;
                let known: Vec<ContainerId> = self.records.keys().cloned().collect();
                for container in std::mem::take(&mut self.outbox) {
                    self.report(scene, network, code, &container);
                }
                for container in known {
                    scene.after(1, Event::Container(self.number, self.start, container));
                }
            }
            ToAgent::Refused => self.loses_link(scene, network),
            ToAgent::Start(spec) => {
                let id = spec.container.clone();
                if !self.records.contains_key(&id) {
                    scene.after(1_000, goes_on(id.clone()));
                    self.records.insert(id.clone(), Record::new(spec));
                }
                self.report(scene, network, code, &id);
            }
            ToAgent::Kill(id) => {
                let event = goes_on(id.clone());
                let Some(record) = self.records.get_mut(&id) else {
                    return;
                };
                record.kill = true;
                if matches!(record.phase, Phase::Terminated(_)) {
                    self.report(scene, network, code, &id);
                }
                scene.after(1, event);
            }
            ToAgent::Forget(id) => {
                let event = goes_on(id.clone());
                if let Some(record) = self.records.get_mut(&id) {
                    record.forget = true;
                    record.kill = true;
                    scene.after(1, event);
                }
            }
        }
    }

    /// The agent goes on with a container, one step at a time: it may die between any two.
    pub(super) fn step(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &mut Code,
        start: u64,
        id: &ContainerId,
    ) {
        if !self.up || self.start != start {
            return;
        }
        let session = self.session;
        let Some(record) = self.records.get(id) else {
            return;
        };
        let next = match (record.phase.clone(), record.launch) {
            (Phase::Assigned, _) if record.kill => Phase::Ended(ContainerExit::Killed),
            (Phase::Assigned, _) if session => {
                self.set_launch(id, Launch::Begun);
                Phase::Launching
            }
            (Phase::Launching, Launch::Begun) => {
                self.spawn(scene, network, code, id);
                self.set_launch(id, Launch::Spawned);
                return self.go_on(scene, id, 20_000);
            }
            (Phase::Launching, Launch::Spawned) => Phase::Started,
            (Phase::Launching, Launch::None) if session || record.kill => {
                match self.look(scene, code, id) {
                    Some(phase) => phase,
                    None => return,
                }
            }
            (Phase::Assigned, _) | (Phase::Launching, Launch::None) => return,
            (Phase::Started, _) => match self.watch(scene, code, id) {
                Some(phase) => phase,
                None => return,
            },
            (Phase::Ended(exit), _) => Phase::Terminated(exit),
            (Phase::Terminated(_), _) => {
                if record.forget {
                    self.records.remove(id);
                    code.remove(id);
                }
                return;
            }
        };
        self.enter(scene, network, code, id, next);
    }

    fn set_launch(&mut self, id: &ContainerId, launch: Launch) {
        if let Some(record) = self.records.get_mut(id) {
            record.launch = launch;
        }
    }

    /// Records a phase, reports it to the master, and goes on.
    fn enter(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        code: &Code,
        id: &ContainerId,
        phase: Phase,
    ) {
        let is_reported = !matches!(phase, Phase::Ended(_));
        if let Some(record) = self.records.get_mut(id) {
            record.phase = phase;
        }
        if is_reported {
            self.report(scene, network, code, id);
        }
        self.go_on(scene, id, SECOND);
    }

    fn go_on(&self, scene: &mut Scene, id: &ContainerId, at_most: Time) {
        let wait = scene.luck.between(1_000, at_most);
        scene.after(wait, Event::Container(self.number, self.start, id.clone()));
    }

    /// Finds out what became of a start that an earlier agent announced; `None` = nothing, and it launches now.
    fn look(&mut self, scene: &mut Scene, code: &Code, id: &ContainerId) -> Option<Phase> {
        let process = code.process(id);
        let (runs, has_run) = (process.is_some_and(|p| p.alive), process.is_some());
        let report = process.and_then(|p| p.report.clone());
        let kill = self.records.get(id).is_some_and(|r| r.kill);
        let mutant = scene.mutant().and_then(Mutant::of_agent);
        match adoption(runs, has_run, kill, mutant) {
            Adoption::TakeUp => Some(Phase::Started),
            Adoption::NameEnd => Some(Phase::Ended(name(report, kill))),
            Adoption::NeverRan => Some(Phase::Ended(ContainerExit::Killed)),
            Adoption::Launch => {
                self.set_launch(id, Launch::Begun);
                self.go_on(scene, id, SECOND);
                None
            }
        }
    }

    fn spawn(&self, scene: &mut Scene, network: &Network, code: &mut Code, id: &ContainerId) {
        if code.process(id).is_some() {
            scene.violated(Violation {
                number: 1,
                what: format!("container {id} was started twice on a{}", self.number),
            });
            return;
        }
        if let Some(record) = self.records.get(id) {
            code.start(scene, network, self.number, &record.spec);
        }
    }

    /// Looks after a container that runs; gives its phase if its processes have ended.
    fn watch(&mut self, scene: &mut Scene, code: &Code, id: &ContainerId) -> Option<Phase> {
        let process = code.process(id);
        let alive = process.is_some_and(|p| p.alive);
        let report = process.and_then(|p| p.report.clone());
        let record = self.records.get_mut(id)?;
        let kill = record.kill;
        if !alive {
            return Some(Phase::Ended(name(report, kill)));
        }
        if kill && !record.end_sent {
            record.end_sent = true;
            let wait = scene.luck.between(SECOND / 10, 5 * SECOND);
            let end = ContainerExit::Signaled {
                signal: 15,
                out_of_memory: false,
            };
            scene.after(wait, Event::Dies(id.clone(), Some(end)));
        }
        None
    }

    /// The agent finds that a process has ended.
    pub(super) fn end_is_seen(&self, scene: &mut Scene, id: &ContainerId) {
        if self.up {
            self.go_on(scene, id, SECOND / 2);
        }
    }
}
