//! What an engine mounts against what the agent has checked: the real supervisor in a mount namespace that a shell fills as an
//! engine would.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "a test that is left out reports it")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use det_taskspec::{CheckedMount, Entrypoint, RUN_DIR, SCRIPT_FILE, Script, TaskKind};

/// A container whose mounts are made by commands of a shell; its task leaves a file behind.
struct Container {
    dir: tempfile::TempDir,
    expected: Vec<CheckedMount>,
}

impl Container {
    /// `None` = this host or account makes no mounts.
    fn new() -> Option<Self> {
        let can = Command::new("unshare").args(["--mount", "true"]).status();
        if !can.is_ok_and(|status| status.success()) || !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: only root makes mounts");
            return None;
        }
        let mut container = Self {
            dir: tempfile::tempdir().unwrap(),
            expected: Vec::new(),
        };
        for name in ["run", "data", "other"] {
            let dir = container.path(name);
            fs::create_dir(&dir).unwrap();
            container.place_script(&dir);
        }
        container.expect("run", RUN_DIR);
        Some(container)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn place_script(&self, dir: &Path) {
        let text = |text: &str| text.to_owned();
        let env = [
            ("DET_MASTER", "http://127.0.0.1:9"),
            ("DET_CLUSTER_ID", "k"),
            ("DET_AGENT_ID", "agent-1"),
            ("DET_SLOT_IDS", "[]"),
            ("DET_TASK_ID", "task"),
            ("DET_ALLOCATION_ID", "task.1"),
            ("DET_CONTAINER_ID", "container"),
            ("DET_RESOURCES_ID", "container"),
            ("DET_SESSION_TOKEN", "secret"),
            ("DET_TASK_TYPE", "COMMAND"),
            ("DET_LOG_WAIT_TIME", "0"),
        ];
        let script = Script {
            task_type: TaskKind::Command,
            allocation_id: "task.1".into(),
            task_id: "task".into(),
            container_id: "container".into(),
            env: env.map(|(name, value)| (text(name), text(value))).to_vec(),
            work_dir: text("/run/determined/workdir"),
            context: false,
            startup_hook: false,
            pool_startup_hook: None,
            rendezvous: false,
            storage_probe: None,
            entrypoint: Entrypoint::Shell(format!(
                "echo it runs; touch {}",
                self.path("ran").display()
            )),
            readiness: Vec::new(),
            readiness_port: None,
            idle_check: None,
            system_metrics: None,
            task_metrics: None,
            files: Vec::new(),
            token: text("secret"),
            grace_seconds: 1,
            save_seconds: None,
        };
        fs::write(dir.join(SCRIPT_FILE), serde_json::to_vec(&script).unwrap()).unwrap();
    }

    /// The agent has checked this directory for a mount at this place.
    fn expect(&mut self, name: &str, place: &str) {
        let found = fs::metadata(self.path(name)).unwrap();
        self.expected.push(CheckedMount {
            path: place.to_owned(),
            device: found.dev(),
            inode: found.ino(),
        });
    }

    /// What the supervisor prints, after an engine has mounted this: pairs of a directory and a place.
    fn run_with(&self, mounts: &[(&str, &str)], env: &[(&str, &Path)]) -> Output {
        let mut engine = "mount --make-rprivate / && mount -t tmpfs none /run".to_owned();
        for (name, place) in mounts {
            let source = self.path(name);
            engine += &format!(
                " && mkdir -p {place} && mount --bind {} {place}",
                source.display()
            );
        }
        let supervisor = env!("CARGO_BIN_EXE_det-supervisor");
        Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("{engine} && exec \"$@\"")])
            .args(["sh", supervisor, "run"])
            .args(self.expected.iter().map(CheckedMount::option))
            .envs(env.iter().copied())
            .output()
            .unwrap()
    }

    /// Whether the task has run, after an engine has mounted this.
    fn runs_with(&self, mounts: &[(&str, &str)]) -> bool {
        let output = self.run_with(mounts, &[]);
        let ran = fs::remove_file(self.path("ran")).is_ok();
        assert_eq!(output.status.success(), ran, "{output:?}");
        ran
    }
}

const RUN: (&str, &str) = ("run", RUN_DIR);

#[test]
fn nothing_of_a_task_runs_unless_its_mounts_are_those_that_were_checked() {
    let Some(mut container) = Container::new() else {
        return;
    };
    assert!(container.runs_with(&[RUN]));
    container.expect("data", "/run/data");
    assert!(container.runs_with(&[RUN, ("data", "/run/data")]));
    // A link of the image leads the mount elsewhere.
    assert!(container.runs_with(&[RUN, ("data", "/run/elsewhere")]));
    // The path was changed.
    assert!(!container.runs_with(&[RUN, ("other", "/run/data")]));
    assert!(!container.runs_with(&[RUN]));
    // It exists, and another mount covers it.
    assert!(!container.runs_with(&[RUN, ("data", "/run/data"), ("other", "/run/data")]));
    // The right directory can be seen where the mount is expected, by no mount of its own.
    let seen = container.path("data");
    container.expected.truncate(1);
    container.expect("data", seen.to_str().unwrap());
    assert!(!container.runs_with(&[RUN, ("other", "/run/elsewhere")]));
    // Two mounts of one directory, of which one shows another.
    container.expected.truncate(1);
    container.expect("data", "/run/one");
    container.expect("data", "/run/two");
    assert!(container.runs_with(&[RUN, ("data", "/run/one"), ("data", "/run/two")]));
    assert!(!container.runs_with(&[RUN, ("data", "/run/one"), ("other", "/run/two")]));
}

#[test]
fn a_mount_of_the_task_does_not_take_the_place_of_the_run_directory() {
    let Some(mut container) = Container::new() else {
        return;
    };
    // It has a script as well, and is what the agent has checked for another place.
    container.expect("other", "/run/other");
    assert!(container.runs_with(&[RUN, ("other", "/run/other")]));
    assert!(!container.runs_with(&[RUN, ("other", RUN_DIR)]));
    assert!(!container.runs_with(&[("other", "/run/other"), ("other", RUN_DIR)]));
}

#[test]
fn the_log_is_printed_in_a_pod_alone() {
    let Some(container) = Container::new() else {
        return;
    };
    let message = container.path("message");
    let own = [("run", RUN_DIR)];
    let printed = |env: &[(&str, &Path)]| {
        let output = container.run_with(&own, env);
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| line == "it runs")
    };
    assert!(!printed(&[]));
    assert!(printed(&[("DET_TERMINATION_MESSAGE", &message)]));
    assert!(message.exists());
}
