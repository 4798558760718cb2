//! Which places are served, each by one driver at a time.

use std::collections::BTreeMap;

use det_ids::{InstanceId, PlaceId};

/// A place that a driver serves, until it has lost it. Cheap to clone.
pub trait Lease: Clone + Send + Sync + 'static {
    /// Waits until the driver has lost the place: a newer driver has taken it, or the core has taken it away.
    fn lost(&self) -> impl Future<Output = ()> + Send;
}

/// Identity of a lease: its place, and a serial number that grows with every lease of any place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseId {
    place: PlaceId,
    serial: u64,
}

/// The places that are served now. `E` is what makes the driver of a place notice that it has lost it.
#[derive(Debug)]
pub struct Leases<E> {
    /// Grows with every lease of any place, so that an older one cannot end a newer one.
    last: u64,
    places: BTreeMap<PlaceId, LeaseHolder<E>>,
}

#[derive(Debug)]
struct LeaseHolder<E> {
    instance: InstanceId,
    serial: u64,
    end: E,
}

impl<E> Default for Leases<E> {
    fn default() -> Self {
        Self {
            last: 0,
            places: BTreeMap::new(),
        }
    }
}

impl<E> Leases<E> {
    /// Gives a place to a driver, with what makes an earlier driver of the same place (same instance) notice that it has
    /// lost it: its end has not been noticed yet. `None` = another place with this id is served.
    pub fn take(
        &mut self,
        place: &PlaceId,
        instance: &InstanceId,
        end: E,
    ) -> Option<(LeaseId, Option<E>)> {
        let earlier = self.places.get(place);
        if earlier.is_some_and(|earlier| earlier.instance != *instance) {
            return None;
        }
        self.last += 1;
        let served = LeaseHolder {
            instance: instance.clone(),
            serial: self.last,
            end,
        };
        let earlier = self.places.insert(place.clone(), served);
        let lease = LeaseId {
            place: place.clone(),
            serial: self.last,
        };
        Some((lease, earlier.map(|earlier| earlier.end)))
    }

    /// A driver gives its place back; `false` when it had lost it before.
    pub fn give_back(&mut self, lease: &LeaseId) -> bool {
        let current = self.places.get(&lease.place);
        let is_current = current.is_some_and(|served| served.serial == lease.serial);
        if is_current {
            self.places.remove(&lease.place);
        }
        is_current
    }

    /// Takes a place away from its driver, if it has one; what makes that one notice.
    pub fn take_away(&mut self, place: &PlaceId) -> Option<E> {
        self.places.remove(place).map(|served| served.end)
    }

    /// Whether a driver serves the place now.
    pub fn is_served(&self, place: &PlaceId) -> bool {
        self.places.contains_key(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_lease_ends_no_newer_one() {
        let (mut leases, place) = (Leases::default(), PlaceId::from("a"));
        let (first, earlier) = leases.take(&place, &"disk 1".into(), 'x').unwrap();
        assert_eq!(earlier, None);
        assert!(leases.take(&place, &"disk 2".into(), 'y').is_none());
        let (second, earlier) = leases.take(&place, &"disk 1".into(), 'y').unwrap();
        assert_eq!(earlier, Some('x'));
        assert!(!leases.give_back(&first) && leases.is_served(&place));
        // Also after the place was taken away and has come back.
        assert_eq!(leases.take_away(&place), Some('y'));
        assert!(!leases.is_served(&place));
        let (third, earlier) = leases.take(&place, &"disk 2".into(), 'z').unwrap();
        assert_eq!(earlier, None);
        assert!(!leases.give_back(&first) && !leases.give_back(&second));
        assert!(leases.give_back(&third) && !leases.give_back(&third));
    }
}
