//! `det-supervisor place`: what an init container of a pod does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// A Secret with the scripts of two ranks, and an empty run directory.
struct Pod {
    dir: tempfile::TempDir,
}

impl Pod {
    fn new() -> Self {
        let pod = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in ["secret", "run"] {
            fs::create_dir(pod.path(name)).unwrap();
        }
        for rank in ["0", "3"] {
            let file = format!("secret/task-{rank}.json");
            fs::write(pod.path(&file), format!("script of {rank}")).unwrap();
        }
        pod
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn place(&self, ranks: &str, index: Option<&str>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_det-supervisor"));
        command.arg("place");
        command.arg("--from").arg(self.path("secret"));
        command.arg("--to").arg(self.path("run"));
        command.env("DET_RANKS", ranks);
        command.env_remove("JOB_COMPLETION_INDEX");
        if let Some(index) = index {
            command.env("JOB_COMPLETION_INDEX", index);
        }
        command.output().unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        let metadata = fs::metadata(self.path(name)).unwrap();
        metadata.permissions().mode() & 0o7777
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_pod_gets_supervisor_certificate_and_the_script_of_its_rank() {
    let pod = Pod::new();
    fs::write(pod.path("secret/master.crt"), "PEM").unwrap();
    // Whatever was left by an attempt that was cut short is replaced.
    fs::write(pod.path("run/det-supervisor.tmp"), "half").unwrap();
    for index in ["1", "1"] {
        let output = pod.place("0,3", Some(index));
        assert!(output.status.success(), "{}", stderr(&output));
        let script = fs::read_to_string(pod.path("run/task.json")).unwrap();
        assert_eq!(script, "script of 3");
    }
    assert_eq!(
        fs::read_to_string(pod.path("run/etc/ssl/master.crt")).unwrap(),
        "PEM"
    );
    assert_eq!(pod.mode("run/task.json"), 0o600);
    // What is mounted in it does not make it root's.
    assert!(pod.path("run/workdir").is_dir());
    assert_eq!(pod.mode("run/det-supervisor"), 0o755);
    let placed = Command::new(pod.path("run/det-supervisor"))
        .arg("--version")
        .output()
        .unwrap();
    assert!(placed.status.success());
}

#[test]
fn a_pod_that_is_not_indexed_is_the_first() {
    let pod = Pod::new();
    assert!(pod.place("0", None).status.success());
    let script = fs::read_to_string(pod.path("run/task.json")).unwrap();
    assert_eq!(script, "script of 0");
    assert!(!pod.path("run/etc").exists());
}

#[test]
fn what_is_missing_is_named() {
    let pod = Pod::new();
    for (scenario, ranks, index, words) in [
        ("no rank", "0,3", Some("2"), "name no rank"),
        ("no script", "7", None, "task-7.json"),
    ] {
        let output = pod.place(ranks, index);
        assert_eq!(output.status.code(), Some(1), "{scenario}");
        let error = stderr(&output);
        assert!(error.contains(words), "{scenario}: {error}");
    }
    assert!(!Path::new(&pod.path("run/task.json")).exists());
    fs::remove_dir_all(pod.path("run")).unwrap();
    fs::write(pod.path("run"), "no directory").unwrap();
    let output = pod.place("0", None);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/run/"), "{}", stderr(&output));
}
