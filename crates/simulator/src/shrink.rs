//! Makes a failing history small (delta debugging: Zeller, Hildebrandt 2002, "Simplifying and Isolating
//! Failure-Inducing Input").

use crate::history::History;
use crate::mutant::Mutant;
use crate::world::play;

/// The smallest history found, by leaving steps out, that still breaks the same invariant. Gives the history as it is
/// if it breaks none.
pub fn shrink(history: &History, mutant: Option<Mutant>) -> History {
    let Some(found) = play(history, mutant).violation else {
        return history.clone();
    };
    let number = found.violation.number;
    let fails = |candidate: &History| {
        play(candidate, mutant)
            .violation
            .is_some_and(|f| f.violation.number == number)
    };
    let mut best = history.clone();
    let cut = History {
        steps: best
            .steps
            .iter()
            .filter(|(at, _)| *at <= found.at)
            .cloned()
            .collect(),
        ..best.clone()
    };
    if fails(&cut) {
        best = cut;
    }
    let mut piece = best.steps.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut smaller = false;
        while start < best.steps.len() {
            let mut candidate = best.clone();
            let end = (start + piece).min(candidate.steps.len());
            candidate.steps.drain(start..end);
            if fails(&candidate) {
                best = candidate;
                smaller = true;
            } else {
                start = end;
            }
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if !smaller {
            return best;
        }
    }
}
