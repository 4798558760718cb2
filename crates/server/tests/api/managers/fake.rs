//! A place of a manager that runs nothing, in a cluster: the double of every manager that is not the one of agents.

use std::ops::{Deref, DerefMut};

use det_ids::ContainerId;
use det_lifecycle::container::ObservedState;
pub(crate) use det_rm_contract::Task;
use det_server::app::places::Places;

use crate::support::Cluster;

/// A place of the manager.
pub(crate) struct FakePlace(det_rm_contract::FakePlace<Places>);

impl FakePlace {
    /// Joins with everything it holds.
    pub(crate) async fn join(
        cluster: &Cluster,
        id: &str,
        slots: u32,
        pool: &str,
        containers: Vec<(ContainerId, ObservedState)>,
    ) -> Self {
        let core = cluster.master().places.clone();
        Self(det_rm_contract::FakePlace::join(core, id, slots, pool, containers).await)
    }

    /// Is away from now on.
    pub(crate) async fn leave(self) {
        self.0.leave().await;
    }
}

impl Deref for FakePlace {
    type Target = det_rm_contract::FakePlace<Places>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for FakePlace {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
