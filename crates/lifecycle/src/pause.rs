//! How far the attempts of a task are apart that follow others which ended for a reason of their places: a host that was
//! lost, an image that could not be pulled, a full disk. Without a pause they would be repeated as fast as they fail, on a
//! place that may heal later. What the code of a task does wrong leads to no pause: its trial's `max_restarts` bounds it.
//!
//! The first failure in a row costs nothing, because most are the only one; and a pause counts from when the attempt was
//! placed, so that one that ran for as long costs nothing either.

use crate::allocation::{AllocationExit, Blame};
use crate::task::MAX_LOSSES;

const SECOND: i64 = 1_000_000;
/// From one attempt to the next after one failure in a row, after two, and so on, microseconds; the last one is that of all
/// further ones.
const PAUSES: [i64; 4] = [0, 5 * SECOND, 15 * SECOND, 60 * SECOND];
/// What ran for so long, microseconds, was not kept from running by what had happened before.
const STEADY: i64 = 600 * SECOND;

/// How an attempt ended, as far as its place may be the cause.
#[derive(Debug, Clone, Copy)]
pub struct EndedAttempt<'a> {
    /// What its end means for its task.
    pub exit: &'a AllocationExit,
    /// Whether a container of it could not be started, for a reason of its host.
    pub start_failed: bool,
    /// How long its code ran, microseconds; 0 = it never did.
    pub ran: i64,
}

impl EndedAttempt<'_> {
    /// Whether its place kept it from going on. What was ordered, such as the stop of an agent, is no such failure.
    pub fn is_failure_of_place(self) -> bool {
        match self.exit {
            AllocationExit::Infrastructure { blame, .. } => *blame == Blame::Possible,
            AllocationExit::Failed { .. } => self.start_failed,
            AllocationExit::Completed | AllocationExit::Released => false,
        }
    }

    /// How many attempts of a trial in a row ended like this, now that this one has; `before` = until then. It counts to
    /// [`MAX_LOSSES`] and no further: nothing depends on more. Any other end, and an attempt that ran for ten minutes,
    /// starts the count anew.
    pub fn in_a_row(self, before: u32) -> u32 {
        let before = if self.ran >= STEADY { 0 } else { before };
        match self.exit {
            _ if self.is_failure_of_place() => before.saturating_add(1).min(MAX_LOSSES),
            AllocationExit::Infrastructure { .. } => before,
            AllocationExit::Completed
            | AllocationExit::Released
            | AllocationExit::Failed { .. } => 0,
        }
    }

    /// How long after it was placed the next attempt may start, microseconds; `in_a_row` = how many attempts ended like
    /// this, this one included.
    pub fn pause(self, in_a_row: u32) -> i64 {
        let known = usize::try_from(in_a_row).unwrap_or(usize::MAX);
        match known.checked_sub(1) {
            Some(number) if self.is_failure_of_place() => PAUSES[number.min(PAUSES.len() - 1)],
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(blame: Blame) -> AllocationExit {
        let reason = "the container was lost".to_owned();
        AllocationExit::Infrastructure { reason, blame }
    }

    fn ended(exit: &AllocationExit, start_failed: bool, ran: i64) -> EndedAttempt<'_> {
        EndedAttempt {
            exit,
            start_failed,
            ran,
        }
    }

    #[test]
    fn pauses_grow_with_the_failures_in_a_row_and_are_bounded() {
        let exit = lost(Blame::Possible);
        let (mut in_a_row, mut pauses) = (0, Vec::new());
        for _ in 0..7 {
            let attempt = ended(&exit, false, SECOND);
            in_a_row = attempt.in_a_row(in_a_row);
            pauses.push(attempt.pause(in_a_row) / SECOND);
        }
        assert_eq!(pauses, [0, 5, 15, 60, 60, 60, 60]);
        assert_eq!(in_a_row, MAX_LOSSES);
    }

    #[test]
    fn what_could_not_be_started_pauses_and_code_that_fails_does_not() {
        let reason = "no space left on device".to_owned();
        let failed = AllocationExit::Failed { reason };
        let unstarted = ended(&failed, true, 0);
        assert_eq!((unstarted.in_a_row(1), unstarted.pause(2)), (2, 5 * SECOND));
        let code = ended(&failed, false, SECOND);
        assert_eq!((code.in_a_row(3), code.pause(3)), (0, 0));
    }

    #[test]
    fn an_order_neither_counts_nor_pauses_and_a_release_starts_anew() {
        let ordered = lost(Blame::Excluded);
        let stopped = ended(&ordered, false, SECOND);
        assert_eq!((stopped.in_a_row(3), stopped.pause(3)), (3, 0));
        let released = ended(&AllocationExit::Released, false, SECOND);
        assert_eq!((released.in_a_row(3), released.pause(0)), (0, 0));
    }

    #[test]
    fn an_attempt_that_ran_for_long_is_the_first_of_a_row() {
        let exit = lost(Blame::Possible);
        assert_eq!(ended(&exit, false, STEADY).in_a_row(4), 1);
        assert_eq!(ended(&exit, false, STEADY - 1).in_a_row(4), 5);
    }
}
