//! Tasks as containers of a Docker engine, or of Podman through its Docker-compatible service.
//!
//! A container is named and labelled after our container id, so that it is found again and never created twice. The
//! engine does not remove it when it ends: the agent does, once the master has stored the end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error as EngineFault;
use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummaryStateEnum,
    HostConfigLogConfig, SystemInfo,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, KillContainerOptionsBuilder,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use det_ids::{AgentId, ClusterId, ContainerId, InstanceId};
use det_taskspec::{ContainerSpec, DeviceKind, EMPTY_IMAGE, RegistryAuth};
use futures::StreamExt;
use nix::sys::signal::Signal;

use super::engine_error::EngineError;
use super::pull::{self, PullProgress};
use super::{container_body, image_accounts, inspect, logins, podman};
use crate::containers::prepare::PreparedContainer;
use crate::containers::store::{ContainerDir, RuntimeKind};
use crate::devices::LocalDevice;
use crate::host::require_space;
use crate::options::{EndedContainers, Limits, Ulimit};

/// Labels of our containers; the names are the ones that operators know.
pub(crate) const LABEL_CONTAINER: &str = "ai.determined.container.id";
pub(super) const LABEL_ALLOCATION: &str = "ai.determined.allocation.id";
pub(super) const LABEL_TASK: &str = "ai.determined.task.id";
pub(super) const LABEL_DESCRIPTION: &str = "ai.determined.container.description";
pub(super) const LABEL_AGENT: &str = "ai.determined.container.agent";
pub(super) const LABEL_CLUSTER: &str = "ai.determined.container.cluster";
pub(super) const LABEL_INSTANCE: &str = "ai.determined.agent.instance";

/// An archive without entries is two blocks of zeros.
const EMPTY_TAR_BYTES: usize = 1024;
/// How long an engine may take to answer that it runs.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before an engine that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(2);
/// The longest wait for the response to one request that is not a wait or a pull, in seconds.
const REQUEST_SECONDS: u64 = 120;

/// A connection to an engine.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    docker: Docker,
    kind: RuntimeKind,
    /// The engine's version; empty if it did not report one.
    version: String,
    /// What its host cannot limit for containers.
    unlimited: MissingLimits,
    /// Where it keeps images and containers, as it reports it.
    root: Option<PathBuf>,
}

/// What the host of an engine cannot limit for containers, as the engine reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MissingLimits {
    memory: bool,
    processor_time: bool,
    processes: bool,
}

impl MissingLimits {
    fn of(info: &SystemInfo) -> Self {
        Self {
            memory: info.memory_limit == Some(false),
            processor_time: info.cpu_cfs_quota == Some(false),
            // Podman reports nothing about it in some versions.
            processes: info.pids_limit == Some(false),
        }
    }

    /// Those of the limits that can be set, and a sentence about the others.
    fn supported(self, wanted: &Limits) -> (Limits, Option<String>) {
        let mut limits = *wanted;
        let mut missing = Vec::new();
        for (cannot, limit, name) in [
            (self.memory, &mut limits.memory_bytes, "memory"),
            (
                self.processor_time,
                &mut limits.cpu_millis,
                "processor time",
            ),
            (
                self.processes,
                &mut limits.processes,
                "numbers of processes",
            ),
        ] {
            if cannot && limit.take().is_some() {
                missing.push(name);
            }
        }
        let reason = (!missing.is_empty()).then(|| {
            let missing = missing.join(" and ");
            format!(
                "the container engine reports that its host cannot limit {missing} of containers"
            )
        });
        (limits, reason)
    }
}

/// State of a container in the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineState {
    /// The engine has no such container.
    Absent,
    /// The container exists and has never been started.
    Created { id: String },
    /// The process of the container runs.
    Running { id: String },
    /// The process of the container has ended.
    Ended { id: String },
}

/// How a container ended, as far as the engine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineEnd {
    /// It does not exist any more.
    Gone,
    /// Its first process ended with this code.
    Exited { code: i64, out_of_memory: bool },
}

/// What the engine needs to know of the agent to create a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerContext<'a> {
    pub(crate) dir: &'a ContainerDir,
    /// The agent's devices that the container gets.
    pub(crate) devices: &'a [LocalDevice],
    pub(crate) agent_id: &'a AgentId,
    pub(crate) instance_id: &'a InstanceId,
    pub(crate) cluster_id: &'a ClusterId,
    /// `host`, `bridge`, or a network's name.
    pub(crate) network_mode: &'a str,
    /// Variables that the engine's own hooks read; the task's are in its script.
    pub(crate) env: &'a [(String, String)],
    /// What of the task's configuration has been checked, and is given to the container.
    pub(crate) prepared: &'a PreparedContainer,
    /// What the container may take of the host.
    pub(crate) limits: &'a Limits,
    /// Limits of each of its processes, in place of the engine's own.
    pub(crate) ulimits: &'a [Ulimit],
}

impl Engine {
    /// Connects to an engine; fails if it does not answer within `patience`.
    pub(crate) async fn connect(
        kind: RuntimeKind,
        socket: Option<&Path>,
        patience: Duration,
    ) -> Result<Self, EngineError> {
        let socket = socket.map_or_else(|| usual_socket(kind), Path::to_owned);
        let unreachable = |reason: String| EngineError::Unreachable {
            kind,
            socket: socket.clone(),
            reason,
        };
        let address = socket.to_string_lossy();
        let docker =
            Docker::connect_with_unix(&address, REQUEST_SECONDS, bollard::API_DEFAULT_VERSION)
                .map_err(|fault| unreachable(sentence(&fault)))?;
        let talk = async {
            let docker = docker.negotiate_version().await?;
            let version = docker.version().await?;
            // Of an engine whose answer is not understood nothing is known.
            let info = docker.info().await.unwrap_or_default();
            Ok::<_, EngineFault>((docker, version, info))
        };
        let (docker, version, info) = tokio::time::timeout(patience, talk)
            .await
            .map_err(|_| unreachable(format!("no answer within {patience:?}")))?
            .map_err(|fault| unreachable(sentence(&fault)))?;
        // Podman answers on Docker's usual socket too, where its compatibility package is installed.
        let is_podman = version
            .components
            .iter()
            .flatten()
            .any(|component| component.name.to_ascii_lowercase().contains("podman"));
        let version = version.version.unwrap_or_default();
        Ok(Self {
            docker: if is_podman {
                podman::with_calm_waits(docker, &version)
            } else {
                docker
            },
            kind: if is_podman { RuntimeKind::Podman } else { kind },
            version,
            unlimited: MissingLimits::of(&info),
            root: info.docker_root_dir.map(PathBuf::from),
        })
    }

    /// Whether it could start a container: it answers, and there is space where it keeps images and containers. The error
    /// is for users.
    pub(crate) async fn look(&self) -> Result<(), String> {
        let answer = tokio::time::timeout(LOOK_PATIENCE, self.docker.ping()).await;
        let kind = self.kind.name();
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(fault)) => {
                return Err(format!("{kind} does not answer: {}", sentence(&fault)));
            }
            Err(_) => return Err(format!("{kind} does not answer within {LOOK_PATIENCE:?}")),
        }
        match &self.root {
            Some(root) => require_space(root).await,
            None => Ok(()),
        }
    }

    /// Those of the limits that this engine can set for containers, and a sentence about the others.
    pub(crate) fn supported(&self, wanted: &Limits) -> (Limits, Option<String>) {
        self.unlimited.supported(wanted)
    }

    /// The kind of the engine that answered: Docker or Podman.
    pub(crate) fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// The engine's version, for messages.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Whether the engine has the image.
    pub(crate) async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        match self
            .docker
            .inspect_image(&pull::full_reference(image))
            .await
        {
            Ok(_) => Ok(true),
            Err(fault) if is_absent(&fault) => Ok(false),
            Err(fault) => Err(unknown_image(image, fault)),
        }
    }

    /// Pulls an image. `say` receives a progress line from time to time. Dropping this future stops the pull.
    pub(crate) async fn pull(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
        say: impl Fn(String),
    ) -> Result<(), EngineError> {
        let reference = pull::full_reference(image);
        let options = CreateImageOptionsBuilder::new()
            .from_image(&reference)
            .build();
        let login = pull::login(image, auth, logins::login_file().as_deref()).await;
        let mut progress = PullProgress::default();
        let mut messages = Box::pin(self.docker.create_image(
            Some(options),
            None,
            login.credentials.clone(),
        ));
        while let Some(message) = messages.next().await {
            let message = message.map_err(|fault| match fault {
                fault if is_silent(&fault) => refused("pull the image")(fault),
                fault => pull::failed(&reference, &login, sentence(&fault)),
            })?;
            if let Some(line) = progress.update(&message, Instant::now()) {
                say(format!("pulling image \"{reference}\": {line}"));
            }
        }
        Ok(())
    }

    /// Makes the image without any file, of tasks that need nothing but their supervisor.
    pub(crate) async fn make_empty_image(&self) -> Result<(), EngineError> {
        let options = CreateImageOptionsBuilder::new()
            .from_src("-")
            .repo(EMPTY_IMAGE)
            .build();
        let archive = bollard::body_full(vec![0; EMPTY_TAR_BYTES].into());
        let mut messages = Box::pin(self.docker.create_image(Some(options), Some(archive), None));
        while let Some(message) = messages.next().await {
            message.map_err(refused("make an empty image"))?;
        }
        Ok(())
    }

    /// Creates the container, or finds one created earlier; does not start it. Returns the engine's id.
    pub(crate) async fn create(
        &self,
        spec: &ContainerSpec,
        context: ContainerContext<'_>,
    ) -> Result<String, EngineError> {
        let gpus = context
            .devices
            .iter()
            .any(|device| device.device.kind == DeviceKind::Cuda);
        if gpus && self.kind == RuntimeKind::Podman && !podman::takes_cdi(&self.version) {
            return Err(EngineError::PodmanTooOld {
                version: self.version.clone(),
            });
        }
        let body = container_body::build(self.kind, spec, context);
        let options = CreateContainerOptionsBuilder::new()
            .name(&name(&spec.container_id))
            .build();
        match self.docker.create_container(Some(options), body).await {
            Ok(made) => {
                for warning in made.warnings {
                    tracing::warn!(container.id = %spec.container_id, "the engine warns: {warning}");
                }
                Ok(made.id)
            }
            Err(EngineFault::DockerResponseServerError {
                status_code: 409,
                message,
            }) => match self.find(&spec.container_id).await? {
                EngineState::Created { id } => Ok(id),
                _ => Err(EngineError::Refused {
                    action: "create the container",
                    reason: message,
                }),
            },
            Err(fault) => Err(refused("create the container")(fault)),
        }
    }

    /// Adds the account of a linked user to a created container whose image does not have it. The error is for users.
    pub(crate) async fn add_account(&self, id: &str, spec: &ContainerSpec) -> Result<(), String> {
        if !image_accounts::concerns(spec) {
            return Ok(());
        }
        let home = spec.user.work_dir(&spec.script.work_dir);
        image_accounts::add(&self.docker, id, &spec.user, &home).await
    }

    /// Starts a created container.
    pub(crate) async fn start(&self, id: &str) -> Result<(), EngineError> {
        match self.docker.start_container(id, None).await {
            Ok(()) => Ok(()),
            // It already runs.
            Err(EngineFault::DockerResponseServerError {
                status_code: 304, ..
            }) => Ok(()),
            Err(fault) => Err(refused("start the container")(fault)),
        }
    }

    /// The published ports of a running container: container port and host port.
    pub(crate) async fn ports(&self, id: &str) -> Result<Vec<(u16, u16)>, EngineError> {
        let state = inspect::container(&self.docker, id)
            .await
            .map_err(refused("look at the container"))?;
        Ok(published(&state))
    }

    /// State of the container with this id.
    pub(crate) async fn find(
        &self,
        container_id: &ContainerId,
    ) -> Result<EngineState, EngineError> {
        match inspect::container(&self.docker, &name(container_id)).await {
            Ok(found) => Ok(state_of(&found)),
            Err(fault) if is_absent(&fault) => Ok(EngineState::Absent),
            Err(fault) => Err(refused("look for the container")(fault)),
        }
    }

    /// Waits for the end of the container, also while the engine restarts. Dropping this future loses nothing.
    pub(crate) async fn wait(&self, id: &str) -> EngineEnd {
        let mut said = false;
        loop {
            let options = WaitContainerOptionsBuilder::new()
                .condition("not-running")
                .build();
            let mut answer = Box::pin(self.docker.wait_container(id, Some(options)));
            // The state of the container decides, whatever the answer was.
            answer.next().await;
            match inspect::container(&self.docker, id).await {
                Err(fault) if is_absent(&fault) => return EngineEnd::Gone,
                Ok(found) => {
                    if let EngineState::Ended { .. } = state_of(&found) {
                        let state = found.state.unwrap_or_default();
                        return EngineEnd::Exited {
                            code: state.exit_code.unwrap_or(-1),
                            out_of_memory: state.oom_killed.unwrap_or(false),
                        };
                    }
                    // The wait was cut short although the container runs: a time limit of a proxy or of the client.
                }
                Err(fault) => {
                    if !said {
                        tracing::warn!(
                            "the container engine does not answer ({}); waiting for it",
                            sentence(&fault)
                        );
                        said = true;
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Sends a signal to the container's first process; ignored if it has ended.
    pub(crate) async fn signal(&self, id: &str, signal: Signal) {
        let options = KillContainerOptionsBuilder::new()
            .signal(signal.as_str())
            .build();
        match self.docker.kill_container(id, Some(options)).await {
            Ok(()) => {}
            Err(EngineFault::DockerResponseServerError {
                status_code: 404 | 409,
                ..
            }) => {}
            // Podman reports this with a general status.
            Err(EngineFault::DockerResponseServerError { message, .. })
                if message.contains("not running") || message.contains("can only kill running") => {
            }
            Err(fault) => {
                tracing::warn!("cannot send {signal} to a container: {}", sentence(&fault));
            }
        }
    }

    /// Removes the container, running or not; succeeds if it does not exist.
    pub(crate) async fn remove(&self, container_id: &ContainerId) -> Result<(), EngineError> {
        self.remove_named(&name(container_id)).await
    }

    async fn remove_named(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match self.docker.remove_container(name, Some(options)).await {
            Ok(()) => Ok(()),
            Err(fault) if is_absent(&fault) => Ok(()),
            // Another request is removing it.
            Err(EngineFault::DockerResponseServerError {
                status_code: 409, ..
            }) => Ok(()),
            Err(fault) => Err(refused("remove the container")(fault)),
        }
    }

    /// Removes containers of this agent that have no directory: their purpose is not known any more. `ended`: what
    /// becomes of those that have ended.
    pub(crate) async fn remove_strays(
        &self,
        instance_id: &InstanceId,
        ended: EndedContainers,
        is_known: impl Fn(&ContainerId) -> bool,
    ) -> Result<(), EngineError> {
        let filters = HashMap::from([(
            "label".to_owned(),
            vec![format!("{LABEL_INSTANCE}={instance_id}")],
        )]);
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let ours = inspect::containers(&self.docker, options)
            .await
            .map_err(refused("list the containers"))?;
        for container in ours {
            let has_ended = matches!(
                container.state,
                Some(ContainerSummaryStateEnum::EXITED | ContainerSummaryStateEnum::DEAD)
            );
            if ended == EndedContainers::Kept && has_ended {
                continue;
            }
            let Some(container_id) = container
                .labels
                .as_ref()
                .and_then(|labels| labels.get(LABEL_CONTAINER))
                .map(|id| ContainerId::from(id.as_str()))
                .filter(|id| !is_known(id))
            else {
                continue;
            };
            tracing::warn!(
                container.id = %container_id,
                "removing a container of this agent whose directory is gone"
            );
            if let Some(id) = container.id {
                self.remove_named(&id).await?;
            }
        }
        Ok(())
    }
}

/// The engine's name for our container.
fn name(container_id: &ContainerId) -> String {
    format!("det-{container_id}")
}

/// The default socket of an engine.
fn usual_socket(kind: RuntimeKind) -> PathBuf {
    let from_environment = std::env::var("DOCKER_HOST")
        .ok()
        .and_then(|host| host.strip_prefix("unix://").map(PathBuf::from));
    match kind {
        RuntimeKind::Podman => {
            let own = std::env::var_os("XDG_RUNTIME_DIR")
                .map(|dir| Path::new(&dir).join("podman/podman.sock"))
                .filter(|socket| socket.exists());
            own.unwrap_or_else(|| PathBuf::from("/run/podman/podman.sock"))
        }
        RuntimeKind::Docker | RuntimeKind::Process => {
            from_environment.unwrap_or_else(|| PathBuf::from("/var/run/docker.sock"))
        }
    }
}

fn state_of(found: &ContainerInspectResponse) -> EngineState {
    let id = found.id.clone().unwrap_or_default();
    let state = found.state.as_ref();
    match state.and_then(|state| state.status) {
        Some(ContainerStateStatusEnum::CREATED | ContainerStateStatusEnum::EMPTY) => {
            EngineState::Created { id }
        }
        Some(
            ContainerStateStatusEnum::EXITED
            | ContainerStateStatusEnum::DEAD
            | ContainerStateStatusEnum::REMOVING,
        ) => EngineState::Ended { id },
        Some(_) => EngineState::Running { id },
        None if state.and_then(|state| state.running) == Some(true) => EngineState::Running { id },
        None => EngineState::Created { id },
    }
}

fn published(found: &ContainerInspectResponse) -> Vec<(u16, u16)> {
    let Some(ports) = found
        .network_settings
        .as_ref()
        .and_then(|network| network.ports.as_ref())
    else {
        return Vec::new();
    };
    let mut list: Vec<(u16, u16)> = ports
        .iter()
        .filter_map(|(port, bindings)| {
            let inside = port.split('/').next()?.parse().ok()?;
            let outside = bindings
                .iter()
                .flatten()
                .find_map(|binding| binding.host_port.as_ref()?.parse().ok())?;
            Some((inside, outside))
        })
        .collect();
    list.sort_unstable();
    list
}

pub(super) fn is_absent(fault: &EngineFault) -> bool {
    matches!(
        fault,
        EngineFault::DockerResponseServerError {
            status_code: 404,
            ..
        }
    )
}

fn refused(action: &'static str) -> impl FnOnce(EngineFault) -> EngineError {
    move |fault| {
        let reason = sentence(&fault);
        match fault {
            EngineFault::RequestTimeoutError => EngineError::TimedOut { action, reason },
            fault if is_silent(&fault) => EngineError::Silent { action, reason },
            _ => EngineError::Refused { action, reason },
        }
    }
}

/// Why an image was not found out about. An engine that reads the name differently from how it was written does not repeat it.
fn unknown_image(image: &str, fault: EngineFault) -> EngineError {
    match refused("look for the image")(fault) {
        EngineError::Refused { reason, .. } => EngineError::Image {
            image: image.to_owned(),
            reason,
        },
        silent => silent,
    }
}

/// Whether there is no answer at all: what the engine answers is its decision about the request.
fn is_silent(fault: &EngineFault) -> bool {
    matches!(
        fault,
        EngineFault::RequestTimeoutError
            | EngineFault::IOError { .. }
            | EngineFault::HyperResponseError { .. }
            | EngineFault::HyperLegacyError { .. }
            | EngineFault::SocketNotFoundError(_)
    )
}

/// The engine's own message, without the client's prefix.
pub(super) fn sentence(fault: &EngineFault) -> String {
    match fault {
        EngineFault::DockerResponseServerError { message, .. } => message.clone(),
        EngineFault::DockerStreamError { error } => error.clone(),
        other => {
            // The cause is in the chain: "connection refused" is two levels down.
            let mut text = other.to_string();
            let mut cause = std::error::Error::source(other);
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            text
        }
    }
}

/// Keeps little of the supervisor's own output: the task's output is in its spool.
pub(super) fn log_config() -> HostConfigLogConfig {
    HostConfigLogConfig {
        typ: Some("json-file".to_owned()),
        config: Some(HashMap::from([
            ("max-size".to_owned(), "1m".to_owned()),
            ("max-file".to_owned(), "1".to_owned()),
        ])),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerState, NetworkSettings, PortBinding};

    use super::super::engine_error::Obstacle;
    use super::*;

    #[test]
    fn ports_are_read_with_their_host_ports() {
        let binding = |port: &str| {
            Some(vec![PortBinding {
                host_ip: Some("0.0.0.0".into()),
                host_port: Some(port.into()),
            }])
        };
        let found = ContainerInspectResponse {
            network_settings: Some(NetworkSettings {
                ports: Some(HashMap::from([
                    ("2600/tcp".to_owned(), binding("32770")),
                    ("1734/tcp".to_owned(), binding("32769")),
                    ("80/tcp".to_owned(), None),
                ])),
                ..NetworkSettings::default()
            }),
            ..ContainerInspectResponse::default()
        };
        assert_eq!(published(&found), [(1734, 32769), (2600, 32770)]);
        assert!(published(&ContainerInspectResponse::default()).is_empty());
    }

    #[test]
    fn the_engines_states_are_parsed() {
        let found = |status| ContainerInspectResponse {
            id: Some("x".into()),
            state: Some(ContainerState {
                status: Some(status),
                ..ContainerState::default()
            }),
            ..ContainerInspectResponse::default()
        };
        let id = || "x".to_owned();
        assert_eq!(
            state_of(&found(ContainerStateStatusEnum::CREATED)),
            EngineState::Created { id: id() }
        );
        assert_eq!(
            state_of(&found(ContainerStateStatusEnum::PAUSED)),
            EngineState::Running { id: id() }
        );
        assert_eq!(
            state_of(&found(ContainerStateStatusEnum::EXITED)),
            EngineState::Ended { id: id() }
        );
    }

    #[test]
    fn messages_contain_the_engines_own_sentence() {
        let fault = EngineFault::DockerResponseServerError {
            status_code: 404,
            message: "pull access denied for x".into(),
        };
        assert_eq!(sentence(&fault), "pull access denied for x");
    }

    #[tokio::test]
    async fn an_engine_that_has_ended_is_no_failure_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let address = socket.to_string_lossy();
        let engine = Engine {
            docker: Docker::connect_with_unix(&address, 5, bollard::API_DEFAULT_VERSION).unwrap(),
            kind: RuntimeKind::Podman,
            version: "5.4.0".into(),
            unlimited: MissingLimits::default(),
            root: None,
        };
        // Its socket stays behind, as after SIGKILL.
        drop(listener);
        let errors = [
            engine.has_image("x").await.unwrap_err(),
            engine.pull("x", None, |_| {}).await.unwrap_err(),
            engine.make_empty_image().await.unwrap_err(),
            engine.start("x").await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.obstacle(), Obstacle::Engine, "{error}");
            let message = error.to_string();
            assert!(message.contains("does not answer"), "{message}");
        }
        let found = engine.look().await.unwrap_err();
        assert!(found.starts_with("podman does not answer: "), "{found}");
    }

    #[test]
    fn what_an_engine_answers_is_of_the_task_unless_its_disk_is_full() {
        let refused_with = |message: &str| {
            refused("create the container")(EngineFault::DockerResponseServerError {
                status_code: 500,
                message: message.into(),
            })
        };
        assert_eq!(
            refused_with("mkdir /var/lib: No space left on device").obstacle(),
            Obstacle::EngineOrTask
        );
        assert_eq!(
            refused_with("invalid mount path").obstacle(),
            Obstacle::Task
        );
        let fault = EngineFault::DockerResponseServerError {
            status_code: 500,
            message: "normalizing image: invalid reference format".into(),
        };
        let unknown = unknown_image("Not A Name", fault);
        assert_eq!(unknown.obstacle(), Obstacle::Task);
        assert_eq!(
            unknown.to_string(),
            "cannot look for image \"Not A Name\": normalizing image: invalid reference format"
        );
        let timed_out = refused("pull the image")(EngineFault::RequestTimeoutError);
        assert_eq!(timed_out.obstacle(), Obstacle::EngineOrTask, "{timed_out}");
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_named_with_its_socket() {
        let message = Engine::connect(
            RuntimeKind::Docker,
            Some(Path::new("/nonexistent/docker.sock")),
            Duration::from_secs(1),
        )
        .await
        .unwrap_err()
        .to_string();
        assert!(
            message.contains("docker does not answer at \"/nonexistent/docker.sock\""),
            "{message}"
        );
    }
}
