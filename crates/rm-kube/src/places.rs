//! Nodes as places of the core.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::{ContainerId, InstanceId, PlaceId};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm::{Changes as _, Core, JoinedPlace, Lease as _, Order, PlaceView};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Settings;
use crate::messages::Message;
use crate::observing::Observer;
use crate::occupancy::Occupancy;

/// A place that is served: a node in a pool.
struct ServedPlace<C: Core> {
    node: String,
    /// Name of the pool that the node is in.
    pool: String,
    /// Identity of the node: another one of this name has another.
    uid: String,
    /// Its lease's number: a lease that was replaced by a newer one of ours has lost nothing.
    number: u64,
    slots: Slots,
    lease: C::Lease,
    view: PlaceView,
    /// Forwards changes of what is wanted of the place.
    following: JoinHandle<()>,
}

impl<C: Core> Drop for ServedPlace<C> {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// The slots of a node in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slots {
    all: u32,
    /// Used by what is not of the place, or kept from new pods.
    others: u32,
}

/// The places that are served.
pub(crate) struct Places<C: Core> {
    core: C,
    settings: Arc<Settings>,
    sender: mpsc::Sender<Message>,
    served: BTreeMap<PlaceId, ServedPlace<C>>,
    last_lease: u64,
}

/// What has become of a place.
pub(crate) enum Change<E> {
    /// It is served as it was.
    None,
    /// It has joined the cluster and takes work.
    Joined,
    /// It is served no more.
    Left,
    /// What is true of it now could not be stored.
    Failed(E),
}

impl<C: Core> Places<C> {
    pub(crate) fn new(core: C, settings: Arc<Settings>, sender: mpsc::Sender<Message>) -> Self {
        Self {
            core,
            settings,
            sender,
            served: BTreeMap::new(),
            last_lease: 0,
        }
    }

    /// Has the place that a node is in a pool joined, left, or joined again with other slots.
    pub(crate) async fn serve(
        &mut self,
        observer: &Observer,
        node: &str,
        pool: usize,
    ) -> Vec<(PlaceId, Change<C::Error>)> {
        let place = self.settings.place(node, pool);
        let facts = observer.books.nodes.get(node);
        let uid = facts.map_or("", |facts| facts.uid.as_str()).to_owned();
        let wanted = self.slots(observer, (node, pool), &place);
        let known = self.served.get(&place);
        let mut changes = Vec::new();
        match (known, wanted) {
            (None, None) => return changes,
            (Some(known), Some(slots)) if known.uid == uid && known.slots == slots => {
                return changes;
            }
            // What another node of this name had is not that of this one, and is left first.
            (Some(known), wanted) if wanted.is_none() || known.uid != uid => {
                changes.push((place.clone(), self.leave(&place).await));
            }
            _ => {}
        }
        if let Some(slots) = wanted {
            let joined = self.join(observer, &place, (node, pool), slots).await;
            changes.push((place, joined));
        }
        changes
    }

    /// How many slots a node has in a pool; `None` = it is not in it, or cannot run anything now.
    fn slots(
        &self,
        observer: &Observer,
        (node, pool): (&str, usize),
        place: &PlaceId,
    ) -> Option<Slots> {
        let books = &observer.books;
        let facts = books.nodes.get(node).filter(|facts| facts.ready)?;
        let nothing = serde_json::Value::Null;
        let spec = self.settings.pools.get(pool)?.pod_spec.as_ref();
        if !det_pods::admits(spec.unwrap_or(&nothing), facts) {
            return None;
        }
        let slots = self.settings.slots.of(&self.settings.pools[pool].name);
        let occupancy = Occupancy {
            books,
            node: facts,
            slots,
        };
        let offered = occupancy.offered();
        let all = det_pods::slots_of(offered, slots, 0);
        let differs = |other: &PlaceId| self.settings.differs(node, other, slots);
        let foreign = occupancy.foreign(place, differs);
        let free_of_others = det_pods::slots_of(offered, slots, foreign);
        // A node that an administrator or its own state keeps pods off takes nothing new.
        let takes_pods = facts.takes_pods() && !facts.labels.contains_key(&observer.drain_label);
        let usable = if takes_pods {
            free_of_others
        } else {
            books.used(place).min(free_of_others)
        };
        Some(Slots {
            all,
            others: all.saturating_sub(usable),
        })
    }

    async fn join(
        &mut self,
        observer: &Observer,
        place: &PlaceId,
        (node, pool): (&str, usize),
        slots: Slots,
    ) -> Change<C::Error> {
        let changes = self.core.changes(place);
        let held = observer.books.held_by(place);
        let facts = observer.books.nodes.get(node);
        let (Some(facts), Some(settings)) = (facts, self.settings.pools.get(pool)) else {
            return Change::None;
        };
        let uid = facts.uid.clone();
        let joined = JoinedPlace {
            place: place.clone(),
            resource_pool: settings.name.clone(),
            capacity: det_rm::Capacity::Count {
                slots: slots.all,
                kind: self.settings.slot_kind,
                others: slots.others,
            },
            instance: InstanceId(uid.clone()),
            containers: held.clone(),
            details: det_rm::PlaceDetails {
                addresses: facts.addresses.clone(),
                version: facts.version.clone(),
                runtime: facts.runtime.as_str().into(),
            },
        };
        let lease = match self.core.joined(joined).await {
            Ok(lease) => lease,
            Err(error) => return Change::Failed(error),
        };
        self.last_lease += 1;
        let number = self.last_lease;
        let following = self.follow(place, number, &lease, changes);
        let earlier = self.served.remove(place);
        let view = match earlier {
            // What was ordered already is not ordered again.
            Some(mut earlier) => std::mem::take(&mut earlier.view),
            None => held.into_iter().collect(),
        };
        let served = ServedPlace {
            node: node.to_owned(),
            pool: settings.name.clone(),
            uid,
            number,
            slots,
            lease,
            view,
            following,
        };
        self.served.insert(place.clone(), served);
        Change::Joined
    }

    fn follow(
        &self,
        place: &PlaceId,
        number: u64,
        lease: &C::Lease,
        mut changes: C::Changes,
    ) -> JoinHandle<()> {
        let (sender, place, lease) = (self.sender.clone(), place.clone(), lease.clone());
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    () = changes.changed() => Message::Wanted(place.clone()),
                    () = lease.lost() => Message::Taken(place.clone(), number),
                };
                let is_last = matches!(message, Message::Taken(..));
                if sender.send(message).await.is_err() || is_last {
                    return;
                }
            }
        })
    }

    /// Leaves the places that are none with other settings: their pool is gone, or does not admit their node any more. The
    /// driver that follows joins those that stay, and takes over their leases.
    pub(crate) async fn leave_others(&mut self, observer: &Observer, settings: &Settings) {
        let nothing = serde_json::Value::Null;
        let stays = |place: &PlaceId, served: &ServedPlace<C>| {
            let Some(node) = observer.books.nodes.get(&served.node) else {
                return false;
            };
            let mut pools = settings.pools.iter().enumerate();
            pools.any(|(number, pool)| {
                pool.name == served.pool
                    && settings.place(&served.node, number) == *place
                    && det_pods::admits(pool.pod_spec.as_ref().unwrap_or(&nothing), node)
            })
        };
        let others = self.served.iter();
        let others = others.filter(|(place, served)| !stays(place, served));
        for place in others.map(|(place, _)| place.clone()).collect::<Vec<_>>() {
            self.leave(&place).await;
        }
    }

    async fn leave(&mut self, place: &PlaceId) -> Change<C::Error> {
        let Some(served) = self.served.remove(place) else {
            return Change::None;
        };
        if let Err(error) = self.core.left(place, &served.lease).await {
            // The master's watch over deadlines stores it later.
            let manager = &self.settings.manager;
            tracing::warn!(manager, %error, "that a node is away could not be stored");
        }
        Change::Left
    }

    /// A place was taken away from the lease with this number; gives its node, if it was served with that lease.
    pub(crate) fn taken(&mut self, place: &PlaceId, number: u64) -> Option<String> {
        let is_it = self.served.get(place).map(|served| served.number) == Some(number);
        let served = is_it.then(|| self.served.remove(place)).flatten()?;
        Some(served.node.clone())
    }

    /// The node of a place that is served.
    pub(crate) fn node(&self, place: &PlaceId) -> Option<&str> {
        self.served.get(place).map(|served| served.node.as_str())
    }

    /// Something was observed of a container.
    pub(crate) fn received(&mut self, place: &PlaceId, id: &ContainerId, observed: &ObservedState) {
        if let Some(served) = self.served.get_mut(place) {
            served.view.received(id, observed.clone());
        }
    }

    /// An order is carried out.
    pub(crate) fn sent(&mut self, place: &PlaceId, order: &Order) {
        if let Some(served) = self.served.get_mut(place) {
            served.view.sent(order);
        }
    }

    /// What is to be done at a place, for rows that want this.
    pub(crate) fn orders(
        &self,
        place: &PlaceId,
        rows: &BTreeMap<ContainerId, DesiredState>,
    ) -> Vec<Order> {
        let served = self.served.get(place);
        served.map_or_else(Vec::new, |served| served.view.orders(rows, None))
    }

    /// Orders to end containers are to be given again; gives the places.
    pub(crate) fn repeat_ends(&mut self) -> impl Iterator<Item = PlaceId> {
        self.served.iter_mut().map(|(place, served)| {
            served.view.repeat_ends();
            place.clone()
        })
    }
}
