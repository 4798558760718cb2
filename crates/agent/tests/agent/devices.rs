//! The host, and devices that are watched, with a stand-in for the driver's tool and a file in place of the kernel's log.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use det_agent::SlotType;
use det_agent_proto::DeviceReport;
use det_ids::SlotId;

use crate::common::{Agent, FakeMaster, options, stub_supervisor};

/// Prints two GPUs to who looks for slots, and what is in the file `state` to who watches them.
const TOOL: &str = r#"#!/bin/sh
case "$1" in
    --query-gpu=index,*) echo "0, A, GPU-a, 00000000:3B:00.0, 1"; echo "1, B, GPU-b, 00000000:AF:00.0, 2" ;;
    --query-gpu=uuid,*) cat "$(dirname "$0")/state" ;;
esac
"#;

fn put(root: &Path, name: &str, text: &str) {
    let new = root.join(format!("{name}.new"));
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&new, root.join(name)).unwrap();
}

async fn device(
    master: &FakeMaster,
    slot: u32,
    wanted: impl Fn(&DeviceReport) -> bool,
) -> DeviceReport {
    master
        .wait("a report of a device", |received| {
            let mut reports = received.devices.iter();
            let report = reports.find(|report| report.slot == SlotId(slot));
            report.filter(|report| wanted(report)).cloned()
        })
        .await
}

#[tokio::test]
async fn use_and_faults_of_gpus_are_reported_as_they_change() {
    let root = tempfile::tempdir().unwrap();
    let log = root.path().join("kmsg");
    std::fs::write(&log, "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, long ago\n").unwrap();
    put(root.path(), "nvidia-smi", TOOL);
    let well = "GPU-a, 00000000:3B:00.0, 40, 1024, 2048, 50, 0, Not Active\n\
                GPU-b, 00000000:AF:00.0, 0, 0, 2048, 40, 0, Not Active\n";
    put(root.path(), "state", well);
    let master = FakeMaster::start().await;
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    options.slot_type = SlotType::Cuda;
    options.gpu_tool = root.path().join("nvidia-smi");
    options.kernel_log.clone_from(&log);
    options.devices_every = Duration::from_millis(10);
    let agent = Agent::start(options);
    let first = device(&master, 0, |_| true).await;
    assert_eq!(
        first,
        DeviceReport {
            slot: SlotId(0),
            used_percent: Some(40),
            memory_used_bytes: Some(1 << 30),
            memory_bytes: Some(2 << 30),
            celsius: Some(50),
            fault: None,
        }
    );
    put(root.path(), "state", &well.replace("40, 1024", "90, 1024"));
    device(&master, 0, |device| device.used_percent == Some(90)).await;

    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(b"4,2,2,-;NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.\n")
        .unwrap();
    let broken = device(&master, 1, |device| device.fault.is_some()).await;
    assert_eq!(
        broken.fault.as_deref(),
        Some("Xid 79 (the GPU has fallen off the bus)")
    );
    put(root.path(), "state", well.lines().nth(1).unwrap());
    let missing = device(&master, 0, |device| device.fault.is_some()).await;
    assert!(missing.fault.unwrap().contains("does not report"));
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn a_host_that_cannot_write_is_reported_until_it_can() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    options.host_look_pause = Duration::from_millis(10);
    let well = Agent::start(options.clone());
    let reported = |wanted: bool| {
        master.wait("a report of the host", move |received| {
            let host = received.host.clone()?;
            (host.fault.is_some() == wanted).then_some(host)
        })
    };
    reported(false).await;
    well.shut_down().await.unwrap();

    // Where the file of the look should be, there is something else.
    let in_the_way = options.data_dir.join("probe");
    std::fs::create_dir(&in_the_way).unwrap();
    let agent = Agent::start(options);
    let fault = reported(true).await.fault.unwrap();
    assert!(
        fault.starts_with("cannot write to the data directory \""),
        "{fault}"
    );
    std::fs::remove_dir(&in_the_way).unwrap();
    reported(false).await;
    agent.shut_down().await.unwrap();
}
