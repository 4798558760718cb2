//! The places for connections, of which clients at one address leave some to all others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client_network::client_network;

/// An address gets one more place as long as it has fewer than so many times as many as are free. One alone gets three
/// quarters of all (all clients may come by one proxy), two get 43 % each, and there is always something left for an
/// address that has none yet.
const TIMES_THE_FREE: usize = 3;

/// Places for connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Places {
    all: usize,
    taken: Arc<Mutex<TakenPlaces>>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    client: IpAddr,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    /// All are taken.
    #[error("there are as many connections as descriptors allow")]
    Full,
    /// The address has its share of them.
    #[error(
        "its address has {0} connections, and the others are kept for clients at other addresses"
    )]
    Share(usize),
}

impl Places {
    /// So many.
    pub(super) fn new(all: usize) -> Self {
        Self {
            all,
            taken: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client at this address.
    pub(super) fn take(&self, client: IpAddr) -> Result<Place, NoPlace> {
        let client = group(client);
        let mut taken = self.lock();
        let free = self.all.saturating_sub(taken.all);
        if free == 0 {
            return Err(NoPlace::Full);
        }
        let own = taken.by_client.get(&client).copied().unwrap_or(0);
        if own >= free.saturating_mul(TIMES_THE_FREE) {
            return Err(NoPlace::Share(own));
        }
        taken.all += 1;
        taken.by_client.insert(client, own + 1);
        Ok(Place {
            places: self.clone(),
            client,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Entry::Occupied(mut own) = taken.by_client.entry(self.client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

/// What counts as one address: who has one of these has the others as well.
fn group(client: IpAddr) -> IpAddr {
    if client.to_canonical().is_loopback() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    client_network(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_leaves_a_quarter_to_others() {
        let places = Places::new(768);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let mut of_one: Vec<Place> = std::iter::from_fn(|| places.take(one).ok()).collect();
        assert_eq!(of_one.len(), 576);
        assert_eq!(places.take(one).unwrap_err(), NoPlace::Share(576));
        let of_other: Vec<Place> = std::iter::from_fn(|| places.take(other).ok()).collect();
        assert_eq!(of_other.len(), 144);
        // Each newcomer gets some of what is left.
        let newcomers = (3..50).map(|n| places.take(address(&format!("192.0.2.{n}"))));
        let newcomers: Vec<_> = newcomers.collect();
        assert!(newcomers.iter().all(Result::is_ok));
        assert_eq!(newcomers.len(), 47);
        drop(newcomers);
        // What one gives back is there for others first.
        of_one.truncate(400);
        assert!(places.take(one).is_ok());
        drop((of_one, of_other));
        assert_eq!(places.lock().all, 0);
        assert!(places.lock().by_client.is_empty());
    }

    #[test]
    fn addresses_count_together_where_one_client_has_all_of_them() {
        for (one, other, is_one) in [
            ("127.0.0.1", "127.9.9.9", true),
            ("127.0.0.1", "::1", true),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let (one, other) = (group(address(one)), group(address(other)));
            assert_eq!(one == other, is_one, "{one} and {other}");
        }
    }

    #[test]
    fn all_places_are_taken_in_the_end() {
        let places = Places::new(64);
        let mut held = Vec::new();
        for n in 0..=255 {
            let client = address(&format!("192.0.2.{n}"));
            match places.take(client) {
                Ok(place) => held.push(place),
                Err(why) => assert_eq!((why, held.len()), (NoPlace::Full, 64)),
            }
        }
        assert_eq!(held.len(), 64);
    }
}
