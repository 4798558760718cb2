//! Random histories.

use std::collections::BTreeSet;
use std::time::Duration;

use det_ids::PriorityOrder;
use det_scenario::{
    AgentDescription, EndCondition, JobSettings, KindDefaults, Operation, Pool, Scenario, Service,
    ServiceTarget, Start, Step, StepTime, Submission, WorkspaceSettings,
};
use det_scheduler::{Fitting, Policy, PoolSettings, Provisionable};
use det_taskspec::TaskKind;

/// Numbers that follow from a seed (`SplitMix64`; Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195).
pub(crate) struct Random(u64);

impl Random {
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

    /// A number from 0 to below `most`.
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
/// Ensures that no request reaches the age limit exactly at the time of a plan: the judge would have to count
/// microseconds.
const ODD: Duration = Duration::from_millis(7_301);

fn settings(random: &mut Random, policy: Policy) -> PoolSettings {
    PoolSettings {
        policy,
        priority_order: random.one_of(&[PriorityOrder::LowerFirst, PriorityOrder::HigherFirst]),
        fitting: random.one_of(&[Fitting::Best, Fitting::Worst]),
        allow_heterogeneous_fits: random.once_in(2),
        max_slots_per_container: None,
        reserve_after: (!random.once_in(6)).then_some(10 * MINUTE),
        provisionable: random.once_in(10).then(|| Provisionable {
            slots_per_instance: random.one_of(&[0, 1, 4]),
            max_instances: random.below(4),
        }),
    }
}

fn agent(random: &mut Random, number: u32) -> AgentDescription {
    AgentDescription {
        id: format!("a{number}"),
        slots: random.one_of(&[1, 2, 3, 4, 4, 4, 8]),
        aux: random.one_of(&[0, 1, 2, 100]),
        service: Service::Enabled,
    }
}

/// Workspaces of a history.
const WORKSPACES: u32 = 2;

fn workspace(random: &mut Random) -> WorkspaceSettings {
    WorkspaceSettings {
        max_slots: random.once_in(3).then(|| random.below(10)),
        in_other_pools: random.one_of(&[0, 0, 1, 3]),
    }
}

/// What the tasks of a job have in common.
struct JobPattern {
    kind: TaskKind,
    slots: u32,
    single_node: bool,
    settings: JobSettings,
}

fn job_pattern(random: &mut Random) -> JobPattern {
    let kind = random.one_of(&[
        TaskKind::Trial,
        TaskKind::Trial,
        TaskKind::Trial,
        TaskKind::Generic,
        TaskKind::Notebook,
        TaskKind::Shell,
        TaskKind::Tensorboard,
        TaskKind::CheckpointGc,
    ]);
    let slots = if random.once_in(3) {
        KindDefaults::of(kind).slots
    } else {
        random.one_of(&[0, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12])
    };
    let cap = random.below(9);
    JobPattern {
        kind,
        slots,
        single_node: KindDefaults::of(kind).single_node || random.once_in(6),
        settings: JobSettings {
            priority: random.once_in(2).then(|| random.one_of(&[10, 42, 42, 90])),
            weight: random.once_in(3).then(|| random.one_of(&[0.5, 2.0, 3.0])),
            max_slots: (random.once_in(5) && cap >= slots).then_some(Some(cap)),
            concurrent: random.once_in(8).then(|| 1 + random.below(3)),
            workspace: random
                .once_in(2)
                .then(|| format!("w{}", random.below(WORKSPACES))),
        },
    }
}

/// A short history of a small pool.
pub(crate) fn history(seed: u64, policy: Policy) -> Scenario {
    let random = &mut Random::new(seed);
    let agents: Vec<AgentDescription> = (0..random.one_of(&[0, 1, 1, 2, 2, 2, 3, 3, 4]))
        .map(|number| agent(random, number))
        .collect();
    let mut world = World {
        agents: u32::try_from(agents.len()).expect("few"),
        habits: (0..6).map(|_| job_pattern(random)).collect(),
        known: BTreeSet::new(),
    };
    let settings = settings(random, policy);
    let steps = (0..3 + random.below(9))
        .map(|number| Step {
            when: StepTime::After(random.one_of(&[
                Duration::ZERO,
                Duration::from_secs(10),
                Duration::from_secs(61),
                4 * MINUTE,
                11 * MINUTE,
            ])),
            operations: (0..=random.below(3))
                .map(|_| world.operation(random, number == 0))
                .collect(),
            ..Step::default()
        })
        .collect();
    Scenario {
        name: String::new(),
        about: String::new(),
        pool: Pool {
            settings,
            reconnect_wait: random.one_of(&[MINUTE, 10 * MINUTE]),
            agents,
        },
        workspaces: (0..WORKSPACES)
            .map(|number| (format!("w{number}"), workspace(random)))
            .collect(),
        jobs: std::collections::BTreeMap::new(),
        steps,
        initial_steps: 0,
        until: random.one_of(&[EndCondition::LastStep, EndCondition::Time(30 * MINUTE)]),
    }
}

/// State of a history while it is generated.
struct World {
    agents: u32,
    habits: Vec<JobPattern>,
    /// Jobs that have been submitted.
    known: BTreeSet<u32>,
}

impl World {
    fn operation(&mut self, random: &mut Random, first: bool) -> Operation {
        let job = |random: &mut Random| format!("j{}", random.below(6));
        let agent = format!("a{}", random.below(self.agents.max(1)));
        match if first { 0 } else { random.below(42) } {
            0..16 => self.submit(random),
            16..21 => Operation::Finish(vec![self.tasks(random)]),
            21 => Operation::Fail(vec![self.tasks(random)]),
            22 => Operation::Kill(vec![self.tasks(random)]),
            23..26 => Operation::Leave(vec![self.tasks(random)]),
            26 => Operation::Pause(vec![job(random)]),
            27 => Operation::Activate(vec![job(random)]),
            28 | 29 => Operation::Set {
                job: job(random),
                settings: match random.below(4) {
                    0 => JobSettings {
                        weight: Some(random.one_of(&[0.5, 1.0, 3.0])),
                        ..JobSettings::default()
                    },
                    1 => JobSettings {
                        max_slots: Some(random.one_of(&[None, Some(0), Some(1), Some(4)])),
                        ..JobSettings::default()
                    },
                    _ => JobSettings {
                        priority: Some(random.one_of(&[10, 42, 90])),
                        ..JobSettings::default()
                    },
                },
            },
            30 | 31 => Operation::Move {
                job: job(random),
                anchor: job(random),
                ahead: random.once_in(2),
            },
            32 => Operation::Exclude {
                tasks: vec![self.tasks(random)],
                agent,
            },
            33 | 34 => Operation::Serve {
                places: vec![ServiceTarget {
                    agent,
                    slot: random.once_in(2).then(|| random.below(4)),
                }],
                service: random.one_of(&[
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
                Operation::Join(vec![self::agent(random, self.agents - 1)])
            }
            38 => Operation::Remove(vec![agent]),
            39 => Operation::Limit {
                workspace: format!("w{}", random.below(WORKSPACES)),
                settings: workspace(random),
            },
            40 => Operation::Set {
                job: job(random),
                settings: JobSettings {
                    workspace: Some(format!("w{}", random.below(WORKSPACES))),
                    ..JobSettings::default()
                },
            },
            _ => Operation::RestartMaster,
        }
    }

    /// A job, or one of its tasks.
    fn tasks(&self, random: &mut Random) -> String {
        let known: Vec<u32> = self.known.iter().copied().collect();
        let job = if known.is_empty() {
            0
        } else {
            random.one_of(&known)
        };
        if random.once_in(3) {
            format!("j{job}")
        } else {
            format!("j{job}.{}", 1 + random.below(3))
        }
    }

    fn submit(&mut self, random: &mut Random) -> Operation {
        let number = random.below(6);
        let job_pattern = &self.habits[number as usize];
        let new = self.known.insert(number);
        let on = (self.agents > 0 && random.once_in(8)).then(|| {
            vec![Start {
                agent: format!("a{}", random.below(self.agents)),
                slots: None,
            }]
        });
        let settings = if new {
            job_pattern.settings.clone()
        } else {
            JobSettings::default()
        };
        Operation::Submit(Box::new(Submission {
            job: format!("j{number}"),
            settings,
            name: None,
            tasks: 1 + random.below(3),
            kind: job_pattern.kind,
            slots: if random.once_in(8) {
                1
            } else {
                job_pattern.slots
            },
            preemptible: KindDefaults::of(job_pattern.kind).preemptible,
            single_node: job_pattern.single_node,
            exclude: (random.once_in(8) && self.agents > 0)
                .then(|| format!("a{}", random.below(self.agents)))
                .into_iter()
                .collect(),
            duration: random.one_of(&[None, None, Some(MINUTE + ODD), Some(7 * MINUTE + ODD)]),
            stops_in: random.one_of(&[Some(Duration::ZERO), Some(MINUTE + ODD), None]),
            restarts: random.below(2),
            waited: random.one_of(&[
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

/// One task under pressure, which runs for some minutes.
fn short_submission(random: &mut Random, job: String, slots: u32, kind: TaskKind) -> Submission {
    Submission {
        job,
        settings: JobSettings::default(),
        name: None,
        tasks: 1,
        kind,
        slots,
        preemptible: KindDefaults::of(kind).preemptible,
        single_node: KindDefaults::of(kind).single_node,
        exclude: BTreeSet::new(),
        duration: Some(random.one_of(&[MINUTE, 3 * MINUTE, 5 * MINUTE])),
        stops_in: Some(random.one_of(&[Duration::ZERO, MINUTE])),
        restarts: 0,
        waited: Duration::ZERO,
        job_age: None,
        stopping: false,
        on: None,
    }
}

/// A few tasks, and then an endless stream of small ones: none of the first may wait for ever. Their jobs are called
/// `old`.
pub(crate) fn pressure(seed: u64, policy: Policy) -> Scenario {
    let random = &mut Random::new(seed);
    let agents: Vec<AgentDescription> = (0..=random.below(3))
        .map(|number| agent(random, number))
        .collect();
    let kinds = [TaskKind::Trial, TaskKind::Trial, TaskKind::Notebook];
    // In every second history the tasks of the stream cannot be preempted.
    let stays = random.once_in(2);
    let jobs = 1 + random.below(6);
    // By priority, later tasks of an older job go first, so the stream's jobs are submitted after the old ones.
    let small = |random: &mut Random, name: &str| {
        let number = random.below(jobs);
        // All tasks of a job are of one kind.
        let kind = if stays {
            TaskKind::Notebook
        } else {
            kinds[(number % 3) as usize]
        };
        let submission = short_submission(random, format!("{name}{number}"), 1, kind);
        Operation::Submit(Box::new(submission))
    };
    let mut steps = vec![Step {
        operations: (0..6).map(|_| small(random, "first")).collect(),
        ..Step::default()
    }];
    // All jobs are of one workspace; in every third history it has a limit that no old task exceeds.
    let mut limit = random.once_in(3).then(|| 1 + random.below(6));
    let old = (0..=random.below(3))
        .map(|number| {
            let slots = random.one_of(&[1, 2, 3, 4, 4, 8, 8, 12]);
            limit = limit.map(|limit| limit.max(slots));
            let kind = random.one_of(&kinds);
            let mut old = short_submission(random, format!("old{number}"), slots, kind);
            old.settings.weight = random.once_in(2).then_some(100.0);
            Operation::Submit(Box::new(old))
        })
        .collect();
    steps.push(Step {
        operations: old,
        ..Step::default()
    });
    for _ in 0..60 {
        steps.push(Step {
            when: StepTime::After(MINUTE),
            operations: (0..=random.below(4))
                .map(|_| small(random, "later"))
                .collect(),
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
                ..settings(random, policy)
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
        initial_steps: 0,
        until: EndCondition::LastStep,
    }
}
