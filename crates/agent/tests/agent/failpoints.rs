//! Every listed point of the agent: a task is started, ends, and is forgotten, while the agent ends at the point and is
//! started again. The agent is a process of its own (this binary once more), so that its end is a real one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use det_agent_proto::ToAgent;
use det_failpoints::{POINTS, Part, VARIABLE};
use det_taskspec::ContainerExit;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::common::{FakeMaster, options_for, spec, start, stub_supervisor, until};

const ROOT: &str = "DET_TEST_AGENT_ROOT";
const MASTER: &str = "DET_TEST_AGENT_MASTER";
/// Exit code of the task.
const CODE: i32 = 3;

/// An agent process that is started again after it ended.
struct RestartingAgent {
    root: PathBuf,
    master: String,
    child: Child,
    was_cut: bool,
}

impl RestartingAgent {
    fn start(root: &Path, master: &str, point: &str) -> Self {
        Self {
            root: root.to_owned(),
            master: master.to_owned(),
            child: Self::spawn(root, master, Some(point)),
            was_cut: false,
        }
    }

    fn spawn(root: &Path, master: &str, point: Option<&str>) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "failpoints::the_process", "--ignored"])
            .env(ROOT, root)
            .env(MASTER, master)
            .env_remove(VARIABLE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some(point) = point {
            command.env(VARIABLE, point);
        }
        command.spawn().unwrap()
    }

    /// Starts it again if it has ended.
    fn restart_if_ended(&mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        if let Some(status) = self.child.try_wait().unwrap() {
            assert!(
                status.signal() == Some(6) && !self.was_cut,
                "the agent ended by itself: {status}"
            );
            self.was_cut = true;
            self.child = Self::spawn(&self.root, &self.master, None);
        }
    }
}

#[tokio::test]
async fn a_task_runs_once_wherever_its_agent_is_cut() {
    let mut missed = Vec::new();
    for (point, _) in POINTS.iter().filter(|(_, part)| *part == Part::Agent) {
        if !run_task(point).await {
            missed.push(*point);
        }
    }
    assert!(
        missed.is_empty(),
        "the task's run does not reach {missed:?}"
    );
}

/// Runs a task from start to removal; returns whether the agent ended at the failpoint.
async fn run_task(point: &str) -> bool {
    let root = tempfile::tempdir().unwrap();
    stub_supervisor(root.path());
    let master = FakeMaster::start().await;
    let mut agent = RestartingAgent::start(root.path(), &master.url, point);
    let id = uuid::Uuid::new_v4().to_string();
    let starts = root.path().join("starts");
    let text = format!("echo once >> {}; exit {CODE}", starts.display());
    let task = spec(&id, &text);
    let directory = root.path().join("data/containers").join(&id);
    let mut answered = 0;
    let mut forgotten = false;
    until(&format!("{point}: the task to be forgotten"), || {
        agent.restart_if_ended();
        let received = master.received();
        let known = received.state(&id).is_some();
        // What the real one does on every connection, and on every report.
        if let Some(hello) = received.hellos.last()
            && received.connected
            && answered < received.hellos.len()
        {
            let holds = hello
                .containers
                .iter()
                .any(|c| c.container_id.as_str() == id);
            let over = received.exit(&id).is_some();
            assert!(
                holds || over || !known,
                "{point}: the agent has lost a task that it had reported"
            );
            forgotten = false;
            if holds || over || master.try_send(start(task.clone())) {
                answered = received.hellos.len();
            }
        }
        if received.exit(&id).is_some() && received.connected && !forgotten {
            forgotten = master.try_send(ToAgent::Forget {
                container_id: id.as_str().into(),
            });
        }
        forgotten && received.connected && !directory.exists()
    })
    .await;
    // An end right after the removal is noticed a little later.
    if point.ends_with("after_remove") {
        until("the agent to be cut", || {
            agent.restart_if_ended();
            agent.was_cut
        })
        .await;
    }
    assert_eq!(
        master.received().exit(&id),
        Some(&ContainerExit::Exited { code: CODE }),
        "{point}"
    );
    let ran = std::fs::read_to_string(&starts).unwrap();
    assert_eq!(
        ran.lines().count(),
        1,
        "{point}: the task ran more than once"
    );
    agent.was_cut
}

/// Not a test: the agent's process.
#[tokio::test]
#[ignore = "the agent's process; started by the tests"]
async fn the_process() {
    let root = PathBuf::from(std::env::var_os(ROOT).expect("started by the tests"));
    let mut options = options_for(
        &std::env::var(MASTER).unwrap(),
        &root,
        &root.join("stub-supervisor"),
    );
    options.keep_tasks_on_shutdown = true;
    det_agent::run(options, CancellationToken::new())
        .await
        .unwrap();
}
