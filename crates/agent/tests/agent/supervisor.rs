//! The agent with the real supervisor, named by `DET_SUPERVISOR`. Without it these tests report that they are skipped.

use std::path::PathBuf;

use det_taskspec::ContainerExit;

use crate::common::{
    Agent, FakeMaster, ReceivedMessages, options, processes_of, spec, start, until,
};

fn supervisor() -> Option<PathBuf> {
    let path = std::env::var_os("DET_SUPERVISOR").map(PathBuf::from);
    if path.is_none() {
        eprintln!("SKIPPED: set DET_SUPERVISOR to the det-supervisor executable to run this test");
    }
    path
}

fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The lines that reached the master, each once.
fn lines(received: &ReceivedMessages) -> Vec<String> {
    let mut numbered: Vec<(u64, String)> = received
        .posts
        .iter()
        .flat_map(|post| {
            let first = post["spool"]["first"].as_u64().unwrap_or(0);
            let logs = post["logs"].as_array().cloned().unwrap_or_default();
            (first..).zip(logs).map(|(number, line)| {
                (
                    number,
                    line["log"]
                        .as_str()
                        .unwrap_or_default()
                        .trim_end()
                        .to_owned(),
                )
            })
        })
        .collect();
    numbered.sort();
    numbered.dedup();
    numbered.into_iter().map(|(_, line)| line).collect()
}

#[tokio::test]
async fn a_task_sees_its_environment_and_its_output_reaches_the_master() {
    let Some(supervisor) = supervisor() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(options(&master, root.path(), &supervisor));
    master.connected().await;
    let id = fresh();
    let text = "echo agent=$DET_AGENT_ID slots=$DET_SLOT_IDS master=$DET_MASTER; id -u; exit 3";
    master.log_line(start(spec(&id, text)));
    assert_eq!(master.exit(&id).await, ContainerExit::Exited { code: 3 });
    let expected = format!("agent=agent-1 slots=[] master={}", master.url);
    let lines = lines(&master.received());
    assert!(lines.contains(&expected), "{lines:?}");
    // No task is root of the host. An agent that is not root shows its tasks its own account as root.
    let uid = if nix::unistd::geteuid().is_root() {
        det_taskspec::unprivileged_id(det_ids::UserId(7))
    } else {
        0
    };
    assert!(lines.contains(&uid.to_string()), "{lines:?}");
    master.forget(&id, &root.path().join("data")).await;
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn a_real_task_is_adopted_killed_and_gone() {
    let Some(supervisor) = supervisor() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(options(&master, root.path(), &supervisor));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(
        &id,
        "echo before; (setsid sleep 600 &); sleep 600",
    )));
    let before = master.running(&id).await;
    master
        .wait("a line", |received| {
            lines(received).contains(&"before".to_owned()).then_some(())
        })
        .await;
    agent.kill().await;
    let agent = Agent::start(options(&master, root.path(), &supervisor));
    master
        .wait("the agent again", |received| {
            (received.hellos.len() == 2).then_some(())
        })
        .await;
    assert_eq!(master.running(&id).await, before);
    master.kill(&id, false);
    assert_eq!(master.exit(&id).await, ContainerExit::Killed);
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn a_task_whose_supervisor_is_killed_leaves_nothing_and_its_log_arrives() {
    let Some(supervisor) = supervisor() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let agent = Agent::start(options(&master, root.path(), &supervisor));
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "echo last words; sleep 600")));
    let pid: i32 = master.running(&id).await.parse().unwrap();
    let run = root
        .path()
        .join("data/containers")
        .join(&id)
        .join("run/spool");
    until("the task to speak", || {
        std::fs::read_dir(&run).is_ok_and(|entries| {
            entries.filter_map(Result::ok).any(|entry| {
                std::fs::read(entry.path())
                    .is_ok_and(|text| text.windows(10).any(|part| part == b"last words"))
            })
        })
    })
    .await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let exit = master.exit(&id).await;
    assert!(matches!(exit, ContainerExit::Lost { .. }), "{exit:?}");
    assert_eq!(processes_of(&id), [] as [&str; 0]);
    assert!(lines(&master.received()).contains(&"last words".to_owned()));
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}
