//! Containers by their ids, which are found by node and by place without a look at all of them: a cluster may have
//! thousands of nodes with tens of thousands of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use det_ids::{ContainerId, PlaceId};

/// What is on a node, for a place. Neither changes.
pub(crate) trait OnPlace {
    /// Name of the node that it is on.
    fn node(&self) -> &str;
    /// The place that the node is in a pool.
    fn place(&self) -> &PlaceId;
}

/// A value for each container, found by its id, its node or its place.
#[derive(Debug)]
pub(crate) struct ByContainer<T> {
    all: BTreeMap<ContainerId, T>,
    on_node: BTreeMap<String, BTreeSet<ContainerId>>,
    of_place: BTreeMap<PlaceId, BTreeSet<ContainerId>>,
}

impl<T> Default for ByContainer<T> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            on_node: BTreeMap::new(),
            of_place: BTreeMap::new(),
        }
    }
}

impl<T> Deref for ByContainer<T> {
    type Target = BTreeMap<ContainerId, T>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<T: OnPlace> ByContainer<T> {
    pub(crate) fn insert(&mut self, id: ContainerId, value: T) -> Option<T> {
        let before = self.remove(&id);
        add(&mut self.on_node, value.node().to_owned(), &id);
        add(&mut self.of_place, value.place().clone(), &id);
        self.all.insert(id, value);
        before
    }

    pub(crate) fn remove(&mut self, id: &ContainerId) -> Option<T> {
        let value = self.all.remove(id)?;
        take(&mut self.on_node, value.node(), id);
        take(&mut self.of_place, value.place(), id);
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, id: &ContainerId) -> Option<&mut T> {
        self.all.get_mut(id)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&ContainerId, &mut T)> {
        self.all.iter_mut()
    }

    /// Those of a node, by container.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = (&ContainerId, &T)> {
        self.those(self.on_node.get(node))
    }

    /// Those of a place, by container.
    pub(crate) fn of_place(&self, place: &PlaceId) -> impl Iterator<Item = (&ContainerId, &T)> {
        self.those(self.of_place.get(place))
    }

    fn those<'s>(
        &'s self,
        ids: Option<&'s BTreeSet<ContainerId>>,
    ) -> impl Iterator<Item = (&'s ContainerId, &'s T)> {
        let ids = ids.into_iter().flatten();
        ids.filter_map(|id| self.all.get_key_value(id))
    }
}

/// Adds a value to the set of a key.
pub(crate) fn add<K: Ord, V: Ord + Clone>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: &V) {
    sets.entry(key).or_default().insert(value.clone());
}

/// Takes a value from the set of a key, which goes with its last value.
pub(crate) fn take<K, Q, V>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &Q, value: &V)
where
    K: Ord + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
    V: Ord,
{
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Container(&'static str, PlaceId);

    impl OnPlace for Container {
        fn node(&self) -> &str {
            self.0
        }

        fn place(&self) -> &PlaceId {
            &self.1
        }
    }

    #[test]
    fn containers_are_found_by_node_and_by_place_until_they_go() {
        let mut all = ByContainer::default();
        let mut put = |id: &str, node: &'static str, place: &str| {
            let container = Container(node, PlaceId::from(place));
            all.insert(ContainerId::from(id), container)
        };
        put("c1", "a", "a");
        put("c2", "a", "a@cpu");
        // It was started for another node in the meantime.
        put("c3", "a", "a");
        assert!(put("c3", "b", "b").is_some());
        let on = |all: &ByContainer<Container>, node| {
            let found = all.on_node(node).map(|(id, _)| id.as_str().to_owned());
            found.collect::<Vec<_>>()
        };
        assert_eq!(on(&all, "a"), ["c1", "c2"]);
        assert_eq!(on(&all, "b"), ["c3"]);
        assert_eq!(all.of_place(&PlaceId::from("a@cpu")).count(), 1);
        for id in ["c1", "c2", "c3", "c3"] {
            all.remove(&ContainerId::from(id));
        }
        assert!(all.is_empty() && all.on_node.is_empty() && all.of_place.is_empty());
    }
}
