//! Changing, continuing and deleting experiments.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok};

fn experiment(state: &str) -> Answer {
    ok(json!({"experiment": {"id": 7, "state": format!("STATE_{state}"), "name": "demo"}}))
}

#[test]
fn states_are_changed_with_one_call() {
    let stub = StubMaster::start();
    let user = User::using(&stub);
    for (word, route, before, output) in [
        ("pause", "pause", "RUNNING", "Paused"),
        ("activate", "activate", "PAUSED", "Activated"),
        ("unpause", "activate", "PAUSED", "Activated"),
        ("cancel", "cancel", "RUNNING", "Canceled"),
        ("kill", "kill", "PAUSED", "Killed"),
        ("archive", "archive", "COMPLETED", "Archived"),
        ("unarchive", "unarchive", "COMPLETED", "Unarchived"),
    ] {
        stub.on("GET /api/v1/experiments/7", experiment(before));
        let route = format!("POST /api/v1/experiments/7/{route}");
        stub.on(&route, ok(json!({})));
        assert_eq!(
            user.det(&["e", word, "7"]).ok(),
            format!("{output} experiment 7\n")
        );
        assert_eq!(stub.last(&route).body, "");
    }
}

#[test]
fn what_changes_nothing_is_not_reported_as_done() {
    let stub = StubMaster::start();
    for action in ["pause", "activate"] {
        stub.on(
            &format!("POST /api/v1/experiments/7/{action}"),
            ok(json!({})),
        );
    }
    let user = User::using(&stub);
    for (word, state, report) in [
        (
            "kill",
            "COMPLETED",
            "has ended already (COMPLETED), so there is nothing to kill",
        ),
        (
            "cancel",
            "ERROR",
            "has ended already (ERROR), so there is nothing to cancel",
        ),
        ("pause", "PAUSED", "was paused already"),
        ("activate", "RUNNING", "was not paused: it goes on"),
    ] {
        stub.on("GET /api/v1/experiments/7", experiment(state));
        let run = user.det(&["e", word, "7"]);
        let report = format!("experiment 7 {report}\n");
        assert!(run.err.ends_with(&report), "{run:?}");
        assert_eq!(run.ok(), "", "{word}");
    }
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"state": "STATE_COMPLETED"}})),
    );
    let run = user.det(&["trial", "kill", "11"]);
    assert!(run.err.contains("trial 11 has ended already"), "{run:?}");
    assert_eq!(run.ok(), "");
}

#[test]
fn deleting_asks_first() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/experiments/7", experiment("COMPLETED"));
    stub.on("DELETE /api/v1/experiments/7", ok(json!({})));
    let user = User::using(&stub);
    let err = user.det(&["e", "delete", "7"]).fails(2);
    assert!(err.contains("--yes"), "{err}");
    let run = user.det_typing(&["e", "delete", "7"], "what\nno\n");
    assert!(run.err.contains("nothing was deleted"), "{run:?}");
    run.ok();
    assert!(
        stub.lines().iter().all(|line| line.starts_with("GET ")),
        "{:?}",
        stub.lines()
    );
    assert_eq!(
        user.det_typing(&["e", "delete", "7"], "yes\n").ok(),
        "Deletion of experiment 7 is in progress\n"
    );
    user.det(&["e", "delete", "7", "--yes"]).ok();
}

#[test]
fn deleting_an_unmanaged_experiment_names_the_files_that_stay() {
    let stub = StubMaster::start();
    for id in [7, 8] {
        stub.on(
            &format!("GET /api/v1/experiments/{id}"),
            ok(json!({"experiment": {"state": "STATE_COMPLETED", "unmanaged": id == 8}})),
        );
        stub.on(&format!("DELETE /api/v1/experiments/{id}"), ok(json!({})));
    }
    let user = User::using(&stub);
    let run = user.det(&["e", "delete", "7", "--yes"]);
    assert!(!run.err.contains("unmanaged"), "{run:?}");
    let run = user.det(&["e", "delete", "7", "8", "--yes"]);
    assert!(run.err.contains("experiment 8 is unmanaged"), "{run:?}");
    assert_eq!(
        run.ok(),
        "Deletion of experiment 7 is in progress\nDeletion of experiment 8 is in progress\n"
    );
}

#[test]
fn several_experiments_have_an_outcome_each() {
    let stub = StubMaster::start();
    for id in [7, 8, 9] {
        stub.on(
            &format!("GET /api/v1/experiments/{id}"),
            experiment("RUNNING"),
        );
    }
    stub.on("POST /api/v1/experiments/7/kill", ok(json!({})));
    stub.on(
        "POST /api/v1/experiments/8/kill",
        Answer::Json(409, json!({"message": "experiment 8 has ended"})),
    );
    stub.on("POST /api/v1/experiments/9/kill", ok(json!({})));
    stub.on("DELETE /api/v1/experiments/7", ok(json!({})));
    stub.on("DELETE /api/v1/experiments/9", ok(json!({})));
    let user = User::using(&stub);
    let run = user.det(&["e", "kill", "7", "8", "9"]);
    assert_eq!(run.out, "Killed experiment 7\nKilled experiment 9\n");
    let err = run.fails(1);
    assert!(
        err.contains("experiment 8: ") && err.contains("has ended"),
        "{err}"
    );
    assert!(err.contains("1 of 3 experiments were refused"), "{err}");
    user.det(&["e", "kill"]).fails(2);
    let run = user.det_typing(&["e", "delete", "7", "9"], "yes\n");
    assert!(run.err.contains("the 2 experiments 7, 9"), "{run:?}");
    assert_eq!(
        run.ok(),
        "Deletion of experiment 7 is in progress\nDeletion of experiment 9 is in progress\n"
    );
}

#[test]
fn continuing_sends_what_beats_the_configuration() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/experiments/continue",
        ok(json!({"experiment": {"id": 7}})),
    );
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["e", "continue", "7"]).ok(),
        "Continued experiment 7\n"
    );
    assert_eq!(
        stub.last("POST /api/v1/experiments/continue").json(),
        json!({"id": 7, "overrideConfig": "{}\n"})
    );
    user.det(&["e", "continue", "7", "--config", "max_restarts=3"])
        .ok();
    let sent = stub.last("POST /api/v1/experiments/continue").json();
    assert!(
        sent["overrideConfig"]
            .as_str()
            .unwrap()
            .contains("max_restarts: 3"),
        "{sent}"
    );
}

#[test]
fn attributes_are_set_with_one_patch() {
    let stub = StubMaster::start();
    stub.on("PATCH /api/v1/experiments/7", ok(json!({"experiment": {}})));
    stub.on("PUT /api/v1/experiments/7/retain_logs", ok(json!({})));
    let user = User::using(&stub);
    let cases: [(&[&str], Value); 7] = [
        (&["name", "7", "new"], json!({"id": 7, "name": "new"})),
        (
            &["description", "7", "d"],
            json!({"id": 7, "description": "d"}),
        ),
        (
            &["priority", "7", "10"],
            json!({"id": 7, "resources": {"priority": 10}}),
        ),
        (
            &["weight", "7", "2.5"],
            json!({"id": 7, "resources": {"weight": 2.5}}),
        ),
        (
            &["max-slots", "7", "4"],
            json!({"id": 7, "resources": {"maxSlots": 4}}),
        ),
        (
            &["max-slots", "7", "none"],
            json!({"id": 7, "resources": {"maxSlots": null}}),
        ),
        (
            &[
                "gc-policy",
                "7",
                "--save-experiment-best",
                "1",
                "--save-trial-best",
                "2",
                "--save-trial-latest",
                "3",
                "--yes",
            ],
            json!({"id": 7, "checkpointStorage": {"saveExperimentBest": 1, "saveTrialBest": 2, "saveTrialLatest": 3}}),
        ),
    ];
    for (words, expected) in cases {
        user.det(&[&["experiment", "set"], words].concat()).ok();
        assert_eq!(stub.last("PATCH").json(), expected);
    }
    let output = user.det(&["e", "set", "priority", "7", "10"]).ok();
    assert!(output.contains("lower runs first on agents"), "{output}");
    user.det(&["e", "set", "log-retention", "7", "--forever"])
        .ok();
    assert_eq!(
        stub.last("PUT").json(),
        json!({"experimentId": 7, "numDays": -1})
    );
    stub.on("PUT /api/v1/trials/11/retain_logs", ok(json!({})));
    let output = user
        .det(&["t", "set", "log-retention", "11", "--days", "30"])
        .ok();
    assert_eq!(
        output,
        "Logs of trial 11 are kept for 30 days after the end of a task\n"
    );
    assert_eq!(
        stub.last("PUT").json(),
        json!({"trialId": 11, "numDays": 30})
    );
    for days in ["-2", "32768", "many"] {
        user.det(&["t", "set", "log-retention", "11", "--days", days])
            .fails(2);
    }
    user.det(&["t", "set", "log-retention", "11"]).fails(2);
    user.det(&["e", "set", "max-slots", "7", "many"]).fails(2);
}

#[test]
fn a_gc_policy_shows_what_it_deletes_before_it_asks() {
    let stub = StubMaster::start();
    stub.on(
        "GET /experiments/7/preview_gc",
        ok(json!({"metric_name": "loss", "checkpoints": [
            {"TrialID": 3, "StepsCompleted": 10, "State": "COMPLETED", "ValidationMetrics": {"loss": 0.5},
             "UUID": "u-1", "Resources": {"w": 1}}]})),
    );
    let arguments = [
        "e",
        "set",
        "gc-policy",
        "7",
        "--save-experiment-best",
        "0",
        "--save-trial-best",
        "1",
        "--save-trial-latest",
        "1",
    ];
    let run = User::using(&stub).det_typing(&arguments, "n\n");
    assert!(
        run.err.contains("u-1") && run.err.contains("deletes 1 checkpoint\n"),
        "{run:?}"
    );
    run.ok();
    assert_eq!(
        stub.lines(),
        [
            "GET /experiments/7/preview_gc?save_experiment_best=0&save_trial_best=1&save_trial_latest=1"
        ]
    );
}

#[test]
fn labels_are_a_set() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/experiments/7",
        ok(json!({"experiment": {"id": 7, "labels": ["b", "a"]}})),
    );
    stub.on("PATCH /api/v1/experiments/7", ok(json!({})));
    let user = User::using(&stub);
    user.det(&["e", "label", "add", "7", "c"]).ok();
    assert_eq!(
        stub.last("PATCH").json(),
        json!({"id": 7, "labels": ["b", "a", "c"]})
    );
    user.det(&["e", "label", "remove", "7", "b"]).ok();
    assert_eq!(stub.last("PATCH").json(), json!({"id": 7, "labels": ["a"]}));
    let patches = stub.lines().len();
    user.det(&["e", "label", "add", "7", "a"]).ok();
    assert_eq!(
        stub.lines().len(),
        patches + 1,
        "a label that it has needs no change"
    );
}
