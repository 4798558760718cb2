//! Reaching, trusting and logging in to a master.

#![allow(
    clippy::unwrap_used,
    reason = "a helper that fails makes its test fail"
)]

mod support;

use std::fs;

use serde_json::json;
use support::User;
use support::stub::{Answer, StubMaster, ok};

/// An address where nothing listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn without_a_master_there_is_one_sentence_and_code_3() {
    let address = nowhere();
    let err = User::at(&address).det(&["experiment", "list"]).fails(3);
    assert_eq!(
        err,
        format!(
            "error: could not reach a master at http://{address}: the connection was refused; \
             start one with `det up`, or name another with -m or DET_MASTER\n"
        )
    );
}

#[test]
fn wrong_usage_has_code_2() {
    let user = User::at(&nowhere());
    user.det(&["experiment", "fly"]).fails(2);
    user.det(&[]).fails(2);
    let err = user.det(&["-m", "ftp://x", "agent", "list"]).fails(2);
    assert!(
        err.contains("has a scheme other than http and https"),
        "{err}"
    );
    let err = user
        .det(&["trial", "logs", "1", "--head", "1", "--tail", "1"])
        .fails(2);
    assert!(err.contains("cannot be used with"), "{err}");
}

#[test]
fn a_refused_request_has_code_1_and_the_masters_message() {
    let stub = StubMaster::start();
    let refusal = json!({"error": {"error": "experiment 7 is paused"}, "hint": "activate it"});
    stub.on(
        "POST /api/v1/experiments/7/cancel",
        Answer::Json(400, refusal),
    );
    stub.on(
        "GET /api/v1/experiments/7",
        ok(json!({"experiment": {"state": "STATE_RUNNING"}})),
    );
    let err = User::using(&stub).det(&["e", "cancel", "7"]).fails(1);
    assert!(
        err.contains("error: experiment 7 is paused\nhint: activate it\n"),
        "{err}"
    );
}

#[test]
fn another_kind_of_server_is_named_so() {
    let stub = StubMaster::bare();
    stub.on(
        "POST /api/v1/auth/login",
        Answer::Raw(200, "text/html", b"<html>".to_vec()),
    );
    let err = User::using(&stub).det(&["agent", "list"]).fails(3);
    assert!(
        err.contains("gave an answer that is not a master's"),
        "{err}"
    );
}

#[test]
fn flags_beat_the_environment() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/agents", ok(json!({"agents": []})));
    let user = User::at(&nowhere());
    user.det(&["-m", stub.address(), "agent", "list"]).ok();
    user.det(&["agent", "list", "--master", stub.address()])
        .ok();
}

#[test]
fn logging_in_keeps_a_token_that_the_other_client_reads() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({"version": "0.38.1"})));
    stub.on(
        "POST /api/v1/auth/login",
        ok(json!({"token": "T-ADA", "user": {"username": "ada"}})),
    );
    let user = User::using(&stub);
    let run = user.det_typing(&["user", "login", "ada"], "Passw0rd\n");
    assert!(run.err.contains("logged in to"), "{run:?}");
    run.ok();
    let sent = stub.last("POST /api/v1/auth/login").json();
    assert_eq!(sent["username"], "ada");
    assert_eq!(sent["password"], det_client::salted_hash("Passw0rd"));
    let expected = format!(
        r#"{{
    "masters": {{
        "http://{}": {{
            "active_user": "ada",
            "tokens": {{
                "ada": "T-ADA"
            }}
        }}
    }},
    "version": 2
}}"#,
        stub.address()
    );
    assert_eq!(fs::read_to_string(user.tokens()).unwrap(), expected);

    stub.on("GET /api/v1/agents", ok(json!({"agents": []})));
    user.det(&["agent", "list"]).ok();
    assert_eq!(
        stub.last("GET /api/v1/agents").headers["authorization"],
        "Bearer T-ADA"
    );
}

#[test]
fn a_wrong_password_is_reported() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    stub.on(
        "POST /api/v1/auth/login",
        Answer::Json(401, json!({"error": {"error": "invalid credentials"}})),
    );
    let user = User::using(&stub);
    let err = user.det_typing(&["user", "login", "ada"], "x\n").fails(1);
    assert!(err.contains("wrong user name or password"), "{err}");
    assert!(!user.tokens().exists());
    let err = user.det(&["agent", "list"]).fails(1);
    assert!(err.contains("det user login"), "{err}");
}

/// Refuses the next log-in, and answers those that follow with `then`.
fn refusing_once(stub: &StubMaster) {
    let refusal = Answer::Json(401, json!({"error": {"error": "invalid credentials"}}));
    let token = ok(json!({"token": "TOKEN", "user": {"username": "determined"}}));
    stub.on(
        "POST /api/v1/auth/login",
        Answer::InTurn(vec![refusal, token]),
    );
}

#[test]
fn no_user_acts_as_the_default_user_in_silence_after_a_login_that_failed() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    stub.on("GET /api/v1/agents", ok(json!({"agents": []})));
    let user = User::using(&stub);
    let note = format!(
        "no login for http://{}: acting as \"determined\" (blank password)",
        stub.address()
    );
    let first = user.det(&["agent", "list"]);
    assert!(first.err.contains(&note), "{first:?}");
    let second = user.det(&["agent", "list"]);
    assert_eq!(second.err, "", "it is reported once");
    refusing_once(&stub);
    let err = user.det_typing(&["user", "login", "bob"], "x\n").fails(1);
    assert!(
        err.contains("\"bob\" could not log in") && err.contains("commands act as \"determined\""),
        "{err}"
    );
    let after = user.det(&["agent", "list"]);
    assert!(after.err.contains(&note), "{after:?}");
    after.ok();
    // Who has logged in stays so, and is named.
    stub.on(
        "POST /api/v1/auth/login",
        ok(json!({"token": "T-ADA", "user": {"username": "ada"}})),
    );
    user.det_typing(&["user", "login", "ada"], "Passw0rd\n")
        .ok();
    refusing_once(&stub);
    let err = user.det_typing(&["user", "login", "bob"], "x\n").fails(1);
    assert!(err.contains("you are still logged in as \"ada\""), "{err}");
    assert_eq!(user.det(&["agent", "list"]).err, "");
}

#[test]
fn a_question_without_an_answer_is_named_with_how_to_answer_it() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    stub.on("POST /api/v1/users", ok(json!({"user": {}})));
    let user = User::using(&stub);
    for (words, what, how) in [
        (
            &["user", "login", "bob"][..],
            "the password of user \"bob\": standard input has ended",
            "DET_PASS",
        ),
        (
            &["user", "login"],
            "the name of the user: ",
            "`det user login USERNAME`",
        ),
        (
            &["user", "create", "eve"],
            "the password of user \"eve\": ",
            "--password-file",
        ),
    ] {
        let err = user.det(words).fails(1);
        assert!(err.contains(what) && err.contains(how), "{err}");
    }
    let err = user
        .det_typing(&["user", "create", "eve"], "one\n")
        .fails(1);
    assert!(err.contains("a second time"), "{err}");
}

#[test]
fn the_password_of_a_login_may_be_in_the_environment() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    let user = User::using(&stub);
    let login = |name: Option<&str>, words: &[&str]| {
        let mut command = user.command(words);
        command.env("DET_PASS", "Passw0rd");
        if let Some(name) = name {
            command.env("DET_USER", name);
        }
        support::CommandResult::from(command.output().unwrap())
    };
    for (name, words) in [
        (None, &["user", "login", "bob"][..]),
        (Some("bob"), &["user", "login", "bob"]),
        (Some("bob"), &["user", "login"]),
    ] {
        login(name, words).ok();
        let sent = stub.last("POST /api/v1/auth/login").json();
        assert_eq!(sent["username"], "bob");
        assert_eq!(sent["password"], det_client::salted_hash("Passw0rd"));
    }
    // It is ada's password.
    login(Some("ada"), &["user", "login", "bob"]).fails(1);
}

#[test]
fn a_weak_password_is_warned_about_once() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/agents", ok(json!({"agents": []})));
    let user = User::using(&stub);
    let first = user.det(&["agent", "list", "--json"]);
    assert!(
        first
            .err
            .contains("the password of user \"determined\" is blank"),
        "{first:?}"
    );
    assert_eq!(first.ok(), "[]\n");
    let second = user.det(&["agent", "list"]);
    assert_eq!(second.err, "");
}

#[test]
fn logging_out_ends_the_session_and_removes_the_token() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    stub.on("POST /api/v1/auth/logout", ok(json!({})));
    let user = User::using(&stub);
    user.det_typing(&["user", "login", "determined"], "\n").ok();
    let run = user.det(&["u", "logout"]);
    assert!(run.err.contains("logged out of"), "{run:?}");
    run.ok();
    assert_eq!(
        stub.last("POST /api/v1/auth/logout").headers["authorization"],
        "Bearer TOKEN"
    );
    let kept = fs::read_to_string(user.tokens()).unwrap();
    assert!(
        !kept.contains("TOKEN") && !kept.contains("active_user"),
        "{kept}"
    );
    let again = user.det(&["u", "logout"]);
    assert_eq!(again.err, "no user was logged in\n");
}

#[test]
fn whoami_shows_the_user() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    let user = User::using(&stub);
    for _ in 0..2 {
        let out = user.det(&["user", "whoami"]).ok();
        assert_eq!(
            out,
            "No user has logged in: commands act as user 'determined' (blank password)\n"
        );
    }
    user.det_typing(&["user", "login", "determined"], "\n").ok();
    let out = user.det(&["user", "whoami"]).ok();
    assert_eq!(out, "You are logged in as user 'determined'\n");
}

#[test]
fn a_user_of_the_environment_without_a_password_is_one_who_has_logged_in() {
    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    let user = User::using(&stub);
    for name in ["ada", "bob"] {
        let answer = json!({"token": format!("OF-{name}"), "user": {"username": name}});
        stub.on("POST /api/v1/auth/login", ok(answer));
        user.det_typing(&["user", "login", name], "x\n").ok();
    }
    let whoami = |variables: &[(&str, &str)]| {
        let mut command = user.command(&["user", "whoami"]);
        command.envs(variables.iter().copied());
        support::CommandResult::from(command.output().unwrap())
    };
    let token = || stub.last("GET /api/v1/me").headers["authorization"].clone();
    whoami(&[("DET_USER", "ada")]).ok();
    assert_eq!(token(), "Bearer OF-ada");
    let err = whoami(&[("DET_USER", "eve")]).fails(1);
    for part in [
        "DET_USER names user \"eve\"",
        "set DET_PASS",
        "`det user login eve`",
    ] {
        assert!(err.contains(part), "{err}");
    }
    // What is set in tasks is overridden by a login.
    whoami(&[("DET_USER", "eve"), ("DET_USER_TOKEN", "T")]).ok();
    assert_eq!(token(), "Bearer OF-bob");
}

#[test]
fn changing_ones_password_logs_in_again() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/users/determined/by-username",
        ok(json!({"user": {"id": 2, "username": "determined"}})),
    );
    stub.on("PATCH /api/v1/users/2", ok(json!({"user": {}})));
    let user = User::using(&stub);
    let err = user
        .det_typing(&["user", "change-password"], "one\ntwo\n")
        .fails(1);
    assert!(err.contains("differ"), "{err}");
    user.det_typing(&["user", "change-password"], "N3w-secret\nN3w-secret\n")
        .ok();
    let hash = det_client::salted_hash("N3w-secret");
    let sent = stub.last("PATCH /api/v1/users/2").json();
    assert_eq!(sent, json!({"password": hash, "isHashed": true}));
    assert_eq!(
        stub.last("POST /api/v1/auth/login").json()["password"],
        hash
    );
}

#[test]
fn users_are_listed() {
    let stub = StubMaster::start();
    let users = json!([
        {"id": 1, "username": "admin", "admin": true, "active": true, "remote": false,
         "displayName": "", "agentUserGroup": null},
        {"id": 2, "username": "ada", "admin": false, "active": true, "remote": false, "displayName": "Ada",
         "agentUserGroup": {"agentUid": 1000, "agentGid": 1000, "agentUser": "ada", "agentGroup": "ada"}},
    ]);
    stub.on(
        "GET /api/v1/users",
        ok(json!({"users": users, "pagination": {"endIndex": 2, "total": 2}})),
    );
    let out = User::using(&stub).det(&["user", "list", "--csv"]).ok();
    assert_eq!(
        out,
        "User Id,Username,Display Name,Admin,Active,Remote,Agent Uid,Agent Gid,Agent User,Agent Group\n\
         1,admin,N/A,True,True,False,N/A,N/A,N/A,N/A\n\
         2,ada,Ada,False,True,False,1000,1000,ada,ada\n"
    );
    assert_eq!(
        stub.lines(),
        ["GET /api/v1/users?active=true&limit=200&offset=0"]
    );
}

#[test]
fn a_password_file_that_others_may_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt as _;

    let stub = StubMaster::start();
    stub.on("POST /api/v1/users", ok(json!({"user": {}})));
    let user = User::using(&stub);
    user.write("password", "Secret-1\n");
    let path = user.directory().join("password");
    for (mode, warns) in [(0o644, true), (0o620, true), (0o600, false), (0o400, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let run = user.det(&["user", "create", "ada", "--password-file", "password"]);
        let warning = format!("may read the password in \"password\" (its mode is {mode:03o})");
        assert_eq!(run.err.contains(&warning), warns, "{mode:o}: {run:?}");
        run.ok();
        let sent = stub.last("POST /api/v1/users").json();
        assert_eq!(sent["password"], det_client::salted_hash("Secret-1"));
    }
}

#[test]
fn users_are_changed_by_name() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/users/ada/by-username",
        ok(json!({"user": {"id": 5, "username": "ada"}})),
    );
    stub.on("PATCH /api/v1/users/5", ok(json!({"user": {}})));
    let user = User::using(&stub);
    let sent = |words: &[&str]| {
        let run = user.det(words);
        (
            run.err.clone(),
            run.ok(),
            stub.last("PATCH /api/v1/users/5").json(),
        )
    };
    let words = [
        "user",
        "edit",
        "ada",
        "--display-name",
        "Ada L.",
        "--username",
        "al",
        "--admin",
        "true",
        "--remote",
        "False",
        "--active",
        "true",
    ];
    let (_, out, body) = sent(&words);
    assert_eq!(
        out,
        "Changes made to the following fields: Display Name, Remote, Active, Username, Admin\n"
    );
    assert_eq!(
        body,
        json!({"displayName": "Ada L.", "username": "al", "admin": true, "remote": false, "active": true})
    );
    let (err, _, body) = sent(&["u", "deactivate", "ada"]);
    assert_eq!(body, json!({"active": false}));
    assert_eq!(err, "user \"ada\" may not log in any more\n");
    assert_eq!(sent(&["u", "activate", "ada"]).2, json!({"active": true}));
    let words = [
        "user",
        "link-with-agent-user",
        "ada",
        "--agent-uid",
        "1000",
        "--agent-user",
        "ada",
        "--agent-gid",
        "100",
        "--agent-group",
        "users",
    ];
    let (err, _, body) = sent(&words);
    assert_eq!(
        body,
        json!({"agentUserGroup": {"agentUid": 1000, "agentUser": "ada", "agentGid": 100, "agentGroup": "users"}})
    );
    assert!(
        err.contains("run as ada (1000) in group users (100)"),
        "{err}"
    );
    user.det(&words[..9]).fails(2);
    user.det(&["user", "edit", "ada"]).fails(2);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let user = User::at(&nowhere());
    // A completion script is longer than the buffer of a pipe, and the pipe is not read.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = user.command(&["completion", "bash"]);
    let output = command
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn completion_knows_the_commands() {
    let user = User::at(&nowhere());
    for shell in ["bash", "zsh", "fish"] {
        let script = user.det(&["completion", shell]).ok();
        assert!(script.contains("preview-search"), "{shell}");
    }
}

#[test]
fn version_shows_client_and_master() {
    let stub = StubMaster::bare();
    stub.on(
        "GET /info",
        ok(json!({"version": "0.38.1", "master_id": "m", "cluster_id": "c", "cluster_name": "n"})),
    );
    let out = User::using(&stub).det(&["version"]).ok();
    assert!(
        out.contains("0.38.1") && out.contains(stub.address()),
        "{out}"
    );
    assert!(out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    let alone = User::at(&nowhere()).det(&["version"]);
    assert!(alone.out.contains(env!("CARGO_PKG_VERSION")), "{alone:?}");
    alone.fails(3);
    assert_eq!(
        User::at(&nowhere()).det(&["-v"]).ok(),
        format!("det {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_password_typed_at_a_terminal_is_not_shown() {
    use std::io::{Read, Write};

    let stub = StubMaster::start();
    stub.on("GET /info", ok(json!({})));
    let user = User::using(&stub);
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut child = user
        .command(&["user", "login", "ada"])
        .stdin(terminal.slave.try_clone().unwrap())
        .stderr(terminal.slave)
        .spawn()
        .unwrap();
    let mut screen = fs::File::from(terminal.master);
    let mut shown = String::new();
    let mut buffer = [0; 256];
    let mut typed = false;
    // Reading fails once the other side is closed.
    while let Ok(read) = screen.read(&mut buffer) {
        if read == 0 {
            break;
        }
        shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if !typed && shown.contains("Password for user 'ada': ") {
            screen.write_all(b"Passw0rd\n").unwrap();
            typed = true;
        }
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    assert!(typed && !shown.contains("Passw0rd"), "{shown}");
    let sent = stub.last("POST /api/v1/auth/login").json();
    assert_eq!(sent["password"], det_client::salted_hash("Passw0rd"));
}
