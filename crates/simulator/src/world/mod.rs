//! The world around the pure crates: time, network, store, hosts, users' code, and the process of the master. One event after another.

mod background;
mod check;
mod code;
mod connections;
mod host;
mod network;
mod outside;
mod process;
mod scene;
mod store;

use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_ids::{AllocationId, ContainerId, RunId, TaskId, TrialId};
use det_invariants::{Report, Violation};
use det_taskspec::ContainerExit;

use crate::history::{History, Launch, Submission};
use crate::master::{Call, RefusalText, Reply, Topic};
use crate::mutant::Mutant;
use crate::rows::{SECOND, Time};
use background::Passes;
use check::Checks;
use code::Code;
use connections::Connections;
use host::AgentHost;
use network::{Network, Way};
use process::Master;
use scene::Scene;

/// What came of playing a history.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How often what happened.
    pub counts: Counts,
    /// The first thing that did not hold.
    pub violation: Option<ViolationReport>,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct ViolationReport {
    /// When it was found, in microseconds of simulated time.
    pub at: Time,
    /// Which, and what was seen.
    pub violation: Violation,
    /// The last things that happened before.
    pub before: Vec<String>,
}

/// How often what happened in a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Simulated time in microseconds.
    pub time: Time,
    /// Number of events of the simulation.
    pub events: u64,
    /// Number of changes that the master has committed.
    pub commits: u64,
    /// Steps of the history that took effect and are faults.
    pub faults: u64,
    /// Number of experiments that were submitted.
    pub experiments: u64,
    /// Tasks of their own that were launched.
    pub launched: u64,
    /// Tasks of their own that were ended because they were idle.
    pub idle: u64,
    /// Number of attempts of tasks that began to run.
    pub runs: u64,
    /// Number of reports that the master has acknowledged.
    pub acknowledged: u64,
    /// Number of moments at which the invariants were checked.
    pub checks: u64,
    /// Of these, moments at which nothing was under way and everything had to agree.
    pub quiescent: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.events += other.events;
        self.commits += other.commits;
        self.faults += other.faults;
        self.experiments += other.experiments;
        self.launched += other.launched;
        self.idle += other.idle;
        self.runs += other.runs;
        self.acknowledged += other.acknowledged;
        self.checks += other.checks;
        self.quiescent += other.quiescent;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} cluster-hours, {} experiments, {} tasks of their own ({} ended idle), {} runs of tasks, {} faults, {} commits, {} reports acknowledged, {} events, \
             {} moments checked ({} quiescent)",
            self.time / (3600 * SECOND),
            self.experiments,
            self.launched,
            self.idle,
            self.runs,
            self.faults,
            self.commits,
            self.acknowledged,
            self.events,
            self.checks,
            self.quiescent
        )
    }
}

/// What happens inside the world.
#[derive(Debug, Clone)]
enum Event {
    /// The next step of the history.
    Outside(usize),
    /// All faults end: from now on everything is to come to rest.
    Heal,
    /// After that, users repair what is wrong, again and again.
    Tidy,
    /// The master is started.
    MasterUp,
    /// The master looks at something that it was woken for.
    Pass(u64, Topic),
    /// The master stores what the planner has decided.
    Apply(u64),
    /// A moment that the master waits for.
    Timer(u64, Topic),
    /// An agent's start tries to connect.
    Connect(usize, u64),
    /// A message of an agent's connection, by its number, reaches the master.
    Arrive(u64, ToMaster),
    /// A message of the master on a connection, by its number, reaches the agent.
    Reach(u64, ToAgent),
    /// The master finds that a connection is gone; with `true` because nothing is received.
    MasterNotices(u64, bool),
    /// An agent finds that a connection is gone; likewise.
    AgentNotices(u64, bool),
    /// Orders to end may be repeated.
    Repeat(u64),
    /// The agent of this index is started.
    AgentUp(usize),
    /// An agent's start goes on with a container.
    Container(usize, u64, ContainerId),
    /// Code takes its next step.
    Code(ContainerId, u64),
    /// A call reaches the master.
    CallArrives(ContainerId, u64, Call),
    /// The answer to a call reaches the code; `None` = there is none.
    Answer(ContainerId, u64, Option<Answer>),
    /// A process ends, with or without a report.
    Dies(ContainerId, Option<ContainerExit>),
}

/// An answer to a call.
#[derive(Debug, Clone)]
struct Answer {
    outcome: Result<Reply, RefusalText>,
    /// What is acknowledged by it.
    report: Option<Report>,
}

/// What agents send the master.
#[derive(Debug, Clone)]
enum ToMaster {
    Hello {
        instance: u32,
        slots: u32,
        containers: Vec<(ContainerId, ContainerState)>,
    },
    Container(ContainerId, ContainerState),
}

/// The messages of the master.
#[derive(Debug, Clone)]
enum ToAgent {
    Welcome,
    Refused,
    Start(Rc<Spec>),
    Kill(ContainerId),
    Forget(ContainerId),
}

/// A container to be started.
#[derive(Debug, Clone)]
struct Spec {
    container: ContainerId,
    allocation: AllocationId,
    member: usize,
    work: Work,
}

/// What the code of a container does.
#[derive(Debug, Clone)]
enum Work {
    /// It trains as one run of a trial.
    Trial {
        trial_id: TrialId,
        run_id: RunId,
        seed: u32,
        from_step: i64,
        submission: Rc<Submission>,
    },
    /// It is that of a task of its own.
    Launched(TaskId, Rc<Launch>),
}

/// Why a change was not made, as far as its caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ChangeError {
    Refused(RefusalText),
    Unavailable,
    Crashed,
}

/// Whether a change may be refused by what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeOrigin {
    /// By users and code: it may.
    FromOutside,
    /// By the master itself: a refusal would be a defect.
    FromInside,
}

/// A simulated cluster: a master, hosts with agents, users' code, the network between them, and what checks all of it.
pub(crate) struct World {
    history: History,
    scene: Scene,
    network: Network,
    master: Master,
    /// By index of the agent.
    hosts: Vec<AgentHost>,
    code: Code,
    checks: Checks,
    done: bool,
}

/// Plays a history to its end, or to the first thing that does not hold.
pub fn play(history: &History, mutant: Option<Mutant>) -> Outcome {
    let mut world = World::new(history.clone(), mutant);
    while world.scene.violation.is_none() && !world.done && world.next() {}
    Outcome {
        counts: Counts {
            time: world.scene.now,
            ..world.scene.counts
        },
        violation: world.scene.violation,
    }
}

impl World {
    fn new(history: History, mutant: Option<Mutant>) -> Self {
        let hosts = history.agents.iter().enumerate();
        let hosts: Vec<AgentHost> = hosts
            .map(|(number, slots)| AgentHost::new(number, *slots))
            .collect();
        let mut scene = Scene::new(history.seed, mutant);
        for (step, (at, _)) in history.steps.iter().enumerate() {
            scene.push(*at, Event::Outside(step));
        }
        scene.push(history.heal_at, Event::Heal);
        for agent in 0..hosts.len() {
            scene.push(0, Event::AgentUp(agent));
        }
        Self {
            scene,
            network: Network::new(history.seed, hosts.len()),
            master: Master::new(history.rule),
            hosts,
            code: Code::new(history.seed),
            checks: Checks::default(),
            done: false,
            history,
        }
    }

    /// Lets the next event happen and checks; `false` at the end.
    fn next(&mut self) -> bool {
        let Some(event) = self.scene.next_event() else {
            return false;
        };
        self.happen(event);
        let version = self.master.rows().version;
        if let Some(whole) = self.checks.is_due(&self.scene, version) {
            self.check(whole);
        }
        true
    }

    fn happen(&mut self, event: Event) {
        let (scene, network) = (&mut self.scene, &mut self.network);
        match event {
            Event::Outside(step) => self.outside(step),
            Event::Heal => self.heal(),
            Event::Tidy => self.tidy(),
            Event::MasterUp => self.master.starts(scene, network),
            Event::Pass(start, topic) => self.passes().pass(start, topic),
            Event::Apply(start) => self.passes().apply(start),
            Event::Timer(start, topic) => self.master.timer(scene, start, topic),
            Event::Connect(agent, start) => {
                let is_up = self.master.memory.is_some();
                self.hosts[agent].connect(scene, network, &self.code, start, is_up);
            }
            Event::Arrive(link, message) => {
                network.arrived();
                self.connections().receive(link, message);
            }
            Event::Reach(link, message) => {
                network.arrived();
                if let Some(agent) = network.agent_at_host(link) {
                    self.hosts[agent].receive(scene, network, &self.code, message);
                }
            }
            Event::MasterNotices(link, silence) => self.connections().notices(link, silence),
            Event::AgentNotices(link, silence) => self.agent_notices(link, silence),
            Event::Repeat(link) => self.connections().repeat(link),
            Event::AgentUp(agent) => self.hosts[agent].starts(scene),
            Event::Container(agent, start, id) => {
                self.hosts[agent].step(scene, network, &mut self.code, start, &id);
            }
            Event::Code(id, number) => self.code.step(scene, network, &id, number),
            Event::CallArrives(id, number, call) => {
                let master = &mut self.master;
                self.code
                    .call_arrives(scene, network, master, &id, number, call);
            }
            Event::Answer(id, number, answer) => {
                let acknowledged = self.code.answer(scene, network, &id, number, answer);
                self.checks.acknowledge(acknowledged);
            }
            Event::Dies(id, report) => self.processes_end(&id, report),
        }
    }

    fn passes(&mut self) -> Passes<'_> {
        Passes {
            master: &mut self.master,
            scene: &mut self.scene,
            network: &mut self.network,
        }
    }

    fn connections(&mut self) -> Connections<'_> {
        Connections {
            master: &mut self.master,
            scene: &mut self.scene,
            network: &mut self.network,
        }
    }

    /// An agent finds that its connection is gone, with `silence` because nothing is received.
    fn agent_notices(&mut self, link: u64, silence: bool) {
        let Some(agent) = self.network.agent_at_host(link) else {
            return;
        };
        let cut = self.network.cut_until(self.scene.now, agent, Way::ToHost);
        if silence && cut.is_none() {
            return;
        }
        self.hosts[agent].loses_link(&mut self.scene, &mut self.network);
    }

    /// Processes of a container end, and the rest of a gang with its chief.
    fn processes_end(&mut self, id: &ContainerId, report: Option<ContainerExit>) {
        let scene = &mut self.scene;
        let Some(ended) = self.code.dies(scene, id, report) else {
            return;
        };
        self.hosts[ended.agent].end_is_seen(scene, id);
        for peer in ended.peers {
            let wait = scene.luck.between(1_000, 3 * SECOND);
            let exit = Some(ContainerExit::Exited { code: 0 });
            scene.after(wait, Event::Dies(peer, exit));
        }
    }
}
