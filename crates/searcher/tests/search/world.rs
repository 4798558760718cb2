//! A search with its trials, called `t1`, `t2`, ... in the order of creation.

use det_config::hyperparameters::{
    AdaptiveMode, Hyperparameter, SearchMethod, SearcherConfig, Space,
};
use det_ids::RequestId;
use det_searcher::{Action, Event, ExitReason, Outcome, Search};
use serde_json::{Map, Value, json};

/// A searcher that minimises `loss`.
pub(crate) fn minimise(method: SearchMethod) -> SearcherConfig {
    SearcherConfig {
        metric: "loss".to_owned(),
        smaller_is_better: true,
        source_trial_id: None,
        source_checkpoint_uuid: None,
        method,
    }
}

/// A searcher that maximises `accuracy`.
pub(crate) fn maximise(method: SearchMethod) -> SearcherConfig {
    SearcherConfig {
        metric: "accuracy".to_owned(),
        smaller_is_better: false,
        ..minimise(method)
    }
}

pub(crate) fn random(max_trials: u64, max_concurrent_trials: u64) -> SearchMethod {
    SearchMethod::Random {
        max_trials,
        max_concurrent_trials,
    }
}

pub(crate) fn asha(
    num_rungs: u64,
    divisor: f64,
    max_time: u64,
    max_trials: u64,
    max_concurrent_trials: u64,
) -> SearchMethod {
    SearchMethod::AsyncHalving {
        num_rungs,
        divisor,
        max_trials,
        max_concurrent_trials,
        time_metric: "batches".to_owned(),
        max_time,
    }
}

pub(crate) fn adaptive(
    mode: AdaptiveMode,
    divisor: f64,
    max_time: u64,
    max_trials: u64,
    max_concurrent_trials: u64,
) -> SearchMethod {
    SearchMethod::AdaptiveAsha {
        mode,
        max_rungs: 5,
        bracket_rungs: Vec::new(),
        divisor,
        max_trials,
        max_concurrent_trials,
        time_metric: "batches".to_owned(),
        max_time,
    }
}

/// A space of all kinds of hyperparameters; a grid over it has 2 · 3 points.
pub(crate) fn space() -> Space {
    let group = Space::from([
        (
            "rate".to_owned(),
            Hyperparameter::Log {
                minval: -4.0,
                maxval: -1.0,
                base: 10.0,
                count: Some(1),
            },
        ),
        (
            "kind".to_owned(),
            Hyperparameter::Categorical(vec![json!("x"), json!("y"), json!("z")]),
        ),
    ]);
    Space::from([
        (
            "a".to_owned(),
            Hyperparameter::Int {
                minval: 1,
                maxval: 10,
                count: Some(2),
            },
        ),
        ("b".to_owned(), Hyperparameter::Group(group)),
        (
            "e".to_owned(),
            Hyperparameter::Double {
                minval: 0.0,
                maxval: 1.0,
                count: Some(1),
            },
        ),
        ("k".to_owned(), Hyperparameter::Const(json!(7))),
    ])
}

/// A running search and what it has asked for.
pub(crate) struct World {
    pub(crate) config: SearcherConfig,
    pub(crate) search: Search,
    pub(crate) trials: Vec<CreatedTrial>,
    /// Whether the search is replaced by a restored one before every event.
    restarts: bool,
}

pub(crate) struct CreatedTrial {
    pub(crate) request_id: RequestId,
    pub(crate) hparams: Map<String, Value>,
    pub(crate) seed: u32,
}

impl World {
    /// A started search, and the actions of its start.
    pub(crate) fn start(config: SearcherConfig) -> (Self, String) {
        Self::start_with(config, false)
    }

    /// The same for a search that is restored from the text of its snapshot before every event.
    pub(crate) fn start_with(config: SearcherConfig, restarts: bool) -> (Self, String) {
        let search = Search::new(&config, &space(), 42).expect("a valid search");
        let mut world = Self {
            config,
            search,
            trials: Vec::new(),
            restarts,
        };
        world.restart();
        let actions = world.search.start();
        let text = world.record(actions);
        (world, text)
    }

    /// The request id of `t<number>`.
    pub(crate) fn id(&self, number: usize) -> RequestId {
        self.trials[number - 1].request_id.clone()
    }

    pub(crate) fn on(&mut self, event: Event) -> String {
        self.restart();
        let actions = self.search.on(event);
        self.record(actions)
    }

    /// `t<number>` reports the metric at this time.
    pub(crate) fn validates(&mut self, number: usize, time: f64, metric: f64) -> String {
        let request_id = self.id(number);
        self.on(Event::Validation {
            request_id,
            metric,
            time: Some(time),
        })
    }

    /// `t<number>` ends by itself, or because the search stopped it.
    pub(crate) fn ends(&mut self, number: usize) -> String {
        let request_id = self.id(number);
        self.on(Event::Ended { request_id })
    }

    /// `t<number>` ends early; what followed from the reason, and then from the end.
    pub(crate) fn exits(&mut self, number: usize, reason: ExitReason) -> (String, String) {
        let request_id = self.id(number);
        let first = self.on(Event::EarlyExit { request_id, reason });
        (first, self.ends(number))
    }

    /// Replaces the search by one restored from its snapshot.
    pub(crate) fn restart(&mut self) {
        if self.restarts {
            let text = self.search.snapshot().to_string();
            let snapshot = serde_json::from_str(&text).expect("snapshots are JSON");
            self.search = Search::restore(&self.config, &space(), &snapshot).expect("own snapshot");
        }
    }

    /// The actions as text: `stop t2, create t4`.
    fn record(&mut self, actions: Vec<Action>) -> String {
        let mut words = Vec::new();
        for action in actions {
            words.push(match action {
                Action::Create {
                    request_id,
                    hparams,
                    seed,
                } => {
                    self.trials.push(CreatedTrial {
                        request_id,
                        hparams,
                        seed,
                    });
                    format!("create t{}", self.trials.len())
                }
                Action::Stop { request_id, .. } => {
                    let number = (self.trials.iter())
                        .position(|trial| trial.request_id == request_id)
                        .expect("only trials it created are stopped");
                    format!("stop t{}", number + 1)
                }
                Action::Shutdown(Outcome::Completed) => "completed".to_owned(),
                Action::Shutdown(Outcome::Canceled) => "canceled".to_owned(),
                Action::Shutdown(Outcome::Failed) => "failed".to_owned(),
            });
        }
        words.join(", ")
    }
}
