//! Counters are read as kernels write them.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// Names and texts of files.
type Files<'a> = &'a [(&'a str, &'a str)];

fn write(dir: &Path, files: Files<'_>) {
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A host with four processors.
const EARLIER: Files<'_> = &[
    (
        "stat",
        "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\nintr 5\n",
    ),
    (
        "meminfo",
        "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n",
    ),
    (
        "diskstats",
        "8 0 sda 10 0 100 0 20 0 200 0 0\n8 1 sda1 10 0 100 0 20 0 200 0 0\n7 0 loop0 9 0 9 0 9 0 9 0 0\n",
    ),
    (
        "self/net/dev",
        "Inter-| Receive\n face |bytes\n    lo: 5000 1 0 0 0 0 0 0 5000 1\n  eth0: 100 1 0 0 0 0 0 0 50 1\n",
    ),
];
/// The same host later.
const LATER: Files<'_> = &[
    (
        "stat",
        "cpu  300 0 100 850 150 0 0 0 0 0\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\n",
    ),
    (
        "diskstats",
        "8 0 sda 14 0 110 0 26 0 220 0 0\n8 1 sda1 99 0 999 0 99 0 999 0 0\n",
    ),
    (
        "self/net/dev",
        "    lo: 9000 1 0 0 0 0 0 0 9000 1\n  eth0: 300 1 0 0 0 0 0 0 150 1\n",
    ),
];

/// What is measured over two seconds; `group`: files of the task's control group, then those that have changed.
fn measured(group: Option<(Files<'_>, Files<'_>)>) -> Value {
    let (proc, cgroup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = group.map(|_| OwnGroup::at(cgroup.path()));
    let (earlier, later) = group.unwrap_or_default();
    write(proc.path(), EARLIER);
    write(cgroup.path(), earlier);
    let mut machine = Machine::new(proc.path(), own, &[Volume::at("/no/such/path")]);
    let (start, mut averages) = (Instant::now(), Averages::default());
    machine.sample(start, &mut Averages::default());
    write(proc.path(), LATER);
    write(cgroup.path(), later);
    machine.sample(start + Duration::from_secs(2), &mut averages);
    Value::Object(averages.document())
}

#[test]
fn a_task_without_a_group_of_its_own_shows_the_host() {
    assert_eq!(
        measured(None),
        json!({
            "cpu": {"cpu_util_simple": 50.0},
            "memory": {"memory_free": 4_096_000.0},
            "disk": {"disk_iops": 5.0, "disk_throughput_read": 2560.0, "disk_throughput_write": 5120.0},
            "network": {"net_throughput_recv": 100.0, "net_throughput_sent": 50.0},
        })
    );
}

#[test]
fn a_task_with_a_group_of_its_own_shows_what_it_uses_of_its_limits() {
    let found = measured(Some((
        &[
            ("cpu.stat", "usage_usec 1000000\nuser_usec 1\n"),
            ("cpu.max", "200000 100000\n"),
            ("memory.max", "1000000\n"),
            ("memory.current", "700000\n"),
            ("memory.stat", "anon 1\ninactive_file 100000\n"),
            (
                "io.stat",
                "8:0 rbytes=100 wbytes=0 rios=1 wios=0 dbytes=0\n",
            ),
        ],
        &[
            ("cpu.stat", "usage_usec 3000000\nuser_usec 1\n"),
            (
                "io.stat",
                "8:0 rbytes=300 wbytes=400 rios=3 wios=2\n8:16 rbytes=0 wbytes=0 rios=2 wios=0\n",
            ),
        ],
    )));
    // One of two processors.
    assert_eq!(found["cpu"], json!({"cpu_util_simple": 50.0}));
    assert_eq!(found["memory"], json!({"memory_free": 400_000.0}));
    assert_eq!(
        found["disk"],
        json!({"disk_iops": 3.0, "disk_throughput_read": 100.0, "disk_throughput_write": 200.0})
    );
}

#[test]
fn a_group_of_version_one_and_one_without_limits_are_read_too() {
    let found = measured(Some((
        &[
            ("cpuacct.usage", "1000000000\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "700000\n"),
            (
                "memory.stat",
                "inactive_file 5\ntotal_inactive_file 100000\n",
            ),
        ],
        &[("cpuacct.usage", "3000000000\n")],
    )));
    // One of the host's four processors; the host's memory ends before the limit.
    assert_eq!(found["cpu"], json!({"cpu_util_simple": 25.0}));
    assert_eq!(found["memory"], json!({"memory_free": 4_096_000.0}));
    assert_eq!(found["disk"]["disk_iops"], 5.0);
}

#[test]
fn partitions_and_what_is_made_of_disks_are_no_disks() {
    let names = [
        "sda",
        "sda1",
        "nvme0n1",
        "nvme0n1p1",
        "nvme0n10",
        "dm-0",
        "md0",
        "loop1",
        "vdb",
    ];
    let disks: Vec<&str> = names
        .into_iter()
        .filter(|name| is_disk(name, &names))
        .collect();
    assert_eq!(disks, ["sda", "nvme0n1", "nvme0n10", "vdb"]);
}

#[test]
fn odd_text_is_no_value() {
    for text in ["", "cpu", "cpu  a b", "cpu  1 2 3"] {
        assert_eq!(host_ticks(text), None, "{text:?}");
    }
    assert_eq!(available_memory("MemAvailable: x kB"), None);
    assert_eq!(disks("8 0 sda 1"), Disk::default());
    assert_eq!(network("eth0: x"), (0.0, 0.0));
    assert_eq!(used_percent("/no/such/path"), None);
    let root = used_percent("/").unwrap();
    assert!((0.0..=100.0).contains(&root), "{root}");
}
