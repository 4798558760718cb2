//! Creating and watching experiments and their trials.

mod support;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok, stream};

const CONFIG: &str = "# a comment that must arrive\nname: demo\nentrypoint: python3 x.py\nsearcher:\n  name: single\n  metric: loss\n";

fn created(searcher: &str) -> Answer {
    ok(json!({"experiment": {"id": 7}, "config": {"searcher": {"name": searcher}}, "warnings": []}))
}

fn experiment(state: &str) -> Answer {
    ok(
        json!({"experiment": {"id": 7, "state": format!("STATE_{state}"), "name": "demo", "progress": 0.5,
                             "config": {"searcher": {"name": "random", "metric": "loss"}}}}),
    )
}

fn trials(trials: &Value) -> Answer {
    let count = trials.as_array().map_or(0, Vec::len);
    ok(json!({"trials": trials, "pagination": {"endIndex": count, "total": count}}))
}

fn user(stub: &StubMaster) -> User {
    let user = User::using(stub);
    user.write("c.yaml", CONFIG);
    user.write("model/x.py", "print(1)\n");
    user.write("model/.detignore", "*.bin\n");
    user.write("model/data.bin", "no");
    user
}

#[test]
fn the_configuration_is_sent_byte_for_byte() {
    let stub = StubMaster::start();
    stub.on("POST /api/v1/experiments", created("single"));
    let user = user(&stub);
    let run = user.det(&["experiment", "create", "c.yaml", "model", "-v"]);
    assert!(
        run.err.contains("  x.py\nsending 9.0B and 1 file"),
        "{run:?}"
    );
    assert_eq!(run.ok(), "Created experiment 7\n");
    let sent = stub.last("POST /api/v1/experiments").json();
    assert_eq!(sent["config"], CONFIG);
    assert_eq!(sent["activate"], true);
    let files = sent["modelDefinition"].as_array().unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0]["path"], "x.py");
    assert_eq!(files[0]["content"], STANDARD.encode("print(1)\n"));
}

#[test]
fn no_files_are_announced_where_none_are_sent() {
    let stub = StubMaster::start();
    stub.on("POST /api/v1/experiments", created("single"));
    let user = user(&stub);
    let run = user.det(&["experiment", "create", "c.yaml"]);
    assert!(!run.err.contains("sending"), "{run:?}");
    assert_eq!(run.ok(), "Created experiment 7\n");
}

#[test]
fn overrides_templates_and_projects_are_sent() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/experiments",
        ok(json!({"experiment": {"id": 7}, "config": {}, "warnings": ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]})),
    );
    let user = user(&stub);
    let run = user.det(&[
        "e",
        "create",
        "c.yaml",
        "--paused",
        "--config",
        "resources.slots_per_trial=4",
        "--config",
        "name=other",
        "--template",
        "t",
        "--project_id",
        "3",
        "-i",
        "model/x.py",
    ]);
    assert!(
        run.err.contains("more slots than its resource pool has"),
        "{run:?}"
    );
    run.ok();
    let sent = stub.last("POST /api/v1/experiments").json();
    assert_eq!(sent["activate"], false);
    assert_eq!(sent["template"], "t");
    assert_eq!(sent["projectId"], 3);
    assert_eq!(sent["modelDefinition"][0]["path"], "x.py");
    let config = det_config::yaml::parse(sent["config"].as_str().unwrap())
        .unwrap()
        .to_value();
    assert_eq!(config["resources"]["slots_per_trial"], 4);
    assert_eq!(config["name"], "other");
    assert_eq!(config["searcher"]["metric"], "loss");
}

#[test]
fn errors_in_files_are_reported_without_a_master() {
    let user = User::at("127.0.0.1:1");
    let err = user.det(&["e", "create", "missing.yaml"]).fails(1);
    assert!(err.contains("could not read \"missing.yaml\""), "{err}");
    user.write("list.yaml", "- 1\n");
    let err = user.det(&["e", "create", "list.yaml"]).fails(1);
    assert_eq!(
        err,
        "error: the configuration cannot be used:\nlist.yaml:1:1: must be a map, not a list\n"
    );
    user.write("bad.yaml", "a: [1\n");
    let err = user.det(&["e", "create", "bad.yaml"]).fails(1);
    assert!(err.contains("\nbad.yaml:1:4: is not YAML"), "{err}");
    user.write(
        "wrong.yaml",
        "image: x\nsearcher: {name: single, metric: loss}\nentrypont: a\n",
    );
    let err = user.det(&["e", "create", "wrong.yaml"]).fails(1);
    for expected in [
        "\nwrong.yaml:1:1: image: is not a known key; hint: did you mean \"environment.image\"?\n",
        "\nwrong.yaml:3:1: entrypont: is not a known key; hint: did you mean \"entrypoint\"?\n",
        "perhaps this was meant:\n    environment:\n      image: x\n",
    ] {
        assert!(err.contains(expected), "{err}\nlacks {expected}");
    }
    // Keys that a template may set are left to the master, and with --no-check all of them.
    for words in [
        &["e", "create", "part.yaml", "--template", "t"][..],
        &["e", "create", "wrong.yaml", "--no-check"],
    ] {
        user.write("part.yaml", "name: x\n");
        let err = user.det(words).fails(3);
        assert!(
            err.contains("could not reach") || err.contains("reach"),
            "{err}"
        );
    }
    let err = user.det(&["e", "create", "part.yaml"]).fails(1);
    assert!(err.contains("searcher: is required"), "{err}");
    user.write("c.yaml", CONFIG);
    let err = user.det(&["e", "create", "c.yaml", "c.yaml"]).fails(2);
    assert!(err.contains("is a file"), "{err}");
    let err = user.det(&["e", "create", "c.yaml", "--test-mode"]).fails(2);
    assert!(err.contains("test mode"), "{err}");
}

#[test]
fn following_a_single_run_prints_its_logs() {
    let stub = StubMaster::start();
    stub.on("POST /api/v1/experiments", created("single"));
    stub.on(
        "GET /api/v1/experiments/7/trials",
        Answer::InTurn(vec![
            trials(&json!([])),
            trials(&json!([{"id": 12}, {"id": 11}])),
        ]),
    );
    stub.on(
        "GET /api/v1/experiments/7",
        Answer::InTurn(vec![
            experiment("QUEUED"),
            experiment("RUNNING"),
            experiment("COMPLETED"),
        ]),
    );
    stub.on(
        "GET /api/v1/trials/11/logs",
        stream(&[
            json!({"message": "first\n"}),
            json!({"message": "second\n"}),
        ]),
    );
    let run = user(&stub).det(&["e", "create", "c.yaml", "model", "-f"]);
    assert!(
        run.err.contains("experiment 7 has ended: COMPLETED"),
        "{run:?}"
    );
    assert_eq!(run.ok(), "Created experiment 7\nfirst\nsecond\n");
}

#[test]
fn following_a_search_shows_its_progress() {
    let stub = StubMaster::start();
    stub.on("POST /api/v1/experiments", created("adaptive_asha"));
    let value = |value: f64| json!({"metrics": {"avgMetrics": {"loss": value}}});
    stub.on(
        "GET /api/v1/experiments/7/trials",
        Answer::InTurn(vec![
            trials(&json!([{"id": 1, "state": "STATE_RUNNING"}])),
            trials(
                &json!([{"id": 1, "state": "STATE_COMPLETED", "bestValidation": value(0.5)},
                           {"id": 2, "state": "STATE_ERROR", "bestValidation": value(0.25)}]),
            ),
        ]),
    );
    stub.on(
        "GET /api/v1/experiments/7",
        Answer::InTurn(vec![experiment("RUNNING"), experiment("ERROR")]),
    );
    let run = user(&stub).det(&["e", "create", "c.yaml", "-f"]);
    assert!(
        run.err.contains(" 50% RUNNING, 1 trial (1 running)"),
        "{run:?}"
    );
    assert!(
        run.out.contains(
            "experiment 7 has ended: ERROR, 2 trials (1 completed, 1 error), best loss 0.25 (trial 2)\n"
        ),
        "{run:?}"
    );
    run.fails(1);
}

#[test]
fn the_exit_code_of_waiting_is_how_it_ended() {
    for (last, code) in [
        ("COMPLETED", 0),
        ("CANCELED", 1),
        ("ERROR", 1),
        ("PAUSED", 1),
    ] {
        let stub = StubMaster::start();
        stub.on(
            "GET /api/v1/experiments/7",
            Answer::InTurn(vec![experiment("RUNNING"), experiment(last)]),
        );
        stub.on(
            "GET /api/v1/experiments/7/trials",
            ok(json!({"trials": []})),
        );
        let run = User::using(&stub).det(&["e", "wait", "7", "--polling-interval", "0.01"]);
        assert_eq!(run.code, code, "{last}: {run:?}");
        assert!(run.err.to_uppercase().contains(last), "{run:?}");
        assert_eq!(run.out, "");
    }
}

#[test]
fn experiments_are_listed_in_every_form() {
    let stub = StubMaster::start();
    let page = |id: i64, end: i64| {
        ok(
            json!({"experiments": [{"id": id, "username": "ada", "name": "a, b", "forkedFrom": null, "state": "STATE_RUNNING",
                                   "progress": 0.25, "startTime": "2026-11-21T10:00:00Z", "endTime": null,
                                   "resourcePool": "default", "archived": false, "workspaceName": "W", "projectName": "P"}],
                  "pagination": {"offset": end - 1, "endIndex": end, "total": 2}}),
        )
    };
    stub.on(
        "GET /api/v1/experiments",
        Answer::InTurn(vec![page(9, 1), page(8, 2)]),
    );
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["e", "list", "--csv"]).ok(),
        "ID,Owner,Name,Parent ID,State,Progress,Started,Ended,Resource Pool\n\
         9,ada,\"a, b\",,RUNNING,25.0%,2026-11-21 10:00:00+0000,,default\n\
         8,ada,\"a, b\",,RUNNING,25.0%,2026-11-21 10:00:00+0000,,default\n"
    );
    assert_eq!(
        stub.lines(),
        [
            "GET /api/v1/experiments?archived=false&users=determined&limit=200&offset=0",
            "GET /api/v1/experiments?archived=false&users=determined&limit=200&offset=1",
        ]
    );
    let all = user
        .det(&[
            "e",
            "ls",
            "--all",
            "--show_project",
            "--csv",
            "--limit",
            "5",
            "--pages",
            "1",
        ])
        .ok();
    assert!(
        all.starts_with("Workspace,Project,ID,") && all.contains("W,P,8,"),
        "{all}"
    );
    assert!(all.lines().next().unwrap().ends_with(",Archived"), "{all}");
    assert_eq!(stub.lines()[2], "GET /api/v1/experiments?limit=5&offset=0");
    let objects: Value = serde_json::from_str(&user.det(&["e", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects[0]["id"], 8);
    assert!(
        user.det(&["e"]).ok().contains(" 8  | ada"),
        "the bare group lists"
    );
}

#[test]
fn an_experiment_is_described_whole() {
    let stub = StubMaster::start();
    let about = json!({"experiment": {"id": 7, "state": "STATE_QUEUED", "name": "demo", "labels": ["b", "a"], "archived": false,
        "waitReason": {"kind": "noCapacity", "message": "no agent has 8 slots"}}});
    stub.on("GET /api/v1/experiments/7", ok(about));
    stub.on(
        "GET /api/v1/experiments/7/trials",
        trials(&json!([{"id": 11, "state": "STATE_QUEUED", "hparams": {"lr": 0.1},
                        "waitReason": {"message": "no agent has 8 slots", "since": "2026-11-21T10:00:00Z"}}])),
    );
    stub.on(
        "GET /api/v1/trials/11/workloads",
        ok(
            json!({"workloads": [{"training": {"totalBatches": 5, "endTime": "2026-11-21T10:00:00Z",
                                              "metrics": {"avgMetrics": {"loss": 0.5}}}}],
                  "pagination": {"endIndex": 1, "total": 1}}),
        ),
    );
    let user = User::using(&stub);
    let run = user.det(&["e", "describe", "7", "--metrics"]);
    assert!(
        run.err.contains("experiment 7 waits: no agent has 8 slots"),
        "{run:?}"
    );
    assert!(
        run.err
            .contains("trial 11 waits: no agent has 8 slots (since 2026-11-21 10:00:00+0000)"),
        "{run:?}"
    );
    let out = run.ok();
    for part in [
        "Experiment:\n",
        "\nTrials:\n",
        "\nWorkloads:\n",
        "a, b",
        "no agent has 8 slots",
        "Training Metric: loss",
        "0.5",
    ] {
        assert!(out.contains(part), "{part:?} is missing in {out}");
    }
    let objects: Value =
        serde_json::from_str(&user.det(&["e", "describe", "7,7", "--json"]).ok()).unwrap();
    assert_eq!(objects[1]["experiment"]["id"], 7);
    user.write("out/.keep", "");
    user.det(&["e", "describe", "7", "--outdir", "out"]).ok();
    let saved = std::fs::read_to_string(user.directory().join("out/workloads.csv")).unwrap();
    assert!(saved.starts_with("Trial ID,# of Batches,"), "{saved}");
}

#[test]
fn a_failed_search_shows_its_best_trial_and_what_failed() {
    let stub = StubMaster::start();
    let about = json!({"experiment": {"id": 7, "state": "STATE_ERROR", "name": "demo", "numTrials": 2,
        "bestTrialId": 12, "bestTrialSearcherMetric": 0.25, "config": {"searcher": {"metric": "loss"}}}});
    stub.on("GET /api/v1/experiments/7", ok(about));
    stub.on(
        "GET /api/v1/experiments/7/trials",
        trials(&json!([{"id": 11, "state": "STATE_ERROR", "hparams": {}},
                       {"id": 12, "state": "STATE_COMPLETED", "hparams": {}}])),
    );
    for trial in [11, 12] {
        stub.on(
            &format!("GET /api/v1/trials/{trial}/workloads"),
            ok(json!({"workloads": [], "pagination": {"endIndex": 0, "total": 0}})),
        );
    }
    stub.on(
        "GET /api/v1/trials/11/logs",
        stream(&[json!({"message": "a\n"})]),
    );
    stub.on(
        "GET /api/v1/trials/11",
        ok(
            json!({"trial": {"id": 11, "state": "STATE_ERROR", "lastFailure": {
            "reason": "the code ended with exit code 3", "lastLines": ["KeyError: 'lr'"]}}}),
        ),
    );
    let user = User::using(&stub);
    for words in [&["e", "describe", "7"][..], &["e", "wait", "7"]] {
        let run = user.det(words);
        for part in [
            "best trial of experiment 7: trial 12, loss 0.25\n",
            "trial 11 failed: the code ended with exit code 3; the last lines of its code:\n    KeyError: 'lr'\n",
        ] {
            assert!(run.err.contains(part), "{part:?} is missing in {run:?}");
        }
    }
    let run = user.det(&["e", "logs", "7"]);
    assert!(
        run.err
            .contains("logs of trial 11, of 2 trials; the best is trial 12, loss 0.25"),
        "{run:?}"
    );
    assert_eq!(run.ok(), "a\n");
}

#[test]
fn trials_and_their_logs_are_shown() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/experiments/7", experiment("RUNNING"));
    stub.on(
        "GET /api/v1/experiments/7/trials",
        trials(&json!([{"id": 12, "state": "STATE_COMPLETED", "hparams": {}, "totalBatchesProcessed": 5},
                       {"id": 11, "state": "STATE_QUEUED", "hparams": {}, "waitReason": {"message": "pool is full"}}])),
    );
    stub.on(
        "GET /api/v1/trials/11/logs",
        stream(&[
            json!({"message": "b\n", "id": "2"}),
            json!({"message": "a\n", "id": "1"}),
        ]),
    );
    let user = User::using(&stub);
    let csv = user.det(&["e", "lt", "7", "--csv"]).ok();
    assert_eq!(
        csv,
        "Trial ID,State,H-Params,Started,Ended,# of Batches,Waiting Reason\n\
         12,COMPLETED,{},,,5,\n11,QUEUED,{},,,,pool is full\n"
    );
    assert_eq!(user.det(&["e", "logs", "7", "--tail", "2"]).ok(), "a\nb\n");
    assert_eq!(
        stub.last("GET /api/v1/trials/11/logs").line,
        "GET /api/v1/trials/11/logs?follow=false&limit=2&orderBy=ORDER_BY_DESC"
    );
    let lines = user.det(&["t", "logs", "11", "--json"]).ok();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first, json!({"message": "b\n", "id": "2"}));
    stub.on("GET /api/v1/experiments/8/trials", trials(&json!([])));
    let err = user.det(&["e", "logs", "8"]).fails(1);
    assert!(err.contains("has no trial yet"), "{err}");
}

#[test]
fn a_trial_is_described_and_killed() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"id": 11, "experimentId": 7, "state": "STATE_QUEUED", "hparams": {"lr": 0.1},
                            "summaryMetrics": {"avg_metrics": {}}, "waitReason": {"message": "pool is full"}}})),
    );
    stub.on(
        "GET /api/v1/trials/11/workloads",
        ok(json!({"workloads": [{"checkpoint": {"totalBatches": 5, "state": "STATE_PARTIALLY_DELETED", "uuid": "u"}}],
                  "pagination": {"endIndex": 1, "total": 1}})),
    );
    stub.on("POST /api/v1/trials/11/kill", ok(json!({})));
    let user = User::using(&stub);
    let run = user.det(&["trial", "describe", "11"]);
    assert!(run.err.contains("waiting: pool is full"), "{run:?}");
    assert!(run.ok().contains("PARTIALLY_DELETED"));
    assert!(stub.lines().contains(
        &"GET /api/v1/trials/11/workloads?includeBatchMetrics=false&limit=1000&offset=0".to_owned()
    ));
    let object: Value =
        serde_json::from_str(&user.det(&["t", "describe", "11", "--json"]).ok()).unwrap();
    assert_eq!(object["trial"]["id"], 11);
    assert_eq!(object["workloads"][0]["checkpoint"]["uuid"], "u");
    assert_eq!(user.det(&["t", "kill", "11"]).ok(), "Killed trial 11\n");
}

#[test]
fn configuration_and_files_come_back() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/experiments/7",
        ok(json!({"experiment": {"config": {"name": "demo", "searcher": {"name": "single"}}}})),
    );
    stub.on(
        "GET /api/v1/experiments/7/model_def",
        ok(json!({"b64Tgz": STANDARD.encode(b"archive")})),
    );
    let user = User::using(&stub);
    let config = user.det(&["e", "config", "7"]).ok();
    assert_eq!(config, "name: demo\nsearcher:\n  name: single\n");
    user.det(&["e", "download-model-def", "7", "--output-dir", "here"])
        .ok();
    let saved = user.directory().join("here/experiment_7_model_def.tgz");
    assert_eq!(std::fs::read(saved).unwrap(), b"archive");
}

#[test]
fn ctrl_c_ends_the_following_and_not_the_experiment() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/experiments/7", experiment("RUNNING"));
    stub.on("GET /api/v1/experiments/7/trials", trials(&json!([])));
    let user = User::using(&stub);
    let child = user
        .command(&["e", "follow", "7"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    stub.wait_for(2, "GET /api/v1/experiments/7/trials");
    let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    let run = support::CommandResult::from(child.wait_with_output().unwrap());
    let err = run.fails(130);
    assert!(err.contains("experiment 7 goes on"), "{err}");
    assert!(
        !stub.lines().iter().any(|line| line.starts_with("POST")),
        "{:?}",
        stub.lines()
    );
}
