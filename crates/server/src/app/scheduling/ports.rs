//! The ports of what a pass places, from what live allocations have on the hosts of the cluster.

use std::collections::BTreeSet;

use det_ids::{AllocationId, PlaceId, TaskId};
use det_orchestrator::PassDecision;
use det_store::{StoreError, WriteTx, task_documents};
use det_taskspec::{GivenPorts, HostPorts, PortWish, TaskDetails};

use crate::app::configs::launched_config;
use crate::live::{self, LiveCache, host_ports, older_services};

/// What is known of ports before the transaction that stores a pass.
pub(super) struct PortPlan {
    ports: HostPorts,
    /// What is placed, and brings a service.
    services: Vec<(AllocationId, TaskId)>,
    /// Live services whose port is in their document only, with their places: an older master has placed them.
    older: Vec<(TaskId, Vec<PlaceId>)>,
}

impl PortPlan {
    /// The ports that can be given to the allocations which a pass has placed; `reserved` ones are never given.
    pub(super) fn new(cache: &LiveCache, decided: &PassDecision, reserved: &[u16]) -> Self {
        let placed = decided.placements.iter().map(|it| &it.allocation_id);
        let services = placed.filter_map(|id| {
            let row = live::allocation(cache, id)?;
            row.kind.service_ports()?;
            Some((id.clone(), row.task_id.clone()))
        });
        let services: Vec<(AllocationId, TaskId)> = services.collect();
        let older = if services.is_empty() {
            Vec::new()
        } else {
            older_services(cache)
        };
        Self {
            ports: host_ports(cache, reserved),
            services,
            older,
        }
    }

    /// Loads what documents of tasks have about ports. One that cannot be read has no wish: its specification cannot be made
    /// either, which ends its task with the reason, and the pass with everything else goes on.
    pub(super) async fn load(mut self, tx: &mut WriteTx) -> Result<HostPorts, StoreError> {
        for (task, places) in &self.older {
            let document = match task_documents::find(&mut tx.conn(), task).await {
                Err(StoreError::Corrupt { .. }) => None,
                found => found?,
            };
            let given = GivenPorts {
                step: None,
                service: document.and_then(|found| found.details.service_port()),
            };
            self.ports.note(given, places);
        }
        for (id, task) in self.services {
            let document = match task_documents::find(&mut tx.conn(), &task).await {
                Err(StoreError::Corrupt { .. }) => None,
                found => found?,
            };
            let wish = document.and_then(|document| {
                let config = launched_config(&document).ok()?;
                wish(
                    &document.details,
                    config.container_request().ports.into_iter().collect(),
                )
            });
            if let Some(wish) = wish {
                self.ports.wish(id, wish);
            }
        }
        Ok(self.ports)
    }
}

fn wish(details: &TaskDetails, own: BTreeSet<u16>) -> Option<PortWish> {
    Some(PortWish {
        ports: details.service_ports()?,
        first: details.service_port()?,
        own,
    })
}
