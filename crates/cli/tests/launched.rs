//! Launching tasks, following them and steering them.

mod support;

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok, stream};

const ID: &str = "0f4ee3b9-128b-41cd-8c46-e563b3d0a1c2";
const OTHER: &str = "0f77c5f0-08a8-40dd-93ca-7a00f4a55b3f";

fn command(state: &str, code: &Value, status: &str) -> Value {
    json!({
        "id": ID, "description": "mine", "state": format!("STATE_{state}"), "username": "determined",
        "startTime": "2026-11-25T19:22:34Z", "resourcePool": "default", "exitStatus": status, "exitCode": code,
        "workspaceId": 1,
    })
}

fn answer(command: &Value) -> Answer {
    ok(json!({"command": command, "config": {"entrypoint": ["x"]}}))
}

/// A master that launches the command, of which `then` is the answer about it.
fn launches(then: Answer) -> StubMaster {
    let stub = StubMaster::start();
    let launched = json!({
        "command": command("QUEUED", &Value::Null, ""), "config": {},
        "warnings": ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"], "messages": ["debug: means little"],
    });
    stub.on("POST /api/v1/commands", ok(launched));
    stub.on(
        &format!("GET /api/v1/tasks/{ID}/logs"),
        stream(&[json!({"message": "one\n"}), json!({"message": "two\n"})]),
    );
    stub.on(&format!("GET /api/v1/commands/{ID}"), then);
    stub
}

fn ended(code: &Value, status: &str) -> Answer {
    answer(&command("TERMINATED", code, status))
}

fn listed(stub: &StubMaster, commands: &[Value]) {
    stub.on("GET /api/v1/commands", ok(json!({"commands": commands})));
    let workspaces =
        json!({"workspaces": [{"id": 1, "name": "Uncategorized"}, {"id": 4, "name": "lab"}]});
    stub.on("GET /api/v1/workspaces", ok(workspaces));
    stub.on("GET /api/v1/tasks", ok(json!({})));
    for id in [ID, OTHER] {
        let task =
            json!({"task": {"taskId": id, "taskType": "TASK_TYPE_COMMAND", "endTime": null}});
        stub.on(&format!("GET /api/v1/tasks/{id}"), ok(task));
    }
}

#[test]
fn a_command_line_becomes_a_configuration() {
    let stub = launches(ended(&json!(0), ""));
    listed(&stub, &[]);
    let user = User::using(&stub);
    user.write(
        "c.yaml",
        "description: in the file\nresources: {slots: 2}\nbind_mounts: [{host_path: /x, container_path: /y}]\n",
    );
    user.write("files/a.py", "print(1)\n");
    user.write("lib/b.py", "print(2)\n");
    let run = user.det(&[
        "cmd",
        "run",
        "--config-file",
        "c.yaml",
        "--config",
        "description=on the line",
        "-v",
        "/a:/b",
        "--volume",
        "/c:/d:ro",
        "-c",
        "files",
        "-i",
        "lib",
        "-w",
        "lab",
        "--template",
        "base",
        "-d",
        "python3",
        "a.py",
        "--detach",
        "-m",
        "x",
    ]);
    assert!(
        run.err.contains("warning: the command needs more slots")
            && run.err.contains("warning: debug: means little"),
        "{run:?}"
    );
    assert_eq!(run.ok(), format!("{ID}\n"), "only its id");
    let sent = stub.last("POST /api/v1/commands").json();
    let mount =
        |host: &str, container: &str| json!({"host_path": host, "container_path": container});
    assert_eq!(
        sent["config"],
        json!({
            "description": "on the line", "resources": {"slots": 2},
            "bind_mounts": [
                mount("/x", "/y"), mount("/a", "/b"),
                {"host_path": "/c", "container_path": "/d", "read_only": true},
            ],
            "entrypoint": ["python3", "a.py", "--detach", "-m", "x"],
        })
    );
    assert_eq!(sent["templateName"], "base");
    assert_eq!(sent["workspaceId"], 4);
    let paths: Vec<&Value> = sent["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| &file["path"])
        .collect();
    assert_eq!(paths, ["a.py", "lib", "lib/b.py"]);
}

#[test]
fn the_words_of_a_command_may_follow_two_dashes_and_yield_to_the_configuration() {
    let stub = launches(ended(&json!(0), ""));
    let user = User::using(&stub);
    for words in [
        &["cmd", "run", "--", "--flag", "x"][..],
        &["command", "run", "--config", "entrypoint=[--flag, x]"],
        &["cmd", "run", "--config", "entrypoint=[--flag, x]", "other"],
    ] {
        let run = user.det(words);
        let said = "the configuration has an entrypoint, and it is what runs; left out: other\n";
        assert_eq!(run.err.contains(said), words.contains(&"other"), "{run:?}");
        run.ok();
        let sent = stub.last("POST /api/v1/commands").json();
        assert_eq!(sent["config"]["entrypoint"], json!(["--flag", "x"]));
    }
}

#[test]
fn what_is_wrong_with_a_command_is_reported_before_a_master_is_asked() {
    let user = User::at("127.0.0.1:1");
    user.write("c.yaml", "resources:\n  slotz: 3\nentrypoint: 5\n");
    for (words, code, expected) in [
        (&["cmd", "run"][..], 2, "there is nothing to run"),
        (
            &["cmd", "run", "--foo", "x"],
            2,
            "unexpected argument '--foo'",
        ),
        (
            &["cmd", "run", "-v", "here:/there", "x"],
            2,
            "must begin with /",
        ),
        (
            &["cmd", "run", "-v", "/a:/b:readonly", "x"],
            2,
            "\"readonly\" is no mode of a mount",
        ),
        (
            &["cmd", "run", "--config", "slots", "x"],
            1,
            "must have the form",
        ),
        (
            &["cmd", "run", "--config", "resources.slots=-1", "x"],
            1,
            "--config resources.slots: must be at least 0",
        ),
        (
            &["cmd", "run", "--config-file", "c.yaml"],
            1,
            "c.yaml:2:3: resources.slotz: is not a known key",
        ),
        (
            &["cmd", "run", "--config-file", "c.yaml"],
            1,
            "\nc.yaml:3:1: entrypoint: must be a list",
        ),
        (
            &["cmd", "run", "--config-file", "none.yaml", "x"],
            1,
            "could not read \"none.yaml\"",
        ),
        (&["cmd", "run", "-c", "c.yaml", "x"], 2, "is a file"),
        (&["cmd", "kill", "--force"], 2, "required"),
        (&["cmd", "set", "priority", "x", "100"], 2, "1..=99"),
        (
            &["task", "create", "c.yaml"],
            1,
            "c.yaml:2:3: resources.slotz: is not a known key",
        ),
        (
            &["task", "create", "c.yaml", "--inherit_context"],
            2,
            "--parent",
        ),
    ] {
        let err = user.det(words).fails(code);
        assert!(err.contains(expected), "{words:?}: {err}");
    }
    // Without the check it is the master that would refuse.
    user.det(&["cmd", "run", "--config-file", "c.yaml", "--no-check", "x"])
        .fails(3);
    user.write("empty.yaml", "{}\n");
    let err = user.det(&["task", "create", "empty.yaml"]).fails(1);
    assert!(err.contains("entrypoint: is required"), "{err}");
    // What is missing may be the forked task's.
    user.det(&["task", "create", "empty.yaml", "--fork", ID])
        .fails(3);
}

#[test]
fn a_refusal_of_the_master_is_placed_in_the_file() {
    let stub = StubMaster::start();
    let errors = json!([{"path": "resources.resource_pool", "message": "pool \"p\" does not exist", "line": 1, "column": 40}]);
    let refusal = json!({"error": {"code": 3, "error": "no", "reason": "no", "errors": errors}});
    stub.on("POST /api/v1/commands", Answer::Json(400, refusal));
    let user = User::using(&stub);
    user.write("c.yaml", "resources:\n  resource_pool: p\n");
    let run = user.det(&["cmd", "run", "--config-file", "c.yaml", "x"]);
    let err = run.fails(1);
    let expected = "error: the command's configuration cannot be used:\nc.yaml:2:3: resources.resource_pool: pool \"p\" does not exist\n";
    assert!(err.ends_with(expected), "{err}");
}

#[test]
fn a_command_is_followed_to_its_exit_code() {
    let running = || answer(&command("RUNNING", &Value::Null, ""));
    for (then, code, expected) in [
        (ended(&json!(0), "all is well"), 0, ""),
        (
            Answer::InTurn(vec![running(), running(), ended(&json!(7), "it broke")]),
            7,
            "has ended: it broke\n",
        ),
        (
            ended(&Value::Null, "it was killed"),
            1,
            "has ended: it was killed\n",
        ),
    ] {
        let stub = launches(then);
        let run = User::using(&stub).det(&["cmd", "run", "x"]);
        assert_eq!(run.code, code, "{run:?}");
        assert_eq!(
            run.out,
            format!("Launched command (id: {ID}, name: mine).\none\ntwo\n")
        );
        assert!(run.err.ends_with(expected), "{run:?}");
        assert_eq!(run.err.contains("has ended: "), code != 0, "{run:?}");
    }
}

#[test]
fn ctrl_c_ends_following_and_not_the_command() {
    let stub = launches(answer(&command("RUNNING", &Value::Null, "")));
    let child = User::using(&stub)
        .command(&["cmd", "run", "x"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    stub.wait_for(2, &format!("GET /api/v1/commands/{ID}"));
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let run = support::CommandResult::from(child.wait_with_output().unwrap());
    let err = run.fails(130);
    for expected in [
        format!("command {ID} goes on; "),
        format!("`det cmd logs -f {ID}`"),
        format!("`det cmd kill {ID}`"),
    ] {
        assert!(err.contains(&expected), "{err}");
    }
    let asked = stub.lines();
    assert!(!asked.iter().any(|line| line.contains("kill")), "{asked:?}");
}

#[test]
fn commands_are_listed_in_the_form_of_the_other_client() {
    let stub = StubMaster::start();
    let other = json!({
        "id": OTHER, "description": "a", "state": "STATE_TERMINATED", "username": "ada", "workspaceId": 9,
        "resourcePool": "default", "exitStatus": "it was killed", "exitCode": null,
    });
    listed(&stub, &[command("RUNNING", &Value::Null, ""), other]);
    let user = User::using(&stub);
    let out = user.det(&["cmd", "--help"]).ok();
    assert!(out.contains("run") && out.contains("kill"), "{out}");
    assert_eq!(
        user.det(&["cmd", "list", "--csv"]).ok(),
        format!(
            "id,username,description,state,exitStatus,resourcePool,workspaceName\n\
             {ID},determined,mine,RUNNING,,default,Uncategorized\n\
             {OTHER},ada,a,TERMINATED,it was killed,default,missing workspace id 9\n"
        )
    );
    assert_eq!(
        stub.last("GET /api/v1/commands").line,
        "GET /api/v1/commands?users=determined"
    );
    user.det(&["cmd"]).ok();
    assert_eq!(
        stub.last("GET /api/v1/commands").line,
        "GET /api/v1/commands?users=determined"
    );
    let sorted = ["cmd", "ls", "-a", "-q", "-w", "lab", "--sort-by"];
    let ids = |more: &[&str]| user.det(&[&sorted[..], more].concat()).ok();
    assert_eq!(ids(&["description"]), format!("{OTHER}\n{ID}\n"));
    assert_eq!(
        ids(&["description", "--order-by", "desc"]),
        format!("{ID}\n{OTHER}\n")
    );
    assert_eq!(
        ids(&["startTime", "--order-by", "desc"]),
        format!("{OTHER}\n{ID}\n")
    );
    assert_eq!(
        stub.last("GET /api/v1/commands").line,
        "GET /api/v1/commands?workspaceId=4"
    );
    let objects: Value = serde_json::from_str(&user.det(&["cmd", "ls", "--json"]).ok()).unwrap();
    assert_eq!(objects[0]["state"], "RUNNING");
    assert_eq!(objects[1]["workspaceName"], "missing workspace id 9");
}

#[test]
fn a_command_that_failed_is_shown_with_the_last_lines_of_its_code() {
    let mut failed = command("TERMINATED", &json!(1), "the code ended with exit code 1");
    let lines = ["Traceback (most recent call last):", "KeyError: 'lr'"];
    failed["lastFailure"] =
        json!({"reason": "the code ended with exit code 1", "lastLines": lines});
    let stub = launches(answer(&failed));
    let long = "the task could not be started: the image could not be pulled from its registry";
    let mut other = command("TERMINATED", &Value::Null, long);
    other["id"] = json!(OTHER);
    listed(&stub, &[failed, other]);
    let user = User::using(&stub);
    let run = user.det(&["cmd", "list"]);
    assert!(run.out.contains(" exit code 1: KeyError: 'lr' "), "{run:?}");
    let cut = " the task could not be started: the image could not be pulle… ";
    assert!(run.out.contains(cut), "{run:?}");
    assert!(run.err.contains("`det cmd describe ID`"), "{run:?}");
    let csv = user.det(&["cmd", "list", "--csv"]).ok();
    assert!(csv.contains(long) && !csv.contains("KeyError"), "{csv}");
    let run = user.det(&["cmd", "describe", ID]);
    let whole = format!(
        "\nIt has ended: the code ended with exit code 1; the last lines of its code:\n    {}\n    {}\n",
        lines[0], lines[1]
    );
    assert!(run.out.ends_with(&whole), "{run:?}");
}

#[test]
fn one_command_is_named_by_the_beginning_of_its_id() {
    let stub = launches(answer(&command("RUNNING", &Value::Null, "")));
    listed(&stub, &[json!({"id": ID}), json!({"id": OTHER})]);
    stub.on(
        &format!("POST /api/v1/commands/{ID}/set_priority"),
        ok(json!({})),
    );
    let user = User::using(&stub);
    let shown = user.det(&["cmd", "describe", "0f4", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["id"], &shown["state"]),
        (&json!(ID), &json!("RUNNING"))
    );
    assert_eq!(
        user.det(&["cmd", "config", "0f4"]).ok(),
        "entrypoint:\n  - x\n"
    );
    assert_eq!(user.det(&["cmd", "logs", "0f4"]).ok(), "one\ntwo\n");
    let out = user.det(&["cmd", "set", "priority", "0f4", "7"]).ok();
    assert_eq!(out, format!("Set the priority of command {ID} to 7\n"));
    let sent = stub.last(&format!("POST /api/v1/commands/{ID}/set_priority"));
    assert_eq!(sent.json(), json!({"priority": 7}));
    let err = user.det(&["cmd", "config", "0f"]).fails(1);
    assert!(
        err.contains("is the beginning of 2 command ids") && err.contains(OTHER),
        "{err}"
    );
    let err = user.det(&["cmd", "config", "1"]).fails(1);
    assert!(
        err.contains("no command that lives") && err.contains("det cmd list --all"),
        "{err}"
    );
    user.det(&["cmd", "config", ""]).fails(2);
}

#[test]
fn what_has_ended_is_not_reported_as_killed() {
    let stub = StubMaster::start();
    listed(&stub, &[json!({"id": ID}), json!({"id": OTHER})]);
    stub.on(
        &format!("GET /api/v1/commands/{ID}"),
        ended(&json!(0), "all is well"),
    );
    stub.on(
        &format!("GET /api/v1/commands/{OTHER}"),
        answer(&command("RUNNING", &Value::Null, "")),
    );
    stub.on(
        &format!("POST /api/v1/commands/{OTHER}/kill"),
        ok(json!({})),
    );
    let user = User::using(&stub);
    let run = user.det(&["cmd", "kill", "0f4", OTHER]);
    let expected =
        format!("command {ID} has ended already (all is well), so there is nothing to kill\n");
    assert!(run.err.ends_with(&expected), "{run:?}");
    assert_eq!(run.ok(), format!("Killed command {OTHER}\n"));
    let kills = stub
        .lines()
        .into_iter()
        .filter(|line| line.contains("kill"));
    assert_eq!(kills.count(), 1);
}

#[test]
fn a_task_of_another_kind_is_refused_before_anything_is_done() {
    let stub = StubMaster::start();
    listed(&stub, &[]);
    let summary = json!({"allocationIdToSummary": {format!("{ID}.1"): {"taskId": ID}}});
    stub.on("GET /api/v1/tasks", ok(summary));
    for kind in ["shells", "notebooks", "tensorboards"] {
        stub.on(&format!("GET /api/v1/{kind}"), ok(json!({})));
    }
    let user = User::using(&stub);
    for (group, plural) in [
        ("shell", "shells"),
        ("notebook", "notebooks"),
        ("tensorboard", "TensorBoards"),
    ] {
        for id in [ID, "0f4"] {
            for words in [
                &[group, "kill", id][..],
                &[group, "logs", id],
                &[group, "pause", id],
                &[group, "describe", id],
                &[group, "set", "priority", id, "3"],
            ] {
                let err = user.det(words).fails(1);
                let expected = format!(
                    "error: task {ID} is a command, and this command is for {plural}\nhint: `det cmd` is for commands\n"
                );
                assert!(err.ends_with(&expected), "{words:?}: {err}");
            }
        }
    }
    for id in [ID, "0f4"] {
        for group in ["notebook", "tensorboard"] {
            let err = user.det(&[group, "open", id]).fails(1);
            assert!(err.contains("is a command"), "{err}");
        }
    }
    assert!(!stub.lines().iter().any(|line| line.starts_with("POST")));
    stub.on(
        &format!("GET /api/v1/tasks/{OTHER}"),
        Answer::Json(404, json!({"message": "task not found"})),
    );
    let err = user.det(&["shell", "kill", OTHER]).fails(1);
    assert!(err.contains("`det shell list --all`"), "{err}");
}

#[test]
fn published_ports_are_added_to_the_configuration_and_named() {
    let stub = launches(ended(&json!(0), ""));
    let user = User::using(&stub);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let run = user.det(&["cmd", "run", "-p", &format!("{port}:8265"), "x"]);
    let mapping = format!("127.0.0.1:{port} leads to port 8265 of the task");
    assert!(run.err.contains(&mapping), "{run:?}");
    run.ok();
    let sent = stub.last("POST /api/v1/commands").json();
    assert_eq!(
        sent["config"]["environment"]["proxy_ports"],
        json!([{"proxy_port": 8265, "proxy_tcp": true}])
    );
    let http = "environment.proxy_ports=[{proxy_port: 8265}]";
    let words = ["cmd", "run", "--config", http, "-p", "8265", "x"];
    let err = user.det(&words).fails(2);
    assert!(err.contains("without proxy_tcp"), "{err}");
}

#[test]
fn published_ports_are_added_to_the_configuration_of_an_experiment() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/experiments",
        Answer::Json(400, json!({"message": "no"})),
    );
    let user = User::using(&stub);
    user.write(
        "c.yaml",
        "name: n\nentrypoint: x\nsearcher: {name: single, metric: loss}\n",
    );
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let publish = format!("{port}:8265");
    user.det(&["e", "create", "c.yaml", "-f", "-p", &publish])
        .fails(1);
    let sent = stub.last("POST /api/v1/experiments").json();
    let config = sent["config"].as_str().unwrap();
    assert!(
        config.contains("proxy_port: 8265") && config.contains("proxy_tcp: true"),
        "{config}"
    );
}

#[test]
fn a_kill_that_is_refused_stops_unless_it_is_forced() {
    let stub = StubMaster::start();
    listed(&stub, &[json!({"id": ID})]);
    let refusal = json!({"error": {"code": 7, "error": "not yours", "reason": "not yours"}});
    for id in [ID, OTHER] {
        stub.on(
            &format!("GET /api/v1/commands/{id}"),
            answer(&command("RUNNING", &Value::Null, "")),
        );
    }
    stub.on(
        &format!("POST /api/v1/commands/{ID}/kill"),
        Answer::Json(403, refusal),
    );
    stub.on(
        &format!("POST /api/v1/commands/{OTHER}/kill"),
        ok(json!({})),
    );
    let user = User::using(&stub);
    let err = user.det(&["cmd", "kill", "0f4", OTHER]).fails(1);
    assert!(
        err.contains(&format!("command {OTHER} was not killed")) && err.contains("not yours"),
        "{err}"
    );
    let run = user.det(&["cmd", "kill", "-f", "0f4", "unknown", OTHER]);
    assert_eq!(run.err.matches("skipped: ").count(), 2, "{run:?}");
    assert_eq!(run.ok(), format!("Killed command {OTHER}\n"));
    let err = user.det(&["cmd", "kill", "unknown", ID]).fails(1);
    assert!(err.contains("no command that lives"), "{err}");
}

/// A generic task in a state, as the API shows it.
fn task(state: &str, end: &Value, last: &Value) -> Answer {
    ok(json!({"task": {
        "taskId": ID, "taskType": "TASK_TYPE_GENERIC", "taskState": format!("GENERIC_TASK_STATE_{state}"),
        "endTime": end, "allocations": [last],
    }}))
}

fn of_one_task(task: Answer) -> StubMaster {
    let stub = StubMaster::start();
    let summary = json!({"allocationIdToSummary": {format!("{ID}.1"): {"taskId": ID}}});
    stub.on("GET /api/v1/tasks", ok(summary));
    stub.on(&format!("GET /api/v1/tasks/{ID}"), task);
    stub.on(
        "POST /api/v1/generic-tasks",
        ok(json!({"taskId": ID, "warnings": [], "messages": ["look here"]})),
    );
    stub
}

#[test]
fn a_generic_task_is_created_with_all_that_was_asked_for() {
    let stub = of_one_task(task("ACTIVE", &Value::Null, &json!({})));
    let user = User::using(&stub);
    let config = "# kept\nentrypoint: [python3, a.py]\n";
    user.write("t.yaml", config);
    user.write("files/a.py", "print(1)\n");
    let run = user.det(&["task", "create", "t.yaml", "-c", "files"]);
    assert!(run.err.contains("warning: look here"), "{run:?}");
    assert_eq!(run.ok(), format!("Created task {ID}\n"));
    let sent = stub.last("POST /api/v1/generic-tasks").json();
    assert_eq!(sent["config"], config);
    assert_eq!(sent["contextDirectory"][0]["path"], "a.py");
    assert_eq!(sent["noPause"], false);
    assert_eq!(sent["templateName"], "");
    user.det(&[
        "task",
        "create",
        "t.yaml",
        "--config",
        "resources.slots=0",
        "--project_id",
        "3",
        "-p",
        "0f4",
        "--inherit_context",
        "--no_pause",
        "--fork",
        OTHER,
    ])
    .ok();
    let sent = stub.last("POST /api/v1/generic-tasks").json();
    assert_eq!(
        (&sent["projectId"], &sent["parentId"], &sent["forkedFrom"]),
        (&json!(3), &json!(ID), &json!(OTHER))
    );
    assert_eq!(
        (&sent["inheritContext"], &sent["noPause"]),
        (&json!(true), &json!(true))
    );
    assert!(sent["config"].as_str().unwrap().contains("slots: 0"));
    // What is missing may be the template's.
    user.write("empty.yaml", "{}\n");
    user.det(&["task", "create", "empty.yaml", "--template", "base"])
        .ok();
    let sent = stub.last("POST /api/v1/generic-tasks").json();
    assert_eq!(sent["templateName"], "base");
    user.det(&["task", "fork", "0f4", "--project_id", "2"]).ok();
    let sent = stub.last("POST /api/v1/generic-tasks").json();
    assert_eq!(
        (&sent["config"], &sent["forkedFrom"], &sent["projectId"]),
        (&json!(""), &json!(ID), &json!(2))
    );
}

#[test]
fn a_generic_task_is_followed_to_its_end() {
    let end = json!("2026-11-25T19:22:34Z");
    for (state, last, code) in [
        (
            "COMPLETED",
            json!({"statusCode": 0, "exitReason": "fine"}),
            0,
        ),
        (
            "ERROR",
            json!({"statusCode": 4, "exitReason": "it broke"}),
            4,
        ),
        (
            "CANCELED",
            json!({"statusCode": 137, "exitReason": "gone"}),
            1,
        ),
    ] {
        let stub = of_one_task(task(state, &end, &last));
        stub.on(
            &format!("GET /api/v1/tasks/{ID}/logs"),
            stream(&[json!({"message": "one\n"})]),
        );
        let run = User::using(&stub).det(&["task", "fork", ID, "-f"]);
        assert_eq!(run.code, code, "{run:?}");
        assert_eq!(run.out, format!("Created task {ID}\none\n"));
    }
}

#[test]
fn generic_tasks_are_paused_unpaused_and_killed() {
    let stub = of_one_task(task("ACTIVE", &Value::Null, &json!({})));
    for action in ["pause", "unpause", "kill"] {
        stub.on(&format!("POST /api/v1/tasks/{ID}/{action}"), ok(json!({})));
    }
    stub.on(
        &format!("GET /api/v1/tasks/{ID}/config"),
        ok(json!({"config": "{\"entrypoint\":[\"x\"]}"})),
    );
    let user = User::using(&stub);
    stub.on(
        &format!("GET /api/v1/tasks/{ID}"),
        task("PAUSED", &Value::Null, &json!({})),
    );
    let out = user.det(&["task", "unpause", ID]).ok();
    assert_eq!(out, format!("Unpaused task {ID}\n"));
    let run = user.det(&["task", "pause", ID]);
    assert!(run.err.contains("was paused already"), "{run:?}");
    assert_eq!(run.ok(), "");
    stub.on(
        &format!("GET /api/v1/tasks/{ID}"),
        task("ACTIVE", &Value::Null, &json!({})),
    );
    let run = user.det(&["task", "unpause", ID]);
    assert!(run.err.contains("was not paused: it goes on"), "{run:?}");
    assert_eq!(run.ok(), "");
    for (words, expected) in [
        (&["task", "pause", "0f4"][..], format!("Paused task {ID}\n")),
        (&["task", "kill", "0f4"], format!("Killed task {ID}\n")),
        (
            &["task", "kill", "0f4", "--root"],
            format!("Killed task {ID} and everything that belongs to the same task\n"),
        ),
        (&["task", "config", ID], "entrypoint:\n  - x\n".to_owned()),
        (
            &["task", "config", ID, "--json"],
            "{\n  \"entrypoint\": [\n    \"x\"\n  ]\n}\n".to_owned(),
        ),
    ] {
        assert_eq!(user.det(words).ok(), expected, "{words:?}");
    }
    let sent = stub.last(&format!("POST /api/v1/tasks/{ID}/kill")).json();
    assert_eq!(sent["killFromRoot"], true);
}

#[test]
fn only_generic_tasks_that_live_are_killed_as_such() {
    let end = json!("2026-11-25T19:22:34Z");
    let stub = of_one_task(task("COMPLETED", &end, &json!({"exitReason": "fine"})));
    let kill = format!("POST /api/v1/tasks/{ID}/kill");
    stub.on(&kill, ok(json!({})));
    let run = User::using(&stub).det(&["task", "kill", ID]);
    assert!(run.err.contains("has ended already (fine)"), "{run:?}");
    assert_eq!(run.ok(), "");
    // Others may belong to it that have not.
    assert_eq!(stub.last(&kill).json()["killFromRoot"], false);
    let stub = of_one_task(ok(
        json!({"task": {"taskId": ID, "taskType": "TASK_TYPE_COMMAND"}}),
    ));
    for action in ["kill", "config"] {
        let err = User::using(&stub).det(&["task", action, ID]).fails(1);
        assert!(
            err.contains("is a command, and this command is for generic tasks")
                && err.contains("`det cmd` is for commands"),
            "{err}"
        );
    }
}

#[test]
fn tables_have_when_one_was_started() {
    let stub = StubMaster::start();
    listed(&stub, &[command("RUNNING", &Value::Null, "")]);
    let out = User::using(&stub).det(&["cmd", "list"]).ok();
    assert!(
        out.lines()
            .next()
            .is_some_and(|headers| headers.contains("startTime")),
        "{out}"
    );
    assert!(out.contains("2026-11-25 19:22:34+0000"), "{out}");
}
