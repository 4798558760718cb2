//! What the manager has to do next.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use tokio::time::Instant;

/// What the manager has to do next. Everything in it may be done twice.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Nodes whose places are to be looked at again.
    pub(crate) nodes: BTreeSet<String>,
    /// Places whose rows are to be compared again.
    pub(crate) places: BTreeSet<PlaceId>,
    /// Containers whose state or end is to be looked at again.
    pub(crate) containers: BTreeSet<ContainerId>,
    /// What was observed and is not stored yet, in order.
    pub(crate) reports: Vec<(PlaceId, ContainerId, ObservedState)>,
    /// Lines for the logs of containers' tasks.
    pub(crate) notes: Vec<(PlaceId, ContainerId, String)>,
    /// Allocations whose placeholders cannot get nodes, or cannot exist, with the reason.
    pub(crate) ungrown: Vec<(AllocationId, String)>,
    /// When something of a container is due.
    due: BTreeMap<ContainerId, Instant>,
    /// The same, the earliest first.
    order: BTreeSet<(Instant, ContainerId)>,
    /// When what the core refused is tried again.
    pub(crate) retry_at: Option<Instant>,
}

impl Agenda {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.places.is_empty()
            && self.containers.is_empty()
            && self.reports.is_empty()
            && self.notes.is_empty()
    }

    /// Something was observed of a container, or is held to be.
    pub(crate) fn report(&mut self, place: &PlaceId, id: &ContainerId, observed: ObservedState) {
        self.reports.push((place.clone(), id.clone(), observed));
    }

    /// A container is to be looked at then, or earlier if that was wanted before.
    pub(crate) fn look_at(&mut self, id: &ContainerId, at: Instant) {
        let before = self.due.get(id).copied();
        if before.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, id.clone()));
        }
        self.due.insert(id.clone(), at);
        self.order.insert((at, id.clone()));
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let containers = self.order.first().map(|(at, _)| *at);
        [containers, self.retry_at].into_iter().flatten().min()
    }

    /// Has what is due by now looked at.
    pub(crate) fn come_due(&mut self) {
        let now = Instant::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        while self.order.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, id)) = self.order.pop_first() {
                self.due.remove(&id);
                self.containers.insert(id);
            }
        }
    }
}
