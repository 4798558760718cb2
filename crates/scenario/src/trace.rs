//! Drives a search event by event: what happens to its trials, and the actions that it returns.
//!
//! A [`Trace`] names a configuration and a list of [`TraceEvent`]s, with what is expected of the search after each. It
//! is a text in YAML or JSON that users write and [`read_trace()`] reads; [`play_trace()`] passes the events to the
//! real search ([`det_searcher::Search`]) and returns a [`TraceReport`]. Trials are identified by their numbers, 1 for
//! the first one created.

mod play;
mod read;

use std::collections::BTreeMap;
use std::fmt;

use det_ids::RequestId;
use det_searcher::{ExitReason, Outcome};
use serde::Serialize;
use serde_json::{Map, Value};

pub use play::{completed, play_trace};
pub use read::{config_file_of, read_trace};

/// A search and what happens to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// What it shows; may be empty.
    pub name: String,
    /// More about it; may be empty.
    pub about: String,
    /// The experiment's configuration.
    pub config: TraceConfig,
    /// The experiment seed; `None` = the configuration's, else 0.
    pub seed: Option<u32>,
    /// Whether the master restarts before every event.
    pub restarts: bool,
    /// What is expected when the search starts.
    pub start: Option<ActionExpectation>,
    /// The events that the search receives, in order.
    pub events: Vec<TraceStep>,
}

/// The configuration whose search is driven.
#[derive(Debug, Clone, PartialEq)]
pub enum TraceConfig {
    /// It is part of the trace.
    Inline(Value),
    /// A file, as the trace names it.
    File(String),
}

/// One event with what is expected of the search.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStep {
    /// Its path in the document, for error messages: `events[3]`.
    pub path: String,
    /// Its line in the text, from 1; `None` if it was not read from a text.
    pub line: Option<u32>,
    /// Note for users; may be empty.
    pub note: String,
    /// The event that the search receives.
    pub event: TraceEvent,
    /// What is expected; `None` = nothing is compared.
    pub expect: Option<ActionExpectation>,
}

/// Something that happens to a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TraceEvent {
    /// A trial reports a validation.
    Report {
        /// Number of the trial within the search, from 1.
        trial: usize,
        /// The searcher's metric; `None` = the report does not have it, or no number.
        metric: Option<f64>,
        /// The searcher's time metric; `None` = the report does not have it.
        time: Option<f64>,
    },
    /// A trial reports its progress.
    Progress {
        /// Number of the trial within the search, from 1.
        trial: usize,
        /// How far the trial is, from 0 to 1.
        fraction: f64,
    },
    /// A trial will not be started again.
    Exit {
        /// Number of the trial within the search, from 1.
        trial: usize,
        /// Why it is not started again.
        reason: ExitReason,
    },
    /// A trial has ended, and its search is notified.
    End {
        /// Number of the trial within the search, from 1.
        trial: usize,
    },
    /// The experiment is being stopped.
    Close,
    /// The master stops and starts again: the search is stored and restored.
    Restart,
}

/// What is expected of the search's actions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ActionExpectation {
    /// Numbers of the trials created.
    pub create: Vec<usize>,
    /// Numbers of the trials stopped.
    pub stop: Vec<usize>,
    /// How the search ends with it.
    pub shutdown: Option<Outcome>,
    /// Its progress afterwards; `None` = any.
    pub progress: Option<f64>,
    /// Hyperparameters of trials, by number and dotted path; others may have any value.
    pub hyperparameters: BTreeMap<usize, Map<String, Value>>,
}

/// The result of playing a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceReport {
    /// Name of the trace; may be empty.
    pub name: String,
    /// The experiment seed that the search was made with.
    pub seed: u32,
    /// The start and then each event, with the actions of the search.
    pub steps: Vec<StepReport>,
    /// The trials in the order of creation.
    pub trials: Vec<TracedTrial>,
    /// How the search ended; `None` = it continues.
    pub outcome: Option<Outcome>,
    /// Expectations that were not met.
    pub mismatches: Vec<TraceMismatch>,
}

/// An event and the actions that the search returned for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepReport {
    /// What happened, as text: `trial 2 reports 0.95 at 20`.
    pub event: String,
    /// The trace's note about it; may be empty.
    pub note: String,
    /// What the search asks for, in order.
    pub actions: Vec<SearchAction>,
    /// Its progress now, 0 to 1.
    pub progress: f64,
}

/// An action that the search asks for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchAction {
    /// Create a trial.
    Create {
        /// Number of the trial within the search, from 1.
        trial: usize,
        /// Hyperparameters that the search chose for the trial.
        hyperparameters: Map<String, Value>,
    },
    /// Stop a trial.
    Stop {
        /// Number of the trial within the search, from 1.
        trial: usize,
    },
    /// Create no more trials: the search is over, with this outcome.
    Shutdown(Outcome),
}

/// A trial of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TracedTrial {
    /// Number of the trial within the search, from 1.
    pub trial: usize,
    /// Its id, which depends only on the seed of the search.
    pub request_id: RequestId,
    /// Hyperparameters that the search chose for the trial.
    pub hyperparameters: Map<String, Value>,
    /// Seed that its code is given for its random numbers.
    pub seed: u32,
    /// Its state in the search: `running`, `stopping`, `exiting` or `ended`.
    pub state: &'static str,
}

/// An expectation that was not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceMismatch {
    /// Its path in the document: `events[3].expect`.
    pub path: String,
    /// Line of the event; `None` if it was not read from a text.
    pub line: Option<u32>,
    /// The event that the search received, in words.
    pub event: String,
    /// What was expected and what was found.
    pub message: String,
}

impl fmt::Display for TraceMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{}: {}: {}", self.path, self.event, self.message)
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report {
                trial,
                metric,
                time,
            } => {
                match metric {
                    Some(metric) => write!(f, "trial {trial} reports {metric}")?,
                    None => write!(f, "trial {trial} reports without the metric")?,
                }
                match time {
                    Some(time) => write!(f, " at {time}"),
                    None => Ok(()),
                }
            }
            Self::Progress { trial, fraction } => {
                write!(f, "trial {trial} reports that it is at {fraction}")
            }
            Self::Exit { trial, reason } => {
                let why = match reason {
                    ExitReason::Errored => "has failed for good",
                    ExitReason::Canceled => "is canceled",
                    ExitReason::InvalidHyperparameters => "has invalid hyperparameters",
                };
                write!(f, "trial {trial} {why}")
            }
            Self::End { trial } => write!(f, "trial {trial} ends"),
            Self::Close => f.write_str("the experiment is being stopped"),
            Self::Restart => f.write_str("the master restarts"),
        }
    }
}

/// The name of an outcome.
pub(crate) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Canceled => "canceled",
        Outcome::Failed => "failed",
    }
}

impl fmt::Display for SearchAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create {
                trial,
                hyperparameters,
            } => {
                write!(f, "create trial {trial}")?;
                if hyperparameters.is_empty() {
                    Ok(())
                } else {
                    write!(f, " {}", Value::Object(hyperparameters.clone()))
                }
            }
            Self::Stop { trial } => write!(f, "stop trial {trial}"),
            Self::Shutdown(outcome) => write!(f, "shut down: {}", outcome_word(*outcome)),
        }
    }
}
