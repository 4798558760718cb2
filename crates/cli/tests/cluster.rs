//! Agents, slots, tasks, jobs, the master, and searches that are only planned.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok, stream};

fn cluster() -> StubMaster {
    let stub = StubMaster::start();
    let slot = |id: &str, container: Value| {
        let (usage, fault) = match container {
            Value::Null => (Value::Null, "it is hot"),
            _ => (
                json!({"utilizationPercent": 35, "memoryUsedBytes": 2_i64 << 30, "memoryBytes": 80_i64 << 30, "celsius": 56}),
                "",
            ),
        };
        json!({"id": id, "device": {"id": 0, "brand": "H200", "type": "TYPE_CUDA", "uuid": "GPU-7b4ef7f3"},
               "enabled": true, "draining": false, "container": container, "usage": usage, "fault": fault})
    };
    stub.on(
        "GET /api/v1/agents",
        ok(json!({"agents": [
            {"id": "/agents/b", "version": "1", "registeredTime": "2026-11-21T10:00:00Z", "slots": {},
             "containers": {}, "resourcePools": ["default"], "enabled": false, "draining": true, "addresses": []},
            {"id": "a", "version": "1", "agentVersion": "0.1", "registeredTime": "2026-11-21T09:00:00Z",
             "slots": {"0": slot("0", json!({"id": "c1"})), "1": slot("1", Value::Null)},
             "containers": {"c1": {}}, "resourcePools": ["default"], "enabled": true, "draining": false,
             "addresses": ["10.0.0.1"]},
        ]})),
    );
    stub.on(
        "GET /api/v1/tasks",
        ok(json!({"allocationIdToSummary": {
            "7.r.1": {"taskId": "7.r", "username": "ada", "description": "mine", "allocationId": "7.r.1", "name": "Experiment 7", "registeredTime": "2026-11-21T10:00:00Z",
                      "resourcePool": "default", "slotsNeeded": 1, "priority": 42, "schedulerType": "priority",
                      "priorityOrder": "lower goes first",
                      "resources": [{"containerId": "c1", "agentDevices": {"a": {"devices": []}}}],
                      "proxyPorts": [{"port": 9000}, {"port": 80}]},
            "8.r.1": {"taskId": "8.r", "allocationId": "8.r.1", "name": "Experiment 8", "registeredTime": "2026-11-21T09:00:00Z",
                      "resourcePool": "default", "slotsNeeded": 4, "priority": 50, "schedulerType": "fair_share",
                      "resources": [], "proxyPorts": [],
                      "waitReason": {"kind": "noCapacity", "message": "3 more slots are needed", "since": "2026-11-21T09:00:01Z"}},
        }})),
    );
    stub
}

#[test]
fn agents_are_listed_in_every_form() {
    let user = User::using(&cluster());
    let csv = user.det(&["agent", "list", "--csv"]).ok();
    assert_eq!(
        csv,
        "Agent ID,Version,Registered Time,Slots,Containers,Resource Pool,Enabled,Draining,Addresses\n\
         b,1,2026-11-21 10:00:00+0000,0,0,default,False,True,\n\
         a,1,2026-11-21 09:00:00+0000,2,1,default,True,False,10.0.0.1\n"
    );
    let objects: Value = serde_json::from_str(&user.det(&["a", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects[1]["id"], "a");
    assert_eq!(objects[1]["agent_version"], "0.1");
    assert_eq!(objects[1]["num_slots"], 2);
    assert_eq!(objects[1]["resource_pools"], "default");
    let table = user.det(&["a", "list"]).ok();
    assert!(table.lines().nth(1).unwrap().starts_with("---"), "{table}");
    assert!(table.contains(" a "), "{table}");
}

#[test]
fn an_agent_whose_host_cannot_start_containers_is_named_with_the_reason() {
    let stub = StubMaster::start();
    let agent =
        json!({"id": "a1", "enabled": false, "draining": true, "fault": "the disk is full"});
    stub.on("GET /api/v1/agents", ok(json!({"agents": [agent]})));
    let user = User::using(&stub);
    let run = user.det(&["agent", "list"]);
    assert!(
        run.err.contains(
            "takes no new tasks until its host can start containers: a1: the disk is full"
        ),
        "{run:?}"
    );
    let csv = user.det(&["agent", "list", "--csv"]);
    assert!(!csv.err.contains("the disk is full"), "{csv:?}");
    let objects: Value = serde_json::from_str(&user.det(&["a", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects[0]["fault"], "the disk is full");
}

#[test]
fn an_agent_without_a_connection_is_not_shown_as_one_that_was_drained() {
    let stub = StubMaster::start();
    let agent = |id: &str, disconnected: bool| json!({"id": id, "enabled": false, "draining": true, "disconnected": disconnected});
    stub.on(
        "GET /api/v1/agents",
        ok(json!({"agents": [agent("away", true), agent("drained", false)]})),
    );
    let user = User::using(&stub);
    let run = user.det(&["agent", "list"]);
    assert!(
        run.err.contains("\ndisconnected: away; tasks there go on"),
        "{run:?}"
    );
    let table = run.ok();
    let row = |id: &str| {
        table
            .lines()
            .find(|line| line.contains(id))
            .unwrap()
            .to_owned()
    };
    assert!(row("away").contains("| disconnected | - "), "{table}");
    assert!(row("drained").contains("| True "), "{table}");
    // Scripts read what the API has.
    let csv = user.det(&["agent", "list", "--csv"]).ok();
    assert!(csv.contains("\naway,,,0,0,,False,True,\n"), "{csv}");
    let objects: Value = serde_json::from_str(&user.det(&["a", "ls", "--json"]).ok()).unwrap();
    assert_eq!(
        [&objects[0]["disconnected"], &objects[1]["disconnected"]],
        [true, false]
    );
}

#[test]
fn agents_are_disabled_and_drained() {
    let stub = cluster();
    stub.on("POST /api/v1/agents/a/disable", ok(json!({})));
    stub.on("POST /api/v1/agents/b/enable", ok(json!({})));
    stub.on("POST /api/v1/agents/a/enable", ok(json!({})));
    let user = User::using(&stub);

    user.det(&["agent", "disable", "a"]).ok();
    assert_eq!(stub.last("POST /api/v1/agents/a/disable").body, "");
    let run = user.det(&["agent", "disable", "a", "--drain", "--csv"]);
    assert!(run.err.contains("Tasks still in progress"), "{run:?}");
    assert!(
        run.out.contains("7.r.1") && !run.out.contains("8.r.1"),
        "{run:?}"
    );
    assert_eq!(
        stub.last("POST /api/v1/agents/a/disable").json(),
        json!({"drain": true})
    );

    user.det(&["agent", "enable", "--all"]).ok();
    stub.last("POST /api/v1/agents/b/enable");
    stub.last("POST /api/v1/agents/a/enable");
    user.det(&["agent", "enable"]).fails(2);
    user.det(&["agent", "enable", "a", "--all"]).fails(2);
}

#[test]
fn slots_show_who_is_on_them() {
    let stub = cluster();
    stub.on("POST /api/v1/agents/a/slots/1/disable", ok(json!({})));
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["slot", "list", "--csv"]).ok(),
        "Agent ID,Resource Pool,Slot ID,Enabled,Draining,Allocation ID,Task Name,Type,Device,Utilization,Memory,Temperature,Fault\n\
         a,default,0,True,False,7.r.1,Experiment 7,cuda,H200,35%,2.0GB of 80.0GB,56°C,\n\
         a,default,1,True,False,FREE,FREE,cuda,H200,,,,it is hot\n"
    );
    let objects: Value = serde_json::from_str(&user.det(&["slot", "ls", "--json"]).ok()).unwrap();
    assert_eq!(
        [&objects[0]["uuid"], &objects[0]["temperature"]],
        ["GPU-7b4ef7f3", "56°C"]
    );
    assert_eq!(
        user.det(&["s", "disable", "a", "1"]).ok(),
        "Disabled slot 1 of agent a\n"
    );
}

#[test]
fn tasks_show_why_they_wait_and_which_way_priorities_run() {
    let user = User::using(&cluster());
    assert_eq!(
        user.det(&["task", "list", "--csv"]).ok(),
        "Task ID,Allocation ID,Name,Slots Needed,Registered Time,Agent,Priority,Resource Pool,Ports,Waiting Reason,\
         State,Owner,Description\n\
         8.r,8.r.1,Experiment 8,4,2026-11-21 09:00:00+0000,unassigned,N/A,default,,\
         3 more slots are needed (since 2026-11-21 09:00:01+0000),QUEUED,,\n\
         7.r,7.r.1,Experiment 7,1,2026-11-21 10:00:00+0000,a,42,default,\"80,9000\",,RUNNING,ada,mine\n"
    );
    let table = user.det(&["task"]);
    assert_eq!(
        table.err,
        "det job why ID explains why a job or an experiment waits, and what would help\npriority: lower goes first\n"
    );
    let objects: Value = serde_json::from_str(&user.det(&["task", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects["7.r.1"]["priority"], 42);
}

#[test]
fn tasks_that_rest_or_have_ended_are_listed_when_they_are_asked_for() {
    let stub = StubMaster::start();
    let task = |id: &str, state: &str, at: &str| {
        json!({
            "taskId": id, "taskState": format!("GENERIC_TASK_STATE_{state}"), "startTime": at,
            "username": "ada", "description": "mine", "resourcePool": "default", "name": format!("Task {id}"),
            "priority": 42, "schedulerType": "priority", "priorityOrder": "lower goes first",
        })
    };
    let mut failed = task("e", "ERROR", "2026-11-21T09:00:00Z");
    failed["lastFailure"] = json!({"reason": "it broke", "lastLines": ["KeyError: 'lr'"]});
    let tasks = json!({
        "allocationIdToSummary": {},
        "pausedTasks": [task("p", "PAUSED", "2026-11-21T10:00:00Z")],
        "endedTasks": [failed],
    });
    stub.on("GET /api/v1/tasks", ok(tasks));
    let user = User::using(&stub);
    let out = user.det(&["task", "list", "--all", "--csv"]).ok();
    let rows: Vec<&str> = out.lines().skip(1).collect();
    assert_eq!(
        rows,
        [
            "e,,Task e,,2026-11-21 09:00:00+0000,,42,default,,,ERROR,ada,mine",
            "p,,Task p,,2026-11-21 10:00:00+0000,,42,default,,,PAUSED,ada,mine",
        ]
    );
    assert_eq!(
        stub.last("GET /api/v1/tasks").line,
        "GET /api/v1/tasks?withEnded=true"
    );
    let out = user.det(&["task", "ls", "-a", "--json"]).ok();
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["endedTasks"][0]["taskId"], "e");
    let run = user.det(&["task", "list"]);
    assert_eq!(stub.last("GET /api/v1/tasks").line, "GET /api/v1/tasks");
    assert!(run.err.contains("paused: task p"), "{run:?}");
    let run = user.det(&["task", "list", "--all"]);
    let failed = "task e failed: it broke; the last lines of its code:\n    KeyError: 'lr'\n";
    assert!(run.err.contains(failed), "{run:?}");
}

#[test]
fn a_job_is_explained_by_the_id_of_what_it_is_the_entry_of() {
    let stub = cluster();
    for id in ["job", "8.r", "8.r.1"] {
        let path = format!("GET /api/v1/job-queues/{id}/why");
        stub.on(&path, ok(json!({"job": {"jobId": id}})));
    }
    let experiment = json!({"experiment": {"id": 8, "jobId": "job"}});
    stub.on("GET /api/v1/experiments/8", ok(experiment));
    let trial = json!({"trial": {"id": 31, "experimentId": 8}});
    stub.on("GET /api/v1/trials/31", ok(trial));
    let user = User::using(&stub);
    for (words, expected) in [
        (&["8"][..], "job"),
        (&["--trial", "31"], "job"),
        (&["-t", "31"], "job"),
        (&["job"], "job"),
        // Of the one task whose id begins with it, and of an attempt.
        (&["8."], "8.r"),
        (&["8.r.1"], "8.r.1"),
    ] {
        let words = [&["job", "why", "--json"][..], words].concat();
        let explanation: Value = serde_json::from_str(&user.det(&words).ok()).unwrap();
        assert_eq!(explanation["job"]["jobId"], expected, "{words:?}");
    }
    // What is changed is named in the same ways.
    stub.on("POST /api/v1/job-queues", ok(json!({})));
    for (named, other) in [("8", "8."), ("8.r.1", "job")] {
        user.det(&["job", "update", named, "--ahead-of", other])
            .ok();
        let sent = stub.last("POST /api/v1/job-queues").json();
        let of = |named: &str| match named {
            "8" => "job".to_owned(),
            "8." => "8.r".to_owned(),
            other => other.to_owned(),
        };
        assert_eq!(sent["updates"][0]["jobId"], of(named));
        assert_eq!(sent["updates"][0]["aheadOf"], of(other));
    }
    user.det(&["job", "why"]).fails(2);
    user.det(&["job", "why", "8", "-t", "31"]).fails(2);
}

#[test]
fn task_logs_take_the_beginning_of_an_id() {
    let stub = cluster();
    stub.on(
        "GET /api/v1/tasks/7.r/logs",
        stream(&[json!({"message": "hello\n"})]),
    );
    let user = User::using(&stub);
    let out = user
        .det(&[
            "task",
            "logs",
            "7",
            "--allocation-id",
            "7.r.1",
            "--level",
            "warning",
        ])
        .ok();
    assert_eq!(out, "hello\n");
    assert_eq!(
        stub.last("GET /api/v1/tasks/7.r/logs").line,
        "GET /api/v1/tasks/7.r/logs?allocationIds=7.r.1&follow=false&levels=LOG_LEVEL_WARNING\
         &levels=LOG_LEVEL_ERROR&levels=LOG_LEVEL_CRITICAL"
    );
}

#[test]
fn the_beginning_of_the_id_of_an_ended_command_is_enough() {
    let stub = cluster();
    stub.on(
        "GET /api/v1/commands",
        ok(json!({"commands": [{"id": "9.r"}]})),
    );
    stub.on(
        "GET /api/v1/tasks/9.r/logs",
        stream(&[json!({"message": "hello\n"})]),
    );
    let user = User::using(&stub);
    assert_eq!(user.det(&["task", "logs", "9"]).ok(), "hello\n");
}

#[test]
fn a_master_log_without_a_line_for_its_reader_is_a_failure_with_the_reason() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/master/logs", stream(&[]));
    let user = User::using(&stub);
    let err = user.det(&["master", "logs"]).fails(1);
    assert!(
        err.contains("only administrators read the whole log")
            && err.contains("no line that this user may read"),
        "{err}"
    );
    let admin = json!({"user": {"username": "admin", "id": 1, "admin": true}});
    stub.on("GET /api/v1/me", ok(admin));
    assert_eq!(user.det(&["master", "logs"]).ok(), "");
}

#[test]
fn old_logs_are_deleted_and_what_is_missing_is_explained() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/cleanup_logs",
        ok(json!({"removedCount": "12345"})),
    );
    let user = User::using(&stub);
    let output = user.det(&["task", "cleanup-logs"]).ok();
    assert_eq!(output, "Deleted 12345 lines of logs\n");

    stub.on("GET /api/v1/trials/11/logs", stream(&[]));
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"id": 11, "taskIds": ["7.r", "7.r-1"]}})),
    );
    let task = |deleted: Value| ok(json!({"task": {"logsDeletedTime": deleted}}));
    stub.on("GET /api/v1/tasks/7.r", task(json!("2026-11-21T10:00:00Z")));
    stub.on("GET /api/v1/tasks/7.r-1", task(Value::Null));
    for words in [
        &["trial", "logs", "11"][..],
        &["trial", "logs", "11", "--tail", "5"],
        &["trial", "logs", "11", "-f"],
    ] {
        let run = user.det(words);
        let note = "the logs of trial 11 were deleted at 2026-11-21 10:00:00+0000";
        assert!(run.err.contains(note), "{run:?}");
        assert_eq!(run.ok(), "");
    }
    // The trial was continued, and the log of its later task is still there.
    stub.on(
        "GET /api/v1/trials/11/logs",
        stream(&[json!({"message": "later\n"})]),
    );
    for words in [
        &["trial", "logs", "11"][..],
        &["trial", "logs", "11", "--tail", "5"],
    ] {
        let run = user.det(words);
        let note = "the logs of earlier runs of trial 11 were deleted at 2026-11-21 10:00:00+0000";
        assert!(run.err.contains(note), "{run:?}");
        assert_eq!(run.ok(), "later\n");
    }
    stub.on("GET /api/v1/trials/11/logs", stream(&[]));
    // Nothing was deleted: there is just nothing.
    stub.on("GET /api/v1/tasks/7.r", task(Value::Null));
    let run = user.det(&["trial", "logs", "11"]);
    assert_eq!((run.err.as_str(), run.out.as_str()), ("", ""));
}

#[test]
fn the_queue_is_shown_with_the_direction_of_its_priorities() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/resource-pools",
        ok(json!({"resourcePools": [
            {"name": "gpu", "defaultComputePool": true, "schedulerType": "SCHEDULER_TYPE_PRIORITY",
             "priorityOrder": "lower goes first"},
            {"name": "k8s", "defaultComputePool": false, "schedulerType": "SCHEDULER_TYPE_KUBERNETES",
             "priorityOrder": "higher goes first"},
            {"name": "fair", "defaultComputePool": false, "schedulerType": "SCHEDULER_TYPE_FAIR_SHARE"},
        ]})),
    );
    stub.on(
        "GET /api/v1/job-queues-v2",
        ok(json!({"jobs": [
            {"full": {"jobId": "j1", "type": "TYPE_EXPERIMENT", "name": "search", "entityId": "7", "priority": 42, "weight": 1.5,
                      "submissionTime": "2026-11-21T10:00:00Z", "allocatedSlots": 1, "requestedSlots": 4, "username": "ada",
                      "summary": {"jobsAhead": 0, "state": "STATE_QUEUED"}, "waitReason": {"message": "no agent"}}},
            {"limited": {"jobId": "j2", "type": "TYPE_NOTEBOOK", "priority": 1, "allocatedSlots": 1, "requestedSlots": 1,
                         "summary": {"jobsAhead": -1, "state": "STATE_SCHEDULED"}}},
        ], "pagination": {"endIndex": 2, "total": 2}})),
    );
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["job", "list", "--csv"]).ok(),
        "#,ID,Type,Job Name,Priority,Submitted,Slots (acquired/needed),State,User,Waiting Reason\n\
         0,j1,EXPERIMENT,search (7),42,2026-11-21 10:00:00+0000,1/4,QUEUED,ada,no agent\n\
         N/A,j2,NOTEBOOK,***,1,***,1/1,SCHEDULED,***,\n"
    );
    assert_eq!(
        user.det(&["j", "ls"]).err,
        "priority: lower goes first\ndet job why ID explains why a job or an experiment waits, and what would help\n"
    );
    assert_eq!(
        user.det(&["j", "ls", "-p", "k8s"]).err,
        "priority: higher goes first\ndet job why ID explains why a job or an experiment waits, and what would help\n"
    );
    let fair = user.det(&["j", "ls", "-p", "fair", "--csv"]).ok();
    assert!(
        fair.contains(",Weight,") && fair.contains(",1.5,"),
        "{fair}"
    );
    let err = user.det(&["j", "ls", "-p", "nope"]).fails(1);
    assert!(err.contains("the pools are: gpu, k8s, fair"), "{err}");
}

#[test]
fn a_master_shows_its_facts_and_configuration() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/master",
        ok(json!({"version": "0.38.1", "clusterName": "c"})),
    );
    stub.on(
        "GET /api/v1/master/config",
        ok(json!({"config": {"port": 8080}})),
    );
    stub.on(
        "GET /api/v1/master/logs",
        stream(&[json!({"logEntry": {"timestamp": "T", "level": "LOG_LEVEL_INFO", "message": "started"}})]),
    );
    let user = User::using(&stub);
    assert!(
        user.det(&["master", "info"])
            .ok()
            .contains("clusterName: c")
    );
    assert_eq!(user.det(&["master", "config"]).ok(), "port: 8080\n");
    let json: Value =
        serde_json::from_str(&user.det(&["master", "config", "show", "--json"]).ok()).unwrap();
    assert_eq!(json, json!({"port": 8080}));
    assert_eq!(
        user.det(&["master", "logs", "--tail", "3"]).ok(),
        "T [LOG_LEVEL_INFO]: started\n"
    );
    assert!(
        stub.lines()
            .contains(&"GET /api/v1/master/logs?follow=false&offset=-3".to_owned())
    );
}

#[test]
fn a_search_is_previewed() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/preview-hp-search",
        ok(
            json!({"summary": {"config": {"name": "random", "unused": null}, "trials": [
                {"count": 4, "unit": {"maxLength": true}},
                {"count": 2, "unit": {"maxLength": false, "name": "batches", "value": 100}},
            ]}}),
        ),
    );
    let user = User::using(&stub);
    user.write("s.yaml", "searcher:\n  name: random\n  max_trials: 6\n");
    let out = user.det(&["preview-search", "s.yaml"]).ok();
    assert!(
        out.starts_with("Using search configuration:\nname: random\n"),
        "{out}"
    );
    assert!(
        out.contains("4      | train to completion") && out.contains("train for 100 batches"),
        "{out}"
    );
    assert_eq!(
        stub.last("POST /api/v1/preview-hp-search").json()["config"]["searcher"]["max_trials"],
        6
    );
    user.write("none.yaml", "name: x\n");
    let err = user.det(&["preview-search", "none.yaml"]).fails(1);
    assert!(err.contains("no \"searcher\" section"), "{err}");
}

#[test]
fn a_search_is_driven_by_a_trace_without_a_master() {
    let stub = StubMaster::start();
    let user = User::using(&stub);
    user.write(
        "random.yaml",
        "name: r\nsearcher: {name: random, metric: loss, max_trials: 2, max_concurrent_trials: 1}\nhyperparameters: {x: 3}\n",
    );
    let trace = |expected: &str| {
        format!(
            "name: two in turn\nconfig: random.yaml\nseed: 7\nstart: {{create: 1}}\nevents:\n  - end: 1\n    expect: {expected}\n  - end: 2\n"
        )
    };
    user.write("trace.yaml", &trace("{create: 2, progress: 0.5}"));
    let out = user.det(&["preview-search", "--trace", "trace.yaml"]).ok();
    assert!(out.starts_with("two in turn (seed 7)\n"), "{out}");
    for line in [
        "the search starts | create trial 1 {\"x\":3}",
        "trial 1 ends      | create trial 2 {\"x\":3} | 50.0 %",
        "trial 2 ends      | shut down: completed",
    ] {
        assert!(out.contains(line), "{out}\nlacks {line}");
    }
    let json: Value = serde_json::from_str(
        &user
            .det(&["preview-search", "--trace", "trace.yaml", "--json"])
            .ok(),
    )
    .expect("JSON");
    assert_eq!(
        (&json["outcome"], &json["trials"][1]["state"]),
        (&json!("completed"), &json!("ended"))
    );
    user.write("trace.yaml", &trace("nothing"));
    let err = user
        .det(&["preview-search", "--trace", "trace.yaml"])
        .fails(1);
    assert!(
        err.contains(
            "line 6: events[0].expect: trial 1 ends: expected no trial to be created, found trial 2"
        ),
        "{err}"
    );
    user.write("trace.yaml", "config: {searcher: {name: randum}}\n");
    let err = user
        .det(&["preview-search", "--trace", "trace.yaml"])
        .fails(1);
    assert!(err.contains("did you mean \"random\"?"), "{err}");
    user.det(&["preview-search"]).fails(2);
    assert_eq!(stub.lines(), Vec::<String>::new());
}

#[test]
fn a_master_is_asked_to_take_on_its_configuration() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/master/reload",
        ok(json!({"changes": [
            {"path": "cluster_name", "from": "", "to": "lab", "acts": true},
            {"path": "notebook_timeout", "from": null, "to": 60, "acts": false},
        ], "warnings": ["notebook_timeout: is accepted and kept but not acted on yet"]})),
    );
    let user = User::using(&stub);
    let out = user.det(&["master", "reload", "--check"]).ok();
    for line in [
        "The running master would take on 2 changes:",
        "cluster_name     |     | lab |",
        "notebook_timeout |     | 60  | kept; nothing acts on it",
    ] {
        assert!(out.contains(line), "{out}\nlacks {line}");
    }
    let asked = stub.last("POST /api/v1/master/reload").json();
    assert_eq!(asked["validateOnly"], true);
    let out = user.det(&["master", "reload"]).ok();
    assert!(out.starts_with("The master has taken on 2"), "{out}");
    stub.on(
        "POST /api/v1/master/reload",
        Answer::Json(
            400,
            json!({"error": {"error": "the running master cannot take on these changes:\nport: the master listens there since its start"}}),
        ),
    );
    let err = user.det(&["master", "reload"]).fails(1);
    assert!(err.contains("port: the master listens there"), "{err}");
}

#[test]
fn an_administrator_sees_what_a_master_holds_in_memory() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/master/memory",
        ok(json!({"residentBytes": 104_857_600, "peakResidentBytes": 209_715_200, "threads": 12, "budgets": [
            {"name": "answers", "usedBytes": 1024, "peakBytes": 2048, "limitBytes": 3072, "shareBytes": 1536, "waiting": 0, "refused": 7},
        ]})),
    );
    let out = User::using(&stub).det(&["master", "memory"]).ok();
    for line in [
        "100.0MB in memory, 200.0MB at most since the start, 12 threads",
        "answers | 1.0KB  | 2.0KB       | 3.0KB | 1.5KB        | 0       | 7",
    ] {
        assert!(out.contains(line), "{out}\nlacks {line}");
    }
}

#[test]
fn the_level_of_a_masters_log_is_set() {
    let stub = StubMaster::start();
    stub.on("PATCH /api/v1/master/config", ok(json!({})));
    let user = User::using(&stub);
    let out = user
        .det(&["master", "config", "set", "--log.level", "debug"])
        .ok();
    assert!(out.starts_with("Changed, until"), "{out}");
    assert_eq!(
        stub.last("PATCH /api/v1/master/config").json(),
        json!({"config": {"log": {"level": "LOG_LEVEL_DEBUG"}}, "fieldMask": {"paths": ["log.level"]}})
    );
    user.det(&["master", "config", "set"]).fails(2);
}

#[test]
fn what_the_master_has_not_built_is_passed_on() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/master/config",
        Answer::Json(501, json!({"error": {"error": "not built"}})),
    );
    let err = User::using(&stub).det(&["master", "config"]).fails(1);
    assert!(err.contains("error: not built"), "{err}");
}

#[test]
fn pools_are_listed_in_every_form() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/resource-pools",
        ok(json!({"resourcePools": [
            {"name": "cpu", "defaultAuxPool": true, "schedulerType": "SCHEDULER_TYPE_PRIORITY",
             "schedulerFittingPolicy": "FITTING_POLICY_WORST", "numAgents": 1, "auxContainerCapacity": 100},
            {"name": "gpu", "defaultComputePool": true, "schedulerType": "SCHEDULER_TYPE_FAIR_SHARE",
             "schedulerFittingPolicy": "FITTING_POLICY_BEST", "numAgents": 2, "slotsUsed": 3, "slotsAvailable": 8,
             "stats": {"queuedCount": 4, "scheduledCount": 2}},
        ]})),
    );
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["resource-pool", "list", "--csv"]).ok(),
        "Name,Default For,Scheduler,Fitting,Agents,Slots Used,Slots,Aux Used,Aux,Jobs Waiting,Jobs Running\n\
         cpu,aux,priority,worst,1,0,0,0,100,0,0\n\
         gpu,compute,fair_share,best,2,3,8,0,0,4,2\n"
    );
    let objects: Value = serde_json::from_str(&user.det(&["rp", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects[1]["jobs_waiting"], 4);
    assert_eq!(objects[0]["default"], "aux");
    let refused = user.det(&["rp", "bindings", "add", "gpu", "w"]).fails(2);
    assert!(refused.contains("resource-pool bindings"), "{refused}");
}
