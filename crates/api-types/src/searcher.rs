//! Preview of a hyperparameter search.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Object;

/// Body of `PreviewHPSearch`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreviewHpSearchRequest {
    /// Configuration of an experiment whose search to preview; an entrypoint is not needed.
    pub config: Object,
    /// Seed of the search's random choices; the same seed gives the same preview.
    pub seed: i64,
}

/// What trials of one shape train for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SearchUnit {
    /// Unit; `None` = the unit of the configuration.
    pub name: Option<String>,
    /// How many units; `None` with `max_length`.
    pub value: Option<i64>,
    /// Whether they train to their own end.
    pub max_length: bool,
}

/// Trials of a search that train equally long.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialSummary {
    /// How many trials have this shape.
    pub count: i64,
    /// What each trains for.
    pub unit: SearchUnit,
}

/// What a search would do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SearchSummary {
    /// The effective `searcher` section of the configuration.
    pub config: Object,
    /// How many trials would train for how long, an entry for each length.
    pub trials: Vec<TrialSummary>,
}

/// Answer of `PreviewHPSearch`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreviewHpSearchResponse {
    /// What the search would do.
    pub summary: SearchSummary,
}
