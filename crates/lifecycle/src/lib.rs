//! State machines of experiments, trials, tasks and allocations, and what allocations know of their containers.
//!
//! Each file holds one: a state that carries just what is true in it, events, and one pure function that answers a pair
//! of them with the next state and the effects to carry out. Nothing here acts, stores, or knows the time. There is no
//! catch-all arm: a new state or event does not compile until every pair has its answer.
//!
//! How they hang together: an [`experiment`] has trials; a [`trial`] resumes, suspends and ends its [`task`]; a task that
//! wants to run has one live [`allocation`]. The end of an allocation is an event of its task, of which a trial's task
//! notifies its trial; the end of the last trial is an event of its experiment. Read [`trial::TrialState`] first.
//! What runs outside the cluster and only reports has a life of its own: [`unmanaged`].

#![allow(
    clippy::unnested_or_patterns,
    reason = "a pair a line reads as a table"
)]

pub mod allocation;
pub mod container;
pub mod experiment;
pub mod fallback;
pub mod log_findings;
pub mod object;
pub mod pause;
pub mod place;
pub mod record;
pub mod state_name;
#[cfg(test)]
mod table;
pub mod task;
pub mod trial;
pub mod unmanaged;

/// The answer to an event: the next state, and what to do once it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Step<S, E> {
    /// State to store; the same as before if only effects follow.
    pub state: S,
    /// What the caller is to carry out, in this order.
    pub effects: Vec<E>,
}

impl<S, E> Step<S, E> {
    pub(crate) fn to(state: S, effects: impl Into<Vec<E>>) -> Self {
        Self {
            state,
            effects: effects.into(),
        }
    }

    pub(crate) fn stay(state: S) -> Self {
        Self {
            state,
            effects: Vec::new(),
        }
    }
}

/// A request that does not fit the state. A refusal, not a failure: nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What was asked, of what, and what is allowed, for users.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}
