//! What one change leaves for others: trials of large experiments are created, and follow their experiment, some at a time,
//! so that no change keeps all others waiting for long.
//!
//! Which experiments have such trials is in the rows. Their numbers are kept here from the change that leaves some to the
//! one that has dealt with the last; after a start of the master all large experiments are looked at once.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::ExperimentId;
use det_orchestrator::Event;
use det_store::{WriteTx, experiments};

use super::{CORE, Orchestration};
use crate::error::{AppResult, ErrorKind};

/// Experiments with trials that are left over. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Backlog(Arc<Mutex<BTreeSet<ExperimentId>>>);

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ExperimentId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an experiment with the commit.
    pub(super) fn add(&self, tx: &mut WriteTx, id: ExperimentId) {
        let backlog = self.clone();
        tx.after_commit(move || {
            backlog.lock().insert(id);
        });
    }

    /// Takes the next experiment after this one, and begins again after the last.
    fn take_after(&self, id: ExperimentId) -> Option<ExperimentId> {
        let mut all = self.lock();
        let after = (Bound::Excluded(id), Bound::Unbounded);
        let next = all.range(after).next().or(all.first()).copied()?;
        all.take(&next)
    }
}

impl Orchestration {
    /// Notes all experiments that may have trials left over from before the start.
    pub(crate) async fn load_backlog(&self) -> AppResult<()> {
        let mut conn = self.context.store.read().await?;
        let least = i64::from(CORE.trials_at_once);
        let large = experiments::live_with_trials(&mut conn.conn(), least).await?;
        self.backlog.lock().extend(large);
        Ok(())
    }

    /// Deals with the trials that are left over, some of each experiment in turn, until there are none.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: the store is away, and the rest is still to be done.
    pub(crate) async fn catch_up(&self) -> AppResult<()> {
        let mut last = ExperimentId(0);
        while !self.context.shutdown.is_cancelled()
            && let Some(id) = self.backlog.take_after(last)
        {
            last = id;
            match self.commit(Event::CatchUp { id }).await {
                Ok(()) => {}
                Err(error) if error.kind == ErrorKind::Unavailable => {
                    self.backlog.lock().insert(id);
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(experiment.id = id.0, %error, cause = ?error.cause, "trials of an experiment are left over");
                }
            }
        }
        Ok(())
    }
}
