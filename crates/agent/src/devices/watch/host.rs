//! How much the processors and the memory of a host are used.

use std::fs;
use std::path::Path;

use det_agent_proto::DeviceReport;
use det_ids::SlotId;

/// Use of the whole host.
#[derive(Debug, Default, PartialEq)]
pub(super) struct HostUse {
    /// Busy and all ticks of the processors.
    ticks: Option<(u64, u64)>,
    /// Bytes of memory that are available, and all.
    memory: Option<(u64, u64)>,
}

impl HostUse {
    /// Reads the files of `/proc`.
    pub(super) fn read(proc: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
        Self {
            ticks: ticks(&read("stat")),
            memory: memory(&read("meminfo")),
        }
    }
}

fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|word| word.parse().ok())
        .collect();
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or_default();
    let all: u64 = ticks.iter().sum();
    Some((all.saturating_sub(idle), all))
}

fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes.saturating_mul(1024))
    };
    Some((bytes("MemAvailable:")?, bytes("MemTotal:")?))
}

/// The report of the slot that the host is.
pub(super) fn report(slot: SlotId, before: Option<&HostUse>, now: &HostUse) -> DeviceReport {
    let before = before.and_then(|before| before.ticks);
    let used = before.zip(now.ticks).and_then(|(before, now)| {
        let (busy, all) = (
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        );
        let percent = busy.saturating_mul(100).checked_div(all)?;
        u32::try_from(percent.min(100)).ok()
    });
    DeviceReport {
        slot,
        used_percent: used,
        memory_used_bytes: now.memory.map(|(free, all)| all.saturating_sub(free)),
        memory_bytes: now.memory.map(|(_, all)| all),
        celsius: None,
        fault: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_as_one_slot_shows_its_processors_and_memory() {
        let before = HostUse {
            ticks: ticks("cpu  100 0 100 700 100 0 0 0 0 0\n"),
            memory: None,
        };
        let now = HostUse {
            ticks: ticks("cpu  300 0 100 850 150 0 0 0 0 0\n"),
            memory: memory("MemTotal: 100 kB\nMemAvailable: 25 kB\n"),
        };
        let first = report(SlotId(0), Some(&before), &now);
        assert_eq!(first.used_percent, Some(50));
        assert_eq!(
            (first.memory_used_bytes, first.memory_bytes),
            (Some(75 << 10), Some(100 << 10))
        );
        assert_eq!(report(SlotId(0), None, &now).used_percent, None);
        assert_eq!((ticks("cpu  x"), memory("")), (None, None));
    }
}
