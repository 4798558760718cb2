//! A history: what happens to a simulated cluster from outside, and when.
//!
//! Users' requests and faults are one list, in order of time. A history follows from a seed, is written down as JSON,
//! and gives the same run whenever it is played.

use det_config::hyperparameters::{
    AdaptiveMode, Hyperparameter, SearchMethod, SearcherConfig, Space,
};
use det_taskspec::TaskKind;
use serde::{Deserialize, Serialize};

use crate::random::Stream;
use crate::rows::{SECOND, Time};

/// All that happens from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Luck of everything that is not in the list: delays, and what users' code does.
    pub seed: u64,
    /// The rule by which the pool serves its queue.
    #[serde(default)]
    pub rule: Rule,
    /// Number of slots of each agent.
    pub agents: Vec<u32>,
    /// In order of time, which is in microseconds.
    pub steps: Vec<(Time, What)>,
    /// When all faults end: agents are connected and in service, whatever was paused is activated.
    pub heal_at: Time,
}

/// The rule by which the pool serves its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The more important job first; less important work is preempted for it.
    #[default]
    Priority,
    /// Slots are shared out among jobs by their weights and what they can use.
    FairShare,
    /// Job by job in turn.
    RoundRobin,
}

/// Something that happens from outside.
///
/// Experiments are named by their place in order of submission, modulo how many there are; agents by their place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A user submits an experiment.
    Submit(Submission),
    /// A user launches a task of its own.
    Launch(Launch),
    /// A user launches a task that belongs to a generic task, named like experiments are.
    LaunchChild(usize, Launch),
    /// A user steers a task of its own, and what belongs to it; named like experiments are.
    SteerTask(usize, TaskWish),
    /// A user steers an experiment.
    Steer(usize, Wish),
    /// A user kills one trial of an experiment.
    KillTrial(usize, usize),
    /// A user gives a job another priority.
    Priority(usize, u8),
    /// A user gives a job another weight, in halves.
    Weight(usize, u8),
    /// A user caps a job.
    MaxSlots(usize, Option<u32>),
    /// A user takes an agent out of service, drains it, or puts it into service.
    Service(usize, Service),
    /// A user takes a slot out of service or puts it back.
    SlotService(usize, u32, bool),
    /// The master dies and is started again after so long.
    MasterCrash(Time),
    /// The master dies around the commit that comes after so many more.
    CrashAtCommit {
        /// How many commits come before that one.
        skip: u32,
        /// Whether that commit takes effect before the master dies.
        committed: bool,
        /// Until it is started again.
        down: Time,
    },
    /// The commit that comes after so many more is answered with a failure.
    CommitFails {
        /// How many commits come before that one.
        skip: u32,
        /// Whether it happens all the same.
        committed: bool,
    },
    /// The database is away for so long.
    StoreAway(Time),
    /// An agent dies and is started again after so long.
    AgentCrash {
        /// The index of the agent.
        agent: usize,
        /// Until it is started again.
        down: Time,
        /// What becomes of its containers.
        host: Host,
    },
    /// Nothing passes between an agent's host and the master for so long.
    Cut {
        /// The number of the agent, from 0.
        agent: usize,
        /// How long the cut lasts.
        long: Time,
        /// The directions of the connection that are cut.
        ways: Ways,
    },
    /// The connection of an agent breaks; the agent connects again by itself.
    Reset(usize),
    /// Everything between an agent's host and the master takes so much longer, for so long.
    Slow {
        /// The number of the agent, from 0.
        agent: usize,
        /// How much longer each message takes, in microseconds.
        delay: Time,
        /// How long messages are delayed.
        long: Time,
    },
    /// A task's process on an agent dies: its code, or (`true`) its supervisor with it.
    ProcessKilled(usize, usize, bool),
}

/// What a user requests of a task of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskWish {
    /// Pause it: it gives its slots back and asks for none.
    Pause,
    /// Activate it after a pause.
    Activate,
    /// Kill it: its attempt ends at once.
    Kill,
}

/// A task of its own as launched, and what its code does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Kind of the task; never a trial.
    pub kind: TaskKind,
    /// Its slots, on one agent.
    pub slots: u32,
    /// 1 to 99, lower first.
    pub priority: u8,
    /// Whether it goes on after it gave its slots back; `None` = as is usual for its kind.
    pub preemptible: Option<bool>,
    /// Steps after which it comes to its end.
    pub steps: i64,
    /// How long one step takes, in microseconds.
    pub step_time: Time,
    /// Of a hundred attempts so many fail.
    pub failing: u32,
    /// Whether its code never asks if it is to save and exit.
    pub deaf: bool,
    /// Seconds to save and exit.
    pub preemption_timeout: u32,
    /// Seconds that its service may be idle; `None` = for ever.
    pub idle_timeout: Option<u32>,
    /// After so many of a hundred steps its service is used.
    pub used: u32,
}

impl Launch {
    /// Whether its service reports that it is up.
    pub(crate) fn has_service(&self) -> bool {
        matches!(
            self.kind,
            TaskKind::Notebook | TaskKind::Shell | TaskKind::Tensorboard
        )
    }

    fn draw(luck: &mut Stream, largest: u32) -> Self {
        let kind = [
            TaskKind::Command,
            TaskKind::Notebook,
            TaskKind::Notebook,
            TaskKind::Shell,
            TaskKind::Tensorboard,
            TaskKind::Generic,
            TaskKind::Generic,
            TaskKind::Generic,
            TaskKind::CheckpointGc,
        ][luck.index(9)];
        let is_idle = matches!(kind, TaskKind::Notebook | TaskKind::Tensorboard);
        let slots = match kind {
            TaskKind::CheckpointGc | TaskKind::Tensorboard => 0,
            _ => u32::try_from(luck.between(0, i64::from(largest))).unwrap_or(0),
        };
        Self {
            kind,
            slots,
            priority: [10, 42, 42, 60][luck.index(4)],
            preemptible: match kind {
                TaskKind::CheckpointGc => None,
                _ => [None, None, Some(true), Some(false)][luck.index(4)],
            },
            steps: luck.between(2, 30),
            step_time: luck.between(20, 240) * SECOND,
            failing: [0, 0, 10, 40][luck.index(4)],
            deaf: luck.percent(30),
            preemption_timeout: u32::try_from(luck.between(20, 600)).unwrap_or(60),
            idle_timeout: (is_idle && luck.percent(70))
                .then(|| u32::try_from(luck.between(60, 1800)).unwrap_or(600)),
            used: [0, 20, 60][luck.index(3)],
        }
    }
}

/// What a user requests of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Pause it: its trials give their slots back and wait.
    Pause,
    /// Activate it after a pause.
    Activate,
    /// Cancel it: its trials save first.
    Cancel,
    /// Kill it: its trials end at once.
    Kill,
    /// Continue it after its end.
    Continue,
    /// Delete it with its checkpoints.
    Delete,
}

/// What a user requests of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// It takes new work.
    Enable,
    /// It finishes what it has and takes nothing new.
    Drain,
    /// It takes nothing new, and what runs on it is killed.
    Disable,
}

impl From<Service> for det_scheduler::Service {
    fn from(wanted: Service) -> Self {
        match wanted {
            Service::Enable => Self::Enabled,
            Service::Drain => Self::Draining,
            Service::Disable => Self::Disabled,
        }
    }
}

/// What becomes of a dead agent's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The host stays up: they run on without the agent.
    Stays,
    /// The host restarts: they are gone, the agent's records are kept.
    Restarts,
    /// The host is set up anew: nothing is kept, and the agent has another identity.
    Anew,
}

/// Directions of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ways {
    /// Both directions: nothing arrives.
    Both,
    /// Messages of the host do not arrive.
    ToMaster,
    /// Messages of the master do not arrive.
    ToHost,
}

/// An experiment as submitted, and what its code does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// How it searches, and so how many trials it creates.
    pub search: SearchMethod,
    /// Slots that each trial asks for.
    pub slots: u32,
    /// Whether they must be on one agent.
    #[serde(rename = "single_agent")]
    pub single_place: bool,
    /// 1 to 99, lower first: the pool here is one of agents.
    pub priority: u8,
    /// How many failures of a trial are followed by another start; one more ends it.
    pub max_restarts: u32,
    /// Steps of a trial that is not stopped.
    pub steps: i64,
    /// How long one step takes, in microseconds.
    pub step_time: Time,
    /// A checkpoint after so many steps.
    pub checkpoint_every: i64,
    /// Of a hundred runs so many fail.
    pub failing: u32,
    /// Of a hundred trials so many report that their hyperparameters are invalid, and half as many that they end early.
    pub early: u32,
    /// Of a hundred trials so many do not look at the preemption signal.
    pub deaf: u32,
    /// Seconds to save and exit.
    pub preemption_timeout: i64,
}

impl Submission {
    pub(crate) fn searcher(&self) -> SearcherConfig {
        SearcherConfig {
            metric: "loss".to_owned(),
            smaller_is_better: true,
            source_trial_id: None,
            source_checkpoint_uuid: None,
            method: self.search.clone(),
        }
    }

    pub(crate) fn space() -> Space {
        let rate = Hyperparameter::Log {
            minval: -4.0,
            maxval: -1.0,
            base: 10.0,
            count: Some(3),
        };
        Space::from([("rate".to_owned(), rate)])
    }

    fn draw(luck: &mut Stream, largest: u32, slots: u32) -> Self {
        let steps = luck.between(4, 20);
        let rungs = u64::try_from(steps).unwrap_or(1);
        let search = match luck.index(6) {
            0 | 1 => SearchMethod::Single,
            2 => SearchMethod::Random {
                max_trials: 1 + luck.draw() % 5,
                max_concurrent_trials: luck.draw() % 4,
            },
            3 => SearchMethod::Grid {
                max_concurrent_trials: luck.draw() % 3,
            },
            4 => SearchMethod::AsyncHalving {
                num_rungs: 1 + luck.draw() % 3,
                divisor: 3.0,
                max_trials: 2 + luck.draw() % 7,
                max_concurrent_trials: luck.draw() % 5,
                time_metric: "batches".to_owned(),
                max_time: rungs,
            },
            _ => SearchMethod::AdaptiveAsha {
                mode: AdaptiveMode::Standard,
                max_rungs: 3,
                bracket_rungs: Vec::new(),
                divisor: 3.0,
                max_trials: 2 + luck.draw() % 8,
                max_concurrent_trials: luck.draw() % 5,
                time_metric: "batches".to_owned(),
                max_time: rungs,
            },
        };
        let one = i64::from(largest);
        let wanted = match luck.index(8) {
            0 => i64::from(slots),
            1 => one * 2,
            2 => 0,
            _ => luck.between(1, one),
        };
        Self {
            search,
            slots: u32::try_from(wanted).unwrap_or(1),
            single_place: luck.percent(20),
            priority: [10, 42, 42, 60][luck.index(4)],
            max_restarts: u32::try_from(luck.draw() % 4).unwrap_or(0),
            steps,
            step_time: luck.between(20, 180) * SECOND,
            checkpoint_every: luck.between(2, 6),
            failing: [0, 0, 10, 40][luck.index(4)],
            early: [0, 0, 0, 10][luck.index(4)],
            deaf: [0, 0, 30][luck.index(3)],
            preemption_timeout: luck.between(20, 600),
        }
    }
}

impl History {
    /// The history of a seed: `hours` of users' requests and faults, then healing.
    pub fn of(seed: u64, hours: u32) -> Self {
        let mut luck = Stream::of(seed, "history");
        let agents: Vec<u32> = (0..luck.between(1, 5))
            .map(|_| [1, 2, 2, 4, 8][luck.index(5)])
            .collect();
        let largest = agents.iter().copied().max().unwrap_or(1);
        let heal_at = Time::from(hours) * 3600 * SECOND;
        let mut steps = Vec::new();
        for _ in 0..hours * 3 + 2 {
            let at = luck.between(0, heal_at * 4 / 5);
            let total = agents.iter().sum();
            steps.push((
                at,
                What::Submit(Submission::draw(&mut luck, largest, total)),
            ));
        }
        for _ in 0..hours * 6 {
            steps.push((luck.between(0, heal_at), wish(&mut luck, &agents)));
        }
        // Some histories have few faults, some a storm.
        for _ in 0..hours * [3, 8, 20][luck.index(3)] {
            steps.push((luck.between(0, heal_at), fault(&mut luck, &agents)));
        }
        // Luck of its own, so that what else a seed leads to is what it always was.
        let mut luck = Stream::of(seed, "rule");
        let rule = [
            Rule::Priority,
            Rule::Priority,
            Rule::FairShare,
            Rule::FairShare,
            Rule::RoundRobin,
        ][luck.index(5)];
        for _ in 0..hours {
            let weight = [1, 2, 4, 6][luck.index(4)];
            let at = luck.between(0, heal_at);
            steps.push((at, What::Weight(luck.index(1000), weight)));
        }
        let mut luck = Stream::of(seed, "tasks");
        for _ in 0..hours * 3 {
            let launch = Launch::draw(&mut luck, largest);
            let what = match luck.index(4) {
                0 => What::LaunchChild(luck.index(1000), launch),
                _ => What::Launch(launch),
            };
            steps.push((luck.between(0, heal_at * 4 / 5), what));
        }
        for _ in 0..hours * 3 {
            let wish = [TaskWish::Pause, TaskWish::Activate, TaskWish::Kill][luck.index(3)];
            let what = What::SteerTask(luck.index(1000), wish);
            steps.push((luck.between(0, heal_at), what));
        }
        steps.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            rule,
            agents,
            steps,
            heal_at,
        }
    }
}

fn wish(luck: &mut Stream, agents: &[u32]) -> What {
    let experiment = luck.index(1000);
    match luck.index(20) {
        0..=3 => What::Steer(experiment, Wish::Pause),
        4..=7 => What::Steer(experiment, Wish::Activate),
        8 => What::Steer(experiment, Wish::Cancel),
        9 => What::Steer(experiment, Wish::Kill),
        10 | 11 => What::Steer(experiment, Wish::Continue),
        12 => What::Steer(experiment, Wish::Delete),
        13 => What::KillTrial(experiment, luck.index(1000)),
        14 | 15 => What::Priority(experiment, [5, 42, 80][luck.index(3)]),
        16 => What::MaxSlots(experiment, [None, Some(1), Some(4)][luck.index(3)]),
        17 | 18 => {
            let service = [
                Service::Enable,
                Service::Enable,
                Service::Drain,
                Service::Disable,
            ];
            What::Service(luck.index(agents.len()), service[luck.index(4)])
        }
        _ => {
            let agent = luck.index(agents.len());
            let slot = u32::try_from(luck.index(agents[agent] as usize)).unwrap_or(0);
            What::SlotService(agent, slot, luck.percent(60))
        }
    }
}

fn fault(luck: &mut Stream, agents: &[u32]) -> What {
    let agent = luck.index(agents.len());
    let skip = u32::try_from(luck.draw() % 40).unwrap_or(0);
    match luck.index(16) {
        0 => What::MasterCrash(luck.between(1, 120) * SECOND),
        1..=3 => What::CrashAtCommit {
            skip,
            committed: luck.percent(50),
            down: luck.between(1, 60) * SECOND,
        },
        4 | 5 => What::CommitFails {
            skip,
            committed: luck.percent(50),
        },
        6 => What::StoreAway(luck.between(1, 90) * SECOND),
        7..=9 => What::AgentCrash {
            agent,
            // Now and then longer than any limit on being away.
            down: [5, 60, 300, 1500][luck.index(4)] * SECOND,
            host: [Host::Stays, Host::Stays, Host::Restarts, Host::Anew][luck.index(4)],
        },
        10 | 11 => What::Cut {
            agent,
            long: [3, 30, 120, 900][luck.index(4)] * SECOND,
            ways: [Ways::Both, Ways::ToMaster, Ways::ToHost][luck.index(3)],
        },
        12 => What::Reset(agent),
        13 => What::Slow {
            agent,
            delay: luck.between(100, 3000) * SECOND / 1000,
            long: luck.between(10, 600) * SECOND,
        },
        _ => What::ProcessKilled(agent, luck.index(1000), luck.percent(40)),
    }
}
