//! The processes of the task, and their output.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use det_spool::{LogLevel, LogStream};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpid};

use crate::collect::{self, Source};
use crate::environment::TaskEnv;
use crate::failure::{SetupError, thread_failed};
use crate::launch::GateKey;
use crate::log::Log;
use crate::ready::Readiness;
use crate::report::Diagnostics;
use crate::signals;
use crate::tail::Tail;

/// What runs concurrently with a child process.
struct Output {
    collector: JoinHandle<()>,
    /// Dropped to notify the collector that the child has ended; a byte announces a key.
    control: PipeWriter,
    /// The key of the gate between hooks and entrypoint.
    gate: Sender<GateKey>,
}

/// What a process of the task is at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// It runs the hooks and waits at the gate, and then becomes the entrypoint.
    AsHooks,
    /// It is the entrypoint from the start.
    AsEntrypoint,
}

/// Starts and signals the processes of the task, and brings their output into its log.
pub(crate) struct Processes {
    log: Log,
    diagnostics: Diagnostics,
    output: Option<Output>,
    /// Named pipes for workers, until they are passed to the collector.
    fifos: Vec<Source>,
    /// Watches the output, until it is passed to the collector.
    readiness: Option<Readiness>,
    /// The end of the output.
    pub(crate) tail: Tail,
}

impl Processes {
    pub(crate) fn new(
        run_dir: &Path,
        log: Log,
        readiness: Option<Readiness>,
        diagnostics: Diagnostics,
    ) -> Self {
        Self {
            fifos: worker_pipes(run_dir, &diagnostics),
            log,
            diagnostics,
            output: None,
            readiness,
            tail: Tail::default(),
        }
    }

    /// Sends a signal to the process group of `pid`.
    pub(crate) fn signal(&self, pid: Pid, signal: Signal) {
        // The group may have ended a moment ago.
        match killpg(pid, signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => self
                .diagnostics
                .note(format!("could not send {signal} to the task: {error}")),
        }
    }

    /// Starts a process of the task in a group of its own, and the thread that reads its output.
    pub(crate) fn start(
        &mut self,
        env: &TaskEnv,
        argv: &[OsString],
        begins: Begins,
    ) -> Result<Pid, SetupError> {
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| SetupError::task("the entrypoint is empty"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(&env.vars)
            .current_dir(&env.work_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        signals::reset(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| self.spawn_failed(program, env, &error))?;
        let mut sources = std::mem::take(&mut self.fifos);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        sources.extend(stdout.map(|fd| Source::pipe(fd, LogStream::Stdout)));
        sources.extend(stderr.map(|fd| Source::pipe(fd, LogStream::Stderr)));
        let (reader, control) = io::pipe().map_err(thread_failed)?;
        let (gate, key) = mpsc::channel();
        let collector = collect::start(
            sources,
            (reader, (begins == Begins::AsHooks).then_some(key)),
            self.log.clone(),
            (self.readiness.take(), self.tail.clone()),
            self.diagnostics.clone(),
        )
        .map_err(thread_failed)?;
        self.output = Some(Output {
            collector,
            control,
            gate,
        });
        // The caller waits for it, together with everything else that ends here.
        Ok(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)))
    }

    /// Lets the hooks' shell become the entrypoint, once the collector has read what the hooks have written: only what comes
    /// after that is output of the entrypoint.
    pub(crate) fn open_gate(&mut self, key: GateKey) {
        let Some(output) = &mut self.output else {
            return;
        };
        let sent = output.gate.send(key).map_err(io::Error::other);
        if let Err(error) = sent.and_then(|()| output.control.write_all(b"g")) {
            self.diagnostics
                .note(format!("could not open the start gate: {error}"));
        }
    }

    /// Why the entrypoint did not start. Where it was looked for is in the log alone: the reason is shown in lists.
    fn spawn_failed(&self, program: &OsStr, env: &TaskEnv, error: &io::Error) -> SetupError {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let is_name = !program.as_bytes().contains(&b'/');
        let path = env.path();
        self.log.add_message(
            LogLevel::Info,
            &format!(
                "PATH is {}, and the working directory is {}",
                path.to_string_lossy(),
                env.work_dir.display()
            ),
        );
        SetupError::Task {
            code: if is_missing { 127 } else { 126 },
            message: if is_missing && is_name {
                format!(
                    "could not start the entrypoint {program:?}: there is no such program on PATH"
                )
            } else {
                format!("could not start the entrypoint {program:?}: {error}")
            },
        }
    }

    /// Reads the rest of the output, and kills processes that the entrypoint left behind.
    pub(crate) fn drain(&mut self, child: Option<Pid>) {
        self.log.begin_drain();
        if let Some(output) = self.output.take() {
            let Output {
                collector, control, ..
            } = output;
            drop(control);
            if collector.join().is_err() {
                self.diagnostics
                    .note("the reader of the task's output failed; this is a bug");
            }
        }
        let Some(child) = child else { return };
        self.signal(child, Signal::SIGKILL);
        // For the first process of a process namespace, -1 means all processes of the container.
        if getpid() == Pid::from_raw(1) {
            match kill(Pid::from_raw(-1), Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => self
                    .diagnostics
                    .note(format!("could not end what the task left behind: {error}")),
            }
        }
    }
}

/// The named pipes through which workers write without their launchers. Without named pipes only their ranks in the log
/// are missing.
fn worker_pipes(run_dir: &Path, diagnostics: &Diagnostics) -> Vec<Source> {
    let logs = run_dir.join("train/logs");
    let pipes = [
        ("stdout.log", LogStream::Stdout),
        ("stderr.log", LogStream::Stderr),
    ];
    let made: io::Result<Vec<Source>> = pipes
        .into_iter()
        .map(|(name, stdtype)| Source::fifo(&logs.join(name), stdtype))
        .collect();
    made.unwrap_or_else(|error| {
        diagnostics.note(format!(
            "could not create the named pipes in {logs:?}: {error}"
        ));
        Vec::new()
    })
}
