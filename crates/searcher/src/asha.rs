//! Asynchronous successive halving, stopping form: one bracket.
//!
//! Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020, arXiv:1810.05934. The paper pauses trials
//! at a rung and promotes the best; the stopping form instead lets every trial run and stops it at the first rung
//! where it is not among the best `1/divisor` of the results so far. It never waits, and never resumes a trial.

use serde::{Deserialize, Serialize};

use crate::divisor::Divisor;
use crate::event::StopReason;
use crate::number::{best_first, count, exact, real};

/// A trial, numbered from 0 in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TrialNo(pub(crate) usize);

/// One result at a rung: the metric (smaller is better), and the trial.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RungResult(#[serde(with = "exact")] pub(crate) f64, pub(crate) TrialNo);

/// A point in training at which trials are compared.
#[derive(Debug, Clone, PartialEq)]
struct Rung {
    /// Value of the time metric that a trial must reach to be compared here.
    need: u64,
    /// Results, best first. Two vectors would halve the bytes moved on insert, but a rung of 10,000 results moves
    /// within microseconds anyway.
    entries: Vec<RungResult>,
}

impl PartialEq for RungResult {
    fn eq(&self, other: &Self) -> bool {
        best_first(self.0, other.0).is_eq() && self.1 == other.1
    }
}

impl Rung {
    /// Inserts a result before equal ones, and returns its index.
    fn insert(&mut self, metric: f64, trial: TrialNo) -> usize {
        let place = self
            .entries
            .partition_point(|entry| best_first(entry.0, metric).is_lt());
        self.entries.insert(place, RungResult(metric, trial));
        place
    }
}

/// What a trial does after a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoesOn,
    Stop(StopReason),
}

/// One halving search: its rungs, and how many trials it may create.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bracket {
    divisor: Divisor,
    /// The rungs, lowest first, never empty.
    rungs: Vec<Rung>,
    pub(crate) max_trials: u64,
    /// The most trials that run at once.
    pub(crate) places: u64,
    /// Trials created, without those with invalid hyperparameters.
    counted: u64,
    /// Running trials: neither asked to stop, nor ended early, nor ended.
    at_work: u64,
}

impl Bracket {
    /// A bracket of `rungs` (at least 1) rungs, the top one at `max_time` units; at most `max_trials` trials, `places`
    /// at once.
    pub(crate) fn new(
        rungs: u64,
        divisor: Divisor,
        max_time: u64,
        max_trials: u64,
        places: u64,
    ) -> Self {
        Self {
            divisor,
            rungs: (0..rungs)
                .rev()
                .map(|below_top| Rung {
                    need: divisor.shrink(max_time, below_top).max(1),
                    entries: Vec::new(),
                })
                .collect(),
            max_trials,
            places,
            counted: 0,
            at_work: 0,
        }
    }

    /// The divisor of the search.
    pub(crate) fn divisor(&self) -> Divisor {
        self.divisor
    }

    /// Units of the time metric at each rung, lowest first.
    pub(crate) fn needs(&self) -> impl Iterator<Item = u64> {
        self.rungs.iter().map(|rung| rung.need)
    }

    /// Whether a trial may start now.
    pub(crate) fn may_claim(&self) -> bool {
        self.at_work < self.places && self.counted < self.max_trials
    }

    /// Whether a trial is to start now; if so it is counted.
    pub(crate) fn claim(&mut self) -> bool {
        let free = self.may_claim();
        if free {
            self.at_work += 1;
            self.counted += 1;
        }
        free
    }

    /// Records that a running trial reached `time` (finite) with `metric` (smaller is better). `rung` is its current
    /// rung and is advanced.
    pub(crate) fn record_validation(
        &mut self,
        trial: TrialNo,
        rung: &mut usize,
        metric: f64,
        time: f64,
    ) -> Verdict {
        let top = self.rungs.len() - 1;
        while let Some(here) = self.rungs.get_mut(*rung) {
            // Only whole units of time count; the required time is whole, so rounding down would not change the
            // comparison.
            if time < real(here.need) {
                return Verdict::GoesOn;
            }
            let place = here.insert(metric, trial);
            let keep = self.divisor.share(count(here.entries.len()));
            let reason = if *rung == top {
                Some(StopReason::FullyTrained)
            } else {
                (count(place) >= keep).then_some(StopReason::NotAmongBest)
            };
            if let Some(reason) = reason {
                self.at_work -= 1;
                return Verdict::Stop(reason);
            }
            *rung += 1;
        }
        Verdict::GoesOn
    }

    /// Records that a running trial failed or was canceled: it counts as the worst result at its rung, and another may
    /// run.
    pub(crate) fn record_failure(&mut self, trial: TrialNo, rung: usize) {
        if let Some(here) = self.rungs.get_mut(rung) {
            here.insert(f64::NAN, trial);
        }
        self.at_work -= 1;
    }

    /// Records that a running trial ended by itself: another may run.
    pub(crate) fn record_end(&mut self) {
        self.at_work -= 1;
    }

    /// Removes a trial with invalid hyperparameters from the counts, and its results.
    pub(crate) fn discount(&mut self, trial: TrialNo, was_at_work: bool) {
        for rung in &mut self.rungs {
            rung.entries.retain(|entry| entry.1 != trial);
        }
        self.counted -= 1;
        if was_at_work {
            self.at_work -= 1;
        }
    }

    /// The results at each rung, for the snapshot.
    pub(crate) fn results(&self) -> Vec<Vec<RungResult>> {
        self.rungs.iter().map(|rung| rung.entries.clone()).collect()
    }

    /// The number of rungs.
    pub(crate) fn height(&self) -> usize {
        self.rungs.len()
    }

    /// Restores a bracket with these results; the error contains why they do not fit.
    pub(crate) fn resume(
        &mut self,
        results: Vec<Vec<RungResult>>,
        counted: u64,
        at_work: u64,
    ) -> Result<(), String> {
        if results.len() != self.rungs.len() {
            return Err(format!(
                "it holds a bracket of {} rungs where the configuration gives {}",
                results.len(),
                self.rungs.len()
            ));
        }
        for (rung, entries) in self.rungs.iter_mut().zip(results) {
            if !entries.is_sorted_by(|a, b| best_first(a.0, b.0).is_le()) {
                return Err("the results of a rung are not in order".to_owned());
            }
            rung.entries = entries;
        }
        self.counted = counted;
        self.at_work = at_work;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bracket(rungs: u64, divisor: f64, max_time: u64) -> Bracket {
        let divisor = Divisor::new(divisor).expect("valid divisor");
        Bracket::new(rungs, divisor, max_time, 1_000, 1_000)
    }

    /// Starts trials and lets each report once; returns which of them continue.
    fn report(bracket: &mut Bracket, time: f64, metrics: &[f64]) -> Vec<bool> {
        metrics
            .iter()
            .enumerate()
            .map(|(number, metric)| {
                assert!(bracket.claim());
                bracket.record_validation(TrialNo(number), &mut 0, *metric, time) == Verdict::GoesOn
            })
            .collect()
    }

    fn values(bracket: &Bracket, rung: usize) -> Vec<f64> {
        bracket.rungs[rung]
            .entries
            .iter()
            .map(|entry| entry.0)
            .collect()
    }

    #[test]
    fn rungs_rise_by_the_divisor_and_need_at_least_one_unit() {
        for (rungs, divisor, max_time, needs) in [
            (3, 4.0, 200, vec![12, 50, 200]),
            (1, 4.0, 7, vec![7]),
            (4, 4.0, 5, vec![1, 1, 1, 5]),
            (3, 2.5, 250, vec![40, 100, 250]),
            (3, 4.0, 1000, vec![62, 250, 1000]),
        ] {
            assert_eq!(
                bracket(rungs, divisor, max_time)
                    .needs()
                    .collect::<Vec<_>>(),
                needs
            );
        }
    }

    #[test]
    fn a_tie_with_the_last_kept_result_goes_on() {
        let mut search = bracket(2, 2.0, 10);
        assert_eq!(
            report(&mut search, 5.0, &[0.5, 0.5, 0.6, 0.5, 0.7]),
            [true, true, false, true, false]
        );
    }

    #[test]
    fn nan_is_last_even_after_infinity_and_later_results_stay_in_order() {
        let mut search = bracket(2, 2.0, 10);
        let goes_on = report(
            &mut search,
            5.0,
            &[
                f64::NAN,
                f64::INFINITY,
                f64::NAN,
                1.0,
                f64::NEG_INFINITY,
                f64::INFINITY,
            ],
        );
        assert_eq!(goes_on, [true, true, false, true, true, true]);
        let order = values(&search, 0);
        assert_eq!(
            order[..4],
            [f64::NEG_INFINITY, 1.0, f64::INFINITY, f64::INFINITY]
        );
        assert!(order[4].is_nan() && order[5].is_nan());
    }

    #[test]
    fn half_a_unit_is_not_a_unit() {
        let mut search = bracket(2, 4.0, 100);
        let mut rung = 0;
        assert!(search.claim());
        assert_eq!(
            search.record_validation(TrialNo(0), &mut rung, 0.5, 24.99),
            Verdict::GoesOn
        );
        assert!(values(&search, 0).is_empty());
        assert_eq!(
            search.record_validation(TrialNo(0), &mut rung, 0.5, 25.0),
            Verdict::GoesOn
        );
        assert_eq!((values(&search, 0).len(), rung), (1, 1));
    }

    #[test]
    fn an_invalid_trial_leaves_no_result_behind() {
        let mut search = bracket(3, 2.0, 80);
        let mut rung = 0;
        assert!(search.claim());
        search.record_validation(TrialNo(0), &mut rung, 0.5, 40.0);
        assert_eq!(rung, 2);
        search.discount(TrialNo(0), true);
        assert_eq!(search, bracket(3, 2.0, 80));
    }
}
