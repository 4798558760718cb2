//! Properties that hold for every search and every order of events.

use std::collections::BTreeSet;

use det_config::hyperparameters::{AdaptiveMode, SearchMethod, SearcherConfig};
use det_ids::RequestId;
use det_searcher::{Action, Event, ExitReason, Outcome, Search, TrialState};
use proptest::prelude::*;

use crate::world::{adaptive, asha, space};

/// An event of one of the trials, or of an unknown trial.
#[derive(Debug, Clone)]
struct TestEvent {
    /// Which trial, modulo their number plus one; the last is unknown.
    trial: usize,
    kind: EventKind,
}

#[derive(Debug, Clone)]
enum EventKind {
    Validation(f64, Option<f64>),
    Unusable,
    Progress(f64),
    Exit(ExitReason),
    End,
    Close,
}

fn metrics() -> impl Strategy<Value = f64> {
    // Few values, so that there are ties.
    prop_oneof![
        6 => (0_u8..6).prop_map(|tenths| f64::from(tenths) / 10.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        2 => any::<f64>(),
    ]
}

fn times() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(f64::NAN)),
        12 => (0.0..120.0_f64).prop_map(Some),
    ]
}

fn reasons() -> impl Strategy<Value = ExitReason> {
    prop_oneof![
        Just(ExitReason::Errored),
        Just(ExitReason::Canceled),
        Just(ExitReason::InvalidHyperparameters),
    ]
}

fn test_events() -> impl Strategy<Value = Vec<TestEvent>> {
    let kind = prop_oneof![
        40 => (metrics(), times()).prop_map(|(metric, time)| EventKind::Validation(metric, time)),
        4 => Just(EventKind::Unusable),
        8 => prop_oneof![0.0..1.0_f64, any::<f64>()].prop_map(EventKind::Progress),
        10 => reasons().prop_map(EventKind::Exit),
        20 => Just(EventKind::End),
        1 => Just(EventKind::Close),
    ];
    let event_in = (0..40_usize, kind).prop_map(|(trial, kind)| TestEvent { trial, kind });
    prop::collection::vec(event_in, 0..120)
}

fn searchers() -> impl Strategy<Value = SearcherConfig> {
    let divisors = prop_oneof![Just(2.0), Just(3.0), Just(4.0), 1.1..5.0_f64];
    let modes = prop_oneof![
        Just(AdaptiveMode::Aggressive),
        Just(AdaptiveMode::Standard),
        Just(AdaptiveMode::Conservative)
    ];
    let brackets = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(1..5_u64, 1..5),
    ];
    let method = prop_oneof![
        1 => Just(SearchMethod::Single),
        2 => (1..15_u64, 0..6_u64).prop_map(|(max_trials, max_concurrent_trials)| SearchMethod::Random {
            max_trials,
            max_concurrent_trials
        }),
        2 => (0..8_u64).prop_map(|max_concurrent_trials| SearchMethod::Grid { max_concurrent_trials }),
        4 => (1..5_u64, divisors.clone(), 1..100_u64, 1..25_u64, 0..6_u64)
            .prop_map(|(rungs, divisor, time, trials, places)| asha(rungs, divisor, time, trials, places)),
        4 => (modes, brackets, divisors, 1..100_u64, 1..25_u64, 0..6_u64).prop_map(
            |(mode, brackets, divisor, time, trials, places)| {
                let mut method = adaptive(mode, divisor, time, trials, places);
                if let SearchMethod::AdaptiveAsha { bracket_rungs, .. } = &mut method {
                    *bracket_rungs = brackets;
                }
                method
            }
        ),
    ];
    (method, any::<bool>()).prop_map(|(method, smaller_is_better)| SearcherConfig {
        metric: "loss".to_owned(),
        smaller_is_better,
        source_trial_id: None,
        source_checkpoint_uuid: None,
        method,
    })
}

/// The most trials that may count in the end, and the most that may run at once.
fn limits(method: &SearchMethod) -> (usize, usize) {
    let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let unlimited = |places: u64| {
        if places == 0 {
            usize::MAX
        } else {
            size(places)
        }
    };
    match method {
        SearchMethod::Single => (1, 1),
        SearchMethod::Random {
            max_trials,
            max_concurrent_trials,
        } => (size(*max_trials), unlimited(*max_concurrent_trials)),
        SearchMethod::Grid {
            max_concurrent_trials,
        } => (6, unlimited(*max_concurrent_trials)),
        SearchMethod::AsyncHalving {
            max_trials,
            max_concurrent_trials,
            ..
        } => (size(*max_trials), unlimited(*max_concurrent_trials)),
        SearchMethod::AdaptiveAsha {
            max_trials,
            max_concurrent_trials,
            ..
        } => {
            // Every bracket runs at least one trial; there are at most five brackets here.
            let places = match max_concurrent_trials {
                0 => 0,
                places => (*places).max(5),
            };
            (size(*max_trials), unlimited(places))
        }
    }
}

/// A search under test, checked after every event.
struct CheckedSearch {
    config: SearcherConfig,
    search: Search,
    created: Vec<RequestId>,
    points: BTreeSet<String>,
    shown: f64,
    over: Option<Outcome>,
}

impl CheckedSearch {
    fn start(config: &SearcherConfig) -> Result<Self, TestCaseError> {
        let mut search = Search::new(config, &space(), 7).expect("a valid search");
        let actions = search.start();
        let mut watched = Self {
            config: config.clone(),
            search,
            created: Vec::new(),
            points: BTreeSet::new(),
            shown: 0.0,
            over: None,
        };
        watched.check(actions)?;
        prop_assert!(!watched.created.is_empty());
        Ok(watched)
    }

    fn event(&self, event_in: &TestEvent) -> Event {
        let request_id = self
            .created
            .get(event_in.trial % (self.created.len() + 1))
            .cloned()
            .unwrap_or_else(|| RequestId::from("nobody"));
        match event_in.kind {
            EventKind::Validation(metric, time) => Event::Validation {
                request_id,
                metric,
                time,
            },
            EventKind::Unusable => Event::UnusableValidation { request_id },
            EventKind::Progress(fraction) => Event::Progress {
                request_id,
                fraction,
            },
            EventKind::Exit(reason) => Event::EarlyExit { request_id, reason },
            EventKind::End => Event::Ended { request_id },
            EventKind::Close => Event::Close,
        }
    }

    fn on(&mut self, event: Event) -> Result<Vec<Action>, TestCaseError> {
        let actions = self.search.on(event);
        self.check(actions.clone())?;
        Ok(actions)
    }

    /// Checks everything that holds after every event.
    fn check(&mut self, actions: Vec<Action>) -> Result<(), TestCaseError> {
        prop_assert!(
            self.over.is_none() || actions.is_empty(),
            "it acts when it is over"
        );
        for action in actions {
            prop_assert!(self.over.is_none(), "it acts after its shutdown");
            match action {
                Action::Create {
                    request_id,
                    hparams,
                    seed,
                } => {
                    prop_assert!(seed < 1 << 31);
                    prop_assert!(!self.created.contains(&request_id));
                    if matches!(self.config.method, SearchMethod::Grid { .. }) {
                        let text = serde_json::Value::Object(hparams).to_string();
                        prop_assert!(self.points.insert(text), "a point came twice");
                    }
                    self.created.push(request_id);
                }
                Action::Stop { request_id, .. } => prop_assert!(self.created.contains(&request_id)),
                Action::Shutdown(outcome) => self.over = Some(outcome),
            }
        }
        let states: Vec<TrialState> = self.search.trials().map(|(_, state)| state).collect();
        prop_assert_eq!(states.len(), self.created.len());
        let replaced = |state: &TrialState| {
            let invalid = ExitReason::InvalidHyperparameters;
            matches!(state, TrialState::Exiting(reason) | TrialState::Ended(Some(reason)) if *reason == invalid)
        };
        let (most, most_at_work) = limits(&self.config.method);
        let counted = states.iter().filter(|state| !replaced(state)).count();
        prop_assert!(
            counted <= most,
            "{counted} trials count, {most} were asked for"
        );
        let at_work = states
            .iter()
            .filter(|state| **state == TrialState::Running)
            .count();
        prop_assert!(
            at_work <= most_at_work,
            "{at_work} at once, {most_at_work} allowed"
        );

        let shown = self.search.progress();
        prop_assert!(
            (self.shown..=1.0).contains(&shown),
            "from {} to {shown}",
            self.shown
        );
        let completed = self.over == Some(Outcome::Completed);
        prop_assert_eq!(shown >= 1.0, completed);
        self.shown = shown;
        prop_assert_eq!(self.search.outcome(), self.over);
        Ok(())
    }

    /// Ends all trials, also those created meanwhile.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        let mut next = 0;
        while let Some(request_id) = self.created.get(next).cloned() {
            self.on(Event::Ended { request_id })?;
            next += 1;
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_search_keeps_its_limits_and_ends_with_its_trials(
        config in searchers(),
        test_events in test_events(),
    ) {
        let mut watched = CheckedSearch::start(&config)?;
        for event_in in &test_events {
            let event = watched.event(event_in);
            watched.on(event)?;
        }
        watched.drain()?;
        prop_assert!(watched.over.is_some(), "all trials have ended, but not the search");
        let closed = test_events.iter().any(|event_in| matches!(event_in.kind, EventKind::Close));
        if matches!(config.method, SearchMethod::Grid { .. }) && !closed {
            prop_assert_eq!(watched.points.len(), 6);
        }
    }

    #[test]
    fn a_search_restored_at_any_point_goes_on_as_if_never_stopped(
        config in searchers(),
        test_events in test_events(),
        restarts in prop::collection::vec(any::<bool>(), 120),
    ) {
        let mut watched = CheckedSearch::start(&config)?;
        let mut restored = watched.search.clone();
        for (event_in, restart) in test_events.iter().zip(restarts) {
            if restart {
                let text = restored.snapshot().to_string();
                let snapshot = serde_json::from_str(&text).expect("snapshots are JSON");
                restored = Search::restore(&config, &space(), &snapshot).expect("own snapshot");
            }
            let event = watched.event(event_in);
            // Events are stored and replayed as text as well.
            let text = serde_json::to_string(&event).expect("events are JSON");
            let replayed = serde_json::from_str(&text).expect("own event");
            prop_assert_eq!(watched.on(event)?, restored.on(replayed));
            prop_assert_eq!(watched.search.snapshot(), restored.snapshot());
            prop_assert_eq!(watched.search.progress().to_bits(), restored.progress().to_bits());
        }
    }

    #[test]
    fn a_halving_search_where_nothing_fails_makes_all_its_trials(
        config in searchers(),
        metric in prop::collection::vec(metrics(), 25),
    ) {
        let mut next = metric.iter().cycle();
        let report = det_searcher::simulate(&config, &space(), 3, &mut |_, _| {
            *next.next().expect("a cycle has no end")
        });
        let report = report.expect("a valid search");
        prop_assert_eq!(report.outcome, Outcome::Completed);
        prop_assert_eq!(report.trials.len(), limits(&config.method).0);
    }
}
