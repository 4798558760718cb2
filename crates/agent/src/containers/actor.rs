//! The life of one container.
//!
//! The actor follows the phases of [`Phase`]. It writes each phase to disk before it acts on it, so that wherever the
//! agent dies, the next one knows what may have been done:
//!
//! | found after a restart | what the actor does |
//! | --- | --- |
//! | `assigned` | nothing was done: starts it |
//! | `launching` | looks for it in the runtime: adopts it if it exists; if it does not and no supervisor ever worked in its directory, starts it; else it is lost |
//! | `started` | waits for its end, also if it ended in the meantime |
//! | `ended` | hands over the rest of its log |
//! | `terminated` | waits until the master lets it be removed |
//!
//! There are never two copies: a container that cannot be proven absent is not started again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::adoption::{Adoption, adoption};
use det_agent_proto::{ContainerReport, ContainerState};
use det_failpoints::failpoint;
use det_ids::ContainerId;
use det_spool::BatchIds;
use det_taskspec::{ContainerExit, ContainerSpec, SPOOL_DIR};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::exit::{self, RuntimeEnd};
use super::grants;
use super::handover::{self, Destination};
use super::prepare::{self, ContainerInputs, PrepareError};
use super::store::{
    ContainerDir, Identity, KillOrder, Phase, Record, RuntimeKind, Started, StoreError,
};
use super::{Command, Session, Shared};
use crate::devices::LocalDevice;
use crate::runtime::engine::{ContainerContext, EngineError, EngineState};
use crate::runtime::process::ProcessRuntime;

/// Time between asking a container to end and killing everything in it, in addition to the script's grace period.
const LOG_GRACE: Duration = Duration::from_secs(10);
/// Pause before the removal of a container is tried again.
const REMOVE_RETRY: Duration = Duration::from_secs(10);
/// Pause before an engine that did not answer is asked again.
const ENGINE_RETRY: Duration = Duration::from_secs(2);

const INFO: &str = "LOG_LEVEL_INFO";
const WARNING: &str = "LOG_LEVEL_WARNING";
const ERROR: &str = "LOG_LEVEL_ERROR";

/// The task that manages one container; see the module.
pub(super) struct Actor {
    shared: Arc<Shared>,
    dir: ContainerDir,
    spec: ContainerSpec,
    record: Record,
    /// Whether it is to be removed as soon as it has ended.
    remove_at_end: bool,
    /// Whether its directory has not been written yet.
    is_new: bool,
}

/// Why a container did not start.
enum LaunchError {
    /// The task asks for something that it cannot have: an error of its configuration.
    Task(String),
    /// This host failed to start it.
    Host(String),
    /// It was asked to end before it started.
    Killed,
}

impl From<StoreError> for LaunchError {
    fn from(error: StoreError) -> Self {
        Self::Host(chain(&error))
    }
}

impl From<EngineError> for LaunchError {
    fn from(error: EngineError) -> Self {
        Self::Host(error.to_string())
    }
}

impl From<PrepareError> for LaunchError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Mount { .. }
            | PrepareError::Device { .. }
            | PrepareError::UnnamedSlots(_)
            | PrepareError::Capability { .. } => Self::Task(error.to_string()),
            PrepareError::Access { .. } => Self::Host(error.to_string()),
        }
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

type Commands = mpsc::UnboundedReceiver<Command>;

impl Actor {
    /// A container that the master has just asked for.
    pub(super) fn accepted(shared: Arc<Shared>, dir: ContainerDir, spec: ContainerSpec) -> Self {
        let record = Record {
            runtime: shared.runtimes.kind,
            phase: Phase::Assigned,
            kill: None,
        };
        Self {
            shared,
            dir,
            spec,
            record,
            remove_at_end: false,
            is_new: true,
        }
    }

    /// A container that an earlier agent left behind.
    pub(super) fn recovered(
        shared: Arc<Shared>,
        dir: ContainerDir,
        spec: ContainerSpec,
        record: Record,
    ) -> Self {
        Self {
            shared,
            dir,
            spec,
            record,
            remove_at_end: false,
            is_new: false,
        }
    }

    pub(super) fn container_id(&self) -> &ContainerId {
        &self.spec.container_id
    }

    /// Whether it is recorded on disk, and may be reported.
    pub(super) fn is_recorded(&self) -> bool {
        !self.is_new
    }

    /// Whether a process of it may still run.
    pub(super) fn is_live(&self) -> bool {
        self.record.phase.is_live()
    }

    /// Reports the container's state to the master.
    pub(super) fn report_state(&self) {
        self.report(self.record.phase.report());
    }

    fn report(&self, state: ContainerState) {
        self.shared.outbox.report(ContainerReport {
            container_id: self.spec.container_id.clone(),
            allocation_id: self.spec.allocation_id.clone(),
            state,
        });
    }

    /// Manages the container until it is removed.
    pub(super) async fn run(mut self, mut commands: Commands) {
        if self.is_new {
            failpoint!("agent::container::accept::before_record");
            if let Err(error) = self.dir.create(&self.spec, &self.record) {
                self.fail(LaunchError::from(error));
            }
            failpoint!("agent::container::accept::after_record");
            // What is reported to the master must be on disk after a crash.
            self.report_state();
        }
        loop {
            match self.record.phase.clone() {
                Phase::Assigned => self.launch(&mut commands).await,
                Phase::Launching => self.find_launched(&mut commands).await,
                Phase::Started(started) => self.watch(started, &mut commands).await,
                Phase::Ended { exit, .. } => {
                    self.not_live();
                    self.hand_over().await;
                    failpoint!("agent::container::end::after_hand_over");
                    self.enter(Phase::Terminated { exit });
                }
                Phase::Terminated { .. } => {
                    self.not_live();
                    while !self.remove_at_end {
                        match commands.recv().await {
                            Some(Command::Remove) => self.remove_at_end = true,
                            // The master did not receive the report of the end.
                            Some(Command::Kill(_)) => self.report_state(),
                            None => return,
                        }
                    }
                    self.remove().await;
                    return;
                }
            }
        }
    }

    fn not_live(&self) {
        self.shared
            .live
            .send_if_modified(|live| live.remove(&self.spec.container_id));
    }

    /// Writes a phase to disk and reports it to the master. A phase that cannot be written is entered anyway: the next
    /// agent will look for the container.
    fn enter(&mut self, phase: Phase) {
        self.record.phase = phase;
        self.save();
        // The end is reported to the master once the log was shipped.
        if !matches!(self.record.phase, Phase::Ended { .. }) {
            self.report_state();
        }
    }

    fn save(&self) {
        if let Err(error) = self.dir.save(&self.record) {
            tracing::error!(container.id = %self.spec.container_id, "{}", chain(&error));
        }
    }

    fn fail(&mut self, error: LaunchError) {
        let exit = match error {
            LaunchError::Killed => ContainerExit::Killed,
            LaunchError::Task(message) => {
                self.shared.say(&self.spec, ERROR, message.clone());
                ContainerExit::SetupFailed { code: 1, message }
            }
            LaunchError::Host(message) => {
                tracing::error!(container.id = %self.spec.container_id, "cannot start a container: {message}");
                self.shared.say(&self.spec, ERROR, message.clone());
                ContainerExit::StartFailed { message }
            }
        };
        self.enter(Phase::Ended {
            exit,
            started: None,
        });
    }

    /// Stores a command that cannot be executed yet.
    fn defer(&mut self, command: Command) {
        match command {
            Command::Kill(order) => self.defer_kill(order),
            Command::Remove => {
                self.remove_at_end = true;
                self.defer_kill(KillOrder::AtOnce);
            }
        }
    }

    fn defer_kill(&mut self, order: KillOrder) {
        if self.record.kill.is_none_or(|earlier| earlier < order) {
            self.record.kill = Some(order);
            self.save();
        }
    }

    /// Waits for `future`, unless the container is to be ended first.
    async fn unless_killed<T>(
        &mut self,
        future: impl Future<Output = T>,
        commands: &mut Commands,
    ) -> Result<T, LaunchError> {
        tokio::pin!(future);
        if self.record.kill.is_some() {
            return Err(LaunchError::Killed);
        }
        tokio::select! {
            result = &mut future => Ok(result),
            Some(command) = commands.recv() => {
                self.defer(command);
                Err(LaunchError::Killed)
            }
        }
    }

    /// The data of the connection; waits for the first connection.
    async fn session(&mut self, commands: &mut Commands) -> Result<Session, LaunchError> {
        let mut sessions = self.shared.session.subscribe();
        let session = async {
            match sessions.wait_for(Option::is_some).await {
                Ok(session) => session.clone(),
                Err(_) => None,
            }
        };
        self.unless_killed(session, commands)
            .await?
            .ok_or_else(|| LaunchError::Host("the agent is ending".to_owned()))
    }

    /// Starts a container of which nothing exists yet.
    async fn launch(&mut self, commands: &mut Commands) {
        match self.try_launch(commands).await {
            Ok(started) => {
                failpoint!("agent::container::launch::after_start");
                self.enter(Phase::Started(started));
            }
            Err(error) => {
                self.sweep().await;
                self.fail(error);
            }
        }
    }

    async fn try_launch(&mut self, commands: &mut Commands) -> Result<Started, LaunchError> {
        let session = self.session(commands).await?;
        if self.record.runtime != RuntimeKind::Process {
            self.pull(commands).await?;
        }
        if self.record.kill.is_some() {
            return Err(LaunchError::Killed);
        }
        self.record.phase = Phase::Launching;
        failpoint!("agent::container::launch::before_record");
        self.dir.save(&self.record)?;
        failpoint!("agent::container::launch::after_record");
        self.report_state();
        let env = self.prepare().await?;
        match self.record.runtime {
            RuntimeKind::Process => self.start_process(&session).await,
            RuntimeKind::Docker | RuntimeKind::Podman => self.start_container(&session, env).await,
        }
    }

    async fn pull(&mut self, commands: &mut Commands) -> Result<(), LaunchError> {
        let shared = self.shared.clone();
        let spec = self.spec.clone();
        let kind = self.record.runtime;
        let engine = self
            .unless_killed(shared.runtimes.engine(kind), commands)
            .await?;
        if !spec.force_pull_image && engine.has_image(&spec.image).await? {
            return Ok(());
        }
        self.report(ContainerState::Pulling);
        shared.say(&spec, INFO, format!("pulling image \"{}\"", spec.image));
        let pulled = engine.pull(&spec.image, spec.registry_auth.as_ref(), |line| {
            shared.say(&spec, INFO, line);
        });
        self.unless_killed(pulled, commands).await??;
        shared.say(&spec, INFO, format!("pulled image \"{}\"", spec.image));
        Ok(())
    }

    /// Writes the files of the directory; returns the task's environment.
    async fn prepare(&self) -> Result<Vec<(String, String)>, LaunchError> {
        let python = match self.record.runtime {
            RuntimeKind::Process => self.shared.task_python().await.clone(),
            RuntimeKind::Docker | RuntimeKind::Podman => crate::python::TaskPython::default(),
        };
        let (shared, dir, spec) = (self.shared.clone(), self.dir.clone(), self.spec.clone());
        let runtime = self.record.runtime;
        let own_devices = self.own_devices();
        let prepared = blocking(move || {
            prepare::prepare(
                &dir,
                &spec,
                &ContainerInputs {
                    master: &shared.task_master(),
                    agent_id: shared.options.agent_id.as_str(),
                    devices: &shared.wire_devices(),
                    proxies: &shared.options.proxies,
                    tls: &shared.options.tls,
                    supervisor: &shared.options.supervisor_path,
                    bin: shared.data_dir.bin(),
                    python: &python,
                    runtime,
                    own_devices: &own_devices,
                    guard: &shared.guard,
                    root_tasks: shared.options.root_tasks,
                    notice: shared.options.isolation_notice.get().map(String::as_str),
                },
            )
        })
        .await?;
        Ok(prepared?)
    }

    async fn start_process(&self, session: &Session) -> Result<Started, LaunchError> {
        if let Some(notice) = grants::missing_capabilities_notice(&self.spec) {
            self.shared.say(&self.spec, WARNING, notice);
        }
        let (shared, dir, id) = (
            self.shared.clone(),
            self.dir.clone(),
            self.spec.container_id.clone(),
        );
        let identity = blocking(move || shared.runtimes.process.start(&dir, id.as_str()))
            .await?
            .map_err(|error| {
                LaunchError::Host(format!(
                    "cannot start the supervisor \"{}\": {error}",
                    self.dir.supervisor().display()
                ))
            })?;
        Ok(Started {
            identity: Identity::Process(identity),
            host_address: session.host_address.clone(),
            ports: self.same_ports(),
        })
    }

    /// The devices of this container's slots.
    fn own_devices(&self) -> Vec<LocalDevice> {
        let all = self.shared.devices.iter();
        all.filter(|local| self.spec.slots.devices().contains(&local.device.id))
            .cloned()
            .collect()
    }

    /// Ports of a container in the host's network.
    fn same_ports(&self) -> Vec<(u16, u16)> {
        self.spec.ports.iter().map(|port| (*port, *port)).collect()
    }

    /// The network of a container. A master on a loopback address can be reached only from the host's network,
    /// which then
    /// replaces the default network.
    fn network_mode(&self) -> &str {
        match self.spec.network_mode.as_str() {
            "" | "bridge" | "default" if self.shared.task_master().is_loopback() => "host",
            "" => "bridge",
            mode => mode,
        }
    }

    async fn start_container(
        &self,
        session: &Session,
        env: Vec<(String, String)>,
    ) -> Result<Started, LaunchError> {
        // Only what the engine's own hooks read: the rest contains secrets, and the engine shows it to all its users.
        let env: Vec<(String, String)> = env
            .into_iter()
            .filter(|(name, _)| name.starts_with("NVIDIA_") || name == "DET_CONTAINER_ID")
            .collect();
        let devices = self.own_devices();
        let engine = self.shared.runtimes.engine(self.record.runtime).await;
        let id = engine
            .create(
                &self.spec,
                ContainerContext {
                    dir: &self.dir,
                    devices: &devices,
                    agent_id: self.shared.options.agent_id.as_str(),
                    instance_id: self.shared.data_dir.instance_id(),
                    cluster_id: &session.welcome.cluster_id,
                    network_mode: self.network_mode(),
                    env: &env,
                },
            )
            .await?;
        engine.start(&id).await?;
        self.container_started(session, id).await
    }

    async fn container_started(
        &self,
        session: &Session,
        id: String,
    ) -> Result<Started, LaunchError> {
        let ports = if self.network_mode() == "host" {
            self.same_ports()
        } else {
            let engine = self.shared.runtimes.engine(self.record.runtime).await;
            engine.ports(&id).await?
        };
        Ok(Started {
            identity: Identity::Engine { id },
            host_address: session.host_address.clone(),
            ports,
        })
    }

    /// Determines the result of a start that an earlier agent recorded as intended.
    async fn find_launched(&mut self, commands: &mut Commands) {
        let session = match self.session(commands).await {
            Ok(session) => Some(session),
            // It may run although it is to be ended: find it first; its address does not matter any more.
            Err(LaunchError::Killed) => self.shared.session.borrow().clone(),
            Err(error) => return self.fail(error),
        };
        let session = session.unwrap_or_else(|| Session {
            welcome: det_agent_proto::Welcome {
                protocol: det_agent_proto::PROTOCOL_VERSION,
                version: String::new(),
                cluster_id: String::new(),
                master_id: String::new(),
            },
            host_address: String::new(),
        });
        match self.find(&session).await {
            Ok(Some(started)) => self.enter(Phase::Started(started)),
            Ok(None) => {
                match adoption(false, self.dir.has_run(), self.record.kill.is_some()) {
                    Adoption::NameEnd => self.end(RuntimeEnd::Process, None).await,
                    Adoption::NeverRan => self.fail(LaunchError::Killed),
                    // What is not found is not adopted.
                    Adoption::Launch | Adoption::TakeUp => self.launch(commands).await,
                }
            }
            // It may run: nothing may be reported, and it must not be started again, before that is
            // known.
            Err(error) => {
                if let LaunchError::Host(message) | LaunchError::Task(message) = error {
                    tracing::warn!(container.id = %self.spec.container_id, "{message}; asking again");
                }
                sleep(ENGINE_RETRY).await;
            }
        }
    }

    /// Finds the container in the runtime; `None` = it does not exist.
    async fn find(&self, session: &Session) -> Result<Option<Started>, LaunchError> {
        if self.record.runtime == RuntimeKind::Process {
            let dir = self.dir.clone();
            let found = blocking(move || ProcessRuntime::find(&dir)).await?;
            return Ok(found.map(|identity| Started {
                identity: Identity::Process(identity),
                host_address: session.host_address.clone(),
                ports: self.same_ports(),
            }));
        }
        let engine = self.shared.runtimes.engine(self.record.runtime).await;
        match engine.find(&self.spec.container_id).await? {
            EngineState::Absent | EngineState::Created { .. } => Ok(None),
            // Waiting for one that has ended returns at once.
            EngineState::Running { id } | EngineState::Ended { id } => {
                self.container_started(session, id).await.map(Some)
            }
        }
    }

    /// Waits for the end of a started container and ends it when asked to.
    async fn watch(&mut self, started: Started, commands: &mut Commands) {
        let shared = self.shared.clone();
        let identity = started.identity.clone();
        let runtime = self.record.runtime;
        let ended = wait(&shared, runtime, &identity);
        tokio::pin!(ended);
        // An order of an earlier agent, or one that came while the container started, is executed now.
        let mut force_at = match self.record.kill {
            Some(order) => Some(self.ask_to_end(&identity, order).await),
            None => None,
        };
        let end = loop {
            let force = async {
                match force_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                end = &mut ended => break end,
                () = force => {
                    self.force(&identity).await;
                    force_at = Some(Instant::now() + LOG_GRACE);
                }
                Some(command) = commands.recv() => {
                    let earlier = self.record.kill;
                    self.defer(command);
                    if let Some(order) = self.record.kill
                        && earlier != Some(order)
                    {
                        let at = self.ask_to_end(&identity, order).await;
                        force_at = Some(force_at.map_or(at, |earlier| earlier.min(at)));
                    }
                }
            }
        };
        self.end(end, Some(started)).await;
    }

    /// Asks a container to end; returns the time at which it is to be killed.
    async fn ask_to_end(&self, identity: &Identity, order: KillOrder) -> Instant {
        let (signal, patience) = match order {
            KillOrder::Gracefully => (
                Signal::SIGTERM,
                Duration::from_secs(u64::from(self.spec.script.grace_seconds)) + LOG_GRACE,
            ),
            // Asks the supervisor to kill the task and to ship its log.
            KillOrder::AtOnce => (Signal::SIGQUIT, LOG_GRACE),
        };
        self.signal(identity, signal).await;
        Instant::now() + patience
    }

    async fn signal(&self, identity: &Identity, signal: Signal) {
        match identity {
            Identity::Process(process) => ProcessRuntime::signal(process, signal),
            Identity::Engine { id } => {
                let engine = self.shared.runtimes.engine(self.record.runtime).await;
                engine.signal(id, signal).await;
            }
        }
    }

    async fn force(&self, identity: &Identity) {
        self.shared.say(
            &self.spec,
            WARNING,
            "the task did not end in time and is killed",
        );
        match identity {
            Identity::Process(_) => self.sweep_processes(Some(identity)).await,
            Identity::Engine { .. } => self.signal(identity, Signal::SIGKILL).await,
        }
    }

    /// Determines the exit reason, after making sure that nothing runs any more.
    async fn end(&mut self, end: RuntimeEnd, started: Option<Started>) {
        let identity = started.as_ref().map(|started| started.identity.clone());
        if self.record.runtime == RuntimeKind::Process {
            self.sweep_processes(identity.as_ref()).await;
        }
        let report = self.dir.exit_report();
        let words = if report.is_none() {
            self.dir.last_words()
        } else {
            String::new()
        };
        let exit = exit::name(report, self.record.kill, &end, &words);
        tracing::info!(container.id = %self.spec.container_id, exit = ?exit, "a container ended");
        failpoint!("agent::container::end::before_record");
        self.enter(Phase::Ended { exit, started });
    }

    /// Kills everything that a failed start left running.
    async fn sweep(&self) {
        match self.record.runtime {
            RuntimeKind::Process => self.sweep_processes(None).await,
            RuntimeKind::Docker | RuntimeKind::Podman => {
                // Only a launch can have created one; there is no wait for an engine that never answered.
                if self.record.phase != Phase::Launching {
                    return;
                }
                let engine = self.shared.runtimes.engine(self.record.runtime).await;
                // A start that got no answer may have worked. It counts as failed only when nothing of it exists.
                while let Err(error) = engine.remove(&self.spec.container_id).await {
                    tracing::warn!(container.id = %self.spec.container_id, "{error}; trying again");
                    sleep(ENGINE_RETRY).await;
                }
            }
        }
    }

    async fn sweep_processes(&self, identity: Option<&Identity>) {
        let (shared, id) = (self.shared.clone(), self.spec.container_id.clone());
        let process = match identity {
            Some(Identity::Process(process)) => Some(process.clone()),
            _ => None,
        };
        let swept = blocking(move || {
            let runtime = &shared.runtimes.process;
            runtime.kill_all(process.as_ref(), id.as_str());
            runtime.remove(id.as_str())
        });
        match swept.await {
            Ok(Ok(())) => {}
            // Tried again when the container is removed.
            Ok(Err(error)) => {
                tracing::debug!(container.id = %self.spec.container_id, %error, "a control group stays for now");
            }
            Err(_) => {
                tracing::error!(container.id = %self.spec.container_id, "ending a task's processes broke off");
            }
        }
    }

    /// Ships the log lines that the supervisor did not ship.
    async fn hand_over(&self) {
        let spool = self.dir.run().join(SPOOL_DIR);
        let shipped = handover::ship(
            &spool,
            &Destination {
                http: &self.shared.http,
                master: self.shared.master.url(),
                token: &self.spec.script.token,
                ids: BatchIds {
                    task_id: self.spec.task_id.clone(),
                    allocation_id: self.spec.allocation_id.clone(),
                    agent_id: self.shared.options.agent_id.clone(),
                    container_id: self.spec.container_id.clone(),
                },
            },
        )
        .await;
        match shipped {
            Ok(0) => {}
            Ok(lines) => {
                tracing::info!(container.id = %self.spec.container_id, lines, "handed over the rest of a task's log");
            }
            Err(error) => {
                tracing::warn!(container.id = %self.spec.container_id, "the rest of a task's log is lost: {error}");
                self.shared.say(
                    &self.spec,
                    WARNING,
                    format!("the rest of this container's log is lost: {error}"),
                );
            }
        }
    }

    /// Removes everything of the container; retries until it succeeds.
    async fn remove(&self) {
        failpoint!("agent::container::forget::before_remove");
        let mut said = false;
        loop {
            match self.try_remove().await {
                Ok(()) => break,
                Err(error) => {
                    if !said {
                        tracing::warn!(container.id = %self.spec.container_id, "{error}; trying again");
                        said = true;
                    }
                    sleep(REMOVE_RETRY).await;
                }
            }
        }
        failpoint!("agent::container::forget::after_remove");
        self.shared.outbox.remove(&self.spec.container_id);
        tracing::debug!(container.id = %self.spec.container_id, "removed a container");
    }

    async fn try_remove(&self) -> Result<(), String> {
        let id = &self.spec.container_id;
        if self.record.runtime != RuntimeKind::Process {
            let engine = self.shared.runtimes.engine(self.record.runtime).await;
            engine.remove(id).await.map_err(|error| error.to_string())?;
        }
        let (shared, dir, id) = (self.shared.clone(), self.dir.clone(), id.clone());
        let removed = blocking(move || {
            shared
                .runtimes
                .process
                .remove(id.as_str())
                .map_err(|error| format!("cannot remove a control group: {error}"))?;
            dir.remove(&shared.data_dir.trash())
                .map_err(|error| chain(&error))
        });
        match removed.await {
            Ok(result) => result,
            Err(_) => Err("removing a container broke off".to_owned()),
        }
    }
}

/// Waits for the end of the container.
async fn wait(shared: &Shared, runtime: RuntimeKind, identity: &Identity) -> RuntimeEnd {
    match identity {
        Identity::Process(process) => {
            ProcessRuntime::wait(process).await;
            RuntimeEnd::Process
        }
        Identity::Engine { id } => {
            RuntimeEnd::Engine(shared.runtimes.engine(runtime).await.wait(id).await)
        }
    }
}

/// Runs a blocking function on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LaunchError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| LaunchError::Host(format!("work on a container broke off: {error}")))
}
