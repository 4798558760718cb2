//! Allocations whose containers are started together: their objects are made when the specification of every container
//! has arrived, so that pods of a part of an allocation never exist.

use std::collections::BTreeMap;

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_pods::Member;
use det_rm::ContainerStart;

/// Containers that wait for the others of their allocation.
#[derive(Debug, Default)]
pub(crate) struct Gangs(BTreeMap<AllocationId, BTreeMap<u32, SpecifiedContainer>>);

/// A container whose specification has been given.
#[derive(Debug)]
struct SpecifiedContainer {
    place: PlaceId,
    node: String,
    start: ContainerStart,
}

/// An allocation that is complete.
#[derive(Debug)]
pub(crate) struct Complete {
    pub(crate) allocation: AllocationId,
    /// Its containers in the order of their ranks.
    pub(crate) members: Vec<Member>,
}

impl Gangs {
    /// Adds a container; gives its allocation when it was the last one.
    pub(crate) fn add(
        &mut self,
        place: PlaceId,
        node: String,
        start: ContainerStart,
    ) -> Option<Complete> {
        let allocation = start.spec.allocation_id.clone();
        let (rank, wanted) = (start.origin.member, start.origin.members);
        let waiting = self.0.entry(allocation.clone()).or_default();
        waiting.insert(rank, SpecifiedContainer { place, node, start });
        if waiting.len() < wanted {
            return None;
        }
        let members = self.0.remove(&allocation)?.into_values();
        let members =
            members.map(|SpecifiedContainer { place, node, start }| Member { start, place, node });
        Some(Complete {
            allocation,
            members: members.collect(),
        })
    }

    /// Takes a container away that is not to start any more; whether it waited here.
    pub(crate) fn remove(&mut self, container: &ContainerId) -> bool {
        let mut was_there = false;
        self.0.retain(|_, waiting| {
            waiting.retain(|_, it| {
                let is_it = it.start.spec.container_id == *container;
                was_there |= is_it;
                !is_it
            });
            !waiting.is_empty()
        });
        was_there
    }

    /// Lets go of what waits for a place that is served no more; it is ordered again when the place is back.
    pub(crate) fn remove_place(&mut self, place: &PlaceId) {
        self.0.retain(|_, waiting| {
            waiting.retain(|_, it| it.place != *place);
            !waiting.is_empty()
        });
    }
}
