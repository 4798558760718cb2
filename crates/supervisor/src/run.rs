//! `det-supervisor run`: runs one task, from its script to its exit report.
//!
//! One thread decides and receives [`Event`]s from a channel; other threads wait: for signals, the set-up, the gate
//! after the hooks, the rendezvous, the task's output, the master.

mod inputs;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use det_spool::{BatchIds, DEFAULT_CAPACITY_BYTES, LogLevel};
use det_taskspec::diagnosis::DIAGNOSE_SIGNAL;
use det_taskspec::pods::TERMINATION_MESSAGE;
use det_taskspec::sandbox::{
    CANNOT_REPORT, DIAGNOSTICS_FILE, EntrypointStart, SandboxSpec, Stages,
};
use det_taskspec::{
    CheckedMount, ContainerExit, Entrypoint, ExitCause, RUN_DIR, SPOOL_DIR, variables as v,
};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroup;
use crate::clock::now_micros;
use crate::diagnosis::Doctor;
use crate::environment::TaskEnv;
use crate::failure::{SetupError, chain, service_failure, thread_failed};
use crate::idle;
use crate::info::{self, Rendezvous};
use crate::launch::{Gate, GateKey, Launch};
use crate::log::Log;
use crate::master::{Address, Master};
use crate::metrics::{MetricSubject, MetricsCollection};
use crate::mounts;
use crate::preempt;
use crate::processes::{Begins, Processes};
use crate::ready::Readiness;
use crate::report::{self, Diagnostics, TerminationMessage};
use crate::setup::{self, PreparedTask, Setup};
use crate::ship::{Route, Shipper};
use crate::warm;

use inputs::{facts, forward_control, forward_signals, read_script, spawn, thread};

/// Time after which the task's log reports that the task waits for its other containers.
const RENDEZVOUS_WARNING: Duration = Duration::from_mins(10);
/// How long shipping may continue after the task's end, unless `DET_LOG_WAIT_TIME` is set.
const LOG_WAIT: Duration = Duration::from_secs(30);
/// Longest that can be asked for: a container that waits keeps its slots.
const LONGEST_LOG_WAIT: Duration = Duration::from_mins(15);
/// Pause before a failed write of the exit report is tried again.
const REPORT_AGAIN: Duration = Duration::from_millis(200);
/// Reading what is left of the output takes a second at most; this is for a disk that is slower than that.
const SHIP_SLACK: Duration = Duration::from_millis(200);

/// Signals that end a program that is asked to end and does not handle that.
const ENDING: [i32; 2] = [Signal::SIGTERM as i32, Signal::SIGKILL as i32];

/// What the supervisor process gets when it starts.
pub(crate) struct ProcessContext {
    /// The environment of the image, or what replaces it.
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// The sandbox around it, if it has built one.
    pub(crate) sandbox: Option<SandboxSpec>,
    /// Pipe on which the process outside the sandbox sends signal numbers; if it closes, this process ends.
    pub(crate) control: Option<Stdin>,
    /// Whether the task shares its host's network, which other hosts reach.
    pub(crate) shares_network: bool,
    /// What must be mounted in the container; empty in a sandbox, which has mounted it itself.
    pub(crate) mounts: Vec<CheckedMount>,
    /// Times of the stages before this process started.
    pub(crate) stages: Stages,
}

/// Runs the task to its end, reports, ships the log, and returns the exit status.
pub(crate) fn run(context: ProcessContext) -> ExitCode {
    let reporter = Reporter {
        message: TerminationMessage::of(&context.env),
        run_dir: PathBuf::from(RUN_DIR),
        diagnostics: Diagnostics::to_file(&Path::new(RUN_DIR).join(DIAGNOSTICS_FILE)),
    };
    if let Err(error) = report::reserve(&reporter.run_dir) {
        let note = format!("could not keep space for the exit report: {error}");
        reporter.diagnostics.note(note);
    }
    let task = match Task::begin(context, &reporter.run_dir, &reporter.diagnostics) {
        Ok(task) => task,
        Err(error) => {
            reporter.diagnostics.note(&error);
            return reporter.report(&error.into_exit(), None, LOG_WAIT);
        }
    };
    let (log, shipper, patience) = (
        task.log.clone(),
        task.shipper.take(),
        log_wait(&task.setup.env),
    );
    let (exit, cause, measuring) = task.run_to_end();
    let status = reporter.report(&exit, cause.as_ref(), patience);
    log.close(patience);
    if let Some(shipper) = shipper {
        shipper.wait(patience + SHIP_SLACK);
    }
    if let Some(measuring) = measuring {
        measuring.wait();
    }
    status
}

/// Where the end of the task is reported.
struct Reporter {
    /// The file from which Kubernetes takes the message about the end; `None` = the task runs in no pod.
    message: Option<TerminationMessage>,
    run_dir: PathBuf,
    diagnostics: Diagnostics,
}

impl Reporter {
    /// Writes the exit report. On a full disk it is tried again for `patience`: without a report the task's end is unknown,
    /// and it would be started again.
    fn report(
        &self,
        exit: &ContainerExit,
        cause: Option<&ExitCause>,
        patience: Duration,
    ) -> ExitCode {
        let report = report::exit_report(exit, cause);
        let written = self.message.as_ref().map(|message| message.write(&report));
        if let Some(Err(error)) = written {
            let note = format!("could not write the termination message: {error}");
            self.diagnostics.note(note);
        }
        let deadline = Instant::now() + patience;
        let mut is_noted = false;
        while let Err(error) = report::write_exit(&self.run_dir, &report) {
            if !is_noted {
                let note = format!("could not write the exit report: {error}");
                self.diagnostics.note(note);
                is_noted = true;
            }
            // Nothing can be left for the agent, which knows this status.
            if error.kind() == io::ErrorKind::PermissionDenied {
                return ExitCode::from(CANNOT_REPORT);
            }
            if !report::is_full(&error) || Instant::now() + REPORT_AGAIN > deadline {
                break;
            }
            std::thread::sleep(REPORT_AGAIN);
        }
        ExitCode::from(report::exit_status(exit))
    }
}

/// An event of the task.
#[derive(Debug)]
enum Event {
    /// The supervisor received a signal.
    Signal(Signal),
    /// The set-up has ended: the hooks or the entrypoint can start, or not.
    Prepared(Result<PreparedTask, SetupError>),
    /// The hooks have run, and their shell waits.
    HooksDone(GateKey),
    /// The rendezvous of the allocation's containers has ended.
    RendezvousDone(Result<Rendezvous, SetupError>),
    /// The master was asked to preempt the task, since its container is ended from outside; the reason if it does not.
    PreemptionAsked(Result<(), String>),
}

/// The stage of a task.
enum Stage {
    /// Files are written, the context is unpacked and mounts are checked; no process runs yet.
    Preparing,
    /// The shell sources the hooks.
    Hooks { pid: Pid, gate: Gate },
    /// Waiting for the other containers.
    WaitingForRendezvous {
        then: NextStart,
        warn_at: Option<Instant>,
    },
    /// The entrypoint runs.
    Running { pid: Pid },
}

impl Stage {
    /// The process that is a child of the supervisor, if there is one.
    fn child(&self) -> Option<Pid> {
        match self {
            Self::Preparing => None,
            Self::Hooks { pid, .. } | Self::Running { pid } => Some(*pid),
            Self::WaitingForRendezvous { then, .. } => match then {
                NextStart::Start(_) => None,
                NextStart::Open { pid, .. } => Some(*pid),
            },
        }
    }

    /// When the task's log is to report that the stage lasts.
    fn warn_at(&self) -> Option<Instant> {
        match self {
            Self::WaitingForRendezvous { warn_at, .. } => *warn_at,
            Self::Preparing | Self::Hooks { .. } | Self::Running { .. } => None,
        }
    }
}

/// What to start after the rendezvous.
enum NextStart {
    /// Start this program with these arguments.
    Start(Vec<OsString>),
    /// Open the gate for the shell.
    Open { pid: Pid, key: GateKey },
}

/// Whether the task was asked to end.
enum EndRequest {
    NotAsked,
    /// It is to save and exit by itself, and is asked to end at the deadline.
    Saving {
        end_at: Instant,
    },
    /// It was asked to end, and is killed at the deadline.
    Asked {
        kill_at: Instant,
    },
    Killed,
}

impl EndRequest {
    /// When the next step follows.
    fn due(&self) -> Option<Instant> {
        match self {
            Self::Saving { end_at: at } | Self::Asked { kill_at: at } => Some(*at),
            Self::NotAsked | Self::Killed => None,
        }
    }

    /// Whether this process was asked to end the task. The agent knows whether the master wanted that.
    fn was_asked(&self) -> bool {
        match self {
            Self::NotAsked => false,
            Self::Saving { .. } | Self::Asked { .. } | Self::Killed => true,
        }
    }
}

struct Task {
    setup: Arc<Setup>,
    log: Log,
    processes: Processes,
    shipper: std::cell::Cell<Option<Shipper>>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    stage: Stage,
    ending: EndRequest,
    doctor: Doctor,
    stages: Stages,
    oom_kills_before: Option<u64>,
    /// The measuring of the running code, if it is measured.
    measuring: Option<MetricsCollection>,
}

impl Task {
    /// Reads the script and starts the threads that run concurrently with the task.
    fn begin(
        context: ProcessContext,
        run_dir: &Path,
        diagnostics: &Diagnostics,
    ) -> Result<Self, SetupError> {
        mounts::check_run_dir(&context.mounts)?;
        let script = read_script(run_dir)?;
        let prints = context.env.contains_key(OsStr::new(TERMINATION_MESSAGE));
        let env = TaskEnv::new(context.env, &script, &facts(context.sandbox.as_ref()));
        setup::make_directories(run_dir)?;
        let log = Log::open(
            &run_dir.join(SPOOL_DIR),
            DEFAULT_CAPACITY_BYTES,
            diagnostics.clone(),
            prints,
        )
        .map_err(|error| SetupError::host(chain(&error)))?;
        let notice = context.sandbox.as_ref();
        if let Some(notice) = notice.and_then(|spec| spec.notice.as_deref()) {
            log.add_message(LogLevel::Warning, notice);
        }
        let text = |name: &str| env.text(name).map(str::to_owned);
        let address = Address {
            url: text(v::DET_MASTER).unwrap_or_default(),
            cert_file: text(v::DET_MASTER_CERT_FILE),
            cert_name: text(v::DET_MASTER_CERT_NAME),
        };
        let master = Master::new(&address, &script.token).map_err(SetupError::host)?;
        let route = Route {
            master: master.clone(),
            ids: BatchIds {
                task_id: script.task_id.clone(),
                allocation_id: script.allocation_id.clone(),
                agent_id: text(v::DET_AGENT_ID).unwrap_or_default().into(),
                container_id: script.container_id.clone(),
            },
            diagnostics: diagnostics.clone(),
        };
        let shipper = Shipper::start(log.clone(), route).map_err(thread_failed)?;
        let readiness = (!script.readiness.is_empty())
            .then(|| Readiness::new(&script, master.clone(), diagnostics.clone()));
        if let Some(check) = &script.idle_check {
            idle::watch(&script, check, master.clone(), diagnostics.clone())?;
        }
        let (sender, events) = mpsc::channel();
        forward_signals(&sender)?;
        if let Some(control) = context.control {
            forward_control(control, &sender)?;
        }
        Ok(Self {
            processes: Processes::new(run_dir, log.clone(), readiness, diagnostics.clone()),
            log,
            setup: Arc::new(Setup {
                script,
                env,
                run_dir: run_dir.to_owned(),
                master,
                diagnostics: diagnostics.clone(),
                mounts: context.mounts,
                in_sandbox: context.sandbox.is_some(),
                shares_network: context.shares_network,
            }),
            shipper: std::cell::Cell::new(Some(shipper)),
            sender,
            events,
            stage: Stage::Preparing,
            ending: EndRequest::NotAsked,
            doctor: Doctor::default(),
            stages: context.stages,
            oom_kills_before: cgroup::oom_kills(),
            measuring: None,
        })
    }

    /// Handles events until the task has ended and all its output is in the spool.
    fn run_to_end(mut self) -> (ContainerExit, Option<ExitCause>, Option<MetricsCollection>) {
        let exit = match self.until_ended() {
            Ok(exit) => exit,
            Err(error) => {
                // The master puts the reason into the task's log, where it would be twice.
                self.setup.diagnostics.note(&error);
                error.into_exit()
            }
        };
        if let Some(measuring) = &self.measuring {
            measuring.stop();
        }
        self.processes.drain(self.stage.child());
        let texts = [self.oom_text(), self.process_limit_text()];
        for text in texts.iter().flatten() {
            self.log.add_message(LogLevel::Error, text);
        }
        let tail = &self.processes.tail;
        let cause = tail.cause(&exit, &self.setup.run_dir, now_micros());
        (exit, cause, self.measuring)
    }

    fn until_ended(&mut self) -> Result<ContainerExit, SetupError> {
        let setup = Arc::clone(&self.setup);
        spawn(&self.sender, "setup", move || {
            Event::Prepared(setup.prepare())
        })?;
        loop {
            let event = match self
                .ending
                .due()
                .into_iter()
                .chain(self.stage.warn_at())
                .min()
            {
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.events.recv_timeout(left)
                }
            };
            match event {
                Ok(Event::Signal(signal)) => {
                    if let Some(exit) = self.on_signal(signal)? {
                        return Ok(exit);
                    }
                }
                Ok(Event::Prepared(prepared)) => self.on_prepared(prepared?)?,
                Ok(Event::HooksDone(key)) => self.on_hooks_done(key)?,
                Ok(Event::RendezvousDone(rendezvous)) => self.on_rendezvous(&rendezvous?)?,
                Ok(Event::PreemptionAsked(outcome)) => self.on_preemption_asked(outcome),
                Err(RecvTimeoutError::Timeout) => self.on_deadline(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(SetupError::host(
                        "the supervisor lost its own events; this is a bug",
                    ));
                }
            }
        }
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        match self.ending {
            EndRequest::Saving { end_at } if end_at <= now => {
                self.log.add_message(
                    LogLevel::Warning,
                    "the task has not exited by itself in the time that its container has left; it is ended",
                );
                self.ask_to_end();
            }
            EndRequest::Asked { kill_at } if kill_at <= now => self.kill_child(),
            _ => {}
        }
        if let Stage::WaitingForRendezvous { warn_at, .. } = &mut self.stage
            && warn_at.is_some_and(|at| at <= now)
        {
            *warn_at = None;
            self.log.add_message(
                LogLevel::Warning,
                "still waiting for the other containers of this allocation: not all of them have started in 10 minutes",
            );
        }
    }

    /// Handles a signal; `Some` if the task has ended.
    fn on_signal(&mut self, signal: Signal) -> Result<Option<ContainerExit>, SetupError> {
        if signal as i32 == DIAGNOSE_SIGNAL {
            self.doctor.examine(&self.setup);
            return Ok(None);
        }
        let Some(pid) = self.stage.child() else {
            let asked_to_end = matches!(signal, Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGINT);
            return Ok(asked_to_end.then(|| ended_from_outside("before its code began")));
        };
        match signal {
            Signal::SIGCHLD => return self.reap(pid),
            Signal::SIGQUIT => self.kill_child(),
            Signal::SIGTERM => match self.setup.script.save_seconds {
                Some(seconds) if matches!(self.ending, EndRequest::NotAsked) => {
                    self.ending = EndRequest::Saving {
                        end_at: Instant::now() + Duration::from_secs(seconds.into()),
                    };
                    let setup = Arc::clone(&self.setup);
                    spawn(&self.sender, "preemption", move || {
                        let (master, script) = (&setup.master, &setup.script);
                        Event::PreemptionAsked(preempt::ask(master, &script.allocation_id))
                    })?;
                }
                _ => self.ask_to_end(),
            },
            other => self.processes.signal(pid, other),
        }
        Ok(None)
    }

    /// Sends the task SIGTERM; SIGKILL follows.
    fn ask_to_end(&mut self) {
        if let Some(pid) = self.stage.child() {
            self.processes.signal(pid, Signal::SIGTERM);
        }
        if !matches!(self.ending, EndRequest::Asked { .. } | EndRequest::Killed) {
            let grace = Duration::from_secs(self.setup.script.grace_seconds.into());
            self.ending = EndRequest::Asked {
                kill_at: Instant::now() + grace,
            };
        }
    }

    fn on_preemption_asked(&mut self, outcome: Result<(), String>) {
        let EndRequest::Saving { end_at } = self.ending else {
            return;
        };
        match outcome {
            Ok(()) => {
                let left = end_at.saturating_duration_since(Instant::now()).as_secs();
                let text = format!(
                    "the container is being ended from outside; the task was asked to save and exit within {left} s"
                );
                self.log.add_message(LogLevel::Warning, &text);
            }
            Err(reason) => {
                self.log.add_message(LogLevel::Warning, &reason);
                self.ask_to_end();
            }
        }
    }

    fn kill_child(&mut self) {
        self.ending = EndRequest::Killed;
        if let Some(pid) = self.stage.child() {
            self.processes.signal(pid, Signal::SIGKILL);
        }
        // A full spool must not block the output now.
        self.log.begin_drain();
    }

    /// Reaps every process that has ended: the first process of a container inherits all orphans.
    fn reap(&mut self, child: Pid) -> Result<Option<ContainerExit>, SetupError> {
        let mut exit = None;
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => break,
                Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                    exit = Some(ContainerExit::Exited { code });
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    exit = Some(ContainerExit::Signaled {
                        signal: signal as i32,
                        out_of_memory: signal == Signal::SIGKILL
                            && matches!(self.ending, EndRequest::NotAsked)
                            && self.oom_text().is_some(),
                    });
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    return Err(SetupError::host(format!(
                        "could not wait for the task: {error}"
                    )));
                }
            }
        }
        match exit {
            Some(ContainerExit::Signaled {
                signal,
                out_of_memory: false,
            }) if self.ending.was_asked() && ENDING.contains(&signal) => {
                let how = format!("its code ended by signal {signal}");
                Ok(Some(ended_from_outside(&how)))
            }
            Some(exit) => self.attribute_end(exit).map(Some),
            None => Ok(None),
        }
    }

    /// Attributes an end before the gate to the hook that ran, unless the task was asked to end or the hook exited by
    /// itself with success, which the log shows; and that of a service to what it has left about it.
    fn attribute_end(&self, exit: ContainerExit) -> Result<ContainerExit, SetupError> {
        if self.ending.was_asked() {
            return Ok(exit);
        }
        let hook = match &self.stage {
            Stage::Hooks { gate, .. } => gate.hook(&self.setup.script),
            Stage::Running { .. } => return Ok(self.end_of_service(exit)),
            Stage::Preparing | Stage::WaitingForRendezvous { .. } => return Ok(exit),
        };
        match exit {
            ContainerExit::Exited { code } if code != 0 => Err(SetupError::Task {
                code,
                message: format!("{hook} failed with exit status {code}"),
            }),
            ContainerExit::Signaled { signal, .. } => Err(SetupError::Task {
                code: 128 + signal,
                message: format!("{hook} was ended by signal {signal}"),
            }),
            other => {
                let text = format!("{hook} ended the task before its entrypoint");
                self.log.add_message(LogLevel::Warning, &text);
                Ok(other)
            }
        }
    }

    /// The end of the entrypoint: where that is a service which has left why it did not start, that.
    fn end_of_service(&self, exit: ContainerExit) -> ContainerExit {
        let is_service = match &self.setup.script.entrypoint {
            Entrypoint::Service { .. } | Entrypoint::SshServer { .. } => true,
            Entrypoint::Shell(_)
            | Entrypoint::Argv(_)
            | Entrypoint::TrialClass(_)
            | Entrypoint::RemoveCheckpoints => false,
        };
        match exit {
            ContainerExit::Exited { code } if code != 0 && is_service => {
                match service_failure(&self.setup.run_dir) {
                    Some(message) => ContainerExit::SetupFailed { code, message },
                    None => exit,
                }
            }
            other => other,
        }
    }

    fn on_prepared(&mut self, prepared: PreparedTask) -> Result<(), SetupError> {
        for warning in &prepared.warnings {
            self.log.add_message(LogLevel::Warning, warning);
        }
        self.stages.context_unpacked = prepared.context_unpacked;
        match prepared.launch {
            Launch::Direct { argv } => self.rendezvous_then(NextStart::Start(argv)),
            Launch::Hooked { argv, gate } => {
                let pid = self
                    .processes
                    .start(&self.setup.env, &argv, Begins::AsHooks)?;
                self.stage = Stage::Hooks {
                    pid,
                    gate: gate.clone(),
                };
                let sender = self.sender.clone();
                let diagnostics = self.setup.diagnostics.clone();
                thread("gate", move || match gate.wait() {
                    // The receiver is gone: the task has ended.
                    Ok(key) => drop(sender.send(Event::HooksDone(key))),
                    Err(error) => {
                        diagnostics.note(format!("could not open the start gate: {error}"));
                    }
                })
            }
        }
    }

    fn on_hooks_done(&mut self, key: GateKey) -> Result<(), SetupError> {
        self.stages.hooks_done = Some(now_micros());
        match self.stage {
            Stage::Hooks { pid, .. } => self.rendezvous_then(NextStart::Open { pid, key }),
            // The hooks end only once.
            Stage::Preparing | Stage::WaitingForRendezvous { .. } | Stage::Running { .. } => Ok(()),
        }
    }

    /// Waits for the other containers if the script asks for it, then starts `next`.
    fn rendezvous_then(&mut self, next: NextStart) -> Result<(), SetupError> {
        if !self.setup.script.rendezvous {
            return self.start_next(next);
        }
        self.stage = Stage::WaitingForRendezvous {
            then: next,
            warn_at: Some(Instant::now() + RENDEZVOUS_WARNING),
        };
        let setup = Arc::clone(&self.setup);
        spawn(&self.sender, "rendezvous", move || {
            Event::RendezvousDone(setup.rendezvous())
        })
    }

    fn on_rendezvous(&mut self, rendezvous: &Rendezvous) -> Result<(), SetupError> {
        info::write_rendezvous(&self.setup.run_dir.join("info"), rendezvous)?;
        self.stages.rendezvous_done = Some(now_micros());
        match std::mem::replace(&mut self.stage, Stage::Preparing) {
            Stage::WaitingForRendezvous { then, .. } => self.start_next(then),
            other => {
                self.stage = other;
                Ok(())
            }
        }
    }

    fn start_next(&mut self, next: NextStart) -> Result<(), SetupError> {
        let pid = match next {
            NextStart::Start(argv) => {
                let begins = Begins::AsEntrypoint;
                let env = &self.setup.env;
                match warm::dir_for_programs() {
                    Some(dir) => {
                        let env = env.with_path(warm::path_with(&dir, env.path()));
                        self.processes.start(&env, &argv, begins)?
                    }
                    None => self.processes.start(env, &argv, begins)?,
                }
            }
            NextStart::Open { pid, key } => {
                self.processes.open_gate(key);
                pid
            }
        };
        self.stage = Stage::Running { pid };
        self.measure();
        let started_at = now_micros();
        self.stages.entrypoint_exec = Some(started_at);
        let started = EntrypointStart {
            pid: pid.as_raw(),
            started_at,
            stages: self.stages,
        };
        if let Err(error) = report::write_started(&self.setup.run_dir, &started) {
            self.setup
                .diagnostics
                .note(format!("could not write the start report: {error}"));
        }
        Ok(())
    }

    /// Starts to measure the running code, if that is wanted.
    fn measure(&mut self) {
        let Some(measured) = MetricSubject::of(&self.setup.script) else {
            return;
        };
        match MetricsCollection::start(measured, &self.setup) {
            Ok(measuring) => self.measuring = Some(measuring),
            // The task does not depend on it.
            Err(error) => {
                let note = format!("system metrics are not collected: {error}");
                self.setup.diagnostics.note(note);
            }
        }
    }

    /// The message for the log if the kernel has killed a process for lack of memory since the start.
    fn oom_text(&self) -> Option<String> {
        let kills = cgroup::oom_kills()?.checked_sub(self.oom_kills_before?)?;
        let limit = self.own_group().and_then(|group| group.memory_limit());
        let limit = limit.map_or_else(String::new, |bytes| format!(" of {} MiB", bytes >> 20));
        (kills > 0).then(|| {
            format!("the kernel's out-of-memory killer ended {kills} of the processes that share this task's memory limit{limit}")
        })
    }

    /// The message for the log if the task could not create processes because of its limit.
    fn process_limit_text(&self) -> Option<String> {
        let (count, limit) = self.own_group()?.refused_processes()?;
        (count > 0).then(|| {
            format!("the task was refused a process or thread {count} times: it may have {limit} of both at once")
        })
    }

    fn own_group(&self) -> Option<cgroup::OwnGroup> {
        cgroup::OwnGroup::find(self.setup.in_sandbox)
    }
}

/// How long the log is shipped after the task's end.
fn log_wait(env: &TaskEnv) -> Duration {
    let text = env.text(v::LOG_WAIT_TIME);
    text.and_then(|text| text.trim().parse().ok())
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map_or(LOG_WAIT, |wait| wait.min(LONGEST_LOG_WAIT))
}

/// The end of a task whose supervisor was asked to end it. If the agent asked, it reports the task as killed; otherwise
/// the engine, the service or the host stopped, which is not an error of the task.
fn ended_from_outside(how: &str) -> ContainerExit {
    ContainerExit::Lost {
        message: format!(
            "the task was asked to end by its engine, its service or its host, and {how}"
        ),
    }
}
