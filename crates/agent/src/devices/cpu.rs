//! Slots without a GPU: the host's processors, and artificial slots for tests.

use det_ids::{AgentId, SlotId};
use det_taskspec::{Device, DeviceKind};

use super::LocalDevice;

/// One slot that covers every processor.
pub(super) fn whole_host(agent_id: &AgentId) -> LocalDevice {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    LocalDevice {
        device: Device {
            id: SlotId(0),
            brand: brand(&text, cores),
            uuid: derived_uuid(agent_id, "cpu", 0),
            kind: DeviceKind::Cpu,
        },
        nodes: Vec::new(),
        part_of: None,
    }
}

/// `count` artificial CPU slots.
pub(super) fn artificial(agent_id: &AgentId, count: u32) -> Vec<LocalDevice> {
    (0..count)
        .map(|index| LocalDevice {
            device: Device {
                id: SlotId(index),
                brand: "Artificial".to_owned(),
                uuid: derived_uuid(agent_id, "artificial", index),
                kind: DeviceKind::Cpu,
            },
            nodes: Vec::new(),
            part_of: None,
        })
        .collect()
}

/// Product name of the first processor, from the text of `/proc/cpuinfo`.
fn brand(cpuinfo: &str, cores: usize) -> String {
    let model = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        // ARM kernels print no model name, but sometimes the name of the hardware.
        .find(|(key, _)| matches!(key.trim(), "model name" | "Hardware" | "cpu model"))
        .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|model| !model.is_empty())
        .unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH));
    format!("{model} x {cores}")
}

/// A UUID that is the same for the same agent and slot: 128-bit FNV-1a, which is short and needs no crate. It only has
/// to differ, not to resist anyone.
fn derived_uuid(agent_id: &AgentId, kind: &str, index: u32) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = format!("{agent_id}/{kind}/{index}")
        .bytes()
        .fold(OFFSET, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(PRIME)
        });
    uuid::Builder::from_custom_bytes(hash.to_be_bytes())
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brand_is_the_model_and_the_number_of_cores() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R)  Xeon(R) CPU @ 2.20GHz\n";
        assert_eq!(brand(text, 4), "Intel(R) Xeon(R) CPU @ 2.20GHz x 4");
    }

    #[test]
    fn without_a_model_the_architecture_is_named() {
        assert_eq!(brand("", 1), format!("{} CPU x 1", std::env::consts::ARCH));
        assert!(brand("processor : 0\nmodel name :\n", 2).ends_with("CPU x 2"));
    }
}
