//! The devices of this host that can be slots. A missing driver or tool is not an error: it means that there are no
//! such devices.

mod cpu;
mod nvidia;
mod rocm;
mod visible;
pub(crate) mod watch;

use std::path::{Path, PathBuf};

use det_ids::{AgentId, SlotId};
use det_taskspec::{Device, DeviceKind};

use crate::options::SlotType;

/// A device with what the runtimes need in addition to its wire form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalDevice {
    pub(crate) device: Device,
    /// Device files that a container needs for it (render nodes of AMD GPUs).
    pub(crate) nodes: Vec<PathBuf>,
    /// The GPU that it is a MIG instance of; `None` = it is a whole device.
    pub(crate) part_of: Option<PartOf>,
}

/// The place of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartOf {
    /// UUID of the whole GPU.
    pub(crate) gpu: String,
    /// The driver's number of the instance in it.
    pub(crate) index: u32,
}

/// A MIG instance as a driver or tool describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Instance {
    /// The driver's number in its GPU.
    index: u32,
    name: String,
    uuid: String,
}

/// A GPU as a driver or tool describes it, before it has a slot number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct FoundGpu {
    /// Number of the GPU among those of its driver, from 0.
    index: u32,
    name: String,
    uuid: String,
    pci_bus_id: String,
    serial: String,
    /// MIG instances; if there are any, they are the slots instead of the whole GPU.
    instances: Vec<Instance>,
    nodes: Vec<PathBuf>,
}

/// The kinds of devices to detect, and where to look for them.
pub(crate) struct Detection<'a> {
    pub(crate) slot_type: SlotType,
    pub(crate) visible_gpus: Option<&'a str>,
    pub(crate) artificial_slots: u32,
    pub(crate) agent_id: &'a AgentId,
    /// The tool of NVIDIA's driver.
    pub(crate) gpu_tool: &'a Path,
}

/// Finds the devices. Blocking: drivers are asked and tools are run.
pub(crate) fn detect(detection: &Detection<'_>) -> Vec<LocalDevice> {
    if detection.artificial_slots > 0 {
        return cpu::artificial(detection.agent_id, detection.artificial_slots);
    }
    let cuda = || {
        let gpus = nvidia::detect(detection.gpu_tool);
        number(DeviceKind::Cuda, gpus, detection.visible_gpus)
    };
    let rocm = || number(DeviceKind::Rocm, rocm::detect(), detection.visible_gpus);
    match detection.slot_type {
        SlotType::None => Vec::new(),
        SlotType::Cuda => cuda(),
        SlotType::Rocm => rocm(),
        SlotType::Cpu => vec![cpu::whole_host(detection.agent_id)],
        SlotType::Auto => {
            let mut devices = cuda();
            if devices.is_empty() {
                devices = rocm();
            }
            if devices.is_empty() {
                devices.push(cpu::whole_host(detection.agent_id));
            }
            devices
        }
    }
}

/// Narrows the GPUs to the visible ones and numbers what is left, in the driver's order.
fn number(kind: DeviceKind, gpus: Vec<FoundGpu>, visible: Option<&str>) -> Vec<LocalDevice> {
    let mut devices: Vec<LocalDevice> = Vec::new();
    for gpu in visible::filter(gpus, visible) {
        let units = if gpu.instances.is_empty() {
            vec![(gpu.name.clone(), gpu.uuid.clone(), None)]
        } else {
            let instance = |it: &Instance| {
                let part_of = PartOf {
                    gpu: gpu.uuid.clone(),
                    index: it.index,
                };
                (it.name.clone(), it.uuid.clone(), Some(part_of))
            };
            gpu.instances.iter().map(instance).collect()
        };
        for (brand, uuid, part_of) in units {
            let id = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            devices.push(LocalDevice {
                device: Device {
                    id: SlotId(id),
                    brand,
                    uuid,
                    kind,
                },
                nodes: gpu.nodes.clone(),
                part_of,
            });
        }
    }
    devices
}

/// Runs a tool that may not exist; returns its standard output if it succeeded.
fn tool_output(program: impl AsRef<Path>, arguments: &[&str]) -> Option<String> {
    let program = program.as_ref();
    match std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
    {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            tracing::warn!(
                program = %program.display(),
                status = %output.status,
                "a device tool failed, so its devices are not offered: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            None
        }
        Err(error) => {
            tracing::debug!(program = %program.display(), %error, "device tool not usable");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detection(agent: &AgentId, slot_type: SlotType, artificial: u32) -> Vec<LocalDevice> {
        detect(&Detection {
            slot_type,
            visible_gpus: None,
            artificial_slots: artificial,
            agent_id: agent,
            gpu_tool: Path::new("nvidia-smi"),
        })
    }

    #[test]
    fn no_slots_when_none_are_wanted() {
        assert!(detection(&"a".into(), SlotType::None, 0).is_empty());
    }

    #[test]
    fn one_cpu_slot_covers_the_host() {
        let agent = AgentId::from("a");
        let devices = detection(&agent, SlotType::Cpu, 0);
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].device.kind, DeviceKind::Cpu);
        assert_eq!(devices, detection(&agent, SlotType::Cpu, 0), "stable");
    }

    #[test]
    fn artificial_slots_are_stable_and_differ_between_agents_and_slots() {
        let (a, b) = (AgentId::from("a"), AgentId::from("b"));
        let uuids = |agent: &AgentId| -> Vec<String> {
            detection(agent, SlotType::Auto, 3)
                .into_iter()
                .map(|device| device.device.uuid)
                .collect()
        };
        assert_eq!(uuids(&a), uuids(&a));
        let mut all = [uuids(&a), uuids(&b)].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|uuid| uuid::Uuid::parse_str(uuid).is_ok()));
    }

    #[test]
    fn mig_instances_replace_their_gpu_and_slots_are_counted_on() {
        let gpus = vec![
            FoundGpu {
                index: 0,
                name: "NVIDIA A100".into(),
                uuid: "GPU-0".into(),
                instances: ["MIG-a", "MIG-b"]
                    .iter()
                    .zip([0, 3])
                    .map(|(uuid, index)| Instance {
                        index,
                        name: "NVIDIA A100 MIG 3g.20gb".into(),
                        uuid: (*uuid).into(),
                    })
                    .collect(),
                ..FoundGpu::default()
            },
            FoundGpu {
                index: 1,
                name: "NVIDIA A100".into(),
                uuid: "GPU-1".into(),
                ..FoundGpu::default()
            },
        ];
        let devices = number(DeviceKind::Cuda, gpus, None);
        let seen: Vec<(u32, &str)> = devices
            .iter()
            .map(|device| (device.device.id.0, device.device.uuid.as_str()))
            .collect();
        assert_eq!(seen, [(0, "MIG-a"), (1, "MIG-b"), (2, "GPU-1")]);
        let part_of = PartOf {
            gpu: "GPU-0".into(),
            index: 3,
        };
        assert_eq!(devices[1].part_of, Some(part_of));
        assert_eq!(devices[2].part_of, None);
    }
}
