//! System metrics of a task that runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use det_ids::{RunId, TrialId};
use det_taskspec::{Sampling, SystemMetrics};
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};

use crate::exited;
use crate::support::{self, Master, Task, need_sandbox, wait_for};

const PATH: &str = "/api/v1/trials/3/system_metrics";

/// A task that is measured every second; a report is made of two samples.
fn measured(master: &Master, entrypoint: &str) -> Task {
    let mut task = Task::shell(master, entrypoint);
    task.script.system_metrics = Some(SystemMetrics {
        trial_id: TrialId(3),
        run_id: RunId(5),
        sample_seconds: 1,
        samples_per_report: 2,
    });
    task
}

/// The reports so far.
fn reports(master: &Master) -> Vec<Value> {
    let requests = master.requests().into_iter();
    requests
        .filter(|request| request.path == PATH)
        .flat_map(|request| request.body["reports"].as_array().unwrap().clone())
        .collect()
}

#[test]
fn a_short_task_is_measured_once_at_its_end() {
    need_sandbox!();
    let master = Master::start();
    master.answer(PATH, 200, json!({"collect": true}));
    let ended = measured(&master, "true").run();
    assert_eq!(ended.exit(), exited(0));
    let request = master.request(PATH).unwrap();
    assert_eq!(
        (request.method.as_str(), request.token.as_deref()),
        ("POST", Some("Bearer secret"))
    );
    assert_eq!(request.body["trialRunId"], 5);
    assert_eq!(request.body["agentId"], "agent-1");
    assert_eq!(request.body["again"], false);
    let reports = reports(&master);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0]["reportId"], "container-1");
    assert!(reports[0]["time"].as_str().unwrap().ends_with('Z'));
    let groups = &reports[0]["groups"];
    for (group, name) in [
        ("cpu", "cpu_util_simple"),
        ("memory", "memory_free"),
        ("disk", "disk_throughput_write"),
        ("network", "net_throughput_sent"),
    ] {
        let value = groups[group][name].as_f64();
        assert!(value.is_some_and(|value| value >= 0.0), "{groups}");
    }
    // Of the file system with the task's own files; that of the sandbox's root is empty.
    let full = groups["disk"]["/"]["disk_util"].as_f64().unwrap();
    assert!(full > 0.0, "{full}");
    let disk = statvfs(ended.dir.path()).unwrap();
    let used = disk.blocks() - disk.blocks_free();
    let percent = used * 100 / (used + disk.blocks_available());
    let percent = f64::from(u32::try_from(percent).unwrap());
    // Other programs use the disk too.
    assert!((full - percent).abs() < 10.0, "{full}, {percent}");
    assert_eq!(groups["gpu"], Value::Null);
}

#[test]
fn a_task_that_is_no_trials_is_measured_as_itself() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(&master, "true");
    task.script.task_metrics = Some(Sampling {
        sample_seconds: 1,
        samples_per_report: 2,
    });
    let path = format!("/api/v1/tasks/{}/system_metrics", task.script.task_id);
    master.answer(&path, 200, json!({"collect": true}));
    assert_eq!(task.run().exit(), exited(0));
    let request = master.request(&path).unwrap();
    assert_eq!(request.body["agentId"], "agent-1");
    let reports = request.body["reports"].as_array().unwrap();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0]["reportId"], "container-1");
    assert!(reports[0]["groups"]["memory"]["memory_free"].is_number());
}

#[test]
fn gpus_are_those_that_the_task_may_use() {
    need_sandbox!();
    let master = Master::start();
    master.answer(PATH, 200, json!({"collect": true}));
    let tools = tempfile::tempdir().unwrap();
    let tool = tools.path().join("nvidia-smi");
    let text = "#!/bin/sh\necho 0, GPU-a, 40, 1024\necho 1, GPU-b, 50, 1024\n";
    fs::write(&tool, text).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let task = measured(&master, "mkfifo go; read -r go < go; echo end")
        .mount(tools.path(), "/tools", true)
        .env("PATH", "/tools:/usr/bin:/bin")
        .env("DET_SLOT_IDS", "[1]")
        .env("CUDA_VISIBLE_DEVICES", "GPU-b")
        .start();
    let gpu = wait_for("a report of a GPU", || {
        let mut reports = reports(&master).into_iter();
        reports.find_map(|report| report["groups"].get("gpu").cloned())
    });
    assert_eq!(
        gpu,
        json!({"GPU-b": {"gpu_util": 50.0, "gpu_free_memory": 1_073_741_824.0}})
    );
    task.let_go("go");
    assert_eq!(task.wait().exit(), exited(0));
}

#[test]
fn a_task_neither_waits_for_its_metrics_nor_fails_by_them() {
    need_sandbox!();
    let master = Master::start();
    for (status, note) in [(503, "trying on"), (404, "are not collected")] {
        master.answer(PATH, status, json!({"message": "no"}));
        let ended = measured(&master, "true").run();
        assert_eq!(ended.exit(), exited(0));
        assert!(ended.notes().contains(note), "{}", ended.notes());
    }
    // What was sent without an answer is marked.
    let requests = master.requests();
    assert!(
        requests
            .iter()
            .any(|request| request.path == PATH && request.body["again"] == true)
    );
}

#[test]
fn nothing_more_is_measured_once_the_master_wants_nothing() {
    need_sandbox!();
    let master = Master::start();
    master.answer(PATH, 200, json!({"collect": false}));
    let task = measured(&master, "mkfifo go; read -r go < go; echo end").start();
    wait_for("a report", || reports(&master).pop());
    task.let_go("go");
    assert_eq!(task.wait().exit(), exited(0));
    assert_eq!(reports(&master).len(), 1);
}
