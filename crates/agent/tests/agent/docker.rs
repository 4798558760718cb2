//! The agent with a Docker engine and the real supervisor. Needs `DET_SUPERVISOR` (static) and `DET_TEST_IMAGE`, an image
//! in the engine with a shell.

use std::path::{Path, PathBuf};

use crate::common::{Agent, FakeMaster, options, start};
use det_agent::{AgentOptions, EndedContainers, Limits, RuntimeChoice, Ulimit};
use det_agent_proto::ContainerState;
use det_taskspec::{ContainerExit, ContainerSpec};

fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn docker_options(master: &FakeMaster, root: &Path) -> AgentOptions {
    let supervisor =
        PathBuf::from(std::env::var_os("DET_SUPERVISOR").expect("DET_SUPERVISOR is set"));
    let mut options = options(master, root, &supervisor);
    options.runtime = RuntimeChoice::Docker;
    options
}

fn spec(id: &str, text: &str) -> ContainerSpec {
    let mut spec = crate::common::spec(id, text);
    spec.image = std::env::var("DET_TEST_IMAGE").expect("DET_TEST_IMAGE is set");
    spec
}

/// The engine's state of our container, or nothing when it has none.
fn engine_state(id: &str) -> String {
    let output = std::process::Command::new("/usr/bin/docker")
        .args(["inspect", "-f", "{{.State.Status}}", &format!("det-{id}")])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_container_runs_reports_and_is_removed_when_forgotten() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let runtime = master.received().hellos[0].runtime.clone();
    // An engine is taken for the one that it reports to be.
    assert!(runtime == "docker" || runtime == "podman", "{runtime}");
    let id = fresh();
    master.log_line(start(spec(
        &id,
        "echo in a container $DET_AGENT_ID; exit 4",
    )));
    assert_eq!(master.exit(&id).await, ContainerExit::Exited { code: 4 });
    let posts = format!("{:?}", master.received().posts);
    assert!(posts.contains("in a container agent-1"), "{posts}");
    assert_eq!(engine_state(&id), "exited");
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(engine_state(&id), "");
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn ended_containers_are_kept_as_long_as_that_is_wanted() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = docker_options(&master, root.path());
    options.ended_containers = EndedContainers::Kept;
    let agent = Agent::start(options.clone());
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "exit 0")));
    master.exit(&id).await;
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(engine_state(&id), "exited");
    agent.shut_down().await.unwrap();
    for (keeps, state) in [
        (EndedContainers::Kept, "exited"),
        (EndedContainers::Removed, ""),
    ] {
        options.ended_containers = keeps;
        let hellos = master.received().hellos.len();
        let agent = Agent::start(options.clone());
        master
            .wait("the agent again", |received| {
                (received.hellos.len() > hellos).then_some(())
            })
            .await;
        assert_eq!(engine_state(&id), state);
        agent.shut_down().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_container_has_the_limits_of_its_agent_and_ends_where_memory_runs_out() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = docker_options(&master, root.path());
    options.task_limits.limits = Limits {
        memory_bytes: Some(64 << 20),
        cpu_millis: Some(100_000),
        processes: Some(100),
    };
    let agent = Agent::start(options);
    master.connected().await;
    let id = fresh();
    let text = "exec sh -c 'head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null'";
    master.log_line(start(spec(&id, text)));
    let exit = master.exit(&id).await;
    let posts = format!("{:?}", master.received().posts);
    // Not every host of an engine can limit memory; then the log of the task has a warning.
    let logs = format!("{:?}", master.received().agent_logs);
    if logs.contains("without some of the limits") {
        eprintln!("SKIPPED: this engine cannot limit memory: {logs}");
    } else {
        assert!(posts.contains("out-of-memory killer"), "{posts}");
        assert!(
            !matches!(exit, ContainerExit::Exited { code: 0 }),
            "{exit:?}"
        );
    }
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn processes_of_a_container_have_the_ulimits_of_their_agent() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = docker_options(&master, root.path());
    options.ulimits = vec![Ulimit {
        name: "nofile".to_owned(),
        soft: 1234,
        hard: 2345,
    }];
    let agent = Agent::start(options);
    master.connected().await;
    let id = fresh();
    let text = "echo files $(ulimit -Sn) of $(ulimit -Hn)";
    master.log_line(start(spec(&id, text)));
    assert_eq!(master.exit(&id).await, ContainerExit::Exited { code: 0 });
    let posts = format!("{:?}", master.received().posts);
    assert!(posts.contains("files 1234 of 2345"), "{posts}");
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_shell_of_another_user_has_the_directory_that_stays_and_its_working_directory() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = docker_options(&master, root.path());
    options.user_directories = Some(root.path().join("users"));
    let agent = Agent::start(options);
    master.connected().await;
    for (turn, uid) in [(1, 54321), (2, 54321), (1, 0)] {
        let id = fresh();
        let mut spec = spec(
            &id,
            "echo line >> persistent/kept && touch beside && echo lines $(wc -l < persistent/kept)",
        );
        spec.script.task_type = det_taskspec::TaskKind::Shell;
        spec.user.uid = uid;
        spec.user.gid = uid;
        spec.owner_id = det_ids::UserId(if uid == 0 { 8 } else { 7 });
        master.log_line(start(spec));
        let exit = master.exit(&id).await;
        let posts = format!("{:?}", master.received().posts);
        assert_eq!(exit, ContainerExit::Exited { code: 0 }, "{posts}");
        assert!(posts.contains(&format!("lines {turn}")), "{posts}");
        master.forget(&id, &root.path().join("data")).await;
    }
    let kept = root.path().join("users/cluster-1/7/kept");
    assert_eq!(std::fs::read_to_string(kept).unwrap().lines().count(), 2);
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_container_is_adopted_and_killed() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "sleep 600")));
    let before = master.running(&id).await;
    agent.kill().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master
        .wait("the agent again", |received| {
            (received.hellos.len() == 2).then_some(())
        })
        .await;
    assert_eq!(master.running(&id).await, before);
    master.kill(&id, false);
    assert_eq!(master.exit(&id).await, ContainerExit::Killed);
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(engine_state(&id), "");
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_container_started_by_an_agent_that_died_before_it_recorded_that_is_found() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "sleep 600")));
    let before = master.running(&id).await;
    agent.kill().await;
    let record = r#"{"runtime":"docker","phase":{"phase":"launching"},"kill":null}"#;
    let state = root
        .path()
        .join("data/containers")
        .join(&id)
        .join("state.json");
    std::fs::write(state, record).unwrap();
    let agent = Agent::start(docker_options(&master, root.path()));
    master
        .wait("the agent again", |received| {
            (received.hellos.len() == 2).then_some(())
        })
        .await;
    assert_eq!(master.running(&id).await, before);
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(engine_state(&id), "");
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn an_image_that_cannot_be_pulled_is_the_infrastructures_fault() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let id = fresh();
    let mut spec = spec(&id, "exit 0");
    spec.image = "127.0.0.1:9/no/such:image".into();
    master.log_line(start(spec));
    let exit = master.exit(&id).await;
    assert!(
        matches!(&exit, ContainerExit::StartFailed { message } if message.contains("127.0.0.1:9/no/such:image")),
        "{exit:?}"
    );
    let received = master.received();
    let states = &received.states[&id.as_str().into()];
    assert!(states.contains(&ContainerState::Pulling), "{states:?}");
    let said = format!("{:?}", received.agent_logs);
    assert!(said.contains("pulling image"), "{said}");
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn a_container_that_is_removed_from_outside_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "sleep 600")));
    master.running(&id).await;
    let removed = std::process::Command::new("/usr/bin/docker")
        .args(["rm", "-f", &format!("det-{id}")])
        .status()
        .unwrap();
    assert!(removed.success());
    let exit = master.exit(&id).await;
    assert!(matches!(exit, ContainerExit::Lost { .. }), "{exit:?}");
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker engine"]
async fn an_engine_that_restarts_is_waited_for() {
    let Some(restart) = std::env::var_os("DET_TEST_RESTART_ENGINE") else {
        eprintln!(
            "SKIPPED: set DET_TEST_RESTART_ENGINE to a shell command that restarts the engine"
        );
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(docker_options(&master, root.path()));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "sleep 600")));
    master.running(&id).await;
    let restarted = tokio::process::Command::new("sh")
        .arg("-c")
        .arg(restart)
        .status()
        .await
        .unwrap();
    assert!(restarted.success());
    // Whether the container survives is the engine's setting; that the agent still has it in hand is ours.
    master.kill(&id, false);
    let exit = master.exit(&id).await;
    assert!(
        matches!(exit, ContainerExit::Killed | ContainerExit::Lost { .. }),
        "{exit:?}"
    );
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(engine_state(&id), "");
    agent.shut_down().await.unwrap();
}
