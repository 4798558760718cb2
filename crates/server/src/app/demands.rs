//! What jobs demand of places besides slots, as the drivers read it in configurations.

use std::sync::Arc;

use det_config::container::Environment;
use det_rm::{PlacementRequest, ReadDemands};
use serde_json::Value;

/// What the drivers read in configurations of jobs. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Demands {
    /// One for each kind of manager whose places can be demanded something of, in the order in which they are asked.
    readers: Vec<Arc<dyn ReadDemands>>,
}

impl Demands {
    /// With what another driver reads.
    pub(crate) fn with(mut self, reader: impl ReadDemands) -> Self {
        self.readers.push(Arc::new(reader));
        self
    }

    /// What containers with this environment demand, as the first driver that finds any reads it; `None` = nothing. That does
    /// not depend on the pool of their job: a job keeps its demands when it moves to the pool of another manager.
    pub(crate) fn of(&self, environment: &Environment) -> Option<Value> {
        let request = PlacementRequest {
            pod_spec: environment.pod_spec.as_ref(),
        };
        let mut readers = self.readers.iter();
        readers.find_map(|reader| reader.demands(request))
    }
}
