//! NVIDIA GPUs and MIG instances: from the driver's library, else from `nvidia-smi`.

use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{FoundGpu, Instance, tool_output};

/// Every GPU of the host; empty without a driver.
pub(super) fn detect(tool: &Path) -> Vec<FoundGpu> {
    match from_library() {
        Ok(gpus) => gpus,
        Err(error) => {
            tracing::debug!(%error, "NVIDIA management library not usable, trying nvidia-smi");
            from_tool(tool)
        }
    }
}

fn from_library() -> Result<Vec<FoundGpu>, NvmlError> {
    // Only development packages contain the name without a version; all hosts have the name with the version.
    let nvml = Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .or_else(|_| Nvml::init())?;
    if let Ok(version) = nvml.sys_driver_version() {
        tracing::info!(version, "NVIDIA driver found");
    }
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = match nvml.device_by_index(index) {
            Ok(device) => device,
            // A broken card must not hide the healthy ones.
            Err(error) => {
                tracing::error!(index, %error, "an NVIDIA GPU does not answer and is not offered");
                continue;
            }
        };
        let name = device.name()?;
        let pci_bus_id = device.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
        let minor = device.minor_number().ok();
        gpus.push(FoundGpu {
            index,
            uuid: device.uuid()?,
            nodes: nodes(minor.or_else(|| minor_of(&pci_bus_id)), index),
            pci_bus_id,
            // Consumer boards have none.
            serial: device.serial().unwrap_or_default(),
            instances: instances(&device, &name),
            name,
        });
    }
    Ok(gpus)
}

/// The device files of one GPU. The files of MIG instances are not distinguished: an instance gets those of all.
fn nodes(minor: Option<u32>, index: u32) -> Vec<PathBuf> {
    let mut nodes = vec![PathBuf::from(format!(
        "/dev/nvidia{}",
        minor.unwrap_or(index)
    ))];
    if let Ok(instances) = std::fs::read_dir("/dev/nvidia-caps") {
        nodes.extend(instances.flatten().map(|entry| entry.path()));
    }
    nodes
}

/// The number of a GPU's device file, by its address on the bus.
fn minor_of(pci_bus_id: &str) -> Option<u32> {
    // The driver's directory has four digits for the domain, its library and tool eight.
    let (domain, rest) = pci_bus_id.split_once(':')?;
    let domain = domain.get(domain.len().checked_sub(4)?..)?;
    let name = format!("{domain}:{rest}").to_ascii_lowercase();
    let path = format!("/proc/driver/nvidia/gpus/{name}/information");
    let text = std::fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

/// MIG instances of one GPU; empty where MIG is unknown or off.
fn instances(device: &nvml_wrapper::Device<'_>, gpu_name: &str) -> Vec<Instance> {
    let enabled = device
        .mig_mode()
        .is_ok_and(|mode| mode.current == MIG_ENABLED);
    if !enabled {
        return Vec::new();
    }
    let most = device.mig_device_count().unwrap_or(0);
    (0..most)
        // Slots of the driver's table without an instance answer "not found".
        .filter_map(|index| Some((index, device.mig_device_by_index(index).ok()?)))
        .filter_map(|(index, instance)| {
            Some(Instance {
                index,
                uuid: instance.uuid().ok()?,
                name: instance.name().unwrap_or_else(|_| gpu_name.to_owned()),
            })
        })
        .collect()
}

/// MIG is on: `NVML_DEVICE_MIG_ENABLE` of NVML.
const MIG_ENABLED: u32 = 1;

fn from_tool(tool: &Path) -> Vec<FoundGpu> {
    let Some(csv) = tool_output(
        tool,
        &[
            "--query-gpu=index,name,uuid,pci.bus_id,serial",
            "--format=csv,noheader,nounits",
        ],
    ) else {
        return Vec::new();
    };
    let list = tool_output(tool, &["-L"]).unwrap_or_default();
    with_instances(parse_csv(&csv), &list)
}

/// Reads `nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,serial --format=csv,noheader`.
fn parse_csv(csv: &str) -> Vec<FoundGpu> {
    csv.lines()
        .filter(|line| !line.trim().is_empty())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let [index, name, uuid, rest @ ..] = fields.as_slice() else {
                tracing::warn!("nvidia-smi printed a line that is not understood: \"{line}\"");
                return None;
            };
            let Ok(index) = index.parse() else {
                tracing::warn!("nvidia-smi printed a line that is not understood: \"{line}\"");
                return None;
            };
            let known = |text: Option<&&str>| {
                text.filter(|text| !text.starts_with('['))
                    .map(|text| (*text).to_owned())
                    .unwrap_or_default()
            };
            Some(FoundGpu {
                index,
                name: (*name).to_owned(),
                uuid: (*uuid).to_owned(),
                nodes: nodes(rest.first().and_then(|id| minor_of(id)), index),
                pci_bus_id: known(rest.first()),
                serial: known(rest.get(1)),
                ..FoundGpu::default()
            })
        })
        .collect()
}

/// Adds the MIG instances that `nvidia-smi -L` lists below their GPUs.
fn with_instances(mut gpus: Vec<FoundGpu>, list: &str) -> Vec<FoundGpu> {
    let mut current: Option<usize> = None;
    for line in list.lines() {
        let Some(uuid) = line
            .split_once("(UUID: ")
            .and_then(|(_, rest)| rest.split_once(')'))
            .map(|(uuid, _)| uuid.trim())
        else {
            continue;
        };
        if line.starts_with("GPU ") {
            current = gpus.iter().position(|gpu| gpu.uuid == uuid);
        } else if let Some(gpu) = current.and_then(|index| gpus.get_mut(index))
            && line.trim_start().starts_with("MIG ")
        {
            // "MIG 1g.5gb     Device  0: (UUID: …": the profile is the second word.
            let profile = line.split_whitespace().nth(1).unwrap_or("?");
            let name = format!("{} MIG {profile}", gpu.name);
            let number = line.split_once("Device").map(|(_, rest)| rest.trim_start());
            let number = number.and_then(|rest| rest.split_once(':'));
            gpu.instances.push(Instance {
                index: number
                    .and_then(|(number, _)| number.trim().parse().ok())
                    .unwrap_or_default(),
                name,
                uuid: uuid.to_owned(),
            });
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "0, NVIDIA H200, GPU-3a1b0c2d-0000-1111-2222-333344445555, 00000000:0A:00.0, 1654923012345\n\
                       1, NVIDIA GeForce RTX 4090, GPU-99990c2d-0000-1111-2222-333344445555, 00000000:0B:00.0, [N/A]\n";

    #[test]
    fn the_tools_table_is_read() {
        let gpus = parse_csv(CSV);
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[0].index, 0);
        assert_eq!(gpus[0].name, "NVIDIA H200");
        assert_eq!(gpus[0].uuid, "GPU-3a1b0c2d-0000-1111-2222-333344445555");
        assert_eq!(gpus[0].pci_bus_id, "00000000:0A:00.0");
        assert_eq!(gpus[0].serial, "1654923012345");
        assert_eq!(gpus[1].serial, "", "consumer boards have no serial");
    }

    #[test]
    fn lines_that_are_not_understood_hide_nothing_else() {
        let gpus = parse_csv("No devices were found\n\n1, NVIDIA L4, GPU-1\n");
        assert_eq!(gpus.len(), 1);
        assert_eq!(gpus[0].name, "NVIDIA L4");
    }

    #[test]
    fn mig_instances_are_read_from_the_list() {
        let gpus = parse_csv("0, NVIDIA A100-SXM4-40GB, GPU-a\n1, NVIDIA A100-SXM4-40GB, GPU-b\n");
        let list = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n\
                    GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n  \
                    MIG 3g.20gb     Device  0: (UUID: MIG-1)\n  \
                    MIG 1g.5gb      Device  1: (UUID: MIG-2)\n";
        let gpus = with_instances(gpus, list);
        assert!(gpus[0].instances.is_empty());
        assert_eq!(
            gpus[1].instances,
            [
                Instance {
                    index: 0,
                    name: "NVIDIA A100-SXM4-40GB MIG 3g.20gb".to_owned(),
                    uuid: "MIG-1".to_owned(),
                },
                Instance {
                    index: 1,
                    name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".to_owned(),
                    uuid: "MIG-2".to_owned(),
                },
            ]
        );
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn library_and_tool_agree_on_a_real_host() {
        let library = from_library().unwrap();
        assert!(!library.is_empty());
        let known = |gpus: Vec<FoundGpu>| -> Vec<(u32, String, String, usize)> {
            gpus.into_iter()
                .map(|gpu| (gpu.index, gpu.name, gpu.uuid, gpu.instances.len()))
                .collect()
        };
        assert_eq!(known(library), known(from_tool(Path::new("nvidia-smi"))));
    }
}
