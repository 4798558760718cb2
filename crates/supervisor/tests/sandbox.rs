//! The real binary runs real processes in real namespaces; only the master is a stub.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "sandbox/attacks.rs"]
mod attacks;
#[path = "sandbox/metrics.rs"]
mod metrics;
#[path = "sandbox/services.rs"]
mod services;
mod support;
#[path = "sandbox/warm.rs"]
mod warm;

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use base64::Engine as _;
use det_spool::Reader;
use det_taskspec::{ContainerExit, Entrypoint, TaskFile, TaskUser};
use nix::sys::signal::Signal;
use serde_json::json;
use support::{Master, Task, is_refused, need_sandbox, skip, wait_for};

fn exited(code: i32) -> ContainerExit {
    ContainerExit::Exited { code }
}

/// The task is lost and the report contains the reason: only the agent knows that the master wanted it to end.
fn assert_ended_from_outside(exit: &ContainerExit, how: &str) {
    match exit {
        ContainerExit::Lost { message } => assert!(message.contains(how), "{message}"),
        other => panic!("expected the end to come from outside, found {other:?}"),
    }
}

fn signaled(signal: Signal) -> ContainerExit {
    ContainerExit::Signaled {
        signal: signal as i32,
        out_of_memory: false,
    }
}

/// A context directory with these files.
fn context(files: &[(&str, &str)]) -> serde_json::Value {
    let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(gz);
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive
            .append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    let bytes = archive.into_inner().unwrap().finish().unwrap();
    json!({"b64Tgz": base64::engine::general_purpose::STANDARD.encode(bytes)})
}

const CONTEXT_PATH: &str = "/api/v1/tasks/task/context_directory";
const PREEMPTION_PATH: &str = "/api/v1/allocations/task.1/signals/pending_preemption";
const RENDEZVOUS_PATH: &str = "/api/v1/allocations/task.1/resources/container/rendezvous";

#[test]
fn every_line_arrives_once_in_order_and_with_its_marks() {
    need_sandbox!();
    let master = Master::start();
    let ended = Task::shell(
        &master,
        "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; printf 'ERROR: last'; exit 7",
    )
    .run();
    assert_eq!(ended.exit(), exited(7));
    let lines = master.lines();
    let expected: Vec<String> = (0..3000)
        .map(|i| format!("line {i}"))
        .chain(["last".into()])
        .collect();
    assert!(
        lines == expected,
        "{} lines, the last {:?}",
        lines.len(),
        lines.last()
    );
    let mut record = master.log().pop().unwrap();
    assert!(record["timestamp"].as_str().unwrap().ends_with('Z'));
    record["timestamp"] = "then".into();
    assert_eq!(
        record,
        json!({"taskId": "task", "allocationId": "task.1", "agentId": "agent-1", "containerId": "container",
               "timestamp": "then", "level": "LOG_LEVEL_ERROR", "log": "last\n", "source": "task", "stdtype": "stdout"})
    );
    let request = master.request("/api/v1/task/logs").unwrap();
    assert_eq!(
        (request.method.as_str(), request.token.as_deref()),
        ("POST", Some("Bearer secret"))
    );
    assert_eq!(request.body["spool"]["id"], "container");
}

#[test]
fn in_a_pod_the_end_is_also_the_termination_message() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(&master, "echo the reason; exit 3");
    let variable = ("DET_TERMINATION_MESSAGE", "/run/determined/message");
    task.spec.env.push((variable.0.into(), variable.1.into()));
    let ended = task.run();
    assert_eq!(ended.exit(), exited(3));
    let message = std::fs::read_to_string(ended.dir.path().join("run/message")).unwrap();
    let (exit, cause) = det_taskspec::pods::read_termination_message(&message).unwrap();
    assert_eq!(exit, exited(3));
    assert_eq!(cause.unwrap().last_lines, ["the reason"]);
}

#[test]
fn lost_answers_repeat_lines_for_the_master_to_drop() {
    need_sandbox!();
    let master = Master::start();
    master.lose_answers(2);
    let ended = Task::shell(&master, "echo one; echo two >&2; exit 0").run();
    assert_eq!(ended.exit(), exited(0));
    let mut lines = master.lines();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    assert!(master.repeated() > 0);
}

#[test]
fn a_task_runs_on_while_the_master_is_away_and_its_lines_arrive_when_it_is_back() {
    need_sandbox!();
    let master = Master::unreachable();
    let task = Task::shell(
        &master,
        "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; : > done; while [ ! -e go ]; do sleep 0.01; done; echo end",
    )
    .start();
    wait_for("the task to have written", || {
        task.file("workdir/done").exists().then_some(())
    });
    assert!(master.requests().is_empty());
    master.become_reachable();
    master.wait_for_line("line 499");
    fs::write(task.file("workdir/go"), "").unwrap();
    assert_eq!(task.wait().exit(), exited(0));
    assert_eq!(master.lines().len(), 501);
}

#[test]
fn what_no_master_took_is_in_the_spool_for_the_agent() {
    need_sandbox!();
    let task =
        Task::shell(&Master::unreachable(), "echo kept; echo too").env("DET_LOG_WAIT_TIME", "0");
    let ended = task.run();
    assert_eq!(ended.exit(), exited(0));
    let mut reader = Reader::open(&ended.dir.path().join("run/spool")).unwrap();
    let batch = reader.next_batch(1000, 1 << 20).unwrap().unwrap();
    let lines: Vec<_> = batch
        .records
        .iter()
        .map(|record| record.log.as_str())
        .collect();
    assert_eq!((batch.first, lines), (1, vec!["kept", "too"]));
}

#[test]
fn a_refused_batch_is_dropped_and_noted() {
    need_sandbox!();
    let master = Master::start();
    master.answer(
        "/api/v1/task/logs",
        400,
        json!({"error": {"error": "no such task"}}),
    );
    let ended = Task::shell(&master, "echo x").run();
    assert_eq!(ended.exit(), exited(0));
    assert!(ended.notes().contains("no such task"), "{}", ended.notes());
}

#[test]
fn an_entrypoint_that_a_signal_ended_is_reported_so() {
    need_sandbox!();
    let ended = Task::shell(&Master::start(), "kill -SEGV $$").run();
    assert_eq!(ended.exit(), signaled(Signal::SIGSEGV));
}

#[test]
fn sigterm_lets_the_task_end_by_itself() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(
        &master,
        "trap 'echo saving; exit 3' TERM; echo ready; while :; do sleep 0.01; done",
    )
    .start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    assert_eq!(task.wait().exit(), exited(3));
    // Its shell also reports, on standard error, that its child was killed.
    assert!(
        master.lines().contains(&"saving".to_owned()),
        "{:?}",
        master.lines()
    );
}

/// A task that saves when its file `preempted` exists, and that SIGTERM ends with code 3.
fn saving(master: &Master) -> Task {
    let code = "trap 'exit 3' TERM; echo ready; \
                while :; do test -e preempted && { echo saved; exit 0; }; sleep 0.01; done";
    let mut task = Task::shell(master, code);
    task.script.save_seconds = Some(60);
    task
}

#[test]
fn a_task_that_can_be_preempted_saves_when_its_container_is_ended_from_outside() {
    need_sandbox!();
    let master = Master::start();
    master.answer(PREEMPTION_PATH, 200, json!({}));
    let task = saving(&master).start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    master.wait_for_line("was asked to save and exit within");
    fs::write(task.file("workdir/preempted"), "").unwrap();
    assert_eq!(task.wait().exit(), exited(0));
    assert!(master.lines().contains(&"saved".to_owned()));
}

#[test]
fn a_task_that_the_master_ends_itself_is_not_asked_to_save() {
    need_sandbox!();
    let master = Master::start();
    let refused = json!({"error": {"error": "is being ended by the master"}});
    master.answer(PREEMPTION_PATH, 409, refused);
    let task = saving(&master).start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    assert_eq!(task.wait().exit(), exited(3));
}

#[test]
fn a_task_that_does_not_save_in_time_is_ended() {
    need_sandbox!();
    let master = Master::start();
    master.answer(PREEMPTION_PATH, 200, json!({}));
    let mut task = saving(&master);
    task.script.save_seconds = Some(1);
    let task = task.start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    assert_eq!(task.wait().exit(), exited(3));
    let lines = master.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("has not exited by itself")),
        "{lines:?}"
    );
}

#[test]
fn a_task_that_does_not_listen_is_killed_after_the_grace() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(
        &master,
        "trap '' TERM; echo ready; while :; do sleep 0.01; done",
    );
    task.script.grace_seconds = 1;
    let task = task.start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    assert_ended_from_outside(&task.wait().exit(), "signal 9");
}

#[test]
fn the_end_of_the_supervisor_inside_is_not_the_codes() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(&master, "echo ready; sleep 1000").start();
    master.wait_for_line("ready");
    nix::sys::signal::kill(task.inside(), Signal::SIGKILL).unwrap();
    let how = "the supervisor inside the sandbox was ended by signal 9";
    assert_ended_from_outside(&task.wait().exit(), how);
}

#[test]
fn sigquit_kills_at_once_and_ships_what_was_written() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(
        &master,
        "trap '' TERM QUIT; echo ready; printf partial; sleep 1000",
    )
    .start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGQUIT);
    assert_ended_from_outside(&task.wait().exit(), "signal 9");
    assert_eq!(master.lines()[0], "ready");
}

#[test]
fn other_signals_go_to_the_task() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(
        &master,
        "trap 'echo usr1' USR1; trap 'echo hup; exit 0' HUP; echo ready; while :; do sleep 0.01; done",
    )
    .start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGUSR1);
    master.wait_for_line("usr1");
    task.signal(Signal::SIGHUP);
    master.wait_for_line("hup");
    assert_eq!(task.wait().exit(), exited(0));
}

#[test]
fn a_signal_before_the_entrypoint_ends_the_task() {
    need_sandbox!();
    let mut task =
        Task::shell(&Master::unreachable(), "echo not reached").env("DET_LOG_WAIT_TIME", "0");
    task.script.context = true;
    let task = task.start();
    // It waits for the context, which the master does not send.
    wait_for("the run directory", || {
        task.file("workdir").exists().then_some(())
    });
    task.signal(Signal::SIGTERM);
    assert_ended_from_outside(&task.wait().exit(), "before its code began");
}

#[test]
fn no_signal_is_blocked_in_the_code() {
    need_sandbox!();
    let master = Master::start();
    // Without a shell in between, which might unblock them by itself.
    let mut task = Task::shell(&master, "");
    let argv = ["grep", "SigBlk", "/proc/self/status"].map(str::to_owned);
    task.script.entrypoint = Entrypoint::Argv(argv.to_vec());
    assert_eq!(task.run().exit(), exited(0));
    assert_eq!(master.lines(), ["SigBlk:\t0000000000000000"]);
}

#[test]
fn signals_that_the_agent_ignores_are_not_ignored_in_the_code() {
    need_sandbox!();
    // As after `nohup det agent`: a shell cannot even trap a signal that is ignored at its start. SAFETY: no handler is
    // set, and no other test waits for this signal in this process.
    #[expect(unsafe_code, reason = "there is no other way to ignore a signal")]
    unsafe {
        nix::sys::signal::signal(Signal::SIGHUP, nix::sys::signal::SigHandler::SigIgn).unwrap();
    }
    let master = Master::start();
    let task = Task::shell(
        &master,
        "trap 'echo hup; exit 3' HUP; echo ready; while :; do sleep 0.01; done",
    )
    .start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGHUP);
    master.wait_for_line("hup");
    assert_eq!(task.wait().exit(), exited(3));
}

#[test]
fn code_that_ends_with_its_engine_is_not_to_blame() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(&master, "echo ready; exec sleep 1000").start();
    master.wait_for_line("ready");
    task.signal(Signal::SIGTERM);
    assert_ended_from_outside(&task.wait().exit(), "signal 15");
}

#[test]
fn code_that_a_signal_of_its_own_ends_is() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(&master, "kill -TERM $$").start();
    assert_eq!(task.wait().exit(), signaled(Signal::SIGTERM));
}

#[test]
fn hooks_see_the_context_and_set_variables_and_come_before_the_rendezvous() {
    need_sandbox!();
    let master = Master::start();
    let hook = "export FROM_USER=$FROM_POOL-user\ncat train.txt\n";
    master.answer(
        CONTEXT_PATH,
        200,
        context(&[("startup-hook.sh", hook), ("train.txt", "the code\n")]),
    );
    let met = json!({"rendezvousInfo": {"addresses": ["10.0.0.1"], "rank": 0, "slots": [2]}});
    master.answer(RENDEZVOUS_PATH, 200, met);
    let mut task = Task::shell(
        &master,
        "echo $FROM_USER; cat /run/determined/train/model/train.txt; cat /run/determined/info/rendezvous.json",
    );
    task.script.context = true;
    task.script.rendezvous = true;
    task.script.pool_startup_hook = Some("export FROM_POOL=pool".into());
    let ended = task.run();
    assert_eq!(ended.exit(), exited(0), "{:?}", master.lines());
    assert_eq!(
        master.lines(),
        [
            "the code",
            "pool-user",
            "the code",
            r#"{"container_addrs":["10.0.0.1"],"container_rank":0,"container_slot_counts":[2]}"#
        ]
    );
    let stages = ended.started().stages;
    let times = [
        stages.supervisor_start,
        stages.sandbox_ready,
        stages.context_unpacked,
        stages.hooks_done,
        stages.rendezvous_done,
        stages.entrypoint_exec,
    ];
    assert!(
        times.iter().all(Option::is_some) && times.is_sorted(),
        "{stages:?}"
    );
}

#[test]
fn a_rendezvous_waits_for_a_master_that_is_being_restarted() {
    need_sandbox!();
    let master = Master::start();
    master.answer(RENDEZVOUS_PATH, 503, json!({"message": "starting"}));
    let mut task = Task::shell(&master, "echo met");
    task.script.rendezvous = true;
    let task = task.start();
    wait_for("a second attempt", || {
        let tried = master
            .requests()
            .iter()
            .filter(|r| r.path == RENDEZVOUS_PATH)
            .count();
        (tried > 1).then_some(())
    });
    let met = json!({"rendezvousInfo": {"addresses": ["a"], "rank": 0, "slots": [0]}});
    master.answer(RENDEZVOUS_PATH, 200, met);
    assert_eq!(task.wait().exit(), exited(0));
    assert_eq!(master.lines(), ["met"]);
}

#[test]
fn failures_before_the_entrypoint_have_the_reason_in_the_report_and_leave_the_log_to_the_master() {
    type Change = fn(&mut Task, &Master);
    need_sandbox!();
    let cases: [(&str, i32, Change); 6] = [
        (
            "the pool's startup hook (\"startup_hook\" of task_container_defaults) failed with exit status 4",
            4,
            |task, _| {
                task.script.pool_startup_hook = Some("sh -c 'exit 4'; echo not reached".into());
            },
        ),
        (
            "could not start the entrypoint \"no-such-program\": there is no such program on PATH",
            127,
            |task, _| {
                task.script.entrypoint = Entrypoint::Argv(vec!["no-such-program".into()]);
            },
        ),
        (
            "could not start the entrypoint \"/etc/passwd\"",
            126,
            |task, _| {
                task.script.entrypoint = Entrypoint::Argv(vec!["/etc/passwd".into()]);
            },
        ),
        (
            "checkpoint storage check failed: could not create",
            1,
            |task, _| {
                let storage = json!({"type": "directory", "container_path": "/proc/none"});
                task.script.storage_probe = Some(storage);
            },
        ),
        ("no such task here", 1, |task, master| {
            task.script.context = true;
            master.answer(
                CONTEXT_PATH,
                404,
                json!({"error": {"error": "no such task here"}}),
            );
        }),
        ("DET_CLUSTER_ID", 1, |task, _| {
            task.script.env.retain(|(name, _)| name != "DET_CLUSTER_ID");
        }),
    ];
    for (text, expected, change) in cases {
        let master = Master::start();
        let mut task = Task::shell(&master, "echo not reached");
        change(&mut task, &master);
        let ended = task.run();
        match ended.exit() {
            ContainerExit::SetupFailed { code, message } => {
                assert_eq!(code, expected, "{message}");
                assert!(message.contains(text), "{message}");
                // Where a program was looked for is in the log: the reason is for lists.
                if text.contains("the entrypoint") {
                    assert!(!message.contains("/usr"), "{message}");
                    let looked_in = master.wait_for_line("PATH is ");
                    assert_eq!(looked_in["level"], "LOG_LEVEL_INFO");
                }
            }
            other => panic!("{text}: {other:?}"),
        }
        assert!(ended.notes().contains(text), "{}", ended.notes());
        let lines = master.lines();
        let logged = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(!logged("not reached") && !logged(text), "{lines:?}");
    }
}

#[test]
fn a_hook_that_ends_the_task_with_success_is_named_in_its_log() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(&master, "echo not reached");
    task.script.pool_startup_hook = Some("echo hooked; exit 0".into());
    assert_eq!(task.run().exit(), exited(0));
    let record = master.wait_for_line(
        "the pool's startup hook (\"startup_hook\" of task_container_defaults) ended the task before its entrypoint",
    );
    assert_eq!(record["level"], "LOG_LEVEL_WARNING");
    assert!(master.lines().contains(&"hooked".to_owned()));
}

#[test]
fn a_mount_of_a_path_that_is_not_there_names_it() {
    need_sandbox!();
    let task =
        Task::shell(&Master::start(), "true").mount("/no/such/path".as_ref(), "/data", false);
    match task.run().exit() {
        ContainerExit::SetupFailed { message, .. } => {
            assert!(message.contains("/no/such/path"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_of_another_user_owns_what_it_needs_and_nothing_else() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(
        &master,
        "id -u; id -g; touch workdir-file ../info/x ../train/model/x /dev/shm/x; echo ok > /dev/stdout; \
         echo $HOME; cat /etc/shadow",
    )
    .env("HOME", "/");
    task.spec.user = TaskUser {
        user: "nobody-here".into(),
        uid: 54321,
        group: "nobody-here".into(),
        gid: 54322,
    };
    task.script.files.push(TaskFile {
        path: "/run/determined/ssh/id_rsa".into(),
        mode: 0o600,
        content: "key".into(),
    });
    let ended = task.run();
    assert_eq!(ended.exit(), exited(1), "{}", ended.notes());
    let lines = master.lines();
    assert_eq!(
        lines[..4],
        ["54321", "54322", "ok", "/run/determined/workdir"],
        "{lines:?}"
    );
    assert!(lines[4].contains("ermission denied"), "{lines:?}");
    let key = fs::metadata(ended.dir.path().join("run/ssh/id_rsa")).unwrap();
    assert_eq!((key.uid(), key.mode() & 0o777), (54321, 0o600));
}

#[test]
fn the_sandbox_shows_the_host_with_the_tasks_own_places() {
    need_sandbox!();
    let master = Master::start();
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("there"), "shared\n").unwrap();
    let mut task = Task::shell(
        &master,
        "cat /determined_shared_fs/there; echo new > /determined_shared_fs/made; \
         (echo x > /data/ro/x) 2>/dev/null || echo read-only; cat data/there; \
         ls /tmp; df -k /dev/shm | tail -1 | awk '{print $2}'; ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 8)}'; \
         echo secret=$AGENT_SECRET; echo $$; echo $LANG; ls -d /.host 2>/dev/null; echo $PWD; id -u",
    )
    .mount(host.path(), "/determined_shared_fs", false)
    .mount(host.path(), "/data/ro", true)
    .mount(host.path(), "data", false);
    task.spec.shm_size_bytes = 3 << 20;
    task.spec.env = vec![("LANG".into(), "C.UTF-8".into())];
    // If the agent's directory is below /tmp, it is hidden from the task but visible for the supervisor.
    let ended = task.run();
    assert_eq!(ended.exit(), exited(0), "{:?}", master.lines());
    let lines = master.lines();
    let pid = &lines[6];
    assert!(pid.parse::<u32>().unwrap() < 20, "{lines:?}");
    assert_eq!(
        lines,
        [
            "shared",
            "read-only",
            "shared",
            "3072",
            "1",
            "secret=",
            pid,
            "C.UTF-8",
            "/run/determined/workdir",
            "0"
        ]
    );
    assert_eq!(
        fs::read_to_string(host.path().join("made")).unwrap(),
        "new\n"
    );
    assert!(!host.path().join("x").exists());
    for path in ["/determined_shared_fs", "/run/determined"] {
        assert!(
            !std::path::Path::new(path).exists(),
            "{path} was left on the host"
        );
    }
    // The mount point in the host's root had to be a real one, because `/` of the sandbox is new.
    assert!(!std::path::Path::new("/data/ro").exists());
}

#[test]
fn workers_write_past_their_launcher() {
    need_sandbox!();
    let master = Master::start();
    let ended = Task::shell(
        &master,
        "exec >/dev/null 2>&1; echo '[rank=3] INFO: hello' > /run/determined/train/logs/stdout.log; \
         echo '[rank=4] oops' > /run/determined/train/logs/stderr.log",
    )
    .run();
    assert_eq!(ended.exit(), exited(0));
    let log = master.log();
    let seen: Vec<_> = log
        .iter()
        .map(|r| (&r["rankId"], &r["level"], &r["log"], &r["stdtype"]))
        .collect();
    assert!(
        seen.contains(&(
            &json!(3),
            &json!("LOG_LEVEL_INFO"),
            &json!("hello\n"),
            &json!("stdout")
        )),
        "{seen:?}"
    );
    assert!(
        seen.contains(&(&json!(4), &json!(null), &json!("oops\n"), &json!("stderr"))),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 2);
}

#[test]
fn what_the_entrypoint_leaves_behind_ends_with_it() {
    need_sandbox!();
    let master = Master::start();
    let ended = Task::shell(&master, "setsid sleep 86402.75 & echo over").run();
    assert_eq!(ended.exit(), exited(0));
    assert_eq!(master.lines(), ["over"]);
    assert!(!runs("86402.75"));
}

#[test]
fn killing_the_supervisor_outside_ends_everything_inside() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(
        &master,
        "setsid sleep 86401.25 & echo ready; sleep 86401.25",
    )
    .start();
    master.wait_for_line("ready");
    wait_for("the processes", || runs("86401.25").then_some(()));
    task.signal(Signal::SIGKILL);
    wait_for("the end of the processes", || {
        (!runs("86401.25")).then_some(())
    });
    let ended = task.wait();
    assert!(
        !ended.dir.path().join("run/exit.json").exists(),
        "no supervisor was left to report"
    );
}

/// Whether some process of this machine has `argument` as an argument.
fn runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|part| part == argument.as_bytes())
    })
}

#[test]
fn an_agent_that_is_not_root_builds_sandboxes_for_itself() {
    need_sandbox!();
    let master = Master::start();
    let task = Task::shell(
        &master,
        "id -u; cat /run/determined/info/resources.json; touch x",
    )
    .agent_uid(65534);
    let ended = task.run();
    let exit = ended.exit();
    if is_refused(&exit) {
        skip(&format!("no user namespaces here: {exit:?}"));
        return;
    }
    assert_eq!(exit, exited(0), "{:?} {}", master.lines(), ended.notes());
    assert_eq!(master.lines(), ["0", r#"{"gpu_uuids":[]}"#]);
    let made = fs::metadata(ended.dir.path().join("run/workdir/x")).unwrap();
    assert_eq!(made.uid(), 65534);
}

#[test]
fn an_agent_that_is_not_root_reports_that_it_cannot_start_another_users_task() {
    need_sandbox!();
    let mut task = Task::shell(&Master::start(), "true").agent_uid(65534);
    task.spec.user.uid = 54321;
    match task.run().exit() {
        ContainerExit::StartFailed { message } => {
            assert!(
                message.contains("54321") && message.contains("65534"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn accelerators_of_a_trial_are_reported() {
    need_sandbox!();
    let master = Master::start();
    let mut task = Task::shell(
        &master,
        "cat /run/determined/info/resources.json; echo; \
        while [ ! -e go ]; do sleep 0.01; done",
    )
    .env("DET_SLOT_IDS", "[0]")
    .env("CUDA_VISIBLE_DEVICES", "GPU-a")
    .env("DET_TRIAL_ID", "1")
    .env("DET_EXPERIMENT_ID", "1")
    .env("DET_TRIAL_SEED", "1")
    .env("DET_HPARAMS", "{}")
    .env("DET_EXPERIMENT_CONFIG", "{}")
    .env("DET_STEPS_COMPLETED", "0")
    .env("DET_TRIAL_RUN_ID", "1");
    task.script.task_type = det_taskspec::TaskKind::Trial;
    // Trials link /tmp/tensorboard, which must not be created on this machine.
    let task = task.start();
    let path = "/api/v1/allocations/task.1/acceleratorData";
    let report = wait_for("the report", || master.request(path));
    assert_eq!(
        report.body,
        json!({"allocationId": "task.1", "acceleratorData": {
            "containerId": "container", "allocationId": "task.1", "nodeName": "agent-1", "taskId": "task",
            "acceleratorType": "cuda", "acceleratorUuids": ["GPU-a"]}})
    );
    fs::write(task.file("workdir/go"), "").unwrap();
    assert_eq!(task.wait().exit(), exited(0));
    assert_eq!(master.lines()[0], r#"{"gpu_uuids":["GPU-a"]}"#);
}
