//! Entering shells: what `ssh` is called with, what is waited for, and what becomes of keys.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::stub::{Answer, StubMaster, ok, stream};
use support::{CommandResult, User};

const ID: &str = "0f4ee3b9-128b-41cd-8c46-e563b3d0a1c2";

fn shell(key: &str) -> Value {
    json!({
        "id": ID, "description": "mine", "state": "STATE_RUNNING", "username": "ada", "exitStatus": "it broke",
        "exitCode": null, "privateKey": key, "publicKey": "ssh-ed25519 AAAA\n",
        "agentUserGroup": {"user": "svc", "uid": 7},
    })
}

fn task(ready: bool, end: &Value) -> Answer {
    let attempt = json!({"allocationId": format!("{ID}.1"), "isReady": ready});
    ok(
        json!({"task": {"taskId": ID, "taskType": "TASK_TYPE_SHELL", "endTime": end, "allocations": [attempt]}}),
    )
}

/// A master with a shell whose task is answered as `task`.
fn with_shell(task: Answer) -> StubMaster {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/shells",
        ok(json!({"shell": shell(""), "config": {}})),
    );
    stub.on(
        &format!("GET /api/v1/shells/{ID}"),
        ok(json!({"shell": shell("PRIVATE\n"), "config": {}})),
    );
    stub.on(&format!("GET /api/v1/tasks/{ID}"), task);
    stub.on(
        &format!("GET /api/v1/tasks/{ID}/logs"),
        stream(&[json!({"message": "waits for slots\n"})]),
    );
    stub.on("GET /api/v1/events", stream(&[json!({"id": 7})]));
    stub
}

/// A user on whose machine `ssh` writes what it was called with, and its key, into files, and then runs `then`.
fn with_ssh(stub: &StubMaster, then: &str) -> User {
    let user = User::using(stub);
    let script = format!(
        "#!/bin/sh\nfor word; do echo \"$word\"; done > words\nwhile [ \"$1\" != -i ]; do shift; done\n\
         stat -c %a \"$2\" \"${{2%/*}}\" > modes; cat \"$2\" \"${{2%/*}}/known_hosts\" > key\necho \"$2\" > path\n{then}\n"
    );
    user.write("bin/ssh", &script);
    let path = user.directory().join("bin/ssh");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("the script was just written");
    user
}

fn det(user: &User, words: &[&str]) -> std::process::Command {
    let mut command = user.command(words);
    let bin = user.directory().join("bin");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("TMPDIR", user.directory())
        .env("HOME", user.directory());
    command
}

fn run(user: &User, words: &[&str]) -> CommandResult {
    let output = det(user, words).output();
    output.expect("det can be started").into()
}

fn written(user: &User, name: &str) -> String {
    std::fs::read_to_string(user.directory().join(name)).expect("the script has written it")
}

#[test]
fn a_shell_is_entered_by_ssh_through_this_program_and_its_key_goes() {
    let stub = with_shell(task(true, &Value::Null));
    let user = with_ssh(&stub, "exit 7");
    let words = [
        "-u",
        "ada",
        "shell",
        "open",
        ID,
        "--",
        "-L",
        "1:h:2",
        "nvidia-smi",
    ];
    let err = run_as_ada(&user, &words).fails(7);
    assert!(!err.contains("to reconnect"), "a command has ended: {err}");
    let given = written(&user, "words");
    let given: Vec<&str> = given.lines().collect();
    let proxy = format!(
        "ProxyCommand=env DET_DEBUG_CONFIG_PATH={} {} -m http://{} -u ada proxy-stdio %h",
        user.directory().join("settings").display(),
        env!("CARGO_BIN_EXE_det"),
        stub.address()
    );
    assert_eq!(given[..2], ["-o", &proxy]);
    for option in [
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "IdentitiesOnly=yes",
    ] {
        assert!(given.contains(&option), "{given:?}");
    }
    let destination = format!("svc@{ID}");
    let tail = [destination.as_str(), "-L", "1:h:2", "nvidia-smi"];
    assert!(given.ends_with(&tail), "{given:?}");
    assert!(!given.contains(&"-tt"), "there is no terminal: {given:?}");
    assert_eq!(written(&user, "modes"), "600\n700\n");
    assert_eq!(
        written(&user, "key"),
        format!("PRIVATE\n{ID} ssh-ed25519 AAAA\n")
    );
    let path = written(&user, "path");
    assert!(!std::path::Path::new(path.trim()).exists(), "{path}");
}

#[test]
fn a_login_that_is_refused_is_explained_by_the_shells_log() {
    let stub = with_shell(task(true, &Value::Null));
    let why = "WARNING: /etc/passwd has no account, so the SSH server may refuse its logins";
    stub.on(
        &format!("GET /api/v1/tasks/{ID}/logs"),
        stream(&[json!({"log": format!("{why}\n")})]),
    );
    let user = with_ssh(&stub, "exit 255");
    let err = run(&user, &["shell", "open", ID]).fails(255);
    assert!(err.contains(&format!("the shell's log: {why}\n")), "{err}");
    let asked = stub.last(&format!("GET /api/v1/tasks/{ID}/logs")).line;
    assert!(asked.contains("searchText=the"), "{asked}");
}

#[test]
fn ports_that_a_shell_does_not_have_are_refused_at_once() {
    let stub = with_shell(task(false, &Value::Null));
    let ports = json!([{"proxy_port": 80, "proxy_tcp": true}, {"proxy_port": 81}]);
    let answer =
        json!({"shell": shell("PRIVATE\n"), "config": {"environment": {"proxy_ports": ports}}});
    stub.on(&format!("GET /api/v1/shells/{ID}"), ok(answer));
    let user = with_ssh(&stub, "exit 0");
    let err = run(&user, &["shell", "open", ID, "-p", "9000:81"]).fails(1);
    assert!(
        err.contains(&format!("shell {ID} has no TCP port 81: it has 80"))
            && err.contains("`det shell start -p 9000:81`"),
        "{err}"
    );
    assert!(!err.contains("waiting"), "{err}");
    run(&user, &["shell", "start", "-d", "-p", "9000:81"]).ok();
    let sent = stub.last("POST /api/v1/shells").json();
    assert_eq!(
        sent["config"]["environment"]["proxy_ports"],
        json!([{"proxy_port": 81, "proxy_tcp": true}])
    );
}

#[test]
fn a_task_of_another_kind_is_not_waited_for() {
    let stub = with_shell(task(false, &Value::Null));
    let command = json!({"task": {"taskId": ID, "taskType": "TASK_TYPE_COMMAND", "endTime": null}});
    stub.on(&format!("GET /api/v1/tasks/{ID}"), ok(command));
    let user = with_ssh(&stub, "exit 0");
    for action in ["open", "show-ssh-command"] {
        let err = run(&user, &["shell", action, ID]).fails(1);
        assert!(
            err.contains(&format!(
                "task {ID} is a command, and this command is for shells"
            )) && !err.contains("waiting"),
            "{err}"
        );
    }
}

#[test]
fn a_shell_that_is_being_killed_is_waited_for_without_its_log() {
    let end = json!("2026-11-21T10:00:00Z");
    let lives = task(false, &Value::Null);
    let stub = with_shell(Answer::InTurn(vec![
        lives.clone(),
        lives,
        task(false, &end),
    ]));
    let in_state = |state: &str| {
        let mut shell = shell("PRIVATE\n");
        shell["state"] = json!(state);
        shell["exitStatus"] = json!("it was killed by ada");
        ok(json!({"shell": shell, "config": {}}))
    };
    stub.on(
        &format!("GET /api/v1/shells/{ID}"),
        Answer::InTurn(vec![
            in_state("STATE_TERMINATING"),
            in_state("STATE_TERMINATED"),
        ]),
    );
    let user = with_ssh(&stub, "exit 0");
    let err = run(&user, &["shell", "open", ID]).fails(1);
    assert!(
        err.contains(&format!("shell {ID} has ended: it was killed by ada\n")),
        "{err}"
    );
    assert!(err.contains("`det shell start` starts another"), "{err}");
    assert!(!err.contains("waits for slots"), "{err}");
}

/// As a user who has a stored token, so that nothing is asked.
fn run_as_ada(user: &User, words: &[&str]) -> CommandResult {
    let output = det(user, words)
        .env("DET_USER", "ada")
        .env("DET_USER_TOKEN", "TOKEN")
        .output();
    output.expect("det can be started").into()
}

#[test]
fn a_shell_is_started_waited_for_and_entered() {
    let waiting = task(false, &Value::Null);
    let turns = vec![waiting.clone(), waiting, task(true, &Value::Null)];
    let stub = with_shell(Answer::InTurn(turns));
    let user = with_ssh(&stub, "exit 0");
    let words = [
        "shell",
        "start",
        "--config",
        "resources.slots=0",
        "-v",
        "/a:/b:ro",
        "--template",
        "base",
        "--",
        "-N",
    ];
    let run = run(&user, &words);
    let expected = format!("waiting for shell {ID} to be ready\nwaits for slots\n");
    assert!(run.err.contains(&expected), "{run:?}");
    let reconnect = format!("to reconnect, run `det shell open {ID}`");
    assert!(run.err.contains(&reconnect), "{run:?}");
    assert_eq!(
        run.ok(),
        format!("Launched shell (id: {ID}, name: mine).\n")
    );
    let sent = stub.last("POST /api/v1/shells").json();
    assert_eq!(sent["templateName"], "base");
    assert_eq!(
        sent["config"],
        json!({
            "resources": {"slots": 0},
            "bind_mounts": [{"host_path": "/a", "container_path": "/b", "read_only": true}],
        })
    );
    // The changes of its attempt are followed, from the first one.
    let followed = stub.last("GET /api/v1/events").line;
    assert_eq!(
        followed,
        format!("GET /api/v1/events?follow=true&subjectKind=allocation&subjectId={ID}.1")
    );
    assert!(written(&user, "words").ends_with("-N\n"));
}

#[test]
fn a_shell_that_is_detached_needs_no_ssh() {
    let stub = with_shell(task(false, &Value::Null));
    let user = User::using(&stub);
    let nowhere = |words: &[&str]| -> CommandResult {
        let mut command = user.command(words);
        command.env("PATH", "/nowhere").output().unwrap().into()
    };
    assert_eq!(
        nowhere(&["shell", "start", "--detach"]).ok(),
        format!("{ID}\n")
    );
    for words in [&["shell", "start"][..], &["shell", "open", ID]] {
        let launches = stub.lines().len();
        let err = nowhere(words).fails(1);
        assert!(
            err.contains("the program \"ssh\"") && err.contains("openssh-client"),
            "{err}"
        );
        assert_eq!(stub.lines().len(), launches, "nothing was asked");
    }
}

#[test]
fn the_ssh_command_is_printed_and_its_key_kept() {
    let stub = with_shell(task(true, &Value::Null));
    let user = with_ssh(&stub, "exit 0");
    let line = run(&user, &["shell", "show_ssh_command", ID]).ok();
    assert!(line.starts_with("ssh -o 'ProxyCommand=env "), "{line}");
    assert!(line.ends_with(&format!(" svc@{ID}\n")), "{line}");
    assert!(!line.contains("PRIVATE"), "{line}");
    let directory = user.directory().join(".cache/determined/shell").join(ID);
    assert!(line.contains(&format!("-i {}/key", directory.display())));
    assert_eq!(
        std::fs::read_to_string(directory.join("key")).unwrap(),
        "PRIVATE\n"
    );
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // Printed before it is entered, too.
    let out = run(&user, &["shell", "open", ID, "--show-ssh-command"]).ok();
    assert_eq!(out, line);
    assert!(directory.join("key").exists());
}

#[test]
fn what_is_not_ones_own_or_has_ended_is_not_entered() {
    let stub = with_shell(task(true, &Value::Null));
    stub.on(
        &format!("GET /api/v1/shells/{ID}"),
        ok(json!({"shell": shell(""), "config": {}})),
    );
    let user = with_ssh(&stub, "exit 0");
    let err = run(&user, &["shell", "open", ID]).fails(1);
    assert!(err.contains("is for its owner, ada, alone"), "{err}");

    let stub = with_shell(task(false, &json!("2026-11-25T19:22:34Z")));
    let mut ended = shell("PRIVATE\n");
    ended["state"] = json!("STATE_TERMINATED");
    stub.on(
        &format!("GET /api/v1/shells/{ID}"),
        ok(json!({"shell": ended, "config": {}})),
    );
    let user = with_ssh(&stub, "exit 0");
    for words in [
        &["shell", "open", ID][..],
        &["shell", "start"],
        &["shell", "show-ssh-command", ID],
    ] {
        let err = run(&user, words).fails(1);
        assert!(
            err.contains(&format!("shell {ID} has ended: it broke"))
                && err.contains(&format!("`det shell logs {ID}`")),
            "{err}"
        );
    }
    assert!(!user.directory().join("words").exists());
}

#[test]
fn a_signal_ends_ssh_and_removes_the_key() {
    let stub = with_shell(task(true, &Value::Null));
    // Ends by the signal that is passed on to it, and not by itself.
    let user = with_ssh(
        &stub,
        "trap 'echo ended > ended; exit 3' TERM\nmkfifo wait; echo started\nread line < wait",
    );
    let mut child = det(&user, &["shell", "open", ID])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut started = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut started).unwrap();
    let path = written(&user, "path");
    assert!(std::path::Path::new(path.trim()).exists());
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    CommandResult::from(child.wait_with_output().unwrap()).fails(3);
    assert_eq!(written(&user, "ended"), "ended\n");
    assert!(!std::path::Path::new(path.trim()).exists());
}
