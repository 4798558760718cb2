//! Invariants of a cluster, as checks of a plain snapshot.
//!
//! The invariants are numbered, and used by the simulator and by the server's tests; the chaos runner, which sees
//! databases and machines from outside, implements the first ten again in `chaos/invariants.py` with the same numbers:
//!
//! 1. Each slot and each port of a place is held by at most one live allocation, and sums are right.
//! 2. A trial has at most one live allocation, and has one exactly in the states that need one; an older run is fenced off.
//! 3. What was acknowledged is present, once, in order.
//! 4. Terminal states change only by continue and delete; counters only grow.
//! 5. A checkpoint is complete only with all files of its manifest.
//! 6. Nothing outlives its owner by more than two minutes.
//! 7. A search is the replay of its events; no trial is created twice.
//! 8. Database, master memory and places agree once nothing is in transit.
//! 9. A refused or failed request left nothing behind.
//! 10. Every waiting allocation has a reason that is true; every change has an event.
//! 11. A task of any kind has at most one live attempt, and exactly when its state has one; code that is never started
//!     again has started once; what cannot give its slots back is not asked to; nothing goes
//!     on that belongs to a task that is being killed.
//!
//! That everything live makes progress once faults stop (the second half of 4) can only be checked over time, by the
//! test that runs the cluster. Read [`Snapshot`], then [`check`] for one moment and [`Watch`] for one moment after
//! another.

mod facts;
mod moment;
mod watch;

pub use facts::{
    Allocation, Checkpoint, Container, Event, Experiment, Place, Process, Refusal, Report,
    ReportContent, Search, Snapshot, Task, Trial,
};
pub use moment::{MAX_UNWANTED_MICROS, check};
pub use watch::Watch;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant, 1 to 11; see the crate.
    pub number: u8,
    /// How the invariant is broken, with the ids of what breaks it.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(number: u8, what: impl Into<String>) -> Self {
        Self {
            number,
            what: what.into(),
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "invariant {}: {}", self.number, self.what)
    }
}
