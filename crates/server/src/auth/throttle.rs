//! Slows down logins after wrong passwords, for each user name and for each address, in bounded memory.
//!
//! Names and addresses are counted apart. A name is slowed down little, so that an attacker elsewhere cannot keep its owner
//! out; an address is slowed down more. Names are kept as hashes of fixed size whether a user of that name exists or not.
//!
//! Many users may come from one address, all of them where a proxy is in front of the master. Those who only wait because
//! others have failed there wait in places of their own, or a few loops of wrong logins would take all places there are.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::client_network::client_network;
use crate::error::{AppError, ErrorKind};

/// Names, and addresses, that are remembered in each of the two generations.
const ENTRIES: usize = 4096;
/// A generation of counters is replaced after this time: failures are remembered for one to two of it.
const GENERATION: Duration = Duration::from_secs(15 * 60);
/// Logins that wait for their delay at once, from one address, whatever names they give.
const WAITING_PER_ADDRESS: usize = 4;
/// Names that wait beside those, one login of each, if they have not failed there more often than has no delay.
const NAMES_PER_ADDRESS: usize = 32;
/// Logins that wait at once altogether.
const WAITING: usize = 1024;

/// How failures become a delay.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// How many failures have no delay yet.
    free: u32,
    /// Delay after the next one; doubles with each further failure.
    first: Duration,
    /// The delay grows no longer than this.
    longest: Duration,
}

const NAME: Scale = Scale {
    free: 5,
    first: Duration::from_millis(125),
    longest: Duration::from_secs(2),
};
const ADDRESS: Scale = Scale {
    free: 20,
    first: Duration::from_millis(125),
    longest: Duration::from_secs(8),
};

impl Scale {
    fn delay(self, failures: u32) -> Duration {
        match failures.checked_sub(self.free) {
            None | Some(0) => Duration::ZERO,
            Some(beyond) => self
                .first
                .saturating_mul(1 << (beyond - 1).min(16))
                .min(self.longest),
        }
    }
}

/// A hash of a user name.
type NameHash = [u8; 16];

/// What a login is counted under.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    name: NameHash,
    address: IpAddr,
}

impl Origin {
    /// The origin of an attempt to log in: the name it gives, and the network of the address of its connection.
    pub(super) fn new(username: &str, address: IpAddr) -> Self {
        let mut name = [0; 16];
        name.copy_from_slice(&Sha256::digest(username.as_bytes())[..16]);
        Self {
            name,
            address: client_network(address),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

/// Counters by key in two generations: the older one is dropped as a whole, so that there is never much to search.
#[derive(Debug)]
struct Counters<K> {
    new: HashMap<K, Failures>,
    old: HashMap<K, Failures>,
    since: Option<Instant>,
}

impl<K: Eq + Hash> Counters<K> {
    fn empty() -> Self {
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
            since: None,
        }
    }

    fn add(&mut self, key: K, now: Instant) {
        let age = now.saturating_duration_since(*self.since.get_or_insert(now));
        if age >= GENERATION || self.new.len() >= ENTRIES {
            self.old = std::mem::take(&mut self.new);
            self.since = Some(now);
            if age >= GENERATION * 2 {
                self.old.clear();
            }
        }
        let before = self
            .new
            .get(&key)
            .or_else(|| self.old.get(&key))
            .map_or(0, |failures| failures.count);
        let failures = Failures {
            count: before.saturating_add(1),
            last: now,
        };
        self.new.insert(key, failures);
    }

    fn remove(&mut self, key: &K) {
        self.new.remove(key);
        self.old.remove(key);
    }

    fn recent(&self, key: &K, now: Instant) -> Option<&Failures> {
        let failures = self.new.get(key).or_else(|| self.old.get(key));
        failures.filter(|failures| now.saturating_duration_since(failures.last) < GENERATION * 2)
    }

    fn delay(&self, key: &K, scale: Scale, now: Instant) -> Duration {
        self.recent(key, now).map_or(Duration::ZERO, |failures| {
            let since = now.saturating_duration_since(failures.last);
            scale.delay(failures.count).saturating_sub(since)
        })
    }
}

#[derive(Debug)]
struct State {
    names: Counters<NameHash>,
    addresses: Counters<IpAddr>,
    /// Failures of a name from one address.
    pairs: Counters<(NameHash, IpAddr)>,
    waiting: HashMap<IpAddr, LoginQueue>,
    waiting_count: usize,
}

/// The logins that wait from one address.
#[derive(Debug, Default)]
struct LoginQueue {
    /// How many wait in places that all names share.
    shared: usize,
    /// The names that wait in places of their own.
    names: HashSet<NameHash>,
}

/// Which place a login waits in.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// One of those that all names share.
    Shared,
    /// The one of this name.
    OfName(NameHash),
}

/// Counts failed logins, and decides how long the next one has to wait.
#[derive(Debug, Clone)]
pub(super) struct Throttle {
    state: Arc<Mutex<State>>,
}

/// A place among the logins that wait; given back when it is dropped.
#[derive(Debug)]
pub(super) struct QueuedLogin {
    throttle: Throttle,
    address: IpAddr,
    place: Place,
}

impl Throttle {
    pub(super) fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                names: Counters::empty(),
                addresses: Counters::empty(),
                pairs: Counters::empty(),
                waiting: HashMap::new(),
                waiting_count: 0,
            })),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long a login from `origin` has to wait at `now`.
    pub(super) fn delay(&self, origin: &Origin, now: Instant) -> Duration {
        self.with(|state| {
            let name = state.names.delay(&origin.name, NAME, now);
            let address = state.addresses.delay(&origin.address, ADDRESS, now);
            name.max(address)
        })
    }

    /// Counts a wrong password.
    pub(super) fn failed(&self, origin: &Origin, now: Instant) {
        self.with(|state| {
            state.names.add(origin.name, now);
            state.addresses.add(origin.address, now);
            state.pairs.add((origin.name, origin.address), now);
        });
    }

    /// A right password clears the name. The address stays as it is: its other failures may be about other users.
    pub(super) fn succeeded(&self, origin: &Origin) {
        self.with(|state| {
            state.names.remove(&origin.name);
            state.pairs.remove(&(origin.name, origin.address));
        });
    }

    /// A place among those that wait; `None` when as many wait as may.
    pub(super) fn wait(&self, origin: &Origin, now: Instant) -> Option<QueuedLogin> {
        self.with(|state| {
            if state.waiting_count >= WAITING {
                return None;
            }
            let pair = (origin.name, origin.address);
            let failed = state.pairs.recent(&pair, now);
            let is_trusted = failed.is_none_or(|failures| failures.count <= NAME.free);
            let own = state.waiting.entry(origin.address).or_default();
            let has_place = own.names.len() < NAMES_PER_ADDRESS;
            let place = if is_trusted && has_place && own.names.insert(origin.name) {
                Place::OfName(origin.name)
            } else if own.shared < WAITING_PER_ADDRESS {
                own.shared += 1;
                Place::Shared
            } else {
                return None;
            };
            state.waiting_count += 1;
            Some(QueuedLogin {
                throttle: self.clone(),
                address: origin.address,
                place,
            })
        })
    }
}

/// The refusal of a login when as many are under way as may.
pub(super) fn too_many() -> AppError {
    AppError::new(
        ErrorKind::TooMany,
        "too many logins are waiting: wrong passwords slow down logins by the same user name and from the same address",
    )
    .hint("wait some seconds and try again")
}

impl Drop for QueuedLogin {
    fn drop(&mut self) {
        self.throttle.with(|state| {
            state.waiting_count = state.waiting_count.saturating_sub(1);
            let Some(own) = state.waiting.get_mut(&self.address) else {
                return;
            };
            match self.place {
                Place::Shared => own.shared = own.shared.saturating_sub(1),
                Place::OfName(name) => {
                    own.names.remove(&name);
                }
            }
            if own.shared == 0 && own.names.is_empty() {
                state.waiting.remove(&self.address);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(name: &str, last: u8) -> Origin {
        Origin::new(name, IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn wrong_passwords_for_a_name_delay_the_next_one_from_any_address() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        for last in 1..=5 {
            throttle.failed(&from("ada", last), start);
            assert_eq!(throttle.delay(&from("ada", 9), start), Duration::ZERO);
        }
        throttle.failed(&from("ada", 6), start);
        assert_eq!(throttle.delay(&from("ada", 9), start), NAME.first);
        for last in 7..=100 {
            throttle.failed(&from("ada", last), start);
        }
        assert_eq!(throttle.delay(&from("ada", 9), start), NAME.longest);
        assert_eq!(throttle.delay(&from("bob", 9), start), Duration::ZERO);
        let later = start + NAME.longest;
        assert_eq!(throttle.delay(&from("ada", 9), later), Duration::ZERO);
        throttle.succeeded(&from("ada", 9));
        assert_eq!(throttle.delay(&from("ada", 9), start), Duration::ZERO);
    }

    #[test]
    fn wrong_passwords_from_an_address_delay_it_whatever_name_it_tries() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        for number in 0..200 {
            throttle.failed(&from(&format!("user{number}"), 1), start);
        }
        assert_eq!(throttle.delay(&from("new", 1), start), ADDRESS.longest);
        assert_eq!(throttle.delay(&from("new", 2), start), Duration::ZERO);
        // A right password of the attacker's own account does not clear the address.
        throttle.succeeded(&from("mallory", 1));
        assert_eq!(throttle.delay(&from("new", 1), start), ADDRESS.longest);
    }

    #[test]
    fn memory_and_the_queue_are_bounded() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        for number in 0..50_000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            throttle.failed(&Origin::new(&format!("user{number}"), address), start);
        }
        throttle.with(|state| {
            assert!(state.names.new.len() + state.names.old.len() <= 2 * ENTRIES);
            assert!(state.addresses.new.len() + state.addresses.old.len() <= 2 * ENTRIES);
            assert!(state.pairs.new.len() + state.pairs.old.len() <= 2 * ENTRIES);
        });
        let one: Vec<_> = (0..100)
            .filter_map(|number| throttle.wait(&from(&format!("user{number}"), 1), start))
            .collect();
        assert_eq!(one.len(), WAITING_PER_ADDRESS + NAMES_PER_ADDRESS);
        let all: Vec<_> = (0x0a00_0000..0x0a00_1000_u32)
            .map(|number| Origin::new("ada", IpAddr::from(number.to_be_bytes())))
            .filter_map(|origin| throttle.wait(&origin, start))
            .collect();
        assert_eq!(one.len() + all.len(), WAITING);
        drop((one, all));
        throttle.with(|state| assert!(state.waiting.is_empty() && state.waiting_count == 0));
    }

    #[test]
    fn wrong_passwords_for_some_names_leave_places_for_others_from_the_same_address() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let attacked = ["eve", "root", "admin", "determined"];
        for name in attacked {
            for _ in 0..=NAME.free {
                throttle.failed(&from(name, 1), start);
            }
        }
        // Eight loops, of which as many wait as may.
        let loops = attacked.iter().chain(&attacked);
        let wrong: Vec<_> = loops
            .filter_map(|name| throttle.wait(&from(name, 1), start))
            .collect();
        assert_eq!(wrong.len(), WAITING_PER_ADDRESS);
        let right: Vec<_> = (0..25)
            .filter_map(|number| throttle.wait(&from(&format!("user{number}"), 1), start))
            .collect();
        assert_eq!(right.len(), 25);
        // A name has one place, and none once it has failed as often.
        assert!(throttle.wait(&from("user0", 1), start).is_none());
        assert!(throttle.wait(&from("eve", 1), start).is_none());
        assert!(throttle.wait(&from("eve", 2), start).is_some());
        throttle.succeeded(&from("eve", 1));
        assert!(throttle.wait(&from("eve", 1), start).is_some());
        drop((wrong, right));
        throttle.with(|state| assert!(state.waiting.is_empty() && state.waiting_count == 0));
    }

    #[test]
    fn hosts_of_one_ipv6_network_count_as_one() {
        let at = |text: &str| Origin::new("x", text.parse().unwrap()).address;
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
    }
}
