//! AMD GPUs, as the kernel's driver shows them below `/sys/class/drm/renderD128/device`.
//!
//! Use is in `gpu_busy_percent`, memory in `mem_info_vram_*`, temperature in `hwmon`, errors of each block in
//! `ras/*_err_count`; see <https://docs.kernel.org/gpu/amdgpu/>.

use std::fs;
use std::path::{Path, PathBuf};

use det_agent_proto::DeviceReport;
use det_ids::SlotId;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{MISSING_LOOKS, TOOL_WITHIN};
use crate::devices::LocalDevice;

/// What the driver shows of a GPU; `None` = it does not show that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Row {
    used_percent: Option<u32>,
    memory_used_bytes: Option<u64>,
    memory_bytes: Option<u64>,
    celsius: Option<u32>,
    /// Uncorrectable errors of all blocks since the driver was loaded.
    errors: u64,
}

impl Row {
    /// Reads the directory of a device; `None` = the driver does not show it. Blocking.
    fn read(device: &Path) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(device.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        // A device that has gone from the bus stays a directory for a while, and answers nothing.
        text("vendor")?;
        Some(Self {
            used_percent: number("gpu_busy_percent")
                .and_then(|percent| u32::try_from(percent.min(100)).ok()),
            memory_used_bytes: number("mem_info_vram_used"),
            memory_bytes: number("mem_info_vram_total"),
            celsius: celsius(&device.join("hwmon")),
            errors: errors(&device.join("ras")),
        })
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The temperature of the chip: at its edge, or where it is hottest.
fn celsius(hwmon: &Path) -> Option<u32> {
    let files: Vec<PathBuf> = entries(hwmon)
        .iter()
        .flat_map(|sensor| entries(sensor))
        .collect();
    ["edge", "junction"].iter().find_map(|place| {
        files.iter().find_map(|file| {
            let name = file.to_str()?.strip_suffix("_label")?;
            let label = fs::read_to_string(file).ok()?;
            if label.trim() != *place {
                return None;
            }
            let thousandths: u64 = fs::read_to_string(format!("{name}_input"))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            u32::try_from(thousandths / 1000).ok()
        })
    })
}

/// The sum of the lines `ue: N` of all blocks.
fn errors(ras: &Path) -> u64 {
    let counts = entries(ras).into_iter().filter_map(|file| {
        file.to_str()?.strip_suffix("_err_count")?;
        let text = fs::read_to_string(&file).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix("ue:"))?;
        count.trim().parse::<u64>().ok()
    });
    counts.fold(0, u64::saturating_add)
}

/// A GPU that is a slot.
#[derive(Debug)]
struct Gpu {
    slot: SlotId,
    device: PathBuf,
    /// Looks in a row at which the driver did not show it.
    missing: u32,
    /// What was seen last; `None` = nothing at the last look.
    newest: Option<Row>,
    errors: u64,
}

impl Gpu {
    fn note(&mut self, row: Option<Row>) {
        self.newest = row;
        match row {
            Some(row) => {
                self.missing = 0;
                self.errors = row.errors;
            }
            None => self.missing = self.missing.saturating_add(1),
        }
    }

    fn fault(&self) -> Option<String> {
        let mut faults = Vec::new();
        if self.missing >= MISSING_LOOKS {
            faults.push("the driver does not report this GPU any more".to_owned());
        }
        if self.errors > 0 {
            faults.push(format!(
                "uncorrectable errors (RAS) since the driver was loaded: {}",
                self.errors
            ));
        }
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    fn report(&self) -> DeviceReport {
        let row = self.newest;
        DeviceReport {
            slot: self.slot,
            used_percent: row.and_then(|row| row.used_percent),
            memory_used_bytes: row.and_then(|row| row.memory_used_bytes),
            memory_bytes: row.and_then(|row| row.memory_bytes),
            celsius: row.and_then(|row| row.celsius),
            fault: self.fault(),
        }
    }
}

/// The AMD GPUs that are slots.
#[derive(Debug, Default)]
pub(super) struct Amd {
    gpus: Vec<Gpu>,
    /// A look that a driver has not answered yet.
    pending: Option<JoinHandle<Vec<Option<Row>>>>,
}

impl Amd {
    /// Takes up a GPU whose directory is below `drm`; one without a device file cannot be watched.
    pub(super) fn add(&mut self, local: &LocalDevice, drm: &Path) {
        let Some(name) = local.nodes.first().and_then(|node| node.file_name()) else {
            return;
        };
        self.gpus.push(Gpu {
            slot: local.device.id,
            device: drm.join(name).join("device"),
            missing: 0,
            newest: None,
            errors: 0,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Looks at all of them. A driver that does not answer is no fault of a GPU, and is asked once until it does.
    pub(super) async fn look(&mut self) -> Vec<DeviceReport> {
        let devices: Vec<PathBuf> = self.gpus.iter().map(|gpu| gpu.device.clone()).collect();
        let read = move || devices.iter().map(|device| Row::read(device)).collect();
        let mut reading = self
            .pending
            .take()
            .unwrap_or_else(|| tokio::task::spawn_blocking(read));
        match timeout(TOOL_WITHIN, &mut reading).await {
            Ok(Ok(rows)) => {
                for (gpu, row) in self.gpus.iter_mut().zip(rows) {
                    gpu.note(row);
                }
            }
            Ok(Err(error)) => tracing::warn!("AMD GPUs cannot be watched: {error}"),
            Err(_) => {
                self.pending = Some(reading);
                self.gpus.iter_mut().for_each(|gpu| gpu.newest = None);
            }
        }
        self.gpus.iter().map(Gpu::report).collect()
    }
}

#[cfg(test)]
mod tests {
    use det_taskspec::{Device, DeviceKind};

    use super::*;

    fn put(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn watched(drm: &Path) -> Amd {
        let mut amd = Amd::default();
        for slot in 0..2 {
            let local = LocalDevice {
                device: Device {
                    id: SlotId(slot),
                    brand: "Instinct".into(),
                    uuid: format!("GPU-{slot}"),
                    kind: DeviceKind::Rocm,
                },
                nodes: vec![format!("/dev/dri/renderD{}", 128 + slot).into()],
                part_of: None,
            };
            amd.add(&local, drm);
        }
        amd
    }

    #[tokio::test]
    async fn what_the_driver_shows_is_reported() {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("vendor", "0x1002\n"),
            ("gpu_busy_percent", "37\n"),
            ("mem_info_vram_total", "206141652992\n"),
            ("mem_info_vram_used", "1073741824\n"),
            ("hwmon/hwmon3/temp1_label", "junction\n"),
            ("hwmon/hwmon3/temp1_input", "61000\n"),
            ("hwmon/hwmon3/temp2_label", "edge\n"),
            ("hwmon/hwmon3/temp2_input", "45000\n"),
            ("ras/umc_err_count", "ue: 0\nce: 12\n"),
        ] {
            put(root.path(), &format!("renderD128/device/{name}"), text);
        }
        put(root.path(), "renderD129/device/vendor", "0x1002\n");
        let mut amd = watched(root.path());
        let reports = amd.look().await;
        assert_eq!(
            reports[0],
            DeviceReport {
                slot: SlotId(0),
                used_percent: Some(37),
                memory_used_bytes: Some(1 << 30),
                memory_bytes: Some(206_141_652_992),
                celsius: Some(45),
                fault: None,
            }
        );
        assert_eq!((reports[1].used_percent, &reports[1].fault), (None, &None));
    }

    #[tokio::test]
    async fn errors_and_a_gpu_that_is_gone_are_faults() {
        let root = tempfile::tempdir().unwrap();
        for node in ["renderD128", "renderD129"] {
            put(root.path(), &format!("{node}/device/vendor"), "0x1002\n");
        }
        let mut amd = watched(root.path());
        let mut faults = async || {
            let reports = amd.look().await.into_iter();
            reports
                .map(|report| report.fault.unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(faults().await, ["", ""]);
        put(
            root.path(),
            "renderD128/device/ras/umc_err_count",
            "ue: 2\nce: 0\n",
        );
        put(
            root.path(),
            "renderD128/device/ras/gfx_err_count",
            "ue: 1\nce: 0\n",
        );
        put(root.path(), "renderD128/device/ras/features", "ue: 9\n");
        fs::remove_dir_all(root.path().join("renderD129/device")).unwrap();
        let first = faults().await;
        assert!(first[0].ends_with("loaded: 3"), "{first:?}");
        assert_eq!(first[1], "", "once is not enough");
        assert!(faults().await[1].contains("does not report"));
        put(root.path(), "renderD129/device/vendor", "0x1002\n");
        assert_eq!(faults().await[1], "");
    }
}
