//! One container as its runtime has it: what starts, finds, signals and removes it, and reports on it to the master.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::{AgentLog, ContainerReport, ContainerState};
use det_failpoints::failpoint;
use det_ids::LogLevel;
use det_taskspec::ContainerSpec;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::exit::RuntimeEnd;
use super::grants;
use super::prepare::{self, ContainerInputs, PrepareError, PreparedContainer};
use super::store::{ContainerDir, Identity, KillOrder, RuntimeKind, StartedContainer, StoreError};
use super::user_directory::UserDirectories;
use super::{Session, SharedState};
use crate::host;
use crate::options::{EndedContainers, TaskLimits};
use crate::runtime::container_body::HOST;
use crate::runtime::engine::{ContainerContext, Engine, EngineState};
use crate::runtime::engine_error::{EngineError, Obstacle};
use crate::runtime::process::ProcessRuntime;
use crate::runtime::warm::WarmStart;

/// Time between asking a container to end and killing everything in it, in addition to the script's grace period.
pub(super) const LOG_GRACE: Duration = Duration::from_secs(10);
/// Pause before the removal of a container is tried again.
const REMOVE_RETRY: Duration = Duration::from_secs(10);
/// Pause before an engine that did not answer is asked again.
pub(super) const ENGINE_RETRY: Duration = Duration::from_secs(2);

/// A container, its directory and its runtime. It knows nothing of the phases, which are the actor's.
pub(super) struct Container {
    pub(super) shared: Arc<SharedState>,
    pub(super) dir: ContainerDir,
    pub(super) spec: ContainerSpec,
    pub(super) runtime: RuntimeKind,
}

/// Why a container did not start.
pub(super) enum LaunchError {
    /// The task asks for something that it cannot have: an error of its configuration.
    Task(String),
    /// This host failed to start it, which may be because of what the task asks for.
    Host(String),
    /// This host cannot start anything at present: its disk is full, or its engine does not answer. It is no failure of the
    /// task.
    Fault(String),
    /// As [`Self::Fault`] or as [`Self::Host`]: a look at this host decides it.
    Suspected(String),
    /// It was asked to end before it started.
    Killed,
}

impl From<StoreError> for LaunchError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Access { source, .. } => Self::of_access(chain(&error), source),
            StoreError::Id { .. } | StoreError::Content { .. } => Self::Host(chain(&error)),
        }
    }
}

impl From<EngineError> for LaunchError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error.obstacle() {
            Obstacle::Engine => Self::Fault(message),
            Obstacle::EngineOrTask => Self::Suspected(message),
            Obstacle::Task => Self::Host(message),
        }
    }
}

impl LaunchError {
    /// What it is once it is known whether this host can start anything; never suspected. That the host cannot is reported
    /// to the master.
    pub(super) async fn confirmed(self, shared: &SharedState) -> Self {
        if !matches!(self, Self::Fault(_) | Self::Suspected(_)) {
            return self;
        }
        let found = host::look(shared).await;
        if let Err(reason) = &found {
            shared.host_fault.note(reason);
        }
        match (found, self) {
            (Ok(()), Self::Suspected(message)) => Self::Host(message),
            (Err(_), Self::Suspected(message)) => Self::Fault(message),
            (_, error) => error,
        }
    }

    /// The files of a container could not be made, as `message` describes: it may be a name that the task chose, or the
    /// state of this host.
    fn of_access(message: String, error: &io::Error) -> Self {
        if is_host_fault(error) {
            Self::Fault(message)
        } else {
            Self::Host(message)
        }
    }
}

/// Whether an operation fails on this host whatever task it is for: there is no space, no memory, no file handle, or the
/// disk is broken.
fn is_host_fault(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(
            Errno::ENOSPC
                | Errno::EDQUOT
                | Errno::EROFS
                | Errno::EIO
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOMEM
                | Errno::EAGAIN
        )
    )
}

impl From<PrepareError> for LaunchError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Mount { .. }
            | PrepareError::Device { .. }
            | PrepareError::UnnamedSlots(_)
            | PrepareError::UserDirectory { .. }
            | PrepareError::Capability { .. } => Self::Task(error.to_string()),
            PrepareError::Access { ref source, .. } => Self::of_access(error.to_string(), source),
        }
    }
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Ports of a container in the host's network.
fn same_ports(spec: &ContainerSpec) -> Vec<(u16, u16)> {
    spec.ports.iter().map(|port| (*port, *port)).collect()
}

impl Container {
    /// Writes a line into the task's log.
    pub(super) fn log_line(&self, level: LogLevel, text: impl Into<String>) {
        self.shared.outbox.log(AgentLog {
            allocation_id: self.spec.allocation_id.clone(),
            container_id: Some(self.spec.container_id.clone()),
            lines: vec![(jiff::Timestamp::now().as_microsecond(), level, text.into())],
        });
    }

    /// Reports the container's state to the master.
    pub(super) fn report(&self, state: ContainerState) {
        self.shared.outbox.report(ContainerReport {
            container_id: self.spec.container_id.clone(),
            allocation_id: self.spec.allocation_id.clone(),
            state,
        });
    }

    /// The engine of its runtime; waits until it answers.
    pub(super) async fn engine(&self) -> &Engine {
        self.shared.runtimes.engine(self.runtime).await
    }

    /// Starts it, with the files of its directory.
    pub(super) async fn start(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<StartedContainer, LaunchError> {
        let prepared = self.prepare(session).await?;
        if let Some(kept) = &prepared.kept {
            let line =
                format!("files in \"{kept}\" are kept for this user's later notebooks and shells");
            self.log_line(LogLevel::Info, line);
        }
        match self.runtime {
            RuntimeKind::Process => self.start_process(session).await,
            RuntimeKind::Docker | RuntimeKind::Podman => {
                self.start_container(session, prepared).await
            }
        }
    }

    /// Writes the files of the directory.
    async fn prepare(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<PreparedContainer, LaunchError> {
        let python = match self.runtime {
            RuntimeKind::Process => self.shared.task_python().await.clone(),
            RuntimeKind::Docker | RuntimeKind::Podman => crate::python::TaskPython::default(),
        };
        let container = self.clone();
        let cluster_id = session.welcome.cluster_id.clone();
        let prepared = blocking(move || {
            let shared = &container.shared;
            let users = shared.guard.user_directories.as_deref();
            prepare::prepare(
                &container.dir,
                &container.spec,
                &ContainerInputs {
                    master: &shared.task_master(),
                    agent_id: &shared.options.agent_id,
                    devices: &shared.wire_devices(),
                    proxies: &shared.options.proxies,
                    debug: shared.options.debug,
                    tls: &shared.options.tls,
                    supervisor: &shared.options.supervisor_path,
                    bin: shared.data_dir.bin(),
                    python: &python,
                    runtime: container.runtime,
                    own_devices: &shared.devices_of(&container.spec),
                    other_nodes: &shared.other_nodes(&container.spec),
                    guard: &shared.guard,
                    shares_network: container.network_mode() == HOST,
                    root_tasks: shared.options.root_tasks,
                    user_directories: users.map(|base| UserDirectories {
                        base,
                        cluster_id: &cluster_id,
                    }),
                    notice: shared.options.isolation_notice.get().map(String::as_str),
                    warm: shared.warm.get().map(WarmStart::python),
                },
            )
        })
        .await?;
        Ok(prepared?)
    }

    async fn start_process(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<StartedContainer, LaunchError> {
        if let Some(notice) = grants::missing_capabilities_notice(&self.spec) {
            self.log_line(LogLevel::Warning, notice);
        }
        let container = self.clone();
        let start = move || {
            let id = &container.spec.container_id;
            let process = &container.shared.runtimes.process;
            let warm = container.shared.warm.get();
            process.start(&container.dir, id, &container.limits(), warm)
        };
        let (identity, unlimited) = blocking(start).await?.map_err(|error| {
            let message = format!(
                "cannot start the supervisor \"{}\": {error}",
                self.dir.supervisor().display()
            );
            LaunchError::of_access(message, &error)
        })?;
        if let Some(reason) = unlimited {
            self.log_line(LogLevel::Warning, without_limits(&reason));
        }
        Ok(StartedContainer {
            identity: Identity::Process(identity),
            host_address: session.host_address.clone(),
            ports: same_ports(&self.spec),
        })
    }

    /// The limits of this container.
    fn limits(&self) -> TaskLimits {
        let slots = self.spec.slots.devices().len();
        self.shared.options.task_limits.of(slots)
    }

    /// The network of a container. A master on a loopback address can be reached only from the host's network, which then
    /// replaces the default network.
    fn network_mode(&self) -> &str {
        match self.spec.network_mode.as_str() {
            "" | "bridge" | "default" if self.shared.task_master().is_loopback() => HOST,
            "" => "bridge",
            mode => mode,
        }
    }

    async fn start_container(
        &self,
        session: &Session,
        prepared: PreparedContainer,
    ) -> Result<StartedContainer, LaunchError> {
        // Only what the engine's own hooks read: the rest contains secrets, and the engine shows it to all its users.
        let env: Vec<(String, String)> = prepared
            .env
            .iter()
            .filter(|(name, _)| name.starts_with("NVIDIA_") || name == "DET_CONTAINER_ID")
            .cloned()
            .collect();
        let devices = self.shared.devices_of(&self.spec);
        let engine = self.engine().await;
        let wanted = self.limits();
        let (limits, unlimited) = engine.supported(&wanted.limits);
        match unlimited {
            Some(reason) if wanted.required => {
                return Err(LaunchError::Host(format!(
                    "\"task_limits\" of the agent's configuration are required, and cannot be set: {reason}"
                )));
            }
            Some(reason) => self.log_line(LogLevel::Warning, without_limits(&reason)),
            None => {}
        }
        let id = engine
            .create(
                &self.spec,
                ContainerContext {
                    dir: &self.dir,
                    devices: &devices,
                    agent_id: &self.shared.options.agent_id,
                    instance_id: self.shared.data_dir.instance_id(),
                    cluster_id: &session.welcome.cluster_id,
                    network_mode: self.network_mode(),
                    env: &env,
                    prepared: &prepared,
                    limits: &limits,
                    ulimits: &self.shared.options.ulimits,
                },
            )
            .await?;
        if let Err(reason) = engine.add_account(&id, &self.spec).await {
            self.log_line(
                LogLevel::Warning,
                format!(
                    "the account \"{}\" could not be added to those of the image: {reason}",
                    self.spec.user.user
                ),
            );
        }
        engine.start(&id).await?;
        self.container_started(session, id).await
    }

    async fn container_started(
        &self,
        session: &Session,
        id: String,
    ) -> Result<StartedContainer, LaunchError> {
        let ports = if self.network_mode() == HOST {
            same_ports(&self.spec)
        } else {
            self.engine().await.ports(&id).await?
        };
        Ok(StartedContainer {
            identity: Identity::Engine { id },
            host_address: session.host_address.clone(),
            ports,
        })
    }

    /// Finds the container in the runtime; `None` = it does not exist.
    pub(super) async fn find(
        &self,
        session: &Session,
    ) -> Result<Option<StartedContainer>, LaunchError> {
        if self.runtime == RuntimeKind::Process {
            let dir = self.dir.clone();
            let found = blocking(move || ProcessRuntime::find(&dir)).await?;
            return Ok(found.map(|identity| StartedContainer {
                identity: Identity::Process(identity),
                host_address: session.host_address.clone(),
                ports: same_ports(&self.spec),
            }));
        }
        match self.engine().await.find(&self.spec.container_id).await? {
            EngineState::Absent | EngineState::Created { .. } => Ok(None),
            // Waiting for one that has ended returns at once.
            EngineState::Running { id } | EngineState::Ended { id } => {
                self.container_started(session, id).await.map(Some)
            }
        }
    }

    /// The end of a process task, none of whose supervisors runs any more.
    pub(super) async fn ended(&self) -> RuntimeEnd {
        let (shared, id) = (self.shared.clone(), self.spec.container_id.clone());
        let look = move || shared.runtimes.process.ran_out_of_memory(&id);
        RuntimeEnd::Process {
            out_of_memory: blocking(look).await.unwrap_or(false),
        }
    }

    /// Waits for the end of the container.
    pub(super) async fn wait(&self, identity: &Identity) -> RuntimeEnd {
        match identity {
            Identity::Process(process) => {
                ProcessRuntime::wait(process).await;
                self.ended().await
            }
            Identity::Engine { id } => RuntimeEnd::Engine(self.engine().await.wait(id).await),
        }
    }

    /// Asks a container to end; returns the time at which it is to be killed.
    pub(super) async fn ask_to_end(&self, identity: &Identity, order: KillOrder) -> Instant {
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
            Identity::Engine { id } => self.engine().await.signal(id, signal).await,
        }
    }

    /// Kills a container that did not end when it was asked to.
    pub(super) async fn force(&self, identity: &Identity) {
        self.log_line(
            LogLevel::Warning,
            "the task did not end in time and is killed",
        );
        match identity {
            Identity::Process(_) => self.sweep_processes(Some(identity)).await,
            Identity::Engine { .. } => self.signal(identity, Signal::SIGKILL).await,
        }
    }

    /// Kills everything that a failed start left running.
    pub(super) async fn sweep(&self) {
        match self.runtime {
            RuntimeKind::Process => self.sweep_processes(None).await,
            RuntimeKind::Docker | RuntimeKind::Podman => {
                let engine = self.engine().await;
                // A start that got no answer may have worked. It counts as failed only when nothing of it exists.
                while let Err(error) = engine.remove(&self.spec.container_id).await {
                    tracing::warn!(container.id = %self.spec.container_id, "{error}; trying again");
                    sleep(ENGINE_RETRY).await;
                }
            }
        }
    }

    pub(super) async fn sweep_processes(&self, identity: Option<&Identity>) {
        let (shared, id) = (self.shared.clone(), self.spec.container_id.clone());
        let process = match identity {
            Some(Identity::Process(process)) => Some(process.clone()),
            _ => None,
        };
        let swept = blocking(move || {
            let runtime = &shared.runtimes.process;
            runtime.kill_all(process.as_ref(), &id);
            runtime.remove(&id)
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

    /// Removes everything of the container; retries until it succeeds.
    pub(super) async fn remove(&self) {
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
        let removes = self.shared.options.ended_containers == EndedContainers::Removed;
        if self.runtime != RuntimeKind::Process && removes {
            let engine = self.engine().await;
            engine.remove(id).await.map_err(|error| error.to_string())?;
        }
        let (shared, dir, id) = (self.shared.clone(), self.dir.clone(), id.clone());
        let removed = blocking(move || {
            shared
                .runtimes
                .process
                .remove(&id)
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

/// The line of a task's log where this host cannot limit it.
fn without_limits(reason: &str) -> String {
    format!(
        "this task runs without some of the limits that its agent's configuration has in \"task_limits\": {reason}"
    )
}

/// Runs a blocking function on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LaunchError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| LaunchError::Host(format!("work on a container broke off: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(errno: Errno) -> LaunchError {
        let error = PrepareError::Access {
            action: "write",
            path: "/data/containers/c/run/script.json".into(),
            source: errno.into(),
        };
        error.into()
    }

    #[test]
    fn what_fails_for_every_task_is_a_fault_of_the_host_and_a_name_is_not() {
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS, Errno::EMFILE] {
            assert!(matches!(access(errno), LaunchError::Fault(_)), "{errno}");
        }
        // A task chooses the names of its files.
        for errno in [Errno::ENAMETOOLONG, Errno::ENOTDIR, Errno::EACCES] {
            assert!(matches!(access(errno), LaunchError::Host(_)), "{errno}");
        }
        let full = StoreError::Access {
            action: "write",
            path: "/data/containers/c/record.json".into(),
            source: Errno::ENOSPC.into(),
        };
        let LaunchError::Fault(message) = full.into() else {
            panic!("a full disk is a fault of the host");
        };
        assert!(message.contains("No space left on device"), "{message}");
    }
}
