//! Ports of a trial's containers: `docs/contract/task-environment.md`, "Ports".
//!
//! Containers of several trials may share a host's network, so each allocation has training ports of its own: the first
//! ones of each kind, moved by a number of steps. Which step an allocation has is decided when it is placed, and stored with
//! it: all its containers use the same ports, whenever their specifications are made.

use det_ids::PlaceId;

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

/// Who uses which step, to give free ones to allocations that are placed.
#[derive(Debug, Clone)]
pub struct PortSteps {
    /// By step: where it is used.
    used_on: Vec<Vec<PlaceId>>,
    /// By step: whether one of its ports is reserved.
    reserved: Vec<bool>,
}

impl PortSteps {
    /// With the ports of the hosts that no task may be given, and what live allocations use.
    pub fn new(reserved: &[u16], used: impl IntoIterator<Item = (u16, Vec<PlaceId>)>) -> Self {
        let is_reserved = |step| {
            let ports = ports_of_step(step);
            ports.iter().any(|(_, port)| reserved.contains(port))
        };
        let mut steps = Self {
            used_on: vec![Vec::new(); usize::from(STEPS)],
            reserved: (0..STEPS).map(is_reserved).collect(),
        };
        for (step, places) in used {
            if let Some(used_on) = steps.used_on.get_mut(usize::from(step)) {
                used_on.extend(places);
            }
        }
        steps
    }

    /// Gives a step to an allocation on these places; `None` = none is free there.
    ///
    /// One that is used nowhere is preferred: two places may be one host, which nothing here knows. Only when there is none
    /// are steps shared by allocations that have no place in common.
    pub fn give(&mut self, places: &[PlaceId]) -> Option<u16> {
        let mut steps = (0_u16..).zip(self.used_on.iter().zip(&self.reserved));
        let unused = steps.find(|(_, (used_on, reserved))| used_on.is_empty() && !**reserved);
        let (step, _) = unused.or_else(|| {
            let mut steps = (0_u16..).zip(self.used_on.iter().zip(&self.reserved));
            steps.find(|(_, (used_on, reserved))| {
                !**reserved && !places.iter().any(|place| used_on.contains(place))
            })
        })?;
        self.used_on[usize::from(step)].extend_from_slice(places);
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn on(places: &[&str]) -> Vec<PlaceId> {
        places.iter().map(|place| (*place).into()).collect()
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
        let mut steps = PortSteps::new(&[], [(0, on(&["a", "b"])), (2, on(&["c"]))]);
        assert_eq!(steps.give(&on(&["b", "a"])), Some(1));
        // Two agents on one host are two places.
        assert_eq!(steps.give(&on(&["d"])), Some(3));
    }

    #[test]
    fn reserved_ports_are_passed_over() {
        // The port of torch of the first step, the port of ssh of the second.
        let mut steps = PortSteps::new(&[29_400, 12_370], []);
        assert_eq!(steps.give(&on(&["a"])), Some(2));
        let all: Vec<u16> = (0..STEPS).map(|step| 29_400 + step).collect();
        assert_eq!(PortSteps::new(&all, []).give(&on(&["a"])), None);
    }

    #[test]
    fn steps_are_shared_by_strangers_only_when_all_are_used() {
        let mut steps = PortSteps::new(&[], []);
        let given: BTreeSet<_> = (0..STEPS).map(|_| steps.give(&on(&["a"]))).collect();
        assert_eq!(given.len(), usize::from(STEPS));
        assert_eq!(steps.give(&on(&["a", "b"])), None);
        assert_eq!(steps.give(&on(&["b"])), Some(0));
        assert_eq!(steps.give(&on(&["b", "c"])), Some(1));
    }

    proptest! {
        #[test]
        fn no_place_has_a_step_twice(
            reserved in prop::collection::vec(12_350_u16..12_500, 0..4),
            gangs in prop::collection::vec(prop::collection::btree_set(0_u8..4, 1..4), 0..900),
        ) {
            let mut steps = PortSteps::new(&reserved, []);
            let mut seen = BTreeSet::new();
            for gang in gangs {
                let places: Vec<PlaceId> = gang.iter().map(|n| n.to_string().as_str().into()).collect();
                let Some(step) = steps.give(&places) else { continue };
                for (_, port) in training_ports(Some(step)).unwrap() {
                    prop_assert!(!reserved.contains(&port));
                }
                for place in places {
                    prop_assert!(seen.insert((step, place)));
                }
            }
        }
    }
}
