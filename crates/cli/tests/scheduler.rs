//! `det scheduler simulate`.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{StubMaster, ok};

const NIGHT: &str = "\
name: an urgent job on a busy machine
pool:
  scheduler: {type: priority, preemption: true}
agents: {id: gpu, slots: 4}
steps:
  - submit: {job: search, tasks: 6, duration: 30m}
  - at: 10m
    submit: {job: urgent, priority: 1, slots: 2, duration: 5m}
    expect:
      running: {urgent: 1, search: 2}
until: rest
";

/// A user whose master must not be contacted.
fn alone() -> User {
    let user = User::at("http://127.0.0.1:9");
    user.write("night.yaml", NIGHT);
    user
}

#[test]
fn a_scenario_is_played_without_a_master() {
    let out = alone().det(&["scheduler", "simulate", "night.yaml"]).ok();
    for line in [
        "an urgent job on a busy machine",
        "scheduler: priority with preemption, default priority 42, best fit",
        "  0:10:00  4 of 4 slots in use",
        "           start  urgent.1 on gpu (2 slots)",
        " urgent | 1     | 1         | 0       | 0       | 0:10:00     | 0:00:00   | 0:00:00      | 0           | 600",
    ] {
        assert!(
            out.lines().any(|other| other.trim_end() == line),
            "{line}\n{out}"
        );
    }
    assert!(
        out.contains("stop   search.3, search.4 for urgent.1: work of priority 1 needs its slots"),
        "{out}"
    );
    assert!(
        out.contains("wait   search.5, search.6: needs 1 slot"),
        "{out}"
    );
    assert!(out.contains("of the slots in service were used"), "{out}");
}

#[test]
fn it_may_come_from_standard_input_and_go_out_as_json() {
    let run = alone().det_typing(&["scheduler", "simulate", "-", "--json"], NIGHT);
    let report: Value = serde_json::from_str(&run.ok()).unwrap();
    assert_eq!(report["mismatches"], json!([]));
    let moment = &report["moments"][1];
    assert_eq!(moment["at"], 600.0);
    assert_eq!(moment["queue"][0]["job"], "urgent");
    assert_eq!(moment["running"].as_array().unwrap().len(), 3);
    assert_eq!(moment["decisions"][0]["kind"], "stop");
}

#[test]
fn what_does_not_happen_as_expected_is_reported() {
    let user = alone();
    user.write("wrong.yaml", &NIGHT.replace("search: 2}", "search: 3}"));
    let run = user.det(&["scheduler", "simulate", "wrong.yaml"]);
    assert!(run.out.contains("start  urgent.1"), "{run:?}");
    let error = run.fails(1);
    assert!(
        error.contains("wrong.yaml: step 2 (line 7): running.search: expected 3"),
        "{error}"
    );
}

#[test]
fn errors_are_reported_all_at_once_with_line_and_path() {
    let user = alone();
    user.write(
        "bad.yaml",
        "agents: {id: a, slots: -1}\nsteps:\n  - submitt: {job: x}\n",
    );
    let error = user.det(&["scheduler", "simulate", "bad.yaml"]).fails(1);
    assert!(
        error.contains("bad.yaml: line 1: agents.slots: "),
        "{error}"
    );
    assert!(error.contains("bad.yaml: line 3: steps[0]"), "{error}");
    assert!(error.contains("submit"), "{error}");
    user.det(&["scheduler", "simulate"]).fails(2);
    user.det(&["scheduler", "simulate", "night.yaml", "--policy", "first"])
        .fails(2);
}

#[test]
fn policies_are_compared_row_by_row() {
    let out = alone()
        .det(&[
            "scheduler",
            "simulate",
            "night.yaml",
            "--policy",
            "priority,fair-share",
            "--policy",
            "round-robin",
        ])
        .ok();
    let rows: Vec<&str> = out
        .lines()
        .skip(2)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(rows, ["priority", "fair-share", "round-robin"], "{out}");
    assert!(out.contains("Utilisation"), "{out}");
    assert!(
        out.contains("No job waits, starts or ends at another time"),
        "{out}"
    );
}

#[test]
fn jobs_that_fare_differently_are_compared_those_first_that_change_most() {
    let user = alone();
    user.write(
        "two.yaml",
        "agents: {id: a, slots: 1}\nuntil: rest\nsteps:\n- submit: {job: early, tasks: 3, duration: 10m, priority: 50}\n- submit: {job: urgent, duration: 10m, priority: 1}\n- submit: {job: last, duration: 10m, priority: 60}\n",
    );
    let out = user
        .det(&[
            "scheduler",
            "simulate",
            "two.yaml",
            "--policy",
            "priority,round-robin",
        ])
        .ok();
    assert!(
        out.contains("priority: wait, start, end") && out.contains("round-robin: wait, start, end"),
        "{out}"
    );
    let jobs: Vec<&str> = out
        .lines()
        .skip_while(|line| !line.contains("wait, start, end"))
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(jobs, ["urgent", "early"], "{out}");
    let none = "agents: {id: a, slots: 0}\nsteps:\n- submit: {job: x, slots: 0, duration: 1m}\nuntil: rest\n";
    user.write("none.yaml", none);
    let out = user.det(&["scheduler", "simulate", "none.yaml"]).ok();
    assert!(out.contains("no slot was in service"), "{out}");
    assert!(!out.contains("of 0 slots"), "{out}");
}

fn cluster() -> StubMaster {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/resource-pools",
        ok(json!({"resourcePools": [
            {"name": "gpus", "defaultComputePool": true, "schedulerType": "SCHEDULER_TYPE_PRIORITY",
             "schedulerFittingPolicy": "FITTING_POLICY_BEST", "auxContainerCapacityPerAgent": 10,
             "details": {"priorityScheduler": {"preemption": false, "defaultPriority": 42}}},
        ]})),
    );
    let slot = |number: &str, container: Value| json!({"id": number, "enabled": true, "draining": false, "container": container});
    stub.on(
        "GET /api/v1/agents",
        ok(json!({"agents": [
            {"id": "a", "resourcePools": ["gpus"], "enabled": true, "draining": false,
             "slots": {"0": slot("0", json!({"id": "c"})), "1": slot("1", Value::Null)}},
            {"id": "b", "resourcePools": ["other"], "enabled": true, "draining": false,
             "slots": {"0": slot("0", Value::Null)}},
        ]})),
    );
    stub.on(
        "GET /api/v1/tasks",
        ok(json!({"allocationIdToSummary": {
            "7.x.1": {"taskId": "7.x", "allocationId": "7.x.1", "jobId": "job-7", "registeredTime": "2026-11-21T10:00:00Z",
                      "resourcePool": "gpus", "slotsNeeded": 1,
                      "resources": [{"agentDevices": {"a": {"devices": [{"id": 0}]}}}]},
            "8.y.1": {"taskId": "8.y", "allocationId": "8.y.1", "jobId": "job-8", "registeredTime": "2026-11-21T11:00:00Z",
                      "resourcePool": "gpus", "slotsNeeded": 2, "resources": []},
        }})),
    );
    let job = |id: &str, time: &str| {
        json!({"full": {"jobId": format!("job-{id}"), "entityId": id, "type": "TYPE_EXPERIMENT", "submissionTime": time, "resourcePool": "gpus",
                        "isPreemptible": true, "priority": 42, "weight": 1.0, "workspaceId": 3}})
    };
    stub.on(
        "GET /api/v1/job-queues-v2",
        ok(json!({"jobs": [job("7", "2026-11-21T10:00:00Z"), job("8", "2026-11-21T11:00:00Z")]})),
    );
    for id in ["7", "8"] {
        stub.on(
            &format!("GET /api/v1/experiments/{id}"),
            ok(json!({"experiment": {"id": id}, "config": {"resources": {"is_single_node": null}}})),
        );
    }
    stub.on("GET /api/v1/workspaces", ok(json!({"workspaces": []})));
    stub.on(
        "GET /api/v1/master/config",
        ok(json!({"config": {"resource_manager": {"scheduler": {"allow_heterogeneous_fits": true}}}})),
    );
    stub
}

#[test]
fn todays_queue_is_the_start() {
    let stub = cluster();
    let user = User::using(&stub);
    let run = user.det(&[
        "scheduler",
        "simulate",
        "--from-cluster",
        "--duration",
        "2h",
    ]);
    assert!(run.err.contains("taken to run for 2h"), "{run:?}");
    let out = run.ok();
    for line in [
        "resource pool gpus",
        "best fit, uneven fits allowed",
        "wait   8.1: needs 2 slots",
        "2:00:00  2 of 2 slots in use",
        "start  8.1 on a (2 slots)",
        "4:00:00 simulated",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
}

#[test]
fn the_steps_of_a_file_go_on_from_there() {
    let stub = cluster();
    let user = User::using(&stub);
    user.write(
        "more.yaml",
        "steps:\n  - after: 10m\n    join: {id: new, slots: 2}\n    expect: {running: {'8': new}}\n",
    );
    user.det(&["scheduler", "simulate", "more.yaml", "--from-cluster"])
        .ok();
    user.write("night.yaml", NIGHT);
    let error = user
        .det(&["scheduler", "simulate", "night.yaml", "--from-cluster"])
        .fails(1);
    assert!(error.contains("agents: come from the cluster"), "{error}");
    let error = user
        .det(&["scheduler", "simulate", "--from-cluster", "--pool", "x"])
        .fails(1);
    assert!(
        error.contains("no resource pool \"x\"") && error.contains("gpus"),
        "{error}"
    );
}

#[test]
fn limits_of_workspaces_come_along() {
    let stub = cluster();
    stub.on(
        "GET /api/v1/workspaces",
        ok(json!({"workspaces": [
            {"id": 1, "name": "Uncategorized", "maxSlots": null}, {"id": 3, "name": "vision", "maxSlots": 2},
        ]})),
    );
    let user = User::using(&stub);
    user.write(
        "more.yaml",
        "steps:\n  - after: 10m\n    join: {id: new, slots: 2}\n",
    );
    let out = user
        .det(&["scheduler", "simulate", "more.yaml", "--from-cluster"])
        .ok();
    for line in [
        "wait   8.1: needs 2 slots, and workspace \"vision\" has 1 of at most 2 in use",
        // Slots for it are free from the tenth minute on.
        "0:10:00  1 of 4 slots in use",
        "7.1 ends\n           start  8.1 on new (2 slots)",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
}
