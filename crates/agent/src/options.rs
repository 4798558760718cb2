//! The options of an agent. The command line and `agent.yaml` are read by the `det` program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use det_ids::AgentId;

/// All options of an agent. Create them with [`AgentOptions::new`] and change what differs.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of the configuration of its own"
)]
pub struct AgentOptions {
    /// Base address of the master, `http://host:port` or `https://host:port`; the agent connects to it.
    pub master_url: String,
    /// Identity of this agent in the cluster, unique among live agents.
    pub agent_id: AgentId,
    /// Pool to join; must exist on the master.
    pub resource_pool: String,
    /// Data directory, used by this agent only: directories of containers, its identity, its lock.
    pub data_dir: PathBuf,
    /// What tasks run in: containers of an engine, or sandboxed processes.
    pub runtime: RuntimeChoice,
    /// Which devices of the machine become slots.
    pub slot_type: SlotType,
    /// Comma list of GPU index, UUID, PCI bus id or board serial that narrows detection; `None` = every GPU.
    pub visible_gpus: Option<String>,
    /// Number of artificial CPU slots instead of detected devices; 0 = detect.
    pub artificial_slots: u32,
    /// Host that *tasks* use to reach the master; `None` = the host of [`AgentOptions::master_url`].
    pub container_master_host: Option<String>,
    /// Port that *tasks* use to reach the master; `None` = the port of [`AgentOptions::master_url`].
    pub container_master_port: Option<u16>,
    /// Token with which all agents of the cluster join; `None` for an agent that has joined and has a token of its
    /// own in
    /// its data directory.
    pub token: Option<Secret>,
    /// The file that should have had [`AgentOptions::token`] and does not exist; for the error when the master does not
    /// know this agent's own token.
    pub missing_token_file: Option<PathBuf>,
    /// How the master's certificate is checked when its address is `https`.
    pub tls: TlsOptions,
    /// Proxy settings for tasks that have none of their own.
    pub proxies: ProxyOptions,
    /// Whether the scripts of all tasks log in detail. `false`: of those whose configuration asks for it.
    pub debug: bool,
    /// Interpreter that process tasks get as `python3`; `None` = the first `python3` on the agent's `PATH`.
    pub python: Option<PathBuf>,
    /// Directory with the `determined` package, for process tasks whose interpreter does not have it.
    pub python_package_dir: Option<PathBuf>,
    /// Path of the supervisor's executable.
    pub supervisor_path: PathBuf,
    /// How often a lost or failed connection is tried again after a full [`AgentOptions::reconnect_backoff`] before the
    /// agent gives up; `None` = for ever.
    pub reconnect_attempts: Option<u32>,
    /// Longest pause between two attempts; the real pauses grow up to it, with jitter.
    pub reconnect_backoff: Duration,
    /// Whether an agent whose devices or pool differ from what its master knew joins as a new agent by itself. `false`:
    /// it ends its tasks and itself, and joins at its next start.
    pub rejoin_when_changed: bool,
    /// Whether tasks keep running when the agent is asked to end. `false`: they are killed first.
    pub keep_tasks_on_shutdown: bool,
    /// Command, with its arguments, run when the connection is given up (see
    /// [`AgentOptions::reconnect_attempts`]) or refused for good; empty = none.
    pub on_connection_lost: Vec<String>,
    /// Directories of this host below which users' configurations may name paths that the agent creates or gives to
    /// tasks, in addition to those in the master's configuration; see `det_taskspec::guard`.
    pub allowed_host_paths: Vec<PathBuf>,
    /// Capabilities that users' configurations may ask for although they reach beyond the container; see
    /// `det_taskspec::guard`.
    pub allowed_capabilities: Vec<String>,
    /// Files and directories that no task may reach, in addition to [`AgentOptions::data_dir`]: a master's data
    /// directory on the same host, configuration files, tokens.
    pub private_paths: Vec<PathBuf>,
    /// Whether process tasks of users without a mapping run as root of this host. `false`: as
    /// [`det_taskspec::unprivileged_id`] of their owner.
    pub root_tasks: bool,
    /// What becomes of containers of an engine that have ended.
    pub ended_containers: EndedContainers,
    /// Directory of this host with a directory for each user that outlives the user's notebooks and shells; made if it does
    /// not exist. `None` = there are none.
    pub user_directories: Option<PathBuf>,
    /// What each container may take of this host.
    pub task_limits: TaskLimits,
    /// Limits of processes in containers of an engine, in place of the engine's own.
    pub ulimits: Vec<Ulimit>,
    /// Set if the sandbox of process tasks does not isolate them from this host as it should: one sentence for users.
    pub isolation_notice: Arc<OnceLock<String>>,
    /// Socket of the container engine; `None` = `DOCKER_HOST` if it names a socket, else the engine's usual place.
    pub engine_socket: Option<PathBuf>,
    /// The driver's tool that GPUs are watched with; a name is looked for on the agent's `PATH`.
    pub gpu_tool: PathBuf,
    /// The kernel's log, in which the driver of GPUs reports their errors. An agent that may not read it knows none.
    pub kernel_log: PathBuf,
    /// The kernel's directory of graphics devices, in which AMD GPUs show how much they are used.
    pub drm: PathBuf,
    /// How often devices are looked at.
    pub devices_every: Duration,
    /// Pause before the host is looked at again while it cannot start containers.
    pub host_look_pause: Duration,
    /// The debug server; `None` = there is none.
    pub debug_server: Option<DebugServer>,
    /// Where the master opens tunnels itself; `None` = the agent accepts no connections.
    pub tunnel_server: Option<TunnelServer>,
    /// Modules that are imported ahead for process tasks; `None` = none.
    pub warm_start: Option<WarmStartOptions>,
}

impl AgentOptions {
    /// Options with the documented defaults for everything that has one.
    pub fn new(
        master_url: impl Into<String>,
        agent_id: AgentId,
        data_dir: impl Into<PathBuf>,
        supervisor_path: impl Into<PathBuf>,
    ) -> Self {
        Self {
            master_url: master_url.into(),
            agent_id,
            resource_pool: "default".to_owned(),
            data_dir: data_dir.into(),
            runtime: RuntimeChoice::Auto,
            slot_type: SlotType::Auto,
            visible_gpus: None,
            artificial_slots: 0,
            container_master_host: None,
            container_master_port: None,
            token: None,
            missing_token_file: None,
            tls: TlsOptions::default(),
            proxies: ProxyOptions::default(),
            debug: false,
            python: None,
            python_package_dir: None,
            supervisor_path: supervisor_path.into(),
            reconnect_attempts: None,
            reconnect_backoff: Duration::from_secs(5),
            rejoin_when_changed: false,
            keep_tasks_on_shutdown: true,
            on_connection_lost: Vec::new(),
            allowed_host_paths: Vec::new(),
            allowed_capabilities: Vec::new(),
            private_paths: Vec::new(),
            root_tasks: false,
            ended_containers: EndedContainers::Removed,
            user_directories: None,
            task_limits: TaskLimits::default(),
            ulimits: Vec::new(),
            isolation_notice: Arc::default(),
            engine_socket: None,
            gpu_tool: "nvidia-smi".into(),
            kernel_log: "/dev/kmsg".into(),
            drm: "/sys/class/drm".into(),
            devices_every: Duration::from_secs(15),
            host_look_pause: crate::host::LOOK_PAUSE,
            debug_server: None,
            tunnel_server: None,
            warm_start: None,
        }
    }
}

/// Which modules are imported ahead, and by which interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmStartOptions {
    /// The interpreter, by an absolute path. Programs of tasks that find it as their `python3` start warm.
    pub python: PathBuf,
    /// The modules, in the order in which they are imported, with the rights of the agent.
    pub imports: Vec<String>,
}

/// Where the debug server of an agent listens.
#[derive(Debug, Clone)]
pub struct DebugServer {
    /// Host address and port that it listens on.
    pub address: SocketAddr,
    /// Certificate and key with which it speaks TLS; `None` = it does not.
    pub identity: Option<ClientIdentity>,
}

/// Where an agent accepts tunnels from its master.
#[derive(Debug, Clone)]
pub struct TunnelServer {
    /// Host as the master reaches it; `None` = the address from which the agent reaches the master.
    pub host: Option<String>,
    /// Port, on all addresses of the host; 0 = any that is free.
    pub port: u16,
}

/// What becomes of containers of an engine that have ended and are known to the master to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedContainers {
    /// They are removed from the engine.
    Removed,
    /// They stay, for a look at what they have left.
    Kept,
}

/// What each container may take of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskLimits {
    /// The limits of a container with one slot or none.
    pub limits: Limits,
    /// Whether a container is refused where this host cannot limit it. `false`: it is started, with a warning in its log.
    pub required: bool,
}

impl TaskLimits {
    /// The limits of a container with this number of slots.
    pub(crate) fn of(&self, slots: usize) -> Self {
        let slots = u64::try_from(slots.max(1)).unwrap_or(u64::MAX);
        let times = |limit: Option<u64>| limit.map(|limit| limit.saturating_mul(slots));
        Self {
            limits: Limits {
                memory_bytes: times(self.limits.memory_bytes),
                cpu_millis: times(self.limits.cpu_millis),
                processes: times(self.limits.processes),
            },
            required: self.required,
        }
    }
}

/// Limits of one container; `None` = it has no such limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Memory in bytes, shared memory and other files in memory included; swap is not used beyond it.
    pub memory_bytes: Option<u64>,
    /// Processor time, in thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Number of processes and threads together.
    pub processes: Option<u64>,
}

impl Limits {
    /// Whether there is any limit.
    pub(crate) fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A limit of each process in a container (`setrlimit(2)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ulimit {
    /// As engines call it, `memlock` or `nofile`.
    pub name: String,
    /// What holds at first, in the unit of the resource; -1 = no limit.
    pub soft: i64,
    /// Up to where processes may raise it; -1 = no limit.
    pub hard: i64,
}

/// The configured runtime of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeChoice {
    /// Docker if its socket answers within a second, else processes.
    #[default]
    Auto,
    /// Containers of a Docker engine.
    Docker,
    /// Containers of Podman, through its Docker-compatible service.
    Podman,
    /// Sandboxed processes of this host, without images.
    Process,
}

/// Which devices of the machine become slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotType {
    /// NVIDIA GPUs, else AMD GPUs, else one CPU slot.
    #[default]
    Auto,
    /// No slots; the agent still runs zero-slot tasks.
    None,
    /// NVIDIA GPUs and MIG instances only.
    Cuda,
    /// AMD GPUs only, one slot each.
    Rocm,
    /// One CPU slot, even if there are GPUs.
    Cpu,
}

/// How the master's certificate is checked.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// Accept any certificate. Refused together with [`TlsOptions::master_cert`].
    pub skip_verify: bool,
    /// PEM file with the authorities to trust instead of the host's.
    pub master_cert: Option<PathBuf>,
    /// Name the certificate must be for, if it is not the host in the master's address.
    pub master_cert_name: Option<String>,
    /// PEM files of this agent's own certificate and key, for masters that ask for one.
    pub client_identity: Option<ClientIdentity>,
}

/// Certificate and key of the agent, both PEM files.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// File with the agent's certificate chain, PEM.
    pub certificate: PathBuf,
    /// File with the private key of that certificate, PEM.
    pub key: PathBuf,
}

/// Proxy settings for tasks; `None` = not set.
#[derive(Clone, Default)]
pub struct ProxyOptions {
    /// Proxy of HTTP requests: `HTTP_PROXY` of tasks.
    pub http: Option<String>,
    /// Proxy of HTTPS requests: `HTTPS_PROXY` of tasks.
    pub https: Option<String>,
    /// Proxy of FTP requests: `FTP_PROXY` of tasks.
    pub ftp: Option<String>,
    /// Hosts that are reached without a proxy: `NO_PROXY` of tasks.
    pub no_proxy: Option<String>,
}

impl std::fmt::Debug for ProxyOptions {
    /// Shows only which are set, because proxy addresses may contain credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyOptions")
            .field("http", &self.http.is_some())
            .field("https", &self.https.is_some())
            .field("ftp", &self.ftp.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text, which `Debug` hides.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_for_one_slot_or_none() {
        let one = TaskLimits {
            limits: Limits {
                memory_bytes: Some(4 << 30),
                cpu_millis: Some(1500),
                processes: None,
            },
            required: true,
        };
        assert_eq!(one.of(0), one);
        assert_eq!(one.of(1), one);
        let four = one.of(4);
        assert_eq!(four.limits.memory_bytes, Some(16 << 30));
        assert_eq!(four.limits.cpu_millis, Some(6000));
        assert_eq!((four.limits.processes, four.required), (None, true));
        assert!(!TaskLimits::default().limits.any());
    }
}
