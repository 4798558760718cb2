//! The agent against a fake master, with tasks as processes and a stand-in for the supervisor.

use crate::common::{
    Agent, FakeMaster, options, options_for, processes_of, spec, start, stub_supervisor, until,
    welcome,
};
use axum::http::StatusCode;
use det_agent::{AgentError, AgentOptions};
use det_agent_proto::{AfterRefusal, ContainerState, PROTOCOL_VERSION, ToAgent};
use det_spool::{LogStream, Record, Writer};
use det_taskspec::{ContainerExit, SPOOL_DIR};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A fake master with one agent.
struct Setup {
    root: tempfile::TempDir,
    master: FakeMaster,
    agent: Agent,
}

impl Setup {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let master = FakeMaster::start().await;
        let agent = Agent::start(options(&master, root.path(), &stub_supervisor(root.path())));
        master.connected().await;
        Self {
            root,
            master,
            agent,
        }
    }

    fn options(&self) -> det_agent::AgentOptions {
        options(
            &self.master,
            self.root.path(),
            &self.root.path().join("stub-supervisor"),
        )
    }

    fn container(&self, id: &str) -> std::path::PathBuf {
        self.root.path().join("data/containers").join(id)
    }

    /// The agent dies; `meanwhile` happens; another one takes its place.
    async fn agent_dies(self, meanwhile: impl AsyncFnOnce(&BetweenAgents)) -> Self {
        let Self {
            root,
            master,
            agent,
        } = self;
        agent.kill().await;
        master
            .wait("the agent to be gone", |received| {
                (!received.connected).then_some(())
            })
            .await;
        let between = BetweenAgents { root, master };
        meanwhile(&between).await;
        let BetweenAgents { root, master } = between;
        let agent = Agent::start(options(
            &master,
            root.path(),
            &root.path().join("stub-supervisor"),
        ));
        master.connected().await;
        Self {
            root,
            master,
            agent,
        }
    }

    /// Ends the agent; nothing of its tasks may be left.
    async fn end(self, ids: &[&str]) {
        for id in ids {
            self.master.kill(id, false);
            self.master.exit(id).await;
            self.master.forget(id, &self.root.path().join("data")).await;
            assert_eq!(processes_of(id), [] as [&str; 0], "processes of {id}");
        }
        self.agent.shut_down().await.unwrap();
    }
}

/// The state between two agents.
struct BetweenAgents {
    root: tempfile::TempDir,
    master: FakeMaster,
}

impl BetweenAgents {
    fn container(&self, id: &str) -> std::path::PathBuf {
        self.root.path().join("data/containers").join(id)
    }
}

/// Ids differ between tests: they run at the same time on one process table.
fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[tokio::test]
async fn a_task_is_started_reported_and_forgotten() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "exit 0")));
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 0 }
    );
    let received = world.master.received();
    let states = &received.states[&id.as_str().into()];
    assert_eq!(
        states[..2],
        [ContainerState::Assigned, ContainerState::Starting]
    );
    let ContainerState::Running {
        host_address,
        ports,
        ..
    } = &states[2]
    else {
        panic!("{states:?}");
    };
    assert_eq!(
        (host_address.as_str(), ports.as_slice()),
        ("127.0.0.1", &[(1734, 1734)][..])
    );
    assert_eq!(states.len(), 4, "{states:?}");
    // It joins with the token of the cluster, and is itself by its own.
    assert_eq!(received.join_token.as_deref(), Some("agent-token"));
    let own = std::fs::read_to_string(world.options().data_dir.join(det_agent::TOKEN_FILE));
    assert_eq!(
        received.authorization,
        Some(format!("Bearer {}", own.unwrap()))
    );
    assert_eq!(received.hellos[0].runtime, "process");
    world.end(&[&id]).await;
}

#[tokio::test]
async fn the_exit_code_of_a_failed_task_is_reported() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "exit 7")));
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 7 }
    );
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_task_that_is_asked_for_twice_runs_once() {
    let world = Setup::new().await;
    let id = fresh();
    let spec = spec(&id, "echo x >> started; sleep 600");
    world.master.log_line(start(spec.clone()));
    let first = world.master.running(&id).await;
    world.master.log_line(start(spec));
    world
        .master
        .wait("the state again", |received| {
            let states = &received.states[&id.as_str().into()];
            (states.len() >= 4).then_some(())
        })
        .await;
    assert_eq!(world.master.running(&id).await, first);
    let started = world.container(&id).join("run/started");
    let written = || std::fs::read_to_string(&started).unwrap_or_default();
    until("the task to write", || !written().is_empty()).await;
    assert_eq!(written(), "x\n");
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_task_is_killed_at_once_and_again() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    world.master.running(&id).await;
    world.master.kill(&id, false);
    world.master.kill(&id, false);
    assert_eq!(world.master.exit(&id).await, ContainerExit::Killed);
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_task_that_is_asked_to_end_may_end_well() {
    let world = Setup::new().await;
    let (well, badly) = (fresh(), fresh());
    world.master.log_line(start(spec(
        &well,
        "trap 'exit 0' TERM; echo > ready; while :; do sleep 0.05; done",
    )));
    world.master.log_line(start(spec(&badly, "sleep 600")));
    world.master.running(&badly).await;
    let ready = world.container(&well).join("run/ready");
    until("the task to be ready", || ready.exists()).await;
    let child = world.container(&badly).join("run/child");
    until("the other task to be ready", || child.exists()).await;
    world.master.kill(&well, true);
    world.master.kill(&badly, true);
    assert_eq!(
        world.master.exit(&well).await,
        ContainerExit::Exited { code: 0 }
    );
    assert_eq!(world.master.exit(&badly).await, ContainerExit::Killed);
    world.end(&[&well, &badly]).await;
}

#[tokio::test]
async fn what_a_task_leaves_behind_dies_with_it() {
    let world = Setup::new().await;
    let id = fresh();
    world
        .master
        .log_line(start(spec(&id, "setsid sleep 600 & sleep 0.1; exit 0")));
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 0 }
    );
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    world.end(&[&id]).await;
}

#[tokio::test]
async fn an_agent_that_returns_adopts_its_task() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    let before = world.master.running(&id).await;
    let world = world.agent_dies(async |_| {}).await;
    let received = world.master.received();
    let hello = received.hellos.last().unwrap();
    assert_eq!(hello.instance_id, received.hellos[0].instance_id);
    assert_eq!(hello.containers.len(), 1);
    assert_eq!(world.master.running(&id).await, before);
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_task_that_ended_while_the_agent_was_away_is_reported() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(
        &id,
        "while ! [ -e go ]; do sleep 0.05; done; exit 3",
    )));
    world.master.running(&id).await;
    let world = world
        .agent_dies(async |between| {
            std::fs::write(between.container(&id).join("run/go"), "").unwrap();
            let report = between.container(&id).join("run/exit.json");
            until("the task to end", || report.exists()).await;
        })
        .await;
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 3 }
    );
    world.end(&[&id]).await;
}

#[tokio::test]
async fn an_agent_that_died_before_it_recorded_the_start_finds_the_task() {
    let world = Setup::new().await;
    let id = fresh();
    world
        .master
        .log_line(start(spec(&id, "echo x >> started; sleep 600")));
    let before = world.master.running(&id).await;
    let started = world.container(&id).join("run/started");
    until("the task to write", || started.exists()).await;
    let world = world
        .agent_dies(async |between| {
            let record = r#"{"runtime":"process","phase":{"phase":"launching"},"kill":null}"#;
            std::fs::write(between.container(&id).join("state.json"), record).unwrap();
        })
        .await;
    assert_eq!(world.master.running(&id).await, before);
    assert_eq!(std::fs::read_to_string(started).unwrap(), "x\n");
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_start_that_was_announced_and_not_made_is_made() {
    let world = Setup::new().await;
    let id = fresh();
    let world = world
        .agent_dies(async |between| {
            let dir = between.container(&id);
            std::fs::create_dir(&dir).unwrap();
            let text = serde_json::to_string(&spec(&id, "exit 4")).unwrap();
            std::fs::write(dir.join("spec.json"), text).unwrap();
            let record = r#"{"runtime":"process","phase":{"phase":"launching"},"kill":null}"#;
            std::fs::write(dir.join("state.json"), record).unwrap();
        })
        .await;
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 4 }
    );
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_task_whose_supervisor_is_gone_is_lost_and_not_started_again() {
    let world = Setup::new().await;
    let id = fresh();
    world
        .master
        .log_line(start(spec(&id, "echo x >> started; sleep 600")));
    let pid: i32 = world.master.running(&id).await.parse().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let exit = world.master.exit(&id).await;
    assert!(matches!(exit, ContainerExit::Lost { .. }), "{exit:?}");
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    world.end(&[&id]).await;
}

#[tokio::test]
async fn the_rest_of_a_log_reaches_the_master_before_the_end_does() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    let pid: i32 = world.master.running(&id).await.parse().unwrap();
    let spool = world.container(&id).join("run").join(SPOOL_DIR);
    let mut writer = Writer::open(&spool, det_spool::DEFAULT_CAPACITY_BYTES).unwrap();
    for text in ["one", "two"] {
        writer
            .append(&Record {
                timestamp_micros: 1,
                stdtype: LogStream::Stdout,
                rank_id: None,
                level: None,
                log: text.into(),
                outage: None,
            })
            .unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    let child = world.container(&id).join("run/child");
    until("the task to begin", || child.exists()).await;
    world
        .master
        .answer_logs_with(StatusCode::SERVICE_UNAVAILABLE);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    until("the task to be swept", || processes_of(&id).is_empty()).await;
    assert!(
        world.master.received().exit(&id).is_none(),
        "the end waits for the log"
    );
    world.master.answer_logs_with(StatusCode::OK);
    world.master.exit(&id).await;
    let posts = world.master.received().posts;
    assert_eq!(posts.len(), 1, "{posts:?}");
    assert_eq!(posts[0]["token"], "Bearer task-token");
    assert_eq!(posts[0]["logs"][1]["log"], "two\n");
    assert_eq!(posts[0]["spool"]["id"], id.as_str());
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_log_that_the_master_does_not_take_is_given_up_with_a_line() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    let pid: i32 = world.master.running(&id).await.parse().unwrap();
    let spool = world.container(&id).join("run").join(SPOOL_DIR);
    let mut writer = Writer::open(&spool, det_spool::DEFAULT_CAPACITY_BYTES).unwrap();
    writer
        .append(&Record {
            timestamp_micros: 1,
            stdtype: LogStream::Stdout,
            rank_id: None,
            level: None,
            log: "one".into(),
            outage: None,
        })
        .unwrap();
    writer.flush().unwrap();
    world.master.answer_logs_with(StatusCode::UNAUTHORIZED);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    world.master.exit(&id).await;
    world
        .master
        .wait("the line", |received| {
            received
                .agent_logs
                .iter()
                .flat_map(|log| &log.lines)
                .any(|(_, _, text)| text.contains("log is lost") && text.contains("401"))
                .then_some(())
        })
        .await;
    world.end(&[&id]).await;
}

#[tokio::test]
async fn tasks_go_on_while_the_master_is_away() {
    let mut world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(
        &id,
        "while ! [ -e go ]; do sleep 0.05; done; exit 5",
    )));
    world.master.running(&id).await;
    world.master.stop().await;
    std::fs::write(world.container(&id).join("run/go"), "").unwrap();
    let report = world.container(&id).join("run/exit.json");
    until("the task to end", || report.exists()).await;
    world.master.restart().await;
    assert_eq!(
        world.master.exit(&id).await,
        ContainerExit::Exited { code: 5 }
    );
    assert_eq!(world.master.received().hellos.len(), 2);
    world.end(&[&id]).await;
}

#[tokio::test]
async fn a_missing_mount_is_the_tasks_fault_and_named() {
    let world = Setup::new().await;
    let id = fresh();
    let mut spec = spec(&id, "exit 0");
    spec.mounts.push(det_taskspec::Mount {
        host_path: "/nonexistent/data".into(),
        container_path: "/data".into(),
        read_only: true,
        propagation: "rprivate".into(),
        create: false,
        trusted: false,
        shared: None,
    });
    world.master.log_line(start(spec));
    let exit = world.master.exit(&id).await;
    assert!(
        matches!(&exit, ContainerExit::SetupFailed { code: 1, message } if message.contains("/nonexistent/data")),
        "{exit:?}"
    );
    world.end(&[&id]).await;
}

/// How a container ends whose supervisor reports that it could not prepare it. `has_started` = its code has run.
async fn end_of_failed_start(world: &Setup, has_started: bool) -> ContainerExit {
    let id = fresh();
    let report = world.root.path().join(&id);
    let exit = ContainerExit::StartFailed {
        message: "could not create \"info\"".into(),
    };
    let mut content = serde_json::to_value(exit).unwrap();
    content["ended_at"] = 1.into();
    std::fs::write(&report, content.to_string()).unwrap();
    let touch = if has_started {
        "touch started.json;"
    } else {
        ""
    };
    let command = format!("{touch} cp {} exit.json; kill -9 $PPID", report.display());
    world.master.log_line(start(spec(&id, &command)));
    let exit = world.master.exit(&id).await;
    let data = world.root.path().join("data");
    world.master.forget(&id, &data).await;
    exit
}

#[tokio::test]
async fn a_start_that_failed_in_its_container_is_charged_unless_its_host_can_start_nothing() {
    let world = Setup::new().await;
    let failed = |exit: &ContainerExit| matches!(exit, ContainerExit::StartFailed { .. });
    let exit = end_of_failed_start(&world, false).await;
    assert!(failed(&exit), "{exit:?}");
    // Nothing can be written to this file.
    let probe = world.root.path().join("data/probe");
    std::fs::create_dir(&probe).unwrap();
    let exit = end_of_failed_start(&world, true).await;
    assert!(failed(&exit), "what has run was started: {exit:?}");
    let exit = end_of_failed_start(&world, false).await;
    assert!(
        matches!(&exit, ContainerExit::Lost { message } if message == "its host could not start it: could not create \"info\""),
        "{exit:?}"
    );
    let fault = world
        .master
        .wait("the fault", |received| {
            received.host.as_ref()?.fault.clone()
        })
        .await;
    assert!(
        fault.contains("cannot write to the data directory"),
        "{fault}"
    );
    std::fs::remove_dir(&probe).unwrap();
    world.end(&[]).await;
}

#[tokio::test]
async fn a_container_that_cannot_be_named_is_refused_and_forgotten() {
    let world = Setup::new().await;
    world.master.log_line(start(spec("../../etc", "exit 0")));
    let exit = world.master.exit("../../etc").await;
    assert!(
        matches!(exit, ContainerExit::StartFailed { .. }),
        "{exit:?}"
    );
    world.end(&[]).await;
}

#[tokio::test]
async fn a_live_task_that_is_to_be_forgotten_is_killed_first() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    world.master.running(&id).await;
    world
        .master
        .forget(&id, &world.root.path().join("data"))
        .await;
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    world.end(&[]).await;
}

#[tokio::test]
async fn an_agent_that_is_to_take_its_tasks_with_it_does() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    options.keep_tasks_on_shutdown = false;
    let agent = Agent::start(options);
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "sleep 600")));
    master.running(&id).await;
    agent.shut_down().await.unwrap();
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    assert_eq!(master.exit(&id).await, ContainerExit::Killed);
}

#[tokio::test]
async fn an_agent_that_ends_by_default_leaves_its_tasks() {
    let world = Setup::new().await;
    let id = fresh();
    world.master.log_line(start(spec(&id, "sleep 600")));
    let before = world.master.running(&id).await;
    let options = world.options();
    let Setup {
        root,
        master,
        agent,
    } = world;
    agent.shut_down().await.unwrap();
    assert!(std::path::Path::new("/proc").join(&before).exists());
    let agent = Agent::start(options);
    master
        .wait("the agent again", |received| {
            (received.hellos.len() == 2).then_some(())
        })
        .await;
    assert_eq!(master.running(&id).await, before);
    Setup {
        root,
        master,
        agent,
    }
    .end(&[&id])
    .await;
}

#[tokio::test]
async fn two_agents_cannot_share_a_data_directory() {
    let world = Setup::new().await;
    let second = Agent::start(world.options());
    let error = second.ended().await.unwrap_err();
    assert!(matches!(error, AgentError::DataDir(_)), "{error:?}");
    world.end(&[]).await;
}

#[tokio::test]
async fn an_agent_that_is_refused_for_good_ends_and_reports_why() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start_with(ToAgent::Refused {
        reason: "resource pool \"default\" does not exist".into(),
        then: AfterRefusal::End,
    })
    .await;
    let agent = Agent::start(options(&master, root.path(), &stub_supervisor(root.path())));
    let error = agent.ended().await.unwrap_err();
    assert!(
        matches!(&error, AgentError::Refused { reason, .. } if reason.contains("does not exist")),
        "{error:?}"
    );
    assert_eq!(master.received().hellos[0].protocol, PROTOCOL_VERSION);
}

/// Options of an agent that runs a hook when it gives up, and the file that the hook makes.
fn with_hook(master: &FakeMaster, root: &std::path::Path) -> (AgentOptions, std::path::PathBuf) {
    let mut options = options(master, root, &stub_supervisor(root));
    options.reconnect_attempts = Some(2);
    options.reconnect_backoff = std::time::Duration::from_millis(1);
    let marker = root.join("lost");
    options.on_connection_lost = vec!["touch".into(), marker.to_string_lossy().into_owned()];
    (options, marker)
}

#[tokio::test]
async fn an_agent_that_may_not_try_for_ever_runs_its_hook_and_ends() {
    let root = tempfile::tempdir().unwrap();
    let mut master = FakeMaster::start().await;
    let (options, marker) = with_hook(&master, root.path());
    let agent = Agent::start(options);
    master.connected().await;
    master.stop().await;
    let error = agent.ended().await.unwrap_err();
    assert!(
        matches!(error, AgentError::GaveUp { attempts: 3, .. }),
        "{error:?}"
    );
    assert!(marker.exists());
}

/// What an agent reports at its end of a master that sends this, whatever it is asked.
async fn ends_over(answer: &'static [u8], change: impl FnOnce(&mut AgentOptions)) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer).await;
        }
    });
    let root = tempfile::tempdir().unwrap();
    let mut options = options_for(&url, root.path(), &stub_supervisor(root.path()));
    options.reconnect_attempts = Some(0);
    options.reconnect_backoff = std::time::Duration::from_millis(1);
    change(&mut options);
    let error = Agent::start(options).ended().await.unwrap_err();
    serving.abort();
    error.to_string()
}

#[tokio::test]
async fn plain_http_to_a_port_that_speaks_tls_is_explained() {
    // The alert with which a handshake ends that was none.
    let error = ends_over(&[21, 3, 3, 0, 2, 2, 50], |_| ()).await;
    assert!(
        error.contains("if the port speaks TLS, set \"security.tls.enabled\""),
        "{error}"
    );
    // A master reports it itself.
    let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 35\r\n\r\n{\"error\":{\"error\":\"it speaks TLS\"}} ";
    let error = ends_over(answer, |_| ()).await;
    assert!(error.contains("connection: it speaks TLS"), "{error}");
}

#[tokio::test]
async fn a_token_file_that_does_not_exist_is_named_when_the_agent_is_not_known() {
    let answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    let error = ends_over(answer, |options| {
        options.token = None;
        options.missing_token_file = Some("/etc/det/tokn".into());
    })
    .await;
    assert!(error.contains("file \"/etc/det/tokn\""), "{error}");
    assert!(error.contains("does not exist"), "{error}");
}

#[tokio::test]
async fn the_hook_runs_where_no_connection_ever_succeeded() {
    let root = tempfile::tempdir().unwrap();
    let mut master = FakeMaster::start().await;
    let (options, marker) = with_hook(&master, root.path());
    master.stop().await;
    let error = Agent::start(options).ended().await.unwrap_err();
    assert!(
        matches!(error, AgentError::GaveUp { attempts: 3, .. }),
        "{error:?}"
    );
    assert!(marker.exists());
}

#[tokio::test]
async fn the_hook_runs_where_the_master_refuses_the_agent_for_good() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start_with(ToAgent::Refused {
        reason: "no such pool".into(),
        then: AfterRefusal::End,
    })
    .await;
    let (options, marker) = with_hook(&master, root.path());
    let error = Agent::start(options).ended().await.unwrap_err();
    assert!(matches!(error, AgentError::Refused { .. }), "{error:?}");
    assert!(marker.exists());
}

#[tokio::test]
async fn short_pauses_do_not_use_up_the_attempts() {
    let root = tempfile::tempdir().unwrap();
    let mut master = FakeMaster::start().await;
    let (mut options, _) = with_hook(&master, root.path());
    options.reconnect_attempts = Some(0);
    // 100 and 200 ms come first.
    options.reconnect_backoff = std::time::Duration::from_millis(250);
    master.stop().await;
    let error = Agent::start(options).ended().await.unwrap_err();
    assert!(
        matches!(error, AgentError::GaveUp { attempts: 3, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_agent_that_has_changed_ends_its_tasks_and_joins_anew_at_its_next_start() {
    let world = Setup::new().await;
    let id = "c1";
    world.master.log_line(start(spec(id, "sleep 600")));
    let running = world.master.running(id).await;
    let process = std::path::Path::new("/proc").join(&running);
    let options = world.options();
    let Setup {
        root,
        master,
        agent,
    } = world;
    agent.shut_down().await.unwrap();
    assert!(process.exists());
    master.answer(ToAgent::Refused {
        reason: "it had 1 devices and comes back with 2".into(),
        then: AfterRefusal::Rejoin,
    });
    let error = Agent::start(options.clone()).ended().await.unwrap_err();
    assert!(
        matches!(error, AgentError::Refused { given_up: true, .. }),
        "{error:?}"
    );
    assert!(!process.exists());
    master.answer(welcome());
    let agent = Agent::start(options);
    master
        .wait("the agent again", |received| {
            (received.hellos.len() == 3).then_some(())
        })
        .await;
    Setup {
        root,
        master,
        agent,
    }
    .end(&[id])
    .await;
}
