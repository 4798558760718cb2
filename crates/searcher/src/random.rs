//! Random search, and single search as random search with one trial.

/// The state of a random search. It stops no trial and uses no metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Random {
    pub(crate) max_trials: u64,
    /// The most trials that may exist at once without having ended.
    places: u64,
    /// Trials created, without those replaced for invalid hyperparameters.
    counted: u64,
    /// Trials that have not ended.
    live: u64,
}

impl Random {
    /// `max_concurrent_trials` 0 means no limit.
    pub(crate) fn new(max_trials: u64, max_concurrent_trials: u64) -> Self {
        Self {
            max_trials,
            places: if max_concurrent_trials == 0 {
                u64::MAX
            } else {
                max_concurrent_trials
            },
            counted: 0,
            live: 0,
        }
    }

    /// Whether a trial may start now.
    pub(crate) fn may_claim(&self) -> bool {
        self.live < self.places && self.counted < self.max_trials
    }

    /// Whether a trial is to start now; if so it is counted.
    pub(crate) fn claim(&mut self) -> bool {
        let free = self.may_claim();
        if free {
            self.live += 1;
            self.counted += 1;
        }
        free
    }

    /// Does not count a trial with invalid hyperparameters towards `max_trials`. Another may start when it has ended.
    pub(crate) fn discount(&mut self) {
        self.counted -= 1;
    }

    /// Records that a trial has ended.
    pub(crate) fn ended(&mut self) {
        self.live -= 1;
    }

    /// Restores a search with `counted` counted trials; `live` of all its trials have not ended.
    pub(crate) fn resume(&mut self, counted: u64, live: u64) {
        self.counted = counted;
        self.live = live;
    }
}
