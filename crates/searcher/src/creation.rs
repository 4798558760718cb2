//! Creating trials: all that may start now, or some of them at a time.
//!
//! Without a limit on concurrency all trials of a search may start at once, up to [`crate::MAX_TRIALS`]. Who stores each
//! of them begins with [`Search::start_some`] and asks for [`crate::Event::More`] while [`Search::owes_trials`]. The trials are the
//! same, in the same order, as those of [`Search::start`].

use crate::event::Action;
use crate::search::{HyperparameterSource, MAX_INVALID_IN_A_ROW, Phase, Search};
use crate::{grid, sample};
use det_ids::RequestId;

/// The largest trial seed.
const LARGEST_TRIAL_SEED: u64 = (1 << 31) - 1;

impl Search {
    /// Starts the search and returns the creation of all trials that may start now. A second start returns nothing.
    pub fn start(&mut self) -> Vec<Action> {
        self.start_some(u32::MAX)
    }

    /// Starts the search and returns the creation of at most `most` trials. A second start returns nothing.
    pub fn start_some(&mut self, most: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        match self.phase {
            Phase::New => {
                self.phase = Phase::Searching;
                self.create_some(most, &mut actions);
            }
            Phase::Searching | Phase::Closing | Phase::Over(_) => {}
        }
        actions
    }

    /// Whether trials are left that may start now. Until [`crate::Event::More`] has created them no other event creates any, and the
    /// search is not over.
    pub fn owes_trials(&self) -> bool {
        self.creates() && self.method.may_claim()
    }

    /// Whether trials are created at all.
    fn creates(&self) -> bool {
        let gives_up =
            self.method.replaces_invalid() && self.invalid_in_a_row >= MAX_INVALID_IN_A_ROW;
        self.phase == Phase::Searching && !gives_up && !self.has_no_metric()
    }

    /// Creates as many trials as may start now, at most `most`.
    pub(crate) fn create_some(&mut self, most: u32, actions: &mut Vec<Action>) {
        if self.creates() {
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            actions.extend(std::iter::from_fn(|| self.create_next()).take(most));
        }
    }

    /// Creates one trial, if one may start now.
    pub(crate) fn create_next(&mut self) -> Option<Action> {
        let hparams = match self.method.claim()? {
            HyperparameterSource::Sample => sample::draw(&self.space, &mut self.stream),
            HyperparameterSource::Point(index) => grid::point(&self.space, index),
        };
        let bytes = self.stream.bytes16();
        let request_id = RequestId(
            uuid::Builder::from_random_bytes(bytes)
                .into_uuid()
                .to_string(),
        );
        let seed =
            u32::try_from(self.stream.at_most(LARGEST_TRIAL_SEED)).expect("the bound has 31 bits");
        self.trials.create(request_id.clone());
        Some(Action::Create {
            request_id,
            hparams,
            seed,
        })
    }
}
