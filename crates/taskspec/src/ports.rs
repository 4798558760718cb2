//! Ports of a trial's containers: `docs/contract/task-environment.md`, "Ports".
//!
//! Containers of several trials may share a host's network, so each allocation has training ports of its own: the first
//! ones of each kind, moved by a number of steps that its chief's lowest slot gives.

use det_ids::{AllocationId, SlotId};

use crate::SpecError;
use crate::variables::{
    C10D_PORT, DTRAIN_SSH_PORT, INTER_TRAIN_PROCESS_COMM_PORT_1, INTER_TRAIN_PROCESS_COMM_PORT_2,
};

/// Port that every container of a trial publishes. Nothing listens on it: it marks the host address at which the other
/// containers find this one.
pub const RENDEZVOUS_PORT: u16 = 1734;

/// Ports between those of two neighbouring allocations. With this step no two kinds of two allocations meet.
const STEP: u16 = 20;
/// Steps that slots are spread over.
const SLOT_STEPS: u16 = 400;
/// Steps that allocations without slots are spread over, above those of the slots.
const SLOTLESS_STEPS: u16 = 100;
/// Steps that are tried, because reserved ports may be in the way.
const MOST_TRIED: u16 = 100;

/// A training port with its variable.
pub(crate) type TrainingPort = (&'static str, u16);

/// The training ports of an allocation, free of the cluster's reserved ones. `chief_slot` is the lowest slot of its first
/// container.
pub(crate) fn training_ports(
    chief_slot: Option<SlotId>,
    allocation_id: &AllocationId,
    reserved: &[u16],
) -> Result<[TrainingPort; 4], SpecError> {
    let first = first_step(chief_slot, allocation_id);
    (first..first + MOST_TRIED)
        .map(ports_of_step)
        .find(|ports| !ports.iter().any(|(_, port)| reserved.contains(port)))
        .ok_or(SpecError::NoFreePorts)
}

fn first_step(chief_slot: Option<SlotId>, allocation_id: &AllocationId) -> u16 {
    let (number, spread, above) = match chief_slot {
        Some(slot) => (slot.0, SLOT_STEPS, 0),
        // Without slots nothing is exclusive: spread by name.
        None => {
            let spread = u32::from(SLOTLESS_STEPS);
            let hash = allocation_id
                .0
                .bytes()
                .fold(0, |hash, byte| (hash * 31 + u32::from(byte)) % spread);
            (hash, SLOTLESS_STEPS, SLOT_STEPS)
        }
    };
    above + u16::try_from(number % u32::from(spread)).unwrap_or(0)
}

fn ports_of_step(step: u16) -> [TrainingPort; 4] {
    let offset = step * STEP;
    [
        (DTRAIN_SSH_PORT, 12_350 + offset),
        (INTER_TRAIN_PROCESS_COMM_PORT_1, 12_360 + offset),
        (INTER_TRAIN_PROCESS_COMM_PORT_2, 12_365 + offset),
        (C10D_PORT, 29_400 + step),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ssh_port(slot: Option<u32>, reserved: &[u16]) -> Result<u16, SpecError> {
        let ports = training_ports(slot.map(SlotId), &"7.1".into(), reserved)?;
        Ok(ports[0].1)
    }

    #[test]
    fn ports_of_neighbours_do_not_meet() {
        let mut seen = BTreeSet::new();
        for step in 0..SLOT_STEPS {
            for (name, port) in ports_of_step(step) {
                assert!(seen.insert(port), "{name} {port} of step {step}");
            }
        }
    }

    #[test]
    fn the_chiefs_lowest_slot_gives_the_ports() {
        assert_eq!(ssh_port(Some(0), &[]), Ok(12_350));
        assert_eq!(ssh_port(Some(3), &[]), Ok(12_410));
        assert_eq!(ssh_port(Some(u32::MAX), &[]), Ok(12_350 + 20 * 95));
        // Above those of all slots.
        assert!(ssh_port(None, &[]).is_ok_and(|port| port >= 12_350 + 20 * SLOT_STEPS));
    }

    #[test]
    fn reserved_ports_are_passed_over() {
        // The port of torch of the first step, the port of ssh of the second.
        assert_eq!(ssh_port(Some(0), &[29_400, 12_370]), Ok(12_390));
        let all: Vec<u16> = (0..MOST_TRIED).map(|step| 29_400 + step).collect();
        assert_eq!(ssh_port(Some(0), &all), Err(SpecError::NoFreePorts));
    }
}
