//! What waits for a cluster to grow, in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::AllocationId;
use det_rm::{GrowthState, WaitingGang};
use tokio::sync::watch;

/// What waits in a [`TestCore`](crate::TestCore), and what was reported of it.
type Growth = (Vec<WaitingGang>, BTreeMap<AllocationId, GrowthState>);

/// The tasks of a [`TestCore`](crate::TestCore) that nodes are worth adding for. Cheap to clone.
#[derive(Clone)]
pub struct TestGrowth {
    growth: Arc<Mutex<Growth>>,
    pub(crate) changed: watch::Sender<()>,
    pub(crate) waits: watch::Sender<()>,
}

impl TestGrowth {
    /// `changed` wakes those who wait for the core.
    pub(crate) fn new(changed: watch::Sender<()>) -> Self {
        Self {
            growth: Arc::default(),
            changed,
            waits: watch::Sender::new(()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These tasks wait from now on.
    pub fn wait(&self, gangs: Vec<WaitingGang>) {
        self.lock().0 = gangs;
        self.waits.send_replace(());
    }

    /// How far growing is for a task, as was last reported; `None` = nothing was.
    pub fn of(&self, id: &AllocationId) -> Option<GrowthState> {
        self.lock().1.get(id).cloned()
    }
}
