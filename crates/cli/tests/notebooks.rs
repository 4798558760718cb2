//! Notebooks and TensorBoards: what they are launched with, when their pages are shown, and how.

mod support;

use std::os::unix::fs::PermissionsExt as _;

use nix::sys::stat::Mode;
use serde_json::{Value, json};
use support::stub::{Answer, StubMaster, ok, stream};
use support::{CommandResult, User};

const ID: &str = "0f4ee3b9-128b-41cd-8c46-e563b3d0a1c2";

fn notebook() -> Value {
    json!({
        "id": ID, "description": "mine", "state": "STATE_RUNNING", "username": "ada", "exitStatus": "",
        "serviceAddress": format!("/proxy/{ID}/?token=SECRET"),
    })
}

fn tensorboard() -> Value {
    json!({
        "id": ID, "description": "mine", "state": "STATE_TERMINATED", "username": "ada", "exitStatus": "it was killed",
        "resourcePool": "default", "workspaceId": 1, "startTime": "2026-11-25T19:22:34Z",
        "experimentIds": [3, 4], "trialIds": [], "serviceAddress": format!("/proxy/{ID}/"),
    })
}

fn task(ready: bool, end: &Value) -> Answer {
    task_of("NOTEBOOK", ready, end)
}

fn task_of(kind: &str, ready: bool, end: &Value) -> Answer {
    let attempt = json!({"allocationId": format!("{ID}.1"), "isReady": ready});
    ok(
        json!({"task": {"taskId": ID, "taskType": format!("TASK_TYPE_{kind}"), "endTime": end, "allocations": [attempt]}}),
    )
}

/// A master that launches one and makes it ready at the fourth look: the one before that ends the record of changes, and the
/// client pauses, while the log arrives.
fn master() -> StubMaster {
    let stub = StubMaster::start();
    for (collection, member, one) in [
        ("notebooks", "notebook", notebook()),
        ("tensorboards", "tensorboard", tensorboard()),
    ] {
        let answer = json!({member: one, "config": {"idle_timeout": "1h"}, "messages": ["beware"]});
        stub.on(&format!("POST /api/v1/{collection}"), ok(answer.clone()));
        stub.on(&format!("GET /api/v1/{collection}/{ID}"), ok(answer));
        stub.on(
            &format!("GET /api/v1/{collection}"),
            ok(json!({collection: [one]})),
        );
    }
    let waiting = || task(false, &Value::Null);
    let turns = vec![waiting(), waiting(), waiting(), task(true, &Value::Null)];
    stub.on(&format!("GET /api/v1/tasks/{ID}"), Answer::InTurn(turns));
    stub.on(
        &format!("GET /api/v1/tasks/{ID}/logs"),
        stream(&[json!({"message": "starts\n"})]),
    );
    stub.on("GET /api/v1/events", stream(&[json!({"id": 7})]));
    let workspaces = json!({"workspaces": [{"id": 1, "name": "Uncategorized"}]});
    stub.on("GET /api/v1/workspaces", ok(workspaces));
    stub
}

/// A user whose browser writes what it is to open into a named pipe.
fn with_browser(stub: &StubMaster) -> User {
    let user = User::using(stub);
    nix::unistd::mkfifo(&user.directory().join("opened"), Mode::S_IRWXU)
        .expect("the directory is empty");
    user.write("bin/xdg-open", "#!/bin/sh\necho \"$1\" > opened\n");
    let path = user.directory().join("bin/xdg-open");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("the script was just written");
    user
}

fn run(user: &User, words: &[&str]) -> CommandResult {
    let bin = user.directory().join("bin");
    let mut command = user.command(words);
    command
        .env(
            "PATH",
            format!(
                "{}:{}",
                bin.display(),
                std::env::var("PATH").unwrap_or_default()
            ),
        )
        .env("HOME", user.directory());
    command.output().expect("det can be started").into()
}

/// What the browser was given by a command that has ended.
fn opened(user: &User) -> String {
    std::fs::read_to_string(user.directory().join("opened")).expect("the script writes into it")
}

#[test]
fn a_paused_notebook_is_not_waited_for() {
    let stub = master();
    let mut paused = notebook();
    paused["paused"] = json!(true);
    paused["username"] = json!("determined");
    let answer = json!({"notebook": paused, "config": {}});
    stub.on(&format!("GET /api/v1/notebooks/{ID}"), ok(answer));
    stub.on(
        &format!("GET /api/v1/tasks/{ID}"),
        task(false, &Value::Null),
    );
    let user = User::using(&stub);
    let err = run(&user, &["notebook", "open", ID]).fails(1);
    assert!(
        err.contains(&format!("notebook {ID} is paused"))
            && err.contains(&format!("`det notebook unpause {ID}`"))
            && !err.contains("waiting"),
        "{err}"
    );
}

#[test]
fn a_notebook_is_opened_when_it_is_ready_and_its_token_is_on_no_command_line() {
    let stub = master();
    let user = with_browser(&stub);
    user.write("n.yaml", "idle_timeout: 1h\n");
    let run = run(
        &user,
        &[
            "notebook",
            "start",
            "--config-file",
            "n.yaml",
            "-v",
            "/a:/b",
            "--template",
            "base",
        ],
    );
    let waited = format!("waiting for notebook {ID} to be ready\nstarts\n");
    assert!(run.err.contains(&waited), "{run:?}");
    assert!(run.err.contains("warning: beware"), "{run:?}");
    assert!(!run.err.contains("no browser"), "{run:?}");
    let address = format!("http://{}/proxy/{ID}/?token=SECRET", stub.address());
    assert_eq!(
        run.ok(),
        format!(
            "Launched notebook (id: {ID}, name: mine).\nThe page of notebook {ID}: {address}\n"
        )
    );
    let file = opened(&user);
    let file = std::path::Path::new(file.trim());
    assert!(file.starts_with(user.directory()), "{file:?}");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(std::fs::read_to_string(file).unwrap().contains(&address));
    let sent = stub.last("POST /api/v1/notebooks").json();
    assert_eq!(sent["templateName"], "base");
    assert_eq!(
        sent["config"],
        json!({"idle_timeout": "1h", "bind_mounts": [{"host_path": "/a", "container_path": "/b"}]})
    );
}

#[test]
fn a_page_is_printed_where_no_browser_is_wanted_or_there_is_none() {
    let stub = master();
    owned_by(&stub, "determined");
    let user = User::using(&stub);
    let run = user.det(&["notebook", "open", ID, "--no-browser"]);
    assert!(run.err.ends_with("log in as determined\n"), "{run:?}");
    let out = run.ok();
    let address = format!("http://{}/proxy/{ID}/?token=SECRET", stub.address());
    assert_eq!(out, format!("The page of notebook {ID}: {address}\n"));
    is_of(&stub, "TENSORBOARD");
    let mut command = user.command(&["tensorboard", "open", ID]);
    let run: CommandResult = command.env("PATH", "/nowhere").output().unwrap().into();
    assert!(run.err.contains("no browser was opened"), "{run:?}");
    assert!(run.ok().contains("The page of TensorBoard"));
    is_of(&stub, "NOTEBOOK");
    let out = user.det(&["notebook", "start", "-d"]).ok();
    assert_eq!(out, format!("{ID}\n"));
}

/// Has the one task of the master be of a kind, and ready.
fn is_of(stub: &StubMaster, kind: &str) {
    let answer = task_of(kind, true, &Value::Null);
    stub.on(&format!("GET /api/v1/tasks/{ID}"), answer);
}

/// Has the notebook and the TensorBoard belong to another user.
fn owned_by(stub: &StubMaster, owner: &str) {
    for (collection, member, mut one) in [
        ("notebooks", "notebook", notebook()),
        ("tensorboards", "tensorboard", tensorboard()),
    ] {
        one["username"] = json!(owner);
        let answer = json!({member: one, "config": {}});
        stub.on(&format!("GET /api/v1/{collection}/{ID}"), ok(answer));
    }
}

#[test]
fn what_is_another_users_is_not_opened_except_by_administrators() {
    let stub = master();
    let user = User::using(&stub);
    for group in ["notebook", "tensorboard"] {
        is_of(&stub, &group.to_uppercase());
        let err = user.det(&[group, "open", ID, "--no-browser"]).fails(1);
        assert!(
            err.contains("is for its owner, ada, and for administrators")
                && err.contains(&format!("`det {group} start`"))
                && !err.contains("waiting"),
            "{err}"
        );
    }
    let me = json!({"user": {"username": "determined", "id": 2, "admin": true}});
    stub.on("GET /api/v1/me", ok(me));
    is_of(&stub, "NOTEBOOK");
    let out = user.det(&["notebook", "open", ID, "--no-browser"]).ok();
    assert!(out.contains("The page of notebook"), "{out}");
}

#[test]
fn a_preview_prints_the_configuration_alone() {
    let stub = master();
    let out = User::using(&stub)
        .det(&[
            "notebook",
            "start",
            "--preview",
            "--config",
            "resources.slots=0",
        ])
        .ok();
    assert_eq!(out, "idle_timeout: \"1h\"\n");
    let sent = stub.last("POST /api/v1/notebooks").json();
    assert_eq!(sent["preview"], true);
    assert_eq!(sent["config"], json!({"resources": {"slots": 0}}));
}

#[test]
fn a_tensorboard_is_over_experiments_and_trials() {
    let stub = master();
    let user = with_browser(&stub);
    for (words, experiments, trials) in [
        (&["3", "4"][..], json!([3, 4]), json!([])),
        (
            &["-t", "7", "8", "--trial-ids", "9"],
            json!([]),
            json!([7, 8, 9]),
        ),
        (&["3", "-t", "7", "-d"], json!([3]), json!([7])),
        (&["-t", "7", "-d", "3"], json!([3]), json!([7])),
    ] {
        let words = [&["tensorboard", "start", "--no-browser"][..], words].concat();
        run(&user, &words).ok();
        let sent = stub.last("POST /api/v1/tensorboards").json();
        assert_eq!(
            [&sent["experimentIds"], &sent["trialIds"]],
            [&experiments, &trials],
            "{words:?}"
        );
    }
    run(&user, &["tensorboard", "start", "3"]).ok();
    let address = format!("http://{}/proxy/{ID}/\n", stub.address());
    assert_eq!(opened(&user), address, "it has no token");
    user.det(&["tensorboard", "start"]).fails(2);
    user.det(&["tensorboard", "start", "x"]).fails(2);
}

#[test]
fn what_has_ended_has_no_page() {
    let stub = master();
    owned_by(&stub, "determined");
    stub.on(
        &format!("GET /api/v1/tasks/{ID}"),
        task(false, &json!("2026-11-25T19:22:34Z")),
    );
    let user = User::using(&stub);
    let err = user.det(&["tensorboard", "open", &ID[..5]]).fails(1);
    assert!(
        err.contains(&format!("TensorBoard {ID} has ended: it was killed"))
            && err.contains(&format!("`det tensorboard logs {ID}`")),
        "{err}"
    );
}

#[test]
fn lists_have_the_columns_of_the_other_client() {
    let stub = master();
    let user = User::using(&stub);
    assert_eq!(
        user.det(&["tensorboard", "ls", "--all", "--csv"]).ok(),
        format!(
            "id,username,description,state,experimentIds,trialIds,exitStatus,resourcePool,workspaceName\n\
             {ID},ada,mine,TERMINATED,\"[3, 4]\",[],it was killed,default,Uncategorized\n"
        )
    );
    let out = user.det(&["notebook", "list", "--csv"]).ok();
    assert_eq!(
        out,
        format!(
            "id,username,description,state,exitStatus,resourcePool,workspaceName\n{ID},ada,mine,RUNNING,,,\n"
        )
    );
    assert_eq!(
        stub.last("GET /api/v1/notebooks").line,
        "GET /api/v1/notebooks?users=determined"
    );
}
