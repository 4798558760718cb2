//! Warm starts of Python: a process of the agent's that has imported modules, the *template*, and forks of it for
//! containers.
//!
//! A trial that begins with `import torch` takes seconds for that. The template has done it before. For each container
//! that starts as processes it forks a *standby*, one end of whose connection the container's supervisor inherits; that
//! makes it a member of the sandbox. What happens there is in the two files of Python that the template runs, and in
//! `crates/supervisor/src/warm.rs` and `relay.rs`.
//!
//! The template runs no code of tasks and receives orders from the agent alone. Without it, and whenever anything
//! fails, containers start as they would otherwise.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_taskspec::sandbox::WarmPython;
use det_taskspec::{PYTHON_USER_BASE, WORK_DIR};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::sleep;

use super::process::detach;
use crate::containers::SharedState;
use crate::containers::prepare::passed_on;
use crate::containers::store::RuntimeKind;
use crate::data_dir::{make_private_dir, write_atomically};
use crate::options::WarmStartOptions;
use crate::python::TaskPython;

/// What the template runs: the template itself, and what programs become.
const TEMPLATE: &str = concat!(
    include_str!("warm/template.py"),
    include_str!("warm/program.py")
);
/// What its interpreter is given to run: that file, apart from the main module.
const BEGIN: &str = include_str!("warm/begin.py");
/// Pause before a template that has failed is started again; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// Bytes of a message of the template at most.
const MOST_OF_MESSAGE: usize = 64 << 10;

/// The template, and what supervisors need to know of it.
#[derive(Debug)]
pub(crate) struct WarmStart {
    python: WarmPython,
    imports: Vec<String>,
    dir: PathBuf,
    /// The connection with the template while it is ready.
    template: Mutex<Option<Arc<UnixStream>>>,
}

/// What a template reports.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    /// The modules are imported.
    Ready { resident_bytes: u64, seconds: f64 },
    /// They cannot be, and why.
    Failed(String),
    /// This file is another one than was imported: the template has ended.
    Changed(String),
}

/// How a template has ended.
#[derive(Debug)]
enum End {
    /// It was never ready, and why.
    Failed(String),
    /// It was ready, and this file has changed since.
    Changed(String),
    /// It was ready, and ended without a reason.
    Lost,
}

impl WarmStart {
    fn new(options: &WarmStartOptions, shared: &SharedState, python: &TaskPython) -> Self {
        let bin = shared.data_dir.bin();
        let own = |name: &str| std::env::var(name).ok();
        Self {
            python: WarmPython {
                interpreter: options.python.clone(),
                callers: callers(options, shared.options.python.as_deref(), python, &bin),
                env: environment(python, own),
            },
            imports: options.imports.clone(),
            dir: shared.data_dir.path().join("warm"),
            template: Mutex::default(),
        }
    }

    /// What the supervisor of a container needs to know.
    pub(crate) fn python(&self) -> &WarmPython {
        &self.python
    }

    fn connection(&self) -> MutexGuard<'_, Option<Arc<UnixStream>>> {
        self.template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Orders a standby that enters control groups through these files; gives the end of its connection that is the
    /// supervisor's. `None` = there is none now. Never blocks.
    pub(crate) fn standby(&self, entries: &[File]) -> Option<OwnedFd> {
        let connection = self.connection().clone()?;
        let ordered = order(&connection, entries);
        ordered
            .inspect_err(|error| tracing::debug!(%error, "no standby for this task"))
            .ok()
    }

    /// Starts a template and waits for its end.
    async fn run_template(&self) -> End {
        let (mut child, connection) = match self.start() {
            Ok(started) => started,
            Err(error) => return End::Failed(format!("it cannot be started: {error}")),
        };
        let connection = Arc::new(connection);
        let _guard = ConnectionGuard(self);
        let mut was_ready = false;
        let end = loop {
            match receive(&connection).await {
                Ok(Some(Message::Ready {
                    resident_bytes,
                    seconds,
                })) => {
                    was_ready = true;
                    *self.connection() = Some(connection.clone());
                    tracing::info!(
                        imports = self.imports.join(" "),
                        resident_mib = resident_bytes >> 20,
                        seconds = (seconds * 1000.0).round() / 1000.0,
                        "Python programs of tasks start warm"
                    );
                }
                Ok(Some(Message::Failed(reason))) => break End::Failed(reason),
                Ok(Some(Message::Changed(path))) => break End::Changed(path),
                Ok(None) if was_ready => break End::Lost,
                Ok(None) => {
                    let log = self.log();
                    break End::Failed(format!("it has ended; see {}", log.display()));
                }
                Err(error) => break End::Failed(format!("it cannot be understood: {error}")),
            }
        };
        *self.connection() = None;
        drop(connection);
        // Its last descriptor is closed: it ends. A template that does not is killed with the value.
        let waited = tokio::time::timeout(LONGEST_PAUSE, child.wait()).await;
        tracing::debug!(?waited, "a template of warm starts has ended");
        end
    }

    fn log(&self) -> PathBuf {
        self.dir.join("template.log")
    }

    fn start(&self) -> io::Result<(tokio::process::Child, UnixStream)> {
        let empty = self.dir.join("empty");
        make_private_dir(&empty)?;
        let script = self.dir.join("template.py");
        write_atomically(&script, TEMPLATE.as_bytes(), 0o600)?;
        let log = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(self.log())?;
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let mut command = Command::new(&self.python.interpreter);
        command
            .arg("-c")
            .arg(BEGIN)
            .arg(&script)
            .args(&self.imports)
            .env_clear()
            .envs(self.python.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&empty)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        detach(command.as_std_mut(), Vec::new(), false);
        let child = command.spawn()?;
        Ok((child, UnixStream::from_std(own)?))
    }
}

/// Takes the connection away when the template is not waited for any more.
struct ConnectionGuard<'a>(&'a WarmStart);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        *self.0.connection() = None;
    }
}

/// Keeps a template, where the configuration wants one.
pub(crate) async fn keep(shared: &SharedState) -> Infallible {
    let Some(options) = &shared.options.warm_start else {
        return std::future::pending().await;
    };
    if shared.runtimes.kind != RuntimeKind::Process {
        tracing::warn!(
            "\"warm_start\" of the agent's configuration is for tasks that are processes; these run in containers, and start \
             cold"
        );
        return std::future::pending().await;
    }
    let python = shared.task_python().await;
    let warm = shared
        .warm
        .get_or_init(|| WarmStart::new(options, shared, python));
    let mut pause = FIRST_PAUSE;
    let mut is_reported = false;
    loop {
        match warm.run_template().await {
            End::Changed(path) => {
                tracing::info!(
                    path,
                    "a module of warm starts has changed, and is imported again"
                );
                (pause, is_reported) = (FIRST_PAUSE, false);
            }
            End::Lost => {
                tracing::warn!(
                    "the process with the modules of warm starts has ended; it is started again"
                );
                (pause, is_reported) = (FIRST_PAUSE, false);
            }
            End::Failed(reason) if is_reported => {
                tracing::debug!("tasks still start cold: {reason}");
            }
            End::Failed(reason) => {
                tracing::warn!(
                    interpreter = %options.python.display(),
                    "tasks start cold, since the modules of \"warm_start\" cannot be imported: {reason}"
                );
                is_reported = true;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Files of the agent that call the interpreter for tasks.
fn callers(
    options: &WarmStartOptions,
    configured: Option<&Path>,
    python: &TaskPython,
    bin: &Path,
) -> Vec<PathBuf> {
    let dir = python.dir.as_deref().map(Path::new);
    let is_shim = dir.is_some_and(|dir| dir.starts_with(bin));
    match dir {
        Some(dir) if is_shim && configured == Some(&options.python) => vec![dir.join("python3")],
        _ => Vec::new(),
    }
}

/// The environment of the template: as that of tasks, as far as the agent decides it.
fn environment(python: &TaskPython, own: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let mut env = passed_on(own);
    for (name, value) in &mut env {
        if name == "PATH" {
            let first = [Some(format!("{PYTHON_USER_BASE}/bin")), python.dir.clone()];
            let rest = value.split(':').map(str::to_owned);
            let rest = rest.filter(|dir| !first.iter().flatten().any(|own| own == dir));
            let all: Vec<String> = first.iter().flatten().cloned().chain(rest).collect();
            *value = all.join(":");
        }
    }
    // As most tasks have them: `HOME` is that of accounts without a home directory.
    env.push(("HOME".to_owned(), WORK_DIR.to_owned()));
    env.push(("PYTHONUSERBASE".to_owned(), PYTHON_USER_BASE.to_owned()));
    env
}

fn order(template: &UnixStream, entries: &[File]) -> io::Result<OwnedFd> {
    let (own, other) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    let descriptors: Vec<RawFd> = std::iter::once(other.as_raw_fd())
        .chain(entries.iter().map(std::os::fd::AsRawFd::as_raw_fd))
        .collect();
    sendmsg::<()>(
        template.as_raw_fd(),
        &[IoSlice::new(b"{\"fork\": true}\n")],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(own)
}

/// The next message; `None` = the template has ended.
async fn receive(template: &UnixStream) -> io::Result<Option<Message>> {
    let mut text = Vec::new();
    while text.last() != Some(&b'\n') {
        template.readable().await?;
        let mut buffer = [0; 4096];
        match template.try_read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => text.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error),
        }
        if text.len() > MOST_OF_MESSAGE {
            return Err(io::Error::other("it reports more than it should"));
        }
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as Stream;

    use nix::sys::socket::{ControlMessageOwned, recvmsg};

    use super::*;

    #[test]
    fn the_modules_are_imported_in_the_environment_of_tasks() {
        let python = TaskPython {
            dir: Some("/opt/bin".to_owned()),
            ..TaskPython::default()
        };
        let own = |name: &str| match name {
            "PATH" => Some("/usr/bin:/opt/bin:/bin".to_owned()),
            "LANG" => Some("C.UTF-8".to_owned()),
            "DET_AGENT_TOKEN" => Some("secret".to_owned()),
            _ => None,
        };
        let env = environment(&python, own);
        let env: Vec<_> = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            env,
            [
                (
                    "PATH",
                    "/run/determined/pythonuserbase/bin:/opt/bin:/usr/bin:/bin"
                ),
                ("LANG", "C.UTF-8"),
                ("HOME", "/run/determined/workdir"),
                ("PYTHONUSERBASE", "/run/determined/pythonuserbase"),
            ]
        );
    }

    #[test]
    fn the_agents_own_script_calls_the_interpreter_that_it_was_made_for() {
        let options = WarmStartOptions {
            python: "/opt/bin/python3.12".into(),
            imports: Vec::new(),
        };
        let shim = TaskPython {
            dir: Some("/data/bin/python".to_owned()),
            ..TaskPython::default()
        };
        let bin = Path::new("/data/bin");
        let of = |configured: &str, python: &TaskPython| {
            callers(&options, Some(Path::new(configured)), python, bin)
        };
        assert_eq!(
            of("/opt/bin/python3.12", &shim),
            [PathBuf::from("/data/bin/python/python3")]
        );
        assert!(of("/usr/bin/python3.11", &shim).is_empty());
        let own = TaskPython {
            dir: Some("/opt/bin".to_owned()),
            ..TaskPython::default()
        };
        assert!(of("/opt/bin/python3.12", &own).is_empty());
    }

    #[tokio::test]
    async fn an_order_brings_the_standby_its_connection_and_its_groups() {
        let (own, template) = Stream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let own = UnixStream::from_std(own).unwrap();
        let entries = [File::open("/dev/null").unwrap()];
        let supervisors = order(&own, &entries).unwrap();
        let mut buffer = [0; 64];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = template.as_raw_fd();
        let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags).unwrap();
        let received: Vec<_> = message.cmsgs().unwrap().collect();
        match received.as_slice() {
            [ControlMessageOwned::ScmRights(descriptors)] => assert_eq!(descriptors.len(), 2),
            other => panic!("{other:?}"),
        }
        drop(supervisors);
        // A template that does not answer is none.
        drop(template);
        assert!(order(&own, &entries).is_err());
    }

    #[tokio::test]
    async fn what_a_template_reports_is_read_line_by_line() {
        let (mut template, own) = Stream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let own = UnixStream::from_std(own).unwrap();
        let line = b"{\"ready\": {\"resident_bytes\": 7, \"seconds\": 0.5}}\n";
        io::Write::write_all(&mut template, line).unwrap();
        match receive(&own).await.unwrap() {
            Some(Message::Ready { resident_bytes, .. }) => assert_eq!(resident_bytes, 7),
            other => panic!("{other:?}"),
        }
        io::Write::write_all(&mut template, b"nothing of the kind\n").unwrap();
        assert!(receive(&own).await.is_err());
        drop(template);
        assert!(receive(&own).await.unwrap().is_none());
    }
}
