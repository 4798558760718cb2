//! Adaptive ASHA: several concurrent halving searches ("brackets"); plain ASHA is one bracket.
//!
//! A trial belongs to the bracket that created it. Brackets never compare results, and a trial that leaves a bracket
//! is replaced in the same one.

use det_config::hyperparameters::{AdaptiveMode, SearchMethod};
use serde::{Deserialize, Serialize};

use crate::asha::{Bracket, RungResult, TrialNo, Verdict};
use crate::divisor::Divisor;
use crate::error::{MAX_RUNGS, MAX_TRIALS, SearchError};
use crate::number::{count, real, whole};

/// The state of an ASHA or adaptive ASHA search.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Halving {
    /// The brackets, those with most rungs first.
    pub(crate) brackets: Vec<Bracket>,
    /// Units of the time metric at the top rung.
    pub(crate) max_time: u64,
    /// The bracket and rung of each trial, by its number.
    homes: Vec<TrialPosition>,
}

/// The bracket and rung of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialPosition {
    bracket: usize,
    /// The rung it is compared at next, or at which it was stopped.
    rung: usize,
}

/// The part of a snapshot that only halving searches have.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HalvingRecord {
    homes: Vec<TrialPosition>,
    /// Results by bracket and rung.
    results: Vec<Vec<Vec<RungResult>>>,
}

/// What a bracket needs to know of a trial when it is restored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrialSummary {
    pub(crate) counted: bool,
    pub(crate) at_work: bool,
}

impl Halving {
    /// The brackets of `method`; `None` when it is not a halving method.
    pub(crate) fn new(method: &SearchMethod) -> Result<Option<Self>, SearchError> {
        let (shapes, divisor, max_time) = match method {
            SearchMethod::Single | SearchMethod::Random { .. } | SearchMethod::Grid { .. } => {
                return Ok(None);
            }
            SearchMethod::AsyncHalving {
                num_rungs,
                divisor,
                max_trials,
                max_concurrent_trials,
                time_metric: _,
                max_time,
            } => {
                let divisor = checked_divisor(*divisor)?;
                in_range("num_rungs", *num_rungs, MAX_RUNGS)?;
                in_range("max_trials", *max_trials, MAX_TRIALS)?;
                let places = if *max_concurrent_trials > 0 {
                    (*max_concurrent_trials).min(*max_trials)
                } else {
                    divisor.floor_power(num_rungs - 1, *max_trials).max(1)
                };
                let shape = Shape {
                    rungs: *num_rungs,
                    trials: *max_trials,
                    places,
                };
                (vec![shape], divisor, *max_time)
            }
            SearchMethod::AdaptiveAsha {
                mode,
                max_rungs,
                bracket_rungs,
                divisor,
                max_trials,
                max_concurrent_trials,
                time_metric: _,
                max_time,
            } => {
                let divisor = checked_divisor(*divisor)?;
                in_range("max_trials", *max_trials, MAX_TRIALS)?;
                let rungs = if bracket_rungs.is_empty() {
                    rungs_of_mode(*mode, *max_rungs, divisor, *max_trials, *max_time)?
                } else {
                    explicit_rungs(bracket_rungs)?
                };
                let shapes = shapes(rungs, divisor, *max_trials, *max_concurrent_trials);
                (shapes, divisor, *max_time)
            }
        };
        if max_time == 0 {
            return Err(SearchError::setting("max_time", 0, "it must be at least 1"));
        }
        Ok(Some(Self {
            brackets: shapes
                .into_iter()
                .map(|shape| {
                    Bracket::new(shape.rungs, divisor, max_time, shape.trials, shape.places)
                })
                .collect(),
            max_time,
            homes: Vec::new(),
        }))
    }

    /// Number of trials that all brackets create together.
    pub(crate) fn max_trials(&self) -> u64 {
        self.brackets.iter().map(|bracket| bracket.max_trials).sum()
    }

    /// Whether a trial may start now.
    pub(crate) fn may_claim(&self) -> bool {
        self.brackets.iter().any(Bracket::may_claim)
    }

    /// Whether a trial is to start now; if so it is counted in the first bracket with free concurrency.
    pub(crate) fn claim(&mut self) -> bool {
        match self.brackets.iter_mut().position(Bracket::claim) {
            Some(bracket) => {
                self.homes.push(TrialPosition { bracket, rung: 0 });
                true
            }
            None => false,
        }
    }

    /// Records that a running trial reached `time` (finite) with `metric` (smaller is better).
    pub(crate) fn record_validation(&mut self, trial: TrialNo, metric: f64, time: f64) -> Verdict {
        let home = &mut self.homes[trial.0];
        self.brackets[home.bracket].record_validation(trial, &mut home.rung, metric, time)
    }

    /// Records that a running trial failed or was canceled.
    pub(crate) fn record_failure(&mut self, trial: TrialNo) {
        let home = self.homes[trial.0];
        self.brackets[home.bracket].record_failure(trial, home.rung);
    }

    /// Records that a running trial ended by itself.
    pub(crate) fn record_end(&mut self, trial: TrialNo) {
        self.brackets[self.homes[trial.0].bracket].record_end();
    }

    /// Removes a trial with invalid hyperparameters from the counts and results.
    pub(crate) fn discount(&mut self, trial: TrialNo, was_at_work: bool) {
        self.brackets[self.homes[trial.0].bracket].discount(trial, was_at_work);
    }

    /// The state that cannot be computed from the configuration and the trials.
    pub(crate) fn record(&self) -> HalvingRecord {
        HalvingRecord {
            homes: self.homes.clone(),
            results: self.brackets.iter().map(Bracket::results).collect(),
        }
    }

    /// Restores a recorded search; `trials` is indexed by trial number.
    pub(crate) fn resume(
        &mut self,
        record: HalvingRecord,
        trials: &[TrialSummary],
    ) -> Result<(), SearchError> {
        if record.homes.len() != trials.len() {
            return Err(SearchError::snapshot(
                "its trials and their brackets differ in number",
            ));
        }
        if record.results.len() != self.brackets.len() {
            return Err(SearchError::snapshot(format!(
                "it holds {} brackets where the configuration gives {}",
                record.results.len(),
                self.brackets.len()
            )));
        }
        let mut counted = vec![0_u64; self.brackets.len()];
        let mut at_work = counted.clone();
        for (home, trial) in record.homes.iter().zip(trials) {
            let height = self.brackets.get(home.bracket).map_or(0, Bracket::height);
            if home.rung >= height {
                return Err(SearchError::snapshot(
                    "a trial is at a rung that is not there",
                ));
            }
            counted[home.bracket] += u64::from(trial.counted);
            at_work[home.bracket] += u64::from(trial.at_work);
        }
        for (index, results) in record.results.into_iter().enumerate() {
            if results
                .iter()
                .flatten()
                .any(|entry| entry.1.0 >= trials.len())
            {
                return Err(SearchError::snapshot("a result belongs to no trial"));
            }
            self.brackets[index]
                .resume(results, counted[index], at_work[index])
                .map_err(SearchError::snapshot)?;
        }
        self.homes = record.homes;
        Ok(())
    }
}

/// Size of a bracket: its rungs, its trials in total, and how many of them may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    rungs: u64,
    trials: u64,
    places: u64,
}

/// Refuses a count outside `1..=most`.
pub(crate) fn in_range(field: &'static str, value: u64, most: u64) -> Result<(), SearchError> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(SearchError::setting(
            field,
            value,
            format!("it must be from 1 to {most}"),
        ))
    }
}

fn checked_divisor(divisor: f64) -> Result<Divisor, SearchError> {
    Divisor::new(divisor).ok_or_else(|| {
        SearchError::setting("divisor", divisor, "it must be a finite number above 1")
    })
}

/// Rung counts of the brackets of a mode, largest first.
fn rungs_of_mode(
    mode: AdaptiveMode,
    max_rungs: u64,
    divisor: Divisor,
    max_trials: u64,
    max_time: u64,
) -> Result<Vec<u64>, SearchError> {
    if max_rungs == 0 {
        return Err(SearchError::setting(
            "max_rungs",
            0,
            "it must be at least 1",
        ));
    }
    // So many that every rung is at least one unit long, and the top one can hold at least one trial.
    let most = max_rungs
        .min(divisor.floor_log(max_time, MAX_RUNGS) + 1)
        .min(divisor.floor_log(max_trials, MAX_RUNGS) + 1);
    if most > MAX_RUNGS {
        return Err(SearchError::setting(
            "max_rungs",
            max_rungs,
            format!(
                "with divisor {} that gives more than {MAX_RUNGS} rungs; choose a larger divisor or at most {MAX_RUNGS}",
                divisor.value()
            ),
        ));
    }
    let least = match mode {
        AdaptiveMode::Aggressive => most,
        AdaptiveMode::Standard => (most - 1) / 2 + 1,
        AdaptiveMode::Conservative => 1,
    };
    Ok((least..=most).rev().collect())
}

/// Rung counts as given, largest first.
fn explicit_rungs(bracket_rungs: &[u64]) -> Result<Vec<u64>, SearchError> {
    if count(bracket_rungs.len()) > MAX_RUNGS {
        return Err(SearchError::setting(
            "bracket_rungs",
            format!("a list of {}", bracket_rungs.len()),
            format!("at most {MAX_RUNGS} brackets are allowed"),
        ));
    }
    for rungs in bracket_rungs {
        in_range("bracket_rungs", *rungs, MAX_RUNGS)?;
    }
    let mut rungs = bracket_rungs.to_vec();
    rungs.sort_unstable_by(|a, b| b.cmp(a));
    Ok(rungs)
}

/// Divides trials and concurrency among brackets of these rung counts (largest first, not empty).
fn shapes(
    mut rungs: Vec<u64>,
    divisor: Divisor,
    max_trials: u64,
    max_concurrent_trials: u64,
) -> Vec<Shape> {
    let mut trials = divide_trials(&rungs, divisor, max_trials);
    // Every bracket has at least one trial, so many small brackets may ask for more than there are.
    while rungs.len() > 1 && trials.iter().sum::<u64>() > max_trials {
        rungs.pop();
        trials = divide_trials(&rungs, divisor, max_trials);
    }
    let dealt: u64 = trials.iter().sum();
    trials[0] += max_trials.saturating_sub(dealt);

    let brackets = count(rungs.len());
    let last = *trials.last().expect("there is at least one bracket");
    rungs
        .into_iter()
        .zip(trials)
        .zip(0..)
        .map(|((rungs, trials), index)| {
            let places = if max_concurrent_trials > 0 {
                let all = max_concurrent_trials.max(brackets);
                all / brackets + u64::from(index < all % brackets)
            } else {
                last.max(divisor.floor())
            };
            Shape {
                rungs,
                trials,
                places,
            }
        })
        .collect()
}

/// Each bracket's share of the trials by its weight `d^(k−1) / k`, rounded down, at least 1.
fn divide_trials(rungs: &[u64], divisor: Divisor, max_trials: u64) -> Vec<u64> {
    let parts = match divisor {
        Divisor::Whole(d) => exact_parts(rungs, d, max_trials),
        Divisor::Fractional(_) => None,
    };
    parts
        .unwrap_or_else(|| rounded_parts(rungs, divisor.value(), max_trials))
        .into_iter()
        .map(|trials| trials.max(1))
        .collect()
}

/// The shares in integer arithmetic, with a common denominator of all weights. `None` if that exceeds 128 bits.
fn exact_parts(rungs: &[u64], divisor: u64, max_trials: u64) -> Option<Vec<u64>> {
    let denominator = rungs.iter().try_fold(1_u128, |all, k| {
        all.checked_mul(u128::from(*k) / gcd(all, u128::from(*k)))
    })?;
    let weights = rungs
        .iter()
        .map(|k| {
            u128::from(divisor)
                .checked_pow(u32::try_from(k - 1).ok()?)?
                .checked_mul(denominator / u128::from(*k))
        })
        .collect::<Option<Vec<u128>>>()?;
    let total = weights
        .iter()
        .try_fold(0_u128, |all, weight| all.checked_add(*weight))?;
    weights
        .iter()
        .map(|weight| u64::try_from(weight.checked_mul(u128::from(max_trials))? / total).ok())
        .collect()
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The shares in floating point, with weights relative to that of the first bracket so that none overflows.
fn rounded_parts(rungs: &[u64], divisor: f64, max_trials: u64) -> Vec<u64> {
    let most = rungs.first().copied().unwrap_or(1);
    let weights: Vec<f64> = rungs
        .iter()
        .map(|k| divisor.powf(-real(most - k)) / real(*k))
        .collect();
    let total: f64 = weights.iter().sum();
    weights
        .iter()
        .map(|weight| whole(weight / total * real(max_trials)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptive(
        (max_trials, max_time): (u64, u64),
        mode: AdaptiveMode,
        divisor: f64,
        max_concurrent_trials: u64,
        bracket_rungs: &[u64],
    ) -> SearchMethod {
        SearchMethod::AdaptiveAsha {
            mode,
            max_rungs: 5,
            bracket_rungs: bracket_rungs.to_vec(),
            divisor,
            max_trials,
            max_concurrent_trials,
            time_metric: "batches".to_owned(),
            max_time,
        }
    }

    /// Rungs, trials and concurrency of each bracket.
    fn sizes(method: &SearchMethod) -> Vec<(usize, u64, u64)> {
        let halving = Halving::new(method).expect("valid").expect("halving");
        halving
            .brackets
            .iter()
            .map(|bracket| (bracket.height(), bracket.max_trials, bracket.places))
            .collect()
    }

    #[test]
    fn trials_are_divided_among_brackets_by_mode_and_weight() {
        use AdaptiveMode::{Aggressive, Conservative, Standard};
        let table = [
            (
                (64, 4096),
                Standard,
                4.0,
                16,
                vec![(4, 45, 6), (3, 14, 5), (2, 5, 5)],
            ),
            (
                (12, 500),
                Conservative,
                3.0,
                4,
                vec![(3, 7, 2), (2, 3, 1), (1, 2, 1)],
            ),
            ((40, 1000), Aggressive, 4.0, 8, vec![(3, 40, 8)]),
            ((3, 1000), Standard, 4.0, 16, vec![(1, 3, 16)]),
            // No limit: the trials of the last bracket, at least the divisor.
            (
                (64, 4096),
                Standard,
                4.0,
                0,
                vec![(4, 45, 5), (3, 14, 5), (2, 5, 5)],
            ),
            (
                (12, 500),
                Conservative,
                3.0,
                0,
                vec![(3, 7, 3), (2, 3, 3), (1, 2, 3)],
            ),
            // Less concurrency than brackets: one each.
            (
                (64, 4096),
                Standard,
                4.0,
                1,
                vec![(4, 45, 1), (3, 14, 1), (2, 5, 1)],
            ),
            // 1000 is an exact power of 10: four rungs, not three.
            ((1000, 1000), Aggressive, 10.0, 4, vec![(4, 1000, 4)]),
        ];
        for (size, mode, divisor, places, expected) in table {
            let method = adaptive(size, mode, divisor, places, &[]);
            assert_eq!(
                sizes(&method),
                expected,
                "{size:?} {mode:?} {divisor} {places}"
            );
        }
    }

    #[test]
    fn explicit_brackets_are_sorted_and_those_beyond_the_trials_dropped() {
        let standard = AdaptiveMode::Standard;
        assert_eq!(
            sizes(&adaptive((64, 4096), standard, 4.0, 16, &[2, 4, 3])),
            [(4, 45, 6), (3, 14, 5), (2, 5, 5)]
        );
        assert_eq!(
            sizes(&adaptive((3, 4096), standard, 4.0, 16, &[1, 1, 1, 2, 2])),
            [(2, 1, 6), (2, 1, 5), (1, 1, 5)]
        );
        assert_eq!(
            sizes(&adaptive((1, 4096), standard, 4.0, 2, &[1, 2, 3])),
            [(3, 1, 2)]
        );
    }

    #[test]
    fn fractional_and_huge_divisors_divide_all_trials() {
        for divisor in [1.01, 1.5, 2.5, 1e6, 1e300] {
            for mode in [AdaptiveMode::Conservative, AdaptiveMode::Standard] {
                let method = adaptive((100, 1000), mode, divisor, 16, &[]);
                let trials: u64 = sizes(&method).iter().map(|size| size.1).sum();
                assert_eq!(trials, 100, "divisor {divisor}");
            }
        }
        let deep = adaptive((1000, 1000), AdaptiveMode::Standard, 4.0, 16, &[900, 3]);
        // Compared with 4^899 the weight of the small bracket is lost in a double: the first gets all trials.
        assert_eq!(sizes(&deep), [(900, 1000, 16)]);
    }

    #[test]
    fn whole_parts_are_exact() {
        // Weights 4/2 and 1/1: 49 of 147 trials are exactly a third, which floating point may miss.
        assert_eq!(exact_parts(&[2, 1], 4, 147), Some(vec![98, 49]));
        assert_eq!(exact_parts(&[900, 3], 4, 1000), None);
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let standard = AdaptiveMode::Standard;
        for (method, words) in [
            (
                adaptive((0, 10), standard, 4.0, 1, &[]),
                "searcher.max_trials is 0;",
            ),
            (
                adaptive((u64::MAX, 10), standard, 4.0, 1, &[]),
                "searcher.max_trials is 18",
            ),
            (
                adaptive((9, 0), standard, 4.0, 1, &[]),
                "searcher.max_time is 0;",
            ),
            (
                adaptive((9, 10), standard, 1.0, 1, &[]),
                "searcher.divisor is 1;",
            ),
            (
                adaptive((9, 10), standard, f64::NAN, 1, &[]),
                "searcher.divisor is NaN;",
            ),
            (
                adaptive((9, 10), standard, 4.0, 1, &[2, 0]),
                "searcher.bracket_rungs is 0;",
            ),
            (
                adaptive((9, 10), standard, 4.0, 1, &[1; 1001]),
                "searcher.bracket_rungs is a list",
            ),
        ] {
            let refusal = Halving::new(&method).expect_err(words).to_string();
            assert!(refusal.starts_with(words), "{refusal}");
        }
        let mut endless = adaptive((1_000_000, 1_000_000), standard, 1.000_1, 1, &[]);
        if let SearchMethod::AdaptiveAsha { max_rungs, .. } = &mut endless {
            *max_rungs = u64::MAX;
        }
        let refusal = Halving::new(&endless)
            .expect_err("too many rungs")
            .to_string();
        assert!(refusal.contains("choose a larger divisor"), "{refusal}");
    }

    #[test]
    fn a_halving_search_starts_with_its_derived_places() {
        let method =
            |num_rungs, divisor, max_trials, max_concurrent_trials| SearchMethod::AsyncHalving {
                num_rungs,
                divisor,
                max_trials,
                max_concurrent_trials,
                time_metric: "batches".to_owned(),
                max_time: 1000,
            };
        for (method, places) in [
            (method(3, 4.0, 100, 0), 16),
            (method(3, 4.0, 10, 0), 10),
            (method(1, 4.0, 10, 0), 1),
            (method(3, 2.5, 10, 0), 6),
            (method(3, 4.0, 100, 7), 7),
            (method(3, 4.0, 5, 7), 5),
        ] {
            assert_eq!(sizes(&method)[0].2, places, "{method:?}");
        }
    }
}
