//! The world outside the pure crates: time, network, faults of the store, hosts, users' code. One event after another.

mod check;
mod code;
mod host;
mod outside;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use det_agent_proto::ContainerState;
use det_ids::{AllocationId, ContainerId, ExperimentId, TrialId};
use det_invariants::{Refusal, Report, Violation, Watch};
use det_taskspec::ContainerExit;

use crate::history::{History, Submission, Ways};
use crate::master::{Call, Memory, Planned, Refused, Reply, Topic, Tx};
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::rows::{Rows, SECOND, Time};
use code::Process;
use host::AgentHost;

/// A side that has heard nothing for this long ends a connection.
const SILENCE: Time = 35 * SECOND;
/// After the faults end, everything live must have come to its end within this time.
const PROGRESS: Time = 72 * 3600 * SECOND;
/// Events after which everything is looked at, and not only what changed.
const WHOLE_EVERY: u64 = 512;
/// The same, in simulated time.
const WHOLE_WITHIN: Time = 300 * SECOND;

/// What came of playing a history.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What happened, in numbers.
    pub counts: Counts,
    /// The first thing that did not hold.
    pub violation: Option<Found>,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// When, in microseconds.
    pub at: Time,
    /// Which, and what was seen.
    pub violation: Violation,
    /// The last things that happened before.
    pub before: Vec<String>,
}

/// What happened, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Simulated time in microseconds.
    pub time: Time,
    /// Events of any kind.
    pub events: u64,
    /// Changes that were committed.
    pub commits: u64,
    /// Steps of the history that took effect and are faults.
    pub faults: u64,
    /// Experiments submitted.
    pub experiments: u64,
    /// Runs of tasks.
    pub runs: u64,
    /// Reports that were acknowledged.
    pub acknowledged: u64,
    /// Moments that were checked.
    pub checks: u64,
    /// Of these, moments at which nothing was under way and everything had to agree.
    pub settled: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.events += other.events;
        self.commits += other.commits;
        self.faults += other.faults;
        self.experiments += other.experiments;
        self.runs += other.runs;
        self.acknowledged += other.acknowledged;
        self.checks += other.checks;
        self.settled += other.settled;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} cluster-hours, {} experiments, {} runs of tasks, {} faults, {} commits, {} reports acknowledged, {} events, \
             {} moments checked ({} settled)",
            self.time / (3600 * SECOND),
            self.experiments,
            self.runs,
            self.faults,
            self.commits,
            self.acknowledged,
            self.events,
            self.checks,
            self.settled
        )
    }
}

/// What happens inside the world.
#[derive(Debug, Clone)]
enum Event {
    /// The next step of the history.
    Outside(usize),
    /// The faults end.
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
    /// Something reaches the master.
    Arrive(u64, ToMaster),
    /// Something reaches an agent.
    Reach(u64, ToAgent),
    /// The master finds that a connection is gone; with `true` because nothing is heard.
    MasterNotices(u64, bool),
    /// An agent finds that a connection is gone; likewise.
    AgentNotices(u64, bool),
    /// Orders to end may be repeated.
    Repeat(u64),
    /// An agent is started.
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
    outcome: Result<Reply, Refused>,
    /// What is acknowledged by it.
    report: Option<Report>,
}

/// The messages of agents.
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
    trial_id: TrialId,
    run_id: i64,
    seed: u32,
    member: usize,
    from_step: i64,
    submission: Rc<Submission>,
}

/// A connection of an agent.
#[derive(Debug, Clone)]
struct Link {
    agent: usize,
    agent_open: bool,
    master_open: bool,
    /// Bytes of one connection stay in order.
    last_to_master: Time,
    last_to_agent: Time,
    luck: Stream,
}

/// What goes wrong with a commit.
#[derive(Debug, Clone, Copy)]
enum CommitFault {
    /// It is answered with a failure.
    Fails { committed: bool },
    /// The master dies.
    Crash { committed: bool, down: Time },
}

/// Why a change was not made, as far as its caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failed {
    Refused(Refused),
    Unavailable,
    Crashed,
}

/// Whether a change may be refused by what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// By people and code: it may.
    FromOutside,
    /// By the master itself: a refusal would be a defect.
    FromInside,
}

/// A simulated cluster.
pub(crate) struct World {
    history: History,
    mutant: Option<Mutant>,
    now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    rows: Rows,
    /// `None` while the master is down.
    memory: Option<Memory>,
    /// Counts starts of the master.
    start: u64,
    /// What is woken and has not looked yet.
    passes: BTreeSet<Topic>,
    store_away_until: Time,
    /// Until when something that failed waits for being tried again.
    retry_at: Time,
    armed: Vec<(u32, CommitFault)>,
    agents: Vec<AgentHost>,
    links: BTreeMap<u64, Link>,
    last_link: u64,
    in_flight: u64,
    processes: BTreeMap<ContainerId, Process>,
    /// Files of checkpoints.
    storage: BTreeMap<String, BTreeMap<String, i64>>,
    acknowledged: Vec<Report>,
    fresh: Vec<Report>,
    refusals: Vec<Refusal>,
    watch: Watch,
    checked: u64,
    /// When everything was looked at last.
    whole_at: Time,
    /// What the planner has decided and is not stored yet.
    planned: Option<Planned>,
    done: bool,
    counts: Counts,
    luck: Stream,
    recent: std::collections::VecDeque<String>,
    violation: Option<Found>,
}

/// Plays a history to its end, or to the first thing that does not hold.
pub fn play(history: &History, mutant: Option<Mutant>) -> Outcome {
    let mut world = World::new(history.clone(), mutant);
    while world.violation.is_none() && !world.done && world.next() {}
    world.counts.time = world.now;
    Outcome {
        counts: world.counts,
        violation: world.violation,
    }
}

impl World {
    fn new(history: History, mutant: Option<Mutant>) -> Self {
        let agents = history
            .agents
            .iter()
            .enumerate()
            .map(|(place, slots)| AgentHost::new(place, *slots))
            .collect();
        let mut world = Self {
            luck: Stream::of(history.seed, "world"),
            history,
            mutant,
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            rows: Rows::default(),
            memory: Some(Memory::default()),
            start: 1,
            passes: BTreeSet::new(),
            store_away_until: 0,
            retry_at: 0,
            armed: Vec::new(),
            agents,
            links: BTreeMap::new(),
            last_link: 0,
            in_flight: 0,
            processes: BTreeMap::new(),
            storage: BTreeMap::new(),
            acknowledged: Vec::new(),
            fresh: Vec::new(),
            refusals: Vec::new(),
            watch: Watch::default(),
            checked: 0,
            whole_at: 0,
            planned: None,
            done: false,
            counts: Counts::default(),
            recent: std::collections::VecDeque::new(),
            violation: None,
        };
        for step in 0..world.history.steps.len() {
            world.push(world.history.steps[step].0, Event::Outside(step));
        }
        world.push(world.history.heal_at, Event::Heal);
        for agent in 0..world.agents.len() {
            world.push(0, Event::AgentUp(agent));
        }
        world
    }

    fn push(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    fn after(&mut self, wait: Time, event: Event) {
        self.push(self.now + wait, event);
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.recent.len() == 60 {
            self.recent.pop_front();
        }
        let line = format!("{:>12.3} {}", seconds(self.now), what());
        self.recent.push_back(line);
    }

    fn violated(&mut self, violation: Violation) {
        if self.violation.is_none() {
            self.violation = Some(Found {
                at: self.now,
                violation,
                before: self.recent.iter().cloned().collect(),
            });
        }
    }

    /// Lets the next event happen and checks; `false` at the end.
    fn next(&mut self) -> bool {
        let Some(((at, _), event)) = self.queue.pop_first() else {
            return false;
        };
        self.now = at;
        self.counts.events += 1;
        self.happen(event);
        let whole = self.counts.events.is_multiple_of(WHOLE_EVERY)
            || self.now >= self.whole_at + WHOLE_WITHIN;
        if whole {
            self.whole_at = self.now;
        }
        if whole || self.checked != self.rows.version || !self.fresh.is_empty() {
            self.check(whole);
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Outside(step) => self.outside(step),
            Event::Heal => self.heal(),
            Event::Tidy => self.tidy(),
            Event::MasterUp => self.master_up(),
            Event::Pass(start, topic) => self.pass(start, topic),
            Event::Apply(start) => self.apply(start),
            Event::Timer(start, topic) => {
                if start == self.start {
                    self.wake(topic);
                }
            }
            Event::Connect(agent, start) => self.connect(agent, start),
            Event::Arrive(link, message) => {
                self.in_flight -= 1;
                self.arrive(link, message);
            }
            Event::Reach(link, message) => {
                self.in_flight -= 1;
                self.reach(link, message);
            }
            Event::MasterNotices(link, silence) => self.master_notices(link, silence),
            Event::AgentNotices(link, silence) => self.agent_notices(link, silence),
            Event::Repeat(link) => self.repeat(link),
            Event::AgentUp(agent) => self.agent_up(agent),
            Event::Container(agent, start, container) => {
                self.container_step(agent, start, &container);
            }
            Event::Code(container, number) => self.code_step(&container, number),
            Event::CallArrives(container, number, call) => {
                self.call_arrives(&container, number, call);
            }
            Event::Answer(container, number, answer) => self.answer(&container, number, answer),
            Event::Dies(container, report) => self.dies(&container, report),
        }
    }

    /// Makes a change as the writer does: all of it or nothing, wakes after the commit. What may go wrong with a commit
    /// goes wrong here.
    fn write<T>(
        &mut self,
        asked: Asked,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Refused>,
    ) -> Result<T, Failed> {
        if self.now < self.store_away_until {
            return Err(Failed::Unavailable);
        }
        let Some(memory) = &mut self.memory else {
            return Err(Failed::Crashed);
        };
        for (wait, _) in &mut self.armed {
            *wait = wait.saturating_sub(1);
        }
        let due = self.armed.iter().position(|(wait, _)| *wait == 0);
        let fault = due.map(|place| self.armed.remove(place).1);
        let backup = (fault.is_some() || asked == Asked::FromOutside).then(|| self.rows.clone());
        let version = self.rows.version;
        let mut tx = Tx::new(&mut self.rows, memory, self.now, self.mutant);
        let outcome = change(&mut tx);
        let (wakes, searches) = (tx.wakes, tx.searches);
        let value = match outcome {
            Ok(value) => value,
            Err(refused) => {
                self.drop_searches(&searches);
                let dirty = self.rows.version != version;
                match backup {
                    Some(rows) if self.mutant != Some(Mutant::DirtyRefusal) => self.rows = rows,
                    Some(_) | None => {}
                }
                let left_something = dirty && self.rows.version != version;
                self.refusals.push(Refusal {
                    what: refused.clone(),
                    left_something,
                });
                return Err(Failed::Refused(refused));
            }
        };
        let committed = match fault {
            None => true,
            Some(CommitFault::Fails { committed } | CommitFault::Crash { committed, .. }) => {
                committed
            }
        };
        if committed {
            self.counts.commits += 1;
        } else if let Some(rows) = backup {
            self.rows = rows;
            self.rows.version = version + 1;
        }
        let early = self.mutant == Some(Mutant::AnswersEarly);
        match fault {
            None => {
                self.wake_all(wakes);
                Ok(value)
            }
            Some(CommitFault::Fails { .. }) => {
                self.drop_searches(&searches);
                // Whether it happened is unknown: all that might have something to do are woken.
                if !self.is(Mutant::LosesWakes) {
                    self.wake_all(wakes);
                }
                if early {
                    Ok(value)
                } else {
                    Err(Failed::Unavailable)
                }
            }
            Some(CommitFault::Crash { down, .. }) => {
                self.master_dies(down);
                if early {
                    Ok(value)
                } else {
                    Err(Failed::Crashed)
                }
            }
        }
    }

    /// A change was not made: what memory holds of it goes, and comes back from the rows.
    fn drop_searches(&mut self, searches: &BTreeSet<ExperimentId>) {
        let keeps = self.is(Mutant::KeepsSearchAfterFailure);
        if let Some(memory) = self.memory.as_mut().filter(|_| !keeps) {
            memory.searches.retain(|id, _| !searches.contains(id));
        }
    }

    /// A change that the master makes by itself.
    fn change(
        &mut self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<(), Refused>,
    ) -> Result<(), Failed> {
        let outcome = self.write(Asked::FromInside, change);
        if let Err(Failed::Refused(refused)) = &outcome {
            self.violated(Violation {
                number: 9,
                what: format!("a change of the master itself was refused: {refused}"),
            });
        }
        outcome
    }

    fn wake_all(&mut self, topics: BTreeSet<Topic>) {
        for topic in topics {
            self.wake(topic);
        }
    }

    fn wake(&mut self, topic: Topic) {
        if self.memory.is_some() && self.passes.insert(topic.clone()) {
            let wait = self.luck.between(0, 5_000);
            self.after(wait, Event::Pass(self.start, topic));
        }
    }

    /// How long something takes between an agent's host and the master.
    fn delay(&mut self, agent: usize) -> Time {
        let host = &self.agents[agent];
        let slow = if self.now < host.slow_until {
            host.slow_by
        } else {
            0
        };
        self.luck.between(200, 3_000)
            + if slow > 0 {
                self.luck.between(0, slow)
            } else {
                0
            }
    }

    /// Until when nothing gets through this way.
    fn cut_until(&self, agent: usize, to_master: bool) -> Option<Time> {
        let host = &self.agents[agent];
        let concerned = match host.cut_ways {
            Ways::Both => true,
            Ways::ToMaster => to_master,
            Ways::ToHost => !to_master,
        };
        (concerned && host.cut_until > self.now).then_some(host.cut_until)
    }

    fn say_to_master(&mut self, link: u64, message: ToMaster) {
        let Some(agent) = self.links.get(&link).map(|l| l.agent) else {
            return;
        };
        let wait = self.delay(agent);
        let cut = self.cut_until(agent, true).unwrap_or(self.now);
        if let Some(link) = self.links.get_mut(&link) {
            // What waits in the sender's buffers goes out once the path is there again.
            link.last_to_master = (cut + wait).max(link.last_to_master + 1);
        }
        let at = self.links.get(&link).map_or(0, |l| l.last_to_master);
        self.in_flight += 1;
        self.push(at, Event::Arrive(link, message));
    }

    fn say_to_agent(&mut self, link: u64, message: ToAgent) {
        let Some(agent) = self.links.get(&link).map(|l| l.agent) else {
            return;
        };
        let wait = self.delay(agent);
        let cut = self.cut_until(agent, false).unwrap_or(self.now);
        if let Some(link) = self.links.get_mut(&link) {
            link.last_to_agent = (cut + wait).max(link.last_to_agent + 1);
        }
        let at = self.links.get(&link).map_or(0, |l| l.last_to_agent);
        self.in_flight += 1;
        self.push(at, Event::Reach(link, message));
    }

    /// One side is gone: when the other finds out. Without a way for the news, by silence.
    fn notify_of_end(&mut self, link: u64, to_master: bool) {
        let Some((agent, last)) = self.links.get_mut(&link).map(|l| {
            let silence = l.luck.between(SILENCE, SILENCE + 10 * SECOND);
            (l.agent, silence)
        }) else {
            return;
        };
        let news = self.delay(agent);
        let wait = match self.cut_until(agent, to_master) {
            Some(until) => (until - self.now + news).min(last),
            None => news,
        };
        let event = if to_master {
            Event::MasterNotices(link, false)
        } else {
            Event::AgentNotices(link, false)
        };
        self.after(wait, event);
    }
}

fn seconds(at: Time) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let micros = at as f64;
    micros / 1e6
}
