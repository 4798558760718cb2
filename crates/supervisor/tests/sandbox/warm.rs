//! Warm starts: what a program sees and does is the same as after a cold one, but for who has imported its modules.

use std::fs;
use std::io::{self, BufRead as _, BufReader, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use det_taskspec::TaskUser;
use det_taskspec::sandbox::WarmPython;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use serde_json::Value;

use super::exited;
use super::support::{self, EndedTask, Master, Task, is_refused, need_sandbox, skip, wait_for};

/// What agents give their interpreter to run; see `crates/agent/src/runtime/warm.rs`.
const BEGIN: &str = include_str!("../../../agent/src/runtime/warm/begin.py");
const TEMPLATE: &str = concat!(
    include_str!("../../../agent/src/runtime/warm/template.py"),
    include_str!("../../../agent/src/runtime/warm/program.py")
);
const PROBE: &str = include_str!("warm_probe.py");
/// A module that knows which process has imported it.
const MODULE: &str =
    "import os\nPID = os.getpid()\nIS_INSIDE = os.path.exists('/run/determined/task.json')\n";
/// Prints whether the module was imported outside of the sandbox.
const REPORT: &str =
    "import det_warm; print('cold' if det_warm.IS_INSIDE else 'warm', flush=True)\n";

/// A template as an agent keeps it, with an interpreter of its own that has the module.
struct Template {
    home: tempfile::TempDir,
    python: PathBuf,
    connection: UnixStream,
    child: Child,
    env: Vec<(String, String)>,
}

impl Drop for Template {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An interpreter of this host that this user can run; `Err` = why the test is skipped.
fn interpreter(uid: Option<u32>) -> Result<PathBuf, String> {
    let of_all = Path::new("/usr/bin/python3");
    if uid.is_some() {
        let missing = || format!("there is no {}", of_all.display());
        return of_all
            .exists()
            .then(|| of_all.to_owned())
            .ok_or_else(missing);
    }
    let asked = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    match asked {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().into())
        }
        _ => Err("there is no python3".to_owned()),
    }
}

impl Template {
    fn start() -> Option<Self> {
        Self::start_as(None)
    }

    fn start_as(uid: Option<u32>) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let base = interpreter(uid).map_err(|reason| skip(&reason)).ok()?;
        let made = Command::new(&base)
            .args(["-m", "venv", "--without-pip"])
            .arg(home.path().join("venv"))
            .status();
        if !made.is_ok_and(|status| status.success()) {
            skip("this host's python3 makes no virtual environments");
            return None;
        }
        let python = home.path().join("venv/bin/python3");
        let packages = fs::read_dir(home.path().join("venv/lib")).unwrap();
        let packages = packages
            .flatten()
            .next()
            .unwrap()
            .path()
            .join("site-packages");
        fs::write(packages.join("det_warm.py"), MODULE).unwrap();
        fs::write(home.path().join("template.py"), TEMPLATE).unwrap();
        let env = [
            (
                "PATH",
                format!(
                    "/run/determined/pythonuserbase/bin:{}:/usr/bin:/bin",
                    python.parent().unwrap().display()
                ),
            ),
            ("HOME", "/run/determined/workdir".to_owned()),
            (
                "PYTHONUSERBASE",
                "/run/determined/pythonuserbase".to_owned(),
            ),
        ];
        let env: Vec<_> = env.map(|(name, value)| (name.to_owned(), value)).into();
        let (connection, other) = UnixStream::pair().unwrap();
        let mut command = Command::new(&python);
        command
            .arg("-c")
            .arg(BEGIN)
            .arg(home.path().join("template.py"))
            .arg("det_warm")
            .env_clear()
            .envs(env.clone())
            .current_dir(home.path())
            .stdin(Stdio::from(OwnedFd::from(other)));
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let child = command.spawn().unwrap();
        // Its own copy of the other end would keep the connection open.
        drop(command);
        let mut ready = String::new();
        BufReader::new(&connection).read_line(&mut ready).unwrap();
        assert!(ready.contains("\"ready\""), "{ready}");
        Some(Self {
            home,
            python,
            connection,
            child,
            env,
        })
    }

    /// Orders a standby, and gives the supervisor's end of its connection.
    fn standby(&self) -> io::Result<OwnedFd> {
        let (own, other) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        sendmsg::<()>(
            self.connection.as_raw_fd(),
            &[IoSlice::new(b"{\"fork\": true}\n")],
            &[ControlMessage::ScmRights(&[other.as_raw_fd()])],
            MsgFlags::empty(),
            None,
        )?;
        Ok(own)
    }

    /// A task with a standby, whose working directory has these files, and whose entrypoint a shell runs.
    fn task(&self, master: &Master, files: &[(&str, &str)], entrypoint: &str) -> Task {
        self.offered(master, files, entrypoint, Some(self.standby().unwrap()))
    }

    fn offered(
        &self,
        master: &Master,
        files: &[(&str, &str)],
        entrypoint: &str,
        standby: Option<OwnedFd>,
    ) -> Task {
        let mut task = Task::shell(master, entrypoint);
        master.answer(super::CONTEXT_PATH, 200, super::context(files));
        task.script.context = true;
        task.spec.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        task.spec.python_dir = Some(self.bin().to_str().unwrap().into());
        task.spec.exposed = vec![self.home.path().to_owned()];
        let real = self.python.canonicalize().unwrap();
        let base = real.parent().and_then(Path::parent).unwrap();
        task.spec.exposed.push(base.to_owned());
        // Where the interpreter is in the home directory of root, that is covered, as it is for tasks of agents.
        task.spec.guard.homes = vec!["/root".into()];
        task.spec.warm = Some(WarmPython {
            interpreter: self.python.clone(),
            callers: Vec::new(),
            env: self.env.clone(),
        });
        task.spec.user = TaskUser {
            user: "nobody".into(),
            uid: 65534,
            group: "nogroup".into(),
            gid: 65534,
        };
        task.standby = standby;
        task
    }

    fn bin(&self) -> &Path {
        self.python.parent().unwrap()
    }

    fn run(&self, files: &[(&str, &str)], entrypoint: &str) -> (EndedTask, Vec<String>) {
        let master = Master::start();
        let ended = self.task(&master, files, entrypoint).run();
        (ended, master.lines())
    }
}

macro_rules! template {
    () => {
        match Template::start() {
            Some(template) => template,
            None => return,
        }
    };
}

fn seen(ended: &EndedTask, name: &str) -> Value {
    let path = ended.dir.path().join("run/workdir").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; {}", path.display(), ended.notes());
    });
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_first_program_has_modules_that_another_process_imported() {
    need_sandbox!();
    let template = template!();
    let (ended, lines) = template.run(
        &[("report.py", REPORT)],
        "export DET_DEBUG=true; python3 report.py; python3 report.py; python3 -c 'import report'",
    );
    let reported: Vec<&String> = lines
        .iter()
        .filter(|line| !line.contains("starts cold"))
        .collect();
    assert_eq!(
        reported,
        ["warm", "cold", "cold"],
        "{lines:?} {}",
        ended.notes()
    );
}

#[test]
fn nothing_but_that_differs_from_a_cold_start() {
    need_sandbox!();
    let template = template!();
    let script = "export DET_DEBUG=true; umask 027; ulimit -n 512; export FOO=bar; trap '' USR1; python3 CALL";
    for call in ["probe.py", "-u probe.py", "-m probe", "./sub/../probe.py"] {
        let files = [("probe.py", PROBE), ("sub/x", ""), ("report.py", REPORT)];
        let both = ["warm.json", "cold.json"]
            .map(|file| script.replace("CALL", &format!("{call} {file} 'a b'")));
        let (ended, lines) = template.run(&files, &format!("({}); ({})", both[0], both[1]));
        let cold_starts = lines.iter().filter(|line| line.contains("starts cold"));
        assert_eq!(cold_starts.count(), 1, "{call}: {lines:?}");
        let (mut warm, mut cold) = (seen(&ended, "warm.json"), seen(&ended, "cold.json"));
        if call.starts_with("-m") {
            // Below those of a module there is one of ours, as docs/configuration.md has it.
            let frames = warm["frames"].as_array_mut().unwrap();
            assert_eq!(frames.pop().unwrap()[1], "run_module", "{frames:?}");
        }
        for (seen, name) in [(&mut warm, "warm.json"), (&mut cold, "cold.json")] {
            let text = seen.to_string().replace(name, "FILE");
            *seen = serde_json::from_str(&text).unwrap();
        }
        let (warm_map, cold_map) = (warm.as_object().unwrap(), cold.as_object().unwrap());
        for (key, value) in cold_map {
            assert_eq!(&warm_map[key], value, "{call}: {key} {lines:?}");
        }
        let random = ["warm.json.random", "cold.json.random"].map(|file| seen(&ended, file));
        assert_ne!(random[0], random[1]);
    }
}

/// Ends in the way that its argument names.
const END: &str = "import atexit, os, signal, sys, threading
import det_warm
atexit.register(lambda: print('at exit', flush=True))
def end(how):
    if how == 'raise': raise ValueError('odd')
    if how == 'interrupt': raise KeyboardInterrupt
    if how == 'text': sys.exit('a text')
    if how == 'thread': threading.Timer(0.1, lambda: print('of the thread')).start()
    if how == 'term': os.kill(os.getpid(), signal.SIGTERM)
    if how == 'segv': os.kill(os.getpid(), signal.SIGSEGV)
    if how.isdigit(): sys.exit(int(how))
end(sys.argv[1])
";

#[test]
fn programs_end_as_they_end_after_a_cold_start() {
    need_sandbox!();
    let template = template!();
    for how in [
        "0",
        "7",
        "300",
        "text",
        "raise",
        "interrupt",
        "thread",
        "term",
        "segv",
    ] {
        for call in ["end.py", "-m end"] {
            let line = format!("exec python3 {call} {how}");
            let ended = [true, false].map(|is_warm| {
                let master = Master::start();
                let standby = is_warm.then(|| template.standby().unwrap());
                let ended = template
                    .offered(&master, &[("end.py", END)], &line, standby)
                    .run();
                // They come through two pipes.
                let mut lines = master.lines();
                lines.sort();
                (ended.exit(), lines)
            });
            assert_eq!(ended[0], ended[1], "{call} {how}");
        }
    }
}

/// A program that reports how it was started, waits, and ends by itself at SIGTERM.
const WAIT: &str = "import os, signal, sys, time
import det_warm
def stop(*_):
    os.write(1, b'saving\\n')
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print('cold' if det_warm.IS_INSIDE else 'warm', 'ready', flush=True)
while True: time.sleep(0.01)
";

/// Waits until no standby of the template is left.
fn wait_for_standbys(template: &Template) {
    let pid = template.child.id();
    wait_for("the end of all standbys", || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.trim().is_empty().then_some(())
    });
}

#[test]
fn a_warm_program_is_asked_to_end_and_killed_as_others() {
    need_sandbox!();
    let template = template!();
    for entrypoint in ["python3 wait.py; exit $?", "exec python3 -u wait.py"] {
        let master = Master::start();
        let task = template
            .task(&master, &[("wait.py", WAIT)], entrypoint)
            .start();
        master.wait_for_line("warm ready");
        task.signal(Signal::SIGTERM);
        let ended = task.wait();
        assert_eq!(
            ended.exit(),
            if entrypoint.starts_with("exec") {
                exited(3)
            } else {
                ended.exit()
            }
        );
        assert!(
            master.lines().contains(&"saving".to_owned()),
            "{:?}",
            master.lines()
        );
        let master = Master::start();
        let task = template
            .task(&master, &[("wait.py", WAIT)], entrypoint)
            .start();
        master.wait_for_line("warm ready");
        task.signal(Signal::SIGQUIT);
        super::assert_ended_from_outside(&task.wait().exit(), "signal 9");
        wait_for_standbys(&template);
    }
}

#[test]
fn a_warm_program_outlives_the_template() {
    need_sandbox!();
    let mut template = template!();
    let master = Master::start();
    let task = template
        .task(&master, &[("wait.py", WAIT)], "exec python3 wait.py")
        .start();
    master.wait_for_line("warm ready");
    template.child.kill().unwrap();
    template.child.wait().unwrap();
    task.signal(Signal::SIGTERM);
    assert_eq!(task.wait().exit(), exited(3));
    assert_eq!(master.lines(), ["warm ready", "saving"]);
}

#[test]
fn a_standby_that_is_not_used_ends_with_its_task_and_one_without_a_task_at_once() {
    need_sandbox!();
    let template = template!();
    let (ended, lines) = template.run(&[("x", "")], "echo no Python");
    assert_eq!(
        (ended.exit(), lines),
        (exited(0), vec!["no Python".to_owned()])
    );
    drop(template.standby().unwrap());
    wait_for_standbys(&template);
}

#[test]
fn programs_that_would_be_different_ones_start_cold() {
    need_sandbox!();
    let template = template!();
    let own = "IS_INSIDE = True\n";
    let cases: [(&[(&str, &str)], &str); 7] = [
        (&[("det_warm.py", own)], "python3 report.py"),
        (
            &[("sub/det_warm/__init__.py", own)],
            "PYTHONPATH=sub python3 report.py",
        ),
        (
            &[("sitecustomize.py", "")],
            "PYTHONPATH=. python3 report.py",
        ),
        (&[], "OMP_NUM_THREADS=1 python3 report.py"),
        (&[], "PYTHONHASHSEED=0 python3 report.py"),
        (&[], "python3 -X dev report.py"),
        (&[], "python3 -I report.py"),
    ];
    for (files, line) in cases {
        let files: Vec<_> = files
            .iter()
            .copied()
            .chain([("report.py", REPORT)])
            .collect();
        // The one that starts cold leaves the warm process for the next.
        let (_, lines) = template.run(
            &files,
            &format!("{line}; cp report.py /tmp; cd /tmp; exec python3 report.py"),
        );
        assert_eq!(lines, ["cold", "warm"], "{line}");
    }
    let (_, lines) = template.run(
        &[("report.py", REPORT)],
        "export DET_DEBUG=true; OMP_NUM_THREADS=1 python3 report.py",
    );
    let reason = "OMP_NUM_THREADS is read at the start";
    assert!(lines.iter().any(|line| line.contains(reason)), "{lines:?}");
}

#[test]
fn hooks_start_cold_and_the_entrypoint_warm_with_what_they_have_set() {
    need_sandbox!();
    let template = template!();
    let files = [
        ("report.py", REPORT),
        (
            "startup-hook.sh",
            "python3 report.py; export WORD=set; umask 077\n",
        ),
    ];
    let (_, lines) = template.run(&files, "python3 report.py; echo $WORD $(umask)");
    assert_eq!(lines, ["cold", "warm", "set 0077"]);
}

/// Uses processes and threads of its own.
const PARALLEL: &str = "import multiprocessing, sys, det_warm
from concurrent.futures import ThreadPoolExecutor
def square(number): return number * number
if __name__ == '__main__':
    for kind in 'fork', 'spawn', 'forkserver':
        with multiprocessing.get_context(kind).Pool(2) as pool: print(kind, pool.map(square, range(3)))
    with ThreadPoolExecutor() as pool: print(*pool.map(square, range(3)))
    print('cold' if det_warm.IS_INSIDE else 'warm', flush=True)
";

#[test]
fn a_warm_program_has_processes_and_threads() {
    need_sandbox!();
    let template = template!();
    let (ended, lines) = template.run(&[("parallel.py", PARALLEL)], "python3 parallel.py");
    let expected = [
        "fork [0, 1, 4]",
        "spawn [0, 1, 4]",
        "forkserver [0, 1, 4]",
        "0 1 4",
        "warm",
    ];
    assert_eq!(lines, expected, "{:?}", ended.exit());
}

#[test]
fn programs_of_the_interpreters_owner_start_cold() {
    need_sandbox!();
    let template = template!();
    let master = Master::start();
    let files = [("report.py", REPORT)];
    let mut task = template.task(&master, &files, "python3 report.py");
    (task.spec.user.uid, task.spec.user.gid) = (0, 0);
    task.spec.guard.homes.clear();
    let ended = task.run();
    assert_eq!(master.lines(), ["cold"], "{}", ended.notes());
    assert!(
        ended.notes().contains("belongs to the task's user"),
        "{}",
        ended.notes()
    );
}

#[test]
fn an_agent_that_is_not_root_starts_warm_too() {
    need_sandbox!();
    let Some(template) = Template::start_as(Some(UID)) else {
        return;
    };
    let master = Master::start();
    let files = [("report.py", REPORT), ("probe.py", PROBE)];
    let line = "python3 probe.py seen.json && cp seen.json first.json && python3 probe.py seen.json; python3 report.py";
    let mut task = template.task(&master, &files, line).agent_uid(UID);
    task.spec.user = TaskUser::default();
    // Nor can it cover that.
    task.spec.guard.homes.clear();
    let ended = task.run();
    if is_refused(&ended.exit()) {
        return skip(&format!("{:?}", ended.exit()));
    }
    assert_eq!(master.lines(), ["cold"], "{}", ended.notes());
    let (warm, cold) = (seen(&ended, "first.json"), seen(&ended, "seen.json"));
    for (key, value) in cold.as_object().unwrap() {
        assert_eq!(&warm[key], value, "{key}");
    }
}

/// An account that owns nothing.
const UID: u32 = 54_321;
