//! The searcher as it is in an experiment's configuration: one flat map, the method's keys beside the common ones.

use std::ops::Deref;

use det_ids::{CheckpointId, TrialId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value, json};

use super::types::Length;
use crate::hyperparameters::{SearchMethod, SearcherConfig};
use crate::space::short;

/// How an experiment searches, with the older length that training code may ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct Searcher {
    /// What the search itself needs.
    pub config: SearcherConfig,
    /// The length each trial trains for, if its code does not decide; only for single, random and grid. `None` unless given.
    pub max_length: Option<MaxLength>,
}

impl Deref for Searcher {
    type Target = SearcherConfig;
    fn deref(&self) -> &SearcherConfig {
        &self.config
    }
}

/// The older form of a training length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MaxLength {
    /// A number whose unit training code chooses.
    Unitless(u64),
    /// A length with its unit.
    Length(Length),
}

impl Serialize for Searcher {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut members = self.config_members();
        if let Some(length) = &self.max_length {
            members.insert("max_length".into(), json!(length));
        }
        members.serialize(out)
    }
}

impl Searcher {
    fn config_members(&self) -> Map<String, Value> {
        let common = json!({
            "metric": self.config.metric,
            "smaller_is_better": self.config.smaller_is_better,
            "source_trial_id": self.config.source_trial_id,
            "source_checkpoint_uuid": self.config.source_checkpoint_uuid,
        });
        let method = match &self.config.method {
            SearchMethod::Single => json!({"name": "single"}),
            SearchMethod::Random {
                max_trials,
                max_concurrent_trials,
            } => json!({
                "name": "random", "max_trials": max_trials, "max_concurrent_trials": max_concurrent_trials,
            }),
            SearchMethod::Grid {
                max_concurrent_trials,
            } => json!({"name": "grid", "max_concurrent_trials": max_concurrent_trials}),
            SearchMethod::AsyncHalving {
                num_rungs,
                divisor,
                max_trials,
                max_concurrent_trials,
                time_metric,
                max_time,
            } => json!({
                "name": "async_halving", "num_rungs": num_rungs, "divisor": short(*divisor),
                "max_trials": max_trials, "max_concurrent_trials": max_concurrent_trials,
                "time_metric": time_metric, "max_time": max_time,
            }),
            SearchMethod::AdaptiveAsha {
                mode,
                max_rungs,
                bracket_rungs,
                divisor,
                max_trials,
                max_concurrent_trials,
                time_metric,
                max_time,
            } => json!({
                "name": "adaptive_asha", "mode": mode, "max_rungs": max_rungs, "bracket_rungs": bracket_rungs,
                "divisor": short(*divisor), "max_trials": max_trials,
                "max_concurrent_trials": max_concurrent_trials,
                "time_metric": time_metric, "max_time": max_time,
            }),
        };
        [common, method]
            .into_iter()
            .filter_map(|value| match value {
                Value::Object(members) => Some(members),
                _ => None,
            })
            .flatten()
            .collect()
    }
}

impl<'de> Deserialize<'de> for Searcher {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        /// The common keys and what is left for the method.
        #[derive(Deserialize)]
        struct Flat {
            metric: String,
            smaller_is_better: bool,
            #[serde(default)]
            source_trial_id: Option<TrialId>,
            #[serde(default)]
            source_checkpoint_uuid: Option<CheckpointId>,
            #[serde(default)]
            max_length: Option<MaxLength>,
        }
        let value = Value::deserialize(reader)?;
        let flat = Flat::deserialize(&value).map_err(D::Error::custom)?;
        let method = SearchMethod::deserialize(&value).map_err(D::Error::custom)?;
        Ok(Self {
            config: SearcherConfig {
                metric: flat.metric,
                smaller_is_better: flat.smaller_is_better,
                source_trial_id: flat.source_trial_id,
                source_checkpoint_uuid: flat.source_checkpoint_uuid,
                method,
            },
            max_length: flat.max_length,
        })
    }
}
