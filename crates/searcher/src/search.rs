//! The whole search: which trials exist, when to create more, when it is over.
//!
//! A trial goes through these states; `ended` is final, and every other pair of state and event changes nothing.
//!
//! | state | event | next state |
//! |---|---|---|
//! | running | validation below the best share of its rung, or at the top rung | stopping |
//! | running, stopping | early exit | exiting, with the reason |
//! | running, stopping, exiting | ended | ended, with the reason of an early exit if there was one |

use det_config::hyperparameters::{SearchMethod, SearcherConfig, Space};
use det_ids::RequestId;
use serde::{Deserialize, Serialize};

use crate::adaptive::{Halving, in_range};
use crate::asha::{TrialNo, Verdict};
use crate::error::{MAX_TRIALS, SearchError};
use crate::event::{Action, Event, ExitReason, Outcome};
use crate::grid::{self, Grid};
use crate::number::real;
use crate::random::Random;
use crate::rng::Mt19937;
use crate::sample;
use crate::trials::{TrialState, Trials};

/// After this many trials with invalid hyperparameters in a row, a search does not replace them any more: code that
/// refuses all hyperparameters would otherwise get new trials for ever.
pub const MAX_INVALID_IN_A_ROW: u32 = 1_000;

/// The whole state of one experiment's search.
///
/// Handling an event takes time logarithmic in the number of trials, plus moving the results of a rung by one place.
#[derive(Debug, Clone)]
pub struct Search {
    pub(crate) smaller_is_better: bool,
    pub(crate) space: Space,
    pub(crate) stream: Mt19937,
    pub(crate) method: Method,
    pub(crate) phase: Phase,
    pub(crate) trials: Trials,
    /// The highest progress so far.
    pub(crate) highest_progress: f64,
    pub(crate) invalid_in_a_row: u32,
}

/// The phase of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Created; its first trials have not been asked for yet.
    New,
    /// Creating and stopping trials.
    Searching,
    /// Waiting for its trials to end.
    Closing,
    /// It is over: no trial is created or stopped any more.
    Over(Outcome),
}

/// The search method with its state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Method {
    Single(Random),
    Random(Random),
    Grid(Grid),
    Halving(Halving),
}

/// How the hyperparameters of a new trial are chosen.
pub(crate) enum HyperparameterSource {
    Sample,
    Point(u64),
}

impl Method {
    fn new(config: &SearchMethod, space: &Space) -> Result<Self, SearchError> {
        if let Some(halving) = Halving::new(config)? {
            return Ok(Self::Halving(halving));
        }
        match config {
            SearchMethod::Random {
                max_trials,
                max_concurrent_trials,
            } => {
                in_range("max_trials", *max_trials, MAX_TRIALS)?;
                Ok(Self::Random(Random::new(
                    *max_trials,
                    *max_concurrent_trials,
                )))
            }
            SearchMethod::Grid {
                max_concurrent_trials,
            } => Ok(Self::Grid(Grid::new(
                grid::points(space)?,
                *max_concurrent_trials,
            ))),
            SearchMethod::Single
            | SearchMethod::AsyncHalving { .. }
            | SearchMethod::AdaptiveAsha { .. } => Ok(Self::Single(Random::new(1, 1))),
        }
    }

    /// Whether it decides by the metrics and times that trials report.
    fn is_halving(&self) -> bool {
        matches!(self, Self::Halving(_))
    }

    /// Whether a trial with invalid hyperparameters is replaced and not counted. A single trial's replacement would be
    /// invalid too, and a point of a grid is used only once.
    pub(crate) fn replaces_invalid(&self) -> bool {
        match self {
            Self::Random(_) | Self::Halving(_) => true,
            Self::Single(_) | Self::Grid(_) => false,
        }
    }

    /// Number of trials of the whole search.
    pub(crate) fn budget(&self) -> u64 {
        match self {
            Self::Single(random) | Self::Random(random) => random.max_trials,
            Self::Grid(grid) => grid.points,
            Self::Halving(halving) => halving.max_trials(),
        }
    }

    /// Whether a trial may start now.
    pub(crate) fn may_claim(&self) -> bool {
        match self {
            Self::Single(random) | Self::Random(random) => random.may_claim(),
            Self::Grid(grid) => grid.may_claim(),
            Self::Halving(halving) => halving.may_claim(),
        }
    }

    /// Counts a trial that starts now; `None` = none may.
    pub(crate) fn claim(&mut self) -> Option<HyperparameterSource> {
        match self {
            Self::Single(random) | Self::Random(random) => {
                random.claim().then_some(HyperparameterSource::Sample)
            }
            Self::Grid(grid) => grid.claim().map(HyperparameterSource::Point),
            Self::Halving(halving) => halving.claim().then_some(HyperparameterSource::Sample),
        }
    }

    fn record_failure(&mut self, trial: TrialNo, reason: ExitReason, was_at_work: bool) {
        match (self, reason) {
            (Self::Random(random), ExitReason::InvalidHyperparameters) => random.discount(),
            (Self::Halving(halving), ExitReason::InvalidHyperparameters) => {
                halving.discount(trial, was_at_work);
            }
            (Self::Halving(halving), ExitReason::Errored | ExitReason::Canceled) => {
                // A stopped trial has its result, and stopped counting as running when it was asked to stop.
                if was_at_work {
                    halving.record_failure(trial);
                }
            }
            (Self::Single(_) | Self::Grid(_), _)
            | (Self::Random(_), ExitReason::Errored | ExitReason::Canceled) => {}
        }
    }

    fn ended(&mut self, trial: TrialNo, was_at_work: bool) {
        match self {
            Self::Single(random) | Self::Random(random) => random.ended(),
            Self::Grid(grid) => grid.ended(),
            Self::Halving(halving) => {
                if was_at_work {
                    halving.record_end(trial);
                }
            }
        }
    }
}

impl Search {
    /// A search that has not started. `seed` is the experiment seed; all random choices follow from it.
    ///
    /// Errs when the configuration or the space cannot be searched.
    pub fn new(config: &SearcherConfig, space: &Space, seed: u32) -> Result<Self, SearchError> {
        sample::check(space)?;
        let method = Method::new(&config.method, space)?;
        Ok(Self {
            smaller_is_better: config.smaller_is_better,
            space: space.clone(),
            stream: Mt19937::new(seed),
            trials: Trials::new(method.replaces_invalid()),
            method,
            phase: Phase::New,
            highest_progress: 0.0,
            invalid_in_a_row: 0,
        })
    }

    /// Processes an event and returns the actions that follow, in the order in which they are to be done.
    ///
    /// Never errs: what does not fit the state (a request id unknown here, a second end, a validation after the stop)
    /// changes nothing.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match self.phase {
            Phase::Searching | Phase::Closing => {}
            Phase::New | Phase::Over(_) => return actions,
        }
        let most = match event {
            Event::More { most } => most,
            // What is left to be created comes in parts of a size that was asked for.
            _ if self.owes_trials() => 0,
            _ => u32::MAX,
        };
        match event {
            Event::Validation {
                request_id,
                metric,
                time,
            } => self.record_validation(&request_id, metric, time, &mut actions),
            Event::UnusableValidation { request_id } => self.trials.record_unusable(&request_id),
            Event::Progress {
                request_id,
                fraction,
            } => {
                // A halving search computes a trial's progress from its time.
                if !self.method.is_halving()
                    && let Some(number) = self.trials.number(&request_id)
                {
                    self.trials.advance(number, fraction);
                }
            }
            Event::EarlyExit { request_id, reason } => self.record_failure(&request_id, reason),
            Event::Ended { request_id } => self.ended(&request_id),
            Event::Close => self.phase = Phase::Closing,
            Event::More { .. } => {}
        }
        self.create_some(most, &mut actions);
        if let Some(outcome) = self.outcome_now() {
            self.phase = Phase::Over(outcome);
            actions.push(Action::Shutdown(outcome));
        }
        let progress = self.trials.progress(self.method.budget());
        self.highest_progress = self.highest_progress.max(progress);
        actions
    }

    /// Progress of the search, from 0 to 1. It never decreases, and is 1 only when the search has completed.
    pub fn progress(&self) -> f64 {
        match self.phase {
            Phase::Over(Outcome::Completed) => 1.0,
            Phase::New | Phase::Searching | Phase::Closing | Phase::Over(_) => {
                self.highest_progress
            }
        }
    }

    /// How the search ended; `None` while it has not.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Over(outcome) => Some(outcome),
            Phase::New | Phase::Searching | Phase::Closing => None,
        }
    }

    /// All trials that the search created, in the order of creation.
    pub fn trials(&self) -> impl ExactSizeIterator<Item = (&RequestId, TrialState)> {
        let trials = self.trials.all().iter();
        trials.map(|trial| (&trial.request_id, trial.state))
    }

    fn record_validation(
        &mut self,
        request_id: &RequestId,
        metric: f64,
        time: Option<f64>,
        actions: &mut Vec<Action>,
    ) {
        let Some(number) = self.trials.at_work(request_id) else {
            return;
        };
        if self.phase == Phase::Closing {
            return;
        }
        let metric = if self.smaller_is_better {
            metric
        } else {
            -metric
        };
        let (verdict, done) = match &mut self.method {
            Method::Single(_) | Method::Random(_) | Method::Grid(_) => (Verdict::GoesOn, 0.0),
            Method::Halving(halving) => {
                let Some(time) = time.filter(|time| time.is_finite()) else {
                    self.trials.record_unusable(request_id);
                    return;
                };
                let done = time / real(halving.max_time);
                (halving.record_validation(number, metric, time), done)
            }
        };
        self.invalid_in_a_row = 0;
        self.trials.record_usable(number);
        self.trials.advance(number, done);
        if let Verdict::Stop(reason) = verdict {
            self.trials.stop(number);
            actions.push(Action::Stop {
                request_id: request_id.clone(),
                reason,
            });
        }
    }

    fn record_failure(&mut self, request_id: &RequestId, reason: ExitReason) {
        let Some(number) = self.trials.number(request_id) else {
            return;
        };
        let was_at_work = match self.trials.get(number).state {
            TrialState::Running => true,
            TrialState::Stopping => false,
            // Every rank of a trial may report; the first reason counts.
            TrialState::Exiting(_) | TrialState::Ended(_) => return,
        };
        if reason == ExitReason::InvalidHyperparameters {
            self.invalid_in_a_row = self.invalid_in_a_row.saturating_add(1);
        }
        self.method.record_failure(number, reason, was_at_work);
        self.trials.exit(number, reason);
    }

    fn ended(&mut self, request_id: &RequestId) {
        let Some(number) = self.trials.number(request_id) else {
            return;
        };
        let state = self.trials.get(number).state;
        match state {
            TrialState::Running => self.invalid_in_a_row = 0,
            TrialState::Stopping | TrialState::Exiting(_) => {}
            TrialState::Ended(_) => return,
        }
        self.trials.end(number);
        self.method.ended(number, state == TrialState::Running);
    }

    /// Whether this search decides by metrics that its code does not seem to report: a trial reported, never with them,
    /// and ended by itself, and no other trial reported them.
    pub(crate) fn has_no_metric(&self) -> bool {
        let counts = self.trials.counts();
        self.method.is_halving() && counts.without_metric > 0 && counts.usable == 0
    }

    /// The outcome, if the search is over with the event just handled.
    fn outcome_now(&self) -> Option<Outcome> {
        let searching = self.phase == Phase::Searching;
        if searching && self.has_no_metric() {
            return Some(Outcome::Failed);
        }
        if !self.trials.all_ended() || self.owes_trials() {
            return None;
        }
        let counts = self.trials.counts();
        let counted = counts.ended - counts.invalid;
        let unseen = searching && self.method.is_halving() && counts.usable == 0;
        Some(if counts.errored >= counted {
            // Also when every trial had invalid hyperparameters.
            Outcome::Failed
        } else if counts.canceled >= counted {
            Outcome::Canceled
        } else if unseen {
            Outcome::Failed
        } else {
            Outcome::Completed
        })
    }
}
