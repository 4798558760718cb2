//! Limits of process tasks, with the control groups of this host where the tests may make some.

use det_agent::{AgentOptions, Limits, TaskLimits};
use det_taskspec::ContainerExit;

use crate::common::{Agent, FakeMaster, options, spec, start, stub_supervisor, until};

fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Groups of a container below the control groups of this host.
fn groups_of(id: &str) -> Vec<std::path::PathBuf> {
    let trees = ["", "pids", "freezer", "memory", "cpu"];
    let of = |tree| {
        std::path::Path::new("/sys/fs/cgroup")
            .join(tree)
            .join("determined")
            .join(id)
    };
    trees
        .map(of)
        .into_iter()
        .filter(|path| path.is_dir())
        .collect()
}

fn limited(master: &FakeMaster, root: &std::path::Path, limits: Limits) -> AgentOptions {
    let mut options = options(master, root, &stub_supervisor(root));
    options.task_limits.limits = limits;
    options
}

/// The lines of agents in logs of tasks.
fn agent_lines(master: &FakeMaster) -> String {
    format!("{:?}", master.received().agent_logs)
}

#[tokio::test]
async fn groups_with_limits_go_with_their_task_also_where_another_agent_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let limits = Limits {
        memory_bytes: Some(512 << 20),
        cpu_millis: Some(1000),
        processes: Some(500),
    };
    let options = limited(&master, root.path(), limits);
    let agent = Agent::start(options.clone());
    master.connected().await;
    let (ended, killed) = (fresh(), fresh());
    master.log_line(start(spec(&ended, "cat /proc/self/cgroup > groups")));
    master.exit(&ended).await;
    if agent_lines(&master).contains("without some of the limits") {
        eprintln!("SKIPPED: no limits here: {}", agent_lines(&master));
        return;
    }
    let seen = std::fs::read_to_string(
        root.path()
            .join("data/containers")
            .join(&ended)
            .join("run/groups"),
    );
    let seen = seen.unwrap();
    assert!(seen.contains(&format!("/determined/{ended}")), "{seen}");
    assert!(groups_of(&ended).is_empty());
    // The agent dies, the task ends, and an agent without limits takes its place.
    master.log_line(start(spec(&killed, "sleep 600")));
    master.running(&killed).await;
    assert!(!groups_of(&killed).is_empty());
    agent.kill().await;
    let child = root
        .path()
        .join("data/containers")
        .join(&killed)
        .join("run/child");
    until("the child to be known", || child.exists()).await;
    let pid = std::fs::read_to_string(child)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let agent = Agent::start(AgentOptions {
        task_limits: TaskLimits::default(),
        ..options
    });
    master.exit(&killed).await;
    assert!(groups_of(&killed).is_empty());
    for id in [&ended, &killed] {
        master.forget(id, &root.path().join("data")).await;
    }
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn where_limits_are_required_and_cannot_be_set_nothing_starts() {
    if nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: root may limit tasks");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let limits = Limits {
        processes: Some(500),
        ..Limits::default()
    };
    let mut options = limited(&master, root.path(), limits);
    options.task_limits.required = true;
    let agent = Agent::start(options.clone());
    master.connected().await;
    let id = fresh();
    master.log_line(start(spec(&id, "exit 0")));
    match master.exit(&id).await {
        ContainerExit::StartFailed { message } => {
            assert!(message.contains("control group"), "{message}");
        }
        ContainerExit::Exited { code: 0 } => {
            eprintln!("SKIPPED: this agent was given control groups");
        }
        other => panic!("{other:?}"),
    }
    master.forget(&id, &root.path().join("data")).await;
    agent.shut_down().await.unwrap();
}
