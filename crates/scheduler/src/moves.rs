//! Moves of jobs in the queue: directly ahead of, or directly behind, another job: `docs/contract/scheduling.md`, "Moves".
//!
//! Jobs of one priority are ordered by position, which is the time of submission until a user moves the job. A moved
//! job gets a position between its new neighbours. If none is left between them, the jobs ahead of the gap are pushed a
//! little earlier: never later, because a position in the future would put a job behind one that is submitted next. A
//! pushed job keeps its position among the others, so it does not count as moved.

use std::fmt;

use det_ids::{JobId, Micros, PriorityOrder};

/// Distance in microseconds between jobs that are pushed; it allows some twenty more moves to the same position.
const STEP: i64 = 1_000_000;

/// A job in its pool's queue, with what determines its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// Id of the job that the entry is of.
    pub job_id: JobId,
    /// Priority of the job, 1 to 99; the pool's order decides which goes first.
    pub priority: u8,
    /// When the job was submitted.
    pub submitted_at: Micros,
    /// Position on the scale of submission times; `None` = its submission: see [`crate::Job::position`].
    pub position: Option<i64>,
    /// Whether a user has moved it: see [`crate::Job::moved`].
    pub moved: bool,
}

impl QueueEntry {
    /// What jobs are sorted by in a pool with this order of priorities; smaller is earlier.
    pub fn key(&self, order: PriorityOrder) -> (i64, i64, Micros, &JobId) {
        (
            order.rank(self.priority),
            self.effective_position(),
            self.submitted_at,
            &self.job_id,
        )
    }

    fn effective_position(&self) -> i64 {
        self.position.unwrap_or(self.submitted_at.0)
    }
}

/// The side of the other job that a job is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Served directly before it.
    Ahead,
    /// Served directly after it.
    Behind,
}

/// Why a job cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveError {
    /// The job to be moved is not in this queue.
    UnknownJob(JobId),
    /// The job to move it to is not in this queue.
    UnknownAnchor(JobId),
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::UnknownJob(job) | Self::UnknownAnchor(job)) = self;
        write!(f, "job \"{job}\" is not in the queue of this resource pool")
    }
}

impl std::error::Error for MoveError {}

/// Moves a job to one side of another; returns the new entry of every job that changes: the moved one, and those that
/// were pushed for it. The moved job takes the other's priority. Nothing changes if it is in that place already.
///
/// `queue` holds all jobs of the pool, in any order; `order` is the pool's [`crate::PoolSettings::priority_order`].
///
/// # Errors
/// One of the two is not in the queue.
pub fn move_job(
    queue: &[QueueEntry],
    job: &JobId,
    anchor: &JobId,
    side: Side,
    order: PriorityOrder,
) -> Result<Vec<QueueEntry>, MoveError> {
    let find = |id: &JobId| queue.iter().find(|entry| entry.job_id == *id);
    let moved = find(job).ok_or_else(|| MoveError::UnknownJob(job.clone()))?;
    let priority = find(anchor)
        .ok_or_else(|| MoveError::UnknownAnchor(anchor.clone()))?
        .priority;
    if job == anchor || is_neighbour(queue, job, anchor, side, order) {
        return Ok(Vec::new());
    }
    let mut class: Vec<&QueueEntry> = queue
        .iter()
        .filter(|entry| entry.priority == priority && entry.job_id != *job)
        .collect();
    class.sort_by_key(|entry| entry.key(order));
    let anchor = class
        .iter()
        .position(|entry| entry.job_id == *anchor)
        .expect("the anchor is another job of this priority");
    // The index of the job before which it is inserted.
    let position = match side {
        Side::Ahead => anchor,
        Side::Behind => anchor + 1,
    };
    let (before, after) = class.split_at(position);
    let (position, pushed) = insert(before, after.first().copied());
    let mut changed = vec![QueueEntry {
        priority,
        position: Some(position),
        moved: true,
        ..moved.clone()
    }];
    changed.extend(pushed);
    Ok(changed)
}

/// Whether the job is the anchor's neighbour on that side, in the whole queue.
fn is_neighbour(
    queue: &[QueueEntry],
    job: &JobId,
    anchor: &JobId,
    side: Side,
    order: PriorityOrder,
) -> bool {
    let mut in_order: Vec<&QueueEntry> = queue.iter().collect();
    in_order.sort_by_key(|entry| entry.key(order));
    in_order.windows(2).any(|pair| {
        let (first, second) = (&pair[0].job_id, &pair[1].job_id);
        match side {
            Side::Ahead => first == job && second == anchor,
            Side::Behind => first == anchor && second == job,
        }
    })
}

/// A position behind all of `before` and ahead of `after`, and the jobs whose positions are moved earlier for it.
fn insert(before: &[&QueueEntry], after: Option<&QueueEntry>) -> (i64, Vec<QueueEntry>) {
    let last = before.last().map(|entry| entry.effective_position());
    let next = after.map(QueueEntry::effective_position);
    let position = match (last, next) {
        (None, None) => 0,
        (None, Some(next)) => next.saturating_sub(STEP),
        (Some(last), None) => last.saturating_add(1),
        (Some(last), Some(next)) if next.saturating_sub(last) >= 2 => last + (next - last) / 2,
        (Some(_), Some(next)) => next.saturating_sub(STEP),
    };
    let mut pushed = Vec::new();
    let mut limit = position;
    for entry in before.iter().rev() {
        if entry.effective_position() < limit {
            break;
        }
        limit = limit.saturating_sub(STEP);
        pushed.push(QueueEntry {
            position: Some(limit),
            ..(*entry).clone()
        });
    }
    (position, pushed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::PriorityOrder::{HigherFirst, LowerFirst};
    use super::*;

    fn entry(id: &str, priority: u8, submitted_at: i64) -> QueueEntry {
        QueueEntry {
            job_id: JobId(id.into()),
            priority,
            submitted_at: Micros(submitted_at),
            position: None,
            moved: false,
        }
    }

    fn order_by(queue: &[QueueEntry], order: PriorityOrder) -> Vec<String> {
        let mut queue: Vec<&QueueEntry> = queue.iter().collect();
        queue.sort_by_key(|entry| entry.key(order));
        queue.iter().map(|s| s.job_id.0.clone()).collect()
    }

    fn order(queue: &[QueueEntry]) -> Vec<String> {
        order_by(queue, LowerFirst)
    }

    fn moved(queue: &mut [QueueEntry], job: &str, anchor: &str, side: Side) -> usize {
        moved_by(queue, job, anchor, side, LowerFirst)
    }

    fn moved_by(
        queue: &mut [QueueEntry],
        job: &str,
        anchor: &str,
        side: Side,
        order: PriorityOrder,
    ) -> usize {
        let (job, anchor) = (JobId(job.into()), JobId(anchor.into()));
        let changes = move_job(queue, &job, &anchor, side, order).unwrap();
        let number = changes.len();
        for change in changes {
            let position = queue.iter_mut().find(|s| s.job_id == change.job_id);
            *position.unwrap() = change;
        }
        number
    }

    fn five() -> Vec<QueueEntry> {
        let ids = ["a", "b", "c", "d", "e"];
        ids.iter()
            .zip(1..)
            .map(|(id, at)| entry(id, 42, at * 10))
            .collect()
    }

    #[test]
    fn a_job_goes_directly_ahead_of_or_behind_another() {
        let mut queue = five();
        assert_eq!(moved(&mut queue, "e", "b", Side::Ahead), 1);
        assert_eq!(order(&queue), ["a", "e", "b", "c", "d"]);
        assert_eq!(moved(&mut queue, "a", "d", Side::Behind), 1);
        assert_eq!(order(&queue), ["e", "b", "c", "d", "a"]);
        assert_eq!(moved(&mut queue, "c", "e", Side::Ahead), 1);
        assert_eq!(order(&queue), ["c", "e", "b", "d", "a"]);
    }

    #[test]
    fn it_takes_the_priority_of_the_job_it_is_moved_to() {
        let mut queue = five();
        queue.push(entry("urgent", 1, 60));
        moved(&mut queue, "c", "urgent", Side::Behind);
        assert_eq!(order(&queue), ["urgent", "c", "a", "b", "d", "e"]);
        assert_eq!(queue[2].priority, 1);
        moved(&mut queue, "urgent", "e", Side::Behind);
        assert_eq!(order(&queue), ["c", "a", "b", "d", "e", "urgent"]);
    }

    #[test]
    fn where_the_higher_number_goes_first_neighbours_are_those_of_that_order() {
        let mut queue = five();
        queue.push(entry("urgent", 90, 60));
        queue.push(entry("idle", 1, 5));
        let before = ["urgent", "a", "b", "c", "d", "e", "idle"];
        assert_eq!(order_by(&queue, HigherFirst), before);
        for (job, anchor, side) in [("urgent", "a", Side::Ahead), ("idle", "e", Side::Behind)] {
            assert_eq!(
                moved_by(&mut queue, job, anchor, side, HigherFirst),
                0,
                "{job} {anchor}"
            );
        }
        moved_by(&mut queue, "c", "urgent", Side::Ahead, HigherFirst);
        assert_eq!(order_by(&queue, HigherFirst)[..2], ["c", "urgent"]);
        moved_by(&mut queue, "urgent", "idle", Side::Behind, HigherFirst);
        assert_eq!(
            order_by(&queue, HigherFirst),
            ["c", "a", "b", "d", "e", "idle", "urgent"]
        );
    }

    #[test]
    fn nothing_changes_if_it_is_there_already() {
        let mut queue = five();
        queue.push(entry("urgent", 1, 60));
        for (job, anchor, side) in [
            ("b", "b", Side::Ahead),
            ("b", "c", Side::Ahead),
            ("c", "b", Side::Behind),
            ("urgent", "a", Side::Ahead),
        ] {
            assert_eq!(moved(&mut queue, job, anchor, side), 0, "{job} {anchor}");
        }
    }

    #[test]
    fn an_unknown_job_is_named_in_the_error() {
        let queue = five();
        let job = |id: &str| JobId(id.into());
        assert_eq!(
            move_job(&queue, &job("x"), &job("a"), Side::Ahead, LowerFirst),
            Err(MoveError::UnknownJob(job("x")))
        );
        let refused = move_job(&queue, &job("a"), &job("y"), Side::Ahead, LowerFirst).unwrap_err();
        assert_eq!(refused, MoveError::UnknownAnchor(job("y")));
        assert!(refused.to_string().contains("\"y\""));
    }

    #[test]
    fn without_a_free_position_the_jobs_ahead_are_pushed_and_do_not_count_as_moved() {
        let mut queue: Vec<QueueEntry> = ["a", "b", "c"]
            .iter()
            .map(|id| entry(id, 42, 1_000))
            .collect();
        assert_eq!(moved(&mut queue, "c", "b", Side::Ahead), 2);
        assert_eq!(order(&queue), ["a", "c", "b"]);
        assert_eq!(
            queue.iter().map(|s| s.moved).collect::<Vec<_>>(),
            [false, false, true]
        );
    }

    #[test]
    fn any_number_of_moves_to_the_same_place_works() {
        let mut queue = five();
        for round in 0..500 {
            let (job, anchor) = if round % 2 == 0 {
                ("d", "e")
            } else {
                ("e", "d")
            };
            moved(&mut queue, job, anchor, Side::Ahead);
            assert_eq!(order(&queue)[..3], ["a", "b", "c"]);
            assert_eq!(order(&queue)[3], job);
        }
    }

    proptest! {
        #[test]
        fn the_job_lands_beside_the_other_and_all_else_keeps_its_order(
            jobs in proptest::collection::vec((1u8..4, 0i64..6), 2..9),
            moves in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..30),
        ) {
            let mut queue: Vec<QueueEntry> = jobs
                .iter()
                .enumerate()
                .map(|(number, (priority, at))| entry(&format!("j{number}"), *priority, *at))
                .collect();
            for (job, anchor, ahead) in moves {
                let job = queue[job.index(queue.len())].job_id.0.clone();
                let anchor = queue[anchor.index(queue.len())].job_id.0.clone();
                let side = if ahead { Side::Ahead } else { Side::Behind };
                let mut expected = order(&queue);
                let latest = queue.iter().map(QueueEntry::effective_position).max().unwrap();
                if job != anchor {
                    expected.retain(|id| *id != job);
                    let at = expected.iter().position(|id| *id == anchor).unwrap();
                    expected.insert(if ahead { at } else { at + 1 }, job.clone());
                }
                moved(&mut queue, &job, &anchor, side);
                prop_assert_eq!(order(&queue), expected);
                // Never far into the future, where the next submission would be ahead of it.
                let now = queue.iter().map(QueueEntry::effective_position).max().unwrap();
                prop_assert!(now <= latest + 1);
            }
        }
    }
}
