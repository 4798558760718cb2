//! What everything in the simulated cluster shares: time, what is still to happen, chance, and what was noted.

use std::collections::{BTreeMap, VecDeque};

use det_invariants::Violation;

use super::{Counts, Event, ViolationReport};
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::rows::Time;

/// Lines of what happened that are kept for a report.
const NOTES: usize = 60;

/// Time, chance, and what was noted.
pub(super) struct Scene {
    /// The present moment, in microseconds of simulated time.
    pub(super) now: Time,
    /// Chance of everything that has no stream of its own.
    pub(super) luck: Stream,
    /// How often what happened so far.
    pub(super) counts: Counts,
    /// The first thing that did not hold.
    pub(super) violation: Option<ViolationReport>,
    mutant: Option<Mutant>,
    /// What is still to happen; of the same moment what was planned first.
    queue: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    recent: VecDeque<String>,
}

impl Scene {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        Self {
            now: 0,
            luck: Stream::of(seed, "world"),
            counts: Counts::default(),
            violation: None,
            mutant,
            queue: BTreeMap::new(),
            sequence: 0,
            recent: VecDeque::new(),
        }
    }

    /// Something is to happen at a moment, or at once if that is over.
    pub(super) fn push(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    /// Something is to happen after some time.
    pub(super) fn after(&mut self, wait: Time, event: Event) {
        self.push(self.now + wait, event);
    }

    /// Takes what happens next, which makes its moment the present one; `None` at the end.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        self.counts.events += 1;
        Some(event)
    }

    /// Whether the history is played with this deliberate defect.
    pub(super) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The deliberate defect that the history is played with.
    pub(super) fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// Keeps a line of what happened, for the report of a violation.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.recent.len() == NOTES {
            self.recent.pop_front();
        }
        let line = format!("{:>12.3} {}", seconds(self.now), what());
        self.recent.push_back(line);
    }

    /// An invariant did not hold. The first violation counts.
    pub(super) fn violated(&mut self, violation: Violation) {
        if self.violation.is_none() {
            self.violation = Some(ViolationReport {
                at: self.now,
                violation,
                before: self.recent.iter().cloned().collect(),
            });
        }
    }
}

fn seconds(at: Time) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for readers")]
    let micros = at as f64;
    micros / 1e6
}
