//! The events that a search receives, and the actions that it returns.
//!
//! Both are stored and replayed, so both are serialisable; metrics that are not finite are strings in JSON.

use det_ids::RequestId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::number::exact;

/// Something that happened to a trial of the search.
///
/// Events with a request id that the search never created, and events that come too late, change nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The trial reported the searcher metric.
    Validation {
        /// Id of the trial.
        request_id: RequestId,
        /// Value of the searcher metric as reported, not negated; may be NaN or infinite.
        #[serde(with = "exact")]
        metric: f64,
        /// Value of the searcher's `time_metric` in the same report; `None` when the report lacks it, or when the
        /// searcher has no time metric. A halving search takes a report without it as [`Event::UnusableValidation`].
        #[serde(default, with = "exact::optional")]
        time: Option<f64>,
    },
    /// The trial reported validation metrics without a number for the searcher metric. Decides nothing.
    UnusableValidation {
        /// Id of the trial.
        request_id: RequestId,
    },
    /// The trial reported its progress.
    Progress {
        /// Id of the trial.
        request_id: RequestId,
        /// From 0 to 1; other values are clamped, NaN is ignored.
        #[serde(with = "exact")]
        fraction: f64,
    },
    /// The trial will not be started again, and did not end by itself. [`Event::Ended`] follows.
    EarlyExit {
        /// Id of the trial.
        request_id: RequestId,
        /// Why it is not started again.
        reason: ExitReason,
    },
    /// The trial has ended and holds no resources any more.
    Ended {
        /// Id of the trial.
        request_id: RequestId,
    },
    /// Trials that may start now are to be created, after [`crate::Search::owes_trials`].
    More {
        /// Trials to create at most. It is part of the event, so that a replay creates the same.
        most: u32,
    },
    /// The experiment is being stopped: from now on the search creates and stops nothing, and shuts down when its
    /// trials have ended.
    Close,
}

/// Why a trial ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// It failed and may not be restarted any more, or could not be created.
    Errored,
    /// A user killed or canceled it.
    Canceled,
    /// Its code reported that these hyperparameters cannot be trained.
    InvalidHyperparameters,
}

/// Something the search asks for. The order of actions matters: stops, then creates, then the shutdown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Create a trial and start it when there are slots.
    Create {
        /// Identifies the trial in later events. A version 4 UUID from the search's random stream.
        request_id: RequestId,
        /// Its hyperparameters, nested like the space.
        hparams: Map<String, Value>,
        /// Seed for the trial's own code, in `[0, 2^31)`.
        seed: u32,
    },
    /// Stop a trial, which is not needed any more. Its end is reported with [`Event::Ended`] as usual.
    Stop {
        /// Id of the trial.
        request_id: RequestId,
        /// Why it is not needed any more.
        reason: StopReason,
    },
    /// The search is over and takes no more events. Trials that still live are to be stopped; this happens only if the
    /// search failed because no trial reports the searcher metric.
    Shutdown(Outcome),
}

/// Why a search needs a trial no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It was trained as long as the search trains any trial.
    FullyTrained,
    /// Its result is not among the best of those trained as long.
    NotAmongBest,
}

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At least one trial ended without an early exit.
    Completed,
    /// Every trial was canceled.
    Canceled,
    /// Every trial failed, had invalid hyperparameters, or never reported the searcher metric to a search that
    /// decides by it.
    Failed,
}
