//! Services: their readiness, and the SSH server of a shell.

use std::path::Path;
use std::process::{Command, Stdio};

use det_taskspec::{ContainerExit, Entrypoint, TaskFile, TaskUser};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::exited;
use crate::support::{self, Master, Task, need_sandbox, skip, wait_for};

const READY_PATH: &str = "/api/v1/allocations/task.1/ready";

fn reports(master: &Master) -> usize {
    let requests = master.requests();
    requests
        .iter()
        .filter(|request| request.path == READY_PATH)
        .count()
}

#[test]
fn a_service_is_reported_as_ready_once_at_the_line_that_shows_it() {
    need_sandbox!();
    let master = Master::start();
    // A master that is being restarted.
    master.answer(READY_PATH, 503, json!({}));
    let text = "mkfifo go-1 go-2 go-3; echo listening not yet; read -r go < go-1; echo it is up and listening; \
                read -r go < go-2; echo up and listening again; read -r go < go-3; echo end";
    let mut task = Task::shell(&master, text);
    task.script.readiness = vec!["nothing like this".into(), "up and listening".into()];
    let task = task.start();
    master.wait_for_line("listening not yet");
    assert_eq!(reports(&master), 0);
    task.let_go("go-1");
    wait_for("a report and its repetition", || {
        (reports(&master) > 1).then_some(())
    });
    master.answer(READY_PATH, 200, json!({}));
    task.let_go("go-2");
    master.wait_for_line("listening again");
    task.let_go("go-3");
    assert_eq!(task.wait().exit(), exited(0));
    let request = master.request(READY_PATH).unwrap();
    assert_eq!(
        (request.method.as_str(), request.token.as_deref()),
        ("POST", Some("Bearer secret"))
    );
}

#[test]
fn a_line_of_a_hook_does_not_make_a_service_ready() {
    need_sandbox!();
    let master = Master::start();
    let text = "echo; echo the service is up; read -r go < go-1; echo it is up and listening; read -r go < go-2; echo end";
    let mut task = Task::shell(&master, text);
    task.script.readiness = vec!["up and listening".into()];
    // Much of it, and the last without a line end.
    task.script.pool_startup_hook = Some(
        "mkfifo go-1 go-2\nfor n in 1 2 3 4 5 6 7 8 9; do echo \"hook $n is up and listening\"; done\n\
         printf 'up and listening'\n"
            .into(),
    );
    let task = task.start();
    master.wait_for_line("the service is up");
    assert_eq!(reports(&master), 0);
    task.let_go("go-1");
    wait_for("a report", || (reports(&master) > 0).then_some(()));
    task.let_go("go-2");
    assert_eq!(task.wait().exit(), exited(0));
    assert_eq!(reports(&master), 1);
}

#[test]
fn output_of_other_tasks_reports_nothing() {
    need_sandbox!();
    let master = Master::start();
    let ended = Task::shell(&master, "echo Server listening on 1").run();
    assert_eq!(ended.exit(), exited(0));
    assert_eq!(reports(&master), 0);
}

#[test]
fn a_service_that_cannot_start_ends_with_the_reason() {
    need_sandbox!();
    let master = Master::start();
    let service = |entrypoint: Entrypoint| {
        let mut task = Task::shell(&master, "");
        task.script.entrypoint = entrypoint;
        task.script.files = vec![TaskFile {
            path: "/run/determined/service.sh".into(),
            mode: 0o755,
            content: "echo 'there is no Python' >/run/determined/service-failure\nexit \"$2\"\n"
                .into(),
        }];
        task.run().exit()
    };
    let script = |code: &str| {
        service(Entrypoint::Service {
            script: "/run/determined/service.sh".into(),
            args: vec![code.into()],
        })
    };
    let expected = ContainerExit::SetupFailed {
        code: 127,
        message: "there is no Python".into(),
    };
    assert_eq!(script("127"), expected);
    assert_eq!(script("0"), exited(0));
    // What is no service has no such file.
    let text = "echo no >/run/determined/service-failure; exit 3";
    assert_eq!(service(Entrypoint::Shell(text.into())), exited(3));
}

/// A task that is a shell for the user with this id, and the key that opens it.
fn shell(master: &Master, uid: u32, port: u16) -> Option<(Task, String)> {
    if !Path::new("/usr/sbin/sshd").exists() {
        skip("there is no SSH server: openssh-server is not installed");
        return None;
    }
    if !nix::unistd::geteuid().is_root() {
        skip("only root starts tasks as other users");
        return None;
    }
    let mut task = Task::shell(master, "").env("SEEN", "in \"sessions\"");
    let key = task.dir.path().join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status();
    assert!(made.unwrap().success());
    let read = |name: &str| std::fs::read_to_string(task.dir.path().join(name)).unwrap();
    let config = "HostKey /run/determined/ssh/id_ed25519\n\
                  AuthorizedKeysFile /run/determined/ssh/authorized_keys\nPermitUserEnvironment yes\nStrictModes no\n\
                  UsePAM no\nPidFile none\n";
    let accounts =
        format!("ada:x:{uid}:{uid}::/run/determined/workdir:/bin/sh\nroot:x:0:0::/root:/bin/sh\n");
    let files = [
        ("/run/determined/ssh/id_ed25519", 0o600, read("key")),
        (
            "/run/determined/ssh/authorized_keys_unmodified",
            0o644,
            read("key.pub"),
        ),
        ("/run/determined/ssh/sshd_config", 0o600, config.to_owned()),
        ("/etc/passwd", 0o644, accounts),
        ("/etc/shadow", 0o644, "ada:*:1:0:99999:7:::\n".to_owned()),
    ];
    task.script.files = files
        .map(|(path, mode, content)| TaskFile {
            path: path.into(),
            mode,
            content,
        })
        .into();
    task.spec.user = TaskUser {
        user: "ada".into(),
        uid,
        group: "ada".into(),
        gid: uid,
    };
    task.script.entrypoint = Entrypoint::SshServer { port };
    task.script.readiness = vec!["Server listening on".into()];
    let key = key.to_str().unwrap().to_owned();
    Some((task, key))
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Enters a shell, and checks what its sessions have.
fn assert_sessions(task: Task, key: &str, master: &Master, port: u16) {
    let mut task = task;
    task.script.pool_startup_hook = Some("export HOOKED='by a hook'".into());
    let task = task.start();
    wait_for("the shell to be ready", || {
        (reports(master) > 0).then_some(())
    });
    let program =
        "echo \"$SEEN|$HOOKED|$DET_TASK_ID|$(id -un)|$PWD\"; test -t 0 && tty; touch made; exit 7";
    let port = port.to_string();
    let output = Command::new("ssh")
        .args([
            "-tt",
            "-i",
            key,
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "IdentitiesOnly=yes",
        ])
        .args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-p",
            &port,
            "ada@127.0.0.1",
            program,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let mut lines = text.lines();
    let expected = "in \"sessions\"|by a hook|task|ada|/run/determined/workdir";
    assert_eq!(
        lines.next(),
        Some(expected),
        "{output:?} {:?}",
        master.lines()
    );
    assert!(lines.next().unwrap().starts_with("/dev/pts/"), "{text}");
    assert_eq!(output.status.code(), Some(7));
    assert!(task.file("workdir/made").exists());
    task.signal(Signal::SIGTERM);
    let exit = task.wait().exit();
    // It handles the signal and ends by itself.
    assert!(
        matches!(
            exit,
            ContainerExit::Exited { .. } | ContainerExit::Lost { .. }
        ),
        "{exit:?}"
    );
}

#[test]
fn sessions_of_a_shell_have_its_terminal_its_user_and_what_hooks_have_exported() {
    need_sandbox!();
    let (master, port) = (Master::start(), free_port());
    if let Some((task, key)) = shell(&master, 54321, port) {
        assert_sessions(task, &key, &master, port);
    }
}

#[test]
fn a_shell_that_would_be_root_sees_itself_as_another_user() {
    need_sandbox!();
    let (master, port) = (Master::start(), free_port());
    let Some((mut task, key)) = shell(&master, 1234, port) else {
        return;
    };
    task.spec.user.uid = 0;
    task.spec.user.gid = 0;
    task.spec.shown_ids = Some((1234, 1234));
    task.script.files.push(TaskFile {
        path: "/etc/group".into(),
        mode: 0o644,
        content: "ada:x:1234:\n".into(),
    });
    assert_sessions(task, &key, &master, port);
}

#[test]
fn a_shell_of_root_without_capabilities_names_what_to_do() {
    need_sandbox!();
    let master = Master::start();
    let Some((task, _)) = shell(&master, 0, free_port()) else {
        return;
    };
    let exit = task.run().exit();
    let ContainerExit::SetupFailed { code: 1, message } = &exit else {
        panic!("{exit:?}");
    };
    assert!(message.starts_with("this shell cannot start"), "{message}");
    let line = master.wait_for_line("this shell cannot start");
    assert_eq!(line["level"], "LOG_LEVEL_ERROR");
    assert_eq!(reports(&master), 0);
}
