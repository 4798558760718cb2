//! Hosts: an agent with its records, which survive it, and the connection that it keeps.

use std::collections::BTreeMap;
use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_agent_proto::adoption::{Adoption, adoption};
use det_ids::{ContainerId, PlaceId};
use det_invariants::Violation;
use det_taskspec::ContainerExit;

use super::{Event, Link, Spec, ToAgent, ToMaster, World};
use crate::history::{Host, Ways};
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::rows::{SECOND, Time};

/// A host with its agent.
pub(super) struct AgentHost {
    pub(super) id: PlaceId,
    pub(super) slots: u32,
    /// Identity of its data directory.
    pub(super) instance: u32,
    pub(super) up: bool,
    /// Counts starts of the agent.
    pub(super) start: u64,
    /// Whether this start has ever been welcomed.
    pub(super) session: bool,
    pub(super) link: Option<u64>,
    pub(super) greeted: bool,
    /// What is to be said once the greeting is answered.
    outbox: Vec<ContainerId>,
    /// On disk.
    pub(super) records: BTreeMap<ContainerId, Record>,
    pub(super) cut_until: Time,
    pub(super) cut_ways: Ways,
    pub(super) slow_until: Time,
    pub(super) slow_by: Time,
}

/// What an agent has written down of a container, and what it remembers besides.
#[derive(Debug, Clone)]
pub(super) struct Record {
    spec: Rc<Spec>,
    phase: Phase,
    kill: bool,
    /// In memory: forget it once it has ended.
    pub(super) forget: bool,
    /// In memory: how far this start of the agent is with a launch.
    launch: Launch,
    /// In memory: the signal to end was sent.
    end_sent: bool,
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
    /// Announced by this start.
    Begun,
    /// The process runs; its record does not say so yet.
    Spawned,
}

impl AgentHost {
    pub(super) fn new(place: usize, slots: u32) -> Self {
        Self {
            id: format!("a{place}").into(),
            slots,
            instance: 1,
            up: false,
            start: 0,
            session: false,
            link: None,
            greeted: false,
            outbox: Vec::new(),
            records: BTreeMap::new(),
            cut_until: 0,
            cut_ways: Ways::Both,
            slow_until: 0,
            slow_by: 0,
        }
    }
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

impl World {
    pub(super) fn agent_up(&mut self, agent: usize) {
        let host = &mut self.agents[agent];
        if host.up {
            return;
        }
        host.up = true;
        host.start += 1;
        host.session = false;
        for record in host.records.values_mut() {
            record.forget = false;
            record.launch = Launch::None;
            record.end_sent = false;
        }
        let (start, known): (u64, Vec<ContainerId>) =
            (host.start, host.records.keys().cloned().collect());
        self.note(|| format!("a{agent} starts with {known:?}"));
        for container in known {
            self.after(1, Event::Container(agent, start, container));
        }
        self.after(1_000, Event::Connect(agent, start));
    }

    pub(super) fn agent_dies(&mut self, agent: usize, down: Time, host: Host) {
        if !self.agents[agent].up {
            return;
        }
        self.note(|| format!("a{agent} dies for {} s, host {host:?}", down / SECOND));
        self.agents[agent].up = false;
        self.drop_link(agent);
        if host != Host::Stays {
            let gone: Vec<ContainerId> = self
                .processes
                .values()
                .filter(|p| p.agent == agent && p.alive)
                .map(|p| p.spec.container.clone())
                .collect();
            for container in gone {
                if let Some(process) = self.processes.get_mut(&container) {
                    process.end(None);
                }
            }
        }
        if host == Host::Anew {
            let known = std::mem::take(&mut self.agents[agent].records);
            for container in known.keys() {
                self.processes.remove(container);
            }
            self.agents[agent].instance += 1;
        }
        self.after(down, Event::AgentUp(agent));
    }

    /// The agent's side of its connection ends.
    pub(super) fn drop_link(&mut self, agent: usize) {
        let Some(link) = self.agents[agent].link.take() else {
            return;
        };
        self.agents[agent].greeted = false;
        self.agents[agent].outbox.clear();
        if let Some(link) = self.links.get_mut(&link) {
            link.agent_open = false;
        }
        self.notify_of_end(link, true);
    }

    pub(super) fn connect(&mut self, agent: usize, start: u64) {
        let host = &self.agents[agent];
        if !host.up || host.start != start || host.link.is_some() {
            return;
        }
        let cut = host.cut_until > self.now;
        if cut || self.memory.is_none() {
            let wait = if cut { 10 } else { 2 } * SECOND;
            let wait = self.luck.between(wait / 2, wait);
            self.after(wait, Event::Connect(agent, start));
            return;
        }
        self.last_link += 1;
        let link = self.last_link;
        self.links.insert(
            link,
            Link {
                agent,
                agent_open: true,
                master_open: true,
                last_to_master: 0,
                last_to_agent: 0,
                luck: Stream::of(self.history.seed, &format!("link {link}")),
            },
        );
        self.links.retain(|_, l| l.agent_open || l.master_open);
        let host = &self.agents[agent];
        let hello = ToMaster::Hello {
            instance: host.instance,
            slots: host.slots,
            containers: host
                .records
                .keys()
                .cloned()
                .filter_map(|id| Some((id.clone(), self.reported(agent, &id)?)))
                .collect(),
        };
        self.agents[agent].link = Some(link);
        self.say_to_master(link, hello);
    }

    pub(super) fn agent_notices(&mut self, link: u64, silence: bool) {
        let Some(agent) = self
            .links
            .get(&link)
            .filter(|l| l.agent_open)
            .map(|l| l.agent)
        else {
            return;
        };
        if silence && self.cut_until(agent, false).is_none() {
            return;
        }
        self.drop_link(agent);
        let wait = self.luck.between(SECOND / 20, 3 * SECOND);
        self.after(wait, Event::Connect(agent, self.agents[agent].start));
    }

    /// The state of a container that is reported to the master.
    fn reported(&self, agent: usize, container: &ContainerId) -> Option<ContainerState> {
        let record = self.agents[agent].records.get(container)?;
        let running = || ContainerState::Running {
            host_address: String::new(),
            ports: Vec::new(),
            runtime_id: String::new(),
        };
        Some(match &record.phase {
            Phase::Assigned => ContainerState::Assigned,
            Phase::Launching => ContainerState::Starting,
            Phase::Started => running(),
            Phase::Ended(_) if self.processes.contains_key(container) => running(),
            Phase::Ended(_) => ContainerState::Starting,
            Phase::Terminated(exit) => ContainerState::Terminated { exit: exit.clone() },
        })
    }

    fn report(&mut self, agent: usize, container: &ContainerId) {
        let host = &mut self.agents[agent];
        let Some(link) = host.link else {
            return;
        };
        if !host.greeted {
            host.outbox.push(container.clone());
            return;
        }
        if let Some(state) = self.reported(agent, container) {
            self.say_to_master(link, ToMaster::Container(container.clone(), state));
        }
    }

    /// Something reaches an agent.
    pub(super) fn reach(&mut self, link: u64, message: ToAgent) {
        let Some(agent) = self
            .links
            .get(&link)
            .filter(|l| l.agent_open)
            .map(|l| l.agent)
        else {
            return;
        };
        let start = self.agents[agent].start;
        match message {
            ToAgent::Welcome => {
                let host = &mut self.agents[agent];
                host.greeted = true;
                host.session = true;
                let waiting = std::mem::take(&mut host.outbox);
                let known: Vec<ContainerId> = host.records.keys().cloned().collect();
                for container in waiting {
                    self.report(agent, &container);
                }
                for container in known {
                    self.after(1, Event::Container(agent, start, container));
                }
            }
            ToAgent::Refused => self.agent_notices(link, false),
            ToAgent::Start(spec) => {
                let id = spec.container.clone();
                if !self.agents[agent].records.contains_key(&id) {
                    let record = Record {
                        spec,
                        phase: Phase::Assigned,
                        kill: false,
                        forget: false,
                        launch: Launch::None,
                        end_sent: false,
                    };
                    self.agents[agent].records.insert(id.clone(), record);
                    self.after(1_000, Event::Container(agent, start, id.clone()));
                }
                self.report(agent, &id);
            }
            ToAgent::Kill(id) => {
                let Some(record) = self.agents[agent].records.get_mut(&id) else {
                    return;
                };
                record.kill = true;
                if matches!(record.phase, Phase::Terminated(_)) {
                    self.report(agent, &id);
                }
                self.after(1, Event::Container(agent, start, id));
            }
            ToAgent::Forget(id) => {
                if let Some(record) = self.agents[agent].records.get_mut(&id) {
                    record.forget = true;
                    record.kill = true;
                    self.after(1, Event::Container(agent, start, id));
                }
            }
        }
    }

    /// An agent goes on with a container, one step at a time: it may die between any two.
    pub(super) fn container_step(&mut self, agent: usize, start: u64, id: &ContainerId) {
        let host = &self.agents[agent];
        if !host.up || host.start != start {
            return;
        }
        let session = host.session;
        let Some(record) = host.records.get(id) else {
            return;
        };
        match (record.phase.clone(), record.launch) {
            (Phase::Assigned, _) if record.kill => {
                self.enter(agent, id, Phase::Ended(ContainerExit::Killed));
            }
            (Phase::Assigned, _) if session => {
                self.set_launch(agent, id, Launch::Begun);
                self.enter(agent, id, Phase::Launching);
            }
            (Phase::Assigned, _) => {}
            (Phase::Launching, Launch::Begun) => {
                self.spawn(agent, id);
                self.set_launch(agent, id, Launch::Spawned);
                self.go_on(agent, id, 20_000);
            }
            (Phase::Launching, Launch::Spawned) => self.enter(agent, id, Phase::Started),
            (Phase::Launching, Launch::None) if session || record.kill => self.look(agent, id),
            (Phase::Launching, Launch::None) => {}
            (Phase::Started, _) => self.watch(agent, id),
            (Phase::Ended(exit), _) => self.enter(agent, id, Phase::Terminated(exit)),
            (Phase::Terminated(_), _) => {
                if record.forget {
                    self.agents[agent].records.remove(id);
                    self.processes.remove(id);
                }
            }
        }
    }

    fn set_launch(&mut self, agent: usize, id: &ContainerId, launch: Launch) {
        if let Some(record) = self.agents[agent].records.get_mut(id) {
            record.launch = launch;
        }
    }

    /// Records a phase, reports it to the master, and goes on.
    fn enter(&mut self, agent: usize, id: &ContainerId, phase: Phase) {
        let is_reported = !matches!(phase, Phase::Ended(_));
        if let Some(record) = self.agents[agent].records.get_mut(id) {
            record.phase = phase;
        }
        if is_reported {
            self.report(agent, id);
        }
        self.go_on(agent, id, SECOND);
    }

    fn go_on(&mut self, agent: usize, id: &ContainerId, at_most: Time) {
        let wait = self.luck.between(1_000, at_most);
        let start = self.agents[agent].start;
        self.after(wait, Event::Container(agent, start, id.clone()));
    }

    /// Finds out what became of a start that an earlier agent announced.
    fn look(&mut self, agent: usize, id: &ContainerId) {
        let process = self.processes.get(id);
        let (runs, has_run) = (process.is_some_and(|p| p.alive), process.is_some());
        let report = process.and_then(|p| p.report.clone());
        let kill = self.agents[agent].records.get(id).is_some_and(|r| r.kill);
        let decided = if self.is(Mutant::AgentStartsTwice) {
            Adoption::Launch
        } else {
            adoption(runs, has_run, kill)
        };
        match decided {
            Adoption::TakeUp => self.enter(agent, id, Phase::Started),
            Adoption::NameEnd => self.enter(agent, id, Phase::Ended(name(report, kill))),
            Adoption::NeverRan => self.enter(agent, id, Phase::Ended(ContainerExit::Killed)),
            Adoption::Launch => {
                self.set_launch(agent, id, Launch::Begun);
                self.go_on(agent, id, SECOND);
            }
        }
    }

    fn spawn(&mut self, agent: usize, id: &ContainerId) {
        if self.processes.contains_key(id) {
            self.violated(Violation {
                number: 1,
                what: format!("container {id} was started twice on a{agent}"),
            });
            return;
        }
        let spec = self.agents[agent].records.get(id).map(|r| r.spec.clone());
        if let Some(spec) = spec {
            self.start_process(agent, spec);
        }
    }

    fn watch(&mut self, agent: usize, id: &ContainerId) {
        let process = self.processes.get(id);
        let alive = process.is_some_and(|p| p.alive);
        let report = process.and_then(|p| p.report.clone());
        let Some(record) = self.agents[agent].records.get_mut(id) else {
            return;
        };
        let kill = record.kill;
        if !alive {
            self.enter(agent, id, Phase::Ended(name(report, kill)));
        } else if kill && !record.end_sent {
            record.end_sent = true;
            let wait = self.luck.between(SECOND / 10, 5 * SECOND);
            let end = ContainerExit::Signaled {
                signal: 15,
                out_of_memory: false,
            };
            self.after(wait, Event::Dies(id.clone(), Some(end)));
        }
    }

    /// An agent finds that a process has ended.
    pub(super) fn end_is_seen(&mut self, agent: usize, id: &ContainerId) {
        if self.agents[agent].up {
            self.go_on(agent, id, SECOND / 2);
        }
    }
}
