//! How many connections may be open at once, and how many of them clients at one address may hold.
//!
//! A [`SharePermit`] is the right to have one connection open. [`ConnectionShares`] gives it out and counts it until it is
//! dropped; a connection holds its permit until it ends. An address whose share is used up is refused, and so is every caller
//! when no permit is left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client_network::client_network;

/// An address gets one more permit as long as it has fewer than so many times as many as are free. One alone gets three
/// quarters of all (all clients may come by one proxy), two get 43 % each, and there is always something left for an
/// address that has none yet.
const TIMES_THE_FREE: usize = 3;

/// All permits for connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ConnectionShares {
    all: usize,
    held: Arc<Mutex<PermitCounts>>,
}

/// The permits that are held.
#[derive(Debug, Default)]
struct PermitCounts {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// The right to have one connection open, until it is dropped.
#[derive(Debug)]
pub(super) struct SharePermit {
    shares: ConnectionShares,
    client: IpAddr,
}

/// Why a client gets no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShareRefusal {
    /// All permits are held.
    #[error("there are as many connections as descriptors allow")]
    Full,
    /// The address has its share of them.
    #[error(
        "its address has {0} connections, and the others are kept for clients at other addresses"
    )]
    Share(usize),
}

impl ConnectionShares {
    /// Shares of so many connections at once, over all addresses.
    pub(super) fn new(all: usize) -> Self {
        Self {
            all,
            held: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit for a client at this address.
    pub(super) fn take(&self, client: IpAddr) -> Result<SharePermit, ShareRefusal> {
        let client = group(client);
        let mut held = self.lock();
        let free = self.all.saturating_sub(held.all);
        if free == 0 {
            return Err(ShareRefusal::Full);
        }
        let own = held.by_client.get(&client).copied().unwrap_or(0);
        if own >= free.saturating_mul(TIMES_THE_FREE) {
            return Err(ShareRefusal::Share(own));
        }
        held.all += 1;
        held.by_client.insert(client, own + 1);
        Ok(SharePermit {
            shares: self.clone(),
            client,
        })
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        let mut held = self.shares.lock();
        held.all -= 1;
        if let Entry::Occupied(mut own) = held.by_client.entry(self.client) {
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
        let shares = ConnectionShares::new(768);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let mut of_one: Vec<SharePermit> = std::iter::from_fn(|| shares.take(one).ok()).collect();
        assert_eq!(of_one.len(), 576);
        assert_eq!(shares.take(one).unwrap_err(), ShareRefusal::Share(576));
        let of_other: Vec<SharePermit> = std::iter::from_fn(|| shares.take(other).ok()).collect();
        assert_eq!(of_other.len(), 144);
        // Each newcomer gets some of what is left.
        let newcomers = (3..50).map(|n| shares.take(address(&format!("192.0.2.{n}"))));
        let newcomers: Vec<_> = newcomers.collect();
        assert!(newcomers.iter().all(Result::is_ok));
        assert_eq!(newcomers.len(), 47);
        drop(newcomers);
        // What one gives back is given to others first.
        of_one.truncate(400);
        assert!(shares.take(one).is_ok());
        drop((of_one, of_other));
        assert_eq!(shares.lock().all, 0);
        assert!(shares.lock().by_client.is_empty());
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
    fn all_permits_are_held_in_the_end() {
        let shares = ConnectionShares::new(64);
        let mut held = Vec::new();
        for n in 0..=255 {
            let client = address(&format!("192.0.2.{n}"));
            match shares.take(client) {
                Ok(permit) => held.push(permit),
                Err(why) => assert_eq!((why, held.len()), (ShareRefusal::Full, 64)),
            }
        }
        assert_eq!(held.len(), 64);
    }
}
