//! Ports that are given to allocations when they are placed: `docs/contract/task-environment.md`, "Ports".
//!
//! Which host a place is on is what decides whether two allocations may have the same port ([`Hosts`]): containers that share
//! a host's network share its ports, whatever agents of the host they run on.
//!
//! Containers of several trials may share a host's network, so each allocation has training ports of its own: the first
//! ones of each kind, moved by a number of steps. Which step an allocation has is decided when it is placed, and stored with
//! it: all its containers use the same ports, whenever their specifications are made.
//!
//! The service that a kind of task brings has one port of a range of its kind ([`ServicePorts`]), stored with the allocation
//! in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use det_ids::{AllocationId, PlaceId};

use crate::SpecError;
use crate::variables::{
    C10D_PORT, DTRAIN_SSH_PORT, INTER_TRAIN_PROCESS_COMM_PORT_1, INTER_TRAIN_PROCESS_COMM_PORT_2,
};

/// Port that every container of a trial publishes. Nothing listens on it: it marks the host address at which the other
/// containers find this one.
pub const RENDEZVOUS_PORT: u16 = 1734;

/// Ports between those of two neighbouring steps. With this distance no two kinds of two steps meet.
const DISTANCE: u16 = 20;
/// Steps that there are: the ports of the last one are below the first port of torch's rendezvous.
const STEPS: u16 = 850;

/// A training port with its variable.
pub(crate) type TrainingPort = (&'static str, u16);

/// The training ports of an allocation that has this step.
///
/// # Errors
/// It was given none, or one that there is not.
pub(crate) fn training_ports(step: Option<u16>) -> Result<[TrainingPort; 4], SpecError> {
    step.filter(|step| *step < STEPS)
        .map(ports_of_step)
        .ok_or(SpecError::NoFreePorts)
}

fn ports_of_step(step: u16) -> [TrainingPort; 4] {
    let offset = step * DISTANCE;
    [
        (DTRAIN_SSH_PORT, 12_350 + offset),
        (INTER_TRAIN_PROCESS_COMM_PORT_1, 12_360 + offset),
        (INTER_TRAIN_PROCESS_COMM_PORT_2, 12_365 + offset),
        (C10D_PORT, 29_400 + step),
    ]
}

/// A host, by a number that means something in the [`Hosts`] that gave it only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(u32);

/// Which places may be on one host: those that have an address or a name in common, directly or through others.
///
/// Agents report the address under which their host reaches the master, and the host's name. Hosts that are not the same
/// and yet have one of these in common count as one, which costs ports and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    of: BTreeMap<PlaceId, HostId>,
    last: u32,
}

impl Hosts {
    /// The hosts of places, by their addresses: places that share one are on the same host.
    pub fn new<'a>(places: impl IntoIterator<Item = (&'a PlaceId, &'a [String])>) -> Self {
        // A forest: each host points to an earlier one that it turned out to be, or to itself.
        let mut same: Vec<u32> = Vec::new();
        let mut by_address: BTreeMap<&str, u32> = BTreeMap::new();
        let mut of: BTreeMap<PlaceId, HostId> = BTreeMap::new();
        for (number, (place, addresses)) in (0_u32..).zip(places) {
            same.push(number);
            for address in addresses {
                let other = *by_address.entry(address).or_insert(number);
                let (one, other) = (root(&same, number), root(&same, other));
                if let Some(parent) = same.get_mut(one.max(other) as usize) {
                    *parent = one.min(other);
                }
            }
            of.insert(place.clone(), HostId(number));
        }
        for host in of.values_mut() {
            *host = HostId(root(&same, host.0));
        }
        let last = u32::try_from(same.len()).unwrap_or(u32::MAX);
        Self { of, last }
    }

    /// The hosts of these places. One that is not known counts as a host of its own.
    pub fn of<'a>(&mut self, places: impl IntoIterator<Item = &'a PlaceId>) -> Vec<HostId> {
        let mut hosts = BTreeSet::new();
        for place in places {
            let known = self.of.get(place).copied().unwrap_or_else(|| {
                self.last = self.last.saturating_add(1);
                self.of.insert(place.clone(), HostId(self.last));
                HostId(self.last)
            });
            hosts.insert(known);
        }
        hosts.into_iter().collect()
    }
}

/// The host that this one turned out to be.
fn root(same: &[u32], mut host: u32) -> u32 {
    while let Some(parent) = same.get(host as usize).filter(|parent| **parent != host) {
        host = *parent;
    }
    host
}

/// Who uses which step, to give free ones to allocations that are placed.
#[derive(Debug, Clone)]
struct PortSteps {
    /// By step: where it is used.
    used_on: Vec<Vec<HostId>>,
    /// By step: whether one of its ports is reserved.
    reserved: Vec<bool>,
}

impl PortSteps {
    /// With the ports of the hosts that no task may be given.
    fn new(reserved: &[u16]) -> Self {
        let is_reserved = |step| {
            let ports = ports_of_step(step);
            ports.iter().any(|(_, port)| reserved.contains(port))
        };
        Self {
            used_on: vec![Vec::new(); usize::from(STEPS)],
            reserved: (0..STEPS).map(is_reserved).collect(),
        }
    }

    /// A live allocation on these hosts uses a step.
    fn note(&mut self, step: u16, hosts: &[HostId]) {
        if let Some(used_on) = self.used_on.get_mut(usize::from(step)) {
            used_on.extend_from_slice(hosts);
        }
    }

    /// Gives a step to an allocation on these hosts; `None` = none is free there.
    ///
    /// One that is used nowhere is preferred: two hosts may be one under two names. Only when there is none are steps shared
    /// by allocations that have no host in common.
    fn give(&mut self, hosts: &[HostId]) -> Option<u16> {
        let mut steps = (0_u16..).zip(self.used_on.iter().zip(&self.reserved));
        let unused = steps.find(|(_, (used_on, reserved))| used_on.is_empty() && !**reserved);
        let (step, _) = unused.or_else(|| {
            let mut steps = (0_u16..).zip(self.used_on.iter().zip(&self.reserved));
            steps.find(|(_, (used_on, reserved))| {
                !**reserved && !hosts.iter().any(|host| used_on.contains(host))
            })
        })?;
        self.used_on[usize::from(step)].extend_from_slice(hosts);
        Some(step)
    }
}

/// Which port a service can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortWish {
    /// The ports of its kind.
    pub ports: RangeInclusive<u16>,
    /// The one that it gets if it is free; else the next free one after it.
    pub first: u16,
    /// Ports that its own task uses for something else.
    pub own: BTreeSet<u16>,
}

/// Who uses which port for the service that its kind of task brings.
#[derive(Debug, Clone, Default)]
struct ServicePorts {
    reserved: BTreeSet<u16>,
    used_on: BTreeMap<u16, Vec<HostId>>,
}

impl ServicePorts {
    fn note(&mut self, port: u16, hosts: &[HostId]) {
        self.used_on
            .entry(port)
            .or_default()
            .extend_from_slice(hosts);
    }

    /// Gives a port; `None` = none is free on these hosts. As with steps, one that is used nowhere is preferred.
    fn give(&mut self, wish: &PortWish, hosts: &[HostId]) -> Option<u16> {
        let from = wish.ports.clone().skip_while(|port| *port < wish.first);
        let before = wish.ports.clone().take_while(|port| *port < wish.first);
        let usable = from
            .chain(before)
            .filter(|port| !self.reserved.contains(port) && !wish.own.contains(port));
        let usable: Vec<u16> = usable.collect();
        let used = |port: &u16| self.used_on.get(port).map_or(&[][..], Vec::as_slice);
        let port = usable
            .iter()
            .find(|port| used(port).is_empty())
            .or_else(|| {
                let free = |port: &&u16| !hosts.iter().any(|host| used(port).contains(host));
                usable.iter().find(free)
            })
            .copied()?;
        self.note(port, hosts);
        Some(port)
    }
}

/// The ports that an allocation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GivenPorts {
    /// Which set of training ports, should it be a trial's; `None` = none is free.
    pub step: Option<u16>,
    /// Port of the service that its kind brings; 0 = none is free on its host, `None` = it brings none.
    pub service: Option<u16>,
}

/// The ports in use on all hosts, to give free ones to allocations that are placed.
#[derive(Debug, Clone)]
pub struct HostPorts {
    hosts: Hosts,
    steps: PortSteps,
    services: ServicePorts,
    wishes: BTreeMap<AllocationId, PortWish>,
}

impl HostPorts {
    /// With the ports that no task may be given; nothing is in use yet.
    pub fn new(hosts: Hosts, reserved: &[u16]) -> Self {
        Self {
            hosts,
            steps: PortSteps::new(reserved),
            services: ServicePorts {
                reserved: reserved.iter().copied().collect(),
                used_on: BTreeMap::new(),
            },
            wishes: BTreeMap::new(),
        }
    }

    /// A live allocation on these places has these ports.
    pub fn note<'a>(&mut self, given: GivenPorts, places: impl IntoIterator<Item = &'a PlaceId>) {
        let hosts = self.hosts.of(places);
        if let Some(step) = given.step {
            self.steps.note(step, &hosts);
        }
        if let Some(port) = given.service {
            self.services.note(port, &hosts);
        }
    }

    /// An allocation that is about to be placed needs a port for a service.
    pub fn wish(&mut self, id: AllocationId, wish: PortWish) {
        self.wishes.insert(id, wish);
    }

    /// Gives ports to an allocation on these places, which are in use from now on.
    pub fn give(&mut self, id: &AllocationId, places: &[PlaceId]) -> GivenPorts {
        let hosts = self.hosts.of(places);
        GivenPorts {
            step: self.steps.give(&hosts),
            service: (self.wishes.remove(id))
                .map(|wish| self.services.give(&wish, &hosts).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::NOTEBOOK_PORTS;

    /// The hosts of places that report these addresses.
    fn hosts(places: &[(&str, &[&str])]) -> Hosts {
        let places: Vec<(PlaceId, Vec<String>)> = places
            .iter()
            .map(|(place, addresses)| {
                let addresses = addresses.iter().map(|address| (*address).to_owned());
                ((*place).into(), addresses.collect())
            })
            .collect();
        Hosts::new(places.iter().map(|(place, of)| (place, of.as_slice())))
    }

    fn on(places: &[&str]) -> Vec<PlaceId> {
        places.iter().map(|place| (*place).into()).collect()
    }

    fn with_steps(used: &[(u16, &[&str])], reserved: &[u16]) -> HostPorts {
        let mut ports = HostPorts::new(Hosts::default(), reserved);
        for (step, places) in used {
            let given = GivenPorts {
                step: Some(*step),
                service: None,
            };
            ports.note(given, &on(places));
        }
        ports
    }

    fn step(ports: &mut HostPorts, places: &[&str]) -> Option<u16> {
        ports.give(&"a.1".into(), &on(places)).step
    }

    fn notebook(first: u16, own: &[u16]) -> PortWish {
        PortWish {
            ports: NOTEBOOK_PORTS,
            first,
            own: own.iter().copied().collect(),
        }
    }

    fn service(ports: &mut HostPorts, wish: PortWish, place: &str) -> u16 {
        ports.wish("n.1".into(), wish);
        ports.give(&"n.1".into(), &on(&[place])).service.unwrap()
    }

    #[test]
    fn places_with_an_address_in_common_are_one_host() {
        let mut hosts = hosts(&[
            ("one", &["127.0.0.1", "big"]),
            ("far", &["10.0.0.7", "other"]),
            ("two", &["10.0.0.5", "big"]),
            ("three", &["10.0.0.5", "renamed"]),
            ("node", &[]),
        ]);
        let one = hosts.of(&on(&["one"]));
        assert_eq!(hosts.of(&on(&["two", "three", "one"])), one);
        let all = on(&["one", "far", "two", "three", "node", "gone"]);
        assert_eq!(hosts.of(&all).len(), 4);
        assert_eq!(hosts.of(&on(&["gone"])), hosts.of(&on(&["gone"])));
    }

    #[test]
    fn ports_of_neighbours_do_not_meet() {
        let mut seen = BTreeSet::new();
        for step in 0..STEPS {
            for (name, port) in training_ports(Some(step)).unwrap() {
                assert!(seen.insert(port), "{name} {port} of step {step}");
            }
        }
        assert_eq!(training_ports(Some(STEPS)), Err(SpecError::NoFreePorts));
        assert_eq!(training_ports(None), Err(SpecError::NoFreePorts));
    }

    #[test]
    fn allocations_side_by_side_have_ports_of_their_own_wherever_they_are() {
        let mut ports = with_steps(&[(0, &["a", "b"]), (2, &["c"])], &[]);
        assert_eq!(step(&mut ports, &["b", "a"]), Some(1));
        // Two agents on one host are two places.
        assert_eq!(step(&mut ports, &["d"]), Some(3));
    }

    #[test]
    fn reserved_ports_are_passed_over() {
        // The port of torch of the first step, the port of ssh of the second.
        let mut ports = with_steps(&[], &[29_400, 12_370]);
        assert_eq!(step(&mut ports, &["a"]), Some(2));
        let all: Vec<u16> = (0..STEPS).map(|step| 29_400 + step).collect();
        assert_eq!(step(&mut with_steps(&[], &all), &["a"]), None);
    }

    #[test]
    fn steps_are_shared_by_strangers_only_when_all_are_used() {
        let mut ports = with_steps(&[], &[]);
        let given: BTreeSet<_> = (0..STEPS).map(|_| step(&mut ports, &["a"])).collect();
        assert_eq!(given.len(), usize::from(STEPS));
        assert_eq!(step(&mut ports, &["a", "b"]), None);
        assert_eq!(step(&mut ports, &["b"]), Some(0));
        assert_eq!(step(&mut ports, &["b", "c"]), Some(1));
    }

    #[test]
    fn a_cluster_has_more_notebooks_than_there_are_ports_and_a_host_has_not() {
        let known = hosts(&[("a", &["h1"]), ("a2", &["h1"]), ("b", &["h2"])]);
        let mut ports = HostPorts::new(known, &[]);
        let of_a: BTreeSet<u16> = NOTEBOOK_PORTS
            .map(|_| service(&mut ports, notebook(3100, &[]), "a"))
            .collect();
        assert_eq!(of_a.len(), NOTEBOOK_PORTS.count());
        assert_eq!(service(&mut ports, notebook(3100, &[]), "a"), 0);
        assert_eq!(
            service(&mut ports, notebook(3100, &[]), "a2"),
            0,
            "the same host"
        );
        assert_eq!(service(&mut ports, notebook(3100, &[]), "b"), 3100);
    }

    #[test]
    fn a_service_gets_the_next_port_that_is_neither_used_nor_reserved_nor_its_tasks_own() {
        let mut ports = HostPorts::new(Hosts::default(), &[3198]);
        let running = GivenPorts {
            step: None,
            service: Some(3199),
        };
        // Elsewhere is passed over, too, as long as there are others.
        ports.note(running, &on(&["b"]));
        assert_eq!(service(&mut ports, notebook(3198, &[2900]), "a"), 2901);
        assert_eq!(service(&mut ports, notebook(3150, &[]), "a"), 3150);
        // One that brings no service has none.
        assert_eq!(ports.give(&"c.1".into(), &on(&["a"])).service, None);
    }

    proptest! {
        #[test]
        fn no_host_has_a_step_or_a_port_twice(
            reserved in prop::collection::vec(12_350_u16..12_500, 0..4),
            more in prop::collection::vec(2_900_u16..3_000, 0..4),
            addresses in prop::collection::vec(prop::collection::vec(0_u8..4, 0..3), 4),
            gangs in prop::collection::vec((prop::collection::btree_set(0_u8..4, 1..4), 2_900_u16..3_200), 0..900),
        ) {
            let names: Vec<(String, Vec<String>)> = (0..).zip(&addresses)
                .map(|(place, of): (u8, _)| (place.to_string(), of.iter().map(|n| format!("address {n}")).collect()))
                .collect();
            let places: Vec<(PlaceId, &[String])> =
                names.iter().map(|(place, of)| (place.as_str().into(), of.as_slice())).collect();
            let mut known = Hosts::new(places.iter().map(|(place, of)| (place, *of)));
            let reserved: Vec<u16> = reserved.into_iter().chain(more).collect();
            let mut ports = HostPorts::new(known.clone(), &reserved);
            let (mut steps, mut services) = (BTreeSet::new(), BTreeSet::new());
            for (gang, first) in gangs {
                let places: Vec<PlaceId> = gang.iter().map(|n| n.to_string().as_str().into()).collect();
                ports.wish("t.1".into(), notebook(first, &[]));
                let given = ports.give(&"t.1".into(), &places);
                for host in known.of(&places) {
                    if let Some(step) = given.step {
                        for (_, port) in training_ports(Some(step)).unwrap() {
                            prop_assert!(!reserved.contains(&port));
                        }
                        prop_assert!(steps.insert((step, host)));
                    }
                    let port = given.service.unwrap();
                    prop_assert!(port == 0 || (NOTEBOOK_PORTS.contains(&port) && !reserved.contains(&port)));
                    prop_assert!(port == 0 || services.insert((port, host)));
                }
            }
        }
    }
}
