//! Runs a whole search with synthetic trials, with the same code that runs real ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use det_config::hyperparameters::{SearcherConfig, Space};
use det_ids::RequestId;
use serde_json::{Map, Value};

use crate::error::SearchError;
use crate::event::{Action, Event, Outcome};
use crate::number::{best_first, real};
use crate::search::{Method, Search};

/// What a simulated search did.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationReport {
    /// All trials, in the order of creation.
    pub trials: Vec<SimulatedTrial>,
    /// How the search ended.
    pub outcome: Outcome,
    /// Simulated time from the first start to the last end, if every trial trains one unit of the time metric per unit
    /// of time.
    pub duration: u64,
    /// Units of the time metric that all trials trained together.
    pub trained: u64,
    /// The most trials that ran at once.
    pub most_at_once: usize,
    smaller_is_better: bool,
}

/// A trial of a simulated search.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedTrial {
    /// Id of the trial.
    pub request_id: RequestId,
    /// Its hyperparameters, nested like the space.
    pub hparams: Map<String, Value>,
    /// Seed for its own code, in `[0, 2^31)`.
    pub seed: u32,
    /// Units of the time metric that it trained.
    pub trained: u64,
    /// The last value of the searcher metric that it reported.
    pub metric: f64,
    /// Whether the search stopped it, at a rung or at the top; else it ended by itself.
    pub stopped: bool,
}

impl SimulationReport {
    /// The trial with the best last metric, the earliest of equals.
    pub fn best(&self) -> Option<&SimulatedTrial> {
        let rank = |trial: &SimulatedTrial| {
            if self.smaller_is_better {
                trial.metric
            } else {
                -trial.metric
            }
        };
        self.trials
            .iter()
            .min_by(|a, b| best_first(rank(a), rank(b)))
    }
}

/// Runs the search that `config`, `space` and `seed` describe to its end.
///
/// `curve` gives the searcher metric of a trial with these hyperparameters at that value of the time metric. All
/// trials train at the same speed and report at every rung. In searches without a time metric a trial reports once, at
/// time 1, and ends.
///
/// # Errors
/// As [`Search::new`].
pub fn simulate(
    config: &SearcherConfig,
    space: &Space,
    seed: u32,
    curve: &mut dyn FnMut(&Map<String, Value>, u64) -> f64,
) -> Result<SimulationReport, SearchError> {
    let mut search = Search::new(config, space, seed)?;
    let mut world = World::new(&search);
    world.apply(search.start());
    while let Some(Reverse((clock, number, step))) = world.next.pop() {
        world.clock = clock;
        let time = world.milestones[step];
        let trial = &mut world.report.trials[number];
        trial.trained = time;
        trial.metric = curve(&trial.hparams, time);
        let request_id = trial.request_id.clone();
        world.apply(search.on(Event::Validation {
            request_id: request_id.clone(),
            metric: world.report.trials[number].metric,
            time: Some(real(time)),
        }));
        match world.milestones.get(step + 1) {
            Some(later) if !world.report.trials[number].stopped => {
                world.next.push(Reverse((
                    clock.saturating_add(later - time),
                    number,
                    step + 1,
                )));
            }
            Some(_) | None => {
                world.live -= 1;
                world.apply(search.on(Event::Ended { request_id }));
            }
        }
    }
    Ok(world.finish())
}

/// The synthetic trials and their schedule.
struct World {
    clock: u64,
    /// Times at which every trial reports, ascending, never empty.
    milestones: Vec<u64>,
    /// Times, trial numbers and milestones of the next reports, earliest first.
    next: BinaryHeap<Reverse<(u64, usize, usize)>>,
    numbers: BTreeMap<RequestId, usize>,
    live: usize,
    report: SimulationReport,
}

impl World {
    fn new(search: &Search) -> Self {
        let milestones: BTreeSet<u64> = match &search.method {
            Method::Single(_) | Method::Random(_) | Method::Grid(_) => [1].into(),
            Method::Halving(halving) => halving
                .brackets
                .iter()
                .flat_map(crate::asha::Bracket::needs)
                .collect(),
        };
        Self {
            clock: 0,
            milestones: milestones.into_iter().collect(),
            next: BinaryHeap::new(),
            numbers: BTreeMap::new(),
            live: 0,
            report: SimulationReport {
                trials: Vec::new(),
                outcome: Outcome::Failed,
                duration: 0,
                trained: 0,
                most_at_once: 0,
                smaller_is_better: search.smaller_is_better,
            },
        }
    }

    fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Create {
                    request_id,
                    hparams,
                    seed,
                } => {
                    let number = self.report.trials.len();
                    self.numbers.insert(request_id.clone(), number);
                    self.report.trials.push(SimulatedTrial {
                        request_id,
                        hparams,
                        seed,
                        trained: 0,
                        metric: f64::NAN,
                        stopped: false,
                    });
                    self.live += 1;
                    self.report.most_at_once = self.report.most_at_once.max(self.live);
                    self.next.push(Reverse((
                        self.clock.saturating_add(self.milestones[0]),
                        number,
                        0,
                    )));
                }
                Action::Stop { request_id, .. } => {
                    if let Some(number) = self.numbers.get(&request_id) {
                        self.report.trials[*number].stopped = true;
                    }
                }
                Action::Shutdown(outcome) => self.report.outcome = outcome,
            }
        }
    }

    fn finish(self) -> SimulationReport {
        let trained =
            (self.report.trials.iter()).fold(0_u64, |all, trial| all.saturating_add(trial.trained));
        SimulationReport {
            duration: self.clock,
            trained,
            ..self.report
        }
    }
}
