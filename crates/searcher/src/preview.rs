//! Computes what a search will do at most, from its configuration alone.

use std::collections::BTreeMap;

use det_config::hyperparameters::{SearchMethod, SearcherConfig, Space};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::adaptive::Halving;
use crate::error::SearchError;
use crate::event::Action;
use crate::search::{Method, Search};

/// The most samples in a preview.
const SAMPLES: usize = 5;

/// What a search will do if no trial fails.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preview {
    /// Numbers of trials by training length, shortest first. Never empty.
    pub shapes: Vec<TrialShape>,
    /// The brackets of a halving search, most rungs first; empty for other searches.
    pub brackets: Vec<BracketPreview>,
    /// Hyperparameters of the first trials that this seed gives, at most five.
    pub samples: Vec<Map<String, Value>>,
}

/// Trials that train equally long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrialShape {
    /// Number of trials, at least 1.
    pub trials: u64,
    /// How long each of them trains.
    pub length: TrialLength,
}

/// How long a trial trains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialLength {
    /// Until its own code ends.
    ToEnd,
    /// Until it is stopped, or ends, at a rung.
    Units {
        /// The reported metric that measures training time, as `batches`.
        time_metric: String,
        /// Value of that metric at the rung.
        units: u64,
    },
}

/// One bracket of a halving search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BracketPreview {
    /// Units of the time metric at each rung, lowest first.
    pub rungs: Vec<u64>,
    /// Number of trials of this shape.
    pub trials: u64,
    /// Trials that it runs at once, as long as it has enough left.
    pub concurrent_trials: u64,
}

impl Preview {
    /// Number of trials of all shapes together.
    pub fn trials(&self) -> u64 {
        self.shapes.iter().map(|shape| shape.trials).sum()
    }

    /// Units of the time metric that all trials train together; `None` when trials run to their own end.
    pub fn units(&self) -> Option<u128> {
        self.shapes
            .iter()
            .map(|shape| match &shape.length {
                TrialLength::ToEnd => None,
                TrialLength::Units { units, .. } => {
                    Some(u128::from(*units) * u128::from(shape.trials))
                }
            })
            .sum()
    }
}

/// Previews a search. For halving searches: of the trials that reach a rung the best `1/divisor` continue, at least
/// one; the rest end there. Because a running search compares each result only with those before it, it may train more
/// or less.
///
/// # Errors
/// As [`Search::new`].
pub fn preview(config: &SearcherConfig, space: &Space, seed: u32) -> Result<Preview, SearchError> {
    let mut search = Search::new(config, space, seed)?;
    let (shapes, brackets) = match (&search.method, &config.method) {
        (
            Method::Halving(halving),
            SearchMethod::AsyncHalving { time_metric, .. }
            | SearchMethod::AdaptiveAsha { time_metric, .. },
        ) => (halving_shapes(halving, time_metric), brackets(halving)),
        (method, _) => (
            vec![TrialShape {
                trials: method.budget(),
                length: TrialLength::ToEnd,
            }],
            Vec::new(),
        ),
    };
    let samples = std::iter::from_fn(|| search.create_next())
        .take(SAMPLES)
        .filter_map(|action| match action {
            Action::Create { hparams, .. } => Some(hparams),
            Action::Stop { .. } | Action::Shutdown(_) => None,
        })
        .collect();
    Ok(Preview {
        shapes,
        brackets,
        samples,
    })
}

fn brackets(halving: &Halving) -> Vec<BracketPreview> {
    halving
        .brackets
        .iter()
        .map(|bracket| BracketPreview {
            rungs: bracket.needs().collect(),
            trials: bracket.max_trials,
            concurrent_trials: bracket.places.min(bracket.max_trials),
        })
        .collect()
}

fn halving_shapes(halving: &Halving, time_metric: &str) -> Vec<TrialShape> {
    let mut trials_by_length = BTreeMap::<u64, u64>::new();
    for bracket in &halving.brackets {
        let mut entering = bracket.max_trials;
        let top = bracket.height() - 1;
        for (rung, need) in bracket.needs().enumerate() {
            let going_on = if rung == top {
                0
            } else {
                bracket.divisor().share(entering)
            };
            *trials_by_length.entry(need).or_default() += entering - going_on;
            entering = going_on;
        }
    }
    trials_by_length
        .into_iter()
        .filter(|(_, trials)| *trials > 0)
        .map(|(units, trials)| TrialShape {
            trials,
            length: TrialLength::Units {
                time_metric: time_metric.to_owned(),
                units,
            },
        })
        .collect()
}
