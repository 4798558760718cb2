//! The trials of a search, by number and by request id, and what is counted over them.

use std::collections::BTreeMap;

use det_ids::RequestId;
use serde::{Deserialize, Serialize};

use crate::asha::TrialNo;
use crate::event::ExitReason;
use crate::number::{count, real, whole};

/// Progress of a complete trial. Progress is an integer, so that sums are the same in any order and after a restart.
pub(crate) const WHOLE_TRIAL: u64 = 1_000_000_000;

/// The highest progress of a search that is not over.
pub(crate) const NEARLY_DONE: f64 = 0.999;

/// A search's view of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// Created, and not asked to stop.
    Running,
    /// Asked to stop by the search.
    Stopping,
    /// Will not be started again; its end has not been reported yet.
    Exiting(ExitReason),
    /// Ended: by itself or stopped by the search (`None`), or early.
    Ended(Option<ExitReason>),
}

/// What a trial has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reports {
    Nothing,
    /// Validations, all of them without the metrics that the search decides by.
    Unusable,
    /// Validations, all of them usable.
    Usable,
    /// Validations, some of them usable.
    Mixed,
}

impl Reports {
    pub(crate) fn has_usable(self) -> bool {
        matches!(self, Self::Usable | Self::Mixed)
    }

    fn and_usable(self) -> Self {
        match self {
            Self::Nothing | Self::Usable => Self::Usable,
            Self::Unusable | Self::Mixed => Self::Mixed,
        }
    }

    fn and_unusable(self) -> Self {
        match self {
            Self::Nothing | Self::Unusable => Self::Unusable,
            Self::Usable | Self::Mixed => Self::Mixed,
        }
    }
}

/// A trial, as the search keeps it; stored in snapshots.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) request_id: RequestId,
    pub(crate) state: TrialState,
    pub(crate) reports: Reports,
    /// Its progress, from 0 to [`WHOLE_TRIAL`].
    pub(crate) done: u64,
}

/// Counts over all trials; all of them can be computed again from the trials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrialCounts {
    pub(crate) ended: u64,
    pub(crate) errored: u64,
    pub(crate) canceled: u64,
    pub(crate) invalid: u64,
    /// Trials with a usable report.
    pub(crate) usable: u64,
    /// Trials that ended by themselves and reported, but never with the searcher metric.
    pub(crate) without_metric: u64,
    /// Sum of `done` over the trials that progress counts.
    pub(crate) done: u64,
}

impl TrialCounts {
    /// Adds a trial to the counts.
    fn add(&mut self, trial: &Trial) {
        self.ended += u64::from(matches!(trial.state, TrialState::Ended(_)));
        match trial.state.reason() {
            Some(ExitReason::Errored) => self.errored += 1,
            Some(ExitReason::Canceled) => self.canceled += 1,
            Some(ExitReason::InvalidHyperparameters) => self.invalid += 1,
            None => {}
        }
        self.usable += u64::from(trial.reports.has_usable());
        self.without_metric += u64::from(trial.has_no_metric());
        self.done += trial.done;
    }
}

impl TrialState {
    /// Whether the trial turned out to have invalid hyperparameters.
    pub(crate) fn is_invalid(self) -> bool {
        self.reason() == Some(ExitReason::InvalidHyperparameters)
    }

    /// Why it ended or ends early, if it does.
    pub(crate) fn reason(self) -> Option<ExitReason> {
        match self {
            Self::Running | Self::Stopping => None,
            Self::Exiting(reason) => Some(reason),
            Self::Ended(reason) => reason,
        }
    }
}

impl Trial {
    /// Whether the trial ended by itself and reported, but never with the searcher metric.
    pub(crate) fn has_no_metric(&self) -> bool {
        self.state == TrialState::Ended(None) && self.reports == Reports::Unusable
    }
}

/// All trials of a search, in the order of creation. Their counts change with them.
#[derive(Debug, Clone)]
pub(crate) struct Trials {
    by_number: Vec<Trial>,
    numbers: BTreeMap<RequestId, TrialNo>,
    counts: TrialCounts,
    /// Whether a trial with invalid hyperparameters is replaced: its progress does not count then.
    replaces_invalid: bool,
}

impl Trials {
    /// No trials yet.
    pub(crate) fn new(replaces_invalid: bool) -> Self {
        Self {
            by_number: Vec::new(),
            numbers: BTreeMap::new(),
            counts: TrialCounts::default(),
            replaces_invalid,
        }
    }

    /// The trials of a snapshot. Errs with a request id that two of them have.
    pub(crate) fn restore(stored: Vec<Trial>, replaces_invalid: bool) -> Result<Self, RequestId> {
        let mut trials = Self::new(replaces_invalid);
        for mut trial in stored {
            trial.done = trial.done.min(WHOLE_TRIAL);
            if trials.numbers.contains_key(&trial.request_id) {
                return Err(trial.request_id);
            }
            trials.counts.add(&trial);
            trials.push(trial);
        }
        Ok(trials)
    }

    fn push(&mut self, trial: Trial) {
        let number = TrialNo(self.by_number.len());
        self.numbers.insert(trial.request_id.clone(), number);
        self.by_number.push(trial);
    }

    /// Adds a trial that starts now.
    pub(crate) fn create(&mut self, request_id: RequestId) {
        self.push(Trial {
            request_id,
            state: TrialState::Running,
            reports: Reports::Nothing,
            done: 0,
        });
    }

    /// All trials, in the order of creation.
    pub(crate) fn all(&self) -> &[Trial] {
        &self.by_number
    }

    /// The counts over all trials.
    pub(crate) fn counts(&self) -> &TrialCounts {
        &self.counts
    }

    /// Whether every trial has ended.
    pub(crate) fn all_ended(&self) -> bool {
        self.counts.ended == count(self.by_number.len())
    }

    /// The share of a search of `budget` trials that is done, below 1.
    pub(crate) fn progress(&self, budget: u64) -> f64 {
        let whole_search = real(budget) * real(WHOLE_TRIAL);
        (real(self.counts.done) / whole_search).min(NEARLY_DONE)
    }

    /// The number of a trial; `None` = the search did not create it.
    pub(crate) fn number(&self, request_id: &RequestId) -> Option<TrialNo> {
        self.numbers.get(request_id).copied()
    }

    /// The number of a trial that is running and was not asked to stop.
    pub(crate) fn at_work(&self, request_id: &RequestId) -> Option<TrialNo> {
        let number = self.number(request_id)?;
        (self.get(number).state == TrialState::Running).then_some(number)
    }

    /// A trial by its number, which [`Self::number`] returned.
    pub(crate) fn get(&self, number: TrialNo) -> &Trial {
        &self.by_number[number.0]
    }

    /// Records a validation that the search could use.
    pub(crate) fn record_usable(&mut self, number: TrialNo) {
        let trial = &mut self.by_number[number.0];
        self.counts.usable += u64::from(!trial.reports.has_usable());
        trial.reports = trial.reports.and_usable();
    }

    /// Records a validation without the metrics that the search decides by; it counts of a trial at work only.
    pub(crate) fn record_unusable(&mut self, request_id: &RequestId) {
        if let Some(number) = self.at_work(request_id) {
            let trial = &mut self.by_number[number.0];
            trial.reports = trial.reports.and_unusable();
        }
    }

    /// Raises a trial's progress to `fraction` of it, from 0 to 1; NaN counts as 0.
    pub(crate) fn advance(&mut self, number: TrialNo, fraction: f64) {
        self.raise(number, whole(fraction * real(WHOLE_TRIAL)).min(WHOLE_TRIAL));
    }

    /// Raises a trial's progress to `done`. One that is replaced does not count.
    fn raise(&mut self, number: TrialNo, done: u64) {
        let trial = &mut self.by_number[number.0];
        if trial.state.is_invalid() && self.replaces_invalid {
            return;
        }
        self.counts.done += done.saturating_sub(trial.done);
        trial.done = trial.done.max(done);
    }

    /// A running trial was asked to stop.
    pub(crate) fn stop(&mut self, number: TrialNo) {
        self.by_number[number.0].state = TrialState::Stopping;
    }

    /// A trial will not be started again, for this reason.
    pub(crate) fn exit(&mut self, number: TrialNo, reason: ExitReason) {
        let trial = &mut self.by_number[number.0];
        match reason {
            ExitReason::Errored => self.counts.errored += 1,
            ExitReason::Canceled => self.counts.canceled += 1,
            ExitReason::InvalidHyperparameters => {
                self.counts.invalid += 1;
                if self.replaces_invalid {
                    self.counts.done -= trial.done;
                    trial.done = 0;
                }
            }
        }
        trial.state = TrialState::Exiting(reason);
    }

    /// A trial has ended, which it had not before.
    pub(crate) fn end(&mut self, number: TrialNo) {
        self.raise(number, WHOLE_TRIAL);
        let trial = &mut self.by_number[number.0];
        trial.state = TrialState::Ended(trial.state.reason());
        self.counts.ended += 1;
        self.counts.without_metric += u64::from(trial.has_no_metric());
    }
}
