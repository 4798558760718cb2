//! What of a node's slots its places can have: what it offers, less what others hold.

use det_ids::{ContainerId, PlaceId};
use det_pods::{ClaimFacts, NodeFacts, SlotResource, label_value};

use crate::books::{Books, ObjectKey, Pod};

/// What slots are on a node.
#[derive(Clone, Copy)]
pub(crate) struct Occupancy<'a> {
    pub(crate) books: &'a Books,
    pub(crate) node: &'a NodeFacts,
    pub(crate) slots: &'a SlotResource,
}

impl Occupancy<'_> {
    /// What the node offers, in the unit of the resource.
    pub(crate) fn offered(self) -> u64 {
        let Self { books, node, slots } = self;
        match slots {
            SlotResource::Devices(class) => books.devices.offered(&node.name, class.resource()),
            SlotResource::Extended(_) | SlotResource::Cpu { .. } => {
                node.allocatable.get(slots.name()).copied().unwrap_or(0)
            }
        }
    }

    /// What others than the containers of a place hold: pods that are not ours, and containers of the node's places in other
    /// pools, but for those whose slots are something else (`differs`). Placeholders hold nothing: they give way. In the
    /// unit of the resource.
    pub(crate) fn foreign(self, place: &PlaceId, differs: impl Fn(&PlaceId) -> bool) -> u64 {
        let Self { books, node, slots } = self;
        let node = node.name.as_str();
        let strangers = match slots {
            SlotResource::Devices(class) => {
                let is_own =
                    |key: &ObjectKey, claim: &ClaimFacts| is_of_slots(self, &differs, key, claim);
                books.devices.taken(node, class.resource(), is_own)
            }
            SlotResource::Extended(_) | SlotResource::Cpu { .. } => self.requested(&differs),
        };
        let here = books.shares(books.held.on_node(node), books.starting.on_node(node));
        let elsewhere = here.filter(|share| share.place != place && !differs(share.place));
        let counts = elsewhere.map(|share| u64::from(share.slots));
        let counts = counts.fold(0, u64::saturating_add);
        strangers.saturating_add(counts.saturating_mul(slots.per_slot()))
    }

    /// What pods request beside the slots of containers of ours.
    fn requested(self, differs: impl Fn(&PlaceId) -> bool) -> u64 {
        let Self { books, node, slots } = self;
        let node = node.name.as_str();
        let holds = |pod: &Pod| pod.takes.get(slots.name()).copied().unwrap_or(0);
        let strangers = books.on(node).filter(|pod| {
            pod.container.is_none() && pod.placeholder.is_none() && !is_expected(books, pod)
        });
        let strangers = strangers.map(holds);
        // What pods of ours hold beside their slots, in containers of the user's own.
        let beside = books.on(node).filter_map(|pod| {
            let held = books.held.get(pod.container.as_ref()?)?;
            let own = if differs(&held.place) { 0 } else { held.slots };
            let own = u64::from(own).saturating_mul(slots.per_slot());
            Some(holds(pod).saturating_sub(own))
        });
        strangers.chain(beside).fold(0, u64::saturating_add)
    }
}

/// Whether a pod is of a Job that is being made.
fn is_expected(books: &Books, pod: &Pod) -> bool {
    let job = pod.job.as_ref();
    job.is_some_and(|(job, _)| books.expected.contains(job))
}

/// Whether a claim is for the slots of a container on the node that counts: one that has not ended, of a place whose slots are
/// the same. What neither it nor a container is counted for would be given twice.
fn is_of_slots(
    occupancy: Occupancy<'_>,
    differs: impl Fn(&PlaceId) -> bool,
    key: &ObjectKey,
    claim: &ClaimFacts,
) -> bool {
    let Occupancy { books, node, .. } = occupancy;
    if !books.devices.is_own(claim) {
        return false;
    }
    let Some((name, uid)) = &claim.pod else {
        return false;
    };
    let at = ObjectKey {
        namespace: key.namespace.clone(),
        name: name.clone(),
    };
    let pod = books.pods.get(&at).filter(|pod| pod.uid == *uid);
    let its = pod.and_then(|pod| pod.container.as_ref());
    // Its pod or its Job may not have been seen yet: then it is of a container of its allocation that has no pod.
    let is_its = |container: &ContainerId| match its {
        Some(its) => its == container,
        None => {
            let of_claim = claim.allocation.as_deref();
            let allocation = books.allocation_of(container);
            let is_its = allocation.is_some_and(|it| of_claim == Some(&*label_value(it.as_str())));
            is_its && books.pod(container).is_none()
        }
    };
    let node = node.name.as_str();
    let mut here = books.shares(books.held.on_node(node), books.starting.on_node(node));
    here.any(|share| !differs(share.place) && is_its(share.container))
}
