//! Printing and following logs, through outages of the master.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok, stream};

#[test]
fn a_lost_log_stream_goes_on_where_it_was() {
    let stub = StubMaster::start();
    let line = |n: u32| format!("{{\"result\":{{\"message\":\"line {n}\\n\"}}}}\n");
    let cut = Answer::Chunks {
        pieces: vec![line(1), line(2)],
        cut: true,
    };
    let whole = Answer::Chunks {
        pieces: vec![line(1), line(2), line(3)],
        cut: false,
    };
    stub.on(
        "GET /api/v1/trials/11/logs",
        Answer::InTurn(vec![cut, whole]),
    );
    let run = User::using(&stub).det(&["trial", "logs", "-f", "11"]);
    assert!(run.err.contains("trying again"), "{run:?}");
    assert_eq!(run.ok(), "line 1\nline 2\nline 3\n");
}

#[test]
fn a_log_is_followed_through_a_restart_of_the_master() {
    let stub = StubMaster::start();
    let line = |n: u32| format!("{{\"result\":{{\"message\":\"line {n}\\n\"}}}}\n");
    let stopping =
        "{\"error\":{\"grpcCode\":14,\"httpCode\":503,\"message\":\"the master is stopping\"}}\n";
    let stops = Answer::Chunks {
        pieces: vec![line(1), line(2), stopping.to_owned()],
        cut: false,
    };
    let starting = Answer::Json(503, json!({"message": "the database is away"}));
    let whole = Answer::Chunks {
        pieces: vec![line(1), line(2), line(3)],
        cut: false,
    };
    // A request that is answered so is repeated by itself, a few times.
    let mut turns = vec![stops];
    turns.extend(vec![starting; 8]);
    turns.push(whole);
    stub.on("GET /api/v1/trials/11/logs", Answer::InTurn(turns));
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"taskIds": ["7.r"]}})),
    );
    stub.on(
        "GET /api/v1/tasks/7.r",
        ok(json!({"task": {"endTime": "2026-11-25T19:22:34Z"}})),
    );
    let run = User::using(&stub).det(&["trial", "logs", "-f", "11"]);
    assert!(
        run.err
            .contains("the master is stopping; trying again\nthe master is back\n"),
        "{run:?}"
    );
    assert!(!run.err.contains("has ended"), "{run:?}");
    assert_eq!(run.ok(), "line 1\nline 2\nline 3\n");
}

#[test]
fn the_end_of_a_followed_log_is_noted_only_when_more_may_come() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/tasks/7.r/logs", stream(&[]));
    stub.on("GET /api/v1/tasks", ok(json!({})));
    let user = User::using(&stub);
    for (end, noted) in [(json!("2026-11-25T19:22:34Z"), false), (Value::Null, true)] {
        stub.on(
            "GET /api/v1/tasks/7.r",
            ok(json!({"task": {"endTime": end}})),
        );
        let run = user.det(&["task", "logs", "-f", "7.r"]);
        let note = "the log stream has ended; `det task logs -f 7.r` opens it again";
        assert_eq!(run.err.contains(note), noted, "{run:?}");
        run.ok();
    }
}

#[test]
fn logs_of_what_is_unknown_are_refused_with_where_to_look() {
    let stub = StubMaster::start();
    let unknown = || Answer::Json(404, json!({"error": {"message": "not found"}}));
    stub.on("GET /api/v1/trials/999/logs", unknown());
    stub.on("GET /api/v1/tasks/no-such/logs", unknown());
    stub.on("GET /api/v1/tasks", ok(json!({})));
    let user = User::using(&stub);
    for (words, hint) in [
        (["trial", "logs", "999"], "det experiment list-trials"),
        (["task", "logs", "no-such"], "det task list --all"),
    ] {
        let err = user.det(&words).fails(1);
        assert!(err.contains("\nhint: ") && err.contains(hint), "{err}");
    }
}

#[test]
fn lines_that_were_deleted_meanwhile_hide_none_of_those_to_come() {
    let stub = StubMaster::start();
    let line = |n: u32| format!("{{\"result\":{{\"message\":\"line {n}\\n\"}}}}\n");
    let cut = Answer::Chunks {
        pieces: vec![line(1), line(2), line(3)],
        cut: true,
    };
    let rest = Answer::Chunks {
        pieces: vec![line(3), line(4), line(5)],
        cut: false,
    };
    stub.on(
        "GET /api/v1/trials/11/logs",
        Answer::InTurn(vec![cut, rest]),
    );
    let run = User::using(&stub).det(&["trial", "logs", "-f", "11"]);
    assert_eq!(run.ok(), "line 1\nline 2\nline 3\nline 4\nline 5\n");
}

#[test]
fn a_lost_log_stream_fails_when_not_followed() {
    let stub = StubMaster::start();
    let pieces = vec!["{\"result\":{\"message\":\"line\\n\"}}\n".to_owned()];
    stub.on(
        "GET /api/v1/trials/11/logs",
        Answer::Chunks { pieces, cut: true },
    );
    let run = User::using(&stub).det(&["trial", "logs", "11"]);
    assert_eq!(run.out, "line\n");
    run.fails(3);
}

#[test]
fn the_last_lines_are_printed_and_then_those_that_come() {
    let stub = StubMaster::start();
    let line = |n: u32| json!({"id": n.to_string(), "timestamp": format!("2026-11-25T19:22:0{n}.5Z"), "message": format!("line {n}\n")});
    stub.on(
        "GET /api/v1/trials/11/logs",
        Answer::InTurn(vec![
            stream(&[line(3), line(2)]),
            stream(&[line(1), line(2), line(3), line(4)]),
        ]),
    );
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"taskIds": []}})),
    );
    let run = User::using(&stub).det(&["trial", "logs", "-f", "--tail", "2", "11"]);
    assert_eq!(run.ok(), "line 2\nline 3\nline 4\n");
    let asked = stub.lines();
    assert!(
        asked
            .iter()
            .any(|line| line.contains("logs?follow=false&limit=2&orderBy=ORDER_BY_DESC")),
        "{asked:?}"
    );
    // Clocks of hosts may differ: what was printed is found by itself.
    assert!(
        asked.iter().any(|line| line
            .contains("logs?follow=true&timestampAfter=2026-11-25T19%3A21%3A03.5Z")
            || line.contains("logs?follow=true&timestampAfter=2026-11-25T19:21:03.5Z")),
        "{asked:?}"
    );
}

#[test]
fn a_filter_that_matches_no_line_is_answered_with_what_the_log_has() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/tasks/7.r/logs", stream(&[]));
    let fields = json!({"sources": ["task", "determined-master"], "rankIds": [0, 3], "allocationIds": ["7.r.1", "7.r.2"]});
    stub.on("GET /api/v1/tasks/7.r/logs/fields", stream(&[fields]));
    stub.on("GET /api/v1/tasks", ok(json!({})));
    stub.on("GET /api/v1/tasks/7.r", ok(json!({"task": {}})));
    let user = User::using(&stub);
    let asked = ["task", "logs", "7.r", "--source", "x", "--rank-id", "3"];
    for more in [&[][..], &["--tail", "3"]] {
        let run = user.det(&[&asked[..], more].concat());
        let noted = run.err.lines().last();
        assert_eq!(
            noted,
            Some(
                "no line of the log of task 7.r is from source x: its lines are from determined-master, task"
            )
        );
        assert_eq!(run.ok(), "");
    }
    let asked = ["task", "logs", "7.r", "--allocation-id", "7.r.9"];
    let run = user.det(&asked);
    let known =
        "no line of the log of task 7.r is from allocation 7.r.9: its lines are from 7.r.1, 7.r.2";
    assert_eq!(run.err.lines().last(), Some(known));
    let asked = stub.lines();
    assert!(
        asked
            .iter()
            .any(|line| line.contains("logs?allocationIds=7.r.9&")),
        "{asked:?}"
    );
    // Without a filter nothing is asked for.
    user.det(&["task", "logs", "7.r"]).ok();
    let asked = stub.lines();
    let fields = asked.iter().filter(|line| line.contains("fields"));
    assert_eq!(fields.count(), 3, "{asked:?}");
}
