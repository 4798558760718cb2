//! What the manager has to do next.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{ContainerId, PlaceId};
use det_lifecycle::container::Observed;
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
    pub(crate) reports: Vec<(PlaceId, ContainerId, Observed)>,
    /// Lines for the logs of containers' tasks.
    pub(crate) notes: Vec<(PlaceId, ContainerId, String)>,
    /// When something of a container is due.
    due: BTreeMap<ContainerId, Instant>,
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
    pub(crate) fn report(&mut self, place: &PlaceId, id: &ContainerId, observed: Observed) {
        self.reports.push((place.clone(), id.clone(), observed));
    }

    /// A container is to be looked at then, or earlier if that was wanted before.
    pub(crate) fn look_at(&mut self, id: &ContainerId, at: Instant) {
        let due = self.due.entry(id.clone()).or_insert(at);
        *due = at.min(*due);
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let containers = self.due.values().min().copied();
        [containers, self.retry_at].into_iter().flatten().min()
    }

    /// Has what is due by now looked at.
    pub(crate) fn come_due(&mut self) {
        let now = Instant::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let due: Vec<ContainerId> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.due.remove(&id);
            self.containers.insert(id);
        }
    }
}
