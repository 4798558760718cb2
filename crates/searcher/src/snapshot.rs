//! Saves and restores a search.
//!
//! A snapshot contains what cannot be computed from the configuration: the position in the random stream, the trials,
//! and the results of a halving search. All counters are computed again on restore, so a snapshot cannot contradict
//! itself.

use det_config::hyperparameters::{SearcherConfig, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adaptive::{HalvingRecord, TrialSummary};
use crate::error::SearchError;
use crate::number::{count, exact};
use crate::rng::Mt19937;
use crate::search::{Method, Phase, Search};
use crate::trials::{NEARLY_DONE, Trial, TrialState, Trials};

/// Version of the format that this program writes, and the only one that it reads.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
struct Snapshot {
    version: u64,
    method: MethodName,
    /// Seed of the random stream.
    seed: u32,
    /// Number of words drawn from the stream.
    drawn: u64,
    phase: Phase,
    #[serde(with = "exact")]
    shown_progress: f64,
    invalid_in_a_row: u32,
    trials: Vec<Trial>,
    /// Only with a halving method.
    halving: Option<HalvingRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MethodName {
    Single,
    Random,
    Grid,
    /// Successive halving, with one bracket or several.
    Halving,
}

impl Method {
    fn name(&self) -> MethodName {
        match self {
            Self::Single(_) => MethodName::Single,
            Self::Random(_) => MethodName::Random,
            Self::Grid(_) => MethodName::Grid,
            Self::Halving(_) => MethodName::Halving,
        }
    }

    /// Counts again what a method counts over its trials; `record` has the results of a halving search.
    fn resume(
        &mut self,
        trials: &[Trial],
        record: Option<HalvingRecord>,
    ) -> Result<(), SearchError> {
        let replaces_invalid = self.replaces_invalid();
        let is_counted = |trial: &Trial| !(replaces_invalid && trial.state.is_invalid());
        let number_of = |which: &dyn Fn(&Trial) -> bool| {
            count(trials.iter().filter(|trial| which(trial)).count())
        };
        let live = number_of(&|trial| !matches!(trial.state, TrialState::Ended(_)));
        match self {
            Self::Single(random) | Self::Random(random) => {
                random.resume(number_of(&is_counted), live);
                Ok(())
            }
            Self::Grid(grid) => grid.resume(count(trials.len()), live),
            Self::Halving(halving) => {
                let record = record
                    .ok_or_else(|| SearchError::snapshot("it lacks the results of its trials"))?;
                let summaries: Vec<TrialSummary> = trials
                    .iter()
                    .map(|trial| TrialSummary {
                        counted: is_counted(trial),
                        at_work: trial.state == TrialState::Running,
                    })
                    .collect();
                halving.resume(record, &summaries)
            }
        }
    }
}

impl Search {
    /// The state as JSON, with a version. Metrics that are not finite are strings in it.
    ///
    /// Its size is proportional to the number of trials, some 150 bytes each. It need not be taken after every event:
    /// later events, replayed on the restored search, give the same state and the same actions.
    pub fn snapshot(&self) -> Value {
        let halving = match &self.method {
            Method::Halving(halving) => Some(halving.record()),
            Method::Single(_) | Method::Random(_) | Method::Grid(_) => None,
        };
        serde_json::to_value(Snapshot {
            version: VERSION,
            method: self.method.name(),
            seed: self.stream.seed(),
            drawn: self.stream.drawn(),
            phase: self.phase,
            shown_progress: self.highest_progress,
            invalid_in_a_row: self.invalid_in_a_row,
            trials: self.trials.all().to_vec(),
            halving,
        })
        .expect("a snapshot has no maps with keys that are not text, and no number that JSON lacks")
    }

    /// Restores the search from `snapshot`. It handles every later event as if it had never stopped.
    ///
    /// `config` and `space` are those the search was made with; limits that do not change its brackets may have been
    /// raised or lowered since. Errs when the snapshot is of another version or method, or damaged.
    pub fn restore(
        config: &SearcherConfig,
        space: &Space,
        snapshot: &Value,
    ) -> Result<Self, SearchError> {
        let version = snapshot.get("version").and_then(Value::as_u64);
        if version != Some(VERSION) {
            return Err(SearchError::snapshot(match version {
                Some(version) => {
                    format!("its version is {version}, this program reads version {VERSION}")
                }
                None => "it has no version".to_owned(),
            }));
        }
        let snapshot = Snapshot::deserialize(snapshot)
            .map_err(|error| SearchError::snapshot(error.to_string()))?;

        let mut search = Self::new(config, space, snapshot.seed)?;
        if snapshot.method != search.method.name() {
            return Err(SearchError::snapshot(format!(
                "it is of a {:?} search, the configuration asks for {:?}",
                snapshot.method,
                search.method.name()
            )));
        }
        search.stream = Mt19937::at(snapshot.seed, snapshot.drawn).ok_or_else(|| {
            SearchError::snapshot(format!(
                "it records that {} random words were drawn, at most {} are possible",
                snapshot.drawn,
                Mt19937::MAX_DRAWN
            ))
        })?;
        search.phase = snapshot.phase;
        search.highest_progress = snapshot.shown_progress.clamp(0.0, NEARLY_DONE);
        search.invalid_in_a_row = snapshot.invalid_in_a_row;
        search.trials = Trials::restore(snapshot.trials, search.method.replaces_invalid())
            .map_err(|twice| SearchError::snapshot(format!("trial \"{twice}\" is in it twice")))?;
        search
            .method
            .resume(search.trials.all(), snapshot.halving)?;
        Ok(search)
    }
}
