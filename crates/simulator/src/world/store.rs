//! The store: what is committed, and what goes wrong with commits.

use std::collections::BTreeSet;

use det_ids::ExperimentId;
use det_invariants::Refusal;

use super::ChangeOrigin;
use super::scene::Scene;
use crate::master::{Memory, RefusalText, Topic, Tx};
use crate::mutant::Mutant;
use crate::rows::{Rows, Time};

/// What goes wrong with a commit.
#[derive(Debug, Clone, Copy)]
pub(super) enum CommitFault {
    /// It is answered with a failure.
    Fails { committed: bool },
    /// The master dies at the commit, and is started again after `down`.
    Crash { committed: bool, down: Time },
}

/// The rows, and the faults of the database that holds them.
#[derive(Default)]
pub(super) struct Store {
    pub(super) rows: Rows,
    /// Until when the database cannot be reached.
    pub(super) away_until: Time,
    /// Faults of commits to come, each with the number of commits until then.
    armed: Vec<(u32, CommitFault)>,
    /// Refused changes that were not checked yet.
    pub(super) refusals: Vec<Refusal>,
}

/// What came of a change.
pub(super) struct ChangeOutcome<T> {
    /// What the change gave, or why it was refused and undone.
    pub(super) outcome: Result<T, RefusalText>,
    /// What went wrong with its commit.
    pub(super) fault: Option<CommitFault>,
    /// Who is woken by it.
    pub(super) wakes: BTreeSet<Topic>,
    /// Searches in memory that it has changed.
    pub(super) searches: BTreeSet<ExperimentId>,
}

impl Store {
    /// Whether the database cannot be reached.
    pub(super) fn is_away(&self, now: Time) -> bool {
        now < self.away_until
    }

    /// The commit that comes after so many more goes wrong.
    pub(super) fn arm(&mut self, skip: u32, fault: CommitFault) {
        self.armed.push((skip + 1, fault));
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.armed.clear();
        self.away_until = 0;
    }

    fn due_fault(&mut self) -> Option<CommitFault> {
        for (wait, _) in &mut self.armed {
            *wait = wait.saturating_sub(1);
        }
        let due = self.armed.iter().position(|(wait, _)| *wait == 0)?;
        Some(self.armed.remove(due).1)
    }

    /// Makes a change: all of it or nothing. What may go wrong with a commit goes wrong here.
    pub(super) fn write<T>(
        &mut self,
        scene: &mut Scene,
        memory: &mut Memory,
        asked: ChangeOrigin,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, RefusalText>,
    ) -> ChangeOutcome<T> {
        let fault = self.due_fault();
        let backup =
            (fault.is_some() || asked == ChangeOrigin::FromOutside).then(|| self.rows.clone());
        let version = self.rows.version;
        let mut tx = Tx::new(&mut self.rows, memory, scene.now, scene.mutant());
        let outcome = change(&mut tx);
        let (wakes, searches) = (tx.wakes, tx.searches);
        if let Err(refused) = &outcome {
            let dirty = self.rows.version != version;
            if let Some(rows) = backup.filter(|_| !scene.is(Mutant::DirtyRefusal)) {
                self.rows = rows;
            }
            self.refusals.push(Refusal {
                what: refused.clone(),
                left_something: dirty && self.rows.version != version,
            });
        } else {
            let committed = match fault {
                None => true,
                Some(CommitFault::Fails { committed } | CommitFault::Crash { committed, .. }) => {
                    committed
                }
            };
            if committed {
                scene.counts.commits += 1;
            } else if let Some(rows) = backup {
                self.rows = rows;
                self.rows.version = version + 1;
            }
        }
        ChangeOutcome {
            outcome,
            fault,
            wakes,
            searches,
        }
    }
}
