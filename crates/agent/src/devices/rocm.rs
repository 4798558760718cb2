//! AMD GPUs: from the kernel's topology files, else from `rocm-smi`.
//!
//! The files: <https://docs.kernel.org/gpu/amdgpu/> and the `kfd` topology below `/sys/class/kfd`; a node with compute
//! units is a GPU, a node without is a processor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{FoundGpu, tool_output};

/// Every AMD GPU of the host; empty without a driver.
pub(super) fn detect() -> Vec<FoundGpu> {
    let gpus = from_topology(
        Path::new("/sys/class/kfd/kfd/topology/nodes"),
        Path::new("/sys/class/drm"),
    );
    if !gpus.is_empty() {
        return gpus;
    }
    tool_output(
        "rocm-smi",
        &[
            "--showid",
            "--showuniqueid",
            "--showproductname",
            "--showbus",
            "--showserial",
            "--json",
        ],
    )
    .map(|json| parse_tool(&json))
    .unwrap_or_default()
}

/// Reads the topology directory.
fn from_topology(nodes: &Path, drm: &Path) -> Vec<FoundGpu> {
    let Ok(entries) = std::fs::read_dir(nodes) else {
        return Vec::new();
    };
    let mut numbered: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    numbered.sort();
    let mut gpus = Vec::new();
    for (_, node) in numbered {
        let Ok(text) = std::fs::read_to_string(node.join("properties")) else {
            continue;
        };
        let properties = parse_properties(&text);
        let property = |name: &str| properties.get(name).copied().unwrap_or(0);
        if property("simd_count") == 0 {
            continue;
        }
        let minor = property("drm_render_minor");
        let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let location = property("location_id");
        let product =
            std::fs::read_to_string(drm.join(format!("renderD{minor}/device/product_name")))
                .or_else(|_| std::fs::read_to_string(node.join("name")))
                .unwrap_or_default();
        let unique_id = property("unique_id");
        gpus.push(FoundGpu {
            index,
            name: match product.trim() {
                "" => "AMD GPU".to_owned(),
                name => name.to_owned(),
            },
            // The spelling that ROCR_VISIBLE_DEVICES takes. Boards without an identity are known by their number.
            uuid: if unique_id == 0 {
                index.to_string()
            } else {
                format!("GPU-{unique_id:016x}")
            },
            pci_bus_id: format!(
                "{:04x}:{:02x}:{:02x}.{:x}",
                property("domain"),
                (location >> 8) & 0xff,
                (location >> 3) & 0x1f,
                location & 0x7
            ),
            nodes: render_nodes(minor),
            ..FoundGpu::default()
        });
    }
    gpus
}

fn render_nodes(minor: u64) -> Vec<PathBuf> {
    if minor == 0 {
        return Vec::new();
    }
    vec![PathBuf::from(format!("/dev/dri/renderD{minor}"))]
}

/// `name number` on each line.
fn parse_properties(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
        .collect()
}

/// Reads `rocm-smi … --json`: one object per card, keys as the tool prints them.
fn parse_tool(json: &str) -> Vec<FoundGpu> {
    let cards: BTreeMap<String, BTreeMap<String, serde_json::Value>> = match serde_json::from_str(
        json,
    ) {
        Ok(cards) => cards,
        Err(error) => {
            tracing::warn!(%error, "rocm-smi printed what is not understood, so no AMD GPU is offered");
            return Vec::new();
        }
    };
    let mut gpus: Vec<FoundGpu> = cards
        .into_iter()
        .filter_map(|(card, fields)| {
            let index: u32 = card.strip_prefix("card")?.parse().ok()?;
            let field = |names: &[&str]| {
                names
                    .iter()
                    .find_map(|name| fields.get(*name)?.as_str())
                    .filter(|text| !text.is_empty() && *text != "N/A")
                    .map(str::to_owned)
            };
            let uuid = field(&["Unique ID"]).map_or_else(
                || index.to_string(),
                |id| format!("GPU-{}", id.trim_start_matches("0x")),
            );
            Some(FoundGpu {
                index,
                name: field(&["Card Series", "Card series", "Card model", "Card Model"])
                    .unwrap_or_else(|| "AMD GPU".to_owned()),
                uuid,
                pci_bus_id: field(&["PCI Bus"]).unwrap_or_default(),
                serial: field(&["Serial Number"]).unwrap_or_default(),
                // Render nodes are numbered from 128 in the order of the cards.
                nodes: render_nodes(128 + u64::from(index)),
                ..FoundGpu::default()
            })
        })
        .collect();
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_json_is_read_in_the_order_of_the_cards() {
        let json = r#"{
            "card10": {"Unique ID": "0xbbb", "Card Series": "Instinct MI300X", "PCI Bus": "0000:0A:00.0", "Serial Number": "S10"},
            "card2": {"GPU ID": "0x740c", "Unique ID": "0x5c88", "Card series": "Instinct MI250X", "PCI Bus": "0000:02:00.0", "Serial Number": "N/A"},
            "card3": {"Card series": ""},
            "system": {"Driver version": "6.7.0"}
        }"#;
        let gpus = parse_tool(json);
        let seen: Vec<(u32, &str, &str, &str)> = gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.index,
                    gpu.name.as_str(),
                    gpu.uuid.as_str(),
                    gpu.serial.as_str(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (2, "Instinct MI250X", "GPU-5c88", ""),
                (3, "AMD GPU", "3", ""),
                (10, "Instinct MI300X", "GPU-bbb", "S10"),
            ]
        );
        assert_eq!(gpus[0].nodes, [PathBuf::from("/dev/dri/renderD130")]);
    }

    #[test]
    fn what_is_not_json_offers_nothing() {
        assert!(parse_tool("WARNING: no AMD GPUs specified\n").is_empty());
        assert!(parse_tool("{}").is_empty());
    }

    #[test]
    fn the_kernels_topology_is_read_and_processors_are_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let nodes = root.path().join("nodes");
        for (node, properties) in [
            ("0", "cpu_cores_count 64\nsimd_count 0\n"),
            (
                "1",
                "simd_count 440\ndrm_render_minor 128\nunique_id 6667575417123456\nlocation_id 49664\ndomain 0\n",
            ),
            (
                "2",
                "simd_count 440\ndrm_render_minor 129\nunique_id 0\nlocation_id 50688\ndomain 1\n",
            ),
        ] {
            std::fs::create_dir_all(nodes.join(node)).unwrap();
            std::fs::write(nodes.join(node).join("properties"), properties).unwrap();
        }
        std::fs::write(nodes.join("2/name"), "gfx90a\n").unwrap();
        let gpus = from_topology(&nodes, &root.path().join("drm"));
        assert_eq!(gpus.len(), 2);
        assert_eq!(
            gpus[0].uuid,
            format!("GPU-{:016x}", 6_667_575_417_123_456u64)
        );
        assert_eq!(gpus[0].pci_bus_id, "0000:c2:00.0");
        assert_eq!(gpus[0].nodes, [PathBuf::from("/dev/dri/renderD128")]);
        assert_eq!(
            (gpus[1].name.as_str(), gpus[1].uuid.as_str()),
            ("gfx90a", "1")
        );
        assert_eq!(gpus[1].pci_bus_id, "0001:c6:00.0");
    }

    #[test]
    fn a_host_without_the_driver_offers_nothing() {
        let nowhere = Path::new("/nonexistent");
        assert!(from_topology(nowhere, nowhere).is_empty());
    }
}
