//! Processors, memory, disks and network: of the task's own control group where it has one, else of the host.
//!
//! Whose values they are: `docs/system-metrics.md`, "What is measured".

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::statvfs::statvfs;

use super::averages::{Averages, Group};
use crate::cgroup::OwnGroup;

/// Bytes of a sector in `/proc/diskstats`, whatever the disk has.
const SECTOR: f64 = 512.0;
const MICROS: f64 = 1_000_000.0;

/// Reads the machine as the task sees it.
pub(crate) struct Machine {
    proc: PathBuf,
    /// The control group of the task alone, if it has one.
    group: Option<OwnGroup>,
    /// File systems that are looked at.
    volumes: Vec<Volume>,
    /// How many processors the host has.
    processors: f64,
    before: Option<(Instant, Counters)>,
}

/// A file system whose filling is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Volume {
    /// The path that reports name.
    pub(crate) name: &'static str,
    /// A path in the file system, by which it is asked.
    pub(crate) path: &'static str,
}

impl Volume {
    /// One that is reported by the path at which it is looked at.
    pub(crate) fn at(path: &'static str) -> Self {
        Self { name: path, path }
    }
}

/// Counters that only grow: two readings give a rate. `None` = not to be read on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    /// Time that the host's processors were busy, and all of their time, in ticks.
    host_ticks: Option<(f64, f64)>,
    /// Processor time of the task's control group, in seconds.
    group_seconds: Option<f64>,
    disk: Option<Disk>,
    /// Bytes that were received and sent.
    network: Option<(f64, f64)>,
}

/// What was read from and written to disks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Disk {
    pub(crate) bytes_read: f64,
    pub(crate) bytes_written: f64,
    pub(crate) operations: f64,
}

impl Machine {
    /// Reads below `proc`, and those of `volumes` that exist.
    pub(crate) fn new(proc: &Path, group: Option<OwnGroup>, volumes: &[Volume]) -> Self {
        let exists = |volume: &&Volume| statvfs(volume.path).is_ok();
        let processors = fs::read_to_string(proc.join("stat"))
            .map_or(0, |text| processors(&text))
            .max(1);
        Self {
            proc: proc.to_owned(),
            group,
            volumes: volumes.iter().filter(exists).copied().collect(),
            processors: f64::from(u32::try_from(processors).unwrap_or(u32::MAX)),
            before: None,
        }
    }

    /// Adds a sample at `now`. The first one has no rates: they are since the sample before.
    pub(crate) fn sample(&mut self, now: Instant, into: &mut Averages) {
        let counters = self.counters();
        if let Some((then, before)) = self.before {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            if seconds <= 0.0 {
                return;
            }
            self.add_rates(&before, &counters, seconds, into);
        }
        self.before = Some((now, counters));
        if let Some(bytes) = self.free_memory() {
            into.add(Group::Memory, "memory_free", bytes);
        }
        for volume in &self.volumes {
            if let Some(percent) = used_percent(volume.path) {
                into.add_of(Group::Disk, volume.name, "disk_util", percent);
            }
        }
    }

    fn counters(&self) -> Counters {
        let group = self.group.as_ref();
        let read = |name: &str| fs::read_to_string(self.proc.join(name)).ok();
        Counters {
            host_ticks: read("stat").and_then(|text| host_ticks(&text)),
            group_seconds: group.and_then(OwnGroup::processor_seconds),
            disk: group
                .and_then(OwnGroup::disk)
                .or_else(|| read("diskstats").map(|text| disks(&text))),
            network: read("self/net/dev").map(|text| network(&text)),
        }
    }

    fn add_rates(&self, before: &Counters, after: &Counters, seconds: f64, into: &mut Averages) {
        let rate = |before: f64, after: f64| (after - before).max(0.0) / seconds;
        let utilisation = match (before.group_seconds, after.group_seconds) {
            (Some(before), Some(after)) => {
                let limit = self.group.as_ref().and_then(OwnGroup::processor_limit);
                let processors = limit.map_or(self.processors, |limit| limit.min(self.processors));
                Some(rate(before, after) / processors * 100.0)
            }
            _ => match (before.host_ticks, after.host_ticks) {
                (Some(before), Some(after)) if after.1 > before.1 => {
                    Some((after.0 - before.0).max(0.0) / (after.1 - before.1) * 100.0)
                }
                _ => None,
            },
        };
        if let Some(percent) = utilisation {
            into.add(Group::Cpu, "cpu_util_simple", percent.min(100.0));
        }
        if let (Some(before), Some(after)) = (before.disk, after.disk) {
            let mut add = |name, before, after| into.add(Group::Disk, name, rate(before, after));
            add("disk_iops", before.operations, after.operations);
            add("disk_throughput_read", before.bytes_read, after.bytes_read);
            add(
                "disk_throughput_write",
                before.bytes_written,
                after.bytes_written,
            );
        }
        if let (Some(before), Some(after)) = (before.network, after.network) {
            into.add(
                Group::Network,
                "net_throughput_recv",
                rate(before.0, after.0),
            );
            into.add(
                Group::Network,
                "net_throughput_sent",
                rate(before.1, after.1),
            );
        }
    }

    /// Bytes that the task can still take: below its own limit, if that is nearer than the end of the host's memory.
    fn free_memory(&self) -> Option<f64> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let host = available_memory(&text)?;
        let group = self.group.as_ref().and_then(OwnGroup::free_memory);
        Some(group.map_or(host, |free| free.min(host)))
    }
}

/// How much of the space that users may fill is filled, as `df` counts.
fn used_percent(path: &str) -> Option<f64> {
    let found = statvfs(path).ok()?;
    #[expect(
        clippy::useless_conversion,
        clippy::cast_precision_loss,
        reason = "the C type differs between platforms; 52 bits of blocks are enough"
    )]
    let count = |blocks| u64::from(blocks) as f64;
    let used = count(found.blocks()) - count(found.blocks_free());
    let all = used + count(found.blocks_available());
    (all > 0.0).then(|| used / all * 100.0)
}

/// The number of processors in `/proc/stat`.
fn processors(stat: &str) -> usize {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(is_processor).count()
}

/// Busy and total ticks of all processors, from `/proc/stat`. Waiting for disks is not busy, and time of guests is part of
/// user time already.
fn host_ticks(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .take(8)
        .map_while(|word| word.parse().ok())
        .collect();
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or_default();
    let total: f64 = ticks.iter().sum();
    Some((total - idle, total))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_memory(meminfo: &str) -> Option<f64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// What all disks of `/proc/diskstats` have done. Partitions and what is made of other disks would be counted twice.
fn disks(diskstats: &str) -> Disk {
    let rows: Vec<Vec<&str>> = diskstats
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| row.len() >= 10)
        .collect();
    let names: Vec<&str> = rows.iter().map(|row| row[2]).collect();
    let mut total = Disk::default();
    for row in rows.iter().filter(|row| is_disk(row[2], &names)) {
        let number = |place: usize| row[place].parse::<f64>().unwrap_or_default();
        total.operations += number(3) + number(7);
        total.bytes_read += number(5) * SECTOR;
        total.bytes_written += number(9) * SECTOR;
    }
    total
}

fn is_disk(name: &str, names: &[&str]) -> bool {
    const MADE_OF_OTHERS: [&str; 6] = ["loop", "ram", "zram", "dm-", "md", "sr"];
    !MADE_OF_OTHERS.iter().any(|prefix| name.starts_with(prefix))
        && !names.iter().any(|disk| is_partition_of(name, disk))
}

/// `sda1` is a partition of `sda`, `nvme0n1p1` one of `nvme0n1`.
fn is_partition_of(name: &str, disk: &str) -> bool {
    let Some(rest) = name.strip_prefix(disk) else {
        return false;
    };
    let number = if disk.ends_with(|c: char| c.is_ascii_digit()) {
        rest.strip_prefix('p')
    } else {
        Some(rest)
    };
    number.is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
}

/// Bytes received and sent over all interfaces of `/proc/net/dev` but the loopback one.
fn network(dev: &str) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for line in dev.lines() {
        let Some((name, counters)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let counters: Vec<f64> = counters
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        total.0 += counters.first().copied().unwrap_or_default();
        total.1 += counters.get(8).copied().unwrap_or_default();
    }
    total
}

impl OwnGroup {
    /// Processor time so far, in seconds.
    fn processor_seconds(&self) -> Option<f64> {
        let unified = || {
            let text = self.read("cpu", "cpu.stat")?;
            field(&text, "usage_usec").map(|micros| micros / MICROS)
        };
        let older = || Some(number(&self.read("cpuacct", "cpuacct.usage")?)? / (MICROS * 1000.0));
        unified().or_else(older)
    }

    /// How many processors the group may use at once; `None` = all of the host.
    fn processor_limit(&self) -> Option<f64> {
        let text = self.read("cpu", "cpu.max").or_else(|| {
            let quota = self.read("cpu", "cpu.cfs_quota_us")?;
            let period = self.read("cpu", "cpu.cfs_period_us")?;
            Some(format!("{} {}", quota.trim(), period.trim()))
        })?;
        let (quota, period) = text.trim().split_once(' ')?;
        let (quota, period) = (number(quota)?, number(period)?);
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }

    /// Bytes below the group's limit, what the kernel can drop at once among them; `None` = it has no limit.
    fn free_memory(&self) -> Option<f64> {
        let file = |unified: &str, older: &str| {
            let text = self.read("memory", unified);
            text.or_else(|| self.read("memory", older))
        };
        // "max" is no number.
        let limit = number(&file("memory.max", "memory.limit_in_bytes")?)?;
        let used = number(&file("memory.current", "memory.usage_in_bytes")?)?;
        let stat = self.read("memory", "memory.stat")?;
        let inactive =
            field(&stat, "total_inactive_file").or_else(|| field(&stat, "inactive_file"));
        Some((limit - used + inactive.unwrap_or_default()).clamp(0.0, limit))
    }

    /// What the group has read and written; `None` = the kernel does not count it for the group.
    fn disk(&self) -> Option<Disk> {
        let text = self.read("io", "io.stat")?;
        let mut total = Disk::default();
        for pair in text.split_whitespace() {
            let Some((name, value)) = pair.split_once('=') else {
                continue;
            };
            let value = number(value).unwrap_or_default();
            match name {
                "rbytes" => total.bytes_read += value,
                "wbytes" => total.bytes_written += value,
                "rios" | "wios" => total.operations += value,
                _ => {}
            }
        }
        Some(total)
    }
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

/// The number after `name ` at the begin of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests;
