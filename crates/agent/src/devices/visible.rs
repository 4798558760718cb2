//! Filters GPUs by a list of indices, UUIDs, PCI bus ids or board serials.

use super::FoundGpu;

/// Keeps the GPUs that `visible` names, in the driver's order; `None` keeps all, an empty list keeps none. MIG instances
/// may be named on their own. A word that names nothing is reported.
pub(super) fn filter(gpus: Vec<FoundGpu>, visible: Option<&str>) -> Vec<FoundGpu> {
    let Some(list) = visible else {
        return gpus;
    };
    let words: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    for word in &words {
        let known = gpus.iter().any(|gpu| {
            let mut instances = gpu.instances.iter();
            names(gpu, word) || instances.any(|instance| same_uuid(&instance.uuid, word))
        });
        if !known {
            tracing::warn!(
                "visible GPUs name \"{word}\", but no GPU of this host has that index, UUID, PCI bus id or serial"
            );
        }
    }
    gpus.into_iter()
        .filter_map(|mut gpu| {
            if words.iter().any(|word| names(&gpu, word)) {
                return Some(gpu);
            }
            gpu.instances
                .retain(|instance| words.iter().any(|word| same_uuid(&instance.uuid, word)));
            (!gpu.instances.is_empty()).then_some(gpu)
        })
        .collect()
}

fn names(gpu: &FoundGpu, word: &str) -> bool {
    word.parse::<u32>().is_ok_and(|index| index == gpu.index)
        || same_uuid(&gpu.uuid, word)
        || same_bus_id(&gpu.pci_bus_id, word)
        || (!gpu.serial.is_empty() && gpu.serial == word)
}

/// UUIDs may be shortened, as the driver itself allows, to `GPU-` or `MIG-` and some digits.
fn same_uuid(uuid: &str, word: &str) -> bool {
    let (uuid, word) = (uuid.to_ascii_lowercase(), word.to_ascii_lowercase());
    uuid == word || (word.len() > 4 && word.contains('-') && uuid.starts_with(&word))
}

/// The domain is printed with 4 or 8 digits, depending on the tool.
fn same_bus_id(bus_id: &str, word: &str) -> bool {
    let short = |text: &str| text.to_ascii_lowercase().trim_start_matches('0').to_owned();
    word.contains(':') && !bus_id.is_empty() && short(bus_id) == short(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Instance;

    fn instance(index: u32, uuid: &str) -> Instance {
        Instance {
            index,
            name: "m".into(),
            uuid: uuid.into(),
        }
    }

    fn host() -> Vec<FoundGpu> {
        (0..3u32)
            .map(|index| FoundGpu {
                index,
                name: "GPU".into(),
                uuid: format!("GPU-{index}aaa-bbbb"),
                pci_bus_id: format!("00000000:0{index}:00.0"),
                serial: format!("13{index}"),
                instances: if index == 2 {
                    vec![instance(0, "MIG-x1"), instance(1, "MIG-x2")]
                } else {
                    Vec::new()
                },
                ..FoundGpu::default()
            })
            .collect()
    }

    #[test]
    fn gpus_are_named_in_four_ways() {
        for (visible, expected) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("1"), vec![1]),
            (Some("1, 0"), vec![0, 1]),
            (Some("GPU-1aaa"), vec![1]),
            (Some("gpu-0AAA-bbbb"), vec![0]),
            (Some("0000:01:00.0"), vec![1]),
            (Some("131"), vec![1]),
            (Some("7,no-such"), vec![]),
        ] {
            let seen: Vec<u32> = filter(host(), visible)
                .iter()
                .map(|gpu| gpu.index)
                .collect();
            assert_eq!(seen, expected, "{visible:?}");
        }
    }

    #[test]
    fn one_mig_instance_may_be_named() {
        let seen = filter(host(), Some("MIG-x2"));
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].instances, [instance(1, "MIG-x2")]);
    }
}
