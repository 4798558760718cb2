//! Histories drawn by chance.

use std::collections::BTreeSet;
use std::time::Duration;

use det_scenario::{
    AgentDescription, JobSettings, Kind, Operation, Place, Pool, Scenario, Service, Start, Step,
    Submission, Until, When, WorkspaceSettings,
};
use det_scheduler::{Fitting, Policy, PoolSettings, Provisionable};

/// Numbers that follow from a seed (`SplitMix64`; Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195).
pub(crate) struct Luck(u64);

impl Luck {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `most`.
    fn below(&mut self, most: u32) -> u32 {
        u32::try_from(self.next() % u64::from(most)).expect("a remainder is smaller")
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(u32::try_from(list.len()).expect("lists are short")) as usize]
    }
}

const MINUTE: Duration = Duration::from_mins(1);
/// Makes sure that nothing comes of age at the very moment of a plan: the judge would have to count microseconds.
const ODD: Duration = Duration::from_millis(7_301);

fn settings(luck: &mut Luck, policy: Policy) -> PoolSettings {
    PoolSettings {
        policy,
        fitting: luck.one_of(&[Fitting::Best, Fitting::Worst]),
        allow_heterogeneous_fits: luck.once_in(2),
        reserve_after: (!luck.once_in(6)).then_some(10 * MINUTE),
        provisionable: luck.once_in(10).then(|| Provisionable {
            slots_per_instance: luck.one_of(&[0, 1, 4]),
            max_instances: luck.below(4),
        }),
    }
}

fn agent(luck: &mut Luck, number: u32) -> AgentDescription {
    AgentDescription {
        id: format!("a{number}"),
        slots: luck.one_of(&[1, 2, 3, 4, 4, 4, 8]),
        aux: luck.one_of(&[0, 1, 2, 100]),
        service: Service::Enabled,
    }
}

/// Workspaces of a history.
const WORKSPACES: u32 = 2;

fn workspace(luck: &mut Luck) -> WorkspaceSettings {
    WorkspaceSettings {
        max_slots: luck.once_in(3).then(|| luck.below(10)),
        in_other_pools: luck.one_of(&[0, 0, 1, 3]),
    }
}

/// What the tasks of a job are like.
struct Habit {
    kind: Kind,
    slots: u32,
    single_node: bool,
    settings: JobSettings,
}

fn habit(luck: &mut Luck) -> Habit {
    let kind = luck.one_of(&[
        Kind::Trial,
        Kind::Trial,
        Kind::Trial,
        Kind::Generic,
        Kind::Notebook,
        Kind::Shell,
        Kind::Tensorboard,
        Kind::CheckpointGc,
    ]);
    let slots = if luck.once_in(3) {
        kind.slots()
    } else {
        luck.one_of(&[0, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12])
    };
    let cap = luck.below(9);
    Habit {
        kind,
        slots,
        single_node: kind.is_single_node() || luck.once_in(6),
        settings: JobSettings {
            priority: luck.once_in(2).then(|| luck.one_of(&[10, 42, 42, 90])),
            weight: luck.once_in(3).then(|| luck.one_of(&[0.5, 2.0, 3.0])),
            max_slots: (luck.once_in(5) && cap >= slots).then_some(Some(cap)),
            concurrent: luck.once_in(8).then(|| 1 + luck.below(3)),
            workspace: luck
                .once_in(2)
                .then(|| format!("w{}", luck.below(WORKSPACES))),
        },
    }
}

/// A short history of a small pool.
pub(crate) fn history(seed: u64, policy: Policy) -> Scenario {
    let luck = &mut Luck::new(seed);
    let agents: Vec<AgentDescription> = (0..luck.one_of(&[0, 1, 1, 2, 2, 2, 3, 3, 4]))
        .map(|number| agent(luck, number))
        .collect();
    let mut world = World {
        agents: u32::try_from(agents.len()).expect("few"),
        habits: (0..6).map(|_| habit(luck)).collect(),
        known: BTreeSet::new(),
    };
    let settings = settings(luck, policy);
    let steps = (0..3 + luck.below(9))
        .map(|number| Step {
            when: When::After(luck.one_of(&[
                Duration::ZERO,
                Duration::from_secs(10),
                Duration::from_secs(61),
                4 * MINUTE,
                11 * MINUTE,
            ])),
            operations: (0..=luck.below(3))
                .map(|_| world.operation(luck, number == 0))
                .collect(),
            ..Step::default()
        })
        .collect();
    Scenario {
        name: String::new(),
        about: String::new(),
        pool: Pool {
            settings,
            reconnect_wait: luck.one_of(&[MINUTE, 10 * MINUTE]),
            agents,
        },
        workspaces: (0..WORKSPACES)
            .map(|number| (format!("w{number}"), workspace(luck)))
            .collect(),
        jobs: std::collections::BTreeMap::new(),
        steps,
        given: 0,
        until: luck.one_of(&[Until::LastStep, Until::Time(30 * MINUTE)]),
    }
}

/// What a history has seen so far.
struct World {
    agents: u32,
    habits: Vec<Habit>,
    /// Jobs that have been submitted.
    known: BTreeSet<u32>,
}

impl World {
    fn operation(&mut self, luck: &mut Luck, first: bool) -> Operation {
        let job = |luck: &mut Luck| format!("j{}", luck.below(6));
        let agent = format!("a{}", luck.below(self.agents.max(1)));
        match if first { 0 } else { luck.below(42) } {
            0..16 => self.submit(luck),
            16..21 => Operation::Finish(vec![self.tasks(luck)]),
            21 => Operation::Fail(vec![self.tasks(luck)]),
            22 => Operation::Kill(vec![self.tasks(luck)]),
            23..26 => Operation::Leave(vec![self.tasks(luck)]),
            26 => Operation::Pause(vec![job(luck)]),
            27 => Operation::Activate(vec![job(luck)]),
            28 | 29 => Operation::Set {
                job: job(luck),
                settings: match luck.below(4) {
                    0 => JobSettings {
                        weight: Some(luck.one_of(&[0.5, 1.0, 3.0])),
                        ..JobSettings::default()
                    },
                    1 => JobSettings {
                        max_slots: Some(luck.one_of(&[None, Some(0), Some(1), Some(4)])),
                        ..JobSettings::default()
                    },
                    _ => JobSettings {
                        priority: Some(luck.one_of(&[10, 42, 90])),
                        ..JobSettings::default()
                    },
                },
            },
            30 | 31 => Operation::Move {
                job: job(luck),
                anchor: job(luck),
                ahead: luck.once_in(2),
            },
            32 => Operation::Exclude {
                tasks: vec![self.tasks(luck)],
                agent,
            },
            33 | 34 => Operation::Serve {
                places: vec![Place {
                    agent,
                    slot: luck.once_in(2).then(|| luck.below(4)),
                }],
                service: luck.one_of(&[
                    Service::Enabled,
                    Service::Enabled,
                    Service::Draining,
                    Service::Disabled,
                ]),
            },
            35 => Operation::Lose(vec![agent]),
            36 => Operation::Return(vec![agent]),
            37 => {
                self.agents += 1;
                Operation::Join(vec![self::agent(luck, self.agents - 1)])
            }
            38 => Operation::Remove(vec![agent]),
            39 => Operation::Limit {
                workspace: format!("w{}", luck.below(WORKSPACES)),
                settings: workspace(luck),
            },
            40 => Operation::Set {
                job: job(luck),
                settings: JobSettings {
                    workspace: Some(format!("w{}", luck.below(WORKSPACES))),
                    ..JobSettings::default()
                },
            },
            _ => Operation::RestartMaster,
        }
    }

    /// A job, or one of its tasks.
    fn tasks(&self, luck: &mut Luck) -> String {
        let known: Vec<u32> = self.known.iter().copied().collect();
        let job = if known.is_empty() {
            0
        } else {
            luck.one_of(&known)
        };
        if luck.once_in(3) {
            format!("j{job}")
        } else {
            format!("j{job}.{}", 1 + luck.below(3))
        }
    }

    fn submit(&mut self, luck: &mut Luck) -> Operation {
        let number = luck.below(6);
        let habit = &self.habits[number as usize];
        let new = self.known.insert(number);
        let on = (self.agents > 0 && luck.once_in(8)).then(|| {
            vec![Start {
                agent: format!("a{}", luck.below(self.agents)),
                slots: None,
            }]
        });
        let settings = if new {
            habit.settings.clone()
        } else {
            JobSettings::default()
        };
        Operation::Submit(Box::new(Submission {
            job: format!("j{number}"),
            settings,
            name: None,
            tasks: 1 + luck.below(3),
            kind: habit.kind,
            slots: if luck.once_in(8) { 1 } else { habit.slots },
            preemptible: habit.kind.is_preemptible(),
            single_node: habit.single_node,
            exclude: (luck.once_in(8) && self.agents > 0)
                .then(|| format!("a{}", luck.below(self.agents)))
                .into_iter()
                .collect(),
            duration: luck.one_of(&[None, None, Some(MINUTE + ODD), Some(7 * MINUTE + ODD)]),
            stops_in: luck.one_of(&[Some(Duration::ZERO), Some(MINUTE + ODD), None]),
            restarts: luck.below(2),
            waited: luck.one_of(&[
                Duration::ZERO,
                Duration::ZERO,
                9 * MINUTE + 3 * ODD,
                20 * MINUTE,
            ]),
            job_age: None,
            stopping: false,
            on,
        }))
    }
}

/// A few tasks, and then small ones without end: nothing that was there first may wait for ever. The jobs that must not
/// are called `old`.
pub(crate) fn pressure(seed: u64, policy: Policy) -> Scenario {
    let luck = &mut Luck::new(seed);
    let agents: Vec<AgentDescription> = (0..=luck.below(3))
        .map(|number| agent(luck, number))
        .collect();
    let submission = |luck: &mut Luck, job: String, slots: u32, kind: Kind| Submission {
        job,
        settings: JobSettings::default(),
        name: None,
        tasks: 1,
        kind,
        slots,
        preemptible: kind.is_preemptible(),
        single_node: kind.is_single_node(),
        exclude: BTreeSet::new(),
        duration: Some(luck.one_of(&[MINUTE, 3 * MINUTE, 5 * MINUTE])),
        stops_in: Some(luck.one_of(&[Duration::ZERO, MINUTE])),
        restarts: 0,
        waited: Duration::ZERO,
        job_age: None,
        stopping: false,
        on: None,
    };
    let kinds = [Kind::Trial, Kind::Trial, Kind::Notebook];
    // Nothing of what comes later can be stopped, in every second history.
    let stays = luck.once_in(2);
    let jobs = 1 + luck.below(6);
    // By priority, what comes later to a job that was there first goes first: the stream's jobs come after the old ones.
    let small = |luck: &mut Luck, name: &str| {
        let number = luck.below(jobs);
        // Of one kind each, so that a job is the same thing all the time.
        let kind = if stays {
            Kind::Notebook
        } else {
            kinds[(number % 3) as usize]
        };
        let submission = submission(luck, format!("{name}{number}"), 1, kind);
        Operation::Submit(Box::new(submission))
    };
    let mut steps = vec![Step {
        operations: (0..6).map(|_| small(luck, "first")).collect(),
        ..Step::default()
    }];
    // All jobs are of one workspace; in every third history it has a limit that no old task exceeds.
    let mut limit = luck.once_in(3).then(|| 1 + luck.below(6));
    let old = (0..=luck.below(3))
        .map(|number| {
            let slots = luck.one_of(&[1, 2, 3, 4, 4, 8, 8, 12]);
            limit = limit.map(|limit| limit.max(slots));
            let kind = luck.one_of(&kinds);
            let mut old = submission(luck, format!("old{number}"), slots, kind);
            old.settings.weight = luck.once_in(2).then_some(100.0);
            Operation::Submit(Box::new(old))
        })
        .collect();
    steps.push(Step {
        operations: old,
        ..Step::default()
    });
    for _ in 0..60 {
        steps.push(Step {
            when: When::After(MINUTE),
            operations: (0..=luck.below(4)).map(|_| small(luck, "later")).collect(),
            ..Step::default()
        });
    }
    let in_workspace = JobSettings {
        workspace: Some("w".to_owned()),
        ..JobSettings::default()
    };
    Scenario {
        name: String::new(),
        about: String::new(),
        pool: Pool {
            settings: PoolSettings {
                policy,
                reserve_after: Some(10 * MINUTE),
                provisionable: None,
                ..settings(luck, policy)
            },
            reconnect_wait: 10 * MINUTE,
            agents,
        },
        workspaces: std::collections::BTreeMap::from([(
            "w".to_owned(),
            WorkspaceSettings {
                max_slots: limit,
                in_other_pools: 0,
            },
        )]),
        jobs: ["first", "later", "old"]
            .iter()
            .flat_map(|name| (0..6).map(move |number| format!("{name}{number}")))
            .map(|name| (name, in_workspace.clone()))
            .collect(),
        steps,
        given: 0,
        until: Until::LastStep,
    }
}
