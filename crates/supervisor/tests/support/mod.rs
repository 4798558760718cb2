//! A fake master that records requests, and tasks to run against it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use det_taskspec::guard::HostGuard;
use det_taskspec::sandbox::{
    EntrypointStart, ExitReport, IsolationRow, SANDBOX_FILE, STANDBY_VARIABLE, SandboxSpec,
};
use det_taskspec::{ContainerExit, Entrypoint, Mount, Script, TaskUser};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The longest wait for a condition; a test that waits this long has failed.
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until `condition` returns a value.
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A request that the master received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    pub(crate) body: Value,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Request>,
    /// Log records by sequence number: duplicates count once, as in the real master.
    log: BTreeMap<u64, Value>,
    repeated: usize,
    answers: BTreeMap<String, (u16, Value)>,
    /// Number of the next log requests that are stored but not answered.
    lose_answers: usize,
}

/// A master for one task.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Master {
    /// Starts a master that answers.
    pub(crate) fn start() -> Self {
        // Bound once: between two times another process may take the port.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = Self {
            port: listener.local_addr().unwrap().port(),
            state: Arc::default(),
        };
        master.accept(listener);
        master
    }

    /// A master that refuses connections until [`Self::become_reachable`].
    pub(crate) fn unreachable() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            port: listener.local_addr().unwrap().port(),
            state: Arc::default(),
        }
    }

    /// Starts to accept connections.
    pub(crate) fn become_reachable(&self) {
        self.accept(TcpListener::bind(("127.0.0.1", self.port)).unwrap());
    }

    fn accept(&self, listener: TcpListener) {
        let master = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let master = master.clone();
                thread::spawn(move || master.serve(stream));
            }
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the response for `path`.
    pub(crate) fn answer(&self, path: &str, status: u16, body: Value) {
        let mut state = self.state.0.lock().unwrap();
        state.answers.insert(path.to_owned(), (status, body));
    }

    pub(crate) fn lose_answers(&self, count: usize) {
        self.state.0.lock().unwrap().lose_answers = count;
    }

    /// Number of records that were received more than once.
    pub(crate) fn repeated(&self) -> usize {
        self.state.0.lock().unwrap().repeated
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.0.lock().unwrap().requests.clone()
    }

    pub(crate) fn request(&self, path: &str) -> Option<Request> {
        self.requests()
            .into_iter()
            .find(|request| request.path == path)
    }

    /// The log so far, in order.
    pub(crate) fn log(&self) -> Vec<Value> {
        let state = self.state.0.lock().unwrap();
        for (expected, sequence) in (1..).zip(state.log.keys()) {
            assert_eq!(*sequence, expected, "there is a gap");
        }
        state.log.values().cloned().collect()
    }

    /// The text of the log so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.log().iter().map(text).collect()
    }

    /// Waits for a line that contains `needle`, and gives its record.
    pub(crate) fn wait_for_line(&self, needle: &str) -> Value {
        wait_for(&format!("a line with {needle:?}"), || {
            self.log()
                .into_iter()
                .find(|record| text(record).contains(needle))
        })
    }

    fn serve(&self, stream: TcpStream) {
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader) {
            let Some((status, body)) = self.handle(request) else {
                return;
            };
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            if writer.write_all((head + &body).as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Handles a request; `None` = close the connection without a response.
    fn handle(&self, request: Request) -> Option<(u16, Value)> {
        let mut state = self.state.0.lock().unwrap();
        let path = request.path.clone();
        let body = request.body.clone();
        state.requests.push(request);
        if let Some((status, answer)) = state.answers.get(&path) {
            return Some((*status, answer.clone()));
        }
        if path == "/api/v1/task/logs" {
            let first = body["spool"]["first"].as_u64().unwrap();
            let records = body["logs"].as_array().unwrap();
            assert!(!records.is_empty() && records.len() <= det_spool::MAX_BATCH_RECORDS);
            for (sequence, record) in (first..).zip(records) {
                if state.log.insert(sequence, record.clone()).is_some() {
                    state.repeated += 1;
                }
            }
            if state.lose_answers > 0 {
                state.lose_answers -= 1;
                return None;
            }
        }
        Some((200, json!({})))
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut token) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "grpc-metadata-x-allocation-token" => token = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        token,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

/// The text of a record, without the line end that it must have.
fn text(record: &Value) -> String {
    record["log"]
        .as_str()
        .unwrap()
        .strip_suffix('\n')
        .unwrap()
        .to_owned()
}

/// A task to be run in a sandbox.
pub(crate) struct Task {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) spec: SandboxSpec,
    pub(crate) script: Script,
    supervisor: PathBuf,
    agent: Option<u32>,
    /// The supervisor's end of the connection with a standby.
    pub(crate) standby: Option<OwnedFd>,
}

impl Task {
    /// A command that a shell runs as root.
    pub(crate) fn shell(master: &Master, entrypoint: &str) -> Self {
        let env = [
            ("DET_MASTER", master.url().as_str()),
            ("DET_CLUSTER_ID", "k"),
            ("DET_AGENT_ID", "agent-1"),
            ("DET_SLOT_IDS", "[]"),
            ("DET_TASK_ID", "task"),
            ("DET_ALLOCATION_ID", "task.1"),
            ("DET_CONTAINER_ID", "container"),
            ("DET_RESOURCES_ID", "container"),
            ("DET_SESSION_TOKEN", "secret"),
            ("DET_TASK_TYPE", "COMMAND"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            dir: tempfile::tempdir().unwrap(),
            spec: SandboxSpec {
                user: TaskUser::default(),
                shown_ids: None,
                mounts: Vec::new(),
                user_directory: None,
                shm_size_bytes: 1 << 20,
                python_dir: None,
                python_path: None,
                env: Vec::new(),
                devices: Vec::new(),
                guard: HostGuard::default(),
                exposed: Vec::new(),
                notice: None,
                warm: None,
            },
            script: Script {
                task_type: det_taskspec::TaskKind::Command,
                allocation_id: "task.1".into(),
                task_id: "task".into(),
                container_id: "container".into(),
                env: env.to_vec(),
                work_dir: "/run/determined/workdir".into(),
                context: false,
                startup_hook: true,
                pool_startup_hook: None,
                rendezvous: false,
                storage_probe: None,
                entrypoint: Entrypoint::Shell(entrypoint.into()),
                readiness: Vec::new(),
                readiness_port: None,
                idle_check: None,
                system_metrics: None,
                task_metrics: None,
                files: Vec::new(),
                token: "secret".into(),
                grace_seconds: 60,
                save_seconds: None,
            },
            supervisor: env!("CARGO_BIN_EXE_det-supervisor").into(),
            agent: None,
            standby: None,
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.script.env.push((name.into(), value.into()));
        self
    }

    pub(crate) fn mount(mut self, host_path: &Path, container_path: &str, read_only: bool) -> Self {
        self.spec.mounts.push(Mount {
            host_path: host_path.to_str().unwrap().into(),
            container_path: container_path.into(),
            read_only,
            propagation: "rprivate".into(),
            create: false,
            trusted: false,
            shared: None,
        });
        self
    }

    /// Has the supervisor, a file of that user's, started by a user who is not root.
    pub(crate) fn agent_uid(mut self, uid: u32) -> Self {
        let path = self.dir.path().join("det-supervisor");
        fs::copy(&self.supervisor, &path).unwrap();
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).unwrap();
        self.supervisor = path;
        self.agent = Some(uid);
        self
    }

    /// The result of `det-supervisor check` for this task's sandbox.
    pub(crate) fn check(&self, dir: &Path) -> Vec<IsolationRow> {
        fs::create_dir(dir.join("run")).unwrap();
        fs::write(
            dir.join(SANDBOX_FILE),
            serde_json::to_vec(&self.spec).unwrap(),
        )
        .unwrap();
        fs::write(
            dir.join("run/task.json"),
            serde_json::to_vec(&self.script).unwrap(),
        )
        .unwrap();
        let output = Command::new(&self.supervisor)
            .arg("check")
            .arg(dir)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    pub(crate) fn start(self) -> RunningTask {
        let run_dir = self.dir.path().join("run");
        fs::create_dir(&run_dir).unwrap();
        let files = [
            (
                self.dir.path().join(SANDBOX_FILE),
                serde_json::to_vec(&self.spec).unwrap(),
            ),
            (
                run_dir.join("task.json"),
                serde_json::to_vec(&self.script).unwrap(),
            ),
        ];
        for (path, content) in &files {
            fs::write(path, content).unwrap();
        }
        let mut command = Command::new(&self.supervisor);
        if let Some(uid) = self.agent {
            for path in [self.dir.path(), &run_dir, &files[0].0, &files[1].0] {
                std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
            }
            std::os::unix::process::CommandExt::uid(&mut command, uid);
            std::os::unix::process::CommandExt::gid(&mut command, uid);
        }
        command
            .arg("sandbox")
            .arg(self.dir.path())
            // It must not reach the task.
            .env("AGENT_SECRET", "do-not-tell")
            .stdin(Stdio::null());
        if let Some(standby) = &self.standby {
            inherit(&mut command, standby);
        }
        let child = loop {
            match command.spawn() {
                // A process that another test starts has the copy open for writing until its program runs.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                spawned => break spawned.unwrap(),
            }
        };
        RunningTask {
            dir: self.dir,
            child: Supervisor(child),
        }
    }

    /// Runs the task to its end.
    pub(crate) fn run(self) -> EndedTask {
        self.start().wait()
    }
}

/// Leaves the connection with a standby to the supervisor, as an agent does.
#[expect(
    unsafe_code,
    reason = "descriptors are closed by `exec` unless their flag is changed between fork and exec"
)]
fn inherit(command: &mut Command, standby: &OwnedFd) {
    let number = standby.as_raw_fd();
    command.env(STANDBY_VARIABLE, number.to_string());
    // SAFETY: the closure only makes a system call that is safe after a fork, on a descriptor that stays open.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, move || {
            let descriptor = BorrowedFd::borrow_raw(number);
            nix::fcntl::fcntl(
                descriptor,
                nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
            )?;
            Ok(())
        });
    }
}

/// A task that runs.
pub(crate) struct RunningTask {
    pub(crate) dir: tempfile::TempDir,
    child: Supervisor,
}

impl RunningTask {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.0.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// The process inside, of this one's children the only one.
    pub(crate) fn inside(&self) -> Pid {
        let pid = self.child.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("run").join(name)
    }

    /// Lets a task go on that reads a line from this pipe of its working directory. A pipe serves one such line: one that reads
    /// a second from it can find the writer of the first, which has not closed it yet, and then read the end of that.
    pub(crate) fn let_go(&self, pipe: &str) {
        let path = self.file("workdir").join(pipe);
        wait_for("the task to wait", || {
            // Refused, and not waited for, until the task reads: it may have ended.
            let mut opened = fs::OpenOptions::new()
                .write(true)
                .custom_flags(nix::libc::O_NONBLOCK)
                .open(&path)
                .ok()?;
            opened.write_all(b"\n").ok()
        });
    }

    pub(crate) fn wait(mut self) -> EndedTask {
        let status = wait_for("the end of the supervisor", || {
            self.child.0.try_wait().unwrap()
        });
        EndedTask {
            dir: self.dir,
            status,
        }
    }
}

/// The process of a task. One that a test has left behind, since it failed, is ended: it has the output of the test open, of
/// which a reader waits for the end.
struct Supervisor(Child);

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// A task that has ended.
pub(crate) struct EndedTask {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) status: ExitStatus,
}

impl EndedTask {
    /// The exit report; checks that the supervisor's own status agrees.
    pub(crate) fn exit(&self) -> ContainerExit {
        let report: ExitReport = self
            .json("exit.json")
            .unwrap_or_else(|| panic!("no exit report; {:?}; {}", self.status, self.notes()));
        let status = match &report.exit {
            ContainerExit::Exited { code } | ContainerExit::SetupFailed { code, .. } => *code,
            ContainerExit::Signaled { signal, .. } => 128 + signal,
            _ => 1,
        };
        assert_eq!(
            self.status.into_raw() >> 8,
            status,
            "{report:?}; {}",
            self.notes()
        );
        report.exit
    }

    pub(crate) fn started(&self) -> EntrypointStart {
        self.json("started.json").unwrap()
    }

    /// The supervisor's messages for operators.
    pub(crate) fn notes(&self) -> String {
        ["sandbox.log", "run/supervisor.log"]
            .map(|name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default())
            .concat()
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = fs::read(self.dir.path().join("run").join(name)).ok()?;
        Some(serde_json::from_slice(&bytes).unwrap())
    }
}

/// Whether this machine allows the tests to build sandboxes; prints a message if it does not.
pub(crate) fn sandbox_is_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let ended = Task::shell(&Master::start(), "true").run();
        let possible = !is_refused(&ended.exit());
        if !possible {
            skip(&format!("{:?}", ended.exit()));
        }
        possible
    })
}

pub(crate) fn is_refused(exit: &ContainerExit) -> bool {
    matches!(exit, ContainerExit::StartFailed { message } if message.contains("build a sandbox"))
}

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// Ends the test if no sandbox can be built.
macro_rules! need_sandbox {
    () => {
        if !support::sandbox_is_possible() {
            return;
        }
    };
}
pub(crate) use need_sandbox;
